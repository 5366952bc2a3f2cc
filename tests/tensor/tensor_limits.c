/*
 * tensor_limits.c - tensors under any call: shapes, axes and targets that a sensible program does
 * not have give what the headers say, or an error that names them, and never touch foreign memory
 * (the sanitizer builds check that).
 *
 * Seen to fail under UBSan: in the message for a convolution's groups, the product of two sizes.
 */
#include "common.h"
#include "tensor_cases.h"

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
                TN_E_SHAPE, "groups 9223372036854775807");
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

TCase *tensor_limits_case(Suite *suite)
{
    TCase *t = test_case(suite, "limits");
    add_tests(t, EX_01_expanded_beyond_any_memory_is_refused, products_made_by_ops_are_refused,
              sizes_beside_one_of_0_have_strides_that_fit);
    tcase_add_loop_test(t, ranks_made_by_hand_are_refused, 0, 5);
    add_tests(t, shape_of_no_sizes_is_refused_on_use, a_failed_size_is_no_wildcard,
              single_values_are_gathered_as_a_row_of_one, expanded_targets_are_refused_by_all);
    return t;
}
