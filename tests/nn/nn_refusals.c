/*
 * nn_refusals.c - modules, lists and initial values under mistaken calls: NULL, missing arrays,
 * numbers out of any range. Each is refused with a message, and nothing is half changed.
 */
#include <stdio.h>

#include "boxes.h"
#include "files.h"
#include "scarce.h"

/* ---- NULL ------------------------------------------------------------------------------------ */

/* The call failed, and its message says whose argument was NULL. */
#define refuses(failed) check_refusal((tn_error_clear(), failed), #failed)

static void check_refusal(bool failed, const char *call)
{
    call += *call == '!';
    size_t n = strcspn(call, "(");
    ck_assert_msg(failed, "%s took NULL", call);
    ck_assert_msg(tn_error_status() != TN_OK, "%s: without a message", call);
    ck_assert_msg(strncmp(tn_error(), call, n) == 0 && tn_error()[n] == ':' &&
                      strstr(tn_error(), "NULL"),
                  "%s: the message is \"%s\"", call, tn_error());
}

static tn_status visit_none(tn_module *m, const char *path, void *user)
{
    (void)path, (void)m, (void)user;
    return TN_OK;
}
static tn_status visit_plain(tn_module *m, void *user)
{
    return visit_none(m, "", user);
}
static tn_status on_forward(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                            tn_tensor **out, void *user)
{
    (void)n_in, (void)in, (void)n_out, (void)out;
    return visit_none(m, "", user);
}

static int no_batches(tn_module *m, void *user)
{
    (void)m, (void)user;
    return 0;
}

/* RB-02, RP-02: a name that is NULL, too. */
START_TEST(modules_refuse_NULL)
{
    box *b = box_new();
    tn_module *m = owned(&b->base);
    tn_tensor *t = tn_ones(TN_SHAPE(1));
    refuses(!tn_module_new(NULL));
    /* what a failed constructor leaves: its message stays */
    ck_assert_ptr_null(tn_module_done(NULL));
    ck_assert_ptr_null(tn_module_keep(NULL));
    tn_module_drop(NULL);
    refuses(tn_register_parameter(NULL, "p", NULL, t));
    refuses(tn_register_parameter(m, NULL, NULL, t));
    refuses(tn_register_parameter(m, "p", NULL, NULL));
    refuses(tn_register_frozen(NULL, "p", NULL, t));
    refuses(tn_register_frozen(m, NULL, NULL, t));
    refuses(tn_register_frozen(m, "p", NULL, NULL));
    refuses(tn_register_buffer(NULL, "p", NULL, t, TN_PERSISTENT));
    refuses(tn_register_buffer(m, NULL, NULL, t, TN_PERSISTENT));
    refuses(tn_register_buffer(m, "p", NULL, NULL, TN_PERSISTENT));
    refuses(tn_register_module(NULL, "p", NULL, tn_relu_new()));
    refuses(tn_register_module(m, NULL, NULL, tn_relu_new()));
    refuses(tn_register_module(m, "p", NULL, NULL));
    assert_ok(buffer(m, "a", &b->a, t));
    refuses(tn_assign(NULL, t));
    refuses(tn_assign(&b->a, NULL));
    refuses(tn_module_set(NULL, "p", t));
    refuses(tn_module_set(m, NULL, t));
    refuses(tn_module_delete(NULL, "p"));
    refuses(tn_module_delete(m, NULL));
    refuses(!tn_get_parameter(NULL, "p"));
    refuses(!tn_get_parameter(m, NULL));
    refuses(!tn_get_buffer(NULL, "p"));
    refuses(!tn_get_buffer(m, NULL));
    refuses(!tn_get_submodule(NULL, "p"));
    refuses(!tn_get_submodule(m, NULL));
    refuses(!tn_forward(NULL, t));
    refuses(!tn_forward(m, NULL));
    tn_tensor *y;
    refuses(tn_call(NULL, 1, &t, 1, &y));
    refuses(tn_call(m, 1, (tn_tensor *[]){ NULL }, 1, &y));
    refuses(tn_train(NULL, true));
    refuses(tn_eval(NULL));
    ck_assert(!tn_training(NULL) && !tn_module_frozen(NULL));
    refuses(tn_module_set_requires_grad(NULL, true));
    refuses(tn_module_freeze(NULL));
    refuses(tn_module_thaw(NULL));
    refuses(tn_module_zero_grad(NULL));
    refuses(tn_register_forward_pre_hook(NULL, NULL, NULL) < 0);
    refuses(tn_register_forward_pre_hook(m, NULL, NULL) < 0);
    refuses(tn_register_forward_hook(NULL, on_forward, NULL) < 0);
    refuses(tn_register_forward_hook(m, NULL, NULL) < 0);
    refuses(tn_register_full_backward_hook(m, NULL, NULL) < 0);
    refuses(tn_register_state_dict_hook(m, NULL, NULL) < 0);
    refuses(tn_register_load_pre_hook(m, NULL, NULL) < 0);
    refuses(tn_register_load_post_hook(m, NULL, NULL) < 0);
    tn_remove_module_hook(NULL, 1);
    refuses(!tn_parameters(NULL));
    refuses(!tn_named_parameters(NULL, "x."));
    assert_made(tn_named_parameters(m, NULL)); /* "" */
    refuses(!tn_buffers(NULL));
    refuses(!tn_parameters_with(NULL, (tn_walk_options){ 0 }));
    refuses(!tn_buffers_with(NULL, (tn_walk_options){ 0 }));
    refuses(!tn_state_dict(NULL, ""));
    assert_made(tn_state_dict(m, NULL));
    refuses(tn_named_modules(NULL, visit_none, NULL));
    refuses(tn_named_modules(m, NULL, NULL));
    refuses(tn_module_apply(NULL, visit_plain, NULL));
    refuses(tn_module_apply(m, NULL, NULL));
    refuses(tn_module_children(NULL) < 0);
    refuses(!tn_module_child(NULL, 0));
    refuses(!tn_module_child_name(NULL, 0));
    refuses(tn_count_parameters(NULL, false) < 0);
    refuses(tn_module_to(NULL, tn_cpu()));
    refuses(tn_module_to_dtype(NULL, TN_F64));
    refuses(tn_load_state_dict(NULL, tn_list_new(), (tn_load_options){ 0 }, NULL));
    refuses(tn_load_state_dict(m, NULL, (tn_load_options){ 0 }, NULL));
    refuses(tn_module_summary(NULL, m));
    refuses(tn_module_summary(stderr, NULL));
    refuses(tn_batch_norm_reset_running_stats(NULL));
    refuses(tn_batch_norm_skipped(NULL) < 0);
    refuses(!tn_freeze_batch_norm(NULL));
    refuses(!tn_thaw_batch_norm(NULL));
    refuses(!tn_multihead_attention_forward(NULL, t, t, t, (tn_attention_masks){ 0 }, NULL));
    refuses(!tn_encoder_layer_forward(NULL, t, (tn_attention_masks){ 0 }));
    refuses(!tn_encoder_forward(NULL, t, (tn_attention_masks){ 0 }));
    refuses(!tn_encoder_new(NULL, 1, TN_NO_MODULE));
    refuses(!tn_encoder_new(tn_relu_new(), 1, NULL));
    refuses(!tn_decoder_layer_forward(NULL, t, t, (tn_attention_masks){ 0 },
                                      (tn_attention_masks){ 0 }));
    refuses(!tn_decoder_forward(NULL, t, t, (tn_attention_masks){ 0 }, (tn_attention_masks){ 0 }));
    refuses(!tn_decoder_new(NULL, 1, TN_NO_MODULE));
    refuses(!tn_decoder_new(tn_relu_new(), 1, NULL));
    refuses(!tn_module_clone(NULL));
    refuses(tn_module_append(NULL, tn_relu_new()));
    refuses(tn_module_append_tensor(NULL, t));
    refuses(tn_module_tensors(NULL) < 0);
    refuses(!tn_module_tensor(NULL, 0));
    refuses(!tn_ema_new(NULL, (tn_ema_options){ 0 }));
    refuses(tn_ema_update(NULL, m));
    refuses(tn_ema_use(NULL, m));
    refuses(tn_ema_restore(NULL));
    refuses(tn_measure_statistics(NULL, no_batches, NULL));
    refuses(tn_measure_statistics(m, NULL, NULL));
    refuses(!tn_ema_module(NULL));
    tn_module *list = owned(tn_module_list_new()),
              *tensors = owned(tn_buffer_list_new(TN_PERSISTENT));
    tn_module *average = owned(tn_ema_new(m, (tn_ema_options){ 0 }));
    tn_module *mha = owned(attention(1, 1));
    refuses(!tn_multihead_attention_forward(mha, NULL, t, t, (tn_attention_masks){ 0 }, NULL));
    refuses(tn_ema_update(average, NULL));
    refuses(tn_ema_use(average, NULL));
    refuses(tn_module_append(list, NULL));
    refuses(tn_module_append_tensor(tensors, NULL));
}
END_TEST

START_TEST(lists_and_initial_values_refuse_NULL)
{
    tn_list *list = tn_list_new();
    tn_tensor *t = tn_ones(TN_SHAPE(2, 2));
    assert_ok(tn_list_add(list, "t", t));
    refuses(tn_list_add(NULL, "x", t));
    refuses(tn_list_add(list, NULL, t));
    refuses(tn_list_add(list, "x", NULL));
    refuses(!tn_list_concat(NULL, list));
    refuses(!tn_list_concat(list, NULL));
    refuses(!tn_list_get(NULL, "x"));
    refuses(!tn_list_get(list, NULL));
    ck_assert(!tn_list_has(NULL, "x") && !tn_list_has(list, NULL));
    refuses(tn_list_set(NULL, "x", t));
    refuses(tn_list_set(list, NULL, t));
    refuses(tn_list_set(list, "x", NULL));
    refuses(tn_list_remove(NULL, "x"));
    refuses(tn_list_remove(list, NULL));
    refuses(tn_list_rename(NULL, "t", "x"));
    refuses(tn_list_rename(list, NULL, "x"));
    refuses(tn_list_rename(list, "t", NULL));
    ck_assert_int_eq(tn_list_version(NULL, "x"), 0);
    ck_assert_int_eq(tn_list_version(list, NULL), 0);
    refuses(tn_list_set_version(NULL, "x", 1));
    refuses(tn_list_set_version(list, NULL, 1));
    ck_assert_int_eq(list->n, 1);
    int64_t in, out;
    refuses(tn_init_fans(NULL, &in, &out));
    refuses(tn_init_fans(t, NULL, &out));
    refuses(tn_init_fans(t, &in, NULL));
    refuses(tn_init_uniform(NULL, 0, 1));
    refuses(tn_init_normal(NULL, 0, 1));
    refuses(tn_init_constant(NULL, 0));
    refuses(tn_init_truncated_normal(NULL, 0, 1, -2, 2));
    refuses(tn_init_xavier_uniform(NULL, 1));
    refuses(tn_init_xavier_normal(NULL, 1));
    refuses(tn_init_kaiming_uniform(NULL, 0, false, TN_NL_RELU));
    refuses(tn_init_kaiming_normal(NULL, 0, false, TN_NL_RELU));
    refuses(tn_init_orthogonal(NULL, 1));
    /* a failed value passes its failure on */
    assert_made(tn_ones(TN_SHAPE(1)));
    tn_tensor *failed = tn_reshape(t, TN_SHAPE(3));
    ck_assert_int_eq(tn_list_add(list, "x", failed), TN_E_SHAPE);
    assert_error(TN_E_SHAPE, "tn_reshape");
}
END_TEST

START_TEST(arrays_that_are_not_there)
{
    tn_tensor *x = tn_ones(TN_SHAPE(1, 1)), *y;
    tn_module *m = owned(linear(1, 1));
    assert_null(tn_sequential_from(NULL, 2), TN_E_INVALID,
                "tn_sequential_from: 2 children in NULL");
    assert_null(tn_sequential_from(&m, -1), TN_E_INVALID, "-1 children");
    assert_null(tn_sequential_from((tn_module *[]){ tn_module_keep(m), NULL }, 2), TN_E_INVALID,
                "NULL");
    tn_module *empty = owned(tn_sequential_from(NULL, 0));
    assert_made(tn_forward(empty, x));
    assert_fails(tn_call(m, 1, NULL, 1, &y), TN_E_INVALID, "1 inputs at NULL");
    assert_fails(tn_call(m, -1, &x, 1, &y), TN_E_INVALID, "-1 inputs");
    assert_fails(tn_call(m, 1, &x, 1, NULL), TN_E_INVALID, "1 outputs at NULL");
    assert_fails(tn_call(m, 1, &x, 0, &y), TN_E_INVALID, "0 outputs");
}
END_TEST

/* ---- numbers --------------------------------------------------------------------------------- */

/* clang-format off */
static const int64_t sizes[] = { INT64_MIN, -((int64_t)1 << 32), -2, -1, 0, 1, 2, 3, 8, 1025,
                                 (int64_t)1 << 31, ((int64_t)1 << 32) + 1, (int64_t)1 << 40,
                                 (int64_t)1 << 61, ((int64_t)1 << 62) + 3, INT64_MAX };
static const double reals[] = { -INFINITY, -1e308, -1, -1e-9, -0.0, 0, 1e-300, 0.5, 1, 1 + 1e-9, 2, 1e308,
                                INFINITY, NAN };
/* clang-format on */
enum { SIZES = sizeof sizes / sizeof *sizes, REALS = sizeof reals / sizeof *reals };

/* Made and dropped, or refused with a message that names a function: that one, or what it calls. */
#define judge(...) judge_made(__VA_ARGS__, #__VA_ARGS__)

static void judge_made(tn_module *m, const char *call)
{
    if (!m) {
        ck_assert_msg(tn_error_status() != TN_OK, "%s: NULL without an error", call);
        bool named = strncmp(tn_error(), "tn_", 3) == 0;
        ck_assert_msg(named || tn_error_status() == TN_E_NOMEM, "%s: the message is \"%s\"", call,
                      tn_error());
    }
    tn_error_clear();
    tn_module_drop(m);
    ck_assert_msg(tn_live_tensors() == 0, "%s: %" PRId64 " tensors are left", call,
                  tn_live_tensors());
}

static void layers_of_two(int64_t a, int64_t b)
{
    judge(linear(a, b));
    judge(embedding(a, b, 0));
    judge(embedding(3, 2, .use_padding_index = true, .padding_index = a));
    judge(encoding(a, b, 0));
    judge(attention(a, b));
    judge(
        tn_multihead_attention_new(2, 1, (tn_multihead_attention_options){ .kdim = a, .vdim = b }));
    judge(tn_rnn_new(a, b, (tn_recurrent_options){ 0 }));
    judge(tn_lstm_new(a, b, (tn_recurrent_options){ .bidirectional = true }));
    judge(tn_gru_cell_new(a, b, (tn_recurrent_options){ 0 }));
    judge(encoder_layer(a, b, .feedforward = 2));
    judge(encoder_layer(2, 1, .feedforward = a));
    judge(tn_decoder_layer_new(a, b, (tn_encoder_layer_options){ .feedforward = 2 }));
    judge(tn_lstm_new(2, 3, (tn_recurrent_options){ .proj_size = a }));
    judge(tn_adaptive_avg_pool2d_new(a, b));
    judge(layernorm(TN_SHAPE(a, b)));
    judge(norm2d(a));
    judge(norm1d(a));
    judge(tn_frozen_batch_norm2d_new(a, (tn_frozen_batch_norm_options){ 0 }));
    judge(tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { a, b } }));
    judge(tn_avg_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 }, .stride = { a, b } }));
    judge(tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 }, .padding = { a, b } }));
    judge(tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 }, .dilation = { a, b } }));
    judge(conv2d(a, b, 3, 0));
    judge(conv2d(2, 2, a, .stride = b));
    judge(conv2d(2, 2, 1, .padding = a, .dilation = b));
    judge(conv2d(a, a, 1, .groups = b));
}

START_TEST(layers_of_any_size)
{
    scarce_install();
    scarce.most = 1 << 20;
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < SIZES; k++) layers_of_two(sizes[i], sizes[k]);
    for (int rank = -3; rank < 12; rank++) {
        tn_shape shape = { .rank = rank };
        for (int i = 0; i < TN_MAX_RANK; i++) shape.size[i] = 1;
        judge(layernorm(shape));
    }
}
END_TEST

/* The largest layers there are, on small inputs: products of sizes, not only sizes, are refused. */
START_TEST(layers_of_any_size_are_called)
{
    scarce_install();
    scarce.most = 1 << 20;
    tn_tensor *image = tn_ones(TN_SHAPE(1, 2, 4, 4));
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < SIZES; k++) {
            int64_t a = sizes[i], b = sizes[k];
            tn_module *m[] = {
                tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { a, b } }),
                tn_avg_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 }, .stride = { a, b } }),
                tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 }, .padding = { a, b } }),
                tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 }, .dilation = { a, b } }),
                conv2d(2, 2, 2, .stride = a, .padding = b),
                conv2d(2, 2, 2, .dilation = a, .padding = b),
                tn_adaptive_avg_pool2d_new(a, b),
                tn_softmax_new((int)a),
                tn_flatten_new((int)a, (int)b),
            };
            tn_error_clear();
            for (size_t j = 0; j < sizeof m / sizeof *m; j++) {
                tn_scope s = tn_scope_begin();
                if (m[j] && !tn_forward(m[j], image))
                    ck_assert_msg(tn_error_status() != TN_OK, "NULL without an error");
                tn_error_clear();
                tn_scope_end(s);
                tn_module_drop(m[j]);
            }
        }
}
END_TEST

/* 0 means the default where the comment in nn.h says so; else: finite, in range. */
START_TEST(layers_of_any_real_number)
{
    for (int i = 0; i < REALS; i++) {
        double r = reals[i];
        bool fraction = r >= 0 && r <= 1, positive = isfinite(r) && r >= 0;
        const tn_recurrent_options dropping = { .layers = 2, .dropout = r };
        tn_module *made[] = {
            tn_dropout_new(r), /* probabilities and shares */
            encoding(2, 2, .dropout = r),
            tn_multihead_attention_new(2, 1, (tn_multihead_attention_options){ .dropout = r }),
            tn_gru_new(2, 1, dropping),
            encoder_layer(2, 1, .feedforward = 2, .dropout = r),
            tn_batch_norm2d_new(2, (tn_batch_norm_options){ .momentum = r }),
            encoder_layer(2, 1, .feedforward = 2, .eps = r), /* what is added to variances */
            tn_batch_norm2d_new(2, (tn_batch_norm_options){ .eps = r }),
            tn_frozen_batch_norm2d_new(2, (tn_frozen_batch_norm_options){ .eps = r }),
            tn_layer_norm_new(TN_SHAPE(2), (tn_layer_norm_options){ .eps = r }),
        };
        for (int j = 0; j < COUNT(made); j++) {
            ck_assert_msg((made[j] != NULL) == (j < 6 ? fraction : positive), "row %d: %g was %s",
                          j, r, made[j] ? "taken" : "refused");
            tn_module_drop(made[j]);
        }
        tn_error_clear();
    }
}
END_TEST

void nn_refusals_cases(Suite *suite)
{
    add_tests(test_case(suite, "refusals"), modules_refuse_NULL,
              lists_and_initial_values_refuse_NULL, arrays_that_are_not_there, layers_of_any_size,
              layers_of_any_size_are_called, layers_of_any_real_number);
}
