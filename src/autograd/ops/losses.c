/*
 * losses.c - losses of elements, composed of other ops: their gradients, first and second, come
 * from those. bf16 and f16 become f32 first, and only the loss is rounded.
 *
 * Each formula is written so that no branch has a kink where the function has none, and nothing
 * cancels:
 *   huber(k)   m (d - m / 2) with d = x - t, m = clamp(d, -k, k): d^2 / 2 inside, k (|d| - k / 2)
 *              outside; Huber (1964), section 4
 *   smooth_l1  huber(b) / b; Girshick, Fast R-CNN (2015), eq. 3
 *   bce        -t w log sigmoid(x) - (1 - t) log(1 - sigmoid(x)), which is with p = (x > 0)
 *              (p - t) x + softplus(-|x|) - (w - 1) t log sigmoid(x): also outside [0, 1], where
 *              t w softplus(-x) + (1 - t) softplus(x) would subtract large numbers
 *   kl_div     t (log t - log_p), 0 where t is 0, NaN where it is negative or NaN; Kullback and
 *              Leibler (1951)
 *   stirling   t log t - t + log(2 pi t) / 2, which is near log t!, above 1; else 0
 *   triplet    max(margin + |a - p + eps| - |a - n + eps|, 0)
 *
 * bce_with_logits is an op of its own, since small models take it often. So is bce_loss: PyTorch
 * cuts its logarithms at -100, but not their slopes, whose divisor p (1 - p) is at least 1e-12.
 */
#include "autograd/ops/elementwise.h"
#include "autograd/ops/shared.h"

tn_tensor *tni_reduce_loss(const char *function, tn_tensor *rows, tn_reduction reduction,
                           tn_dtype dtype)
{
    switch (reduction) {
    case TN_MEAN: return tn_to_dtype(tn_mean_all(rows), dtype);
    case TN_SUM: return tn_to_dtype(tn_sum_all(rows), dtype);
    case TN_NO_REDUCTION: return tn_to_dtype(rows, dtype);
    }
    return tni_fail(TN_E_INVALID, "%s: reduction %d: want TN_MEAN, TN_SUM or TN_NO_REDUCTION",
                    function, (int)reduction);
}

tn_tensor *tni_ignored_rows(tn_tensor *target, int64_t ignore)
{
    tn_tensor *ignored = tn_eq_scalar(target, -100.0);
    if (ignore == -100) return ignored;
    return tn_logical_or(ignored, tn_eq_scalar(target, (double)ignore));
}

/* Whether two floating tensors have one shape and dtype, by their names in messages; inside
 * tn_set_autocast they become f32. */
static bool is_pair_of(const char *function, const char *a, tn_tensor **pa, const char *b,
                       tn_tensor **pb)
{
    const tn_tensor *x = *pa = tni_autocast_f32(*pa), *y = *pb = tni_autocast_f32(*pb);
    if (!tni_present(function, a, x) || !tni_present(function, b, y)) return false;
    if (!tni_shape_equal(&x->shape, &y->shape))
        return tni_false(tni_error(TN_E_SHAPE, "%s: %s %s, %s %s: want equal shapes", function, a,
                                   tni_text(x), b, tni_text(y)));
    if (x->dtype != y->dtype || !tn_dtype_is_float(x->dtype))
        return tni_false(tni_error(TN_E_DTYPE, "%s: %s is %s, %s is %s: want one floating dtype",
                                   function, a, tn_dtype_name(x->dtype), b,
                                   tn_dtype_name(y->dtype)));
    return true;
}

/* Whether w is TN_NONE, or broadcasts to x and has its dtype; inside tn_set_autocast as above. */
static bool is_beside(const char *function, const char *name, tn_tensor **pw, const tn_tensor *x)
{
    if (!*pw) return tni_poisoned_optional(function, name) != NULL;
    const tn_tensor *w = *pw = tni_autocast_f32(*pw);
    if (!w || tni_none(w)) return w != NULL;
    if (!tni_broadcasts_to(&w->shape, &x->shape))
        return tni_false(tni_error(TN_E_SHAPE, "%s: x %s, %s %s: want %s to broadcast to x",
                                   function, tni_text(x), name, tni_text(w), name));
    if (w->dtype != x->dtype)
        return tni_false(tni_error(TN_E_DTYPE, "%s: x is %s, %s is %s: want one dtype", function,
                                   tn_dtype_name(x->dtype), name, tn_dtype_name(w->dtype)));
    return true;
}

static bool is_pair(const char *function, tn_tensor **x, tn_tensor **target)
{
    return is_pair_of(function, "x", x, "target", target);
}

/* of(x - target) */
static tn_tensor *difference(const char *function, tn_tensor *x, tn_tensor *target,
                             tn_tensor *(*of)(tn_tensor *d), tn_reduction reduction)
{
    if (!is_pair(function, &x, &target)) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows = of(tn_sub(tni_wide(x), tni_wide(target)));
    return tni_scope_return(function, scope, tni_reduce_loss(function, rows, reduction, x->dtype));
}

#define OF_DIFFERENCE(tn_name, of)                                                                 \
    tn_tensor *tn_name(tn_tensor *x, tn_tensor *target, tn_reduction reduction)                    \
    {                                                                                              \
        return difference(#tn_name, x, target, of, reduction);                                     \
    }
OF_DIFFERENCE(tn_mse_loss, tn_square)
OF_DIFFERENCE(tn_l1_loss, tn_abs)

/* scale m (d - m / 2), m = clamp(d, -k, k) */
static tn_tensor *huber(const char *function, tn_tensor *x, tn_tensor *target, double k,
                        double scale, tn_reduction reduction)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *d = tn_sub(tni_wide(x), tni_wide(target));
    tn_tensor *m = tn_clamp(d, -k, k);
    tn_tensor *rows = tn_mul(m, tn_sub(d, tn_mul_scalar(m, 0.5)));
    if (scale != 1.0) rows = tn_mul_scalar(rows, scale);
    return tni_scope_return(function, scope, tni_reduce_loss(function, rows, reduction, x->dtype));
}

tn_tensor *tn_smooth_l1_loss(tn_tensor *x, tn_tensor *target, double beta, tn_reduction reduction)
{
    TNI_HOLD_TRAPS;
    if (!is_pair("tn_smooth_l1_loss", &x, &target)) return NULL;
    if (!(beta >= 0) || isinf(beta))
        return tni_fail(TN_E_INVALID, "tn_smooth_l1_loss: beta %g: want a finite number >= 0",
                        beta);
    if (beta == 0) return tn_l1_loss(x, target, reduction);
    return huber("tn_smooth_l1_loss", x, target, beta, 1.0 / beta, reduction);
}

tn_tensor *tn_huber_loss(tn_tensor *x, tn_tensor *target, double delta, tn_reduction reduction)
{
    if (!is_pair("tn_huber_loss", &x, &target)) return NULL;
    if (!(delta > 0))
        return tni_fail(TN_E_INVALID, "tn_huber_loss: delta %g: want more than 0", delta);
    return huber("tn_huber_loss", x, target, delta, 1.0, reduction);
}

static tn_status bce_with_logits_forward(tni_call *c)
{
    tn_tensor *x = c->in[0], *y = c->out[0];
    const tni_meta like = { y->shape, y->dtype, false };
    const tni_unary rest = { TNI_U_bce_rest, tni_array_of(y), tni_array_of(x), NULL };
    tn_tensor *lead = tni_fused3(TNI_T_bce_lead, x, x, c->in[1], NULL, &like, false);
    if (!lead) return tni_pending();
    TNI_TRY(tni_backend_of(x)->unary(&rest));
    return tni_run_binary(TNI_B_add, y, y, lead, NULL);
}

static tn_status bce_with_logits_backward(tni_grad *g)
{
    tn_tensor *x = g->x[0], *t = g->x[1], *dy = g->dy;
    if (g->need[0] && tni_composed())
        g->dx[0] = tn_mul(dy, tn_sub(tn_sigmoid(x), t));
    else if (g->need[0])
        g->dx[0] = tni_fused2(TNI_B_add, tni_fused3(TNI_T_bce_lead, dy, x, t, NULL, g->out, false),
                              tni_fused2(TNI_B_bce_rest_grad, dy, x, NULL, g->out, false), NULL,
                              g->out, true);
    if (g->need[1]) g->dx[1] = tn_neg(tn_mul(dy, x));
    return TN_OK;
}

TNI_OP(bce_with_logits, 2, "y = (p - t) x + ln(1 + e^-|x|), p = x > 0",
       "dx = dy (sigmoid(x) - t); dt = -dy x", tni_shape_like_first, bce_with_logits_forward,
       bce_with_logits_backward, .reads = { TNI_X(0) | TNI_X(1), TNI_X(0) })

tn_tensor *tn_bce_with_logits(tn_tensor *x, tn_tensor *target, tn_tensor *pos_weight,
                              tn_reduction reduction)
{
    if (!is_pair(__func__, &x, &target) || !is_beside(__func__, "pos_weight", &pos_weight, x))
        return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *in[2] = { tni_wide(x), tni_wide(target) }, *w = tni_wide(pos_weight);
    tn_tensor *rows = tni_apply(&op_bce_with_logits, NULL, 0, 2, in);
    if (!tni_none(pos_weight))
        rows = tn_sub(rows, tn_mul(tn_mul(in[1], tn_add_scalar(w, -1)), tn_logsigmoid(in[0])));
    return tni_scope_return(__func__, scope, tni_reduce_loss(__func__, rows, reduction, x->dtype));
}

tn_tensor *tn_kl_div(tn_tensor *log_p, tn_tensor *target, bool log_target, bool batch_mean,
                     tn_reduction reduction)
{
    if (!is_pair("tn_kl_div", &log_p, &target)) return NULL;
    if (batch_mean && log_p->shape.rank == 0)
        return tni_fail(TN_E_SHAPE, "tn_kl_div: log_p [] with batch_mean: want a batch axis");
    tn_scope scope = tn_scope_begin();
    tn_dtype dtype = log_p->dtype;
    int64_t batch = batch_mean ? log_p->shape.size[0] : 1;
    log_p = tni_wide(log_p);
    target = tni_wide(target);
    tn_tensor *rows;
    if (log_target) {
        rows = tn_mul(tn_exp(target), tn_sub(target, log_p));
    } else {
        /* where t = 0 both become 1 (log_p 0): 1 (log 1 - 0) = 0, and no gradient */
        tn_tensor *none = tn_eq_scalar(target, 0);
        tn_tensor *t = tn_masked_fill(target, none, 1);
        rows = tn_mul(t, tn_sub(tn_log(t), tn_masked_fill(log_p, none, 0)));
    }
    tn_tensor *loss = batch_mean
                          ? tn_to_dtype(tn_div_scalar(tn_sum_all(rows), (double)batch), dtype)
                          : tni_reduce_loss(__func__, rows, reduction, dtype);
    return tni_scope_return(__func__, scope, loss);
}

/* ---- probabilities, counts, normal numbers, distances ---------------------------------------- */

static tn_status bce_forward(tni_call *c)
{
    return tni_run_binary(TNI_B_bce, c->out[0], c->in[0], c->in[1], NULL);
}

static tn_status bce_backward(tni_grad *g)
{
    tn_tensor *p = g->x[0], *t = g->x[1];
    if (g->need[0] && tni_composed()) {
        tn_tensor *spread = tn_clamp(tn_mul(p, tn_rsub_scalar(p, 1)), 1e-12F, INFINITY);
        g->dx[0] = tn_mul(g->dy, tn_div(tn_sub(p, t), spread));
    } else if (g->need[0]) {
        g->dx[0] = tni_fused3(TNI_T_bce_grad, g->dy, p, t, NULL, g->out, !g->need[1]);
    }
    if (g->need[1])
        g->dx[1] = tn_mul(g->dy, tn_sub(tn_clamp(tn_log1p(tn_neg(p)), -100, INFINITY),
                                        tn_clamp(tn_log(p), -100, INFINITY)));
    return TN_OK;
}

TNI_OP(bce_loss, 2, "y = -t log p - (1 - t) log(1 - p)",
       "dp = dy (p - t) / (p (1 - p)); dt = dy (log(1 - p) - log p)", tni_shape_like_first,
       bce_forward, bce_backward, .reads = { TNI_X(0) | TNI_X(1), TNI_X(0) })

tn_tensor *tn_bce_loss(tn_tensor *p, tn_tensor *target, tn_tensor *weight, tn_reduction reduction)
{
    if (!is_pair_of(__func__, "p", &p, "target", &target) ||
        !is_beside(__func__, "weight", &weight, p))
        return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *in[2] = { tni_wide(p), tni_wide(target) };
    tn_tensor *rows = tni_apply(&op_bce_loss, NULL, 0, 2, in);
    if (!tni_none(weight)) rows = tn_mul(rows, tni_wide(weight));
    return tni_scope_return(__func__, scope, tni_reduce_loss(__func__, rows, reduction, p->dtype));
}

tn_tensor *tn_poisson_nll_loss(tn_tensor *x, tn_tensor *target, bool log_input, bool full,
                               double eps, tn_reduction reduction)
{
    if (!is_pair(__func__, &x, &target)) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rate = tni_wide(x), *t = tni_wide(target);
    tn_tensor *rows = log_input ? tn_sub(tn_exp(rate), tn_mul(t, rate))
                                : tn_sub(rate, tn_mul(t, tn_log(tn_add_scalar(rate, eps))));
    if (full) {
        tn_tensor *few = tn_le_scalar(t, 1), *n = tn_masked_fill(t, few, 1);
        tn_tensor *half_log = tn_mul_scalar(tn_log(tn_mul_scalar(n, 2 * M_PI)), 0.5);
        tn_tensor *stirling = tn_add(tn_sub(tn_mul(n, tn_log(n)), n), half_log);
        rows = tn_add(rows, tn_masked_fill(stirling, few, 0));
    }
    return tni_scope_return(__func__, scope, tni_reduce_loss(__func__, rows, reduction, x->dtype));
}

tn_tensor *tni_raised(tn_tensor *x, double low)
{
    tn_tensor *below = tn_rsub_scalar(tn_detach(x), low);
    return tn_add(x, tn_masked_fill(below, tn_ge_scalar(x, low), 0));
}

tn_tensor *tn_gaussian_nll_loss(tn_tensor *x, tn_tensor *target, tn_tensor *var, bool full,
                                double eps, tn_reduction reduction)
{
    if (!tni_present(__func__, "var", var) || !is_pair(__func__, &x, &target) ||
        !is_beside(__func__, "var", &var, x))
        return NULL;
    if (!(eps > 0)) return tni_fail(TN_E_INVALID, "%s: eps %g: want more than 0", __func__, eps);
    tn_scope scope = tn_scope_begin();
    tn_tensor *wide = tni_wide(var);
    tn_tensor *v = tn_masked_fill(tni_raised(wide, eps), tn_lt_scalar(wide, 0), NAN);
    tn_tensor *squares = tn_square(tn_sub(tni_wide(x), tni_wide(target)));
    tn_tensor *rows = tn_mul_scalar(tn_add(tn_log(v), tn_div(squares, v)), 0.5);
    if (full) rows = tn_add_scalar(rows, 0.5 * log(2 * M_PI));
    return tni_scope_return(__func__, scope, tni_reduce_loss(__func__, rows, reduction, x->dtype));
}

static tn_tensor *distance(tn_tensor *a, tn_tensor *b, double p, double eps)
{
    return tn_norm(tn_add_scalar(tn_sub(a, b), eps), p, TN_AXES(-1), false);
}

tn_tensor *tn_triplet_margin_loss(tn_tensor *anchor, tn_tensor *positive, tn_tensor *negative,
                                  double margin, double p, double eps, bool swap,
                                  tn_reduction reduction)
{
    if (!is_pair_of(__func__, "anchor", &anchor, "positive", &positive) ||
        !is_pair_of(__func__, "anchor", &anchor, "negative", &negative))
        return NULL;
    if (!(margin > 0) || !(p > 0))
        return tni_fail(TN_E_INVALID, "%s: margin %g, p %g: want both above 0", __func__, margin,
                        p);
    tn_scope scope = tn_scope_begin();
    tn_tensor *a = tni_wide(anchor), *near = tni_wide(positive), *far = tni_wide(negative);
    tn_tensor *apart = distance(a, far, p, eps);
    if (swap) apart = tn_minimum(apart, distance(near, far, p, eps));
    tn_tensor *rows = tn_relu(tn_add_scalar(tn_sub(distance(a, near, p, eps), apart), margin));
    return tni_scope_return(__func__, scope,
                            tni_reduce_loss(__func__, rows, reduction, anchor->dtype));
}
