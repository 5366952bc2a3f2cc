/* layernorm.c - y = w (x - mean) / sqrt(var + eps) + b over the trailing axes; Ba et al. (2016),
 * eq. 4. RMSNorm: the same without mean and b. GroupNorm: over groups of channels. */
#include <limits.h>

#include "nn/layers/layer.h"

typedef struct layernorm {
    tn_module base;
    tn_tensor *weight, *bias;
    tn_shape shape; /* of weight; of GroupNorm, its channels */
    int64_t groups; /* of GroupNorm */
    double eps;
} layernorm;

enum { LAYER, RMS, GROUP };
static const tn_module_type types[3];

static tn_tensor *layernorm_forward(tn_module *self, tn_tensor *x)
{
    layernorm *m = (layernorm *)self;
    if (m->groups)
        return tni_check_channels(self, x, m->shape.size[0], 2, TN_MAX_RANK) == TN_OK
                   ? tn_group_norm(x, (int)m->groups, m->weight, m->bias, m->eps)
                   : NULL;
    int lead = x->shape.rank - m->shape.rank;
    bool fits = !tni_none(x) && lead >= 0;
    for (int i = 0; fits && i < m->shape.rank; i++)
        fits = x->shape.size[lead + i] == m->shape.size[i];
    if (!fits)
        return tni_fail(TN_E_SHAPE, "%s: x %s: want the trailing axes %s", self->type->name,
                        tni_none(x) ? "is absent" : tni_text(x), tni_shape_text(&m->shape));
    if (self->type == &types[RMS]) return tn_rms_norm(x, m->shape.rank, m->weight, m->eps);
    return tn_layer_norm(x, m->shape.rank, m->weight, m->bias, m->eps);
}

static void layernorm_describe(const tn_module *self, char *text, size_t size)
{
    const layernorm *m = (const layernorm *)self;
    if (m->groups)
        snprintf(text, size, "%" PRId64 ", %" PRId64, m->groups, m->shape.size[0]);
    else
        snprintf(text, size, "%s", tni_shape_text(&m->shape));
    tni_text_add(text, size, m->eps < 0 ? ", eps of the dtype" : ", eps %g", m->eps);
    if (tni_none(m->weight))
        tni_text_add(text, size, ", no affine");
    else if (tni_none(m->bias) && self->type != &types[RMS])
        tni_text_add(text, size, ", no bias");
}

#define TYPE(text)                                                                                 \
    {                                                                                              \
        .name = (text), .size = sizeof(layernorm), .forward = layernorm_forward,                   \
        .describe = layernorm_describe, .reset = tni_reset_norm, .no_decay = true                  \
    }
static const tn_module_type types[3] = { TYPE("LayerNorm"), TYPE("RMSNorm"), TYPE("GroupNorm") };

/* eps: where the options have 0. */
static tn_module *layernorm_new(const char *function, int type, int64_t groups, tn_shape shape,
                                double eps, tn_layer_norm_options o)
{
    TNI_HOLD_TRAPS;
    if (shape.rank < 1 || tni_shape_numel(&shape) < 1)
        return tni_fail(TN_E_SHAPE, "%s: shape %s: want 1 to %d axes, sizes of 1 and up", function,
                        tni_shape_text(&shape), TN_MAX_RANK);
    if (tni_check_eps(function, o.eps) != TN_OK) return NULL;
    layernorm *m = tn_module_new(&types[type]);
    if (!m) return NULL;
    m->shape = shape;
    m->groups = groups;
    m->eps = tni_given(o.eps, o.use_eps, eps);
    m->bias = TN_NONE;
    tn_register_parameter(&m->base, "weight", &m->weight, o.no_affine ? TN_NONE : tn_ones(shape));
    if (type != RMS)
        tn_register_parameter(&m->base, "bias", &m->bias,
                              o.no_affine || o.no_bias ? TN_NONE : tn_zeros(shape));
    return tn_module_done(&m->base);
}

tn_module *tn_layer_norm_new(tn_shape shape, tn_layer_norm_options o)
{
    return layernorm_new("tn_layer_norm_new", LAYER, 0, shape, 1e-5, o);
}

tn_module *tn_rms_norm_new(tn_shape shape, tn_rms_norm_options o)
{
    tn_layer_norm_options all = { .eps = o.eps, .no_affine = o.no_affine, .use_eps = o.use_eps };
    return layernorm_new("tn_rms_norm_new", RMS, 0, shape, -1, all);
}

tn_module *tn_group_norm_new(int64_t groups, int64_t channels, tn_layer_norm_options o)
{
    if (groups < 1 || groups > INT_MAX || channels < 1 || channels % groups != 0)
        return tni_fail(TN_E_INVALID,
                        "%s: %" PRId64 " groups of %" PRId64 " channels: want groups "
                        "that divide them",
                        __func__, groups, channels);
    return layernorm_new(__func__, GROUP, groups, TN_SHAPE(channels), 1e-5, o);
}
