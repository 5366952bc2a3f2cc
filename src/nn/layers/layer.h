/*
 * layer.h - what the layers share. Each layer is a struct that begins with tn_module, a type, and a
 * constructor made of the same public calls as a user's own module.
 */
#ifndef TNI_LAYER_H
#define TNI_LAYER_H

#include <inttypes.h>
#include <math.h>

#include "nn/module.h"

/* An error naming function and argument unless value >= least. */
tn_status tni_at_least(const char *function, const char *what, int64_t value, int64_t least);
/* An error unless p is in [0, 1]; the same for dropout. */
tn_status tni_fraction(const char *function, const char *what, double p);
tn_status tni_probability(const char *function, double p);
/* An error unless eps is finite and not negative. */
tn_status tni_check_eps(const char *function, double eps);
/* Initial values of norms: weight 1, bias 0; each may be absent. */
tn_status tni_reset_norm(tn_tensor *weight, tn_tensor *bias);
/* PyTorch's initial values of Linear and Conv: both U(+-1/sqrt(fan_in)), weight first. bias may be
 * absent. */
tn_status tni_reset_affine(tn_tensor *weight, tn_tensor *bias);
static inline int64_t tni_or_int(int64_t value, int64_t instead)
{
    return value ? value : instead;
}
/* A free name for a new numbered member of m: the count of members, or a later number if deletions
 * left gaps. (containers.c) */
const char *tni_next_name(const tn_module *m, int n, char name[16]);
/* An error naming function unless m is of this type. */
tn_status tni_expect_type(const char *function, const tn_module *m, const tn_module_type *type);

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
    tni_batchnorm_over over;
} tni_batchnorm;
/* batchnorm.c: m if it is a BatchNorm2d, else NULL (no message). */
const tni_batchnorm *tni_batchnorm2d_of(const tn_module *m);
/* batchnorm.c: a BatchNorm's field for it, which is NULL for its own x; NULL: m is no BatchNorm. */
tni_batchnorm_over *tni_batchnorm_over_of(const tn_module *m);

/* A pointer to a layer's dropout probability; NULL (no message) if m is not of that kind. */
double *tni_positional_encoding_dropout(tn_module *m);
double *tni_multihead_attention_dropout(tn_module *m);
double *tni_encoder_layer_dropout(tn_module *m);
double *tni_recurrent_dropout(tn_module *m);

bool tni_is_encoder_layer(const tn_module *m);
/* The ModuleList of an encoder; NULL (no message) for any other module. */
tn_module *tni_encoder_layers(const tn_module *m);
/* encoder_layer.c: the masks of a call with x, or with x, mask and key padding, and one output; and
 * such a call through a typed function, on a module of this type. */
tn_status tni_masks_of(const tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                       tn_attention_masks *masks);
tn_tensor *tni_masked_forward(const char *function, const tn_module_type *type, tn_module *m,
                              tn_tensor *x, tn_attention_masks masks);

#endif
