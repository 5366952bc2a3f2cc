/* bench_mlp - a training step of an MLP 784-512-256-10 with ReLU: batch 128, Adam.
 * Twin: torch_mlp.py */
#include "bench.h"

enum { BATCH = 128 };
static tn_tensor *images, *labels;

static tn_tensor *loss(tn_module *model, tn_tensor *x, tn_tensor *y)
{
    return tn_cross_entropy(tn_forward(model, x), y);
}

static void batch(int64_t step, tn_tensor **x, tn_tensor **y)
{
    int64_t first = step * BATCH % BENCH_IMAGES;
    *x = tn_narrow(images, 0, first, BATCH);
    *y = tn_narrow(labels, 0, first, BATCH);
}

int main(int argc, char **argv)
{
    const tn_linear_options linear = { 0 };
    static float pixels[BENCH_IMAGES * BENCH_PIXELS];
    static int64_t label[BENCH_IMAGES];
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .steps = 300, .warmup = 20 });

    for (int64_t n = 0; n < BENCH_IMAGES; n++) bench_image(n, pixels + n * BENCH_PIXELS, &label[n]);
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    images = tn_from_memory(pixels, TN_SHAPE(BENCH_IMAGES, BENCH_PIXELS), TN_F32, NULL, NULL);
    labels = tn_from_memory(label, TN_SHAPE(BENCH_IMAGES), TN_I64, NULL, NULL);
    tn_module *model = tn_sequential(tn_linear_new(BENCH_PIXELS, 512, linear), tn_relu_new(),
                                     tn_linear_new(512, 256, linear), tn_relu_new(),
                                     tn_linear_new(256, BENCH_CLASSES, linear));
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_adam(tn_parameters(model), (tn_adam_options){ .lr = 1e-4 });
    TN_CHECK_PTR(opt);
    bench_run(&(bench_task){ .name = "tenon_mlp", .unit = "images", .per_step = BATCH,
                             .model = model, .optimizer = opt, .loss = loss, .batch = batch }, &f);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(program);
    return 0;
}
