/*
 * test_trace.c - training steps, told: tn_trace_*, tn_explain, tn_explain_diff.
 *
 * Truth: PyTorch's gradients of the same models (golden/make_explain.py), leaf by leaf and at the
 * result of every child; runs without a trace, bit by bit; graphs small enough to know. The golden
 * texts were read; TN_TEST_WRITE=1 writes them anew.
 */
#include <ctype.h>
#include <stdlib.h>

#include "models.h"
#include "scarce.h"
#include "trace/record.h"
#include "trace_cases.h"

static const tn_trace_options plain;

/* ---- small things ---------------------------------------------------------------------------- */

static tn_tensor *leaf(tn_shape shape, double value, const char *name)
{
    tn_tensor *t = tn_full_as(shape, value, TN_F64, tn_cpu());
    assert_made(t);
    assert_ok(tn_set_requires_grad(t, true));
    assert_ok(tn_set_name(t, name));
    return t;
}

static tn_tensor *sum(tn_tensor *t)
{
    return tn_sum(t, NULL, 0, false);
}

static tn_trace *begin(tn_trace_options o)
{
    tn_trace *tr = tn_trace_begin(o);
    assert_made(tr);
    return tr;
}

static const tni_told_step *step_of(const tn_trace *tr, size_t k)
{
    ck_assert_int_lt(k, tr->told.n_steps);
    return &tr->told.steps[k];
}

static const char *op_name(const tn_trace *tr, const tni_told_node *n)
{
    return tr->told.ops[n->op].name;
}

/* What was written to a file, from its beginning. */
static const char *text_of(FILE *file)
{
    static char text[2][1 << 18];
    static int turn;
    char *to = text[turn ^= 1];
    ck_assert(file != NULL);
    rewind(file);
    size_t n = fread(to, 1, sizeof text[0] - 1, file);
    ck_assert(n < sizeof text[0] - 1);
    to[n] = '\0';
    fclose(file);
    return to;
}

static const char *told(const tn_trace *tr)
{
    FILE *file = tmpfile();
    assert_ok(tn_trace_text(file, tr));
    return text_of(file);
}

static void assert_says(const char *text, const char *wanted)
{
    ck_assert_msg(strstr(text, wanted) != NULL, "\"%s\" is not in\n%s", wanted, text);
}

/* ---- golden files ---------------------------------------------------------------------------- */

static bool at_number(const char *text)
{
    return isdigit((unsigned char)text[*text == '-']);
}

/* How many elements may be 0 in one build and some 1e-17 in another. The gradient of the bias of
 * the 4 keys of attention is 0 but for rounding: all scores of a row move alike. */
static double rounded_zeros(const char *name, const char *got, const char *at)
{
    static const char before[] = "\"zeros\":";
    size_t n = sizeof before - 1;
    bool counts = (size_t)(at - got) >= n && memcmp(at - n, before, n) == 0;
    return counts && strstr(name, "transformer") ? 4 : 0;
}

/* The texts are equal but for numbers, which may differ by rounding. */
static void assert_same_text(const char *name, const char *got, const char *want, double tolerance)
{
    const char *a = got, *b = want;
    while (*a || *b) {
        bool number = at_number(a) && at_number(b);
        char *after_a = NULL, *after_b = NULL;
        double x = number ? strtod(a, &after_a) : 0, y = number ? strtod(b, &after_b) : 0;
        double most = tolerance * fmax(fabs(x), fabs(y)) + 1e-12 + rounded_zeros(name, got, a);
        bool same = number ? fabs(x - y) <= most : *a == *b;
        ck_assert_msg(same, "%s: byte %d: got\n%.300s\nwant\n%.300s", name, (int)(a - got), a, b);
        a = number ? after_a : a + 1;
        b = number ? after_b : b + 1;
    }
}

static void assert_golden(const char *file, const char *got, double tolerance)
{
    if (getenv("TN_TEST_WRITE")) {
        FILE *to = fopen(golden_path(file), "w");
        ck_assert(to && fputs(got, to) >= 0 && fclose(to) == 0);
        return;
    }
    assert_same_text(file, got, text_of(fopen(golden_path(file), "r")), tolerance);
}

static tn_tensor *golden(const char *format, const char *a, const char *b)
{
    static tn_list *list;
    char key[256];
    if (!a) list = NULL;
    if (!a || !list) list = tn_load_tensors(golden_path("explain.safetensors"), NULL);
    assert_made(list);
    if (!a) return NULL;
    snprintf(key, sizeof key, format, a, b);
    return tn_list_has(list, key) ? tn_list_get(list, key) : NULL;
}

static tn_module *case_begin(const trace_case *c)
{
    golden("", NULL, NULL);
    memset(trace_leaf, 0, sizeof trace_leaf);
    if (c->leaves) c->leaves();
    return c->model ? c->model() : NULL;
}

/* Each gradient of the case is PyTorch's; a frozen one is none. */
static void assert_gradients(const trace_case *c, tn_module *m)
{
    tn_list *list = m ? tn_parameters(m) : tn_list_new();
    for (int i = 0; !m && trace_leaf[i]; i++)
        assert_ok(tn_list_add(list, tn_name(trace_leaf[i]), trace_leaf[i]));
    for (int i = 0; i < list->n; i++) {
        tn_tensor *want = golden("%s/grad/%s", c->name, list->entry[i].name);
        tn_tensor *got = tn_grad(list->entry[i].tensor);
        ck_assert_msg((want == NULL) == tn_is_none(got), "%s: %s", c->name, list->entry[i].name);
        if (want) assert_close(got, want, 1e-9, 1e-12);
    }
    ck_assert_int_gt(list->n, 0);
}

START_TEST(backward_is_explained)
{
    const trace_case *c = &trace_cases[_i];
    char file[64];
    tn_module *m = case_begin(c);
    tn_optim *opt = m ? tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 }) : NULL;
    tn_tensor *loss;
    TN_PLACES loss = c->loss(m, NULL);
    FILE *out = tmpfile();
    tn_explain_options o = { .model = m, .opt = opt, .again = c->loss };
    uint64_t state = m ? state_hash(m) : 0;
    if (_i == TRACE_OVERWRITTEN)
        assert_fails(tn_explain(out, loss, o), TN_E_STATE, "changed in place");
    else
        assert_ok(tn_explain(out, loss, o));
    if (_i != TRACE_OVERWRITTEN) assert_gradients(c, m);
    ck_assert(!m || state_hash(m) == state); /* finite differences leave no trace */
    snprintf(file, sizeof file, "explain_%s.txt", c->name);
    assert_golden(file, text_of(out), 1e-3);
    tn_optim_free(opt);
    if (m) tn_module_drop(m);
}
END_TEST

/* The numbers of a trace against a tensor. */
static void assert_numbers(const char *what, const tni_numbers *v, tn_tensor *want)
{
    ck_assert_msg(v->known, "%s: not known", what);
    double norm = tn_item(tn_norm(want, 2, NULL, 0, false));
    ck_assert_msg(fabs(v->norm - norm) <= 1e-6 * norm + 1e-12, "%s: |.| %.9g, want %.9g", what,
                  v->norm, norm);
    if (!v->value) return;
    tn_tensor *got = tn_from_data(v->value, tn_shape_get(want), TN_F64);
    const char *differs = difference(got, want, 1e-6, 1e-12);
    ck_assert_msg(!differs, "%s: %s", what, differs);
}

/* What arrives at the result of each child is PyTorch's. Returns how many were compared. */
static int compare_arrivals(const trace_case *c, const tn_trace *tr)
{
    const tni_told_step *s = step_of(tr, 0);
    int compared = 0;
    for (size_t k = 0; k < s->n_backs; k++) {
        const tni_told_node *n = &s->nodes[s->backs[k].node];
        if (n->call < 0) continue;
        int call = n->call; /* the child of the model in which it ran */
        while (s->calls[call].outer > 0) call = s->calls[call].outer;
        const char *path = tr->told.modules[s->calls[call].module].path;
        tn_tensor *want = golden("%s/arrives/%s", c->name, path);
        bool last = true; /* of its ops: its result is the child's */
        for (size_t j = 0; j < k; j++) {
            int other = s->nodes[s->backs[j].node].call;
            while (other >= 0 && s->calls[other].outer > 0) other = s->calls[other].outer;
            last = last && other != call;
        }
        if (!want || !last || s->calls[call].time > 1) continue;
        assert_numbers(path, &s->backs[k].incoming[0], want);
        compared++;
    }
    return compared;
}

START_TEST(a_step_is_told)
{
    const trace_case *c = &trace_cases[_i];
    char file[64];
    tn_module *m = case_begin(c);
    tn_optim *opt = m ? tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 }) : NULL;
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = opt, .title = c->name });
    tn_scope scope = tn_scope_begin();
    assert_ok(tn_backward(c->loss(m, NULL)));
    if (opt) assert_ok(tn_optim_step(opt));
    tn_scope_end(scope);
    assert_ok(tn_trace_end(tr));
    assert_gradients(c, m);
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_double_eq_tol(s->loss, tn_item(golden("%s/loss%s", c->name, "")), 1e-12);
    for (size_t i = 0; i < s->n_ledger; i++) {
        const char *name = tr->told.tensors[s->ledger[i].tensor].name;
        tn_tensor *want = golden("%s/grad/%s", c->name, name);
        ck_assert_int_eq(s->ledger[i].grad.known, want != NULL);
        if (want) assert_numbers(name, &s->ledger[i].grad, want);
    }
    static const int arrivals[] = { 3, 1, 5, 3 };
    if (_i < 4) ck_assert_int_eq(compare_arrivals(c, tr), arrivals[_i]);
    FILE *out = tmpfile();
    assert_ok(tn_trace_json(out, tr));
    snprintf(file, sizeof file, "explain_%s.json", c->name);
    assert_golden(file, text_of(out), 1e-6);
    tn_trace_free(tr);
    tn_optim_free(opt);
    if (m) tn_module_drop(m);
}
END_TEST

/* ---- nothing changes ------------------------------------------------------------------------- */

static tn_module *dropout_net(void)
{
    return tn_sequential(tn_linear_new(4, 16, (tn_linear_options){ 0 }), tn_relu_new(),
                         tn_dropout_new(0.5), tn_linear_new(16, 3, (tn_linear_options){ 0 }));
}

typedef struct result {
    uint64_t state;
    double loss;
    int64_t live;
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
} result;

/* Three steps of a model with Adam; kind 0: an MLP with dropout, 1: the CNN, 2: the transformer. */
static result train(int kind, bool watched)
{
    result r = { 0 };
    tn_manual_seed(7);
    tn_scope scope = tn_scope_begin();
    tn_module *m = kind == 0 ? dropout_net() : kind == 1 ? cnn_new() : transformer_new();
    assert_made(m);
    tn_optim *opt = tn_adam(tn_parameters(m), (tn_adam_options){ .lr = 0.01 });
    tn_trace *tr = watched ? begin((tn_trace_options){ .model = m, .opt = opt }) : NULL;
    for (int step = 0; step < 3; step++) {
        tn_scope inner = tn_scope_begin();
        tn_tensor *x, *y;
        if (kind == 0) x = tn_randn(TN_SHAPE(5, 4)), y = tn_randint(0, 3, TN_SHAPE(5));
        if (kind == 1) synthetic_images(step, TN_F32, &x, &y);
        if (kind == 2) random_text(2, &x, &y);
        r.loss += train_step(m, opt, x, y);
        tn_scope_end(inner);
    }
    r.live = tn_live_tensors();
    if (watched) {
        assert_ok(tn_trace_end(tr));
        ck_assert_int_eq(tr->told.n_steps, 3);
        ck_assert_int_eq(tn_live_tensors(), r.live);
        tn_trace_free(tr);
    }
    r.state = state_hash(m);
    tn_generator_get_state(tn_default_generator(), r.generator);
    tn_optim_free(opt);
    tn_module_drop(m);
    tn_scope_end(scope);
    return r;
}

START_TEST(watching_changes_no_bit)
{
    result a = train(_i, false), b = train(_i, true);
    ck_assert(a.state == b.state && a.loss == b.loss);
    ck_assert_int_eq(a.live, b.live);
    ck_assert(memcmp(a.generator, b.generator, sizeof a.generator) == 0);
}
END_TEST

/* tn_explain against tn_backward: gradients, generator, versions of the parameters. */
START_TEST(explaining_changes_no_bit)
{
    float grad[2][16 * 4];
    int64_t live[2];
    for (int k = 0; k < 2; k++) {
        tn_manual_seed(3);
        tn_scope scope = tn_scope_begin();
        tn_module *m = dropout_net();
        tn_tensor *x = tn_randn(TN_SHAPE(5, 4)), *y = tn_randint(0, 3, TN_SHAPE(5));
        tn_tensor *loss = tn_cross_entropy(tn_forward(m, x), y),
                  *w = tn_get_parameter(m, "0.weight");
        uint64_t version = tn_version(w);
        FILE *file = tmpfile();
        if (k == 0)
            assert_ok(tn_backward(loss));
        else
            assert_ok(tn_explain(file, loss, (tn_explain_options){ .model = m }));
        fclose(file);
        live[k] = tn_live_tensors();
        ck_assert(tn_version(w) == version);
        assert_ok(tn_copy_out(tn_grad(w), grad[k], sizeof grad[k], TN_F32));
        tn_module_drop(m);
        tn_scope_end(scope);
    }
    ck_assert_int_eq(live[1], live[0]);
    ck_assert(memcmp(grad[0], grad[1], sizeof grad[0]) == 0);
}
END_TEST

/* ---- steps ----------------------------------------------------------------------------------- */

START_TEST(two_backwards_accumulate)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 3, "w");
    tn_trace *tr = begin(plain);
    assert_ok(tn_backward(sum(tn_mul_scalar(w, 2))));
    assert_ok(tn_backward(sum(tn_mul(w, w))));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_int_eq(tr->told.n_steps, 1);
    ck_assert_int_eq(s->n_passes, 2);
    const tni_told_back *last = &s->backs[s->n_backs - 1];
    ck_assert_int_eq(last->n_shares, 2);
    ck_assert(last->shares[0].before.value[0] == 2 && last->shares[0].after.value[0] == 5);
    ck_assert(last->shares[1].before.value[0] == 5 && last->shares[1].after.value[0] == 8);
    ck_assert(last->shares[1].part == 2 && last->shares[1].of == 2);
    assert_values(tn_grad(w), 0, 8, 8);
    tn_trace_free(tr);
}
END_TEST

static int hook_runs;

static tn_tensor *backward_in_hook(tn_tensor *grad, void *user)
{
    hook_runs++;
    tn_tensor *x = user;
    tn_set_grad_enabled(true);
    tn_tensor *y = sum(tn_mul(x, x));
    tn_set_grad_enabled(false);
    assert_ok(tn_backward(y));
    return grad;
}

START_TEST(a_backward_within_a_hook)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 3, "a"), *b = leaf(TN_SHAPE(2), 5, "b");
    tn_tensor *y = tn_mul_scalar(a, 2);
    ck_assert(tn_register_hook(y, backward_in_hook, b) >= 0);
    tn_trace *tr = begin(plain);
    tn_tensor *loss = sum(y);
    hook_runs = 0;
    assert_ok(tn_backward(loss));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_int_eq(hook_runs, 1);
    ck_assert_int_eq(s->n_passes, 2);
    ck_assert_int_eq(s->n_backs, 4);
    static const char *const order[] = { "sum", "sum", "mul", "mul_scalar" };
    static const int pass[] = { 0, 1, 1, 0 };
    for (int k = 0; k < 4; k++) {
        ck_assert_str_eq(op_name(tr, &s->nodes[s->backs[k].node]), order[k]);
        ck_assert_int_eq(s->backs[k].pass, pass[k]);
    }
    assert_values(tn_grad(b), 0, 10, 10);
    tn_trace_free(tr);
}
END_TEST

/* A pass that ran already when the trace began is not told; one that it starts is. */
static tn_tensor *begin_in_hook(tn_tensor *grad, void *user)
{
    tn_trace **tr = user;
    if (!*tr) *tr = begin(plain);
    return grad;
}

START_TEST(a_trace_begun_within_a_backward)
{
    tn_trace *tr = NULL;
    tn_tensor *x = leaf(TN_SHAPE(2), 3, "x"), *b = leaf(TN_SHAPE(2), 5, "b");
    tn_tensor *y = tn_mul(x, x), *z = tn_mul(y, x);
    ck_assert(tn_register_hook(z, begin_in_hook, &tr) >= 0);
    if (_i) ck_assert(tn_register_hook(y, backward_in_hook, b) >= 0);
    assert_ok(tn_backward(sum(z)));
    assert_values(tn_grad(x), 0, 27, 27);
    assert_ok(tn_backward(sum(tn_mul_scalar(x, 2))));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_int_eq(s->n_passes, 1 + _i);
    ck_assert_int_eq(s->n_backs, 2 + 2 * _i);
    ck_assert(s->backs[s->n_backs - 1].shares[0].after.value[0] == 29);
    ck_assert(s->loss_known && s->loss == 12);
    tn_trace_free(tr);
}
END_TEST

static tn_tensor *backward_of(tn_tensor *grad, void *user)
{
    assert_ok(tn_backward_from(user, TN_NONE, TN_RETAIN_GRAPH));
    return grad;
}

/* The loss is what the user's own backward began with, whatever else is differentiated. */
START_TEST(the_loss_is_of_the_outermost_backward)
{
    tn_tensor *w = leaf(TN_SCALAR, 2, "w"), *grad;
    static const double want[] = { 16, 16, 400 };
    tn_trace *tr = begin(plain);
    tn_tensor *y = tn_square(w), *loss = tn_square(y), *probe = tn_mul_scalar(y, 100);
    ck_assert(tn_register_hook(loss, backward_of, probe) >= 0);
    if (_i != 0) assert_ok(tn_gradients(1, &probe, NULL, 1, &w, &grad, TN_RETAIN_GRAPH));
    if (_i != 2) assert_ok(tn_backward_from(loss, TN_NONE, TN_RETAIN_GRAPH));
    if (_i != 1) assert_ok(tn_gradients(1, &probe, NULL, 1, &w, &grad, TN_RETAIN_GRAPH));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_int_eq(s->n_passes, _i == 2 ? 2 : 3);
    ck_assert(s->loss_known);
    ck_assert_msg(s->loss == want[_i], "loss %g", s->loss);
    tn_trace_free(tr);
}
END_TEST

static tn_tensor *ten_times(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_mul_scalar(grad, 10);
}

/* What is told of a leaf's gradient is what the leaf has in the end: hooks change it, and so do
 * backwards that they run. */
START_TEST(hooks_are_in_the_gradient)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 3, "w"), *v = leaf(TN_SHAPE(2), 4, "v");
    tn_tensor *y = tn_mul(w, v), *h = tn_mul_scalar(y, 2);
    ck_assert(tn_register_hook(w, ten_times, NULL) >= 0);
    ck_assert(tn_register_hook(h, _i == 2 ? backward_in_hook : ten_times, v) >= 0);
    tn_trace *tr = begin(plain);
    if (_i == 1) assert_ok(tn_backward(sum(tn_mul(w, v))));
    assert_ok(tn_backward(sum(tn_add(h, tn_mul_scalar(w, 5)))));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    tn_tensor *of[] = { w, v };
    int found[2] = { 0 };
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; i < s->backs[k].n_shares; i++) {
            const tni_told_share *share = &s->backs[k].shares[i];
            const tni_told_in *in = &s->nodes[s->backs[k].node].in[share->in];
            if (!share->part || share->part != share->of) continue;
            if (s->backs[k].pass != (_i == 1)) continue;
            int which = strcmp(tr->told.tensors[in->tensor].name, "v") == 0;
            double got = share->after.value[0];
            ck_assert_msg(got == tn_item(tn_select(tn_grad(of[which]), 0, 0)), "%s: %g",
                          which ? "v" : "w", got);
            found[which]++;
        }
    ck_assert(found[0] == 1 && found[1] == 1);
    tn_trace_free(tr);
}
END_TEST

START_TEST(tn_gradients_changes_no_grad)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 3, "a"), *b = leaf(TN_SHAPE(2), 5, "b"), *grad;
    tn_tensor *loss = sum(tn_mul(tn_exp(b), a));
    tn_trace *tr = begin(plain);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &a, &grad, TN_CREATE_GRAPH));
    assert_ok(tn_backward(sum(tn_mul(grad, grad))));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_int_eq(s->n_passes, 2);
    ck_assert(!s->passes[0].accumulates && s->passes[1].accumulates);
    ck_assert_int_eq(s->passes[0].n_nodes, 2); /* exp leads to b, which nobody asked for */
    assert_says(told(tr), "a  the gradient that was asked for");
    tn_trace_free(tr);
}
END_TEST

/* An output that depends on none of the inputs gets its seed all the same. */
START_TEST(an_output_that_leads_nowhere)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 3, "a"), *b = leaf(TN_SHAPE(2), 5, "b"), *grad;
    tn_tensor *outputs[] = { sum(tn_exp(a)), tn_exp(sum(b)) };
    tn_trace *tr = begin(plain);
    assert_ok(tn_gradients(2, outputs, NULL, 1, &a, &grad, 0));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    ck_assert_int_eq(s->n_backs, 3);
    for (size_t k = 0; k < 3; k++) ck_assert_int_ge(s->backs[k].node, 0);
    /* exp of the sum is no way to a, but what it kept is freed all the same */
    ck_assert_int_eq(s->passes[0].n_nodes, 3);
    ck_assert_int_eq(s->backs[2].kept, 0);
    tn_trace_free(tr);
}
END_TEST

START_TEST(steps_end_with_the_optimizer)
{
    tn_manual_seed(1);
    tn_module *m = dropout_net();
    tn_list *first = tn_parameters(tn_module_child(m, 0)),
            *last = tn_parameters(tn_module_child(m, 3));
    tn_optim *a = tn_sgd(first, (tn_sgd_options){ .lr = 0.1 });
    tn_optim *b = tn_sgd(last, (tn_sgd_options){ .lr = 0.1 });
    tn_tensor *x = tn_randn(TN_SHAPE(5, 4)), *y = tn_randint(0, 3, TN_SHAPE(5));
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = a });
    for (int k = 0; k < 3; k++) {
        if (k == 1) TN_NO_GRAD assert_made(tn_forward(m, x)); /* an evaluation between */
        assert_ok(tn_backward(tn_cross_entropy(tn_forward(m, x), y)));
        assert_ok(tn_optim_step(a));
        assert_ok(tn_optim_step(b));
        assert_ok(tn_module_zero_grad(m));
    }
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->told.n_steps, 3);
    for (size_t k = 0; k < 3; k++) {
        const tni_told_step *s = step_of(tr, k);
        ck_assert_int_eq(s->n_updates, 4); /* of both */
        for (size_t i = 0; i < 4; i++) {
            ck_assert(s->updates[i].after.known);
            ck_assert_int_eq(s->ledger[i].moved, TNI_MOVED_OPTIMIZER);
            ck_assert(s->ledger[i].grad.known);
            ck_assert(!tni_numbers_differ(&s->ledger[i].step, &s->updates[i].after));
            if (k)
                ck_assert(
                    !tni_numbers_differ(&s->ledger[i].start, &step_of(tr, k - 1)->ledger[i].step));
        }
    }
    ck_assert_int_eq(tr->told.tensors[0].held, TNI_HELD);
    ck_assert_int_eq(tr->told.tensors[2].held, TNI_NOT_HELD);
    tn_trace_free(tr);
    tn_optim_free(a), tn_optim_free(b), tn_module_drop(m);
}
END_TEST

START_TEST(parameters_moved_by_hand)
{
    tn_manual_seed(1);
    tn_module *m = tn_linear_new(2, 1, (tn_linear_options){ 0 });
    tn_tensor *w = tn_get_parameter(m, "weight"), *x = tn_ones(TN_SHAPE(3, 2));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_backward(sum(tn_forward(m, x))));
        TN_NO_GRAD assert_ok(tn_sub_(w, tn_mul_scalar(tn_grad(w), 0.1)));
        assert_ok(tn_module_zero_grad(m));
    }
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->told.n_steps, 2);
    const tni_told_step *s = step_of(tr, 1);
    ck_assert_int_eq(s->ledger[0].moved, TNI_MOVED_HAND);
    ck_assert_int_eq(s->ledger[1].moved, TNI_MOVED_NOT);
    ck_assert(s->ledger[0].grad.known); /* cleared before the step was closed */
    ck_assert(!s->stepped);
    tn_trace_free(tr);
    tn_module_drop(m);
}
END_TEST

START_TEST(autocast_is_told)
{
    tn_manual_seed(1);
    tn_module *m = tn_linear_new(4, 3, (tn_linear_options){ 0 });
    tn_tensor *x = tn_randn(TN_SHAPE(2, 4)), *loss;
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    TN_AUTOCAST(TN_BF16) loss = sum(tn_forward(m, x));
    assert_ok(tn_backward(loss));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    const tni_told_node *linear = NULL;
    for (size_t k = 0; k < s->n_nodes; k++)
        if (strcmp(op_name(tr, &s->nodes[k]), "linear") == 0) linear = &s->nodes[k];
    ck_assert(linear && linear->out[0].dtype == TN_BF16);
    ck_assert(s->ledger[0].grad.known);
    tn_trace_free(tr);
    tn_module_drop(m);
}
END_TEST

/* A tensor in the memory of a buffer that was replaced is not taken for that buffer. */
START_TEST(memory_is_used_again)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ .no_bias = true });
    tn_scope outer = tn_scope_begin();
    assert_ok(tn_register_buffer(m, "h", NULL, tn_zeros(TN_SHAPE(1, 2)), TN_PERSISTENT));
    tn_scope_end(outer);
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    for (int k = 0; k < 3; k++) {
        tn_scope s = tn_scope_begin();
        assert_ok(tn_module_set(m, "h", tn_full(TN_SHAPE(1, 2), k + 1))); /* the old one is freed */
        tn_tensor *x = tn_full(TN_SHAPE(1, 2), 7);
        assert_ok(tn_set_name(x, "x"));
        tn_tensor *y = tn_add(tn_forward(m, x), tn_get_buffer(m, "h"));
        assert_ok(tn_backward(sum(y)));
        tn_scope_end(s);
    }
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    for (size_t k = 0; k < s->n_nodes; k++) {
        const char *op = op_name(tr, &s->nodes[k]);
        const tni_told_in *in = &s->nodes[k].in[strcmp(op, "add") == 0];
        if (strcmp(op, "sum") == 0) continue;
        ck_assert_str_eq(tr->told.tensors[in->tensor].name, strcmp(op, "add") == 0 ? "h" : "x");
        ck_assert_int_eq(tr->told.tensors[in->tensor].registered, strcmp(op, "add") == 0);
    }
    tn_trace_free(tr);
    tn_module_drop(m);
}
END_TEST

/* A leaf in a parameter's memory has a gradient of its own; and what reads that memory in another
 * order is not the parameter. */
START_TEST(aliases_are_not_the_parameter)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ .no_bias = true });
    tn_tensor *w = tn_get_parameter(m, "weight"), *alias = tn_detach(w);
    if (_i) alias = tn_transpose(alias, 0, 1);
    if (!_i) assert_ok(tn_set_requires_grad(alias, true));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    assert_ok(tn_backward(sum(tn_mul(tn_mul_scalar(w, 3), alias))));
    assert_ok(tn_trace_end(tr));
    const tni_told_step *s = step_of(tr, 0);
    const tni_told_in *in[] = { &s->nodes[0].in[0], &s->nodes[1].in[1] };
    ck_assert_str_eq(tr->told.tensors[in[0]->tensor].name, "weight");
    ck_assert_str_eq(tr->told.tensors[in[1]->tensor].name, "weight (a view)");
    ck_assert(tr->told.tensors[in[0]->tensor].registered);
    ck_assert(in[1]->value.known);
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; i < s->backs[k].n_shares; i++)
            ck_assert_int_le(s->backs[k].shares[i].of, 1);
    tn_trace_free(tr);
    tn_module_drop(m);
}
END_TEST

/* Data that is freed and made again at the same address is not taken for the old one. */
START_TEST(tensors_are_not_confused)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 1, "w");
    tn_trace *tr = begin(plain);
    for (int k = 0; k < 4; k++) {
        char name[16];
        tn_scope s = tn_scope_begin();
        tn_tensor *x = tn_full_as(TN_SHAPE(2), k, TN_F64, tn_cpu());
        snprintf(name, sizeof name, "x%d", k);
        assert_ok(tn_set_name(x, name));
        assert_ok(tn_backward(sum(tn_mul(w, x))));
        tn_scope_end(s);
    }
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->told.n_tensors, 5);
    for (size_t k = 0; k < 4; k++) {
        const tni_told_in *in = &step_of(tr, 0)->nodes[2 * k].in[1];
        ck_assert_int_eq(in->tensor, (int)k + 1);
        ck_assert(in->value.value[0] == (double)k);
    }
    tn_trace_free(tr);
}
END_TEST

/* ---- findings -------------------------------------------------------------------------------- */

static const char *first_finding(const tn_trace *tr, const char *kind)
{
    const tni_told_step *s = step_of(tr, 0);
    for (size_t i = 0; i < s->n_findings; i++)
        if (strcmp(s->findings[i].kind, kind) == 0) return s->findings[i].text;
    return "none";
}

static tn_trace *trace_of(tn_tensor *(*f)(tn_tensor *x), tn_tensor *x)
{
    tn_trace *tr = begin(plain);
    assert_ok(tn_backward(f(x)));
    assert_ok(tn_trace_end(tr));
    return tr;
}

static tn_tensor *dead(tn_tensor *x)
{
    return sum(tn_relu(tn_mul_scalar(x, -1)));
}

static tn_tensor *logarithm(tn_tensor *x)
{
    return sum(tn_log(tn_sub(x, x)));
}

static tn_tensor *many_sigmoids(tn_tensor *x)
{
    tn_tensor *y = x;
    for (int k = 0; k < 12; k++) y = tn_sigmoid(y);
    tn_tensor *other = leaf(TN_SHAPE(2), 1, "other");
    return sum(tn_add(y, other));
}

static tn_tensor *steep(tn_tensor *x)
{
    return sum(tn_exp(tn_mul_scalar(x, 10)));
}

/* A penalty's share is tiny, or the two shares are large and cancel; the gradient is neither. */
static tn_tensor *with_penalty(tn_tensor *x)
{
    return tn_add(sum(tn_square(x)), tn_mul_scalar(sum(tn_square(x)), 1e-7));
}

static tn_tensor *cancelling(tn_tensor *x)
{
    return tn_sub(tn_mul_scalar(sum(x), 5001), tn_mul_scalar(sum(x), 5000));
}

/* Neither share is more than 1000 times the leaf, but their sum is. */
static tn_tensor *together(tn_tensor *x)
{
    return tn_add(tn_mul_scalar(sum(x), 700), tn_mul_scalar(sum(x), 800));
}

static tn_tensor *harmless(tn_tensor *x)
{
    return sum(tn_tanh(x));
}

enum { BLAMED = 8 };

START_TEST(the_op_to_blame_is_named)
{
    static const struct {
        tn_tensor *(*f)(tn_tensor *x);
        const char *kind, *text;
    } rows[] = {
        { dead, "zero", "relu lets no gradient through: all 2 inputs are negative or 0" },
        { logarithm, "inf", "log made inf of finite numbers; x is 0 everywhere" },
        { many_sigmoids, "vanishing",
          "x: its gradient is less than 1e-5 of the largest; sigmoid shrinks it most" },
        { steep, "exploding", "x: its gradient is more than 1000 times its own size; exp" },
        { together, "exploding",
          "x: its gradient is more than 1000 times its own size; mul_scalar enlarges it most" },
        { with_penalty, "vanishing", "none" },
        { cancelling, "exploding", "none" },
        { harmless, "zero", "none" },
    };
    ck_assert_int_eq(sizeof rows / sizeof *rows, BLAMED);
    tn_trace *tr = trace_of(rows[_i].f, leaf(TN_SHAPE(2), 1, "x"));
    assert_says(first_finding(tr, rows[_i].kind), rows[_i].text);
    if (rows[_i].f == harmless) ck_assert_int_eq(step_of(tr, 0)->n_findings, 0);
    tn_trace_free(tr);
}
END_TEST

START_TEST(who_overwrote_is_named)
{
    tn_tensor *x = leaf(TN_SHAPE(2), 1, "x"), *c = tn_full_as(TN_SHAPE(2), 2, TN_F64, tn_cpu());
    assert_ok(tn_set_name(c, "c"));
    tn_trace *tr = begin(plain);
    tn_tensor *loss = sum(tn_mul(x, c));
    assert_ok(tn_add_scalar_(c, 1));
    assert_fails(tn_backward(loss), TN_E_STATE, "changed in place");
    assert_ok(tn_trace_end(tr));
    assert_says(first_finding(tr, "overwritten"),
                "mul kept b (c) for backward, and tn_add_scalar_ changed it in place afterwards");
    assert_says(told(tr), "  fails: tn_backward: input 1 of tn_mul");
    tn_trace_free(tr);
}
END_TEST

/* ---- differences ----------------------------------------------------------------------------- */

static tn_trace *step_in_mode(bool eval, bool frozen)
{
    tn_manual_seed(4);
    tn_module *m =
        tn_sequential(tn_linear_new(3, 2, (tn_linear_options){ 0 }),
                      tn_batchnorm1d_new(2, (tn_batchnorm_options){ 0 }), tn_dropout_new(0.5));
    assert_made(m);
    if (eval) assert_ok(tn_eval(m));
    if (frozen) assert_ok(tn_set_requires_grad(tn_get_parameter(m, "0.weight"), false));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    assert_ok(tn_backward(sum(tn_square(tn_forward(m, tn_ones(TN_SHAPE(4, 3)))))));
    assert_ok(tn_trace_end(tr));
    tn_module_drop(m);
    return tr;
}

static const char *difference_of(const tn_trace *a, const tn_trace *b)
{
    FILE *file = tmpfile();
    assert_ok(tn_explain_diff(file, a, b));
    return text_of(file);
}

START_TEST(differences_are_told)
{
    tn_trace *train = step_in_mode(false, false), *again = step_in_mode(false, false);
    tn_trace *eval = step_in_mode(true, false), *frozen = step_in_mode(false, true);
    ck_assert_str_eq(difference_of(train, again), "no difference\n");
    const char *text = difference_of(train, eval);
    assert_says(text, "step 1\n  a trains, b evaluates\n");
    assert_says(text, "  dropout (2: Dropout): only in a\n");
    assert_says(text, "  1.running_mean: moved: by forward in a, no in b\n");
    text = difference_of(train, frozen);
    assert_says(text, "  0.weight: a gradient in a, none: it is frozen in b\n");
    ck_assert(!strstr(text, "only in") && !strstr(text, "running") && !strstr(text, "trains"));
    tn_trace_free(train), tn_trace_free(again), tn_trace_free(eval), tn_trace_free(frozen);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static tn_tensor *not_used(tn_module *m, void *user)
{
    (void)m, (void)user;
    return NULL;
}

START_TEST(what_cannot_be_explained)
{
    FILE *file = tmpfile();
    tn_tensor *x = leaf(TN_SHAPE(2), 1, "x"), *y = tn_exp(x);
    tn_explain_options o = { 0 };
    assert_fails(tn_explain(NULL, y, o), TN_E_INVALID, "tn_explain: the file is NULL");
    assert_fails(tn_explain(file, NULL, o), TN_E_INVALID, "tn_explain: loss is NULL");
    assert_fails(tn_explain(file, y, o), TN_E_SHAPE, "2 elements");
    assert_fails(tn_explain(file, sum(tn_ones(TN_SHAPE(2))), o), TN_E_STATE, "no history");
    tn_tensor *loss = sum(y);
    assert_ok(tn_explain(file, loss, o));
    assert_fails(tn_explain(file, loss, o), TN_E_STATE, "earlier backward");
    o.again = not_used;
    assert_fails(tn_explain(file, sum(tn_exp(x)), o), TN_E_INVALID, "the loss of again");
    fclose(file);
    FILE *full = fopen("/dev/full", "w");
    setvbuf(full, NULL, _IONBF, 0);
    o.again = NULL;
    assert_fails(tn_explain(full, sum(tn_exp(x)), o), TN_E_IO, "cannot be written");
    fclose(full);
}
END_TEST

START_TEST(what_cannot_be_traced)
{
    FILE *file = tmpfile();
    tn_module odd = { 0 };
    tn_tensor *x = leaf(TN_SHAPE(2), 1, "x");
    assert_null(tn_trace_begin((tn_trace_options){ .model = &odd }), TN_E_STATE, "tn_trace_begin");
    tn_set_anomaly(TN_ANOMALY_ALL);
    assert_null(tn_trace_begin(plain), TN_E_STATE, "tn_trace_begin: anomaly mode is on");
    assert_fails(tn_explain(file, sum(tn_exp(x)), (tn_explain_options){ 0 }), TN_E_STATE,
                 "tn_explain: anomaly mode is on");
    tn_set_anomaly(TN_ANOMALY_OFF);
    tn_trace *tr = begin(plain);
    assert_null(tn_trace_begin(plain), TN_E_STATE, "watched already");
    assert_fails(tn_explain(file, sum(tn_exp(x)), (tn_explain_options){ 0 }), TN_E_STATE,
                 "watched already");
    tn_set_anomaly(TN_ANOMALY_ALL); /* has no effect here, and takes nothing away */
    assert_fails(tn_trace_json(file, tr), TN_E_STATE, "the trace has not ended");
    assert_fails(tn_trace_text(file, tr), TN_E_STATE, "the trace has not ended");
    assert_ok(tn_backward(sum(tn_exp(x))));
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->told.n_steps, 1);
    assert_fails(tn_trace_end(tr), TN_E_STATE, "ended already");
    assert_fails(tn_trace_end(NULL), TN_E_INVALID, "trace is NULL");
    assert_fails(tn_trace_json(NULL, tr), TN_E_INVALID, "the file is NULL");
    assert_fails(tn_explain_diff(file, tr, NULL), TN_E_INVALID, "tn_explain_diff");
    tn_trace_free(tr);
    tn_trace_free(NULL);
    tn_trace_free(begin(plain)); /* ends it */
    ck_assert(!tn_places() && !tn_lines());
    fclose(file);
}
END_TEST

/* ---- scarcity -------------------------------------------------------------------------------- */

/* One step of a linear layer; what it can do without memory it does. */
static void scarce_step(tn_module *m, tn_optim *opt, FILE *file, bool explain)
{
    tn_scope s = tn_scope_begin();
    tn_trace *tr = explain ? NULL : tn_trace_begin((tn_trace_options){ .model = m, .opt = opt });
    tn_tensor *loss = sum(tn_forward(m, tn_ones(TN_SHAPE(3, 2))));
    tn_status status = !loss     ? tn_error_status()
                       : explain ? tn_explain(file, loss, (tn_explain_options){ .model = m })
                                 : tn_backward(loss);
    if (status == TN_OK) status = tn_optim_step(opt);
    if (tr) status = tn_trace_end(tr);
    if (tr && (status == TN_OK || status == TN_E_NOMEM)) { /* cut short, it can be written */
        tn_status text = tn_trace_text(file, tr), json = tn_trace_json(file, tr);
        ck_assert(text == TN_OK || text == TN_E_NOMEM);
        if (status == TN_OK) status = json;
        if (status == TN_OK) status = tn_explain_diff(file, tr, tr);
    }
    ck_assert_msg(status == TN_OK || status == TN_E_NOMEM, "%s: %s", tn_status_name(status),
                  tn_error());
    tn_error_clear();
    tn_trace_free(tr);
    tn_scope_end(s);
}

START_TEST(memory_runs_out)
{
    scarce_install();
    FILE *file = tmpfile();
    int64_t k = 1;
    for (bool done = false; !done; k++) {
        tn_scope s = tn_scope_begin();
        tn_module *m = tn_linear_new(2, 1, (tn_linear_options){ 0 });
        tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 });
        tn_memory_trim();
        scarce.requests = 0;
        scarce.failing = k;
        scarce.sticky = _i & 1;
        scarce_step(m, opt, file, _i & 2);
        done = scarce.requests < scarce.failing;
        scarce.failing = 0;
        scarce.sticky = false;
        scarce_step(m, opt, file, _i & 2); /* and all is as before */
        tn_optim_free(opt);
        tn_module_drop(m);
        tn_scope_end(s);
        ck_assert_msg(tn_live_tensors() == 0, "request %d: %d tensors are left", (int)k,
                      (int)tn_live_tensors());
    }
    ck_assert_int_gt(k, 40);
    fclose(file);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("trace");
    TCase *t = test_case(suite, "golden");
    tcase_add_loop_test(t, backward_is_explained, 0, TRACE_CASES);
    tcase_add_loop_test(t, a_step_is_told, 0, TRACE_OVERWRITTEN);
    t = test_case(suite, "nothing changes");
    tcase_add_loop_test(t, watching_changes_no_bit, 0, 3);
    tcase_add_test(t, explaining_changes_no_bit);
    t = test_case(suite, "steps");
    tcase_add_test(t, two_backwards_accumulate);
    tcase_add_test(t, a_backward_within_a_hook);
    tcase_add_loop_test(t, a_trace_begun_within_a_backward, 0, 2);
    tcase_add_loop_test(t, the_loss_is_of_the_outermost_backward, 0, 3);
    tcase_add_loop_test(t, hooks_are_in_the_gradient, 0, 3);
    tcase_add_test(t, tn_gradients_changes_no_grad);
    tcase_add_test(t, an_output_that_leads_nowhere);
    tcase_add_test(t, steps_end_with_the_optimizer);
    tcase_add_test(t, parameters_moved_by_hand);
    tcase_add_test(t, autocast_is_told);
    tcase_add_test(t, tensors_are_not_confused);
    tcase_add_test(t, memory_is_used_again);
    tcase_add_loop_test(t, aliases_are_not_the_parameter, 0, 2);
    t = test_case(suite, "findings");
    tcase_add_loop_test(t, the_op_to_blame_is_named, 0, BLAMED);
    tcase_add_test(t, who_overwrote_is_named);
    t = test_case(suite, "differences");
    tcase_add_test(t, differences_are_told);
    t = test_case(suite, "refusals");
    tcase_add_test(t, what_cannot_be_explained);
    tcase_add_test(t, what_cannot_be_traced);
    t = test_case(suite, "scarcity");
    tcase_add_loop_test(t, memory_runs_out, 0, 4);
    return suite;
}
