/*
 * ops_null.c - NULL as an argument: the message names the function and the argument, where a tensor
 * may be absent it says how, and what failed before is not taken for absent.
 *
 * Seen to fail: a test's comment in the past tense says how.
 */
#include "autograd/gradients.h"
#include "ops/ops.h"

static int times(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part))) n++, text++;
    return n;
}

/* ---- what NULL means ------------------------------------------------------------------------- */

/* A message that begins with the function that is called, and names the argument. */
static void check_named(bool failed, const char *call, const char *argument)
{
    char says[96];
    const char *function = strstr(call, "tn_");
    snprintf(says, sizeof says, "%.*s: %s is NULL", (int)strcspn(function, "("), function,
             argument);
    ck_assert_msg(failed && tn_error_status() == TN_E_INVALID &&
                      strncmp(tn_error(), says, strlen(says)) == 0,
                  "%s said \"%s\"", call, tn_error());
}

/* expr, with a NULL argument, fails; with an error pending, with that one, as it was. */
#define assert_named(expr, argument)                                                               \
    do {                                                                                           \
        tn_error_clear();                                                                          \
        check_named(!(expr), #expr, argument);                                                     \
        tn_fail(TN_E_SHAPE, "first");                                                              \
        ck_assert_msg(!(expr), "%s did not fail", #expr);                                          \
        ck_assert_ptr_eq(strstr(tn_error(), "first"), tn_error());                                 \
        tn_error_clear();                                                                          \
    } while (0)

/* All returned NULL without a message; the last two crashed. */
START_TEST(null_arguments_are_named)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *i = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    assert_named(tn_cross_entropy(NULL, i), "logits");
    assert_named(tn_cross_entropy(x, NULL), "target");
    assert_named(tn_nll_loss(x, NULL, (tn_cross_entropy_options){ 0 }), "target");
    assert_named(tn_mse_loss(x, NULL, TN_MEAN), "target");
    assert_named(tn_huber_loss(NULL, x, 1, TN_MEAN), "x");
    assert_named(tn_bce_with_logits(x, NULL, TN_NONE, TN_MEAN), "target");
    assert_named(tn_bce_with_logits(x, x, NULL, TN_MEAN), "pos_weight");
    assert_named(tn_softmax(NULL, 0), "x");
    assert_named(tn_scope_adopt(NULL), "t");
    assert_named(tn_dropout(NULL, 0.5, true), "x");
    assert_named(tn_gather(x, 0, NULL), "index");
    assert_named(tn_gather(NULL, 0, i), "x");
    assert_named(tn_scatter_add(x, 0, i, NULL), "source");
    assert_named(tn_index_select(NULL, 0, i), "x");
    assert_named(tn_embedding(NULL, i, -1), "weight");
    assert_named(tn_embedding(x, NULL, -1), "index");
    assert_named(tn_one_hot(NULL, 3), "index");
    assert_named(tn_chunk(x, 2, 0, NULL, 2) >= 0, "out");
    assert_named(!tn_backward(NULL), "loss");
    assert_named(!tn_backward_from(NULL, TN_NONE, 0), "output");
    assert_named(tn_sgd(NULL, (tn_sgd_options){ 0 }), "parameters");
    assert_named(tn_adam(NULL, (tn_adam_options){ 0 }), "parameters");
    assert_named(tn_adamw(NULL, (tn_adamw_options){ 0 }), "parameters");
    assert_named(tn_rmsprop(NULL, (tn_rmsprop_options){ 0 }), "parameters");
    assert_named(tn_adagrad(NULL, (tn_adagrad_options){ 0 }), "parameters");
    assert_named(tn_clip_grad_norm_tensor(NULL, 1, 2), "parameters");
    assert_named(tn_optim_parameters(NULL), "opt");
    assert_named(tn_optim_state_dict(NULL), "opt");
    assert_named(tn_optim_groups(NULL) >= 0, "opt");
    assert_named(tn_optim_steps(NULL) >= 0, "opt");
    assert_named(!isnan(tn_optim_lr(NULL, 0)), "opt");
    assert_named(tn_step_lr(NULL, 1, 0.5), "opt");
    assert_named(tn_multistep_lr(NULL, NULL, 0, 0.5), "opt");
    assert_named(tn_exponential_lr(NULL, 0.5), "opt");
    assert_named(tn_cosine_lr(NULL, 9, 0), "opt");
    assert_named(tn_cosine_restarts_lr(NULL, 9, 1, 0), "opt");
    assert_named(tn_linear_lr(NULL, 0.5, 1, 9), "opt");
    assert_named(tn_constant_lr(NULL, 0.5, 9), "opt");
    assert_named(tn_polynomial_lr(NULL, 9, 1), "opt");
    assert_named(tn_lambda_lr(NULL, NULL, NULL), "opt");
    assert_named(tn_warmup_cosine_lr(NULL, 1, 9, 0), "opt");
    assert_named(tn_one_cycle_lr(NULL, (tn_one_cycle_options){ 0 }), "opt");
    assert_named(tn_plateau_lr(NULL, (tn_plateau_options){ 0 }), "opt");
    assert_named(tn_scheduler_state_dict(NULL), "s");
    assert_named(tn_scheduler_last_step(NULL) >= 0, "s");
    assert_named(tn_scaler_state_dict(NULL), "s");
    assert_named(!isnan(tn_scaler_value(NULL)), "s");
    assert_named(tn_no_decay(NULL, NULL), "entry");
    assert_named(tn_decay(NULL, NULL), "entry");
}
END_TEST

/* Where a tensor may be absent, the message of a NULL says how. */
START_TEST(null_for_an_optional_tensor_names_none)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *image = tn_ones(TN_SHAPE(1, 2, 3, 3));
    tn_tensor *kernel = tn_ones(TN_SHAPE(2, 2, 1, 1)), *c = tn_ones(TN_SHAPE(2)), *dx;
    static const char says[] = "or TN_NONE for none";
    assert_null(tn_linear(x, x, NULL), TN_E_INVALID, says);
    assert_null(tn_conv2d(image, kernel, NULL, (tn_conv2d_spec){ 0 }), TN_E_INVALID, says);
    assert_null(tn_layer_norm(x, 1, NULL, TN_NONE, 0), TN_E_INVALID, says);
    assert_null(tn_layer_norm(x, 1, TN_NONE, NULL, 0), TN_E_INVALID, says);
    assert_null(tn_rms_norm(NULL, 1, TN_NONE, 0), TN_E_INVALID, "x");
    assert_null(tn_rms_norm(x, 1, NULL, 0), TN_E_INVALID, says);
    assert_null(tn_group_norm(x, 1, NULL, TN_NONE, 0), TN_E_INVALID, says);
    assert_null(tn_group_norm(x, 1, TN_NONE, NULL, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, NULL, c, TN_NONE, TN_NONE, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, c, NULL, TN_NONE, TN_NONE, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, c, c, NULL, c, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_batch_norm(x, c, c, c, NULL, true, 0.1, 0), TN_E_INVALID, says);
    assert_null(tn_bce_with_logits(x, x, NULL, TN_MEAN), TN_E_INVALID, says);
    assert_null(tn_scaled_dot_product_attention(x, x, x, NULL, false, 0), TN_E_INVALID, says);
    /* seeds */
    tn_tensor *w = leaf(tn_ones(TN_SHAPE(1))), *y = tn_square(w), *none = NULL;
    assert_fails(tn_backward_from(y, NULL, 0), TN_E_INVALID, says);
    assert_fails(tn_gradients(1, &y, &none, 1, &w, &dx, 0), TN_E_INVALID, says);
}
END_TEST

/* In a struct of options NULL is a zero field; but what failed counted as absent, too. */
START_TEST(a_failed_tensor_is_not_an_absent_one)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *y = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    tn_cross_entropy_options o = { .label_smoothing = 0.1 };
    tn_module *m = owned(tn_multihead_attention_new(2, 1, (tn_multihead_attention_options){ 0 }));
    tn_module *layer = owned(tn_encoder_layer_new(2, 1, (tn_encoder_layer_options){ 0 }));
    tn_tensor *t = tn_ones(TN_SHAPE(1, 2, 2));
    assert_made(tn_cross_entropy_with(x, y, o));
    assert_made(tn_nll_loss(x, y, (tn_cross_entropy_options){ 0 }));
    assert_made(tn_multihead_attention_forward(m, t, t, t, (tn_attention_masks){ 0 }, NULL));
    o.weight = tn_matmul(x, tn_ones(TN_SHAPE(3, 3)));
    assert_null(tn_cross_entropy_with(x, y, o), TN_E_SHAPE, "tn_matmul: ");
    assert_null(tn_matmul(x, tn_ones(TN_SHAPE(3, 3))), TN_E_SHAPE, "tn_matmul");
    assert_null(tn_matmul(tn_to_dtype(x, TN_I64), x), TN_E_DTYPE, "is i64: want a floating dtype");
    tn_attention_masks masks = { .mask = tn_ones(TN_SHAPE(-1)) };
    assert_null(tn_multihead_attention_forward(m, t, t, t, masks, NULL), TN_E_SHAPE, "tn_ones: ");
    masks = (tn_attention_masks){ .mask = TN_NONE, .key_padding = NULL };
    ck_assert_ptr_null(tn_ones(TN_SHAPE(-1)));
    ck_assert_ptr_null(tn_encoder_layer_forward(layer, t, masks));
    ck_assert_ptr_null(tn_encoder_layer_forward(layer, t, masks));
    /* where it went is said, once */
    ck_assert_msg(strstr(tn_error(), "; tn_encoder_layer_forward: key_padding is NULL while") &&
                      times(tn_error(), "is NULL while") == 1,
                  "%s", tn_error());
    /* calls without an absent option still work */
    assert_made(tn_cross_entropy(x, y));
    tn_error_clear();
    assert_made(tn_encoder_layer_forward(layer, t, (tn_attention_masks){ .causal = true }));
}
END_TEST

/* "(in 0: Embedding) (in 0: Embedding)" */
START_TEST(a_place_is_said_once)
{
    tn_module *m = owned(tn_sequential(tn_embedding_new(3, 2, (tn_embedding_options){ 0 })));
    ck_assert_ptr_null(tn_forward(m, tn_from_ints((int64_t[]){ 0, 7 }, TN_SHAPE(2))));
    ck_assert_msg(times(tn_error(), "(in 0: Embedding)") == 1, "%s", tn_error());
    assert_error(TN_E_INDEX, "tn_embedding: index 7 at position 1: want 0..2 (in 0: Embedding)");
}
END_TEST

void ops_null_cases(Suite *suite)
{
    TCase *t = test_case(suite, "NULL");
    add_tests(t, null_arguments_are_named, null_for_an_optional_tensor_names_none,
              a_failed_tensor_is_not_an_absent_one, a_place_is_said_once);
}
