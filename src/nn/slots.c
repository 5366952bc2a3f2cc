/*
 * slots.c - what a module holds, in order: its parameters, buffers and children. A slot is found by
 * walking the array while there are few, through tables from MANY on.
 */
#include <stdint.h>

#include "nn/module.h"

typedef struct tn_module_state state;

enum { MANY = 16 };

static void *as_value(int64_t n)
{
    return (void *)(intptr_t)n;
}

/* The slot of a serial number that is in use. */
static tni_slot *by_serial(const tn_module *m, int64_t serial)
{
    const state *s = m->state;
    return &s->slot[tni_upto(&s->slot[0].serial, sizeof *s->slot, (size_t)s->n, serial) - 1];
}

tni_slot *tni_slot_find(const tn_module *m, const char *name, size_t n)
{
    if (m->state->index) {
        int64_t serial = (intptr_t)tni_map_get_name(&m->state->index->names, name, n);
        return serial ? by_serial(m, serial) : NULL;
    }
    for (int i = 0; i < m->state->n; i++) {
        const char *other = m->state->slot[i].name;
        if (strncmp(other, name, n) == 0 && other[n] == '\0') return &m->state->slot[i];
    }
    return NULL;
}

tni_slot *tni_slot_at(const tn_module *m, size_t field)
{
    if (m->state->index) {
        int64_t serial = (intptr_t)tni_map_get(&m->state->index->fields, as_value((int64_t)field));
        return serial ? by_serial(m, serial) : NULL;
    }
    for (int i = 0; i < m->state->n; i++)
        if (m->state->slot[i].field == field) return &m->state->slot[i];
    return NULL;
}

/* The tables have room for every slot and one more, so that changing a slot cannot fail. */
static bool reserve_index(tni_slot_index *index, int n)
{
    size_t wanted = (size_t)n + 1;
    return tni_map_reserve(&index->names, wanted) && tni_map_reserve(&index->fields, wanted) &&
           tni_map_reserve(&index->tensors, wanted);
}

static void index_slot(tni_slot_index *index, const tni_slot *slot)
{
    tni_map_put(&index->names, slot->name, as_value(slot->serial));
    if (slot->field)
        tni_map_put(&index->fields, as_value((int64_t)slot->field), as_value(slot->serial));
}

/* Counts one more, or one fewer, parameter slot that holds t. */
static void count_holder(tni_slot_index *index, const tn_tensor *t, int by)
{
    if (!index || tni_none(t)) return;
    intptr_t n = (intptr_t)tni_map_get(&index->tensors, t) + by;
    if (n)
        tni_map_put(&index->tensors, t, (void *)n);
    else
        tni_map_remove(&index->tensors, t);
}

void tni_slot_index_free(tn_module *m)
{
    tni_slot_index *index = m->state->index;
    if (!index) return;
    tni_map_free(&index->names);
    tni_map_free(&index->fields);
    tni_map_free(&index->tensors);
    tni_free(index, sizeof *index);
    m->state->index = NULL;
}

/* Creates the tables for at least n slots. */
static bool ensure_index(tn_module *m, int n)
{
    state *s = m->state;
    if (n < MANY) return true;
    if (s->index) return reserve_index(s->index, n);
    s->index = tni_calloc(sizeof *s->index);
    if (!s->index) return false;
    s->index->names.names = true;
    if (!reserve_index(s->index, n)) {
        tni_slot_index_free(m);
        return false;
    }
    for (int i = 0; i < s->n; i++) {
        index_slot(s->index, &s->slot[i]);
        if (s->slot[i].kind == TNI_PARAMETER) count_holder(s->index, s->slot[i].tensor, 1);
    }
    return true;
}

/* Makes room for one more slot after the last. */
static bool ensure_room(tn_module *m)
{
    state *s = m->state;
    const size_t n = (size_t)s->n;
    if (s->room && s->slot + n < s->room + s->capacity) return true;
    if (s->n > INT32_MAX / 2)
        return tni_fail(TN_E_NOMEM, "%s has %d members: no more fit", m->type->name, s->n);
    if (n) memmove(s->room, s->slot, n * sizeof *s->slot);
    s->slot = s->room;
    size_t more = n < s->capacity / 2 ? 1 : s->capacity - n + 1;
    if (!tni_room(&s->room, &s->capacity, n, more, sizeof *s->room)) return false;
    s->slot = s->room;
    return true;
}

tni_slot *tni_slot_add(tn_module *m, const char *name, tni_slot_kind kind, size_t field)
{
    state *s = m->state;
    if (!ensure_room(m) || !ensure_index(m, s->n + 1)) return NULL;
    char *copy = tni_strdup(name);
    if (!copy) return NULL;
    tni_slot *slot = &s->slot[s->n++];
    *slot = (tni_slot){ .name = copy, .serial = ++s->serials, .kind = kind, .field = field };
    slot->tensor = kind == TNI_CHILD ? NULL : TN_NONE;
    slot->child = kind == TNI_CHILD ? TN_NO_MODULE : NULL;
    s->n_children += kind == TNI_CHILD;
    if (s->index) index_slot(s->index, slot);
    return slot;
}

void tni_slot_remove(tn_module *m, tni_slot *slot)
{
    state *s = m->state;
    char *name = slot->name;
    size_t before = (size_t)(slot - s->slot), behind = (size_t)s->n - before - 1;
    s->n_children -= slot->kind == TNI_CHILD;
    if (s->index) {
        tni_map_remove(&s->index->names, name);
        if (slot->field) tni_map_remove(&s->index->fields, as_value((int64_t)slot->field));
    }
    if (before < behind) /* shift the shorter side */
        memmove(s->slot + 1, s->slot, before * sizeof *slot), s->slot++;
    else
        memmove(slot, slot + 1, behind * sizeof *slot);
    s->n--;
    tni_strfree(name);
}

void tni_slot_move_field(tn_module *m, tni_slot *slot, size_t field)
{
    tni_slot_index *index = m->state->index;
    if (index && slot->field) tni_map_remove(&index->fields, as_value((int64_t)slot->field));
    slot->field = field;
    if (index) index_slot(index, slot);
}

static void swap_bytes(void *a, void *b, size_t from, size_t to)
{
    char *x = a, *y = b;
    for (size_t i = from; i < to; i++) {
        char was = x[i];
        x[i] = y[i];
        y[i] = was;
    }
}

void tni_module_exchange(tn_module *a, tn_module *b)
{
    const tn_module_type *type = a->type;
    a->type = b->type;
    b->type = type;
    swap_bytes(a, b, sizeof(tn_module), type->size);
    swap_bytes(a->state, b->state, offsetof(state, training), offsetof(state, building));
}

void tni_slots_reorder(tn_module *m, const tni_slot *ordered)
{
    state *s = m->state;
    for (int i = 0; i < s->n; i++) {
        s->slot[i] = ordered[i];
        s->slot[i].serial = ++s->serials;
        if (s->index) index_slot(s->index, &s->slot[i]);
    }
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

/* The marks that tell parameters and buffers from other tensors. */
static void mark(const tn_module *m, tn_tensor *t, tni_slot_kind kind, int by)
{
    if (tni_none(t)) return;
    if (kind == TNI_PARAMETER) {
        t->is_parameter += by;
        count_holder(m->state->index, t, by);
    } else {
        t->is_buffer += by;
        atomic_fetch_add_explicit(&t->storage->buffer_marks, by, memory_order_relaxed);
    }
}

tn_tensor *tni_slot_put(tn_module *m, tni_slot *slot, tn_tensor *t)
{
    tn_tensor *old = slot->tensor;
    mark(m, t, slot->kind, 1);
    mark(m, old, slot->kind, -1);
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
    if (!t->is_parameter) return false;
    if (owner->state->index) return tni_map_get(&owner->state->index->tensors, t) != NULL;
    for (int i = 0; i < owner->state->n; i++) {
        const tni_slot *slot = &owner->state->slot[i];
        if (slot->kind == TNI_PARAMETER && slot->tensor == t) return true;
    }
    return false;
}
