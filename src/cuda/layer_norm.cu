/*
 * layer_norm.cu - layer normalisation of the rows of a dense [n, f] array, and its gradient; the
 * same with a mean of 0 (RMSNorm), and with a weight and bias per channel (group norm).
 *
 * xh = (x - mean) rstd, rstd = 1 / sqrt(var + eps) with the biased variance; y = xh w + b.
 * Gradient, per row with gw = dy w: dx = rstd (gw - mean(gw) - xh mean(gw xh)); over the rows:
 * dw = sum dy xh, db = sum dy. Ba, Kiros, Hinton: Layer Normalization (2016), section 3.
 *
 * A row of at most ROW_IN_WARP elements stays in the registers of one warp, read sixteen bytes at a
 * time where the rows allow it; a block does a longer one. The variance takes a second pass, about
 * the mean. Rows of group norm are done by a block each, and its channels' dw and db, too. Other dw
 * and db: groups of rows, whose number depends only on the sizes and the device, are
 * summed by a block each, and then in a fixed order.
 */
#include "cuda/elements.h"

/* Where row i has the weight of its element j: layer norm (groups 0) at j. */
struct ln_channels {
    int64_t groups, per, plane; /* channels of a row, of so many elements each */
    bool rms;
    ln_channels(const tni_norm_rows &r = {}, int64_t f = 0)
        : groups(r.groups), per(groups ? r.channels / groups : 1), plane(f / per), rms(r.rms)
    {
    }
    __device__ __forceinline__ int64_t at(int64_t i, int64_t j) const
    {
        return groups ? i % groups * per + j / plane : j;
    }
};

/* The rows of x. */
static inline int64_t ln_rows(const tni_array &x, const tni_norm_rows &r, int64_t *f)
{
    int64_t parts = r.groups ? r.groups : 1;
    *f = x.size[1] / parts;
    return x.size[0] * parts;
}

template <typename R> struct ln_job {
    R *y, *mean, *rstd;
    const R *x, *w, *b;
    int64_t n, f;
    double eps;
    ln_channels channels;
};

template <typename R>
static __device__ __forceinline__ R ln_rstd(double squares, const ln_job<R> &job)
{
    return static_cast<R>(1.0 / sqrt(squares / static_cast<double>(job.f) + job.eps));
}

/* Whether a float's squares left its range. */
template <typename R>
static __device__ __forceinline__ bool ln_lost(double squares, const ln_job<R> &job)
{
    return !(squares / static_cast<double>(job.f) + job.eps > 0x1p-100 && squares < ROW_INFINITY);
}

/* The mean (rms: 0) and the squares about it in double, of a row taken by threads `step` apart. */
template <typename R, class Sum>
static __device__ TN_NOINLINE double ln_wide_squares(const R *x, int64_t f, int64_t step, bool rms,
                                                     R &mean, Sum all)
{
    double sum = 0, squares = 0;
    for (int64_t j = threadIdx.x % step; j < f && !rms; j += step) sum += static_cast<double>(x[j]);
    double middle = all(sum) / static_cast<double>(f);
    for (int64_t j = threadIdx.x % step; j < f; j += step) {
        double d = static_cast<double>(x[j]) - middle;
        squares += d * d;
    }
    mean = static_cast<R>(middle);
    return all(squares);
}

/* Written by one thread of the row. */
template <typename R>
static __device__ __forceinline__ void ln_keep(const ln_job<R> &job, int64_t i, R mean, R rstd)
{
    if (job.mean) job.mean[i] = mean;
    if (job.rstd) job.rstd[i] = rstd;
}

template <typename R>
static __device__ __forceinline__ R ln_scaled(const ln_job<R> &job, int64_t c, R xh)
{
    if (job.w) xh *= job.w[c];
    return job.b ? xh + job.b[c] : xh;
}

/* A lane's K elements of a row: runs of V neighbours, 32 V apart; 0 beyond the row. V divides f. */
template <int V, typename R, int K>
static __device__ __forceinline__ void ln_read(R (&v)[K], const R *row, int f)
{
    TN_UNROLL
    for (int k = 0; k < K; k += V) {
        int j = threadIdx.x % 32 * V + 32 * k;
        several<R, V> run = {};
        if (j < f) run = *reinterpret_cast<const several<R, V> *>(row + j);
        TN_UNROLL
        for (int e = 0; e < V; e++) v[k + e] = run.v[e];
    }
}

template <int V, typename R, int K>
static __device__ __forceinline__ void ln_write(R *row, const R (&v)[K], int f)
{
    TN_UNROLL
    for (int k = 0; k < K; k += V) {
        int j = threadIdx.x % 32 * V + 32 * k;
        several<R, V> run;
        TN_UNROLL
        for (int e = 0; e < V; e++) run.v[e] = v[k + e];
        if (j < f) *reinterpret_cast<several<R, V> *>(row + j) = run;
    }
}

/* V of a kernel for K elements per lane, where rows of f elements in all arrays allow it. */
template <typename R, int K> static constexpr int ln_wide = K < 4 ? 1 : 16 / sizeof(R);

template <typename R>
static inline bool ln_whole(int64_t f, const R *a, const R *b, const R *c, const R *d)
{
    auto of = [](const R *array) { return reinterpret_cast<uintptr_t>(array); };
    return f * sizeof(R) % 16 == 0 && (of(a) | of(b) | of(c) | of(d)) % 16 == 0;
}

template <typename R, int K, int V> static __global__ void layer_norm_warp(ln_job<R> job)
{
    int lane = threadIdx.x % 32, f = static_cast<int>(job.f);
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < job.n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        R v[K], sum = 0, squares = 0;
        ln_read<V>(v, job.x + i * f, f);
        TN_UNROLL
        for (int k = 0; k < K; k++) sum += v[k];
        R mean = job.channels.rms ? 0 : static_cast<R>(warp_sum(static_cast<double>(sum)) / f);
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            v[k] -= mean;
            squares += lane * V + 32 * (k - k % V) < f ? v[k] * v[k] : 0;
        }
        double all = warp_sum(static_cast<double>(squares));
        if (ln_lost(all, job)) { /* by the whole warp */
            all = ln_wide_squares(job.x + i * f, f, 32, job.channels.rms, mean,
                                  [](double v) { return warp_sum(v); });
            ln_read<V>(v, job.x + i * f, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) v[k] -= mean;
        }
        R rstd = ln_rstd(all, job);
        if (lane == 0) ln_keep(job, i, mean, rstd);
        TN_UNROLL
        for (int k = 0; k < K; k++) v[k] *= rstd;
        if (job.w) {
            R w[K];
            ln_read<V>(w, job.w, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) v[k] *= w[k];
        }
        if (job.b) {
            R b[K];
            ln_read<V>(b, job.b, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) v[k] += b[k];
        }
        ln_write<V>(job.y + i * f, v, f);
    }
}

template <typename R> static __global__ void layer_norm_block(ln_job<R> job)
{
    for (int64_t i = blockIdx.x; i < job.n; i += gridDim.x) {
        const R *x = job.x + i * job.f;
        R *y = job.y + i * job.f;
        bool rms = job.channels.rms;
        double sum = rms ? 0 : block_sum(thread_sum<R>(job.f, [=](int64_t j) { return x[j]; }));
        R mean = static_cast<R>(sum / static_cast<double>(job.f));
        double squares = block_sum(thread_sum<R>(job.f, [=](int64_t j) {
            R d = x[j] - mean;
            return d * d;
        }));
        if (ln_lost(squares, job))
            squares = ln_wide_squares(x, job.f, blockDim.x, rms, mean,
                                      [](double v) { return block_sum(v); });
        R rstd = ln_rstd(squares, job);
        if (threadIdx.x == 0) ln_keep(job, i, mean, rstd);
        for (int64_t j = threadIdx.x; j < job.f; j += blockDim.x)
            y[j] = ln_scaled(job, job.channels.at(i, j), (x[j] - mean) * rstd);
    }
}

template <typename R> static tn_status layer_norm(const tni_layer_norm *a)
{
    ln_job<R> job = {};
    job.y = static_cast<R *>(a->y.data);
    job.mean = static_cast<R *>(a->mean.data);
    job.rstd = static_cast<R *>(a->rstd.data);
    job.x = static_cast<const R *>(a->x.data);
    job.w = static_cast<const R *>(a->weight.data);
    job.b = static_cast<const R *>(a->bias.data);
    job.n = ln_rows(a->x, a->rows, &job.f);
    job.channels = ln_channels(a->rows, job.f);
    job.eps = a->eps;
    if (job.n == 0) return TN_OK;
    if (job.f > ROW_IN_WARP || a->rows.groups)
        return TN_LAUNCH((layer_norm_block<R>), row_grid(job.n, 1), ROW_BLOCK, 0, job);
    unsigned blocks = row_grid(job.n, ROW_WARPS);
    bool whole = ln_whole(job.f, job.y, job.x, job.w, job.b);
    return ROW_ITEMS(
        job.f, whole
                   ? TN_LAUNCH((layer_norm_warp<R, K, ln_wide<R, K>>), blocks, ROW_THREADS, 0, job)
                   : TN_LAUNCH((layer_norm_warp<R, K, 1>), blocks, ROW_THREADS, 0, job));
}

tn_status tni_cuda_layer_norm(const tni_layer_norm *a)
{
    return TN_REAL(a->x.dtype, layer_norm<R>(a));
}

/* ---- gradient: dx ---------------------------------------------------------------------------- */

template <typename R> struct lng_job {
    R *dx, *dw, *db;
    const R *dy, *x, *mean, *rstd, *w;
    double *partial;            /* [pieces, 2, f]: dw, db */
    int64_t n, f, rows, pieces; /* rows of a piece */
    ln_channels channels;
    __device__ __forceinline__ R mean_of(int64_t i) const { return channels.rms ? 0 : mean[i]; }
    /* of gw: what dx loses of the mean */
    __device__ __forceinline__ R level(R sum_g) const { return channels.rms ? 0 : sum_g; }
};

/* 1, or what keeps gw (x - mean) in range */
template <typename R> static __device__ __forceinline__ R ln_down(R rstd)
{
    return static_cast<R>(rstd < static_cast<R>(0x1p-60) ? 0x1p-64 : 1);
}

/* What a row's elements share: no divisions in dx. sum_g: of gw; sum_gx: of gw (x - mean) down. */
template <typename R> struct ln_slope {
    R rstd, level, slope;
    __device__ __forceinline__ ln_slope(R r, R sum_g, R sum_gx, R f)
        : rstd(r), level(r * (sum_g / f)), slope(r * (sum_gx * (r / ln_down(r)) / f))
    {
    }
    __device__ __forceinline__ R dx(R g, R off) const
    {
        return rstd * g - level - off * rstd * slope;
    }
};

template <typename R, int K, int V> static __global__ void layer_norm_dx_warp(lng_job<R> job)
{
    int f = static_cast<int>(job.f);
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < job.n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        R g[K], off[K], mean = job.mean_of(i), rstd = job.rstd[i], sum_g = 0, sum_gx = 0;
        R down = ln_down(rstd);
        ln_read<V>(g, job.dy + i * f, f);
        ln_read<V>(off, job.x + i * f, f);
        if (job.w) {
            R w[K];
            ln_read<V>(w, job.w, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) g[k] *= w[k];
        }
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            off[k] -= mean;
            sum_g += g[k];
            sum_gx += g[k] * (off[k] * down); /* beyond the row g is 0 */
        }
        ln_slope<R> row(rstd, job.level(warp_sum(sum_g)), warp_sum(sum_gx), static_cast<R>(f));
        TN_UNROLL
        for (int k = 0; k < K; k++) g[k] = row.dx(g[k], off[k]);
        ln_write<V>(job.dx + i * f, g, f);
    }
}

template <typename R> static __global__ void layer_norm_dx_block(lng_job<R> job)
{
    for (int64_t i = blockIdx.x; i < job.n; i += gridDim.x) {
        const R *x = job.x + i * job.f, *dy = job.dy + i * job.f, *w = job.w;
        R mean = job.mean_of(i), rstd = job.rstd[i], down = ln_down(rstd);
        ln_channels channels = job.channels;
        auto gw = [=](int64_t j) { return w ? dy[j] * w[channels.at(i, j)] : dy[j]; };
        R sum_g = static_cast<R>(block_sum(thread_sum<R>(job.f, gw)));
        R sum_gx = static_cast<R>(block_sum(
            thread_sum<R>(job.f, [=](int64_t j) { return gw(j) * ((x[j] - mean) * down); })));
        ln_slope<R> row(rstd, job.level(sum_g), sum_gx, static_cast<R>(job.f));
        for (int64_t j = threadIdx.x; j < job.f; j += blockDim.x)
            job.dx[i * job.f + j] = row.dx(gw(j), x[j] - mean);
    }
}

/* ---- gradient: dw, db ------------------------------------------------------------------------ */

enum { LN_ROWS = 8 }; /* a block: 32 columns by 8 rows at a time */

/* Adds up a column's LN_ROWS turns, in order, into the first one. All threads call it. */
static __device__ __forceinline__ void ln_turns(double &dw, double &db)
{
    __shared__ double part[2][LN_ROWS][32];
    int column = threadIdx.x % 32, turn = threadIdx.x / 32;
    part[0][turn][column] = dw;
    part[1][turn][column] = db;
    __syncthreads();
    for (int t = 1; turn == 0 && t < LN_ROWS; t++) {
        dw += part[0][t][column];
        db += part[1][t][column];
    }
}

template <typename R>
static __device__ __forceinline__ void ln_finish(const lng_job<R> &job, int64_t j, double dw,
                                                 double db)
{
    if (job.dw) job.dw[j] = static_cast<R>(dw);
    if (job.db) job.db[j] = static_cast<R>(db);
}

/* Block (x, y): columns 32 x ..., piece y of the rows. */
template <typename R> static __global__ void layer_norm_dw(lng_job<R> job)
{
    int turn = threadIdx.x / 32;
    int64_t j = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
    int64_t from = static_cast<int64_t>(blockIdx.y) * job.rows;
    int64_t end = min(job.n, from + job.rows);
    double dw = 0, db = 0;
    for (int64_t i = from + turn; j < job.f && i < end;) {
        int64_t stop = min(end, i + 64 * LN_ROWS);
        R part_w = 0, part_b = 0;
        for (; i < stop; i += LN_ROWS) {
            R g = job.dy[i * job.f + j];
            part_w += g * ((job.x[i * job.f + j] - job.mean_of(i)) * job.rstd[i]);
            part_b += g;
        }
        dw += static_cast<double>(part_w);
        db += static_cast<double>(part_b);
    }
    ln_turns(dw, db);
    if (turn != 0 || j >= job.f) return;
    if (job.pieces == 1) {
        ln_finish(job, j, dw, db);
    } else {
        job.partial[(blockIdx.y * 2LL) * job.f + j] = dw;
        job.partial[(blockIdx.y * 2LL + 1) * job.f + j] = db;
    }
}

template <typename R> static __global__ void layer_norm_dw_finish(lng_job<R> job)
{
    int turn = threadIdx.x / 32;
    int64_t j = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
    double dw = 0, db = 0;
    for (int64_t p = turn; j < job.f && p < job.pieces; p += LN_ROWS) {
        dw += job.partial[2 * p * job.f + j];
        db += job.partial[(2 * p + 1) * job.f + j];
    }
    ln_turns(dw, db);
    if (turn == 0 && j < job.f) ln_finish(job, j, dw, db);
}

/* A block for a channel: its planes in all samples. */
template <typename R> static __global__ void group_norm_dw(lng_job<R> job)
{
    const ln_channels at = job.channels;
    for (int64_t c = blockIdx.x; c < at.groups * at.per; c += gridDim.x) {
        auto term = [=](int64_t k, bool slope) {
            int64_t i = k / at.plane * at.groups + c / at.per;
            int64_t e = i * job.f + c % at.per * at.plane + k % at.plane;
            return slope ? job.dy[e] * ((job.x[e] - job.mean[i]) * job.rstd[i]) : job.dy[e];
        };
        int64_t count = job.n / at.groups * at.plane;
        double dw = block_sum(thread_sum<R>(
            count, [=](int64_t k) { return term(k, true); }));
        double db = block_sum(thread_sum<R>(count, [=](int64_t k) { return term(k, false); }));
        if (threadIdx.x == 0) ln_finish(job, c, dw, db);
    }
}

template <typename R> static tn_status ln_dw(lng_job<R> job)
{
    if (job.channels.groups)
        return TN_LAUNCH((group_norm_dw<R>), row_grid(job.channels.groups * job.channels.per, 1),
                         ROW_BLOCK, 0, job);
    unsigned across = static_cast<unsigned>((job.f + 31) / 32);
    dim3 grid(across, static_cast<unsigned>(job.pieces));
    if (tn_status failed = TN_LAUNCH((layer_norm_dw<R>), grid, 32 * LN_ROWS, 0, job);
        failed != TN_OK)
        return failed;
    if (job.pieces == 1) return TN_OK;
    return TN_LAUNCH((layer_norm_dw_finish<R>), across, 32 * LN_ROWS, 0, job);
}

template <typename R> static tn_status ln_dx(const lng_job<R> &job)
{
    if (job.f > ROW_IN_WARP || job.channels.groups)
        return TN_LAUNCH((layer_norm_dx_block<R>), row_grid(job.n, 1), ROW_BLOCK, 0, job);
    unsigned blocks = row_grid(job.n, ROW_WARPS);
    bool whole = ln_whole(job.f, job.dx, job.dy, job.x, job.w);
    return ROW_ITEMS(
        job.f,
        whole ? TN_LAUNCH((layer_norm_dx_warp<R, K, ln_wide<R, K>>), blocks, ROW_THREADS, 0, job)
              : TN_LAUNCH((layer_norm_dx_warp<R, K, 1>), blocks, ROW_THREADS, 0, job));
}

/* Pieces of at least 64 rows, enough to fill the device with a block for each (and 32 columns). */
static int64_t ln_pieces(int64_t n, int64_t f)
{
    int64_t wanted = 8LL * tni_cuda_multiprocessors() / ((f + 31) / 32);
    int64_t most = n / 64;
    int64_t pieces = wanted < most ? wanted : most;
    return pieces < 1 ? 1 : pieces;
}

template <typename R> static tn_status layer_norm_grad(const tni_layer_norm_grad *a)
{
    lng_job<R> job = {};
    job.dx = static_cast<R *>(a->dx.data);
    job.dw = static_cast<R *>(a->dweight.data);
    job.db = static_cast<R *>(a->dbias.data);
    job.dy = static_cast<const R *>(a->dy.data);
    job.x = static_cast<const R *>(a->x.data);
    job.mean = static_cast<const R *>(a->mean.data);
    job.rstd = static_cast<const R *>(a->rstd.data);
    job.w = static_cast<const R *>(a->weight.data);
    job.n = ln_rows(a->x, a->rows, &job.f);
    job.channels = ln_channels(a->rows, job.f);
    if (job.f == 0 && !a->rows.groups) return TN_OK;
    bool sums = job.dw || job.db;
    if (sums && !a->rows.groups) {
        int64_t pieces = ln_pieces(job.n, job.f);
        job.rows = (job.n + pieces - 1) / pieces;
        job.pieces = job.rows > 0 ? (job.n + job.rows - 1) / job.rows : 1;
        if (job.pieces > 1) {
            void *block;
            size_t nbytes = static_cast<size_t>(job.pieces * 2 * job.f) * sizeof(double);
            if (tn_status failed = tni_cuda_borrow(nbytes, &block); failed != TN_OK) return failed;
            job.partial = static_cast<double *>(block);
        }
    }
    tn_status status = job.dx && job.n > 0 ? ln_dx(job) : TN_OK;
    if (status == TN_OK && sums) status = ln_dw(job);
    if (job.partial) tni_cuda_return(job.partial);
    return status;
}

tn_status tni_cuda_layer_norm_grad(const tni_layer_norm_grad *a)
{
    return TN_REAL(a->x.dtype, layer_norm_grad<R>(a));
}
