/*
 * dense.c - the slots for products, convolution, pooling and attention: pick the variant by dtype.
 */
#include "tensor/cpu/isa/slots.h"
#include "tensor/cpu/real/dense.h"

tn_status K(tni_cpu_gemm)(const tni_gemm *g)
{
    return tni_is_short(g->dtype) ? tni_short_gemm(&K(tni_cpu_table), g) : tni_cpu_gemm(g);
}

tn_status K(tni_cpu_conv2d)(void *y, const void *x, const void *w, const void *bias, tn_dtype dtype,
                            const tni_conv2d *c)
{
    if (tni_is_short(dtype)) return tni_short_conv2d(&K(tni_cpu_table), y, x, w, bias, dtype, c);
    return TNI_BY_REAL(dtype, conv2d, (y, x, w, bias, c));
}

tn_status K(tni_cpu_conv2d_grad_input)(void *dx, const void *dy, const void *w, tn_dtype dtype,
                                       const tni_conv2d *c)
{
    if (tni_is_short(dtype))
        return tni_short_conv2d_grad_input(&K(tni_cpu_table), dx, dy, w, dtype, c);
    return TNI_BY_REAL(dtype, conv2d_grad_input, (dx, dy, w, c));
}

tn_status K(tni_cpu_conv2d_grad_weight)(void *dw, const void *dy, const void *x, tn_dtype dtype,
                                        const tni_conv2d *c)
{
    if (tni_is_short(dtype))
        return tni_short_conv2d_grad_weight(&K(tni_cpu_table), dw, dy, x, dtype, c);
    return TNI_BY_REAL(dtype, conv2d_grad_weight, (dw, dy, x, c));
}

tn_status K(tni_cpu_max_pool2d)(void *y, int32_t *index, const void *x, tn_dtype dtype,
                                const tni_pool2d *p)
{
    return TNI_BY_REAL(dtype, max_pool2d, (y, index, x, p));
}

tn_status K(tni_cpu_max_pool2d_grad)(void *dx, const void *dy, const int32_t *index, tn_dtype dtype,
                                     const tni_pool2d *p)
{
    return TNI_BY_REAL(dtype, max_pool2d_grad, (dx, dy, index, p));
}

tn_status K(tni_cpu_avg_pool2d)(void *y, const void *x, tn_dtype dtype, const tni_pool2d *p)
{
    return TNI_BY_REAL(dtype, avg_pool2d, (y, x, p));
}

tn_status K(tni_cpu_avg_pool2d_grad)(void *dx, const void *dy, tn_dtype dtype, const tni_pool2d *p)
{
    return TNI_BY_REAL(dtype, avg_pool2d_grad, (dx, dy, p));
}

tn_status K(tni_cpu_adaptive_avg_pool2d)(void *y, const void *x, tn_dtype dtype,
                                         const tni_pool2d *p)
{
    return TNI_BY_REAL(dtype, adaptive_avg_pool2d, (y, x, p));
}

tn_status K(tni_cpu_adaptive_avg_pool2d_grad)(void *dx, const void *dy, tn_dtype dtype,
                                              const tni_pool2d *p)
{
    return TNI_BY_REAL(dtype, adaptive_avg_pool2d_grad, (dx, dy, p));
}

tn_status K(tni_cpu_attention)(const tni_attention *a)
{
    if (tni_is_short(a->q.dtype)) return tni_short_attention(&K(tni_cpu_table), a);
    return TNI_BY_REAL(a->q.dtype, attention, (a));
}

tn_status K(tni_cpu_attention_grad)(const tni_attention *a, const tni_array *dy,
                                    const tni_array *dq, const tni_array *dk, const tni_array *dv)
{
    if (tni_is_short(a->q.dtype))
        return tni_short_attention_grad(&K(tni_cpu_table), a, dy, dq, dk, dv);
    return TNI_BY_REAL(a->q.dtype, attention_grad, (a, dy, dq, dk, dv));
}
