/*
 * Rotary positions, by ops that broadcast: angles [T, D / 2].
 */
#include <math.h>
#include <tenon/tenon.h>

tn_tensor *rotate(tn_tensor *x)
{
    int64_t t = tn_size(x, 0), half = tn_size(x, 1) / 2;
    tn_tensor *power =
        tn_mul_scalar(tn_arange(0, (double)half, 1, TN_F32), -log(10000) / (double)half);
    tn_tensor *at = tn_reshape(tn_arange(0, (double)t, 1, TN_F32), TN_SHAPE(t, 1));
    tn_tensor *angle = tn_mul(at, tn_exp(power)), *c = tn_cos(angle), *s = tn_sin(angle);
    tn_tensor *a = tn_narrow(x, 1, 0, half), *b = tn_narrow(x, 1, half, half);
    tn_tensor *both[] = { tn_sub(tn_mul(a, c), tn_mul(b, s)), tn_add(tn_mul(b, c), tn_mul(a, s)) };
    return tn_cat(both, 2, 1);
}
