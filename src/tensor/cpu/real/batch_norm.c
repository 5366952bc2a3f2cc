/*
 * batch_norm.c - batch normalisation of a dense [n, c, s] array per channel, and its gradient.
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps), y = w xh + b, over the N = n s values of a
 * channel, with the biased variance; running_var moves towards the unbiased one (N - 1).
 * Gradient (Ioffe and Szegedy, Batch Normalization (2015), section 3), with sums over the channel:
 *   db = sum dy, dw = sum dy xh, dx = w rstd (dy - db / N - xh dw / N)
 * With running statistics the last two terms of dx vanish.
 *
 * Along planes one pass over the data takes sum and squares about a first guess of the mean; where
 * the guess was further off than a standard deviation, squares about the mean take another. Along
 * columns there are always two. Sums are added in double.
 * Two layouts: s >= COLUMNS_BELOW works along the s values of a plane, one item per
 * (channel, block of samples); below it (BatchNorm1d has s = 1) along the columns of the [n, c s]
 * matrix, one item per group of channels. Items and blocks depend on the sizes alone; partial sums
 * of blocks are added in order.
 *
 * In f32, the arrays of x's shape may also be bf16 or f16: every piece of a plane passes through a
 * buffer then.
 */
#include "tensor/cpu/real/rows.h"

enum { COLUMNS = 64, COLUMNS_BELOW = 8 };

typedef struct bn_job {
    void *y, *dx; /* like x and dy of this dtype */
    const void *x, *dy;
    tn_dtype dtype;
    REAL *dw, *db;
    const REAL *w, *b;
    REAL *mean, *rstd, *running_mean, *running_var; /* [c] */
    int64_t n, c, s;
    double momentum, eps;
    bool training;
    int64_t blocks, block_n;    /* of samples, per channel */
    double *partial, *partial2; /* [c, blocks] */
    _Atomic bool *failed;       /* no memory */
} bn_job;

/* ---- what both layouts share ----------------------------------------------------------------- */

/* Fetches the same elements of the next sample ahead: the processor does not foresee steps from
 * plane to plane, and without this waited for memory half of the time. */
TNI_INLINE void fetch_next(const bn_job *job, const void *x, int64_t at, int64_t n)
{
    int64_t item = tni_is_half(job->dtype) ? 2 : (int64_t)sizeof(REAL);
    if (at + job->c * job->s + n > job->n * job->c * job->s) return;
    const char *next = (const char *)x + (at + job->c * job->s) * item;
    for (int64_t k = 0; k < n * item; k += 64) __builtin_prefetch(next + k);
}

/* n elements of x or dy from `at` on, at most BLOCK; in the buffer, if they are bf16 or f16. */
static inline const REAL *read(const bn_job *job, const void *x, int64_t at, int64_t n,
                               REAL *buffer)
{
    fetch_next(job, x, at, n);
    return tni_get(x, job->dtype, at, n, buffer);
}

/* Where to compute elements of y or dx, which tni_put then brings there. */
static inline REAL *place(const bn_job *job, void *y, int64_t at, int64_t n, REAL *buffer)
{
    fetch_next(job, y, at, n);
    return tni_place(y, job->dtype, at, buffer);
}

/* mu: the mean; m2: sum of squares about center */
static void finish_channel(const bn_job *job, int64_t ch, double mu, double m2, REAL center)
{
    double count = (double)job->n * (double)job->s;
    double off = mu - (double)center;
    double var = m2 / count - off * off;
    var = var < 0 ? 0 : var; /* NaN stays */
    double rstd = 1.0 / sqrt(var + job->eps);
    if (TNI_UNLIKELY(!(var + job->eps > LEAST_VARIANCE && var < INFINITY))) {
        int64_t first = ch * job->s * (int64_t)tn_dtype_size(job->dtype);
        tni_array x = {
            (char *)job->x + first, job->dtype, 2, { job->n, job->s }, { job->c * job->s, 1 }
        };
        moments m = { 0 };
        if (wide_moments(&x, job->eps, &m) != TN_OK) atomic_store(job->failed, true);
        mu = m.mean;
        var = m.deviation * m.deviation;
        rstd = m.rstd;
    }
    job->mean[ch] = (REAL)mu;
    job->rstd[ch] = (REAL)rstd;
    if (job->running_mean) {
        double m = job->momentum;
        double unbiased = count > 1 ? var * (count / (count - 1.0)) : var;
        job->running_mean[ch] = (REAL)((1.0 - m) * (double)job->running_mean[ch] + m * mu);
        job->running_var[ch] = (REAL)((1.0 - m) * (double)job->running_var[ch] + m * unbiased);
    }
}

/* sum_g: sum dy; sum_gx: sum dy (x - mean) */
static void finish_grad(const bn_job *job, int64_t ch, double sum_g, double sum_gx)
{
    if (job->dw) job->dw[ch] = (REAL)(sum_gx * (double)job->rstd[ch]);
    if (job->db) job->db[ch] = (REAL)sum_g;
}

static REAL scale_of(const bn_job *job, int64_t ch)
{
    return job->rstd[ch] * (job->w ? job->w[ch] : 1);
}

/* dx = scale (dy - mean_g - (x - mean) slope), from the channel's sums as above. */
static void grad_terms(const bn_job *job, int64_t ch, double sum_g, double sum_gx, REAL *scale,
                       REAL *mean_g, REAL *slope)
{
    double count = (double)job->n * (double)job->s;
    REAL rstd = job->rstd[ch];
    *scale = scale_of(job, ch);
    *mean_g = job->training ? (REAL)(sum_g / count) : 0;
    *slope = job->training ? (REAL)(sum_gx / count * (double)rstd * (double)rstd) : 0;
}

static int64_t group_channels(const bn_job *job)
{
    return COLUMNS / job->s;
}

/* ---- planes: s values in a row --------------------------------------------------------------- */

/* Samples are cut into blocks only where channels alone would not keep 16 threads busy. */
static void cut_planes(bn_job *job)
{
    int64_t blocks = job->c >= 16 ? 1 : (16 + job->c - 1) / job->c;
    int64_t most = TNI_MAX(1, job->n * job->s / 4096);
    blocks = TNI_MAX(1, TNI_MIN(TNI_MIN(blocks, most), job->n));
    job->block_n = (job->n + blocks - 1) / blocks;
    job->blocks = (job->n + job->block_n - 1) / job->block_n;
}

/* The pieces of an item's planes, one after another: m elements from `at` on, at most BLOCK. */
typedef struct piece {
    int64_t ch, at, m;
    int64_t plane, end, within; /* of what follows: offsets of planes, and in the plane */
} piece;

static piece pieces_of(const bn_job *job, int64_t item)
{
    int64_t first = item % job->blocks * job->block_n;
    return (piece){ .ch = item / job->blocks,
                    .plane = first * job->c * job->s + item / job->blocks * job->s,
                    .end = TNI_MIN(first + job->block_n, job->n) * job->c * job->s };
}

TNI_INLINE bool next_piece(const bn_job *job, piece *p)
{
    if (p->within == job->s) p->plane += job->c * job->s, p->within = 0;
    if (p->plane >= p->end) return false;
    p->at = p->plane + p->within;
    p->m = TNI_MIN(BLOCK, job->s - p->within);
    p->within += p->m;
    return true;
}

/* The mean of a first piece; 0 if that is no number. */
static REAL guess_mean(const bn_job *job, int64_t ch)
{
    REAL buffer[BLOCK];
    int64_t m = TNI_MIN(BLOCK, job->s);
    const REAL *x = read(job, job->x, ch * job->s, m, buffer);
    REAL guess = (REAL)(row_sum(x, m) / (double)m);
    return guess - guess == 0 ? guess : 0;
}

/* Sums of x - center and of its squares. */
static void sum_planes(const bn_job *job, int64_t item, REAL center)
{
    piece r = pieces_of(job, item);
    REAL buffer[BLOCK];
    double total = 0, total_squares = 0;
    while (next_piece(job, &r)) {
        const int64_t m = r.m;
        const REAL *x = read(job, job->x, r.at, m, buffer);
        REAL sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
        for (int64_t k = 0; k < m; k++) {
            REAL d = x[k] - center;
            sum += d;
            squares += d * d;
        }
        total += (double)sum;
        total_squares += (double)squares;
    }
    job->partial[item] = total;
    job->partial2[item] = total_squares;
}

static void guess_planes(void *context, int64_t begin, int64_t end)
{
    const bn_job *job = context;
    for (int64_t item = begin; item < end; item++)
        sum_planes(job, item, guess_mean(job, item / job->blocks));
}

static double add_blocks(const bn_job *job, const double *partial, int64_t ch)
{
    double sum = 0;
    for (int64_t b = 0; b < job->blocks; b++) sum += partial[ch * job->blocks + b];
    return sum;
}

typedef struct second_pass {
    const bn_job *job;
    int64_t ch;
    REAL center;
} second_pass;

/* Items: the blocks of a channel. */
static void sum_again(void *context, int64_t begin, int64_t end)
{
    const second_pass *p = context;
    for (int64_t b = begin; b < end; b++) sum_planes(p->job, p->ch * p->job->blocks + b, p->center);
}

/* The channel's statistics from its sums. */
static void finish_planes(const bn_job *job, int64_t ch)
{
    double count = (double)job->n * (double)job->s;
    REAL center = guess_mean(job, ch);
    double off = add_blocks(job, job->partial, ch) / count, mu = (double)center + off;
    double squares = add_blocks(job, job->partial2, ch);
    if (mu - mu == 0 && !(squares / count >= 2 * off * off)) {
        second_pass p = { job, ch, (REAL)mu };
        tni_parallel(job->blocks, row_grain(job->block_n * job->s, 1), sum_again, &p);
        center = p.center;
        mu = (double)center + add_blocks(job, job->partial, ch) / count;
        squares = add_blocks(job, job->partial2, ch);
    }
    finish_channel(job, ch, mu, squares, center);
}

static void normalise_planes(void *context, int64_t begin, int64_t end)
{
    const bn_job *job = context;
    REAL buffer[BLOCK];
    for (int64_t item = begin; item < end; item++) {
        piece r = pieces_of(job, item);
        REAL mean = job->mean[r.ch], scale = scale_of(job, r.ch);
        REAL shift = job->b ? job->b[r.ch] : 0;
        while (next_piece(job, &r)) {
            const int64_t at = r.at, m = r.m;
            const REAL *x = read(job, job->x, at, m, buffer);
            REAL *y = place(job, job->y, at, m, buffer);
#pragma omp simd
            for (int64_t k = 0; k < m; k++) y[k] = (x[k] - mean) * scale + shift;
            tni_put(job->y, job->dtype, at, m, y);
        }
    }
}

/* One block per channel: all passes while the channel is in cache. */
static void train_planes(void *context, int64_t begin, int64_t end)
{
    for (int64_t ch = begin; ch < end; ch++) {
        guess_planes(context, ch, ch + 1);
        finish_planes(context, ch);
        normalise_planes(context, ch, ch + 1);
    }
}

static void forward_planes(bn_job *job)
{
    int64_t items = job->c * job->blocks, grain = row_grain(job->block_n * job->s, 4);
    if (!job->training) {
        tni_parallel(items, grain, normalise_planes, job);
    } else if (job->blocks == 1) {
        tni_parallel(items, grain, train_planes, job);
    } else {
        tni_parallel(items, grain, guess_planes, job);
        for (int64_t ch = 0; ch < job->c; ch++) finish_planes(job, ch);
        tni_parallel(items, grain, normalise_planes, job);
    }
}

static void grad_sum_planes(void *context, int64_t begin, int64_t end)
{
    const bn_job *job = context;
    for (int64_t item = begin; item < end; item++) {
        piece r = pieces_of(job, item);
        REAL mean = job->mean[r.ch];
        REAL buffer[2][BLOCK];
        double total_g = 0, total_gx = 0;
        while (next_piece(job, &r)) {
            const int64_t at = r.at, m = r.m;
            const REAL *restrict x = read(job, job->x, at, m, buffer[0]);
            const REAL *restrict dy = read(job, job->dy, at, m, buffer[1]);
            REAL sum_g = 0, sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
            for (int64_t k = 0; k < m; k++) {
                sum_g += dy[k];
                sum_gx += dy[k] * (x[k] - mean);
            }
            total_g += (double)sum_g;
            total_gx += (double)sum_gx;
        }
        job->partial[item] = total_g;
        job->partial2[item] = total_gx;
    }
}

static void dx_planes(void *context, int64_t begin, int64_t end)
{
    const bn_job *job = context;
    REAL buffer[2][BLOCK];
    for (int64_t item = begin; item < end; item++) {
        piece r = pieces_of(job, item);
        REAL mean = job->mean[r.ch], scale, mean_g, slope;
        bool sums = job->training;
        grad_terms(job, r.ch, sums ? add_blocks(job, job->partial, r.ch) : 0,
                   sums ? add_blocks(job, job->partial2, r.ch) : 0, &scale, &mean_g, &slope);
        while (next_piece(job, &r)) {
            const int64_t at = r.at, m = r.m;
            const REAL *dy = read(job, job->dy, at, m, buffer[0]);
            REAL *dx = place(job, job->dx, at, m, buffer[0]);
            if (job->training) {
                const REAL *x = read(job, job->x, at, m, buffer[1]);
#pragma omp simd
                for (int64_t k = 0; k < m; k++)
                    dx[k] = scale * (dy[k] - mean_g - (x[k] - mean) * slope);
            } else {
#pragma omp simd
                for (int64_t k = 0; k < m; k++) dx[k] = scale * dy[k];
            }
            tni_put(job->dx, job->dtype, at, m, dx);
        }
    }
}

static void grad_planes_fused(void *context, int64_t begin, int64_t end)
{
    for (int64_t ch = begin; ch < end; ch++) {
        grad_sum_planes(context, ch, ch + 1);
        dx_planes(context, ch, ch + 1);
    }
}

static void backward_planes(bn_job *job)
{
    bool sums = job->training || job->dw || job->db;
    int64_t items = job->c * job->blocks, grain = row_grain(job->block_n * job->s, 3);
    if (sums && job->dx && job->blocks == 1) {
        tni_parallel(items, grain, grad_planes_fused, job);
    } else {
        if (sums) tni_parallel(items, grain, grad_sum_planes, job);
        if (job->dx) tni_parallel(items, grain, dx_planes, job);
    }
    for (int64_t ch = 0; sums && ch < job->c; ch++)
        finish_grad(job, ch, add_blocks(job, job->partial, ch), add_blocks(job, job->partial2, ch));
}

/* ---- columns of the [n, c s] matrix, a group of channels at a time --------------------------- */

/* Adds the s columns of each channel of a group: out[channel]. */
static void fold(const bn_job *job, const double *column, int64_t m, double *out)
{
    for (int64_t k = 0; k < m; k += job->s) {
        double sum = 0;
        for (int64_t j = 0; j < job->s; j++) sum += column[k + j];
        out[k / job->s] = sum;
    }
}

/* Repeats a value per channel over its columns; 0 if the array is NULL. */
static void spread(const bn_job *job, const REAL *value, int64_t ch, int64_t m, REAL *column)
{
    for (int64_t k = 0; k < m; k++) column[k] = value ? value[ch + k / job->s] : 0;
}

static void forward_columns(void *context, int64_t begin, int64_t end)
{
    const bn_job *job = context;
    int64_t width = job->c * job->s;
    double count = (double)job->n * (double)job->s;
    for (int64_t group = begin; group < end; group++) {
        int64_t ch = group * group_channels(job);
        int64_t channels = TNI_MIN(group_channels(job), job->c - ch);
        int64_t m = channels * job->s, first = ch * job->s;
        REAL buffer[COLUMNS], mean[COLUMNS];
        if (job->training) {
            double sum[COLUMNS] = { 0 };
            for (int64_t i = 0; i < job->n; i++) {
                const REAL *x = read(job, job->x, first + i * width, m, buffer);
#pragma omp simd
                for (int64_t k = 0; k < m; k++) sum[k] += (double)x[k];
            }
            double mu[COLUMNS];
            fold(job, sum, m, mu);
            for (int64_t j = 0; j < channels; j++) {
                mu[j] /= count;
                job->mean[ch + j] = (REAL)mu[j];
            }
            spread(job, job->mean, ch, m, mean);
            memset(sum, 0, sizeof sum);
            for (int64_t i = 0; i < job->n; i++) {
                const REAL *x = read(job, job->x, first + i * width, m, buffer);
#pragma omp simd
                for (int64_t k = 0; k < m; k++) {
                    double d = (double)x[k] - (double)mean[k];
                    sum[k] += d * d;
                }
            }
            double m2[COLUMNS];
            fold(job, sum, m, m2);
            for (int64_t j = 0; j < channels; j++)
                finish_channel(job, ch + j, mu[j], m2[j], job->mean[ch + j]);
        }
        spread(job, job->mean, ch, m, mean);
        REAL scale[COLUMNS], shift[COLUMNS];
        spread(job, job->b, ch, m, shift);
        for (int64_t k = 0; k < m; k++) scale[k] = scale_of(job, ch + k / job->s);
        for (int64_t i = 0; i < job->n; i++) {
            const REAL *x = read(job, job->x, first + i * width, m, buffer);
            REAL *y = place(job, job->y, first + i * width, m, buffer);
#pragma omp simd
            for (int64_t k = 0; k < m; k++) y[k] = (x[k] - mean[k]) * scale[k] + shift[k];
            tni_put(job->y, job->dtype, first + i * width, m, y);
        }
    }
}

static void backward_columns(void *context, int64_t begin, int64_t end)
{
    const bn_job *job = context;
    int64_t width = job->c * job->s;
    for (int64_t group = begin; group < end; group++) {
        int64_t ch = group * group_channels(job);
        int64_t channels = TNI_MIN(group_channels(job), job->c - ch);
        int64_t m = channels * job->s, first = ch * job->s;
        REAL buffer[2][COLUMNS], mean[COLUMNS];
        double g[COLUMNS] = { 0 }, gx[COLUMNS] = { 0 };
        spread(job, job->mean, ch, m, mean);
        for (int64_t i = 0; i < job->n; i++) {
            const REAL *dy = read(job, job->dy, first + i * width, m, buffer[0]);
            const REAL *x = read(job, job->x, first + i * width, m, buffer[1]);
#pragma omp simd
            for (int64_t k = 0; k < m; k++) {
                double d = (double)dy[k];
                g[k] += d;
                gx[k] += d * ((double)x[k] - (double)mean[k]);
            }
        }
        double sum_g[COLUMNS], sum_gx[COLUMNS];
        fold(job, g, m, sum_g);
        fold(job, gx, m, sum_gx);
        for (int64_t j = 0; j < channels; j++) finish_grad(job, ch + j, sum_g[j], sum_gx[j]);
        if (!job->dx) continue;
        REAL scale[COLUMNS], mean_g[COLUMNS], slope[COLUMNS];
        for (int64_t k = 0; k < m; k++) {
            int64_t j = k / job->s;
            grad_terms(job, ch + j, sum_g[j], sum_gx[j], &scale[k], &mean_g[k], &slope[k]);
        }
        for (int64_t i = 0; i < job->n; i++) {
            const REAL *dy = read(job, job->dy, first + i * width, m, buffer[0]);
            const REAL *x = read(job, job->x, first + i * width, m, buffer[1]);
            REAL *dx = place(job, job->dx, first + i * width, m, buffer[0]);
            if (job->training) {
#pragma omp simd
                for (int64_t k = 0; k < m; k++)
                    dx[k] = scale[k] * (dy[k] - mean_g[k] - (x[k] - mean[k]) * slope[k]);
            } else {
#pragma omp simd
                for (int64_t k = 0; k < m; k++) dx[k] = scale[k] * dy[k];
            }
            tni_put(job->dx, job->dtype, first + i * width, m, dx);
        }
    }
}

/* ---- the two slots --------------------------------------------------------------------------- */

static tn_status run(bn_job *job, tni_chunk columns, void (*planes)(bn_job *job))
{
    if (job->s < COLUMNS_BELOW) {
        int64_t group = group_channels(job), groups = (job->c + group - 1) / group;
        return tni_parallel_args(groups, row_grain(job->n * COLUMNS, 4), columns, job);
    }
    cut_planes(job);
    /* fits: there are fewer than 2^60 channels, and one block if there are more than 15 */
    const int64_t count = job->c * job->blocks;
    TNI_ITEMS(double, partial, 2 * TNI_MAX(count, 8));
    if (!partial) return TN_E_NOMEM;
    job->partial = partial;
    job->partial2 = partial + count;
    planes(job);
    return TN_OK;
}

tn_status K(tni_batch_norm)(const tni_batch_norm *a)
{
    _Atomic bool failed = false;
    bn_job job = { .y = a->y.data,
                   .dtype = a->x.dtype,
                   .x = a->x.data,
                   .w = a->weight.data,
                   .b = a->bias.data,
                   .mean = a->mean.data,
                   .rstd = a->rstd.data,
                   .running_mean = a->running_mean.data,
                   .running_var = a->running_var.data,
                   .n = a->x.size[0],
                   .c = a->x.size[1],
                   .s = a->x.size[2],
                   .momentum = a->momentum,
                   .eps = a->eps,
                   .training = a->training,
                   .failed = &failed };
    if (!a->training) {
        for (int64_t ch = 0; ch < job.c; ch++) {
            job.mean[ch] = job.running_mean[ch];
            job.rstd[ch] = (REAL)(1.0 / sqrt((double)job.running_var[ch] + a->eps));
        }
    }
    if (job.n == 0 || job.s == 0) { /* nothing to average: running statistics stay */
        for (int64_t ch = 0; a->training && ch < job.c; ch++) job.mean[ch] = job.rstd[ch] = 0;
        return TN_OK;
    }
    tn_status status = run(&job, forward_columns, forward_planes);
    return failed ? TN_E_NOMEM : status;
}

tn_status K(tni_batch_norm_grad)(const tni_batch_norm_grad *a)
{
    bn_job job = { .dx = a->dx.data,
                   .dtype = a->x.dtype,
                   .dw = a->dweight.data,
                   .db = a->dbias.data,
                   .dy = a->dy.data,
                   .x = a->x.data,
                   .w = a->weight.data,
                   .mean = a->mean.data,
                   .rstd = a->rstd.data,
                   .n = a->x.size[0],
                   .c = a->x.size[1],
                   .s = a->x.size[2],
                   .training = a->training };
    if (job.n == 0 || job.s == 0) {
        for (int64_t ch = 0; ch < job.c; ch++) finish_grad(&job, ch, 0, 0);
        return TN_OK;
    }
    return run(&job, backward_columns, backward_planes);
}
