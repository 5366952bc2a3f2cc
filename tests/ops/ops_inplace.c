/*
 * ops_inplace.c - in-place ops against their out-of-place forms: in every layout, with
 * broadcasting and casts, without hidden copies, and their refusals.
 *
 * Seen to fail: a source that overlaps its target was not copied first (ops/inplace.c): 5 tests of
 * a_source_that_overlaps failed.
 */
#include "ops/ops.h"

/* PAIR(name, in place, out of place): of x and b. */
#define PAIRS(PAIR)                                                                                \
    PAIR(add, tn_add_(x, b), tn_add(x, b))                                                         \
    PAIR(sub, tn_sub_(x, b), tn_sub(x, b))                                                         \
    PAIR(mul, tn_mul_(x, b), tn_mul(x, b))                                                         \
    PAIR(div, tn_div_(x, b), tn_div(x, b))                                                         \
    PAIR(add_scalar, tn_add_scalar_(x, 1.5), tn_add_scalar(x, 1.5))                                \
    PAIR(mul_scalar, tn_mul_scalar_(x, -2), tn_mul_scalar(x, -2))                                  \
    PAIR(lerp, tn_lerp_(x, b, 0.3), tn_lerp(x, b, 0.3))                                            \
    PAIR(clamp, tn_clamp_(x, -0.4, 0.5), tn_clamp(x, -0.4, 0.5))                                   \
    PAIR(masked_fill, tn_masked_fill_(x, tn_gt_scalar(b, 1), 7),                                   \
         tn_masked_fill(x, tn_gt_scalar(b, 1), 7))                                                 \
    PAIR(copy, tn_copy_(x, b), tn_add(tn_zeros_like(x), b))                                        \
    PAIR(fill, tn_fill_(x, 3), tn_full_like(x, 3))                                                 \
    PAIR(zero, tn_zero_(x), tn_zeros_like(x))

#define FUNCTIONS(name, in_place, out_of_place)                                                    \
    static tn_status change_##name(tn_tensor *x, tn_tensor *b)                                     \
    {                                                                                              \
        return b ? in_place : TN_E_INVALID;                                                        \
    }                                                                                              \
    static tn_tensor *make_##name(tn_tensor *x, tn_tensor *b)                                      \
    {                                                                                              \
        return b ? out_of_place : NULL;                                                            \
    }
PAIRS(FUNCTIONS)

typedef struct pair {
    const char *name;
    tn_status (*change)(tn_tensor *x, tn_tensor *b);
    tn_tensor *(*make)(tn_tensor *x, tn_tensor *b);
} pair;

static const pair pairs[] = {
#define ROW(name, in_place, out_of_place) { #name, change_##name, make_##name },
    PAIRS(ROW)
};

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

/* What has a gradient or is expanded, and NULL, where the error that is pending stays. */
START_TEST(refuses_a_target)
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
    tn_tensor *expanded = tn_expand(random_f64(TN_SHAPE(1), 0, 1, 1), TN_SHAPE(3));
    assert_fails(pairs[_i].change(expanded, b), TN_E_INVALID, "expanded");
    tn_fail(TN_E_STATE, "planted");
    ck_assert_int_eq(pairs[_i].change(NULL, b), TN_E_STATE);
    ck_assert_ptr_eq(strstr(tn_error(), "planted; tn_"), tn_error());
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

void ops_inplace_cases(Suite *suite)
{
    TCase *t = test_case(suite, "in place");
    tcase_add_loop_test(t, equals_the_form_out_of_place, 0, COUNT(pairs));
    tcase_add_loop_test(t, makes_no_copy, 0, COUNT(pairs));
    tcase_add_loop_test(t, writes_only_its_elements, 0, COUNT(pairs));
    tcase_add_loop_test(t, a_source_that_overlaps, 0, COUNT(pairs));
    tcase_add_loop_test(t, refuses_a_target, 0, COUNT(pairs));
    add_tests(t, refuses_what_does_not_fit, casts_to_the_target);
}
