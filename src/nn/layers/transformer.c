/*
 * transformer.c - encoder and decoder of a transformer; Vaswani et al. (2017), sec. 3.1.
 *
 * A layer: attention to itself, in a decoder also to a memory, and a feed-forward net, each with a
 * residual path and a norm. Post-norm: x = n1(x + attn(x)), x = n2(x + ff(x)). Pre-norm (Xiong et
 * al., 2020): x = x + attn(n1(x)), x = x + ff(n2(x)). ff(x) = W2 drop(act(W1 x)). A stack of equal
 * layers and, optionally, a norm at the end: the layers are copies of one, so they start with the
 * same weights, as in PyTorch.
 */
#include "nn/layers/layer.h"

enum { LAYER, STACK, DECODER_LAYER, DECODER };
static const tn_module_type types[4];

/* What a layer reads beside x: masks of itself and of memory; memory NULL: of an encoder. */
typedef struct context {
    tn_tensor *memory;
    tn_attention_masks masks[2];
} context;

/* A call with masks through a typed function. */
static tn_tensor *masked_forward(const char *function, int type, tn_module *m, tn_tensor *x,
                                 const context *c)
{
    tn_tensor *in[6] = { x, c->memory }, *y;
    int n = type >= DECODER_LAYER ? 2 : 1, sources = n;
    for (int i = 0; i < sources; i++) {
        in[n++] = tni_option_tensor(function, "mask", c->masks[i].mask);
        in[n++] = tni_option_tensor(function, "key_padding", c->masks[i].key_padding);
    }
    const tni_attention_options options = { c->masks[0].causal, c->masks[1].causal };
    if (tni_expect_type(function, m, &types[type], 1, types[type].name) != TN_OK) return NULL;
    for (int i = 0; i < sources; i++)
        if (!in[i]) return tni_poisoned(function, i ? "memory" : "x");
    return tni_call_with(m, n, in, 1, &y, &options) == TN_OK ? y : NULL;
}

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct layer {
    tn_module base;
    tn_module *self_attn, *linear1, *linear2, *norm1, *norm2;
    tn_module *multihead_attn, *norm3; /* of a decoder */
    double dropout;
    bool gelu, gelu_tanh, norm_first;
} layer;

static tn_tensor *drop(const layer *m, tn_tensor *x)
{
    return tn_dropout(x, m->dropout, tn_training(&m->base));
}

static tn_tensor *attention(const layer *m, tn_module *attn, tn_tensor *x, tn_tensor *keys,
                            tn_attention_masks masks)
{
    return drop(m, tn_multihead_attention_forward(attn, x, keys, keys, masks, NULL));
}

static tn_tensor *feedforward(const layer *m, tn_tensor *x)
{
    tn_tensor *h = tn_forward(m->linear1, x);
    h = m->gelu_tanh ? tn_gelu_tanh(h) : m->gelu ? tn_gelu(h) : tn_relu(h);
    return drop(m, tn_forward(m->linear2, drop(m, h)));
}

static tn_tensor *layer_forward(const layer *m, tn_tensor *x, const context *c)
{
    tn_module *last = c->memory ? m->norm3 : m->norm2;
    if (m->norm_first) {
        tn_tensor *h = tn_forward(m->norm1, x);
        x = tn_add(x, attention(m, m->self_attn, h, h, c->masks[0]));
        if (c->memory) {
            h = tn_forward(m->norm2, x);
            x = tn_add(x, attention(m, m->multihead_attn, h, c->memory, c->masks[1]));
        }
        return tn_add(x, feedforward(m, tn_forward(last, x)));
    }
    x = tn_forward(m->norm1, tn_add(x, attention(m, m->self_attn, x, x, c->masks[0])));
    if (c->memory) {
        tn_tensor *h = attention(m, m->multihead_attn, x, c->memory, c->masks[1]);
        x = tn_forward(m->norm2, tn_add(x, h));
    }
    return tn_forward(last, tn_add(x, feedforward(m, x)));
}

static void layer_describe(const tn_module *self, char *text, size_t size)
{
    const layer *m = (const layer *)self;
    snprintf(text, size, "%s-norm, %s, dropout %g", m->norm_first ? "pre" : "post",
             m->gelu_tanh ? "gelu by tanh"
             : m->gelu    ? "gelu"
                          : "relu",
             m->dropout);
}

/* Random numbers are drawn in the order of the attentions, linear1, linear2. */
static tn_module *layer_new(const char *function, int type, int64_t d_model, int64_t heads,
                            const tn_encoder_layer_options *o)
{
    TNI_HOLD_TRAPS;
    int64_t feedforward_size = tni_or_int(o->feedforward, 2048);
    bool decodes = type == DECODER_LAYER;
    if (tni_at_least(function, "d_model", d_model, 1) != TN_OK ||
        tni_at_least(function, "feedforward", feedforward_size, 1) != TN_OK ||
        tni_probability(function, o->dropout) != TN_OK)
        return NULL;
    layer *m = tn_module_new(&types[type]);
    if (!m) return NULL;
    tn_module *base = &m->base;
    const tn_layer_norm_options norm = { .eps = o->eps,
                                         .use_eps = o->use_eps,
                                         .no_bias = o->no_bias };
    const tn_linear_options linear = { .no_bias = o->no_bias };
    const tn_multihead_attention_options attention = { .dropout = o->dropout,
                                                       .no_bias = o->no_bias,
                                                       .sequence_first = o->sequence_first };
    tni_drops(base, &m->dropout, o->dropout);
    m->gelu = o->gelu, m->gelu_tanh = o->gelu_tanh;
    m->norm_first = o->norm_first;
    tn_register_module(base, "self_attn", &m->self_attn,
                       tn_multihead_attention_new(d_model, heads, attention));
    if (decodes)
        tn_register_module(base, "multihead_attn", &m->multihead_attn,
                           tn_multihead_attention_new(d_model, heads, attention));
    tn_register_module(base, "linear1", &m->linear1,
                       tn_linear_new(d_model, feedforward_size, linear));
    tn_register_module(base, "linear2", &m->linear2,
                       tn_linear_new(feedforward_size, d_model, linear));
    tn_register_module(base, "norm1", &m->norm1, tn_layer_norm_new(TN_SHAPE(d_model), norm));
    tn_register_module(base, "norm2", &m->norm2, tn_layer_norm_new(TN_SHAPE(d_model), norm));
    if (decodes)
        tn_register_module(base, "norm3", &m->norm3, tn_layer_norm_new(TN_SHAPE(d_model), norm));
    return tn_module_done(base);
}

#define CONSTRUCTOR(tn_name_new, type)                                                             \
    tn_module *tn_name_new(int64_t d_model, int64_t heads, tn_encoder_layer_options o)             \
    {                                                                                              \
        return layer_new(#tn_name_new, type, d_model, heads, &o);                                  \
    }
CONSTRUCTOR(tn_encoder_layer_new, LAYER)
CONSTRUCTOR(tn_decoder_layer_new, DECODER_LAYER)

/* The calls of an encoder, or of a layer of one; and of a decoder. */
#define ENCODES(tn_name_forward, type)                                                             \
    tn_tensor *tn_name_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks)               \
    {                                                                                              \
        return masked_forward(#tn_name_forward, type, m, x, &(context){ .masks = { masks } });     \
    }
#define DECODES(tn_name_forward, type)                                                             \
    tn_tensor *tn_name_forward(tn_module *m, tn_tensor *x, tn_tensor *memory,                      \
                               tn_attention_masks masks, tn_attention_masks memory_masks)          \
    {                                                                                              \
        return masked_forward(#tn_name_forward, type, m, x,                                        \
                              &(context){ memory, { masks, memory_masks } });                      \
    }
ENCODES(tn_encoder_layer_forward, LAYER)
ENCODES(tn_encoder_forward, STACK)
DECODES(tn_decoder_layer_forward, DECODER_LAYER)
DECODES(tn_decoder_forward, DECODER)

/* ---- the stack ------------------------------------------------------------------------------- */

typedef struct stack {
    tn_module base;
    tn_module *layers, *norm; /* norm: TN_NO_MODULE when absent */
} stack;

/* A user's own layer takes no masks, so a given mask is an error. */
static tn_tensor *forward_one(tn_module *layer, tn_tensor *x, const context *c)
{
    bool decodes = c->memory != NULL, masked = false;
    for (int i = 0; i < 2; i++)
        masked = masked || c->masks[i].causal || !tni_none(c->masks[i].mask) ||
                 !tni_none(c->masks[i].key_padding);
    if (layer->type == &types[decodes ? DECODER_LAYER : LAYER])
        return decodes ? tn_decoder_layer_forward(layer, x, c->memory, c->masks[0], c->masks[1])
                       : tn_encoder_layer_forward(layer, x, c->masks[0]);
    tn_tensor *y;
    if (!masked)
        return tn_call(layer, decodes ? 2 : 1, (tn_tensor *[]){ x, c->memory }, 1, &y) == TN_OK
                   ? y
                   : NULL;
    return tni_fail(
        TN_E_UNSUPPORTED,
        "Transformer%s: masks for a %s: want layers made by tn_%s_layer_new, or no masks",
        decodes ? "Decoder" : "Encoder", layer->type->name, decodes ? "decoder" : "encoder");
}

/* Each step has its own scope, so that its input is freed as soon as nothing needs it. */
static tn_tensor *stack_forward(const stack *m, tn_tensor *x, const context *c)
{
    int n = tn_module_children(m->layers);
    tn_keep(x);
    for (int i = 0; x && i < n; i++) {
        TNI_SCOPED;
        tn_module *layer = tn_module_child(m->layers, i);
        tn_tensor *y = scope.depth < 0 ? NULL : tn_keep(forward_one(layer, x, c));
        tn_drop(x);
        x = y;
    }
    x = tn_scope_adopt(x);
    return tni_no_module(m->norm) ? x : tn_forward(m->norm, x);
}

/* in: x, of a decoder memory, and, optionally, mask and key padding of each */
static tn_status transformer_forward_n(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                       tn_tensor **out)
{
    const tni_attention_options *o = tni_call_options(self);
    const int kind = (int)(self->type - types), n = kind >= DECODER_LAYER ? 2 : 1;
    if ((n_in != n && n_in != 3 * n) || n_out != 1)
        return tni_error(TN_E_INVALID, "%s: %d inputs, %d outputs: want %d or %d (x, %s), and 1",
                         self->type->name, n_in, n_out, n, 3 * n,
                         n == 1 ? "mask, key padding"
                                : "memory, mask and key padding of x and of memory");
    context c = { .memory = n == 2 ? in[1] : NULL };
    for (int i = 0; i < 2; i++) {
        bool given = i < n && n_in > n;
        c.masks[i] = (tn_attention_masks){ .mask = given ? in[n + 2 * i] : TN_NONE,
                                           .key_padding = given ? in[n + 2 * i + 1] : TN_NONE,
                                           .causal = o && (i ? o->memory_causal : o->causal) };
    }
    out[0] = kind == LAYER || kind == DECODER_LAYER ? layer_forward((const layer *)self, in[0], &c)
                                                    : stack_forward((const stack *)self, in[0], &c);
    return out[0] ? TN_OK : tni_pending();
}

#define TYPE(text, of, ...)                                                                        \
    {                                                                                              \
        .name = (text), .size = sizeof(of), .forward_n = transformer_forward_n, __VA_ARGS__        \
    }
static const tn_module_type types[4] = {
    TYPE("TransformerEncoderLayer", layer, .describe = layer_describe),
    TYPE("TransformerEncoder", stack, ),
    TYPE("TransformerDecoderLayer", layer, .describe = layer_describe),
    TYPE("TransformerDecoder", stack, ),
};

tn_module *tni_encoder_layers(const tn_module *m)
{
    return m->type == &types[STACK] || m->type == &types[DECODER] ? ((const stack *)m)->layers
                                                                  : NULL;
}

static tn_module *stack_new(const char *f, int type, tn_module *layer, int n, tn_module *norm)
{
    stack *m = NULL;
    bool one = layer && layer == norm && layer->state && layer->state->refs < 2;
    if (!layer || !norm)
        tni_poison(f, layer ? "norm (TN_NO_MODULE for none)" : "layer");
    else if (one)
        tni_error(
            TN_E_STATE,
            "%s: layer and norm are one %s with one reference: want two modules, or tn_module_keep",
            f, layer->type->name);
    else if (tni_at_least(f, "n", n, 0) == TN_OK && tni_module_check(f, layer) == TN_OK)
        m = tn_module_new(&types[type]);
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

#define STACKED(tn_name_new, type)                                                                 \
    tn_module *tn_name_new(tn_module *layer, int n, tn_module *norm)                               \
    {                                                                                              \
        return stack_new(#tn_name_new, type, layer, n, norm);                                      \
    }
STACKED(tn_encoder_new, STACK)
STACKED(tn_decoder_new, DECODER)
