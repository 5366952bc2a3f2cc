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
 * summed by a block each, and then in a fixed order; of gradients in half precision by the blocks
 * that make dx.
 */
#include "cuda/elements.h"
#include "cuda/half.h"

/* An array that is computed with as R: f64, or f32, bf16 and f16 as float. */
template <typename R> struct ln_array {
    void *data = nullptr;
    tn_dtype dtype = TN_F32;
    bool half = false;
    ln_array() = default;
    ln_array(const tni_array &x) : data(x.data), dtype(x.dtype), half(tni_is_half(x.dtype)) {}
    __device__ __forceinline__ R operator[](int64_t j) const
    {
        if (half) return static_cast<R>(half_float(static_cast<const uint16_t *>(data)[j], dtype));
        return static_cast<const R *>(data)[j];
    }
    __device__ __forceinline__ uint16_t rounded(R v) const
    {
        float x = static_cast<float>(v);
        return dtype == TN_BF16 ? element<bf16>::rounded(x).bits : element<f16>::rounded(x).bits;
    }
    __device__ __forceinline__ void put(int64_t j, R v) const
    {
        if (half)
            static_cast<uint16_t *>(data)[j] = rounded(v);
        else
            static_cast<R *>(data)[j] = v;
    }
    /* V neighbours from element j on, in one access */
    template <int V> __device__ __forceinline__ several<R, V> run(int64_t j) const
    {
        if (!half)
            return *reinterpret_cast<const several<R, V> *>(static_cast<const R *>(data) + j);
        several<R, V> to;
        auto from = *reinterpret_cast<const several<uint16_t, V> *>(
            static_cast<const uint16_t *>(data) + j);
        TN_UNROLL
        for (int e = 0; e < V; e++) to.v[e] = static_cast<R>(half_float(from.v[e], dtype));
        return to;
    }
    template <int V>
    __device__ __forceinline__ void put_run(int64_t j, const several<R, V> &v) const
    {
        several<uint16_t, V> to;
        if (!half) {
            *reinterpret_cast<several<R, V> *>(static_cast<R *>(data) + j) = v;
            return;
        }
        TN_UNROLL
        for (int e = 0; e < V; e++) to.v[e] = rounded(v.v[e]);
        *reinterpret_cast<several<uint16_t, V> *>(static_cast<uint16_t *>(data) + j) = to;
    }
};

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
    ln_array<R> y, x, w, b;
    R *mean, *rstd;
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

/* The mean (rms: 0) and the squares about it in double, of the row at `from`, taken by
 * threads `step` apart. */
template <typename R, class Sum>
static __device__ TN_NOINLINE double ln_wide_squares(ln_array<R> x, int64_t from, int64_t f,
                                                     int64_t step, bool rms, R &mean, Sum all)
{
    double sum = 0, squares = 0;
    for (int64_t j = threadIdx.x % step; j < f && !rms; j += step)
        sum += static_cast<double>(x[from + j]);
    double middle = all(sum) / static_cast<double>(f);
    for (int64_t j = threadIdx.x % step; j < f; j += step) {
        double d = static_cast<double>(x[from + j]) - middle;
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
    if (job.w.data) xh *= job.w[c];
    return job.b.data ? xh + job.b[c] : xh;
}

/* A lane's K elements of the row at `from`: runs of V neighbours, 32 V apart; 0 beyond the row. V
 * divides f. */
template <int V, typename R, int K>
static __device__ __forceinline__ void ln_read(R (&v)[K], const ln_array<R> &x, int64_t from, int f)
{
    TN_UNROLL
    for (int k = 0; k < K; k += V) {
        int j = threadIdx.x % 32 * V + 32 * k;
        several<R, V> run = {};
        if (j < f) run = x.template run<V>(from + j);
        TN_UNROLL
        for (int e = 0; e < V; e++) v[k + e] = run.v[e];
    }
}

template <int V, typename R, int K>
static __device__ __forceinline__ void ln_write(const ln_array<R> &y, int64_t from, const R (&v)[K],
                                                int f)
{
    TN_UNROLL
    for (int k = 0; k < K; k += V) {
        int j = threadIdx.x % 32 * V + 32 * k;
        several<R, V> run;
        TN_UNROLL
        for (int e = 0; e < V; e++) run.v[e] = v[k + e];
        if (j < f) y.template put_run<V>(from + j, run);
    }
}

/* V of a kernel for K elements per lane, where rows of f elements in all arrays allow it. */
template <typename R, int K> static constexpr int ln_wide = K < 4 ? 1 : 16 / sizeof(R);

template <typename R>
static inline bool ln_whole(int64_t f, std::initializer_list<ln_array<R>> arrays)
{
    uintptr_t bits = static_cast<uintptr_t>(f) * sizeof(R);
    for (const ln_array<R> &x : arrays) bits |= reinterpret_cast<uintptr_t>(x.data);
    return bits % 16 == 0;
}

/* A kernel whose warps take whole rows, by sixteen bytes if these are `whole`. */
#define LN_LAUNCH(kernel)                                                                          \
    ROW_ITEMS(job.f, whole ? TN_LAUNCH((kernel<R, K, ln_wide<R, K>>), blocks, ROW_THREADS, 0, job) \
                           : TN_LAUNCH((kernel<R, K, 1>), blocks, ROW_THREADS, 0, job))

template <typename R, int K, int V> static __global__ void layer_norm_warp(ln_job<R> job)
{
    int lane = threadIdx.x % 32, f = static_cast<int>(job.f);
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < job.n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS) {
        R v[K], sum = 0, squares = 0;
        ln_read<V>(v, job.x, i * f, f);
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
            all = ln_wide_squares(job.x, i * f, f, 32, job.channels.rms, mean,
                                  [](double v) { return warp_sum(v); });
            ln_read<V>(v, job.x, i * f, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) v[k] -= mean;
        }
        R rstd = ln_rstd(all, job);
        if (lane == 0) ln_keep(job, i, mean, rstd);
        TN_UNROLL
        for (int k = 0; k < K; k++) v[k] *= rstd;
        if (job.w.data) {
            R w[K];
            ln_read<V>(w, job.w, 0, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) v[k] *= w[k];
        }
        if (job.b.data) {
            R b[K];
            ln_read<V>(b, job.b, 0, f);
            TN_UNROLL
            for (int k = 0; k < K; k++) v[k] += b[k];
        }
        ln_write<V>(job.y, i * f, v, f);
    }
}

template <typename R> static __global__ void layer_norm_block(ln_job<R> job)
{
    for (int64_t i = blockIdx.x; i < job.n; i += gridDim.x) {
        const int64_t from = i * job.f;
        const ln_array<R> x = job.x;
        bool rms = job.channels.rms;
        double sum =
            rms ? 0 : block_sum(thread_sum<R>(job.f, [=](int64_t j) { return x[from + j]; }));
        R mean = static_cast<R>(sum / static_cast<double>(job.f));
        double squares = block_sum(thread_sum<R>(job.f, [=](int64_t j) {
            R d = x[from + j] - mean;
            return d * d;
        }));
        if (ln_lost(squares, job))
            squares = ln_wide_squares(x, from, job.f, blockDim.x, rms, mean,
                                      [](double v) { return block_sum(v); });
        R rstd = ln_rstd(squares, job);
        if (threadIdx.x == 0) ln_keep(job, i, mean, rstd);
        for (int64_t j = threadIdx.x; j < job.f; j += blockDim.x) {
            R xh = (x[from + j] - mean) * rstd;
            job.y.put(from + j, ln_scaled(job, job.channels.at(i, j), xh));
        }
    }
}

template <typename R> static tn_status layer_norm(const tni_layer_norm *a)
{
    ln_job<R> job = {};
    job.y = a->y, job.x = a->x, job.w = a->weight, job.b = a->bias;
    job.mean = static_cast<R *>(a->mean.data);
    job.rstd = static_cast<R *>(a->rstd.data);
    job.n = ln_rows(a->x, a->rows, &job.f);
    job.channels = ln_channels(a->rows, job.f);
    job.eps = a->eps;
    if (job.n == 0) return TN_OK;
    if (job.f > ROW_IN_WARP || a->rows.groups)
        return TN_LAUNCH((layer_norm_block<R>), row_grid(job.n, 1), ROW_BLOCK, 0, job);
    unsigned blocks = row_grid(job.n, ROW_WARPS);
    bool whole = ln_whole(job.f, { job.y, job.x, job.w, job.b });
    return LN_LAUNCH(layer_norm_warp);
}

tn_status tni_cuda_layer_norm(const tni_layer_norm *a)
{
    return a->x.dtype == TN_F64 ? layer_norm<double>(a) : layer_norm<float>(a);
}

/* ---- gradient: dx ---------------------------------------------------------------------------- */

template <typename R> struct lng_job {
    ln_array<R> dx, dw, db, dy, x, w;
    const R *mean, *rstd;
    double *partial;            /* [pieces, 2, f]: dw, db */
    int64_t n, f, rows, pieces; /* rows of a piece */
    ln_channels channels;
    bool add; /* to dx */
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

/* Row i by a warp; SUMS: also what it adds to dw and db, a lane's elements as in ln_read. */
template <int V, bool SUMS, typename R, int K>
static __device__ __forceinline__ void ln_dx_row(const lng_job<R> &job, int64_t i, R (&dw)[K],
                                                 R (&db)[K])
{
    int f = static_cast<int>(job.f);
    R g[K], off[K], mean = job.mean_of(i), rstd = job.rstd[i], sum_g = 0, sum_gx = 0;
    R down = ln_down(rstd);
    ln_read<V>(g, job.dy, i * f, f);
    ln_read<V>(off, job.x, i * f, f);
    TN_UNROLL
    for (int k = 0; k < K; k++) {
        off[k] -= mean;
        if (!SUMS) continue;
        dw[k] += g[k] * (off[k] * rstd); /* beyond the row g is 0 */
        db[k] += g[k];
    }
    if (job.w.data) {
        R w[K];
        ln_read<V>(w, job.w, 0, f);
        TN_UNROLL
        for (int k = 0; k < K; k++) g[k] *= w[k];
    }
    TN_UNROLL
    for (int k = 0; k < K; k++) {
        sum_g += g[k];
        sum_gx += g[k] * (off[k] * down);
    }
    ln_slope<R> row(rstd, job.level(warp_sum(sum_g)), warp_sum(sum_gx), static_cast<R>(f));
    TN_UNROLL
    for (int k = 0; k < K; k++) g[k] = row.dx(g[k], off[k]);
    if (job.add) {
        R sum[K];
        ln_read<V>(sum, job.dx, i * f, f);
        TN_UNROLL
        for (int k = 0; k < K; k++) g[k] += sum[k];
    }
    ln_write<V>(job.dx, i * f, g, f);
}

template <typename R, int K, int V> static __global__ void layer_norm_dx_warp(lng_job<R> job)
{
    R none[K];
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    for (int64_t i = first; i < job.n; i += static_cast<int64_t>(gridDim.x) * ROW_WARPS)
        ln_dx_row<V, false>(job, i, none, none);
}

/* dx, and dw and db of a piece of the rows, which are read once: a warp adds up in f32 over at most
 * 64 rows, the warps one after the other in double. For gradients in half precision: in f32 the
 * sums of layer_norm_dw keep their order. */
template <typename R, int K, int V>
static __global__ void __launch_bounds__(ROW_THREADS) layer_norm_grad_warp(lng_job<R> job)
{
    __shared__ double part[2][ROW_IN_WARP];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, f = static_cast<int>(job.f);
    int64_t begin = static_cast<int64_t>(blockIdx.x) * job.rows, end = min(job.n, begin + job.rows);
    R dw[K] = {}, db[K] = {};
    for (int64_t i = begin + warp; i < end; i += ROW_WARPS) ln_dx_row<V, true>(job, i, dw, db);
    for (int turn = 0; turn < ROW_WARPS; turn++) {
        TN_UNROLL
        for (int k = 0; k < K; k++) {
            int j = lane * V + 32 * (k - k % V) + k % V;
            if (turn != warp || j >= f) continue;
            part[0][j] = (turn ? part[0][j] : 0) + static_cast<double>(dw[k]);
            part[1][j] = (turn ? part[1][j] : 0) + static_cast<double>(db[k]);
        }
        __syncthreads();
    }
    for (int j = threadIdx.x; j < 2 * f; j += ROW_THREADS)
        job.partial[static_cast<int64_t>(blockIdx.x) * 2 * f + j] = part[j / f][j % f];
}

template <typename R> static __global__ void layer_norm_dx_block(lng_job<R> job)
{
    for (int64_t i = blockIdx.x; i < job.n; i += gridDim.x) {
        const ln_array<R> x = job.x, dy = job.dy, w = job.w;
        const int64_t from = i * job.f;
        R mean = job.mean_of(i), rstd = job.rstd[i], down = ln_down(rstd);
        ln_channels channels = job.channels;
        auto gw = [=](int64_t j) {
            return w.data ? dy[from + j] * w[channels.at(i, j)] : dy[from + j];
        };
        R sum_g = static_cast<R>(block_sum(thread_sum<R>(job.f, gw)));
        R sum_gx = static_cast<R>(block_sum(thread_sum<R>(
            job.f, [=](int64_t j) { return gw(j) * ((x[from + j] - mean) * down); })));
        ln_slope<R> row(rstd, job.level(sum_g), sum_gx, static_cast<R>(job.f));
        for (int64_t j = threadIdx.x; j < job.f; j += blockDim.x) {
            R dx = row.dx(gw(j), x[from + j] - mean);
            if (job.add) dx += job.dx[from + j];
            job.dx.put(from + j, dx);
        }
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
    if (job.dw.data) job.dw.put(j, static_cast<R>(dw));
    if (job.db.data) job.db.put(j, static_cast<R>(db));
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
    if (tn_status failed = TN_LAUNCH((layer_norm_dw<R>), grid, 32 * LN_ROWS, 0, job)) return failed;
    if (job.pieces == 1) return TN_OK;
    return TN_LAUNCH((layer_norm_dw_finish<R>), across, 32 * LN_ROWS, 0, job);
}

template <typename R> static tn_status ln_dx(const lng_job<R> &job)
{
    if (job.f > ROW_IN_WARP || job.channels.groups)
        return TN_LAUNCH((layer_norm_dx_block<R>), row_grid(job.n, 1), ROW_BLOCK, 0, job);
    unsigned blocks = row_grid(job.n, ROW_WARPS);
    bool whole = ln_whole(job.f, { job.dx, job.dy, job.x, job.w });
    return LN_LAUNCH(layer_norm_dx_warp);
}

/* dx, dw and db with the rows read once; of f32 alone. */
static tn_status ln_both(const lng_job<float> &job)
{
    typedef float R;
    unsigned blocks = static_cast<unsigned>(job.pieces);
    bool whole = ln_whole<R>(job.f, { job.dx, job.dy, job.x, job.w });
    if (tn_status failed = LN_LAUNCH(layer_norm_grad_warp)) return failed;
    return TN_LAUNCH((layer_norm_dw_finish<R>), static_cast<unsigned>((job.f + 31) / 32),
                     32 * LN_ROWS, 0, job);
}

/* Pieces for that: of 16 rows and more, two for each multiprocessor; at most 64 rows of a warp. */
static int64_t ln_both_pieces(int64_t n)
{
    int64_t fill = 2LL * tni_cuda_multiprocessors(), most = n / 16;
    int64_t least = (n + 64 * ROW_WARPS - 1) / (64 * ROW_WARPS);
    return max(least, min(fill, most));
}

/* Pieces of at least 64 rows, enough to fill the device with a block for each (and 32 columns). */
static int64_t ln_pieces(int64_t n, int64_t f)
{
    int64_t wanted = 8LL * tni_cuda_multiprocessors() / ((f + 31) / 32);
    return max(INT64_C(1), min(wanted, n / 64));
}

template <typename R> static tn_status layer_norm_grad(const tni_layer_norm_grad *a)
{
    lng_job<R> job = {};
    job.dx = a->dx, job.dw = a->dweight, job.db = a->dbias, job.add = a->add;
    job.dy = a->dy, job.x = a->x, job.w = a->weight;
    job.mean = static_cast<const R *>(a->mean.data);
    job.rstd = static_cast<const R *>(a->rstd.data);
    job.n = ln_rows(a->x, a->rows, &job.f);
    job.channels = ln_channels(a->rows, job.f);
    if (job.f == 0 && !a->rows.groups) return TN_OK;
    tni_cuda_scratch partial;
    bool sums = job.dw.data || job.db.data;
    bool both =
        sums && job.dx.data && job.dy.half && !a->rows.groups && job.f <= ROW_IN_WARP && job.n > 0;
    if (sums && !a->rows.groups) {
        int64_t pieces = both ? ln_both_pieces(job.n) : ln_pieces(job.n, job.f);
        job.rows = (job.n + pieces - 1) / pieces;
        job.pieces = job.rows > 0 ? (job.n + job.rows - 1) / job.rows : 1;
        if (both || job.pieces > 1) {
            size_t nbytes = static_cast<size_t>(job.pieces * 2 * job.f) * sizeof(double);
            if (tn_status failed = partial.borrow(nbytes)) return failed;
            job.partial = partial.as<double>();
        }
    }
    if constexpr (sizeof(R) == sizeof(float))
        if (both) return ln_both(job);
    if (job.dx.data && job.n > 0)
        if (tn_status failed = ln_dx(job)) return failed;
    return sums ? ln_dw(job) : TN_OK;
}

tn_status tni_cuda_layer_norm_grad(const tni_layer_norm_grad *a)
{
    return a->x.dtype == TN_F64 ? layer_norm_grad<double>(a) : layer_norm_grad<float>(a);
}
