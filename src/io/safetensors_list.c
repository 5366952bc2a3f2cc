/*
 * safetensors_list.c - a file, or a part of a checkpoint, as a list of tensors, and its metadata.
 *
 * Metadata about the tensors is used here: other names of a tensor become entries of the same
 * tensor, state versions are recorded in the list. The rest is returned to the caller.
 */
#include "io/choice.h"
#include "io/json.h"
#include "nn/module.h"
#include "optim/optim.h"

#define bad(file, ...) tni_input_bad(&(file)->in, __VA_ARGS__)

/* ---- ties ------------------------------------------------------------------------------------ */

bool tni_same_part(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");
    return a[n] && !strncmp(a, b, n + 1);
}

/* Whether name may be another name of the tensor that is stored as `stored`. */
static bool can_be_tie(const tni_map *names, bool checkpoint, const char *name, const char *stored)
{
    size_t n = strlen(name);
    return n > 0 && n <= TNI_NAME_LIMIT && !tni_map_get(names, name) &&
           tni_map_get(names, stored) && (!checkpoint || tni_same_part(name, stored));
}

bool tni_old_tie(const tni_map *names, bool checkpoint, const char *key, const char *value)
{
    static const char *const own[] = { TNI_FORMAT, TNI_WRITER, TNI_CHECKPOINT, TNI_VERSIONS,
                                       TNI_CHECKSUM };
    for (int i = 0; i < (int)(sizeof own / sizeof *own); i++)
        if (!strcmp(key, own[i])) return false;
    return can_be_tie(names, checkpoint, key, value);
}

static bool is_checkpoint(const tni_safetensors *file)
{
    return tni_safetensors_string(file, TNI_CHECKPOINT) != NULL;
}

/* Whether ties are plain pairs of the metadata. */
static bool has_old_ties(const tni_safetensors *file)
{
    return tni_safetensors_string(file, TNI_WRITER) && !tni_safetensors_string(file, TNI_TIES);
}

static tn_status add_tie(tni_safetensors *file, const char *name, const char *stored)
{
    tni_tie tie = { name, tni_names_find(&file->entries, stored) };
    int added = tni_names_add(&file->ties, &file->tie, &tie, sizeof tie);
    if (!added) return bad(file, TNI_TIES ": %.64s is there twice", name);
    return added > 0 ? TN_OK : tni_pending();
}

/* A tie is ignored if another program has removed the tensor or stored it in full. */
static tn_status read_ties(tni_safetensors *file, char *text)
{
    const bool checkpoint = is_checkpoint(file);
    tni_json json = tni_json_of(text, strlen(text)), *j = &json;
    bool object = tni_json_open(j, '{');
    const char *name, *stored;
    while (object && tni_json_next(j, '}') && (name = tni_json_key(j))) {
        stored = tni_json_string(j);
        object = stored;
        if (!stored || !can_be_tie(&file->entries.places, checkpoint, name, stored)) continue;
        TNI_TRY(add_tie(file, name, stored));
    }
    if (object) tni_json_end(j);
    if (j->problem) return tni_json_bad(&file->in, TNI_TIES, j);
    return object ? TN_OK : bad(file, TNI_TIES " is not an object of strings");
}

static tn_status read_versions(tni_safetensors *file, char *text)
{
    tni_json json = tni_json_of(text, strlen(text)), *j = &json;
    if (!tni_json_open(j, '{'))
        return j->problem ? tni_json_bad(&file->in, TNI_VERSIONS, j)
                          : bad(file, TNI_VERSIONS " is not an object of numbers");
    tni_version v;
    while (tni_json_next(j, '}') && (v.path = tni_json_key(j))) {
        int64_t version = 0;
        tni_json_integer(j, &version);
        if (j->problem) break;
        if (version < 1 || version > INT32_MAX)
            return bad(file, TNI_VERSIONS ": %.64s: not a number from 1", v.path);
        v.version = (int)version;
        int added = tni_names_add(&file->versions, &file->version, &v, sizeof v);
        if (!added) return bad(file, TNI_VERSIONS ": %.64s is there twice", v.path);
        if (added < 0) return tni_pending();
    }
    return tni_json_end(j) ? TN_OK : tni_json_bad(&file->in, TNI_VERSIONS, j);
}

tn_status tni_safetensors_take_up(tni_safetensors *file)
{
    /* the strings are the library's own, so reading may destroy them */
    char *ties = (char *)tni_safetensors_string(file, TNI_TIES);
    char *versions = (char *)tni_safetensors_string(file, TNI_VERSIONS);
    TNI_TRY(ties ? read_ties(file, ties) : TN_OK);
    const bool old = has_old_ties(file), checkpoint = is_checkpoint(file);
    for (int i = 0; old && i < file->pairs.n; i++) {
        const tni_pair *pair = &file->pair[i];
        if (tni_old_tie(&file->entries.places, checkpoint, pair->key, pair->value))
            TNI_TRY(add_tie(file, pair->key, pair->value));
    }
    if (versions) TNI_TRY(read_versions(file, versions));
    const int64_t most = tn_get_file_limits().tensors;
    if (file->entries.n + (int64_t)file->ties.n > most)
        return bad(file, "%d tensors and %d ties" TNI_MOST_READ, file->entries.n, file->ties.n,
                   most);
    if (file->versions.n > most)
        return bad(file, TNI_VERSIONS " of %d modules" TNI_MOST_READ, file->versions.n, most);
    return TN_OK;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Pairs about the tensors or the file have been used: they are not returned. */
tn_status tni_safetensors_metadata(const tni_safetensors *file, const char *skip, tn_metadata *out)
{
    const bool old = has_old_ties(file), checkpoint = is_checkpoint(file);
    const size_t length = strlen(skip);
    tni_bytes kept = { 0 };
    for (int i = 0; i < file->pairs.n; i++) {
        const char *key = file->pair[i].key;
        if (length && !strncmp(key, skip, length)) continue;
        if (!strcmp(key, TNI_TIES) || !strcmp(key, TNI_VERSIONS) || !strcmp(key, TNI_ROLES) ||
            !strcmp(key, TNI_CHECKSUM))
            continue;
        if (old && tni_old_tie(&file->entries.places, checkpoint, key, file->pair[i].value))
            continue;
        tni_bytes_add(&kept, key, strlen(key) + 1);
        tni_bytes_add(&kept, file->pair[i].value, strlen(file->pair[i].value) + 1);
    }
    return tni_metadata_of(&kept, out);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The part that a name belongs to (NULL: none that is read); *rest: the name within it. */
static const tni_reading *part_of(const tni_map *parts, const char *name, const char **rest)
{
    const tni_reading *all = tni_map_get(parts, "");
    const char *dot = strchr(name + (name[0] == '.'), '.'); /* parts.c has names like ".a.b" */
    size_t n = dot ? (size_t)(dot - name) : strlen(name);
    *rest = all ? name : name + n + (dot != NULL);
    return all ? all : tni_map_get_name(parts, name, n);
}

/* Whether rest of a name is one within its part: "model" alone names a module, no tensor. */
static bool is_within(const char *name, const char *rest)
{
    return rest == name || rest[-1] == '.';
}

static tn_status add_tensors(tni_safetensors *file, const tni_map *parts)
{
    const tni_reading *all = tni_map_get(parts, "");
    bool picks = false; /* if the key names anything, else all is there to be listed */
    for (int i = 0; all && all->choice && !picks && i < file->entries.n; i++)
        picks = !tni_outside(all->choice, file->entry[i].name);
    for (int i = 0; i < file->entries.n; i++) {
        const tni_safetensor *e = &file->entry[i];
        const char *name;
        const tni_reading *part = part_of(parts, e->name, &name);
        if (!part || !is_within(e->name, name)) continue;
        tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
        tni_choice none = { 0 }, *choice = part->choice ? part->choice : &none;
        if (picks && tni_outside(choice, name)) continue;
        if (!tni_file_dtype_wanted(e->stored, &choice->o)) {
            TNI_TRY(tni_leave_out(choice, &file->in, e->name, e->stored->safetensors, e->stored));
            continue;
        }
        bool skipped = part->optimizer && !tni_optim_reads(part->optimizer, name);
        /* one that is not read has shape and dtype: a 0, expanded */
        entry.tensor = skipped ? tn_expand(tn_full_as(TN_SCALAR, 0, e->dtype, tn_cpu()), e->shape)
                               : tni_safetensors_tensor(file, e);
        TNI_TRY(entry.tensor ? tni_list_push(part->list, "", "", name, entry) : tni_pending());
    }
    return TN_OK;
}

static tn_status add_ties(const tni_safetensors *file, const tni_map *parts)
{
    for (int i = 0; i < file->ties.n; i++) {
        const char *tie = file->tie[i].name, *of = file->entry[file->tie[i].entry].name;
        const char *name, *stored;
        const tni_reading *part = part_of(parts, tie, &name), *other = part_of(parts, of, &stored);
        if (!part || other != part || !is_within(tie, name) || !is_within(of, stored))
            continue; /* never in a checkpoint */
        const tn_entry *known = tni_list_find(part->list, stored);
        if (!known) continue;          /* it was left out */
        const tn_entry entry = *known; /* a copy: the list may move */
        TNI_TRY(tni_list_push(part->list, "", "", name, entry));
    }
    return TN_OK;
}

/* The path of a part's module itself is the part's name. */
static tn_status add_versions(const tni_safetensors *file, const tni_map *parts)
{
    for (int i = 0; i < file->versions.n; i++) {
        const char *path;
        const tni_reading *part = part_of(parts, file->version[i].path, &path);
        if (part) TNI_TRY(tni_list_push_version(part->list, path, file->version[i].version));
    }
    return TN_OK;
}

tn_status tni_safetensors_read(tni_safetensors *file, const tni_map *parts)
{
    for (size_t i = 0; i < parts->capacity; i++) {
        tni_reading *part = parts->cell[i].value;
        if (part && !(part->list = tn_list_new())) return tni_pending();
    }
    tn_scope scope = tn_scope_begin();
    tn_status status = add_tensors(file, parts);
    if (status == TN_OK) status = add_ties(file, parts);
    if (status == TN_OK) status = add_versions(file, parts);
    tn_scope_end(scope);
    return status;
}

/* What a buffer is, by name. Only a description: what is no role of ours, or no JSON, is left. */
static void add_roles(const tni_safetensors *file, tn_list *list)
{
    char *text = (char *)tni_safetensors_string(file, TNI_ROLES); /* ours: reading destroys it */
    tni_json j = tni_json_of(text, strlen(text));
    const char *name, *role;
    if (!tni_json_open(&j, '{')) return;
    while (tni_json_next(&j, '}') && (name = tni_json_key(&j)) && (role = tni_json_string(&j))) {
        tn_entry *e = (tn_entry *)tni_list_find(list, name);
        for (unsigned r = TN_CONSTANT; e && r <= TN_DIRECTION; r += TN_CONSTANT)
            if (!strcmp(role, tn_role_name(r))) e->kind = TN_BUFFER, e->role = r;
    }
}

tn_list *tni_safetensors_list(tni_safetensors *file, const char *part, tni_choice *choice)
{
    tni_reading one = { .choice = choice };
    tni_map parts = { .names = true };
    bool read = tni_map_put(&parts, part, &one) > 0 && tni_safetensors_read(file, &parts) == TN_OK;
    tni_map_free(&parts);
    if (read && tni_safetensors_string(file, TNI_ROLES)) add_roles(file, one.list);
    return read ? one.list : NULL;
}
