/*
 * pool2d.cu - pooling over the planes of [n, c, h, w], and its gradients.
 *
 * A thread computes one output; a wide average takes a warp. Gradients gather: an input sums over
 * the windows that contain it in row-major order, so nothing is added atomically and the order is
 * the CPU's. Element indices are 32 bits wide if the whole tensor fits, since every element costs
 * three divisions.
 */
#include <climits>

#include "cuda/rows.h"

enum { BLOCK = 256, WARP = 32 };

struct range {
    int begin, end;
};

/* The same sizes as int: the op and fits() have checked that they fit. */
struct pool {
    int h, w, oh, ow;
    int kernel[2], stride[2], padding[2], dilation[2];
    bool include_padding, adaptive;
    int64_t divisor;
};

static pool pool_of(const tni_pool2d_sizes *p)
{
    pool q = { (int)p->h, (int)p->w, (int)p->oh,         (int)p->ow,  {},        {},
               {},        { 1, 1 },  p->include_padding, p->adaptive, p->divisor };
    for (int i = 0; i < 2 && !p->adaptive; i++) {
        q.kernel[i] = (int)p->kernel[i];
        q.stride[i] = (int)p->stride[i];
        q.padding[i] = (int)p->padding[i];
        q.dilation[i] = (int)p->dilation[i];
    }
    return q;
}

/* Element `at` of [planes, rows, columns]. */
template <typename I> struct place {
    I plane;
    int row, column;
};

template <typename I>
static __device__ __forceinline__ place<I> place_of(I at, int rows, int columns)
{
    I line = at / columns;
    return place<I>{ line / rows, (int)(line % rows), (int)(at % columns) };
}

/* ---- windows along one axis (0: rows, 1: columns), computed in I ----------------------------- */

/* Outputs [begin, end) whose window may touch input i: all that do, and with dilation some that
 * skip it. */
template <typename I>
static __device__ __forceinline__ range windows_above(const pool &p, int axis, I i)
{
    I size = axis ? p.w : p.h, out = axis ? p.ow : p.oh;
    if (p.adaptive) return range{ (int)(i * out / size), (int)(((i + 1) * out + size - 1) / size) };
    I stride = p.stride[axis];
    I first = i + p.padding[axis] - (I)(p.kernel[axis] - 1) * p.dilation[axis];
    I begin = first <= 0 ? 0 : (first + stride - 1) / stride;
    I end = (i + p.padding[axis]) / stride + 1;
    return range{ (int)(begin < out ? begin : out), (int)(end < out ? end : out) };
}

/* Inputs [begin, end) under output o (no dilation), and how many it counts. Padding is counted, but
 * not beyond it: a window that ceil_mode lets hang over counts less. */
template <typename I>
static __device__ __forceinline__ range window_of(const pool &p, int axis, I o, int *count)
{
    I size = axis ? p.w : p.h, out = axis ? p.ow : p.oh;
    I begin, end;
    if (p.adaptive) {
        begin = o * size / out;
        end = ((o + 1) * size + out - 1) / out;
        *count = (int)(end - begin);
        return range{ (int)begin, (int)end };
    }
    begin = o * p.stride[axis] - p.padding[axis];
    end = begin + p.kernel[axis];
    end = end < size + p.padding[axis] ? end : size + p.padding[axis];
    *count = (int)(end - begin);
    begin = begin > 0 ? begin : 0;
    end = end < size ? end : size;
    end = end > begin ? end : begin;
    if (!p.include_padding) *count = (int)(end - begin);
    return range{ (int)begin, (int)end };
}

template <typename R>
static __device__ __forceinline__ R share(const pool &p, int rows, int columns)
{
    int64_t count = p.divisor ? p.divisor : (int64_t)rows * columns;
    return count > 0 ? (R)1 / (R)count : (R)0;
}

/* ---- maximum --------------------------------------------------------------------------------- */

/* NaN beats everything, the last of several; of equals the first in row-major order wins. */
template <typename R, typename I>
static __global__ void __launch_bounds__(BLOCK)
    max_pool(R *__restrict__ y, int32_t *__restrict__ index, const R *__restrict__ x, I n, pool p)
{
    for (I at = blockIdx.x * (I)BLOCK + threadIdx.x; at < n; at += gridDim.x * (I)BLOCK) {
        place<I> o = place_of<I>(at, p.oh, p.ow);
        const R *plane = x + o.plane * ((I)p.h * p.w);
        I top = (I)o.row * p.stride[0] - p.padding[0];
        I left = (I)o.column * p.stride[1] - p.padding[1];
        int tall = p.kernel[0], wide = p.kernel[1];
        if (p.adaptive) {
            top = window_of<I>(p, 0, o.row, &tall).begin;
            left = window_of<I>(p, 1, o.column, &wide).begin;
        }
        R best = -(R)INFINITY;
        int found = -1;
        for (int r = 0; r < tall; r++) {
            I row = top + (I)r * p.dilation[0];
            if (row < 0 || row >= p.h) continue;
            for (int s = 0; s < wide; s++) {
                I column = left + (I)s * p.dilation[1];
                if (column < 0 || column >= p.w) continue;
                int here = (int)row * p.w + (int)column;
                R v = plane[here];
                if (found < 0 || v > best || v != v) {
                    best = v;
                    found = here;
                }
            }
        }
        y[at] = best;
        if (index) index[at] = found;
    }
}

template <typename R, typename I>
static __global__ void __launch_bounds__(BLOCK)
    max_pool_grad(R *__restrict__ dx, const R *__restrict__ dy, const int32_t *__restrict__ index,
                  I n, pool p)
{
    for (I at = blockIdx.x * (I)BLOCK + threadIdx.x; at < n; at += gridDim.x * (I)BLOCK) {
        place<I> i = place_of<I>(at, p.h, p.w);
        I plane = i.plane * ((I)p.oh * p.ow);
        range rows = windows_above<I>(p, 0, i.row), columns = windows_above<I>(p, 1, i.column);
        int here = i.row * p.w + i.column;
        R sum = 0;
        for (int r = rows.begin; r < rows.end; r++)
            for (int s = columns.begin; s < columns.end; s++) {
                I o = plane + (I)r * p.ow + s;
                if (index[o] == here) sum += dy[o];
            }
        dx[at] = sum;
    }
}

/* ---- averages -------------------------------------------------------------------------------- */

/* LANES threads (1 or a warp) for each output. */
template <typename R, typename I, int LANES>
static __global__ void __launch_bounds__(BLOCK)
    mean_pool(R *__restrict__ y, const R *__restrict__ x, I n, pool p)
{
    const int lane = threadIdx.x % LANES;
    for (I at = (blockIdx.x * (I)BLOCK + threadIdx.x) / LANES; at < n;
         at += gridDim.x * (I)(BLOCK / LANES)) {
        place<I> o = place_of<I>(at, p.oh, p.ow);
        const R *plane = x + o.plane * ((I)p.h * p.w);
        int tall, wide;
        range rows = window_of<I>(p, 0, o.row, &tall),
              columns = window_of<I>(p, 1, o.column, &wide);
        int width = columns.end - columns.begin;
        R sum = 0;
        if (LANES == 1) {
            for (int r = rows.begin; r < rows.end; r++)
                for (int s = columns.begin; s < columns.end; s++) sum += plane[r * p.w + s];
        } else {
            int area = (rows.end - rows.begin) * width;
            for (int e = lane; e < area; e += LANES)
                sum += plane[(rows.begin + e / width) * p.w + columns.begin + e % width];
            sum = warp_sum(sum);
        }
        if (lane == 0) y[at] = sum * share<R>(p, tall, wide);
    }
}

template <typename R, typename I>
static __global__ void __launch_bounds__(BLOCK)
    mean_pool_grad(R *__restrict__ dx, const R *__restrict__ dy, I n, pool p)
{
    for (I at = blockIdx.x * (I)BLOCK + threadIdx.x; at < n; at += gridDim.x * (I)BLOCK) {
        place<I> i = place_of<I>(at, p.h, p.w);
        const R *plane = dy + i.plane * ((I)p.oh * p.ow);
        range rows = windows_above<I>(p, 0, i.row), columns = windows_above<I>(p, 1, i.column);
        R sum = 0;
        for (int r = rows.begin; r < rows.end; r++) {
            int tall;
            window_of<I>(p, 0, r, &tall);
            int wide;
            for (int s = columns.begin; s < columns.end; s++) {
                window_of<I>(p, 1, s, &wide);
                sum += plane[r * p.ow + s] * share<R>(p, tall, wide);
            }
        }
        dx[at] = sum;
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

static tn_status fits(const char *name, const tni_pool2d_sizes *p)
{
    if (p->h > 0 && p->oh > 0 && (p->w > INT_MAX / p->h || p->ow > INT_MAX / p->oh))
        return tni_cuda_host->fail(TN_E_UNSUPPORTED,
                                   "%s: planes of %" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64
                                   ": want at most %d elements",
                                   name, p->h, p->w, p->oh, p->ow, INT_MAX);
    return TN_OK;
}

/* Whether int holds every number on the way: elements and the stride of the largest grid, places in
 * the padded image, and the products of adaptive windows. */
static bool is_small(const tni_pool2d_sizes *p)
{
    for (int i = 0; i < 2; i++) {
        int64_t size = i ? p->w : p->h, out = i ? p->ow : p->oh;
        if (p->adaptive
                ? (size + 1) * (out + 1) > INT_MAX
                : size + 2 * p->padding[i] + p->stride[i] + (p->kernel[i] - 1) * p->dilation[i] >
                      INT_MAX / 4)
            return false;
    }
    int64_t plane = p->h * p->w > p->oh * p->ow ? p->h * p->w : p->oh * p->ow;
    return plane == 0 || p->n * p->c <= (INT_MAX - 65535 * BLOCK) / plane;
}

static unsigned grid(int64_t threads)
{
    return tni_cuda_blocks(threads, BLOCK, 65535);
}

#define BY_SIZE(kernel, ...)                                                                       \
    (is_small(p) ? TN_LAUNCH((kernel<R, int>), grid(n), BLOCK, 0, __VA_ARGS__)                     \
                 : TN_LAUNCH((kernel<R, int64_t>), grid(n), BLOCK, 0, __VA_ARGS__))

template <typename R>
static tn_status run_max(void *y, int32_t *index, const void *x, const tni_pool2d_sizes *p)
{
    int64_t n = p->n * p->c * p->oh * p->ow;
    if (n == 0) return TN_OK;
    return BY_SIZE(max_pool, (R *)y, index, (const R *)x, n, pool_of(p));
}

template <typename R>
static tn_status run_max_grad(void *dx, const void *dy, const int32_t *index,
                              const tni_pool2d_sizes *p)
{
    int64_t n = p->n * p->c * p->h * p->w;
    if (n == 0) return TN_OK;
    return BY_SIZE(max_pool_grad, (R *)dx, (const R *)dy, index, n, pool_of(p));
}

template <typename R> static tn_status run_mean(void *y, const void *x, const tni_pool2d_sizes *p)
{
    int64_t n = p->n * p->c * p->oh * p->ow;
    if (n == 0) return TN_OK;
    int64_t area = p->adaptive ? (p->h / p->oh) * (p->w / p->ow) : p->kernel[0] * p->kernel[1];
    pool q = pool_of(p);
    if (area < WARP && is_small(p))
        return TN_LAUNCH((mean_pool<R, int, 1>), grid(n), BLOCK, 0, (R *)y, (const R *)x, n, q);
    if (area < WARP)
        return TN_LAUNCH((mean_pool<R, int64_t, 1>), grid(n), BLOCK, 0, (R *)y, (const R *)x, n, q);
    return TN_LAUNCH((mean_pool<R, int64_t, WARP>), grid(n * WARP), BLOCK, 0, (R *)y, (const R *)x,
                     n, q);
}

template <typename R>
static tn_status run_mean_grad(void *dx, const void *dy, const tni_pool2d_sizes *p)
{
    int64_t n = p->n * p->c * p->h * p->w;
    if (n == 0) return TN_OK;
    return BY_SIZE(mean_pool_grad, (R *)dx, (const R *)dy, n, pool_of(p));
}

tn_status tni_cuda_max_pool2d(const tni_max_pool2d *a)
{
    if (tn_status failed = fits("max_pool2d", &a->sizes)) return failed;
    return TN_REAL(a->x.dtype, run_max<R>(a->y.data, static_cast<int32_t *>(a->index.data),
                                          a->x.data, &a->sizes));
}

tn_status tni_cuda_max_pool2d_grad(const tni_max_pool2d_grad *a)
{
    if (tn_status failed = fits("max_pool2d", &a->sizes)) return failed;
    return TN_REAL(a->dy.dtype,
                   run_max_grad<R>(a->dx.data, a->dy.data,
                                   static_cast<const int32_t *>(a->index.data), &a->sizes));
}

static const char *name_of(const tni_pool2d_sizes *p)
{
    return p->adaptive ? "adaptive_avg_pool2d" : "avg_pool2d";
}

tn_status tni_cuda_avg_pool2d(const tni_avg_pool2d *a)
{
    if (tn_status failed = fits(name_of(&a->sizes), &a->sizes)) return failed;
    return TN_REAL(a->x.dtype, run_mean<R>(a->y.data, a->x.data, &a->sizes));
}

tn_status tni_cuda_avg_pool2d_grad(const tni_avg_pool2d_grad *a)
{
    if (tn_status failed = fits(name_of(&a->sizes), &a->sizes)) return failed;
    return TN_REAL(a->dy.dtype, run_mean_grad<R>(a->dx.data, a->dy.data, &a->sizes));
}
