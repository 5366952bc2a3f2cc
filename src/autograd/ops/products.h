/*
 * products.h - what the ops made of matrix products share.
 */
#ifndef TNI_PRODUCTS_H
#define TNI_PRODUCTS_H

#include "autograd/op.h"

/* All axes of t but the last as the rows of one matrix: true when they are evenly spaced in memory,
 * with their number and distance (elements). */
bool tni_merge_rows(const tn_tensor *t, int64_t *rows, int64_t *distance);
/* t with all axes but the last merged; t itself if it has two. NULL stays. */
tn_tensor *tni_as_rows(tn_tensor *t);
/* Copies b into every row of y [n, m], before a product from bf16 to f32 is added. */
tn_status tni_bias_rows(const tni_backend *backend, tni_array y, const tn_tensor *b);
/* tn_linear, but f32 from bf16 and f16: y is not rounded. */
tn_tensor *tni_linear_wide(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);

#endif
