/*
 * safetensors_list.c - a file, or a part of a checkpoint, as a list of tensors, and its metadata.
 *
 * Metadata about the tensors is used here: other names of a tensor become entries of the same
 * tensor, state versions are recorded in the list. The rest is returned to the caller.
 */
#include "io/choice.h"
#include "io/json.h"
#include "nn/module.h"

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

/* ---- objects in the metadata ----------------------------------------------------------------- */

/* Takes a pair: its value, or NULL for what is no string, or 0 for what is no integer. */
typedef tn_status taker(const tni_safetensors *file, tn_list *list, const char *name,
                        const char *text, int64_t number);

static tn_status read_object(const tni_safetensors *file, const char *key, tn_list *list,
                             taker *take)
{
    char *text = (char *)tni_safetensors_string(file, key); /* ours: reading destroys it */
    if (!text) return TN_OK;
    tni_json json = tni_json_of(text, strlen(text)), *j = &json;
    int64_t left = tn_get_file_limits().tensors;
    const bool object = tni_json_open(j, '{');
    for (const char *name; object && tni_json_next(j, '}') && (name = tni_json_key(j));) {
        int64_t number = 0;
        if (left-- == 0) return bad(file, "%s: too many pairs (tn_set_file_limits)", key);
        const char *string = tni_json_string(j);
        if (!string) tni_json_integer(j, &number);
        if (!j->problem) TNI_TRY(take(file, list, name, string, number));
    }
    if (object) tni_json_end(j);
    if (j->problem) return tni_json_bad(&file->in, key, j);
    return object ? TN_OK : bad(file, "%s is not an object", key);
}

/* A tie is ignored if another program has removed the tensor or stored it in full. */
static tn_status take_tie(const tni_safetensors *file, tn_list *list, const char *name,
                          const char *stored, int64_t number)
{
    (void)number;
    if (!stored) return bad(file, TNI_TIES ": %.64s is not a string", name);
    if (!can_be_tie(&file->entries.places, is_checkpoint(file), name, stored)) return TN_OK;
    const tn_entry *known = tni_list_find(list, stored);
    if (tni_list_find(list, name)) return bad(file, TNI_TIES ": %.64s is there twice", name);
    if (!known) return TN_OK;      /* it was left out */
    const tn_entry entry = *known; /* a copy: the list may move */
    return tni_list_push(list, "", "", name, entry);
}

static tn_status take_version(const tni_safetensors *file, tn_list *list, const char *path,
                              const char *text, int64_t version)
{
    if (text || version < 1 || version > INT32_MAX)
        return bad(file, TNI_VERSIONS ": %.64s: not a number from 1", path);
    if (tn_list_version(list, path)) return bad(file, TNI_VERSIONS ": %.64s is there twice", path);
    return tni_list_push_version(list, path, (int)version);
}

static tn_status add_ties(const tni_safetensors *file, tn_list *list)
{
    const bool old = has_old_ties(file);
    TNI_TRY(read_object(file, TNI_TIES, list, take_tie));
    for (int i = 0; old && i < file->pairs.n; i++) {
        const tni_pair *pair = &file->pair[i];
        if (tni_old_tie(&file->entries.places, is_checkpoint(file), pair->key, pair->value))
            TNI_TRY(take_tie(file, list, pair->key, pair->value, 0));
    }
    const int64_t n = file->entries.n, most = tn_get_file_limits().tensors;
    if (list->n <= most) return TN_OK;
    return bad(file, "%" PRId64 " tensors and %" PRId64 " ties" TNI_MOST_READ, n, list->n - n,
               most);
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

static tn_status add_tensors(tni_safetensors *file, tni_choice *choice, tn_list *list)
{
    bool picks = false; /* if the key names anything, else all is there to be listed */
    for (int i = 0; !picks && i < file->entries.n; i++)
        picks = !tni_outside(choice, file->entry[i].name);
    for (int i = 0; i < file->entries.n; i++) {
        const tni_safetensor *e = &file->entry[i];
        tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
        if (picks && tni_outside(choice, e->name)) continue;
        if (!tni_file_dtype_wanted(e->stored, &choice->o)) {
            TNI_TRY(tni_leave_out(choice, &file->in, e->name, e->stored->safetensors, e->stored));
            continue;
        }
        if (choice->weights) /* what cannot be read is said before anything changes */
            TNI_TRY(tni_input_scan(&file->in, file->data + e->begin, (size_t)(e->end - e->begin),
                                   (tni_scan){ 0 }));
        entry.tensor = tni_safetensors_tensor(file, e);
        TNI_TRY(entry.tensor ? tni_list_push(list, "", "", e->name, entry) : tni_pending());
    }
    return TN_OK;
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

tn_list *tni_safetensors_list(tni_safetensors *file, tni_choice *choice)
{
    tni_choice none = { 0 };
    tn_list *list = tn_list_new();
    tn_status status = list ? TN_OK : tni_pending();
    TN_SCOPE
    {
        if (status == TN_OK) status = add_tensors(file, choice ? choice : &none, list);
        if (status == TN_OK) status = add_ties(file, list);
        if (status == TN_OK) status = read_object(file, TNI_VERSIONS, list, take_version);
    }
    if (status == TN_OK && tni_safetensors_string(file, TNI_ROLES)) add_roles(file, list);
    return status == TN_OK ? list : NULL;
}
