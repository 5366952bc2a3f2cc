/*
 * dense.h - the real/ kernels of convolution, pooling and attention: slots' types with a prefix of ours.
 */
#ifndef TNI_CPU_DENSE_H
#define TNI_CPU_DENSE_H

#include "tensor/cpu/real/real.h"

TNI_REAL_KERNEL(tni_conv2d,
                (void *y, const void *x, const void *w, const void *bias, const tni_conv2d *c))
TNI_REAL_KERNEL(tni_conv2d_grad_input,
                (void *dx, const void *dy, const void *w, const tni_conv2d *c))
TNI_REAL_KERNEL(tni_conv2d_grad_weight,
                (void *dw, const void *dy, const void *x, const tni_conv2d *c))
TNI_REAL_KERNEL(tni_max_pool2d, (void *y, int32_t *index, const void *x, const tni_pool2d *p))
TNI_REAL_KERNEL(tni_max_pool2d_grad,
                (void *dx, const void *dy, const int32_t *index, const tni_pool2d *p))
TNI_REAL_KERNEL(tni_avg_pool2d, (void *y, const void *x, const tni_pool2d *p))
TNI_REAL_KERNEL(tni_avg_pool2d_grad, (void *dx, const void *dy, const tni_pool2d *p))
TNI_REAL_KERNEL(tni_adaptive_avg_pool2d, (void *y, const void *x, const tni_pool2d *p))
TNI_REAL_KERNEL(tni_adaptive_avg_pool2d_grad, (void *dx, const void *dy, const tni_pool2d *p))
TNI_REAL_KERNEL(tni_attention, (const tni_attention *a))
TNI_REAL_KERNEL(tni_attention_grad, (const tni_attention *a, const tni_array *dy,
                                     const tni_array *dq, const tni_array *dk, const tni_array *dv))

#ifdef TNI_REAL_NAME
#define GEMM1 TNI_CAT2(tni_gemm1, TNI_REAL_NAME)
#endif

/* Items of `work` multiplications each that make a chunk worth a thread's while. */
static inline int64_t grain_of(double work)
{
    return work >= 65536 ? 1 : (int64_t)(65536 / (work + 1)) + 1;
}

#endif
