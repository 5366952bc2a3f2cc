/*
 * batch_norm_grad.cu - the gradient of batch normalisation of a dense [n, c, s] array.
 *
 * With sums over the N = n s values of a channel and xh = (x - mean) rstd:
 *   db = sum dy, dw = sum dy xh, dx = w rstd (dy - db / N - xh dw / N)
 * With running statistics the last two terms of dx vanish. Ioffe and Szegedy, Batch Normalization
 * (2015), section 3. Sums are in R over at most 32 positions, and from there in double.
 */
#include "cuda/batch_norm.h"

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
            TN_UNROLL
            for (int j = 0; j < V; j++) {
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
    if (job.dw) job.dw[channel] = static_cast<R>(sum_gx * static_cast<double>(job.rstd[channel]));
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
        slope =
            static_cast<R>(sum_gx / count * static_cast<double>(rstd) * static_cast<double>(rstd));
    }
    for (; w.left > 0; bn_next(w)) {
        bn_pack<R, V> p = bn_load<R, V>(job.x, w.at), q = bn_load<R, V>(job.dy, w.at);
        TN_UNROLL
        for (int k = 0; k < V; k++)
            q.v[k] =
                job.training ? scale * (q.v[k] - level - (p.v[k] - mean) * slope) : scale * q.v[k];
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

/* ---- launches -------------------------------------------------------------------------------- */

template <typename R> static tn_status bn_backward_split(const bn_job<R> &job, dim3 grid)
{
    if (job.partial) {
        if (tn_status failed = BN_LAUNCH(batch_norm_grad_sums)) return failed;
        if (tn_status failed = TN_LAUNCH((batch_norm_grad_settle<R>), row_grid(job.c, ROW_WARPS),
                                         ROW_THREADS, 0, job))
            return failed;
    }
    if (!job.dx) return TN_OK;
    return BN_LAUNCH(batch_norm_grad_apply);
}

template <typename R> static tn_status bn_backward(bn_job<R> job)
{
    bool sums = job.training || job.dw || job.db;
    if (job.c == 0) return TN_OK;
    if (job.n == 0 || job.s == 0) {
        size_t nbytes = static_cast<size_t>(job.c) * sizeof(R);
        if (tn_status failed = tni_cuda_launching("batch_norm_grad")) return failed;
        R *const sums_of[] = { job.dw, job.db };
        for (R *to : sums_of)
            if (tn_status failed =
                    to ? TN_CUDA(cudaMemsetAsync(to, 0, nbytes, tni_cuda_stream)) : TN_OK)
                return failed;
        return TN_OK;
    }
    dim3 grid = bn_cut(job);
    if (sums && job.splits == 1) return BN_LAUNCH(batch_norm_grad_whole);
    tni_cuda_scratch partial;
    if (sums)
        if (tn_status failed = bn_borrow(job, partial)) return failed;
    return bn_backward_split(job, grid);
}

template <typename R> static tn_status run_backward(const tni_batch_norm_grad *a)
{
    bn_job<R> job = bn_job_of<R>(a);
    job.dx = static_cast<R *>(a->dx.data);
    job.dw = static_cast<R *>(a->dweight.data);
    job.db = static_cast<R *>(a->dbias.data);
    job.dy = static_cast<const R *>(a->dy.data);
    job.training = a->training;
    return bn_backward(job);
}

tn_status tni_cuda_batch_norm_grad(const tni_batch_norm_grad *a)
{
    return TN_REAL(a->x.dtype, run_backward<R>(a));
}
