/*
 * cross_entropy.cu - cross entropy with class indices over a dense [n, c, d] array of logits, row
 * by row, and its gradient. A row is the c logits of one (i, k); m its largest, s = sum exp(x - m).
 *
 * With class weights w (1 without) and smoothing e:
 *   row_loss = (1 - e) w[t] (m - x[t] + log s) + e / c sum_j w[j] (m - x[j] + log s)
 *   d row_loss / d x[j] = a (p[j] - [j = t]) + e / c (W p[j] - w[j])
 *   with a = (1 - e) w[t], p = exp(x - m) / s, W = sum w
 * m and s are kept apart: m + log s would lose log s where logits are large.
 * Source: Szegedy et al., Rethinking the Inception Architecture (2016), section 7 (smoothing).
 *
 * d = 1: a warp does a row that fits into its registers, a block a longer one, 16 bytes at a time:
 * these passes over the logits are all of a language model's loss but the products. d > 1 (images):
 * a thread does a row, so that the threads of a warp read neighbours along d. A sum's order depends
 * on the sizes and on where the row begins within 16 bytes.
 */
#include "cuda/elements.h"
#include "cuda/fault.h"
#include "cuda/online.h"

/* E: of the logits, R: what is computed in. */
template <typename E, typename R> struct ce_job {
    void *dx; /* of E, or shorter where E is float */
    R *row_loss, *row_weight, *top, *sum;
    const E *x;
    const void *w;
    const R *drow;
    const int64_t *target;
    int64_t n, c, d, x_row, dx_row, drow_stride[2], ignore, first;
    R keep, spread; /* 1 - e, e / c */
    tni_cuda_fault *fault;
    int64_t launch;
    tn_dtype w_dtype;
};

template <typename E> using ce_job_in = ce_job<E, typename element<E>::computing>;

template <typename E, typename R>
static __device__ __forceinline__ R ce_weight(const ce_job<E, R> &job, int64_t j)
{
    return job.w ? kin<R>::load(job.w, job.w_dtype, j) : 1;
}

template <typename E, typename R>
static __device__ __forceinline__ bool ce_counts(const ce_job<E, R> &job, int64_t row, int64_t t,
                                                 bool report)
{
    return row_counts(t, job.c, job.ignore, job.first + row, job.fault, job.launch, report);
}

/* What one thread writes of row number `row`; spread: the sum of w[j] (m - x[j] + log s), 0 without
 * smoothing. */
template <typename E, typename R>
static __device__ __forceinline__ void ce_write(const ce_job<E, R> &job, int64_t row, R top, R sum,
                                                R spread, const E *x, int64_t stride)
{
    int64_t t = job.target[row];
    R loss = 0, wt = 0;
    if (ce_counts(job, row, t, true)) {
        wt = ce_weight(job, t);
        loss = job.keep * wt * ((top - wide(x[t * stride])) + row_log(sum));
        if (job.spread != 0) loss += job.spread * spread;
    }
    job.top[row] = top;
    job.sum[row] = sum;
    job.row_loss[row] = loss;
    job.row_weight[row] = wt;
}

template <typename E, typename R, int K> static __global__ void cross_entropy_warp(ce_job<E, R> job)
{
    const R none = -ROW_INFINITY;
    int lane = threadIdx.x % 32, c = static_cast<int>(job.c);
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < job.n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        const E *x = job.x + i * job.x_row;
        R v[K], top = none, sum = 0, spread = 0;
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane + 32 * k;
            v[k] = j < c ? wide(x[j]) : none;
            top = v[k] > top ? v[k] : top;
        }
        top = warp_max(top);
        TN_UNROLL
        for (int k = 0; k < K; k++) sum += lane + 32 * k < c ? row_exp(v[k] - top) : 0;
        sum = warp_sum(sum);
        if (job.spread != 0) {
            const R log_sum = row_log(sum);
            TN_UNROLL
            for (int k = 0; k < K; k++) {
                int j = lane + 32 * k;
                if (j < c) spread += ce_weight(job, j) * ((top - v[k]) + log_sum);
            }
            spread = warp_sum(spread);
        }
        if (lane == 0) ce_write(job, i, top, sum, spread, x, 1);
    }
}

/* 16 bytes in one access. */
template <typename E> constexpr int PACK = 16 / sizeof(E);
template <typename E> using pack = several<E, PACK<E>>;

/* n neighbours: `lead` of them until x is aligned to 16 bytes, and y to as many elements; packs; a
 * rest. Loose is what is in no pack: all, where x and y are aligned differently. */
template <typename E, typename D = E> struct packing {
    int64_t lead, packs, loose;
    __device__ __forceinline__ packing(const E *x, const D *y, int64_t n)
    {
        uintptr_t from = reinterpret_cast<uintptr_t>(x), to = reinterpret_cast<uintptr_t>(y);
        lead = min(n, static_cast<int64_t>((0 - from) % 16 / sizeof(E)));
        packs = (to + lead * sizeof(D)) % (PACK<E> * sizeof(D)) == 0 ? (n - lead) / PACK<E> : 0;
        loose = n - packs * PACK<E>;
    }
    /* Where loose element k is. */
    __device__ __forceinline__ int64_t place(int64_t k) const
    {
        return k < lead ? k : k + packs * PACK<E>;
    }
};

/* This thread's part of a row of neighbours. */
template <typename E, typename R>
static __device__ __forceinline__ void online_packs(online_sum<R> &s, const E *x, int64_t c)
{
    enum { AT_ONCE = 2, SIZE = PACK<E> };
    const packing<E> row(x, x, c);
    const pack<E> *from = reinterpret_cast<const pack<E> *>(x + row.lead);
    for (int64_t k = threadIdx.x; k < row.loose; k += blockDim.x) {
        R v[] = { wide(x[row.place(k)]) };
        online_add(s, v);
    }
    for (int64_t k = threadIdx.x; k < row.packs; k += AT_ONCE * blockDim.x) {
        R v[AT_ONCE * SIZE];
        TN_UNROLL
        for (int a = 0; a < AT_ONCE; a++) {
            int64_t at = k + a * blockDim.x;
            pack<E> q = from[min(at, row.packs - 1)];
            TN_UNROLL
            for (int e = 0; e < SIZE; e++)
                v[a * SIZE + e] = at < row.packs ? wide(q.v[e]) : static_cast<R>(-ROW_INFINITY);
        }
        online_add(s, v);
    }
}

template <typename E, typename R> static __global__ void cross_entropy_block(ce_job<E, R> job)
{
    for (int64_t i = blockIdx.x; i < job.n; i += gridDim.x) {
        const E *x = job.x + i * job.x_row;
        online_sum<R> row = { static_cast<R>(-ROW_INFINITY), 0 };
        online_packs(row, x, job.c);
        online_block(row);
        const R top = row.top, sum = static_cast<R>(row.sum), log_sum = row_log(sum);
        R spread = 0;
        if (job.spread != 0)
            spread = static_cast<R>(block_sum(thread_sum<R>(job.c, [&](int64_t j) {
                return ce_weight(job, j) * ((top - wide(x[j])) + log_sum);
            })));
        if (threadIdx.x == 0) ce_write(job, i, top, sum, spread, x, 1);
    }
}

template <typename E, typename R> static __global__ void cross_entropy_columns(ce_job<E, R> job)
{
    int64_t rows = job.n * job.d;
    for (int64_t step = grid_threads(), row = grid_thread(); row < rows; row += step) {
        int64_t i = row / job.d;
        const E *x = job.x + i * job.x_row + (row - i * job.d);
        online_sum<R> s = online_row(x, job.c, job.d, 0, 1);
        if (s.top == static_cast<R>(-ROW_INFINITY)) s.sum = s.top - s.top; /* NaN */
        const R top = s.top, sum = static_cast<R>(s.sum), log_sum = row_log(sum);
        R spread = 0;
        for (int64_t j = 0; job.spread != 0 && j < job.c; j++)
            spread += ce_weight(job, j) * ((top - wide(x[j * job.d])) + log_sum);
        ce_write(job, row, top, sum, spread, x, job.d);
    }
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* For a row: dx[j] = scale p[j] - b w[j], less a where j = t; zeros where the row is left out, and
 * not NaN, whatever it holds. */
template <typename R> struct ce_slope {
    R a, b, scale, top; /* scale: of exp(x - top) */
    int64_t t;          /* -1: the row is left out */
};

/* first: the thread that reports a bad class. */
template <typename E, typename R>
static __device__ __forceinline__ ce_slope<R> ce_slope_of(const ce_job<E, R> &job, int64_t row, R g,
                                                          R weight_sum, bool first)
{
    ce_slope<R> s = { 0, 0, 0, job.top[row], job.target[row] };
    if (ce_counts(job, row, s.t, first)) {
        s.a = g * job.keep * ce_weight(job, s.t);
        s.b = g * job.spread;
        s.scale = (s.a + s.b * weight_sum) / job.sum[row];
    } else {
        s.t = -1;
    }
    return s;
}

/* For K neighbours of a row from x[j] on. */
template <typename E, typename D, typename R, int K>
static __device__ __forceinline__ void ce_slopes(const ce_job<E, R> &job, const ce_slope<R> &s,
                                                 const E (&v)[K], D (&dx)[K], int64_t j)
{
    int hit = s.t >= j && s.t < j + K ? static_cast<int>(s.t - j) : -1;
    R y[K];
    TN_UNROLL
    for (int k = 0; k < K; k++) y[k] = s.scale * row_exp(wide(v[k]) - s.top) - (k == hit ? s.a : 0);
    if (s.b != 0) {
        TN_UNROLL
        for (int k = 0; k < K; k++) y[k] -= s.b * ce_weight(job, j + k);
    }
    TN_UNROLL
    for (int k = 0; k < K; k++) dx[k] = element<D>::rounded(s.t < 0 ? 0 : y[k]);
}

/* W, computed by every block in the same order. */
template <typename E, typename R>
static __device__ __forceinline__ R ce_weight_sum(const ce_job<E, R> &job)
{
    if (!job.w || job.spread == 0) return static_cast<R>(job.c);
    return static_cast<R>(
        block_sum(thread_sum<R>(job.c, [&](int64_t j) { return ce_weight(job, j); })));
}

enum { CE_PIECE = 2048 };

/* d = 1: a warp takes a piece of CE_PIECE classes of a row. */
template <typename E, typename D, typename R>
static __global__ void cross_entropy_grad_rows(ce_job<E, R> job, int64_t pieces)
{
    typedef several<D, PACK<E>> written;
    R weight_sum = ce_weight_sum(job);
    int lane = threadIdx.x % 32;
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t item = first; item < job.n * pieces;
         item += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        int64_t i = item / pieces, from = (item - i * pieces) * CE_PIECE;
        const E *x = job.x + i * job.x_row + from;
        D *dx = static_cast<D *>(job.dx) + i * job.dx_row + from;
        R g = job.drow[i * job.drow_stride[0]];
        ce_slope<R> s = ce_slope_of(job, i, g, weight_sum, lane == 0 && from == 0);
        const packing<E, D> piece(x, dx, min(job.c - from, static_cast<int64_t>(CE_PIECE)));
        for (int64_t k = lane; k < piece.loose; k += 32) {
            int64_t j = piece.place(k);
            E v[] = { x[j] };
            D y[1];
            ce_slopes(job, s, v, y, from + j);
            dx[j] = y[0];
        }
        const pack<E> *read = reinterpret_cast<const pack<E> *>(x + piece.lead);
        written *write = reinterpret_cast<written *>(dx + piece.lead), y;
        pack<E> next = {};
        if (lane < piece.packs) next = read[lane];
        for (int64_t k = lane; k < piece.packs; k += 32) {
            pack<E> q = next; /* loaded while the one before was computed */
            if (k + 32 < piece.packs) next = read[k + 32];
            ce_slopes(job, s, q.v, y.v, from + piece.lead + k * PACK<E>);
            write[k] = y;
        }
    }
}

template <typename E, typename R>
static __global__ void cross_entropy_grad_columns(ce_job<E, R> job)
{
    R weight_sum = ce_weight_sum(job);
    int64_t rows = job.n * job.d;
    for (int64_t step = grid_threads(), row = grid_thread(); row < rows; row += step) {
        int64_t i = row / job.d, k = row - i * job.d;
        const E *x = job.x + i * job.x_row + k;
        E *dx = static_cast<E *>(job.dx) + i * job.dx_row + k;
        R g = job.drow[i * job.drow_stride[0] + k * job.drow_stride[1]];
        ce_slope<R> s = ce_slope_of(job, row, g, weight_sum, true);
        for (int64_t j = 0; j < job.c; j++) {
            E v[] = { x[j * job.d] }, y[1];
            ce_slopes(job, s, v, y, j);
            dx[j * job.d] = y[0];
        }
    }
}

/* ---- the two slots --------------------------------------------------------------------------- */

template <typename E, typename CALL> static ce_job_in<E> ce_job_of(const CALL *a)
{
    typedef typename element<E>::computing R;
    ce_job_in<E> job = {};
    job.top = static_cast<R *>(a->top.data);
    job.sum = static_cast<R *>(a->sum.data);
    job.x = static_cast<const E *>(a->x.data);
    job.x_row = a->x.stride[0];
    job.w = a->weight.data;
    job.w_dtype = a->weight.dtype;
    job.target = static_cast<const int64_t *>(a->target.data);
    job.n = a->x.size[0];
    job.c = a->x.size[1];
    job.d = a->x.size[2];
    job.ignore = a->ignore;
    job.keep = static_cast<R>(1.0 - a->smoothing);
    job.spread = job.c > 0 ? static_cast<R>(a->smoothing / static_cast<double>(job.c)) : 0;
    job.fault = tni_cuda_fault_word();
    job.launch = tni_cuda_fault_launch();
    return job;
}

template <typename E, typename R> static tn_status forward(const ce_job<E, R> &job)
{
    if (job.n == 0 || job.d == 0) return TN_OK;
    if (job.d > 1)
        return TN_LAUNCH((cross_entropy_columns<E, R>), row_grid(job.n * job.d, ROW_THREADS),
                         ROW_THREADS, 0, job);
    if (job.c > ROW_IN_WARP)
        return TN_LAUNCH((cross_entropy_block<E, R>), row_grid(job.n, 1), ROW_BLOCK, 0, job);
    return ROW_ITEMS(job.c, TN_LAUNCH((cross_entropy_warp<E, R, K>), row_grid(job.n, ROW_WARPS),
                                      ROW_THREADS, 0, job));
}

template <typename E, typename D, typename R> static tn_status backward(const ce_job<E, R> &job)
{
    if (job.n == 0 || job.d == 0 || job.c == 0) return TN_OK;
    if (job.d > 1)
        return TN_LAUNCH((cross_entropy_grad_columns<E, R>), row_grid(job.n * job.d, ROW_THREADS),
                         ROW_THREADS, 0, job);
    int64_t pieces = (job.c + CE_PIECE - 1) / CE_PIECE;
    return TN_LAUNCH((cross_entropy_grad_rows<E, D, R>), row_grid(job.n * pieces, ROW_WARPS),
                     ROW_THREADS, 0, job, pieces);
}

template <typename E> static tn_status run_forward(const tni_cross_entropy *a)
{
    typedef typename element<E>::computing R;
    ce_job_in<E> job = ce_job_of<E>(a);
    job.row_loss = static_cast<R *>(a->row_loss.data);
    job.row_weight = static_cast<R *>(a->row_weight.data);
    job.first = a->first;
    return forward(job);
}

template <typename E, typename D> static tn_status run_backward(const tni_cross_entropy_grad *a)
{
    typedef typename element<E>::computing R;
    ce_job_in<E> job = ce_job_of<E>(a);
    job.dx = a->dx.data;
    job.dx_row = a->dx.stride[0];
    job.drow = static_cast<const R *>(a->drow.data);
    job.drow_stride[0] = a->drow.stride[0];
    job.drow_stride[1] = a->drow.stride[1];
    return backward<E, D, R>(job);
}

tn_status tni_cuda_cross_entropy(const tni_cross_entropy *a)
{
    return TN_FLOATING(a->x.dtype, run_forward<R>(a));
}

tn_status tni_cuda_cross_entropy_grad(const tni_cross_entropy_grad *a)
{
    if (a->x.dtype == TN_F32 && a->dx.dtype == TN_BF16) return run_backward<float, bf16>(a);
    if (a->x.dtype == TN_F32 && a->dx.dtype == TN_F16) return run_backward<float, f16>(a);
    return TN_FLOATING(a->x.dtype, (run_backward<R, R>(a)));
}
