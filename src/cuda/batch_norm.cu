/*
 * batch_norm.cu - batch normalisation of a dense [n, c, s] array per channel, and its gradient.
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps), y = w xh + b, over the N = n s values of a
 * channel, with the biased variance; running_var moves towards the unbiased one (N - 1).
 * Gradient (Ioffe and Szegedy, Batch Normalization (2015), section 3), with sums over the channel:
 *   db = sum dy, dw = sum dy xh, dx = w rstd (dy - db / N - xh dw / N)
 * With running statistics the last two terms of dx vanish.
 *
 * Mean and variance in one pass: eight values at a time, their mean and squares about it in R; the
 * rest in double, about the channel's first value K: sum d and sum d^2 of d = x - K. An outlier K
 * costs no more than N ulp of double. Source: Chan, Golub, LeVeque: Algorithms for Computing the
 * Sample Variance (1983), sections 2 and 3.
 *
 * Two ways of sharing the values. Planes (s >= COLUMNS_BELOW): a block has a channel, its threads
 * follow each other along s. Columns: a block has as many whole channels as fit into 32 columns of
 * the [n, c s] matrix, a warp reads a row of them. Where channels are few, several blocks share one
 * and leave partial sums, added in order by a second launch; else one launch does all.
 */
#include "cuda/rows.h"

enum { BN_THREADS = 256, BN_TURNS = BN_THREADS / 32, COLUMNS_BELOW = 8, BN_AT_ONCE = 8 };

template <typename R> struct bn_job {
    R *y, *dx, *dw, *db;
    const R *x, *dy, *w, *b;
    R *mean, *rstd, *running_mean, *running_var; /* [c] */
    int64_t n, c, s;
    double momentum, eps;
    bool training;
    int64_t share, splits; /* values (columns: rows) of a block; blocks of a channel */
    double *partial;       /* [splits, c, 2] */
};

/* ---- which values are a thread's ------------------------------------------------------------------------ */

/* left positions, `at` first. Next: at += step; along a plane, k wraps at s. */
struct bn_walk {
    int64_t at, left, step, k, k_step, s, wrap;
    int64_t channel; /* -1: none (a lane beside the last channel, with nothing left) */
};

static __device__ __forceinline__ void bn_next(bn_walk &w)
{
    w.left--;
    w.at += w.step;
    w.k += w.k_step;
    if (w.k >= w.s) {
        w.k -= w.s;
        w.at += w.wrap;
    }
}

/* V values at a position: V divides s, or is 1. */
template <typename R, int V> struct alignas(V * sizeof(R)) bn_pack {
    R v[V];
};

template <typename R, int V>
static __device__ __forceinline__ bn_pack<R, V> bn_load(const R *x, int64_t at)
{
    return *reinterpret_cast<const bn_pack<R, V> *>(x + at * V);
}

template <typename R, int V>
static __device__ __forceinline__ void bn_store(R *y, int64_t at, const bn_pack<R, V> &p)
{
    *reinterpret_cast<bn_pack<R, V> *>(y + at * V) = p;
}

template <typename R, int V, bool COLUMNS>
static __device__ __forceinline__ bn_walk bn_begin(const bn_job<R> &job)
{
    bn_walk w = {};
    if (COLUMNS) {
        int s = static_cast<int>(job.s), channels = 32 / s, lane = threadIdx.x % 32;
        int64_t first = blockIdx.y * job.share + threadIdx.x / 32, width = job.c * s;
        int64_t end = min(job.n, (blockIdx.y + 1) * job.share);
        w.channel = static_cast<int64_t>(blockIdx.x) * channels + lane / s;
        if (lane >= channels * s || w.channel >= job.c) {
            w.channel = -1;
            return w;
        }
        w.at = first * width + w.channel * s + lane % s;
        w.left = first < end ? (end - first + BN_TURNS - 1) / BN_TURNS : 0;
        w.step = BN_TURNS * width;
        w.s = 1;
        return w;
    }
    int64_t s = job.s / V, first = blockIdx.y * job.share + threadIdx.x;
    int64_t end = min(job.n * s, (blockIdx.y + 1) * job.share);
    int64_t i = first / s, planes = BN_THREADS / s;
    w.channel = blockIdx.x;
    w.k = first - i * s;
    w.at = (i * job.c + w.channel) * s + w.k;
    w.left = first < end ? (end - first + BN_THREADS - 1) / BN_THREADS : 0;
    w.k_step = BN_THREADS - planes * s;
    w.step = planes * job.c * s + w.k_step;
    w.s = s;
    w.wrap = job.c * s - s;
    return w;
}

/* Sums a and b over the threads of this thread's channel, in a fixed order; by all of the block. */
template <typename R, bool COLUMNS>
static __device__ __forceinline__ void bn_join(const bn_job<R> &job, double &a, double &b)
{
    if (COLUMNS) {
        __shared__ double part[2][BN_TURNS][32];
        int s = static_cast<int>(job.s), lane = threadIdx.x % 32, turn = threadIdx.x / 32;
        part[0][turn][lane] = a;
        part[1][turn][lane] = b;
        __syncthreads();
        a = b = 0;
        for (int k = lane / s * s; k < min(lane / s * s + s, 32); k++)
            for (int t = 0; t < BN_TURNS; t++) {
                a += part[0][t][k];
                b += part[1][t][k];
            }
        __syncthreads();
    } else {
        a = block_sum(a);
        b = block_sum(b);
    }
}

/* The thread that speaks for its channel. */
template <bool COLUMNS>
static __device__ __forceinline__ bool bn_speaks(const bn_walk &w, int64_t s)
{
    if (!COLUMNS) return threadIdx.x == 0;
    return threadIdx.x < 32 && w.channel >= 0 && threadIdx.x % s == 0;
}

/* ---- forward ------------------------------------------------------------------------------------------------ */

/* The channel's first value. */
template <typename R>
static __device__ __forceinline__ double bn_origin(const bn_job<R> &job, int64_t channel)
{
    return channel < 0 ? 0.0 : static_cast<double>(job.x[channel * job.s]);
}

/* sum and squares of d = x - K over the channel. */
template <typename R, int V, bool COLUMNS>
static __device__ __forceinline__ void bn_moments(const bn_job<R> &job, bn_walk w, double &sum,
                                                  double &squares)
{
    const double origin = bn_origin(job, w.channel);
    sum = squares = 0;
    while (w.left > 0) {
        R v[BN_AT_ONCE], total = 0, about = 0;
        int count = 0;
        TN_UNROLL for (int k = 0; k < BN_AT_ONCE; k += V)
        {
            bn_pack<R, V> p = {};
            if (w.left > 0) {
                p = bn_load<R, V>(job.x, w.at);
                bn_next(w);
                count += V;
            }
            TN_UNROLL for (int j = 0; j < V; j++) v[k + j] = p.v[j];
        }
        TN_UNROLL for (int k = 1; k < BN_AT_ONCE; k++) total += k < count ? v[k] - v[0] : 0;
        R mean = total / static_cast<R>(count); /* of v - v[0] */
        TN_UNROLL for (int k = 0; k < BN_AT_ONCE; k++)
        {
            R d = v[k] - v[0] - mean;
            about += k < count ? d * d : 0;
        }
        double off = static_cast<double>(v[0]) - origin + static_cast<double>(mean);
        sum += off * count;
        squares += off * off * count + static_cast<double>(about);
    }
    bn_join<R, COLUMNS>(job, sum, squares);
}

/* From those sums: mean and 1 / deviation, and the running statistics move. By one thread. */
template <typename R>
static __device__ inline void bn_settle(const bn_job<R> &job, int64_t channel, double sum,
                                        double squares)
{
    double count = static_cast<double>(job.n) * static_cast<double>(job.s);
    double off = sum / count, mean = bn_origin(job, channel) + off;
    double var = (squares - sum * off) / count;
    var = var < 0 ? 0 : var; /* NaN stays */
    job.mean[channel] = static_cast<R>(mean);
    job.rstd[channel] = static_cast<R>(1.0 / sqrt(var + job.eps));
    if (job.running_mean) {
        double m = job.momentum;
        double unbiased = count > 1 ? var * (count / (count - 1.0)) : var;
        job.running_mean[channel] = static_cast<R>(
            (1.0 - m) * static_cast<double>(job.running_mean[channel]) + m * mean);
        job.running_var[channel] = static_cast<R>(
            (1.0 - m) * static_cast<double>(job.running_var[channel]) + m * unbiased);
    }
}

template <typename R, int V>
static __device__ __forceinline__ void bn_normalise(const bn_job<R> &job, bn_walk w)
{
    if (w.left <= 0) return;
    R mean = job.mean[w.channel];
    R scale = job.rstd[w.channel] * (job.w ? job.w[w.channel] : 1);
    R shift = job.b ? job.b[w.channel] : 0;
    for (; w.left > 0; bn_next(w)) {
        bn_pack<R, V> p = bn_load<R, V>(job.x, w.at);
        TN_UNROLL for (int k = 0; k < V; k++) p.v[k] = (p.v[k] - mean) * scale + shift;
        bn_store<R, V>(job.y, w.at, p);
    }
}

/* All of a channel by one block. */
template <typename R, int V, bool COLUMNS>
static __global__ void batch_norm_whole(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    double sum, squares;
    bn_moments<R, V, COLUMNS>(job, w, sum, squares);
    if (bn_speaks<COLUMNS>(w, job.s)) bn_settle(job, w.channel, sum, squares);
    __syncthreads();
    bn_normalise<R, V>(job, w);
}

template <typename R, int V, bool COLUMNS>
static __global__ void batch_norm_sums(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    double sum, squares;
    bn_moments<R, V, COLUMNS>(job, w, sum, squares);
    if (!bn_speaks<COLUMNS>(w, job.s)) return;
    double *to = job.partial + (blockIdx.y * job.c + w.channel) * 2;
    to[0] = sum;
    to[1] = squares;
}

template <typename R, int V, bool COLUMNS>
static __global__ void batch_norm_apply(bn_job<R> job)
{
    bn_normalise<R, V>(job, bn_begin<R, V, COLUMNS>(job));
}

/* A warp adds what the blocks of its channel left: every lane has the sums. */
template <typename R>
static __device__ __forceinline__ void bn_collect(const bn_job<R> &job, int64_t channel, double &a,
                                                  double &b)
{
    a = b = 0;
    for (int64_t k = threadIdx.x % 32; k < job.splits; k += 32) {
        a += job.partial[(k * job.c + channel) * 2];
        b += job.partial[(k * job.c + channel) * 2 + 1];
    }
    a = warp_sum(a);
    b = warp_sum(b);
}

#define EACH_CHANNEL(channel)                                                                      \
    for (int64_t channel = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;        \
         channel < job.c; channel += static_cast<int64_t>(gridDim.x) * ROW_WARPS)

template <typename R> static __global__ void batch_norm_settle(bn_job<R> job)
{
    EACH_CHANNEL(channel)
    {
        double sum, squares;
        bn_collect(job, channel, sum, squares);
        if (threadIdx.x % 32 == 0) bn_settle(job, channel, sum, squares);
    }
}

/* mean and rstd where there is no batch to take them from: the running ones, or zeros. */
template <typename R> static __global__ void batch_norm_given(bn_job<R> job)
{
    for (int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         channel < job.c; channel += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        job.mean[channel] = job.training ? static_cast<R>(0) : job.running_mean[channel];
        job.rstd[channel] =
            job.training
                ? static_cast<R>(0)
                : static_cast<R>(
                      1.0 / sqrt(static_cast<double>(job.running_var[channel]) + job.eps));
    }
}

/* ---- gradient ----------------------------------------------------------------------------------------------- */

/* sum dy and sum dy (x - mean) over the channel. */
template <typename R, int V, bool COLUMNS>
static __device__ __forceinline__ void bn_products(const bn_job<R> &job, bn_walk w, double &sum_g,
                                                   double &sum_gx)
{
    R mean = w.channel < 0 ? static_cast<R>(0) : job.mean[w.channel];
    sum_g = sum_gx = 0;
    while (w.left > 0) {
        R g = 0, gx = 0;
        for (int k = 0; k < 32 && w.left > 0; k++, bn_next(w)) {
            bn_pack<R, V> p = bn_load<R, V>(job.x, w.at), q = bn_load<R, V>(job.dy, w.at);
            TN_UNROLL for (int j = 0; j < V; j++)
            {
                g += q.v[j];
                gx += q.v[j] * (p.v[j] - mean);
            }
        }
        sum_g += static_cast<double>(g);
        sum_gx += static_cast<double>(gx);
    }
    bn_join<R, COLUMNS>(job, sum_g, sum_gx);
}

template <typename R>
static __device__ inline void bn_settle_grad(const bn_job<R> &job, int64_t channel, double sum_g,
                                             double sum_gx)
{
    if (job.dw)
        job.dw[channel] = static_cast<R>(sum_gx * static_cast<double>(job.rstd[channel]));
    if (job.db) job.db[channel] = static_cast<R>(sum_g);
}

/* dx = scale (dy - level - (x - mean) slope) */
template <typename R, int V>
static __device__ __forceinline__ void bn_slope(const bn_job<R> &job, bn_walk w, double sum_g,
                                                double sum_gx)
{
    if (w.left <= 0) return;
    double count = static_cast<double>(job.n) * static_cast<double>(job.s);
    R mean = job.mean[w.channel], rstd = job.rstd[w.channel];
    R scale = rstd * (job.w ? job.w[w.channel] : 1), level = 0, slope = 0;
    if (job.training) {
        level = static_cast<R>(sum_g / count);
        slope = static_cast<R>(sum_gx / count * static_cast<double>(rstd) *
                               static_cast<double>(rstd));
    }
    for (; w.left > 0; bn_next(w)) {
        bn_pack<R, V> p = bn_load<R, V>(job.x, w.at), q = bn_load<R, V>(job.dy, w.at);
        TN_UNROLL for (int k = 0; k < V; k++)
            q.v[k] = job.training ? scale * (q.v[k] - level - (p.v[k] - mean) * slope)
                                  : scale * q.v[k];
        bn_store<R, V>(job.dx, w.at, q);
    }
}

template <typename R, int V, bool COLUMNS>
static __global__ void batch_norm_grad_whole(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    double sum_g, sum_gx;
    bn_products<R, V, COLUMNS>(job, w, sum_g, sum_gx);
    if (bn_speaks<COLUMNS>(w, job.s)) bn_settle_grad(job, w.channel, sum_g, sum_gx);
    if (job.dx) bn_slope<R, V>(job, w, sum_g, sum_gx);
}

template <typename R, int V, bool COLUMNS>
static __global__ void batch_norm_grad_sums(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    double sum_g, sum_gx;
    bn_products<R, V, COLUMNS>(job, w, sum_g, sum_gx);
    if (!bn_speaks<COLUMNS>(w, job.s)) return;
    double *to = job.partial + (blockIdx.y * job.c + w.channel) * 2;
    to[0] = sum_g;
    to[1] = sum_gx;
}

/* The sums end in partial's first line. */
template <typename R> static __global__ void batch_norm_grad_settle(bn_job<R> job)
{
    EACH_CHANNEL(channel)
    {
        double sum_g, sum_gx;
        bn_collect(job, channel, sum_g, sum_gx);
        __syncwarp();
        if (threadIdx.x % 32 != 0) continue;
        bn_settle_grad(job, channel, sum_g, sum_gx);
        job.partial[2 * channel] = sum_g;
        job.partial[2 * channel + 1] = sum_gx;
    }
}

template <typename R, int V, bool COLUMNS>
static __global__ void batch_norm_grad_apply(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    if (w.channel < 0) return;
    bn_slope<R, V>(job, w, job.partial ? job.partial[2 * w.channel] : 0.0,
                   job.partial ? job.partial[2 * w.channel + 1] : 0.0);
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

template <typename R> static bool bn_in_columns(const bn_job<R> &job)
{
    return job.s < COLUMNS_BELOW;
}

static bool bn_aligned(const void *a)
{
    return reinterpret_cast<uintptr_t>(a) % 16 == 0; /* also when there is none */
}

/* Values per position: sixteen bytes' worth where the planes allow it. */
template <typename R> static int bn_width(const bn_job<R> &job)
{
    const int V = 16 / sizeof(R);
    bool whole = !bn_in_columns(job) && job.s % V == 0 && bn_aligned(job.x) && bn_aligned(job.y) &&
                 bn_aligned(job.dy) && bn_aligned(job.dx);
    return whole ? V : 1;
}

/* Cuts the work into blocks; the grid, y over the splits of a channel. */
template <typename R> static dim3 bn_cut(bn_job<R> &job)
{
    int64_t group = bn_in_columns(job) ? 32 / job.s : 1;
    int64_t across = (job.c + group - 1) / group;
    int64_t values = bn_in_columns(job) ? job.n : job.n * (job.s / bn_width(job));
    int64_t least = bn_in_columns(job) ? 16 * BN_TURNS : 4 * BN_THREADS; /* worth a block */
    int64_t wanted = 4LL * tni_cuda_multiprocessors() / across, most = values / least;
    int64_t splits = wanted < most ? wanted : most;
    if (splits < 1) splits = 1;
    job.share = (values + splits - 1) / splits;
    job.splits = (values + job.share - 1) / job.share;
    return dim3(static_cast<unsigned>(across), static_cast<unsigned>(job.splits));
}

/* Calls launch with V and COLUMNS. */
#define BN_LAYOUT(job, launch)                                                                     \
    do {                                                                                           \
        if (bn_in_columns(job)) {                                                                  \
            constexpr int V = 1;                                                                   \
            constexpr bool COLUMNS = true;                                                         \
            TN_TRY(launch);                                                                        \
        } else if (bn_width(job) == 1) {                                                           \
            constexpr int V = 1;                                                                   \
            constexpr bool COLUMNS = false;                                                        \
            TN_TRY(launch);                                                                        \
        } else {                                                                                   \
            constexpr int V = 16 / sizeof(R);                                                      \
            constexpr bool COLUMNS = false;                                                        \
            TN_TRY(launch);                                                                        \
        }                                                                                          \
    } while (0)

template <typename R> static tn_status bn_given(const bn_job<R> &job)
{
    return TN_LAUNCH((batch_norm_given<R>), row_grid(job.c, ROW_THREADS), ROW_THREADS, 0, job);
}

template <typename R> static tn_status bn_borrow(bn_job<R> &job)
{
    void *block;
    size_t nbytes = static_cast<size_t>(2 * job.splits * job.c) * sizeof(double);
    TN_TRY(tni_cuda_borrow(nbytes, &block));
    job.partial = static_cast<double *>(block);
    return TN_OK;
}

template <typename R> static tn_status bn_forward_split(const bn_job<R> &job, dim3 grid)
{
    if (job.training) {
        BN_LAYOUT(job,
                  TN_LAUNCH((batch_norm_sums<R, V, COLUMNS>), grid, BN_THREADS, 0, job));
        TN_TRY(TN_LAUNCH((batch_norm_settle<R>), row_grid(job.c, ROW_WARPS), ROW_THREADS, 0, job));
    } else {
        TN_TRY(bn_given(job));
    }
    BN_LAYOUT(job, TN_LAUNCH((batch_norm_apply<R, V, COLUMNS>), grid, BN_THREADS, 0, job));
    return TN_OK;
}

template <typename R> static tn_status bn_forward(bn_job<R> job)
{
    if (job.c == 0) return TN_OK;
    if (job.n == 0 || job.s == 0) return bn_given(job);
    dim3 grid = bn_cut(job);
    if (job.training && job.splits == 1) {
        BN_LAYOUT(job, TN_LAUNCH((batch_norm_whole<R, V, COLUMNS>), grid, BN_THREADS, 0, job));
        return TN_OK;
    }
    if (job.training) TN_TRY(bn_borrow(job));
    tn_status status = bn_forward_split(job, grid);
    if (job.partial) tni_cuda_return(job.partial);
    return status;
}

template <typename R> static tn_status bn_backward_split(const bn_job<R> &job, dim3 grid)
{
    if (job.partial) {
        BN_LAYOUT(job, TN_LAUNCH((batch_norm_grad_sums<R, V, COLUMNS>), grid, BN_THREADS, 0, job));
        TN_TRY(TN_LAUNCH((batch_norm_grad_settle<R>), row_grid(job.c, ROW_WARPS), ROW_THREADS, 0,
                         job));
    }
    if (job.dx)
        BN_LAYOUT(job,
                  TN_LAUNCH((batch_norm_grad_apply<R, V, COLUMNS>), grid, BN_THREADS, 0, job));
    return TN_OK;
}

template <typename R> static tn_status bn_backward(bn_job<R> job)
{
    bool sums = job.training || job.dw || job.db;
    if (job.c == 0) return TN_OK;
    if (job.n == 0 || job.s == 0) {
        size_t nbytes = static_cast<size_t>(job.c) * sizeof(R);
        if (job.dw) TN_TRY(TN_CUDA(cudaMemsetAsync(job.dw, 0, nbytes, tni_cuda_stream)));
        if (job.db) TN_TRY(TN_CUDA(cudaMemsetAsync(job.db, 0, nbytes, tni_cuda_stream)));
        return TN_OK;
    }
    dim3 grid = bn_cut(job);
    if (sums && job.splits == 1) {
        BN_LAYOUT(job, TN_LAUNCH((batch_norm_grad_whole<R, V, COLUMNS>), grid, BN_THREADS, 0, job));
        return TN_OK;
    }
    if (sums) TN_TRY(bn_borrow(job));
    tn_status status = bn_backward_split(job, grid);
    if (job.partial) tni_cuda_return(job.partial);
    return status;
}

/* ---- the two slots -------------------------------------------------------------------------------------------- */

template <typename R>
static bn_job<R> bn_job_of(const tni_array *x, const tni_array *mean, const tni_array *rstd,
                           const tni_array *weight)
{
    bn_job<R> job = {};
    job.x = static_cast<const R *>(x->data);
    job.mean = static_cast<R *>(mean->data);
    job.rstd = static_cast<R *>(rstd->data);
    job.w = static_cast<const R *>(weight->data);
    job.n = x->size[0];
    job.c = x->size[1];
    job.s = x->size[2];
    return job;
}

template <typename R>
static tn_status run_forward(const tni_array *y, const tni_array *mean, const tni_array *rstd,
                             const tni_array *x, const tni_array *weight, const tni_array *bias,
                             const tni_array *running_mean, const tni_array *running_var,
                             bool training, double momentum, double eps)
{
    bn_job<R> job = bn_job_of<R>(x, mean, rstd, weight);
    job.y = static_cast<R *>(y->data);
    job.b = static_cast<const R *>(bias->data);
    job.running_mean = static_cast<R *>(running_mean->data);
    job.running_var = static_cast<R *>(running_var->data);
    job.training = training;
    job.momentum = momentum;
    job.eps = eps;
    return bn_forward(job);
}

tn_status tni_cuda_batch_norm(const tni_array *y, const tni_array *mean, const tni_array *rstd,
                              const tni_array *x, const tni_array *weight, const tni_array *bias,
                              const tni_array *running_mean, const tni_array *running_var,
                              bool training, double momentum, double eps)
{
    TN_REAL(x->dtype, run_forward<R>(y, mean, rstd, x, weight, bias, running_mean, running_var,
                                     training, momentum, eps));
    return TN_OK;
}

template <typename R>
static tn_status run_backward(const tni_array *dx, const tni_array *dweight, const tni_array *dbias,
                              const tni_array *dy, const tni_array *x, const tni_array *mean,
                              const tni_array *rstd, const tni_array *weight, bool training)
{
    bn_job<R> job = bn_job_of<R>(x, mean, rstd, weight);
    job.dx = static_cast<R *>(dx->data);
    job.dw = static_cast<R *>(dweight->data);
    job.db = static_cast<R *>(dbias->data);
    job.dy = static_cast<const R *>(dy->data);
    job.training = training;
    return bn_backward(job);
}

tn_status tni_cuda_batch_norm_grad(const tni_array *dx, const tni_array *dweight,
                                   const tni_array *dbias, const tni_array *dy, const tni_array *x,
                                   const tni_array *mean, const tni_array *rstd,
                                   const tni_array *weight, bool training)
{
    TN_REAL(x->dtype, run_backward<R>(dx, dweight, dbias, dy, x, mean, rstd, weight, training));
    return TN_OK;
}
