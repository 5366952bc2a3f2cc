/*
 * Backward in training mode. With r = 1 / sqrt(var + eps) and xh = (x - mean) r, both of the batch:
 *     dx = r (dy - mean(dy) - xh mean(dy xh)),   means over the N rows.
 * The last two terms come back through mean and variance, which depend on every row. Return dx for
 * x [N, C], eps = 1e-5; normalise is the forward.
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
    return tn_mul(r, dy); /* your code here: this is what eval's backward would be */
}
