/* test_profile.c - tn_profile: counts, times that add up, modules, memory, refusals. */
#include <unistd.h>

#include "trace/trace_read.h"

/* What a profile of step prints, and its events. */
static const char *texts_of(tn_profile_step step, void *user, int steps, const char **events)
{
    FILE *file = tmpfile(), *laps = events ? tmpfile() : NULL;
    assert_ok(tn_profile(step, user,
                         (tn_profile_options){ .steps = steps, .file = file, .events = laps }));
    if (events) *events = text_of(laps);
    return text_of(file);
}

/* The numbers of the line that begins with name and then blanks, in v. */
static int row(const char *text, const char *name, double v[5])
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += line != text;
        if (strncmp(line, name, n) != 0 || strncmp(line + n, "  ", 2) != 0) continue;
        return sscanf(line + n, "%lf %lf %lf %lf %lf", &v[0], &v[1], &v[2], &v[3], &v[4]);
    }
    ck_abort_msg("no line %s in\n%s", name, text);
}

static int times(const char *text, const char *what)
{
    int n = 0;
    while ((text = strstr(text, what))) n++, text++;
    return n;
}

/* The laps are all of the time on the clock. */
static void assert_together(const char *text)
{
    double v[5];
    ck_assert_int_ge(row(text, "together, of the time on the clock", v), 2);
    ck_assert_double_ge(v[1], 95);
    ck_assert_double_le(v[1], 105);
}

/* ---- a net ----------------------------------------------------------------------------------- */

enum { ROWS = 128, IN = 256, HIDDEN = 512, OUT = 256 };

typedef struct net {
    tn_module *model;
    tn_optim *opt;
    tn_tensor *x;
} net;

static net net_new(void)
{
    tn_manual_seed(3);
    net n = { .model =
                  tn_sequential(tn_linear_new(IN, HIDDEN, (tn_linear_options){ 0 }), tn_tanh_new(),
                                tn_linear_new(HIDDEN, OUT, (tn_linear_options){ 0 })) };
    n.opt = tn_sgd(tn_parameters(n.model), (tn_sgd_options){ .lr = 0.1 });
    n.x = tn_rand(TN_SHAPE(ROWS, IN));
    return n;
}

static void net_free(net n)
{
    tn_optim_free(n.opt);
    tn_module_drop(n.model);
}

static tn_status train(void *user)
{
    net *n = user;
    tn_status status = tn_backward(tn_mean_all(tn_square(tn_forward(n->model, n->x))));
    if (status == TN_OK) status = tn_optim_step(n->opt);
    return status == TN_OK ? tn_optim_zero_grad(n->opt) : status;
}

START_TEST(calls_and_flops)
{
    net n = net_new();
    const char *events, *text = texts_of(train, &n, 4, &events);
    double v[5];
    const double first = 2.0 * ROWS * IN * HIDDEN, second = 2.0 * ROWS * HIDDEN * OUT;
    ck_assert_int_eq(row(text, "linear", v), 5);
    ck_assert_double_eq(v[0], 2);
    /* 2 digits of milliseconds and of GFLOP/s */
    ck_assert_double_eq_tol(v[3] * v[1] * 1e6, first + second,
                            v[3] * 5e3 + v[1] * 1e6 * (v[3] < 100 ? 0.005 : 0.5));
    ck_assert_int_eq(row(text, "linear, backward", v), 5);
    ck_assert_double_eq(v[0], 2);
    /* x needs no gradient */
    ck_assert_double_eq_tol(v[3] * v[1] * 1e6, first + 2 * second,
                            v[3] * 5e3 + v[1] * 1e6 * (v[3] < 100 ? 0.005 : 0.5));
    row(text, "tanh, backward", v);
    ck_assert_double_eq(v[0], 1);
    row(text, "sgd", v);
    ck_assert_double_eq(v[0], 1);
    row(text, "*: Linear", v); /* ms, %, ms of backward */
    ck_assert(v[2] > 0 && v[2] < v[0]);
    assert_together(text);
    ck_assert_int_eq(times(events, "{\"name\":\"linear\","), 2);
    ck_assert_int_eq(times(events, "{\"name\":\"linear, backward\","), 2);
    ck_assert_int_eq(times(events, "\"args\":{\"module\":\"*: Linear\"}"), 4);
    ck_assert_ptr_nonnull(strstr(events, "\n]}\n"));
    net_free(n);
}
END_TEST

static tn_status counts(void *user)
{
    ++*(int *)user;
    return tn_relu(tn_tanh(tn_ones(TN_SHAPE(3)))) ? TN_OK : TN_E_STATE;
}

START_TEST(rows_are_cut)
{
    for (int rows = 0; rows <= 2; rows += 2) {
        int n = 0;
        FILE *file = tmpfile();
        assert_ok(tn_profile(counts, &n, (tn_profile_options){ .rows = rows, .file = file }));
        ck_assert_int_eq(n, 2 + 3);
        const char *text = text_of(file);
        /* relu, tanh, between, itself; the pass of backward takes no time, and its row is there */
        ck_assert_int_eq(strstr(text, "\n4 more ") != NULL, rows == 2);
        ck_assert_int_eq(strstr(text, "\nrelu ") && strstr(text, "\ntanh "), rows == 0);
        assert_together(text);
    }
}
END_TEST

/* A profiled step gives the bits of one that nobody watches. */
START_TEST(nothing_else_changes)
{
    net n = net_new(), same = net_new();
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_GRADIENTS), TN_ANOMALY_OFF);
    texts_of(train, &n, 3, NULL);
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_OFF), TN_ANOMALY_GRADIENTS);
    for (int i = 0; i < 5; i++) TN_SCOPE assert_ok(train(&same));
    tn_list *a = tn_parameters(n.model), *b = tn_parameters(same.model);
    for (int i = 0; i < a->n; i++)
        ck_assert_uint_eq(tn_hash(a->entry[i].tensor), tn_hash(b->entry[i].tensor));
    net_free(n);
    net_free(same);
}
END_TEST

/* ---- time that is nobody's ------------------------------------------------------------------- */

static tn_status sleeps(void *user)
{
    tn_tensor *x = user;
    for (int i = 0; i < 2 && x; i++) {
        x = tn_relu(x);
        usleep(20000);
    }
    return x ? TN_OK : tn_error_status();
}

START_TEST(the_program_s_own_work_is_apart)
{
    double v[5];
    const char *text = texts_of(sleeps, tn_ones(TN_SHAPE(10)), 1, NULL);
    ck_assert_int_ge(row(text, "between the ops", v), 2);
    ck_assert_double_ge(v[0], 39.99); /* it has no calls */
    row(text, "relu", v);
    ck_assert_double_eq(v[0], 2);
    assert_together(text);
}
END_TEST

static tn_status fails_in_between(void *user)
{
    tn_tensor *x = user;
    if (tn_add(x, tn_ones(TN_SHAPE(3)))) return TN_E_STATE; /* whose operands do not fit */
    tn_error_clear();
    usleep(20000);
    TN_NO_GRAD
    {
        if (tn_add_scalar_(x, 1) != TN_OK) return TN_E_STATE;
    }
    return tn_relu(x) ? TN_OK : TN_E_STATE;
}

START_TEST(an_op_that_failed_works_no_longer)
{
    double v[5];
    const char *text = texts_of(fails_in_between, tn_ones(TN_SHAPE(10)), 2, NULL);
    row(text, "add_scalar_, in place", v);
    ck_assert_double_eq(v[0], 1);
    row(text, "relu", v);
    ck_assert_double_eq(v[0], 1);
    assert_together(text);
}
END_TEST

static tn_status sleeps_after_backward(void *user)
{
    tn_tensor *loss = tn_sum_all(tn_square(user));
    TN_NO_GRAD
    {
        if (tn_add_scalar_(tn_ones(TN_SHAPE(2)), 1) != TN_OK) return TN_E_STATE;
    }
    tn_status status = tn_backward(loss);
    usleep(40000);
    return status;
}

static tn_status updates(void *user)
{
    return tn_optim_step(user);
}

/* Also where the rule is a function over tensors. */
START_TEST(an_update_is_the_optimizer_s)
{
    double own[5], between[5];
    tn_tensor *w = tn_rand(TN_SHAPE(256, 256));
    tn_set_requires_grad(w, true);
    assert_ok(tn_set_grad(w, tn_rand(TN_SHAPE(256, 256))));
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "w", w));
    tn_optim *opt = tn_muon(list, (tn_optim_options){ 0 });
    const char *text = texts_of(updates, opt, 2, NULL);
    row(text, "muon", own);
    row(text, "between the ops", between);
    ck_assert_double_eq(own[0], 1);
    ck_assert_double_gt(own[1], 4 * between[0]);
    tn_optim_free(opt);
}
END_TEST

static tn_tensor *sleeping_hook(tn_tensor *gradient, void *user)
{
    (void)user;
    usleep(20000);
    return gradient;
}

static tn_status with_hook(void *user)
{
    return tn_backward(tn_sum_all(tn_square(user)));
}

START_TEST(hooks_are_apart)
{
    double v[5];
    tn_tensor *x = tn_ones(TN_SHAPE(10));
    tn_set_requires_grad(x, true);
    ck_assert_int_ge(tn_register_hook(x, sleeping_hook, NULL), 0);
    const char *text = texts_of(with_hook, x, 1, NULL);
    row(text, "hooks of gradients", v);
    ck_assert_double_ge(v[0], 19.99);
    assert_together(text);
}
END_TEST

START_TEST(an_in_place_function_ends)
{
    double v[5];
    tn_tensor *x = tn_ones(TN_SHAPE(10));
    tn_set_requires_grad(x, true);
    const char *text = texts_of(sleeps_after_backward, x, 1, NULL);
    row(text, "between the ops", v);
    ck_assert_double_ge(v[0], 39.99);
    row(text, "add_scalar_, in place", v);
    ck_assert_double_eq(v[0], 1);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static tn_status three_remain(void *user)
{
    tn_tensor *x = user;
    TN_SCOPE tn_exp(x); /* gone before the peak */
    tn_tensor *a = tn_sqrt(x), *b = tn_sqrt(x), *c = tn_neg(a);
    return a && b && c ? TN_OK : tn_error_status();
}

START_TEST(who_holds_the_memory)
{
    tn_tensor *x = tn_ones(TN_SHAPE(512, 512)); /* 1 MiB */
    const char *text = texts_of(three_remain, x, 1, NULL);
    double peak, made;
    const char *line = strstr(text, "memory at the peak of a step: ");
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(sscanf(line, "memory at the peak of a step: %lf MiB, %lf", &peak, &made), 2);
    ck_assert_double_eq(made, 3);
    ck_assert_double_ge(peak, 4);
    ck_assert_ptr_nonnull(strstr(line, " 2.00 MiB by sqrt\n"));
    ck_assert_ptr_nonnull(strstr(line, " 1.00 MiB by neg\n"));
    ck_assert_ptr_null(strstr(line, "exp"));
}
END_TEST

/* What was there before may go in the step. */
static tn_status replaces(void *user)
{
    tn_tensor **kept = user;
    tn_drop(*kept);
    *kept = tn_keep(tn_exp(tn_ones(TN_SHAPE(512, 512))));
    return *kept ? TN_OK : tn_error_status();
}

START_TEST(the_peak_is_what_was_in_use)
{
    tn_tensor *kept = tn_keep(tn_ones(TN_SHAPE(512, 1024)));
    TN_SCOPE assert_ok(replaces(&kept));
    tn_memory_reset_peak();
    const char *text = texts_of(replaces, &kept, 1, NULL);
    double peak, real = (double)tn_memory().peak_in_use / (1 << 20);
    ck_assert_int_eq(sscanf(strstr(text, "memory at"), "memory at the peak of a step: %lf", &peak),
                     1);
    ck_assert_double_eq_tol(peak, real, 0.1);
    tn_drop(kept);
}
END_TEST

static tn_status profiles_itself(void *user)
{
    tn_status status = tn_profile(sleeps, user, (tn_profile_options){ .steps = 1 });
    for (int i = 1; i < 3; i++) TN_SCOPE tn_exp(tn_ones(TN_SHAPE(256 * i, 512))); /* i / 2 MiB */
    return status;
}

START_TEST(a_profile_in_a_profile)
{
    const char *text = texts_of(profiles_itself, tn_ones(TN_SHAPE(10)), 1, NULL);
    ck_assert_ptr_nonnull(strstr(text, " 1.00 MiB by exp\n"));
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static tn_status silent(void *user)
{
    (void)user;
    return TN_E_STATE;
}

static tn_status second_fails(void *user)
{
    int *n = user;
    if (++*n < 3) return TN_OK;
    tn_fail(TN_E_INVALID, "no batch %d", *n);
    return TN_E_INVALID;
}

START_TEST(profile_refused)
{
    int n = 0;
    FILE *file = tmpfile();
    assert_fails(tn_profile(NULL, NULL, (tn_profile_options){ 0 }), TN_E_INVALID,
                 "tn_profile: step is NULL");
    assert_fails(tn_profile(silent, NULL, (tn_profile_options){ .steps = -1 }), TN_E_INVALID,
                 "tn_profile: -1 steps, 0 rows");
    assert_fails(tn_profile(silent, NULL, (tn_profile_options){ .rows = -2 }), TN_E_INVALID,
                 "-2 rows");
    assert_fails(tn_profile(silent, NULL, (tn_profile_options){ 0 }), TN_E_STATE,
                 "tn_profile: its step gave a status without a message");
    assert_fails(tn_profile(second_fails, &n, (tn_profile_options){ .file = file }), TN_E_INVALID,
                 "no batch 3");
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq((int)ftell(file), 0); /* nothing is printed */
    fclose(file);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("profile");
    TCase *t = test_case(s, "profile");
    tcase_add_test(t, calls_and_flops);
    tcase_add_test(t, rows_are_cut);
    tcase_add_test(t, nothing_else_changes);
    tcase_add_test(t, the_program_s_own_work_is_apart);
    tcase_add_test(t, an_op_that_failed_works_no_longer);
    tcase_add_test(t, an_in_place_function_ends);
    tcase_add_test(t, an_update_is_the_optimizer_s);
    tcase_add_test(t, hooks_are_apart);
    tcase_add_test(t, who_holds_the_memory);
    tcase_add_test(t, the_peak_is_what_was_in_use);
    tcase_add_test(t, a_profile_in_a_profile);
    tcase_add_test(t, profile_refused);
    return s;
}
