/*
 * encoder_layer.c - attention and a feed-forward net, each with a residual path and a norm; Vaswani
 * et al. (2017), sec. 3.1. Post-norm: x = n1(x + attn(x)), x = n2(x + ff(x)). Pre-norm (Xiong et
 * al., 2020): x = x + attn(n1(x)), x = x + ff(n2(x)). ff(x) = W2 drop(act(W1 x)).
 */
#include "nn/layers/layer.h"

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

tn_status tni_masks_of(const tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                       tn_attention_masks *masks)
{
    const tni_attention_options *o = tni_call_options(self);
    if ((n_in != 1 && n_in != 3) || n_out != 1)
        return tni_error(TN_E_INVALID,
                         "%s: %d inputs, %d outputs: want 1 or 3 (x, mask, key padding), and 1",
                         self->type->name, n_in, n_out);
    *masks = (tn_attention_masks){ .mask = n_in == 3 ? in[1] : TN_NONE,
                                   .key_padding = n_in == 3 ? in[2] : TN_NONE,
                                   .causal = o && o->causal };
    return TN_OK;
}

tn_tensor *tni_masked_forward(const char *function, const tn_module_type *type, tn_module *m,
                              tn_tensor *x, tn_attention_masks masks)
{
    tn_tensor *const in[] = { x, tni_option_tensor(function, "mask", masks.mask),
                              tni_option_tensor(function, "key_padding", masks.key_padding) };
    const tni_attention_options options = { masks.causal };
    if (tni_expect_type(function, m, type) != TN_OK) return NULL;
    if (!x) return tni_poisoned(function, "x");
    tn_tensor *y;
    return tni_call_with(m, 3, in, 1, &y, &options) == TN_OK ? y : NULL;
}

/* in: x and, optionally, mask and key padding */
static tn_status encoder_layer_forward_n(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                         tn_tensor **out)
{
    const encoder_layer *m = (const encoder_layer *)self;
    tn_attention_masks masks;
    tn_status status = tni_masks_of(self, n_in, in, n_out, &masks);
    if (status != TN_OK) return status;
    tn_tensor *x = in[0];
    if (m->norm_first) {
        x = tn_add(x, attention(m, tn_forward(m->norm1, x), masks));
        x = tn_add(x, feedforward(m, tn_forward(m->norm2, x)));
    } else {
        x = tn_forward(m->norm1, tn_add(x, attention(m, x, masks)));
        x = tn_forward(m->norm2, tn_add(x, feedforward(m, x)));
    }
    out[0] = x;
    return x ? TN_OK : tni_pending();
}

static void encoder_layer_describe(const tn_module *self, char *text, size_t size)
{
    const encoder_layer *m = (const encoder_layer *)self;
    snprintf(text, size, "%s-norm, %s, dropout %g", m->norm_first ? "pre" : "post",
             m->gelu ? "gelu" : "relu", m->dropout);
}

static const tn_module_type encoder_layer_type = {
    .name = "TransformerEncoderLayer",
    .size = sizeof(encoder_layer),
    .forward_n = encoder_layer_forward_n,
    .describe = encoder_layer_describe,
};

double *tni_encoder_layer_dropout(tn_module *m)
{
    return m->type == &encoder_layer_type ? &((encoder_layer *)m)->dropout : NULL;
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
    encoder_layer *m = tn_module_new(&encoder_layer_type);
    if (!m) return NULL;
    tn_module *base = &m->base;
    tn_layer_norm_options norm = { .eps = o.eps, .use_eps = o.use_eps };
    tn_multihead_attention_options attention_options = { .dropout = o.dropout,
                                                         .sequence_first = o.sequence_first };
    m->dropout = o.dropout;
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

bool tni_is_encoder_layer(const tn_module *m)
{
    return m->type == &encoder_layer_type;
}

tn_tensor *tn_encoder_layer_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks)
{
    return tni_masked_forward("tn_encoder_layer_forward", &encoder_layer_type, m, x, masks);
}
