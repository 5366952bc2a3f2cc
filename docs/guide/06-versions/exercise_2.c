/*
 * Somebody halves activations in place to keep them small, and backward refuses: square keeps its
 * input. Return the same value, the sum of the squares of x / 2, without changing anything that is
 * kept.
 */
#include <tenon/tenon.h>

tn_tensor *energy(tn_tensor *x)
{
    tn_tensor *y = tn_mul_scalar(x, 1), *squares = tn_square(y);
    TN_NO_GRAD if (tn_mul_scalar_(y, 0.5) != TN_OK) return NULL; /* your code here */
    return tn_mul_scalar(tn_sum_all(squares), 0.25);
}
