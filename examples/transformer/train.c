/* train.c - see train.h */
#include "train.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- building ------------------------------------------------------------------------------ */

void run_build(run *r)
{
    const settings *s = r->set;
    r->device = ex_device(s->device);
    r->model = gpt_new((gpt_sizes){ .vocab = r->vocab.n, .context = s->context, .layers = s->layers,
                                    .heads = s->heads, .d_model = s->d_model,
                                    .dropout = s->dropout });
    ex_check_ptr(r->model);
    ex_check(tn_module_to(r->model, r->device));

    r->optimizer = tn_adamw(tn_parameters(r->model),
                            (tn_adamw_options){ .lr = s->lr, .beta2 = 0.99,
                                                .weight_decay = s->weight_decay });
    ex_check_ptr(r->optimizer);
    if (s->steps == 0) return;
    r->schedule = tn_warmup_cosine_lr(r->optimizer, s->warmup, s->steps, s->lr / 10);
    ex_check_ptr(r->schedule);
}

void run_free(run *r)
{
    if (r->log) fclose(r->log);
    ex_curve_free(&r->train_curve);
    ex_curve_free(&r->valid_curve);
    if (r->schedule) tn_scheduler_free(r->schedule);
    tn_optim_free(r->optimizer);
    tn_module_drop(r->model);
    if (r->text) tn_text_free(r->text);
}

/* ---- one step, one evaluation -------------------------------------------------------------- */

/* Mean over all places of -log p(what comes next): x, y [B, T] -> one number. */
static tn_tensor *loss_of(run *r, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *logits = tn_forward(r->model, tn_to(x, r->device)); /* [B, T, V] */
    return tn_cross_entropy(tn_flatten(logits, 0, 1), tn_flatten(tn_to(y, r->device), 0, 1));
}

double run_step(run *r)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = NULL, *y = NULL;
    ex_check(tn_text_batch(r->text, false, tn_default_generator(), r->set->batch, r->set->context,
                           &x, &y));
    tn_tensor *loss = loss_of(r, x, y);
    ex_check(tn_optim_zero_grad(r->optimizer));
    ex_check(tn_backward(loss));
    if (r->set->clip > 0) {
        double norm = tn_clip_grad_norm(tn_optim_parameters(r->optimizer), r->set->clip, 2, true);
        if (norm != norm) ex_check(tn_error_status());
    }
    ex_check(tn_optim_step(r->optimizer));
    ex_check(tn_scheduler_step(r->schedule));
    double value = tn_item(loss);
    tn_scope_end(scope);
    r->step++;
    return value;
}

evaluation run_evaluate(run *r, const unsigned char *ids, int64_t n, int64_t limit)
{
    int64_t context = r->set->context, batch = r->set->batch;
    int64_t windows = (n - 1) / context;
    if (limit > 0 && windows > limit) windows = limit;
    if (windows < 1) ex_refuse("--text: %" PRId64 " characters are less than a --context", n);
    if (windows > batch) windows -= windows % batch;
    double sum = 0;
    bool training = tn_training(r->model);
    int64_t *buffer = malloc((size_t)(2 * batch * context) * sizeof *buffer);
    if (!buffer) ex_refuse("out of memory");
    ex_check(tn_eval(r->model));
    TN_NO_GRAD {
        for (int64_t w = 0; w < windows; w += batch) {
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
            ex_check_ptr(loss);
            sum += tn_item(loss) * (double)rows;
            tn_scope_end(scope);
        }
    }
    free(buffer);
    if (training) ex_check(tn_train(r->model, true));
    return (evaluation){ .loss = sum / (double)windows, .characters = windows * context };
}

/* ---- files --------------------------------------------------------------------------------- */

/* FNV-1a over the ids: a run goes on only with the text it began with. */
static uint64_t text_hash(const tn_text *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < text->n_train; i++) hash = (hash ^ text->train[i]) * 0x100000001b3u;
    for (int64_t i = 0; i < text->n_valid; i++) hash = (hash ^ text->valid[i]) * 0x100000001b3u;
    return hash;
}

static tn_metadata notes_of(const run *r, unsigned which, ex_notes *notes)
{
    char hex[513];
    *notes = (ex_notes){ 0 };
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

void run_save_weights(run *r)
{
    ex_notes notes;
    tn_scope scope = tn_scope_begin();
    tn_metadata metadata = notes_of(r, EX_MODEL, &notes);
    ex_check(tn_save_tensors(tn_state_dict(r->model, ""), &metadata, r->set->save));
    tn_scope_end(scope);
}

static const char *checkpoint_path(const run *r)
{
    if (r->set->checkpoint) return r->set->checkpoint;
    return r->set->resume ? r->set->resume : "transformer.ckpt";
}

static void save_checkpoint(run *r)
{
    ex_notes notes;
    tn_scope scope = tn_scope_begin();
    tn_checkpoint c = { .model = r->model, .optimizer = r->optimizer, .scheduler = r->schedule,
                        .step = r->step, .metadata = notes_of(r, EX_MODEL | EX_RUN, &notes) };
    ex_check(tn_checkpoint_save(&c, checkpoint_path(r)));
    tn_scope_end(scope);
}

void run_adopt(run *r)
{
    const char *file = r->set->resume ? r->set->resume : r->set->load;
    tn_scope scope = tn_scope_begin();
    tn_metadata m = { 0 };
    if (r->set->resume) {
        ex_check(tn_checkpoint_peek(file, &m, &r->step));
        ex_adopt(r->options, &m, EX_MODEL | EX_RUN, file);
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
    r->text = tn_text_load(r->set->text, 0.1);
    ex_check_ptr(r->text);
    vocabulary v = vocabulary_of(r->text);
    if (r->vocab.n > 0 && !vocabulary_equal(&v, &r->vocab)) {
        ex_refuse("--text %s has other characters than the text the model learned", r->set->text);
    }
    if (r->has_text_hash && r->text_hash != text_hash(r->text)) {
        ex_refuse("--text %s is not the text that %s was training on", r->set->text,
                  r->set->resume);
    }
    r->vocab = v;
}

void run_load_weights(run *r)
{
    tn_scope scope = tn_scope_begin();
    ex_check(tn_load_state_dict(r->model, tn_load_tensors(r->set->load, NULL),
                                (tn_load_options){ 0 }, NULL));
    tn_scope_end(scope);
}

void run_resume(run *r)
{
    tn_scope scope = tn_scope_begin();
    tn_checkpoint c = { .model = r->model, .optimizer = r->optimizer, .scheduler = r->schedule };
    ex_check(tn_checkpoint_load(&c, r->set->resume));
    r->step = c.step;
    tn_scope_end(scope);
}

void run_plot(run *r)
{
    tn_curve curves[2] = { ex_curve_view(&r->train_curve, "training"),
                           ex_curve_view(&r->valid_curve, "validation") };
    ex_check(tn_plot_svg(r->set->plot, "transformer", "step", "nats per character", curves, 2));
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* Step, loss, learning rate, and the validation loss where there is one: a line of --log. */
static void log_line(run *r, double loss, double lr, const double *valid)
{
    if (!r->log) return;
    fprintf(r->log, "%" PRId64 ",%.6f,%.8g,", r->step, loss, lr);
    if (valid) fprintf(r->log, "%.6f", *valid);
    if (fputc('\n', r->log) == EOF) ex_refuse("--log %s: %s", r->set->log, strerror(errno));
}

static void open_log(run *r)
{
    if (!r->set->log) return;
    r->log = fopen(r->set->log, r->step > 0 ? "a" : "w");
    if (!r->log) ex_refuse("--log %s: %s", r->set->log, strerror(errno));
    if (ftell(r->log) == 0) fprintf(r->log, "step,loss,lr,validation_loss\n");
}

/* Windows of the evaluations on the way: a sixth of the held-out King James text. */
enum { ON_THE_WAY = 1024 };

double run_train(run *r)
{
    const settings *s = r->set;
    ex_progress p;
    ex_watch watch = { 0 };
    double mean = 0;
    int64_t point = s->steps / 200 > 0 ? s->steps / 200 : 1; /* steps a point of the curve */
    int64_t began = r->step, in_mean = 0;
    open_log(r);
    ex_catch_signals();
    ex_progress_begin(&p, r->step, s->steps, s->batch * s->context, "tokens", s->quiet);
    bool stop = false;
    while (r->step < s->steps && !stop) {
        double lr = tn_optim_lr(r->optimizer, 0), valid = 0;
        double loss = run_step(r);
        mean += loss;
        if (++in_mean == point) {
            ex_curve_add(&r->train_curve, (double)r->step, mean / (double)point);
            mean = 0;
            in_mean = 0;
        }
        ex_progress_step(&p, r->step, loss, lr);
        bool evaluate = s->eval_every > 0 && r->step % s->eval_every == 0 && r->step < s->steps;
        stop = ex_signal() || r->step - began == s->stop_after;
        if (evaluate && !stop) {
            ex_progress_pause(&p);
            valid = run_evaluate(r, r->text->valid, r->text->n_valid, ON_THE_WAY).loss;
            ex_curve_add(&r->valid_curve, (double)r->step, valid);
            ex_say(&p, "step %" PRId64 ": validation loss %.4f", r->step, valid);
            if (s->checkpoint) save_checkpoint(r);
            ex_progress_resume(&p);
            if (!watch.tensors) watch = ex_watch_begin();
        }
        log_line(r, loss, lr, evaluate && !stop ? &valid : NULL);
    }
    double rate = ex_progress_end(&p, r->step);
    if (watch.tensors && !s->quiet) ex_watch_print(&watch);
    if (stop || s->checkpoint) {
        save_checkpoint(r);
        if (!s->quiet) {
            printf("checkpoint after step %" PRId64 "; go on with --resume %s\n", r->step,
                   checkpoint_path(r));
        }
    }
    return rate;
}
