/*
 * test_optim.c - optimizers: their numbers, groups, refusals, state.
 *
 * Truth: trajectories of PyTorch 2.15 (optim_cases.h, made by optim_cases.py) and others (two
 * groups), the golden vectors and closed forms of the papers, and hashes for everything that must
 * not change.
 *
 * Seen to fail: in src/optim/step.c, tni_optim_skips() without the test of requires_grad:
 * OPT_08_frozen_is_skipped fails; in src/optim/state.c, state compared with the first parameter's
 * shape: OPT_09_state_fits_any_order fails; in src/optim/groups.c, tn_no_decay without the owner:
 * decay_is_for_matrices fails; in src/optim/state.c, a group's numbers always the first one's:
 * numbers_of_groups_equal_pytorch fails; tn_optim_set_number that writes the second number for the
 * first, or that ignores the group: numbers_of_all_groups, numbers_of_one_group.
 */
#include <stdio.h>

#include "files.h"
#include "leaves.h"
#include "optim/optim.h"
#include "scarce.h"

#include "optim_cases.h"

/* Parameter a, buffer b, Linear and BatchNorm. */
static tn_tensor *net_run(box *m, tn_tensor *x)
{
    x = tn_add(tn_mul(x, m->a), m->b);
    return tn_forward(m->other, tn_forward(m->child, x));
}

static tn_module *net_new(void)
{
    box *m = box_new();
    m->run = net_run;
    assert_ok(tn_register_parameter(&m->base, "scale", &m->a, tn_ones(TN_SHAPE(4))));
    assert_ok(buffer(&m->base, "table", &m->b, tn_arange(0, 4, 1, TN_F32)));
    assert_ok(tn_register_module(&m->base, "fc", &m->child, linear(4, 3)));
    assert_ok(tn_register_module(&m->base, "bn", &m->other, norm1d(3)));
    return &m->base;
}

static void net_backward(tn_module *m, uint64_t seed)
{
    tn_tensor *x = random_as(TN_SHAPE(8, 4), -1, 1, seed, TN_F32);
    tn_tensor *y = tn_forward(m, x);
    assert_ok(tn_backward(tn_mean_all(tn_mul(y, tn_add_scalar(y, 0.5)))));
}

/* ---- the numbers ----------------------------------------------------------------------------- */

/* The gradient of optim_cases.py at step k, from p as it is. */
static void set_case_gradient(tn_tensor *p, int k)
{
    double v[COUNT(matrices[0].p[0])];
    const int n = (int)tn_numel(p);
    assert_ok(tn_copy_out(p, v, (size_t)n * sizeof *v, TN_F64));
    for (int i = 0; i < n; i++) v[i] = (0.5 + 0.25 * (i % 5)) * v[i] + 0.3 * cos(k + i);
    assert_ok(tn_set_grad(p, tn_to_dtype(from_f64(v, tn_shape_get(p)), tn_dtype_of(p))));
}

/* All but Muon (SGD, Adam, AdamW, RMSprop and Adagrad among them), with their options, 100 steps
 * each; in f32 their rounding is amplified where v is small. */
START_TEST(trajectory_equals_pytorch)
{
    int which = _i / 2;
    tn_dtype dtype = _i % 2 ? TN_F32 : TN_F64;
    tn_tensor *p = with_grad(tn_to_dtype(from_f64(start, TN_SHAPE(N_START)), dtype));
    tn_optim *opt = owned(make_optimizer(which, one(p)));
    int at = 0;
    for (int k = 1; k <= steps_at[N_AT - 1]; k++) {
        tn_scope s = tn_scope_begin();
        set_case_gradient(p, k);
        assert_ok(tn_optim_step(opt));
        if (k == steps_at[at]) {
            double tolerance = dtype == TN_F32 ? 2e-5 : 1e-12;
            const char *d = values_difference(p, trajectories[which].p[at], N_START, tolerance);
            ck_assert_msg(!d, "%s, step %d: %s", trajectories[which].name, k, d);
            at++;
        }
        tn_scope_end(s);
    }
    ck_assert_int_eq(tn_optim_steps(opt), steps_at[N_AT - 1]);
}
END_TEST

/* Adafactor and Muon, of matrices. Muon's factor in bf16 has PyTorch's bits, but where the order of
 * a sum decides how it is rounded. */
START_TEST(matrix_trajectory_equals_pytorch)
{
    double v[COUNT(matrices[0].p[0])];
    const int64_t rows = matrices[_i].rows, columns = matrices[_i].columns;
    const int n = (int)(rows * columns);
    for (int i = 0; i < n; i++) v[i] = sin(0.7 * i + 1);
    tn_tensor *p = with_grad(from_f64(v, TN_SHAPE(rows, columns)));
    tn_optim *opt = owned(make_matrix_optimizer(_i, one(p)));
    for (int k = 1, at = 0; k <= steps_at[N_AT - 1]; k++) {
        tn_scope s = tn_scope_begin();
        set_case_gradient(p, k);
        assert_ok(tn_optim_step(opt));
        if (k == steps_at[at]) {
            const bool flips = matrices[_i].name[0] == 'm' && k > 10;
            const char *d = values_difference(p, matrices[_i].p[at++], n, flips ? 1e-5 : 1e-12);
            ck_assert_msg(!d, "%s, step %d: %s", matrices[_i].name, k, d);
        }
        tn_scope_end(s);
    }
}
END_TEST

/* Two groups, of which the second has numbers of its own, one of them changed while training; saved
 * before and after that, and loaded into groups with the first one's numbers. */
START_TEST(numbers_of_groups_equal_pytorch)
{
    const char *const name[] = { "p", "q" };
    tn_tensor *t[2], *u[2];
    tn_optim *opt[2];
    for (int k = 0; k < 2; k++) {
        tn_tensor **of = k ? u : t;
        for (int i = 0; i < 2; i++) of[i] = with_grad(from_f64(start, TN_SHAPE(N_START)));
        opt[k] = owned(make_first_group(_i, list_of(1, name, of)));
        assert_ok(tn_optim_add_group(opt[k], list_of(1, name + 1, of + 1),
                                     k && !of_groups[_i].second.set[0].name
                                         ? (tn_group_options){ 0 }
                                         : of_groups[_i].second)); /* switches must be the same */
    }
    double first = tn_optim_number(opt[0], 0, of_groups[_i].changed);
    int at = 0;
    for (int k = 1; k <= steps_at[N_AT - 1]; k++) {
        tn_scope s = tn_scope_begin();
        for (int i = 0; i < 2; i++) set_case_gradient(t[i], k);
        assert_ok(tn_optim_step(opt[0]));
        for (int i = 0; k == steps_at[at] && i < 2; i++) {
            const char *d = values_difference(t[i], of_groups[_i].p[i][at], N_START, 1e-12);
            ck_assert_msg(!d, "%s, group %d, step %d: %s", of_groups[_i].name, i, k, d);
        }
        at += k == steps_at[at];
        if (k == CHANGE_AFTER)
            assert_ok(tn_optim_set_number(opt[0], 1, of_groups[_i].changed, of_groups[_i].to));
        if (k == CHANGE_AFTER - 1 || k == CHANGE_AFTER) {
            tn_list *state = tn_optim_state_dict(opt[0]);
            assert_ok(tn_optim_load_state_dict(opt[1], state));
            ck_assert_uint_eq(hash_of(tn_optim_state_dict(opt[1])), hash_of(state));
        }
        tn_scope_end(s);
    }
    ck_assert_double_eq(tn_optim_number(opt[0], 0, of_groups[_i].changed), first);
    ck_assert_double_eq(tn_optim_number(opt[1], 1, of_groups[_i].changed), of_groups[_i].to);
}
END_TEST

/* SEMANTICS golden vectors: p = (1, -2), g = k (0.5, -1) at step k, lr 0.1. */
START_TEST(golden_vectors)
{
    static const double expected[4][6] = {
        { .949, -1.898, .8122459, -1.6244918, .55343618869, -1.10687237738 },
        { .905, -1.81, .6745, -1.349, .27205, -.5441 },
        { .900000001667, -1.900000000833, .80250297032, -1.802547237358, .705695287965,
          -1.70578677043 },
        { .890000002, -1.880000001, .784581800619, -1.764681799018, .680935861089, -1.651234859061 }
    };
    tn_tensor *p[4];
    for (int i = 0; i < 4; i++) p[i] = with_grad(from_f64((double[]){ 1, -2 }, TN_SHAPE(2)));
    const tn_sgd_options damped = {
        .lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01
    };
    const tn_sgd_options nesterov = { .lr = 0.1, .momentum = 0.9, .nesterov = true };
    const tn_adam_options adam = { .lr = 0.1, .weight_decay = 0.1 };
    tn_optim *opt[] = { owned(tn_sgd(one(p[0]), damped)), owned(tn_sgd(one(p[1]), nesterov)),
                        owned(tn_adam(one(p[2]), adam)), owned(tn_adamw(one(p[3]), adam)) };
    for (int i = 0; i < 4; i++)
        for (int k = 1; k <= 3; k++) {
            assert_ok(tn_set_grad(p[i], from_f64((double[]){ 0.5 * k, -1.0 * k }, TN_SHAPE(2))));
            assert_ok(tn_optim_step(opt[i]));
            const char *d = values_difference(p[i], expected[i] + 2 * (k - 1), 2, 1e-11);
            ck_assert_msg(!d, "row %d, step %d: %s", i, k, d);
        }
}
END_TEST

/* Values dense, transposed, with gaps, and with a transposed gradient get the same update. */
START_TEST(strided_parameters_and_gradients)
{
    tn_tensor *dense = random_f64(TN_SHAPE(3, 4), -1, 1, 1),
              *g = random_f64(TN_SHAPE(3, 4), -1, 1, 2);
    tn_tensor *t[4] = { tn_clone(dense), as_transposed(dense), as_strided(dense), tn_clone(dense) };
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_set_requires_grad(t[i], true));
        assert_ok(tn_set_grad(t[i], i < 3 ? tn_clone(g) : as_transposed(g)));
    }
    const tn_adam_options o = { .lr = .1 };
    tn_optim *opt = owned(_i ? tn_adamw(letters(4, t), o) : tn_adam(letters(4, t), o));
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_optim_step(opt));
    ck_assert(tn_max_abs_diff(t[0], dense) > 0.1);
    for (int i = 1; i < 4; i++) assert_close(t[i], t[0], 0, 0);
}
END_TEST

START_TEST(mixed_dtypes_empty_and_scalar_parameters_in_one_step)
{
    tn_tensor *t[4] = { leaf(TN_SHAPE(5), 1, TN_F32), leaf(TN_SHAPE(5), 1, TN_F64),
                        leaf(TN_SHAPE(0, 3), 1, TN_F32), leaf(TN_SCALAR, 2, TN_F32) };
    for (int i = 0; i < 4; i++) set_grad(t[i], 2);
    double was = tn_item(t[3]);
    tn_optim *opt = owned(_i ? adam(letters(4, t), .lr = .1) : sgd(letters(4, t), .momentum = .5));
    assert_ok(tn_optim_step(opt));
    assert_close(tn_to_dtype(tn_detach(t[0]), TN_F64), t[1], 1e-6, 1e-6);
    ck_assert(tn_item(t[3]) != was);
}
END_TEST

START_TEST(step_is_an_in_place_change)
{
    /* a step on a value saved for backward is caught by its version */
    tn_tensor *w = leaf(TN_SHAPE(3), 1, TN_F32);
    tn_tensor *loss = tn_sum_all(tn_mul(w, w));
    set_grad(w, 2);
    uint64_t was = tn_version(w);
    tn_optim *opt = owned(sgd(one(w), 0));
    assert_ok(tn_optim_step(opt));
    ck_assert(tn_version(w) > was);
    ck_assert_int_eq(tn_backward(loss), TN_E_STATE);
    tn_error_clear();
}
END_TEST

START_TEST(threads_do_not_change_bits)
{
    uint64_t hash[2];
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_set_num_threads(k ? 3 : 1));
        tn_tensor *w = leaf(TN_SHAPE(50021), 1, TN_F32);
        tn_optim *opt = adamw(one(w), .weight_decay = .1);
        for (int s = 0; s < 3; s++) {
            set_grad(w, 10 + (uint64_t)s);
            assert_ok(tn_optim_step(opt));
        }
        hash[k] = tn_hash(w);
        tn_optim_free(opt);
    }
    ck_assert_uint_eq(hash[0], hash[1]);
}
END_TEST

/* ---- numbers that are set -------------------------------------------------------------------- */

static tn_list *one_parameter(tn_tensor **w)
{
    *w = from_f64((double[]){ 1, -2, 3 }, TN_SHAPE(3));
    assert_ok(tn_set_requires_grad(*w, true));
    return one(*w);
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
    tn_optim *opt = owned(sgd(one_parameter(&w), .lr = 0.5));
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
}
END_TEST

#define MAKER(kind, ...)                                                                           \
    static tn_optim *kind##_of(const tn_list *p, double x)                                         \
    {                                                                                              \
        return tn_##kind(p, (tn_##kind##_options){ __VA_ARGS__ });                                 \
    }
MAKER(sgd, .momentum = x, .dampening = 0.25)
MAKER(adam, .beta1 = x)
MAKER(adamw, .beta2 = x)
MAKER(rmsprop, .alpha = x, .momentum = 0.5)
MAKER(adagrad, .eps = x)

static const struct {
    tn_optim *(*make)(const tn_list *p, double x);
    const char *name;
    double was, value, bad;
} numbers[] = {
    { sgd_of, "momentum", 0.9, 0.5, -1 },    { adam_of, "beta1", 0.9, 0.5, 1 },
    { adamw_of, "beta2", 0.99, 0.75, -0.5 }, { rmsprop_of, "alpha", 0.9, 0.5, 1 },
    { adagrad_of, "eps", 0.25, 0.5, NAN },
};

/* Set before the first step, a number does what it does when the optimizer is made with it. */
START_TEST(numbers_of_all_groups)
{
    tn_tensor *a, *b;
    const char *name = numbers[_i].name;
    tn_optim *set = owned(numbers[_i].make(one_parameter(&a), numbers[_i].was));
    tn_optim *made = owned(numbers[_i].make(one_parameter(&b), numbers[_i].value));
    ck_assert_double_eq(tn_optim_number(set, 0, name), numbers[_i].was);
    assert_fails(tn_optim_set_number(set, -1, name, numbers[_i].bad), TN_E_INVALID, name);
    ck_assert_double_eq(tn_optim_number(set, 0, name), numbers[_i].was);
    assert_ok(tn_optim_set_number(set, -1, name, numbers[_i].value));
    ck_assert_double_eq(tn_optim_number(set, 0, name), numbers[_i].value);
    for (int i = 0; i < 3; i++) step(set, a), step(made, b);
    ck_assert_uint_eq(tn_hash(a), tn_hash(b));
    assert_fails(tn_optim_set_number(set, -1, "gamma", 1), TN_E_NAME, "has no gamma");
    ck_assert(isnan(tn_optim_number(set, 0, "gamma")));
    tn_error_clear();
}
END_TEST

START_TEST(momentum_and_its_state)
{
    tn_tensor *w;
    tn_optim *plain = owned(sgd(one_parameter(&w), 0));
    assert_fails(tn_optim_set_number(plain, 0, "momentum", 0.5), TN_E_STATE, "with momentum");
    assert_ok(tn_optim_set_number(plain, 0, "momentum", 0));
    tn_optim *fast = owned(sgd(one_parameter(&w), .momentum = 0.9, .nesterov = true));
    assert_fails(tn_optim_set_number(fast, 0, "momentum", 0), TN_E_STATE, "without");
    assert_fails(tn_optim_set_number(fast, 0, "dampening", 0.5), TN_E_INVALID, "nesterov");
}
END_TEST

/* What a group's options take and refuse. */
START_TEST(numbers_of_one_group)
{
    tn_tensor *w, *v;
    tn_optim *opt = owned(sgd(one_parameter(&w), .momentum = 0.9, .nesterov = true));
    one_parameter(&v);
    assert_fails(add_group(opt, "v", v, (tn_group_options){ .beta1 = 0.5 }), TN_E_NAME,
                 "tn_optim_add_group: tn_sgd has no beta1: want momentum, dampening");
    assert_fails(add_group(opt, "v", v, (tn_group_options){ .momentum = -1 }), TN_E_INVALID,
                 "momentum is -1");
    assert_fails(add_group(opt, "v", v, (tn_group_options){ .dampening = 0.5 }), TN_E_INVALID,
                 "nesterov");
    ck_assert_int_eq(tn_optim_groups(opt), 1);
    assert_ok(add_group(opt, "v", v, (tn_group_options){ .momentum = 0.5 }));
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
    owned(one_cycle(opt, .max_lr = 1, .total_steps = 5, .max_momentum = 0.75));
    for (int k = 0; k < 2; k++) ck_assert_double_eq(tn_optim_number(opt, k, "momentum"), 0.75);
}
END_TEST

/* ---- construction and refusals --------------------------------------------------------------- */

START_TEST(OPT_01_OPT_02_OPT_04_OPT_05_lists_that_are_refused)
{
    tn_sgd_options o = { 0 };
    tn_list *list = tn_list_new();
    assert_null(tn_sgd(list, o), TN_E_INVALID, "tn_sgd: the list of parameters is empty");
    ck_assert_ptr_null(tn_sgd(NULL, o)); /* poison propagates */
    /* C's types refuse a bare tensor; absent ones are refused here */
    assert_fails(tn_list_add(list, "w", TN_NONE), TN_E_INVALID, "want a name and a tensor");
    assert_ok(tn_list_set(list, "w", TN_NONE));
    assert_null(tn_sgd(list, o), TN_E_INVALID, "tn_sgd: w is absent");
    tn_tensor *w = leaf(TN_SHAPE(3), 1, TN_F32), *v = leaf(TN_SHAPE(3), 2, TN_F32);
    assert_null(adam(one(tn_mul_scalar(w, 2)), 0), TN_E_STATE,
                "tn_adam: w is the result of tn_mul_scalar: optimizers update leaves only");
    assert_null(tn_sgd(letters(2, (tn_tensor *[]){ w, w }), o), TN_E_NAME,
                "tn_sgd: b is given twice (also as a): want once");
    tn_optim *opt = owned(tn_sgd(one(w), o));
    assert_fails(add_group(opt, "x", w, (tn_group_options){ 0 }), TN_E_NAME,
                 "tn_optim_add_group: x is given twice (also as w)");
    assert_fails(add_group(opt, "w", v, (tn_group_options){ 0 }), TN_E_NAME,
                 "two parameters are named w");
    ck_assert_int_eq(tn_optim_groups(opt), 1);
}
END_TEST

START_TEST(OPT_03_names_are_kept)
{
    tn_tensor *t[2] = { leaf(TN_SHAPE(3), 1, TN_F32), leaf(TN_SHAPE(3), 2, TN_F32) };
    const char *name = "enc.w";
    tn_optim *opt = owned(sgd(list_of(1, &name, t), .momentum = .9));
    assert_ok(add_group(opt, "dec.w", t[1], (tn_group_options){ 0 }));
    assert_names(tn_optim_parameters(opt), "enc.w dec.w");
    set_grad(t[1], 3);
    assert_ok(tn_optim_step(opt));
    assert_made(tn_list_get(tn_optim_state_dict(opt), "dec.w.momentum_buffer"));
}
END_TEST

/* What nn/options/optim.c does not have: numbers that are not finite, and pairs that do not fit. */
START_TEST(OPT_06_bad_numbers)
{
    tn_list *l = one(leaf(TN_SHAPE(3), 1, TN_F32));
    assert_null(sgd(l, .lr = NAN), TN_E_INVALID, "tn_sgd: lr is nan");
    assert_null(sgd(l, .nesterov = true), TN_E_INVALID, "momentum > 0");
    assert_null(sgd(l, .nesterov = true, .momentum = .9, .dampening = .1), TN_E_INVALID,
                "no dampening");
    assert_null(adam(l, .beta2 = -.5), TN_E_INVALID, "tn_adam: beta2 is -0.5");
    assert_null(adamw(l, .weight_decay = INFINITY), TN_E_INVALID, "tn_adamw: weight_decay is inf");
    tn_optim *opt = owned(sgd(l, 0));
    ck_assert_double_eq(tn_optim_lr(opt, 0), 1e-3);
    assert_fails(tn_optim_set_lr(opt, 0, -1), TN_E_INVALID, "lr is -1");
    assert_fails(tn_optim_set_lr(opt, 1, 1), TN_E_INDEX, "group 1: there are 1");
    ck_assert(isnan(tn_optim_lr(opt, 3)));
}
END_TEST

START_TEST(OPT_07_buffers_are_refused_by_name)
{
    tn_module *m = owned(net_new());
    tn_list *buffers = tn_buffers(m);
    assert_null(sgd(buffers, 0), TN_E_NAME,
                "tn_sgd: table is a buffer: optimizers update parameters only");
    tn_tensor *mean = tn_get_buffer(m, "bn.running_mean");
    /* the same memory under another name and handle */
    assert_null(adamw(one(tn_detach(mean)), 0), TN_E_NAME,
                "tn_adamw: w shares memory with a buffer");
    assert_null(adam(one(tn_narrow(mean, 0, 0, 2)), 0), TN_E_NAME, "shares memory with a buffer");
    tn_list *all = tn_state_dict(m, "");
    assert_null(rmsprop(all, 0), TN_E_NAME,
                "tn_rmsprop: table is a buffer: optimizers update parameters only");
    tn_optim *opt = owned(adagrad(tn_parameters(m), 0));
    assert_fails(tn_optim_add_group(opt, buffers, (tn_group_options){ 0 }), TN_E_NAME,
                 "table is a buffer");
}
END_TEST

START_TEST(parameters_that_leave_their_module)
{
    tn_module *m = owned(net_new());
    tn_optim *opt = owned(sgd(tn_parameters(m), 0));
    net_backward(m, 1);
    assert_ok(tn_optim_step(opt));
    tn_tensor *bias = tn_get_parameter(m, "fc.bias"); /* a buffer, too, for a while */
    uint64_t hash = hash_of(tn_state_dict(m, ""));
    assert_ok(buffer(m, "late", NULL, bias));
    assert_fails(tn_optim_step(opt), TN_E_STATE, "tn_optim_step: fc.bias has become a buffer");
    assert_ok(tn_module_delete(m, "late"));
    ck_assert_uint_eq(hash_of(tn_state_dict(m, "")), hash);
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_module_set(m, "scale", tn_ones(TN_SHAPE(4))));
    hash = hash_of(tn_state_dict(m, ""));
    assert_fails(
        tn_optim_step(opt), TN_E_STATE,
        "tn_optim_step: scale is no longer a parameter of its module: make a new optimizer");
    ck_assert_uint_eq(hash_of(tn_state_dict(m, "")), hash);
    ck_assert_int_eq(tn_optim_steps(opt), 2);
    /* an optimizer outlives its module */
    m = net_new();
    opt = owned(adam(tn_parameters(m), 0));
    net_backward(m, 1);
    tn_module_drop(m);
    assert_ok(tn_optim_step(opt));
    ck_assert_int_eq(tn_optim_parameters(opt)->n, 5);
}
END_TEST

/* "gen_" ends in no dot: the parameter is found in its module all the same. Integers may be among
 * them if they are frozen. */
START_TEST(prefixes_and_frozen_integers)
{
    tn_module *m = owned(net_new());
    tn_tensor *ids = tn_from_ints((int64_t[]){ 1, 2 }, TN_SHAPE(2));
    assert_ok(tn_register_frozen(m, "ids", NULL, ids));
    tn_optim *opt = owned(sgd(tn_named_parameters(m, "gen_"), 0));
    net_backward(m, 1);
    assert_ok(tn_optim_step(opt));
    ck_assert_str_eq(tn_optim_parameters(opt)->entry[0].name, "gen_scale");
    assert_values(ids, 0, 1, 2);
}
END_TEST

START_TEST(OPT_08_no_gradient_is_skipped)
{
    tn_tensor *t[2] = { leaf(TN_SHAPE(3), 1, TN_F32), leaf(TN_SHAPE(3), 2, TN_F32) };
    tn_optim *opt = owned(adamw(letters(2, t), .lr = .1, .weight_decay = .5));
    set_grad(t[1], 3);
    uint64_t hash = tn_hash(t[0]);
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(tn_hash(t[0]), hash); /* no decay */
    tn_list *state = tn_optim_state_dict(opt);
    for (int i = 0; i < state->n; i++)
        ck_assert_msg(strncmp(state->entry[i].name, "a.", 2), "%s exists", state->entry[i].name);
    assert_made(tn_list_get(state, "b.exp_avg"));
    /* a gradient of zero counts: decay applies */
    assert_ok(tn_set_grad(t[0], tn_zeros(TN_SHAPE(3))));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_ne(tn_hash(t[0]), hash);
    /* its own count of steps: the second step of b, the first of a */
    state = tn_optim_state_dict(opt);
    ck_assert_int_eq((int)tn_item(tn_list_get(state, "a.step")), 1);
    ck_assert_int_eq((int)tn_item(tn_list_get(state, "b.step")), 2);
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_optim_zero_grad(opt));
        ck_assert(tn_is_none(tn_grad(t[0])) && tn_is_none(tn_grad(t[1])));
    }
}
END_TEST

START_TEST(OPT_08_frozen_is_skipped)
{
    tn_module *m = owned(net_new());
    tn_optim *opt = owned(sgd(tn_parameters(m), .lr = .1, .momentum = .9, .weight_decay = .5));
    net_backward(m, 1);
    tn_tensor *w = tn_get_parameter(m, "fc.weight");
    uint64_t hash = tn_hash(w);
    assert_ok(tn_set_requires_grad(w, false)); /* its gradient is still there */
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(tn_hash(w), hash);
    assert_ok(tn_set_requires_grad(w, true));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_ne(tn_hash(w), hash);
}
END_TEST

START_TEST(OPT_08_frozen_module_is_skipped)
{
    tn_module *m = owned(net_new());
    tn_optim *opt = owned(make_optimizer(_i, tn_parameters(m)));
    net_backward(m, 1);
    assert_ok(tn_optim_step(opt)); /* momentum has something to go on with */
    assert_ok(tn_module_freeze(tn_get_submodule(m, "fc")));
    uint64_t hash = hash_of(tn_parameters(tn_get_submodule(m, "fc")));
    tn_tensor *scale = tn_get_parameter(m, "scale");
    for (uint64_t k = 2; k < 4; k++) {
        uint64_t was = tn_hash(scale);
        assert_ok(tn_optim_zero_grad(opt));
        net_backward(m, k);
        assert_ok(tn_optim_step(opt));
        ck_assert_uint_ne(tn_hash(scale), was);
        ck_assert_uint_eq(hash_of(tn_parameters(tn_get_submodule(m, "fc"))), hash);
    }
    ck_assert_int_eq((int)tn_item(tn_list_get(tn_optim_state_dict(opt), "fc.weight.step")), 1);
    assert_ok(tn_module_thaw(tn_get_submodule(m, "fc")));
    net_backward(m, 4);
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_ne(hash_of(tn_parameters(tn_get_submodule(m, "fc"))), hash);
}
END_TEST

/* Every kind of optimizer with every kind of state: buffers change in training forwards only. */
START_TEST(buffers_are_untouched)
{
    tn_module *m = owned(net_new());
    tn_optim *opt = owned(make_optimizer(_i, tn_parameters(m)));
    for (int k = 0; k < 3; k++) {
        tn_scope s = tn_scope_begin();
        uint64_t was = hash_of(tn_buffers(m));
        assert_ok(tn_optim_zero_grad(opt));
        net_backward(m, 7 + (uint64_t)k);
        uint64_t before = hash_of(tn_buffers(m));
        ck_assert_uint_ne(was, before); /* BatchNorm moved them in forward */
        uint64_t parameters = hash_of(tn_parameters(m));
        assert_ok(tn_optim_step(opt));
        assert_ok(tn_eval(m));
        assert_made(tn_forward(m, tn_ones(TN_SHAPE(8, 4))));
        assert_ok(tn_train(m, true));
        ck_assert_uint_eq(hash_of(tn_buffers(m)), before);
        ck_assert_uint_ne(hash_of(tn_parameters(m)), parameters);
        tn_list *trained = tn_optim_parameters(opt);
        for (int i = 0; i < trained->n; i++) ck_assert_int_eq(trained->entry[i].kind, TN_PARAMETER);
        tn_scope_end(s);
    }
}
END_TEST

START_TEST(failed_step_changes_nothing)
{
    tn_memory_trim();
    scarce_install();
    tn_tensor *t[3];
    for (int i = 0; i < 3; i++) t[i] = leaf(TN_SHAPE(5000 * (i + 1)), (uint64_t)i, TN_F32);
    const tn_list *list = letters(3, t);
    tn_optim *opt = owned(adam(list, 0));
    for (int i = 0; i < 3; i++) set_grad(t[i], 9);
    uint64_t hash = hash_of(list), state = hash_of(tn_optim_state_dict(opt));
    bool failed = false;
    for (int k = 0;; k++) {
        tn_memory_trim();
        scarce_allow(k);
        tn_status status = tn_optim_step(opt);
        scarce_allow(INT64_MAX);
        if (status == TN_OK) break;
        failed = true;
        ck_assert_int_eq(status, TN_E_NOMEM);
        tn_error_clear();
        ck_assert_uint_eq(hash_of(list), hash);
        ck_assert_uint_eq(hash_of(tn_optim_state_dict(opt)), state);
        ck_assert_int_eq(tn_optim_steps(opt), 0);
        ck_assert_int_lt(k, 1000);
    }
    if (!TEST_ASAN) ck_assert(failed);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_ne(tn_hash(t[i]), tn_hash(leaf(tn_shape_get(t[i]), (uint64_t)i, TN_F32)));
}
END_TEST

START_TEST(poison_and_null)
{
    ck_assert_int_eq(tn_optim_step(NULL), TN_E_INVALID);
    tn_error_clear();
    ck_assert_int_eq(tn_optim_zero_grad(NULL), TN_E_INVALID);
    tn_error_clear();
    tn_optim_free(NULL);
    tn_scheduler_free(NULL);
    ck_assert_ptr_null(tn_step_lr(NULL, 3, 0.1));
    ck_assert_ptr_null(tn_optim_state_dict(NULL));
    ck_assert_int_eq(tn_optim_groups(NULL), -1);
    ck_assert(isnan(tn_optim_lr(NULL, 0)));
    ck_assert(isnan(tn_clip_grad_norm(NULL, 1, 2, false)));
    tn_error_clear();
}
END_TEST

/* ---- state ----------------------------------------------------------------------------------- */

START_TEST(groups_have_their_own_rates)
{
    tn_tensor *t[2] = { leaf(TN_SHAPE(3), 1, TN_F64), leaf(TN_SHAPE(3), 1, TN_F64) };
    tn_tensor *was = tn_clone(tn_detach(t[0]));
    tn_optim *opt = owned(sgd(letters(1, t), .lr = 0.5));
    assert_ok(add_group(opt, "b", t[1], (tn_group_options){ .lr = 0.25, .weight_decay = 0.5 }));
    ck_assert_int_eq(tn_optim_groups(opt), 2);
    tn_tensor *g = random_f64(TN_SHAPE(3), -1, 1, 5), *decayed = tn_mul_scalar(was, 0.5);
    for (int i = 0; i < 2; i++) assert_ok(tn_set_grad(t[i], tn_clone(g)));
    assert_ok(tn_optim_step(opt));
    assert_close(t[0], tn_sub(was, tn_mul_scalar(g, 0.5)), 1e-15, 1e-15);
    assert_close(t[1], tn_sub(was, tn_mul_scalar(tn_add(g, decayed), 0.25)), 1e-15, 1e-15);
    assert_ok(tn_optim_set_lr(opt, -1, 0.125));
    for (int i = 0; i < 2; i++) ck_assert_double_eq(tn_optim_lr(opt, i), 0.125);
}
END_TEST

static bool named(const tn_entry *entry, void *user)
{
    return strstr(entry->name, user) != NULL;
}

START_TEST(lists_are_filtered)
{
    tn_module *m = owned(net_new());
    tn_list *all = tn_parameters(m), *bn = tn_list_filter(all, named, "bn.");
    ck_assert_int_eq(bn->n, 2);
    ck_assert_str_eq(bn->entry[0].name, "bn.weight");
    ck_assert_ptr_eq(bn->entry[1].tensor, tn_get_parameter(m, "bn.bias"));
    ck_assert_ptr_eq(bn->entry[1].owner, tn_get_submodule(m, "bn"));
    ck_assert_int_eq(tn_list_filter(all, named, "nowhere")->n, 0);
    ck_assert_ptr_null(tn_list_filter(NULL, named, "bn."));
    tn_error_clear();
    assert_null(tn_list_filter(all, NULL, NULL), TN_E_INVALID, "keep is NULL");
}
END_TEST

START_TEST(decay_is_for_matrices)
{
    tn_module *m = owned(tn_sequential(embedding(5, 4, 0), conv2d(2, 3, 3, 0), norm2d(3),
                                       layernorm(TN_SHAPE(2, 4)), /* gains of two axes */
                                       encoder_layer(4, 2, .feedforward = 8)));
    tn_list *all = tn_parameters(m), *decay = tn_list_filter(all, tn_decay, NULL);
    tn_list *none = tn_list_filter(all, tn_no_decay, NULL);
    assert_names(decay, "0.weight 1.weight 4.self_attn.in_proj_weight 4.self_attn.out_proj.weight "
                        "4.linear1.weight 4.linear2.weight");
    ck_assert_int_eq(decay->n + none->n, all->n);
    ck_assert(tn_list_has(none, "3.weight"));
    /* raw leaves: by their axes */
    tn_list *raw = letters(2, (tn_tensor *[]){ tn_ones(TN_SHAPE(2, 2)), tn_ones(TN_SHAPE(2)) });
    assert_names(tn_list_filter(raw, tn_decay, NULL), "a");
}
END_TEST

/* PyTorch 2.15: AdamW([{W, weight_decay 0.3}, {b, gain, weight_decay 0}], lr 0.05), five steps of
 * mean(((x gain) W^T + b)^2), everything sin(0.7 i + phase) in f64. */
START_TEST(groups_equal_pytorch)
{
    static const double loss_at[] = { 1.3544563767911479, 1.013705203837997, 0.5711054456824286,
                                      0.39938892689823507, 0.32084129514081061 };
    const int64_t size[3][2] = { { 2, 3 }, { 2, 0 }, { 3, 0 } };
    tn_tensor *t[3];
    for (int k = 0; k < 3; k++) {
        double v[6];
        for (int i = 0; i < 6; i++) v[i] = (k == 2) + sin(0.7 * i + k + 1);
        t[k] = with_grad(from_f64(v, tn_shape_from(k ? 1 : 2, size[k])));
    }
    tn_list *all = list_of(3, (const char *[]){ "W", "b", "gain" }, t);
    tn_optim *opt =
        owned(adamw(tn_list_filter(all, tn_decay, NULL), .lr = 0.05, .weight_decay = 0.3));
    assert_ok(
        tn_optim_add_group(opt, tn_list_filter(all, tn_no_decay, NULL), (tn_group_options){ 0 }));
    for (int k = 1; k <= 5; k++) {
        double v[12];
        for (int i = 0; i < 12; i++) v[i] = sin(0.7 * i + k);
        tn_tensor *x = from_f64(v, TN_SHAPE(4, 3));
        tn_tensor *y = tn_add(tn_matmul(tn_mul(x, t[2]), tn_transpose(t[0], 0, 1)), t[1]);
        tn_tensor *loss = tn_mean_all(tn_square(y));
        ck_assert_double_eq_tol(tn_item(loss), loss_at[k - 1], 1e-14);
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(loss));
        assert_ok(tn_optim_step(opt));
    }
    assert_values(t[0], 1e-13, 0.55937806975715931, 0.71602978989387056, 0.50230094559221217,
                  0.11004721631533272, -0.34803817041862289, -0.88701326251580703);
    assert_values(t[1], 1e-13, 0.66903086951276758, 0.17997721266697911);
    assert_values(t[2], 1e-13, 0.91551715928159338, 0.2539773928160694, -0.14786482438804383);
    /* the list's order does not matter: groups in another order of parameters load this state */
    tn_list *swapped =
        list_of(3, (const char *[]){ "gain", "b", "W" }, (tn_tensor *[]){ t[2], t[1], t[0] });
    tn_optim *other = owned(adamw(tn_list_filter(swapped, tn_decay, NULL), .lr = 1));
    assert_ok(tn_optim_add_group(other, tn_list_filter(swapped, tn_no_decay, NULL),
                                 (tn_group_options){ 0 }));
    assert_ok(tn_optim_load_state_dict(other, tn_optim_state_dict(opt)));
    ck_assert_double_eq(tn_optim_lr(other, 1), 0.05);
}
END_TEST

/* Runs steps [from, to) of a problem on t. */
static void train(tn_optim *opt, tn_tensor *const *t, int n, int from, int to)
{
    for (int k = from; k < to; k++)
        for (int i = 0; i <= n; i++)
            if (i < n)
                set_grad(t[i], (uint64_t)(100 * k + i));
            else
                assert_ok(tn_optim_step(opt));
}

/* State is kept by name, bit for bit: the order of the parameters does not matter. */
START_TEST(OPT_09_state_fits_any_order)
{
    const char *names[3] = { "a", "b.c", "d" }, *reversed[3] = { "d", "b.c", "a" };
    tn_tensor *t[3] = { leaf(TN_SHAPE(3, 2), 1, TN_F32), leaf(TN_SHAPE(3, 2), 2, TN_F64),
                        leaf(TN_SHAPE(4), 3, TN_F32) };
    tn_optim *first = owned(make_optimizer(_i, list_of(3, names, t)));
    train(first, t, 2, 0, 5); /* d has no state yet */
    tn_tensor *u[3] = { copy_of(t[0]), copy_of(t[1]), copy_of(t[2]) };
    tn_optim *second =
        owned(make_optimizer(_i, list_of(3, reversed, (tn_tensor *[]){ u[2], u[1], u[0] })));
    assert_ok(tn_optim_set_lr(first, 0, 0.004));
    tn_list *state = tn_optim_state_dict(first), *shuffled = tn_list_new();
    for (int i = state->n - 1; i >= 0; i--)
        assert_ok(tn_list_add(shuffled, state->entry[i].name, state->entry[i].tensor));
    assert_ok(tn_optim_load_state_dict(second, shuffled));
    ck_assert_int_eq(tn_optim_steps(second), 5);
    ck_assert_double_eq(tn_optim_lr(second, 0), 0.004);
    train(first, t, 3, 5, 9);
    train(second, u, 3, 5, 9);
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(tn_hash(t[i]), tn_hash(u[i]));
    tn_list *others = tn_optim_state_dict(second);
    state = tn_optim_state_dict(first);
    ck_assert_int_eq(others->n, state->n);
    for (int i = 0; i < state->n; i++)
        ck_assert_uint_eq(tn_hash(tn_list_get(others, state->entry[i].name)),
                          tn_hash(state->entry[i].tensor));
}
END_TEST

/* The list above is complete: these tests' rows have every kind of optimizer but Muon, which takes
 * matrices only (test_optim_types.c). */
START_TEST(OPT_09_every_kind_is_walked)
{
    static const char *const kinds[] = { "sgd",  "adam",   "adamw", "rmsprop", "adagrad",
                                         "lion", "adamax", "nadam", "radam",   "adafactor" };
    for (int k = 0; k < COUNT(kinds); k++) {
        bool seen = false;
        char name[32];
        snprintf(name, sizeof name, "%s.steps", kinds[k]);
        for (int i = 0; i < COUNT(trajectories); i++) {
            tn_optim *opt = owned(make_optimizer(i, one(leaf(TN_SHAPE(1), 1, TN_F32))));
            seen |= tn_list_has(tn_optim_state_dict(opt), name);
        }
        ck_assert_msg(seen, "%s has no row", kinds[k]);
    }
}
END_TEST

START_TEST(OPT_09_state_that_does_not_fit)
{
    tn_tensor *t = leaf(TN_SHAPE(3, 2), 1, TN_F32);
    tn_tensor *u = leaf(TN_SHAPE(2, 3), 1, TN_F32);
    tn_tensor *v = leaf(TN_SHAPE(3, 2), 1, TN_F32);
    tn_optim *from = owned(adam(one(t), 0));
    train(from, &t, 1, 0, 2);
    tn_list *state = tn_optim_state_dict(from);
    tn_optim *shape = owned(adam(one(u), 0));
    train(shape, &u, 1, 0, 1);
    uint64_t hash = hash_of(tn_optim_state_dict(shape));
    assert_fails(tn_optim_load_state_dict(shape, state), TN_E_SHAPE,
                 "mismatched w.exp_avg ([3,2] f32 there, [2,3] f32 here), w.exp_avg_sq");
    ck_assert_uint_eq(hash_of(tn_optim_state_dict(shape)), hash);
    /* AdamW's state has the same tensors with another meaning */
    tn_optim *kind = owned(adamw(one(v), 0));
    assert_fails(tn_optim_load_state_dict(kind, state), TN_E_NAME,
                 "missing adamw.steps, adamw.beta1, adamw.beta2, adamw.eps");
    tn_optim *name = owned(adam(letters(1, &u), 0));
    assert_fails(tn_optim_load_state_dict(name, state), TN_E_NAME,
                 "unexpected w.exp_avg, w.exp_avg_sq, w.step: nothing was changed");
    tn_optim *flag = owned(adam(one(t), .maximize = true));
    assert_fails(tn_optim_load_state_dict(flag, state), TN_E_SHAPE,
                 "adam.maximize (0 there, 1 here)");
    assert_ok(add_group(from, "z", u, (tn_group_options){ 0 }));
    assert_fails(tn_optim_load_state_dict(from, state), TN_E_NAME,
                 "missing group.1.lr, group.1.base_lr");
}
END_TEST

/* Momentum that was saved and an optimizer without it: the message says that this is the reason. */
START_TEST(momentum_into_none)
{
    tn_tensor *w = leaf(TN_SHAPE(1), 1, TN_F32);
    tn_optim *from = owned(_i ? rmsprop(one(w), .momentum = .5) : sgd(one(w), .momentum = .5));
    tn_optim *to = owned(_i ? rmsprop(one(w), 0) : sgd(one(w), 0));
    set_grad(w, 2);
    assert_ok(tn_optim_step(from));
    assert_fails(tn_optim_load_state_dict(to, tn_optim_state_dict(from)), TN_E_NAME,
                 "momentum_buffer; mismatched ");
    assert_ok(tn_optim_zero_grad(from));
    assert_fails(tn_optim_load_state_dict(to, tn_optim_state_dict(from)), TN_E_NAME,
                 "momentum (0.5 there, here an optimizer without)");
}
END_TEST

/* The optimizer's own state with this value under a name is refused. */
static void assert_unfit(tn_optim *opt, const char *name, tn_tensor *value, const char *text)
{
    tn_list *state = tn_optim_state_dict(opt);
    assert_ok(tn_list_set(state, name, value));
    assert_fails(tn_optim_load_state_dict(opt, state), TN_E_SHAPE, text);
}

START_TEST(numbers_from_files_are_looked_at)
{
    tn_module *m = owned(one_weight());
    tn_optim *opt = owned(adam(tn_parameters(m), .lr = 0.25));
    tn_scheduler *s = owned(tn_constant_lr(opt, 1, 1));
    const char *const names[] = { "group.0.lr", "group.0.base_lr", "group.0.weight_decay",
                                  "adam.beta1", "adam.eps" };
    const double bad[] = { NAN, INFINITY, -1 };
    const int64_t most = INT64_MAX;
    tn_tensor *steps = tn_from_data(&most, TN_SCALAR, TN_I64);
    for (int i = 0; i < COUNT(names); i++)
        for (int k = 0; k < 3; k++)
            assert_unfit(opt, names[i], from_f64(&bad[k], TN_SCALAR), names[i]);
    assert_unfit(opt, "adam.beta2", from_f64((double[]){ 1 }, TN_SCALAR), "want in [0, 1)");
    assert_unfit(opt, "adam.steps", steps, "want a count of steps");
    tn_list *state = tn_scheduler_state_dict(s);
    assert_ok(tn_list_set(state, "constant_lr.lr.0", from_f64(&bad[0], TN_SCALAR)));
    assert_fails(tn_scheduler_load_state_dict(s, state), TN_E_INVALID, "rate nan");
    state = tn_scheduler_state_dict(s);
    assert_ok(tn_list_set(state, "constant_lr.step", steps));
    assert_fails(tn_scheduler_load_state_dict(s, state), TN_E_INVALID, "outside the schedule");
    ck_assert(tn_optim_lr(opt, 0) == 0.25 && tn_optim_steps(opt) == 0);
}
END_TEST

/* b = g + b / 2, w -= b, with g = 1: by hand; the state is cast with the module, Adam's as well. */
START_TEST(state_follows_casts_of_the_module)
{
    tn_module *m = owned(one_weight());
    tn_tensor *w = tn_get_parameter(m, "w");
    tn_optim *opt = owned(_i ? adam(tn_parameters(m), .lr = .01)
                             : sgd(tn_parameters(m), .lr = 1, .momentum = 0.5));
    const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F32 };
    const double wanted[] = { 0, -1.5, -3.25, -5.125 };
    assert_ok(tn_set_grad(w, tn_ones_like(w)));
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_module_to_dtype(m, dtypes[i])); /* the gradient is cast, too */
        assert_ok(tn_optim_step(opt));
        if (!_i) assert_values(w, 0, wanted[i], wanted[i]);
        tn_list *state = tn_optim_state_dict(opt);
        tn_tensor *b = tn_list_get(state, _i ? "w.exp_avg" : "w.momentum_buffer");
        ck_assert_int_eq(tn_dtype_of(b), dtypes[i]);
        ck_assert_int_eq((int)tn_item(tn_list_get(state, "w.step")), i + 1);
    }
}
END_TEST

/* A graph from before the cast gives a gradient of its own dtype: the step says so. */
START_TEST(a_gradient_from_before_a_cast_is_named)
{
    tn_module *m = owned(one_weight());
    tn_tensor *w = tn_get_parameter(m, "w");
    tn_optim *opt = owned(sgd(tn_parameters(m), .lr = 1));
    tn_tensor *loss = tn_sum_all(tn_mul(w, w));
    assert_ok(tn_module_to_dtype(m, TN_F64));
    assert_ok(tn_backward(loss));
    assert_fails(tn_optim_step(opt), TN_E_DTYPE, "w is f64, its gradient f32");
    assert_values(w, 0, 1, 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("optim");
    TCase *t = test_case(suite, "numbers");
    add_tests(t, golden_vectors, step_is_an_in_place_change, threads_do_not_change_bits,
              weight_decay_of_a_group, momentum_and_its_state, numbers_of_one_group);
    tcase_add_loop_test(t, strided_parameters_and_gradients, 0, 2);
    tcase_add_loop_test(t, mixed_dtypes_empty_and_scalar_parameters_in_one_step, 0, 2);
    tcase_add_loop_test(t, numbers_of_all_groups, 0, COUNT(numbers));
    tcase_add_loop_test(t, trajectory_equals_pytorch, 0, 2 * COUNT(trajectories));
    tcase_add_loop_test(t, matrix_trajectory_equals_pytorch, 0, COUNT(matrices));
    tcase_add_loop_test(t, numbers_of_groups_equal_pytorch, 0, COUNT(of_groups));
    t = test_case(suite, "refusals");
    add_tests(t, OPT_01_OPT_02_OPT_04_OPT_05_lists_that_are_refused, OPT_03_names_are_kept,
              OPT_06_bad_numbers, OPT_07_buffers_are_refused_by_name,
              parameters_that_leave_their_module, prefixes_and_frozen_integers,
              OPT_08_no_gradient_is_skipped, OPT_08_frozen_is_skipped, failed_step_changes_nothing,
              poison_and_null);
    tcase_add_loop_test(t, OPT_08_frozen_module_is_skipped, 0, COUNT(trajectories));
    tcase_add_loop_test(t, buffers_are_untouched, 0, COUNT(trajectories));
    t = test_case(suite, "state");
    add_tests(t, groups_have_their_own_rates, lists_are_filtered, decay_is_for_matrices,
              groups_equal_pytorch, OPT_09_every_kind_is_walked, OPT_09_state_that_does_not_fit,
              numbers_from_files_are_looked_at, a_gradient_from_before_a_cast_is_named);
    tcase_add_loop_test(t, momentum_into_none, 0, 2);
    tcase_add_loop_test(t, state_follows_casts_of_the_module, 0, 2);
    tcase_add_loop_test(t, OPT_09_state_fits_any_order, 0, COUNT(trajectories));
    return suite;
}
