/*
 * batchnorm - trains a convolutional network on Fashion-MNIST; shows what BatchNorm's buffers do.
 *
 *     batchnorm [--epochs 5] [--save FILE.safetensors]
 *     batchnorm --epochs 100 --augment 2 --smooth 0.1 --weight-decay 1e-4
 *     batchnorm --load FILE.safetensors
 *
 * running_mean and running_var change only in forward, in training mode: they are not in the
 * optimizer's list, and its step leaves them alone. In eval mode they are read.
 */
#include "../training.h"
#include "net.h"

#include <math.h>
#include <string.h>

enum { WATCHED = 3 }; /* steps whose statistics are printed */

static const char *data = "/usr/share/datasets/fashion-mnist";
static int epochs = 5, steps, augment, blocks;
static double lr = 0.1, momentum = 0.9, weight_decay = 5e-4, smooth;

static ex_option options[] = {
    EX_TEXT("data", data, "DIR", EX_RUN | EX_FREE | EX_READ, "folder of the four *-ubyte.gz files"),
    EX_NUMBER("epochs", epochs, 0, 100000, EX_RUN | EX_FREE,
              "passes over the training images; another number with --resume: the schedule is"
              " stretched to it"),
    EX_NUMBER("steps", steps, 0, EX_BIG, EX_RUN | EX_FREE,
              "at most so many steps, 0: no limit; with --resume as --epochs"),
    EX_NUMBER("batch", ex.batch, 2, 60000, EX_RUN, "images a step"),
    EX_NUMBER("lr", lr, 1e-12, 100, EX_RUN, "highest learning rate of the one-cycle schedule"),
    EX_NUMBER("momentum", momentum, 1e-6, 0.9999, EX_RUN, "of SGD"),
    EX_NUMBER("weight-decay", weight_decay, 0, 10, EX_RUN, "of SGD"),
    EX_NUMBER("smooth", smooth, 0, 0.99, EX_RUN | EX_LATER,
              "share of each label that goes to all classes alike, in the training's loss"),
    EX_NUMBER("blocks", blocks, 0, 100, EX_MODEL | EX_LATER, "residual blocks after each pooling"),
    EX_NUMBER("augment", augment, 0, 14, EX_RUN,
              "images are moved by up to so many pixels, and half of them mirrored; 0: neither"),
    EX_TEXT("load", ex.load, "FILE", 0, "such a file; trains only if --epochs is given"),
    EX_TRAINING_OPTIONS,
};

/* ---- data ------------------------------------------------------------------------------------ */

typedef struct images {
    tn_tensor *x; /* [N, 1, 28, 28] u8 */
    tn_tensor *y; /* [N] u8 */
} images;

static images training, test;
static double mean, deviation; /* of all pixels of the training images */

static images read_half(const char *half)
{
    char path[4096];
    images set;
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte.gz", data, half);
    ex_check_ptr(set.x = tn_idx_load(path));
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte.gz", data, half);
    ex_check_ptr(set.y = tn_idx_load(path));
    if (tn_rank(set.x) != 3 || tn_size(set.x, 1) != 28 || tn_size(set.x, 2) != 28)
        ex_refuse("%s: images of another size than 28 x 28", data);
    ex_check_ptr(set.x = tn_unsqueeze(set.x, 1));
    return set;
}

static void read_data(void)
{
    training = read_half("train");
    test = read_half("t10k");
    uint64_t hash[] = { tn_hash(training.x), tn_hash(training.y) };
    ex_check(tn_parallel_same("--data", hash, sizeof hash));

    /* Sums of bytes and of their squares stay exact in 64 bits. */
    int64_t n = tn_numel(training.x), sum = 0, squares = 0;
    const unsigned char *pixel = tn_data(training.x);
    ex_check_ptr(pixel);
    for (int64_t i = 0; i < n; i++) {
        sum += pixel[i];
        squares += (int64_t)pixel[i] * pixel[i];
    }
    mean = (double)sum / (double)n;
    deviation = sqrt((double)squares / (double)n - mean * mean);
}

/* A training image, moved and perhaps mirrored. */
static tn_status get_augmented(const tn_dataset *d, tn_sample *s)
{
    const int n = augment;
    tn_tensor *x = tn_select(training.x, 0, s->index);
    x = tn_pad(x, TN_PADS(n, n, n, n), TN_PAD_CONSTANT, 0);
    x = tn_image_random_crop(x, 28, 28, s->generator);
    x = tn_image_random_flip(x, -1, 0.5, s->generator);
    *(unsigned char *)s->to[1] = ((const unsigned char *)tn_data(training.y))[s->index];
    (void)d;
    return tn_copy_out(x, s->to[0], 28 * 28, TN_U8);
}

static tn_loader *loader_of(tn_loader_options o)
{
    static const tn_field fields[] = {
        { .name = "image", .dtype = TN_U8, .shape = { 3, { 1, 28, 28 } } },
        { .name = "label", .dtype = TN_U8 },
    };
    static tn_dataset augmented = { .fields = fields, .n_fields = 2, .get = get_augmented };
    if (!augment) return tn_loader_new((tn_tensor *[]){ training.x, training.y }, 2, o);
    augmented.length = tn_size(training.x, 0);
    return tn_loader_from(&augmented, o);
}

/* ---- building -------------------------------------------------------------------------------- */

static void build(void)
{
    tn_manual_seed((uint64_t)ex.seed);
    ex_check_ptr(ex.state.model = net_new(mean, deviation, blocks));
    ex_check(tn_module_to(ex.state.model, ex.where));
    ex.state.loader = loader_of((tn_loader_options){ .batch_size = ex.batch,
                                                     .shuffle = true,
                                                     .drop_last = true,
                                                     .seed = (uint64_t)ex.seed,
                                                     .parts = tn_parallel_size(),
                                                     .part = tn_parallel_rank(),
                                                     .prefetch = true });
    ex_check_ptr(ex.state.loader);
    ex.every = (int)tn_loader_batches(ex.state.loader); /* an epoch */
    double all = (double)epochs * ex.every;
    if (steps > 0 && steps < all) all = steps;
    if (all > EX_BIG) ex_refuse("--epochs %d: %.0f steps: want at most %.0f", epochs, all, EX_BIG);
    ex.total = (int)all;
    if (ex.total < ex.step)
        ex_refuse("--epochs %d, --steps %d: %d steps, and %s is after step %d: want at least as "
                  "many",
                  epochs, steps, ex.total, ex.resume, ex.step);

    ex.state.optimizer = tn_sgd(
        tn_parameters(ex.state.model),
        (tn_sgd_options){
            .lr = lr, .momentum = momentum, .weight_decay = weight_decay, .nesterov = true });
    ex_check_ptr(ex.state.optimizer);
    if (ex.total == 0) return;
    ex.state.scheduler = tn_one_cycle_lr(
        ex.state.optimizer,
        (tn_one_cycle_options){
            .max_lr = lr, .pct_start = 0.2, .total_steps = ex.total, .fixed_momentum = true });
    ex_check_ptr(ex.state.scheduler);
}

static void print_names(const char *title, const tn_list *list)
{
    ex_check_ptr(list);
    int column = printf("%s (%d):", title, list->n);
    for (int i = 0; i < list->n; i++) {
        const char *name = list->entry[i].name;
        if (column + 1 + (int)strlen(name) > 98) column = printf("\n   ") - 1;
        column += printf(" %s", name);
    }
    printf("\n");
}

/* Which tensors the optimizer trains, and which are buffers. */
static void print_model(void)
{
    print_names("the optimizer's list", tn_optim_parameters(ex.state.optimizer));
    print_names("buffers, which it never sees", tn_buffers(ex.state.model));
}

/* ---- a step ---------------------------------------------------------------------------------- */

static double first(const char *buffer)
{
    tn_tensor *t = tn_get_buffer(ex.state.model, buffer);
    return tn_rank(t) == 0 ? tn_item(t) : tn_at(t, TN_INDEX(0));
}

static void print_statistics(const char *when)
{
    if (ex.step >= WATCHED || ex.quiet) return;
    ex_say("  %-24s %12.6f %12.6f %8.0f", when, first("bn1.running_mean"), first("bn1.running_var"),
           first("bn1.num_batches_tracked"));
}

/* The loader reports the end of an epoch, and begins the next one when asked again. */
static void next(tn_tensor **in)
{
    int got = tn_loader_next(ex.state.loader, in, 2);
    if (got == 0) got = tn_loader_next(ex.state.loader, in, 2);
    if (got < 0) ex_check(tn_error_status());
}

static tn_tensor *learn(int n, tn_tensor *const *in, void *user)
{
    if (ex.step == 0)
        ex_say("\nthe first three steps, seen from bn1:\n  %-24s %12s %12s %8s", "", "running_mean",
               "running_var", "batches");
    print_statistics("before forward");
    const tn_cross_entropy_options o = { .label_smoothing = smooth };
    tn_tensor *x = tn_to(in[0], ex.where), *y = tn_to(in[1], ex.where), *loss = NULL;
    TN_AUTOCAST(ex.dtype) loss = tn_cross_entropy_with(tn_forward(ex.state.model, x), y, o);
    print_statistics("after forward");
    ex_learn(loss, 0);
    print_statistics("after the optimizer");
    (void)user;
    (void)n;
    return loss;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

typedef struct score {
    double loss, accuracy;
} score;

/* Images at a time: their activations stay within a few MiB. */
enum { AT_ONCE = 100 };

/* Over the first images of the test set (limit of them; 0: all), in the model's current mode,
 * without recording. If a signal interrupts it, the result means nothing. */
static score score_of(tn_module *model, int64_t limit)
{
    int64_t n = tn_size(test.x, 0);
    if (limit > 0 && n > limit) n = limit;
    tn_tensor *right = tn_full_as(TN_SCALAR, 0, TN_F64, ex.where), *sum = tn_zeros_like(right);
    TN_NO_GRAD TN_AUTOCAST(ex.dtype)
    {
        for (int64_t i = 0; i < n && !ex_signal; i += AT_ONCE) {
            int64_t rows = n - i < AT_ONCE ? n - i : AT_ONCE;
            tn_scope scope = tn_scope_begin();
            tn_tensor *x = tn_to(tn_narrow(test.x, 0, i, rows), ex.where);
            tn_tensor *y = tn_to(tn_narrow(test.y, 0, i, rows), ex.where);
            tn_tensor *logits = tn_forward(model, x);
            tn_tensor *hits = tn_sum(tn_eq(tn_argmax(logits, 1, false), y), NULL, 0, false);
            tn_tensor *loss = tn_cross_entropy(logits, y);
            ex_check(tn_add_(right, tn_to_dtype(hits, TN_F64)));
            ex_check(tn_add_(sum, tn_mul_scalar(tn_to_dtype(loss, TN_F64), (double)rows)));
            tn_scope_end(scope);
        }
    }
    return (score){ .loss = tn_item(sum) / (double)n, .accuracy = tn_item(right) / (double)n };
}

/* At the end of an epoch. */
static double evaluate(double training_loss)
{
    if (ex.quiet && !ex.plot && !ex.log && !ex.board) return 0; /* nobody would see it */
    ex_check(tn_eval(ex.state.model));
    score s = score_of(ex.state.model, 0);
    ex_check(tn_train(ex.state.model, true));
    if (!ex_signal)
        ex_say("epoch %d: training loss %.4f, test loss %.4f, test accuracy %.2f %%",
               (ex.step + ex.every - 1) / ex.every, training_loss, s.loss, 100 * s.accuracy);
    return s.accuracy;
}

/* The same images through the same weights, with statistics of all training or of 100 images. */
static void print_train_versus_eval(void)
{
    enum { SOME = 1000 };
    tn_module *copy =
        tn_module_clone(ex.state.model); /* in training mode forward changes statistics */
    ex_check_ptr(copy);
    ex_check(tn_eval(copy));
    score running = score_of(copy, SOME);
    ex_check(tn_train(copy, true));
    score own = score_of(copy, SOME);
    tn_module_drop(copy);
    if (ex_signal) return;
    printf("%d test images in eval mode: loss %.4f, accuracy %.2f %% (running statistics)\n", SOME,
           running.loss, 100 * running.accuracy);
    printf("the same in training mode: loss %.4f, accuracy %.2f %% (each batch's own statistics)\n",
           own.loss, 100 * own.accuracy);
}

static void print_accuracy(void)
{
    ex_check(tn_eval(ex.state.model));
    score s = score_of(ex.state.model, 0);
    printf("test loss %.4f, test accuracy %.2f %%\n", s.loss, 100 * s.accuracy);
}

/* ---- the order of the work ------------------------------------------------------------------- */

struct ex_run ex = {
    EX_DEFAULTS,           .batch = 128,
    .unit = "images",      .next = next,
    .learn = learn,        .evaluate = evaluate,
    .evaluate_last = true, .value = "test_accuracy",
    .y_label = "",         .curve = { { .label = "training loss" }, { .label = "test accuracy" } },
};

int main(int argc, char **argv)
{
    ex_parse("Trains a convolutional network with BatchNorm on Fashion-MNIST.", options,
             sizeof options / sizeof *options, 0, argc, argv);
    tn_scope program = tn_scope_begin();
    if (ex.load && !ex_given("epochs")) epochs = 0;
    ex_prepare();
    read_data();
    build();
    ex.per_step = ex.batch;
    ex.uncaptured = ex.quiet ? 0 : WATCHED;
    ex_start();
    if (ex.resume && (tn_item(tn_get_buffer(ex.state.model, "mean")) != (float)mean ||
                      tn_item(tn_get_buffer(ex.state.model, "deviation")) != (float)deviation))
        ex_refuse("--data %s does not hold the images that %s was training on", data, ex.resume);
    if (!ex.quiet) print_model();

    double rate = ex_train();
    if (ex.trained && !ex.quiet) printf("%d steps, %.0f images/s\n", ex.step, rate);
    if (!ex.trained && !ex.quiet) print_accuracy();
    if (ex.step >= ex.total && !ex.quiet) print_train_versus_eval();
    ex_report();
    ex_free();
    tn_scope_end(program);
    return ex_end();
}
