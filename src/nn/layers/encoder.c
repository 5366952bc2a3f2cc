/*
 * encoder.c - a stack of equal layers and, optionally, a norm at the end; Vaswani et al. (2017),
 * sec. 3.1. The layers are copies of one, so they start with the same weights, as in PyTorch.
 */
#include "nn/layers/layer.h"

typedef struct encoder {
    tn_module base;
    tn_module *layers, *norm; /* norm: TN_NO_MODULE when absent */
} encoder;

/* A user's own layer takes no masks, so a given mask is an error. */
static tn_tensor *layer_forward(tn_module *layer, tn_tensor *x, tn_attention_masks masks)
{
    bool masked = masks.causal || !tni_none(masks.mask) || !tni_none(masks.key_padding);
    if (tni_is_encoder_layer(layer)) return tn_encoder_layer_forward(layer, x, masks);
    if (!masked) return tn_forward(layer, x);
    return tni_fail(TN_E_UNSUPPORTED,
                    "TransformerEncoder: masks for a %s: want layers made by "
                    "tn_encoder_layer_new, or no masks",
                    layer->type->name);
}

/* Each step has its own scope, so that its input is freed as soon as nothing needs it. */
static tn_tensor *stack_forward(const encoder *m, tn_tensor *x, tn_attention_masks masks)
{
    int n = tn_module_children(m->layers);
    tn_keep(x);
    for (int i = 0; x && i < n; i++) {
        tn_scope scope = tn_scope_begin();
        tn_module *layer = tn_module_child(m->layers, i);
        tn_tensor *y = scope.depth < 0 ? NULL : tn_keep(layer_forward(layer, x, masks));
        tn_scope_end(scope);
        tn_drop(x);
        x = y;
    }
    x = tn_scope_adopt(x);
    return tni_no_module(m->norm) ? x : tn_forward(m->norm, x);
}

/* in: x and, optionally, mask and key padding */
static tn_status encoder_forward_n(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                   tn_tensor **out)
{
    tn_attention_masks masks;
    tn_status status = tni_masks_of(self, n_in, in, n_out, &masks);
    if (status != TN_OK) return status;
    out[0] = stack_forward((const encoder *)self, in[0], masks);
    return out[0] ? TN_OK : tni_pending();
}

static const tn_module_type encoder_type = {
    .name = "TransformerEncoder",
    .size = sizeof(encoder),
    .forward_n = encoder_forward_n,
};

tn_module *tni_encoder_layers(const tn_module *m)
{
    return m->type == &encoder_type ? ((const encoder *)m)->layers : NULL;
}

tn_module *tn_encoder_new(tn_module *layer, int n, tn_module *norm)
{
    encoder *m = NULL;
    if (layer && layer == norm && layer->state && layer->state->refs < 2) {
        tni_error(TN_E_STATE,
                  "tn_encoder_new: layer and norm are one %s with one reference: want two "
                  "modules, or tn_module_keep",
                  layer->type->name);
        tn_module_drop(layer);
        return NULL;
    }
    if (layer && norm && tni_at_least("tn_encoder_new", "n", n, 0) == TN_OK &&
        tni_module_check("tn_encoder_new", layer) == TN_OK)
        m = tn_module_new(&encoder_type);
    else if (!layer || !norm)
        tni_poison("tn_encoder_new", layer ? "norm (TN_NO_MODULE for none)" : "layer");
    if (m) {
        tn_register_module(&m->base, "layers", &m->layers, tn_module_list_new());
        bool fits = m->layers != NULL;
        for (int i = 0; fits && i < n; i++)
            fits = tn_module_append(m->layers, tn_module_clone(layer)) == TN_OK;
        tn_register_module(&m->base, "norm", &m->norm, tn_module_keep(norm));
    }
    tn_module_drop(layer);
    tn_module_drop(norm);
    return m ? tn_module_done(&m->base) : NULL;
}

tn_tensor *tn_encoder_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks)
{
    return tni_masked_forward("tn_encoder_forward", &encoder_type, m, x, masks);
}
