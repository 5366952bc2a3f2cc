/*
 * test_quantize.c - weights of bytes in a model: the rule of the bytes against loops of this file's
 * own, files, gradients through a frozen layer, clones, refusals that leave the model as it was.
 *
 * Seen to fail: halves rounded away from zero, a scale of max / 128, the last group's maximum of
 * the one before, layers left replaced after a failed load, a shared layer made twice, a tied
 * weight chosen by default, a bias that is trained (all src/ext/lm/quantize.c).
 */
#include <tenon/quantize.h>

#include "files.h"
#include "scarce.h"

static const tn_quantize_options by_32 = { .group = 32 };

static tn_module *linear(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

/* 40 -> 24 -> ReLU -> 24 -> 3 */
static tn_module *net_new(void)
{
    const tn_linear_options no_bias = { .no_bias = true };
    tn_manual_seed(3);
    return tn_sequential(linear(40, 24), tn_relu_new(), tn_linear_new(24, 24, no_bias),
                         linear(24, 3));
}

static const char *type_of(tn_module *m, const char *path)
{
    tn_module *child = tn_get_submodule(m, path);
    assert_made(child);
    return child->type->name;
}

/* ---- the bytes ------------------------------------------------------------------------------- */

static const float chosen[2][40] = {
    /* a group of 32: max 127, scale 1: halves to even; then one of 8: scale 2 */
    { 127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.49f, -126.6f, [32] = -254, 1, 3, 5, -1, 200 },
    /* zeros, and numbers too small for a scale */
    { [32] = 1e-38f, -1e-40f },
};

START_TEST(bytes_follow_the_rule)
{
    static const int expected[2][40] = {
        { 127, 0, 2, 2, 0, -2, -2, 0, -127, [32] = -127, 0, 2, 2, 0, 100 }, { 0 }
    };
    tn_module *m = owned(tn_sequential(linear(40, 2)));
    tn_tensor *w = tn_get_parameter(m, "0.weight");
    TN_NO_GRAD assert_ok(tn_copy_(w, tn_from_floats(chosen[0], TN_SHAPE(2, 40))));
    assert_ok(tn_quantize_int8(m, NULL, by_32));
    const uint8_t *q = tn_data(tn_get_buffer(m, "0.qweight"));
    for (int i = 0; i < 80; i++) ck_assert_int_eq(q[i], (uint8_t)(expected[i / 40][i % 40] & 255));
    assert_values(tn_get_buffer(m, "0.scales"), 0, 1, 2, 0, 0);
    ck_assert_str_eq(type_of(m, "0"), "Int8Linear");
}
END_TEST

START_TEST(errors_are_at_most_half_a_step)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_BF16, TN_F64 };
    tn_module *m = owned(tn_sequential(linear(200, 31)));
    assert_ok(tn_module_to_dtype(m, dtypes[_i]));
    tn_tensor *w = tn_clone(tn_to_dtype(tn_get_parameter(m, "0.weight"), TN_F64));
    tn_tensor *bias = tn_clone(tn_to_dtype(tn_get_parameter(m, "0.bias"), TN_F64));
    assert_ok(tn_quantize_int8(m, "0", (tn_quantize_options){ .group = 128 }));
    tn_tensor *scales = tn_clone(tn_get_buffer(m, "0.scales"));
    ck_assert_int_eq(tn_size(scales, 1), 2);
    const double *before = tn_data(w);
    const uint8_t *q = tn_data(tn_clone(tn_get_buffer(m, "0.qweight")));
    const float *scale = tn_data(scales);
    for (int64_t i = 0; i < 200 * 31; i++) {
        double s = (double)scale[i / 200 * 2 + i % 200 / 128];
        ck_assert_double_le(fabs(before[i] - s * (int8_t)q[i]), s * (0.5 + 1e-4));
    }
    assert_ok(tn_dequantize(m, TN_F64));
    ck_assert_str_eq(type_of(m, "0"), "Linear");
    const double *after = tn_data(tn_get_parameter(m, "0.weight"));
    for (int64_t i = 0; i < 200 * 31; i++)
        ck_assert_double_eq(after[i], (double)scale[i / 200 * 2 + i % 200 / 128] * (int8_t)q[i]);
    assert_close(tn_get_parameter(m, "0.bias"), bias, 0, 0);
}
END_TEST

/* ---- in a model ------------------------------------------------------------------------------ */

START_TEST(a_model_computes_as_its_dequantized_self)
{
    tn_module *m = owned(net_new());
    tn_tensor *x = random_as(TN_SHAPE(5, 40), -1, 1, 1, TN_F32), *plain = tn_forward(m, x);
    assert_ok(tn_quantize_int8(m, NULL, by_32));
    tn_module *copy = owned(tn_module_clone(m));
    tn_tensor *y = tn_forward(m, x);
    assert_close(y, plain, 0.02, 0.02);
    assert_close(tn_forward(copy, x), y, 0, 0);
    tn_manual_seed(9);
    uint32_t random = tn_generator_u32(tn_default_generator());
    tn_manual_seed(9);
    assert_ok(tn_dequantize(copy, TN_F32));
    ck_assert_uint_eq(tn_generator_u32(tn_default_generator()), random); /* no number was drawn */
    assert_close(tn_forward(copy, x), y, 1e-5, 1e-6);
    ck_assert_str_eq(type_of(copy, "2"), "Linear");
    ck_assert(tn_is_none(tn_get_parameter(copy, "2.bias")));
    assert_ok(tn_dequantize(copy, TN_F32)); /* nothing is left to do */
    char text[] = "24, 24, no bias", seen[64] = "";
    tn_module *two = tn_get_submodule(m, "2");
    two->type->describe(two, seen, sizeof seen);
    ck_assert_str_eq(seen, text);
}
END_TEST

START_TEST(no_optimizer_sees_them)
{
    tn_module *m = owned(net_new());
    assert_ok(tn_quantize_int8(m, "0,2", by_32));
    uint64_t before = hash_of_module(tn_get_submodule(m, "0"));
    tn_list *trained = tn_parameters(m);
    for (int i = 0; i < trained->n; i++)
        ck_assert(strncmp(trained->entry[i].name, "3.", 2) == 0 ||
                  !tn_requires_grad(trained->entry[i].tensor));
    tn_optim *opt = owned(tn_sgd(trained, (tn_sgd_options){ .lr = 1, .weight_decay = 0.1 }));
    assert_ok(tn_backward(tn_sum(tn_forward(m, tn_ones(TN_SHAPE(2, 40))), NULL, 0, false)));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(hash_of_module(tn_get_submodule(m, "0")), before);
    tn_list *buffers = tn_buffers(m);
    ck_assert_int_eq(buffers->n, 4);
    for (int i = 0; i < 4; i++) ck_assert_uint_eq(buffers->entry[i].role, TN_CONSTANT);
}
END_TEST

static tn_tensor *squares(void *x, tn_module *m, int part, int parts)
{
    int64_t n = tn_size(x, 0) / parts;
    tn_tensor *y = tn_forward(m, tn_narrow(x, 0, part * n, n));
    return tn_div_scalar(tn_mean(tn_square(y), NULL, 0, false), parts);
}

/* As under adapters: what is trained lies before a frozen layer of bytes. */
START_TEST(gradients_pass_through_frozen_bytes)
{
    tn_module *m = owned(net_new()), *twin;
    tn_tensor *x = random_as(TN_SHAPE(72, 40), -1, 1, 1, TN_F32);
    assert_ok(tn_quantize_int8(m, "2,3", by_32));
    twin = owned(tn_module_clone(m));
    assert_ok(tn_dequantize(twin, TN_F32));
    assert_ok(tn_backward(squares(x, m, 0, 1)));
    assert_ok(tn_backward(squares(x, twin, 0, 1)));
    assert_close(tn_grad(tn_get_parameter(m, "0.weight")),
                 tn_grad(tn_get_parameter(twin, "0.weight")), 1e-4, 1e-7);
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(m, "3.bias"))));
    tn_optim *opt = owned(tn_adam(tn_parameters(m), (tn_adam_options){ 0 }));
    assert_ok(tn_check_state(NULL, m, opt, squares, x));
}
END_TEST

/* ---- which layers ---------------------------------------------------------------------------- */

typedef struct tied {
    tn_module base;
    tn_module *wte, *body, *again, *head, *lm_head;
} tied;

static const tn_module_type tied_type = { .name = "Tied", .size = sizeof(tied) };

static tn_module *tied_new(void)
{
    tied *m = tn_module_new(&tied_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "wte", &m->wte,
                       tn_embedding_new(9, 8, (tn_embedding_options){ 0 }));
    tn_register_module(&m->base, "body", &m->body, linear(8, 8));
    tn_register_module(&m->base, "again", &m->again, tn_module_keep(m->body));
    tn_register_module(&m->base, "head", &m->head,
                       tn_linear_new(8, 9, (tn_linear_options){ .no_bias = true }));
    tn_register_module(&m->base, "lm_head", &m->lm_head, linear(8, 9));
    tn_register_parameter(m->head, "weight", NULL, tn_get_parameter(m->wte, "weight"));
    return tn_module_done(&m->base);
}

START_TEST(heads_and_ties_stay_unless_named)
{
    tied *m = (tied *)owned(tied_new());
    assert_ok(tn_quantize_int8(&m->base, NULL, by_32));
    ck_assert_str_eq(m->body->type->name, "Int8Linear");
    ck_assert_ptr_eq(m->body, m->again); /* in the fields, too */
    ck_assert_str_eq(m->head->type->name, "Linear");
    ck_assert_str_eq(m->lm_head->type->name, "Linear");
    tn_tensor *table = tn_get_parameter(m->wte, "weight");
    assert_fails(tn_quantize_int8(&m->base, NULL, by_32), TN_E_NAME, "no Linear below Tied");
    assert_ok(tn_quantize_int8(&m->base, "*head", by_32));
    ck_assert_str_eq(m->head->type->name, "Int8Linear");
    ck_assert_str_eq(m->lm_head->type->name, "Int8Linear");
    ck_assert_ptr_eq(tn_get_parameter(m->wte, "weight"), table);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

START_TEST(files_hold_every_bit)
{
    tn_module *m = owned(net_new()), *loaded = owned(net_new());
    assert_ok(tn_eval(m));
    assert_ok(tn_eval(loaded));
    assert_ok(tn_init_constant(tn_get_parameter(loaded, "3.weight"), 1));
    assert_ok(tn_quantize_int8(m, "0,2", by_32));
    assert_ok(tn_save(m, in_folder("q.safetensors")));
    assert_ok(tn_load_int8(loaded, in_folder("q.safetensors")));
    ck_assert_uint_eq(hash_of_module(loaded), hash_of_module(m));
    ck_assert_str_eq(type_of(loaded, "0"), "Int8Linear");
    ck_assert(!tn_training(tn_get_submodule(loaded, "0")));
    tn_tensor *x = random_as(TN_SHAPE(2, 40), -1, 1, 1, TN_F32);
    assert_close(tn_forward(loaded, x), tn_forward(m, x), 0, 0);
    assert_ok(tn_load_int8(loaded, in_folder("q.safetensors"))); /* again, into bytes */
    assert_ok(tn_load(loaded, in_folder("q.safetensors")));
}
END_TEST

START_TEST(a_file_that_does_not_fit_changes_nothing)
{
    tn_module *m = owned(net_new());
    uint64_t before = hash_of_module(m);
    assert_ok(tn_save(m, in_folder("plain.safetensors")));
    tn_module *small = owned(tn_sequential(linear(20, 24), tn_relu_new(), linear(24, 24)));
    assert_ok(tn_quantize_int8(small, "0", by_32));
    assert_ok(tn_save(small, in_folder("small.safetensors")));
    assert_fails(tn_load_int8(m, in_folder("small.safetensors")), TN_E_SHAPE, "0.qweight [24,20]");
    tn_module *less = owned(tn_sequential(linear(40, 24)));
    assert_ok(tn_quantize_int8(less, "0", by_32));
    assert_ok(tn_save(less, in_folder("less.safetensors")));
    assert_fails(tn_load_int8(m, in_folder("less.safetensors")), TN_E_NAME, "2.weight");
    assert_fails(tn_load_int8(m, in_folder("none")), TN_E_IO, "none");
    ck_assert_str_eq(type_of(m, "0"), "Linear");
    ck_assert_uint_eq(hash_of_module(m), before);
    assert_ok(tn_load_int8(m, in_folder("plain.safetensors"))); /* no bytes at all */
    ck_assert_uint_eq(hash_of_module(m), before);
}
END_TEST

/* qweight of floats, and scales for no group. */
START_TEST(a_file_of_other_kinds_is_refused)
{
    tn_module *m = owned(tn_sequential(linear(2, 1)));
    uint64_t before = hash_of_module(m);
    const char *floats =
        write_header("f.safetensors",
                     "{\"0.qweight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                     "\"0.scales\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[8,12]}}",
                     12);
    assert_fails(tn_load_int8(m, floats), TN_E_DTYPE, "q is f32");
    const char *three =
        write_header("s.safetensors",
                     "{\"0.qweight\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[0,2]},"
                     "\"0.scales\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[2,14]}}",
                     14);
    assert_fails(tn_load_int8(m, three), TN_E_SHAPE, "scale [1,3]");
    const char *alone = write_header(
        "a.safetensors",
        "{\"0.qweight\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[0,2]}}", 2);
    assert_fails(tn_load_int8(m, alone), TN_E_SHAPE, "without scales");
    ck_assert_uint_eq(hash_of_module(m), before);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(refusals)
{
    tn_module *m = owned(net_new());
    uint64_t before = hash_of_module(m);
    assert_fails(tn_quantize_int8(m, NULL, (tn_quantize_options){ .group = 48 }), TN_E_INVALID,
                 "group 48: want 32, 64 or 128");
    assert_fails(tn_quantize_int8(m, "fc*", by_32), TN_E_NAME, "fits \"fc*\"");
    assert_fails(tn_quantize_int8(tn_get_submodule(m, "0"), NULL, by_32), TN_E_NAME, "Linear");
    assert_fails(tn_dequantize(m, TN_I64), TN_E_DTYPE, "i64");
    assert_fails(tn_quantize_int8(NULL, NULL, by_32), TN_E_INVALID, "m is NULL");
    assert_fails(tn_dequantize(NULL, TN_F32), TN_E_INVALID, "m is NULL");
    assert_fails(tn_load_int8(NULL, "x"), TN_E_INVALID, "m is NULL");
    ck_assert_uint_eq(hash_of_module(m), before);
    float *w = NULL;
    TN_NO_GRAD w = tn_data_mut(tn_get_parameter(m, "3.weight"));
    w[24 + 5] = _i ? NAN : INFINITY;
    before = hash_of_module(m);
    assert_fails(tn_quantize_int8(m, NULL, by_32), TN_E_INVALID,
                 _i ? "3.weight has nan at [1,5]" : "3.weight has inf at [1,5]");
    ck_assert_uint_eq(hash_of_module(m), before);
    ck_assert_str_eq(type_of(m, "0"), "Linear");
}
END_TEST

/* All Linear, or both of bytes: never one of each. At the end there is no byte left, so that the
 * sweep finds as many tensors as before. */
static tn_status there_and_back(void *user)
{
    tn_module *m = user;
    tn_status status = tn_quantize_int8(m, "0,2", by_32);
    bool packed = status == TN_OK;
    if (packed) status = tn_dequantize(m, TN_F32);
    if (status == TN_OK) return TN_OK;
    ck_assert_str_eq(type_of(m, "0"), packed ? "Int8Linear" : "Linear");
    ck_assert_str_eq(type_of(m, "2"), packed ? "Int8Linear" : "Linear");
    scarce.failing = 0;
    assert_ok(tn_dequantize(m, TN_F32));
    return status;
}

START_TEST(memory_that_runs_out_leaves_the_model)
{
    tn_module *m = net_new();
    assert_made(m);
    ck_assert_int_gt(scarce_sweep_warm(there_and_back, NULL, m), 10);
    tn_module_drop(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("quantize");
    TCase *t = test_case(suite, "quantize"), *files = file_case(suite, "files");
    tcase_add_loop_test(t, errors_are_at_most_half_a_step, 0, 3);
    tcase_add_loop_test(t, refusals, 0, 2);
    add_tests(t, bytes_follow_the_rule, a_model_computes_as_its_dequantized_self,
              no_optimizer_sees_them, gradients_pass_through_frozen_bytes,
              heads_and_ties_stay_unless_named);
    add_tests(files, files_hold_every_bit, a_file_that_does_not_fit_changes_nothing,
              a_file_of_other_kinds_is_refused);
    add_tests(scarce_case(suite, "memory"), memory_that_runs_out_leaves_the_model);
    return suite;
}
