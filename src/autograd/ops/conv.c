/*
 * conv.c - cross-correlations and their transposes over one, two and three axes.
 *
 *     y[n,o,i,j] = b[o] + sum_crs w[o,c,r,s] x[n,c, i*stride + r*dilation - padding, j*...]
 * y is linear in x and in w. Write y = F(x, w), dx = I(dy, w), dw = W(dy, x): each is linear in
 * both of its arguments, and each one's gradients are the other two:
 *     I:  d/d(dy) = F(g, w)     d/dw = W(dy, g)      g: what flows into dx
 *     W:  d/d(dy) = F(x, g)     d/dx = I(dy, g)      g: what flows into dw
 * so derivatives of any order exist. The transposed convolution of x is I(x, w), plus b. Source:
 * Dumoulin and Visin, A guide to convolution arithmetic (2016).
 *
 * The ops are of images. One axis is an image of height 1; over three axes the planes of x under a
 * kernel become channels, so that the input is as many times larger as the kernel is deep.
 */
#include <limits.h>

#include "autograd/ops/conv.h"
#include "tensor/formulas.h"

/* The sizes as kernels see them; n, c and o come from the operands. */
typedef tni_conv2d_sizes conv_args;

static const tn_op op_conv2d, op_conv_grad_input, op_conv_grad_weight; /* F, I, W */

static tn_tensor *map(const tn_op *op, tn_tensor *first, tn_tensor *second, const conv_args *a)
{
    return tni_apply(op, a, sizeof *a, op->arity, (tn_tensor *[]){ first, second, TN_NONE });
}

static tni_conv2d_sizes sizes_for(const conv_args *a, int64_t channels, const tn_shape *y)
{
    tni_conv2d_sizes s = *a;
    s.n = y->size[0];
    s.c = channels;
    s.o = y->size[1];
    return s;
}

/* ---- F: the convolution ---------------------------------------------------------------------- */

static tn_status conv_shape(tni_call *c)
{
    const conv_args *a = c->args;
    tn_shape y = TN_SHAPE(c->in[0]->shape.size[0], c->in[1]->shape.size[0], a->oh, a->ow);
    return tni_result(c, c->in[0]->dtype, &y);
}

static tn_status conv_forward(tni_call *c)
{
    const tn_tensor *x = c->in[0], *b = c->in[2];
    tni_conv2d a = { .y = tni_array_of(c->out[0]),
                     .x = tni_array_of(x),
                     .w = tni_array_of(c->in[1]),
                     .bias = tni_none(b) ? tni_array_none() : tni_array_of(b),
                     .sizes = sizes_for(c->args, x->shape.size[1], &c->out[0]->shape) };
    return tni_backend_of(x)->conv2d(&a);
}

static tn_status conv_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = map(&op_conv_grad_input, g->dy, g->x[1], g->args);
    if (g->need[1]) g->dx[1] = map(&op_conv_grad_weight, g->dy, g->x[0], g->args);
    if (g->need[2]) g->dx[2] = tn_sum(g->dy, (int[]){ 0, 2, 3 }, 3, false);
    return TN_OK;
}

/* ---- I and W: the gradients of image and weight ---------------------------------------------- */

/* Inputs: dy, and of I the weight, of W the image. Also of the transposed convolution, which has a
 * bias. */
static tn_status grad_shape(tni_call *c)
{
    const conv_args *a = c->args;
    const tn_shape *dy = &c->in[0]->shape, *other = &c->in[1]->shape;
    tn_shape dx = c->op != &op_conv_grad_weight
                      ? TN_SHAPE(dy->size[0], other->size[1] * a->groups, a->h, a->w)
                      : TN_SHAPE(dy->size[1], other->size[1] / a->groups, a->kh, a->kw);
    return tni_result(c, c->in[0]->dtype, &dx);
}

static tn_status grad_backward(tni_grad *g)
{
    bool image = g->op != &op_conv_grad_weight;
    tn_tensor *x = image ? g->dy : g->x[1], *w = image ? g->x[1] : g->dy;
    const tn_op *other = image ? &op_conv_grad_weight : &op_conv_grad_input;
    if (g->need[0]) g->dx[0] = map(&op_conv2d, x, w, g->args);
    if (g->need[1]) g->dx[1] = map(other, g->x[0], g->dy, g->args);
    if (g->n_in > 2 && g->need[2]) g->dx[2] = tn_sum(g->dy, (int[]){ 0, 2, 3 }, 3, false);
    return TN_OK;
}

static tn_status conv_grad_input_forward(tni_call *c)
{
    const tn_tensor *dy = c->in[0];
    tni_conv2d_grad_input a = { .dx = tni_array_of(c->out[0]),
                                .dy = tni_array_of(dy),
                                .w = tni_array_of(c->in[1]),
                                .sizes = sizes_for(c->args, c->out[0]->shape.size[1], &dy->shape) };
    return tni_backend_of(dy)->conv2d_grad_input(&a);
}

static tn_status conv_grad_weight_forward(tni_call *c)
{
    const tn_tensor *dy = c->in[0], *x = c->in[1];
    tni_conv2d_grad_weight a = { .dw = tni_array_of(c->out[0]),
                                 .dy = tni_array_of(dy),
                                 .x = tni_array_of(x),
                                 .sizes = sizes_for(c->args, x->shape.size[1], &dy->shape) };
    return tni_backend_of(dy)->conv2d_grad_weight(&a);
}

/* ---- the transposed convolution: I of x ------------------------------------------------------ */

/* In bf16 and f16 with a bias all is f32 until y is rounded, once. */
static tn_status transpose_forward(tni_call *c)
{
    const tn_tensor *b = c->in[2];
    if (tni_none(b)) return conv_grad_input_forward(c);
    const tni_backend *backend = tni_backend_of(b);
    tn_tensor *in[] = { c->in[0], c->in[1], c->in[2] }, *y = c->out[0];
    bool half = tni_is_half(y->dtype);
    for (int i = 0; half && i < 3; i++)
        if (!(in[i] = tni_copied(in[i], TN_F32))) return tni_pending();
    if (half && !(y = tni_new_dense(&y->shape, TN_F32, c->device))) return tni_pending();
    tni_call wide = { .op = c->op, .args = c->args, .in = in, .out = &y };
    tn_status status = conv_grad_input_forward(&wide);
    tni_array sum = tni_array_of(y), bias = sum;
    memset(bias.stride, 0, sizeof bias.stride);
    bias.stride[1] = 1;
    bias.data = tni_data(in[2]);
    if (status == TN_OK) status = backend->binary(&(tni_binary){ TNI_B_add, sum, sum, bias, NULL });
    if (status != TN_OK || !half) return status;
    return backend->copy(&(tni_copy){ .y = tni_array_of(c->out[0]), .x = sum });
}

/* ---- the ops --------------------------------------------------------------------------------- */

#define CONV(name_, arity_, formula_, gradient_, shape_, forward_, backward_)                      \
    TNI_OP(name_, arity_, formula_, gradient_, shape_, forward_, backward_, .optional = TNI_X(2),  \
           .dtypes = TNI_ONE_FLOAT, .autocast = TNI_CAST_LOW, .reads = { TNI_X(1), TNI_X(0), 0 },  \
           .dense = TNI_ALL_X)
#define CROSS(name_)                                                                               \
    CONV(name_, 3,                                                                                 \
         "y[n,o,i,..] = b[o] + sum_cr.. w[o,c,r,..] x[n,c,i*stride+r*dilation-padding,..]",        \
         "dx[n,c,..] = sum_or.. w[o,c,r,..] dy[n,o,..]; "                                          \
         "dw[o,c,r,..] = sum_ni.. dy[n,o,i,..] x[n,c,..]; db[o] = sum_ni.. dy[n,o,i,..]",          \
         conv_shape, conv_forward, conv_backward)
#define TRANSPOSED(name_)                                                                          \
    CONV(name_, 3,                                                                                 \
         "y[n,o,i*stride+r*dilation-padding,..] = b[o] + sum_cr.. w[c,o,r,..] x[n,c,i,..]",        \
         "dx[n,c,i,..] = sum_or.. w[c,o,r,..] dy[n,o,..]; "                                        \
         "dw[c,o,r,..] = sum_ni.. x[n,c,i,..] dy[n,o,..]; db[o] = sum_n.. dy[n,o,..]",             \
         grad_shape, transpose_forward, grad_backward)
CROSS(conv1d)
CROSS(conv2d)
CROSS(conv3d)
TRANSPOSED(conv_transpose1d)
TRANSPOSED(conv_transpose2d)

CONV(conv_grad_input, 2, "dx[n,c,..] = sum_ors w[o,c,r,s] dy[n,o,..]",
     "ddy = conv2d(g, w); dw[o,c,r,s] = sum_nij dy[n,o,i,j] g[n,c,..]; "
     "where g is the gradient of dx",
     grad_shape, conv_grad_input_forward, grad_backward)
CONV(conv_grad_weight, 2, "dw[o,c,r,s] = sum_nij dy[n,o,i,j] x[n,c,..]",
     "ddy = conv2d(x, g); dx[n,c,..] = sum_ors g[o,c,r,s] dy[n,o,..]; "
     "where g is the gradient of dw",
     grad_shape, conv_grad_weight_forward, grad_backward)

/* ---- checks ---------------------------------------------------------------------------------- */

/* One axis of a convolution. Of a transposed one size is y's and out x's. */
typedef struct conv_axis {
    int64_t stride, dilation, before, after; /* padding; below 0: so much is not read */
    int64_t size, kernel, out;
} conv_axis;

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

/* The numbers of each axis. kernel: its sizes; NULL: 1. */
static tn_status read_spec(const char *name, const tn_conv_spec *s, int axes, const int64_t *kernel,
                           bool transposed, conv_axis *along)
{
    bool ends = s->use_padding_end;
    for (int i = 0; i < axes; i++) {
        TNI_TRY(read_axis(name, s, i, kernel ? kernel[i] : 1, transposed, &along[i]));
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

/* Whether operands fit together in rank, and in channels. */
static tn_status check_ranks(const char *name, const tn_tensor *x, const tn_tensor *w, int axes,
                             bool transposed)
{
    static const char *const sizes[] = { "L", "H,W", "D,H,W" }, *const taps[] = { "k", "kh,kw",
                                                                                  "kd,kh,kw" };
    if ((unsigned)(x->shape.rank - axes - 1) < 2 && w->shape.rank == axes + 2) return TN_OK;
    return tni_error(TN_E_SHAPE,
                     "tn_%s: x %s, weight %s: want x [N,C,%s] or [C,%s] and weight [%s/groups,%s]",
                     name, tni_text(x), tni_text(w), sizes[axes - 1], sizes[axes - 1],
                     transposed ? "C,O" : "O,C", taps[axes - 1]);
}

static tn_status check_channels(const char *name, const tn_tensor *x, const tn_tensor *w,
                                const tn_tensor *b, int64_t groups, bool transposed)
{
    int64_t first = w->shape.size[0], second; /* of all groups */
    if (__builtin_mul_overflow(w->shape.size[1], groups, &second)) second = INT64_MAX;
    int64_t in = transposed ? first : second, out = transposed ? second : first;
    if (x->shape.size[x->shape.rank - w->shape.rank + 1] != in || first % groups)
        return tni_error(TN_E_SHAPE,
                         "tn_%s: x %s, weight %s, groups %" PRId64 ": want %" PRId64
                         " channels in x, and weight's %" PRId64 " divisible by groups",
                         name, tni_text(x), tni_text(w), groups, in, first);
    if (tni_none(b) || (b->shape.rank == 1 && b->shape.size[0] == out)) return TN_OK;
    return tni_error(TN_E_SHAPE, "tn_%s: weight %s, bias %s: want bias [%" PRId64 "]", name,
                     tni_text(w), tni_text(b), out);
}

/* Sets a->size, kernel and out of axis i. All within int: no overflow. */
static tn_status fit(const char *name, const tn_tensor *x, const tn_tensor *w, int i,
                     bool transposed, conv_axis *a)
{
    int64_t size = x->shape.size[x->shape.rank - w->shape.rank + 2 + i];
    int64_t kernel = w->shape.size[2 + i];
    bool known = size <= INT_MAX && kernel >= 1 && kernel <= INT_MAX;
    int64_t span = known ? a->dilation * (kernel - 1) + 1 : 0;
    a->kernel = kernel;
    if (transposed) {
        a->out = size;
        a->size = known && size ? (size - 1) * a->stride + span - a->before - a->after : 0;
        if (a->size >= 1 && a->size <= INT_MAX) return TN_OK;
        return tni_error(TN_E_SHAPE,
                         "tn_%s: x %s, weight %s: want an image and a kernel, and a result, of 1 "
                         "to %d along each axis",
                         name, tni_text(x), tni_text(w), INT_MAX);
    }
    int64_t reach = known ? size + a->before + a->after - span : -1;
    a->size = size;
    a->out = reach / a->stride + 1;
    if (reach >= 0) return TN_OK;
    return tni_error(TN_E_SHAPE,
                     "tn_%s: x %s, weight %s, padding %" PRId64 ", dilation %" PRId64
                     ": the kernel must fit into the padded image",
                     name, tni_text(x), tni_text(w), a->before, a->dilation);
}

/* ---- the functions --------------------------------------------------------------------------- */

tn_tensor *tni_as_images(tn_tensor *x, int axes)
{
    if (x && x->shape.rank == axes + 1) x = tn_unsqueeze(x, 0);
    return x && axes == 1 ? tn_unsqueeze(x, 2) : x;
}

tn_tensor *tni_as_given(tn_tensor *y, const tn_shape *given, int axes)
{
    if (axes == 1) y = tn_squeeze(y, 2);
    return given->rank == axes + 1 ? tn_squeeze(y, 0) : y;
}

/* x with the padding that the ops do not make: all with a mode, else that before the last two axes.
 */
static tn_tensor *padded(tn_tensor *x, int axes, conv_axis *along, tn_pad_mode mode)
{
    int64_t pads[6] = { 0 };
    bool any = false;
    for (int i = 0; i < (mode ? axes : axes - 2); i++) {
        conv_axis *a = &along[i];
        any |= a->before || a->after;
        pads[2 * (axes - 1 - i)] = a->before;
        pads[2 * (axes - 1 - i) + 1] = a->after;
        a->size += a->before + a->after;
        a->before = a->after = 0;
    }
    return any ? tn_pad(x, pads, 2 * axes, mode, 0) : x;
}

/* x [N,C,D,H,W] as [N D', C kernel, H, W]: channel c kernel + t is the plane under tap t. */
static tn_tensor *planes_as_channels(tn_tensor *x, const conv_axis *a)
{
    const int64_t *size = x->shape.size;
    TNI_ITEMS(tn_tensor *, plane, a->kernel);
    if (!plane) return NULL;
    for (int64_t t = 0; t < a->kernel; t++) {
        int64_t from = t * a->dilation, end = from + (a->out - 1) * a->stride + 1;
        plane[t] = tn_permute(tn_slice(x, 2, from, end, a->stride), TN_AXES(0, 2, 1, 3, 4));
    }
    tn_tensor *y = tn_stack(plane, (int)a->kernel, 3);
    return tn_reshape(y, TN_SHAPE(size[0] * a->out, size[1] * a->kernel, size[3], size[4]));
}

static tn_tensor *convolve(const tn_op *op, int axes, tn_tensor *x, tn_tensor *w, tn_tensor *b,
                           const tn_conv_spec *spec)
{
    bool transposed = op->forward == transpose_forward;
    conv_axis along[3], line = { 1, 1, 0, 0, 1, 1, 1 };
    const conv_axis *v = axes == 1 ? &line : &along[axes - 2], *h = &along[axes - 1];
    int64_t groups = spec->groups ? spec->groups : 1;
    if (!x || !w || !b || tni_none(x) || tni_none(w)) /* which fails */
        return tni_apply(op, NULL, 0, 3, (tn_tensor *[]){ x, w, b });
    tn_shape given = x->shape, of = w->shape;
    if (check_ranks(op->name, x, w, axes, transposed) != TN_OK ||
        read_spec(op->name, spec, axes, &of.size[2], transposed, along) != TN_OK ||
        check_channels(op->name, x, w, b, groups, transposed) != TN_OK)
        return NULL;
    for (int i = 0; i < axes; i++)
        if (fit(op->name, x, w, i, transposed, &along[i]) != TN_OK) return NULL;
    if (given.rank == axes + 1) x = tn_unsqueeze(x, 0);
    if (!x || !(x = padded(x, axes, along, spec->padding_mode))) return NULL;
    if (axes == 3) {
        x = planes_as_channels(x, &along[0]);
        w = tn_reshape(w, TN_SHAPE(of.size[0], of.size[1] * of.size[2], of.size[3], of.size[4]));
    } else if (axes == 1) {
        x = tn_unsqueeze(x, 2);
        w = tn_unsqueeze(w, 2);
    }
    conv_args a = { .groups = groups,
                    .h = v->size,
                    .w = h->size,
                    .kh = v->kernel,
                    .kw = h->kernel,
                    .oh = v->out,
                    .ow = h->out,
                    .stride = { v->stride, h->stride },
                    .padding = { v->before, h->before },
                    .dilation = { v->dilation, h->dilation } };
    tn_tensor *y = tni_apply(op, &a, sizeof a, 3, (tn_tensor *[]){ x, w, b });
    if (!y && x && w) {
        tni_error_reword(tni_shape_text(&x->shape), tni_shape_text(&given));
        tni_error_reword(tni_shape_text(&w->shape), tni_shape_text(&of));
    }
    if (y && axes == 3) {
        y = tn_reshape(
            y, TN_SHAPE(y->shape.size[0] / along[0].out, along[0].out, of.size[0], a.oh, a.ow));
        y = tn_contiguous(tn_permute(y, TN_AXES(0, 2, 1, 3, 4)));
    }
    return tni_as_given(y, &given, axes);
}

#define CONVOLUTION(tn_name, op, axes)                                                             \
    tn_tensor *tn_name(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec)        \
    {                                                                                              \
        return convolve(&op, axes, x, weight, bias, &spec);                                        \
    }
CONVOLUTION(tn_conv1d, op_conv1d, 1)
CONVOLUTION(tn_conv2d, op_conv2d, 2)
CONVOLUTION(tn_conv3d, op_conv3d, 3)
CONVOLUTION(tn_conv_transpose1d, op_conv_transpose1d, 1)
CONVOLUTION(tn_conv_transpose2d, op_conv_transpose2d, 2)
