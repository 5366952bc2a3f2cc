/*
 * test_told.c - traces where it is easy to tell something wrong: signs that flip, rules by the
 * place of an input, names that are not UTF-8, a tensor registered in the middle of a step.
 *
 * Seen to fail: each, before src/ext/trace told it rightly.
 */
#include <stdlib.h>

#include "common.h"

#include <io/json.h>

static const tn_explain_options plain;

/* What a writer writes; free it. */
static char *written(tn_status (*write)(FILE *file, const tn_trace *trace), const tn_trace *trace)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_ok(write(file, trace));
    fclose(file);
    return text;
}

static void has(char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in\n%s", part, text);
    free(text);
}

static tn_tensor *leaf(const char *name, double value)
{
    tn_tensor *t = tn_full(TN_SHAPE(3), value);
    assert_ok(tn_set_name(t, name));
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

START_TEST(two_signs_flip)
{
    tn_module *m = tn_linear_new(2, 1, (tn_linear_options){ .no_bias = true });
    tn_tensor *w = tn_get_parameter(m, "weight");
    TN_NO_GRAD assert_ok(tn_copy_(w, tn_from_floats((float[]){ 1, -1 }, TN_SHAPE(1, 2))));
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 1 });
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .model = m, .opt = opt });
    tn_tensor *x = tn_from_floats((float[]){ 2, -2 }, TN_SHAPE(1, 2));
    assert_ok(tn_backward(tn_sum(tn_forward(m, x), NULL, 0, false)));
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_trace_end(trace));
    has(written(tn_trace_text, trace), "1.414  1.414    1.414  by the optimizer");
    tn_trace_free(trace);
    tn_optim_free(opt);
    tn_module_drop(m);
}
END_TEST

static char *explained(tn_tensor *loss)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_ok(tn_explain(file, loss, plain));
    fclose(file);
    return text;
}

START_TEST(rules_pass_over_an_input_without_gradient)
{
    tn_tensor *yes = leaf("yes", 1), *no = leaf("no", 2);
    tn_tensor *y =
        tn_where(tn_from_data((bool[]){ true, false, true }, TN_SHAPE(3), TN_BOOL), yes, no);
    char *text = explained(tn_sum(y, NULL, 0, false));
    char *at = strstr(text, "da = condition ? dy : 0");
    ck_assert_msg(at && strstr(at, "yes  leaf  grad = 0 + da"), "%s", text);
    at = at ? strstr(at, "db = condition ? 0 : dy") : NULL;
    ck_assert_msg(at && strstr(at, "no  leaf  grad = 0 + db"), "%s", text);
    free(text);
    tn_tensor *source = leaf("source", 3),
              *index = tn_from_ints((int64_t[]){ 0, 1, 1 }, TN_SHAPE(3));
    y = tn_scatter_add(leaf("x", 1), 0, index, source);
    has(explained(tn_sum(y, NULL, 0, false)), "source  leaf  grad = 0 + dsource");
}
END_TEST

static tn_trace *trace_of(double value, const char *name)
{
    tn_tensor *x = leaf(name, value);
    tn_trace *trace = tn_trace_begin((tn_trace_options){ 0 });
    assert_made(trace);
    assert_ok(tn_backward(tn_sum(tn_square(tn_sum(x, NULL, 0, false)), NULL, 0, false)));
    assert_ok(tn_trace_end(trace));
    return trace;
}

START_TEST(names_become_utf8)
{
    char cut[401] = "";
    for (int i = 0; i < 200; i++) memcpy(cut + 2 * i, "\xc3\xa9", 2);
    const char *const names[] = { "caf\xe9", "\xff\xfe", "\xe2\x82", cut };
    for (int i = 0; i < 4; i++) {
        tn_trace *trace = trace_of(1, names[i]);
        char *text = written(tn_trace_json, trace);
        ck_assert_uint_eq(tni_utf8(text, strlen(text)), strlen(text));
        if (i == 0) ck_assert(strstr(text, "\"caf?\"") != NULL);
        free(text);
        tn_trace_free(trace);
    }
}
END_TEST

START_TEST(a_sign_is_a_difference)
{
    tn_trace *a = trace_of(1, "x"), *b = trace_of(-1, "x");
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_ok(tn_trace_diff(file, a, b));
    fclose(file);
    has(text, "sum: y 3 in a, -3 in b");
    tn_trace_free(a);
    tn_trace_free(b);
}
END_TEST

START_TEST(a_tensor_registered_in_the_middle)
{
    tn_module *m = tn_linear_new(2, 1, (tn_linear_options){ 0 });
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .model = m });
    tn_tensor *loss = tn_sum(tn_forward(m, tn_ones(TN_SHAPE(1, 2))), NULL, 0, false);
    assert_ok(tn_register_buffer(m, "late", NULL, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_ok(tn_backward(loss));
    assert_ok(tn_trace_end(trace));
    char *page = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&page, &size);
    assert_ok(tn_trace_html(file, &trace, 1));
    fclose(file);
    has(page, "<td>not known</td>");
    tn_trace_free(trace);
    tn_module_drop(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("told");
    TCase *t = test_case(suite, "told");
    tcase_add_test(t, two_signs_flip);
    tcase_add_test(t, rules_pass_over_an_input_without_gradient);
    tcase_add_test(t, names_become_utf8);
    tcase_add_test(t, a_sign_is_a_difference);
    tcase_add_test(t, a_tensor_registered_in_the_middle);
    return suite;
}
