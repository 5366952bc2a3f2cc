/*
 * test_sound_io.c - files under odd calls and odd circumstances: nothing is lost, nothing crashes,
 * and the error says what it was.
 *
 * Seen to fail, in src/io/lock.c: without flock (one_run_at_a_time), without the comparison of the
 * two files (a_lock_is_of_the_file_that_is_there). All others: before their bugs were fixed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"

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

/* ---- locks ----------------------------------------------------------------------------------- */

static int status_of(pid_t pid)
{
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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
    char *longest = malloc(5000);
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
    free(longest);
}
END_TEST

/* ---- arguments ------------------------------------------------------------------------------- */

/* expr is true when the call has failed: with an error of its own that names the argument, and
 * with the one that is pending when there is one. */
#define WITHOUT(argument, expr)                                                                    \
    do {                                                                                           \
        ck_assert_msg((expr), "%s did not fail", #expr);                                           \
        ck_assert_msg(tn_error_status() == TN_E_INVALID &&                                         \
                          strstr(tn_error(), ": " argument " is NULL: want ") &&                   \
                          !strstr(tn_error(), "TN_NONE"),                                          \
                      "%s: %s: %s", #expr, tn_status_name(tn_error_status()), tn_error());         \
        tn_error_clear();                                                                          \
        tn_fail(TN_E_SHAPE, "before");                                                             \
        ck_assert_msg((expr) && !strcmp(tn_error(), "before"), "%s: %s", #expr, tn_error());       \
        tn_error_clear();                                                                          \
    } while (0)

START_TEST(a_null_is_named)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    tn_list *list = tn_state_dict(m, "");
    tn_tensor *t = tn_ones(TN_SHAPE(4)), *out = t;
    tn_loader *l = tn_loader_new(&t, 1, (tn_loader_options){ 0 });
    tn_text *text = tn_text_load(write_bytes("t", "abcabc", 6), 0.1);
    tn_generator *g = tn_generator_new(1);
    tn_checkpoint c = { 0 };
    const char *path = in_folder("f");
    WITHOUT("m", tn_save(NULL, path));
    WITHOUT("path", tn_save(m, NULL));
    WITHOUT("m", tn_save_with(NULL, path, (tn_save_options){ 0 }));
    WITHOUT("path", tn_save_with(m, NULL, (tn_save_options){ 0 }));
    WITHOUT("m", tn_load(NULL, path));
    WITHOUT("path", tn_load(m, NULL));
    WITHOUT("m", tn_load_with(NULL, path, (tn_load_options){ 0 }, NULL));
    WITHOUT("path", tn_load_with(m, NULL, (tn_load_options){ 0 }, NULL));
    WITHOUT("list", tn_save_tensors(NULL, NULL, path));
    WITHOUT("path", tn_save_tensors(list, NULL, NULL));
    WITHOUT("path", !tn_load_tensors(NULL, NULL));
    WITHOUT("metadata", !tn_metadata_get(NULL, "a"));
    WITHOUT("key", !tn_metadata_get(&(tn_metadata){ 0 }, NULL));
    WITHOUT("c", tn_checkpoint_save(NULL, path));
    WITHOUT("path", tn_checkpoint_save(&c, NULL));
    WITHOUT("c", tn_checkpoint_load(NULL, path));
    WITHOUT("path", tn_checkpoint_load(&c, NULL));
    WITHOUT("path", tn_checkpoint_peek(NULL, NULL, NULL));
    WITHOUT("c", tn_checkpoint_save_numbered(NULL, folder, "n", 1));
    WITHOUT("folder", tn_checkpoint_save_numbered(&c, NULL, "n", 1));
    WITHOUT("name", tn_checkpoint_save_numbered(&c, folder, NULL, 1));
    char latest[1024];
    WITHOUT("folder", tn_checkpoint_latest(NULL, "n", latest, sizeof latest));
    WITHOUT("name", tn_checkpoint_latest(folder, NULL, latest, sizeof latest));
    WITHOUT("path", tn_checkpoint_latest(folder, "n", NULL, 100));
    tn_file_lock *lock;
    WITHOUT("path", tn_checkpoint_lock(NULL, &lock));
    WITHOUT("lock", tn_checkpoint_lock(folder, NULL));
    WITHOUT("path", !tn_idx_load(NULL));
    WITHOUT("path", !tn_text_load(NULL, 0.1));
    WITHOUT("text", tn_text_batch(NULL, false, g, 1, 1, &out, &out));
    WITHOUT("g", tn_text_batch(text, false, NULL, 1, 1, &out, &out));
    WITHOUT("x", tn_text_batch(text, false, g, 1, 1, NULL, &out));
    WITHOUT("y", tn_text_batch(text, false, g, 1, 1, &out, NULL));
    WITHOUT("tensors", !tn_loader_new(NULL, 1, (tn_loader_options){ 0 }));
    WITHOUT("loader", tn_loader_next(NULL, &out, 1) == -1);
    WITHOUT("out", tn_loader_next(l, NULL, 1) == -1);
    WITHOUT("loader", tn_loader_batches(NULL) == -1);
    WITHOUT("loader", tn_loader_epoch(NULL) == -1);
    WITHOUT("loader", tn_loader_position(NULL) == -1);
    WITHOUT("loader", tn_loader_seek(NULL, 0, 0));
    tn_text_free(NULL), tn_loader_free(NULL), tn_checkpoint_unlock(NULL);
    ck_assert_int_eq(tn_error_status(), TN_OK);
    ck_assert_int_eq(files_in_folder(), 1); /* the text */
    ck_assert_ptr_eq(out, t);
    tn_loader_free(l), tn_text_free(text), tn_generator_free(g), tn_module_drop(m);
}
END_TEST

START_TEST(metadata_of_nothing)
{
    const char *one[] = { "a", NULL }, *two[] = { "b", "c" };
    const tn_metadata wrong[] = {
        { 2, NULL, NULL }, { 2, one, two }, { 2, two, one }, { 1, one, NULL }, { -1, one, two }
    };
    static const char *const text[] = {
        "metadata of 2 pairs whose key is NULL: want as many",
        "metadata.key[1] is NULL",
        "metadata.value[1] is NULL",
        "metadata of 1 pairs whose value is NULL",
        "metadata of -1 pairs",
    };
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    tn_list *list = tn_state_dict(m, "");
    const char *path = in_folder("f");
    for (int i = 0; i < COUNT(wrong); i++) {
        tn_checkpoint c = { .metadata = wrong[i] };
        assert_fails(tn_checkpoint_save(&c, path), TN_E_INVALID, text[i]);
        assert_fails(tn_checkpoint_save_numbered(&c, folder, "n", 0), TN_E_INVALID, text[i]);
        assert_fails(tn_save_with(m, path, (tn_save_options){ .metadata = &wrong[i] }),
                     TN_E_INVALID, text[i]);
        assert_fails(tn_save_tensors(list, &wrong[i], path), TN_E_INVALID, text[i]);
        assert_null(tn_metadata_get(&wrong[i], "x"), TN_E_INVALID, text[i]);
    }
    ck_assert_int_eq(files_in_folder(), 0);
    tn_module_drop(m);
}
END_TEST

/* Names of every kind but a file's: what went wrong is in the message, however long the name is. */
START_TEST(odd_paths)
{
    char *longest = malloc(4097), *deep = malloc(4000);
    memset(longest, 'x', 4096), longest[4096] = 0;
    for (int i = 0; i < 3999; i++) deep[i] = i % 2 ? '.' : '/';
    deep[3999] = 0; /* "/././." and so on: the root, by a long name */
    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    const struct {
        const char *path, *text;
    } rows[] = {
        { "", "path is empty: want the name of a file" },
        { "/", "is a folder" },
        { ".", "is a folder" },
        { "/dev/null", "is not a regular file" },
        { in_folder("fifo"), "is not a regular file" },
        { in_folder("none/f"), "No such file or directory" },
        { in_folder("fifo/f"), "Not a directory" },
        { longest, "File name too long" },
        { deep, "is a folder" },
    };
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    for (int i = 0; i < COUNT(rows); i++) {
        tn_checkpoint c = { .model = m };
        const char *path = rows[i].path;
        tn_status status = *path ? TN_E_IO : TN_E_INVALID;
        assert_fails(tn_save(m, path), status, rows[i].text);
        assert_fails(tn_load(m, path), status, rows[i].text);
        assert_fails(tn_checkpoint_save(&c, path), status, rows[i].text);
        assert_fails(tn_checkpoint_load(&c, path), status, rows[i].text);
        assert_fails(tn_checkpoint_peek(path, NULL, NULL), status, rows[i].text);
        assert_null(tn_load_tensors(path, NULL), status, rows[i].text);
        assert_null(tn_idx_load(path), status, rows[i].text);
        assert_null(tn_text_load(path, 0), status, rows[i].text);
    }
    ck_assert_int_eq(files_in_folder(), 1);
    tn_module_drop(m);
    free(longest), free(deep);
}
END_TEST

/* ---- what replaces a file -------------------------------------------------------------------- */

START_TEST(a_saved_file_keeps_its_owner_and_no_set_id_bits)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    const char *path = write_bytes("f", "old", 3);
    struct stat st;
    const mode_t modes[] = { 04755, 02775, 01644, 0600, 0444, 0640 };
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
    tn_module_drop(m);
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

/* What is refused on reading is refused on writing: a module without tensors counts by its
 * version. */
START_TEST(what_is_written_under_a_limit_is_read_under_it)
{
    tn_module *m = tn_module_list_new();
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
    tn_module_drop(m);
}
END_TEST

START_TEST(a_small_gz_makes_no_large_tensor)
{
    enum { N = 310000, CLAIM = 300 << 20 };
    unsigned char *idx = calloc(1, 8 + N);
    for (int i = 0; i < N; i++) idx[8 + i] = (unsigned char)((unsigned)i * 2654435761u >> 24);
    memcpy(idx, (unsigned char[]){ 0, 0, 8, 1, CLAIM >> 24, CLAIM >> 16 & 255, 0, 0 }, 8);
    size_t n;
    unsigned char *bytes = gzip(idx, 8 + N, 0, &n);
    const char *path = write_bytes("bomb.gz", bytes, n);
    free(bytes), free(idx);
    assert_null(tn_idx_load(path), TN_E_FORMAT, "[314572800] values from a compressed file of");
    /* i8 becomes i32: the size in memory counts, not the file's */
    unsigned char small[8 + 1000] = { 0, 0, 9, 1, 0, 0, 1000 >> 8, 1000 & 255 };
    bytes = gzip(small, sizeof small, 9, &n);
    write_bytes("i8.gz", bytes, n);
    free(bytes);
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 3999 }));
    assert_null(tn_idx_load(in_folder("i8.gz")), TN_E_FORMAT, "at most 3999 bytes are made");
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 4000 }));
    assert_made(tn_idx_load(in_folder("i8.gz")));
    assert_made(tn_idx_load(write_bytes("i8", small, sizeof small)));
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
}
END_TEST

/* ---- loaders --------------------------------------------------------------------------------- */

/* The values of all batches of an epoch, as they lie. */
static size_t epoch_of(tn_loader *l, char *to)
{
    size_t n = 0;
    for (tn_tensor *batch; tn_loader_next(l, &batch, 1) == 1;) {
        size_t nbytes = (size_t)tn_numel(batch) * tn_dtype_size(tn_dtype_of(batch));
        memcpy(to + n, tn_data(batch), nbytes);
        n += nbytes;
    }
    return n;
}

/* Casting or replacing a module's buffer does not change the data of a loader made of it. */
START_TEST(a_loader_keeps_what_it_was_made_of)
{
    enum { ROWS = 3000 };
    for (int kind = 0; kind < 4; kind++) {
        tn_loader_options o = { .batch_size = 700, .shuffle = kind & 1, .prefetch = kind & 2 };
        tn_module *m = tn_module_new(&(tn_module_type){ .name = "M", .size = sizeof(tn_module) });
        tn_tensor *x = random_as(TN_SHAPE(ROWS, 5), -1, 1, 1, TN_F64), *same = tn_clone(x);
        assert_ok(tn_register_buffer(m, "x", NULL, x, TN_PERSISTENT));
        tn_loader *l = tn_loader_new(&x, 1, o), *other = tn_loader_new(&same, 1, o);
        assert_made(l);
        char *a = calloc(ROWS, 5 * 8), *b = calloc(ROWS, 5 * 8);
        ck_assert_uint_eq(epoch_of(l, a), ROWS * 5 * 8);
        ck_assert_uint_eq(epoch_of(other, b), ROWS * 5 * 8);
        ck_assert_int_eq(memcmp(a, b, ROWS * 5 * 8), 0);
        assert_ok(tn_module_to_dtype(m, TN_BF16));
        ck_assert_uint_eq(epoch_of(l, a), ROWS * 5 * 8);
        ck_assert_uint_eq(epoch_of(other, b), ROWS * 5 * 8);
        ck_assert_int_eq(memcmp(a, b, ROWS * 5 * 8), 0);
        assert_ok(tn_module_set(m, "x", tn_zeros(TN_SHAPE(1))));
        tn_module_drop(m);
        ck_assert_uint_eq(epoch_of(l, a), ROWS * 5 * 8);
        ck_assert_uint_eq(epoch_of(other, b), ROWS * 5 * 8);
        ck_assert_int_eq(memcmp(a, b, ROWS * 5 * 8), 0);
        tn_loader_free(l), tn_loader_free(other);
        free(a), free(b);
    }
}
END_TEST

/* A child after fork has its parent's loaders, but not their threads. */
START_TEST(a_loader_goes_on_after_fork)
{
    enum { BYTES = 1000 * 5 * 4 };
    if (!child_may_start_threads()) return;
    tn_loader_options o = { .batch_size = 10, .shuffle = true, .prefetch = true };
    tn_tensor *x = random_as(TN_SHAPE(1000, 5), -1, 1, 1, TN_F32), *batch;
    tn_loader *l = tn_loader_new(&x, 1, o);
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        char *a = malloc(BYTES), *b = malloc(BYTES);
        tn_loader *other = tn_loader_new(&x, 1, o);
        bool right = tn_loader_next(other, &batch, 1) == 1 && epoch_of(l, a) == BYTES - 200 &&
                     epoch_of(other, b) == BYTES - 200 && !memcmp(a, b, BYTES - 200);
        tn_loader_free(l), tn_loader_free(other);
        _exit(right ? 0 : 1);
    }
    ck_assert_int_eq(status_of(child), 0);
    tn_loader_free(l);
}
END_TEST

START_TEST(numbers_of_a_loader)
{
    tn_tensor *many = tn_zeros(TN_SHAPE((INT64_C(1) << 60) - 1, 0)), *t = tn_ones(TN_SHAPE(10));
    const tn_loader_options shuffle = { .shuffle = true };
    assert_made(many);
    assert_null(tn_loader_new(&many, 1, shuffle), TN_E_NOMEM, "out of memory");
    assert_null(tn_loader_new((tn_tensor *[]){ t, NULL }, 2, shuffle), TN_E_INVALID,
                "tn_loader_new: tensors[1] is NULL");
    const int counts[] = { 0, -1, 5, INT32_MAX, INT32_MIN };
    for (int i = 0; i < COUNT(counts); i++)
        assert_null(tn_loader_new(&t, counts[i], shuffle), TN_E_INVALID, "want 1 to 4");
    tn_loader *l = tn_loader_new(&t, 1, (tn_loader_options){ .batch_size = INT64_MAX });
    ck_assert_int_eq(tn_loader_batches(l), 1);
    assert_fails(tn_loader_seek(l, INT64_MAX, 1), TN_E_INDEX, "epoch 9223372036854775807");
    assert_fails(tn_loader_seek(l, 0, INT64_MAX), TN_E_INDEX, "an epoch has 1 batches");
    assert_fails(tn_loader_seek(l, INT64_MIN, 0), TN_E_INDEX, "an epoch has 1 batches");
    assert_ok(tn_loader_seek(l, INT64_MAX / 2, 1));
    tn_tensor *batch;
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 0);
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
    tn_loader_free(l);
}
END_TEST

/* ---- all of it ------------------------------------------------------------------------------- */

Suite *test_suite(void)
{
    Suite *suite = suite_create("sound_io");
    TCase *t = file_case(suite, "locks");
    tcase_add_test(t, one_run_at_a_time);
    tcase_add_test(t, a_dead_run_locks_nobody_out);
    tcase_add_test(t, a_lock_is_of_the_file_that_is_there);
    tcase_add_test(t, what_cannot_be_locked);
    t = file_case(suite, "arguments");
    tcase_add_test(t, a_null_is_named);
    tcase_add_test(t, metadata_of_nothing);
    tcase_add_test(t, odd_paths);
    t = file_case(suite, "files");
    tcase_add_test(t, a_saved_file_keeps_its_owner_and_no_set_id_bits);
    tcase_add_test(t, what_is_written_under_a_limit_is_read_under_it);
    tcase_add_test(t, a_small_gz_makes_no_large_tensor);
    t = file_case(suite, "loaders");
    tcase_add_test(t, a_loader_keeps_what_it_was_made_of);
    tcase_add_test(t, a_loader_goes_on_after_fork);
    tcase_add_test(t, numbers_of_a_loader);
    return suite;
}
