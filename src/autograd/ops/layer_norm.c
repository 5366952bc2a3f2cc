/*
 * layer_norm.c - y = (x - mean) / sqrt(var + eps) * w + b over the last axes, variance biased.
 *
 * With xh = (x - mean) r, r = 1 / sqrt(var + eps), gw = dy w and means over the F normalised
 * elements: dvar/dx = 2 (x - mean) / F and dr/dvar = -r^3 / 2 give dx = r (gw - mean(gw) - xh
 * mean(gw xh)); dw = dy xh and db = dy, summed over the rows. mean and r are kept. Source: Ba,
 * Kiros, Hinton, Layer Normalization (2016), section 3.
 */
#include "autograd/ops/rows.h"

typedef struct ln_args {
    int n_axes;
    double eps;
} ln_args;

static tn_status ln_shape(tni_call *c)
{
    static const char *const name[] = { "x", "weight", "bias" };
    const ln_args *args = c->args;
    const tn_shape *x = &c->in[0]->shape;
    if (args->n_axes < 1 || args->n_axes > x->rank)
        return tni_op_error(c, TN_E_INVALID, "x %s, n_axes %d: want 1..%d", tni_text(c->in[0]),
                            args->n_axes, x->rank);
    tn_shape want = tn_shape_from(args->n_axes, x->size + x->rank - args->n_axes);
    for (int i = 1; i < 3; i++)
        if (!tni_none(c->in[i]) && !tni_shape_equal(&c->in[i]->shape, &want))
            return tni_op_error(c, TN_E_SHAPE, "x %s, %s %s: want %s %s", tni_text(c->in[0]),
                                name[i], tni_text(c->in[i]), name[i], tni_shape_text(&want));
    tn_shape rows = tn_shape_from(x->rank - args->n_axes, x->size);
    for (int i = 0; i < 2; i++) /* mean and r */
        tni_saves(c, tni_wide_dtype(c->in[0]->dtype), &rows);
    return tni_shape_like_first(c);
}

static tn_status ln_forward(tni_call *c)
{
    const ln_args *args = c->args;
    const tn_tensor *x = c->in[0];
    int lead = x->shape.rank - args->n_axes;
    int64_t n = rows_count(&x->shape, 0, lead);
    int64_t f = rows_count(&x->shape, lead, x->shape.rank);
    tni_layer_norm a = { .y = rows_array(c->out[0], 2, n, f, 0),
                         .mean = rows_array(c->saved[0], 1, n, 0, 0),
                         .rstd = rows_array(c->saved[1], 1, n, 0, 0),
                         .x = rows_array(x, 2, n, f, 0),
                         .weight = rows_array(c->in[1], 1, f, 0, 0),
                         .bias = rows_array(c->in[2], 1, f, 0, 0),
                         .eps = args->eps };
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

static tn_status ln_backward(tni_grad *g)
{
    const ln_args *args = g->args;
    int axes[TN_MAX_RANK];
    int n = args->n_axes;
    for (int i = 0; i < n; i++) axes[i] = i - n;
    if (g->need[2]) g->dx[2] = g->dy;
    if (!g->need[0] && !g->need[1]) return TN_OK;
    tn_status status = tni_widen_grad(g);
    if (status != TN_OK) return status;
    tn_shape row = g->in[0].shape;
    for (int i = row.rank - n; i < row.rank; i++) row.size[i] = 1;
    tn_tensor *centered = tn_sub(g->x[0], tn_mean(g->x[0], axes, n, true));
    tn_tensor *rstd, *xh;
    tni_normalise(centered, tn_reshape(g->saved[1], row), axes, n, args->eps, &xh, &rstd);
    if (g->need[1]) g->dx[1] = tn_mul(g->dy, xh);
    if (g->need[0]) {
        tn_tensor *gw = tni_absent(g->x[1]) ? g->dy : tn_mul(g->dy, g->x[1]);
        g->dx[0] = tn_mul(rstd, tni_centred_slope(gw, xh, axes, n));
    }
    return TN_OK;
}

static tn_status ln_kernel_grad(tni_grad *g)
{
    const ln_args *args = g->args;
    int lead = g->in[0].shape.rank - args->n_axes;
    int64_t n = rows_count(&g->in[0].shape, 0, lead);
    int64_t f = rows_count(&g->in[0].shape, lead, g->in[0].shape.rank);
    tni_layer_norm_grad a = { .dx = rows_array(g->dx[0], 2, n, f, 0),
                              .dweight = rows_array(g->dx[1], 1, f, 0, 0),
                              .dbias = rows_array(g->dx[2], 1, f, 0, 0),
                              .dy = rows_array(g->dy, 2, n, f, 0),
                              .x = rows_array(g->x[0], 2, n, f, 0),
                              .mean = rows_array(g->saved[0], 1, n, 0, 0),
                              .rstd = rows_array(g->saved[1], 1, n, 0, 0),
                              .weight = rows_array(g->x[1], 1, f, 0, 0) };
    return tni_backend_of(g->dy)->layer_norm_grad(&a);
}

static const tn_op layer_norm_op = {
    .name = "layer_norm",
    .formula = "y = (x - mean) / sqrt(var + eps) * w + b over the last axes",
    .gradient = "dx = r (g - mean g - xh mean(g xh)); dw = sum dy xh; db = sum dy; "
                "where g = w dy, r = 1 / sqrt(var + eps), xh = (x - mean) r",
    .arity = 3,
    .optional = TNI_X(1) | TNI_X(2),
    .dtypes = TNI_MIXED_FLOAT,
    .recompute = TNI_RECOMPUTE_LARGE,
    .reads = { TNI_X(0) | TNI_X(1) | TNI_SAVED, TNI_X(0) | TNI_SAVED, 0 },
    .dense = TNI_ALL_X,
    .dense_grad = TNI_X(0) | TNI_X(1) | TNI_DY,
    .shape = ln_shape,
    .forward = ln_forward,
    .backward = ln_backward,
    .kernel_grad = ln_kernel_grad,
};

tn_tensor *tn_layer_norm(tn_tensor *x, int n_axes, tn_tensor *weight, tn_tensor *bias, double eps)
{
    ln_args args = { n_axes, eps };
    tn_tensor *in[3] = { x, weight, bias };
    return tni_apply(&layer_norm_op, &args, sizeof args, 3, in);
}
