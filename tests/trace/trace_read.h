/* trace_read.h - what the suites here share: leaves, traces that begin, and what they tell; and the
 * cases of the suites' further files. */
#ifndef TENON_TESTS_TRACE_READ_H
#define TENON_TESTS_TRACE_READ_H

#include "common.h"
#include "ext/trace/words.h"

void trace_steps_cases(Suite *suite);
void trace_ways_cases(Suite *suite);
void trace_ends_cases(Suite *suite);
void explain_summary_cases(Suite *suite);
void explain_mistakes_cases(Suite *suite);
void explain_settings_cases(Suite *suite);

static inline tn_tensor *leaf(tn_shape shape, double value, const char *name)
{
    tn_tensor *t = tn_full_as(shape, value, TN_F64, tn_cpu());
    assert_made(t);
    assert_ok(tn_set_requires_grad(t, true));
    assert_ok(tn_set_name(t, name));
    return t;
}

static inline tn_tensor *sum(tn_tensor *t)
{
    return tn_sum(t, NULL, 0, false);
}

static inline void free_trace(void *tr)
{
    tn_trace_free(tr);
}

/* Freed at the end of the test. */
static inline tn_trace *begin(tn_trace_options o)
{
    tn_trace *tr = tn_trace_begin(o);
    free_at_end(tr, free_trace);
    return tr;
}

/* Of a backward of loss, without a model. */
static inline tn_trace *trace_of(tn_tensor *(*loss)(tn_tensor *x), tn_tensor *x)
{
    tn_trace *tr = begin((tn_trace_options){ 0 });
    assert_ok(tn_backward(loss(x)));
    assert_ok(tn_trace_end(tr));
    return tr;
}

static inline const tni_log_step *step_of(const tn_trace *tr, size_t k)
{
    ck_assert_int_lt(k, tr->log.n_steps);
    return &tr->log.steps[k];
}

/* Ends the trace; its first step. */
static inline const tni_log_step *ended(tn_trace *tr)
{
    assert_ok(tn_trace_end(tr));
    return step_of(tr, 0);
}

/* What was written to a file, from its beginning. */
static inline const char *text_of(FILE *file)
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

static inline const char *told(const tn_trace *tr)
{
    FILE *file = tmpfile();
    assert_ok(tn_trace_text(file, tr));
    return text_of(file);
}

static inline const char *json(const tn_trace *tr)
{
    FILE *file = tmpfile();
    assert_ok(tn_trace_json(file, tr));
    return text_of(file);
}

static inline const char *difference_of(const tn_trace *a, const tn_trace *b)
{
    FILE *file = tmpfile();
    assert_ok(tn_trace_diff(file, a, b));
    return text_of(file);
}

static inline void assert_says(const char *text, const char *wanted)
{
    ck_assert_msg(strstr(text, wanted) != NULL, "\"%s\" is not in\n%s", wanted, text);
}

#endif
