/*
 * norm.c - p-norm and log-sum-exp over any axes.
 *
 *   norm       y = (sum |x|^p)^(1/p): dx = dy sign(x) (|x| / y)^(p-1), 0 where y = 0 or x = 0
 *              p = infinity: y = max |x|: as amax of |x|, equal ones share dy
 *   logsumexp  y = m + ln sum e^(x-m), m = max x (0 where that is infinite): dx = dy f e^(x - y),
 *              f = e^(y - m - ln sum e^(x-m)), not 1 where y is rounded: beside a large m it loses
 *              the logarithm
 * Source (logsumexp): Blanchard, Higham and Higham (2021), section 1.
 */
#include "autograd/ops/reduce.h"
#include "autograd/ops/shared.h"

/* y = 0 only where all x are: 1 in its place gives the slope 0. |x|^(p-1) at 0 is 0 for p > 1, and
 * meets sign 0 otherwise: 1 in its place. An even p needs no |x|, which has no slope at 0. */
static tn_tensor *norm_composed(const tni_grad *g, tn_tensor *dy, tn_tensor *y, double p)
{
    tn_tensor *x = g->x[0];
    tn_tensor *safe_y = tn_masked_fill(y, tn_eq_scalar(y, 0.0), 1.0);
    if (p == 2.0) return tn_mul(dy, tn_div(x, safe_y));
    if (p == 1.0) return tn_mul(dy, tni_sign(x));
    if (p < 1e6 && fmod(p, 2.0) == 0.0)
        return tn_mul(dy, tn_pow_scalar(tn_div(x, safe_y), p - 1.0));
    tn_tensor *safe_x = tn_masked_fill(tn_abs(x), tn_eq_scalar(x, 0.0), 1.0);
    return tn_mul(dy, tn_mul(tni_sign(x), tn_pow_scalar(tn_div(safe_x, safe_y), p - 1.0)));
}

static tn_status norm_backward(tni_grad *g)
{
    const tni_reduce_args *args = g->args;
    tn_tensor *dy = tni_with_axes(g, g->dy), *y = tni_with_axes(g, g->y);
    tn_tensor *x = g->x[0];
    if (args->p == INFINITY)
        g->dx[0] = tn_mul(tni_shared_gradient(g, dy, tn_eq(tn_abs(x), y)), tni_sign(x));
    else if (tni_composed())
        g->dx[0] = norm_composed(g, dy, y, args->p);
    else
        g->dx[0] = tni_fused3(TNI_T_norm_grad, dy, x, y, &args->p, g->in, false);
    return TN_OK;
}

TNI_REDUCE_OP(norm, TNI_REDUCE_REAL, "y = (sum |x|^p)^(1/p)", "dx = dy sign(x) (|x| / y)^(p-1)",
              TNI_X(0) | TNI_Y, norm_backward)

tn_tensor *tn_norm(tn_tensor *x, double p, const int *axes, int n_axes, bool keepdim)
{
    if (!(p > 0.0))
        return tni_fail(TN_E_INVALID, "tn_norm: p %g: want p > 0 (INFINITY included)", p);
    return tni_reduce_along(&op_norm, "tn_norm", x, axes, n_axes, keepdim, p);
}

/* ---- divided by the norm --------------------------------------------------------------------- */

tn_tensor *tn_normalize(tn_tensor *x, double p, int axis, double eps)
{
    x = tni_autocast_f32(x);
    if (!tni_present("tn_normalize", "x", x)) return NULL;
    if (!(p > 0) || isnan(eps))
        return tni_fail(TN_E_INVALID, "tn_normalize: p %g, eps %g: want p > 0 and a number", p,
                        eps);
    tn_scope scope = tn_scope_begin();
    tn_tensor *wide = tni_wide(x);
    tn_tensor *norm = tni_reduce_along(&op_norm, "tn_normalize", wide, &axis, 1, true, p);
    tn_tensor *y = tn_div(wide, tn_clamp(norm, eps, INFINITY));
    return tni_scope_return(__func__, scope, tn_to_dtype(y, x->dtype));
}

tn_tensor *tn_cosine_similarity(tn_tensor *a, tn_tensor *b, int axis, double eps)
{
    tn_shape both;
    a = tni_autocast_f32(a);
    b = tni_autocast_f32(b);
    if (!tni_present(__func__, "a", a) || !tni_present(__func__, "b", b)) return NULL;
    if (a->dtype != b->dtype || !tn_dtype_is_float(a->dtype))
        return tni_fail(TN_E_DTYPE, "%s: a is %s, b is %s: want one floating dtype", __func__,
                        tn_dtype_name(a->dtype), tn_dtype_name(b->dtype));
    if (!tni_broadcast(&a->shape, &b->shape, &both))
        return tni_fail(TN_E_SHAPE, "%s: a %s, b %s: do not broadcast", __func__, tni_text(a),
                        tni_text(b));
    tn_scope scope = tn_scope_begin();
    tn_tensor *unit[2] = { tni_wide(a), tni_wide(b) };
    for (int i = 0; i < 2; i++) {
        tn_tensor *x = tn_expand(unit[i], both);
        tn_tensor *norm = x ? tni_reduce_along(&op_norm, __func__, x, &axis, 1, true, 2) : NULL;
        unit[i] = tn_div(x, tni_raised(norm, eps));
    }
    tn_tensor *y = tn_sum(tn_mul(unit[0], unit[1]), &axis, 1, false);
    return tni_scope_return(__func__, scope, tn_to_dtype(y, a->dtype));
}

/* ---- logsumexp ------------------------------------------------------------------------------- */

static tn_status logsumexp_shape(tni_call *c)
{
    tn_status status = tni_reduce_shape(c);
    const tni_spec *y = c->out_spec;
    if (c->recorded) tni_saves(c, tni_wide_dtype(y->dtype), &y->shape); /* f */
    return status;
}

static tn_status logsumexp_backward(tni_grad *g)
{
    tn_tensor *dy = tni_with_axes(g, tn_mul(g->dy, g->saved[0]));
    tn_tensor *y = tni_with_axes(g, g->y);
    g->dx[0] = tni_composed()
                   ? tn_mul(dy, tn_exp(tn_sub(g->x[0], y)))
                   : tni_fused3(TNI_T_exp_diff_grad, dy, g->x[0], y, NULL, &g->in[0], false);
    return TN_OK;
}

TNI_REDUCE_OP_BY(logsumexp, TNI_R_logsumexp, TNI_REDUCE_REAL, TNI_CAST_F32, "y = ln sum e^x",
                 "dx = dy e^(x-y)", TNI_X(0) | TNI_Y | TNI_SAVED, logsumexp_shape,
                 tni_reduce_forward, logsumexp_backward)
TNI_REDUCTION(tn_logsumexp, logsumexp)
