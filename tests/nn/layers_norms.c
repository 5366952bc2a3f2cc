/*
 * layers_norms.c - RMSNorm, GroupNorm, InstanceNorm, BatchNorm3d, channels that drop, weight and
 * spectral norm.
 *
 * Truth: numbers of PyTorch 2.15 in f64; the ops, whose rows are PyTorch's; closed forms.
 *
 * Seen to fail: in src/nn/layers/batchnorm.c a variance without the mean over samples; in
 * parametrizations.c u and v not copied before the product (backward finds them changed), no step
 * of the power method, one in eval; in call.c the field not given back, in clone.c `made` left
 * out; in dropout.c a sample that is dropped as a batch.
 */
#include <pthread.h>
#include <tenon/lora.h>

#include "files.h"
#include "nn/boxes.h"

/* sin(1.7 i + 0.3) */
static tn_tensor *wave(tn_shape shape)
{
    tn_tensor *i = tn_arange(0, (double)tn_numel(tn_zeros(shape)), 1, TN_F64);
    return tn_reshape(tn_sin(tn_add_scalar(tn_mul_scalar(i, 1.7), .3)), shape);
}

static tn_tensor *numbers(double a, double b)
{
    return from_f64((double[]){ a, b }, TN_SHAPE(2));
}

/* Parameters and buffers. */
static void put(tn_module *m, const char *name, tn_tensor *values)
{
    TN_NO_GRAD assert_ok(tn_copy_(tn_list_get(tn_state_dict(m, ""), name), values));
}

/* ---- norms ----------------------------------------------------------------------------------- */

START_TEST(rms_norm_layer)
{
    const tn_shape row = TN_SHAPE(2, 3);
    tn_module *m = owned(tn_rms_norm_new(row, (tn_rms_norm_options){ 0 }));
    tn_tensor *x = tn_mul_scalar(tn_randn(TN_SHAPE(4, 2, 3)), 1e-3),
              *w = tn_get_parameter(m, "weight");
    assert_names(tn_state_dict(m, ""), "weight");
    put(m, "weight", tn_full(row, 3));
    assert_close(tn_forward(m, x), tn_rms_norm(x, 2, w, 0x1p-23), 0, 0);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    x = tn_to_dtype(x, TN_F64);
    assert_close(tn_forward(m, x), tn_rms_norm(x, 2, tn_get_parameter(m, "weight"), 0x1p-52), 0, 0);
    ck_assert(tn_no_decay(&tn_parameters(m)->entry[0], NULL));
    m = owned(tn_rms_norm_new(row, (tn_rms_norm_options){ .use_eps = true, .no_affine = true }));
    assert_close(tn_forward(m, x), tn_rms_norm(x, 2, TN_NONE, 0), 0, 0);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(2, 4))), TN_E_SHAPE, "RMSNorm: x [2,4]: want");
    assert_null(tn_rms_norm_new(TN_SHAPE(0), (tn_rms_norm_options){ 0 }), TN_E_SHAPE, "[0]");
    assert_null(tn_rms_norm_new(row, (tn_rms_norm_options){ .eps = -1 }), TN_E_INVALID, "eps -1");
}
END_TEST

START_TEST(group_norm_layer)
{
    tn_module *m = owned(tn_group_norm_new(2, 4, (tn_layer_norm_options){ 0 }));
    tn_tensor *x = tn_randn(TN_SHAPE(3, 4, 2, 2));
    assert_names(tn_state_dict(m, ""), "weight bias");
    tn_tensor *w = tn_get_parameter(m, "weight"), *b = tn_get_parameter(m, "bias");
    put(m, "weight", tn_randn(TN_SHAPE(4)));
    put(m, "bias", tn_randn(TN_SHAPE(4)));
    assert_close(tn_forward(m, x), tn_group_norm(x, 2, w, b, 1e-5), 0, 0);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(3, 5))), TN_E_SHAPE, "5 channels: want 4");
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(4))), TN_E_SHAPE, "want [N, C, ...]");
    assert_null(tn_group_norm_new(3, 4, (tn_layer_norm_options){ 0 }), TN_E_INVALID, "3 groups");
    assert_null(tn_group_norm_new(0, 4, (tn_layer_norm_options){ 0 }), TN_E_INVALID, "0 groups");
    m = owned(tn_group_norm_new(2, 4, (tn_layer_norm_options){ .no_bias = true }));
    assert_names(tn_parameters(m), "weight");
}
END_TEST

START_TEST(batch_norm_3d_and_no_bias)
{
    const tn_batch_norm_options o = { .no_bias = true };
    tn_module *volumes = owned(tn_batch_norm3d_new(3, o)),
              *images = owned(tn_batch_norm2d_new(3, o));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 3, 2, 4, 5)), *flat = tn_reshape(x, TN_SHAPE(2, 3, 8, 5));
    assert_names(tn_parameters(volumes), "weight");
    for (int training = 1; training >= 0; training--) {
        assert_ok(tn_train(volumes, training));
        assert_ok(tn_train(images, training));
        assert_close(tn_reshape(tn_forward(volumes, x), TN_SHAPE(2, 3, 8, 5)),
                     tn_forward(images, flat), 0, 0);
    }
    assert_close(tn_get_buffer(volumes, "running_var"), tn_get_buffer(images, "running_var"), 0, 0);
    assert_null(tn_forward(volumes, flat), TN_E_SHAPE,
                "BatchNorm3d: x [2,3,8,5]: want [N, C, D, H, W]");
    images = tn_thaw_batch_norm(tn_freeze_batch_norm(tn_batch_norm2d_new(3, o)));
    assert_names(tn_parameters(owned(images)), "weight bias");
}
END_TEST

static tn_module *instances(void)
{
    use_f64();
    tn_module *m = owned(
        tn_instance_norm1d_new(2, (tn_instance_norm_options){ .affine = true, .tracking = true }));
    put(m, "weight", numbers(1.5, -.5));
    put(m, "bias", numbers(.25, 1));
    return m;
}

START_TEST(instance_norm_with_statistics)
{
    tn_module *m = instances();
    tn_tensor *x = wave(TN_SHAPE(2, 2, 3));
    assert_names(tn_state_dict(m, ""), "weight bias running_mean running_var num_batches_tracked");
    assert_values(tn_forward(m, x), 1e-11, 0.429412297642, 1.99080234581, -1.67021464345,
                  1.70442245738, 0.594557595266, 0.701019947355, -1.27199217077, -0.268691121517,
                  2.29068329228, 0.666420790272, 1.70672520174, 0.626854007985);
    assert_values(tn_get_buffer(m, "running_mean"), 1e-12, 0.00681773252942, -0.00335036372748);
    assert_values(tn_get_buffer(m, "running_var"), 1e-11, 0.971660859653, 0.955577881774);
    ck_assert_double_eq(tn_item(tn_get_buffer(m, "num_batches_tracked")), 0);
    assert_ok(tn_train(m, false));
    assert_values(tn_forward(m, tn_select(x, 0, 0)), 1e-11, 0.689321214519, 1.62331166478,
                  -0.566631143061, 1.39354540115, 0.625428069702, 0.699108731716);
}
END_TEST

/* The same statistics from a batch, its halves, and recomputed; and without them tn_group_norm. */
START_TEST(instance_norm_in_other_ways)
{
    tn_module *m[] = { instances(), instances(), instances() };
    tn_tensor *x = wave(TN_SHAPE(4, 2, 3)), *mean = tn_get_buffer(m[0], "running_mean");
    assert_ok(tn_module_set_recompute(m[2], true));
    assert_made(tn_forward(m[0], x));
    TN_MICRO_BATCHES(i, 2) assert_made(tn_forward(m[1], tn_narrow(x, 0, 2 * i, 2)));
    assert_ok(tn_backward(tn_sum_all(tn_forward(m[2], x))));
    for (int i = 1; i < 3; i++) {
        assert_close(tn_get_buffer(m[i], "running_mean"), mean, 1e-12, 0);
        assert_close(tn_get_buffer(m[i], "running_var"), tn_get_buffer(m[0], "running_var"), 1e-12,
                     0);
    }
    tn_module *plain = owned(tn_instance_norm2d_new(2, (tn_instance_norm_options){ 0 }));
    ck_assert_int_eq(tn_state_dict(plain, "")->n, 0);
    tn_tensor *image = wave(TN_SHAPE(2, 2, 3)), *one = tn_reshape(image, TN_SHAPE(1, 2, 2, 3));
    tn_tensor *y = tn_group_norm(one, 2, TN_NONE, TN_NONE, 1e-5);
    assert_close(tn_forward(plain, image), tn_select(y, 0, 0), 0, 0);
    assert_close(tn_forward(plain, one), y, 0, 0);
    assert_null(tn_forward(plain, tn_ones(TN_SHAPE(3, 2, 1, 1))), TN_E_SHAPE,
                "one value per channel");
    assert_null(tn_forward(plain, tn_ones(TN_SHAPE(2, 3))), TN_E_SHAPE, "want [N, C, H, W]");
}
END_TEST

/* ---- channels that drop ---------------------------------------------------------------------- */

START_TEST(channels_drop)
{
    tn_module *one = owned(tn_dropout1d_new(0.5)), *two = owned(tn_dropout2d_new(0.5));
    tn_tensor *x[] = { tn_ones(TN_SHAPE(64, 5)), tn_ones(TN_SHAPE(8, 8, 5)),
                       tn_ones(TN_SHAPE(8, 8, 5)), tn_ones(TN_SHAPE(8, 8, 5, 1)) };
    for (int k = 0; k < 4; k++) {
        tn_module *m = k < 2 ? one : two;
        assert_ok(tn_train(m, true));
        tn_tensor *y = tn_reshape(tn_forward(m, x[k]), TN_SHAPE(64, 5));
        assert_close(y, tn_expand(tn_narrow(y, 1, 0, 1), TN_SHAPE(64, 5)), 0, 0);
        double kept = tn_item(tn_sum_all(y)) / 10;
        ck_assert_msg(kept > 16 && kept < 48, "%d: %g of 64 channels", k, kept);
        assert_ok(tn_train(m, false));
        assert_close(tn_forward(m, x[k]), x[k], 0, 0);
    }
    ck_assert_double_eq(tn_dropout_p(two), 0.5);
    assert_null(tn_forward(one, tn_ones(TN_SHAPE(4))), TN_E_SHAPE, "Dropout1d: x [4]: want 2 or 3");
    assert_null(tn_forward(two, tn_ones(TN_SHAPE(4, 2))), TN_E_SHAPE, "want 3 or 4 axes");
    assert_null(tn_dropout2d_new(2), TN_E_INVALID, "tn_dropout2d_new");
}
END_TEST

/* ---- weight and spectral norm ---------------------------------------------------------------- */

#define MADE "parametrizations.weight."

/* A linear layer of known numbers, in f64. */
static tn_module *known_linear(void)
{
    use_f64();
    tn_module *m = owned(linear(3, 2));
    put(m, "weight", tn_add_scalar(wave(TN_SHAPE(2, 3)), .2));
    put(m, "bias", numbers(.5, -1));
    return m;
}

static void step(tn_module *m)
{
    tn_tensor *y = tn_forward(m, wave(TN_SHAPE(2, 3)));
    assert_ok(tn_backward(tn_sum_all(tn_mul(y, wave(TN_SHAPE(2, 2))))));
}

static tn_tensor *times_a(box *m, tn_tensor *x)
{
    return tn_mul(m->a, x);
}

START_TEST(weight_norm)
{
    tn_module *m = known_linear();
    tn_tensor *before = tn_forward(m, wave(TN_SHAPE(2, 3)));
    assert_ok(tn_weight_norm(m, "weight", 0));
    assert_names(tn_state_dict(m, ""), "bias " MADE "original0 " MADE "original1");
    assert_close(tn_forward(m, wave(TN_SHAPE(2, 3))), before, 1e-12, 0);
    tn_tensor *g = tn_get_parameter(m, MADE "original0"),
              *v = tn_get_parameter(m, MADE "original1");
    put(m, MADE "original0", tn_reshape(numbers(2, .5), TN_SHAPE(2, 1)));
    assert_values(tn_forward(m, wave(TN_SHAPE(2, 3))), 1e-10, 2.61273062532, -0.903455876558,
                  0.869835603786, -0.412736960846);
    step(m);
    assert_values(tn_grad(g), 1e-10, 0.214201160967, -0.732057396983);
    assert_values(tn_grad(v), 1e-10, 0.655260500173, -0.486548437822, -0.651936173662,
                  0.206045568859, 0.286165752103, -0.188330107591);
    tn_module *copy = owned(tn_module_clone(m)), *other = known_linear();
    assert_ok(tn_weight_norm(other, "weight", 0));
    assert_ok(load(other, tn_state_dict(m, "")));
    tn_tensor *y = tn_forward(m, wave(TN_SHAPE(2, 3)));
    assert_close(tn_forward(copy, wave(TN_SHAPE(2, 3))), y, 0, 0);
    assert_close(tn_forward(other, wave(TN_SHAPE(2, 3))), y, 0, 0);
    box *own = owned_box(); /* between calls its field is empty */
    own->run = times_a;
    assert_ok(tn_register_parameter(&own->base, "a", &own->a, wave(TN_SHAPE(2, 3))));
    assert_ok(tn_weight_norm(&own->base, "a", 1));
    for (int i = 0; i < 2; i++) {
        ck_assert(tn_is_none(own->a));
        assert_close(tn_forward(&own->base, tn_ones(TN_SHAPE(1))), wave(TN_SHAPE(2, 3)), 1e-12, 0);
    }
    tn_module *whole = owned(conv2d(2, 3, 2, 0));
    y = tn_forward(whole, tn_ones(TN_SHAPE(1, 2, 3, 3)));
    assert_ok(tn_weight_norm(whole, "weight", -1));
    ck_assert_int_eq(tn_rank(tn_get_parameter(whole, MADE "original0")), 0);
    assert_close(tn_forward(whole, tn_ones(TN_SHAPE(1, 2, 3, 3))), y, 1e-12, 0);
    tn_module *fixed = known_linear(); /* what is made of a parameter is trained as it was */
    assert_ok(tn_module_set_requires_grad(fixed, false));
    assert_ok(tn_weight_norm(fixed, "weight", 0));
    ck_assert(!tn_requires_grad(tn_get_parameter(fixed, MADE "original0")));
}
END_TEST

static tn_module *spectral_linear(void)
{
    tn_module *m = known_linear();
    assert_ok(tn_spectral_norm(m, "weight", (tn_spectral_norm_options){ 0 }));
    put(m, MADE "0._u", numbers(.6, .8));
    put(m, MADE "0._v", from_f64((double[]){ 0, .6, .8 }, TN_SHAPE(3)));
    return m;
}

/* u and v after one step of the power method. */
static void assert_moved_once(tn_module *m)
{
    assert_values(tn_get_buffer(m, MADE "0._u"), 1e-11, 0.320973195129, 0.947088278889);
    assert_values(tn_get_buffer(m, MADE "0._v"), 1e-11, -0.265795318482, 0.856755746971,
                  0.44195298246);
}

START_TEST(spectral_norm)
{
    tn_module *m = spectral_linear();
    assert_names(tn_state_dict(m, ""), "bias " MADE "original " MADE "0._u " MADE "0._v");
    step(m);
    assert_moved_once(m);
    assert_values(tn_grad(tn_get_parameter(m, MADE "original")), 1e-10, 0.315089582124,
                  0.0129507891938, -0.274682470163, 0.513832138716, 0.46127016163, -0.503620813965);
    assert_ok(tn_train(m, false));
    assert_values(tn_forward(m, wave(TN_SHAPE(2, 3))), 1e-10, 1.42192468205, -0.820056758239,
                  0.661383835376, 0.094567035923);
    assert_moved_once(m);
    tn_tensor *y = tn_forward(m, wave(TN_SHAPE(2, 3)));
    tn_module *copy = owned(tn_module_clone(m)), *other = spectral_linear();
    assert_ok(load(other, tn_state_dict(m, "")));
    assert_ok(tn_train(other, false));
    assert_close(tn_forward(copy, wave(TN_SHAPE(2, 3))), y, 0, 0);
    assert_close(tn_forward(other, wave(TN_SHAPE(2, 3))), y, 0, 0);
    assert_ok(tn_train(m, true));
    tn_tensor *twice =
        tn_add(tn_forward(m, wave(TN_SHAPE(2, 3))), tn_forward(m, wave(TN_SHAPE(2, 3))));
    assert_ok(tn_backward(tn_sum_all(twice)));
}
END_TEST

START_TEST(spectral_norm_in_other_ways)
{
    const tn_spectral_norm_options o = { 0 };
    tn_module *again = spectral_linear(), *parts = spectral_linear();
    assert_ok(tn_module_set_recompute(again, true));
    step(again);
    assert_moved_once(again);
    TN_MICRO_BATCHES(i, 2) step(parts);
    assert_moved_once(parts);
    const tn_list *list = tn_buffers(parts);
    for (int i = 0; i < list->n; i++) ck_assert_uint_eq(list->entry[i].role, TN_DIRECTION);
    box *own = owned_box(); /* between calls its field is empty */
    own->run = times_a;
    assert_ok(tn_register_parameter(&own->base, "a", &own->a, wave(TN_SHAPE(2, 3))));
    assert_ok(tn_spectral_norm(&own->base, "a", o));
    for (int i = 0; i < 2; i++) {
        ck_assert(tn_is_none(own->a));
        assert_made(tn_forward(&own->base, tn_ones(TN_SHAPE(1))));
    }
    tn_module *conv = owned(conv2d(2, 3, 2, 0));
    put(conv, "weight", wave(TN_SHAPE(3, 2, 2, 2)));
    assert_ok(
        tn_spectral_norm(conv, "weight", (tn_spectral_norm_options){ .axis = 1, .iterations = 2 }));
    put(conv, MADE "0._u", numbers(.6, .8));
    put(conv, MADE "0._v", tn_full(TN_SHAPE(12), 1 / sqrt(12)));
    assert_made(tn_forward(conv, tn_zeros(TN_SHAPE(1, 2, 3, 3))));
    assert_values(tn_get_buffer(conv, MADE "0._u"), 1e-11, 0.698358650451, 0.715747997091);
    use_f32();
    tn_manual_seed(0);
    tn_module *seeded = owned(linear(3, 2));
    assert_ok(tn_spectral_norm(seeded, "weight", o));
    assert_values(tn_get_buffer(seeded, MADE "0._u"), 1e-5, 0.785607337952, -0.618725299835);
    assert_values(tn_get_buffer(seeded, MADE "0._v"), 1e-5, 0.394593656063, 0.579200267792,
                  -0.713318228722);
    assert_ok(tn_module_to_dtype(seeded, TN_BF16));
    ck_assert_int_eq(tn_dtype_of(tn_get_buffer(seeded, MADE "0._u")), TN_F32);
    tn_tensor *y = tn_forward(seeded, tn_to_dtype(tn_ones(TN_SHAPE(2, 3)), TN_BF16));
    ck_assert_int_eq(tn_dtype_of(y), TN_BF16);
}
END_TEST

/* What was frozen before stays so, and thaws. */
START_TEST(spectral_norm_of_frozen)
{
    tn_module *m = known_linear(), *base = known_linear();
    tn_tensor *x = wave(TN_SHAPE(2, 3));
    assert_ok(tn_module_freeze(m));
    assert_ok(tn_spectral_norm(m, "weight", (tn_spectral_norm_options){ 0 }));
    uint64_t u = tn_hash(tn_get_buffer(m, MADE "0._u"));
    assert_made(tn_forward(m, x));
    ck_assert_uint_eq(tn_hash(tn_get_buffer(m, MADE "0._u")), u);
    ck_assert(!tn_requires_grad(tn_get_parameter(m, MADE "original")));
    assert_ok(tn_module_thaw(m));
    ck_assert(tn_requires_grad(tn_get_parameter(m, MADE "original")));
    assert_ok(tn_set_requires_grad(tn_get_parameter(base, "weight"), false));
    assert_ok(tn_spectral_norm(base, "weight", (tn_spectral_norm_options){ 0 }));
    ck_assert(!tn_requires_grad(tn_get_parameter(base, MADE "original")));
}
END_TEST

static tn_module *shared;
static uint64_t alone;

static void *evaluate(void *user)
{
    for (int i = 0; i < 20000; i++) TN_SCOPE TN_NO_GRAD
        {
            tn_tensor *y = tn_forward(shared, tn_full_as(TN_SHAPE(32, 64), 1, TN_F32, tn_cpu()));
            *(int *)user += !y || tn_hash(y) != alone;
        }
    return NULL;
}

/* Threads may share a model in eval mode. */
START_TEST(spectral_norm_in_threads)
{
    int wrong[2] = { 0, 0 };
    pthread_t thread[2];
    if (TEST_NODE) return;
    shared = owned(linear(64, 64));
    assert_ok(tn_spectral_norm(shared, "weight", (tn_spectral_norm_options){ 0 }));
    assert_ok(tn_eval(shared));
    alone = tn_hash(tn_forward(shared, tn_full_as(TN_SHAPE(32, 64), 1, TN_F32, tn_cpu())));
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, evaluate, &wrong[i]), 0);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(thread[i], NULL), 0);
    ck_assert_int_eq(wrong[0] + wrong[1], 0);
}
END_TEST

START_TEST(what_cannot_be_made)
{
    const tn_spectral_norm_options o = { 0 };
    tn_module *m = known_linear();
    uint64_t before = tn_hash(tn_get_parameter(m, "weight"));
    assert_fails(tn_weight_norm(m, "wait", 0), TN_E_INVALID, "\"wait\" of Linear");
    assert_fails(tn_weight_norm(m, "weight", 2), TN_E_INVALID,
                 "axis 2 of weight [2,3]: want 2 axes");
    assert_fails(tn_weight_norm(m, "weight", -2), TN_E_INVALID, "and -1..1");
    assert_fails(tn_spectral_norm(m, "wait", o), TN_E_INVALID, "\"wait\" of Linear");
    assert_fails(tn_spectral_norm(m, NULL, o), TN_E_INVALID, "NULL");
    assert_fails(tn_spectral_norm(m, "weight", (tn_spectral_norm_options){ .axis = 2 }),
                 TN_E_INVALID, "axis 2 of weight [2,3]");
    assert_fails(tn_spectral_norm(m, "weight", (tn_spectral_norm_options){ .axis = -1 }),
                 TN_E_INVALID, "axis -1");
    assert_fails(tn_spectral_norm(m, "weight", (tn_spectral_norm_options){ .iterations = -1 }),
                 TN_E_INVALID, "iterations is -1");
    assert_fails(tn_spectral_norm(m, "weight", (tn_spectral_norm_options){ .eps = -1 }),
                 TN_E_INVALID, "eps -1");
    assert_fails(tn_spectral_norm(m, "bias", o), TN_E_INVALID, "bias [2]: want 2 axes");
    ck_assert_uint_eq(tn_hash(tn_get_parameter(m, "weight")), before);
    assert_ok(tn_spectral_norm(m, "weight", o));
    assert_fails(tn_spectral_norm(m, "bias", o), TN_E_STATE, "already");
    tn_module *adapted = owned(tn_sequential(linear(3, 2)));
    assert_ok(tn_lora(adapted, "*", (tn_lora_options){ 0 }));
    assert_fails(tn_spectral_norm(tn_get_submodule(adapted, "0"), "weight", o), TN_E_STATE,
                 "or an adapter");
    assert_ok(tn_module_delete(m, "parametrizations"));
    assert_null(tn_forward(m, wave(TN_SHAPE(2, 3))), TN_E_STATE, "is gone");
}
END_TEST

void layers_norms_cases(Suite *suite)
{
    add_tests(layers_case(suite, "norms"), rms_norm_layer, group_norm_layer,
              batch_norm_3d_and_no_bias, instance_norm_with_statistics, instance_norm_in_other_ways,
              channels_drop, weight_norm, spectral_norm, spectral_norm_in_other_ways,
              spectral_norm_of_frozen, spectral_norm_in_threads, what_cannot_be_made);
}
