/*
 * test_recipes.c - options that mean what Keras, optax, flax, Paddle and MLX mean: optimizers and
 * running statistics against these packages (golden/recipes.safetensors, make_recipes.py).
 *
 * Seen to fail: without the factor on eps, or with MLX's m corrected, in src/optim/optimizers.c;
 * with eps beside the root in src/tensor/optim_formulas.h; without the share 1 / n, or the check
 * behind it, in src/nn/layers/batchnorm.c; with n - 1 in src/nn/micro_batches.c; without the option
 * in what src/io/batch.c reads.
 */
#include "files.h"
#include "leaves.h"
#include "scarce.h"

static tn_list *golden;

static tn_tensor *golden_of(const char *what, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s/%s", what, name);
    return tn_list_get(golden, key);
}

/* Relative to the largest value. */
static double apart(tn_tensor *ours, tn_tensor *theirs)
{
    tn_tensor *d = tn_max_all(tn_abs(tn_sub(ours, theirs)));
    assert_made(d);
    return tn_item(d) / tn_item(tn_max_all(tn_abs(theirs)));
}

/* ---- optimizers ------------------------------------------------------------------------------ */

/* Each as the package has it, and without the option. */
static tn_optim *made(int i, const tn_list *p, bool option)
{
    const tn_adam_options adam = { .lr = 0.1, .eps = 1e-3, .eps_hat = option };
    tn_adam_options amsgrad = adam, mlx = { .lr = 0.02, .eps = 1e-3, .no_bias_correction = option };
    amsgrad.weight_decay = 0.05, amsgrad.amsgrad = true;
    tn_adam_options mlxw = mlx;
    mlxw.beta1 = 0.8, mlxw.beta2 = 0.95, mlxw.weight_decay = 0.1;
    tn_rmsprop_options optax = { .lr = 0.05, .alpha = 0.9, .eps = 1e-3, .eps_in_sqrt = option };
    tn_rmsprop_options paddle = optax, keras, outside = optax;
    paddle.momentum = 0.5;
    keras = paddle, keras.centered = true;
    outside.eps_in_sqrt = !option;
    switch (i) {
    case 0: return tn_adam(p, adam);
    case 1: return tn_adamw(p, amsgrad);
    case 2: return tn_adam(p, mlx);
    case 3: return tn_adamw(p, mlxw);
    case 4: return tn_rmsprop(p, keras);
    case 5: return tn_rmsprop(p, paddle);
    case 6: return tn_rmsprop(p, optax);
    case 7: return tn_rmsprop(p, outside);
    default: /* the sum begins with eps, which stays under the root */
        return tn_adagrad(p, (tn_adagrad_options){ .lr = 0.05,
                                                   .initial_accumulator = option ? 0.11 : 0.1,
                                                   .eps = option ? 0 : 1e-2,
                                                   .use_eps = true });
    }
}
static const char *const packages[] = { "keras_adam",    "keras_adamw_amsgrad", "mlx_adam",
                                        "mlx_adamw",     "keras_rmsprop",       "paddle_rmsprop",
                                        "optax_rmsprop", "mlx_rmsprop",         "optax_adagrad" };
enum { RECIPES = sizeof packages / sizeof *packages };

/* How far the parameters are at most from the package's in 12 steps. */
static double trained_apart(int i, bool option, tn_dtype dtype)
{
    tn_tensor *p = with_grad(tn_clone(tn_to_dtype(tn_list_get(golden, "start"), dtype)));
    tn_tensor *g = tn_list_get(golden, "gradients"), *want = golden_of("optim", packages[i]);
    tn_optim *opt = owned(made(i, one(p), option));
    double most = 0;
    for (int k = 0; k < 12; k++) {
        assert_ok(tn_set_grad(p, tn_to_dtype(tn_select(g, 0, k), dtype)));
        assert_ok(tn_optim_step(opt));
        most = fmax(most, apart(tn_to_dtype(tn_detach(p), TN_F32), tn_select(want, 0, k)));
    }
    return most;
}

START_TEST(as_the_package_steps)
{
    const double with = trained_apart(_i, true, TN_F32), wide = trained_apart(_i, true, TN_F64);
    const double without = trained_apart(_i, false, TN_F32);
    ck_assert_msg(with < 1e-6 && wide < 1e-6, "%s: %g apart, in f64 %g", packages[_i], with, wide);
    ck_assert_msg(without > 1e-4, "%s: %g apart without the option", packages[_i], without);
}
END_TEST

/* A file has the switch only where it is on, and then wants it: so files of before are read. */
START_TEST(state_says_which)
{
    tn_tensor *p = leaf(TN_SHAPE(3), 1, TN_F32), *q = leaf(TN_SHAPE(3), 1, TN_F32);
    tn_optim *plain = owned(made(0, one(p), false)), *hat = owned(made(0, one(q), true));
    set_grad(p, 2), set_grad(q, 2);
    assert_ok(tn_optim_step(plain));
    assert_ok(tn_optim_step(hat));
    tn_list *of_plain = tn_optim_state_dict(plain), *of_hat = tn_optim_state_dict(hat);
    ck_assert(!tn_list_has(of_plain, "adam.eps_hat"));
    ck_assert_double_eq(tn_item(tn_list_get(of_hat, "adam.eps_hat")), 1);
    assert_fails(tn_optim_load_state_dict(plain, of_hat), TN_E_SHAPE,
                 "adam.eps_hat (1 there, 0 here)");
    assert_fails(tn_optim_load_state_dict(hat, of_plain), TN_E_SHAPE, "adam.eps_hat (0 there");
    ck_assert_double_eq(tn_optim_number(hat, 0, "eps_hat"), 1);
    assert_ok(tn_optim_load_state_dict(plain, of_plain));
    assert_ok(tn_optim_load_state_dict(hat, of_hat));
}
END_TEST

/* ---- running statistics ---------------------------------------------------------------------- */

static tn_module *norm(double momentum, bool biased)
{
    return owned(tn_batch_norm1d_new(
        4, (tn_batch_norm_options){ .momentum = momentum, .biased_var = biased }));
}

static double statistics_apart(const char *name, bool biased)
{
    tn_module *m = norm(0.3, biased);
    tn_tensor *x = tn_list_get(golden, "batches"), *want = golden_of("norm", name);
    double most = 0;
    for (int k = 0; k < 3; k++) {
        assert_made(tn_forward(m, tn_select(x, 0, k)));
        for (int i = 0; i < 2; i++) {
            tn_tensor *ours = tn_get_buffer(m, i ? "running_var" : "running_mean");
            most = fmax(most, apart(ours, tn_select(tn_select(want, 0, k), 0, i)));
        }
    }
    return most;
}

START_TEST(as_the_package_remembers)
{
    static const char *const name[] = { "keras", "flax", "paddle", "mlx" };
    const bool biased = _i < 3;
    const double same = statistics_apart(name[_i], biased);
    ck_assert_msg(same < 1e-5, "%s: %g apart", name[_i], same);
    ck_assert_double_gt(statistics_apart(name[_i], !biased), 1e-2);
}
END_TEST

/* Of 1 .. 6 in each channel the biased variance is 35 / 12. */
static tn_tensor *six(int from, int n)
{
    tn_tensor *x = tn_reshape(tn_arange(from, from + n, 1, TN_F32), TN_SHAPE(n, 1));
    return tn_clone(tn_expand(x, TN_SHAPE(n, 4)));
}

static void assert_variance(tn_module *m, double want)
{
    tn_tensor *var = tn_get_buffer(m, "running_var");
    assert_close(var, tn_full(TN_SHAPE(4), want), 1e-6, 0);
}

START_TEST(biased_of_a_batch_in_parts)
{
    tn_module *whole = norm(0.5, true), *parts = norm(0.5, true), *frozen = norm(0.5, true);
    assert_made(tn_forward(whole, six(1, 6)));
    assert_variance(whole, 0.5 + 35. / 24);
    TN_MICRO_BATCHES(i, 2) assert_made(tn_forward(parts, i ? six(3, 4) : six(1, 2)));
    assert_variance(parts, 0.5 + 35. / 24);
    assert_ok(tn_eval(frozen));
    assert_made(tn_forward(frozen, six(1, 6)));
    assert_variance(frozen, 1);
}
END_TEST

/* The second part does not call the layer: what is to be done is in the file. */
START_TEST(biased_after_a_checkpoint_within_a_batch)
{
    const char *path = in_folder("within.safetensors");
    tn_module *m = norm(0.5, true), *again = norm(0.5, true);
    tn_checkpoint c = { .model = m }, back = { .model = again };
    TN_MICRO_BATCHES(i, 2)
    {
        if (i == 0) assert_made(tn_forward(m, six(1, 6)));
        if (i == 0) assert_ok(tn_checkpoint_save(&c, path));
    }
    assert_variance(m, 0.5 + 35. / 24);
    assert_ok(tn_checkpoint_load(&back, path));
    TN_MICRO_BATCHES(i, 2) ck_assert_int_eq(i, 1);
    assert_variance(again, 0.5 + 35. / 24);
}
END_TEST

static tn_status call_norm(void *user)
{
    tn_tensor *y = tn_forward(user, six(1, 6));
    return y ? TN_OK : tn_error_status();
}

/* What n batches make of 1, for the n that is counted: a call that failed has moved nothing. */
static void is_as_counted(void *user)
{
    double left = pow(0.5, tn_item(tn_get_buffer(user, "num_batches_tracked")));
    assert_variance(user, left + (1 - left) * 35 / 12);
    assert_close(tn_get_buffer(user, "running_mean"), tn_full(TN_SHAPE(4), 3.5 * (1 - left)), 1e-6,
                 1e-6);
}

START_TEST(without_memory_nothing_moves)
{
    scarce_install();
    tn_module *m = norm(0.5, true);
    ck_assert_int_gt(scarce_sweep(call_norm, is_as_counted, m), 3);
    is_as_counted(m);
}
END_TEST

static void read_golden(void)
{
    golden = tn_load_tensors(golden_path("recipes.safetensors"), NULL);
    assert_made(golden);
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("recipes");
    TCase *t = test_case(suite, "recipes");
    tcase_add_checked_fixture(t, read_golden, NULL);
    tcase_add_loop_test(t, as_the_package_steps, 0, RECIPES);
    tcase_add_loop_test(t, as_the_package_remembers, 0, 4);
    tcase_add_test(t, state_says_which);
    tcase_add_test(t, biased_of_a_batch_in_parts);
    tcase_add_test(file_case(suite, "files"), biased_after_a_checkpoint_within_a_batch);
    TCase *memory = test_case(suite, "memory");
    tcase_add_test(memory, without_memory_nothing_moves);
    return suite;
}
