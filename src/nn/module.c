/*
 * module.c - a module's life: made, counted, freed; its slots.
 *
 * All live modules stand in one table sorted by address, so that tn_assign finds the slot behind
 * the address of a field.
 */
#include <pthread.h>
#include <stdint.h>

#include "nn/module.h"

tn_module tn_no_module_object;

/* ---- the table of live modules --------------------------------------------------------------- */

static pthread_mutex_t *const lock = &tni_locks[TNI_LOCK_MODULES];
static tn_module **live;
static size_t n_live, live_capacity;

/* The index of the first live module above address. */
static size_t above(uintptr_t address)
{
    size_t low = 0, high = n_live;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)live[middle] <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool enter_table(tn_module *m)
{
    bool fits = true;
    pthread_mutex_lock(lock);
    if (n_live == live_capacity) {
        size_t wanted = live_capacity ? live_capacity * 2 : 64;
        tn_module **larger = tni_alloc(wanted * sizeof(tn_module *));
        fits = larger != NULL;
        if (larger) {
            if (live) {
                memcpy(larger, live, n_live * sizeof *live);
                tni_free(live, live_capacity * sizeof *live);
            }
            live = larger;
            live_capacity = wanted;
        }
    }
    if (fits) {
        size_t i = above((uintptr_t)m);
        memmove(live + i + 1, live + i, (n_live - i) * sizeof *live);
        live[i] = m;
        n_live++;
    }
    pthread_mutex_unlock(lock);
    return fits;
}

static void leave_table(tn_module *m)
{
    pthread_mutex_lock(lock);
    size_t i = above((uintptr_t)m); /* one past m */
    memmove(live + i - 1, live + i, (n_live - i) * sizeof *live);
    if (--n_live == 0) {
        tni_free(live, live_capacity * sizeof *live);
        live = NULL;
        live_capacity = 0;
    }
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
    pthread_mutex_lock(lock);
    size_t i = above((uintptr_t)address);
    tn_module *m = i ? live[i - 1] : NULL;
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
    if (!m->state || !enter_table(m)) {
        if (m->state) tni_free(m->state, sizeof *m->state);
        tni_free(m, type->size);
        return NULL;
    }
    m->state->refs = 1;
    m->state->training = true;
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

/* The first error of the construction is the one that tells; later ones may have written over it.
 */
static void restore_message(const tni_building *b)
{
    if (b->status == TN_OK || strcmp(tn_error(), b->message) == 0) return;
    void (*context)(char *, size_t) = tni_error_context;
    tni_error_context = NULL; /* the message has its place already */
    tni_error(b->status, "%s", b->message);
    tni_error_context = context;
}

tn_module *tn_module_done(tn_module *m)
{
    if (!m) return NULL;
    if (tni_module_check("tn_module_done", m) != TN_OK) return NULL;
    tni_building *b = m->state->building;
    if (!b) return m;
    bool failed = b->status != TN_OK || (tni_error_count != b->errors && tni_pending() != TN_OK);
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

/* Gives one reference back; a module without any is put before the list of those to be freed. */
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

void tn_module_drop(tn_module *m)
{
    tn_module *doomed = NULL;
    release(m, &doomed);
    while (doomed) { /* a list, not recursion: any depth of nesting */
        m = doomed;
        doomed = m->state->next;
        if (m->type->free) m->type->free(m);
        drop_building(m);
        for (int i = 0; i < m->state->n; i++) {
            tni_slot *slot = &m->state->slot[i];
            if (slot->kind == TNI_CHILD)
                release(slot->child, &doomed);
            else
                tn_drop(tni_slot_put(m, slot, TN_NONE));
            tni_strfree(slot->name);
        }
        tni_hooks_leave(m->state->hooks);
        leave_table(m);
        if (m->state->slot) tni_free(m->state->slot, (size_t)m->state->capacity * sizeof(tni_slot));
        tni_free(m->state, sizeof *m->state);
        tni_free(m, m->type->size);
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

tni_slot *tni_slot_find(const tn_module *m, const char *name, size_t n)
{
    for (int i = 0; i < m->state->n; i++) {
        const char *other = m->state->slot[i].name;
        if (strncmp(other, name, n) == 0 && other[n] == '\0') return &m->state->slot[i];
    }
    return NULL;
}

tni_slot *tni_slot_add(tn_module *m, const char *name, tni_slot_kind kind, size_t field)
{
    tn_module_state *s = m->state;
    if (s->n == s->capacity) {
        int wanted = s->capacity ? s->capacity * 2 : 4;
        tni_slot *larger = tni_alloc((size_t)wanted * sizeof *larger);
        if (!larger) return NULL;
        if (s->slot) {
            memcpy(larger, s->slot, (size_t)s->n * sizeof *larger);
            tni_free(s->slot, (size_t)s->capacity * sizeof *larger);
        }
        s->slot = larger;
        s->capacity = wanted;
    }
    char *copy = tni_strdup(name);
    if (!copy) return NULL;
    tni_slot *slot = &s->slot[s->n++];
    *slot = (tni_slot){ .name = copy, .kind = kind, .field = field };
    slot->tensor = kind == TNI_CHILD ? NULL : TN_NONE;
    slot->child = kind == TNI_CHILD ? TN_NO_MODULE : NULL;
    return slot;
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

/* The marks that let others tell parameters and buffers from other tensors. */
static void mark(tn_tensor *t, tni_slot_kind kind, int by)
{
    if (tni_none(t)) return;
    if (kind == TNI_PARAMETER) {
        t->is_parameter += by;
    } else {
        t->is_buffer += by;
        atomic_fetch_add_explicit(&t->storage->buffer_marks, by, memory_order_relaxed);
    }
}

tn_tensor *tni_slot_put(tn_module *m, tni_slot *slot, tn_tensor *t)
{
    tn_tensor *old = slot->tensor;
    mark(t, slot->kind, 1);
    mark(old, slot->kind, -1);
    slot->tensor = tn_keep(t);
    tni_slot_sync(m, slot);
    return old;
}

bool tni_module_holds_parameter(const tn_module *owner, const char *name, const tn_tensor *t)
{
    (void)name;
    if (!t->is_parameter) return false;
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
