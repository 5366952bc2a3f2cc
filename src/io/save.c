/* save.c - saving weights, a module or any list of tensors: the name decides the format. */
#include "io/choice.h"

tn_status tni_in_file(const char *function, const char *path)
{
    return tni_error_prefix("%s: " TNI_PATH ": ", function, path);
}

bool tni_ends_in(const char *path, const char *end)
{
    size_t n = path ? strlen(path) : 0, k = strlen(end);
    return n >= k && !strcmp(path + n - k, end);
}

static tn_status write_list(const char *function, const char *path, const tn_list *list,
                            tni_writing o)
{
    const bool npz = tni_ends_in(path, ".npz");
    if (!npz && !tni_ends_in(path, ".pt") && !tni_ends_in(path, ".pth"))
        return tni_safetensors_write(function, path, list, o);
    if (o.metadata && o.metadata->n)
        return tni_file_error(TN_E_INVALID, function, path,
                              "a %s file has no place for metadata: want a .safetensors file",
                              npz ? "NumPy" : "PyTorch");
    return tni_pt_write(function, path, list);
}

static tn_status save(const char *function, tn_module *m, const char *path, tn_save_options o)
{
    if (!m) return tni_null(function, "m", "a module");
    tni_writing writing = { o.metadata, o.every_key, .weights = true };
    TNI_SCOPES_STAY;
    TNI_SCOPED;
    tn_list *list = tn_state_dict(m, "");
    return list ? write_list(function, path, list, writing) : tni_pending();
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
