/*
 * pool2d.c - maximum and average pooling, each also adaptive, over [N, C, H, W]; [N, C, L] is
 * images of height 1.
 *
 * NaN is the largest, and the first of equals wins. Given the index of every maximum each is
 * linear: the gradient's gradient is a gather by the same index, and an average. Output sizes and
 * counts are PyTorch's: with ceil_mode the last window may reach beyond the padded image, but
 * starts inside the image or its left padding.
 */
#include <limits.h>

#include "autograd/ops/conv.h"

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
    tni_shape_like_first(c);
    for (int i = 0; i < 2; i++) {
        int64_t size = x->shape.size[2 + i], *out = &c->out_spec[0].shape.size[2 + i];
        if (a->kernel[i] < 1 || a->stride[i] < 1 || a->dilation[i] < 1 || a->kernel[i] > INT_MAX ||
            a->stride[i] > INT_MAX || a->dilation[i] > INT_MAX || size > INT_MAX)
            return tni_op_error(c, TN_E_INVALID,
                                "x %s, kernel %" PRId64 ", stride %" PRId64 ", dilation %" PRId64
                                ": want 1 to %d each",
                                tni_text(x), a->kernel[i], a->stride[i], a->dilation[i], INT_MAX);
        bool half = a->padding[i] >= 0 && a->padding[i] <= a->kernel[i] / 2;
        int64_t reach =
            size + 2 * (half ? a->padding[i] : 0) - a->dilation[i] * (a->kernel[i] - 1) - 1;
        if (size < 1 || !half || (reach < 0 && !(ceil_mode && reach + a->stride[i] > 0)))
            return tni_op_error(c, half ? TN_E_SHAPE : TN_E_INVALID,
                                "x %s, kernel %" PRId64 ", padding %" PRId64 ", dilation %" PRId64
                                ": want %s",
                                tni_text(x), a->kernel[i], a->padding[i], a->dilation[i],
                                !half      ? "padding from 0 to half the kernel"
                                : size < 1 ? "an image that is not empty"
                                           : "a window that fits into the padded image");
        *out = (reach + (ceil_mode ? a->stride[i] - 1 : 0)) / a->stride[i] + 1;
        if (ceil_mode && (*out - 1) * a->stride[i] >= size + a->padding[i]) --*out;
        int64_t beside = window_beside(a, i, size, *out);
        if (beside >= 0)
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
    const int64_t *dy = c->in[0]->shape.size;
    tn_shape dx = TN_SHAPE(dy[0], dy[1], a->of.h, a->of.w);
    return tni_result(c, c->in[0]->dtype, &dx);
}

static tn_status adaptive_shape(tni_call *c)
{
    const pool_args *a = c->args;
    const int64_t out[] = { a->of.oh, a->of.ow };
    tni_shape_like_first(c);
    for (int i = 0; i < 2; i++) {
        int64_t size = c->in[0]->shape.size[2 + i];
        bool wrong = out[i] < 1 || out[i] > INT_MAX;
        if (wrong || size < 1 || size > INT_MAX)
            return tni_op_error(c, wrong ? TN_E_INVALID : TN_E_SHAPE,
                                "x %s to %" PRId64 "x%" PRId64 ": want an %s of 1 to %d",
                                tni_text(c->in[0]), out[0], out[1], wrong ? "output" : "image",
                                INT_MAX);
        c->out_spec[0].shape.size[2 + i] = out[i];
    }
    return TN_OK;
}

/* ---- maximum --------------------------------------------------------------------------------- */

/* Two outputs: the second is the index of each maximum in its plane. It is saved, too. */
static tn_status max_shape(tni_call *c)
{
    const tn_shape *x = &c->in[0]->shape;
    const tni_pool2d_sizes *a = c->args;
    if (a->divisor)
        return tni_op_error(c, TN_E_INVALID, "divisor %" PRId64 ": want 0 (average only)",
                            a->divisor);
    tn_status status = a->adaptive ? adaptive_shape(c) : window_shape(c);
    if (status == TN_OK && x->size[2] * x->size[3] > INT32_MAX)
        return tni_op_error(c, TN_E_UNSUPPORTED, "x %s: want at most %d elements in a plane",
                            tni_text(c->in[0]), INT32_MAX);
    if (c->n_out > 1) c->out_spec[1] = (tni_spec){ .dtype = TN_I32, .shape = c->out_spec[0].shape };
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
    const tn_shape *dx = &g->out[0].shape, *dy = &g->in[0].shape;
    int64_t planes = dx->size[0] * dx->size[1];
    tn_shape flat = TN_SHAPE(planes, dy->size[2] * dy->size[3]);
    tn_tensor *index = tn_reshape(tn_to_dtype(g->x[1], TN_I64), flat);
    tn_tensor *from = tn_reshape(g->dy, TN_SHAPE(planes, dx->size[2] * dx->size[3]));
    return tni_give_dx(g, tn_reshape(tn_gather(from, 1, index), *dy));
}

TNI_OP_AS(op_max_grad, "max_pool2d_grad", 2, "dx_i = sum over o with i(o) = i of dy_o",
          "ddy_o = g_i(o); where g is the gradient of dx", grad_shape, max_grad_forward,
          max_grad_backward, .reads = { TNI_X(1) }, .dense = TNI_X(0))

TNI_DX(max_backward,
       tni_apply(&op_max_grad, g->args, g->args_size, 2, (tn_tensor *[]){ g->dy, g->saved[0] }))

/* ---- averages: windows of a kernel, or adaptive ones ----------------------------------------- */

static tn_status avg_shape(tni_call *c)
{
    const tni_pool2d_sizes *a = c->args;
    if (a->adaptive) return adaptive_shape(c);
    if (a->dilation[0] == 1 && a->dilation[1] == 1 && a->divisor >= 0) return window_shape(c);
    return tni_op_error(c, TN_E_INVALID,
                        "dilation %" PRId64 "x%" PRId64 ", divisor %" PRId64
                        ": want dilation 1 (maximum only) and a divisor of 0 (the count) and up",
                        a->dilation[0], a->dilation[1], a->divisor);
}

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

static const tn_op op_avg_pool2d; /* also of the others: args say which */
TNI_OP_AS(op_avg_grad, "avg_pool2d_grad", 1, "dx_i = sum over windows o above i of dy_o / count",
          "ddy_o = (sum of g under window o) / count; where g is the gradient of dx", grad_shape,
          avg_grad_forward, tni_transposed, .dense = TNI_X(0), .transpose = &op_avg_pool2d)

/* ---- the ops --------------------------------------------------------------------------------- */

#define POOL(name_, formula_, gradient_, kind_, backward_, ...)                                    \
    TNI_OP(name_, 1, formula_, gradient_, kind_##_shape, kind_##_forward, backward_,               \
           .autocast = TNI_CAST_KEEP, .dense = TNI_X(0), __VA_ARGS__)
#define MAXIMUM(name_, of)                                                                         \
    POOL(name_, "y_o = max of x " of, "dx_i = sum of dy_o over windows o whose maximum is x_i",    \
         max, max_backward, .reads = { TNI_SAVED })
#define AVERAGE(name_, of)                                                                         \
    POOL(name_, "y_o = mean of x " of, "dx_i = sum of dy_o / count over windows o that hold i",    \
         avg, tni_transposed, .transpose = &op_avg_grad)
#define WINDOW "under window o"
#define SHARE "from floor(o size / n) to ceil((o + 1) size / n)"
MAXIMUM(max_pool1d, WINDOW)
MAXIMUM(max_pool2d, WINDOW)
MAXIMUM(adaptive_max_pool1d, SHARE)
MAXIMUM(adaptive_max_pool2d, SHARE)
AVERAGE(avg_pool1d, WINDOW)
AVERAGE(avg_pool2d, WINDOW)
AVERAGE(adaptive_avg_pool1d, SHARE)
AVERAGE(adaptive_avg_pool2d, SHARE)

/* ---- functions ------------------------------------------------------------------------------- */

/* index: NULL, or receives that of each maximum, i64. */
static tn_tensor *pool(const tn_op *op, int axes, tn_tensor *x, pool_args a, tn_tensor **index)
{
    tn_tensor *out[2] = { NULL, NULL };
    const tn_shape *given = x ? &x->shape : NULL;
    if (x && !tni_none(x)) {
        if (given->rank != axes + 1 && given->rank != axes + 2)
            return tni_fail(TN_E_SHAPE, "tn_%s: x %s: want %s", op->name, tni_text(x),
                            axes == 1 ? "[N,C,L] or [C,L]" : "[N,C,H,W] or [C,H,W]");
        if (!(x = tni_as_images(x, axes))) return NULL;
        a.of.h = x->shape.size[2];
        a.of.w = x->shape.size[3];
    }
    if (tni_apply_n(op, &a, sizeof a, 1, &x, index ? 2 : 1, out) != TN_OK) {
        if (x) tni_error_reword(tni_shape_text(&x->shape), tni_shape_text(given));
        return NULL;
    }
    tn_tensor *y = tni_as_given(out[0], given, axes);
    if (!index) return y;
    tn_tensor *at = tn_to_dtype(tni_as_given(out[1], given, axes), TN_I64);
    if (!y || !at) return NULL;
    *index = at;
    return y;
}

static pool_args windows(const tn_pool_spec *spec, int axes)
{
    pool_args a = { { .include_padding = !spec->exclude_padding, .divisor = spec->divisor },
                    spec->ceil_mode };
    for (int k = 0; k < 2; k++) {
        int i = k - 2 + axes; /* below 0: the height of a line */
        a.of.kernel[k] = i < 0 ? 1 : spec->kernel[i];
        a.of.stride[k] = i < 0 ? 1 : spec->stride[i] ? spec->stride[i] : spec->kernel[i];
        a.of.padding[k] = i < 0 ? 0 : spec->padding[i];
        a.of.dilation[k] = i < 0 || !spec->dilation[i] ? 1 : spec->dilation[i];
    }
    return a;
}

/* Every window has steps of 1. */
static pool_args shares(int64_t out_h, int64_t out_w)
{
    return (pool_args){ { .oh = out_h, .ow = out_w, .dilation = { 1, 1 }, .adaptive = true },
                        false };
}

/* A function by op over so many axes; behind args and index its parameters after x. */
#define POOLING(tn_name, op, axes, args, index, ...)                                               \
    tn_tensor *tn_name(tn_tensor *x, __VA_ARGS__)                                                  \
    {                                                                                              \
        return pool(&op, axes, x, args, index);                                                    \
    }
POOLING(tn_max_pool1d, op_max_pool1d, 1, windows(&spec, 1), NULL, tn_pool_spec spec)
POOLING(tn_max_pool2d, op_max_pool2d, 2, windows(&spec, 2), NULL, tn_pool_spec spec)
POOLING(tn_avg_pool1d, op_avg_pool1d, 1, windows(&spec, 1), NULL, tn_pool_spec spec)
POOLING(tn_avg_pool2d, op_avg_pool2d, 2, windows(&spec, 2), NULL, tn_pool_spec spec)
POOLING(tn_max_pool1d_with_indices, op_max_pool1d, 1, windows(&spec, 1), index, tn_pool_spec spec,
        tn_tensor **index)
POOLING(tn_max_pool2d_with_indices, op_max_pool2d, 2, windows(&spec, 2), index, tn_pool_spec spec,
        tn_tensor **index)
POOLING(tn_adaptive_avg_pool1d, op_adaptive_avg_pool1d, 1, shares(1, out), NULL, int64_t out)
POOLING(tn_adaptive_avg_pool2d, op_adaptive_avg_pool2d, 2, shares(h, w), NULL, int64_t h, int64_t w)
POOLING(tn_adaptive_max_pool1d, op_adaptive_max_pool1d, 1, shares(1, out), index, int64_t out,
        tn_tensor **index)
POOLING(tn_adaptive_max_pool2d, op_adaptive_max_pool2d, 2, shares(h, w), index, int64_t h,
        int64_t w, tn_tensor **index)
