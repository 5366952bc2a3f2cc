/*
 * bench_cnn - a training step of the network of examples/batchnorm: batch 128, SGD with momentum.
 *
 * Conv(1,32,3)-BN-ReLU-MaxPool, Conv(32,64,3)-BN-ReLU-MaxPool, Linear(3136,128)-ReLU-Linear(128,10)
 * Twin: torch_cnn.py
 */
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
    const tn_conv2d_options pad = { .padding = 1 };
    const tn_pool2d_spec half = { .kernel = { 2, 2 } };
    const tn_batchnorm_options norm = { 0 };
    const tn_linear_options linear = { 0 };
    static float pixels[BENCH_IMAGES * BENCH_PIXELS];
    static int64_t label[BENCH_IMAGES];
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .steps = 40, .warmup = 5 });

    for (int64_t n = 0; n < BENCH_IMAGES; n++) bench_image(n, pixels + n * BENCH_PIXELS, &label[n]);
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    images = tn_from_memory(pixels, TN_SHAPE(BENCH_IMAGES, 1, 28, 28), TN_F32, NULL, NULL);
    labels = tn_from_memory(label, TN_SHAPE(BENCH_IMAGES), TN_I64, NULL, NULL);
    tn_module *model = tn_sequential(
        tn_conv2d_new(1, 32, 3, pad), tn_batchnorm2d_new(32, norm), tn_relu_new(),
        tn_max_pool2d_new(half), tn_conv2d_new(32, 64, 3, pad), tn_batchnorm2d_new(64, norm),
        tn_relu_new(), tn_max_pool2d_new(half), tn_flatten_new(1, -1),
        tn_linear_new(3136, 128, linear), tn_relu_new(), tn_linear_new(128, 10, linear));
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 2e-3, .momentum = 0.9 });
    TN_CHECK_PTR(opt);
    bench_run(&(bench_task){ .name = "tenon_cnn", .unit = "images", .per_step = BATCH,
                             .model = model, .optimizer = opt, .loss = loss, .batch = batch }, &f);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(program);
    return 0;
}
