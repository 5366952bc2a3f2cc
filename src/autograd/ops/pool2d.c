/*
 * pool2d.c - maximum and average pooling, each also adaptive, over [N, C, H, W], and over [N, C, L]
 * as images of height 1.
 *
 * NaN is the largest, and the first of equals wins. Given the index of every maximum each is
 * linear: the gradient's gradient is a gather by the same index, and an average. Output sizes and
 * counts are PyTorch's: with ceil_mode the last window may reach beyond the padded image, but
 * starts inside the image or its left padding.
 */
#include <limits.h>

#include "autograd/op.h"

/* The sizes as kernels see them; h and w are set already, for adaptive pooling also oh and ow. */
typedef struct pool_args {
    tni_pool2d_sizes of;
    bool ceil_mode;
    int axes; /* 1 or 2 */
} pool_args;

/* Height (0) or width (1) of images of one axis or two. */
static int64_t side(const tn_shape *s, int i)
{
    return s->rank + i < 4 ? 1 : s->size[s->rank - 2 + i];
}

/* Sets all sizes; y [n, c, oh, ow] is the result. */
static tni_pool2d_sizes sizes_for(const pool_args *a, const tn_shape *y)
{
    tni_pool2d_sizes p = a->of;
    p.n = y->size[0];
    p.c = y->size[1];
    p.oh = side(y, 0);
    p.ow = side(y, 1);
    return p;
}

/* The first window along axis i that covers no element of an image of that size, or -1. Only a
 * window that starts in the padding can miss the image, if the dilation exceeds it. */
static int64_t window_beside(const tni_pool2d_sizes *a, int i, int64_t size, int64_t windows)
{
    if (size >= a->dilation[i]) return -1;
    for (int64_t k = 0; k < windows && k * a->stride[i] < a->padding[i]; k++) {
        int64_t before = a->padding[i] - k * a->stride[i];
        int64_t steps = (before + a->dilation[i] - 1) / a->dilation[i];
        if (steps >= a->kernel[i] || steps * a->dilation[i] - before >= size) return k;
    }
    return -1;
}

static tn_status window_shape(tni_call *c)
{
    const pool_args *args = c->args;
    const tni_pool2d_sizes *a = &args->of;
    bool ceil_mode = args->ceil_mode;
    const tn_tensor *x = c->in[0];
    tn_shape *y = &c->out_spec[0].shape;
    tni_shape_like_first(c);
    for (int i = 2 - args->axes; i < 2; i++) {
        int d = args->axes + i; /* of x */
        int64_t size = x->shape.size[d];
        if (size < 1)
            return tni_op_error(c, TN_E_SHAPE, "x %s: want an image that is not empty",
                                tni_text(x));
        if (a->kernel[i] < 1 || a->stride[i] < 1 || a->dilation[i] < 1 || a->kernel[i] > INT_MAX ||
            a->stride[i] > INT_MAX || a->dilation[i] > INT_MAX || size > INT_MAX)
            return tni_op_error(c, TN_E_INVALID,
                                "x %s, kernel %" PRId64 ", stride %" PRId64 ", dilation %" PRId64
                                ": want 1 to %d each",
                                tni_text(x), a->kernel[i], a->stride[i], a->dilation[i], INT_MAX);
        if (a->padding[i] < 0 || a->padding[i] > a->kernel[i] / 2)
            return tni_op_error(c, TN_E_INVALID,
                                "padding %" PRId64 ", kernel %" PRId64
                                ": want padding from 0 to half the kernel",
                                a->padding[i], a->kernel[i]);
        int64_t reach = size + 2 * a->padding[i] - a->dilation[i] * (a->kernel[i] - 1) - 1;
        if (reach < 0 && !(ceil_mode && reach + a->stride[i] > 0))
            return tni_op_error(c, TN_E_SHAPE,
                                "x %s, kernel %" PRId64 ", padding %" PRId64 ", dilation %" PRId64
                                ": the window must fit "
                                "into the padded image",
                                tni_text(x), a->kernel[i], a->padding[i], a->dilation[i]);
        y->size[d] = (reach + (ceil_mode ? a->stride[i] - 1 : 0)) / a->stride[i] + 1;
        if (ceil_mode && (y->size[d] - 1) * a->stride[i] >= size + a->padding[i]) y->size[d]--;
        int64_t beside;
        if ((beside = window_beside(a, i, size, y->size[d])) >= 0)
            return tni_op_error(c, TN_E_SHAPE,
                                "x %s, kernel %" PRId64 ", padding %" PRId64 ", dilation %" PRId64
                                ": window %" PRId64 " along axis "
                                "%d lies in the padding alone: want an element of x under each",
                                tni_text(x), a->kernel[i], a->padding[i], a->dilation[i], beside,
                                d);
    }
    return TN_OK;
}

static tn_status grad_shape(tni_call *c)
{
    const pool_args *a = c->args;
    tni_shape_like_first(c);
    for (int i = 2 - a->axes; i < 2; i++)
        c->out_spec[0].shape.size[a->axes + i] = i ? a->of.w : a->of.h;
    return TN_OK;
}

static tn_status adaptive_shape(tni_call *c)
{
    const pool_args *a = c->args;
    const int64_t out[] = { a->of.oh, a->of.ow };
    tni_shape_like_first(c);
    for (int i = 2 - a->axes; i < 2; i++) {
        int64_t size = c->in[0]->shape.size[a->axes + i];
        if (out[i] < 1 || out[i] > INT_MAX)
            return tni_op_error(c, TN_E_INVALID,
                                "x %s to %" PRId64 "x%" PRId64 ": want an output of 1 to %d",
                                tni_text(c->in[0]), out[0], out[1], INT_MAX);
        if (size < 1 || size > INT_MAX)
            return tni_op_error(c, TN_E_SHAPE, "x %s: want an image of 1 to %d", tni_text(c->in[0]),
                                INT_MAX);
        c->out_spec[0].shape.size[a->axes + i] = out[i];
    }
    return TN_OK;
}

/* ---- maximum --------------------------------------------------------------------------------- */

/* Two outputs: the second is the index of each maximum in its plane. It is saved, too. */
static tn_status max_shape(tni_call *c)
{
    const tn_shape *x = &c->in[0]->shape;
    tn_status status =
        ((const pool_args *)c->args)->of.adaptive ? adaptive_shape(c) : window_shape(c);
    if (status == TN_OK && side(x, 0) * side(x, 1) > INT32_MAX)
        return tni_op_error(c, TN_E_UNSUPPORTED, "x %s: want at most %d elements in a plane",
                            tni_text(c->in[0]), INT32_MAX);
    if (c->n_out > 1) {
        c->out_spec[1].dtype = TN_I32;
        c->out_spec[1].shape = c->out_spec[0].shape;
    }
    if (c->recorded) tni_saves(c, TN_I32, &c->out_spec[0].shape);
    return status;
}

static tn_status max_forward(tni_call *c)
{
    const tn_tensor *x = c->in[0], *index = c->n_out > 1 ? c->out[1]
                                            : c->n_saved ? c->saved[0]
                                                         : NULL;
    tni_max_pool2d a = { .y = tni_array_of(c->out[0]),
                         .index = index ? tni_array_of(index) : tni_array_none(),
                         .x = tni_array_of(x),
                         .sizes = sizes_for(c->args, &c->out[0]->shape) };
    tn_status status = tni_backend_of(x)->max_pool2d(&a);
    if (status != TN_OK || c->n_out == 1 || c->n_saved == 0) return status;
    return tni_backend_of(x)->copy(&(tni_copy){ .y = tni_array_of(c->saved[0]), .x = a.index });
}

/* Inputs dy, index. */
static tn_status max_grad_forward(tni_call *c)
{
    const tn_tensor *dy = c->in[0];
    tni_max_pool2d_grad a = { .dx = tni_array_of(c->out[0]),
                              .dy = tni_array_of(dy),
                              .index = tni_array_of(c->in[1]),
                              .sizes = sizes_for(c->args, &dy->shape) };
    return tni_backend_of(dy)->max_pool2d_grad(&a);
}

static tn_status max_grad_backward(tni_grad *g)
{
    const tn_shape *dx = &g->out[0].shape;
    const tn_shape *dy = &g->in[0].shape;
    int64_t planes = dx->size[0] * dx->size[1];
    tn_shape flat = TN_SHAPE(planes, side(dy, 0) * side(dy, 1));
    tn_tensor *index = tn_reshape(tn_to_dtype(g->x[1], TN_I64), flat);
    tn_tensor *from = tn_reshape(g->dy, TN_SHAPE(planes, side(dx, 0) * side(dx, 1)));
    g->dx[0] = tn_reshape(tn_gather(from, 1, index), *dy);
    return TN_OK;
}

static const tn_op op_max_grad = {
    .name = "max_pool2d_grad",
    .formula = "dx_i = sum over o with i(o) = i of dy_o",
    .gradient = "ddy_o = g_i(o); where g is the gradient of dx",
    .arity = 2,
    .reads = { TNI_X(1) },
    .dense = TNI_X(0),
    .shape = grad_shape,
    .forward = max_grad_forward,
    .backward = max_grad_backward,
};

static tn_status max_backward(tni_grad *g)
{
    g->dx[0] = tni_apply(&op_max_grad, g->args, sizeof(pool_args), 2,
                         (tn_tensor *[]){ g->dy, g->saved[0] });
    return TN_OK;
}

#define MAXIMUM(name_, formula_)                                                                   \
    static const tn_op op_##name_ = {                                                              \
        .name = #name_,                                                                            \
        .formula = formula_,                                                                       \
        .gradient = "dx_i = sum of dy_o over windows o whose maximum is x_i",                      \
        .arity = 1,                                                                                \
        .reads = { TNI_SAVED },                                                                    \
        .autocast = TNI_CAST_KEEP,                                                                 \
        .dense = TNI_X(0),                                                                         \
        .shape = max_shape,                                                                        \
        .forward = max_forward,                                                                    \
        .backward = max_backward,                                                                  \
    };
MAXIMUM(max_pool1d, "y_o = max of x under window o")
MAXIMUM(max_pool2d, "y_o = max of x under window o")
MAXIMUM(adaptive_max_pool1d, "y_o = max of x from floor(o size / n) to ceil((o + 1) size / n)")
MAXIMUM(adaptive_max_pool2d, "y_o = max of x from floor(o size / n) to ceil((o + 1) size / n)")

/* ---- averages: windows of a kernel, or adaptive ones ----------------------------------------- */

static tn_status avg_forward(tni_call *c)
{
    const tn_tensor *x = c->in[0];
    tni_avg_pool2d a = { .y = tni_array_of(c->out[0]),
                         .x = tni_array_of(x),
                         .sizes = sizes_for(c->args, &c->out[0]->shape) };
    return tni_backend_of(x)->avg_pool2d(&a);
}

static tn_status avg_grad_forward(tni_call *c)
{
    const tn_tensor *dy = c->in[0];
    tni_avg_pool2d_grad a = { .dx = tni_array_of(c->out[0]),
                              .dy = tni_array_of(dy),
                              .sizes = sizes_for(c->args, &dy->shape) };
    return tni_backend_of(dy)->avg_pool2d_grad(&a);
}

/* Both are linear, and each is the other's transpose. */
#define AVERAGE(name_, formula_, shape_)                                                           \
    static const tn_op op_##name_##_grad;                                                          \
    static const tn_op op_##name_ = {                                                              \
        .name = #name_,                                                                            \
        .formula = formula_,                                                                       \
        .gradient = "dx_i = sum of dy_o / count over windows o that hold i",                       \
        .arity = 1,                                                                                \
        .autocast = TNI_CAST_KEEP,                                                                 \
        .dense = TNI_X(0),                                                                         \
        .shape = shape_,                                                                           \
        .forward = avg_forward,                                                                    \
        .backward = tni_transposed,                                                                \
        .transpose = &op_##name_##_grad,                                                           \
    };                                                                                             \
    static const tn_op op_##name_##_grad = {                                                       \
        .name = #name_ "_grad",                                                                    \
        .formula = "dx_i = sum over windows o above i of dy_o / count",                            \
        .gradient = "ddy_o = (sum of g under window o) / count; where g is the gradient of dx",    \
        .arity = 1,                                                                                \
        .dense = TNI_X(0),                                                                         \
        .shape = grad_shape,                                                                       \
        .forward = avg_grad_forward,                                                               \
        .backward = tni_transposed,                                                                \
        .transpose = &op_##name_,                                                                  \
    };
AVERAGE(avg_pool1d, "y_o = (sum of x under window o) / count", window_shape)
AVERAGE(avg_pool2d, "y_o = (sum of x under window o) / count", window_shape)
AVERAGE(adaptive_avg_pool1d, "y_o = mean of x from floor(o size / n) to ceil((o + 1) size / n)",
        adaptive_shape)
AVERAGE(adaptive_avg_pool2d, "y_o = mean of x from floor(o size / n) to ceil((o + 1) size / n)",
        adaptive_shape)

/* ---- functions ------------------------------------------------------------------------------- */

/* index: NULL, or receives that of each maximum, i64. */
static tn_tensor *pool(const tn_op *op, tn_tensor *x, pool_args a, tn_tensor **index)
{
    tn_tensor *out[2] = { NULL, NULL };
    bool there = x && !tni_none(x), single = there && x->shape.rank == a.axes + 1;
    if (there && !single && x->shape.rank != a.axes + 2)
        return tni_fail(TN_E_SHAPE, "tn_%s: x %s: want %s", op->name, tni_text(x),
                        a.axes == 1 ? "[N,C,L] or [C,L]" : "[N,C,H,W] or [C,H,W]");
    if (single) x = tn_unsqueeze(x, 0);
    a.of.h = there && x ? side(&x->shape, 0) : 0;
    a.of.w = there && x ? side(&x->shape, 1) : 0;
    if (tni_apply_n(op, &a, sizeof a, 1, &x, index ? 2 : 1, out) != TN_OK) return NULL;
    tn_tensor *y = single ? tn_squeeze(out[0], 0) : out[0];
    if (!index) return y;
    tn_tensor *at = tn_to_dtype(single ? tn_squeeze(out[1], 0) : out[1], TN_I64);
    if (!y || !at) return NULL;
    *index = at;
    return y;
}

static pool_args args_of(const tn_pool_spec *spec, int axes)
{
    pool_args a = { { .include_padding = !spec->exclude_padding, .divisor = spec->divisor },
                    spec->ceil_mode,
                    axes };
    for (int k = 0; k < 2; k++) {
        int i = k - 2 + axes; /* below 0: the height of a line */
        a.of.kernel[k] = i < 0 ? 1 : spec->kernel[i];
        a.of.stride[k] = i < 0 ? 1 : spec->stride[i] ? spec->stride[i] : spec->kernel[i];
        a.of.padding[k] = i < 0 ? 0 : spec->padding[i];
        a.of.dilation[k] = i < 0 || !spec->dilation[i] ? 1 : spec->dilation[i];
    }
    return a;
}

static tn_tensor *maximum(const tn_op *op, int axes, tn_tensor *x, const tn_pool_spec *spec,
                          tn_tensor **index)
{
    if (x && spec->divisor)
        return tni_fail(TN_E_INVALID, "tn_%s: divisor %" PRId64 ": want 0 (average only)", op->name,
                        spec->divisor);
    return pool(op, x, args_of(spec, axes), index);
}

static tn_tensor *average(const tn_op *op, int axes, tn_tensor *x, const tn_pool_spec *spec)
{
    pool_args a = args_of(spec, axes);
    if (x && (a.of.dilation[0] != 1 || a.of.dilation[1] != 1))
        return tni_fail(TN_E_INVALID,
                        "tn_%s: dilation %" PRId64 "x%" PRId64 ": want 1 (maximum only)", op->name,
                        a.of.dilation[0], a.of.dilation[1]);
    if (x && spec->divisor < 0)
        return tni_fail(TN_E_INVALID, "tn_%s: divisor %" PRId64 ": want 0 (the count) and up",
                        op->name, spec->divisor);
    return pool(op, x, a, NULL);
}

/* Every window has steps of 1. */
static pool_args adaptive(int axes, int64_t out_h, int64_t out_w)
{
    return (pool_args){ { .oh = out_h, .ow = out_w, .dilation = { 1, 1 }, .adaptive = true },
                        false,
                        axes };
}

tn_tensor *tn_max_pool1d(tn_tensor *x, tn_pool_spec spec)
{
    return maximum(&op_max_pool1d, 1, x, &spec, NULL);
}

tn_tensor *tn_max_pool2d(tn_tensor *x, tn_pool_spec spec)
{
    return maximum(&op_max_pool2d, 2, x, &spec, NULL);
}

tn_tensor *tn_max_pool1d_with_indices(tn_tensor *x, tn_pool_spec spec, tn_tensor **index)
{
    return maximum(&op_max_pool1d, 1, x, &spec, index);
}

tn_tensor *tn_max_pool2d_with_indices(tn_tensor *x, tn_pool_spec spec, tn_tensor **index)
{
    return maximum(&op_max_pool2d, 2, x, &spec, index);
}

tn_tensor *tn_avg_pool1d(tn_tensor *x, tn_pool_spec spec)
{
    return average(&op_avg_pool1d, 1, x, &spec);
}

tn_tensor *tn_avg_pool2d(tn_tensor *x, tn_pool_spec spec)
{
    return average(&op_avg_pool2d, 2, x, &spec);
}

tn_tensor *tn_adaptive_avg_pool1d(tn_tensor *x, int64_t out)
{
    return pool(&op_adaptive_avg_pool1d, x, adaptive(1, 1, out), NULL);
}

tn_tensor *tn_adaptive_avg_pool2d(tn_tensor *x, int64_t out_h, int64_t out_w)
{
    return pool(&op_adaptive_avg_pool2d, x, adaptive(2, out_h, out_w), NULL);
}

tn_tensor *tn_adaptive_max_pool1d(tn_tensor *x, int64_t out, tn_tensor **index)
{
    return pool(&op_adaptive_max_pool1d, x, adaptive(1, 1, out), index);
}

tn_tensor *tn_adaptive_max_pool2d(tn_tensor *x, int64_t out_h, int64_t out_w, tn_tensor **index)
{
    return pool(&op_adaptive_max_pool2d, x, adaptive(2, out_h, out_w), index);
}
