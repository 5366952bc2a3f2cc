/*
 * attention.c - attention of language models: grouped queries, rotary positions, a cache.
 *
 * Its slot is the position of the token. Vaswani et al. (2017), 3.2; Ainslie et al., GQA (2023).
 */
#include "autograd/op.h"
#include "ext/lm/model.h"

typedef struct attention {
    tn_module base;
    tn_module *query, *key, *value, *out; /* key, value: absent if query is all three */
    tn_module *query_norm, *key_norm;     /* or absent */
    tn_tensor *keys, *values;             /* the cache, [B, kv_heads, capacity, dim] */
    int64_t heads, kv_heads, dim;
    double scale, drop;
    bool rotated, causal;
} attention;

/* [B, T, n dim] as [B, n, T, dim], normalised and rotated. */
static tn_tensor *heads_of(const attention *m, tn_tensor *x, int64_t n, tn_module *norm,
                           tn_tensor *const *in)
{
    x = tn_unflatten(x, -1, TN_SHAPE(n, m->dim));
    if (norm != TN_NO_MODULE) x = tn_forward(norm, x);
    x = tn_transpose(x, 1, 2);
    return m->rotated && in ? tn_rotary(x, in[TNI_COSINE], in[TNI_SINE], false) : x;
}

/* The three products of x. */
static tn_status project(const attention *m, tn_tensor *const *in, tn_tensor *out[3])
{
    tn_tensor *part[3] = { tn_forward(m->query, in[TNI_X]) };
    if (m->key != TN_NO_MODULE) {
        part[1] = tn_forward(m->key, in[TNI_X]);
        part[2] = tn_forward(m->value, in[TNI_X]);
    } else if (tn_split(part[0], m->heads * m->dim, -1, part, 3) != 3) {
        return tni_pending();
    }
    out[0] = heads_of(m, part[0], m->heads, m->query_norm, in);
    out[1] = heads_of(m, part[1], m->kv_heads, m->key_norm, in);
    out[2] = heads_of(m, part[2], m->kv_heads, TN_NO_MODULE, NULL);
    return out[0] && out[1] && out[2] ? TN_OK : tni_pending();
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Writes what comes, x [B, kv_heads, T, dim], behind what is there. */
static tn_status store(tn_tensor *cache, tn_tensor *x, const int64_t *start, const int64_t *count)
{
    const int64_t rows = tn_size(x, 0), tokens = tn_size(x, 2);
    bool equal = true;
    for (int64_t b = 0; b < rows; b++) equal = equal && start[b] == start[0] && count[b] == tokens;
    if (equal) return tn_copy_(tn_narrow(cache, 2, start[0], tokens), x);
    for (int64_t b = 0; b < rows; b++) {
        tn_tensor *from = tn_narrow(tn_select(x, 0, b), 1, 0, count[b]);
        TNI_TRY(tn_copy_(tn_narrow(tn_select(cache, 0, b), 1, start[b], count[b]), from));
    }
    return TN_OK;
}

/* Stores the keys and values of x, and gives all that there are; *first: there were none before. */
static tn_status remember(attention *m, tn_tensor *slots, tn_tensor *x[3], bool *first)
{
    const int64_t rows = tn_size(slots, 1), *start = tn_data(slots), *count = start + rows;
    if (!start) return tni_pending();
    TNI_TRY(store(m->keys, x[1], start, count));
    TNI_TRY(store(m->values, x[2], start, count));
    int64_t before = 0, all = 0;
    for (int64_t b = 0; b < rows; b++) {
        before = TNI_MAX(before, start[b]);
        all = TNI_MAX(all, start[b] + count[b]);
    }
    *first = before == 0;
    if (*first) return TN_OK;
    x[1] = tn_narrow(m->keys, 2, 0, all);
    x[2] = tn_narrow(m->values, 2, 0, all);
    return TN_OK;
}

/* ---- the sum --------------------------------------------------------------------------------- */

/* With dropout of the weights, all of them are made. */
static tn_tensor *attend(const attention *m, tn_tensor *const x[3], tn_tensor *mask, bool causal)
{
    const int64_t share = m->heads / m->kv_heads;
    if (m->drop == 0 || !tn_training(&m->base))
        return tn_scaled_dot_product_attention(x[0], x[1], x[2], mask, causal, m->scale);
    tn_tensor *k = share > 1 ? tn_repeat_interleave(x[1], share, 1) : x[1];
    tn_tensor *v = share > 1 ? tn_repeat_interleave(x[2], share, 1) : x[2];
    tn_tensor *p = tni_attention_weights(x[0], k, mask, m->scale, causal);
    return tn_matmul(tn_dropout(p, m->drop, true), v);
}

static tn_status attention_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                   tn_tensor **out)
{
    attention *m = (attention *)self;
    tn_tensor *x[3] = { NULL };
    bool first = true;
    TNI_TRY(tni_lm_called(self, n_in, in, TNI_INPUTS, n_out));
    TNI_TRY(project(m, in, x));
    if (!tn_is_none(in[TNI_SLOTS])) TNI_TRY(remember(m, in[TNI_SLOTS], x, &first));
    const bool causal = m->causal && first && tn_size(x[0], 2) > 1;
    tn_tensor *y = tn_flatten(tn_transpose(attend(m, x, in[TNI_MASK], causal), 1, 2), 2, 3);
    out[0] = m->out != TN_NO_MODULE ? tn_forward(m->out, y) : y;
    return TN_OK;
}

/* ---- making one ------------------------------------------------------------------------------ */

TNI_TYPE(attention, "Attention", attention, .forward_n = attention_forward)

tn_status tni_lm_attention_cache(tn_module *m, int64_t batch, int64_t capacity, tn_dtype dtype)
{
    if (m->type != &attention_type) return TN_OK;
    attention *a = (attention *)m;
    const tn_shape shape = TN_SHAPE(batch, a->kv_heads, capacity, a->dim);
    const tn_tensor *any = batch > 0 ? tn_get_parameter(a->out, "weight") : TN_NONE;
    if (!any) return tni_pending();
    const tn_device device = tn_device_of(any);
    TNI_TRY(tn_assign(&a->keys, batch > 0 ? tn_full_as(shape, 0, dtype, device) : TN_NONE));
    return tn_assign(&a->values, batch > 0 ? tn_full_as(shape, 0, dtype, device) : TN_NONE);
}

static void add_norm(attention *m, const char *name, tn_module **field, const tni_lm_config *c)
{
    const tn_rms_norm_options o = { .eps = c->eps, .use_eps = true };
    *field = TN_NO_MODULE;
    if (c->qk_norm)
        tn_register_module(&m->base, name, field, tn_rms_norm_new(TN_SHAPE(c->head_dim), o));
}

tn_module *tni_lm_attention_new(const tni_lm_config *c, int64_t layer, const char *const names[4])
{
    attention *m = tn_module_new(&attention_type);
    if (!m) return NULL;
    const int64_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    m->heads = c->heads, m->kv_heads = c->kv_heads, m->dim = c->head_dim;
    m->scale = c->scaled ? 1 / sqrt((double)c->head_dim) : 1;
    if (c->by_layer) m->scale /= (double)layer + 1;
    if (c->family == TNI_LM_LLAMA) m->scale *= c->rope.attention * c->rope.attention;
    m->drop = c->attn_drop;
    m->rotated = c->family == TNI_LM_LLAMA, m->causal = c->family != TNI_LM_BERT;
    const int64_t first = names[1] ? wide : 3 * wide;
    tni_lm_linear(&m->base, names[0], &m->query, c->hidden, first, c->qkv_bias);
    tni_lm_linear(&m->base, names[1], &m->key, c->hidden, narrow, c->qkv_bias);
    tni_lm_linear(&m->base, names[2], &m->value, c->hidden, narrow, c->qkv_bias);
    tni_lm_linear(&m->base, names[3], &m->out, wide, c->hidden, c->o_bias);
    add_norm(m, "q_norm", &m->query_norm, c);
    add_norm(m, "k_norm", &m->key_norm, c);
    tn_register_buffer(&m->base, "key_cache", &m->keys, TN_NONE, TN_CACHE);
    tn_register_buffer(&m->base, "value_cache", &m->values, TN_NONE, TN_CACHE);
    return tn_module_done(&m->base);
}
