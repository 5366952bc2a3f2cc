/*
 * test_badfiles.c - files that are not what they claim to be: each is refused with its exact status
 * and message, and the model that was to be loaded stays bit for bit what it was.
 *
 * Truth: files written byte by byte here, by the description of each format; zlib for compressed
 * ones.
 *
 * Seen to fail: in src/io/safetensors.c, check_ranges() without the comparison with at: five rows;
 * check_range() without the comparison with the shape's bytes: four rows; tni_safetensors_verify()
 * answering TN_OK: torn checkpoints are read; in input.c, without S_ISREG: a folder; in idx.c,
 * read_values() without the extra byte: junk, cut files and the bomb are read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "io/safetensors.h"

/* text is "TEXT", or "TEXT..." where only the beginning counts. */
static bool same_text(const char *actual, const char *text)
{
    size_t n = strlen(text);
    if (n > 3 && !strcmp(text + n - 3, "...")) return !strncmp(actual, text, n - 3);
    return !strcmp(actual, text);
}

/* The pending error is status, "FUNCTION: PATH: TEXT"; forgets it. */
static void check_error(const char *what, const char *function, const char *path, tn_status status,
                        const char *text)
{
    char whole[2048];
    snprintf(whole, sizeof whole, "%s: %s: %s", function, path, text);
    ck_assert_msg(tn_error_status() == status, "%s: %s: %s", what,
                  tn_status_name(tn_error_status()), tn_error());
    ck_assert_msg(same_text(tn_error(), whole), "%s:\n  \"%s\", not\n  \"%s\"", what, tn_error(),
                  whole);
    tn_error_clear();
}

/* Read as tensors, into a model, as a checkpoint: all refuse it alike, and nothing changes. */
static void refused(const char *what, const char *path, tn_status status, const char *text)
{
    tn_manual_seed(1);
    tn_module *model = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    uint64_t hash = hash_of_module(model);
    tn_metadata metadata;
    int64_t live = tn_live_tensors();
    tn_scope scope = tn_scope_begin();
    ck_assert_msg(!tn_load_tensors(path, &metadata), "%s was read", what);
    check_error(what, "tn_load_tensors", path, status, text);
    ck_assert_msg(tn_load(model, path) == status, "%s was loaded: %s", what, tn_error());
    check_error(what, "tn_load", path, status, text);
    tn_checkpoint c = { .model = model, .step = 7 };
    ck_assert_int_eq(tn_checkpoint_load(&c, path), status);
    check_error(what, "tn_checkpoint_load", path, status, text);
    ck_assert_int_eq(c.step, 7);
    tn_scope_end(scope);
    ck_assert_msg(tn_live_tensors() == live, "%s: %d tensors stay", what,
                  (int)(tn_live_tensors() - live));
    ck_assert_msg(hash_of_module(model) == hash, "%s changed the model", what);
    tn_module_drop(model);
}

/* ---- headers --------------------------------------------------------------------------------- */

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define JSON "the header is not JSON: "

static const struct {
    const char *header;
    size_t n; /* bytes of data */
    const char *text;
} headers[] = {
    { "{ ", 0, JSON "..." },
    { "[]", 0, "the header is not an object" },
    { "\"text\"", 0, "the header is not an object" },
    { "null", 0, "the header is not an object" },
    { "{\"a\":NaN}", 0, JSON "want a value at byte 5" },
    { "{\"a\":Infinity}", 0, JSON "want a value at byte 5" },
    { "{/* */}", 0, JSON "..." },
    { "{} // end", 0, JSON "something follows it..." },
    { "{'a':1}", 0, JSON "..." },
    { "{\"__metadata__\":{\"a\":\"1\",}}", 0, JSON "nothing follows the comma at byte 25" },
    { "\xef\xbb\xbf{}", 0, JSON "..." },
    { "{} x", 0, JSON "something follows it..." },
    { "{}{}", 0, JSON "something follows it..." },
    { "{\"a\\u0000b\":1}", 0, JSON "a zero character in a string..." },
    { "{\"a\xff\":1}", 0, JSON "a byte that is not UTF-8 at byte 3" },
    { "{\"a\xc0\x80\":1}", 0, JSON "a byte that is not UTF-8 at byte 3" },
    { "{\"a\xed\xa0\x80\":1}", 0, JSON "a byte that is not UTF-8 at byte 3" },
    { "{\"a\\ud800\":1}", 0, JSON "half a surrogate pair..." },
    { "{\"a\\udc00\":1}", 0, JSON "half a surrogate pair..." },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 4,
      "two tensors are named a" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"\\u0061\":" T("F32", "[1]", "[0,4]") "}", 4,
      "two tensors are named a" },
    { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
      "a: dtype is there twice" },
    { "{\"__metadata__\":{\"k\":\"1\"},\"__metadata__\":{}}", 0, "__metadata__ is there twice" },
    { "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "__metadata__: the key k is there twice" },
    { "{\"__metadata__\":{\"n\":1}}", 0, "__metadata__: n is not a string" },
    { "{\"__metadata__\":{\"n\":null}}", 0, "__metadata__: n is not a string" },
    { "{\"__metadata__\":{\"n\":{\"m\":\"x\"}}}", 0, "__metadata__: n is not a string" },
    { "{\"__metadata__\":[]}", 0, "__metadata__ is not an object" },
    { "{\"__metadata__\":\"x\"}", 0, "__metadata__ is not an object" },
    { "{\"\":" T("F32", "[1]", "[0,4]") "}", 4,
      "a tensor's name has 0 bytes: 1 to 1024 are possible" },
    { "{\"a\":[]}", 0, "a: is not an object" },
    { "{\"a\":null}", 0, "a: is not an object" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0,
      "a: want dtype, shape and data_offsets, one is missing" },
    { "{\"a\":{}}", 0, "a: want dtype, shape and data_offsets, one is missing" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"x\":[0,4]}}", 4,
      "a: want dtype, shape and data_offsets, one is missing" },
    { "{\"a\":{\"x\":nul}}", 0, JSON "want a value..." },
    { "{\"a\":{\"x\":[1,}}", 0, JSON "want a value..." },
    { "{\"a\":{\"x\":[1,]}}", 0, JSON "nothing follows the comma..." },
    { "{\"a\":{\"x\":{1:2}}}", 0, JSON "want a key in double quotes..." },
    { "{\"a\":{\"x\":[[{\"y\":[", 0, JSON "it is cut off..." },
    { "{\"__metadata__\":nul}", 0, "__metadata__ is not an object" },
    { "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "a: dtype is not a string" },
    { "{\"a\":" T("F9", "[1]", "[0,4]") "}", 4,
      "a: dtype F9: want F32, F64, BF16, F16, I64, I32, U8 or BOOL" },
    { "{\"a\":" T("f32", "[1]", "[0,4]") "}", 4,
      "a: dtype f32: want F32, F64, BF16, F16, I64, I32, U8 or BOOL" },
    { "{\"a\":" T("F4", "[2]", "[0,1]") "}", 1,
      "a: dtype F4: want F32, F64, BF16, F16, I64, I32, U8 or BOOL" },
    { "{\"a\":" T("F8_E4M3", "[1]", "[0,1]") "}", 1,
      "a: dtype F8_E4M3: want F32, F64, BF16, F16, I64, I32, U8 or BOOL" },
    { "{\"a\":" T("F32", "1", "[0,4]") "}", 4, "a: shape is not a list" },
    { "{\"a\":" T("F32", "null", "[0,4]") "}", 4, "a: shape is not a list" },
    { "{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, "a: size 0 of shape is not an integer >= 0" },
    { "{\"a\":" T("F32", "[1,-0.0]", "[0,4]") "}", 4, "a: size 1 of shape is not an integer >= 0" },
    { "{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, "a: size 0 of shape is not an integer >= 0" },
    { "{\"a\":" T("F32", "[1e0]", "[0,4]") "}", 4, "a: size 0 of shape is not an integer >= 0" },
    { "{\"a\":" T("F32", "[\"1\"]", "[0,4]") "}", 4, "a: size 0 of shape is not an integer >= 0" },
    { "{\"a\":" T("F32", "[[1]]", "[0,4]") "}", 4, "a: size 0 of shape is not an integer >= 0" },
    { "{\"a\":" T("F32", "[01]", "[0,4]") "}", 4, JSON "..." },
    { "{\"a\":" T("F32", "[9223372036854775807,9223372036854775807]", "[0,4]") "}", 4,
      "a: shape [9223372036854775807,9223372036854775807]: its size overflows" },
    { "{\"a\":" T("F32", "[4611686018427387904]", "[0,4]") "}", 4,
      "a: shape [4611686018427387904]: its size overflows" },
    { "{\"a\":" T("F64", "[1152921504606846976]", "[0,0]") "}", 0,
      "a: shape [1152921504606846976]: its size overflows" },
    { "{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0,
      "a: shape [4294967296,4294967296]: its size overflows" },
    { "{\"a\":" T("F32", "[0,4294967296,4294967296]", "[0,0]") "}", 0,
      "a: shape [0,4294967296,4294967296]: its size overflows" },
    { "{\"a\":" T("U8", "[2305843009213693952]", "[0,4]") "}", 4,
      "a: shape [2305843009213693952]: its size overflows" },
    { "{\"a\":" T("F32", "[9223372036854775808]", "[0,4]") "}", 4,
      JSON "an integer above 9223372036854775807..." },
    { "{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4,
      "a: more than 8 axes: at most so many are possible" },
    { "{\"a\":" T("F32", "[1]", "[0]") "}", 4,
      "a: data_offsets is not a list of two integers >= 0" },
    { "{\"a\":" T("F32", "[1]", "[0,4,4]") "}", 4,
      "a: data_offsets is not a list of two integers >= 0" },
    { "{\"a\":" T("F32", "[1]", "{\"begin\":0}") "}", 4,
      "a: data_offsets is not a list of two integers >= 0" },
    { "{\"a\":" T("F32", "[1]", "[0.0,4.0]") "}", 4,
      "a: data_offsets is not a list of two integers >= 0" },
    { "{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4,
      "a: data_offsets is not a list of two integers >= 0" },
    { "{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, "a: data_offsets [4,0]: want begin <= end <= 4" },
    { "{\"a\":" T("F32", "[1]", "[0,8]") "}", 4, "a: data_offsets [0,8]: want begin <= end <= 4" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") "}", 3, "a: data_offsets [0,4]: want begin <= end <= 3" },
    { "{\"a\":" T("F32", "[1]", "[0,3]") "}", 4, "a: data_offsets hold 3 bytes: F32 [1] takes 4" },
    { "{\"a\":" T("F32", "[]", "[0,0]") "}", 0, "a: data_offsets hold 0 bytes: F32 [] takes 4" },
    { "{\"a\":" T("F32", "[0]", "[0,4]") "}", 4, "a: data_offsets hold 4 bytes: F32 [0] takes 0" },
    { "{\"a\":" T("F32", "[1]", "[0,9223372036854775808]") "}", 4,
      JSON "an integer above 9223372036854775807..." },
    { "{\"a\":" T("F32", "[1]", "[9223372036854775807,9223372036854775807]") "}", 4,
      "a: data_offsets [9223372036854775807,9223372036854775807]: "
      "want begin <= end <= 4" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[3,7]") "}", 7,
      "b begins at 3: inside what lies before it, want 4" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4,
      "b begins at 0: inside what lies before it, want 4" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[5,9]") "}", 9,
      "b begins at 5: behind a hole, want 4" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[0]", "[2,2]") "}", 4,
      "b begins at 2: inside what lies before it, want 4" },
    { "{\"a\":" T("F32", "[1]", "[1,5]") "}", 5, "a begins at 1: behind a hole, want 0" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") "}", 5, "1 bytes follow the last tensor: want none" },
    { "{}", 1, "1 bytes follow the last tensor: want none" },
    { "{\"__metadata__\":{\"tenon.versions\":\"7\"}}", 0,
      "tenon.versions is not an object of numbers" },
    { "{\"__metadata__\":{\"tenon.versions\":\"{\\\"a\\\":0}\"}}", 0,
      "tenon.versions: a: not a number from 1" },
};

START_TEST(FF_01_H2_headers)
{
    const char *path = write_header("bad", headers[_i].header, headers[_i].n);
    refused(headers[_i].header, path, TN_E_FORMAT, headers[_i].text);
}
END_TEST

START_TEST(FF_01_good_headers)
{
    /* spaces around, no tensors, empty tensors at one offset, rank 0, 8 axes */
    static const struct {
        const char *header;
        size_t n;
        int tensors;
    } good[] = {
        { "{}", 0, 0 },
        { "  {}   ", 0, 0 },
        { "{\"__metadata__\":{}}", 0, 0 },
        { "{\"a\":" T("F32", "[]", "[0,4]") "}", 4, 1 },
        { "{\"a\":" T("F32", "[0]", "[0,0]") "}", 0, 1 },
        { "{\"a\":" T("U8", "[1,1,1,1,1,1,1,3]", "[0,3]") "}", 3, 1 },
        { "{\"a\":" T("F32", "[1152921504606846975,0]", "[0,0]") "}", 0, 1 },
        { "{\"z\":" T("F32", "[0]", "[4,4]") ",\"y\":" T("F32", "[3,0]", "[4,4]") ",\"a\":" T(
              "F32", "[]", "[0,4]") "}",
          4, 3 },
    };
    for (int i = 0; i < COUNT(good); i++) {
        tn_list *list = tn_load_tensors(write_header("f", good[i].header, good[i].n), NULL);
        ck_assert_msg(list && list->n == good[i].tensors, "%s: %s", good[i].header, tn_error());
    }
    tn_list *list = tn_load_tensors(in_folder("f"), NULL);
    ck_assert_str_eq(list->entry[0].name, "z"); /* in the order of the header */
    ck_assert_int_eq(tn_rank(tn_list_get(list, "a")), 0);
}
END_TEST

START_TEST(H2_sizes_before_the_header)
{
    for (size_t n = 0; n < 8; n++) {
        char text[64];
        snprintf(text, sizeof text, "%zu bytes: a safetensors file has at least 8", n);
        refused("short", write_bytes("f", "\2\0\0\0\0\0\0\0", n), TN_E_FORMAT, text);
    }
    static const struct {
        const char *size, *claimed;
    } sizes[] = {
        { "\0\0\0\0\0\0\0\0", "0" },
        { "\1\0\0\0\0\0\0\0", "1" },
        { "\3\0\0\0\0\0\0\0", "3" }, /* the file's size - 7 */
        { "\0\0\0\0\0\0\0\x80", "9223372036854775808" },
        { "\xff\xff\xff\xff\xff\xff\xff\x7f", "9223372036854775807" }, /* 8 more overflow */
        { "\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615" },
        { "\xfa\xff\xff\xff\xff\xff\xff\xff", "18446744073709551610" }, /* 8 more wrap to 2 */
        { "\2\0\0\0\1\0\0\0", "4294967298" },
    };
    for (int i = 0; i < COUNT(sizes); i++) {
        char bytes[10];
        memcpy(bytes, sizes[i].size, 8);
        memcpy(bytes + 8, "{}", 2);
        char text[128];
        snprintf(text, sizeof text,
                 "a header of %s bytes in a file of 10: not a safetensors file%s", sizes[i].claimed,
                 strlen(sizes[i].claimed) < 10 ? ", or cut off" : "");
        refused(sizes[i].claimed, write_bytes("f", bytes, 10), TN_E_FORMAT, text);
    }
    refused("raw zero", write_bytes("f", "\4\0\0\0\0\0\0\0{\0 }", 12), TN_E_FORMAT,
            "a zero byte in the header");
    refused("raw zero behind", write_bytes("f", "\3\0\0\0\0\0\0\0{}\0", 11), TN_E_FORMAT,
            "a zero byte in the header");
    static const struct {
        const char *bytes, *text;
    } others[] = {
        { "GGUF\3\0\0\0\1\0", "not a safetensors file: a GGUF file" },
        { "\x89HDF\r\n\x1a\n\0\0", "not a safetensors file: an HDF5 file" },
        { "\x1f\x8b\x08\0\1\2\3\4\0\3", "not a safetensors file: a file compressed by gzip" },
        { "\x93NUMPY\1\0v\0", "not a safetensors file: an array of NumPy's" },
    };
    for (int i = 0; i < COUNT(others); i++)
        refused(others[i].text, write_bytes("f", others[i].bytes, 10), TN_E_FORMAT, others[i].text);
    refused("HTML", write_bytes("f", "<!DOCTYPE html><html>", 21), TN_E_FORMAT,
            "not a safetensors file: a page of HTML or XML, as a failed download leaves");
    refused(
        "an index", write_bytes("f", "{\"metadata\": {\"total_size\": 1}}", 32), TN_E_FORMAT,
        "not a safetensors file: JSON text: of an index of several files (.index.json) load the "
        "files that it names");
    refused("ONNX",
            write_bytes("f",
                        "\x08\x0a\x12\x07pytorch\x1a\x06"
                        "2.15.0",
                        19),
            TN_E_FORMAT, "not a safetensors file: perhaps an ONNX model");
    refused("LFS", write_bytes("f", "version https://git-lfs.github.com/spec/v1", 42), TN_E_FORMAT,
            "not a safetensors file: a pointer of Git LFS, not the file itself (git lfs pull)");
}
END_TEST

/* A file of one tensor named a, with this header; it must be read. */
static void assert_reads(const char *header)
{
    size_t n = strlen(header);
    char *bytes = calloc(1, 12 + n);
    for (int i = 0; i < 8; i++) bytes[i] = (char)(n >> 8 * i);
    memcpy(bytes + 8, header, n);
    memcpy(bytes + 8 + n, "\0\0\x80\x3f", 4);
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(write_bytes("f", bytes, 12 + n), &metadata);
    ck_assert_msg(list && list->n == 1 && tn_item(list->entry[0].tensor) == 1, "%s: %s", header,
                  tn_error());
    ck_assert_int_eq(metadata.n, 0);
    free(bytes);
}

/* What other writers add, and safetensors 0.8 reads: metadata that is null, as MLX's, and entries
 * with further keys, of any kind, even twice; as deep as it reads, and no deeper. */
START_TEST(H4_other_writers)
{
    static const char entry[] = T("F32", "[1]", "[0,4]");
    static const char *const more[] = { "0",
                                        "-1.5e+3",
                                        "\"\\u00e9\"",
                                        "null",
                                        "[]",
                                        "{}",
                                        "[1,[],{\"b\":[true,{\"c\":false}]}]",
                                        "1,\"x\":2" };
    char header[2048];
    snprintf(header, sizeof header, "{\"__metadata__\":null,\"a\":%s}", entry);
    assert_reads(header);
    for (int i = 0; i < COUNT(more); i++) {
        snprintf(header, sizeof header, "{\"a\":{\"x\":%s,%s}", more[i], entry + 1);
        assert_reads(header);
        snprintf(header, sizeof header, "{\"a\":%.*s,\"\":%s}}", (int)strlen(entry) - 1, entry,
                 more[i]);
        assert_reads(header);
    }
    for (int depth = 127; depth <= 128; depth++) {
        char open[129] = "", close[129] = "";
        memset(open, '[', (size_t)depth), memset(close, ']', (size_t)depth);
        open[depth] = close[depth] = '\0';
        snprintf(header, sizeof header, "{\"a\":{\"x\":%s%s,%s}", open, close, entry + 1);
        if (depth == 127) assert_reads(header);
    }
    size_t n = strlen(header);
    char *bytes = calloc(1, 12 + n);
    bytes[0] = (char)n, bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, header, n);
    refused("too deep", write_bytes("f", bytes, 12 + n), TN_E_FORMAT,
            JSON "it is nested too deeply...");
    free(bytes);
}
END_TEST

START_TEST(H2_large_headers)
{
    enum { MORE = (16 << 20) + 1 };
    char *bytes = malloc(8 + MORE);
    memset(bytes, ' ', 8 + MORE);
    memcpy(bytes, "\1\0\0\1\0\0\0\0{}", 10);
    refused("16 MiB + 1", write_bytes("f", bytes, 8 + MORE), TN_E_FORMAT,
            "a header of 16777217 bytes: at most 16777216 are read (tn_set_file_limits)");
    memcpy(bytes, "\0\0\0\1\0\0\0\0{}", 10);
    assert_made(tn_load_tensors(write_bytes("f", bytes, 8 + MORE - 1), NULL));
    /* no reader recurses into nested lists */
    for (size_t depth = 2000; depth <= 2000000; depth *= 1000) {
        size_t n = 5 + 2 * depth + 1;
        for (int i = 0; i < 8; i++) bytes[i] = (char)(n >> (8 * i));
        memcpy(bytes + 8, "{\"a\":", 5);
        memset(bytes + 13, '[', depth);
        memset(bytes + 13 + depth, ']', depth);
        bytes[13 + 2 * depth] = '}';
        refused("deep", write_bytes("f", bytes, 8 + n), TN_E_FORMAT, "a: is not an object");
    }
    /* 100,000 empty tensors; with a higher limit they are read */
    size_t at = 8;
    bytes[at++] = '{';
    for (int i = 0; i < 100000; i++)
        at += (size_t)sprintf(bytes + at, "%s\"%d\":" T("F32", "[0]", "[0,0]"), i ? "," : "", i);
    bytes[at++] = '}';
    for (int i = 0; i < 8; i++) bytes[i] = (char)((at - 8) >> (8 * i));
    refused("100,000 tensors", write_bytes("f", bytes, at), TN_E_FORMAT,
            "more than 65536 tensors: at most so many are read (tn_set_file_limits)");
    assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = 100000 }));
    tn_list *list = tn_load_tensors(in_folder("f"), NULL);
    assert_made(list);
    ck_assert_int_eq(list->n, 100000);
    /* names of 1,025 bytes and of a megabyte */
    for (size_t n = 1025; n <= 1 << 20; n += (1 << 20) - 1025) {
        char *header = malloc(n + 128);
        snprintf(header, n + 128, "{\"%0*d\":" T("F32", "[0]", "[0,0]") "}", (int)n, 0);
        char text[64];
        snprintf(text, sizeof text, "a tensor's name has %zu bytes: 1 to 1024 are possible", n);
        refused("long name", write_header("f", header, 0), TN_E_FORMAT, text);
        free(header);
    }
    /* 65 axes */
    char axes[300] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1";
    for (int i = 1; i < 65; i++) strcat(axes, ",1");
    strcat(axes, "],\"data_offsets\":[0,1]}}");
    refused("65 axes", write_header("f", axes, 1), TN_E_FORMAT,
            "a: more than 8 axes: at most so many are possible");
    free(bytes);
}
END_TEST

/* {"__metadata__":{...},"t":...} with n pairs of metadata, of a format that takes the number. */
static void many_pairs(tni_bytes *b, const char *before, const char *pair, int n, const char *after)
{
    tni_bytes_printf(b, "{\"__metadata__\":{%s", before);
    for (int i = 0; i < n; i++) {
        char text[512];
        snprintf(text, sizeof text, pair, i);
        tni_bytes_printf(b, "%s%s", i ? "," : "", text);
    }
    tni_bytes_printf(b, "%s},\"t\":" T("U8", "[1]", "[0,1]") "}", after);
}

/* The most that is read by default is read quickly. */
START_TEST(H6_the_largest_headers_are_read_quickly)
{
    for (int which = 0; which < 3; which++) {
        tni_bytes b = { 0 };
        int entries = 65535;
        if (which == 0) {
            tni_bytes_printf(&b, "{");
            for (int i = 0; i < 65536; i++)
                tni_bytes_printf(&b, "%s\"%0190d\":" T("U8", "[0]", "[0,0]"), i ? "," : "", i);
            tni_bytes_printf(&b, "}");
        } else if (which == 1) {
            many_pairs(&b, "\"tenon.ties\":\"{", "\\\"%0220d\\\":\\\"t\\\"", entries, "}\"");
        } else {
            many_pairs(&b, "\"tenon.versions\":\"{", "\\\"%0230d\\\":2", entries, "}\"");
        }
        tni_bytes_add(&b, "", 1);
        ck_assert_uint_ge(b.n, 14u << 20);
        const char *path = write_header("f", b.data, which ? 1 : 0);
        tni_bytes_free(&b);
        struct timespec from;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        tn_list *list = tn_load_tensors(path, NULL);
        struct timespec to;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        assert_made(list);
        ck_assert_int_eq(list->n, which == 2 ? 1 : 65536);
        double seconds =
            (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        bool slowed = TEST_ASAN || TEST_TSAN || getenv("TN_TEST_EMULATED");
        ck_assert_msg(slowed || seconds < 2, "headers of kind %d: %g s", which, seconds);
    }
}
END_TEST

START_TEST(limits_can_be_set)
{
    const char *path = write_header(
        "f", "{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[1,2]") "}", 2);
    tn_list *list = tn_load_tensors(path, NULL);
    assert_made(list);
    assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = 1 }));
    refused("two", path, TN_E_FORMAT,
            "more than 1 tensors: at most so many are read (tn_set_file_limits)");
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_INVALID,
                 "tn_save_tensors: 2 tensors: at most 1 could be read back (tn_set_file_limits)");
    assert_ok(tn_set_file_limits((tn_file_limits){ .header_bytes = 64 }));
    refused("long", path, TN_E_FORMAT,
            "a header of 105 bytes: at most 64 are read (tn_set_file_limits)");
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_INVALID,
                 "tn_save_tensors: a header of 112 bytes: at most 64 could be read back "
                 "(tn_set_file_limits)");
    const tn_file_limits wrong[] = {
        { -1, 0, 0 },        { 0, -1, 0 }, { 100000001, 0, 0 },
        { 0, 100000001, 0 }, { 0, 0, -1 }, { INT64_MAX, INT64_MAX, INT64_MAX },
    };
    for (int i = 0; i < COUNT(wrong); i++)
        assert_fails(tn_set_file_limits(wrong[i]), TN_E_INVALID, "tn_set_file_limits: ");
    ck_assert_ptr_null(tn_load_tensors(path, NULL)); /* a refusal changes no limit */
    tn_error_clear();
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
    assert_made(tn_load_tensors(path, NULL));
    assert_ok(tn_save_tensors(list, NULL, path));
}
END_TEST

/* ---- values ---------------------------------------------------------------------------------- */

START_TEST(H2_values)
{
    const char *header = "{\"a\":" T("BOOL", "[2]", "[0,2]") "}";
    char bytes[256] = { 0 };
    size_t n = strlen(header);
    bytes[0] = (char)n;
    strcpy(bytes + 8, header);
    bytes[8 + n + 1] = 2;
    const char *path = write_bytes("f", bytes, 10 + n);
    assert_null(tn_load_tensors(path, NULL), TN_E_FORMAT, "a: byte 1 of BOOL is 2: want 0 or 1");
    /* any float is a value: NaN with its payload, infinities, signed zero, subnormals */
    static const uint32_t odd[] = { 0x7fc12345, 0xff800000, 0x7f800000, 0x80000000, 1, 0x7f800001 };
    header = "{\"a\":" T("F32", "[6]", "[0,24]") "}";
    n = strlen(header);
    bytes[0] = (char)n;
    strcpy(bytes + 8, header);
    memcpy(bytes + 8 + n, odd, sizeof odd);
    tn_list *list = tn_load_tensors(write_bytes("f", bytes, 8 + n + sizeof odd), NULL);
    assert_made(list);
    ck_assert_int_eq(memcmp(tn_data(tn_list_get(list, "a")), odd, sizeof odd), 0);
}
END_TEST

/* A valid file that does not fit the model: one message lists all of it, nothing changes. */
START_TEST(all_that_does_not_fit_is_said_at_once)
{
    const char *path =
        write_header("f",
                     "{\"weight\":" T("F32", "[3,2]", "[0,24]") ",\"bia\":" T(
                         "F32", "[2]", "[24,32]") ",\"other\":" T("I64", "[]", "[32,40]") "}",
                     40);
    tn_module *model = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    uint64_t hash = hash_of_module(model);
    ck_assert_int_eq(tn_load(model, path), TN_E_NAME);
    static const char *const texts[] = { "tn_load: ",  "missing", "\"bias\"",
                                         "unexpected", "\"bia\"", "\"other\"",
                                         "weight",     "[3,2]",   "[2,2]" };
    for (int i = 0; i < COUNT(texts); i++)
        ck_assert_msg(strstr(tn_error(), texts[i]), "\"%s\" lacks %s", tn_error(), texts[i]);
    tn_error_clear();
    ck_assert_uint_eq(hash_of_module(model), hash);
    tn_module_drop(model);
}
END_TEST

/* ---- files that are not regular, or change while they are read ------------------------------- */

START_TEST(H2_what_is_no_regular_file)
{
    refused("folder", folder, TN_E_IO, "is a folder: want a regular file");
    refused("/dev/zero", "/dev/zero", TN_E_IO, "is not a regular file: want a regular file");
    refused("nothing", in_folder("nothing"), TN_E_IO, "No such file or directory");
    refused("below a file", in_folder("below/f"), TN_E_IO, "No such file or directory");
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
    refused("FIFO", in_folder("pipe"), TN_E_IO, "is not a regular file: want a regular file");
    ck_assert_int_eq(symlink("loop", in_folder("loop")), 0);
    refused("loop", in_folder("loop"), TN_E_IO, "Too many levels of symbolic links");
    ck_assert_ptr_null(tn_load_tensors(NULL, NULL));
    assert_error(TN_E_INVALID, "path");
    write_bytes("secret", "\2\0\0\0\0\0\0\0{}", 10);
    ck_assert_int_eq(chmod(in_folder("secret"), 0), 0);
    /* root may read anything, so root becomes nobody; where that fails, a missing file is read */
    bool root = geteuid() == 0;
    if (root && seteuid(65534) != 0) return;
    refused("unreadable", in_folder("secret"), TN_E_IO, "Permission denied");
    if (root) ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(H2_truncated_while_open)
{
    const char *path = write_header("f", "{\"a\":" T("F32", "[1024]", "[0,4096]") "}", 4096);
    static const off_t lengths[] = { 4000, 100, 0 };
    for (int i = 0; i < COUNT(lengths); i++) {
        tni_safetensors file;
        assert_ok(tni_safetensors_open(&file, "here", path));
        ck_assert_int_eq(truncate(path, lengths[i]), 0);
        ck_assert_ptr_null(tni_safetensors_tensor(&file, &file.entry[0]));
        char text[128];
        int64_t at = file.data;
        int64_t begin = lengths[i] > at ? lengths[i] : at;
        snprintf(text, sizeof text,
                 "became shorter while it was read: %" PRId64 " bytes missing at %" PRId64,
                 at + 4096 - begin, begin);
        check_error("truncated", "here", path, TN_E_IO, text);
        tni_safetensors_close(&file);
        write_header("f", "{\"a\":" T("F32", "[1024]", "[0,4096]") "}", 4096);
    }
    /* replaced while open: what was opened is what is read */
    tni_safetensors file;
    assert_ok(tni_safetensors_open(&file, "here", path));
    assert_ok(tn_save_tensors(tn_list_new(), NULL, path));
    assert_made(tni_safetensors_tensor(&file, &file.entry[0]));
    tni_safetensors_close(&file);
}
END_TEST

/* ---- what a power failure leaves: pages that never reached the disk -------------------------- */

enum { PAGE = 4096 };

/* The state of the model and the step that path gives, or 0 when it is refused. */
static uint64_t state_in(const char *path, bool checkpoint)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(3);
    tn_module *model = tn_linear_new(96, 400, (tn_linear_options){ 0 });
    uint64_t before = hash_of_module(model);
    tn_checkpoint c = { .model = model, .step = 0 };
    tn_status status = checkpoint ? tn_checkpoint_load(&c, path) : tn_load(model, path);
    uint64_t hash = hash_of_module(model);
    if (status != TN_OK) {
        ck_assert_msg(status == TN_E_FORMAT, "%s: %s", tn_status_name(status), tn_error());
        ck_assert_uint_eq(hash, before);
        hash = 0;
    }
    tn_error_clear();
    tn_module_drop(model);
    tn_scope_end(scope);
    return hash ? hash * 31 + (uint64_t)c.step : 0;
}

/* Its bytes, of a model with that seed; to be freed. */
static char *file_of(uint64_t seed, bool checkpoint, size_t *n)
{
    tn_manual_seed(seed);
    tn_module *model = tn_linear_new(96, 400, (tn_linear_options){ 0 });
    tn_checkpoint c = { .model = model, .step = (int64_t)seed };
    assert_ok(checkpoint ? tn_checkpoint_save(&c, in_folder("whole"))
                         : tn_save(model, in_folder("whole")));
    tn_module_drop(model);
    return read_bytes(in_folder("whole"), n);
}

/* A checkpoint of which some pages are missing, zeros, or those of the file it replaced. */
START_TEST(F8_torn_checkpoints_are_refused_or_whole)
{
    size_t n;
    char *old = file_of(1, true, &n);
    uint64_t was = state_in(write_bytes("f", old, n), true);
    char *new = file_of(2, true, &n);
    uint64_t is = state_in(write_bytes("f", new, n), true);
    ck_assert(was && is && was != is);
    char *torn = malloc(n);
    int points = 0;
    int read = 0;
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
            uint64_t hash = state_in(write_bytes("f", torn, length), true);
            ck_assert_msg(hash == 0 || (whole && (hash == is || hash == was)),
                          "way %d at %zu of %zu bytes was read", how, at, n);
            ck_assert_msg(hash || !whole, "way %d at %zu: %zu whole bytes were refused", how, at,
                          n);
            points++;
            read += hash != 0;
        }
    }
    ck_assert_int_ge(points, 300);
    ck_assert_int_ge(read, 3); /* nothing torn: at the very beginning */
    free(torn);
    free(new);
    free(old);
}
END_TEST

/* Files of weights carry no checksum: other programs rewrite them. Lengths and header count. */
START_TEST(F8_truncated_weights_are_refused)
{
    size_t n;
    char *bytes = file_of(1, false, &n);
    for (size_t at = 0; at < n; at += PAGE)
        for (size_t k = 0; k < 3; k++)
            if (at + k >= 1 && at + k - 1 < n)
                ck_assert_uint_eq(state_in(write_bytes("f", bytes, at + k - 1), false), 0);
    memset(bytes, 0, PAGE);
    ck_assert_uint_eq(state_in(write_bytes("f", bytes, n), false), 0);
    free(bytes);
}
END_TEST

START_TEST(a_checksum_that_is_wrong_or_missing)
{
    size_t n;
    char *bytes = file_of(1, true, &n);
    char *digits = strstr(bytes + 8, "tenon.crc32") + 14;
    ck_assert_int_eq(digits - bytes, TNI_CHECKSUM_AT);
    char was[9] = { 0 };
    memcpy(was, digits, 8);
    memcpy(digits, "0123abcd", 8);
    tn_module *model = tn_linear_new(96, 400, (tn_linear_options){ 0 });
    tn_checkpoint c = { .model = model };
    const char *path = write_bytes("f", bytes, n);
    char text[128];
    snprintf(text, sizeof text,
             "the checksum is %s, not 0123abcd: damaged, or changed by another program", was);
    ck_assert_int_eq(tn_checkpoint_load(&c, path), TN_E_FORMAT);
    check_error("digits", "tn_checkpoint_load", path, TN_E_FORMAT, text);
    memcpy(digits - 14, "other", 5);
    ck_assert_int_eq(tn_checkpoint_load(&c, write_bytes("f", bytes, n)), TN_E_FORMAT);
    check_error("no key", "tn_checkpoint_load", path, TN_E_FORMAT,
                "a checkpoint without its checksum");
    tn_module_drop(model);
    free(bytes);
}
END_TEST

/* ---- IDX ------------------------------------------------------------------------------------- */

static const unsigned char idx[] = { 0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255 };

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
        { "<!DOCTYPE html>", 15, "this looks like HTML, not like IDX: was a web page saved?" },
        { "\0\0\7\1\0\0\0\1\1", 9,
          "begins with 00 00 07 01: want 00 00, a type (08 to 0e) and 1 to 4 axes" },
        { "\0\0\x0a\1\0\0\0\1\1", 9,
          "begins with 00 00 0a 01: want 00 00, a type (08 to 0e) and 1 to 4 axes" },
        { "\0\0\x0f\1\0\0\0\1\1", 9,
          "begins with 00 00 0f 01: want 00 00, a type (08 to 0e) and 1 to 4 axes" },
        { "\0\0\x08\5\0\0\0\1\1", 9,
          "begins with 00 00 08 05: want 00 00, a type (08 to 0e) and 1 to 4 axes" },
        { "\0\0\x08\0\1", 5,
          "begins with 00 00 08 00: want 00 00, a type (08 to 0e) and 1 to 4 axes" },
        { "\1\0\x08\1\0\0\0\1\1", 9,
          "begins with 01 00 08 01: want 00 00, a type (08 to 0e) and 1 to 4 axes" },
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
    assert_null(tn_idx_load(in_folder("nothing")), TN_E_IO, "No such file or directory");
    assert_null(tn_idx_load(folder), TN_E_IO, "is a folder: want a regular file");
    ck_assert_ptr_null(tn_idx_load(NULL));
    assert_error(TN_E_INVALID, "path");
    /* no values at all are fine */
    tn_tensor *t = tn_idx_load(write_bytes("f", "\0\0\x08\2\0\0\0\0\0\0\0\5", 12));
    assert_made(t);
    ck_assert_int_eq(tn_size(t, 1), 5);
}
END_TEST

START_TEST(H5_gz_is_whole_or_refused)
{
    size_t size;
    unsigned char *packed = gzip(idx, sizeof idx, 6, &size);
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
    unsigned char *both = malloc(3 * size + 64);
    memcpy(both, packed, size);
    both[size] = 'x';
    no_idx("junk", both, size + 1, "bytes follow the compressed data: want none");
    both[size] = 0;
    no_idx("zero", both, size + 1, "bytes follow the compressed data: want none");
    memcpy(both + size, packed, size);
    no_idx("twice", both, 2 * size, "bytes follow the last value: want none");
    size_t s1;
    size_t s2;
    unsigned char *p1 = gzip(idx, 7, 6, &s1);
    unsigned char *p2 = gzip(idx + 7, sizeof idx - 7, 6, &s2);
    memcpy(both, p1, s1);
    memcpy(both + s1, p2, s2);
    t = tn_idx_load(write_bytes("two.gz", both, s1 + s2));
    assert_made(t);
    assert_values(t, 0, 1, 2, 3, 4, 5, 255);
    both[s1 + s2 - 8] ^= 1;
    no_idx("second checksum", both, s1 + s2, "incorrect data check");
    unsigned char *again = gzip(packed, size, 6, &s1);
    no_idx("gz.gz", again, s1, "the contents are compressed twice");
    free(again);
    free(p2);
    free(p1);
    free(both);
    free(packed);
}
END_TEST

/* 64 MiB out of 64 KiB: read when the header says so, never more than that. */
START_TEST(H5_bomb)
{
    enum { VALUES = 64 << 20 };
    unsigned char *bytes = calloc(8 + VALUES, 1);
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
    free(bytes);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("badfiles");
    TCase *t = file_case(suite, "safetensors");
    tcase_add_loop_test(t, FF_01_H2_headers, 0, COUNT(headers));
    tcase_add_test(t, FF_01_good_headers);
    tcase_add_test(t, H2_sizes_before_the_header);
    tcase_add_test(t, H2_large_headers);
    tcase_add_test(t, H4_other_writers);
    tcase_add_test(t, H6_the_largest_headers_are_read_quickly);
    tcase_add_test(t, limits_can_be_set);
    tcase_add_test(t, H2_values);
    tcase_add_test(t, all_that_does_not_fit_is_said_at_once);
    tcase_add_test(t, H2_what_is_no_regular_file);
    tcase_add_test(t, H2_truncated_while_open);
    t = file_case(suite, "torn");
    tcase_add_test(t, F8_torn_checkpoints_are_refused_or_whole);
    tcase_add_test(t, F8_truncated_weights_are_refused);
    tcase_add_test(t, a_checksum_that_is_wrong_or_missing);
    t = file_case(suite, "idx");
    tcase_add_test(t, H2_idx);
    tcase_add_test(t, H5_gz_is_whole_or_refused);
    tcase_add_test(t, H5_bomb);
    return suite;
}
