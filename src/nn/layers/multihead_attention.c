/*
 * multihead_attention.c - concat(head_1 .. head_H) W_o with head_i = attention(q W_q, k W_k, v
 * W_v); Vaswani et al. (2017), sec. 3.2.2.
 *
 * Shapes: E = H D. Projections leave [B, T, H D]; heads are views of them as [B, H, T, D], so
 * nothing is copied until the heads are joined. If the T x S weights are neither returned nor
 * dropped out, they are never stored (tn_scaled_dot_product_attention); otherwise they are computed
 * step by step.
 */
#include "nn/layers/layer.h"

typedef struct multihead_attention {
    tn_module base;
    tn_tensor *in_weight, *q_weight, *k_weight, *v_weight, *in_bias, *bias_k, *bias_v;
    tn_module *out_proj;
    int64_t embed, heads, kdim, vdim;
    double dropout;
    bool sequence_first, zero_attn;
} multihead_attention;

/* ---- projections ----------------------------------------------------------------------------- */

/* Three views of a packed tensor along an axis, each of E. */
static bool split3(tn_tensor *packed, int64_t embed, int axis, tn_tensor *part[3])
{
    if (!tni_none(packed)) return tn_split(packed, embed, axis, part, 3) == 3;
    part[0] = part[1] = part[2] = TN_NONE;
    return true;
}

/* x W^T + b for q, k, v, with as few products as the inputs allow. */
static bool project(const multihead_attention *m, tn_tensor *const in[3], tn_tensor *out[3])
{
    tn_tensor *weight[3] = { m->q_weight, m->k_weight, m->v_weight };
    bool packed = !tni_none(m->in_weight);
    if (packed && in[0] == in[1] && in[1] == in[2])
        return split3(tn_linear(in[0], m->in_weight, m->in_bias), m->embed, -1, out);
    if (packed && !split3(m->in_weight, m->embed, 0, weight)) return false;
    tn_tensor *bias[3];
    if (!split3(m->in_bias, m->embed, 0, bias)) return false;
    for (int i = 0; i < 3; i++) {
        out[i] = tn_linear(in[i], weight[i], bias[i]);
        if (!out[i]) return false;
    }
    return true;
}

/* [B, T, E] (or [T, B, E]) as [B, H, T, D]: a view. */
static tn_tensor *as_heads(const multihead_attention *m, tn_tensor *x)
{
    static const int batch_first[] = { 0, 2, 1, 3 }, sequence_first[] = { 1, 2, 0, 3 };
    if (!x) return NULL;
    tn_shape shape = TN_SHAPE(x->shape.size[0], x->shape.size[1], m->heads, m->embed / m->heads);
    return tn_permute(tn_reshape(x, shape), m->sequence_first ? sequence_first : batch_first, 4);
}

/* The way back, with the heads side by side: the only copy. */
static tn_tensor *join_heads(const multihead_attention *m, tn_tensor *y)
{
    static const int batch_first[] = { 0, 2, 1, 3 }, sequence_first[] = { 2, 0, 1, 3 };
    y = tn_permute(y, m->sequence_first ? sequence_first : batch_first, 4);
    return y ? tn_reshape(y, TN_SHAPE(y->shape.size[0], y->shape.size[1], m->embed)) : NULL;
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* [T, S] or [B*H, T, S], and [B, S], as one mask that broadcasts to [B, H, T, S]. */
static tn_tensor *join_masks(const multihead_attention *m, tn_tensor *mask, tn_tensor *padding,
                             const tn_tensor *q, const tn_tensor *k)
{
    int64_t b = q->shape.size[0], t = q->shape.size[2], s = k->shape.size[2];
    tn_shape flat = TN_SHAPE(t, s), full = TN_SHAPE(b * m->heads, t, s), keys = TN_SHAPE(b, s);
    if (!tni_none(mask)) {
        if (!tni_shape_equal(&mask->shape, &flat) && !tni_shape_equal(&mask->shape, &full))
            return tni_fail(TN_E_SHAPE, "MultiheadAttention: mask %s: want %s or %s",
                            tni_text(mask), tni_shape_text(&flat), tni_shape_text(&full));
        if (mask->shape.rank == 3) mask = tn_reshape(mask, TN_SHAPE(b, m->heads, t, s));
    }
    if (tni_none(padding)) return mask;
    if (!tni_shape_equal(&padding->shape, &keys) || padding->dtype != TN_BOOL)
        return tni_fail(TN_E_SHAPE, "MultiheadAttention: key_padding %s of %s: want %s of bool",
                        tni_text(padding), tn_dtype_name(padding->dtype), tni_shape_text(&keys));
    padding = tn_reshape(padding, TN_SHAPE(b, 1, 1, s));
    if (tni_absent(mask)) return mask ? padding : NULL;
    if (mask->dtype == TN_BOOL) return tn_logical_or(mask, padding);
    return tn_where(padding, tn_full_as(TN_SCALAR, -INFINITY, mask->dtype, mask->storage->device),
                    mask);
}

/* Appends the learned key and value and those of zeros, if the layer has them, to keys x[1] and
 * values x[2]. Every query sees them, so that causal becomes a part of the mask. */
static bool add_keys(const multihead_attention *m, tn_tensor *x[3], tn_tensor **mask, bool *causal)
{
    tn_tensor *const bias[] = { NULL, m->bias_k, m->bias_v };
    const int n = !tni_none(m->bias_k) + m->zero_attn;
    const tn_device device = x[0]->storage->device;
    tn_tensor *part[3];
    if (n == 0) return true;
    if (*causal) {
        const tn_shape scores = TN_SHAPE(x[0]->shape.size[2], x[1]->shape.size[2]);
        tn_tensor *future = tn_triu(tn_full_as(scores, 1, TN_BOOL, device), 1);
        *mask = tni_none(*mask)             ? future
                : (*mask)->dtype == TN_BOOL ? tn_logical_or(*mask, future)
                                            : tn_masked_fill(*mask, future, -INFINITY);
        *causal = false;
    }
    for (int i = 1; i < 3; i++) {
        tn_shape one = x[i]->shape;
        one.size[2] = 1;
        part[0] = x[i];
        if (!tni_none(m->bias_k)) {
            tn_tensor *row = tn_reshape(bias[i], TN_SHAPE(m->heads, 1, m->embed / m->heads));
            part[1] = tn_expand(tn_to_dtype(row, x[i]->dtype), one);
        }
        if (m->zero_attn) part[n] = tn_full_as(one, 0, x[i]->dtype, device);
        x[i] = tn_cat(part, n + 1, 2);
    }
    if (*mask && !tni_none(*mask)) {
        tn_shape seen = (*mask)->shape;
        seen.size[seen.rank - 1] = n;
        part[0] = *mask, part[1] = tn_full_as(seen, 0, (*mask)->dtype, device);
        *mask = tn_cat(part, 2, -1);
    }
    return x[1] && x[2] && *mask;
}

/* ---- attention with its weights in memory ---------------------------------------------------- */

static tn_tensor *explicit_attention(const multihead_attention *m, tn_tensor *const x[3],
                                     tn_tensor *mask, bool causal, tn_tensor **weights)
{
    double scale = 1 / sqrt((double)(m->embed / m->heads));
    tn_tensor *w = tni_attention_weights(x[0], x[1], mask, scale, causal);
    w = tn_dropout(w, m->dropout, tn_training(&m->base));
    if (weights) *weights = tn_mean(w, (int[]){ 1 }, 1, false);
    return tn_matmul(w, x[2]);
}

static tn_tensor *attend(const multihead_attention *m, tn_tensor *const in[3], tn_tensor *mask,
                         tn_tensor *padding, bool causal, tn_tensor **weights)
{
    tn_tensor *x[3];
    if (!project(m, in, x)) return NULL;
    for (int i = 0; i < 3; i++) {
        x[i] = as_heads(m, x[i]);
        if (!x[i]) return NULL;
    }
    mask = join_masks(m, mask, padding, x[0], x[1]);
    if (!mask || !add_keys(m, x, &mask, &causal)) return NULL;
    tn_tensor *y;
    if (weights || (m->dropout > 0 && tn_training(&m->base)))
        y = explicit_attention(m, x, mask, causal, weights);
    else
        y = tn_scaled_dot_product_attention(x[0], x[1], x[2], mask, causal, 0);
    return tn_forward(m->out_proj, join_heads(m, y));
}

/* ---- the module ------------------------------------------------------------------------------ */

static tn_status check_inputs(const multihead_attention *m, tn_tensor *const in[3])
{
    static const char *const name[] = { "query", "key", "value" };
    const int64_t wanted[] = { m->embed, m->kdim, m->vdim };
    int batch = m->sequence_first ? 1 : 0;
    for (int i = 0; i < 3; i++) {
        const tn_shape *s = &in[i]->shape, *q = &in[0]->shape, *k = &in[1]->shape;
        if (tni_none(in[i]) || s->rank != 3 || s->size[2] != wanted[i])
            return tni_error(TN_E_SHAPE, "MultiheadAttention: %s %s: want [%s, %" PRId64 "]",
                             name[i], tni_none(in[i]) ? "is absent" : tni_text(in[i]),
                             m->sequence_first ? "T, B" : "B, T", wanted[i]);
        if (s->size[batch] != q->size[batch] ||
            (i == 2 && s->size[1 - batch] != k->size[1 - batch]))
            return tni_error(TN_E_SHAPE,
                             "MultiheadAttention: query %s, key %s, value %s: want one batch "
                             "size, and as many values as keys",
                             tni_text(in[0]), tni_text(in[1]), tni_text(in[2]));
    }
    return TN_OK;
}

/* in: x; or query, key, value and, optionally, mask and key padding. out: y and, optionally,
 * weights. */
static tn_status multihead_attention_forward_n(tn_module *self, int n_in, tn_tensor *const *in,
                                               int n_out, tn_tensor **out)
{
    const multihead_attention *m = (const multihead_attention *)self;
    const tni_attention_options *o = tni_call_options(self);
    if ((n_in != 1 && n_in != 3 && n_in != 5) || n_out > 2)
        return tni_error(TN_E_INVALID,
                         "MultiheadAttention: %d inputs, %d outputs: want 1, 3 (query, key, "
                         "value) or 5 (and mask, key padding); 1 or 2 (and weights)",
                         n_in, n_out);
    tn_tensor *const qkv[3] = { in[0], in[n_in > 1 ? 1 : 0], in[n_in > 1 ? 2 : 0] };
    TNI_TRY(check_inputs(m, qkv));
    out[0] = attend(m, qkv, n_in > 3 ? in[3] : TN_NONE, n_in > 3 ? in[4] : TN_NONE, o && o->causal,
                    n_out > 1 ? &out[1] : NULL);
    return out[0] ? TN_OK : tni_pending();
}

static void multihead_attention_describe(const tn_module *self, char *text, size_t size)
{
    const multihead_attention *m = (const multihead_attention *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64 " heads", m->embed, m->heads);
    if (m->dropout > 0) tni_text_add(text, size, ", dropout %g", m->dropout);
    tni_text_add(text, size, "%s%s", tni_none(m->bias_k) ? "" : ", bias_kv",
                 m->zero_attn ? ", zero_attn" : "");
}

/* The output projection is drawn first (weight, and a bias that is then zeroed); the packed matrix
 * is drawn as one, U(+-sqrt(6 / (E + 3E))). */
static tn_status reset_projections(multihead_attention *m)
{
    tn_tensor *const weight[] = { m->in_weight, m->q_weight, m->k_weight, m->v_weight };
    for (int i = 0; i < 4; i++)
        if (!weight[i] || !tni_none(weight[i])) TNI_TRY(tn_init_xavier_uniform(weight[i], 1));
    for (int i = 0; i < 2 && !tni_none(m->bias_k); i++)
        TNI_TRY(tn_init_xavier_normal(i ? m->bias_v : m->bias_k, 1));
    if (tni_none(m->in_bias)) return TN_OK;
    TNI_TRY(tn_init_constant(m->in_bias, 0));
    return tn_init_constant(tn_get_parameter(m->out_proj, "bias"), 0);
}

static tn_status multihead_attention_reset(tn_module *self)
{
    multihead_attention *m = (multihead_attention *)self;
    tn_status status = m->out_proj->type->reset(m->out_proj);
    return status == TN_OK ? reset_projections(m) : status;
}

TNI_TYPE(multihead_attention, "MultiheadAttention", multihead_attention,
         .forward_n = multihead_attention_forward_n, .describe = multihead_attention_describe,
         .reset = multihead_attention_reset)

static tn_status check_options(int64_t embed, int64_t heads,
                               const tn_multihead_attention_options *o)
{
    static const char function[] = "tn_multihead_attention_new";
    TNI_TRY(tni_at_least(function, "embed_dim", embed, 1));
    TNI_TRY(tni_at_least(function, "heads", heads, 1));
    TNI_TRY(tni_at_least(function, "kdim", o->kdim, 0));
    TNI_TRY(tni_at_least(function, "vdim", o->vdim, 0));
    TNI_TRY(tni_probability(function, o->dropout));
    if (embed % heads == 0) return TN_OK;
    return tni_error(TN_E_INVALID,
                     "%s: embed_dim %" PRId64 " for %" PRId64 " heads: want a multiple", function,
                     embed, heads);
}

tn_module *tn_multihead_attention_new(int64_t embed_dim, int64_t heads,
                                      tn_multihead_attention_options o)
{
    TNI_HOLD_TRAPS;
    int64_t e = embed_dim;
    if (check_options(e, heads, &o) != TN_OK) return NULL;
    multihead_attention *m = tn_module_new(&multihead_attention_type);
    if (!m) return NULL;
    tn_module *base = &m->base;
    m->embed = e;
    m->heads = heads;
    m->kdim = tni_or_int(o.kdim, e);
    m->vdim = tni_or_int(o.vdim, e);
    tni_drops(base, &m->dropout, o.dropout);
    m->sequence_first = o.sequence_first;
    m->zero_attn = o.add_zero_attn;
    bool packed = m->kdim == e && m->vdim == e;
    int64_t e3;
    if (__builtin_mul_overflow(e, (int64_t)3, &e3)) e3 = -1; /* refused as a size */
    tn_register_parameter(base, "in_proj_weight", &m->in_weight,
                          packed ? tn_empty(TN_SHAPE(e3, e)) : TN_NONE);
    tn_register_parameter(base, "q_proj_weight", &m->q_weight,
                          packed ? TN_NONE : tn_empty(TN_SHAPE(e, e)));
    tn_register_parameter(base, "k_proj_weight", &m->k_weight,
                          packed ? TN_NONE : tn_empty(TN_SHAPE(e, m->kdim)));
    tn_register_parameter(base, "v_proj_weight", &m->v_weight,
                          packed ? TN_NONE : tn_empty(TN_SHAPE(e, m->vdim)));
    tn_register_parameter(base, "in_proj_bias", &m->in_bias,
                          o.no_bias ? TN_NONE : tn_empty(TN_SHAPE(e3)));
    tn_register_parameter(base, "bias_k", &m->bias_k,
                          o.add_bias_kv ? tn_empty(TN_SHAPE(1, 1, e)) : TN_NONE);
    tn_register_parameter(base, "bias_v", &m->bias_v,
                          o.add_bias_kv ? tn_empty(TN_SHAPE(1, 1, e)) : TN_NONE);
    tn_register_module(base, "out_proj", &m->out_proj,
                       tn_linear_new(e, e, (tn_linear_options){ .no_bias = o.no_bias }));
    reset_projections(m);
    return tn_module_done(base);
}

tn_tensor *tn_multihead_attention_forward(tn_module *m, tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                          tn_attention_masks masks, tn_tensor **weights)
{
    tn_tensor *const in[] = { q, k, v, tni_option_tensor(__func__, "mask", masks.mask),
                              tni_option_tensor(__func__, "key_padding", masks.key_padding) };
    const tni_attention_options options = { .causal = masks.causal };
    tn_tensor *out[2] = { NULL, NULL };
    if (weights) *weights = NULL;
    if (tni_expect_type(__func__, m, &multihead_attention_type, 1, "MultiheadAttention") != TN_OK)
        return NULL;
    if (!q || !k || !v) return tni_poisoned(__func__, !q ? "q" : !k ? "k" : "v");
    if (tni_call_with(m, 5, in, weights ? 2 : 1, out, &options) != TN_OK) return NULL;
    if (weights) *weights = out[1];
    return out[0];
}
