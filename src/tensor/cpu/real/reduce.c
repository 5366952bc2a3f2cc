/*
 * reduce.c - the inner loops of reductions over REAL.
 *
 * Sums: lanes inside a piece of PIECE elements, pieces added in double. In f32 the error is that of
 * adding PIECE / LANES / 4 numbers, and a few more, however long the row is. Columns add GROUP rows
 * in REAL, as a tree, then in double.
 */
#include "tensor/cpu/pointwise.h"

enum { PIECE = 512, LANES = 16, GROUP = 8 };

#define MATH(f) TNI_CAT3(tn, f, TNI_REAL_NAME)

static tni_acc identity(tni_pass pass)
{
    switch (pass) {
    case TNI_PROD:
    case TNI_ALL: return (tni_acc){ .f = 1.0 };
    case TNI_LARGEST: return (tni_acc){ .f = -INFINITY };
    case TNI_SMALLEST: return (tni_acc){ .f = INFINITY };
    default: return (tni_acc){ .f = 0.0 };
    }
}

static inline double join(tni_pass pass, double a, double b)
{
    switch (pass) {
    case TNI_PROD: return a * b;
    case TNI_LARGEST:
    case TNI_LARGEST_ABS: return b > a || b != b ? b : a;
    case TNI_SMALLEST: return b < a || b != b ? b : a;
    case TNI_ANY: return a != 0.0 || b != 0.0;
    case TNI_ALL: return a != 0.0 && b != 0.0;
    default: return a + b;
    }
}

/* In an exponential an infinite center (a row of -inf, or one with +inf) would give inf - inf. For
 * squares that is the right result. */
static inline REAL usable(tni_pass pass, double center)
{
    return (REAL)(pass == TNI_SUM_SQUARE_DIFF || center - center == 0.0 ? center : 0.0);
}

/* The term of a sum. pass is a constant wherever this is inlined. */
TN_FN REAL term(tni_pass pass, REAL x, REAL center, REAL p)
{
    switch (pass) {
    case TNI_SUM_ABS_POW:
        return p == 2 ? x * x : p == 1 ? MATH(abs)(x) : MATH(pow)(MATH(abs)(x), p);
    case TNI_SUM_SQUARE_DIFF: return (x - center) * (x - center);
    case TNI_SUM_EXP_DIFF: return MATH(exp)(x - center);
    default: return x;
    }
}

/* m elements at stride 1, at most PIECE: whole vectors in 4 x LANES sums, which are added to LANES
 * sums in double (adding up across lanes would cost as much as a piece); what is left over is
 * returned. */
TN_FN double sum_piece(tni_pass pass, int64_t m, const REAL *x, REAL center, REAL p, double *wide)
{
    REAL a[LANES] = { 0 }, b[LANES] = { 0 }, c[LANES] = { 0 }, d[LANES] = { 0 }, rest = 0;
    int64_t i = 0;
    for (; i + 4 * LANES <= m; i += 4 * LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            a[l] += term(pass, x[i + l], center, p);
            b[l] += term(pass, x[i + l + LANES], center, p);
            c[l] += term(pass, x[i + l + 2 * LANES], center, p);
            d[l] += term(pass, x[i + l + 3 * LANES], center, p);
        }
    }
#pragma omp simd
    for (int l = 0; l < LANES; l++) wide[l] += (double)((a[l] + b[l]) + (c[l] + d[l]));
#pragma omp simd reduction(+ : rest)
    for (int64_t k = i; k < m; k++) rest += term(pass, x[k], center, p);
    return (double)rest;
}

TN_FN double sum_row(tni_pass pass, int64_t n, const REAL *x, int64_t stride, REAL center, REAL p)
{
    double wide[LANES] = { 0 };
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        int64_t m = n - begin < PIECE ? n - begin : PIECE;
        const REAL *at = x + begin * stride;
        REAL s[2] = { 0, 0 };
        if (stride == 1) {
            sum += m == PIECE ? sum_piece(pass, PIECE, at, center, p, wide) /* no loops left */
                              : sum_piece(pass, m, at, center, p, wide);
            continue;
        }
        for (int64_t i = 0; i < m; i++) s[i & 1] += term(pass, at[i * stride], center, p);
        sum += (double)(s[0] + s[1]);
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) wide[l] += wide[l + half];
    return sum + wide[0];
}

/* sign * x for the smallest; NaN is detected separately, so that lanes hold numbers. So is anything
 * above -inf: OpenMP starts the lanes of a max at the smallest number, a finite one in clang. */
TN_FN double extreme_row(int64_t n, const REAL *x, int64_t stride, REAL sign, bool absolute)
{
    REAL best = absolute ? (REAL)0 : (REAL)-INFINITY;
    int nan = 0, some = 0;
    if (stride == 1) {
#pragma omp simd reduction(max : best) reduction(| : nan, some)
        for (int64_t i = 0; i < n; i++) {
            REAL v = absolute ? MATH(abs)(x[i]) : sign * x[i];
            best = v > best ? v : best;
            nan |= v != v;
            some |= v > (REAL)-INFINITY;
        }
        if (!some && !absolute) best = (REAL)-INFINITY;
    } else {
        for (int64_t i = 0; i < n; i++) {
            REAL v = absolute ? MATH(abs)(x[i * stride]) : sign * x[i * stride];
            best = v > best ? v : best;
            nan |= v != v;
        }
    }
    return nan ? (double)NAN : (double)(sign * best);
}

static double count_row(int64_t n, const REAL *x, int64_t stride)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += x[i * stride] != (REAL)0;
    return (double)count;
}

static double prod_row(int64_t n, const REAL *x, int64_t stride)
{
    double product = 1.0;
    for (int64_t i = 0; i < n; i++) product *= (double)x[i * stride];
    return product;
}

static void row(tni_pass pass, int64_t n, const void *xx, int64_t stride, tni_acc *acc,
                const tni_acc *center, double p)
{
    const REAL *x = xx;
    REAL c = center ? usable(pass, center->f) : (REAL)0;
    double v = 0.0;
    switch (pass) {
    case TNI_SUM: v = sum_row(TNI_SUM, n, x, stride, c, (REAL)p); break;
    case TNI_SUM_SQUARE_DIFF: v = sum_row(TNI_SUM_SQUARE_DIFF, n, x, stride, c, (REAL)p); break;
    case TNI_SUM_EXP_DIFF: v = sum_row(TNI_SUM_EXP_DIFF, n, x, stride, c, (REAL)p); break;
    case TNI_SUM_ABS_POW:
        v = p == 2 ? sum_row(TNI_SUM_ABS_POW, n, x, stride, c, 2)
                   : sum_row(TNI_SUM_ABS_POW, n, x, stride, c, (REAL)p);
        break;
    case TNI_PROD: v = prod_row(n, x, stride); break;
    case TNI_LARGEST: v = extreme_row(n, x, stride, 1, false); break;
    case TNI_SMALLEST: v = extreme_row(n, x, stride, -1, false); break;
    case TNI_LARGEST_ABS: v = extreme_row(n, x, stride, 1, true); break;
    case TNI_ANY: v = count_row(n, x, stride) != 0.0; break;
    case TNI_ALL: v = count_row(n, x, stride) == (double)n; break;
    }
    acc->f = join(pass, acc->f, v);
}

TN_FN REAL element(const void *x, bool low, int64_t i)
{
    return low ? (REAL)tn_from_bf16(((const uint16_t *)x)[i]) : ((const REAL *)x)[i];
}

/* low: x is bf16. */
TN_FN void sum_cols(tni_pass pass, bool low, int64_t rows, int64_t cols, const void *x, int64_t rs,
                    int64_t cs, tni_acc *acc, const REAL *c, REAL p)
{
    int64_t r = 0;
#define TERM(k) term(pass, element(x, low, (r + (k)) * rs + j), c[j], p)
    for (; cs == 1 && r + GROUP <= rows; r += GROUP) {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            REAL s01 = TERM(0) + TERM(1), s23 = TERM(2) + TERM(3);
            REAL s45 = TERM(4) + TERM(5), s67 = TERM(6) + TERM(7);
            acc[j].f += (double)((s01 + s23) + (s45 + s67));
        }
    }
#undef TERM
    for (; r < rows; r++)
        for (int64_t j = 0; j < cols; j++)
            acc[j].f += (double)term(pass, element(x, low, r * rs + j * cs), c[j], p);
}

TN_FN void join_cols(tni_pass pass, int64_t rows, int64_t cols, const REAL *x, int64_t rs,
                     int64_t cs, tni_acc *acc)
{
    for (int64_t r = 0; r < rows; r++) {
        const REAL *at = x + r * rs;
        for (int64_t j = 0; j < cols; j++) {
            REAL v = pass == TNI_LARGEST_ABS ? MATH(abs)(at[j * cs]) : at[j * cs];
            acc[j].f = join(pass, acc[j].f, (double)v);
        }
    }
}

static void cols(tni_pass pass, int64_t rows, int64_t n, const void *x, int64_t rs, int64_t cs,
                 tni_acc *acc, const tni_acc *center, double p)
{
    REAL c[TNI_BLOCK];
    for (int64_t j = 0; j < n; j++) c[j] = center ? usable(pass, center[j].f) : (REAL)0;
#define SUM(pass)                                                                                  \
    case pass:                                                                                     \
        sum_cols(pass, false, rows, n, x, rs, cs, acc, c, (REAL)p);                                \
        break;
#define JOIN(pass)                                                                                 \
    case pass: join_cols(pass, rows, n, x, rs, cs, acc); break;
    /* clang-format off */
    switch (pass) {
        SUM(TNI_SUM) SUM(TNI_SUM_SQUARE_DIFF) SUM(TNI_SUM_EXP_DIFF) SUM(TNI_SUM_ABS_POW)
        JOIN(TNI_PROD) JOIN(TNI_LARGEST) JOIN(TNI_SMALLEST) JOIN(TNI_LARGEST_ABS) JOIN(TNI_ANY)
        JOIN(TNI_ALL)
    }
    /* clang-format on */
}

static void sum_bf16_cols(int64_t rows, int64_t n, const void *x, int64_t rs, int64_t cs,
                          tni_acc *acc)
{
    const REAL none[TNI_BLOCK] = { 0 };
    sum_cols(TNI_SUM, true, rows, n, x, rs, cs, acc, none, 0);
}

static void combine(tni_pass pass, int64_t n, tni_acc *acc, const tni_acc *other)
{
    if (pass == TNI_SUM) /* most often: a loop without branches */
        for (int64_t j = 0; j < n; j++) acc[j].f += other[j].f;
    else
        for (int64_t j = 0; j < n; j++) acc[j].f = join(pass, acc[j].f, other[j].f);
}

const tni_reducer K(tni_reducer) = { identity, row, cols, combine, sum_bf16_cols };
