/*
 * seq2seq - an encoder and a decoder with attention (Luong et al., Effective approaches to
 * attention-based neural machine translation, 2015, section 3.1), which learn to write a sequence
 * of digits backwards.
 * usage: seq2seq [STEPS]     20 without STEPS; with 600 it writes well
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include <tenon/tenon.h>

enum {
    DIGITS = 10,
    START = DIGITS, /* what the decoder reads first */
    VOCAB = DIGITS + 1,
    LENGTH = 8, /* T: digits of a sequence */
    WIDTH = 32, /* C: numbers of an embedding and of a state */
    BATCH = 16
};

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct translator {
    tn_module base; /* every module's struct begins with this */
    tn_module *embed, *encoder, *decoder, *combine, *head;
} translator;

/* What the encoder knows: a state at each place, and the last one, where the decoder begins. */
static tn_tensor *encode(translator *m, tn_tensor *source, tn_recurrent_state *state)
{
    *state = (tn_recurrent_state){ 0 };
    return tn_recurrent_forward(m->encoder, tn_forward(m->embed, source), state); /* [N, T, C] */
}

/* Ids [N, t] that stand before -> [N, t, VOCAB]: scores of what comes next. Moves state on. */
static tn_tensor *decode(translator *m, tn_tensor *ids, tn_tensor *memory,
                         tn_recurrent_state *state)
{
    tn_tensor *h = tn_recurrent_forward(m->decoder, tn_forward(m->embed, ids), state);
    /* a mean of the encoder's states, in which those that fit h count most */
    tn_tensor *context = tn_scaled_dot_product_attention(h, memory, memory, TN_NONE, false, 1);
    tn_tensor *both[] = { context, h };
    h = tn_tanh(tn_forward(m->combine, tn_cat(both, 2, -1)));
    return tn_forward(m->head, h);
}

/* in: source [N, T] and what stands before each place of the target [N, T]; out: scores */
static tn_status translator_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                    tn_tensor **out)
{
    (void)n_in, (void)n_out;
    translator *m = (translator *)self;
    tn_recurrent_state state;
    tn_tensor *memory = encode(m, in[0], &state);
    out[0] = decode(m, in[1], memory, &state);
    return out[0] ? TN_OK : tn_error_status();
}

static tn_module *translator_new(void)
{
    static const tn_module_type type = { .name = "Translator",
                                         .size = sizeof(translator),
                                         .forward_n = translator_forward };
    const tn_recurrent_options gru = { 0 };
    const tn_linear_options linear = { 0 };
    translator *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "embed", &m->embed,
                       tn_embedding_new(VOCAB, WIDTH, (tn_embedding_options){ 0 }));
    tn_register_module(&m->base, "encoder", &m->encoder, tn_gru_new(WIDTH, WIDTH, gru));
    tn_register_module(&m->base, "decoder", &m->decoder, tn_gru_new(WIDTH, WIDTH, gru));
    tn_register_module(&m->base, "combine", &m->combine, tn_linear_new(2 * WIDTH, WIDTH, linear));
    tn_register_module(&m->base, "head", &m->head, tn_linear_new(WIDTH, VOCAB, linear));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

/* ---- training -------------------------------------------------------------------------------- */

/* The mean of -log p(the digit that comes next), of random digits that are to be written backwards:
 * the decoder reads the right digits before each place, not its own ("teacher forcing"). */
static tn_tensor *batch_loss(tn_module *model)
{
    tn_tensor *source = tn_randint(0, DIGITS, TN_SHAPE(BATCH, LENGTH));
    tn_tensor *target = tn_flip(source, TN_AXES(1));
    tn_tensor *start = tn_full_as(TN_SHAPE(BATCH, 1), START, TN_I64, tn_cpu());
    tn_tensor *before[] = { start, tn_narrow(target, 1, 0, LENGTH - 1) };
    tn_tensor *in[] = { source, tn_cat(before, 2, 1) }, *scores;
    TN_CHECK(tn_call(model, 2, in, 1, &scores));
    return tn_cross_entropy(scores, target);
}

/* Writes the digits 1, 2, ... backwards: each one is read again to write the next. */
static void write_backwards(translator *m)
{
    tn_recurrent_state state;
    tn_tensor *source = tn_reshape(tn_arange(1, LENGTH + 1, 1, TN_I64), TN_SHAPE(1, LENGTH));
    tn_tensor *memory = encode(m, source, &state);
    tn_tensor *id = tn_full_as(TN_SHAPE(1, 1), START, TN_I64, tn_cpu());
    for (int t = 0; t < LENGTH; t++) {
        id = tn_argmax(decode(m, id, memory, &state), -1, false); /* [1, 1] */
        TN_CHECK_PTR(id);
        printf("%d ", (int)tn_item(id));
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    char *end = "";
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20;
    if (argc > 2 || steps < 1 || *end) return fprintf(stderr, "usage: seq2seq [STEPS]\n"), 2;

    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = translator_new();
    tn_sgd_options options = { .lr = 0.2, .momentum = 0.9 };
    tn_optim *optimizer = tn_sgd(tn_parameters(model), options);
    TN_CHECK_PTR(optimizer); /* if it or the model failed: says why, and ends the program */

    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin(); /* owns what this step makes */
        tn_tensor *loss = batch_loss(model);
        TN_CHECK(tn_optim_zero_grad(optimizer)); /* else gradients would add up */
        TN_CHECK(tn_backward(loss));             /* a gradient for each parameter */
        TN_CHECK(tn_optim_step(optimizer));      /* changes the parameters */
        printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    TN_NO_GRAD write_backwards((translator *)model);
    tn_optim_free(optimizer), tn_module_drop(model), tn_scope_end(program);
    return fflush(stdout) ? perror("seq2seq: standard output"), 1 : 0;
}
