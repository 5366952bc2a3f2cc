/* dense.h - what convolution, pooling and attention share. */
#ifndef TNI_CPU_DENSE_H
#define TNI_CPU_DENSE_H

#include "tensor/cpu/cpu.h"

#define GEMM1 TNI_CAT2(tni_gemm1, TNI_REAL_NAME)

/* Items of `work` multiplications each that make a chunk worth a thread's while. */
static inline int64_t grain_of(double work)
{
    return work >= 65536 ? 1 : (int64_t)(65536 / (work + 1)) + 1;
}

#endif
