/*
 * autograd_hooks.c - hooks and other functions of the user while the engine or a module calls them:
 * what they may return and do, and the scope around the call, which they may end.
 *
 * Seen to fail: a test's comment in the past tense says how.
 */
#include "autograd/autograd.h"
#include "nn/boxes.h"

/* ---- what a hook may return ------------------------------------------------------------------ */

static tn_tensor *times_ten(tn_tensor *g, void *user)
{
    ++*(int *)user;
    return tn_mul_scalar(g, 10);
}

HOOK(refuse, tn_fail(TN_E_INVALID, "the hook refuses"))
HOOK(as_f64, tn_to_dtype(g, TN_F64))
HOOK(as_i32, tn_to_dtype(g, TN_I32))
HOOK(one_element, tn_ones(TN_SHAPE(1)))
HOOK(absent, TN_NONE)
HOOK(null, NULL)
HOOK(failed, tn_matmul(g, tn_ones(TN_SHAPE(17, 17))))

static const struct {
    tn_grad_hook gives;
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

static tn_status give_to_module(tn_module *m, int n_in, tn_tensor **in, int n_out,
                                tn_tensor *const *out, void *user)
{
    (void)m, (void)n_in, (void)n_out, (void)out;
    in[0] = returned[*(int *)user].gives(in[0], NULL);
    return TN_OK;
}

/* Another dtype was taken: f32 memory was then read as f64, beyond its end. */
START_TEST(a_hook_gives_a_tensor_like_the_gradient)
{
    for (int on_leaf = 0; on_leaf < 2; on_leaf++) {
        tn_tensor *x = LEAF(2, 2, 2), *y = tn_square(x);
        assert_ok(tn_retain_grad(y));
        ck_assert_int_gt(tn_register_hook(on_leaf ? x : y, returned[_i].gives, NULL), 0);
        assert_fails(tn_backward(tn_sum_all(y)), returned[_i].status, returned[_i].says);
        ck_assert_ptr_eq(tn_grad(x), TN_NONE);
        ck_assert_ptr_eq(tn_grad(y), TN_NONE);
    }
    tn_module *m = owned(tn_relu_new());
    tn_tensor *x = LEAF(2, 2, 2);
    ck_assert_int_gt(tn_register_full_backward_hook(m, give_to_module, &_i), 0);
    assert_fails(tn_backward(tn_sum_all(tn_forward(m, x))), returned[_i].status, returned[_i].says);
    ck_assert_ptr_eq(tn_grad(x), TN_NONE);
}
END_TEST

START_TEST(HK_09_tensor_hook_and_retain_grad)
{
    tn_tensor *x = LEAF(1, 2), *y = tn_square(x);
    int calls = 0;
    int64_t id = tn_register_hook(y, times_ten, &calls);
    ck_assert_int_gt(id, 0);
    assert_ok(tn_retain_grad(y));
    assert_ok(tn_backward_from(tn_sum_all(y), TN_NONE, TN_RETAIN_GRAPH));
    ck_assert_int_eq(calls, 1);
    assert_grad(y, 10, 10);
    assert_grad(x, 20, 40);
    tn_remove_hook(y, id);
    tn_remove_hook(y, id);
    ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(a_leafs_hook_sees_the_sum_once)
{
    tn_tensor *x = LEAF(1, 2);
    int calls = 0;
    ck_assert_int_gt(tn_register_hook(x, times_ten, &calls), 0);
    assert_backward(tn_add(tn_square(x), tn_mul_scalar(x, 3)));
    ck_assert_int_eq(calls, 1);
    assert_grad(x, 50, 70);
}
END_TEST

START_TEST(a_failed_backward_changes_no_grad)
{
    tn_tensor *x = LEAF(1, 2), *w = LEAF(5, 6);
    assert_backward(tn_mul(x, w));
    tn_tensor *h = tn_square(x);
    ck_assert_int_gt(tn_register_hook(h, refuse, NULL), 0);
    tn_tensor *y = tn_sum_all(tn_mul(h, w)); /* w's gradient is ready before h's hook refuses */
    assert_fails(tn_backward(y), TN_E_INVALID, "the hook refuses");
    assert_grad(x, 5, 6);
    assert_grad(w, 1, 2);
    assert_fails(tn_backward(y), TN_E_STATE, "earlier backward");
    ck_assert(tn_grad_enabled());
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
            hooked = LEAF(1, 1, 1);
            memset(called, 0, sizeof called);
            for (int i = 0; i < HOOKS; i++) {
                victim[i] = i == by ? of : HOOKS;
                id[i] = tn_register_hook(hooked, remove_victim, &called[i]);
                ck_assert_int_gt(id[i], 0);
            }
            assert_backward(hooked);
            for (int i = 0; i < HOOKS; i++) ck_assert_int_eq(called[i], of <= by || i != of);
            assert_backward(hooked);
            for (int i = 0; i < HOOKS; i++) ck_assert_int_eq(called[i], i == of ? of <= by : 2);
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
    hooked = LEAF(1, 1, 1);
    ck_assert_int_gt(tn_register_hook(hooked, add_itself, &calls), 0);
    for (int n = 1; n < 6; n++) {
        assert_backward(hooked);
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

/* The passes' gradients met in one field: the outer one got the sum, or nothing. */
START_TEST(a_hook_runs_another_pass)
{
    for (int i = 0; i < 4; i++) {
        bool inner = i % 2, outer = i / 2; /* gradients as values, not for leaves */
        tn_tensor *x = LEAF(3), *h = tn_square(x), *dx = TN_NONE;
        inner_pass p = { .x = x, .h = h, .y = tn_square(h) };
        ck_assert_int_gt(tn_register_hook(h, inner ? gradients_within : backward_within, &p), 0);
        assert_ok(outer ? tn_gradients(1, &p.y, NULL, 1, &x, &dx, TN_RETAIN_GRAPH)
                        : tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
        ck_assert_double_eq(p.result, inner ? 18 : 108);
        if (outer) assert_values(dx, 0, 108);
        if (!inner || !outer) assert_values(tn_grad(x), 0, !inner && !outer ? 216 : 108);
    }
}
END_TEST

HOOK(again, tn_backward_from(user, TN_NONE, TN_RETAIN_GRAPH) == TN_OK ? g : NULL)

START_TEST(passes_without_end_are_refused)
{
    tn_tensor *x = LEAF(3), *y = tn_square(x);
    tn_register_hook(y, again, y);
    assert_fails(tn_backward_from(y, TN_NONE, TN_RETAIN_GRAPH), TN_E_STATE, "passes are running");
    ck_assert_ptr_eq(tn_grad(x), TN_NONE);
    ck_assert(tn_grad_enabled());
    assert_backward(tn_square(x));
    assert_values(tn_grad(x), 0, 6);
}
END_TEST

static tn_tensor *leave_modes(tn_tensor *g, void *user)
{
    (void)user;
    tn_set_grad_enabled(true);
    tn_set_autocast(TN_BF16);
    return g;
}

/* A grad mode left on would last for the rest of the pass, and give grads a history. */
START_TEST(a_hooks_modes_end_with_it)
{
    tn_tensor *x = leaf(tn_full(TN_SHAPE(2, 2), 1.0009765625)), *h = tn_square(x);
    tn_tensor *y = tn_sum_all(tn_matmul(h, h));
    tn_register_hook(h, leave_modes, NULL);
    TN_NO_GRAD
    {
        assert_ok(tn_backward(y));
        ck_assert(!tn_grad_enabled() && tn_autocast() == TN_F32);
    }
    ck_assert(tn_grad(x) != TN_NONE && tn_is_leaf(tn_grad(x)) && !tn_requires_grad(tn_grad(x)));
}
END_TEST

/* ---- functions that end the scope around the call -------------------------------------------- */

static tn_scope around; /* what the call works on is held by it alone */

static tn_tensor *ending_hook(tn_tensor *g, void *user)
{
    (void)user;
    tn_scope_end(around);
    return g;
}

/* The graph was freed while the engine was walking it. */
START_TEST(a_hook_ends_the_scope_of_the_graph)
{
    tn_tensor *x = LEAF(3, 3), *dx;
    for (int i = 0; i < 2; i++) {
        around = tn_scope_begin();
        tn_tensor *h = tn_square(x), *y = tn_sum_all(tn_square(h));
        tn_register_hook(h, ending_hook, NULL);
        assert_ok(i ? tn_gradients(1, &y, NULL, 1, &x, &dx, 0) : tn_backward(y));
        assert_values(i ? dx : tn_grad(x), 0, 108, 108);
    }
}
END_TEST

/* sum(x^3), element by element, in a graph whose backward ends the scope */
static tn_tensor *cubes(tn_tensor **x, void *user)
{
    tn_tensor *square = tn_square(x[0]);
    if (tn_requires_grad(square)) tn_register_hook(square, ending_hook, NULL);
    if (user) tn_scope_end(around); /* or does so itself */
    return tn_sum_all(tn_mul(square, x[0]));
}

/* Read what only that scope held: "a tensor of dtype 22040", or a crash. */
START_TEST(derivatives_of_a_function_that_ends_the_scope)
{
    for (int i = 0; i < 10; i++) {
        tn_tensor *y = NULL, *out[4] = { NULL };
        around = tn_scope_begin();
        tn_tensor *x[2] = { LEAF(2, 2), LEAF(1) };
        tn_tensor *v[2] = { tn_full(TN_SHAPE(2), 3), tn_ones(TN_SHAPE(1)) };
        void *user = i % 2 ? x : NULL;
        switch (i / 2) {
        case 0: assert_ok(tn_vjp(cubes, x, 2, user, tn_full(TN_SCALAR, 1), &y, out, 0)); break;
        case 1: assert_ok(tn_jvp(cubes, x, 2, user, v, &y, out, 0)); break;
        case 2: assert_ok(tn_jacobian(cubes, x, 2, user, out, 0)); break;
        case 3: assert_ok(tn_hessian(cubes, x, 2, user, out, 0)); break;
        default: assert_ok(tn_hvp(cubes, x, 2, user, v, &y, out, 0));
        }
        if (y) assert_values(y, 0, 16);
        if (i / 2 == 0 || i / 2 == 2) assert_values(out[0], 0, 12, 12);
        if (i / 2 == 1) assert_values(out[0], 0, 72);
        if (i / 2 == 3) assert_values(out[0], 0, 12, 0, 0, 12);
        if (i / 2 == 4) assert_values(out[0], 0, 36, 36);
        if (i / 2 != 1) assert_values(out[i / 2 == 3 ? 3 : 1], 0, 0);
    }
}
END_TEST

/* Also uses again what memory there is. */
static int ending_visit(const tn_graph_node *node, void *user)
{
    if (node->kind == TN_GRAPH_PARAMETER) {
        ck_assert(!strcmp(node->name, "weight") || !strcmp(node->name, "bias"));
        ++*(int *)user;
    }
    tn_scope_end(around);
    const char *names = "another";
    tn_list *list = tn_list_new();
    while (names[1]) assert_ok(tn_list_add(list, names++, tn_ones(TN_SHAPE(1))));
    return 0;
}

START_TEST(a_visitor_ends_the_scope)
{
    tn_module *m = owned(linear(2, 2));
    int n = 0;
    tn_scope outer = around = tn_scope_begin();
    tn_tensor *y = tn_keep(tn_forward(m, tn_ones(TN_SHAPE(1, 2))));
    assert_ok(tn_graph_visit(y, ending_visit, &n, (tn_graph_options){ .model = m }));
    ck_assert_int_eq(n, 2);
    tn_scope_end(outer); /* has ended: nothing */
    tn_drop(y);
}
END_TEST

static tn_status ending_pre(tn_module *m, int n, tn_tensor **in, void *user)
{
    (void)m, (void)n, (void)in, (void)user;
    tn_scope_end(around);
    return TN_OK;
}

static tn_status ending_post(tn_module *m, int n_in, tn_tensor *const *in, int n, tn_tensor **out,
                             void *user)
{
    (void)n, (void)out;
    return ending_pre(m, n_in, (tn_tensor **)in, user);
}

/* The input, residual paths and results were held by that scope, or by scopes in it. */
START_TEST(hooks_of_modules_end_the_scope)
{
    for (int i = 0; i < 3; i++) {
        tn_manual_seed(3);
        tn_encoder_layer_options o = { .dropout = 0 };
        tn_module *m = owned(tn_encoder_layer_new(4, 2, o));
        tn_eval(m);
        tn_tensor *wanted = tn_forward(m, tn_ones(TN_SHAPE(1, 3, 4)));
        tn_module *inner = i ? tn_get_submodule(m, "linear1") : m;
        assert_made(inner);
        if (i < 2)
            ck_assert_int_gt(tn_register_forward_pre_hook(inner, ending_pre, NULL), 0);
        else
            ck_assert_int_gt(tn_register_forward_hook(inner, ending_post, NULL), 0);
        around = tn_scope_begin();
        tn_tensor *y = tn_forward(m, tn_ones(TN_SHAPE(1, 3, 4)));
        assert_made(y);
        assert_close(y, wanted, 0, 0);
    }
}
END_TEST

FORWARD(ending_forward)
{
    tn_scope_end(around);
    out[0] = tn_square(in[0]);
    return tn_custom_save(c, in[0]);
}

BACKWARD(ending_backward)
{
    tn_scope_end(around);
    din[0] = tn_mul(tn_mul_scalar(dout[0], 2), tn_custom_saved(c, 0));
    return din[0] ? TN_OK : tn_error_status();
}

/* The inputs were freed, and then recorded. */
START_TEST(an_op_of_the_user_ends_the_scope)
{
    static const tn_custom_op op = { .name = "ending",
                                     .forward = ending_forward,
                                     .backward = ending_backward };
    tn_tensor *x = LEAF(3, 3);
    around = tn_scope_begin();
    tn_tensor *y = tn_mul_scalar(x, 2);
    y = tn_apply(&op, NULL, 1, &y);
    assert_made(y);
    y = tn_sum_all(y);
    around = tn_scope_begin();
    assert_ok(tn_backward(tn_mul_scalar(y, 1)));
    assert_values(tn_grad(x), 0, 24, 24);
}
END_TEST

static bool ending_keep(const tn_entry *entry, void *user)
{
    tn_scope_end(around);
    return entry->kind == TN_PARAMETER && !user;
}

static tn_status ending_state(tn_module *m, tn_list *state, const char *prefix, void *user)
{
    (void)m, (void)state, (void)prefix, (void)user;
    tn_scope_end(around);
    return TN_OK;
}

/* A list that the scope owns ends with it: an error, where it was returned freed. */
START_TEST(lists_of_a_scope_that_ends)
{
    tn_module *m = owned(tn_sequential(linear(2, 2)));
    around = tn_scope_begin();
    assert_null(tn_list_filter(tn_parameters(m), ending_keep, NULL), TN_E_STATE,
                "tn_list_filter: a function that it called ended the scope");
    ck_assert_int_gt(tn_register_state_dict_hook(tn_module_child(m, 0), ending_state, NULL), 0);
    around = tn_scope_begin();
    assert_null(tn_state_dict(m, ""), TN_E_STATE, "tn_state_dict: a function that it called ended");
    ck_assert_int_gt(tn_register_load_pre_hook(m, ending_state, NULL), 0);
    around = (tn_scope){ -1, 0 };
    tn_scope s = tn_scope_begin();
    tn_list *state = tn_state_dict(m, "");
    around = s;
    assert_ok(tn_load_state_dict(m, state, (tn_load_options){ 0 }, NULL));
}
END_TEST

static tn_tensor *ending_loss(tn_module *m, void *user)
{
    tn_tensor *loss = tn_sum_all(tn_square(tn_forward(m, user)));
    tn_scope_end(around);
    return loss;
}

static tn_tensor *ending_step(int n, tn_tensor *const *in, void *user)
{
    (void)user, (void)n;
    tn_scope_end(around);
    return tn_square(in[0]);
}

START_TEST(checks_and_captures_whose_function_ends_the_scope)
{
    tn_module *m = owned(linear(2, 1));
    tn_tensor *x = tn_ones(TN_SHAPE(3, 2));
    around = tn_scope_begin();
    assert_ok(tn_module_gradcheck(m, ending_loss, x, (tn_module_gradcheck_options){ 0 }));
    around = tn_scope_begin();
    assert_ok(tn_explain_training(NULL, m, NULL, ending_loss, x, NULL));
    around = tn_scope_begin();
    tn_tensor *in = leaf(random_f64(TN_SHAPE(2), 1, 2, 3));
    assert_ok(tn_gradcheck(cubes, &in, 1, m, (tn_gradcheck_options){ .second = true }));
    tn_capture *c = tn_capture_new(ending_step, NULL, tn_cpu());
    around = tn_scope_begin();
    in = tn_full(TN_SHAPE(2), 3);
    assert_values(tn_capture_run(c, 1, &in), 0, 9, 9);
    tn_capture_free(c);
}
END_TEST

HOOK(returning_hook, tn_scope_return(around, g))

/* It would have to outlive a scope that stays until the call returns. */
START_TEST(such_a_scope_returns_nothing)
{
    tn_tensor *y = tn_sum_all(tn_square(LEAF(3, 3)));
    tn_register_hook(y, returning_hook, NULL);
    tn_scope s = around = tn_scope_begin();
    assert_fails(tn_backward(y), TN_E_STATE, "tn_scope_return: the scope was opened outside");
    tn_scope inner = tn_scope_begin();
    tn_scope_end(s);
    ck_assert_int_eq(tn_scope_begin().depth, s.depth); /* both have ended */
    tn_scope_end(inner);
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

static tn_status drop_after(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                            tn_tensor **out, void *user)
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
            tn_tensor *x = leaf(tn_ones(TN_SHAPE(1, 2)));
            tn_tensor *wanted = tn_clone(tn_detach(tn_forward(root, x)));
            if (kind == 0) tn_register_forward_pre_hook(m, drop_before, &root);
            if (kind == 1) tn_register_forward_hook(m, drop_after, &root);
            if (kind == 2) tn_register_full_backward_hook(m, drop_in_backward, &root);
            tn_tensor *y = tn_forward(root, x);
            assert_close(y, wanted, 0, 0);
            assert_backward(y);
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
    tn_module *m = owned(tn_tanh_new());
    inner_pass p = { .x = LEAF(0) };
    tn_register_full_backward_hook(m, run_pass, &p);
    p.y = tn_sum_all(tn_forward(m, p.x));
    assert_ok(tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
    assert_values(tn_grad(p.x), 0, 20); /* tanh' = 1 at 0, ten times, twice */
    ck_assert_int_eq(p.running, 2);
}
END_TEST

void autograd_hook_cases(Suite *suite)
{
    TCase *t = test_case(suite, "hooks");
    tcase_add_loop_test(t, a_hook_gives_a_tensor_like_the_gradient, 0, COUNT(returned));
    add_tests(t, HK_09_tensor_hook_and_retain_grad, a_leafs_hook_sees_the_sum_once,
              a_failed_backward_changes_no_grad, a_hook_removes_any_hook, a_hook_adds_hooks,
              a_hook_runs_another_pass, passes_without_end_are_refused, a_hooks_modes_end_with_it,
              a_hook_ends_the_scope_of_the_graph, derivatives_of_a_function_that_ends_the_scope,
              a_visitor_ends_the_scope, hooks_of_modules_end_the_scope,
              an_op_of_the_user_ends_the_scope, lists_of_a_scope_that_ends,
              checks_and_captures_whose_function_ends_the_scope, such_a_scope_returns_nothing,
              a_hook_drops_its_module_or_its_parent, a_backward_hook_runs_another_pass);
}
