/* conv2d.c - cross-correlation of images: y[n,o] = sum_c w[o,c] * x[n,c] + b[o] */
#include "nn/layers/layer.h"

typedef struct conv2d {
    tn_module base;
    tn_tensor *weight, *bias; /* [out, in/groups, k, k], [out] or absent */
    tn_conv2d_spec spec;
    int64_t in, out, kernel;
} conv2d;

static tn_tensor *conv2d_forward(tn_module *self, tn_tensor *x)
{
    conv2d *m = (conv2d *)self;
    return tn_conv2d(x, m->weight, m->bias, m->spec);
}

static void conv2d_describe(const tn_module *self, char *text, size_t size)
{
    const conv2d *m = (const conv2d *)self;
    const struct {
        const char *name;
        int64_t value, usual;
    } option[] = {
        { "stride", m->spec.stride[0], 1 },
        { "padding", m->spec.padding[0], 0 },
        { "dilation", m->spec.dilation[0], 1 },
        { "groups", m->spec.groups, 1 },
    };
    size_t n = (size_t)snprintf(text, size, "%" PRId64 ", %" PRId64 ", %" PRId64, m->in, m->out,
                                m->kernel);
    for (size_t i = 0; i < sizeof option / sizeof *option && n < size; i++)
        if (option[i].value != option[i].usual)
            n += (size_t)snprintf(text + n, size - n, ", %s %" PRId64, option[i].name,
                                  option[i].value);
    if (tni_none(m->bias) && n < size) snprintf(text + n, size - n, ", no bias");
}

static tn_status conv2d_reset(tn_module *self)
{
    conv2d *m = (conv2d *)self;
    return tni_reset_affine(m->weight, m->bias);
}

static const tn_module_type conv2d_type = {
    .name = "Conv2d",
    .size = sizeof(conv2d),
    .forward = conv2d_forward,
    .describe = conv2d_describe,
    .reset = conv2d_reset,
};

static tn_status check(int64_t in, int64_t out, int64_t kernel, const tn_conv2d_options *o)
{
    static const char function[] = "tn_conv2d_new";
    const struct {
        const char *name;
        int64_t value, least;
    } wanted[] = {
        { "in_channels", in, 1 },   { "out_channels", out, 1 },   { "kernel", kernel, 1 },
        { "stride", o->stride, 0 }, { "padding", o->padding, 0 }, { "dilation", o->dilation, 0 },
        { "groups", o->groups, 0 },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (tni_at_least(function, wanted[i].name, wanted[i].value, wanted[i].least) != TN_OK)
            return TN_E_INVALID;
    int64_t groups = tni_or_int(o->groups, 1);
    if (in % groups || out % groups)
        return tni_error(TN_E_INVALID,
                         "%s: groups %" PRId64 " for %" PRId64 " input and %" PRId64
                         " output channels: want a divisor of both",
                         function, groups, in, out);
    return TN_OK;
}

tn_module *tn_conv2d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                         tn_conv2d_options o)
{
    if (check(in_channels, out_channels, kernel, &o) != TN_OK) return NULL;
    conv2d *m = tn_module_new(&conv2d_type);
    if (!m) return NULL;
    m->in = in_channels;
    m->out = out_channels;
    m->kernel = kernel;
    m->spec.groups = tni_or_int(o.groups, 1);
    for (int i = 0; i < 2; i++) {
        m->spec.stride[i] = tni_or_int(o.stride, 1);
        m->spec.padding[i] = o.padding;
        m->spec.dilation[i] = tni_or_int(o.dilation, 1);
    }
    tn_shape shape = TN_SHAPE(out_channels, in_channels / m->spec.groups, kernel, kernel);
    tn_register_parameter(&m->base, "weight", &m->weight, tn_empty(shape));
    tn_register_parameter(&m->base, "bias", &m->bias,
                          o.no_bias ? TN_NONE : tn_empty(TN_SHAPE(out_channels)));
    conv2d_reset(&m->base);
    return tn_module_done(&m->base);
}
