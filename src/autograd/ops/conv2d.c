/*
 * conv2d.c - 2-D cross-correlation, and the two linear maps that are its gradients.
 *
 *     y[n,o,i,j] = b[o] + sum_crs w[o,c,r,s] x[n,c, i*stride + r*dilation - padding, j*...]
 * y is linear in x and in w. Write y = F(x, w), dx = I(dy, w), dw = W(dy, x): each is linear in
 * both of its arguments, and each one's gradients are the other two:
 *     I:  d/d(dy) = F(g, w)     d/dw = W(dy, g)      g: what flows into dx
 *     W:  d/d(dy) = F(x, g)     d/dx = I(dy, g)      g: what flows into dw
 * so derivatives of any order exist. Source: Dumoulin and Visin, A guide to convolution arithmetic
 * (2016).
 */
#include <limits.h>

#include "autograd/op.h"

/* The sizes as kernels see them; n, c, o, oh and ow come from the operands. */
typedef tni_conv2d_sizes conv_args;

static const tn_op op_conv2d, op_conv2d_grad_input, op_conv2d_grad_weight; /* F, I, W */

/* bias: of F alone. */
static tn_tensor *map(const tn_op *op, tn_tensor *first, tn_tensor *second, tn_tensor *bias,
                      const conv_args *a)
{
    return tni_apply(op, a, sizeof *a, op->arity, (tn_tensor *[]){ first, second, bias });
}

static tni_conv2d_sizes sizes_for(const conv_args *a, int64_t channels, const tn_shape *y)
{
    tni_conv2d_sizes s = *a;
    s.n = y->size[0];
    s.c = channels;
    s.o = y->size[1];
    s.oh = y->size[2];
    s.ow = y->size[3];
    return s;
}

/* ---- F: the convolution ---------------------------------------------------------------------- */

/* Output size of axis i (0: height, 1: width); -1 when the kernel does not fit. All within int: no
 * overflow. */
static int64_t out_size(const conv_args *a, int64_t size, int64_t kernel, int i)
{
    int64_t reach = size + 2 * a->padding[i] - a->dilation[i] * (kernel - 1) - 1;
    return reach < 0 ? -1 : reach / a->stride[i] + 1;
}

static tn_status check_spec(tni_call *c, const conv_args *a)
{
    for (int i = 0; i < 2; i++) {
        if (a->stride[i] < 1 || a->stride[i] > INT_MAX || a->dilation[i] < 1 ||
            a->dilation[i] > INT_MAX)
            return tni_op_error(c, TN_E_INVALID,
                                "stride %" PRId64 ", dilation %" PRId64 ": want 1 to %d",
                                a->stride[i], a->dilation[i], INT_MAX);
        if (a->padding[i] < 0 || a->padding[i] > INT_MAX)
            return tni_op_error(c, TN_E_INVALID, "padding %" PRId64 ": want 0 to %d", a->padding[i],
                                INT_MAX);
    }
    if (a->groups < 1)
        return tni_op_error(c, TN_E_INVALID, "groups %" PRId64 ": want at least 1", a->groups);
    return TN_OK;
}

/* For the message: the shape that x must have. */
static int64_t channels_for(const tn_tensor *w, int64_t groups)
{
    int64_t channels;
    return __builtin_mul_overflow(w->shape.size[1], groups, &channels) ? INT64_MAX : channels;
}

static tn_status conv2d_shape(tni_call *c)
{
    const conv_args *a = c->args;
    const tn_tensor *x = c->in[0];
    const tn_tensor *w = c->in[1];
    const tn_tensor *b = c->in[2];
    tn_shape *y = &c->out_spec[0].shape;
    tn_status status = check_spec(c, a);
    if (status != TN_OK) return status;
    if (x->shape.rank != 4 || w->shape.rank != 4)
        return tni_op_error(
            c, TN_E_SHAPE,
            "x %s, weight %s: want x [N,C,H,W] or [C,H,W] and weight [O,C/groups,kh,kw]",
            tni_text(x), tni_text(w));
    if (w->shape.size[0] % a->groups || x->shape.size[1] % a->groups ||
        x->shape.size[1] / a->groups != w->shape.size[1])
        return tni_op_error(c, TN_E_SHAPE,
                            "x %s, weight %s, groups %" PRId64 ": want %" PRId64
                            " channels in x, and weight's %" PRId64 " "
                            "divisible by groups",
                            tni_text(x), tni_text(w), a->groups, channels_for(w, a->groups),
                            w->shape.size[0]);
    if (!tni_none(b) && (b->shape.rank != 1 || b->shape.size[0] != w->shape.size[0]))
        return tni_op_error(c, TN_E_SHAPE, "weight %s, bias %s: want bias [%" PRId64 "]",
                            tni_text(w), tni_text(b), w->shape.size[0]);
    *y = (tn_shape){ 4, { x->shape.size[0], w->shape.size[0] } };
    for (int i = 0; i < 2; i++) {
        int64_t size = x->shape.size[2 + i];
        int64_t kernel = w->shape.size[2 + i];
        y->size[2 + i] =
            size <= INT_MAX && kernel >= 1 && kernel <= INT_MAX ? out_size(a, size, kernel, i) : -1;
        if (y->size[2 + i] < 0)
            return tni_op_error(c, TN_E_SHAPE,
                                "x %s, weight %s, padding %" PRId64 ", dilation %" PRId64
                                ": the kernel must fit into "
                                "the padded image",
                                tni_text(x), tni_text(w), a->padding[i], a->dilation[i]);
    }
    c->out_spec[0].dtype = x->dtype;
    return TN_OK;
}

static tn_status conv2d_forward(tni_call *c)
{
    const tn_tensor *x = c->in[0];
    const tn_tensor *b = c->in[2];
    tni_conv2d a = { .y = tni_array_of(c->out[0]),
                     .x = tni_array_of(x),
                     .w = tni_array_of(c->in[1]),
                     .bias = tni_none(b) ? tni_array_none() : tni_array_of(b),
                     .sizes = sizes_for(c->args, x->shape.size[1], &c->out[0]->shape) };
    return tni_backend_of(x)->conv2d(&a);
}

static tn_status conv2d_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = map(&op_conv2d_grad_input, g->dy, g->x[1], NULL, g->args);
    if (g->need[1]) g->dx[1] = map(&op_conv2d_grad_weight, g->dy, g->x[0], NULL, g->args);
    if (g->need[2]) g->dx[2] = tn_sum(g->dy, (int[]){ 0, 2, 3 }, 3, false);
    return TN_OK;
}

static const tn_op op_conv2d = {
    .name = "conv2d",
    .formula = "y[n,o,i,j] = b[o] + sum_crs w[o,c,r,s] x[n,c,i*stride+r*dilation-padding,...]",
    .gradient =
        "dx[n,c,..] = sum_ors w[o,c,r,s] dy[n,o,..]; dw[o,c,r,s] = sum_nij dy[n,o,i,j] x[n,c,..]; "
        "db[o] = sum_nij dy[n,o,i,j]",
    .arity = 3,
    .optional = TNI_X(2),
    .dtypes = TNI_ONE_FLOAT,
    .autocast = TNI_CAST_LOW,
    .reads = { TNI_X(1), TNI_X(0), 0 },
    .dense = TNI_ALL_X,
    .shape = conv2d_shape,
    .forward = conv2d_forward,
    .backward = conv2d_backward,
};

/* ---- I and W: the gradients of image and weight ---------------------------------------------- */

/* Inputs: dy, and of I the weight, of W the image. */
static tn_status grad_shape(tni_call *c)
{
    const conv_args *a = c->args;
    const tn_shape *dy = &c->in[0]->shape, *other = &c->in[1]->shape;
    tn_shape dx = c->op == &op_conv2d_grad_input
                      ? TN_SHAPE(dy->size[0], other->size[1] * a->groups, a->h, a->w)
                      : TN_SHAPE(dy->size[1], other->size[1] / a->groups, a->kh, a->kw);
    return tni_result(c, c->in[0]->dtype, &dx);
}

static tn_status grad_backward(tni_grad *g)
{
    bool image = g->op == &op_conv2d_grad_input;
    tn_tensor *x = image ? g->dy : g->x[1], *w = image ? g->x[1] : g->dy;
    const tn_op *other = image ? &op_conv2d_grad_weight : &op_conv2d_grad_input;
    if (g->need[0]) g->dx[0] = map(&op_conv2d, x, w, TN_NONE, g->args);
    if (g->need[1]) g->dx[1] = map(other, g->x[0], g->dy, NULL, g->args);
    return TN_OK;
}

static tn_status conv2d_grad_input_forward(tni_call *c)
{
    const tn_tensor *dy = c->in[0];
    tni_conv2d_grad_input a = { .dx = tni_array_of(c->out[0]),
                                .dy = tni_array_of(dy),
                                .w = tni_array_of(c->in[1]),
                                .sizes = sizes_for(c->args, c->out[0]->shape.size[1], &dy->shape) };
    return tni_backend_of(dy)->conv2d_grad_input(&a);
}

static tn_status conv2d_grad_weight_forward(tni_call *c)
{
    const tn_tensor *dy = c->in[0];
    const tn_tensor *x = c->in[1];
    tni_conv2d_grad_weight a = { .dw = tni_array_of(c->out[0]),
                                 .dy = tni_array_of(dy),
                                 .x = tni_array_of(x),
                                 .sizes = sizes_for(c->args, x->shape.size[1], &dy->shape) };
    return tni_backend_of(dy)->conv2d_grad_weight(&a);
}

#define GRADIENT(name_, formula_, gradient_)                                                       \
    static const tn_op op_##name_ = {                                                              \
        .name = #name_,                                                                            \
        .formula = formula_,                                                                       \
        .gradient = gradient_,                                                                     \
        .arity = 2,                                                                                \
        .reads = { TNI_X(1), TNI_X(0) },                                                           \
        .dense = TNI_ALL_X,                                                                        \
        .shape = grad_shape,                                                                       \
        .forward = name_##_forward,                                                                \
        .backward = grad_backward,                                                                 \
    };
GRADIENT(conv2d_grad_input, "dx[n,c,..] = sum_ors w[o,c,r,s] dy[n,o,..]",
         "ddy = conv2d(g, w); dw[o,c,r,s] = sum_nij dy[n,o,i,j] g[n,c,..]; "
         "where g is the gradient of dx")
GRADIENT(conv2d_grad_weight, "dw[o,c,r,s] = sum_nij dy[n,o,i,j] x[n,c,..]",
         "ddy = conv2d(x, g); dx[n,c,..] = sum_ors g[o,c,r,s] dy[n,o,..]; "
         "where g is the gradient of dw")

/* ---- the function ---------------------------------------------------------------------------- */

/* "same" pads d (k - 1) in all. If that is odd, the kernels pad one too much above and to the left,
 * and the first row or column of y, which comes from it, is cut off. */
static tn_tensor *same_map(tn_tensor *x, tn_tensor *w, tn_tensor *b, const conv_args *given)
{
    conv_args a = *given;
    int64_t extra[2];
    for (int i = 0; i < 2; i++) {
        if (a.stride[i] != 1 || a.padding[i] != 0)
            return tni_fail(TN_E_INVALID,
                            "tn_conv2d: same with stride %" PRId64 ", padding %" PRId64
                            ": want stride 1 and no padding",
                            a.stride[i], a.padding[i]);
        int64_t total;
        if (__builtin_mul_overflow(a.dilation[i], (i ? a.kw : a.kh) - 1, &total) || total < 0)
            total = 0;
        extra[i] = total % 2;
        a.padding[i] = total / 2 + extra[i];
    }
    tn_tensor *y = map(&op_conv2d, x, w, b, &a);
    for (int i = 0; y && i < 2; i++)
        if (extra[i]) y = tn_narrow(y, 2 + i, 1, y->shape.size[2 + i] - 1);
    return y;
}

tn_tensor *tn_conv2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv2d_spec spec)
{
    conv_args a = { .groups = spec.groups ? spec.groups : 1 };
    for (int i = 0; i < 2; i++) {
        a.stride[i] = spec.stride[i] ? spec.stride[i] : 1;
        a.padding[i] = spec.padding[i];
        a.dilation[i] = spec.dilation[i] ? spec.dilation[i] : 1;
    }
    if (x && x->shape.rank >= 3) {
        a.h = x->shape.size[x->shape.rank - 2];
        a.w = x->shape.size[x->shape.rank - 1];
    }
    if (weight && weight->shape.rank == 4) {
        a.kh = weight->shape.size[2];
        a.kw = weight->shape.size[3];
    }
    bool single = x && !tni_none(x) && x->shape.rank == 3;
    if (single) x = tn_unsqueeze(x, 0);
    tn_tensor *y = spec.same ? same_map(x, weight, bias, &a) : map(&op_conv2d, x, weight, bias, &a);
    return single ? tn_squeeze(y, 0) : y;
}
