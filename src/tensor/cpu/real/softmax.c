/*
 * softmax.c - softmax and log-softmax of the rows of a dense [n, c] array, and their gradients.
 *
 * The row's maximum is subtracted first, so that exp never overflows (Goodfellow et al., Deep
 * Learning (2016), section 4.1). A row of -inf gives -inf - -inf = NaN, as in PyTorch; of keys that
 * are seen, 0.
 */
#include "tensor/cpu/real/rows.h"

static void softmax_row(REAL *y, const REAL *x, int64_t c, bool seen)
{
    REAL top = row_max(x, c);
    REAL sum = row_exp(y, x, seen && top == -REAL_INFINITY ? 0 : top, c);
    REAL scale = sum == 0 ? 0 : (REAL)1 / sum;
#pragma omp simd
    for (int64_t j = 0; j < c; j++) y[j] *= scale;
}

static void log_softmax_row(REAL *y, const REAL *x, int64_t c)
{
    REAL top = row_max(x, c);
    REAL log_sum = REAL_LOG(row_exp(NULL, x, top, c));
#pragma omp simd
    for (int64_t j = 0; j < c; j++) {
        /* two subtractions: top may be much larger than either difference */
        y[j] = (x[j] - top) - log_sum;
    }
}

static void softmax_chunk(void *context, int64_t begin, int64_t end)
{
    const tni_softmax *a = context;
    int64_t c = a->x.size[1];
    for (int64_t i = begin; i < end; i++) {
        REAL *y = (REAL *)a->y.data + i * c;
        const REAL *x = (const REAL *)a->x.data + i * c;
        if (a->log)
            log_softmax_row(y, x, c);
        else
            softmax_row(y, x, c, a->seen);
    }
}

tn_status K(tni_softmax)(const tni_softmax *a)
{
    return tni_parallel_args(a->x.size[0], row_grain(a->x.size[1], 8), softmax_chunk, a);
}

/* softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy) */
static void softmax_grad_chunk(void *context, int64_t begin, int64_t end)
{
    const tni_softmax_grad *a = context;
    int64_t c = a->y.size[1];
    for (int64_t i = begin; i < end; i++) {
        REAL *restrict dx = (REAL *)a->dx.data + i * c;
        const REAL *restrict y = (const REAL *)a->y.data + i * c;
        const REAL *restrict dy = (const REAL *)a->dy.data + i * c;
        REAL sum = 0;
        if (a->log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < c; j++) sum += dy[j];
            row_exp(dx, y, 0, c);
#pragma omp simd
            for (int64_t j = 0; j < c; j++) dx[j] = dy[j] - dx[j] * sum;
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < c; j++) sum += dy[j] * y[j];
#pragma omp simd
            for (int64_t j = 0; j < c; j++) dx[j] = y[j] * (dy[j] - sum);
        }
    }
}

tn_status K(tni_softmax_grad)(const tni_softmax_grad *a)
{
    int64_t grain = row_grain(a->y.size[1], a->log ? 6 : 2);
    return tni_parallel_args(a->y.size[0], grain, softmax_grad_chunk, a);
}
