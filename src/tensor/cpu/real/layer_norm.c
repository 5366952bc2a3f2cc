/*
 * layer_norm.c - layer normalisation of the rows of a dense [n, f] array, and its gradient.
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps) with the biased variance; y = xh w + b.
 * Gradient, per row with gw = dy w: dx = rstd (gw - mean(gw) - xh mean(gw xh)), multiplied out;
 * over the rows: dw = sum dy xh, db = sum dy. Ba, Kiros, Hinton: Layer Normalization (2016),
 * section 3.
 *
 * dw and db: each block of rows, whose number depends only on n, sums into its own line; the lines
 * are added in order, in double. So the bits are the same for any number of threads.
 *
 * In f32, the gradient takes dy, x and dx in bf16 and f16 too: a row passes through a buffer then.
 */
#include "tensor/cpu/real/rows.h"

/* A mean this many deviations from 0, squared and inverted, shows its rounding in y. */
#define FAR (sizeof(REAL) == 4 ? 0x1p-12 : 0x1p-80)

typedef struct ln_job {
    const tni_layer_norm *a;
    _Atomic bool failed; /* no memory */
} ln_job;

static void keep_moments(const tni_layer_norm *a, int64_t i, REAL mean, REAL rstd)
{
    if (!a->mean.data) return;
    ((REAL *)a->mean.data)[i] = mean;
    ((REAL *)a->rstd.data)[i] = rstd;
}

/* Row i, where REAL cannot hold its squares, or its mean closely enough. */
static __attribute__((noinline)) void wide_row(ln_job *job, int64_t i)
{
    const tni_layer_norm *a = job->a;
    int64_t f = a->x.size[1];
    REAL *x = (REAL *)a->x.data + i * f, *y = (REAL *)a->y.data + i * f;
    const REAL *w = a->weight.data, *b = a->bias.data;
    tni_array row = { x, REAL_DTYPE, 2, { 1, f }, { 0, 1 } };
    moments m = { 0 };
    if (wide_moments(&row, a->eps, &m) != TN_OK) atomic_store(&job->failed, true);
    keep_moments(a, i, (REAL)m.mean, (REAL)m.rstd);
    for (int64_t j = 0; j < f; j++) {
        double xh = ((double)x[j] - m.mean) * m.rstd * (w ? (double)w[j] : 1.0);
        y[j] = (REAL)(xh + (b ? (double)b[j] : 0.0));
    }
}

static inline void finish_row(ln_job *job, int64_t i, REAL mean, double var)
{
    const tni_layer_norm *a = job->a;
    const int64_t f = a->x.size[1];
    const REAL *restrict w = a->weight.data, *restrict b = a->bias.data;
    const REAL *restrict x = (const REAL *)a->x.data + i * f;
    REAL *restrict y = (REAL *)a->y.data + i * f;
    double least = LEAST_VARIANCE + (double)mean * (double)mean * FAR;
    REAL rstd = (REAL)(1.0 / sqrt(var));
    if (TNI_UNLIKELY(!(var > least && var < INFINITY))) {
        wide_row(job, i);
        return;
    }
    keep_moments(a, i, mean, rstd);
    if (w && b) {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) y[j] = (x[j] - mean) * rstd * w[j] + b[j];
    } else {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) y[j] = (x[j] - mean) * rstd;
        for (int64_t j = 0; w && j < f; j++) y[j] *= w[j];
        for (int64_t j = 0; b && j < f; j++) y[j] += b[j];
    }
}

enum { AHEAD = 8 }; /* short rows in one go: a sum's last additions wait for one another */

static void layer_norm_chunk(void *context, int64_t begin, int64_t end)
{
    ln_job *job = context;
    const int64_t f = job->a->x.size[1];
    const int64_t most = f * (int64_t)sizeof(REAL) <= 4096 ? AHEAD : 1;
    const REAL *x = job->a->x.data;
    for (int64_t i = begin, n; i < end; i += n) {
        REAL mean[AHEAD];
        double var[AHEAD];
        n = TNI_MIN(most, end - i);
        for (int64_t r = 0; r < n; r++) mean[r] = (REAL)(row_sum(x + (i + r) * f, f) / (double)f);
        for (int64_t r = 0; r < n; r++)
            var[r] = row_sum_squares(x + (i + r) * f, mean[r], f) / (double)f + job->a->eps;
        for (int64_t r = 0; r < n; r++) finish_row(job, i + r, mean[r], var[r]);
    }
}

tn_status K(tni_layer_norm)(const tni_layer_norm *a)
{
    ln_job job = { .a = a };
    tni_parallel(a->x.size[0], row_grain(a->x.size[1], 3), layer_norm_chunk, &job);
    return job.failed ? TN_E_NOMEM : TN_OK;
}

/* ---- gradient -------------------------------------------------------------------------------- */

typedef struct lng_job {
    const tni_layer_norm_grad *a;
    REAL *partial;       /* [blocks, 2, f]: dw, db; NULL when neither is wanted */
    tni_scratch buffers; /* [3, f] of dx, dy, x, if these are bf16 or f16 */
    int64_t block_rows, blocks;
} lng_job;

/* One row: dx (unless NULL), and its share of dw and db (unless NULL). gw = dy w is computed twice
 * rather than stored. Inlined where the NULLs are constants, so that the loops have no branches.
 * down: 1, or what keeps x - mean in range. */
static inline __attribute__((always_inline)) void
grad_row(REAL *restrict dx, REAL *restrict dw, REAL *restrict db, const REAL *restrict dy,
         const REAL *restrict x, const REAL *restrict w, REAL mean, REAL rstd, int64_t f, REAL down)
{
    REAL sum_g = 0, sum_gx = 0;
    if (dx) {
#pragma omp simd reduction(+ : sum_g, sum_gx)
        for (int64_t j = 0; j < f; j++) {
            REAL g = w ? dy[j] * w[j] : dy[j];
            sum_g += g;
            sum_gx += g * (x[j] * down - mean * down);
        }
    }
    REAL level = rstd * (sum_g / (REAL)f);
    REAL slope = rstd * (sum_gx * (rstd / down) / (REAL)f);
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        REAL xh = (x[j] * down - mean * down) * (rstd / down);
        if (dw) {
            dw[j] += dy[j] * xh;
            db[j] += dy[j];
        }
        if (dx) {
            REAL g = w ? dy[j] * w[j] : dy[j];
            dx[j] = rstd * g - level - xh * slope;
        }
    }
}

static void layer_norm_grad_chunk(void *context, int64_t begin, int64_t end)
{
    const lng_job *job = context;
    const tni_layer_norm_grad *a = job->a;
    int64_t f = a->x.size[1];
    tn_dtype dtype = a->x.dtype;
    const REAL *w = a->weight.data;
    const size_t row = (size_t)f * sizeof(REAL);
    REAL *own = tni_scratch_own(&job->buffers, 0), *own_dy = tni_scratch_own(&job->buffers, row);
    REAL *own_x = tni_scratch_own(&job->buffers, 2 * row);
    for (int64_t block = begin; block < end; block++) {
        REAL *dw = job->partial ? job->partial + block * 2 * f : NULL;
        REAL *db = job->partial ? dw + f : NULL;
        if (dw) memset(dw, 0, (size_t)(2 * f) * sizeof(REAL));
        int64_t last = TNI_MIN((block + 1) * job->block_rows, a->x.size[0]);
        for (int64_t i = block * job->block_rows; i < last; i++) {
            const REAL *dy = tni_get(a->dy.data, dtype, i * f, f, own_dy);
            const REAL *x = tni_get(a->x.data, dtype, i * f, f, own_x);
            REAL *dx = a->dx.data ? tni_place(a->dx.data, dtype, i * f, own) : NULL;
            REAL mean = ((const REAL *)a->mean.data)[i], rstd = ((const REAL *)a->rstd.data)[i];
            if (TNI_UNLIKELY(rstd < (REAL)0x1p-60)) {
                grad_row(dx, dw, db, dy, x, w, mean, rstd, f, (REAL)0x1p-64);
            } else if (!dx) {
                grad_row(NULL, dw, db, dy, x, NULL, mean, rstd, f, 1);
            } else if (dw) {
                w ? grad_row(dx, dw, db, dy, x, w, mean, rstd, f, 1)
                  : grad_row(dx, dw, db, dy, x, NULL, mean, rstd, f, 1);
            } else {
                w ? grad_row(dx, NULL, NULL, dy, x, w, mean, rstd, f, 1)
                  : grad_row(dx, NULL, NULL, dy, x, NULL, mean, rstd, f, 1);
            }
            if (dx) tni_put(a->dx.data, dtype, i * f, f, dx);
        }
    }
}

enum { COLUMNS = 64 };

/* Adds the lines of all blocks, in order. */
static void combine_columns(const lng_job *job, int64_t begin, int64_t m)
{
    int64_t f = job->a->x.size[1];
    double dw[COLUMNS] = { 0 }, db[COLUMNS] = { 0 };
    for (int64_t block = 0; block < job->blocks; block++) {
        const REAL *line = job->partial + block * 2 * f + begin;
#pragma omp simd
        for (int64_t j = 0; j < m; j++) {
            dw[j] += (double)line[j];
            db[j] += (double)line[f + j];
        }
    }
    for (int64_t j = 0; j < m; j++) {
        if (job->a->dweight.data) ((REAL *)job->a->dweight.data)[begin + j] = (REAL)dw[j];
        if (job->a->dbias.data) ((REAL *)job->a->dbias.data)[begin + j] = (REAL)db[j];
    }
}

static void combine_chunk(void *context, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at += COLUMNS)
        combine_columns(context, at, TNI_MIN(end - at, COLUMNS));
}

tn_status K(tni_layer_norm_grad)(const tni_layer_norm_grad *a)
{
    lng_job job = { .a = a };
    int64_t n = a->x.size[0], f = a->x.size[1];
    /* at most 64 blocks, of at least 16 rows */
    job.block_rows = TNI_MAX(16, (n + 63) / 64);
    job.blocks = (n + job.block_rows - 1) / job.block_rows;
    bool summed = a->dweight.data || a->dbias.data;
    size_t floats = 0, nbytes = 0;
    if (!tni_mul_size((size_t)TNI_MAX(job.blocks * 2, 3), (size_t)f, &floats) ||
        !tni_mul_size(floats, sizeof(REAL), &nbytes))
        return tni_error(TN_E_NOMEM, "tn_layer_norm: rows of %" PRId64 " elements are too large",
                         f);
    if (summed && !(job.partial = tni_alloc(nbytes))) return TN_E_NOMEM;
    job.buffers.each = tni_is_half(a->x.dtype) ? 3 * (size_t)f * sizeof(REAL) : 0;
    tn_status status = tni_parallel_scratch(
        &job.buffers, job.blocks, row_grain(f * job.block_rows, 4), layer_norm_grad_chunk, &job);
    bool large = f * job.blocks >= 65536;
    if (status == TN_OK && summed)
        tni_parallel(f, large ? COLUMNS : TNI_MAX(f, 1), combine_chunk, &job);
    tni_free(job.partial, nbytes);
    return status;
}
