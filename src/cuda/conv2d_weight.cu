/*
 * conv2d_weight.cu - the gradient of a convolution's weight: dw [o, ch r s] = dy [o, pixels]
 * gathered x^T, an implicit gemm as in conv2d.cu. Few rows and columns over many pixels: blocks
 * take runs of pixels, whose sums (at most PARTIAL numbers of borrowed memory) are added up in
 * order. (bf16, f16 and f32 as TF32 take the tensor cores: conv2d_columns.cu.)
 */
#include "cuda/conv2d.h"
#include "cuda/short.h"
#include "cuda/tile.h"

enum { LONG_STEP = 16, BLOCK = 256, WARP = 32, PARTIAL = 4 << 20, LARGEST = 1 << 30 };

template <typename R> struct weigh {
    const R *dy, *x;
    R *dw; /* [parts, o, taps] */
    tni_conv2d c;
    int rows, taps;      /* o / groups; c / groups * kh * kw */
    int64_t pixels, run; /* n * oh * ow, of a part */
    int64_t parts;
};

template <typename R, int TM, int TN>
static __global__ void __launch_bounds__(THREADS) conv_weigh(weigh<R> g)
{
    constexpr int BM = TILE_ROWS * TM, BN = TILE_COLUMNS * TN;
    constexpr int ROWS = BM * LONG_STEP / THREADS, COLUMNS = BN * LONG_STEP / THREADS;
    __shared__ __align__(16) R left[2][LONG_STEP][BM + 4];
    __shared__ __align__(16) R right[2][LONG_STEP][BN + 4];
    __shared__ int64_t tap_offset[BN];
    __shared__ int tap_row[BN], tap_column[BN]; /* far outside the image: no tap */
    const tni_conv2d &c = g.c;
    const int tid = (int)threadIdx.x, row = tid / TILE_COLUMNS, column = tid % TILE_COLUMNS;
    const int row_tiles = (g.rows + BM - 1) / BM, column_tiles = (g.taps + BN - 1) / BN;
    const int64_t plane = c.h * c.w, out_plane = c.oh * c.ow;
    const int h = (int)c.h, w = (int)c.w, ow = (int)c.ow, step_y = (int)c.stride[0],
              step_x = (int)c.stride[1];
    const int channels = (int)(c.c / c.groups), kernel = (int)(c.kh * c.kw);

    int64_t rest = blockIdx.x / row_tiles;
    const int m0 = (int)(blockIdx.x % row_tiles) * BM;
    const int n0 = (int)(rest % column_tiles) * BN;
    rest /= column_tiles;
    const int64_t group = rest % c.groups, part = rest / c.groups;
    const int64_t first = part * g.run, last = first + g.run < g.pixels ? first + g.run : g.pixels;
    const int k = tid % LONG_STEP, line = tid / LONG_STEP;

    if (tid < BN) {
        const int tap = n0 + tid, r = tap % kernel / (int)c.kw, s = tap % kernel % (int)c.kw;
        tap_row[tid] = tap < g.taps ? r * (int)c.dilation[0] - (int)c.padding[0] : -2 * LARGEST;
        tap_column[tid] = s * (int)c.dilation[1] - (int)c.padding[1];
        tap_offset[tid] = tap / kernel * plane;
    }
    __syncthreads();
    /* the pixel that this thread gathers */
    int64_t at = first + k, image = at / out_plane;
    int pixel = (int)(at % out_plane);
    R sum[TM][TN] = {};
    R next_left[ROWS], next_right[COLUMNS];

    auto fetch = [&]() {
        const bool inside = at < last;
        const R *dy = g.dy + ((image * c.groups + group) * g.rows + m0 + line) * out_plane + pixel;
        const R *x = g.x + (image * c.groups + group) * channels * plane;
        const int top = pixel / ow * step_y, start = pixel % ow * step_x;
        TN_UNROLL for (int i = 0; i < ROWS; i++) {
            const int m = m0 + line + i * (THREADS / LONG_STEP);
            next_left[i] = inside && m < g.rows ? dy[i * (THREADS / LONG_STEP) * out_plane] : (R)0;
        }
        TN_UNROLL for (int i = 0; i < COLUMNS; i++) {
            const int n = line + i * (THREADS / LONG_STEP);
            const int y = top + tap_row[n], z = start + tap_column[n];
            const bool there = inside && (unsigned)y < (unsigned)h && (unsigned)z < (unsigned)w;
            next_right[i] = there ? x[tap_offset[n] + (int64_t)y * w + z] : (R)0;
        }
        at += LONG_STEP;
        int64_t on = pixel + (int64_t)LONG_STEP;
        while (on >= out_plane) {
            on -= out_plane;
            image++;
        }
        pixel = (int)on;
    };
    auto store = [&](int buffer) {
        TN_UNROLL for (int i = 0; i < ROWS; i++)
            left[buffer][k][line + i * (THREADS / LONG_STEP)] = next_left[i];
        TN_UNROLL for (int i = 0; i < COLUMNS; i++)
            right[buffer][k][line + i * (THREADS / LONG_STEP)] = next_right[i];
    };

    fetch();
    store(0);
    __syncthreads();
    int buffer = 0;
    for (int64_t k0 = first; k0 < last; k0 += LONG_STEP, buffer ^= 1) {
        const bool more = k0 + LONG_STEP < last;
        if (more) {
            fetch();
        }
        TN_UNROLL for (int e = 0; e < LONG_STEP; e++) {
            R x[TM], y[TN];
            take(x, &left[buffer][e][row * TM], 4);
            take(y, &right[buffer][e][column * (TN < 4 ? TN : 4)], 64);
            multiply(sum, x, y);
        }
        if (more) {
            store(buffer ^ 1);
            __syncthreads();
        }
    }
    R *to = g.dw + (part * c.groups + group) * g.rows * g.taps;
    TN_UNROLL for (int i = 0; i < TM; i++) {
        const int m = m0 + row * TM + i;
        TN_UNROLL for (int j = 0; j < TN; j++) {
            const int n = n0 + column_of<TN>(column, j);
            if (m < g.rows && n < g.taps) to[(int64_t)m * g.taps + n] = sum[i][j];
        }
    }
}

/* dw = the sum of the parts: eight lanes take every eighth part, then each other in order. */
template <typename R, typename A>
static __global__ void __launch_bounds__(BLOCK)
    conv_sum(R *dw, const A *parts, int64_t n, int64_t count)
{
    constexpr int LANES = BLOCK / WARP;
    __shared__ A sums[LANES][WARP];
    const int lane = (int)threadIdx.x / WARP, at = (int)threadIdx.x % WARP;
    for (int64_t first = blockIdx.x * (int64_t)WARP; first < n;
         first += gridDim.x * (int64_t)WARP) {
        const int64_t i = first + at;
        A sum = 0;
        if (i < n)
            for (int64_t p = lane; p < count; p += LANES) sum += parts[p * n + i];
        sums[lane][at] = sum;
        __syncthreads();
        if (lane == 0 && i < n) {
            for (int l = 1; l < LANES; l++) sum += sums[l][at];
            dw[i] = element<R>::rounded(sum);
        }
        __syncthreads();
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

/* The cut of the pixels into parts, by the shape alone: enough blocks to fill a device, no part
 * below `least` pixels, all parts together at most PARTIAL elements. */
static void cut(const tni_conv2d *c, int64_t tiles, int64_t least, int64_t *parts, int64_t *run)
{
    int64_t pixels = c->n * c->oh * c->ow, size = c->o * (c->c / c->groups) * c->kh * c->kw;
    int64_t most = (pixels - 1) / least + 1;
    int64_t n = 768 / tiles;
    n = n < most ? n : most;
    n = n < PARTIAL / size ? n : PARTIAL / size;
    n = n > 1 ? n : 1;
    *run = ((pixels - 1) / n + LONG_STEP) / LONG_STEP * LONG_STEP;
    *parts = (pixels - 1) / *run + 1;
}

template <typename R, int TM, int TN> static tn_status launch_weigh(const weigh<R> *g)
{
    constexpr int BM = TILE_ROWS * TM, BN = TILE_COLUMNS * TN;
    unsigned blocks;
    TN_TRY(tiles_fit("conv2d",
                     g->parts * g->c.groups * ((g->rows + BM - 1) / BM) * ((g->taps + BN - 1) / BN),
                     &blocks));
    return TN_LAUNCH((conv_weigh<R, TM, TN>), blocks, THREADS, 0, *g);
}

static tn_status run_weigh(const weigh<double> *g)
{
    return launch_weigh<double, 4, 4>(g);
}

static tn_status run_weigh(const weigh<float> *g)
{
    return g->rows <= 32 ? launch_weigh<float, 4, 4>(g) : launch_weigh<float, 8, 4>(g);
}

/* make(to, parts, run) leaves parts [parts, o, taps] in `to`: dw itself where there is one of R. */
template <typename R, typename F>
static tn_status summed(R *dw, const tni_conv2d *c, int64_t tiles, int64_t least, const F &make)
{
    typedef typename element<R>::computing A;
    int64_t size = c->o * (c->c / c->groups) * c->kh * c->kw, parts, run;
    void *partial;

    cut(c, tiles, least, &parts, &run);
    if constexpr (!element<R>::is_short) {
        if (parts == 1) return make(dw, parts, run);
    }
    TN_TRY(tni_cuda_borrow((size_t)(parts * size) * sizeof(A), &partial));
    A *to = static_cast<A *>(partial);
    tn_status status = make(to, parts, run);
    if (status == TN_OK)
        status = TN_LAUNCH((conv_sum<R, A>), tni_cuda_blocks(size, WARP, 65535), BLOCK, 0, dw, to,
                           size, parts);
    tni_cuda_return(partial);
    return status;
}

template <typename R>
static tn_status depthwise(R *dw, const R *dy, const R *x, tn_dtype dtype, const tni_conv2d *c)
{
    return summed(dw, c, c->o, 4096, [&](void *to, int64_t parts, int64_t run) {
        return tni_cuda_depthwise_grad_weight(to, dy, x, dtype, c, parts, run);
    });
}

template <typename R>
static tn_status gathered(R *dw, const R *dy, const R *x, const tni_conv2d *c)
{
    int64_t rows = c->o / c->groups, taps = c->c / c->groups * c->kh * c->kw;
    int64_t pixels = c->n * c->oh * c->ow;
    int64_t tiles = c->groups * ((rows + 63) / 64) * ((taps + 63) / 64);

    return summed(dw, c, tiles, 256, [&](R *to, int64_t parts, int64_t run) {
        weigh<R> g = { dy, x, to, *c, (int)rows, (int)taps, pixels, run, parts };
        return run_weigh(&g);
    });
}

tn_status tni_cuda_conv2d_grad_weight(void *dw, const void *dy, const void *x, tn_dtype dtype,
                                      const tni_conv2d *c)
{
    int64_t size = c->o * (c->c / c->groups) * c->kh * c->kw, pixels = c->n * c->oh * c->ow;

    TN_TRY(tni_cuda_conv2d_fits("conv2d_grad_weight", c));
    TN_TRY(check_floating("conv2d_grad_weight", dtype));
    if (size == 0) return TN_OK;
    TN_TRY(tni_cuda_launching("conv2d_weight"));
    if (pixels == 0)
        return TN_CUDA(cudaMemsetAsync(dw, 0, (size_t)size * floating_size(dtype), tni_cuda_stream));
    if (tni_cuda_is_depthwise(c)) {
        TN_FLOATING(dtype, depthwise(static_cast<R *>(dw), static_cast<const R *>(dy),
                                     static_cast<const R *>(x), dtype, c));
        return TN_OK;
    }
    if (tni_cuda_by_columns(dtype)) return tni_cuda_columns_grad_weight(dw, dy, x, dtype, c);
    TN_REAL(dtype, gathered(static_cast<R *>(dw), static_cast<const R *>(dy),
                            static_cast<const R *>(x), c));
    return TN_OK;
}
