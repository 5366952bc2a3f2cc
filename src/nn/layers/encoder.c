/*
 * encoder.c - the encoder of a transformer; Vaswani et al. (2017), sec. 3.1.
 *
 * A layer: attention and a feed-forward net, each with a residual path and a norm. Post-norm: x =
 * n1(x + attn(x)), x = n2(x + ff(x)). Pre-norm (Xiong et al., 2020): x = x + attn(n1(x)), x = x +
 * ff(n2(x)). ff(x) = W2 drop(act(W1 x)). A stack of equal layers and, optionally, a norm at the
 * end: the layers are copies of one, so they start with the same weights, as in PyTorch.
 */
#include "nn/layers/layer.h"

static const tn_module_type types[2]; /* a layer, a stack */

/* A call with masks through a typed function. */
static tn_tensor *masked_forward(const char *function, const tn_module_type *type, tn_module *m,
                                 tn_tensor *x, tn_attention_masks masks)
{
    tn_tensor *const in[] = { x, tni_option_tensor(function, "mask", masks.mask),
                              tni_option_tensor(function, "key_padding", masks.key_padding) };
    const tni_attention_options options = { masks.causal };
    if (tni_expect_type(function, m, type, 1, type->name) != TN_OK) return NULL;
    if (!x) return tni_poisoned(function, "x");
    tn_tensor *y;
    return tni_call_with(m, 3, in, 1, &y, &options) == TN_OK ? y : NULL;
}

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct encoder_layer {
    tn_module base;
    tn_module *self_attn, *linear1, *linear2, *norm1, *norm2;
    double dropout;
    bool gelu, norm_first;
} encoder_layer;

static tn_tensor *drop(const encoder_layer *m, tn_tensor *x)
{
    return tn_dropout(x, m->dropout, tn_training(&m->base));
}

static tn_tensor *attention(const encoder_layer *m, tn_tensor *x, tn_attention_masks masks)
{
    return drop(m, tn_multihead_attention_forward(m->self_attn, x, x, x, masks, NULL));
}

static tn_tensor *feedforward(const encoder_layer *m, tn_tensor *x)
{
    tn_tensor *h = tn_forward(m->linear1, x);
    h = m->gelu ? tn_gelu(h) : tn_relu(h);
    return drop(m, tn_forward(m->linear2, drop(m, h)));
}

static tn_tensor *layer_forward(const encoder_layer *m, tn_tensor *x, tn_attention_masks masks)
{
    if (m->norm_first) {
        x = tn_add(x, attention(m, tn_forward(m->norm1, x), masks));
        return tn_add(x, feedforward(m, tn_forward(m->norm2, x)));
    }
    x = tn_forward(m->norm1, tn_add(x, attention(m, x, masks)));
    return tn_forward(m->norm2, tn_add(x, feedforward(m, x)));
}

static void encoder_layer_describe(const tn_module *self, char *text, size_t size)
{
    const encoder_layer *m = (const encoder_layer *)self;
    snprintf(text, size, "%s-norm, %s, dropout %g", m->norm_first ? "pre" : "post",
             m->gelu ? "gelu" : "relu", m->dropout);
}

/* Random numbers are drawn in the order attention, linear1, linear2. */
tn_module *tn_encoder_layer_new(int64_t d_model, int64_t heads, tn_encoder_layer_options o)
{
    TNI_HOLD_TRAPS;
    int64_t feedforward_size = tni_or_int(o.feedforward, 2048);
    if (tni_at_least("tn_encoder_layer_new", "d_model", d_model, 1) != TN_OK ||
        tni_at_least("tn_encoder_layer_new", "feedforward", feedforward_size, 1) != TN_OK ||
        tni_probability("tn_encoder_layer_new", o.dropout) != TN_OK)
        return NULL;
    encoder_layer *m = tn_module_new(&types[0]);
    if (!m) return NULL;
    tn_module *base = &m->base;
    tn_layer_norm_options norm = { .eps = o.eps, .use_eps = o.use_eps };
    tn_multihead_attention_options attention_options = { .dropout = o.dropout,
                                                         .sequence_first = o.sequence_first };
    m->dropout = o.dropout;
    tni_drops(base, &m->dropout);
    m->gelu = o.gelu;
    m->norm_first = o.norm_first;
    tn_register_module(base, "self_attn", &m->self_attn,
                       tn_multihead_attention_new(d_model, heads, attention_options));
    tn_register_module(base, "linear1", &m->linear1,
                       tn_linear_new(d_model, feedforward_size, (tn_linear_options){ 0 }));
    tn_register_module(base, "linear2", &m->linear2,
                       tn_linear_new(feedforward_size, d_model, (tn_linear_options){ 0 }));
    tn_register_module(base, "norm1", &m->norm1, tn_layer_norm_new(TN_SHAPE(d_model), norm));
    tn_register_module(base, "norm2", &m->norm2, tn_layer_norm_new(TN_SHAPE(d_model), norm));
    return tn_module_done(base);
}

tn_tensor *tn_encoder_layer_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks)
{
    return masked_forward("tn_encoder_layer_forward", &types[0], m, x, masks);
}

/* ---- the stack ------------------------------------------------------------------------------- */

typedef struct encoder {
    tn_module base;
    tn_module *layers, *norm; /* norm: TN_NO_MODULE when absent */
} encoder;

/* A user's own layer takes no masks, so a given mask is an error. */
static tn_tensor *forward_one(tn_module *layer, tn_tensor *x, tn_attention_masks masks)
{
    bool masked = masks.causal || !tni_none(masks.mask) || !tni_none(masks.key_padding);
    if (layer->type == &types[0]) return tn_encoder_layer_forward(layer, x, masks);
    if (!masked) return tn_forward(layer, x);
    return tni_fail(TN_E_UNSUPPORTED,
                    "TransformerEncoder: masks for a %s: want layers made by "
                    "tn_encoder_layer_new, or no masks",
                    layer->type->name);
}

/* Each step has its own scope, so that its input is freed as soon as nothing needs it. */
static tn_tensor *stack_forward(const encoder *m, tn_tensor *x, tn_attention_masks masks)
{
    int n = tn_module_children(m->layers);
    tn_keep(x);
    for (int i = 0; x && i < n; i++) {
        tn_scope scope = tn_scope_begin();
        tn_module *layer = tn_module_child(m->layers, i);
        tn_tensor *y = scope.depth < 0 ? NULL : tn_keep(forward_one(layer, x, masks));
        tn_scope_end(scope);
        tn_drop(x);
        x = y;
    }
    x = tn_scope_adopt(x);
    return tni_no_module(m->norm) ? x : tn_forward(m->norm, x);
}

/* in: x and, optionally, mask and key padding */
static tn_status encoder_forward_n(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                   tn_tensor **out)
{
    const tni_attention_options *o = tni_call_options(self);
    if ((n_in != 1 && n_in != 3) || n_out != 1)
        return tni_error(TN_E_INVALID,
                         "%s: %d inputs, %d outputs: want 1 or 3 (x, mask, key padding), and 1",
                         self->type->name, n_in, n_out);
    const tn_attention_masks masks = { .mask = n_in == 3 ? in[1] : TN_NONE,
                                       .key_padding = n_in == 3 ? in[2] : TN_NONE,
                                       .causal = o && o->causal };
    out[0] = self->type == &types[0] ? layer_forward((const encoder_layer *)self, in[0], masks)
                                     : stack_forward((const encoder *)self, in[0], masks);
    return out[0] ? TN_OK : tni_pending();
}

static const tn_module_type types[2] = {
    { .name = "TransformerEncoderLayer",
      .size = sizeof(encoder_layer),
      .forward_n = encoder_forward_n,
      .describe = encoder_layer_describe },
    { .name = "TransformerEncoder", .size = sizeof(encoder), .forward_n = encoder_forward_n },
};

tn_module *tni_encoder_layers(const tn_module *m)
{
    return m->type == &types[1] ? ((const encoder *)m)->layers : NULL;
}

tn_module *tn_encoder_new(tn_module *layer, int n, tn_module *norm)
{
    static const char f[] = "tn_encoder_new";
    encoder *m = NULL;
    bool one = layer && layer == norm && layer->state && layer->state->refs < 2;
    if (!layer || !norm)
        tni_poison(f, layer ? "norm (TN_NO_MODULE for none)" : "layer");
    else if (one)
        tni_error(TN_E_STATE,
                  "%s: layer and norm are one %s with one reference: want two modules, or "
                  "tn_module_keep",
                  f, layer->type->name);
    else if (tni_at_least(f, "n", n, 0) == TN_OK && tni_module_check(f, layer) == TN_OK)
        m = tn_module_new(&types[1]);
    if (m) {
        tn_register_module(&m->base, "layers", &m->layers, tn_module_list_new());
        bool fits = m->layers != NULL;
        for (int i = 0; fits && i < n; i++)
            fits = tn_module_append(m->layers, tn_module_clone(layer)) == TN_OK;
        tn_register_module(&m->base, "norm", &m->norm, tn_module_keep(norm));
    }
    tn_module_drop(layer);
    if (!one) tn_module_drop(norm);
    return m ? tn_module_done(&m->base) : NULL;
}

tn_tensor *tn_encoder_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks)
{
    return masked_forward("tn_encoder_forward", &types[1], m, x, masks);
}
