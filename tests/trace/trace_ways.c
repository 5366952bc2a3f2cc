/*
 * trace_ways.c - what a trace tells of the way to a number: hooks that change a gradient, the
 * pass that a loss belongs to, who moved a tensor, handles of other threads.
 *
 * Truth: graphs small enough to know. Seen to fail: each, before src/ext/trace told it.
 */
#include <pthread.h>

#include "trace/trace_read.h"

static const tn_trace_options plain;

/* ---- hooks ----------------------------------------------------------------------------------- */

static tn_tensor *times(tn_tensor *grad, void *user)
{
    return tn_mul_scalar(grad, *(double *)user);
}

static tn_tensor *times_in_place(tn_tensor *grad, void *user)
{
    assert_ok(tn_mul_scalar_(grad, *(double *)user));
    return grad;
}

static tn_tensor *as_it_is(tn_tensor *grad, void *user)
{
    (void)user;
    return grad;
}

static double half = 0.5, ten = 10;

/* h is used twice: 2 and 3 arrive, two hooks make 25 and 25 of the 5, w's own makes 250 of it. */
START_TEST(hooks_are_told)
{
    tn_tensor *w = leaf(TN_SHAPE(1), 3, "w"), *h = tn_mul_scalar(w, 1);
    ck_assert(tn_register_hook(h, _i ? times_in_place : times, &ten) >= 0);
    ck_assert(tn_register_hook(h, as_it_is, NULL) >= 0);
    ck_assert(tn_register_hook(h, times, &half) >= 0);
    ck_assert(tn_register_hook(w, times, &ten) >= 0);
    tn_trace *tr = begin(plain);
    tn_tensor *two = tn_mul_scalar(h, 2), *three = tn_mul_scalar(h, 3);
    assert_ok(tn_backward(sum(tn_add(two, three))));
    assert_ok(tn_trace_end(tr));
    const char *text = told(tr);
    assert_says(text, "  arrives: dy 25\n"
                      "    the sum of mul_scalar #2: 3 + mul_scalar #1: 2\n"
                      "    hook 1 of 3: dy 5 -> dy 50\n"
                      "    hook 2 of 3 leaves dy as it is\n"
                      "    hook 3 of 3: dy 50 -> dy 25\n");
    assert_says(text, "-> [1]   dx 25\n"
                      "    hook 1 of 1: dx 25 -> dx 250\n"
                      "    w  leaf  grad = 0 + dx   (1 of 1)   grad 250\n");
    text = json(tr);
    assert_says(text, "],\"hooks\":[{\"number\":1,\"of\":3,\"before\":{\"norm\":5,");
    assert_says(text, ",\"hooks\":[{\"number\":1,\"of\":1,\"before\":{\"norm\":25,");
    assert_values(tn_grad(w), 0, 250);
}
END_TEST

/* The hook of a leaf that is read twice gets the sum, from tn_gradients, too. */
START_TEST(a_leafs_hook_gets_the_sum)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 3, "w"), *loss = sum(tn_mul(w, w)), *grad;
    ck_assert(tn_register_hook(w, times, &ten) >= 0);
    tn_trace *tr = begin(plain);
    if (_i)
        assert_ok(tn_gradients(1, &loss, NULL, 1, &w, &grad, 0));
    else
        assert_ok(tn_backward(loss));
    assert_ok(tn_trace_end(tr));
    if (!_i)
        assert_says(told(tr), "|db| 4.243 = [3, 3]\n    hook 1 of 1: |sum| 8.485 -> |sum| 84.85");
    const char *text = json(tr), *hooks = strstr(text, "\"hooks\":[");
    ck_assert(hooks && !strstr(hooks + 1, "\"hooks\":["));
    assert_says(text, "\"hooks\":[{\"number\":1,\"of\":1,\"before\":{\"norm\":8.48528137,");
}
END_TEST

static tn_tensor *other_backward(tn_tensor *grad, void *user)
{
    tn_tensor *x = user;
    tn_set_grad_enabled(true);
    tn_tensor *y = sum(tn_mul_scalar(x, 7));
    tn_set_grad_enabled(false);
    assert_ok(tn_backward(y));
    return grad;
}

/* A pass that a hook runs, with a hook in it, changes nothing of what is told of the first. */
START_TEST(a_hook_within_a_hook)
{
    tn_tensor *a = leaf(TN_SHAPE(1), 3, "a"), *b = leaf(TN_SHAPE(1), 5, "b");
    tn_tensor *y = tn_mul_scalar(a, 2);
    ck_assert(tn_register_hook(y, times, &ten) >= 0);
    ck_assert(tn_register_hook(y, other_backward, b) >= 0);
    ck_assert(tn_register_hook(b, times, &half) >= 0);
    tn_trace *tr = begin(plain);
    assert_ok(tn_backward(sum(y)));
    assert_ok(tn_trace_end(tr));
    assert_says(told(tr), "    hook 1 of 2: dy 1 -> dy 10\n    hook 2 of 2 leaves dy as it is\n");
    assert_says(told(tr), "    hook 1 of 1: dx 7 -> dx 3.5\n");
}
END_TEST

/* ---- rules ----------------------------------------------------------------------------------- */

static const char *explained(tn_tensor *loss)
{
    FILE *file = tmpfile();
    assert_ok(tn_explain(file, loss, (tn_explain_options){ 0 }));
    return text_of(file);
}

/* A rule goes by the place of its input, not by which of them have a gradient. */
START_TEST(rules_pass_over_an_input_without_gradient)
{
    const tn_shape three = TN_SHAPE(3);
    tn_tensor *yes = leaf(three, 1, "yes"), *no = leaf(three, 2, "no");
    tn_tensor *condition = tn_from_data((bool[]){ true, false, true }, three, TN_BOOL);
    const char *text = explained(sum(tn_where(condition, yes, no)));
    const char *at = strstr(text, "da = condition ? dy : 0");
    ck_assert_msg(at && strstr(at, "yes  leaf  grad = 0 + da"), "%s", text);
    at = at ? strstr(at, "db = condition ? 0 : dy") : NULL;
    ck_assert_msg(at && strstr(at, "no  leaf  grad = 0 + db"), "%s", text);
    tn_tensor *source = leaf(three, 3, "source"),
              *index = tn_from_ints((int64_t[]){ 0, 1, 1 }, three);
    assert_says(explained(sum(tn_scatter_add(leaf(three, 1, "x"), 0, index, source))),
                "source  leaf  grad = 0 + dsource");
}
END_TEST

/* ---- roots ----------------------------------------------------------------------------------- */

/* The step's root is the op of the loss, whatever passes come before, within and after it. */
START_TEST(the_root_is_the_losss)
{
    tn_tensor *w = leaf(TN_SCALAR, 2, "w"), *b = leaf(TN_SHAPE(1), 5, "b"), *grad;
    tn_trace *tr = begin(plain);
    tn_tensor *y = tn_square(w), *loss = tn_tanh(y), *probe = tn_mul_scalar(y, 100);
    ck_assert(tn_register_hook(y, other_backward, b) >= 0);
    if (_i == 1) assert_ok(tn_gradients(1, &probe, NULL, 1, &w, &grad, TN_RETAIN_GRAPH));
    assert_ok(tn_backward_from(loss, TN_NONE, TN_RETAIN_GRAPH));
    if (_i == 2) assert_ok(tn_gradients(1, &probe, NULL, 1, &w, &grad, TN_RETAIN_GRAPH));
    const tni_log_step *s = ended(tr);
    ck_assert_str_eq(s->root->op->name, "tanh");
    size_t first = _i == 1 ? 2 : 0; /* the probe's pass runs the hook on y, too */
    ck_assert_int_eq(s->n_passes, _i ? 4 : 2);
    ck_assert_str_eq(s->passes[first]->root->op->name, "tanh");
    ck_assert_str_eq(s->passes[first + 1]->root->op->name, "sum");
}
END_TEST

/* Two losses: the last one; and what is not one number, where there is nothing else. */
START_TEST(roots_of_other_losses)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 2, "w");
    tn_trace *tr = begin(plain);
    if (_i != 1) assert_ok(tn_backward(sum(tn_exp(w))));
    if (_i == 0) assert_ok(tn_backward(tn_mean(w, NULL, 0, false)));
    if (_i != 0) assert_ok(tn_backward_from(tn_tanh(w), tn_ones_like(w), 0));
    const tni_log_step *s = ended(tr);
    static const char *const want[] = { "mean", "tanh", "sum" };
    ck_assert_str_eq(s->root->op->name, want[_i]);
}
END_TEST

/* ---- who moved it ---------------------------------------------------------------------------- */

static tn_tensor *counting_forward(tn_module *self, tn_tensor *x);

typedef struct counting {
    tn_module base;
    tn_tensor *w, *n;
} counting;

static const tn_module_type counting_type = { "Counting", sizeof(counting),
                                              .forward = counting_forward };

static tn_tensor *counting_forward(tn_module *self, tn_tensor *x)
{
    counting *m = (counting *)self;
    TN_NO_GRAD assert_ok(tn_add_scalar_(m->n, 1));
    return tn_mul(tn_mul(x, m->w), m->n);
}

static tn_module *counting_new(void)
{
    counting *m = tn_module_new(&counting_type);
    assert_made(m);
    tn_register_parameter(&m->base, "w", &m->w, tn_ones(TN_SHAPE(1)));
    tn_register_buffer(&m->base, "n", &m->n, tn_zeros(TN_SHAPE(1)), TN_PERSISTENT);
    return tn_module_done(&m->base);
}

static tn_tensor *counts_in_hook(tn_tensor *grad, void *user)
{
    assert_ok(tn_add_scalar_(user, 100));
    return grad;
}

enum { BEFORE = 1, CALLED = 2, HOOK = 4, AFTER = 8, STEP = 16, REPLACED = 32 };

START_TEST(who_moved_it)
{
    static const struct {
        int what;
        const char *n, *w;
    } rows[] = {
        { CALLED, "by forward", "no" },
        { BEFORE | CALLED, "by hand and by forward", "no" },
        { CALLED | HOOK | STEP, "by forward and by backward", "by the optimizer" },
        { CALLED | AFTER, "by hand and by forward", "no" },
        { BEFORE, "by hand", "no" },
        { HOOK, "by backward", "no" },
        { REPLACED, "not known", "no" },
        { STEP, "no", "by the optimizer" },
    };
    int what = rows[_i].what;
    tn_module *m = owned(counting_new());
    tn_tensor *n = tn_get_buffer(m, "n"), *w = tn_get_parameter(m, "w");
    tn_optim *opt = owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 }));
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = opt });
    if (what & BEFORE) assert_ok(tn_fill_(n, 5));
    if (what & REPLACED) assert_ok(tn_module_set(m, "n", tn_full(TN_SHAPE(1), 5)));
    n = tn_get_buffer(m, "n");
    tn_tensor *x = tn_ones(TN_SHAPE(1));
    tn_tensor *y = what & CALLED ? tn_forward(m, x) : tn_mul(w, x);
    if (what & HOOK) ck_assert(tn_register_hook(w, counts_in_hook, n) >= 0);
    assert_ok(tn_backward(sum(y)));
    if (what & AFTER) assert_ok(tn_fill_(n, 9));
    if (what & STEP) assert_ok(tn_optim_step(opt));
    if (what & STEP) assert_ok(tn_fill_(n, 77)); /* belongs to a next step */
    assert_ok(tn_trace_end(tr));
    const tni_log_step *s = step_of(tr, 0);
    const char *text = told(tr);
    static const char *const name[] = { "w", "n" };
    for (int i = 0; i < 2; i++) {
        const char *want = i ? rows[_i].n : rows[_i].w;
        ck_assert_str_eq(s->ledger[i]->tensor->name, name[i]);
        tni_phrase got = tni_moved_phrase(s->ledger[i]->moved);
        ck_assert_msg(strcmp(got.s, want) == 0, "%s: %s, want %s\n%s", name[i], got.s, want, text);
    }
    if (what == CALLED) assert_says(text, "n  buffer  no gradient; forward moved 0 -> 1\n");
    if (what == (BEFORE | CALLED))
        assert_says(text, "n  buffer  no gradient; moved by hand and by forward 0 -> 6\n");
}
END_TEST

/* ---- other threads --------------------------------------------------------------------------- */

static tn_tensor *made; /* one reference, by another thread */
static int reused;      /* how often it was made where the one before it was */

/* Drops what is made and makes another, if possible where that was. */
static void *make(void *name)
{
    const tn_tensor *old = made;
    tn_scope s = tn_scope_begin();
    tn_tensor *t = NULL;
    if (made) tn_drop(made);
    for (int i = 0; i < 16 && (!t || (old && t != old)); i++)
        t = tn_full_as(TN_SHAPE(2), atof((char *)name + 1), TN_F64, tn_cpu());
    assert_ok(tn_set_name(t, name));
    reused += t == old;
    made = tn_keep(t);
    tn_scope_end(s);
    return NULL;
}

static void in_another_thread(void *(*f)(void *), void *user)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, f, user), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* Data from another thread, as a loader makes it: by its own name, even where a handle of before
 * was. */
START_TEST(handles_of_other_threads)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 1, "w");
    tn_trace *tr = begin(plain);
    for (int k = 0; k < 8; k++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", k);
        in_another_thread(make, name);
        tn_scope s = tn_scope_begin(); /* no node keeps it longer */
        assert_ok(tn_backward(sum(tn_mul(w, made))));
        tn_scope_end(s);
    }
    tn_drop(made);
    assert_ok(tn_trace_end(tr));
    if (!TEST_ASAN) ck_assert_int_gt(reused, 0); /* which gives no address again */
    const tni_log_step *s = step_of(tr, 0);
    ck_assert_int_eq(s->n_nodes, 16);
    for (size_t k = 0; k < 8; k++) {
        const tni_log_in *in = &s->nodes[2 * k]->in[1];
        char name[16];
        snprintf(name, sizeof name, "x%zu", k);
        ck_assert_str_eq(in->tensor->name, name);
        ck_assert(in->value.value[0] == (double)k);
    }
}
END_TEST

void trace_ways_cases(Suite *suite)
{
    TCase *t = test_case(suite, "hooks");
    tcase_add_loop_test(t, hooks_are_told, 0, 2);
    tcase_add_loop_test(t, a_leafs_hook_gets_the_sum, 0, 2);
    tcase_add_test(t, a_hook_within_a_hook);
    tcase_add_test(t, rules_pass_over_an_input_without_gradient);
    t = test_case(suite, "roots");
    tcase_add_loop_test(t, the_root_is_the_losss, 0, 3);
    tcase_add_loop_test(t, roots_of_other_losses, 0, 3);
    t = test_case(suite, "moved");
    tcase_add_loop_test(t, who_moved_it, 0, 8);
    t = test_case(suite, "threads");
    tcase_add_test(t, handles_of_other_threads);
}
