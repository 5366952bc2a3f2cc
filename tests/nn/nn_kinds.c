/*
 * nn_kinds.c - the kinds of slots side by side: one name, one kind; which are listed, saved, moved
 * and loaded, and what stands in a plain field of the struct.
 */
#include "nn/boxes.h"

void nn_kinds_cases(Suite *suite);

/* A weight; buffers: a persistent, b absent and c not persistent; a child. */
static box *every_kind(void)
{
    box *m = tn_module_new(&box_type);
    assert_ok(tn_register_parameter(&m->base, "weight", NULL, tn_ones(TN_SHAPE(2))));
    assert_ok(tn_register_buffer(&m->base, "a", &m->a, tn_ones(TN_SHAPE(3)), TN_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "b", &m->b, TN_NONE, TN_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "c", &m->c, tn_ones(TN_SHAPE(4)), TN_NON_PERSISTENT));
    assert_ok(tn_register_module(&m->base, "child", &m->child, tn_identity_new()));
    owned(tn_module_done(&m->base));
    return m;
}

START_TEST(AT_04_one_name_one_kind)
{
    tn_module *m = &every_kind()->base;
    assert_fails(tn_register_module(m, "a", NULL, tn_identity_new()), TN_E_NAME, "a");
    assert_fails(tn_register_buffer(m, "child", NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT),
                 TN_E_NAME, "child");
    assert_fails(tn_register_parameter(m, "a", NULL, tn_ones(TN_SHAPE(1))), TN_E_NAME, "a");
    assert_names(tn_state_dict(m, ""), "weight a");
}
END_TEST

/* Its place is other's, which is no slot here. */
START_TEST(AT_05_TO_08_a_plain_field_is_nothing)
{
    box *m = every_kind();
    tn_tensor **plain = (tn_tensor **)(void *)&m->other;
    *plain = tn_keep(tn_ones(TN_SHAPE(5)));
    assert_names(tn_state_dict(&m->base, ""), "weight a");
    assert_names(tn_buffers(&m->base), "a c");
    assert_ok(tn_module_to_dtype(&m->base, TN_F64));
    ck_assert_int_eq(tn_dtype_of(m->a), TN_F64);
    ck_assert_int_eq(tn_dtype_of(m->c), TN_F64);
    ck_assert_int_eq(tn_dtype_of(*plain), TN_F32);
    tn_drop(*plain);
}
END_TEST

START_TEST(EN_08_persistent_buffers_only)
{
    tn_module *m = &every_kind()->base;
    assert_names(tn_buffers_with(m, (tn_walk_options){ 0 }), "a c");
    assert_names(tn_buffers_with(m, (tn_walk_options){ .persistent_only = true }), "a");
}
END_TEST

/* The absent and the passing; RB-13: ignored, not loaded. */
START_TEST(LD_09_empty_and_passing_slots_are_unexpected)
{
    for (const char *name = "b"; *name; name = *name == 'b' ? "c" : "") {
        box *m = every_kind();
        tn_list *state = tn_state_dict(&m->base, "");
        tn_load_report report;
        assert_ok(tn_list_add(state, name, tn_full(TN_SHAPE(4), 7)));
        assert_fails(tn_load_state_dict(&m->base, state, (tn_load_options){ 0 }, NULL), TN_E_NAME,
                     name);
        assert_ok(
            tn_load_state_dict(&m->base, state, (tn_load_options){ .non_strict = true }, &report));
        ck_assert_int_eq(report.unexpected, 1);
        assert_values(m->c, 0, 1, 1, 1, 1);
    }
}
END_TEST

void nn_kinds_cases(Suite *suite)
{
    add_tests(test_case(suite, "kinds"), AT_04_one_name_one_kind,
              AT_05_TO_08_a_plain_field_is_nothing, EN_08_persistent_buffers_only,
              LD_09_empty_and_passing_slots_are_unexpected);
}
