/*
 * layer_norm.c - layer normalisation of the rows of a dense [n, f] array, and its gradient; the
 * same with a mean of 0 (RMSNorm), and with a weight and bias per channel (group norm).
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps) with the biased variance; y = xh w + b.
 * Gradient, per row with gw = dy w: dx = rstd (gw - mean(gw) - xh mean(gw xh)), multiplied out;
 * over the rows: dw = sum dy xh, db = sum dy. Ba, Kiros, Hinton: Layer Normalization (2016),
 * section 3. RMSNorm has no terms of mean and db. In group norm w, b, dw and db belong to planes of
 * the row: sums of dy and dy (x - mean) per plane give all four, in one pass.
 *
 * dw and db: each block of rows (in group norm each sample), whose number depends only on n, sums
 * into its own line; the lines are added in order, in double. So the bits are the same for any
 * number of threads.
 *
 * In f32, the gradient takes dy, x and dx in bf16 and f16 too: a row passes through a buffer then,
 * and so does one that is added to dx.
 */
#include "tensor/cpu/real/rows.h"

/* A mean this many deviations from 0, squared and inverted, shows its rounding in y. */
#define FAR (sizeof(REAL) == 4 ? 0x1p-12 : 0x1p-80)

typedef struct ln_job {
    const tni_layer_norm *a;
    int64_t n, f;        /* rows, and their elements */
    _Atomic bool failed; /* no memory */
} ln_job;

static void keep_moments(const tni_layer_norm *a, int64_t i, REAL mean, REAL rstd)
{
    if (a->mean.data) ((REAL *)a->mean.data)[i] = mean;
    if (a->rstd.data) ((REAL *)a->rstd.data)[i] = rstd;
}

/* The planes of a row: per channels, from row i's first one on. */
static int64_t row_channels(const tni_norm_rows *r, int64_t i, int64_t *per)
{
    *per = r->groups > 0 ? r->channels / r->groups : 1;
    return r->groups > 0 ? i % r->groups * *per : 0;
}

/* Row i, where REAL cannot hold its squares, or its mean closely enough. */
static __attribute__((noinline)) void wide_row(ln_job *job, int64_t i)
{
    const tni_layer_norm *a = job->a;
    int64_t f = job->f, per, first = row_channels(&a->rows, i, &per);
    int64_t plane = a->rows.groups > 0 ? f / per : 1;
    REAL *x = (REAL *)a->x.data + i * f, *y = (REAL *)a->y.data + i * f;
    const REAL *w = a->weight.data, *b = a->bias.data;
    tni_array row = { x, REAL_DTYPE, 2, { 1, f }, { 0, 1 } };
    moments m = { 0 };
    if (wide_moments(&row, a->eps, &m) != TN_OK) atomic_store(&job->failed, true);
    if (a->rows.rms) { /* mean x^2 = var + mean^2 */
        m.rstd = 1.0 / hypot(hypot(m.deviation, m.mean), sqrt(a->eps));
        m.mean = 0;
    }
    keep_moments(a, i, (REAL)m.mean, (REAL)m.rstd);
    for (int64_t j = 0; j < f; j++) {
        int64_t c = first + j / plane;
        double xh = ((double)x[j] - m.mean) * m.rstd * (w ? (double)w[c] : 1.0);
        y[j] = (REAL)(xh + (b ? (double)b[c] : 0.0));
    }
}

/* y of a row of group norm. */
static void finish_planes(const tni_layer_norm *a, int64_t i, int64_t f, REAL mean, REAL rstd)
{
    int64_t per, c = row_channels(&a->rows, i, &per), plane = f / per;
    const REAL *w = a->weight.data, *b = a->bias.data;
    const REAL *restrict x = (const REAL *)a->x.data + i * f;
    REAL *restrict y = (REAL *)a->y.data + i * f;
    for (int64_t end = c + per; c < end; c++, x += plane, y += plane) {
        const REAL scale = w ? rstd * w[c] : rstd, shift = b ? b[c] : 0;
#pragma omp simd
        for (int64_t j = 0; j < plane; j++) y[j] = (x[j] - mean) * scale + shift;
    }
}

static inline void finish_row(ln_job *job, int64_t i, REAL mean, double var)
{
    const tni_layer_norm *a = job->a;
    const int64_t f = job->f;
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
    if (a->rows.groups > 0) {
        finish_planes(a, i, f, mean, rstd);
    } else if (w && b) {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) y[j] = (x[j] - mean) * rstd * w[j] + b[j];
    } else if (w) {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) y[j] = (x[j] - mean) * rstd * w[j];
    } else {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) y[j] = (x[j] - mean) * rstd;
        for (int64_t j = 0; b && j < f; j++) y[j] += b[j];
    }
}

enum { AHEAD = 8 }; /* short rows in one go: a sum's last additions wait for one another */

static void layer_norm_chunk(void *context, int64_t begin, int64_t end)
{
    ln_job *job = context;
    const int64_t f = job->f;
    const bool rms = job->a->rows.rms;
    const int64_t most = f * (int64_t)sizeof(REAL) <= 4096 ? AHEAD : 1;
    const REAL *x = job->a->x.data;
    for (int64_t i = begin, n; i < end; i += n) {
        REAL mean[AHEAD];
        double var[AHEAD];
        n = TNI_MIN(most, end - i);
        for (int64_t r = 0; r < n; r++)
            mean[r] = rms ? 0 : (REAL)(row_sum(x + (i + r) * f, f) / (double)f);
        for (int64_t r = 0; r < n; r++)
            var[r] = row_sum_squares(x + (i + r) * f, mean[r], f) / (double)f + job->a->eps;
        for (int64_t r = 0; r < n; r++) finish_row(job, i + r, mean[r], var[r]);
    }
}

tn_status K(tni_layer_norm)(const tni_layer_norm *a)
{
    int64_t parts = TNI_MAX(a->rows.groups, 1);
    ln_job job = { .a = a, .n = a->x.size[0] * parts, .f = a->x.size[1] / parts };
    tni_parallel(job.n, row_grain(job.f, 3), layer_norm_chunk, &job);
    return job.failed ? TN_E_NOMEM : TN_OK;
}

/* ---- gradient -------------------------------------------------------------------------------- */

typedef struct lng_job {
    const tni_layer_norm_grad *a;
    REAL *partial;                     /* [blocks, 2, width]: dw, db; NULL when neither is wanted */
    tni_scratch buffers;               /* three rows of dx, dy, x, if these are bf16 or f16 */
    int64_t block_rows, blocks, width; /* of group norm a block is a sample, cut into its rows */
} lng_job;

/* One row: dx (unless NULL), and its share of dw and db (unless NULL). gw = dy w is computed twice
 * rather than stored. Inlined where the NULLs are constants, so that the loops have no branches.
 * down: 1, or what keeps x - mean in range. rms: of a row without a mean, which has no db. */
TNI_INLINE void grad_row(REAL *restrict dx, REAL *restrict dw, REAL *restrict db,
                         const REAL *restrict dy, const REAL *restrict x, const REAL *restrict w,
                         REAL mean, REAL rstd, int64_t f, REAL down, bool rms)
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
    REAL level = rms ? 0 : rstd * (sum_g / (REAL)f);
    REAL slope = rstd * (sum_gx * (rstd / down) / (REAL)f);
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        REAL xh = (x[j] * down - mean * down) * (rstd / down);
        if (dw) {
            dw[j] += dy[j] * xh;
            if (!rms) db[j] += dy[j];
        }
        if (dx) {
            REAL g = w ? dy[j] * w[j] : dy[j];
            dx[j] = rstd * g - level - xh * slope;
        }
    }
}

/* The same where that is no constant. */
TNI_INLINE void grad_any_row(REAL *dx, REAL *dw, REAL *db, const REAL *dy, const REAL *x,
                             const REAL *w, REAL mean, REAL rstd, int64_t f, bool rms)
{
    if (TNI_UNLIKELY(rstd < (REAL)0x1p-60)) {
        grad_row(dx, dw, db, dy, x, w, mean, rstd, f, (REAL)0x1p-64, rms);
    } else if (!dx) {
        grad_row(NULL, dw, db, dy, x, NULL, mean, rstd, f, 1, rms);
    } else if (dw) {
        w ? grad_row(dx, dw, db, dy, x, w, mean, rstd, f, 1, rms)
          : grad_row(dx, dw, db, dy, x, NULL, mean, rstd, f, 1, rms);
    } else {
        w ? grad_row(dx, NULL, NULL, dy, x, w, mean, rstd, f, 1, rms)
          : grad_row(dx, NULL, NULL, dy, x, NULL, mean, rstd, f, 1, rms);
    }
}

/* A row of group norm: per planes of n elements each. dw and db: this sample's. dx may be NULL. */
static void grad_planes(REAL *restrict dx, REAL *restrict dw, REAL *restrict db,
                        const REAL *restrict dy, const REAL *restrict x, const REAL *restrict w,
                        REAL mean, REAL rstd, int64_t per, int64_t n)
{
    const REAL down = rstd < (REAL)0x1p-60 ? (REAL)0x1p-64 : 1; /* as grad_row */
    double sum_g = 0, sum_gx = 0, f = (double)(per * n);
    for (int64_t k = 0; k < per; k++) {
        double all_g = 0, all_gx = 0;
        for (int64_t at = k * n, end; at < (k + 1) * n; at = end) {
            REAL g = 0, gx = 0;
            end = TNI_MIN(at + BLOCK, (k + 1) * n);
#pragma omp simd reduction(+ : g, gx)
            for (int64_t j = at; j < end; j++) {
                g += dy[j];
                gx += dy[j] * (x[j] * down - mean * down);
            }
            all_g += (double)g;
            all_gx += (double)gx;
        }
        dw[k] = (REAL)(all_gx * (double)(rstd / down));
        db[k] = (REAL)all_g;
        sum_g += all_g * (w ? (double)w[k] : 1.0);
        sum_gx += all_gx * (w ? (double)w[k] : 1.0);
    }
    const REAL level = rstd * (REAL)(sum_g / f), scale = rstd / down;
    const REAL slope = rstd * ((REAL)(sum_gx / f) * scale);
    for (int64_t k = 0; dx && k < per; k++) {
        const REAL by = w ? rstd * w[k] : rstd;
#pragma omp simd
        for (int64_t j = k * n; j < (k + 1) * n; j++)
            dx[j] = by * dy[j] - level - (x[j] * down - mean * down) * scale * slope;
    }
}

static void layer_norm_grad_chunk(void *context, int64_t begin, int64_t end)
{
    const lng_job *job = context;
    const tni_layer_norm_grad *a = job->a;
    const int64_t parts = TNI_MAX(a->rows.groups, 1), f = a->x.size[1] / parts;
    const bool groups = a->rows.groups > 0;
    const REAL *w = a->weight.data;
    const size_t row = (size_t)f * sizeof(REAL);
    REAL *own = tni_scratch_own(&job->buffers, 0), *own_dy = tni_scratch_own(&job->buffers, row);
    REAL *own_x = tni_scratch_own(&job->buffers, 2 * row);
    for (int64_t block = begin; block < end; block++) {
        REAL *dw = job->partial ? job->partial + block / parts * 2 * job->width : NULL;
        REAL *db = job->partial ? dw + job->width : NULL;
        if (dw && !groups) memset(dw, 0, (size_t)(2 * f) * sizeof(REAL));
        int64_t last = TNI_MIN((block + 1) * job->block_rows, a->x.size[0] * parts);
        for (int64_t i = block * job->block_rows; i < last; i++) {
            const REAL *dy = tni_get(a->dy.data, a->dy.dtype, i * f, f, own_dy);
            const REAL *x = tni_get(a->x.data, a->x.dtype, i * f, f, own_x);
            REAL *to = a->dx.data ? tni_place(a->dx.data, a->dx.dtype, i * f, own) : NULL;
            REAL *dx = a->add ? own : to;
            REAL rstd = ((const REAL *)a->rstd.data)[i];
            REAL mean = a->rows.rms ? 0 : ((const REAL *)a->mean.data)[i];
            int64_t per, c = row_channels(&a->rows, i, &per);
            if (groups)
                grad_planes(dx, dw + c, db + c, dy, x, w ? w + c : NULL, mean, rstd, per, f / per);
            else if (a->rows.rms)
                grad_any_row(dx, dw, NULL, dy, x, w, 0, rstd, f, true);
            else
                grad_any_row(dx, dw, db, dy, x, w, mean, rstd, f, false);
            for (int64_t j = 0; dx != to && j < f; j++) to[j] += dx[j];
            if (dx) tni_put(a->dx.data, a->dx.dtype, i * f, f, dx);
        }
    }
}

enum { COLUMNS = 64 };

/* Adds the lines of all blocks, in order. */
static void combine_chunk(void *context, int64_t begin, int64_t end)
{
    const lng_job *job = context;
    int64_t f = job->width;
    for (int64_t at = begin, m; at < end; at += m) {
        double dw[COLUMNS] = { 0 }, db[COLUMNS] = { 0 };
        m = TNI_MIN(end - at, COLUMNS);
        for (int64_t block = 0; block < job->blocks; block++) {
            const REAL *line = job->partial + block * 2 * f + at;
#pragma omp simd
            for (int64_t j = 0; j < m; j++) {
                dw[j] += (double)line[j];
                db[j] += (double)line[f + j];
            }
        }
        for (int64_t j = 0; j < m; j++) {
            if (job->a->dweight.data) ((REAL *)job->a->dweight.data)[at + j] = (REAL)dw[j];
            if (job->a->dbias.data) ((REAL *)job->a->dbias.data)[at + j] = (REAL)db[j];
        }
    }
}

tn_status K(tni_layer_norm_grad)(const tni_layer_norm_grad *a)
{
    int64_t n = a->x.size[0], parts = TNI_MAX(a->rows.groups, 1), f = a->x.size[1] / parts;
    const bool groups = a->rows.groups > 0;
    lng_job job = { .a = a, .width = groups ? a->rows.channels : f };
    /* at most 64 blocks, of at least 16 rows */
    job.block_rows = groups ? 1 : TNI_MAX(16, (n + 63) / 64);
    job.blocks = (n + job.block_rows - 1) / job.block_rows;
    bool summed = groups || a->dweight.data || a->dbias.data;
    size_t floats = 0, nbytes = 0;
    if (!tni_mul_size((size_t)TNI_MAX(job.blocks * 2, 3), (size_t)TNI_MAX(job.width, f), &floats) ||
        !tni_mul_size(floats, sizeof(REAL), &nbytes))
        return tni_error(TN_E_NOMEM, "tn_layer_norm: rows of %" PRId64 " elements are too large",
                         f);
    if (summed && !(job.partial = tni_alloc(nbytes))) return TN_E_NOMEM;
    job.buffers.each = tni_is_half(a->dy.dtype) || a->add ? 3 * (size_t)f * sizeof(REAL) : 0;
    tn_status status =
        tni_parallel_scratch(&job.buffers, job.blocks * parts, row_grain(f * job.block_rows, 4),
                             layer_norm_grad_chunk, &job);
    bool large = job.width * job.blocks >= 65536;
    if (status == TN_OK && summed)
        tni_parallel(job.width, large ? COLUMNS : TNI_MAX(job.width, 1), combine_chunk, &job);
    tni_free(job.partial, nbytes);
    return status;
}
