/*
 * test_half_kernels.c - kernels of bf16 and f16 give what f32 gives for the same numbers, rounded
 * once.
 *
 * Seen to fail: gemm with a transposed operand's strides mixed up (73 tests); a piece's last row
 * left out (src/tensor/cpu/half.c); AVX512-BF16's instruction for denormals too; both halves of a
 * row in one buffer (src/tensor/cpu/real/rotary.c).
 */
#include "half.h"

/* f of short tensors is f of the same numbers in f32, rounded once; bit for bit, if error is 0. */
static void rounds(const char *what, tn_tensor *(*f)(tn_tensor **x), tn_tensor **x, int n,
                   tn_dtype dtype, double error)
{
    tn_tensor *low[4], *wide[4];
    for (int i = 0; i < n; i++) {
        low[i] = tn_is_none(x[i]) ? x[i] : tn_to_dtype(x[i], dtype);
        wide[i] = tn_is_none(x[i]) ? x[i] : tn_to_dtype(low[i], TN_F32);
    }
    tn_tensor *y = f(low), *expected = tn_to_dtype(f(wide), dtype);
    assert_made(y);
    ck_assert_int_eq(tn_dtype_of(y), dtype);
    const char *text = difference(y, expected, error > 0 ? 4 * unit(dtype) : 0, error);
    ck_assert_msg(!text, "%s in %s: %s", what, tn_dtype_name(dtype), text ? text : "");
}
static void rounds_once(const char *what, tn_tensor *(*f)(tn_tensor **x), tn_tensor **x, int n,
                        tn_dtype dtype)
{
    rounds(what, f, x, n, dtype, 0);
}

#define OF(name, ...)                                                                              \
    static tn_tensor *name(tn_tensor **x)                                                          \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
OF(f_matmul, tn_matmul(x[0], x[1]))
OF(f_matmul_tn, tn_matmul(tn_transpose(x[0], -1, -2), x[1]))
OF(f_matmul_nt, tn_matmul(x[0], tn_transpose(x[1], -1, -2)))
OF(f_linear, tn_linear(x[0], x[1], x[2]))
OF(f_conv, tn_conv2d(x[0], x[1], x[2],
                     (tn_conv2d_spec){ .padding = { 1, 1 }, .stride = { 2, 1 }, .groups = 2 }))
OF(f_attention, tn_scaled_dot_product_attention(x[0], x[1], x[2], x[3], false, 0))
static tn_tensor *f_dropout(tn_tensor **x)
{
    tn_manual_seed(5);
    return tn_dropout(x[0], 0.3, true);
}

START_TEST(half_kernels_round_once)
{
    static const int64_t sizes[] = { 0, 1, 7, 33, 257 };
    tn_dtype d = halves[_i];
    for (int i = 0; i < 5; i++) {
        int64_t n = sizes[i], k = sizes[(i + 1) % 5], m = sizes[(i + 3) % 5];
        tn_tensor *a = random_as(TN_SHAPE(m, k), -1, 1, 1, TN_F32);
        tn_tensor *b = random_as(TN_SHAPE(k, n), -1, 1, 2, TN_F32);
        tn_tensor *at = random_as(TN_SHAPE(k, m), -1, 1, 3, TN_F32);
        tn_tensor *bt = random_as(TN_SHAPE(n, k), -1, 1, 4, TN_F32);
        tn_tensor *bias = random_as(TN_SHAPE(n), -1, 1, 5, TN_F32);
        rounds_once("matmul", f_matmul, (tn_tensor *[]){ a, b }, 2, d);
        rounds_once("matmul, a transposed", f_matmul_tn, (tn_tensor *[]){ at, b }, 2, d);
        rounds_once("matmul, b transposed", f_matmul_nt, (tn_tensor *[]){ a, bt }, 2, d);
        rounds_once("matmul, strided", f_matmul, (tn_tensor *[]){ as_strided(a), as_strided(b) }, 2,
                    d);
        rounds_once("linear", f_linear, (tn_tensor *[]){ a, bt, bias }, 3, d);
        rounds_once("dropout", f_dropout, (tn_tensor *[]){ a }, 1, d);
        tn_tensor *batch = random_as(TN_SHAPE(2, 3, m, k), -1, 1, 6, TN_F32);
        rounds_once("a batch", f_matmul, (tn_tensor *[]){ batch, b }, 2, d);
        tn_tensor *row =
            tn_expand(random_as(TN_SHAPE(1, k, n), -1, 1, 7, TN_F32), TN_SHAPE(3, k, n));
        rounds_once("a broadcast batch", f_matmul, (tn_tensor *[]){ batch, row }, 2, d);
        if (n == 0 || n > 33) continue;
        tn_tensor *q = random_as(TN_SHAPE(2, 3, n, 8), -1, 1, 8, TN_F32);
        tn_tensor *kv = random_as(TN_SHAPE(2, 3, 9, 8), -1, 1, 9, TN_F32);
        tn_tensor *mask = random_as(TN_SHAPE(2, 1, 1, 9), -1, 1, 10, TN_F32);
        rounds_once("attention", f_attention, (tn_tensor *[]){ q, kv, kv, TN_NONE }, 4, d);
        rounds_once("masked attention", f_attention, (tn_tensor *[]){ q, kv, kv, mask }, 4, d);
        tn_tensor *x = random_as(TN_SHAPE(2, 4, n + 2, 9), -1, 1, 11, TN_F32);
        tn_tensor *w = random_as(TN_SHAPE(6, 2, 3, 3), -1, 1, 12, TN_F32);
        rounds_once("conv2d", f_conv,
                    (tn_tensor *[]){ x, w, random_as(TN_SHAPE(6), -1, 1, 13, TN_F32) }, 3, d);
        rounds_once("conv2d without bias", f_conv, (tn_tensor *[]){ x, w, TN_NONE }, 3, d);
    }
}
END_TEST

/* The gradient of every x, one after another, of a sum weighted by the last one. */
static tn_tensor *gradients_of(tn_tensor *y, tn_tensor **x, int n)
{
    tn_tensor *seed = tn_reshape(x[n], tn_shape_get(y)), *grad[3], *all[3];
    assert_ok(tn_gradients(1, &y, &seed, n, x, grad, 0));
    for (int i = 0; i < n; i++) all[i] = tn_reshape(grad[i], TN_SHAPE(-1));
    return tn_cat(all, n, 0);
}
static tn_tensor **as_leaves(tn_tensor **x, int n)
{
    for (int i = 0; i < n; i++) x[i] = fresh(x[i], true);
    return x;
}
OF(f_softmax, tn_softmax(x[0], -1))
OF(f_log_softmax, tn_log_softmax(x[0], -1))
OF(f_layer_norm, tn_layer_norm(x[0], 1, x[1], x[2], 1e-5))
OF(f_rotary, tn_rotary(x[0], x[1], x[2], false))
OF(f_rotary_pairs, tn_rotary(x[0], x[1], x[2], true))
OF(f_rotary_wide, tn_rotary(x[0], tn_to_dtype(x[1], TN_F32), tn_to_dtype(x[2], TN_F32), false))
OF(f_rotary_grad,
   gradients_of(f_rotary_pairs((tn_tensor *[]){ as_leaves(x, 1)[0], x[2], x[3] }), x, 1))
OF(f_norm, tn_batch_norm(x[0], x[1], x[2], TN_NONE, TN_NONE, true, 0.1, 1e-5))
OF(f_norm_grad, gradients_of(f_norm(as_leaves(x, 3)), x, 3))
OF(f_halves, tn_max_pool2d(x[0], (tn_pool2d_spec){ .kernel = { 2, 2 } }))
OF(f_halves_grad, gradients_of(f_halves(as_leaves(x, 1)), x, 1))
OF(f_windows,
   tn_max_pool2d(x[0],
                 (tn_pool2d_spec){ .kernel = { 3, 2 }, .stride = { 1, 2 }, .padding = { 1, 0 } }))
OF(f_averages, tn_avg_pool2d(x[0], (tn_pool2d_spec){ .kernel = { 2, 2 } }))
OF(f_averages_grad, gradients_of(f_averages(as_leaves(x, 1)), x, 1))

static tn_tensor *f_conv_plain(tn_tensor **x)
{
    int64_t pad = tn_size(x[1], 2) / 2;
    return tn_conv2d(x[0], x[1], x[2], (tn_conv2d_spec){ .padding = { pad, pad } });
}
OF(f_conv_grad, gradients_of(f_conv_plain(as_leaves(x, 3)), x, 3))

/* Kernels that convert rows or planes piece by piece: sizes below and above a piece, odd ones, and
 * more rows than one thread takes. */
START_TEST(pieces_round_once)
{
    static const struct {
        int64_t rows, columns;
    } tables[] = {
        { 0, 5 }, { 3, 0 }, { 1, 1 }, { 700, 7 }, { 301, 130 }, { 3, 4097 }, { 2, 9000 }
    };
    static const struct {
        int64_t n, c, h, w;
    } images[] = { { 0, 2, 4, 4 },   { 5, 3, 2, 3 },   { 3, 5, 7, 9 },    { 6, 7, 28, 28 },
                   { 40, 33, 5, 6 }, { 2, 2, 45, 50 }, { 2, 1, 6, 1100 }, { 2, 1, 3, 2300 } };
    tn_dtype d = halves[_i];
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        int64_t n = tables[i].rows, c = tables[i].columns;
        tn_tensor *x = random_as(TN_SHAPE(n, c), -4, 4, 1, TN_F32);
        tn_tensor *w = random_as(TN_SHAPE(c), -1, 1, 2, TN_F32);
        tn_tensor *b = random_as(TN_SHAPE(c), -1, 1, 3, TN_F32);
        rounds_once("softmax", f_softmax, &x, 1, d);
        rounds_once("log_softmax", f_log_softmax, &x, 1, d);
        rounds_once("layer_norm", f_layer_norm, (tn_tensor *[]){ x, w, b }, 3, d);
        tn_tensor *cosine = tn_narrow(x, 1, 0, c / 2), *sine = tn_narrow(x, 1, c - c / 2, c / 2);
        rounds_once("rotary", f_rotary, (tn_tensor *[]){ x, cosine, sine }, 3, d);
        rounds_once("rotary, pairs", f_rotary_pairs, (tn_tensor *[]){ x, cosine, sine }, 3, d);
        rounds_once("rotary, f32 tables", f_rotary_wide, (tn_tensor *[]){ x, cosine, sine }, 3, d);
        rounds_once("its gradient", f_rotary_grad, (tn_tensor *[]){ x, x, cosine, sine }, 4, d);
        if (n < 2) continue;
        rounds_once("batch_norm of columns", f_norm, (tn_tensor *[]){ x, w, b }, 3, d);
        rounds_once("its gradients", f_norm_grad, (tn_tensor *[]){ x, w, b, tn_square(x) }, 4, d);
    }
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        int64_t n = images[i].n, c = images[i].c, h = images[i].h, wide = images[i].w;
        tn_tensor *x = random_as(TN_SHAPE(n, c, h, wide), -4, 4, 1, TN_F32);
        tn_tensor *w = random_as(TN_SHAPE(c), -1, 1, 2, TN_F32);
        tn_tensor *b = random_as(TN_SHAPE(c), -1, 1, 3, TN_F32);
        tn_tensor *seed = random_as(TN_SHAPE(n, c, h / 2, wide / 2), -1, 1, 4, TN_F32);
        rounds_once("max_pool2d", f_halves, &x, 1, d);
        rounds_once("its gradient", f_halves_grad, (tn_tensor *[]){ x, seed }, 2, d);
        rounds_once("max_pool2d, windows that overlap", f_windows, &x, 1, d);
        rounds_once("avg_pool2d", f_averages, &x, 1, d);
        rounds_once("its gradient", f_averages_grad, (tn_tensor *[]){ x, seed }, 2, d);
        rounds_once("batch_norm", f_norm, (tn_tensor *[]){ x, w, b }, 3, d);
        for (int k = 1; k <= 3 && c < 16; k += 2) { /* of 16 channels squares */
            tn_tensor *taps = random_as(TN_SHAPE(7, c, k, k), -1, 1, 5, TN_F32);
            tn_tensor *bias = random_as(TN_SHAPE(7), -1, 1, 6, TN_F32);
            tn_tensor *dy = random_as(TN_SHAPE(n, 7, h, wide), -1, 1, 7, TN_F32);
            /* sums are made in another order where rows are further apart */
            double error = c * h * wide < 2048 ? 0 : 1e-3;
            rounds("conv2d", f_conv_plain, (tn_tensor *[]){ x, taps, bias }, 3, d, error);
            rounds("its gradients", f_conv_grad, (tn_tensor *[]){ x, taps, bias, dy }, 4, d, error);
        }
        rounds_once("its gradients", f_norm_grad, (tn_tensor *[]){ x, w, b, tn_square(x) }, 4, d);
    }
}
END_TEST

/* f32 to bf16 of whole vectors and of what is left over, where an instruction might do it: every
 * exponent with remainders below, at and above half, denormals, infinities and NaN among them. */
START_TEST(vectors_round_as_numbers_do)
{
    enum { EXPONENTS = 512, LOW = 7, N = EXPONENTS * LOW };
    static const uint32_t low[LOW] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0x18000, 0x7fffff };
    static uint32_t bits[N + 1];
    static float x[N + 1];
    for (int from = 0; from <= 1; from++) { /* another place in the vectors */
        for (int i = 0; i < N; i++)
            bits[from + i] = (uint32_t)(i % EXPONENTS) << 23 | low[i / EXPONENTS];
        memcpy(x, bits, sizeof x);
        tn_tensor *y = tn_to_dtype(tn_from_data(x, TN_SHAPE(from + N), TN_F32), TN_BF16);
        for (int i = 0; i < from + N; i++) {
            uint32_t u = bits[i], kept = u >> 16, rest = u & 0xffff;
            uint16_t want =
                (uint16_t)(isnan(x[i]) ? kept | 0x40 : kept + (rest + (kept & 1) > 0x8000));
            uint16_t got = ((const uint16_t *)tn_data(y))[i];
            ck_assert_msg(got == want, "%08x became %04x, want %04x", (unsigned)u, got, want);
        }
    }
}
END_TEST

/* A bf16 model outside a region: its gradients are close to f32's. */
START_TEST(half_leaves_have_gradients)
{
    tn_dtype d = halves[_i];
    tn_tensor *x[2][4];
    for (int side = 0; side < 2; side++) {
        x[side][0] = fresh(random_as(TN_SHAPE(2, 4, 6, 9), -1, 1, 1, d), true);
        x[side][1] = fresh(random_as(TN_SHAPE(6, 2, 3, 3), -1, 1, 2, d), true);
        x[side][2] = fresh(random_as(TN_SHAPE(6), -1, 1, 3, d), true);
        if (side) /* the same numbers */
            for (int i = 0; i < 3; i++) x[1][i] = fresh(tn_to_dtype(x[0][i], TN_F32), true);
        tn_tensor *y = tn_gelu(f_conv(x[side]));
        y = tn_linear(tn_flatten(y, 1, -1), tn_reshape(tn_flatten(y, 1, -1), TN_SHAPE(2, -1)),
                      TN_NONE);
        assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(tn_dtype_of(tn_grad(x[0][i])), d);
        ck_assert(distance(tn_grad(x[0][i]), tn_grad(x[1][i])) < 8 * unit(d));
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("half_kernels");
    TCase *t = test_case(suite, "kernels");
    tcase_add_loop_test(t, half_kernels_round_once, 0, 2);
    tcase_add_loop_test(t, pieces_round_once, 0, 2);
    tcase_add_test(t, vectors_round_as_numbers_do);
    tcase_add_loop_test(t, half_leaves_have_gradients, 0, 2);
    return suite;
}
