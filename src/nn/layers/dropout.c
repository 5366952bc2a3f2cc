/*
 * dropout.c - in training, zero with probability p and scale the rest by 1/(1-p); Srivastava
 * (2014). p can be read and set later, in every layer that has dropout.
 */
#include "nn/layers/layer.h"

typedef struct dropout {
    tn_module base;
    double p;
} dropout;

TNI_ONE_OP(tn_dropout, "Dropout", dropout, tn_dropout(x, m->p, tn_training(self)), "%g", m->p)

/* x with a mask of ones for each index of the leading axes, those of its channels. */
static tn_tensor *drop_channels(const dropout *m, tn_tensor *x, int least, int leading)
{
    int rank = x->shape.rank;
    if (tni_none(x) || rank < least || rank > least + 1)
        return tni_fail(TN_E_SHAPE, "%s: x %s: want %d or %d axes", m->base.type->name,
                        tni_none(x) ? "is absent" : tni_text(x), least, least + 1);
    if (!tn_training(&m->base)) return x;
    tn_shape channels = x->shape;
    for (int d = leading; d < rank; d++) channels.size[d] = 1;
    tn_tensor *ones = tn_full_as(channels, 1, x->dtype, tn_device_of(x));
    return tn_mul(x, tn_dropout(ones, m->p, true));
}
TNI_ONE_OP(dropout1d, "Dropout1d", dropout, drop_channels(m, x, 2, x->shape.rank - 1), "%g", m->p)
TNI_ONE_OP(dropout2d, "Dropout2d", dropout, drop_channels(m, x, 3, 2), "%g", m->p)

static tn_module *dropout_new(const char *function, const tn_module_type *type, double p)
{
    TNI_HOLD_TRAPS;
    if (tni_probability(function, p) != TN_OK) return NULL;
    dropout *m = tn_module_new(type);
    if (!m) return NULL;
    tni_drops(&m->base, &m->p, p);
    return tn_module_done(&m->base);
}

#define DROPOUT(name, type)                                                                        \
    tn_module *name(double p)                                                                      \
    {                                                                                              \
        return dropout_new(#name, &type, p);                                                       \
    }
DROPOUT(tn_dropout_new, tn_dropout_type)
DROPOUT(tn_dropout1d_new, dropout1d_type)
DROPOUT(tn_dropout2d_new, dropout2d_type)

static double *probability_of(tn_module *m)
{
    return m->state->dropout ? (double *)(void *)((char *)m + m->state->dropout) : NULL;
}

double tn_dropout_p(tn_module *m)
{
    if (tni_module_check(__func__, m) != TN_OK) return NAN;
    const double *p = probability_of(m);
    if (!p)
        tni_error(TN_E_INVALID, "%s: a %s drops nothing: want a layer with dropout", __func__,
                  m->type->name);
    return p ? *p : NAN;
}

typedef struct setting {
    double p;
    int n; /* layers that were set */
} setting;

static void set_one(tn_module *m, void *user)
{
    setting *set = user;
    double *p = probability_of(m);
    if (!p) return;
    *p = set->p;
    set->n++;
}

tn_status tn_dropout_set_p(tn_module *m, double p)
{
    TNI_HOLD_TRAPS;
    setting set = { p, 0 };
    tn_status status = tni_module_check(__func__, m);
    if (status == TN_OK) status = tni_probability(__func__, p);
    if (status == TN_OK) status = tni_change_modules(__func__, m, set_one, &set);
    if (status == TN_OK && set.n == 0)
        status = tni_error(TN_E_INVALID, "%s: nothing in %s drops: want a layer with dropout",
                           __func__, m->type->name);
    return status;
}
