/*
 * test_int8.c - weights of bytes: the rule of the bytes in closed form, products and gradients
 * beside those of the same weight as floats, adapters on top, files, refusals, memory.
 *
 * Seen to fail: with a row's first scale for all of it (few.c, linear_int8.c), a bias that starts
 * again with each piece of W (linear_int8.c, cut.c), halves rounded away from zero, a scale of max
 * / 128, none below which it stays, rows that are no groups taken, modules by their first names
 * alone (src/ext/lm/int8.c), adapters as wide as a row of bytes (src/nn/layers/lora.c), bytes
 * turned as GPT-2's floats (weights.c).
 */
#include <float.h>

#include <tenon/lm.h>
#include <tenon/lora.h>

#include "files.h"
#include "scarce.h"
#include "nn/layers/layer.h"

static tn_module *linear(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

/* fc1, relu, fc2, head (rows that 64 does not divide). */
static tn_module *net_new(void)
{
    tn_module *m = tn_module_dict_new();
    assert_made(m);
    tn_manual_seed(3);
    assert_ok(tn_register_module(m, "fc1", NULL, linear(128, 64)));
    assert_ok(tn_register_module(m, "fc2", NULL, linear(64, 96)));
    assert_ok(tn_register_module(m, "head", NULL, linear(96, 3)));
    return owned(m);
}

static tn_tensor *of(tn_module *m, tn_tensor *x)
{
    x = tn_relu(tn_forward(tn_get_submodule(m, "fc1"), x));
    return tn_forward(tn_get_submodule(m, "head"), tn_forward(tn_get_submodule(m, "fc2"), x));
}

/* The weight of bytes as floats, by a loop of its own. */
static tn_tensor *floats_of(tn_tensor *w, int64_t in, tn_dtype dtype)
{
    const int64_t out = tn_size(w, 0), row = tn_size(w, 1), groups = (row - in) / 4;
    const uint8_t *q = tn_data(w);
    tn_tensor *to = tn_zeros(TN_SHAPE(out, in));
    float *y = tn_data_mut(to);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            float scale;
            memcpy(&scale, q + o * row + in + i / (in / groups) * 4, 4);
            y[o * in + i] = scale * (float)(int8_t)q[o * row + i];
        }
    return tn_to_dtype(to, dtype);
}

/* A weight of random bytes with scales between 0.01 and 0.02. */
static tn_tensor *bytes(int64_t out, int64_t in, int64_t group)
{
    tn_tensor *q = tn_to_dtype(random_as(TN_SHAPE(out, in), 0, 255.9, 4, TN_F32), TN_U8);
    tn_tensor *s = random_as(TN_SHAPE(out, in / group), 0.01, 0.02, 5, TN_F32);
    s = tn_from_data(tn_data(s), TN_SHAPE(out, in / group * 4), TN_U8);
    return tn_cat((tn_tensor *[]){ q, s }, 2, 1);
}

/* ---- the rule -------------------------------------------------------------------------------- */

static const float chosen[2][64] = {
    /* scale 1, halves to even; scale 2 */
    { 127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 0.49F, -126.6F, [32] = -254, 1, 3, 5, -1, 200 },
    /* zeros; denormals below the smallest scale */
    { [32] = 1e-38F, -1e-40F, -1.1754944e-38F },
};

START_TEST(bytes_follow_the_rule)
{
    static const int want[2][64] = {
        { 127, 0, 2, 2, 0, -2, -2, 0, -127, [32] = -127, 0, 2, 2, 0, 100 }, { [32] = 1, 0, -1 }
    };
    static const float scales[2][2] = { { 1, 2 }, { FLT_MIN, FLT_MIN } };
    tn_module *m = owned(tn_sequential(linear(64, 2)));
    TN_NO_GRAD assert_ok(
        tn_copy_(tn_get_parameter(m, "0.weight"), tn_from_floats(chosen[0], TN_SHAPE(2, 64))));
    assert_ok(tn_quantize_int8(m, "*", 32));
    tn_tensor *w = tn_get_parameter(m, "0.weight");
    ck_assert_int_eq(tn_dtype_of(w), TN_U8);
    ck_assert(!tn_requires_grad(w));
    ck_assert_int_eq(tn_size(w, 1), 64 + 8);
    const uint8_t *q = tn_data(w);
    for (int o = 0; o < 2; o++) {
        for (int i = 0; i < 64; i++) ck_assert_int_eq((int8_t)q[o * 72 + i], want[o][i]);
        ck_assert_mem_eq(q + o * 72 + 64, scales[o], 8);
    }
    assert_ok(tn_quantize_int8(m, "*", 64)); /* it is packed already, and stays */
    ck_assert_ptr_eq(tn_get_parameter(m, "0.weight"), w);
}
END_TEST

/* Many rows: packed by pieces. Half a step at most, but for rounding, from f64 and bf16, too. */
START_TEST(errors_are_at_most_half_a_step)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_BF16, TN_F64 };
    enum { IN = 128, OUT = 2100 };
    tn_module *m = owned(tn_sequential(linear(IN, OUT)));
    assert_ok(tn_module_to_dtype(m, dtypes[_i]));
    tn_tensor *before = tn_clone(tn_to_dtype(tn_get_parameter(m, "0.weight"), TN_F64));
    assert_ok(tn_quantize_int8(m, "0", 0));
    tn_tensor *w = tn_get_parameter(m, "0.weight");
    ck_assert_int_eq(tn_size(w, 1), IN + 4 * 2);
    const uint8_t *q = tn_data(w);
    const double *was = tn_data(before);
    for (int64_t i = 0; i < IN * OUT; i++) {
        float s;
        memcpy(&s, q + i / IN * (IN + 8) + IN + i % IN / 64 * 4, 4);
        double now = (double)s * (int8_t)q[i / IN * (IN + 8) + i % IN];
        ck_assert_double_le(fabs(was[i] - now), (double)s * (0.5 + 1e-4));
    }
}
END_TEST

/* ---- products -------------------------------------------------------------------------------- */

/* Rows of x, outputs, inputs, group: rows as few.c takes them and more, outputs that four do not
 * divide, pieces of W (above 2^17 numbers) either way. */
static const int64_t sizes[][4] = {
    { 1, 1, 32, 32 },    { 1, 5, 64, 32 },     { 2, 7, 96, 96 },    { 3, 9, 128, 64 },
    { 4, 8, 640, 128 },  { 5, 50, 256, 128 },  { 16, 10, 64, 64 },  { 32, 6, 96, 32 },
    { 65, 11, 128, 32 }, { 70, 300, 640, 64 }, { 2, 259, 512, 64 },
};

START_TEST(products_and_gradients_are_those_of_floats)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    static const double share[] = { 2e-6, 2e-7, 1.6e-2, 2e-3 }; /* of the largest */
    const int64_t *s = sizes[_i / 4];
    const tn_dtype dtype = dtypes[_i % 4];
    tn_tensor *w = bytes(s[1], s[2], s[3]), *v = floats_of(w, s[2], dtype);
    tn_tensor *x = with_grad(random_as(TN_SHAPE(s[0], s[2]), -1, 1, 1, dtype));
    tn_tensor *bias = with_grad(random_as(TN_SHAPE(s[1]), -1, 1, 2, dtype)), *in[] = { x, bias };
    tn_tensor *dy = random_as(TN_SHAPE(s[0], s[1]), -1, 1, 3, dtype), *got[2], *want[2];
    for (int biased = 0; biased < 2; biased++) {
        tn_tensor *y = tn_linear(x, w, biased ? bias : TN_NONE);
        tn_tensor *z = tn_linear(x, v, biased ? bias : TN_NONE);
        assert_close(y, z, 0, share[_i % 4] * (1 + tn_item(tn_max_all(tn_abs(tn_detach(z))))));
        assert_ok(tn_gradients(1, &y, &dy, 1 + biased, in, got, 0));
        assert_ok(tn_gradients(1, &z, &dy, 1 + biased, in, want, 0));
        for (int i = 0; i <= biased; i++)
            assert_close(got[i], want[i], 0,
                         share[_i % 4] * (1 + tn_item(tn_max_all(tn_abs(want[i])))));
    }
}
END_TEST

/* A row of few is bit for bit what it is alone, on any number of threads. */
START_TEST(rows_depend_on_nothing_else)
{
    tn_tensor *w = bytes(203, 320, 64), *x = random_as(TN_SHAPE(32, 320), -1, 1, 1, TN_F32);
    tn_tensor *many = random_as(TN_SHAPE(70, 320), -1, 1, 1, TN_F32);
    for (int64_t m = 2; m <= 32; m += 3)
        for (int64_t r = 0; r < m; r += 2) {
            assert_ok(tn_set_num_threads(1));
            tn_tensor *alone = tn_linear(tn_narrow(x, 0, r, 1), w, TN_NONE);
            assert_ok(tn_set_num_threads(1 + (int)(r % 3)));
            tn_tensor *y = tn_narrow(tn_linear(tn_narrow(x, 0, 0, m), w, TN_NONE), 0, r, 1);
            if (strcmp(tni_cpu_simd(), "baseline") != 0) assert_close(y, alone, 0, 0);
        }
    uint64_t hash = 0;
    for (int threads = 1; threads < 4; threads++) {
        assert_ok(tn_set_num_threads(threads));
        uint64_t now = tn_hash(tn_linear(many, w, TN_NONE));
        ck_assert(threads == 1 || now == hash);
        hash = now;
    }
}
END_TEST

static tn_tensor *checked(tn_tensor **in, void *w)
{
    return tn_linear(in[0], w, in[1]);
}

START_TEST(gradients_are_the_differences)
{
    tn_tensor *in[] = { with_grad(random_as(TN_SHAPE(2, 3, 64), -1, 1, 1, TN_F64)),
                        with_grad(random_as(TN_SHAPE(5), -1, 1, 2, TN_F64)) };
    tn_tensor *w = bytes(5, 64, 32);
    assert_ok(tn_gradcheck(checked, in, 2, w, (tn_gradcheck_options){ .second = true }));
    ck_assert(!tn_requires_grad(tn_linear(tn_detach(in[0]), w, TN_NONE)));
}
END_TEST

START_TEST(others_dtypes_and_shapes)
{
    tn_tensor *w = bytes(5, 64, 32), *x = random_as(TN_SHAPE(2, 64), -1, 1, 1, TN_F32), *y = NULL;
    TN_AUTOCAST(TN_BF16) y = tn_linear(x, w, tn_ones(TN_SHAPE(5)));
    ck_assert_int_eq(tn_dtype_of(y), TN_BF16);
    assert_close(
        y, tn_linear(tn_to_dtype(x, TN_BF16), w, tn_to_dtype(tn_ones(TN_SHAPE(5)), TN_BF16)), 0, 0);
    ck_assert_int_eq(tn_numel(tn_linear(tn_narrow(x, 0, 0, 0), w, TN_NONE)), 0);
    assert_null(tn_linear(x, tn_narrow(w, 1, 0, 64), TN_NONE), TN_E_SHAPE,
                "weight [5,64] of bytes, bias TN_NONE: want x [..., in]");
    assert_null(tn_linear(x, tn_narrow(w, 1, 0, 70), TN_NONE), TN_E_SHAPE, "weight [5,70]");
    assert_null(tn_linear(tn_narrow(x, 1, 0, 60), w, TN_NONE), TN_E_SHAPE, "x [2,60]");
    assert_null(tn_linear(x, w, tn_ones(TN_SHAPE(4))), TN_E_SHAPE, "bias [4]");
    assert_null(tn_linear(x, w, tn_to_dtype(tn_ones(TN_SHAPE(5)), TN_F64)), TN_E_DTYPE, "f64");
    assert_null(tn_linear(tn_to_dtype(x, TN_I64), w, TN_NONE), TN_E_DTYPE, "i64");
    assert_null(tn_linear(tn_ones(TN_SCALAR), w, TN_NONE), TN_E_SHAPE, "x [], weight [5,72]");
    assert_null(tn_linear(TN_NONE, w, TN_NONE), TN_E_INVALID, "input 0 is TN_NONE");
}
END_TEST

/* An infinite x gives infinity or NaN where floats do. */
START_TEST(what_is_not_finite_stays_so)
{
    const double values[] = { INFINITY, NAN };
    tn_tensor *w = bytes(6, 64, 32), *v = floats_of(w, 64, TN_F32);
    for (int i = 0; i < 2; i++) {
        tn_tensor *x = tn_zeros(TN_SHAPE(1, 64));
        ((float *)tn_data_mut(x))[37] = (float)values[i];
        assert_close(tn_linear(x, w, TN_NONE), tn_linear(x, v, TN_NONE), 0, 0);
    }
}
END_TEST

/* ---- in a model ------------------------------------------------------------------------------ */

/* m's twin with the same weights as floats, frozen. */
static tn_module *twin_of(tn_module *m)
{
    static const char *const names[] = { "fc1", "fc2" };
    tn_module *twin = owned(tn_module_clone(m));
    for (int i = 0; i < 2; i++) {
        tn_module *l = tn_get_submodule(twin, names[i]);
        tn_tensor *w = tn_get_parameter(l, "weight");
        if (tn_dtype_of(w) == TN_U8)
            assert_ok(tn_register_frozen(l, "weight", NULL, floats_of(w, i ? 64 : 128, TN_F32)));
    }
    return twin;
}

START_TEST(no_optimizer_changes_them)
{
    tn_module *m = net_new();
    tn_tensor *x = random_as(TN_SHAPE(5, 128), -1, 1, 1, TN_F32), *plain = of(m, x);
    assert_ok(tn_quantize_int8(m, "fc1,fc2", 32));
    assert_close(of(m, x), plain, 0.02, 0.02);
    assert_close(of(m, x), of(twin_of(m), x), 1e-5, 1e-6);
    uint64_t before = tn_hash(tn_get_parameter(m, "fc2.weight"));
    tn_optim *opt = owned(tn_adamw(tn_parameters(m), (tn_adamw_options){ .lr = 1 }));
    assert_ok(tn_backward(tn_sum_all(of(m, x))));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(tn_hash(tn_get_parameter(m, "fc2.weight")), before);
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(m, "fc1.weight"))));
    assert_ok(tn_module_set_requires_grad(m, true));
    ck_assert(!tn_requires_grad(tn_get_parameter(m, "fc2.weight")));
    assert_ok(tn_module_to_dtype(m, TN_BF16));
    ck_assert_uint_eq(tn_hash(tn_get_parameter(m, "fc2.weight")), before);
    ck_assert_int_eq(tn_dtype_of(of(m, tn_to_dtype(x, TN_BF16))), TN_BF16);
}
END_TEST

/* Adapters on packed weights, added before or after, learn what they learn on the same floats. */
START_TEST(adapters_learn_on_bytes)
{
    static const tn_lora_options o = { .rank = 4, .alpha = 8 };
    const int64_t rows = _i % 2 ? 3 : 72;
    tn_module *m = net_new();
    tn_tensor *x = random_as(TN_SHAPE(rows, 128), -1, 1, 1, TN_F32);
    if (_i < 2) assert_ok(tn_lora(m, "fc1,fc2", o));
    assert_ok(tn_quantize_int8(m, "fc1,fc2", 32));
    if (_i >= 2) assert_ok(tn_lora(m, "fc1,fc2", o));
    for (int i = 1; i <= 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc%d.default.lora_B", i);
        assert_ok(tn_init_constant(tn_get_parameter(m, name), 0.02));
    }
    uint64_t base = tn_hash(tn_get_parameter(m, "fc2.weight"));
    tn_module *both[] = { m, twin_of(m) };
    for (int k = 0; k < 2; k++) {
        tn_optim *opt = owned(tn_sgd(tn_parameters(both[k]), (tn_sgd_options){ .lr = 0.05 }));
        for (int step = 0; step < 3; step++) {
            assert_ok(tn_optim_zero_grad(opt));
            assert_ok(tn_backward(tn_mean(tn_square(of(both[k], x)), NULL, 0, false)));
            if (step < 2) assert_ok(tn_optim_step(opt));
        }
    }
    static const char *const learned[] = { "fc1.default.lora_A", "fc1.default.lora_B",
                                           "fc2.default.lora_A", "fc2.default.lora_B" };
    for (int i = 0; i < 4; i++) {
        tn_tensor *a = tn_get_parameter(m, learned[i]), *b = tn_get_parameter(both[1], learned[i]);
        const double largest = tn_item(tn_max_all(tn_abs(tn_grad(b))));
        ck_assert_double_gt(largest, 0);
        assert_close(tn_grad(a), tn_grad(b), 0, 1e-5 * largest);
        assert_close(a, b, 1e-5, 1e-6);
    }
    ck_assert_uint_eq(tn_hash(tn_get_parameter(m, "fc2.weight")), base);
    assert_ok(tn_eval(m));
    tn_tensor *y = of(m, x);
    assert_fails(tn_lora_merge(m), TN_E_UNSUPPORTED, "a weight of bytes takes no sum");
    assert_close(of(m, x), y, 0, 0);
    assert_ok(tn_lora_remove(m, "default", false));
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

START_TEST(files_hold_every_bit)
{
    tn_module *m = net_new(), *other = net_new();
    assert_ok(tn_quantize_int8(m, "fc?", 64));
    assert_ok(tn_save(m, in_folder("q.safetensors")));
    assert_ok(tn_init_constant(tn_get_parameter(other, "fc1.weight"), 1));
    assert_fails(tn_load(other, in_folder("q.safetensors")), TN_E_SHAPE, "fc1.weight");
    assert_ok(tn_quantize_int8(other, "fc?", 0));
    assert_ok(tn_load(other, in_folder("q.safetensors")));
    ck_assert_uint_eq(hash_of_module(other), hash_of_module(m));
    tn_module *again = net_new(); /* the same weights give the same bytes */
    assert_ok(tn_quantize_int8(again, "fc1,fc2", 64));
    ck_assert_uint_eq(hash_of_module(again), hash_of_module(m));
}
END_TEST

/* A language model in a folder: what is packed is packed when it is loaded, also a head that was
 * tied; GPT-2's weights, which are turned in files, are not when they are bytes. */
START_TEST(folders_of_models)
{
    static const char *const cases[] = {
        "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 2, "
        "\"vocab_size\": 48, \"max_position_embeddings\": 32, \"rms_norm_eps\": 1e-5, "
        "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true}",
        "{\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_head\": 4, \"n_layer\": 2, "
        "\"n_positions\": 32, \"vocab_size\": 48}"
    };
    tn_manual_seed(1);
    tn_module *m = owned(tn_lm_new(write_bytes("config.json", cases[_i], strlen(cases[_i]))));
    assert_ok(tn_eval(m));
    tn_tensor *ids = tn_reshape(tn_arange(1, 13, 1, TN_I64), TN_SHAPE(2, 6));
    tn_tensor *plain = tn_forward(m, ids);
    assert_ok(tn_quantize_int8(m, "*", 32));
    tn_tensor *y = tn_forward(m, ids);
    const double largest = tn_item(tn_max_all(tn_abs(plain)));
    ck_assert(difference(y, plain, 0, 1e-6 * largest) != NULL);
    assert_close(y, plain, 0, 0.05 * largest);
    assert_ok(tn_lm_save(m, in_folder("int8")));
    static const char *const names[] = { "model.layers.0.mlp.up_proj.weight",
                                         "transformer.h.0.mlp.c_fc.weight" };
    tn_list *file = tn_load_tensors(in_folder("int8/model.safetensors"), NULL);
    assert_close(tn_list_get(file, names[_i]), tn_get_parameter(m, names[_i]), 0, 0);
    tn_module *loaded = owned(tn_lm_load(in_folder("int8"), (tn_lm_options){ 0 }));
    assert_close(tn_forward(loaded, ids), y, 0, 0);
    ck_assert_int_eq(tn_dtype_of(tn_get_parameter(loaded, "lm_head.weight")), TN_U8);
    assert_ok(tn_lm_set_cache(m, 2, 8));
    assert_close(tn_lm_next(m, ids, TN_NONE), tn_select(y, 1, -1), 0, 1e-5 * largest);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(refusals_change_nothing)
{
    tn_module *m = net_new();
    uint64_t before = hash_of_module(m);
    static const struct {
        const char *patterns;
        int64_t group;
        tn_status status;
        const char *message;
    } cases[] = {
        { "*", 48, TN_E_INVALID, "tn_quantize_int8: group 48: want 32, 64, 96 ..." },
        { "*", -32, TN_E_INVALID, "group -32" },
        { "*", 64, TN_E_SHAPE, "head.weight [3,96]: want rows that are groups of 64" },
        { "q_proj", 32, TN_E_NAME, "\"q_proj\" fits no Linear: want a pattern of names such as" },
        { "fc1,typo", 32, TN_E_NAME, "\"typo\" fits no Linear" },
        { NULL, 32, TN_E_INVALID, "patterns is NULL" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        assert_fails(tn_quantize_int8(m, cases[i].patterns, cases[i].group), cases[i].status,
                     cases[i].message);
        ck_assert_uint_eq(hash_of_module(m), before);
    }
    assert_fails(tn_quantize_int8(NULL, "*", 32), TN_E_INVALID, "tn_quantize_int8");
    float *w = NULL;
    TN_NO_GRAD w = tn_data_mut(tn_get_parameter(m, "head.weight"));
    w[96 + 5] = _i ? NAN : -INFINITY;
    before = hash_of_module(m);
    assert_fails(tn_quantize_int8(m, "*", 32), TN_E_INVALID,
                 "head.weight has NaN or infinity: want finite numbers");
    ck_assert_uint_eq(hash_of_module(m), before);
}
END_TEST

/* A Linear under two names: a pattern may fit either. */
START_TEST(a_second_name_is_one_too)
{
    tn_module *m = net_new();
    assert_ok(tn_register_module(m, "again", NULL, tn_module_keep(tn_get_submodule(m, "fc1"))));
    assert_ok(tn_quantize_int8(m, "again", 32));
    ck_assert_int_eq(tn_dtype_of(tn_get_parameter(m, "fc2.weight")), TN_F32);
    ck_assert_int_eq(tn_dtype_of(((tni_linear *)tn_get_submodule(m, "fc1"))->weight), TN_U8);
}
END_TEST

/* What is not packed then is as before. */
static tn_status made_and_packed(void *user)
{
    (void)user;
    tn_module *m = tn_sequential(linear(64, 32), linear(32, 3));
    if (!m) return tn_error_status();
    tn_status status = tn_quantize_int8(m, "*", 32);
    for (int i = 0; i < 2; i++) {
        tn_tensor *w = ((tni_linear *)tn_module_child(m, i))->weight;
        ck_assert_int_eq(tn_dtype_of(w), tn_size(w, 1) % 32 ? TN_U8 : TN_F32);
        ck_assert_int_eq(tn_requires_grad(w), tn_dtype_of(w) == TN_F32);
    }
    tn_module_drop(m);
    return status;
}

START_TEST(memory_that_runs_out)
{
    ck_assert_int_gt(scarce_sweep_warm(made_and_packed, NULL, NULL), 20);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("int8");
    TCase *t = test_case(suite, "int8"), *files = file_case(suite, "files");
    tcase_add_loop_test(t, errors_are_at_most_half_a_step, 0, 3);
    tcase_add_loop_test(t, products_and_gradients_are_those_of_floats, 0, 4 * COUNT(sizes));
    tcase_add_loop_test(t, adapters_learn_on_bytes, 0, 4);
    tcase_add_loop_test(t, refusals_change_nothing, 0, 2);
    add_tests(t, a_second_name_is_one_too, bytes_follow_the_rule, rows_depend_on_nothing_else,
              gradients_are_the_differences, others_dtypes_and_shapes, what_is_not_finite_stays_so,
              no_optimizer_changes_them);
    add_tests(files, files_hold_every_bit);
    tcase_add_loop_test(files, folders_of_models, 0, 2);
    add_tests(scarce_case(suite, "memory"), memory_that_runs_out);
    return suite;
}
