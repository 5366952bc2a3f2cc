/*
 * bench_gpt - a training step of a GPT-2 like model: forward, backward, AdamW.
 *
 *   tiny      2 layers, d  32,  2 heads, T   16, batch  2,     96 tokens: to see that it runs
 *   small     4 layers, d 128,  4 heads, T   64, batch 32,     96 tokens
 *   medium    6 layers, d 384,  6 heads, T  256, batch  8,     96 tokens
 *   gpt2     12 layers, d 768, 12 heads, T 1024, batch  8, 50,257 tokens: GPT-2 124M (Radford et
 *            al., 2019)
 * --layers, --width, --context and --batch change one of these sizes each; heads keep theirs.
 * --recompute: backward computes each block's activations again.
 * Pre-norm blocks with biases, tanh GELU, learned positions, head tied to the token table. The
 * table of gpt2 has 50,304 rows, a multiple of 64, on both sides.
 *
 * FLOPs of forward and backward, a token: 6 N + 12 L d T, N being all parameters (Chowdhery et al.,
 * PaLM, 2022, appendix B). Attention counts in full, though half of it is masked.
 *
 * Twin: torch_gpt.py
 */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

typedef struct sizes {
    const char *name;
    /* rows of the table: at least the tokens */
    int64_t layers, d, heads, context, batch, tokens, rows;
} sizes;

static const sizes configs[] = {
    { "tiny", 2, 32, 2, 16, 2, 96, 96 },
    { "small", 4, 128, 4, 64, 32, 96, 96 },
    { "medium", 6, 384, 6, 256, 8, 96, 96 },
    { "gpt2", 12, 768, 12, 1024, 8, 50257, 50304 },
};
static sizes size;

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

static const tn_module_type block_type = { .name = "Block",
                                           .size = sizeof(block),
                                           .forward = block_forward };

static tn_module *block_new(void)
{
    block *m = tn_module_new(&block_type);
    if (!m) return NULL;
    int64_t d = size.d;
    tn_register_module(&m->base, "ln1", &m->ln1,
                       tn_layer_norm_new(TN_SHAPE(d), (tn_layer_norm_options){ 0 }));
    tn_register_module(
        &m->base, "attn", &m->attn,
        tn_multihead_attention_new(d, size.heads, (tn_multihead_attention_options){ 0 }));
    tn_register_module(&m->base, "ln2", &m->ln2,
                       tn_layer_norm_new(TN_SHAPE(d), (tn_layer_norm_options){ 0 }));
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
    return tn_forward(m->lnf, tn_forward(m->h, x));
}

static const tn_module_type gpt_type = { .name = "GPT",
                                         .size = sizeof(gpt),
                                         .forward = gpt_forward };

static tn_module *gpt_new(void)
{
    gpt *m = tn_module_new(&gpt_type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "wte", &m->wte, tn_empty(TN_SHAPE(size.rows, size.d)));
    tn_register_parameter(&m->base, "wpe", &m->wpe, tn_empty(TN_SHAPE(size.context, size.d)));
    tn_register_module(&m->base, "h", &m->h, tn_sequential_from(NULL, 0));
    for (int64_t i = 0; i < size.layers; i++) tn_module_append(m->h, block_new());
    tn_register_module(&m->base, "lnf", &m->lnf,
                       tn_layer_norm_new(TN_SHAPE(size.d), (tn_layer_norm_options){ 0 }));
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
    return tn_linear_cross_entropy(tn_forward(model, x), ((gpt *)model)->wte, TN_NONE, y);
}

static void batch(int64_t step, tn_tensor **x, tn_tensor **y)
{
    bench_texts(step, size.batch, size.context, size.tokens, x, y);
}

/* What the flags change of a config. */
static void resize(const bench_flags *f)
{
    int64_t head = size.d / size.heads;
    if (f->batch) size.batch = f->batch;
    if (f->layers) size.layers = f->layers;
    if (f->context) size.context = f->context;
    if (!f->width) return;
    if (f->width % head) {
        fprintf(stderr, "bench_gpt: --width %" PRId64 ": want a multiple of %" PRId64 "\n",
                f->width, head);
        exit(2);
    }
    size.d = f->width;
    size.heads = f->width / head;
}

/* The largest of batch, 2 batch, 4 batch ... that trains, at most `most`; 0 if not even the first
 * does. */
static int64_t largest_batch(const bench_task *task, const bench_flags *f, int64_t most)
{
    int64_t fits = 0;
    for (; size.batch <= most; size.batch *= 2) {
        if (!bench_fits(task, f)) break;
        fits = size.batch;
    }
    return fits;
}

int main(int argc, char **argv)
{
    bench_flags f =
        bench_parse(argc, argv, (bench_flags){ .config = "small", .steps = 20, .warmup = 5 });
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (!strcmp(f.config, configs[i].name)) size = configs[i];
    if (!size.name) {
        fprintf(stderr, "bench_gpt: --config %s: want tiny, small, medium or gpt2\n", f.config);
        return 2;
    }
    resize(&f);
    char workload[64];
    snprintf(workload, sizeof workload, "gpt_%s", size.name);
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    tn_module *model = gpt_new();
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_to(model, f.where));
    for (int i = 0; i < size.layers; i++)
        TN_CHECK(tn_module_set_recompute(tn_module_child(((gpt *)model)->h, i), f.recompute));
    tn_optim *opt = tn_adamw(tn_parameters(model),
                             (tn_adamw_options){ .lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1 });
    TN_CHECK_PTR(opt);
    double n = (double)tn_count_parameters(model, false);
    bench_task task = { .name = bench_name(&f, workload),
                        .unit = "tokens",
                        .per_step = size.batch * size.context,
                        .flop = 6 * n + 12 * (double)(size.layers * size.d * size.context),
                        .model = model,
                        .optimizer = opt,
                        .dtype = f.dtype,
                        .loss = loss,
                        .batch = batch };
    if (f.find_batch > 0)
        bench_one(task.name, "batch", (double)largest_batch(&task, &f, f.find_batch));
    else
        bench_run(&task, &f);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(program);
    return 0;
}
