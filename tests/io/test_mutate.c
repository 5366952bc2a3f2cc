/*
 * test_mutate.c - tens of thousands of damaged files: each is read or refused cleanly, quickly and
 * with little memory, and a model that it does not fit stays as it is.
 *
 * Every bit of the first 1,024 bytes flipped, every length cut, random edits (bytes, numbers,
 * pieces moved, doubled and left out), splices of two files. What carries a checksum (checkpoints,
 * .gz) must be refused unless its contents are what they were. By default a sample of a few
 * seconds; with TN_TEST_FULL=1 all of it: 80,000 safetensors, checkpoints, .npy, .csv and .pt each,
 * 90,000 IDX.
 *
 * Truth: zlib for making compressed files; the sanitizers, under which this runs too.
 *
 * Seen to fail: in src/io/safetensors.c, check_range() without the comparison with the shape's
 * bytes: writes behind a block; tni_safetensors_verify() answering TN_OK: edited checkpoints are
 * read; in idx.c, read_header() without the comparison with what the file holds: gigabytes are
 * asked for; in pickle.c, inside() answering true: crashes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "archive.h"
#include "files.h"
#include "ext/pt/zip.h"

enum { MOST_MEMORY = 8 << 20 }; /* the largest .gz here can hold 1032 times its 4 KiB */

/* A kind of file: two files of it to damage and splice, and its reader. */
typedef struct subject {
    const char *name;
    void (*make)(int which, const char *path);
    uint64_t (*read)(const char *path); /* of what was read; 0: refused */
    bool checked;                       /* by a checksum: what is read must be one of the two */
    /* NULL, or: damaged first, packed into the file afterwards; to be freed */
    unsigned char *(*pack)(const void *bytes, size_t n, size_t *size);
} subject;

/* SplitMix64, as in common.c */
static uint64_t seed;

static size_t below(size_t n)
{
    uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (size_t)((z ^ (z >> 31)) % n);
}

/* ---- models ---------------------------------------------------------------------------------- */

static tn_module *model; /* of the same kind as the files; one per process */

static tn_module *model_new(int which)
{
    tn_manual_seed((uint64_t)which);
    tn_module *m =
        tn_sequential(tn_linear_new(11, 24, (tn_linear_options){ 0 }),
                      tn_batch_norm1d_new(24, (tn_batch_norm_options){ 0 }),
                      tn_linear_new(24, 24 + which, (tn_linear_options){ 0 }), tn_identity_new(),
                      tn_linear_new(11, 24, (tn_linear_options){ 0 }));
    assert_made(m);
    assert_ok(tn_module_set(m, "4.weight", tn_get_parameter(m, "0.weight")));
    return m;
}

static void make_weights(int which, const char *path)
{
    tn_module *m = model_new(which);
    static const char *keys[] = { "text", "empty" };
    static const char *values[] = { "\"quoted\", \xc3\xa9 \n", "" };
    tn_metadata metadata = { 2, keys, values };
    assert_ok(tn_save_with(m, path, (tn_save_options){ .metadata = &metadata }));
    tn_module_drop(m);
}

static void make_checkpoint(int which, const char *path)
{
    tn_module *m = model_new(which);
    tn_optim *o = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 });
    assert_ok(
        tn_checkpoint_save(&(tn_checkpoint){ .model = m, .optimizer = o, .step = which }, path));
    tn_optim_free(o);
    tn_module_drop(m);
}

/* Loads with load; a refusal must have a cause that a file can have, and change nothing. */
static uint64_t into_model(tn_status (*load)(tn_module *, const char *), const char *path)
{
    uint64_t before = hash_of_module(model);
    tn_status status = load(model, path);
    uint64_t after = hash_of_module(model);
    if (status == TN_OK) return after | 1;
    ck_assert_msg(status == TN_E_FORMAT || status == TN_E_NAME || status == TN_E_SHAPE ||
                      status == TN_E_DTYPE,
                  "%s: %s", tn_status_name(status), tn_error());
    ck_assert_msg(before == after, "refused (%s), but the model changed", tn_error());
    return 0;
}

static uint64_t read_weights(const char *path)
{
    uint64_t loaded = into_model(tn_load, path);
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    if (list) {
        for (int i = 0; i < metadata.n; i++)
            loaded += strlen(metadata.key[i]) + strlen(metadata.value[i]);
        return (loaded + hash_of(list)) | 1;
    }
    ck_assert_msg(tn_error_status() == TN_E_FORMAT, "%s", tn_error());
    ck_assert_msg(!loaded, "loaded, but not as tensors: %s", tn_error());
    return 0;
}

static tn_status load_checkpoint(tn_module *m, const char *path)
{
    tn_checkpoint c = { .model = m };
    return tn_checkpoint_load(&c, path);
}

static uint64_t read_checkpoint(const char *path)
{
    return into_model(load_checkpoint, path);
}

/* ---- IDX ------------------------------------------------------------------------------------- */

static void make_idx(int which, const char *path)
{
    unsigned char bytes[16 + 2 * 30 * 67] = { 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 30, 0, 0, 0, 67 };
    seed = (uint64_t)which;
    for (size_t i = 16; i < sizeof bytes; i++) bytes[i] = (unsigned char)below(256);
    if (which == 2) memcpy(bytes, "\0\0\x0d\3\0\0\0\1\0\0\0\x0f\0\0\0\x43", 16); /* 32 bits each */
    write_bytes(strrchr(path, '/') + 1, bytes, sizeof bytes);
}

static void make_gz(int which, const char *path)
{
    make_idx(which, path);
    size_t n;
    char *bytes = read_bytes(path, &n);
    size_t size;
    unsigned char *packed = gzip(bytes, n, 6, &size);
    write_bytes(strrchr(path, '/') + 1, packed, size);
    free(packed);
    free(bytes);
}

static uint64_t read_idx(const char *path)
{
    tn_tensor *t = tn_idx_load(path);
    if (t) return tn_hash(t) | 1;
    ck_assert_msg(tn_error_status() == TN_E_FORMAT, "%s", tn_error());
    return 0;
}

/* ---- NumPy's files --------------------------------------------------------------------------- */

static void make_npy(int which, const char *path)
{
    TN_SCOPE
    {
        tn_tensor *t = random_as(TN_SHAPE(300 + which, 7), -9, 9, (uint64_t)which, TN_F32);
        assert_ok(tn_npy_save(which == 1 ? tn_to_dtype(t, TN_BOOL) : t, path));
    }
}

static uint64_t read_npy(const char *path)
{
    tn_tensor *t = tn_npy_load(path);
    if (t) return tn_hash(t) | 1;
    ck_assert_msg(tn_error_status() == TN_E_FORMAT, "%s", tn_error());
    return 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void make_csv(int which, const char *path)
{
    FILE *file = fopen(path, "w");
    fprintf(file, "name,\"a \"\"b\"\"\",c\r\n");
    for (int i = 0; i < 120 + which; i++)
        fprintf(file, i % 3 ? "%d,%g,word%d\r\n" : "%d,%g,\"a, %d\n\"\r\n", i, i / 7.0, i % 5);
    fclose(file);
}

static uint64_t read_csv(const char *path)
{
    tn_csv *csv = tn_csv_load(path, (tn_csv_options){ 0 });
    uint64_t h = 1;
    for (int k = 0; csv && k < csv->n_columns; k++) {
        const tn_column *c = &csv->column[k];
        h = h * 31 + tn_hash(c->values);
        for (int64_t i = 0; i < c->n_classes; i++) h = h * 31 + strlen(c->classes[i]);
    }
    ck_assert_msg(csv || tn_error_status() == TN_E_FORMAT, "%s", tn_error());
    tn_csv_free(csv);
    return csv ? h | 1 : 0;
}

/* ---- images ---------------------------------------------------------------------------------- */

static void make_png(int which, const char *path)
{
    TN_SCOPE
    {
        tn_tensor *t = random_as(TN_SHAPE(3, 30 + which, 20), 0, 255, (uint64_t)which, TN_F32);
        assert_ok(tn_image_save_png(tn_to_dtype(t, TN_U8), path));
    }
}

/* A golden one, and a long comment before its last two bytes. */
static void make_jpeg(int which, const char *path)
{
    static const char *const names[] = { "images/420.jpg", "images/progressive.jpg" };
    size_t n;
    char *bytes = read_bytes(golden_path(names[which - 1]), &n);
    char whole[4096] = { 0 };
    memcpy(whole, bytes, n - 2);
    memcpy(whole + n - 2, "\xff\xfe\x04\x02", 4); /* of 1,026 bytes */
    memcpy(whole + n + 1026, bytes + n - 2, 2);
    write_bytes(strrchr(path, '/') + 1, whole, n + 1028);
    free(bytes);
}

static uint64_t read_image(const char *path)
{
    tn_tensor *t = tn_image_load(path, (tn_image_options){ .orient = true });
    if (t) return tn_hash(t) | 1;
    ck_assert_msg(tn_error_status() == TN_E_FORMAT, "%s", tn_error());
    return 0;
}

static unsigned char *pack_gz(const void *bytes, size_t n, size_t *packed)
{
    return gzip(bytes, n, 1, packed);
}

/* ---- .pt: as it is, and the pickle in it with all checksums set right ------------------------ */

static void make_pt(int which, const char *path)
{
    tn_module *m = model_new(which);
    char pt[1600];
    snprintf(pt, sizeof pt, "%s.pt", path);
    assert_ok(tn_save(m, pt));
    ck_assert_int_eq(rename(pt, path), 0);
    tn_module_drop(m);
}

static member members[2][32]; /* of both files */
static int n_members, pickle_member, packed_with;

static void make_pickle(int which, const char *path)
{
    static char names[32][16], data[2][32][8192];
    make_pt(which, path);
    tni_zip zip;
    assert_ok(tni_zip_open(&zip, "test", path, 32, 8192));
    packed_with = which - 1;
    n_members = zip.n;
    for (int i = 0; i < zip.n; i++) {
        const tni_zip_entry *e = &zip.entry[i];
        snprintf(names[i], sizeof names[i], "m/%s", e->name);
        ck_assert_int_le(e->nbytes, (int)sizeof data[0][i]);
        assert_ok(tni_zip_read(&zip, e, data[packed_with][i]));
        members[packed_with][i] = (member){ names[i], data[packed_with][i], (size_t)e->nbytes };
        if (!strcmp(e->name, "data.pkl")) pickle_member = i;
    }
    tni_zip_close(&zip);
    const member *pickle = &members[packed_with][pickle_member];
    write_bytes(strrchr(path, '/') + 1, pickle->data, pickle->n);
}

static unsigned char *pack_pickle(const void *bytes, size_t n, size_t *packed)
{
    member all[32];
    memcpy(all, members[packed_with], sizeof all);
    all[pickle_member].data = bytes;
    all[pickle_member].n = n;
    const archive *a = archive_of(all, n_members);
    unsigned char *copy = malloc(a->n);
    memcpy(copy, a->bytes, a->n);
    *packed = a->n;
    return copy;
}

/* ---- other kinds, as their own writers made them --------------------------------------------- */

static void copy_golden(const char *name, const char *path)
{
    size_t n;
    char file[64];
    snprintf(file, sizeof file, "files/%s", name);
    char *bytes = read_bytes(golden_path(file), &n);
    write_bytes(strrchr(path, '/') + 1, bytes, n);
    free(bytes);
}

#define GOLDEN(name, first, second)                                                                \
    static void make_##name(int which, const char *path)                                           \
    {                                                                                              \
        copy_golden(which == 1 ? first : second, path);                                            \
    }
GOLDEN(old, "old_checkpoint.pt", "old_mixed.pt")
GOLDEN(script, "traced.pt", "scripted.pt")
GOLDEN(nested, "foreign.pt", "checkpoint.pt")
GOLDEN(npz, "deflated.npz", "stored.npz")

static uint64_t read_all(const char *path)
{
    tn_metadata metadata;
    tn_list *list = tn_load_tensors_with(
        path, (tn_load_options){ .key = "*", .widen = true, .skip_foreign = true }, &metadata,
        NULL);
    if (list) return (hash_of(list) + (uint64_t)metadata.n) | 1;
    ck_assert_msg(tn_error_status() == TN_E_FORMAT, "%s", tn_error());
    return 0;
}

static const subject subjects[] = {
    { "safetensors", make_weights, read_weights, false, NULL },
    { "checkpoint", make_checkpoint, read_checkpoint, true, NULL },
    { "idx", make_idx, read_idx, false, NULL },
    { "idx.gz", make_gz, read_idx, true, NULL },
    { "idx in gz", make_idx, read_idx, false, pack_gz },
    { "npy", make_npy, read_npy, false, NULL },
    { "csv", make_csv, read_csv, false, NULL },
    { "pt", make_pt, read_weights, false, NULL },
    { "pickle in pt", make_pickle, read_weights, false, pack_pickle },
    { "old pt", make_old, read_all, false, NULL },
    { "TorchScript", make_script, read_all, false, NULL },
    { "nested pt", make_nested, read_all, false, NULL },
    { "npz", make_npz, read_all, false, NULL },
    { "png", make_png, read_image, false, NULL },
    { "jpeg", make_jpeg, read_image, false, NULL },
};

/* ---- one damaged file ------------------------------------------------------------------------ */

static const subject *s;
static char *whole[2];
static size_t size[2];
static uint64_t hash[2]; /* of what they hold */
static int tried, taken;

static uint64_t read_one(const void *bytes, size_t n)
{
    const char *path;
    if (s->pack) {
        size_t m;
        unsigned char *packed = s->pack(bytes, n, &m);
        path = write_bytes("f", packed, m);
        free(packed);
    } else {
        path = write_bytes("f", bytes, n);
    }
    tn_scope scope = tn_scope_begin();
    int64_t live = tn_live_tensors();
    tn_memory_reset_peak();
    int64_t used = tn_memory().in_use;
    double began = cpu_seconds();
    uint64_t got = s->read(path);
    double seconds = cpu_seconds() - began;
    ck_assert_msg(seconds < 1, "%s: took %g s", s->name, seconds);
    ck_assert_msg(tn_memory().peak_in_use - used <= MOST_MEMORY, "%s: took %" PRId64 " bytes",
                  s->name, tn_memory().peak_in_use - used);
    tn_error_clear();
    tn_scope_end(scope);
    ck_assert_msg(tn_live_tensors() <= live, "%s: tensors stay", s->name);
    tried++;
    taken += got != 0;
    return got;
}

static void damaged(const char *how, size_t at, const void *bytes, size_t n)
{
    uint64_t got = read_one(bytes, n);
    ck_assert_msg(!got || !s->checked || got == hash[0] || got == hash[1],
                  "%s: %s at %zu was read as something else", s->name, how, at);
}

static void begin(int which)
{
    s = &subjects[which];
    model = model_new(1);
    for (int i = 0; i < 2; i++) {
        s->make(i + 1, in_folder("whole"));
        whole[i] = read_bytes(in_folder("whole"), &size[i]);
        ck_assert_msg(size[i] >= 700 && size[i] <= 16384, "%s: %zu bytes", s->name, size[i]);
        hash[i] = read_one(whole[i], size[i]);
        /* a model is of the first file's sizes: the second fits as tensors only */
        ck_assert_msg(hash[i] || (i && s->read == read_checkpoint), "%s: a good file: %s", s->name,
                      tn_error());
    }
    tried = taken = 0;
    packed_with = 0;
}

static void end(const char *what)
{
    if (full_or(1, 0)) printf("%s, %s: %d files, %d of them read\n", s->name, what, tried, taken);
    free(whole[0]);
    free(whole[1]);
    tn_module_drop(model);
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

START_TEST(H1_bit_flips)
{
    begin(_i);
    size_t step = (size_t)full_or(1, 13);
    for (size_t bit = 0; bit < 8 * TNI_MIN(size[0], (size_t)1024); bit += step) {
        whole[0][bit / 8] ^= (char)(1 << (bit % 8));
        damaged("bit", bit, whole[0], size[0]);
        whole[0][bit / 8] ^= (char)(1 << (bit % 8));
    }
    end("bit flips");
}
END_TEST

START_TEST(H1_truncations)
{
    begin(_i);
    size_t step = (size_t)full_or(1, 11);
    for (size_t n = 0; n < size[0]; n += step)
        ck_assert_msg(!read_one(whole[0], n) || s->read == read_csv,
                      "%s: %zu of %zu bytes were read", s->name, n,
                      size[0]); /* a table without its last lines is one */
    end("truncations");
}
END_TEST

/* Replaces m bytes at `at` by n bytes of `with`. */
static size_t replace(char *bytes, size_t size_now, size_t room, size_t at, size_t m,
                      const char *with, size_t n)
{
    if (at + m > size_now) m = size_now - at;
    if (size_now - m + n > room) return size_now;
    memmove(bytes + at + n, bytes + at + m, size_now - at - m);
    memcpy(bytes + at, with, n);
    return size_now - m + n;
}

/* One random change. Mostly near the beginning, where the header is. */
static size_t edit(char *bytes, size_t n, size_t room)
{
    /* clang-format off */
    static const char *const words[] = {
        "0", "-1", "9223372036854775807", "9223372036854775808", "4294967296", "1e3", "1.0",
        "[]", "[1,1,1,1,1,1,1,1,1]", "{}", "null", "true", "\"\"", "\"a\"", "\"F64\"",
        "\"BOOL\"", "\"BF16\"", ",", ":", "}", "{", "\\u0000", "\\ud800", "\"__metadata__\":{}",
        "\"shape\":[0]", "\xff", "cos\nsystem\n", "ccollections\nOrderedDict\n)R",
        "ctorch\nBoolStorage\n", "(", "t", "u", ")", "R", "Q", "b", "s", "h\1", "q\1",
        "j\1\1\1\1", "J\xff\xff\xff\x7f", "K\1", ".",
        "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "PK\3\4", "PK\5\6"
    };
    /* clang-format on */
    char piece[256];
    size_t front = n < 1500 || below(4) == 0 ? n : 1500;
    size_t at = below(front + 1);
    size_t k = 1 + below(8);
    switch (below(7)) {
    case 0: /* bytes */
        for (; k && at < n; k--, at++) bytes[at] = (char)below(256);
        return n;
    case 1: /* a word instead of some bytes */ {
        const char *word = words[below(COUNT(words))];
        return replace(bytes, n, room, at, below(20), word, strlen(word));
    }
    case 2: /* a digit */
        for (; at < n && (bytes[at] < '0' || bytes[at] > '9');) at++;
        if (at < n) bytes[at] = (char)('0' + below(10));
        return n;
    case 3: /* left out */ return replace(bytes, n, room, at, k * below(30), "", 0);
    case 4: /* a piece again, elsewhere */
        k = below(sizeof piece) % (n + 1);
        memcpy(piece, bytes + below(n - k + 1), k);
        return replace(bytes, n, room, at, below(2) * k, piece, k);
    case 5: /* the size in front, or the type, axes and first size of an IDX file */
        if (n >= 8) bytes[below(8)] = (char)(below(2) ? (int)below(256) : bytes[0] + 1);
        return n;
    default: /* zeros */
        for (k *= 16; k && at < n; k--, at++) bytes[at] = 0;
        return n;
    }
}

/* Corrects the header's length after an edit, which would otherwise spoil nearly every file. */
static void mend(char *bytes, size_t n, size_t grown)
{
    if ((s->make != make_weights && s->make != make_checkpoint) || n < 8) return;
    uint64_t header = 0;
    for (int i = 0; i < 8; i++) header |= (uint64_t)(unsigned char)whole[0][i] << (8 * i);
    header += n - grown;
    for (int i = 0; i < 8; i++) bytes[i] = (char)(header >> (8 * i));
}

START_TEST(H1_random_edits)
{
    begin(_i);
    seed = (uint64_t)_i + 1;
    const size_t room = size[0] + 4096;
    char *bytes = malloc(room);
    int wanted = full_or(s->read == read_idx ? 10000 : 60000, s->read == read_idx ? 400 : 1500);
    for (int k = 0; k < wanted; k++) {
        size_t n = size[0];
        memcpy(bytes, whole[0], n);
        for (size_t edits = 1 + below(4); edits; edits--) n = edit(bytes, n, room);
        if (below(2)) mend(bytes, n, size[0]);
        damaged("edit", (size_t)k, bytes, n);
    }
    free(bytes);
    end("random edits");
}
END_TEST

/* The beginning of one file and the end of another; whole files concatenated. */
START_TEST(H1_splices)
{
    begin(_i);
    seed = (uint64_t)_i + 100;
    char *bytes = malloc(size[0] + size[1]);
    int wanted = full_or(8000, 400);
    for (int k = 0; k < wanted; k++) {
        int first = (int)below(2);
        size_t head = below(size[first] + 1);
        size_t tail = k % 2 && head <= size[!first] ? size[!first] - head : below(size[!first] + 1);
        memcpy(bytes, whole[first], head);
        memcpy(bytes + head, whole[!first] + size[!first] - tail, tail);
        damaged("splice", head, bytes, head + tail);
    }
    memcpy(bytes, whole[0], size[0]);
    memcpy(bytes + size[0], whole[1], size[1]);
    /* behind an image cameras and editors put things of their own: not looked at */
    const uint64_t both = read_one(bytes, size[0] + size[1]);
    ck_assert(s->read == read_image ? both == hash[0] : !both || s->read == read_csv);
    free(bytes);
    end("splices");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("mutate");
    TCase *t = file_case(suite, "mutate");
    /* built without libpng and libjpeg: without the last two */
    const bool images =
        tn_image_decode("", 0, (tn_image_options){ 0 }) || tn_error_status() != TN_E_UNSUPPORTED;
    const int n = COUNT(subjects) - (images ? 0 : 2);
    tcase_add_loop_test(t, H1_bit_flips, 0, n);
    tcase_add_loop_test(t, H1_truncations, 0, n);
    tcase_add_loop_test(t, H1_random_edits, 0, n);
    tcase_add_loop_test(t, H1_splices, 0, n);
    return suite;
}
