/*
 * test_settings.c - what can be set can be read, and takes effect: numbers of optimizers, dropout's
 * p, batch norm's momentum, a loader's batch size, limits and modes; Conv2d with a size per axis.
 *
 * Seen to fail: tn_optim_set_number that writes the second number for the first, or that ignores
 * the group: numbers_of_all_groups, numbers_of_one_group; a loader that keeps its slots when the
 * batches grow: batch_size_of_a_loader, under AddressSanitizer.
 */
#include <math.h>

#include "boxes.h"

static tn_list *one_parameter(tn_tensor **w)
{
    *w = from_f64((double[]){ 1, -2, 3 }, TN_SHAPE(3));
    assert_ok(tn_set_requires_grad(*w, true));
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "w", *w));
    return list;
}

/* One step along the gradient of sum(w^2) / 2, which is w. */
static void step(tn_optim *opt, tn_tensor *w)
{
    assert_ok(tn_optim_zero_grad(opt));
    assert_ok(tn_backward(tn_mul_scalar(tn_sum_all(tn_square(w)), 0.5)));
    assert_ok(tn_optim_step(opt));
}

/* SGD by hand: p -= lr (p + wd p), the decay changed between the steps. */
START_TEST(weight_decay_of_a_group)
{
    tn_tensor *w;
    tn_optim *opt = tn_sgd(one_parameter(&w), (tn_sgd_options){ .lr = 0.5 });
    ck_assert_double_eq(tn_optim_weight_decay(opt, 0), 0);
    step(opt, w);
    assert_ok(tn_optim_set_weight_decay(opt, -1, 0.25));
    ck_assert_double_eq(tn_optim_weight_decay(opt, 0), 0.25);
    step(opt, w);
    const double expected = 1 * (1 - 0.5) * (1 - 0.5 * 1.25);
    ck_assert_double_eq_tol(tn_item(tn_select(w, 0, 0)), expected, 1e-15);
    assert_fails(tn_optim_set_weight_decay(opt, 0, -1), TN_E_INVALID, "weight_decay is -1");
    assert_fails(tn_optim_set_weight_decay(opt, 1, 1), TN_E_INDEX, "group 1: there are 1");
    ck_assert(isnan(tn_optim_weight_decay(opt, 1)));
    tn_error_clear();
    tn_optim_free(opt);
}
END_TEST

typedef tn_optim *(*maker)(const tn_list *p, bool other);
static tn_optim *sgd(const tn_list *p, bool other)
{
    return tn_sgd(p, (tn_sgd_options){ .momentum = other ? 0.5 : 0.9, .dampening = 0.25 });
}
static tn_optim *adam(const tn_list *p, bool other)
{
    return tn_adam(p, (tn_adam_options){ .beta1 = other ? 0.5 : 0.9 });
}
static tn_optim *adamw(const tn_list *p, bool other)
{
    return tn_adamw(p, (tn_adam_options){ .beta2 = other ? 0.75 : 0.99 });
}
static tn_optim *rmsprop(const tn_list *p, bool other)
{
    return tn_rmsprop(p, (tn_rmsprop_options){ .alpha = other ? 0.5 : 0.9, .momentum = 0.5 });
}
static tn_optim *adagrad(const tn_list *p, bool other)
{
    return tn_adagrad(p, (tn_adagrad_options){ .eps = other ? 0.5 : 0.25 });
}

static const struct {
    maker make;
    const char *name;
    double was, value, bad;
} numbers[] = {
    { sgd, "momentum", 0.9, 0.5, -1 },    { adam, "beta1", 0.9, 0.5, 1 },
    { adamw, "beta2", 0.99, 0.75, -0.5 }, { rmsprop, "alpha", 0.9, 0.5, 1 },
    { adagrad, "eps", 0.25, 0.5, NAN },
};

/* Set before the first step, a number does what it does when the optimizer is made with it. */
START_TEST(numbers_of_all_groups)
{
    tn_tensor *a, *b;
    tn_optim *set = numbers[_i].make(one_parameter(&a), false);
    tn_optim *made = numbers[_i].make(one_parameter(&b), true);
    const char *name = numbers[_i].name;
    ck_assert_double_eq(tn_optim_number(set, 0, name), numbers[_i].was);
    assert_fails(tn_optim_set_number(set, -1, name, numbers[_i].bad), TN_E_INVALID, name);
    ck_assert_double_eq(tn_optim_number(set, 0, name), numbers[_i].was);
    assert_ok(tn_optim_set_number(set, -1, name, numbers[_i].value));
    ck_assert_double_eq(tn_optim_number(set, 0, name), numbers[_i].value);
    for (int i = 0; i < 3; i++) step(set, a), step(made, b);
    ck_assert_uint_eq(tn_hash(a), tn_hash(b));
    assert_fails(tn_optim_set_number(set, -1, "gamma", 1), TN_E_NAME, "has no gamma");
    tn_error_clear();
    ck_assert(isnan(tn_optim_number(set, 0, "gamma")));
    tn_error_clear();
    tn_optim_free(set), tn_optim_free(made);
}
END_TEST

START_TEST(momentum_and_its_state)
{
    tn_tensor *w;
    tn_optim *plain = tn_sgd(one_parameter(&w), (tn_sgd_options){ 0 });
    assert_fails(tn_optim_set_number(plain, 0, "momentum", 0.5), TN_E_STATE, "with momentum");
    assert_ok(tn_optim_set_number(plain, 0, "momentum", 0));
    tn_optim *fast =
        tn_sgd(one_parameter(&w), (tn_sgd_options){ .momentum = 0.9, .nesterov = true });
    assert_fails(tn_optim_set_number(fast, 0, "momentum", 0), TN_E_STATE, "without");
    assert_fails(tn_optim_set_number(fast, 0, "dampening", 0.5), TN_E_INVALID, "nesterov");
    tn_optim_free(plain), tn_optim_free(fast);
}
END_TEST

/* What a group's options take and refuse. That the numbers do what they should: test_optim.c. */
START_TEST(numbers_of_one_group)
{
    tn_tensor *w, *v;
    tn_optim *opt =
        tn_sgd(one_parameter(&w), (tn_sgd_options){ .momentum = 0.9, .nesterov = true });
    one_parameter(&v);
    tn_list *second = tn_list_new();
    assert_ok(tn_list_add(second, "v", v));
    assert_fails(tn_optim_add_group(opt, second, (tn_group_options){ .beta1 = 0.5 }), TN_E_NAME,
                 "tn_optim_add_group: tn_sgd has no beta1: want momentum, dampening");
    assert_fails(tn_optim_add_group(opt, second, (tn_group_options){ .momentum = -1 }),
                 TN_E_INVALID, "momentum is -1");
    assert_fails(tn_optim_add_group(opt, second, (tn_group_options){ .dampening = 0.5 }),
                 TN_E_INVALID, "nesterov");
    ck_assert_int_eq(tn_optim_groups(opt), 1);
    assert_ok(tn_optim_add_group(opt, second, (tn_group_options){ .momentum = 0.5 }));
    ck_assert_double_eq(tn_optim_number(opt, 0, "momentum"), 0.9);
    ck_assert_double_eq(tn_optim_number(opt, 1, "momentum"), 0.5);
    assert_ok(tn_optim_set_number(opt, 1, "momentum", 0.25));
    assert_fails(tn_optim_set_number(opt, 1, "momentum", 0), TN_E_STATE, "without");
    assert_fails(tn_optim_set_number(opt, 2, "momentum", 0.5), TN_E_INDEX, "group 2: there are 2");
    ck_assert_double_eq(tn_optim_number(opt, 0, "momentum"), 0.9);
    ck_assert_double_eq(tn_optim_number(opt, 1, "momentum"), 0.25);
    ck_assert(isnan(tn_optim_number(opt, 2, "momentum")));
    tn_error_clear();
    /* a schedule that moves momentum moves every group's */
    tn_scheduler *cycle = tn_one_cycle_lr(
        opt, (tn_one_cycle_options){ .max_lr = 1, .total_steps = 5, .max_momentum = 0.75 });
    assert_made(cycle);
    for (int k = 0; k < 2; k++) ck_assert_double_eq(tn_optim_number(opt, k, "momentum"), 0.75);
    tn_scheduler_free(cycle), tn_optim_free(opt);
}
END_TEST

START_TEST(dropout_p)
{
    tn_module *inner = tn_dropout_new(0.25);
    tn_module *m = tn_sequential(
        tn_encoder_layer_new(4, 2, (tn_encoder_layer_options){ .feedforward = 8, .dropout = 0.5 }),
        tn_sequential(inner, tn_relu_new()));
    ck_assert_double_eq(tn_dropout_p(inner), 0.25);
    assert_ok(tn_dropout_set_p(m, 1));
    ck_assert_double_eq(tn_dropout_p(inner), 1);
    ck_assert_double_eq(tn_dropout_p(tn_get_submodule(m, "0")), 1);
    ck_assert_double_eq(tn_dropout_p(tn_get_submodule(m, "0.self_attn")), 1);
    tn_tensor *x = tn_ones(TN_SHAPE(2, 3));
    ck_assert_double_eq(tn_item(tn_max_all(tn_forward(inner, x))), 0);
    assert_fails(tn_dropout_set_p(m, 1.5), TN_E_INVALID, "1.5");
    ck_assert_double_eq(tn_dropout_p(inner), 1);
    assert_ok(tn_dropout_set_p(m, 0));
    ck_assert_uint_eq(tn_hash(tn_forward(inner, x)), tn_hash(x));
    tn_module *relu = tn_relu_new();
    assert_fails(tn_dropout_set_p(relu, 0.5), TN_E_INVALID, "nothing in ReLU drops");
    tn_error_clear();
    ck_assert(isnan(tn_dropout_p(relu)));
    tn_error_clear();
    tn_module_drop(relu), tn_module_drop(m);
}
END_TEST

/* running_mean = (1 - momentum) running_mean + momentum mean of the batch */
START_TEST(batchnorm_momentum)
{
    tn_module *m = tn_batch_norm1d_new(1, (tn_batch_norm_options){ .cumulative = true });
    tn_tensor *x = tn_from_floats((float[]){ 1, 3 }, TN_SHAPE(2, 1));
    ck_assert_double_eq(tn_batch_norm_momentum(m), 0.1);
    assert_ok(tn_batch_norm_set_momentum(m, 0.25));
    ck_assert_double_eq(tn_batch_norm_momentum(m), 0.25);
    assert_made(tn_forward(m, x));
    assert_made(tn_forward(m, x));
    ck_assert_double_eq(tn_item(tn_get_buffer(m, "running_mean")), 0.875);
    assert_ok(tn_batch_norm_set_momentum(m, 0));
    assert_made(tn_forward(m, x));
    ck_assert_double_eq(tn_item(tn_get_buffer(m, "running_mean")), 0.875);
    assert_fails(tn_batch_norm_set_momentum(m, 2), TN_E_INVALID, "momentum");
    tn_module_drop(m);
}
END_TEST

static double sum_of_epoch(tn_loader *l, int64_t rows, int batches)
{
    tn_tensor *batch[1];
    double sum = 0;
    for (int i = 0; i < batches; i++) {
        ck_assert_int_eq(tn_loader_next(l, batch, 1), 1);
        if (i + 1 < batches) ck_assert_int_eq(tn_size(batch[0], 0), rows);
        sum += tn_item(tn_sum_all(batch[0]));
    }
    ck_assert_int_eq(tn_loader_next(l, batch, 1), 0);
    return sum;
}

START_TEST(batch_size_of_a_loader)
{
    tn_tensor *x = tn_arange(0, 10, 1, TN_F32), *batch[1];
    tn_loader *l = tn_loader_new(
        &x, 1, (tn_loader_options){ .batch_size = 3, .shuffle = true, .prefetch = _i == 1 });
    ck_assert_int_eq(tn_loader_rows(l), 10);
    ck_assert_int_eq(tn_loader_batch_size(l), 3);
    ck_assert_double_eq(sum_of_epoch(l, 3, 4), 45);
    assert_ok(tn_loader_set_batch_size(l, 7));
    ck_assert_int_eq(tn_loader_batch_size(l), 7);
    ck_assert_int_eq(tn_loader_batches(l), 2);
    ck_assert_double_eq(sum_of_epoch(l, 7, 2), 45);
    ck_assert_int_eq(tn_loader_next(l, batch, 1), 1);
    assert_fails(tn_loader_set_batch_size(l, 2), TN_E_STATE, "batch 1 of an epoch");
    assert_fails(tn_loader_set_batch_size(l, 0), TN_E_INVALID, "batch_size 0");
    ck_assert_int_eq(tn_loader_batch_size(l), 7);
    tn_loader_free(l);
}
END_TEST

static void *alloc_by(void *user, size_t size)
{
    (void)user;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}
static void free_by(void *user, void *block, size_t size)
{
    (void)user, (void)size;
    free(block);
}

START_TEST(modes_and_limits)
{
    tn_file_limits was = tn_get_file_limits();
    ck_assert_int_eq(was.header_bytes, 16 << 20);
    ck_assert_int_eq(was.tensors, 65536);
    assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = 12, .inflated_bytes = 34 }));
    ck_assert_int_eq(tn_get_file_limits().tensors, 12);
    ck_assert_int_eq(tn_get_file_limits().inflated_bytes, 34);
    assert_ok(tn_set_file_limits(was));

    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_GRADIENTS), TN_ANOMALY_OFF);
    ck_assert_int_eq(tn_get_anomaly(), TN_ANOMALY_GRADIENTS);
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_OFF), TN_ANOMALY_GRADIENTS);
    if (!tn_cuda_available()) ck_assert(!tn_tf32());
    ck_assert(!tn_get_allocator().alloc);
}
END_TEST

START_TEST(allocator_in_use)
{
    const tn_allocator mine = { alloc_by, free_by, NULL };
    assert_ok(test_set_allocator(&mine));
    ck_assert(tn_get_allocator().alloc == alloc_by);
    assert_ok(test_set_allocator(NULL));
    ck_assert(!tn_get_allocator().alloc);
}
END_TEST

START_TEST(conv2d_with_a_size_per_axis)
{
    tn_conv2d_spec spec = { .padding = { 1, 0 }, .stride = { 1, 2 } };
    tn_module *m = tn_conv2d_spec_new(2, 3, 3, 1, spec, false);
    tn_tensor *x = tn_randn(TN_SHAPE(1, 2, 5, 6));
    tn_tensor *w = tn_get_parameter(m, "weight"), *b = tn_get_parameter(m, "bias");
    ck_assert_int_eq(tn_size(w, 2), 3);
    ck_assert_int_eq(tn_size(w, 3), 1);
    tn_tensor *y = tn_forward(m, x);
    ck_assert_int_eq(tn_size(y, 2), 5);
    ck_assert_int_eq(tn_size(y, 3), 3);
    ck_assert_uint_eq(tn_hash(y), tn_hash(tn_conv2d(x, w, b, spec)));
    tn_module *same = tn_conv2d_new(2, 4, 4, (tn_conv2d_options){ .same = true });
    ck_assert_int_eq(tn_size(tn_forward(same, x), 2), 5);
    ck_assert_int_eq(tn_size(tn_forward(same, x), 3), 6);
    assert_null(tn_conv2d_new(2, 4, 4, (tn_conv2d_options){ .same = true, .stride = 2 }),
                TN_E_INVALID, "same with a stride");
    assert_null(tn_conv2d_spec_new(2, 4, 4, 0, spec, false), TN_E_INVALID, "kernel");
    tn_module_drop(m), tn_module_drop(same);
}
END_TEST

/* Between integers and a NaN only "differs" holds. */
START_TEST(scalars_that_no_integer_has)
{
    tn_tensor *x = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    ck_assert_double_eq(tn_item(tn_sum_all(tn_ne_scalar(x, NAN))), 2);
    ck_assert_double_eq(tn_item(tn_sum_all(tn_le_scalar(x, NAN))), 0);
    ck_assert_double_eq(tn_item(tn_sum_all(tn_ge_scalar(x, NAN))), 0);
    ck_assert_double_eq(tn_item(tn_sum(x, TN_AXES(0), false)), 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("settings");
    TCase *t = test_case(suite, "settings");
    tcase_add_test(t, weight_decay_of_a_group);
    tcase_add_loop_test(t, numbers_of_all_groups, 0, sizeof numbers / sizeof *numbers);
    tcase_add_test(t, momentum_and_its_state);
    tcase_add_test(t, numbers_of_one_group);
    tcase_add_test(t, dropout_p);
    tcase_add_test(t, batchnorm_momentum);
    tcase_add_loop_test(t, batch_size_of_a_loader, 0, 2);
    tcase_add_test(t, modes_and_limits);
    tcase_add_test(t, allocator_in_use);
    tcase_add_test(t, conv2d_with_a_size_per_axis);
    tcase_add_test(t, scalars_that_no_integer_has);
    return suite;
}
