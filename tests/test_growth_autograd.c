/*
 * test_growth_autograd.c - what gradients cost grows as what there is: each row does one thing with n and
 * with 4 n of something, and may take 5 times as long, not 16.
 *
 * Time is the thread's CPU time, the best of several runs. A row that fails is measured again, on a busy
 * machine single runs say little, and then with 4 n and 16 n: where the memory of n fits a cache and that of
 * 4 n does not, each costs more, once; what grows with the square of n fails at every size.
 *
 * Seen to fail before: hooks 15 times as long, hooks removed 13, hooks of a module 15, split 9, derivatives
 * of derivatives 16.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "boxes.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static tn_tensor *leaf(int64_t n)
{
    tn_tensor *t = tn_ones(TN_SHAPE(n));
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

static tn_tensor *total(tn_tensor *t)
{
    return tn_sum(t, NULL, 0, false);
}

/* ---- what is done, n times over -------------------------------------------------------------- */

enum { MOST = 256000 };
static int64_t id[MOST];
static int calls;

static tn_tensor *count(tn_tensor *g, void *user)
{
    (void)user;
    calls++;
    return g;
}

static tn_tensor *with_hooks(int n)
{
    tn_tensor *x = leaf(1);
    for (int i = 0; i < n; i++) {
        id[i] = tn_register_hook(x, count, NULL);
        ck_assert_int_gt(id[i], 0);
    }
    return x;
}

static void hooks(int n)
{
    tn_tensor *x = with_hooks(n);
    calls = 0;
    assert_ok(tn_backward(total(x)));
    ck_assert_int_eq(calls, n);
}

static void hooks_removed(int n)
{
    tn_tensor *x = with_hooks(n);
    for (int i = 0; i < n / 2; i++) tn_remove_hook(x, id[i]);
    for (int i = n - 1; i >= n / 2; i--) tn_remove_hook(x, id[i]);
    calls = 0;
    assert_ok(tn_backward(total(x)));
    ck_assert_int_eq(calls, 0);
}

static tn_status pass(tn_module *m, int n_in, tn_tensor **in, void *user)
{
    (void)m, (void)n_in, (void)in, (void)user;
    calls++;
    return TN_OK;
}

static void module_hooks(int n)
{
    tn_module *m = tn_relu_new();
    for (int i = 0; i < n; i++) id[i] = tn_register_forward_pre_hook(m, pass, NULL);
    calls = 0;
    assert_made(tn_forward(m, leaf(1)));
    ck_assert_int_eq(calls, n);
    for (int i = n - 1; i >= 0; i--) tn_remove_module_hook(m, id[i]);
    tn_module_drop(m);
}

/* n parts, each used, and gathered again. */
static void split(int n)
{
    tn_tensor *x = leaf(n), **part = calloc((size_t)n, sizeof *part);
    ck_assert_int_eq(tn_split(x, 1, 0, part, n), n);
    for (int i = 0; i < n; i++) part[i] = tn_mul_scalar(part[i], 2);
    assert_ok(tn_backward(total(tn_cat(part, n, 0))));
    ck_assert_double_eq(tn_at(tn_grad(x), (int64_t[]){ n - 1 }), 2);
    free(part);
}

static void chain(int n)
{
    tn_tensor *x = leaf(1), *y = x;
    for (int i = 0; i < n; i++) y = tn_add_scalar(y, 1);
    assert_ok(tn_backward(total(y)));
    ck_assert_double_eq(tn_item(tn_grad(x)), 1);
}

static void one_leaf_used_often(int n)
{
    tn_tensor *x = leaf(1), *y = tn_mul_scalar(x, 1);
    for (int i = 1; i < n; i++) y = tn_add(y, x);
    assert_ok(tn_backward(total(y)));
    ck_assert_double_eq(tn_item(tn_grad(x)), n);
}

static void gradients_of_many(int n)
{
    tn_tensor **x = calloc((size_t)n, sizeof *x), **dx = calloc((size_t)n, sizeof *dx);
    for (int i = 0; i < n; i++) x[i] = leaf(1);
    tn_tensor *y = total(tn_cat(x, n, 0));
    assert_ok(tn_gradients(1, &y, NULL, n, x, dx, 0));
    ck_assert_double_eq(tn_item(dx[n - 1]), 1);
    free(x), free(dx);
}

/* Each derivative is taken of a result of the one before: the history behind it is not walked again. */
static void derivatives_of_derivatives(int n)
{
    tn_tensor *x = leaf(1);
    for (int i = 0; i < n; i++) {
        tn_tensor *y = tn_mul(x, x), *dx;
        assert_ok(tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH));
        x = tn_mul_scalar(dx, 0.5);
    }
}

/* ---- how long it takes ----------------------------------------------------------------------- */

static const struct {
    const char *name;
    int n;
    void (*call)(int n);
} rows[] = {
    { "hooks", 16000, hooks },
    { "hooks removed", 16000, hooks_removed },
    { "hooks of a module", 16000, module_hooks },
    { "split", 8000, split },
    { "chain", 16000, chain },
    { "one leaf", 8000, one_leaf_used_often },
    { "gradients of many", 2000, gradients_of_many },
    { "derivatives of derivatives", 500, derivatives_of_derivatives },
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_of(int row, int n, int runs)
{
    double best = 0;
    for (int i = 0; i < runs; i++) {
        tn_scope s = tn_scope_begin();
        double from = seconds();
        rows[row].call(n);
        double took = seconds() - from;
        if (i == 0 || took < best) best = took;
        tn_scope_end(s);
    }
    return best;
}

START_TEST(gradients_cost_what_there_is)
{
    int n = TEST_ASAN || TEST_TSAN ? rows[_i].n / 4 : rows[_i].n;
    double ratio = 0, large = 0;
    for (int tries = 0; tries == 0 || (ratio > 5 && tries < 8); tries++) {
        if (tries == 4) n *= 4;
        double small = best_of(_i, n, 4);
        large = best_of(_i, 4 * n, 2);
        ratio = large / small;
    }
    if (getenv("TN_TEST_SHOW"))
        printf("%-28s %6d: %8.3f ms, %.2f\n", rows[_i].name, 4 * n, large * 1e3, ratio);
    ck_assert_msg(ratio <= 5, "%s: %d take %.2f times as long as %d (%.1f ms)", rows[_i].name,
                  4 * n, ratio, n, large * 1e3);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("growth_autograd");
    TCase *t = test_case(suite, "growth");
    tcase_add_loop_test(t, gradients_cost_what_there_is, 0, COUNT(rows));
    return suite;
}
