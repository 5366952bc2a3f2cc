/*
 * int8.c - products with a weight of bytes: W[o,i] = scale[o, i / group] q[o,i], q a signed byte.
 *
 * A few rows of x take the bytes as they are: four outputs share x's vectors, a group is summed and
 * then scaled, and every byte is read from memory once. For more rows some of W is written as REAL
 * into scratch memory and multiplied by whoever computes such products (choose.c). A row's bits do
 * not depend on how many threads there are, nor on the other rows if they are few.
 */
#if defined __AVX2__
#include <immintrin.h>
#endif

#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"

#if defined __AVX512F__
enum { LANES = 64 / sizeof(REAL) };
#elif defined __AVX2__
enum { LANES = 32 / sizeof(REAL) };
#else
enum { LANES = 16 / sizeof(REAL) };
#endif
typedef REAL lanes
    __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
/* LANES bytes as REAL. (Without the instructions' names gcc 12 takes each byte by itself.) */
#if defined __AVX512F__ && defined TNI_REAL_IS_f32
#define WIDE(q) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(q))))
#define SUM(v) _mm512_reduce_add_ps(v)
#elif defined __AVX2__ && defined TNI_REAL_IS_f32
#define WIDE(q) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(q))))
#else
#define WIDE(q) wide_of(q)
#pragma GCC diagnostic ignored "-Wpsabi" /* inlined: nothing is passed */
TNI_INLINE lanes wide_of(const int8_t *q)
{
    REAL wide[LANES];
    for (int l = 0; l < LANES; l++) wide[l] = (REAL)q[l];
    return *(const lanes *)wide;
}
#endif

#if defined __clang__ && !defined UNROLL
#define UNROLL _Pragma("clang loop unroll(full)")
#elif !defined UNROLL
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* How many bytes are fetched ahead, since the processor by itself does not see that several rows of
 * some hundred bytes are one stream; and rows so long that the first cache cannot hold them. */
enum { AHEAD = 2048, LONG = 2048 };
/* Rows of x that are few; a tile of y by scratch memory, how much of the inner axis at a time. */
enum { FEW = 16, TILE_ROWS = 512, TILE_COLUMNS = 128, TILE_INNER = 512 };

typedef struct int8_job {
    REAL *y;
    const REAL *x, *bias; /* bias: or NULL */
    const int8_t *q;
    const float *scale;
    int64_t m, n, k, in, groups, group; /* y is [m, n], x [m, k], q [.., in] */
    bool turned;
    tni_scratch scratch;
} int8_job;

/* ---- few rows -------------------------------------------------------------------------------- */

#ifndef SUM
#define SUM(v) sum_of(&(v))
static inline REAL sum_of(const lanes *v)
{
    lanes sum = *v;
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}
#endif

/* R outputs from o on for M rows of x from `row` on. */
TNI_INLINE void few(const int8_job *job, int64_t o, int64_t row, const int R, const int M)
{
    const int64_t k = job->k, groups = job->groups, whole = k / LANES * LANES;
    const int8_t *q = job->q + o * k;
    const REAL *x = job->x + row * k;
    const float *scale = job->scale + o * groups;
    lanes sum[4][4] = { 0 };
    for (int64_t g = 0; g < groups; g++) {
        lanes part[4][4] = { 0 };
        const int64_t end = TNI_MIN((g + 1) * job->group, whole);
        for (int64_t j = g * job->group; j < end; j += LANES) {
            if (k > LONG)
                __builtin_prefetch(q + R * (k + j) + AHEAD, 0, 2);
            else
                __builtin_prefetch(q + R * (k + j) + AHEAD);
            UNROLL for (int r = 0; r < R; r++)
            {
                lanes w = WIDE(q + r * k + j);
                UNROLL for (int m = 0; m < M; m++) part[r][m] +=
                    w * *(const lanes *)(x + m * k + j);
            }
        }
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) sum[r][m] +=
            (REAL)scale[r * groups + g] * part[r][m];
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++)
    {
        REAL rest = 0, y = SUM(sum[r][m]);
        for (int64_t j = whole; j < k; j++) rest += (REAL)q[r * k + j] * x[m * k + j];
        if (whole < k) y += (REAL)scale[(r + 1) * groups - 1] * rest;
        job->y[(row + m) * job->n + o + r] = job->bias ? y + job->bias[o + r] : y;
    }
}

/* Four outputs from o on; for long rows at once, since what is fetched ahead of them by twos would
 * not stay in the first cache. */
TNI_INLINE void few_outputs(const int8_job *job, int64_t o, int64_t row)
{
    if (job->k > LONG)
        few(job, o, row, 4, 1);
    else
        few(job, o, row, 2, 1), few(job, o + 2, row, 2, 1);
}

static void few_chunk(void *context, int64_t begin, int64_t end)
{
    const int8_job *job = context;
    const int64_t m = job->m, fours = begin + (end - begin) / 4 * 4;
    for (int64_t o = begin; o < fours; o += 4) {
        int64_t row = 0;
        for (; row + 4 <= m; row += 4) few(job, o, row, 2, 4), few(job, o + 2, row, 2, 4);
        if (row + 2 <= m) few(job, o, row, 4, 2), row += 2;
        if (row < m) few_outputs(job, o, row);
    }
    for (int64_t o = fours; o < end; o++)
        for (int64_t row = 0; row < m; row++) few(job, o, row, 1, 1);
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* to = W[o, from .. from + n) */
static void widen(const int8_job *job, REAL *to, int64_t o, int64_t from, int64_t n)
{
    const int8_t *q = job->q + o * job->in + from;
    const float *scale = job->scale + o * job->groups;
    for (int64_t j = 0; j < n;) {
        int64_t g = (from + j) / job->group, end = TNI_MIN((g + 1) * job->group - from, n);
        REAL s = (REAL)scale[g];
        for (; j < end; j++) to[j] = s * (REAL)q[j];
    }
}

/* y's columns [s, s + n) for m rows from r on. */
static void tile(const int8_job *job, REAL *w, int64_t r, int64_t m, int64_t s, int64_t n)
{
    for (int64_t k0 = 0; k0 < job->k; k0 += TILE_INNER) {
        int64_t k = TNI_MIN(TILE_INNER, job->k - k0), ld = job->turned ? n : k;
        if (job->turned)
            for (int64_t o = 0; o < k; o++) widen(job, w + o * n, k0 + o, s, n);
        else
            for (int64_t o = 0; o < n; o++) widen(job, w + o * k, s + o, k0, k);
        tni_product p = { .m = m, .n = n, .k = k, .lda = job->k, .ldb = ld, .ldc = job->n };
        p.in = p.out = sizeof(REAL) == sizeof(float) ? TN_F32 : TN_F64;
        p.tb = !job->turned;
        p.accumulate = k0 > 0;
        p.bias = k0 == 0 && job->bias ? job->bias + s : NULL;
        p.a = job->x + r * job->k + k0;
        p.b = w;
        p.c = job->y + r * job->n + s;
        tni_product_one(&p);
    }
}

static void many_chunk(void *context, int64_t begin, int64_t end)
{
    const int8_job *job = context;
    int64_t across = (job->n - 1) / TILE_COLUMNS + 1;
    REAL *w = tni_scratch_own(&job->scratch, 0);
    for (int64_t i = begin; i < end; i++) {
        int64_t r = i / across * TILE_ROWS, s = i % across * TILE_COLUMNS;
        tile(job, w, r, TNI_MIN(TILE_ROWS, job->m - r), s, TNI_MIN(TILE_COLUMNS, job->n - s));
    }
}

tn_status K(tni_linear_int8)(const tni_linear_int8 *a)
{
    int8_job job = { .y = a->y.data, .x = a->x.data, .bias = a->bias.data, .q = a->q.data };
    job.scale = a->scale.data;
    job.m = a->y.size[0], job.n = a->y.size[1], job.k = a->x.size[1];
    job.in = a->q.size[1], job.groups = a->scale.size[1];
    job.group = a->group;
    job.turned = a->turned;
    if (job.m == 0 || job.n == 0) return TN_OK;
    if (job.k == 0 || (job.m <= FEW && !a->turned)) {
        job.turned = false;
        job.groups = job.k == 0 ? 0 : job.groups;
        int64_t grain = tni_up(32768 / TNI_MAX(job.k, 1) + 1, 4);
        tni_parallel(job.n, grain, few_chunk, &job);
        return TN_OK;
    }
    job.scratch.blas = true;
    tni_scratch_add(&job.scratch, TILE_COLUMNS * TILE_INNER * sizeof(REAL));
    int64_t tiles = ((job.m - 1) / TILE_ROWS + 1) * ((job.n - 1) / TILE_COLUMNS + 1);
    int64_t grain = tni_grain_of((double)job.m * TILE_COLUMNS * (double)job.k);
    return tni_parallel_scratch(&job.scratch, tiles, grain, many_chunk, &job);
}
