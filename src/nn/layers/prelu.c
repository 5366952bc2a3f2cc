/* prelu.c - y = x above 0, else w x, with one w or one for each channel. He et al. (2015) */
#include "nn/layers/layer.h"

typedef struct prelu {
    tn_module base;
    tn_tensor *weight; /* [n] */
    int64_t n;
    double first;
} prelu;

static tn_status prelu_reset(tn_module *self)
{
    return tn_init_constant(((prelu *)self)->weight, ((prelu *)self)->first);
}

TNI_ONE_OP_RESET(tn_prelu, "PReLU", prelu, prelu_reset, tn_prelu(x, m->weight),
                 "%" PRId64 ", from %g", m->n, m->first)
tn_module *tn_prelu_new(int64_t n, double first)
{
    if (tni_at_least("tn_prelu_new", "n", n, 1) != TN_OK) return NULL;
    prelu *m = tn_module_new(&tn_prelu_type);
    if (!m) return NULL;
    m->n = n, m->first = first;
    tn_register_parameter(&m->base, "weight", &m->weight, tn_full(TN_SHAPE(n), first));
    return tn_module_done(&m->base);
}
