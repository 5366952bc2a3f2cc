/*
 * test_nn.c - modules: registration, names, walks, construction; in nn_*.c beside it containers,
 * calls, refusals, memory that runs out, options. The ids are rows of the project's table of
 * PyTorch semantics.
 *
 * Seen to fail: without tni_slot_sync in tni_slot_put (src/nn/module.c) four tests fail, the first
 * RB_08_RB_13_RB_14_persistence: a field no longer follows its slot.
 */
#include <stdlib.h>

#include "boxes.h"
#include "files.h"

/* ---- buffers --------------------------------------------------------------------------------- */

START_TEST(RB_01_RP_01_before_the_module_is_made)
{
    box m = { .base = { &box_type, NULL } };
    assert_fails(buffer(&m.base, "a", &m.a, tn_ones(TN_SHAPE(2))), TN_E_STATE, "tn_module_new");
    assert_fails(tn_register_parameter(&m.base, "a", &m.a, tn_ones(TN_SHAPE(2))), TN_E_STATE,
                 "tn_module_new");
}
END_TEST

/* RB-03, RB-04, RB-05, RP-03, RP-04, RP-05, RP-12, RM-02: names that a buffer, a parameter, a child
 * may not have. */
START_TEST(names_that_are_refused)
{
    static const char *const rows[][3] = {
        { "b", "a.b", "dot" },
        { "b", ".", "dot" },
        { "b", "", "empty" },
        { "b", "p", "a parameter" },
        { "b", "m", "a child" },
        { "b", "forward", "already exists" },
        { "b", "training", "already exists" },
        { "p", "a.b", "dot" },
        { "p", "", "empty" },
        { "p", "b", "a buffer" },
        { "p", "m", "a child" },
        { "m", "b", "a buffer" },
        { "m", "forward", "already exists" },
        { "m", "x.y", "dot" },
        { "m", "", "empty" },
    };
    box *m = owned_box();
    tn_module *base = &m->base;
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_ok(tn_register_parameter(base, "p", &m->a, tn_ones(TN_SHAPE(3))));
    assert_ok(tn_register_module(base, "m", &m->child, tn_identity_new()));
    assert_ok(buffer(base, "b", &m->b, t));
    for (int i = 0; i < COUNT(rows); i++) {
        const char *name = rows[i][1];
        tn_status status = rows[i][0][0] == 'b' ? buffer(base, name, &m->c, t)
                           : rows[i][0][0] == 'p'
                               ? tn_register_parameter(base, name, &m->c, t)
                               : tn_register_module(base, name, &m->other, tn_identity_new());
        ck_assert_msg(status == TN_E_NAME, "row %d: %s", i, tn_error());
        assert_error(TN_E_NAME, rows[i][2]);
        ck_assert(!m->c && !m->other);
    }
    assert_fails(tn_register_module(base, "x.y", NULL, NULL), TN_E_INVALID, "is NULL");
    /* poison: its message stays */
    assert_null(linear(0, 3), TN_E_INVALID, "in_features");
    ck_assert_int_eq(tn_register_module(base, "fc", &m->other, linear(0, 3)), TN_E_INVALID);
    assert_error(TN_E_INVALID, "in_features");
    ck_assert(tn_module_children(base) == 1 && tn_buffers(base)->n == 1);
}
END_TEST

START_TEST(RB_06_value_is_checked_last)
{
    box *m = owned_box();
    assert_fails(buffer(&m->base, "x.y", NULL, NULL), TN_E_NAME, "dot");
    assert_fails(buffer(&m->base, "mean", NULL, NULL), TN_E_INVALID, "\"mean\"");
    /* poison propagates silently: the message stays the first one */
    tn_tensor *poison = tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3));
    ck_assert_int_eq(buffer(&m->base, "mean", NULL, poison), TN_E_SHAPE);
    assert_error(TN_E_SHAPE, "reshape");
}
END_TEST

START_TEST(RB_07_replaced_in_place)
{
    box *m = owned_box();
    tn_module *base = &m->base;
    assert_ok(buffer(base, "one", &m->a, tn_ones(TN_SHAPE(2))));
    assert_ok(buffer(base, "two", &m->b, tn_ones(TN_SHAPE(2))));
    tn_tensor *other = tn_full_as(TN_SHAPE(5), 7, TN_I64, tn_cpu());
    assert_ok(buffer(base, "one", &m->a, other));
    assert_names(tn_buffers(base), "one two");
    ck_assert_ptr_eq(m->a, other);
    /* registered through another field, then through none: the old field is cleared, the slot keeps
     * its tensor */
    assert_ok(buffer(base, "one", &m->c, tn_ones(TN_SHAPE(1))));
    ck_assert_ptr_eq(m->a, TN_NONE);
    tn_tensor *last = tn_zeros(TN_SHAPE(4));
    assert_ok(buffer(base, "one", NULL, last));
    ck_assert_ptr_eq(m->c, last);
    assert_names(tn_buffers(base), "one two");
}
END_TEST

START_TEST(RB_08_RB_13_RB_14_persistence)
{
    box *m = owned_box();
    tn_module *base = &m->base;
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_ok(tn_register_buffer(base, "mask", &m->a, t, TN_NON_PERSISTENT));
    assert_names(tn_buffers(base), "mask");
    assert_names(tn_state_dict(base, ""), "");
    assert_names(tn_buffers_with(base, (tn_walk_options){ .persistent_only = true }), "");
    ck_assert(!tn_buffers(base)->entry[0].persistent);
    tn_list *file = listed("mask", tn_zeros(TN_SHAPE(2)), NULL);
    assert_fails(load(base, file), TN_E_NAME, "\"mask\"");
    assert_ok(load_with(base, file, .non_strict = true));
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
    assert_ok(buffer(base, "mask", &m->a, t));
    assert_names(tn_state_dict(base, ""), "mask");
    assert_ok(tn_module_delete(base, "mask"));
    ck_assert_ptr_eq(m->a, TN_NONE);
    assert_names(tn_buffers(base), "");
}
END_TEST

START_TEST(RB_09_absent)
{
    box *m = owned_box();
    tn_module *base = &m->base;
    assert_ok(buffer(base, "mean", &m->a, TN_NONE));
    assert_ok(buffer(base, "var", &m->b, tn_ones(TN_SHAPE(1))));
    ck_assert_ptr_eq(m->a, TN_NONE);
    ck_assert(tn_is_none(tn_get_buffer(base, "mean")));
    assert_names(tn_buffers(base), "var");
    tn_list *file = listed("mean", tn_ones(TN_SHAPE(1)), "var", tn_ones(TN_SHAPE(1)), NULL);
    assert_fails(load(base, file), TN_E_NAME, "unexpected: \"mean\"");
    assert_ok(tn_assign(&m->a, tn_zeros(TN_SHAPE(1))));
    assert_names(tn_buffers(base), "mean var");
}
END_TEST

START_TEST(RB_10_RB_11_RB_15_stored_by_reference)
{
    box *m = owned_box();
    tn_module *base = &m->base;
    tn_tensor *t = with_grad(tn_ones(TN_SHAPE(2)));
    assert_ok(buffer(base, "leaf", &m->a, t));
    ck_assert_ptr_eq(m->a, t);
    ck_assert(tn_requires_grad(m->a));
    tn_tensor *made = tn_mul_scalar(t, 3);
    assert_ok(buffer(base, "made", &m->b, made));
    ck_assert(!tn_is_leaf(m->b));
    assert_ok(buffer(base, "ids", &m->c, tn_full_as(TN_SHAPE(2), 1, TN_I64, tn_cpu())));
    /* it receives a gradient, which zero_grad leaves alone */
    assert_ok(tn_backward(tn_sum_all(m->b)));
    assert_values(tn_grad(t), 0, 3, 3);
    assert_ok(tn_module_zero_grad(base));
    assert_values(tn_grad(t), 0, 3, 3);
    ck_assert_int_eq(tn_parameters(base)->n, 0);
    /* a parameter may be a buffer elsewhere: then it is only among the buffers there */
    tn_module *fc = owned(linear(2, 2));
    box *n = owned_box();
    assert_ok(buffer(&n->base, "w", &n->a, tn_get_parameter(fc, "weight")));
    assert_names(tn_parameters(&n->base), "");
    assert_names(tn_buffers(&n->base), "w");
}
END_TEST

START_TEST(RB_12_legal_names)
{
    static const char *const legal[] = { "a b", "\xc3\xa9t\xc3\xa9", "0", "a/b", "_", "mean:0" };
    box *m = owned_box();
    for (size_t i = 0; i < sizeof legal / sizeof *legal; i++)
        assert_ok(buffer(&m->base, legal[i], NULL, tn_ones(TN_SHAPE(1))));
    ck_assert_int_eq(tn_buffers(&m->base)->n, 6);
}
END_TEST

/* ---- parameters ------------------------------------------------------------------------------ */

START_TEST(RP_06_absent_then_assigned)
{
    box *m = owned_box();
    tn_module *base = &m->base;
    assert_ok(tn_register_parameter(base, "bias", &m->a, TN_NONE));
    assert_ok(tn_register_parameter(base, "weight", &m->b, tn_ones(TN_SHAPE(2))));
    assert_names(tn_parameters(base), "weight");
    assert_names(tn_state_dict(base, ""), "weight");
    assert_ok(tn_module_to_dtype(base, TN_F64));
    assert_ok(tn_assign(&m->a, tn_zeros(TN_SHAPE(2))));
    assert_names(tn_parameters(base), "bias weight");
    ck_assert(tn_requires_grad(m->a));
}
END_TEST

START_TEST(RP_07_RP_08_RP_09_wrong_values)
{
    box *m = owned_box();
    tn_tensor *t = with_grad(tn_ones(TN_SHAPE(2)));
    assert_fails(tn_register_parameter(&m->base, "w", NULL, NULL), TN_E_INVALID, "\"w\"");
    tn_tensor *made = tn_mul_scalar(t, 2);
    assert_fails(tn_register_parameter(&m->base, "w", &m->a, made), TN_E_STATE,
                 "compute it in forward");
    assert_ok(tn_register_parameter(&m->base, "w", &m->a, tn_detach(made)));
    ck_assert(tn_requires_grad(m->a) && tn_is_leaf(m->a));
    assert_fails(tn_assign(&m->a, made), TN_E_STATE, "leaf");
}
END_TEST

START_TEST(RP_10_RP_11_frozen)
{
    box *m = owned_box();
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
}
END_TEST

START_TEST(fields_lie_in_the_struct_and_belong_to_one_slot)
{
    box *m = owned_box();
    tn_tensor *elsewhere = NULL;
    assert_fails(buffer(&m->base, "a", &elsewhere, tn_ones(TN_SHAPE(2))), TN_E_INVALID,
                 "outside the struct");
    assert_ok(buffer(&m->base, "a", &m->a, tn_ones(TN_SHAPE(2))));
    assert_fails(buffer(&m->base, "b", &m->a, tn_ones(TN_SHAPE(2))), TN_E_INVALID,
                 "already follows \"a\"");
    assert_fails(tn_assign(&elsewhere, tn_ones(TN_SHAPE(2))), TN_E_NAME, "no registered slot");
    assert_fails(tn_assign(&m->b, tn_ones(TN_SHAPE(2))), TN_E_NAME, "no registered slot of Box");
}
END_TEST

/* ---- children -------------------------------------------------------------------------------- */

START_TEST(RM_03_RM_04_RM_05_replaced_absent_no_cycles)
{
    box *m = owned_box();
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
    /* no cycles */
    box *n = owned_box();
    assert_fails(tn_register_module(base, "self", NULL, tn_module_keep(base)), TN_E_STATE,
                 "ancestor");
    assert_ok(tn_register_module(base, "n", NULL, tn_module_keep(&n->base)));
    assert_fails(tn_register_module(&n->base, "m", NULL, tn_module_keep(base)), TN_E_STATE,
                 "ancestor");
}
END_TEST

/* ---- access ---------------------------------------------------------------------------------- */

START_TEST(AT_02_AT_03_assigning)
{
    box *m = owned_box();
    tn_module *base = &m->base;
    assert_ok(tn_register_parameter(base, "w", &m->a, tn_ones(TN_SHAPE(2))));
    assert_ok(buffer(base, "b", &m->b, tn_ones(TN_SHAPE(2))));
    assert_ok(tn_assign(&m->a, TN_NONE)); /* the slot stays, the key goes */
    assert_names(tn_state_dict(base, ""), "b");
    assert_ok(tn_assign(&m->b, tn_full_as(TN_SHAPE(3, 4), 1, TN_BOOL, tn_cpu())));
    ck_assert_int_eq(tn_numel(tn_get_buffer(base, "b")), 12);
    assert_ok(tn_module_set(base, "b", TN_NONE));
    assert_names(tn_state_dict(base, ""), "");
    ck_assert_ptr_eq(m->b, TN_NONE);
}
END_TEST

START_TEST(AT_06_paths)
{
    tn_module *s = owned(tn_sequential(linear(2, 3), norm2d(3)));
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
}
END_TEST

/* ---- enumeration ----------------------------------------------------------------------------- */

/* outer: buffer b0, child in (child deep: linear), parameter p0 registered last */
static box *nested(void)
{
    box *outer = box_new(), *inner = box_new();
    assert_ok(buffer(&outer->base, "b0", &outer->a, tn_ones(TN_SHAPE(1))));
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
    assert_names(
        tn_parameters_with(&m->base, (tn_walk_options){ .no_recurse = true, .prefix = "gen." }),
        "gen.p0");
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
    box *m = owned_box();
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
    assert_ok(buffer(base, "also", NULL, t));
    assert_names(tn_buffers(base), "also"); /* kinds are counted apart */
    ck_assert_int_eq(tn_count_parameters(base, false), 1 + 4 + 2 + 1);
}
END_TEST

static tn_status append_name(tn_module *m, const char *path, void *user)
{
    char *text = user;
    size_t n = strlen(text);
    snprintf(text + n, 512 - n, "%s:%s ", path, m->type->name);
    return TN_OK;
}

static tn_status append_type(tn_module *m, void *user)
{
    return append_name(m, "", user);
}

static tn_status stop_at_second(tn_module *m, const char *path, void *user)
{
    (void)path, (void)m;
    return ++*(int *)user == 2 ? TN_E_IO : TN_OK;
}

START_TEST(EN_07_visiting)
{
    box *m = nested();
    owned(&m->base);
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
}
END_TEST

/* ---- train, eval, gradients ------------------------------------------------------------------ */

START_TEST(MD_01_MD_02_MD_03_training)
{
    tn_module *m = owned(tn_sequential(norm2d(1), tn_dropout_new(0.5)));
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
    m = owned(linear(1, 1));
    assert_ok(tn_eval(m)); /* which does not turn recording off */
    ck_assert(tn_requires_grad(tn_forward(m, tn_ones(TN_SHAPE(1, 1)))));
}
END_TEST

START_TEST(MD_04_frozen_parameters_do_not_stop_statistics)
{
    tn_module *m = owned(norm2d(2));
    tn_tensor *x = random_as(TN_SHAPE(3, 2, 2, 2), -1, 1, 5, TN_F32);
    assert_ok(tn_module_set_requires_grad(m, false));
    ck_assert(!tn_requires_grad(tn_get_parameter(m, "weight")));
    uint64_t before = tn_hash(tn_get_buffer(m, "running_mean"));
    TN_NO_GRAD assert_made(tn_forward(m, x));
    ck_assert(tn_hash(tn_get_buffer(m, "running_mean")) != before);
}
END_TEST

START_TEST(MD_05_zero_grad)
{
    tn_module *m = owned(linear(2, 1));
    assert_ok(tn_backward(tn_sum_all(tn_forward(m, tn_ones(TN_SHAPE(3, 2))))));
    assert_values(tn_grad(tn_get_parameter(m, "bias")), 0, 3);
    assert_ok(tn_module_zero_grad(m));
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(m, "bias"))));
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
    tn_register_module(&m->base, "fc1", &m->fc1, linear(in, hidden));
    tn_register_module(&m->base, "fc2", &m->fc2, linear(hidden, 2));
    buffer(&m->base, "mean", &m->mean, mean);
    return tn_module_done(&m->base);
}

START_TEST(a_module_of_ones_own)
{
    tn_module *m = owned(net_new(tn_ones(TN_SHAPE(3)), 3, 4));
    assert_names(tn_state_dict(m, ""), "mean fc1.weight fc1.bias fc2.weight fc2.bias");
    tn_tensor *y = tn_forward(m, tn_ones(TN_SHAPE(5, 3)));
    assert_made(y);
    ck_assert_int_eq(tn_size(y, 1), 2);
    assert_ok(tn_backward(tn_sum_all(y)));
    ck_assert(!tn_is_none(tn_grad(tn_get_parameter(m, "fc1.weight"))));
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
    buffer(&m->base, "bad.name", &m->a, tn_ones(TN_SHAPE(2)));
    tn_register_parameter(&m->base, "", &m->b, tn_ones(TN_SHAPE(2)));
    tn_register_module(&m->base, "child", &m->child, linear(1, 1));
    tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3));
    assert_null(tn_module_done(&m->base), TN_E_NAME, "bad.name");
    ck_assert_int_eq(tn_live_tensors(), live);
    /* an initialiser that fails, its status ignored */
    m = tn_module_new(&box_type);
    buffer(&m->base, "ids", &m->a, tn_full_as(TN_SHAPE(2), 0, TN_I64, tn_cpu()));
    tn_init_normal(m->a, 0, 1);
    assert_null(tn_module_done(&m->base), TN_E_DTYPE, "tn_init_normal");
    /* an error that was handled does not count */
    m = tn_module_new(&box_type);
    tn_init_normal(tn_full_as(TN_SHAPE(2), 0, TN_I64, tn_cpu()), 0, 1);
    tn_error_clear();
    assert_made(tn_module_done(&m->base));
    tn_module_drop(&m->base);
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

Suite *test_suite(void)
{
    Suite *suite = suite_create("nn");
    setenv("TN_CACHE", "0", 1); /* read at the first allocation: the allocator sees them all */
    add_tests(test_case(suite, "registration"), RB_01_RP_01_before_the_module_is_made,
              names_that_are_refused, RB_06_value_is_checked_last, RB_07_replaced_in_place,
              RB_08_RB_13_RB_14_persistence, RB_09_absent, RB_10_RB_11_RB_15_stored_by_reference,
              RB_12_legal_names, RP_06_absent_then_assigned, RP_07_RP_08_RP_09_wrong_values,
              RP_10_RP_11_frozen, fields_lie_in_the_struct_and_belong_to_one_slot,
              RM_03_RM_04_RM_05_replaced_absent_no_cycles);
    add_tests(test_case(suite, "names and walks"), AT_02_AT_03_assigning, AT_06_paths,
              EN_01_EN_02_EN_06_order_and_prefix, EN_03_EN_04_EN_05_duplicates, EN_07_visiting,
              MD_01_MD_02_MD_03_training, MD_04_frozen_parameters_do_not_stop_statistics,
              MD_05_zero_grad);
    add_tests(test_case(suite, "life"), a_module_of_ones_own,
              a_failed_constructor_frees_all_and_keeps_the_first_message, modules_are_counted);
    nn_containers_cases(suite);
    nn_calls_cases(suite);
    nn_refusals_cases(suite);
    nn_memory_cases(suite);
    nn_options_cases(suite);
    return suite;
}
