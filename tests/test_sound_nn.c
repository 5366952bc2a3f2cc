/*
 * test_sound_nn.c - modules, lists and optimizers under calls that nobody meant: arrays that are not
 * there, numbers out of any range, memory that runs out at each place. Each is refused with a
 * message, and nothing is half changed.
 */
#include <stdlib.h>

#include "boxes.h"

/* ---- an allocator that refuses one request ------------------------------------------------------ */

static int64_t calls;   /* since it was set to 0 */
static int64_t failing; /* this one returns NULL; 0: none */

static void *failing_alloc(void *user, size_t size)
{
    void *block = NULL;
    (void)user;
    if (++calls == failing) return NULL;
    return posix_memalign(&block, 64, size) == 0 ? block : NULL;
}

static void plain_free(void *user, void *block, size_t size)
{
    (void)user, (void)size;
    free(block);
}

static void install(void)
{
    static const tn_allocator allocator = { failing_alloc, plain_free, NULL };
    calls = failing = 0;
    assert_ok(test_set_allocator(&allocator));
}

/* ---- optimizers ---------------------------------------------------------------------------------- */

static void give_gradients(const tn_list *list)
{
    for (int i = 0; i < list->n; i++)
        assert_ok(tn_set_grad_of(list->entry[i].tensor, tn_ones_like(list->entry[i].tensor)));
}

/* Seen to fail: the third allocation is the array that a step fills. */
START_TEST(a_group_that_finds_no_memory_is_not_added)
{
    install();
    tn_module *m = tn_sequential(linear(2, 2), linear(2, 2), linear(2, 2));
    tn_list *all = tn_parameters(m);
    give_gradients(all);
    for (int64_t k = 1;; k++) {
        tn_list *first = tn_list_new(), *more = tn_list_new();
        for (int i = 0; i < all->n; i++)
            assert_ok(tn_list_add(i ? more : first, all->entry[i].name, all->entry[i].tensor));
        tn_optim *opt = tn_sgd(first, (tn_sgd_options){ .lr = 1 });
        assert_made(opt);
        calls = 0, failing = k;
        tn_status status = tn_optim_add_group(opt, more, (tn_group_options){ 0 });
        failing = 0;
        bool failed = calls >= k;
        if (failed) assert_error(TN_E_NOMEM, "out of memory");
        ck_assert_int_eq(status, failed ? TN_E_NOMEM : TN_OK);
        ck_assert_int_eq(tn_optim_groups(opt), failed ? 1 : 2);
        ck_assert_int_eq(tn_optim_parameters(opt)->n, failed ? 1 : all->n);
        assert_ok(tn_optim_step(opt));
        if (failed) assert_ok(tn_optim_add_group(opt, more, (tn_group_options){ 0 }));
        assert_ok(tn_optim_step(opt));
        tn_optim_free(opt);
        if (!failed) break;
    }
    tn_module_drop(m);
}
END_TEST

START_TEST(a_scheduler_is_taken_over_once)
{
    tn_module *m = linear(1, 1);
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 1 });
    tn_scheduler *one = tn_constant_lr(opt, 1, 1);
    assert_null(tn_sequential_lr(opt, (tn_scheduler *[]){ one, one }, 2, (int64_t[]){ 1 }),
                TN_E_INVALID, "scheduler 1 is also one before it");
    assert_null(tn_sequential_lr(opt, NULL, 2, (int64_t[]){ 1 }), TN_E_INVALID, "2 schedulers in NULL");
    one = tn_constant_lr(opt, 1, 1);
    assert_null(tn_sequential_lr(opt, (tn_scheduler *[]){ one, NULL }, 2, (int64_t[]){ 1 }),
                TN_E_INVALID, "NULL");
    tn_optim_free(opt);
    tn_module_drop(m);
}
END_TEST

/* ---- arrays ------------------------------------------------------------------------------------- */

START_TEST(arrays_that_are_not_there)
{
    tn_tensor *x = tn_ones(TN_SHAPE(1, 1)), *y;
    tn_module *m = linear(1, 1);
    assert_null(tn_sequential_of(NULL, 2), TN_E_INVALID, "tn_sequential_of: 2 children in NULL");
    assert_null(tn_sequential_of(&m, -1), TN_E_INVALID, "-1 children");
    assert_null(tn_sequential_of((tn_module *[]){ tn_module_keep(m), NULL }, 2), TN_E_INVALID, "NULL");
    tn_module *empty = tn_sequential_of(NULL, 0);
    assert_made(empty);
    assert_made(tn_forward(empty, x));
    assert_fails(tn_call(m, 1, NULL, 1, &y), TN_E_INVALID, "without an array");
    assert_fails(tn_call(m, -1, &x, 1, &y), TN_E_INVALID, "-1 inputs");
    assert_fails(tn_call(m, 1, &x, 1, NULL), TN_E_INVALID, "without an array");
    assert_fails(tn_call(m, 1, &x, 0, &y), TN_E_INVALID, "0 outputs");
    tn_module_drop(empty);
    tn_module_drop(m);
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* the allocator above is to see every request */
    Suite *s = suite_create("sound_nn");
    TCase *t = test_case(s, "optimizers");
    tcase_add_test(t, a_group_that_finds_no_memory_is_not_added);
    tcase_add_test(t, a_scheduler_is_taken_over_once);
    t = test_case(s, "arrays");
    tcase_add_test(t, arrays_that_are_not_there);
    return s;
}
