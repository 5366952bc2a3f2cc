/*
 * safetensors_list.c - a file, or a part of a checkpoint, as a list of tensors.
 *
 * What the metadata says of the tensors is taken up here: other names of a tensor become entries of
 * the same tensor, state versions are recorded in the list.
 */
#include <stdlib.h>

#include "io/io.h"
#include "nn/module.h"

static tn_status add_tensors(tn_list *list, tni_safetensors *file, const char *prefix)
{
    const size_t skip = strlen(prefix);
    for (int i = 0; i < file->n; i++) {
        const tni_safetensor *e = &file->entry[i];
        if (strncmp(e->name, prefix, skip)) continue;
        tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
        entry.tensor = tni_safetensors_tensor(file, e);
        if (!entry.tensor) return tni_pending();
        tn_status status = tni_list_push(list, "", "", e->name + skip, entry);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status add_ties(tn_list *list, const tni_safetensors *file, const char *prefix)
{
    const size_t skip = strlen(prefix);
    int64_t most = tni_file_limits().tensors;
    const char *key;
    json_t *value;
    json_object_foreach(file->metadata, key, value)
    {
        const char *stored = json_string_value(value);
        if (strncmp(key, prefix, skip) || !tni_safetensors_tie(file, key, stored)) continue;
        const tn_entry *e =
            strncmp(stored, prefix, skip) ? NULL : tni_list_find(list, stored + skip);
        if (!e) continue;
        if (list->n >= most)
            return tni_input_bad(&file->in,
                                 "more than %lld tensors and ties: at most so many are read "
                                 "(tn_set_file_limits)",
                                 (long long)most);
        tn_entry entry = *e; /* the list may move */
        tn_status status = tni_list_push(list, "", "", key + skip, entry);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

/* Paths begin with the prefix too; the prefix without its dot is the module that was saved. */
static tn_status add_versions(tn_list *list, const tni_safetensors *file, const char *prefix)
{
    const char *text = tni_safetensors_string(file, TNI_VERSIONS);
    if (!text) return TN_OK;
    json_t *versions = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const size_t skip = strlen(prefix);
    tn_status status = TN_OK;
    if (!json_is_object(versions) || json_object_size(versions) > (size_t)tni_file_limits().tensors)
        status = tni_input_bad(&file->in, TNI_VERSIONS " is not an object of a few numbers");
    const char *path;
    json_t *value;
    json_object_foreach(versions, path, value)
    {
        json_int_t version = json_integer_value(value);
        if (status == TN_OK && (version < 1 || version > INT32_MAX))
            status = tni_input_bad(&file->in, TNI_VERSIONS ": %.64s: not a number from 1", path);
        if (status != TN_OK) break;
        bool whole = skip && strlen(path) == skip - 1 && !strncmp(path, prefix, skip - 1);
        if (!whole && strncmp(path, prefix, skip)) continue;
        status = tni_list_push_version(list, whole ? "" : path + skip, (int)version);
    }
    json_decref(versions);
    return status;
}

tn_list *tni_safetensors_list(tni_safetensors *file, const char *prefix)
{
    tn_list *list = tn_list_new();
    tn_scope scope = tn_scope_begin();
    tn_status status = list ? add_tensors(list, file, prefix) : tni_pending();
    if (status == TN_OK) status = add_ties(list, file, prefix);
    if (status == TN_OK) status = add_versions(list, file, prefix);
    tn_scope_end(scope);
    return status == TN_OK ? list : NULL;
}
