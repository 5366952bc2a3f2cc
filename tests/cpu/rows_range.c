/*
 * rows_range.c - norms, deviations, normalisation and clipping of numbers whose squares leave the
 * dtype's range, or that lie far from 0: values, first and second derivatives.
 *
 * What is measured: f(s x) = s^d f(x) for a power of two s, so f64 of ordinary x says what must
 * come out. Seen to fail before sums of squares were taken again in double (isa/reduce.c, mend):
 * every function of `degrees` at its largest and smallest s, tn_std in f16, clipping of f16;
 * without widen: means_whose_sum_leaves_the_range.
 */
#include <float.h>

#include "files.h"
#include "rows.h"

static tn_tensor *leaf(tn_tensor *t)
{
    assert_made(t);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* ---- f(s x) = s^d f(x) ----------------------------------------------------------------------- */

static int axis;
#define OF(name, ...)                                                                              \
    static tn_tensor *name(tn_tensor *x)                                                           \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
OF(norm_2, tn_norm(x, 2, &axis, 1, false))
OF(norm_3, tn_norm(x, 3, &axis, 1, false))
OF(norm_100, tn_norm(x, 100, &axis, 1, false))
OF(norm_half, tn_norm(x, .5, &axis, 1, true))
OF(var, tn_var(x, &axis, 1, 1, false))
OF(deviation, tn_std(x, &axis, 1, 0, false))
OF(layer_norm, tn_layer_norm(tn_transpose(x, axis, 2), 1, TN_NONE, TN_NONE, 0))
OF(rms_norm, tn_rms_norm(tn_transpose(x, axis, 2), 1, TN_NONE, 0))
OF(group_norm, tn_group_norm(tn_transpose(x, axis, 0), 1, TN_NONE, TN_NONE, 0))
/* planes, or columns */
static tn_tensor *batch_norm(tn_tensor *x)
{
    x = tn_transpose(x, axis, 1);
    if (axis == 0) x = tn_cat((tn_tensor *[]){ x, x, x }, 3, 2);
    return tn_batch_norm(x, TN_NONE, TN_NONE, TN_NONE, TN_NONE, true, 0.1, 0);
}

typedef struct homogeneous {
    const char *name;
    tn_tensor *(*f)(tn_tensor *x);
    int degree;
} homogeneous;

static const homogeneous degrees[] = {
    { "norm 2", norm_2, 1 },         { "norm 3", norm_3, 1 },     { "norm 100", norm_100, 1 },
    { "norm 1/2", norm_half, 1 },    { "var", var, 2 },           { "std", deviation, 1 },
    { "layer_norm", layer_norm, 0 }, { "rms_norm", rms_norm, 0 }, { "group_norm", group_norm, 0 },
    { "batch_norm", batch_norm, 0 },
};

typedef struct measured {
    tn_tensor *y, *fused, *g, *h; /* with and without a graph; of g's sum by weights */
} measured;

static measured measure(const homogeneous *f, tn_tensor *x)
{
    measured m;
    m.y = f->f(x);
    assert_made(m.y);
    tn_tensor *w = random_as(tn_shape_get(m.y), -1, 1, 3, tn_dtype_of(x));
    assert_ok(tn_gradients(1, &m.y, &w, 1, &x, &m.fused, TN_RETAIN_GRAPH));
    assert_ok(tn_gradients(1, &m.y, &w, 1, &x, &m.g, TN_CREATE_GRAPH));
    tn_tensor *v = random_as(tn_shape_get(x), -1, 1, 4, tn_dtype_of(x));
    assert_ok(tn_gradients(1, &m.g, &v, 1, &x, &m.h, 0));
    return m;
}

static void near(const homogeneous *f, const char *what, tn_tensor *is, tn_tensor *want,
                 int exponent, double tolerance)
{
    tn_tensor *unscaled = tn_mul_scalar(tn_detach(tn_to_dtype(is, TN_F64)), ldexp(1, exponent));
    double largest = tn_item(tn_max_all(tn_abs(want)));
    double off = tn_max_abs_diff(unscaled, tn_detach(want));
    ck_assert_msg(off <= tolerance * largest, "%s of %s, axis %d: off by %g of %g", what, f->name,
                  axis, off, largest);
}

static const struct {
    tn_dtype dtype;
    int exponent, for_var;
    double tolerance;
} scales[] = {
    { TN_F32, 70, 60, 1e-5 },     { TN_F32, 120, 60, 1e-5 },     { TN_F32, -85, -60, 1e-5 },
    { TN_BF16, 70, 60, 3e-2 },    { TN_BF16, -85, -60, 3e-2 },   { TN_F64, 700, 400, 1e-13 },
    { TN_F64, 1000, 400, 1e-13 }, { TN_F64, -700, -400, 1e-13 }, { TN_F32, -58, -60, 1e-5 },
    { TN_BF16, -58, -60, 3e-2 },  { TN_F64, -500, -400, 1e-13 },
};

START_TEST(squares_out_of_range)
{
    const homogeneous *f = &degrees[_i / COUNT(scales)];
    int k = _i % COUNT(scales), d = f->degree;
    int e = d == 2 ? scales[k].for_var : scales[k].exponent;
    tn_dtype t = scales[k].dtype;
    for (axis = 0; axis < 3; axis++) {
        for (int layout = 0; layout < 3; layout++) {
            tn_tensor *plain = random_as(TN_SHAPE(3, 4, 5), -1, 1, 7, t);
            tn_tensor *x = tn_mul_scalar(plain, ldexp(1, e));
            if (layout == 1) x = as_transposed(x);
            if (layout == 2) x = as_strided(x);
            measured is = measure(f, leaf(x));
            measured want = measure(f, leaf(tn_to_dtype(plain, TN_F64)));
            near(f, "value", is.y, want.y, -d * e, scales[k].tolerance);
            if (f->f == norm_100 && t == TN_BF16) continue; /* y's rounding, to the power of 99 */
            near(f, "gradient", is.fused, want.fused, (1 - d) * e, scales[k].tolerance);
            near(f, "recorded gradient", is.g, want.g, (1 - d) * e, scales[k].tolerance);
            if (abs((2 - d) * e) <= (t == TN_F64 ? 1000 : 120)) /* the result is in t's range */
                near(f, "second derivative", is.h, want.h, (2 - d) * e, scales[k].tolerance * 10);
        }
    }
}
END_TEST

/* ---- by themselves --------------------------------------------------------------------------- */

/* Results beside one that is taken again stay as they are; so do infinity, NaN and 0. */
START_TEST(each_row_by_itself)
{
    float x[] = { 3e20f, 4e20f, 3, 4, 0, 0, INFINITY, 1, NAN, 1, 3e-25f, 4e-25f, 3e-42f, 4e-42f };
    tn_tensor *rows = tn_from_floats(x, TN_SHAPE(7, 2)), *columns;
    columns = tn_contiguous(tn_transpose(rows, 0, 1));
    for (int axis_of = 0; axis_of < 2; axis_of++) {
        tn_tensor *y = tn_norm(axis_of ? rows : columns, 2, &axis_of, 1, false);
        ck_assert(tn_at(y, TN_INDEX(1)) == 5 && tn_at(y, TN_INDEX(2)) == 0);
        ck_assert(isinf(tn_at(y, TN_INDEX(3))) && isnan(tn_at(y, TN_INDEX(4))));
        ck_assert_float_eq_tol((float)tn_at(y, TN_INDEX(0)), 5e20f, 1e14f);
        ck_assert_float_eq_tol((float)tn_at(y, TN_INDEX(5)), 5e-25f, 1e-31f);
        ck_assert_float_eq_tol((float)tn_at(y, TN_INDEX(6)), 5e-42f, 3e-45f);
    }
}
END_TEST

START_TEST(deviations_are_not_rounded_as_variances)
{
    tn_tensor *x = tn_from_floats((float[]){ 100, 1000, 2000, 3000 }, TN_SHAPE(4));
    double got = tn_item(tn_std(tn_to_dtype(x, TN_F16), NULL, 0, 1, false));
    ck_assert_double_eq_tol(got, 1253, .51);
    tn_tensor *h = leaf(tn_to_dtype(x, TN_F16)), *g, *y = tn_std(h, NULL, 0, 1, false);
    tn_tensor *dy = tn_to_dtype(tn_full(tn_shape_from(0, NULL), 30000), TN_F16);
    assert_ok(tn_gradients(1, &y, &dy, 1, &h, &g, 0));
    ck_assert_double_eq_tol(tn_at(g, TN_INDEX(3)), 30000 * 1475 / 3. / 1253, 10);
    x = tn_from_floats((float[]){ 1e20f, -1e20f }, TN_SHAPE(2));
    ck_assert_double_eq_tol(tn_item(tn_std(x, NULL, 0, 0, false)), 1e20, 1e14);
}
END_TEST

/* inf - inf is NaN; other rows are as without one. As PyTorch and NumPy. Was infinite. */
START_TEST(deviations_from_an_infinite_mean)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    tn_tensor *x =
        from_f64((double[]){ -0.0, INFINITY, 1, 3, 1, 2, -INFINITY, 1, INFINITY }, TN_SHAPE(3, 3));
    x = tn_to_dtype(x, dtypes[_i]);
    for (int columns = 0; columns < 2; columns++) {
        tn_tensor *t = columns ? tn_contiguous(tn_transpose(x, 0, 1)) : x;
        int along = !columns;
        tn_tensor *v = tn_var(t, &along, 1, 1, false), *s = tn_std(t, &along, 1, 1, false);
        for (int row = 0; row < 3; row++) {
            double var_of = tn_at(v, TN_INDEX(row)), std_of = tn_at(s, TN_INDEX(row));
            ck_assert(row == 1 ? var_of == 1 && std_of == 1 : isnan(var_of) && isnan(std_of));
        }
    }
}
END_TEST

/* Of a row with the largest number, whose deviation's inverse is denormal, as of x 2^-100. */
START_TEST(layer_norm_slope_of_the_largest_number)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16 };
    bool f64 = dtypes[_i] == TN_F64;
    double s = f64 ? 0x1p1023 : 0x1p127, down = f64 ? 0x1p-1000 : 0x1p-100;
    tn_tensor *dy = from_f64((double[]){ 40, -30, 20, 70 }, TN_SHAPE(1, 4)), *g[2];
    dy = tn_to_dtype(dy, dtypes[_i]);
    for (int i = 0; i < 2; i++) {
        double k = i ? s * down : s, row[] = { k, 0, 1, -k };
        tn_tensor *x = leaf(tn_to_dtype(from_f64(row, TN_SHAPE(1, 4)), dtypes[_i]));
        tn_tensor *w = leaf(tn_to_dtype(tn_full(TN_SHAPE(4), 3), dtypes[_i]));
        tn_tensor *y = tn_layer_norm(x, 1, w, TN_NONE, 0), *of[2];
        assert_ok(tn_gradients(1, &y, &dy, 2, (tn_tensor *[]){ x, w }, of, 0));
        g[i] = tn_to_dtype(of[0], TN_F64);
        ck_assert(isfinite(tn_at(of[1], TN_INDEX(0))));
    }
    ck_assert(tn_at(g[1], TN_INDEX(0, 0)) != 0);
    g[1] = tn_mul_scalar(g[1], down);
    assert_close(tn_mul_scalar(g[0], s), tn_mul_scalar(g[1], s), 1e-2, 1e-2);
}
END_TEST

/* dx = 2 dy x, not dy (2 x), which overflows; so is the mean of squares, recorded too. */
START_TEST(a_square_has_no_infinite_slope)
{
    for (int recorded = 0; recorded < 2; recorded++) {
        tn_tensor *x = leaf(from_f64((double[]){ DBL_MAX, 0, 0, 0 }, TN_SHAPE(4))), *g;
        tn_tensor *y = tn_mse_loss(x, tn_zeros_like(x), TN_MEAN);
        assert_ok(tn_gradients(1, &y, NULL, 1, &x, &g, recorded ? TN_CREATE_GRAPH : 0));
        ck_assert(tn_at(g, TN_INDEX(0)) == DBL_MAX / 2);
    }
}
END_TEST

/* ---- far from 0 ------------------------------------------------------------------------------ */

/* 1e7 + {0, 1, 2, 3} and others of that spread, along each axis of each layout. */
START_TEST(a_mean_is_not_rounded)
{
    tn_dtype t = (tn_dtype[]){ TN_F32, TN_F64, TN_BF16, TN_F16 }[_i];
    double far = (double[]){ 1e7, 1e7, 256, 2048 }[_i], step = (double[]){ 1, 1, 2, 2 }[_i];
    for (axis = 0; axis < 3; axis++) {
        for (int layout = 0; layout < 3; layout++) {
            tn_shape shape = TN_SHAPE(2, 2, 2);
            shape.size[axis] = 4;
            tn_tensor *at = tn_arange(0, 4, 1, TN_F64), *want = at;
            want = tn_expand(tn_reshape(at, axis == 0   ? TN_SHAPE(4, 1, 1)
                                            : axis == 1 ? TN_SHAPE(1, 4, 1)
                                                        : TN_SHAPE(1, 1, 4)),
                             shape);
            tn_tensor *x = tn_to_dtype(tn_add_scalar(tn_mul_scalar(want, step), far), t);
            if (layout == 1) x = as_transposed(x);
            if (layout == 2) x = as_strided(x);
            leaf(x);
            tn_tensor *v = tn_var(x, &axis, 1, 1, false);
            ck_assert_double_eq_tol(tn_item(tn_max_all(v)), 5. / 3 * step * step, .02);
            ck_assert_double_eq_tol(tn_item(tn_min_all(v)), 5. / 3 * step * step, .02);
            tn_tensor *y = tn_std(x, &axis, 1, 1, false), *g;
            ck_assert_double_eq_tol(tn_item(tn_max_all(y)), sqrt(5. / 3) * step, .02);
            for (int flags = t == TN_F32; flags < 2; flags++) { /* as in PyTorch, f32 rounds it */
                tn_tensor *ones = tn_ones_like(v);
                assert_ok(tn_gradients(1, &v, &ones, 1, &x, &g,
                                       TN_RETAIN_GRAPH | (flags ? TN_CREATE_GRAPH : 0)));
                ck_assert_double_eq_tol(tn_item(tn_max_all(g)), step, .01);
                ck_assert_double_eq_tol(tn_item(tn_min_all(g)), -step, .01);
            }
            tn_tensor *n = tn_layer_norm(tn_transpose(x, axis, 2), 1, TN_NONE, TN_NONE, 0);
            ck_assert_double_eq_tol(tn_item(tn_max_all(n)), 1.5 / sqrt(1.25), .01);
            ck_assert_double_eq_tol(tn_item(tn_min_all(n)), -1.5 / sqrt(1.25), .01);
        }
    }
}
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

static const struct {
    tn_dtype dtype;
    double a, b, p, norm;
} clipped[] = {
    { TN_F32, 3e20, 4e20, 2, 5e20 },    { TN_F32, 3e-25, 4e-25, 2, 5e-25 },
    { TN_F64, 3e200, 4e200, 2, 5e200 }, { TN_F64, 3e-200, 4e-200, 2, 5e-200 },
    { TN_F32, 3e5, 4e5, 100, 4e5 },     { TN_F16, 60000, 60000, 2, 84852.8 },
    { TN_BF16, 3e20, 4e20, 2, 5e20 },   { TN_BF16, 1, 1.0078125, 2, 1.41975 },
};

/* In one gradient, and in two; by the host, and without a wait. */
START_TEST(CL_05_clipping_out_of_range)
{
    double a = clipped[_i].a, b = clipped[_i].b, p = clipped[_i].p, norm = clipped[_i].norm;
    bool narrow = tn_dtype_size(clipped[_i].dtype) == 2;
    for (int how = 0; how < 4; how++) {
        int n = 1 + how / 2;
        tn_list *l = tn_list_new();
        tn_tensor *w[2], *g = from_f64((double[]){ a, b }, TN_SHAPE(2));
        g = tn_to_dtype(g, clipped[_i].dtype);
        for (int i = 0; i < n; i++) {
            w[i] = leaf(tn_to_dtype(tn_zeros(TN_SHAPE(2 / n)), clipped[_i].dtype));
            assert_ok(tn_set_grad(w[i], tn_clone(n == 1 ? g : tn_narrow(g, 0, i, 1))));
            assert_ok(tn_list_add(l, i ? "b" : "a", w[i]));
        }
        double to = norm / 4;
        double is = how % 2 ? tn_item(tn_clip_grad_norm_tensor(l, to, p))
                            : tn_clip_grad_norm(l, to, p, true);
        ck_assert_msg(fabs(is - norm) <= norm * (narrow ? 5e-3 : 1e-6), "%d: %g", how, is);
        double factor = to / (norm + 1e-6), got = tn_at(tn_grad(w[0]), TN_INDEX(0));
        ck_assert_msg(fabs(got - factor * a) <= factor * a * (narrow ? 8e-3 : 1e-6) + 1e-45,
                      "%d: %g", how, got);
    }
}
END_TEST

/* In f32 and bf16, by rows and by columns: the sum leaves the range, the mean does not; so the
 * slope of a deviation, (x - mean) / (n y), is a number. Rows of others, and infinities, stay. */
START_TEST(means_whose_sum_leaves_the_range)
{
    enum { N = 3, TIMES = 16 };
    tn_dtype dtype = _i & 1 ? TN_BF16 : TN_F32;
    int axis = _i & 2 ? 0 : 1;
    const float rows[4][N] = {
        { 3e38f, 3e38f, 0 }, { -3e38f, -3e38f, -3e38f }, { 1, 2, 6 }, { INFINITY, 3e38f, 3e38f }
    };
    tn_tensor *x = tn_to_dtype(tn_from_floats(&rows[0][0], TN_SHAPE(4, N)), dtype);
    x = tn_repeat(x, TN_SHAPE(1, TIMES)); /* by columns a few numbers meet in a sum, not three */
    leaf(x = axis == 0 ? tn_contiguous(tn_transpose(x, 0, 1)) : x);
    tn_tensor *mean = tn_to_dtype(tn_mean(x, &axis, 1, false), TN_F64);
    assert_values(tn_narrow(mean, 0, 0, 3), dtype == TN_F32 ? 1e32 : 2e36, 2e38, -3e38, 3);
    ck_assert(tn_at(mean, TN_INDEX(3)) == (double)INFINITY);
    tn_tensor *y = tn_narrow(tn_std(x, &axis, 1, 0, false), 0, 0, 1), *g;
    assert_ok(tn_gradients(1, &y, NULL, 1, &x, &g, 0));
    tn_tensor *slope = tn_to_dtype(tn_narrow(tn_select(g, 1 - axis, 0), 0, 0, N), TN_F64);
    double s = sqrt(0.5) / (N * TIMES); /* (1, 1, -2) e38 over N TIMES sqrt 2 e38 */
    assert_values(slope, dtype == TN_F32 ? 1e-7 : 2e-4, s, s, -2 * s);
}
END_TEST

void rows_range_cases(Suite *suite)
{
    TCase *t = test_case(suite, "scaled");
    tcase_add_loop_test(t, squares_out_of_range, 0, COUNT(degrees) * COUNT(scales));
    t = test_case(suite, "values");
    tcase_add_test(t, each_row_by_itself);
    tcase_add_test(t, deviations_are_not_rounded_as_variances);
    tcase_add_loop_test(t, deviations_from_an_infinite_mean, 0, 4);
    tcase_add_loop_test(t, layer_norm_slope_of_the_largest_number, 0, 3);
    tcase_add_test(t, a_square_has_no_infinite_slope);
    tcase_add_loop_test(t, a_mean_is_not_rounded, 0, 4);
    tcase_add_loop_test(t, means_whose_sum_leaves_the_range, 0, 4);
    tcase_add_loop_test(t, CL_05_clipping_out_of_range, 0, COUNT(clipped));
}
