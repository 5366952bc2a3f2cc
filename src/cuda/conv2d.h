/* conv2d.h - shared by the files of the convolution. All arguments are as in kernels.h; conv2d.cu
 * has checked that every number of the geometry fits an int. */
#pragma once

#include "cuda/cuda.h"

/* conv2d_columns.cu: through columns and cuBLAS. y holds the bias where there is one (`add`). */
tn_status tni_cuda_columns(void *y, const void *x, const void *w, bool add, tn_dtype dtype,
                           const tni_conv2d_sizes *c);
tn_status tni_cuda_columns_grad_input(void *dx, const void *dy, const void *w, tn_dtype dtype,
                                      const tni_conv2d_sizes *c);
tn_status tni_cuda_columns_grad_weight(void *dw, const void *dy, const void *x, tn_dtype dtype,
                                       const tni_conv2d_sizes *c);

/* depthwise.cu: one input channel a group. */
tn_status tni_cuda_depthwise(void *y, const void *x, const void *w, const void *bias,
                             tn_dtype dtype, const tni_conv2d_sizes *c);
tn_status tni_cuda_depthwise_grad_input(void *dx, const void *dy, const void *w, tn_dtype dtype,
                                        const tni_conv2d_sizes *c);
tn_status tni_cuda_depthwise_grad_weight(void *dw, const void *dy, const void *x, tn_dtype dtype,
                                         const tni_conv2d_sizes *c);

/* The output position whose tap at distance `reach` is on an input position; -1: none. */
static __device__ __forceinline__ int place_above(int reach, int stride, int places)
{
    const int q = stride == 1 ? reach : reach / stride;
    return reach >= 0 && q < places && q * stride == reach ? q : -1;
}
