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

#include <inttypes.h>
#include <string.h>

static settings set = {
    .data = "/usr/share/datasets/fashion-mnist",
    .shared = { EX_SETTINGS },
    .epochs = 5,
    .batch = 128,
    .lr = 0.1,
    .momentum = 0.9,
    .weight_decay = 5e-4,
};

#define BIG 1e9
static ex_option flags[] = {
    EX_TEXT_ROW("data", set.data, "DIR", "folder of the four *-ubyte.gz files"),
    EX_WHOLE_ROW("epochs", set.epochs, 0, 100000, EX_RUN | EX_LENGTH,
                 "passes over the training images; another number with --resume: the schedule is"
                 " stretched to it"),
    EX_WHOLE_ROW("steps", set.steps, 0, BIG, EX_RUN | EX_LENGTH,
                 "at most so many steps, 0: no limit; with --resume as --epochs"),
    EX_WHOLE_ROW("batch", set.batch, 2, 60000, EX_RUN, "images a step"),
    EX_REAL_ROW("lr", set.lr, 1e-12, 100, EX_RUN,
                "highest learning rate of the one-cycle schedule"),
    EX_REAL_ROW("momentum", set.momentum, 1e-6, 0.9999, EX_RUN, "of SGD"),
    EX_REAL_ROW("weight-decay", set.weight_decay, 0, 10, EX_RUN, "of SGD"),
    EX_TEXT_ROW("load", set.shared.load, "FILE", "such a file; trains only if --epochs is given"),
    EX_TRAINING_ROWS(set.shared),
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

/* Which tensors the optimizer trains, and which are buffers. */
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

static void end_of_epoch(run *r)
{
    int64_t per_epoch = tn_loader_batches(r->loader);
    ex_training *t = &r->training;
    ex_training_pause(t);
    score test = { 0 };
    if (!set.shared.quiet || set.shared.plot) { /* else it would not be shown */
        ex_check(tn_eval(r->model));
        test = run_score(r, &r->test, 0);
        ex_check(tn_train(r->model, true));
    }
    if (ex_first(&set.shared, ex_signal())) {
        ex_training_resume(t, false);
        return;
    }
    double mean = ex_training_mean(t); /* of this process's steps */
    ex_curve_add(&r->test_curve, (double)r->step, test.accuracy);
    ex_say(&t->progress,
           "epoch %" PRId64 ": training loss %.4f, test loss %.4f, test accuracy %.2f %%",
           (r->step + per_epoch - 1) / per_epoch, mean, test.loss, 100 * test.accuracy);
    bool due = !set.shared.checkpoint_every && ex_checkpoint_due(t, r->step, true);
    if (ex_first(&set.shared, due)) run_checkpoint(r);
    ex_training_resume(t, true);
}

static void one_step(run *r, tn_tensor *const *batch)
{
    double lr = tn_optim_lr(r->optimizer, 0);
    r->watched = r->step < 3 && !set.shared.quiet;
    tn_tensor *loss = run_step(r, batch);
    ex_training_step(&r->training, r->step, loss, lr, !r->watched);
    bool due = !r->training.leave && ex_checkpoint_due(&r->training, r->step, false);
    if (ex_first(&set.shared, due)) run_checkpoint(r);
}

/* All steps; returns images per second. */
static double train(run *r)
{
    ex_training *t = &r->training;
    ex_training_begin(t, &set.shared, r->step, r->total, set.batch, "images", "step,loss,lr");
    ex_page_begin(&t->page, set.shared.html, set.shared.html_steps, r->model, r->optimizer);
    if (r->step == 0) {
        ex_say(&t->progress, "\nthe first three steps, seen from bn1:\n  %-24s %12s %12s %8s", "",
               "running_mean", "running_var", "batches");
    }
    for (bool end = false; !end && !t->leave;) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *batch[2];
        int got = r->step < r->total ? tn_loader_next(r->loader, batch, 2) : 0;
        if (got < 0) ex_check(tn_error_status());
        if (got == 1) one_step(r, batch);
        tn_scope_end(scope);
        if (got == 0) {
            end = r->step == r->total;
            end_of_epoch(r);
        }
    }
    double rate = ex_training_end(t, r->step);
    if (ex_first(&set.shared, t->leave || set.shared.checkpoint) && run_checkpoint(r))
        ex_say_checkpoint(&set.shared, r->step);
    return rate;
}

/* The same images through the same weights, with statistics of all training or of 100 images. */
static void print_train_versus_eval(run *r)
{
    enum { SOME = 1000 };
    tn_module *trained = r->model, *copy = tn_module_clone(trained);
    ex_check_ptr(copy);
    r->model = copy; /* forward in training mode would change the model's own statistics */
    ex_check(tn_eval(copy));
    score eval = run_score(r, &r->test, SOME);
    ex_check(tn_train(copy, true));
    score training = run_score(r, &r->test, SOME);
    r->model = trained;
    tn_module_drop(copy);
    if (ex_signal()) return;
    printf("%d test images in eval mode: loss %.4f, accuracy %.2f %% (running statistics)\n", SOME,
           eval.loss, 100 * eval.accuracy);
    printf("the same in training mode: loss %.4f, accuracy %.2f %% (each batch's own statistics)\n",
           training.loss, 100 * training.accuracy);
}

static void print_accuracy(run *r)
{
    ex_check(tn_eval(r->model));
    score test = run_score(r, &r->test, 0);
    printf("test loss %.4f, test accuracy %.2f %%\n", test.loss, 100 * test.accuracy);
}

/* First the weights: the rest may be interrupted. */
static void finish(run *r, bool trained, double rate)
{
    const ex_settings *shared = &set.shared;
    bool whole = r->step >= r->total;
    if (whole && ex_first(shared, shared->save)) run_save_weights(r, trained);
    if (trained && !shared->quiet) printf("%" PRId64 " steps, %.0f images/s\n", r->step, rate);
    if (!trained && !shared->quiet) print_accuracy(r);
    if (whole && !shared->quiet) print_train_versus_eval(r);
    if (trained && shared->plot) {
        tn_curve curves[2] = { ex_curve_view(&r->training.curve, "training loss"),
                               ex_curve_view(&r->test_curve, "test accuracy") };
        ex_plot(shared, "", curves, 2);
    }
    ex_let_signals();
    if (shared->print_hash) printf("hash %016" PRIx64 "\n", ex_hash(r->model));
}

int main(int argc, char **argv)
{
    ex_settings *shared = &set.shared;
    ex_parse(&options, argc, argv);
    ex_settle(shared, &options);
    if (shared->load && !ex_given(&options, "epochs")) set.epochs = 0;
    tn_scope program = tn_scope_begin();
    run r = { .set = &set, .options = &options };
    if (shared->resume) run_adopt(&r);
    run_read_data(&r);
    tn_manual_seed((uint64_t)shared->seed);
    run_build(&r);
    ex_print_head(shared, &options);
    if (!shared->quiet) print_model(&r);
    if (shared->load) ex_check(tn_load(r.model, shared->load));
    r.shared = ex_share(shared, &options, r.model, r.optimizer, set.batch, r.step);
    if (shared->resume) run_resume(&r);
    ex_check(tn_parallel_share_random());
    ex_say_resumed(shared, r.step, r.total, set.steps > 0 ? "--steps" : "--epochs");

    bool trains = r.step < r.total;
    double rate = trains ? train(&r) : 0;
    finish(&r, trains, rate);
    run_free(&r);
    tn_scope_end(program);
    return ex_end();
}
