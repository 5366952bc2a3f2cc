/*
 * test_linear_cross_entropy.c - cross entropy of a linear layer, some rows of logits at a time: it
 * is what tn_cross_entropy(tn_linear(x, w, b), target) is, for any number of pieces, and the logits
 * are never all in memory. What one piece gives is compared with PyTorch in test_ops.c.
 *
 * Seen to fail: a piece's part of dW or db replacing the sum; rows of dx, losses or targets of the
 * first piece; the row in a message without the piece's first; an unwanted gradient counted among
 * the saved; backward without the loss's gradient.
 */
#include "autograd/gradients.h"
#include "scarce.h"

/* Of 2^16 classes 256 rows are made at once: three pieces, or two under a sanitizer. */
enum { THREE = 600, TWO = 260, N = TEST_ASAN ? TWO : THREE, K = 32, C = 1 << 16, INPUTS = 3 };

typedef struct problem {
    tn_tensor *in[INPUTS]; /* x, w, b */
    tn_tensor *target;
    tn_cross_entropy_options o;
} problem;

static tn_tensor *random_leaf(tn_shape shape, uint64_t seed, tn_dtype dtype)
{
    return leaf(random_as(shape, -1, 1, seed, dtype));
}

static problem problem_of(int64_t n, int64_t classes, tn_dtype dtype)
{
    problem p = { .in = { random_leaf(TN_SHAPE(n, K), 1, dtype),
                          random_leaf(TN_SHAPE(classes, K), 2, dtype),
                          random_leaf(TN_SHAPE(classes), 3, dtype) },
                  .target = tn_full_as(TN_SHAPE(n), 0, TN_I64, tn_cpu()) };
    int64_t *t = tn_data_mut(p.target);
    assert_made(t);
    for (int64_t i = 0; i < n; i++) t[i] = i % 7 == 3 ? -100 : i * 104729 % classes;
    return p;
}

static tn_tensor *by_pieces(const problem *p)
{
    return tn_linear_cross_entropy_with(p->in[0], p->in[1], p->in[2], p->target, p->o);
}

static tn_tensor *by_two_calls(const problem *p)
{
    return tn_cross_entropy_with(tn_linear(p->in[0], p->in[1], p->in[2]), p->target, p->o);
}

static void gradients(tn_tensor *loss, const problem *p, tn_tensor **grads)
{
    assert_ok(tn_gradients(1, &loss, NULL, INPUTS, (tn_tensor **)p->in, grads, 0));
}

static const tn_dtype dtypes[] = { TN_F32, TN_F64 };
static const tn_cross_entropy_options options[] = {
    { 0 },
    { .reduction = TN_SUM },
    { .label_smoothing = 0.1, .use_ignore_index = true, .ignore_index = 104729 % C },
};

START_TEST(pieces_are_the_two_calls)
{
    tn_dtype dtype = dtypes[_i % 2];
    problem p = problem_of(N, C, dtype);
    p.o = options[_i / 2];
    if (_i / 2 == 2) p.o.weight = random_as(TN_SHAPE(C), 0.5, 2, 4, dtype);
    double close = dtype == TN_F32 ? 2e-5 : 1e-12;
    tn_tensor *made = by_pieces(&p), *expected = by_two_calls(&p), *g[INPUTS], *h[INPUTS];
    assert_close(made, expected, dtype == TN_F32 ? 1e-6 : 1e-13, 0);
    gradients(made, &p, g);
    gradients(expected, &p, h);
    for (int i = 0; i < INPUTS; i++) {
        tn_tensor *most = tn_norm(h[i], INFINITY, NULL, 0, false);
        assert_close(g[i], h[i], close, close * tn_item(most) / 10);
    }
    TN_NO_GRAD assert_close(by_pieces(&p), made, 0, 0);
}
END_TEST

/* Each input alone, and pairs of them: what forward saved is found again. Of two pieces. */
START_TEST(some_inputs_want_no_gradient)
{
    problem p = problem_of(TWO, C, TN_F32);
    tn_tensor *all[INPUTS], *g[INPUTS];
    gradients(by_pieces(&p), &p, all);
    for (int wanted = 1; wanted < 8; wanted += TEST_ASAN ? 2 : 1) {
        tn_tensor *in[INPUTS];
        int n = 0;
        problem some = p;
        for (int i = 0; i < INPUTS; i++)
            if (wanted >> i & 1)
                in[n++] = p.in[i];
            else
                some.in[i] = tn_detach(p.in[i]);
        tn_tensor *loss = by_pieces(&some), *late = by_pieces(&p);
        assert_ok(tn_gradients(1, &loss, NULL, n, in, g, 0));
        for (int i = 0, k = 0; i < INPUTS; i++)
            if (wanted >> i & 1) assert_close(g[k++], all[i], 0, 0);
        assert_ok(tn_gradients(1, &late, NULL, n, in, g, 0)); /* wanted by forward, not here */
        for (int i = 0, k = 0; i < INPUTS; i++)
            if (wanted >> i & 1) assert_close(g[k++], all[i], 0, 0);
    }
}
END_TEST

START_TEST(the_loss_is_scaled_and_the_graph_kept)
{
    problem p = problem_of(20, 50, TN_F64);
    tn_tensor *once[INPUTS], *loss = by_pieces(&p);
    gradients(by_two_calls(&p), &p, once);
    assert_ok(tn_backward_from(tn_mul_scalar(loss, 3), TN_NONE, TN_RETAIN_GRAPH));
    assert_ok(tn_backward_from(loss, TN_NONE, TN_RETAIN_GRAPH));
    assert_ok(tn_backward(loss));
    for (int i = 0; i < INPUTS; i++)
        assert_close(tn_grad(p.in[i]), tn_mul_scalar(once[i], 5), 1e-12, 1e-15);
    assert_fails(tn_backward(loss), TN_E_STATE, "used by an earlier backward");
}
END_TEST

/* The mean over no row. */
START_TEST(all_rows_ignored)
{
    problem p = problem_of(4, 5, TN_F32);
    tn_tensor *g[INPUTS];
    p.target = tn_full_as(TN_SHAPE(4), -100, TN_I64, tn_cpu());
    tn_tensor *loss = by_pieces(&p);
    ck_assert(isnan(tn_item(loss)));
    gradients(loss, &p, g);
    for (int i = 0; i < INPUTS; i++) assert_close(g[i], tn_zeros_like(p.in[i]), 0, 0);
    p.in[0] = random_leaf(TN_SHAPE(0, K), 1, TN_F32);
    p.target = tn_full_as(TN_SHAPE(0), 0, TN_I64, tn_cpu());
    ck_assert(isnan(tn_item(by_pieces(&p))));
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t peak_of(tn_tensor *(*loss)(const problem *p), const problem *p)
{
    tn_scope scope = tn_scope_begin();
    int64_t before = tn_memory().in_use;
    tn_tensor *g[INPUTS];
    tn_memory_reset_peak();
    gradients(loss(p), p, g);
    int64_t peak = tn_memory().peak_in_use - before;
    tn_scope_end(scope);
    return peak;
}

START_TEST(the_logits_are_never_all_there)
{
    problem p = problem_of(THREE, C, TN_F32);
    int64_t logits = (int64_t)THREE * C * 4, dw = (int64_t)C * K * 4;
    ck_assert_int_lt(peak_of(by_pieces, &p), logits / 2 + 2 * dw);
    ck_assert_int_gt(peak_of(by_two_calls, &p), 2 * logits);
}
END_TEST

static tn_status a_pass(void *user)
{
    problem *p = user;
    tn_tensor *loss = by_pieces(p);
    tn_status status = loss ? tn_backward(loss) : tn_error_status();
    for (int i = 0; i < INPUTS; i++) {
        ck_assert_int_eq(tn_is_none(tn_grad(p->in[i])), status != TN_OK);
        assert_ok(tn_set_grad(p->in[i], TN_NONE));
    }
    return status;
}

/* A request that fails succeeds the second time if there was something cached to give back. */
START_TEST(out_of_memory_changes_nothing)
{
    scarce_install();
    problem p = problem_of(6, 5, _i ? TN_BF16 : TN_F32);
    ck_assert_int_gt(scarce_sweep_warm(a_pass, NULL, &p), 20);
}
END_TEST

/* ---- threads, half precision ----------------------------------------------------------------- */

START_TEST(bits_for_any_threads)
{
    static const int threads[] = { 1, 2, 3, 7 };
    problem p = problem_of(N, C, TN_F32);
    tn_tensor *first[INPUTS] = { NULL }, *g[INPUTS], *loss = NULL, *again = NULL;
    for (int i = 0; i < 4; i += TEST_ASAN ? 2 : 1) {
        assert_ok(tn_set_num_threads(threads[i]));
        if (_i)
            TN_AUTOCAST(TN_BF16) again = by_pieces(&p);
        else
            again = by_pieces(&p);
        gradients(again, &p, i ? g : first);
        if (i) assert_close(again, loss, 0, 0);
        for (int k = 0; k < INPUTS && i; k++) assert_close(g[k], first[k], 0, 0);
        loss = again;
    }
}
END_TEST

/* In a region the loss and the gradients of f32 leaves are f32. Beside f64, errors are those of
 * rounding logits, their gradient, dx and each piece of db to bf16. */
START_TEST(autocast)
{
    problem p = problem_of(N, C, TN_F32), exact = p;
    tn_tensor *g[INPUTS], *h[INPUTS], *two[INPUTS], *loss = NULL, *both = NULL;
    for (int i = 0; i < INPUTS; i++) exact.in[i] = leaf(tn_detach(tn_to_dtype(p.in[i], TN_F64)));
    TN_AUTOCAST(TN_BF16)
    {
        loss = by_pieces(&p);
        both = by_two_calls(&p);
    }
    ck_assert_int_eq(tn_dtype_of(loss), TN_F32);
    tn_tensor *expected = by_two_calls(&exact);
    assert_close(tn_to_dtype(loss, TN_F64), expected, 1e-3, 0);
    gradients(loss, &p, g);
    gradients(both, &p, two);
    gradients(expected, &exact, h);
    for (int i = 0; i < INPUTS; i++) {
        ck_assert_int_eq(tn_dtype_of(g[i]), TN_F32);
        tn_tensor *off = tn_sub(tn_to_dtype(g[i], TN_F64), h[i]);
        tn_tensor *off_two = tn_sub(tn_to_dtype(two[i], TN_F64), h[i]);
        double norm = tn_item(tn_norm(h[i], 2, NULL, 0, false));
        double one = tn_item(tn_norm(off, 2, NULL, 0, false)) / norm;
        double other = tn_item(tn_norm(off_two, 2, NULL, 0, false)) / norm;
        ck_assert_msg(one < 1e-2 && one < 1.5 * other, "gradient %d: off by %g, two calls %g", i,
                      one, other);
    }
}
END_TEST

/* In f16, where small gradients would be rounded to 0 before a scaler scales them: all logits at
 * once, but in f32. */
START_TEST(f16_is_as_f32)
{
    problem p = problem_of(20, 50, TN_F32);
    tn_tensor *g[INPUTS], *h[INPUTS], *loss = NULL, *both = NULL;
    for (int i = 0; i < INPUTS; i++)
        p.in[i] = leaf(tn_detach(tn_to_dtype(tn_to_dtype(p.in[i], TN_F16), TN_F32)));
    TN_AUTOCAST(TN_F16) loss = by_pieces(&p);
    both = by_two_calls(&p);
    assert_close(loss, both, 1e-6, 1e-6);
    gradients(loss, &p, g);
    gradients(both, &p, h);
    for (int i = 0; i < INPUTS; i++) assert_close(g[i], h[i], 2e-4, 2e-3);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(refusals)
{
    problem p = problem_of(THREE, C, TN_F32);
    tn_tensor *x = p.in[0], *w = p.in[1], *b = p.in[2], *t = p.target;
    ((int64_t *)tn_data_mut(t))[450] = C;
    assert_null(by_pieces(&p), TN_E_INDEX, "target value 65536 at row 450: want 0..65535");
    assert_null(tn_linear_cross_entropy(x, tn_narrow(w, 1, 0, 3), b, t), TN_E_SHAPE,
                "want x [..., in] and weight [C, in]");
    assert_null(tn_linear_cross_entropy(x, w, tn_narrow(b, 0, 0, 3), t), TN_E_SHAPE,
                "want bias [65536]");
    assert_null(tn_linear_cross_entropy(x, w, b, tn_narrow(t, 0, 0, 3)), TN_E_SHAPE,
                "want target [600], class ids");
    assert_null(tn_linear_cross_entropy(x, w, b, x), TN_E_SHAPE,
                "want target [600,65536], probabilities");
    assert_null(tn_linear_cross_entropy(tn_to_dtype(x, TN_BF16), w, b, t), TN_E_DTYPE,
                "x is bf16, weight is f32, bias is f32: want one floating dtype");
    assert_null(tn_linear_cross_entropy(x, w, TN_NONE, tn_to_dtype(t, TN_BOOL)), TN_E_DTYPE,
                "bool");
    assert_null(tn_linear_cross_entropy(TN_NONE, w, b, t), TN_E_INVALID,
                "x is TN_NONE: want a tensor");
    p.o.weight = tn_ones(TN_SHAPE(3));
    assert_null(by_pieces(&p), TN_E_SHAPE, "class weights [3]: want them [65536]");
    p.o.weight = random_leaf(TN_SHAPE(C), 1, TN_F32);
    assert_null(by_pieces(&p), TN_E_INVALID, "tn_detach(weight)");
    p.o = (tn_cross_entropy_options){ .label_smoothing = 2 };
    assert_null(by_pieces(&p), TN_E_INVALID, "label_smoothing 2");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("linear_cross_entropy");
    TCase *t = test_case(suite, "linear_cross_entropy");
    tcase_add_loop_test(t, pieces_are_the_two_calls, TEST_ASAN ? 4 : 0, 6);
    tcase_add_loop_test(t, out_of_memory_changes_nothing, 0, 2);
    tcase_add_loop_test(t, bits_for_any_threads, 0, 2);
    add_tests(t, some_inputs_want_no_gradient, the_loss_is_scaled_and_the_graph_kept,
              all_rows_ignored, the_logits_are_never_all_there, autocast, f16_is_as_f32, refusals);
    return suite;
}
