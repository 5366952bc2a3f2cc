/*
 * gpt - a small GPT on characters, in one file: it learns from a text which character comes next,
 * says how well it does so on text it has not seen, and writes some text of its own.
 * usage: gpt [TEXT] [STEPS]     without TEXT it reads build/kjv.txt, which scripts/demo writes
 * The seed is fixed: the same text and the same number of steps give the same output.
 */
#include <tenon/tenon.h>

enum {
    CONTEXT = 64, /* T: how many characters the model sees at once */
    WIDTH = 128,  /* C: numbers that represent each of them */
    HEADS = 4,    /* of attention, in each block */
    BLOCKS = 4,
    BATCH = 16,  /* B: pieces of text in a training step */
    SAMPLE = 500 /* characters to write at the end */
};

/* ---- the model ------------------------------------------------------------------------------- */

/* Options of the layers: zero fields are the defaults. */
static const tn_embedding_options embedding = { 0 };
static const tn_positional_encoding_options position = { 0 };
static const tn_multihead_attention_options attention = { 0 };
static const tn_layer_norm_options norm = { 0 };
static const tn_linear_options linear = { 0 };

/* A block is attention and then an MLP. Each reads a normalized x and adds its result to x: these
 * residual connections let gradients pass through many blocks. */
typedef struct block {
    tn_module base; /* every module's struct begins with this */
    tn_module *norm1, *attention, *norm2, *mlp, *dropout;
} block;

static tn_tensor *block_forward(tn_module *self, tn_tensor *x) /* x and result: [B, T, C] */
{
    const tn_attention_masks masks = { .causal = true }; /* look back, never ahead */
    block *m = (block *)self;
    tn_tensor *h = tn_forward(m->norm1, x);
    h = tn_multihead_attention_forward(m->attention, h, h, h, masks, NULL);
    x = tn_add(x, tn_forward(m->dropout, h));
    h = tn_forward(m->mlp, tn_forward(m->norm2, x)); /* at each position by itself */
    return tn_add(x, tn_forward(m->dropout, h));
}

static tn_module *block_new(void)
{
    static const tn_module_type type = { .name = "Block",
                                         .size = sizeof(block),
                                         .forward = block_forward };
    block *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "norm1", &m->norm1, tn_layer_norm_new(TN_SHAPE(WIDTH), norm));
    tn_register_module(&m->base, "attention", &m->attention,
                       tn_multihead_attention_new(WIDTH, HEADS, attention));
    tn_register_module(&m->base, "norm2", &m->norm2, tn_layer_norm_new(TN_SHAPE(WIDTH), norm));
    tn_register_module(&m->base, "mlp", &m->mlp,
                       tn_sequential(tn_linear_new(WIDTH, 4 * WIDTH, linear), tn_gelu_new(),
                                     tn_linear_new(4 * WIDTH, WIDTH, linear)));
    tn_register_module(&m->base, "dropout", &m->dropout, tn_dropout_new(0.1));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

/* ids [B, T] -> logits [B, T, V]: at each position, a score for each character that may follow */
static tn_module *gpt_new(int vocab)
{
    tn_module *model = tn_sequential(tn_embedding_new(vocab, WIDTH, embedding),
                                     tn_positional_encoding_new(WIDTH, CONTEXT, position));
    for (int i = 0; i < BLOCKS; i++) TN_CHECK(tn_module_append(model, block_new()));
    TN_CHECK(tn_module_append(model, tn_layer_norm_new(TN_SHAPE(WIDTH), norm)));
    TN_CHECK(tn_module_append(model, tn_linear_new(WIDTH, vocab, linear))); /* the head */
    return model;
}

/* ---- training -------------------------------------------------------------------------------- */

/* The loss of a random batch: the mean over all positions of -log p(the character that follows). */
static tn_tensor *batch_loss(tn_module *model, const tn_text *text, bool valid)
{
    tn_tensor *x, *y; /* ids [B, T]; y is the same text, one character further on */
    TN_CHECK(tn_text_batch(text, valid, tn_default_generator(), BATCH, CONTEXT, &x, &y));
    tn_tensor *logits = tn_forward(model, x);
    tn_tensor *loss = tn_cross_entropy(tn_flatten(logits, 0, 1), tn_flatten(y, 0, 1));
    TN_CHECK_PTR(loss);
    return loss;
}

static void train(tn_module *model, const tn_text *text, int steps)
{
    tn_adamw_options options = { .lr = 2e-3, .beta2 = 0.99, .weight_decay = 0.01 };
    tn_optim *optimizer = tn_adamw(tn_parameters(model), options);
    /* the learning rate: up to lr in the first tenth of the steps, then down to a tenth of it */
    tn_scheduler *schedule = tn_warmup_cosine_lr(optimizer, steps / 10, steps, options.lr / 10);
    TN_CHECK_PTR(schedule);
    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin();                /* owns what this step makes */
        tn_tensor *loss = batch_loss(model, text, false); /* batch and forward */
        TN_CHECK(tn_optim_zero_grad(optimizer));          /* else gradients would add up */
        TN_CHECK(tn_backward(loss));                      /* a gradient for each parameter */
        TN_CHECK(tn_optim_step(optimizer));               /* changes the parameters */
        TN_CHECK(tn_scheduler_step(schedule));            /* the next step's learning rate */
        if (step == 1 || step % 100 == 0) printf("step %4d  loss %.4f\n", step, tn_item(loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    tn_scheduler_free(schedule);
    tn_optim_free(optimizer);
}

/* The mean loss of 20 batches of the text that was held out. */
static double validate(tn_module *model, const tn_text *text)
{
    double sum = 0;
    for (int i = 0; i < 20; i++) TN_SCOPE sum += tn_item(batch_loss(model, text, true));
    return sum / 20;
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Draws an id, each with its probability in p [V]. */
static int draw(tn_tensor *p)
{
    double u = tn_item(tn_rand(TN_SCALAR)); /* uniform in [0, 1) */
    int id = 0, last = (int)tn_numel(p) - 1;
    while (id < last && (u -= tn_at(p, TN_INDEX(id))) >= 0) id++;
    return id;
}

/* Writes one character after another, each drawn after the model has read those before it. A low
 * temperature keeps to the likely ones; with 1 the probabilities are the model's own. */
static void sample(tn_module *model, const tn_text *text, double temperature)
{
    int64_t ids[1 + SAMPLE] = { 0 }; /* the first one, a newline in most texts, is only read */
    for (int n = 1; n <= SAMPLE; n++) {
        tn_scope scope = tn_scope_begin();
        int seen = n < CONTEXT ? n : CONTEXT;
        tn_tensor *logits = tn_forward(model, tn_from_ints(ids + n - seen, TN_SHAPE(1, seen)));
        tn_tensor *last = tn_select(tn_select(logits, 0, 0), 0, -1); /* [V]: what follows */
        tn_tensor *p = tn_softmax(tn_div_scalar(last, temperature), 0);
        TN_CHECK_PTR(p);
        ids[n] = draw(p);
        putchar(text->byte_of[ids[n]]);
        tn_scope_end(scope);
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    char *end = "";
    long steps = argc > 2 ? strtol(argv[2], &end, 10) : 1000;
    if (argc > 3 || *end || steps < 1 || steps > 1000000 || (argc > 1 && argv[1][0] == '-'))
        return fprintf(stderr, "usage: gpt [TEXT] [STEPS]\n"), 2;
    tn_text *text = tn_text_load(argc > 1 ? argv[1] : "build/kjv.txt", 0.1); /* a tenth held out */
    if (!text) return fprintf(stderr, "gpt: %s\n", tn_error()), 1;
    if (text->n_valid <= CONTEXT) return fprintf(stderr, "gpt: the text is too short\n"), 1;

    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = gpt_new(text->vocab);
    printf("%d different characters, %d parameters\n", text->vocab,
           (int)tn_count_parameters(model, true));
    train(model, text, (int)steps);
    TN_CHECK(tn_eval(model)); /* no dropout from here on */
    TN_NO_GRAD                /* and no tape, as no backward follows */
    {
        printf("validation loss %.4f\n\n", validate(model, text));
        sample(model, text, 0.8);
    }
    tn_module_drop(model), tn_text_free(text), tn_scope_end(program);
    return fflush(stdout) ? perror("gpt: standard output"), 1 : 0;
}
