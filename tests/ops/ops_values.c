/*
 * ops_values.c - single values: slopes at kinks, C scalars beside integers and half floats, and
 * where an op takes another way for the sake of precision.
 *
 * Values at kinks are PyTorch's (1.13 and 2.x agree).
 *
 * Seen to fail: the formula of clamp_grad (src/tensor/formulas.h) made to give 0 at its bounds:
 * AG_05_clamp fails; TNI_T_maximum_grad made to give the whole gradient at a tie: AG_05_ties fails.
 */
#include "autograd/gradients.h"
#include "ops/ops.h"

/* d sum(y) / dx */
static tn_tensor *slope(tn_tensor *y, tn_tensor *x)
{
    tn_tensor *loss = tn_sum_all(y), *g = NULL;
    assert_made(loss);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &x, &g, TN_RETAIN_GRAPH));
    return g;
}

START_TEST(AG_05_at_zero)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(1), 0));
    assert_values(slope(tn_relu(x), x), 0, 0.0);
    assert_values(slope(tn_leaky_relu(x, 0.25), x), 0, 0.25);
    assert_values(slope(tn_abs(x), x), 0, 0.0);
    assert_values(slope(tn_norm(x, 2, NULL, 0, false), x), 0, 0.0);
    ck_assert(isinf(tn_item(slope(tn_sqrt(x), x))));
}
END_TEST

/* PyTorch's slope at the bounds was 1 and is 0 in newer versions; ours is 1, as the header says. */
START_TEST(AG_05_clamp)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(5), -2, -1, 0, 1, 2));
    assert_values(slope(tn_clamp(x, -1, 1), x), 0, 0.0, 1.0, 1.0, 1.0, 0.0);
}
END_TEST

START_TEST(AG_05_ties)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(4), 3, 1, 3, 2));
    tn_tensor *a = leaf(F64(TN_SHAPE(2), 1, 2)), *b = F64(TN_SHAPE(2), 1, 3);
    tn_tensor *index;
    assert_values(slope(tn_amax(x, NULL, 0, false), x), 0, 0.5, 0.0, 0.5, 0.0);
    assert_values(slope(tn_max(x, 0, false, &index), x), 0, 1.0, 0.0, 0.0, 0.0);
    ck_assert_double_eq(tn_item(index), 0);
    assert_values(slope(tn_maximum(a, b), a), 0, 0.5, 0.0);
    assert_values(slope(tn_minimum(a, b), a), 0, 0.5, 1.0);
}
END_TEST

START_TEST(AG_05_where_does_not_hide_nan)
{
    /* the branch not taken still multiplies 0 by an infinite slope */
    tn_tensor *x = leaf(F64(TN_SHAPE(2), 0, 2));
    tn_tensor *g = slope(tn_where(tn_gt_scalar(x, 0), tn_log(x), tn_zeros_like(x)), x);

    ck_assert(isnan(tn_at(g, TN_INDEX(0))));
    ck_assert_double_eq(tn_at(g, TN_INDEX(1)), 0.5);
}
END_TEST

/* ---- C scalars beside tensors ---------------------------------------------------------------- */

static tn_tensor *changed(tn_tensor *x, tn_status status)
{
    return status == TN_OK ? x : NULL;
}

#define PASTE(a, b) a##b
#define LINE_NAME(line) PASTE(scalar_, line)
#define FUNCTION_OF(...)                                                                           \
    static tn_tensor *LINE_NAME(__LINE__)(tn_tensor * x)                                           \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
#define GIVES(from, call, to, ...) FUNCTION_OF(call)
#define REFUSES(from, call, why) FUNCTION_OF(call)
#include "ops/ops_scalars.def"
#undef GIVES
#undef REFUSES

/* Every function that takes a C scalar and a tensor of integers. The values are PyTorch's, except
 * where it wraps a scalar around that the dtype cannot hold (comparisons with u8 there, fill of u8
 * by -1: refused here). */
static const struct {
    const char *call;
    tn_tensor *(*f)(tn_tensor *x);
    tn_dtype dtype;
    const char *refusal; /* NULL: the three values below, in the dtype made */
    tn_dtype made;
    double want[3];
} scalar_rows[] = {
#define GIVES(from, call, to, ...)                                                                 \
    { #call, LINE_NAME(__LINE__), TN_##from, NULL, TN_##to, { __VA_ARGS__ } },
#define REFUSES(from, call, why) { #call, LINE_NAME(__LINE__), TN_##from, why, TN_F32, { 0 } },
#include "ops/ops_scalars.def"
};

START_TEST(PR_02_scalars_beside_integers)
{
    tn_dtype dtype = scalar_rows[_i].dtype;
    tn_tensor *x = tn_to_dtype(tn_from_ints((int64_t[]){ 0, 1, 5 }, TN_SHAPE(3)), dtype);
    tn_tensor *before = tn_clone(x), *y = scalar_rows[_i].f(x);
    if (scalar_rows[_i].refusal) {
        assert_null(y, tn_error_status(), scalar_rows[_i].refusal);
        ck_assert_double_eq(tn_max_abs_diff(x, before), 0);
        return;
    }
    assert_made(y);
    tn_tensor *want = from_f64(scalar_rows[_i].want, TN_SHAPE(3));
    const char *text = difference(y, want, 1e-7, 0);
    ck_assert_msg(!text && tn_dtype_of(y) == scalar_rows[_i].made, "%s of %s: %s: %s",
                  scalar_rows[_i].call, tn_dtype_name(dtype), tn_dtype_name(tn_dtype_of(y)), text);
}
END_TEST

/* What is added to bf16 and f16, or compared with them, is rounded to them; a factor is not. */
START_TEST(PR_03_scalars_beside_half_floats)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(2), 0.1, TN_BF16, tn_cpu()); /* 0.10009765625 */
    assert_values(tn_sub_scalar(x, 0.1), 0, 0, 0);
    assert_values(tn_rsub_scalar(x, 0.1), 0, 0, 0);
    assert_values(tn_add_scalar(x, -0.1), 0, 0, 0);
    assert_values(tn_eq_scalar(x, 0.1), 0, 1, 1);
    assert_values(tn_gt_scalar(x, 0.1), 0, 0, 0);
    assert_values(tn_ge_scalar(tn_full_as(TN_SHAPE(1), INFINITY, TN_F16, tn_cpu()), 1e6), 0, 1);
    assert_ok(tn_add_scalar_(x, -0.1));
    assert_values(x, 0, 0, 0);
    x = tn_full_as(TN_SHAPE(1), 2, TN_F16, tn_cpu());
    assert_values(tn_div_scalar(x, 1e6), 0, 0x11p-23); /* 1e6 is no f16 */
}
END_TEST

/* From a weight of .5 on lerp starts at the other end. */
START_TEST(lerp_from_the_nearer_end)
{
    tn_tensor *a = leaf(F64(TN_SHAPE(3), 1e17, 1, -3)), *b = leaf(F64(TN_SHAPE(3), 0.1, 2, 4));
    assert_values(tn_lerp(a, b, 1), 0, 0.1, 2, 4);
    assert_values(tn_lerp(tn_from_floats((float[]){ 1e8F }, TN_SHAPE(1)),
                          tn_from_floats((float[]){ 0.1F }, TN_SHAPE(1)), 1),
                  0, (double)0.1F);
    tn_tensor *y = tn_lerp(a, b, 0.75);
    assert_values(y, 1e-15, 2.5e16, 1.75, 2.25);
    assert_ok(tn_backward(tn_sum_all(y)));
    assert_values(tn_grad(a), 0, 0.25, 0.25, 0.25);
    assert_values(tn_grad(b), 0, 0.75, 0.75, 0.75);
    TN_NO_GRAD
    {
        assert_ok(tn_lerp_(a, b, 1));
        assert_values(a, 0, 0.1, 2, 4);
    }
}
END_TEST

/* Zeros keep their sign, and integers and halves their dtype. */
START_TEST(whole_numbers)
{
    tn_tensor *(*const f[])(tn_tensor *) = { tn_floor, tn_ceil, tn_trunc, tn_round };
    tn_tensor *x = F64(TN_SHAPE(4), -0.0, -0.25, 0.25, 0.0);
    for (int i = 0; i < 4; i++) {
        tn_tensor *y = f[i](x);
        for (int k = 0; k < 4; k++) ck_assert_int_eq(signbit(tn_at(y, TN_INDEX(k))) != 0, k < 2);
        for (tn_dtype dtype = TN_F32; dtype < TN_BOOL; dtype++)
            ck_assert_int_eq(tn_dtype_of(f[i](tn_to_dtype(x, dtype))), dtype);
    }
    assert_values(tn_sign(tn_to_dtype(F64(TN_SHAPE(3), 2, 0, 200), TN_U8)), 0, 1, 0, 1);
    assert_values(tn_round(tn_full_as(TN_SHAPE(1), 2.5, TN_BF16, tn_cpu())), 0, 2);
}
END_TEST

START_TEST(remainders_of_integers)
{
    tn_tensor *x = tn_from_ints((int64_t[]){ INT64_MIN, 7, -7, INT64_MAX }, TN_SHAPE(4));
    tn_tensor *y = tn_from_ints((int64_t[]){ -1, 0, 0, INT64_MIN }, TN_SHAPE(4));
    assert_values(tn_remainder(x, y), 0, 0, 0, 0, -1);
    assert_values(tn_remainder_scalar(x, -1), 0, 0, 0, 0, 0);
    assert_null(tn_remainder_scalar(x, 0), TN_E_INVALID, "i64 divided by 0");
    ck_assert(isnan(tn_item(tn_remainder_scalar(tn_ones(TN_SCALAR), 0))));
    ck_assert_int_eq(tn_dtype_of(tn_remainder_scalar(tn_to_dtype(x, TN_I32), 2)), TN_I32);
}
END_TEST

START_TEST(the_largest_numbers)
{
    static const double largest[] = { 0x1.fffffep127, 0x1.fffffffffffffp1023, 0x1.fep127, 65504 };
    for (tn_dtype dtype = TN_F32; dtype <= TN_F16; dtype++) {
        tn_tensor *x = tn_to_dtype(F64(TN_SHAPE(3), NAN, INFINITY, -INFINITY), dtype);
        tn_tensor *y = tn_nan_to_num(x, (tn_nan_to_num_options){ 0 });
        assert_values(y, 0, 0, largest[dtype], -largest[dtype]);
        ck_assert_int_eq(tn_dtype_of(y), dtype);
    }
    tn_tensor *whole = tn_ones_like(tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2)));
    ck_assert(tn_nan_to_num(whole, (tn_nan_to_num_options){ 0 }) == whole);
}
END_TEST

static tn_tensor *hardtanh(tn_tensor *x, double s)
{
    return tn_hardtanh(x, -s, s);
}

/* The slope at NaN is dy, also where it is an op itself. (PyTorch's in a tensor's last elements:
 * findings/nan_slope_by_position.sh.) */
START_TEST(slopes_at_nan)
{
    tn_tensor *(*const f[])(tn_tensor *, double) = { tn_hardshrink, tn_softshrink, hardtanh };
    for (int i = 0; i < 6; i++) {
        tn_tensor *x = with_grad(F64(TN_SHAPE(3), NAN, 0.25, 2)), *dx;
        tn_tensor *y = tn_sum_all(f[i / 2](x, 0.5));
        assert_ok(tn_gradients(1, &y, NULL, 1, &x, &dx, i % 2 ? TN_CREATE_GRAPH : 0));
        assert_values(dx, 0, 1, i / 2 == 2, i / 2 != 2);
    }
}
END_TEST

/* The second derivative at 0 is that from above, as elu's. */
START_TEST(bent_at_zero)
{
    for (int i = 0; i < 3; i++) {
        tn_tensor *x = with_grad(F64(TN_SHAPE(1), 0)), *dx, *ddx;
        tn_tensor *y = i == 0 ? tn_celu(x, 0.8) : i == 1 ? tn_selu(x) : tn_elu(x, 1);
        assert_ok(tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH));
        assert_ok(tn_gradients(1, &dx, NULL, 1, &x, &ddx, 0));
        ck_assert_double_eq(tn_item(ddx), 0);
    }
}
END_TEST

/* The square root where the exponent is .5, whatever pow() says of -0 and -inf. */
START_TEST(pow_of_a_half)
{
    tn_tensor *x = from_f64((double[]){ 4, -0.0, -INFINITY }, TN_SHAPE(3));
    assert_values(tn_pow_scalar(x, 0.5), 0, 2, 0, NAN);
    ck_assert(signbit(tn_at(tn_pow_scalar(x, 0.5), TN_INDEX(1))));
    assert_values(tn_pow_scalar(x, -0.5), 0, 0.5, -INFINITY, NAN);
}
END_TEST

/* ---- CTC, by all paths ----------------------------------------------------------------------- */

enum { STEPS = 5, CLASSES = 3 };

/* The class of a path at a step: a digit. */
static int class_at(int path, int step)
{
    while (step-- > 0) path /= CLASSES;
    return path % CLASSES;
}

/* Whether the path spells the labels. */
static bool spells(int path, int steps, int blank, const int64_t *label, int64_t n)
{
    int64_t found = 0;
    for (int k = 0; k < steps; k++) {
        int c = class_at(path, k);
        if (c == blank || (k > 0 && c == class_at(path, k - 1))) continue;
        if (found == n || label[found++] != c) return false;
    }
    return found == n;
}

/* Random sequences: the loss is minus the log of the sum over the paths that spell the labels. Its
 * gradient, by differences, is looked at in the rows of the table. */
START_TEST(ctc_is_a_sum_over_paths)
{
    enum { N = 40, LABELS = 3 };
    tn_manual_seed((uint64_t)_i);
    int blank = _i % CLASSES;
    tn_tensor *log_p =
        tn_log_softmax(tn_to_dtype(tn_randn(TN_SHAPE(STEPS, N, CLASSES)), TN_F64), -1);
    tn_tensor *targets = tn_randint(0, CLASSES - 1, TN_SHAPE(N, LABELS)); /* any but blank */
    targets = tn_add(targets, tn_to_dtype(tn_ge_scalar(targets, blank), TN_I64));
    tn_tensor *steps = tn_randint(0, STEPS + 1, TN_SHAPE(N));
    tn_tensor *labels = tn_randint(0, LABELS + 1, TN_SHAPE(N));
    tn_tensor *loss = tn_ctc_loss(log_p, targets, steps, labels, blank, false, TN_NO_REDUCTION);
    assert_made(loss);
    int impossible = 0;
    for (int64_t i = 0; i < N; i++) {
        const int64_t *label = (const int64_t *)tn_data(targets) + i * LABELS;
        int t = (int)tn_at(steps, TN_INDEX(i)), n = (int)tn_at(labels, TN_INDEX(i)), paths = 1;
        double sum = 0, got = tn_at(loss, TN_INDEX(i));
        for (int k = 0; k < t; k++) paths *= CLASSES;
        for (int path = 0; path < paths; path++) {
            double log_path = 0;
            if (!spells(path, t, blank, label, n)) continue;
            for (int k = 0; k < t; k++) log_path += tn_at(log_p, TN_INDEX(k, i, class_at(path, k)));
            sum += exp(log_path);
        }
        impossible += sum == 0;
        ck_assert_msg(sum == 0 ? got == INFINITY : fabs(got + log(sum)) < 1e-12,
                      "sequence %d, %d steps, %d labels: %.17g, want %.17g", (int)i, t, n, got,
                      -log(sum));
    }
    ck_assert_int_gt(impossible, 0);
}
END_TEST

START_TEST(ctc_of_labels_in_a_row)
{
    tn_tensor *log_p = tn_log_softmax(tn_randn(TN_SHAPE(7, 3, 4)), -1), *steps, *labels;
    steps = tn_from_ints((int64_t[]){ 7, 3, 6 }, TN_SHAPE(3));
    labels = tn_from_ints((int64_t[]){ 1, 0, 3 }, TN_SHAPE(3));
    int64_t apart[] = { 2, -1, -1, -1, -1, -1, 1, 3, 3 }, row[] = { 2, 1, 3, 3 };
    assert_close(
        tn_ctc_loss(log_p, tn_from_ints(row, TN_SHAPE(4)), steps, labels, 0, false, TN_MEAN),
        tn_ctc_loss(log_p, tn_from_ints(apart, TN_SHAPE(3, 3)), steps, labels, 0, false, TN_MEAN),
        0, 0);
}
END_TEST

/* A class that has no probability has no share, where PyTorch's gradient is NaN. */
START_TEST(ctc_of_classes_ruled_out)
{
    tn_tensor *x =
        leaf(F64(TN_SHAPE(2, 1, 3), log(0.5), log(0.5), -INFINITY, log(0.5), -INFINITY, log(0.5)));
    tn_tensor *one = tn_from_ints((int64_t[]){ 1 }, TN_SHAPE(1)), *two = tn_mul_scalar(one, 2);
    tn_tensor *loss = tn_ctc_loss(x, one, two, one, 0, false, TN_SUM);
    assert_values(loss, 1e-15, log(4)); /* the only path is 1, 0 */
    assert_values(slope(loss, x), 1e-15, 0.5, -0.5, 0, -0.5, 0, 0.5);
}
END_TEST

/* In f32, the rounding that all states share is not in the gradient: else it is 7e-5 away here. */
/* The kind of each element of dx is f64's, whose kernel is another one. */
START_TEST(an_infinite_depthwise_weight)
{
    tn_tensor *dx[2];
    for (int wide = 0; wide < 2; wide++) {
        const tn_dtype dtype = wide ? TN_F64 : TN_F32;
        tn_tensor *x = tn_full_as(TN_SHAPE(1, 3, 6, 5), 1, dtype, tn_cpu());
        tn_tensor *w = tn_full_as(TN_SHAPE(3, 1, 3, 3), 1, dtype, tn_cpu());
        assert_ok(tn_set_requires_grad(x, true));
        assert_ok(tn_fill_(tn_select(tn_select(tn_select(w, 0, 1), 1, 0), 1, 2), INFINITY));
        tn_tensor *y = tn_conv2d(x, w, TN_NONE, (tn_conv_spec){ .padding = { 1, 1 }, .groups = 3 });
        assert_ok(tn_backward(tn_sum_all(y)));
        dx[wide] = tn_to_dtype(tn_grad(x), TN_F64);
    }
    assert_close(dx[0], dx[1], 0, 0);
}
END_TEST

START_TEST(ctc_of_many_steps)
{
    enum { T = 120, N = 8, C = 20, S = 30 };
    tn_manual_seed(5);
    tn_tensor *x = tn_randn(TN_SHAPE(T, N, C)), *slopes[2];
    tn_tensor *targets = tn_add_scalar(tn_randint(0, C - 1, TN_SHAPE(N, S)), 1);
    tn_tensor *steps = tn_full_as(TN_SHAPE(N), T, TN_I64, tn_cpu());
    tn_tensor *labels = tn_full_as(TN_SHAPE(N), S, TN_I64, tn_cpu());
    for (int i = 0; i < 2; i++) {
        tn_tensor *l = leaf(tn_detach(tn_to_dtype(x, i ? TN_F64 : TN_F32)));
        slopes[i] =
            slope(tn_ctc_loss(tn_log_softmax(l, -1), targets, steps, labels, 0, false, TN_SUM), l);
    }
    assert_close(tn_to_dtype(slopes[0], TN_F64), slopes[1], 0, 4e-5);
}
END_TEST

START_TEST(ctc_has_no_second_derivative)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(2, 1, 2), -1, -0.5, -0.3, -2)), *g = NULL;
    tn_tensor *one = tn_from_ints((int64_t[]){ 1 }, TN_SHAPE(1)), *two = tn_mul_scalar(one, 2);
    tn_tensor *loss = tn_ctc_loss(x, one, two, one, 0, false, TN_SUM);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &x, &g, TN_CREATE_GRAPH));
    assert_fails(tn_backward(tn_sum_all(g)), TN_E_INVALID, "tn_ctc_loss: has no second derivative");
}
END_TEST

/* ---- losses at the ends of their ranges ------------------------------------------------------ */

START_TEST(losses_outside_their_range_are_nan)
{
    tn_tensor *p = F64(TN_SHAPE(2), -0.5, 1.5), *t = F64(TN_SHAPE(2), 0.5, 0.5);
    assert_values(tn_bce_loss(p, t, TN_NONE, TN_NO_REDUCTION), 0, NAN, NAN);
    tn_tensor *var = F64(TN_SHAPE(2), -1, INFINITY);
    assert_values(tn_gaussian_nll_loss(p, t, var, false, 1e-6, TN_NO_REDUCTION), 0, NAN, INFINITY);
}
END_TEST

/* Where f32 rounds the place down to another element than whole numbers do: PyTorch 2.15's. And a
 * scale by which sizes stay: nearest reads other elements, linear does not. */
START_TEST(interpolation_rounds_as_pytorch)
{
    const struct {
        int64_t in, out, o;
        tn_dtype dtype;
        double y;
    } row[] = { { 14, 46, 23, TN_F32, 6 },
                { 14, 46, 23, TN_F64, 7 },
                { 26, 22, 11, TN_F32, 12 },
                { 26, 22, 11, TN_F64, 13 } };
    for (int i = 0; i < COUNT(row); i++) {
        tn_tensor *x =
            tn_reshape(tn_arange(0, (double)row[i].in, 1, row[i].dtype), TN_SHAPE(1, 1, row[i].in));
        tn_tensor *y = tn_interpolate(x, (tn_interpolate_spec){ .size = { row[i].out } });
        ck_assert_double_eq(tn_at(y, TN_INDEX(0, 0, row[i].o)), row[i].y);
    }
    tn_tensor *x = tn_reshape(tn_arange(0, 10, 1, TN_F32), TN_SHAPE(1, 1, 10));
    tn_interpolate_spec scale = { .scale = { 1.05 } };
    assert_values(tn_interpolate(x, scale), 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8);
    scale.mode = TN_LINEAR;
    assert_values(tn_interpolate(x, scale), 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
}
END_TEST

void ops_values_cases(Suite *suite)
{
    TCase *t = test_case(suite, "values");
    add_tests(t, slopes_at_nan, bent_at_zero, AG_05_at_zero, AG_05_clamp, AG_05_ties,
              AG_05_where_does_not_hide_nan, PR_03_scalars_beside_half_floats,
              lerp_from_the_nearer_end, pow_of_a_half, whole_numbers, remainders_of_integers,
              the_largest_numbers, losses_outside_their_range_are_nan,
              interpolation_rounds_as_pytorch, ctc_of_labels_in_a_row, ctc_of_classes_ruled_out,
              an_infinite_depthwise_weight, ctc_of_many_steps, ctc_has_no_second_derivative);
    tcase_add_loop_test(t, ctc_is_a_sum_over_paths, 0, 6);
    tcase_add_loop_test(t, PR_02_scalars_beside_integers, 0, COUNT(scalar_rows));
}
