/*
 * test_anomaly.c - NaN and infinities put into inputs, weights, buffers, gradients, losses and
 * ops: tn_set_anomaly names each in the step where it appears; healthy values pass; a skipped step
 * changes nothing.
 *
 * Seen to fail: without is_mask (src/autograd/anomaly.c) masks_of_minus_infinity_pass; without
 * check_arrived the sums of gradients; without places kept in nodes a_fault_of_a_gradient; with ops
 * inside of backwards looked at too, the message names those; without the look at the sum with an
 * old grad (backward.c) a bad one passes.
 */
#include <pthread.h>
#include <stdlib.h>

#include "autograd/gradients.h"
#include "models.h"
#include "nn/boxes.h"

/* ---- faults in the two models ---------------------------------------------------------------- */

enum { CNN, TRANSFORMER };

/* The middle element of a parameter, a buffer or, named "", the input becomes value. The message
 * names the op, the module where it was called, and the tensor as the cause. */
static const struct {
    int model;
    const char *name;
    double value;
    const char *op, *why;
} planted[] = {
    { CNN, "", NAN, "tn_conv2d: the result [4,32,28,28] holds nan, first at [2,0,",
      "input 0, images [4,1,28,28], holds nan" },
    { CNN, "", INFINITY, "tn_conv2d: ", "input 0, images [4,1,28,28], holds inf" },
    { CNN, "", -INFINITY, "tn_conv2d: ", "input 0, images [4,1,28,28], holds -inf" },
    { CNN, "conv1.weight", NAN, "tn_conv2d: ", "input 1, weight [32,1,3,3], holds nan" },
    { CNN, "conv1.weight", INFINITY, "tn_conv2d: ", "input 1, weight [32,1,3,3], holds inf" },
    { CNN, "conv1.bias", NAN, "tn_conv2d: ", "input 2, bias [32], holds nan" },
    { CNN, "bn1.weight", NAN, "tn_batch_norm: ", "input 1, weight [32], holds nan" },
    { CNN, "bn1.bias", INFINITY, "tn_batch_norm: ", "input 2, bias [32], holds inf" },
    { CNN, "conv2.weight", -INFINITY, "tn_conv2d: ", "input 1, weight [64,32,3,3], holds -inf" },
    { CNN, "bn2.weight", INFINITY, "tn_batch_norm: ", "input 1, weight [64], holds inf" },
    { CNN, "fc1.weight", NAN, "tn_linear: the result [4,128] holds nan",
      "input 1, weight [128,3136], holds nan" },
    { CNN, "fc1.bias", INFINITY, "tn_linear: the result [4,128] holds inf, first at [0,64];",
      "input 2, bias [128], holds inf" },
    { CNN, "fc2.weight", NAN, "tn_linear: ", "input 1, weight [10,128], holds nan" },
    { CNN, "fc2.bias", NAN, "tn_linear: the result [4,10] holds nan, first at [0,5];",
      "input 2, bias [10], holds nan" },
    { TRANSFORMER, "embed.weight", NAN, "tn_embedding: ", "input 0, weight [63,32], holds nan" },
    { TRANSFORMER, "position.pe", NAN, "tn_add: ", "input 1, [1,16,32], holds nan" },
    { TRANSFORMER, "encoder.layers.0.norm1.weight", NAN,
      "tn_layer_norm: ", "input 1, weight [32], holds nan" },
    { TRANSFORMER, "encoder.layers.0.self_attn.in_proj_weight", NAN, "tn_linear: ", "holds nan" },
    { TRANSFORMER, "encoder.layers.0.self_attn.out_proj.weight", INFINITY,
      "tn_linear: ", "weight [32,32], holds inf" },
    { TRANSFORMER, "encoder.layers.1.linear1.weight", NAN,
      "tn_linear: ", "weight [128,32], holds nan" },
    { TRANSFORMER, "encoder.layers.1.linear2.bias", INFINITY,
      "tn_linear: ", "bias [32], holds inf" },
    { TRANSFORMER, "encoder.norm.bias", NAN, "tn_layer_norm: ", "input 2, bias [32], holds nan" },
    { TRANSFORMER, "head.weight", NAN, "tn_linear: ", "weight [63,32], holds nan" },
};

static void plant(tn_tensor *t, double value)
{
    tn_tensor *flat;
    TN_NO_GRAD
    {
        flat = tn_reshape(t, TN_SHAPE(-1));
        assert_ok(tn_fill_(tn_narrow(flat, 0, tn_numel(t) / 2, 1), value));
    }
}

/* Ids that reach every row of an embedding. */
static tn_tensor *all_ids(void)
{
    int64_t id[64];
    for (int i = 0; i < 64; i++) id[i] = i % MODEL_VOCAB;
    return tn_from_ints(id, TN_SHAPE(4, 16));
}

START_TEST(a_fault_in_a_model)
{
    tn_manual_seed(1);
    tn_tensor *x, *y;
    tn_module *m = owned(planted[_i].model == CNN ? cnn_new() : transformer_new());
    if (planted[_i].model == CNN)
        synthetic_images(3, TN_F32, &x, &y);
    else
        x = y = all_ids();
    assert_ok(tn_set_name(x, "images"));
    tn_optim *opt = owned(tn_adam(tn_parameters(m), (tn_adam_options){ 0 }));
    tn_set_anomaly(TN_ANOMALY_ALL);
    train_step(m, opt, x, y);
    tn_list *state = tn_state_dict(m, NULL);
    plant(planted[_i].name[0] ? tn_list_get(state, planted[_i].name) : x, planted[_i].value);
    ck_assert_ptr_null(tn_forward(m, x));
    ck_assert_int_eq(tn_error_status(), TN_E_STATE);
    char path[64], place[96];
    const char *name = planted[_i].name, *dot = strrchr(name, '.');
    snprintf(path, sizeof path, "%.*s", dot ? (int)(dot - name) : 5, dot ? name : "conv1");
    snprintf(place, sizeof place, ": want finite values (in %s: %s)", path,
             tn_get_submodule(m, path)->type->name);
    const char *says[] = { planted[_i].op, planted[_i].why, place };
    for (int i = 0; i < COUNT(says); i++)
        ck_assert_msg(strstr(tn_error(), says[i]), "\"%s\" lacks \"%s\"", tn_error(), says[i]);
    tn_error_clear();
}
END_TEST

/* ---- faults of ops --------------------------------------------------------------------------- */

static tn_tensor *x0; /* {0, 1, 2}, wants a gradient */

/* 2e38 comes twice */
static tn_tensor *twice(tn_tensor *h)
{
    return tn_add(tn_mul_scalar(h, 2e38 / 256), tn_mul_scalar(h, 2e38 / 256));
}

#define FAULT(name, seed, message, ...)                                                            \
    static tn_tensor *name(void)                                                                   \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
#include "autograd/anomaly_faults.def"
#undef FAULT

static const struct {
    const char *name;
    tn_tensor *(*f)(void);
    double seed;
    const char *wanted;
} ops[] = {
#define FAULT(name, seed, message, ...) { #name, name, seed, message },
#include "autograd/anomaly_faults.def"
#undef FAULT
};

START_TEST(a_fault_of_an_op)
{
    x0 = leaf(F32(TN_SHAPE(3), 0, 1, 2));
    assert_ok(tn_set_name(x0, "x0"));
    tn_set_anomaly(TN_ANOMALY_ALL);
    tn_tensor *y = ops[_i].f();
    if (ops[_i].seed == 0) {
        ck_assert_msg(!y, "%s passed", ops[_i].name);
    } else {
        assert_made(y);
        tn_tensor *seed = tn_full_as(tn_shape_get(y), ops[_i].seed, TN_F32, tn_cpu());
        ck_assert_msg(tn_backward_from(y, seed, 0) != TN_OK, "%s passed", ops[_i].name);
    }
    assert_error(TN_E_STATE, ops[_i].wanted);
    ck_assert(tn_is_none(tn_grad(x0)));
    tn_set_anomaly(TN_ANOMALY_OFF); /* without the checks it passes */
    y = ops[_i].f();
    assert_made(y);
    assert_ok(tn_backward_from(y, tn_ones_like(y), 0));
}
END_TEST

/* ---- faults of gradients in a model ---------------------------------------------------------- */

HOOK(spoil, tn_mul_scalar(g, *(const double *)user))

static tn_status spoil_input(tn_module *m, int n_in, tn_tensor **grad_in, int n_out,
                             tn_tensor *const *grad_out, void *user)
{
    (void)m, (void)n_in, (void)n_out, (void)grad_out;
    grad_in[0] = spoil(grad_in[0], user);
    return grad_in[0] ? TN_OK : tn_error_status();
}

/* sqrt has an infinite slope at 0, which relu makes: found in the backward of the middle module. */
static tn_tensor *roots(box *m, tn_tensor *x)
{
    (void)m;
    return tn_sqrt(tn_relu(x));
}

static tn_module *with_roots(void)
{
    tn_manual_seed(2);
    box *m = box_new();
    m->run = roots;
    return tn_sequential(linear(3, 8), &m->base, linear(8, 3));
}

static uint64_t optim_hash(tn_optim *opt)
{
    tn_list *state = tn_optim_state_dict(opt);
    uint64_t hash = 0;
    for (int i = 0; i < state->n; i++) hash = hash * 31 + tn_hash(state->entry[i].tensor);
    return hash;
}

START_TEST(a_fault_of_a_gradient)
{
    static const double values[] = { NAN, INFINITY, -INFINITY };
    double value = values[_i];
    tn_module *m = owned(with_roots());
    tn_tensor *x = random_as(TN_SHAPE(4, 3), -1, 1, 3, TN_F32);
    tn_tensor *weight = tn_get_parameter(m, "2.weight");
    tn_optim *opt = owned(tn_adam(tn_parameters(m), (tn_adam_options){ 0 }));
    uint64_t state = state_hash(m), moments = optim_hash(opt);
    tn_set_anomaly(_i & 1 ? TN_ANOMALY_ALL : TN_ANOMALY_GRADIENTS);
#define BACKWARD_FAILS(text)                                                                       \
    do {                                                                                           \
        tn_tensor *loss_ = tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false);                   \
        assert_made(loss_);                                                                        \
        assert_fails(tn_backward(loss_), TN_E_STATE, text);                                        \
        ck_assert(tn_is_none(tn_grad(weight)));                                                    \
    } while (0)

    BACKWARD_FAILS(
        "the backward of tn_sqrt made a gradient for its input 0, [4,8], that holds inf, "
        "first at [0,");
    BACKWARD_FAILS(": want finite values (in 1: Box)");

    int64_t hook = tn_register_hook(weight, spoil, &value);
    ((box *)tn_module_child(m, 1))->run = NULL;
    BACKWARD_FAILS("the gradient of weight [3,8] holds ");
    tn_remove_hook(weight, hook);

    hook = tn_register_full_backward_hook(tn_module_child(m, 2), spoil_input, &value);
    BACKWARD_FAILS("(in 2: Linear)"); /* the hook's gradient leaves that module's gate */
    tn_remove_module_hook(tn_module_child(m, 2), hook);

    assert_ok(tn_set_grad(weight, tn_full(TN_SHAPE(3, 8), value)));
    tn_tensor *loss = tn_mean(tn_forward(m, x), NULL, 0, false);
    assert_fails(tn_backward(loss), TN_E_STATE, "the gradient of weight [3,8] holds ");
    assert_ok(tn_module_zero_grad(m));

    /* tn_gradients looks too, also when it records */
    hook = tn_register_hook(weight, spoil, &value);
    loss = tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false);
    tn_tensor *g;
    assert_fails(tn_gradients(1, &loss, NULL, 1, &weight, &g, TN_CREATE_GRAPH), TN_E_STATE,
                 "the gradient of weight");
    tn_remove_hook(weight, hook);
    ck_assert_uint_eq(state_hash(m), state);
    ck_assert_uint_eq(optim_hash(opt), moments);
}
END_TEST

/* ---- modes ----------------------------------------------------------------------------------- */

START_TEST(gradients_only)
{
    x0 = leaf(F32(TN_SHAPE(3), 0, 1, 2));
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_GRADIENTS), TN_ANOMALY_OFF);
    tn_tensor *y = log_of_zero();
    assert_made(y);
    assert_fails(tn_backward_from(y, tn_ones_like(y), 0), TN_E_STATE,
                 "the backward of tn_log made a gradient for its input 0, [3], that holds inf");
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_ALL), TN_ANOMALY_GRADIENTS);
    assert_null(log_of_zero(), TN_E_STATE, "tn_log");
    ck_assert_int_eq(tn_set_anomaly((tn_anomaly)7), TN_ANOMALY_ALL); /* no mode: no change */
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_OFF), TN_ANOMALY_ALL);
    assert_made(log_of_zero());
}
END_TEST

static tn_anomaly found[2];

/* A thread's first op, or its first backward, reads the environment. */
static void *in_a_thread(void *user)
{
    tn_tensor *y = user;
    tn_scope scope = tn_scope_begin();
    if (y)
        found[0] = tn_backward_from(y, tn_ones_like(y), 0) == TN_OK ? TN_ANOMALY_OFF
                                                                    : TN_ANOMALY_GRADIENTS;
    else
        found[0] = tn_log(tn_zeros(TN_SHAPE(2))) ? TN_ANOMALY_OFF : TN_ANOMALY_ALL;
    found[1] = tn_set_anomaly(TN_ANOMALY_OFF);
    tn_scope_end(scope);
    return NULL;
}

START_TEST(the_environment)
{
    static const struct {
        const char *value;
        tn_anomaly op, backward, mode;
    } wanted[] = {
        { NULL, TN_ANOMALY_OFF, TN_ANOMALY_OFF, TN_ANOMALY_OFF },
        { "", TN_ANOMALY_OFF, TN_ANOMALY_OFF, TN_ANOMALY_OFF },
        { "0", TN_ANOMALY_OFF, TN_ANOMALY_OFF, TN_ANOMALY_OFF },
        { "1", TN_ANOMALY_ALL, TN_ANOMALY_GRADIENTS, TN_ANOMALY_ALL },
        { "gradients", TN_ANOMALY_OFF, TN_ANOMALY_GRADIENTS, TN_ANOMALY_GRADIENTS },
    };
    x0 = leaf(tn_zeros(TN_SHAPE(3)));
    for (int i = 0; i < COUNT(wanted); i++) {
        for (int backward = 0; backward < 2; backward++) {
            tn_tensor *y = backward ? tn_sqrt(x0) : NULL;
            if (wanted[i].value) setenv("TN_ANOMALY", wanted[i].value, 1);
            pthread_t thread;
            ck_assert_int_eq(pthread_create(&thread, NULL, in_a_thread, y), 0);
            pthread_join(thread, NULL);
            unsetenv("TN_ANOMALY");
            ck_assert_int_eq(found[0], backward ? wanted[i].backward : wanted[i].op);
            ck_assert_int_eq(found[1], wanted[i].mode);
        }
    }
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_OFF), TN_ANOMALY_OFF); /* this thread's stays */
}
END_TEST

/* ---- what is healthy passes ------------------------------------------------------------------ */

START_TEST(healthy_training_passes_unchanged)
{
    uint64_t hash[3];
    for (int mode = TN_ANOMALY_OFF; mode <= TN_ANOMALY_ALL; mode++) {
        tn_manual_seed(6);
        tn_set_anomaly((tn_anomaly)mode);
        tn_module *m = owned(_i ? cnn_new() : transformer_new());
        tn_optim *opt = owned(tn_adam(tn_parameters(m), (tn_adam_options){ .lr = 1e-3 }));
        for (int step = 0; step < 3; step++) {
            tn_scope scope = tn_scope_begin();
            tn_tensor *x, *y;
            if (_i)
                synthetic_images(step, TN_F32, &x, &y);
            else
                random_text(2, &x, &y);
            train_step(m, opt, x, y);
            tn_scope_end(scope);
        }
        hash[mode] = state_hash(m);
    }
    ck_assert_uint_eq(hash[1], hash[0]);
    ck_assert_uint_eq(hash[2], hash[0]);
}
END_TEST

START_TEST(masks_of_minus_infinity_pass)
{
    tn_set_anomaly(TN_ANOMALY_ALL);
    tn_tensor *scores = leaf(random_as(TN_SHAPE(4, 4), -1, 1, 8, TN_F32));
    tn_tensor *blocked = tn_gt_scalar(tn_triu(tn_ones(TN_SHAPE(4, 4)), 1), 0);
    tn_tensor *mask = tn_masked_fill(tn_zeros(TN_SHAPE(4, 4)), blocked, -INFINITY);
    assert_made(mask);
    tn_tensor *a = tn_softmax(tn_masked_fill(scores, blocked, -INFINITY), -1);
    tn_tensor *b = tn_softmax(tn_add(scores, mask), -1);
    tn_tensor *c = tn_log_softmax(tn_where(blocked, tn_full(TN_SCALAR, -INFINITY), scores), -1);
    assert_made(c);
    c = tn_masked_fill(c, blocked, 0);
    assert_close(a, b, 0, 0);
    tn_tensor *total = tn_add(tn_sum_all(tn_square(tn_add(a, b))), tn_sum_all(c));
    assert_ok(tn_backward(total));

    tn_module *m = owned(tn_multihead_attention_new(8, 2, (tn_multihead_attention_options){ 0 }));
    tn_tensor *x = random_as(TN_SHAPE(2, 4, 8), -1, 1, 9, TN_F32);
    for (int kind = 0; kind < 6; kind++) {
        tn_attention_masks masks = { .mask = kind % 3 == 0   ? blocked
                                             : kind % 3 == 1 ? mask
                                                             : NULL,
                                     .causal = kind % 3 == 2 };
        tn_tensor *weights;
        tn_tensor *y =
            tn_multihead_attention_forward(m, x, x, x, masks, kind < 3 ? NULL : &weights);
        assert_made(y);
        assert_ok(tn_backward(tn_mean(tn_square(y), NULL, 0, false)));
    }
}
END_TEST

/* Views, empty tensors, integers and results without history. */
START_TEST(what_is_not_looked_at)
{
    tn_set_anomaly(TN_ANOMALY_ALL);
    tn_tensor *bad = tn_full(TN_SHAPE(2, 3), NAN);
    assert_made(tn_reshape(tn_transpose(bad, 0, 1), TN_SHAPE(3, 2)));
    assert_made(tn_isnan(bad));
    assert_made(tn_argmax(bad, 1, false));
    assert_made(tn_add_scalar(tn_ones(TN_SHAPE(0, 3)), 1));
    assert_null(tn_add_scalar(bad, 1), TN_E_STATE, "tn_add_scalar: the result [2,3] holds nan");
    TN_NO_GRAD assert_null(tn_neg(bad), TN_E_STATE, "tn_neg");
    assert_ok(tn_mul_scalar_(bad, 2));
}
END_TEST

/* ---- skipping -------------------------------------------------------------------------------- */

/* A loop that drops a step with bad gradients: nothing of it remains, the next step works. */
START_TEST(a_skipped_step_changes_nothing)
{
    tn_manual_seed(7);
    tn_module *m = owned(tn_sequential(linear(3, 8), tn_tanh_new(), linear(8, 3)));
    tn_list *parameters = tn_parameters(m);
    tn_optim *opt = owned(tn_adam(parameters, (tn_adam_options){ 0 }));
    tn_tensor *x = random_as(TN_SHAPE(4, 3), -1, 1, 3, TN_F32);
    uint64_t state = 0, moments = 0;
    double bad = _i ? INFINITY : NAN;
    int skipped = 0;
    for (int step = 0; step < 4; step++) {
        int64_t hook =
            step == 2 ? tn_register_hook(tn_get_parameter(m, "0.bias"), spoil, &bad) : -1;
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false)));
        tn_remove_hook(tn_get_parameter(m, "0.bias"), hook);
        if (isnan(tn_clip_grad_norm(parameters, 1, 2, true))) {
            assert_error(TN_E_INVALID, "the norm of the gradients is ");
            skipped++;
            ck_assert_uint_eq(state_hash(m), state);
            ck_assert_uint_eq(optim_hash(opt), moments);
            continue;
        }
        assert_ok(tn_optim_step(opt));
        ck_assert_uint_ne(state_hash(m), state);
        state = state_hash(m);
        moments = optim_hash(opt);
    }
    ck_assert_int_eq(skipped, 1);
    ck_assert_int_eq(tn_optim_steps(opt), 3);
}
END_TEST

static void calm(void)
{
    tn_set_anomaly(TN_ANOMALY_OFF);
}

static TCase *calm_case(Suite *suite, const char *name)
{
    TCase *t = test_case(suite, name);
    tcase_add_checked_fixture(t, calm, calm);
    return t;
}

Suite *test_suite(void)
{
    Suite *s = suite_create("anomaly");
    TCase *t = calm_case(s, "faults");
    tcase_add_loop_test(t, a_fault_in_a_model, 0, COUNT(planted));
    tcase_add_loop_test(t, a_fault_of_an_op, 0, COUNT(ops));
    tcase_add_loop_test(t, a_fault_of_a_gradient, 0, 3);
    add_tests(calm_case(s, "modes"), gradients_only, the_environment);
    t = calm_case(s, "healthy");
    tcase_add_loop_test(t, healthy_training_passes_unchanged, 0, 2);
    add_tests(t, masks_of_minus_infinity_pass, what_is_not_looked_at);
    tcase_add_loop_test(calm_case(s, "skipping"), a_skipped_step_changes_nothing, 0, 2);
    return s;
}
