/* products.h - what the ops made of matrix products share. */
#pragma once

#include "autograd/op.h"

/* All axes of t but the last as the rows of one matrix: true when they are evenly spaced in memory,
 * with their number and distance (elements). */
bool tni_merge_rows(const tn_tensor *t, int64_t *rows, int64_t *distance);
/* t with all axes but the last merged; t itself if it has two. NULL stays. */
tn_tensor *tni_as_rows(tn_tensor *t);
/* The product c = a b of matrices; those of bf16 or f16 stay unrounded if c is f32. */
tni_gemm tni_matrix_product(tni_array c, tni_array a, tni_array b);
/* Gives g a bias b, TN_NONE for none. A product that stays unrounded takes none: then c becomes b
 * in every row, to be added to. */
tn_status tni_product_bias(const tni_backend *backend, tni_gemm *g, const tn_tensor *b);
/* A matrix transposed. */
static inline tni_array tni_turned(tni_array a)
{
    return (
        tni_array){ a.data, a.dtype, 2, { a.size[1], a.size[0] }, { a.stride[1], a.stride[0] } };
}
/* A kernel_grad: of x, W and b (absent: not needed) of y = x W^T + b. */
tn_status tni_linear_kernel_grad(tni_grad *g);
/* tn_linear with a weight of bytes (linear_int8.c). */
tn_tensor *tni_linear_bytes(tn_tensor *x, tn_tensor *w, tn_tensor *bias);
/* tn_linear, but f32 from bf16 and f16: y is not rounded. */
tn_tensor *tni_linear_wide(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
