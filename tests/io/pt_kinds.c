/*
 * pt_kinds.c - the kinds of weight files that people have: checkpoints of several parts, PyTorch's
 * format before 1.6, TorchScript, archives of arrays, several files and their index.
 *
 * Truth: files made by PyTorch 2.15, NumPy and safetensors themselves, with what they hold
 * (golden/make_files.py); pickles put together by hand where no writer of today makes them.
 *
 * Seen to fail: in src/ext/pt/tree.c, an optimizer's state counted as a part: checkpoint.pt; in
 * src/ext/pt/read.c, places without the 8 bytes of a count: old_mixed.pt; in src/io/dtypes.c, no
 * sign in tni_widen(): foreign.pt; in src/io/load.c, _orig_mod kept: wrapped.pt; in
 * src/ext/pt/zip.c, DEFLATE_RATIO 1: deflated.npz.
 */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "archive.h"
#include "io/cases.h"
#include "scarce.h"

static const char *kind_path(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "files/%s", name);
    return golden_path(file);
}

/* All that expected.safetensors says of `of`, and nothing else, bit for bit. */
static void assert_expected(const tn_list *list, const char *of)
{
    const tn_list *expected = tn_load_tensors(kind_path("expected.safetensors"), NULL);
    assert_made(expected);
    const size_t n = strlen(of);
    int found = 0;
    for (int i = 0; i < expected->n; i++) {
        const char *name = expected->entry[i].name;
        if (strncmp(name, of, n) != 0 || name[n] != '/') continue;
        tn_tensor *t = tn_list_get(list, name + n + 1), *e = expected->entry[i].tensor;
        ck_assert_msg(t != NULL, "%s: %s", name, tn_error());
        ck_assert_msg(tn_dtype_of(t) == tn_dtype_of(e), "%s: %s", name,
                      tn_dtype_name(tn_dtype_of(t)));
        ck_assert_msg(tn_hash(t) == tn_hash(e), "%s: values or shape", name);
        found++;
    }
    ck_assert_int_gt(found, 0);
    ck_assert_msg(list->n == found, "%s: %d tensors, not %d", of, list->n, found);
}

static const struct {
    const char *file, *expected;
    tn_load_options o;
    int left_out;
    const char *report;
} kinds[] = {
    { "checkpoint.pt", NULL, { 0 }, 0, "taken: model (7 tensors)\n" },
    { "checkpoint.pt", NULL, { .key = "model" }, 0, "" },
    { "checkpoint.pt", "all.checkpoint.pt", { .key = "*" }, 0, "" },
    { "old_checkpoint.pt", NULL, { 0 }, 0, "taken: model (7 tensors)\n" },
    { "parts.pt", NULL, { .key = "ema.module" }, 0, "" },
    { "old_mixed.pt", NULL, { 0 }, 0, "" },
    { "list.pt", NULL, { .key = "*" }, 0, "" },
    { "protocol_3/archive.pt", NULL, { 0 }, 0, "" },
    { "protocol_3/old.pt", NULL, { 0 }, 0, "" },
    { "wrapped.pt", NULL, { .unwrap = true }, 0, "" },
    { "foreign.pt",
      NULL,
      { .widen = true, .skip_foreign = true },
      6,
      "left out: u64 (uint64), c64 (complex64), f8 (float8_e4m3fn), quantized (quantized), sparse "
      "(sparse), conj (a conjugate or negative view)\n" },
    { "foreign.safetensors",
      NULL,
      { .widen = true, .skip_foreign = true },
      3,
      "left out: u64 (U64), c64 (C64), f8 (F8_E4M3)\n" },
    { "scripted.pt", NULL, { 0 }, 0, "" },
    { "traced.pt", NULL, { 0 }, 0, "" },
    { "traced.pt", "constants.traced.pt", { .key = "constants" }, 0, "" },
    { "stored.npz", NULL, { 0 }, 0, "" },
    { "deflated.npz", NULL, { 0 }, 0, "" },
    { "safetensors.index.json", NULL, { 0 }, 0, "" },
    { "pytorch.index.json", NULL, { 0 }, 0, "" },
};

START_TEST(each_kind_is_read_as_its_writer_meant_it)
{
    tn_load_report report;
    const char *file = kinds[_i].file;
    tn_list *list = tn_load_tensors_with(kind_path(file), kinds[_i].o, NULL, &report);
    ck_assert_msg(list != NULL, "%s", tn_error());
    assert_expected(list, kinds[_i].expected ? kinds[_i].expected : file);
    ck_assert_int_eq(report.loaded, list->n);
    ck_assert_int_eq(report.left_out, kinds[_i].left_out);
    ck_assert_str_eq(report.text, kinds[_i].report);
}
END_TEST

static const struct {
    const char *file, *key, *text;
} refusals[] = {
    { "parts.pt", NULL,
      "a checkpoint: 1 tensor at the top, model (7 tensors), ema.module (7 tensors): want .key = "
      "\"model\" (\"*\": all of it)" },
    { "parts.pt", "ema.modul",
      "no part ema.modul in it: it has 1 tensor at the top, model (7 tensors), ema.module (7 "
      "tensors)" },
    { "parts.pt", "loss",
      "no tensors under loss in it: it has 1 tensor at the top, model (7 tensors), ema.module (7 "
      "tensors)" },
    { "checkpoint.pt", "modle",
      "no part modle in it: it has epoch 41, loss 0.1, name (a string), done True, nothing None, "
      "large (of no use), layers (a list), optimizer (an optimizer's state of 4 parameters), model "
      "(7 tensors)" },
    { "foreign.pt", NULL,
      "i8 is int8, which tenon has not: want the option widen, or skip_foreign" },
    { "foreign.safetensors", NULL,
      "u64 is U64, which tenon has not: want the option skip_foreign" },
    { "safetensors.index.json", "modle", "no part modle in it: it has body, norm" },
    { "stored.npz", "x", "no part x in it: it has a, b/c, d, e" },
};

START_TEST(what_does_not_fit_is_said_with_what_there_is)
{
    tn_load_options o = { .key = refusals[_i].key };
    char wanted[512];
    ck_assert_ptr_null(tn_load_tensors_with(kind_path(refusals[_i].file), o, NULL, NULL));
    snprintf(wanted, sizeof wanted, "/%s: %s", refusals[_i].file, refusals[_i].text);
    ck_assert_msg(strstr(tn_error(), wanted), "%s, not %s", tn_error(), wanted);
    tn_error_clear();
}
END_TEST

START_TEST(other_values_are_metadata)
{
    static const char *const pairs[][2] = {
        { "epoch", "41" },
        { "loss", "0.1" },
        { "name", "a run" },
        { "done", "True" },
        { "nothing", "None" },
        { "layers", "[3, 4.5]" },
        { "config.size", "(2, 3)" },
        { "config.7", "seven" },
        { "config.count.a", "2" },
        { "config.nested.1.a", "(2,)" },
        { "optimizer.param_groups.0.betas", "(0.9, 0.999)" },
        { "optimizer.param_groups.0.lr", "0.25" },
        { "optimizer.param_groups.0.params", "[0, 1, 2, 3]" },
    };
    static const char *const files[] = { "checkpoint.pt", "old_checkpoint.pt" };
    for (int f = 0; f < 2; f++) {
        tn_metadata metadata;
        assert_made(tn_load_tensors(kind_path(files[f]), &metadata));
        for (int i = 0; i < COUNT(pairs); i++) {
            const char *value = tn_metadata_get(&metadata, pairs[i][0]);
            ck_assert_msg(value && !strcmp(value, pairs[i][1]), "%s is %s", pairs[i][0], value);
        }
        ck_assert_ptr_null(tn_metadata_get(&metadata, "large"));
        ck_assert_ptr_null(tn_metadata_get(&metadata, "config.set"));
    }
}
END_TEST

/* Net of make_files.py. */
static tn_module *net_new(void)
{
    tn_module *m = tn_module_dict_new();
    tn_register_module(m, "body", NULL, tn_linear_new(3, 2, (tn_linear_options){ 0 }));
    tn_register_module(m, "norm", NULL, tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
    return owned(tn_module_done(m));
}

START_TEST(a_model_is_loaded_from_each)
{
    static const struct {
        const char *file;
        tn_load_options o;
    } files[] = { { "checkpoint.pt", { 0 } },
                  { "old_checkpoint.pt", { 0 } },
                  { "parts.pt", { .key = "ema.module" } },
                  { "wrapped.pt", { .unwrap = true } },
                  { "pytorch.index.json", { 0 } },
                  { "safetensors.index.json", { 0 } } };
    for (int i = 0; i < COUNT(files); i++) {
        tn_module *m = net_new();
        tn_load_report report;
        tn_status status = tn_load_with(m, kind_path(files[i].file), files[i].o, &report);
        ck_assert_msg(status == TN_OK, "%s", tn_error());
        ck_assert_int_eq(report.loaded, 7);
        assert_expected(tn_state_dict(m, ""), files[i].file);
    }
    /* versions of the part: the counter may lack only where BatchNorm's is 1 */
    tn_list *list = tn_load_tensors(kind_path("checkpoint.pt"), NULL);
    ck_assert_int_eq(tn_list_version(list, "norm"), 2);
    /* only the head fits: nothing changes, and what was left out is said even so */
    tn_module *m = net_new();
    const uint64_t before = hash_of_module(m);
    tn_load_report report;
    assert_fails(tn_load_with(m, kind_path("foreign.pt"),
                              (tn_load_options){ .widen = true, .skip_foreign = true }, &report),
                 TN_E_NAME, "missing");
    ck_assert_int_eq(report.left_out, 6);
    ck_assert_ptr_nonnull(strstr(report.text, "left out: u64 (uint64)"));
    ck_assert_uint_eq(hash_of_module(m), before);
}
END_TEST

START_TEST(only_wrappers_names_are_dropped)
{
    tn_list *list = tn_list_new();
    const char *path = in_folder("w.safetensors");
    assert_ok(tn_list_add(list, "module.module.a.module.w", tn_ones(TN_SHAPE(1))));
    assert_ok(tn_list_add(list, "module._orig_mod.a._orig_modern", tn_ones(TN_SHAPE(1))));
    assert_ok(tn_save_tensors(list, NULL, path));
    tn_list *read = tn_load_tensors_with(path, (tn_load_options){ .unwrap = true }, NULL, NULL);
    assert_made(read);
    ck_assert(tn_list_has(read, "a.module.w"));
    ck_assert(tn_list_has(read, "a._orig_modern"));
    assert_ok(tn_list_add(list, "a.module.w", tn_ones(TN_SHAPE(1))));
    assert_ok(tn_save_tensors(list, NULL, path));
    ck_assert_ptr_null(tn_load_tensors_with(path, (tn_load_options){ .unwrap = true }, NULL, NULL));
    ck_assert_msg(strstr(tn_error(), "want names that differ"), "%s", tn_error());
    tn_error_clear();
}
END_TEST

START_TEST(a_checkpoint_of_tenons_gives_its_model)
{
    tn_module *m = net_new(), *other = net_new();
    const char *path = in_folder("run.safetensors");
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ .model = m, .step = 3 }, path));
    const uint64_t before = hash_of_module(other);
    assert_fails(tn_load(other, path), TN_E_FORMAT,
                 "a checkpoint of tenon's: want .key = \"model\" for its model, or "
                 "tn_checkpoint_load");
    ck_assert_uint_eq(hash_of_module(other), before);
    assert_ok(tn_load_with(other, path, (tn_load_options){ .key = "model" }, NULL));
    ck_assert_uint_eq(hash_of_module(other), hash_of_module(m));
}
END_TEST

/* Neither its tensors nor a model are loaded, nothing changes, and this is said. */
static void refused(const char *what, const char *path, const char *text)
{
    tn_module *m = net_new();
    const uint64_t before = hash_of_module(m);
    const int64_t live = tn_live_tensors();
    tn_scope scope = tn_scope_begin();
    ck_assert_msg(!tn_load_tensors(path, NULL), "%s was read", what);
    ck_assert_msg(strstr(tn_error(), text), "%s: %s, not %s", what, tn_error(), text);
    tn_error_clear();
    assert_fails(tn_load(m, path), TN_E_FORMAT, text);
    tn_scope_end(scope);
    ck_assert_uint_eq(hash_of_module(m), before);
    ck_assert_int_eq(tn_live_tensors(), live);
}

/* ---- archives -------------------------------------------------------------------------------- */

static unsigned char *bytes_of(const char *name, size_t *n)
{
    return owned(read_bytes(kind_path(name), n));
}

START_TEST(deflated_entries_are_bounded_and_checked)
{
    size_t n;
    unsigned char *b = bytes_of("deflated.npz", &n);
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 500 }));
    assert_fails(tn_load_tensors(kind_path("deflated.npz"), NULL) ? TN_OK : tn_error_status(),
                 TN_E_FORMAT, "are inflated in all (tn_set_file_limits)");
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
    /* an entry that says it is more than deflate can make of so little */
    unsigned char *entry = memmem(b, n, "PK\1\2", 4);
    ck_assert_ptr_nonnull(entry);
    unsigned char size = entry[26];
    entry[26] = 0x10; /* 1 MiB and something of some hundred bytes */
    ck_assert_ptr_null(tn_load_tensors(write_bytes("x.npz", b, n), NULL));
    ck_assert_msg(strstr(tn_error(), "are inflated in all (tn_set_file_limits), and 1032 from 1"),
                  "%s", tn_error());
    tn_error_clear();
    entry[26] = size;
    /* each byte of the first entry's data: read as it was, or refused */
    const size_t begin = 30 + 5 + 20, end = begin + 60;
    for (size_t i = begin; i < end; i++) {
        b[i] ^= 0x10;
        const char *path = write_bytes("x.npz", b, n);
        ck_assert_msg(!tn_load_tensors(path, NULL), "byte %zu", i);
        ck_assert_int_eq(tn_error_status(), TN_E_FORMAT);
        tn_error_clear();
        b[i] ^= 0x10;
    }
}
END_TEST

/* What is written is read back, and is entry for entry what numpy.savez writes. */
START_TEST(arrays_are_written_as_numpy_does)
{
    size_t n, m;
    tn_list *list = tn_load_tensors(kind_path("stored.npz"), NULL);
    assert_made(list);
    const char *path = in_folder("a.npz");
    assert_ok(tn_save_tensors(list, NULL, path));
    assert_expected(tn_load_tensors(path, NULL), "stored.npz");
    char *ours = owned(read_bytes(path, &n)),
         *theirs = owned(read_bytes(kind_path("stored.npz"), &m));
    const char *array = memmem(theirs, m, "\x93NUMPY", 6); /* a: 128 bytes of header, 6 floats */
    ck_assert_ptr_nonnull(array);
    ck_assert_ptr_nonnull(memmem(ours, n, array, 128 + 24));
    const char *key[] = { "k" }, *value[] = { "v" };
    assert_fails(tn_save_tensors(list, &(tn_metadata){ 1, key, value }, path), TN_E_INVALID,
                 "a NumPy file has no place for metadata: want a .safetensors file");
    assert_ok(tn_list_add(list, "half", tn_to_dtype(tn_ones(TN_SHAPE(2)), TN_BF16)));
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_DTYPE,
                 "half is bf16, which NumPy has not");
    char *after = owned(read_bytes(path, &m));
    ck_assert_uint_eq(n, m);
    ck_assert_mem_eq(ours, after, n);
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* ---- files in several parts ------------------------------------------------------------------ */

static void bad_index(const char *json, const char *text)
{
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "w", tn_ones(TN_SHAPE(2))));
    assert_ok(tn_save_tensors(list, NULL, in_folder("a.safetensors")));
    assert_ok(tn_save_tensors(list, NULL, in_folder("b.safetensors")));
    refused(json, write_bytes("m.index.json", json, strlen(json)), text);
}

START_TEST(bad_indexes)
{
#define NO_MAP                                                                                     \
    "JSON text without one \"weight_map\" of names and files: want weights, or the index of "      \
    "several files"
#define MAP(x) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" x "}}"
    bad_index("{}", NO_MAP);
    bad_index("{\"weight_map\":7}", NO_MAP);
    bad_index("{\"weight_map\":{\"w\":7}}", NO_MAP);
    bad_index(MAP("\"w\":\"a.safetensors\"") "x",
              "it is not JSON: something follows it at byte 64");
    bad_index("{\"weight_map\":{\"w\":\"a.saf", "it is not JSON: ");
    bad_index("{\"weight_map\":{},\"weight_map\":{}}", NO_MAP);
    bad_index(MAP("\"v\":\"a.safetensors\""), "v is not in a.safetensors");
    ck_assert_ptr_null(tn_load_tensors_with(in_folder("m.index.json"),
                                            (tn_load_options){ .skip_foreign = true }, NULL, NULL));
    tn_error_clear();
    bad_index(MAP("\"w\":\"a.safetensors\",\"v\":\"b.safetensors\""),
              "w is in b.safetensors and in another file");
    bad_index(MAP("\"w\":\"../a.safetensors\""),
              "the file \"../a.safetensors\": want the name of one beside it");
    bad_index(MAP("\"w\":\"m.index.json\""), "JSON text, named by an index: want weights");
    bad_index(MAP("\"w\":\"..\""), "the file \"..\": want the name of one beside it");
    const char *json = MAP("\"w\":\"a.safetensors\"");
    assert_made(tn_load_tensors(write_bytes("m.index.json", json, strlen(json)), NULL));
    const char *lost = MAP("\"w\":\"c.safetensors\"");
    assert_fails(tn_load(net_new(), write_bytes("n.index.json", lost, strlen(lost))), TN_E_IO,
                 "c.safetensors: No such file");
    assert_ok(tn_set_file_limits((tn_file_limits){ .header_bytes = 40 }));
    refused(json, in_folder("m.index.json"), "64 bytes: want at most 40");
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
}
END_TEST

/* A safetensors file of this header and these bytes. */
static const char *safetensors_of(const char *name, const char *header, const char *data, size_t n)
{
    char bytes[1024] = { 0 };
    const size_t length = strlen(header);
    bytes[0] = (char)length;
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, data, n);
    return write_bytes(name, bytes, 8 + length + n);
}

START_TEST(what_is_left_out_stays_out)
{
    const tn_load_options skip = { .skip_foreign = true };
    tn_load_report report;
    /* a tie to it */
    tn_list *list = tn_load_tensors_with(
        safetensors_of("t",
                       "{\"__metadata__\":{\"tenon.ties\":\"{\\\"b\\\":\\\"a\\\"}\"},\"a\":{"
                       "\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
                       "\0\0\0\0\0\0\0\0", 8),
        skip, NULL, &report);
    assert_made(list);
    ck_assert_int_eq(list->n, 0);
    ck_assert_int_eq(report.left_out, 1);
    /* of another part: not even that */
    list = tn_load_tensors_with(
        safetensors_of("p",
                       "{\"m.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"o.u\":{"
                       "\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                       "\7\1", 2),
        (tn_load_options){ .key = "m" }, NULL, &report);
    assert_made(list);
    ck_assert_int_eq(list->n, 1);
    ck_assert_int_eq(report.left_out, 0);
    /* an array of texts */
    static const char text[] = "\x93NUMPY\1\0\x38\0{'descr': '<U1', 'fortran_order': False, "
                               "'shape': (1,)}\na\0\0\0";
    const archive *a = archive_of((const member[]){ { "s.npy", text, sizeof text - 1 } }, 1);
    list = tn_load_tensors_with(write_bytes("s.npz", a->bytes, a->n), skip, NULL, &report);
    assert_made(list);
    ck_assert_str_eq(report.text, "left out: s (not of numbers)\n");
    ck_assert_ptr_null(tn_load_tensors(in_folder("s.npz"), NULL));
    ck_assert_msg(strstr(tn_error(), "s.npz: s.npy: dtype <U1"), "%s", tn_error());
    tn_error_clear();
}
END_TEST

/* A header of 123 bytes begins with what might be JSON. */
START_TEST(a_header_whose_length_is_a_brace)
{
    char header[128];
    snprintf(header, sizeof header, "%-123s",
             "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    assert_made(tn_load_tensors(safetensors_of("b", header, "\1", 1), NULL));
}
END_TEST

START_TEST(names_that_an_npz_cannot_have)
{
    tn_list *list = tn_list_new();
    const char *path = in_folder("n.npz");
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_INVALID, "no tensors");
    char name[1024];
    memset(name, 'n', sizeof name);
    name[1021] = 0;
    assert_ok(tn_list_add(list, name, tn_ones(TN_SHAPE(1))));
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_NAME, "want 1 to 1020 bytes of UTF-8");
    name[1020] = 0;
    tn_list *one = tn_list_new();
    assert_ok(tn_list_add(one, name, tn_ones(TN_SHAPE(1))));
    assert_ok(tn_save_tensors(one, NULL, path));
    assert_made(tn_load_tensors(path, NULL));
}
END_TEST

/* ---- small files that would make much -------------------------------------------------------- */

static char big[60000];
static size_t n_big;

static void put(const char *bytes, size_t n)
{
    ck_assert_uint_le(n_big + n, sizeof big);
    memcpy(big + n_big, bytes, n);
    n_big += n;
}
#define PUT(text) put(text, sizeof(text) - 1)

static void put_number(int i)
{
    const char text[] = { 'M', (char)(i & 255), (char)(i >> 8) };
    put(text, sizeof text);
}

static tn_metadata big_metadata;

static tn_list *read_big(const char *key)
{
    const member members[] = { { "m/data.pkl", big, n_big },
                               { "m/data/0", "\0\0\0\0", 4 },
                               { "m/version", "3\n", 2 } };
    const archive *a = archive_of(members, COUNT(members));
    return tn_load_tensors_with(write_bytes("big.pt", a->bytes, a->n),
                                (tn_load_options){ .key = key }, &big_metadata, NULL);
}

/* Without its bound the reader would need gigabytes or minutes. */
static void too_much(const char *key, const char *text)
{
    ck_assert_ptr_null(read_big(key));
    ck_assert_msg(strstr(tn_error(), text), "%s", tn_error());
    tn_error_clear();
}
#define ONE                                                                                        \
    "ctorch._utils\n_rebuild_tensor_v2\n((U\7storagectorch\nFloatStorage\nU\1"                     \
    "0U\3"                                                                                         \
    "cpuK\1tQK\0(K\1t(K\1t\x89NtR"

START_TEST(small_files_that_would_make_much)
{
    /* one text of 30 kB in 600 places */
    n_big = 0;
    PUT("\x80\2}(U\1w" ONE "U\1tX\x30\x75\0\0");
    for (int i = 0; i < 30000; i++) PUT("x");
    PUT("q\0");
    for (int i = 0; i < 600; i++) put_number(i), PUT("h\0");
    PUT("u.");
    too_much(NULL, "other values of more than 16777216 bytes");
    /* 300 tensors in 300 places */
    n_big = 0;
    PUT("\x80\2}(U\1a}(U\1w" ONE "q\0");
    for (int i = 1; i < 300; i++) put_number(i), PUT("h\0");
    PUT("uq\1");
    for (int i = 1; i < 300; i++) put_number(i), PUT("h\1");
    PUT("u.");
    too_much("*", "more than 65536 tensors");
    /* a dict that holds itself under equal keys */
    n_big = 0;
    PUT("\x80\2}q\0(");
    for (int i = 0; i < 1000; i++) PUT("U\1ah\0");
    PUT("u.");
    too_much("a.a.a.a.a.b", "want a smaller tree");
    /* one optimizer of many states in many places */
    n_big = 0;
    PUT("\x80\2}(U\1o}(U\5state}(");
    for (int i = 0; i < 4000; i++) put_number(i), PUT("}");
    PUT("uU\x0cparam_groups]uq\0");
    for (int i = 0; i < 6000; i++) put_number(i), PUT("h\0");
    PUT("u.");
    too_much(NULL, "want a smaller tree");
    /* that many in one tuple is nothing unusual; 16 of them are shown */
    n_big = 0;
    PUT("\x80\2}(U\1w" ONE "U\1t(");
    for (int i = 0; i < 9000; i++) PUT("K\1");
    PUT("tu.");
    assert_made(read_big(NULL));
    const char *shown = tn_metadata_get(&big_metadata, "t");
    ck_assert_str_eq(shown, "(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...)");
}
END_TEST

/* ---- the format before 1.6 ------------------------------------------------------------------- */

#define MAGIC "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define VERSION "\x80\x02M\xe9\x03."
#define SYSTEM "\x80\x02}X\x0d\0\0\0little_endian\x88s."
#define S(length, text) "U" length text
#define FLOATS(view)                                                                               \
    "(" S("\x07", "storage") "ctorch\nFloatStorage\n" S("\x05", "12345")                           \
        S("\x03", "cpu") "K\x03" view "tQ"
/* As Python 2 and PyTorch 0.1 wrote it: strings of bytes, a memo from 1, pairs in a list. */
#define PYTHON2(view)                                                                              \
    "\x80\x02"                                                                                     \
    "ccollections\nOrderedDict\nq\x01](]q\x02(" S(                                                 \
        "\x01",                                                                                    \
        "w") "ctorch._utils\n_rebuild_tensor\n(" FLOATS(view) "K\0(K\x02t(K\x01ttRee\x85R."
#define KEYS "\x80\x02]" S("\x05", "12345") "a."
#define DATA                                                                                       \
    "\x03\0\0\0\0\0\0\0"                                                                           \
    "\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40"

#define FILE_OF(text) write_bytes("old.pt", text, sizeof(text) - 1)

START_TEST(files_of_python_2)
{
    tn_list *list = tn_load_tensors(FILE_OF(MAGIC VERSION SYSTEM PYTHON2("N") KEYS DATA), NULL);
    assert_made(list);
    assert_values(tn_list_get(list, "w"), 0, 1, 2);
    /* a view of the storage from 1 on, as they had them before PyTorch 0.4 */
    list = tn_load_tensors(
        FILE_OF(MAGIC VERSION SYSTEM PYTHON2("(" S("\x01", "9") "K\x01K\x02t") KEYS DATA), NULL);
    assert_made(list);
    assert_values(tn_list_get(list, "w"), 0, 2, 3);
}
END_TEST

START_TEST(bad_files_of_the_old_format)
{
#define BAD(file, text) refused(text, FILE_OF(file), text)
    BAD(MAGIC, "the pickles, byte 15: the pickle ends without STOP");
    BAD("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x30",
        "the first pickle is not the number of PyTorch's format");
    BAD(MAGIC "\x80\x02M\xe8\x03.", "a version other than 1001 of the format before 1.6");
    BAD(MAGIC VERSION "\x80\x02}.", "its numbers are not little-endian");
    BAD(MAGIC VERSION "\x80\x02}X\x0d\0\0\0little_endian\x89s.",
        "its numbers are not little-endian");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N"), "the pickles, byte 178: the pickle ends without STOP");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N") "\x80\x02}.",
        "the list of storages' keys does not fit the 1 storages");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N") "\x80\x02].",
        "the list of storages' keys does not fit the 1 storages");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N") "\x80\x02]" S("\x05", "12346") "a.",
        "key 0 of the storages is of none");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N") KEYS "\x04\0\0\0\0\0\0\0",
        "storage 12345 at 190: want 3 elements of float32");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N") KEYS "\x03\0\0\0\0\0\0\0\0",
        "storage 12345 at 190: want 3 elements of float32");
    BAD(MAGIC VERSION SYSTEM PYTHON2("N") KEYS DATA "x", "1 bytes follow the storages");
}
END_TEST

/* ---- memory that runs out -------------------------------------------------------------------- */

static tn_status load_kind(void *user)
{
    const char *file = user;
    tn_metadata metadata;
    tn_load_report report;
    tn_scope scope = tn_scope_begin();
    tn_list *list = tn_load_tensors_with(
        kind_path(file), (tn_load_options){ .key = "*", .widen = true, .skip_foreign = true },
        &metadata, &report);
    tn_status status = list ? TN_OK : tn_error_status();
    tn_scope_end(scope);
    return status;
}

static void nothing_stays(void *user)
{
    (void)user;
}

START_TEST(out_of_memory)
{
    static const char *const files[] = { "checkpoint.pt", "old_checkpoint.pt",
                                         "foreign.pt",    "foreign.safetensors",
                                         "deflated.npz",  "pytorch.index.json" };
    scarce_install();
    ck_assert_int_gt(scarce_sweep(load_kind, nothing_stays, (void *)files[_i]), 2);
}
END_TEST

void pt_kinds_cases(Suite *suite)
{
    TCase *t = file_case(suite, "kinds");
    tcase_add_loop_test(t, each_kind_is_read_as_its_writer_meant_it, 0, COUNT(kinds));
    tcase_add_loop_test(t, what_does_not_fit_is_said_with_what_there_is, 0, COUNT(refusals));
    tcase_add_test(t, other_values_are_metadata);
    tcase_add_test(t, a_model_is_loaded_from_each);
    tcase_add_test(t, only_wrappers_names_are_dropped);
    tcase_add_test(t, a_checkpoint_of_tenons_gives_its_model);
    tcase_add_test(t, deflated_entries_are_bounded_and_checked);
    tcase_add_test(t, arrays_are_written_as_numpy_does);
    tcase_add_test(t, bad_indexes);
    tcase_add_test(t, what_is_left_out_stays_out);
    tcase_add_test(t, a_header_whose_length_is_a_brace);
    tcase_add_test(t, names_that_an_npz_cannot_have);
    tcase_add_test(t, small_files_that_would_make_much);
    tcase_add_test(t, files_of_python_2);
    tcase_add_test(t, bad_files_of_the_old_format);
    tcase_add_loop_test(t, out_of_memory, 0, 6);
}
