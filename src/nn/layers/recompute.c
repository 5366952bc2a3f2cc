/*
 * recompute.c - modules whose calls are made again in backward, instead of keeping what their ops
 * need (autograd/recompute.h). The module of a call lives as long as that may happen.
 */
#include "autograd/recompute.h"
#include "nn/layers/layer.h"

typedef struct again {
    tn_module *module; /* counted */
    tni_attention_options options;
} again;

static tn_status call_again(int n_in, tn_tensor *const *in, int n_out, tn_tensor **out, void *user)
{
    const again *a = user;
    return tni_call_once(a->module, n_in, in, n_out, out, &a->options);
}

static void again_free(void *user)
{
    again *a = user;
    tn_module_drop(a->module);
    tni_free(a, sizeof *a);
}

tn_status tni_call_with(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                        const tni_attention_options *options)
{
    bool recompute = m && !tni_gone(m) && m->state && m->state->recompute && tn_grad_enabled();
    if (TNI_LIKELY(!recompute)) return tni_call_once(m, n_in, in, n_out, out, options);
    tn_status status = tni_call_check(m, n_in, in, n_out, out);
    again *a = status == TN_OK ? tni_alloc(sizeof *a) : NULL;
    for (int i = 0; !a && out && i < n_out; i++) out[i] = NULL;
    if (!a) return status == TN_OK ? TN_E_NOMEM : status;
    *a = (again){ tn_module_keep(m),
                  options ? *options : (tni_attention_options){ .causal = false } };
    return tni_recompute(call_again, a, again_free, n_in, in, n_out, out);
}

/* The module whose children are meant: an encoder's layers, or one without forward; NULL: m is. */
static tn_module *list_of(tn_module *m)
{
    tn_module *layers = tni_encoder_layers(m);
    return layers ? layers : m->type->forward || m->type->forward_n ? NULL : m;
}

tn_status tn_module_set_recompute(tn_module *m, bool on)
{
    TNI_TRY(tni_module_check("tn_module_set_recompute", m));
    tn_module *list = list_of(m);
    if (!list) m->state->recompute = on;
    for (int i = 0; list && i < tn_module_children(list); i++)
        if (!tni_no_module(tn_module_child(list, i)))
            TNI_TRY(tn_module_set_recompute(tn_module_child(list, i), on));
    return TN_OK;
}

bool tn_module_recompute(tn_module *m)
{
    if (tni_module_check("tn_module_recompute", m) != TN_OK) return false;
    tn_module *list = list_of(m);
    bool all = list && tn_module_children(list) > 0;
    for (int i = 0; all && i < tn_module_children(list); i++)
        all = tni_no_module(tn_module_child(list, i)) ||
              tn_module_recompute(tn_module_child(list, i));
    return list ? all : m->state->recompute;
}
