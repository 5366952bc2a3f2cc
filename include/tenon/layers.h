/**
 * tenon/layers.h - the modules that come with tenon: layers, containers, averages of a model.
 *
 * What holds for every module stands at the head of module.h. A layer that computes what an op does
 * has the op's name; parameters and buffers have PyTorch's names, shapes and initial values.
 */
#ifndef TENON_LAYERS_H
#define TENON_LAYERS_H

#include <tenon/module.h>

TN_BEGIN_C_

/* ---- layers: options by value, zero fields are PyTorch's defaults or zero, as each says ------ */

/** zero fields: with bias */
typedef struct tn_linear_options {
    bool no_bias; /* y = x W^T */
} tn_linear_options;
/** y = x W^T + b: x [..., in] to [..., out]. Parameters weight [out, in] and bias [out], both
 *  U(+-1/sqrt(in)). He et al. (2015) with a = sqrt 5 */
TN_API tn_module *tn_linear_new(int64_t in_features, int64_t out_features, tn_linear_options o);

/** The numbers of tn_conv_spec, each for all axes. zero fields: stride, dilation and groups 1, no
 *  padding, with bias */
typedef struct tn_conv_options {
    int64_t stride, padding, dilation, groups;
    bool no_bias;             /* no parameter bias */
    bool same;                /* pads so that sizes stay; stride 1 */
    int64_t padding_end;      /* below and to the right; 0: as padding */
    bool use_padding_end;     /* takes padding_end 0 as given */
    tn_pad_mode padding_mode; /* what is in the padding; 0: zeros */
    int64_t output_padding;   /* of transposed convolutions: so much is y longer */
} tn_conv_options;
typedef tn_conv_options tn_conv2d_options; /* another name */
/** tn_conv2d as a layer: x [N, in, H, W] to [N, out, H', W']. Parameters weight [out, in/groups, k,
 *  k] and bias [out], both U(+-1/sqrt(fan_in)). */
TN_API tn_module *tn_conv2d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                tn_conv_options o);
/** The same with a size per axis: weight [out, in/groups, kernel_h, kernel_w]. */
TN_API tn_module *tn_conv2d_spec_new(int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                                     int64_t kernel_w, tn_conv_spec spec, bool no_bias);
/** tn_conv1d as a layer: weight [out, in/groups, k]. PyTorch: nn.Conv1d */
TN_API tn_module *tn_conv1d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                tn_conv_options o);
/** tn_conv3d as a layer: weight [out, in/groups, k, k, k]. PyTorch: nn.Conv3d */
TN_API tn_module *tn_conv3d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                tn_conv_options o);
/** The same with a size per axis. */
TN_API tn_module *tn_conv3d_spec_new(int64_t in_channels, int64_t out_channels, int64_t kernel_d,
                                     int64_t kernel_h, int64_t kernel_w, tn_conv_spec spec,
                                     bool no_bias);
/** tn_conv_transpose2d as a layer: weight [in, out/groups, k, k], and its fan_in is of out, as
 *  PyTorch's. PyTorch: nn.ConvTranspose2d; output_size is made by output_padding */
TN_API tn_module *tn_conv_transpose2d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                          tn_conv_options o);
/** The same with a size per axis. */
TN_API tn_module *tn_conv_transpose2d_spec_new(int64_t in_channels, int64_t out_channels,
                                               int64_t kernel_h, int64_t kernel_w,
                                               tn_conv_spec spec, bool no_bias);
/** The same along one axis: weight [in, out/groups, k]. PyTorch: nn.ConvTranspose1d */
TN_API tn_module *tn_conv_transpose1d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                          tn_conv_options o);

/** zero fields: eps 1e-5, momentum 0.1; with its use_ field 0 means 0 */
typedef struct tn_batch_norm_options {
    double eps;       /* 0: 1e-5 (use_eps takes 0 as given) */
    double momentum;  /* 0: 0.1 (use_momentum) */
    bool cumulative;  /* plain average over batches instead of momentum */
    bool no_affine;   /* no weight and bias */
    bool no_bias;     /* no bias */
    bool no_tracking; /* no running statistics: batch statistics in eval too */
    bool biased_var;  /* running_var: of the biased variance, as in Keras, flax and Paddle */
    /* a batch whose statistics are not finite changes no buffer and is counted by
     * tn_batch_norm_skipped; each forward then reads the buffers once more */
    bool skip_nonfinite;
    bool use_eps, use_momentum;
} tn_batch_norm_options;
/**
 * tn_batch_norm as a layer, which in training moves its running buffers.
 *
 * Shapes   x [N, C, H, W], C = features
 * State    parameters weight [C] 1, bias [C] 0; buffers running_mean [C] 0, running_var [C] 1,
 *          num_batches_tracked [] 0 (i64)
 */
TN_API tn_module *tn_batch_norm2d_new(int64_t features, tn_batch_norm_options o);
/** The same for x [N, C] or [N, C, L]. */
TN_API tn_module *tn_batch_norm1d_new(int64_t features, tn_batch_norm_options o);
/** The same for x [N, C, D, H, W]. PyTorch: nn.BatchNorm3d */
TN_API tn_module *tn_batch_norm3d_new(int64_t features, tn_batch_norm_options o);
/** Sets the running buffers of one BatchNorm layer to those of a new one. */
TN_API tn_status tn_batch_norm_reset_running_stats(tn_module *m);
/** The share of a new batch in the running buffers; NaN: m is no BatchNorm layer. */
TN_API double tn_batch_norm_momentum(const tn_module *m);
/** Sets that share, from the next forward on, even if the layer was cumulative; 0 leaves the
 *  buffers alone. A captured step keeps its old momentum. Errors: outside [0, 1]; no BatchNorm
 *  layer. */
TN_API TN_MUST_USE tn_status tn_batch_norm_set_momentum(tn_module *m, double momentum);
/** Batches that skip_nonfinite left out since the last reset; not saved. -1: no BatchNorm layer. */
TN_API int64_t tn_batch_norm_skipped(const tn_module *m);

/** The one number of a frozen batch norm. */
typedef struct tn_frozen_batch_norm_options {
    double eps;   /* 0: 1e-5 */
    bool use_eps; /* takes eps 0 as given */
} tn_frozen_batch_norm_options;
/**
 * BatchNorm whose tensors are all buffers, so that training never changes it: y = x scale + shift
 * in training and evaluation alike, scale = weight / sqrt(running_var + eps), shift = bias -
 * running_mean scale.
 *
 * Shapes   x [N, C, H, W], C = features
 * State    buffers weight [C] 1, bias [C] 0, running_mean [C] 0, running_var [C] 1 - eps (so that a
 *          new layer is exactly the identity), num_batches_tracked absent. State version 3; where a
 *          list of version 1 or unknown lacks the running statistics they become 0 and 1
 * Source   detectron2's FrozenBatchNorm2d
 */
TN_API tn_module *tn_frozen_batch_norm2d_new(int64_t features, tn_frozen_batch_norm_options o);
/**
 * Turns every BatchNorm2d of the tree m into a FrozenBatchNorm2d, where it stands: what points
 * to it (a field, a variable, another tree) finds it frozen. tn_thaw_batch_norm turns them back.
 * They get copies of weight, bias, running statistics and counter, and take over eps, dtype,
 * device, train or eval, frozen or not; ties between these layers survive. Thawed weights are
 * parameters again; momentum is what it was before freezing, else 0.1; a missing counter is 0.
 *
 * Names    unchanged. Optimizers made before hold the old parameters: make them again. Hooks of
 *          these layers are gone; BatchNorm1d is left alone
 * Errors   a BatchNorm2d without running statistics, with its path
 * Owner    consumes m, on failure too; returns m
 */
TN_API tn_module *tn_freeze_batch_norm(tn_module *m);
/** Turns every FrozenBatchNorm2d into a BatchNorm2d, as described above. */
TN_API tn_module *tn_thaw_batch_norm(tn_module *m);

/* ---- other layers with parameters or buffers ------------------------------------------------- */

/** zero fields: eps 1e-5, with weight and bias */
typedef struct tn_layer_norm_options {
    double eps;              /* 0: 1e-5 */
    bool no_affine, no_bias; /* neither weight nor bias; no bias */
    bool use_eps;            /* takes eps 0 as given */
} tn_layer_norm_options;
/** tn_layer_norm over the trailing axes, which have this shape. Parameters weight 1 and bias 0, of
 *  this shape. */
TN_API tn_module *tn_layer_norm_new(tn_shape shape, tn_layer_norm_options o);

/** zero fields: the epsilon of x's dtype (f32's for bf16 and f16), with weight */
typedef struct tn_rms_norm_options {
    double eps;     /* 0: that epsilon */
    bool no_affine; /* no weight */
    bool use_eps;   /* takes eps 0 as given */
} tn_rms_norm_options;
/** tn_rms_norm over the trailing axes, which have this shape. Parameter weight 1, of this shape.
 *  PyTorch: nn.RMSNorm */
TN_API tn_module *tn_rms_norm_new(tn_shape shape, tn_rms_norm_options o);
/** tn_group_norm as a layer: x [N, channels, ...]. Parameters weight [channels] 1 and bias
 *  [channels] 0. Errors: groups that do not divide channels. PyTorch: nn.GroupNorm */
TN_API tn_module *tn_group_norm_new(int64_t groups, int64_t channels, tn_layer_norm_options o);

/** zero fields: eps 1e-5, momentum 0.1, neither weight and bias nor running statistics */
typedef struct tn_instance_norm_options {
    double eps;      /* 0: 1e-5 (use_eps takes 0 as given) */
    double momentum; /* 0: 0.1 (use_momentum) */
    bool affine;     /* with weight and bias */
    bool no_bias;    /* without bias */
    bool tracking;   /* with running statistics, which evaluation uses */
    bool use_eps, use_momentum;
} tn_instance_norm_options;
/**
 * y = w (x - mean) / sqrt(var + eps) + b, mean and biased variance of each channel of each sample.
 *
 * Shapes   x [N, C, L] or [C, L], C = features
 * State    with affine, parameters weight [C] 1 and bias [C] 0; with tracking, the buffers of a
 *          batch norm. In training running_mean and running_var move towards the averages over
 *          samples of mean and unbiased variance; num_batches_tracked stays 0, as PyTorch's does
 * Errors   one value per channel where a mean is to be taken
 * Source   Ulyanov, Vedaldi, Lempitsky, Instance Normalization (2016), eq. 2
 * PyTorch: nn.InstanceNorm1d
 */
TN_API tn_module *tn_instance_norm1d_new(int64_t features, tn_instance_norm_options o);
/** The same for x [N, C, H, W] or [C, H, W]. PyTorch: nn.InstanceNorm2d */
TN_API tn_module *tn_instance_norm2d_new(int64_t features, tn_instance_norm_options o);

/** zero fields: no padding row */
typedef struct tn_embedding_options {
    bool use_padding_index; /* the next field counts */
    int64_t padding_index;  /* a row that starts at 0 and gets no gradient */
} tn_embedding_options;
/** tn_embedding as a layer: ids [...] to [..., d]. Parameter weight [n, d]: N(0, 1), the padding
 *  row 0. */
TN_API tn_module *tn_embedding_new(int64_t n, int64_t d, tn_embedding_options o);

/** zero fields: no dropout, the table is saved */
typedef struct tn_positional_encoding_options {
    double dropout;      /* probability, in training */
    bool non_persistent; /* the table is not saved */
} tn_positional_encoding_options;
/**
 * y = dropout(x + pe[:, :T]).
 *
 * Shapes   x [B, T, d_model], T <= max_len
 * State    buffer pe [1, max_len, d_model]: pe[t, 2i] = sin(t f_i), pe[t, 2i+1] = cos(t f_i),
 *          f_i = 10000^(-2i/d); an odd d_model has one cosine less
 * Source   Vaswani et al. (2017), sec. 3.5
 */
TN_API tn_module *tn_positional_encoding_new(int64_t d_model, int64_t max_len,
                                             tn_positional_encoding_options o);

/** tn_dropout as a layer. Training: zero with probability p in [0, 1], scale the rest by 1/(1-p);
 *  evaluation: x itself. */
TN_API tn_module *tn_dropout_new(double p);
/** The same for whole channels: x [N, C, L] or [C, L]. Tompson et al., Efficient Object
 *  Localization (2015), section 3.2. PyTorch: nn.Dropout1d */
TN_API tn_module *tn_dropout1d_new(double p);
/** The same for x [N, C, H, W] or [N, C, L]. PyTorch: nn.Dropout2d */
TN_API tn_module *tn_dropout2d_new(double p);
/** The probability of one layer: Dropout, Dropout1d, Dropout2d, PositionalEncoding,
 *  MultiheadAttention, TransformerEncoderLayer, TransformerDecoderLayer, or an RNN, GRU or LSTM of
 *  several layers. NaN and a message for any other. */
TN_API double tn_dropout_p(tn_module *m);
/** Sets p of every such layer of the tree m, from the next forward on. A captured step keeps its
 *  old p. Errors: p outside [0, 1]; no such layer in m. */
TN_API TN_MUST_USE tn_status tn_dropout_set_p(tn_module *m, double p);

/* ---- parameters made of others --------------------------------------------------------------- */

/**
 * Weight normalization: from now on each call of m makes its parameter of that name as v g / |v|,
 * with a g and a norm for each index of that axis (-1: one for all elements).
 *
 * State    parametrizations.NAME.original0, g, which is |v| at first, and original1, v, which is
 *          the parameter itself; no NAME any more: tn_get_parameter(m, NAME) fails
 * Note     make optimizers afterwards, since g is new. One parameter of a layer
 * Errors   no such parameter; one without a field in the struct; fewer than two axes; an axis that
 *          is not there; m has one already. Nothing has changed then
 * Source   Salimans and Kingma, Weight Normalization (2016), eq. 2
 * PyTorch: nn.utils.parametrizations.weight_norm
 */
TN_API TN_MUST_USE tn_status tn_weight_norm(tn_module *m, const char *name, int axis);
/** zero fields: PyTorch's defaults, but for transposed convolutions, whose axis is 1 */
typedef struct tn_spectral_norm_options {
    int64_t iterations; /* of the power method for each call in training; 0: 1 */
    int64_t axis;       /* which is the rows of the matrix */
    double eps;         /* what norms are at least; 0: 1e-12 */
} tn_spectral_norm_options;
/**
 * Spectral normalization: the same as v / s, where s is about the largest singular value of v as a
 * matrix with that axis as rows. Like weight norm in f32, under autocast too, if v is bf16 or f16.
 *
 * State    parametrizations.NAME.original, v; buffers parametrizations.NAME.0._u and ._v, the first
 *          singular vectors, nearly: random unit vectors after 15 iterations (TN_DIRECTION)
 * Source   Miyato et al., Spectral Normalization for GANs (2018), algorithm 1
 * PyTorch: nn.utils.parametrizations.spectral_norm
 */
TN_API TN_MUST_USE tn_status tn_spectral_norm(tn_module *m, const char *name,
                                              tn_spectral_norm_options o);

/* ---- attention ------------------------------------------------------------------------------- */

/** zero fields: no dropout, with biases, batch first */
typedef struct tn_multihead_attention_options {
    double dropout;      /* of attention weights, in training */
    bool no_bias;        /* neither in_proj_bias nor out_proj.bias */
    bool sequence_first; /* [T, B, E] as PyTorch's default; ours is [B, T, E] */
    int64_t kdim, vdim;  /* 0: embed_dim */
    bool add_bias_kv;    /* a further key and value that are learned, bias_k and bias_v */
    bool add_zero_attn;  /* a further key and value of zeros */
} tn_multihead_attention_options;
/**
 * softmax(q k^T / sqrt(D)) v in every head, between projections in and out; E = heads D.
 *
 * State    in_proj_weight [3E, E] U(+-sqrt(6 / 4E)) (with other kdim or vdim q_, k_ and
 *          v_proj_weight), in_proj_bias [3E] 0, out_proj.weight [E, E], out_proj.bias [E] 0;
 *          bias_k, bias_v [1, 1, E] normal, deviation 1 / sqrt(E)
 * Call     tn_forward(m, x) is self-attention. In training, dropout acts on the attention weights,
 *          which then take memory as [B, heads, T, S]. Further keys are seen by every query, also
 *          when causal (PyTorch's is_causal hides them, if it does not need the mask); S counts
 *          them, and keys and values are copied to append them
 * Source   Vaswani et al. (2017), sec. 3.2.2
 */
TN_API tn_module *tn_multihead_attention_new(int64_t embed_dim, int64_t heads,
                                             tn_multihead_attention_options o);
/** Which keys a query does not see. */
typedef struct tn_attention_masks {
    tn_tensor *mask; /* [T, S] or [B*H, T, S]; bool true = blocked, float added */
    /* [B, S] bool, true = ignored. Each: TN_NONE or a zero field for none */
    tn_tensor *key_padding;
    bool causal; /* query t sees keys s <= t only */
} tn_attention_masks;
/** q [B, T, E], k [B, S, kdim], v [B, S, vdim] -> [B, T, E] (sequence_first: [T, B, E] and so on).
 *  weights: NULL, or receives the attention weights [B, T, S] averaged over heads, after dropout
 *  (slower path). A row with everything blocked gives 0. */
TN_API tn_tensor *tn_multihead_attention_forward(tn_module *m, tn_tensor *q, tn_tensor *k,
                                                 tn_tensor *v, tn_attention_masks masks,
                                                 tn_tensor **weights);

/** zero fields: PyTorch's defaults but for dropout and batch first */
typedef struct tn_encoder_layer_options {
    int64_t feedforward; /* 0: 2048 */
    double dropout;      /* 0: none (PyTorch: 0.1) */
    bool gelu;           /* else relu */
    bool norm_first;     /* pre-norm */
    bool sequence_first; /* [T, B, E] */
    double eps;          /* 0: 1e-5 */
    bool use_eps;        /* takes eps 0 as given */
    bool gelu_tanh;      /* gelu by tanh */
    bool no_bias;        /* none in attention, linear1, linear2 and norms */
} tn_encoder_layer_options;
/** Attention and feed-forward net with residual paths. Post-norm: x = norm1(x + attn(x)), x =
 *  norm2(x + ff(x)); norm_first: x += attn(norm1(x)), x += ff(norm2(x)); ff =
 *  linear2(drop(act(linear1))). Children self_attn, linear1, linear2, norm1, norm2. tn_forward
 *  calls it without masks. */
TN_API tn_module *tn_encoder_layer_new(int64_t d_model, int64_t heads, tn_encoder_layer_options o);
/** The layer with masks: x [B, T, d_model] to the same shape. */
TN_API tn_tensor *tn_encoder_layer_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks);
/** n deep copies of layer (which is consumed) under layers.0 ..., so with equal initial weights;
 *  norm may be TN_NO_MODULE, consumed. Any module of one input may be a layer, but then masks are
 *  an error. */
TN_API tn_module *tn_encoder_new(tn_module *layer, int n, tn_module *norm);
/** All layers with the same masks, then norm. x [B, T, d_model] to the same shape. */
TN_API tn_tensor *tn_encoder_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks);
/** An encoder's layer that reads a memory as well: x = norm1(x + self_attn(x)), x = norm2(x +
 *  multihead_attn(x, memory, memory)), x = norm3(x + ff(x)), or with norm_first as there. tn_call
 *  with x and memory calls it without masks. PyTorch: nn.TransformerDecoderLayer; batch first;
 *  dropout not given is 0, not 0.1 */
TN_API tn_module *tn_decoder_layer_new(int64_t d_model, int64_t heads, tn_encoder_layer_options o);
/** x [B, T, d_model], memory [B, S, d_model] -> [B, T, d_model]. masks: of x on itself ([T, T], key
 *  padding [B, T], mostly causal); memory_masks: of x on memory ([T, S], [B, S]). PyTorch:
 *  TransformerDecoderLayer.forward(tgt, memory, ...) */
TN_API tn_tensor *tn_decoder_layer_forward(tn_module *m, tn_tensor *x, tn_tensor *memory,
                                           tn_attention_masks masks,
                                           tn_attention_masks memory_masks);
/** As tn_encoder_new. Any module of two inputs, x and memory, may be a layer, but then masks are an
 *  error. PyTorch: nn.TransformerDecoder; consumes the layer */
TN_API tn_module *tn_decoder_new(tn_module *layer, int n, tn_module *norm);
/** All layers with the same memory and masks, then norm. PyTorch: TransformerDecoder.forward(tgt,
 *  memory, ...) */
TN_API tn_tensor *tn_decoder_forward(tn_module *m, tn_tensor *x, tn_tensor *memory,
                                     tn_attention_masks masks, tn_attention_masks memory_masks);

/* ---- recurrent layers ------------------------------------------------------------------------ */

/** zero fields: one layer in one direction, with biases, batch first */
typedef struct tn_recurrent_options {
    int64_t layers;      /* 0: 1; each further one reads what the one before it gives */
    double dropout;      /* of what a layer gives to the next, in training */
    bool no_bias;        /* neither bias_ih nor bias_hh */
    bool bidirectional;  /* a second set of weights reads from the last step to the first */
    bool sequence_first; /* [T, B, features] as PyTorch's default; ours is [B, T, features] */
    bool relu;           /* RNN: in place of tanh */
    int64_t proj_size;   /* LSTM: h = W_hr (o tanh c) of this size, below hidden_size; 0: none */
    /* GRU: n = tanh(W_in x + b_in + W_hn (r h) + b_hn), Cho et al. (2014), as Keras's
     * reset_after=False and ONNX; false: r (W_hn h + b_hn) in it, as PyTorch */
    bool reset_before;
} tn_recurrent_options;
/**
 * A layer over sequences: tn_rnn, tn_gru or tn_lstm with its weights, from states of 0.
 *
 * Shapes   x [B, T, input_size] -> y [B, T, D hidden_size], D directions; one sequence: [T,
 *          input_size] -> [T, D hidden_size]. With two directions y has the results of the first,
 *          then those of the second
 * State    of layer k: weight_ih_lk [G hidden, features], weight_hh_lk [G hidden, hidden],
 *          bias_ih_lk, bias_hh_lk [G hidden], G 1 (RNN), 3 (GRU) or 4 (LSTM); for the second
 *          direction the same names with _reverse. All U(+-1/sqrt(hidden_size)), drawn in this
 *          order. Gates lie as r, z, n and i, f, g, o. With proj_size y and h have its size,
 *          weight_hh_lk is [G hidden, proj_size], and weight_hr_lk [proj_size, hidden] comes last;
 *          the steps run with weight_hh weight_hr, a product made once, and the projection of all
 *          steps is one product, too
 * Errors   sizes below 1; dropout with one layer; relu with gates; reset_before without a GRU;
 *          proj_size without an LSTM or not below hidden_size
 */
TN_API tn_module *tn_rnn_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same with the gates of a GRU. */
TN_API tn_module *tn_gru_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same with the gates and cell state of an LSTM. */
TN_API tn_module *tn_lstm_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** One step of one layer: x [B, input_size] -> h [B, hidden_size], or both without B. Parameters
 *  weight_ih, weight_hh, bias_ih, bias_hh. Errors: options but no_bias, relu, reset_before. */
TN_API tn_module *tn_rnn_cell_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same for a GRU. */
TN_API tn_module *tn_gru_cell_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same for an LSTM. */
TN_API tn_module *tn_lstm_cell_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** What goes from step to step. Each: TN_NONE or a zero field for zeros. */
typedef struct tn_recurrent_state {
    /* [layers D, B, hidden_size or proj_size], of a cell [B, hidden_size]; one sequence: no B */
    tn_tensor *h;
    tn_tensor *c; /* of hidden_size always; LSTM alone */
    /* [B] integers on the CPU, 1 to T: the steps of each row, in any order; of layers, not cells */
    tn_tensor *lengths;
} tn_recurrent_state;
/**
 * The layer, or the cell, from a state. state NULL: as tn_forward. Otherwise the layer starts from
 * it, and it becomes the state after the last step (for the second direction: after step 0).
 *
 * Lengths  steps of x beyond a row's length are not read, y is 0 there; the state is that after the
 *          row's last step, and the second direction starts from that step. Rows are sorted and
 *          run in spans of steps that have equally many, so that what is left out takes no time.
 *          PyTorch: pack_padded_sequence with enforce_sorted=False, and pad_packed_sequence with
 *          total_length T. state->lengths is NULL afterwards
 * Owner    the new state belongs to the current scope. To start from it in a later scope, as when a
 *          long sequence is trained on part by part, tn_keep what tn_detach gives of each tensor,
 *          and tn_drop what was kept before. Without tn_detach backward goes on into the parts
 *          before
 * Errors   m is no recurrent layer; x, a state or lengths do not fit; c without an LSTM. state is
 *          then unchanged
 */
TN_API tn_tensor *tn_recurrent_forward(tn_module *m, tn_tensor *x, tn_recurrent_state *state);

/* ---- the op of the same name as a module ----------------------------------------------------- */

TN_API tn_module *tn_max_pool2d_new(tn_pool_spec spec); /* tn_max_pool2d */
TN_API tn_module *tn_avg_pool2d_new(tn_pool_spec spec); /* tn_avg_pool2d */
TN_API tn_module *tn_max_pool1d_new(tn_pool_spec spec); /* tn_max_pool1d */
TN_API tn_module *tn_avg_pool1d_new(tn_pool_spec spec); /* tn_avg_pool1d */
/** tn_adaptive_avg_pool2d */
TN_API tn_module *tn_adaptive_avg_pool2d_new(int64_t out_h, int64_t out_w);
/** tn_adaptive_max_pool2d, without indices */
TN_API tn_module *tn_adaptive_max_pool2d_new(int64_t out_h, int64_t out_w);
TN_API tn_module *tn_adaptive_avg_pool1d_new(int64_t out); /* tn_adaptive_avg_pool1d */
/** tn_pad with these n numbers, of n / 2 axes. PyTorch: nn.ZeroPad1d, nn.ConstantPad2d,
 *  nn.ReflectionPad2d and their like */
TN_API tn_module *tn_pad_new(const int64_t *pads, int n, tn_pad_mode mode, double value);
/** tn_interpolate. PyTorch: nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d */
TN_API tn_module *tn_upsample_new(tn_interpolate_spec spec);
TN_API tn_module *tn_pixel_shuffle_new(int64_t r);   /* tn_pixel_shuffle */
TN_API tn_module *tn_pixel_unshuffle_new(int64_t r); /* tn_pixel_unshuffle */
TN_API tn_module *tn_relu_new(void);                 /* tn_relu */
TN_API tn_module *tn_relu6_new(void);                /* tn_relu6 */
TN_API tn_module *tn_selu_new(void);                 /* tn_selu */
TN_API tn_module *tn_gelu_new(void);                 /* tn_gelu, the exact form */
TN_API tn_module *tn_gelu_tanh_new(void);            /* tn_gelu_tanh */
TN_API tn_module *tn_tanh_new(void);                 /* tn_tanh */
TN_API tn_module *tn_sigmoid_new(void);              /* tn_sigmoid */
TN_API tn_module *tn_silu_new(void);                 /* tn_silu */
TN_API tn_module *tn_mish_new(void);                 /* tn_mish */
TN_API tn_module *tn_hardswish_new(void);            /* tn_hardswish */
TN_API tn_module *tn_hardsigmoid_new(void);          /* tn_hardsigmoid */
TN_API tn_module *tn_logsigmoid_new(void);           /* tn_logsigmoid */
TN_API tn_module *tn_softsign_new(void);             /* tn_softsign */
TN_API tn_module *tn_tanhshrink_new(void);           /* tn_tanhshrink */
/* With numbers, which the op checks when it is called; behind each what PyTorch's default is. */
TN_API tn_module *tn_leaky_relu_new(double slope);                /* tn_leaky_relu; 0.01 */
TN_API tn_module *tn_elu_new(double alpha);                       /* tn_elu; 1 */
TN_API tn_module *tn_celu_new(double alpha);                      /* tn_celu; 1 */
TN_API tn_module *tn_hardshrink_new(double lambda);               /* tn_hardshrink; 0.5 */
TN_API tn_module *tn_softshrink_new(double lambda);               /* tn_softshrink; 0.5 */
TN_API tn_module *tn_hardtanh_new(double low, double high);       /* tn_hardtanh; -1, 1 */
TN_API tn_module *tn_softplus_new(double beta, double threshold); /* tn_softplus; 1, 20 */
TN_API tn_module *tn_softmax_new(int axis);                       /* tn_softmax */
TN_API tn_module *tn_log_softmax_new(int axis);                   /* tn_log_softmax */
TN_API tn_module *tn_glu_new(int axis);                           /* tn_glu; -1 */
/** tn_prelu with a parameter: weight [n], of `first`, n 1 or x's channels; 1, 0.25. */
TN_API tn_module *tn_prelu_new(int64_t n, double first);
TN_API tn_module *tn_identity_new(void); /* y = x */
/* tn_flatten; PyTorch's default is (1, -1) */
TN_API tn_module *tn_flatten_new(int first, int last);

/* ---- containers ------------------------------------------------------------------------------ */

/** tn_sequential(a, b, c): children "0", "1", ... called in order; consumes them. */
#ifdef __cplusplus
#define tn_sequential(...) tn_sequential_from({ __VA_ARGS__ })
#else
#define tn_sequential(...)                                                                         \
    tn_sequential_from((tn_module *[]){ __VA_ARGS__ },                                             \
                       (int)(sizeof((tn_module *[]){ __VA_ARGS__ }) / sizeof(tn_module *)))
#endif
/** The same from an array of n. */
TN_API tn_module *tn_sequential_from(tn_module *const *children, int n);
TN_OLD_NAME_(tn_sequential_of, tn_sequential_from);
#ifdef __cplusplus
extern "C++" inline tn_module *tn_sequential_from(std::initializer_list<tn_module *> children)
{
    return tn_sequential_from(children.begin(), (int)children.size());
}
#endif
/** Children without a forward of their own: call them one by one. */
TN_API tn_module *tn_module_list_new(void);
/** Appends to a ModuleList or Sequential under the next number; consumes child. */
TN_API tn_status tn_module_append(tn_module *list, tn_module *child);
/** Children under names of your own: tn_register_module, tn_get_submodule, tn_module_delete. No
 *  forward. */
TN_API tn_module *tn_module_dict_new(void);
/** Tensors under the names "0", "1", ... as parameters, or as buffers with these flags. No
 *  forward. */
TN_API tn_module *tn_parameter_list_new(void);
/** The same with buffers. */
TN_API tn_module *tn_buffer_list_new(unsigned flags);
/** Appends to a ParameterList or BufferList; errors as tn_register_parameter and
 *  tn_register_buffer. */
TN_API tn_status tn_module_append_tensor(tn_module *list, tn_tensor *t);
/** The number of its tensors, -1 on error. */
TN_API int tn_module_tensors(const tn_module *list);
/** The i-th, borrowed; NULL and a message out of range. */
TN_API tn_tensor *tn_module_tensor(tn_module *list, int i);

/* ---- averages of a model --------------------------------------------------------------------- */

/** zero fields: an exponential average of the parameters, decay 0.999 */
typedef struct tn_ema_options {
    double decay; /* 0: 0.999; share of the old average in the new */
    /* instead: the mean of all updates so far (stochastic weight averaging) */
    bool equal;
    /* floating buffers that are plain or statistics (module.h) are averaged too; others are copied,
     * but caches, which are left out */
    bool average_buffers;
    bool use_decay; /* takes decay 0 as given */
} tn_ema_options;
/**
 * A running average of model's parameters, which is itself a model: tn_forward(ema, x).
 *
 * State    buffer n_averaged [] 0 (i64), child module: a clone of model whose parameters are
 *          buffers, so that no optimizer touches them. Names and order in files are those of
 *          PyTorch's AveragedModel
 * Dtypes   the average of a bf16 or f16 model is an f32 model, buffers included: in 16 bits an
 *          average would never move; a cast leaves its parameters at least f32, or makes them f64
 *          whatever model is. It is saved and loaded as it is; call it with x in its dtype, or
 *          under TN_AUTOCAST. To load it, rounded, into a 16-bit model: tn_load_state_dict(model,
 *          tn_state_dict(tn_ema_module(ema), ""), (tn_load_options){ .cast = true }, NULL)
 * Mode     train or eval as model was at first; then what tn_train and tn_eval of ema set
 * Errors   decay outside [0, 1], or given with equal; what cannot be cloned
 * Owner    yours, as every module; model stays yours
 * Source   Polyak and Juditsky (1992), eq. 2; Izmailov et al. (2018), algorithm 1
 */
TN_API tn_module *tn_ema_new(tn_module *model, tn_ema_options o);
/**
 * Adds model's present values to the average: the first update copies them, each further one does
 * a += (1 - decay) (x - a), or takes the equal average. Integer buffers are always copied. Floats
 * are cast and moved to the average's dtype and device.
 *
 * Errors   a name that only one of the two has, another shape or kind of dtype, other ties: found
 *          and named before any write
 */
TN_API TN_MUST_USE tn_status tn_ema_update(tn_module *ema, tn_module *model);
/**
 * Gives model's tensors the average's values, buffers too but caches, until tn_ema_restore: for an
 * evaluation. Nothing is copied but what has another dtype or device there.
 *
 * Meanwhile  model cannot change: a step of an optimizer, loading, in-place ops, a forward that
 *            moves statistics, a second tn_ema_use, tn_ema_update and a checkpoint of model are
 *            errors that name the tensor. tn_save and clones get the average's values. model as
 *            a whole may be moved and cast, the average be dropped
 * Errors     as tn_ema_update; nothing has changed then
 */
TN_API TN_MUST_USE tn_status tn_ema_use(tn_module *ema, tn_module *model);
/** Gives a model its own values again, bit for bit. Errors: it has them. */
TN_API TN_MUST_USE tn_status tn_ema_restore(tn_module *model);
/** The averaged model itself, borrowed: for functions that want its type. */
TN_API tn_module *tn_ema_module(tn_module *ema);

/* Norms before they had the names of their ops. */
TN_OLD_TYPE_(tn_batchnorm_options, tn_batch_norm_options);
TN_OLD_TYPE_(tn_frozen_batchnorm_options, tn_frozen_batch_norm_options);
TN_OLD_TYPE_(tn_layernorm_options, tn_layer_norm_options);
TN_OLD_NAME_(tn_batchnorm2d_new, tn_batch_norm2d_new);
TN_OLD_NAME_(tn_batchnorm1d_new, tn_batch_norm1d_new);
TN_OLD_NAME_(tn_batchnorm_reset_running_stats, tn_batch_norm_reset_running_stats);
TN_OLD_NAME_(tn_batchnorm_momentum, tn_batch_norm_momentum);
TN_OLD_NAME_(tn_batchnorm_set_momentum, tn_batch_norm_set_momentum);
TN_OLD_NAME_(tn_batchnorm_skipped, tn_batch_norm_skipped);
TN_OLD_NAME_(tn_frozen_batchnorm2d_new, tn_frozen_batch_norm2d_new);
TN_OLD_NAME_(tn_freeze_batchnorm, tn_freeze_batch_norm);
TN_OLD_NAME_(tn_thaw_batchnorm, tn_thaw_batch_norm);
TN_OLD_NAME_(tn_layernorm_new, tn_layer_norm_new);

TN_END_C_
#endif
