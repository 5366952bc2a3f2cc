/*
 * clone.c - an independent copy of a module and everything below it.
 *
 * First every module gets an empty copy with the bytes of its struct, and every tensor a new
 * tensor; then the copies' slots are filled, which points their fields to the copy's own tensors
 * and children. Whatever was shared (a child, a tensor, a storage) is shared inside the copy.
 *
 * Fields without a slot hold addresses, too: of grandchildren, of their tensors, of the struct
 * itself. A list of everything that belongs to the original, by address, gives its counterpart in
 * the copy. An address without a counterpart is an error, unless the type's clone sets that field.
 * Numbers and addresses differ in size: a word below 2^32 counts as an address only if an object
 * begins there.
 */
#include "nn/module.h"

/* A piece of the original's memory, and its counterpart in the copy. */
typedef struct region {
    int64_t from; /* its address */
    size_t n;
    const void *to; /* NULL: the copy has no such thing */
    const char *what;
} region;

typedef struct copier {
    tni_map copy; /* module -> its copy, one reference each */
    tni_stage stage;
    region *region; /* ascending, once all are there */
    size_t n, capacity;
    const char *refused; /* what the last refused address points to */
} copier;

static tn_status copy_struct(tn_module *m, const char *path, void *user)
{
    copier *c = user;
    if (m->type->free && !m->type->clone)
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_module_clone: %s%s%s owns what is no slot (its type has free): want a "
                         "type with clone, too, which copies that",
                         path, path[0] ? ": " : "", m->type->name);
    tn_module *copy = tni_module_alloc(m->type);
    if (!copy) return TN_E_NOMEM;
    copy->state->copying = true;
    memcpy((char *)copy + sizeof(tn_module), (const char *)m + sizeof(tn_module),
           m->type->size - sizeof(tn_module));
    if (tni_map_put(&c->copy, m, copy) < 0) {
        tn_module_drop(copy);
        return TN_E_NOMEM;
    }
    copy->state->training = m->state->training;
    copy->state->recompute = m->state->recompute;
    copy->state->dropout = m->state->dropout;
    copy->state->made = m->state->made;
    copy->state->frozen = m->state->frozen;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_CHILD && tni_stage_add(&c->stage, slot->tensor) != TN_OK)
            return TN_E_NOMEM;
    }
    return TN_OK;
}

/* ---- slots, and their regions ---------------------------------------------------------------- */

static tn_status add(copier *c, const void *from, size_t n, const void *to, const char *what)
{
    if (!from || n == 0) return TN_OK;
    if (!tni_room(&c->region, &c->capacity, c->n, 1, sizeof *c->region)) return TN_E_NOMEM;
    c->region[c->n++] = (region){ (int64_t)(intptr_t)from, n, to, what };
    return TN_OK;
}

static tn_status add_tensor(copier *c, const tn_tensor *t)
{
    const tn_tensor *copy = tni_stage_get(&c->stage, t), *grad = t->gm ? t->gm->grad : NULL;
    const tni_storage *elements = t->storage;
    TNI_TRY(add(c, t, sizeof *t, copy, "a tensor"));
    if (t->name) TNI_TRY(add(c, t->name, strlen(t->name) + 1, copy->name, "a name"));
    TNI_TRY(add(c, grad, grad ? sizeof *grad : 0, NULL, "a gradient"));
    if (elements->borrowed) return TN_OK;
    return add(c, elements->data, elements->nbytes, NULL, "the elements of a tensor");
}

static tn_status copy_tensor(const copier *c, tn_module *copy, tni_slot *slot, tn_tensor *from)
{
    tn_tensor *t = tni_stage_get(&c->stage, from);
    tn_status status = from->name && !t->name ? tn_set_name(t, from->name) : TN_OK;
    if (status == TN_OK) status = tn_set_requires_grad(t, from->requires_grad && !from->node);
    if (status == TN_OK) tni_slot_put(copy, slot, t);
    return status;
}

static tn_status copy_slot(copier *c, tn_module *copy, const tni_slot *from)
{
    tni_slot *slot = tni_slot_add(copy, from);
    if (!slot) return TN_E_NOMEM;
    TNI_TRY(add(c, from->name, strlen(from->name) + 1, slot->name, "a name"));
    if (from->kind == TNI_CHILD && !tni_no_module(from->child))
        tni_slot_put_child(copy, slot, tni_map_get(&c->copy, from->child));
    if (from->kind == TNI_CHILD || tni_none(from->tensor)) return TN_OK; /* a new slot is empty */
    TNI_TRY(copy_tensor(c, copy, slot, from->tensor));
    return add_tensor(c, from->tensor);
}

static tn_status copy_slots(tn_module *m, const char *path, void *user)
{
    copier *c = user;
    tn_module *copy = tni_map_get(&c->copy, m);
    (void)path;
    TNI_TRY(add(c, m, m->type->size, copy, "a module"));
    for (int i = 0; i < m->state->n; i++) TNI_TRY(copy_slot(c, copy, &m->state->slot[i]));
    return TN_OK;
}

/* ---- fields without a slot ------------------------------------------------------------------- */

/* If a buffer of the tree is also a gradient, the buffer is found. */
static int by_address(const void *a, const void *b)
{
    const region *x = a, *y = b;
    return x->from == y->from ? (x->to != NULL) - (y->to != NULL) : x->from < y->from ? -1 : 1;
}

static uintptr_t in_copy(uintptr_t word, void *user)
{
    copier *c = user;
    size_t i = tni_upto(&c->region->from, sizeof *c->region, c->n, (int64_t)word);
    const region *r = i ? &c->region[i - 1] : NULL;
    uintptr_t into = r ? word - (uintptr_t)r->from : 0;
    if (!r || into >= r->n || (into && word <= UINT32_MAX)) return word;
    if (!r->to) c->refused = r->what;
    return r->to ? (uintptr_t)r->to + into : 0;
}

/* Gives the copy of m fields of its own; the type's clone does the rest. Children come first. */
static tn_status complete(tn_module *m, const char *path, void *user)
{
    copier *c = user;
    tn_module *copy = tni_map_get(&c->copy, m);
    size_t wrong = tni_fields_map(copy, in_copy, c);
    if (wrong && !m->type->clone)
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_module_clone: %s%s%s: the field at byte %zu of the struct, which no "
                         "slot has, points to %s of the original: want it looked up in forward, or "
                         "a type with clone, which sets it",
                         path, path[0] ? ": " : "", m->type->name, wrong, c->refused);
    tn_status status = m->type->clone ? m->type->clone(m, copy) : TN_OK;
    if (status == TN_OK) copy->state->copying = false;
    if (status == TN_OK || tni_pending() != TN_OK) return status;
    return tni_error(status, "tn_module_clone: %s%s%s: its clone failed without a message", path,
                     path[0] ? ": " : "", m->type->name);
}

tn_module *tn_module_clone(tn_module *m)
{
    copier c = { .stage = { .copy = true } };
    tn_module *result = NULL;
    if (tni_module_check("tn_module_clone", m) != TN_OK) return NULL;
    TNI_SCOPED;
    tn_status status = scope.depth < 0 ? TN_E_NOMEM : tni_walk(m, TNI_ONCE, copy_struct, NULL, &c);
    TN_NO_GRAD if (status == TN_OK) status = tni_stage_convert(&c.stage);
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, copy_slots, NULL, &c);
    if (status == TN_OK) {
        tni_sort(c.region, c.n, sizeof *c.region, by_address);
        status = tni_walk(m, TNI_ONCE, NULL, complete, &c);
    }
    if (status == TN_OK) result = tn_module_keep(tni_map_get(&c.copy, m));
    for (size_t i = 0; i < c.copy.capacity; i++) tn_module_drop(c.copy.cell[i].value);
    tni_map_free(&c.copy);
    tni_stage_free(&c.stage);
    tni_room_free(&c.region, &c.capacity, sizeof *c.region);
    return result;
}
