/*
 * files_replace.c - a file takes another one's place: whole or not at all, with that one's mode and
 * owner, while others do the same, and within the limits that reading has.
 *
 * Seen to fail: with the temporary's flock() taken for granted in src/io/atomic_file.c, as it was:
 * "cannot rename: No such file or directory" within a few dozen saves; with a mode of 0 taken for
 * no file: 0644; with a file that another writer has just made taken for a symbolic link to nothing
 * (another_writers_new_file).
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/cases.h"

static tn_list *list_of(double value, int64_t n)
{
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "w", tn_full(TN_SHAPE(n), value)));
    return list;
}

START_TEST(failed_save_keeps_the_old_file)
{
    const char *path = in_folder("f");
    assert_ok(tn_save_tensors(list_of(1, 10), NULL, path));
    size_t n;
    char *before = owned(read_bytes(path, &n));
    tn_list *large = list_of(2, 200000);
    /* a limit on file sizes, with the signal ignored, stands for a full disk */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit was;
    getrlimit(RLIMIT_FSIZE, &was);
    struct rlimit small = { 65536, was.rlim_max };
    setrlimit(RLIMIT_FSIZE, &small);
    tn_status status = tn_save_tensors(large, NULL, path);
    setrlimit(RLIMIT_FSIZE, &was);
    ck_assert_int_eq(status, TN_E_IO);
    assert_error(TN_E_IO, "File too large");
    size_t m;
    char *after = owned(read_bytes(path, &m));
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(before, after, n), 0);
    ck_assert_int_eq(files_in_folder(), 1); /* the temporary is gone */
}
END_TEST

START_TEST(links_and_the_current_folder)
{
    /* a symbolic link stays one; the mode of the file it leads to stays too */
    assert_ok(tn_save_tensors(list_of(1, 10), NULL, in_folder("real")));
    ck_assert_int_eq(chmod(in_folder("real"), 0640), 0);
    ck_assert_int_eq(symlink("real", in_folder("link")), 0);
    assert_ok(tn_save_tensors(list_of(2, 20), NULL, in_folder("link")));
    struct stat st;
    ck_assert_int_eq(lstat(in_folder("link"), &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(stat(in_folder("real"), &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0640);
    ck_assert_int_eq(tn_numel(tn_list_get(tn_load_tensors(in_folder("real"), NULL), "w")), 20);
    ck_assert_int_eq(chdir(folder), 0);
    assert_ok(tn_save_tensors(list_of(1, 10), NULL, "here"));
    assert_made(tn_load_tensors("here", NULL));
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

START_TEST(killed_writers_leave_nothing)
{
    /* a child dies of the size limit in the middle of a save; the next save sweeps its temporary */
    const char *path = in_folder("f");
    assert_ok(tn_save_tensors(list_of(1, 10), NULL, path));
    pid_t pid = fork();
    if (pid == 0) {
        char name[600];
        snprintf(name, sizeof name, "%s.tmp-%ld-0", path, (long)getpid());
        FILE *file = fopen(name, "wb");
        fputs("half", file);
        fclose(file);
        _exit(0);
    }
    ck_assert_int_eq(status_of(pid), 0);
    ck_assert_int_eq(files_in_folder(), 2);
    assert_ok(tn_save_tensors(list_of(2, 10), NULL, path));
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* Every save removes what killed writers left behind; a live writer's file must stay. */
START_TEST(writers_at_once)
{
    enum { WRITERS = 3, SAVES = 150 };
    const char *path = in_folder("f");
    pid_t writer[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        writer[w] = fork();
        if (writer[w]) continue;
        for (int i = 0; i < SAVES; i++) {
            tn_scope scope = tn_scope_begin();
            if (tn_save_tensors(list_of(w, 10), NULL, path) != TN_OK) {
                fprintf(stderr, "writer %d, save %d: %s\n", w, i, tn_error());
                _exit(1);
            }
            tn_scope_end(scope);
        }
        _exit(0);
    }
    for (int w = 0; w < WRITERS; w++) ck_assert_int_eq(status_of(writer[w]), 0);
    tn_list *last = tn_load_tensors(path, NULL);
    assert_made(last);
    double value = tn_at(tn_list_get(last, "w"), TN_INDEX(0));
    ck_assert(value >= 0 && value < WRITERS);
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

static const char *appears; /* a file that another program makes while realpath looks for it */

/* In the C library's place. */
char *realpath(const char *restrict path, char *restrict resolved)
{
    char *(*original)(const char *, char *);
    void *symbol = dlsym(RTLD_NEXT, "realpath");
    memcpy(&original, &symbol, sizeof original);
    char *real = original(path, resolved);
    if (!real && errno == ENOENT && appears && strcmp(path, appears) == 0) {
        appears = NULL;
        FILE *other = fopen(path, "w");
        ck_assert_ptr_nonnull(other);
        fclose(other);
        errno = ENOENT;
    }
    return real;
}

START_TEST(another_writers_new_file)
{
    const char *path = in_folder("f");
    appears = path;
    assert_ok(tn_save_tensors(list_of(1, 10), NULL, path));
    ck_assert_ptr_null(appears);
    assert_made(tn_load_tensors(path, NULL));
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* A mode of 0 is one: a file that nobody may read is not replaced by one that everybody may. */
START_TEST(a_saved_file_keeps_its_owner_and_no_set_id_bits)
{
    tn_module *m = owned(tn_linear_new(2, 2, (tn_linear_options){ 0 }));
    const char *path = write_bytes("f", "old", 3);
    struct stat st;
    const mode_t modes[] = { 04755, 02775, 01644, 0600, 0444, 0640, 0 };
    bool root = geteuid() == 0; /* anybody else cannot give files away */
    for (int i = 0; i < COUNT(modes); i++) {
        if (root) ck_assert_int_eq(chown(path, 12345, 23456), 0);
        ck_assert_int_eq(chmod(path, modes[i]), 0);
        assert_ok(tn_save(m, path));
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, modes[i] & 0777);
        ck_assert_uint_eq(st.st_uid, root ? 12345 : geteuid());
        if (root) ck_assert_uint_eq(st.st_gid, 23456);
    }
    if (root) {
        /* another user, who may write into the folder: the file is theirs, and the group, which
         * they cannot set, may do no more than all others */
        ck_assert_int_eq(chmod(folder, 0777), 0);
        ck_assert_int_eq(chmod(path, 0664), 0);
        pid_t child = fork();
        if (child == 0) {
            if (setgid(777) || setuid(777)) _exit(2);
            _exit(tn_save(m, path) == TN_OK ? 0 : 1);
        }
        ck_assert_int_eq(status_of(child), 0);
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0644);
        ck_assert_uint_eq(st.st_uid, 777);
        ck_assert_uint_eq(st.st_gid, 777);
    }
}
END_TEST

/* What is refused on reading is refused on writing: a module without tensors counts by its
 * version. */
START_TEST(what_is_written_under_a_limit_is_read_under_it)
{
    tn_module *m = owned(tn_module_list_new());
    for (int i = 0; i < 6; i++)
        assert_ok(tn_module_append(
            m, tn_batch_norm1d_new(
                   1, (tn_batch_norm_options){ .no_affine = true, .no_tracking = true })));
    assert_ok(tn_module_append(m, tn_linear_new(1, 1, (tn_linear_options){ 0 })));
    for (int64_t limit = 1; limit < 12; limit++) {
        static const char *const names[] = { "f.safetensors", "f.pt", "f.checkpoint" };
        for (int i = 0; i < 3; i++) {
            tn_checkpoint c = { .model = m };
            const char *path = in_folder(names[i]);
            assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = limit }));
            tn_status saved = i == 2 ? tn_checkpoint_save(&c, path) : tn_save(m, path);
            ck_assert_msg(saved == TN_OK || (tn_error_status() == TN_E_INVALID &&
                                             strstr(tn_error(), "(tn_set_file_limits)")),
                          "%s", tn_error());
            tn_error_clear();
            tn_status loaded = i == 2 ? tn_checkpoint_load(&c, path) : tn_load(m, path);
            ck_assert_msg(loaded == saved || (saved != TN_OK && loaded == TN_E_IO),
                          "%s under %d: saved %d, loaded %d: %s", names[i], (int)limit, saved,
                          loaded, tn_error());
            tn_error_clear();
        }
    }
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
}
END_TEST

void files_replace_cases(Suite *suite)
{
    TCase *t = file_case(suite, "replacement");
    tcase_add_test(t, failed_save_keeps_the_old_file);
    tcase_add_test(t, links_and_the_current_folder);
    tcase_add_test(t, killed_writers_leave_nothing);
    tcase_add_test(t, writers_at_once);
    tcase_add_test(t, another_writers_new_file);
    tcase_add_test(t, a_saved_file_keeps_its_owner_and_no_set_id_bits);
    tcase_add_test(t, what_is_written_under_a_limit_is_read_under_it);
}
