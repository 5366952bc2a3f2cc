/*
 * freeze.c - what is trained and what is not: requires_grad of a tree's parameters, and freezing
 * whole modules.
 *
 * A frozen module answers tn_training with false and its parameters want no gradient; both hold
 * against calls on the modules above it. A tensor that a frozen and another module share is frozen.
 */
#include "nn/module.h"

typedef struct switcher {
    bool on;
    tni_map frozen; /* parameters of frozen modules */
} switcher;

static tn_status collect_frozen(tn_module *m, const char *path, void *user)
{
    switcher *s = user;
    (void)path;
    for (int i = 0; m->state->frozen && i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_PARAMETER || tni_none(slot->tensor)) continue;
        if (tni_map_put(&s->frozen, slot->tensor, slot->tensor) < 0) return TN_E_NOMEM;
    }
    return TN_OK;
}

static tn_status set_requires_grad(tn_module *m, const char *path, void *user)
{
    const switcher *s = user;
    (void)path;
    for (int i = 0; i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_PARAMETER || tni_none(slot->tensor)) continue;
        if (tni_map_get(&s->frozen, slot->tensor)) continue;
        bool on = s->on && tn_dtype_is_float(slot->tensor->dtype);
        tn_status status = tn_set_requires_grad(slot->tensor, on);
        if (status != TN_OK) return status;
        slot->frozen = !on;
    }
    return TN_OK;
}

tn_status tn_module_requires_grad(tn_module *m, bool on)
{
    switcher s = { .on = on };
    tn_status status = tni_module_check("tn_module_requires_grad", m);
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, collect_frozen, NULL, &s);
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, set_requires_grad, NULL, &s);
    tni_map_free(&s.frozen);
    return status;
}

/* Before the first tensor changes, for several slots may hold one. */
static tn_status remember(tn_module *m, const char *path, void *user)
{
    (void)path;
    (void)user;
    for (int i = 0; !m->state->frozen && i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_PARAMETER) slot->thaw = slot->tensor->requires_grad;
    }
    return TN_OK;
}

static tn_status freeze(tn_module *m, const char *path, void *user)
{
    (void)path;
    (void)user;
    if (m->state->frozen) return TN_OK;
    for (int i = 0; i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_PARAMETER || tni_none(slot->tensor)) continue;
        tn_status status = tn_set_requires_grad(slot->tensor, false);
        if (status == TN_OK) status = tn_set_grad_of(slot->tensor, TN_NONE);
        if (status != TN_OK) return status;
    }
    m->state->frozen = true;
    return TN_OK;
}

static tn_status thaw(tn_module *m, const char *path, void *user)
{
    (void)path;
    (void)user;
    if (!m->state->frozen) return TN_OK;
    m->state->frozen = false;
    for (int i = 0; i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_PARAMETER || tni_none(slot->tensor) || !slot->thaw) continue;
        tn_status status = tn_set_requires_grad(slot->tensor, true);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

tn_status tn_module_freeze(tn_module *m)
{
    tn_status status = tni_module_check("tn_module_freeze", m);
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, remember, NULL, NULL);
    return status == TN_OK ? tni_walk(m, TNI_ONCE, freeze, NULL, NULL) : status;
}

tn_status tn_module_thaw(tn_module *m)
{
    tn_status status = tni_module_check("tn_module_thaw", m);
    return status == TN_OK ? tni_walk(m, TNI_ONCE, thaw, NULL, NULL) : status;
}

bool tn_module_frozen(const tn_module *m)
{
    return m && m->state && m->state->frozen;
}
