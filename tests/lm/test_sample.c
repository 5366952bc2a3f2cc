/*
 * test_sample.c - the choice of a token: processed logits against transformers' (golden
 * lm/sample.safetensors, by make_lm_sample.py), draws against the probabilities, what is refused.
 *
 * Seen to fail: in src/ext/lm/sample.c, a penalty that divides logits below 0; the prompt counted
 * with what was generated; a sequence's length off by one, its last place left out; logits equal to
 * the k-th dropped; a heap that takes too much; of equal ones at the border of top_p the last kept,
 * one token more; a bound for candidates of 1/100; min_p without equality; a dropped token that
 * keeps its weight; a draw cut at 0.98 of the sum; the inverse of the temperature as a factor; the
 * last of equal logits chosen; draws without row, step or half of the seed; padding left in a
 * history; a block not freed; NaN and infinity not looked for.
 */
#include "files.h"
#include "scarce.h"

static tn_list *golden;

static tn_tensor *given(const char *name)
{
    if (!golden) golden = tn_load_tensors(golden_path("lm/sample.safetensors"), NULL);
    assert_made(golden);
    tn_tensor *t = tn_list_get(golden, name);
    assert_made(t);
    return t;
}

/* ---- processed logits ------------------------------------------------------------------------ */

static const int64_t some[] = { 0, 3, 60, 61, -1 }; /* the last two have no logit */
static const char *const kinds[] = { "plain", "ties", "holes" };
static const struct {
    const char *name;
    tn_sampling_options o;
} cases[] = {
    { "nothing", { .temperature = 0 } },
    { "repetition", { .repetition_penalty = 1.3 } },
    { "reward", { .repetition_penalty = 0.7 } },
    { "ngram1", { .no_repeat_ngram = 1 } },
    { "ngram2", { .no_repeat_ngram = 2 } },
    { "ngram3", { .no_repeat_ngram = 3 } },
    { "suppress", { .suppress = some, .n_suppress = 5 } },
    { "min_new", { .suppress = some, .n_suppress = 5, .top_k = 3, .top_p = 0.1, .min_p = 1 } },
    { "temperature", { .temperature = 0.7 } },
    { "hot", { .temperature = 1.9 } },
    { "top_k1", { .temperature = 1, .top_k = 1 } },
    { "top_k5", { .temperature = 1, .top_k = 5 } },
    { "top_k200", { .temperature = 1, .top_k = 200 } },
    { "top_p1", { .temperature = 1, .top_p = 0.1 } },
    { "top_p6", { .temperature = 1, .top_p = 0.6 } },
    { "top_p95", { .temperature = 1, .top_p = 0.95 } },
    { "min_p1", { .temperature = 1, .min_p = 0.1 } },
    { "min_p_all", { .temperature = 1, .min_p = 1 } },
    { "all",
      { .repetition_penalty = 1.2,
        .no_repeat_ngram = 2,
        .suppress = some,
        .n_suppress = 5,
        .temperature = 1.4,
        .top_k = 30,
        .top_p = 0.9,
        .min_p = 0.02 } },
};

/* Of equal logits at the border of top_p transformers keeps any: there sorted values count. */
START_TEST(logits_as_transformers_has_them)
{
    const tn_sampling_options o = cases[_i].o;
    for (int k = 0; k < COUNT(kinds); k++) {
        char name[64];
        snprintf(name, sizeof name, "%s/logits", kinds[k]);
        tn_tensor *got = tn_process_logits(given(name), given("history"), 3, o);
        assert_made(got);
        snprintf(name, sizeof name, "%s/%s", cases[_i].name, kinds[k]);
        tn_tensor *want = given(name);
        if (o.top_p > 0 && o.temperature > 0 && !strcmp(kinds[k], "ties"))
            got = tn_sort(got, 1, false, NULL), want = tn_sort(want, 1, false, NULL);
        const char *differs = difference(got, want, 0, 0);
        ck_assert_msg(!differs, "%s: %s", name, differs);
    }
}
END_TEST

static tn_tensor *row_of(const float *values, int64_t n)
{
    return tn_from_floats(values, TN_SHAPE(1, n));
}

static tn_tensor *ids_of(const int64_t *values, int64_t n)
{
    return tn_from_ints(values, TN_SHAPE(1, n));
}

START_TEST(borders)
{
    const float inf = INFINITY;
    const float x[] = { logf(.125F), logf(.5F), logf(.125F), logf(.25F) };
    tn_tensor *logits = row_of(x, 4);
    tn_sampling_options o = { .temperature = 1, .top_p = 0.75 };
    assert_values(tn_process_logits(logits, TN_NONE, 0, o), 0, -inf, x[1], -inf, x[3]);
    o.top_p = 0.75001; /* of equally likely ones the first */
    assert_values(tn_process_logits(logits, TN_NONE, 0, o), 0, x[0], x[1], -inf, x[3]);
    o.top_p = 1e-300;
    assert_values(tn_process_logits(logits, TN_NONE, 0, o), 0, -inf, x[1], -inf, -inf);
    o = (tn_sampling_options){ .temperature = 1, .top_k = 3 }; /* all that equal the third */
    assert_values(tn_process_logits(logits, TN_NONE, 0, o), 0, x[0], x[1], x[2], x[3]);
    o = (tn_sampling_options){ .temperature = 1e-60 }; /* 0 in f32 */
    ck_assert_double_eq(tn_item(tn_sample_token(logits, TN_NONE, 0, o)), 1);
    const float two[] = { 1, 0, 1, 0.5F };
    o = (tn_sampling_options){ .temperature = 1, .min_p = 1 };
    assert_values(tn_process_logits(row_of(two, 4), TN_NONE, 0, o), 0, 1, -inf, 1, -inf);
    ck_assert_double_eq(
        tn_item(tn_sample_token(row_of(two, 4), TN_NONE, 0, (tn_sampling_options){ 0 })), 0);
}
END_TEST

/* The prompt counts for repetition and sequences only. */
START_TEST(what_was_generated_and_what_was_given)
{
    const float x[] = { 1, 1, 1, 1, 1 };
    tn_tensor *logits = row_of(x, 5), *history = ids_of((int64_t[]){ 0, 2, -1, 2, 3, -1, 3, 3 }, 8);
    tn_sampling_options o = { .presence_penalty = 0.5 };
    assert_values(tn_process_logits(logits, history, 4, o), 0, 1, 1, 0.5, 0.5, 1);
    o = (tn_sampling_options){ .frequency_penalty = 0.25 };
    assert_values(tn_process_logits(logits, history, 4, o), 0, 1, 1, 0.75, 0.25, 1);
    assert_values(tn_process_logits(logits, history, 2, o), 0, 1, 1, 1, 0.5, 1);
    assert_values(tn_process_logits(logits, history, 0, o), 0, 1, 1, 1, 1, 1);
    assert_values(tn_process_logits(logits, history, 99, o), 0, 0.75, 1, 0.5, 0.25, 1);
    o = (tn_sampling_options){ .repetition_penalty = 2, .presence_penalty = 0.125 };
    assert_values(tn_process_logits(logits, history, 1, o), 0, 0.5, 1, 0.5, 0.375, 1);
    o = (tn_sampling_options){ .no_repeat_ngram = 2 }; /* after 3 came 3 */
    assert_values(tn_process_logits(logits, history, 1, o), 0, 1, 1, 1, -INFINITY, 1);
    ck_assert_double_eq(tn_item(tn_sample_token(logits, history, 1, o)), 0);
}
END_TEST

/* ---- a large vocabulary ---------------------------------------------------------------------- */

enum { LARGE = 150000 };

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* n logits stay, give or take some whose weights are one number in f32; all larger ones do. */
static void assert_largest_stay(tn_tensor *logits, tn_sampling_options o, const float *sorted,
                                int64_t n, int64_t some)
{
    const float *y = tn_data(tn_process_logits(logits, TN_NONE, 0, o));
    int64_t stay = 0;
    for (int i = 0; i < LARGE; i++) {
        if (!isfinite(y[i])) continue;
        stay++;
        ck_assert(y[i] >= sorted[n + some]);
    }
    ck_assert_msg(llabs(stay - n) <= some, "%d stay, not %d", (int)stay, (int)n);
}

/* Against a sort of everything: how many stay, and that they are the largest. scale 0.01: nearly
 * equal ones; 4: as of a trained model. */
START_TEST(selection_from_many)
{
    const double scale = _i == 0 ? 0.01 : 4;
    tn_manual_seed(3);
    tn_tensor *logits = tn_mul_scalar(tn_randn(TN_SHAPE(1, LARGE)), scale);
    float *sorted = owned(malloc(LARGE * sizeof *sorted));
    assert_ok(tn_copy_out(logits, sorted, LARGE * sizeof *sorted, TN_F32));
    qsort(sorted, LARGE, sizeof *sorted, by_size);
    double sum = 0, above = 0;
    for (int i = 0; i < LARGE; i++) sum += exp((double)sorted[i] - (double)sorted[0]);
    int64_t n = 0;
    for (; above < 0.9 * sum; n++) above += exp((double)sorted[n] - (double)sorted[0]);
    assert_largest_stay(logits, (tn_sampling_options){ .temperature = 1, .top_p = 0.9 }, sorted, n,
                        1 + n / 100000);
    assert_largest_stay(logits, (tn_sampling_options){ .temperature = 1, .top_k = 1000 }, sorted,
                        1000, 0);
}
END_TEST

/* ---- draws ----------------------------------------------------------------------------------- */

enum { DRAWS = 40000, SMALL = 24 };

static tn_tensor *same_rows(int64_t rows)
{
    return tn_expand(tn_mul_scalar(random_as(TN_SHAPE(1, SMALL), -1, 1, 5, TN_F32), 3),
                     TN_SHAPE(rows, SMALL));
}

/* Sum over the tokens of (seen - expected)^2 / expected: 99.9 % are below 50 for 23 degrees of
 * freedom. */
static void assert_as_likely(const int64_t *seen, tn_sampling_options o, const char *what)
{
    tn_tensor *p =
        tn_softmax(tn_to_dtype(tn_process_logits(same_rows(1), TN_NONE, 0, o), TN_F64), 1);
    double chi = 0;
    for (int64_t i = 0; i < SMALL; i++) {
        double expected = tn_at(p, TN_INDEX(0, i)) * DRAWS;
        if (expected == 0) ck_assert_int_eq(seen[i], 0);
        if (expected > 0)
            chi += ((double)seen[i] - expected) * ((double)seen[i] - expected) / expected;
    }
    ck_assert_msg(chi < 50, "%s: chi square is %g", what, chi);
}

static void count(int64_t *seen, tn_tensor *ids)
{
    assert_made(ids);
    const int64_t *id = tn_data(ids);
    for (int64_t i = 0; i < tn_numel(ids); i++) seen[id[i]]++;
}

START_TEST(draws_are_as_likely_as_they_should)
{
    static const tn_sampling_options options[] = {
        { .temperature = 1, .seed = 1 },
        { .temperature = 0.6, .seed = 2 },
        { .temperature = 1, .top_k = 4, .seed = 3 },
        { .temperature = 1, .top_p = 0.7, .seed = 4 },
        { .temperature = 2, .min_p = 0.2, .seed = UINT64_MAX },
    };
    int64_t rows[SMALL] = { 0 }, steps[SMALL] = { 0 };
    count(rows, tn_sample_token(same_rows(DRAWS), TN_NONE, 0, options[_i]));
    assert_as_likely(rows, options[_i], "rows of a batch");
    tn_tensor *one = same_rows(1);
    for (int64_t i = 0; i < DRAWS; i++)
        TN_SCOPE count(steps, tn_sample_token(one, TN_NONE, i, options[_i]));
    assert_as_likely(steps, options[_i], "steps of a row");
}
END_TEST

START_TEST(draws_depend_on_seed_row_and_step)
{
    tn_sampling_options o = { .temperature = 1, .seed = 9 },
                        other = { .temperature = 1, .seed = 9 + (UINT64_C(1) << 32) };
    tn_tensor *all = tn_sample_token(same_rows(64), TN_NONE, 7, o);
    assert_close(tn_sample_token(same_rows(64), TN_NONE, 7, o), all, 0, 0);
    assert_close(tn_sample_token(same_rows(5), TN_NONE, 7, o), tn_narrow(all, 0, 0, 5), 0, 0);
    tn_tensor *logits = tn_clone(same_rows(64)); /* another row's logits */
    assert_ok(tn_fill_(tn_select(logits, 0, 63), 0));
    assert_close(tn_narrow(tn_sample_token(logits, TN_NONE, 7, o), 0, 0, 63),
                 tn_narrow(all, 0, 0, 63), 0, 0);
    ck_assert(difference(tn_sample_token(same_rows(64), TN_NONE, 8, o), all, 0, 0) != NULL);
    ck_assert(difference(tn_sample_token(same_rows(64), TN_NONE, 7, other), all, 0, 0) != NULL);
    tn_manual_seed(1);
    tn_tensor *x = tn_rand(TN_SHAPE(3));
    tn_manual_seed(1);
    assert_made(tn_sample_token(same_rows(64), TN_NONE, 7, o));
    assert_close(tn_rand(TN_SHAPE(3)), x, 0, 0); /* the default generator is left alone */
}
END_TEST

START_TEST(dtypes_and_views)
{
    tn_tensor *x = same_rows(8), *want = NULL;
    tn_sampling_options o = { .temperature = 1, .top_k = 5, .seed = 3 };
    for (int i = 0; i < 2; i++) {
        tn_tensor *half = tn_to_dtype(x, i ? TN_F16 : TN_BF16);
        want = tn_sample_token(tn_to_dtype(half, TN_F32), TN_NONE, 1, o);
        assert_close(tn_sample_token(half, TN_NONE, 1, o), want, 0, 0);
        assert_close(tn_sample_token(as_transposed(half), TN_NONE, 1, o), want, 0, 0);
    }
    ck_assert_int_eq(tn_dtype_of(want), TN_I64);
    ck_assert_int_eq(tn_numel(tn_sample_token(tn_zeros(TN_SHAPE(0, 4)), TN_NONE, 0, o)), 0);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(options_out_of_range)
{
    static const struct {
        tn_sampling_options o;
        const char *says;
    } bad[] = {
        { { .temperature = -1 }, "temperature -1" },
        { { .temperature = NAN }, "temperature nan" },
        { { .repetition_penalty = -0.5 }, "repetition_penalty -0.5" },
        { { .frequency_penalty = INFINITY }, "frequency_penalty inf" },
        { { .presence_penalty = NAN }, "presence_penalty nan" },
        { { .no_repeat_ngram = -1 }, "no_repeat_ngram -1" },
        { { .n_suppress = 2 }, "n_suppress 2" },
        { { .n_suppress = -2, .suppress = some }, "n_suppress -2" },
        { { .top_k = -1 }, "top_k -1" },
        { { .top_p = 1.5 }, "top_p 1.5" },
        { { .min_p = -0.1 }, "min_p -0.1" },
    };
    tn_tensor *x = tn_zeros(TN_SHAPE(2, 3));
    for (int i = 0; i < COUNT(bad); i++) {
        assert_null(tn_sample_token(x, TN_NONE, 0, bad[i].o), TN_E_INVALID, bad[i].says);
        assert_null(tn_process_logits(x, TN_NONE, 0, bad[i].o), TN_E_INVALID, bad[i].says);
    }
}
END_TEST

START_TEST(arguments_that_do_not_fit)
{
    const tn_sampling_options o = { 0 };
    tn_tensor *x = tn_zeros(TN_SHAPE(2, 3)),
              *ids = tn_from_ints((int64_t[]){ 1, 2 }, TN_SHAPE(2, 1));
    assert_null(tn_sample_token(NULL, TN_NONE, 0, o), TN_E_INVALID, "logits is NULL");
    assert_null(tn_sample_token(x, NULL, 0, o), TN_E_INVALID, "history is NULL");
    assert_null(tn_process_logits(NULL, TN_NONE, 0, o), TN_E_INVALID, "logits is NULL");
    assert_null(tn_process_logits(x, NULL, 0, o), TN_E_INVALID, "history is NULL");
    assert_null(tn_sample_token(TN_NONE, TN_NONE, 0, o), TN_E_SHAPE, "logits: want floats [B, V]");
    assert_null(tn_sample_token(ids, TN_NONE, 0, o), TN_E_SHAPE, "logits: want floats [B, V]");
    assert_null(tn_sample_token(tn_zeros(TN_SHAPE(3)), TN_NONE, 0, o), TN_E_SHAPE, "floats [B, V]");
    assert_null(tn_sample_token(tn_zeros(TN_SHAPE(3, 0)), TN_NONE, 0, o), TN_E_SHAPE, "0 logits");
    assert_null(tn_sample_token(x, x, 0, o), TN_E_SHAPE, "history: want i64 [2, T]");
    assert_null(tn_sample_token(tn_zeros(TN_SHAPE(1, 3)), ids, 0, o), TN_E_SHAPE,
                "want i64 [1, T]");
    assert_null(tn_sample_token(x, ids, -1, o), TN_E_INVALID, "step -1");
    const float nan[] = { 0, NAN, 1 }, none[] = { -INFINITY, -INFINITY, -INFINITY };
    assert_null(tn_sample_token(row_of(nan, 3), TN_NONE, 0, o), TN_E_INVALID, "row 0 is NaN");
    assert_null(tn_sample_token(row_of(none, 3), TN_NONE, 0, o), TN_E_INVALID, "row 0 is -inf");
}
END_TEST

static tn_status sample_all(void *user)
{
    (void)user;
    tn_status status = TN_OK;
    TN_SCOPE
    {
        tn_tensor *x = tn_zeros(TN_SHAPE(2, 3)), *h = tn_zeros(TN_SHAPE(2, 4));
        h = tn_to_dtype(h, TN_I64);
        tn_sampling_options o = { .temperature = 1, .top_p = 0.5 };
        if (!tn_sample_token(x, h, 1, o) || !tn_process_logits(x, h, 1, o))
            status = tn_error_status();
    }
    return status;
}

START_TEST(memory_runs_out)
{
    ck_assert_int_gt(scarce_sweep_warm(sample_all, NULL, NULL), 6);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("sample");
    TCase *t = test_case(suite, "logits");
    tcase_add_loop_test(t, logits_as_transformers_has_them, 0, COUNT(cases));
    tcase_add_loop_test(t, selection_from_many, 0, 2);
    add_tests(t, borders, what_was_generated_and_what_was_given);
    t = test_case(suite, "draws");
    tcase_add_loop_test(t, draws_are_as_likely_as_they_should, 0, 5);
    add_tests(t, draws_depend_on_seed_row_and_step, dtypes_and_views);
    t = test_case(suite, "refused");
    add_tests(t, options_out_of_range, arguments_that_do_not_fit);
    t = scarce_case(suite, "memory");
    tcase_add_test(t, memory_runs_out);
    return suite;
}
