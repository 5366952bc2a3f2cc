/*
 * test_sound_grad.c - gradients and hooks under any call: what hooks may return and do, gradients that
 * share nothing, graphs of any depth, what is said when something is NULL, and memory that runs out.
 *
 * Seen to fail before: what a comment above a test says.
 */
#include <stdlib.h>

#include "boxes.h"

static tn_tensor *leaf(tn_shape shape, double value)
{
    tn_tensor *t = tn_full(shape, value);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

static tn_tensor *total(tn_tensor *t)
{
    return tn_sum(t, NULL, 0, false);
}

/* ---- what a hook may return ------------------------------------------------------------------ */

/* What the next gradient hook gives. */
static tn_tensor *(*gives)(tn_tensor *g);

static tn_tensor *give(tn_tensor *g, void *user)
{
    (void)user;
    return gives(g);
}

static tn_status give_to_module(tn_module *m, int n_in, tn_tensor **in, int n_out,
                                tn_tensor *const *out, void *user)
{
    (void)m, (void)n_in, (void)n_out, (void)out, (void)user;
    in[0] = gives(in[0]);
    return TN_OK;
}

static tn_tensor *as_f64(tn_tensor *g)
{
    return tn_to_dtype(g, TN_F64);
}
static tn_tensor *as_i32(tn_tensor *g)
{
    return tn_to_dtype(g, TN_I32);
}
static tn_tensor *one_element(tn_tensor *g)
{
    (void)g;
    return tn_ones(TN_SHAPE(1));
}
static tn_tensor *absent(tn_tensor *g)
{
    (void)g;
    return TN_NONE;
}
static tn_tensor *null(tn_tensor *g)
{
    (void)g;
    return NULL;
}
static tn_tensor *failed(tn_tensor *g)
{
    return tn_matmul(g, tn_ones(TN_SHAPE(17, 17)));
}

static const struct {
    tn_tensor *(*gives)(tn_tensor *g);
    tn_status status;
    const char *says;
} returned[] = {
    { as_f64, TN_E_DTYPE, "gave f64 for the gradient [3]" },
    { as_i32, TN_E_DTYPE, "gave i32 for the gradient [3]" },
    { one_element, TN_E_SHAPE, "gave [1] for the gradient [3]" },
    { absent, TN_E_SHAPE, "gave TN_NONE for the gradient [3]" },
    { null, TN_E_INVALID, "gave NULL for the gradient [3]" },
    { failed, TN_E_SHAPE, "tn_matmul: " },
};

/* Another dtype was taken: f32 memory was then read as f64, beyond its end. */
START_TEST(a_hook_gives_a_tensor_like_the_gradient)
{
    gives = returned[_i].gives;
    for (int on_leaf = 0; on_leaf < 2; on_leaf++) {
        tn_tensor *x = leaf(TN_SHAPE(3), 2), *y = tn_square(x);
        ck_assert_int_gt(tn_register_hook(on_leaf ? x : y, give, NULL), 0);
        assert_fails(tn_backward(total(y)), returned[_i].status, returned[_i].says);
        ck_assert_ptr_eq(tn_grad(x), TN_NONE);
    }
    tn_module *m = tn_relu_new();
    tn_tensor *x = leaf(TN_SHAPE(3), 2);
    ck_assert_int_gt(tn_register_full_backward_hook(m, give_to_module, NULL), 0);
    assert_fails(tn_backward(total(tn_forward(m, x))), returned[_i].status, returned[_i].says);
    ck_assert_ptr_eq(tn_grad(x), TN_NONE);
    tn_module_drop(m);
}
END_TEST

/* ---- what a hook may do ---------------------------------------------------------------------- */

enum { HOOKS = 6 };
static tn_tensor *hooked;
static int64_t id[HOOKS + 1];
static int called[HOOKS];
static int victim[HOOKS]; /* what each removes; HOOKS: nothing */

static tn_tensor *remove_victim(tn_tensor *g, void *user)
{
    int self = (int)((int *)user - called);
    called[self]++;
    tn_remove_hook(hooked, id[victim[self]]);
    return g;
}

/* A removed later hook was called from freed memory. */
START_TEST(a_hook_removes_any_hook)
{
    for (int by = 0; by < HOOKS; by++) {
        for (int of = 0; of < HOOKS; of++) {
            hooked = leaf(TN_SHAPE(3), 1);
            memset(called, 0, sizeof called);
            for (int i = 0; i < HOOKS; i++) {
                victim[i] = i == by ? of : HOOKS;
                id[i] = tn_register_hook(hooked, remove_victim, &called[i]);
                ck_assert_int_gt(id[i], 0);
            }
            assert_ok(tn_backward(total(hooked)));
            for (int i = 0; i < HOOKS; i++) ck_assert_int_eq(called[i], of <= by || i != of);
            assert_ok(tn_backward(total(hooked)));
            for (int i = 0; i < HOOKS; i++)
                ck_assert_int_eq(called[i], i == of ? of <= by : 2);
        }
    }
}
END_TEST

static tn_tensor *add_itself(tn_tensor *g, void *user)
{
    ck_assert_int_gt(tn_register_hook(hooked, add_itself, user), 0);
    ++*(int *)user;
    return g;
}

/* A hook that adds hooks is called once in a pass; what it added, from the next one on. */
START_TEST(a_hook_adds_hooks)
{
    int calls = 0;
    hooked = leaf(TN_SHAPE(3), 1);
    ck_assert_int_gt(tn_register_hook(hooked, add_itself, &calls), 0);
    for (int n = 1; n < 6; n++) {
        assert_ok(tn_backward(total(hooked)));
        ck_assert_int_eq(calls, (1 << n) - 1);
    }
}
END_TEST

/* y = h^2, h = x^2 at x = 3: dy/dh = 18, dy/dx = 108. A hook on h runs a pass of its own. */
typedef struct inner_pass {
    tn_tensor *x, *h, *y;
    int running;
    double result; /* of the inner pass */
} inner_pass;

static tn_tensor *backward_within(tn_tensor *g, void *user)
{
    inner_pass *p = user;
    if (p->running++ == 0) {
        assert_ok(tn_backward_from(p->y, TN_NONE, TN_RETAIN_GRAPH));
        p->result = tn_item(tn_grad(p->x));
    }
    return g;
}

static tn_tensor *gradients_within(tn_tensor *g, void *user)
{
    inner_pass *p = user;
    if (p->running++ == 0) {
        tn_tensor *dh;
        assert_ok(tn_gradients(1, &p->y, NULL, 1, &p->h, &dh, TN_RETAIN_GRAPH));
        p->result = tn_item(dh);
    }
    return g;
}

static void chain(tn_grad_hook hook, inner_pass *p)
{
    tn_tensor *x = leaf(TN_SHAPE(1), 3), *h = tn_square(x);
    *p = (inner_pass){ .x = x, .h = h, .y = tn_square(h) };
    ck_assert_int_gt(tn_register_hook(h, hook, p), 0);
}

/* The passes' gradients met in one field: the outer one got the sum, or nothing. */
START_TEST(a_hook_runs_another_pass)
{
    inner_pass p;
    tn_tensor *dx;
    chain(backward_within, &p);
    assert_ok(tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
    ck_assert_double_eq(p.result, 108);
    assert_values(tn_grad(p.x), 0, 216);
    chain(gradients_within, &p);
    assert_ok(tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
    ck_assert_double_eq(p.result, 18);
    assert_values(tn_grad(p.x), 0, 108);
    chain(gradients_within, &p);
    assert_ok(tn_gradients(1, &p.y, NULL, 1, &p.x, &dx, TN_RETAIN_GRAPH));
    ck_assert_double_eq(p.result, 18);
    assert_values(dx, 0, 108);
    chain(backward_within, &p);
    assert_ok(tn_gradients(1, &p.y, NULL, 1, &p.x, &dx, TN_RETAIN_GRAPH));
    ck_assert_double_eq(p.result, 108);
    assert_values(dx, 0, 108);
    assert_values(tn_grad(p.x), 0, 108);
}
END_TEST

static tn_tensor *again(tn_tensor *g, void *user)
{
    return tn_backward_from(user, TN_NONE, TN_RETAIN_GRAPH) == TN_OK ? g : NULL;
}

START_TEST(passes_without_end_are_refused)
{
    tn_tensor *x = leaf(TN_SHAPE(1), 3), *y = tn_square(x);
    tn_register_hook(y, again, y);
    assert_fails(tn_backward_from(y, TN_NONE, TN_RETAIN_GRAPH), TN_E_STATE, "passes are running");
    ck_assert_ptr_eq(tn_grad(x), TN_NONE);
    ck_assert(tn_grad_enabled());
    assert_ok(tn_backward(total(tn_square(x))));
    assert_values(tn_grad(x), 0, 6);
}
END_TEST

static tn_tensor *end_scope(tn_tensor *g, void *user)
{
    tn_scope_end(*(tn_scope *)user);
    return g;
}

/* The graph was freed while the engine stood on it. */
START_TEST(a_hook_ends_the_scope_of_the_graph)
{
    tn_tensor *x = leaf(TN_SHAPE(2), 3), *dx;
    for (int i = 0; i < 2; i++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *h = tn_square(x), *y = total(tn_square(h));
        tn_register_hook(h, end_scope, &s);
        if (i)
            assert_ok(tn_gradients(1, &y, NULL, 1, &x, &dx, 0));
        else
            assert_ok(tn_backward(y));
        assert_values(i ? dx : tn_grad(x), 0, 108, 108);
    }
}
END_TEST

static tn_tensor *leave_modes(tn_tensor *g, void *user)
{
    (void)user;
    tn_set_grad(true);
    tn_set_autocast(TN_BF16);
    return g;
}

/* What it leaves on would go on for the rest of the pass, and give grads a history. */
START_TEST(a_hooks_modes_end_with_it)
{
    tn_tensor *x = leaf(TN_SHAPE(2, 2), 1.0009765625), *h = tn_square(x);
    tn_tensor *y = total(tn_matmul(h, h));
    tn_register_hook(h, leave_modes, NULL);
    TN_NO_GRAD {
        assert_ok(tn_backward(y));
        ck_assert(!tn_grad_enabled() && tn_autocast_dtype() == TN_F32);
    }
    ck_assert(tn_grad(x) != TN_NONE && tn_is_leaf(tn_grad(x)) && !tn_requires_grad(tn_grad(x)));
}
END_TEST

/* ---- hooks of modules ------------------------------------------------------------------------ */

static tn_status drop_before(tn_module *m, int n_in, tn_tensor **in, void *user)
{
    tn_module **root = user;
    (void)m, (void)n_in, (void)in;
    tn_module_drop(*root);
    *root = NULL;
    return TN_OK;
}

static tn_status drop_after(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                            void *user)
{
    (void)in, (void)n_out, (void)out;
    return drop_before(m, n_in, NULL, user);
}

static tn_status drop_in_backward(tn_module *m, int n_in, tn_tensor **in, int n_out,
                                  tn_tensor *const *out, void *user)
{
    tn_module **root = user;
    (void)n_out, (void)out;
    return *root ? drop_before(m, n_in, in, user) : TN_OK;
}

/* The call went on with the freed module. Root or child, whichever has the hook, drops the root. */
START_TEST(a_hook_drops_its_module_or_its_parent)
{
    for (int kind = 0; kind < 3; kind++) {
        for (int deep = 0; deep < 2; deep++) {
            tn_module *root = tn_sequential(linear(2, 2), tn_relu_new());
            tn_module *m = deep ? tn_module_child(root, 0) : root;
            tn_tensor *x = leaf(TN_SHAPE(1, 2), 1);
            tn_tensor *wanted = tn_clone(tn_detach(tn_forward(root, x)));
            if (kind == 0) tn_register_forward_pre_hook(m, drop_before, &root);
            if (kind == 1) tn_register_forward_hook(m, drop_after, &root);
            if (kind == 2) tn_register_full_backward_hook(m, drop_in_backward, &root);
            tn_tensor *y = tn_forward(root, x);
            assert_close(y, wanted, 0, 0);
            assert_ok(tn_backward(total(y)));
            ck_assert_ptr_null(root);
        }
    }
}
END_TEST

static tn_status run_pass(tn_module *m, int n_in, tn_tensor **in, int n_out, tn_tensor *const *out,
                          void *user)
{
    inner_pass *p = user;
    (void)m, (void)n_out, (void)out;
    ck_assert_int_eq(n_in, 1);
    if (p->running++ == 0) assert_ok(tn_backward_from(p->y, TN_NONE, TN_RETAIN_GRAPH));
    in[0] = tn_mul_scalar(in[0], 10);
    return TN_OK;
}

/* The inner pass took the outer one's gradients out of the module's gates. */
START_TEST(a_backward_hook_runs_another_pass)
{
    tn_module *m = tn_tanh_new();
    inner_pass p = { .x = leaf(TN_SHAPE(1), 0) };
    tn_register_full_backward_hook(m, run_pass, &p);
    p.y = total(tn_forward(m, p.x));
    assert_ok(tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
    assert_values(tn_grad(p.x), 0, 20); /* tanh' = 1 at 0, ten times, twice */
    ck_assert_int_eq(p.running, 2);
    tn_module_drop(m);
}
END_TEST

/* ---- gradients share nothing ----------------------------------------------------------------- */

/* The seed was what was kept: a cycle through the output's own history, and one memory for both. */
START_TEST(a_retained_gradient_is_not_the_seed)
{
    tn_tensor *x = leaf(TN_SHAPE(2), 3), *y = tn_mul_scalar(x, 2);
    assert_ok(tn_retain_grad(y));
    assert_ok(tn_backward_from(y, y, TN_RETAIN_GRAPH));
    assert_values(tn_grad(y), 0, 6, 6);
    assert_values(tn_grad(x), 0, 12, 12);
    ck_assert(!tn_same_storage(tn_grad(y), y) && tn_is_leaf(tn_grad(y)));
    tn_tensor *z = tn_mul_scalar(x, 2), *seed = tn_ones(TN_SHAPE(2));
    tn_tensor *w = tn_add_scalar(z, 1);
    assert_ok(tn_retain_grad(z));
    assert_ok(tn_retain_grad(w));
    assert_ok(tn_backward_from(w, seed, 0));
    assert_ok(tn_fill_(seed, 99));
    assert_ok(tn_fill_(tn_grad(w), 77));
    assert_values(tn_grad(z), 0, 1, 1);
    assert_values(tn_grad(x), 0, 14, 14);
}
END_TEST

START_TEST(a_leaf_as_its_own_seed)
{
    tn_tensor *x = leaf(TN_SHAPE(2), 3);
    assert_ok(tn_backward_from(x, x, 0));
    ck_assert(tn_grad(x) != x && !tn_same_storage(tn_grad(x), x));
    assert_values(tn_grad(x), 0, 3, 3);
}
END_TEST

/* A gradient that was handed out changed with the seed, or with its twin. */
START_TEST(gradients_share_no_memory)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 1), *b = leaf(TN_SHAPE(2), 2), *y = tn_add(a, b);
    tn_tensor *seed = tn_full(TN_SHAPE(2), 5), *in[4] = { a, b, a, y }, *d[4];
    for (int flags = 0; flags <= TN_CREATE_GRAPH; flags += TN_CREATE_GRAPH) {
        assert_ok(tn_fill_(seed, 5));
        assert_ok(tn_gradients(1, &y, &seed, 4, in, d, flags | TN_RETAIN_GRAPH));
        assert_ok(tn_fill_(seed, 99));
        for (int i = 0; i < 4; i++) assert_values(d[i], 0, 5, 5);
        ck_assert_ptr_eq(d[0], d[2]);
        if (flags) continue;
        assert_ok(tn_fill_(d[0], 7));
        assert_values(d[1], 0, 5, 5);
        assert_values(d[3], 0, 5, 5);
    }
}
END_TEST

START_TEST(a_failed_pass_retains_nothing)
{
    tn_tensor *x = leaf(TN_SHAPE(3), 2), *y = tn_square(x);
    gives = null;
    assert_ok(tn_retain_grad(y));
    tn_register_hook(x, give, NULL);
    assert_fails(tn_backward(total(y)), TN_E_INVALID, "gave NULL");
    ck_assert_ptr_eq(tn_grad(y), TN_NONE);
    ck_assert_ptr_eq(tn_grad(x), TN_NONE);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("sound_grad");
    TCase *t = test_case(suite, "hooks");
    tcase_add_loop_test(t, a_hook_gives_a_tensor_like_the_gradient, 0,
                        (int)(sizeof returned / sizeof *returned));
    tcase_add_test(t, a_hook_removes_any_hook);
    tcase_add_test(t, a_hook_adds_hooks);
    tcase_add_test(t, a_hook_runs_another_pass);
    tcase_add_test(t, passes_without_end_are_refused);
    tcase_add_test(t, a_hook_ends_the_scope_of_the_graph);
    tcase_add_test(t, a_hooks_modes_end_with_it);
    tcase_add_test(t, a_hook_drops_its_module_or_its_parent);
    tcase_add_test(t, a_backward_hook_runs_another_pass);
    t = test_case(suite, "memory");
    tcase_add_test(t, a_retained_gradient_is_not_the_seed);
    tcase_add_test(t, a_leaf_as_its_own_seed);
    tcase_add_test(t, gradients_share_no_memory);
    tcase_add_test(t, a_failed_pass_retains_nothing);
    return suite;
}
