/* linear.c - y = x W^T + b, and what adapters add (lora.c) */
#include "nn/layers/layer.h"

TNI_ONE_OP_RESET(tn_linear, "Linear", tni_linear, tni_reset_affine,
                 tni_lora_forward(self, x, m->weight, m->bias), "%" PRId64 ", %" PRId64 "%s", m->in,
                 m->out, tni_none(m->bias) ? ", no bias" : "")

bool tni_is_linear(const tn_module *m)
{
    return m && m->type == &tn_linear_type;
}

tn_module *tn_linear_new(int64_t in_features, int64_t out_features, tn_linear_options o)
{
    if (tni_at_least("tn_linear_new", "in_features", in_features, 1) != TN_OK ||
        tni_at_least("tn_linear_new", "out_features", out_features, 1) != TN_OK)
        return NULL;
    tni_linear *m = tn_module_new(&tn_linear_type);
    if (!m) return NULL;
    m->in = in_features, m->out = out_features;
    tn_register_parameter(&m->base, "weight", &m->weight,
                          tn_empty(TN_SHAPE(out_features, in_features)));
    tn_register_parameter(&m->base, "bias", &m->bias,
                          o.no_bias ? TN_NONE : tn_empty(TN_SHAPE(out_features)));
    tni_reset_affine(&m->base);
    return tn_module_done(&m->base);
}
