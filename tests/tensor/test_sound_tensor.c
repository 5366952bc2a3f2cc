/*
 * test_sound_tensor.c - tensors under any call: shapes, axes, dtypes, targets and hosts that a
 * sensible program does not have give what the headers say, or an error that names them, and never
 * touch foreign memory (the sanitizer builds check that).
 */
#include "files.h"
#include "scarce.h"

#include <fenv.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIG INT64_C(0x4000000000000000) /* 2^62 */

/* ---- shapes ---------------------------------------------------------------------------------- */

START_TEST(EX_01_expanded_beyond_any_memory_is_refused)
{
    tn_tensor *one = tn_ones(TN_SCALAR);
    tn_tensor *row = tn_ones(TN_SHAPE(3, 1));
    assert_null(tn_expand(one, TN_SHAPE(2, BIG)), TN_E_SHAPE,
                "tn_expand: a tensor of shape [2,4611686018427387904]");
    assert_null(tn_expand(row, TN_SHAPE(3, INT64_C(6148914691236517206))), TN_E_SHAPE,
                "fewer than 2^60 elements");
    assert_null(tn_expand(one, TN_SHAPE(0, BIG)), TN_E_SHAPE, "a size of 0 counts as 1");
    assert_null(tn_expand(one, TN_SHAPE(INT64_C(1) << 60)), TN_E_SHAPE, "tn_expand");
    /* the largest there is, whose bytes as f64 still count */
    tn_tensor *most = tn_expand(one, TN_SHAPE((INT64_C(1) << 60) - 1));
    assert_made(most);
    ck_assert_int_eq(tn_numel(most), (INT64_C(1) << 60) - 1);
}
END_TEST

START_TEST(products_made_by_ops_are_refused)
{
    int64_t half = INT64_C(1) << 31;
    tn_tensor *column = tn_expand(tn_ones(TN_SHAPE(1, 1)), TN_SHAPE(half, 1));
    tn_tensor *row = tn_expand(tn_ones(TN_SHAPE(1, 1)), TN_SHAPE(1, half));
    tn_tensor *many = tn_expand(tn_ones(TN_SCALAR), TN_SHAPE(INT64_C(1) << 59));
    tn_tensor *index = tn_from_ints((int64_t[]){ 0 }, TN_SHAPE(1));
    assert_null(tn_add(column, row), TN_E_SHAPE,
                "tn_add: a result of shape [2147483648,2147483648]");
    assert_null(tn_lt(column, row), TN_E_SHAPE, "tn_lt: a result of shape");
    assert_null(tn_matmul(column, row), TN_E_SHAPE, "tn_matmul: a result of shape");
    assert_null(tn_cat((tn_tensor *[]){ many, many }, 2, 0), TN_E_SHAPE, "tn_cat");
    assert_null(tn_stack((tn_tensor *[]){ many, many }, 2, 0), TN_E_SHAPE, "tn_cat");
    assert_null(tn_repeat(tn_ones(TN_SHAPE(3)), TN_SHAPE(BIG, BIG)), TN_E_SHAPE, "tn_repeat");
    assert_null(tn_repeat(tn_ones(TN_SHAPE(0)), TN_SHAPE(BIG, BIG, 1)), TN_E_SHAPE, "tn_repeat");
    assert_null(tn_one_hot(index, BIG), TN_E_SHAPE, "a tensor of shape");
    assert_null(tn_arange(0, 0x1p62, 1, TN_F32), TN_E_SHAPE, "tn_arange");
    assert_null(tn_linspace(0, 1, INT64_MAX), TN_E_SHAPE, "tn_linspace: a tensor of shape");
    assert_null(tn_eye(INT64_C(1) << 31), TN_E_SHAPE, "tn_eye: a tensor of shape");
    assert_null(tn_randperm(INT64_MAX), TN_E_SHAPE, "tn_randperm: a tensor of shape");
    tn_conv2d_spec wide = { .padding = { INT32_MAX, INT32_MAX } };
    tn_tensor *image = tn_ones(TN_SHAPE(1, 1, 1, 1));
    assert_null(tn_conv2d(image, image, TN_NONE, wide), TN_E_SHAPE, "tn_conv2d: a result of shape");
    assert_null(tn_adaptive_avg_pool2d(image, INT32_MAX, INT32_MAX), TN_E_SHAPE,
                "tn_adaptive_avg_pool2d");
    assert_null(tn_conv2d(image, image, TN_NONE, (tn_conv2d_spec){ .groups = INT64_MAX }),
                TN_E_SHAPE, "groups");
}
END_TEST

START_TEST(sizes_beside_one_of_0_have_strides_that_fit)
{
    tn_tensor *empty = tn_ones(TN_SHAPE(0));
    assert_null(tn_reshape(empty, TN_SHAPE(0, BIG, BIG)), TN_E_SHAPE,
                "tn_reshape: a tensor of shape");
    assert_null(tn_reshape(empty, TN_SHAPE(-1, BIG)), TN_E_SHAPE, "tn_reshape: a tensor of shape");
    assert_null(tn_zeros(TN_SHAPE(BIG, 4, 0)), TN_E_SHAPE, "tn_zeros: a tensor of shape");
    tn_tensor *t = tn_zeros(TN_SHAPE(2, 0, 5));
    /* as PyTorch's */
    ck_assert(tn_stride(t, 0) == 5 && tn_stride(t, 1) == 5 && tn_stride(t, 2) == 1);
}
END_TEST

/* Shapes that tn_shape_from would not make. */
static tn_shape by_hand(int rank)
{
    tn_shape shape = { .rank = rank };
    for (int i = 0; i < TN_MAX_RANK; i++) shape.size[i] = 1;
    return shape;
}

START_TEST(ranks_made_by_hand_are_refused)
{
    static const int ranks[] = { -1, 9, 12, INT32_MAX, INT32_MIN };
    tn_shape shape = by_hand(ranks[_i]);
    tn_tensor *x = tn_ones(TN_SHAPE(1, 1));
    float value[16] = { 0 };
    int64_t whole[16] = { 0 };
    char rank[32];
    snprintf(rank, sizeof rank, "[rank %d]", ranks[_i]);
#define REFUSED(call) assert_null(call, TN_E_SHAPE, rank)
    REFUSED(tn_empty(shape));
    REFUSED(tn_zeros(shape));
    REFUSED(tn_ones(shape));
    REFUSED(tn_full(shape, 2));
    REFUSED(tn_empty_as(shape, TN_U8, tn_cpu()));
    REFUSED(tn_full_as(shape, 2, TN_F64, tn_cpu()));
    REFUSED(tn_from_data(value, shape, TN_F32));
    REFUSED(tn_from_floats(value, shape));
    REFUSED(tn_from_ints(whole, shape));
    REFUSED(tn_from_memory(value, shape, TN_F32, NULL, NULL));
    REFUSED(tn_rand(shape));
    REFUSED(tn_randn(shape));
    REFUSED(tn_rand_as(shape, TN_BF16, tn_cpu()));
    REFUSED(tn_randn_as(shape, TN_F64, tn_cpu()));
    REFUSED(tn_randint(0, 2, shape));
    REFUSED(tn_bernoulli(shape, 0.5));
    REFUSED(tn_reshape(x, shape));
    REFUSED(tn_expand(x, shape));
    REFUSED(tn_repeat(x, shape));
    REFUSED(tn_layer_norm_new(shape, (tn_layer_norm_options){ 0 }));
#undef REFUSED
}
END_TEST

START_TEST(shape_of_no_sizes_is_refused_on_use)
{
    ck_assert_int_eq(tn_shape_from(2, NULL).rank, -1);
    ck_assert_int_eq(tn_shape_from(9, (int64_t[9]){ 0 }).rank, -1);
    ck_assert_int_eq(tn_shape_from(-3, NULL).rank, -1);
    ck_assert_int_eq(tn_shape_from(0, NULL).rank, 0);
    assert_null(tn_ones(tn_shape_from(2, NULL)), TN_E_SHAPE,
                "tn_ones: a tensor of shape [rank -1]");
}
END_TEST

START_TEST(a_failed_size_is_no_wildcard)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 3));
    ck_assert_int_eq(tn_size(x, 2), TN_NO_SIZE);
    /* the first failure is reported */
    assert_null(tn_reshape(x, TN_SHAPE(tn_size(x, 7), 3)), TN_E_INDEX, "tn_size: axis 7");
    assert_null(tn_reshape(x, TN_SHAPE(2, tn_size(NULL, 0))), TN_E_INVALID, "tn_size: t is NULL");
    assert_null(tn_reshape(x, TN_SHAPE(tn_numel(NULL))), TN_E_INVALID, "tn_numel: t is NULL");
    assert_null(tn_expand(x, TN_SHAPE(tn_size(x, 9), 3)), TN_E_INDEX, "tn_size: axis 9");
    assert_null(tn_zeros(TN_SHAPE(tn_size(x, 9))), TN_E_INDEX, "tn_size: axis 9");
    assert_null(tn_slice(x, 0, 0, tn_size(x, 9), 1), TN_E_INDEX, "tn_size: axis 9");
    /* with nothing pending it says itself what it got */
    assert_null(tn_reshape(x, TN_SHAPE(TN_NO_SIZE, 3)), TN_E_INVALID, "a failed tn_size");
    assert_null(tn_slice(x, 0, TN_NO_SIZE, 1, 1), TN_E_INVALID, "a failed tn_size");
    /* nor is a size computed from it a wildcard */
    assert_null(tn_reshape(x, TN_SHAPE(tn_size(x, 9) / 2, 3)), TN_E_SHAPE, "tn_reshape");
    tn_error_clear();
    assert_null(tn_reshape(x, TN_SHAPE(tn_size(x, 9) * tn_size(x, 0))), TN_E_SHAPE, "tn_reshape");
    ck_assert_int_eq(tn_rank(tn_reshape(x, TN_SHAPE(-1))), 1);
}
END_TEST

/* ---- axes ------------------------------------------------------------------------------------ */

START_TEST(single_values_are_gathered_as_a_row_of_one)
{
    tn_tensor *x = tn_scalar(3);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *zero = tn_from_ints((int64_t[]){ 0 }, TN_SCALAR);
    tn_tensor *zeros = tn_from_ints((int64_t[]){ 0, 0, 0 }, TN_SHAPE(3));
    tn_tensor *one = tn_from_ints((int64_t[]){ 0 }, TN_SHAPE(1));
    tn_tensor *far = tn_from_ints((int64_t[]){ 100000000 }, TN_SHAPE(1));
    for (int axis = -1; axis <= 0; axis++) {
        tn_tensor *y = tn_gather(x, axis, zero);
        ck_assert_int_eq(tn_rank(y), 0);
        ck_assert_double_eq(tn_item(y), 3);
        y = tn_gather(x, axis, zeros);
        assert_values(y, 0, 3, 3, 3);
        assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
        ck_assert_double_eq(tn_item(tn_grad(x)), 3); /* each of three adds 1 */
        assert_ok(tn_set_grad(x, TN_NONE));
        y = tn_index_select(x, axis, one);
        ck_assert_int_eq(tn_rank(y), 0);
        ck_assert_double_eq(tn_item(y), 3);
        y = tn_scatter_add(x, axis, zeros, tn_ones(TN_SHAPE(3)));
        ck_assert_int_eq(tn_rank(y), 0);
        ck_assert_double_eq(tn_item(y), 6);
        assert_null(tn_gather(x, axis, far), TN_E_INDEX, "100000000");
        assert_null(tn_index_select(x, axis, far), TN_E_INDEX, "100000000");
        assert_null(tn_scatter_add(x, axis, far, tn_ones(TN_SHAPE(1))), TN_E_INDEX, "100000000");
    }
    assert_null(tn_index_select(x, 0, zeros), TN_E_SHAPE,
                "tn_index_select: index [3] of a single value: want [1]");
    assert_null(tn_gather(x, 1, zero), TN_E_INDEX, "tn_gather: axis 1 of a tensor of rank 0");
}
END_TEST

/* ---- pooling --------------------------------------------------------------------------------- */

START_TEST(OK_01_windows_in_the_padding_alone_are_refused)
{
    tn_pool2d_spec spec = { .kernel = { 2, 2 }, .padding = { 1, 1 }, .dilation = { 2, 2 } };
    tn_tensor *x = tn_ones(TN_SHAPE(1, 1, 1, 1));
    assert_ok(tn_set_requires_grad(x, true));
    assert_null(tn_max_pool2d(x, spec), TN_E_SHAPE,
                "tn_max_pool2d: x [1,1,1,1], kernel 2, padding 1, dilation 2: window 0 along axis "
                "2 lies in the "
                "padding alone");
    assert_null(tn_max_pool2d(tn_ones(TN_SHAPE(1, 1, 2, 1)), spec), TN_E_SHAPE,
                "window 0 along axis 3");
    /* a stride that jumps over the image, where ceil_mode lets it: the only window starts at -2, 1,
     * 4, 7, 10 */
    tn_pool2d_spec leaps = { .kernel = { 5, 1 },
                             .stride = { 20, 1 },
                             .padding = { 2, 0 },
                             .dilation = { 3, 1 },
                             .ceil_mode = true };
    assert_null(tn_max_pool2d(tn_ones(TN_SHAPE(1, 1, 1, 1)), leaps), TN_E_SHAPE,
                "window 0 along axis 2");
    assert_made(tn_max_pool2d(tn_ones(TN_SHAPE(1, 1, 2, 1)), leaps));
    /* two pixels: each window sees one of them, and its gradient goes there */
    tn_tensor *two = tn_from_floats((float[]){ 1, 2, 3, 4 }, TN_SHAPE(1, 1, 2, 2));
    assert_ok(tn_set_requires_grad(two, true));
    spec.stride[0] = spec.stride[1] = 1;
    tn_tensor *y = tn_max_pool2d(two, spec); /* rows -1 and 1, then 0 and 2 */
    assert_values(y, 0, 4, 3, 2, 1);
    assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
    assert_values(tn_grad(two), 0, 1, 1, 1, 1);
}
END_TEST

/* ---- promotion ------------------------------------------------------------------------------- */

static const tn_dtype dtypes[] = {
    TN_BOOL, TN_U8, TN_I32, TN_I64, TN_F16, TN_BF16, TN_F32, TN_F64
};

/* The rule in PyTorch's words: bool < integer < float; a tensor without axes counts only where its
 * kind is the higher one; otherwise the wider of two, f32 for two short floats. dtypes[] stand in
 * order of width. */
static int kind(int d)
{
    return d == 0 ? 0 : d < 4 ? 1 : 2;
}

static int wider(int a, int b)
{
    return (a == 4 && b == 5) || (a == 5 && b == 4) ? 6 : a > b ? a : b;
}

START_TEST(PR_01_single_values_promote_by_kind)
{
    for (int f = 0; f < 8; f++)
        for (int s = 0; s < 8; s++) {
            tn_tensor *full = tn_full_as(TN_SHAPE(3), 1, dtypes[f], tn_cpu());
            tn_tensor *single = tn_full_as(TN_SCALAR, 1, dtypes[s], tn_cpu());
            tn_tensor *row = tn_full_as(TN_SHAPE(1), 1, dtypes[s], tn_cpu());
            tn_tensor *yes = tn_full_as(TN_SCALAR, 1, TN_BOOL, tn_cpu());
            tn_dtype by_kind = dtypes[kind(s) > kind(f) ? wider(f, s) : f],
                     plain = dtypes[wider(f, s)];
            tn_tensor *results[] = { tn_add(full, single),        tn_add(single, full),
                                     tn_mul(full, single),        tn_maximum(single, full),
                                     tn_where(yes, full, single), tn_where(yes, single, full) };
            for (int k = 0; k < COUNT(results); k++)
                ck_assert_msg(results[k] && tn_dtype_of(results[k]) == by_kind,
                              "%d: %s[3] with %s[]: %s, not %s", k, tn_dtype_name(dtypes[f]),
                              tn_dtype_name(dtypes[s]),
                              results[k] ? tn_dtype_name(tn_dtype_of(results[k])) : tn_error(),
                              tn_dtype_name(by_kind));
            /* with axes, or both without, as ever */
            ck_assert_int_eq(tn_dtype_of(tn_add(full, row)), plain);
            ck_assert_int_eq(
                tn_dtype_of(
                    tn_sum(tn_eq(tn_add(tn_reshape(row, TN_SCALAR), tn_select(full, 0, 0)), row),
                           NULL, 0, false)),
                TN_I64);
            ck_assert_int_eq(tn_dtype_of(tn_mul(tn_select(full, 0, 0), single)), plain);
        }
}
END_TEST

START_TEST(single_values_count_in_the_dtype_of_both)
{
    tn_tensor *bytes = tn_full_as(TN_SHAPE(2), 44, TN_U8, tn_cpu());
    tn_tensor *far = tn_full_as(TN_SCALAR, 300, TN_I64, tn_cpu()); /* 44 modulo 256 */
    assert_values(tn_eq(bytes, far), 0, 1, 1);
    assert_values(tn_lt(far, bytes), 0, 0, 0);
    assert_values(tn_add(bytes, far), 0, 88, 88);
    assert_values(tn_maximum(bytes, far), 0, 44, 44);
    /* in f32, from what they are */
    assert_values(tn_div(bytes, far), 1e-6, 44.0 / 300, 44.0 / 300);
    tn_tensor *tenth = tn_full_as(TN_SHAPE(1), 0.1, TN_F32, tn_cpu());
    tn_tensor *precise = tn_full_as(TN_SCALAR, 0.1, TN_F64, tn_cpu());
    assert_values(tn_eq(tenth, precise), 0, 1);
    assert_values(tn_eq(tenth, tn_reshape(precise, TN_SHAPE(1))), 0, 0);
    assert_values(tn_masked_fill(bytes, tn_full_as(TN_SCALAR, 1, TN_BOOL, tn_cpu()), 7), 0, 7, 7);
    /* a higher kind widens */
    tn_tensor *whole = tn_full_as(TN_SHAPE(1), 3, TN_I64, tn_cpu());
    assert_values(tn_mul(whole, tn_full_as(TN_SCALAR, 0.5, TN_F32, tn_cpu())), 0, 1.5);
    assert_values(tn_lt(whole, tn_full_as(TN_SCALAR, 3.5, TN_F64, tn_cpu())), 0, 1);
}
END_TEST

START_TEST(gradients_keep_the_dtype_of_a_single_value)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(3), 2, TN_F32, tn_cpu()),
              *s = tn_full_as(TN_SCALAR, 5, TN_F64, tn_cpu());
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_set_requires_grad(s, true));
    tn_tensor *y = tn_div(tn_mul(x, s), tn_maximum(s, x));
    ck_assert_int_eq(tn_dtype_of(y), TN_F32);
    assert_ok(tn_backward(tn_sum(y, NULL, 0, false))); /* y = x: s cancels */
    ck_assert_int_eq(tn_dtype_of(tn_grad(x)), TN_F32);
    ck_assert_int_eq(tn_dtype_of(tn_grad(s)), TN_F64);
    assert_values(tn_grad(x), 1e-6, 1, 1, 1);
    assert_values(tn_grad(s), 1e-6, 0);
    tn_tensor *target = tn_full_as(TN_SHAPE(2), 1, TN_F32, tn_cpu());
    assert_ok(tn_add_(target, tn_full_as(TN_SCALAR, 2, TN_F64, tn_cpu())));
    ck_assert_int_eq(tn_dtype_of(target), TN_F32);
    assert_values(target, 0, 3, 3);
}
END_TEST

/* ---- random numbers -------------------------------------------------------------------------- */

START_TEST(RN_08_uniform_numbers_stay_below_the_end)
{
    tn_dtype dtype = _i ? TN_F16 : TN_BF16;
    tn_manual_seed(1);
    tn_tensor *t = tn_rand_as(TN_SHAPE(100000), dtype, tn_cpu());
    tn_manual_seed(1);
    tn_tensor *u = tn_rand_as(TN_SHAPE(100000), TN_F32, tn_cpu());
    /* what is left of 1 - 2^-9, 1 - 2^-12 and up is 1 */
    tn_tensor *rounded = tn_to_dtype(u, dtype);
    ck_assert_double_eq(tn_item(tn_amax(rounded, NULL, 0, false)), 1);
    ck_assert_double_lt(tn_item(tn_amax(t, NULL, 0, false)), 1);
    /* such a one is 0, the others as they were */
    tn_tensor *reached = tn_eq_scalar(rounded, 1);
    ck_assert_double_eq(tn_max_abs_diff(t, tn_masked_fill(rounded, reached, 0)), 0);
    t = tn_empty_as(TN_SHAPE(100000), dtype, tn_cpu());
    assert_ok(tn_uniform_(t, -3, 3));
    ck_assert_double_lt(tn_item(tn_amax(t, NULL, 0, false)), 3);
    ck_assert_double_ge(tn_item(tn_amin(t, NULL, 0, false)), -3);
    assert_ok(tn_uniform_(t, 2, 2));
    ck_assert_double_eq(tn_item(tn_amin(t, NULL, 0, false)), 2);
}
END_TEST

/* PyTorch 2.15's drawing of truncated normals, value by value, from the same stream. */
static void truncated(double *x, int n, double mean, double deviation, double low, double high,
                      bool normal)
{
    double top = (fmax(low, fmin(mean, high)) - mean) / deviation;
    bool pending[64], any = true;
    for (int i = 0; i < n; i++) pending[i] = true;
    while (any) {
        tn_tensor *fresh = tn_empty_as(TN_SHAPE(n), TN_F64, tn_cpu());
        assert_ok(normal ? tn_normal_(fresh, mean, deviation) : tn_uniform_(fresh, low, high));
        tn_tensor *u = tn_empty_as(TN_SHAPE(n), TN_F64, tn_cpu());
        if (!normal) assert_ok(tn_uniform_(u, 0, 1));
        any = false;
        for (int64_t i = 0; i < n; i++) {
            if (!pending[i]) continue;
            x[i] = tn_at(fresh, &i, 1);
            double z = (x[i] - mean) / deviation;
            pending[i] = normal ? x[i] < low || x[i] > high
                                : log(tn_at(u, &i, 1)) > -0.5 * z * z + 0.5 * top * top;
            any |= pending[i];
        }
    }
}

START_TEST(TR_01_truncated_normals_are_drawn_by_refusing)
{
    static const struct {
        double mean, deviation, low, high;
        bool normal; /* more than 0.3 lies inside */
    } cuts[] = { { 0.5, 2, -1, 2, true },
                 { 0, 1, -2, 2, true },
                 { 0, 1, 1, 3, false },
                 { 0, 1, -50, -49, false } };
    for (int k = 0; k < COUNT(cuts); k++) {
        tn_tensor *t = tn_empty_as(TN_SHAPE(5, 8), TN_F64, tn_cpu());
        tn_manual_seed(7);
        assert_ok(tn_init_truncated_normal(t, cuts[k].mean, cuts[k].deviation, cuts[k].low,
                                           cuts[k].high));
        tn_manual_seed(7);
        double want[40];
        truncated(want, 40, cuts[k].mean, cuts[k].deviation, cuts[k].low, cuts[k].high,
                  cuts[k].normal);
        for (int64_t i = 0; i < 40; i++)
            ck_assert_double_eq_tol(tn_at(t, TN_INDEX(i / 8, i % 8)), want[i], 1e-12);
    }
    /* cuts that hardly any uniform number passes terminate too, and hold */
    tn_tensor *t = tn_empty(TN_SHAPE(1000));
    assert_ok(tn_init_truncated_normal(t, 0, 1, 3, 1e9));
    ck_assert_double_ge(tn_item(tn_amin(t, NULL, 0, false)), 3);
    ck_assert_double_lt(tn_item(tn_amax(t, NULL, 0, false)), 8);
    assert_ok(tn_init_truncated_normal(t, 0, 1, 3, INFINITY));
    ck_assert_double_ge(tn_item(tn_amin(t, NULL, 0, false)), 3);
    assert_fails(tn_init_truncated_normal(t, NAN, 1, 3, 4), TN_E_INVALID, "mean nan");
    assert_fails(tn_init_truncated_normal(t, 0, INFINITY, 3, 4), TN_E_INVALID, "deviation inf");
}
END_TEST

/* The k-th allocation fails, for every k: the generator and the target are what they were. */
START_TEST(failed_draws_draw_nothing)
{
    scarce_install();
    tn_tensor *t = tn_zeros(TN_SHAPE(700)),
              *narrow = tn_full_as(TN_SHAPE(700), 0, TN_BF16, tn_cpu());
    uint64_t hash = tn_hash(t), hash_narrow = tn_hash(narrow);
    unsigned char before[TN_GENERATOR_STATE_SIZE], after[TN_GENERATOR_STATE_SIZE];
    for (int which = 0; which < 5; which++) {
        bool done = false;
        for (int64_t k = 0; !done; k++) {
            tn_scope scope = tn_scope_begin();
            tn_memory_trim();
            tn_generator_get_state(tn_default_generator(), before);
            scarce_allow(k);
            switch (which) {
            case 0: done = tn_init_truncated_normal(t, 0, 1, -1, 1) == TN_OK; break;
            case 1: done = tn_init_truncated_normal(t, 0, 1, 2, 3) == TN_OK; break;
            case 2: done = tn_init_truncated_normal(t, 0, 1, 3, 1e9) == TN_OK; break;
            case 3: done = tn_uniform_(narrow, 0, 1) == TN_OK; break;
            case 4: done = tn_rand_as(TN_SHAPE(700), TN_F16, tn_cpu()) != NULL; break;
            }
            scarce_allow(INT64_MAX);
            tn_generator_get_state(tn_default_generator(), after);
            if (!done) {
                ck_assert_msg(memcmp(before, after, sizeof before) == 0, "%d, allocation %d", which,
                              (int)k);
                ck_assert(tn_hash(t) == hash && tn_hash(narrow) == hash_narrow);
                assert_error(TN_E_NOMEM, "out of memory");
            }
            tn_scope_end(scope);
            ck_assert_int_lt(k, 2000);
        }
        ck_assert(memcmp(before, after, sizeof before) != 0);
        assert_ok(tn_zero_(t));
        assert_ok(tn_zero_(narrow));
    }
}
END_TEST

/* ---- targets of in-place changes ------------------------------------------------------------- */

START_TEST(expanded_targets_are_refused_by_all)
{
    tn_tensor *one = tn_ones(TN_SHAPE(1)), *other = tn_ones(TN_SHAPE(3)),
              *x = tn_expand(one, TN_SHAPE(3));
    tn_tensor *mask = tn_full_as(TN_SHAPE(3), 1, TN_BOOL, tn_cpu());
    float values[3] = { 1, 2, 3 };
#define REFUSED(call)                                                                              \
    assert_fails(call, TN_E_INVALID, "target [3] is an expanded view, axis 0 is one element")
    REFUSED(tn_add_(x, other));
    REFUSED(tn_sub_(x, other));
    REFUSED(tn_mul_(x, other));
    REFUSED(tn_div_(x, other));
    REFUSED(tn_add_scalar_(x, 1));
    REFUSED(tn_mul_scalar_(x, 2));
    REFUSED(tn_lerp_(x, other, 0.5));
    REFUSED(tn_clamp_(x, 0, 1));
    REFUSED(tn_masked_fill_(x, mask, 1));
    REFUSED(tn_copy_(x, other));
    REFUSED(tn_fill_(x, 2));
    REFUSED(tn_zero_(x));
    REFUSED(tn_uniform_(x, 0, 1));
    REFUSED(tn_normal_(x, 0, 1));
    REFUSED(tn_copy_in(x, values, sizeof values, TN_F32));
    REFUSED(tn_init_uniform(x, 0, 1));
    REFUSED(tn_init_normal(x, 0, 1));
    REFUSED(tn_init_constant(x, 2));
    REFUSED(tn_init_truncated_normal(x, 0, 1, -2, 2));
#undef REFUSED
    ck_assert(tn_data_mut(x) == NULL);
    assert_error(TN_E_SHAPE, "tn_data_mut");
    tn_tensor *batch = tn_ones(TN_SHAPE(2, 3, 4, 4)), *var = tn_ones(TN_SHAPE(3));
    assert_null(tn_batch_norm(batch, TN_NONE, TN_NONE, x, var, true, 0.1, 1e-5), TN_E_INVALID,
                "tn_batch_norm: target [3] is an expanded view");
    assert_null(tn_batch_norm(batch, TN_NONE, TN_NONE, var, x, true, 0.1, 1e-5), TN_E_INVALID,
                "expanded view");
    assert_made(tn_batch_norm(batch, TN_NONE, TN_NONE, x, x, false, 0.1, 1e-5)); /* read only */
    assert_values(one, 0, 1);
    assert_values(var, 0, 1, 1, 1);
    ck_assert_int_eq(tn_version(one), 0);
}
END_TEST

/* ---- the allocator --------------------------------------------------------------------------- */

static int64_t foreign; /* blocks that were freed and are not its own */
static int64_t owned;

static void *own_alloc(void *user, size_t size)
{
    (void)user;
    owned++;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static void own_free(void *user, void *block, size_t size)
{
    (void)user, (void)size;
    foreign += --owned < 0;
    free(block);
}

/* without the fixture's scope */
START_TEST(allocator_stays_while_anything_is_alive)
{
    static const tn_allocator own = { own_alloc, own_free, NULL };
    tn_error_clear();
    assert_ok(tn_set_allocator(&own));
    assert_ok(tn_set_allocator(NULL));
    tn_scope scope = tn_scope_begin();
    assert_fails(tn_set_allocator(&own), TN_E_STATE,
                 "bytes in use, 0 tensors alive: want every scope closed");
    tn_scope_end(scope);
    tn_module *m = tn_relu_new(); /* no tensor at all */
    assert_fails(tn_set_allocator(&own), TN_E_STATE, "every object freed");
    tn_module_drop(m);
    tn_generator *g = tn_generator_new(1);
    assert_fails(tn_set_allocator(&own), TN_E_STATE, "every object freed");
    tn_generator_free(g);
    assert_ok(tn_set_allocator(&own));
    scope = tn_scope_begin();
    assert_made(tn_ones(TN_SHAPE(1000)));
    assert_fails(tn_set_allocator(NULL), TN_E_STATE, "1 tensors alive");
    tn_scope_end(scope);
    assert_ok(tn_set_allocator(NULL));
    ck_assert_int_eq(owned, 0);
    ck_assert_int_eq(foreign, 0);
}
END_TEST

/* ---- the host -------------------------------------------------------------------------------- */

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__i386__))
static void train_a_little(bool f16)
{
    tn_module *m = tn_sequential(tn_conv2d_new(1, 4, 3, (tn_conv2d_options){ .padding = 1 }),
                                 tn_batch_norm2d_new(4, (tn_batch_norm_options){ 0 }),
                                 tn_relu_new(), tn_flatten_new(1, -1), tn_dropout_new(0.2),
                                 tn_linear_new(4 * 6 * 6, 3, (tn_linear_options){ 0 }));
    tn_list *list = tn_parameters(m);
    tn_optim *opt = tn_adamw(list, (tn_adamw_options){ .lr = 1e-2 });
    tn_scaler *scaler = tn_scaler_new((tn_scaler_options){ 0 });
    tn_scheduler *cosine = tn_cosine_lr(opt, 3, 0);
    assert_made(cosine);
    for (int step = 0; step < 3; step++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = tn_randn(TN_SHAPE(8, 1, 6, 6)), *y = tn_randint(0, 3, TN_SHAPE(8)),
                  *loss = NULL;
        TN_AUTOCAST(f16 ? TN_F16 : TN_F32) loss = tn_cross_entropy(tn_forward(m, x), y);
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(tn_scaler_scale(scaler, loss)));
        assert_ok(tn_scaler_unscale(scaler, opt));
        tn_clip_grad_norm(list, 1, 2, false);
        assert_ok(tn_scaler_step(scaler, opt));
        assert_ok(tn_scaler_update(scaler));
        assert_ok(tn_scheduler_step(cosine));
        ck_assert(tn_format(loss, NULL, 0) > 0);
        tn_scope_end(scope);
    }
    tn_scheduler_free(cosine);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_drop(m);
}

/* Infinities, NaN and what makes them, in every way of computing there is. */
static void compute_the_exceptional(void)
{
    tn_tensor *x = tn_from_floats((float[]){ 0, -1, INFINITY, NAN, 3e38f }, TN_SHAPE(5)), *index;
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *all[] = { tn_log(x),
                         tn_sqrt(x),
                         tn_div(x, x),
                         tn_exp(x),
                         tn_reciprocal(x),
                         tn_mul(x, x),
                         tn_softmax(x, 0),
                         tn_div_scalar(x, 0),
                         tn_pow_scalar(x, -0.5),
                         tn_rsqrt(x),
                         tn_maximum(x, tn_neg(x)),
                         tn_cumsum(x, 0),
                         tn_to_dtype(x, TN_F16),
                         tn_gelu(x),
                         tn_max(x, 0, false, &index),
                         tn_logsumexp(x, NULL, 0, false),
                         tn_std(x, NULL, 0, 5, false),
                         tn_mean(tn_zeros(TN_SHAPE(0)), NULL, 0, false),
                         tn_clamp(x, 0, INFINITY) };
    for (int k = 0; k < COUNT(all); k++) {
        assert_made(all[k]);
        if (tn_requires_grad(all[k]))
            assert_ok(tn_backward(tn_sum(tn_to_dtype(all[k], TN_F32), NULL, 0, false)));
    }
    assert_made(tn_gt(x, tn_zeros(TN_SHAPE(5))));
    assert_made(tn_lt_scalar(x, NAN));
    assert_made(tn_full(TN_SHAPE(2), NAN));
    assert_made(tn_to_dtype(tn_full_as(TN_SHAPE(100), 1e300, TN_F64, tn_cpu()), TN_F32));
    assert_made(tn_linspace(-1e308, 1e308, 3));
    tn_tensor *t = tn_ones(TN_SHAPE(4));
    assert_ok(tn_fill_(t, INFINITY));
    assert_ok(tn_mul_scalar_(t, 0));
    assert_ok(tn_div_(t, tn_zeros(TN_SHAPE(4))));
    float out[5];
    assert_ok(
        tn_copy_out(tn_full_as(TN_SHAPE(5), 1e300, TN_F64, tn_cpu()), out, sizeof out, TN_F32));
    ck_assert(isnan(tn_item(tn_select(x, 0, 3))));
    ck_assert(tn_format(x, NULL, 0) > 0 && isnan(tn_max_abs_diff(x, t)));
    tn_tensor *q = tn_full(TN_SHAPE(1, 2, 4), INFINITY);
    assert_made(tn_scaled_dot_product_attention(
        q, q, q, tn_full_as(TN_SHAPE(2, 2), 1, TN_BOOL, tn_cpu()), false, 0));
    assert_made(tn_matmul(q, tn_transpose(q, 1, 2)));
    assert_ok(tn_init_truncated_normal(t, 0, 1, 3, INFINITY));
}

START_TEST(hosts_that_trap_survive)
{
    const int traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    tn_set_num_threads(1 + _i);
    feclearexcept(FE_ALL_EXCEPT);
    ck_assert_int_ne(feenableexcept(traps), -1);
    train_a_little(false);
    train_a_little(true);
    compute_the_exceptional();
    int still = fegetexcept(), raised = fetestexcept(traps);
    fedisableexcept(traps);
    ck_assert_int_eq(still & traps, traps);
    ck_assert_int_eq(raised, 0); /* the flags we raised do not reach the host */
}
END_TEST
#endif

#ifdef __GLIBC__
/* A locale with a decimal comma and nothing else, in glibc's format: magic number, six fields and
 * their offsets (decimal point, separator, grouping, the two as wide characters, character set). */
static bool use_a_comma(void)
{
    static const unsigned char numeric[] = {
        0x14, 0x11, 0x03, 0x20, 6, 0, 0, 0,    0x20, 0, 0,   0,    0x22, 0,   0,   0,   0x23,
        0,    0,    0,    0x24, 0, 0, 0, 0x28, 0,    0, 0,   0x2c, 0,    0,   0,   ',', 0,
        0,    0,    ',',  0,    0, 0, 0, 0,    0,    0, 'U', 'T',  'F',  '-', '8', 0,
    };
    char path[1024];
    snprintf(path, sizeof path, "%s", in_folder("comma"));
    mkdir(path, 0700);
    FILE *file = fopen(in_folder("comma/LC_NUMERIC"), "wb");
    ck_assert(file && fwrite(numeric, sizeof numeric, 1, file) == 1 && fclose(file) == 0);
    snprintf(path, sizeof path, "%s", in_folder(""));
    setenv("LOCPATH", path, 1);
    return setlocale(LC_NUMERIC, "comma") && localeconv()->decimal_point[0] == ',';
}

static char *text_of(const char *path)
{
    static char text[200000];
    FILE *file = fopen(path, "rb");
    ck_assert(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* A trace in every way it is told, and a graph, of a model whose layers say numbers. */
static void write_traced(FILE *file)
{
    tn_module *m = tn_sequential(
        tn_linear_new(2, 2, (tn_linear_options){ 0 }),
        tn_layer_norm_new(TN_SHAPE(2), (tn_layer_norm_options){ .eps = .5 }), tn_dropout_new(0.25));
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .model = m, .opt = opt });
    tn_tensor *loss = tn_mean_all(tn_forward(m, tn_full(TN_SHAPE(3, 2), .5)));
    assert_ok(tn_graph_dot(file, loss, (tn_graph_options){ .model = m }));
    assert_ok(tn_backward(loss));
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_trace_end(trace));
    loss = tn_mean_all(tn_forward(m, tn_full(TN_SHAPE(3, 2), .5)));
    assert_ok(tn_explain(file, loss, (tn_explain_options){ .model = m }));
    assert_ok(tn_trace_text(file, trace));
    assert_ok(tn_trace_diff(file, trace, trace));
    assert_ok(tn_trace_html(file, &trace, 1));
    assert_ok(tn_trace_json(file, trace));
    tn_trace_free(trace);
    tn_optim_free(opt);
    tn_module_drop(m);
}

/* What is written in the comma's locale is what is written in C's. */
static void with_a_point(const char *name, void (*write)(FILE *file))
{
    char *text[2];
    for (int comma = 0; comma < 2; comma++) {
        setlocale(LC_NUMERIC, comma ? "comma" : "C");
        tn_manual_seed(1);
        FILE *file = fopen(in_folder(name), "w");
        ck_assert(file != NULL);
        write(file);
        fclose(file);
        text[comma] = strdup(text_of(in_folder(name)));
    }
    ck_assert_msg(strcmp(text[0], text[1]) == 0, "%s is not the same", name);
    for (int comma = 0; comma < 2; comma++) free(text[comma]);
}

START_TEST(numbers_have_a_point_in_every_locale)
{
    if (!use_a_comma()) return; /* a libc that does not take such a file */
    char text[200];
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5"); /* the host's own numbers keep its format */
    ck_assert(tn_format(tn_from_floats((float[]){ 0.5f, 1.25f }, TN_SHAPE(2)), text, sizeof text) >
              0);
    ck_assert_str_eq(text, "[0.5000, 1.2500]  f32 [2]");
    FILE *file = fopen(in_folder("print"), "w");
    assert_ok(tn_fprint(file, tn_full(TN_SHAPE(1), 2.5)));
    tn_module *dropout = tn_sequential(tn_dropout_new(0.25));
    assert_ok(tn_module_summary(file, dropout));
    tn_module_drop(dropout);
    fclose(file);
    const char *written = text_of(in_folder("print"));
    ck_assert_msg(strstr(written, "2.5000") && strstr(written, "0.25") && !strstr(written, "0,25"),
                  "%s", written);
    fflush(stdout);
    int was = dup(STDOUT_FILENO);
    ck_assert(freopen(in_folder("stdout"), "w", stdout) != NULL);
    assert_ok(tn_print(tn_full(TN_SHAPE(1), 2.5)));
    fflush(stdout);
    dup2(was, STDOUT_FILENO);
    close(was);
    ck_assert_str_eq(text_of(in_folder("stdout")), "[2.5000]  f32 [1]\n");
    with_a_point("traced", write_traced);
    assert_null(tn_bernoulli(TN_SHAPE(2), 1.5), TN_E_INVALID, "p 1.5");
    const double x[] = { 0, 0.25, 0.5 }, y[] = { 0.125, 2.5, 1.75 };
    const tn_curve curve = { "loss", 3, x, y };
    assert_ok(tn_plot_svg(in_folder("plot.svg"), "t", "x", "y", &curve, 1));
    written = text_of(in_folder("plot.svg"));
    for (const char *p = written; *p; p++)
        ck_assert_msg(!(p[0] == ',' && p > written && p[-1] >= '0' && p[-1] <= '9' && p[1] >= '0' &&
                        p[1] <= '9'),
                      "a decimal comma: %.40s", p - (p - written > 20 ? 20 : p - written));
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5");
    setlocale(LC_NUMERIC, "C");
}
END_TEST
#endif

Suite *test_suite(void)
{
    Suite *suite = suite_create("sound_tensor");
    TCase *shapes = test_case(suite, "shapes");
    tcase_add_test(shapes, EX_01_expanded_beyond_any_memory_is_refused);
    tcase_add_test(shapes, products_made_by_ops_are_refused);
    tcase_add_test(shapes, sizes_beside_one_of_0_have_strides_that_fit);
    tcase_add_loop_test(shapes, ranks_made_by_hand_are_refused, 0, 5);
    tcase_add_test(shapes, shape_of_no_sizes_is_refused_on_use);
    tcase_add_test(shapes, a_failed_size_is_no_wildcard);
    TCase *axes = test_case(suite, "axes");
    tcase_add_test(axes, single_values_are_gathered_as_a_row_of_one);
    TCase *values = test_case(suite, "values");
    tcase_add_test(values, OK_01_windows_in_the_padding_alone_are_refused);
    tcase_add_test(values, PR_01_single_values_promote_by_kind);
    tcase_add_test(values, single_values_count_in_the_dtype_of_both);
    tcase_add_test(values, gradients_keep_the_dtype_of_a_single_value);
    tcase_add_loop_test(values, RN_08_uniform_numbers_stay_below_the_end, 0, 2);
    tcase_add_test(values, TR_01_truncated_normals_are_drawn_by_refusing);
    tcase_add_test(values, failed_draws_draw_nothing);
    tcase_add_test(values, expanded_targets_are_refused_by_all);
    TCase *alone = tcase_create("allocator");
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, allocator_stays_while_anything_is_alive);
    TCase *host = file_case(suite, "host");
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__i386__))
    tcase_add_loop_test(host, hosts_that_trap_survive, 0, 2);
#endif
#ifdef __GLIBC__
    tcase_add_test(host, numbers_have_a_point_in_every_locale);
#endif
    return suite;
}
