/* nn_containers.c - lists and dicts of modules, lists of tensors, and who holds a child. */
#include "boxes.h"

START_TEST(RM_06_containers_number_their_children)
{
    tn_module *s = tn_sequential(linear(2, 3), tn_relu_new(), linear(3, 1));
    tn_module *l = owned(tn_module_list_new());
    assert_ok(tn_module_append(l, linear(1, 1)));
    assert_ok(tn_module_append(l, s));
    assert_names(tn_parameters(l), "0.weight 0.bias 1.0.weight 1.0.bias 1.2.weight 1.2.bias");
    assert_null(tn_forward(l, tn_ones(TN_SHAPE(1, 1))), TN_E_UNSUPPORTED, "no forward");
    box *m = owned_box();
    assert_fails(tn_module_append(&m->base, tn_identity_new()), TN_E_INVALID, "Box");
    /* deleting leaves a gap that is not reused */
    assert_ok(tn_module_append(l, tn_identity_new()));
    assert_ok(tn_module_delete(l, "0"));
    assert_ok(tn_module_append(l, linear(1, 1)));
    ck_assert_str_eq(tn_module_child_name(l, 2), "3");
}
END_TEST

START_TEST(RM_06_dict_of_modules)
{
    tn_module *m = owned(tn_module_dict_new());
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
}
END_TEST

START_TEST(a_child_is_taken_over_once_for_each_reference)
{
    tn_module *relu = tn_relu_new();
    assert_null(tn_sequential(relu, relu), TN_E_STATE, "belongs to another module already");
    relu = tn_relu_new();
    tn_module *both = tn_sequential(tn_module_keep(relu), relu);
    assert_made(both);
    assert_ok(tn_module_delete(both, "0"));
    assert_made(tn_forward(both, tn_ones(TN_SHAPE(1))));
    assert_fails(tn_module_append(both, relu), TN_E_STATE, "tn_module_keep");
    ck_assert_int_eq(tn_module_children(both), 1);
    assert_fails(tn_module_append(both, both), TN_E_STATE, "want a tree"); /* and is still there */
    ck_assert_int_eq(tn_module_children(both), 1);
    tn_module_drop(both);
    tn_module *norm = layernorm(TN_SHAPE(1));
    assert_null(tn_encoder_new(norm, 2, norm), TN_E_STATE, "one LayerNorm with one reference");
}
END_TEST

START_TEST(a_child_is_replaced_in_its_place_and_field)
{
    tn_encoder_layer_options o = { .feedforward = 3 };
    tn_module *m = owned(tn_encoder_layer_new(4, 1, o)), *old = tn_get_submodule(m, "linear1");
    tn_tensor *x = tn_ones(TN_SHAPE(1, 2, 4)), *y = tn_forward(m, x);
    tn_module *zero = linear(3, 3), *around = tn_sequential(tn_module_keep(old), zero);
    ck_assert_str_eq(tn_module_child_name(m, 1), "linear1");
    assert_ok(tn_register_module(m, "linear1", NULL, around));
    ck_assert_str_eq(tn_module_child_name(m, 1), "linear1");
    ck_assert_ptr_eq(tn_get_submodule(m, "linear1.0"), old);
    assert_ok(tn_init_constant(tn_get_parameter(zero, "weight"), 0));
    ck_assert(difference(tn_forward(m, x), y, 1e-3, 1e-3)); /* the layer calls what is there now */
    assert_ok(tn_register_module(m, "linear1", NULL, tn_module_keep(old)));
    assert_close(tn_forward(m, x), y, 0, 0);
}
END_TEST

/* ---- lists of tensors ------------------------------------------------------------------------ */

START_TEST(RM_06_lists_of_tensors)
{
    tn_module *p = owned(tn_parameter_list_new()), *b = owned(tn_buffer_list_new(TN_PERSISTENT));
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
    tn_module *list = owned(tn_module_list_new());
    assert_fails(
        tn_module_append_tensor(list, tn_ones(TN_SHAPE(1))), TN_E_INVALID,
        "tn_module_append_tensor: the module is a ModuleList: want a ParameterList or BufferList");
    ck_assert_int_eq(tn_module_tensors(list), -1);
    tn_error_clear();
}
END_TEST

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
    owned(tn_module_done(&m->base));
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
    assert_fails(load(&m->base, tn_state_dict(&other->base, "")), TN_E_NAME,
                 _i ? "unexpected: \"cell_anchors.0\"" : "missing: \"cell_anchors.0\"");
    /* carried either way: cast and cloned with the module */
    assert_ok(tn_module_to_dtype(&m->base, TN_F64));
    ck_assert_int_eq(tn_dtype_of(tn_module_tensor(m->cells, 1)), TN_F64);
    tn_module *clone = owned(tn_module_clone(&m->base));
    ck_assert_int_eq(tn_module_tensors(((anchors *)clone)->cells), 2);
    assert_close(tn_get_buffer(clone, "cell_anchors.0"), tn_module_tensor(m->cells, 0), 0, 0);
    assert_null(sgd(buffers, 0), TN_E_NAME, "cell_anchors.0 is a buffer");
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
}
END_TEST

void nn_containers_cases(Suite *suite)
{
    TCase *t = test_case(suite, "containers");
    add_tests(t, RM_06_containers_number_their_children, RM_06_dict_of_modules,
              a_child_is_taken_over_once_for_each_reference,
              a_child_is_replaced_in_its_place_and_field, RM_06_lists_of_tensors, AN_02_anchors);
    tcase_add_loop_test(t, AN_01_persistent_or_not, 0, 2);
}
