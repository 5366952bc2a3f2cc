/*
 * test_tensor.c - tensors as values: creation, views, promotion, reading, writing, comparing. What
 * no sensible program does is in tensor_limits.c, what the host decides in tensor_host.c.
 *
 * Seen to fail: in src/tensor/create.c, linspace computed from the start alone; in
 * src/autograd/ops/view.c, slice_spec's offset without the axis' stride; in src/tensor/tensor.c,
 * TN_F16 and TN_BF16 promoted to f16.
 */
#include "files.h"
#include "series_cases.h"
#include "tensor_cases.h"

/* ---- creation -------------------------------------------------------------------------------- */

START_TEST(filled_tensors)
{
    assert_values(tn_zeros(TN_SHAPE(2, 2)), 0, 0, 0, 0, 0);
    assert_values(tn_ones(TN_SHAPE(3)), 0, 1, 1, 1);
    assert_values(tn_full(TN_SHAPE(1, 2), -2.5), 0, -2.5, -2.5);
    tn_tensor *t = tn_scalar(4);
    ck_assert_int_eq(tn_rank(t), 0);
    ck_assert_int_eq(tn_numel(t), 1);
    ck_assert_double_eq(tn_item(t), 4);
    ck_assert_int_eq(tn_numel(tn_empty(TN_SHAPE(5, 0, 2))), 0);
    ck_assert(isnan(tn_item(tn_scalar(NAN))) && isinf(tn_item(tn_scalar(-INFINITY))));
}
END_TEST

START_TEST(filled_in_every_dtype)
{
    tn_dtype dtype = (tn_dtype)_i;
    tn_tensor *t = tn_full_as(TN_SHAPE(2, 3), 1, dtype, tn_cpu());
    assert_made(t);
    ck_assert_int_eq(tn_dtype_of(t), dtype);
    assert_values(t, 0, 1, 1, 1, 1, 1, 1);
    assert_values(tn_zeros_like(t), 0, 0, 0, 0, 0, 0, 0);
    assert_values(tn_ones_like(t), 0, 1, 1, 1, 1, 1, 1);
    ck_assert_int_eq(tn_dtype_of(tn_empty_like(t)), dtype);
}
END_TEST

START_TEST(filled_with_what_a_dtype_holds)
{
    assert_values(tn_full_as(TN_SHAPE(2), -2.9, TN_I64, tn_cpu()), 0, -2, -2);
    assert_values(tn_full_as(TN_SHAPE(1), 255.5, TN_U8, tn_cpu()), 0, 255);
    assert_values(tn_full_as(TN_SHAPE(1), 0.25, TN_BOOL, tn_cpu()), 0, 1);
    assert_values(tn_full_as(TN_SHAPE(1), -2147483648.0, TN_I32, tn_cpu()), 0, -2147483648.0);
    assert_null(tn_full_as(TN_SHAPE(1), 256, TN_U8, tn_cpu()), TN_E_INVALID,
                "tn_full_as: value 256");
    assert_null(tn_full_as(TN_SHAPE(1), -1, TN_U8, tn_cpu()), TN_E_INVALID, "u8");
    assert_null(tn_full_as(TN_SHAPE(1), 2147483648.0, TN_I32, tn_cpu()), TN_E_INVALID, "i32");
    assert_null(tn_full_as(TN_SHAPE(1), 0x1p63, TN_I64, tn_cpu()), TN_E_INVALID, "i64");
    assert_null(tn_full_as(TN_SHAPE(1), NAN, TN_I64, tn_cpu()), TN_E_INVALID, "nan");
}
END_TEST

START_TEST(like_forms_are_row_major)
{
    tn_tensor *t = tn_transpose(tn_full_as(TN_SHAPE(2, 3), 7, TN_F64, tn_cpu()), 0, 1);
    tn_tensor *y = tn_full_like(t, 2);
    ck_assert(tn_is_contiguous(y) && !tn_is_contiguous(t));
    ck_assert_int_eq(tn_size(y, 0), 3);
    ck_assert_int_eq(tn_dtype_of(y), TN_F64);
    assert_values(y, 0, 2, 2, 2, 2, 2, 2);
    assert_null(tn_zeros_like(TN_NONE), TN_E_INVALID, "tn_zeros_like: t is TN_NONE");
    assert_null(tn_zeros_like(NULL), TN_E_INVALID, "tn_zeros_like: t is NULL");
}
END_TEST

START_TEST(arange)
{
    assert_values(tn_arange(0, 5, 1, TN_I64), 0, 0, 1, 2, 3, 4);
    assert_values(tn_arange(1, 2, 0.25, TN_F32), 0, 1, 1.25, 1.5, 1.75);
    assert_values(tn_arange(5, 0, -2, TN_I32), 0, 5, 3, 1);
    assert_values(tn_arange(0, 1, 0.3, TN_F64), 1e-15, 0, 0.3, 0.6, 0.9);
    assert_values(tn_arange(0, 2.5, 1, TN_I64), 0, 0, 1, 2);
    assert_values(tn_arange(0, 4, 1, TN_BF16), 0, 0, 1, 2, 3);
    ck_assert_int_eq(tn_numel(tn_arange(3, 3, 1, TN_F32)), 0);
    /* longer than the block it is made in, and exact beyond 2^24 and 2^53 */
    tn_tensor *t = tn_arange(0, 1000, 1, TN_F32);
    for (int64_t i = 0; i < 1000; i++) ck_assert_double_eq(tn_at(t, &i, 1), (double)i);
    t = tn_arange(0x1p60, 0x1p60 + 1024, 256, TN_I64);
    ck_assert_int_eq(((const int64_t *)tn_data(t))[3], (INT64_C(1) << 60) + 768);
}
END_TEST

/* Every value, bit for bit. */
#define assert_series(made, array)                                                                 \
    do {                                                                                           \
        tn_tensor *series_ = (made);                                                               \
        assert_made(series_);                                                                      \
        ck_assert_int_eq(tn_numel(series_), (int)(sizeof(array) / sizeof *(array)));               \
        for (int64_t i_ = 0; i_ < tn_numel(series_); i_++)                                         \
            ck_assert_double_eq(tn_at(series_, &i_, 1), (double)(array)[i_]);                      \
    } while (0)

START_TEST(series_are_PyTorchs)
{
    assert_series(tn_linspace(-0.7, 1.9, 24), linspace_f32);
    assert_series(tn_arange(-1, -1 + 36.5 / 3, 1.0 / 3, TN_F32), arange_f32);
    assert_series(tn_arange(-1, -1 + 18.5 / 3, 1.0 / 3, TN_F64), arange_f64);
    assert_series(tn_arange(-1, -1 + 68.5 / 3, 1.0 / 3, TN_BF16), arange_bf16);
    assert_series(tn_arange(-1, -1 + 68.5 / 3, 1.0 / 3, TN_F16), arange_f16);
    assert_ok(tn_set_default_dtype(TN_F64));
    assert_series(tn_linspace(-0.7, 1.9, 24), linspace_f64);
    assert_ok(tn_set_default_dtype(TN_F32));
    /* a step that f32 cannot hold: ours stay finite, PyTorch's do not */
    assert_values(tn_linspace(-3e38, 3e38, 3), 1e31, -3e38, 0, 3e38);
}
END_TEST

START_TEST(arange_errors)
{
    assert_null(tn_arange(0, 5, 0, TN_F32), TN_E_INVALID, "tn_arange: from 0 to 5 by 0");
    assert_null(tn_arange(0, 5, -1, TN_F32), TN_E_INVALID, "other sign");
    assert_null(tn_arange(5, 0, 1, TN_F32), TN_E_INVALID, "other sign");
    assert_null(tn_arange(0, INFINITY, 1, TN_F32), TN_E_INVALID, "finite");
    assert_null(tn_arange(NAN, 1, 1, TN_F32), TN_E_INVALID, "finite");
    assert_null(tn_arange(0, 1e300, 1, TN_F32), TN_E_SHAPE, "tn_arange: 1e+300 values");
    if (!TEST_ASAN) /* whose allocator ends the program */
        assert_null(tn_arange(0, 0x1p52, 1, TN_F32), TN_E_NOMEM, "out of memory");
    assert_null(tn_arange(0.5, 4, 1, TN_I64), TN_E_DTYPE, "whole numbers");
    assert_null(tn_arange(0, 300, 1, TN_U8), TN_E_INVALID, "u8 can hold");
    assert_null(tn_arange(0, 2, 1, TN_BOOL), TN_E_DTYPE, "bool");
    assert_null(tn_arange(0, 2, 1, (tn_dtype)99), TN_E_DTYPE, "number type");
    /* beyond i64, of a dtype that does not exist: no conversion may happen (UBSan) */
    assert_null(tn_full_as(TN_SHAPE(1), -9.3e18, (tn_dtype)99, tn_cpu()), TN_E_DTYPE, "99");
}
END_TEST

START_TEST(linspace)
{
    assert_values(tn_linspace(0, 1, 5), 0, 0, 0.25, 0.5, 0.75, 1);
    assert_values(tn_linspace(3, -3, 3), 0, 3, 0, -3);
    assert_values(tn_linspace(2, 9, 1), 0, 2);
    ck_assert_int_eq(tn_numel(tn_linspace(0, 1, 0)), 0);
    /* both ends exact, and the series mirrors itself */
    assert_ok(tn_set_default_dtype(TN_F64));
    tn_tensor *t = tn_linspace(-0.1, 0.1, 1001);
    const double *x = tn_data(t);
    for (int i = 0; i <= 1000; i++) ck_assert_double_eq(x[i], i == 500 ? x[i] : -x[1000 - i]);
    ck_assert(x[0] == -0.1 && x[1000] == 0.1);
    assert_ok(tn_set_default_dtype(TN_F32));
    assert_null(tn_linspace(0, 1, -1), TN_E_INVALID, "tn_linspace: -1 values");
}
END_TEST

START_TEST(eye)
{
    assert_values(tn_eye(3), 0, 1, 0, 0, 0, 1, 0, 0, 0, 1);
    ck_assert_int_eq(tn_numel(tn_eye(0)), 0);
    assert_null(tn_eye(-1), TN_E_INVALID, "tn_eye: size -1");
    assert_null(tn_eye(INT64_C(1) << 40), TN_E_SHAPE, "tn_eye");
}
END_TEST

START_TEST(from_the_callers_arrays)
{
    float values[] = { 1, 2, 3, 4 };
    tn_tensor *t = tn_from_floats(values, TN_SHAPE(2, 2));
    values[0] = 9; /* it was copied */
    assert_values(t, 0, 1, 2, 3, 4);
    t = tn_from_ints((int64_t[]){ INT64_MAX, -1 }, TN_SHAPE(2));
    ck_assert(((const int64_t *)tn_data(t))[0] == INT64_MAX);
    t = tn_from_data((unsigned char[]){ 0, 1, 2, 255 }, TN_SHAPE(4), TN_BOOL);
    assert_values(t, 0, 0, 1, 1, 1);
    ck_assert_int_eq(((const unsigned char *)tn_data(t))[3], 1);
    ck_assert_int_eq(tn_numel(tn_from_floats(NULL, TN_SHAPE(0, 2))), 0);
    assert_null(tn_from_floats(NULL, TN_SHAPE(2)), TN_E_INVALID, "tn_from_floats: data is NULL");
    assert_null(tn_from_data(values, TN_SHAPE(2), (tn_dtype)77), TN_E_DTYPE, "dtype 77");
}
END_TEST

START_TEST(impossible_shapes)
{
    int64_t nine[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    assert_null(tn_zeros(TN_SHAPE(2, -1)), TN_E_SHAPE, "[2,-1]");
    assert_null(tn_zeros(tn_shape_from(9, nine)), TN_E_SHAPE, "8 axes");
    assert_null(tn_empty(TN_SHAPE(INT64_MAX, 2)), TN_E_SHAPE, "2^60");
    assert_null(tn_empty(TN_SHAPE(INT64_MAX)), TN_E_SHAPE, "2^60");
    assert_null(tn_empty(TN_SHAPE(INT64_C(1) << 31, INT64_C(1) << 31)), TN_E_SHAPE, "2^60");
    assert_null(tn_rand(TN_SHAPE(-3)), TN_E_SHAPE, "[-3]");
    ck_assert_int_eq(tn_shape_from(8, nine).rank, 8);
}
END_TEST

START_TEST(default_dtype)
{
    ck_assert_int_eq(tn_default_dtype(), TN_F32);
    assert_ok(tn_set_default_dtype(TN_F64));
    ck_assert_int_eq(tn_dtype_of(tn_zeros(TN_SHAPE(1))), TN_F64);
    ck_assert_int_eq(tn_dtype_of(tn_eye(2)), TN_F64);
    ck_assert_int_eq(tn_dtype_of(tn_randn(TN_SHAPE(1))), TN_F64);
    ck_assert_int_eq(tn_dtype_of(tn_from_floats((float[]){ 1 }, TN_SHAPE(1))), TN_F32);
    assert_fails(tn_set_default_dtype(TN_I64), TN_E_DTYPE, "tn_set_default_dtype: got i64");
    ck_assert_int_eq(tn_default_dtype(), TN_F64);
    assert_ok(tn_set_default_dtype(TN_F32));
}
END_TEST

/* ---- views ----------------------------------------------------------------------------------- */

static tn_tensor *count(tn_shape shape) /* 0, 1, 2, ... */
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.size[i];
    return tn_reshape(tn_arange(0, (double)n, 1, TN_F32), shape);
}

START_TEST(reshape)
{
    tn_tensor *x = count(TN_SHAPE(2, 3, 4));
    tn_tensor *y = tn_reshape(x, TN_SHAPE(4, -1));
    ck_assert(tn_same_storage(x, y));
    ck_assert_int_eq(tn_size(y, 1), 6);
    ck_assert_double_eq(tn_at(y, TN_INDEX(3, 5)), 23);
    ck_assert_int_eq(tn_rank(tn_reshape(tn_ones(TN_SHAPE(1, 1)), TN_SCALAR)), 0);
    ck_assert_int_eq(tn_size(tn_reshape(tn_ones(TN_SHAPE(0, 3)), TN_SHAPE(7, 0)), 0), 7);
    /* strides allow it: the outer axes of a narrowed tensor join, its inner ones do not */
    tn_tensor *part = tn_narrow(x, 2, 1, 2);
    ck_assert(tn_same_storage(tn_reshape(part, TN_SHAPE(6, 2)), x));
    ck_assert(!tn_same_storage(tn_reshape(part, TN_SHAPE(12)), x));
    assert_values(tn_reshape(part, TN_SHAPE(12)), 0, 1, 2, 5, 6, 9, 10, 13, 14, 17, 18, 21, 22);
    assert_values(tn_reshape(tn_transpose(count(TN_SHAPE(2, 3)), 0, 1), TN_SHAPE(-1)), 0, 0, 3, 1,
                  4, 2, 5);
    assert_null(tn_reshape(x, TN_SHAPE(5, -1)), TN_E_SHAPE, "tn_reshape: [2,3,4] to [5,-1]");
    assert_null(tn_reshape(x, TN_SHAPE(-1, -1)), TN_E_SHAPE, "tn_reshape");
    assert_null(tn_reshape(x, TN_SHAPE(2, 3)), TN_E_SHAPE, "tn_reshape");
    assert_null(tn_reshape(tn_ones(TN_SHAPE(0)), TN_SHAPE(0, -1)), TN_E_SHAPE, "tn_reshape");
    assert_null(tn_reshape(NULL, TN_SHAPE(1)), TN_E_INVALID, "tn_reshape");
}
END_TEST

START_TEST(flatten_squeeze_unsqueeze)
{
    tn_tensor *x = count(TN_SHAPE(2, 1, 3, 1));
    tn_shape s = tn_shape_get(tn_flatten(x, 1, -1));
    ck_assert(s.rank == 2 && s.size[0] == 2 && s.size[1] == 3);
    ck_assert_int_eq(tn_rank(tn_squeeze(x, 1)), 3);
    ck_assert_int_eq(tn_rank(tn_squeeze(x, 0)), 4);
    ck_assert_int_eq(tn_rank(tn_squeeze_all(x)), 2);
    s = tn_shape_get(tn_unsqueeze(tn_squeeze_all(x), -1));
    ck_assert(s.rank == 3 && s.size[2] == 1);
    ck_assert_int_eq(tn_rank(tn_flatten(tn_scalar(1), 0, -1)), 1);
    assert_null(tn_flatten(x, 2, 1), TN_E_INDEX, "tn_flatten: axes 2 to 1");
    assert_null(tn_squeeze(x, 4), TN_E_INDEX, "tn_squeeze: axis 4");
    assert_null(tn_unsqueeze(x, 5), TN_E_INDEX, "axis");
    assert_null(tn_unsqueeze(tn_ones(TN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)), 0), TN_E_SHAPE, "8");
}
END_TEST

START_TEST(transpose_and_permute)
{
    tn_tensor *x = count(TN_SHAPE(2, 3, 4));
    tn_tensor *y = tn_permute(x, TN_AXES(2, 0, -2));
    ck_assert(tn_same_storage(x, y));
    ck_assert(tn_size(y, 0) == 4 && tn_size(y, 1) == 2 && tn_size(y, 2) == 3);
    ck_assert(tn_stride(y, 0) == 1 && tn_stride(y, 1) == 12 && tn_stride(y, 2) == 4);
    ck_assert_double_eq(tn_at(y, TN_INDEX(3, 1, 2)), 23);
    assert_values(tn_transpose(count(TN_SHAPE(2, 3)), 0, -1), 0, 0, 3, 1, 4, 2, 5);
    ck_assert(tn_is_contiguous(tn_transpose(count(TN_SHAPE(1, 5)), 0, 1)));
    assert_null(tn_permute(x, TN_AXES(0, 1, 1)), TN_E_INDEX, "tn_permute: axis 1 twice");
    assert_null(tn_permute(x, TN_AXES(0, 1, 3)), TN_E_INDEX, "tn_permute: axis 3");
    assert_null(tn_permute(x, TN_AXES(1, 0)), TN_E_SHAPE, "tn_permute: 2 axes for [2,3,4]: want 3");
    assert_null(tn_permute(x, NULL, 0), TN_E_SHAPE, "tn_permute: 0 axes for [2,3,4]: want 3");
    ck_assert_int_eq(tn_rank(tn_permute(tn_ones(TN_SCALAR), NULL, 0)), 0);
    assert_null(tn_transpose(x, 0, -4), TN_E_INDEX, "tn_transpose: axis -4");
}
END_TEST

START_TEST(expand)
{
    tn_tensor *x = count(TN_SHAPE(2, 1));
    tn_tensor *y = tn_expand(x, TN_SHAPE(3, -1, 2));
    ck_assert(tn_same_storage(x, y));
    assert_values(y, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1);
    ck_assert(tn_stride(y, 0) == 0 && tn_stride(y, 2) == 0);
    ck_assert_int_eq(tn_numel(tn_expand(x, TN_SHAPE(2, 0))), 0);
    assert_values(tn_expand(tn_scalar(3), TN_SHAPE(2, 2)), 0, 3, 3, 3, 3);
    assert_null(tn_expand(x, TN_SHAPE(3, 1)), TN_E_SHAPE, "tn_expand: [2,1] to [3,1]");
    assert_null(tn_expand(x, TN_SHAPE(2)), TN_E_SHAPE, "tn_expand");
    assert_null(tn_expand(x, TN_SHAPE(-1, 2, 1)), TN_E_SHAPE, "tn_expand");
}
END_TEST

START_TEST(slice_select_narrow)
{
    tn_tensor *x = count(TN_SHAPE(3, 5));
    assert_values(tn_slice(x, 1, 1, 5, 2), 0, 1, 3, 6, 8, 11, 13);
    assert_values(tn_slice(x, 0, -2, 100, 1), 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    ck_assert_int_eq(tn_size(tn_slice(x, 1, 4, 2, 1), 1), 0);
    ck_assert_int_eq(tn_size(tn_slice(x, 1, -100, -100, 1), 1), 0);
    ck_assert_int_eq(tn_size(tn_slice(x, 0, 0, 3, INT64_MAX), 0), 1);
    assert_values(tn_select(x, 0, -1), 0, 10, 11, 12, 13, 14);
    assert_values(tn_select(tn_select(x, 1, 2), 0, 1), 0, 7);
    ck_assert_int_eq(tn_rank(tn_select(tn_select(x, 1, 2), 0, 1)), 0);
    assert_values(tn_narrow(x, 1, 3, 2), 0, 3, 4, 8, 9, 13, 14);
    ck_assert_int_eq(tn_numel(tn_narrow(x, 1, 5, 0)), 0);
    /* views of views, and writing through them */
    tn_tensor *y = tn_select(tn_slice(tn_transpose(x, 0, 1), 0, 1, 5, 3), 1, 2);
    assert_values(y, 0, 11, 14);
    uint64_t version = tn_version(x);
    assert_ok(tn_copy_in(y, (float[]){ -1, -2 }, 8, TN_F32));
    ck_assert_double_eq(tn_at(x, TN_INDEX(2, 4)), -2);
    ck_assert(tn_version(x) == version + 1);
    assert_null(tn_slice(x, 0, 0, 3, 0), TN_E_INVALID, "tn_slice: step 0");
    assert_null(tn_slice(x, 0, 0, 3, -1), TN_E_INVALID, "tn_flip");
    assert_null(tn_select(x, 0, 3), TN_E_INDEX, "tn_select: index 3 on axis 0 of [3,5]");
    assert_null(tn_select(tn_scalar(1), 0, 0), TN_E_INDEX, "tn_select");
    assert_null(tn_narrow(x, 1, 4, 2), TN_E_INDEX, "tn_narrow: 2 elements from 4");
    assert_null(tn_narrow(x, 1, 1, INT64_MAX), TN_E_INDEX, "tn_narrow");
    assert_null(tn_slice(tn_scalar(1), 0, 0, 1, 1), TN_E_INDEX, "tn_slice");
}
END_TEST

START_TEST(split_and_chunk)
{
    tn_tensor *x = count(TN_SHAPE(2, 5)), *out[5];
    ck_assert_int_eq(tn_split(x, 2, 1, out, 5), 3);
    assert_values(out[0], 0, 0, 1, 5, 6);
    assert_values(out[2], 0, 4, 9);
    ck_assert(tn_same_storage(out[1], x));
    ck_assert_int_eq(tn_chunk(x, 4, -1, out, 5), 3); /* ceil(5 / 4) = 2 each */
    ck_assert_int_eq(tn_chunk(x, 5, -1, out, 5), 5);
    ck_assert_int_eq(tn_split(tn_zeros(TN_SHAPE(0, 2)), 3, 0, out, 5), 1);
    ck_assert_int_eq(tn_numel(out[0]), 0);
    ck_assert_int_eq(tn_split(x, 2, 1, out, 2), -1);
    assert_error(TN_E_SHAPE, "tn_split: [2,5] in pieces of 2");
    ck_assert_int_eq(tn_split(x, 0, 1, out, 5), -1);
    assert_error(TN_E_SHAPE, "tn_split");
    ck_assert_int_eq(tn_chunk(x, 0, 1, out, 5), -1);
    assert_error(TN_E_INVALID, "tn_chunk: 0 chunks");
    ck_assert_int_eq(tn_chunk(x, 3, 1, out, 2), -1);
    assert_error(TN_E_INVALID, "tn_chunk: 3 chunks of [2,5], room for 2: want");
    ck_assert_int_eq(tn_split(NULL, 1, 0, out, 5), -1);
    assert_error(TN_E_INVALID, "tn_split");
}
END_TEST

START_TEST(cat_and_stack)
{
    tn_tensor *x = count(TN_SHAPE(2, 2)), *y = tn_full(TN_SHAPE(2, 1), 9);
    assert_values(tn_cat((tn_tensor *[]){ x, y }, 2, 1), 0, 0, 1, 9, 2, 3, 9);
    assert_values(tn_stack((tn_tensor *[]){ x, x }, 2, -1), 0, 0, 0, 1, 1, 2, 2, 3, 3);
    tn_tensor *wide =
        tn_cat((tn_tensor *[]){ tn_arange(0, 2, 1, TN_I64), tn_ones(TN_SHAPE(1)) }, 2, 0);
    ck_assert_int_eq(tn_dtype_of(wide), TN_F32);
    assert_values(wide, 0, 0, 1, 1);
    assert_null(tn_cat((tn_tensor *[]){ x, y }, 2, 0), TN_E_SHAPE, "tn_cat");
    assert_null(tn_stack((tn_tensor *[]){ x, y }, 2, 0), TN_E_SHAPE, "");
    assert_null(tn_cat(NULL, 0, 0), TN_E_INVALID, "tn_cat");
}
END_TEST

START_TEST(flip_and_repeat)
{
    tn_tensor *x = count(TN_SHAPE(2, 3));
    assert_values(tn_flip(x, (int[]){ 1 }, 1), 0, 2, 1, 0, 5, 4, 3);
    assert_values(tn_flip(x, (int[]){ 0, -1 }, 2), 0, 5, 4, 3, 2, 1, 0);
    assert_values(tn_flip(x, NULL, 0), 0, 5, 4, 3, 2, 1, 0);
    assert_values(tn_flip(tn_scalar(3), NULL, 0), 0, 3);
    assert_values(tn_flip(tn_transpose(x, 0, 1), (int[]){ 0 }, 1), 0, 2, 5, 1, 4, 0, 3);
    assert_values(tn_flip(tn_narrow(x, 1, 1, 2), NULL, 0), 0, 5, 4, 2, 1);
    assert_values(tn_flip(tn_expand(tn_narrow(x, 1, 0, 1), TN_SHAPE(2, 2)), NULL, 0), 0, 3, 3, 0,
                  0);
    assert_values(tn_flip(tn_to_dtype(x, TN_U8), (int[]){ 1 }, 1), 0, 2, 1, 0, 5, 4, 3);
    assert_null(tn_flip(x, (int[]){ 1, -1 }, 2), TN_E_INVALID,
                "tn_flip: axis -1 of [2,3] is named twice");
    assert_null(tn_flip(x, (int[]){ 2 }, 1), TN_E_INDEX, "tn_flip: axis 2");

    assert_values(tn_repeat(x, TN_SHAPE(1, 2)), 0, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5);
    tn_tensor *y = tn_repeat(x, TN_SHAPE(2, 3, 1));
    ck_assert(tn_size(y, 0) == 2 && tn_size(y, 1) == 6 && tn_size(y, 2) == 3);
    for (int64_t i = 0; i < 36; i++)
        ck_assert_double_eq(tn_at(tn_reshape(y, TN_SHAPE(36)), &i, 1), (double)(i % 6));
    ck_assert(!tn_same_storage(tn_repeat(x, TN_SHAPE(1, 1)), x));
    tn_tensor *one = tn_ones(TN_SHAPE(1));
    ck_assert(!tn_same_storage(tn_repeat(one, TN_SHAPE(4)), one));
    ck_assert_int_eq(tn_numel(tn_repeat(x, TN_SHAPE(2, 0))), 0);
    ck_assert_int_eq(tn_size(tn_repeat(x, TN_SHAPE(2, 0)), 0), 4);
    assert_values(tn_repeat(tn_ones(TN_SHAPE(1, 1, 1, 1, 1)), TN_SHAPE(2, 1, 1, 1, 2)), 0, 1, 1, 1,
                  1);
    assert_null(tn_repeat(x, TN_SHAPE(2)), TN_E_SHAPE, "tn_repeat: x [2,3], counts [2]");
    assert_null(tn_repeat(x, TN_SHAPE(1, -1)), TN_E_SHAPE, "tn_repeat");
    assert_null(tn_repeat(x, TN_SHAPE(1, INT64_MAX)), TN_E_SHAPE, "tn_repeat");
    assert_null(tn_repeat(x, TN_SHAPE(INT64_C(1) << 61, 4)), TN_E_SHAPE, "tn_repeat");
}
END_TEST

START_TEST(triangles)
{
    tn_tensor *x = tn_add_scalar(count(TN_SHAPE(3, 3)), 1);
    assert_values(tn_tril(x, 0), 0, 1, 0, 0, 4, 5, 0, 7, 8, 9);
    assert_values(tn_tril(x, -1), 0, 0, 0, 0, 4, 0, 0, 7, 8, 0);
    assert_values(tn_triu(x, 1), 0, 0, 2, 3, 0, 0, 6, 0, 0, 0);
    assert_values(tn_tril(tn_transpose(x, 0, 1), 1), 0, 1, 4, 0, 2, 5, 8, 3, 6, 9);
    assert_values(tn_triu(x, INT64_MIN), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    assert_values(tn_triu(x, INT64_MAX), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    assert_values(tn_tril(x, INT64_MAX), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    assert_values(tn_tril(tn_add_scalar(count(TN_SHAPE(2, 1, 3)), 1), 1), 0, 1, 2, 0, 4, 5, 0);
    /* elements outside are replaced, not multiplied by 0: NaN disappears */
    assert_values(tn_triu(tn_full(TN_SHAPE(2, 2), NAN), 5), 0, 0, 0, 0, 0);
    ck_assert_int_eq(tn_dtype_of(tn_tril(tn_full_as(TN_SHAPE(2, 2), 1, TN_I64, tn_cpu()), 0)),
                     TN_I64);
    assert_null(tn_tril(tn_ones(TN_SHAPE(3)), 0), TN_E_SHAPE, "tn_tril: x [3]");
    assert_null(tn_triu(NULL, 0), TN_E_INVALID, "tn_triu");
}
END_TEST

/* ---- what a tensor is, and its values -------------------------------------------------------- */

START_TEST(sizes_and_strides)
{
    tn_tensor *x = tn_zeros(TN_SHAPE(2, 3));
    ck_assert(tn_size(x, -1) == 3 && tn_stride(x, 0) == 3 && tn_stride(x, -1) == 1);
    ck_assert(tn_rank(NULL) == -1 && tn_shape_get(NULL).rank == -1);
    ck_assert_int_eq(tn_numel(NULL), TN_NO_SIZE);
    assert_error(TN_E_INVALID, "tn_numel");
    ck_assert_int_eq(tn_size(x, 2), TN_NO_SIZE);
    assert_error(TN_E_INDEX, "tn_size: axis 2");
    ck_assert_int_eq(tn_size(NULL, 0), TN_NO_SIZE);
    assert_error(TN_E_INVALID, "tn_size");
    ck_assert(tn_is_none(TN_NONE) && !tn_is_none(x) && !tn_is_none(NULL));
    assert_ok(tn_set_name(x, "weights"));
    ck_assert_str_eq(tn_name(x), "weights");
    assert_null(tn_reshape(x, TN_SHAPE(5)), TN_E_SHAPE, "weights [2,3]");
}
END_TEST

START_TEST(dtypes)
{
    static const size_t size[] = { 4, 8, 2, 2, 8, 4, 1, 1 };
    for (int i = 0; i < 8; i++) ck_assert_uint_eq(tn_dtype_size((tn_dtype)i), size[i]);
    ck_assert_uint_eq(tn_dtype_size((tn_dtype)8), 0);
    ck_assert_uint_eq(tn_dtype_size((tn_dtype)-1), 0);
    ck_assert_str_eq(tn_dtype_name(TN_BF16), "bf16");
    ck_assert(tn_dtype_is_float(TN_F16) && !tn_dtype_is_float(TN_BOOL));
}
END_TEST

START_TEST(promotion)
{
    /* bool < u8 < i32 < i64 < floats; bf16 with f16 gives f32 */
    static const struct {
        tn_dtype a, b, sum;
    } rule[] = {
        { TN_BOOL, TN_U8, TN_U8 },  { TN_U8, TN_I32, TN_I32 },    { TN_I32, TN_I64, TN_I64 },
        { TN_I64, TN_F16, TN_F16 }, { TN_I64, TN_BF16, TN_BF16 }, { TN_F16, TN_BF16, TN_F32 },
        { TN_F16, TN_F32, TN_F32 }, { TN_F32, TN_F64, TN_F64 },   { TN_BOOL, TN_F32, TN_F32 },
        { TN_I64, TN_F32, TN_F32 }, { TN_U8, TN_U8, TN_U8 },      { TN_BF16, TN_BF16, TN_BF16 },
    };
    tn_tensor *a = tn_full_as(TN_SHAPE(2), 1, rule[_i].a, tn_cpu());
    tn_tensor *b = tn_full_as(TN_SHAPE(2), 1, rule[_i].b, tn_cpu());
    tn_tensor *sum = tn_add(a, b), *other = tn_add(b, a);
    assert_made(sum);
    ck_assert_int_eq(tn_dtype_of(sum), rule[_i].sum);
    ck_assert_int_eq(tn_dtype_of(other), rule[_i].sum);
    assert_values(sum, 0, 2, 2);
    /* a C number never widens a tensor of its own kind */
    if (rule[_i].a != TN_BOOL) ck_assert_int_eq(tn_dtype_of(tn_mul_scalar(a, 2)), rule[_i].a);
}
END_TEST

static const tn_dtype by_width[] = {
    TN_BOOL, TN_U8, TN_I32, TN_I64, TN_F16, TN_BF16, TN_F32, TN_F64
};

/* The rule in PyTorch's words: bool < integer < float; a tensor without axes counts only where its
 * kind is the higher one; otherwise the wider of two, f32 for two half-precision floats. by_width
 * is in order of width. */
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
            tn_tensor *full = tn_full_as(TN_SHAPE(3), 1, by_width[f], tn_cpu());
            tn_tensor *single = tn_full_as(TN_SCALAR, 1, by_width[s], tn_cpu());
            tn_tensor *row = tn_full_as(TN_SHAPE(1), 1, by_width[s], tn_cpu());
            tn_tensor *yes = tn_full_as(TN_SCALAR, 1, TN_BOOL, tn_cpu());
            tn_dtype by_kind = by_width[kind(s) > kind(f) ? wider(f, s) : f],
                     plain = by_width[wider(f, s)];
            tn_tensor *results[] = { tn_add(full, single),        tn_add(single, full),
                                     tn_mul(full, single),        tn_maximum(single, full),
                                     tn_where(yes, full, single), tn_where(yes, single, full) };
            for (int k = 0; k < COUNT(results); k++)
                ck_assert_msg(results[k] && tn_dtype_of(results[k]) == by_kind,
                              "%d: %s[3] with %s[]: %s, not %s", k, tn_dtype_name(by_width[f]),
                              tn_dtype_name(by_width[s]),
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

START_TEST(items)
{
    tn_tensor *x = count(TN_SHAPE(2, 2));
    ck_assert(isnan(tn_item(x)));
    assert_error(TN_E_SHAPE, "tn_item: [2,2] has 4 elements");
    ck_assert(isnan(tn_item(NULL)));
    assert_error(TN_E_INVALID, "tn_item: t is NULL");
    ck_assert_double_eq(tn_item(tn_ones(TN_SHAPE(1, 1, 1))), 1);
    ck_assert(isnan(tn_at(x, TN_INDEX(0, 2))));
    assert_error(TN_E_INDEX, "tn_at: index 2 of axis 1");
    ck_assert(isnan(tn_at(x, TN_INDEX(1))));
    assert_error(TN_E_SHAPE, "tn_at: an index of 1 numbers into");
    ck_assert(isnan(tn_at(x, TN_INDEX(0, 0, 0))));
    assert_error(TN_E_SHAPE, "want 2, one per axis");
    ck_assert(isnan(tn_at(x, TN_INDEX(-1, 0))));
    assert_error(TN_E_INDEX, "tn_at");
    ck_assert_double_eq(tn_at(tn_transpose(x, 0, 1), TN_INDEX(1, 0)), 1);
}
END_TEST

START_TEST(data_in_and_out)
{
    tn_tensor *x = count(TN_SHAPE(2, 3)), *xt = tn_transpose(x, 0, 1);
    double out[6];
    int32_t whole[6];
    assert_ok(tn_copy_out(xt, out, sizeof out, TN_F64));
    ck_assert(out[1] == 3 && out[4] == 2);
    assert_ok(tn_copy_out(xt, whole, sizeof whole, TN_I32));
    ck_assert(whole[1] == 3 && whole[4] == 2);
    assert_fails(tn_copy_out(x, out, 47, TN_F64), TN_E_SHAPE,
                 "tn_copy_out: 47 bytes for [2,3] as f64: want 48");
    assert_fails(tn_copy_out(NULL, out, 48, TN_F64), TN_E_INVALID, "tn_copy_out");
    ck_assert_ptr_null(tn_data(xt));
    assert_error(TN_E_SHAPE, "tn_data");
    uint64_t version = tn_version(x);
    ck_assert_ptr_nonnull(tn_data(x));
    ck_assert(tn_version(x) == version);
    ((float *)tn_data_mut(x))[5] = 50;
    ck_assert(tn_version(x) == version + 1);
    ck_assert_double_eq(tn_at(xt, TN_INDEX(2, 1)), 50);
    assert_fails(tn_copy_in(tn_arange(0, 2, 1, TN_I64), out, 16, TN_F64), TN_E_DTYPE, "tn_copy_in");
    assert_ok(tn_copy_out(tn_zeros(TN_SHAPE(0)), NULL, 0, TN_F32));
}
END_TEST

START_TEST(hashes)
{
    tn_tensor *x = count(TN_SHAPE(2, 3));
    uint64_t hash = tn_hash(x);
    ck_assert(hash == tn_hash(count(TN_SHAPE(2, 3))));
    ck_assert(hash != tn_hash(tn_reshape(x, TN_SHAPE(3, 2))));
    ck_assert(hash != tn_hash(tn_reshape(x, TN_SHAPE(6))));
    ck_assert(tn_hash(tn_zeros(TN_SHAPE(2))) !=
              tn_hash(tn_full_as(TN_SHAPE(2), 0, TN_I32, tn_cpu())));
    /* the order of elements counts, not how they lie in memory */
    tn_tensor *xt = tn_transpose(x, 0, 1);
    ck_assert(tn_hash(xt) ==
              tn_hash(tn_from_floats((float[]){ 0, 3, 1, 4, 2, 5 }, TN_SHAPE(3, 2))));
    ((float *)tn_data_mut(x))[5] = -0.0f;
    uint64_t minus = tn_hash(x);
    ((float *)tn_data_mut(x))[5] = 0.0f;
    ck_assert(minus != tn_hash(x)); /* bits, not values */
    /* rank 1, size 1, f32, the float 0: FNV-1a over 4 + 8 + 4 + 4 bytes, by hand */
    unsigned char bytes[20] = { 1, 0, 0, 0, 1 };
    uint64_t fnv = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < 20; i++) fnv = (fnv ^ bytes[i]) * UINT64_C(1099511628211);
    ck_assert(tn_hash(tn_zeros(TN_SHAPE(1))) == fnv);
    ck_assert(tn_hash(NULL) == 0);
    assert_error(TN_E_INVALID, "tn_hash");
}
END_TEST

START_TEST(largest_difference)
{
    tn_tensor *x = count(TN_SHAPE(2, 3));
    ck_assert_double_eq(tn_max_abs_diff(x, x), 0);
    ck_assert_double_eq(tn_max_abs_diff(x, tn_zeros(TN_SHAPE(2, 3))), 5);
    ck_assert_double_eq(tn_max_abs_diff(tn_transpose(x, 0, 1), tn_zeros(TN_SHAPE(3, 2))), 5);
    ck_assert(isnan(tn_max_abs_diff(x, tn_zeros(TN_SHAPE(3, 2)))));
    tn_tensor *odd = tn_from_floats((float[]){ NAN, INFINITY, 1 }, TN_SHAPE(3));
    ck_assert_double_eq(tn_max_abs_diff(odd, odd), 0);
    ck_assert(isnan(tn_max_abs_diff(odd, tn_zeros(TN_SHAPE(3)))));
    ck_assert(isinf(tn_max_abs_diff(tn_slice(odd, 0, 1, 3, 1), tn_zeros(TN_SHAPE(2)))));
    /* integers above 2^53 are compared as integers */
    tn_tensor *a = tn_from_ints((int64_t[]){ INT64_C(1) << 60 }, TN_SHAPE(1));
    tn_tensor *b = tn_from_ints((int64_t[]){ (INT64_C(1) << 60) + 1 }, TN_SHAPE(1));
    ck_assert_double_eq(tn_max_abs_diff(a, b), 1);
    ck_assert_double_eq(tn_max_abs_diff(tn_zeros(TN_SHAPE(0)), tn_zeros(TN_SHAPE(0))), 0);
    ck_assert(isnan(tn_max_abs_diff(x, NULL)));
    assert_error(TN_E_INVALID, "tn_max_abs_diff: b is NULL");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("tensor");
    TCase *t = test_case(suite, "creation");
    tcase_add_test(t, filled_tensors);
    tcase_add_loop_test(t, filled_in_every_dtype, TN_F32, TN_BOOL + 1);
    add_tests(t, filled_with_what_a_dtype_holds, like_forms_are_row_major, arange,
              series_are_PyTorchs, arange_errors, linspace, eye, from_the_callers_arrays,
              impossible_shapes, default_dtype);
    t = test_case(suite, "views");
    add_tests(t, reshape, flatten_squeeze_unsqueeze, transpose_and_permute, expand,
              slice_select_narrow, split_and_chunk, cat_and_stack, flip_and_repeat, triangles);
    t = test_case(suite, "values");
    tcase_add_test(t, sizes_and_strides);
    tcase_add_test(t, dtypes);
    tcase_add_loop_test(t, promotion, 0, 12);
    add_tests(t, PR_01_single_values_promote_by_kind, single_values_count_in_the_dtype_of_both,
              gradients_keep_the_dtype_of_a_single_value, items, data_in_and_out, hashes,
              largest_difference);
    tensor_limits_case(suite);
    tensor_host_case(suite);
    return suite;
}
