/*
 * real.h - how isa/ files reach the two variants of a real/ kernel.
 *
 *     TNI_REAL_KERNEL(tni_softmax, (const tni_array *y, const tni_array *x, bool log))
 *
 * in a header that both sides include declares tni_softmax_<isa>_f32 and _f64; TNI_BY_REAL(dtype, softmax,
 * (y, x, log)) calls the one for a dtype, and is TN_E_DTYPE for any other.
 */
#ifndef TNI_REAL_H
#define TNI_REAL_H

#include "tensor/cpu/cpu.h"

#define TNI_REAL_KERNEL(name, parameters)                                                          \
    tn_status K32(name) parameters;                                                                \
    tn_status K64(name) parameters;

#define TNI_BY_REAL(dtype_, name, arguments)                                                       \
    ((dtype_) == TN_F32   ? K32(tni_##name) arguments                                              \
     : (dtype_) == TN_F64 ? K64(tni_##name) arguments                                              \
                          : tni_error(TN_E_DTYPE, "%s: %s on the CPU: wanted f32 or f64", #name,   \
                                      tn_dtype_name(dtype_)))

#endif
