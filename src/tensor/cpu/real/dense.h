/* dense.h - shared by convolution, pooling and attention. */
#ifndef TNI_CPU_DENSE_H
#define TNI_CPU_DENSE_H

#include "tensor/cpu/cpu.h"

#define GEMM1 TNI_CAT2(tni_gemm1, TNI_REAL_NAME)

/* How many items of `work` multiplications make a chunk large enough for a thread. */
static inline int64_t grain_of(double work)
{
    return work >= 65536 ? 1 : (int64_t)(65536 / (work + 1)) + 1;
}

#endif
