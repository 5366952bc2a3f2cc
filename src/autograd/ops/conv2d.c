/*
 * conv2d.c - cross-correlation over one and two axes, and the two linear maps that are its
 * gradients, one of which is the transposed convolution. One axis is an image of height 1.
 *
 *     y[n,o,i,j] = b[o] + sum_crs w[o,c,r,s] x[n,c, i*stride + r*dilation - padding, j*...]
 * y is linear in x and in w. Write y = F(x, w), dx = I(dy, w), dw = W(dy, x): each is linear in
 * both of its arguments, and each one's gradients are the other two:
 *     I:  d/d(dy) = F(g, w)     d/dw = W(dy, g)      g: what flows into dx
 *     W:  d/d(dy) = F(x, g)     d/dx = I(dy, g)      g: what flows into dw
 * so derivatives of any order exist. The transposed convolution of x is I(x, w), plus b. Source:
 * Dumoulin and Visin, A guide to convolution arithmetic (2016).
 */
#include <limits.h>

#include "autograd/ops/conv.h"
#include "tensor/formulas.h"

static const tn_op op_conv_grad_input, op_conv_grad_weight; /* I, W */

static tn_tensor *map(const tn_op *op, tn_tensor *first, tn_tensor *second, const conv_args *a)
{
    return tni_apply(op, a, sizeof *a, op->arity, (tn_tensor *[]){ first, second, TN_NONE });
}

static tn_shape images(const conv_args *a, int64_t n, int64_t channels, int64_t h, int64_t w)
{
    return a->axes == 1 ? TN_SHAPE(n, channels, w) : TN_SHAPE(n, channels, h, w);
}

static tni_conv2d_sizes sizes_for(const conv_args *a, int64_t channels, const tn_shape *y)
{
    tni_conv2d_sizes s = a->of;
    s.n = y->size[0];
    s.c = channels;
    s.o = y->size[1];
    s.oh = conv_side(y, 0);
    s.ow = conv_side(y, 1);
    return s;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* For the message: the product of groups and weight's size along axis 1. */
static int64_t channels_for(const tn_tensor *w, int64_t groups)
{
    int64_t channels;
    return __builtin_mul_overflow(w->shape.size[1], groups, &channels) ? INT64_MAX : channels;
}

static tn_status check_bias(const char *name, const tn_tensor *w, const tn_tensor *b, int64_t o)
{
    if (tni_none(b) || (b->shape.rank == 1 && b->shape.size[0] == o)) return TN_OK;
    return tni_error(TN_E_SHAPE, "tn_%s: weight %s, bias %s: want bias [%" PRId64 "]", name,
                     tni_text(w), tni_text(b), o);
}

static tn_status check_ranks(const char *name, const tn_tensor *x, const tn_tensor *w, int64_t axes,
                             const char *weight)
{
    static const char *const sizes[] = { "L", "H,W", "D,H,W" }, *const taps[] = { "k", "kh,kw",
                                                                                  "kd,kh,kw" };
    if (x->shape.rank == axes + 2 && w->shape.rank == axes + 2) return TN_OK;
    return tni_error(
        TN_E_SHAPE, "tn_%s: x %s, weight %s: want x [N,C,%s] or [C,%s] and weight [%s,%s]", name,
        tni_text(x), tni_text(w), sizes[axes - 1], sizes[axes - 1], weight, taps[axes - 1]);
}

tn_status tni_conv_operands(const char *name, const tn_tensor *x, const tn_tensor *w,
                            const tn_tensor *b, int64_t axes, int64_t groups)
{
    tn_status status = check_ranks(name, x, w, axes, "O,C/groups");
    if (status != TN_OK) return status;
    if (w->shape.size[0] % groups || x->shape.size[1] % groups ||
        x->shape.size[1] / groups != w->shape.size[1])
        return tni_error(TN_E_SHAPE,
                         "tn_%s: x %s, weight %s, groups %" PRId64 ": want %" PRId64
                         " channels in x, and weight's %" PRId64 " divisible by groups",
                         name, tni_text(x), tni_text(w), groups, channels_for(w, groups),
                         w->shape.size[0]);
    return check_bias(name, w, b, w->shape.size[0]);
}

/* All within int: no overflow. */
tn_status tni_conv_fits(const char *name, const tn_tensor *x, const tn_tensor *w, int i,
                        const conv_axis *a, int64_t *out)
{
    int64_t size = x->shape.size[2 + i], kernel = w->shape.size[2 + i];
    bool known = size <= INT_MAX && kernel >= 1 && kernel <= INT_MAX;
    int64_t reach = known ? size + a->before + a->after - a->dilation * (kernel - 1) - 1 : -1;
    *out = reach / a->stride + 1;
    if (reach >= 0) return TN_OK;
    return tni_error(TN_E_SHAPE,
                     "tn_%s: x %s, weight %s, padding %" PRId64 ", dilation %" PRId64
                     ": the kernel must fit into the padded image",
                     name, tni_text(x), tni_text(w), a->before, a->dilation);
}

/* ---- F: the convolution ---------------------------------------------------------------------- */

static tn_status conv_shape(tni_call *c)
{
    const conv_args *a = c->args;
    const tn_tensor *x = c->in[0], *w = c->in[1];
    tn_status status = tni_conv_operands(c->op->name, x, w, c->in[2], a->axes, a->of.groups);
    if (status != TN_OK) return status;
    tn_shape *y = &c->out_spec[0].shape;
    *y = (tn_shape){ x->shape.rank, { x->shape.size[0], w->shape.size[0] } };
    for (int i = 0; i < a->axes; i++) {
        int k = 2 - (int)a->axes + i;
        conv_axis along = { a->of.stride[k], a->of.dilation[k], a->of.padding[k], a->after[k] };
        status = tni_conv_fits(c->op->name, x, w, i, &along, &y->size[2 + i]);
        if (status != TN_OK) return status;
    }
    c->out_spec[0].dtype = x->dtype;
    return TN_OK;
}

static tn_status conv_forward(tni_call *c)
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

/* The sum over all axes but channels. */
static tn_tensor *bias_slope(const tni_grad *g)
{
    return tn_sum(g->dy, (int[]){ 0, 2, 3 }, g->dy->shape.rank - 1, false);
}

static tn_status conv_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = map(&op_conv_grad_input, g->dy, g->x[1], g->args);
    if (g->need[1]) g->dx[1] = map(&op_conv_grad_weight, g->dy, g->x[0], g->args);
    if (g->need[2]) g->dx[2] = bias_slope(g);
    return TN_OK;
}

/* ---- I and W: the gradients of image and weight ---------------------------------------------- */

/* Inputs: dy, and of I the weight, of W the image. */
static tn_status grad_shape(tni_call *c)
{
    const conv_args *a = c->args;
    const tni_conv2d_sizes *of = &a->of;
    const tn_shape *dy = &c->in[0]->shape, *other = &c->in[1]->shape;
    tn_shape dx = c->op == &op_conv_grad_input
                      ? images(a, dy->size[0], other->size[1] * of->groups, of->h, of->w)
                      : images(a, dy->size[1], other->size[1] / of->groups, of->kh, of->kw);
    return tni_result(c, c->in[0]->dtype, &dx);
}

/* Also of the transposed convolution, which has a bias. */
static tn_status grad_backward(tni_grad *g)
{
    const conv_args *a = g->args;
    bool image = g->op != &op_conv_grad_weight;
    tn_tensor *x = image ? g->dy : g->x[1], *w = image ? g->x[1] : g->dy;
    const tn_op *other = image ? &op_conv_grad_weight : &op_conv_grad_input;
    if (g->need[0]) g->dx[0] = map(&tni_conv_ops[a->axes - 1], x, w, a);
    if (g->need[1]) g->dx[1] = map(other, g->x[0], g->dy, a);
    if (g->n_in > 2 && g->need[2]) g->dx[2] = bias_slope(g);
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
    const tn_tensor *dy = c->in[0];
    const tn_tensor *x = c->in[1];
    tni_conv2d_grad_weight a = { .dw = tni_array_of(c->out[0]),
                                 .dy = tni_array_of(dy),
                                 .x = tni_array_of(x),
                                 .sizes = sizes_for(c->args, x->shape.size[1], &dy->shape) };
    return tni_backend_of(dy)->conv2d_grad_weight(&a);
}

/* ---- the transposed convolution: I of x ------------------------------------------------------ */

static tn_status transpose_shape(tni_call *c)
{
    const conv_args *a = c->args;
    const tn_tensor *x = c->in[0], *w = c->in[1];
    const char *name = c->op->name;
    int64_t groups = a->of.groups;
    tn_status status = check_ranks(name, x, w, a->axes, "C,O/groups");
    if (status != TN_OK) return status;
    if (x->shape.size[1] != w->shape.size[0] || w->shape.size[0] % groups)
        return tni_error(TN_E_SHAPE,
                         "tn_%s: x %s, weight %s, groups %" PRId64 ": want %" PRId64
                         " channels in x, divisible by groups",
                         name, tni_text(x), tni_text(w), groups, w->shape.size[0]);
    status = check_bias(name, w, c->in[2], channels_for(w, groups));
    if (status != TN_OK) return status;
    if (a->of.h < 1 || a->of.w < 1)
        return tni_error(TN_E_SHAPE,
                         "tn_%s: x %s, weight %s: want an image and a kernel, and a result, of 1 "
                         "to %d along each axis",
                         name, tni_text(x), tni_text(w), INT_MAX);
    tn_shape y = images(a, x->shape.size[0], channels_for(w, groups), a->of.h, a->of.w);
    return tni_result(c, x->dtype, &y);
}

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

#define CONV(name_, part_, formula_, gradient_)                                                    \
    {                                                                                              \
        .name = name_, .formula = formula_, .gradient = gradient_, .arity = 3,                     \
        .optional = TNI_X(2), .dtypes = TNI_ONE_FLOAT, .autocast = TNI_CAST_LOW,                   \
        .reads = { TNI_X(1), TNI_X(0), 0 }, .dense = TNI_ALL_X, .shape = part_##_shape,            \
        .forward = part_##_forward, .backward = part_##_backward,                                  \
    }
#define transpose_backward grad_backward

const tn_op tni_conv_ops[2] = {
    CONV("conv1d", conv, "y[n,o,i] = b[o] + sum_cr w[o,c,r] x[n,c,i*stride+r*dilation-padding]",
         "dx[n,c,..] = sum_or w[o,c,r] dy[n,o,..]; dw[o,c,r] = sum_ni dy[n,o,i] x[n,c,..]; "
         "db[o] = sum_ni dy[n,o,i]"),
    CONV("conv2d", conv,
         "y[n,o,i,j] = b[o] + sum_crs w[o,c,r,s] x[n,c,i*stride+r*dilation-padding,...]",
         "dx[n,c,..] = sum_ors w[o,c,r,s] dy[n,o,..]; dw[o,c,r,s] = sum_nij dy[n,o,i,j] x[n,c,..]; "
         "db[o] = sum_nij dy[n,o,i,j]"),
};

const tn_op tni_conv_transpose_ops[2] = {
    CONV("conv_transpose1d", transpose,
         "y[n,o,i*stride+r*dilation-padding] = b[o] + sum_cr w[c,o,r] x[n,c,i]",
         "dx[n,c,i] = sum_or w[c,o,r] dy[n,o,..]; dw[c,o,r] = sum_ni x[n,c,i] dy[n,o,..]; "
         "db[o] = sum_n.. dy[n,o,..]"),
    CONV(
        "conv_transpose2d", transpose,
        "y[n,o,i*stride+r*dilation-padding,...] = b[o] + sum_crs w[c,o,r,s] x[n,c,i,j]",
        "dx[n,c,i,j] = sum_ors w[c,o,r,s] dy[n,o,..]; dw[c,o,r,s] = sum_nij x[n,c,i,j] dy[n,o,..]; "
        "db[o] = sum_n.. dy[n,o,..]"),
};

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
GRADIENT(conv_grad_input, "dx[n,c,..] = sum_ors w[o,c,r,s] dy[n,o,..]",
         "ddy = conv(g, w); dw[o,c,r,s] = sum_nij dy[n,o,i,j] g[n,c,..]; "
         "where g is the gradient of dx")
GRADIENT(conv_grad_weight, "dw[o,c,r,s] = sum_nij dy[n,o,i,j] x[n,c,..]",
         "ddy = conv(x, g); dx[n,c,..] = sum_ors g[o,c,r,s] dy[n,o,..]; "
         "where g is the gradient of dw")
