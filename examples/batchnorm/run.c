/* run.c - see run.h */
#include "run.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- data ------------------------------------------------------------------------------------ */

static images read_half(const char *folder, const char *half)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte.gz", folder, half);
    images set;
    set.x = tn_idx_load(path);
    ex_check_ptr(set.x);
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte.gz", folder, half);
    set.y = tn_idx_load(path);
    ex_check_ptr(set.y);
    if (tn_rank(set.x) != 3 || tn_size(set.x, 1) != 28 || tn_size(set.x, 2) != 28)
        ex_refuse("%s: images of another size than 28 x 28", folder);
    set.x = tn_unsqueeze(set.x, 1);
    set.y = tn_to_dtype(set.y, TN_I64);
    ex_check_ptr(set.x);
    ex_check_ptr(set.y);
    return set;
}

void run_read_data(run *r)
{
    r->train = read_half(r->set->data, "train");
    r->test = read_half(r->set->data, "t10k");
    uint64_t hash[] = { tn_hash(r->train.x), tn_hash(r->train.y) };
    ex_check(tn_parallel_same("--data", hash, sizeof hash));

    /* Sums of bytes and of their squares stay exact in 64 bits. */
    int64_t n = tn_numel(r->train.x), sum = 0, squares = 0;
    const unsigned char *pixel = tn_data(r->train.x);
    ex_check_ptr(pixel);
    for (int64_t i = 0; i < n; i++) {
        sum += pixel[i];
        squares += (int64_t)pixel[i] * pixel[i];
    }
    r->mean = (double)sum / (double)n;
    r->deviation = sqrt((double)squares / (double)n - r->mean * r->mean);
}

/* ---- building -------------------------------------------------------------------------------- */

void run_build(run *r)
{
    const settings *s = r->set;
    r->device = s->shared.where;
    r->precision = ex_precision(&s->shared);
    r->scaling = (tn_checkpoint_part){ .name = "scaler", .scaler = ex_scaler(r->precision) };
    r->model = net_new(r->mean, r->deviation);
    ex_check_ptr(r->model);
    ex_check(tn_module_to(r->model, r->device));

    r->loader = tn_loader_new((tn_tensor *[]){ r->train.x, r->train.y }, 2,
                              (tn_loader_options){ .batch_size = s->batch,
                                                   .shuffle = true,
                                                   .drop_last = true,
                                                   .seed = (uint64_t)s->shared.seed,
                                                   .parts = tn_parallel_size(),
                                                   .part = tn_parallel_rank(),
                                                   .prefetch = true });
    ex_check_ptr(r->loader);
    r->total = s->epochs * tn_loader_batches(r->loader);
    if (s->steps > 0 && s->steps < r->total) r->total = s->steps;

    r->optimizer =
        tn_sgd(tn_parameters(r->model), (tn_sgd_options){ .lr = s->lr,
                                                          .momentum = s->momentum,
                                                          .weight_decay = s->weight_decay,
                                                          .nesterov = true });
    ex_check_ptr(r->optimizer);
    if (r->total < r->step) {
        ex_refuse("--epochs %" PRId64 ", --steps %" PRId64 ": %" PRId64
                  " steps, and %s is after step "
                  "%" PRId64 ": want at least as many",
                  s->epochs, s->steps, r->total, s->shared.resume_file, r->step);
    }
    if (r->total == 0) return;
    r->schedule = tn_one_cycle_lr(r->optimizer, (tn_one_cycle_options){ .max_lr = s->lr,
                                                                        .pct_start = 0.2,
                                                                        .total_steps = r->total,
                                                                        .fixed_momentum = true });
    ex_check_ptr(r->schedule);
}

void run_free(run *r)
{
    ex_unshare(r->shared);
    ex_training_free(&r->training);
    ex_curve_free(&r->test_curve);
    tn_loader_free(r->loader);
    if (r->schedule) tn_scheduler_free(r->schedule);
    tn_scaler_free(r->scaling.scaler);
    tn_capture_free(r->capture);
    tn_optim_free(r->optimizer);
    tn_module_drop(r->model);
}

/* ---- one step, one evaluation ---------------------------------------------------------------- */

static double first(run *r, const char *buffer)
{
    tn_tensor *t = tn_get_buffer(r->model, buffer);
    return tn_rank(t) == 0 ? tn_item(t) : tn_at(t, TN_INDEX(0));
}

static void print_statistics(run *r, const char *when)
{
    printf("  %-24s %12.6f %12.6f %8.0f\n", when, first(r, "bn1.running_mean"),
           first(r, "bn1.running_var"), first(r, "bn1.num_batches_tracked"));
    ex_flush();
}

/* The device's part of a step: in holds images and labels. */
static tn_tensor *learn(void *context, int n, tn_tensor *const *in)
{
    run *r = context;
    if (r->watched) print_statistics(r, "before forward");
    tn_tensor *x = tn_to(in[0], r->device), *y = tn_to(in[1], r->device), *loss = NULL;
    TN_AUTOCAST(r->precision) loss = tn_cross_entropy(tn_forward(r->model, x), y);
    if (r->watched) print_statistics(r, "after forward");
    ex_learn(&r->set->shared, loss, r->optimizer, r->scaling.scaler, 0);
    if (r->watched) print_statistics(r, "after the optimizer");
    (void)n;
    return loss;
}

tn_tensor *run_step(run *r, tn_tensor *const *batch)
{
    if (!r->capture) r->capture = ex_capture(&r->set->shared, learn, r, r->scaling.scaler);
    tn_tensor *loss = ex_run(r->watched ? NULL : r->capture, learn, r, 2, batch);
    ex_check(tn_scheduler_step(r->schedule));
    r->step++;
    return loss;
}

/* Images at a time: their activations stay within a few MiB. */
enum { AT_ONCE = 100 };

score run_score(run *r, const images *set, int64_t limit)
{
    int64_t n = tn_size(set->x, 0);
    if (limit > 0 && n > limit) n = limit;
    tn_scope outer = tn_scope_begin();
    tn_tensor *right = tn_full_as(TN_SCALAR, 0, TN_F64, r->device), *sum = tn_zeros_like(right);
    TN_NO_GRAD TN_AUTOCAST(r->precision)
    {
        for (int64_t i = 0; i < n && !ex_signal(); i += AT_ONCE) {
            int64_t rows = n - i < AT_ONCE ? n - i : AT_ONCE;
            tn_scope scope = tn_scope_begin();
            tn_tensor *x = tn_to(tn_narrow(set->x, 0, i, rows), r->device);
            tn_tensor *y = tn_to(tn_narrow(set->y, 0, i, rows), r->device);
            tn_tensor *logits = tn_forward(r->model, x);
            tn_tensor *hits = tn_sum(tn_eq(tn_argmax(logits, 1, false), y), NULL, 0, false);
            tn_tensor *loss = tn_cross_entropy(logits, y);
            ex_check(tn_add_(right, tn_to_dtype(hits, TN_F64)));
            ex_check(tn_add_(sum, tn_mul_scalar(tn_to_dtype(loss, TN_F64), (double)rows)));
            tn_scope_end(scope);
        }
    }
    score s = { .loss = tn_item(sum) / (double)n, .accuracy = tn_item(right) / (double)n };
    tn_scope_end(outer);
    return s;
}

/* ---- files ----------------------------------------------------------------------------------- */

static tn_checkpoint checkpoint_of(run *r)
{
    return (tn_checkpoint){ .model = r->model,
                            .optimizer = r->optimizer,
                            .scheduler = r->schedule,
                            .loader = r->loader,
                            .parts = r->scaling.scaler ? &r->scaling : NULL,
                            .n_parts = r->scaling.scaler != NULL,
                            .step = r->step };
}

bool run_checkpoint(run *r)
{
    ex_notes notes = { 0 };
    tn_scope scope = tn_scope_begin();
    tn_checkpoint c = checkpoint_of(r);
    ex_note(&notes, "model", "tenon batchnorm");
    ex_note(&notes, "data", "%s", r->set->data);
    ex_note_options(&notes, r->options, EX_RUN);
    c.metadata = ex_metadata(&notes);
    bool saved = ex_checkpoint(&r->set->shared, &c);
    tn_scope_end(scope);
    return saved;
}

void run_adopt(run *r)
{
    const char *file = r->set->shared.resume_file;
    tn_scope scope = tn_scope_begin();
    tn_metadata m = { 0 };
    ex_check(tn_checkpoint_peek(file, &m, &r->step));
    ex_adopt(r->options, &m, EX_RUN, file);
    const char *data = tn_metadata_get(&m, "data");
    if (data && !ex_given(r->options, "data")) {
        snprintf(r->data_path, sizeof r->data_path, "%s", data);
        r->set->data = r->data_path;
    }
    tn_scope_end(scope);
}

void run_resume(run *r)
{
    const char *file = r->set->shared.resume_file;
    tn_scope scope = tn_scope_begin();
    tn_checkpoint c = checkpoint_of(r);
    ex_check(tn_checkpoint_load(&c, file));
    r->step = c.step;
    if (tn_item(tn_get_buffer(r->model, "mean")) != (float)r->mean ||
        tn_item(tn_get_buffer(r->model, "deviation")) != (float)r->deviation)
        ex_refuse("--data %s does not hold the images that %s was training on", r->set->data, file);
    tn_scope_end(scope);
}

void run_save_weights(run *r, bool trained)
{
    const ex_settings *s = &r->set->shared;
    ex_notes notes = { 0 };
    tn_scope scope = tn_scope_begin();
    ex_note(&notes, "format", "pt"); /* what PyTorch's own tools look for */
    ex_note(&notes, "model", "tenon batchnorm");
    tn_metadata metadata = ex_metadata(&notes);
    tn_status status = TN_OK;
    if (tn_parallel_rank() == 0)
        status = tn_save_tensors(tn_state_dict(r->model, ""), &metadata, s->save);
    tn_scope_end(scope);
    if (ex_first(s, ex_saved(s, status))) return;
    if (trained && (ex_first(s, s->checkpoint) || run_checkpoint(r))) ex_say_rescued(s);
}
