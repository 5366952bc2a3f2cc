/* layernorm.c - y = w (x - mean) / sqrt(var + eps) + b over the trailing axes; Ba et al. (2016),
 * eq. 4 */
#include "nn/layers/layer.h"

typedef struct layernorm {
    tn_module base;
    tn_tensor *weight, *bias;
    tn_shape shape;
    double eps;
} layernorm;

static tn_tensor *layernorm_forward(tn_module *self, tn_tensor *x)
{
    layernorm *m = (layernorm *)self;
    int lead = x->shape.rank - m->shape.rank;
    bool fits = !tni_none(x) && lead >= 0;
    for (int i = 0; fits && i < m->shape.rank; i++)
        fits = x->shape.size[lead + i] == m->shape.size[i];
    if (!fits)
        return tni_fail(TN_E_SHAPE, "LayerNorm: x %s: want the trailing axes %s",
                        tni_none(x) ? "is absent" : tni_text(x), tni_shape_text(&m->shape));
    return tn_layer_norm(x, m->shape.rank, m->weight, m->bias, m->eps);
}

static void layernorm_describe(const tn_module *self, char *text, size_t size)
{
    const layernorm *m = (const layernorm *)self;
    snprintf(text, size, "%s, eps %g%s", tni_shape_text(&m->shape), m->eps,
             tni_none(m->weight) ? ", no affine"
             : tni_none(m->bias) ? ", no bias"
                                 : "");
}

static const tn_module_type layernorm_type = {
    .name = "LayerNorm",
    .size = sizeof(layernorm),
    .forward = layernorm_forward,
    .describe = layernorm_describe,
    .reset = tni_reset_norm,
    .no_decay = true,
};

tn_module *tn_layer_norm_new(tn_shape shape, tn_layer_norm_options o)
{
    TNI_HOLD_TRAPS;
    if (shape.rank < 1 || tni_shape_numel(&shape) < 1)
        return tni_fail(TN_E_SHAPE,
                        "tn_layer_norm_new: shape %s: want 1 to %d axes, sizes of 1 and up",
                        tni_shape_text(&shape), TN_MAX_RANK);
    if (tni_check_eps("tn_layer_norm_new", o.eps) != TN_OK) return NULL;
    layernorm *m = tn_module_new(&layernorm_type);
    if (!m) return NULL;
    m->shape = shape;
    m->eps = tni_given(o.eps, o.use_eps, 1e-5);
    tn_register_parameter(&m->base, "weight", &m->weight, o.no_affine ? TN_NONE : tn_ones(shape));
    tn_register_parameter(&m->base, "bias", &m->bias,
                          o.no_affine || o.no_bias ? TN_NONE : tn_zeros(shape));
    return tn_module_done(&m->base);
}
