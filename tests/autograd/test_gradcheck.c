/*
 * test_gradcheck.c - tn_gradcheck itself: it accepts right gradients and catches wrong ones. So
 * does tn_module_gradcheck, in gradcheck_modules.c.
 *
 * Seen to fail: gradcheck.c compared from element 1 on (`for (int64_t j = 1; ...` in
 * compare_input): catches_a_wrong_gradient failed.
 */
#include "autograd/gradients.h"

void gradcheck_module_cases(Suite *suite);

static const tn_gradcheck_options first = { 0 }, both = { .second = true };

static tn_tensor *positive(tn_shape shape, uint64_t seed)
{
    return leaf(random_f64(shape, 0.5, 1.5, seed));
}

FUNCTION(square_times_b, tn_mul(tn_square(x[0]), x[1]))

START_TEST(passes_what_is_right)
{
    tn_tensor *x[] = { positive(TN_SHAPE(3, 2), 1), positive(TN_SHAPE(2), 2) };
    uint64_t before = tn_hash(x[0]);
    assert_ok(tn_gradcheck(square_times_b, x, 2, NULL, both));
    ck_assert_msg(tn_hash(x[0]) == before, "the input was left changed");
    ck_assert(tn_is_none(tn_grad(x[0])));
}
END_TEST

HOOK(scaled, tn_mul_scalar(g, *(double *)user))

/* Right values, a gradient that is 1 % too large at one place. */
static tn_tensor *wrong_gradient(tn_tensor **x, void *user)
{
    tn_tensor *y = tn_square(x[0]);
    if (tn_requires_grad(y)) tn_register_hook(y, scaled, user);
    return tn_mul(y, x[1]);
}

START_TEST(catches_a_wrong_gradient)
{
    tn_tensor *x[] = { positive(TN_SHAPE(3), 1), positive(TN_SHAPE(3), 2) };
    double factor = 1.01;
    assert_fails(tn_gradcheck(wrong_gradient, x, 2, &factor, first), TN_E_INVALID,
                 "input 0 element 0");
    factor = 1;
    assert_ok(tn_gradcheck(wrong_gradient, x, 2, &factor, first));
}
END_TEST

/* dx without its dependence on b: right to first order where b does not vary, wrong to second. */
HOOK(detached_gradient, tn_detach(g))

static tn_tensor *cut_gradient(tn_tensor **x, void *user)
{
    tn_tensor *y = tn_square(x[0]);
    if (tn_requires_grad(y)) tn_register_hook(y, detached_gradient, user);
    return tn_mul(y, x[1]);
}

START_TEST(catches_a_wrong_second_derivative)
{
    tn_tensor *x[] = { positive(TN_SHAPE(3), 1), positive(TN_SHAPE(3), 2) };
    assert_ok(tn_gradcheck(cut_gradient, x, 2, NULL, first));
    assert_fails(tn_gradcheck(cut_gradient, x, 2, NULL, both), TN_E_INVALID, "second derivative");
}
END_TEST

FUNCTION(different_every_time, tn_mul_scalar(x[0], ++*(double *)user))
FUNCTION(fails, tn_add(x[0], tn_zeros(TN_SHAPE(7))))
FUNCTION(twice, tn_mul_scalar(x[0], 2))

START_TEST(refuses_what_it_cannot_check)
{
    tn_tensor *x = positive(TN_SHAPE(3), 1), *plain = tn_detach(x),
              *single = leaf(F32(TN_SHAPE(1), 1));
    double count = 0;
    assert_fails(tn_gradcheck(different_every_time, &x, 1, &count, first), TN_E_INVALID,
                 "same values at every call");
    assert_fails(tn_gradcheck(fails, &x, 1, NULL, first), TN_E_SHAPE, "tn_add"); /* passed on */
    assert_fails(tn_gradcheck(twice, &plain, 1, NULL, first), TN_E_INVALID, "requires grad");
    /* AG-07 */
    assert_fails(tn_gradcheck(twice, &single, 1, NULL, first), TN_E_INVALID, "f32");
    tn_tensor *shared = leaf(tn_detach(tn_expand(random_f64(TN_SHAPE(1), 0, 1, 1), TN_SHAPE(3))));
    assert_fails(tn_gradcheck(twice, &shared, 1, NULL, first), TN_E_INVALID, "share memory");
    assert_fails(tn_gradcheck(NULL, &shared, 1, NULL, first), TN_E_INVALID, "f");
}
END_TEST

FUNCTION(padded_rows, tn_mul(tn_embedding(x[0], user, 1), tn_embedding(x[0], user, -1)))

/* A padding row's gradient of 0 is a definition, not a wrong gradient; and it stays that. */
START_TEST(a_padding_row_is_no_fault)
{
    tn_tensor *x = positive(TN_SHAPE(3, 2), 1);
    tn_tensor *id = tn_from_ints((int64_t[]){ 1, 2, 1 }, TN_SHAPE(3));
    assert_ok(tn_gradcheck(padded_rows, &x, 1, id, both));
    assert_backward(tn_embedding(x, id, 1));
    assert_values(tn_grad(x), 0, 0, 0, 0, 0, 1, 1);
}
END_TEST

FUNCTION(constant, tn_zeros_like(x[0]))
FUNCTION(all_of_it, tn_sum_all(x[0]))
FUNCTION(cube, tn_mul(tn_square(x[0]), x[0]))

START_TEST(edges)
{
    tn_tensor *x = positive(TN_SHAPE(3), 1), *negative = leaf(F64(TN_SHAPE(2), 0.5, -1.5));
    assert_ok(tn_gradcheck(cube, &negative, 1, NULL, both));
    assert_ok(tn_gradcheck(constant, &x, 1, NULL, both));
    assert_ok(tn_gradcheck(all_of_it, &x, 1, NULL, both));
    tn_tensor *empty = positive(TN_SHAPE(2, 0), 1);
    assert_ok(tn_gradcheck(all_of_it, &empty, 1, NULL, both));
    tn_tensor *strided = leaf(tn_detach(as_transposed(random_f64(TN_SHAPE(2, 3), 0.5, 1, 3))));
    tn_tensor *two[] = { strided, positive(TN_SHAPE(3), 2) };
    assert_ok(tn_gradcheck(square_times_b, two, 2, NULL, both));
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("gradcheck");
    add_tests(test_case(suite, "gradcheck"), passes_what_is_right, catches_a_wrong_gradient,
              catches_a_wrong_second_derivative, refuses_what_it_cannot_check,
              a_padding_row_is_no_fault, edges);
    gradcheck_module_cases(suite);
    return suite;
}
