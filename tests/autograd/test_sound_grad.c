/*
 * test_sound_grad.c - gradients and hooks under any call: what hooks may return and do, gradients
 * that share nothing, graphs of any depth, messages about NULL, and memory that runs out.
 *
 * Seen to fail: a test's comment in the past tense says how.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nn/boxes.h"
#include "scarce.h"

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
    chain(backward_within, &p);
    assert_ok(tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
    ck_assert_double_eq(p.result, 108);
    assert_values(tn_grad(p.x), 0, 216);
    chain(gradients_within, &p);
    assert_ok(tn_backward_from(p.y, TN_NONE, TN_RETAIN_GRAPH));
    ck_assert_double_eq(p.result, 18);
    assert_values(tn_grad(p.x), 0, 108);
    chain(gradients_within, &p);
    tn_tensor *dx;
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

/* The graph was freed while the engine was walking it. */
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

/* ---- functions of a user's that end the scope around the call -------------------------------- */

static tn_scope around; /* what the call works on is held by it alone */

static tn_tensor *ending_hook(tn_tensor *g, void *user)
{
    (void)user;
    tn_scope_end(around);
    return g;
}

/* sum(x^3), element by element, in a graph whose backward ends the scope */
static tn_tensor *cubes(tn_tensor **x, void *user)
{
    tn_tensor *square = tn_square(x[0]);
    if (tn_requires_grad(square)) tn_register_hook(square, ending_hook, NULL);
    if (user) tn_scope_end(around); /* or does so itself */
    return total(tn_mul(square, x[0]));
}

/* Read what only that scope held: "a tensor of dtype 22040", or a crash. */
START_TEST(derivatives_of_a_function_that_ends_the_scope)
{
    for (int i = 0; i < 10; i++) {
        tn_tensor *y = NULL, *out[4] = { NULL };
        around = tn_scope_begin();
        tn_tensor *x[2] = { leaf(TN_SHAPE(2), 2), leaf(TN_SHAPE(1), 1) };
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
    tn_module *m = linear(2, 2);
    int n = 0;
    tn_scope outer = around = tn_scope_begin();
    tn_tensor *y = tn_keep(tn_forward(m, tn_ones(TN_SHAPE(1, 2))));
    assert_ok(tn_graph_visit(y, ending_visit, &n, (tn_graph_options){ .model = m }));
    ck_assert_int_eq(n, 2);
    tn_scope_end(outer); /* has ended: nothing */
    tn_drop(y);
    tn_module_drop(m);
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
        tn_module *m = tn_encoder_layer_new(4, 2, (tn_encoder_layer_options){ .dropout = 0 });
        assert_made(m);
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
        tn_module_drop(m);
    }
}
END_TEST

static tn_status ending_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                                tn_tensor **out)
{
    (void)n_in, (void)n_out;
    tn_scope_end(around);
    out[0] = tn_square(in[0]);
    return tn_custom_save(c, in[0]);
}

static tn_status ending_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                                 tn_tensor **din)
{
    (void)n_out, (void)n_in;
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
    tn_tensor *x = leaf(TN_SHAPE(2), 3);
    around = tn_scope_begin();
    tn_tensor *y = tn_mul_scalar(x, 2);
    y = tn_apply(&op, NULL, 1, &y);
    assert_made(y);
    y = total(y);
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
    tn_module *m = tn_sequential(linear(2, 2));
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
    tn_module_drop(m);
}
END_TEST

static tn_tensor *ending_loss(tn_module *m, void *user)
{
    tn_tensor *loss = total(tn_square(tn_forward(m, user)));
    tn_scope_end(around);
    return loss;
}

static tn_tensor *ending_step(void *user, int n, tn_tensor *const *in)
{
    (void)user, (void)n;
    tn_scope_end(around);
    return tn_square(in[0]);
}

START_TEST(checks_and_captures_whose_function_ends_the_scope)
{
    tn_module *m = linear(2, 1);
    tn_tensor *x = tn_ones(TN_SHAPE(3, 2));
    around = tn_scope_begin();
    assert_ok(tn_module_gradcheck(m, ending_loss, x, (tn_module_gradcheck_options){ 0 }));
    around = tn_scope_begin();
    assert_ok(tn_explain_training(NULL, m, NULL, ending_loss, x, NULL));
    around = tn_scope_begin();
    tn_tensor *in = random_f64(TN_SHAPE(2), 1, 2, 3);
    assert_ok(tn_set_requires_grad(in, true));
    assert_ok(tn_gradcheck(cubes, &in, 1, m, (tn_gradcheck_options){ .second = true }));
    tn_capture *c = tn_capture_new(ending_step, NULL, tn_cpu());
    around = tn_scope_begin();
    in = tn_full(TN_SHAPE(2), 3);
    assert_values(tn_capture_run(c, 1, &in), 0, 9, 9);
    tn_capture_free(c);
    tn_module_drop(m);
}
END_TEST

static tn_tensor *returning_hook(tn_tensor *g, void *user)
{
    (void)user;
    return tn_scope_return(around, g);
}

/* It would have to outlive a scope that stays until the call returns. */
START_TEST(such_a_scope_returns_nothing)
{
    tn_tensor *x = leaf(TN_SHAPE(2), 3), *y = total(tn_square(x));
    tn_register_hook(y, returning_hook, NULL);
    tn_scope s = around = tn_scope_begin();
    assert_fails(tn_backward(y), TN_E_STATE, "tn_scope_return: the scope was opened outside");
    tn_scope inner = tn_scope_begin();
    tn_scope_end(s);
    ck_assert_int_eq(tn_scope_begin().depth, s.depth); /* both have ended */
    tn_scope_end(inner);
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
    tn_tensor *x = leaf(TN_SHAPE(2, 2), 1.0009765625), *h = tn_square(x);
    tn_tensor *y = total(tn_matmul(h, h));
    tn_register_hook(h, leave_modes, NULL);
    TN_NO_GRAD
    {
        assert_ok(tn_backward(y));
        ck_assert(!tn_grad_enabled() && tn_autocast() == TN_F32);
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

/* The seed itself was kept: a cycle through the output's own history, and shared memory. */
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

/* x was its own gradient: never freed. So were two that were each other's. */
START_TEST(a_gradient_is_no_cycle)
{
    tn_tensor *x = leaf(TN_SHAPE(2), 1), *w = leaf(TN_SHAPE(2), 2);
    assert_fails(tn_set_grad(x, x), TN_E_INVALID, "is the memory of [2] itself");
    assert_fails(tn_set_grad(x, tn_detach(x)), TN_E_INVALID, "want a tensor of its own");
    ck_assert_ptr_eq(tn_grad(x), TN_NONE);
    assert_ok(tn_set_grad(x, w));
    assert_ok(tn_set_grad(w, x));
    assert_values(tn_grad(x), 0, 2, 2);
    assert_ok(tn_set_grad(x, tn_square(x))); /* with a history that leads back */
    ck_assert(tn_is_leaf(tn_grad(x)) && !tn_requires_grad(tn_grad(x)));
    tn_tensor *g = tn_ones(TN_SHAPE(2));
    assert_ok(tn_set_grad(x, g));
    ck_assert(tn_same_storage(tn_grad(x), g));
}
END_TEST

/* ---- any depth ------------------------------------------------------------------------------- */

enum { DEPTH = 300000 };

static void *thread_run(void *run)
{
    (*(void (*const *)(void))run)();
    return NULL;
}

static void in_small_stack(void (*const *run)(void))
{
    pthread_attr_t attributes;
    pthread_t thread;
    ck_assert_int_eq(pthread_attr_init(&attributes), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, thread_run, (void *)run), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

/* Each tensor is the previous one's gradient. */
static void gradients_of_gradients(void)
{
    tn_scope whole = tn_scope_begin();
    tn_tensor *first = tn_ones(TN_SHAPE(1)), *last = tn_keep(first);
    for (int i = 0; i < DEPTH; i++) {
        tn_scope s = tn_scope_begin();
        assert_ok(tn_set_grad(last, tn_ones(TN_SHAPE(1))));
        tn_tensor *next = tn_keep(tn_grad(last));
        tn_drop(last);
        last = next;
        tn_scope_end(s);
    }
    tn_drop(last);
    tn_scope_end(whole);
}

/* Each tensor's release drops the previous one. */
static float cell;
static void drop_previous(void *previous)
{
    tn_drop(previous);
}

static void releases_of_releases(void)
{
    tn_scope whole = tn_scope_begin();
    tn_tensor *last = tn_keep(tn_ones(TN_SHAPE(1)));
    for (int i = 0; i < DEPTH; i++) {
        tn_scope s = tn_scope_begin();
        last = tn_keep(tn_from_memory(&cell, TN_SHAPE(1), TN_F32, drop_previous, last));
        tn_scope_end(s);
    }
    tn_drop(last);
    tn_scope_end(whole);
}

/* Each is a leaf whose gradient was taken with history and made the next one's input. */
static void derivatives_of_derivatives(void)
{
    tn_scope whole = tn_scope_begin();
    tn_tensor *x = tn_keep(tn_ones(TN_SHAPE(1)));
    assert_ok(tn_set_requires_grad(x, true));
    for (int i = 0; i < DEPTH / 10; i++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *y = tn_mul(x, x), *dx;
        assert_ok(tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH));
        tn_tensor *next = tn_keep(tn_mul_scalar(dx, 0.5)); /* x again, with a longer history */
        tn_drop(x);
        x = next;
        tn_scope_end(s);
    }
    tn_drop(x);
    tn_scope_end(whole);
}

static void (*const deep[])(void) = { gradients_of_gradients, releases_of_releases,
                                      derivatives_of_derivatives };

/* Freeing overflowed the stack. */
START_TEST(chains_of_any_length_go_without_stack)
{
    in_small_stack(&deep[_i]);
}
END_TEST

/* ---- what a drop may do ---------------------------------------------------------------------- */

static int64_t made_in_release;

static void open_a_scope(void *leave_open)
{
    tn_scope s = tn_scope_begin();
    made_in_release += tn_ones(TN_SHAPE(5)) != NULL;
    if (!leave_open) tn_scope_end(s);
}

static void make_without_a_scope(void *unused)
{
    (void)unused;
    made_in_release += tn_ones(TN_SHAPE(5)) != NULL;
}

static void end_this_scope(void *scope)
{
    tn_scope_end(*(tn_scope *)scope);
}

/* The rest of the outermost scope leaked. */
START_TEST(a_release_uses_scopes)
{
    static void (*const release[])(void *) = { open_a_scope, open_a_scope, make_without_a_scope,
                                               end_this_scope };
    test_teardown(); /* so that s is the outermost scope */
    for (int inner = 0; inner < 2; inner++) {
        for (int i = 0; i < 4; i++) {
            tn_scope s = tn_scope_begin(), t = inner ? tn_scope_begin() : s;
            void *user = i == 3 ? (void *)&t : i == 1 ? (void *)&s : NULL;
            made_in_release = 0;
            for (int k = 0; k < 20; k++) assert_made(tn_ones(TN_SHAPE(3)));
            for (int k = 0; k < 3; k++)
                assert_made(tn_from_memory(&cell, TN_SHAPE(1), TN_F32, release[i], user));
            for (int k = 0; k < 20; k++) assert_made(tn_ones(TN_SHAPE(3)));
            tn_scope_end(t);
            ck_assert_int_eq(made_in_release, i == 3 ? 0 : 3);
            if (inner) assert_made(tn_ones(TN_SHAPE(1))); /* s is open as it was */
            tn_scope_end(s);
            ck_assert_int_eq(tn_live_tensors(), 0);
            assert_null(tn_ones(TN_SHAPE(1)), TN_E_STATE, "no scope is open");
        }
    }
    test_setup();
}
END_TEST

static int times(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part))) n++, text++;
    return n;
}

/* ---- what NULL means ------------------------------------------------------------------------- */

/* expr, with a NULL argument, fails: with a message that begins with the function and names the
 * argument; with an error pending, with that one, as it was. */
#define assert_named(expr, function, argument)                                                     \
    do {                                                                                           \
        tn_error_clear();                                                                          \
        ck_assert_msg(!(expr), "%s did not fail", #expr);                                          \
        ck_assert_msg(strncmp(tn_error(), function ": " argument " is NULL",                       \
                              strlen(function ": " argument " is NULL")) == 0 &&                   \
                          tn_error_status() == TN_E_INVALID,                                       \
                      "%s said \"%s\"", #expr, tn_error());                                        \
        tn_fail(TN_E_SHAPE, "first");                                                              \
        ck_assert_msg(!(expr), "%s did not fail", #expr);                                          \
        ck_assert_str_eq(tn_error(), "first");                                                     \
        tn_error_clear();                                                                          \
    } while (0)

/* All returned NULL without a message; the last two crashed. */
START_TEST(null_arguments_are_named)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *i = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    assert_named(tn_cross_entropy(NULL, i), "tn_cross_entropy", "logits");
    assert_named(tn_cross_entropy(x, NULL), "tn_cross_entropy", "target");
    assert_named(tn_nll_loss(x, NULL, (tn_cross_entropy_options){ 0 }), "tn_nll_loss", "target");
    assert_named(tn_mse_loss(x, NULL, TN_MEAN), "tn_mse_loss", "target");
    assert_named(tn_huber_loss(NULL, x, 1, TN_MEAN), "tn_huber_loss", "x");
    assert_named(tn_bce_with_logits(x, NULL, TN_NONE, TN_MEAN), "tn_bce_with_logits", "target");
    assert_named(tn_bce_with_logits(x, x, NULL, TN_MEAN), "tn_bce_with_logits", "pos_weight");
    assert_named(tn_softmax(NULL, 0), "tn_softmax", "x");
    assert_named(tn_scope_adopt(NULL), "tn_scope_adopt", "t");
    assert_named(tn_dropout(NULL, 0.5, true), "tn_dropout", "x");
    assert_named(tn_gather(x, 0, NULL), "tn_gather", "index");
    assert_named(tn_gather(NULL, 0, i), "tn_gather", "x");
    assert_named(tn_scatter_add(x, 0, i, NULL), "tn_scatter_add", "source");
    assert_named(tn_index_select(NULL, 0, i), "tn_index_select", "x");
    assert_named(tn_embedding(NULL, i, -1), "tn_embedding", "weight");
    assert_named(tn_embedding(x, NULL, -1), "tn_embedding", "index");
    assert_named(tn_one_hot(NULL, 3), "tn_one_hot", "index");
    assert_named(tn_chunk(x, 2, 0, NULL, 2) >= 0, "tn_chunk", "out");
    assert_named(!tn_backward(NULL), "tn_backward", "loss");
    assert_named(!tn_backward_from(NULL, TN_NONE, 0), "tn_backward_from", "output");
    assert_named(tn_sgd(NULL, (tn_sgd_options){ 0 }), "tn_sgd", "parameters");
    assert_named(tn_adam(NULL, (tn_adam_options){ 0 }), "tn_adam", "parameters");
    assert_named(tn_adamw(NULL, (tn_adamw_options){ 0 }), "tn_adamw", "parameters");
    assert_named(tn_rmsprop(NULL, (tn_rmsprop_options){ 0 }), "tn_rmsprop", "parameters");
    assert_named(tn_adagrad(NULL, (tn_adagrad_options){ 0 }), "tn_adagrad", "parameters");
    assert_named(tn_clip_grad_norm_tensor(NULL, 1, 2), "tn_clip_grad_norm_tensor", "parameters");
    assert_named(tn_optim_parameters(NULL), "tn_optim_parameters", "opt");
    assert_named(tn_optim_state_dict(NULL), "tn_optim_state_dict", "opt");
    assert_named(tn_optim_groups(NULL) >= 0, "tn_optim_groups", "opt");
    assert_named(tn_optim_steps(NULL) >= 0, "tn_optim_steps", "opt");
    assert_named(!isnan(tn_optim_lr(NULL, 0)), "tn_optim_lr", "opt");
    assert_named(tn_step_lr(NULL, 1, 0.5), "tn_step_lr", "opt");
    assert_named(tn_multistep_lr(NULL, NULL, 0, 0.5), "tn_multistep_lr", "opt");
    assert_named(tn_exponential_lr(NULL, 0.5), "tn_exponential_lr", "opt");
    assert_named(tn_cosine_lr(NULL, 9, 0), "tn_cosine_lr", "opt");
    assert_named(tn_cosine_restarts_lr(NULL, 9, 1, 0), "tn_cosine_restarts_lr", "opt");
    assert_named(tn_linear_lr(NULL, 0.5, 1, 9), "tn_linear_lr", "opt");
    assert_named(tn_constant_lr(NULL, 0.5, 9), "tn_constant_lr", "opt");
    assert_named(tn_polynomial_lr(NULL, 9, 1), "tn_polynomial_lr", "opt");
    assert_named(tn_lambda_lr(NULL, NULL, NULL), "tn_lambda_lr", "opt");
    assert_named(tn_warmup_cosine_lr(NULL, 1, 9, 0), "tn_warmup_cosine_lr", "opt");
    assert_named(tn_one_cycle_lr(NULL, (tn_one_cycle_options){ 0 }), "tn_one_cycle_lr", "opt");
    assert_named(tn_plateau_lr(NULL, (tn_plateau_options){ 0 }), "tn_plateau_lr", "opt");
    assert_named(tn_scheduler_state_dict(NULL), "tn_scheduler_state_dict", "s");
    assert_named(tn_scheduler_last_step(NULL) >= 0, "tn_scheduler_last_step", "s");
    assert_named(tn_scaler_state_dict(NULL), "tn_scaler_state_dict", "s");
    assert_named(!isnan(tn_scaler_value(NULL)), "tn_scaler_value", "s");
    assert_named(tn_no_decay(NULL, NULL), "tn_no_decay", "entry");
    assert_named(tn_decay(NULL, NULL), "tn_decay", "entry");
}
END_TEST

/* Where a tensor may be absent, the message of a NULL says how. */
START_TEST(null_for_an_optional_tensor_names_none)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *image = tn_ones(TN_SHAPE(1, 2, 3, 3));
    tn_tensor *kernel = tn_ones(TN_SHAPE(2, 2, 1, 1)), *c = tn_ones(TN_SHAPE(2)), *dx;
    static const char says[] = "or TN_NONE for none";
    assert_null(tn_linear(x, x, NULL), TN_E_INVALID, says);
    assert_null(tn_conv2d(image, kernel, NULL, (tn_conv2d_spec){ 0 }), TN_E_INVALID, says);
    assert_null(tn_layer_norm(x, 1, NULL, TN_NONE, 0), TN_E_INVALID, says);
    assert_null(tn_layer_norm(x, 1, TN_NONE, NULL, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, NULL, c, TN_NONE, TN_NONE, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, c, NULL, TN_NONE, TN_NONE, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, c, c, NULL, c, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, c, c, c, NULL, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_bce_with_logits(x, x, NULL, TN_MEAN), TN_E_INVALID, says);
    assert_null(tn_scaled_dot_product_attention(x, x, x, NULL, false, 0), TN_E_INVALID, says);
    /* seeds */
    tn_tensor *w = leaf(TN_SHAPE(1), 1), *y = tn_square(w), *none = NULL;
    assert_fails(tn_backward_from(y, NULL, 0), TN_E_INVALID, says);
    assert_fails(tn_gradients(1, &y, &none, 1, &w, &dx, 0), TN_E_INVALID, says);
}
END_TEST

/* In a struct of options NULL is a zero field; but what failed counted as absent, too. */
START_TEST(a_failed_tensor_is_not_an_absent_one)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *y = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    tn_cross_entropy_options o = { .label_smoothing = 0.1 };
    tn_module *m = tn_multihead_attention_new(2, 1, (tn_multihead_attention_options){ 0 });
    tn_module *layer = tn_encoder_layer_new(2, 1, (tn_encoder_layer_options){ 0 });
    tn_tensor *t = tn_ones(TN_SHAPE(1, 2, 2));
    assert_made(tn_cross_entropy_with(x, y, o));
    assert_made(tn_nll_loss(x, y, (tn_cross_entropy_options){ 0 }));
    assert_made(tn_multihead_attention_forward(m, t, t, t, (tn_attention_masks){ 0 }, NULL));
    o.weight = tn_matmul(x, tn_ones(TN_SHAPE(3, 3)));
    assert_null(tn_cross_entropy_with(x, y, o), TN_E_SHAPE, "tn_matmul: ");
    assert_null(tn_matmul(x, tn_ones(TN_SHAPE(3, 3))), TN_E_SHAPE, "tn_matmul");
    tn_attention_masks masks = { .mask = tn_ones(TN_SHAPE(-1)) };
    assert_null(tn_multihead_attention_forward(m, t, t, t, masks, NULL), TN_E_SHAPE, "tn_ones: ");
    masks = (tn_attention_masks){ .mask = TN_NONE, .key_padding = NULL };
    ck_assert_ptr_null(tn_ones(TN_SHAPE(-1)));
    ck_assert_ptr_null(tn_encoder_layer_forward(layer, t, masks));
    ck_assert_ptr_null(tn_encoder_layer_forward(layer, t, masks));
    /* where it went is said, once */
    ck_assert_msg(strstr(tn_error(), "; tn_encoder_layer_forward: key_padding is NULL while") &&
                      times(tn_error(), "is NULL while") == 1,
                  "%s", tn_error());
    /* calls without an absent option still work */
    assert_made(tn_cross_entropy(x, y));
    tn_error_clear();
    assert_made(tn_encoder_layer_forward(layer, t, (tn_attention_masks){ .causal = true }));
    tn_module_drop(m), tn_module_drop(layer);
}
END_TEST

/* ---- what is said ---------------------------------------------------------------------------- */

/* "(in 0: Embedding) (in 0: Embedding)" */
START_TEST(a_place_is_said_once)
{
    tn_module *m = tn_sequential(tn_embedding_new(3, 2, (tn_embedding_options){ 0 }));
    ck_assert_ptr_null(tn_forward(m, tn_from_ints((int64_t[]){ 0, 7 }, TN_SHAPE(2))));
    ck_assert_msg(times(tn_error(), "(in 0: Embedding)") == 1, "%s", tn_error());
    assert_error(TN_E_INDEX, "tn_embedding: index 7 at position 1: want 0..2 (in 0: Embedding)");
    tn_module_drop(m);
}
END_TEST

START_TEST(backward_says_when_recording_is_off)
{
    tn_tensor *x = leaf(TN_SHAPE(1), 1);
    bool was = tn_set_grad_enabled(false);
    tn_tensor *y = tn_square(x);
    assert_fails(tn_backward(y), TN_E_STATE,
                 "recording is off in this thread: want it computed outside of TN_NO_GRAD");
    tn_tensor *dx;
    assert_fails(tn_gradients(1, &y, NULL, 1, &x, &dx, 0), TN_E_STATE, "recording is off");
    tn_set_grad_enabled(was);
    assert_fails(tn_backward(y), TN_E_STATE, "want a result of recorded ops");
}
END_TEST

/* It printed "TN_OK: " and nothing else. */
START_TEST(check_ptr_has_something_true_to_say)
{
    char text[256] = "";
    int out[2];
    ck_assert_int_eq(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        tn_tensor *mine = NULL;
        dup2(out[1], STDERR_FILENO);
        TN_CHECK_PTR(mine);
        _exit(0);
    }
    close(out[1]);
    ck_assert_int_gt(read(out[0], text, sizeof text - 1), 0);
    close(out[0]);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    ck_assert_msg(strstr(text, ": NULL: mine (no error is pending)") != NULL, "%s", text);
}
END_TEST

/* ---- memory that runs out -------------------------------------------------------------------- */

/* What a sweep works on. Each run has leaves of its own; the module's parameters stay. */
typedef struct plant {
    tn_module *model;
    tn_tensor *x, *y;
    tn_list *parameters;
} plant;

static tn_status say(const void *made)
{
    return made ? TN_OK : tn_error_status();
}

static tn_status a_step(const plant *p)
{
    return tn_backward(tn_cross_entropy(tn_forward(p->model, p->x), p->y));
}

static tn_tensor *fresh_leaf(int64_t n)
{
    tn_tensor *t = tn_ones(TN_SHAPE(n));
    return tn_set_requires_grad(t, true) == TN_OK ? t : NULL;
}

static tn_status seeds_and_retained(const plant *p)
{
    tn_tensor *x = fresh_leaf(3), *y = tn_square(x), *seed = tn_ones(TN_SHAPE(3));
    (void)p;
    tn_status status = tn_retain_grad(y);
    if (status == TN_OK) status = tn_backward_from(y, seed, TN_RETAIN_GRAPH);
    if (status != TN_OK) {
        if (y) ck_assert(tn_grad(x) == TN_NONE && tn_grad(y) == TN_NONE);
        return status;
    }
    status = tn_backward_from(y, seed, 0);
    double times = status == TN_OK ? 2 : 1;
    scarce.failing = 0;
    assert_values(tn_grad(x), 0, 2 * times, 2 * times, 2 * times);
    assert_values(tn_grad(y), 0, times, times, times);
    return status;
}

static tn_status second_derivatives(const plant *p)
{
    tn_tensor *x = fresh_leaf(3), *y = tn_sum(tn_mul(tn_square(x), x), NULL, 0, false), *dx = NULL;
    (void)p;
    tn_status status =
        y ? tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH) : tn_error_status();
    if (status != TN_OK) ck_assert_ptr_null(dx);
    if (status == TN_OK) status = tn_backward(tn_sum(dx, NULL, 0, false));
    return status;
}

static tn_status many_hooks(const plant *p)
{
    tn_tensor *x = fresh_leaf(2), *y = tn_square(x);
    int64_t on_x = 0, on_model[3] = { 0, 0, 0 };
    int n = 0;
    gives = tn_square;
    for (int i = 0; i < 6 && on_x >= 0 && y; i++) on_x = tn_register_hook(y, give, NULL);
    tn_status status = !y || on_x < 0 ? tn_error_status() : TN_OK;
    for (; n < 3 && status == TN_OK; n++) {
        on_model[n] = tn_register_full_backward_hook(p->model, give_to_module, NULL);
        if (on_model[n] < 0) status = tn_error_status();
    }
    if (status == TN_OK)
        status = tn_backward(
            tn_sum(tn_forward(p->model, tn_reshape(y, TN_SHAPE(1, 2))), NULL, 0, false));
    if (on_x > 0) tn_remove_hook(y, on_x);
    for (int i = 0; i < n; i++) tn_remove_module_hook(p->model, on_model[i]);
    return status;
}

static tn_tensor *pass_within(tn_tensor *g, void *user)
{
    tn_tensor *const *t = user, *dh;
    return tn_gradients(1, &t[1], NULL, 1, &t[0], &dh, TN_RETAIN_GRAPH) == TN_OK ? g : NULL;
}

static tn_tensor *pass_once(tn_tensor *g, void *user)
{
    tn_tensor **t = user, *hooked_no_more = t[2];
    t[2] = NULL;
    return hooked_no_more ? pass_within(g, t) : g;
}

static tn_status a_pass_in_a_hook(const plant *p)
{
    tn_tensor *x = fresh_leaf(1), *h = tn_square(x), *y = tn_square(h), *dx = NULL;
    tn_tensor *t[3] = { h, y, h };
    (void)p;
    if (!y || tn_register_hook(h, pass_once, t) < 0) return tn_error_status();
    tn_status status = tn_gradients(1, &y, NULL, 1, &x, &dx, TN_RETAIN_GRAPH);
    if (status == TN_OK) assert_values(dx, 0, 4);
    /* the graph stays whole, whatever failed in it */
    scarce.failing = 0;
    t[2] = NULL;
    assert_ok(tn_backward(y));
    assert_values(tn_grad(x), 0, 4);
    return status;
}

static tn_status many_scopes(const plant *p)
{
    tn_status status = TN_OK;
    (void)p;
    for (int i = 0; i < 40 && status == TN_OK; i++) {
        tn_scope s = tn_scope_begin();
        for (int k = 0; k < 3 && status == TN_OK; k++) status = say(tn_ones(TN_SHAPE(1)));
        if (i % 2) tn_scope_end(s); /* the others end with the run's */
    }
    return status;
}

static tn_tensor *captured(void *user, int n, tn_tensor *const *in)
{
    const plant *p = user;
    tn_tensor *loss = n == 2 ? tn_cross_entropy(tn_forward(p->model, in[0]), in[1]) : NULL;
    return loss && tn_backward(loss) == TN_OK ? loss : NULL;
}

static tn_status a_capture(const plant *p)
{
    tn_capture *c = tn_capture_new(captured, (void *)p, tn_cpu());
    tn_status status =
        c ? say(tn_capture_run(c, 2, (tn_tensor *[]){ p->x, p->y })) : tn_error_status();
    tn_capture_free(c);
    return status;
}

static tn_status grads_given(const plant *p)
{
    tn_tensor *x = fresh_leaf(2), *g = tn_ones(TN_SHAPE(2));
    (void)p;
    tn_status status = x && g ? tn_set_grad(x, g) : tn_error_status();
    return status == TN_OK ? say(tn_detach(tn_grad(x))) : status;
}

static tn_status (*const sweeps[])(const plant *p) = {
    a_step,           seeds_and_retained, second_derivatives, many_hooks,
    a_pass_in_a_hook, many_scopes,        a_capture,          grads_given
};

/* Each allocation fails in turn: the message says so, all is freed, no grad changed. */
START_TEST(memory_that_runs_out_changes_nothing)
{
    scarce_install();
    plant p = { .model = tn_sequential(linear(2, 3), tn_relu_new(), linear(3, 2)),
                .x = tn_ones(TN_SHAPE(2, 2)),
                .y = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2)) };
    p.parameters = tn_parameters(p.model);
    assert_made(p.parameters);
    bool done = false;
    for (int64_t k = 0; !done; k++) { /* 0: once without, for what is made once and kept */
        int64_t live = tn_live_tensors(), in_use = tn_memory().in_use;
        tn_error_clear();
        tn_scope s = tn_scope_begin();
        scarce_fail(k);
        tn_status status = sweeps[_i](&p);
        done = k > 0 && scarce.requests < k;
        scarce.failing = 0;
        ck_assert_msg(status == TN_OK ||
                          (k > 0 && !done && status == TN_E_NOMEM && strstr(tn_error(), "memory")),
                      "allocation %d: %s: %s", (int)k, tn_status_name(status), tn_error());
        /* a captured step that was done may still fail to hand over its result */
        for (int i = 0; i < p.parameters->n && status != TN_OK && sweeps[_i] != a_capture; i++)
            ck_assert_ptr_eq(tn_grad(p.parameters->entry[i].tensor), TN_NONE);
        assert_ok(tn_module_zero_grad(p.model));
        tn_scope_end(s);
        if (k == 0) continue;
        ck_assert_msg(tn_live_tensors() == live, "allocation %d: %d tensors leak", (int)k,
                      (int)(tn_live_tensors() - live));
        ck_assert_msg(tn_memory().in_use == in_use, "allocation %d: %d bytes leak", (int)k,
                      (int)(tn_memory().in_use - in_use));
    }
    tn_module_drop(p.model);
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* read at the first allocation: the allocator sees them all */
    Suite *suite = suite_create("sound_grad");
    TCase *t = test_case(suite, "hooks");
    tcase_add_loop_test(t, a_hook_gives_a_tensor_like_the_gradient, 0,
                        (int)(sizeof returned / sizeof *returned));
    tcase_add_test(t, a_hook_removes_any_hook);
    tcase_add_test(t, a_hook_adds_hooks);
    tcase_add_test(t, a_hook_runs_another_pass);
    tcase_add_test(t, passes_without_end_are_refused);
    tcase_add_test(t, a_hook_ends_the_scope_of_the_graph);
    tcase_add_test(t, derivatives_of_a_function_that_ends_the_scope);
    tcase_add_test(t, a_visitor_ends_the_scope);
    tcase_add_test(t, hooks_of_modules_end_the_scope);
    tcase_add_test(t, an_op_of_the_user_ends_the_scope);
    tcase_add_test(t, lists_of_a_scope_that_ends);
    tcase_add_test(t, checks_and_captures_whose_function_ends_the_scope);
    tcase_add_test(t, such_a_scope_returns_nothing);
    tcase_add_test(t, a_hooks_modes_end_with_it);
    tcase_add_test(t, a_hook_drops_its_module_or_its_parent);
    tcase_add_test(t, a_backward_hook_runs_another_pass);
    t = test_case(suite, "memory");
    tcase_add_test(t, a_retained_gradient_is_not_the_seed);
    tcase_add_test(t, a_leaf_as_its_own_seed);
    tcase_add_test(t, gradients_share_no_memory);
    tcase_add_test(t, a_failed_pass_retains_nothing);
    tcase_add_test(t, a_gradient_is_no_cycle);
    tcase_add_loop_test(t, chains_of_any_length_go_without_stack, 0, 3);
    tcase_add_test(t, a_release_uses_scopes);
    t = test_case(suite, "words");
    tcase_add_test(t, null_arguments_are_named);
    tcase_add_test(t, null_for_an_optional_tensor_names_none);
    tcase_add_test(t, a_failed_tensor_is_not_an_absent_one);
    tcase_add_test(t, a_place_is_said_once);
    tcase_add_test(t, backward_says_when_recording_is_off);
    tcase_add_test(t, check_ptr_has_something_true_to_say);
    t = test_case(suite, "out of memory");
    tcase_add_loop_test(t, memory_that_runs_out_changes_nothing, 0,
                        (int)(sizeof sweeps / sizeof *sweeps));
    return suite;
}
