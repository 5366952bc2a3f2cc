/*
 * save.c - weights: a module or any list of tensors to a file and back.
 */
#include "io/io.h"
#include "nn/module.h"

/* HF tools ask which framework a file is for; the layout is PyTorch's. */
static const char *const keys[] = { "format", "tenon.version" };
static const char *const values[] = { "pt", TN_VERSION };

tn_status tni_in_file(const char *function, const char *path)
{
    char text[1024];
    tn_status status = tn_error_status();
    strncpy(text, tn_error(), sizeof text - 1);
    text[sizeof text - 1] = 0;
    return tni_error(status, "%s: %s: %s", function, path, text);
}

tn_status tn_save(tn_module *m, const char *path)
{
    static const char f[] = "tn_save";
    if (!m) return tni_poison(f, "m");
    tn_metadata own = { 2, (const char **)keys, (const char **)values };
    tn_scope scope = tn_scope_begin();
    tn_list *list = tn_state_dict(m, "");
    tn_status status = list ? tni_safetensors_write(f, path, list, &own, NULL) : tni_pending();
    tn_scope_end(scope);
    return status;
}

tn_status tn_save_tensors(const tn_list *list, const tn_metadata *metadata, const char *path)
{
    if (!list) return tni_poison("tn_save_tensors", "list");
    return tni_safetensors_write("tn_save_tensors", path, list, NULL, metadata);
}

tn_list *tni_safetensors_list(tni_safetensors *file, const char *prefix)
{
    tn_list *list = tn_list_new();
    size_t skip = strlen(prefix);
    tn_scope scope = tn_scope_begin();
    tn_status status = list ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < file->n; i++) {
        const tni_safetensor *e = &file->entry[i];
        if (strncmp(e->name, prefix, skip)) continue;
        tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
        entry.tensor = tni_safetensors_tensor(file, e);
        status = entry.tensor ? tni_list_push(list, "", "", e->name + skip, entry) : tni_pending();
    }
    tn_scope_end(scope);
    if (status != TN_OK) return NULL;
    /* What this library wrote has every buffer of its modules; what others wrote may lack some. */
    if (tni_safetensors_string(file, keys[1])) tni_list_set_version(list, INT32_MAX);
    return list;
}

static tn_list *load(const char *function, const char *path, tn_metadata *metadata)
{
    tni_safetensors file;
    if (metadata) *metadata = (tn_metadata){ 0 };
    if (tni_safetensors_open(&file, function, path) != TN_OK) return NULL;
    tn_list *list = tni_safetensors_list(&file, "");
    if (list && metadata && tni_safetensors_metadata(&file, "", metadata) != TN_OK) list = NULL;
    tni_safetensors_close(&file);
    return list;
}

tn_list *tn_load_tensors(const char *path, tn_metadata *metadata)
{
    return load("tn_load_tensors", path, metadata);
}

tn_status tn_load(tn_module *m, const char *path)
{
    static const char f[] = "tn_load";
    if (!m) return tni_poison(f, "m");
    tn_scope scope = tn_scope_begin();
    tn_list *list = load(f, path, NULL);
    tn_status status = list ? TN_OK : tni_pending();
    if (list && tn_load_state_dict(m, list, (tn_load_options){ 0 }, NULL) != TN_OK)
        status = tni_in_file(f, path);
    tn_scope_end(scope);
    return status;
}
