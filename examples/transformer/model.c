/*
 * model.c - ids -> token vectors + positions -> blocks -> norm -> logits: a pattern for your own
 * model. A struct begins with tn_module, a constructor registers parts by name, there is a forward.
 *
 * A block, pre-norm (Xiong et al., On Layer Normalization in the Transformer, 2020):
 *     x = x + attention(norm1(x))          each place reads itself and what came before
 *     x = x + down(gelu(up(norm2(x))))     each place on its own, 4 times as wide inside
 */
#include "model.h"

#include <math.h>
#include <string.h>

/* Options of the layers: zero fields are the defaults. */
static const tn_embedding_options embedding = { 0 };
static const tn_multihead_attention_options attention = { 0 };
static const tn_layer_norm_options norm = { 0 };
static const tn_linear_options linear = { 0 };

typedef struct block {
    tn_module base;
    tn_module *norm1, *attention, *norm2, *up, *down, *dropout;
} block;

/* in: x [B, T, d] and mask [T, T] (true: place t may not read place s). out: x again. */
static tn_status block_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                               tn_tensor **out)
{
    const tn_attention_masks masks = { .mask = in[1] };
    block *m = (block *)self;
    tn_tensor *h = tn_forward(m->norm1, in[0]);
    h = tn_multihead_attention_forward(m->attention, h, h, h, masks, NULL);
    tn_tensor *x = tn_add(in[0], tn_forward(m->dropout, h));
    h = tn_gelu(tn_forward(m->up, tn_forward(m->norm2, x)));
    out[0] = tn_add(x, tn_forward(m->dropout, tn_forward(m->down, h)));
    return n_in == 2 && n_out == 1 && out[0] ? TN_OK : tn_error_status();
}

static tn_module *block_new(gpt_sizes s)
{
    static const tn_module_type type = { .name = "Block",
                                         .size = sizeof(block),
                                         .forward_n = block_forward };
    int64_t d = s.d_model;
    block *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "norm1", &m->norm1, tn_layer_norm_new(TN_SHAPE(d), norm));
    tn_register_module(&m->base, "attention", &m->attention,
                       tn_multihead_attention_new(d, s.heads, attention));
    tn_register_module(&m->base, "norm2", &m->norm2, tn_layer_norm_new(TN_SHAPE(d), norm));
    tn_register_module(&m->base, "up", &m->up, tn_linear_new(d, 4 * d, linear));
    tn_register_module(&m->base, "down", &m->down, tn_linear_new(4 * d, d, linear));
    tn_register_module(&m->base, "dropout", &m->dropout, tn_dropout_new(s.dropout));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

typedef struct gpt {
    tn_module base;
    tn_module *token, *position, *blocks, *norm, *head;
    tn_tensor *mask;
} gpt;

static tn_tensor *gpt_forward(tn_module *self, tn_tensor *ids)
{
    gpt *m = (gpt *)self;
    int64_t t = tn_size(ids, 1);
    tn_tensor *x = tn_forward(m->position, tn_forward(m->token, ids));
    tn_tensor *mask = tn_narrow(tn_narrow(m->mask, 0, 0, t), 1, 0, t);
    for (int i = 0; i < tn_module_children(m->blocks); i++) {
        tn_tensor *in[2] = { x, mask };
        if (tn_call(tn_module_child(m->blocks, i), 2, in, 1, &x) != TN_OK) return NULL;
    }
    return tn_forward(m->head, tn_forward(m->norm, x));
}

/*
 * Initial values after GPT-2 (Radford et al., 2019, sec. 2.3): matrices N(0, 0.02), biases 0, and
 * the two products that write into x of every block smaller by sqrt(2 layers), so that the sum of
 * their contributions does not grow with depth. The token table keeps N(0, 1): its rows must stand
 * out beside the positions, whose size is sqrt(1/2).
 */
static void gpt_init(gpt *m, int layers)
{
    tn_list *list = tn_parameters(&m->base);
    for (int i = 0; list && i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        bool writes = strstr(e->name, "out_proj.weight") || strstr(e->name, "down.weight");
        double deviation = writes ? 0.02 / sqrt(2.0 * layers) : 0.02;
        if (!strcmp(e->name, "token.weight")) deviation = 1;
        if (tn_rank(e->tensor) >= 2) tn_init_normal(e->tensor, 0, deviation);
        if (strstr(e->name, "bias")) tn_init_constant(e->tensor, 0);
    }
}

tn_module *gpt_new(gpt_sizes s)
{
    static const tn_module_type type = { .name = "GPT",
                                         .size = sizeof(gpt),
                                         .forward = gpt_forward };
    const tn_positional_encoding_options position = { .dropout = s.dropout };
    int64_t d = s.d_model, t = s.context;
    gpt *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "token", &m->token, tn_embedding_new(s.vocab, d, embedding));
    tn_register_module(&m->base, "position", &m->position,
                       tn_positional_encoding_new(d, t, position));
    tn_register_module(&m->base, "blocks", &m->blocks, tn_module_list_new());
    for (int64_t i = 0; i < s.layers; i++) tn_module_append(m->blocks, block_new(s));
    tn_register_module(&m->base, "norm", &m->norm, tn_layer_norm_new(TN_SHAPE(d), norm));
    tn_register_module(&m->base, "head", &m->head, tn_linear_new(d, s.vocab, linear));

    /* mask[t][s] is true where s > t: what lies ahead. A buffer: it goes where the model goes. */
    tn_tensor *ahead = tn_to_dtype(tn_triu(tn_ones(TN_SHAPE(t, t)), 1), TN_BOOL);
    tn_register_buffer(&m->base, "mask", &m->mask, ahead, TN_NON_PERSISTENT);
    gpt_init(m, s.layers);
    return tn_module_done(&m->base);
}
