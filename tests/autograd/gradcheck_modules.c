/*
 * gradcheck_modules.c - tn_module_gradcheck: right models pass, a wrong backward is named with
 * its parameter, element and op, and the model, its buffers and the generator stay as they were.
 *
 * Seen to fail: one eps only (a_kink_beside_it_is_no_fault); a halving that always goes left
 * (names_the_element); buffers and generator not restored after a run (right_networks); the first
 * wrong parameter for the last (names_the_last_one_before_the_fault).
 */
#include "autograd/gradients.h"
#include "models.h"
#include "nn/boxes.h"
#include "scarce.h"

typedef tn_tensor *(*loss_function)(tn_module *m, void *user);

static const tn_module_gradcheck_options every = { 0 }, fast = { .fast = true };

/* ---- models ---------------------------------------------------------------------------------- */

/* Two Linear with something between them. */
static tn_module *net_new(tn_module *middle)
{
    return owned(tn_sequential(linear(3, 4), middle, tn_gelu_new(), linear(4, 2)));
}

/* y = x scale, and of element 3 a part that backward does not see */
static double hidden_part;

static tn_tensor *skewed(box *m, tn_tensor *x)
{
    tn_tensor *seen = tn_mul(x, m->a), *part = F32(TN_SHAPE(4), 0, 0, 0, (float)hidden_part);
    tn_tensor *hidden = tn_mul(tn_detach(m->a), tn_to_dtype(part, tn_dtype_of(m->a)));
    return tn_add(seen, tn_mul(x, hidden));
}

static tn_module *skewed_new(void)
{
    box *m = tn_module_new(&box_type);
    m->run = skewed;
    assert_ok(tn_register_parameter(&m->base, "scale", &m->a, tn_full(TN_SHAPE(4), 1.5)));
    return tn_module_done(&m->base);
}

/* A backward that is wrong for all that comes before it: the gradient at its input is 2 % larger */
HOOK(larger, tn_mul_scalar(g, 1.02))

static tn_tensor *wrong(box *m, tn_tensor *x)
{
    (void)m;
    tn_tensor *y = tn_neg(x);
    if (tn_requires_grad(y)) tn_register_hook(y, larger, NULL);
    return y;
}

static tn_module *wrong_new(void)
{
    box *m = box_new();
    m->run = wrong;
    return &m->base;
}

/* A loss: of the module m, and of user. */
#define LOSS(name, ...)                                                                            \
    static tn_tensor *name(tn_module *m, void *user)                                               \
    {                                                                                              \
        (void)m, (void)user;                                                                       \
        return __VA_ARGS__;                                                                        \
    }

/* ---- losses ---------------------------------------------------------------------------------- */

static tn_tensor *x, *y; /* of the test that runs */

static tn_tensor *classify(tn_module *m, void *user)
{
    (void)user;
    tn_tensor *logits = tn_forward(m, x);
    return tn_cross_entropy(tn_reshape(logits, TN_SHAPE(-1, tn_size(logits, -1))),
                            tn_reshape(y, TN_SHAPE(-1)));
}

/* with numbers of its own from the default generator */
static tn_tensor *with_noise(tn_module *m, void *user)
{
    tn_tensor *given = x;
    x = tn_add(x, tn_randn(TN_SHAPE(5, 3)));
    tn_tensor *loss = classify(m, user);
    x = given;
    return loss;
}

static void small_data(void)
{
    tn_manual_seed(4);
    x = tn_randn(TN_SHAPE(5, 3));
    y = tn_randint(0, 2, TN_SHAPE(5));
}

/* The check's status; nothing of m, the generator or the modes has changed. */
static tn_status unchanged(tn_module *m, loss_function loss, void *user,
                           tn_module_gradcheck_options o)
{
    unsigned char before[TN_GENERATOR_STATE_SIZE], after[TN_GENERATOR_STATE_SIZE];
    uint64_t hash = state_hash(m);
    int64_t live = tn_live_tensors();
    bool on = tn_grad_enabled();
    tn_generator_get_state(tn_default_generator(), before);
    tn_status status = tn_module_gradcheck(m, loss, user, o);
    tn_generator_get_state(tn_default_generator(), after);
    ck_assert(memcmp(before, after, sizeof before) == 0);
    ck_assert_uint_eq(state_hash(m), hash);
    ck_assert_int_eq(tn_live_tensors(), live);
    ck_assert_int_eq(tn_grad_enabled(), on);
    TN_SCOPE
    {
        tn_list *p = tn_parameters(m);
        for (int i = 0; i < p->n; i++) ck_assert(tn_is_none(tn_grad(p->entry[i].tensor)));
    }
    return status;
}

/* ---- right ----------------------------------------------------------------------------------- */

START_TEST(right_networks)
{
    small_data();
    tn_module *middle[] = { tn_relu_new(), tn_dropout_new(0.4),
                            tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 }),
                            tn_layer_norm_new(TN_SHAPE(4), (tn_layer_norm_options){ 0 }) };
    for (int i = 0; i < COUNT(middle); i++) {
        tn_module *m = net_new(middle[i]);
        assert_ok(unchanged(m, classify, NULL, every));
        assert_ok(unchanged(m, classify, NULL, fast));
        assert_ok(unchanged(m, with_noise, NULL, fast));
        TN_NO_GRAD assert_ok(unchanged(m, classify, NULL, fast));
        ck_assert(tn_training(m));
        tn_eval(m);
        assert_ok(unchanged(m, classify, NULL, fast));
    }
}
END_TEST

/* Every element of a small one: kinks of relu and pooling lie everywhere. */
START_TEST(right_small_cnn)
{
    tn_manual_seed(2);
    x = tn_randn(TN_SHAPE(4, 1, 6, 6));
    y = tn_randint(0, 3, TN_SHAPE(4));
    tn_module *m =
        owned(tn_sequential(tn_conv2d_new(1, 3, 3, (tn_conv2d_options){ .padding = 1 }),
                            tn_batch_norm2d_new(3, (tn_batch_norm_options){ 0 }), tn_relu_new(),
                            tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 } }),
                            tn_flatten_new(1, -1), tn_linear_new(27, 3, (tn_linear_options){ 0 })));
    assert_ok(unchanged(m, classify, NULL, every));
}
END_TEST

START_TEST(right_models)
{
    tn_manual_seed(1);
    tn_module *m = owned(_i ? transformer_new() : cnn_new());
    if (_i)
        random_text(2, &x, &y);
    else
        synthetic_images(0, TN_F32, &x, &y);
    assert_ok(unchanged(m, classify, NULL, fast));
}
END_TEST

/* Rows of a table as inputs and, tied, as the output layer: ids with padding. */
typedef struct padded {
    tn_module base;
    tn_module *parts;
    tn_module *table;  /* in parts, without a slot here */
    tn_tensor *weight; /* of table, too */
} padded;

static tn_tensor *padded_forward(tn_module *self, tn_tensor *ids)
{
    padded *m = (padded *)self;
    tn_tensor *h = tn_gelu(tn_mean(tn_forward(m->table, ids), (int[]){ 1 }, 1, false));
    return tn_linear(h, m->weight, TN_NONE);
}

static const tn_module_type padded_type = { .name = "Padded",
                                            .size = sizeof(padded),
                                            .forward = padded_forward };

/* The padding row is checked as any other, and fields without a slot are the copy's. */
START_TEST(right_padding_and_fields_without_a_slot)
{
    tn_manual_seed(5);
    padded *m = tn_module_new(&padded_type);
    tn_register_module(&m->base, "parts", &m->parts, tn_module_dict_new());
    tn_embedding_options o = { .use_padding_index = true, .padding_index = 0 };
    tn_register_module(m->parts, "table", NULL, tn_embedding_new(6, 3, o));
    m->table = tn_get_submodule(m->parts, "table");
    m->weight = tn_get_parameter(m->table, "weight");
    owned(tn_module_done(&m->base));
    x = tn_from_ints((int64_t[]){ 1, 2, 0, 0, 3, 4, 5, 0, 0, 1, 0, 0 }, TN_SHAPE(3, 4));
    y = tn_from_ints((int64_t[]){ 0, 3, 5 }, TN_SHAPE(3));
    assert_ok(unchanged(&m->base, classify, NULL, every));
    assert_ok(unchanged(&m->base, classify, NULL, fast));
}
END_TEST

/* ---- wrong ----------------------------------------------------------------------------------- */

START_TEST(names_the_element)
{
    small_data();
    tn_module *m = net_new(skewed_new());
    hidden_part = 0;
    assert_ok(unchanged(m, classify, NULL, every));
    hidden_part = 0.03;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(unchanged(m, classify, NULL, i ? fast : every), TN_E_INVALID);
        const char *text = tn_error();
        ck_assert_msg(
            strstr(text, "tn_module_gradcheck: 1.scale [4], read by tn_mul in 1: Box: ") == text,
            "%s", text);
        double backward = 0, differences = 0;
        const char *at = strstr(text, "at element [3] backward gives ");
        ck_assert_msg(at != NULL, "%s", text);
        ck_assert_int_eq(sscanf(at,
                                "at element [3] backward gives %lf, finite differences give %lf: "
                                "want them within 1e-07 + 1e-05 times the latter",
                                &backward, &differences),
                         2);
        ck_assert(fabs(differences / backward - 1.03) < 1e-4);
        ck_assert_int_eq(strstr(text, "along a random direction") != NULL, i);
        ck_assert(!strstr(text, "parameters are wrong"));
        tn_error_clear();
    }
}
END_TEST

START_TEST(names_the_last_one_before_the_fault)
{
    small_data();
    tn_module *inner = tn_linear_new(4, 4, (tn_linear_options){ .no_bias = true });
    tn_module *m = net_new(tn_sequential(inner, wrong_new()));
    for (int i = 0; i < 2; i++)
        assert_fails(unchanged(m, classify, NULL, i ? fast : every), TN_E_INVALID,
                     "; 3 of 5 parameters are wrong, and forward reads last 1.0.weight [4,4], "
                     "read by tn_linear in 1.0: Linear");
}
END_TEST

static tn_tensor *cut(tn_module *m, void *user)
{
    tn_tensor *loss = classify(m, user);
    return tn_add(loss, tn_sum_all(tn_detach(tn_get_parameter(m, "3.bias"))));
}

START_TEST(finds_a_gradient_that_was_cut_off)
{
    small_data();
    tn_module *m = net_new(tn_relu_new());
    assert_fails(unchanged(m, cut, NULL, every), TN_E_INVALID, "3.bias [2], read by tn_linear");
}
END_TEST

/* |scale - 1.5 + distance|, where scale is 1.5: a distance of 5e-7 lies within eps, not within
 * eps / 100 */
LOSS(near_a_kink,
     tn_sum_all(tn_abs(tn_add_scalar(tn_get_parameter(m, "1.scale"), *(double *)user - 1.5))))

START_TEST(a_kink_beside_it_is_no_fault)
{
    tn_module *m = net_new(skewed_new());
    double distance = 5e-7;
    assert_ok(unchanged(m, near_a_kink, &distance, every));
    assert_ok(unchanged(m, near_a_kink, &distance, fast));
    distance = 5e-9; /* within both */
    ck_assert_int_eq(unchanged(m, near_a_kink, &distance, every), TN_E_INVALID);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

LOSS(of_another, tn_to_dtype(classify(user, NULL), TN_F64))
LOSS(changing, tn_mul_scalar(classify(m, NULL), ++*(double *)user))
LOSS(in_f32, tn_to_dtype(classify(m, NULL), TN_F32))
LOSS(failing, tn_forward(m, tn_zeros(TN_SHAPE(5, 7))))
LOSS(rows, tn_forward(m, x))

START_TEST(refusals)
{
    small_data();
    double count = 0;
    tn_module *m = net_new(tn_relu_new()), *other = net_new(tn_relu_new());
    assert_fails(unchanged(m, of_another, other, every), TN_E_INVALID,
                 "reads none of 4 trainable parameters");
    assert_fails(unchanged(m, changing, &count, every), TN_E_INVALID, "at the same parameters");
    assert_fails(unchanged(m, in_f32, NULL, every), TN_E_DTYPE, "the loss is [] of f32");
    assert_fails(unchanged(m, rows, NULL, every), TN_E_SHAPE, "the loss is [5,2]");
    assert_fails(unchanged(m, failing, NULL, every), TN_E_SHAPE, "tn_linear");
    assert_fails(unchanged(m, NULL, NULL, every), TN_E_INVALID, "the loss is NULL");
    assert_fails(unchanged(m, classify, NULL, (tn_module_gradcheck_options){ .eps = -1 }),
                 TN_E_INVALID, "eps -1");
    assert_fails(unchanged(m, classify, NULL, (tn_module_gradcheck_options){ .atol = -1 }),
                 TN_E_INVALID, "atol -1");
    assert_fails(unchanged(m, classify, NULL, (tn_module_gradcheck_options){ .rtol = -1 }),
                 TN_E_INVALID, "rtol -1");
    assert_fails(tn_module_gradcheck(NULL, classify, NULL, every), TN_E_INVALID,
                 "tn_module_gradcheck");
    tn_module_freeze(m);
    assert_fails(unchanged(m, classify, NULL, every), TN_E_INVALID, "none of 0 trainable");
}
END_TEST

/* With every number of requests granted: an error, and nothing left behind. */
START_TEST(out_of_memory)
{
    scarce_install();
    small_data();
    tn_module *m = net_new(tn_dropout_new(0.5));
    tn_status status = TN_E_NOMEM;
    int64_t k = 0, step = 1;
    for (; status != TN_OK && k < 100000; k += step) {
        tn_memory_trim();
        scarce_allow(k);
        tn_scope s = tn_scope_begin();
        int64_t live = tn_live_tensors();
        status = tn_module_gradcheck(m, classify, NULL, fast);
        ck_assert_int_eq(tn_live_tensors(), live);
        tn_scope_end(s);
        scarce_allow(INT64_MAX);
        ck_assert_msg(status == TN_OK || status == TN_E_NOMEM, "%s", tn_error());
        tn_error_clear();
        step = 1 + k / 100;
    }
    ck_assert_int_eq(status, TN_OK);
}
END_TEST

void gradcheck_module_cases(Suite *suite)
{
    TCase *t = test_case(suite, "modules");
    add_tests(t, right_networks, right_small_cnn, right_padding_and_fields_without_a_slot,
              names_the_element, names_the_last_one_before_the_fault,
              finds_a_gradient_that_was_cut_off, a_kink_beside_it_is_no_fault, refusals,
              out_of_memory);
    tcase_add_loop_test(t, right_models, 0, 2);
}
