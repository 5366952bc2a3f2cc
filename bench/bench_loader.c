/*
 * bench_loader - batches per second from Fashion-MNIST in shuffled order: 128 images as f32 in
 * [0, 1] [128, 1, 28, 28] and their labels as i64, which a training step can take as they are. A
 * step of --steps is an epoch of the training images.
 *
 *   --data FOLDER   with train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz; by default
 *                   where Debian's dataset-fashion-mnist puts them
 *
 * checksum: over an untimed epoch, the sum of each image's mean times its label + 1, which no order
 * changes.
 *
 * Twin: torch_loader.py
 */
#include "bench.h"

#include <string.h>

static tn_tensor *idx(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.gz", folder, name);
    tn_tensor *data = tn_idx_load(path);
    TN_CHECK_PTR(data);
    return data;
}

static double checksum(tn_tensor *x, tn_tensor *y)
{
    tn_tensor *mean = tn_mean(x, TN_AXES(1, 2, 3), false);
    return tn_item(tn_sum(tn_mul(mean, tn_add_scalar(tn_to_dtype(y, TN_F32), 1)), NULL, 0, false));
}

/* An epoch; its checksum into *sum if that is given. Returns the number of batches. */
static int64_t epoch(tn_loader *loader, double *sum)
{
    int64_t n = 0;
    for (bool more = true; more;) {
        tn_tensor *batch[2];
        tn_scope scope = tn_scope_begin();
        int got = tn_loader_next(loader, batch, 2);
        if (got < 0) TN_CHECK(tn_error_status());
        more = got == 1;
        if (more) {
            tn_tensor *x = tn_div_scalar(tn_to_dtype(batch[0], TN_F32), 255);
            tn_tensor *y = tn_to_dtype(batch[1], TN_I64);
            x = tn_reshape(x, TN_SHAPE(-1, 1, 28, 28));
            TN_CHECK_PTR(x);
            TN_CHECK_PTR(y);
            if (sum) *sum += checksum(x, y);
            n++;
        }
        tn_scope_end(scope);
    }
    return n;
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(
        argc, argv, (bench_flags){ .data = "/usr/share/datasets/fashion-mnist", .steps = 5 });
    if (f.where.type != TN_CPU || f.steps < 1) {
        fprintf(stderr, "bench_loader: want --device cpu and --steps 1 or more\n");
        return 2;
    }
    const char *name = bench_name(&f, "loader");
    tn_scope program = tn_scope_begin();
    bench_banner(name);
    tn_tensor *data[] = { idx(f.data, "train-images-idx3-ubyte"),
                          idx(f.data, "train-labels-idx1-ubyte") };
    tn_loader *loader = tn_loader_new(
        data, 2,
        (tn_loader_options){
            .batch_size = f.batch ? f.batch : 128, .shuffle = true, .seed = 1, .prefetch = true });
    TN_CHECK_PTR(loader);
    double sum = 0, *rates = malloc((size_t)f.steps * sizeof *rates);
    if (!rates) return 1;
    epoch(loader, &sum);
    for (int64_t round = 0; bench_round(&f, round); round++) {
        for (int64_t i = 0; i < f.steps; i++) {
            double t0 = bench_now();
            int64_t n = epoch(loader, NULL);
            rates[i] = (double)n / (bench_now() - t0);
        }
        bench_line(name, "batches/s", rates, f.steps);
        bench_one(name, "checksum", sum);
        bench_memory(name);
    }
    free(rates);
    tn_loader_free(loader);
    tn_scope_end(program);
    return 0;
}
