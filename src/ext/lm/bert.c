/*
 * bert.c - BERT: layers of attention to both sides, each of the two sums before a norm.
 *
 * Source: Devlin et al. (2019), section 3; the names are those of transformers' BertModel.
 */
#include "ext/lm/model.h"

/* A module of other modules, which it only names. */
TNI_TYPE(group, "BertPart", tn_module, .forward = NULL)

typedef struct part {
    const char *name;
    tn_module *module;
} part;

static tn_module *group_new(int n, const part *parts)
{
    tn_module *m = tn_module_new(&group_type);
    for (int i = 0; i < n; i++) tn_register_module(m, parts[i].name, NULL, parts[i].module);
    return tn_module_done(m);
}
#define GROUP(...)                                                                                 \
    group_new(sizeof((part[]){ __VA_ARGS__ }) / sizeof(part), (part[]){ __VA_ARGS__ })

static tn_module *linear_new(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

/* norm(residual + dropout(dense x)), by a group of dense and norm. */
static tn_tensor *ended(tn_module *m, tn_tensor *x, tn_tensor *residual, double drop)
{
    x = tn_dropout(tn_forward(tn_module_child(m, 0), x), drop, tn_training(m));
    return tn_forward(tn_module_child(m, 1), tn_add(x, residual));
}

/* ---- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    tn_module base;
    tn_module *attention, *inner, *output;
    tn_tensor *(*act)(tn_tensor *x);
    double drop;
} layer;

static tn_status layer_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                               tn_tensor **out)
{
    const layer *m = (const layer *)self;
    tn_tensor *x;
    TNI_TRY(tni_lm_called(self, n_in, in, TNI_INPUTS, n_out));
    TNI_TRY(tn_call(tn_module_child(m->attention, 0), n_in, in, 1, &x));
    x = ended(tn_module_child(m->attention, 1), x, in[TNI_X], m->drop);
    out[0] = ended(m->output, m->act(tn_forward(tn_module_child(m->inner, 0), x)), x, m->drop);
    return TN_OK;
}

TNI_TYPE(layer, "BertLayer", layer, .forward_n = layer_forward)

static tn_module *layer_new(const tni_lm_config *c, int64_t i)
{
    static const char *const names[] = { "query", "key", "value", NULL };
    layer *m = tn_module_new(&layer_type);
    if (!m) return NULL;
    m->act = c->act, m->drop = c->resid_drop;
    tn_register_module(&m->base, "attention", &m->attention,
                       GROUP({ "self", tni_lm_attention_new(c, i, names) },
                             { "output", GROUP({ "dense", linear_new(c->hidden, c->hidden) },
                                               { "LayerNorm", tni_lm_norm_new(c) }) }));
    tn_register_module(&m->base, "intermediate", &m->inner,
                       GROUP({ "dense", linear_new(c->hidden, c->inner) }));
    tn_register_module(
        &m->base, "output", &m->output,
        GROUP({ "dense", linear_new(c->inner, c->hidden) }, { "LayerNorm", tni_lm_norm_new(c) }));
    return tn_module_done(&m->base);
}

/* ---- the whole ------------------------------------------------------------------------------- */

void tni_lm_bert_register(tni_lm *m)
{
    const tni_lm_config *c = &m->c;
    const tn_embedding_options plain = { 0 };
    const tn_embedding_options padded = { .use_padding_index = c->pad >= 0,
                                          .padding_index = c->pad };
    tn_module *layers = tn_module_list_new();
    for (int64_t i = 0; layers && i < c->layers; i++)
        if (tn_module_append(layers, layer_new(c, i)) != TN_OK) break;
    tn_register_module(
        &m->base, "embeddings", &m->part[0],
        GROUP({ "word_embeddings", tn_embedding_new(c->vocab, c->hidden, padded) },
              { "position_embeddings", tn_embedding_new(c->positions, c->hidden, plain) },
              { "token_type_embeddings", tn_embedding_new(c->token_types, c->hidden, plain) },
              { "LayerNorm", tni_lm_norm_new(c) }));
    tn_register_module(&m->base, "encoder", &m->part[1], GROUP({ "layer", layers }));
    tn_register_module(&m->base, "pooler", &m->part[2],
                       GROUP({ "dense", linear_new(c->hidden, c->hidden) }));
}

static tn_tensor *embed(const tni_lm *m, tn_tensor *ids, tn_tensor *types)
{
    const tn_module *parts = m->part[0];
    if (tn_is_none(types)) types = tn_zeros_like(ids);
    tn_tensor *x = tn_add(tn_forward(tn_module_child(parts, 0), ids),
                          tn_forward(tn_module_child(parts, 2), types));
    x = tn_add(x, tn_forward(tn_module_child(parts, 1), tni_lm_positions(ids, TN_NONE, NULL)));
    return tn_dropout(tn_forward(tn_module_child(parts, 3), x), m->c.resid_drop,
                      tn_training(&m->base));
}

static tn_status check(const tni_lm *m, int n_in, tn_tensor *const *in, int n_out)
{
    const tn_shape ids = tn_shape_get(in[0]);
    bool fits = n_in <= 3 && n_out <= 2 && ids.rank == 2 && tn_numel(in[0]) > 0 &&
                tn_size(in[0], 1) <= m->c.positions;
    for (int i = 1; fits && i < n_in; i++) {
        const tn_shape shape = tn_shape_get(in[i]);
        fits = tn_is_none(in[i]) || tni_shape_equal(&shape, &ids);
    }
    if (fits) return TN_OK;
    return tni_error(TN_E_SHAPE,
                     "bert: %d inputs, %d outputs, ids %s: want ids [B, T] with T at most %" PRId64
                     ", a mask and types of that shape or none, and 1 or 2 outputs",
                     n_in, n_out, tni_shape_text(&ids), m->c.positions);
}

tn_status tni_lm_bert_forward(const tni_lm *m, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    TNI_TRY(check(m, n_in, in, n_out));
    tn_tensor *x[] = { embed(m, in[0], n_in > 2 ? in[2] : TN_NONE), TN_NONE, TN_NONE, TN_NONE,
                       TN_NONE };
    if (n_in > 1 && !tn_is_none(in[1])) /* [B, 1, 1, T] */
        x[TNI_MASK] = tn_unsqueeze(tn_unsqueeze(tn_eq_scalar(in[1], 0), 1), 1);
    const tn_module *layers = tn_module_child(m->part[1], 0);
    for (int i = 0; i < tn_module_children(layers); i++)
        TNI_TRY(tn_call(tn_module_child(layers, i), TNI_INPUTS, x, 1, x));
    out[0] = x[0];
    if (n_out == 2)
        out[1] = tn_tanh(tn_forward(tn_module_child(m->part[2], 0), tn_select(x[0], 1, 0)));
    return TN_OK;
}
