/*
 * conv2d.cu - 2-D convolution and the gradient of its image as products whose one factor is never
 * stored: tiles of it are gathered from the image while the product runs (an implicit gemm), so
 * there is no column matrix and no memory is taken.
 *
 *   y  [o, pixels of all images]  = w [o, ch r s] gathered x + b
 *   dx [ch, pixels of all images] = w^T [ch, o r s] gathered dy
 *
 * With a stride, an input pixel meets only the taps that reach it from a whole output place: pixels
 * fall into stride x stride classes, each of which is a convolution of stride 1 with every so
 * manieth tap. A 1x1 kernel with stride 1 and no padding is a plain product (gemm.cu); a depthwise
 * convolution has no product in it and is computed directly (depthwise.cu); bf16, f16 and f32 as
 * TF32 take the tensor cores (conv2d_columns.cu). Every sum has one order: repeats give the same
 * bits.
 * Source: Chetlur et al., cuDNN: Efficient Primitives for Deep Learning (2014), section 3.
 */
#include "cuda/conv2d.h"
#include "cuda/short.h"
#include "cuda/tile.h"

enum { STEP = 8, BLOCK = 256, LARGEST = 1 << 30 };

/* Along one axis: the output places of a class (u = 0 .. count) lie at first + u * step; tap number
 * t is row (column) tap_first + t * tap_step of the kernel and reads place
 * base + u * base_step + t * move. */
struct axis {
    int count, first, step;
    int taps, tap_first, tap_step;
    int base, base_step, move;
};

/* What both gathering products have: out[image, m, place] = bias[m] + sum of a times in. */
template <typename R> struct gather {
    const R *a, *in, *bias;
    R *out;
    int64_t images, groups;
    int rows, channels; /* of a group: M, and the channels that are summed over */
    int in_h, in_w, out_h, out_w;
    int64_t a_group, a_row, a_channel; /* strides of a; of a tap: a_tap, 1 */
    int a_tap;
    int kernel[2], stride[2], padding[2], dilation[2];
    bool transposed;      /* the gradient: in is dy */
    int classes[2];       /* of output places: 1, or the strides */
    int64_t column_tiles; /* of the largest class */
    bool quads;           /* outputs may be stored four at a time */
};

template <typename R> static __device__ axis axis_of(const gather<R> &g, int i, int number)
{
    int out = i ? g.out_w : g.out_h, kernel = g.kernel[i];
    int stride = g.stride[i], dilation = g.dilation[i];
    if (!g.transposed) return axis{ out, 0, 1, kernel, 0, 1, -g.padding[i], stride, dilation };
    axis x = {
        number < out ? (out - number - 1) / stride + 1 : 0, number, stride, 0, 0, 1, 0, 1, 0
    };
    /* taps r with (number + padding - r * dilation) divisible by the stride: every tap_step'th from
     * one */
    while (x.tap_step < stride && (int64_t)x.tap_step * dilation % stride != 0) x.tap_step++;
    int r = 0;
    while (r < x.tap_step && ((int64_t)number + g.padding[i] - (int64_t)r * dilation) % stride != 0)
        r++;
    if (r == x.tap_step || r >= kernel) return x; /* none */
    x.tap_first = r;
    x.taps = (kernel - 1 - r) / x.tap_step + 1;
    x.base = (int)(((int64_t)number + g.padding[i] - (int64_t)r * dilation) / stride);
    x.move = -(int)((int64_t)x.tap_step * dilation / stride);
    return x;
}

/* A block makes a tile of 8 TM rows by 16 TN places. Tiles of one run of places follow each other,
 * so that what one gathers the next finds in the cache. */
template <typename R, int TM, int TN>
static __global__ void __launch_bounds__(THREADS) conv_gather(gather<R> g)
{
    constexpr int BM = TILE_ROWS * TM, BN = TILE_COLUMNS * TN;
    constexpr int ROWS = BM * STEP / THREADS; /* of a, for each thread */
    constexpr int PHASES = THREADS / BN;      /* threads that gather for one place */
    constexpr int ITEMS = STEP / PHASES;
    __shared__ __align__(16) R left[2][STEP][BM + 4];
    __shared__ __align__(16) R right[2][STEP][BN];
    __shared__ int64_t target[BN]; /* where place n of the tile is stored; -1: nowhere */
    const int tid = (int)threadIdx.x, row = tid / TILE_COLUMNS, column = tid % TILE_COLUMNS;
    const int row_tiles = (g.rows + BM - 1) / BM;
    int64_t rest = blockIdx.x / row_tiles;
    const int m0 = (int)(blockIdx.x % row_tiles) * BM;
    const int64_t n0 = rest % g.column_tiles * BN;
    rest /= g.column_tiles;
    const axis v = axis_of(g, 0, (int)(rest / g.classes[1] % g.classes[0]));
    const axis h = axis_of(g, 1, (int)(rest % g.classes[1]));
    const int64_t group = rest / g.classes[1] / g.classes[0];
    const int taps = v.taps * h.taps, depth = g.channels * taps;
    const int64_t plane = (int64_t)g.in_h * g.in_w, out_plane = (int64_t)g.out_h * g.out_w;
    const R *a = g.a + group * g.a_group + (int64_t)v.tap_first * g.a_tap + h.tap_first;

    /* the place that this thread gathers for, and where it is in the sum: tap (t, s) of `from`'s
     * channel */
    const int64_t place = n0 + tid % BN;
    const int64_t area = (int64_t)v.count * h.count;
    const bool inside = area > 0 && place < g.images * area;
    const int64_t image = inside ? place / area : 0;
    const int in_area = inside ? (int)(place % area) : 0;
    const int pi = inside ? in_area / h.count : 0, pj = inside ? in_area % h.count : 0;
    const int top = v.base + pi * v.base_step, start = h.base + pj * h.base_step;
    const R *from = g.in + (image * g.groups + group) * g.channels * plane;
    int at = 0, t = 0, s = 0;
    if (tid < BN)
        target[tid] = inside
                          ? (image * g.groups + group) * g.rows * out_plane +
                                (int64_t)(v.first + pi * v.step) * g.out_w + h.first + pj * h.step
                          : -1;
    R sum[TM][TN] = {};
    R next_left[ROWS], next_right[ITEMS];

    auto advance = [&]() {
        at++;
        if (++s < h.taps) return;
        s = 0;
        if (++t < v.taps) return;
        t = 0;
        from += plane;
    };
    auto fetch = [&](int k0) {
        const int k = k0 + tid % STEP;
        const int channel = k < depth ? k / taps : 0, tap = k < depth ? k % taps : 0;
        const R *p = a + channel * g.a_channel +
                     (int64_t)(tap / (h.taps > 0 ? h.taps : 1)) * v.tap_step * g.a_tap +
                     tap % (h.taps > 0 ? h.taps : 1) * h.tap_step;
        TN_UNROLL for (int i = 0; i < ROWS; i++) {
            const int m = m0 + tid / STEP + i * (THREADS / STEP);
            next_left[i] = k < depth && m < g.rows ? p[m * g.a_row] : (R)0;
        }
        TN_UNROLL for (int i = 0; i < ITEMS; i++) {
            const int y = top + t * v.move, x = start + s * h.move;
            const bool there = inside && at < depth && (unsigned)y < (unsigned)g.in_h &&
                               (unsigned)x < (unsigned)g.in_w;
            next_right[i] = there ? from[y * g.in_w + x] : (R)0;
            TN_UNROLL for (int phase = 0; phase < PHASES; phase++)
                advance();
        }
    };
    auto store = [&](int buffer) {
        TN_UNROLL for (int i = 0; i < ROWS; i++)
            left[buffer][tid % STEP][tid / STEP + i * (THREADS / STEP)] = next_left[i];
        TN_UNROLL for (int i = 0; i < ITEMS; i++)
            right[buffer][i * PHASES + tid / BN][tid % BN] = next_right[i];
    };

    for (int phase = 0; phase < tid / BN; phase++) advance();
    fetch(0);
    store(0);
    __syncthreads();
    for (int k0 = 0, buffer = 0; k0 < depth; k0 += STEP, buffer ^= 1) {
        if (k0 + STEP < depth) fetch(k0 + STEP);
        TN_UNROLL for (int k = 0; k < STEP; k++) {
            R x[TM], y[TN];
            take(x, &left[buffer][k][row * TM], 4);
            take(y, &right[buffer][k][column * (TN < 4 ? TN : 4)], 64);
            multiply(sum, x, y);
        }
        if (k0 + STEP < depth) {
            store(buffer ^ 1);
            __syncthreads();
        }
    }

    TN_UNROLL for (int i = 0; i < TM; i++) {
        const int m = m0 + row * TM + i;
        if (m >= g.rows) continue;
        const R add = g.bias ? g.bias[group * g.rows + m] : (R)0;
        R *to = g.out + m * out_plane;
        TN_UNROLL for (int j = 0; j < TN; j += 4) {
            const int n = column_of<TN>(column, j);
            if (g.quads && target[n] >= 0) {
                quad<R> q;
                TN_UNROLL for (int e = 0; e < 4; e++)
                    q.v[e] = sum[i][j + e] + add;
                quad_at(to + target[n]) = q;
            } else {
                TN_UNROLL for (int e = 0; e < 4; e++)
                    if (target[n + e] >= 0) to[target[n + e]] = sum[i][j + e] + add;
            }
        }
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename R>
static __global__ void __launch_bounds__(BLOCK)
    conv_bias(R *y, const R *bias, int64_t rows, int64_t channels, int64_t plane)
{
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        const R b = bias[r % channels];
        for (int64_t i = threadIdx.x; i < plane; i += BLOCK) y[r * plane + i] = b;
    }
}

tn_status tni_cuda_conv2d_fits(const char *name, const tni_conv2d *c)
{
    bool ok = c->groups > 0 && c->kh > 0 && c->kw > 0;
    for (int i = 0; i < 2; i++) ok = ok && (i ? c->w : c->h) + 2 * c->padding[i] <= LARGEST;
    ok = ok && (c->h == 0 || c->w <= LARGEST / c->h) && (c->oh == 0 || c->ow <= LARGEST / c->oh);
    int64_t most = c->c > c->o ? c->c : c->o;
    ok = ok && c->kw <= LARGEST / c->kh && (most == 0 || c->kh * c->kw <= LARGEST / most);
    if (ok) return TN_OK;
    return tni_cuda_host->fail(
        TN_E_UNSUPPORTED,
        "%s: planes of %lldx%lld and %lldx%lld, %lld and %lld channels, kernel "
        "%lldx%lld: want at most %d padded rows, columns, elements of a plane, taps",
        name, (long long)c->h, (long long)c->w, (long long)c->oh, (long long)c->ow, (long long)c->c,
        (long long)c->o, (long long)c->kh, (long long)c->kw, (int)LARGEST);
}

static bool is_plain(const tni_conv2d *c, tn_dtype dtype)
{
    return c->kh == 1 && c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 &&
           c->padding[0] == 0 && c->padding[1] == 0 && c->groups == 1 &&
           /* small planes: images in one tile, or no columns */
           (c->oh * c->ow >= 64 || tni_cuda_by_columns(dtype));
}

template <typename R, int TM, int TN> static tn_status launch_gather(gather<R> g)
{
    constexpr int BM = TILE_ROWS * TM, BN = TILE_COLUMNS * TN;
    int64_t area = (int64_t)((g.out_h - 1) / g.classes[0] + 1) * ((g.out_w - 1) / g.classes[1] + 1);
    g.column_tiles = (g.images * area + BN - 1) / BN;
    unsigned blocks;
    TN_TRY(tiles_fit("conv2d",
                     g.column_tiles * ((g.rows + BM - 1) / BM) * g.groups * g.classes[0] *
                         g.classes[1],
                     &blocks));
    return TN_LAUNCH((conv_gather<R, TM, TN>), blocks, THREADS, 0, g);
}

static tn_status run_gather(const gather<double> *g)
{
    return launch_gather<double, 4, 4>(*g);
}

/* Large tiles where they fill the device; where rows would be left over in every one of them, flat
 * ones. */
static tn_status run_gather(const gather<float> *g)
{
    int64_t columns = (g->images * g->out_h * g->out_w + 127) / 128 * g->groups;
    bool flat = g->rows <= 96 && (g->rows - 1) / 32 % 2 == 0;
    int64_t enough = tni_cuda_multiprocessors();
    if (!flat && columns * ((g->rows + 63) / 64) >= enough) return launch_gather<float, 8, 8>(*g);
    if (columns * ((g->rows + 31) / 32) >= enough) return launch_gather<float, 4, 8>(*g);
    return launch_gather<float, 4, 4>(*g);
}

template <typename R>
static gather<R> gather_of(const tni_conv2d *c, const R *in, const R *w, R *out, bool transposed)
{
    gather<R> g = {};
    int64_t kernel = c->kh * c->kw, channels = c->c / c->groups, outputs = c->o / c->groups;
    g.a = w, g.in = in, g.out = out;
    g.images = c->n, g.groups = c->groups;
    g.rows = (int)(transposed ? channels : outputs);
    g.channels = (int)(transposed ? outputs : channels);
    g.in_h = (int)(transposed ? c->oh : c->h), g.in_w = (int)(transposed ? c->ow : c->w);
    g.out_h = (int)(transposed ? c->h : c->oh), g.out_w = (int)(transposed ? c->w : c->ow);
    g.a_group = outputs * channels * kernel;
    g.a_row = transposed ? kernel : channels * kernel;
    g.a_channel = transposed ? channels * kernel : kernel;
    g.a_tap = (int)c->kw;
    g.transposed = transposed;
    g.kernel[0] = (int)c->kh, g.kernel[1] = (int)c->kw;
    for (int i = 0; i < 2; i++) {
        g.stride[i] = (int)c->stride[i];
        g.padding[i] = (int)c->padding[i];
        g.dilation[i] = (int)c->dilation[i];
        int64_t size = i ? c->w : c->h;
        g.classes[i] = (int)(!transposed ? 1 : c->stride[i] < size ? c->stride[i] : size);
    }
    g.quads = g.classes[0] == 1 && g.classes[1] == 1 && quads_fit(out, (int64_t)g.out_h * g.out_w);
    return g;
}

template <typename R> static tn_status add_bias(R *y, const R *bias, const tni_conv2d *c)
{
    return TN_LAUNCH((conv_bias<R>), tni_cuda_blocks(c->n * c->o, 1, 65535), BLOCK, 0, y, bias,
                     c->n * c->o, c->o, c->oh * c->ow);
}

/* y = bias (if any), to which products then add. */
static tn_status start(void *y, const void *bias, tn_dtype dtype, const tni_conv2d *c)
{
    if (bias) TN_FLOATING(dtype, add_bias(static_cast<R *>(y), static_cast<const R *>(bias), c));
    return TN_OK;
}

template <typename R>
static tn_status gather_forward(R *y, const R *x, const R *w, const R *bias, const tni_conv2d *c)
{
    gather<R> g = gather_of(c, x, w, y, false);
    g.bias = bias;
    return run_gather(&g);
}

template <typename R>
static tn_status gather_back(R *dx, const R *dy, const R *w, const tni_conv2d *c)
{
    gather<R> g = gather_of(c, dy, w, dx, true);
    return run_gather(&g);
}

/* ---- slots ----------------------------------------------------------------------------------- */

tn_status tni_cuda_conv2d(void *y, const void *x, const void *w, const void *bias, tn_dtype dtype,
                          const tni_conv2d *c)
{
    int64_t plane = c->oh * c->ow;

    TN_TRY(tni_cuda_conv2d_fits("conv2d", c));
    TN_TRY(check_floating("conv2d", dtype));
    if (c->n * c->o * plane == 0) return TN_OK;
    if (tni_cuda_is_depthwise(c)) return tni_cuda_depthwise(y, x, w, bias, dtype, c);
    if (is_plain(c, dtype)) {
        TN_TRY(start(y, bias, dtype, c));
        tni_gemm g = { dtype, c->o,         plane, c->c,         c->n,    w,
                       x,     y,            c->c,  1,            0,       plane,
                       1,     c->c * plane, plane, c->o * plane, nullptr, bias != nullptr };
        return tni_cuda_gemm(&g);
    }
    if (tni_cuda_by_columns(dtype)) {
        TN_TRY(start(y, bias, dtype, c));
        return tni_cuda_columns(y, x, w, bias != nullptr, dtype, c);
    }
    TN_REAL(dtype, gather_forward(static_cast<R *>(y), static_cast<const R *>(x),
                                  static_cast<const R *>(w), static_cast<const R *>(bias), c));
    return TN_OK;
}

tn_status tni_cuda_conv2d_grad_input(void *dx, const void *dy, const void *w, tn_dtype dtype,
                                     const tni_conv2d *c)
{
    int64_t plane = c->h * c->w;

    TN_TRY(tni_cuda_conv2d_fits("conv2d_grad_input", c));
    TN_TRY(check_floating("conv2d_grad_input", dtype));
    if (c->n * c->c * plane == 0) return TN_OK;
    if (tni_cuda_is_depthwise(c)) return tni_cuda_depthwise_grad_input(dx, dy, w, dtype, c);
    if (is_plain(c, dtype)) {
        tni_gemm g = { dtype, c->c, plane, c->o, c->n,         w,     dy,           dx,      1,
                       c->c,  0,    plane, 1,    c->o * plane, plane, c->c * plane, nullptr, false };
        return tni_cuda_gemm(&g);
    }
    if (tni_cuda_by_columns(dtype)) return tni_cuda_columns_grad_input(dx, dy, w, dtype, c);
    TN_REAL(dtype, gather_back(static_cast<R *>(dx), static_cast<const R *>(dy),
                               static_cast<const R *>(w), c));
    return TN_OK;
}
