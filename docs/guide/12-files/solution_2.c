/*
 * Loading under other names.
 */
#include <string.h>
#include <tenon/tenon.h>

static bool without_prefix(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    if (strncmp(name, "model.", 6) != 0) return false;
    snprintf(to, size, "%s", name + 6);
    return true;
}

tn_status load_foreign(tn_module *m, const char *path)
{
    return tn_load_with(m, path, (tn_load_options){ .rename = without_prefix }, NULL);
}
