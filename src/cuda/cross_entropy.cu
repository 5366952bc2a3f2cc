/*
 * cross_entropy.cu - cross entropy with class indices over a dense [n, c, d] array of logits, row
 * by row, and its gradient. A row is the c logits of one (i, k); lse = log sum exp of it.
 *
 * With class weights w (1 without) and smoothing e:
 *   row_loss = (1 - e) w[t] (lse - x[t]) + e / c sum_j w[j] (lse - x[j])
 *   d row_loss / d x[j] = a (p[j] - [j = t]) + e / c (W p[j] - w[j])
 *   with a = (1 - e) w[t], p = exp(x - lse), W = sum w
 * Source: Szegedy et al., Rethinking the Inception Architecture (2016), section 7 (smoothing).
 *
 * d = 1: a warp does a row that fits into its registers, a block a longer one. d > 1 (images): a
 * thread does a row, so that the threads of a warp read neighbours along d.
 */
#include "cuda/fault.h"
#include "cuda/online.h"

template <typename R> struct ce_job {
    R *dx, *row_loss, *row_weight, *lse;
    const R *x, *w, *drow;
    const int64_t *target;
    int64_t n, c, d, drow_stride[2], ignore, first;
    R keep, spread; /* 1 - e, e / c */
    tni_cuda_fault *fault;
    int64_t launch;
};

template <typename R>
static __device__ __forceinline__ bool ce_counts(const ce_job<R> &job, int64_t row, int64_t t,
                                                 bool report)
{
    return row_counts(t, job.c, job.ignore, job.first + row, job.fault, job.launch, report);
}

/* What one thread writes of row number `row`; sum: of w[j] (lse - x[j]), 0 without smoothing. */
template <typename R>
static __device__ __forceinline__ void ce_write(const ce_job<R> &job, int64_t row, R lse, R sum,
                                                const R *x, int64_t stride)
{
    int64_t t = job.target[row];
    R loss = 0, wt = 0;
    if (ce_counts(job, row, t, true)) {
        wt = job.w ? job.w[t] : 1;
        loss = job.keep * wt * (lse - x[t * stride]);
        if (job.spread != 0) loss += job.spread * sum;
    }
    job.lse[row] = lse;
    job.row_loss[row] = loss;
    job.row_weight[row] = wt;
}

template <typename R, int K> static __global__ void cross_entropy_warp(ce_job<R> job)
{
    const R none = -ROW_INFINITY;
    int lane = threadIdx.x % 32, c = static_cast<int>(job.c);
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < job.n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        const R *x = job.x + i * c;
        R v[K], top = none, sum = 0, spread = 0;
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane + 32 * k;
            v[k] = j < c ? x[j] : none;
            top = v[k] > top ? v[k] : top;
        }
        top = warp_max(top);
        TN_UNROLL
        for (int k = 0; k < K; k++) sum += lane + 32 * k < c ? row_exp(v[k] - top) : 0;
        R lse = top + row_log(warp_sum(sum));
        if (job.spread != 0) {
            TN_UNROLL
            for (int k = 0; k < K; k++) {
                int j = lane + 32 * k;
                if (j < c) spread += (job.w ? job.w[j] : 1) * (lse - v[k]);
            }
            spread = warp_sum(spread);
        }
        if (lane == 0) ce_write(job, i, lse, spread, x, 1);
    }
}

template <typename R> static __global__ void cross_entropy_block(ce_job<R> job)
{
    for (int64_t i = blockIdx.x; i < job.n; i += gridDim.x) {
        const R *x = job.x + i * job.c, *w = job.w;
        online_sum<R> row = online_row(x, job.c, 1, threadIdx.x, blockDim.x);
        online_block(row);
        R lse = row.top + row_log(static_cast<R>(row.sum)), spread = 0;
        if (job.spread != 0)
            spread = static_cast<R>(block_sum(
                thread_sum<R>(job.c, [=](int64_t j) { return (w ? w[j] : 1) * (lse - x[j]); })));
        if (threadIdx.x == 0) ce_write(job, i, lse, spread, x, 1);
    }
}

template <typename R> static __global__ void cross_entropy_columns(ce_job<R> job)
{
    int64_t rows = job.n * job.d, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t row = first; row < rows; row += step) {
        int64_t i = row / job.d;
        const R *x = job.x + i * job.c * job.d + (row - i * job.d);
        online_sum<R> s = online_row(x, job.c, job.d, 0, 1);
        if (s.top == static_cast<R>(-ROW_INFINITY)) s.sum = s.top - s.top; /* NaN */
        R lse = s.top + row_log(static_cast<R>(s.sum)), spread = 0;
        for (int64_t j = 0; job.spread != 0 && j < job.c; j++)
            spread += (job.w ? job.w[j] : 1) * (lse - x[j * job.d]);
        ce_write(job, row, lse, spread, x, job.d);
    }
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* Of a row: dx[j] = scale p[j] - b w[j], less a where j = t; zeros, not NaN, where the row is left
 * out, whatever it holds. */
template <typename R> struct ce_slope {
    R a, b, scale, lse;
    int64_t t; /* -1: the row is left out */
};

/* first: the thread that reports a bad class. */
template <typename R>
static __device__ __forceinline__ ce_slope<R> ce_slope_of(const ce_job<R> &job, int64_t row, R g,
                                                          R weight_sum, bool first)
{
    ce_slope<R> s = { 0, 0, 0, job.lse[row], job.target[row] };
    if (ce_counts(job, row, s.t, first)) {
        s.a = g * job.keep * (job.w ? job.w[s.t] : 1);
        s.b = g * job.spread;
        s.scale = s.a + s.b * weight_sum;
    } else {
        s.t = -1;
    }
    return s;
}

template <typename R>
static __device__ __forceinline__ R ce_slope_at(const ce_job<R> &job, const ce_slope<R> &s, R x,
                                                int64_t j)
{
    if (s.t < 0) return 0;
    R y = s.scale * row_exp(x - s.lse) - s.b * (job.w && s.b != 0 ? job.w[j] : 1);
    return j == s.t ? y - s.a : y;
}

/* W, computed by every block in the same order. */
template <typename R> static __device__ __forceinline__ R ce_weight_sum(const ce_job<R> &job)
{
    const R *w = job.w;
    if (!w || job.spread == 0) return static_cast<R>(job.c);
    return static_cast<R>(block_sum(thread_sum<R>(job.c, [=](int64_t j) { return w[j]; })));
}

enum { CE_PIECE = 2048 };

/* d = 1: a warp takes a piece of CE_PIECE classes of a row. */
template <typename R> static __global__ void cross_entropy_grad_rows(ce_job<R> job, int64_t pieces)
{
    R weight_sum = ce_weight_sum(job);
    int lane = threadIdx.x % 32;
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t item = first; item < job.n * pieces;
         item += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        int64_t i = item / pieces, from = (item - i * pieces) * CE_PIECE;
        int64_t end = min(job.c, from + CE_PIECE);
        const R *x = job.x + i * job.c;
        R *dx = job.dx + i * job.c;
        R g = job.drow[i * job.drow_stride[0]];
        ce_slope<R> s = ce_slope_of(job, i, g, weight_sum, lane == 0 && from == 0);
        for (int64_t j = from + lane; j < end; j += 32) dx[j] = ce_slope_at(job, s, x[j], j);
    }
}

template <typename R> static __global__ void cross_entropy_grad_columns(ce_job<R> job)
{
    R weight_sum = ce_weight_sum(job);
    int64_t rows = job.n * job.d, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t row = first; row < rows; row += step) {
        int64_t i = row / job.d, k = row - i * job.d, at = i * job.c * job.d + k;
        R g = job.drow[i * job.drow_stride[0] + k * job.drow_stride[1]];
        ce_slope<R> s = ce_slope_of(job, row, g, weight_sum, true);
        for (int64_t j = 0; j < job.c; j++, at += job.d)
            job.dx[at] = ce_slope_at(job, s, job.x[at], j);
    }
}

/* ---- the two slots --------------------------------------------------------------------------- */

template <typename R>
static ce_job<R> ce_job_of(const tni_array *lse, const tni_array *x, const tni_array *target,
                           const tni_array *weight, double smoothing, int64_t ignore)
{
    ce_job<R> job = {};
    job.lse = static_cast<R *>(lse->data);
    job.x = static_cast<const R *>(x->data);
    job.w = static_cast<const R *>(weight->data);
    job.target = static_cast<const int64_t *>(target->data);
    job.n = x->size[0];
    job.c = x->size[1];
    job.d = x->size[2];
    job.ignore = ignore;
    job.keep = static_cast<R>(1.0 - smoothing);
    job.spread = job.c > 0 ? static_cast<R>(smoothing / static_cast<double>(job.c)) : 0;
    job.fault = tni_cuda_fault_word();
    job.launch = tni_cuda_fault_launch();
    return job;
}

template <typename R> static tn_status forward(const ce_job<R> &job)
{
    if (job.n == 0 || job.d == 0) return TN_OK;
    if (job.d > 1)
        return TN_LAUNCH((cross_entropy_columns<R>), row_grid(job.n * job.d, ROW_THREADS),
                         ROW_THREADS, 0, job);
    if (job.c > ROW_IN_WARP)
        return TN_LAUNCH((cross_entropy_block<R>), row_grid(job.n, 1), ROW_BLOCK, 0, job);
    return ROW_ITEMS(job.c, TN_LAUNCH((cross_entropy_warp<R, K>), row_grid(job.n, ROW_WARPS),
                                      ROW_THREADS, 0, job));
}

template <typename R> static tn_status backward(const ce_job<R> &job)
{
    if (job.n == 0 || job.d == 0 || job.c == 0) return TN_OK;
    if (job.d > 1)
        return TN_LAUNCH((cross_entropy_grad_columns<R>), row_grid(job.n * job.d, ROW_THREADS),
                         ROW_THREADS, 0, job);
    int64_t pieces = (job.c + CE_PIECE - 1) / CE_PIECE;
    return TN_LAUNCH((cross_entropy_grad_rows<R>), row_grid(job.n * pieces, ROW_WARPS), ROW_THREADS,
                     0, job, pieces);
}

template <typename R> static tn_status run_forward(const tni_cross_entropy *a)
{
    ce_job<R> job = ce_job_of<R>(&a->lse, &a->x, &a->target, &a->weight, a->smoothing, a->ignore);
    job.row_loss = static_cast<R *>(a->row_loss.data);
    job.row_weight = static_cast<R *>(a->row_weight.data);
    job.first = a->first;
    return forward(job);
}

template <typename R> static tn_status run_backward(const tni_cross_entropy_grad *a)
{
    ce_job<R> job = ce_job_of<R>(&a->lse, &a->x, &a->target, &a->weight, a->smoothing, a->ignore);
    job.dx = static_cast<R *>(a->dx.data);
    job.drow = static_cast<const R *>(a->drow.data);
    job.drow_stride[0] = a->drow.stride[0];
    job.drow_stride[1] = a->drow.stride[1];
    return backward(job);
}

tn_status tni_cuda_cross_entropy(const tni_cross_entropy *a)
{
    return TN_REAL(a->x.dtype, run_forward<R>(a));
}

tn_status tni_cuda_cross_entropy_grad(const tni_cross_entropy_grad *a)
{
    return TN_REAL(a->x.dtype, run_backward<R>(a));
}
