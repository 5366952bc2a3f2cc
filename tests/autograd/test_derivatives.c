/*
 * test_derivatives.c - tn_vjp, tn_jvp, tn_jacobian, tn_hessian, tn_hvp: PyTorch's numbers (golden
 * file by golden/make_derivatives.py), closed forms, options, refusals, and what they leave alone.
 * Seen to fail: every g seeded with v[0] (as_pytorch); grad mode not restored, y not detached, an
 * input that requires grad given as it is (twice_the_same); rows not dropped (out_of_memory); what
 * tn_prod, tn_norm and tn_pow recorded before (products_with_zeros and the two after it).
 */
#include "autograd/gradients.h"
#include "scarce.h"

/* ---- PyTorch's numbers ----------------------------------------------------------------------- */

FUNCTION(product, tn_tanh(tn_matmul(x[0], x[1])))
FUNCTION(apart, tn_mul_scalar(tn_exp(x[0]), 2))

static tn_tensor *network(tn_tensor **x, void *user)
{
    (void)user;
    tn_tensor *h = tn_tanh(tn_add(tn_matmul(x[0], x[1]), x[2]));
    h = tn_matmul(tn_layer_norm(h, 1, TN_NONE, TN_NONE, 1e-5), x[3]);
    return tn_cross_entropy_with(h, tn_from_ints((int64_t[]){ 2, 0, 1 }, TN_SHAPE(3)),
                                 (tn_cross_entropy_options){ .label_smoothing = 0.1 });
}

static tn_tensor *attention(tn_tensor **x, void *user)
{
    (void)user;
    tn_tensor *y = tn_scaled_dot_product_attention(x[0], x[1], x[2], TN_NONE, true, 0);
    return tn_sum_all(tn_mul(y, tn_sin(y)));
}

static tn_tensor *normed(tn_tensor **x, void *user)
{
    (void)user;
    tn_tensor *y = tn_batch_norm(x[0], x[1], TN_NONE, TN_NONE, TN_NONE, true, 0.1, 1e-5);
    return tn_mean(tn_pow_scalar(y, 3), NULL, 0, false);
}

static tn_tensor *image(tn_tensor **x, void *user)
{
    (void)user;
    tn_conv2d_spec spec = { .stride = { 2, 2 }, .padding = { 1, 1 } };
    return tn_prod(tn_softplus(tn_conv2d(x[0], x[1], TN_NONE, spec), 1, 20), TN_AXES(1), false);
}

static const struct {
    const char *name;
    tn_function f;
    int n;
    bool single;
} cases[] = {
    { "product", product, 2, false }, { "apart", apart, 2, false },
    { "network", network, 4, true },  { "attention", attention, 3, true },
    { "normed", normed, 2, true },    { "image", image, 2, false },
};
enum { MOST = 4 };

static tn_list *golden;

static tn_tensor *get(const char *name, const char *part, int number)
{
    char key[64], digit[] = { (char)('0' + number), '\0' };
    snprintf(key, sizeof key, "%s/%s%s", name, part, number < 0 ? "" : digit);
    tn_tensor *t = tn_list_get(golden, key);
    ck_assert_msg(t != NULL, "%s is not in derivatives.safetensors", key);
    return t;
}

static void assert_golden(tn_tensor *actual, const char *name, const char *part, int number)
{
    const char *text = difference(actual, get(name, part, number), 1e-9, 1e-11);
    ck_assert_msg(!text, "%s, %s %d: %s", name, part, number, text);
}

START_TEST(as_pytorch)
{
    golden = tn_load_tensors(golden_path("derivatives.safetensors"), NULL);
    assert_made(golden);
    const char *name = cases[_i].name;
    tn_function f = cases[_i].f;
    int n = cases[_i].n;
    tn_tensor *x[MOST], *u[MOST], *out[MOST], *y = NULL;
    for (int i = 0; i < n; i++) {
        x[i] = get(name, "x", i);
        u[i] = get(name, "u", i);
    }
    assert_ok(tn_vjp(f, x, n, NULL, get(name, "v", -1), &y, out, TN_CREATE_GRAPH * (_i % 2)));
    assert_golden(y, name, "y", -1);
    for (int i = 0; i < n; i++) assert_golden(out[i], name, "vjp", i);
    assert_ok(tn_jvp(f, x, n, NULL, u, &y, out, 0));
    assert_golden(y, name, "y", -1);
    assert_golden(out[0], name, "jvp", -1);
    assert_ok(tn_jacobian(f, x, n, NULL, out, 0));
    for (int i = 0; i < n; i++) assert_golden(out[i], name, "jacobian", i);
    if (!cases[_i].single) return;
    assert_ok(tn_hvp(f, x, n, NULL, u, &y, out, 0));
    assert_golden(y, name, "y", -1);
    for (int i = 0; i < n; i++) assert_golden(out[i], name, "hvp", i);
    tn_tensor *hessian[MOST * MOST];
    assert_ok(tn_hessian(f, x, n, NULL, hessian, 0));
    for (int i = 0; i < n * n; i++) {
        char part[16];
        snprintf(part, sizeof part, "hessian%d", i / n);
        assert_golden(hessian[i], name, part, i % n);
    }
}
END_TEST

/* ---- closed forms ---------------------------------------------------------------------------- */

/* x^T A x + b x of a matrix A in user */
FUNCTION(quadratic, tn_add(tn_sum_all(tn_mul(x[0], tn_matmul(user, x[0]))), tn_sum_all(x[1])))

START_TEST(a_quadratic_form)
{
    tn_tensor *a = F64(TN_SHAPE(2, 2), 1, 2, 5, 7);
    tn_tensor *x[] = { F64(TN_SHAPE(2), 0.5, -3), F64(TN_SHAPE(1), 4) };
    tn_tensor *h[4], *hv[2], *v[] = { F64(TN_SHAPE(2), 1, -1), F64(TN_SHAPE(1), 9) };
    assert_ok(tn_hessian(quadratic, x, 2, a, h, 0));
    assert_values(h[0], 1e-14, 2, 7, 7, 14); /* A + A^T */
    for (int i = 1; i < 4; i++) ck_assert(tn_item(tn_norm(h[i], 1, NULL, 0, false)) == 0);
    ck_assert_int_eq(tn_rank(h[1]), 2);
    ck_assert_int_eq((int)tn_size(h[2], 0), 1);
    assert_ok(tn_hvp(quadratic, x, 2, a, v, NULL, hv, 0));
    assert_values(hv[0], 1e-14, -5, -7);
    assert_values(hv[1], 0, 0);
}
END_TEST

FUNCTION(first_only, tn_matmul(F64(TN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), x[0]))

START_TEST(a_linear_map)
{
    tn_tensor *x[] = { F64(TN_SHAPE(3), 1, -1, 2), F64(TN_SHAPE(2, 2), 1, 2, 3, 4) };
    tn_tensor *j[2], *y, *dy, *v[] = { F64(TN_SHAPE(3), 1, 10, 100), x[1] };
    assert_ok(tn_jacobian(first_only, x, 2, NULL, j, 0));
    assert_values(j[0], 0, 1, 2, 3, 4, 5, 6);
    ck_assert_int_eq(tn_rank(j[1]), 3); /* [2, 2, 2] of zeros */
    ck_assert(tn_item(tn_norm(j[1], 1, NULL, 0, false)) == 0);
    assert_ok(tn_jvp(first_only, x, 2, NULL, v, &y, &dy, 0));
    assert_values(y, 0, 5, 11);
    assert_values(dy, 0, 321, 654);
    tn_tensor *dx[2];
    assert_ok(tn_vjp(first_only, x, 2, NULL, F64(TN_SHAPE(2), 1, 10), NULL, dx, 0));
    assert_values(dx[0], 0, 41, 52, 63);
    assert_values(dx[1], 0, 0, 0, 0, 0);
}
END_TEST

FUNCTION(identity, x[0])
FUNCTION(constant, user)

START_TEST(identity_and_constant)
{
    tn_tensor *x = F64(TN_SHAPE(2), 3, 4), *j, *y, *dy, *one = F64(TN_SCALAR, 2);
    for (int flags = 0; flags <= TN_CREATE_GRAPH; flags += TN_CREATE_GRAPH) {
        assert_ok(tn_jacobian(identity, &x, 1, NULL, &j, flags));
        assert_values(j, 0, 1, 0, 0, 1);
        assert_ok(tn_jvp(identity, &x, 1, NULL, &x, &y, &dy, flags));
        assert_values(dy, 0, 3, 4);
        assert_ok(tn_vjp(identity, &x, 1, NULL, x, &y, &dy, flags));
        ck_assert(!tn_same_storage(dy, x));
        assert_ok(tn_jacobian(constant, &x, 1, one, &j, flags));
        assert_values(j, 0, 0, 0);
        assert_ok(tn_jvp(constant, &x, 1, one, &x, &y, &dy, flags));
        assert_values(dy, 0, 0);
        assert_ok(tn_hessian(constant, &x, 1, one, &j, flags));
        assert_values(j, 0, 0, 0, 0, 0);
    }
    /* no v for one element: 1 */
    assert_ok(tn_vjp(identity, &one, 1, NULL, TN_NONE, NULL, &dy, 0));
    assert_values(dy, 0, 1);
    tn_tensor *none = TN_NONE;
    assert_ok(tn_jvp(identity, &one, 1, NULL, &none, NULL, &dy, 0));
    assert_values(dy, 0, 1);
    /* nothing in it */
    x = tn_empty_as(TN_SHAPE(2, 0), TN_F64, tn_cpu());
    assert_ok(tn_jacobian(identity, &x, 1, NULL, &j, 0));
    ck_assert(tn_rank(j) == 4 && tn_numel(j) == 0);
    assert_ok(tn_jvp(identity, &x, 1, NULL, &x, NULL, &dy, 0));
    ck_assert_int_eq((int)tn_numel(dy), 0);
}
END_TEST

FUNCTION(fourth_power, tn_sum_all(tn_pow_scalar(x[0], 4)))

/* Derivatives of derivatives: d(sum of H)/dx = 24 x, from x's own graph. */
START_TEST(create_graph)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(2), 3, -1)), *h, *g, *y, *v = leaf(F64(TN_SHAPE(2), 1, 2));
    assert_ok(tn_hessian(fourth_power, &x, 1, NULL, &h, 0));
    assert_values(h, 1e-12, 108, 0, 0, 12);
    ck_assert(!tn_requires_grad(h));
    assert_ok(tn_hessian(fourth_power, &x, 1, NULL, &h, TN_CREATE_GRAPH));
    tn_tensor *sum = tn_sum_all(h);
    assert_ok(tn_gradients(1, &sum, NULL, 1, &x, &g, 0));
    assert_values(g, 1e-12, 72, -24);
    assert_ok(tn_hvp(fourth_power, &x, 1, NULL, &v, &y, &h, TN_CREATE_GRAPH));
    sum = tn_add(tn_sum_all(h), y); /* 12 (9 v0 + v1) + x^4 */
    assert_ok(tn_backward(sum));
    assert_values(tn_grad(v), 1e-12, 108, 12);
    assert_values(tn_grad(x), 1e-12, 72 + 108, -48 - 4);
    assert_ok(tn_jvp(fourth_power, &x, 1, NULL, &v, &y, &h, TN_CREATE_GRAPH));
    assert_ok(tn_gradients(1, &h, NULL, 1, &v, &g, 0)); /* 4 x^3 */
    assert_values(g, 1e-12, 108, -4);
    assert_ok(tn_jvp(fourth_power, &x, 1, NULL, &v, &y, &h, 0));
    ck_assert(!tn_requires_grad(h) && !tn_requires_grad(y));
}
END_TEST

FUNCTION(thrice, tn_sum_all(tn_mul(tn_mul(x[0], x[1]), user)))

/* The same tensor as two inputs and through user: three different ones. */
START_TEST(twice_the_same)
{
    tn_tensor *x = leaf(F64(TN_SHAPE(1), 3)), *in[] = { x, x }, *out[4];
    for (int flags = 0; flags <= TN_CREATE_GRAPH; flags += TN_CREATE_GRAPH) {
        assert_ok(tn_jacobian(thrice, in, 2, x, out, flags));
        assert_values(out[0], 0, 9);
        assert_ok(tn_hessian(thrice, in, 2, x, out, flags));
        assert_values(out[0], 0, 0);
        assert_values(out[1], 0, 3);
    }
}
END_TEST

/* The derivative of a product by different elements is the product of the others, by the same one
 * twice it is 0. y is already the derivative by the elements of gone. */
static void products_deeper(tn_tensor *y, tn_tensor *x, unsigned gone, bool twice, int orders)
{
    tn_tensor *g;
    assert_ok(tn_gradients(1, &y, NULL, 1, &x, &g, orders > 1 ? TN_CREATE_GRAPH : TN_RETAIN_GRAPH));
    g = tn_flatten(g, 0, -1);
    for (int i = 0; i < (int)tn_numel(x); i++) {
        bool again = twice || gone >> i & 1u;
        unsigned without = gone | 1u << i;
        double product = !again;
        for (int j = 0; j < (int)tn_numel(x); j++)
            if (!(without >> j & 1u)) product *= tn_item(tn_select(tn_flatten(x, 0, -1), 0, j));
        tn_tensor *next = tn_select(g, 0, i);
        ck_assert_msg(fabs(tn_item(next) - product) < 1e-12,
                      "without %x, %d orders left: %g in place of %g", without, orders - 1,
                      tn_item(next), product);
        if (orders > 1) products_deeper(next, x, without, again, orders - 1);
    }
}

START_TEST(products_with_zeros)
{
    static const double values[][6] = { { 2, 3, 5, 7, 11, 13 }, { 2, 3, 0, 7, 11, 13 },
                                        { 0, 3, 5, 0, 11, 13 }, { 0, 0, 5, 7, 0, 13 },
                                        { 2, 0, 0, 0, 0, 13 },  { 0 } };
    const double *v = values[_i];
    tn_tensor *rows = leaf(F64(TN_SHAPE(2, 3), v[0], v[1], v[2], v[3], v[4], v[5]));
    tn_tensor *line = leaf(F64(TN_SHAPE(5), v[0], v[1], v[2], v[3], v[4]));
    products_deeper(tn_prod(line, TN_AXES(0), false), line, 0, false, 4);
    products_deeper(tn_prod(rows, NULL, 0, false), rows, 0, false, 3);
}
END_TEST

/* (x^p + 1)^(1/p) = 1 + x^p / p - ... */
START_TEST(even_norms_at_zero)
{
    for (int p = 2; p <= 6; p += 2) {
        tn_tensor *x = leaf(F64(TN_SHAPE(2), 0, 1)), *y = tn_norm(x, p, NULL, 0, false), *g;
        double wanted = 1.0 / p;
        for (int order = 1; order <= p; order++) {
            assert_ok(tn_gradients(1, &y, NULL, 1, &x, &g, TN_CREATE_GRAPH));
            y = tn_select(g, 0, 0);
            wanted *= order;
            ck_assert_msg(fabs(tn_item(y) - (order < p ? 0 : wanted)) < 1e-10,
                          "%d-norm, order %d: %g", p, order, tn_item(y));
        }
    }
}
END_TEST

/* As PyTorch: of elu's second derivative at 0 the right one, though its slope is the left one. */
START_TEST(elu_curves_left_of_0)
{
    tn_tensor *x = leaf(F32(TN_SHAPE(4), 0, -0.0f, 1, -1)), *g, *h;
    tn_tensor *y = tn_sum_all(tn_elu(x, 2));
    assert_ok(tn_gradients(1, &y, NULL, 1, &x, &g, TN_CREATE_GRAPH));
    g = tn_sum_all(g);
    assert_ok(tn_gradients(1, &g, NULL, 1, &x, &h, 0));
    assert_values(h, 1e-6, 0, 0, 0, 2 * 0.36787944);
}
END_TEST

/* The derivative of a^b by both is a^(b-1) (1 + b ln a), in either order; 0^0 is left out. */
START_TEST(power_with_exponent_zero)
{
    for (int first = 0; first < 2; first++) {
        tn_tensor *in[] = { leaf(F64(TN_SHAPE(3), 4, 0.5, 0)), leaf(F64(TN_SHAPE(3), 0, 0, 0)) };
        tn_tensor *y = tn_sum_all(tn_pow(in[0], in[1])), *g;
        assert_ok(tn_gradients(1, &y, NULL, 1, &in[first], &g, TN_CREATE_GRAPH));
        y = tn_sum_all(g);
        assert_ok(tn_gradients(1, &y, NULL, 1, &in[1 - first], &g, 0));
        assert_values(g, 1e-15, 0.25, 2, 0);
    }
    /* 1 / a is beyond f16, f64 */
    tn_tensor *a[] = { leaf(tn_to_dtype(F64(TN_SHAPE(1), 1e-6), TN_F16)),
                       leaf(F64(TN_SHAPE(1), 1e-310)) };
    for (int i = 0; i < 2; i++) {
        tn_tensor *y = tn_sum_all(tn_pow(a[i], tn_zeros_like(a[i]))), *g;
        assert_ok(tn_gradients(1, &y, NULL, 1, &a[i], &g, TN_CREATE_GRAPH));
        assert_values(g, 0, 0);
    }
}
END_TEST

/* ---- options and refusals -------------------------------------------------------------------- */

START_TEST(strict)
{
    tn_tensor *x[] = { F64(TN_SHAPE(3), 1, 2, 3), F64(TN_SCALAR, 1) }, *out[4], *y;
    const char *text = "does not depend on input 1";
    tn_tensor *seed = F64(TN_SHAPE(2), 1, 1);
    assert_fails(tn_vjp(first_only, x, 2, NULL, seed, &y, out, TN_STRICT), TN_E_INVALID, text);
    ck_assert(!out[0] && !out[1] && !y);
    assert_fails(tn_jvp(first_only, x, 2, NULL, x, &y, out, TN_STRICT), TN_E_INVALID, text);
    assert_fails(tn_jacobian(first_only, x, 2, NULL, out, TN_STRICT), TN_E_INVALID, text);
    assert_fails(tn_jacobian(constant, x, 1, seed, out, TN_STRICT), TN_E_INVALID, "input 0");
    tn_tensor *a = F64(TN_SHAPE(3, 3), 1, 0, 0, 0, 1, 0, 0, 0, 1);
    assert_fails(tn_hvp(quadratic, x, 2, a, x, &y, out, TN_STRICT), TN_E_INVALID,
                 "the gradient does not depend on input 1");
    assert_fails(tn_hessian(quadratic, x, 2, a, out, TN_STRICT), TN_E_INVALID, text);
    assert_ok(tn_jacobian(first_only, x, 1, NULL, out, TN_STRICT));
}
END_TEST

FUNCTION(nothing, TN_NONE)
FUNCTION(whole_numbers, tn_to_dtype(x[0], TN_I64))

static tn_tensor *fails(tn_tensor **x, void *user)
{
    (void)user;
    tn_set_grad_enabled(false);
    return tn_add(x[0], tn_zeros(TN_SHAPE(7)));
}

START_TEST(refusals)
{
    tn_tensor *x = F64(TN_SHAPE(2), 1, 2), *ids = tn_zeros_like(tn_to_dtype(x, TN_I64));
    tn_tensor *single = tn_to_dtype(x, TN_F32), *none = TN_NONE, *null = NULL, *out = x, *y = x;
    assert_fails(tn_vjp(identity, &x, 1, NULL, single, &y, &out, 0), TN_E_SHAPE,
                 "tn_vjp: v [2] of f32 for [2] of f64");
    ck_assert(!out && !y);
    assert_fails(tn_vjp(identity, &x, 1, NULL, TN_NONE, &y, &out, 0), TN_E_SHAPE, "v TN_NONE");
    assert_fails(tn_vjp(identity, &x, 1, NULL, NULL, &y, &out, 0), TN_E_INVALID, "v");
    assert_fails(tn_jvp(identity, &x, 1, NULL, &none, &y, &out, 0), TN_E_SHAPE, "v TN_NONE");
    assert_fails(tn_jvp(identity, &x, 1, NULL, NULL, &y, &out, 0), TN_E_INVALID, "v");
    assert_fails(tn_jacobian(identity, &ids, 1, NULL, &out, 0), TN_E_DTYPE, "input 0 is i64");
    assert_fails(tn_jacobian(identity, &none, 1, NULL, &out, 0), TN_E_INVALID, "an input");
    assert_fails(tn_jacobian(identity, &null, 1, NULL, &out, 0), TN_E_INVALID, "an input");
    assert_fails(tn_jacobian(identity, NULL, 1, NULL, &out, 0), TN_E_INVALID, "1 inputs");
    assert_fails(tn_jacobian(identity, &x, 0, NULL, &out, 0), TN_E_INVALID, "0 inputs");
    assert_fails(tn_hessian(identity, &x, -2, NULL, &out, 0), TN_E_INVALID, "-2 inputs");
    assert_fails(tn_jacobian(identity, &x, 1, NULL, NULL, 0), TN_E_INVALID, "results");
    assert_fails(tn_jacobian(NULL, &x, 1, NULL, &out, 0), TN_E_INVALID, "f");
    assert_fails(tn_jacobian(nothing, &x, 1, NULL, &out, 0), TN_E_DTYPE, "returned TN_NONE");
    assert_fails(tn_jacobian(whole_numbers, &x, 1, NULL, &out, 0), TN_E_DTYPE, "returned i64");
    assert_fails(tn_hessian(identity, &x, 1, NULL, &out, 0), TN_E_SHAPE, "want one element");
    assert_fails(tn_hvp(identity, &x, 1, NULL, &x, &y, &out, 0), TN_E_SHAPE, "want one element");
    tn_tensor *deep = tn_ones(TN_SHAPE(1, 1, 1, 1, 1));
    assert_fails(tn_jacobian(identity, &deep, 1, NULL, &out, 0), TN_E_SHAPE, "at most 8 axes");
    assert_fails(tn_jacobian(fails, &x, 1, NULL, &out, 0), TN_E_SHAPE, "tn_add");
    ck_assert(tn_grad_enabled());
}
END_TEST

/* ---- what is left alone ---------------------------------------------------------------------- */

/* A parameter beside the inputs, found through user. */
FUNCTION(scaled, tn_sum_all(tn_mul(tn_square(x[0]), user)))

START_TEST(the_callers_tensors_are_left_alone)
{
    tn_tensor *w = leaf(F64(TN_SHAPE(2), 3, 4)), *x = leaf(F64(TN_SHAPE(2), 1, 2)), *out, *y;
    tn_tensor *grad = F64(TN_SHAPE(2), 8, 9);
    assert_ok(tn_set_grad(x, grad));
    uint64_t version = tn_version(x);
    for (int on = 0; on < 2; on++) {
        bool was = tn_set_grad_enabled(on);
        int64_t live = tn_live_tensors();
        tn_scope s = tn_scope_begin();
        for (int flags = 0; flags <= TN_CREATE_GRAPH; flags += TN_CREATE_GRAPH) {
            assert_ok(tn_hessian(scaled, &x, 1, w, &out, flags));
            assert_values(out, 0, 6, 0, 0, 8);
            assert_ok(tn_hvp(scaled, &x, 1, w, &x, &y, &out, flags));
            assert_ok(tn_jvp(scaled, &x, 1, w, &x, &y, &out, flags));
            assert_ok(tn_vjp(scaled, &x, 1, w, TN_NONE, &y, &out, flags));
            assert_ok(tn_jacobian(scaled, &x, 1, w, &out, flags));
            assert_values(out, 0, 6, 16);
        }
        tn_scope_end(s);
        ck_assert_int_eq(tn_live_tensors(), live);
        ck_assert_int_eq(tn_grad_enabled(), on);
        tn_set_grad_enabled(was);
    }
    assert_values(tn_grad(x), 0, 8, 9);
    ck_assert(tn_is_none(tn_grad(w)));
    ck_assert(tn_version(x) == version && tn_is_leaf(x));
}
END_TEST

/* Each of them in turn; nothing remains of a call that failed. */
typedef struct sweep {
    tn_tensor *x[3];
    int which, flags;
} sweep;

static tn_status differentiate(void *user)
{
    sweep *s = user;
    tn_tensor **x = s->x, *out[4] = { x[0], x[0], x[0], x[0] }, *y = x[0];
    tn_status status = TN_OK;
    switch (s->which) {
    case 0: status = tn_vjp(quadratic, x, 2, x[2], TN_NONE, &y, out, s->flags); break;
    case 1: status = tn_jvp(quadratic, x, 2, x[2], x, &y, out, s->flags); break;
    case 2: status = tn_jacobian(quadratic, x, 2, x[2], out, s->flags); break;
    case 3: status = tn_hessian(quadratic, x, 2, x[2], out, s->flags); break;
    default: status = tn_hvp(quadratic, x, 2, x[2], x, &y, out, s->flags);
    }
    ck_assert(status == TN_OK || !out[0]);
    ck_assert(tn_grad_enabled());
    ck_assert(tn_is_none(tn_grad(x[0])) && tn_is_none(tn_grad(x[1])));
    return status;
}

START_TEST(out_of_memory)
{
    scarce_install();
    scarce.sticky = true;
    sweep s = { { leaf(F64(TN_SHAPE(2), 1, 2)), leaf(F64(TN_SHAPE(1), 3)),
                  F64(TN_SHAPE(2, 2), 1, 2, 3, 4) },
                _i / 2,
                TN_CREATE_GRAPH * (_i % 2) };
    ck_assert_int_gt(scarce_sweep_warm(differentiate, NULL, &s), 10);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("derivatives");
    TCase *t = test_case(suite, "values");
    tcase_add_loop_test(t, as_pytorch, 0, COUNT(cases));
    tcase_add_loop_test(t, products_with_zeros, 0, 6);
    add_tests(t, a_quadratic_form, a_linear_map, identity_and_constant, create_graph,
              twice_the_same, even_norms_at_zero, elu_curves_left_of_0, power_with_exponent_zero);
    t = test_case(suite, "calls");
    add_tests(t, strict, refusals, the_callers_tensors_are_left_alone);
    tcase_add_loop_test(t, out_of_memory, 0, 10);
    return suite;
}
