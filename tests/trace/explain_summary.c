/*
 * explain_summary.c - tn_module_summary, with its exact text.
 *
 * Seen to fail: without come_out's count (src/ext/diagnose/summary.c) a_summary ends early; with
 * alike() blind to texts and numbers a_summary_folds_what_repeats fails; without its hooks,
 * or in train mode, a_summary_with_shapes fails.
 */
#include "nn/boxes.h"
#include "models.h"
#include "trace/trace_read.h"

static const char *summary(tn_module *m)
{
    FILE *file = tmpfile();
    assert_ok(tn_module_summary(file, m));
    return text_of(file);
}

START_TEST(a_summary)
{
    static const char path[] =
        "a_path_that_is_longer_than_anything_that_a_column_was_ever_made_for_and_"
        "goes_on_and_on_and_on_and_on_and_on_and_on_and_on_and_on_and_on_and_on_"
        "and_on_until_it_is_longer_than_two_hundred_characters_in_all";
    box *m = box_new();
    /* clang-format off */
    ck_assert_str_eq(
        summary(&m->base),
"                                                         parameters      buffers\n"
"module                                                    (trained)    (carried)\n"
"--------------------------------------------------------------------------------\n"
"Box\n"
"--------------------------------------------------------------------------------\n"
"parameters 0 (trainable 0, frozen 0), 0 B\n"
"buffers 0 (saved 0, not saved 0), 0 B\n"
"together 0 B\n");
    /* clang-format on */
    tn_module *shared =
        tn_sequential(tn_linear_new(40, 30, (tn_linear_options){ .no_bias = true }));
    assert_ok(tn_register_module(&m->base, "encoder", &m->child, shared));
    assert_ok(tn_register_module(&m->base, "norm", NULL,
                                 tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 })));
    assert_ok(tn_register_module(&m->base, "decoder", &m->other, tn_module_keep(shared)));
    assert_ok(tn_register_module(&m->base, "none", NULL, TN_NO_MODULE));
    assert_ok(tn_register_parameter(&m->base, "tie", NULL, tn_get_parameter(shared, "0.weight")));
    assert_ok(tn_register_parameter(&m->base, "scale", NULL, tn_ones(TN_SCALAR)));
    assert_ok(tn_register_buffer(&m->base, "mask", NULL,
                                 tn_full_as(TN_SHAPE(2, 2), 1, TN_BOOL, tn_cpu()),
                                 TN_NON_PERSISTENT));
    assert_ok(tn_module_freeze(tn_get_submodule(&m->base, "norm")));
    /* clang-format off */
    ck_assert_str_eq(
        summary(&m->base),
"                                                         parameters      buffers\n"
"module                                                    (trained)    (carried)\n"
"--------------------------------------------------------------------------------\n"
"Box\n"
"  tie [30,40]                                                 1,200\n"
"  scale []                                                        1\n"
"  mask [2,2] bool, not saved                                                   4\n"
"  encoder: Sequential\n"
"    0: Linear(40, 30, no bias)\n"
"      weight [30,40], tied\n"
"  norm: BatchNorm1d(2, eps 1e-05, momentum 0.1), frozen\n"
"    weight [2], frozen                                            2\n"
"    bias [2], frozen                                              2\n"
"    running_mean [2], statistic                                                2\n"
"    running_var [2], statistic                                                 2\n"
"    num_batches_tracked [] i64, counter                                        1\n"
"  decoder: Sequential, tied to encoder\n"
"--------------------------------------------------------------------------------\n"
"parameters 1,205 (trainable 1,201, frozen 4), 4.7 KiB\n"
"buffers 9 (saved 5, not saved 4), 28 B\n"
"together 4.7 KiB\n");
    /* clang-format on */
    assert_ok(tn_module_delete(&m->base, "norm"));
    assert_ok(tn_register_module(&m->base, path, NULL, tn_dropout_new(0.5)));
    ck_assert_ptr_nonnull(strstr(summary(&m->base), path));
    tn_module_drop(&m->base);
}
END_TEST

/* Neighbours that differ only in their number are one row; a tie, another size or a frozen one is a
 * difference, and so is a gap in the numbers. */
START_TEST(a_summary_folds_what_repeats)
{
    tn_module *list = owned(tn_module_list_new());
    for (int i = 0; i < 9; i++)
        assert_ok(tn_module_append(
            list, tn_sequential(tn_linear_new(2, i == 4 ? 3 : 2, (tn_linear_options){ 0 }),
                                tn_relu_new(), tn_relu_new())));
    assert_ok(tn_module_freeze(tn_get_submodule(list, "7")));
    /* clang-format off */
    const char *wanted =
"ModuleList\n"
"  0 to 3: Sequential, 4 times\n"
"    0: Linear(2, 2)\n"
"      weight [2,2]                                                4\n"
"      bias [2]                                                    2\n"
"    1 to 2: ReLU, 2 times\n"
"  4: Sequential\n"
"    0: Linear(2, 3)\n"
"      weight [3,2]                                                6\n"
"      bias [3]                                                    3\n"
"    1 to 2: ReLU, 2 times\n"
"  5 to 6: Sequential, 2 times\n"
"    0: Linear(2, 2)\n"
"      weight [2,2]                                                4\n"
"      bias [2]                                                    2\n"
"    1 to 2: ReLU, 2 times\n"
"  7: Sequential, frozen\n"
"    0: Linear(2, 2), frozen\n"
"      weight [2,2], frozen                                        4\n"
"      bias [2], frozen                                            2\n"
"    1 to 2: ReLU, frozen, 2 times\n"
"  8: Sequential\n"
"    0: Linear(2, 2)\n"
"      weight [2,2]                                                4\n"
"      bias [2]                                                    2\n"
"    1 to 2: ReLU, 2 times\n"
"--------------------------------------------------------------------------------\n"
"parameters 57 (trainable 51, frozen 6), 228 B\n";
    /* clang-format on */
    const char *text = summary(list);
    ck_assert_msg(strstr(text, wanted) != NULL, "%s", text);
}
END_TEST

START_TEST(a_summary_with_shapes)
{
    tn_manual_seed(1);
    tn_module *m = owned(tn_sequential(tn_conv2d_new(1, 4, 3, (tn_conv2d_options){ 0 }),
                                       tn_batch_norm2d_new(4, (tn_batch_norm_options){ 0 }),
                                       tn_flatten_new(1, -1), tn_dropout_new(0.5),
                                       tn_linear_new(144, 2, (tn_linear_options){ 0 })));
    tn_tensor *x = random_as(TN_SHAPE(3, 1, 8, 8), -1, 1, 1, TN_F32);
    uint64_t before = state_hash(m);
    FILE *file = tmpfile();
    assert_ok(tn_module_summary_with(file, m, x));
    const char *text = text_of(file);
    static const char *const row[] = { "Sequential -> [3,2]\n",
                                       "  0: Conv2d(1, 4, 3) -> [3,4,6,6]\n",
                                       "  2: Flatten(1, -1) -> [3,144]\n",
                                       "  4: Linear(144, 2) -> [3,2]\n" };
    for (int i = 0; i < 4; i++)
        ck_assert_msg(strstr(text, row[i]), "lacks \"%s\": %s", row[i], text);
    ck_assert_uint_eq(state_hash(m), before); /* the statistics, too */
    ck_assert(tn_training(m) && tn_training(tn_module_child(m, 1)));
    ck_assert_ptr_null(strstr(summary(m), "->"));
    assert_fails(tn_module_summary_with(stderr, m, tn_ones(TN_SHAPE(3, 2, 8, 8))), TN_E_SHAPE,
                 "tn_module_summary_with: tn_conv2d: x [3,2,8,8]");
    assert_fails(tn_module_summary_with(stderr, m, NULL), TN_E_INVALID, "x is NULL");
    tn_module *norm = owned(tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 }));
    file = tmpfile(); /* one row, which a batch norm refuses in train mode */
    assert_ok(tn_module_summary_with(file, norm, tn_ones(TN_SHAPE(1, 4))));
    ck_assert_ptr_nonnull(strstr(text_of(file), "-> [1,4]"));
}
END_TEST

void explain_summary_cases(Suite *suite)
{
    TCase *t = test_case(suite, "summary");
    tcase_add_test(t, a_summary);
    tcase_add_test(t, a_summary_with_shapes);
    tcase_add_test(t, a_summary_folds_what_repeats);
}
