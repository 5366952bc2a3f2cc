/*
 * batch_norm.h - how the values of a dense [n, c, s] array are divided among blocks, for
 * batch_norm.cu and batch_norm_grad.cu.
 *
 * Planes (s >= COLUMNS_BELOW): a block has one channel; neighbouring threads are neighbours along
 * s. Columns: a block has as many whole channels as fit into 32 columns of the [n, c s] matrix; a
 * warp reads a row of them. If there are few channels, several blocks share one and write partial
 * sums, which a second launch adds in order; else one launch does everything.
 */
#pragma once

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

/* ---- which values are a thread's ------------------------------------------------------------- */

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

/* Sums a and b over the threads of this thread's channel, in a fixed order. For a whole block. */
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

/* The thread that writes for its channel. */
template <bool COLUMNS>
static __device__ __forceinline__ bool bn_speaks(const bn_walk &w, int64_t s)
{
    if (!COLUMNS) return threadIdx.x == 0;
    return threadIdx.x < 32 && w.channel >= 0 && threadIdx.x % s == 0;
}

/* A warp adds the partial sums of its channel's blocks: every lane gets the sums. */
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

/* ---- launches -------------------------------------------------------------------------------- */

template <typename R> static inline bool bn_in_columns(const bn_job<R> &job)
{
    return job.s < COLUMNS_BELOW;
}

static inline bool bn_aligned(const void *a)
{
    return reinterpret_cast<uintptr_t>(a) % 16 == 0; /* true for NULL too */
}

/* Values per position: sixteen bytes' worth where the planes allow it. */
template <typename R> static inline int bn_width(const bn_job<R> &job)
{
    const int V = 16 / sizeof(R);
    bool whole = !bn_in_columns(job) && job.s % V == 0 && bn_aligned(job.x) && bn_aligned(job.y) &&
                 bn_aligned(job.dy) && bn_aligned(job.dx);
    return whole ? V : 1;
}

/* Cuts the work into blocks; the grid, y over the splits of a channel. */
template <typename R> static inline dim3 bn_cut(bn_job<R> &job)
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

/* Calls launch with V and COLUMNS; launches such a kernel. */
#define BN_LAYOUT(job, launch)                                                                     \
    [&]() -> tn_status {                                                                           \
        if (bn_in_columns(job)) {                                                                  \
            constexpr int V = 1;                                                                   \
            constexpr bool COLUMNS = true;                                                         \
            return launch;                                                                         \
        } else if (bn_width(job) == 1) {                                                           \
            constexpr int V = 1;                                                                   \
            constexpr bool COLUMNS = false;                                                        \
            return launch;                                                                         \
        } else {                                                                                   \
            constexpr int V = 16 / sizeof(R);                                                      \
            constexpr bool COLUMNS = false;                                                        \
            return launch;                                                                         \
        }                                                                                          \
    }()

#define BN_LAUNCH(kernel)                                                                          \
    BN_LAYOUT(job, TN_LAUNCH((kernel<R, V, COLUMNS>), grid, BN_THREADS, 0, job))

template <typename R> static inline tn_status bn_borrow(bn_job<R> &job, tni_cuda_scratch &partial)
{
    tn_status status = partial.borrow(static_cast<size_t>(2 * job.splits * job.c) * sizeof(double));
    job.partial = partial.as<double>();
    return status;
}

template <typename R, typename CALL> static inline bn_job<R> bn_job_of(const CALL *a)
{
    bn_job<R> job = {};
    job.x = static_cast<const R *>(a->x.data);
    job.mean = static_cast<R *>(a->mean.data);
    job.rstd = static_cast<R *>(a->rstd.data);
    job.w = static_cast<const R *>(a->weight.data);
    job.n = a->x.size[0];
    job.c = a->x.size[1];
    job.s = a->x.size[2];
    return job;
}
