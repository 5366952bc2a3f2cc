/*
 * A file from elsewhere names its tensors "model.0.weight" where ours is named "0.weight". Load it:
 * tn_load_options has a rename, which is called with each name of the file, writes the model's name
 * to `to` (size bytes) and returns true; false leaves the entry out. Names without "model." are of
 * no interest.
 */
#include <string.h>
#include <tenon/tenon.h>

static bool without_prefix(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    snprintf(to, size, "%s", name); /* your code here */
    return true;
}

tn_status load_foreign(tn_module *m, const char *path)
{
    return tn_load_with(m, path, (tn_load_options){ .rename = without_prefix }, NULL);
}
