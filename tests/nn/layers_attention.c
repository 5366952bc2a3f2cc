/*
 * layers_attention.c - attention and encoders against PyTorch 1.13.1, with the numbers here;
 * decoders, layers without biases and attention with further keys against 2.15
 * (golden/attention.safetensors).
 *
 * Seen to fail: with norm2 in place of norm3 or memory's masks in both attentions
 * (src/nn/layers/transformer.c), with the zeros before the learned key
 * (src/nn/layers/multihead_attention.c).
 */
#include "boxes.h"

/* ---- golden values: parameters filled by fill(), inputs by waves(), f64 ---------------------- */

static const double mha_y[] = {
    0.1193476513069,  -0.4687395751082,  -0.1404983338345,   -0.8909452320242, 0.04327744406684,
    -0.4591873379002, -0.08242878919585, -1.009926313774,    0.1379067581915,  -0.4855841387035,
    -0.1273147924424, -0.8989443228862,  -0.003211463724873, -0.4012896696688, -0.1450448343645,
    -0.9498275087209, 0.05235559512877,  -0.4072418924987,   -0.1893952585644, -0.8602993648926,
    0.1821340386111,  -0.5678195677571,  -0.01657395596438,  -1.025393874141
};
static const double mha_w[] = {
    0.3491723713268, 0.6508276286732, 0.622626670414,  0.377373329586,
    0.3817306686325, 0.6182693313675, 0.8471193083737, 0.1528806916263,
    0.3427193515375, 0.6572806484625, 0.5036373332837, 0.4963626667163
};
static const double self_y[] = {
    0.1327447776783,   -0.4841278219449,  -0.1248971602993, -0.9049565336784, 0.06277314469127,
    -0.4870126179496,  -0.04948928882454, -1.044173700005,  0.1198825983237,  -0.4617822838027,
    -0.1541439114484,  -0.8721881871714,  0.08886521660183, -0.4994752031108, -0.05209630841237,
    -1.026798330648,   -0.1465976620659,  -0.2611280112024, -0.265785527848,  -0.8624600095315,
    -0.04470662034523, -0.3310353084597,  -0.2359401350655, -0.8487947039655
};
static const double self_dx[] = { 0.03423518459449,   -0.05002705914176, -0.1107607952693,
                                  -0.1194019986965,   0.03918230449586,  -0.05341438231417,
                                  -0.1208894504991,   -0.1315083211645,  0.04535747177513,
                                  -0.005454061876559, -0.05370046500563, -0.07669070034965,
                                  0.0807192341839,    0.01138053229472,  -0.06331061175839,
                                  -0.1082257858459,   0.0355866241905,   -0.009253893362936,
                                  -0.04974216027171,  -0.066835911962,   0.04629112089212,
                                  -0.008655232943632, -0.05953089548425, -0.08240824768272 };
static const double self_dw_rows[] = { 0.03689839257741, -0.1463371429717, -0.04362360734186,
                                       0.05463030083962, -0.6028791611492, -0.2024076730719,
                                       0.1278369316285,  0.02180398526245, 0.04363257973323,
                                       -0.3037549709675, -0.0717588602325, -0.06688449919438 };
static const double causal_y[] = {
    0.1921720952947,   -0.5360772482134, -0.08642865788557, -0.9254988721825,  -0.1629929016629,
    -0.256808651624,   -0.2575298824354, -0.8823366761987,  0.1198825983237,   -0.4617822838027,
    -0.1541439114484,  -0.8721881871714, -0.3609940477306,  -0.05249014397948, -0.4445556613971,
    -0.7342154494057,  -0.0808022287631, -0.3416810724987,  -0.1797831732256,  -0.9439736279859,
    -0.04470662034523, -0.3310353084597, -0.2359401350655,  -0.8487947039655
};
static const double causal_w[] = {
    1, 0, 0, 0.1794588820408, 0.8205411179592, 0, 0.5822032045923, 0.1654932026312, 0.2523035927765,
    1, 0, 0, 0.5804004915947, 0.4195995084053, 0, 0.376192134549,  0.3084611982424, 0.3153466672086
};
static const double padded_y[] = {
    0.1519023538309,  -0.5002215618564, -0.1137269738729,  -0.9099123921678,  -0.1629929016629,
    -0.256808651624,  -0.2575298824354, -0.8823366761987,  0.01647534779616,  -0.3628380250292,
    -0.2371916431154, -0.8146335897077, -0.3360316323698,  -0.07566507624432, -0.4258461989111,
    -0.7462974642134, -0.3320253354129, -0.06938765386031, -0.441681951092,   -0.7227332876251,
    -0.2481512888031, -0.1506333279708, -0.3724530192427,  -0.7719457059328
};
static const double mask3_y[] = {
    0.176417593059,    -0.5169799901767, -0.1066618819851, -0.9064677386784, 0.268074626462,
    -0.7491166301789,  0.2391297412074,  -1.325956283853,  -0.0279515148463, -0.311064118568,
    -0.2903298431359,  -0.7662714977646, -0.1171378746572, -0.3949598023094, -0.04304670831123,
    -1.148367202228,   -0.1684580994105, -0.2356381198097, -0.2919593807663, -0.8386267230021,
    -0.01154866034109, -0.3252130258583, -0.2800698645511, -0.7714569525489
};
static const double kv_y[] = {
    -0.4939116342418,   -0.4841079488549, 0.4661305278294,  -0.1953322317608, -0.5713727803422,
    -0.4476533918238,   0.4748950778221,  -0.2483030984098, -0.4906185396021, -0.4735739466317,
    0.4429866887271,    -0.1622529494819, -0.3872829052915, -0.4872268698447, 0.3653792329498,
    -0.002353068997277, -0.3839294951475, -0.3857784135761, 0.1708518189608,  0.2627746254001,
    -0.4291935791317,   -0.3907957590367, 0.2255708129125,  0.1646770537402
};
static const double layer_post_relu[] = {
    0.64322176093,    -0.3077673386404, -0.6311829445858, -0.2850745870491, -1.749733901317,
    -0.187974395563,  0.3176175580305,  0.72381760932,    0.6790146749785,  -0.4332334352466,
    -0.6695283958383, -0.0817443305639, -1.359755695647,  0.4209046173075,  -0.01736874656176,
    -0.1156032272002, 0.7077749397923,  -0.7186875946762, -0.5711647536172, 0.1706776587892,
    0.3801185508162,  0.01056215450415, -0.5224584463507, -0.6339066836421
};
static const double layer_post_gelu[] = {
    0.6149527699499,  -0.2540634156591, -0.616498065935,  -0.3558399807543, -1.749470931192,
    -0.1174745433584, 0.3421779686116,  0.5835459005862,  0.6635716034401,  -0.3798694764163,
    -0.6701929476987, -0.1436412414331, -1.363567545091,  0.4067285268044,  0.0247183309239,
    -0.1508587726317, 0.7174083494589,  -0.6851724155691, -0.5757134509337, 0.1171447464472,
    0.3356417173253,  0.03976058012083, -0.4773407249545, -0.6946601229099
};
static const double layer_pre_relu[] = {
    2.317681121394,  0.4016334030764,   -0.3280251349347, -1.185384712804, -0.2503307294331,
    0.4817233453654, -0.06251925968825, 0.6432387959505,  1.959470139543,  -0.5062632606359,
    -0.975006842286, -1.185740954379,   0.3277466288118,  1.149147870186,  0.5972958037836,
    0.1297821013923, 0.7165975737026,   -0.9153063759637, -1.032091147003, -0.5152870278602,
    1.733526030191,  0.9419637326451,   0.4258699044292,  -0.5718670793147
};
static const double layer_pre_gelu[] = {
    2.151314901002,    0.536946255079,  -0.2943360944642, -1.353730398109,  -0.4173428755968,
    0.550246191304,    0.0373047530144, 0.4768363450976,  1.790105178901,   -0.366425099912,
    -0.9427562247062,  -1.35720154363,  0.202774551067,   1.18545665885,    0.686666328424,
    0.005843579100749, 0.5731123896183, -0.8039193096181, -0.9978233921856, -0.6602743694507,
    1.584975968599,    1.081138695721,  0.4379559026058,  -0.722892625176
};
static const double encoder_y[] = {
    0.8144038570101,   0.296463520411,   -0.2622431100112, -0.9381001071059, 0.8775293507468,
    -0.07260830135203, -0.2131095841079, -0.5029828230947, 0.8613030673921,  0.08608835286157,
    -0.3902297066466,  -0.5237166594354, 0.602052496933,   0.2622015634595,  0.8564195823501,
    -1.72406791163,    0.8705813429192,  -0.2708482473683, -0.3228540386743, 0.005888958903621,
    0.7704984096148,   0.3088124299558,  0.09659948462789, -1.294371696781
};

/* Parameter k gets 0.5 sin(0.7 i + k), plus 1 for the weights of norms. */
static void fill(tn_module *m)
{
    tn_list *list = tn_parameters(m);
    assert_made(list);
    for (int k = 0; k < list->n; k++) {
        const char *name = list->entry[k].name;
        size_t n = strlen(name);
        bool norm_weight = strstr(name, "norm") && n > 6 && strcmp(name + n - 6, "weight") == 0;
        int64_t count = tn_numel(list->entry[k].tensor);
        double v[1024];
        ck_assert_int_le(count, 1024);
        for (int64_t i = 0; i < count; i++) v[i] = 0.5 * sin(0.7 * (double)i + k) + norm_weight;
        TN_NO_GRAD assert_ok(
            tn_copy_in(list->entry[k].tensor, v, (size_t)count * sizeof *v, TN_F64));
    }
}

/* cos(0.9 i + phase) */
static tn_tensor *waves(tn_shape shape, double phase)
{
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.size[i];
    double v[256];
    for (int64_t i = 0; i < n; i++) v[i] = cos(0.9 * (double)i + phase);
    return from_f64(v, shape);
}

/* ---- the layers ------------------------------------------------------------------------------ */

static tn_module *mha(tn_multihead_attention_options o)
{
    use_f64();
    tn_module *m = owned(tn_multihead_attention_new(4, 2, o));
    fill(m);
    return m;
}

static tn_tensor *future(void)
{
    return tn_triu(tn_full_as(TN_SHAPE(3, 3), 1, TN_BOOL, tn_cpu()), 1);
}

START_TEST(LY_08_attention)
{
    tn_module *m = mha((tn_multihead_attention_options){ 0 });
    tn_tensor *q = waves(TN_SHAPE(2, 3, 4), 0), *k = waves(TN_SHAPE(2, 2, 4), 1),
              *v = waves(TN_SHAPE(2, 2, 4), 2);
    tn_tensor *w;
    assert_golden(tn_multihead_attention_forward(m, q, k, v, (tn_attention_masks){ 0 }, NULL),
                  mha_y, 1e-11);
    assert_golden(tn_multihead_attention_forward(m, q, k, v, (tn_attention_masks){ 0 }, &w), mha_y,
                  1e-11);
    assert_golden(w, mha_w, 1e-11);
    assert_golden(tn_forward(m, q), self_y, 1e-11);
    tn_tensor *x = with_grad(tn_detach(q));
    assert_ok(tn_backward(tn_sum_all(tn_forward(m, x))));
    assert_golden(tn_grad(x), self_dx, 1e-11);
    assert_golden(tn_sum(tn_grad(tn_get_parameter(m, "in_proj_weight")), (int[]){ 1 }, 1, false),
                  self_dw_rows, 1e-11);
}
END_TEST

static tn_tensor *attend(tn_module *m, tn_tensor *x, tn_attention_masks masks, tn_tensor **w)
{
    return tn_multihead_attention_forward(m, x, x, x, masks, w);
}

START_TEST(LY_08_LY_10_masks)
{
    tn_module *m = mha((tn_multihead_attention_options){ 0 });
    tn_tensor *x = waves(TN_SHAPE(2, 3, 4), 0), *w;
    tn_attention_masks masks[] = { { .causal = true }, { .mask = future() } };
    for (int i = 0; i < 2; i++) {
        assert_golden(attend(m, x, masks[i], NULL), causal_y, 1e-11);
        assert_golden(attend(m, x, masks[i], &w), causal_y, 1e-11);
        assert_golden(w, causal_w, 1e-11);
    }
    tn_tensor *scores = tn_where(future(), tn_scalar(-1.5), tn_scalar(0.25));
    tn_tensor *padding =
        tn_gt_scalar(from_f64((double[]){ 0, 0, 1, 0, 1, 0 }, TN_SHAPE(2, 3)), 0.5);
    tn_attention_masks both = { .mask = scores, .key_padding = padding };
    assert_golden(attend(m, x, both, NULL), padded_y, 1e-11);
    assert_golden(attend(m, x, both, &w), padded_y, 1e-11);
    double third[36];
    for (int i = 0; i < 36; i++) third[i] = (i / 9 + i / 3 % 3 + i % 3) % 3 == 0;
    tn_attention_masks each = { .mask = tn_gt_scalar(from_f64(third, TN_SHAPE(4, 3, 3)), 0.5) };
    assert_golden(attend(m, x, each, NULL), mask3_y, 1e-11);
    assert_golden(attend(m, x, each, &w), mask3_y, 1e-11);
    /* bool with padding is the union */
    tn_attention_masks joined = { .mask = future(), .key_padding = padding };
    tn_tensor *fast = attend(m, x, joined, NULL);
    assert_close(fast, attend(m, x, joined, &w), 1e-12, 1e-12);
    tn_attention_masks absent = { .mask = TN_NONE }, wrong = { .key_padding = scores };
    assert_golden(attend(m, x, absent, NULL), self_y, 1e-11);
    assert_null(attend(m, x, wrong, NULL), TN_E_SHAPE, "of bool");
    wrong.key_padding = tn_ones(TN_SHAPE(2, 3));
    assert_null(attend(m, x, wrong, NULL), TN_E_SHAPE, "key_padding [2,3] of f64");
    wrong = (tn_attention_masks){ .mask = padding };
    assert_null(attend(m, x, wrong, NULL), TN_E_SHAPE, "mask [2,3]");
    /* causal belongs to one call, not to the module */
    assert_golden(tn_forward(m, x), self_y, 1e-11);
}
END_TEST

START_TEST(LY_08_other_layouts)
{
    tn_module *m = mha((tn_multihead_attention_options){ .sequence_first = true });
    tn_tensor *x = waves(TN_SHAPE(2, 3, 4), 0), *w;
    tn_tensor *y = tn_forward(m, tn_transpose(x, 0, 1));
    assert_golden(tn_transpose(y, 0, 1), self_y, 1e-11);
    tn_tensor *xt = tn_transpose(x, 0, 1);
    assert_golden(tn_transpose(tn_multihead_attention_forward(
                                   m, xt, xt, xt, (tn_attention_masks){ .causal = true }, &w),
                               0, 1),
                  causal_y, 1e-11);
    assert_golden(w, causal_w, 1e-11); /* always [B, T, S] */
    m = mha((tn_multihead_attention_options){ .kdim = 3, .vdim = 5 });
    ck_assert_str_eq(tn_parameters(m)->entry[1].name, "k_proj_weight");
    assert_golden(tn_multihead_attention_forward(m, x, waves(TN_SHAPE(2, 2, 3), 1),
                                                 waves(TN_SHAPE(2, 2, 5), 2),
                                                 (tn_attention_masks){ 0 }, NULL),
                  kv_y, 1e-11);
    assert_null(tn_forward(m, x), TN_E_SHAPE, "key [2,3,4]: want [B, T, 3]");
    m = mha((tn_multihead_attention_options){ .no_bias = true });
    ck_assert_int_eq(tn_parameters(m)->n, 2);
    assert_made(tn_forward(m, x));
    assert_null(attention(5, 2), TN_E_INVALID, "multiple");
}
END_TEST

START_TEST(LY_08_dropout_on_the_weights)
{
    tn_module *m = mha((tn_multihead_attention_options){ .dropout = 0.5 });
    tn_tensor *x = waves(TN_SHAPE(2, 3, 4), 0);
    tn_manual_seed(3);
    tn_tensor *w;
    tn_tensor *y = attend(m, x, (tn_attention_masks){ 0 }, &w);
    ck_assert_ptr_nonnull(values_difference(y, self_y, 24, 1e-3)); /* something was dropped */
    ck_assert_double_gt(fabs(tn_item(tn_sum_all(tn_select(tn_select(w, 0, 0), 0, 0))) - 1), 1e-3);
    tn_manual_seed(3);
    assert_close(tn_forward(m, x), y, 0, 0);
    assert_ok(tn_eval(m));
    assert_golden(tn_forward(m, x), self_y, 1e-11);
}
END_TEST

/* A sequence of padding alone, as PyTorch 2.15's attention without weights: every weight is 0, so
 * its output is out_proj's bias, and no gradient is NaN, also with the loss on it, with dropout, or
 * with the weights returned. */
START_TEST(attention_of_padding_alone)
{
    bool dropout = _i % 2, weights = _i / 2;
    tn_module *m = owned(tn_multihead_attention_new(
        8, 2, (tn_multihead_attention_options){ .dropout = dropout ? 0.5 : 0 }));
    tn_tensor *x = random_as(TN_SHAPE(2, 3, 8), -1, 1, 1, TN_F32), *w = NULL;
    tn_tensor *padding = tn_from_data((bool[]){ 1, 1, 1, 0, 0, 1 }, TN_SHAPE(2, 3), TN_BOOL);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *y = tn_multihead_attention_forward(
        m, x, x, x, (tn_attention_masks){ .key_padding = padding }, weights ? &w : NULL);
    tn_tensor *alone = tn_narrow(y, 0, 0, 1);
    assert_close(alone, tn_zeros_like(alone), 0, 0);
    if (weights) assert_close(tn_narrow(w, 0, 0, 1), tn_zeros_like(tn_narrow(w, 0, 0, 1)), 0, 0);
    assert_ok(tn_backward(tn_sum_all(tn_square(tn_add_scalar(y, 1)))));
    tn_list *p = tn_parameters(m);
    for (int i = 0; i < p->n; i++)
        ck_assert_msg(isfinite(tn_item(tn_sum_all(tn_grad(p->entry[i].tensor)))), "%s",
                      p->entry[i].name);
    ck_assert(isfinite(tn_item(tn_sum_all(tn_grad(x)))));
}
END_TEST

START_TEST(LY_09_encoder)
{
    const double *const golden[] = { layer_post_relu, layer_post_gelu, layer_pre_relu,
                                     layer_pre_gelu };
    tn_tensor *x = waves(TN_SHAPE(2, 3, 4), 0);
    tn_module *layer = NULL;
    use_f64();
    for (int i = 0; i < 4; i++) {
        tn_encoder_layer_options o = { .feedforward = 6, .norm_first = i >= 2, .gelu = i % 2 };
        tn_module_drop(layer);
        layer = tn_encoder_layer_new(4, 2, o);
        assert_made(layer);
        fill(layer);
        tn_attention_masks masks[] = { { .causal = true }, { .mask = future() } };
        for (int k = 0; k < 2; k++) {
            tn_tensor *y = tn_encoder_layer_forward(layer, x, masks[k]);
            const char *wrong = values_difference(y, golden[i], 24, 1e-11);
            ck_assert_msg(!wrong, "variant %d, mask %d: %s", i, k, wrong);
        }
    }
    tn_attention_masks none = { 0 }, causal = { .causal = true };
    tn_module *stack = owned(tn_encoder_new(layer, 2, layernorm(TN_SHAPE(4))));
    ck_assert_str_eq(tn_state_dict(stack, "")->entry[0].name, "layers.0.self_attn.in_proj_weight");
    ck_assert_str_eq(tn_state_dict(stack, "")->entry[25].name, "norm.bias");
    fill(stack);
    assert_golden(tn_encoder_forward(stack, x, none), encoder_y, 1e-11);
    assert_golden(tn_forward(stack, x), encoder_y, 1e-11);
    tn_tensor *masked = tn_encoder_forward(stack, x, causal);
    ck_assert_ptr_nonnull(values_difference(masked, encoder_y, 24, 1e-3));
    assert_null(tn_encoder_layer_forward(stack, x, none), TN_E_INVALID,
                "is a TransformerEncoder: want a TransformerEncoderLayer");
    assert_null(tn_encoder_forward(stack, tn_ones(TN_SHAPE(2, 3, 5)), none), TN_E_SHAPE,
                "(in layers.0");
    assert_null(tn_encoder_new(NULL, 2, TN_NO_MODULE), TN_E_INVALID, "layer");
    /* custom layers, and what they cannot do */
    stack = owned(tn_encoder_new(linear(4, 4), 2, TN_NO_MODULE));
    assert_made(tn_forward(stack, x));
    assert_null(tn_encoder_forward(stack, x, causal), TN_E_UNSUPPORTED, "Linear");
}
END_TEST

/* ---- by golden files: decoders, and what PyTorch 2 has beside -------------------------------- */

static tn_list *golden;

/* CASE/what, or NULL. */
static tn_tensor *find(const char *name, const char *what)
{
    char key[256];
    snprintf(key, sizeof key, "%s/%s", name, what);
    return tn_list_has(golden, key) ? tn_list_get(golden, key) : NULL;
}

static tn_tensor *leaf(const char *name, const char *what)
{
    tn_tensor *t = find(name, what);
    return t ? with_grad(tn_clone(t)) : NULL;
}

typedef enum kind { ATTENTION, ENCODER_LAYER, DECODER_LAYER, DECODER } kind;

typedef struct layer_case {
    const char *name;
    kind kind;
    tn_encoder_layer_options o;
    tn_multihead_attention_options attention;
} layer_case;

static const layer_case cases[] = {
    { .name = "layer_post", .kind = DECODER_LAYER },
    { .name = "layer_pre", .kind = DECODER_LAYER, .o = { .norm_first = true, .gelu = true } },
    { .name = "layer_plain",
      .kind = DECODER_LAYER,
      .o = { .no_bias = true, .gelu_tanh = true, .eps = 1e-3 } },
    { .name = "decoder", .kind = DECODER },
    { .name = "encoder_plain", .kind = ENCODER_LAYER, .o = { .no_bias = true, .gelu_tanh = true } },
    { .name = "bias_kv", .attention = { .add_bias_kv = true } },
    { .name = "bias_kv_causal", .attention = { .add_bias_kv = true } },
    { .name = "bias_kv_padded", .attention = { .add_bias_kv = true } },
    { .name = "zero_attn", .attention = { .add_zero_attn = true } },
    { .name = "zero_attn_causal", .attention = { .add_zero_attn = true } },
    { .name = "zero_attn_padded", .attention = { .add_zero_attn = true } },
    { .name = "both", .attention = { .add_bias_kv = true, .add_zero_attn = true } },
    { .name = "both_causal", .attention = { .add_bias_kv = true, .add_zero_attn = true } },
    { .name = "both_padded", .attention = { .add_bias_kv = true, .add_zero_attn = true } },
};
enum { CASES = sizeof cases / sizeof cases[0] };

static tn_module *made(const layer_case *c)
{
    tn_encoder_layer_options o = c->o;
    o.feedforward = 6;
    switch (c->kind) {
    case ATTENTION: return tn_multihead_attention_new(4, 2, c->attention);
    case ENCODER_LAYER: return tn_encoder_layer_new(4, 2, o);
    case DECODER_LAYER: return tn_decoder_layer_new(4, 2, o);
    default: return tn_decoder_new(tn_decoder_layer_new(4, 2, o), 2, layernorm(TN_SHAPE(4)));
    }
}

/* The case's module with the state of PyTorch's, which has the same names. */
static tn_module *loaded(const layer_case *c)
{
    tn_module *m = owned(made(c));
    tn_list *state = tn_list_new();
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s/param/", c->name);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    for (int i = 0; i < golden->n; i++)
        if (strncmp(golden->entry[i].name, prefix, strlen(prefix)) == 0)
            assert_ok(tn_list_add(state, golden->entry[i].name + strlen(prefix),
                                  golden->entry[i].tensor));
    assert_ok(tn_load_state_dict(m, state, (tn_load_options){ 0 }, NULL));
    return m;
}

static tn_tensor *called(const layer_case *c, tn_module *m, tn_tensor *x, tn_tensor *memory,
                         bool causal, tn_tensor **weights)
{
    tn_attention_masks own = { find(c->name, "mask"), find(c->name, "padding"), false };
    const tn_attention_masks other = { find(c->name, "memory_mask"),
                                       find(c->name, "memory_padding"), false };
    if (causal) own.mask = NULL, own.causal = true;
    switch (c->kind) {
    case ATTENTION:
        return memory ? tn_multihead_attention_forward(m, x, memory, memory, other, weights)
                      : tn_multihead_attention_forward(m, x, x, x, own, weights);
    case ENCODER_LAYER: return tn_encoder_layer_forward(m, x, own);
    case DECODER_LAYER: return tn_decoder_layer_forward(m, x, memory, own, other);
    default: return tn_decoder_forward(m, x, memory, own, other);
    }
}

START_TEST(as_in_pytorch)
{
    const layer_case *c = &cases[_i];
    tn_module *m = loaded(c);
    tn_tensor *x = leaf(c->name, "x"), *memory = leaf(c->name, "memory"), *w = NULL;
    tn_tensor *y = called(c, m, x, memory, false, NULL);
    assert_close(y, find(c->name, "y"), 1e-10, 1e-12);
    if (find(c->name, "mask")) /* which is that of causal */
        assert_close(called(c, m, x, memory, true, NULL), y, 1e-10, 1e-12);
    if (c->kind == ATTENTION) {
        assert_close(called(c, m, x, memory, false, &w), y, 1e-10, 1e-12);
        assert_close(w, find(c->name, "weights"), 1e-10, 1e-12);
    }
    assert_ok(tn_backward(tn_sum_all(tn_mul(y, find(c->name, "seed")))));
    assert_close(tn_grad(x), find(c->name, "dx"), 1e-9, 1e-11);
    if (memory) assert_close(tn_grad(memory), find(c->name, "dmemory"), 1e-9, 1e-11);
    const tn_list *list = tn_parameters(m);
    for (int i = 0; i < list->n; i++) {
        char key[128];
        snprintf(key, sizeof key, "grad/%s", list->entry[i].name);
        assert_close(tn_grad(list->entry[i].tensor), find(c->name, key), 1e-9, 1e-11);
    }
}
END_TEST

static tn_tensor *squares(tn_module *m, void *user)
{
    const tn_attention_masks causal = { .causal = true }, none = { 0 };
    return tn_sum_all(tn_square(tn_decoder_forward(m, user, user, causal, none)));
}

/* Differences of every parameter, with dropout; the same bits when each layer is computed again. */
START_TEST(gradients_of_decoders)
{
    tn_manual_seed(3);
    const tn_encoder_layer_options o = { .feedforward = 6, .dropout = 0.2, .norm_first = _i };
    tn_module *m = owned(tn_decoder_new(tn_decoder_layer_new(4, 2, o), 2, TN_NO_MODULE));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 3, 4)), *grad[2];
    assert_ok(tn_module_gradcheck(m, squares, x, (tn_module_gradcheck_options){ 0 }));
    for (int i = 0; i < 2; i++) {
        tn_manual_seed(5);
        assert_ok(tn_module_set_recompute(m, i));
        ck_assert(tn_module_recompute(m) == i);
        assert_ok(tn_module_zero_grad(m));
        assert_ok(tn_backward(squares(m, x)));
        grad[i] = tn_clone(tn_grad(tn_get_parameter(m, "layers.0.multihead_attn.in_proj_weight")));
    }
    assert_close(grad[0], grad[1], 0, 0);
}
END_TEST

START_TEST(IN_05_further_keys)
{
    tn_manual_seed(42);
    tn_module *m = owned(
        tn_multihead_attention_new(4, 2, (tn_multihead_attention_options){ .add_bias_kv = true }));
    const tn_list *list = tn_parameters(m);
    ck_assert_int_eq(list->n, 6);
    for (int i = 0; i < list->n; i++)
        assert_close(list->entry[i].tensor, find("init", list->entry[i].name), 0, 0);
}
END_TEST

static tn_status two_inputs(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                            tn_tensor **out)
{
    (void)m, (void)n_out;
    ck_assert_int_eq(n_in, 2);
    out[0] = tn_add(in[0], in[1]);
    return out[0] ? TN_OK : tn_error_status();
}

START_TEST(decoders_of_others)
{
    static const tn_module_type sums = { .name = "Sums",
                                         .size = sizeof(tn_module),
                                         .forward_n = two_inputs };
    const tn_attention_masks none = { 0 }, causal = { .causal = true };
    const tn_encoder_layer_options o = { .feedforward = 6 };
    tn_module *layer = owned(tn_decoder_layer_new(4, 2, o));
    tn_module *encoder = owned(tn_encoder_layer_new(4, 2, o));
    tn_module *own = owned(tn_decoder_new(tn_module_done(tn_module_new(&sums)), 2, TN_NO_MODULE));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 3, 4)), *memory = tn_randn(TN_SHAPE(2, 5, 4)), *y;
    assert_close(tn_decoder_forward(own, x, x, none, none), tn_mul_scalar(x, 3), 1e-6, 1e-6);
    assert_null(tn_decoder_forward(own, x, x, none, causal), TN_E_UNSUPPORTED,
                "TransformerDecoder: masks for a Sums: want layers made by tn_decoder_layer_new");
    assert_ok(tn_call(layer, 2, (tn_tensor *[]){ x, memory }, 1, &y));
    assert_close(y, tn_decoder_layer_forward(layer, x, memory, none, none), 0, 0);
    assert_null(tn_forward(layer, x), TN_E_INVALID,
                "TransformerDecoderLayer: 1 inputs, 1 outputs: want 2 or 6");
    assert_null(tn_decoder_layer_forward(encoder, x, memory, none, none), TN_E_INVALID,
                "want a TransformerDecoderLayer");
    assert_null(tn_decoder_layer_forward(layer, x, NULL, none, none), TN_E_INVALID, "memory");
    assert_null(tn_decoder_layer_forward(layer, x, tn_ones(TN_SHAPE(2, 5, 3)), none, none),
                TN_E_SHAPE, "key [2,5,3]: want [B, T, 4]");
    assert_null(tn_decoder_layer_new(4, 3, o), TN_E_INVALID, "embed_dim 4 for 3 heads");
    assert_null(tn_decoder_layer_new(0, 1, o), TN_E_INVALID, "tn_decoder_layer_new: d_model is 0");
    ck_assert_double_eq(tn_dropout_p(layer), 0);
}
END_TEST

static void load_golden(void)
{
    golden = tn_load_tensors(golden_path("attention.safetensors"), NULL);
    assert_made(golden);
}

void layers_attention_cases(Suite *suite)
{
    TCase *t = layers_case(suite, "attention");
    add_tests(t, LY_08_attention, LY_08_LY_10_masks, LY_08_other_layouts,
              LY_08_dropout_on_the_weights, LY_09_encoder);
    tcase_add_loop_test(t, attention_of_padding_alone, 0, 4);
    tcase_add_checked_fixture(t, load_golden, NULL);
    tcase_add_loop_test(t, as_in_pytorch, 0, CASES);
    tcase_add_loop_test(t, gradients_of_decoders, 0, 2);
    add_tests(t, IN_05_further_keys, decoders_of_others);
}
