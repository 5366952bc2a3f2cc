/*
 * badfiles_pt.c - .pt files that are not what they claim to be: each is refused with its exact
 * message, the model to be loaded stays bit for bit what it was, and no file's code is executed.
 *
 * Truth: pickles and archives put together byte by byte here, by CPython's pickletools and the ZIP
 * specification.
 *
 * Seen to fail: in src/ext/pt/pickle.c, inside() answering true: rows are read, and
 * test_mutate.c crashes; in src/ext/pt/pickle.c, get() without its comparison: both crash; in
 * src/ext/pt/read.c, storage_of() without the comparison of bytes: rows are read; in
 * src/ext/pt/zip.c, check_place() without its comparison: a hole is read; tni_zip_read() without
 * that of checksums: damaged data.
 */
#include <stdio.h>

#include "archive.h"
#include "io/cases.h"

static void refused(const char *what, const char *path, const char *text)
{
    refuses(what, path, TN_E_FORMAT, text, false);
}

/* ---- pickles --------------------------------------------------------------------------------- */

#define S(length, text) "X" length "\0\0\0" text
#define ORDERED "ccollections\nOrderedDict\n)R"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"
#define STORAGE(type, key, numel)                                                                  \
    "(" S("\x07", "storage") "ctorch\n" type "\n" key S("\x03", "cpu") numel "tQ"
#define TENSOR(...) TENSOR_(__VA_ARGS__)
#define TENSOR_(storage, offset, sizes, strides)                                                   \
    REBUILD "(" storage offset "(" sizes "t(" strides "t\x89" ORDERED "tR"
#define KEY0 S("\x01", "0")
#define F2 STORAGE("FloatStorage", KEY0, "K\x02") /* the two floats of the archive */
#define GOOD TENSOR(F2, VECTOR2)
#define W S("\x01", "w")
#define PROTO "\x80\x02"
#define STATE(value) PROTO "}" W value "s."
#define Z40 "\x8a\x06\0\0\0\0\0\x01"     /* LONG1: 2^40 */
#define Z62 "\x8a\x08\0\0\0\0\0\0\0\x40" /* 2^62 */
#define VECTOR2 "K\0", "K\x02", "K\x01"  /* offset 0, size 2, stride 1 */
#define NINE(x) x x x x x x x x x
#define WANTED                                                                                     \
    "only what torch.load(path, weights_only=True) reads is read, and nothing is executed"
#define TENSOR_ARGUMENTS                                                                           \
    "_rebuild_tensor of something other than (storage, offset, size, stride, requires_grad, no "   \
    "hooks)"
#define FOREIGN ", which tenon has not: want the option "

static const struct {
    const char *pickle;
    size_t n;
    const char *text;
} pickles[] = {
#define ROW(pickle, text) { pickle, sizeof(pickle) - 1, text },
#include "pt_pickles.def"
#undef ROW
};

static const float two[] = { 0.5f, -1.5f };

static const char *pt_of(const char *pickle, size_t n)
{
    const member members[] = { { "m/data.pkl", pickle, n },
                               { "m/data/0", two, sizeof two },
                               { "m/data/1", "\1\2", 2 },
                               { "m/version", "3\n", 2 } };
    archive *a = archive_of(members, COUNT(members));
    return write_bytes("m.pt", a->bytes, a->n);
}

START_TEST(a_good_pickle_is_read)
{
    static const char good[] = STATE(GOOD);
    tn_list *list = tn_load_tensors(pt_of(good, sizeof good - 1), NULL);
    assert_made(list);
    ck_assert_int_eq(list->n, 1);
    ck_assert_str_eq(list->entry[0].name, "w");
    assert_values(list->entry[0].tensor, 0, 0.5, -1.5);
}
END_TEST

START_TEST(FF_04_bad_pickles)
{
    for (int i = 0; i < COUNT(pickles); i++) {
        char what[16];
        snprintf(what, sizeof what, "row %d", i);
        refused(what, pt_of(pickles[i].pickle, pickles[i].n), pickles[i].text);
    }
}
END_TEST

/* Many of one thing. */
START_TEST(FF_04_bad_pickles_of_size)
{
    static const struct {
        const char *before;
        char many;
        const char *text;
    } rows[] = {
        { "", ')', "data.pkl, byte 8192: the pickle ends without STOP" },
        { "", '(', "data.pkl, byte 8192: the pickle ends without STOP" },
        { "X\x01\0\x10", 0, "data.pkl, byte 2: an operand of 1048577 bytes with 8185 left" },
    };
    static char pickle[8192];
    for (int i = 0; i < COUNT(rows); i++) {
        size_t n = 2 + (rows[i].before[0] ? 4 : 0);
        memcpy(pickle, PROTO, 2);
        memcpy(pickle + 2, rows[i].before, n - 2);
        memset(pickle + n, rows[i].many, sizeof pickle - n);
        refused(rows[i].before, pt_of(pickle, sizeof pickle), rows[i].text);
    }
    /* a pickle and a file larger than the limit */
    assert_ok(tn_set_file_limits((tn_file_limits){ .header_bytes = 1000 }));
    refused("large", pt_of(pickle, sizeof pickle),
            "data.pkl has 8192 bytes: at most 1000 are read (tn_set_file_limits)");
    assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = 1 }));
    static const char three[] =
        PROTO "}" W GOOD "s" S("\x01", "v") GOOD "s" S("\x01", "u") GOOD "s.";
    refused("tensors", pt_of(three, sizeof three - 1), "data.pkl, byte 225: more than 1 storages");
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
    assert_made(tn_load_tensors(pt_of(three, sizeof three - 1), NULL));
}
END_TEST

/* ---- archives that are not whole, or not plain ----------------------------------------------- */

static const char state[] = STATE(GOOD);

/* The good archive: m/data.pkl, m/data/0, m/version. */
static archive *good_archive(void)
{
    const member members[] = { { "m/data.pkl", state, sizeof state - 1 },
                               { "m/data/0", two, sizeof two },
                               { "m/version", "3\n", 2 } };
    return archive_of(members, COUNT(members));
}

/* Spoils one field of a header (LOCAL), a directory entry (CENTRAL) or the end record. */
enum { LOCAL, CENTRAL, END };

#define NO_END "no end record in the last 22 bytes: cut off, or something follows"
#define DIFFER "m/data/0: the header at 176 and the directory differ"

static const struct {
    const char *what;
    int where, member, at, n;
    uint64_t value;
    const char *text;
} fields[] = {
    { "compressed", CENTRAL, 1, 10, 2, 8, "m/data/0: the header at 176 and the directory differ" },
    { "compressed by bzip2", CENTRAL, 1, 10, 2, 12,
      "m/data/0: is compressed by method 12: want stored or deflated entries" },
    { "encrypted", CENTRAL, 1, 8, 2, 1, "m/data/0: is encrypted" },
    { "unknown flag", CENTRAL, 1, 8, 2, 0x40, "m/data/0: unknown flags 0x40" },
    { "two sizes", CENTRAL, 1, 20, 4, 7, "m/data/0: 8 bytes stored as 7" },
    { "checksum there", CENTRAL, 1, 16, 4, 1, DIFFER },
    { "checksum here", LOCAL, 1, 14, 4, 1, DIFFER },
    { "size here", LOCAL, 1, 22, 4, 4, DIFFER },
    { "method here", LOCAL, 1, 8, 2, 8, DIFFER },
    { "flags here", LOCAL, 1, 6, 2, 1, DIFFER },
    { "name here", LOCAL, 1, 30, 1, 'x', DIFFER },
    { "signature here", LOCAL, 1, 0, 4, 1, DIFFER },
    { "no data descriptor", LOCAL, 1, 14, 4, 0, DIFFER },
    { "extra over the directory", LOCAL, 2, 28, 2, 60000,
      "m/version: 2 bytes at 60261: the directory begins at 263" },
    { "extra over the next", LOCAL, 1, 28, 2, 20,
      "m/version begins at 222: inside what lies before it, want 242" },
    { "place", CENTRAL, 1, 42, 4, 0, "m/data/0: the header at 0 and the directory differ" },
    { "place outside", CENTRAL, 1, 42, 4, 4000,
      "m/data/0: 8 bytes at 4000: the directory begins at 263" },
    { "place at the edge", CENTRAL, 2, 42, 4, 240, "m/version: no room for its header at 240" },
    { "size outside", CENTRAL, 1, 24, 4, 4000, "m/data/0: 4000 bytes stored as 8" },
    { "signature", CENTRAL, 1, 0, 4, 0, "the directory is damaged at entry 1" },
    { "no name", CENTRAL, 1, 28, 2, 0, "an entry's name has 0 bytes: want 1 to 1024" },
    { "long name", CENTRAL, 1, 28, 2, 1025, "an entry's name has 1025 bytes: want 1 to 1024" },
    { "name over the end", CENTRAL, 2, 28, 2, 10, "the directory is damaged at entry 2" },
    { "extra over the end", CENTRAL, 2, 30, 2, 1, "the directory is damaged at entry 2" },
    { "a comment", CENTRAL, 1, 32, 2, 1, "the directory is damaged at entry 1" },
    { "another disk", CENTRAL, 1, 34, 2, 1, "the directory is damaged at entry 1" },
    { "zip64 without it", CENTRAL, 1, 42, 4, 0xffffffff, "m/data/0: a zip64 value is missing" },
    { "zero byte", CENTRAL, 1, 47, 1, 0, "m: a zero byte in an entry's name" },
    { "control byte", CENTRAL, 1, 47, 1, 7,
      "m?data/0: the header at 176 and the directory differ" },
    { "absolute", CENTRAL, 1, 46, 1, '/', "//data/0: the header at 176 and the directory differ" },
    { "another folder", CENTRAL, 1, 46, 1, 'n',
      "n/data/0: the header at 176 and the directory differ" },
    { "count", END, 0, 8, 4, 0x00020002, "55 bytes follow the directory's last entry" },
    { "count beyond", END, 0, 8, 4, 0x00040004, "the directory is damaged" },
    { "no entries", END, 0, 8, 4, 0, "the directory is damaged" },
    { "two counts", END, 0, 8, 2, 2, "the archive is spread over several disks" },
    { "disk", END, 0, 4, 2, 1, "the archive is spread over several disks" },
    { "directory's size", END, 0, 12, 4, 100,
      "the directory has 100 bytes at 263: it must end at 428" },
    { "directory's place", END, 0, 16, 4, 265,
      "the directory has 165 bytes at 265: it must end at 428" },
    { "directory far away", END, 0, 16, 4, 0xffffffff,
      "the directory has 165 bytes at 4294967295: it must end at 428" },
    { "a comment at the end", END, 0, 20, 2, 1, NO_END },
    { "no end record", END, 0, 0, 4, 0, NO_END },
};

START_TEST(FF_04_bad_fields_of_archives)
{
    for (int i = 0; i < COUNT(fields); i++) {
        archive *a = good_archive();
        const size_t *place = fields[i].where == LOCAL     ? a->local
                              : fields[i].where == CENTRAL ? a->central
                                                           : &a->end;
        size_t n = a->n;
        a->n = place[fields[i].member] + (size_t)fields[i].at;
        archive_put(a, fields[i].value, fields[i].n);
        refused(fields[i].what, write_bytes("m.pt", a->bytes, n), fields[i].text);
    }
    archive *a = good_archive();
    assert_made(tn_load_tensors(write_bytes("m.pt", a->bytes, a->n), NULL));
}
END_TEST

/* Archives with other members. */
START_TEST(FF_04_bad_members_of_archives)
{
/* clang-format off */
#define PICKLE { "m/data.pkl", state, sizeof state - 1 }
#define DATA { "m/data/0", two, sizeof two }
#define VERSION { "m/version", "3\n", 2 }
    /* clang-format on */
    static const struct {
        member members[5];
        const char *text;
    } rows[] = {
        { { DATA, VERSION }, "no entry data.pkl: not a PyTorch file" },
        { { PICKLE, DATA }, "no entry version" },
        { { PICKLE, VERSION }, "no entry data/0" },
        { { PICKLE, DATA, { "m/version", "4\n", 2 } }, "version is \"4\": want \"3\"" },
        { { PICKLE, DATA, { "m/version", "", 0 } }, "version is \"\": want \"3\"" },
        { { PICKLE, DATA, { "m/version", "3\n3333333333333333", 18 } },
          "version is \"\": want \"3\"" },
        { { PICKLE, DATA, VERSION, { "m/byteorder", "big", 3 } },
          "byteorder is \"big\": want \"little\"" },
        { { PICKLE, DATA, VERSION, { "m/byteorder", "little\n", 7 } },
          "byteorder is \"little\": want \"little\"" },
        { { PICKLE, DATA, VERSION, DATA }, "two entries are named m/data/0" },
        { { PICKLE, DATA, { "n/version", "3\n", 2 } }, "n/version: want entries in one folder" },
        { { PICKLE, DATA, { "version", "3\n", 2 } }, "version: want entries in one folder" },
        { { { "data.pkl", state, sizeof state - 1 } }, "data.pkl: want entries in one folder" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        int n = 0;
        while (n < 5 && rows[i].members[n].name) n++;
        archive *a = archive_of(rows[i].members, n);
        refused(rows[i].text, write_bytes("m.pt", a->bytes, a->n), rows[i].text);
    }
    /* nothing is written under an entry's name: those that are not asked for may be any */
    static const member more[] = { PICKLE, DATA, VERSION, { "m/", "", 0 }, { "m/../x", "", 0 } };
    archive *a = archive_of(more, COUNT(more));
    assert_made(tn_load_tensors(write_bytes("m.pt", a->bytes, a->n), NULL));
}
END_TEST

/* Bytes changed, added or left out, with all records corrected afterwards. */
START_TEST(FF_04_bad_contents_of_archives)
{
    archive *a = good_archive();
    a->bytes[a->local[1] + 30 + 8] ^= 1;
    refused("data", write_bytes("m.pt", a->bytes, a->n),
            "data/0: is damaged: its checksum is 1add89f3, not d677896d");
    a = good_archive();
    a->bytes[a->local[0] + 30 + 10 + 20] ^= 1;
    refused("pickle", write_bytes("m.pt", a->bytes, a->n),
            "data.pkl: is damaged: its checksum is 9ada0518, not 9b4263f0");
    a = good_archive();
    archive_put_bytes(a, "junk", 4);
    refused("junk", write_bytes("m.pt", a->bytes, a->n), NO_END);
    refused("cut", write_bytes("m.pt", a->bytes, 10), "10 bytes: cut off");
    refused("html", write_bytes("m.pt", "PK\3\4<html>not found</html>", 26), NO_END);
    /* a hole between two entries: the second one begins 100 bytes later */
    a = good_archive();
    memmove(a->bytes + a->local[1] + 100, a->bytes + a->local[1], a->n - a->local[1]);
    for (int i = 1; i < 3; i++) {
        a->n = a->central[i] + 100 + 42;
        archive_put(a, a->local[i] + 100, 4);
    }
    a->n = a->end + 100 + 16;
    archive_put(a, a->central[0] + 100, 4);
    refused("hole", write_bytes("m.pt", a->bytes, a->end + 100 + 22),
            "m/data/0 begins at 276: behind a hole, want 176");
}
END_TEST

void badfiles_pt_cases(Suite *suite)
{
    TCase *t = file_case(suite, "pt");
    tcase_add_test(t, a_good_pickle_is_read);
    tcase_add_test(t, FF_04_bad_pickles);
    tcase_add_test(t, FF_04_bad_pickles_of_size);
    tcase_add_test(t, FF_04_bad_fields_of_archives);
    tcase_add_test(t, FF_04_bad_members_of_archives);
    tcase_add_test(t, FF_04_bad_contents_of_archives);
}
