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

/* Channels of x, which may be one sample if it has as few axes. */
static tn_tensor *drop_channels(const dropout *m, tn_tensor *x, int least, int most, bool sample)
{
    int rank = x->shape.rank;
    if (tni_none(x) || rank < least || rank > most)
        return tni_fail(TN_E_SHAPE, "%s: x %s: want %d or %d axes", m->base.type->name,
                        tni_none(x) ? "is absent" : tni_text(x), least, most);
    if (!sample || rank > least) return tn_feature_dropout(x, m->p, tn_training(&m->base));
    return tn_squeeze(tn_feature_dropout(tn_unsqueeze(x, 0), m->p, tn_training(&m->base)), 0);
}
TNI_ONE_OP(dropout1d, "Dropout1d", dropout, drop_channels(m, x, 2, 3, true), "%g", m->p)
TNI_ONE_OP(dropout2d, "Dropout2d", dropout, drop_channels(m, x, 3, 4, false), "%g", m->p)

static tn_module *dropout_new(const char *function, const tn_module_type *type, double p)
{
    TNI_HOLD_TRAPS;
    if (tni_probability(function, p) != TN_OK) return NULL;
    dropout *m = tn_module_new(type);
    if (!m) return NULL;
    m->p = p;
    tni_drops(&m->base, &m->p);
    return tn_module_done(&m->base);
}

tn_module *tn_dropout_new(double p)
{
    return dropout_new("tn_dropout_new", &tn_dropout_type, p);
}

tn_module *tn_dropout1d_new(double p)
{
    return dropout_new("tn_dropout1d_new", &dropout1d_type, p);
}

tn_module *tn_dropout2d_new(double p)
{
    return dropout_new("tn_dropout2d_new", &dropout2d_type, p);
}

static double *probability_of(tn_module *m)
{
    return m->state->dropout ? (double *)(void *)((char *)m + m->state->dropout) : NULL;
}

double tn_dropout_p(tn_module *m)
{
    static const char f[] = "tn_dropout_p";
    if (tni_module_check(f, m) != TN_OK) return NAN;
    const double *p = probability_of(m);
    if (!p)
        tni_error(TN_E_INVALID, "%s: a %s drops nothing: want a layer with dropout", f,
                  m->type->name);
    return p ? *p : NAN;
}

typedef struct setting {
    double p;
    int n; /* layers that were set */
} setting;

static tn_status set_one(const char *path, tn_module *m, void *user)
{
    setting *set = user;
    double *p = probability_of(m);
    (void)path;
    if (!p) return TN_OK;
    *p = set->p;
    set->n++;
    return TN_OK;
}

tn_status tn_dropout_set_p(tn_module *m, double p)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_dropout_set_p";
    setting set = { p, 0 };
    tn_status status = tni_module_check(f, m);
    if (status == TN_OK) status = tni_probability(f, p);
    if (status == TN_OK) status = tn_named_modules(m, set_one, &set);
    if (status == TN_OK && set.n == 0)
        status = tni_error(TN_E_INVALID, "%s: nothing in %s drops: want a layer with dropout", f,
                           m->type->name);
    return status;
}
