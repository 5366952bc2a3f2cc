/**
 * tenon/nn.h - modules: a tree of named parameters and buffers, with a forward.
 *
 * A parameter is trained: optimizers see it. A buffer is carried: saved, loaded, moved, updated in forward,
 * and no optimizer ever touches it. Saving, loading, moving, counting and freeing are walks over the
 * names a module registered; no layer writes its own.
 *
 * A module of your own embeds tn_module first and is made with the same calls as ours (README).
 */
#ifndef TENON_NN_H
#define TENON_NN_H

#include <tenon/autograd.h>
#include <tenon/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_module tn_module;
typedef struct tn_module_type tn_module_type;
typedef struct tn_module_state tn_module_state; /* private */

/** What every module begins with. */
struct tn_module {
    const tn_module_type *type;
    tn_module_state *state;
};

/** A kind of module: a name for messages, the size of its struct, its forward. The rest may be NULL. */
struct tn_module_type {
    const char *name;
    size_t size;
    tn_tensor *(*forward)(tn_module *self, tn_tensor *x); /* one tensor in, one out */
    /** for modules of several inputs or outputs: fills out[0..n_out), called through tn_call */
    tn_status (*forward_n)(tn_module *self, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out);
    void (*describe)(const tn_module *self, char *text, size_t size); /* "784, 128, no bias" */
    tn_status (*reset)(tn_module *self);                             /* initial values again */
    void (*free)(tn_module *self); /* what is not a slot; slots and children are freed for you */
    int state_version;             /* written to files; 0 means 1 */
};

/** An absent child, as TN_NONE is an absent tensor. */
TN_API extern tn_module tn_no_module_object;
#define TN_NO_MODULE (&tn_no_module_object)

/* ---- making one ------------------------------------------------------------------------------- */

/**
 * Allocates a zeroed struct of type->size and opens a scope for what the constructor makes.
 * Returns it as void * so that it assigns to your struct's pointer; NULL on failure.
 */
TN_API void *tn_module_new(const tn_module_type *type);
/**
 * Ends the constructor: closes the scope; if anything failed since tn_module_new, frees the module and
 * returns NULL with the first message kept. Every constructor ends with `return tn_module_done(&m->base);`.
 */
TN_API tn_module *tn_module_done(tn_module *m);
/** One more owner (a child shared by two parents). Returns m. */
TN_API tn_module *tn_module_keep(tn_module *m);
/** One owner less; the last frees the module, its tensors and children. NULL is ignored. */
TN_API void tn_module_drop(tn_module *m);

/* ---- registering ------------------------------------------------------------------------------ */

typedef enum tn_persistence { TN_PERSISTENT = 0, TN_NON_PERSISTENT = 1 } tn_persistence;

/**
 * Registers a parameter: t becomes trainable (requires_grad on, unless it is an integer tensor or
 * tn_register_frozen is used) and *field follows the slot ever after.
 *
 * field    NULL, or the address of a tn_tensor * inside the module's struct
 * t        a leaf, or TN_NONE for an empty slot; the module takes a reference
 * Errors   in this order, first one wins: module not made by tn_module_new; name NULL; contains a dot;
 *          empty; taken by a buffer, child or type function; (t: not a leaf). Re-registering a parameter
 *          replaces it in place.
 */
TN_API tn_status tn_register_parameter(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t);
/** The same for a parameter that starts frozen (requires_grad off). */
TN_API tn_status tn_register_frozen(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t);
/**
 * Registers a buffer. Stored by reference, any dtype, requires_grad untouched. Non-persistent: moved and
 * listed, but not in state_dict. Errors as for parameters. Re-registering replaces, keeping its place.
 */
TN_API tn_status tn_register_buffer(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t,
                                    tn_persistence persistence);
/**
 * Registers a child; consumes the caller's reference, on failure too. child may be TN_NO_MODULE.
 * Errors   child NULL (its message stays); name NULL; taken by a tensor; dotted; empty; child is m or
 *          an ancestor of m
 */
TN_API tn_status tn_register_module(tn_module *m, const char *name, tn_module **field, tn_module *child);

/** Puts another tensor (or TN_NONE) into the registered slot whose field this is. Buffers take any
 *  tensor; parameters take leaves. Use it for buffers computed in forward. */
TN_API tn_status tn_assign(tn_tensor **field, tn_tensor *t);
/** The same by dotted path from m: "bn1.running_mean". */
TN_API tn_status tn_module_set(tn_module *m, const char *path, tn_tensor *t);
/** Removes a parameter, buffer or child by its name in m. */
TN_API tn_status tn_module_delete(tn_module *m, const char *name);

/** By dotted path. Errors distinguish "no such name" from "is a buffer, not a parameter". Borrowed. */
TN_API tn_tensor *tn_get_parameter(tn_module *m, const char *path);
TN_API tn_tensor *tn_get_buffer(tn_module *m, const char *path);
TN_API tn_module *tn_get_submodule(tn_module *m, const char *path); /* "" is m */

/* ---- calling ---------------------------------------------------------------------------------- */

/** y = m(x). The call runs in a scope of its own: only y comes back to the current one. */
TN_API tn_tensor *tn_forward(tn_module *m, tn_tensor *x);
/** The one call path under it, for any number of inputs and outputs (optional inputs: TN_NONE). */
TN_API tn_status tn_call(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out);

/** Train or eval for m and everything below. */
TN_API tn_status tn_train(tn_module *m, bool training);
TN_API tn_status tn_eval(tn_module *m); /* tn_train(m, false) */
TN_API bool tn_training(const tn_module *m);
/** requires_grad of all parameters below; buffers unchanged. */
TN_API tn_status tn_module_requires_grad(tn_module *m, bool on);
/** Drops the gradients of all parameters below (to TN_NONE). */
TN_API tn_status tn_module_zero_grad(tn_module *m);

/* ---- walking ---------------------------------------------------------------------------------- */

typedef enum tn_kind { TN_PARAMETER, TN_BUFFER } tn_kind;

typedef struct tn_entry {
    const char *name; /* full dotted name; valid as long as the list */
    tn_tensor *tensor;
    tn_kind kind;
    bool persistent; /* false only for non-persistent buffers */
    tn_module *owner; /* NULL for raw leaves added by tn_list_add */
} tn_entry;

/** A list of named tensors. Belongs to the current scope, as tensors do; it keeps its tensors. */
typedef struct tn_list {
    int n;
    tn_entry *entry;
} tn_list;

/** Depth first, own members in registration order, then children; repeated tensors once. */
TN_API tn_list *tn_parameters(tn_module *m);
TN_API tn_list *tn_named_parameters(tn_module *m, const char *prefix); /* prefix "gen." */
TN_API tn_list *tn_buffers(tn_module *m);
typedef struct tn_walk_options {
    const char *prefix;    /* prepended verbatim; NULL: "" */
    bool no_recurse;       /* own members only */
    bool keep_duplicates;  /* every alias */
    bool persistent_only;  /* buffers */
} tn_walk_options;
TN_API tn_list *tn_list_parameters(tn_module *m, tn_walk_options o);
TN_API tn_list *tn_list_buffers(tn_module *m, tn_walk_options o);
/** Everything that a file holds: per module its parameters, its persistent buffers, then its children;
 *  aliases under every name. The tensors are the model's own (live). */
TN_API tn_list *tn_state_dict(tn_module *m, const char *prefix);
/** An empty list; a raw leaf under a name; two lists as one (equal names: error showing both). */
TN_API tn_list *tn_list_new(void);
TN_API tn_status tn_list_add(tn_list *list, const char *name, tn_tensor *t);
TN_API tn_list *tn_list_concat(tn_list *a, tn_list *b);
TN_API tn_tensor *tn_list_get(const tn_list *list, const char *name); /* NULL + message when missing */

/** Calls visit for every module below, parents first ("" is m itself); each module once. Stops at the
 *  first status that is not TN_OK and returns it. */
TN_API tn_status tn_named_modules(tn_module *m, tn_status (*visit)(const char *path, tn_module *m, void *user),
                                  void *user);
/** Children first, m last, as PyTorch's apply: for initialisers. */
TN_API tn_status tn_module_apply(tn_module *m, tn_status (*f)(tn_module *m, void *user), void *user);
TN_API int tn_module_children(const tn_module *m);
TN_API tn_module *tn_module_child(const tn_module *m, int i); /* TN_NO_MODULE for an empty slot */
TN_API const char *tn_module_child_name(const tn_module *m, int i);
TN_API int64_t tn_count_parameters(tn_module *m, bool trainable_only); /* elements, ties once */

/* ---- moving, casting, loading ----------------------------------------------------------------- */

/** Moves parameters, their gradients and all buffers; the tensors stay the same objects, ties survive,
 *  optimizers stay valid. All or nothing. */
TN_API tn_status tn_module_to(tn_module *m, tn_device device);
/** Casts floating members; integer buffers keep their dtype. dtype must be floating. */
TN_API tn_status tn_module_to_dtype(tn_module *m, tn_dtype dtype);

typedef struct tn_load_options {
    bool non_strict;      /* missing and unexpected names are reported, not refused */
    bool cast;            /* float dtypes are converted; never float to integer */
    bool skip_mismatched; /* entries of another shape are skipped and reported */
} tn_load_options;

typedef struct tn_load_report {
    int loaded, missing, unexpected, mismatched, cast;
    char text[2048]; /* the names, one line a category, cut with "..." */
} tn_load_report;

/** Copies values by name, in place. All or nothing: everything is compared before the first byte moves.
 *  report may be NULL. The message lists missing, unexpected and mismatched names together. */
TN_API tn_status tn_load_state_dict(tn_module *m, const tn_list *state, tn_load_options o,
                                    tn_load_report *report);

/** A table of modules: parameters and buffers side by side, shapes, trainable or not, bytes. */
TN_API tn_status tn_module_summary(FILE *file, tn_module *m);

/* ---- layers: options by value, zero fields are PyTorch's defaults or zero, as each says ---------- */

typedef struct tn_linear_options { bool no_bias; } tn_linear_options;
/** y = x W^T + b. weight [out, in], bias [out]: U(+-1/sqrt(in)). He et al. (2015) with a = sqrt 5 */
TN_API tn_module *tn_linear_new(int64_t in_features, int64_t out_features, tn_linear_options o);

typedef struct tn_conv2d_options {
    int64_t stride, padding, dilation, groups; /* 0: 1, 0, 1, 1 */
    bool no_bias;
} tn_conv2d_options;
/** weight [out, in/groups, k, k], bias [out]: U(+-1/sqrt(fan_in)) */
TN_API tn_module *tn_conv2d_new(int64_t in_channels, int64_t out_channels, int64_t kernel, tn_conv2d_options o);

typedef struct tn_batchnorm_options {
    double eps;      /* 0: 1e-5 */
    double momentum; /* 0: 0.1 */
    bool cumulative;  /* plain average over batches instead of momentum */
    bool no_affine;   /* no weight and bias */
    bool no_tracking; /* no running statistics: batch statistics in eval too */
} tn_batchnorm_options;
/** [N, C, H, W]. weight 1, bias 0; buffers running_mean 0, running_var 1, num_batches_tracked 0 (i64) */
TN_API tn_module *tn_batchnorm2d_new(int64_t features, tn_batchnorm_options o);
/** [N, C] or [N, C, L] */
TN_API tn_module *tn_batchnorm1d_new(int64_t features, tn_batchnorm_options o);
TN_API tn_status tn_batchnorm_reset_running_stats(tn_module *m);

typedef struct tn_layernorm_options { double eps; bool no_affine, no_bias; } tn_layernorm_options; /* 1e-5 */
/** Over the trailing axes of shape. weight 1, bias 0 */
TN_API tn_module *tn_layernorm_new(tn_shape shape, tn_layernorm_options o);

typedef struct tn_embedding_options { bool use_padding_index; int64_t padding_index; } tn_embedding_options;
/** weight [n, d]: N(0, 1), the padding row 0 */
TN_API tn_module *tn_embedding_new(int64_t n, int64_t d, tn_embedding_options o);

typedef struct tn_positional_encoding_options { double dropout; bool non_persistent; } tn_positional_encoding_options;
/** x [B, T, d] + pe[:, :T]; buffer pe [1, max_len, d]: sin and cos, Vaswani et al. (2017) sec. 3.5 */
TN_API tn_module *tn_positional_encoding_new(int64_t d_model, int64_t max_len, tn_positional_encoding_options o);

TN_API tn_module *tn_dropout_new(double p);

typedef struct tn_multihead_attention_options {
    double dropout;
    bool no_bias;
    bool sequence_first; /* [T, B, E] as PyTorch's default; ours is [B, T, E] */
    int64_t kdim, vdim;  /* 0: embed_dim */
} tn_multihead_attention_options;
/** Keys in_proj_weight [3E, E] (or q/k/v_proj_weight), in_proj_bias, out_proj.weight, out_proj.bias */
TN_API tn_module *tn_multihead_attention_new(int64_t embed_dim, int64_t heads, tn_multihead_attention_options o);
typedef struct tn_attention_masks {
    tn_tensor *mask;        /* [T, S] or [B*H, T, S]; bool true = blocked, float added; NULL: none */
    tn_tensor *key_padding; /* [B, S] bool, true = ignored; NULL: none */
    bool causal;
} tn_attention_masks;
/** weights: NULL, or receives the attention weights [B, T, S] averaged over heads (slower path) */
TN_API tn_tensor *tn_multihead_attention_forward(tn_module *m, tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                                 tn_attention_masks masks, tn_tensor **weights);

typedef struct tn_encoder_layer_options {
    int64_t feedforward; /* 0: 2048 */
    double dropout;      /* 0: none (PyTorch: 0.1) */
    bool gelu;           /* else relu */
    bool norm_first;
    bool sequence_first;
    double eps; /* 0: 1e-5 */
} tn_encoder_layer_options;
TN_API tn_module *tn_encoder_layer_new(int64_t d_model, int64_t heads, tn_encoder_layer_options o);
TN_API tn_tensor *tn_encoder_layer_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks);
/** n deep copies of layer (which is consumed) under layers.0 ...; norm may be TN_NO_MODULE, consumed */
TN_API tn_module *tn_encoder_new(tn_module *layer, int n, tn_module *norm);
TN_API tn_tensor *tn_encoder_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks);
/** An independent copy: same types, own tensors, ties kept. */
TN_API tn_module *tn_module_clone(tn_module *m);

TN_API tn_module *tn_max_pool2d_new(tn_pool2d_spec spec);
TN_API tn_module *tn_avg_pool2d_new(tn_pool2d_spec spec);
TN_API tn_module *tn_adaptive_avg_pool2d_new(int64_t out_h, int64_t out_w);
TN_API tn_module *tn_relu_new(void);
TN_API tn_module *tn_gelu_new(void);
TN_API tn_module *tn_tanh_new(void);
TN_API tn_module *tn_sigmoid_new(void);
TN_API tn_module *tn_silu_new(void);
TN_API tn_module *tn_softmax_new(int axis);
TN_API tn_module *tn_identity_new(void);
TN_API tn_module *tn_flatten_new(int first, int last); /* PyTorch's default is (1, -1) */

/** tn_sequential(a, b, c): children "0", "1", ... called in order; consumes them. */
#define tn_sequential(...)                                                                         \
    tn_sequential_of((tn_module *[]){__VA_ARGS__},                                                 \
                     (int)(sizeof((tn_module *[]){__VA_ARGS__}) / sizeof(tn_module *)))
TN_API tn_module *tn_sequential_of(tn_module *const *children, int n);
TN_API tn_module *tn_module_list_new(void);
/** Appends to a ModuleList or Sequential under the next number; consumes child. */
TN_API tn_status tn_module_append(tn_module *list, tn_module *child);

/* ---- initialisers: in place, under no grad; PyTorch's draw order --------------------------------- */

typedef enum tn_nonlinearity { TN_NL_LINEAR, TN_NL_SIGMOID, TN_NL_TANH, TN_NL_RELU, TN_NL_LEAKY_RELU, TN_NL_SELU } tn_nonlinearity;
TN_API double tn_init_gain(tn_nonlinearity nonlinearity, double slope);
TN_API tn_status tn_init_fans(const tn_tensor *t, int64_t *fan_in, int64_t *fan_out); /* rank >= 2 */
TN_API tn_status tn_init_uniform(tn_tensor *t, double low, double high);
TN_API tn_status tn_init_normal(tn_tensor *t, double mean, double deviation);
TN_API tn_status tn_init_constant(tn_tensor *t, double value);
TN_API tn_status tn_init_truncated_normal(tn_tensor *t, double mean, double deviation, double low, double high);
/** U(+-gain sqrt(6 / (fan_in + fan_out))), N(0, gain sqrt(2 / (...))): Glorot and Bengio (2010) eq. 16 */
TN_API tn_status tn_init_xavier_uniform(tn_tensor *t, double gain);
TN_API tn_status tn_init_xavier_normal(tn_tensor *t, double gain);
/** U(+-gain sqrt(3 / fan)), N(0, gain / sqrt(fan)): He et al. (2015) eq. 14 */
TN_API tn_status tn_init_kaiming_uniform(tn_tensor *t, double slope, bool fan_out, tn_nonlinearity nl);
TN_API tn_status tn_init_kaiming_normal(tn_tensor *t, double slope, bool fan_out, tn_nonlinearity nl);

#ifdef __cplusplus
}
#endif
#endif
