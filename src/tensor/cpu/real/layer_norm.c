/*
 * layer_norm.c - layer normalisation of the rows of a dense [n, f] array, and its gradient.
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps) with the biased variance; y = xh w + b.
 * Gradient, per row with gw = dy w: dx = rstd (gw - mean(gw) - xh mean(gw xh));
 * over the rows: dw = sum dy xh, db = sum dy. Ba, Kiros, Hinton: Layer Normalization (2016), section 3.
 *
 * dw and db: blocks of rows, whose number depends on n alone, each sum into a line of their own; the lines
 * are added in order, in double. So the bits are the same for any number of threads.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/real/rows.h"

typedef struct ln_job {
    REAL *y, *mean, *rstd;
    const REAL *x, *w, *b;
    int64_t f;
    double eps;
} ln_job;

static void layer_norm_chunk(void *context, int64_t begin, int64_t end)
{
    const ln_job *job = context;
    int64_t f = job->f;
    const REAL *restrict w = job->w, *restrict b = job->b;
    for (int64_t i = begin; i < end; i++) {
        const REAL *restrict x = job->x + i * f;
        REAL *restrict y = job->y + i * f;
        REAL mean = (REAL)(row_sum(x, f) / (double)f);
        REAL rstd = (REAL)(1.0 / sqrt(row_sum_squares(x, mean, f) / (double)f + job->eps));
        if (job->mean) {
            job->mean[i] = mean;
            job->rstd[i] = rstd;
        }
        if (w && b) {
#pragma omp simd
            for (int64_t j = 0; j < f; j++) {
                y[j] = (x[j] - mean) * rstd * w[j] + b[j];
            }
        } else {
#pragma omp simd
            for (int64_t j = 0; j < f; j++) {
                y[j] = (x[j] - mean) * rstd;
            }
            for (int64_t j = 0; w && j < f; j++) {
                y[j] *= w[j];
            }
            for (int64_t j = 0; b && j < f; j++) {
                y[j] += b[j];
            }
        }
    }
}

tn_status K(tni_layer_norm)(const tni_array *y, const tni_array *mean, const tni_array *rstd, const tni_array *x,
                            const tni_array *weight, const tni_array *bias, double eps)
{
    ln_job job = {.y = y->data, .mean = mean->data, .rstd = rstd->data, .x = x->data, .w = weight->data,
                  .b = bias->data, .f = x->size[1], .eps = eps};
    tni_parallel(x->size[0], row_grain(job.f, 3), layer_norm_chunk, &job);
    return TN_OK;
}

/* ---- gradient ---------------------------------------------------------------------------------- */

typedef struct lng_job {
    REAL *dx, *dw, *db;
    REAL *partial; /* [blocks, 2, f]: dw, db; NULL when neither is wanted */
    const REAL *dy, *x, *mean, *rstd, *w;
    int64_t n, f, block_rows, blocks;
} lng_job;

/* dx of one row; gw = dy w is made twice rather than stored */
static void dx_row(REAL *restrict dx, const REAL *restrict dy, const REAL *restrict x, const REAL *restrict w,
                   REAL mean, REAL rstd, int64_t f)
{
    REAL sum_g = 0, sum_gx = 0;
    if (w) {
#pragma omp simd reduction(+ : sum_g, sum_gx)
        for (int64_t j = 0; j < f; j++) {
            REAL g = dy[j] * w[j];
            sum_g += g;
            sum_gx += g * ((x[j] - mean) * rstd);
        }
    } else {
#pragma omp simd reduction(+ : sum_g, sum_gx)
        for (int64_t j = 0; j < f; j++) {
            sum_g += dy[j];
            sum_gx += dy[j] * ((x[j] - mean) * rstd);
        }
    }
    REAL mean_g = sum_g / (REAL)f;
    REAL mean_gx = sum_gx / (REAL)f;
    if (w) {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) {
            dx[j] = rstd * (dy[j] * w[j] - mean_g - (x[j] - mean) * rstd * mean_gx);
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < f; j++) {
            dx[j] = rstd * (dy[j] - mean_g - (x[j] - mean) * rstd * mean_gx);
        }
    }
}

static void layer_norm_grad_chunk(void *context, int64_t begin, int64_t end)
{
    const lng_job *job = context;
    int64_t f = job->f;
    for (int64_t block = begin; block < end; block++) {
        REAL *restrict dw = job->partial ? job->partial + block * 2 * f : NULL;
        REAL *restrict db = job->partial ? dw + f : NULL;
        if (dw) {
            memset(dw, 0, (size_t)(2 * f) * sizeof(REAL));
        }
        int64_t last = TNI_MIN((block + 1) * job->block_rows, job->n);
        for (int64_t i = block * job->block_rows; i < last; i++) {
            const REAL *restrict x = job->x + i * f;
            const REAL *restrict dy = job->dy + i * f;
            REAL mean = job->mean[i];
            REAL rstd = job->rstd[i];
            if (job->dx) {
                dx_row(job->dx + i * f, dy, x, job->w, mean, rstd, f);
            }
            if (dw) {
#pragma omp simd
                for (int64_t j = 0; j < f; j++) {
                    dw[j] += dy[j] * ((x[j] - mean) * rstd);
                    db[j] += dy[j];
                }
            }
        }
    }
}

/* adds the lines of all blocks, in order */
static void combine_chunk(void *context, int64_t begin, int64_t end)
{
    const lng_job *job = context;
    for (int64_t j = begin; j < end; j++) {
        double dw = 0, db = 0;
        for (int64_t block = 0; block < job->blocks; block++) {
            dw += (double)job->partial[block * 2 * job->f + j];
            db += (double)job->partial[(block * 2 + 1) * job->f + j];
        }
        if (job->dw) {
            job->dw[j] = (REAL)dw;
        }
        if (job->db) {
            job->db[j] = (REAL)db;
        }
    }
}

tn_status K(tni_layer_norm_grad)(const tni_array *dx, const tni_array *dweight, const tni_array *dbias,
                                 const tni_array *dy, const tni_array *x, const tni_array *mean,
                                 const tni_array *rstd, const tni_array *weight)
{
    lng_job job = {.dx = dx->data, .dw = dweight->data, .db = dbias->data, .dy = dy->data, .x = x->data,
                   .mean = mean->data, .rstd = rstd->data, .w = weight->data, .n = x->size[0],
                   .f = x->size[1]};
    /* at most 128 blocks, of at least 16 rows */
    job.block_rows = TNI_MAX(16, (job.n + 127) / 128);
    job.blocks = (job.n + job.block_rows - 1) / job.block_rows;
    size_t nbytes = 0;
    if (job.dw || job.db) {
        size_t count;
        if (!tni_mul_size((size_t)job.blocks * 2, (size_t)job.f, &count) ||
            !tni_mul_size(count, sizeof(REAL), &nbytes)) {
            return tni_error(TN_E_NOMEM, "tn_layer_norm: rows of %lld elements are too large", (long long)job.f);
        }
        nbytes = TNI_MAX(nbytes, 64);
        job.partial = tni_alloc(nbytes);
        if (!job.partial) {
            return TN_E_NOMEM;
        }
    }
    tni_parallel(job.blocks, row_grain(job.f * job.block_rows, 4), layer_norm_grad_chunk, &job);
    if (job.partial) {
        tni_parallel(job.f, row_grain(job.blocks, 4), combine_chunk, &job);
        tni_free(job.partial, nbytes);
    }
    return TN_OK;
}
