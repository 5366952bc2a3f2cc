/* prelu.c - y = x above 0, else w x, with one w or one for each channel. He et al. (2015) */
#include "nn/layers/layer.h"

typedef struct prelu {
    tn_module base;
    tn_tensor *weight; /* [n] */
    int64_t n;
    double first;
} prelu;

static tn_tensor *prelu_forward(tn_module *self, tn_tensor *x)
{
    return tn_prelu(x, ((prelu *)self)->weight);
}

static void prelu_describe(const tn_module *self, char *text, size_t size)
{
    const prelu *m = (const prelu *)self;
    snprintf(text, size, "%" PRId64 ", from %g", m->n, m->first);
}

static tn_status prelu_reset(tn_module *self)
{
    prelu *m = (prelu *)self;
    return tn_init_constant(m->weight, m->first);
}

static const tn_module_type prelu_type = {
    .name = "PReLU",
    .size = sizeof(prelu),
    .forward = prelu_forward,
    .describe = prelu_describe,
    .reset = prelu_reset,
};

tn_module *tn_prelu_new(int64_t n, double first)
{
    if (tni_at_least("tn_prelu_new", "n", n, 1) != TN_OK) return NULL;
    prelu *m = tn_module_new(&prelu_type);
    if (!m) return NULL;
    m->n = n;
    m->first = first;
    tn_register_parameter(&m->base, "weight", &m->weight, tn_full(TN_SHAPE(n), first));
    return tn_module_done(&m->base);
}
