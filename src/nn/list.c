/*
 * list.c - lists of named tensors: made by hand or by walking a model.
 *
 * A list belongs to the current scope and keeps its tensors and names. After the public struct come
 * the allocation it grows in, and a table of names. The table maps a name to its entry's serial
 * number. Serial numbers ascend with the entries and never change, so finding an entry is a binary
 * search, and removing one shifts the shorter side, before or after it.
 */
#include "nn/module.h"

/* The state version of the module at a path. */
typedef struct record {
    char *path;
    int version;
} record;

typedef struct block {
    tn_list list; /* first: a tn_list * is a block *. Its entries may start inside the room */
    tn_entry *room;
    int64_t *serial; /* of each entry, ascending */
    size_t capacity, serial_capacity, versions_capacity;
    int64_t next;  /* serial number, from 1 */
    int repeated;  /* entries with an earlier one's name: the table has the first */
    tni_map names; /* -> serial number */
    record *versions;
    int n_versions;
    tni_map paths; /* of versions -> place + 1 */
} block;

/* ---- finding and making room ----------------------------------------------------------------- */

static void *as_value(int64_t n)
{
    return (void *)(intptr_t)n;
}

static int first_of(const block *b)
{
    return b->capacity ? (int)(b->list.entry - b->room) : 0;
}

/* The index of the first entry with a name, -1: none. */
static int find(const block *b, const char *name)
{
    int64_t wanted = (intptr_t)tni_map_get(&b->names, name);
    if (!wanted || b->list.n <= 0) return -1;
    const int64_t *serial = b->serial + first_of(b);
    int i = (int)tni_upto(serial, sizeof *serial, (size_t)b->list.n, wanted) - 1;
    return i >= 0 && serial[i] == wanted ? i : -1;
}

/* Moves the entries to the beginning of the room. */
static void move_down(block *b)
{
    const size_t n = (size_t)b->list.n;
    if (n) memmove(b->serial, b->serial + first_of(b), n * sizeof *b->serial);
    if (n) memmove(b->room, b->list.entry, n * sizeof *b->room);
    b->list.entry = b->room;
}

/* Makes room for one more entry after the last. */
static bool grow(block *b)
{
    const size_t n = (size_t)b->list.n;
    if (b->list.n > INT32_MAX / 2)
        return tni_fail(TN_E_NOMEM, "a list of %d entries: no more fit", b->list.n);
    if ((size_t)first_of(b) + n == b->capacity) {
        move_down(b);
        size_t more = n < b->capacity / 2 ? 1 : b->capacity - n + 1;
        if (!tni_room(&b->room, &b->capacity, n, more, sizeof *b->room)) return false;
        b->list.entry = b->room;
    }
    return tni_room(&b->serial, &b->serial_capacity, (size_t)first_of(b) + n, 1, sizeof *b->serial);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void drop_list(void *object)
{
    block *b = object;
    for (int i = 0; i < b->list.n; i++) {
        tn_drop(b->list.entry[i].tensor);
        tni_strfree((char *)b->list.entry[i].name);
    }
    tni_room_free(&b->room, &b->capacity, sizeof *b->room);
    tni_room_free(&b->serial, &b->serial_capacity, sizeof *b->serial);
    tni_map_free(&b->names);
    tni_map_free(&b->paths);
    for (int i = 0; i < b->n_versions; i++) tni_strfree(b->versions[i].path);
    tni_room_free(&b->versions, &b->versions_capacity, sizeof *b->versions);
    tni_free(b, sizeof *b);
}

tn_list *tn_list_new(void)
{
    block *b = tni_calloc(sizeof *b);
    if (!b) return NULL;
    b->names.names = b->paths.names = true;
    return tni_scope_add(b, drop_list) == TN_OK ? &b->list : NULL;
}

/* ---- versions -------------------------------------------------------------------------------- */

static record *find_version(const block *b, const char *path)
{
    intptr_t at = (intptr_t)tni_map_get(&b->paths, path);
    return at ? &b->versions[at - 1] : NULL;
}

static tn_status add_version(block *b, const char *path, int version)
{
    if (!tni_room(&b->versions, &b->versions_capacity, (size_t)b->n_versions, 1, sizeof(record)))
        return TN_E_NOMEM;
    char *copy = tni_strdup(path);
    if (!copy) return TN_E_NOMEM;
    if (tni_map_put(&b->paths, copy, as_value(b->n_versions + 1)) < 0) {
        tni_strfree(copy);
        return TN_E_NOMEM;
    }
    b->versions[b->n_versions++] = (record){ copy, version };
    return TN_OK;
}

/* Removes the record; the last one takes its place. */
static void remove_version(block *b, record *r)
{
    char *path = r->path;
    tni_map_remove(&b->paths, path);
    *r = b->versions[--b->n_versions];
    if (r->path != path) tni_map_put(&b->paths, r->path, as_value(r - b->versions + 1));
    tni_strfree(path);
}

/* Records a version, replacing an existing one. */
static tn_status set_version(block *b, const char *path, int version)
{
    record *r = find_version(b, path);
    if (!r) return version ? add_version(b, path, version) : TN_OK;
    r->version = version;
    if (!version) remove_version(b, r); /* 0 means not recorded */
    return TN_OK;
}

int tni_list_version_n(const tn_list *list, const char *path, size_t n)
{
    const block *b = (const block *)list;
    intptr_t at = (intptr_t)tni_map_get_name(&b->paths, path, n);
    return at ? b->versions[at - 1].version : 0;
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
    return set_version((block *)list, path, version);
}

tn_status tni_list_push_version(tn_list *list, const char *path, int version)
{
    return set_version((block *)list, path, version);
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
        if (set_version((block *)to, r->path, r->version) != TN_OK) return TN_E_NOMEM;
    }
    return TN_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Appends an entry whose name it takes over. */
static tn_status push(tn_list *list, char *name, tn_entry entry)
{
    block *b = (block *)list;
    if (!name) return TN_E_NOMEM;
    bool is_new = !tni_map_get(&b->names, name);
    int64_t serial = b->next + 1;
    if (!grow(b) || (is_new && tni_map_put(&b->names, name, as_value(serial)) < 0)) {
        tni_strfree(name);
        return TN_E_NOMEM;
    }
    b->repeated += !is_new;
    entry.name = name;
    tn_keep(entry.tensor);
    b->serial[first_of(b) + list->n] = b->next = serial;
    list->entry[list->n++] = entry;
    return TN_OK;
}

tn_status tni_list_push(tn_list *list, const char *prefix, const char *path, const char *name,
                        tn_entry entry)
{
    size_t n = strlen(prefix) + strlen(path) + (path[0] != '\0') + strlen(name) + 1;
    char *full = tni_alloc(n); /* exact: tni_strfree frees strlen + 1 bytes */
    if (full) snprintf(full, n, "%s%s%s%s", prefix, path, path[0] ? "." : "", name);
    return push(list, full, entry);
}

const tn_entry *tni_list_find(const tn_list *list, const char *name)
{
    int i = find((const block *)list, name);
    return i < 0 ? NULL : &list->entry[i];
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

/* Removes a name from the table; if later entries have it too, the next one becomes its first. */
static void forget_name(block *b, const char *name, int from)
{
    tni_map_remove(&b->names, name);
    for (int i = from; b->repeated && i < b->list.n; i++) {
        if (strcmp(b->list.entry[i].name, name) != 0) continue;
        tni_map_put(&b->names, b->list.entry[i].name, as_value(b->serial[first_of(b) + i]));
        b->repeated--;
        return;
    }
}

/* Closes the gap at index i from the side with fewer entries. */
static void close_gap(block *b, int i)
{
    tn_entry *entry = b->list.entry;
    int64_t *serial = b->serial + first_of(b);
    size_t before = (size_t)i, behind = (size_t)(b->list.n - i - 1);
    if (before < behind) {
        memmove(entry + 1, entry, before * sizeof *entry);
        memmove(serial + 1, serial, before * sizeof *serial);
        b->list.entry++;
    } else {
        memmove(entry + i, entry + i + 1, behind * sizeof *entry);
        memmove(serial + i, serial + i + 1, behind * sizeof *serial);
    }
    b->list.n--;
}

tn_status tn_list_remove(tn_list *list, const char *name)
{
    if (!list) return tni_poison("tn_list_remove", "the list");
    block *b = (block *)list;
    int i = name ? find(b, name) : -1;
    if (i < 0) return no_name("tn_list_remove", list, name);
    tn_entry old = list->entry[i];
    forget_name(b, old.name, i + 1);
    close_gap(b, i);
    tn_drop(old.tensor);
    tni_strfree((char *)old.name);
    return TN_OK;
}

tn_status tn_list_rename(tn_list *list, const char *from, const char *to)
{
    if (!list) return tni_poison("tn_list_rename", "the list");
    block *b = (block *)list;
    int i = from ? find(b, from) : -1;
    if (i < 0) return no_name("tn_list_rename", list, from);
    if (!to || !to[0] || tni_list_find(list, to))
        return tni_error(TN_E_NAME, "tn_list_rename: %s to \"%s\": want a name that is free", from,
                         to ? to : "(NULL)");
    char *name = tni_strdup(to);
    if (!name) return TN_E_NOMEM;
    if (tni_map_put(&b->names, name, as_value(b->serial[first_of(b) + i])) < 0) {
        tni_strfree(name);
        return TN_E_NOMEM;
    }
    char *old = (char *)list->entry[i].name;
    forget_name(b, old, i + 1);
    list->entry[i].name = name;
    tni_strfree(old);
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

/* Adds what a file holds of a module besides its slots; then its hooks may edit the list. */
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
    if (status == TN_OK) status = set_version((block *)c->list, prefix, tni_state_version(m));
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
    c.list = tn_list_new();
    if (!c.list) return NULL;
    if (!c.prefix) c.prefix = "";
    size_t guarded = tni_scope_guard();
    tn_status status = c.no_recurse ? collect(m, "", &c)
                                    : tni_walk(m, c.once ? TNI_ONCE : TNI_EVERY, collect, NULL, &c);
    tni_map_free(&c.seen);
    return tni_list_made(guarded, function, status == TN_OK ? c.list : NULL);
}

static tn_list *parameters_of(const char *function, tn_module *m, tn_walk_options o)
{
    return collected(function, m,
                     (collector){ .prefix = o.prefix,
                                  .parameters = true,
                                  .once = !o.keep_duplicates,
                                  .no_recurse = o.no_recurse });
}

static tn_list *buffers_of(const char *function, tn_module *m, tn_walk_options o)
{
    return collected(function, m,
                     (collector){ .prefix = o.prefix,
                                  .buffers = true,
                                  .once = !o.keep_duplicates,
                                  .no_recurse = o.no_recurse,
                                  .persistent_only = o.persistent_only });
}

tn_list *tn_parameters_with(tn_module *m, tn_walk_options o)
{
    return parameters_of("tn_parameters_with", m, o);
}

tn_list *tn_buffers_with(tn_module *m, tn_walk_options o)
{
    return buffers_of("tn_buffers_with", m, o);
}

tn_list *tn_parameters(tn_module *m)
{
    return parameters_of("tn_parameters", m, (tn_walk_options){ 0 });
}

tn_list *tn_named_parameters(tn_module *m, const char *prefix)
{
    return parameters_of("tn_named_parameters", m, (tn_walk_options){ .prefix = prefix });
}

tn_list *tn_buffers(tn_module *m)
{
    return buffers_of("tn_buffers", m, (tn_walk_options){ 0 });
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
