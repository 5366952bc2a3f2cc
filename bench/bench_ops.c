/*
 * bench_ops - single ops: the cost of a tiny one, and the usual ones at sizes of the models here.
 *
 * tiny_*   8 floats, a chain of 1,000 ops: nanoseconds each; what remains when arithmetic is free
 * others   microseconds a call: forward alone, recording nothing; and forward with backward from a
 *          seed of ones to every float input
 * Twin: torch_ops.py
 */
#include "bench.h"

#include <string.h>

enum { CHAIN = 1000, TINY = 8, MOST = 400 };
static int64_t samples = 15;

/* ---- tiny ops ------------------------------------------------------------------------------ */

typedef tn_tensor *(*binary)(tn_tensor *a, tn_tensor *b);

static void tiny(const char *name, binary f, tn_tensor *a, tn_tensor *b, bool recording)
{
    double forward[MOST], backward[MOST];
    char text[64];
    for (int64_t i = -2; i < samples; i++) {
        tn_scope scope = tn_scope_begin();
        bool was = tn_set_grad(recording);
        tn_tensor *y = a;
        double t0 = bench_now();
        for (int k = 0; k < CHAIN; k++) y = f(y, b);
        double t1 = bench_now();
        tn_tensor *s = recording ? tn_sum(y, NULL, 0, false) : TN_NONE;
        double t2 = bench_now();
        if (recording) TN_CHECK(tn_backward(s));
        double t3 = bench_now();
        tn_set_grad(was);
        tn_scope_end(scope);
        if (i < 0) continue;
        forward[i] = 1e9 * (t1 - t0) / CHAIN;
        backward[i] = 1e9 * (t3 - t2) / CHAIN;
    }
    snprintf(text, sizeof text, "tenon_tiny_%s%s", name, recording ? "_recording" : "");
    bench_line(text, "ns", forward, samples);
    if (!recording) return;
    snprintf(text, sizeof text, "tenon_tiny_%s_backward", name);
    bench_line(text, "ns", backward, samples);
}

static void tiny_in_place(tn_tensor *a, tn_tensor *b)
{
    double v[MOST];
    for (int64_t i = -2; i < samples; i++) {
        double t0 = bench_now();
        for (int k = 0; k < CHAIN; k++) TN_CHECK(tn_add_(a, b));
        if (i >= 0) v[i] = 1e9 * (bench_now() - t0) / CHAIN;
    }
    bench_line("tenon_tiny_add_in_place", "ns", v, samples);
}

static void tiny_all(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *a = tn_ones(TN_SHAPE(TINY)), *b = tn_full(TN_SHAPE(TINY), 1e-6);
    tn_tensor *g = tn_ones(TN_SHAPE(TINY)), *c = tn_ones(TN_SHAPE(TINY));
    tn_tensor *x = tn_ones(TN_SHAPE(1, TINY)), *m = tn_eye(TINY), *gm = tn_eye(TINY);
    TN_CHECK(tn_set_requires_grad(g, true));
    TN_CHECK(tn_set_requires_grad(gm, true));
    tiny("add", tn_add, a, b, false);
    tiny_in_place(c, b);
    tiny("matmul", tn_matmul, x, m, false);
    tiny("add", tn_add, g, b, true);
    tiny("mul", tn_mul, g, b, true);
    tiny("matmul", tn_matmul, x, gm, true);
    tn_scope_end(scope);
}

/* ---- ops at the size of a model ------------------------------------------------------------ */

static tn_tensor *relu(tn_tensor **x) { return tn_relu(x[0]); }
static tn_tensor *gelu(tn_tensor **x) { return tn_gelu(x[0]); }
static tn_tensor *gelu_tanh(tn_tensor **x) { return tn_gelu_tanh(x[0]); }
static tn_tensor *exponential(tn_tensor **x) { return tn_exp(x[0]); }
static tn_tensor *add(tn_tensor **x) { return tn_add(x[0], x[1]); }
static tn_tensor *mul(tn_tensor **x) { return tn_mul(x[0], x[1]); }
static tn_tensor *sum(tn_tensor **x) { return tn_sum(x[0], NULL, 0, false); }
static tn_tensor *sum_rows(tn_tensor **x) { return tn_sum(x[0], (int[]){ 0 }, 1, false); }
static tn_tensor *transposed(tn_tensor **x) { return tn_contiguous(tn_transpose(x[0], 0, 1)); }
static tn_tensor *softmax(tn_tensor **x) { return tn_softmax(x[0], -1); }
static tn_tensor *layer_norm(tn_tensor **x) { return tn_layer_norm(x[0], 1, x[1], x[2], 1e-5); }
static tn_tensor *matmul(tn_tensor **x) { return tn_matmul(x[0], x[1]); }
static tn_tensor *linear(tn_tensor **x) { return tn_linear(x[0], x[1], x[2]); }
static tn_tensor *cross_entropy(tn_tensor **x) { return tn_cross_entropy(x[0], x[1]); }
static tn_tensor *embedding(tn_tensor **x) { return tn_embedding(x[0], x[1], -1); }

static tn_tensor *attention(tn_tensor **x)
{
    return tn_scaled_dot_product_attention(x[0], x[1], x[2], TN_NONE, true, 0);
}

static tn_tensor *conv2d(tn_tensor **x)
{
    return tn_conv2d(x[0], x[1], x[2], (tn_conv2d_spec){ .padding = { 1, 1 } });
}

static tn_tensor *batch_norm(tn_tensor **x)
{
    return tn_batch_norm(x[0], x[1], x[2], TN_NONE, TN_NONE, true, 0.1, 1e-5);
}

static tn_tensor *max_pool(tn_tensor **x)
{
    return tn_max_pool2d(x[0], (tn_pool2d_spec){ .kernel = { 2, 2 } });
}

typedef struct row {
    const char *name;
    tn_tensor *(*f)(tn_tensor **x);
    tn_shape in[3];  /* rank 0: absent */
    int64_t classes; /* the last input holds class ids below this */
} row;

#define S(...)                                                                                     \
    { .rank = (int)(sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)), .size = { __VA_ARGS__ } }
#define THREE(...) { S(__VA_ARGS__), S(__VA_ARGS__), S(__VA_ARGS__) }

static const row rows[] = {
    { "add_1M", add, { S(1024, 1024), S(1024, 1024) }, 0 },
    { "add_row_2048x512", add, { S(2048, 512), S(512) }, 0 },
    { "mul_1M", mul, { S(1024, 1024), S(1024, 1024) }, 0 },
    { "relu_1M", relu, { S(1024, 1024) }, 0 },
    { "exp_1M", exponential, { S(1024, 1024) }, 0 },
    { "gelu_2048x512", gelu, { S(2048, 512) }, 0 },
    { "gelu_tanh_2048x512", gelu_tanh, { S(2048, 512) }, 0 },
    { "sum_1M", sum, { S(1024, 1024) }, 0 },
    { "sum_axis0_2048x512", sum_rows, { S(2048, 512) }, 0 },
    { "transpose_copy_1024", transposed, { S(1024, 1024) }, 0 },
    { "softmax_2048x512", softmax, { S(2048, 512) }, 0 },
    { "layer_norm_2048x128", layer_norm, { S(2048, 128), S(128), S(128) }, 0 },
    { "layer_norm_2048x384", layer_norm, { S(2048, 384), S(384), S(384) }, 0 },
    { "cross_entropy_2048x96", cross_entropy, { S(2048, 96), S(2048) }, 96 },
    { "embedding_96x128_2048", embedding, { S(96, 128), S(2048) }, 96 },
    { "matmul_512", matmul, { S(512, 512), S(512, 512) }, 0 },
    { "matmul_batch_128x64x32", matmul, { S(128, 64, 32), S(128, 32, 64) }, 0 },
    { "linear_2048x128x512", linear, { S(2048, 128), S(512, 128), S(512) }, 0 },
    { "linear_2048x384x1536", linear, { S(2048, 384), S(1536, 384), S(1536) }, 0 },
    { "linear_128x784x512", linear, { S(128, 784), S(512, 784), S(512) }, 0 },
    { "attention_32x4x64x32", attention, THREE(32, 4, 64, 32), 0 },
    { "attention_8x6x256x64", attention, THREE(8, 6, 256, 64), 0 },
    { "conv_128x1x28_32", conv2d, { S(128, 1, 28, 28), S(32, 1, 3, 3), S(32) }, 0 },
    { "conv_128x32x14_64", conv2d, { S(128, 32, 14, 14), S(64, 32, 3, 3), S(64) }, 0 },
    { "batch_norm_128x32x28", batch_norm, { S(128, 32, 28, 28), S(32), S(32) }, 0 },
    { "max_pool_128x32x28", max_pool, { S(128, 32, 28, 28) }, 0 },
};

static void time_row(const row *r)
{
    double forward[MOST], both[MOST];
    char text[96];
    tn_scope outer = tn_scope_begin();
    tn_tensor *in[3] = { TN_NONE, TN_NONE, TN_NONE };
    int n = 0;
    for (; n < 3 && r->in[n].rank > 0; n++) in[n] = tn_randn(r->in[n]);
    if (r->classes) in[n - 1] = tn_randint(0, r->classes, r->in[n - 1]);
    tn_tensor *seed = tn_ones_like(r->f(in));
    TN_CHECK_PTR(seed);
    for (int i = 0; i < n - (r->classes > 0); i++) TN_CHECK(tn_set_requires_grad(in[i], true));

    for (int64_t i = -3; i < samples; i++) {
        tn_scope scope = tn_scope_begin();
        double t0 = bench_now();
        bool was = tn_set_grad(false);
        TN_CHECK_PTR(r->f(in));
        tn_set_grad(was);
        double t1 = bench_now();
        TN_CHECK(tn_backward_from(r->f(in), seed, 0));
        double t2 = bench_now();
        for (int k = 0; k < n; k++) {
            if (tn_requires_grad(in[k])) TN_CHECK(tn_set_grad_of(in[k], TN_NONE));
        }
        tn_scope_end(scope);
        if (i < 0) continue;
        forward[i] = 1e6 * (t1 - t0);
        both[i] = 1e6 * (t2 - t1);
    }
    snprintf(text, sizeof text, "tenon_%s", r->name);
    bench_line(text, "us_forward", forward, samples);
    bench_line(text, "us_forward_backward", both, samples);
    tn_scope_end(outer);
}

/* One fused step over 16 tensors, 0.82 million numbers: about the size of the small GPT. */
static void time_adamw(void)
{
    double v[MOST];
    tn_scope scope = tn_scope_begin();
    tn_list *list = tn_list_new();
    for (int i = 0; i < 16; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        tn_tensor *p = tn_randn(i % 2 ? TN_SHAPE(512) : TN_SHAPE(512, 200));
        TN_CHECK(tn_set_requires_grad(p, true));
        TN_CHECK(tn_list_add(list, name, p));
        TN_CHECK(tn_set_grad_of(p, tn_ones_like(p)));
    }
    tn_optim *opt = tn_adamw(list, (tn_adamw_options){ .weight_decay = 0.01 });
    TN_CHECK_PTR(opt);
    for (int64_t i = -3; i < samples; i++) {
        double t0 = bench_now();
        TN_CHECK(tn_optim_step(opt));
        if (i >= 0) v[i] = 1e6 * (bench_now() - t0);
    }
    bench_line("tenon_adamw_820k", "us_step", v, samples);
    tn_optim_free(opt);
    tn_scope_end(scope);
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .steps = 15 });
    samples = f.steps > 0 && f.steps < MOST ? f.steps : 15;
    bench_banner("bench_ops");
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    tiny_all();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) time_row(&rows[i]);
    time_adamw();
    bench_one("tenon_ops", "peak_rss_MiB", bench_peak_rss());
    tn_scope_end(program);
    return 0;
}
