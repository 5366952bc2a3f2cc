/*
 * losses.c - losses composed of other ops: their gradients, first and second, come from those.
 * bf16 and f16 become f32 first, and only the loss is rounded.
 *
 * Each formula is written so that no branch has a kink where the function has none, and nothing
 * cancels:
 *   huber(k)   m (d - m / 2) with d = x - t, m = clamp(d, -k, k): d^2 / 2 inside, k (|d| - k / 2)
 *              outside; Huber (1964), section 4
 *   smooth_l1  huber(b) / b; Girshick, Fast R-CNN (2015), eq. 3
 *   bce        -t w log sigmoid(x) - (1 - t) log(1 - sigmoid(x)), which is with p = (x > 0), a
 *              constant, (p - t (p + w (1 - p))) x + (1 + (w - 1) t) softplus(-|x|): also outside
 *              [0, 1], where t w softplus(-x) + (1 - t) softplus(x) would subtract large numbers
 *   kl_div     t (log t - log_p), 0 where t is 0, NaN where it is negative or NaN; Kullback and
 *              Leibler (1951)
 */
#include "autograd/ops/rows.h"

/* Above this, log(1 + exp(x)) - x is below half a bit of f64. */
static const double SOFTPLUS_LINEAR = 40.0;

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

/* Two floating tensors of one shape and dtype; inside tn_set_autocast they become f32. */
static bool is_pair(const char *function, tn_tensor **px, tn_tensor **ptarget)
{
    const tn_tensor *x = *px = tni_autocast_f32(*px);
    const tn_tensor *target = *ptarget = tni_autocast_f32(*ptarget);
    if (!tni_present(function, "x", x) || !tni_present(function, "target", target)) return false;
    if (!tni_shape_equal(&x->shape, &target->shape))
        return tni_false(tni_error(TN_E_SHAPE, "%s: x %s, target %s: want equal shapes", function,
                                   tni_text(x), tni_text(target)));
    if (x->dtype != target->dtype || !tn_dtype_is_float(x->dtype))
        return tni_false(tni_error(TN_E_DTYPE, "%s: x is %s, target is %s: want one floating dtype",
                                   function, tn_dtype_name(x->dtype),
                                   tn_dtype_name(target->dtype)));
    return true;
}

/* of(x - target) */
static tn_tensor *difference(const char *function, tn_tensor *x, tn_tensor *target,
                             tn_tensor *(*of)(tn_tensor *d), tn_reduction reduction)
{
    if (!is_pair(function, &x, &target)) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows = of(tn_sub(tni_wide(x), tni_wide(target)));
    return tn_scope_return(scope, tni_reduce_loss(function, rows, reduction, x->dtype));
}

tn_tensor *tn_mse_loss(tn_tensor *x, tn_tensor *target, tn_reduction reduction)
{
    return difference("tn_mse_loss", x, target, tn_square, reduction);
}

tn_tensor *tn_l1_loss(tn_tensor *x, tn_tensor *target, tn_reduction reduction)
{
    return difference("tn_l1_loss", x, target, tn_abs, reduction);
}

/* scale m (d - m / 2), m = clamp(d, -k, k) */
static tn_tensor *huber(const char *function, tn_tensor *x, tn_tensor *target, double k,
                        double scale, tn_reduction reduction)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *d = tn_sub(tni_wide(x), tni_wide(target));
    tn_tensor *m = tn_clamp(d, -k, k);
    tn_tensor *rows = tn_mul(m, tn_sub(d, tn_mul_scalar(m, 0.5)));
    if (scale != 1.0) rows = tn_mul_scalar(rows, scale);
    return tn_scope_return(scope, tni_reduce_loss(function, rows, reduction, x->dtype));
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

/* w: TN_NONE for 1. */
static tn_tensor *bce(tn_tensor *x, tn_tensor *t, tn_tensor *w)
{
    if (!x || !t || !w) return NULL;
    tn_tensor *is_positive = tn_gt_scalar(x, 0), *p = tn_to_dtype(is_positive, x->dtype);
    tn_tensor *minus_abs = tn_mul(x, tn_add_scalar(tn_mul_scalar(p, -2), 1));
    tn_tensor *rest = tn_softplus(minus_abs, 1.0, SOFTPLUS_LINEAR);
    if (tni_none(w)) return tn_add(tn_mul(tn_sub(p, t), x), rest);
    tn_tensor *of_t = tn_where(is_positive, tn_ones_like(p), w);
    tn_tensor *of_rest = tn_add_scalar(tn_mul(tn_add_scalar(w, -1), t), 1);
    return tn_add(tn_mul(tn_sub(p, tn_mul(t, of_t)), x), tn_mul(of_rest, rest));
}

tn_tensor *tn_bce_with_logits(tn_tensor *x, tn_tensor *target, tn_tensor *pos_weight,
                              tn_reduction reduction)
{
    if (!pos_weight) return tni_poisoned_optional("tn_bce_with_logits", "pos_weight");
    pos_weight = tni_autocast_f32(pos_weight);
    if (!pos_weight || !is_pair("tn_bce_with_logits", &x, &target)) return NULL;
    if (!tni_none(pos_weight)) {
        if (!tni_broadcasts_to(&pos_weight->shape, &x->shape))
            return tni_fail(
                TN_E_SHAPE,
                "tn_bce_with_logits: x %s, pos_weight %s: want pos_weight to broadcast to x",
                tni_text(x), tni_text(pos_weight));
        if (pos_weight->dtype != x->dtype)
            return tni_fail(TN_E_DTYPE,
                            "tn_bce_with_logits: x is %s, pos_weight is %s: want one dtype",
                            tn_dtype_name(x->dtype), tn_dtype_name(pos_weight->dtype));
    }
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows = bce(tni_wide(x), tni_wide(target), tni_wide(pos_weight));
    return tn_scope_return(scope, tni_reduce_loss("tn_bce_with_logits", rows, reduction, x->dtype));
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
    if (batch_mean) {
        tn_tensor *sum = tn_sum(rows, NULL, 0, false);
        return tn_scope_return(scope, tn_to_dtype(tn_div_scalar(sum, (double)batch), dtype));
    }
    return tn_scope_return(scope, tni_reduce_loss("tn_kl_div", rows, reduction, dtype));
}
