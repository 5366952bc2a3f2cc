/*
 * atomic_file.c - a file that is there whole or not at all, whatever happens while it is written.
 *
 * Temporary in the same folder (a rename does not cross file systems), created exclusively; every
 * write checked; fsync, so that the data is on the disk before the name is; rename, which replaces
 * the old file in one step; fsync of the folder, so that the name is on the disk too.
 *
 * Source: Pillai et al., All file systems are not created equal (OSDI 2014), section 2.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

#define MARK ".tmp-" /* NAME.tmp-PID-SERIAL */

static tn_status fail(const tni_atomic_file *file, const char *what, int error)
{
    return tni_error(TN_E_IO, "%s: %s: %s: %s after %lld bytes: the old file, if any, is unchanged",
                     file->function, file->name, what, strerror(error), (long long)file->written);
}

/* The folder of a path, in memory of its own: "a/b" -> "a/", "b" -> "./". base receives the last
 * part. */
static char *folder_of(const char *path, const char **base)
{
    const char *slash = strrchr(path, '/');
    *base = slash ? slash + 1 : path;
    if (!slash) return tni_strdup("./");
    size_t n = (size_t)(slash + 1 - path);
    char *folder = tni_alloc(n + 1); /* exactly: tni_strfree takes the size from the length */
    if (!folder) return NULL;
    memcpy(folder, path, n);
    folder[n] = 0;
    return folder;
}

/* Opens the target's folder, and removes what earlier writers of the same file left there when they
 * were killed: temporaries whose process is gone. The sweep is a best effort, without messages. */
static tn_status open_folder(tni_atomic_file *file)
{
    const char *base;
    char *folder = folder_of(file->target, &base);
    if (!folder) return tni_pending();
    file->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = opendir(folder);
    size_t n = strlen(base);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strncmp(e->d_name, base, n) || strncmp(e->d_name + n, MARK, sizeof MARK - 1)) continue;
        long pid = strtol(e->d_name + n + sizeof MARK - 1, NULL, 10);
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir) closedir(dir);
    tni_strfree(folder);
    return TN_OK; /* a folder that is not there shows when the file is created */
}

/* Where path leads (through a symbolic link), which must be nothing yet or a regular file. */
static tn_status find_target(tni_atomic_file *file, mode_t *mode)
{
    struct stat st;
    char *real = realpath(file->name, NULL);
    file->target = tni_strdup(real ? real : file->name);
    free(real);
    if (!file->target) return tni_pending();
    *mode = 0;
    if (stat(file->target, &st) != 0) return TN_OK;
    if (!S_ISREG(st.st_mode))
        return tni_error(TN_E_IO, "%s: %s: %s: only a regular file can be replaced", file->function,
                         file->name, S_ISDIR(st.st_mode) ? "is a folder" : "is not a regular file");
    *mode = st.st_mode & 07777;
    return TN_OK;
}

static tn_status open_temp(tni_atomic_file *file)
{
    static atomic_int serial;
    size_t size = strlen(file->target) + 48;
    char *temp = tni_alloc(size);
    if (!temp) return tni_pending();
    snprintf(temp, size, "%s" MARK "%ld-%d", file->target, (long)getpid(),
             atomic_fetch_add(&serial, 1));
    file->temp = tni_strdup(temp);
    tni_free(temp, size);
    if (!file->temp) return tni_pending();
    do {
        file->fd = open(file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (file->fd < 0 && errno == EINTR);
    if (file->fd >= 0) return TN_OK;
    int error = errno;
    tni_strfree(file->temp); /* not ours: nothing to remove */
    file->temp = NULL;
    return fail(file, "cannot create", error);
}

tn_status tni_file_create(tni_atomic_file *file, const char *function, const char *path,
                          int64_t size)
{
    *file = (tni_atomic_file){ .function = function, .name = path, .fd = -1, .folder = -1 };
    if (!path) return tni_poison(function, "path");
    if (!*path)
        return tni_error(TN_E_INVALID, "%s: the path is empty: a file name is wanted", function);
    mode_t mode = 0;
    tn_status status = find_target(file, &mode);
    if (status == TN_OK) status = open_folder(file);
    if (status == TN_OK) status = open_temp(file);
    /* The mode of the file it replaces; a folder that forbids it keeps the default. */
    if (status == TN_OK && mode && fchmod(file->fd, mode) != 0) errno = 0;
    if (status == TN_OK && size > 0) {
        int error;
        do {
            error = posix_fallocate(file->fd, 0, size);
        } while (error == EINTR);
        /* a file system that cannot reserve says so, and writes tell the rest */
        if (error && error != EOPNOTSUPP && error != EINVAL && error != ENOSYS)
            status = tni_error(TN_E_IO,
                               "%s: %s: cannot reserve %lld bytes: %s: the old file, if any, is "
                               "unchanged",
                               function, path, (long long)size, strerror(error));
    }
    if (status != TN_OK) tni_file_abandon(file);
    return status;
}

tn_status tni_file_write(tni_atomic_file *file, const void *data, size_t nbytes)
{
    const char *at = data;
    while (nbytes > 0) {
        ssize_t n = write(file->fd, at, nbytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(file, "cannot write", errno);
        if (n == 0) return fail(file, "cannot write", ENOSPC);
        at += n;
        nbytes -= (size_t)n;
        file->written += n;
    }
    return TN_OK;
}

/* The new name reaches the disk. Some file systems cannot sync folders: that is no failure. */
static tn_status sync_folder(const tni_atomic_file *file)
{
    if (file->folder < 0 || fsync(file->folder) == 0 || errno == EINVAL || errno == EROFS)
        return TN_OK;
    return tni_error(TN_E_IO,
                     "%s: %s: the file is in place, but its folder could not be synced: %s",
                     file->function, file->name, strerror(errno));
}

tn_status tni_file_finish(tni_atomic_file *file)
{
    tn_status status = TN_OK;
    int error;
    do {
        error = fsync(file->fd) != 0 ? errno : 0;
    } while (error == EINTR);
    if (error) status = fail(file, "cannot sync", error);
    if (close(file->fd) != 0 && errno != EINTR && status == TN_OK)
        status = fail(file, "cannot close", errno);
    file->fd = -1;
    if (status == TN_OK && rename(file->temp, file->target) != 0)
        status = fail(file, "cannot rename", errno);
    if (status == TN_OK) {
        tni_strfree(file->temp);
        file->temp = NULL;
        status = sync_folder(file);
    }
    tni_file_abandon(file);
    return status;
}

void tni_file_abandon(tni_atomic_file *file)
{
    if (file->fd >= 0) close(file->fd);
    if (file->folder >= 0) close(file->folder);
    if (file->temp) unlink(file->temp);
    tni_strfree(file->temp);
    tni_strfree(file->target);
    file->fd = file->folder = -1;
    file->temp = file->target = NULL;
}
