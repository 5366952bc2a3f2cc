/*
 * bench_jpeg - images a second from JPEG files, as an epoch over photographs begins: read, decoded,
 * a random part resized to 224 x 224, flipped at random, normalised, 32 to a batch.
 *
 *   --config WAY-N   whole: the whole image is decoded; parts: only what the part needs; N: the
 *                    loader's workers
 *   --data FOLDER    with 0.jpg, 1.jpg and so on, 64 of them, which torch_jpeg.py --data makes
 *
 * A step is a batch. checksum: the mean of the values of the first batch; image n of an epoch draws
 * from a generator with the seed n on both sides.
 *
 * Twin: torch_jpeg.py
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { FILES = 64, BATCH = 32, SIDE = 224 };

static bool parts;
static const char *folder;

static tn_status get(const tn_dataset *d, tn_sample *s)
{
    static const double mean[] = { 0.485, 0.456, 0.406 }, std[] = { 0.229, 0.224, 0.225 };
    const tn_image_options rgb = { 0 };
    const tn_image_crop_options crop = { 0 };
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.jpg", folder, (int)(s->index % FILES));
    tn_generator *g = tn_generator_new((uint64_t)s->index);
    tn_tensor *x =
        parts ? tn_image_load_crop(path, SIDE, SIDE, crop, rgb, g)
              : tn_image_random_resized_crop(tn_image_load(path, rgb), SIDE, SIDE, crop, g);
    x = tn_image_normalize(tn_image_random_flip(x, -1, 0.5, g), mean, std, 3);
    tn_generator_free(g);
    (void)d;
    return tn_copy_out(x, s->to[0], 3 * SIDE * SIDE * sizeof(float), TN_F32);
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(
        argc, argv,
        (bench_flags){ .config = "whole-0", .data = "jpegs", .steps = 20, .warmup = 4 });
    const char *dash = strchr(f.config, '-');
    const int64_t workers = dash ? strtoll(dash + 1, NULL, 10) : -1;
    parts = strncmp(f.config, "parts-", 6) == 0;
    folder = f.data;
    if ((!parts && strncmp(f.config, "whole-", 6) != 0) || workers < 0 || f.steps < 1) {
        fprintf(stderr, "bench_jpeg: --config %s: want whole-N or parts-N, and --steps 1 or more\n",
                f.config);
        return 2;
    }
    char workload[64];
    snprintf(workload, sizeof workload, "jpeg_%s", f.config);
    const char *name = bench_name(&f, workload);
    bench_banner(name);
    const tn_field field = { .name = "image", .dtype = TN_F32, .shape = TN_SHAPE(3, SIDE, SIDE) };
    const tn_dataset data = { .name = folder,
                              .length = (f.warmup + f.steps) * BATCH,
                              .fields = &field,
                              .n_fields = 1,
                              .get = get };
    tn_loader *loader =
        tn_loader_from(&data, (tn_loader_options){ .batch_size = BATCH, .workers = workers });
    TN_CHECK_PTR(loader);
    double sum = 0, began = 0;
    for (int64_t n = 0; n < f.warmup + f.steps; n++) {
        if (n == f.warmup) began = bench_now();
        tn_scope scope = tn_scope_begin();
        tn_tensor *batch;
        if (tn_loader_next(loader, &batch, 1) != 1) TN_CHECK(tn_error_status());
        if (n == 0) sum = tn_item(tn_mean(batch, NULL, 0, false));
        tn_scope_end(scope);
    }
    bench_one(name, "images/s", (double)(f.steps * BATCH) / (bench_now() - began));
    bench_one(name, "checksum", sum);
    tn_loader_free(loader);
    return 0;
}
