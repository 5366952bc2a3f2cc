/* models.c - see models.h */
#include "models.h"

#include "../batchnorm/net.h"
#include "../transformer/model.h"

/* ---- layers ---------------------------------------------------------------------------------- */

#define MAKE(name, ...)                                                                            \
    static tn_module *name(void)                                                                   \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }

#define LINEAR(in, out) tn_linear_new(in, out, (tn_linear_options){ 0 })

MAKE(linear, LINEAR(5, 3))
MAKE(linear_no_bias, tn_linear_new(5, 3, (tn_linear_options){ .no_bias = true }))
MAKE(mlp, tn_sequential(LINEAR(6, 16), tn_relu_new(), LINEAR(16, 8), tn_tanh_new(), LINEAR(8, 2)))

MAKE(conv2d, tn_conv2d_new(3, 6, 3, (tn_conv2d_options){ 0 }))
MAKE(conv2d_strided, tn_conv2d_new(3, 4, 5, (tn_conv2d_options){ .stride = 2, .padding = 2 }))
MAKE(conv2d_groups, tn_conv2d_new(4, 8, 3, (tn_conv2d_options){ .groups = 2 }))
MAKE(conv2d_depthwise,
     tn_conv2d_new(4, 4, 3, (tn_conv2d_options){ .groups = 4, .dilation = 2, .no_bias = true }))

MAKE(conv1d, tn_conv1d_new(4, 6, 3, (tn_conv_options){ .stride = 2, .groups = 2 }))
MAKE(conv1d_circular,
     tn_conv1d_new(3, 4, 3, (tn_conv_options){ .padding = 2, .padding_mode = TN_PAD_CIRCULAR }))
MAKE(conv3d, tn_conv3d_spec_new(2, 4, 3, 2, 1, (tn_conv_spec){ .padding = { 1, 0, 1 } }, false))
MAKE(conv_transpose1d, tn_conv_transpose1d_new(4, 6, 3, (tn_conv_options){ .stride = 2 }))
MAKE(conv_transpose2d,
     tn_conv_transpose2d_new(
         4, 6, 3, (tn_conv_options){ .stride = 2, .padding = 1, .output_padding = 1, .groups = 2 }))

MAKE(batchnorm1d, tn_batch_norm1d_new(6, (tn_batch_norm_options){ 0 }))
MAKE(batchnorm2d, tn_batch_norm2d_new(3, (tn_batch_norm_options){ .eps = 1e-3, .momentum = 0.3 }))
MAKE(batchnorm_no_affine, tn_batch_norm2d_new(3, (tn_batch_norm_options){ .no_affine = true }))
MAKE(batchnorm_no_tracking, tn_batch_norm2d_new(3, (tn_batch_norm_options){ .no_tracking = true }))
MAKE(batchnorm_cumulative, tn_batch_norm1d_new(6, (tn_batch_norm_options){ .cumulative = true }))

MAKE(layernorm, tn_layer_norm_new(TN_SHAPE(8), (tn_layer_norm_options){ 0 }))
MAKE(layernorm_2_axes, tn_layer_norm_new(TN_SHAPE(3, 4), (tn_layer_norm_options){ .eps = 1e-6 }))

MAKE(embedding, tn_embedding_new(11, 4, (tn_embedding_options){ 0 }))
MAKE(embedding_padding,
     tn_embedding_new(11, 4,
                      (tn_embedding_options){ .use_padding_index = true, .padding_index = 2 }))

#define ATTENTION(...)                                                                             \
    tn_multihead_attention_new(8, 2, (tn_multihead_attention_options){ __VA_ARGS__ })

MAKE(attention, ATTENTION(.dropout = 0.5))
MAKE(attention_no_bias, ATTENTION(.no_bias = true))
MAKE(attention_sequence_first, ATTENTION(.sequence_first = true))
MAKE(attention_kdim_vdim, ATTENTION(.kdim = 6, .vdim = 4))

#define BLOCK(...)                                                                                 \
    tn_encoder_layer_new(8, 2, (tn_encoder_layer_options){ .feedforward = 16, __VA_ARGS__ })

MAKE(encoder_layer, BLOCK(.dropout = 0.1))
MAKE(encoder_layer_norm_first, BLOCK(.gelu = true, .norm_first = true))
MAKE(encoder, tn_encoder_new(BLOCK(.dropout = 0.1), 3,
                             tn_layer_norm_new(TN_SHAPE(8), (tn_layer_norm_options){ 0 })))
MAKE(encoder_no_norm, tn_encoder_new(BLOCK(.norm_first = true), 2, TN_NO_MODULE))
MAKE(positional_encoding, tn_positional_encoding_new(8, 12, (tn_positional_encoding_options){ 0 }))

MAKE(rnn, tn_rnn_new(5, 4, (tn_recurrent_options){ .layers = 2, .relu = true }))
MAKE(gru, tn_gru_new(5, 4, (tn_recurrent_options){ .no_bias = true, .sequence_first = true }))
MAKE(lstm, tn_lstm_new(5, 4, (tn_recurrent_options){ .layers = 2, .bidirectional = true }))
MAKE(lstm_cell, tn_lstm_cell_new(5, 4, (tn_recurrent_options){ 0 }))

/* ---- compositions ---------------------------------------------------------------------------- */

MAKE(nested,
     tn_sequential(tn_sequential(tn_conv2d_new(1, 3, 3, (tn_conv2d_options){ .padding = 1 }),
                                 tn_batch_norm2d_new(3, (tn_batch_norm_options){ 0 }),
                                 tn_relu_new()),
                   tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 } }),
                   tn_sequential(tn_flatten_new(1, -1), tn_sequential(LINEAR(27, 4), tn_gelu_new()),
                                 LINEAR(4, 2))))

/* An embedding whose weight is the output layer's too. */
typedef struct tied {
    tn_module base;
    tn_module *embed, *norm, *head;
} tied;

static tn_tensor *tied_forward(tn_module *self, tn_tensor *x)
{
    tied *m = (tied *)self;
    return tn_forward(m->head, tn_forward(m->norm, tn_forward(m->embed, x)));
}

static const tn_module_type tied_type = {
    .name = "Tied",
    .size = sizeof(tied),
    .forward = tied_forward,
};

static tn_module *tied_new(void)
{
    tied *m = tn_module_new(&tied_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "embed", &m->embed,
                       tn_embedding_new(9, 6, (tn_embedding_options){ 0 }));
    tn_register_module(&m->base, "norm", &m->norm,
                       tn_layer_norm_new(TN_SHAPE(6), (tn_layer_norm_options){ 0 }));
    tn_register_module(&m->base, "head", &m->head, LINEAR(6, 9));
    tn_module_set(&m->base, "head.weight", tn_get_parameter(&m->base, "embed.weight"));
    return tn_module_done(&m->base);
}

/* Layers in a list, called one by one. */
typedef struct stack {
    tn_module base;
    tn_module *layers;
} stack;

static tn_tensor *stack_forward(tn_module *self, tn_tensor *x)
{
    stack *m = (stack *)self;
    for (int i = 0; i < tn_module_children(m->layers); i++)
        x = tn_sigmoid(tn_forward(tn_module_child(m->layers, i), x));
    return x;
}

static const tn_module_type stack_type = {
    .name = "Stack",
    .size = sizeof(stack),
    .forward = stack_forward,
};

static tn_module *module_list(void)
{
    stack *m = tn_module_new(&stack_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "layers", &m->layers, tn_module_list_new());
    for (int i = 0; i < 11; i++) tn_module_append(m->layers, LINEAR(4, 4)); /* 10 sorts after 2 */
    return tn_module_done(&m->base);
}

static tn_module *frozen(void)
{
    tn_module *m = tn_sequential(LINEAR(6, 6), tn_batch_norm1d_new(6, (tn_batch_norm_options){ 0 }),
                                 tn_relu_new(), LINEAR(6, 2));
    if (m && tn_module_freeze(tn_module_child(m, 1)) == TN_OK)
        tn_module_set_requires_grad(tn_module_child(m, 0), false);
    return m;
}

/* Buffers of every dtype, 0 axes, no elements; one that is not saved. */
typedef struct carried {
    tn_module base;
    tn_tensor *step, *ids, *mask, *bytes, *scale, *empty, *f16, *bf16, *scratch;
} carried;

static const tn_module_type carried_type = { .name = "Carried", .size = sizeof(carried) };

static tn_module *buffers(void)
{
    carried *m = tn_module_new(&carried_type);
    if (!m) return NULL;
    tn_tensor *x = tn_arange(0, 6, 1, TN_I64);
    tn_register_buffer(&m->base, "step", &m->step,
                       tn_full_as(TN_SCALAR, 12345678901., TN_I64, tn_cpu()), TN_PERSISTENT);
    tn_register_buffer(&m->base, "ids", &m->ids, tn_to_dtype(x, TN_I32), TN_PERSISTENT);
    tn_register_buffer(&m->base, "mask", &m->mask, tn_gt_scalar(x, 2), TN_PERSISTENT);
    tn_register_buffer(&m->base, "bytes", &m->bytes, tn_to_dtype(x, TN_U8), TN_PERSISTENT);
    tn_register_buffer(&m->base, "scale", &m->scale, tn_full_as(TN_SCALAR, 0.1, TN_F64, tn_cpu()),
                       TN_PERSISTENT);
    tn_register_buffer(&m->base, "empty", &m->empty, tn_zeros(TN_SHAPE(0, 3)), TN_PERSISTENT);
    tn_register_buffer(&m->base, "f16", &m->f16, tn_to_dtype(x, TN_F16), TN_PERSISTENT);
    tn_register_buffer(&m->base, "bf16", &m->bf16, tn_to_dtype(x, TN_BF16), TN_PERSISTENT);
    tn_register_buffer(&m->base, "scratch", &m->scratch, tn_zeros(TN_SHAPE(2)), TN_NON_PERSISTENT);
    return tn_module_done(&m->base);
}

static tn_module *cast(tn_module *m, tn_dtype dtype)
{
    if (m && tn_module_to_dtype(m, dtype) == TN_OK) return m;
    tn_module_drop(m);
    return NULL;
}

MAKE(mlp_f64, cast(mlp(), TN_F64))
MAKE(batchnorm_f64, cast(batchnorm2d(), TN_F64))
MAKE(mlp_bf16, cast(mlp(), TN_BF16))
MAKE(attention_f16, cast(attention(), TN_F16))

/* ---- the example programs' networks, trained for a few steps --------------------------------- */

static tn_status train(tn_module *m, tn_optim *optimizer, int64_t classes, bool ids)
{
    tn_status status = optimizer ? TN_OK : tn_error_status();
    for (int step = 0; status == TN_OK && step < 5; step++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *x = ids ? tn_randint(0, classes, TN_SHAPE(4, 8))
                           : tn_mul_scalar(tn_rand(TN_SHAPE(8, 1, 28, 28)), 255);
        tn_tensor *y = tn_randint(0, classes, ids ? TN_SHAPE(4 * 8) : TN_SHAPE(8));
        tn_device device = tn_device_of(tn_parameters(m)->entry[0].tensor);
        x = tn_to(x, device);
        y = tn_to(y, device);
        tn_tensor *loss = tn_cross_entropy(tn_reshape(tn_forward(m, x), TN_SHAPE(-1, classes)), y);
        status = tn_optim_zero_grad(optimizer);
        if (status == TN_OK) status = tn_backward(loss);
        if (status == TN_OK) status = tn_optim_step(optimizer);
        tn_scope_end(s);
    }
    tn_optim_free(optimizer);
    return status;
}

static tn_status train_cnn(tn_module *m)
{
    return train(m, tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.01, .momentum = 0.9 }), 10,
                 false);
}

static tn_status train_transformer(tn_module *m)
{
    return train(m, tn_adamw(tn_parameters(m), (tn_adamw_options){ .lr = 1e-3 }), 17, true);
}

MAKE(cnn, net_new(72.9, 90.2, 0))
MAKE(transformer,
     gpt_new((gpt_sizes){
         .vocab = 17, .context = 8, .layers = 2, .heads = 2, .d_model = 16, .dropout = 0.1 }))

/* ---- all of them ----------------------------------------------------------------------------- */

#define X(...)                                                                                     \
    {                                                                                              \
        .rank = sizeof((int64_t[]){ __VA_ARGS__ }) / 8, .size = { __VA_ARGS__ }                    \
    }

const interop_model interop_models[] = {
    { "linear", linear, REAL, X(4, 5), 0, NULL },
    { "linear_no_bias", linear_no_bias, REAL, X(4, 5), 0, NULL },
    { "mlp", mlp, REAL, X(4, 6), 0, NULL },
    { "conv2d", conv2d, REAL, X(2, 3, 8, 7), 0, NULL },
    { "conv2d_strided", conv2d_strided, REAL, X(2, 3, 8, 7), 0, NULL },
    { "conv2d_groups", conv2d_groups, REAL, X(2, 4, 6, 6), 0, NULL },
    { "conv2d_depthwise", conv2d_depthwise, REAL, X(2, 4, 6, 6), 0, NULL },
    { "conv1d", conv1d, REAL, X(2, 4, 9), 0, NULL },
    { "conv1d_circular", conv1d_circular, REAL, X(2, 3, 7), 0, NULL },
    { "conv3d", conv3d, REAL, X(2, 2, 4, 5, 3), 0, NULL },
    { "conv_transpose1d", conv_transpose1d, REAL, X(2, 4, 5), 0, NULL },
    { "conv_transpose2d", conv_transpose2d, REAL, X(2, 4, 5, 4), 0, NULL },
    { "batchnorm1d", batchnorm1d, REAL, X(5, 6), 0, NULL },
    { "batchnorm2d", batchnorm2d, REAL, X(2, 3, 4, 4), 0, NULL },
    { "batchnorm_no_affine", batchnorm_no_affine, REAL, X(2, 3, 4, 4), 0, NULL },
    { "batchnorm_no_tracking", batchnorm_no_tracking, REAL, X(2, 3, 4, 4), 0, NULL },
    { "batchnorm_cumulative", batchnorm_cumulative, REAL, X(5, 6), 0, NULL },
    { "layernorm", layernorm, REAL, X(2, 5, 8), 0, NULL },
    { "layernorm_2_axes", layernorm_2_axes, REAL, X(2, 3, 4), 0, NULL },
    { "embedding", embedding, IDS, X(2, 5), 11, NULL },
    { "embedding_padding", embedding_padding, IDS, X(2, 5), 11, NULL },
    { "attention", attention, REAL, X(2, 5, 8), 0, NULL },
    { "attention_no_bias", attention_no_bias, REAL, X(2, 5, 8), 0, NULL },
    { "attention_sequence_first", attention_sequence_first, REAL, X(5, 2, 8), 0, NULL },
    { "attention_kdim_vdim", attention_kdim_vdim, QKV, X(2, 5, 8), 0, NULL },
    { "encoder_layer", encoder_layer, REAL, X(2, 5, 8), 0, NULL },
    { "encoder_layer_norm_first", encoder_layer_norm_first, REAL, X(2, 5, 8), 0, NULL },
    { "encoder", encoder, REAL, X(2, 5, 8), 0, NULL },
    { "encoder_no_norm", encoder_no_norm, REAL, X(2, 5, 8), 0, NULL },
    { "positional_encoding", positional_encoding, REAL, X(2, 7, 8), 0, NULL },
    { "rnn", rnn, REAL, X(2, 7, 5), 0, NULL },
    { "gru", gru, REAL, X(7, 2, 5), 0, NULL },
    { "lstm", lstm, REAL, X(2, 7, 5), 0, NULL },
    { "lstm_cell", lstm_cell, REAL, X(2, 5), 0, NULL },
    { "nested", nested, REAL, X(2, 1, 6, 6), 0, NULL },
    { "tied", tied_new, IDS, X(2, 5), 9, NULL },
    { "module_list", module_list, REAL, X(3, 4), 0, NULL },
    { "frozen", frozen, REAL, X(5, 6), 0, NULL },
    { "buffers", buffers, NONE, X(1), 0, NULL },
    { "mlp_f64", mlp_f64, REAL, X(4, 6), 0, NULL },
    { "batchnorm_f64", batchnorm_f64, REAL, X(2, 3, 4, 4), 0, NULL },
    { "mlp_bf16", mlp_bf16, NONE, X(1), 0, NULL },
    { "attention_f16", attention_f16, NONE, X(1), 0, NULL },
    { "cnn", cnn, REAL, X(3, 1, 28, 28), 0, train_cnn },
    { "transformer", transformer, IDS, X(3, 8), 17, train_transformer },
};
const int interop_count = sizeof interop_models / sizeof *interop_models;

int interop_inputs(const interop_model *model, tn_dtype dtype, tn_tensor **x)
{
    tn_shape other = model->shape;
    switch (model->input) {
    case NONE: return 0;
    case IDS: x[0] = tn_randint(0, model->high, model->shape); return 1;
    case REAL: x[0] = tn_to_dtype(tn_randn(model->shape), dtype); return 1;
    case QKV:
        x[0] = tn_to_dtype(tn_randn(other), dtype);
        other.size[1] = 7; /* as long as the key is */
        other.size[2] = 6;
        x[1] = tn_to_dtype(tn_randn(other), dtype);
        other.size[2] = 4;
        x[2] = tn_to_dtype(tn_randn(other), dtype);
        return 3;
    }
    return 0;
}

tn_tensor *interop_forward(const interop_model *model, tn_module *m, tn_tensor *const *x)
{
    if (model->input != QKV) return tn_forward(m, x[0]);
    return tn_multihead_attention_forward(m, x[0], x[1], x[2], (tn_attention_masks){ 0 }, NULL);
}
