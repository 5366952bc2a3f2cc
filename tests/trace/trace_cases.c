/*
 * trace_cases.c - the models of test_trace.c, with weights that golden/make_explain.py gives too.
 */
#include "trace_cases.h"

tn_tensor *trace_leaf[TRACE_LEAVES];

tn_tensor *trace_fill(const char *name, tn_shape shape)
{
    double value[512];
    int64_t n = 1;
    unsigned p = 0;
    for (int i = 0; i < shape.rank; i++) n *= shape.size[i];
    ck_assert(n <= 512);
    for (const char *c = name; *c; c++) p += (unsigned char)*c;
    for (int64_t k = 0; k < n; k++) value[k] = ((double)((k * 7 + p * 5) % 12) - 5.5) / 8;
    tn_tensor *t = tn_from_data(value, shape, TN_F64);
    assert_made(t);
    assert_ok(tn_set_name(t, name));
    return t;
}

static tn_tensor *ids(const char *name, const int64_t *id, tn_shape shape)
{
    tn_tensor *t = tn_from_data(id, shape, TN_I64);
    assert_made(t);
    assert_ok(tn_set_name(t, name));
    return t;
}

static tn_tensor *leaf(const char *name, tn_shape shape)
{
    tn_tensor *t = trace_fill(name, shape);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* ---- models ---------------------------------------------------------------------------------- */

static tn_module *filled(tn_module *m)
{
    assert_made(m);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    tn_list *list = tn_parameters(m);
    TN_NO_GRAD
    {
        for (int i = 0; i < list->n; i++) {
            tn_tensor *t = list->entry[i].tensor;
            assert_ok(tn_copy_(t, trace_fill(list->entry[i].name, tn_shape_get(t))));
        }
    }
    return m;
}

static tn_module *mlp(void)
{
    return filled(tn_sequential(tn_linear_new(3, 4, (tn_linear_options){ 0 }), tn_tanh_new(),
                                tn_linear_new(4, 2, (tn_linear_options){ 0 })));
}

static tn_module *frozen(void)
{
    tn_module *m = mlp();
    assert_ok(tn_module_freeze(tn_module_child(m, 0)));
    return m;
}

static tn_module *cnn(void)
{
    return filled(tn_sequential(tn_conv2d_new(1, 2, 3, (tn_conv2d_options){ .no_bias = true }),
                                tn_batch_norm2d_new(2, (tn_batch_norm_options){ 0 }), tn_relu_new(),
                                tn_flatten_new(1, -1),
                                tn_linear_new(8, 3, (tn_linear_options){ 0 })));
}

static tn_module *transformer(void)
{
    tn_encoder_layer_options o = { .feedforward = 8, .gelu = true, .norm_first = true };
    return filled(tn_sequential(tn_embedding_new(5, 4, (tn_embedding_options){ 0 }),
                                tn_encoder_layer_new(4, 2, o),
                                tn_linear_new(4, 3, (tn_linear_options){ 0 })));
}

/* One parameter, read twice. */
typedef struct tied_net {
    tn_module base;
    tn_tensor *w;
} tied_net;

static tn_tensor *tied_forward(tn_module *self, tn_tensor *x)
{
    tied_net *m = (tied_net *)self;
    return tn_linear(tn_tanh(tn_linear(x, m->w, TN_NONE)), m->w, TN_NONE);
}

static const tn_module_type tied_type = { "Tied", sizeof(tied_net), .forward = tied_forward };

static tn_module *tied(void)
{
    tied_net *m = tn_module_new(&tied_type);
    assert_made(m);
    tn_register_parameter(&m->base, "w_in", &m->w, tn_zeros(TN_SHAPE(3, 3)));
    return filled(tn_module_done(&m->base));
}

/* One child, called twice. */
typedef struct twice_net {
    tn_module base;
    tn_module *fc;
} twice_net;

static tn_tensor *twice_forward(tn_module *self, tn_tensor *x)
{
    twice_net *m = (twice_net *)self;
    return tn_forward(m->fc, tn_tanh(tn_forward(m->fc, x)));
}

static const tn_module_type twice_type = { "Twice", sizeof(twice_net), .forward = twice_forward };

static tn_module *twice(void)
{
    twice_net *m = tn_module_new(&twice_type);
    assert_made(m);
    tn_register_module(&m->base, "fc", &m->fc, tn_linear_new(2, 2, (tn_linear_options){ 0 }));
    return filled(tn_module_done(&m->base));
}

tn_module *dropout_net(void)
{
    return tn_sequential(tn_linear_new(4, 16, (tn_linear_options){ 0 }), tn_relu_new(),
                         tn_dropout_new(0.5), tn_linear_new(16, 3, (tn_linear_options){ 0 }));
}

/* ---- losses of models ------------------------------------------------------------------------ */

#define LOSS(name, ...)                                                                            \
    static tn_tensor *name(tn_module *m, void *user)                                               \
    {                                                                                              \
        (void)m, (void)user;                                                                       \
        return __VA_ARGS__;                                                                        \
    }

LOSS(mlp_loss, tn_cross_entropy(tn_forward(m, trace_fill("x", TN_SHAPE(3, 3))),
                                ids("y", (int64_t[]){ 0, 1, 0 }, TN_SHAPE(3))))

LOSS(cnn_loss, tn_cross_entropy(tn_forward(m, trace_fill("x", TN_SHAPE(2, 1, 4, 4))),
                                ids("y", (int64_t[]){ 0, 2 }, TN_SHAPE(2))))

LOSS(transformer_loss,
     tn_mse_loss(tn_forward(m, ids("x", (int64_t[]){ 0, 2, 4, 1, 3, 0 }, TN_SHAPE(2, 3))),
                 trace_fill("y", TN_SHAPE(2, 3, 3)), TN_MEAN))

LOSS(tied_loss, tn_mse_loss(tn_forward(m, trace_fill("x", TN_SHAPE(2, 3))),
                            trace_fill("y", TN_SHAPE(2, 3)), TN_MEAN))

LOSS(twice_loss, tn_mse_loss(tn_forward(m, trace_fill("x", TN_SHAPE(2, 2))),
                             trace_fill("y", TN_SHAPE(2, 2)), TN_MEAN))

/* ---- leaves ---------------------------------------------------------------------------------- */

static void fanout_leaves(void)
{
    trace_leaf[0] = leaf("x", TN_SHAPE(3));
}

/* exp's result goes three ways. */
static tn_tensor *fanout_loss(tn_module *m, void *user)
{
    (void)m, (void)user;
    tn_tensor *y = tn_exp(trace_leaf[0]);
    return tn_sum(tn_add(tn_mul(y, y), y), NULL, 0, false);
}

static void broadcast_leaves(void)
{
    trace_leaf[0] = leaf("a", TN_SHAPE(2, 3));
    trace_leaf[1] = leaf("b", TN_SHAPE(3));
    trace_leaf[2] = leaf("c", TN_SHAPE(2, 1));
}

LOSS(broadcast_loss,
     tn_sum(tn_mul(tn_add(trace_leaf[0], trace_leaf[1]), trace_leaf[2]), NULL, 0, false))

static tn_status swish(tn_custom *c, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    (void)n_in, (void)n_out;
    out[0] = tn_mul(in[0], tn_sigmoid(in[0]));
    return tn_custom_save(c, in[0]);
}

static tn_status swish_grad(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                            tn_tensor **din)
{
    (void)n_out, (void)n_in;
    tn_tensor *x = tn_custom_saved(c, 0), *s = tn_sigmoid(x);
    tn_tensor *slope = tn_mul(s, tn_add_scalar(tn_mul(x, tn_sub(tn_ones_like(s), s)), 1));
    din[0] = tn_mul(dout[0], slope);
    return TN_OK;
}

static const tn_custom_op swish_op = { .name = "swish",
                                       .formula = "y = x sigmoid(x)",
                                       .gradient =
                                           "dx = s (1 + x (1 - s)) dy; where s = sigmoid(x)",
                                       .forward = swish,
                                       .backward = swish_grad };

static void custom_leaves(void)
{
    trace_leaf[0] = leaf("x", TN_SHAPE(4));
}

LOSS(custom_loss, tn_sum(tn_apply(&swish_op, NULL, 1, &trace_leaf[0]), NULL, 0, false))

/* The misuse: c is changed after mul kept it. */
static tn_tensor *overwritten_loss(tn_module *m, void *user)
{
    (void)m, (void)user;
    tn_tensor *c = trace_fill("c", TN_SHAPE(3));
    tn_tensor *loss = tn_sum(tn_mul(trace_leaf[0], c), NULL, 0, false);
    assert_ok(tn_add_scalar_(c, 1));
    return loss;
}

const trace_case trace_cases[] = {
    { "mlp", mlp, mlp_loss, NULL },
    { "frozen", frozen, mlp_loss, NULL },
    { "cnn", cnn, cnn_loss, NULL },
    { "transformer", transformer, transformer_loss, NULL },
    { "tied", tied, tied_loss, NULL },
    { "shared", twice, twice_loss, NULL },
    { "fanout", NULL, fanout_loss, fanout_leaves },
    { "broadcast", NULL, broadcast_loss, broadcast_leaves },
    { "custom", NULL, custom_loss, custom_leaves },
    { "overwritten", NULL, overwritten_loss, fanout_leaves },
};
