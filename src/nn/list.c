/*
 * list.c - lists of named tensors: made by hand or by walking a model.
 *
 * A list belongs to the current scope and keeps its tensors and names. Behind the public struct
 * lies the room it grows in, and an index of names, so that adding and finding take constant time.
 */
#include "nn/module.h"

/* The state version of the module at a path. */
typedef struct record {
    char *path;
    int version;
} record;

typedef struct block {
    tn_list list; /* first: a tn_list * is a block * */
    int capacity;
    int *index; /* hash table of entry numbers + 1, 0: free; at most half full */
    size_t index_size;
    record *versions;
    int n_versions, versions_capacity;
} block;

/* ---- the index of names ---------------------------------------------------------------------- */

/* FNV-1a: Fowler, Noll and Vo (1991) */
static uint64_t hash(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h ^ h >> 29;
}

/* The cell where name stands (its first entry), or the free one where it belongs. */
static int *locate(const block *b, const char *name)
{
    size_t i = (size_t)hash(name) & (b->index_size - 1);
    while (b->index[i] && strcmp(b->list.entry[b->index[i] - 1].name, name) != 0)
        i = (i + 1) & (b->index_size - 1);
    return &b->index[i];
}

static void fill_index(block *b)
{
    memset(b->index, 0, b->index_size * sizeof *b->index);
    for (int i = 0; i < b->list.n; i++) {
        int *cell = locate(b, b->list.entry[i].name);
        if (!*cell) *cell = i + 1;
    }
}

/* Room for one entry more, in the entries and in the index. */
static bool grow(block *b)
{
    if (b->list.n < b->capacity) return true;
    int capacity = b->capacity ? b->capacity * 2 : 16;
    if (b->capacity > INT32_MAX / 4) return false;
    tn_entry *entry = tni_alloc((size_t)capacity * sizeof *entry);
    int *index = entry ? tni_alloc((size_t)capacity * 2 * sizeof *index) : NULL;
    if (!index) {
        if (entry) tni_free(entry, (size_t)capacity * sizeof *entry);
        return false;
    }
    if (b->capacity) {
        memcpy(entry, b->list.entry, (size_t)b->list.n * sizeof *entry);
        tni_free(b->list.entry, (size_t)b->capacity * sizeof *entry);
        tni_free(b->index, b->index_size * sizeof *index);
    }
    b->list.entry = entry;
    b->capacity = capacity;
    b->index = index;
    b->index_size = (size_t)capacity * 2;
    fill_index(b);
    return true;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void drop_list(void *object)
{
    block *b = object;
    for (int i = 0; i < b->list.n; i++) {
        tn_drop(b->list.entry[i].tensor);
        tni_strfree((char *)b->list.entry[i].name);
    }
    if (b->capacity) {
        tni_free(b->list.entry, (size_t)b->capacity * sizeof *b->list.entry);
        tni_free(b->index, b->index_size * sizeof *b->index);
    }
    for (int i = 0; i < b->n_versions; i++) tni_strfree(b->versions[i].path);
    if (b->versions) tni_free(b->versions, (size_t)b->versions_capacity * sizeof *b->versions);
    tni_free(b, sizeof *b);
}

tn_list *tn_list_new(void)
{
    block *b = tni_calloc(sizeof *b);
    if (!b) return NULL;
    return tni_scope_add(b, drop_list) == TN_OK ? &b->list : NULL;
}

/* ---- versions: in the order of a walk, so the newest record is the likeliest one ---------------- */

static record *find_version(const block *b, const char *path)
{
    for (int i = b->n_versions - 1; i >= 0; i--)
        if (strcmp(b->versions[i].path, path) == 0) return &b->versions[i];
    return NULL;
}

/* Appends without looking for the path; takes over its memory. */
static tn_status push_version(block *b, char *path, int version)
{
    if (!path) return TN_E_NOMEM;
    if (b->n_versions == b->versions_capacity) {
        int wanted = b->versions_capacity ? b->versions_capacity * 2 : 16;
        record *larger = tni_alloc((size_t)wanted * sizeof *larger);
        if (!larger) {
            tni_strfree(path);
            return TN_E_NOMEM;
        }
        if (b->versions) {
            memcpy(larger, b->versions, (size_t)b->n_versions * sizeof *larger);
            tni_free(b->versions, (size_t)b->versions_capacity * sizeof *larger);
        }
        b->versions = larger;
        b->versions_capacity = wanted;
    }
    b->versions[b->n_versions++] = (record){ path, version };
    return TN_OK;
}

int tn_list_version(const tn_list *list, const char *path)
{
    const record *r = list && path ? find_version((const block *)list, path) : NULL;
    return r ? r->version : 0;
}

tn_status tn_list_set_version(tn_list *list, const char *path, int version)
{
    if (!list) return tni_poison("tn_list_set_version", "the list");
    if (!path || version < 0)
        return tni_error(TN_E_INVALID, "tn_list_set_version: %s: want a path and a version >= 0",
                         path ? "a version below 0" : "the path is NULL");
    block *b = (block *)list;
    record *r = find_version(b, path);
    if (!r && version == 0) return TN_OK;
    if (!r) return push_version(b, tni_strdup(path), version);
    r->version = version;
    if (version) return TN_OK;
    tni_strfree(r->path); /* 0 is what is not recorded */
    *r = b->versions[--b->n_versions];
    return TN_OK;
}

tn_status tni_list_push_version(tn_list *list, const char *path, int version)
{
    return push_version((block *)list, tni_strdup(path), version);
}

int tni_list_versions(const tn_list *list, int i, const char **path)
{
    const block *b = (const block *)list;
    if (i < 0 || i >= b->n_versions) return 0;
    *path = b->versions[i].path;
    return b->versions[i].version;
}

static tn_status copy_versions(tn_list *to, const tn_list *from)
{
    const block *b = (const block *)from;
    for (int i = 0; i < b->n_versions; i++) {
        const record *r = &b->versions[i];
        if (push_version((block *)to, tni_strdup(r->path), r->version) != TN_OK) return TN_E_NOMEM;
    }
    return TN_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Appends an entry whose name it takes over. */
static tn_status push(tn_list *list, char *name, tn_entry entry)
{
    block *b = (block *)list;
    if (!name) return TN_E_NOMEM;
    if (!grow(b)) {
        tni_strfree(name);
        return TN_E_NOMEM;
    }
    int *cell = locate(b, name);
    entry.name = name;
    tn_keep(entry.tensor);
    list->entry[list->n++] = entry;
    if (!*cell) *cell = list->n;
    return TN_OK;
}

tn_status tni_list_push(tn_list *list, const char *prefix, const char *path, const char *name,
                        tn_entry entry)
{
    size_t n = strlen(prefix) + strlen(path) + (path[0] != '\0') + strlen(name) + 1;
    char *full = tni_alloc(n); /* exactly: tni_strfree gives back strlen + 1 bytes */
    if (full) snprintf(full, n, "%s%s%s%s", prefix, path, path[0] ? "." : "", name);
    return push(list, full, entry);
}

const tn_entry *tni_list_find(const tn_list *list, const char *name)
{
    const block *b = (const block *)list;
    int at = b->capacity ? *locate(b, name) : 0;
    return at ? &list->entry[at - 1] : NULL;
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
        return tni_error(TN_E_NAME,
                         "tn_list_add: \"%s\" is in the list already (%s): want another name for "
                         "%s",
                         name, tni_text(tni_list_find(list, name)->tensor), tni_text(t));
    return push(list, tni_strdup(name),
                (tn_entry){ .tensor = t, .kind = TN_PARAMETER, .persistent = true });
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
    if (!e)
        return push(list, tni_strdup(name),
                    (tn_entry){ .tensor = t, .kind = TN_PARAMETER, .persistent = true });
    tn_tensor *old = e->tensor;
    e->tensor = tn_keep(t);
    tn_drop(old);
    return TN_OK;
}

tn_status tn_list_remove(tn_list *list, const char *name)
{
    if (!list) return tni_poison("tn_list_remove", "the list");
    tn_entry *e = name ? (tn_entry *)tni_list_find(list, name) : NULL;
    if (!e) return no_name("tn_list_remove", list, name);
    int i = (int)(e - list->entry);
    tn_drop(e->tensor);
    tni_strfree((char *)e->name);
    memmove(e, e + 1, (size_t)(list->n - i - 1) * sizeof *e);
    list->n--;
    fill_index((block *)list);
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
    char *name = tni_strdup(to);
    if (!name) return TN_E_NOMEM;
    tni_strfree((char *)e->name);
    e->name = name;
    fill_index((block *)list);
    return TN_OK;
}

tn_list *tni_list_copy(const tn_list *list)
{
    tn_list *copy = tn_list_new();
    for (int i = 0; copy && i < list->n; i++)
        if (push(copy, tni_strdup(list->entry[i].name), list->entry[i]) != TN_OK) return NULL;
    return copy && copy_versions(copy, list) == TN_OK ? copy : NULL;
}

tn_list *tn_list_concat(tn_list *a, tn_list *b)
{
    if (!a || !b) {
        tni_poison("tn_list_concat", a ? "b" : "a");
        return NULL;
    }
    tn_list *joined = tn_list_new();
    const tn_list *parts[] = { a, b };
    for (int k = 0; joined && k < 2; k++) {
        for (int i = 0; i < parts[k]->n; i++) {
            const tn_entry *e = &parts[k]->entry[i];
            const tn_entry *other = k ? tni_list_find(a, e->name) : NULL;
            if (other)
                return tni_fail(TN_E_NAME,
                                "tn_list_concat: both lists have \"%s\": %s of %s and %s of %s: "
                                "want different names (tn_named_parameters takes a prefix)",
                                e->name, tni_shape_text(&other->tensor->shape),
                                other->owner ? other->owner->type->name : "the first",
                                tni_shape_text(&e->tensor->shape),
                                e->owner ? e->owner->type->name : "the second");
            if (push(joined, tni_strdup(e->name), *e) != TN_OK) return NULL;
        }
    }
    if (joined && (copy_versions(joined, a) != TN_OK || copy_versions(joined, b) != TN_OK))
        return NULL;
    return joined;
}

tn_tensor *tn_list_get(const tn_list *list, const char *name)
{
    if (!list) {
        tni_poison("tn_list_get", "the list");
        return NULL;
    }
    const tn_entry *e = name ? tni_list_find(list, name) : NULL;
    return e ? e->tensor
             : tni_fail(TN_E_NAME, "tn_list_get: \"%s\": not among the %d entries",
                        name ? name : "(NULL)", list->n);
}

/* ---- lists of a model ------------------------------------------------------------------------ */

typedef struct collector {
    tn_list *list;
    const char *prefix;
    bool parameters, buffers, persistent_only, no_recurse;
    bool once;  /* each tensor under its first name only */
    bool state; /* with extra state, hooks and versions */
    tni_map seen;
} collector;

static tn_status collect_kind(collector *c, tn_module *m, const char *path, tni_slot_kind kind)
{
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        bool persistent = kind == TNI_PARAMETER || slot->persistence == TN_PERSISTENT;
        if (slot->kind != kind || tni_none(slot->tensor)) continue;
        if (c->persistent_only && !persistent) continue;
        int is_new = c->once ? tni_map_put(&c->seen, slot->tensor, slot->tensor) : 1;
        if (is_new < 0) return TN_E_NOMEM;
        if (!is_new) continue;
        tn_entry entry = { .tensor = slot->tensor, .persistent = persistent, .owner = m };
        entry.kind = kind == TNI_PARAMETER ? TN_PARAMETER : TN_BUFFER;
        tn_status status = tni_list_push(c->list, c->prefix, path, slot->name, entry);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status collect_extra(collector *c, tn_module *m, const char *path)
{
    tn_tensor *t = m->type->extra_state(m);
    if (!t) return tni_poison(m->type->name, "its extra state");
    tn_entry entry = { .tensor = t, .kind = TN_BUFFER, .persistent = true, .owner = m };
    return tni_list_push(c->list, c->prefix, path, TNI_EXTRA_STATE, entry);
}

/* What a file holds of a module besides its slots; then its hooks may edit the list. */
static tn_status collect_state(collector *c, tn_module *m, const char *path)
{
    tn_status status = m->type->extra_state ? collect_extra(c, m, path) : TN_OK;
    if (status != TN_OK) return status;
    size_t n = strlen(c->prefix) + strlen(path) + 2;
    char *prefix = tni_alloc(n);
    if (!prefix) return TN_E_NOMEM;
    snprintf(prefix, n, "%s%s%s", c->prefix, path, path[0] ? "." : "");
    if (tni_has_hook(m, TNI_HOOK_STATE_DICT))
        status = tni_run_state_hooks(m, TNI_HOOK_STATE_DICT, c->list, prefix);
    size_t end = strlen(prefix);
    if (end && prefix[end - 1] == '.') prefix[end - 1] = '\0'; /* a path, no longer a prefix */
    if (status == TN_OK)
        status = push_version((block *)c->list, tni_strdup(prefix), tni_state_version(m));
    tni_free(prefix, n);
    return status;
}

static tn_status collect(tn_module *m, const char *path, void *user)
{
    collector *c = user;
    tn_status status = c->parameters ? collect_kind(c, m, path, TNI_PARAMETER) : TN_OK;
    if (status == TN_OK && c->buffers) status = collect_kind(c, m, path, TNI_BUFFER);
    return status == TN_OK && c->state ? collect_state(c, m, path) : status;
}

static tn_list *collected(const char *function, tn_module *m, collector c)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    c.list = tn_list_new();
    if (!c.list) return NULL;
    if (!c.prefix) c.prefix = "";
    tn_status status = c.no_recurse ? collect(m, "", &c)
                                    : tni_walk(m, c.once ? TNI_ONCE : TNI_EVERY, collect, NULL, &c);
    tni_map_free(&c.seen);
    return status == TN_OK ? c.list : NULL;
}

tn_list *tn_list_parameters(tn_module *m, tn_walk_options o)
{
    return collected("tn_list_parameters", m,
                     (collector){ .prefix = o.prefix,
                                  .parameters = true,
                                  .once = !o.keep_duplicates,
                                  .no_recurse = o.no_recurse });
}

tn_list *tn_list_buffers(tn_module *m, tn_walk_options o)
{
    return collected("tn_list_buffers", m,
                     (collector){ .prefix = o.prefix,
                                  .buffers = true,
                                  .once = !o.keep_duplicates,
                                  .no_recurse = o.no_recurse,
                                  .persistent_only = o.persistent_only });
}

tn_list *tn_parameters(tn_module *m)
{
    return tn_list_parameters(m, (tn_walk_options){ 0 });
}

tn_list *tn_named_parameters(tn_module *m, const char *prefix)
{
    return tn_list_parameters(m, (tn_walk_options){ .prefix = prefix });
}

tn_list *tn_buffers(tn_module *m)
{
    return tn_list_buffers(m, (tn_walk_options){ 0 });
}

tn_list *tn_state_dict(tn_module *m, const char *prefix)
{
    return collected("tn_state_dict", m,
                     (collector){ .prefix = prefix,
                                  .parameters = true,
                                  .buffers = true,
                                  .persistent_only = true,
                                  .state = true });
}

tn_list *tni_slot_list(tn_module *m)
{
    return collected("tn_load_state_dict", m,
                     (collector){ .parameters = true, .buffers = true, .persistent_only = true });
}
