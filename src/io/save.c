/*
 * save.c - saving and loading weights: a module or any list of tensors.
 */
#include "io/file.h"
#include "io/io.h"
#include "nn/module.h"

/* HF tools ask which framework a file is for; the layout is PyTorch's. */
static const char *const keys[] = { TNI_FORMAT, TNI_WRITER };
static const char *const values[] = { "pt", TN_VERSION };

tn_status tni_in_file(const char *function, const char *path)
{
    return tni_error_prefix("%s: " TNI_PATH ": ", function, path);
}

/* ---- writing: the name decides --------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    size_t n = path ? strlen(path) : 0;
    size_t k = strlen(end);
    return n >= k && !strcmp(path + n - k, end);
}

static tn_status write_list(const char *function, const char *path, const tn_list *list,
                            tni_writing o)
{
    if (!ends_in(path, ".pt") && !ends_in(path, ".pth"))
        return tni_safetensors_write(function, path, list, o);
    if (o.metadata && o.metadata->n)
        return tni_file_error(TN_E_INVALID, function, path,
                              "a PyTorch file has no place for metadata: want a .safetensors file");
    return tni_pt_write(function, path, list);
}

static tn_status save(const char *function, tn_module *m, const char *path, tn_save_options o)
{
    if (!m) return tni_null(function, "m", "a module");
    tn_metadata own = { 2, (const char **)keys, (const char **)values };
    tni_writing writing = { .own = &own, .metadata = o.metadata, .every_key = o.every_key };
    TNI_SCOPES_STAY;
    tn_scope scope = tn_scope_begin();
    tn_list *list = tn_state_dict(m, "");
    tn_status status = list ? write_list(function, path, list, writing) : tni_pending();
    tn_scope_end(scope);
    return status;
}

tn_status tn_save(tn_module *m, const char *path)
{
    return save("tn_save", m, path, (tn_save_options){ 0 });
}

tn_status tn_save_with(tn_module *m, const char *path, tn_save_options o)
{
    return save("tn_save_with", m, path, o);
}

tn_status tn_save_tensors(const tn_list *list, const tn_metadata *metadata, const char *path)
{
    if (!list) return tni_null("tn_save_tensors", "list", "a list of tensors");
    return write_list("tn_save_tensors", path, list,
                      (tni_writing){ .metadata = metadata, .every_key = true });
}

/* ---- reading: the first bytes decide --------------------------------------------------------- */

static tn_list *load_safetensors(const char *function, const char *path, tn_metadata *metadata)
{
    tni_safetensors file;
    if (tni_safetensors_open(&file, function, path) != TN_OK) return NULL;
    tn_list *list = tni_safetensors_list(&file, "");
    if (list && metadata && tni_safetensors_metadata(&file, "", metadata) != TN_OK) list = NULL;
    tni_safetensors_close(&file);
    return list;
}

static tn_list *load(const char *function, const char *path, tn_metadata *metadata)
{
    /* torch.save before 1.6 (or on request) begins with a pickle of this number */
    static const char legacy[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    char first[sizeof legacy - 1] = { 0 };
    if (metadata) *metadata = (tn_metadata){ 0 };
    tni_input in;
    tn_status status = tni_input_open(&in, function, path);
    if (status != TN_OK) return NULL;
    status = tni_input_read(&in, 0, first, (size_t)TNI_MIN(in.size, (int64_t)sizeof first));
    if (status == TN_OK && !memcmp(first, legacy, sizeof first))
        status = tni_input_bad(&in, "a PyTorch file in the format before 1.6: in PyTorch, "
                                    "torch.save(torch.load(old), new) makes one that can be read");
    tni_input_close(&in);
    if (status != TN_OK) return NULL;
    return memcmp(first, "PK\3\4", 4) ? load_safetensors(function, path, metadata)
                                      : tni_pt_list(function, path);
}

tn_list *tn_load_tensors(const char *path, tn_metadata *metadata)
{
    return load("tn_load_tensors", path, metadata);
}

static tn_status load_into(const char *function, tn_module *m, const char *path, tn_load_options o,
                           tn_load_report *report)
{
    if (report) *report = (tn_load_report){ 0 };
    if (!m) return tni_null(function, "m", "a module");
    TNI_SCOPES_STAY;
    tn_scope scope = tn_scope_begin();
    tn_list *list = load(function, path, NULL);
    tn_status status = list ? TN_OK : tni_pending();
    if (list && tn_load_state_dict(m, list, o, report) != TN_OK)
        status = tni_in_file(function, path);
    tn_scope_end(scope);
    return status;
}

tn_status tn_load(tn_module *m, const char *path)
{
    return load_into("tn_load", m, path, (tn_load_options){ 0 }, NULL);
}

tn_status tn_load_with(tn_module *m, const char *path, tn_load_options o, tn_load_report *report)
{
    return load_into("tn_load_with", m, path, o, report);
}
