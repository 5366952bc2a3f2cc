/* layers.c - options of layers, averages, walks over modules and their lists. */
#include "nn/options/options.h"

/* Outputs in training and evaluation, then the state; 0 for a layer that was refused. */
static uint64_t see_module(tn_module *m, tn_tensor *x)
{
    uint64_t h = 1;
    if (!m) return 0;
    for (int training = 1; training >= 0; training--) {
        assert_ok(tn_train(m, training));
        tn_tensor *y = tn_forward(m, x);
        assert_made(y);
        h = mix(h, tn_hash(y));
    }
    h = mix(h, hash_of_module(m));
    tn_module_drop(m);
    return h;
}

SEE(see_linear, tn_linear_options, see_module(tn_linear_new(3, 2, o), input(TN_SHAPE(2, 3))))
SEE(see_conv2d, tn_conv_options, see_module(tn_conv2d_new(4, 4, 3, o), input(TN_SHAPE(1, 4, 9, 9))))
SEE(see_transpose, tn_conv_options,
    see_module(tn_conv_transpose1d_new(4, 4, 3, o), input(TN_SHAPE(1, 4, 9))))
SEE(see_layernorm, tn_layer_norm_options,
    see_module(tn_layer_norm_new(TN_SHAPE(4), o), input(TN_SHAPE(3, 4))))
SEE(see_rmsnorm, tn_rms_norm_options,
    see_module(tn_rms_norm_new(TN_SHAPE(4), o), tn_mul_scalar(input(TN_SHAPE(3, 4)), 1e-3)))
SEE(see_instancenorm, tn_instance_norm_options,
    see_module(tn_instance_norm1d_new(3, o), input(TN_SHAPE(4, 3, 5))))
SEE(see_embedding, tn_embedding_options,
    see_module(tn_embedding_new(5, 2, o), tn_from_ints((int64_t[]){ 0, 1, 2 }, TN_SHAPE(3))))
SEE(see_encoding, tn_positional_encoding_options,
    see_module(tn_positional_encoding_new(4, 8, o), input(TN_SHAPE(1, 3, 4))))
SEE(see_encoder, tn_encoder_layer_options,
    see_module(tn_encoder_layer_new(4, 2, o), input(TN_SHAPE(2, 3, 4))))
SEE(see_recurrent, tn_recurrent_options, see_module(tn_gru_new(4, 5, o), input(TN_SHAPE(2, 3, 4))))

/* 1d, 2d; a batch with a NaN is among what they see */
static uint64_t see_batchnorm(const void *options)
{
    const tn_batch_norm_options *o = options;
    tn_tensor *x = input(TN_SHAPE(4, 3, 2, 2)), *broken = tn_clone(x);
    assert_ok(tn_fill_(tn_select(tn_reshape(broken, TN_SHAPE(48)), 0, 0), NAN));
    tn_module *m = tn_batch_norm2d_new(3, *o);
    if (!m) return 0;
    assert_made(tn_forward(m, x));
    assert_made(tn_forward(m, broken));
    uint64_t h = see_module(m, x);
    return mix(h, see_module(tn_batch_norm1d_new(3, *o), input(TN_SHAPE(4, 3))));
}

static uint64_t see_spectral(const void *options)
{
    tn_module *m = tn_linear_new(20, 16, (tn_linear_options){ 0 });
    if (tn_spectral_norm(m, "weight", *(const tn_spectral_norm_options *)options) != TN_OK) {
        tn_module_drop(m);
        return 0;
    }
    return see_module(m, input(TN_SHAPE(2, 20)));
}

static uint64_t see_frozen(const void *o)
{
    tn_module *m = tn_frozen_batch_norm2d_new(3, *(const tn_frozen_batch_norm_options *)o);
    if (m) assert_ok(tn_module_set(m, "running_var", tn_full(TN_SHAPE(3), 2)));
    return see_module(m, input(TN_SHAPE(2, 3, 2, 2)));
}

static uint64_t see_attention(const void *options)
{
    const tn_multihead_attention_options *o = options;
    tn_module *m = tn_multihead_attention_new(4, 2, *o);
    if (!m) return 0;
    owned(m);
    tn_tensor *q = input(TN_SHAPE(2, 3, 4));
    tn_tensor *k = input(TN_SHAPE(2, 3, o->kdim ? o->kdim : 4));
    tn_tensor *v = input(TN_SHAPE(2, 3, o->vdim ? o->vdim : 4));
    tn_tensor *y = tn_multihead_attention_forward(m, q, k, v, (tn_attention_masks){ 0 }, NULL);
    return mix(mix(1, hash_of_module(m)), see_tensor(y));
}

static uint64_t see_masks(const void *o)
{
    tn_manual_seed(5);
    tn_module *m = owned(attention(4, 2));
    tn_tensor *x = input(TN_SHAPE(2, 3, 4));
    const tn_attention_masks *masks = o;
    return see_tensor(tn_multihead_attention_forward(m, x, x, x, *masks, NULL));
}

static uint64_t see_ema(const void *o)
{
    tn_module *model = owned(tn_sequential(linear(2, 2), norm1d(2)));
    tn_module *ema = tn_ema_new(model, *(const tn_ema_options *)o);
    uint64_t h = 0;
    for (int k = 0; ema && k < 3; k++) {
        assert_made(tn_forward(model, random_as(TN_SHAPE(4, 2), -1, 1, 3 + (uint64_t)k, TN_F32)));
        TN_NO_GRAD assert_ok(tn_add_scalar_(tn_get_parameter(model, "0.weight"), 0.5));
        assert_ok(tn_ema_update(ema, model));
        h = mix(1, hash_of_module(ema));
    }
    tn_module_drop(ema);
    return h;
}

/* A tie, and a buffer that is not saved. */
static tn_module *tied_new(void)
{
    tn_module *m = tn_sequential(linear(2, 2), linear(2, 2), norm1d(2));
    assert_ok(tn_module_set(m, "1.weight", tn_get_parameter(m, "0.weight")));
    assert_ok(buffer(m, "kept", NULL, tn_ones(TN_SHAPE(1))));
    assert_ok(tn_register_buffer(m, "passing", NULL, tn_ones(TN_SHAPE(1)), TN_NON_PERSISTENT));
    assert_ok(tn_register_buffer(m, "cache", NULL, tn_ones(TN_SHAPE(1)), TN_CACHE));
    return m;
}

static uint64_t see_walk(const void *options)
{
    const tn_walk_options *o = options;
    tn_module *m = owned(tied_new());
    return mix(mix(1, hash_of(tn_parameters_with(m, *o))), hash_of(tn_buffers_with(m, *o)));
}

/* The results of loading four lists: one that fits, one that lacks a name, one of f64, one of other
 * sizes. */
static uint64_t see_load(const void *options)
{
    tn_module *m = owned(linear(2, 2));
    uint64_t h = 1;
    for (int k = 0; k < 4; k++) {
        tn_tensor *w = tn_full(k == 3 ? TN_SHAPE(2, 3) : TN_SHAPE(2, 2), k + 1);
        tn_list *list = listed("weight", k == 2 ? tn_to_dtype(w, TN_F64) : w,
                               k == 1 ? NULL : "bias", tn_full(TN_SHAPE(2), k + 1), NULL);
        tn_status status = tn_load_state_dict(m, list, *(const tn_load_options *)options, NULL);
        h = mix(mix(h, (uint64_t)status), hash_of_module(m));
    }
    tn_error_clear();
    return h;
}

/* ---- the rows -------------------------------------------------------------------------------- */

static const option_row rows[] = {
    FLAG(tn_linear_options, no_bias, see_linear, 0),
    INT(tn_conv_options, stride, 1, 2, -1, "stride -1", see_conv2d, 0),
    INT(tn_conv_options, padding, 0, 1, -1, "padding -1", see_conv2d, 0),
    INT(tn_conv_options, dilation, 1, 2, -1, "dilation -1", see_conv2d, 0),
    INT(tn_conv_options, groups, 1, 2, 3, "groups 3", see_conv2d, 0),
    FLAG(tn_conv_options, no_bias, see_conv2d, 0),
    FLAG(tn_conv_options, same, see_conv2d, 0),
    INT(tn_conv_options, padding_end, 2, 1, -1, "padding -1", see_conv2d, .padding = 2),
    FLAG(tn_conv_options, use_padding_end, see_conv2d, .padding = 1),
    SHOWN_BY(tn_conv_options, padding_mode, "nn/test_layers.c", "LY_01_padding_modes"),
    INT(tn_conv_options, output_padding, 0, 1, 2, "output_padding 2", see_transpose, .stride = 2),
    REAL(tn_batch_norm_options, eps, 1e-5, 1e-2, -1, "eps -1", see_batchnorm, 0),
    REAL(tn_batch_norm_options, momentum, .1, .5, 1.5, "momentum 1.5", see_batchnorm, 0),
    FLAG(tn_batch_norm_options, cumulative, see_batchnorm, .skip_nonfinite = true),
    FLAG(tn_batch_norm_options, no_affine, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, no_bias, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, no_tracking, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, biased_var, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, skip_nonfinite, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, use_eps, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, use_momentum, see_batchnorm, 0),
    REAL(tn_frozen_batch_norm_options, eps, 1e-5, .5, -1, "eps -1", see_frozen, 0),
    FLAG(tn_frozen_batch_norm_options, use_eps, see_frozen, 0),
    REAL(tn_layer_norm_options, eps, 1e-5, .1, -1, "eps -1", see_layernorm, 0),
    FLAG(tn_layer_norm_options, use_eps, see_layernorm, 0),
    FLAG(tn_layer_norm_options, no_affine, see_layernorm, 0),
    FLAG(tn_layer_norm_options, no_bias, see_layernorm, 0),
    REAL(tn_rms_norm_options, eps, 0x1p-23, .1, -1, "eps -1", see_rmsnorm, 0),
    FLAG(tn_rms_norm_options, use_eps, see_rmsnorm, 0),
    FLAG(tn_rms_norm_options, no_affine, see_rmsnorm, 0),
    REAL(tn_instance_norm_options, eps, 1e-5, .1, -1, "eps -1", see_instancenorm, 0),
    REAL(tn_instance_norm_options, momentum, .1, .5, 1.5, "momentum 1.5", see_instancenorm,
         .tracking = true),
    FLAG(tn_instance_norm_options, affine, see_instancenorm, 0),
    FLAG(tn_instance_norm_options, no_bias, see_instancenorm, .affine = true),
    FLAG(tn_instance_norm_options, tracking, see_instancenorm, 0),
    FLAG(tn_instance_norm_options, use_eps, see_instancenorm, 0),
    FLAG(tn_instance_norm_options, use_momentum, see_instancenorm, .tracking = true),
    INT(tn_spectral_norm_options, iterations, 1, 3, -1, "iterations is -1", see_spectral, 0),
    INT(tn_spectral_norm_options, axis, 0, 1, 3, "axis 3", see_spectral, 0),
    REAL(tn_spectral_norm_options, eps, 1e-12, 1e3, -1, "eps -1", see_spectral, 0),
    FLAG(tn_embedding_options, use_padding_index, see_embedding, .padding_index = 1),
    INT(tn_embedding_options, padding_index, 0, 2, 7, "padding_index 7", see_embedding,
        .use_padding_index = true),
    REAL(tn_positional_encoding_options, dropout, 0, .5, 1.5, "dropout probability 1.5",
         see_encoding, 0),
    FLAG(tn_positional_encoding_options, non_persistent, see_encoding, 0),
    REAL(tn_multihead_attention_options, dropout, 0, .5, -1, "dropout probability -1",
         see_attention, 0),
    FLAG(tn_multihead_attention_options, no_bias, see_attention, 0),
    FLAG(tn_multihead_attention_options, sequence_first, see_attention, 0),
    INT(tn_multihead_attention_options, kdim, 4, 6, -1, "kdim is -1", see_attention, .vdim = 3),
    INT(tn_multihead_attention_options, vdim, 4, 6, -1, "vdim is -1", see_attention, .kdim = 3),
    FLAG(tn_multihead_attention_options, add_bias_kv, see_attention, 0),
    FLAG(tn_multihead_attention_options, add_zero_attn, see_attention, 0),
    SHOWN_BY(tn_attention_masks, mask, "nn/layers_attention.c", "LY_08_LY_10_masks"),
    SHOWN_BY(tn_attention_masks, key_padding, "nn/layers_attention.c", "LY_08_LY_10_masks"),
    FLAG(tn_attention_masks, causal, see_masks, 0),
    INT(tn_encoder_layer_options, feedforward, 2048, 8, -1, "feedforward is -1", see_encoder, 0),
    REAL(tn_encoder_layer_options, dropout, 0, .5, 2, "dropout probability 2", see_encoder,
         .feedforward = 8),
    FLAG(tn_encoder_layer_options, gelu, see_encoder, .feedforward = 8),
    FLAG(tn_encoder_layer_options, norm_first, see_encoder, .feedforward = 8),
    FLAG(tn_encoder_layer_options, sequence_first, see_encoder, .feedforward = 8),
    REAL(tn_encoder_layer_options, eps, 1e-5, .1, -1, "eps -1", see_encoder, .feedforward = 8),
    FLAG(tn_encoder_layer_options, use_eps, see_encoder, .feedforward = 8),
    FLAG(tn_encoder_layer_options, gelu_tanh, see_encoder, .feedforward = 8),
    FLAG(tn_encoder_layer_options, no_bias, see_encoder, .feedforward = 8),
    INT(tn_recurrent_options, layers, 1, 2, -1, "layers is -1", see_recurrent, 0),
    REAL(tn_recurrent_options, dropout, 0, .5, 2, "dropout probability 2", see_recurrent,
         .layers = 2),
    FLAG(tn_recurrent_options, no_bias, see_recurrent, 0),
    FLAG(tn_recurrent_options, bidirectional, see_recurrent, 0),
    FLAG(tn_recurrent_options, sequence_first, see_recurrent, 0),
    SHOWN_BY(tn_recurrent_options, relu, "nn/test_recurrent.c", "as_in_pytorch"),
    SHOWN_BY(tn_recurrent_options, proj_size, "nn/test_recurrent.c", "as_in_pytorch"),
    SHOWN_BY(tn_recurrent_options, reset_before, "nn/test_recurrent.c", "reset_before_the_product"),
    REAL(tn_ema_options, decay, .999, .5, 1.5, "decay 1.5", see_ema, 0),
    FLAG(tn_ema_options, equal, see_ema, 0),
    FLAG(tn_ema_options, average_buffers, see_ema, 0),
    FLAG(tn_ema_options, use_decay, see_ema, 0),
    SHOWN_BY(tn_walk_options, prefix, "nn/test_nn.c", "EN_01_EN_02_EN_06_order_and_prefix"),
    FLAG(tn_walk_options, no_recurse, see_walk, 0),
    FLAG(tn_walk_options, keep_duplicates, see_walk, 0),
    FLAG(tn_walk_options, no_caches, see_walk, 0),
    FLAG(tn_walk_options, persistent_only, see_walk, 0),
    FLAG(tn_load_options, non_strict, see_load, 0),
    FLAG(tn_load_options, cast, see_load, 0),
    FLAG(tn_load_options, skip_mismatched, see_load, 0),
    SHOWN_BY(tn_load_options, assign, "nn/test_state.c", "LD_14_assign_takes_the_tensors"),
    SHOWN_BY(tn_load_options, rename, "nn/test_hooks.c", "names_are_changed_by_a_callback"),
    SHOWN_BY(tn_load_options, user, "nn/test_hooks.c", "names_are_changed_by_a_callback"),
    SHOWN_BY(tn_load_options, key, "io/pt_kinds.c", "each_kind_is_read_as_its_writer_meant_it"),
    SHOWN_BY(tn_load_options, unwrap, "io/pt_kinds.c", "each_kind_is_read_as_its_writer_meant_it"),
    SHOWN_BY(tn_load_options, widen, "io/pt_kinds.c", "each_kind_is_read_as_its_writer_meant_it"),
    SHOWN_BY(tn_load_options, no_values, "io/test_load.c", "names_without_values"),
    SHOWN_BY(tn_load_options, skip_foreign, "io/pt_kinds.c",
             "each_kind_is_read_as_its_writer_meant_it"),
};
const option_rows options_of_layers = { rows, COUNT(rows) };
