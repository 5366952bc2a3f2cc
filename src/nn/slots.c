/* slots.c - what a module holds, in order: its parameters, buffers and children. */
#include "nn/module.h"

typedef struct tn_module_state state;

tni_slot *tni_slot_find(const tn_module *m, const char *name, size_t n)
{
    const state *s = m->state;
    return tni_named_find(&s->named, &s->slot, s->n, name, n);
}

/* Fields are offsets; 0 is none. */
static const void *as_key(size_t field)
{
    return (const void *)(uintptr_t)field;
}

tni_slot *tni_slot_numbered(const tn_module *m, int64_t serial)
{
    const state *s = m->state;
    return tni_named_at(&s->named, &s->slot, s->n, serial);
}

tni_slot *tni_slot_at(const tn_module *m, size_t field)
{
    int64_t serial = (intptr_t)tni_map_get(&m->state->fields, as_key(field));
    return serial ? tni_slot_numbered(m, serial) : NULL;
}

static void enter_field(state *s, const tni_slot *slot)
{
    void *serial = (void *)(intptr_t)tni_named_serial(slot);
    if (slot->field) tni_map_put(&s->fields, as_key(slot->field), serial);
}

/* Counts one more, or one fewer, parameter slot that holds t. */
static void count_holder(state *s, const tn_tensor *t, int by)
{
    intptr_t n = (intptr_t)tni_map_get(&s->parameters, t) + by;
    if (n)
        tni_map_put(&s->parameters, t, (void *)n);
    else
        tni_map_remove(&s->parameters, t);
}

tni_slot *tni_slot_add(tn_module *m, const tni_slot *like)
{
    state *s = m->state;
    const size_t wanted = (size_t)s->n + 2; /* one to spare, so that a change cannot fail */
    s->named.size = sizeof(tni_slot);
    if (!tni_map_reserve(&s->fields, wanted) || !tni_map_reserve(&s->parameters, wanted))
        return NULL;
    tni_slot *slot = tni_named_add(&s->named, &s->slot, &s->n, "", "", like->name);
    if (!slot) return NULL;
    const bool child = like->kind == TNI_CHILD;
    slot->kind = like->kind, slot->flags = like->flags, slot->frozen = like->frozen;
    slot->since = like->since, slot->since_value = like->since_value;
    slot->field = like->field;
    slot->tensor = child ? NULL : TN_NONE;
    slot->child = child ? TN_NO_MODULE : NULL;
    s->n_children += child;
    enter_field(s, slot);
    return slot;
}

void tni_slot_remove(tn_module *m, tni_slot *slot)
{
    state *s = m->state;
    s->n_children -= slot->kind == TNI_CHILD;
    tni_map_remove(&s->fields, as_key(slot->field));
    tni_named_remove(&s->named, &s->slot, &s->n, slot);
}

void tni_slots_free(tn_module *m)
{
    tni_map_free(&m->state->fields);
    tni_map_free(&m->state->parameters);
    tni_named_free(&m->state->named, &m->state->slot, m->state->n);
}

void tni_module_exchange(tn_module *a, tn_module *b)
{
    const tn_module_type *type = a->type;
    a->type = b->type;
    b->type = type;
    tni_swap_bytes(a, b, sizeof(tn_module), type->size);
    tni_swap_bytes(a->state, b->state, offsetof(state, training), offsetof(state, building));
}

void tni_slots_reorder(tn_module *m, const tni_slot *ordered)
{
    state *s = m->state;
    if (s->n) memcpy(s->slot, ordered, (size_t)s->n * sizeof *ordered);
    tni_named_renumber(&s->named, &s->slot, s->n);
    for (int i = 0; i < s->n; i++) enter_field(s, &s->slot[i]);
}

void tni_slot_sync(tn_module *m, const tni_slot *slot)
{
    if (!slot->field) return;
    char *field = (char *)m + slot->field;
    if (slot->kind == TNI_CHILD)
        memcpy(field, &slot->child, sizeof slot->child);
    else
        memcpy(field, &slot->tensor, sizeof slot->tensor);
}

void tni_slot_move_field(tn_module *m, tni_slot *slot, size_t field)
{
    if (!field || slot->field == field) return;
    tni_slot absent = *slot; /* so that the old field cannot dangle */
    absent.tensor = TN_NONE;
    absent.child = TN_NO_MODULE;
    tni_slot_sync(m, &absent);
    tni_map_remove(&m->state->fields, as_key(slot->field));
    slot->field = field;
    enter_field(m->state, slot);
    tni_slot_sync(m, slot);
}

int64_t tni_slot_mark(const tni_slot *slot)
{
    if (slot->kind != TNI_BUFFER) return 0;
    return tni_is(slot->flags, TN_CONSTANT) ? TNI_MARK_CONSTANT
           : tni_is(slot->flags, TN_CACHE)  ? TNI_MARK_CACHE
                                            : 1;
}

/* The marks that tell parameters (0) and buffers from other tensors. */
static void mark(const tn_module *m, tn_tensor *t, int64_t as, int sign)
{
    if (tni_none(t)) return;
    if (as == 0) {
        t->is_parameter += sign;
        count_holder(m->state, t, sign);
    } else {
        t->is_buffer += sign * as;
        atomic_fetch_add_explicit(&t->storage->buffer_marks, sign * as, memory_order_relaxed);
    }
}

void tni_slot_set_own(const tn_module *m, tni_slot *slot, tn_tensor *average)
{
    tn_tensor *other = average ? tn_keep(average) : slot->own;
    tni_exchange_memory(slot->tensor, other);
    mark(m, slot->tensor, TNI_MARK_AVERAGED, average ? 1 : -1);
    slot->own = average ? other : NULL;
    if (!average) tn_drop(other);
}

tn_tensor *tni_slot_put(tn_module *m, tni_slot *slot, tn_tensor *t)
{
    tn_tensor *old = slot->tensor;
    int64_t as = tni_slot_mark(slot);
    if (slot->own) tni_slot_set_own(m, slot, NULL);
    mark(m, t, as, 1);
    mark(m, old, slot->mark, -1);
    slot->mark = as;
    slot->tensor = tn_keep(t);
    tni_slot_sync(m, slot);
    return old;
}

tn_module *tni_slot_put_child(tn_module *m, tni_slot *slot, tn_module *child)
{
    tn_module *old = slot->child;
    if (!tni_no_module(child)) atomic_fetch_add(&child->state->holders, 1);
    if (!tni_no_module(old)) atomic_fetch_sub(&old->state->holders, 1);
    slot->child = tn_module_keep(child);
    tni_slot_sync(m, slot);
    return old;
}

bool tni_module_holds_parameter(const tn_module *owner, const tn_tensor *t)
{
    return t->is_parameter && tni_map_get(&owner->state->parameters, t);
}
