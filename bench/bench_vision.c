/*
 * bench_vision - a training step of a whole image model, 16 images of 224 x 224 at a time, SGD with
 * momentum.
 *
 *   resnet18      He et al., Deep Residual Learning, 2016, table 1
 *   mobilenetv2   Sandler et al., MobileNetV2, 2018, table 2
 * Twin: torch_vision.py
 */
#include "bench.h"

#include <string.h>

enum { SIDE = 224, CLASSES = 1000, BATCH = 16, MOST = 64 };
static tn_tensor *images, *labels;

/* ---- models ---------------------------------------------------------------------------------- */

static tn_module *conv(int in, int out, int kernel, int stride, int groups)
{
    const tn_conv_options o = {
        .stride = stride, .padding = kernel / 2, .groups = groups, .no_bias = true
    };
    return tn_conv2d_new(in, out, kernel, o);
}

static tn_module *norm(int channels)
{
    return tn_batch_norm2d_new(channels, (tn_batch_norm_options){ 0 });
}

/* y = act(body(x) + skip(x)); where there is none, skip is x itself, and there is no act. */
typedef struct residual {
    tn_module base;
    tn_module *body, *skip, *act;
} residual;

static tn_tensor *residual_forward(tn_module *self, tn_tensor *x)
{
    residual *m = (residual *)self;
    tn_tensor *y = tn_add(tn_forward(m->body, x), m->skip ? tn_forward(m->skip, x) : x);
    return m->act ? tn_forward(m->act, y) : y;
}

static tn_module *residual_new(tn_module *body, tn_module *skip, bool relu)
{
    static const tn_module_type type = { .name = "Residual",
                                         .size = sizeof(residual),
                                         .forward = residual_forward };
    residual *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "body", &m->body, body);
    if (skip) tn_register_module(&m->base, "skip", &m->skip, skip);
    if (relu) tn_register_module(&m->base, "act", &m->act, tn_relu_new());
    return tn_module_done(&m->base);
}

static tn_module *resnet18_new(void)
{
    const tn_pool_spec pool = { .kernel = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 } };
    tn_module *net =
        tn_sequential(conv(3, 64, 7, 2, 1), norm(64), tn_relu_new(), tn_max_pool2d_new(pool));
    for (int i = 0, in = 64; i < 8; i++) {
        int out = 64 << i / 2, stride = i && i % 2 == 0 ? 2 : 1;
        tn_module *body = tn_sequential(conv(in, out, 3, stride, 1), norm(out), tn_relu_new(),
                                        conv(out, out, 3, 1, 1), norm(out));
        bool same = stride == 1 && in == out;
        tn_module_append(
            net,
            residual_new(body, same ? NULL : tn_sequential(conv(in, out, 1, stride, 1), norm(out)),
                         true));
        in = out;
    }
    tn_module_append(net, tn_adaptive_avg_pool2d_new(1, 1));
    tn_module_append(net, tn_flatten_new(1, -1));
    tn_module_append(net, tn_linear_new(512, CLASSES, (tn_linear_options){ 0 }));
    return net;
}

static void add_layer(tn_module *to, int in, int out, int kernel, int stride, int groups)
{
    tn_module_append(to, conv(in, out, kernel, stride, groups));
    tn_module_append(to, norm(out));
    tn_module_append(to, tn_relu6_new());
}

static tn_module *mobilenetv2_new(void)
{
    static const struct {
        int expand, channels, count, stride;
    } stages[] = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 },  { 6, 32, 3, 2 }, { 6, 64, 4, 2 },
                   { 6, 96, 3, 1 }, { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    tn_module *net = tn_sequential_from(NULL, 0);
    add_layer(net, 3, 32, 3, 2, 1);
    int in = 32;
    for (int s = 0; s < (int)(sizeof stages / sizeof *stages); s++)
        for (int i = 0; i < stages[s].count; i++) {
            int out = stages[s].channels, stride = i ? 1 : stages[s].stride;
            int wide = in * stages[s].expand;
            tn_module *body = tn_sequential_from(NULL, 0);
            if (wide != in) add_layer(body, in, wide, 1, 1, 1);
            add_layer(body, wide, wide, 3, stride, wide);
            tn_module_append(body, conv(wide, out, 1, 1, 1));
            tn_module_append(body, norm(out));
            bool adds = stride == 1 && in == out;
            tn_module_append(net, adds ? residual_new(body, NULL, false) : body);
            in = out;
        }
    add_layer(net, in, 1280, 1, 1, 1);
    tn_module_append(net, tn_adaptive_avg_pool2d_new(1, 1));
    tn_module_append(net, tn_flatten_new(1, -1));
    tn_module_append(net, tn_linear_new(1280, CLASSES, (tn_linear_options){ 0 }));
    return net;
}

/* ---- training -------------------------------------------------------------------------------- */

static tn_tensor *loss(tn_module *model, tn_tensor *x, tn_tensor *y)
{
    return tn_cross_entropy(tn_forward(model, x), y);
}

static void batch(int64_t step, tn_tensor **x, tn_tensor **y)
{
    (void)step;
    *x = images;
    *y = labels;
}

/* Noise in [-0.5, 0.5). */
static void make_images(int64_t n)
{
    static float pixels[MOST * 3 * SIDE * SIDE];
    static int64_t label[MOST];
    for (int64_t i = 0; i < n * 3 * SIDE * SIDE; i++)
        pixels[i] = (float)(bench_mix((uint32_t)i) >> 8) * 0x1p-24f - 0.5f;
    for (int64_t i = 0; i < n; i++) label[i] = bench_mix((uint32_t)i + 0x20000000) % CLASSES;
    images = tn_from_memory(pixels, TN_SHAPE(n, 3, SIDE, SIDE), TN_F32, NULL, NULL);
    labels = tn_from_memory(label, TN_SHAPE(n), TN_I64, NULL, NULL);
}

int main(int argc, char **argv)
{
    bench_flags f =
        bench_parse(argc, argv, (bench_flags){ .config = "resnet18", .steps = 10, .warmup = 2 });
    bool mobile = !strcmp(f.config, "mobilenetv2");
    if ((!mobile && strcmp(f.config, "resnet18")) || f.find_batch) {
        fprintf(stderr,
                "bench_vision: --config %s: want resnet18 or mobilenetv2, without "
                "--find-batch\n",
                f.config);
        return 2;
    }
    int64_t n = f.batch ? f.batch : BATCH;
    if (n > MOST) {
        fprintf(stderr, "bench_vision: --batch: want 1 to %d\n", MOST);
        return 2;
    }
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    make_images(n);
    tn_module *model = mobile ? mobilenetv2_new() : resnet18_new();
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_to(model, f.where));
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 1e-3, .momentum = 0.9 });
    TN_CHECK_PTR(opt);
    bench_run(&(bench_task){ .name = bench_name(&f, f.config),
                             .unit = "images",
                             .per_step = n,
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
