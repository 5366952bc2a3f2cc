/*
 * badfiles_idx.c - IDX files, compressed or not, that are not whole or claim too much.
 *
 * Truth: files written byte by byte here; zlib for compressed ones.
 *
 * Seen to fail: in src/ext/data/idx.c, read_values() without the extra byte: junk, cut files and
 * the bomb are read.
 */
#include <stdio.h>
#include <stdlib.h>

#include "io/cases.h"

static const unsigned char idx[] = { 0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255 };

#define BEGINS(bytes) "begins with " bytes ": want 00 00, a type (08 to 0e) and 1 to 4 axes"

static void no_idx(const char *what, const void *bytes, size_t n, const char *text)
{
    const char *path = write_bytes("f", bytes, n);
    int64_t live = tn_live_tensors();
    ck_assert_msg(!tn_idx_load(path), "%s was read", what);
    ck_assert(tn_live_tensors() == live || tn_live_tensors() == live + 1); /* the scope's */
    check_error(what, "tn_idx_load", path, TN_E_FORMAT, text);
}

START_TEST(H2_idx)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } row[] = {
        { "", 0, "shorter than an IDX header" },
        { "\0\0\x08", 3, "shorter than an IDX header" },
        { "\0\0\x08\2\0\0\0\1", 8, "shorter than an IDX header" },
        { "<!DOCTYPE html>", 15,
          "a page of HTML or XML, as a failed download leaves: want an IDX file" },
        { "version https://git-lfs.github.com/spec/v1", 42,
          "a pointer of Git LFS, not the file itself (git lfs pull): want an IDX file" },
        { "\0\0\7\1\0\0\0\1\1", 9, BEGINS("00 00 07 01") },
        { "\0\0\x0a\1\0\0\0\1\1", 9, BEGINS("00 00 0a 01") },
        { "\0\0\x0f\1\0\0\0\1\1", 9, BEGINS("00 00 0f 01") },
        { "\0\0\x08\5\0\0\0\1\1", 9, BEGINS("00 00 08 05") },
        { "\0\0\x08\0\1", 5, BEGINS("00 00 08 00") },
        { "\1\0\x08\1\0\0\0\1\1", 9, BEGINS("01 00 08 01") },
        { "\0\0\x08\1\0\0\0\2\1", 9, "[2] values of 1 bytes: the file is too short for them" },
        { "\0\0\x0e\1\0\0\0\1\1\2\3\4\5\6\7", 15,
          "[1] values of 8 bytes: the file is too short for them" },
        { "\0\0\x08\1\xff\xff\xff\xff\1", 9,
          "[4294967295] values of 1 bytes: the file is too short for them" },
        { "\0\0\x08\1\0\0\0\1\1\1", 10, "bytes follow the last value: want none" },
        { "\0\0\x08\1\0\0\0\0\1", 9, "bytes follow the last value: want none" },
        { "\0\0\x0e\4\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 20,
          "the sizes overflow" },
        { "\0\0\x0e\2\x80\0\0\0\x40\0\0\0", 12, "the sizes overflow" },
        { "\0\0\x08\4\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\5", 20, "the sizes overflow" },
        { "\x1f\x8b", 2, "the compressed data is cut off" },
        { "\x1f\x8bnot gzip at all", 17, "unknown compression method" },
    };
    for (int i = 0; i < COUNT(row); i++) no_idx(row[i].text, row[i].bytes, row[i].n, row[i].text);
    /* the same in a compressed file, and sizes that only a compressed file may hold */
    for (int i = 0; i < COUNT(row) - 2; i++) {
        size_t size;
        const char *text = row[i].text;
        unsigned char *packed = gzip(row[i].bytes, row[i].n, 6, &size);
        if (strstr(text, "[2] values")) text = "truncated: 1 of 2 bytes of values";
        if (strstr(text, "[1] values")) text = "truncated: 7 of 8 bytes of values";
        no_idx(row[i].text, packed, size, text);
        free(packed);
    }
    /* no values at all are fine */
    tn_tensor *t = tn_idx_load(write_bytes("f", "\0\0\x08\2\0\0\0\0\0\0\0\5", 12));
    assert_made(t);
    ck_assert_int_eq(tn_size(t, 1), 5);
}
END_TEST

START_TEST(H5_gz_is_whole_or_refused)
{
    size_t size;
    unsigned char *packed = owned(gzip(idx, sizeof idx, 6, &size));
    tn_tensor *t = tn_idx_load(write_bytes("a.gz", packed, size));
    assert_made(t);
    assert_values(t, 0, 1, 2, 3, 4, 5, 255);
    for (size_t n = 0; n < size; n++)
        no_idx("cut", packed, n,
               n < 2 ? "shorter than an IDX header" : "the compressed data is cut off");
    for (size_t k = size - 8; k < size; k++) { /* checksum and length */
        packed[k] ^= 4;
        no_idx("flipped", packed, size,
               k < size - 4 ? "incorrect data check" : "incorrect length check");
        packed[k] ^= 4;
    }
    /* junk at the end; two members are one file */
    unsigned char *both = owned(malloc(3 * size + 64));
    memcpy(both, packed, size);
    both[size] = 'x';
    no_idx("junk", both, size + 1, "bytes follow the compressed data: want none");
    both[size] = 0;
    no_idx("zero", both, size + 1, "bytes follow the compressed data: want none");
    memcpy(both + size, packed, size);
    no_idx("twice", both, 2 * size, "bytes follow the last value: want none");
    size_t s1;
    size_t s2;
    unsigned char *p1 = owned(gzip(idx, 7, 6, &s1));
    unsigned char *p2 = owned(gzip(idx + 7, sizeof idx - 7, 6, &s2));
    memcpy(both, p1, s1);
    memcpy(both + s1, p2, s2);
    t = tn_idx_load(write_bytes("two.gz", both, s1 + s2));
    assert_made(t);
    assert_values(t, 0, 1, 2, 3, 4, 5, 255);
    both[s1 + s2 - 8] ^= 1;
    no_idx("second checksum", both, s1 + s2, "incorrect data check");
    unsigned char *again = owned(gzip(packed, size, 6, &s1));
    no_idx("gz.gz", again, s1, "its contents are compressed: want an IDX file");
}
END_TEST

/* 64 MiB out of 64 KiB: read when the header says so, never more than that. */
START_TEST(H5_bomb)
{
    enum { VALUES = 64 << 20 };
    unsigned char *bytes = owned(calloc(8 + VALUES, 1));
    memcpy(bytes, "\0\0\x08\1\4\0\0\0", 8);
    size_t size;
    unsigned char *packed = gzip(bytes, 8 + VALUES, 9, &size);
    ck_assert_uint_lt(size, 80000);
    tn_scope scope = tn_scope_begin();
    assert_made(tn_idx_load(write_bytes("f", packed, size)));
    tn_scope_end(scope);
    tn_memory_trim();
    free(packed);
    bytes[4] = 0, bytes[6] = 1; /* 256 values */
    packed = gzip(bytes, 8 + VALUES, 9, &size);
    tn_memory_reset_peak();
    int64_t before = tn_memory().in_use;
    no_idx("bomb", packed, size, "bytes follow the last value: want none");
    ck_assert_int_le(tn_memory().peak_in_use - before, 1 << 20);
    free(packed);
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

void badfiles_idx_cases(Suite *suite)
{
    TCase *t = file_case(suite, "idx");
    tcase_add_test(t, H2_idx);
    tcase_add_test(t, H5_gz_is_whole_or_refused);
    tcase_add_test(t, H5_bomb);
    tcase_add_test(t, a_small_gz_makes_no_large_tensor);
}
