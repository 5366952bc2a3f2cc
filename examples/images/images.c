/*
 * images - learns to tell the classes of a folder of photographs; finetunes a published network.
 *
 *     images FOLDER [--epochs 10] [--save FILE.safetensors]
 *     images FOLDER --weights resnet18.pth [--freeze]
 *
 * FOLDER holds train and val, each with a folder of .jpg or .png files for each class. --weights
 * reads the weights of a ResNet-18 as torchvision writes them, but for the last layer where there
 * it has other classes. --freeze trains the last layer alone: the rest keeps its weights, and its
 * batch norms normalise by their running statistics and leave them as they are.
 */
#include "../models/resnet.h"
#include "../training.h"

#include <inttypes.h>
#include <string.h>

static const char *folder, *weights;
static int epochs = 10, side = 224, width = 64, workers = 1;
static double lr = 0.01, momentum = 0.9, weight_decay = 1e-4;
static bool freeze;

static ex_option options[] = {
    EX_NUMBER("epochs", epochs, 0, 100000, EX_RUN | EX_FREE, "passes over the training images"),
    EX_NUMBER("batch", ex.batch, 2, 60000, EX_RUN, "images a step"),
    EX_NUMBER("side", side, 32, 1024, EX_MODEL, "rows and columns that the network sees"),
    EX_NUMBER("width", width, 1, 1024, EX_MODEL, "channels of its first stage"),
    EX_NUMBER("lr", lr, 1e-12, 100, EX_RUN, "learning rate at first; falls to 0 as a cosine"),
    EX_NUMBER("momentum", momentum, 0, 0.9999, EX_RUN, "of SGD"),
    EX_NUMBER("weight-decay", weight_decay, 0, 10, EX_RUN, "of SGD"),
    EX_NUMBER("workers", workers, 0, 1024, 0, "threads that read images; same bits for any"),
    EX_TEXT("weights", weights, "FILE", EX_READ, "of a ResNet-18: begins with them"),
    EX_FLAG("freeze", freeze, "trains the last layer alone"),
    EX_TEXT("load", ex.load, "FILE", 0, "a file of --save; trains only if --epochs is given"),
    EX_TRAINING_OPTIONS,
};

/* ---- data ------------------------------------------------------------------------------------ */

static tn_image_folder *training, *validation;

static tn_image_folder *open_half(const char *half)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, half);
    tn_image_folder *f = tn_image_folder_open(path);
    ex_check_ptr(f);
    return f;
}

static void open_folders(void)
{
    training = open_half("train");
    validation = open_half("val");
    bool same = training->n_classes == validation->n_classes;
    for (int64_t i = 0; same && i < training->n_classes; i++)
        same = strcmp(training->class_name[i], validation->class_name[i]) == 0;
    if (!same) ex_refuse("%s: want folders of the same names in train and in val", folder);
    ex_say("%" PRId64 " images of %" PRId64 " classes to learn from, %" PRId64 " to try",
           training->n, training->n_classes, validation->n);
}

/* What both kinds of samples end with: ImageNet's mean and deviation, as published weights want. */
static tn_status put(tn_sample *s, tn_tensor *x, int64_t label)
{
    static const double mean[] = { 0.485, 0.456, 0.406 }, std[] = { 0.229, 0.224, 0.225 };
    *(int64_t *)s->to[1] = label;
    x = tn_image_normalize(x, mean, std, 3);
    return tn_copy_out(x, s->to[0], 3 * sizeof(float) * (size_t)(side * side), TN_F32);
}

/* A random part of an image, perhaps mirrored. */
static tn_status get_random(const tn_dataset *d, tn_sample *s)
{
    const tn_image_file *image = &((const tn_image_folder *)d->user)->image[s->index];
    tn_tensor *x =
        tn_image_load_crop(image->path, side, side, (tn_image_crop_options){ .scale = { 0.25, 1 } },
                           (tn_image_options){ .orient = true }, s->generator);
    return put(s, tn_image_random_flip(x, -1, 0.5, s->generator), image->label);
}

/* The middle of an image. */
static tn_status get_middle(const tn_dataset *d, tn_sample *s)
{
    const tn_image_file *image = &((const tn_image_folder *)d->user)->image[s->index];
    tn_tensor *x = tn_image_load(image->path, (tn_image_options){ .orient = true });
    x = tn_image_resize(x, side * 8 / 7, 0, (tn_image_resize_options){ 0 });
    return put(s, tn_image_center_crop(x, side, side), image->label);
}

static tn_loader *loader_of(tn_dataset *d, tn_image_folder *images, bool random)
{
    static tn_field fields[2];
    fields[0] = (tn_field){ .name = "image", .dtype = TN_F32, .shape = TN_SHAPE(3, side, side) };
    fields[1] = (tn_field){ .name = "label", .dtype = TN_I64 };
    *d = (tn_dataset){ .name = folder,
                       .length = images->n,
                       .fields = fields,
                       .n_fields = 2,
                       .get = random ? get_random : get_middle,
                       .user = images };
    tn_loader *loader = tn_loader_from(d, (tn_loader_options){ .batch_size = ex.batch,
                                                               .shuffle = random,
                                                               .drop_last = random,
                                                               .workers = workers,
                                                               .seed = (uint64_t)ex.seed });
    ex_check_ptr(loader);
    return loader;
}

/* ---- building -------------------------------------------------------------------------------- */

/* The weights of a file, but for a last layer of other classes. */
static void read_weights(tn_module *model)
{
    tn_load_report report;
    tn_list *state = tn_load_tensors_with(weights, (tn_load_options){ .unwrap = true }, NULL, NULL);
    ex_check_ptr(state);
    const bool other = tn_list_has(state, "fc.weight") &&
                       tn_size(tn_list_get(state, "fc.weight"), 0) != training->n_classes;
    if (other) {
        ex_say("%s: its last layer, of %" PRId64 " classes, is left out", weights,
               tn_size(tn_list_get(state, "fc.weight"), 0));
        ex_check(tn_list_remove(state, "fc.weight"));
        ex_check(tn_list_remove(state, "fc.bias"));
    }
    const tn_load_options o = { .non_strict = other, .cast = true };
    ex_check(tn_load_state_dict(model, state, o, &report));
    if (report.missing > 2 * other || report.unexpected)
        ex_refuse("%s is not of such a network:\n%s", weights, report.text);
}

static void build(void)
{
    static tn_dataset data;
    tn_manual_seed((uint64_t)ex.seed);
    tn_module *model = ex.state.model = resnet_new(width, (int)training->n_classes);
    ex_check_ptr(model);
    if (weights) read_weights(model);
    if (freeze) {
        ex_check(tn_module_freeze(model));
        ex_check(tn_module_thaw(tn_get_submodule(model, "fc")));
    }
    ex_check(tn_module_to(model, ex.where));
    if (epochs > 0) {
        ex.state.loader = loader_of(&data, training, true);
        ex.every = (int)tn_loader_batches(ex.state.loader); /* an epoch */
        ex.total = epochs * ex.every;
    }
    ex.state.optimizer =
        tn_sgd(tn_parameters(model),
               (tn_sgd_options){ .lr = lr, .momentum = momentum, .weight_decay = weight_decay });
    ex_check_ptr(ex.state.optimizer);
    if (ex.total == 0) return;
    ex.state.scheduler = tn_cosine_lr(ex.state.optimizer, ex.total, 0);
    ex_check_ptr(ex.state.scheduler);
}

/* ---- steps and evaluations ------------------------------------------------------------------- */

static void next(tn_tensor **in)
{
    int got = tn_loader_next(ex.state.loader, in, 2);
    if (got == 0) got = tn_loader_next(ex.state.loader, in, 2);
    if (got < 0) ex_check(tn_error_status());
}

static tn_tensor *learn(int n, tn_tensor *const *in, void *user)
{
    tn_tensor *x = tn_to(in[0], ex.where), *y = tn_to(in[1], ex.where), *loss = NULL;
    TN_AUTOCAST(ex.dtype) loss = tn_cross_entropy(tn_forward(ex.state.model, x), y);
    (void)n, (void)user;
    return ex_learn(loss, 0);
}

/* The share of validation images whose class the model finds. */
static double accuracy(void)
{
    tn_dataset data;
    tn_loader *loader = loader_of(&data, validation, false);
    tn_module *right = tn_metric_new(TN_ACCURACY, (tn_metric_options){ 0 });
    ex_check_ptr(right);
    ex_check(tn_module_to(right, ex.where));
    ex_check(tn_eval(ex.state.model));
    TN_NO_GRAD TN_AUTOCAST(ex.dtype) for (int got = 1; got > 0 && !ex_signal;) TN_SCOPE
    {
        tn_tensor *in[2];
        if ((got = tn_loader_next(loader, in, 2)) < 0) ex_check(tn_error_status());
        if (got > 0)
            ex_check(tn_metric_update(right, tn_forward(ex.state.model, tn_to(in[0], ex.where)),
                                      tn_to(in[1], ex.where)));
    }
    ex_check(tn_train(ex.state.model, true));
    const double share = tn_metric_value(right);
    tn_module_drop(right);
    tn_loader_free(loader);
    return share;
}

/* At the end of an epoch. */
static double evaluate(double mean)
{
    if (ex.quiet && !ex.plot && !ex.log && !ex.board) return 0; /* nobody would see it */
    const double share = accuracy();
    if (!ex_signal)
        ex_say("epoch %d: training loss %.4f, validation accuracy %.2f %%",
               (ex.step + ex.every - 1) / ex.every, mean, 100 * share);
    return share;
}

struct ex_run ex = {
    EX_DEFAULTS,
    .batch = 32,
    .unit = "images",
    .next = next,
    .learn = learn,
    .evaluate = evaluate,
    .evaluate_last = true,
    .value = "validation_accuracy",
    .y_label = "",
    .curve = { { .label = "training loss" }, { .label = "validation accuracy" } },
};

int main(int argc, char **argv)
{
    int at = ex_parse(
        "Learns the classes of a folder of images:\n"
        "images FOLDER, in which train and val each have a folder of .jpg or .png files for each "
        "class.",
        options, sizeof options / sizeof *options, 1, argc, argv);
    if (at == argc) ex_refuse("want a FOLDER (see --help)");
    folder = argv[at];
    tn_scope program = tn_scope_begin();
    if (ex.load && !ex_given("epochs")) epochs = 0;
    ex_prepare();
    open_folders();
    build();
    ex.per_step = ex.batch;
    ex_start();
    double rate = ex_train();
    if (ex.trained && !ex.quiet) printf("%d steps, %.1f images/s\n", ex.step, rate);
    if (!ex.trained && !ex.quiet) printf("validation accuracy %.2f %%\n", 100 * accuracy());
    ex_report();
    ex_free();
    tn_image_folder_free(training), tn_image_folder_free(validation);
    tn_scope_end(program);
    return ex_end();
}
