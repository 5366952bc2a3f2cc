/*
 * ops_empty.c - tensors without elements through every op and layer, forward and backward, in
 * every dtype: what PyTorch gives, without a division by a size or a read of an element that does
 * not exist.
 *
 * The rule: sum 0, prod 1, mean NaN, any false, all true, logsumexp -inf; max and min of nothing
 * are errors; a product over an inner size of 0 is 0; everything else has the shape that its sizes
 * say.
 */
#include "nn/boxes.h"
#include "ops/ops.h"

static const tn_dtype dtypes[] = {
    TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8, TN_BOOL
};

static void check_shape(const char *name, const tn_tensor *y, tn_shape want)
{
    ck_assert_msg(y != NULL, "%s: %s", name, tn_error());
    tn_shape have = tn_shape_get(y);
    bool same = have.rank == want.rank;
    for (int i = 0; same && i < have.rank; i++) same = have.size[i] == want.size[i];
    ck_assert_msg(same, "%s: %d axes, first of size %" PRId64, name, have.rank,
                  have.rank ? have.size[0] : -1);
}

static tn_tensor *nothing(tn_shape shape, tn_dtype dtype)
{
    tn_tensor *t = tn_empty_as(shape, dtype, tn_cpu());
    assert_made(t);
    return t;
}

static tn_tensor *leaf(tn_shape shape, tn_dtype dtype)
{
    tn_tensor *t = tn_full_as(shape, 1, dtype, tn_cpu());
    assert_made(t);
    if (tn_dtype_is_float(dtype)) assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* y has a gradient for x of x's shape, zero where x has elements: a sum over nothing. */
static void check_gradient(const char *name, tn_tensor *y, tn_tensor *x)
{
    if (!y || !tn_requires_grad(y)) return;
    tn_status status = tn_backward(tn_sum_all(y));
    ck_assert_msg(status == TN_OK, "%s: %s", name, tn_error());
    check_shape(name, tn_grad(x), tn_shape_get(x));
    tn_tensor *g = tn_grad(x);
    ck_assert_msg(tn_numel(g) == 0 || tn_item(tn_amax(tn_abs(g), NULL, 0, false)) == 0,
                  "%s: a gradient out of nothing", name);
    assert_ok(tn_set_grad(x, TN_NONE));
}

/* ... and of a result of that shape. */
static void check(const char *name, tn_tensor *y, tn_shape want, tn_tensor *x)
{
    check_shape(name, y, want);
    check_gradient(name, y, x);
}

/* ---- functions that keep the shape ----------------------------------------------------------- */

static tn_tensor *repeated(tn_tensor *x)
{
    tn_shape ones = tn_shape_get(x);
    for (int i = 0; i < ones.rank; i++) ones.size[i] = 1;
    return tn_repeat(x, ones);
}
static tn_tensor *split_joined(tn_tensor *x)
{
    tn_tensor *parts[2];
    int n = tn_chunk(x, 2, 0, parts, 2);
    return n > 0 ? tn_cat(parts, n, 0) : NULL;
}

/* y is of x's shape; or x is of a dtype that its kernels, of f32 and f64, refuse, empty or not. */
static void check_kept(const char *name, tn_tensor *y, tn_tensor *x, bool floats)
{
    tn_dtype dtype = tn_dtype_of(x);
    char text[96];
    snprintf(text, sizeof text, "%s of %s [%d%s", name, tn_dtype_name(dtype), (int)tn_size(x, 0),
             tn_rank(x) > 1 ? ", ...]" : "]");
    if (!y && (floats || dtype == TN_BOOL) && dtype != TN_F32 && dtype != TN_F64) {
        ck_assert_msg(tn_error_status() == TN_E_DTYPE, "%s: %s", text, tn_error());
        tn_error_clear();
        return;
    }
    check_shape(text, y, tn_shape_get(x));
    if (tn_dtype_is_float(dtype)) check_gradient(text, y, x);
}

#define KEEPS(call) check_kept(#call, call, x, false)
#define KEEPS_FLOATS(call) check_kept(#call, call, x, true)

START_TEST(shapes_are_kept)
{
    const tn_shape shapes[] = { TN_SHAPE(0), TN_SHAPE(0, 3), TN_SHAPE(3, 0), TN_SHAPE(2, 0, 4) };
    for (int s = 0; s < COUNT(shapes); s++) {
        tn_tensor *x = leaf(shapes[s], dtypes[_i]);
        KEEPS(tn_neg(x));
        KEEPS(tn_abs(x));
        KEEPS(tn_exp(x));
        KEEPS(tn_log(x));
        KEEPS(tn_log1p(x));
        KEEPS(tn_expm1(x));
        KEEPS(tn_sqrt(x));
        KEEPS(tn_rsqrt(x));
        KEEPS(tn_square(x));
        KEEPS(tn_reciprocal(x));
        KEEPS(tn_sin(x));
        KEEPS(tn_cos(x));
        KEEPS(tn_tanh(x));
        KEEPS(tn_sigmoid(x));
        KEEPS(tn_erf(x));
        KEEPS(tn_relu(x));
        KEEPS(tn_silu(x));
        KEEPS(tn_gelu(x));
        KEEPS(tn_gelu_tanh(x));
        KEEPS(tn_leaky_relu(x, 0.1));
        KEEPS(tn_elu(x, 1));
        KEEPS(tn_softplus(x, 1, 20));
        KEEPS(tn_clamp(x, 0, 1));
        KEEPS(tn_add_scalar(x, 1));
        KEEPS(tn_rsub_scalar(x, 1));
        KEEPS(tn_mul_scalar(x, 2));
        KEEPS(tn_div_scalar(x, 2));
        KEEPS(tn_pow_scalar(x, 2));
        KEEPS(tn_eq_scalar(x, 1));
        KEEPS(tn_isnan(x));
        KEEPS(tn_isfinite(x));
        KEEPS(tn_logical_not(x));
        KEEPS(tn_add(x, x));
        KEEPS(tn_sub(x, x));
        KEEPS(tn_mul(x, x));
        KEEPS(tn_div(x, x));
        KEEPS(tn_pow(x, x));
        KEEPS(tn_minimum(x, x));
        KEEPS(tn_maximum(x, x));
        KEEPS(tn_lerp(x, x, 0.5));
        KEEPS(tn_eq(x, x));
        KEEPS(tn_where(tn_eq(x, x), x, x));
        KEEPS(tn_masked_fill(x, tn_eq(x, x), 1));
        KEEPS(tn_to_dtype(x, TN_F64));
        KEEPS(tn_clone(x));
        KEEPS(tn_contiguous(x));
        KEEPS(tn_cumsum(x, 0));
        KEEPS(tn_cumsum(x, -1));
        ck_assert(signbit(tn_item(tn_cumsum(tn_full(TN_SCALAR, -0.0), 0))));
        KEEPS(tn_flip(x, NULL, 0));
        KEEPS(repeated(x));
        KEEPS(split_joined(x));
        KEEPS(tn_gather(x, 0, tn_to_dtype(tn_zeros_like(x), TN_I64)));
        KEEPS_FLOATS(tn_softmax(x, 0));
        KEEPS_FLOATS(tn_softmax(x, -1));
        KEEPS_FLOATS(tn_log_softmax(x, -1));
        KEEPS_FLOATS(tn_dropout(x, 0.5, true));
        KEEPS_FLOATS(tn_layer_norm(x, 1, TN_NONE, TN_NONE, 1e-5));
        KEEPS_FLOATS(tn_scatter_add(x, 0, tn_to_dtype(tn_zeros_like(x), TN_I64), x));
    }
}
END_TEST

/* ---- reductions ------------------------------------------------------------------------------ */

static tn_tensor *norm2(tn_tensor *x, const int *axes, int n, bool keepdim)
{
    return tn_norm(x, 2, axes, n, keepdim);
}
static tn_tensor *norm_inf(tn_tensor *x, const int *axes, int n, bool keepdim)
{
    return tn_norm(x, INFINITY, axes, n, keepdim);
}
static tn_tensor *variance(tn_tensor *x, const int *axes, int n, bool keepdim)
{
    return tn_var(x, axes, n, 1, keepdim);
}
static tn_tensor *deviation(tn_tensor *x, const int *axes, int n, bool keepdim)
{
    return tn_std(x, axes, n, 1, keepdim);
}

static const struct {
    const char *name;
    tn_tensor *(*f)(tn_tensor *x, const int *axes, int n_axes, bool keepdim);
    double of_nothing; /* as PyTorch's */
    bool floats;
} reductions[] = {
    { "sum", tn_sum, 0, false },     { "prod", tn_prod, 1, false },
    { "any", tn_any, 0, false },     { "all", tn_all, 1, false },
    { "mean", tn_mean, NAN, true },  { "var", variance, NAN, true },
    { "std", deviation, NAN, true }, { "logsumexp", tn_logsumexp, -INFINITY, true },
    { "norm", norm2, 0, true },
};

static bool is(double value, double want)
{
    return isnan(want) ? isnan(value) : value == want;
}

START_TEST(reductions_of_nothing)
{
    for (int d = 0; d < COUNT(dtypes); d++) {
        if (reductions[_i].floats && !tn_dtype_is_float(dtypes[d])) continue;
        const char *name = reductions[_i].name;
        const int first = 0, last = 1;
        tn_tensor *x = leaf(TN_SHAPE(0, 3), dtypes[d]);
        tn_tensor *y = reductions[_i].f(x, &first, 1, false);
        check_shape(name, y, TN_SHAPE(3));
        for (int64_t k = 0; k < 3; k++)
            ck_assert_msg(is(tn_at(y, &k, 1), reductions[_i].of_nothing), "%s of %s: %g", name,
                          tn_dtype_name(dtypes[d]), tn_at(y, &k, 1));
        check_gradient(name, y, x);
        y = reductions[_i].f(x, NULL, 0, false);
        check_shape(name, y, TN_SCALAR);
        ck_assert_msg(is(tn_item(y), reductions[_i].of_nothing), "%s of %s: %g", name,
                      tn_dtype_name(dtypes[d]), tn_item(y));
        check_gradient(name, y, x);
        y = reductions[_i].f(x, &last, 1, true); /* nothing of three each */
        check_shape(name, y, TN_SHAPE(0, 1));
        check_gradient(name, y, x);
    }
}
END_TEST

START_TEST(extremes_of_nothing_are_errors)
{
    const int first = 0, last = 1;
    for (int d = 0; d < COUNT(dtypes); d++) {
        tn_tensor *x = leaf(TN_SHAPE(0, 3), dtypes[d]), *index = NULL;
        assert_null(tn_amax(x, &first, 1, false), TN_E_SHAPE, "tn_amax");
        assert_null(tn_amin(x, NULL, 0, false), TN_E_SHAPE, "tn_amin");
        assert_null(tn_max(x, 0, false, &index), TN_E_SHAPE, "tn_max");
        assert_null(tn_min(x, 0, false, NULL), TN_E_SHAPE, "tn_min");
        assert_null(tn_argmax(x, 0, false), TN_E_SHAPE, "tn_argmax");
        assert_null(tn_argmin(x, 0, true), TN_E_SHAPE, "tn_argmin");
        check_shape("amax", tn_amax(x, &last, 1, false), TN_SHAPE(0));
        tn_tensor *y = tn_max(x, 1, true, &index);
        check_shape("max", y, TN_SHAPE(0, 1));
        check_shape("its index", index, TN_SHAPE(0, 1));
        check_gradient("max", y, x);
        check_shape("argmin", tn_argmin(x, -1, false), TN_SHAPE(0));
    }
    /* the norm with p = INFINITY is 0 like the others, where PyTorch refuses: clipping meets empty
     * gradients */
    ck_assert_double_eq(tn_item(tn_norm(tn_zeros(TN_SHAPE(0)), INFINITY, NULL, 0, false)), 0);
    check_shape("norm inf", norm_inf(tn_zeros(TN_SHAPE(0, 2)), &last, 1, false), TN_SHAPE(0));
}
END_TEST

/* ---- movement -------------------------------------------------------------------------------- */

START_TEST(movement)
{
    for (int d = 0; d < COUNT(dtypes); d++) {
        tn_tensor *x = leaf(TN_SHAPE(2, 0, 4), dtypes[d]);
        tn_tensor *full = tn_full_as(TN_SHAPE(2, 3, 4), 1, dtypes[d], tn_cpu());
        check("reshape", tn_reshape(x, TN_SHAPE(0, 7)), TN_SHAPE(0, 7), x);
        assert_null(tn_reshape(x, TN_SHAPE(-1, 0)), TN_E_SHAPE, "tn_reshape"); /* which number? */
        check_shape("reshape -1", tn_reshape(x, TN_SHAPE(8, -1)), TN_SHAPE(8, 0));
        check_shape("flatten", tn_flatten(x, 0, -1), TN_SHAPE(0));
        check_shape("transpose", tn_transpose(x, 0, 2), TN_SHAPE(4, 0, 2));
        check_gradient("transpose", tn_contiguous(tn_transpose(x, 0, 2)), x);
        check_shape("unsqueeze", tn_unsqueeze(x, -1), TN_SHAPE(2, 0, 4, 1));
        check_shape("squeeze", tn_squeeze(x, 1), TN_SHAPE(2, 0, 4));
        check_shape("squeeze_all", tn_squeeze_all(x), TN_SHAPE(2, 0, 4));
        check("expand", tn_expand(x, TN_SHAPE(5, 2, 0, 4)), TN_SHAPE(5, 2, 0, 4), x);
        check_shape("expand to nothing", tn_expand(tn_ones(TN_SHAPE(1, 3)), TN_SHAPE(0, 3)),
                    TN_SHAPE(0, 3));
        check_shape("select", tn_select(x, 0, 1), TN_SHAPE(0, 4));
        assert_null(tn_select(x, 1, 0), TN_E_INDEX, "tn_select: index 0");
        check_shape("slice", tn_slice(x, 1, 0, 10, 3), TN_SHAPE(2, 0, 4));
        check_gradient("slice", tn_slice(x, 2, 1, 3, 1), x);
        check_shape("slice to nothing", tn_slice(full, 2, 3, 1, 1), TN_SHAPE(2, 3, 0));
        check_shape("narrow", tn_narrow(x, 1, 0, 0), TN_SHAPE(2, 0, 4));
        tn_tensor *parts[4];
        ck_assert_int_eq(tn_split(x, 3, 1, parts, 4), 1);
        check_shape("split", parts[0], TN_SHAPE(2, 0, 4));
        ck_assert_int_eq(tn_split(x, 1, 0, parts, 4), 2);
        check("split", parts[1], TN_SHAPE(1, 0, 4), x);
        ck_assert_int_eq(tn_chunk(x, 3, 1, parts, 4), 1);
        check_shape("cat", tn_cat((tn_tensor *[]){ x, full }, 2, 1), TN_SHAPE(2, 3, 4));
        check_shape("cat of nothing", tn_cat((tn_tensor *[]){ x, x }, 2, 1), TN_SHAPE(2, 0, 4));
        check_gradient("cat", tn_cat((tn_tensor *[]){ x, x }, 2, 0), x);
        check_shape("stack", tn_stack((tn_tensor *[]){ x, x }, 2, 0), TN_SHAPE(2, 2, 0, 4));
        check_gradient("stack", tn_stack((tn_tensor *[]){ x, x }, 2, -1), x);
        check_shape("repeat", tn_repeat(x, TN_SHAPE(2, 3, 1)), TN_SHAPE(4, 0, 4));
        check_shape("repeat 0 times", tn_repeat(full, TN_SHAPE(2, 0, 1)), TN_SHAPE(4, 0, 4));
        check_shape("tril", tn_tril(x, 0), TN_SHAPE(2, 0, 4));
        check_shape("triu", tn_triu(tn_transpose(x, 1, 2), 1), TN_SHAPE(2, 4, 0));
        check_gradient("tril", tn_tril(x, 0), x);
    }
}
END_TEST

START_TEST(making_and_reading)
{
    check_shape("arange", tn_arange(3, 3, 1, TN_I64), TN_SHAPE(0));
    check_shape("linspace", tn_linspace(0, 1, 0), TN_SHAPE(0));
    check_shape("eye", tn_eye(0), TN_SHAPE(0, 0));
    check_shape("rand", tn_rand(TN_SHAPE(0, 2)), TN_SHAPE(0, 2));
    check_shape("randn", tn_randn(TN_SHAPE(0)), TN_SHAPE(0));
    check_shape("randint", tn_randint(0, 5, TN_SHAPE(0)), TN_SHAPE(0));
    check_shape("randperm", tn_randperm(0), TN_SHAPE(0));
    check_shape("bernoulli", tn_bernoulli(TN_SHAPE(3, 0), 0.5), TN_SHAPE(3, 0));
    char text[64];
    for (int d = 0; d < COUNT(dtypes); d++) {
        tn_tensor *x = nothing(TN_SHAPE(3, 0), dtypes[d]), *y = nothing(TN_SHAPE(3, 0), dtypes[d]);
        assert_ok(tn_copy_out(x, NULL, 0, TN_F64));
        assert_ok(tn_copy_in(x, NULL, 0, dtypes[d]));
        ck_assert_int_eq(tn_hash(x), tn_hash(y));
        ck_assert_double_eq(tn_max_abs_diff(x, y), 0);
        ck_assert(tn_format(x, text, sizeof text) > 0);
        ck_assert(tn_is_contiguous(x) && tn_data(x) != NULL);
        assert_ok(tn_fill_(x, 1));
        assert_ok(tn_zero_(x));
        assert_ok(tn_copy_(x, y));
        assert_ok(tn_add_(x, y));
        assert_ok(tn_mul_(x, y));
        assert_ok(tn_add_scalar_(x, 1));
        assert_ok(tn_mul_scalar_(x, 1));
        assert_ok(tn_clamp_(x, 0, 1));
        assert_ok(tn_masked_fill_(x, nothing(TN_SHAPE(3, 0), TN_BOOL), 1));
        if (!tn_dtype_is_float(dtypes[d])) continue;
        assert_ok(tn_div_(x, y));
        assert_ok(tn_lerp_(x, y, 0.5));
        assert_ok(tn_uniform_(x, 0, 1));
        assert_ok(tn_normal_(x, 0, 1));
    }
}
END_TEST

/* ---- products, indices, losses, layers ------------------------------------------------------- */

/* layers: the first two, products all */
static const tn_dtype reals[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };

START_TEST(products)
{
    tn_dtype t = reals[_i];
    tn_tensor *a = leaf(TN_SHAPE(2, 0), t), *b = leaf(TN_SHAPE(0, 3), t),
              *full = leaf(TN_SHAPE(3, 4), t);
    tn_tensor *y = tn_matmul(a, b);
    assert_values(y, 0, 0, 0, 0, 0, 0, 0); /* sums of no products */
    check_gradient("matmul", y, a);
    check_gradient("matmul", tn_matmul(a, b), b);
    check("no rows", tn_matmul(b, full), TN_SHAPE(0, 4), b);
    y = tn_matmul(leaf(TN_SHAPE(0, 3), t), full);
    assert_ok(tn_backward(tn_sum_all(y)));
    assert_values(tn_grad(full), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    check_shape("no matrices", tn_matmul(leaf(TN_SHAPE(0, 2, 3), t), full), TN_SHAPE(0, 2, 4));
    ck_assert_double_eq(tn_item(tn_matmul(leaf(TN_SHAPE(0), t), leaf(TN_SHAPE(0), t))), 0);
    tn_tensor *w = leaf(TN_SHAPE(4, 3), t), *bias = leaf(TN_SHAPE(4), t),
              *x = leaf(TN_SHAPE(0, 3), t);
    y = tn_linear(x, w, bias);
    check("linear", y, TN_SHAPE(0, 4), x);
    check_gradient("linear", tn_linear(x, w, bias), w);
    check_gradient("linear", tn_linear(x, w, bias), bias);
    /* no features: the bias alone */
    tn_tensor *none = leaf(TN_SHAPE(2, 0), t), *w0 = leaf(TN_SHAPE(4, 0), t);
    y = tn_linear(none, w0, bias);
    assert_values(y, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    check_gradient("linear without features", tn_linear(none, w0, TN_NONE), w0);
    check_shape("no outputs", tn_linear(leaf(TN_SHAPE(2, 3), t), leaf(TN_SHAPE(0, 3), t), TN_NONE),
                TN_SHAPE(2, 0));
    /* attention: no query, no key, no batch */
    tn_tensor *q = leaf(TN_SHAPE(2, 3, 4), t), *q0 = leaf(TN_SHAPE(2, 0, 4), t),
              *none_at_all = leaf(TN_SHAPE(0, 3, 4), t);
    y = tn_scaled_dot_product_attention(q0, q, q, TN_NONE, false, 0);
    check("no queries", y, TN_SHAPE(2, 0, 4), q);
    y = tn_scaled_dot_product_attention(q, q0, q0, TN_NONE, false, 0);
    check("no keys", y, TN_SHAPE(2, 3, 4), q);
    y = tn_scaled_dot_product_attention(none_at_all, none_at_all, none_at_all, TN_NONE, true, 0);
    check("no batch", y, TN_SHAPE(0, 3, 4), none_at_all);
}
END_TEST

START_TEST(indexing)
{
    tn_tensor *x = leaf(TN_SHAPE(3, 2), reals[_i]), *empty = leaf(TN_SHAPE(0, 2), reals[_i]);
    tn_tensor *no_index = nothing(TN_SHAPE(0), TN_I64),
              *first = tn_from_ints((int64_t[]){ 0 }, TN_SHAPE(1));
    check("index_select", tn_index_select(x, 0, no_index), TN_SHAPE(0, 2), x);
    check("index_select", tn_index_select(empty, 1, first), TN_SHAPE(0, 1), empty);
    assert_null(tn_index_select(empty, 0, first), TN_E_INDEX, "0");
    check_shape("embedding", tn_embedding(x, nothing(TN_SHAPE(0, 5), TN_I64), -1),
                TN_SHAPE(0, 5, 2));
    check_gradient("embedding", tn_embedding(x, nothing(TN_SHAPE(0, 5), TN_I64), -1), x);
    assert_null(tn_embedding(empty, first, -1), TN_E_INDEX, "0");
    check("gather", tn_gather(x, 0, nothing(TN_SHAPE(0, 2), TN_I64)), TN_SHAPE(0, 2), x);
    assert_null(tn_gather(empty, 0, nothing(TN_SHAPE(1, 3), TN_I64)), TN_E_SHAPE, "tn_gather");
    tn_tensor *y = tn_scatter_add(x, 0, nothing(TN_SHAPE(0, 2), TN_I64), empty);
    assert_values(y, 0, 1, 1, 1, 1, 1, 1);
    check_shape("one_hot", tn_one_hot(no_index, 4), TN_SHAPE(0, 4));
    /* as PyTorch: no class to infer */
    assert_null(tn_one_hot(no_index, -1), TN_E_INVALID, "tn_one_hot");
    check_shape("one_hot", tn_one_hot(nothing(TN_SHAPE(2, 0), TN_I64), 0), TN_SHAPE(2, 0, 0));
    assert_null(tn_one_hot(first, 0), TN_E_INDEX, "tn_one_hot");
}
END_TEST

START_TEST(losses)
{
    tn_dtype t = reals[_i];
    static const tn_reduction reductions_of[] = { TN_MEAN, TN_SUM, TN_NO_REDUCTION };
    for (int r = 0; r < 3; r++) {
        tn_reduction reduction = reductions_of[r];
        tn_cross_entropy_options o = { .reduction = reduction };
        tn_tensor *x = leaf(TN_SHAPE(0, 3), t), *y = leaf(TN_SHAPE(0, 3), t),
                  *target = nothing(TN_SHAPE(0), TN_I64);
        tn_tensor *loss[] = {
            tn_cross_entropy_with(x, target, o),
            tn_nll_loss(tn_log_softmax(x, 1), target, o),
            tn_cross_entropy_with(x, y, o),
            tn_mse_loss(x, y, reduction),
            tn_l1_loss(x, y, reduction),
            tn_smooth_l1_loss(x, y, 1, reduction),
            tn_huber_loss(x, y, 1, reduction),
            tn_bce_with_logits(x, y, TN_NONE, reduction),
            tn_kl_div(x, y, false, false, reduction),
            tn_bce_loss(x, y, TN_NONE, reduction),
            tn_poisson_nll_loss(x, y, true, true, 1e-8, reduction),
            tn_gaussian_nll_loss(x, y, y, true, 1e-6, reduction),
        };
        for (int k = 0; k < COUNT(loss); k++) {
            char name[32];
            snprintf(name, sizeof name, "loss %d, reduction %d", k, r);
            if (reduction == TN_NO_REDUCTION) {
                check_shape(name, loss[k], k < 3 ? TN_SHAPE(0) : TN_SHAPE(0, 3));
            } else {
                check_shape(name, loss[k], TN_SCALAR);
                double want = reduction == TN_MEAN ? NAN : 0;
                ck_assert_msg(is(tn_item(loss[k]), want), "%s: %g", name, tn_item(loss[k]));
            }
            check_gradient(name, loss[k], x);
        }
    }
    /* no classes: a row has none to have */
    tn_tensor *x = leaf(TN_SHAPE(2, 0), t);
    assert_null(tn_cross_entropy(x, tn_from_ints((int64_t[]){ 0, 0 }, TN_SHAPE(2))), TN_E_INDEX,
                "0");
}
END_TEST

/* BatchNorm of no channels, no samples, no pixels: the running statistics stay. */
START_TEST(batch_norm)
{
    static const int64_t shapes[][4] = {
        { 2, 0, 8, 8 }, { 0, 3, 8, 8 }, { 2, 3, 0, 8 }, { 2, 3, 8, 0 }, { 0, 0, 2, 2 }
    };
    for (int s = 0; s < COUNT(shapes); s++)
        for (int training = 0; training < 2; training++)
            for (int rank = 2; rank <= 4; rank++) {
                char name[64];
                snprintf(name, sizeof name, "batch_norm %d, rank %d, training %d", s, rank,
                         training);
                tn_shape shape = tn_shape_from(rank, shapes[s]);
                if (rank == 2 && (s == 2 || s == 3)) continue; /* not empty */
                if (rank == 3 && s == 3) continue;
                int64_t channels = shapes[s][1];
                tn_tensor *x = leaf(shape, reals[_i]), *w = leaf(TN_SHAPE(channels), reals[_i]);
                tn_tensor *b = leaf(TN_SHAPE(channels), reals[_i]);
                tn_tensor *mean = tn_full_as(TN_SHAPE(channels), 5, reals[_i], tn_cpu());
                tn_tensor *var = tn_full_as(TN_SHAPE(channels), 7, reals[_i], tn_cpu());
                tn_tensor *y = tn_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5);
                check_shape(name, y, shape);
                tn_tensor *leaves[] = { x, w, b };
                for (int k = 0; k < 3; k++)
                    check_gradient(name, tn_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5),
                                   leaves[k]);
                if (channels > 0) {
                    ck_assert_double_eq(tn_item(tn_amax(mean, NULL, 0, false)), 5);
                    ck_assert_double_eq(tn_item(tn_amin(var, NULL, 0, false)), 7);
                }
                y = tn_batch_norm(x, TN_NONE, TN_NONE, TN_NONE, TN_NONE, true, 0.1, 1e-5);
                check_shape(name, y, shape);
                check_gradient(name, y, x);
            }
}
END_TEST

START_TEST(layer_norm)
{
    tn_dtype t = reals[_i];
    tn_tensor *rows = leaf(TN_SHAPE(0, 4), t), *w = leaf(TN_SHAPE(4), t), *b = leaf(TN_SHAPE(4), t);
    tn_tensor *y = tn_layer_norm(rows, 1, w, b, 1e-5);
    check("no rows", y, TN_SHAPE(0, 4), w);
    check_gradient("no rows", tn_layer_norm(rows, 1, w, b, 1e-5), rows);
    tn_tensor *narrow = leaf(TN_SHAPE(3, 0), t), *w0 = leaf(TN_SHAPE(0), t);
    y = tn_layer_norm(narrow, 1, w0, w0, 1e-5);
    /* which come in pieces, too; each still has its statistics */
    tn_tensor *many = leaf(TN_SHAPE(50000, 0), t);
    check("many rows", tn_layer_norm(many, 1, TN_NONE, TN_NONE, 1e-5), TN_SHAPE(50000, 0), many);
    check("no features", y, TN_SHAPE(3, 0), narrow);
}
END_TEST

START_TEST(convolutions)
{
    tn_dtype t = reals[_i];
    tn_conv2d_spec plain = { 0 }, padded = { .padding = { 1, 1 } };
    tn_tensor *w = leaf(TN_SHAPE(5, 3, 2, 2), t), *b = leaf(TN_SHAPE(5), t),
              *x = leaf(TN_SHAPE(0, 3, 4, 4), t);
    tn_tensor *y = tn_conv2d(x, w, b, plain);
    check_shape("no images", y, TN_SHAPE(0, 5, 3, 3));
    tn_tensor *leaves[] = { x, w, b };
    for (int k = 0; k < 3; k++) check_gradient("no images", tn_conv2d(x, w, b, plain), leaves[k]);
    /* no channels in: the bias */
    tn_tensor *x0 = leaf(TN_SHAPE(2, 0, 4, 4), t), *w0 = leaf(TN_SHAPE(5, 0, 2, 2), t);
    y = tn_conv2d(x0, w0, b, plain);
    check_shape("no channels", y, TN_SHAPE(2, 5, 3, 3));
    ck_assert_double_eq(tn_item(tn_amin(y, NULL, 0, false)), 1);
    ck_assert_double_eq(tn_item(tn_amax(y, NULL, 0, false)), 1);
    check_gradient("no channels", tn_conv2d(x0, w0, TN_NONE, plain), x0);
    check_gradient("no channels", tn_conv2d(x0, w0, TN_NONE, plain), w0);
    /* none out */
    tn_tensor *full = leaf(TN_SHAPE(2, 3, 4, 4), t), *w1 = leaf(TN_SHAPE(0, 3, 2, 2), t);
    check("no kernels", tn_conv2d(full, w1, TN_NONE, plain), TN_SHAPE(2, 0, 3, 3), full);
    /* an image without rows, that padding makes large enough */
    tn_tensor *flat = leaf(TN_SHAPE(2, 3, 0, 4), t);
    y = tn_conv2d(flat, w, b, padded);
    check_shape("no rows", y, TN_SHAPE(2, 5, 1, 5));
    ck_assert_double_eq(tn_item(tn_amax(y, NULL, 0, false)), 1);
    check_gradient("no rows", tn_conv2d(flat, w, TN_NONE, padded), flat);
    assert_null(tn_conv2d(flat, w, b, plain), TN_E_SHAPE, "tn_conv2d");
    /* depthwise, of no images and no channels */
    tn_conv2d_spec depthwise = { .groups = 3 };
    tn_tensor *wd = leaf(TN_SHAPE(3, 1, 2, 2), t);
    check("depthwise", tn_conv2d(x, wd, TN_NONE, depthwise), TN_SHAPE(0, 3, 3, 3), wd);
}
END_TEST

START_TEST(pools)
{
    tn_dtype t = reals[_i];
    tn_pool2d_spec spec = { .kernel = { 2, 2 }, .padding = { 1, 1 } };
    tn_tensor *none = leaf(TN_SHAPE(0, 3, 4, 4), t), *no_channels = leaf(TN_SHAPE(2, 0, 4, 4), t);
    check("max", tn_max_pool2d(none, spec), TN_SHAPE(0, 3, 3, 3), none);
    check("max", tn_max_pool2d(no_channels, spec), TN_SHAPE(2, 0, 3, 3), no_channels);
    check_gradient("average", tn_avg_pool2d(none, spec), none);
    check_gradient("average", tn_avg_pool2d(no_channels, spec), no_channels);
    check_shape("adaptive", tn_adaptive_avg_pool2d(none, 1, 1), TN_SHAPE(0, 3, 1, 1));
    check_gradient("adaptive", tn_adaptive_avg_pool2d(no_channels, 2, 2), no_channels);
    static const int64_t flat[][4] = { { 2, 3, 0, 4 }, { 2, 3, 4, 0 } };
    for (int k = 0; k < 2; k++) { /* no pixel under any window */
        tn_tensor *x = leaf(tn_shape_from(4, flat[k]), t);
        assert_null(tn_max_pool2d(x, spec), TN_E_SHAPE, "tn_max_pool2d: x [2,3,");
        assert_null(tn_avg_pool2d(x, spec), TN_E_SHAPE, "not empty");
        assert_null(tn_adaptive_avg_pool2d(x, 1, 1), TN_E_SHAPE, "tn_adaptive_avg_pool2d");
    }
}
END_TEST

/* ---- modules and what trains them ------------------------------------------------------------ */

/* Layers, with the shape of one sample and of its result. */
static tn_module *layer(int which)
{
    const tn_pool2d_spec pool = { .kernel = { 2, 2 } };
    switch (which) {
    case 0: return tn_linear_new(4, 3, (tn_linear_options){ 0 });
    case 1: return tn_conv2d_new(3, 5, 3, (tn_conv2d_options){ .padding = 1 });
    case 2: return tn_batch_norm2d_new(3, (tn_batch_norm_options){ 0 });
    case 3: return tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 });
    case 4: return tn_layer_norm_new(TN_SHAPE(4), (tn_layer_norm_options){ 0 });
    case 5:
        return tn_positional_encoding_new(4, 7, (tn_positional_encoding_options){ .dropout = 0.1 });
    case 6:
        return tn_multihead_attention_new(4, 2, (tn_multihead_attention_options){ .dropout = 0.1 });
    case 7: return tn_encoder_layer_new(4, 2, (tn_encoder_layer_options){ 0 });
    case 8: return tn_max_pool2d_new(pool);
    case 9: return tn_avg_pool2d_new(pool);
    case 10: return tn_adaptive_avg_pool2d_new(1, 1);
    case 11: return tn_flatten_new(1, -1);
    case 12: return tn_dropout_new(0.5);
    case 13: return tn_softmax_new(-1);
    case 14: return tn_frozen_batch_norm2d_new(3, (tn_frozen_batch_norm_options){ 0 });
    case 15: return tn_gelu_new();
    case 16: return tn_gru_new(4, 3, (tn_recurrent_options){ .layers = 2, .bidirectional = true });
    case 17: return tn_lstm_new(4, 3, (tn_recurrent_options){ 0 });
    default: return NULL;
    }
}

static bool takes_images(int which)
{
    return which == 1 || which == 2 || (which >= 8 && which <= 11) || which == 14;
}

/* An empty batch: the shape of a batch with 0 in front, a gradient of zeros for every parameter. */
START_TEST(layers_of_no_samples)
{
    static const tn_dtype regions[] = { TN_F32, TN_BF16, TN_F16 };
    for (int r = 0; r < 3; r++) {
        tn_module *m = owned(layer(_i));
        bool images = takes_images(_i), sequences = (_i >= 5 && _i <= 7) || _i >= 16;
        tn_tensor *some = images      ? tn_randn(TN_SHAPE(2, 3, 4, 4))
                          : sequences ? tn_randn(TN_SHAPE(2, 5, 4))
                                      : tn_randn(TN_SHAPE(2, 4));
        tn_shape none = tn_shape_get(some);
        none.size[0] = 0;
        tn_tensor *x = leaf(none, TN_F32), *y = NULL, *full = NULL;
        char name[64];
        snprintf(name, sizeof name, "%s in %s", m->type->name, tn_dtype_name(regions[r]));
        TN_AUTOCAST(regions[r])
        {
            full = _i == 6 ? tn_multihead_attention_forward(m, some, some, some,
                                                            (tn_attention_masks){ 0 }, NULL)
                           : tn_forward(m, some);
            y = _i == 6
                    ? tn_multihead_attention_forward(m, x, x, x, (tn_attention_masks){ 0 }, NULL)
                    : tn_forward(m, x);
        }
        tn_shape want = tn_shape_get(full);
        want.size[0] = 0;
        check_shape(name, y, want);
        ck_assert_int_eq(tn_dtype_of(y), tn_dtype_of(full));
        check_gradient(name, y, x);
        tn_list *list = tn_parameters(m);
        for (int i = 0; i < list->n; i++) {
            tn_tensor *g = tn_grad(list->entry[i].tensor);
            ck_assert_msg(tn_is_none(g) || tn_item(tn_amax(tn_abs(g), NULL, 0, false)) == 0,
                          "%s: gradient of %s", name, list->entry[i].name);
        }
    }
}
END_TEST

static tn_optim *optimizer(int which, const tn_list *list)
{
    switch (which) {
    case 0: return tn_sgd(list, (tn_sgd_options){ .lr = 0.1, .momentum = 0.9 });
    case 1: return tn_adam(list, (tn_adam_options){ 0 });
    case 2: return tn_adamw(list, (tn_adamw_options){ 0 });
    case 3: return tn_rmsprop(list, (tn_rmsprop_options){ .momentum = 0.9 });
    default: return tn_adagrad(list, (tn_adagrad_options){ 0 });
    }
}

/* y = x W^T + b, of as many features as W has: also 0, which tn_linear_new refuses. */
static tn_tensor *plain(box *m, tn_tensor *x)
{
    return tn_linear(x, m->a, m->b);
}

static tn_module *plain_new(void)
{
    box *m = tn_module_new(&box_type);
    assert_made(m);
    m->run = plain;
    assert_ok(tn_register_parameter(&m->base, "weight", &m->a, tn_zeros(TN_SHAPE(3, 0))));
    assert_ok(tn_register_parameter(&m->base, "bias", &m->b, tn_ones(TN_SHAPE(3))));
    return tn_module_done(&m->base);
}

/* A parameter without elements beside one with: steps, clipping, averages and files pass over
 * it. */
START_TEST(parameters_of_nothing)
{
    tn_module *m = owned(plain_new()),
              *ema = owned(tn_ema_new(m, (tn_ema_options){ .decay = 0.5 }));
    tn_list *list = tn_parameters(m);
    ck_assert_int_eq(list->n, 2);
    tn_optim *opt = owned(optimizer(_i, list));
    tn_scaler *scaler = tn_scaler_new((tn_scaler_options){ 0 });
    for (int step = 0; step < 3; step++) {
        tn_tensor *loss = tn_sum_all(tn_square(tn_forward(m, tn_ones(TN_SHAPE(2, 0)))));
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(tn_scaler_scale(scaler, loss)));
        assert_ok(tn_scaler_unscale(scaler, opt));
        ck_assert(isfinite(tn_clip_grad_norm(list, 1, step == 2 ? INFINITY : 2, true)));
        assert_ok(tn_clip_grad_value(list, 1));
        assert_ok(tn_scaler_step(scaler, opt));
        assert_ok(tn_scaler_update(scaler));
        assert_ok(tn_ema_update(ema, m));
    }
    check_shape("weight", tn_get_parameter(m, "weight"), TN_SHAPE(3, 0));
    const char *files[] = { in_folder("m.safetensors"), in_folder("m.pt") };
    for (int f = 0; f < 2; f++) {
        uint64_t hash = hash_of_module(m);
        assert_ok(tn_save(m, files[f]));
        assert_ok(tn_load(m, files[f]));
        ck_assert(hash_of_module(m) == hash);
    }
    tn_scaler_free(scaler);
}
END_TEST

void ops_empty_cases(Suite *suite)
{
    TCase *t = file_case(suite, "empty");
    tcase_add_loop_test(t, shapes_are_kept, 0, COUNT(dtypes));
    tcase_add_loop_test(t, reductions_of_nothing, 0, COUNT(reductions));
    add_tests(t, extremes_of_nothing_are_errors, movement, making_and_reading);
    tcase_add_loop_test(t, products, 0, 4);
    tcase_add_loop_test(t, indexing, 0, 2);
    tcase_add_loop_test(t, losses, 0, 2);
    tcase_add_loop_test(t, batch_norm, 0, 2);
    tcase_add_loop_test(t, layer_norm, 0, 4);
    tcase_add_loop_test(t, convolutions, 0, 4);
    tcase_add_loop_test(t, pools, 0, 2);
    tcase_add_loop_test(t, layers_of_no_samples, 0, 18);
    tcase_add_loop_test(t, parameters_of_nothing, 0, 5);
}
