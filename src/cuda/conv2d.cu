/*
 * conv2d.cu - 2-D convolution: chooses the algorithm. A 1x1 kernel with stride 1 and no padding is
 * a plain product (gemm.cu); a depthwise convolution has no product in it and is computed directly
 * (depthwise.cu); all others go through cuDNN where it is installed (conv2d_cudnn.cu), else through
 * columns and cuBLAS (conv2d_columns.cu). Every sum has a fixed order: repeats give the same
 * bits.
 */
#include "cuda/conv2d.h"
#include "cuda/cudnn.h"
#include "cuda/half.h"

enum { BLOCK = 256, LARGEST = 1 << 30 };

template <typename R>
static __global__ void __launch_bounds__(BLOCK)
    conv_bias(R *y, const R *bias, int64_t rows, int64_t channels, int64_t plane)
{
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        const R b = bias[r % channels];
        for (int64_t i = threadIdx.x; i < plane; i += BLOCK) y[r * plane + i] = b;
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

/* Whether every number of the geometry is an int, with room for sums. */
static tn_status fits(const char *name, const tni_conv2d_sizes *c)
{
    bool ok = c->groups > 0 && c->kh > 0 && c->kw > 0;
    for (int i = 0; ok && i < 2; i++) { /* rows before and up to the last tap */
        int64_t size = i ? c->w : c->h, out = i ? c->ow : c->oh, taps = i ? c->kw : c->kh;
        ok = size + 2 * c->padding[i] <= LARGEST && (out - 1) * c->stride[i] <= LARGEST &&
             (out - 1) * c->stride[i] + (taps - 1) * c->dilation[i] <= LARGEST;
    }
    ok = ok && (c->h == 0 || c->w <= LARGEST / c->h) && (c->oh == 0 || c->ow <= LARGEST / c->oh);
    int64_t most = c->c > c->o ? c->c : c->o;
    ok = ok && c->kw <= LARGEST / c->kh && (most == 0 || c->kh * c->kw <= LARGEST / most);
    if (ok) return TN_OK;
    return tni_cuda_host->fail(
        TN_E_UNSUPPORTED,
        "%s: planes of %" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64 ", %" PRId64
        " and %" PRId64 " channels, kernel "
        "%" PRId64 "x%" PRId64 ": want at most %d padded rows, columns, elements of a plane, taps",
        name, c->h, c->w, c->oh, c->ow, c->c, c->o, c->kh, c->kw, (int)LARGEST);
}

static bool is_plain(const tni_conv2d_sizes *c)
{
    return c->kh == 1 && c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 &&
           c->padding[0] == 0 && c->padding[1] == 0 && c->groups == 1;
}

static bool is_depthwise(const tni_conv2d_sizes *c)
{
    return c->groups > 1 && c->c == c->groups;
}

template <typename R> static tn_status add_bias(R *y, const R *bias, const tni_conv2d_sizes *c)
{
    return TN_LAUNCH((conv_bias<R>), tni_cuda_blocks(c->n * c->o, 1, 65535), BLOCK, 0, y, bias,
                     c->n * c->o, c->o, c->oh * c->ow);
}

/* y = bias (if any), to which products then add. */
static tn_status start(void *y, const void *bias, tn_dtype dtype, const tni_conv2d_sizes *c)
{
    if (!bias) return TN_OK;
    return TN_FLOATING(dtype, add_bias(static_cast<R *>(y), static_cast<const R *>(bias), c));
}

/* ---- slots ----------------------------------------------------------------------------------- */

tn_status tni_cuda_conv2d(const tni_conv2d *a)
{
    const tni_conv2d_sizes *c = &a->sizes;
    void *y = a->y.data;
    const void *x = a->x.data, *w = a->w.data, *bias = a->bias.data;
    tn_dtype dtype = a->x.dtype;
    int64_t plane = c->oh * c->ow;
    bool done;

    if (tn_status failed = fits("conv2d", c)) return failed;
    if (tn_status failed = check_floating("conv2d", dtype)) return failed;
    if (c->n * c->o * plane == 0) return TN_OK;
    if (is_depthwise(c)) return tni_cuda_depthwise(y, x, w, bias, dtype, c);
    if (is_plain(c)) {
        if (tn_status failed = start(y, bias, dtype, c)) return failed;
        tni_gemm g = { dtype,   c->o,
                       plane,   c->c,
                       c->n,    w,
                       x,       y,
                       c->c,    1,
                       0,       plane,
                       1,       c->c * plane,
                       plane,   c->o * plane,
                       nullptr, bias != nullptr,
                       false,   nullptr,
                       nullptr };
        return tni_cuda_gemm(&g);
    }
    if (tn_status failed = tni_cudnn_conv2d(a, &done); failed != TN_OK || done) return failed;
    if (tn_status failed = start(y, bias, dtype, c)) return failed;
    return tni_cuda_columns(y, x, w, bias != nullptr, dtype, c);
}

tn_status tni_cuda_conv2d_grad_input(const tni_conv2d_grad_input *a)
{
    const tni_conv2d_sizes *c = &a->sizes;
    void *dx = a->dx.data;
    const void *dy = a->dy.data, *w = a->w.data;
    tn_dtype dtype = a->dy.dtype;
    int64_t plane = c->h * c->w;
    bool done;

    if (tn_status failed = fits("conv2d_grad_input", c)) return failed;
    if (tn_status failed = check_floating("conv2d_grad_input", dtype)) return failed;
    if (c->n * c->c * plane == 0) return TN_OK;
    if (is_depthwise(c)) return tni_cuda_depthwise_grad_input(dx, dy, w, dtype, c);
    if (is_plain(c)) {
        tni_gemm g = { dtype, c->c,         plane,  c->o,         c->n,    w,
                       dy,    dx,           1,      c->c,         0,       plane,
                       1,     c->o * plane, plane,  c->c * plane, nullptr, false,
                       false, nullptr,      nullptr };
        return tni_cuda_gemm(&g);
    }
    if (tn_status failed = tni_cudnn_conv2d_grad_input(a, &done); failed != TN_OK || done)
        return failed;
    return tni_cuda_columns_grad_input(dx, dy, w, dtype, c);
}

tn_status tni_cuda_conv2d_grad_weight(const tni_conv2d_grad_weight *a)
{
    const tni_conv2d_sizes *c = &a->sizes;
    void *dw = a->dw.data;
    const void *dy = a->dy.data, *x = a->x.data;
    tn_dtype dtype = a->dy.dtype;
    int64_t size = c->o * (c->c / c->groups) * c->kh * c->kw, pixels = c->n * c->oh * c->ow;
    bool done;

    if (tn_status failed = fits("conv2d_grad_weight", c)) return failed;
    if (tn_status failed = check_floating("conv2d_grad_weight", dtype)) return failed;
    if (size == 0) return TN_OK;
    if (tn_status failed = tni_cuda_launching("conv2d_weight")) return failed;
    if (pixels == 0)
        return TN_CUDA(
            cudaMemsetAsync(dw, 0, (size_t)size * floating_size(dtype), tni_cuda_stream));
    if (is_depthwise(c)) return tni_cuda_depthwise_grad_weight(dw, dy, x, dtype, c);
    if (tn_status failed = tni_cudnn_conv2d_grad_weight(a, &done); failed != TN_OK || done)
        return failed;
    return tni_cuda_columns_grad_weight(dw, dy, x, dtype, c);
}
