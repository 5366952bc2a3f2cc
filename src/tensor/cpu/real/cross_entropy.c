/*
 * cross_entropy.c - cross entropy with class indices over a dense [n, c, d] array of logits, row by
 * row.
 *
 * A row is the c logits of one (i, k); m its largest, s = sum exp(x - m). With class weights w (1
 * without), smoothing e:
 *   row_loss = (1 - e) w[t] (m - x[t] + log s) + e / c (sum_j w[j] (m - x[j]) + W log s)
 *   d row_loss / d x[j] = a (p[j] - [j = t]) + e / c (W p[j] - w[j])
 *   with a = (1 - e) w[t], p = exp(x - m) / s, W = sum w
 * m and s are kept apart: m + log s would lose log s where logits are large.
 * Source: Szegedy et al., Rethinking the Inception Architecture (2016), section 7 (smoothing).
 *
 * d = 1 runs along the classes; d > 1 (images) runs along k, LANES columns at a time. Rows of bf16
 * and f16 are converted one at a time: the logits of a large vocabulary are the largest array of a
 * model, and a second copy of them would be its peak of memory.
 */
#include "tensor/cpu/real/rows.h"

enum { LANES = 64 };

typedef struct ce_job {
    void *dx;
    const void *x;
    REAL *row_loss, *row_weight, *top, *sum;
    const REAL *w;
    const int64_t *target;
    const REAL *drow;
    int64_t drow_stride[2];
    int64_t c, d, ignore;
    int64_t x_row, dx_row;         /* elements from row to row */
    REAL keep, spread, weight_sum; /* 1 - e, e / c, W */
    int64_t blocks;                /* of LANES columns in d */
    tn_dtype dtype, dx_dtype;      /* of x, of dx: REAL, or bf16 or f16 */
    tni_scratch scratch;           /* a row, where one is bf16 or f16 */
} ce_job;

/* A row of x; if it is bf16 or f16, in the memory where one of dx is computed, too. */
static const REAL *row_of(const ce_job *job, int64_t i)
{
    return tni_get(job->x, job->dtype, i * job->x_row, job->c, tni_scratch_own(&job->scratch, 0));
}

/* All of n: by rows, or by blocks of columns. weight: as of row_grain. */
static tn_status run(ce_job *job, int64_t n, int64_t weight, tni_chunk rows, tni_chunk columns)
{
    if (job->d != 1) {
        int64_t grain = row_grain(job->c * TNI_MIN(job->d, LANES), weight);
        return tni_parallel_args(n * job->blocks, grain, columns, job);
    }
    bool narrow = tni_is_half(job->dtype) || tni_is_half(job->dx_dtype);
    job->scratch.each = narrow ? (size_t)job->c * sizeof(REAL) : 0;
    return tni_parallel_scratch(&job->scratch, n, row_grain(job->c, weight), rows, job);
}

static bool ignored(const ce_job *job, int64_t target)
{
    return tni_class_of(target, job->c, job->ignore) == TNI_CLASS_IGNORED;
}

static ce_job ce_job_of(const tni_array *x, const tni_array *target, const tni_array *weight,
                        double smoothing, int64_t ignore)
{
    ce_job job = {
        .x = x->data,
        .w = weight->data,
        .target = target->data,
        .c = x->size[1],
        .d = x->size[2],
        .x_row = x->stride[0],
        .ignore = ignore,
        .dtype = x->dtype,
        .dx_dtype = x->dtype,
        .keep = (REAL)(1.0 - smoothing),
        .spread = x->size[1] > 0 ? (REAL)(smoothing / (double)x->size[1]) : 0,
    };
    double sum = job.w ? row_sum(job.w, job.c) : (double)job.c;
    job.weight_sum = (REAL)sum;
    job.blocks = (job.d + LANES - 1) / LANES;
    return job;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void rows_forward(void *context, int64_t begin, int64_t end)
{
    const ce_job *job = context;
    int64_t c = job->c;
    for (int64_t i = begin; i < end; i++) {
        const REAL *restrict x = row_of(job, i);
        const REAL *restrict w = job->w;
        REAL top = row_max(x, c), total = row_exp(NULL, x, top, c), log_sum = REAL_LOG(total);
        job->top[i] = top;
        job->sum[i] = total;
        int64_t t = job->target[i];
        if (ignored(job, t)) {
            job->row_loss[i] = 0;
            job->row_weight[i] = 0;
            continue;
        }
        REAL wt = w ? w[t] : 1;
        REAL loss = job->keep * wt * ((top - x[t]) + log_sum);
        if (job->spread != 0) {
            REAL sum = 0;
            if (w) {
#pragma omp simd reduction(+ : sum)
                for (int64_t j = 0; j < c; j++) sum += w[j] * (top - x[j]);
            } else {
#pragma omp simd reduction(+ : sum)
                for (int64_t j = 0; j < c; j++) sum += top - x[j];
            }
            loss += job->spread * (sum + job->weight_sum * log_sum);
        }
        job->row_loss[i] = loss;
        job->row_weight[i] = wt;
    }
}

static void columns_forward(void *context, int64_t begin, int64_t end)
{
    const ce_job *job = context;
    int64_t c = job->c, d = job->d;
    for (int64_t item = begin; item < end; item++) {
        int64_t i = item / job->blocks, k0 = item % job->blocks * LANES;
        int64_t m = TNI_MIN(d - k0, LANES);
        const REAL *restrict x = (const REAL *)job->x + i * c * d + k0;
        REAL top[LANES], sum[LANES];
        for (int64_t k = 0; k < m; k++) {
            top[k] = -REAL_INFINITY;
            sum[k] = 0;
        }
        for (int64_t j = 0; j < c; j++) {
#pragma omp simd
            for (int64_t k = 0; k < m; k++) top[k] = x[j * d + k] > top[k] ? x[j * d + k] : top[k];
        }
        for (int64_t j = 0; j < c; j++) {
#pragma omp simd
            for (int64_t k = 0; k < m; k++) sum[k] += REAL_EXP(x[j * d + k] - top[k]);
        }
        REAL log_sum[LANES], spread[LANES];
#pragma omp simd
        for (int64_t k = 0; k < m; k++) {
            log_sum[k] = REAL_LOG(sum[k]);
            spread[k] = job->weight_sum * log_sum[k];
        }
        if (job->spread != 0) {
            for (int64_t j = 0; j < c; j++) {
                REAL wj = job->w ? job->w[j] : 1;
#pragma omp simd
                for (int64_t k = 0; k < m; k++) spread[k] += wj * (top[k] - x[j * d + k]);
            }
        }
        int64_t row = i * d + k0;
        for (int64_t k = 0; k < m; k++) {
            int64_t t = job->target[row + k];
            job->top[row + k] = top[k];
            job->sum[row + k] = sum[k];
            job->row_loss[row + k] = 0;
            job->row_weight[row + k] = 0;
            if (!ignored(job, t)) {
                REAL wt = job->w ? job->w[t] : 1;
                job->row_weight[row + k] = wt;
                REAL loss = job->keep * wt * ((top[k] - x[t * d + k]) + log_sum[k]);
                job->row_loss[row + k] = job->spread != 0 ? loss + job->spread * spread[k] : loss;
            }
        }
    }
}

tn_status K(tni_cross_entropy)(const tni_cross_entropy *a)
{
    int64_t n = a->x.size[0];
    TNI_TRY(row_check_classes("tn_cross_entropy", a->target.data, n * a->x.size[2], a->x.size[1],
                              a->ignore, a->first));
    ce_job job = ce_job_of(&a->x, &a->target, &a->weight, a->smoothing, a->ignore);
    job.row_loss = a->row_loss.data;
    job.row_weight = a->row_weight.data;
    job.top = a->top.data;
    job.sum = a->sum.data;
    return run(&job, n, 8, rows_forward, columns_forward);
}

/* ---- gradient -------------------------------------------------------------------------------- */

static void rows_backward(void *context, int64_t begin, int64_t end)
{
    const ce_job *job = context;
    int64_t c = job->c;
    for (int64_t i = begin; i < end; i++) {
        REAL *dx =
            tni_place(job->dx, job->dx_dtype, i * job->dx_row, tni_scratch_own(&job->scratch, 0));
        const REAL *restrict w = job->w;
        int64_t t = job->target[i];
        if (ignored(job, t)) {
            memset(dx, 0, (size_t)c * sizeof(REAL));
            tni_put(job->dx, job->dx_dtype, i * job->dx_row, c, dx);
            continue;
        }
        REAL g = job->drow[i * job->drow_stride[0]];
        REAL a = g * job->keep * (w ? w[t] : 1);
        REAL b = g * job->spread;
        REAL scale = (a + b * job->weight_sum) / job->sum[i];
        row_exp(dx, row_of(job, i), job->top[i], c); /* dx may be that row */
        if (b != 0 && w) {
#pragma omp simd
            for (int64_t j = 0; j < c; j++) dx[j] = scale * dx[j] - b * w[j];
        } else {
#pragma omp simd
            for (int64_t j = 0; j < c; j++) dx[j] = scale * dx[j] - b;
        }
        dx[t] -= a;
        tni_put(job->dx, job->dx_dtype, i * job->dx_row, c, dx);
    }
}

static void columns_backward(void *context, int64_t begin, int64_t end)
{
    const ce_job *job = context;
    int64_t c = job->c, d = job->d;
    for (int64_t item = begin; item < end; item++) {
        int64_t i = item / job->blocks, k0 = item % job->blocks * LANES;
        int64_t m = TNI_MIN(d - k0, LANES);
        int64_t row = i * d + k0;
        REAL *restrict dx = (REAL *)job->dx + i * c * d + k0;
        const REAL *restrict x = (const REAL *)job->x + i * c * d + k0;
        const REAL *restrict top = job->top + row, *restrict sum = job->sum + row;
        REAL a[LANES], b[LANES], scale[LANES];
        for (int64_t k = 0; k < m; k++) {
            int64_t t = job->target[row + k];
            bool skip = ignored(job, t);
            REAL g = skip ? 0 : job->drow[i * job->drow_stride[0] + (k0 + k) * job->drow_stride[1]];
            a[k] = skip ? 0 : g * job->keep * (job->w ? job->w[t] : 1);
            b[k] = g * job->spread;
            scale[k] = a[k] + b[k] * job->weight_sum;
        }
#pragma omp simd
        for (int64_t k = 0; k < m; k++) scale[k] /= sum[k];
        for (int64_t j = 0; j < c; j++) {
            REAL wj = job->w ? job->w[j] : 1;
#pragma omp simd
            for (int64_t k = 0; k < m; k++)
                dx[j * d + k] = scale[k] * REAL_EXP(x[j * d + k] - top[k]) - b[k] * wj;
        }
        for (int64_t k = 0; k < m; k++) {
            int64_t t = job->target[row + k];
            if (!ignored(job, t)) {
                dx[t * d + k] -= a[k];
                continue;
            }
            for (int64_t j = 0; j < c; j++)
                dx[j * d + k] = 0; /* not NaN, whatever an ignored row holds */
        }
    }
}

tn_status K(tni_cross_entropy_grad)(const tni_cross_entropy_grad *a)
{
    int64_t n = a->x.size[0];
    TNI_TRY(row_check_classes("tn_cross_entropy", a->target.data, n * a->x.size[2], a->x.size[1],
                              a->ignore, 0));
    ce_job job = ce_job_of(&a->x, &a->target, &a->weight, a->smoothing, a->ignore);
    job.dx = a->dx.data;
    job.dx_row = a->dx.stride[0];
    job.dx_dtype = a->dx.dtype;
    job.drow = a->drow.data;
    job.drow_stride[0] = a->drow.stride[0];
    job.drow_stride[1] = a->drow.stride[1];
    job.top = a->top.data;
    job.sum = a->sum.data;
    return run(&job, n, 6, rows_backward, columns_backward);
}
