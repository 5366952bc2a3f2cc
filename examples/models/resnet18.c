/*
 * resnet18 - the residual network of 18 layers (He et al., Deep Residual Learning, 2016, table 1),
 * which learns a batch of random images by heart. Names of parameters are torchvision's.
 * usage: resnet18 [STEPS]     20 without STEPS
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include <tenon/tenon.h>

enum {
    WIDTH = 8, /* channels of the first stage; 64 in the paper, and in torchvision's files */
    CLASSES = 10,
    BATCH = 8,
    SIDE = 64 /* of an image, in pixels; 224 in the paper */
};

/* ---- the model ------------------------------------------------------------------------------- */

/* A convolution whose output is as large as its input, or half as large with a stride of 2. Batch
 * norm follows each one and subtracts the mean, so it needs no bias. */
static tn_module *conv(int in, int out, int kernel, int stride)
{
    const tn_conv_options o = { .stride = stride, .padding = kernel / 2, .no_bias = true };
    return tn_conv2d_new(in, out, kernel, o);
}

static tn_module *norm(int channels)
{
    return tn_batch_norm2d_new(channels, (tn_batch_norm_options){ 0 });
}

/* y = relu(x + two convolutions of x): they learn what to change, and gradients pass by them. */
typedef struct block {
    tn_module base; /* every module's struct begins with this */
    tn_module *conv1, *bn1, *conv2, *bn2;
    tn_module *downsample; /* x in y's shape; NULL where it has it already */
} block;

static tn_tensor *block_forward(tn_module *self, tn_tensor *x)
{
    block *m = (block *)self;
    tn_tensor *y = tn_relu(tn_forward(m->bn1, tn_forward(m->conv1, x)));
    y = tn_forward(m->bn2, tn_forward(m->conv2, y));
    return tn_relu(tn_add(y, m->downsample ? tn_forward(m->downsample, x) : x));
}

static tn_module *block_new(int in, int out, int stride)
{
    static const tn_module_type type = { .name = "BasicBlock",
                                         .size = sizeof(block),
                                         .forward = block_forward };
    block *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "conv1", &m->conv1, conv(in, out, 3, stride));
    tn_register_module(&m->base, "bn1", &m->bn1, norm(out));
    tn_register_module(&m->base, "conv2", &m->conv2, conv(out, out, 3, 1));
    tn_register_module(&m->base, "bn2", &m->bn2, norm(out));
    if (stride != 1 || in != out)
        tn_register_module(&m->base, "downsample", &m->downsample,
                           tn_sequential(conv(in, out, 1, stride), norm(out)));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

typedef struct resnet {
    tn_module base;
    tn_module *conv1, *bn1, *layer[4], *fc;
} resnet;

/* x [N, 3, SIDE, SIDE] -> [N, CLASSES]: a score for each class */
static tn_tensor *resnet_forward(tn_module *self, tn_tensor *x)
{
    const tn_pool_spec pool = { .kernel = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 } };
    resnet *m = (resnet *)self;
    x = tn_relu(tn_forward(m->bn1, tn_forward(m->conv1, x)));
    x = tn_max_pool2d(x, pool); /* [N, WIDTH, SIDE / 4, SIDE / 4] */
    for (int i = 0; i < 4; i++) x = tn_forward(m->layer[i], x);
    x = tn_adaptive_avg_pool2d(x, 1, 1); /* the mean of each channel */
    return tn_forward(m->fc, tn_flatten(x, 1, -1));
}

static tn_module *resnet_new(void)
{
    static const tn_module_type type = { .name = "ResNet",
                                         .size = sizeof(resnet),
                                         .forward = resnet_forward };
    static const char *const names[] = { "layer1", "layer2", "layer3", "layer4" };
    resnet *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "conv1", &m->conv1, conv(3, WIDTH, 7, 2));
    tn_register_module(&m->base, "bn1", &m->bn1, norm(WIDTH));
    for (int i = 0, in = WIDTH; i < 4; i++) { /* each stage has twice the channels of the last */
        int out = WIDTH << i;
        tn_register_module(&m->base, names[i], &m->layer[i],
                           tn_sequential(block_new(in, out, i ? 2 : 1), block_new(out, out, 1)));
        in = out;
    }
    tn_register_module(&m->base, "fc", &m->fc,
                       tn_linear_new(8 * WIDTH, CLASSES, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}

/* ---- training -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    char *end = "";
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20;
    if (argc > 2 || steps < 1 || *end) return fprintf(stderr, "usage: resnet18 [STEPS]\n"), 2;

    /* f64: in f32, which real training takes, many batch norms in a row enlarge rounding errors, so
     * that the losses of two machines would soon differ in their fourth digit */
    TN_CHECK(tn_set_default_dtype(TN_F64));
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = resnet_new();
    tn_sgd_options options = { .lr = 0.001, .momentum = 0.9 };
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
    return fflush(stdout) ? perror("resnet18: standard output"), 1 : 0;
}
