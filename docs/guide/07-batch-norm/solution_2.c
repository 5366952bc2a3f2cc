/*
 * Backward of batch norm in training mode.
 */
#include <tenon/tenon.h>

tn_tensor *normalise(tn_tensor *x)
{
    tn_tensor *var = tn_var(x, TN_AXES(0), 0, true);
    return tn_mul(tn_sub(x, tn_mean(x, TN_AXES(0), true)), tn_rsqrt(tn_add_scalar(var, 1e-5)));
}

tn_tensor *normalise_gradient(tn_tensor *x, tn_tensor *dy)
{
    tn_tensor *r = tn_rsqrt(tn_add_scalar(tn_var(x, TN_AXES(0), 0, true), 1e-5));
    tn_tensor *xh = normalise(x);
    tn_tensor *mean = tn_mean(dy, TN_AXES(0), true);
    tn_tensor *slope = tn_mean(tn_mul(dy, xh), TN_AXES(0), true);
    return tn_mul(r, tn_sub(tn_sub(dy, mean), tn_mul(xh, slope)));
}
