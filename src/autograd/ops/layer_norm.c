/*
 * layer_norm.c - y = (x - mean) / sqrt(var + eps) * w + b over the last axes, variance biased; the
 * same without mean and b (RMSNorm); and over groups of channels, with w and b per channel.
 *
 * With xh = (x - mean) r, r = 1 / sqrt(var + eps), gw = dy w and means over the F normalised
 * elements: dvar/dx = 2 (x - mean) / F and dr/dvar = -r^3 / 2 give dx = r (gw - mean(gw) - xh
 * mean(gw xh)); dw = dy xh and db = dy, summed over what shares them. mean and r are kept. A mean
 * of 0 takes the terms of mean(gw) and mean(x) away.
 *
 * Sources: Ba, Kiros, Hinton, Layer Normalization (2016), section 3; Zhang and Sennrich, Root Mean
 * Square Layer Normalization (2019), eq. 4; Wu and He, Group Normalization (2018), eq. 1 to 3.
 */
#include <float.h>

#include "autograd/ops/shared.h"

typedef struct ln_args {
    int n_axes, groups; /* of group norm n_axes, of the others groups is 0 */
    bool rms;
    double eps;
} ln_args;

/* Of weight and bias, which want that shape, and rows with a mean and r each. */
static tn_status norm_shape(tni_call *c, tn_shape want, tn_shape rows)
{
    static const char *const name[] = { "x", "weight", "bias" };
    for (int i = 1; i < c->n_in; i++)
        if (!tni_none(c->in[i]) && !tni_shape_equal(&c->in[i]->shape, &want))
            return tni_op_error(c, TN_E_SHAPE, "x %s, %s %s: want %s %s", tni_text(c->in[0]),
                                name[i], tni_text(c->in[i]), name[i], tni_shape_text(&want));
    for (int i = ((const ln_args *)c->args)->rms; i < 2; i++) /* r, mean */
        tni_saves(c, tni_wide_dtype(c->in[0]->dtype), &rows);
    return tni_shape_like_first(c);
}

static tn_status ln_shape(tni_call *c)
{
    const int n = ((const ln_args *)c->args)->n_axes;
    const tn_shape *x = &c->in[0]->shape;
    if (n < 1 || n > x->rank)
        return tni_op_error(c, TN_E_INVALID, "x %s, n_axes %d: want 1..%d", tni_text(c->in[0]), n,
                            x->rank);
    return norm_shape(c, tn_shape_from(n, x->size + x->rank - n),
                      tn_shape_from(x->rank - n, x->size));
}

static tn_status gn_shape(tni_call *c)
{
    const int groups = ((const ln_args *)c->args)->groups;
    const tn_shape *x = &c->in[0]->shape;
    if (x->rank < 2) return tni_op_error(c, TN_E_SHAPE, "x %s: want [N,C,...]", tni_text(c->in[0]));
    if (groups < 1 || x->size[1] < 1 || x->size[1] % groups != 0)
        return tni_op_error(c, TN_E_INVALID, "x %s, %d groups: want groups that divide C > 0",
                            tni_text(c->in[0]), groups);
    return norm_shape(c, TN_SHAPE(x->size[1]), TN_SHAPE(x->size[0], groups));
}

/* x as the kernels take it. */
typedef struct ln_sizes {
    int64_t n, f, parameters; /* parameters: elements of weight */
    int parts;                /* means of each of the n */
    tni_norm_rows rows;
} ln_sizes;

static ln_sizes sizes_of(const ln_args *args, const tn_shape *x)
{
    int lead = args->groups ? 1 : x->rank - args->n_axes;
    int64_t f = rows_count(x, lead, x->rank), channels = args->groups ? x->size[1] : f;
    return (ln_sizes){ .n = rows_count(x, 0, lead),
                       .f = f,
                       .parameters = channels,
                       .parts = TNI_MAX(args->groups, 1),
                       .rows = { args->groups, args->groups ? channels : 0, args->rms } };
}

static tn_status ln_forward(tni_call *c)
{
    const ln_args *args = c->args;
    const tn_tensor *x = c->in[0];
    const ln_sizes s = sizes_of(args, &x->shape);
    if (args->groups && s.f == 0) return TN_OK; /* rows without elements */
    tn_tensor *mean = args->rms ? NULL : c->saved[1];
    tni_layer_norm a = { .y = rows_array(c->out[0], 2, s.n, s.f, 0),
                         .mean = rows_array(mean, 2, s.n, s.parts, 0),
                         .rstd = rows_array(c->saved[0], 2, s.n, s.parts, 0),
                         .x = rows_array(x, 2, s.n, s.f, 0),
                         .weight = rows_array(c->in[1], 1, s.parameters, 0, 0),
                         .bias = rows_array(args->rms ? NULL : c->in[2], 1, s.parameters, 0, 0),
                         .eps = args->eps,
                         .rows = s.rows };
    return tni_backend_of(x)->layer_norm(&a);
}

void tni_normalise(tn_tensor *centered, tn_tensor *known, const int *axes, int n_axes, double eps,
                   tn_tensor **xh, tn_tensor **rstd)
{
    tn_tensor *near_one = tn_mul(centered, known);
    tn_tensor *var = tn_mean(tn_square(near_one), axes, n_axes, true);
    tn_tensor *more = tn_square(tn_mul_scalar(known, sqrt(fabs(eps))));
    tn_tensor *inverse = tn_rsqrt(eps < 0 ? tn_sub(var, more) : tn_add(var, more));
    *xh = tn_mul(near_one, inverse);
    *rstd = tn_mul(known, inverse);
}

tn_tensor *tni_centred_slope(tn_tensor *g, tn_tensor *xh, const int *axes, int n_axes)
{
    tn_tensor *slope = tn_mul(xh, tn_mean(tn_mul(g, xh), axes, n_axes, true));
    return tn_sub(tn_sub(g, tn_mean(g, axes, n_axes, true)), slope);
}

/* As [n, groups, channels of a group, plane]: layer norm has one group of F planes of 1 element. A
 * weight has n and plane 1. */
static tn_tensor *in_rows(tn_tensor *x, const ln_sizes *s, bool weight)
{
    int64_t plane = s->parameters ? s->f / s->parameters : 0;
    return tn_reshape(
        x, TN_SHAPE(weight ? 1 : s->n, s->parts, s->parameters / s->parts, weight ? 1 : plane));
}

/* The gradient of a weight or bias of that shape. */
static tn_tensor *summed(tn_tensor *x, const tn_shape *shape)
{
    return tn_reshape(tn_sum(x, (int[]){ 0, 3 }, 2, false), *shape);
}

static tn_status ln_backward(tni_grad *g)
{
    const ln_args *args = g->args;
    const tn_shape *shape = &g->in[0].shape;
    const ln_sizes s = sizes_of(args, shape);
    TNI_TRY(tni_widen_grad(g));
    tn_tensor *dy = in_rows(g->dy, &s, false);
    if (!args->rms && g->need[2]) g->dx[2] = summed(dy, &g->in[2].shape);
    if (!g->need[0] && !g->need[1]) return TN_OK;
    int axes[] = { 2, 3 };
    tn_tensor *x = in_rows(g->x[0], &s, false), *rstd, *xh;
    if (!args->rms) x = tn_sub(x, tn_mean(x, axes, 2, true));
    tn_tensor *known = tn_reshape(g->saved[0], TN_SHAPE(s.n, s.parts, 1, 1));
    if (args->rms) known = tn_masked_fill(known, tn_eq_scalar(known, 0), 1); /* infinite rows */
    tni_normalise(x, known, axes, 2, args->eps, &xh, &rstd);
    if (g->need[1]) g->dx[1] = summed(tn_mul(dy, xh), &g->in[1].shape);
    if (g->need[0]) {
        tn_tensor *gw = tni_absent(g->x[1]) ? dy : tn_mul(dy, in_rows(g->x[1], &s, true));
        tn_tensor *slope = args->rms
                               ? tn_sub(gw, tn_mul(xh, tn_mean(tn_mul(gw, xh), axes, 2, true)))
                               : tni_centred_slope(gw, xh, axes, 2);
        g->dx[0] = tn_reshape(tn_mul(rstd, slope), *shape);
    }
    return TN_OK;
}

static tn_status ln_kernel_grad(tni_grad *g)
{
    const ln_args *args = g->args;
    const ln_sizes s = sizes_of(args, &g->in[0].shape);
    const int64_t n = args->groups && s.f == 0 ? 0 : s.n;
    tni_layer_norm_grad a = { .dx = rows_array(g->dx[0], 2, n, s.f, 0),
                              .dweight = rows_array(g->dx[1], 1, s.parameters, 0, 0),
                              .dbias =
                                  rows_array(args->rms ? NULL : g->dx[2], 1, s.parameters, 0, 0),
                              .dy = rows_array(g->dy, 2, n, s.f, 0),
                              .x = rows_array(g->x[0], 2, n, s.f, 0),
                              .mean =
                                  rows_array(args->rms ? NULL : g->saved[1], 2, s.n, s.parts, 0),
                              .rstd = rows_array(g->saved[0], 2, s.n, s.parts, 0),
                              .weight = rows_array(g->x[1], 1, s.parameters, 0, 0),
                              .rows = s.rows,
                              .add = g->adds };
    return tni_backend_of(g->dy)->layer_norm_grad(&a);
}

#define NORM_OP(op, shape_, arity_, optional_, formula_, gradient_)                                \
    TNI_OP(op, arity_, formula_, gradient_, shape_, ln_forward, ln_backward,                       \
           .optional = optional_, .dtypes = TNI_MIXED_FLOAT, .recompute = TNI_RECOMPUTE_LARGE,     \
           .reads = { TNI_X(0) | TNI_X(1) | TNI_SAVED, TNI_X(0) | TNI_SAVED, 0 },                  \
           .dense = TNI_ALL_X, .dense_grad = TNI_X(0) | TNI_X(1) | TNI_DY,                         \
           .kernel_grad = ln_kernel_grad, .takes_low = true, .adds = true, .constants = "eps",     \
           .constants_at = offsetof(ln_args, eps))
NORM_OP(layer_norm, ln_shape, 3, TNI_X(1) | TNI_X(2),
        "y = (x - mean) / sqrt(var + eps) * w + b over the last axes",
        "dx = r (g - mean g - xh mean(g xh)); dw = sum dy xh; db = sum dy; "
        "where g = w dy, r = 1 / sqrt(var + eps), xh = (x - mean) r")
NORM_OP(rms_norm, ln_shape, 2, TNI_X(1), "y = x / sqrt(mean x^2 + eps) * w over the last axes",
        "dx = r (g - xh mean(g xh)); dw = sum dy xh; "
        "where g = w dy, r = 1 / sqrt(mean x^2 + eps), xh = x r")
NORM_OP(group_norm, gn_shape, 3, TNI_X(1) | TNI_X(2),
        "y = (x - mean) / sqrt(var + eps) * w + b, mean and var of each group of channels",
        "dx = r (g - mean g - xh mean(g xh)); dw = sum dy xh; db = sum dy; "
        "where g = w dy, r = 1 / sqrt(var + eps), xh = (x - mean) r")

tn_tensor *tn_layer_norm(tn_tensor *x, int n_axes, tn_tensor *weight, tn_tensor *bias, double eps)
{
    ln_args args = { .n_axes = n_axes, .eps = eps };
    return tni_apply(&op_layer_norm, &args, sizeof args, 3, (tn_tensor *[]){ x, weight, bias });
}

tn_tensor *tn_rms_norm(tn_tensor *x, int n_axes, tn_tensor *weight, double eps)
{
    TNI_HOLD_TRAPS;
    if (!x) return tni_poisoned("tn_rms_norm", "x");
    if (eps < 0) eps = x->dtype == TN_F64 ? DBL_EPSILON : FLT_EPSILON;
    ln_args args = { .n_axes = n_axes, .rms = true, .eps = eps };
    return tni_apply(&op_rms_norm, &args, sizeof args, 2, (tn_tensor *[]){ x, weight });
}

tn_tensor *tn_group_norm(tn_tensor *x, int groups, tn_tensor *weight, tn_tensor *bias, double eps)
{
    ln_args args = { .groups = groups, .eps = eps };
    return tni_apply(&op_group_norm, &args, sizeof args, 3, (tn_tensor *[]){ x, weight, bias });
}
