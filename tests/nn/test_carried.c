/*
 * test_carried.c - modules whose state is kept but not trained: FrozenBatchNorm2d and the
 * conversions, lists of buffers and parameters, moving averages of a model, statistics that skip
 * non-finite batches.
 *
 * Truth: numbers of PyTorch 2.15 in f64 (torch.optim.swa_utils.AveragedModel, BatchNorm2d), closed
 * forms, hashes for what must not change. Ids are rows of the project's table of PyTorch semantics.
 *
 * Seen to fail: in src/nn/layers/frozen_batchnorm.c, when conversions made new layers at new
 * addresses: FB_04_fields_of_others; prepare() without the test for running statistics:
 * FB_04_what_cannot_be_frozen fails; thawed_for() that leaves momentum 0 to the constructor:
 * FB_04_momentum_comes_back fails; in src/nn/averages.c, hold_parameters() without the memmove:
 * ema_equals_averaged_model fails; weight 1 / n for the equal average: the same; compare() left
 * out: ema_refuses_another_model fails; in src/nn/layers/batchnorm.c, take() that copies
 * before it looks: BN_11_skip_nonfinite fails.
 */
#include <stdlib.h>
#include <unistd.h>

#include "boxes.h"
#include "files.h"
#include "scarce.h"

/* sin(0.7 i + phase), f64 */
static tn_tensor *waves(tn_shape shape, double phase)
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.size[i];
    double v[64];
    ck_assert_int_le(n, COUNT(v));
    for (int64_t i = 0; i < n; i++) v[i] = sin(0.7 * (double)i + phase);
    return from_f64(v, shape);
}

static const char *type_of(const tn_module *m)
{
    return m->type->name;
}

/* ---- FrozenBatchNorm2d ----------------------------------------------------------------------- */

static const double frozen_y[] = { -0.9023734104299117,  -0.23004210782952372, 0.8688315943846644,
                                   1.8774302236860818,   3.6570786251200422,   3.2343293212843456,
                                   2.0180047328462374,   0.5801613193441173,   -0.21035267068204955,
                                   -0.25933024796177762, 0.39505530913289277,  1.4450362480439525,
                                   1.8962162466674468,   2.3226556872644317,   1.9750638674392085,
                                   1.0169186513275839,   0.54870473732851011,  -0.4163762353500518,
                                   -0.45804862549800823, 0.44328674312027644,  1.4711290816880216,
                                   2.4143432787514065,   2.8034501732747108,   2.4554467128006832 };
static const double frozen_dx[] = {
    -0.46017139265629148, 0.66675024466357713,  1.4800888236582075,   1.5973185018605607,
    1.2360191566945529,   -0.15880576886213219, -1.4789418599143691,  -2.10350848514486,
    -1.2898595756229472,  -0.41264006717519602, 0.65865051254395479,  1.420167464515532,
    1.5903487341553892,   0.94070823088424382,  -0.1513620523433343,  -1.1722443972565362,
    -2.1066017445062393,  -1.7183248836421192,  -0.52189298043415988, 0.91999334627474039,
    1.4311257300377418,   1.5066953833590162,   0.87364265512176098,  -0.17029786486230414
};

static tn_module *frozen2d(int64_t features)
{
    return tn_frozen_batch_norm2d_new(features, (tn_frozen_batch_norm_options){ 0 });
}

/* weight, bias, running_mean, running_var of a BatchNorm2d(3), frozen or not, in f64 */
static void fill_norm(tn_module *m)
{
    tn_shape three = TN_SHAPE(3);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    assert_ok(tn_module_set(m, "weight", tn_add_scalar(tn_mul_scalar(waves(three, 1), .5), 1)));
    assert_ok(tn_module_set(m, "bias", waves(three, 2)));
    assert_ok(tn_module_set(m, "running_mean", waves(three, 3)));
    assert_ok(tn_module_set(m, "running_var", tn_add_scalar(waves(three, 4), 1.5)));
}

START_TEST(FB_01_all_tensors_are_buffers)
{
    tn_module *m = frozen2d(5);
    ck_assert_str_eq(type_of(m), "FrozenBatchNorm2d");
    ck_assert_int_eq(tn_parameters(m)->n, 0);
    assert_names(tn_state_dict(m, ""), "weight bias running_mean running_var");
    ck_assert(tn_is_none(tn_get_buffer(m, "num_batches_tracked")));
    ck_assert_int_eq(tn_list_version(tn_state_dict(m, ""), ""), 3);
    float var = (float)(1 - 1e-5);
    assert_values(tn_get_buffer(m, "running_var"), 0, var, var, var, var, var);
    assert_null(tn_sgd(tn_buffers(m), (tn_sgd_options){ 0 }), TN_E_NAME, "weight is a buffer");
    tn_module_drop(m);
}
END_TEST

START_TEST(FB_01_new_layer_is_the_identity)
{
    static const double eps[] = { 0, 1e-5, 1e-3, 0.1 };
    tn_tensor *x = random_as(TN_SHAPE(2, 3, 4, 5), -9, 9, 1, TN_F32);
    tn_tensor *leaf = tn_clone(x);
    assert_ok(tn_set_requires_grad(leaf, true));
    for (int i = 0; i < COUNT(eps); i++) {
        tn_module *m =
            tn_frozen_batch_norm2d_new(3, (tn_frozen_batch_norm_options){ .eps = eps[i] });
        for (int training = 0; training < 2; training++) {
            assert_ok(tn_train(m, training));
            assert_close(tn_forward(m, x), x, 0, 0);
            tn_tensor *y = tn_forward(m, leaf);
            assert_close(y, x, 0, 0);
            assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
        }
        tn_module_drop(m);
    }
    /* 8 backward passes of ones through scale 1 */
    assert_close(tn_grad(leaf), tn_full(TN_SHAPE(2, 3, 4, 5), 8), 0, 0);
}
END_TEST

START_TEST(FB_02_FB_05_one_formula_in_train_and_eval)
{
    tn_module *m = tn_frozen_batch_norm2d_new(3, (tn_frozen_batch_norm_options){ .eps = 1e-3 });
    fill_norm(m);
    uint64_t hash = hash_of_module(m);
    for (int training = 0; training < 2; training++) {
        tn_tensor *x = waves(TN_SHAPE(2, 3, 2, 2), 5);
        assert_ok(tn_train(m, training));
        TN_NO_GRAD
        {
            const char *d = values_difference(tn_forward(m, x), frozen_y, 24, 1e-14);
            ck_assert_msg(!d, "without gradient: %s", d);
        }
        assert_ok(tn_set_requires_grad(x, true));
        tn_tensor *y = tn_forward(m, x);
        const char *d = values_difference(y, frozen_y, 24, 1e-14);
        ck_assert_msg(!d, "with gradient: %s", d);
        assert_ok(tn_backward_from(y, waves(TN_SHAPE(2, 3, 2, 2), 6), 0));
        d = values_difference(tn_grad(x), frozen_dx, 24, 1e-14);
        ck_assert_msg(!d, "gradient: %s", d);
    }
    ck_assert_uint_eq(hash_of_module(m), hash);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(2, 4, 2, 2))), TN_E_SHAPE,
                "FrozenBatchNorm2d: x [2,4,2,2] has 4 channels: want 3");
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(2, 3))), TN_E_SHAPE, "want [N, C, H, W]");
    assert_null(tn_frozen_batch_norm2d_new(0, (tn_frozen_batch_norm_options){ 0 }), TN_E_INVALID,
                "features is 0");
    tn_module_drop(m);
}
END_TEST

/* A copy of what m holds, without some names, as of a state version (0: unknown). */
static tn_list *saved(tn_module *m, const char *without, int version)
{
    tn_list *copy = tn_list_new();
    tn_list *state = tn_state_dict(m, "");
    for (int i = 0; i < state->n; i++)
        if (!strstr(without, state->entry[i].name))
            assert_ok(tn_list_add(copy, state->entry[i].name,
                                  tn_clone(tn_detach(state->entry[i].tensor))));
    if (version) assert_ok(tn_list_set_version(copy, "", version));
    return copy;
}

static bool drop_counter(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    snprintf(to, size, "%s", name);
    return !strstr(name, "num_batches_tracked");
}

START_TEST(FB_03_older_lists)
{
    tn_load_options strict = { 0 };
    tn_module *from = frozen2d(3);
    fill_norm(from);
    tn_module *m = frozen2d(3);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    for (int version = 0; version < 2; version++) { /* unknown counts as old */
        fill_norm(m);
        tn_list *old = saved(from, "running_mean running_var", version);
        assert_ok(tn_load_state_dict(m, old, strict, NULL));
        assert_values(tn_get_buffer(m, "running_mean"), 0, 0, 0, 0);
        assert_values(tn_get_buffer(m, "running_var"), 0, 1, 1, 1);
    }
    for (int version = 2; version < 4; version++)
        assert_fails(tn_load_state_dict(m, saved(from, "running_mean", version), strict, NULL),
                     TN_E_NAME, "missing: \"running_mean\"");
    /* a plain BatchNorm's list has a counter too many */
    tn_module *bn = norm2d(3);
    fill_norm(bn);
    tn_list *plain = tn_state_dict(bn, "");
    assert_fails(tn_load_state_dict(m, plain, strict, NULL), TN_E_NAME,
                 "unexpected: \"num_batches_tracked\"");
    strict.rename = drop_counter;
    assert_ok(tn_load_state_dict(m, plain, strict, NULL));
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(from));
    /* the converted layer has one, so its own file fits */
    strict.rename = NULL;
    tn_module *frozen = tn_freeze_batch_norm(tn_module_clone(bn));
    assert_ok(tn_load_state_dict(frozen, plain, strict, NULL));
    tn_module_drop(frozen);
    tn_module_drop(bn);
    tn_module_drop(from);
    tn_module_drop(m);
}
END_TEST

/* ---- conversions ----------------------------------------------------------------------------- */

/* child: convolution, other: norm */
static tn_tensor *conv_and_norm(box *m, tn_tensor *x)
{
    return tn_forward(m->other, tn_forward(m->child, x));
}

/* Two blocks that share one norm, and a norm of its own at the end; statistics have moved. */
static tn_module *blocks_new(void)
{
    box *part[2];
    tn_module *shared =
        tn_batch_norm2d_new(3, (tn_batch_norm_options){ .eps = 1e-3, .momentum = .3 });
    for (int i = 0; i < 2; i++) {
        part[i] = box_new();
        part[i]->run = conv_and_norm;
        tn_conv2d_options padded = { .padding = 1 };
        assert_ok(tn_register_module(&part[i]->base, "conv", &part[i]->child,
                                     tn_conv2d_new(i ? 3 : 2, 3, 3, padded)));
        assert_ok(tn_register_module(&part[i]->base, "bn", &part[i]->other,
                                     i ? tn_module_keep(shared) : shared));
    }
    tn_module *m =
        tn_sequential(&part[0]->base, tn_relu_new(), &part[1]->base,
                      tn_batch_norm2d_new(3, (tn_batch_norm_options){ .no_affine = true }));
    assert_made(m);
    for (int i = 0; i < 3; i++)
        assert_made(tn_forward(m, random_as(TN_SHAPE(4, 2, 5, 5), -1, 2, 7 + (uint64_t)i, TN_F32)));
    return m;
}

static box *block(tn_module *m, int i)
{
    return (box *)tn_module_child(m, i);
}

START_TEST(FB_04_conversion)
{
    static const char keys[] =
        "0.conv.weight 0.conv.bias 0.bn.weight 0.bn.bias 0.bn.running_mean 0.bn.running_var "
        "0.bn.num_batches_tracked 2.conv.weight 2.conv.bias 2.bn.weight 2.bn.bias "
        "2.bn.running_mean 2.bn.running_var 2.bn.num_batches_tracked ";
    char all[512];
    tn_module *m = blocks_new();
    tn_module *outside = block(m, 0)->other, *was = tn_module_clone(outside);
    tn_tensor *x = random_as(TN_SHAPE(2, 2, 5, 5), -1, 1, 3, TN_F32);
    uint64_t hash = hash_of_module(block(m, 0)->other);
    assert_ok(tn_eval(m));
    tn_tensor *y = tn_detach(tn_forward(m, x));

    ck_assert_ptr_eq(tn_freeze_batch_norm(m), m);
    tn_module *bn = block(m, 0)->other;
    ck_assert_ptr_eq(bn, outside); /* whoever points to it has the frozen one */
    ck_assert_ptr_eq(bn, tn_get_submodule(m, "0.bn"));
    ck_assert_str_eq(type_of(bn), "FrozenBatchNorm2d");
    ck_assert_ptr_eq(block(m, 2)->other, bn); /* one shared layer, as before */
    ck_assert_str_eq(tn_module_child_name(&block(m, 0)->base, 1), "bn");
    ck_assert_str_eq(type_of(tn_module_child(m, 3)), "FrozenBatchNorm2d");
    ck_assert_uint_eq(hash_of_module(bn), hash);
    ck_assert_int_eq((int)tn_item(tn_get_buffer(m, "2.bn.num_batches_tracked")), 6);
    snprintf(all, sizeof all, "%s%s", keys,
             "3.weight 3.bias 3.running_mean 3.running_var 3.num_batches_tracked");
    assert_names(tn_state_dict(m, ""), all);
    assert_names(tn_parameters(m), "0.conv.weight 0.conv.bias 2.conv.weight 2.conv.bias");
    assert_values(tn_get_buffer(m, "3.weight"), 0, 1, 1, 1); /* it had none */
    assert_close(tn_forward(m, x), y, 1e-5, 1e-6);
    assert_ok(tn_train(m, true));
    hash = hash_of(tn_buffers(m));
    assert_close(tn_forward(m, x), y, 1e-5, 1e-6);
    ck_assert_uint_eq(hash_of(tn_buffers(m)), hash);

    hash = hash_of_module(bn);
    ck_assert_ptr_eq(tn_thaw_batch_norm(m), m);
    bn = block(m, 2)->other;
    ck_assert_str_eq(type_of(bn), "BatchNorm2d");
    ck_assert_ptr_eq(block(m, 0)->other, bn);
    ck_assert_uint_eq(hash_of_module(bn), hash);
    assert_names(tn_state_dict(m, ""), all);
    ck_assert(tn_requires_grad(tn_get_parameter(m, "3.bias")));
    assert_ok(tn_eval(m));
    assert_close(tn_forward(m, x), y, 1e-5, 1e-6);
    /* eps and momentum are those of the first layer */
    tn_train(m, true);
    tn_train(was, true);
    tn_tensor *z = random_as(TN_SHAPE(2, 3, 4, 4), -1, 1, 4, TN_F32);
    assert_close(tn_forward(bn, z), tn_forward(was, z), 0, 0);
    ck_assert_uint_eq(hash_of_module(bn), hash_of_module(was));
    tn_module_drop(was);
    tn_module_drop(m);
}
END_TEST

/* A model that calls a grandchild by a field that no slot has, and one above it that does. */
static tn_tensor *by_child(box *m, tn_tensor *x)
{
    return tn_forward(m->other, x);
}

/* Fields, hooks and a second tree that point to a layer, when it is converted from below them. */
START_TEST(FB_04_fields_of_others)
{
    box *m = box_new(), *above = box_new();
    tn_module *parts = tn_module_dict_new(), *elsewhere = tn_sequential(norm2d(1));
    m->run = above->run = by_child;
    assert_ok(tn_register_module(parts, "bn", NULL, norm2d(2)));
    assert_ok(tn_register_module(&m->base, "parts", &m->child, parts));
    assert_ok(tn_register_module(&above->base, "model", &above->child, &m->base));
    m->other = above->other = tn_get_submodule(parts, "bn");
    assert_ok(tn_register_module(elsewhere, "bn", NULL, tn_module_keep(m->other)));
    tn_tensor *x = random_as(TN_SHAPE(2, 2, 3, 3), -1, 1, 3, TN_F32);
    assert_made(tn_forward(&above->base, x));
    assert_ok(tn_eval(&above->base));
    tn_tensor *y = tn_forward(&above->base, x);
    for (int i = 0; i < 2; i++) { /* from the dict, then from the model; both are below */
        tn_module *from = i ? &m->base : parts;
        ck_assert_ptr_eq(tn_freeze_batch_norm(tn_module_keep(from)), from);
        tn_module_drop(from);
        ck_assert_str_eq(type_of(above->other), "FrozenBatchNorm2d");
        ck_assert_str_eq(type_of(tn_get_submodule(elsewhere, "bn")), "FrozenBatchNorm2d");
        assert_close(tn_forward(&above->base, x), y, 1e-5, 1e-6);
        assert_close(tn_forward(&m->base, x), y, 1e-5, 1e-6);
        ck_assert_ptr_eq(tn_thaw_batch_norm(tn_module_keep(parts)), parts);
        tn_module_drop(parts);
        ck_assert_str_eq(type_of(m->other), "BatchNorm2d");
        assert_close(tn_forward(&above->base, x), y, 1e-5, 1e-6);
    }
    tn_module_drop(elsewhere);
    tn_module_drop(&above->base);
}
END_TEST

static tn_status freezes(tn_module *bn, int n, tn_tensor **in, void *user)
{
    (void)bn, (void)n, (void)in;
    tn_module *m = tn_freeze_batch_norm(tn_module_keep(user));
    tn_module_drop(m);
    return m ? TN_OK : tn_error_status();
}

static tn_status never(tn_module *bn, int n_in, tn_tensor *const *in, int n, tn_tensor **out,
                       void *user)
{
    (void)bn, (void)n_in, (void)in, (void)n, (void)out;
    ++*(int *)user;
    return TN_OK;
}

/* A layer's own hook converts it: the call goes on with the frozen one, and its hooks are gone. */
START_TEST(FB_04_within_its_own_call)
{
    tn_module *m = tn_sequential(norm2d(2)), *bn = tn_module_child(m, 0);
    int calls = 0;
    ck_assert_int_gt(tn_register_forward_pre_hook(bn, freezes, m), 0);
    ck_assert_int_gt(tn_register_forward_hook(bn, never, &calls), 0);
    tn_tensor *x = random_as(TN_SHAPE(2, 2, 3, 3), -1, 1, 3, TN_F32);
    for (int i = 0; i < 2; i++)
        assert_close(tn_forward(m, x), tn_div_scalar(x, sqrt(1 + 1e-5)), 1e-6, 1e-6);
    ck_assert_str_eq(type_of(bn), "FrozenBatchNorm2d");
    ck_assert_int_eq(calls, 0);
    tn_module_drop(m);
}
END_TEST

START_TEST(FB_04_a_layer_alone)
{
    tn_module *bn = norm2d(3);
    fill_norm(bn);
    assert_ok(tn_eval(bn));
    uint64_t hash = hash_of_module(bn);
    tn_module *frozen = tn_freeze_batch_norm(bn);
    ck_assert_str_eq(type_of(frozen), "FrozenBatchNorm2d");
    ck_assert(!tn_training(frozen));
    ck_assert_uint_eq(hash_of_module(frozen), hash); /* f64 as it was, the counter i64 */
    frozen = tn_freeze_batch_norm(frozen);           /* nothing to do */
    tn_module *thawed = tn_thaw_batch_norm(frozen);
    ck_assert_str_eq(type_of(thawed), "BatchNorm2d");
    ck_assert_uint_eq(hash_of_module(thawed), hash);
    tn_module_drop(thawed);
    /* one that was made frozen has no counter: it starts at 0 */
    frozen = frozen2d(2);
    assert_ok(tn_module_to_dtype(frozen, TN_F64));
    thawed = tn_thaw_batch_norm(frozen);
    ck_assert_int_eq(tn_dtype_of(tn_get_buffer(thawed, "num_batches_tracked")), TN_I64);
    ck_assert_double_eq(tn_item(tn_get_buffer(thawed, "num_batches_tracked")), 0);
    tn_module_drop(thawed);
    /* what it lacked is made of its dtype */
    bn = tn_batch_norm2d_new(2, (tn_batch_norm_options){ .no_affine = true });
    assert_ok(tn_module_to_dtype(bn, TN_F64));
    frozen = tn_freeze_batch_norm(bn);
    ck_assert_int_eq(tn_dtype_of(tn_get_buffer(frozen, "weight")), TN_F64);
    tn_module_drop(frozen);
}
END_TEST

/* Momentum that was set comes back, also 0, which an option would take for the default. */
START_TEST(FB_04_momentum_comes_back)
{
    const double momentum = (double[]){ 0, 0.25, 1 }[_i];
    tn_module *m = norm2d(3);
    assert_ok(tn_batch_norm_set_momentum(m, momentum));
    m = tn_thaw_batch_norm(tn_freeze_batch_norm(m));
    assert_made(m);
    ck_assert_double_eq(tn_batch_norm_momentum(m), momentum);
    uint64_t hash = tn_hash(tn_get_buffer(m, "running_mean"));
    assert_ok(tn_train(m, true));
    tn_tensor *x =
        random_as(TN_SHAPE(2, 3, 4, 4), 2, 3, 4, tn_dtype_of(tn_get_buffer(m, "weight")));
    assert_made(tn_forward(m, x));
    ck_assert((tn_hash(tn_get_buffer(m, "running_mean")) == hash) == (momentum == 0));
    tn_module_drop(m);
}
END_TEST

START_TEST(FB_04_ties_and_frozen_parents)
{
    tn_module *m = tn_sequential(norm2d(2), norm2d(2));
    assert_ok(tn_module_set(m, "1.weight", tn_get_parameter(m, "0.weight")));
    assert_ok(tn_module_freeze(m));
    m = tn_freeze_batch_norm(m);
    ck_assert_ptr_eq(tn_get_buffer(m, "0.weight"), tn_get_buffer(m, "1.weight"));
    m = tn_thaw_batch_norm(m);
    ck_assert_int_eq(tn_parameters(m)->n, 3); /* the tie is there, and the parent's freeze holds */
    ck_assert(tn_module_frozen(tn_module_child(m, 0)));
    ck_assert(!tn_requires_grad(tn_get_parameter(m, "1.weight")));
    assert_ok(tn_module_thaw(m));
    ck_assert(tn_requires_grad(tn_get_parameter(m, "1.weight")));
    tn_module_drop(m);
}
END_TEST

START_TEST(FB_04_what_cannot_be_frozen)
{
    tn_batch_norm_options untracked = { .no_tracking = true };
    tn_module *m = tn_sequential(norm2d(2), tn_sequential(tn_batch_norm2d_new(2, untracked)));
    tn_module_keep(m);
    assert_null(tn_freeze_batch_norm(m), TN_E_STATE,
                "tn_freeze_batch_norm: 1.0: BatchNorm2d has no running_mean: want one with running "
                "statistics");
    ck_assert_str_eq(type_of(tn_module_child(m, 0)), "BatchNorm2d"); /* nothing has changed */
    tn_module_drop(m);
    ck_assert_ptr_null(tn_freeze_batch_norm(NULL));
    assert_error(TN_E_INVALID, "tn_freeze_batch_norm");
    /* modules without BatchNorm2d stay */
    m = tn_sequential(tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
    ck_assert_ptr_eq(tn_freeze_batch_norm(m), m);
    ck_assert_str_eq(type_of(tn_module_child(m, 0)), "BatchNorm1d");
    tn_module_drop(m);
}
END_TEST

START_TEST(FB_04_optimizers_made_before_leave_it_alone)
{
    tn_module *m = blocks_new();
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = .1, .weight_decay = .5 });
    m = tn_freeze_batch_norm(m);
    uint64_t hash = hash_of(tn_buffers(m));
    tn_tensor *y = tn_forward(m, random_as(TN_SHAPE(2, 2, 5, 5), -1, 1, 3, TN_F32));
    assert_ok(tn_backward(tn_mean(tn_square(y), NULL, 0, false)));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(hash_of(tn_buffers(m)), hash);
    tn_optim_free(opt);
    tn_module_drop(m);
}
END_TEST

/* ---- BatchNorm and what is not finite -------------------------------------------------------- */

START_TEST(BN_11_skip_nonfinite)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int cumulative = 0; cumulative < 2; cumulative++) {
        tn_batch_norm_options o = { .cumulative = cumulative };
        tn_module *plain = tn_batch_norm2d_new(2, o);
        o.skip_nonfinite = true;
        tn_module *m = tn_batch_norm2d_new(2, o);
        for (int k = 0; k < 6; k++) {
            tn_tensor *x = random_as(TN_SHAPE(2, 2, 2, 2), -1, 3, 5 + (uint64_t)k, TN_F32);
            if (k % 2) { /* one bad value in one channel: the whole batch is skipped */
                uint64_t hash = hash_of_module(m);
                tn_tensor *broken = tn_clone(x);
                assert_ok(tn_fill_(tn_select(tn_reshape(broken, TN_SHAPE(16)), 0, 5), bad[k / 2]));
                tn_tensor *y = tn_forward(m, broken);
                assert_made(y); /* the output shows it too */
                ck_assert(isnan(tn_item(tn_sum(y, NULL, 0, false))));
                ck_assert_uint_eq(hash_of_module(m), hash);
                ck_assert_int_eq(tn_batch_norm_skipped(m), k / 2 + 1);
            } else { /* as if there had been no broken batches */
                assert_close(tn_forward(m, x), tn_forward(plain, x), 0, 0);
                ck_assert_uint_eq(hash_of_module(m), hash_of_module(plain));
            }
        }
        ck_assert_int_eq((int)tn_item(tn_get_buffer(m, "num_batches_tracked")), 3);
        assert_ok(tn_batch_norm_reset_running_stats(m));
        ck_assert_int_eq(tn_batch_norm_skipped(m), 0);
        tn_module_drop(m);
        tn_module_drop(plain);
    }
}
END_TEST

START_TEST(BN_11_without_the_option_nan_stays)
{
    tn_module *m = norm2d(1);
    assert_made(tn_forward(m, tn_full(TN_SHAPE(2, 1, 1, 1), NAN)));
    assert_made(tn_forward(m, tn_ones(TN_SHAPE(2, 1, 1, 1))));
    ck_assert(isnan(tn_item(tn_get_buffer(m, "running_mean"))));
    ck_assert_int_eq(tn_batch_norm_skipped(m), 0);
    tn_module *other = tn_relu_new();
    ck_assert_int_eq(tn_batch_norm_skipped(other), -1);
    assert_error(TN_E_INVALID, "tn_batch_norm_skipped: the module is a ReLU");
    tn_module_drop(other);
    tn_module_drop(m);
}
END_TEST

/* ---- lists of tensors and modules ------------------------------------------------------------ */

/* detectron2's anchors: cells of sizes (outer) and ratios (inner), shifted over the feature map. */
typedef struct anchors {
    tn_module base;
    tn_module *cells; /* BufferList, [A, 4] per level */
    double stride, offset;
} anchors;

/* x [N, C, H, W] -> [H W A, 4], locations row-major */
static tn_tensor *anchors_forward(tn_module *self, tn_tensor *x)
{
    anchors *m = (anchors *)self;
    int64_t h = tn_size(x, 2), w = tn_size(x, 3);
    tn_tensor *row =
        tn_mul_scalar(tn_add_scalar(tn_arange(0, (double)h, 1, TN_F32), m->offset), m->stride);
    tn_tensor *column =
        tn_mul_scalar(tn_add_scalar(tn_arange(0, (double)w, 1, TN_F32), m->offset), m->stride);
    row = tn_reshape(tn_expand(tn_reshape(row, TN_SHAPE(h, 1)), TN_SHAPE(h, w)), TN_SHAPE(h * w));
    column = tn_reshape(tn_expand(column, TN_SHAPE(h, w)), TN_SHAPE(h * w));
    tn_tensor *shift = tn_stack((tn_tensor *[]){ column, row, column, row }, 4, 1);
    tn_tensor *cell = tn_module_tensor(m->cells, 0);
    return tn_reshape(tn_add(tn_unsqueeze(shift, 1), cell), TN_SHAPE(-1, 4));
}

static const tn_module_type anchors_type = { .name = "Anchors",
                                             .size = sizeof(anchors),
                                             .forward = anchors_forward };

static tn_tensor *cell_anchors(const double *sizes, int n, const double *ratios, int n_ratios)
{
    float box[64][4];
    for (int s = 0; s < n; s++)
        for (int r = 0; r < n_ratios; r++) {
            double w = sqrt(sizes[s] * sizes[s] / ratios[r]), h = ratios[r] * w;
            float *b = box[s * n_ratios + r];
            b[0] = (float)(-w / 2), b[1] = (float)(-h / 2);
            b[2] = (float)(w / 2), b[3] = (float)(h / 2);
        }
    return tn_from_floats(&box[0][0], TN_SHAPE(n * n_ratios, 4));
}

static anchors *anchors_new(tn_persistence persistence, double offset)
{
    anchors *m = tn_module_new(&anchors_type);
    m->stride = 4;
    m->offset = offset;
    tn_register_module(&m->base, "cell_anchors", &m->cells, tn_buffer_list_new(persistence));
    tn_module_append_tensor(m->cells,
                            cell_anchors((double[]){ 32, 64 }, 2, (double[]){ .25, 1, 4 }, 3));
    tn_module_append_tensor(m->cells, cell_anchors((double[]){ 128 }, 1, (double[]){ 1 }, 1));
    assert_made(tn_module_done(&m->base));
    return m;
}

START_TEST(AN_01_persistent_or_not)
{
    tn_persistence persistence = _i ? TN_NON_PERSISTENT : TN_PERSISTENT;
    anchors *m = anchors_new(persistence, 0);
    tn_list *buffers = tn_buffers(&m->base);
    assert_names(buffers, "cell_anchors.0 cell_anchors.1");
    ck_assert_int_eq(buffers->entry[0].persistent, !_i);
    assert_names(tn_state_dict(&m->base, ""), _i ? "" : "cell_anchors.0 cell_anchors.1");
    ck_assert_int_eq(tn_parameters(&m->base)->n, 0);
    /* a file made with the other persistence */
    anchors *other = anchors_new(_i ? TN_PERSISTENT : TN_NON_PERSISTENT, 0);
    assert_fails(
        tn_load_state_dict(&m->base, tn_state_dict(&other->base, ""), (tn_load_options){ 0 }, NULL),
        TN_E_NAME, _i ? "unexpected: \"cell_anchors.0\"" : "missing: \"cell_anchors.0\"");
    /* carried either way: cast and cloned with the module */
    assert_ok(tn_module_to_dtype(&m->base, TN_F64));
    ck_assert_int_eq(tn_dtype_of(tn_module_tensor(m->cells, 1)), TN_F64);
    tn_module *clone = tn_module_clone(&m->base);
    ck_assert_int_eq(tn_module_tensors(((anchors *)clone)->cells), 2);
    assert_close(tn_get_buffer(clone, "cell_anchors.0"), tn_module_tensor(m->cells, 0), 0, 0);
    assert_null(tn_sgd(buffers, (tn_sgd_options){ 0 }), TN_E_NAME, "cell_anchors.0 is a buffer");
    tn_module_drop(clone);
    tn_module_drop(&other->base);
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(AN_02_anchors)
{
    tn_tensor *features = tn_zeros(TN_SHAPE(1, 96, 1, 2));
    anchors *m = anchors_new(TN_NON_PERSISTENT, 0);
    assert_values(tn_forward(&m->base, features), 0, /* w = 2s, s, s/2 of sizes 32 and 64 */
                  -32, -8, 32, 8, -16, -16, 16, 16, -8, -32, 8, 32,     /**/
                  -64, -16, 64, 16, -32, -32, 32, 32, -16, -64, 16, 64, /**/
                  -28, -8, 36, 8, -12, -16, 20, 16, -4, -32, 12, 32, /* one stride to the right */
                  -60, -16, 68, 16, -28, -32, 36, 32, -12, -64, 20, 64); /**/
    m->offset = 0.5;
    tn_tensor *y = tn_forward(&m->base, tn_zeros(TN_SHAPE(1, 1, 3, 2)));
    ck_assert_int_eq(tn_size(y, 0), 3 * 2 * 6);
    /* row 2, column 1, size 64, ratio 1: centre ((1 + .5) 4, (2 + .5) 4) */
    assert_values(tn_select(y, 0, (2 * 2 + 1) * 6 + 4), 0, 6 - 32, 10 - 32, 6 + 32, 10 + 32);
    tn_module_drop(&m->base);
}
END_TEST

START_TEST(RM_06_lists_of_tensors)
{
    tn_module *p = tn_parameter_list_new(), *b = tn_buffer_list_new(TN_PERSISTENT);
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_module_append_tensor(p, tn_full(TN_SHAPE(2), i)));
        assert_ok(tn_module_append_tensor(b, tn_full(TN_SHAPE(2), i)));
    }
    ck_assert_str_eq(type_of(p), "ParameterList");
    assert_names(tn_parameters(p), "0 1 2");
    assert_names(tn_buffers(b), "0 1 2");
    ck_assert(tn_requires_grad(tn_module_tensor(p, 2)));
    ck_assert(!tn_requires_grad(tn_module_tensor(b, 2)));
    /* a gap is not filled with other tensors */
    assert_ok(tn_module_delete(b, "1"));
    assert_ok(tn_module_append_tensor(b, tn_full(TN_SHAPE(2), 7)));
    assert_names(tn_buffers(b), "0 2 3");
    assert_values(tn_module_tensor(b, 1), 0, 2, 2);
    ck_assert_int_eq(tn_module_tensors(b), 3);
    assert_null(tn_module_tensor(b, 3), TN_E_INDEX, "tn_module_tensor: 3: the BufferList has 3");
    assert_null(tn_module_tensor(b, -1), TN_E_INDEX, "-1");
    assert_fails(tn_module_append_tensor(p, tn_from_ints((int64_t[]){ 1 }, TN_SHAPE(1))),
                 TN_E_DTYPE, "parameter \"3\" of ParameterList is i64");
    assert_null(tn_forward(p, tn_ones(TN_SHAPE(1))), TN_E_UNSUPPORTED, "has no forward");
    tn_module *list = tn_module_list_new();
    assert_fails(
        tn_module_append_tensor(list, tn_ones(TN_SHAPE(1))), TN_E_INVALID,
        "tn_module_append_tensor: the module is a ModuleList: want a ParameterList or BufferList");
    ck_assert_int_eq(tn_module_tensors(list), -1);
    tn_error_clear();
    tn_module_drop(list);
    tn_module_drop(p);
    tn_module_drop(b);
}
END_TEST

START_TEST(RM_06_dict_of_modules)
{
    tn_module *m = tn_module_dict_new();
    assert_ok(tn_register_module(m, "conv", NULL, linear(2, 2)));
    assert_ok(tn_register_module(m, "act", NULL, tn_relu_new()));
    assert_fails(tn_register_module(m, "a.b", NULL, tn_relu_new()), TN_E_NAME, "contains a dot");
    assert_fails(tn_register_module(m, "", NULL, tn_relu_new()), TN_E_NAME, "is empty");
    assert_names(tn_state_dict(m, ""), "conv.weight conv.bias");
    ck_assert_str_eq(type_of(tn_get_submodule(m, "act")), "ReLU");
    ck_assert_str_eq(type_of(m), "ModuleDict");
    assert_ok(tn_module_delete(m, "conv"));
    ck_assert_int_eq(tn_module_children(m), 1);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(1, 2))), TN_E_UNSUPPORTED, "ModuleDict");
    /* a C array of modules is not registered, a ModuleList is: "0", "1" */
    tn_module *list = tn_module_list_new();
    assert_ok(tn_module_append(list, linear(1, 1)));
    assert_ok(tn_module_append(list, linear(1, 1)));
    assert_names(tn_parameters(list), "0.weight 0.bias 1.weight 1.bias");
    tn_module_drop(list);
    tn_module_drop(m);
}
END_TEST

/* ---- averages of a model --------------------------------------------------------------------- */

/* A buffer before the parameters, a norm, a tie: a table, c scale, child bn, other fc. */
static tn_tensor *averaged_run(box *m, tn_tensor *x)
{
    x = tn_add(tn_mul(x, m->c), m->a);
    return tn_forward(m->other, tn_forward(m->child, x));
}

static tn_module *averaged_new(void)
{
    box *m = box_new();
    tn_module *base = &m->base;
    m->run = averaged_run;
    assert_ok(tn_register_buffer(base, "table", &m->a, tn_zeros(TN_SHAPE(2)), TN_PERSISTENT));
    assert_ok(tn_register_module(base, "bn", &m->child,
                                 tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 })));
    assert_ok(tn_register_parameter(base, "scale", &m->c, tn_zeros(TN_SHAPE(2))));
    assert_ok(tn_register_module(base, "fc", &m->other, linear(2, 2)));
    assert_ok(tn_register_module(base, "tied", NULL,
                                 tn_linear_new(2, 2, (tn_linear_options){ .no_bias = true })));
    assert_ok(tn_module_set(base, "tied.weight", tn_get_parameter(base, "fc.weight")));
    assert_ok(tn_module_to_dtype(base, TN_F64));
    return base;
}

/* The values behind the numbers below: tensor j of parameters and buffers, at step k. */
static void fill_step(tn_module *m, int k)
{
    tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    TN_NO_GRAD for (int j = 0; j < all->n; j++)
    {
        tn_tensor *t = all->entry[j].tensor;
        double v[8];
        for (int i = 0; i < 8; i++) v[i] = sin(i + 3 * j + 0.7 * k);
        if (tn_dtype_is_float(tn_dtype_of(t)))
            assert_ok(tn_copy_(t, from_f64(v, tn_shape_get(t))));
        else
            assert_ok(tn_fill_(t, 10 + k));
    }
}

static const char averaged_names[] =
    "n_averaged module.scale module.table module.bn.weight module.bn.bias module.bn.running_mean "
    "module.bn.running_var module.bn.num_batches_tracked module.fc.weight module.fc.bias "
    "module.tied.weight";

static const struct averaged_case {
    tn_ema_options o;
    double scale[2], table[2], weight[2], bias[2], mean[2], var[2], fc[4], fc_bias[2];
} averaged_cases[] = {
    { { .decay = 0.9 },
      { 0.22719304503010174, 0.7587069500645391 },
      { -0.9840650050816434, -0.6813137655554999 },
      { -0.11826589642077441, -0.7204678572494203 },
      { 0.006971655090482499, 0.6678085953729146 },
      { 0.9491245536478946, 0.7777941618010928 },
      { -0.8951873678196818, -0.8587070026099295 },
      { 0.10446212396384652, -0.6017831399195167, -0.754751760226015, -0.21380509289678967 },
      { -0.21380509289678967, 0.5237129908290404 } },
    { { .decay = 0.9, .average_buffers = true },
      { 0.22719304503010174, 0.7587069500645391 },
      { 0.31886875144171956, -0.43516072266633904 },
      { -0.11826589642077441, -0.7204678572494203 },
      { 0.006971655090482499, 0.6678085953729146 },
      { -0.41755024975851995, 0.33789870968076574 },
      { 0.5078744769874338, -0.23387365172352173 },
      { 0.10446212396384652, -0.6017831399195167, -0.754751760226015, -0.21380509289678967 },
      { -0.21380509289678967, 0.5237129908290404 } },
    { { .equal = true },
      { 0.6232191959687563, 0.6375449095612018 },
      { -0.9840650050816434, -0.6813137655554999 },
      { -0.5665332222664687, -0.677913186175028 },
      { 0.4985080822685964, 0.7047130257583556 },
      { 0.9491245536478946, 0.7777941618010928 },
      { -0.8951873678196818, -0.8587070026099295 },
      { -0.4205052996147072, -0.7174080293397087, -0.3547291253864181, 0.3340861005299684 },
      { 0.3340861005299684, 0.7157441063360922 } },
};

START_TEST(ema_equals_averaged_model)
{
    const struct averaged_case *c = &averaged_cases[_i];
    tn_module *model = averaged_new(), *ema = tn_ema_new(model, c->o);
    assert_names(tn_state_dict(ema, ""), averaged_names);
    for (int k = 0; k < 4; k++) {
        fill_step(model, k);
        assert_ok(tn_ema_update(ema, model));
        if (k) continue;
        for (int i = 0; i < tn_state_dict(model, "")->n; i++) { /* the first one copies */
            const tn_entry *e = &tn_state_dict(model, "")->entry[i];
            assert_close(tn_get_buffer(tn_ema_module(ema), e->name), e->tensor, 0, 0);
        }
    }
    const struct {
        const char *name;
        const double *v;
        int n;
    } rows[] = {
        { "scale", c->scale, 2 },
        { "table", c->table, 2 },
        { "bn.weight", c->weight, 2 },
        { "bn.bias", c->bias, 2 },
        { "bn.running_mean", c->mean, 2 },
        { "bn.running_var", c->var, 2 },
        { "bn.num_batches_tracked", (double[]){ 13 }, 1 }, /* PyTorch averages it to 10 in row 1 */
        { "fc.weight", c->fc, 4 },
        { "tied.weight", c->fc, 4 },
        { "fc.bias", c->fc_bias, 2 },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        const char *d = values_difference(tn_get_buffer(tn_ema_module(ema), rows[i].name),
                                          rows[i].v, rows[i].n, 1e-15);
        ck_assert_msg(!d, "%s: %s", rows[i].name, d);
    }
    ck_assert_int_eq((int)tn_item(tn_get_buffer(ema, "n_averaged")), 4);
    tn_module_drop(ema);
    tn_module_drop(model);
}
END_TEST

START_TEST(ema_is_carried)
{
    tn_module *model = averaged_new(), *ema = tn_ema_new(model, (tn_ema_options){ 0 });
    ck_assert_int_eq(tn_parameters(ema)->n, 0);
    assert_null(tn_sgd(tn_parameters(ema), (tn_sgd_options){ 0 }), TN_E_INVALID, "is empty");
    assert_null(tn_sgd(tn_buffers(ema), (tn_sgd_options){ 0 }), TN_E_NAME,
                "n_averaged is a buffer: optimizers update parameters only");
    tn_tensor *detached = tn_detach(tn_get_buffer(ema, "module.fc.weight"));
    tn_list *raw = tn_list_new();
    assert_ok(tn_list_add(raw, "w", detached));
    assert_null(tn_sgd(raw, (tn_sgd_options){ 0 }), TN_E_NAME, "shares memory with a buffer");
    /* the tie is kept, and is the copy's own */
    ck_assert_ptr_eq(tn_get_buffer(ema, "module.fc.weight"),
                     tn_get_buffer(ema, "module.tied.weight"));
    ck_assert(!tn_same_storage(detached, tn_get_parameter(model, "fc.weight")));
    ck_assert(!tn_requires_grad(detached));
    /* training the model records nothing here and leaves the average alone */
    fill_step(model, 0);
    assert_ok(tn_ema_update(ema, model));
    uint64_t hash = hash_of_module(ema);
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = .1 });
    tn_tensor *x = waves(TN_SHAPE(4, 2), 1);
    assert_ok(tn_backward(tn_mean(tn_square(tn_forward(model, x)), NULL, 0, false)));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(hash_of_module(ema), hash);
    assert_ok(tn_ema_update(ema, model));
    ck_assert_uint_ne(hash_of_module(ema), hash);
    tn_optim_free(opt);
    tn_module_drop(model);
    /* it outlives the model, runs as it does, and needs no gradient */
    assert_ok(tn_eval(ema));
    tn_tensor *y = tn_forward(ema, x);
    assert_made(y);
    ck_assert(!tn_requires_grad(y));
    assert_close(tn_forward(tn_ema_module(ema), x), y, 0, 0);
    tn_module_drop(ema);
}
END_TEST

START_TEST(ema_mode_and_defaults)
{
    tn_module *model = averaged_new();
    for (int training = 0; training < 2; training++) {
        assert_ok(tn_train(model, training));
        tn_module *ema = tn_ema_new(model, (tn_ema_options){ 0 });
        ck_assert_int_eq(tn_training(ema), training);
        ck_assert_int_eq(tn_training(tn_get_submodule(ema, "module.bn")), training);
        assert_ok(tn_train(ema, !training));
        ck_assert_int_eq(tn_training(tn_get_submodule(ema, "module.bn")), !training);
        ck_assert_int_eq(tn_training(model), training);
        /* decay 0.999: one thousandth of the way */
        fill_step(model, 0);
        assert_ok(tn_ema_update(ema, model));
        double a = tn_at(tn_get_buffer(ema, "module.scale"), TN_INDEX(1));
        fill_step(model, 1);
        assert_ok(tn_ema_update(ema, model));
        double x = tn_at(tn_get_parameter(model, "scale"), TN_INDEX(1));
        ck_assert_double_eq_tol(tn_at(tn_get_buffer(ema, "module.scale"), TN_INDEX(1)),
                                0.999 * a + 0.001 * x, 1e-15);
        tn_module_drop(ema);
    }
    tn_module_drop(model);
}
END_TEST

/* Of a model that points to a grandchild without a slot: it computes with averages. */
START_TEST(ema_of_a_model_with_other_fields)
{
    box *m = box_new();
    tn_module *parts = tn_module_dict_new();
    m->run = by_child;
    assert_ok(tn_register_module(parts, "fc", NULL,
                                 tn_linear_new(1, 1, (tn_linear_options){ .no_bias = true })));
    assert_ok(tn_register_module(&m->base, "parts", &m->child, parts));
    m->other = tn_get_submodule(parts, "fc");
    tn_tensor *w = tn_get_parameter(m->other, "weight"), *x = tn_ones(TN_SHAPE(1, 1));
    tn_module *ema = tn_ema_new(&m->base, (tn_ema_options){ .equal = true });
    for (int i = 0; i < 2; i++) {
        TN_NO_GRAD assert_ok(tn_fill_(w, 2 + 4 * i));
        assert_ok(tn_ema_update(ema, &m->base));
    }
    assert_values(tn_forward(&m->base, x), 0, 6);
    assert_values(tn_forward(ema, x), 0, 4);
    tn_module_drop(&m->base);
    assert_values(tn_forward(ema, x), 0, 4);
    tn_module_drop(ema);
}
END_TEST

START_TEST(ema_refuses_another_model)
{
    tn_module *model = averaged_new(), *ema = tn_ema_new(model, (tn_ema_options){ .decay = .5 });
    fill_step(model, 1);
    assert_ok(tn_ema_update(ema, model));
    uint64_t hash = hash_of_module(ema);
    for (int k = 0; k < 6; k++) {
        static const char *const wanted[] = {
            "tn_ema_update: the model has no fc.bias",
            "tn_ema_update: the average has no late",
            "fc.bias is [2] f64 in the average, [3] f64 in the model",
            "table is [2] f64 in the average, [2] i64 in the model",
            "9 tensors in the average, 10 in the model: want the ties",
            "tn_ema_update: the module is a ReLU: want an Ema",
        };
        static const tn_status status[] = { TN_E_NAME,  TN_E_NAME,  TN_E_SHAPE,
                                            TN_E_SHAPE, TN_E_STATE, TN_E_INVALID };
        tn_module *m = averaged_new();
        tn_module *relu = tn_relu_new();
        fill_step(m, 2);
        if (k == 0) assert_ok(tn_module_delete(tn_get_submodule(m, "fc"), "bias"));
        if (k == 1)
            assert_ok(tn_register_buffer(m, "late", NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
        if (k == 2) assert_ok(tn_module_set(m, "fc.bias", tn_ones(TN_SHAPE(3))));
        if (k == 2) assert_ok(tn_module_to_dtype(m, TN_F64));
        if (k == 3)
            assert_ok(tn_module_set(m, "table", tn_from_ints((int64_t[]){ 1, 2 }, TN_SHAPE(2))));
        if (k == 4)
            assert_ok(tn_module_set(m, "tied.weight",
                                    tn_clone(tn_detach(tn_get_parameter(m, "fc.weight")))));
        assert_fails(tn_ema_update(k == 5 ? relu : ema, m), status[k], wanted[k]);
        ck_assert_msg(hash_of_module(ema) == hash, "case %d: the average has changed", k);
        tn_module_drop(relu);
        tn_module_drop(m);
    }
    /* another floating dtype is not a mismatch: an f64 average of an f32 model */
    tn_module *single = averaged_new();
    assert_ok(tn_module_to_dtype(single, TN_F32));
    assert_ok(tn_ema_update(ema, single));
    ck_assert_int_eq(tn_dtype_of(tn_get_buffer(ema, "module.scale")), TN_F64);
    assert_null(tn_ema_new(model, (tn_ema_options){ .decay = 1.5 }), TN_E_INVALID, "decay 1.5");
    assert_null(tn_ema_new(model, (tn_ema_options){ .decay = NAN }), TN_E_INVALID, "decay nan");
    assert_null(tn_ema_new(model, (tn_ema_options){ .decay = .9, .equal = true }), TN_E_INVALID,
                "decay 0.9 and equal");
    ck_assert_ptr_null(tn_ema_module(single));
    tn_error_clear();
    tn_module_drop(single);
    tn_module_drop(ema);
    tn_module_drop(model);
}
END_TEST

/* Interrupted after two updates, saved, loaded into a new average, continued. */
START_TEST(ema_resumes_from_a_file)
{
    const char *path = in_folder("average.safetensors");
    tn_module *model = averaged_new();
    tn_module *a = tn_ema_new(model, averaged_cases[_i].o),
              *b = tn_ema_new(model, averaged_cases[_i].o);
    for (int k = 0; k < 5; k++) {
        fill_step(model, k);
        assert_ok(tn_ema_update(a, model));
        if (k == 1) {
            assert_ok(tn_save(a, path));
            assert_ok(tn_load(b, path));
        } else if (k > 1) {
            assert_ok(tn_ema_update(b, model));
        }
    }
    ck_assert_uint_eq(hash_of_module(b), hash_of_module(a));
    tn_module_drop(a);
    tn_module_drop(b);
    tn_module_drop(model);
}
END_TEST

/* The average of a 16-bit model is f32, so that small shares count: of values 2, after a 1. */
START_TEST(HP_06_ema_of_a_narrow_model)
{
    static const struct {
        tn_dtype dtype;
        tn_ema_options o;
        int updates;
        double wanted;
    } run[] = { { TN_BF16, { .average_buffers = true }, 5001, 1.9932787 },
                { TN_F16, { .average_buffers = true }, 5001, 1.9932787 },
                { TN_BF16, { .decay = .9999 }, 501, 1.0487747 },
                { TN_BF16, { .equal = true, .average_buffers = true }, 1000, 1.999 } };
    tn_module *model = tn_sequential(tn_linear_new(2, 2, (tn_linear_options){ 0 }),
                                     tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
    assert_ok(tn_module_to_dtype(model, run[_i].dtype));
    tn_module *ema = tn_ema_new(model, run[_i].o);
    assert_made(ema);
    for (int k = 0; k < run[_i].updates; k++) {
        const tn_list *list = k < 2 ? tn_state_dict(model, "") : NULL;
        for (int i = 0; list && i < list->n; i++)
            TN_NO_GRAD assert_ok(tn_fill_(list->entry[i].tensor, k + 1));
        assert_ok(tn_ema_update(ema, model));
    }
    static const char *const names[] = { "0.weight", "0.bias", "1.weight", "1.running_var" };
    for (int i = 0; i < COUNT(names); i++) {
        const tn_tensor *t = tn_get_buffer(tn_ema_module(ema), names[i]);
        ck_assert_int_eq(tn_dtype_of(t), TN_F32);
        double wanted = i == 3 && !run[_i].o.average_buffers ? 2 : run[_i].wanted;
        ck_assert_double_eq_tol(tn_item(tn_max_all((tn_tensor *)t)), wanted, 2e-5);
    }
    /* saved and read as it is, called in f32 or under autocast; back in the model it is rounded */
    const char *path = in_folder("narrow.safetensors");
    tn_module *read = tn_ema_new(model, run[_i].o);
    assert_ok(tn_save(ema, path));
    assert_ok(tn_load(read, path));
    ck_assert_uint_eq(hash_of_module(read), hash_of_module(ema));
    tn_tensor *x = tn_ones(TN_SHAPE(3, 2)), *narrow = tn_to_dtype(x, run[_i].dtype), *y = NULL;
    tn_eval(ema);
    ck_assert_int_eq(tn_dtype_of(tn_forward(ema, x)), TN_F32);
    TN_AUTOCAST(run[_i].dtype) y = tn_forward(ema, narrow);
    assert_made(y);
    tn_list *state = tn_state_dict(tn_ema_module(ema), "");
    assert_ok(tn_load_state_dict(model, state, (tn_load_options){ .cast = true }, NULL));
    ck_assert_int_eq(tn_dtype_of(tn_get_parameter(model, "0.weight")), run[_i].dtype);
    ck_assert_double_eq_tol(tn_item(tn_max_all(tn_get_parameter(model, "0.bias"))), run[_i].wanted,
                            1.0 / 128);
    tn_module_drop(read), tn_module_drop(ema), tn_module_drop(model);
}
END_TEST

/* ---- memory that runs out -------------------------------------------------------------------- */

/* The k-th allocation fails, for every k: the model and the average are what they were. */
START_TEST(failures_change_nothing)
{
    scarce_install();
    tn_module *m = blocks_new(), *ema = tn_ema_new(m, (tn_ema_options){ 0 });
    assert_ok(tn_ema_update(ema, m));
    for (int what = 0; what < 3; what++) {
        uint64_t hash = hash_of_module(m), average = hash_of_module(ema);
        const char *was = type_of(block(m, 0)->other);
        int64_t live = tn_live_tensors();
        bool done = false;
        for (int64_t k = 1; !done; k++) {
            ck_assert_int_lt(k, 5000);
            tn_error_clear();
            tn_scope scope = tn_scope_begin();
            scarce_fail(k);
            tn_module *made = NULL;
            if (what == 0)
                done = tn_ema_update(ema, m) == TN_OK;
            else if (what == 1)
                done = (made = tn_ema_new(m, (tn_ema_options){ 0 })) != NULL;
            else
                done = tn_freeze_batch_norm(tn_module_keep(m)) != NULL;
            scarce.failing = 0;
            tn_scope_end(scope);
            tn_module_drop(made);
            if (done) break;
            ck_assert_int_eq(tn_error_status(), TN_E_NOMEM);
            ck_assert_msg(hash_of_module(m) == hash && hash_of_module(ema) == average,
                          "%d: allocation %d failed: values changed", what, (int)k);
            ck_assert_msg(type_of(block(m, 0)->other) == was, "allocation %d: replaced", (int)k);
            ck_assert_msg(tn_live_tensors() == live, "%d: allocation %d failed: %d tensors leak",
                          what, (int)k, (int)(tn_live_tensors() - live));
        }
        if (what == 2) tn_module_drop(m); /* kept once more, and consumed: the last success */
        ck_assert_int_gt(scarce.requests, what ? 20 : 2);
    }
    ck_assert_str_eq(type_of(block(m, 0)->other), "FrozenBatchNorm2d");
    tn_module_drop(m);
    tn_module_drop(ema);
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* read at the first allocation: the allocator sees them all */
    Suite *suite = suite_create("carried");
    TCase *t = test_case(suite, "frozen_batchnorm");
    tcase_add_test(t, FB_01_all_tensors_are_buffers);
    tcase_add_test(t, FB_01_new_layer_is_the_identity);
    tcase_add_test(t, FB_02_FB_05_one_formula_in_train_and_eval);
    tcase_add_test(t, FB_03_older_lists);
    tcase_add_test(t, FB_04_conversion);
    tcase_add_test(t, FB_04_fields_of_others);
    tcase_add_test(t, FB_04_within_its_own_call);
    tcase_add_test(t, FB_04_a_layer_alone);
    tcase_add_loop_test(t, FB_04_momentum_comes_back, 0, 3);
    tcase_add_test(t, FB_04_ties_and_frozen_parents);
    tcase_add_test(t, FB_04_what_cannot_be_frozen);
    tcase_add_test(t, FB_04_optimizers_made_before_leave_it_alone);
    tcase_add_test(t, BN_11_skip_nonfinite);
    tcase_add_test(t, BN_11_without_the_option_nan_stays);
    t = test_case(suite, "lists");
    tcase_add_loop_test(t, AN_01_persistent_or_not, 0, 2);
    tcase_add_test(t, AN_02_anchors);
    tcase_add_test(t, RM_06_lists_of_tensors);
    tcase_add_test(t, RM_06_dict_of_modules);
    t = file_case(suite, "ema");
    tcase_add_loop_test(t, ema_equals_averaged_model, 0, COUNT(averaged_cases));
    tcase_add_test(t, ema_is_carried);
    tcase_add_test(t, ema_mode_and_defaults);
    tcase_add_test(t, ema_of_a_model_with_other_fields);
    tcase_add_test(t, ema_refuses_another_model);
    tcase_add_loop_test(t, ema_resumes_from_a_file, 0, COUNT(averaged_cases));
    tcase_add_loop_test(t, HP_06_ema_of_a_narrow_model, 0, 4);
    t = test_case(suite, "failure");
    tcase_add_test(t, failures_change_nothing);
    return suite;
}
