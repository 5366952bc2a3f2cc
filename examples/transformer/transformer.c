/*
 * transformer - trains a small decoder-only transformer on characters of a text, then writes some.
 *
 *     transformer --text FILE [--save FILE.safetensors]
 *     transformer --load FILE.safetensors --generate 200 --prompt "And God said"
 *
 * model.c has the model, ../training.c the loop over steps.
 */
#include "../training.h"
#include "model.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static const char *path, *prompt = "", *vocabulary = "", *text_hash = "";
static int context = 64, layers = 4, heads = 4, d_model = 128, warmup = 100, generate = 600, top_k;
static double dropout, lr = 2e-3, weight_decay = 0.01, clip = 1, temperature = 0.7;

static ex_option options[] = {
    EX_TEXT("text", path, "FILE", EX_RUN | EX_FREE | EX_READ,
            "to learn; its last tenth is held out"),
    EX_NUMBER("steps", ex.total, 0, EX_BIG, EX_RUN | EX_FREE,
              "training steps; another number with --resume: the schedule is stretched to it"),
    EX_NUMBER("batch", ex.batch, 1, 65536, EX_RUN, "sequences a step"),
    EX_NUMBER("context", context, 1, 4096, EX_MODEL, "characters a sequence"),
    EX_NUMBER("layers", layers, 0, 1000, EX_MODEL, "blocks"),
    EX_NUMBER("heads", heads, 1, 1024, EX_MODEL, "attention heads a block"),
    EX_NUMBER("d-model", d_model, 1, 65536, EX_MODEL, "width, a multiple of --heads"),
    EX_NUMBER("dropout", dropout, 0, 0.99, EX_RUN, "probability of a zero"),
    EX_NUMBER("lr", lr, 1e-12, 100, EX_RUN, "learning rate after the warm-up"),
    EX_NUMBER("warmup", warmup, 0, EX_BIG, EX_RUN,
              "steps of rising rate, then a cosine; not given: a tenth of --steps at most"),
    EX_NUMBER("weight-decay", weight_decay, 0, 10, EX_RUN, "of AdamW"),
    EX_NUMBER("clip", clip, 0, EX_BIG, EX_RUN, "largest gradient norm, 0: any"),
    EX_NUMBER("eval-every", ex.every, 0, EX_BIG, 0, "steps between evaluations, 0: none"),
    EX_TEXT("load", ex.load, "FILE", 0, "such weights; trains only if --steps is given"),
    EX_NUMBER("generate", generate, 0, 1000000, 0, "characters to write at the end"),
    EX_TEXT("prompt", prompt, "STR", 0, "what they go on from"),
    EX_NUMBER("temperature", temperature, 0, 100, 0, "0: always the likeliest character"),
    EX_NUMBER("top-k", top_k, 0, 256, 0, "only the N likeliest compete, 0: all"),
    EX_TRAINING_OPTIONS,
    EX_TEXT("vocabulary", vocabulary, NULL, EX_MODEL, NULL),
    EX_TEXT("text-hash", text_hash, NULL, EX_RUN, NULL),
};

/* ---- the text -------------------------------------------------------------------------------- */

static tn_text *text; /* NULL if a loaded model only generates */
static tn_text known; /* of it only the characters that the model knows: vocabulary, read */

static void read_text(void)
{
    static char hex[513], hash[17];
    ex_check_ptr(text = tn_text_load(path, 0.1));
    if (text->n_valid <= context)
        ex_refuse("--text %s: %" PRId64 " characters, %" PRId64 " of them held out: want more "
                  "than --context %d there",
                  path, text->n_train + text->n_valid, text->n_valid, context);
    for (int i = 0; i < text->vocab; i++) snprintf(hex + 2 * i, 3, "%02x", text->byte_of[i]);
    if (*vocabulary && strcmp(hex, vocabulary) != 0)
        ex_refuse("--text %s has other characters than the text the model learned", path);
    uint64_t h = ex_hash(EX_HASH, text->train, (size_t)text->n_train);
    snprintf(hash, sizeof hash, "%016" PRIx64, ex_hash(h, text->valid, (size_t)text->n_valid));
    if (*text_hash && strcmp(hash, text_hash) != 0)
        ex_refuse("--text %s is not the text that %s was training on", path, ex.resume);
    vocabulary = hex;
    text_hash = hash;
}

/* A vocabulary is noted as hexadecimal digits, two per byte. */
static void read_vocabulary(void)
{
    const char *hex = vocabulary, *digits = "0123456789abcdef";
    unsigned char *byte = known.byte_of;
    for (int b = 0; b < 256; b++) known.id_of[b] = -1;
    for (; known.vocab < 256 && strspn(hex, digits) > 1 && sscanf(hex, "%2hhx", byte); hex += 2)
        known.id_of[*byte++] = known.vocab++;
    if (*hex) ex_refuse("%s: its vocabulary is damaged", ex.resume ? ex.resume : ex.load);
}

static void check_prompt(void)
{
    char some[257] = "";
    for (int i = 0, n = 0; i < known.vocab; i++)
        if (isprint(known.byte_of[i])) some[n++] = (char)known.byte_of[i];
    for (const char *c = prompt; *c; c++)
        if (known.id_of[(unsigned char)*c] < 0)
            ex_refuse("--prompt %s: byte %d (0x%02x) does not occur in the text: want of these: %s",
                      prompt, (int)(c - prompt) + 1, (unsigned char)*c, some);
}

/* ---- the model, a step, an evaluation -------------------------------------------------------- */

static void build(void)
{
    tn_adamw_options o = { .lr = lr, .beta2 = 0.99, .weight_decay = weight_decay };
    if (ex.total < ex.step)
        ex_refuse("--steps %d: %s is after step %d: want at least as many", ex.total, ex.resume,
                  ex.step);
    ex.per_step = ex.batch * context;
    tn_manual_seed((uint64_t)ex.seed);
    ex.state.model = gpt_new((gpt_sizes){ known.vocab, context, layers, heads, d_model, dropout });
    ex_check(tn_module_to(ex.state.model, ex.where));
    ex_check_ptr(ex.state.optimizer = tn_adamw(tn_parameters(ex.state.model), o));
    if (ex.total == 0) return;
    ex.state.scheduler = tn_warmup_cosine_lr(ex.state.optimizer, warmup, ex.total, lr / 10);
    ex_check_ptr(ex.state.scheduler);
}

/* Mean over all places of -log p(what comes next): ids x, y [B, T] -> one number. */
static tn_tensor *loss_of(tn_tensor *x, tn_tensor *y)
{
    tn_tensor *loss = NULL, *target = tn_flatten(tn_to(y, ex.where), 0, 1);
    TN_AUTOCAST(ex.dtype)
    {
        tn_tensor *logits = tn_forward(ex.state.model, tn_to(x, ex.where)); /* [B, T, V] */
        loss = tn_cross_entropy(tn_flatten(logits, 0, 1), target);
    }
    return loss;
}

/* Each process takes its part of the batch. */
static void next(tn_tensor **in)
{
    int64_t rows = ex.batch / tn_parallel_size(), first = rows * tn_parallel_rank();
    ex_check(tn_text_batch(text, false, tn_default_generator(), ex.batch, context, &in[0], &in[1]));
    for (int i = 0; i < 2; i++) ex_check_ptr(in[i] = tn_narrow(in[i], 0, first, rows));
}

static tn_tensor *learn(int n, tn_tensor *const *in, void *user)
{
    (void)user, (void)n;
    return ex_learn(loss_of(in[0], in[1]), clip);
}

/* The mean loss in eval mode over windows of context characters, evenly spread over n ids: always
 * the same ones. A signal interrupts it. */
static double mean_loss(const unsigned char *ids, int64_t n, int64_t windows)
{
    tn_shape apart = TN_SHAPE(windows, (n - 1) / windows); /* each row begins with a window */
    tn_tensor *x = tn_narrow(tn_from_data(ids, apart, TN_U8), 1, 0, context);
    tn_tensor *y = tn_narrow(tn_from_data(ids + 1, apart, TN_U8), 1, 0, context);
    double sum = 0;
    ex_check(tn_eval(ex.state.model));
    for (int64_t i = 0, rows = ex.batch; i < windows && !ex_signal; i += rows) {
        if (rows > windows - i) rows = windows - i;
        TN_SCOPE TN_NO_GRAD sum +=
            (double)rows * tn_item(loss_of(tn_narrow(x, 0, i, rows), tn_narrow(y, 0, i, rows)));
    }
    ex_check(tn_error_status());
    ex_check(tn_train(ex.state.model, true));
    return sum / (double)windows;
}

static double evaluate(double mean)
{
    int64_t fit = (text->n_valid - 1) / context, some = 1024; /* a sixth of King James' part */
    double valid = mean_loss(text->valid, text->n_valid, fit < some ? fit : some);
    if (!ex_signal)
        ex_say("step %d: training loss %.4f, validation loss %.4f", ex.step, mean, valid);
    return valid;
}

/* The final losses: over all of the held-out text, and over as much of the training text. */
static void print_losses(double rate)
{
    int64_t fit = (text->n_valid - 1) / context;
    double valid = mean_loss(text->valid, text->n_valid, fit);
    double train = mean_loss(text->train, text->n_train, fit);
    if (ex_signal) return;
    ex_curve_add(&ex.curve[1], (double)ex.step, valid);
    ex_say("train loss %.4f, validation loss %.4f nats per character (over %" PRId64
           " characters of each text)",
           train, valid, fit * context);
    if (rate > 0) ex_say("%d steps, %.0f tokens/s", ex.step, rate);
}

/* ---- a sample -------------------------------------------------------------------------------- */

/* What follows the n ids: drawn from the likeliest with softmax(logit / temperature). */
static int next_id(const unsigned char *ids, int64_t n)
{
    double t = temperature > 0 ? temperature : 1, id = 0;
    int64_t k = temperature <= 0 ? 1 : top_k > 0 && top_k < known.vocab ? top_k : known.vocab;
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *x = tn_from_data(ids, TN_SHAPE(1, n), TN_U8), *order;
        tn_tensor *y = tn_forward(ex.state.model, tn_to(x, ex.where)); /* [1, n, V] */
        tn_tensor *last = tn_to(tn_select(tn_select(y, 0, 0), 0, -1), tn_cpu());
        tn_tensor *logit = tn_topk(tn_to_dtype(last, TN_F64), k, 0, true, &order);
        tn_tensor *more = tn_sub(logit, tn_narrow(logit, 0, 0, 1)); /* at most 0 */
        tn_tensor *drawn = tn_multinomial(tn_softmax(tn_div_scalar(more, t), 0), 1, true);
        ex_check_ptr(drawn);
        id = tn_item(tn_gather(order, 0, drawn));
    }
    return (int)id;
}

/* Prints at once, so that one can watch; on a terminal a word that does not fit begins a line. c
 * -1: the end. */
static void write_character(int c)
{
    enum { LONGEST = 32 };
    static char word[LONGEST];
    static int n, column;
    bool ends = c < 0 || c == ' ' || c == '\n', wraps = isatty(STDOUT_FILENO);
    if (!ends) word[n++] = (char)c;
    if (!ends && n < LONGEST && wraps) return;
    if (wraps && column > 0 && column + n > ex_width()) column = 0, putchar('\n');
    printf(c >= 0 && ends ? "%.*s%c" : "%.*s", n, word, c);
    column = c == '\n' ? 0 : column + n + ends;
    n = 0;
    ex_flush();
}

static bool is_letter(unsigned char id)
{
    return isalpha(known.byte_of[id]) || known.byte_of[id] >= 128;
}

/* Whether the training text contains it as a word, a run of letters. */
static bool is_word(const unsigned char *word, size_t n)
{
    const unsigned char *at = text->train, *end = at + text->n_train;
    for (; (at = memmem(at, (size_t)(end - at), word, n)); at++)
        if ((at == text->train || !is_letter(at[-1])) && (at + n == end || !is_letter(at[n])))
            return true;
    return false;
}

static void print_words(const unsigned char *ids, int64_t n)
{
    int words = 0, found = 0;
    while (n > 0 && is_letter(ids[n - 1])) n--; /* the last one may be cut off */
    for (int64_t i = 0, j; i < n; i = j + 1) {
        for (j = i; j < n && is_letter(ids[j]);) j++;
        words += j > i;
        found += j > i && is_word(ids + i, (size_t)(j - i));
    }
    printf("%d of the sample's %d words occur in the training text (%.1f %%)\n", found, words,
           words ? 100.0 * found / words : 0);
}

static void write_sample(void)
{
    unsigned char *ids = malloc(strlen(prompt) + (size_t)generate + 1);
    int64_t n = 0;
    if (!ids) ex_refuse("out of memory");
    if (!ex.quiet) printf("\n---- sample, temperature %g ----\n", temperature);
    for (const char *c = prompt; *c; c++) {
        ids[n++] = (unsigned char)known.id_of[(unsigned char)*c];
        write_character((unsigned char)*c);
    }
    if (n == 0) /* the sample begins a line */
        ids[n++] = (unsigned char)(known.id_of['\n'] > 0 ? known.id_of['\n'] : 0);
    tn_manual_seed((uint64_t)ex.seed); /* whatever was drawn before */
    ex_check(tn_eval(ex.state.model));
    for (int i = 0; i < generate; i++, n++) {
        int64_t seen = n < context ? n : context;
        ids[n] = (unsigned char)next_id(ids + n - seen, seen);
        write_character(known.byte_of[ids[n]]);
    }
    write_character(-1);
    printf(ex.quiet ? "\n" : "\n---- end ----\n");
    if (text && !ex.quiet) print_words(ids, n);
    free(ids);
}

/* ---- the order of the work ------------------------------------------------------------------- */

static void finish(double rate)
{
    bool whole = ex.step >= ex.total;
    bool asked = ex_given("generate"); /* then of a loaded model only a sample */
    if (whole && text && ((!ex.quiet && (ex.trained || !asked)) || ex.plot)) print_losses(rate);
    ex_report();
    if (!whole || generate == 0 || (ex.quiet && !asked) || ex_signal) return;
    if (tn_parallel_rank() == 0) write_sample();
    if (ex.trained && ex.save && !ex.quiet)
        printf("\nmore from these weights: %s --load %s --generate 400\n", program_invocation_name,
               ex.save);
}

/* clang-format off */
struct ex_run ex = {
    EX_DEFAULTS, .total = 2500, .batch = 32, .every = 250, .unit = "tokens",
    .next = next, .learn = learn, .evaluate = evaluate, .value = "validation_loss",
    .y_label = "nats per character", .curve = { { .label = "training" }, { .label = "validation" } },
};
/* clang-format on */

int main(int argc, char **argv)
{
    ex_parse("Trains a small decoder-only transformer on characters of a text, then writes some.",
             options, sizeof options / sizeof *options, 0, argc, argv);
    if (ex.load && !ex_given("steps")) ex.total = 0;
    if (!ex_given("warmup") && warmup > ex.total / 10) warmup = ex.total / 10;
    if (!path && !ex.resume && (!ex.load || ex.total > 0))
        ex_refuse("--text FILE is needed (see --help)");
    tn_scope program = tn_scope_begin();
    ex_prepare();
    if (path) read_text();
    read_vocabulary();
    check_prompt();
    build();
    ex_start();
    finish(ex_train());
    ex_free();
    tn_text_free(text);
    tn_scope_end(program);
    return ex_end();
}
