/* net.c - see net.h */
#include "net.h"

typedef struct net {
    tn_module base;
    tn_tensor *mean, *deviation;
    tn_module *conv1, *bn1, *blocks1, *conv2, *bn2, *blocks2, *fc1, *fc2;
} net;

static tn_tensor *half(tn_tensor *x)
{
    return tn_max_pool2d(x, (tn_pool2d_spec){ .kernel = { 2, 2 } });
}

/* x + block(x), one block after the other; blocks may be NULL. */
static tn_tensor *residual(tn_module *blocks, tn_tensor *x)
{
    for (int i = 0; blocks && i < tn_module_children(blocks); i++)
        x = tn_add(x, tn_forward(tn_module_child(blocks, i), x));
    return x;
}

static tn_tensor *net_forward(tn_module *self, tn_tensor *x)
{
    net *m = (net *)self;
    x = tn_div(tn_sub(x, m->mean), m->deviation); /* bytes become floats here */
    x = half(tn_relu(tn_forward(m->bn1, tn_forward(m->conv1, x))));
    x = residual(m->blocks1, x); /* [N, 32, 14, 14] */
    x = half(tn_relu(tn_forward(m->bn2, tn_forward(m->conv2, x))));
    x = residual(m->blocks2, x); /* [N, 64, 7, 7] */
    x = tn_relu(tn_forward(m->fc1, tn_flatten(x, 1, -1)));
    return tn_forward(m->fc2, x);
}

static const tn_module_type net_type = {
    .name = "Net",
    .size = sizeof(net),
    .forward = net_forward,
};

static tn_module *blocks_new(int n, int channels)
{
    const tn_conv2d_options pad = { .padding = 1, .no_bias = true };
    tn_module *blocks = tn_module_list_new();
    for (int i = 0; i < n; i++)
        tn_module_append(blocks,
                         tn_sequential(tn_conv2d_new(channels, channels, 3, pad),
                                       tn_batch_norm2d_new(channels, (tn_batch_norm_options){ 0 }),
                                       tn_relu_new()));
    return blocks;
}

tn_module *net_new(double mean, double deviation, int blocks)
{
    const tn_conv2d_options pad = { .padding = 1 };
    const tn_batch_norm_options norm = { 0 };
    const tn_linear_options linear = { 0 };
    net *m = tn_module_new(&net_type);
    if (!m) return NULL;
    tn_register_buffer(&m->base, "mean", &m->mean, tn_full(TN_SHAPE(1), mean), TN_PERSISTENT);
    tn_register_buffer(&m->base, "deviation", &m->deviation, tn_full(TN_SHAPE(1), deviation),
                       TN_PERSISTENT);
    tn_register_module(&m->base, "conv1", &m->conv1, tn_conv2d_new(1, 32, 3, pad));
    tn_register_module(&m->base, "bn1", &m->bn1, tn_batch_norm2d_new(32, norm));
    if (blocks > 0) tn_register_module(&m->base, "blocks1", &m->blocks1, blocks_new(blocks, 32));
    tn_register_module(&m->base, "conv2", &m->conv2, tn_conv2d_new(32, 64, 3, pad));
    tn_register_module(&m->base, "bn2", &m->bn2, tn_batch_norm2d_new(64, norm));
    if (blocks > 0) tn_register_module(&m->base, "blocks2", &m->blocks2, blocks_new(blocks, 64));
    tn_register_module(&m->base, "fc1", &m->fc1, tn_linear_new(3136, 128, linear));
    tn_register_module(&m->base, "fc2", &m->fc2, tn_linear_new(128, 10, linear));
    return tn_module_done(&m->base);
}
