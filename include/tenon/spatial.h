/**
 * tenon/spatial.h - convolution and pooling.
 * What ops.h says at its head holds here.
 */
#ifndef TENON_SPATIAL_H
#define TENON_SPATIAL_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/* ---- convolution and pooling ----------------------------------------------------------------- */

/** Sizes of a convolution: height first, then width. zero fields: stride 1, padding 0, dilation 1,
 *  groups 1 */
typedef struct tn_conv2d_spec {
    int64_t stride[2], padding[2], dilation[2], groups;
    /* H' = H and W' = W: pads dilation (k - 1) in all, the odd one below and to the right. Wants
     * stride 1 and no padding */
    bool same;
} tn_conv2d_spec;
/**
 * Cross-correlation: y[n,o,i,j] = b[o] + sum_crs w[o,c,r,s] x[n, c, i stride + r dilation -
 * padding, ...].
 *
 * Shapes   x [N, C, H, W] or [C, H, W], weight [O, C/groups, kh, kw], bias [O] or TN_NONE -> [N, O,
 *          H', W'], H' = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1
 * Grad     of x: a convolution of dy and weight; of weight: of dy and x            keeps x, weight
 * Errors   sizes that do not fit, a kernel larger than the padded image, groups that do not divide
 *          O and C; stride or dilation below 1, padding below 0; same with a stride or a padding
 * Note     on a CPU with AVX2, 3x3 kernels with stride, dilation and groups of 1, padding up to 2
 *          and at least 8 channels use Winograd's algorithm where images are large enough to gain
 *          from it. A rounding error (in f32) of y is then relative to the largest of 4x4
 *          neighbouring inputs, not of the 3x3 under the kernel. f64 never uses it, nor does bf16
 *          where oneDNN or AMX computes it. With AMX and a stride of 1, infinite values of x,
 *          weight and dy also make NaN of elements of gradients that they meet only in the padding
 * Source   Dumoulin and Visin, A guide to convolution arithmetic (2016)
 */
TN_API tn_tensor *tn_conv2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv2d_spec spec);

/** Sizes of a pooling window: height first, then width. zero fields: stride = kernel, padding 0,
 *  dilation 1 */
typedef struct tn_pool2d_spec {
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* dilation: max only */
    bool ceil_mode, exclude_padding;                       /* exclude_padding: average only */
} tn_pool2d_spec;
/**
 * The largest under a window; NaN counts as largest, the first of equals takes the gradient. And
 * tn_avg_pool2d: the mean.
 *
 * Shapes   x [N, C, H, W] or [C, H, W] -> [N, C, H', W'], H' and W' as of tn_conv2d; ceil_mode
 *          rounds up, but no window starts beyond the image and its left padding. The mean counts
 *          padding (not what lies beyond the padding) unless exclude_padding
 * Grad     max: dy to the winners (keeps their indices, i32); mean: dy / count to each element
 * Errors   padding above half the kernel; a window larger than the padded image; an empty image; a
 *          dilated window that covers only padding, which has no largest element (PyTorch gives
 *          -inf, and a gradient beyond the image)
 */
TN_API tn_tensor *tn_max_pool2d(tn_tensor *x, tn_pool2d_spec spec);
/** The mean, under the same shapes and errors. */
TN_API tn_tensor *tn_avg_pool2d(tn_tensor *x, tn_pool2d_spec spec);
/**
 * Output of exactly out_h x out_w, each the mean of its share: rows floor(i H / out_h) up to
 * ceil((i + 1) H / out_h), columns alike.
 *
 * Shapes   x [N, C, H, W] or [C, H, W] -> [N, C, out_h, out_w]
 * Errors   out_h or out_w below 1; an empty image
 */
TN_API tn_tensor *tn_adaptive_avg_pool2d(tn_tensor *x, int64_t out_h, int64_t out_w);

TN_END_C_

#endif
