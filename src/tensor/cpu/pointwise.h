/*
 * pointwise.h - the inner loops behind the pointwise and reduction slots.
 *
 * Everything computes in one of three types: float (for f32 and the half-precision floats), double,
 * int64_t (for integers and bool); other dtypes pass through buffers of BLOCK elements. A row is
 * one strided loop.
 */
#pragma once

#include "tensor/cpu/cpu.h"
#include "tensor/formulas.h"

enum { TNI_BLOCK = 512 }; /* elements of a conversion buffer */

/* y[i] = f(a[i as], b[i bs], c[i as]), of the operands that f has. A stride is 1, or 0 where
 * row_text.h has a loop for it. p: f's parameters. y may be an operand; of predicates it has bytes.
 */
typedef void (*tni_row)(int64_t n, void *y, const void *a, int64_t as, const void *b, int64_t bs,
                        const void *c, const double *p);

extern const tni_row K32(tni_unary_rows)[TNI_U_COUNT], K64(tni_unary_rows)[TNI_U_COUNT];
extern const tni_row K32(tni_binary_rows)[TNI_B_COUNT], K64(tni_binary_rows)[TNI_B_COUNT];
extern const tni_row K32(tni_ternary_rows)[TNI_T_COUNT], K64(tni_ternary_rows)[TNI_T_COUNT];
/* For rows of bf16 alone, all strides 1; NULL for heavy formulas and predicates. */
extern const tni_row K32(tni_unary_pairs)[TNI_U_COUNT], K32(tni_binary_pairs)[TNI_B_COUNT];
/* Special rows for results that are rounded to bf16 or f16; NULL: there is none. */
extern const tni_row K32(tni_half_unary)[TNI_U_COUNT], K32(tni_half_binary)[TNI_B_COUNT];
#ifndef TNI_REAL_NAME
/* int64_t; NULL where there is no such formula */
extern const tni_row K(tni_unary_rows)[TNI_U_COUNT];
extern const tni_row K(tni_binary_rows)[TNI_B_COUNT];
extern const tni_row K(tni_ternary_rows)[TNI_T_COUNT];
#endif

#define TNI_LOAD TNI_CAT2(tni_load, TNI_ISA)
#define TNI_STORE TNI_CAT2(tni_store, TNI_ISA)
/* n elements of dtype at stride -> a dense buffer of type (TN_F32, TN_F64, TN_I64), and back. */
void TNI_LOAD(tn_dtype type, int64_t n, void *to, const void *from, tn_dtype dtype, int64_t stride);
void TNI_STORE(tn_dtype type, int64_t n, void *to, tn_dtype dtype, int64_t stride,
               const void *from);

/* Elements of f32 or f64, or of bf16 or f16 as f32, from `at` on: n of them to read, where they are
 * or in room; where to compute them, which tni_put then brings to their place. */
static inline const void *tni_get(const void *x, tn_dtype dtype, int64_t at, int64_t n, void *room)
{
    if (!tni_is_half(dtype)) return (const char *)x + at * (dtype == TN_F64 ? 8 : 4);
    TNI_LOAD(TN_F32, n, room, (const uint16_t *)x + at, dtype, 1);
    return room;
}
static inline void *tni_place(void *y, tn_dtype dtype, int64_t at, void *room)
{
    return tni_is_half(dtype) ? room : (char *)y + at * (dtype == TN_F64 ? 8 : 4);
}
static inline void tni_put(void *y, tn_dtype dtype, int64_t at, int64_t n, const void *room)
{
    if (tni_is_half(dtype)) TNI_STORE(TN_F32, n, (uint16_t *)y + at, dtype, 1, room);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Sums and extremes of reals accumulate in double, of integers in int64_t (wrapping around). */
typedef union tni_acc {
    double f;
    int64_t i;
} tni_acc;

/* One pass over the data. The last two look at a center per result: the mean, the maximum. */
typedef enum tni_pass {
    TNI_SUM,
    TNI_PROD,
    TNI_LARGEST, /* NaN wins */
    TNI_SMALLEST,
    TNI_LARGEST_ABS,
    TNI_ANY,
    TNI_ALL,
    TNI_SUM_ABS_POW,     /* sum |x|^p */
    TNI_SUM_SQUARE_DIFF, /* sum (x - center)^2 */
    TNI_SUM_EXP_DIFF     /* sum e^(x - center) */
} tni_pass;

typedef struct tni_reducer {
    tni_acc (*identity)(tni_pass pass);
    /* acc = acc o the n elements at stride */
    void (*row)(tni_pass pass, int64_t n, const void *x, int64_t stride, tni_acc *acc,
                const tni_acc *center, double p);
    /* acc[j] = acc[j] o x[r][j] for all rows r; cols <= TNI_BLOCK */
    void (*cols)(tni_pass pass, int64_t rows, int64_t cols, const void *x, int64_t row_stride,
                 int64_t col_stride, tni_acc *acc, const tni_acc *center, double p);
    /* acc[j] = acc[j] o other[j] */
    void (*combine)(tni_pass pass, int64_t n, tni_acc *acc, const tni_acc *other);
    /* cols of the pass TNI_SUM, where x is bf16 */
    void (*sum_bf16)(int64_t rows, int64_t cols, const void *x, int64_t row_stride,
                     int64_t col_stride, tni_acc *acc);
} tni_reducer;

extern const tni_reducer K32(tni_reducer), K64(tni_reducer);
#ifndef TNI_REAL_NAME
extern const tni_reducer K(tni_reducer);
#endif
