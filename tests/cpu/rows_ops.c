/*
 * rows_ops.c - softmax, losses, norms, embedding and dropout as ops: the rows of SEMANTICS that
 * concern them, by their ids; expected numbers are PyTorch's (SEMANTICS 2.22) or closed forms. The
 * op table (test_ops.c) checks golden values and derivatives of every variant; this file tests the
 * other promises.
 *
 * Seen to fail: in autograd/ops/batch_norm.c reads[0] also named RUNNING_MEAN, so that backward
 * kept the buffer (BN_two_forwards_before_one_backward); in autograd/ops/gather.c skip was
 * always -1 (LY_07); in autograd/ops/rotary.c the result's layout left row-major, and backward
 * turning forwards (rotary_*).
 */
#include "rows.h"

static tn_tensor *leaf(tn_tensor *t)
{
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

static tn_tensor *ids(int64_t n, const int64_t *values)
{
    return tn_from_ints(values, TN_SHAPE(n));
}
#define IDS(...)                                                                                   \
    ids((int64_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[]){ __VA_ARGS__ })
#define F64(shape, ...) from_f64((double[]){ __VA_ARGS__ }, shape)

/* First and second derivatives of a function of leaves. */
static void check_derivatives(tn_function f, tn_tensor **in, int n, void *user)
{
    for (int i = 0; i < n; i++) leaf(in[i]);
    assert_ok(tn_gradcheck(f, in, n, user, (tn_gradcheck_options){ .second = true }));
}

/* ---- softmax --------------------------------------------------------------------------------- */

START_TEST(AG_06_row_of_minus_infinity)
{
    tn_tensor *x = F64(TN_SHAPE(2, 2), -INFINITY, -INFINITY, 0, 0);
    assert_values(tn_softmax(x, -1), 0, NAN, NAN, .5, .5);
    assert_values(tn_log_softmax(x, 1), 1e-15, NAN, NAN, -log(2), -log(2));
    assert_values(tn_softmax(tn_transpose(x, 0, 1), 0), 0, NAN, .5, NAN, .5);
    assert_values(tn_softmax(F64(TN_SHAPE(2), 1e308, 1e308), 0), 0, .5, .5);
    assert_values(tn_softmax(F64(TN_SHAPE(2), -INFINITY, 3), 0), 0, 0, 1);
}
END_TEST

START_TEST(softmax_of_a_single_value)
{
    tn_tensor *x = leaf(tn_full_as(TN_SCALAR, 3, TN_F64, tn_cpu()));
    tn_tensor *y = tn_softmax(x, 0);
    assert_made(y);
    ck_assert_int_eq(tn_rank(y), 0);
    ck_assert(tn_item(y) == 1);
    ck_assert(tn_item(tn_log_softmax(x, -1)) == 0);
    assert_null(tn_softmax(x, 1), TN_E_INDEX, "tn_softmax");
}
END_TEST

static tn_tensor *softmax_middle(tn_tensor **in, void *user)
{
    bool log = *(bool *)user;
    return log ? tn_log_softmax(in[0], 1) : tn_softmax(in[0], 1);
}

START_TEST(softmax_derivatives_along_a_middle_axis)
{
    bool log = _i;
    tn_tensor *in[1] = { random_f64(TN_SHAPE(2, 3, 2), -2, 2, 3) };
    check_derivatives(softmax_middle, in, 1, &log);
}
END_TEST

/* ---- cross entropy --------------------------------------------------------------------------- */

static tn_tensor *golden_logits(void)
{
    return F64(TN_SHAPE(3, 3), 1, 2, 3, 0, 0, 5, -1, 4, 2);
}

START_TEST(LS_01_golden)
{
    tn_tensor *x = golden_logits(), *t = IDS(2, -100, 0), *w = F64(TN_SHAPE(3), 1, 2, 3);
    assert_values(tn_cross_entropy(x, t), 1e-12, 2.770225599086);
    assert_values(tn_cross_entropy_with(x, t, (tn_cross_entropy_options){ .label_smoothing = .1 }),
                  1e-12, 2.686892265753);
    assert_values(tn_cross_entropy_with(x, t, (tn_cross_entropy_options){ .reduction = TN_SUM }),
                  1e-12, 5.540451198172);
    assert_values(tn_cross_entropy_with(x, t, (tn_cross_entropy_options){ .weight = w }), 1e-12,
                  1.588915781765);
    assert_values(tn_cross_entropy_with(
                      x, t, (tn_cross_entropy_options){ .weight = w, .label_smoothing = .1 }),
                  1e-12, 1.582046763497);
    tn_tensor *rows =
        tn_cross_entropy_with(x, t, (tn_cross_entropy_options){ .reduction = TN_NO_REDUCTION });
    assert_made(rows);
    assert_values(tn_narrow(rows, 0, 1, 1), 0, 0); /* ignored */
    assert_values(tn_sum_all(rows), 1e-12, 5.540451198172);
    assert_values(tn_nll_loss(tn_log_softmax(x, 1), t, (tn_cross_entropy_options){ .weight = w }),
                  1e-12, 1.588915781765);
}
END_TEST

START_TEST(LS_01_other_ignore_index)
{
    tn_cross_entropy_options o = { .use_ignore_index = true, .ignore_index = 2 };
    tn_tensor *x = golden_logits();
    tn_tensor *want = tn_cross_entropy(tn_narrow(x, 0, 2, 1), IDS(0));
    /* both are ignored */
    assert_close(tn_cross_entropy_with(x, IDS(2, -100, 0), o), want, 1e-14, 0);
    assert_close(tn_nll_loss(tn_log_softmax(x, 1), IDS(2, -100, 0), o), want, 1e-14, 0);
}
END_TEST

START_TEST(LS_02_nothing_left)
{
    tn_tensor *x = leaf(golden_logits()), *t = IDS(-100, -100, -100);
    ck_assert(isnan(tn_item(tn_cross_entropy(x, t))));
    ck_assert(tn_item(tn_cross_entropy_with(
                  x, t, (tn_cross_entropy_options){ .reduction = TN_SUM })) == 0);
    tn_tensor *none = tn_empty_as(TN_SHAPE(0, 3), TN_F64, tn_cpu());
    ck_assert(isnan(tn_item(tn_cross_entropy(none, tn_empty_as(TN_SHAPE(0), TN_I64, tn_cpu())))));
}
END_TEST

START_TEST(LS_02_refusals)
{
    tn_tensor *x = golden_logits();
    assert_null(tn_cross_entropy(x, IDS(0, 3, 0)), TN_E_INDEX,
                "tn_cross_entropy: target value 3 at row 1: want 0..2 (or -100 to ignore)");
    assert_null(tn_cross_entropy(x, IDS(0, 1, -1)), TN_E_INDEX, "target value -1 at row 2");
    assert_null(tn_nll_loss(x, IDS(0, 3, 0), (tn_cross_entropy_options){ 0 }), TN_E_INDEX,
                "tn_nll_loss: target value 3 at row 1: want 0..2");
    assert_null(tn_cross_entropy(x, tn_to_dtype(IDS(0, 1, 1), TN_BOOL)), TN_E_DTYPE, "bool");
    assert_null(tn_cross_entropy(x, IDS(0, 1)), TN_E_SHAPE,
                "logits [3,3], target [2]: want target [3]");
    assert_null(tn_cross_entropy_with(x, IDS(0, 1, 2),
                                      (tn_cross_entropy_options){ .label_smoothing = -.1 }),
                TN_E_INVALID, "label_smoothing -0.1");
    assert_null(tn_cross_entropy(tn_to_dtype(x, TN_I64), IDS(0, 1, 2)), TN_E_DTYPE, "i64");
    tn_tensor *w = leaf(tn_ones_like(tn_narrow(x, 0, 0, 1)));
    assert_null(
        tn_cross_entropy_with(x, IDS(0, 1, 2),
                              (tn_cross_entropy_options){ .weight = tn_reshape(w, TN_SHAPE(3)) }),
        TN_E_INVALID, "tn_detach(weight)");
    assert_made(tn_cross_entropy(x, tn_to_dtype(IDS(0, 1, 2), TN_I32))); /* i32 is cast */
}
END_TEST

START_TEST(LS_03_probabilities)
{
    tn_tensor *x = golden_logits(), *t = IDS(2, 1, 0);
    tn_tensor *hot = tn_to_dtype(tn_one_hot(t, 3), TN_F64);
    tn_cross_entropy_options smooth = { .label_smoothing = .1 };
    assert_close(tn_cross_entropy(x, hot), tn_cross_entropy(x, t), 1e-14, 0);
    assert_close(tn_cross_entropy_with(x, hot, smooth), tn_cross_entropy_with(x, t, smooth), 1e-14,
                 0);
    assert_null(
        tn_cross_entropy_with(x, hot, (tn_cross_entropy_options){ .use_ignore_index = true }),
        TN_E_INVALID, "ignore_index");
    assert_null(tn_cross_entropy(x, tn_narrow(hot, 0, 0, 2)), TN_E_SHAPE, "[2,3]");
}
END_TEST

START_TEST(LS_04_gradient)
{
    tn_tensor *x = leaf(golden_logits()), *t = IDS(2, -100, 0);
    assert_ok(tn_backward(tn_cross_entropy(x, t)));
    tn_tensor *want =
        tn_sub(tn_softmax(tn_detach(x), 1), F64(TN_SHAPE(3, 3), 0, 0, 1, 0, 0, 0, 1, 0, 0));
    want = tn_mul(want, F64(TN_SHAPE(3, 1), .5, 0, .5));
    assert_close(tn_grad(x), want, 1e-14, 1e-16);
}
END_TEST

START_TEST(LS_04_ignored_rows_may_hold_anything)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(2, 2), 1, 2, NAN, INFINITY));
    tn_tensor *loss = tn_cross_entropy(x, IDS(0, -100));
    assert_values(loss, 1e-12, 1 + log(1 + exp(-1)));
    assert_ok(tn_backward(loss));
    assert_values(tn_narrow(tn_grad(x), 0, 1, 1), 0, 0, 0);
    /* the same with classes on axis 1 */
    tn_tensor *image = leaf(F64(TN_SHAPE(1, 2, 2), 1, NAN, 2, INFINITY));
    int64_t target[] = { 0, -100 };
    loss = tn_cross_entropy(image, tn_from_ints(target, TN_SHAPE(1, 2)));
    assert_values(loss, 1e-12, 1 + log(1 + exp(-1)));
    assert_ok(tn_backward(loss));
    ck_assert(tn_at(tn_grad(image), TN_INDEX(0, 1, 1)) == 0);
}
END_TEST

START_TEST(cross_entropy_layouts_agree)
{
    tn_tensor *x = random_f64(TN_SHAPE(2, 5, 4), -3, 3, 5); /* [B,T,V] */
    int64_t raw[] = { 0, 3, -100, 1, 2, 2, 3, 0, 1, -100 };
    tn_tensor *t = tn_from_ints(raw, TN_SHAPE(2, 5));
    tn_tensor *flat = tn_cross_entropy(tn_reshape(x, TN_SHAPE(10, 4)), tn_reshape(t, TN_SHAPE(10)));
    assert_close(tn_cross_entropy(x, t), flat, 1e-14, 0);                     /* last axis */
    assert_close(tn_cross_entropy(tn_transpose(x, 1, 2), t), flat, 1e-14, 0); /* [N,C,d], strided */
    tn_tensor *one = tn_select(tn_select(x, 0, 0), 0, 1); /* [C] with a scalar */
    tn_tensor *three = tn_select(tn_select(t, 0, 0), 0, 1);
    tn_tensor *row = tn_cross_entropy(tn_unsqueeze(one, 0), tn_unsqueeze(three, 0));
    assert_close(tn_cross_entropy(one, three), row, 1e-14, 0);
}
END_TEST

typedef struct ce_case {
    tn_tensor *target;
    tn_cross_entropy_options o;
} ce_case;

static tn_tensor *cross_entropy_function(tn_tensor **in, void *user)
{
    const ce_case *c = user;
    return tn_cross_entropy_with(in[0], c->target, c->o);
}

START_TEST(cross_entropy_derivatives)
{
    ce_case c = { .o = { .reduction = (tn_reduction)(_i % 3) } };
    int64_t raw[] = { 0, 3, -100, 1, 2, 1 };
    if (_i / 3 % 2) {
        c.o.label_smoothing = .2;
        c.o.weight = F64(TN_SHAPE(4), 1, .5, 2, 3);
        c.o.use_ignore_index = true;
        c.o.ignore_index = 2;
    }
    tn_tensor *in[1];
    if (_i / 6) { /* images */
        in[0] = random_f64(TN_SHAPE(2, 4, 3), -2, 2, 9);
        c.target = tn_from_ints(raw, TN_SHAPE(2, 3));
    } else {
        in[0] = random_f64(TN_SHAPE(6, 4), -2, 2, 9);
        c.target = tn_from_ints(raw, TN_SHAPE(6));
    }
    check_derivatives(cross_entropy_function, in, 1, &c);
}
END_TEST

/* What is added to all logits of a row changes nothing, if the sums are exact. */
static const struct {
    tn_dtype dtype;
    double offset, step; /* logits are offset + step times a small integer */
} offsets[] = { { TN_F32, 1e8, 8 },   { TN_F32, -1e8, 8 }, { TN_F32, 1024, 0.125 },
                { TN_F32, 1e30, 0 },  { TN_F64, 1e16, 2 }, { TN_F64, -1e300, 0 },
                { TN_BF16, 1e4, 0 },  { TN_BF16, 512, 4 }, { TN_F16, 1024, 1 },
                { TN_F16, -60000, 0 } };
enum { OFFSETS = sizeof offsets / sizeof *offsets };

static tn_tensor *small_integers(tn_shape shape, int k)
{
    tn_tensor *t = tn_full_as(shape, 0, offsets[k].dtype, tn_cpu());
    for (int64_t i = 0, n = tn_numel(t); i < n; i++)
        assert_ok(tn_fill_(tn_narrow(tn_reshape(t, TN_SHAPE(n)), 0, i, 1),
                           (double)(i * 7 % 5) * offsets[k].step));
    return t;
}

START_TEST(cross_entropy_beside_large_offsets)
{
    int k = _i % OFFSETS, layout = _i / OFFSETS;
    const tn_cross_entropy_options o = { .reduction = layout == 2 ? TN_SUM : TN_MEAN,
                                         .label_smoothing = layout ? 0.1 : 0 };
    tn_tensor *t = layout == 1 ? tn_reshape(IDS(2, 0, 1, 2, -100, 0), TN_SHAPE(2, 3)) : IDS(2, 0);
    tn_shape shape = layout == 1 ? TN_SHAPE(2, 3, 3) : TN_SHAPE(2, 3);
    tn_tensor *x = leaf(small_integers(shape, k)), *g[2];
    tn_tensor *high = leaf(tn_detach(tn_add_scalar(x, offsets[k].offset)));
    tn_tensor *loss = tn_cross_entropy_with(high, t, o), *want = tn_cross_entropy_with(x, t, o);
    assert_close(loss, want, 0, 0);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &high, &g[0], 0));
    assert_ok(tn_gradients(1, &want, NULL, 1, &x, &g[1], 0));
    assert_close(g[0], g[1], 0, 0);
}
END_TEST

/* Three equal logits at 1e8, as PyTorch 2.15. */
START_TEST(cross_entropy_of_equal_logits)
{
    tn_tensor *x = leaf(tn_full_as(TN_SHAPE(1, 3), 1e8, TN_F32, tn_cpu()));
    tn_tensor *loss = tn_cross_entropy(x, IDS(0));
    assert_values(loss, 1e-6, 1.0986123);
    assert_ok(tn_backward(loss));
    assert_values(tn_grad(x), 1e-6, -0.6666667, 0.3333333, 0.3333333);
}
END_TEST

START_TEST(linear_cross_entropy_beside_large_offsets)
{
    tn_tensor *x = leaf(tn_full_as(TN_SHAPE(4, 2), 0, offsets[_i].dtype, tn_cpu()));
    tn_tensor *w = leaf(small_integers(TN_SHAPE(5, 2), _i)), *in[] = { x, w, NULL }, *g[2][3];
    tn_tensor *loss[2], *b = small_integers(TN_SHAPE(5), _i);
    for (int high = 0; high < 2; high++) {
        in[2] = leaf(tn_detach(tn_add_scalar(b, high ? offsets[_i].offset : 0)));
        loss[high] = tn_linear_cross_entropy(x, w, in[2], IDS(2, 0, 4, 1));
        assert_ok(tn_gradients(1, &loss[high], NULL, 3, in, g[high], 0));
    }
    assert_close(loss[1], loss[0], 0, 0);
    for (int i = 0; i < 3; i++) assert_close(g[1][i], g[0][i], 0, 0);
}
END_TEST

/* Gradient and second derivative of logsumexp are those without the offset, also where its value
 * is rounded to the offset or to bf16. */
START_TEST(logsumexp_beside_large_offsets)
{
    int k = _i;
    tn_tensor *x = leaf(small_integers(TN_SHAPE(3, 4), k)), *g[2], *h[2];
    tn_tensor *both[2] = { x, leaf(tn_detach(tn_add_scalar(x, offsets[k].offset))) };
    tn_dtype dtype = offsets[k].dtype;
    double close = dtype == TN_F64 ? 1e-14 : dtype == TN_F32 ? 1e-6 : 1e-2;
    for (int i = 0; i < 2; i++) {
        tn_tensor *y = tn_sum_all(tn_logsumexp(both[i], TN_AXES(1), false));
        assert_ok(tn_gradients(1, &y, NULL, 1, &both[i], &g[i], i ? 0 : TN_CREATE_GRAPH));
    }
    assert_close(g[1], g[0], close, close);
    assert_close(g[1], tn_softmax(x, 1), close, close);
    for (int i = 0; i < 2; i++) {
        tn_tensor *y = tn_sum_all(tn_logsumexp(both[i], TN_AXES(1), false)), *slope;
        assert_ok(tn_gradients(1, &y, NULL, 1, &both[i], &slope, TN_CREATE_GRAPH));
        slope = tn_sum_all(tn_square(slope));
        assert_ok(tn_gradients(1, &slope, NULL, 1, &both[i], &h[i], 0));
    }
    assert_close(h[1], h[0], 0, close);
}
END_TEST

/* Of bf16 and f16: logits are not rounded. Each row's loss, and the mean's, is what f64 gives,
 * rounded once. */
START_TEST(linear_cross_entropy_of_half_floats_rounds_once)
{
    enum { N = 12, K = 64, C = 40 };
    tn_dtype dtype = _i < 2 ? TN_BF16 : TN_F16;
    tn_tensor *x[3], *wide[3], *t = tn_full_as(TN_SHAPE(N), 0, TN_I64, tn_cpu());
    for (int64_t i = 0; i < N; i++) ((int64_t *)tn_data_mut(t))[i] = i * 7 % C;
    tn_shape shapes[] = { TN_SHAPE(N, K), TN_SHAPE(C, K), TN_SHAPE(C) };
    for (int i = 0; i < 3; i++) {
        x[i] = tn_to_dtype(random_f64(shapes[i], -2, 2, (uint64_t)i + 1), dtype);
        wide[i] = tn_to_dtype(x[i], TN_F64);
        leaf(x[i]);
    }
    const tn_cross_entropy_options o = { .reduction = _i % 2 ? TN_MEAN : TN_NO_REDUCTION };
    tn_tensor *loss = tn_linear_cross_entropy_with(x[0], x[1], x[2], t, o);
    tn_tensor *want = tn_cross_entropy_with(tn_linear(wide[0], wide[1], wide[2]), t, o);
    assert_close(tn_to_dtype(loss, TN_F64), want, dtype == TN_F16 ? 0x1p-11 : 0x1p-8, 1e-5);
    TN_AUTOCAST(dtype) loss = tn_linear_cross_entropy_with(x[0], x[1], x[2], t, o);
    assert_close(tn_to_dtype(loss, TN_F64), want, 1e-5, 1e-5);
}
END_TEST

/* As PyTorch 2.15, but 0 also where log_p is -inf and the target 0, which has no slope there. */
START_TEST(kl_div_of_bad_targets)
{
    tn_tensor *log_p = leaf(F64(TN_SHAPE(6), -1, -1, -1, -1, -1, -INFINITY));
    tn_tensor *target = leaf(F64(TN_SHAPE(6), 0, -0.0, -1, NAN, .5, 0)), *g[2];
    tn_tensor *in[2] = { log_p, target };
    tn_tensor *rows = tn_kl_div(log_p, target, false, false, TN_NO_REDUCTION), *dy;
    assert_values(rows, 1e-12, 0, 0, NAN, NAN, 0.1534264097200273, 0);
    dy = tn_ones_like(rows);
    assert_ok(tn_gradients(1, &rows, &dy, 2, in, g, 0));
    assert_values(g[0], 1e-12, 0, 0, 1, NAN, -.5, 0);
    assert_values(g[1], 1e-12, 0, 0, NAN, NAN, 1.3068528194400546, 0);
}
END_TEST

static tn_tensor *prod_of_rows(tn_tensor *x)
{
    return tn_prod(x, TN_AXES(1), false);
}
static tn_tensor *amax_of_rows(tn_tensor *x)
{
    return tn_amax(x, TN_AXES(1), false);
}
static tn_tensor *clamped(tn_tensor *x)
{
    return tn_clamp(x, -1, 2.5);
}

/* PyTorch 2.15's, but that without a 0 it divides a product of NaN or infinity by itself, and has
 * NaN where the others are numbers. */
START_TEST(gradients_beside_nan)
{
    static const struct {
        tn_tensor *(*f)(tn_tensor *x);
        double x[3], dx[3];
    } cases[] = {
        { tn_max_all, { 1, NAN, NAN }, { 0, .5, .5 } },
        { tn_min_all, { NAN, 1, 0 }, { 1, 0, 0 } },
        { tn_max_all, { 1, 1, 0 }, { .5, .5, 0 } },
        { amax_of_rows, { 1, NAN, 3 }, { NAN, NAN, NAN } },
        { prod_of_rows, { NAN, 0, 3 }, { 0, NAN, NAN } },
        { prod_of_rows, { 0, 0, NAN }, { NAN, NAN, 0 } },
        { prod_of_rows, { INFINITY, 0, 3 }, { 0, INFINITY, NAN } },
        { prod_of_rows, { INFINITY, 2, 3 }, { 6, INFINITY, INFINITY } },
        { prod_of_rows, { NAN, 2, 3 }, { 6, NAN, NAN } },
        { clamped, { NAN, 2, 3 }, { 0, 1, 0 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_tensor *x = leaf(from_f64(cases[i].x, TN_SHAPE(1, 3)));
        for (int flags = 0; flags <= TN_CREATE_GRAPH; flags += TN_CREATE_GRAPH) {
            tn_tensor *y = tn_sum_all(cases[i].f(x)), *g;
            assert_ok(tn_gradients(1, &y, NULL, 1, &x, &g, flags));
            const char *off = difference(g, from_f64(cases[i].dx, TN_SHAPE(1, 3)), 1e-12, 0);
            ck_assert_msg(!off, "case %zu, flags %d: %s", i, flags, off);
        }
    }
}
END_TEST

/* The slope of a^b by b, as PyTorch 2.15's: 0 at 0^b only for b >= 0. */
START_TEST(pow_slope_at_zero)
{
    tn_tensor *a = F64(TN_SHAPE(10), 0, 0, 0, 0, 0, -0.0, -0.0, -0.0, -0.0, -0.0);
    tn_tensor *b = leaf(F64(TN_SHAPE(10), 0, 2, -1, NAN, -INFINITY, 0, 2, -1, -2, NAN));
    for (int flags = 0; flags <= TN_CREATE_GRAPH; flags += TN_CREATE_GRAPH) {
        tn_tensor *y = tn_sum_all(tn_pow(a, b)), *g;
        assert_ok(tn_gradients(1, &y, NULL, 1, &b, &g, flags));
        assert_values(g, 0, 0, 0, -INFINITY, NAN, -INFINITY, 0, 0, INFINITY, -INFINITY, NAN);
    }
}
END_TEST

START_TEST(LS_05_other_losses)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(4), -800, -.5, 0, 800)), *t = F64(TN_SHAPE(4), 0, 1, .5, 1);
    tn_tensor *bce = tn_bce_with_logits(x, t, TN_NONE, TN_NO_REDUCTION);
    assert_values(bce, 1e-12, 0, log(1 + exp(.5)), log(2), 0); /* stable where sigmoid saturates */
    assert_ok(tn_backward(tn_sum_all(bce)));
    assert_values(tn_grad(x), 1e-12, 0, 1 / (1 + exp(.5)) - 1, 0, 0);
    assert_values(
        tn_bce_with_logits(F64(TN_SHAPE(2), 800, -800), F64(TN_SHAPE(2), 0, 1), TN_NONE, TN_SUM), 0,
        1600);
    /* targets outside [0, 1], as of a smoothed or a weighted label: nothing cancels */
    tn_tensor *w = F64(TN_SHAPE(3), 1, 1, 3);
    x = leaf(F64(TN_SHAPE(3), -0.0, 0, 2)), t = F64(TN_SHAPE(3), 1e4, DBL_MAX, -1e9);
    bce = tn_bce_with_logits(x, t, TN_NONE, TN_NO_REDUCTION);
    assert_values(bce, 1e-12, log(2), log(2), 2e9 + 2 + log(1 + exp(-2)));
    assert_ok(tn_backward(tn_slice(bce, 0, 0, 1, 1)));
    assert_values(tn_grad(x), 1e-12, .5 - 1e4, 0, 0);
    assert_values(tn_bce_with_logits(F64(TN_SHAPE(3), -40, 0, 40), F64(TN_SHAPE(3), 0, .5, 1), w,
                                     TN_NO_REDUCTION),
                  1e-30, exp(-40), log(2), 3 * exp(-40));
    tn_tensor *d = F64(TN_SHAPE(3), -3, .25, 1), *zero = tn_zeros_like(d);
    assert_values(tn_smooth_l1_loss(d, zero, .5, TN_NO_REDUCTION), 1e-15, 2.75, .0625, .75);
    assert_values(tn_smooth_l1_loss(d, zero, 0, TN_NO_REDUCTION), 0, 3, .25, 1);
    assert_values(tn_huber_loss(d, zero, .5, TN_NO_REDUCTION), 1e-15, 1.375, .03125, .375);
    assert_values(tn_mse_loss(d, zero, TN_MEAN), 1e-15, (9 + .0625 + 1) / 3);
    assert_null(tn_mse_loss(d, tn_full_as(TN_SHAPE(3, 1), 0, TN_F64, tn_cpu()), TN_MEAN),
                TN_E_SHAPE, "x [3], target [3,1]: want equal shapes");
    tn_tensor *p = F64(TN_SHAPE(2, 2), .25, .75, 1, 0), *q = F64(TN_SHAPE(2, 2), .5, .5, .5, .5);
    assert_values(tn_kl_div(tn_log(q), p, false, true, TN_MEAN), 1e-12,
                  (.25 * log(.5) + .75 * log(1.5) + log(2)) / 2); /* batchmean: over 2 rows */
}
END_TEST

/* ---- layer norm ------------------------------------------------------------------------------ */

START_TEST(LY_03_golden)
{
    tn_tensor *x = F64(TN_SHAPE(1, 4), 1, 2, 4, 8);
    assert_values(tn_layer_norm(x, 1, TN_NONE, TN_NONE, 1e-5), 1e-12, -1.025754575496,
                  -.652752911679, .093250415954, 1.585257071221);
    assert_null(tn_layer_norm(x, 1, tn_ones_like(tn_narrow(x, 1, 0, 3)), TN_NONE, 1e-5), TN_E_SHAPE,
                "x [1,4], weight [1,3]: want weight [4]");
}
END_TEST

static tn_tensor *layer_norm_function(tn_tensor **in, void *user)
{
    (void)user;
    return tn_layer_norm(in[0], 2, in[1], in[2], 1e-3);
}

/* As PyTorch: eps may be negative while var + eps is not. The recorded one was NaN. */
START_TEST(layer_norm_with_a_negative_eps)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(1, 3), -2, 1, 4)), *g[2], *dy = F64(TN_SHAPE(1, 3), 1, 2, -1);
    tn_tensor *y = tn_layer_norm(x, 1, TN_NONE, TN_NONE, -.5);
    for (int i = 0; i < 2; i++)
        assert_ok(tn_gradients(1, &y, &dy, 1, &x, &g[i], i ? TN_RETAIN_GRAPH : TN_CREATE_GRAPH));
    assert_close(g[0], g[1], 1e-12, 0);
}
END_TEST

START_TEST(LY_03_derivatives)
{
    tn_tensor *in[3] = { random_f64(TN_SHAPE(2, 3, 2), -2, 2, 1),
                         random_f64(TN_SHAPE(3, 2), -2, 2, 2),
                         random_f64(TN_SHAPE(3, 2), -2, 2, 3) };
    check_derivatives(layer_norm_function, in, 3, NULL);
}
END_TEST

/* ---- batch norm ------------------------------------------------------------------------------ */

typedef struct bn {
    tn_tensor *weight, *bias, *mean, *var;
} bn;

static bn bn_new(int64_t channels)
{
    return (bn){ leaf(tn_full_as(TN_SHAPE(channels), 1, TN_F64, tn_cpu())),
                 leaf(tn_full_as(TN_SHAPE(channels), 0, TN_F64, tn_cpu())),
                 tn_full_as(TN_SHAPE(channels), 0, TN_F64, tn_cpu()),
                 tn_full_as(TN_SHAPE(channels), 1, TN_F64, tn_cpu()) };
}

static tn_tensor *bn_run(bn b, tn_tensor *x, bool training)
{
    return tn_batch_norm(x, b.weight, b.bias, b.mean, b.var, training, .1, 1e-5);
}

static tn_tensor *golden_images(void)
{
    double x[12];
    for (int i = 0; i < 12; i++) x[i] = pow(i, 1.5) / 7;
    return from_f64(x, TN_SHAPE(3, 2, 1, 2));
}

START_TEST(BN_02_BN_03_golden)
{
    bn b = bn_new(2);
    assert_values(bn_run(b, golden_images(), true), 1e-9, -1.1456378822, -1.0471699239,
                  -1.2351925712, -1.0452361310, -.3578942159, -.0447326405, -.2830127870,
                  .0237222868, 1.0824376710, 1.5129969916, 1.0749031691, 1.4648160334);
    assert_values(b.mean, 1e-11, .166208944965, .260351015422);
    assert_values(b.var, 1e-11, 1.15257667201, 1.28048573625); /* unbiased */
    ck_assert_int_eq((int)tn_version(b.mean), 1);
}
END_TEST

START_TEST(BN_05_cumulative) /* momentum 1, then 1/2: the plain average */
{
    bn b = bn_new(2);
    tn_tensor *x = golden_images();
    assert_made(tn_batch_norm(x, b.weight, b.bias, b.mean, b.var, true, 1, 1e-5));
    assert_made(
        tn_batch_norm(tn_mul_scalar(x, 2), b.weight, b.bias, b.mean, b.var, true, .5, 1e-5));
    assert_values(b.mean, 1e-10, 2.49313417448, 3.90526523133);
    assert_values(b.var, 1e-10, 6.31441680037, 9.51214340615);
    uint64_t before = tn_hash(b.mean);
    /* momentum 0: frozen */
    assert_made(tn_batch_norm(x, b.weight, b.bias, b.mean, b.var, true, 0, 1e-5));
    ck_assert_uint_eq(tn_hash(b.mean), before);
}
END_TEST

START_TEST(BN_06_eval)
{
    bn b = bn_new(2);
    assert_made(bn_run(b, golden_images(), true));
    uint64_t mean = tn_hash(b.mean), var = tn_hash(b.var);
    tn_tensor *x = F64(TN_SHAPE(1, 2), 1, 2); /* one value per channel is fine */
    assert_values(bn_run(b, x, false), 1e-9, (1 - .166208944965) / sqrt(1.15257667201 + 1e-5),
                  (2 - .260351015422) / sqrt(1.28048573625 + 1e-5));
    ck_assert_uint_eq(tn_hash(b.mean), mean);
    ck_assert_uint_eq(tn_hash(b.var), var);
}
END_TEST

START_TEST(BN_07_BN_08_absent_statistics)
{
    tn_tensor *x = golden_images(), *m = tn_full_as(TN_SHAPE(2), 0, TN_F64, tn_cpu());
    bn b = bn_new(2);
    assert_close(tn_batch_norm(x, TN_NONE, TN_NONE, TN_NONE, TN_NONE, true, .1, 1e-5),
                 bn_run(b, x, true), 1e-14, 0);
    assert_null(tn_batch_norm(x, TN_NONE, TN_NONE, TN_NONE, TN_NONE, false, .1, 1e-5), TN_E_INVALID,
                "without running statistics");
    assert_null(tn_batch_norm(x, TN_NONE, TN_NONE, m, TN_NONE, false, .1, 1e-5), TN_E_INVALID,
                "only one");
    assert_null(tn_batch_norm(x, TN_NONE, TN_NONE, TN_NONE, m, true, .1, 1e-5), TN_E_INVALID,
                "only one");
}
END_TEST

START_TEST(BN_09_one_value_changes_nothing)
{
    bn b = bn_new(3);
    uint64_t mean = tn_hash(b.mean), var = tn_hash(b.var);
    assert_null(bn_run(b, random_f64(TN_SHAPE(1, 3, 1, 1), -1, 1, 1), true), TN_E_SHAPE,
                "tn_batch_norm: x [1,3,1,1] has one value per channel");
    ck_assert_uint_eq(tn_hash(b.mean), mean);
    ck_assert_uint_eq(tn_hash(b.var), var);
    ck_assert_int_eq((int)tn_version(b.mean), 0);
}
END_TEST

START_TEST(BN_10_edges)
{
    bn b = bn_new(3);
    uint64_t mean = tn_hash(b.mean), var = tn_hash(b.var);
    tn_tensor *x = leaf(tn_empty_as(TN_SHAPE(0, 3, 2, 2), TN_F64, tn_cpu()));
    tn_tensor *y = bn_run(b, x, true); /* an empty batch: accepted, the statistics stay */
    assert_made(y);
    ck_assert_int_eq((int)tn_size(y, 0), 0);
    assert_ok(tn_backward(tn_sum_all(y)));
    assert_values(tn_grad(b.weight), 0, 0, 0, 0);
    ck_assert_uint_eq(tn_hash(b.mean), mean);
    ck_assert_uint_eq(tn_hash(b.var), var);
    assert_null(bn_run(bn_new(5), random_f64(TN_SHAPE(4, 3, 2, 2), -1, 1, 1), true), TN_E_SHAPE,
                "x [4,3,2,2] has 3 channels, running_var [5]: want [3]");
    assert_null(bn_run(b, tn_full_as(TN_SHAPE(4, 3), 0, TN_I64, tn_cpu()), true), TN_E_DTYPE,
                "i64");
    assert_null(bn_run(b, random_f64(TN_SHAPE(3), -1, 1, 1), true), TN_E_SHAPE, "want [N,C,...]");
}
END_TEST

START_TEST(BN_11_nan_stays)
{
    bn b = bn_new(1);
    assert_made(bn_run(b, F64(TN_SHAPE(2, 1), NAN, 1), true));
    assert_made(bn_run(b, F64(TN_SHAPE(2, 1), 0, 1), true));
    ck_assert(isnan(tn_item(b.mean)) && isnan(tn_item(b.var)));
}
END_TEST

START_TEST(BN_12_BN_13_gradients)
{
    bn b = bn_new(2);
    tn_tensor *x = leaf(golden_images()), *g = random_f64(TN_SHAPE(3, 2, 1, 2), -1, 1, 4);
    int axes[] = { 0, 2, 3 };
    tn_tensor *y = bn_run(b, x, true); /* weight 1, bias 0: y is xh */
    tn_tensor *xh = tn_detach(y);
    assert_ok(tn_backward_from(y, g, 0));
    assert_close(tn_grad(b.bias), tn_sum(g, axes, 3, false), 1e-12, 1e-13);
    assert_close(tn_grad(b.weight), tn_sum(tn_mul(g, xh), axes, 3, false), 1e-12, 1e-13);
    tn_tensor *r = tn_rsqrt(tn_add_scalar(tn_var(tn_detach(x), axes, 3, 0, true), 1e-5));
    tn_tensor *want = tn_sub(tn_sub(g, tn_mean(g, axes, 3, true)),
                             tn_mul(xh, tn_mean(tn_mul(g, xh), axes, 3, true)));
    assert_close(tn_grad(x), tn_mul(r, want), 1e-11, 1e-12);
    tn_tensor *z = leaf(golden_images());
    assert_ok(tn_backward_from(bn_run(b, z, false), g, 0));
    want = tn_mul(g, tn_reshape(tn_rsqrt(tn_add_scalar(b.var, 1e-5)), TN_SHAPE(2, 1, 1)));
    assert_close(tn_grad(z), want, 1e-12, 1e-13);
}
END_TEST

static tn_tensor *batch_norm_function(tn_tensor **in, void *user)
{
    tn_tensor **running = user;
    return tn_batch_norm(in[0], in[1], in[2], running[0], running[1], tn_is_none(running[0]), .1,
                         1e-3);
}

START_TEST(BN_14_derivatives)
{
    tn_tensor *in[3] = { random_f64(TN_SHAPE(3, 2, 2), -2, 2, 1), random_f64(TN_SHAPE(2), -2, 2, 2),
                         random_f64(TN_SHAPE(2), -2, 2, 3) };
    tn_tensor *running[2] = { TN_NONE, TN_NONE };
    if (_i) {
        running[0] = random_f64(TN_SHAPE(2), -1, 1, 5);
        running[1] = random_f64(TN_SHAPE(2), .5, 2, 6);
    }
    check_derivatives(batch_norm_function, in, 3, running);
}
END_TEST

START_TEST(BN_14_running_statistics_take_no_part)
{
    bn b = bn_new(2);
    leaf(b.mean);
    assert_ok(tn_backward(tn_sum_all(bn_run(b, leaf(golden_images()), false))));
    ck_assert_ptr_eq(tn_grad(b.mean), TN_NONE);
}
END_TEST

START_TEST(BN_two_forwards_before_one_backward)
{
    bn b = bn_new(2), c = bn_new(2);
    tn_tensor *x = leaf(golden_images()), *z = leaf(golden_images());
    for (int training = 1; training >= 0; training--) {
        tn_tensor *first = tn_square(bn_run(b, x, training));
        /* changes what the first forward read */
        tn_tensor *second = tn_square(bn_run(b, tn_mul_scalar(x, 2), true));
        assert_ok(tn_backward(tn_sum_all(tn_add(first, second))));
    }
    /* the same, each backward right after its forward */
    for (int training = 1; training >= 0; training--) {
        assert_ok(tn_backward(tn_sum_all(tn_square(bn_run(c, z, training)))));
        assert_ok(tn_backward(tn_sum_all(tn_square(bn_run(c, tn_mul_scalar(z, 2), true)))));
    }
    assert_close(tn_grad(x), tn_grad(z), 1e-12, 1e-13);
    assert_close(b.mean, c.mean, 0, 0);
}
END_TEST

/* ---- dropout --------------------------------------------------------------------------------- */

START_TEST(LY_06_dropout)
{
    tn_tensor *x = leaf(tn_full_as(TN_SHAPE(1025), 1, TN_F64, tn_cpu()));
    ck_assert_ptr_eq(tn_dropout(x, .5, false), x); /* eval: the same object */
    ck_assert_ptr_eq(tn_dropout(x, 0, true), x);
    assert_null(tn_dropout(x, 1.5, false), TN_E_INVALID, "tn_dropout: p 1.5: want 0 to 1");
    assert_null(tn_dropout(x, NAN, true), TN_E_INVALID, "want 0 to 1");
    tn_manual_seed(3);
    tn_tensor *y = tn_dropout(x, .25, true);
    assert_ok(tn_backward(tn_sum_all(y)));
    assert_close(tn_grad(x), y, 0, 0); /* x = 1: the mask itself, the same in backward */
    double kept = tn_item(tn_sum_all(tn_gt_scalar(y, 0)));
    ck_assert_msg(kept > 1025 * .7 && kept < 1025 * .8, "%g of 1025 kept", kept);
    ck_assert(fabs(tn_item(tn_sum_all(y)) - kept / .75) < 1e-9);
    tn_tensor *other = tn_dropout(x, .25, true);
    ck_assert(tn_max_abs_diff(y, other) > 0);
    tn_manual_seed(3);
    ck_assert_uint_eq(tn_hash(tn_dropout(x, .25, true)), tn_hash(y));
    tn_manual_seed(3); /* the same elements in f32 */
    assert_close(tn_to_dtype(tn_dropout(tn_to_dtype(x, TN_F32), .25, true), TN_F64), y, 1e-6, 0);
    tn_tensor *special = F64(TN_SHAPE(2), 5, INFINITY);
    assert_values(tn_dropout(special, 1, true), 0, 0, NAN);
}
END_TEST

/* ---- embedding and indexing ------------------------------------------------------------------ */

START_TEST(LY_07_embedding)
{
    tn_tensor *w = leaf(F64(TN_SHAPE(4, 2), 0, 1, 10, 11, 20, 21, 30, 31));
    tn_tensor *y = tn_embedding(w, IDS(1, 3, 1, 2), 3);
    assert_values(y, 0, 10, 11, 30, 31, 10, 11, 20, 21); /* forward reads the padding row */
    assert_ok(tn_backward(tn_sum_all(tn_mul(y, F64(TN_SHAPE(4, 1), 1, 2, 3, 4)))));
    assert_values(tn_grad(w), 0, 0, 0, 4, 4, 4, 4, 0, 0); /* repeats add up, padding stays 0 */
    assert_null(tn_embedding(w, IDS(1, 4), -1), TN_E_INDEX,
                "tn_embedding: index 4 at position 1: want 0..3");
    assert_null(tn_embedding(w, IDS(-1), -1), TN_E_INDEX, "index -1");
    assert_null(tn_embedding(w, tn_ones(TN_SHAPE(2)), -1), TN_E_DTYPE, "f32");
    assert_null(tn_embedding(w, IDS(0), 4), TN_E_INDEX, "padding_index 4");
    assert_close(tn_embedding(w, tn_to_dtype(IDS(1, 3, 1, 2), TN_I32), -1), y, 0, 0);
}
END_TEST

static tn_tensor *indexing_function(tn_tensor **in, void *user)
{
    int64_t raw[] = { 1, 0, 1, 1, 2, 0 };
    tn_tensor *index = tn_from_ints(raw, TN_SHAPE(2, 3));
    switch (*(int *)user) {
    case 0: return tn_square(tn_embedding(in[0], index, 1));
    case 1: return tn_square(tn_index_select(in[0], 1, IDS(1, 1, 0)));
    case 2: return tn_square(tn_gather(in[0], 1, tn_clamp(index, 0, 1)));
    default:
        return tn_square(
            tn_scatter_add(in[0], 0, tn_narrow(index, 1, 0, 2), tn_narrow(in[0], 0, 0, 2)));
    }
}

START_TEST(indexing_derivatives)
{
    tn_tensor *in[1] = { random_f64(TN_SHAPE(3, 2), -2, 2, 8) };
    int which = _i;
    if (which == 0) { /* the padding row has no gradient: finite differences would see one */
        leaf(in[0]);
        tn_tensor *y = indexing_function(in, &which), *g, *gg;
        tn_tensor *out = tn_sum_all(y);
        assert_ok(tn_gradients(1, &out, NULL, 1, in, &g, TN_CREATE_GRAPH));
        tn_tensor *penalty = tn_sum_all(tn_square(g));
        assert_ok(tn_gradients(1, &penalty, NULL, 1, in, &gg, 0));
        /* g = 2 n w per row, n times used (0: twice, 2: once), so gg = 8 n^2 w */
        tn_tensor *want = tn_mul(tn_detach(in[0]), F64(TN_SHAPE(3, 1), 32, 0, 8));
        assert_close(gg, want, 1e-13, 1e-13);
        return;
    }
    check_derivatives(indexing_function, in, 1, &which);
}
END_TEST

START_TEST(one_hot_edges)
{
    assert_values(tn_one_hot(IDS(2, 0), -1), 0, 0, 0, 1, 1, 0, 0);
    ck_assert_int_eq(tn_dtype_of(tn_one_hot(IDS(1), 3)), TN_I64);
    assert_null(tn_one_hot(IDS(1, 3), 3), TN_E_INDEX,
                "tn_one_hot: index 3 at position 1: want 0..2");
    assert_null(tn_one_hot(IDS(-1), 3), TN_E_INDEX, "index -1 at position 0");
    assert_null(tn_one_hot(IDS(2, -1), -1), TN_E_INDEX, "index -1 at position 1: want 0..2");
    assert_null(tn_one_hot(IDS(-3), -1), TN_E_INDEX, "index -3 at position 0: want 0..0");
    assert_null(tn_one_hot(IDS(1), -2), TN_E_INVALID, "tn_one_hot: n -2");
    assert_null(tn_one_hot(tn_empty_as(TN_SHAPE(0), TN_I64, tn_cpu()), -1), TN_E_INVALID,
                "at least one index");
}
END_TEST

/* ---- rotary positions ------------------------------------------------------------------------ */

/* Heads cut out of a packed [B, T, 3 H D] are read where they lie; the result, and its gradient,
 * merge back as a view. */
START_TEST(rotary_keeps_the_layout)
{
    tn_tensor *packed = random_f64(TN_SHAPE(2, 5, 3 * 3 * 8), -1, 1, 1), *dx;
    tn_tensor *cosine = random_f64(TN_SHAPE(2, 1, 5, 3), -1, 1, 2);
    tn_tensor *sine = random_f64(TN_SHAPE(2, 1, 5, 3), -1, 1, 3);
    tn_tensor *third = tn_reshape(tn_narrow(packed, 2, 24, 24), TN_SHAPE(2, 5, 3, 8));
    tn_tensor *x = leaf(tn_detach(tn_transpose(third, 1, 2)));
    int64_t before = tn_memory().data_allocations;
    tn_tensor *y = tn_rotary(x, cosine, sine, _i);
    ck_assert_int_eq(tn_memory().data_allocations - before, 1);
    ck_assert(tn_is_contiguous(tn_transpose(y, 1, 2)));
    assert_close(y, tn_rotary(tn_contiguous(x), cosine, sine, _i), 0, 0);
    before = tn_memory().data_allocations;
    assert_ok(tn_gradients(1, &y, &y, 1, &x, &dx, 0));
    ck_assert_int_eq(tn_memory().data_allocations - before, 1);
    ck_assert(tn_is_contiguous(tn_transpose(dx, 1, 2)));
}
END_TEST

/* With cos^2 + sin^2 = 1 lengths stay, and turning back by the gradient gives x; what is beyond R
 * stays, bit for bit. */
START_TEST(rotary_turns)
{
    tn_tensor *x = leaf(random_f64(TN_SHAPE(2, 3, 70, 37), -1, 1, 1)), *back;
    tn_tensor *angle = random_f64(TN_SHAPE(70, 16), -7, 7, 2);
    tn_tensor *cosine = tn_cos(angle), *sine = tn_sin(angle);
    tn_tensor *y = tn_rotary(x, cosine, sine, _i);
    assert_close(tn_sum(tn_square(y), TN_AXES(-1), false), tn_sum(tn_square(x), TN_AXES(-1), false),
                 1e-14, 0);
    assert_close(tn_narrow(y, 3, 32, 5), tn_narrow(x, 3, 32, 5), 0, 0);
    ck_assert(tn_max_abs_diff(y, x) > 1);
    assert_ok(tn_gradients(1, &y, &y, 1, &x, &back, 0));
    assert_close(back, x, 1e-14, 1e-15);
    /* the tables get no gradient, and need none */
    assert_ok(tn_set_requires_grad(cosine, true));
    y = tn_rotary(x, cosine, sine, _i);
    assert_ok(tn_backward(tn_sum_all(y)));
    ck_assert(tn_is_none(tn_grad(cosine)) && !tn_is_none(tn_grad(x)));
}
END_TEST

void rows_ops_cases(Suite *suite)
{
    TCase *t = test_case(suite, "ops");
    tcase_add_test(t, AG_06_row_of_minus_infinity);
    tcase_add_test(t, softmax_of_a_single_value);
    tcase_add_loop_test(t, softmax_derivatives_along_a_middle_axis, 0, 2);
    add_tests(t, LS_01_golden, LS_01_other_ignore_index, LS_02_nothing_left, LS_02_refusals,
              LS_03_probabilities, LS_04_gradient, LS_04_ignored_rows_may_hold_anything,
              cross_entropy_layouts_agree);
    tcase_add_loop_test(t, cross_entropy_derivatives, 0, 12);
    tcase_add_loop_test(t, cross_entropy_beside_large_offsets, 0, 3 * OFFSETS);
    tcase_add_test(t, cross_entropy_of_equal_logits);
    tcase_add_loop_test(t, linear_cross_entropy_beside_large_offsets, 0, OFFSETS);
    tcase_add_loop_test(t, logsumexp_beside_large_offsets, 0, OFFSETS);
    tcase_add_loop_test(t, linear_cross_entropy_of_half_floats_rounds_once, 0, 4);
    add_tests(t, kl_div_of_bad_targets, gradients_beside_nan, pow_slope_at_zero, LS_05_other_losses,
              LY_03_golden, layer_norm_with_a_negative_eps, LY_03_derivatives, BN_02_BN_03_golden,
              BN_05_cumulative, BN_06_eval, BN_07_BN_08_absent_statistics,
              BN_09_one_value_changes_nothing, BN_10_edges, BN_11_nan_stays, BN_12_BN_13_gradients);
    tcase_add_loop_test(t, BN_14_derivatives, 0, 2);
    add_tests(t, BN_14_running_statistics_take_no_part, BN_two_forwards_before_one_backward,
              LY_06_dropout, LY_07_embedding);
    tcase_add_loop_test(t, rotary_keeps_the_layout, 0, 2);
    tcase_add_loop_test(t, rotary_turns, 0, 2);
    tcase_add_loop_test(t, indexing_derivatives, 0, 4);
    tcase_add_test(t, one_hot_edges);
}
