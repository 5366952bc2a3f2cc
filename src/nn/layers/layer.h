/*
 * layer.h - what the layers share. Each layer is a struct that begins with tn_module, a type, and a
 * constructor made of the same public calls as a user's own module.
 */
#pragma once

#include <tenon/lora.h>

#include "nn/module.h"

/* An error naming function and argument unless value >= least. */
tn_status tni_at_least(const char *function, const char *what, int64_t value, int64_t least);
/* An error unless p is in [0, 1]; of dropout. */
tn_status tni_fraction(const char *function, const char *what, double p);
static inline tn_status tni_probability(const char *function, double p)
{
    return tni_fraction(function, "dropout probability", p);
}
/* An error unless eps is finite and not negative. */
tn_status tni_check_eps(const char *function, double eps);
/* The tensor of the slot with that name; TN_NONE if there is none. */
tn_tensor *tni_member(const tn_module *m, const char *name);
/* Initial values of norms: weight 1, bias 0; each may be absent. */
tn_status tni_reset_norm(tn_module *self);
/* PyTorch's initial values of Linear and Conv: both U(+-1/sqrt(fan_in)), weight first. bias may be
 * absent. */
tn_status tni_reset_affine(tn_module *self);
static inline int64_t tni_or_int(int64_t value, int64_t instead)
{
    return value ? value : instead;
}
/* An error naming function, "want a WANT", unless m is of one of n types. */
tn_status tni_expect_type(const char *function, const tn_module *m, const tn_module_type *types,
                          int n, const char *want);

/* The type of a layer that is exactly one op. CALL: of x and the struct *m; behind it the format of
 * what describes m, and its arguments. RESET: NULL, or sets the initial values. */
#define TNI_ONE_OP(OP, TYPE, layer, ...) TNI_ONE_OP_RESET(OP, TYPE, layer, NULL, __VA_ARGS__)
#define TNI_ONE_OP_RESET(OP, TYPE, layer, RESET, CALL, ...)                                        \
    static tn_tensor *OP##_forward(tn_module *self, tn_tensor *x)                                  \
    {                                                                                              \
        const layer *m = (const layer *)self;                                                      \
        (void)m;                                                                                   \
        return CALL;                                                                               \
    }                                                                                              \
    static void OP##_describe(const tn_module *self, char *text, size_t size)                      \
    {                                                                                              \
        const layer *m = (const layer *)self;                                                      \
        (void)m;                                                                                   \
        snprintf(text, size, __VA_ARGS__);                                                         \
    }                                                                                              \
    TNI_TYPE(OP, TYPE, layer, .forward = OP##_forward, .describe = OP##_describe, .reset = RESET)

/* batchnorm.c: x has from least to most axes, channels on axis 1. */
tn_status tni_check_channels(const tn_module *m, const tn_tensor *x, int64_t channels, int least,
                             int most);
/* tn_batch_norm in training, with statistics of more than this process's x: *n values each. */
typedef tn_tensor *(*tni_batchnorm_over)(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_tensor *running_mean, tn_tensor *running_var,
                                         double momentum, double eps, int64_t *n);
/* A BatchNorm, trained or frozen: one struct, so that each can become the other in place. */
typedef struct tni_batchnorm {
    tn_module base;
    tn_tensor *weight, *bias;
    tn_tensor *running_mean, *running_var, *num_batches_tracked;
    int64_t features;
    tn_batch_norm_options o; /* eps and momentum as used; frozen: what a thawed one gets, and eps */
    int64_t skipped;         /* batches that were left out */
    int64_t unrecorded;      /* batches that moved the running statistics under TN_NO_GRAD */
    tni_batchnorm_over over;
} tni_batchnorm;
/* batchnorm.c: m if it is a BatchNorm2d, else NULL (no message). */
const tni_batchnorm *tni_batchnorm2d_of(const tn_module *m);
/* batchnorm.c: a BatchNorm's field for it, which is NULL for its own x; NULL: m is no BatchNorm. */
tni_batchnorm_over *tni_batchnorm_over_of(const tn_module *m);

/* m drops with probability p, in that field of its struct: tn_dropout_p and tn_dropout_set_p find
 * it. */
static inline void tni_drops(tn_module *m, double *field, double p)
{
    *field = p;
    m->state->dropout = (size_t)((const char *)field - (const char *)m);
}

/* lora.c: an adapter, below its Linear under its name. */
typedef struct tni_lora {
    tn_module base;
    tn_tensor *a, *b, *merged; /* [rank, in]; [out, rank]; W + scale B A, or absent */
    double scale, alpha, dropout;
    bool rslora, active;
    tni_storage *of[3]; /* W, A and B when that was made, held, so that no other has their place */
    uint64_t version[3];
} tni_lora;
tn_tensor *tni_lora_forward(tn_module *linear, tn_tensor *x, tn_tensor *w, tn_tensor *bias);
/* tn_lora; fill, if there is one, sets the values before anything is frozen. */
TNI_SHARED tn_status tni_lora_add(const char *function, tn_module *m, const char *patterns,
                                  tn_lora_options o, tn_status (*fill)(tn_module *m, void *user),
                                  void *user);
/* linear.c */
typedef struct tni_linear {
    tn_module base;
    tn_tensor *weight, *bias; /* [out, in], or as bytes (ops/linear_int8.c); [out] or absent */
    int64_t in, out;
} tni_linear;
TNI_SHARED bool tni_is_linear(const tn_module *m);
/* Whether it is the weight of a Linear that fits tn_lora's patterns. (lora.c) */
TNI_SHARED bool tni_linear_fits(const char *patterns, const tn_entry *e);
/* Whether each of such patterns fits one of all parameters, aliases among them; f: function. */
TNI_SHARED tn_status tni_check_patterns(const char *f, const tn_list *all, const char *patterns);
TNI_SHARED extern const tn_module_type tni_lora_type;

/* The ModuleList of an encoder or decoder; NULL (no message) for any other module. */
tn_module *tni_encoder_layers(const tn_module *m);
