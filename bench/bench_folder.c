/*
 * bench_folder - what reading photographs costs a training: ResNet-18, 16 images of 224 x 224 a
 * step, as examples/images trains it, in turn from the files of a folder and from memory.
 *
 *   --data FOLDER   with a folder of .jpg or .png files for each class, whose pixels, once decoded
 *                   and cut, fit in memory as floats
 *   --steps N       steps from one of them before the other has its turn
 *   --rounds N      turns of each; 0: one
 *
 * From the folder one worker decodes a random part of each image, two batches ahead; from memory
 * one copies what was decoded before.
 */
#include "../examples/models/resnet.h"
#include "bench.h"

#include <stdlib.h>

enum { SIDE = 224, BATCH = 16 };
static const size_t image_bytes = 3 * SIDE * SIDE * sizeof(float);
static const tn_field fields[] = {
    { .name = "image", .dtype = TN_F32, .shape = { 3, { 3, SIDE, SIDE } } },
    { .name = "label", .dtype = TN_I64 }
};

/* A random part of an image, perhaps mirrored. */
static tn_status get(const tn_dataset *d, tn_sample *s)
{
    static const double mean[] = { 0.485, 0.456, 0.406 }, std[] = { 0.229, 0.224, 0.225 };
    const tn_image_file *image = &((const tn_image_folder *)d->user)->image[s->index];
    const tn_image_crop_options part = { .scale = { 0.25, 1 } };
    tn_tensor *x = tn_image_load_crop(image->path, SIDE, SIDE, part,
                                      (tn_image_options){ .orient = true }, s->generator);
    x = tn_image_normalize(tn_image_random_flip(x, -1, 0.5, s->generator), mean, std, 3);
    *(int64_t *)s->to[1] = image->label;
    return tn_copy_out(x, s->to[0], image_bytes, TN_F32);
}

/* What a loader gives in an epoch, as a loader of tensors. */
static tn_loader *in_memory(tn_loader *from)
{
    const int64_t batches = tn_loader_batches(from), n = batches * BATCH;
    tn_tensor *part[2], *all[2] = { tn_empty(TN_SHAPE(n, 3, SIDE, SIDE)),
                                    tn_full_as(TN_SHAPE(n), 0, TN_I64, tn_cpu()) };
    for (int64_t i = 0; i < batches; i++) TN_SCOPE
        {
            if (tn_loader_next(from, part, 2) != 1) TN_CHECK(tn_error_status());
            for (int k = 0; k < 2; k++)
                TN_CHECK(tn_copy_(tn_narrow(all[k], 0, i * BATCH, BATCH), part[k]));
        }
    return tn_loader_new(all, 2,
                         (tn_loader_options){ .batch_size = BATCH, .shuffle = true, .workers = 1 });
}

/* Images a second. */
static double train(tn_module *model, tn_optim *opt, tn_loader *loader, const bench_flags *f)
{
    const double began = bench_now();
    for (int64_t i = 0; i < f->steps; i++) TN_SCOPE
        {
            tn_tensor *in[2], *loss = NULL;
            int got = tn_loader_next(loader, in, 2);
            if (got == 0) got = tn_loader_next(loader, in, 2); /* the next epoch */
            if (got < 0) TN_CHECK(tn_error_status());
            TN_AUTOCAST(f->dtype) loss = tn_cross_entropy(tn_forward(model, in[0]), in[1]);
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(loss));
            TN_CHECK(tn_optim_step(opt));
        }
    return (double)(f->steps * BATCH) / (bench_now() - began);
}

int main(int argc, char **argv)
{
    enum { WAYS = 3 };
    static const char *const way[WAYS] = { "images/s from a folder", "images/s from memory",
                                           "time, a folder over memory" };
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .data = "images", .steps = 28 });
    const int64_t rounds = f.rounds ? f.rounds : 1;
    const char *name = bench_name(&f, "folder");
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    bench_banner(name);
    tn_image_folder *images = tn_image_folder_open(f.data);
    TN_CHECK_PTR(images);
    const tn_dataset data = { .name = f.data,
                              .length = images->n,
                              .fields = fields,
                              .n_fields = 2,
                              .get = get,
                              .user = images };
    tn_loader *folder = tn_loader_from(
        &data, (tn_loader_options){
                   .batch_size = BATCH, .shuffle = true, .drop_last = true, .workers = 1 });
    TN_CHECK_PTR(folder);
    tn_loader *memory = in_memory(folder);
    TN_CHECK_PTR(memory);
    tn_module *model = resnet_new(64, (int)images->n_classes);
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.01, .momentum = 0.9 });
    TN_CHECK_PTR(opt);
    double *rate[WAYS];
    for (int k = 0; k < WAYS; k++)
        if (!(rate[k] = malloc((size_t)rounds * sizeof(double)))) return 1;
    for (int64_t i = -1; i < rounds; i++) { /* the first is not timed */
        const bool turned = i % 2 != 0;
        double got[2];
        for (int k = 0; k < 2; k++)
            got[k ^ turned] = train(model, opt, k ^ turned ? memory : folder, &f);
        for (int k = 0; i >= 0 && k < WAYS; k++) rate[k][i] = k < 2 ? got[k] : got[1] / got[0];
    }
    for (int k = 0; k < WAYS; k++) bench_line(name, way[k], rate[k], rounds), free(rate[k]);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_loader_free(folder), tn_loader_free(memory);
    tn_image_folder_free(images);
    tn_scope_end(program);
    return 0;
}
