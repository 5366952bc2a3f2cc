/*
 * bert.c - BERT: layers of attention in both directions, each norm behind the sum.
 */
#include "ext/lm/model.h"

static tn_module *norm_new(const tni_lm_config *c)
{
    return tn_layer_norm_new(TN_SHAPE(c->hidden),
                             (tn_layer_norm_options){ .eps = c->eps, .use_eps = true });
}

static tn_module *linear_new(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

/* ---- embeddings ------------------------------------------------------------------------------ */

typedef struct embeddings {
    tn_module base;
    tn_module *word, *position, *type, *norm;
    double drop;
    int64_t positions;
} embeddings;

static tn_status embeddings_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                    tn_tensor **out)
{
    embeddings *m = (embeddings *)self;
    if (n_in != 2 || n_out != 1 || tn_rank(in[0]) != 2)
        return tni_error(TN_E_SHAPE, "ids of %d axes: want [B, T] tokens", tn_rank(in[0]));
    const int64_t t = tn_size(in[0], 1);
    if (t > m->positions)
        return tni_error(TN_E_INDEX,
                         "%" PRId64 " tokens: want at most %" PRId64 ", which have a position", t,
                         m->positions);
    const tn_device device = tn_device_of(in[0]);
    tn_tensor *at = tn_cumsum(tn_full_as(TN_SHAPE(t), 1, TN_I64, device), 0);
    tn_tensor *types = tn_is_none(in[1]) ? tn_zeros_like(in[0]) : in[1];
    tn_tensor *x = tn_add(tn_forward(m->word, in[0]), tn_forward(m->type, types));
    x = tn_add(x, tn_forward(m->position, tn_sub_scalar(at, 1)));
    out[0] = tn_dropout(tn_forward(m->norm, x), m->drop, tn_training(self));
    return TN_OK;
}

static const tn_module_type embeddings_type = { .name = "BertEmbeddings",
                                                .size = sizeof(embeddings),
                                                .forward_n = embeddings_forward };

static tn_module *embeddings_new(const tni_lm_config *c)
{
    embeddings *m = tn_module_new(&embeddings_type);
    if (!m) return NULL;
    const tn_embedding_options plain = { 0 }, padded = { .use_padding_index = c->pad >= 0,
                                                         .padding_index = c->pad };
    m->drop = c->resid_drop, m->positions = c->positions;
    tn_register_module(&m->base, "word_embeddings", &m->word,
                       tn_embedding_new(c->vocab, c->hidden, padded));
    tn_register_module(&m->base, "position_embeddings", &m->position,
                       tn_embedding_new(c->positions, c->hidden, plain));
    tn_register_module(&m->base, "token_type_embeddings", &m->type,
                       tn_embedding_new(c->token_types, c->hidden, plain));
    tn_register_module(&m->base, "LayerNorm", &m->norm, norm_new(c));
    return tn_module_done(&m->base);
}

/* ---- norm(residual + dropout(dense x)), which ends both halves of a layer -------------------- */

typedef struct output {
    tn_module base;
    tn_module *dense, *norm;
    double drop;
} output;

static tn_status output_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                tn_tensor **out)
{
    output *m = (output *)self;
    if (n_in != 2 || n_out != 1)
        return tni_error(TN_E_INVALID, "BertOutput: %d inputs: want x, residual", n_in);
    tn_tensor *y = tn_dropout(tn_forward(m->dense, in[0]), m->drop, tn_training(self));
    out[0] = tn_forward(m->norm, tn_add(y, in[1]));
    return TN_OK;
}

static const tn_module_type output_type = { .name = "BertOutput",
                                            .size = sizeof(output),
                                            .forward_n = output_forward };

static tn_module *output_new(const tni_lm_config *c, int64_t in)
{
    output *m = tn_module_new(&output_type);
    if (!m) return NULL;
    m->drop = c->resid_drop;
    tn_register_module(&m->base, "dense", &m->dense, linear_new(in, c->hidden));
    tn_register_module(&m->base, "LayerNorm", &m->norm, norm_new(c));
    return tn_module_done(&m->base);
}

/* ---- a layer: attention (self, output), intermediate, output -------------------------------- */

typedef struct bert_attention {
    tn_module base;
    tn_module *self, *output;
} bert_attention;

static tn_status bert_attention_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                        tn_tensor **out)
{
    const bert_attention *m = (const bert_attention *)self;
    if (n_in != 2 || n_out != 1)
        return tni_error(TN_E_INVALID, "BertAttention: %d inputs: want x, mask", n_in);
    tn_tensor *args[] = { in[0], TN_NONE, TN_NONE, in[1], TN_NONE }, *pair[] = { NULL, in[0] };
    tn_status status = tn_call(m->self, TNI_INPUTS, args, 1, pair);
    return status == TN_OK ? tn_call(m->output, 2, pair, 1, out) : status;
}

static const tn_module_type bert_attention_type = { .name = "BertAttention",
                                                    .size = sizeof(bert_attention),
                                                    .forward_n = bert_attention_forward };

static tn_module *bert_attention_new(const tni_lm_config *c, int64_t i)
{
    static const char *const names[] = { "query", "key", "value", NULL };
    bert_attention *m = tn_module_new(&bert_attention_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "self", &m->self, tni_lm_attention_new(c, i, names));
    tn_register_module(&m->base, "output", &m->output, output_new(c, c->hidden));
    return tn_module_done(&m->base);
}

/* act(dense x): "intermediate", and with tanh, of the first token, the pooler. */
typedef struct dense {
    tn_module base;
    tn_module *dense;
    tn_tensor *(*act)(tn_tensor *x);
} dense;

static tn_tensor *dense_forward(tn_module *self, tn_tensor *x)
{
    const dense *m = (const dense *)self;
    return m->act(tn_forward(m->dense, x));
}

static const tn_module_type dense_type = { .name = "BertDense",
                                           .size = sizeof(dense),
                                           .forward = dense_forward };

static tn_module *dense_new(int64_t in, int64_t out, tn_tensor *(*act)(tn_tensor *x))
{
    dense *m = tn_module_new(&dense_type);
    if (!m) return NULL;
    m->act = act;
    tn_register_module(&m->base, "dense", &m->dense, linear_new(in, out));
    return tn_module_done(&m->base);
}

typedef struct bert_layer {
    tn_module base;
    tn_module *attention, *inner, *output;
} bert_layer;

static tn_status bert_layer_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                    tn_tensor **out)
{
    const bert_layer *m = (const bert_layer *)self;
    if (n_in != 2 || n_out != 1)
        return tni_error(TN_E_INVALID, "BertLayer: %d inputs: want x, mask", n_in);
    tn_tensor *pair[2];
    tn_status status = tn_call(m->attention, 2, in, 1, &pair[1]);
    if (status != TN_OK) return status;
    pair[0] = tn_forward(m->inner, pair[1]);
    return tn_call(m->output, 2, pair, 1, out);
}

static const tn_module_type bert_layer_type = { .name = "BertLayer",
                                                .size = sizeof(bert_layer),
                                                .forward_n = bert_layer_forward };

static tn_module *bert_layer_new(const tni_lm_config *c, int64_t i)
{
    bert_layer *m = tn_module_new(&bert_layer_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "attention", &m->attention, bert_attention_new(c, i));
    tn_register_module(&m->base, "intermediate", &m->inner, dense_new(c->hidden, c->inner, c->act));
    tn_register_module(&m->base, "output", &m->output, output_new(c, c->inner));
    return tn_module_done(&m->base);
}

/* ---- the whole ------------------------------------------------------------------------------- */

typedef struct bert_encoder {
    tn_module base;
    tn_module *layers;
} bert_encoder;

static tn_status encoder_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                 tn_tensor **out)
{
    const bert_encoder *m = (const bert_encoder *)self;
    if (n_in != 2 || n_out != 1)
        return tni_error(TN_E_INVALID, "BertEncoder: %d inputs: want x, mask", n_in);
    tn_tensor *args[] = { in[0], in[1] };
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < tn_module_children(m->layers); i++)
        status = tn_call(tn_module_child(m->layers, i), 2, args, 1, args);
    out[0] = args[0];
    return status;
}

static const tn_module_type encoder_type = { .name = "BertEncoder",
                                             .size = sizeof(bert_encoder),
                                             .forward_n = encoder_forward };

static tn_module *encoder_new(const tni_lm_config *c)
{
    bert_encoder *m = tn_module_new(&encoder_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "layer", &m->layers, tn_module_list_new());
    for (int64_t i = 0; m->layers && i < c->layers; i++)
        if (tn_module_append(m->layers, bert_layer_new(c, i)) != TN_OK) break;
    return tn_module_done(&m->base);
}

void tni_lm_bert_register(tni_lm *m)
{
    tn_register_module(&m->base, "embeddings", &m->part[0], embeddings_new(&m->c));
    tn_register_module(&m->base, "encoder", &m->part[1], encoder_new(&m->c));
    tn_register_module(&m->base, "pooler", &m->part[2],
                       dense_new(m->c.hidden, m->c.hidden, tn_tanh));
}

/* Where a mask of ids is 0: [B, 1, 1, T], true hides. */
static tn_tensor *hidden_keys(tn_tensor *mask, const tn_tensor *ids)
{
    if (tn_is_none(mask)) return TN_NONE;
    if (tn_rank(mask) != 2 || tn_size(mask, 0) != tn_size(ids, 0) ||
        tn_size(mask, 1) != tn_size(ids, 1))
        return tni_fail(TN_E_SHAPE, "the mask of %d axes: want [B, T] as the tokens",
                        tn_rank(mask));
    return tn_unsqueeze(tn_unsqueeze(tn_logical_not(mask), 1), 1);
}

tn_status tni_lm_bert_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    tni_lm *m = (tni_lm *)self;
    if (n_in < 1 || n_in > 3 || n_out > 2)
        return tni_error(TN_E_INVALID,
                         "Bert: %d inputs, %d outputs: want ids, mask, token types, and 1 or 2",
                         n_in, n_out);
    tn_tensor *x[] = { in[0], n_in > 2 ? in[2] : TN_NONE };
    tn_status status = tn_call(m->part[0], 2, x, 1, x);
    if (status != TN_OK) return status;
    x[1] = hidden_keys(n_in > 1 ? in[1] : TN_NONE, in[0]);
    status = tn_call(m->part[1], 2, x, 1, out);
    if (status == TN_OK && n_out == 2) out[1] = tn_forward(m->part[2], tn_select(out[0], 1, 0));
    return status;
}

tn_tensor *tn_lm_embed(tn_module *m, tn_tensor *ids, tn_tensor *mask)
{
    const tni_lm *lm = tni_lm_of("tn_lm_embed", m);
    if (!lm) return NULL;
    if (!mask) return tni_poisoned_optional("tn_lm_embed", "mask");
    if (lm->c.family != TNI_LM_BERT)
        return tni_fail(TN_E_INVALID, "tn_lm_embed: %s is a decoder: want an encoder", lm->c.type);
    tn_tensor *in[] = { ids, mask }, *x;
    if (tn_call(m, 2, in, 1, &x) != TN_OK) return NULL;
    if (!tn_is_none(mask)) {
        tn_tensor *real = tn_to_dtype(tn_ne_scalar(mask, 0), tn_dtype_of(x));
        x = tn_mul(x, tn_unsqueeze(real, -1));
    }
    /* the sum will do: its length becomes 1 */
    return tn_normalize(tn_sum(x, TN_AXES(1), false), 2, -1, 1e-12);
}
