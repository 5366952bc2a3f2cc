/*
 * batch_norm.cu - batch normalisation of a dense [n, c, s] array per channel.
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps), y = w xh + b, over the N = n s values of a
 * channel, with the biased variance; running_var moves towards the unbiased one (N - 1).
 * Ioffe and Szegedy, Batch Normalization (2015), section 3.
 *
 * Mean and variance in one pass: eight values at a time, their mean and squares about it in R; the
 * rest in double, about the channel's first value K: sum d and sum d^2 of d = x - K. An outlier K
 * costs no more than N ulp of double. Source: Chan, Golub, LeVeque: Algorithms for Computing the
 * Sample Variance (1983), sections 2 and 3.
 * How the values are divided among blocks: batch_norm.h.
 */
#include "cuda/batch_norm.h"

/* ---- forward --------------------------------------------------------------------------------- */

/* The channel's first value. */
template <typename R>
static __device__ __forceinline__ double bn_origin(const bn_job<R> &job, int64_t channel)
{
    return channel < 0 ? 0.0 : static_cast<double>(job.x[channel * job.s]);
}

/* The mean of v - origin and the squares about it in double, where R's left their range. */
template <typename R>
static __device__ __forceinline__ void bn_wide(const R (&v)[BN_AT_ONCE], int count, double origin,
                                               double &off, double &around)
{
    off = around = 0;
    TN_UNROLL
    for (int k = 0; k < BN_AT_ONCE; k++)
        off += k < count ? static_cast<double>(v[k]) - origin : 0.0;
    off /= count;
    TN_UNROLL
    for (int k = 0; k < BN_AT_ONCE; k++) {
        double d = static_cast<double>(v[k]) - origin - off;
        around += k < count ? d * d : 0.0;
    }
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
        TN_UNROLL
        for (int k = 0; k < BN_AT_ONCE; k += V) {
            bn_pack<R, V> p = {};
            if (w.left > 0) {
                p = bn_load<R, V>(job.x, w.at);
                bn_next(w);
                count += V;
            }
            TN_UNROLL
            for (int j = 0; j < V; j++) v[k + j] = p.v[j];
        }
        TN_UNROLL
        for (int k = 1; k < BN_AT_ONCE; k++) total += k < count ? v[k] - v[0] : 0;
        R mean = total / static_cast<R>(count); /* of v - v[0] */
        TN_UNROLL
        for (int k = 0; k < BN_AT_ONCE; k++) {
            R d = v[k] - v[0] - mean;
            about += k < count ? d * d : 0;
        }
        double off = static_cast<double>(v[0]) - origin + static_cast<double>(mean);
        double around = static_cast<double>(about);
        if (!(around < ROW_INFINITY)) bn_wide(v, count, origin, off, around);
        sum += off * count;
        squares += off * off * count + around;
    }
    bn_join<R, COLUMNS>(job, sum, squares);
}

/* From those sums: mean and 1 / deviation; updates the running statistics. Called by one thread. */
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
        job.running_mean[channel] =
            static_cast<R>((1.0 - m) * static_cast<double>(job.running_mean[channel]) + m * mean);
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
        TN_UNROLL
        for (int k = 0; k < V; k++) p.v[k] = (p.v[k] - mean) * scale + shift;
        bn_store<R, V>(job.y, w.at, p);
    }
}

/* One block does a whole channel. */
template <typename R, int V, bool COLUMNS> static __global__ void batch_norm_whole(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    double sum, squares;
    bn_moments<R, V, COLUMNS>(job, w, sum, squares);
    if (bn_speaks<COLUMNS>(w, job.s)) bn_settle(job, w.channel, sum, squares);
    __syncthreads();
    bn_normalise<R, V>(job, w);
}

template <typename R, int V, bool COLUMNS> static __global__ void batch_norm_sums(bn_job<R> job)
{
    bn_walk w = bn_begin<R, V, COLUMNS>(job);
    double sum, squares;
    bn_moments<R, V, COLUMNS>(job, w, sum, squares);
    if (!bn_speaks<COLUMNS>(w, job.s)) return;
    double *to = job.partial + (blockIdx.y * job.c + w.channel) * 2;
    to[0] = sum;
    to[1] = squares;
}

template <typename R, int V, bool COLUMNS> static __global__ void batch_norm_apply(bn_job<R> job)
{
    bn_normalise<R, V>(job, bn_begin<R, V, COLUMNS>(job));
}

template <typename R> static __global__ void batch_norm_settle(bn_job<R> job)
{
    EACH_CHANNEL(channel)
    {
        double sum, squares;
        bn_collect(job, channel, sum, squares);
        if (threadIdx.x % 32 == 0) bn_settle(job, channel, sum, squares);
    }
}

/* mean and rstd where no batch is there to compute them from: the running ones, or zeros. */
template <typename R> static __global__ void batch_norm_given(bn_job<R> job)
{
    for (int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         channel < job.c; channel += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        job.mean[channel] = job.training ? static_cast<R>(0) : job.running_mean[channel];
        job.rstd[channel] =
            job.training ? static_cast<R>(0)
                         : static_cast<R>(
                               1.0 / sqrt(static_cast<double>(job.running_var[channel]) + job.eps));
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

template <typename R> static tn_status bn_given(const bn_job<R> &job)
{
    return TN_LAUNCH((batch_norm_given<R>), row_grid(job.c, ROW_THREADS), ROW_THREADS, 0, job);
}

template <typename R> static tn_status bn_forward_split(const bn_job<R> &job, dim3 grid)
{
    if (job.training) {
        if (tn_status failed = BN_LAUNCH(batch_norm_sums)) return failed;
        if (tn_status failed =
                TN_LAUNCH((batch_norm_settle<R>), row_grid(job.c, ROW_WARPS), ROW_THREADS, 0, job))
            return failed;
    } else {
        if (tn_status failed = bn_given(job)) return failed;
    }
    return BN_LAUNCH(batch_norm_apply);
}

template <typename R> static tn_status bn_forward(bn_job<R> job)
{
    if (job.c == 0) return TN_OK;
    if (job.n == 0 || job.s == 0) return bn_given(job);
    dim3 grid = bn_cut(job);
    if (job.training && job.splits == 1) return BN_LAUNCH(batch_norm_whole);
    tni_cuda_scratch partial;
    if (job.training)
        if (tn_status failed = bn_borrow(job, partial)) return failed;
    return bn_forward_split(job, grid);
}

template <typename R> static tn_status run_forward(const tni_batch_norm *a)
{
    bn_job<R> job = bn_job_of<R>(a);
    job.y = static_cast<R *>(a->y.data);
    job.b = static_cast<const R *>(a->bias.data);
    job.running_mean = static_cast<R *>(a->running_mean.data);
    job.running_var = static_cast<R *>(a->running_var.data);
    job.training = a->training;
    job.momentum = a->momentum;
    job.eps = a->eps;
    return bn_forward(job);
}

tn_status tni_cuda_batch_norm(const tni_batch_norm *a)
{
    return TN_REAL(a->x.dtype, run_forward<R>(a));
}
