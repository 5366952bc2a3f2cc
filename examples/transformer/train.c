/* train.c - see train.h */
#include "train.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- building -------------------------------------------------------------------------------- */

void run_build(run *r)
{
    const settings *s = r->set;
    r->device = s->shared.where;
    r->precision = ex_precision(&s->shared);
    r->scaling = (tn_checkpoint_part){ .name = "scaler", .scaler = ex_scaler(r->precision) };
    r->model = gpt_new((gpt_sizes){ .vocab = r->vocab.n,
                                    .context = s->context,
                                    .layers = s->layers,
                                    .heads = s->heads,
                                    .d_model = s->d_model,
                                    .dropout = s->dropout });
    ex_check_ptr(r->model);
    ex_check(tn_module_to(r->model, r->device));

    r->optimizer =
        tn_adamw(tn_parameters(r->model),
                 (tn_adamw_options){ .lr = s->lr, .beta2 = 0.99, .weight_decay = s->weight_decay });
    ex_check_ptr(r->optimizer);
    if (s->steps == 0) return;
    r->schedule = tn_warmup_cosine_lr(r->optimizer, s->warmup, s->steps, s->lr / 10);
    ex_check_ptr(r->schedule);
}

void run_free(run *r)
{
    ex_unshare(r->shared);
    ex_training_free(&r->training);
    ex_curve_free(&r->valid_curve);
    if (r->schedule) tn_scheduler_free(r->schedule);
    tn_scaler_free(r->scaling.scaler);
    tn_capture_free(r->capture);
    tn_optim_free(r->optimizer);
    tn_module_drop(r->model);
    if (r->text) tn_text_free(r->text);
}

/* ---- one step, one evaluation ---------------------------------------------------------------- */

/* Mean over all places of -log p(what comes next): x, y [B, T] -> one number. */
static tn_tensor *loss_of(run *r, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *loss = NULL;
    TN_AUTOCAST(r->precision)
    {
        tn_tensor *logits = tn_forward(r->model, tn_to(x, r->device)); /* [B, T, V] */
        loss = tn_cross_entropy(tn_flatten(logits, 0, 1), tn_flatten(tn_to(y, r->device), 0, 1));
    }
    return loss;
}

/* The device's part of a step: in holds x and y [B, T]. */
static tn_tensor *learn(void *context, int n, tn_tensor *const *in)
{
    run *r = context;
    tn_tensor *loss = loss_of(r, in[0], in[1]);
    ex_learn(&r->set->shared, loss, r->optimizer, r->scaling.scaler, r->set->clip);
    (void)n;
    return loss;
}

tn_tensor *run_step(run *r)
{
    tn_tensor *in[2] = { NULL, NULL };
    ex_check(tn_text_batch(r->text, false, tn_default_generator(), r->set->batch, r->set->context,
                           &in[0], &in[1]));
    for (int i = 0; i < 2; i++) ex_check_ptr(in[i] = ex_part(in[i]));
    if (!r->capture) r->capture = ex_capture(&r->set->shared, learn, r, r->scaling.scaler);
    tn_tensor *loss = ex_run(r->capture, learn, r, 2, in);
    ex_check(tn_scheduler_step(r->schedule));
    r->step++;
    return loss;
}

evaluation run_evaluate(run *r, const unsigned char *ids, int64_t n, int64_t limit)
{
    int64_t context = r->set->context, batch = r->set->batch;
    int64_t windows = (n - 1) / context;
    if (limit > 0 && windows > limit) windows = limit;
    if (windows > batch) windows -= windows % batch;
    bool training = tn_training(r->model);
    int64_t *buffer = malloc((size_t)(2 * batch * context) * sizeof *buffer);
    if (!buffer) ex_refuse("out of memory");
    ex_check(tn_eval(r->model));
    tn_scope outer = tn_scope_begin();
    tn_tensor *sum = tn_full_as(TN_SCALAR, 0, TN_F64, r->device);
    TN_NO_GRAD
    {
        for (int64_t w = 0; w < windows && !ex_signal(); w += batch) {
            int64_t rows = windows - w < batch ? windows - w : batch;
            int64_t *x = buffer, *y = buffer + rows * context;
            for (int64_t b = 0; b < rows; b++) {
                int64_t start = (n - 1 - context) * (w + b) / (windows > 1 ? windows - 1 : 1);
                for (int64_t t = 0; t < context; t++) {
                    x[b * context + t] = ids[start + t];
                    y[b * context + t] = ids[start + t + 1];
                }
            }
            tn_scope scope = tn_scope_begin();
            tn_tensor *loss = loss_of(r, tn_from_data(x, TN_SHAPE(rows, context), TN_I64),
                                      tn_from_data(y, TN_SHAPE(rows, context), TN_I64));
            ex_check(tn_add_(sum, tn_mul_scalar(tn_to_dtype(loss, TN_F64), (double)rows)));
            tn_scope_end(scope);
        }
    }
    free(buffer);
    if (training) ex_check(tn_train(r->model, true));
    evaluation e = { .loss = tn_item(sum) / (double)windows, .characters = windows * context };
    tn_scope_end(outer);
    return e;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* FNV-1a over the ids: a run can be resumed only with the text it began with. */
static uint64_t text_hash(const tn_text *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < text->n_train; i++) hash = (hash ^ text->train[i]) * 0x100000001b3u;
    for (int64_t i = 0; i < text->n_valid; i++) hash = (hash ^ text->valid[i]) * 0x100000001b3u;
    return hash;
}

static tn_metadata notes_of(const run *r, unsigned which, ex_notes *notes)
{
    *notes = (ex_notes){ 0 };
    char hex[513];
    vocabulary_write(&r->vocab, hex);
    ex_note(notes, "format", "pt"); /* what PyTorch's own tools look for */
    ex_note(notes, "model", "tenon transformer");
    ex_note(notes, "vocabulary", "%s", hex);
    ex_note_options(notes, r->options, which);
    if (which & EX_RUN) {
        ex_note(notes, "text", "%s", r->set->text);
        ex_note(notes, "text-hash", "%016" PRIx64, text_hash(r->text));
    }
    return ex_metadata(notes);
}

static tn_checkpoint checkpoint_of(const run *r)
{
    return (tn_checkpoint){ .model = r->model,
                            .optimizer = r->optimizer,
                            .scheduler = r->schedule,
                            .parts = r->scaling.scaler ? &r->scaling : NULL,
                            .n_parts = r->scaling.scaler != NULL,
                            .step = r->step };
}

static bool save_checkpoint(run *r)
{
    ex_notes notes;
    tn_scope scope = tn_scope_begin();
    tn_checkpoint c = checkpoint_of(r);
    c.metadata = notes_of(r, EX_MODEL | EX_RUN, &notes);
    bool saved = ex_checkpoint(&r->set->shared, &c);
    tn_scope_end(scope);
    return saved;
}

void run_save_weights(run *r, bool trained)
{
    ex_settings *s = &r->set->shared;
    ex_notes notes;
    tn_scope scope = tn_scope_begin();
    tn_metadata metadata = notes_of(r, EX_MODEL, &notes);
    tn_status status = TN_OK;
    if (tn_parallel_rank() == 0)
        status = tn_save_tensors(tn_state_dict(r->model, ""), &metadata, s->save);
    tn_scope_end(scope);
    if (ex_first(s, ex_saved(s, status))) return;
    if (trained && (ex_first(s, s->checkpoint) || save_checkpoint(r))) ex_say_rescued(s);
}

void run_adopt(run *r)
{
    const ex_settings *s = &r->set->shared;
    const char *file = s->resume ? s->resume_file : s->load;
    tn_scope scope = tn_scope_begin();
    tn_metadata m = { 0 };
    if (s->resume) {
        ex_check(tn_checkpoint_peek(file, &m, &r->step));
        ex_adopt(r->options, &m, EX_MODEL | EX_RUN, file);
        if (r->set->steps < r->step) {
            ex_refuse("--steps %" PRId64 ": %s is after step %" PRId64 ": want at least as many",
                      r->set->steps, file, r->step);
        }
        const char *hash = tn_metadata_get(&m, "text-hash"), *path = tn_metadata_get(&m, "text");
        if (!hash || !path) ex_refuse("%s does not say its text", file);
        r->has_text_hash = true;
        r->text_hash = strtoull(hash, NULL, 16);
        if (!r->set->text) {
            r->set->text = r->text_path;
            snprintf(r->text_path, sizeof r->text_path, "%s", path);
        }
    } else {
        ex_check_ptr(tn_load_tensors(file, &m));
        ex_adopt(r->options, &m, EX_MODEL, file);
    }
    const char *hex = tn_metadata_get(&m, "vocabulary");
    if (!hex || !vocabulary_read(&r->vocab, hex)) ex_refuse("%s does not say its vocabulary", file);
    tn_scope_end(scope);
}

void run_read_text(run *r)
{
    const char *path = r->set->text;
    if (path == r->text_path && access(path, R_OK) != 0) {
        ex_refuse("--resume %s: its text was %s: %s: want --text FILE", r->set->shared.resume, path,
                  strerror(errno));
    }
    r->text = tn_text_load(path, 0.1);
    ex_check_ptr(r->text);
    if (r->text->n_valid <= r->set->context) {
        ex_refuse("--text %s: %" PRId64 " characters, %" PRId64 " of them held out: want more "
                  "than --context %" PRId64 " there",
                  path, r->text->n_train + r->text->n_valid, r->text->n_valid, r->set->context);
    }
    vocabulary v = vocabulary_of(r->text);
    if (r->vocab.n > 0 && !vocabulary_equal(&v, &r->vocab))
        ex_refuse("--text %s has other characters than the text the model learned", path);
    if (r->has_text_hash && r->text_hash != text_hash(r->text)) {
        ex_refuse("--text %s is not the text that %s was training on", path,
                  r->set->shared.resume_file);
    }
    r->vocab = v;
}

void run_same_text(const run *r)
{
    uint64_t hash = r->text ? text_hash(r->text) : 0;
    ex_check(tn_parallel_same("--text", &hash, sizeof hash));
}

void run_load_weights(run *r)
{
    tn_scope scope = tn_scope_begin();
    ex_check(tn_load_state_dict(r->model, tn_load_tensors(r->set->shared.load, NULL),
                                (tn_load_options){ 0 }, NULL));
    tn_scope_end(scope);
}

void run_resume(run *r)
{
    tn_scope scope = tn_scope_begin();
    tn_checkpoint c = checkpoint_of(r);
    ex_check(tn_checkpoint_load(&c, r->set->shared.resume_file));
    r->step = c.step;
    tn_scope_end(scope);
}

void run_plot(run *r)
{
    tn_curve curves[2] = { ex_curve_view(&r->training.curve, "training"),
                           ex_curve_view(&r->valid_curve, "validation") };
    ex_plot(&r->set->shared, "nats per character", curves, 2);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Windows of the evaluations during training: a sixth of the held-out King James text. */
enum { ON_THE_WAY = 1024 };

double run_train(run *r)
{
    const settings *s = r->set;
    ex_training *t = &r->training;
    ex_training_begin(t, &s->shared, r->step, s->steps, s->batch * s->context, "tokens",
                      "step,loss,lr,validation_loss");
    ex_page_begin(&t->page, s->shared.html, s->shared.html_steps, r->model, r->optimizer);
    while (r->step < s->steps && !t->leave) {
        char valid[32] = ",";
        double lr = tn_optim_lr(r->optimizer, 0);
        tn_scope scope = tn_scope_begin();
        tn_tensor *loss = run_step(r);
        ex_training_step(t, r->step, loss, lr, true);
        tn_scope_end(scope);
        bool evaluate = s->eval_every > 0 && r->step % s->eval_every == 0 && r->step < s->steps;
        bool due = ex_first(&s->shared, ex_checkpoint_due(t, r->step, evaluate));
        if ((evaluate || due) && !t->leave) {
            ex_training_pause(t);
            if (evaluate) {
                double mean = run_evaluate(r, r->text->valid, r->text->n_valid, ON_THE_WAY).loss;
                evaluate = !ex_signal();
                if (evaluate) {
                    ex_curve_add(&r->valid_curve, (double)r->step, mean);
                    ex_say(&t->progress, "step %" PRId64 ": validation loss %.4f", r->step, mean);
                    snprintf(valid, sizeof valid, ",%.6f", mean);
                }
            }
            if (due && !ex_first(&s->shared, ex_signal())) save_checkpoint(r);
            ex_training_resume(t, evaluate);
        }
        ex_training_remark(t, valid);
    }
    double rate = ex_training_end(t, r->step);
    if (ex_first(&s->shared, t->leave || s->shared.checkpoint) && save_checkpoint(r))
        ex_say_checkpoint(&s->shared, r->step);
    return rate;
}
