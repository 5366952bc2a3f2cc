/*
 * test_load_large.c - large tensors, which several threads read piece by piece: the same bits for
 * any number of them, from wherever it is called, and one error for the caller whoever met it.
 *
 * Truth: the model that was saved; zlib's crc32_z.
 *
 * Seen to fail: in src/io/input.c, scan_piece() without moving a piece's checksum to its place
 * (any_number_of_threads), tni_input_scan() without the second look in the caller's thread
 * (cut_or_broken_in_the_middle, reading_for_nobody), pass() that goes on after an error
 * (reading_for_nobody); in src/io/crc32.c, another power (checksums_are_zlibs).
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "files.h"
#include "io/file.h"
#include "nn/module.h"
#include "tensor/cpu/cpu.h"

static const char *const kinds[] = { "m.safetensors", "m.pt" };
static const int threads[] = { 1, 2, 3, 7 };

enum { PIECE = 1 << 18, ROWS = 1003, COLUMNS = 1250 }; /* 5 MB: 19 pieces and a part */

static tn_module *net(void)
{
    return owned(tn_linear_new(COLUMNS, ROWS, (tn_linear_options){ 0 }));
}

/* ---- threads --------------------------------------------------------------------------------- */

START_TEST(any_number_of_threads)
{
    const char *path = in_folder(kinds[_i]);
    tn_module *from = net();
    assert_ok(tn_save(from, path));
    for (int first = 0; first < 2; first++) {
        tni_read_first = first ? INT64_C(64) << 20 : 0;
        for (int i = 0; i < COUNT(threads); i++) {
            tn_module *to = net(), *half = net();
            assert_ok(tn_set_num_threads(threads[i]));
            assert_ok(tn_load(to, path));
            ck_assert_uint_eq(hash_of_module(to), hash_of_module(from));
            assert_ok(tn_module_to_dtype(half, TN_BF16));
            assert_ok(tn_load_with(half, path, (tn_load_options){ .cast = true }, NULL));
            const tn_tensor *want = tn_to_dtype(tn_get_parameter(from, "weight"), TN_BF16);
            ck_assert_uint_eq(tn_hash(tn_get_parameter(half, "weight")), tn_hash(want));
        }
    }
}
END_TEST

typedef struct call {
    const char *path;
    uint64_t got[4];
} call;

static void load_in_chunk(void *context, int64_t begin, int64_t end)
{
    call *c = context;
    for (int64_t i = begin; i < end; i++) TN_SCOPE
        {
            const tn_list *list = tn_load_tensors(c->path, NULL);
            c->got[i] = list ? tn_hash(tn_list_get(list, "weight")) : 0;
        }
}

static void *load_in_thread(void *context)
{
    load_in_chunk(context, 0, 1);
    return NULL;
}

/* Inside a region, whose threads are taken; in a thread of the program's; in a forked child. */
START_TEST(wherever_it_is_called)
{
    call c = { .path = in_folder(kinds[_i]) };
    pthread_t thread;
    tn_module *from = net();
    const uint64_t want = tn_hash(tn_get_parameter(from, "weight"));
    assert_ok(tn_save(from, c.path));
    assert_ok(tn_set_num_threads(3));
    tni_parallel(4, 1, load_in_chunk, &c);
    for (int i = 0; i < 4; i++) ck_assert_uint_eq(c.got[i], want);
    c.got[0] = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, load_in_thread, &c), 0);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(c.got[0], want);
    load_in_chunk(&c, 0, 1);
    if (!child_may_start_threads()) return;
    const pid_t child = fork();
    if (child == 0) {
        c.got[0] = 0;
        load_in_chunk(&c, 0, 1);
        _exit(c.got[0] != want);
    }
    ck_assert_int_eq(status_of(child), 0);
}
END_TEST

/* ---- checksums ------------------------------------------------------------------------------- */

START_TEST(checksums_are_zlibs)
{
    unsigned char bytes[3000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * i * 31 >> 5);
    for (size_t n = 0; n + 64 <= sizeof bytes; n++) {
        const unsigned char *from = bytes + n % 61;
        const uint32_t crc = (uint32_t)n * 0x9e3779b9u;
        ck_assert_msg(tni_crc32(crc, from, n) == crc32_z(crc, from, n), "%zu bytes", n);
    }
}
END_TEST

/* One bit of the values changed, in every piece and at its ends: refused before any is written. */
START_TEST(damage_is_seen_first)
{
    size_t n;
    tni_read_first = 0;
    tn_module *m = net();
    assert_ok(tn_init_constant(tn_get_parameter(m, "weight"), 0.5));
    assert_ok(tn_save(m, in_folder("m.pt")));
    assert_ok(tn_init_constant(tn_get_parameter(m, "weight"), 7));
    const uint64_t hash = hash_of_module(m);
    char *bytes = owned((char *)read_bytes(in_folder("m.pt"), &n));
    static const float half[16] = {
        .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5
    };
    char *values = memmem(bytes, n, half, sizeof half);
    ck_assert_ptr_nonnull(values);
    for (int64_t at = 0; at < 4 * ROWS * COLUMNS; at += PIECE - 1 + at % 3) {
        assert_ok(tn_set_num_threads(threads[at % COUNT(threads)]));
        values[at] ^= 16;
        assert_fails(tn_load(m, write_bytes("cut", bytes, n)), TN_E_FORMAT, "its checksum is");
        ck_assert_uint_eq(hash_of_module(m), hash);
        values[at] ^= 16;
    }
}
END_TEST

/* ---- what cannot be read --------------------------------------------------------------------- */

static off_t cut_to; /* 0: the file breaks */

/* Names are looked at after the file was checked, and before a value is written: then the file is
 * cut, or a folder takes the place of what was opened, which cannot be read. */
static bool spoil(const char *name, char *to, size_t size, void *path)
{
    struct stat file, open_one;
    snprintf(to, size, "%s", name);
    if (cut_to) return truncate(path, cut_to) == 0;
    const int broken = open(".", O_RDONLY);
    stat(path, &file);
    for (int fd = 3; fd < 64; fd++)
        if (fstat(fd, &open_one) == 0 && open_one.st_ino == file.st_ino) dup2(broken, fd);
    close(broken);
    return true;
}

/* Whichever thread meets it: the caller has the message, and no helper changes what it says. */
START_TEST(cut_or_broken_in_the_middle)
{
    tni_read_first = 0;
    const char *path = in_folder(kinds[_i]);
    const tn_load_options o = { .rename = spoil, .user = (void *)(uintptr_t)path };
    for (int i = 0; i < COUNT(threads); i++)
        for (int k = 0; k < 5; k++) {
            tn_module *m = net();
            assert_ok(tn_set_num_threads(threads[i]));
            assert_ok(tn_save(m, path));
            cut_to = k * 1200000;
            const char *why = k ? "became shorter while it was read" : "Is a directory";
            ck_assert_int_eq(tn_load_with(m, path, o, NULL), TN_E_IO);
            ck_assert_msg(strstr(tn_error(), why) && strstr(tn_error(), "half loaded, with NaN"),
                          "%d threads, %d: %s", threads[i], k, tn_error());
            tn_error_clear();
            tn_tensor *finite = tn_all(tn_isfinite(tn_get_parameter(m, "weight")), NULL, 0, false);
            ck_assert(tn_item(finite) == 0);
        }
}
END_TEST

/* What is only to be readable is, and is not: also where nothing more can be opened. */
START_TEST(reading_for_nobody)
{
    tni_input in;
    struct rlimit limit;
    const size_t n = 5 * PIECE + 12345;
    char *bytes = owned((char *)calloc(1, n));
    assert_ok(tni_input_open(&in, "test", write_bytes("f", bytes, n)));
    for (int few = 0; few < 2; few++) {
        for (int i = 0; i < COUNT(threads); i++) {
            assert_ok(tn_set_num_threads(threads[i]));
            for (int64_t at = 0; at < 3; at++) {
                const size_t left = n - (size_t)at;
                assert_ok(tni_input_scan(&in, at, left, (tni_scan){ 0 }));
                assert_fails(tni_input_scan(&in, at, left + 1, (tni_scan){ 0 }), TN_E_IO,
                             "became shorter");
                assert_fails(tni_input_scan(&in, at + PIECE, n + PIECE, (tni_scan){ 0 }), TN_E_IO,
                             "became shorter");
            }
        }
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = 3;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    tni_input_close(&in);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("load_large");
    TCase *t = file_case(suite, "load_large");
    tcase_add_loop_test(t, any_number_of_threads, 0, COUNT(kinds));
    tcase_add_loop_test(t, wherever_it_is_called, 0, COUNT(kinds));
    tcase_add_test(t, checksums_are_zlibs);
    tcase_add_test(t, damage_is_seen_first);
    tcase_add_loop_test(t, cut_or_broken_in_the_middle, 0, COUNT(kinds));
    tcase_add_test(t, reading_for_nobody);
    return suite;
}
