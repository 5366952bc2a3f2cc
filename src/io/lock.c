/*
 * lock.c - one run at a time writes to a checkpoint file or folder.
 *
 * The lock is an flock on a small file beside what it guards: the kernel releases it when its
 * process ends, for whatever reason, so a file left behind locks nobody out. It is removed while
 * still locked, and after locking a run checks that the name still refers to this file, so two runs
 * never hold locks on two files of one name. Its text only says who holds it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"

#define OURS "tenon " /* how the text begins: any other file is not ours */
enum { TEXT = 128 };

struct tn_file_lock {
    int fd;
    pid_t pid; /* of the owner: a forked child must not release its parent's lock */
    char name[PATH_MAX];
};

static const char f[] = "tn_checkpoint_lock";

static tn_status fail(const char *path, int error)
{
    return tni_file_error(tni_errno(error), f, path, "cannot be locked: %s", strerror(error));
}

/* The path of the lock file: inside a folder or beside a file, links resolved. 0 or an errno. */
static int name_of(const char *path, char name[PATH_MAX])
{
    char real[PATH_MAX], folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    int n = -1;
    if (realpath(path, real)) {
        if (stat(real, &st) != 0) return errno;
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) return EINVAL;
        n = snprintf(name, PATH_MAX, "%s%s", real, S_ISDIR(st.st_mode) ? "/.tenon.lock" : ".lock");
    } else if (errno == ENOENT && *base) { /* a file that does not exist yet */
        if (strlen(path) >= sizeof folder) return ENAMETOOLONG;
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(base - path) : 1, slash ? path : ".");
        if (!realpath(folder, real)) return errno;
        n = snprintf(name, PATH_MAX, "%s/%s.lock", real, base);
    } else {
        return errno;
    }
    return n >= PATH_MAX ? ENAMETOOLONG : 0;
}

static void read_text(int fd, char text[TEXT])
{
    ssize_t n = pread(fd, text, TEXT - 1, 0);
    text[n > 0 ? n : 0] = 0;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = 0;
}

static void write_text(int fd)
{
    char text[TEXT] = "", host[64] = "";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    int n = snprintf(text, sizeof text, OURS "%ld on %s\n", (long)getpid(), host);
    /* the lock holds without it, for example on a full disk */
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) return;
}

/* Whether a name still leads to this open file. */
static bool is_at(int fd, const char *name)
{
    struct stat st, there;
    return fstat(fd, &st) == 0 && stat(name, &there) == 0 && st.st_ino == there.st_ino &&
           st.st_dev == there.st_dev;
}

/* TN_OK: locked. *again: the file belonged to a run that has just ended. */
static tn_status try(const char *path, const char *name, int *fd, bool *again)
{
    *again = false;
    TNI_UNINTERRUPTED(*fd,
                      open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    struct stat st;
    if (*fd < 0 || fstat(*fd, &st) != 0) return fail(path, errno);
    char text[TEXT];
    read_text(*fd, text);
    bool ours = S_ISREG(st.st_mode) && (!text[0] || !strncmp(text, OURS, sizeof OURS - 1));
    if (!ours)
        return tni_file_error(TN_E_IO, f, path, TNI_PATH " is a file of another kind: want it gone",
                              name);
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return tni_file_error(TN_E_STATE, f, path,
                                  "another run writes to it, process %s: want that one to end, or "
                                  "another file or folder",
                                  text[0] ? text + sizeof OURS - 1 : "?"); /* not written yet */
        if (errno != ENOLCK && errno != ENOTSUP && errno != ENOSYS && errno != EINVAL)
            return fail(path, errno);
        return tni_file_error(TN_E_UNSUPPORTED, f, path, "its file system has no locks");
    }
    *again = !is_at(*fd, name);
    return TN_OK;
}

tn_status tn_checkpoint_lock(const char *path, tn_file_lock **lock)
{
    if (!path) return tni_null(f, "path", "the name of a file or folder");
    if (!lock) return tni_null(f, "lock", "a place for the lock");
    if (!*path) return tni_error(TN_E_INVALID, "%s: path is empty: want a file or folder", f);
    tn_file_lock *l = tni_alloc(sizeof *l);
    if (!l) return TN_E_NOMEM;
    *l = (tn_file_lock){ .fd = -1, .pid = getpid() };
    const int error = name_of(path, l->name);
    tn_status status = error ? fail(path, error) : TN_OK;
    bool again = !error;
    for (int tries = 0; again && tries < 100; tries++) {
        if (l->fd >= 0) close(l->fd);
        status = try(path, l->name, &l->fd, &again);
    }
    if (status == TN_OK && again) status = fail(path, EAGAIN);
    if (status == TN_OK) {
        write_text(l->fd);
        *lock = l;
        return TN_OK;
    }
    if (l->fd >= 0) close(l->fd);
    tni_free(l, sizeof *l);
    return status;
}

void tn_checkpoint_unlock(tn_file_lock *lock)
{
    if (!lock) return;
    bool owner = lock->pid == getpid();
    if (owner && is_at(lock->fd, lock->name)) unlink(lock->name);
    if (owner) flock(lock->fd, LOCK_UN); /* our children may have it open */
    close(lock->fd);
    tni_free(lock, sizeof *lock);
}
