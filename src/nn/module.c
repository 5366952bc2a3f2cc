/*
 * module.c - a module's life: made, counted, freed. (slots.c: what it holds.)
 *
 * A table leads from every 64 bytes of the struct of a live module to it, so that tn_assign finds
 * the slot from the address of a field.
 */
#include "nn/module.h"

tn_module tn_no_module_object;

/* ---- live modules ---------------------------------------------------------------------------- */

enum { LINE = 64 }; /* alignment of allocations: no two modules share 64 bytes */

static pthread_mutex_t *const lock = &tni_locks[TNI_LOCK_MODULES];
static tni_map live;

static void leave_table(const tn_module *m)
{
    pthread_mutex_lock(lock);
    for (size_t at = 0; at < m->type->size; at += LINE) tni_map_remove(&live, (const char *)m + at);
    if (live.n == 0) tni_map_free(&live);
    pthread_mutex_unlock(lock);
}

static bool enter_table(tn_module *m)
{
    bool fits = true;
    pthread_mutex_lock(lock);
    for (size_t at = 0; fits && at < m->type->size; at += LINE)
        fits = tni_map_put(&live, (const char *)m + at, m) >= 0;
    pthread_mutex_unlock(lock);
    if (!fits) leave_table(m);
    return fits;
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
    tn_module *m = tni_map_get(&live, (const char *)address - (uintptr_t)address % LINE);
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
        tni_free(m->state, sizeof *m->state);
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
        /* the first error is the useful one; later ones may have overwritten it */
        if (b->first.status != TN_OK) tni_error_restore(&b->first);
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
    if (tni_gone(m)) return tni_error_prefix("%s: ", function);
    if (!m->state)
        return tni_error(TN_E_STATE,
                         "%s: the module was not made by tn_module_new: want that first", function);
    return TN_OK;
}

tn_module *tn_module_keep(tn_module *m)
{
    if (m && !tni_gone(m) && m->state)
        atomic_fetch_add_explicit(&m->state->refs, 1, memory_order_relaxed);
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

static void free_slots(tn_module *m, tn_module **doomed)
{
    for (int i = 0; i < m->state->n; i++) {
        tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_CHILD)
            release(tni_slot_put_child(m, slot, TN_NO_MODULE), doomed);
        else
            tn_drop(tni_slot_put(m, slot, TN_NONE));
    }
    tni_slots_free(m);
}

void tn_module_drop(tn_module *m)
{
    tn_module *doomed = NULL;
    if (tni_gone(m)) return;
    release(m, &doomed);
    while (doomed) { /* a list, not recursion, for any depth of nesting */
        m = doomed;
        doomed = m->state->next;
        char epitaph[400] = "", text[300] = "";
        if (TNI_UNLIKELY(tni_debugging)) tni_module_text(m, text, sizeof text);
        if (m->type->free && !m->state->copying) m->type->free(m);
        drop_building(m);
        free_slots(m, &doomed);
        tni_hooks_leave(m->state->hooks);
        leave_table(m);
        tni_free(m->state, sizeof *m->state);
        m->state = NULL;
        if (TNI_UNLIKELY(tni_debugging))
            snprintf(epitaph, sizeof epitaph, "the module %s is used after its last tn_module_drop",
                     text);
        tni_bury(m, m->type->size, epitaph);
    }
}

const char *tni_module_text(const tn_module *m, char *text, size_t size)
{
    char about[128] = "";
    TNI_C_NUMBERS;
    if (m->type->describe) m->type->describe(m, about, sizeof about);
    if (about[0])
        snprintf(text, size, "%s(%s)", m->type->name, about);
    else
        snprintf(text, size, "%s", m->type->name);
    return text;
}
