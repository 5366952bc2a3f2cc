/* conv.h - convolutions: what their ops (conv2d.c), functions (conv.c) and layers share. */
#ifndef TNI_OPS_CONV_H
#define TNI_OPS_CONV_H

#include "autograd/op.h"

typedef struct conv_args {
    tni_conv2d_sizes of; /* as kernels see them; n, c, o, oh and ow come from the operands */
    int64_t after[2];    /* padding below and to the right; below 0: so much of x is not read */
    int64_t axes;        /* 1: h, kh and oh are 1; or 2 */
} conv_args;

/* One axis of a convolution. */
typedef struct conv_axis {
    int64_t stride, dilation, before, after; /* padding */
} conv_axis;

/* Of one axis, of two; inputs x, weight, bias (or TN_NONE), args conv_args. */
extern const tn_op tni_conv_ops[2], tni_conv_transpose_ops[2];

/* Height (0) or width (1) of images or kernels of one axis or two. */
static inline int64_t conv_side(const tn_shape *s, int i)
{
    return s->rank - 2 + i < 2 ? 1 : s->size[s->rank - 2 + i];
}

/* Whether operands of so many axes fit together; else an error of tn_NAME. */
tn_status tni_conv_operands(const char *name, const tn_tensor *x, const tn_tensor *w,
                            const tn_tensor *b, int64_t axes, int64_t groups);
/* *out: the size of y along axis i of the image; an error of tn_NAME if the kernel is larger. */
tn_status tni_conv_fits(const char *name, const tn_tensor *x, const tn_tensor *w, int i,
                        const conv_axis *a, int64_t *out);
/* Whether a convolution of so many axes takes these numbers; else an error of tn_NAME. */
tn_status tni_check_conv(const char *name, const tn_conv_spec *spec, int axes, bool transposed);

#endif
