/*
 * test_inplace.c - in-place ops against their out-of-place forms: in every layout, with
 * broadcasting and casts, without hidden copies, and their refusals.
 *
 * Seen to fail: a source that overlaps its target was not copied first (ops/inplace.c): 5 tests of
 * a_source_that_overlaps failed.
 */
#include "common.h"

typedef struct pair {
    const char *name;
    tn_status (*change)(tn_tensor *x, tn_tensor *b);
    tn_tensor *(*make)(tn_tensor *x, tn_tensor *b);
} pair;

static tn_status add_scalar_(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_add_scalar_(x, 1.5) : TN_E_INVALID;
}
static tn_tensor *add_scalar(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_add_scalar(x, 1.5) : NULL;
}
static tn_status mul_scalar_(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_mul_scalar_(x, -2) : TN_E_INVALID;
}
static tn_tensor *mul_scalar(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_mul_scalar(x, -2) : NULL;
}
static tn_status lerp_(tn_tensor *x, tn_tensor *b)
{
    return tn_lerp_(x, b, 0.3);
}
static tn_tensor *lerp(tn_tensor *x, tn_tensor *b)
{
    return tn_lerp(x, b, 0.3);
}
static tn_status clamp_(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_clamp_(x, -0.4, 0.5) : TN_E_INVALID;
}
static tn_tensor *clamp(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_clamp(x, -0.4, 0.5) : NULL;
}
static tn_status masked_fill_(tn_tensor *x, tn_tensor *b)
{
    return tn_masked_fill_(x, tn_gt_scalar(b, 1), 7);
}
static tn_tensor *masked_fill(tn_tensor *x, tn_tensor *b)
{
    return tn_masked_fill(x, tn_gt_scalar(b, 1), 7);
}
static tn_tensor *copied(tn_tensor *x, tn_tensor *b)
{
    return tn_add(tn_zeros_like(x), b);
}
static tn_status fill_(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_fill_(x, 3) : TN_E_INVALID;
}
static tn_tensor *filled(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_full_like(x, 3) : NULL;
}
static tn_status zero_(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_zero_(x) : TN_E_INVALID;
}
static tn_tensor *zeroed(tn_tensor *x, tn_tensor *b)
{
    return b ? tn_zeros_like(x) : NULL;
}

static const pair pairs[] = {
    { "add", tn_add_, tn_add },
    { "sub", tn_sub_, tn_sub },
    { "mul", tn_mul_, tn_mul },
    { "div", tn_div_, tn_div },
    { "add_scalar", add_scalar_, add_scalar },
    { "mul_scalar", mul_scalar_, mul_scalar },
    { "lerp", lerp_, lerp },
    { "clamp", clamp_, clamp },
    { "masked_fill", masked_fill_, masked_fill },
    { "copy", tn_copy_, copied },
    { "fill", fill_, filled },
    { "zero", zero_, zeroed },
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static tn_tensor *laid_out(tn_tensor *t, int layout)
{
    return layout == 0 ? tn_clone(t) : layout == 1 ? as_transposed(t) : as_strided(t);
}

/* Target and source in three layouts each, the source of equal shape, broadcast, and of rank 0. */
static void check_pair(const pair *p, tn_dtype dtype)
{
    const tn_shape shapes[] = { TN_SHAPE(5, 7), TN_SHAPE(7), TN_SHAPE(5, 1), TN_SCALAR,
                                TN_SHAPE(1, 1) };
    for (int s = 0; s < 5; s++)
        for (int layout = 0; layout < 9; layout++) {
            tn_tensor *x = laid_out(random_as(TN_SHAPE(5, 7), -1, 1, 1, dtype), layout % 3);
            tn_tensor *b = laid_out(random_as(shapes[s], 0.5, 1.5, 2, dtype), layout / 3);
            tn_tensor *expected = p->make(x, b);
            uint64_t version = tn_version(x);
            assert_ok(p->change(x, b));
            const char *text = difference(x, expected, 0, 0);
            ck_assert_msg(!text, "%s_, shape %d, layout %d: %s", p->name, s, layout, text);
            ck_assert_msg(tn_version(x) > version, "%s_ left the version", p->name);
        }
}

START_TEST(equals_the_form_out_of_place)
{
    check_pair(&pairs[_i], TN_F64);
    check_pair(&pairs[_i], TN_F32);
}
END_TEST

START_TEST(makes_no_copy)
{
    tn_tensor *x = as_transposed(random_as(TN_SHAPE(5, 7), -1, 1, 1, TN_F32));
    tn_tensor *b = as_strided(random_as(TN_SHAPE(5, 1), 0.5, 1.5, 2, TN_F32));
    bool with_mask = strcmp(pairs[_i].name, "masked_fill") == 0; /* its mask is made on the way */
    int64_t before = tn_memory().data_allocations;
    assert_ok(pairs[_i].change(x, b));
    ck_assert_msg(tn_memory().data_allocations - before == with_mask, "%s_ made a copy",
                  pairs[_i].name);
}
END_TEST

/* The neighbours of a strided target stay as they were. */
START_TEST(writes_only_its_elements)
{
    tn_tensor *all = tn_full(TN_SHAPE(4, 6), 9);
    tn_tensor *x = tn_slice(all, 1, 1, 6, 2);
    assert_ok(pairs[_i].change(x, tn_full(TN_SHAPE(4, 3), 2)));
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j < 6; j += 2)
            ck_assert_msg(tn_at(all, TN_INDEX(i, j)) == 9, "%s_ wrote [%d,%d]", pairs[_i].name,
                          (int)i, (int)j);
}
END_TEST

/* x += x^T reads every element as it was. */
START_TEST(a_source_that_overlaps)
{
    tn_tensor *x = random_f64(TN_SHAPE(6, 6), -1, 1, 3);
    tn_tensor *expected = pairs[_i].make(x, tn_transpose(x, 0, 1));
    assert_ok(pairs[_i].change(x, tn_transpose(x, 0, 1)));
    assert_close(x, expected, 0, 0);
    tn_tensor *self = random_f64(TN_SHAPE(6), 0.5, 1, 3);
    expected = pairs[_i].make(self, self);
    assert_ok(pairs[_i].change(self, self));
    assert_close(self, expected, 0, 0);
}
END_TEST

START_TEST(refuses_a_target_with_a_gradient)
{
    char name[64];
    snprintf(name, sizeof name, "tn_%s", pairs[_i].name);
    tn_tensor *x = random_f64(TN_SHAPE(3), 0, 1, 1);
    tn_tensor *b = random_f64(TN_SHAPE(3), 0, 1, 2);
    assert_ok(tn_set_requires_grad(x, true));
    uint64_t hash = tn_hash(x);
    assert_fails(pairs[_i].change(x, b), TN_E_STATE, name);
    tn_tensor *history = tn_mul_scalar(x, 2);
    assert_fails(pairs[_i].change(history, b), TN_E_STATE, "history");
    ck_assert(tn_hash(x) == hash);
    TN_NO_GRAD assert_ok(pairs[_i].change(x, b));
    assert_ok(pairs[_i].change(tn_detach(x), b));
}
END_TEST

START_TEST(refuses_an_expanded_target)
{
    tn_tensor *x = tn_expand(random_f64(TN_SHAPE(1), 0, 1, 1), TN_SHAPE(3));
    assert_fails(pairs[_i].change(x, random_f64(TN_SHAPE(3), 0, 1, 2)), TN_E_INVALID, "expanded");
}
END_TEST

START_TEST(passes_poison)
{
    tn_fail(TN_E_STATE, "planted");
    ck_assert_int_eq(pairs[_i].change(NULL, tn_zeros(TN_SHAPE(2))), TN_E_STATE);
    ck_assert_str_eq(tn_error(), "planted");
}
END_TEST

START_TEST(refuses_what_does_not_fit)
{
    tn_tensor *x = tn_zeros(TN_SHAPE(3, 4));
    tn_tensor *ints = tn_full_as(TN_SHAPE(3), 1, TN_I64, tn_cpu());
    assert_fails(tn_add_(x, tn_zeros(TN_SHAPE(3))), TN_E_SHAPE, "[3,4]");
    assert_fails(tn_add_(tn_zeros(TN_SHAPE(4)), x), TN_E_SHAPE, "[3,4]");
    assert_fails(tn_copy_(x, tn_zeros(TN_SHAPE(5, 4))), TN_E_SHAPE, "[5,4]");
    assert_fails(tn_add_(ints, tn_ones(TN_SHAPE(3))), TN_E_DTYPE, "i64");
    assert_fails(tn_masked_fill_(x, tn_zeros(TN_SHAPE(4)), 1), TN_E_DTYPE, "bool");
    tn_tensor *source = tn_ones(TN_SHAPE(4));
    assert_ok(tn_set_requires_grad(source, true));
    assert_fails(tn_add_(x, source), TN_E_STATE, "source");
    assert_close(x, tn_zeros(TN_SHAPE(3, 4)), 0, 0);
}
END_TEST

START_TEST(casts_to_the_target)
{
    tn_tensor *x = tn_full(TN_SHAPE(3), 0.5);
    assert_ok(tn_add_(x, tn_from_ints((int64_t[]){ 1, -2, 3 }, TN_SHAPE(3))));
    assert_values(x, 0, 1.5, -1.5, 3.5);
    ck_assert_int_eq(tn_dtype_of(x), TN_F32);
    assert_ok(tn_copy_(x, random_f64(TN_SHAPE(3), 2, 2.0000001, 1)));
    ck_assert_int_eq(tn_dtype_of(x), TN_F32);
    tn_tensor *ints = tn_full_as(TN_SHAPE(3), 4, TN_I64, tn_cpu());
    assert_ok(tn_mul_(ints, tn_from_ints((int64_t[]){ 1, -2, 3 }, TN_SHAPE(3))));
    assert_values(ints, 0, 4, -8, 12);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("inplace");
    TCase *t = test_case(suite, "inplace");
    tcase_add_loop_test(t, equals_the_form_out_of_place, 0, N_PAIRS);
    tcase_add_loop_test(t, makes_no_copy, 0, N_PAIRS);
    tcase_add_loop_test(t, writes_only_its_elements, 0, N_PAIRS);
    tcase_add_loop_test(t, a_source_that_overlaps, 0, N_PAIRS);
    tcase_add_loop_test(t, refuses_a_target_with_a_gradient, 0, N_PAIRS);
    tcase_add_loop_test(t, refuses_an_expanded_target, 0, N_PAIRS);
    tcase_add_loop_test(t, passes_poison, 0, N_PAIRS);
    tcase_add_test(t, refuses_what_does_not_fit);
    tcase_add_test(t, casts_to_the_target);
    return suite;
}
