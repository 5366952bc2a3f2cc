/*
 * test_trace.c - training steps, told: tn_trace_*, tn_explain. What is told is right, and telling
 * it changes nothing. More is in trace_steps.c, trace_ways.c and trace_ends.c.
 *
 * Truth: PyTorch's gradients of the same models (golden/make_explain.py), leaf by leaf and at the
 * result of every child; runs without a trace, bit by bit. The golden texts were read;
 * TN_TEST_WRITE=1 writes them anew.
 */
#include <ctype.h>
#include <stdlib.h>

#include "models.h"
#include "trace_cases.h"
#include "trace_read.h"

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

/* Numbers but for their hashes, which each rounding changes; all numbers have one. */
static char *without_hashes(const char *from)
{
    static const char before[] = ",\"hash\":\"";
    int hashes = 0, numbers = 0;
    ck_assert_uint_lt(strlen(from), 1 << 18);
    static char text[1 << 18];
    char *to = text;
    for (const char *at = from; *at; *to++ = *at++) {
        numbers += strncmp(at, "\"norm\":", 7) == 0;
        if (strncmp(at, before, sizeof before - 1) != 0) continue;
        at += sizeof before - 1;
        ck_assert(strspn(at, "0123456789abcdef") == 16 && at[16] == '"');
        at += 17;
        hashes++;
    }
    *to = '\0';
    ck_assert(hashes > 0 && hashes == numbers);
    return text;
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
    return c->model ? owned(c->model()) : NULL;
}

static tn_optim *sgd_of(tn_module *m)
{
    return m ? owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 })) : NULL;
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
    tn_optim *opt = sgd_of(m);
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

/* The call of the child of the model in which an op ran; NULL: it ran outside of the model. */
static const tni_log_call *child_of(const tni_log_node *n)
{
    const tni_log_call *call = n->call;
    while (call && call->outer && call->outer->outer) call = call->outer;
    return call;
}

/* What arrives at the result of each child is PyTorch's. Returns how many were compared. */
static int compare_arrivals(const trace_case *c, const tn_trace *tr)
{
    const tni_log_step *s = step_of(tr, 0);
    int compared = 0;
    for (size_t k = 0; k < s->n_backs; k++) {
        const tni_log_call *call = child_of(s->backs[k]->node);
        if (!call) continue;
        const char *path = call->module->path;
        tn_tensor *want = golden("%s/arrives/%s", c->name, path);
        bool last = true; /* of its ops: its result is the child's */
        for (size_t j = 0; j < k; j++) last = last && child_of(s->backs[j]->node) != call;
        if (!want || !last || call->time > 1) continue;
        assert_numbers(path, &s->backs[k]->incoming[0].value, want);
        compared++;
    }
    return compared;
}

START_TEST(a_step_is_told)
{
    const trace_case *c = &trace_cases[_i];
    char file[64];
    tn_module *m = case_begin(c);
    tn_optim *opt = sgd_of(m);
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = opt, .title = c->name });
    tn_scope scope = tn_scope_begin();
    assert_ok(tn_backward(c->loss(m, NULL)));
    if (opt) assert_ok(tn_optim_step(opt));
    tn_scope_end(scope);
    assert_ok(tn_trace_end(tr));
    assert_gradients(c, m);
    const tni_log_step *s = step_of(tr, 0);
    ck_assert_double_eq_tol(s->loss, tn_item(golden("%s/loss%s", c->name, "")), 1e-12);
    for (size_t i = 0; i < s->n_ledger; i++) {
        const char *name = s->ledger[i]->tensor->name;
        tn_tensor *want = golden("%s/grad/%s", c->name, name);
        ck_assert_int_eq(s->ledger[i]->grad.known, want != NULL);
        if (want) assert_numbers(name, &s->ledger[i]->grad, want);
    }
    static const int arrivals[] = { 3, 1, 5, 3 };
    if (_i < 4) ck_assert_int_eq(compare_arrivals(c, tr), arrivals[_i]);
    FILE *out = tmpfile();
    assert_ok(tn_trace_json(out, tr));
    snprintf(file, sizeof file, "explain_%s.json", c->name);
    assert_golden(file, without_hashes(text_of(out)), 1e-6);
}
END_TEST

/* ---- nothing changes ------------------------------------------------------------------------- */

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
        ck_assert_int_eq(tr->log.n_steps, 3);
        ck_assert_int_eq(tn_live_tensors(), r.live);
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

Suite *test_suite(void)
{
    Suite *suite = suite_create("trace");
    TCase *t = test_case(suite, "golden");
    tcase_add_loop_test(t, backward_is_explained, 0, TRACE_CASES);
    tcase_add_loop_test(t, a_step_is_told, 0, TRACE_OVERWRITTEN);
    t = test_case(suite, "nothing changes");
    tcase_add_loop_test(t, watching_changes_no_bit, 0, 3);
    tcase_add_test(t, explaining_changes_no_bit);
    trace_steps_cases(suite);
    trace_ways_cases(suite);
    trace_ends_cases(suite);
    return suite;
}
