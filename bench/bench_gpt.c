/*
 * bench_gpt - a training step of a GPT-2 like model: forward, backward, AdamW, 2,048 tokens.
 *
 *   small    4 layers, d 128, 4 heads, T  64, batch 32
 *   medium   6 layers, d 384, 6 heads, T 256, batch  8
 * Pre-norm blocks with biases, tanh GELU, learned positions, head tied to the token table,
 * 96 tokens.
 * Twin: torch_gpt.py
 */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

enum { VOCAB = 96 };
static struct {
    const char *name;
    int64_t layers, d, heads, context, batch;
} size;

typedef struct block {
    tn_module base;
    tn_module *ln1, *attn, *ln2, *fc1, *fc2;
} block;

static tn_tensor *block_forward(tn_module *self, tn_tensor *x)
{
    block *m = (block *)self;
    tn_tensor *h = tn_forward(m->ln1, x);
    x = tn_add(x, tn_multihead_attention_forward(m->attn, h, h, h,
                                                 (tn_attention_masks){ .causal = true }, NULL));
    h = tn_gelu_tanh(tn_forward(m->fc1, tn_forward(m->ln2, x)));
    return tn_add(x, tn_forward(m->fc2, h));
}

static const tn_module_type block_type = { .name = "Block", .size = sizeof(block),
                                           .forward = block_forward };

static tn_module *block_new(void)
{
    block *m = tn_module_new(&block_type);
    if (!m) return NULL;
    int64_t d = size.d;
    tn_register_module(&m->base, "ln1", &m->ln1,
                       tn_layernorm_new(TN_SHAPE(d), (tn_layernorm_options){ 0 }));
    tn_register_module(&m->base, "attn", &m->attn,
                       tn_multihead_attention_new(d, size.heads,
                                                  (tn_multihead_attention_options){ 0 }));
    tn_register_module(&m->base, "ln2", &m->ln2,
                       tn_layernorm_new(TN_SHAPE(d), (tn_layernorm_options){ 0 }));
    tn_register_module(&m->base, "fc1", &m->fc1, tn_linear_new(d, 4 * d, (tn_linear_options){ 0 }));
    tn_register_module(&m->base, "fc2", &m->fc2, tn_linear_new(4 * d, d, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}

typedef struct gpt {
    tn_module base;
    tn_tensor *wte, *wpe;
    tn_module *h, *lnf;
} gpt;

static tn_tensor *gpt_forward(tn_module *self, tn_tensor *ids)
{
    gpt *m = (gpt *)self;
    tn_tensor *x = tn_add(tn_embedding(m->wte, ids, -1), m->wpe);
    x = tn_forward(m->lnf, tn_forward(m->h, x));
    return tn_linear(x, m->wte, TN_NONE);
}

static const tn_module_type gpt_type = { .name = "GPT", .size = sizeof(gpt),
                                         .forward = gpt_forward };

static tn_module *gpt_new(void)
{
    gpt *m = tn_module_new(&gpt_type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "wte", &m->wte, tn_empty(TN_SHAPE(VOCAB, size.d)));
    tn_register_parameter(&m->base, "wpe", &m->wpe, tn_empty(TN_SHAPE(size.context, size.d)));
    tn_register_module(&m->base, "h", &m->h, tn_sequential_of(NULL, 0));
    for (int64_t i = 0; i < size.layers; i++) tn_module_append(m->h, block_new());
    tn_register_module(&m->base, "lnf", &m->lnf,
                       tn_layernorm_new(TN_SHAPE(size.d), (tn_layernorm_options){ 0 }));
    tn_list *list = tn_parameters(&m->base);
    for (int i = 0; list && i < list->n; i++) {
        tn_entry *e = &list->entry[i];
        if (tn_rank(e->tensor) > 1) tn_init_normal(e->tensor, 0, 0.02);
        if (strstr(e->name, "bias")) tn_init_constant(e->tensor, 0);
    }
    return tn_module_done(&m->base);
}

static tn_tensor *loss(tn_module *model, tn_tensor *x, tn_tensor *y)
{
    return tn_cross_entropy(tn_flatten(tn_forward(model, x), 0, 1), tn_flatten(y, 0, 1));
}

static void batch(int64_t step, tn_tensor **x, tn_tensor **y)
{
    static int64_t ids[8 * 257 + 32 * 65];
    bench_tokens(step, size.batch, size.context, VOCAB, ids);
    tn_tensor *all = tn_from_data(ids, TN_SHAPE(size.batch, size.context + 1), TN_I64);
    *x = tn_contiguous(tn_narrow(all, 1, 0, size.context));
    *y = tn_contiguous(tn_narrow(all, 1, 1, size.context));
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .config = "small", .steps = 20,
                                                           .warmup = 5 });
    char name[64];
    if (!strcmp(f.config, "small")) {
        size.layers = 4, size.d = 128, size.heads = 4, size.context = 64, size.batch = 32;
    } else if (!strcmp(f.config, "medium")) {
        size.layers = 6, size.d = 384, size.heads = 6, size.context = 256, size.batch = 8;
    } else {
        fprintf(stderr, "bench_gpt: --config %s: wanted small or medium\n", f.config);
        return 2;
    }
    snprintf(name, sizeof name, "tenon_gpt_%s", f.config);
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    tn_module *model = gpt_new();
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 3e-4, .beta2 = 0.95,
                                                                       .weight_decay = 0.1 });
    TN_CHECK_PTR(opt);
    bench_run(&(bench_task){ .name = name, .unit = "tokens", .per_step = size.batch * size.context,
                             .model = model, .optimizer = opt, .loss = loss, .batch = batch }, &f);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(program);
    return 0;
}
