/*
 * recompute.c - which modules' calls are made again in backward. The calls are call.c's.
 */
#include "nn/layers/layer.h"

tn_status tn_module_set_recompute(tn_module *m, bool on)
{
    tn_status status = tni_module_check("tn_module_set_recompute", m);
    if (status != TN_OK) return status;
    tn_module *list = tni_encoder_layers(m);
    if (!list && (m->type->forward || m->type->forward_n)) {
        m->state->recompute = on;
        return TN_OK;
    }
    if (!list) list = m;
    for (int i = 0; status == TN_OK && i < tn_module_children(list); i++)
        if (!tni_no_module(tn_module_child(list, i)))
            status = tn_module_set_recompute(tn_module_child(list, i), on);
    return status;
}
