/*
 * conv.c - cross-correlations and their transposes, of one, two and three axes: one struct for all,
 * whose type says which.
 */
#include "autograd/ops/conv.h"
#include "nn/layers/layer.h"

typedef struct conv {
    tn_module base;
    tn_tensor *weight, *bias; /* [out, in/groups, k...]; transposed [in, out/groups, k...] */
    tn_conv_spec spec;        /* of as many axes as the type has */
    int64_t in, out, kernel[3];
} conv;

/* A type, and what it computes. */
typedef struct kind {
    tn_module_type type;
    tn_tensor *(*op)(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_conv_spec spec);
    int axes;
    bool transposed;
} kind;

static const kind *kind_of(const tn_module *m)
{
    return (const kind *)m->type;
}

static tn_tensor *conv_forward(tn_module *self, tn_tensor *x)
{
    conv *m = (conv *)self;
    return kind_of(self)->op(x, m->weight, m->bias, m->spec);
}

/* Adds ", name 3" to the text, or ", name 3x1" where the axes differ; nothing if all are usual. */
static void add_sizes(char *text, size_t size, const char *name, const int64_t *sizes, int axes,
                      int64_t usual)
{
    bool differ = false, is_usual = true;
    for (int i = 0; i < axes; i++) {
        differ |= sizes[i] != sizes[0];
        is_usual &= sizes[i] == usual;
    }
    if (is_usual) return;
    tni_text_add(text, size, ", %s%" PRId64, name, sizes[0]);
    for (int i = 1; differ && i < axes; i++) tni_text_add(text, size, "x%" PRId64, sizes[i]);
}

static void conv_describe(const tn_module *self, char *text, size_t size)
{
    static const char *const modes[] = { "zeros", "reflect", "replicate", "circular" };
    const conv *m = (const conv *)self;
    const tn_conv_spec *s = &m->spec;
    int axes = kind_of(self)->axes;
    snprintf(text, size, "%" PRId64 ", %" PRId64, m->in, m->out);
    add_sizes(text, size, "", m->kernel, axes, 0);
    add_sizes(text, size, "stride ", s->stride, axes, 1);
    add_sizes(text, size, "padding ", s->padding, axes, 0);
    add_sizes(text, size, "at the end ", s->padding_end, axes, s->use_padding_end ? -1 : 0);
    if (s->same) tni_text_add(text, size, ", padding same");
    if (s->padding_mode) tni_text_add(text, size, ", %s", modes[s->padding_mode]);
    add_sizes(text, size, "output padding ", s->output_padding, axes, 0);
    add_sizes(text, size, "dilation ", s->dilation, axes, 1);
    if (s->groups != 1) tni_text_add(text, size, ", groups %" PRId64, s->groups);
    if (tni_none(m->bias)) tni_text_add(text, size, ", no bias");
}

static tn_module *make(const char *function, const kind *kind, int64_t in, int64_t out,
                       const int64_t *kernel, tn_conv_spec spec, bool no_bias)
{
    int64_t groups = tni_or_int(spec.groups, 1);
    if (tni_at_least(function, "in_channels", in, 1) != TN_OK ||
        tni_at_least(function, "out_channels", out, 1) != TN_OK ||
        tni_check_conv(function + strlen("tn_"), &spec, kind->axes, kind->transposed) != TN_OK)
        return NULL;
    if (in % groups || out % groups)
        return tni_fail(TN_E_INVALID,
                        "%s: groups %" PRId64 " for %" PRId64 " input and %" PRId64
                        " output channels: want a divisor of both",
                        function, groups, in, out);
    int64_t first = kind->transposed ? in : out, second = kind->transposed ? out : in;
    tn_shape shape = { kind->axes + 2, { first, second / groups } };
    for (int i = 0; i < kind->axes; i++) {
        if (tni_at_least(function, "kernel", kernel[i], 1) != TN_OK) return NULL;
        shape.size[2 + i] = kernel[i];
        spec.stride[i] = tni_or_int(spec.stride[i], 1);
        spec.dilation[i] = tni_or_int(spec.dilation[i], 1);
    }
    spec.groups = groups;
    conv *m = tn_module_new(&kind->type);
    if (!m) return NULL;
    m->in = in, m->out = out, m->spec = spec;
    memcpy(m->kernel, &shape.size[2], sizeof m->kernel);
    tn_register_parameter(&m->base, "weight", &m->weight, tn_empty(shape));
    tn_register_parameter(&m->base, "bias", &m->bias, no_bias ? TN_NONE : tn_empty(TN_SHAPE(out)));
    tni_reset_affine(&m->base);
    return tn_module_done(&m->base);
}

/* The same numbers for every axis. */
#define EACH(x)                                                                                    \
    {                                                                                              \
        x, x, x                                                                                    \
    }
#define LAYER(tn_name_new, OP, TYPE, axes_, transposed_)                                           \
    static const kind OP##_kind = { { .name = TYPE,                                                \
                                      .size = sizeof(conv),                                        \
                                      .forward = conv_forward,                                     \
                                      .describe = conv_describe,                                   \
                                      .reset = tni_reset_affine },                                 \
                                    OP,                                                            \
                                    axes_,                                                         \
                                    transposed_ };                                                 \
    tn_module *tn_name_new(int64_t in_channels, int64_t out_channels, int64_t kernel,              \
                           tn_conv_options o)                                                      \
    {                                                                                              \
        tn_conv_spec spec = { EACH(o.stride), EACH(o.padding),     EACH(o.dilation),               \
                              o.groups,       EACH(o.padding_end), o.use_padding_end,              \
                              o.same,         o.padding_mode,      EACH(o.output_padding) };       \
        return make(#tn_name_new, &OP##_kind, in_channels, out_channels, (int64_t[3])EACH(kernel), \
                    spec, o.no_bias);                                                              \
    }
LAYER(tn_conv1d_new, tn_conv1d, "Conv1d", 1, false)
LAYER(tn_conv2d_new, tn_conv2d, "Conv2d", 2, false)
LAYER(tn_conv3d_new, tn_conv3d, "Conv3d", 3, false)
LAYER(tn_conv_transpose1d_new, tn_conv_transpose1d, "ConvTranspose1d", 1, true)
LAYER(tn_conv_transpose2d_new, tn_conv_transpose2d, "ConvTranspose2d", 2, true)

#define OF_AXES(tn_name_new, OP)                                                                   \
    tn_module *tn_name_new(int64_t in_channels, int64_t out_channels, int64_t kernel_h,            \
                           int64_t kernel_w, tn_conv_spec spec, bool no_bias)                      \
    {                                                                                              \
        return make(#tn_name_new, &OP##_kind, in_channels, out_channels,                           \
                    (int64_t[]){ kernel_h, kernel_w }, spec, no_bias);                             \
    }
OF_AXES(tn_conv2d_spec_new, tn_conv2d)
OF_AXES(tn_conv_transpose2d_spec_new, tn_conv_transpose2d)

tn_module *tn_conv3d_spec_new(int64_t in_channels, int64_t out_channels, int64_t kernel_d,
                              int64_t kernel_h, int64_t kernel_w, tn_conv_spec spec, bool no_bias)
{
    return make("tn_conv3d_spec_new", &tn_conv3d_kind, in_channels, out_channels,
                (int64_t[]){ kernel_d, kernel_h, kernel_w }, spec, no_bias);
}
