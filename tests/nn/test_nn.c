/*
 * test_nn.c - modules: registration, names, walks, construction. The ids are rows of the project's
 * table of PyTorch semantics.
 *
 * Seen to fail: without tni_slot_sync in tni_slot_put (src/nn/module.c) four tests fail, the first
 * RB_08_RB_13_RB_14_persistence: a field no longer follows its slot.
 */
#include "boxes.h"

/* ---- buffers --------------------------------------------------------------------------------- */

START_TEST(RB_01_RP_01_before_the_module_is_made)
{
    box m = { .base = { &box_type, NULL } };
    assert_fails(tn_register_buffer(&m.base, "a", &m.a, tn_ones(TN_SHAPE(2)), TN_PERSISTENT),
                 TN_E_STATE, "tn_module_new");
    assert_fails(tn_register_parameter(&m.base, "a", &m.a, tn_ones(TN_SHAPE(2))), TN_E_STATE,
                 "tn_module_new");
}
END_TEST

START_TEST(RB_02_RB_03_RB_04_RP_02_RP_03_RP_04_bad_names)
{
    box *m = box_new();
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_fails(tn_register_buffer(&m->base, NULL, NULL, t, TN_PERSISTENT), TN_E_INVALID, "name");
    assert_fails(tn_register_buffer(&m->base, "a.b", NULL, t, TN_PERSISTENT), TN_E_NAME, "dot");
    assert_fails(tn_register_buffer(&m->base, ".", NULL, t, TN_PERSISTENT), TN_E_NAME, "dot");
    assert_fails(tn_register_buffer(&m->base, "", NULL, t, TN_PERSISTENT), TN_E_NAME, "empty");
    assert_fails(tn_register_parameter(&m->base, NULL, NULL, t), TN_E_INVALID, "name");
    assert_fails(tn_register_parameter(&m->base, "a.b", NULL, t), TN_E_NAME, "dot");
    assert_fails(tn_register_parameter(&m->base, "", NULL, t), TN_E_NAME, "empty");
    ck_assert_int_eq(tn_buffers(&m->base)->n, 0);
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(RB_05_RP_05_name_taken)
{
    box *m = box_new();
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_ok(tn_register_parameter(&m->base, "p", &m->a, tn_ones(TN_SHAPE(3))));
    assert_ok(tn_register_module(&m->base, "m", &m->child, tn_identity_new()));
    assert_ok(tn_register_buffer(&m->base, "b", &m->b, t, TN_PERSISTENT));
    assert_fails(tn_register_buffer(&m->base, "p", NULL, t, TN_PERSISTENT), TN_E_NAME,
                 "a parameter");
    assert_fails(tn_register_buffer(&m->base, "m", NULL, t, TN_PERSISTENT), TN_E_NAME, "a child");
    assert_fails(tn_register_buffer(&m->base, "forward", NULL, t, TN_PERSISTENT), TN_E_NAME,
                 "already exists");
    assert_fails(tn_register_buffer(&m->base, "training", NULL, t, TN_PERSISTENT), TN_E_NAME,
                 "already exists");
    assert_fails(tn_register_parameter(&m->base, "b", NULL, t), TN_E_NAME, "a buffer");
    assert_fails(tn_register_parameter(&m->base, "m", NULL, t), TN_E_NAME, "a child");
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(RB_06_value_is_checked_last)
{
    box *m = box_new();
    assert_fails(tn_register_buffer(&m->base, "x.y", NULL, NULL, TN_PERSISTENT), TN_E_NAME, "dot");
    assert_fails(tn_register_buffer(&m->base, "mean", NULL, NULL, TN_PERSISTENT), TN_E_INVALID,
                 "\"mean\"");
    /* poison propagates silently: the message stays the first one */
    tn_tensor *poison = tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3));
    ck_assert_int_eq(tn_register_buffer(&m->base, "mean", NULL, poison, TN_PERSISTENT), TN_E_SHAPE);
    assert_error(TN_E_SHAPE, "reshape");
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(RB_07_replaced_in_place)
{
    box *m = box_new();
    tn_module *base = &m->base;
    assert_ok(tn_register_buffer(base, "one", &m->a, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_ok(tn_register_buffer(base, "two", &m->b, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    tn_tensor *other = tn_full_as(TN_SHAPE(5), 7, TN_I64, tn_cpu());
    assert_ok(tn_register_buffer(base, "one", &m->a, other, TN_PERSISTENT));
    assert_names(tn_buffers(base), "one two");
    ck_assert_ptr_eq(m->a, other);
    /* registered through another field, then through none: the old field is cleared, the slot keeps
     * its tensor */
    assert_ok(tn_register_buffer(base, "one", &m->c, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    ck_assert_ptr_eq(m->a, TN_NONE);
    tn_tensor *last = tn_zeros(TN_SHAPE(4));
    assert_ok(tn_register_buffer(base, "one", NULL, last, TN_PERSISTENT));
    ck_assert_ptr_eq(m->c, last);
    assert_names(tn_buffers(base), "one two");
    tn_module_drop(base);
}
END_TEST

START_TEST(RB_08_RB_13_RB_14_persistence)
{
    box *m = box_new();
    tn_module *base = &m->base;
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_ok(tn_register_buffer(base, "mask", &m->a, t, TN_NON_PERSISTENT));
    assert_names(tn_buffers(base), "mask");
    assert_names(tn_state_dict(base, ""), "");
    assert_names(tn_buffers_with(base, (tn_walk_options){ .persistent_only = true }), "");
    ck_assert(!tn_buffers(base)->entry[0].persistent);
    tn_list *file = tn_list_new();
    assert_ok(tn_list_add(file, "mask", tn_zeros(TN_SHAPE(2))));
    assert_fails(tn_load_state_dict(base, file, (tn_load_options){ 0 }, NULL), TN_E_NAME,
                 "\"mask\"");
    assert_ok(tn_load_state_dict(base, file, (tn_load_options){ .non_strict = true }, NULL));
    assert_values(m->a, 0, 1, 1);
    /* assigning keeps it, moving keeps it, a clone keeps it */
    assert_ok(tn_assign(&m->a, tn_zeros(TN_SHAPE(3))));
    assert_ok(tn_module_to_dtype(base, TN_F64));
    ck_assert_int_eq(tn_dtype_of(m->a), TN_F64);
    assert_names(tn_state_dict(base, ""), "");
    tn_module *copy = tn_module_clone(base);
    assert_names(tn_state_dict(copy, ""), "");
    assert_names(tn_buffers(copy), "mask");
    tn_module_drop(copy);
    /* registering anew flips it, deleting forgets it */
    assert_ok(tn_register_buffer(base, "mask", &m->a, t, TN_PERSISTENT));
    assert_names(tn_state_dict(base, ""), "mask");
    assert_ok(tn_module_delete(base, "mask"));
    ck_assert_ptr_eq(m->a, TN_NONE);
    assert_names(tn_buffers(base), "");
    tn_module_drop(base);
}
END_TEST

START_TEST(RB_09_absent)
{
    box *m = box_new();
    tn_module *base = &m->base;
    assert_ok(tn_register_buffer(base, "mean", &m->a, TN_NONE, TN_PERSISTENT));
    assert_ok(tn_register_buffer(base, "var", &m->b, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    ck_assert_ptr_eq(m->a, TN_NONE);
    ck_assert(tn_is_none(tn_get_buffer(base, "mean")));
    assert_names(tn_buffers(base), "var");
    tn_list *file = tn_list_new();
    assert_ok(tn_list_add(file, "mean", tn_ones(TN_SHAPE(1))));
    assert_ok(tn_list_add(file, "var", tn_ones(TN_SHAPE(1))));
    assert_fails(tn_load_state_dict(base, file, (tn_load_options){ 0 }, NULL), TN_E_NAME,
                 "unexpected: \"mean\"");
    assert_ok(tn_assign(&m->a, tn_zeros(TN_SHAPE(1))));
    assert_names(tn_buffers(base), "mean var");
    tn_module_drop(base);
}
END_TEST

START_TEST(RB_10_RB_11_RB_15_stored_by_reference)
{
    box *m = box_new();
    tn_module *base = &m->base;
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_ok(tn_set_requires_grad(t, true));
    assert_ok(tn_register_buffer(base, "leaf", &m->a, t, TN_PERSISTENT));
    ck_assert_ptr_eq(m->a, t);
    ck_assert(tn_requires_grad(m->a));
    tn_tensor *made = tn_mul_scalar(t, 3);
    assert_ok(tn_register_buffer(base, "made", &m->b, made, TN_PERSISTENT));
    ck_assert(!tn_is_leaf(m->b));
    assert_ok(tn_register_buffer(base, "ids", &m->c, tn_full_as(TN_SHAPE(2), 1, TN_I64, tn_cpu()),
                                 TN_PERSISTENT));
    /* it receives a gradient, which zero_grad leaves alone */
    assert_ok(tn_backward(tn_sum(m->b, NULL, 0, false)));
    assert_values(tn_grad(t), 0, 3, 3);
    assert_ok(tn_module_zero_grad(base));
    assert_values(tn_grad(t), 0, 3, 3);
    ck_assert_int_eq(tn_parameters(base)->n, 0);
    /* a parameter may be a buffer elsewhere: then it is only among the buffers there */
    tn_module *fc = linear(2, 2);
    box *n = box_new();
    assert_ok(
        tn_register_buffer(&n->base, "w", &n->a, tn_get_parameter(fc, "weight"), TN_PERSISTENT));
    assert_names(tn_parameters(&n->base), "");
    assert_names(tn_buffers(&n->base), "w");
    tn_module_drop(&n->base);
    tn_module_drop(fc);
    tn_module_drop(base);
}
END_TEST

START_TEST(RB_12_legal_names)
{
    static const char *const legal[] = { "a b", "\xc3\xa9t\xc3\xa9", "0", "a/b", "_", "mean:0" };
    box *m = box_new();
    for (size_t i = 0; i < sizeof legal / sizeof *legal; i++)
        assert_ok(
            tn_register_buffer(&m->base, legal[i], NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    ck_assert_int_eq(tn_buffers(&m->base)->n, 6);
    tn_module_drop(&m->base);
}
END_TEST

/* ---- parameters ------------------------------------------------------------------------------ */

START_TEST(RP_06_absent_then_assigned)
{
    box *m = box_new();
    tn_module *base = &m->base;
    assert_ok(tn_register_parameter(base, "bias", &m->a, TN_NONE));
    assert_ok(tn_register_parameter(base, "weight", &m->b, tn_ones(TN_SHAPE(2))));
    assert_names(tn_parameters(base), "weight");
    assert_names(tn_state_dict(base, ""), "weight");
    assert_ok(tn_module_to_dtype(base, TN_F64));
    assert_ok(tn_assign(&m->a, tn_zeros(TN_SHAPE(2))));
    assert_names(tn_parameters(base), "bias weight");
    ck_assert(tn_requires_grad(m->a));
    tn_module_drop(base);
}
END_TEST

START_TEST(RP_07_RP_08_RP_09_wrong_values)
{
    box *m = box_new();
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_fails(tn_register_parameter(&m->base, "w", NULL, NULL), TN_E_INVALID, "\"w\"");
    assert_ok(tn_set_requires_grad(t, true));
    tn_tensor *made = tn_mul_scalar(t, 2);
    assert_fails(tn_register_parameter(&m->base, "w", &m->a, made), TN_E_STATE,
                 "compute it in forward");
    assert_ok(tn_register_parameter(&m->base, "w", &m->a, tn_detach(made)));
    ck_assert(tn_requires_grad(m->a) && tn_is_leaf(m->a));
    assert_fails(tn_assign(&m->a, made), TN_E_STATE, "leaf");
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(RP_10_RP_11_frozen)
{
    box *m = box_new();
    tn_module *base = &m->base;
    tn_tensor *ids = tn_full_as(TN_SHAPE(2), 1, TN_I64, tn_cpu());
    assert_fails(tn_register_parameter(base, "ids", &m->a, ids), TN_E_DTYPE, "i64");
    assert_ok(tn_register_frozen(base, "ids", &m->a, ids));
    assert_ok(tn_register_frozen(base, "w", &m->b, tn_ones(TN_SHAPE(3))));
    ck_assert(!tn_requires_grad(m->b));
    assert_names(tn_parameters(base), "ids w");
    assert_names(tn_state_dict(base, ""), "ids w");
    ck_assert_int_eq(tn_count_parameters(base, false), 5);
    ck_assert_int_eq(tn_count_parameters(base, true), 0);
    /* an assigned tensor stays frozen; turning gradients on skips what cannot have one */
    assert_ok(tn_assign(&m->b, tn_ones(TN_SHAPE(3))));
    ck_assert(!tn_requires_grad(m->b));
    assert_ok(tn_module_set_requires_grad(base, true));
    ck_assert(tn_requires_grad(m->b) && !tn_requires_grad(m->a));
    tn_module_drop(base);
}
END_TEST

START_TEST(RP_12_over_a_buffer)
{
    box *m = box_new();
    assert_ok(tn_register_buffer(&m->base, "x", &m->a, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_fails(tn_register_parameter(&m->base, "x", &m->b, tn_ones(TN_SHAPE(2))), TN_E_NAME,
                 "a buffer");
    ck_assert_ptr_null(m->b);
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(fields_lie_in_the_struct_and_belong_to_one_slot)
{
    box *m = box_new();
    tn_tensor *elsewhere = NULL;
    assert_fails(tn_register_buffer(&m->base, "a", &elsewhere, tn_ones(TN_SHAPE(2)), TN_PERSISTENT),
                 TN_E_INVALID, "outside the struct");
    assert_ok(tn_register_buffer(&m->base, "a", &m->a, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_fails(tn_register_buffer(&m->base, "b", &m->a, tn_ones(TN_SHAPE(2)), TN_PERSISTENT),
                 TN_E_INVALID, "already follows \"a\"");
    assert_fails(tn_assign(&elsewhere, tn_ones(TN_SHAPE(2))), TN_E_NAME, "no registered slot");
    assert_fails(tn_assign(&m->b, tn_ones(TN_SHAPE(2))), TN_E_NAME, "no registered slot of Box");
    tn_module_drop(&m->base);
}
END_TEST

/* ---- children -------------------------------------------------------------------------------- */

START_TEST(RM_02_order_of_checks)
{
    box *m = box_new();
    tn_module *base = &m->base;
    assert_ok(tn_register_buffer(base, "b", NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    assert_fails(tn_register_module(base, "x.y", NULL, NULL), TN_E_INVALID, "is NULL");
    assert_fails(tn_register_module(base, NULL, NULL, tn_identity_new()), TN_E_INVALID, "name");
    assert_fails(tn_register_module(base, "b", NULL, tn_identity_new()), TN_E_NAME, "a buffer");
    assert_fails(tn_register_module(base, "forward", NULL, tn_identity_new()), TN_E_NAME,
                 "already exists");
    assert_fails(tn_register_module(base, "x.y", NULL, tn_identity_new()), TN_E_NAME, "dot");
    assert_fails(tn_register_module(base, "", NULL, tn_identity_new()), TN_E_NAME, "empty");
    /* poison: its message stays */
    assert_null(tn_linear_new(0, 3, (tn_linear_options){ 0 }), TN_E_INVALID, "in_features");
    ck_assert_int_eq(
        tn_register_module(base, "fc", &m->child, tn_linear_new(0, 3, (tn_linear_options){ 0 })),
        TN_E_INVALID);
    assert_error(TN_E_INVALID, "in_features");
    ck_assert_int_eq(tn_module_children(base), 0);
    tn_module_drop(base);
}
END_TEST

START_TEST(RM_03_RM_04_replaced_and_absent)
{
    box *m = box_new();
    tn_module *base = &m->base;
    assert_ok(tn_register_module(base, "a", &m->child, linear(1, 1)));
    assert_ok(tn_register_module(base, "b", &m->other, linear(1, 1)));
    tn_module *second = linear(2, 2);
    assert_ok(tn_register_module(base, "a", &m->child, second));
    ck_assert_ptr_eq(m->child, second);
    assert_names(tn_parameters(base), "a.weight a.bias b.weight b.bias");
    assert_ok(tn_register_module(base, "a", &m->child, TN_NO_MODULE));
    assert_names(tn_parameters(base), "b.weight b.bias");
    ck_assert_ptr_eq(m->child, TN_NO_MODULE);
    ck_assert_int_eq(tn_module_children(base), 2);
    ck_assert_ptr_eq(tn_module_child(base, 0), TN_NO_MODULE);
    ck_assert_str_eq(tn_module_child_name(base, 1), "b");
    assert_null(tn_module_child(base, 2), TN_E_INDEX, "it has 2");
    tn_module_drop(base);
}
END_TEST

START_TEST(RM_05_cycles_are_refused)
{
    box *m = box_new(), *n = box_new();
    assert_fails(tn_register_module(&m->base, "self", NULL, tn_module_keep(&m->base)), TN_E_STATE,
                 "ancestor");
    assert_ok(tn_register_module(&m->base, "n", NULL, tn_module_keep(&n->base)));
    assert_fails(tn_register_module(&n->base, "m", NULL, tn_module_keep(&m->base)), TN_E_STATE,
                 "ancestor");
    tn_module_drop(&n->base);
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(RM_06_containers_number_their_children)
{
    tn_module *s = tn_sequential(linear(2, 3), tn_relu_new(), linear(3, 1));
    tn_module *l = tn_module_list_new();
    assert_ok(tn_module_append(l, linear(1, 1)));
    assert_ok(tn_module_append(l, s));
    assert_names(tn_parameters(l), "0.weight 0.bias 1.0.weight 1.0.bias 1.2.weight 1.2.bias");
    assert_null(tn_forward(l, tn_ones(TN_SHAPE(1, 1))), TN_E_UNSUPPORTED, "no forward");
    box *m = box_new();
    assert_fails(tn_module_append(&m->base, tn_identity_new()), TN_E_INVALID, "Box");
    tn_module_drop(&m->base);
    /* deleting leaves a gap that is not reused */
    assert_ok(tn_module_append(l, tn_identity_new()));
    assert_ok(tn_module_delete(l, "0"));
    assert_ok(tn_module_append(l, linear(1, 1)));
    ck_assert_str_eq(tn_module_child_name(l, 2), "3");
    tn_module_drop(l);
}
END_TEST

/* ---- access ---------------------------------------------------------------------------------- */

START_TEST(AT_02_AT_03_assigning)
{
    box *m = box_new();
    tn_module *base = &m->base;
    assert_ok(tn_register_parameter(base, "w", &m->a, tn_ones(TN_SHAPE(2))));
    assert_ok(tn_register_buffer(base, "b", &m->b, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_ok(tn_assign(&m->a, TN_NONE)); /* the slot stays, the key goes */
    assert_names(tn_state_dict(base, ""), "b");
    assert_ok(tn_assign(&m->b, tn_full_as(TN_SHAPE(3, 4), 1, TN_BOOL, tn_cpu())));
    ck_assert_int_eq(tn_numel(tn_get_buffer(base, "b")), 12);
    assert_ok(tn_module_set(base, "b", TN_NONE));
    assert_names(tn_state_dict(base, ""), "");
    ck_assert_ptr_eq(m->b, TN_NONE);
    tn_module_drop(base);
}
END_TEST

START_TEST(AT_06_paths)
{
    tn_module *s = tn_sequential(linear(2, 3), norm2d(3));
    ck_assert_ptr_eq(tn_get_submodule(s, ""), s);
    assert_made(tn_get_submodule(s, "1"));
    assert_made(tn_get_parameter(s, "0.weight"));
    assert_made(tn_get_buffer(s, "1.running_mean"));
    assert_null(tn_get_parameter(s, "1.running_mean"), TN_E_NAME,
                "is a buffer of BatchNorm2d: want a parameter");
    assert_null(tn_get_buffer(s, "1.weight"), TN_E_NAME, "is a parameter");
    assert_null(tn_get_buffer(s, "1.mean"), TN_E_NAME, "BatchNorm2d has no \"mean\"");
    assert_null(tn_get_parameter(s, "7.weight"), TN_E_NAME, "Sequential has no child \"7\"");
    assert_null(tn_get_submodule(s, "0.weight"), TN_E_NAME, "not as a child");
    assert_ok(tn_module_set(s, "1.running_mean", tn_ones(TN_SHAPE(3))));
    assert_values(tn_get_buffer(s, "1.running_mean"), 0, 1, 1, 1);
    assert_fails(tn_module_set(s, "0", tn_ones(TN_SHAPE(3))), TN_E_NAME, "is a child");
    assert_fails(tn_module_delete(s, "nothing"), TN_E_NAME, "nothing");
    tn_module_drop(s);
}
END_TEST

/* ---- enumeration ----------------------------------------------------------------------------- */

/* outer: buffer b0, child in (child deep: linear), parameter p0 registered last */
static box *nested(void)
{
    box *outer = box_new(), *inner = box_new();
    assert_ok(
        tn_register_buffer(&outer->base, "b0", &outer->a, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    assert_ok(tn_register_parameter(&inner->base, "pi", &inner->a, tn_ones(TN_SHAPE(1))));
    assert_ok(tn_register_module(&inner->base, "deep", &inner->child, linear(1, 1)));
    assert_ok(tn_register_module(&outer->base, "in", &outer->child, &inner->base));
    assert_ok(tn_register_parameter(&outer->base, "p0", &outer->b, tn_ones(TN_SHAPE(1))));
    return outer;
}

START_TEST(EN_01_EN_02_EN_06_order_and_prefix)
{
    box *m = nested();
    assert_names(tn_parameters(&m->base), "p0 in.pi in.deep.weight in.deep.bias");
    assert_names(tn_named_parameters(&m->base, "gen."),
                 "gen.p0 gen.in.pi gen.in.deep.weight gen.in.deep.bias");
    assert_names(tn_parameters_with(&m->base, (tn_walk_options){ .no_recurse = true }), "p0");
    assert_names(tn_buffers(&m->base), "b0");
    tn_list *list = tn_parameters(&m->base);
    ck_assert_int_eq(list->entry[1].kind, TN_PARAMETER);
    ck_assert_ptr_eq(list->entry[1].owner, m->child);
    ck_assert_ptr_eq(list->entry[0].tensor, m->b);
    tn_module_drop(&m->base);
    /* the list keeps its tensors, and the owners are only looked at while they live */
    ck_assert_double_eq(tn_item(list->entry[0].tensor), 1);
}
END_TEST

START_TEST(EN_03_EN_04_EN_05_duplicates)
{
    box *m = box_new();
    tn_module *base = &m->base;
    tn_module *shared = linear(1, 1);
    assert_ok(tn_register_module(base, "x", &m->child, tn_module_keep(shared)));
    assert_ok(tn_register_module(base, "y", &m->other, shared));
    assert_names(tn_parameters(base), "x.weight x.bias");
    assert_names(tn_parameters_with(base, (tn_walk_options){ .keep_duplicates = true }),
                 "x.weight x.bias y.weight y.bias");
    tn_tensor *t = tn_ones(TN_SHAPE(4));
    assert_ok(tn_register_parameter(base, "tied", &m->a, tn_get_parameter(base, "x.weight")));
    assert_ok(tn_register_parameter(base, "whole", &m->b, t));
    assert_ok(tn_register_parameter(base, "part", &m->c, tn_detach(tn_narrow(t, 0, 0, 2))));
    assert_names(tn_parameters(base), "tied whole part x.bias"); /* told apart by identity */
    assert_ok(tn_register_buffer(base, "also", NULL, t, TN_PERSISTENT));
    assert_names(tn_buffers(base), "also"); /* kinds are counted apart */
    ck_assert_int_eq(tn_count_parameters(base, false), 1 + 4 + 2 + 1);
    tn_module_drop(base);
}
END_TEST

static tn_status append_name(const char *path, tn_module *m, void *user)
{
    char *text = user;
    size_t n = strlen(text);
    snprintf(text + n, 512 - n, "%s:%s ", path, m->type->name);
    return TN_OK;
}

static tn_status append_type(tn_module *m, void *user)
{
    return append_name("", m, user);
}

static tn_status stop_at_second(const char *path, tn_module *m, void *user)
{
    (void)path;
    (void)m;
    return ++*(int *)user == 2 ? TN_E_IO : TN_OK;
}

START_TEST(EN_07_visiting)
{
    box *m = nested();
    char text[512] = "";
    assert_ok(tn_named_modules(&m->base, append_name, text));
    ck_assert_str_eq(text, ":Box in:Box in.deep:Linear ");
    text[0] = '\0';
    /* a child under two names of one parent is visited once, under two parents twice */
    tn_module *deep = tn_module_keep(tn_get_submodule(&m->base, "in.deep"));
    assert_ok(tn_register_module(&m->base, "again", NULL, deep));
    assert_ok(tn_register_module(m->child, "twin", NULL, tn_module_keep(deep)));
    assert_ok(tn_module_apply(&m->base, append_type, text));
    ck_assert_str_eq(text, ":Linear :Box :Linear :Box ");
    int n = 0;
    ck_assert_int_eq(tn_named_modules(&m->base, stop_at_second, &n), TN_E_IO);
    ck_assert_int_eq(n, 2);
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(lists_of_several_models)
{
    tn_module *g = linear(1, 2), *d = linear(2, 1);
    tn_list *both = tn_list_concat(tn_named_parameters(g, "gen."), tn_named_parameters(d, "dis."));
    assert_names(both, "gen.weight gen.bias dis.weight dis.bias");
    assert_null(tn_list_concat(tn_parameters(g), tn_parameters(d)), TN_E_NAME,
                "\"weight\": [2,1] of Linear and [1,2] of Linear");
    tn_tensor *t = tn_ones(TN_SHAPE(3));
    assert_ok(tn_list_add(both, "scale", t));
    assert_fails(tn_list_add(both, "scale", t), TN_E_NAME, "already");
    assert_fails(tn_list_add(both, "", t), TN_E_INVALID, "empty");
    ck_assert_ptr_eq(tn_list_get(both, "scale"), t);
    ck_assert_ptr_eq(tn_list_get(both, "dis.bias"), tn_get_parameter(d, "bias"));
    assert_null(tn_list_get(both, "nope"), TN_E_NAME, "nope");
    for (int i = 0; i < 100; i++) { /* past every growth of the index */
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        assert_ok(tn_list_add(both, name, t));
    }
    ck_assert_ptr_eq(tn_list_get(both, "gen.weight"), tn_get_parameter(g, "weight"));
    ck_assert_int_eq(both->n, 105);
    tn_module_drop(g);
    tn_module_drop(d);
}
END_TEST

/* ---- train, eval, gradients ------------------------------------------------------------------ */

START_TEST(MD_01_MD_02_MD_03_training)
{
    tn_module *m = tn_sequential(norm2d(1), tn_dropout_new(0.5));
    ck_assert(tn_training(m) && tn_training(tn_module_child(m, 0)));
    assert_ok(tn_eval(m));
    ck_assert(!tn_training(m) && !tn_training(tn_module_child(m, 1)));
    assert_ok(tn_module_append(m, tn_dropout_new(0.5)));
    ck_assert(tn_training(tn_module_child(m, 2))); /* added later: keeps its own flag */
    assert_ok(tn_train(m, true));
    assert_ok(tn_eval(tn_module_child(m, 0)));
    ck_assert(tn_training(m) && !tn_training(tn_module_child(m, 0)));
    assert_ok(tn_train(m, true));
    ck_assert(tn_training(tn_module_child(m, 0)));
    tn_module_drop(m);
    m = linear(1, 1);
    assert_ok(tn_eval(m)); /* which does not turn recording off */
    ck_assert(tn_requires_grad(tn_forward(m, tn_ones(TN_SHAPE(1, 1)))));
    tn_module_drop(m);
}
END_TEST

START_TEST(MD_04_frozen_parameters_do_not_stop_statistics)
{
    tn_module *m = norm2d(2);
    tn_tensor *x = random_as(TN_SHAPE(3, 2, 2, 2), -1, 1, 5, TN_F32);
    assert_ok(tn_module_set_requires_grad(m, false));
    ck_assert(!tn_requires_grad(tn_get_parameter(m, "weight")));
    uint64_t before = tn_hash(tn_get_buffer(m, "running_mean"));
    TN_NO_GRAD
    {
        assert_made(tn_forward(m, x));
    }
    ck_assert(tn_hash(tn_get_buffer(m, "running_mean")) != before);
    tn_module_drop(m);
}
END_TEST

START_TEST(MD_05_zero_grad)
{
    tn_module *m = linear(2, 1);
    assert_ok(tn_backward(tn_sum(tn_forward(m, tn_ones(TN_SHAPE(3, 2))), NULL, 0, false)));
    assert_values(tn_grad(tn_get_parameter(m, "bias")), 0, 3);
    assert_ok(tn_module_zero_grad(m));
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(m, "bias"))));
    tn_module_drop(m);
}
END_TEST

/* ---- the constructor ------------------------------------------------------------------------- */

typedef struct net {
    tn_module base;
    tn_module *fc1, *fc2;
    tn_tensor *mean;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x)
{
    net *m = (net *)self;
    x = tn_sub(x, m->mean);
    return tn_forward(m->fc2, tn_relu(tn_forward(m->fc1, x)));
}

static const tn_module_type net_type = { .name = "Net",
                                         .size = sizeof(net),
                                         .forward = net_forward };

static tn_module *net_new(tn_tensor *mean, int64_t in, int64_t hidden)
{
    net *m = tn_module_new(&net_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "fc1", &m->fc1,
                       tn_linear_new(in, hidden, (tn_linear_options){ 0 }));
    tn_register_module(&m->base, "fc2", &m->fc2,
                       tn_linear_new(hidden, 2, (tn_linear_options){ 0 }));
    tn_register_buffer(&m->base, "mean", &m->mean, mean, TN_PERSISTENT);
    return tn_module_done(&m->base);
}

START_TEST(a_module_of_ones_own)
{
    tn_module *m = net_new(tn_ones(TN_SHAPE(3)), 3, 4);
    assert_made(m);
    assert_names(tn_state_dict(m, ""), "mean fc1.weight fc1.bias fc2.weight fc2.bias");
    tn_tensor *y = tn_forward(m, tn_ones(TN_SHAPE(5, 3)));
    assert_made(y);
    ck_assert_int_eq(tn_size(y, 1), 2);
    assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
    ck_assert(!tn_is_none(tn_grad(tn_get_parameter(m, "fc1.weight"))));
    tn_module_drop(m);
}
END_TEST

START_TEST(a_failed_constructor_frees_all_and_keeps_the_first_message)
{
    int64_t live = tn_live_tensors();
    tn_scope inner = tn_scope_begin();
    /* fc1 fails, fc2 would too with another message */
    assert_null(net_new(tn_ones(TN_SHAPE(3)), 0, -4), TN_E_INVALID, "in_features is 0");
    tn_scope_end(inner);
    ck_assert_int_eq(tn_live_tensors(), live);
    /* a registration whose failure is not checked */
    box *m = tn_module_new(&box_type);
    tn_register_buffer(&m->base, "bad.name", &m->a, tn_ones(TN_SHAPE(2)), TN_PERSISTENT);
    tn_register_parameter(&m->base, "", &m->b, tn_ones(TN_SHAPE(2)));
    tn_register_module(&m->base, "child", &m->child, linear(1, 1));
    tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3));
    assert_null(tn_module_done(&m->base), TN_E_NAME, "bad.name");
    ck_assert_int_eq(tn_live_tensors(), live);
    /* an initialiser that fails, its status ignored */
    m = tn_module_new(&box_type);
    tn_register_buffer(&m->base, "ids", &m->a, tn_full_as(TN_SHAPE(2), 0, TN_I64, tn_cpu()),
                       TN_PERSISTENT);
    tn_init_normal(m->a, 0, 1);
    assert_null(tn_module_done(&m->base), TN_E_DTYPE, "tn_init_normal");
    /* an error that was handled does not count */
    m = tn_module_new(&box_type);
    tn_init_normal(tn_full_as(TN_SHAPE(2), 0, TN_I64, tn_cpu()), 0, 1);
    tn_error_clear();
    tn_module *made = tn_module_done(&m->base);
    assert_made(made);
    tn_module_drop(made);
    ck_assert_ptr_null(tn_module_done(NULL));
    ck_assert_int_eq(tn_live_tensors(), live);
}
END_TEST

START_TEST(modules_are_counted)
{
    int64_t live = tn_live_tensors();
    tn_module *shared = linear(1, 1);
    tn_module *a = tn_sequential(tn_module_keep(shared)), *b = tn_sequential(shared);
    tn_module_drop(a);
    tn_scope inner = tn_scope_begin();
    assert_made(tn_forward(b, tn_ones(TN_SHAPE(1, 1))));
    tn_scope_end(inner);
    tn_module_drop(b);
    tn_module_drop(NULL);
    tn_module_drop(TN_NO_MODULE);
    ck_assert_int_eq(tn_live_tensors(), live);
}
END_TEST

START_TEST(any_depth_of_nesting)
{
    tn_module *m = tn_identity_new();
    for (int i = 0; i < 1000; i++) {
        tn_module *outer = tn_module_list_new();
        assert_ok(tn_module_append(outer, tn_module_list_new()));
        assert_ok(tn_module_append(outer, m));
        m = outer;
    }
    assert_ok(tn_eval(m));
    tn_module_drop(m);
}
END_TEST

void nn_kinds_cases(Suite *suite);

Suite *test_suite(void)
{
    Suite *s = suite_create("nn");
    TCase *t = test_case(s, "registration");
    tcase_add_test(t, RB_01_RP_01_before_the_module_is_made);
    tcase_add_test(t, RB_02_RB_03_RB_04_RP_02_RP_03_RP_04_bad_names);
    tcase_add_test(t, RB_05_RP_05_name_taken);
    tcase_add_test(t, RB_06_value_is_checked_last);
    tcase_add_test(t, RB_07_replaced_in_place);
    tcase_add_test(t, RB_08_RB_13_RB_14_persistence);
    tcase_add_test(t, RB_09_absent);
    tcase_add_test(t, RB_10_RB_11_RB_15_stored_by_reference);
    tcase_add_test(t, RB_12_legal_names);
    tcase_add_test(t, RP_06_absent_then_assigned);
    tcase_add_test(t, RP_07_RP_08_RP_09_wrong_values);
    tcase_add_test(t, RP_10_RP_11_frozen);
    tcase_add_test(t, RP_12_over_a_buffer);
    tcase_add_test(t, fields_lie_in_the_struct_and_belong_to_one_slot);
    tcase_add_test(t, RM_02_order_of_checks);
    tcase_add_test(t, RM_03_RM_04_replaced_and_absent);
    tcase_add_test(t, RM_05_cycles_are_refused);
    tcase_add_test(t, RM_06_containers_number_their_children);
    t = test_case(s, "names and walks");
    tcase_add_test(t, AT_02_AT_03_assigning);
    tcase_add_test(t, AT_06_paths);
    tcase_add_test(t, EN_01_EN_02_EN_06_order_and_prefix);
    tcase_add_test(t, EN_03_EN_04_EN_05_duplicates);
    tcase_add_test(t, EN_07_visiting);
    tcase_add_test(t, lists_of_several_models);
    tcase_add_test(t, MD_01_MD_02_MD_03_training);
    tcase_add_test(t, MD_04_frozen_parameters_do_not_stop_statistics);
    tcase_add_test(t, MD_05_zero_grad);
    t = test_case(s, "life");
    tcase_add_test(t, a_module_of_ones_own);
    tcase_add_test(t, a_failed_constructor_frees_all_and_keeps_the_first_message);
    tcase_add_test(t, modules_are_counted);
    tcase_add_test(t, any_depth_of_nesting);
    nn_kinds_cases(s);
    return s;
}
