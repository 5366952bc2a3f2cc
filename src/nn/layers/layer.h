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
/* An error unless p is a probability. */
tn_status tni_probability(const char *function, double p);
/* PyTorch's initial values of Linear and Conv: both U(+-1/sqrt(fan_in)), weight first. bias may be
 * absent. */
tn_status tni_reset_affine(tn_tensor *weight, tn_tensor *bias);
static inline double tni_or(double value, double instead)
{
    return value != 0 ? value : instead;
}
static inline int64_t tni_or_int(int64_t value, int64_t instead)
{
    return value ? value : instead;
}
/* Unless m is of this type, an error naming function. */
tn_status tni_expect_type(const char *function, const tn_module *m, const tn_module_type *type);

/* What attention and all above it are called with besides tensors. */
typedef struct tni_attention_options {
    bool causal;
} tni_attention_options;
/* NULL means none, as in tn_attention_masks. */
static inline tn_tensor *tni_given(tn_tensor *t)
{
    return t ? t : TN_NONE;
}
bool tni_is_encoder_layer(const tn_module *m);

#endif
