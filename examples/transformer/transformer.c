/*
 * transformer - trains a small decoder-only transformer on characters of a text, then writes some.
 *
 *     transformer --text FILE [--save FILE.safetensors]
 *     transformer --load FILE.safetensors --generate 200 --prompt "And God said"
 *
 * This file has the flags and the order of the work; train.c has the loop, model.c the model,
 * sample.c the generation.
 */
#include "train.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static settings set = {
    .shared = { EX_SETTINGS },
    .prompt = "",
    .steps = 2500,
    .batch = 32,
    .context = 64,
    .layers = 4,
    .heads = 4,
    .d_model = 128,
    .warmup = 100,
    .eval_every = 250,
    .generate = 600,
    .lr = 2e-3,
    .weight_decay = 0.01,
    .clip = 1,
    .temperature = 0.7,
};

#define BIG 1e9
static ex_option flags[] = {
    EX_TEXT_ROW("text", set.text, "FILE", "text to learn; its last tenth is held out"),
    EX_WHOLE_ROW("steps", set.steps, 0, BIG, EX_RUN | EX_LENGTH,
                 "training steps; another number with --resume: the schedule is stretched to it"),
    EX_WHOLE_ROW("batch", set.batch, 1, 65536, EX_RUN, "sequences a step"),
    EX_WHOLE_ROW("context", set.context, 1, 4096, EX_MODEL, "characters a sequence"),
    EX_WHOLE_ROW("layers", set.layers, 0, 1000, EX_MODEL, "blocks"),
    EX_WHOLE_ROW("heads", set.heads, 1, 1024, EX_MODEL, "attention heads a block"),
    EX_WHOLE_ROW("d-model", set.d_model, 1, 65536, EX_MODEL, "width, a multiple of --heads"),
    EX_REAL_ROW("dropout", set.dropout, 0, 0.99, EX_RUN, "probability of a zero"),
    EX_REAL_ROW("lr", set.lr, 1e-12, 100, EX_RUN, "learning rate after the warm-up"),
    EX_WHOLE_ROW("warmup", set.warmup, 0, BIG, EX_RUN,
                 "steps of rising rate, then a cosine; not given: a tenth of --steps at most"),
    EX_REAL_ROW("weight-decay", set.weight_decay, 0, 10, EX_RUN, "of AdamW"),
    EX_REAL_ROW("clip", set.clip, 0, BIG, EX_RUN, "largest gradient norm, 0: any"),
    EX_WHOLE_ROW("eval-every", set.eval_every, 0, BIG, 0, "steps between evaluations, 0: none"),
    EX_TEXT_ROW("load", set.shared.load, "FILE", "such weights; trains only if --steps is given"),
    EX_WHOLE_ROW("generate", set.generate, 0, 1000000, 0, "characters to write at the end"),
    EX_TEXT_ROW("prompt", set.prompt, "STR", "what they go on from"),
    EX_REAL_ROW("temperature", set.temperature, 0, 100, 0, "0: always the likeliest character"),
    EX_WHOLE_ROW("top-k", set.top_k, 0, 256, 0, "only the N likeliest compete, 0: all"),
    EX_TRAINING_ROWS(set.shared),
};

static ex_options options = {
    .what = "Trains a small decoder-only transformer on characters of a text, then writes some.",
    .option = flags,
    .n = sizeof flags / sizeof *flags,
};

/* Which tensors the optimizer trains, and which are buffers. */
static void print_model(const run *r)
{
    tn_scope scope = tn_scope_begin();
    ex_check(tn_module_summary(stdout, r->model));
    tn_list *trained = tn_optim_parameters(r->optimizer), *buffers = tn_buffers(r->model);
    ex_check_ptr(trained);
    ex_check_ptr(buffers);
    printf("the optimizer trains %d tensors, %" PRId64 " numbers; it never sees the %d buffers:\n",
           trained->n, tn_count_parameters(r->model, true), buffers->n);
    for (int i = 0; i < buffers->n; i++) {
        printf("    %s (%s)\n", buffers->entry[i].name,
               buffers->entry[i].persistent ? "saved with the weights" : "not saved: made again");
    }
    tn_scope_end(scope);
}

static void check_flags(void)
{
    if (set.shared.load && !ex_given(&options, "steps")) set.steps = 0;
    if (!ex_given(&options, "warmup") && set.warmup > set.steps / 10) set.warmup = set.steps / 10;
    if (!set.text && !set.shared.resume && (!set.shared.load || set.steps > 0))
        ex_refuse("--text FILE is needed (see --help)");
}

static void check_sizes(void)
{
    if (set.warmup > set.steps) {
        ex_refuse("--warmup %" PRId64 " --steps %" PRId64 ": want at most the steps", set.warmup,
                  set.steps);
    }
    if (set.d_model % set.heads) {
        ex_refuse("--d-model %" PRId64 " --heads %" PRId64 ": want a multiple of the heads",
                  set.d_model, set.heads);
    }
}

static void check_prompt(const vocabulary *v)
{
    for (const char *c = set.prompt; *c; c++) {
        if (v->id_of[(unsigned char)*c] >= 0) continue;
        char known[257];
        int n = 0;
        for (int i = 0; i < v->n; i++)
            if (isprint(v->byte_of[i])) known[n++] = (char)v->byte_of[i];
        known[n] = '\0';
        ex_refuse("--prompt %s: byte %d (0x%02x) does not occur in the text: want of these: %s",
                  set.prompt, (int)(c - set.prompt) + 1, (unsigned char)*c, known);
    }
}

/* The final losses: over all of the held-out text, and over as much of the training text. */
static void report_losses(run *r, double rate, bool trained)
{
    evaluation valid = run_evaluate(r, r->text->valid, r->text->n_valid, 0);
    evaluation train =
        run_evaluate(r, r->text->train, r->text->n_train, valid.characters / set.context);
    if (ex_signal()) return;
    ex_curve_add(&r->valid_curve, (double)r->step, valid.loss);
    if (set.shared.quiet) return;
    printf("train loss %.4f, validation loss %.4f nats per character (over %" PRId64 " and %" PRId64
           " characters)\n",
           train.loss, valid.loss, train.characters, valid.characters);
    if (trained) printf("%" PRId64 " steps, %.0f tokens/s\n", r->step, rate);
}

/* Prints at once, so that one can watch; on a terminal a word that does not fit begins a line. id
 * -1: the end. */
static void write_character(int id, void *user)
{
    enum { LONGEST = 32 };
    static char word[LONGEST];
    static int n, column;
    const run *r = user;
    char c = id < 0 ? ' ' : (char)r->vocab.byte_of[id];
    bool ends = c == ' ' || c == '\n', wraps = isatty(STDOUT_FILENO);
    if (!ends) word[n++] = c;
    if (!ends && n < LONGEST && wraps) return;
    if (wraps && column > 0 && column + n > ex_width()) column = 0, putchar('\n');
    fwrite(word, 1, (size_t)n, stdout);
    column = c == '\n' ? 0 : column + n + ends;
    n = 0;
    if (ends && id >= 0) putchar(c);
    ex_flush();
}

static void write_sample(run *r)
{
    size_t given = strlen(set.prompt);
    unsigned char *ids = malloc(given + 1 + (size_t)set.generate);
    if (!ids) ex_refuse("out of memory");
    for (size_t i = 0; i < given; i++)
        ids[i] = (unsigned char)r->vocab.id_of[(unsigned char)set.prompt[i]];
    int newline = r->vocab.id_of['\n']; /* without a prompt the sample begins a line */
    if (given == 0) ids[given++] = (unsigned char)(newline >= 0 ? newline : 0);
    if (!set.shared.quiet) printf("\n---- sample, temperature %g ----\n", set.temperature);
    for (size_t i = 0; set.prompt[i]; i++) write_character(ids[i], r);
    ex_check(sample(r->model, ids, (int64_t)given,
                    (sample_options){ .length = set.generate,
                                      .temperature = set.temperature,
                                      .top_k = set.top_k,
                                      .seed = (uint64_t)set.shared.seed,
                                      .context = set.context,
                                      .device = r->device,
                                      .wrote = write_character,
                                      .user = r }));
    write_character(-1, r);
    printf("\n");
    int64_t total = (int64_t)given + set.generate;
    if (!set.shared.quiet) printf("---- end ----\n");
    if (r->text && !set.shared.quiet) {
        word_count c = count_words(ids, total, &r->vocab, r->text);
        double share = c.words ? 100.0 * (double)c.known / (double)c.words : 0;
        printf("%" PRId64 " of the sample's %" PRId64
               " words occur in the training text (%.1f %%)\n",
               c.known, c.words, share);
    }
    free(ids);
}

/* First the weights: the rest may be interrupted. */
static void finish(run *r, bool trained, double rate)
{
    const ex_settings *shared = &set.shared;
    bool whole = r->step >= set.steps;
    if (whole && ex_first(shared, shared->save)) run_save_weights(r, trained);
    bool asked = ex_given(&options, "generate"); /* then of a loaded model only a sample */
    if (whole && r->text && ((!shared->quiet && (trained || !asked)) || shared->plot))
        report_losses(r, rate, trained);
    if (trained && shared->plot) run_plot(r);
    ex_let_signals();
    if (shared->print_hash) printf("hash %016" PRIx64 "\n", ex_hash(r->model));
    bool wanted = set.generate > 0 && (!shared->quiet || asked);
    if (!whole || !wanted || ex_signal()) return;
    write_sample(r);
    if (trained && shared->save && !shared->quiet)
        printf("\nmore from these weights: %s --load %s --generate 400\n", program_invocation_name,
               shared->save);
}

int main(int argc, char **argv)
{
    ex_settings *shared = &set.shared;
    ex_parse(&options, argc, argv);
    check_flags();
    ex_settle(shared, &options);
    if (tn_parallel_rank() > 0) set.eval_every = set.generate = 0; /* rank 0 alone tells */
    tn_scope program = tn_scope_begin();
    run r = { .set = &set, .options = &options };
    if (shared->resume || shared->load) run_adopt(&r);
    check_sizes();
    if (set.text) run_read_text(&r);
    check_prompt(&r.vocab);
    tn_manual_seed((uint64_t)shared->seed);
    run_build(&r);
    ex_print_head(shared, &options);
    if (!shared->quiet) print_model(&r);
    if (shared->load) run_load_weights(&r);
    run_same_text(&r);
    r.shared = ex_share(shared, &options, r.model, r.optimizer, set.batch, r.step);
    if (shared->resume) run_resume(&r);
    ex_check(tn_parallel_share_random());
    ex_say_resumed(shared, r.step, set.steps, "--steps");

    bool trained = r.step < set.steps;
    double rate = trained ? run_train(&r) : 0;
    finish(&r, trained, rate);
    run_free(&r);
    tn_scope_end(program);
    return ex_end();
}
