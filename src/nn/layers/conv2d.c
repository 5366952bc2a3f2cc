/* conv2d.c - cross-correlation of images: y[n,o] = sum_c w[o,c] * x[n,c] + b[o] */
#include "nn/layers/layer.h"

typedef struct conv2d {
    tn_module base;
    tn_tensor *weight, *bias; /* [out, in/groups, kh, kw], [out] or absent */
    tn_conv2d_spec spec;
    int64_t in, out, kernel[2];
} conv2d;

static tn_tensor *conv2d_forward(tn_module *self, tn_tensor *x)
{
    conv2d *m = (conv2d *)self;
    return tn_conv2d(x, m->weight, m->bias, m->spec);
}

/* Adds ", name 3" to the text, or ", name 3x1" where the axes differ. */
static void add_pair(char *text, size_t size, const char *name, const int64_t pair[2])
{
    tni_text_add(text, size, ", %s%" PRId64, name, pair[0]);
    if (pair[1] != pair[0]) tni_text_add(text, size, "x%" PRId64, pair[1]);
}

static void conv2d_describe(const tn_module *self, char *text, size_t size)
{
    const conv2d *m = (const conv2d *)self;
    const tn_conv2d_spec *s = &m->spec;
    const struct {
        const char *name;
        const int64_t *pair;
        int64_t usual;
    } option[] = { { "stride ", s->stride, 1 },
                   { "padding ", s->padding, 0 },
                   { "dilation ", s->dilation, 1 } };
    snprintf(text, size, "%" PRId64 ", %" PRId64, m->in, m->out);
    add_pair(text, size, "", m->kernel);
    for (size_t i = 0; i < sizeof option / sizeof *option; i++)
        if (option[i].pair[0] != option[i].usual || option[i].pair[1] != option[i].usual)
            add_pair(text, size, option[i].name, option[i].pair);
    if (s->same) tni_text_add(text, size, ", padding same");
    if (s->groups != 1) tni_text_add(text, size, ", groups %" PRId64, s->groups);
    if (tni_none(m->bias)) tni_text_add(text, size, ", no bias");
}

static const tn_module_type conv2d_type = {
    .name = "Conv2d",
    .size = sizeof(conv2d),
    .forward = conv2d_forward,
    .describe = conv2d_describe,
    .reset = tni_reset_affine,
};

static tn_status check(const char *function, int64_t in, int64_t out, const int64_t kernel[2],
                       const tn_conv2d_spec *s)
{
    const struct {
        const char *name;
        int64_t value, least;
    } wanted[] = {
        { "in_channels", in, 1 },          { "out_channels", out, 1 },
        { "kernel", kernel[0], 1 },        { "kernel", kernel[1], 1 },
        { "stride", s->stride[0], 0 },     { "stride", s->stride[1], 0 },
        { "padding", s->padding[0], 0 },   { "padding", s->padding[1], 0 },
        { "dilation", s->dilation[0], 0 }, { "dilation", s->dilation[1], 0 },
        { "groups", s->groups, 0 },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (tni_at_least(function, wanted[i].name, wanted[i].value, wanted[i].least) != TN_OK)
            return TN_E_INVALID;
    int64_t groups = tni_or_int(s->groups, 1);
    if (in % groups || out % groups)
        return tni_error(TN_E_INVALID,
                         "%s: groups %" PRId64 " for %" PRId64 " input and %" PRId64
                         " output channels: want a divisor of both",
                         function, groups, in, out);
    bool strided = s->stride[0] > 1 || s->stride[1] > 1;
    if (s->same && (strided || s->padding[0] || s->padding[1]))
        return tni_error(TN_E_INVALID, "%s: same with a %s: want stride 1 and no padding", function,
                         strided ? "stride" : "padding");
    return TN_OK;
}

static tn_module *make(const char *function, int64_t in, int64_t out, const int64_t kernel[2],
                       tn_conv2d_spec spec, bool no_bias)
{
    if (check(function, in, out, kernel, &spec) != TN_OK) return NULL;
    conv2d *m = tn_module_new(&conv2d_type);
    if (!m) return NULL;
    m->in = in;
    m->out = out;
    m->spec = spec;
    m->spec.groups = tni_or_int(spec.groups, 1);
    for (int i = 0; i < 2; i++) {
        m->kernel[i] = kernel[i];
        m->spec.stride[i] = tni_or_int(spec.stride[i], 1);
        m->spec.dilation[i] = tni_or_int(spec.dilation[i], 1);
    }
    tn_shape shape = TN_SHAPE(out, in / m->spec.groups, kernel[0], kernel[1]);
    tn_register_parameter(&m->base, "weight", &m->weight, tn_empty(shape));
    tn_register_parameter(&m->base, "bias", &m->bias, no_bias ? TN_NONE : tn_empty(TN_SHAPE(out)));
    tni_reset_affine(&m->base);
    return tn_module_done(&m->base);
}

tn_module *tn_conv2d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                         tn_conv2d_options o)
{
    tn_conv2d_spec spec = { .stride = { o.stride, o.stride },
                            .padding = { o.padding, o.padding },
                            .dilation = { o.dilation, o.dilation },
                            .groups = o.groups,
                            .same = o.same };
    return make("tn_conv2d_new", in_channels, out_channels, (int64_t[]){ kernel, kernel }, spec,
                o.no_bias);
}

tn_module *tn_conv2d_spec_new(int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                              int64_t kernel_w, tn_conv2d_spec spec, bool no_bias)
{
    return make("tn_conv2d_spec_new", in_channels, out_channels, (int64_t[]){ kernel_h, kernel_w },
                spec, no_bias);
}
