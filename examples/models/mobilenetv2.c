/*
 * mobilenetv2 - the network of inverted residuals (Sandler et al., MobileNetV2, 2018, table 2),
 * which learns a batch of random images by heart. Names of parameters are torchvision's.
 * usage: mobilenetv2 [STEPS]     20 without STEPS
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include <tenon/tenon.h>

enum {
    DIVISOR = 4, /* channels are the paper's divided by this; 1 for the paper's own */
    CLASSES = 10,
    BATCH = 8,
    SIDE = 64 /* of an image, in pixels; 224 in the paper */
};

/* ---- the model ------------------------------------------------------------------------------- */

/* Convolution, batch norm, ReLU6. With groups = in each channel has a filter of its own, which is
 * cheap: in a depthwise convolution no channel sees another. */
static tn_module *conv_norm_act(int in, int out, int kernel, int stride, int groups)
{
    const tn_conv_options o = {
        .stride = stride, .padding = kernel / 2, .groups = groups, .no_bias = true
    };
    return tn_sequential(tn_conv2d_new(in, out, kernel, o),
                         tn_batch_norm2d_new(out, (tn_batch_norm_options){ 0 }), tn_relu6_new());
}

/* An inverted residual: 1x1 to more channels, 3x3 depthwise, 1x1 to few channels without an
 * activation, which would lose too much of them. */
typedef struct inverted {
    tn_module base; /* every module's struct begins with this */
    tn_module *conv;
    bool residual; /* y has x's shape, and x is added to it */
} inverted;

static tn_tensor *inverted_forward(tn_module *self, tn_tensor *x)
{
    inverted *m = (inverted *)self;
    tn_tensor *y = tn_forward(m->conv, x);
    return m->residual ? tn_add(x, y) : y;
}

static tn_module *inverted_new(int in, int out, int stride, int expand)
{
    static const tn_module_type type = { .name = "InvertedResidual",
                                         .size = sizeof(inverted),
                                         .forward = inverted_forward };
    const tn_conv_options project = { .no_bias = true };
    const int wide = in * expand;
    inverted *m = tn_module_new(&type);
    if (!m) return NULL;
    m->residual = stride == 1 && in == out;
    tn_module *parts[4];
    int n = 0;
    if (expand != 1) parts[n++] = conv_norm_act(in, wide, 1, 1, 1);
    parts[n++] = conv_norm_act(wide, wide, 3, stride, wide);
    parts[n++] = tn_conv2d_new(wide, out, 1, project);
    parts[n++] = tn_batch_norm2d_new(out, (tn_batch_norm_options){ 0 });
    tn_register_module(&m->base, "conv", &m->conv, tn_sequential_from(parts, n));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

typedef struct mobilenet {
    tn_module base;
    tn_module *features, *classifier;
} mobilenet;

/* x [N, 3, SIDE, SIDE] -> [N, CLASSES]: a score for each class */
static tn_tensor *mobilenet_forward(tn_module *self, tn_tensor *x)
{
    mobilenet *m = (mobilenet *)self;
    x = tn_forward(m->features, x);
    x = tn_adaptive_avg_pool2d(x, 1, 1); /* the mean of each channel */
    return tn_forward(m->classifier, tn_flatten(x, 1, -1));
}

static tn_module *mobilenet_new(void)
{
    static const tn_module_type type = { .name = "MobileNetV2",
                                         .size = sizeof(mobilenet),
                                         .forward = mobilenet_forward };
    static const struct {
        int expand, channels, count, stride; /* the stride is the first one's, others have 1 */
    } stages[] = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 },  { 6, 32, 3, 2 }, { 6, 64, 4, 2 },
                   { 6, 96, 3, 1 }, { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    mobilenet *m = tn_module_new(&type);
    if (!m) return NULL;
    int in = 32 / DIVISOR, last = 1280 / DIVISOR;
    tn_module *features = tn_sequential(conv_norm_act(3, in, 3, 2, 1));
    for (int s = 0; s < (int)(sizeof stages / sizeof *stages); s++)
        for (int i = 0; i < stages[s].count; i++) {
            int out = stages[s].channels / DIVISOR, stride = i ? 1 : stages[s].stride;
            tn_module_append(features, inverted_new(in, out, stride, stages[s].expand));
            in = out;
        }
    tn_module_append(features, conv_norm_act(in, last, 1, 1, 1));
    tn_register_module(&m->base, "features", &m->features, features);
    tn_register_module(&m->base, "classifier", &m->classifier,
                       tn_sequential(tn_dropout_new(0), /* 0.2 for images that are not random */
                                     tn_linear_new(last, CLASSES, (tn_linear_options){ 0 })));
    return tn_module_done(&m->base);
}

/* ---- training -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    char *end = "";
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20;
    if (argc > 2 || steps < 1 || *end) return fprintf(stderr, "usage: mobilenetv2 [STEPS]\n"), 2;

    /* f64: in f32, which real training takes, many batch norms in a row enlarge rounding errors, so
     * that the losses of two machines would soon have nothing in common (lr is small for that) */
    TN_CHECK(tn_set_default_dtype(TN_F64));
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = mobilenet_new();
    tn_sgd_options options = { .lr = 0.0003, .momentum = 0.9 };
    tn_optim *optimizer = tn_sgd(tn_parameters(model), options);
    tn_tensor *images = tn_randn(TN_SHAPE(BATCH, 3, SIDE, SIDE));
    tn_tensor *classes = tn_randint(0, CLASSES, TN_SHAPE(BATCH));
    TN_CHECK_PTR(optimizer); /* if it or the model failed: says why, and ends the program */

    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin(); /* owns what this step makes */
        tn_tensor *loss = tn_cross_entropy(tn_forward(model, images), classes);
        TN_CHECK(tn_optim_zero_grad(optimizer)); /* else gradients would add up */
        TN_CHECK(tn_backward(loss));             /* a gradient for each parameter */
        TN_CHECK(tn_optim_step(optimizer));      /* changes the parameters */
        printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    tn_optim_free(optimizer), tn_module_drop(model), tn_scope_end(program);
    return fflush(stdout) ? perror("mobilenetv2: standard output"), 1 : 0;
}
