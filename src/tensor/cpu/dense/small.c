/*
 * small.c - a product of so few numbers that BLAS's call, and the cut before it (cut.c), would take
 * longer than the arithmetic. Each sum is in the order of k.
 */
#include <string.h>

#include "tensor/cpu/dense/dense.h"

enum { STRIP = TNI_SMALL_STRIP };
typedef REAL strip
    __attribute__((vector_size(STRIP * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* B's rows one behind the other, since each row of C reads all of them. */
static void turn(const tni_gemm *g, const REAL *b, REAL *to)
{
    for (int64_t k = 0; k < g->k; k++)
        for (int64_t j = 0; j < g->n; j++) *to++ = b[k * g->b_row + j * g->b_col];
}

/* A row of C in strips; the last begins within the one before, and leaves that one's columns. */
TNI_INLINE void wide_row(const tni_gemm *g, const REAL *a, const REAL *b, ptrdiff_t b_row, REAL *c)
{
    const REAL *bias = g->bias;
    const ptrdiff_t a_col = g->a_col;
    for (int64_t j = 0; j < g->n; j += STRIP) {
        int64_t at = j + STRIP <= g->n ? j : g->n - STRIP;
        strip sum = { 0 };
        if (bias) sum = *(const strip *)(bias + at);
        if (g->accumulate) sum += *(const strip *)(c + at);
        const REAL *p = a, *q = b + at;
        for (int64_t k = g->k; k > 0; k--, p += a_col, q += b_row) sum += *p * *(const strip *)q;
        if (at == j)
            *(strip *)(c + j) = sum;
        else
            memcpy(c + j, (const REAL *)&sum + (j - at), (size_t)(g->n - j) * sizeof(REAL));
    }
}

TNI_INLINE void narrow_row(const tni_gemm *g, const REAL *a, const REAL *b, REAL *c)
{
    for (int64_t j = 0; j < g->n; j++) {
        REAL sum = (g->bias ? ((const REAL *)g->bias)[j] : 0) + (g->accumulate ? c[j] : 0);
        for (int64_t k = 0; k < g->k; k++) sum += a[k * g->a_col] * b[k * g->b_row + j * g->b_col];
        c[j] = sum;
    }
}

void K(tni_gemm_small)(const tni_gemm *g)
{
    REAL turned[TNI_SMALL_MOST];
    const bool wide = g->n >= STRIP, turns = wide && g->b_col != 1;
    for (int64_t z = 0; z < g->batch; z++) {
        const REAL *a = (const REAL *)g->a + z * g->a_batch;
        const REAL *b = (const REAL *)g->b + z * g->b_batch;
        REAL *c = (REAL *)g->c + z * g->c_batch;
        if (turns) turn(g, b, turned);
        for (int64_t i = 0; i < g->m; i++, a += g->a_row, c += g->c_row)
            if (wide)
                wide_row(g, a, turns ? turned : b, turns ? g->n : g->b_row, c);
            else
                narrow_row(g, a, b, c);
    }
}
