/*
 * list.c - lists of named tensors: made by hand or by walking a model.
 *
 * A list belongs to the current scope and keeps its tensors. The public struct is followed by the
 * index of its entries (named.h) and the state versions of modules.
 */
#include "nn/module.h"

/* A module with a state version, or above one, in a tree: n nested modules take memory that grows
 * as n, their full paths would take n^2. */
typedef struct record {
    char *name; /* in its parent; NULL: the root, of path "" */
    int parent;
    int version;      /* 0: none recorded, only on the path of others */
    size_t length;    /* of its path */
    tni_map children; /* name -> number */
} record;

typedef struct block {
    tn_list list; /* first: a tn_list * is a block * */
    tni_named named;
    record *modules; /* parents first; empty, or from the root on */
    int n_modules;
    size_t modules_capacity, text_capacity;
    char *text; /* room for the longest path */
} block;

/* ---- lists ----------------------------------------------------------------------------------- */

static void drop_list(void *object)
{
    block *b = object;
    for (int i = 0; i < b->list.n; i++) tn_drop(b->list.entry[i].tensor);
    tni_named_free(&b->named, &b->list.entry, b->list.n);
    for (int i = 0; i < b->n_modules; i++) {
        tni_strfree(b->modules[i].name);
        tni_map_free(&b->modules[i].children);
    }
    tni_room_free(&b->modules, &b->modules_capacity, sizeof *b->modules);
    tni_room_free(&b->text, &b->text_capacity, 1);
    tni_free(b, sizeof *b);
}

tn_list *tni_list_new(const char *function)
{
    block *b = tni_calloc(sizeof *b);
    if (!b) return NULL;
    b->named.size = sizeof(tn_entry);
    return tni_scope_add(function, b, drop_list) == TN_OK ? &b->list : NULL;
}

tn_list *tn_list_new(void)
{
    return tni_list_new(__func__);
}

/* ---- versions -------------------------------------------------------------------------------- */

/* Adds a module, returns its number; -1: out of memory. Takes over name, even on failure. */
static int add_module(block *b, int parent, char *name)
{
    record r = { .name = name, .parent = parent, .children.names = true };
    if (name) r.length = b->modules[parent].length + (parent != 0) + strlen(name);
    if (tni_room(&b->modules, &b->modules_capacity, (size_t)b->n_modules, 1, sizeof r) &&
        tni_room(&b->text, &b->text_capacity, 0, r.length + 1, 1) &&
        (!name ||
         tni_map_put(&b->modules[parent].children, name, (void *)(intptr_t)b->n_modules) >= 0)) {
        b->modules[b->n_modules] = r;
        return b->n_modules++;
    }
    tni_strfree(name);
    return -1;
}

/* The number of a module's child with a name of n bytes; -1: there is none, or out of memory. */
static int child_of(block *b, int parent, const char *name, size_t n, bool add)
{
    intptr_t found = (intptr_t)tni_map_get_name(&b->modules[parent].children, name, n);
    if (found || !add) return found ? (int)found : -1;
    char *own = tni_alloc(n + 1);
    if (!own) return -1;
    memcpy(own, name, n);
    own[n] = '\0';
    return add_module(b, parent, own);
}

/* The same of the module at a path. */
static int module_at(block *b, const char *path, size_t n, bool add)
{
    const char *end = path + n;
    if (b->n_modules == 0 && (!add || add_module(b, 0, NULL) < 0)) return -1;
    int at = 0;
    while (n && at >= 0) {
        const char *dot = memchr(path, '.', (size_t)(end - path));
        at = child_of(b, at, path, (size_t)((dot ? dot : end) - path), add);
        if (!dot) break;
        path = dot + 1;
    }
    return at;
}

tn_status tni_list_push_version(tn_list *list, const char *path, int version)
{
    block *b = (block *)list;
    int at = module_at(b, path, strlen(path), version != 0);
    if (at >= 0) b->modules[at].version = version;
    return at >= 0 || !version ? TN_OK : TN_E_NOMEM;
}

int tni_list_version_n(const tn_list *list, const char *path, size_t n)
{
    block *b = (block *)list;
    int at = module_at(b, path, n, false);
    return at < 0 ? 0 : b->modules[at].version;
}

int tn_list_version(const tn_list *list, const char *path)
{
    return list && path ? tni_list_version_n(list, path, strlen(path)) : 0;
}

tn_status tn_list_set_version(tn_list *list, const char *path, int version)
{
    if (!list) return tni_poison("tn_list_set_version", "the list");
    if (!path || version < 0)
        return tni_error(TN_E_INVALID, "tn_list_set_version: %s: want a path and a version >= 0",
                         path ? "a version below 0" : "the path is NULL");
    return tni_list_push_version(list, path, version);
}

int tni_list_next_version(const tn_list *list, int *i)
{
    const block *b = (const block *)list;
    while (++*i < b->n_modules)
        if (b->modules[*i].version) return b->modules[*i].version;
    return 0;
}

/* Written from its end. */
const char *tni_list_path(const tn_list *list, int i)
{
    const block *b = (const block *)list;
    b->text[b->modules[i].length] = '\0';
    for (const record *m = &b->modules[i]; m->name; m = &b->modules[m->parent]) {
        size_t n = strlen(m->name);
        memcpy(b->text + m->length - n, m->name, n);
        if (m->parent) b->text[m->length - n - 1] = '.';
    }
    return b->text;
}

static tn_status copy_versions(tn_list *list, const tn_list *from)
{
    const block *b = (const block *)from;
    block *to = (block *)list;
    TNI_ITEMS(int, at, b->n_modules);
    for (int i = 0; at && i < b->n_modules; i++) {
        const record *r = &b->modules[i];
        at[i] = r->name ? child_of(to, at[r->parent], r->name, strlen(r->name), true)
                        : module_at(to, "", 0, true);
        if (at[i] < 0) return TN_E_NOMEM;
        if (r->version) to->modules[at[i]].version = r->version;
    }
    return at ? TN_OK : TN_E_NOMEM;
}

/* ---- entries --------------------------------------------------------------------------------- */

tn_status tni_list_push(tn_list *list, const char *prefix, const char *path, const char *name,
                        tn_entry entry)
{
    tn_entry *e =
        tni_named_add(&((block *)list)->named, &list->entry, &list->n, prefix, path, name);
    if (!e) return TN_E_NOMEM;
    entry.name = e->name;
    *e = entry;
    tn_keep(entry.tensor);
    return TN_OK;
}

const tn_entry *tni_list_find(const tn_list *list, const char *name)
{
    const block *b = (const block *)list;
    return tni_named_find(&b->named, &list->entry, list->n, name, strlen(name));
}

static tn_status add(tn_list *list, const char *name, tn_tensor *t)
{
    return tni_list_push(list, "", "", name,
                         (tn_entry){ .tensor = t, .kind = TN_PARAMETER, .persistent = true });
}

tn_status tn_list_add(tn_list *list, const char *name, tn_tensor *t)
{
    if (!list) return tni_poison("tn_list_add", "the list");
    if (!t) return tni_poison("tn_list_add", "the tensor");
    if (!name || !name[0] || tni_none(t))
        return tni_error(TN_E_INVALID, "tn_list_add: %s: want a name and a tensor",
                         !name      ? "the name is NULL"
                         : !name[0] ? "the name is empty"
                                    : "TN_NONE");
    if (tni_list_find(list, name))
        return tni_error(
            TN_E_NAME, "tn_list_add: \"%s\" is in the list already (%s): want another name for %s",
            name, tni_text(tni_list_find(list, name)->tensor), tni_text(t));
    return add(list, name, t);
}

static tn_status no_name(const char *function, const tn_list *list, const char *name)
{
    return tni_error(TN_E_NAME, "%s: \"%s\": not among the %d entries", function,
                     name ? name : "(NULL)", list->n);
}

bool tn_list_has(const tn_list *list, const char *name)
{
    return list && name && tni_list_find(list, name);
}

tn_status tn_list_set(tn_list *list, const char *name, tn_tensor *t)
{
    if (!list || !t) return tni_poison("tn_list_set", list ? "the tensor" : "the list");
    if (!name || !name[0])
        return tni_error(TN_E_INVALID, "tn_list_set: the name is %s: want one that is not empty",
                         name ? "empty" : "NULL");
    tn_entry *e = (tn_entry *)tni_list_find(list, name);
    return e ? tni_hold(&e->tensor, t) : add(list, name, t);
}

tn_status tn_list_remove(tn_list *list, const char *name)
{
    if (!list) return tni_poison("tn_list_remove", "the list");
    tn_entry *e = name ? (tn_entry *)tni_list_find(list, name) : NULL;
    if (!e) return no_name("tn_list_remove", list, name);
    tn_tensor *old = e->tensor;
    tni_named_remove(&((block *)list)->named, &list->entry, &list->n, e);
    tn_drop(old);
    return TN_OK;
}

tn_status tn_list_rename(tn_list *list, const char *from, const char *to)
{
    if (!list) return tni_poison("tn_list_rename", "the list");
    tn_entry *e = from ? (tn_entry *)tni_list_find(list, from) : NULL;
    if (!e) return no_name("tn_list_rename", list, from);
    if (!to || !to[0] || tni_list_find(list, to))
        return tni_error(TN_E_NAME, "tn_list_rename: %s to \"%s\": want a name that is free", from,
                         to ? to : "(NULL)");
    return tni_named_rename(&((block *)list)->named, &list->entry, list->n, e, to);
}

/* to, or NULL + message. */
static tn_list *append(tn_list *to, const tn_list *from)
{
    for (int i = 0; to && i < from->n; i++)
        if (tni_list_push(to, "", "", from->entry[i].name, from->entry[i]) != TN_OK) return NULL;
    return to && copy_versions(to, from) == TN_OK ? to : NULL;
}

tn_list *tni_list_copy(const tn_list *list)
{
    return append(tn_list_new(), list);
}

tn_list *tn_list_concat(tn_list *a, tn_list *b)
{
    if (!a || !b) return tni_poisoned("tn_list_concat", a ? "b" : "a");
    for (int i = 0; i < b->n; i++) {
        const tn_entry *e = &b->entry[i], *other = tni_list_find(a, e->name);
        if (other)
            return tni_fail(TN_E_NAME,
                            "tn_list_concat: both lists have \"%s\": %s of %s and %s of %s: want "
                            "different names (tn_named_parameters takes a prefix)",
                            e->name, tni_shape_text(&other->tensor->shape),
                            other->owner ? other->owner->type->name : "the first",
                            tni_shape_text(&e->tensor->shape),
                            e->owner ? e->owner->type->name : "the second");
    }
    return append(tni_list_copy(a), b);
}

tn_tensor *tn_list_get(const tn_list *list, const char *name)
{
    if (!list) return tni_poisoned("tn_list_get", "the list");
    const tn_entry *e = name ? tni_list_find(list, name) : NULL;
    return e ? e->tensor : (no_name("tn_list_get", list, name), NULL);
}

/* ---- lists of a model ------------------------------------------------------------------------ */

typedef struct collector {
    tn_list *list;
    tn_walk_options o;
    bool parameters, buffers;
    bool state; /* with extra state, hooks and versions */
    tni_map seen;
    int depth, at; /* with state: how deep the walk is, and the module's record in the list */
} collector;

static tn_status collect_kind(collector *c, tn_module *m, const char *path, tni_slot_kind kind)
{
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        bool persistent = !(slot->flags & TN_NON_PERSISTENT);
        if (slot->kind != kind || tni_none(slot->tensor)) continue;
        if (c->o.persistent_only && !persistent) continue;
        if (c->o.no_caches && tni_is(slot->flags, TN_CACHE)) continue;
        int is_new = !c->o.keep_duplicates ? tni_map_put(&c->seen, slot->tensor, slot->tensor) : 1;
        if (is_new < 0) return TN_E_NOMEM;
        if (!is_new) continue;
        tn_entry entry = { .tensor = slot->tensor, .persistent = persistent, .owner = m };
        entry.kind = kind == TNI_PARAMETER ? TN_PARAMETER : TN_BUFFER;
        entry.role = slot->flags & (tni_is(slot->flags, TN_CACHE) ? TN_CACHE : TN_ROLE);
        TNI_TRY(tni_list_push(c->list, c->o.prefix, path, slot->name, entry));
    }
    return TN_OK;
}

static tn_status collect_extra(collector *c, tn_module *m, const char *path)
{
    tn_tensor *t = m->type->extra_state(m);
    if (!t) return tni_poison(m->type->name, "its extra state");
    tn_entry entry = { .tensor = t, .kind = TN_BUFFER, .persistent = true, .owner = m };
    return tni_list_push(c->list, c->o.prefix, path, TNI_EXTRA_STATE, entry);
}

/* The record of m in the list: for the walk's root found by the prefix, below it as a child of its
 * parent's record. -1: out of memory. */
static int record_of(const collector *c, const char *path, const char *prefix)
{
    block *b = (block *)c->list;
    size_t n = strlen(prefix);
    if (c->depth < 2) return module_at(b, prefix, n - (n && prefix[n - 1] == '.'), true);
    const char *name = strrchr(path, '.') + 1;
    return child_of(b, c->at, name, strlen(name), true);
}

/* Adds what a file holds for a module besides its slots; then its hooks may edit the list. */
static tn_status collect_state(collector *c, tn_module *m, const char *path)
{
    if (m->type->extra_state) TNI_TRY(collect_extra(c, m, path));
    bool hooked = tni_has_hook(m, TNI_HOOK_STATE_DICT);
    const char *shown = hooked || c->depth < 2 ? path : ""; /* deeper ones need no text */
    char *prefix = tni_name_new(c->o.prefix, shown, "");
    if (!prefix) return TN_E_NOMEM;
    tn_status status =
        hooked ? tni_run_list_hooks(m, TNI_HOOK_STATE_DICT, c->list, prefix, NULL) : TN_OK;
    int at = status == TN_OK ? record_of(c, path, prefix) : -1;
    tni_name_free(prefix);
    if (status != TN_OK || at < 0) return status != TN_OK ? status : TN_E_NOMEM;
    ((block *)c->list)->modules[at].version = m->type->state_version ? m->type->state_version : 1;
    c->at = at;
    c->depth++;
    return TN_OK;
}

static tn_status leave(tn_module *m, const char *path, void *user)
{
    collector *c = user;
    (void)m, (void)path;
    if (c->depth-- > 0) c->at = ((block *)c->list)->modules[c->at].parent;
    return TN_OK;
}

static tn_status collect(tn_module *m, const char *path, void *user)
{
    collector *c = user;
    tn_status status = c->parameters ? collect_kind(c, m, path, TNI_PARAMETER) : TN_OK;
    if (status == TN_OK && c->buffers) status = collect_kind(c, m, path, TNI_BUFFER);
    return status == TN_OK && c->state ? collect_state(c, m, path) : status;
}

tn_list *tni_list_made(size_t guarded, const char *function, tn_list *list)
{
    if (!tni_scope_unguard(guarded) || !list) return list;
    return tni_fail(TN_E_STATE,
                    "%s: a function that it called ended the scope that the list was made in: want "
                    "that ended after the call",
                    function);
}

static tn_list *collected(const char *function, tn_module *m, collector c)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    c.list = tni_list_new(function);
    if (!c.list) return NULL;
    if (!c.o.prefix) c.o.prefix = "";
    size_t guarded = tni_scope_guard();
    tni_repeats repeats = c.o.keep_duplicates ? TNI_EVERY : TNI_ONCE;
    tn_status status =
        c.o.no_recurse ? collect(m, "", &c) : tni_walk(m, repeats, collect, leave, &c);
    tni_map_free(&c.seen);
    return tni_list_made(guarded, function, status == TN_OK ? c.list : NULL);
}

#define LISTS(tn_name, tn_name_with, kind)                                                         \
    tn_list *tn_name(tn_module *m)                                                                 \
    {                                                                                              \
        return collected(#tn_name, m, (collector){ .kind = true });                                \
    }                                                                                              \
    tn_list *tn_name_with(tn_module *m, tn_walk_options o)                                         \
    {                                                                                              \
        return collected(#tn_name_with, m, (collector){ .o = o, .kind = true });                   \
    }
LISTS(tn_parameters, tn_parameters_with, parameters)
LISTS(tn_buffers, tn_buffers_with, buffers)

tn_list *tn_named_parameters(tn_module *m, const char *prefix)
{
    return collected(__func__, m, (collector){ .o.prefix = prefix, .parameters = true });
}

/* What a file holds: persistent tensors only, under every name. */
static const tn_walk_options in_file = { .keep_duplicates = true, .persistent_only = true };

tn_list *tn_state_dict(tn_module *m, const char *prefix)
{
    collector c = { .o = in_file, .parameters = true, .buffers = true, .state = true };
    c.o.prefix = prefix;
    return collected("tn_state_dict", m, c);
}

tn_list *tni_slot_list(tn_module *m)
{
    return collected("tn_load_state_dict", m,
                     (collector){ .o = in_file, .parameters = true, .buffers = true });
}
