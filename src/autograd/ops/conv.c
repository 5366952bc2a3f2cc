/*
 * conv.c - the functions of convolutions: what a tn_conv_spec says becomes the numbers of an op of
 * conv2d.c.
 *
 * Over three axes the planes of x under a kernel become channels of a convolution over two, whose
 * input is then as many times larger as the kernel is deep.
 */
#include <limits.h>

#include "autograd/ops/conv.h"

/* One axis of it. "same" pads d (k - 1) in all, the odd one at the end. */
static tn_status read_axis(const char *name, const tn_conv_spec *s, int i, int64_t kernel,
                           bool transposed, conv_axis *a)
{
    int64_t more = s->output_padding[i], total = 0;
    a->stride = s->stride[i] ? s->stride[i] : 1;
    a->dilation = s->dilation[i] ? s->dilation[i] : 1;
    a->before = a->after = s->padding[i];
    if (s->padding_end[i] || s->use_padding_end) a->after = s->padding_end[i];
    if (a->stride < 1 || a->stride > INT_MAX || a->dilation < 1 || a->dilation > INT_MAX)
        return tni_error(TN_E_INVALID,
                         "tn_%s: stride %" PRId64 ", dilation %" PRId64 ": want 1 to %d", name,
                         a->stride, a->dilation, INT_MAX);
    int64_t least = TNI_MIN(a->before, a->after), most = TNI_MAX(a->before, a->after);
    if (least < 0 || most > INT_MAX)
        return tni_error(TN_E_INVALID, "tn_%s: padding %" PRId64 ": want 0 to %d", name,
                         least < 0 ? least : most, INT_MAX);
    if (more < 0 || more >= (transposed ? TNI_MAX(a->stride, a->dilation) : 1))
        return tni_error(TN_E_INVALID, "tn_%s: output_padding %" PRId64 ": want %s", name, more,
                         transposed ? "0 to below the stride or the dilation"
                                    : "0, since it is of a transposed convolution");
    if (s->same && (a->stride != 1 || most))
        return tni_error(TN_E_INVALID,
                         "tn_%s: same with stride %" PRId64 ", padding %" PRId64
                         ": want stride 1 and no padding",
                         name, a->stride, most);
    if (s->same && kernel >= 1 && kernel <= INT_MAX) total = a->dilation * (kernel - 1);
    a->before += total / 2;
    a->after += total - total / 2 - more;
    return TN_OK;
}

/* The numbers of each axis. w says how large the kernel is; NULL or of another rank: 1. */
static tn_status read_spec(const char *name, const tn_conv_spec *s, int axes, const tn_tensor *w,
                           bool transposed, conv_axis *along)
{
    bool known = w && w->shape.rank == axes + 2, ends = s->use_padding_end;
    for (int i = 0; i < axes; i++) {
        int64_t kernel = known ? w->shape.size[2 + i] : 1;
        tn_status status = read_axis(name, s, i, kernel, transposed, &along[i]);
        if (status != TN_OK) return status;
        ends |= s->padding_end[i] != 0;
    }
    if (s->groups < 0)
        return tni_error(TN_E_INVALID, "tn_%s: groups %" PRId64 ": want at least 1", name,
                         s->groups);
    if ((unsigned)s->padding_mode > TN_PAD_CIRCULAR)
        return tni_error(TN_E_INVALID, "tn_%s: padding_mode %d: want a tn_pad_mode", name,
                         (int)s->padding_mode);
    if (transposed && (s->same || ends || s->padding_mode))
        return tni_error(TN_E_INVALID,
                         "tn_%s: %s: want none, a transposed convolution has one padding", name,
                         s->same ? "same"
                         : ends  ? "padding_end"
                                 : "padding_mode");
    return TN_OK;
}

tn_status tni_check_conv(const char *name, const tn_conv_spec *spec, int axes, bool transposed)
{
    conv_axis along[3];
    return read_spec(name, spec, axes, NULL, transposed, along);
}

static conv_args args_for(int axes, const tn_conv_spec *spec, const conv_axis *along,
                          const tn_tensor *w)
{
    conv_args a = { .of = { .groups = spec->groups ? spec->groups : 1,
                            .kh = conv_side(&w->shape, 0),
                            .kw = conv_side(&w->shape, 1) },
                    .axes = axes };
    for (int k = 0; k < 2; k++) {
        int i = k - 2 + axes;
        a.of.stride[k] = i < 0 ? 1 : along[i].stride;
        a.of.dilation[k] = i < 0 ? 1 : along[i].dilation;
        a.of.padding[k] = i < 0 ? 0 : along[i].before;
        a.after[k] = i < 0 ? 0 : along[i].after;
    }
    return a;
}

/* x padded along its last axes, but for the last `rest`; along is then without. */
static tn_tensor *pad_first(tn_tensor *x, int axes, int rest, conv_axis *along, tn_pad_mode mode)
{
    int64_t pads[6] = { 0 };
    for (int i = 0; i < axes - rest; i++) {
        pads[2 * (axes - 1 - i)] = along[i].before;
        pads[2 * (axes - 1 - i) + 1] = along[i].after;
        along[i].before = along[i].after = 0;
    }
    return tn_pad(x, pads, 2 * axes, mode, 0);
}

static tn_tensor *convolve(int axes, tn_tensor *x, tn_tensor *w, tn_tensor *b,
                           const tn_conv_spec *spec)
{
    const tn_op *op = &tni_conv_ops[axes - 1];
    conv_args a = { 0 };
    bool single = x && !tni_none(x) && x->shape.rank == axes + 1;
    if (x && w && b) {
        conv_axis along[3];
        if (read_spec(op->name, spec, axes, w, false, along) != TN_OK) return NULL;
        if (single) x = tn_unsqueeze(x, 0);
        if (x && spec->padding_mode && x->shape.rank == axes + 2)
            x = pad_first(x, axes, 0, along, spec->padding_mode);
        if (!x) return NULL;
        a = args_for(axes, spec, along, w);
        a.of.h = conv_side(&x->shape, 0);
        a.of.w = conv_side(&x->shape, 1);
    }
    tn_tensor *y = tni_apply(op, &a, sizeof a, 3, (tn_tensor *[]){ x, w, b });
    return single ? tn_squeeze(y, 0) : y;
}

tn_tensor *tn_conv1d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec)
{
    return convolve(1, x, weight, bias, &spec);
}

tn_tensor *tn_conv2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec)
{
    return convolve(2, x, weight, bias, &spec);
}

/* x [N,C,D,H,W] as [N D', C kernel, H, W]: channel c kernel + t is the plane under tap t. */
static tn_tensor *planes_as_channels(tn_tensor *x, int64_t kernel, const conv_axis *a, int64_t out)
{
    const int64_t *size = x->shape.size;
    tn_tensor **plane = tni_alloc_n((size_t)kernel, sizeof *plane);
    if (!plane) return NULL;
    for (int64_t t = 0; t < kernel; t++) {
        int64_t from = t * a->dilation, end = from + (out - 1) * a->stride + 1;
        plane[t] = tn_permute(tn_slice(x, 2, from, end, a->stride), TN_AXES(0, 2, 1, 3, 4));
    }
    tn_tensor *y = tn_stack(plane, (int)kernel, 3);
    tni_free(plane, (size_t)kernel * sizeof *plane);
    return tn_reshape(y, TN_SHAPE(size[0] * out, size[1] * kernel, size[3], size[4]));
}

tn_tensor *tn_conv3d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec)
{
    conv_axis along[3], *depth = &along[0];
    int64_t out[3], groups = spec.groups ? spec.groups : 1;
    if (!bias) return tni_poisoned_optional("tn_conv3d", "bias");
    if (!tni_present("tn_conv3d", "x", x) || !tni_present("tn_conv3d", "weight", weight))
        return NULL;
    if (read_spec("conv3d", &spec, 3, weight, false, along) != TN_OK) return NULL;
    bool single = x->shape.rank == 4;
    if (single) x = tn_unsqueeze(x, 0);
    if (!x || tni_conv_operands("conv3d", x, weight, bias, 3, groups) != TN_OK) return NULL;
    for (int i = 0; i < 3; i++)
        if (tni_conv_fits("conv3d", x, weight, i, &along[i], &out[i]) != TN_OK) return NULL;
    if (spec.padding_mode || depth->before || depth->after)
        x = pad_first(x, 3, spec.padding_mode ? 0 : 2, along, spec.padding_mode);
    if (!x) return NULL;
    const int64_t *w = weight->shape.size;
    x = planes_as_channels(x, w[2], depth, out[0]);
    weight = tn_reshape(weight, TN_SHAPE(w[0], w[1] * w[2], w[3], w[4]));
    tn_conv_spec flat = { .groups = groups, .use_padding_end = true };
    for (int i = 0; i < 2; i++) {
        flat.stride[i] = along[1 + i].stride;
        flat.dilation[i] = along[1 + i].dilation;
        flat.padding[i] = along[1 + i].before;
        flat.padding_end[i] = along[1 + i].after;
    }
    tn_tensor *y = tn_conv2d(x, weight, bias, flat);
    if (!y) return NULL;
    y = tn_reshape(y, TN_SHAPE(y->shape.size[0] / out[0], out[0], w[0], out[1], out[2]));
    y = tn_contiguous(tn_permute(y, TN_AXES(0, 2, 1, 3, 4)));
    return single ? tn_squeeze(y, 0) : y;
}

/* The size of the transposed convolution's result along an axis; 0: not in 1..INT_MAX. */
static int64_t transposed_size(int64_t size, int64_t kernel, const conv_args *a, int k)
{
    double all = ((double)size - 1) * (double)a->of.stride[k] +
                 (double)a->of.dilation[k] * ((double)kernel - 1) + 1 -
                 (double)(a->of.padding[k] + a->after[k]);
    return size < 1 || kernel < 1 || all < 1 || all > INT_MAX ? 0 : (int64_t)all;
}

static tn_tensor *transposed(int axes, tn_tensor *x, tn_tensor *w, tn_tensor *b,
                             const tn_conv_spec *spec)
{
    const tn_op *op = &tni_conv_transpose_ops[axes - 1];
    conv_args a = { 0 };
    bool single = x && !tni_none(x) && x->shape.rank == axes + 1;
    if (x && w && b) {
        conv_axis along[3];
        if (read_spec(op->name, spec, axes, w, true, along) != TN_OK) return NULL;
        if (single) x = tn_unsqueeze(x, 0);
        if (!x) return NULL;
        a = args_for(axes, spec, along, w);
        a.of.h = transposed_size(conv_side(&x->shape, 0), a.of.kh, &a, 0);
        a.of.w = transposed_size(conv_side(&x->shape, 1), a.of.kw, &a, 1);
    }
    tn_tensor *y = tni_apply(op, &a, sizeof a, 3, (tn_tensor *[]){ x, w, b });
    return single ? tn_squeeze(y, 0) : y;
}

tn_tensor *tn_conv_transpose1d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec)
{
    return transposed(1, x, weight, bias, &spec);
}

tn_tensor *tn_conv_transpose2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec)
{
    return transposed(2, x, weight, bias, &spec);
}
