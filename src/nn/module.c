/*
 * module.c - a module's life: made, counted, freed; its slots.
 *
 * All live modules are in one tree ordered by address, so that tn_assign finds the slot from the
 * address of a field. The tree is a treap whose nodes are inside the modules: Aragon and Seidel,
 * Randomized search trees (1989). Its weights are hashes of the addresses, so it is log n deep.
 */
#include <pthread.h>
#include <stdint.h>

#include "nn/module.h"

tn_module tn_no_module_object;

/* ---- the tree of live modules ---------------------------------------------------------------- */

typedef struct tn_module_state state;

static pthread_mutex_t *const lock = &tni_locks[TNI_LOCK_MODULES];
static state *live;

/* Joins two trees; every address in a is below every one in b. */
static state *joined(state *a, state *b)
{
    if (!a || !b) return a ? a : b;
    if (a->weight > b->weight) {
        a->above = joined(a->above, b);
        return a;
    }
    b->below = joined(a, b->below);
    return b;
}

/* Splits a tree in two: modules below an address, and the others. */
static void divide(state *tree, uintptr_t address, state **below, state **others)
{
    if (!tree) {
        *below = *others = NULL;
    } else if ((uintptr_t)tree->module < address) {
        divide(tree->above, address, &tree->above, others);
        *below = tree;
    } else {
        divide(tree->below, address, below, &tree->below);
        *others = tree;
    }
}

static void enter_tree(tn_module *m)
{
    state *below, *above;
    m->state->weight = tni_hash_address(m);
    pthread_mutex_lock(lock);
    divide(live, (uintptr_t)m, &below, &above);
    live = joined(joined(below, m->state), above);
    pthread_mutex_unlock(lock);
}

static void leave_tree(tn_module *m)
{
    state *below, *above, *itself;
    pthread_mutex_lock(lock);
    divide(live, (uintptr_t)m, &below, &above);
    divide(above, (uintptr_t)m + 1, &itself, &above);
    live = joined(below, above);
    pthread_mutex_unlock(lock);
}

bool tni_module_contains(const tn_module *m, const void *address)
{
    uintptr_t offset = (uintptr_t)address - (uintptr_t)m;
    return offset >= sizeof(tn_module) && m->type->size >= sizeof(void *) &&
           offset <= m->type->size - sizeof(void *);
}

tn_module *tni_module_at(const void *address)
{
    tn_module *m = NULL; /* the last one at or below address */
    pthread_mutex_lock(lock);
    for (const state *s = live; s;
         s = (uintptr_t)s->module <= (uintptr_t)address ? s->above : s->below)
        if ((uintptr_t)s->module <= (uintptr_t)address) m = s->module;
    pthread_mutex_unlock(lock);
    return m && tni_module_contains(m, address) ? m : NULL;
}

/* ---- making ---------------------------------------------------------------------------------- */

tn_module *tni_module_alloc(const tn_module_type *type)
{
    if (!type || !type->name || type->size < sizeof(tn_module))
        return tni_fail(TN_E_INVALID,
                        "tn_module_new: a type %s: want a name, and the size of a struct "
                        "that begins with a tn_module",
                        !type        ? "that is NULL"
                        : type->name ? type->name
                                     : "without a name");
    tn_module *m = tni_calloc(type->size);
    if (!m) return NULL;
    m->type = type;
    m->state = tni_calloc(sizeof *m->state);
    if (!m->state) {
        tni_free(m, type->size);
        return NULL;
    }
    m->state->module = m;
    m->state->refs = 1;
    m->state->training = true;
    enter_tree(m);
    return m;
}

void *tn_module_new(const tn_module_type *type)
{
    tn_module *m = tni_module_alloc(type);
    if (!m) return NULL;
    tni_building *b = tni_calloc(sizeof *b);
    if (b) b->scope = tn_scope_begin();
    if (!b || b->scope.depth < 0) {
        if (b) tni_free(b, sizeof *b);
        tn_module_drop(m);
        return NULL;
    }
    b->errors = tni_error_count;
    m->state->building = b;
    return m;
}

/* The construction's first error is the useful one; later ones may have overwritten it. */
static void restore_message(const tni_building *b)
{
    if (b->first.status != TN_OK) tni_error_restore(&b->first);
}

tn_module *tn_module_done(tn_module *m)
{
    if (!m) return NULL;
    if (tni_module_check("tn_module_done", m) != TN_OK) return NULL;
    tni_building *b = m->state->building;
    if (!b) return m;
    bool failed =
        b->first.status != TN_OK || (tni_error_count != b->errors && tni_pending() != TN_OK);
    failed = failed || tni_fields_made(m, b->scope) != TN_OK;
    m->state->building = NULL;
    tn_scope_end(b->scope);
    if (failed) {
        tn_module_drop(m);
        restore_message(b);
    }
    tni_free(b, sizeof *b);
    return failed ? NULL : m;
}

tn_status tni_module_check(const char *function, const tn_module *m)
{
    if (!m) return tni_poison(function, "the module");
    if (tni_no_module(m))
        return tni_error(TN_E_INVALID, "%s: the module is TN_NO_MODULE: want one that is there",
                         function);
    if (!m->state)
        return tni_error(TN_E_STATE,
                         "%s: the module was not made by tn_module_new: want that first", function);
    return TN_OK;
}

tn_module *tn_module_keep(tn_module *m)
{
    if (m && m->state) atomic_fetch_add_explicit(&m->state->refs, 1, memory_order_relaxed);
    return m;
}

/* ---- freeing --------------------------------------------------------------------------------- */

/* Drops one reference; a module with none left is pushed onto the list of those to be freed. */
static void release(tn_module *m, tn_module **doomed)
{
    if (!m || !m->state) return;
    if (atomic_fetch_sub_explicit(&m->state->refs, 1, memory_order_acq_rel) != 1) return;
    m->state->next = *doomed;
    *doomed = m;
}

static void drop_building(tn_module *m)
{
    tni_building *b = m->state->building;
    if (!b) return;
    m->state->building = NULL;
    tn_scope_end(b->scope);
    tni_free(b, sizeof *b);
}

static void free_index(tn_module *m)
{
    tni_slot_index *index = m->state->index;
    if (!index) return;
    tni_map_free(&index->names);
    tni_map_free(&index->fields);
    tni_map_free(&index->tensors);
    tni_free(index, sizeof *index);
    m->state->index = NULL;
}

static void free_slots(tn_module *m, tn_module **doomed)
{
    free_index(m);
    for (int i = 0; i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_CHILD)
            release(tni_slot_put_child(m, slot, TN_NO_MODULE), doomed);
        else
            tn_drop(tni_slot_put(m, slot, TN_NONE));
        tni_strfree(slot->name);
    }
    tni_room_free(&m->state->room, &m->state->capacity, sizeof(tni_slot));
}

void tn_module_drop(tn_module *m)
{
    tn_module *doomed = NULL;
    release(m, &doomed);
    while (doomed) { /* a list, not recursion, for any depth of nesting */
        m = doomed;
        doomed = m->state->next;
        if (m->type->free) m->type->free(m);
        drop_building(m);
        free_slots(m, &doomed);
        tni_hooks_leave(m->state->hooks);
        leave_tree(m);
        tni_free(m->state, sizeof *m->state);
        tni_free(m, m->type->size);
    }
}

/* ---- slots: found one by one while they are few, through tables from MANY on ----------------- */

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
        free_index(m);
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

const char *tni_module_text(const tn_module *m, char *text, size_t size)
{
    char about[128] = "";
    if (m->type->describe) m->type->describe(m, about, sizeof about);
    if (about[0])
        snprintf(text, size, "%s(%s)", m->type->name, about);
    else
        snprintf(text, size, "%s", m->type->name);
    return text;
}
