/*
 * test_dead.c - TN_DEBUG=1: what was freed and is used is named, with the scope that ended it and
 * the line where it was made.
 *
 * Seen to fail: without the debug mode, and each of these checks (tn_keep, an op, tn_item, a
 * module, an optimizer) by itself.
 */
#include <stdlib.h>

#include "base/dead.h"
#include "common.h"

static bool asked_for;

START_TEST(the_environment_asks_for_it)
{
    const char *wish = getenv("TN_DEBUG");
    ck_assert_int_eq(asked_for, wish && strcmp(wish, "1") == 0);
}
END_TEST

START_TEST(a_tensor_after_its_scope)
{
    tn_tensor *x = NULL, *y = NULL, *w = tn_ones(TN_SHAPE(2, 3));
    assert_ok(tn_set_requires_grad(w, true));
    TN_SCOPE
    {
        x = tn_zeros(TN_SHAPE(4, 5));
        assert_ok(tn_set_name(x, "inputs"));
        TN_SCOPE y = tn_exp(w);
        assert_null(tn_relu(y), TN_E_STATE,
                    "relu: a tensor is used after its end: [2,3] of f32, made by exp, ended with a "
                    "scope (depth 2, number ");
    }
    assert_null(tn_add(w, x), TN_E_STATE,
                "add: a tensor is used after its end: inputs [4,5] of f32, ended with a scope "
                "(depth 1, number ");
    ck_assert(isnan(tn_item(x)));
    assert_error(TN_E_STATE, "inputs [4,5] of f32");
    tn_error_clear();
    ck_assert(tn_size(x, 0) == TN_NO_SIZE && tn_data(y) == NULL);
    tn_error_clear();
    assert_fails(tn_backward(y), TN_E_STATE, "made by exp");
    assert_null(tn_keep(x), TN_E_STATE, "inputs [4,5] of f32");
    assert_null(tn_scope_adopt(x), TN_E_STATE, "inputs [4,5] of f32");
    assert_fails(tn_zero_(x), TN_E_STATE, "inputs [4,5] of f32");
    assert_null(tn_linear(tn_ones(TN_SHAPE(1, 3)), w, x), TN_E_STATE, "linear: a tensor is used");
}
END_TEST

START_TEST(a_tensor_after_tn_scope_end_and_tn_drop)
{
    int64_t live = tn_live_tensors();
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_ones(TN_SHAPE(7)), *y = tn_keep(tn_neg(x));
    tn_scope_end(s);
    assert_null(tn_neg(x), TN_E_STATE, "[7] of f32, ended with a scope (depth 1, number ");
    ck_assert_double_eq(tn_at(y, TN_INDEX(6)), -1);
    tn_drop(y);
    ck_assert_int_eq(tn_live_tensors(), live);
    assert_null(tn_neg(y), TN_E_STATE, "[7] of f32, whose last reference was dropped");
    tn_drop(y);
    assert_error(TN_E_STATE, "whose last reference was dropped");
    tn_error_clear();
}
END_TEST

START_TEST(with_lines)
{
    bool was = tn_set_lines(true);
    tn_tensor *x = NULL;
    TN_SCOPE x = tn_ones(TN_SHAPE(7));
    tn_set_lines(was);
    assert_null(tn_neg(x), TN_E_STATE, "; made at ");
    assert_null(tn_neg(x), TN_E_STATE, "; gone at ");
}
END_TEST

START_TEST(a_module_and_an_optimizer)
{
    tn_module *m = tn_linear_new(3, 2, (tn_linear_options){ 0 });
    tn_optim *opt = NULL;
    TN_SCOPE opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 1 }); /* a list holds m */
    assert_ok(tn_optim_zero_grad(opt));
    tn_optim_free(opt);
    assert_fails(tn_optim_step(opt), TN_E_STATE, "an optimizer is used after its tn_optim_free");
    assert_fails(tn_optim_zero_grad(opt), TN_E_STATE, "an optimizer is used");
    assert_null(tn_step_lr(opt, 1, 0.5), TN_E_STATE, "an optimizer is used");
    tn_optim_free(opt);
    assert_error(TN_E_STATE, "an optimizer is used");
    tn_error_clear();
    assert_made(tn_forward(m, tn_ones(TN_SHAPE(1, 3))));
    tn_module_drop(m);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(1, 3))), TN_E_STATE,
                "tn_forward: the module Linear(3, 2) is used after its last tn_module_drop");
    assert_null(tn_parameters(m), TN_E_STATE, "the module Linear(3, 2)");
    tn_module_drop(m);
    assert_error(TN_E_STATE, "the module Linear(3, 2)");
    tn_error_clear();
}
END_TEST

/* What falls out of the ring is given back; what is alive computes as ever. */
START_TEST(more_than_are_kept)
{
    tn_tensor *x = tn_ones(TN_SHAPE(300));
    tn_memory_stats half = { 0 };
    for (int i = 0; i < 80000; i++) {
        TN_SCOPE tn_neg(x);
        if (i == 40000) half = tn_memory();
    }
    ck_assert_int_eq(tn_memory().in_use, half.in_use);
    ck_assert_double_eq(tn_item(tn_sum_all(x)), 300);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("dead");
    TCase *t = test_case(suite, "used after");
    asked_for = tni_debugging;
    tni_debugging = true;
    tcase_add_test(t, the_environment_asks_for_it);
    tcase_add_test(t, a_tensor_after_its_scope);
    tcase_add_test(t, a_tensor_after_tn_scope_end_and_tn_drop);
    tcase_add_test(t, with_lines);
    tcase_add_test(t, a_module_and_an_optimizer);
    tcase_add_test(t, more_than_are_kept);
    return suite;
}
