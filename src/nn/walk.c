/*
 * walk.c - the walk over a tree of modules, and the functions that are just a walk: train and eval,
 * freezing, clearing gradients, counting, visiting.
 */
#include "nn/module.h"

/* A module on the current path, its next slot, and where its path's text ends. */
typedef struct level {
    tn_module *module;
    int next;
    size_t path;
} level;

typedef struct walk {
    tni_repeats repeats;
    tni_map seen;
    level *stack;
    size_t depth, capacity;
    char *path;
    size_t path_capacity;
} walk;

/* Enters m under name. 1: entered, 0: seen before, -1: out of memory. */
static int enter(walk *w, tn_module *m, const char *name)
{
    size_t start = w->depth ? w->stack[w->depth - 1].path : 0;
    size_t dot = start ? 1 : 0, n = strlen(name);
    if (!tni_room(&w->stack, &w->capacity, w->depth, 1, sizeof(level)) ||
        !tni_room(&w->path, &w->path_capacity, start, dot + n + 1, 1))
        return -1;
    int is_new = w->repeats == TNI_ONCE ? tni_map_put(&w->seen, m, m) : 1;
    if (is_new != 1) return is_new;
    if (dot) w->path[start] = '.';
    memcpy(w->path + start + dot, name, n + 1);
    w->stack[w->depth++] = (level){ tn_module_keep(m), 0, start + dot + n };
    return 1;
}

static void leave(walk *w)
{
    tn_module_drop(w->stack[--w->depth].module);
    if (w->depth) w->path[w->stack[w->depth - 1].path] = '\0';
}

/* The next child slot of the innermost level; NULL if there are no more. */
static const tni_slot *next_child(walk *w)
{
    level *l = &w->stack[w->depth - 1];
    const tn_module_state *s = l->module->state;
    while (l->next < s->n) {
        const tni_slot *slot = &s->slot[l->next++];
        if (slot->kind != TNI_CHILD || tni_no_module(slot->child)) continue;
        bool repeated = false;
        bool shared = w->repeats == TNI_SIBLINGS && slot->child->state->holders > 1;
        for (int i = 0; shared && !repeated && i < l->next - 1; i++)
            repeated = s->slot[i].child == slot->child;
        if (!repeated) return slot;
    }
    return NULL;
}

tn_status tni_walk(tn_module *root, tni_repeats repeats, tni_visit before, tni_visit after,
                   void *user)
{
    walk w = { .repeats = repeats };
    tn_status status = enter(&w, root, "") < 0 ? TN_E_NOMEM : TN_OK;
    if (status == TN_OK && before) status = before(root, "", user);
    while (status == TN_OK && w.depth) {
        const tni_slot *slot = next_child(&w);
        if (slot) {
            int entered = enter(&w, slot->child, slot->name);
            if (entered < 0)
                status = TN_E_NOMEM;
            else if (entered && before)
                status = before(w.stack[w.depth - 1].module, w.path, user);
        } else {
            if (after) status = after(w.stack[w.depth - 1].module, w.path, user);
            leave(&w);
        }
    }
    while (w.depth) leave(&w);
    tni_room_free(&w.stack, &w.capacity, sizeof(level));
    tni_room_free(&w.path, &w.path_capacity, 1);
    tni_map_free(&w.seen);
    return status;
}

/* ---- walks that change modules --------------------------------------------------------------- */

typedef struct gathered {
    tn_module **module; /* a reference each */
    size_t n, capacity;
} gathered;

static tn_status gather(tn_module *m, const char *path, void *user)
{
    gathered *g = user;
    (void)path;
    if (!tni_room(&g->module, &g->capacity, g->n, 1, sizeof *g->module)) return TN_E_NOMEM;
    g->module[g->n++] = tn_module_keep(m);
    return TN_OK;
}

tn_status tni_change_modules(const char *function, tn_module *root,
                             void (*change)(tn_module *m, void *user), void *user)
{
    gathered g = { 0 };
    tn_status status = tni_module_check(function, root);
    if (status == TN_OK) status = tni_walk(root, TNI_ONCE, gather, NULL, &g);
    for (size_t i = 0; i < g.n; i++) {
        if (status == TN_OK) change(g.module[i], user);
        tn_module_drop(g.module[i]);
    }
    tni_room_free(&g.module, &g.capacity, sizeof *g.module);
    return status;
}

/* ---- visiting by the user -------------------------------------------------------------------- */

tn_status tn_named_modules(tn_module *m,
                           tn_status (*visit)(tn_module *m, const char *path, void *user),
                           void *user)
{
    TNI_TRY(tni_module_check("tn_named_modules", m));
    if (!visit) return tni_error(TN_E_INVALID, "tn_named_modules: visit is NULL: want a function");
    return tni_walk(m, TNI_ONCE, visit, NULL, user);
}

typedef struct visitor {
    tn_status (*f)(tn_module *m, void *user);
    void *user;
} visitor;

static tn_status visit_one(tn_module *m, const char *path, void *user)
{
    const visitor *v = user;
    const uint64_t errors = tni_error_count;
    (void)path;
    tn_status status = v->f(m, v->user);
    return status ? tni_user_status("tn_module_apply", "f", status, errors) : TN_OK;
}

tn_status tn_module_apply(tn_module *m, tn_status (*f)(tn_module *m, void *user), void *user)
{
    TNI_TRY(tni_module_check("tn_module_apply", m));
    if (!f) return tni_error(TN_E_INVALID, "tn_module_apply: f is NULL: want a function");
    return tni_walk(m, TNI_SIBLINGS, NULL, visit_one, &(visitor){ f, user });
}

int tn_module_children(const tn_module *m)
{
    return tni_module_check("tn_module_children", m) == TN_OK ? m->state->n_children : -1;
}

static const tni_slot *get_child(const char *function, const tn_module *m, int i)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    const tn_module_state *s = m->state;
    if (i < 0 || i >= s->n_children)
        return tni_fail(TN_E_INDEX, "%s: child %d of %s: it has %d", function, i, m->type->name,
                        s->n_children);
    if (s->n_children == s->n) return &s->slot[i];
    const tni_slot *slot = s->slot;
    while (slot->kind != TNI_CHILD || i-- > 0) slot++;
    return slot;
}

#define OF_CHILD(tn_name, type, what)                                                              \
    type *tn_name(const tn_module *m, int i)                                                       \
    {                                                                                              \
        const tni_slot *slot = get_child(#tn_name, m, i);                                          \
        return slot ? slot->what : NULL;                                                           \
    }
OF_CHILD(tn_module_child, tn_module, child)
OF_CHILD(tn_module_child_name, const char, name)

/* ---- train and eval, gradients --------------------------------------------------------------- */

static void set_training(tn_module *m, void *user)
{
    const bool training = *(const bool *)user;
    for (int i = 0; training && i < m->state->n; i++)
        if (tni_is(m->state->slot[i].flags, TN_CACHE))
            tn_drop(tni_slot_put(m, &m->state->slot[i], TN_NONE));
    m->state->training = training;
}

tn_status tn_train(tn_module *m, bool training)
{
    return tni_change_modules("tn_train", m, set_training, &training);
}

tn_status tn_eval(tn_module *m)
{
    return tni_change_modules("tn_eval", m, set_training, &(bool){ false });
}

bool tn_training(const tn_module *m)
{
    return m && m->state && m->state->training && !m->state->frozen;
}

static void clear_gradients(tn_module *m, void *user)
{
    (void)user;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_PARAMETER && !tni_none(slot->tensor))
            tni_disregard(tn_set_grad(slot->tensor, TN_NONE));
    }
}

tn_status tn_module_zero_grad(tn_module *m)
{
    return tni_change_modules("tn_module_zero_grad", m, clear_gradients, NULL);
}

int64_t tn_count_parameters(tn_module *m, bool trainable_only)
{
    int64_t n = 0;
    if (tni_module_check("tn_count_parameters", m) != TN_OK) return -1;
    TNI_SCOPED;
    const tn_list *all = scope.depth < 0 ? NULL : tn_parameters(m);
    for (int i = 0; all && i < all->n; i++)
        if (!trainable_only || all->entry[i].tensor->requires_grad)
            n += tn_numel(all->entry[i].tensor);
    return all ? n : -1;
}
