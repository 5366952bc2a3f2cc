/*
 * ctc - a recogniser: a bidirectional LSTM reads signals and learns which digits they spell,
 * without being told where in the signal each one is. That is what the CTC loss is for (Graves et
 * al., Connectionist temporal classification, 2006).
 * usage: ctc [STEPS]     20 without STEPS; with 300 it reads well
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include <tenon/tenon.h>

enum {
    DIGITS = 10,
    CLASSES = 1 + DIGITS, /* class 0 is the blank: "no digit begins here" */
    LABELS = 5,           /* S: digits of a sequence */
    FRAMES = 4,           /* how long a digit lasts */
    TIME = LABELS * FRAMES,
    FEATURES = 12, /* numbers in a frame, as the pixels of a column of handwriting */
    HIDDEN = 32,   /* of the LSTM, in each direction */
    BATCH = 16
};

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct recogniser {
    tn_module base; /* every module's struct begins with this */
    tn_module *lstm, *classify;
} recogniser;

/* signals [N, T, FEATURES] -> [T, N, CLASSES]: at each time the log of each class' probability */
static tn_tensor *recogniser_forward(tn_module *self, tn_tensor *x)
{
    recogniser *m = (recogniser *)self;
    tn_tensor *h =
        tn_forward(m->lstm, x); /* [N, T, 2 HIDDEN]: what came before, what comes after */
    tn_tensor *log_p = tn_log_softmax(tn_forward(m->classify, h), -1);
    return tn_transpose(log_p, 0, 1); /* as the loss wants it */
}

static tn_module *recogniser_new(void)
{
    static const tn_module_type type = { .name = "Recogniser",
                                         .size = sizeof(recogniser),
                                         .forward = recogniser_forward };
    const tn_recurrent_options both_ways = { .bidirectional = true };
    recogniser *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "lstm", &m->lstm, tn_lstm_new(FEATURES, HIDDEN, both_ways));
    tn_register_module(&m->base, "classify", &m->classify,
                       tn_linear_new(2 * HIDDEN, CLASSES, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Labels [N, S] in 1..DIGITS and signals [N, T, FEATURES]: the shape of each digit, a row of shapes
 * [DIGITS, FRAMES FEATURES], one after another, under noise. */
static tn_tensor *draw_signals(tn_tensor *shapes, tn_tensor **labels)
{
    tn_tensor *digits = tn_randint(0, DIGITS, TN_SHAPE(BATCH, LABELS));
    tn_tensor *signals = tn_embedding(shapes, digits, -1); /* -1: no row is padding */
    signals = tn_reshape(signals, TN_SHAPE(BATCH, TIME, FEATURES));
    *labels = tn_add_scalar(digits, 1);
    return tn_add(signals, tn_mul_scalar(tn_randn(TN_SHAPE(BATCH, TIME, FEATURES)), 0.3));
}

/* Prints what the model reads in the first signals: the likeliest class of each time, equal
 * neighbours as one, without blanks. */
static void read_aloud(tn_module *model, tn_tensor *signals, tn_tensor *labels)
{
    tn_tensor *best = tn_argmax(tn_forward(model, signals), -1, false); /* [T, N] */
    TN_CHECK_PTR(best);
    for (int n = 0; n < 3; n++) {
        printf("it was ");
        for (int s = 0; s < LABELS; s++) printf("%d", (int)tn_at(labels, TN_INDEX(n, s)) - 1);
        printf(", it read ");
        for (int t = 0, last = 0; t < TIME; t++) {
            int class = (int)tn_at(best, TN_INDEX(t, n));
            if (class && class != last) printf("%d", class - 1);
            last = class;
        }
        printf("\n");
    }
}

/* ---- training -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 20;
    if (argc > 2 || steps < 1) return fprintf(stderr, "usage: ctc [STEPS]\n"), 2;

    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = recogniser_new();
    tn_sgd_options options = { .lr = 0.1, .momentum = 0.9 };
    tn_optim *optimizer = tn_sgd(tn_parameters(model), options);
    tn_tensor *shapes = tn_randn(TN_SHAPE(DIGITS, FRAMES * FEATURES));
    tn_tensor *times = tn_full_as(TN_SHAPE(BATCH), TIME, TN_I64, tn_cpu());
    tn_tensor *counts = tn_full_as(TN_SHAPE(BATCH), LABELS, TN_I64, tn_cpu());
    tn_tensor *labels, *signals;
    TN_CHECK_PTR(optimizer); /* if it or the model failed: says why, and ends the program */

    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin(); /* owns what this step makes */
        signals = draw_signals(shapes, &labels);
        tn_tensor *log_p = tn_forward(model, signals);
        tn_tensor *loss = tn_ctc_loss(log_p, labels, times, counts, 0, false, TN_MEAN);
        TN_CHECK(tn_optim_zero_grad(optimizer)); /* else gradients would add up */
        TN_CHECK(tn_backward(loss));             /* a gradient for each parameter */
        TN_CHECK(tn_optim_step(optimizer));      /* changes the parameters */
        printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    TN_NO_GRAD signals = draw_signals(shapes, &labels), read_aloud(model, signals, labels);
    tn_optim_free(optimizer), tn_module_drop(model), tn_scope_end(program);
    return fflush(stdout) ? perror("ctc: standard output"), 1 : 0;
}
