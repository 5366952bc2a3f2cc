/* lerp_all.c - linear interpolation, or scaling, of some elements of one tensor among many. */
#include "tensor/cpu/cpu.h"
#include "tensor/math.h"

void K(tni_lerp_span)(const tni_lerp_tensor *t, int64_t begin, int64_t end)
{
    const REAL rate = (REAL)t->rate;
    REAL *restrict x = t->x;
    const REAL *restrict y = t->y;
    if (!y) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++) x[i] *= rate;
        return;
    }
#pragma omp simd
    for (int64_t i = begin; i < end; i++) x[i] = rate == 1 ? y[i] : TN_LERP(x[i], y[i], rate);
}
