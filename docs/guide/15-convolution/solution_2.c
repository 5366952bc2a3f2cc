/*
 * The gradient of the weight: an element of the kernel met every stride-th element of x.
 */
#include <tenon/tenon.h>

tn_tensor *weight_gradient(tn_tensor *x, tn_tensor *dy, int64_t k, int64_t stride)
{
    const int64_t n = tn_size(x, 0), c = tn_size(x, 1), o = tn_size(dy, 1);
    const int64_t below = (tn_size(dy, 2) - 1) * stride + 1,
                  beside = (tn_size(dy, 3) - 1) * stride + 1;
    tn_tensor *flat = tn_reshape(dy, TN_SHAPE(n, o, -1)), *of[64];
    for (int64_t r = 0; r < k; r++)
        for (int64_t s = 0; s < k; s++) {
            tn_tensor *met =
                tn_slice(tn_slice(x, 2, r, r + below, stride), 3, s, s + beside, stride);
            met = tn_transpose(tn_reshape(met, TN_SHAPE(n, c, -1)), 1, 2);   /* [N, H' W', C] */
            of[r * k + s] = tn_sum(tn_matmul(flat, met), TN_AXES(0), false); /* [O, C] */
        }
    return tn_reshape(tn_stack(of, (int)(k * k), 2), TN_SHAPE(o, c, k, k));
}
