/*
 * test_parallel.c - a program that runs alone: every call of parallel.h does at once what it means
 * for one rank, nothing of MPI is opened, and what is wrong is refused. Runs of several processes:
 * parallel_ranks.sh.
 */
#include "nn/boxes.h"

static tn_module *small(void)
{
    tn_module *m = tn_sequential(tn_linear_new(3, 2, (tn_linear_options){ 0 }),
                                 tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
    assert_made(m);
    return m;
}

START_TEST(alone_is_rank_0_of_1)
{
    char line[4096];
    assert_ok(tn_parallel_begin());
    ck_assert_int_eq(tn_parallel_rank(), 0);
    ck_assert_int_eq(tn_parallel_size(), 1);
    assert_ok(tn_parallel_barrier());
    assert_ok(tn_parallel_share_random());
    assert_ok(tn_parallel_same("a flag", "x", 1));
    assert_fails(tn_parallel_same(NULL, "x", 1), TN_E_INVALID, "what is NULL");
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps)) ck_assert_ptr_null(strstr(line, "libmpi"));
    fclose(maps);
}
END_TEST

START_TEST(calls_over_one_rank)
{
    tn_tensor *x = tn_full(TN_SHAPE(2), 3), *i = tn_full_as(TN_SCALAR, 4, TN_I64, tn_cpu());
    assert_ok(tn_parallel_sum_(x));
    assert_ok(tn_parallel_mean_(x));
    assert_ok(tn_parallel_broadcast(x, 0));
    assert_values(x, 0, 3, 3);
    assert_ok(tn_parallel_sum_(i));
    assert_fails(tn_parallel_mean_(i), TN_E_DTYPE, "tn_parallel_mean_: ");
    assert_fails(tn_parallel_sum_(tn_to_dtype(x, TN_BF16)), TN_E_DTYPE, "want f32, f64 or i64");
    assert_fails(tn_parallel_broadcast(x, 1), TN_E_INDEX, "rank 1: want one of 0 to 0");
    assert_fails(tn_parallel_broadcast(NULL, 0), TN_E_INVALID, "tn_parallel_broadcast");
}
END_TEST

START_TEST(a_handle_alone_changes_nothing)
{
    tn_module *m = small();
    tn_data_parallel *p = tn_data_parallel_new(m, (tn_data_parallel_options){ 0 });
    assert_made(p);
    tn_module_drop(m); /* p keeps it */
    tn_tensor *weight = tn_get_parameter(m, "0.weight");
    ck_assert_int_eq(tn_data_parallel_unused(p, 0)->n, 4); /* no backward yet */
    tn_tensor *h = tn_forward(tn_get_submodule(m, "0"), tn_ones(TN_SHAPE(4, 3)));
    assert_ok(tn_backward(tn_sum(h, NULL, 0, false)));
    ck_assert(tn_grad(weight) != TN_NONE);
    assert_ok(tn_data_parallel_check(p));
    for (int rank = -1; rank < 1; rank++) {
        tn_list *unused = tn_data_parallel_unused(p, rank);
        ck_assert(unused->n == 2 && tn_list_has(unused, "1.weight"));
    }
    assert_ok(tn_set_requires_grad(tn_get_parameter(m, "1.weight"), false));
    ck_assert_int_eq(tn_data_parallel_unused(p, 0)->n, 1); /* 1.bias */
    assert_null(tn_data_parallel_unused(p, 1), TN_E_INDEX, "rank 1: want one of 0 to 0, or -1");
    ck_assert(tn_data_parallel_set_sync(p, false));
    ck_assert(!tn_data_parallel_sync(p));
    ck_assert(!tn_data_parallel_set_sync(p, true));
    tn_data_parallel_free(p);
    tn_data_parallel_free(NULL);
}
END_TEST

START_TEST(rules_of_buffers)
{
    tn_module *m = owned(small());
    tn_data_parallel *p =
        tn_data_parallel_new(m, (tn_data_parallel_options){ .buffers = TN_BUFFERS_MEAN });
    assert_made(p);
    ck_assert_int_eq(tn_data_parallel_buffers(p, "1.running_mean"), TN_BUFFERS_MEAN);
    assert_ok(tn_data_parallel_set_buffers(p, "1.", TN_BUFFERS_OWN));
    assert_ok(tn_data_parallel_set_buffers(p, "1.running_var", TN_BUFFERS_FIRST));
    ck_assert_int_eq(tn_data_parallel_buffers(p, "1.running_mean"), TN_BUFFERS_OWN);
    ck_assert_int_eq(tn_data_parallel_buffers(p, "1.running_var"), TN_BUFFERS_FIRST);
    assert_fails(tn_data_parallel_set_buffers(p, "1.", (tn_buffer_rule)9), TN_E_INVALID, "rule 9");
    assert_fails(tn_data_parallel_set_buffers(p, NULL, TN_BUFFERS_OWN), TN_E_INVALID, "prefix");
    tn_data_parallel_free(p);
}
END_TEST

START_TEST(batchnorm_over_one_rank)
{
    tn_module *m = owned(small()), *twin = owned(tn_module_clone(m)), *plain = owned(tn_relu_new());
    tn_tensor *x = tn_randn(TN_SHAPE(6, 3));
    assert_ok(tn_batch_norm_set_sync(m, true));
    ck_assert(tn_batch_norm_sync(tn_get_submodule(m, "1")));
    ck_assert(!tn_batch_norm_sync(tn_get_submodule(twin, "1")));
    assert_close(tn_forward(m, x), tn_forward(twin, x), 0, 0);
    assert_close(tn_get_buffer(m, "1.running_var"), tn_get_buffer(twin, "1.running_var"), 0, 0);
    assert_ok(tn_batch_norm_set_sync(m, false));
    ck_assert(!tn_batch_norm_sync(tn_get_submodule(m, "1")));
    assert_fails(tn_batch_norm_set_sync(plain, true), TN_E_INVALID, "no BatchNorm1d, 2d or 3d");
    ck_assert(!tn_batch_norm_sync(m));
    assert_error(TN_E_INVALID, "the module is a Sequential");
    assert_fails(tn_batch_norm_set_sync(NULL, true), TN_E_INVALID, "tn_batch_norm_set_sync");
}
END_TEST

/* A layer that is reached by a field without a slot is switched where it stands, and cloned. */
START_TEST(batchnorm_behind_another_field)
{
    box *m = box_new();
    assert_ok(tn_register_module(&m->base, "parts", &m->child, small()));
    tn_module *bn = m->other = tn_get_submodule(m->child, "1");
    assert_ok(tn_batch_norm_set_sync(&m->base, true));
    ck_assert(tn_batch_norm_sync(m->other));
    ck_assert_ptr_eq(tn_get_submodule(m->child, "1"), bn);
    box *copy = (box *)tn_module_clone(&m->base);
    assert_made(copy);
    tn_module_drop(&m->base);
    ck_assert_ptr_eq(copy->other, tn_get_submodule(copy->child, "1"));
    ck_assert(tn_batch_norm_sync(copy->other));
    tn_module_drop(&copy->base);
}
END_TEST

START_TEST(what_is_refused)
{
    tn_module *m = owned(small()), *empty = owned(tn_relu_new());
    assert_null(tn_data_parallel_new(NULL, (tn_data_parallel_options){ 0 }), TN_E_INVALID,
                "tn_data_parallel_new");
    assert_null(tn_data_parallel_new(m, (tn_data_parallel_options){ .bucket_bytes = -1 }),
                TN_E_INVALID, "bucket_bytes -1");
    assert_null(tn_data_parallel_new(m, (tn_data_parallel_options){ .buffers = 7 }), TN_E_INVALID,
                "buffers 7");
    assert_null(tn_data_parallel_new(empty, (tn_data_parallel_options){ 0 }), TN_E_INVALID,
                "has no parameters");
    ck_assert(!tn_data_parallel_sync(NULL));
    assert_error(TN_E_INVALID, "tn_data_parallel_sync");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("parallel");
    TCase *t = test_case(suite, "alone");
    tcase_add_test(t, alone_is_rank_0_of_1);
    tcase_add_test(t, calls_over_one_rank);
    tcase_add_test(t, a_handle_alone_changes_nothing);
    tcase_add_test(t, rules_of_buffers);
    tcase_add_test(t, batchnorm_over_one_rank);
    tcase_add_test(t, batchnorm_behind_another_field);
    tcase_add_test(t, what_is_refused);
    return suite;
}
