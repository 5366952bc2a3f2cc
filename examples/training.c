/* training.c - see training.h */
#include "training.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

void ex_print_head(const ex_settings *s, const ex_options *options)
{
    tn_cuda_properties gpu = { .name = "" };
    char ranks[40] = "";
    if (s->quiet) return;
    if (s->where.type == TN_CUDA) ex_check(tn_cuda_get_properties(s->where.index, &gpu));
    if (tn_parallel_size() > 1)
        snprintf(ranks, sizeof ranks, "%d processes of ", tn_parallel_size());
    printf("tenon %s, %s%d threads, %s%s%s\n", tn_version_string(), ranks, tn_num_threads(),
           s->device, *gpu.name ? ": " : "", gpu.name);
    ex_print_settings(options);
    if (s->chosen && !strcmp(s->precision, "bf16"))
        printf("This device multiplies bf16, which is faster: --precision f32 for none of it.\n");
    ex_need_output();
}

/* ---- precision, and what follows a loss ------------------------------------------------------ */

tn_dtype ex_precision(const ex_settings *s)
{
    if (!strcmp(s->precision, "f32")) return TN_F32;
    if (!strcmp(s->precision, "bf16")) return TN_BF16;
    if (!strcmp(s->precision, "f16")) return TN_F16;
    if (strcmp(s->precision, "tf32"))
        ex_refuse("--precision %s: want f32, tf32, bf16, f16 or auto", s->precision);
    if (s->where.type != TN_CUDA) ex_refuse("--precision tf32: want --device cuda with it");
    ex_check(tn_set_tf32(true));
    return TN_F32;
}

tn_scaler *ex_scaler(tn_dtype precision)
{
    if (precision != TN_F16) return NULL;
    tn_scaler *scaler = tn_scaler_new((tn_scaler_options){ 0 });
    ex_check_ptr(scaler);
    return scaler;
}

tn_capture *ex_capture(const ex_settings *s, tn_step step, void *user, const tn_scaler *scaler)
{
    if (!s->capture) return NULL;
    if (scaler)
        ex_refuse("--capture: --precision f16 looks at the gradients: want f32, tf32 or bf16");
    tn_capture *capture = tn_capture_new(step, user, s->where);
    ex_check_ptr(capture);
    return capture;
}

tn_tensor *ex_run(tn_capture *capture, tn_step step, void *user, int n, tn_tensor *const *in)
{
    tn_tensor *y = capture ? tn_capture_run(capture, n, in) : step(user, n, in);
    ex_check_ptr(y);
    return y;
}

void ex_learn(const ex_settings *s, tn_tensor *loss, tn_optim *optimizer, tn_scaler *scaler,
              double clip)
{
    ex_check(tn_optim_zero_grad(optimizer));
    ex_check(tn_backward(scaler ? tn_scaler_scale(scaler, loss) : loss));
    if (clip > 0 && s->capture) {
        ex_check_ptr(tn_clip_grad_norm_tensor(tn_optim_parameters(optimizer), clip, 2));
    } else if (clip > 0) {
        if (scaler) ex_check(tn_scaler_unscale(scaler, optimizer));
        /* The scaler skips a step whose gradients are not finite; without it that is an error. */
        double norm = tn_clip_grad_norm(tn_optim_parameters(optimizer), clip, 2, !scaler);
        if (norm != norm && !scaler) ex_check(tn_error_status());
    }
    if (!scaler) {
        ex_check(tn_optim_step(optimizer));
        return;
    }
    ex_check(tn_scaler_step(scaler, optimizer));
    ex_check(tn_scaler_update(scaler));
}

bool ex_checkpoint_due(const ex_training *t, int64_t step, bool evaluated)
{
    const ex_settings *s = t->set;
    if (!s->checkpoint || step == t->progress.total) return false;
    return s->checkpoint_every > 0 ? step % s->checkpoint_every == 0 : evaluated;
}

/* ---- several processes ----------------------------------------------------------------------- */

/* FNV-1a of a file, so that all processes can compare theirs. */
static uint64_t hash_file(const char *path)
{
    uint64_t hash = 0xcbf29ce484222325u;
    unsigned char block[1 << 14];
    FILE *file = fopen(path, "rb");
    if (!file) ex_refuse("--resume %s: %s", path, strerror(errno));
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;)
        for (size_t i = 0; i < n; i++) hash = (hash ^ block[i]) * 0x100000001b3u;
    if (ferror(file)) ex_refuse("--resume %s: %s", path, strerror(errno));
    fclose(file);
    return hash;
}

/* The optimizer's state is not sent: every process must have read the same. All of them see who did
 * not, and refuse together; else some would wait for others that have ended. */
static void same_start(const ex_settings *s, int64_t step)
{
    int64_t first[2] = { 0, 0 }, theirs[2];
    const char *path = s->resume ? s->resume_file : "";
    uint64_t hash = s->resume ? hash_file(path) : 0;
    int64_t own[2] = { step, (int64_t)(hash >> 1) };
    tn_scope scope = tn_scope_begin();
    for (int r = 0; r < tn_parallel_size(); r++) {
        tn_tensor *t = tn_from_ints(own, TN_SHAPE(2));
        ex_check_ptr(t);
        ex_check(tn_parallel_broadcast(t, r));
        ex_check(tn_copy_out(t, theirs, sizeof theirs, TN_I64));
        if (r == 0) memcpy(first, theirs, sizeof first);
        if (memcmp(first, theirs, sizeof first) == 0) continue;
        ex_refuse("--resume %s: process %d begins after step %" PRId64 ", process 0 after step "
                  "%" PRId64 "%s: want the same checkpoint in all",
                  path, r, theirs[0], first[0],
                  theirs[0] == first[0] ? ", of another checkpoint" : "");
    }
    tn_scope_end(scope);
}

bool ex_first(const ex_settings *s, bool own)
{
    int64_t answer = own;
    if (!s->dealt) return own;
    tn_scope scope = tn_scope_begin();
    tn_tensor *t = tn_from_ints(&answer, TN_SHAPE(1));
    ex_check_ptr(t);
    ex_check(tn_parallel_broadcast(t, 0));
    answer = (int64_t)tn_item(t);
    tn_scope_end(scope);
    return answer != 0;
}

/* Whether --shard was given to all processes: each of them has its part, or none. */
static bool agree_to_shard(const ex_settings *s)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *t = tn_full(TN_SCALAR, s->shard);
    ex_check_ptr(t);
    ex_check(tn_parallel_mean_(t));
    double mean = tn_item(t);
    tn_scope_end(scope);
    if (mean > 0 && mean < 1) ex_refuse("--shard: some processes have it: want all or none");
    return mean > 0;
}

/* The flags that decide the bits of a run. */
static void same_flags(const ex_options *options)
{
    ex_notes notes = { 0 };
    ex_note_options(&notes, options, EX_MODEL | EX_RUN);
    for (int i = 0; i < notes.n; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "--%s", notes.key[i]);
        ex_check(tn_parallel_same(flag, notes.value[i], strlen(notes.value[i])));
    }
}

tn_data_parallel *ex_share(ex_settings *s, const ex_options *options, tn_module *model,
                           tn_optim *optimizer, int64_t batch, int64_t step)
{
    int size = tn_parallel_size();
    if (size == 1) return NULL;
    same_start(s, step);
    same_flags(options);
    if (batch % size != 0)
        ex_refuse("--batch %" PRId64 ": %d processes share it: want a multiple of %d", batch, size,
                  size);
    tn_data_parallel *shared = tn_data_parallel_new(model, (tn_data_parallel_options){ 0 });
    ex_check_ptr(shared);
    if (agree_to_shard(s)) {
        ex_check(tn_data_parallel_shard(shared, optimizer));
        s->dealt = shared;
    }
    return shared;
}

/* A process that a signal stopped ends with its number, which would end the others before rank 0
 * has saved what there is. */
void ex_unshare(tn_data_parallel *shared)
{
    ex_check(tn_parallel_barrier());
    tn_data_parallel_free(shared);
}

tn_tensor *ex_part(tn_tensor *rows)
{
    int64_t n = tn_size(rows, 0) / tn_parallel_size();
    return tn_parallel_size() == 1 ? rows : tn_narrow(rows, 0, n * tn_parallel_rank(), n);
}

/* The mean of the processes' losses; *leave becomes true on all if it is on one. */
static tn_tensor *agree(tn_tensor *loss, bool *leave)
{
    if (tn_parallel_size() == 1) return loss;
    bool on_gpu = tn_device_of(loss).type == TN_CUDA; /* where nobody reads it now */
    double own[2] = { on_gpu ? 0 : tn_item(loss), *leave };
    tn_tensor *both = tn_from_data(own, TN_SHAPE(2), TN_F64);
    ex_check_ptr(both);
    ex_check(tn_parallel_mean_(both));
    *leave = tn_at(both, TN_INDEX(1)) > 0;
    if (!on_gpu) return tn_select(both, 0, 0);
    tn_tensor *mean = tn_to_dtype(tn_clone(tn_detach(loss)), TN_F32);
    ex_check_ptr(mean);
    ex_check(tn_parallel_mean_(mean));
    return mean;
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Reads into taken[].loss; waits for the device. */
static tn_status fetch_losses(ex_training *t)
{
    float value[EX_LATEST];
    tn_scope scope = tn_scope_begin();
    tn_status status =
        tn_copy_out(tn_narrow(t->losses, 0, 0, t->n), value, (size_t)t->n * sizeof *value, TN_F32);
    tn_scope_end(scope);
    for (int i = t->read; i < t->n && status == TN_OK; i++) t->taken[i].loss = (double)value[i];
    return status;
}

static void read_losses(ex_training *t)
{
    if (t->read == t->n) return;
    ex_check(fetch_losses(t));
    for (; t->read < t->n; t->read++) {
        const ex_taken *a = &t->taken[t->read];
        t->sum += a->loss;
        t->summed++;
        t->mean += a->loss;
        if (++t->in_mean == t->point) {
            ex_curve_add(&t->curve, (double)a->step, t->mean / (double)t->point);
            t->mean = 0;
            t->in_mean = 0;
        }
        if (a->progress) ex_progress_loss(&t->progress, a->loss);
    }
}

/* Writes the lines of the first n steps taken. False if that fails. */
static bool write_lines(ex_training *t, int n)
{
    for (int i = 0; i < n && t->log; i++) {
        const ex_taken *a = &t->taken[i];
        fprintf(t->log, "%" PRId64 ",%.6f,%.8g%s\n", a->step, a->loss, a->lr, a->more);
    }
    if (!t->log) return true;
    errno = 0;
    if (fflush(t->log) != 0 || ferror(t->log)) return false;
    t->log_end = ftell(t->log);
    return true;
}

/* Ends the log with its last whole line, but not the run: its weights are worth more. */
static void give_up_log(ex_training *t)
{
    ex_complain("--log %s: %s: it ends before step %" PRId64 ", training goes on", t->set->log,
                strerror(errno ? errno : EIO), t->taken[0].step);
    fclose(t->log);
    t->log = NULL;
    if (t->log_end >= 0 && truncate(t->set->log, t->log_end) != 0) t->log_end = -1; /* a device */
}

/* Writes all lines and makes room again. */
static void write_log(ex_training *t)
{
    read_losses(t);
    if (!write_lines(t, t->n)) give_up_log(t);
    t->n = t->read = 0;
}

/* A program that ends on an error still writes its lines: they show how it came to that. */
static ex_training *open_log;

static void write_the_rest(void)
{
    ex_training *t = open_log;
    open_log = NULL;
    if (!t || t->n == 0) return;
    write_lines(t, fetch_losses(t) == TN_OK ? t->n : t->read);
}

static void note_loss(ex_training *t, tn_tensor *loss)
{
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD ex_check(tn_copy_(tn_select(t->losses, 0, t->n), loss));
    tn_scope_end(scope);
}

double ex_training_mean(ex_training *t)
{
    read_losses(t);
    double mean = t->summed > 0 ? t->sum / (double)t->summed : 0;
    t->sum = 0;
    t->summed = 0;
    return mean;
}

/* ---- the clockwork --------------------------------------------------------------------------- */

void ex_training_begin(ex_training *t, const ex_settings *s, int64_t step, int64_t total,
                       int64_t per_step, const char *unit, const char *columns)
{
    *t = (ex_training){ .set = s, .began = step, .point = total / 200 > 0 ? total / 200 : 1 };
    if (s->log) {
        t->log = fopen(s->log, step > 0 ? "a" : "w");
        if (!t->log) ex_refuse("--log %s: %s", s->log, strerror(errno));
        setvbuf(t->log, NULL, _IOFBF, 1 << 15); /* all lines at once: errors appear in fflush */
        if (ftell(t->log) == 0) fprintf(t->log, "%s\n", columns);
        t->log_end = ftell(t->log);
    }
    tn_scope scope = tn_scope_begin();
    t->losses = tn_keep(tn_empty_as(TN_SHAPE(EX_LATEST), TN_F32, s->where));
    tn_scope_end(scope);
    ex_check_ptr(t->losses);
    open_log = t;
    atexit(write_the_rest); /* now that the device is open: at the end the last one goes first */
    ex_catch_signals();
    ex_progress_begin(&t->progress, step, total, per_step, unit, s->quiet);
    if (ex_why_no_place(s)) {
        ex_say(&t->progress,
               "stopped, this run will be lost: no checkpoint can be written here: "
               "%s (--checkpoint PATH)",
               ex_why_no_place(s));
    }
}

void ex_training_step(ex_training *t, int64_t step, tn_tensor *loss, double lr, bool progress)
{
    if (t->n == EX_LATEST) write_log(t);
    t->leave = ex_signal() || step - t->began == t->set->stop_after;
    note_loss(t, agree(loss, &t->leave));
    t->taken[t->n++] = (ex_taken){ .step = step, .lr = lr, .progress = progress };
    if (progress && ex_progress_due(&t->progress, step)) {
        read_losses(t);
        ex_progress_show(&t->progress, step, lr);
    }
    ex_page_step(&t->page);
}

void ex_training_remark(ex_training *t, const char *more)
{
    ex_taken *latest = &t->taken[t->n - 1];
    snprintf(latest->more, sizeof latest->more, "%s", more);
}

void ex_training_pause(ex_training *t)
{
    read_losses(t);
    ex_progress_pause(&t->progress);
}

void ex_training_resume(ex_training *t, bool evaluated)
{
    ex_progress_resume(&t->progress);
    t->leave |= ex_signal() != 0 && tn_parallel_size() == 1; /* else all learn it at a step */
    if (evaluated && !t->watch.tensors) t->watch = ex_watch_begin();
}

double ex_training_end(ex_training *t, int64_t step)
{
    ex_page_end(&t->page);
    write_log(t);
    double rate = ex_progress_end(&t->progress, step);
    if (t->watch.tensors && t->set->memory) ex_watch_print(&t->watch);
    return rate;
}

void ex_training_free(ex_training *t)
{
    open_log = NULL;
    if (t->log && fclose(t->log) != 0) ex_complain("--log %s: %s", t->set->log, strerror(errno));
    tn_drop(t->losses);
    ex_curve_free(&t->curve);
}

void ex_plot(const ex_settings *s, const char *y_label, const tn_curve *curves, int n)
{
    if (tn_plot_svg(s->plot, ex_program(), "step", y_label, curves, n) == TN_OK) {
        if (!s->quiet) printf("plotted %s\n", s->plot);
        return;
    }
    ex_complain("--plot %s: %s", s->plot, tn_error());
    tn_error_clear();
}
