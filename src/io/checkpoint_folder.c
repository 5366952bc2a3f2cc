/*
 * checkpoint_folder.c - numbered checkpoints: the last N are kept, the newest good one is found.
 *
 * A file is ours when its name is exactly what FILE_NAME makes of NAME and a step; no other file
 * is looked at or removed. Steps are compared as numbers: beyond 99,999,999 names only stop
 * sorting.
 */
#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include "io/io.h"

#define NAME_LIMIT 128 /* with step, suffix and a temporary's mark below 255 bytes */
#define FILE_SIZE (NAME_LIMIT + 64)
#define FILE_NAME "%s-%08" PRId64 ".safetensors" /* of a name and a step */
#define PATH_SIZE 4096

static const char latest[] = "tn_checkpoint_latest"; /* for messages: the one that most call */

/* The step in a file's name, -1: another file; *n: its end, behind which a temporary has a mark. */
static int64_t step_of(const char *file, const char *name, size_t *n)
{
    size_t prefix = strlen(name);
    if (strncmp(file, name, prefix) != 0 || file[prefix] != '-') return -1;
    int64_t step = strtoll(file + prefix + 1, NULL, 10);
    char own[FILE_SIZE];
    snprintf(own, sizeof own, FILE_NAME, name, step);
    *n = strlen(own);
    return step >= 0 && strncmp(file, own, *n) == 0 ? step : -1;
}

static tn_status check(const char *function, const char *folder, const char *name)
{
    if (!folder) return tni_null(function, "folder", "the name of a folder");
    if (!name) return tni_null(function, "name", "what the files' names begin with");
    size_t n = strlen(name);
    if (n == 0 || n > NAME_LIMIT || strchr(name, '/'))
        return tni_error(TN_E_INVALID, "%s: name \"%.64s\": want 1 to %d bytes without /", function,
                         name, NAME_LIMIT);
    n = strlen(folder);
    if (n == 0 || n > PATH_SIZE - FILE_SIZE)
        return tni_error(TN_E_INVALID, "%s: folder \"%.64s\": want 1 to %d bytes", function, folder,
                         PATH_SIZE - FILE_SIZE);
    return TN_OK;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The steps of a folder's checkpoints, the highest first; the folder is read once. */
typedef struct steps {
    tni_bytes bytes;
    int64_t *step;
    size_t n;
} steps;

/* sweep: also removes what killed writers left behind. Returns an errno of reading the folder (the
 * list may be incomplete), or ENOMEM with a message; free steps with tni_bytes_free. */
static int read_steps(steps *s, DIR *dir, const char *name, bool sweep)
{
    *s = (steps){ 0 };
    rewinddir(dir);
    size_t n;
    for (struct dirent *e; errno = 0, (e = readdir(dir));) {
        int64_t step = step_of(e->d_name, name, &n);
        if (sweep && step >= 0) tni_file_sweep(dirfd(dir), e->d_name, n);
        if (step >= 0 && !e->d_name[n]) tni_bytes_add(&s->bytes, &step, sizeof step);
    }
    int error = s->bytes.failed ? ENOMEM : errno;
    s->step = (int64_t *)s->bytes.data;
    s->n = s->bytes.n / sizeof *s->step;
    tni_sort(s->step, s->n, sizeof *s->step, newest_first);
    return error;
}

/* Keeps the newest `keep` files up to that of `step` (0: all), removes older ones. Sweeps. */
static tn_status prune(const char *function, const char *folder, const char *name, int64_t step,
                       int keep)
{
    DIR *dir = opendir(folder); /* NULL: writable but not readable, nothing can be counted */
    steps s = { 0 };
    int error = dir ? read_steps(&s, dir, name, true) : errno;
    tn_status status = TN_OK;
    if (!dir || error == ENOMEM)
        status = tni_file_error(
            tni_errno(error), function, folder,
            "the checkpoint is in place, but older ones cannot be looked for: %s", strerror(error));
    size_t first = 0; /* the first that is not newer than ours */
    while (first < s.n && s.step[first] > step) first++;
    for (size_t i = s.n; keep > 0 && status == TN_OK && i > first + (size_t)keep; i--) {
        char file[FILE_SIZE];
        snprintf(file, sizeof file, FILE_NAME, name, s.step[i - 1]);
        if (unlinkat(dirfd(dir), file, 0) != 0 && errno != ENOENT)
            status = tni_file_error(tni_errno(errno), function, folder,
                                    "the checkpoint is in place, but %s cannot be removed: %s",
                                    file, strerror(errno));
    }
    tni_bytes_free(&s.bytes);
    if (dir) closedir(dir);
    return status;
}

tn_status tn_checkpoint_save_numbered(const tn_checkpoint *c, const char *folder, const char *name,
                                      int keep)
{
    if (!c) return tni_null(__func__, "c", "a checkpoint");
    TNI_TRY(check(__func__, folder, name));
    if (c->step < 0 || keep < 0)
        return tni_error(TN_E_INVALID, "%s: step %" PRId64 ", keep %d: want numbers >= 0", __func__,
                         c->step, keep);
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/" FILE_NAME, folder, name, c->step);
    tni_make_folders(path);
    TNI_TRY(tni_checkpoint_save(__func__, c, path));
    return prune(__func__, folder, name, c->step, keep);
}

/* ---- the newest one -------------------------------------------------------------------------- */

typedef struct search {
    const char *folder, *name;
    char path[PATH_SIZE]; /* of the file found */
    tni_bytes skipped;    /* path and reason of each file skipped, each with a zero after it */
    int damaged, gone;    /* how many were skipped; how many no longer existed */
} search;

/* TN_OK: the file is whole. *next: it is damaged, try an older one. */
static tn_status look_at(search *s, int64_t step, bool *next)
{
    snprintf(s->path, PATH_SIZE, "%s/" FILE_NAME, s->folder, s->name, step);
    int error;
    tn_status status = tni_checkpoint_verify(latest, s->path, &error);
    /* an error of this process or machine does not mean a bad file */
    *next = status != TN_OK && status != TN_E_NOMEM && error != EMFILE && error != ENFILE;
    if (!*next) return status;
    if (error == ENOENT) {
        s->gone++; /* another run has just removed it */
        return status;
    }
    const char *reason = tn_error();
    const size_t prefix = strlen(latest) + 4 + TNI_MIN(strlen(s->path), (size_t)TNI_PATH_SHOWN);
    if (strlen(reason) > prefix) reason += prefix; /* "FUNCTION: PATH: " */
    s->damaged++;
    tni_bytes_add(&s->skipped, s->path, strlen(s->path) + 1);
    tni_bytes_add(&s->skipped, reason, strlen(reason) + 1);
    if (!s->skipped.failed) return status;
    *next = false;
    return tni_pending();
}

/* Checks the files, the newest first, until one is whole. */
static tn_status search_once(search *s, DIR *dir)
{
    steps all;
    int error = read_steps(&all, dir, s->name, false);
    tn_status status = TN_E_NAME;
    bool next = true;
    s->damaged = s->gone = 0;
    tni_bytes_free(&s->skipped);
    if (error) /* an older one could be mistaken for the newest */
        status = tni_file_error(tni_errno(error), latest, s->folder, "%s", strerror(error));
    for (size_t i = 0; !error && next && i < all.n; i++) status = look_at(s, all.step[i], &next);
    tni_bytes_free(&all.bytes);
    if (error || !next) return status;
    if (s->damaged == 0)
        return tni_file_error(TN_E_NAME, latest, s->folder, "no %s-STEP.safetensors is in it",
                              s->name);
    const char *newest = s->skipped.data;
    return tni_file_error(TN_E_FORMAT, latest, s->folder,
                          "%d damaged %s-STEP.safetensors and no other; the newest: %s: %s: %s",
                          s->damaged, s->name, latest, newest, newest + strlen(newest) + 1);
}

tn_status tn_checkpoint_latest_report(const char *folder, const char *name, char *path, size_t size,
                                      tn_metadata *skipped)
{
    TNI_TRY(check(latest, folder, name));
    if (!path) return tni_null(latest, "path", "room for a path");
    DIR *dir = opendir(folder);
    if (!dir) /* a folder that does not exist has no checkpoint yet: the first save makes it */
        return tni_file_error(errno == ENOENT ? TN_E_NAME : tni_errno(errno), latest, folder, "%s",
                              strerror(errno));
    tni_saved_error was;
    tni_error_save(&was);
    search s = { .folder = folder, .name = name };
    tn_status status = search_once(&s, dir);
    /* another run removes only what it has replaced, so there is a newer one */
    for (int tries = 1; status == TN_E_NAME && s.gone && tries < 100; tries++)
        status = search_once(&s, dir);
    closedir(dir);
    tn_metadata pairs = { 0 };
    if (status == TN_OK && strlen(s.path) >= size)
        status = tni_error(TN_E_INVALID, "%s: room for %zu bytes: want %zu", latest, size,
                           strlen(s.path) + 1);
    if (status == TN_OK && skipped) status = tni_metadata_of(&s.skipped, &pairs);
    tni_bytes_free(&s.skipped);
    if (status != TN_OK) return status;
    tni_error_restore(&was); /* from skipped files */
    memcpy(path, s.path, strlen(s.path) + 1);
    if (skipped) *skipped = pairs;
    return TN_OK;
}

tn_status tn_checkpoint_latest(const char *folder, const char *name, char *path, size_t size)
{
    return tn_checkpoint_latest_report(folder, name, path, size, NULL);
}
