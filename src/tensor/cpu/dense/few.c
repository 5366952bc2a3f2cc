/*
 * few.c - a product of few rows by a B that is stored by columns, as a language model computes that
 * adds one token: C (+)= A B^T (+ bias), A and B f32 or bf16, with sums in f32. Or B is bytes, each
 * column followed by its scales (ops/linear_int8.c).
 *
 * It takes as long as reading B. So B is read where it lies, once: COLUMNS columns at a time, a
 * vector of steps of each, are multiplied by all rows of A. Where these are more than there are
 * registers for the sums, the columns come from the L2 cache the second time. A bf16 becomes an f32
 * by a shift. A sum is in lanes, which are added in pairs at the end: its bits depend on k alone
 * (and on whether there are dot products).
 *
 * It is compiled once more for the dot products of AVX512-BF16, for bf16 alone: a lane is a pair of
 * bf16 there, and its sum takes two products at once.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/dense/vector.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/internal.h"
#include "tensor/math.h"

/* As tile.c: not in the baseline. */
#if defined __AVX2__ || defined TNI_PLAIN

#if defined TNI_BY /* by dots */
#define PRODUCT tni_dots_few_product
enum { DOTS = 1 };
#else
#define PRODUCT K(tni_few_product)
enum { DOTS = 0 };
#endif
/* A square of sums: as many as a vector has lanes. */
enum { COLUMNS = 4, ROWS = LANES / COLUMNS };
/* The next COLUMNS columns are fetched while these are multiplied, into the L1 cache, one after the
 * other: memory reads four columns side by side at half to three quarters of the speed of one
 * (docs/measurements.md). Of columns longer than MOST_RUN bytes, the next RUN bytes of each; where
 * there are no gaps, at least LEAST_AHEAD bytes ahead. Columns of bytes are fetched side by side,
 * AHEAD of them or AHEAD_BYTES further, into the L2 cache. */
enum { RUN = 2048, MOST_RUN = 3072, LEAST_AHEAD = 8192, AHEAD = 16, AHEAD_BYTES = 16384 };

/* LANES signed bytes. */
TNI_INLINE vector bytes(const void *b)
{
#if defined __AVX512F__
    return (vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(b)));
#elif defined __AVX2__
    return (vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(b)));
#else
    typedef int8_t quarters __attribute__((vector_size(LANES), aligned(1), may_alias));
    return __builtin_convertvector(*(const quarters *)b, vector);
#endif
}

/* A vector of f32, or of pairs of bf16. */
typedef float close __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

/* sum + y x. */
TNI_INLINE vector add_product(vector sum, vector y, vector x)
{
#if defined TNI_BY
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)y, (__m512bh)x);
#else
    return sum + y * x;
#endif
}

/* Adds steps i.. of the columns, times steps i.. of the rows of A. item: bytes of B's elements, or
 * of its pairs. As many bytes are fetched from `ahead` on. */
TNI_INLINE void multiply(vector sum[LANES], const float *a, int64_t lda, int rows,
                         const char *const *b, int64_t i, const char *ahead, int item)
{
    vector x[COLUMNS];
    UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        x[c] = item == 1   ? bytes(b[c] + i)
               : item == 2 ? load(b[c], i, LANES, true)
                           : (vector) * (const close *)(b[c] + 4 * i);
        if (ahead && c * LANES * item % 64 == 0) __builtin_prefetch(ahead + c * LANES * item, 0, 3);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        const vector y = *(const vector *)(a + r * lda);
        UNROLL
        for (int c = 0; c < COLUMNS; c++)
            sum[COLUMNS * r + c] = add_product(sum[COLUMNS * r + c], y, x[c]);
    }
}

/* The sums of a square, rows LANES apart, over `size` bytes of each column, which lie `column`
 * bytes apart. A's rows are filled up with zeros. group: of bytes, a multiple of LANES, with one
 * scale, as size is of it. */
TNI_INLINE void sum_square(float *sums, const float *a, int64_t lda, int rows, const char *const *b,
                           int64_t size, int64_t group, int64_t column, int item)
{
    const int64_t whole = size / (LANES * item) * LANES;
    vector sum[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) sum[i] = (vector){ 0 };
    for (int64_t from = 0, end; item > 1 && from < whole; from = end) {
        const int64_t run = size <= MOST_RUN ? whole : RUN / item;
        end = TNI_MIN(from + run, whole);
        const int64_t runs = run == whole && column == size ? 1 : COLUMNS; /* 1: without gaps */
        const int64_t after = TNI_MAX(COLUMNS * column, runs == 1 ? LEAST_AHEAD : 0);
        const char *next = b[0] + (end < whole ? end * item : after);
        const int64_t quarter = tni_up((end - from + runs - 1) / runs, LANES);
        for (int64_t i = from; i < end; next += column) {
            const char *ahead = next;
            for (const int64_t stop = TNI_MIN(i + quarter, end); i < stop;
                 i += LANES, ahead += COLUMNS * LANES * item)
                multiply(sum, a + i, lda, rows, b, i, ahead, item);
        }
    }
    const int64_t further = TNI_MAX(AHEAD * column, AHEAD_BYTES);
    for (int64_t i = 0, at = size; item == 1 && i < size; at += 4) {
        vector part[LANES];
        UNROLL
        for (int p = 0; p < COLUMNS * rows; p++) part[p] = (vector){ 0 };
        for (const int64_t end = i + group; i < end; i += 32) {
            UNROLL
            for (int c = 0; c < COLUMNS; c++) __builtin_prefetch(b[c] + i + further, 0, 2);
            UNROLL
            for (int64_t j = i; j < i + 32; j += LANES)
                multiply(part, a + j, lda, rows, b, j, NULL, item);
        }
        UNROLL
        for (int p = 0; p < COLUMNS * rows; p++) {
            float scale;
            memcpy(&scale, b[p % COLUMNS] + at, sizeof scale);
            sum[p] += part[p] * scale;
        }
    }
    if (item > 1 && whole * item < size) {
        char rest[COLUMNS][4 * LANES] = { { 0 } };
        const char *last[COLUMNS];
        for (int c = 0; c < COLUMNS; c++)
            last[c] = memcpy(rest[c], b[c] + whole * item, (size_t)(size - whole * item));
        multiply(sum, a + whole, lda, rows, last, 0, NULL, item);
    }
    float square[LANES];
    add_lanes(sum, square);
    for (int r = 0; r < rows; r++)
        memcpy(sums + r * LANES, square + r * COLUMNS, COLUMNS * sizeof(float));
}

/* The same for each number of rows, which is a constant there. */
/* clang-format off */
#define CASE(rows, item) case rows: if (rows <= ROWS) sum_square(sums, a, lda, rows, b, size, group, column, item); break;
#define SQUARES(item)                                                                              \
    static void square_##item(float *sums, const float *a, int64_t lda, int64_t n,                 \
                              const char *const *b, int64_t size, int64_t group, int64_t column)   \
    { switch (n) { CASE(1, item) CASE(2, item) CASE(3, item) CASE(4, item) } }
SQUARES(4)
#if defined TNI_BY
#define SQUARE(item) square_4
#else
SQUARES(1)
SQUARES(2)
#define SQUARE(item) ((item) == 1 ? square_1 : (item) == 2 ? square_2 : square_4)
#endif
/* clang-format on */

/* `rows` rows of columns [j, j + n) of C, n at most LANES, from their sums. */
static void write_rows(const tni_product *p, const float *sums, int64_t rows, int64_t j, int64_t n)
{
    const vector bias = p->bias ? load(p->bias, j, n, p->in == TN_BF16) : (vector){ 0 };
    for (int64_t r = 0; r < rows; r++) {
        vector sum = *(const vector *)(sums + r * LANES) + bias;
        if (p->accumulate) sum += load(p->c, r * p->ldc + j, n, false);
        store(sum, p->c, r * p->ldc + j, n, p->out == TN_BF16);
    }
}

bool PRODUCT(const tni_product *p)
{
    const int64_t item = p->groups ? 1 : p->in == TN_BF16 ? 2 : 4, column = p->ldb * item;
    if (p->accumulate && p->out != TN_F32) return false;
    const int64_t row_size = p->k * (DOTS ? 2 : 4);
    /* Dots are a fifth faster where rows of 768 or 8192 numbers do not lie whole ones apart. */
    const int64_t lda = tni_up(row_size, sizeof(vector)) / 4 + (DOTS ? LANES : 0);
    const int64_t group = p->k / TNI_MAX(p->groups, 1);
    float *a = tni_thread_scratch();
    if (!a || p->m * (lda + LANES) > TNI_PRODUCT_SCRATCH / 4) return false;
    float *sums = a + p->m * lda;
    for (int64_t r = 0; r < p->m; r++) {
        float *row = a + r * lda;
        const void *from = DOTS ? (const uint16_t *)p->a + r * p->lda
                                : tni_get(p->a, p->in, r * p->lda, p->k, row);
        if (from != row) memcpy(row, from, (size_t)row_size);
        memset((char *)row + row_size, 0, (size_t)(4 * lda - row_size));
    }
    for (int64_t j = 0; j < p->n; j += COLUMNS) {
        const char *b[COLUMNS];
        for (int c = 0; c < COLUMNS; c++)
            b[c] = (const char *)p->b + TNI_MIN(j + c, p->n - 1) * column;
        for (int64_t r = 0; r < p->m; r += ROWS) {
            const int64_t rows = TNI_MIN(ROWS, p->m - r);
            float *to = sums + r * LANES + j % LANES;
            SQUARE(item)(to, a + r * lda, lda, rows, b, p->k * item, group, column);
        }
        const int64_t from = j / LANES * LANES, n = TNI_MIN(p->n - from, LANES);
        if (j + COLUMNS >= from + n) write_rows(p, sums, p->m, from, n);
    }
    return true;
}

#endif
