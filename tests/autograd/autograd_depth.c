/*
 * autograd_depth.c - the engine where much is asked of it: graphs of any depth and width, what the
 * release of memory may do, and memory that runs out.
 *
 * Seen to fail: a test's comment in the past tense says how.
 */
#include <pthread.h>

#include "autograd/autograd.h"
#include "nn/boxes.h"
#include "scarce.h"

/* ---- any depth ------------------------------------------------------------------------------- */

/* Chains, each link made of the last one. */
static tn_tensor *one_more(tn_tensor *last)
{
    return tn_add_scalar(last, 1);
}

static tn_tensor *gradient_of(tn_tensor *last)
{
    assert_ok(tn_set_grad(last, tn_ones(TN_SHAPE(1))));
    return tn_grad(last);
}

static float cell;
static void drop_previous(void *previous)
{
    tn_drop(previous);
}

static tn_tensor *whose_release_drops(tn_tensor *last)
{
    return tn_from_memory(&cell, TN_SHAPE(1), TN_F32, drop_previous, tn_keep(last));
}

/* The same value again, with a longer history. */
static tn_tensor *derivative_of(tn_tensor *last)
{
    tn_tensor *y = tn_mul(last, last), *dx;
    assert_ok(tn_gradients(1, &y, NULL, 1, &last, &dx, TN_CREATE_GRAPH));
    return tn_mul_scalar(dx, 0.5);
}

static const struct chain {
    tn_tensor *(*next)(tn_tensor *last);
    int64_t length;
    bool recorded; /* from its first link on */
} chains[] = { { one_more, TEST_ASAN ? 100000 : 1000000, true },
               { gradient_of, 300000, false },
               { whose_release_drops, 300000, false },
               { derivative_of, 30000, false } };

static void *run_chain(void *user)
{
    const struct chain *c = user;
    tn_scope all = tn_scope_begin();
    tn_tensor *x = LEAF(1), *last = tn_keep(x), *g;
    for (int64_t i = 0; i < c->length; i++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *next = tn_keep(c->next(last));
        tn_scope_end(s);
        tn_drop(last);
        last = next;
    }
    assert_made(last);
    if (c->recorded) {
        assert_ok(tn_gradients(1, &last, NULL, 1, &x, &g, TN_RETAIN_GRAPH));
        assert_values(g, 0, 1);
        assert_ok(tn_backward(last));
        assert_grad(x, 1);
    }
    tn_drop(last); /* frees them all, one behind the other */
    tn_scope_end(all);
    return NULL;
}

/* Freeing overflowed the stack, which is a small one here. */
START_TEST(chains_of_any_length_go_without_stack)
{
    pthread_attr_t attributes;
    pthread_t thread;
    ck_assert_int_eq(pthread_attr_init(&attributes), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, run_chain, (void *)&chains[_i]), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}
END_TEST

START_TEST(diamonds)
{
    /* y = y + y, 30 times: 2^30 paths, one visit a node */
    tn_tensor *x = LEAF(1), *y = x;
    for (int i = 0; i < 30; i++) y = tn_add(y, tn_mul_scalar(y, 1));
    assert_ok(tn_backward(y));
    assert_grad(x, 1073741824.0);
}
END_TEST

START_TEST(fan_in)
{
    enum { N = 20000 };
    static tn_tensor *all[N];
    tn_tensor *x = LEAF(2);
    for (int i = 0; i < N; i++) all[i] = tn_square(x);
    assert_backward(tn_cat(all, N, 0));
    assert_grad(x, 4.0 * N);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(backward_frees_as_it_goes)
{
    tn_tensor *x = LEAF(1, 2);
    int64_t before = tn_live_tensors();
    for (int i = 0; i < 3; i++) {
        tn_scope s = tn_scope_begin();
        assert_backward(tn_exp(tn_mul(x, tn_square(x))));
        tn_scope_end(s);
        if (i == 0) before = tn_live_tensors(); /* with x's grad */
        ck_assert_int_eq(tn_live_tensors(), before);
    }
}
END_TEST

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

/* ---- memory that runs out -------------------------------------------------------------------- */

/* What a sweep works on. Each run has leaves of its own; the module's parameters stay. */
typedef struct plant {
    tn_module *model;
    tn_tensor *x, *y;
    tn_list *parameters;
    tn_status (*run)(const struct plant *p);
} plant;

#define SWEEP(name) static tn_status name(CK_ATTRIBUTE_UNUSED const plant *p)

static tn_status say(const void *made)
{
    return made ? TN_OK : tn_error_status();
}

SWEEP(a_step)
{
    return tn_backward(tn_cross_entropy(tn_forward(p->model, p->x), p->y));
}

static tn_tensor *fresh_leaf(int64_t n)
{
    tn_tensor *t = tn_ones(TN_SHAPE(n));
    return tn_set_requires_grad(t, true) == TN_OK ? t : NULL;
}

SWEEP(seeds_and_retained)
{
    tn_tensor *x = fresh_leaf(3), *y = tn_square(x), *seed = tn_ones(TN_SHAPE(3));
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

SWEEP(second_derivatives)
{
    tn_tensor *x = fresh_leaf(3), *y = tn_sum_all(tn_mul(tn_square(x), x)), *dx = NULL;
    tn_status status =
        y ? tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH) : tn_error_status();
    if (status != TN_OK) ck_assert_ptr_null(dx);
    if (status == TN_OK) status = tn_backward(tn_sum_all(dx));
    return status;
}

HOOK(squared, tn_square(g))

static tn_status squared_input(tn_module *m, int n_in, tn_tensor **in, int n_out,
                               tn_tensor *const *out, void *user)
{
    (void)m, (void)n_in, (void)n_out, (void)out;
    in[0] = squared(in[0], user);
    return TN_OK;
}

SWEEP(many_hooks)
{
    tn_tensor *x = fresh_leaf(2), *y = tn_square(x);
    int64_t on_x = 0, on_model[3] = { 0, 0, 0 };
    int n = 0;
    for (int i = 0; i < 6 && on_x >= 0 && y; i++) on_x = tn_register_hook(y, squared, NULL);
    tn_status status = !y || on_x < 0 ? tn_error_status() : TN_OK;
    for (; n < 3 && status == TN_OK; n++) {
        on_model[n] = tn_register_full_backward_hook(p->model, squared_input, NULL);
        if (on_model[n] < 0) status = tn_error_status();
    }
    if (status == TN_OK)
        status = tn_backward(tn_sum_all(tn_forward(p->model, tn_reshape(y, TN_SHAPE(1, 2)))));
    if (on_x > 0) tn_remove_hook(y, on_x);
    for (int i = 0; i < n; i++) tn_remove_module_hook(p->model, on_model[i]);
    return status;
}

/* A pass of its own, once. */
static tn_tensor *pass_within(tn_tensor *g, void *user)
{
    tn_tensor **t = user, *dh;
    bool first = t[2] != NULL;
    t[2] = NULL;
    if (first && tn_gradients(1, &t[1], NULL, 1, &t[0], &dh, TN_RETAIN_GRAPH) != TN_OK) return NULL;
    return g;
}

SWEEP(a_pass_in_a_hook)
{
    tn_tensor *x = fresh_leaf(1), *h = tn_square(x), *y = tn_square(h), *dx = NULL;
    tn_tensor *t[3] = { h, y, h };
    if (!y || tn_register_hook(h, pass_within, t) < 0) return tn_error_status();
    tn_status status = tn_gradients(1, &y, NULL, 1, &x, &dx, TN_RETAIN_GRAPH);
    if (status == TN_OK) assert_values(dx, 0, 4);
    /* the graph stays whole, whatever failed in it */
    scarce.failing = 0;
    t[2] = NULL;
    assert_ok(tn_backward(y));
    assert_values(tn_grad(x), 0, 4);
    return status;
}

SWEEP(many_scopes)
{
    tn_status status = TN_OK;
    for (int i = 0; i < 40 && status == TN_OK; i++) {
        tn_scope s = tn_scope_begin();
        for (int k = 0; k < 3 && status == TN_OK; k++) status = say(tn_ones(TN_SHAPE(1)));
        if (i % 2) tn_scope_end(s); /* the others end with the run's */
    }
    return status;
}

static tn_tensor *captured(int n, tn_tensor *const *in, void *user)
{
    const plant *p = user;
    tn_tensor *loss = n == 2 ? tn_cross_entropy(tn_forward(p->model, in[0]), in[1]) : NULL;
    return loss && tn_backward(loss) == TN_OK ? loss : NULL;
}

SWEEP(a_capture)
{
    tn_capture *c = tn_capture_new(captured, (void *)p, tn_cpu());
    tn_status status =
        c ? say(tn_capture_run(c, 2, (tn_tensor *[]){ p->x, p->y })) : tn_error_status();
    tn_capture_free(c);
    return status;
}

SWEEP(grads_given)
{
    tn_tensor *x = fresh_leaf(2), *g = tn_ones(TN_SHAPE(2));
    tn_status status = x && g ? tn_set_grad(x, g) : tn_error_status();
    return status == TN_OK ? say(tn_detach(tn_grad(x))) : status;
}

static tn_status (*const sweeps[])(const plant *p) = {
    a_step,           seeds_and_retained, second_derivatives, many_hooks,
    a_pass_in_a_hook, many_scopes,        a_capture,          grads_given
};

static tn_status sweep(void *user)
{
    const plant *p = user;
    tn_status status = p->run(p);
    scarce.failing = 0;
    /* a captured step that was done may still fail to hand over its result */
    for (int i = 0; i < p->parameters->n && status != TN_OK && p->run != a_capture; i++)
        ck_assert_ptr_eq(tn_grad(p->parameters->entry[i].tensor), TN_NONE);
    assert_ok(tn_module_zero_grad(p->model));
    return status;
}

/* Each allocation fails in turn: the message says so, all is freed, no grad changed. */
START_TEST(memory_that_runs_out_changes_nothing)
{
    scarce_install();
    plant p = { .model = owned(tn_sequential(linear(2, 3), tn_relu_new(), linear(3, 2))),
                .x = tn_ones(TN_SHAPE(2, 2)),
                .y = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2)),
                .run = sweeps[_i] };
    p.parameters = tn_parameters(p.model);
    assert_made(p.parameters);
    ck_assert_int_gt(scarce_sweep_warm(sweep, NULL, &p), 0);
}
END_TEST

void autograd_depth_cases(Suite *suite)
{
    TCase *t = test_case(suite, "depth");
    tcase_add_loop_test(t, chains_of_any_length_go_without_stack, 0, COUNT(chains));
    add_tests(t, diamonds, fan_in);
    t = test_case(suite, "memory");
    add_tests(t, backward_frees_as_it_goes, a_release_uses_scopes);
    tcase_add_loop_test(t, memory_that_runs_out_changes_nothing, 0, COUNT(sweeps));
}
