/*
 * test_layers.c - the layers and initialisers against PyTorch 1.13.1 (golden literals), closed
 * forms, and the project's table of its semantics, whose row ids the tests carry; in layers_*.c
 * beside it batch norms and attention.
 *
 * Seen to fail: in src/nn/init.c > for >= between rows and columns of an orthogonal matrix.
 */
#include "boxes.h"

/* Bit for bit, in f32. */
static void assert_bits(const tn_tensor *t, const float *wanted, int64_t n)
{
    float v[64];
    ck_assert_int_eq(tn_numel(t), n);
    assert_ok(tn_copy_out(t, v, (size_t)n * sizeof *v, TN_F32));
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(v[i] == wanted[i], "element %d is %.9g, not %.9g", (int)i, (double)v[i],
                      (double)wanted[i]);
}
#define assert_exact(t, ...)                                                                       \
    assert_bits((t), (float[]){ __VA_ARGS__ },                                                     \
                (int64_t)(sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)))

/* ---- initial values -------------------------------------------------------------------------- */

START_TEST(IN_01_IN_02_fans_and_gains)
{
    int64_t in, out;
    assert_ok(tn_init_fans(tn_ones(TN_SHAPE(5, 3)), &in, &out));
    ck_assert(in == 3 && out == 5);
    assert_ok(tn_init_fans(tn_ones(TN_SHAPE(8, 2, 3, 4)), &in, &out));
    ck_assert(in == 24 && out == 96);
    assert_fails(tn_init_fans(tn_ones(TN_SHAPE(5)), &in, &out), TN_E_SHAPE, "at least 2 axes");
    assert_fails(tn_init_xavier_normal(tn_ones(TN_SHAPE(5)), 1), TN_E_SHAPE, "at least 2 axes");
    assert_fails(tn_init_kaiming_uniform(tn_full_as(TN_SHAPE(5, 5), 0, TN_I64, tn_cpu()), 0, false,
                                         TN_NL_RELU),
                 TN_E_DTYPE, "i64");
    ck_assert_double_eq(tn_init_gain(TN_NL_LINEAR, 0), 1);
    ck_assert_double_eq(tn_init_gain(TN_NL_SIGMOID, 0), 1);
    ck_assert_double_eq(tn_init_gain(TN_NL_TANH, 0), 5.0 / 3);
    ck_assert_double_eq(tn_init_gain(TN_NL_RELU, 0), sqrt(2));
    ck_assert_double_eq(tn_init_gain(TN_NL_LEAKY_RELU, 2), sqrt(2.0 / 5));
    ck_assert_double_eq(tn_init_gain(TN_NL_SELU, 0), 0.75);
    ck_assert(isnan(tn_init_gain((tn_nonlinearity)99, 0)));
    assert_error(TN_E_INVALID, "99");
}
END_TEST

START_TEST(IN_03_uniform_forms_bit_for_bit)
{
    tn_tensor *t = with_grad(tn_empty(TN_SHAPE(3, 5))); /* they are under no grad by themselves */
    tn_manual_seed(1);
    assert_ok(tn_init_xavier_uniform(t, 2));
    assert_exact(t, 0.892462015f, -0.764489532f, -0.335777938f, 0.812970817f, -1.63061655f,
                 1.03874075f, -0.356326699f, 0.881170213f, 0.240784481f, -0.212079495f,
                 0.480403185f, 0.0854451582f, 0.632593751f, -0.674981952f, -0.126281679f);
    t = tn_empty(TN_SHAPE(3, 2, 2, 2));
    tn_manual_seed(1);
    assert_ok(tn_init_kaiming_uniform(t, 0.1, true, TN_NL_LEAKY_RELU));
    assert_exact(t, 0.36253792f, -0.310552657f, -0.136400461f, 0.330246836f, -0.662392676f,
                 0.421959579f, -0.144747823f, 0.357950956f, 0.0978120118f, -0.0861514062f,
                 0.195150465f, 0.0347097218f, 0.256973654f, -0.274192661f, -0.0512984246f,
                 -0.0633430108f, 0.101982206f, -0.00281074736f, 0.615061581f, 0.218952611f,
                 -0.262024105f, -0.424945712f, -0.117933959f, -0.303490251f);
}
END_TEST

START_TEST(IN_03_normal_forms)
{
    tn_tensor *t = tn_empty(TN_SHAPE(4, 8));
    tn_manual_seed(1);
    assert_ok(tn_init_kaiming_normal(t, 0, false, TN_NL_LEAKY_RELU));
    ck_assert_double_eq_tol(tn_at(t, TN_INDEX(0, 0)), -0.762797952, 1e-6);
    ck_assert_double_eq_tol(tn_at(t, TN_INDEX(3, 7)), -0.0658116043, 1e-6);
    t = tn_empty(TN_SHAPE(3, 6));
    tn_manual_seed(1);
    assert_ok(tn_init_truncated_normal(t, 0.5, 2, -1, 2));
    ck_assert_double_ge(tn_item(tn_amin(t, NULL, 0, false)), -1); /* TR-01 has the values */
    ck_assert_double_le(tn_item(tn_amax(t, NULL, 0, false)), 2);
    tn_tensor *wide = tn_empty(TN_SHAPE(100, 100));
    assert_ok(tn_init_truncated_normal(wide, 0, 1, -2, 2));
    ck_assert_double_le(tn_item(tn_amax(tn_abs(wide), NULL, 0, false)), 2);
    /* the deviation of a standard normal cut at +-2 is sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) =
     * 0.8796 */
    ck_assert_double_eq_tol(tn_item(tn_std(wide, NULL, 0, 1, false)), 0.8796, 0.02);
    assert_ok(tn_init_xavier_normal(wide, 3)); /* deviation 3 sqrt(2 / 200) */
    ck_assert_double_eq_tol(tn_item(tn_std(wide, NULL, 0, 1, false)), 0.3, 0.01);
}
END_TEST

/* Columns or rows, whichever are fewer, are orthonormal; numbers are PyTorch 2.15's. */
START_TEST(orthogonal)
{
    tn_tensor *t = with_grad(tn_empty(TN_SHAPE(3, 5)));
    tn_manual_seed(1);
    assert_ok(tn_init_orthogonal(t, 1.5));
    assert_values(t, 1e-6, 0.944705844, 0.381286681, 0.0881026238, 0.887518167, -0.64552325,
                  0.303183973, -1.10445833, 0.363000751, -0.449666351, -0.77735579, -0.0991018564,
                  0.806964517, -0.361925244, -0.837745428, -0.869586289);
    t = tn_empty_as(TN_SHAPE(4, 2, 1), TN_F64, tn_cpu());
    tn_manual_seed(1);
    assert_ok(tn_init_orthogonal(t, 1));
    assert_values(t, 1e-8, 0.384128534, 0.42780736, 0.0358235684, 0.808634759, -0.262477365,
                  -0.271364871, -0.884458916, 0.29908493);
    t = tn_empty_as(TN_SHAPE(4, 4), TN_F64, tn_cpu());
    tn_manual_seed(1);
    assert_ok(tn_init_orthogonal(t, 1));
    assert_values(t, 1e-8, -0.235301955, -0.849516828, -0.46611378, -0.0754459599, -0.191164475,
                  -0.434769189, 0.876886462, 0.0741756584, -0.128927908, 0.00734198726,
                  -0.107850455, 0.985744373, -0.944175157, 0.298735679, -0.0466514319,
                  -0.130820143);
    tn_tensor *large = tn_empty_as(TN_SHAPE(100, 80), TN_F64, tn_cpu()); /* several blocks */
    tn_manual_seed(1);
    assert_ok(tn_init_orthogonal(large, 1));
    ck_assert_double_eq_tol(tn_at(large, TN_INDEX(0, 79)), -0.101723713, 1e-8);
    ck_assert_double_eq_tol(tn_at(large, TN_INDEX(50, 40)), 0.00238307149, 1e-8);
    ck_assert_double_eq_tol(tn_at(large, TN_INDEX(99, 79)), -0.00483602234, 1e-8);
    tn_tensor *own = tn_matmul(tn_transpose(large, 0, 1), large);
    ck_assert_double_lt(tn_max_abs_diff(own, tn_to_dtype(tn_eye(80), TN_F64)), 1e-14);
    t = tn_empty(TN_SHAPE(70, 70));
    tn_manual_seed(1);
    assert_ok(tn_init_orthogonal(t, 1));
    ck_assert_double_eq_tol(tn_at(t, TN_INDEX(69, 69)), 0.0347334743, 1e-6);
    assert_ok(tn_init_orthogonal(tn_empty(TN_SHAPE(3, 0)), 1));
    assert_fails(tn_init_orthogonal(tn_empty(TN_SHAPE(3)), 1), TN_E_SHAPE,
                 "[3]: want at least 2 axes");
    assert_fails(tn_init_orthogonal(t, NAN), TN_E_INVALID, "gain nan");
    assert_fails(tn_init_orthogonal(tn_from_ints((int64_t[]){ 1 }, TN_SHAPE(1, 1)), 1), TN_E_DTYPE,
                 "i64");
}
END_TEST

START_TEST(IN_04_IN_06_RN_06_draw_order)
{
    tn_manual_seed(42);
    tn_module *m = owned(linear(2, 2));
    assert_exact(tn_get_parameter(m, "weight"), 0.540610373f, 0.586904228f, -0.165655658f,
                 0.649556279f);
    assert_exact(tn_get_parameter(m, "bias"), -0.154929623f, 0.142687559f);
    tn_manual_seed(42);
    assert_ok(m->type->reset(m)); /* the same again */
    assert_exact(tn_get_parameter(m, "bias"), -0.154929623f, 0.142687559f);
    tn_manual_seed(3);
    m = owned(conv2d(4, 2, 2, .groups = 2));
    assert_exact(tn_get_parameter(m, "weight"), -0.350538611f, -0.278904587f, -0.151432231f,
                 -0.334493428f, -0.0200716779f, -0.311044753f, 0.192238182f, 0.172321469f,
                 0.0667658746f, 0.27425608f, -0.0346260816f, 0.211771846f, -0.24759987f,
                 -0.0696720704f, -0.315244526f, -0.0287048277f);
    assert_exact(tn_get_parameter(m, "bias"), -0.229381725f, 0.317620248f);
    tn_manual_seed(7);
    m = owned(attention(2, 1));
    assert_exact(tn_get_parameter(m, "in_proj_weight"), -0.507341862f, 0.224709973f, -0.233279258f,
                 0.60841465f, 0.614779592f, 0.0882223696f, -0.369205654f, -0.508669734f,
                 -0.0951066092f, -0.243723884f, 0.381710082f, -0.739495754f);
    assert_exact(tn_get_parameter(m, "in_proj_bias"), 0, 0, 0, 0, 0, 0);
    assert_exact(tn_get_parameter(m, "out_proj.weight"), 0.0493879281f, -0.425956607f, 0.225159332f,
                 0.221876353f);
    assert_exact(tn_get_parameter(m, "out_proj.bias"), 0, 0);
    tn_manual_seed(9);
    m = encoder_layer(2, 1, .feedforward = 3);
    assert_exact(tn_get_parameter(m, "self_attn.out_proj.weight"), 0.220312536f, -0.279982179f,
                 -0.0284307469f, 0.392265528f);
    assert_exact(tn_get_parameter(m, "linear1.weight"), -0.0740305185f, 0.186047733f, 0.275412202f,
                 0.454627246f, 0.581418812f, 0.327393681f);
    assert_exact(tn_get_parameter(m, "linear1.bias"), -0.0752481371f, -0.604633033f, 0.593381107f);
    assert_exact(tn_get_parameter(m, "linear2.weight"), 0.327292979f, 0.544432402f, 0.111316532f,
                 0.146086141f, 0.194956392f, 0.450129598f);
    assert_exact(tn_get_parameter(m, "linear2.bias"), 0.366948456f, 0.261119306f);
    /* stacked layers are copies: the same initial weights */
    tn_module *stack = owned(tn_encoder_new(m, 2, TN_NO_MODULE));
    ck_assert(tn_hash(tn_get_parameter(stack, "layers.0.linear1.weight")) ==
              tn_hash(tn_get_parameter(stack, "layers.1.linear1.weight")));
    ck_assert_int_eq(tn_parameters(stack)->n, 24);
}
END_TEST

START_TEST(IN_05_other_layers)
{
    tn_manual_seed(1);
    tn_module *m = owned(embedding(4, 3, .use_padding_index = true, .padding_index = -2));
    assert_values(tn_get_parameter(m, "weight"), 1e-6, 0.661352158, 0.266924113, 0.0616772585,
                  0.621317327, -0.451905966, -0.16613023, 0, 0, 0, -0.563052773, -0.892290533,
                  -0.0582501777);
    m = owned(layernorm(TN_SHAPE(2)));
    assert_values(tn_get_parameter(m, "weight"), 0, 1, 1);
    assert_values(tn_get_parameter(m, "bias"), 0, 0, 0);
}
END_TEST

/* ---- positional encoding --------------------------------------------------------------------- */

/* The f64 table that PE-02 compares with. */
static double encoding_at(int64_t t, int64_t column, int64_t d)
{
    double argument = (double)t * exp(-(double)(column / 2 * 2) * log(10000.0) / (double)d);
    return column % 2 ? cos(argument) : sin(argument);
}

START_TEST(PE_01_PE_02_table)
{
    tn_module *m = owned(encoding(512, 5000, 0));
    tn_tensor *pe = tn_get_buffer(m, "pe");
    double near = 0, far = 0;
    const float *v = tn_data(pe);
    ck_assert_int_eq(tn_rank(pe), 3);
    ck_assert(tn_size(pe, 0) == 1 && tn_size(pe, 1) == 5000 && tn_size(pe, 2) == 512);
    for (int64_t t = 0; t < 5000; t++)
        for (int64_t i = 0; i < 512; i++) {
            double error = fabs((double)v[t * 512 + i] - encoding_at(t, i, 512));
            near = t < 100 ? fmax(near, error) : near;
            far = fmax(far, error);
        }
    ck_assert_double_le(near, 7e-6);
    ck_assert_double_le(far, 4e-4);
    ck_assert_double_gt(far,
                        1e-5); /* f32 arithmetic, as PyTorch's recipe: not a rounded f64 table */
    use_f64();
    m = owned(encoding(6, 50, 0));
    for (int64_t t = 0; t < 50; t++)
        for (int64_t i = 0; i < 6; i++)
            ck_assert_double_eq_tol(tn_at(tn_get_buffer(m, "pe"), TN_INDEX(0, t, i)),
                                    encoding_at(t, i, 6), 1e-13);
}
END_TEST

START_TEST(PE_03_odd_sizes_and_long_inputs)
{
    tn_module *m = owned(encoding(3, 4, 0));
    ck_assert_double_eq_tol(tn_at(tn_get_buffer(m, "pe"), TN_INDEX(0, 2, 2)), encoding_at(2, 2, 3),
                            1e-6);
    assert_made(tn_forward(m, tn_zeros(TN_SHAPE(2, 4, 3))));
    assert_null(tn_forward(m, tn_zeros(TN_SHAPE(2, 5, 3))), TN_E_SHAPE,
                "T = 5 positions: want at most max_len = 4");
    assert_null(tn_forward(m, tn_zeros(TN_SHAPE(2, 4, 2))), TN_E_SHAPE, "want [B, T, 3]");
    m = owned(encoding(2, 1, 0));
    assert_null(tn_forward(m, tn_zeros(TN_SHAPE(2, 3, 2))), TN_E_SHAPE,
                "max_len = 1"); /* no silent broadcast */
}
END_TEST

START_TEST(PE_04_gradient_and_state)
{
    tn_module *m = owned(encoding(4, 8, 0));
    tn_tensor *x = with_grad(random_as(TN_SHAPE(2, 3, 4), -1, 1, 4, TN_F32));
    tn_tensor *y = tn_forward(m, x);
    assert_close(tn_sub(y, x),
                 tn_expand(tn_narrow(tn_get_buffer(m, "pe"), 1, 0, 3), TN_SHAPE(2, 3, 4)), 0, 1e-6);
    assert_ok(tn_backward(tn_sum_all(y)));
    assert_close(tn_grad(x), tn_ones(TN_SHAPE(2, 3, 4)), 0, 0);
    ck_assert_int_eq(tn_parameters(m)->n, 0);
    ck_assert_str_eq(tn_state_dict(m, "")->entry[0].name, "pe");
    assert_ok(tn_module_to_dtype(m, TN_F16));
    ck_assert_int_eq(tn_dtype_of(tn_get_buffer(m, "pe")), TN_F16);
    m = owned(encoding(4, 8, .non_persistent = true));
    ck_assert_int_eq(tn_state_dict(m, "")->n, 0);
}
END_TEST

/* ---- layers ---------------------------------------------------------------------------------- */

START_TEST(LY_01_linear_and_conv)
{
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ .no_bias = true }));
    assert_ok(tn_init_constant(tn_get_parameter(m, "weight"), 2));
    assert_values(tn_forward(m, tn_from_floats((float[]){ 1, 2, 3, 4 }, TN_SHAPE(2, 2))), 0, 6, 14);
    ck_assert(tn_is_none(tn_get_parameter(m, "bias")));
    ck_assert_int_eq(tn_parameters(m)->n, 1);
    m = owned(conv2d(2, 4, 3, .stride = 2, .padding = 1, .dilation = 2, .groups = 2));
    tn_tensor *y = tn_forward(m, tn_ones(TN_SHAPE(1, 2, 9, 7)));
    assert_made(y);
    ck_assert(tn_size(y, 1) == 4 && tn_size(y, 2) == 4 &&
              tn_size(y, 3) == 3); /* (n + 2 - 4 - 1) / 2 + 1 */
    assert_null(conv2d(3, 4, 3, .groups = 2), TN_E_INVALID, "groups");
    assert_null(conv2d(3, 4, 0, 0), TN_E_INVALID, "kernel");
    /* a size per axis */
    tn_conv2d_spec spec = { .padding = { 1, 0 }, .stride = { 1, 2 } };
    m = owned(tn_conv2d_spec_new(2, 3, 3, 1, spec, false));
    tn_tensor *x = tn_randn(TN_SHAPE(1, 2, 5, 6));
    tn_tensor *w = tn_get_parameter(m, "weight"), *b = tn_get_parameter(m, "bias");
    ck_assert_int_eq(tn_size(w, 2), 3);
    ck_assert_int_eq(tn_size(w, 3), 1);
    y = tn_forward(m, x);
    ck_assert_int_eq(tn_size(y, 2), 5);
    ck_assert_int_eq(tn_size(y, 3), 3);
    ck_assert_uint_eq(tn_hash(y), tn_hash(tn_conv2d(x, w, b, spec)));
    tn_module *same = owned(conv2d(2, 4, 4, .same = true));
    ck_assert_int_eq(tn_size(tn_forward(same, x), 2), 5);
    ck_assert_int_eq(tn_size(tn_forward(same, x), 3), 6);
    assert_null(conv2d(2, 4, 4, .same = true, .stride = 2), TN_E_INVALID, "same with stride 2");
    assert_null(tn_conv2d_spec_new(2, 4, 4, 0, spec, false), TN_E_INVALID, "kernel");
}
END_TEST

/* PyTorch 2.15: layers after torch.manual_seed(5), their values, and what they make of x. */
static tn_tensor *steps(tn_shape shape)
{
    float v[64];
    for (int i = 0; i < 64; i++) v[i] = (float)(i * 7 % 11) / 8 - 0.5f;
    return tn_from_floats(v, shape);
}

START_TEST(LY_01_other_convolutions)
{
    tn_manual_seed(5);
    tn_module *m = owned(tn_conv1d_new(
        4, 2, 3,
        (tn_conv_options){
            .stride = 2, .padding = 2, .groups = 2, .padding_mode = TN_PAD_CIRCULAR }));
    assert_exact(tn_get_parameter(m, "weight"), 0.269649535f, -0.305279166f, 0.33269763f,
                 0.261219352f, 0.343013018f, -0.313007891f, -0.274023175f, 0.194260374f,
                 -0.38108784f, 0.40350017f, 0.0868985578f, 0.0527222157f);
    assert_exact(tn_get_parameter(m, "bias"), -0.349123985f, 0.130099714f);
    assert_values(tn_forward(m, steps(TN_SHAPE(1, 4, 5))), 1e-6, -0.237754196, -0.530063331,
                  -0.781096578, -0.155083895, 0.341078997, 0.00216338038, -0.039478302,
                  -0.0276422203);
    tn_manual_seed(5);
    m = owned(tn_conv3d_spec_new(2, 2, 1, 2, 2, (tn_conv_spec){ .padding = { 1 } }, true));
    assert_exact(tn_get_parameter(m, "weight"), 0.233523339f, -0.264379501f, 0.288124561f,
                 0.226222575f, 0.297057986f, -0.271072775f, -0.237311035f, 0.168234408f,
                 -0.330031723f, 0.349441379f, 0.0752563551f, 0.0456587747f, -0.302350223f,
                 0.112669654f, 0.152032018f, 0.0560930707f);
    ck_assert_int_eq(tn_rank(tn_get_parameter(m, "weight")), 5);
    assert_values(tn_forward(m, steps(TN_SHAPE(1, 2, 1, 3, 2))), 1e-6, 0, 0, 0.242633358,
                  -0.543049932, 0, 0, 0, 0, 0.11704278, 0.452403992, 0, 0);
    tn_manual_seed(5);
    m = owned(tn_conv_transpose1d_new(
        4, 2, 3, (tn_conv_options){ .stride = 2, .groups = 2, .dilation = 2 }));
    assert_exact(tn_get_parameter(m, "weight"), 0.381341994f, -0.431729913f, 0.470505476f,
                 0.369419903f, 0.485093653f, -0.442659974f, -0.387527287f, 0.274725646f,
                 -0.538939536f, 0.570635378f, 0.122893117f, 0.0745604709f);
    assert_exact(tn_get_parameter(m, "bias"), -0.49373585f, 0.183988765f);
    assert_values(tn_forward(m, steps(TN_SHAPE(1, 4, 2))), 1e-6, -0.730584323, -0.49373585,
                  0.0815605521, -0.49373585, -0.471734583, -0.49373585, -0.649291277, 0.443754077,
                  0.183988765, 0.497689605, 0.183988765, 0.042534411, 0.183988765, 0.328043699);
    tn_manual_seed(5);
    tn_conv_spec spec = { .stride = { 2, 2 }, .padding = { 1, 1 }, .output_padding = { 1, 1 } };
    m = owned(tn_conv_transpose2d_spec_new(2, 2, 2, 3, spec, false));
    ck_assert_int_eq(tn_size(tn_get_parameter(m, "weight"), 3), 3);
    assert_exact(tn_get_parameter(m, "bias"), 0.27433452f, -0.236514851f);
    assert_values(tn_forward(m, steps(TN_SHAPE(1, 2, 2, 2))), 1e-6, 0.222476929, 0.464489341,
                  0.295873761, 0.169662237, 0.35881412, 0.434656203, 0.123935103, 0.466290772,
                  0.41755572, 0.500442028, 0.490952551, 0.119173795, -0.333530188, -0.0725910664,
                  -0.147180349, -0.263676137, -0.102090448, -0.318892479, -0.103173792,
                  -0.426365465, -0.409925789, 0.0584526211, -0.22357595, -0.18798399);
    /* in, out and groups as PyTorch's shapes have them */
    m = owned(tn_conv_transpose2d_new(4, 6, 3, (tn_conv_options){ .groups = 2 }));
    ck_assert(tn_size(tn_get_parameter(m, "weight"), 0) == 4);
    ck_assert(tn_size(tn_get_parameter(m, "weight"), 1) == 3);
    char text[200];
    m->type->describe(m, text, sizeof text);
    ck_assert_str_eq(text, "4, 6, 3, groups 2");
}
END_TEST

START_TEST(LY_01_padding_modes)
{
    tn_tensor *x = steps(TN_SHAPE(1, 2, 4, 5));
    static const char *const names[] = { "", ", reflect", ", replicate", ", circular" };
    for (int mode = 0; mode < 4; mode++) {
        char text[200], want[200];
        tn_module *m = owned(
            conv2d(2, 3, 3, .padding = 1, .padding_end = 2, .padding_mode = (tn_pad_mode)mode));
        tn_conv_spec spec = { .padding = { 1, 1 },
                              .padding_end = { 2, 2 },
                              .padding_mode = (tn_pad_mode)mode };
        tn_tensor *y = tn_forward(m, x);
        ck_assert(tn_size(y, 2) == 5 && tn_size(y, 3) == 6);
        ck_assert_uint_eq(tn_hash(y), tn_hash(tn_conv2d(x, tn_get_parameter(m, "weight"),
                                                        tn_get_parameter(m, "bias"), spec)));
        m->type->describe(m, text, sizeof text);
        snprintf(want, sizeof want, "2, 3, 3, padding 1, at the end 2%s", names[mode]);
        ck_assert_str_eq(text, want);
    }
    assert_null(conv2d(2, 3, 3, .padding_mode = 4), TN_E_INVALID, "padding_mode 4");
    assert_null(conv2d(2, 3, 3, .output_padding = 1), TN_E_INVALID, "transposed");
    assert_null(tn_conv_transpose2d_new(2, 3, 3, (tn_conv_options){ .same = true }), TN_E_INVALID,
                "tn_conv_transpose2d_new: same");
    assert_null(tn_conv_transpose1d_new(2, 3, 3, (tn_conv_options){ .use_padding_end = true }),
                TN_E_INVALID, "padding_end");
    tn_module *m = owned(conv2d(1, 1, 3, .padding = 4, .padding_mode = TN_PAD_REFLECT));
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(1, 1, 4, 4))), TN_E_SHAPE, "tn_pad");
}
END_TEST

START_TEST(LY_02_pools)
{
    tn_tensor *x = tn_reshape(tn_arange(0, 16, 1, TN_F32), TN_SHAPE(1, 1, 4, 4));
    tn_module *max = owned(tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 } }));
    tn_module *avg = owned(tn_avg_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 } }));
    tn_module *adaptive = owned(tn_adaptive_avg_pool2d_new(1, 2));
    assert_values(tn_forward(max, x), 0, 5, 7, 13, 15);
    assert_values(tn_forward(avg, x), 0, 2.5, 4.5, 10.5, 12.5);
    assert_values(tn_forward(adaptive, x), 1e-6, 6.5, 8.5);
    assert_null(tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 0 } }), TN_E_INVALID,
                "kernel[1]");
    tn_tensor *line = tn_reshape(x, TN_SHAPE(2, 8));
    tn_module *max1 = owned(tn_max_pool1d_new((tn_pool_spec){ .kernel = { 3 } }));
    tn_module *avg1 = owned(tn_avg_pool1d_new((tn_pool_spec){ .kernel = { 4 }, .divisor = 2 }));
    tn_module *adaptive1 = owned(tn_adaptive_avg_pool1d_new(1));
    tn_module *largest = owned(tn_adaptive_max_pool2d_new(1, 2));
    assert_values(tn_forward(max1, line), 0, 2, 5, 10, 13);
    assert_values(tn_forward(avg1, line), 0, 3, 11, 19, 27);
    assert_values(tn_forward(adaptive1, line), 1e-6, 3.5, 11.5);
    assert_values(tn_forward(largest, x), 0, 13, 15);
    assert_null(tn_adaptive_max_pool2d_new(1, 0), TN_E_INVALID, "out_w");
    assert_null(tn_adaptive_avg_pool1d_new(0), TN_E_INVALID, "out is 0");
    assert_null(tn_avg_pool1d_new((tn_pool_spec){ .kernel = { 2 }, .divisor = -1 }), TN_E_INVALID,
                "divisor");
}
END_TEST

/* Each is the op with the numbers it was made with; names and descriptions. */
START_TEST(LY_02_padding_and_resampling)
{
    tn_tensor *x = tn_reshape(tn_arange(0, 16, 1, TN_F32), TN_SHAPE(1, 4, 2, 2));
    const struct {
        tn_module *m;
        tn_tensor *y;
        const char *text;
    } row[] = {
        { tn_pad_new(TN_PADS(1, 0, 0, 1), TN_PAD_REFLECT, 0),
          tn_pad(x, TN_PADS(1, 0, 0, 1), TN_PAD_REFLECT, 0), "Pad(2 axes, reflect)" },
        { tn_pad_new(TN_PADS(1, 2), TN_PAD_CONSTANT, 3),
          tn_pad(x, TN_PADS(1, 2), TN_PAD_CONSTANT, 3), "Pad(1 axes, constant)" },
        { tn_upsample_new((tn_interpolate_spec){ .scale = { 2.5 }, .mode = TN_LINEAR }),
          tn_interpolate(x, (tn_interpolate_spec){ .scale = { 2.5 }, .mode = TN_LINEAR }),
          "Upsample(size 0, scale 2.5, mode 2)" },
        { tn_pixel_shuffle_new(2), tn_pixel_shuffle(x, 2), "PixelShuffle(2)" },
        { tn_pixel_unshuffle_new(2), tn_pixel_unshuffle(x, 2), "PixelUnshuffle(2)" },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char text[64] = "", full[128];
        tn_module *m = owned(row[i].m);
        assert_close(tn_forward(m, x), row[i].y, 0, 0);
        m->type->describe(m, text, sizeof text);
        snprintf(full, sizeof full, "%s(%s)", m->type->name, text);
        ck_assert_str_eq(full, row[i].text);
    }
    assert_null(tn_pixel_shuffle_new(0), TN_E_INVALID, "r is 0");
    assert_null(tn_pixel_unshuffle_new(0), TN_E_INVALID, "r is 0");
    assert_null(tn_pad_new(TN_PADS(1), TN_PAD_REFLECT, 0), TN_E_INVALID, "1 numbers");
    assert_null(tn_pad_new(TN_PADS(1, 1), (tn_pad_mode)5, 0), TN_E_INVALID, "mode 5");
}
END_TEST

START_TEST(LY_03_layernorm)
{
    use_f64();
    tn_module *m = owned(layernorm(TN_SHAPE(4)));
    tn_tensor *x = from_f64((double[]){ 1, 2, 4, 8 }, TN_SHAPE(1, 4));
    assert_values(tn_forward(m, x), 1e-11, -1.025754575496, -.652752911679, .093250415954,
                  1.585257071221);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(4, 3))), TN_E_SHAPE, "want the trailing axes [4]");
    m = owned(tn_layer_norm_new(TN_SHAPE(2, 2), (tn_layer_norm_options){ .no_affine = true }));
    ck_assert_int_eq(tn_parameters(m)->n, 0);
    assert_values(tn_reshape(tn_forward(m, tn_reshape(x, TN_SHAPE(1, 2, 2))), TN_SHAPE(4)), 1e-11,
                  -1.025754575496, -.652752911679, .093250415954, 1.585257071221);
    m = owned(tn_layer_norm_new(TN_SHAPE(3), (tn_layer_norm_options){ .no_bias = true }));
    ck_assert_int_eq(tn_parameters(m)->n, 1);
}
END_TEST

START_TEST(LY_06_dropout)
{
    tn_module *m = owned(tn_dropout_new(0.25));
    tn_tensor *x = with_grad(tn_ones(TN_SHAPE(10000)));
    tn_manual_seed(4);
    tn_tensor *y = tn_forward(m, x);
    ck_assert_double_eq_tol(tn_item(tn_mean_all(y)), 1, 0.03);
    ck_assert_double_eq_tol(tn_item(tn_amax(y, NULL, 0, false)), 1 / 0.75, 1e-6);
    assert_ok(tn_backward(tn_sum_all(y)));
    assert_close(tn_grad(x), tn_detach(y), 0, 0); /* the same mask */
    assert_null(tn_dropout_new(1.5), TN_E_INVALID, "[0, 1]");
    assert_null(tn_dropout_new(NAN), TN_E_INVALID, "[0, 1]");
}
END_TEST

START_TEST(dropout_p)
{
    tn_module *inner = tn_dropout_new(0.25);
    tn_module *m = owned(tn_sequential(encoder_layer(4, 2, .feedforward = 8, .dropout = 0.5),
                                       tn_sequential(inner, tn_relu_new())));
    ck_assert_double_eq(tn_dropout_p(inner), 0.25);
    assert_ok(tn_dropout_set_p(m, 1));
    ck_assert_double_eq(tn_dropout_p(inner), 1);
    ck_assert_double_eq(tn_dropout_p(tn_get_submodule(m, "0")), 1);
    ck_assert_double_eq(tn_dropout_p(tn_get_submodule(m, "0.self_attn")), 1);
    tn_tensor *x = tn_ones(TN_SHAPE(2, 3));
    ck_assert_double_eq(tn_item(tn_max_all(tn_forward(inner, x))), 0);
    assert_fails(tn_dropout_set_p(m, 1.5), TN_E_INVALID, "1.5");
    ck_assert_double_eq(tn_dropout_p(inner), 1);
    assert_ok(tn_dropout_set_p(m, 0));
    ck_assert_uint_eq(tn_hash(tn_forward(inner, x)), tn_hash(x));
    tn_module *relu = owned(tn_relu_new());
    assert_fails(tn_dropout_set_p(relu, 0.5), TN_E_INVALID, "nothing in ReLU drops");
    tn_error_clear();
    ck_assert(isnan(tn_dropout_p(relu)));
    tn_error_clear();
}
END_TEST

START_TEST(LY_07_embedding)
{
    tn_module *m = owned(embedding(3, 2, .use_padding_index = true));
    tn_tensor *weight = tn_get_parameter(m, "weight");
    tn_tensor *ids = tn_from_ints((int64_t[]){ 2, 0, 2 }, TN_SHAPE(3));
    assert_ok(tn_backward(tn_sum_all(tn_forward(m, ids))));
    assert_values(tn_grad(weight), 0, 0, 0, 0, 0, 2,
                  2); /* repeats add up, the padding row stays 0 */
    TN_NO_GRAD assert_ok(tn_fill_(weight, 1));
    assert_values(tn_forward(m, ids), 0, 1, 1, 1, 1, 1, 1); /* forward does not force the row */
    assert_null(tn_forward(m, tn_from_ints((int64_t[]){ 3 }, TN_SHAPE(1))), TN_E_INDEX, "3");
    assert_null(tn_forward(m, tn_from_ints((int64_t[]){ -1 }, TN_SHAPE(1))), TN_E_INDEX, "-1");
    ck_assert_ptr_null(tn_forward(m, tn_ones(TN_SHAPE(1))));
    assert_error(TN_E_DTYPE, "f32");
    assert_null(embedding(3, 2, .use_padding_index = true, .padding_index = 3), TN_E_INDEX,
                "3 rows");
}
END_TEST

START_TEST(activations_and_shapes)
{
    tn_tensor *x = from_f64((double[]){ -2, 0.5 }, TN_SHAPE(1, 2));
    const struct {
        tn_module *module;
        double at_minus_two, at_half;
    } row[] = {
        { tn_relu_new(), 0, 0.5 },
        { tn_gelu_new(), -0.045500263896358, 0.345731230637 },
        { tn_tanh_new(), tanh(-2), tanh(0.5) },
        { tn_sigmoid_new(), 1 / (1 + exp(2)), 1 / (1 + exp(-0.5)) },
        { tn_silu_new(), -2 / (1 + exp(2)), 0.5 / (1 + exp(-0.5)) },
        { tn_softmax_new(-1), 1 / (1 + exp(2.5)), 1 / (1 + exp(-2.5)) },
        { tn_identity_new(), -2, 0.5 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        tn_tensor *y = tn_forward(row[i].module, x);
        const char *wrong =
            values_difference(y, (double[]){ row[i].at_minus_two, row[i].at_half }, 2, 1e-11);
        ck_assert_msg(!wrong, "%s: %s", row[i].module->type->name, wrong);
        tn_module_drop(row[i].module);
    }
    tn_module *flat = owned(tn_flatten_new(1, -1));
    tn_tensor *y = tn_forward(flat, tn_ones(TN_SHAPE(2, 3, 4)));
    ck_assert(tn_rank(y) == 2 && tn_size(y, 1) == 12);
}
END_TEST

/* One line each: the module, the op that it is, and what describes it. */
#define ACTIVATIONS(F)                                                                             \
    F(tn_relu_new(), tn_relu(x), "ReLU()")                                                         \
    F(tn_relu6_new(), tn_relu6(x), "ReLU6()")                                                      \
    F(tn_selu_new(), tn_selu(x), "SELU()")                                                         \
    F(tn_gelu_new(), tn_gelu(x), "GELU()")                                                         \
    F(tn_gelu_tanh_new(), tn_gelu_tanh(x), "GELU(tanh)")                                           \
    F(tn_tanh_new(), tn_tanh(x), "Tanh()")                                                         \
    F(tn_sigmoid_new(), tn_sigmoid(x), "Sigmoid()")                                                \
    F(tn_silu_new(), tn_silu(x), "SiLU()")                                                         \
    F(tn_mish_new(), tn_mish(x), "Mish()")                                                         \
    F(tn_hardswish_new(), tn_hardswish(x), "Hardswish()")                                          \
    F(tn_hardsigmoid_new(), tn_hardsigmoid(x), "Hardsigmoid()")                                    \
    F(tn_logsigmoid_new(), tn_logsigmoid(x), "LogSigmoid()")                                       \
    F(tn_softsign_new(), tn_softsign(x), "Softsign()")                                             \
    F(tn_tanhshrink_new(), tn_tanhshrink(x), "Tanhshrink()")                                       \
    F(tn_leaky_relu_new(0.25), tn_leaky_relu(x, 0.25), "LeakyReLU(slope 0.25)")                    \
    F(tn_elu_new(0.5), tn_elu(x, 0.5), "ELU(alpha 0.5)")                                           \
    F(tn_celu_new(0.5), tn_celu(x, 0.5), "CELU(alpha 0.5)")                                        \
    F(tn_hardshrink_new(0.75), tn_hardshrink(x, 0.75), "Hardshrink(lambda 0.75)")                  \
    F(tn_softshrink_new(0.75), tn_softshrink(x, 0.75), "Softshrink(lambda 0.75)")                  \
    F(tn_hardtanh_new(-1, 2), tn_hardtanh(x, -1, 2), "Hardtanh(low -1, high 2)")                   \
    F(tn_softplus_new(2, 3), tn_softplus(x, 2, 3), "Softplus(beta 2, threshold 3)")                \
    F(tn_softmax_new(0), tn_softmax(x, 0), "Softmax(axis 0)")                                      \
    F(tn_log_softmax_new(-1), tn_log_softmax(x, -1), "LogSoftmax(axis -1)")                        \
    F(tn_glu_new(1), tn_glu(x, 1), "GLU(axis 1)")                                                  \
    F(tn_prelu_new(1, 0.25), tn_prelu(x, tn_full(TN_SHAPE(1), 0.25)), "PReLU(1, from 0.25)")

#define EXPECT(make, call, text)                                                                   \
    do {                                                                                           \
        tn_module *one = make;                                                                     \
        tn_tensor *want = call;                                                                    \
        assert_made(want);                                                                         \
        assert_close(tn_forward(one, x), want, 0, 0);                                              \
        char said[64] = "";                                                                        \
        if (one->type->describe) one->type->describe(one, said, sizeof said);                      \
        snprintf(full, sizeof full, "%s(%s)", one->type->name, said);                              \
        ck_assert_str_eq(full, text);                                                              \
        tn_module *clone = owned(tn_module_clone(one));                                            \
        assert_close(tn_forward(clone, x), want, 0, 0);                                            \
        ck_assert_int_eq(tn_state_dict(one, NULL)->n, strcmp(one->type->name, "PReLU") == 0);      \
        assert_ok(tn_module_append(all, one));                                                     \
        n++;                                                                                       \
    } while (0);

/* A Sequential counts them as PyTorch's does, with state or without. */
START_TEST(every_activation)
{
    tn_tensor *x = random_as(TN_SHAPE(3, 4), -3, 3, 5, TN_F32);
    tn_module *all = owned(tn_sequential_from(NULL, 0));
    char full[96];
    int n = 0;
    ACTIVATIONS(EXPECT)
    assert_ok(tn_module_append(all, tn_linear_new(2, 2, (tn_linear_options){ 0 })));
    const tn_list *state = tn_state_dict(all, NULL);
    snprintf(full, sizeof full, "%d.weight", n);
    ck_assert_int_eq(state->n, 3);
    ck_assert_str_eq(state->entry[1].name, full);
    snprintf(full, sizeof full, "%d.weight", n - 1); /* PReLU's */
    ck_assert_str_eq(state->entry[0].name, full);
}
END_TEST

START_TEST(prelu_learns)
{
    tn_module *m = owned(tn_prelu_new(2, 0.5));
    tn_tensor *x = tn_from_floats((float[]){ -2, -4, 3, -1 }, TN_SHAPE(2, 2));
    tn_tensor *w = tn_get_parameter(m, "weight");
    assert_ok(tn_backward(tn_sum_all(tn_forward(m, x))));
    assert_values(tn_grad(w), 0, -2, -5);
    TN_NO_GRAD assert_ok(tn_fill_(w, 3));
    assert_ok(m->type->reset(m));
    assert_values(tn_detach(w), 0, 0.5, 0.5);
    assert_null(tn_forward(m, tn_ones(TN_SHAPE(2, 3))), TN_E_SHAPE, "weight [2]: want weight [1]");
    assert_null(tn_prelu_new(0, 0.25), TN_E_INVALID, "tn_prelu_new: n is 0");
    assert_null(tn_forward(owned(tn_softshrink_new(-1)), x), TN_E_INVALID, "lambda -1");
}
END_TEST

START_TEST(a_sequential_frees_on_the_way)
{
    tn_module *m = owned(tn_sequential_from(NULL, 0));
    for (int i = 0; i < 20; i++) assert_ok(tn_module_append(m, tn_sigmoid_new()));
    tn_tensor *x = tn_ones(TN_SHAPE(1000, 256)); /* 1 MB each */
    TN_NO_GRAD
    {
        assert_made(tn_forward(m, x));
        tn_memory_reset_peak();
        int64_t before = tn_memory().in_use;
        assert_made(tn_forward(m, x));
        ck_assert_int_lt(tn_memory().peak_in_use - before, 4 << 20);
    }
}
END_TEST

/* A parameter is mostly named by its role, and a message says a word once. */
START_TEST(a_role_is_said_once)
{
    tn_tensor *x = tn_ones(TN_SHAPE(3, 5)), *w = tn_ones(TN_SHAPE(2, 4)), *b = tn_ones(TN_SHAPE(3));
    assert_ok(tn_set_name(w, "weight"));
    assert_null(tn_linear(x, w, TN_NONE), TN_E_SHAPE, "tn_linear: x [3,5], weight [2,4]: last");
    assert_ok(tn_set_name(w, "ht"));
    assert_null(tn_linear(x, w, TN_NONE), TN_E_SHAPE, "tn_linear: x [3,5], weight ht [2,4]: last");
    assert_ok(tn_set_name(w, "weight"));
    assert_ok(tn_set_name(b, "bias"));
    assert_ok(tn_set_name(x, "x"));
    x = tn_narrow(x, 1, 0, 4);
    assert_null(tn_linear(x, w, b), TN_E_SHAPE, "tn_linear: weight [2,4], bias [3]: want bias [2]");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("layers");
    add_tests(layers_case(suite, "initial values"), IN_01_IN_02_fans_and_gains,
              IN_03_uniform_forms_bit_for_bit, IN_03_normal_forms, orthogonal,
              IN_04_IN_06_RN_06_draw_order, IN_05_other_layers);
    add_tests(layers_case(suite, "positional encoding"), PE_01_PE_02_table,
              PE_03_odd_sizes_and_long_inputs, PE_04_gradient_and_state);
    add_tests(layers_case(suite, "layers"), LY_01_linear_and_conv, LY_01_other_convolutions,
              LY_01_padding_modes, LY_02_pools, LY_02_padding_and_resampling, LY_03_layernorm,
              LY_06_dropout, dropout_p, LY_07_embedding, activations_and_shapes, every_activation,
              prelu_learns, a_role_is_said_once, a_sequential_frees_on_the_way);
    layers_batchnorm_cases(suite);
    layers_norms_cases(suite);
    layers_attention_cases(suite);
    return suite;
}
