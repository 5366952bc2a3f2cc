/*
 * attention.c - scaled dot-product attention without the T x T matrix in memory.
 *
 *     p_ts = softmax over s of (scale q_t . k_s + mask_ts)        y_t = sum_s p_ts v_s
 *     dv_s = sum_t p_ts dy_t          ds_ts = p_ts (dy_t . v_s - delta_t),  delta_t = dy_t . y_t
 *     dq_t = scale sum_s ds_ts k_s    dk_s = scale sum_t ds_ts q_t
 * Forward keeps y and two numbers per row (the largest score, and the share of exp(0)), from which
 * the kernel recomputes p, block by block. For second derivatives the same formulas run in ops,
 * with all of p, in f32 for bf16 and f16. A query that sees no key has p = 0 and y = 0; a key that
 * is not seen is not read. Grouped queries: n heads of q in a row read one head of k and v; kernels
 * find it, and write a gradient for each of the n, whose sum is taken here. Source: Vaswani et al.
 * (2017), eq. 1; Dao et al., FlashAttention (2022), algorithms 1 and 4.
 */
#include <limits.h>

#include "autograd/op.h"

typedef struct attention_args {
    double scale;
    bool causal;
} attention_args;

/* Whether one stride walks the axes before the last three: there are none, or one, or two that
 * merge. Kernels have no more. */
static bool merges(int rank, const int64_t *size, const int64_t *stride)
{
    return rank < 5 || size[0] == 1 || size[1] == 1 || stride[0] == stride[1] * size[1];
}

/* Whether kernels can take t [.., T, D] without a copy: rows without gaps, at least D apart. */
static bool usable(const tn_tensor *t)
{
    int rank = t->shape.rank;
    int64_t d = t->shape.size[rank - 1];
    if (d > 1 && t->stride[rank - 1] != 1) return false;
    if (t->shape.size[rank - 2] > 1 && (t->stride[rank - 2] < d || t->stride[rank - 2] > INT_MAX))
        return false;
    return merges(rank, t->shape.size, t->stride);
}

static tn_tensor *rows(tn_tensor *t)
{
    return usable(t) ? t : tni_dense(t);
}

/* [.., T, D] as [B, H, T, D]: missing axes have size 1, two axes before H become one. */
static tni_array merged(tni_array a)
{
    tni_array four = { .data = a.data, .dtype = a.dtype, .rank = 4 };
    for (int i = 0; i < 4; i++) {
        int axis = a.rank - 4 + i;
        four.size[i] = axis >= 0 ? a.size[axis] : 1;
        four.stride[i] = axis >= 0 ? a.stride[axis] : 0;
    }
    if (a.rank == 5) {
        if (a.size[1] == 1) four.stride[0] = a.stride[0];
        four.size[0] *= a.size[0];
    }
    return four;
}
static tni_array four_axes(const tn_tensor *t)
{
    return merged(tni_array_of(t));
}

void tni_lay_out_like(const tn_tensor *like, tni_spec *spec)
{
    int rank = spec->shape.rank;
    int order[TN_MAX_RANK]; /* outermost first */
    int64_t step = 1;
    for (int i = 0; i < rank - 1; i++) {
        int at = i;
        /* axes without a place of their own (size 1, broadcast) stay where they are */
        while (at > 0 && like->shape.size[i] > 1 && like->stride[order[at - 1]] < like->stride[i] &&
               like->stride[order[at - 1]] > 0 && like->shape.size[order[at - 1]] > 1) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    order[rank - 1] = rank - 1;
    for (int i = rank - 1; i >= 0; i--) {
        spec->stride[order[i]] = step;
        step *= spec->shape.size[order[i]] > 0 ? spec->shape.size[order[i]] : 1;
    }
    spec->strided = merges(rank, spec->shape.size, spec->stride);
    spec->offset = 0;
}

/* How many heads of q (axis -3) read one of k's; 0: k's are no divisor of them. */
static int64_t sharing(const tn_shape *q, const tn_shape *k)
{
    int64_t h = q->rank > 2 ? q->size[q->rank - 3] : 1, g = q->rank > 2 ? k->size[q->rank - 3] : 1;
    return h == g ? 1 : g > 0 && h % g == 0 ? h / g : 0;
}

/* k or v with each head n times in a row, and the way back for a gradient: the sum of the n. */
static tn_tensor *repeat_heads(tn_tensor *t, int64_t n)
{
    return n == 1 ? t : tn_repeat_interleave(t, n, -3);
}
static tn_tensor *sum_heads(tn_tensor *d, int64_t n)
{
    return n == 1 ? d : tn_sum(tn_unflatten(d, -3, TN_SHAPE(-1, n)), TN_AXES(-3), false);
}

static tn_status check_sizes(const tni_call *c)
{
    const tn_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2], *mask = c->in[3];
    int rank = q->shape.rank;
    tn_shape scores = q->shape;
    if (rank < 2 || rank > 5 || k->shape.rank != rank || v->shape.rank != rank)
        return tni_op_error(c, TN_E_SHAPE, "q %s, k %s, v %s: want 2 to 5 axes, equally many",
                            tni_text(q), tni_text(k), tni_text(v));
    for (int i = 0; i < rank - 2; i++)
        if (v->shape.size[i] != k->shape.size[i] ||
            (i == rank - 3 ? sharing(&q->shape, &k->shape) == 0
                           : k->shape.size[i] != q->shape.size[i]))
            return tni_op_error(c, TN_E_SHAPE,
                                "q %s, k %s, v %s: leading axes must be equal, or q's heads (axis "
                                "-3) a multiple of those of k and v",
                                tni_text(q), tni_text(k), tni_text(v));
    if (k->shape.size[rank - 1] != q->shape.size[rank - 1] ||
        v->shape.size[rank - 2] != k->shape.size[rank - 2])
        return tni_op_error(c, TN_E_SHAPE,
                            "q %s, k %s, v %s: want q [..,T,D], k [..,S,D], v [..,S,Dv]",
                            tni_text(q), tni_text(k), tni_text(v));
    scores.size[rank - 1] = k->shape.size[rank - 2];
    if (!tni_none(mask) && !tni_broadcasts_to(&mask->shape, &scores))
        return tni_op_error(c, TN_E_SHAPE, "mask %s: must broadcast to %s", tni_text(mask),
                            tni_shape_text(&scores));
    return TN_OK;
}

static tn_status attention_shape(tni_call *c)
{
    const tn_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2], *mask = c->in[3];
    int rank = q->shape.rank;
    if (k->dtype != q->dtype || v->dtype != q->dtype)
        return tni_op_error(c, TN_E_DTYPE, "q is %s, k is %s, v is %s: want one floating dtype",
                            tn_dtype_name(q->dtype), tn_dtype_name(k->dtype),
                            tn_dtype_name(v->dtype));
    if (!tni_none(mask) && mask->dtype != TN_BOOL && mask->dtype != q->dtype)
        return tni_op_error(c, TN_E_DTYPE,
                            "mask is %s, q is %s: want bool (true blocks) or q's dtype (added)",
                            tn_dtype_name(mask->dtype), tn_dtype_name(q->dtype));
    TNI_TRY(check_sizes(c));
    tni_shape_like_first(c);
    c->out_spec[0].shape.size[rank - 1] = v->shape.size[rank - 1];
    tni_lay_out_like(q, &c->out_spec[0]);
    tn_shape row = tn_shape_from(rank - 1, q->shape.size);
    for (int i = 0; i < 2 && c->recorded; i++) /* the largest score and the share of every row */
        tni_saves(c, tni_wide_dtype(q->dtype), &row);
    return TN_OK;
}

/* The mask as [B, H, T, S] with 0-strides. */
static tn_status mask_array(tn_tensor *mask, const tn_tensor *q, const tn_tensor *k, tni_array *out)
{
    tn_shape scores = q->shape;
    *out = tni_array_none();
    if (tni_none(mask)) return TN_OK;
    scores.size[scores.rank - 1] = k->shape.size[scores.rank - 2];
    tni_array a = tni_array_expand(mask, &scores);
    if (!merges(a.rank, a.size, a.stride)) {
        TN_NO_GRAD mask = tn_clone(tn_expand(mask, scores));
        if (!mask) return tni_pending();
        a = tni_array_of(mask);
    }
    *out = merged(a);
    return TN_OK;
}

/* What forward reads: x is q, k, v and the mask. */
static tn_status operands(const attention_args *args, tn_tensor *const *x, tni_attention *a)
{
    tn_tensor *q = rows(x[0]), *k = rows(x[1]), *v = rows(x[2]);
    if (!q || !k || !v) return tni_pending();
    *a = (tni_attention){ .q = four_axes(q),
                          .k = four_axes(k),
                          .v = four_axes(v),
                          .scale = args->scale,
                          .causal = args->causal };
    return mask_array(x[3] ? x[3] : TN_NONE, q, k, &a->mask);
}

static tn_status attention_forward(tni_call *c)
{
    tni_attention a;
    TNI_TRY(operands(c->args, c->in, &a));
    a.y = four_axes(c->out[0]);
    if (c->n_saved) a.top = tni_array_of(c->saved[0]), a.share = tni_array_of(c->saved[1]);
    return tni_backend_of(c->in[0])->attention(&a);
}

/* With n times t's heads. */
static tn_tensor *new_like(const tn_tensor *t, int64_t n)
{
    tni_spec spec = { .dtype = t->dtype, .shape = t->shape };
    if (n > 1) spec.shape.size[t->shape.rank - 3] *= n;
    tni_lay_out_like(t, &spec);
    return tni_new(&spec, t->storage->device);
}

/* The backward's kernel: p block by block, from what was saved. */
static tn_status fused_backward(tni_grad *g)
{
    tni_attention_grad a;
    tn_tensor *dx[3], *dy = rows(g->dy);
    const int64_t n = sharing(&g->x[0]->shape, &g->x[1]->shape);
    TNI_TRY(dy ? operands(g->args, g->x, &a.of) : tni_pending());
    for (int i = 0; i < 3; i++)
        if (!(dx[i] = new_like(g->x[i], i ? n : 1))) return tni_pending();
    a.dq = four_axes(dx[0]);
    a.dk = four_axes(dx[1]);
    a.dv = four_axes(dx[2]);
    a.dy = four_axes(dy);
    a.of.y = four_axes(g->y);
    a.of.top = tni_array_of(g->saved[0]);
    a.of.share = tni_array_of(g->saved[1]);
    tn_status status = tni_backend_of(g->dy)->attention_grad(&a);
    for (int i = 0; i < 3 && status == TN_OK; i++)
        if (g->need[i]) g->dx[i] = sum_heads(dx[i], i ? n : 1);
    return status;
}

/* True above the diagonal: keys that come after their query. */
static tn_tensor *later_keys(const tn_tensor *scores)
{
    int rank = scores->shape.rank;
    tn_shape shape = TN_SHAPE(scores->shape.size[rank - 2], scores->shape.size[rank - 1]);
    return tn_triu(tn_full_as(shape, 1, TN_BOOL, scores->storage->device), 1);
}

tn_tensor *tni_attention_weights(tn_tensor *q, tn_tensor *k, tn_tensor *mask, double scale,
                                 bool causal)
{
    tn_tensor *s = tn_matmul(tn_mul_scalar(q, scale), tn_transpose(k, -1, -2));
    if (mask && !tni_none(mask)) {
        bool adds = mask->dtype != TN_BOOL;
        if (adds) s = tn_add(s, mask);
        s = tn_masked_fill(s, adds ? tn_eq_scalar(mask, -INFINITY) : mask, -INFINITY);
    }
    if (s && causal) s = tn_masked_fill(s, later_keys(s), -INFINITY);
    return tni_softmax_seen(s);
}

/* Backward in ops, so that it can be differentiated again, and for a mask that is learned, whose
 * gradient is as large as the scores anyway; delta = sum_s p (dy v^T) as well. */
static tn_status composed_backward(tni_grad *g)
{
    const attention_args *args = g->args;
    TNI_TRY(tni_widen_grad(g));
    const int64_t n = sharing(&g->x[0]->shape, &g->x[1]->shape);
    tn_tensor *q = g->x[0], *k = repeat_heads(g->x[1], n), *v = repeat_heads(g->x[2], n);
    tn_tensor *p = tni_attention_weights(q, k, g->x[3], args->scale, args->causal);
    tn_tensor *dp = tn_matmul(g->dy, tn_transpose(v, -1, -2));
    tn_tensor *delta = tn_sum(tn_mul(p, dp), TN_AXES(-1), true);
    tn_tensor *ds = tn_mul(p, tn_sub(dp, delta));
    if (g->need[3]) g->dx[3] = ds;
    ds = tn_mul_scalar(ds, args->scale);
    if (g->need[0]) g->dx[0] = tn_matmul(ds, k);
    if (g->need[1]) g->dx[1] = sum_heads(tn_matmul(tn_transpose(ds, -1, -2), q), n);
    if (g->need[2]) g->dx[2] = sum_heads(tn_matmul(tn_transpose(p, -1, -2), g->dy), n);
    return TN_OK;
}

static tn_status attention_backward(tni_grad *g)
{
    return tni_composed() || g->need[3] ? composed_backward(g) : fused_backward(g);
}

#define READS (TNI_X(0) | TNI_X(1) | TNI_X(2) | TNI_X(3) | TNI_Y | TNI_SAVED)

TNI_OP_AS(op_attention, "scaled_dot_product_attention", 4, "y = softmax(scale q k^T + mask) v",
          "dq = scale ds k; dk = scale ds^T q; dv = p^T dy; dmask = ds; where p = softmax(scale q "
          "k^T + mask), ds = p (dp - sum p dp), dp = dy v^T",
          attention_shape, attention_forward, attention_backward, .optional = TNI_X(3),
          .autocast = TNI_CAST_LOW, .reads = { READS, READS, READS, READS }, .constants = "scale")

/* As it is used: 0 is the usual one. */
static double scale_of(const tn_tensor *q, double scale)
{
    if (scale != 0 || !q || !q->shape.rank) return scale;
    return 1 / sqrt((double)q->shape.size[q->shape.rank - 1]);
}

tn_tensor *tn_scaled_dot_product_attention(tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                           tn_tensor *mask, bool causal, double scale)
{
    TNI_HOLD_TRAPS;
    attention_args args = { .scale = scale_of(q, scale), .causal = causal };
    return tni_apply(&op_attention, &args, sizeof args, 4, (tn_tensor *[]){ q, k, v, mask });
}

tn_tensor *tn_scaled_dot_product_attention_dropout(tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                                   tn_tensor *mask, bool causal, double scale,
                                                   double p, bool training)
{
    TNI_HOLD_TRAPS;
    tn_tensor *const in[] = { q, k, v, mask };
    if (!(p >= 0 && p <= 1)) return tni_fail(TN_E_INVALID, "%s: p %g: want 0 to 1", __func__, p);
    if (p == 0 || !training || tni_absent(q) || tni_absent(k) || tni_absent(v) || !mask)
        return tn_scaled_dot_product_attention(q, k, v, mask, causal, scale);
    if (check_sizes(&(tni_call){ .op = &op_attention, .n_in = 4, .in = in }) != TN_OK) return NULL;
    tni_generator_state before;
    tni_generator_get(tn_default_generator(), &before);
    int64_t n = sharing(&q->shape, &k->shape);
    tn_tensor *w = tni_attention_weights(q, repeat_heads(k, n), mask, scale_of(q, scale), causal);
    tn_tensor *y = tn_matmul(tn_dropout(w, p, true), repeat_heads(v, n));
    if (!y) tni_generator_put(tn_default_generator(), &before);
    return y;
}
