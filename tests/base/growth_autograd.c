/*
 * growth_autograd.c - the cost of gradients grows in proportion to the graph (growth.h).
 */
#include "growth.h"
#include "nn/boxes.h"

static tn_tensor *leaf(int64_t n)
{
    tn_tensor *t = tn_ones(TN_SHAPE(n));
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* ---- what is done, n times over -------------------------------------------------------------- */

enum { MOST = 64 * 16000 };
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
    assert_ok(tn_backward(tn_sum_all(x)));
    ck_assert_int_eq(calls, n);
}

static void hooks_removed(int n)
{
    tn_tensor *x = with_hooks(n);
    for (int i = 0; i < n / 2; i++) tn_remove_hook(x, id[i]);
    for (int i = n - 1; i >= n / 2; i--) tn_remove_hook(x, id[i]);
    calls = 0;
    assert_ok(tn_backward(tn_sum_all(x)));
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
    assert_ok(tn_backward(tn_sum_all(tn_cat(part, n, 0))));
    ck_assert_double_eq(tn_at(tn_grad(x), TN_INDEX(n - 1)), 2);
    free(part);
}

/* x[i] for every i, of a leaf and of a result. Kernels are not counted, so what they fill is. */
static void selects(int n)
{
    tn_tensor *x = leaf(n), *y = tn_mul_scalar(x, 2), *sum = tn_select(x, 0, 0);
    for (int i = 1; i < n; i++) sum = tn_add(sum, tn_select(i % 2 ? x : y, 0, i));
    int64_t bytes = tn_memory().data_bytes;
    assert_ok(tn_backward(sum));
    bytes = tn_memory().data_bytes - bytes;
    ck_assert_msg(bytes < 64 * n, "%d: %" PRId64 " bytes", n, bytes);
    ck_assert_double_eq(tn_at(tn_grad(x), TN_INDEX(1)), 1);
    ck_assert_double_eq(tn_at(tn_grad(x), TN_INDEX(2)), 2);
}

static void chain(int n)
{
    tn_tensor *x = leaf(1), *y = x;
    for (int i = 0; i < n; i++) y = tn_add_scalar(y, 1);
    assert_ok(tn_backward(tn_sum_all(y)));
    ck_assert_double_eq(tn_item(tn_grad(x)), 1);
}

static void one_leaf_used_often(int n)
{
    tn_tensor *x = leaf(1), *y = tn_mul_scalar(x, 1);
    for (int i = 1; i < n; i++) y = tn_add(y, x);
    assert_ok(tn_backward(tn_sum_all(y)));
    ck_assert_double_eq(tn_item(tn_grad(x)), n);
}

static void gradients_of_many(int n)
{
    tn_tensor **x = calloc((size_t)n, sizeof *x), **dx = calloc((size_t)n, sizeof *dx);
    for (int i = 0; i < n; i++) x[i] = leaf(1);
    tn_tensor *y = tn_sum_all(tn_cat(x, n, 0));
    assert_ok(tn_gradients(1, &y, NULL, n, x, dx, 0));
    ck_assert_double_eq(tn_item(dx[n - 1]), 1);
    free(x), free(dx);
}

/* Each derivative is taken of the previous one's result: older history is not walked again. */
static void derivatives_of_derivatives(int n)
{
    tn_tensor *x = leaf(1);
    for (int i = 0; i < n; i++) {
        tn_tensor *y = tn_mul(x, x), *dx;
        assert_ok(tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH));
        x = tn_mul_scalar(dx, 0.5);
    }
}

static int visited;

static int visit(const tn_graph_node *node, void *user)
{
    (void)node, (void)user;
    visited++;
    return 0;
}

/* A chain whose every op reads one leaf and one tensor of data, and slices of one memory. */
static tn_tensor *chained;

static void chain_made(int n)
{
    tn_tensor *x = leaf(1), *d = tn_ones(TN_SHAPE(n + 1));
    chained = x;
    tn_set_places(true);
    for (int i = 0; i < n; i++) chained = tn_add(tn_mul(chained, x), tn_slice(d, 0, i, i + 1, 1));
    tn_set_places(false);
    visited = 0;
}

static void graph_walked(int n)
{
    assert_ok(tn_graph_visit(chained, visit, NULL, (tn_graph_options){ 0 }));
    ck_assert_int_eq(visited, 2 * n + 1 + n);
}

const growth_row growth_autograd[] = {
    { "hooks", 16000, NULL, hooks },
    { "hooks removed", 16000, NULL, hooks_removed },
    { "hooks of a module", 16000, NULL, module_hooks },
    { "split", 8000, NULL, split },
    { "selects", 1000, NULL, selects },
    { "chain", 16000, NULL, chain },
    { "one leaf", 8000, NULL, one_leaf_used_often },
    { "gradients of many", 2000, NULL, gradients_of_many },
    { "a graph walked", 4000, chain_made, graph_walked },
    { "derivatives of derivatives", 500, NULL, derivatives_of_derivatives },
    { 0 },
};
