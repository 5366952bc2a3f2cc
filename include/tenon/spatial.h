/**
 * tenon/spatial.h - convolution, pooling, padding and resampling.
 * What ops.h says at its head holds here.
 */
#ifndef TENON_SPATIAL_H
#define TENON_SPATIAL_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/* ---- convolution and pooling ----------------------------------------------------------------- */

/** What stands beyond an edge: a value; x mirrored at its last element; its last element; x again,
 *  from the other end. */
typedef enum tn_pad_mode {
    TN_PAD_CONSTANT = 0,
    TN_PAD_REFLECT,
    TN_PAD_REPLICATE,
    TN_PAD_CIRCULAR
} tn_pad_mode;

/** Sizes of a convolution, one for each axis in x's order; of an image height and width. zero
 *  fields: stride 1, padding 0, dilation 1, groups 1 */
typedef struct tn_conv_spec {
    int64_t stride[3], padding[3], dilation[3], groups;
    int64_t padding_end[3]; /* below and to the right; 0: as padding (use_padding_end: 0 means 0) */
    bool use_padding_end;   /* padding_end is given */
    bool same; /* H' = H, W' = W: pads dilation (k - 1) in all, the odd one at the end; stride 1 */
    tn_pad_mode padding_mode;  /* what is in the padding; 0: zeros */
    int64_t output_padding[3]; /* of transposed convolutions alone: so much is y longer */
} tn_conv_spec;
typedef tn_conv_spec tn_conv2d_spec; /* another name */
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
 *          where AMX or AVX512-BF16 multiplies it
 * Source   Dumoulin and Visin, A guide to convolution arithmetic (2016)
 */
TN_API tn_tensor *tn_conv2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec);
/** The same along one axis: x [N, C, L], weight [O, C/groups, k]. PyTorch: F.conv1d */
TN_API tn_tensor *tn_conv1d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec);
/** The same along three: x [N, C, D, H, W], weight [O, C/groups, kd, kh, kw]. Computed as tn_conv2d
 *  of kd C channels: x is copied kd times, y once. PyTorch: F.conv3d */
TN_API tn_tensor *tn_conv3d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec);
/**
 * Transposed convolution, the gradient of tn_conv2d's x: y[n,o, i stride + r dilation - padding,
 * ...] gets w[c,o,r,s] x[n,c,i,j] from every element of x, and bias[o].
 *
 * Shapes   x [N, C, H, W] or [C, H, W], weight [C, O/groups, kh, kw], bias [O] or TN_NONE -> [N, O,
 *          H', W'], H' = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1
 * Grad     of x: a convolution of dy and weight; of weight: of x and dy            keeps x, weight
 * Errors   sizes that do not fit, or leave no element in y; output_padding of at least stride and
 *          dilation; padding_end, same, padding_mode
 * PyTorch  F.conv_transpose2d
 */
TN_API tn_tensor *tn_conv_transpose2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                      tn_conv_spec spec);
/** The same along one axis: x [N, C, L], weight [C, O/groups, k]. PyTorch: F.conv_transpose1d */
TN_API tn_tensor *tn_conv_transpose1d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                      tn_conv_spec spec);

/** Sizes of a pooling window, as in tn_conv_spec. zero fields: stride = kernel, padding 0,
 *  dilation 1 */
typedef struct tn_pool_spec {
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* dilation: max only */
    bool ceil_mode, exclude_padding;                       /* exclude_padding: average only */
    int64_t divisor; /* average only: what sums are divided by; 0: the number of elements */
} tn_pool_spec;
typedef tn_pool_spec tn_pool2d_spec; /* another name */
/**
 * The largest under a window; NaN counts as largest, the first of equals takes the gradient. And
 * tn_avg_pool2d: the mean. Those of one axis, here and below, take x [N, C, L] or [C, L].
 *
 * Shapes   x [N, C, H, W] or [C, H, W] -> [N, C, H', W'], H' and W' as of tn_conv2d; ceil_mode
 *          rounds up, but no window starts beyond the image and its left padding. The mean counts
 *          padding (not what lies beyond the padding) unless exclude_padding
 * Grad     max: dy to the winners (keeps their indices, i32); mean: dy / count to each element
 * Errors   padding above half the kernel; a window larger than the padded image; an empty image; a
 *          dilated window that covers only padding, which has no largest element (PyTorch gives
 *          -inf, and a gradient beyond the image)
 */
TN_API tn_tensor *tn_max_pool2d(tn_tensor *x, tn_pool_spec spec);
TN_API tn_tensor *tn_avg_pool2d(tn_tensor *x, tn_pool_spec spec); /* the mean */
TN_API tn_tensor *tn_max_pool1d(tn_tensor *x, tn_pool_spec spec); /* PyTorch: F.max_pool1d */
TN_API tn_tensor *tn_avg_pool1d(tn_tensor *x, tn_pool_spec spec); /* PyTorch: F.avg_pool1d */
/** tn_max_pool2d, and in *index (i64, y's shape) each maximum's place in its plane: row W + column.
 *  PyTorch: F.max_pool2d with return_indices */
TN_API tn_tensor *tn_max_pool2d_with_indices(tn_tensor *x, tn_pool_spec spec, tn_tensor **index);
/** The same along one axis. PyTorch: F.max_pool1d with return_indices */
TN_API tn_tensor *tn_max_pool1d_with_indices(tn_tensor *x, tn_pool_spec spec, tn_tensor **index);
/**
 * Output of exactly out_h x out_w, each the mean of its share: rows floor(i H / out_h) up to
 * ceil((i + 1) H / out_h), columns alike.
 *
 * Shapes   x [N, C, H, W] or [C, H, W] -> [N, C, out_h, out_w]
 * Errors   out_h or out_w below 1; an empty image
 */
TN_API tn_tensor *tn_adaptive_avg_pool2d(tn_tensor *x, int64_t out_h, int64_t out_w);
/** The same along one axis. PyTorch: F.adaptive_avg_pool1d */
TN_API tn_tensor *tn_adaptive_avg_pool1d(tn_tensor *x, int64_t out);
/** The largest of each share, and where it is, as tn_max_pool2d_with_indices; index may be NULL.
 *  PyTorch: F.adaptive_max_pool2d */
TN_API tn_tensor *tn_adaptive_max_pool2d(tn_tensor *x, int64_t out_h, int64_t out_w,
                                         tn_tensor **index);
/** The same along one axis. PyTorch: F.adaptive_max_pool1d */
TN_API tn_tensor *tn_adaptive_max_pool1d(tn_tensor *x, int64_t out, tn_tensor **index);

/* ---- padding and resampling ------------------------------------------------------------------ */

/** TN_PADS(1, 2, 3, 0): these numbers and how many, for tn_pad. */
#define TN_PADS(...) TN_LIST_OF(int64_t, __VA_ARGS__)
/**
 * x with more elements before and behind its last axes, or fewer: pads[0] before and pads[1] behind
 * along the last axis, pads[2] and pads[3] along the one before it, and so on; n of them. A number
 * below 0 cuts off as many.
 *
 * Shapes   any; the axes that are named become longer by their two numbers
 * Grad     constant: the part of dy that came from x; else each dx sums what became of it
 * Errors   n odd, or more than two for each axis; more cut off than there is; an integer dtype that
 *          cannot hold value. Of the other modes: not floating; a value; an empty result; an empty
 *          axis; pads of at least the axis' size (reflect), or above it (circular)
 * PyTorch: F.pad, which takes the other modes for the last axes of a batch of images alone
 */
TN_API tn_tensor *tn_pad(tn_tensor *x, const int64_t *pads, int n, tn_pad_mode mode, double value);

/** How an element is made of those around its place. */
typedef enum tn_interpolate_mode {
    TN_NEAREST = 0,   /* the place rounded down, in f32, as PyTorch does */
    TN_NEAREST_EXACT, /* the element whose middle is nearest */
    TN_LINEAR,        /* of 2 along each axis: linear, bilinear, trilinear */
    TN_CUBIC          /* of 4 along each of two axes: bicubic */
} tn_interpolate_mode;
/** Either sizes or scales of the axes behind [N, C], in their order; a 0 behind the first: as the
 *  first. The other fields are PyTorch's */
typedef struct tn_interpolate_spec {
    int64_t size[3]; /* of y */
    double scale[3]; /* the size is floor(old scale); places are computed with the scale as given */
    tn_interpolate_mode mode; /* 0: the nearest element */
    bool align_corners; /* the first and last elements stay where they are: linear and cubic */
    bool antialias;     /* smaller sizes average over all that lies between: two axes */
} tn_interpolate_spec;
/**
 * x at other sizes. Element o of an axis is taken from place s (o + 1/2) - 1/2, s = old size / new
 * size or 1 / scale; with align_corners s o, s = (old size - 1) / (new size - 1); nearest: s o.
 * Places beyond the edge have the edge's value.
 *
 * Shapes   x [N, C, L], [N, C, H, W] or [N, C, D, H, W] -> the same with the new sizes
 * Grad     each dx sums its shares of dy
 * Errors   sizes and scales, or neither; sizes below 1; align_corners with nearest; cubic or
 *          antialias of other than two axes; antialias with nearest; an empty axis behind C
 * Source   Keys, Cubic Convolution Interpolation (1981): a = -3/4, with antialias -1/2
 * PyTorch: F.interpolate; its mode "area" is tn_adaptive_avg_pool2d; recompute_scale_factor: a size
 */
TN_API tn_tensor *tn_interpolate(tn_tensor *x, tn_interpolate_spec spec);

/** [.., C r r, H, W] -> [.., C, H r, W r]: y[c, h r + i, w r + j] = x[(c, i, j), h, w]. Shi et al.,
 *  Real-Time Single Image and Video Super-Resolution (2016), eq. 4. Errors: r below 1, channels
 *  that r r does not divide */
TN_API tn_tensor *tn_pixel_shuffle(tn_tensor *x, int64_t r);
/** And back. Errors: r below 1, or no divisor of H and W. */
TN_API tn_tensor *tn_pixel_unshuffle(tn_tensor *x, int64_t r);

TN_END_C_

#endif
