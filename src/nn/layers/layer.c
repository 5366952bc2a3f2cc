/* layer.c - checks and initial values that several layers share. */
#include "nn/layers/layer.h"

tn_status tni_at_least(const char *function, const char *what, int64_t value, int64_t least)
{
    if (value >= least) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: %s is %" PRId64 ": want %" PRId64 " and up", function, what,
                     value, least);
}

tn_status tni_fraction(const char *function, const char *what, double p)
{
    if (p >= 0 && p <= 1) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: %s %g: want a number in [0, 1]", function, what, p);
}

tn_status tni_check_eps(const char *function, double eps)
{
    if (isfinite(eps) && eps >= 0) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: eps %g: want a finite number, 0 and up", function, eps);
}

tn_tensor *tni_member(const tn_module *m, const char *name)
{
    tn_tensor *t = tni_slot_tensor(m, name);
    return t ? t : TN_NONE;
}

tn_status tni_reset_norm(tn_module *self)
{
    tn_tensor *weight = tni_member(self, "weight"), *bias = tni_member(self, "bias");
    tn_status status = tni_none(weight) ? TN_OK : tn_init_constant(weight, 1);
    return status == TN_OK && !tni_none(bias) ? tn_init_constant(bias, 0) : status;
}

/* Kaiming uniform with slope sqrt 5: the gain sqrt(2/6) makes the bound sqrt(3) gain / sqrt(fan_in)
 * = 1/sqrt(fan_in). Computed step by step as PyTorch does, to round in the same way. */
tn_status tni_reset_affine(tn_module *self)
{
    tn_tensor *weight = tni_member(self, "weight"), *bias = tni_member(self, "bias");
    tn_status status = tn_init_kaiming_uniform(weight, sqrt(5.0), false, TN_NL_LEAKY_RELU);
    if (status != TN_OK || tni_none(bias)) return status;
    int64_t fan_in, fan_out;
    TNI_TRY(tn_init_fans(weight, &fan_in, &fan_out));
    double bound = 1 / sqrt((double)fan_in);
    return tn_init_uniform(bias, -bound, bound);
}

tn_status tni_expect_type(const char *function, const tn_module *m, const tn_module_type *types,
                          int n, const char *want)
{
    TNI_TRY(tni_module_check(function, m));
    for (int i = 0; i < n; i++)
        if (m->type == &types[i]) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: the module is a %s: want a %s", function, m->type->name,
                     want);
}
