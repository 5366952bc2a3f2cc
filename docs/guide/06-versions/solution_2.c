/*
 * The same value, out of place.
 */
#include <tenon/tenon.h>

tn_tensor *energy(tn_tensor *x)
{
    return tn_sum_all(tn_square(tn_mul_scalar(x, 0.5)));
}
