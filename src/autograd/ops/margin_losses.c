/*
 * margin_losses.c - losses that keep scores or distances apart by a margin, composed of other ops.
 *
 *   triplet           max(margin + |a - p + eps| - |a - n + eps|, 0) along the last axis; Schroff
 *                     et al., FaceNet (2015), eq. 3; Balntas et al. (2016), section 3.3 (swap)
 *   cosine_embedding  1 - cos where the target is 1, max(cos - margin, 0) where it is -1
 *   margin_ranking    max(margin - t (a - b), 0)
 */
#include "autograd/ops/rows.h"

static tn_tensor *distance(tn_tensor *a, tn_tensor *b, double p, double eps)
{
    return tn_norm(tn_add_scalar(tn_sub(a, b), eps), p, TN_AXES(-1), false);
}

tn_tensor *tn_triplet_margin_loss(tn_tensor *anchor, tn_tensor *positive, tn_tensor *negative,
                                  double margin, double p, double eps, bool swap,
                                  tn_reduction reduction)
{
    static const char f[] = "tn_triplet_margin_loss";
    if (!tni_is_pair(f, "anchor", &anchor, "positive", &positive) ||
        !tni_is_pair(f, "anchor", &anchor, "negative", &negative))
        return NULL;
    if (!(margin > 0) || !(p > 0))
        return tni_fail(TN_E_INVALID, "%s: margin %g, p %g: want both above 0", f, margin, p);
    tn_scope scope = tn_scope_begin();
    tn_tensor *a = tni_wide(anchor), *near = tni_wide(positive), *far = tni_wide(negative);
    tn_tensor *apart = distance(a, far, p, eps);
    if (swap) apart = tn_minimum(apart, distance(near, far, p, eps));
    tn_tensor *rows = tn_relu(tn_add_scalar(tn_sub(distance(a, near, p, eps), apart), margin));
    return tn_scope_return(scope, tni_reduce_loss(f, rows, reduction, anchor->dtype));
}

/* sum a b along the last axis */
static tn_tensor *dot(tn_tensor *a, tn_tensor *b)
{
    return tn_sum(tn_mul(a, b), TN_AXES(-1), false);
}

tn_tensor *tn_cosine_embedding_loss(tn_tensor *a, tn_tensor *b, tn_tensor *target, double margin,
                                    tn_reduction reduction)
{
    static const char f[] = "tn_cosine_embedding_loss";
    const double eps = 1e-12;
    if (!tni_is_pair(f, "a", &a, "b", &b) || !tni_present(f, "target", target)) return NULL;
    tn_shape rows = tni_shape_without(&a->shape, a->shape.rank - 1);
    if (a->shape.rank < 1 || a->shape.rank > 2 || !tni_shape_equal(&target->shape, &rows))
        return tni_fail(TN_E_SHAPE, "%s: a %s, target %s: want [N,D] and [N], or [D] and []", f,
                        tni_text(a), tni_text(target));
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tni_wide(a), *y = tni_wide(b);
    tn_tensor *squares = tn_mul(tn_add_scalar(dot(x, x), eps), tn_add_scalar(dot(y, y), eps));
    tn_tensor *cosine = tn_div(dot(x, y), tn_sqrt(squares));
    tn_tensor *like = tn_masked_fill(tn_rsub_scalar(cosine, 1), tn_ne_scalar(target, 1), 0);
    tn_tensor *unlike = tn_relu(tn_sub_scalar(cosine, margin));
    tn_tensor *each = tn_add(like, tn_masked_fill(unlike, tn_ne_scalar(target, -1), 0));
    return tn_scope_return(scope, tni_reduce_loss(f, each, reduction, a->dtype));
}

tn_tensor *tn_margin_ranking_loss(tn_tensor *a, tn_tensor *b, tn_tensor *target, double margin,
                                  tn_reduction reduction)
{
    static const char f[] = "tn_margin_ranking_loss";
    if (!tni_is_pair(f, "a", &a, "b", &b) || !tni_is_pair(f, "a", &a, "target", &target))
        return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *won = tn_mul(tni_wide(target), tn_sub(tni_wide(a), tni_wide(b)));
    tn_tensor *rows = tn_relu(tn_rsub_scalar(won, margin));
    return tn_scope_return(scope, tni_reduce_loss(f, rows, reduction, a->dtype));
}
