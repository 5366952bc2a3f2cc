/*
 * bench_images - a training step on images of 28 x 28, 128 at a time.
 *
 *   cnn   the network of examples/batchnorm, SGD with momentum: Conv(1,32,3)-BN-ReLU-MaxPool,
 *         Conv(32,64,3)-BN-ReLU-MaxPool, Linear(3136,128)-ReLU-Linear(128,10)
 *   mlp   784-512-256-10 with ReLU, Adam
 * Twin: torch_images.py
 */
#include "bench.h"

#include <string.h>

static tn_tensor *images, *labels;
static int64_t batch_size;

static tn_tensor *loss(tn_module *model, tn_tensor *x, tn_tensor *y)
{
    return tn_cross_entropy(tn_forward(model, x), y);
}

static void batch(int64_t step, tn_tensor **x, tn_tensor **y)
{
    int64_t first = step % (BENCH_IMAGES / batch_size) * batch_size;
    *x = tn_narrow(images, 0, first, batch_size);
    *y = tn_narrow(labels, 0, first, batch_size);
}

static tn_module *cnn_new(void)
{
    const tn_conv2d_options pad = { .padding = 1 };
    const tn_pool2d_spec half = { .kernel = { 2, 2 } };
    const tn_batch_norm_options norm = { 0 };
    const tn_linear_options linear = { 0 };
    return tn_sequential(tn_conv2d_new(1, 32, 3, pad), tn_batch_norm2d_new(32, norm), tn_relu_new(),
                         tn_max_pool2d_new(half), tn_conv2d_new(32, 64, 3, pad),
                         tn_batch_norm2d_new(64, norm), tn_relu_new(), tn_max_pool2d_new(half),
                         tn_flatten_new(1, -1), tn_linear_new(3136, 128, linear), tn_relu_new(),
                         tn_linear_new(128, 10, linear));
}

static tn_module *mlp_new(void)
{
    const tn_linear_options linear = { 0 };
    return tn_sequential(tn_linear_new(BENCH_PIXELS, 512, linear), tn_relu_new(),
                         tn_linear_new(512, 256, linear), tn_relu_new(),
                         tn_linear_new(256, BENCH_CLASSES, linear));
}

static void make_images(bool flat)
{
    static float pixels[BENCH_IMAGES * BENCH_PIXELS];
    static int64_t label[BENCH_IMAGES];
    tn_shape shape =
        flat ? TN_SHAPE(BENCH_IMAGES, BENCH_PIXELS) : TN_SHAPE(BENCH_IMAGES, 1, 28, 28);
    for (int64_t n = 0; n < BENCH_IMAGES; n++) bench_image(n, pixels + n * BENCH_PIXELS, &label[n]);
    images = tn_from_memory(pixels, shape, TN_F32, NULL, NULL);
    labels = tn_from_memory(label, TN_SHAPE(BENCH_IMAGES), TN_I64, NULL, NULL);
}

int main(int argc, char **argv)
{
    bench_flags f =
        bench_parse(argc, argv, (bench_flags){ .config = "cnn", .steps = 40, .warmup = 5 });
    bool mlp = !strcmp(f.config, "mlp");
    batch_size = f.batch ? f.batch : 128;
    if ((!mlp && strcmp(f.config, "cnn")) || f.find_batch) {
        fprintf(stderr, "bench_images: --config %s: want cnn or mlp, without --find-batch\n",
                f.config);
        return 2;
    }
    if (batch_size < 1 || batch_size > BENCH_IMAGES) {
        fprintf(stderr, "bench_images: --batch: want 1 to %d\n", BENCH_IMAGES);
        return 2;
    }
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    make_images(mlp);
    tn_module *model = mlp ? mlp_new() : cnn_new();
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_to(model, f.where));
    tn_list *list = tn_parameters(model);
    tn_optim *opt = mlp ? tn_adam(list, (tn_adam_options){ .lr = 1e-4 })
                        : tn_sgd(list, (tn_sgd_options){ .lr = 2e-3, .momentum = 0.9 });
    TN_CHECK_PTR(opt);
    bench_run(&(bench_task){ .name = bench_name(&f, f.config),
                             .unit = "images",
                             .per_step = batch_size,
                             .model = model,
                             .optimizer = opt,
                             .dtype = f.dtype,
                             .loss = loss,
                             .batch = batch },
              &f);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(program);
    return 0;
}
