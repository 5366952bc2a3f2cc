/*
 * depthwise.cu - convolutions with one input channel a group, directly: a thread computes one
 * output, or one input's gradient by gathering from the outputs it went into. A weight's gradient
 * has few numbers, each a sum over many pixels: blocks take runs of pixels, whose sums are added in
 * order. bf16 and f16 become f32 when read; sums are rounded once. conv2d.cu has checked that every
 * number of the geometry is an int.
 */
#include "cuda/conv2d.h"
#include "cuda/rows.h"
#include "cuda/half.h"

enum { BLOCK = 256, WARP = 32, TAPS = 9, PARTIAL = 4 << 20 };

template <typename R> struct depthwise {
    const R *x, *w, *bias, *dy;
    R *to;
    typename element<R>::computing *sums; /* of the weight's gradient */
    int64_t images, channels;             /* of x */
    int each;                             /* outputs of a channel */
    int h, w_, oh, ow, kh, kw;
    int stride[2], padding[2], dilation[2];
    int64_t run, parts; /* of the weight's gradient: pixels of a part */
};

template <typename R, typename I>
static __global__ void __launch_bounds__(BLOCK) depthwise_forward(depthwise<R> g, I n)
{
    typedef typename element<R>::computing A;
    const int plane = g.oh * g.ow;
    for (I i = blockIdx.x * (I)BLOCK + threadIdx.x; i < n; i += gridDim.x * (I)BLOCK) {
        const I which = i / plane; /* image and output channel */
        const int pixel = (int)(i - which * plane);
        const int o = (int)(which % (I)(g.channels * g.each));
        const int top = pixel / g.ow * g.stride[0] - g.padding[0];
        const int left = pixel % g.ow * g.stride[1] - g.padding[1];
        const R *x = g.x + (int64_t)(which / g.each) * g.h * g.w_;
        const R *w = g.w + (int64_t)o * g.kh * g.kw;
        A sum = g.bias ? wide(g.bias[o]) : (A)0;
        for (int r = 0; r < g.kh; r++) {
            const int y = top + r * g.dilation[0];
            if ((unsigned)y >= (unsigned)g.h) continue;
            for (int s = 0; s < g.kw; s++) {
                const int z = left + s * g.dilation[1];
                if ((unsigned)z < (unsigned)g.w_)
                    sum += wide(w[r * g.kw + s]) * wide(x[y * g.w_ + z]);
            }
        }
        g.to[i] = element<R>::rounded(sum);
    }
}

template <typename R, typename I>
static __global__ void __launch_bounds__(BLOCK) depthwise_input(depthwise<R> g, I n)
{
    typedef typename element<R>::computing A;
    const int plane = g.h * g.w_;
    for (I i = blockIdx.x * (I)BLOCK + threadIdx.x; i < n; i += gridDim.x * (I)BLOCK) {
        const I which = i / plane; /* image and channel */
        const int pixel = (int)(i - which * plane);
        const int y = pixel / g.w_ + g.padding[0], z = pixel % g.w_ + g.padding[1];
        const R *dy = g.dy + (int64_t)which * g.each * g.oh * g.ow;
        const R *w = g.w + (int64_t)(which % (I)g.channels) * g.each * g.kh * g.kw;
        A sum = 0;
        for (int m = 0; m < g.each; m++, dy += g.oh * g.ow, w += g.kh * g.kw)
            for (int r = 0; r < g.kh; r++) {
                const int row = place_above(y - r * g.dilation[0], g.stride[0], g.oh);
                if (row < 0) continue;
                for (int s = 0; s < g.kw; s++) {
                    const int column = place_above(z - s * g.dilation[1], g.stride[1], g.ow);
                    if (column >= 0) sum += wide(w[r * g.kw + s]) * wide(dy[row * g.ow + column]);
                }
            }
        g.to[i] = element<R>::rounded(sum);
    }
}

/* A block sums up to TAPS taps of one output channel over one part of the pixels. */
template <typename R>
static __global__ void __launch_bounds__(BLOCK) depthwise_weigh(depthwise<R> g)
{
    typedef typename element<R>::computing A;
    constexpr int WARPS = BLOCK / WARP;
    __shared__ A sums[TAPS][WARPS];
    const int kernel = g.kh * g.kw, passes = (kernel + TAPS - 1) / TAPS;
    const int plane = g.oh * g.ow, tid = (int)threadIdx.x;
    const int64_t outputs = g.channels * g.each, pixels = g.images * plane;
    const int64_t tiles = g.parts * outputs * passes;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int tap0 = (int)(tile % passes) * TAPS;
        const int64_t o = tile / passes % outputs, part = tile / passes / outputs;
        const int64_t last = (part + 1) * g.run < pixels ? (part + 1) * g.run : pixels;
        int64_t at = part * g.run + tid, image = at / plane;
        int64_t pixel = at % plane;
        A sum[TAPS] = {};
        for (; at < last; at += BLOCK) {
            const int top = (int)pixel / g.ow * g.stride[0] - g.padding[0];
            const int left = (int)pixel % g.ow * g.stride[1] - g.padding[1];
            const A d = wide(g.dy[(image * outputs + o) * plane + pixel]);
            const R *x = g.x + (image * g.channels + o / g.each) * g.h * g.w_;
            int r = tap0 / g.kw, s = tap0 % g.kw;
            TN_UNROLL
            for (int t = 0; t < TAPS; t++) {
                const int y = top + r * g.dilation[0], z = left + s * g.dilation[1];
                if (r < g.kh && (unsigned)y < (unsigned)g.h && (unsigned)z < (unsigned)g.w_)
                    sum[t] += d * wide(x[y * g.w_ + z]);
                if (++s == g.kw) {
                    s = 0;
                    r++;
                }
            }
            for (pixel += BLOCK; pixel >= plane; pixel -= plane) image++;
        }
        TN_UNROLL
        for (int t = 0; t < TAPS; t++) {
            sum[t] = warp_sum(sum[t]);
            if (tid % WARP == 0) sums[t][tid / WARP] = sum[t];
        }
        __syncthreads();
        if (tid < TAPS && tap0 + tid < kernel) {
            A all = 0;
            for (int l = 0; l < WARPS; l++) all += sums[tid][l];
            g.sums[(part * outputs + o) * kernel + tap0 + tid] = all;
        }
        __syncthreads();
    }
}

/* dw = the sum of the parts: eight lanes take every eighth part; their sums are added in order. */
template <typename R, typename A>
static __global__ void __launch_bounds__(BLOCK)
    depthwise_sum(R *dw, const A *parts, int64_t n, int64_t count)
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

template <typename R> static depthwise<R> depthwise_of(const tni_conv2d_sizes *c)
{
    depthwise<R> g = {};
    g.images = c->n, g.channels = c->c, g.each = (int)(c->o / c->groups);
    g.h = (int)c->h, g.w_ = (int)c->w, g.oh = (int)c->oh, g.ow = (int)c->ow, g.kh = (int)c->kh,
    g.kw = (int)c->kw;
    for (int i = 0; i < 2; i++) {
        g.stride[i] = (int)c->stride[i];
        g.padding[i] = (int)c->padding[i];
        g.dilation[i] = (int)c->dilation[i];
    }
    return g;
}

/* n elements, counted in int where the stride of the largest grid fits as well. */
#define BY_SIZE(kernel)                                                                            \
    (n <= INT32_MAX - 65535 * BLOCK                                                                \
         ? TN_LAUNCH((kernel<R, int>), tni_cuda_blocks(n, BLOCK, 65535), BLOCK, 0, g, n)           \
         : TN_LAUNCH((kernel<R, int64_t>), tni_cuda_blocks(n, BLOCK, 65535), BLOCK, 0, g, n))

/* ---- for conv2d.cu --------------------------------------------------------------------------- */

template <typename R>
static tn_status forward(R *y, const R *x, const R *w, const R *bias, const tni_conv2d_sizes *c)
{
    depthwise<R> g = depthwise_of<R>(c);
    int64_t n = c->n * c->o * c->oh * c->ow;
    g.x = x, g.w = w, g.bias = bias, g.to = y;
    return BY_SIZE(depthwise_forward);
}

template <typename R>
static tn_status grad_input(R *dx, const R *dy, const R *w, const tni_conv2d_sizes *c)
{
    depthwise<R> g = depthwise_of<R>(c);
    int64_t n = c->n * c->c * c->h * c->w;
    g.dy = dy, g.w = w, g.to = dx;
    return BY_SIZE(depthwise_input);
}

/* The cut of the pixels into parts, by the shape alone: enough blocks to fill a device, no part
 * below 4096 pixels, all parts together at most PARTIAL elements. */
static void cut(const tni_conv2d_sizes *c, int64_t *parts, int64_t *run)
{
    int64_t pixels = c->n * c->oh * c->ow, size = c->o * c->kh * c->kw;
    int64_t most = (pixels - 1) / 4096 + 1;
    int64_t n = 768 / c->o;
    n = n < most ? n : most;
    n = n < PARTIAL / size ? n : PARTIAL / size;
    n = n > 1 ? n : 1;
    *run = ((pixels - 1) / n + 16) / 16 * 16;
    *parts = (pixels - 1) / *run + 1;
}

template <typename R>
static tn_status grad_weight(R *dw, const R *dy, const R *x, const tni_conv2d_sizes *c)
{
    typedef typename element<R>::computing A;
    depthwise<R> g = depthwise_of<R>(c);
    int64_t size = c->o * c->kh * c->kw;

    cut(c, &g.parts, &g.run);
    tni_cuda_scratch sums;
    if (tn_status failed = sums.borrow((size_t)(g.parts * size) * sizeof(A))) return failed;
    g.dy = dy, g.x = x, g.sums = sums.as<A>();
    int64_t blocks = g.parts * c->o * ((c->kh * c->kw - 1) / TAPS + 1);
    if (tn_status failed =
            TN_LAUNCH((depthwise_weigh<R>), tni_cuda_blocks(blocks, 1, 65535), BLOCK, 0, g))
        return failed;
    return TN_LAUNCH((depthwise_sum<R, A>), tni_cuda_blocks(size, WARP, 65535), BLOCK, 0, dw,
                     sums.as<const A>(), size, g.parts);
}

tn_status tni_cuda_depthwise(void *y, const void *x, const void *w, const void *bias,
                             tn_dtype dtype, const tni_conv2d_sizes *c)
{
    return TN_FLOATING(dtype, forward((R *)y, (const R *)x, (const R *)w, (const R *)bias, c));
}

tn_status tni_cuda_depthwise_grad_input(void *dx, const void *dy, const void *w, tn_dtype dtype,
                                        const tni_conv2d_sizes *c)
{
    return TN_FLOATING(dtype, grad_input((R *)dx, (const R *)dy, (const R *)w, c));
}

tn_status tni_cuda_depthwise_grad_weight(void *dw, const void *dy, const void *x, tn_dtype dtype,
                                         const tni_conv2d_sizes *c)
{
    return TN_FLOATING(dtype, grad_weight((R *)dw, (const R *)dy, (const R *)x, c));
}
