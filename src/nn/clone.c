/*
 * clone.c - an independent copy of a module and everything below it.
 *
 * First every module gets an empty copy with the bytes of its struct, and every tensor a new
 * tensor; then the copies' slots are filled, which points their fields to the copy's own tensors
 * and children. Whatever was shared (a child, a tensor, a storage) is shared inside the copy.
 */
#include "nn/module.h"

typedef struct copier {
    tni_map copy; /* module -> its copy, one reference each */
    tni_stage stage;
} copier;

static tn_status copy_struct(tn_module *m, const char *path, void *user)
{
    copier *c = user;
    if (m->type->free)
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_module_clone: %s%s%s owns what is no slot (its type has "
                         "free): want a module without",
                         path, path[0] ? ": " : "", m->type->name);
    tn_module *copy = tni_module_alloc(m->type);
    if (!copy) return TN_E_NOMEM;
    memcpy((char *)copy + sizeof(tn_module), (const char *)m + sizeof(tn_module),
           m->type->size - sizeof(tn_module));
    if (tni_map_put(&c->copy, m, copy) < 0) {
        tn_module_drop(copy);
        return TN_E_NOMEM;
    }
    copy->state->training = m->state->training;
    copy->state->frozen = m->state->frozen;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_CHILD && tni_stage_add(&c->stage, slot->tensor) != TN_OK)
            return TN_E_NOMEM;
    }
    return TN_OK;
}

static tn_status copy_tensor(const copier *c, tn_module *copy, tni_slot *slot, tn_tensor *from)
{
    if (tni_none(from)) {
        tni_slot_put(copy, slot, TN_NONE);
        return TN_OK;
    }
    tn_tensor *t = tni_stage_get(&c->stage, from);
    tn_status status = from->name ? tn_set_name(t, from->name) : TN_OK;
    if (status == TN_OK) status = tn_set_requires_grad(t, from->requires_grad && !from->node);
    if (status == TN_OK) tni_slot_put(copy, slot, t);
    return status;
}

static tn_status copy_slots(tn_module *m, const char *path, void *user)
{
    const copier *c = user;
    tn_module *copy = tni_map_get(&c->copy, m);
    (void)path;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *from = &m->state->slot[i];
        tni_slot *slot = tni_slot_add(copy, from->name, from->kind, from->field);
        if (!slot) return TN_E_NOMEM;
        slot->persistence = from->persistence;
        slot->frozen = from->frozen;
        slot->since = from->since;
        slot->since_value = from->since_value;
        slot->thaw = from->thaw;
        if (from->kind == TNI_CHILD) {
            bool absent = tni_no_module(from->child);
            tni_slot_put_child(copy, slot,
                               absent ? TN_NO_MODULE : tni_map_get(&c->copy, from->child));
        } else {
            tn_status status = copy_tensor(c, copy, slot, from->tensor);
            if (status != TN_OK) return status;
        }
    }
    return TN_OK;
}

tn_module *tn_module_clone(tn_module *m)
{
    copier c = { .stage = { .copy = true } };
    tn_module *result = NULL;
    if (tni_module_check("tn_module_clone", m) != TN_OK) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_status status = scope.depth < 0 ? TN_E_NOMEM : tni_walk(m, TNI_ONCE, copy_struct, NULL, &c);
    TN_NO_GRAD
    {
        if (status == TN_OK) status = tni_stage_convert(&c.stage);
    }
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, copy_slots, NULL, &c);
    if (status == TN_OK) result = tn_module_keep(tni_map_get(&c.copy, m));
    for (size_t i = 0; i < c.copy.capacity; i++) tn_module_drop(c.copy.cell[i].value);
    tni_map_free(&c.copy);
    tni_stage_free(&c.stage);
    tn_scope_end(scope);
    return result;
}
