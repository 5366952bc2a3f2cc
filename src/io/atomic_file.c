/*
 * atomic_file.c - a file that exists whole or not at all, whatever happens while it is written.
 *
 * A temporary file in the same folder (a rename does not cross file systems), created exclusively;
 * every write checked; fsync, so that the data is on the disk before the name; rename, which
 * replaces the old file in one step; fsync of the folder, so that the name is on the disk too.
 *
 * Source: Pillai et al., All file systems are not created equal (OSDI 2014), section 2.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

#define MARK ".tmp-" /* NAME.tmp-PID-SERIAL */

#define refuse(file, status, ...)                                                                  \
    tni_file_error(status, (file)->function, (file)->name, __VA_ARGS__)

void tni_make_folders(char *path)
{
    for (char *at = path; (at = strchr(at + 1, '/')); *at = '/') {
        *at = '\0';
        (void)mkdir(path, 0777);
    }
}

static tn_status fail(const tni_atomic_file *file, const char *what, int error)
{
    if (!file->written) return refuse(file, tni_errno(error), "%s: %s", what, strerror(error));
    return refuse(file, tni_errno(error),
                  "%s: %s after %" PRId64 " bytes: the old file, if any, is unchanged", what,
                  strerror(error), file->written);
}

void tni_file_sweep(int folder, const char *entry, size_t n)
{
    static const char digits[] = "0123456789";
    if (strncmp(entry + n, MARK, sizeof MARK - 1)) return;
    const char *pid = entry + n + sizeof MARK - 1;
    const char *serial = pid + strspn(pid, digits);
    if (serial == pid || *serial++ != '-' || !*serial || serial[strspn(serial, digits)]) return;
    int fd = openat(folder, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(folder, entry, 0);
    if (fd >= 0) close(fd);
}

static void sweep(const char *folder, const char *base)
{
    const size_t n = strlen(base);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (!strncmp(e->d_name, base, n)) tni_file_sweep(dirfd(dir), e->d_name, n);
    if (dir) closedir(dir);
}

/* Opens the target's folder, to sync it at the end. A folder that may not be read is not synced. */
static tn_status open_folder(tni_atomic_file *file)
{
    const char *slash = strrchr(file->target, '/');
    char folder[PATH_MAX]; /* find_target has had realpath look at it: it fits */
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash + 1 - file->target) : 2,
             slash ? file->target : "./");
    TNI_UNINTERRUPTED(file->folder, open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int error = file->folder < 0 && errno != EACCES ? errno : 0;
    if (!error) sweep(folder, slash ? slash + 1 : file->target);
    if (error == ENOENT)
        return refuse(file, tni_errno(error), "there is no folder %s: want it made first", folder);
    return error ? fail(file, "cannot open its folder", error) : TN_OK;
}

/* The file that path leads to (through links): none yet (*old without a mode), or a regular one. */
static tn_status find_target(tni_atomic_file *file, struct stat *old)
{
    while (!realpath(file->name, file->target)) {
        *old = (struct stat){ 0 };
        if (errno != ENOENT || (lstat(file->name, old) != 0 && errno != ENOENT))
            return fail(file, "cannot look at it", errno);
        if (S_ISLNK(old->st_mode))
            return refuse(file, TN_E_IO, "is a symbolic link to nothing: want a file there");
        if (old->st_mode) continue; /* another program has made it just now */
        snprintf(file->target, sizeof file->target, "%s", file->name);
        return TN_OK;
    }
    if (stat(file->target, old) != 0) return fail(file, "cannot look at it", errno);
    if (!S_ISREG(old->st_mode))
        return refuse(file, TN_E_IO, "%s: only a regular file can be replaced",
                      S_ISDIR(old->st_mode) ? "is a folder" : "is not a regular file");
    return TN_OK;
}

/* Locks a temporary. False if it is lost: between its creation and its lock, another writer's sweep
 * took it for one left behind. */
static bool lock_temp(int fd)
{
    /* without locks nothing is swept either */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    struct stat st;
    return fstat(fd, &st) != 0 || st.st_nlink > 0;
}

/* Gives the temporary the old file's owner and permissions. If they cannot be kept, access is not
 * widened: a different group gets only what all others may do. Set-id bits are for programs and are
 * dropped. */
static tn_status keep_owner(const tni_atomic_file *file, const struct stat *old)
{
    struct stat st;
    mode_t mode = old->st_mode & 0777;
    if (fstat(file->fd, &st) != 0) return fail(file, "cannot look at it", errno);
    bool group = st.st_gid == old->st_gid;
    if (st.st_uid != old->st_uid || !group)
        group = fchown(file->fd, old->st_uid, old->st_gid) == 0 || group ||
                fchown(file->fd, (uid_t)-1, old->st_gid) == 0;
    if (!group) mode &= ~(mode_t)070 | (mode & 07) << 3;
    if (fchmod(file->fd, mode) != 0 && errno != EPERM && errno != ENOTSUP)
        return fail(file, "cannot set its mode", errno); /* some file systems have no modes */
    return TN_OK;
}

/* Creates the temporary, locked, and never readable by more users than the file it replaces. */
static tn_status open_temp(tni_atomic_file *file, const struct stat *old)
{
    static atomic_int serial;
    int error = EEXIST; /* name taken by another machine's process, or swept at once */
    for (int tries = 0; tries < 100 && error == EEXIST; tries++) {
        snprintf(file->temp, sizeof file->temp, "%s" MARK "%ld-%d", file->target, (long)getpid(),
                 atomic_fetch_add(&serial, 1));
        TNI_UNINTERRUPTED(file->fd, open(file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                         old->st_mode ? 0600 : 0666));
        error = file->fd < 0 ? errno : lock_temp(file->fd) ? 0 : EEXIST;
        if (!error || file->fd < 0) continue;
        close(file->fd); /* a sweep removes it, or has done so */
        file->fd = -1;
    }
    if (error) return file->temp[0] = '\0', fail(file, "cannot create", error);
    return old->st_mode ? keep_owner(file, old) : TN_OK;
}

static void abandon(tni_atomic_file *file)
{
    if (file->fd >= 0) close(file->fd);
    if (file->folder >= 0) close(file->folder);
    if (file->temp[0]) unlink(file->temp);
    file->fd = file->folder = -1;
    file->temp[0] = '\0';
}

tn_status tni_file_create(tni_atomic_file *file, const char *function, const char *path,
                          int64_t size)
{
    *file = (tni_atomic_file){ .function = function, .name = path, .fd = -1, .folder = -1 };
    struct stat old;
    tn_status status = tni_path_check(function, path);
    if (status == TN_OK) status = find_target(file, &old);
    if (status == TN_OK) status = open_folder(file);
    if (status == TN_OK) status = open_temp(file, &old);
    if (status == TN_OK && size > 0) {
        int error;
        do {
            error = posix_fallocate(file->fd, 0, size);
        } while (error == EINTR);
        /* a file system that cannot reserve says so; write errors show the rest */
        if (error && error != EOPNOTSUPP && error != EINVAL && error != ENOSYS)
            status =
                refuse(file, tni_errno(error),
                       "cannot reserve %" PRId64 " bytes: %s: the old file, if any, is unchanged",
                       size, strerror(error));
    }
    if (status != TN_OK) abandon(file);
    return status;
}

tn_status tni_file_write(tni_atomic_file *file, const void *data, size_t nbytes)
{
    const char *at = data;
    if (file->sums) file->crc = tni_crc32(file->crc, data, nbytes);
    while (nbytes > 0) {
        ssize_t n = write(file->fd, at, nbytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail(file, "cannot write", n < 0 ? errno : ENOSPC);
        at += n;
        nbytes -= (size_t)n;
        file->written += n;
    }
    return TN_OK;
}

tn_status tni_file_patch(tni_atomic_file *file, int64_t offset, const void *data, size_t nbytes)
{
    ssize_t n;
    TNI_UNINTERRUPTED(n, pwrite(file->fd, data, nbytes, (off_t)offset));
    return n == (ssize_t)nbytes ? TN_OK : fail(file, "cannot write", n < 0 ? errno : ENOSPC);
}

/* Puts the new name on the disk. Some file systems cannot sync folders: not a failure. */
static tn_status sync_folder(const tni_atomic_file *file)
{
    if (file->folder < 0) return TN_OK;
    int synced;
    TNI_UNINTERRUPTED(synced, fsync(file->folder));
    if (synced == 0 || errno == EINVAL || errno == EROFS) return TN_OK;
    return refuse(file, TN_E_IO, "the file is in place, but its folder could not be synced: %s",
                  strerror(errno));
}

tn_status tni_file_finish(tni_atomic_file *file, tn_status status)
{
    int synced = 0;
    if (status == TN_OK) TNI_UNINTERRUPTED(synced, fsync(file->fd));
    if (synced != 0) status = fail(file, "cannot sync", errno);
    /* closed last: that ends the lock; fsync has already reported any error */
    if (status == TN_OK && rename(file->temp, file->target) != 0)
        status = fail(file, "cannot rename", errno);
    if (status == TN_OK) file->temp[0] = '\0', status = sync_folder(file);
    abandon(file);
    return status;
}

tn_status tni_file_replace(const char *function, const char *path, const void *data, size_t nbytes)
{
    tni_atomic_file file;
    TNI_TRY(tni_file_create(&file, function, path, (int64_t)nbytes));
    return tni_file_finish(&file, tni_file_write(&file, data, nbytes));
}
