/*
 * module_file.c - opens a shared module of tenon's: the file that an environment variable names,
 * else one beside this library (or the program, when tenon is linked statically), in its folder of
 * a build tree, where it was installed, or where the loader looks.
 */
#include <dlfcn.h>
#include <limits.h>

#include "base/base.h"
#include "installed.h"

static void *open_beside(const char *folder, const char *file)
{
    Dl_info here;
    char path[PATH_MAX];
    if (!dladdr((const void *)(uintptr_t)open_beside, &here) || !here.dli_fname) return NULL;
    const char *slash = strrchr(here.dli_fname, '/');
    if (!slash) return NULL;
    int n = snprintf(path, sizeof path, "%.*s/%s%s", (int)(slash - here.dli_fname), here.dli_fname,
                     folder, file);
    return n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

void *tni_open_module(const char *variable, const char *folder, const char *file, const char *entry,
                      char *why, size_t size)
{
    const char *wish = getenv(variable);
    char installed[PATH_MAX];
    void *module = wish ? dlopen(wish, RTLD_NOW | RTLD_LOCAL) : open_beside("", file);
    snprintf(installed, sizeof installed, "%s/%s", TNI_LIBDIR, file);
    if (!module && !wish) module = open_beside(folder, file);
    if (!module && !wish) module = dlopen(installed, RTLD_NOW | RTLD_LOCAL);
    if (!module && !wish) module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        const char *reason = dlerror();
        snprintf(why, size, "could not be opened: %.400s", reason ? reason : "no reason");
        return NULL;
    }
    void *found = dlsym(module, entry);
    if (!found) snprintf(why, size, "has no function %s", entry);
    return found;
}
