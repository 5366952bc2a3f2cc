/*
 * dropout.c - y = x m, m = 1 / (1 - p) where the element's uniform number is at least p, else 0.
 *
 * Element i uses word i % 4 of Philox counter offset + i / 4: the mask depends on seed and offset
 * alone, so backward draws it again instead of keeping it. The product keeps inf * 0 = NaN, as in
 * PyTorch.
 */
#include "tensor/cpu/real/rows.h"
#include "tensor/philox.h"

enum { COUNTERS = 64, CHUNK = 16384 }; /* CHUNK is a multiple of 4 COUNTERS */

static void dropout_chunk(void *context, int64_t begin, int64_t end)
{
    const tni_dropout *a = context;
    uint32_t k0 = (uint32_t)a->seed, k1 = (uint32_t)(a->seed >> 32);
    uint32_t threshold = tni_philox_threshold(a->p);
    REAL scale = (REAL)(1.0 / (1.0 - a->p));
    for (int64_t i = begin; i < end; i += 4 * COUNTERS) {
        uint32_t word[4 * COUNTERS];
        uint64_t counter = a->offset + (uint64_t)i / 4;
#pragma omp simd
        for (int j = 0; j < COUNTERS; j++) {
            uint64_t c = counter + (uint64_t)j;
            uint32_t w0 = (uint32_t)c, w1 = (uint32_t)(c >> 32), w2 = 0, w3 = 0;
            tni_philox4x32(&w0, &w1, &w2, &w3, k0, k1);
            word[4 * j] = w0;
            word[4 * j + 1] = w1;
            word[4 * j + 2] = w2;
            word[4 * j + 3] = w3;
        }
        const REAL *restrict x = (const REAL *)a->x.data + i;
        REAL *restrict y = (REAL *)a->y.data + i;
        int64_t n = TNI_MIN(end - i, 4 * COUNTERS);
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            REAL m = (word[k] >> 8) >= threshold ? scale : 0;
            y[k] = x[k] * m;
        }
    }
}

tn_status K(tni_dropout)(const tni_dropout *a)
{
    return tni_parallel_args(tni_array_numel(&a->x), CHUNK, dropout_chunk, a);
}
