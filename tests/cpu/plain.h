/*
 * plain.h - convolutions by the plainest loops in double, for suites that compare kernels: y and
 * both gradients at once, with the sums of the terms' sizes, to judge errors by.
 */
#ifndef TENON_TESTS_PLAIN_H
#define TENON_TESTS_PLAIN_H

#include "numbers.h"
#include "tensor/kernels.h"

int64_t draw_below(int64_t n);   /* 0 to n - 1 */
double *draw_numbers(int64_t n); /* that every dtype holds, guarded; their sums are exact in f32 */
void spread_numbers(double *x, int64_t n); /* so far apart that sums are rounded */
/* x in dtype, guarded; without x it is NaN. */
void *numbers_as(const double *x, int64_t n, tn_dtype dtype);

/* What a result should be, and the sum of its terms' sizes. */
typedef struct sums {
    double *value, *size;
    int64_t n;
} sums;

sums sums_new(int64_t n);
static inline __attribute__((always_inline)) void sums_add(sums *s, int64_t i, double term)
{
    s->value[i] += term, s->size[i] += fabs(term);
}

enum { Y, DX, DW, KINDS };

typedef struct plain {
    double *x, *w, *dy, *bias;
    sums s[KINDS];
} plain;

/* Of new operands; without a bias, it is NULL. All memory is guarded. */
plain plain_conv(const tni_conv2d_sizes *z, bool bias);

#endif
