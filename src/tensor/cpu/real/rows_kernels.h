/* rows_kernels.h - the row kernels of real/ that isa/rows.c calls: f32 and f64 of each. */
#ifndef TNI_ROWS_KERNELS_H
#define TNI_ROWS_KERNELS_H

#include "tensor/cpu/real/real.h"

TNI_REAL_KERNEL(tni_softmax, (const tni_array *y, const tni_array *x, bool log))
TNI_REAL_KERNEL(tni_softmax_grad,
                (const tni_array *dx, const tni_array *dy, const tni_array *y, bool log))
TNI_REAL_KERNEL(tni_cross_entropy,
                (const tni_array *row_loss, const tni_array *row_weight, const tni_array *lse,
                 const tni_array *x, const tni_array *target, const tni_array *weight,
                 double smoothing, int64_t ignore))
TNI_REAL_KERNEL(tni_cross_entropy_grad,
                (const tni_array *dx, const tni_array *drow, const tni_array *lse,
                 const tni_array *x, const tni_array *target, const tni_array *weight,
                 double smoothing, int64_t ignore))
TNI_REAL_KERNEL(tni_nll,
                (const tni_array *row_loss, const tni_array *row_weight, const tni_array *x,
                 const tni_array *target, const tni_array *weight, int64_t ignore))
TNI_REAL_KERNEL(tni_nll_grad, (const tni_array *dx, const tni_array *drow, const tni_array *target,
                               const tni_array *weight, int64_t ignore))
TNI_REAL_KERNEL(tni_layer_norm,
                (const tni_array *y, const tni_array *mean, const tni_array *rstd,
                 const tni_array *x, const tni_array *weight, const tni_array *bias, double eps))
TNI_REAL_KERNEL(tni_layer_norm_grad,
                (const tni_array *dx, const tni_array *dweight, const tni_array *dbias,
                 const tni_array *dy, const tni_array *x, const tni_array *mean,
                 const tni_array *rstd, const tni_array *weight))
TNI_REAL_KERNEL(tni_batch_norm, (const tni_array *y, const tni_array *mean, const tni_array *rstd,
                                 const tni_array *x, const tni_array *weight, const tni_array *bias,
                                 const tni_array *running_mean, const tni_array *running_var,
                                 bool training, double momentum, double eps))
TNI_REAL_KERNEL(tni_batch_norm_grad,
                (const tni_array *dx, const tni_array *dweight, const tni_array *dbias,
                 const tni_array *dy, const tni_array *x, const tni_array *mean,
                 const tni_array *rstd, const tni_array *weight, bool training))
TNI_REAL_KERNEL(tni_dropout,
                (const tni_array *y, const tni_array *x, double p, uint64_t seed, uint64_t offset))
TNI_REAL_KERNEL(tni_optim_step, (const tni_optim_args *args, const tni_optim_tensor *tensors, int n,
                                 int64_t *first))
TNI_REAL_KERNEL(tni_scatter_add,
                (const tni_array *y, const tni_array *index, const tni_array *source, int axis))
TNI_REAL_KERNEL(tni_take_add,
                (const tni_array *x, const tni_array *y, const tni_array *index, int64_t skip))

#endif
