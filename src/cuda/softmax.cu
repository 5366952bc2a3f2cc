/*
 * softmax.cu - softmax and log-softmax of the rows of a dense [n, c] array, and their gradients.
 *
 * A row of at most ROW_IN_WARP elements stays in the registers of one warp: one read, one write. A
 * block does a longer one: the first pass keeps a running maximum m and the sum s of exp(x - m),
 * which is scaled when m grows; the second pass writes (the row then comes from cache).
 * Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018), algorithm 3.
 * A row of -inf gives -inf - -inf = NaN; of keys that are seen, 0.
 */
#include "cuda/online.h"
#include "cuda/rows.h"

/* ---- forward --------------------------------------------------------------------------------- */

template <typename R, int K>
static __global__ void softmax_warp(R *y, const R *x, int64_t n, int c, bool log, bool seen)
{
    int lane = threadIdx.x % 32;
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        const R *from = x + i * c;
        R *to = y + i * c;
        R v[K], top = -ROW_INFINITY, sum = 0;
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane + 32 * k;
            v[k] = j < c ? from[j] : static_cast<R>(-ROW_INFINITY);
            top = v[k] > top ? v[k] : top;
        }
        top = warp_max(top);
        if (seen && top == static_cast<R>(-ROW_INFINITY)) top = 0;
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            bool there = lane + 32 * k < c;
            v[k] -= top; /* the logarithm needs two subtractions: top may be much larger */
            R e = there ? row_exp(v[k]) : 0;
            sum += e;
            if (!log) v[k] = e;
        }
        sum = warp_sum(sum);
        R scale = sum == 0 ? 0 : 1 / sum, log_sum = row_log(sum);
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane + 32 * k;
            if (j < c) to[j] = log ? v[k] - log_sum : v[k] * scale;
        }
    }
}

template <typename R>
static __global__ void softmax_block(R *y, const R *x, int64_t n, int64_t c, bool log, bool seen)
{
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const R *from = x + i * c;
        R *to = y + i * c;
        online_sum<R> row = online_row(from, c, 1, threadIdx.x, blockDim.x);
        online_block(row);
        R top = row.top, scale = static_cast<R>(1 / row.sum);
        /* -inf alone, or NaN, which stays: from[j] * 0 */
        if (seen && top == static_cast<R>(-ROW_INFINITY)) top = scale = 0;
        R log_sum = row_log(static_cast<R>(row.sum));
        for (int64_t j = threadIdx.x; j < c; j += blockDim.x) {
            R v = from[j] - top;
            to[j] = log ? v - log_sum : row_exp(v) * scale;
        }
    }
}

template <typename R> static tn_status softmax(const tni_softmax *a)
{
    int64_t n = a->x.size[0], c = a->x.size[1];
    R *to = static_cast<R *>(a->y.data);
    const R *from = static_cast<const R *>(a->x.data);
    if (n == 0 || c == 0) return TN_OK;
    if (c <= ROW_IN_WARP) {
        return ROW_ITEMS(c, TN_LAUNCH((softmax_warp<R, K>), row_grid(n, ROW_WARPS), ROW_THREADS, 0,
                                      to, from, n, static_cast<int>(c), a->log, a->seen));
    }
    return TN_LAUNCH((softmax_block<R>), row_grid(n, 1), ROW_BLOCK, 0, to, from, n, c, a->log,
                     a->seen);
}

tn_status tni_cuda_softmax(const tni_softmax *a)
{
    return TN_REAL(a->x.dtype, softmax<R>(a));
}

/* ---- gradient: dx = y (dy - sum dy y); of the logarithm: dx = dy - exp(y) sum dy ------------- */

template <typename R> static __device__ __forceinline__ R softmax_slope(R y, R dy, R sum, bool log)
{
    return log ? dy - row_exp(y) * sum : y * (dy - sum);
}

template <typename R, int K>
static __global__ void softmax_grad_warp(R *dx, const R *dy, const R *y, int64_t n, int c, bool log)
{
    int lane = threadIdx.x % 32;
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        R v[K], g[K], sum = 0;
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane + 32 * k;
            v[k] = j < c ? y[i * c + j] : static_cast<R>(0);
            g[k] = j < c ? dy[i * c + j] : static_cast<R>(0);
        }
        TN_UNROLL
        for (int k = 0; k < K; k++) sum += log ? g[k] : g[k] * v[k];
        sum = warp_sum(sum);
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane + 32 * k;
            if (j < c) dx[i * c + j] = softmax_slope(v[k], g[k], sum, log);
        }
    }
}

template <typename R>
static __global__ void softmax_grad_block(R *dx, const R *dy, const R *y, int64_t n, int64_t c,
                                          bool log)
{
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const R *v = y + i * c, *g = dy + i * c;
        R sum = static_cast<R>(
            block_sum(thread_sum<R>(c, [=](int64_t j) { return log ? g[j] : g[j] * v[j]; })));
        for (int64_t j = threadIdx.x; j < c; j += blockDim.x)
            dx[i * c + j] = softmax_slope(v[j], g[j], sum, log);
    }
}

template <typename R> static tn_status softmax_grad(const tni_softmax_grad *a)
{
    int64_t n = a->y.size[0], c = a->y.size[1];
    R *to = static_cast<R *>(a->dx.data);
    const R *g = static_cast<const R *>(a->dy.data), *v = static_cast<const R *>(a->y.data);
    if (n == 0 || c == 0) return TN_OK;
    if (c <= ROW_IN_WARP) {
        return ROW_ITEMS(c, TN_LAUNCH((softmax_grad_warp<R, K>), row_grid(n, ROW_WARPS),
                                      ROW_THREADS, 0, to, g, v, n, static_cast<int>(c), a->log));
    }
    return TN_LAUNCH((softmax_grad_block<R>), row_grid(n, 1), ROW_BLOCK, 0, to, g, v, n, c, a->log);
}

tn_status tni_cuda_softmax_grad(const tni_softmax_grad *a)
{
    return TN_REAL(a->y.dtype, softmax_grad<R>(a));
}
