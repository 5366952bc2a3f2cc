/*
 * test_semantics.c - rows of the semantics table that fit no other test file: kinks of derivatives,
 * the defaults of gradcheck, names across kinds, what a load ignores, what a move leaves alone.
 *
 * Values at kinks are PyTorch's (1.13 and 2.x agree).
 *
 * Seen to fail: the formula of clamp_grad (src/tensor/formulas.h) made to give 0 at its bounds:
 * AG_05_clamp fails; TNI_T_maximum_grad made to give the whole gradient at a tie: AG_05_ties fails.
 */
#include "common.h"

static tn_tensor *leaf_f64(const double *values, tn_shape shape)
{
    tn_tensor *t = from_f64(values, shape);

    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* d sum(y) / dx */
static tn_tensor *slope(tn_tensor *y, tn_tensor *x)
{
    tn_tensor *loss = tn_sum(y, NULL, 0, false), *g = NULL;

    assert_made(loss);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &x, &g, TN_RETAIN_GRAPH));
    return g;
}

START_TEST(AG_05_at_zero)
{
    tn_tensor *x = leaf_f64((double[]){ 0 }, TN_SHAPE(1));

    assert_values(slope(tn_relu(x), x), 0, 0.0);
    assert_values(slope(tn_leaky_relu(x, 0.25), x), 0, 0.25);
    assert_values(slope(tn_abs(x), x), 0, 0.0);
    assert_values(slope(tn_norm(x, 2, NULL, 0, false), x), 0, 0.0);
    ck_assert(isinf(tn_item(slope(tn_sqrt(x), x))));
}
END_TEST

START_TEST(AG_05_clamp)
{
    tn_tensor *x = leaf_f64((double[]){ -2, -1, 0, 1, 2 }, TN_SHAPE(5));

    assert_values(slope(tn_clamp(x, -1, 1), x), 0, 0.0, 1.0, 1.0, 1.0, 0.0);
}
END_TEST

START_TEST(AG_05_ties)
{
    tn_tensor *x = leaf_f64((double[]){ 3, 1, 3, 2 }, TN_SHAPE(4));
    tn_tensor *a = leaf_f64((double[]){ 1, 2 }, TN_SHAPE(2)),
              *b = from_f64((double[]){ 1, 3 }, TN_SHAPE(2));
    tn_tensor *index;

    assert_values(slope(tn_amax(x, NULL, 0, false), x), 0, 0.5, 0.0, 0.5, 0.0);
    assert_values(slope(tn_max(x, 0, false, &index), x), 0, 1.0, 0.0, 0.0, 0.0);
    ck_assert_double_eq(tn_item(index), 0);
    assert_values(slope(tn_maximum(a, b), a), 0, 0.5, 0.0);
    assert_values(slope(tn_minimum(a, b), a), 0, 0.5, 1.0);
}
END_TEST

START_TEST(AG_05_where_does_not_hide_nan)
{
    /* the branch not taken still multiplies 0 by an infinite slope */
    tn_tensor *x = leaf_f64((double[]){ 0, 2 }, TN_SHAPE(2));
    tn_tensor *g = slope(tn_where(tn_gt_scalar(x, 0), tn_log(x), tn_zeros_like(x)), x);

    ck_assert(isnan(tn_at(g, TN_INDEX(0))));
    ck_assert_double_eq(tn_at(g, TN_INDEX(1)), 0.5);
}
END_TEST

static tn_tensor *cube(tn_tensor **x, void *user)
{
    (void)user;
    return tn_mul(tn_square(x[0]), x[0]);
}

START_TEST(AG_07_gradcheck_wants_f64)
{
    tn_tensor *x = leaf_f64((double[]){ 0.5, -1.5 }, TN_SHAPE(2));
    tn_tensor *single = tn_from_floats((float[]){ 0.5f }, TN_SHAPE(1));

    assert_ok(tn_gradcheck(cube, &x, 1, NULL, (tn_gradcheck_options){ .second = true }));
    assert_ok(tn_set_requires_grad(single, true));
    ck_assert_int_ne(tn_gradcheck(cube, &single, 1, NULL, (tn_gradcheck_options){ 0 }), TN_OK);
    tn_error_clear();
}
END_TEST

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct holder {
    tn_module base;
    tn_tensor *weight, *table, *absent, *scratch, *plain;
    tn_module *child;
} holder;

static const tn_module_type holder_type = { .name = "Holder", .size = sizeof(holder) };

static tn_module *holder_new(void)
{
    holder *m = tn_module_new(&holder_type);

    ck_assert_ptr_nonnull(m);
    assert_ok(tn_register_parameter(&m->base, "weight", &m->weight, tn_ones(TN_SHAPE(2))));
    assert_ok(
        tn_register_buffer(&m->base, "table", &m->table, tn_ones(TN_SHAPE(3)), TN_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "absent", &m->absent, TN_NONE, TN_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "scratch", &m->scratch, tn_ones(TN_SHAPE(4)),
                                 TN_NON_PERSISTENT));
    assert_ok(tn_register_module(&m->base, "child", &m->child, tn_identity_new()));
    return tn_module_done(&m->base);
}

START_TEST(AT_04_one_name_one_kind)
{
    tn_module *m = holder_new();

    assert_fails(tn_register_module(m, "table", NULL, tn_identity_new()), TN_E_NAME, "table");
    assert_fails(tn_register_buffer(m, "child", NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT),
                 TN_E_NAME, "child");
    assert_fails(tn_register_parameter(m, "table", NULL, tn_ones(TN_SHAPE(1))), TN_E_NAME, "table");
    ck_assert_int_eq(tn_state_dict(m, "")->n, 2);
    tn_module_drop(m);
}
END_TEST

START_TEST(AT_05_TO_08_a_plain_field_is_nothing)
{
    tn_module *m = holder_new();
    holder *h = (holder *)m;

    h->plain = tn_keep(tn_ones(TN_SHAPE(5)));
    ck_assert_int_eq(tn_state_dict(m, "")->n, 2);
    ck_assert_int_eq(tn_buffers(m)->n, 2);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    ck_assert_int_eq(tn_dtype_of(h->table), TN_F64);
    ck_assert_int_eq(tn_dtype_of(h->scratch), TN_F64);
    ck_assert_int_eq(tn_dtype_of(h->plain), TN_F32);
    tn_drop(h->plain);
    tn_module_drop(m);
}
END_TEST

START_TEST(EN_08_persistent_buffers_only)
{
    tn_module *m = holder_new();

    ck_assert_int_eq(tn_buffers_with(m, (tn_walk_options){ 0 })->n, 2);
    ck_assert_int_eq(tn_buffers_with(m, (tn_walk_options){ .persistent_only = true })->n, 1);
    tn_module_drop(m);
}
END_TEST

START_TEST(LD_09_empty_and_passing_slots_are_unexpected)
{
    static const char *const names[] = { "absent", "scratch" };
    tn_module *m = holder_new();

    for (int i = 0; i < 2; i++) {
        tn_list *state = tn_state_dict(m, "");
        tn_load_report report;

        assert_ok(tn_list_add(state, names[i], tn_full(TN_SHAPE(4), 7)));
        assert_fails(tn_load_state_dict(m, state, (tn_load_options){ 0 }, NULL), TN_E_NAME,
                     names[i]);
        assert_ok(tn_load_state_dict(m, state, (tn_load_options){ .non_strict = true }, &report));
        ck_assert_int_eq(report.unexpected, 1);
    }
    /* RB-13: ignored, not loaded */
    ck_assert_double_eq(tn_at(((holder *)m)->scratch, TN_INDEX(0)), 1);
    tn_module_drop(m);
}
END_TEST

/* ---- schedules ------------------------------------------------------------------------------- */

START_TEST(LR_09_sequential_restarts_the_inner_count)
{
    tn_module *m = holder_new();
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 1 });
    tn_scheduler *parts[2] = { tn_constant_lr(opt, 0.1, 2), tn_exponential_lr(opt, 0.5) };
    tn_scheduler *all = tn_sequential_lr(opt, parts, 2, (int64_t[]){ 3 });
    static const double wanted[] = { 0.1, 0.1, 1, 1, 0.5, 0.25 };

    assert_made(all);
    for (int t = 0; t < 6; t++) {
        ck_assert_msg(fabs(tn_optim_lr(opt, 0) - wanted[t]) < 1e-12, "step %d: %g, want %g", t,
                      tn_optim_lr(opt, 0), wanted[t]);
        assert_ok(tn_scheduler_step(all));
    }
    tn_scheduler_free(all);
    tn_optim_free(opt);
    tn_module_drop(m);
}
END_TEST

/* ---- the heart: no optimizer touches a buffer ------------------------------------------------ */

START_TEST(buffers_change_in_training_forward_and_nowhere_else)
{
    tn_module *bn = tn_batch_norm2d_new(3, (tn_batch_norm_options){ 0 });
    tn_module *net = tn_sequential(tn_conv2d_new(1, 3, 3, (tn_conv2d_options){ 0 }), bn);
    tn_tensor *x = tn_randn(TN_SHAPE(4, 1, 6, 6));
    tn_list *buffers = tn_buffers(net);
    tn_optim *opts[5] = {
        tn_sgd(tn_parameters(net),
               (tn_sgd_options){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.1 }),
        tn_adam(tn_parameters(net), (tn_adam_options){ .weight_decay = 0.1 }),
        tn_adamw(tn_parameters(net), (tn_adamw_options){ .weight_decay = 0.1 }),
        tn_rmsprop(tn_parameters(net),
                   (tn_rmsprop_options){ .momentum = 0.9, .weight_decay = 0.1 }),
        tn_adagrad(tn_parameters(net), (tn_adagrad_options){ .weight_decay = 0.1 }),
    };

    ck_assert_int_eq(buffers->n, 3);
    for (int o = 0; o < 5; o++) {
        uint64_t before[3];

        for (int i = 0; i < 3; i++) before[i] = tn_hash(buffers->entry[i].tensor);
        tn_tensor *loss = tn_mean(tn_square(tn_forward(net, x)), NULL, 0, false);
        for (int i = 0; i < 3; i++) {
            ck_assert_msg(tn_hash(buffers->entry[i].tensor) != before[i],
                          "%s did not move in forward", buffers->entry[i].name);
            before[i] = tn_hash(buffers->entry[i].tensor);
        }
        uint64_t weight = tn_hash(tn_get_parameter(net, "0.weight"));

        assert_ok(tn_optim_zero_grad(opts[o]));
        assert_ok(tn_backward(loss));
        assert_ok(tn_optim_step(opts[o]));
        ck_assert(tn_hash(tn_get_parameter(net, "0.weight")) != weight);
        assert_ok(tn_eval(net));
        assert_made(tn_forward(net, x));
        assert_ok(tn_train(net, true));
        for (int i = 0; i < 3; i++)
            ck_assert_msg(tn_hash(buffers->entry[i].tensor) == before[i],
                          "%s changed in backward, step or eval of optimizer %d",
                          buffers->entry[i].name, o);
        tn_optim_free(opts[o]);
    }
    tn_module_drop(net);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("semantics");
    TCase *t = test_case(suite, "semantics");

    tcase_add_test(t, AG_05_at_zero);
    tcase_add_test(t, AG_05_clamp);
    tcase_add_test(t, AG_05_ties);
    tcase_add_test(t, AG_05_where_does_not_hide_nan);
    tcase_add_test(t, AG_07_gradcheck_wants_f64);
    tcase_add_test(t, AT_04_one_name_one_kind);
    tcase_add_test(t, AT_05_TO_08_a_plain_field_is_nothing);
    tcase_add_test(t, EN_08_persistent_buffers_only);
    tcase_add_test(t, LD_09_empty_and_passing_slots_are_unexpected);
    tcase_add_test(t, LR_09_sequential_restarts_the_inner_count);
    tcase_add_test(t, buffers_change_in_training_forward_and_nowhere_else);
    return suite;
}
