/*
 * The gradient of the weight where the kernel moves by stride positions at a time:
 *     y[n,o,i,j] = sum over c, r, s of w[o,c,r,s] x[n, c, i stride + r, j stride + s]
 * Given x [N, C, H, W] and dy [N, O, H', W'], return dw [O, C, k, k].
 */
#include <tenon/tenon.h>

tn_tensor *weight_gradient(tn_tensor *x, tn_tensor *dy, int64_t k, int64_t stride)
{
    (void)x, (void)dy, (void)k, (void)stride;
    return TN_NONE; /* your code here */
}
