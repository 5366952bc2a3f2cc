/*
 * bench_jpeg - images a second from JPEG files, as an epoch over photographs begins: read, decoded,
 * a random part resized to 224 x 224, flipped at random, normalised, 32 to a batch.
 *
 *   --config WAY-N   whole: the whole image is decoded; parts: only what the part needs; N: threads
 *                    that make batches, 0 for none beside the one that takes them
 *   --data FOLDER    with 0.jpg, 1.jpg and so on, 64 of them, which torch_jpeg.py --data makes
 *
 * A step is a batch. checksum: the mean of the values of the first batch; image n of an epoch draws
 * from a generator with the seed n on both sides.
 *
 * Twin: torch_jpeg.py
 */
#include "bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FILES = 64, BATCH = 32, SIDE = 224, MOST_WORKERS = 8 };

static bool parts;
static const char *folder;
static int64_t workers;

static tn_tensor *image(int64_t n)
{
    static const double mean[] = { 0.485, 0.456, 0.406 }, std[] = { 0.229, 0.224, 0.225 };
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.jpg", folder, (int)(n % FILES));
    const tn_image_options rgb = { 0 };
    const tn_image_crop_options crop = { 0 };
    tn_generator *g = tn_generator_new((uint64_t)n);
    tn_tensor *x =
        parts ? tn_image_load_crop(path, SIDE, SIDE, crop, rgb, g)
              : tn_image_random_resized_crop(tn_image_load(path, rgb), SIDE, SIDE, crop, g);
    x = tn_image_normalize(tn_image_random_flip(x, -1, 0.5, g), mean, std, 3);
    tn_generator_free(g);
    TN_CHECK_PTR(x);
    return x;
}

/* Owner: the caller's reference. */
static tn_tensor *make_batch(int64_t n)
{
    tn_tensor *x[BATCH];
    tn_scope scope = tn_scope_begin();
    for (int64_t i = 0; i < BATCH; i++) {
        tn_scope s = tn_scope_begin();
        x[i] = tn_scope_return(s, image(n * BATCH + i));
    }
    tn_tensor *batch = tn_keep(tn_stack(x, BATCH, 0));
    TN_CHECK_PTR(batch);
    tn_scope_end(scope);
    return batch;
}

/* ---- threads: worker k makes batches k, k + workers, ..., one ahead -------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static tn_tensor *ready[MOST_WORKERS];

static void *work(void *at)
{
    const int64_t k = (tn_tensor **)at - ready;
    for (int64_t n = k;; n += workers) {
        tn_tensor *batch = make_batch(n);
        pthread_mutex_lock(&lock);
        while (ready[k]) pthread_cond_wait(&changed, &lock);
        ready[k] = batch;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static tn_tensor *next_batch(int64_t n)
{
    if (!workers) return make_batch(n);
    const int64_t k = n % workers;
    pthread_mutex_lock(&lock);
    while (!ready[k]) pthread_cond_wait(&changed, &lock);
    tn_tensor *batch = ready[k];
    ready[k] = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return batch;
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(
        argc, argv,
        (bench_flags){ .config = "whole-0", .data = "jpegs", .steps = 20, .warmup = 4 });
    const char *dash = strchr(f.config, '-');
    workers = dash ? strtoll(dash + 1, NULL, 10) : -1;
    parts = strncmp(f.config, "parts-", 6) == 0;
    folder = f.data;
    if ((!parts && strncmp(f.config, "whole-", 6) != 0) || workers < 0 || workers > MOST_WORKERS ||
        f.steps < 1) {
        fprintf(stderr, "bench_jpeg: --config %s: want whole-N or parts-N, and --steps 1 or more\n",
                f.config);
        return 2;
    }
    char workload[64];
    snprintf(workload, sizeof workload, "jpeg_%s", f.config);
    const char *name = bench_name(&f, workload);
    bench_banner(name);
    pthread_t thread;
    for (int64_t k = 0; k < workers; k++)
        if (pthread_create(&thread, NULL, work, &ready[k]) != 0) return 1;
    double sum = 0, began = 0;
    for (int64_t n = 0; n < f.warmup + f.steps; n++) {
        if (n == f.warmup) began = bench_now();
        tn_tensor *batch = next_batch(n);
        tn_scope scope = tn_scope_begin();
        if (n == 0) sum = tn_item(tn_mean(batch, NULL, 0, false));
        tn_scope_end(scope);
        tn_drop(batch);
    }
    bench_one(name, "images/s", (double)(f.steps * BATCH) / (bench_now() - began));
    bench_one(name, "checksum", sum);
    return 0;
}
