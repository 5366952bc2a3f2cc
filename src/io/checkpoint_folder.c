/*
 * checkpoint_folder.c - numbered checkpoints: the last N are kept, the newest good one is found.
 *
 * A file is ours when its name is exactly what file_name() makes of NAME and a step; no other file
 * is looked at or removed. Steps are compared as numbers: beyond 99,999,999 names only stop
 * sorting.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "io/file.h"
#include "io/io.h"

#define NAME_LIMIT 128 /* with step, suffix and a temporary's mark it stays below 255 bytes */
#define FILE_SIZE (NAME_LIMIT + 64)
#define PATH_SIZE 4096

static void file_name(char text[FILE_SIZE], const char *name, long long step)
{
    snprintf(text, FILE_SIZE, "%s-%08lld.safetensors", name, step);
}

/* The step in a file's name, -1 for another file's; *n: where the name ends and a temporary's mark
 * may follow. */
static long long step_of(const char *file, const char *name, size_t *n)
{
    char own[FILE_SIZE];
    size_t prefix = strlen(name);
    if (strncmp(file, name, prefix) != 0 || file[prefix] != '-') return -1;
    long long step = strtoll(file + prefix + 1, NULL, 10);
    file_name(own, name, step);
    *n = strlen(own);
    return step >= 0 && strncmp(file, own, *n) == 0 ? step : -1;
}

static tn_status check(const char *function, const char *folder, const char *name)
{
    if (!folder || !name) return tni_poison(function, folder ? "name" : "folder");
    size_t n = strlen(name);
    if (n == 0 || n > NAME_LIMIT || strchr(name, '/'))
        return tni_error(TN_E_INVALID, "%s: name \"%.64s\": 1 to %d bytes without / are wanted",
                         function, name, NAME_LIMIT);
    n = strlen(folder);
    if (n == 0 || n > PATH_SIZE - FILE_SIZE)
        return tni_error(TN_E_INVALID, "%s: folder \"%.64s\": 1 to %d bytes are wanted", function,
                         folder, PATH_SIZE - FILE_SIZE);
    return TN_OK;
}

/* Checkpoints of a folder with steps below `below`: how many, the lowest and highest step. */
typedef struct census {
    int64_t n;
    long long lowest, highest; /* -1: none */
    int error; /* of reading the folder: there may be more */
} census;

/* sweep: also removes what killed writers left behind under any step. */
static census count(DIR *dir, const char *name, long long below, bool sweep)
{
    census c = { 0, -1, -1, 0 };
    size_t n;
    rewinddir(dir);
    for (struct dirent *e; errno = 0, (e = readdir(dir));) {
        long long step = step_of(e->d_name, name, &n);
        if (sweep && step >= 0) tni_file_sweep(dirfd(dir), e->d_name, n);
        if (step < 0 || step >= below || e->d_name[n]) continue;
        c.n++;
        if (c.lowest < 0 || step < c.lowest) c.lowest = step;
        if (step > c.highest) c.highest = step;
    }
    c.error = errno;
    return c;
}

/* Removes the oldest below `step` until keep - 1 are left; keep 0: none. Sweeps. */
static tn_status prune(const char *function, const char *folder, const char *name, long long step,
                       int keep)
{
    DIR *dir = opendir(folder);
    if (!dir) /* written to, but not to be read: nothing can be counted */
        return tni_error(TN_E_IO,
                         "%s: %s: the checkpoint is in place, but older ones cannot be "
                         "looked for: %s",
                         function, folder, strerror(errno));
    tn_status status = TN_OK;
    census c = count(dir, name, step, true);
    while (keep > 0 && c.n >= keep && status == TN_OK) {
        char file[FILE_SIZE];
        file_name(file, name, c.lowest);
        if (unlinkat(dirfd(dir), file, 0) != 0 && errno != ENOENT)
            status = tni_error(TN_E_IO,
                               "%s: %s: the checkpoint is in place, but %s cannot be "
                               "removed: %s",
                               function, folder, file, strerror(errno));
        else
            c = count(dir, name, step, false);
    }
    closedir(dir);
    return status;
}

tn_status tn_checkpoint_save_numbered(const tn_checkpoint *c, const char *folder, const char *name,
                                      int keep)
{
    static const char f[] = "tn_checkpoint_save_numbered";
    if (!c) return tni_poison(f, "c");
    tn_status status = check(f, folder, name);
    if (status != TN_OK) return status;
    if (c->step < 0 || keep < 0)
        return tni_error(TN_E_INVALID, "%s: step %lld, keep %d: numbers >= 0 are wanted", f,
                         (long long)c->step, keep);
    char file[FILE_SIZE], path[PATH_SIZE];
    file_name(file, name, (long long)c->step);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    status = tni_checkpoint_save(f, c, path);
    return status == TN_OK ? prune(f, folder, name, (long long)c->step, keep) : status;
}

/* The newest file that can be read; those that cannot are passed by, and counted. */
static tn_status newest(const char *function, const char *folder, const char *name, DIR *dir,
                        char path[PATH_SIZE])
{
    int damaged = 0;
    char file[FILE_SIZE], why[640];
    for (long long below = INT64_MAX;;) {
        census c = count(dir, name, below, false);
        if (c.error) /* an older one would be taken for the newest */
            return tni_error(TN_E_IO, "%s: %s: %s", function, folder, strerror(c.error));
        below = c.highest;
        if (below < 0 && damaged == 0)
            return tni_error(TN_E_NAME, "%s: %s: no %s-STEP.safetensors is in it", function, folder,
                             name);
        if (below < 0) break;
        file_name(file, name, below);
        snprintf(path, PATH_SIZE, "%s/%s", folder, file);
        tn_status status = tni_checkpoint_verify(function, path);
        if (status == TN_OK || status == TN_E_NOMEM) return status;
        if (damaged++ == 0) snprintf(why, sizeof why, "%s", tn_error());
    }
    return tni_error(TN_E_FORMAT,
                     "%s: %s: %d damaged %s-STEP.safetensors and no other; the newest: "
                     "%s",
                     function, folder, damaged, name, why);
}

tn_status tn_checkpoint_latest(const char *folder, const char *name, char *path, size_t size)
{
    static const char f[] = "tn_checkpoint_latest";
    char found[PATH_SIZE];
    tn_status status = check(f, folder, name);
    if (status == TN_OK && !path) status = tni_poison(f, "path");
    if (status != TN_OK) return status;
    DIR *dir = opendir(folder);
    if (!dir) return tni_error(TN_E_IO, "%s: %s: %s", f, folder, strerror(errno));
    bool clear = tn_error_status() == TN_OK;
    status = newest(f, folder, name, dir, found);
    closedir(dir);
    if (status != TN_OK) return status;
    if (clear) tn_error_clear(); /* of files passed by */
    if (strlen(found) >= size)
        return tni_error(TN_E_INVALID, "%s: room for %zu bytes: %zu are wanted", f, size,
                         strlen(found) + 1);
    memcpy(path, found, strlen(found) + 1);
    return TN_OK;
}
