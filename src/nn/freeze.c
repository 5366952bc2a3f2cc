/*
 * freeze.c - choosing what is trained: requires_grad of a tree's parameters, and freezing whole
 * modules.
 *
 * For a frozen module tn_training is false and its parameters require no gradient; calls on the
 * modules above it do not change this. A tensor shared with another module is frozen.
 */
#include "nn/module.h"

typedef struct switcher {
    bool on;
    tni_map frozen;  /* parameters of frozen modules */
    tni_map freezes; /* modules to freeze, too */
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

/* Leaves only, and set only for a floating dtype, so it cannot fail. */
static void set_requires_grad(tn_module *m, void *user)
{
    const switcher *s = user;
    for (int i = 0; i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_PARAMETER || tni_none(slot->tensor)) continue;
        if (tni_map_get(&s->frozen, slot->tensor)) continue;
        bool on = s->on && tn_dtype_is_float(slot->tensor->dtype);
        tn_set_requires_grad(slot->tensor, on);
        slot->frozen = !on;
    }
}

/* Which parameters thawing leaves alone. Noted before the first tensor changes, since several slots
 * may hold one. */
static void remember(tn_module *m, void *user)
{
    (void)user;
    for (int i = 0; !m->state->frozen && i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_PARAMETER && !tni_none(slot->tensor))
            slot->frozen = !slot->tensor->requires_grad;
    }
}

static void set_frozen(tn_module *m, void *user)
{
    const bool frozen = *(const bool *)user;
    for (int i = 0; m->state->frozen != frozen && i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_PARAMETER || tni_none(slot->tensor)) continue;
        if (frozen || !slot->frozen) tn_set_requires_grad(slot->tensor, !frozen);
        if (frozen) tni_disregard(tn_set_grad(slot->tensor, TN_NONE));
    }
    m->state->frozen = frozen;
}

static void switch_one(tn_module *m, void *user)
{
    const switcher *s = user;
    set_requires_grad(m, user);
    if (tni_map_get(&s->freezes, m)) remember(m, NULL), set_frozen(m, &(bool){ true });
}

tn_status tni_switch_modules(const char *function, tn_module *m, bool on, tni_visit choose)
{
    switcher s = { .on = on };
    tn_status status = tni_module_check(function, m);
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, collect_frozen, NULL, &s);
    if (status == TN_OK && choose) status = tni_walk(m, TNI_ONCE, choose, NULL, &s.freezes);
    if (status == TN_OK) status = tni_change_modules(function, m, switch_one, &s);
    tni_map_free(&s.frozen), tni_map_free(&s.freezes);
    return status;
}

tn_status tn_module_set_requires_grad(tn_module *m, bool on)
{
    return tni_switch_modules(__func__, m, on, NULL);
}

tn_status tn_module_freeze(tn_module *m)
{
    bool frozen = true;
    tn_status status = tni_change_modules(__func__, m, remember, NULL);
    return status == TN_OK ? tni_change_modules(__func__, m, set_frozen, &frozen) : status;
}

tn_status tn_module_thaw(tn_module *m)
{
    return tni_change_modules("tn_module_thaw", m, set_frozen, &(bool){ false });
}

bool tn_module_frozen(const tn_module *m)
{
    return m && m->state && m->state->frozen;
}
