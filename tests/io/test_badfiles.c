/*
 * test_badfiles.c - files that are not what they claim to be: each is refused with its exact status
 * and message, and the model that was to be loaded stays bit for bit what it was. Here:
 * safetensors; torn checkpoints: checkpoint_folder.c; IDX: badfiles_idx.c; .pt: badfiles_pt.c.
 *
 * Truth: files written byte by byte here, by the description of each format.
 *
 * Seen to fail: in src/io/safetensors.c, check_ranges() without the comparison with at: five rows;
 * check_range() without the comparison with the shape's bytes: four rows; in input.c, without
 * S_ISREG: a folder; tni_file_error() passing bytes on as they are: an escape in the message.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/cases.h"
#include "io/safetensors.h"
#include "nn/module.h"

void check_error(const char *what, const char *function, const char *path, tn_status status,
                 const char *text)
{
    char whole[2048];
    size_t n = strlen(text);
    bool begins = n > 3 && !strcmp(text + n - 3, "...");
    n = (size_t)snprintf(whole, sizeof whole, "%s: %s: %s", function, path, text);
    ck_assert_msg(tn_error_status() == status, "%s: %s: %s", what,
                  tn_status_name(tn_error_status()), tn_error());
    ck_assert_msg(begins ? !strncmp(tn_error(), whole, n - 3) : !strcmp(tn_error(), whole),
                  "%s:\n  \"%s\", not\n  \"%s\"", what, tn_error(), whole);
    tn_error_clear();
}

void refuses(const char *what, const char *path, tn_status status, const char *text,
             bool as_checkpoint)
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
    if (as_checkpoint) {
        ck_assert_int_eq(tn_checkpoint_load(&c, path), status);
        check_error(what, "tn_checkpoint_load", path, status, text);
        ck_assert_int_eq(c.step, 7);
    }
    tn_scope_end(scope);
    ck_assert_msg(tn_live_tensors() == live, "%s: %d tensors stay", what,
                  (int)(tn_live_tensors() - live));
    ck_assert_msg(hash_of_module(model) == hash, "%s changed the model", what);
    tn_module_drop(model);
}

static void refused(const char *what, const char *path, tn_status status, const char *text)
{
    refuses(what, path, status, text, true);
}

/* ---- headers --------------------------------------------------------------------------------- */

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define A(dtype, shape, offsets) "{\"a\":" T(dtype, shape, offsets) "}"
#define JSON "the header is not JSON: "
#define DTYPES "want F32, F64, BF16, F16, I64, I32, U8 or BOOL"
#define AB(dtype, shape, offsets)                                                                  \
    "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T(dtype, shape, offsets) "}"
#define MOST "9223372036854775807"
#define ABOVE JSON "an integer above " MOST "..."
#define TOO_LARGE(shape) "a: shape " shape ": its size overflows"
#define NO_SIZE "of shape is not an integer >= 0"
#define NO_OFFSETS "a: data_offsets is not a list of two integers >= 0"

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
    { "{\"\":" T("F32", "[1]", "[0,4]") "}", 4, "a tensor's name has 0 bytes: want 1 to 1024" },
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
    { A("F9", "[1]", "[0,4]"), 4, "a: dtype F9: " DTYPES },
    { A("f32", "[1]", "[0,4]"), 4, "a: dtype f32: " DTYPES },
    { A("F4", "[1]", "[0,1]"), 1, "a: data_offsets hold 1 bytes: F4 [1] takes 1" },
    { A("F8_E4M3", "[2]", "[0,1]"), 1, "a: data_offsets hold 1 bytes: F8_E4M3 [2] takes 2" },
    { A("F32", "1", "[0,4]"), 4, "a: shape is not a list" },
    { A("F32", "null", "[0,4]"), 4, "a: shape is not a list" },
    { A("F32", "[-1]", "[0,4]"), 4, "a: size 0 " NO_SIZE },
    { A("F32", "[1,-0.0]", "[0,4]"), 4, "a: size 1 " NO_SIZE },
    { A("F32", "[1.0]", "[0,4]"), 4, "a: size 0 " NO_SIZE },
    { A("F32", "[1e0]", "[0,4]"), 4, "a: size 0 " NO_SIZE },
    { A("F32", "[\"1\"]", "[0,4]"), 4, "a: size 0 " NO_SIZE },
    { A("F32", "[[1]]", "[0,4]"), 4, "a: size 0 " NO_SIZE },
    { A("F32", "[01]", "[0,4]"), 4, JSON "..." },
    { A("F32", "[9223372036854775807,9223372036854775807]", "[0,4]"), 4,
      TOO_LARGE("[9223372036854775807,9223372036854775807]") },
    { A("F32", "[4611686018427387904]", "[0,4]"), 4, TOO_LARGE("[4611686018427387904]") },
    { A("F64", "[1152921504606846976]", "[0,0]"), 0, TOO_LARGE("[1152921504606846976]") },
    { A("F32", "[4294967296,4294967296]", "[0,0]"), 0, TOO_LARGE("[4294967296,4294967296]") },
    { A("F32", "[0,4294967296,4294967296]", "[0,0]"), 0, TOO_LARGE("[0,4294967296,4294967296]") },
    { A("U8", "[2305843009213693952]", "[0,4]"), 4, TOO_LARGE("[2305843009213693952]") },
    { A("F32", "[9223372036854775808]", "[0,4]"), 4, ABOVE },
    { A("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4,
      "a: more than 8 axes: at most so many are possible" },
    { A("F32", "[1]", "[0]"), 4, NO_OFFSETS },
    { A("F32", "[1]", "[0,4,4]"), 4, NO_OFFSETS },
    { A("F32", "[1]", "{\"begin\":0}"), 4, NO_OFFSETS },
    { A("F32", "[1]", "[0.0,4.0]"), 4, NO_OFFSETS },
    { A("F32", "[1]", "[-4,0]"), 4, NO_OFFSETS },
    { A("F32", "[1]", "[4,0]"), 4, "a: data_offsets [4,0]: want begin <= end <= 4" },
    { A("F32", "[1]", "[0,8]"), 4, "a: data_offsets [0,8]: want begin <= end <= 4" },
    { A("F32", "[1]", "[0,4]"), 3, "a: data_offsets [0,4]: want begin <= end <= 3" },
    { A("F32", "[1]", "[0,3]"), 4, "a: data_offsets hold 3 bytes: F32 [1] takes 4" },
    { A("F32", "[]", "[0,0]"), 0, "a: data_offsets hold 0 bytes: F32 [] takes 4" },
    { A("F32", "[0]", "[0,4]"), 4, "a: data_offsets hold 4 bytes: F32 [0] takes 0" },
    { A("F32", "[1]", "[0,9223372036854775808]"), 4, ABOVE },
    { A("F32", "[1]", "[9223372036854775807,9223372036854775807]"), 4,
      "a: data_offsets [" MOST "," MOST "]: want begin <= end <= 4" },
    { AB("F32", "[1]", "[3,7]"), 7, "b begins at 3: inside what lies before it, want 4" },
    { AB("F32", "[1]", "[0,4]"), 4, "b begins at 0: inside what lies before it, want 4" },
    { AB("F32", "[1]", "[5,9]"), 9, "b begins at 5: behind a hole, want 4" },
    { AB("F32", "[0]", "[2,2]"), 4, "b begins at 2: inside what lies before it, want 4" },
    { A("F32", "[1]", "[1,5]"), 5, "a begins at 1: behind a hole, want 0" },
    { A("F32", "[1]", "[0,4]"), 5, "1 bytes follow the last tensor: want none" },
    { "{}", 1, "1 bytes follow the last tensor: want none" },
    { "{\"a\\u001b[2J\\nb\":" T("F3", "[]", "[0,4]") "}", 4, /* no escapes in messages */
      "a?[2J?b: dtype F3: " DTYPES },
    { "{\"__metadata__\":{\"tenon.versions\":\"7\"}}", 0, "tenon.versions is not an object" },
    { "{\"__metadata__\":{\"tenon.versions\":\"{\\\"a\\\":0}\"}}", 0,
      "tenon.versions: a: not a number from 1" },
};

START_TEST(FF_01_H2_headers)
{
    const char *path = write_header("bad", headers[_i].header, headers[_i].n);
    const bool of_lists = strstr(headers[_i].header, "tenon.versions"); /* read after the header */
    refuses(headers[_i].header, path, TN_E_FORMAT, headers[_i].text, !of_lists);
    if (of_lists)
        assert_fails(tn_checkpoint_load(&(tn_checkpoint){ 0 }, path), TN_E_FORMAT,
                     "not a checkpoint");
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
        const char *bytes;
        size_t n;
        const char *text;
    } others[] = {
        { "\4\0\0\0\0\0\0\0{\0 }", 12, "a zero byte in the header" },
        { "\3\0\0\0\0\0\0\0{}\0", 11, "a zero byte in the header" },
        { "GGUF\3\0\0\0\1\0", 10, "not a safetensors file: a GGUF file" },
        { "\x89HDF\r\n\x1a\n\0\0", 10, "not a safetensors file: an HDF5 file" },
        { "\x1f\x8b\x08\0\1\2\3\4\0\3", 10, "not a safetensors file: a file compressed by gzip" },
        { "\x93NUMPY\1\0v\0", 10, "not a safetensors file: an array of NumPy's" },
        { "<!DOCTYPE html><html>", 21,
          "not a safetensors file: a page of HTML or XML, as a failed download leaves" },
        { "\x08\x0a\x12\x07pytorch\x1a\x06"
          "2.15.0",
          19, "not a safetensors file: perhaps an ONNX model" },
        { "\x80\x04\x95\x0a\x10\0\0\0\0\0", 10,
          "not a safetensors file: a pickle of Python's, but not of torch.save" },
        { "epoch 1\nloss 2", 14, "not a safetensors file: text" },
        { "version https://git-lfs.github.com/spec/v1", 42,
          "not a safetensors file: a pointer of Git LFS, not the file itself (git lfs pull)" },
        { "And\tit came\n", 12, "not a safetensors file: text" },
    };
    for (int i = 0; i < COUNT(others); i++)
        refused(others[i].text, write_bytes("f", others[i].bytes, others[i].n), TN_E_FORMAT,
                others[i].text);
}
END_TEST

/* A file of one tensor named a, with this header; it must be read. */
static void assert_reads(const char *header)
{
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(write_tensors("f", header, &(float){ 1 }, 4), &metadata);
    ck_assert_msg(list && list->n == 1 && tn_item(list->entry[0].tensor) == 1, "%s: %s", header,
                  tn_error());
    ck_assert_int_eq(metadata.n, 0);
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
    refused("too deep", write_header("f", header, 4), TN_E_FORMAT,
            JSON "it is nested too deeply...");
}
END_TEST

START_TEST(H2_large_headers)
{
    enum { MORE = (16 << 20) + 1 };
    char *bytes = owned(malloc(8 + MORE));
    memset(bytes, ' ', 8 + MORE);
    memcpy(bytes, "\1\0\0\1\0\0\0\0{}", 10);
    refused("16 MiB + 1", write_bytes("f", bytes, 8 + MORE), TN_E_FORMAT,
            "a header of 16777217 bytes: at most 16777216 are read (tn_set_file_limits)");
    memcpy(bytes, "\0\0\0\1\0\0\0\0{}", 10);
    assert_made(tn_load_tensors(write_bytes("f", bytes, 8 + MORE - 1), NULL));
    /* no reader recurses into nested lists */
    for (size_t depth = 2000; depth <= 2000000; depth *= 1000) {
        memcpy(bytes, "{\"a\":", 5);
        memset(bytes + 5, '[', depth);
        memset(bytes + 5 + depth, ']', depth);
        memcpy(bytes + 5 + 2 * depth, "}", 2);
        refused("deep", write_header("f", bytes, 0), TN_E_FORMAT, "a: is not an object");
    }
    /* 100,000 empty tensors; with a higher limit they are read */
    char *at = bytes;
    for (int i = 0; i < 100000; i++)
        at += sprintf(at, "%s\"%d\":" T("F32", "[0]", "[0,0]"), i ? "," : "{", i);
    strcpy(at, "}");
    refused("100,000 tensors", write_header("f", bytes, 0), TN_E_FORMAT,
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
        snprintf(text, sizeof text, "a tensor's name has %zu bytes: want 1 to 1024", n);
        refused("long name", write_header("f", header, 0), TN_E_FORMAT, text);
        free(header);
    }
    /* 65 axes */
    char axes[300] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1";
    for (int i = 1; i < 65; i++) strcat(axes, ",1");
    strcat(axes, "],\"data_offsets\":[0,1]}}");
    refused("65 axes", write_header("f", axes, 1), TN_E_FORMAT,
            "a: more than 8 axes: at most so many are possible");
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
        double began = cpu_seconds();
        tn_list *list = tn_load_tensors(path, NULL);
        double seconds = cpu_seconds() - began;
        assert_made(list);
        ck_assert_int_eq(list->n, which == 2 ? 1 : 65536);
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
    const char *path = write_tensors("f", "{\"a\":" T("BOOL", "[2]", "[0,2]") "}", "\0\2", 2);
    assert_null(tn_load_tensors(path, NULL), TN_E_FORMAT, "a: byte 1 of BOOL is 2: want 0 or 1");
    /* any float is a value: NaN with its payload, infinities, signed zero, subnormals */
    static const uint32_t odd[] = { 0x7fc12345, 0xff800000, 0x7f800000, 0x80000000, 1, 0x7f800001 };
    path = write_tensors("f", "{\"a\":" T("F32", "[6]", "[0,24]") "}", odd, sizeof odd);
    tn_list *list = tn_load_tensors(path, NULL);
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
    tn_module *model = owned(tn_linear_new(2, 2, (tn_linear_options){ 0 }));
    uint64_t hash = hash_of_module(model);
    ck_assert_int_eq(tn_load(model, path), TN_E_NAME);
    static const char *const texts[] = { "tn_load: ",  "missing", "\"bias\"",
                                         "unexpected", "\"bia\"", "\"other\"",
                                         "weight",     "[3,2]",   "[2,2]" };
    for (int i = 0; i < COUNT(texts); i++)
        ck_assert_msg(strstr(tn_error(), texts[i]), "\"%s\" lacks %s", tn_error(), texts[i]);
    tn_error_clear();
    ck_assert_uint_eq(hash_of_module(model), hash);
}
END_TEST

/* ---- files that are not regular, or change while they are read ------------------------------- */

/* Names of every kind but a file's: what went wrong is in the message, however long the name is. */
START_TEST(H2_what_is_no_regular_file)
{
    char *longest = malloc(4097), *deep = malloc(4000), longer[600] = "";
    memset(longest, 'x', 4096), longest[4096] = 0;
    memset(longer, 'x', 300);
    for (int i = 0; i < 3999; i++) deep[i] = i % 2 ? '.' : '/';
    deep[3999] = 0; /* "/././." and so on: the root, by a long name */
    write_bytes("file", "x", 1);
    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    ck_assert_int_eq(symlink("loop", in_folder("loop")), 0);
    static const char *const other = "is not a regular file: want a regular file";
    static const char *const replaced =
        "is not a regular file: only a regular file can be replaced";
    const struct {
        const char *path, *read, *write;
    } rows[] = {
        { "", "path is empty: want the name of a file", "path is empty: want the name of a file" },
        { folder, "is a folder: want a regular file", "is a folder" },
        { "/", "is a folder: want a regular file", "is a folder" },
        { ".", "is a folder: want a regular file", "is a folder" },
        { "/dev/null", other, replaced },
        { "/dev/zero", other, replaced },
        { in_folder("fifo"), other, replaced },
        { in_folder("nothing"), "No such file or directory", NULL },
        { in_folder("none/f"), "No such file or directory", "there is no folder" },
        { in_folder("file/f"), "Not a directory", "Not a directory" },
        { in_folder("loop"), "Too many levels of symbolic links", "symbolic links" },
        { in_folder(longer), "File name too long", "File name too long" },
        { longest, "File name too long", "File name too long" },
        { deep, "is a folder", "is a folder" },
    };
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    for (int i = 0; i < COUNT(rows); i++) {
        tn_checkpoint c = { .model = m };
        const char *path = rows[i].path, *read = rows[i].read, *write = rows[i].write;
        tn_status status = *path ? TN_E_IO : TN_E_INVALID;
        if (*path && strlen(path) < 1000) refused(path, path, status, read);
        assert_fails(tn_load(m, path), status, read);
        assert_fails(tn_checkpoint_load(&c, path), status, read);
        assert_fails(tn_checkpoint_peek(path, NULL, NULL), status, read);
        assert_null(tn_load_tensors(path, NULL), status, read);
        assert_null(tn_idx_load(path), status, read);
        assert_null(tn_text_load(path, 0), status, read);
        if (!write) continue;
        assert_fails(tn_save(m, path), status, write);
        assert_fails(tn_save_tensors(tn_list_new(), NULL, path), status, write);
        assert_fails(tn_checkpoint_save(&c, path), status, write);
    }
    ck_assert_int_eq(files_in_folder(), 3);
    tn_module_drop(m);
    free(longest), free(deep);
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
        ck_assert_ptr_null(tni_unread_values(tni_safetensors_tensor(&file, &file.entry[0])));
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
    assert_made(tni_unread_values(tni_safetensors_tensor(&file, &file.entry[0])));
    tni_safetensors_close(&file);
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
    badfiles_idx_cases(suite);
    badfiles_npy_cases(suite);
    badfiles_pt_cases(suite);
    return suite;
}
