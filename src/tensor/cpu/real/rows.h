/*
 * rows.h - shared by the row kernels: sums over a row of REAL, and how many rows make a chunk.
 *
 * Sums: vector lanes inside a block of BLOCK elements, blocks added in double. In f32 the error is
 * that of adding at most BLOCK / lanes numbers, whatever the length of the row.
 */
#pragma once

#include "tensor/classes.h"
#include "tensor/cpu/pointwise.h"

#ifdef TNI_REAL_IS_f32
#define REAL_EXP(x) tn_exp_part_f32(x)
#else
#define REAL_EXP(x) tn_exp_f64(x)
#endif
#define REAL_LOG(x) TNI_CAT2(tn_log, TNI_REAL_NAME)(x)
#define REAL_SQRT(x) TNI_CAT2(tn_sqrt, TNI_REAL_NAME)(x)
#define REAL_INFINITY ((REAL)INFINITY)
#define REAL_DTYPE (sizeof(REAL) == sizeof(float) ? TN_F32 : TN_F64)

#define BLOCK 2048

/* Rows per chunk: cheap work for about 16k elements; weight: cost of one element relative to a
 * copy. */
static inline int64_t row_grain(int64_t row, int64_t weight)
{
    int64_t work = (row > 0 ? row : 1) * weight;
    return work >= 32768 ? 1 : 32768 / work;
}

/* Which steps i, [first, last) of [begin, end), are at one of n places: at shift + i step. */
static inline void row_inside(int64_t shift, int64_t step, int64_t n, int64_t begin, int64_t end,
                              int64_t *first, int64_t *last)
{
    int64_t low = shift < 0 ? (step - 1 - shift) / step : 0;
    int64_t high = shift >= n ? 0 : (n - 1 - shift) / step + 1;
    *first = TNI_MIN(TNI_MAX(low, begin), end);
    *last = TNI_MAX(TNI_MIN(high, end), *first);
}

/* Checks every class id before anything is written. */
static inline tn_status row_check_classes(const char *function, const int64_t *target, int64_t n,
                                          int64_t c, int64_t ignore, int64_t first)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t t = target[i];
        if (tni_class_of(t, c, ignore) == TNI_CLASS_BAD)
            return tni_error(TN_E_INDEX,
                             "%s: target value %" PRId64 " at row %" PRId64 ": want 0..%" PRId64
                             " (or %" PRId64 " to ignore)%s",
                             function, t, first + i, c - 1, ignore, TNI_CLASS_HINT(t, c));
    }
    return TN_OK;
}

/* The largest of x, ignoring NaN (the caller's exp(x - max) shows it); -inf for an empty row. In
 * explicit lanes: clang does not vectorise a maximum that must respect NaN. The last lanes may
 * overlap. */
static inline REAL row_max(const REAL *x, int64_t n)
{
    enum { L = 64 / sizeof(REAL) };
    REAL top = -REAL_INFINITY;
    if (n < L) {
        for (int64_t j = 0; j < n; j++) top = x[j] > top ? x[j] : top;
        return top;
    }
    REAL lane[L];
    for (int l = 0; l < L; l++) lane[l] = top;
    for (int64_t at = 0; at < n; at += L) {
        const REAL *from = x + TNI_MIN(at, n - L);
#pragma omp simd
        for (int l = 0; l < L; l++) lane[l] = from[l] > lane[l] ? from[l] : lane[l];
    }
    /* a tree, since a chain of L steps would cost as much as the row */
    for (int half = L / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] = lane[l] > lane[l + half] ? lane[l] : lane[l + half];
    return lane[0];
}

/* y = exp(x - shift), unless y is NULL, and the sum. In lanes, the last ones padded with -inf,
 * whose exp is 0: the tail costs one vector instead of several scalar exps. y may be x. */
TNI_INLINE REAL row_exp(REAL *y, const REAL *x, REAL shift, int64_t n)
{
    enum { L = 64 / sizeof(REAL) };
    REAL lane[L];
    for (int l = 0; l < L; l++) lane[l] = 0;
    int64_t at = 0;
    for (; at + L <= n; at += L) {
#pragma omp simd
        for (int l = 0; l < L; l++) {
            REAL e = REAL_EXP(x[at + l] - shift);
            if (y) y[at + l] = e;
            lane[l] += e;
        }
    }
    if (at < n) {
        REAL tail[L];
        for (int l = 0; l < L; l++) tail[l] = at + l < n ? x[at + l] : -REAL_INFINITY;
#pragma omp simd
        for (int l = 0; l < L; l++) tail[l] = REAL_EXP(tail[l] - shift);
        for (int l = 0; l < L; l++) {
            if (at + l < n) {
                lane[l] += tail[l];
                if (y) y[at + l] = tail[l];
            }
        }
    }
    for (int half = L / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

/* The sum of x, or of (x - center)^2. */
TNI_INLINE double row_total(const REAL *x, bool squares, REAL center, int64_t n)
{
    double total = 0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t end = TNI_MIN(b + BLOCK, n);
        REAL sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = b; j < end; j++) sum += squares ? (x[j] - center) * (x[j] - center) : x[j];
        total += (double)sum;
    }
    return total;
}

static inline double row_sum(const REAL *x, int64_t n)
{
    return row_total(x, false, 0, n);
}

static inline double row_sum_squares(const REAL *x, REAL center, int64_t n)
{
    return row_total(x, true, center, n);
}

/* Mean, deviation and 1 / sqrt(variance + eps) of x, [rows, n], in double: for where the sums above
 * are too narrow. */
typedef struct moments {
    double mean, deviation, rstd;
} moments;

#define LEAST_VARIANCE 0x1p-100 /* below, or not finite, the sums above may have left f32's range */
static inline tn_status wide_moments(const tni_array *x, double eps, moments *m)
{
    tni_reduce a = { .x = *x, .p = &(double){ 0 } };
    a.y = (tni_array){ .dtype = TN_F64, .rank = 2, .size = { 1, 1 } };
    a.function = TNI_R_mean;
    a.y.data = &m->mean;
    tn_status status = TNI_CAT2(tni_reduce, TNI_ISA)(&a);
    a.function = TNI_R_std;
    a.y.data = &m->deviation;
    if (status == TN_OK) status = TNI_CAT2(tni_reduce, TNI_ISA)(&a);
    m->rstd = 1.0 / hypot(m->deviation, sqrt(eps));
    return status;
}
