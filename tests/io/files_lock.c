/*
 * files_lock.c - one run at a time writes to a checkpoint: locks of other runs, of dead ones, and
 * of files that are removed meanwhile.
 *
 * Seen to fail, in src/io/lock.c: without flock (one_run_at_a_time), without the comparison of the
 * two files (a_lock_is_of_the_file_that_is_there).
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/cases.h"

/* For flock() in the C library's place: the file that somebody removes between open and lock. */
static const char *removed_before_flock;

int flock(int fd, int operation)
{
    int (*real)(int fd, int operation);
    void *symbol = dlsym(RTLD_NEXT, "flock");
    memcpy(&real, &symbol, sizeof real);
    if (removed_before_flock) unlink(removed_before_flock);
    removed_before_flock = NULL;
    return real(fd, operation);
}

START_TEST(one_run_at_a_time)
{
    const char *paths[] = { folder, in_folder("new.safetensors"), in_folder("old") };
    write_bytes("old", "x", 1);
    for (int i = 0; i < COUNT(paths); i++) {
        char who[64];
        snprintf(who, sizeof who, "another run writes to it, process %ld on ", (long)getpid());
        tn_file_lock *lock = NULL, *second = NULL;
        assert_ok(tn_checkpoint_lock(paths[i], &lock));
        /* another process, and another caller in this one */
        pid_t child = fork();
        if (child == 0) {
            tn_status s = tn_checkpoint_lock(paths[i], &second);
            _exit(s == TN_E_STATE && !second && strstr(tn_error(), who) ? 0 : 1);
        }
        ck_assert_int_eq(status_of(child), 0);
        assert_fails(tn_checkpoint_lock(paths[i], &second), TN_E_STATE, who);
        ck_assert_ptr_null(second);
        /* a child releases only its own locks: none */
        child = fork();
        if (child == 0) tn_checkpoint_unlock(lock), _exit(0);
        ck_assert_int_eq(status_of(child), 0);
        assert_fails(tn_checkpoint_lock(paths[i], &second), TN_E_STATE, who);
        tn_checkpoint_unlock(lock);
        assert_ok(tn_checkpoint_lock(paths[i], &lock));
        tn_checkpoint_unlock(lock);
    }
    ck_assert_int_eq(files_in_folder(), 1); /* "old": no lock stays */
    ck_assert_int_ne(access(in_folder(".tenon.lock"), F_OK), 0);
    tn_checkpoint_unlock(NULL);
}
END_TEST

START_TEST(a_dead_run_locks_nobody_out)
{
    tn_file_lock *lock = NULL;
    pid_t child = fork();
    if (child == 0) raise(tn_checkpoint_lock(folder, &lock) == TN_OK ? SIGKILL : SIGABRT);
    ck_assert_int_eq(status_of(child), 128 + SIGKILL);
    ck_assert_int_eq(access(in_folder(".tenon.lock"), F_OK), 0); /* left behind */
    assert_ok(tn_checkpoint_lock(folder, &lock));
    tn_checkpoint_unlock(lock);
}
END_TEST

/* A file of the lock's name that was removed under a lock locks nothing: the next run gets a new
 * one. */
START_TEST(a_lock_is_of_the_file_that_is_there)
{
    const char *path = in_folder("c"), *name = in_folder("c.lock");
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    tn_file_lock *lock = NULL;
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    assert_fails(tn_checkpoint_lock(path, &lock), TN_E_STATE, "another run writes to it");
    ck_assert_int_eq(unlink(name), 0);
    assert_ok(tn_checkpoint_lock(path, &lock));
    close(fd);
    /* a lock that another one holds by now is not removed */
    ck_assert_int_eq(unlink(name), 0);
    write_bytes("c.lock", "tenon 1 x\n", 10);
    tn_checkpoint_unlock(lock);
    ck_assert_int_eq(access(name, F_OK), 0);
    /* nor does a lock count when its holder removes the file just then */
    removed_before_flock = name;
    assert_ok(tn_checkpoint_lock(path, &lock));
    assert_fails(tn_checkpoint_lock(path, &(tn_file_lock *){ NULL }), TN_E_STATE, "another run");
    tn_checkpoint_unlock(lock);
    /* links lead to one lock */
    ck_assert_int_eq(symlink(folder, in_folder("link")), 0);
    assert_ok(tn_checkpoint_lock(in_folder("link"), &lock));
    tn_file_lock *second = NULL;
    assert_fails(tn_checkpoint_lock(folder, &second), TN_E_STATE, "another run writes to it");
    tn_checkpoint_unlock(lock);
}
END_TEST

START_TEST(what_cannot_be_locked)
{
    tn_file_lock *lock = (tn_file_lock *)folder; /* stays as it is */
    char *longest = owned(malloc(5000));
    memset(longest, 'x', 4999);
    longest[4999] = 0;
    assert_fails(tn_checkpoint_lock(NULL, &lock), TN_E_INVALID,
                 "tn_checkpoint_lock: path is NULL: want the name of a file or folder");
    assert_fails(tn_checkpoint_lock(folder, NULL), TN_E_INVALID,
                 "tn_checkpoint_lock: lock is NULL");
    assert_fails(tn_checkpoint_lock("", &lock), TN_E_INVALID, "path is empty");
    assert_fails(tn_checkpoint_lock(in_folder("none/c"), &lock), TN_E_IO, "No such file");
    assert_fails(tn_checkpoint_lock(in_folder("none/"), &lock), TN_E_IO, "No such file");
    assert_fails(tn_checkpoint_lock(longest, &lock), TN_E_IO, "File name too long");
    assert_fails(tn_checkpoint_lock("/dev/null", &lock), TN_E_IO, "Invalid argument");
    /* a file that only has the lock's name is left alone */
    write_bytes("c.lock", "mine", 4);
    assert_fails(tn_checkpoint_lock(in_folder("c"), &lock), TN_E_IO, "a file of another kind");
    size_t n;
    char *mine = read_bytes(in_folder("c.lock"), &n);
    ck_assert_str_eq(mine, "mine");
    free(mine);
    ck_assert_int_eq(mkfifo(in_folder("p.lock"), 0600), 0);
    assert_fails(tn_checkpoint_lock(in_folder("p"), &lock), TN_E_IO, "a file of another kind");
    ck_assert_ptr_eq(lock, folder);
}
END_TEST

void files_lock_cases(Suite *suite)
{
    TCase *t = file_case(suite, "locks");
    tcase_add_test(t, one_run_at_a_time);
    tcase_add_test(t, a_dead_run_locks_nobody_out);
    tcase_add_test(t, a_lock_is_of_the_file_that_is_there);
    tcase_add_test(t, what_cannot_be_locked);
}
