/*
 * checkpoint_folder.c - numbered checkpoints: the last N stay, the newest whole one is found,
 * files damaged by a crash or a disk are skipped, other programs' files are not touched.
 *
 * Seen to fail, in src/io/checkpoint_folder.c: newest() without tni_checkpoint_verify (torn
 * checkpoints, flipped_bits), step_of() without the comparison of the whole name
 * (other_files_stay), names compared in place of steps (numbers_beyond_the_padding), keep + 1 files
 * kept (the_last_n_stay), no sweep (stale_temporaries_go), the error of reading the folder taken
 * for its end (a_folder_that_breaks); in tni_safetensors_verify, checksums that are not compared,
 * or TN_OK for an answer (torn checkpoints).
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/cases.h"
#include "io/safetensors.h"
#include "scarce.h"

#define NAME "net"

/* For readdir() in the C library's place: entries that may still be read, -1: all. */
static int entries = -1;

struct dirent *readdir(DIR *dir)
{
    struct dirent *(*real)(DIR * dir);
    void *symbol = dlsym(RTLD_NEXT, "readdir");
    memcpy(&real, &symbol, sizeof real);
    if (entries == 0) {
        errno = EIO;
        return NULL;
    }
    if (entries > 0) entries--;
    return real(dir);
}

/* ---- a small run ----------------------------------------------------------------------------- */

static tn_module *linear_new(int64_t in)
{
    return owned(tn_linear_new(in, 3, (tn_linear_options){ 0 }));
}

static tn_status save_at(tn_module *m, int64_t step, int keep)
{
    tn_checkpoint c = { .model = m, .step = step };
    return tn_checkpoint_save_numbered(&c, folder, NAME, keep);
}

static bool is_there(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

static const char *file_of(int64_t step)
{
    static char name[2][64];
    static int next;
    next = !next;
    snprintf(name[next], sizeof name[next], NAME "-%08" PRId64 ".safetensors", step);
    return name[next];
}

/* The step of the newest whole file, -1 on failure, with its error. */
static int64_t latest(void)
{
    char path[1024] = "untouched";
    int64_t step = -2;
    if (tn_checkpoint_latest(folder, NAME, path, sizeof path) != TN_OK) {
        ck_assert_str_eq(path, "untouched");
        return -1;
    }
    ck_assert_msg(tn_error_status() == TN_OK, "left over: %s", tn_error());
    assert_ok(tn_checkpoint_peek(path, NULL, &step));
    ck_assert_str_eq(path, in_folder(file_of(step)));
    return step;
}

/* ---- the last N ------------------------------------------------------------------------------ */

static void assert_files(int n, const int64_t *steps)
{
    for (int i = 0; i < n; i++)
        ck_assert_msg(is_there(file_of(steps[i])), "%s is gone", file_of(steps[i]));
    ck_assert_int_eq(files_in_folder(), n);
}
#define FILES(...)                                                                                 \
    assert_files((int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),                      \
                 (int64_t[]){ __VA_ARGS__ })

START_TEST(the_folder_is_made)
{
    char path[PATH_MAX];
    tn_checkpoint c = { .model = linear_new(4), .step = 7 };
    assert_ok(tn_checkpoint_save_numbered(&c, in_folder("runs/a"), NAME, 1));
    assert_ok(tn_checkpoint_latest(in_folder("runs/a"), NAME, path, sizeof path));
    ck_assert_int_eq(close(open(in_folder("file"), O_CREAT | O_WRONLY, 0600)), 0);
    assert_fails(tn_checkpoint_save_numbered(&c, in_folder("file"), NAME, 1), TN_E_IO,
                 "Not a directory");
    ck_assert_ptr_null(strstr(tn_error(), "0 bytes"));
}
END_TEST

START_TEST(the_last_n_stay)
{
    tn_module *m = linear_new(4);
    for (int64_t s = 0; s <= 40; s += 10) assert_ok(save_at(m, s, 3));
    FILES(20, 30, 40);
    assert_ok(save_at(m, 40, 3)); /* again: replaced */
    FILES(20, 30, 40);
    assert_ok(save_at(m, 50, 1));
    FILES(50);
    for (int64_t s = 60; s <= 90; s += 10) assert_ok(save_at(m, s, 0));
    FILES(50, 60, 70, 80, 90);
    /* back in time: what is newer stays, and does not count */
    assert_ok(save_at(m, 65, 2));
    FILES(60, 65, 70, 80, 90);
    ck_assert_int_eq(latest(), 90);
}
END_TEST

START_TEST(a_failed_save_removes_nothing)
{
    tn_module *m = linear_new(4);
    for (int64_t s = 1; s <= 3; s++) assert_ok(save_at(m, s, 0));
    tn_checkpoint c = { .model = m, .step = 4, .n_generators = -1 };
    assert_fails(tn_checkpoint_save_numbered(&c, folder, NAME, 1), TN_E_INVALID, "n_generators");
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "bias"), NAN));
    assert_fails(save_at(m, 4, 1), TN_E_INVALID,
                 "tn_checkpoint_save_numbered: parameter bias holds NaN");
    FILES(1, 2, 3);
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "bias"), 0));
    /* what cannot be removed is an error, but the new file is there */
    ck_assert_int_eq(unlink(in_folder(file_of(1))), 0);
    ck_assert_int_eq(mkdir(in_folder(file_of(1)), 0777), 0);
    assert_fails(save_at(m, 4, 1), TN_E_IO,
                 "the checkpoint is in place, but net-00000001.safetensors cannot be removed");
    ck_assert_int_eq(latest(), 4);
}
END_TEST

START_TEST(other_files_stay)
{
    static const char *const others[] = {
        NAME "-1.safetensors",
        NAME "-000000001.safetensors",
        NAME "-00000001.safetensor",
        NAME "-00000001.safetensors.bak",
        NAME "-0000001a.safetensors",
        NAME "-+0000001.safetensors",
        NAME "--0000001.safetensors",
        NAME "- 0000001.safetensors",
        NAME "-x-00000001.safetensors",
        NAME "x-00000001.safetensors",
        "x" NAME "-00000001.safetensors",
        NAME ".safetensors",
        NAME "-.safetensors",
        NAME "-99999999999999999999.safetensors",
        NAME "-00000001.SAFETENSORS",
        NAME "-00000001",
        NAME "-00000001.safetensors.tmp-",
        NAME "-00000001.safetensors.tmp-1-",
        NAME "-00000001.safetensors.tmp-1-0.bak",
        NAME "-1.safetensors.tmp-1-0",
        "other-00000001.safetensors.tmp-1-0",
    };
    tn_module *m = linear_new(4);
    assert_ok(save_at(m, 99, 0));
    size_t n;
    char *bytes = read_bytes(in_folder(file_of(99)), &n);
    ck_assert_int_eq(unlink(in_folder(file_of(99))), 0);
    for (int i = 0; i < COUNT(others); i++) write_bytes(others[i], bytes, n);
    free(bytes);
    ck_assert_int_eq(latest(), -1);
    assert_error(TN_E_NAME, "no net-STEP.safetensors is in it");
    assert_ok(save_at(m, 5, 1));
    assert_ok(save_at(m, 6, 1));
    ck_assert_int_eq(latest(), 6);
    for (int i = 0; i < COUNT(others); i++)
        ck_assert_msg(is_there(others[i]), "%s is gone", others[i]);
    ck_assert_int_eq(files_in_folder(), COUNT(others) + 1);
}
END_TEST

/* Temporaries of killed writers are removed, of any step; one being written stays. */
START_TEST(stale_temporaries_go)
{
    tn_module *m = linear_new(4);
    write_bytes(NAME "-00000003.safetensors.tmp-1-0", "part", 4);
    write_bytes(NAME "-00000009.safetensors.tmp-999999999-12", "", 0);
    assert_ok(save_at(m, 5, 3));
    FILES(5);
}
END_TEST

START_TEST(numbers_beyond_the_padding)
{
    static const int64_t steps[] = { 9,         10,         99999999,     100000000,
                                     123456789, 1000000000, 5000000000000 };
    tn_module *m = linear_new(4);
    for (int i = COUNT(steps) - 1; i >= 0; i--) assert_ok(save_at(m, steps[i], 0));
    ck_assert(is_there(NAME "-99999999.safetensors"));
    ck_assert(is_there(NAME "-100000000.safetensors"));
    ck_assert(is_there(NAME "-5000000000000.safetensors"));
    for (int i = COUNT(steps) - 1; i >= 0; i--) {
        ck_assert_int_eq(latest(), steps[i]);
        ck_assert_int_eq(unlink(in_folder(file_of(steps[i]))), 0);
    }
    for (int i = 0; i < COUNT(steps); i++) assert_ok(save_at(m, steps[i], 2));
    FILES(1000000000, 5000000000000);
}
END_TEST

/* ---- torn files ------------------------------------------------------------------------------ */

enum { PAGE = 4096 };

static tn_module *wide_new(uint64_t seed)
{
    tn_manual_seed(seed);
    return tn_linear_new(96, 400, (tn_linear_options){ 0 });
}

/* The state of the model and the step that path gives, or 0 when it is refused. */
static uint64_t state_in(const char *path, bool checkpoint)
{
    tn_scope scope = tn_scope_begin();
    tn_module *model = wide_new(3);
    uint64_t before = hash_of_module(model);
    tn_checkpoint c = { .model = model, .step = 77 };
    tn_status status = checkpoint ? tn_checkpoint_load(&c, path) : tn_load(model, path);
    uint64_t hash = hash_of_module(model);
    if (status != TN_OK) {
        ck_assert_msg(status == TN_E_FORMAT && strstr(tn_error(), path), "%s: %s",
                      tn_status_name(status), tn_error());
        ck_assert(hash == before && c.step == 77);
        hash = 0;
    }
    tn_error_clear();
    tn_module_drop(model);
    tn_scope_end(scope);
    return hash ? hash * 31 + (uint64_t)c.step : 0;
}

/* The bytes of a file of a model with that seed, which is its step too; freed at the end. */
static char *bytes_of(uint64_t seed, bool checkpoint, size_t *n)
{
    tn_module *model = wide_new(seed);
    tn_checkpoint c = { .model = model, .step = (int64_t)seed };
    const char *path = in_folder("whole");
    assert_ok(checkpoint ? tn_checkpoint_save(&c, path) : tn_save(model, path));
    tn_module_drop(model);
    return owned(read_bytes(path, n));
}

/* What a power cut could leave of a file that was not synced: at every page the file ends, or zeros
 * follow, or lie before, or what the file that it replaced held. It is refused, and the checkpoint
 * before it is found. The same bytes under a temporary's name are never read. */
START_TEST(F8_torn_checkpoints_are_refused_or_whole)
{
    size_t n;
    char *first = bytes_of(1, true, &n), *old = bytes_of(22, true, &n),
         *new = bytes_of(2, true, &n);
    char *torn = owned(malloc(n));
    int points = 0, read = 0;
    write_bytes(file_of(1), first, n);
    uint64_t was = state_in(write_bytes(file_of(2), old, n), true);
    uint64_t is = state_in(write_bytes(file_of(2), new, n), true);
    ck_assert(was && is && was != is);
    for (size_t at = 0; at < n; at += PAGE) {
        size_t page = n - at < PAGE ? n - at : PAGE;
        for (int how = 0; how < 9; how++) {
            size_t length = n;
            memcpy(torn, new, n);
            switch (how) {
            case 0: length = at; break;
            case 1: length = at + 1; break;
            case 2: length = at + page - 1; break;
            case 3: memset(torn + at, 0, n - at); break;
            case 4: memset(torn + at, 0, page); break;
            case 5: memset(torn, 0, at); break;
            case 6: memcpy(torn + at, old + at, n - at); break;
            case 7: memcpy(torn + at, old + at, page); break;
            default: memcpy(torn, old, at); break;
            }
            bool whole = length == n && (!memcmp(torn, new, n) || !memcmp(torn, old, n));
            uint64_t hash = state_in(write_bytes(file_of(2), torn, length), true);
            ck_assert_msg(whole ? hash == is || hash == was : !hash,
                          "way %d at %zu of %zu bytes, %s, was %s", how, at, n,
                          whole ? "whole" : "torn", hash ? "read" : "refused");
            if (!whole) ck_assert_msg(latest() == 1, "way %d at %zu: the newest", how, at);
            points++;
            read += hash != 0;
        }
        write_bytes(NAME "-00000003.safetensors.tmp-1-0", torn, n);
        write_bytes(file_of(2), new, n);
        ck_assert_int_eq(latest(), 2);
    }
    ck_assert_int_ge(points, 300);
    ck_assert_int_ge(read, 3); /* nothing torn: at the very beginning */
}
END_TEST

/* Files of weights carry no checksum: other programs rewrite them. Lengths and header count. */
START_TEST(F8_truncated_weights_are_refused)
{
    size_t n;
    char *bytes = bytes_of(1, false, &n);
    for (size_t at = 0; at < n; at += PAGE)
        for (size_t k = 0; k < 3; k++)
            if (at + k >= 1 && at + k - 1 < n)
                ck_assert_uint_eq(state_in(write_bytes("f", bytes, at + k - 1), false), 0);
    memset(bytes, 0, PAGE);
    ck_assert_uint_eq(state_in(write_bytes("f", bytes, n), false), 0);
}
END_TEST

START_TEST(a_checksum_that_is_wrong_or_missing)
{
    size_t n;
    char *bytes = bytes_of(1, true, &n), *digits = strstr(bytes + 8, "tenon.crc32") + 14;
    ck_assert_int_eq(digits - bytes, TNI_CHECKSUM_AT);
    char was[9] = { 0 }, text[128];
    memcpy(was, digits, 8);
    memcpy(digits, "0123abcd", 8);
    tn_checkpoint c = { .model = owned(wide_new(3)) };
    snprintf(text, sizeof text,
             "f: the checksum is %s, not 0123abcd: damaged, or changed by another program", was);
    assert_fails(tn_checkpoint_load(&c, write_bytes("f", bytes, n)), TN_E_FORMAT, text);
    memcpy(digits - 14, "other", 5);
    assert_fails(tn_checkpoint_load(&c, write_bytes("f", bytes, n)), TN_E_FORMAT,
                 "f: a checkpoint without its checksum");
}
END_TEST

/* Any bit of a small checkpoint, header and all: another step, another name, another number. */
START_TEST(flipped_bits)
{
    tn_module *m = linear_new(2);
    assert_ok(save_at(m, 1, 0));
    const char *key = "note", *value = "the caller's own";
    tn_checkpoint c = { .model = m, .step = 2, .metadata = { 1, &key, &value } };
    assert_ok(tn_checkpoint_save_numbered(&c, folder, NAME, 0));
    size_t n;
    char *bytes = owned(read_bytes(in_folder(file_of(2)), &n));
    for (size_t bit = 0; bit < 8 * n; bit += (size_t)full_or(1, 13)) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_bytes(file_of(2), bytes, n);
        ck_assert_msg(latest() == 1, "bit %zu of byte %zu", bit % 8, bit / 8);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
}
END_TEST

START_TEST(nothing_whole_is_there)
{
    tn_module *m = linear_new(4);
    ck_assert_int_eq(latest(), -1);
    assert_error(TN_E_NAME, "tn_checkpoint_latest: ");
    write_bytes(file_of(1), "", 0);
    write_bytes(file_of(2), "garbage, longer than eight bytes", 32);
    ck_assert_int_eq(mkdir(in_folder(file_of(3)), 0777), 0);
    assert_ok(tn_save(m, in_folder(file_of(4)))); /* weights, no checkpoint */
    ck_assert_int_eq(latest(), -1);
    assert_error(TN_E_FORMAT, "4 damaged net-STEP.safetensors and no other; the newest: ");
    ck_assert_int_eq(latest(), -1);
    assert_error(TN_E_FORMAT, "net-00000004.safetensors: not a checkpoint");
    assert_ok(save_at(m, 0, 1));
    ck_assert_int_eq(latest(), 0);
    char path[1024];
    assert_fails(tn_checkpoint_latest(in_folder("none"), NAME, path, sizeof path), TN_E_NAME,
                 "No such file or directory");
    assert_fails(tn_checkpoint_latest(in_folder(file_of(1)), NAME, path, sizeof path), TN_E_IO,
                 "Not a directory");
    size_t need = strlen(in_folder(file_of(0))) + 1;
    assert_fails(tn_checkpoint_latest(folder, NAME, path, need - 1), TN_E_INVALID, "want ");
    assert_ok(tn_checkpoint_latest(folder, NAME, path, need));
}
END_TEST

/* A disk that fails while the folder is read must not turn an older checkpoint into the newest. */
START_TEST(a_folder_that_breaks)
{
    tn_module *m = linear_new(2);
    for (int step = 1; step <= 5; step++) assert_ok(save_at(m, step, 0));
    char path[4096];
    for (int n = 0; n < 7; n++) { /* of five files, . and .. */
        entries = n;
        tn_status status = tn_checkpoint_latest(folder, NAME, path, sizeof path);
        entries = -1;
        ck_assert_int_eq(status, TN_E_IO);
        assert_error(TN_E_IO, strerror(EIO));
        tn_error_clear();
    }
    assert_ok(tn_checkpoint_latest(folder, NAME, path, sizeof path));
    ck_assert(strstr(path, "00000005") != NULL);
}
END_TEST

/* Damaged files that are newer than the newest whole one are reported. */
START_TEST(skipped_files_are_named)
{
    tn_module *m = linear_new(4);
    tn_metadata skipped = { .n = 7 };
    for (int64_t s = 1; s <= 4; s++) assert_ok(save_at(m, s, 0));
    char path[1024];
    assert_ok(tn_checkpoint_latest_report(folder, NAME, path, sizeof path, &skipped));
    ck_assert_int_eq(skipped.n, 0);
    write_bytes(file_of(4), "torn", 4);
    assert_ok(tn_save(m, in_folder(file_of(3)))); /* whole, but no checkpoint */
    tn_fail(TN_E_SHAPE, "an error from before");
    assert_ok(tn_checkpoint_latest_report(folder, NAME, path, sizeof path, &skipped));
    assert_error(TN_E_SHAPE, "an error from before"); /* stays what is pending */
    ck_assert_str_eq(path, in_folder(file_of(2)));
    ck_assert_int_eq(skipped.n, 2);
    ck_assert_str_eq(skipped.key[0], in_folder(file_of(4)));
    ck_assert_str_eq(skipped.value[0], "4 bytes: a safetensors file has at least 8");
    ck_assert_str_eq(skipped.key[1], in_folder(file_of(3)));
    ck_assert_str_eq(skipped.value[1], "not a checkpoint (for a file of weights: tn_load)");
    /* a failure changes neither */
    path[0] = '!', skipped.n = 7;
    assert_fails(tn_checkpoint_latest_report(folder, NAME, path, 3, &skipped), TN_E_INVALID,
                 "room for 3 bytes");
    write_bytes(file_of(2), "", 0), write_bytes(file_of(1), "", 0);
    assert_fails(tn_checkpoint_latest_report(folder, NAME, path, sizeof path, &skipped),
                 TN_E_FORMAT,
                 "4 damaged net-STEP.safetensors and no other; the newest: tn_checkpoint_latest: ");
    ck_assert_int_eq(skipped.n, 7);
    ck_assert_int_eq(path[0], '!');
}
END_TEST

/* A process that may open no more files has no damaged ones. */
START_TEST(no_descriptor_is_no_damage)
{
    char path[1024] = "untouched";
    tn_module *m = linear_new(4);
    for (int64_t s = 1; s <= 2; s++) assert_ok(save_at(m, s, 0));
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int next = open("/dev/null", O_RDONLY); /* the folder gets this, its files get none */
    struct rlimit few = { (rlim_t)next + 1, limit.rlim_max };
    close(next);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    tn_status status = tn_checkpoint_latest(folder, NAME, path, sizeof path);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(status, TN_E_IO);
    assert_error(TN_E_IO, "Too many open files");
    ck_assert_str_eq(path, "untouched");
}
END_TEST

START_TEST(arguments)
{
    char name[200];
    tn_module *m = linear_new(4);
    tn_checkpoint c = { .model = m };
    memset(name, 'n', sizeof name);
    name[129] = 0;
    char path[1024];
    for (int i = 0; i < 3; i++) {
        const char *bad = i == 0 ? "" : i == 1 ? "a/b" : name;
        assert_fails(tn_checkpoint_save_numbered(&c, folder, bad, 1), TN_E_INVALID,
                     "want 1 to 128 bytes without /");
        assert_fails(tn_checkpoint_latest(folder, bad, path, sizeof path), TN_E_INVALID,
                     "want 1 to 128 bytes without /");
    }
    assert_fails(tn_checkpoint_latest("", NAME, path, sizeof path), TN_E_INVALID, "folder \"\"");
    assert_fails(tn_checkpoint_save_numbered(&c, folder, NAME, -1), TN_E_INVALID, "keep -1");
    c.step = -1;
    assert_fails(tn_checkpoint_save_numbered(&c, folder, NAME, 1), TN_E_INVALID, "step -1");
    c.step = 0;
    assert_fails(tn_checkpoint_save(&c, in_folder("none/f")), TN_E_IO,
                 "none/f: there is no folder ");
    ck_assert_int_eq(files_in_folder(), 0);
    name[128] = 0;
    assert_ok(tn_checkpoint_save_numbered(&c, folder, name, 1));
    assert_ok(tn_checkpoint_latest(folder, name, path, sizeof path));
}
END_TEST

/* ---- out of memory --------------------------------------------------------------------------- */

static int call_now;

static tn_status numbered_call(void *c)
{
    char path[1024];
    snprintf(path, sizeof path, "%s", in_folder(file_of(2)));
    return call_now == 0   ? tn_checkpoint_save_numbered(c, folder, NAME, 1)
           : call_now == 1 ? tn_checkpoint_latest(folder, NAME, path, sizeof path)
                           : tn_checkpoint_load(c, path);
}

static void the_last_is_there(void *c)
{
    (void)c;
    ck_assert(is_there(file_of(call_now ? 2 : 1)));
    /* 2: the old one was not removed */
    ck_assert_int_eq(files_in_folder(), call_now || !is_there(file_of(2)) ? 1 : 2);
}

START_TEST(allocations_of_numbered_ones_may_fail)
{
    scarce_install();
    tn_generator *own = owned(tn_generator_new(5));
    tn_module *m = linear_new(4);
    tn_checkpoint c = { .model = m, .step = 2, .generators = &own, .n_generators = 1 };
    assert_ok(save_at(m, 1, 0));
    call_now = 0;
    if (_i) assert_ok(numbered_call(&c));
    call_now = _i;
    scarce.sticky = true;
    ck_assert_int_gt(scarce_sweep(numbered_call, the_last_is_there, &c), 0);
    ck_assert(!is_there(file_of(1)) && files_in_folder() == 1);
}
END_TEST

void checkpoint_folder_cases(Suite *suite)
{
    TCase *t = file_case(suite, "last N");
    tcase_add_test(t, the_folder_is_made);
    tcase_add_test(t, the_last_n_stay);
    tcase_add_test(t, a_failed_save_removes_nothing);
    tcase_add_test(t, other_files_stay);
    tcase_add_test(t, stale_temporaries_go);
    tcase_add_test(t, numbers_beyond_the_padding);
    t = file_case(suite, "damage");
    tcase_add_test(t, F8_torn_checkpoints_are_refused_or_whole);
    tcase_add_test(t, F8_truncated_weights_are_refused);
    tcase_add_test(t, a_checksum_that_is_wrong_or_missing);
    tcase_add_test(t, flipped_bits);
    tcase_add_test(t, nothing_whole_is_there);
    tcase_add_test(t, a_folder_that_breaks);
    tcase_add_test(t, skipped_files_are_named);
    tcase_add_test(t, no_descriptor_is_no_damage);
    tcase_add_test(t, arguments);
    tcase_add_loop_test(t, allocations_of_numbered_ones_may_fail, 0, 3);
}
