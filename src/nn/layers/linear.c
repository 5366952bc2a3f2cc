/* linear.c - y = x W^T + b */
#include "nn/layers/layer.h"

typedef struct linear {
    tn_module base;
    tn_tensor *weight, *bias; /* [out, in], [out] or absent */
    int64_t in, out;
} linear;

static tn_tensor *linear_forward(tn_module *self, tn_tensor *x)
{
    linear *m = (linear *)self;
    return tn_linear(x, m->weight, m->bias);
}

static void linear_describe(const tn_module *self, char *text, size_t size)
{
    const linear *m = (const linear *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64 "%s", m->in, m->out,
             tni_none(m->bias) ? ", no bias" : "");
}

const tn_module_type tni_linear_type = {
    .name = "Linear",
    .size = sizeof(linear),
    .forward = linear_forward,
    .describe = linear_describe,
    .reset = tni_reset_affine,
};

tn_module *tn_linear_new(int64_t in_features, int64_t out_features, tn_linear_options o)
{
    if (tni_at_least("tn_linear_new", "in_features", in_features, 1) != TN_OK ||
        tni_at_least("tn_linear_new", "out_features", out_features, 1) != TN_OK)
        return NULL;
    linear *m = tn_module_new(&tni_linear_type);
    if (!m) return NULL;
    m->in = in_features;
    m->out = out_features;
    tn_register_parameter(&m->base, "weight", &m->weight,
                          tn_empty(TN_SHAPE(out_features, in_features)));
    tn_register_parameter(&m->base, "bias", &m->bias,
                          o.no_bias ? TN_NONE : tn_empty(TN_SHAPE(out_features)));
    tni_reset_affine(&m->base);
    return tn_module_done(&m->base);
}
