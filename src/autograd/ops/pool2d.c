/*
 * pool2d.c - maximum, average and adaptive average pooling over [N, C, H, W].
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
} pool_args;

/* Sets all sizes; y [n, c, oh, ow] is the result. */
static tni_pool2d_sizes sizes_for(const pool_args *a, const tn_shape *y)
{
    tni_pool2d_sizes p = a->of;
    p.n = y->size[0];
    p.c = y->size[1];
    p.oh = y->size[2];
    p.ow = y->size[3];
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
    const tni_pool2d_sizes *a = c->args;
    bool ceil_mode = ((const pool_args *)c->args)->ceil_mode;
    const tn_tensor *x = c->in[0];
    tn_shape *y = &c->out_spec[0].shape;
    tni_shape_like_first(c);
    for (int i = 0; i < 2; i++) {
        int64_t size = x->shape.size[2 + i];
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
        y->size[2 + i] = (reach + (ceil_mode ? a->stride[i] - 1 : 0)) / a->stride[i] + 1;
        if (ceil_mode && (y->size[2 + i] - 1) * a->stride[i] >= size + a->padding[i])
            y->size[2 + i]--;
        int64_t beside;
        if ((beside = window_beside(a, i, size, y->size[2 + i])) >= 0)
            return tni_op_error(c, TN_E_SHAPE,
                                "x %s, kernel %" PRId64 ", padding %" PRId64 ", dilation %" PRId64
                                ": window %" PRId64 " along axis "
                                "%d lies in the padding alone: want an element of x under each",
                                tni_text(x), a->kernel[i], a->padding[i], a->dilation[i], beside,
                                2 + i);
    }
    return TN_OK;
}

static tn_status grad_shape(tni_call *c)
{
    const pool_args *a = c->args;
    tni_shape_like_first(c);
    c->out_spec[0].shape.size[2] = a->of.h;
    c->out_spec[0].shape.size[3] = a->of.w;
    return TN_OK;
}

/* ---- maximum --------------------------------------------------------------------------------- */

static tn_status max_shape(tni_call *c)
{
    const tn_shape *x = &c->in[0]->shape;
    tn_status status = window_shape(c);
    if (status == TN_OK && x->size[2] * x->size[3] > INT32_MAX)
        return tni_op_error(c, TN_E_UNSUPPORTED, "x %s: want at most %d elements in a plane",
                            tni_text(c->in[0]), INT32_MAX);
    if (c->recorded)
        tni_saves(c, TN_I32, &c->out_spec[0].shape); /* of maxima: index in the plane */
    return status;
}

static tn_status max_forward(tni_call *c)
{
    const tn_tensor *x = c->in[0];
    tni_max_pool2d a = { .y = tni_array_of(c->out[0]),
                         .index = c->n_saved ? tni_array_of(c->saved[0]) : tni_array_none(),
                         .x = tni_array_of(x),
                         .sizes = sizes_for(c->args, &c->out[0]->shape) };
    return tni_backend_of(x)->max_pool2d(&a);
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
    tn_shape flat = TN_SHAPE(planes, dy->size[2] * dy->size[3]);
    tn_tensor *index = tn_reshape(tn_to_dtype(g->x[1], TN_I64), flat);
    tn_tensor *from = tn_reshape(g->dy, TN_SHAPE(planes, dx->size[2] * dx->size[3]));
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

static const tn_op op_max_pool2d = {
    .name = "max_pool2d",
    .formula = "y_o = max of x under window o",
    .gradient = "dx_i = sum of dy_o over windows o whose maximum is x_i",
    .arity = 1,
    .reads = { TNI_SAVED },
    .autocast = TNI_CAST_KEEP,
    .dense = TNI_X(0),
    .shape = max_shape,
    .forward = max_forward,
    .backward = max_backward,
};

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

static tn_status adaptive_shape(tni_call *c)
{
    const pool_args *a = c->args;
    const int64_t out[] = { a->of.oh, a->of.ow };
    tni_shape_like_first(c);
    for (int i = 0; i < 2; i++) {
        int64_t size = c->in[0]->shape.size[2 + i];
        if (out[i] < 1 || out[i] > INT_MAX)
            return tni_op_error(c, TN_E_INVALID,
                                "x %s to %" PRId64 "x%" PRId64 ": want an output of 1 to %d",
                                tni_text(c->in[0]), out[0], out[1], INT_MAX);
        if (size < 1 || size > INT_MAX)
            return tni_op_error(c, TN_E_SHAPE, "x %s: want an image of 1 to %d", tni_text(c->in[0]),
                                INT_MAX);
        c->out_spec[0].shape.size[2 + i] = out[i];
    }
    return TN_OK;
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
AVERAGE(avg_pool2d, "y_o = (sum of x under window o) / count", window_shape)
AVERAGE(adaptive_avg_pool2d, "y_o = mean of x from floor(o size / n) to ceil((o + 1) size / n)",
        adaptive_shape)

/* ---- functions ------------------------------------------------------------------------------- */

static tn_tensor *pool(const tn_op *op, tn_tensor *x, pool_args a)
{
    bool there = x && !tni_none(x), single = there && x->shape.rank == 3;
    if (there && !single && x->shape.rank != 4)
        return tni_fail(TN_E_SHAPE, "tn_%s: x %s: want [N,C,H,W] or [C,H,W]", op->name,
                        tni_text(x));
    if (single) x = tn_unsqueeze(x, 0);
    a.of.h = there && x ? x->shape.size[2] : 0;
    a.of.w = there && x ? x->shape.size[3] : 0;
    tn_tensor *y = tni_apply(op, &a, sizeof a, 1, &x);
    return single ? tn_squeeze(y, 0) : y;
}

static pool_args args_of(const tn_pool2d_spec *spec)
{
    pool_args a = { { .include_padding = !spec->exclude_padding }, spec->ceil_mode };
    for (int i = 0; i < 2; i++) {
        a.of.kernel[i] = spec->kernel[i];
        a.of.stride[i] = spec->stride[i] ? spec->stride[i] : spec->kernel[i];
        a.of.padding[i] = spec->padding[i];
        a.of.dilation[i] = spec->dilation[i] ? spec->dilation[i] : 1;
    }
    return a;
}

tn_tensor *tn_max_pool2d(tn_tensor *x, tn_pool2d_spec spec)
{
    return pool(&op_max_pool2d, x, args_of(&spec));
}

tn_tensor *tn_avg_pool2d(tn_tensor *x, tn_pool2d_spec spec)
{
    pool_args a = args_of(&spec);
    if (x && (a.of.dilation[0] != 1 || a.of.dilation[1] != 1))
        return tni_fail(TN_E_INVALID,
                        "tn_avg_pool2d: dilation %" PRId64 "x%" PRId64 ": want 1 (maximum only)",
                        a.of.dilation[0], a.of.dilation[1]);
    return pool(&op_avg_pool2d, x, a);
}

tn_tensor *tn_adaptive_avg_pool2d(tn_tensor *x, int64_t out_h, int64_t out_w)
{
    return pool(&op_adaptive_avg_pool2d, x,
                (pool_args){ { .oh = out_h, .ow = out_w, .adaptive = true }, false });
}
