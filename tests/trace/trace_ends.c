/*
 * trace_ends.c - what traces find and compare, what they refuse, and what is left of them when
 * memory runs out.
 */

#include "io/json.h"
#include "scarce.h"
#include "trace/trace_read.h"

static const tn_trace_options plain;

/* ---- findings -------------------------------------------------------------------------------- */

static const char *first_finding(const tn_trace *tr, const char *kind)
{
    const tni_log_step *s = step_of(tr, 0);
    for (size_t i = 0; i < s->n_findings; i++)
        if (strcmp(s->findings[i]->kind, kind) == 0) return s->findings[i]->text;
    return "none";
}

#define LOSS(name, y)                                                                              \
    static tn_tensor *name(tn_tensor *x)                                                           \
    {                                                                                              \
        return y;                                                                                  \
    }

LOSS(dead, sum(tn_relu(tn_mul_scalar(x, -1))))
LOSS(logarithm, sum(tn_log(tn_sub(x, x))))

static tn_tensor *many_sigmoids(tn_tensor *x)
{
    tn_tensor *y = x;
    for (int k = 0; k < 12; k++) y = tn_sigmoid(y);
    tn_tensor *other = leaf(TN_SHAPE(2), 1, "other");
    return sum(tn_add(y, other));
}

LOSS(steep, sum(tn_exp(tn_mul_scalar(x, 10))))

/* A penalty's share is tiny, or the two shares are large and cancel; the gradient is neither. */
LOSS(with_penalty, tn_add(sum(tn_square(x)), tn_mul_scalar(sum(tn_square(x)), 1e-7)))
LOSS(cancelling, tn_sub(tn_mul_scalar(sum(x), 5001), tn_mul_scalar(sum(x), 5000)))

/* Neither share is more than 1000 times the leaf, but their sum is. */
LOSS(together, tn_add(tn_mul_scalar(sum(x), 700), tn_mul_scalar(sum(x), 800)))
LOSS(harmless, sum(tn_tanh(x)))

/* The path along the large share is followed, not along the last one, that of the oldest op. */
static tn_tensor *one_large_share(tn_tensor *x)
{
    tn_tensor *oldest = tn_neg(x);
    return sum(tn_add(oldest, tn_mul_scalar(x, 1e6)));
}

enum { BLAMED = 9 };

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
        { one_large_share, "exploding",
          "x: its gradient is more than 1000 times its own size; mul_scalar enlarges it most" },
        { with_penalty, "vanishing", "none" },
        { cancelling, "exploding", "none" },
        { harmless, "zero", "none" },
    };
    ck_assert_int_eq(sizeof rows / sizeof *rows, BLAMED);
    tn_trace *tr = trace_of(rows[_i].f, leaf(TN_SHAPE(2), 1, "x"));
    assert_says(first_finding(tr, rows[_i].kind), rows[_i].text);
    if (rows[_i].f == harmless) ck_assert_int_eq(step_of(tr, 0)->n_findings, 0);
}
END_TEST

/* A bias in front of a batch norm in training: 0 in theory, so no alarm but the reason. In eval
 * mode, or where something else reads the sum too, its gradient is an ordinary one. */
START_TEST(a_bias_before_a_batch_norm_has_no_effect)
{
    const bool training = _i != 1, twice = _i == 2;
    tn_manual_seed(3);
    tn_tensor *w = leaf(TN_SHAPE(3, 2), 1, "w"), *b = leaf(TN_SHAPE(3), 0.5, "b"), *of[2];
    tn_tensor *x = tn_to_dtype(tn_randn(TN_SHAPE(5, 2)), TN_F64);
    for (int i = 0; i < 2; i++) assert_made(of[i] = tn_full_as(TN_SHAPE(3), i, TN_F64, tn_cpu()));
    tn_trace *tr = begin(plain);
    tn_tensor *h = tn_linear(x, w, b);
    tn_tensor *y = tn_batch_norm(h, TN_NONE, TN_NONE, of[0], of[1], training, 0.1, 1e-5);
    tn_tensor *weights = tn_to_dtype(tn_randn(TN_SHAPE(5, 3)), TN_F64);
    tn_tensor *loss = sum(tn_mul(y, weights));
    assert_ok(tn_backward(twice ? tn_add(loss, sum(h)) : loss));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(s->n_findings, training && !twice ? 1 : 0);
    if (s->n_findings)
        assert_says(first_finding(tr, "no effect"),
                    "b: its gradient is 0, but for rounding: "
                    "batch_norm subtracts the mean of each channel");
}
END_TEST

/* Clipping is told with its factor, limit / norm of all gradients, at most 1; not a norm alone. */
START_TEST(clipping_is_told)
{
    const double limit = (double[]){ 2, 20, INFINITY }[_i];
    tn_tensor *x = leaf(TN_SHAPE(2), 3, "x"), *y = leaf(TN_SHAPE(1), 1, "y");
    tn_list *both = tn_list_new();
    assert_ok(tn_list_add(both, "x", x));
    assert_ok(tn_list_add(both, "y", y));
    tn_trace *tr = begin(plain);
    assert_ok(tn_backward(tn_add(sum(tn_square(x)), sum(y)))); /* gradients 6, 6 and 1 */
    const double norm = tn_clip_grad_norm(both, limit, 2, false);
    const tni_log_clip clip = ended(tr)->clip;
    ck_assert_double_eq_tol(norm, sqrt(73), 1e-9);
    ck_assert(clip.known == (_i < 2));
    if (!clip.known) return;
    ck_assert(clip.limit == limit);
    ck_assert_double_eq_tol(clip.norm, sqrt(73), 1e-9);
    ck_assert_double_eq_tol(clip.factor, _i ? 1 : 2 / (sqrt(73) + 1e-6), 1e-9);
    assert_says(told(tr), _i ? "all gradients times 1: "
                             : "all gradients times 0.2341: their norm "
                               "8.544, the limit 2");
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
}
END_TEST

/* ---- differences ----------------------------------------------------------------------------- */

static tn_trace *step_in_mode(bool eval, bool frozen)
{
    tn_manual_seed(4);
    tn_module *m =
        tn_sequential(tn_linear_new(3, 2, (tn_linear_options){ 0 }),
                      tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }), tn_dropout_new(0.5));
    assert_made(m);
    if (eval) assert_ok(tn_eval(m));
    if (frozen) assert_ok(tn_set_requires_grad(tn_get_parameter(m, "0.weight"), false));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    assert_ok(tn_backward(sum(tn_square(tn_forward(m, tn_ones(TN_SHAPE(4, 3)))))));
    assert_ok(tn_trace_end(tr));
    tn_module_drop(m);
    return tr;
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
}
END_TEST

LOSS(square_of_sum, tn_square(sum(x)))
LOSS(exp_neg_neg, sum(tn_neg(tn_neg(tn_exp(x)))))
LOSS(neg_exp_neg, sum(tn_neg(tn_exp(tn_neg(x)))))

START_TEST(a_sign_is_a_difference)
{
    tn_trace *a = trace_of(square_of_sum, leaf(TN_SHAPE(3), 1, "x"));
    tn_trace *b = trace_of(square_of_sum, leaf(TN_SHAPE(3), -1, "x"));
    assert_says(difference_of(a, b), "sum: y 3 in a, -3 in b");
}
END_TEST

/* The first negation of one step is compared with the first of the other, wherever they stand. */
START_TEST(the_first_is_compared_with_the_first)
{
    tn_trace *a = trace_of(exp_neg_neg, leaf(TN_SHAPE(1), 1, "x"));
    tn_trace *b = trace_of(neg_exp_neg, leaf(TN_SHAPE(1), 1, "x"));
    assert_says(difference_of(a, b), "  exp: y 2.718 in a, 0.3679 in b\n"
                                     "  neg: y -2.718 in a, -1 in b\n"
                                     "  neg: y 2.718 in a, -0.3679 in b\n");
}
END_TEST

/* Two buffers whose names begin alike, for longer than most texts. */
static tn_trace *with_buffers(const char *names[2])
{
    tn_manual_seed(4);
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ .no_bias = true }));
    for (int i = 0; i < 2; i++)
        if (names[i])
            assert_ok(tn_register_buffer(m, names[i], NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    assert_ok(tn_backward(sum(tn_forward(m, tn_ones(TN_SHAPE(1, 2))))));
    assert_ok(tn_trace_end(tr));
    return tr;
}

START_TEST(long_names_are_told_apart)
{
    char first[602] = "", second[602] = "", line[640];
    memset(first, 'n', 600);
    memset(second, 'n', 600);
    first[600] = 'a';
    second[600] = 'b';
    tn_trace *both = with_buffers((const char *[]){ first, second });
    tn_trace *one = with_buffers((const char *[]){ second, NULL });
    snprintf(line, sizeof line, "step 1\n  %s: only in a\n", first);
    ck_assert_str_eq(difference_of(both, one), line);
}
END_TEST

START_TEST(names_become_utf8)
{
    char cut[401] = "";
    for (int i = 0; i < 200; i++) memcpy(cut + 2 * i, "\xc3\xa9", 2);
    const char *const names[] = { "caf\xe9", "\xff\xfe", "\xe2\x82", cut };
    for (int i = 0; i < 4; i++) {
        tn_trace *tr = trace_of(square_of_sum, leaf(TN_SHAPE(3), 1, names[i]));
        const char *text = json(tr);
        ck_assert_uint_eq(tni_utf8(text, strlen(text)), strlen(text));
        if (i == 0) assert_says(text, "\"caf?\"");
    }
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
    ck_assert_int_eq(tr->log.n_steps, 1);
    assert_fails(tn_trace_end(tr), TN_E_STATE, "ended already");
    assert_fails(tn_trace_end(NULL), TN_E_INVALID, "trace is NULL");
    assert_fails(tn_trace_json(NULL, tr), TN_E_INVALID, "the file is NULL");
    assert_fails(tn_trace_diff(file, tr, NULL), TN_E_INVALID, "tn_trace_diff");
    tn_trace_free(NULL);
    tn_trace_free(tn_trace_begin(plain)); /* ends it */
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
        tn_status page = tn_trace_html(file, &tr, 1);
        ck_assert(page == TN_OK || page == TN_E_NOMEM);
        if (status == TN_OK) status = page;
        if (status == TN_OK) status = json;
        if (status == TN_OK) status = tn_trace_diff(file, tr, tr);
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
        scarce_fail(k);
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
    ck_assert_int_gt(k, 30); /* of our allocator; zlib's and stdio's are not counted */
    fclose(file);
}
END_TEST

void trace_ends_cases(Suite *suite)
{
    TCase *t = test_case(suite, "findings");
    tcase_add_loop_test(t, the_op_to_blame_is_named, 0, BLAMED);
    tcase_add_loop_test(t, a_bias_before_a_batch_norm_has_no_effect, 0, 3);
    tcase_add_loop_test(t, clipping_is_told, 0, 3);
    tcase_add_test(t, who_overwrote_is_named);
    t = test_case(suite, "differences");
    tcase_add_test(t, differences_are_told);
    tcase_add_test(t, a_sign_is_a_difference);
    tcase_add_test(t, the_first_is_compared_with_the_first);
    tcase_add_test(t, long_names_are_told_apart);
    tcase_add_test(t, names_become_utf8);
    t = test_case(suite, "refusals");
    tcase_add_test(t, what_cannot_be_explained);
    tcase_add_test(t, what_cannot_be_traced);
    t = test_case(suite, "scarcity");
    tcase_add_loop_test(t, memory_runs_out, 0, 4);
}
