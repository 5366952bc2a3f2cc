/*
 * bench_ops - single ops: the cost of a tiny one, and the usual ones at sizes of models.
 *
 * tiny_*   8 floats, a chain of 1,000 ops: nanoseconds each; what remains when arithmetic is free
 * peak_*   on a GPU: the rates of a large copy (bytes read and written) and of a large product
 * others   microseconds a call: forward alone, recording nothing; and forward with backward from a
 *          seed of ones to every float input. GB and GFLOP: the least that forward must move (every
 *          input read once, the result written once) and compute; divided by the peaks, the least
 *          time possible
 *
 *   --config cpu     sizes of the small models (what a CPU takes by default)
 *   --config gpu     sizes of GPT-2 124M, above a GPU's cache; by default on one
 *   --config tiny    the same, far smaller: to see that they run
 *   --only TEXT      the ops whose names contain it: image_ are the convolutions of image models
 *   --alternate      with --rounds: each op goes through all rounds before the next begins
 * With bf16, inputs are bf16. A GPU then runs only the ops that mixed precision gives to its tensor
 * cores. On a GPU each sample is --block calls, the clock is read when the last is done.
 *
 * Twin: torch_ops.py
 */
#include "bench.h"

#include <string.h>

enum { CHAIN = 1000, TINY = 8, MOST = 400 };
static int64_t samples = 15;
static bench_flags flags;
static bool tiny_sizes;

/* ---- tiny ops -------------------------------------------------------------------------------- */

typedef tn_tensor *(*binary)(tn_tensor *a, tn_tensor *b);

static void tiny(const char *name, binary f, tn_tensor *a, tn_tensor *b, bool recording)
{
    double forward[MOST], backward[MOST];
    for (int64_t i = -2; i < samples; i++) {
        tn_scope scope = tn_scope_begin();
        bool was = tn_set_grad_enabled(recording);
        tn_tensor *y = a;
        double t0 = bench_now();
        for (int k = 0; k < CHAIN; k++) y = f(y, b);
        bench_wait();
        double t1 = bench_now();
        tn_tensor *s = recording ? tn_sum(y, NULL, 0, false) : TN_NONE;
        bench_wait();
        double t2 = bench_now();
        if (recording) TN_CHECK(tn_backward(s));
        bench_wait();
        double t3 = bench_now();
        tn_set_grad_enabled(was);
        tn_scope_end(scope);
        if (i < 0) continue;
        forward[i] = 1e9 * (t1 - t0) / CHAIN;
        backward[i] = 1e9 * (t3 - t2) / CHAIN;
    }
    char text[64];
    snprintf(text, sizeof text, "tiny_%s%s", name, recording ? "_recording" : "");
    bench_line(bench_name(&flags, text), "ns", forward, samples);
    if (!recording) return;
    snprintf(text, sizeof text, "tiny_%s_backward", name);
    bench_line(bench_name(&flags, text), "ns", backward, samples);
}

static void tiny_in_place(tn_tensor *a, tn_tensor *b)
{
    double v[MOST];
    for (int64_t i = -2; i < samples; i++) {
        double t0 = bench_now();
        for (int k = 0; k < CHAIN; k++) TN_CHECK(tn_add_(a, b));
        bench_wait();
        if (i >= 0) v[i] = 1e9 * (bench_now() - t0) / CHAIN;
    }
    bench_line(bench_name(&flags, "tiny_add_in_place"), "ns", v, samples);
}

static tn_tensor *there(tn_tensor *x)
{
    return tn_to(x, flags.where);
}

static void tiny_all(void)
{
    if (flags.only) return;
    tn_scope scope = tn_scope_begin();
    tn_tensor *a = there(tn_ones(TN_SHAPE(TINY))), *b = there(tn_full(TN_SHAPE(TINY), 1e-6));
    tn_tensor *g = there(tn_ones(TN_SHAPE(TINY))), *c = there(tn_ones(TN_SHAPE(TINY)));
    tn_tensor *x = there(tn_ones(TN_SHAPE(1, TINY))), *m = there(tn_eye(TINY)),
              *gm = there(tn_eye(TINY));
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

/* ---- ops at the size of a model -------------------------------------------------------------- */

/* clang-format off */
static tn_tensor *relu(tn_tensor **x) { return tn_relu(x[0]); }
static tn_tensor *gelu(tn_tensor **x) { return tn_gelu(x[0]); }
static tn_tensor *gelu_tanh(tn_tensor **x) { return tn_gelu_tanh(x[0]); }
static tn_tensor *mish(tn_tensor **x) { return tn_mish(x[0]); }
static tn_tensor *hardswish(tn_tensor **x) { return tn_hardswish(x[0]); }
static tn_tensor *rounded(tn_tensor **x) { return tn_round(x[0]); }
static tn_tensor *prelu(tn_tensor **x) { return tn_prelu(x[0], x[1]); }
static tn_tensor *glu(tn_tensor **x) { return tn_glu(x[0], -1); }
static tn_tensor *exponential(tn_tensor **x) { return tn_exp(x[0]); }
static tn_tensor *add(tn_tensor **x) { return tn_add(x[0], x[1]); }
static tn_tensor *mul(tn_tensor **x) { return tn_mul(x[0], x[1]); }
static tn_tensor *sum(tn_tensor **x) { return tn_sum(x[0], NULL, 0, false); }
static tn_tensor *sum_rows(tn_tensor **x) { return tn_sum(x[0], (int[]){ 0 }, 1, false); }
static tn_tensor *transposed(tn_tensor **x) { return tn_contiguous(tn_transpose(x[0], 0, 1)); }
static tn_tensor *softmax(tn_tensor **x) { return tn_softmax(x[0], -1); }
static tn_tensor *layer_norm(tn_tensor **x) { return tn_layer_norm(x[0], 1, x[1], x[2], 1e-5); }
static tn_tensor *rms_norm(tn_tensor **x) { return tn_rms_norm(x[0], 1, x[1], 1e-6); }
static tn_tensor *group_norm(tn_tensor **x) { return tn_group_norm(x[0], 8, x[1], x[2], 1e-5); }
static tn_tensor *matmul(tn_tensor **x) { return tn_matmul(x[0], x[1]); }
static tn_tensor *linear(tn_tensor **x) { return tn_linear(x[0], x[1], x[2]); }
static tn_tensor *cross_entropy(tn_tensor **x) { return tn_cross_entropy(x[0], x[1]); }
static tn_tensor *embedding(tn_tensor **x) { return tn_embedding(x[0], x[1], -1); }
static tn_tensor *sort(tn_tensor **x) { return tn_sort(x[0], -1, false, NULL); }
static tn_tensor *topk_50(tn_tensor **x) { return tn_topk(x[0], 50, -1, true, NULL); }
static tn_tensor *topk_5(tn_tensor **x) { return tn_topk(x[0], 5, -1, true, NULL); }
static tn_tensor *median(tn_tensor **x) { return tn_median(x[0], -1, false, NULL); }
static tn_tensor *unique(tn_tensor **x) { return tn_mul(x[0], tn_unique(x[1], NULL, NULL)); }
/* clang-format on */

static tn_tensor *attention(tn_tensor **x)
{
    return tn_scaled_dot_product_attention(x[0], x[1], x[2], TN_NONE, true, 0);
}

/* As much padding as keeps an image's size with stride 1; groups as the operands' sizes say. */
static tn_tensor *convolved(tn_tensor **x, int64_t stride, int64_t dilation)
{
    const int64_t pad = tn_size(x[1], 2) / 2 * dilation;
    const tn_conv2d_spec spec = { .stride = { stride, stride },
                                  .padding = { pad, pad },
                                  .dilation = { dilation, dilation },
                                  .groups = tn_size(x[0], 1) / tn_size(x[1], 1) };
    return tn_conv2d(x[0], x[1], x[2], spec);
}

/* clang-format off */
static tn_tensor *conv2d(tn_tensor **x) { return convolved(x, 1, 1); }
static tn_tensor *conv_strided(tn_tensor **x) { return convolved(x, 2, 1); }
static tn_tensor *conv_dilated(tn_tensor **x) { return convolved(x, 1, 2); }
/* clang-format on */

static tn_tensor *conv1d(tn_tensor **x)
{
    return tn_conv1d(x[0], x[1], x[2], (tn_conv_spec){ .padding = { 1 } });
}

static tn_tensor *conv_transpose2d(tn_tensor **x)
{
    return tn_conv_transpose2d(x[0], x[1], x[2],
                               (tn_conv_spec){ .stride = { 2, 2 }, .padding = { 1, 1 } });
}

static tn_tensor *batch_norm(tn_tensor **x)
{
    return tn_batch_norm(x[0], x[1], x[2], TN_NONE, TN_NONE, true, 0.1, 1e-5);
}

/* x [T, B, in] and both weights, without biases; in bf16 of f32 tensors, under autocast. */
static tn_tensor *rnn(tn_tensor **x)
{
    tn_tensor *y = NULL;
    TN_AUTOCAST(flags.dtype)
    y = tn_rnn(x[0], TN_NONE, x[1], x[2], TN_NONE, TN_NONE, false, false);
    return y;
}

static tn_tensor *gru(tn_tensor **x)
{
    tn_tensor *y = NULL;
    TN_AUTOCAST(flags.dtype) y = tn_gru(x[0], TN_NONE, x[1], x[2], TN_NONE, TN_NONE, false);
    return y;
}

static tn_tensor *lstm(tn_tensor **x)
{
    tn_tensor *y = NULL;
    TN_AUTOCAST(flags.dtype)
    y = tn_lstm(x[0], TN_NONE, TN_NONE, x[1], x[2], TN_NONE, TN_NONE, false, NULL);
    return y;
}

static tn_tensor *max_pool(tn_tensor **x)
{
    return tn_max_pool2d(x[0], (tn_pool2d_spec){ .kernel = { 2, 2 } });
}

/* log_p [T, N, C], labels [N, S]: in all sequences all count. */
static tn_tensor *ctc(tn_tensor **x)
{
    int64_t n = tn_size(x[0], 1);
    tn_tensor *steps = tn_full_as(TN_SHAPE(n), (double)tn_size(x[0], 0), TN_I64, tn_cpu());
    tn_tensor *labels = tn_full_as(TN_SHAPE(n), (double)tn_size(x[1], 1), TN_I64, tn_cpu());
    return tn_ctc_loss(x[0], x[1], steps, labels, 0, false, TN_MEAN);
}

static tn_tensor *cosine_similarity(tn_tensor **x)
{
    return tn_cosine_similarity(x[0], x[1], -1, 1e-8);
}

static tn_tensor *resize(tn_tensor *x, tn_interpolate_mode mode)
{
    return tn_interpolate(x, (tn_interpolate_spec){ .scale = { 2 }, .mode = mode });
}

static tn_tensor *padded(tn_tensor *x, tn_pad_mode mode)
{
    return tn_pad(x, TN_PADS(1, 1, 1, 1), mode, 0);
}

/* clang-format off */
static tn_tensor *nearest(tn_tensor **x) { return resize(x[0], TN_NEAREST); }
static tn_tensor *bilinear(tn_tensor **x) { return resize(x[0], TN_LINEAR); }
static tn_tensor *bicubic(tn_tensor **x) { return resize(x[0], TN_CUBIC); }
static tn_tensor *pad(tn_tensor **x) { return padded(x[0], TN_PAD_CONSTANT); }
static tn_tensor *reflect(tn_tensor **x) { return padded(x[0], TN_PAD_REFLECT); }
static tn_tensor *pixel_shuffle(tn_tensor **x) { return tn_pixel_shuffle(x[0], 2); }
/* clang-format on */

typedef struct row {
    const char *name;
    tn_tensor *(*f)(tn_tensor **x);
    tn_shape in[3];  /* rank 0: absent */
    int64_t classes; /* the last input holds class ids below this */
} row;

/* 2 floating operations for every multiplication with an addition; 0: not an op of products. */
static double flop_of(const row *r)
{
    const int64_t *a = r->in[0].size, *b = r->in[1].size;
    int last = r->in[0].rank - 1;
    double rows = 1, n = r->f == matmul ? (double)b[last] : (double)b[0];
    for (int i = 0; i < last; i++) rows *= (double)a[i];
    if (r->f == matmul || r->f == linear) return 2 * rows * (double)a[last] * n;
    if (r->f == attention) return 4 * rows * (double)a[2] * (double)a[3] / 2; /* half is masked */
    if (r->f == conv1d) return 2 * (double)(a[0] * a[2]) * (double)(b[0] * b[1] * b[2]);
    if (r->f == conv_strided)
        return (double)(a[0] * a[2] * a[3]) * (double)(b[0] * b[1] * b[2] * b[3]) / 2;
    if (r->f == conv2d || r->f == conv_dilated || r->f == conv_transpose2d)
        return 2 * (double)(a[0] * a[2] * a[3]) * (double)(b[0] * b[1] * b[2] * b[3]);
    return 0;
}

#define S(...)                                                                                     \
    {                                                                                              \
        .rank = (int)(sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)), .size = { __VA_ARGS__ }       \
    }
#define THREE(...)                                                                                 \
    {                                                                                              \
        S(__VA_ARGS__), S(__VA_ARGS__), S(__VA_ARGS__)                                             \
    }

static const row cpu_rows[] = {
    { "add_1M", add, { S(1024, 1024), S(1024, 1024) }, 0 },
    { "add_row_2048x512", add, { S(2048, 512), S(512) }, 0 },
    { "mul_1M", mul, { S(1024, 1024), S(1024, 1024) }, 0 },
    { "relu_1M", relu, { S(1024, 1024) }, 0 },
    { "exp_1M", exponential, { S(1024, 1024) }, 0 },
    { "gelu_2048x512", gelu, { S(2048, 512) }, 0 },
    { "gelu_tanh_2048x512", gelu_tanh, { S(2048, 512) }, 0 },
    { "mish_2048x512", mish, { S(2048, 512) }, 0 },
    { "hardswish_2048x512", hardswish, { S(2048, 512) }, 0 },
    { "round_1M", rounded, { S(1024, 1024) }, 0 },
    { "prelu_8x64x56x56", prelu, { S(8, 64, 56, 56), S(64) }, 0 },
    { "glu_2048x1024", glu, { S(2048, 1024) }, 0 },
    { "sum_1M", sum, { S(1024, 1024) }, 0 },
    { "sum_axis0_2048x512", sum_rows, { S(2048, 512) }, 0 },
    { "transpose_copy_1024", transposed, { S(1024, 1024) }, 0 },
    { "softmax_2048x512", softmax, { S(2048, 512) }, 0 },
    { "layer_norm_2048x128", layer_norm, { S(2048, 128), S(128), S(128) }, 0 },
    { "layer_norm_2048x384", layer_norm, { S(2048, 384), S(384), S(384) }, 0 },
    { "rms_norm_2048x384", rms_norm, { S(2048, 384), S(384) }, 0 },
    { "rms_norm_2048x768", rms_norm, { S(2048, 768), S(768) }, 0 },
    { "group_norm_32x64x28", group_norm, { S(32, 64, 28, 28), S(64), S(64) }, 0 },
    { "cross_entropy_2048x96", cross_entropy, { S(2048, 96), S(2048) }, 96 },
    { "ctc_128x32x64_24", ctc, { S(128, 32, 64), S(32, 24) }, 64 },
    { "cosine_2048x512", cosine_similarity, { S(2048, 512), S(2048, 512) }, 0 },
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
    { "conv1d_16x256x1024", conv1d, { S(16, 256, 1024), S(256, 256, 3), S(256) }, 0 },
    { "conv1d_8x80x3000_512", conv1d, { S(8, 80, 3000), S(512, 80, 3), S(512) }, 0 },
    { "conv_transpose_64x128x8_64",
      conv_transpose2d,
      { S(64, 128, 8, 8), S(128, 64, 4, 4), S(64) },
      0 },
    /* of ResNet, ResNeXt, MobileNet, EfficientNet and U-Net: kernel, stride, groups, dilation */
    { "image_dw3_16x96x56", conv2d, { S(16, 96, 56, 56), S(96, 1, 3, 3) }, 0 },
    { "image_dw3_16x576x14", conv2d, { S(16, 576, 14, 14), S(576, 1, 3, 3) }, 0 },
    { "image_dw3_16x960x7", conv2d, { S(16, 960, 7, 7), S(960, 1, 3, 3) }, 0 },
    { "image_dw3_s2_16x144x56", conv_strided, { S(16, 144, 56, 56), S(144, 1, 3, 3) }, 0 },
    { "image_dw5_16x240x28", conv2d, { S(16, 240, 28, 28), S(240, 1, 5, 5) }, 0 },
    { "image_dw5_s2_16x144x56", conv_strided, { S(16, 144, 56, 56), S(144, 1, 5, 5) }, 0 },
    { "image_1x1_16x64x56_256", conv2d, { S(16, 64, 56, 56), S(256, 64, 1, 1) }, 0 },
    { "image_1x1_16x96x56_24", conv2d, { S(16, 96, 56, 56), S(24, 96, 1, 1) }, 0 },
    { "image_1x1_16x24x56_144", conv2d, { S(16, 24, 56, 56), S(144, 24, 1, 1) }, 0 },
    { "image_1x1_16x576x14_96", conv2d, { S(16, 576, 14, 14), S(96, 576, 1, 1) }, 0 },
    { "image_1x1_16x320x7_1280", conv2d, { S(16, 320, 7, 7), S(1280, 320, 1, 1) }, 0 },
    { "image_1x1_s2_16x256x56_512", conv_strided, { S(16, 256, 56, 56), S(512, 256, 1, 1) }, 0 },
    { "image_3x3_16x64x56_64", conv2d, { S(16, 64, 56, 56), S(64, 64, 3, 3) }, 0 },
    { "image_3x3_16x512x7_512", conv2d, { S(16, 512, 7, 7), S(512, 512, 3, 3) }, 0 },
    { "image_3x3_s2_16x64x56_128", conv_strided, { S(16, 64, 56, 56), S(128, 64, 3, 3) }, 0 },
    { "image_3x3_s2_16x3x224_32", conv_strided, { S(16, 3, 224, 224), S(32, 3, 3, 3) }, 0 },
    { "image_7x7_s2_16x3x224_64", conv_strided, { S(16, 3, 224, 224), S(64, 3, 7, 7) }, 0 },
    { "image_3x3_g32_16x128x56", conv2d, { S(16, 128, 56, 56), S(128, 4, 3, 3) }, 0 },
    { "image_3x3_g32_16x512x14", conv2d, { S(16, 512, 14, 14), S(512, 16, 3, 3) }, 0 },
    { "image_3x3_d2_16x64x28_64", conv_dilated, { S(16, 64, 28, 28), S(64, 64, 3, 3) }, 0 },
    { "image_3x3_2x64x128_64", conv2d, { S(2, 64, 128, 128), S(64, 64, 3, 3) }, 0 },
    { "batch_norm_128x32x28", batch_norm, { S(128, 32, 28, 28), S(32), S(32) }, 0 },
    { "max_pool_128x32x28", max_pool, { S(128, 32, 28, 28) }, 0 },
    { "sort_1M", sort, { S(1048576) }, 0 },
    { "sort_2048x96", sort, { S(2048, 96) }, 0 },
    { "sort_64x50257", sort, { S(64, 50257) }, 0 },
    { "topk_50_64x50257", topk_50, { S(64, 50257) }, 0 },
    { "topk_5_2048x96", topk_5, { S(2048, 96) }, 0 },
    { "topk_5_512x1000", topk_5, { S(512, 1000) }, 0 },
    { "median_64x50257", median, { S(64, 50257) }, 0 },
    { "unique_1M", unique, { S(1), S(1048576) }, 1000 },
    { "nearest_8x64x56", nearest, { S(8, 64, 56, 56) }, 0 },
    { "bilinear_8x64x56", bilinear, { S(8, 64, 56, 56) }, 0 },
    { "bicubic_8x64x56", bicubic, { S(8, 64, 56, 56) }, 0 },
    { "pad_8x64x56", pad, { S(8, 64, 56, 56) }, 0 },
    { "reflect_8x64x56", reflect, { S(8, 64, 56, 56) }, 0 },
    { "pixel_shuffle_8x256x56", pixel_shuffle, { S(8, 256, 56, 56) }, 0 },
    { "rnn_64x32x128_256", rnn, { S(64, 32, 128), S(256, 128), S(256, 256) }, 0 },
    { "gru_64x32x128_256", gru, { S(64, 32, 128), S(768, 128), S(768, 256) }, 0 },
    { "lstm_64x32x128_256", lstm, { S(64, 32, 128), S(1024, 128), S(1024, 256) }, 0 },
    { "lstm_32x64x512_512", lstm, { S(32, 64, 512), S(2048, 512), S(2048, 512) }, 0 },
};

/* Sizes for a GPU: 32 sequences of 1,024, the layers of GPT-2 124M. */
static const row gpu_rows[] = {
    { "add", add, { S(32768, 3072), S(32768, 3072) }, 0 },
    { "add_row", add, { S(32768, 3072), S(3072) }, 0 },
    { "relu", relu, { S(32768, 3072) }, 0 },
    { "gelu_tanh", gelu_tanh, { S(32768, 3072) }, 0 },
    { "sum", sum, { S(32768, 3072) }, 0 },
    { "sum_axis0", sum_rows, { S(32768, 3072) }, 0 },
    { "transpose_copy", transposed, { S(8192, 8192) }, 0 },
    { "softmax", softmax, { S(32768, 1024) }, 0 },
    { "layer_norm", layer_norm, { S(32768, 768), S(768), S(768) }, 0 },
    { "cross_entropy", cross_entropy, { S(8192, 50304), S(8192) }, 50304 },
    { "embedding", embedding, { S(50304, 768), S(32768) }, 50304 },
    { "linear_768_2304", linear, { S(32768, 768), S(2304, 768), S(2304) }, 0 },
    { "linear_768_3072", linear, { S(32768, 768), S(3072, 768), S(3072) }, 0 },
    { "linear_3072_768", linear, { S(32768, 3072), S(768, 3072), S(768) }, 0 },
    { "matmul_4096", matmul, { S(4096, 4096), S(4096, 4096) }, 0 },
    { "attention", attention, THREE(32, 12, 1024, 64), 0 },
    { "conv_3x3", conv2d, { S(256, 64, 28, 28), S(128, 64, 3, 3), S(128) }, 0 },
    { "batch_norm", batch_norm, { S(256, 128, 28, 28), S(128), S(128) }, 0 },
    { "max_pool", max_pool, { S(256, 128, 28, 28) }, 0 },
};

/* Equal sizes stay equal, so that the shapes still fit. */
static int64_t at_size(int64_t n)
{
    if (!tiny_sizes || n < 64) return n;
    return n < 4096 ? n / 16 : n / 256;
}

static bool is_recurrent(const row *r)
{
    return r->f == rnn || r->f == gru || r->f == lstm;
}

/* Ops that mixed precision runs in bf16, and ops that keep the dtype of their input. */
static bool runs_low(const row *r)
{
    return flop_of(r) > 0 || r->f == add || r->f == relu || r->f == gelu_tanh || r->f == transposed;
}

static double bytes_of(const tn_tensor *t)
{
    return (double)tn_numel(t) * (double)tn_dtype_size(tn_dtype_of(t));
}

static void print_least(const char *name, const row *r, tn_tensor **in, int n)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = r->f(in);
    double bytes = bytes_of(y);
    for (int i = 0; i < n; i++) bytes += bytes_of(in[i]);
    /* of a table, only the requested rows */
    if (r->f == embedding) bytes = 2 * bytes_of(y) + bytes_of(in[1]);
    bench_one(name, "GB", 1e-9 * bytes);
    if (flop_of(r) > 0) bench_one(name, "GFLOP", 1e-9 * flop_of(r));
    tn_scope_end(scope);
}

/* Whether there is such an op in this dtype, forward and backward; if not, says so. */
static bool exists(const char *name, const row *r, tn_tensor **in, int n)
{
    tn_tensor *y = r->f(in);
    tn_status made = y ? tn_backward_from(y, tn_ones_like(y), 0) : tn_error_status();
    for (int i = 0; i < n && made == TN_OK; i++)
        if (tn_requires_grad(in[i])) TN_CHECK(tn_set_grad(in[i], TN_NONE));
    if (made == TN_OK) return true;
    if (flags.dtype == TN_F32 || made != TN_E_DTYPE) TN_CHECK(made);
    fprintf(stderr, "# %s: left out: %s\n", name, tn_error());
    tn_error_clear();
    return false;
}

/* flags.block calls; backward too when seed is given. Microseconds a call. */
static double time_calls(const row *r, tn_tensor **in, int n, tn_tensor *seed)
{
    bench_wait();
    double t0 = bench_now();
    for (int64_t i = 0; i < flags.block; i++) {
        tn_scope scope = tn_scope_begin();
        if (seed)
            TN_CHECK(tn_backward_from(r->f(in), seed, 0));
        else
            TN_NO_GRAD TN_CHECK_PTR(r->f(in));
        for (int k = 0; k < n && seed; k++)
            if (tn_requires_grad(in[k])) TN_CHECK(tn_set_grad(in[k], TN_NONE));
        tn_scope_end(scope);
    }
    bench_wait();
    return 1e6 * (bench_now() - t0) / (double)flags.block;
}

static void time_row(row r)
{
    if (flags.only && !strstr(r.name, flags.only)) return;
    tn_scope outer = tn_scope_begin();
    tn_tensor *in[3] = { TN_NONE, TN_NONE, TN_NONE };
    int n = 0;
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < r.in[i].rank; d++) r.in[i].size[d] = at_size(r.in[i].size[d]);
    r.classes = at_size(r.classes);
    for (; n < 3 && r.in[n].rank > 0; n++)
        in[n] = there(tn_to_dtype(tn_randn(r.in[n]), is_recurrent(&r) ? TN_F32 : flags.dtype));
    if (r.classes) in[n - 1] = there(tn_randint(0, r.classes, r.in[n - 1]));
    for (int i = 0; i < n; i++) {
        bool ids = r.classes && i == n - 1;
        if (!ids) TN_CHECK(tn_set_requires_grad(in[i], true));
    }
    char text[96];
    snprintf(text, sizeof text, "%s", bench_name(&flags, r.name));
    if (!exists(text, &r, in, n)) {
        tn_scope_end(outer);
        return;
    }
    tn_tensor *seed = tn_ones_like(r.f(in));
    TN_CHECK_PTR(seed);
    double forward[MOST], both[MOST];
    for (int64_t i = -3; i < samples; i++) {
        double alone = time_calls(&r, in, n, NULL), whole = time_calls(&r, in, n, seed);
        if (i < 0) continue;
        forward[i] = alone;
        both[i] = whole;
    }
    bench_line(text, "us_forward", forward, samples);
    bench_line(text, "us_forward_backward", both, samples);
    if (flags.where.type == TN_CUDA || tiny_sizes) print_least(text, &r, in, n);
    tn_scope_end(outer);
}

/* The two ceilings: bytes read and written by a copy, the rate of a product. */
static void time_peaks(void)
{
    const int64_t side = at_size(8192);
    double v[MOST];
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = there(tn_to_dtype(tn_randn(TN_SHAPE(side, side)), flags.dtype));
    tn_tensor *y = tn_empty_like(x);
    for (int64_t i = -3; i < samples; i++) {
        bench_wait();
        double t0 = bench_now();
        for (int64_t k = 0; k < flags.block; k++) TN_CHECK(tn_copy_(y, x));
        bench_wait();
        double seconds = (bench_now() - t0) / (double)flags.block;
        if (i >= 0) v[i] = 1e-9 * 2 * bytes_of(x) / seconds;
    }
    bench_line(bench_name(&flags, "peak_copy"), "GB/s", v, samples);
    const row product = { "", matmul, { tn_shape_get(x), tn_shape_get(x) }, 0 };
    tn_tensor *in[3] = { x, y, TN_NONE };
    for (int64_t i = -3; i < samples; i++) {
        double us = time_calls(&product, in, 2, NULL);
        if (i >= 0) v[i] = 1e-6 * flop_of(&product) / us;
    }
    bench_line(bench_name(&flags, "peak_product"), "TFLOP/s", v, samples);
    tn_scope_end(scope);
}

/* One fused step over 16 tensors, of `each` numbers or of as many rows of 200: 16 of 512 are about
 * the small GPT. */
static void time_adamw(const char *name, int64_t each)
{
    if (flags.only) return;
    tn_scope scope = tn_scope_begin();
    tn_list *list = tn_list_new();
    for (int i = 0; i < 16; i++) {
        char text[16];
        snprintf(text, sizeof text, "p%d", i);
        tn_tensor *p = there(tn_randn(i % 2 ? TN_SHAPE(each) : TN_SHAPE(each, 200)));
        TN_CHECK(tn_set_requires_grad(p, true));
        TN_CHECK(tn_list_add(list, text, p));
        TN_CHECK(tn_set_grad(p, tn_ones_like(p)));
    }
    tn_optim *opt = tn_adamw(list, (tn_adamw_options){ .weight_decay = 0.01 });
    TN_CHECK_PTR(opt);
    double v[MOST];
    for (int64_t i = -3; i < samples; i++) {
        bench_wait();
        double t0 = bench_now();
        for (int64_t k = 0; k < flags.block; k++) TN_CHECK(tn_optim_step(opt));
        bench_wait();
        if (i >= 0) v[i] = 1e6 * (bench_now() - t0) / (double)flags.block;
    }
    bench_line(bench_name(&flags, name), "us_step", v, samples);
    tn_optim_free(opt);
    tn_scope_end(scope);
}

/* The rounds of all ops, or of each. */
static bool again(bool each, int64_t round)
{
    return flags.alternate == each ? bench_round(&flags, round) : round == 0;
}
#define ROUNDS(each) for (int64_t round_ = 0; again(each, round_); round_++)

int main(int argc, char **argv)
{
    flags = bench_parse(argc, argv, (bench_flags){ .steps = 15 });
    bool gpu = flags.where.type == TN_CUDA, low = flags.dtype != TN_F32;
    if (!flags.config) flags.config = gpu ? "gpu" : "cpu";
    tiny_sizes = !strcmp(flags.config, "tiny");
    bool large = tiny_sizes || !strcmp(flags.config, "gpu");
    if (!large && strcmp(flags.config, "cpu")) {
        fprintf(stderr, "bench_ops: --config %s: want cpu, gpu or tiny\n", flags.config);
        return 2;
    }
    samples = flags.steps > 0 && flags.steps < MOST ? flags.steps : 15;
    bench_banner("bench_ops");
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    const row *rows = large ? gpu_rows : cpu_rows;
    size_t n = large ? sizeof gpu_rows / sizeof *rows : sizeof cpu_rows / sizeof *rows;
    ROUNDS(false)
    {
        if (!low) ROUNDS(true) tiny_all();
        if (large) time_peaks();
        for (size_t i = 0; i < n; i++)
            if (!low || !gpu || runs_low(&rows[i])) ROUNDS(true) time_row(rows[i]);
        if (!low && large) time_adamw("adamw_124M", at_size(77000));
        if (!low && !large) ROUNDS(true) time_adamw("adamw_820k", 512);
        if (!gpu) bench_memory(bench_name(&flags, "ops"));
    }
    tn_scope_end(program);
    return 0;
}
