/*
 * batchnorm - trains a convolutional network on Fashion-MNIST; shows what BatchNorm's buffers do.
 *
 *     batchnorm [--epochs 5] [--save FILE.safetensors]
 *     batchnorm --load FILE.safetensors
 *
 * running_mean and running_var move in forward, in training mode, and nowhere else: the optimizer's
 * list does not contain them, and its step leaves them as they are. In eval mode they are read.
 */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static settings set = {
    .data = "/usr/share/datasets/fashion-mnist",
    .device = "cpu",
    .epochs = 5,
    .batch = 128,
    .seed = 1,
    .lr = 0.1,
    .momentum = 0.9,
    .weight_decay = 5e-4,
};

#define BIG 1e9
static ex_option flags[] = {
    EX_TEXT_ROW("data", set.data, "DIR", "folder of the four *-ubyte.gz files"),
    EX_WHOLE_ROW("epochs", set.epochs, 0, 100000, EX_RUN, "passes over the training images"),
    EX_WHOLE_ROW("steps", set.steps, 0, BIG, EX_RUN, "at most so many steps, 0: no limit"),
    EX_WHOLE_ROW("batch", set.batch, 2, 60000, EX_RUN, "images a step"),
    EX_REAL_ROW("lr", set.lr, 1e-12, 100, EX_RUN,
                "highest learning rate of the one-cycle schedule"),
    EX_REAL_ROW("momentum", set.momentum, 1e-6, 0.9999, EX_RUN, "of SGD"),
    EX_REAL_ROW("weight-decay", set.weight_decay, 0, 10, EX_RUN, "of SGD"),
    EX_WHOLE_ROW("seed", set.seed, 0, BIG, EX_RUN, "of weights and order of images"),
    EX_WHOLE_ROW("threads", set.threads, 0, 1024, 0, "0: all cores; same bits for any"),
    EX_TEXT_ROW("device", set.device, "NAME", "cpu or cuda"),
    EX_TEXT_ROW("save", set.save, "FILE", "weights and buffers at the end (safetensors)"),
    EX_TEXT_ROW("load", set.load, "FILE", "such a file; trains only if --epochs is given"),
    EX_TEXT_ROW("checkpoint", set.checkpoint, "FILE",
                "whole state after each epoch and at the end"),
    EX_TEXT_ROW("resume", set.resume, "FILE", "goes on from a checkpoint, bit for bit"),
    EX_WHOLE_ROW("stop-after", set.stop_after, 0, BIG, 0, "stops early, with a checkpoint; 0: no"),
    EX_TEXT_ROW("log", set.log, "FILE", "every step as CSV"),
    EX_TEXT_ROW("plot", set.plot, "FILE", "loss and test accuracy as SVG"),
    EX_FLAG_ROW("print-hash", set.print_hash, "one number over all parameters and buffers"),
    EX_FLAG_ROW("quiet", set.quiet, "prints only what other flags ask for"),
};

static ex_options options = {
    .what = "Trains a convolutional network with BatchNorm on Fashion-MNIST.",
    .option = flags,
    .n = sizeof flags / sizeof *flags,
};

static void print_names(const char *title, const tn_list *list)
{
    int column = printf("%s (%d):", title, list->n);
    for (int i = 0; i < list->n; i++) {
        const char *name = list->entry[i].name;
        if (column + 1 + (int)strlen(name) > 98) column = printf("\n   ") - 1;
        column += printf(" %s", name);
    }
    printf("\n");
}

/* Which tensors the optimizer trains, which are only carried. */
static void print_model(const run *r)
{
    tn_scope scope = tn_scope_begin();
    ex_check(tn_module_summary(stdout, r->model));
    tn_list *trained = tn_optim_parameters(r->optimizer), *buffers = tn_buffers(r->model);
    ex_check_ptr(trained);
    ex_check_ptr(buffers);
    print_names("the optimizer's list", trained);
    print_names("buffers, which it never sees", buffers);
    tn_scope_end(scope);
}

static void open_log(run *r)
{
    if (!set.log) return;
    r->log = fopen(set.log, r->step > 0 ? "a" : "w");
    if (!r->log) ex_refuse("--log %s: %s", set.log, strerror(errno));
    if (ftell(r->log) == 0) fprintf(r->log, "step,loss,lr\n");
}

static void end_of_epoch(run *r, ex_progress *p, ex_watch *watch)
{
    int64_t per_epoch = tn_loader_batches(r->loader);
    ex_progress_pause(p);
    score test = { 0 };
    if (!set.quiet || set.plot) { /* else nobody would see it */
        ex_check(tn_eval(r->model));
        test = run_score(r, &r->test, 0);
        ex_check(tn_train(r->model, true));
    }
    double mean = r->epoch_steps ? r->epoch_loss / (double)r->epoch_steps : 0;
    ex_curve_add(&r->test_curve, (double)r->step, test.accuracy);
    ex_say(p, "epoch %" PRId64 ": training loss %.4f, test loss %.4f, test accuracy %.2f %%",
           (r->step + per_epoch - 1) / per_epoch, mean, test.loss, 100 * test.accuracy);
    r->epoch_loss = 0;
    r->epoch_steps = 0;
    if (set.checkpoint) run_checkpoint(r);
    if (!watch->tensors) *watch = ex_watch_begin();
    ex_progress_resume(p);
}

/* All steps; returns images per second. */
static double train(run *r)
{
    ex_progress p;
    ex_watch watch = { 0 };
    int64_t began = r->step, point = r->total / 200 > 0 ? r->total / 200 : 1, in_mean = 0;
    double mean = 0;
    bool stop = false;
    open_log(r);
    ex_catch_signals();
    ex_progress_begin(&p, r->step, r->total, set.batch, "images", set.quiet);
    if (r->step == 0) {
        ex_say(&p, "\nthe first three steps, seen from bn1:\n  %-24s %12s %12s %8s", "",
               "running_mean", "running_var", "batches");
    }
    while (!stop) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *batch[2];
        int got = r->step < r->total ? tn_loader_next(r->loader, batch) : 0;
        if (got < 0) ex_check(tn_error_status());
        if (got == 1) {
            double lr = tn_optim_lr(r->optimizer, 0);
            bool watched = r->step < 3 && !set.quiet;
            double loss = run_step(r, batch, watched);
            r->epoch_loss += loss;
            r->epoch_steps++;
            mean += loss;
            if (++in_mean == point) {
                ex_curve_add(&r->loss_curve, (double)r->step, mean / (double)point);
                mean = 0;
                in_mean = 0;
            }
            if (r->log) fprintf(r->log, "%" PRId64 ",%.6f,%.8g\n", r->step, loss, lr);
            if (!watched) ex_progress_step(&p, r->step, loss, lr);
            stop = ex_signal() || r->step - began == set.stop_after;
        }
        tn_scope_end(scope);
        if (got == 0) {
            end_of_epoch(r, &p, &watch);
            stop = r->step == r->total;
        }
    }
    double rate = ex_progress_end(&p, r->step);
    if (watch.tensors && !set.quiet) ex_watch_print(&watch);
    if (r->step < r->total || set.checkpoint) {
        run_checkpoint(r);
        if (!set.quiet) {
            printf("checkpoint after step %" PRId64 "; go on with --resume %s\n", r->step,
                   run_checkpoint_path(r));
        }
    }
    return rate;
}

/* The same images through the same weights, with statistics of all training or of 100 images. */
static void print_train_versus_eval(run *r)
{
    enum { SOME = 1000 };
    tn_module *trained = r->model, *copy = tn_module_clone(trained);
    ex_check_ptr(copy);
    r->model = copy; /* forward in training mode would move the statistics of the model itself */
    ex_check(tn_eval(copy));
    score eval = run_score(r, &r->test, SOME);
    ex_check(tn_train(copy, true));
    score training = run_score(r, &r->test, SOME);
    printf("%d test images in eval mode: loss %.4f, accuracy %.2f %% (running statistics)\n", SOME,
           eval.loss, 100 * eval.accuracy);
    printf("the same in training mode: loss %.4f, accuracy %.2f %% (each batch's own statistics)\n",
           training.loss, 100 * training.accuracy);
    r->model = trained;
    tn_module_drop(copy);
}

static void print_accuracy(run *r)
{
    ex_check(tn_eval(r->model));
    score test = run_score(r, &r->test, 0);
    printf("test loss %.4f, test accuracy %.2f %%\n", test.loss, 100 * test.accuracy);
}

int main(int argc, char **argv)
{
    ex_parse(&options, argc, argv);
    if (set.resume && set.load) ex_refuse("--resume and --load: wanted one of them");
    if (set.load && !ex_given(&options, "epochs")) set.epochs = 0;
    tn_scope program = tn_scope_begin();
    run r = { .set = &set, .options = &options };
    ex_threads(set.threads);
    if (set.resume) run_adopt(&r);
    run_read_data(&r);
    tn_manual_seed((uint64_t)set.seed);
    run_build(&r);
    if (!set.quiet) {
        printf("tenon %s, %d threads, %s\n", tn_version_string(), tn_num_threads(), set.device);
        ex_print_settings(&options);
        print_model(&r);
    }
    if (set.load) ex_check(tn_load(r.model, set.load));
    if (set.resume) run_resume(&r);
    if (set.resume && !set.quiet) printf("going on after step %" PRId64 "\n", r.step);

    bool trains = r.step < r.total;
    double rate = trains ? train(&r) : 0;
    bool whole = r.step >= r.total;
    if (trains && !set.quiet) printf("%" PRId64 " steps, %.0f images/s\n", r.step, rate);
    if (!trains && !set.quiet) print_accuracy(&r);
    if (whole && !set.quiet) print_train_versus_eval(&r);
    if (whole && set.save) {
        run_save_weights(&r);
        if (!set.quiet) printf("saved %s\n", set.save);
    }
    if (trains && set.plot) {
        tn_curve curves[2] = { ex_curve_view(&r.loss_curve, "training loss"),
                               ex_curve_view(&r.test_curve, "test accuracy") };
        ex_check(tn_plot_svg(set.plot, "batchnorm", "step", "", curves, 2));
        if (!set.quiet) printf("plotted %s\n", set.plot);
    }
    if (set.print_hash) printf("hash %016" PRIx64 "\n", ex_hash(r.model));
    run_free(&r);
    tn_scope_end(program);
    return ex_signal() ? 128 + ex_signal() : 0;
}
