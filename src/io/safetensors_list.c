/*
 * safetensors_list.c - a file, or a part of a checkpoint, as a list of tensors, and its metadata.
 *
 * Metadata about the tensors is used here: other names of a tensor become entries of the same
 * tensor, state versions are recorded in the list. The rest is returned to the caller.
 */
#include <stdio.h>

#include "io/io.h"
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
static bool can_be_tie(const tni_names *names, bool checkpoint, const char *name,
                       const char *stored)
{
    size_t n = strlen(name);
    return n > 0 && n <= TNI_NAME_LIMIT && tni_names_find(names, name) < 0 &&
           tni_names_find(names, stored) >= 0 && (!checkpoint || tni_same_part(name, stored));
}

bool tni_old_tie(const tni_names *names, bool checkpoint, const char *key, const char *value)
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

static void add_tie(tni_safetensors *file, const char *name, const char *stored)
{
    tni_tie tie = { name, tni_names_find(&file->by_name, stored) };
    tni_bytes_add(&file->ties, &tie, sizeof tie);
}

/* A tie is ignored if another program has removed the tensor or stored it in full. */
static tn_status read_ties(tni_safetensors *file, char *text)
{
    const bool checkpoint = is_checkpoint(file);
    tni_json json = tni_json_of(text, strlen(text)), *j = &json;
    bool object = tni_json_kind(j) == '{';
    if (object) tni_json_open(j);
    const char *name, *stored;
    while (object && tni_json_next(j, '}') && (name = tni_json_key(j))) {
        stored = tni_json_string(j);
        object = stored;
        if (stored && can_be_tie(&file->by_name, checkpoint, name, stored))
            add_tie(file, name, stored);
    }
    if (object) tni_json_end(j);
    if (j->problem) return tni_safetensors_not_json(file, TNI_TIES, j);
    return object ? TN_OK : bad(file, TNI_TIES " is not an object of strings");
}

static tn_status read_versions(tni_safetensors *file, char *text)
{
    tni_json json = tni_json_of(text, strlen(text)), *j = &json;
    if (tni_json_kind(j) != '{')
        return j->problem ? tni_safetensors_not_json(file, TNI_VERSIONS, j)
                          : bad(file, TNI_VERSIONS " is not an object of numbers");
    tni_json_open(j);
    tni_version v;
    while (tni_json_next(j, '}') && (v.path = tni_json_key(j))) {
        int64_t version = 0;
        tni_json_integer(j, &version);
        if (j->problem) break;
        if (version < 1 || version > INT32_MAX)
            return bad(file, TNI_VERSIONS ": %.64s: not a number from 1", v.path);
        v.version = (int)version;
        tni_bytes_add(&file->versions, &v, sizeof v);
    }
    return tni_json_end(j) ? TN_OK : tni_safetensors_not_json(file, TNI_VERSIONS, j);
}

tn_status tni_safetensors_take_up(tni_safetensors *file)
{
    /* the strings are the library's own, so reading may destroy them */
    char *ties = (char *)tni_safetensors_string(file, TNI_TIES);
    char *versions = (char *)tni_safetensors_string(file, TNI_VERSIONS);
    tn_status status = ties ? read_ties(file, ties) : TN_OK;
    const bool old = has_old_ties(file), checkpoint = is_checkpoint(file);
    for (int i = 0; old && i < file->n_pairs; i++)
        if (tni_old_tie(&file->by_name, checkpoint, file->pair[i].key, file->pair[i].value))
            add_tie(file, file->pair[i].key, file->pair[i].value);
    if (status == TN_OK && versions) status = read_versions(file, versions);
    if (status != TN_OK) return status;
    if (file->ties.failed || file->versions.failed) return tni_pending();
    file->tie = (tni_tie *)file->ties.data;
    file->version = (tni_version *)file->versions.data;
    file->n_ties = (int)(file->ties.n / sizeof *file->tie);
    file->n_versions = (int)(file->versions.n / sizeof *file->version);
    const int64_t most = tn_get_file_limits().tensors;
    if (file->n + (int64_t)file->n_ties > most)
        return bad(file,
                   "%d tensors and %d ties: at most %" PRId64 " are read (tn_set_file_limits)",
                   file->n, file->n_ties, most);
    if (file->n_versions > most)
        return bad(file,
                   TNI_VERSIONS " of %d modules: at most %" PRId64 " are read (tn_set_file_limits)",
                   file->n_versions, most);
    status = tni_names_make(&file->by_tie, file->tie, sizeof *file->tie, file->n_ties);
    if (status == TN_OK)
        status =
            tni_names_make(&file->by_path, file->version, sizeof *file->version, file->n_versions);
    if (status != TN_OK) return status;
    const char *twice = tni_names_twice(&file->by_tie);
    if (twice) return bad(file, TNI_TIES ": %.64s is there twice", twice);
    twice = tni_names_twice(&file->by_path);
    return twice ? bad(file, TNI_VERSIONS ": %.64s is there twice", twice) : TN_OK;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Pairs about the tensors or the file have been used: they are not returned. */
tn_status tni_safetensors_metadata(const tni_safetensors *file, const char *skip, tn_metadata *out)
{
    const bool old = has_old_ties(file), checkpoint = is_checkpoint(file);
    const size_t length = strlen(skip);
    tni_bytes kept = { 0 };
    *out = (tn_metadata){ 0 };
    for (int i = 0; i < file->n_pairs; i++) {
        const char *key = file->pair[i].key;
        if (length && !strncmp(key, skip, length)) continue;
        if (!strcmp(key, TNI_TIES) || !strcmp(key, TNI_VERSIONS) || !strcmp(key, TNI_CHECKSUM))
            continue;
        if (old && tni_old_tie(&file->by_name, checkpoint, key, file->pair[i].value)) continue;
        tni_bytes_add(&kept, &file->pair[i], sizeof *file->pair);
    }
    tn_status status = kept.failed ? tni_pending()
                                   : tni_metadata_of((const tni_pair *)kept.data,
                                                     (int)(kept.n / sizeof *file->pair), out);
    tni_bytes_free(&kept);
    return status;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The shape and dtype of a tensor that is not read: one 0, expanded. */
static tn_tensor *described(const tni_safetensor *e)
{
    return tn_expand(tn_full_as(TN_SCALAR, 0, e->dtype, tn_cpu()), e->shape);
}

static tn_status add_tensors(tn_list *list, tni_safetensors *file, const char *prefix,
                             const tni_unread *unread)
{
    int n;
    int *places = tni_names_under(&file->by_name, prefix, &n);
    tn_status status = places ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < n; i++) {
        const tni_safetensor *e = &file->entry[places[i]];
        tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
        const char *name = e->name + strlen(prefix);
        bool skipped = unread && unread->skips(unread->reader, name);
        entry.tensor = skipped ? described(e) : tni_safetensors_tensor(file, e);
        status = entry.tensor ? tni_list_push(list, "", "", name, entry) : tni_pending();
    }
    tni_places_free(places, n);
    return status;
}

static tn_status add_ties(tn_list *list, const tni_safetensors *file, const char *prefix)
{
    const size_t skip = strlen(prefix);
    int n;
    int *places = tni_names_under(&file->by_tie, prefix, &n);
    tn_status status = places ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < n; i++) {
        const tni_tie *tie = &file->tie[places[i]];
        const char *stored = file->entry[tie->entry].name;
        if (strncmp(stored, prefix, skip)) continue; /* of another part: never in a checkpoint */
        tn_entry entry = *tni_list_find(list, stored + skip); /* a copy: the list may move */
        status = tni_list_push(list, "", "", tie->name + skip, entry);
    }
    tni_places_free(places, n);
    return status;
}

/* Paths begin with the prefix too; the prefix without its dot is the saved module itself. */
static tn_status add_versions(tn_list *list, const tni_safetensors *file, const char *prefix)
{
    const size_t skip = strlen(prefix);
    char root[TNI_NAME_LIMIT];
    snprintf(root, sizeof root, "%.*s", skip ? (int)skip - 1 : 0, prefix);
    int whole = skip ? tni_names_find(&file->by_path, root) : -1, n;
    int *places = tni_names_under(&file->by_path, prefix, &n);
    tn_status status = places ? TN_OK : tni_pending();
    if (status == TN_OK && whole >= 0)
        status = tni_list_push_version(list, "", file->version[whole].version);
    for (int i = 0; status == TN_OK && i < n; i++) {
        const tni_version *v = &file->version[places[i]];
        status = tni_list_push_version(list, v->path + skip, v->version);
    }
    tni_places_free(places, n);
    return status;
}

tn_list *tni_safetensors_list(tni_safetensors *file, const char *prefix, const tni_unread *unread)
{
    tn_list *list = tn_list_new();
    tn_scope scope = tn_scope_begin();
    tn_status status = list ? add_tensors(list, file, prefix, unread) : tni_pending();
    if (status == TN_OK) status = add_ties(list, file, prefix);
    if (status == TN_OK) status = add_versions(list, file, prefix);
    tn_scope_end(scope);
    return status == TN_OK ? list : NULL;
}
