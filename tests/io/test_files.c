/*
 * test_files.c - tensors, modules and metadata in files, in safetensors and in PyTorch's format,
 * and what is said of arguments that are missing. Files that replace others: files_replace.c;
 * locks: files_lock.c.
 *
 * Truth: files written byte by byte here, the order of the reference safetensors writer.
 *
 * Bad files: test_badfiles.c, test_mutate.c. IDX, text, loaders, plots: test_data.c.
 *
 * Seen to fail: in src/io/safetensors_write.c, collect() without ties, and in safetensors_list.c,
 * without add_versions(): a test each; in src/ext/pt/write.c, entries in another order, and in
 * safetensors.c, two dtypes exchanged (FF_04_round_trip_of_every_dtype).
 */
#include <stdio.h>
#include <stdlib.h>

#include "io/cases.h"

/* ---- formats --------------------------------------------------------------------------------- */

/* Every dtype as a matrix, empty, single and in strides; written, read, and no tensor at all. */
START_TEST(FF_04_round_trip_of_every_dtype)
{
    static const tn_dtype dtypes[] = { TN_I64,  TN_F64, TN_F32, TN_I32, /* the reference's order */
                                       TN_BF16, TN_F16, TN_U8,  TN_BOOL };
    static const char *const files[] = { "all.safetensors", "all.pt", "all.pth" };
    const char *path = in_folder(files[_i]), *key[] = { "a \"key\"", "empty" };
    const char *value[] = { "line\nbreak, tab\t, \xc3\xa9", "" };
    bool pt = _i > 0; /* it has no place for metadata, and keeps the order */
    tn_metadata metadata = { 2, key, value }, back = { .n = 1 };
    tn_list *list = tn_list_new();
    for (int i = 0; i < COUNT(dtypes); i++) {
        tn_tensor *t = tn_to_dtype(random_f64(TN_SHAPE(3, 5), 0, 4, (uint64_t)i), dtypes[i]);
        const struct {
            const char *name;
            tn_tensor *t;
        } rows[] = { { "matrix", t },
                     { "empty", tn_full_as(TN_SHAPE(2, 0, 3), 0, dtypes[i], tn_cpu()) },
                     { "single", tn_full_as(TN_SCALAR, 1, dtypes[i], tn_cpu()) },
                     { "transposed", tn_transpose(t, 0, 1) },
                     { "strided", tn_slice(t, 1, 1, 5, 2) } };
        for (int k = 0; k < COUNT(rows); k++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%s", tn_dtype_name(dtypes[i]), rows[k].name);
            assert_ok(tn_list_add(list, name, rows[k].t));
        }
    }
    assert_ok(tn_list_add(list, "\xc3\xa9t\xc3\xa9", tn_ones(TN_SHAPE(1))));
    assert_ok(tn_save_tensors(list, pt ? NULL : &metadata, path));
    tn_list *read = tn_load_tensors(path, &back);
    assert_made(read);
    ck_assert_int_eq(read->n, list->n);
    for (int i = 0, at = 0; i < list->n; i++) {
        while (!pt && at < COUNT(dtypes) && dtypes[at] != tn_dtype_of(read->entry[i].tensor)) at++;
        ck_assert_int_lt(at, COUNT(dtypes));
        tn_tensor *t = tn_list_get(read, list->entry[i].name);
        assert_made(t);
        ck_assert_uint_eq(tn_hash(t), tn_hash(list->entry[i].tensor));
        ck_assert(tn_is_contiguous(t));
        if (pt) ck_assert_str_eq(read->entry[i].name, list->entry[i].name);
    }
    ck_assert_int_eq(back.n, pt ? 0 : 2);
    for (int i = 0; i < back.n; i++) ck_assert_str_eq(tn_metadata_get(&back, key[i]), value[i]);
    ck_assert_ptr_null(tn_metadata_get(&back, "nothing"));
    assert_ok(tn_save_tensors(tn_list_new(), NULL, path));
    read = tn_load_tensors(path, NULL);
    assert_made(read);
    ck_assert_int_eq(read->n, 0);
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* FF-01, FF-02: the reference writer's bytes for the same tensors. */
START_TEST(FF_02_layout_of_the_reference_writer)
{
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "b", tn_from_floats((float[]){ 1, 2 }, TN_SHAPE(2))));
    assert_ok(tn_list_add(list, "n", tn_from_ints((int64_t[]){ 7 }, TN_SCALAR)));
    assert_ok(tn_list_add(list, "a", tn_from_floats((float[]){ -1 }, TN_SHAPE(1, 1))));
    assert_ok(tn_list_add(list, "u", tn_full_as(TN_SHAPE(3), 9, TN_U8, tn_cpu())));
    const char *path = in_folder("f");
    const char *key = "format";
    const char *value = "pt";
    assert_ok(tn_save_tensors(list, &(tn_metadata){ 1, &key, &value }, path));
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[8,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
        "\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[20,23]}}";
    static const char data[] = "\7\0\0\0\0\0\0\0\0\0\x80\xbf\0\0\x80\x3f\0\0\0\x40\t\t\t";
    size_t n;
    size_t padded = (sizeof header - 1 + 7) / 8 * 8;
    char *bytes = owned(read_bytes(path, &n));
    ck_assert_uint_eq(n, 8 + padded + sizeof data - 1);
    ck_assert_int_eq((unsigned char)bytes[0] + 256 * (unsigned char)bytes[1], (int)padded);
    ck_assert_int_eq(memcmp(bytes + 8, header, sizeof header - 1), 0);
    for (size_t i = sizeof header - 1; i < padded; i++) ck_assert_int_eq(bytes[8 + i], ' ');
    ck_assert_int_eq(memcmp(bytes + 8 + padded, data, sizeof data - 1), 0);
}
END_TEST

/* Whether the header of a file has this text. */
static bool header_has(const char *path, const char *text)
{
    size_t n;
    char *bytes = read_bytes(path, &n);
    bool found = strstr(bytes + 8, text); /* no zero byte before the data */
    free(bytes);
    return found;
}

START_TEST(FF_03_lists_have_every_name)
{
    tn_tensor *w = random_as(TN_SHAPE(4), -1, 1, 1, TN_F32);
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "encoder", w));
    assert_ok(tn_list_add(list, "decoder", w));
    const char *path = in_folder("ties");
    assert_ok(tn_save_tensors(list, NULL, path));
    tn_list *read = tn_load_tensors(path, NULL);
    ck_assert_uint_eq(tn_hash(tn_list_get(read, "encoder")), tn_hash(w));
    ck_assert_uint_eq(tn_hash(tn_list_get(read, "decoder")), tn_hash(w));
    ck_assert(!tn_same_storage(tn_list_get(read, "encoder"), tn_list_get(read, "decoder")));
}
END_TEST

/* Twelve Linears; 10.weight is 2.weight and 3.weight, and 1.bias views 1.weight's memory. */
static tn_module *tied_new(void)
{
    tn_module *m = tn_module_list_new();
    for (int i = 0; i < 12; i++)
        assert_ok(tn_module_append(m, tn_linear_new(3, 3, (tn_linear_options){ 0 })));
    tn_tensor *w = tn_get_parameter(m, "2.weight");
    assert_ok(tn_module_set(m, "3.weight", w));
    assert_ok(tn_module_set(m, "10.weight", w));
    tn_tensor *row = tn_detach(tn_select(tn_get_parameter(m, "1.weight"), 0, 0));
    assert_ok(tn_module_set(m, "1.bias", row));
    return m;
}

/* Once, under the first name in the order of strcmp, as the reference's save_model does. */
START_TEST(FF_03_a_tie_of_a_model_is_stored_once)
{
    tn_manual_seed(1);
    tn_module *m = owned(tied_new());
    const char *path = in_folder("tied");
    assert_ok(tn_save(m, path));
    ck_assert(header_has(path, "\"tenon.ties\":\"{\\\"2.weight\\\":\\\"10.weight\\\","
                               "\\\"3.weight\\\":\\\"10.weight\\\"}\""));
    ck_assert(header_has(path, "\"10.weight\":{\"dtype\""));
    ck_assert(!header_has(path, "\"2.weight\":{\"dtype\""));
    ck_assert(!header_has(path, "\"3.weight\":{\"dtype\""));
    ck_assert(header_has(path, "\"1.weight\":{\"dtype\"")); /* another view: a tensor of its own */
    ck_assert(header_has(path, "\"1.bias\":{\"dtype\""));
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    assert_made(list);
    ck_assert_int_eq(list->n, 24);
    ck_assert_ptr_eq(tn_list_get(list, "2.weight"), tn_list_get(list, "10.weight"));
    ck_assert_ptr_eq(tn_list_get(list, "3.weight"), tn_list_get(list, "10.weight"));
    ck_assert_int_eq(metadata.n, 2); /* format and tenon.version: a tie is not among the strings */
    tn_module *other = owned(tied_new());
    assert_ok(tn_load(other, path));
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(other));
    tn_module *apart = owned(tn_module_list_new());
    for (int i = 0; i < 12; i++)
        assert_ok(tn_module_append(apart, tn_linear_new(3, 3, (tn_linear_options){ 0 })));
    assert_ok(tn_load(apart, path)); /* the list has every name */
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(apart));
    tn_checkpoint c = { .model = m, .step = 1 };
    assert_ok(tn_checkpoint_save(&c, in_folder("checkpoint")));
    ck_assert(
        header_has(in_folder("checkpoint"), "\\\"model.2.weight\\\":\\\"model.10.weight\\\""));
    tn_module *third = owned(tied_new());
    c.model = third;
    assert_ok(tn_checkpoint_load(&c, in_folder("checkpoint")));
    ck_assert_int_eq(c.metadata.n, 0);
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(third));
    assert_ok(tn_save_with(m, path, (tn_save_options){ .every_key = true }));
    ck_assert(header_has(path, "\"2.weight\":{\"dtype\""));
    ck_assert(!header_has(path, "tenon.ties"));
}
END_TEST

#define TENSOR(from, to) "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" #from "," #to "]}"

/* Before there was tenon.ties, tenon wrote a pair for each tie: those files are read as they
 * were. */
START_TEST(FF_03_ties_of_files_before)
{
    const char *path = write_header(
        "f",
        "{\"__metadata__\":{\"format\":\"pt\",\"tenon.version\":\"0.1.0\",\"chain\":\"tie\","
        "\"tie\":\"a\",\"lost\":\"nowhere\",\"b\":\"a\",\"\":\"a\",\"m\":\"__metadata__\"},"
        "\"a\":" TENSOR(0, 1) ",\"b\":" TENSOR(1, 2) ",\"pt\":" TENSOR(2, 3) "}",
        3);
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    assert_made(list);
    ck_assert_int_eq(list->n, 4); /* and no tensor "format" beside "pt" */
    ck_assert_ptr_eq(tn_list_get(list, "tie"), tn_list_get(list, "a"));
    ck_assert_ptr_ne(tn_list_get(list, "b"), tn_list_get(list, "a"));
    ck_assert_int_eq(metadata.n, 7);
    ck_assert_str_eq(tn_metadata_get(&metadata, "chain"), "tie");
    ck_assert_str_eq(tn_metadata_get(&metadata, "b"), "a");
    ck_assert_str_eq(tn_metadata_get(&metadata, "format"), "pt");
    ck_assert_ptr_null(tn_metadata_get(&metadata, "tie"));
    ck_assert_int_eq(tn_error_status(), TN_OK);
    assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = 3 }));
    assert_null(tn_load_tensors(path, NULL), TN_E_FORMAT,
                "3 tensors and 1 ties: at most 3 are read (tn_set_file_limits)");
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
}
END_TEST

/* Outside of tenon.ties, and of those files, a pair of strings is a pair of strings. */
START_TEST(FF_03_strings_are_no_ties)
{
    const char *path = write_header("f",
                                    "{\"__metadata__\":{\"epoch\":\"1\",\"best\":\"a\"},"
                                    "\"1\":" TENSOR(0, 1) ",\"a\":" TENSOR(1, 2) "}",
                                    2);
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    assert_made(list);
    ck_assert_int_eq(list->n, 2);
    ck_assert_int_eq(metadata.n, 2);
    ck_assert_str_eq(tn_metadata_get(&metadata, "epoch"), "1");
    /* through every writer and back, one that says which tenon it is too */
    static const tn_module_type type = { .name = "M", .size = sizeof(tn_module) };
    tn_module *m = owned_module(tn_module_new(&type)); /* freed when this function has returned */
    assert_ok(tn_register_parameter(m, "a", NULL, tn_zeros(TN_SHAPE(2))));
    assert_ok(tn_register_parameter(m, "pt", NULL, tn_zeros(TN_SHAPE(3))));
    const char *key[] = { "best" }, *value[] = { "a" };
    tn_metadata best = { 1, key, value };
    for (int tied = 0; tied < 2; tied++) {
        if (tied) assert_ok(tn_register_parameter(m, "z", NULL, tn_get_parameter(m, "a")));
        assert_ok(tn_save_with(m, path, (tn_save_options){ .metadata = &best }));
        list = tn_load_tensors(path, &metadata);
        assert_made(list);
        ck_assert_int_eq(list->n, 2 + tied);
        ck_assert_str_eq(tn_metadata_get(&metadata, "best"), "a");
        assert_ok(tn_load(m, path));
        assert_ok(tn_save_tensors(list, &metadata, path)); /* handed on, tenon.version and all */
        list = tn_load_tensors(path, &metadata);
        assert_made(list);
        ck_assert_int_eq(list->n, 2 + tied);
        ck_assert_str_eq(tn_metadata_get(&metadata, "best"), "a");
    }
    /* in a checkpoint too: of one part, and of none */
    const char *keys[] = { "best", "model.best" }, *values[] = { "a", "model.a" };
    tn_checkpoint c = { .model = m, .metadata = { 2, keys, values } };
    assert_ok(tn_checkpoint_save(&c, path));
    assert_ok(tn_checkpoint_load(&c, path));
    ck_assert_str_eq(tn_metadata_get(&c.metadata, "best"), "a");
    ck_assert_str_eq(tn_metadata_get(&c.metadata, "model.best"), "model.a");
}
END_TEST

/* Ties that a file names count only where they fit the tensors. */
START_TEST(FF_03_ties_that_do_not_fit)
{
    static const struct {
        const char *ties, *error;
        int n;
    } rows[] = {
        { "{}", NULL, 2 },
        { "{\\\"tie\\\":\\\"a\\\"}", NULL, 3 },
        { "{\\\"tie\\\":\\\"none\\\",\\\"b\\\":\\\"a\\\",\\\"\\\":\\\"a\\\"}", NULL, 2 },
        { "{\\\"t\\\":\\\"a\\\",\\\"t\\\":\\\"b\\\"}", "tenon.ties: t is there twice", 0 },
        { "[]", "tenon.ties is not an object", 0 },
        { "{\\\"t\\\":1}", "tenon.ties: t is not a string", 0 },
        { "{\\\"t\\\"}", "tenon.ties is not JSON: want : at byte 4", 0 },
        { "{} x", "tenon.ties is not JSON: something follows it at byte 3", 0 },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char header[512];
        snprintf(header, sizeof header,
                 "{\"__metadata__\":{\"tenon.version\":\"9\",\"tenon.ties\":\"%s\",\"c\":\"a\"},"
                 "\"a\":" TENSOR(0, 1) ",\"b\":" TENSOR(1, 2) "}",
                 rows[i].ties);
        tn_list *list = tn_load_tensors(write_header("f", header, 2), NULL);
        ck_assert_msg(!list == !!rows[i].error, "%s: %s", rows[i].ties, tn_error());
        if (list) ck_assert_int_eq(list->n, rows[i].n);
        if (rows[i].error) assert_error(TN_E_FORMAT, rows[i].error);
    }
}
END_TEST

/* The version of each module's state goes along, where it is not 1. */
START_TEST(SD_05_versions_in_files)
{
    tn_module *m = tn_sequential(tn_linear_new(3, 4, (tn_linear_options){ 0 }),
                                 tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 }));
    const char *path = in_folder("m");
    assert_ok(tn_save(m, path));
    ck_assert(header_has(path, "\"tenon.versions\":\"{\\\"1\\\":2}\""));
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    ck_assert_int_eq(tn_list_version(list, "1"), 2);
    ck_assert_int_eq(tn_list_version(list, "0"), 0);
    ck_assert_ptr_null(tn_metadata_get(&metadata, "tenon.versions"));
    /* a list that was read is written with what it has recorded */
    assert_ok(tn_save_tensors(list, &metadata, path));
    list = tn_load_tensors(path, NULL);
    ck_assert_int_eq(tn_list_version(list, "1"), 2);
    /* LD-13: version 2 wants the counter, a file that records nothing may lack it */
    assert_ok(tn_list_remove(list, "1.num_batches_tracked"));
    assert_ok(tn_save_tensors(list, NULL, path));
    assert_fails(tn_load(m, path), TN_E_NAME, "1.num_batches_tracked");
    assert_ok(tn_list_set_version(list, "1", 1));
    assert_ok(tn_save_tensors(list, NULL, path));
    ck_assert(!header_has(path, "tenon.versions"));
    assert_ok(tn_load(m, path));
    /* of a checkpoint's model */
    tn_checkpoint c = { .model = m };
    assert_ok(tn_checkpoint_save(&c, path));
    ck_assert(header_has(path, "\"tenon.versions\":\"{\\\"model.1\\\":2}\""));
    assert_ok(tn_checkpoint_load(&c, path));
    tn_module_drop(m);
    m = tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 });
    assert_ok(tn_save(m, path));
    ck_assert(header_has(path, "\"tenon.versions\":\"{\\\"\\\":2}\""));
    ck_assert_int_eq(tn_list_version(tn_load_tensors(path, NULL), ""), 2);
    tn_module_drop(m);
}
END_TEST

/* What buffers are goes along as well, and a description that is no good does no harm. */
START_TEST(roles_in_files)
{
    static const struct {
        const char *roles;
        unsigned a, b; /* of the tensors a and b */
    } rows[] = {
        { "{}", 0, 0 },
        { "{\\\"b\\\":\\\"counter\\\",\\\"a\\\":\\\"direction\\\"}", TN_DIRECTION, TN_COUNTER },
        { "{\\\"none\\\":\\\"counter\\\",\\\"a\\\":\\\"king\\\",\\\"b\\\":\\\"\\\"}", 0, 0 },
        { "{\\\"a\\\":\\\"cache\\\",\\\"b\\\":1}", TN_CACHE & TN_ROLE, 0 },
        { "[]", 0, 0 },
        { "{", 0, 0 },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char header[512];
        snprintf(header, sizeof header,
                 "{\"__metadata__\":{\"tenon.roles\":\"%s\"},\"a\":" TENSOR(0, 1) ",\"b\":" TENSOR(
                     1, 2) "}",
                 rows[i].roles);
        tn_list *list = tn_load_tensors(write_header("f", header, 2), NULL);
        assert_made(list);
        ck_assert_msg(list->entry[0].role == rows[i].a && list->entry[1].role == rows[i].b &&
                          list->entry[0].kind == (rows[i].a ? TN_BUFFER : TN_PARAMETER),
                      "%s", rows[i].roles);
    }
    tn_module *m = owned(tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 }));
    const char *path = in_folder("m");
    assert_ok(tn_save(m, path));
    assert_ok(tn_save_tensors(tn_load_tensors(path, NULL), NULL, path)); /* and with the list */
    tn_list *ours = tn_state_dict(m, ""), *list = tn_load_tensors(path, NULL);
    for (int i = 0; i < ours->n; i++)
        for (int k = 0; k < list->n; k++)
            if (!strcmp(ours->entry[i].name, list->entry[k].name))
                ck_assert_uint_eq(ours->entry[i].role, list->entry[k].role);
}
END_TEST

static tn_module *norm_net(void)
{
    tn_module *m = tn_sequential(tn_linear_new(6, 8, (tn_linear_options){ 0 }),
                                 tn_batch_norm1d_new(8, (tn_batch_norm_options){ 0 }));
    assert_made(m);
    return m;
}

START_TEST(module_round_trip)
{
    tn_manual_seed(1);
    tn_module *a = owned(norm_net()), *b = owned(norm_net());
    assert_made(tn_forward(a, random_as(TN_SHAPE(5, 6), -1, 1, 1, TN_F32))); /* moves the buffers */
    const char *path = in_folder("model.safetensors");
    assert_ok(tn_save(a, path));
    assert_ok(tn_load(b, path));
    ck_assert_uint_eq(hash_of(tn_state_dict(a, "")), hash_of(tn_state_dict(b, "")));
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    ck_assert_str_eq(tn_metadata_get(&metadata, "format"), "pt");
    ck_assert_int_eq(tn_dtype_of(tn_list_get(list, "1.num_batches_tracked")), TN_I64);
    ck_assert_int_eq(tn_rank(tn_list_get(list, "1.num_batches_tracked")), 0);
    /* another shape: named, with the path, and nothing loaded */
    tn_module *c = owned(tn_sequential(tn_linear_new(6, 9, (tn_linear_options){ 0 })));
    uint64_t hash = hash_of(tn_state_dict(c, ""));
    ck_assert_int_ne(tn_load(c, path), TN_OK);
    ck_assert_msg(strstr(tn_error(), "tn_load: ") == tn_error() && strstr(tn_error(), path) &&
                      strstr(tn_error(), "0.weight"),
                  "%s", tn_error());
    ck_assert_uint_eq(hash_of(tn_state_dict(c, "")), hash);
}
END_TEST

/* ---- arguments ------------------------------------------------------------------------------- */

START_TEST(bad_names)
{
    const char *path = in_folder("f"), *key[] = { "k", "k" }, *value[] = { "1", "\xff" };
    tn_list *list = tn_list_new();
    assert_fails(tn_save_tensors(list, &(tn_metadata){ 2, key, value }, path), TN_E_NAME,
                 "metadata key k is given twice");
    assert_fails(tn_save_tensors(list, &(tn_metadata){ 1, key, value + 1 }, path), TN_E_NAME,
                 "not UTF-8");
    assert_ok(tn_list_add(list, "__metadata__", tn_ones(TN_SHAPE(1))));
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_NAME, "other than __metadata__");
    ck_assert_int_eq(files_in_folder(), 0);
}
END_TEST

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
    tn_module *m = owned(tn_linear_new(2, 2, (tn_linear_options){ 0 }));
    tn_list *list = tn_state_dict(m, "");
    tn_tensor *t = tn_ones(TN_SHAPE(4)), *out = t;
    tn_loader *l = owned(tn_loader_new(&t, 1, (tn_loader_options){ 0 }));
    tn_text *text = owned(tn_text_load(write_bytes("t", "abcabc", 6), 0.1));
    tn_generator *g = owned(tn_generator_new(1));
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
}
END_TEST

START_TEST(metadata_of_nothing)
{
    const char *one[] = { "a", NULL }, *two[] = { "b", "c" };
    const struct {
        tn_metadata metadata;
        const char *text;
    } wrong[] = {
        { { 2, NULL, NULL }, "metadata of 2 pairs without keys: want as many" },
        { { 2, one, two }, "metadata.key[1] is NULL" },
        { { 2, two, one }, "metadata.value[1] is NULL" },
        { { 1, one, NULL }, "metadata of 1 pairs without values" },
        { { -1, one, two }, "metadata of -1 pairs" },
        { { 0, one, NULL }, "metadata of 0 pairs without values: want as many keys and values" },
    };
    tn_module *m = owned(tn_linear_new(2, 2, (tn_linear_options){ 0 }));
    tn_list *list = tn_state_dict(m, "");
    const char *path = in_folder("f");
    for (int i = 0; i < COUNT(wrong); i++) {
        const tn_metadata *metadata = &wrong[i].metadata;
        const char *text = wrong[i].text;
        tn_checkpoint c = { .metadata = *metadata };
        assert_fails(tn_checkpoint_save(&c, path), TN_E_INVALID, text);
        assert_fails(tn_checkpoint_save_numbered(&c, folder, "n", 0), TN_E_INVALID, text);
        assert_fails(tn_save_with(m, path, (tn_save_options){ .metadata = metadata }), TN_E_INVALID,
                     text);
        assert_fails(tn_save_tensors(list, metadata, path), TN_E_INVALID, text);
        assert_null(tn_metadata_get(metadata, "x"), TN_E_INVALID, text);
    }
    ck_assert_int_eq(files_in_folder(), 0);
    tn_metadata none = { 0, two, two }; /* arrays that happen to have no element */
    assert_ok(tn_save_tensors(list, &none, path));
    assert_ok(tn_save_with(m, path, (tn_save_options){ .metadata = &none }));
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ .metadata = none }, path));
    ck_assert_ptr_null(tn_metadata_get(&none, "key"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("files");
    TCase *t = file_case(suite, "formats");
    tcase_add_loop_test(t, FF_04_round_trip_of_every_dtype, 0, 3);
    tcase_add_test(t, FF_02_layout_of_the_reference_writer);
    tcase_add_test(t, FF_03_lists_have_every_name);
    tcase_add_test(t, FF_03_a_tie_of_a_model_is_stored_once);
    tcase_add_test(t, FF_03_ties_of_files_before);
    tcase_add_test(t, FF_03_strings_are_no_ties);
    tcase_add_test(t, FF_03_ties_that_do_not_fit);
    tcase_add_test(t, SD_05_versions_in_files);
    tcase_add_test(t, roles_in_files);
    tcase_add_test(t, module_round_trip);
    t = file_case(suite, "arguments");
    tcase_add_test(t, bad_names);
    tcase_add_test(t, a_null_is_named);
    tcase_add_test(t, metadata_of_nothing);
    files_replace_cases(suite);
    files_lock_cases(suite);
    return suite;
}
