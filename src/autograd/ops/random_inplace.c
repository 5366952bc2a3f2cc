/*
 * random_inplace.c - uniform_, normal_: random values into a tensor that exists. They record
 * nothing.
 *
 * uniform_: x_i = u_i (high - low) + low, u_i in [0, 1). normal_: x_i = z_i deviation + mean.
 * Elements are drawn in row-major order whatever the strides. Source: random.c
 */
#include "autograd/op.h"
#include "tensor/random.h"

static tn_status may_fill(const char *function, tn_tensor *t)
{
    if (tni_absent(t)) return tni_poison(function, "t");
    if (!tn_dtype_is_float(t->dtype))
        return tni_error(TN_E_DTYPE, "%s: %s is %s: want a floating tensor", function, tni_text(t),
                         tn_dtype_name(t->dtype));
    return tni_may_write(function, t, TN_NONE);
}

tn_status tn_uniform_(tn_tensor *t, double low, double high)
{
    TNI_HOLD_TRAPS;
    tn_status status = may_fill("tn_uniform_", t);
    if (status != TN_OK) return status;
    if (!isfinite(low) || !isfinite(high) || low > high)
        return tni_error(TN_E_INVALID, "tn_uniform_: from %g to %g: want finite bounds in order",
                         low, high);
    status = tni_random_uniform(t, low, high);
    if (status == TN_OK) tni_bump_rewritten(t);
    return status;
}

tn_status tn_normal_(tn_tensor *t, double mean, double deviation)
{
    TNI_HOLD_TRAPS;
    tn_status status = may_fill("tn_normal_", t);
    if (status != TN_OK) return status;
    if (!(deviation >= 0.0))
        return tni_error(TN_E_INVALID, "tn_normal_: deviation %g: want 0 or more", deviation);
    status = tni_random_normal(t, mean, deviation);
    if (status == TN_OK) tni_bump_rewritten(t);
    return status;
}
