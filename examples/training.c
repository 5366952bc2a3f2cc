/* training.c - the loop over steps, and what belongs to it; see training.h */
#include "training.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* ---- losses ---------------------------------------------------------------------------------- */

static tn_later *late;         /* the last step's loss; NULL: it was read */
static double last_lr;         /* the rate of that step */
static FILE *log_file;         /* NULL: none, or given up */
static char row[128];          /* its next one, to which an evaluation's value may be added */
static tn_tensorboard *curves; /* NULL: none, or given up */
enum { POINT, LINE, EVALUATION, MEANS }; /* of the losses since the last one */
static double loss_sum[MEANS];
static int loss_count[MEANS];

/* Begins again; 0 if there were no numbers. */
static double take_mean(int of)
{
    double mean = loss_count[of] > 0 ? loss_sum[of] / loss_count[of] : 0;
    loss_sum[of] = loss_count[of] = 0;
    return mean;
}

void ex_curve_add(tn_curve *c, double x, double y)
{
    size_t size = (size_t)(c->n + 1) * sizeof(double);
    double *xs = realloc((void *)c->x, size), *ys = realloc((void *)c->y, size);
    if (!xs || !ys) ex_refuse("out of memory");
    xs[c->n] = x, ys[c->n] = y;
    *c = (tn_curve){ c->label, c->n + 1, xs, ys };
}

/* A file that can no longer be written ends here; training goes on. */
static void add_point(const char *curve, double y)
{
    if (!curves || tn_tensorboard_scalar(curves, curve, y, ex.step) == TN_OK) return;
    ex_complain("--tensorboard: %s: training goes on", tn_error());
    tn_error_clear();
    tn_tensorboard_free(curves);
    curves = NULL;
}

/* If that fails, the log ends with its last whole row, but the run goes on: its weights are worth
 * more. */
static void write_row(void)
{
    long end = log_file ? ftell(log_file) : 0;
    if (log_file && *row && fprintf(log_file, "%s\n", row) < 0) {
        ex_complain("--log %s: %s: it ends before step %d, training goes on", ex.log,
                    strerror(errno), atoi(row));
        end = ftruncate(fileno(log_file), end); /* fails for a device */
        fclose(log_file), log_file = NULL;
    }
    *row = '\0';
}

/* Waits for the last step, which leaves a GPU idle: so not before the next one is on its way, but
 * to print something. */
static tn_status read_loss(void)
{
    if (!late) return TN_OK;
    double loss = tn_later_take(late);
    late = NULL;
    if (isnan(loss) && tn_error_status() != TN_OK) return tn_error_status();
    for (int of = 0; of < MEANS; of++, loss_count[of - 1]++) loss_sum[of] += loss;
    if (loss_count[POINT] >= ex.total / 200) ex_curve_add(&ex.curve[0], ex.step, take_mean(POINT));
    add_point("loss", loss);
    add_point("learning rate", last_lr);
    write_row();
    snprintf(row, sizeof row, "%d,%.6f,%.8g,", ex.step, loss, last_lr);
    return TN_OK;
}

/* A program that ends on an error calls it too: the rows show what led to it. */
static void end_log(void)
{
    read_loss();
    write_row();
}

/* ---- the progress line ----------------------------------------------------------------------- */

static int first_step, shown_step;
static double began, shown_at;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int ex_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* On a terminal one line is redrawn, at most ten times a second, whose part that is done stands in
 * reverse video; otherwise about 25 plain lines are printed in all. */
static void show_line(void)
{
    char line[256];
    int every = ex.total > 25 ? ex.total / 25 : 1;
    bool due = ex_redrawn ? seconds() - shown_at >= 0.1
                          : ex.step % every == 0 || ex.step == first_step + 1;
    if (ex.quiet || !(due || ex.step == ex.total)) return;
    ex_check(read_loss());
    double now = seconds(), units = (double)(ex.step - shown_step) * ex.per_step;
    long left = (long)((now - began) / (ex.step - first_step) * (ex.total - ex.step) + 0.5);
    int digits = ex_redrawn ? snprintf(NULL, 0, "%d", ex.total) : 0, most = ex_width() - 1;
    int n = snprintf(line, sizeof line,
                     "step %*d/%d  loss %.4f  %ld:%02ld:%02ld left  %6.0f %s/s  lr %.2e", digits,
                     ex.step, ex.total, take_mean(LINE), left / 3600, left / 60 % 60, left % 60,
                     units / (now - shown_at), ex.unit, last_lr);
    n = ex_redrawn && n > most ? most : n;
    int done = (int)((double)n * ex.step / ex.total);
    printf(ex_redrawn ? "\033[7m%.*s\033[m%.*s\033[K\r" : "%.*s%.*s\n", done, line, n - done,
           line + done);
    ex_flush();
    shown_step = ex.step, shown_at = now;
}

void ex_say(const char *format, ...)
{
    va_list args;
    if (ex.quiet) return;
    if (ex_redrawn) printf("\033[K");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    ex_flush();
}

/* ---- weights and checkpoints ----------------------------------------------------------------- */

static bool leave; /* a signal came, or --stop-after is reached */

/* Whether own is true in any process: all must call it. */
static bool any(bool own)
{
    own = tn_parallel_agree(own ? TN_E_STATE : TN_OK) != TN_OK;
    tn_error_clear();
    return own;
}

/* Names and values of all options with any of these traits; valid until the next call. */
static tn_metadata notes_of(unsigned traits)
{
    static char program[64];
    static const char *key[48] = { "model" }, *value[48] = { program };
    int n = 1;
    snprintf(program, sizeof program, "tenon %s", ex_program);
    for (ex_option *o = NULL; (o = ex_next(o, traits)) && n < 48; n++)
        key[n] = o->name, value[n] = ex_value(o);
    return (tn_metadata){ .n = n, .key = key, .value = value };
}

/* Whether a file was written; complains if there is no room for it. */
static bool written(tn_status status, const char *what)
{
    if (status != TN_OK && status != TN_E_IO && status != TN_E_NOMEM) ex_check(status);
    if (status != TN_OK && tn_parallel_rank() == 0) ex_complain("%s: %s", what, tn_error());
    tn_error_clear();
    return status == TN_OK;
}

/* False after a complaint: training goes on. */
static bool save_checkpoint(void)
{
    char what[64];
    tn_status status = ex.shard ? tn_data_parallel_gather(ex.shared) : TN_OK;
    ex.state.step = ex.step;
    ex.state.metadata = notes_of(EX_MODEL | EX_RUN);
    if (tn_parallel_rank() == 0 && status == TN_OK)
        status = ex.in_folder
                     ? tn_checkpoint_save_numbered(&ex.state, ex.place, ex_program, ex.keep)
                     : tn_checkpoint_save(&ex.state, ex.place);
    if (ex.shard) tn_data_parallel_release(ex.shared);
    snprintf(what, sizeof what, "checkpoint after step %d", ex.step);
    return written(status, what);
}

/* The weights of a whole run; a checkpoint if one is wanted, if the run stops before its end, or if
 * the weights could not be saved. */
static void save_all(void)
{
    tn_metadata notes = notes_of(EX_MODEL);
    tn_save_options o = { .metadata = &notes };
    bool whole = ex.step >= ex.total && ex.save;
    bool saved = !whole || written(tn_save_with(ex.state.model, ex.save, o), "--save");
    if (whole && saved) ex_say("saved %s", ex.save);
    if (!ex.trained || !any(!saved || leave || ex.checkpoint) || !save_checkpoint()) return;
    ex_flush();
    if (!saved)
        fprintf(stderr, "the weights are in a checkpoint: --resume %s --save FILE\n", ex.place);
    else if (!ex.quiet) /* Ctrl-C also ends a reader of our output */
        fprintf(ex_signal ? stderr : stdout, "checkpoint after step %d; go on with --resume %s\n",
                ex.step, ex.place);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static atomic_bool all_saved; /* from here on any signal ends the program */
static tn_capture *captured;
static int64_t tensors, allocations; /* after the first evaluation */

/* The first signal is only recorded. A second one has its default effect, once this has returned.
 * If two arrive in two threads at once, one of them is the second. A broken pipe signals at every
 * line: that counts once. */
static void note_signal(int number)
{
    int none = 0;
    bool first = atomic_compare_exchange_strong(&ex_signal, &none, number);
    if (!all_saved && (first || number == SIGPIPE)) return;
    signal(number, SIG_DFL);
    raise(number);
}

tn_tensor *ex_learn(tn_tensor *loss, double clip)
{
    tn_list *trained = tn_optim_parameters(ex.state.optimizer);
    ex_check(tn_optim_zero_grad(ex.state.optimizer));
    ex_check(tn_backward(tn_scaler_scale(ex.scaler, loss)));
    if (clip > 0 && ex.capture) { /* nothing waits, so NaN and infinity show only in the loss */
        ex_check_ptr(tn_clip_grad_norm_tensor(trained, clip, 2));
    } else if (clip > 0) { /* gradients that are not finite: an error, or a step that is skipped */
        ex_check(tn_scaler_unscale(ex.scaler, ex.state.optimizer));
        if (isnan(tn_clip_grad_norm(trained, clip, 2, ex.dtype != TN_F16)))
            ex_check(tn_error_status());
    }
    ex_check(tn_scaler_step(ex.scaler, ex.state.optimizer));
    ex_check(tn_scaler_update(ex.scaler));
    return loss;
}

static void one_step(void)
{
    tn_tensor *in[2], *loss;
    double lr = tn_optim_lr(ex.state.optimizer, 0);
    ex.next(in);
    loss = captured && ex.step >= ex.uncaptured ? tn_capture_run(captured, 2, in)
                                                : ex.learn(2, in, NULL);
    TN_NO_GRAD ex_check(tn_parallel_mean_(loss = tn_detach(loss)));
    ex_check(tn_scheduler_step(ex.state.scheduler));
    ex_check(read_loss()); /* of the step before */
    ex_check_ptr(late = tn_later_new(loss));
    last_lr = lr;
    ex.step++;
    show_line();
    ex_page_step(ex.step == ex.total);
    leave = any(ex_signal || ex.step - first_step == ex.stop_after);
}

static void evaluate(void)
{
    double value = 0;
    TN_SCOPE value = ex.evaluate(take_mean(EVALUATION));
    if (ex_signal) return;
    ex_curve_add(&ex.curve[1], ex.step, value);
    add_point(ex.value, value);
    snprintf(row + strlen(row), sizeof row - strlen(row), "%.6f", value);
    if (tensors > 0) return;
    tensors = tn_live_tensors();
    allocations = tn_memory().system_allocations;
}

/* After a step: what is not timed. */
static void evaluate_and_save(void)
{
    const bool last = ex.step == ex.total;
    bool wanted = ex.every > 0 && (last ? ex.evaluate_last : ex.step % ex.every == 0);
    bool due = ex.checkpoint_every > 0 ? ex.step % ex.checkpoint_every == 0 : wanted;
    due = any(due && ex.checkpoint && !last);
    if (!wanted && !due) return;
    ex_check(read_loss());
    double paused = seconds();
    if (wanted && tn_parallel_rank() == 0) evaluate();
    if (due) save_checkpoint();
    began += seconds() - paused;
    shown_at += seconds() - paused;
    leave |= ex_signal != 0 && tn_parallel_size() == 1; /* else all learn it at a step */
}

static void begin(void)
{
    const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE };
    const char *term = getenv("TERM");
    if (ex.log) {
        log_file = fopen(ex.log, ex.step > 0 ? "a" : "w");
        if (!log_file) ex_refuse("--log %s: %s", ex.log, strerror(errno));
        setvbuf(log_file, NULL, _IONBF, 0); /* a row that cannot be written is known at once */
        if (ftell(log_file) == 0) fprintf(log_file, "step,loss,lr,%s\n", ex.value);
    }
    tn_tensorboard_options o = { .purge_step = ex.step > 0 ? ex.step + 1 : 0 }; /* a resume */
    tn_metadata notes = notes_of(EX_MODEL | EX_RUN);
    if (ex.board) ex_check_ptr(curves = tn_tensorboard_new(ex.board, o));
    if (curves) ex_check(tn_tensorboard_hparams(curves, &notes));
    atexit(end_log); /* after the device was opened: exit functions run in reverse order */
    for (int i = 0; i < 4; i++) /* signals ignored by nohup or the like stay ignored */
        if (signal(caught[i], note_signal) == SIG_IGN && i > 1) signal(caught[i], SIG_IGN);
    if (ex.capture) ex_check_ptr(captured = tn_capture_new(ex.learn, NULL, ex.where));
    ex_redrawn = !ex.quiet && isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb"));
    if (ex.lost)
        ex_say("stopped, this run will be lost: no checkpoint can be written here (--checkpoint "
               "PATH)");
    ex_page_begin(ex.html, ex.html_steps, ex.state.model, ex.state.optimizer);
    first_step = shown_step = ex.step;
    began = shown_at = seconds();
}

static void end(void)
{
    ex_page_step(true);
    end_log();
    if (log_file && fclose(log_file) != 0) ex_complain("--log %s: %s", ex.log, strerror(errno));
    log_file = NULL;
    tn_tensorboard_free(curves);
    if (ex_redrawn) printf("\033[K");
    ex_redrawn = false;
    if (ex.memory && tensors > 0)
        printf("memory: tensors alive %" PRId64 " -> %" PRId64 ", system allocations since the "
               "first evaluation %" PRId64 ", peak %.1f MiB\n",
               tensors, tn_live_tensors(), tn_memory().system_allocations - allocations,
               (double)tn_memory().peak_in_use / 1048576);
}

double ex_train(void)
{
    double rate = 0;
    ex.trained = ex.step < ex.total;
    if (ex.trained) {
        begin();
        while (ex.step < ex.total && !leave) {
            TN_SCOPE one_step();
            if (!leave) evaluate_and_save();
        }
        ex_check(read_loss());
        rate = (double)(ex.step - first_step) * ex.per_step / (seconds() - began);
        end();
    }
    save_all();
    return rate;
}

void ex_report(void)
{
    if (ex.plot && ex.trained &&
        written(tn_plot_svg(ex.plot, ex_program, "step", ex.y_label, ex.curve, 2), "--plot"))
        ex_say("plotted %s", ex.plot);
    all_saved = ex_signal == 0;
    if (!ex.print_hash) return;
    tn_list *all = tn_list_concat(tn_parameters(ex.state.model), tn_buffers(ex.state.model));
    printf("hash %016" PRIx64 "\n", ex_hash_list(all));
}

void ex_free(void)
{
    /* A process stopped by a signal exits with its number, which would end the others before the
     * first has saved everything. */
    ex_check(tn_parallel_barrier());
    tn_data_parallel_free(ex.shared);
    for (int i = 0; i < 2; i++) free((void *)ex.curve[i].x), free((void *)ex.curve[i].y);
    tn_scheduler_free(ex.state.scheduler);
    tn_loader_free(ex.state.loader);
    tn_scaler_free(ex.scaler);
    tn_capture_free(captured);
    tn_optim_free(ex.state.optimizer);
    tn_module_drop(ex.state.model);
}
