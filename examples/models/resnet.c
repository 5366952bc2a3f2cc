/* resnet.c - see resnet.h */
#include "resnet.h"

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

/* x [N, 3, H, W] -> [N, classes]: a score for each class */
static tn_tensor *resnet_forward(tn_module *self, tn_tensor *x)
{
    const tn_pool_spec pool = { .kernel = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 } };
    resnet *m = (resnet *)self;
    x = tn_relu(tn_forward(m->bn1, tn_forward(m->conv1, x)));
    x = tn_max_pool2d(x, pool); /* [N, width, H / 4, W / 4] */
    for (int i = 0; i < 4; i++) x = tn_forward(m->layer[i], x);
    x = tn_adaptive_avg_pool2d(x, 1, 1); /* the mean of each channel */
    return tn_forward(m->fc, tn_flatten(x, 1, -1));
}

tn_module *resnet_new(int width, int classes)
{
    static const tn_module_type type = { .name = "ResNet",
                                         .size = sizeof(resnet),
                                         .forward = resnet_forward };
    static const char *const names[] = { "layer1", "layer2", "layer3", "layer4" };
    resnet *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(&m->base, "conv1", &m->conv1, conv(3, width, 7, 2));
    tn_register_module(&m->base, "bn1", &m->bn1, norm(width));
    for (int i = 0, in = width; i < 4; i++) { /* each stage has twice the channels of the last */
        int out = width << i;
        tn_register_module(&m->base, names[i], &m->layer[i],
                           tn_sequential(block_new(in, out, i ? 2 : 1), block_new(out, out, 1)));
        in = out;
    }
    tn_register_module(&m->base, "fc", &m->fc,
                       tn_linear_new(8 * width, classes, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}
