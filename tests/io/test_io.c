/*
 * test_io.c - files: safetensors, atomic replacement, checkpoints.
 *
 * Truth: files written byte by byte here, the order of the reference safetensors writer, runs that
 * were never interrupted.
 *
 * Bad files: test_badfiles.c, test_mutate.c. IDX, text, loaders, plots: test_data.c.
 *
 * Seen to fail: in src/io/safetensors_write.c, collect() without ties, and in safetensors_list.c,
 * without add_versions(): a test each; in src/io/checkpoint.c, commit() without
 * tn_generator_set_state: checkpoint_resumes_bit_for_bit fails at every stop.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"
#include "scarce.h"

/* ---- safetensors ----------------------------------------------------------------------------- */

START_TEST(round_trip_of_every_dtype)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16,
                                       TN_I64, TN_I32, TN_U8,   TN_BOOL };
    tn_list *list = tn_list_new();
    for (int i = 0; i < COUNT(dtypes); i++) {
        char name[32];
        tn_tensor *t = tn_to_dtype(random_f64(TN_SHAPE(3, 5), 0, 4, (uint64_t)i), dtypes[i]);
        snprintf(name, sizeof name, "%s.matrix", tn_dtype_name(dtypes[i]));
        assert_ok(tn_list_add(list, name, t));
        snprintf(name, sizeof name, "%s.empty", tn_dtype_name(dtypes[i]));
        assert_ok(tn_list_add(list, name, tn_full_as(TN_SHAPE(2, 0, 3), 0, dtypes[i], tn_cpu())));
        snprintf(name, sizeof name, "%s.single", tn_dtype_name(dtypes[i]));
        assert_ok(tn_list_add(list, name, tn_full_as(TN_SCALAR, 1, dtypes[i], tn_cpu())));
        snprintf(name, sizeof name, "%s.strided", tn_dtype_name(dtypes[i]));
        assert_ok(tn_list_add(list, name, tn_transpose(t, 0, 1)));
    }
    const char *key[] = { "a \"key\"", "empty" };
    const char *value[] = { "line\nbreak, tab\t, \xc3\xa9", "" };
    tn_metadata metadata = { 2, key, value };
    tn_metadata back;
    const char *path = in_folder("all.safetensors");
    assert_ok(tn_save_tensors(list, &metadata, path));
    tn_list *read = tn_load_tensors(path, &back);
    assert_made(read);
    ck_assert_int_eq(read->n, list->n);
    for (int i = 0; i < list->n; i++) {
        tn_tensor *t = tn_list_get(read, list->entry[i].name);
        assert_made(t);
        ck_assert_uint_eq(tn_hash(t), tn_hash(list->entry[i].tensor));
        ck_assert(tn_is_contiguous(t));
    }
    ck_assert_int_eq(back.n, 2);
    for (int i = 0; i < 2; i++) ck_assert_str_eq(tn_metadata_get(&back, key[i]), value[i]);
    ck_assert_ptr_null(tn_metadata_get(&back, "nothing"));
    ck_assert_ptr_null(tn_metadata_get(NULL, "nothing"));
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
    char *bytes = read_bytes(path, &n);
    ck_assert_uint_eq(n, 8 + padded + sizeof data - 1);
    ck_assert_int_eq((unsigned char)bytes[0] + 256 * (unsigned char)bytes[1], (int)padded);
    ck_assert_int_eq(memcmp(bytes + 8, header, sizeof header - 1), 0);
    for (size_t i = sizeof header - 1; i < padded; i++) ck_assert_int_eq(bytes[8 + i], ' ');
    ck_assert_int_eq(memcmp(bytes + 8 + padded, data, sizeof data - 1), 0);
    free(bytes);
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
    tn_module *m = tied_new();
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
    tn_module *other = tied_new();
    assert_ok(tn_load(other, path));
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(other));
    tn_module *apart = tn_module_list_new();
    for (int i = 0; i < 12; i++)
        assert_ok(tn_module_append(apart, tn_linear_new(3, 3, (tn_linear_options){ 0 })));
    assert_ok(tn_load(apart, path)); /* the list has every name */
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(apart));
    tn_checkpoint c = { .model = m, .step = 1 };
    assert_ok(tn_checkpoint_save(&c, in_folder("checkpoint")));
    ck_assert(
        header_has(in_folder("checkpoint"), "\\\"model.2.weight\\\":\\\"model.10.weight\\\""));
    tn_module *third = tied_new();
    c.model = third;
    assert_ok(tn_checkpoint_load(&c, in_folder("checkpoint")));
    ck_assert_int_eq(c.metadata.n, 0);
    ck_assert_uint_eq(hash_of_module(m), hash_of_module(third));
    assert_ok(tn_save_with(m, path, (tn_save_options){ .every_key = true }));
    ck_assert(header_has(path, "\"2.weight\":{\"dtype\""));
    ck_assert(!header_has(path, "tenon.ties"));
    tn_module_drop(m);
    tn_module_drop(other);
    tn_module_drop(apart);
    tn_module_drop(third);
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
    tn_module *m = tn_module_new(&(tn_module_type){ .name = "M", .size = sizeof(tn_module) });
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
    tn_module_drop(m);
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
        { "[]", "tenon.ties is not an object of strings", 0 },
        { "{\\\"t\\\":1}", "tenon.ties is not an object of strings", 0 },
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

START_TEST(empty_list_and_bad_names)
{
    const char *path = in_folder("f");
    assert_ok(tn_save_tensors(tn_list_new(), NULL, path));
    tn_list *read = tn_load_tensors(path, NULL);
    assert_made(read);
    ck_assert_int_eq(read->n, 0);
    const char *key[] = { "k", "k" };
    const char *value[] = { "1", "\xff" };
    assert_fails(tn_save_tensors(read, &(tn_metadata){ 2, key, value }, path), TN_E_NAME,
                 "metadata key k is given twice");
    assert_fails(tn_save_tensors(read, &(tn_metadata){ 1, key, value + 1 }, path), TN_E_NAME,
                 "not UTF-8");
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "__metadata__", tn_ones(TN_SHAPE(1))));
    assert_fails(tn_save_tensors(list, NULL, path), TN_E_NAME, "other than __metadata__");
    ck_assert_int_eq(tn_save_tensors(NULL, NULL, path), TN_E_INVALID);
    tn_error_clear();
    assert_fails(tn_save_tensors(read, NULL, ""), TN_E_INVALID, "tn_save_tensors: path is empty");
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* ---- atomic replacement ---------------------------------------------------------------------- */

static tn_list *some_list(uint64_t seed, int64_t n)
{
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "w", random_as(TN_SHAPE(n), -1, 1, seed, TN_F32)));
    return list;
}

START_TEST(failed_save_keeps_the_old_file)
{
    const char *path = in_folder("f");
    assert_ok(tn_save_tensors(some_list(1, 10), NULL, path));
    size_t n;
    char *before = read_bytes(path, &n);
    tn_list *large = some_list(2, 200000);
    /* a limit on file sizes, with the signal ignored, stands for a full disk */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit was;
    getrlimit(RLIMIT_FSIZE, &was);
    struct rlimit small = { 65536, was.rlim_max };
    setrlimit(RLIMIT_FSIZE, &small);
    tn_status status = tn_save_tensors(large, NULL, path);
    setrlimit(RLIMIT_FSIZE, &was);
    ck_assert_int_eq(status, TN_E_IO);
    assert_error(TN_E_IO, "File too large");
    size_t m;
    char *after = read_bytes(path, &m);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(before, after, n), 0);
    ck_assert_int_eq(files_in_folder(), 1); /* the temporary is gone */
    free(before);
    free(after);
}
END_TEST

START_TEST(targets)
{
    tn_list *list = some_list(1, 10);
    assert_fails(tn_save_tensors(list, NULL, folder), TN_E_IO, "is a folder");
    assert_fails(tn_save_tensors(list, NULL, "/dev/null"), TN_E_IO,
                 "is not a regular file: only a regular file can be replaced");
    assert_fails(tn_save_tensors(list, NULL, in_folder("no/where")), TN_E_IO,
                 "No such file or directory");
    char longer[600];
    memset(longer, 'x', sizeof longer);
    longer[300] = 0;
    assert_fails(tn_save_tensors(list, NULL, in_folder(longer)), TN_E_IO, "File name too long");
    /* a symbolic link stays one; the mode of the file it leads to stays too */
    assert_ok(tn_save_tensors(list, NULL, in_folder("real")));
    ck_assert_int_eq(chmod(in_folder("real"), 0640), 0);
    ck_assert_int_eq(symlink("real", in_folder("link")), 0);
    assert_ok(tn_save_tensors(some_list(2, 20), NULL, in_folder("link")));
    struct stat st;
    ck_assert_int_eq(lstat(in_folder("link"), &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(stat(in_folder("real"), &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0640);
    ck_assert_int_eq(tn_numel(tn_list_get(tn_load_tensors(in_folder("real"), NULL), "w")), 20);
    /* in the current folder */
    ck_assert_int_eq(chdir(folder), 0);
    assert_ok(tn_save_tensors(list, NULL, "here"));
    assert_made(tn_load_tensors("here", NULL));
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

START_TEST(killed_writers_leave_nothing)
{
    /* a child dies of the size limit in the middle of a save; the next save sweeps its temporary */
    const char *path = in_folder("f");
    assert_ok(tn_save_tensors(some_list(1, 10), NULL, path));
    pid_t pid = fork();
    if (pid == 0) {
        char name[600];
        snprintf(name, sizeof name, "%s.tmp-%ld-0", path, (long)getpid());
        FILE *file = fopen(name, "wb");
        fputs("half", file);
        fclose(file);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(files_in_folder(), 2);
    assert_ok(tn_save_tensors(some_list(2, 10), NULL, path));
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* ---- modules --------------------------------------------------------------------------------- */

/* Linear, BatchNorm, ReLU, Dropout, Linear: parameters, buffers and random numbers. */
static tn_module *model_new(void)
{
    tn_module *m =
        tn_sequential(tn_linear_new(6, 8, (tn_linear_options){ 0 }),
                      tn_batch_norm1d_new(8, (tn_batch_norm_options){ 0 }), tn_relu_new(),
                      tn_dropout_new(0.3), tn_linear_new(8, 3, (tn_linear_options){ 0 }));
    assert_made(m);
    return m;
}

START_TEST(module_round_trip)
{
    tn_manual_seed(1);
    tn_module *a = model_new();
    tn_module *b = model_new();
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
    tn_module *c = tn_sequential(tn_linear_new(6, 9, (tn_linear_options){ 0 }));
    uint64_t hash = hash_of(tn_state_dict(c, ""));
    ck_assert_int_ne(tn_load(c, path), TN_OK);
    ck_assert_msg(strstr(tn_error(), "tn_load: ") == tn_error() && strstr(tn_error(), path) &&
                      strstr(tn_error(), "0.weight"),
                  "%s", tn_error());
    ck_assert_uint_eq(hash_of(tn_state_dict(c, "")), hash);
    tn_module_drop(a);
    tn_module_drop(b);
    tn_module_drop(c);
}
END_TEST

/* ---- checkpoints ----------------------------------------------------------------------------- */

typedef struct run {
    tn_module *model;
    tn_optim *opt;
    tn_scheduler *schedule;
    tn_loader *loader;
} run;

static run run_new(uint64_t seed, bool prefetch)
{
    tn_manual_seed(seed);
    run r;
    r.model = model_new();
    r.opt = tn_adamw(tn_parameters(r.model), (tn_adamw_options){ .lr = 0.02, .weight_decay = 0.1 });
    r.schedule = tn_warmup_cosine_lr(r.opt, 3, 14, 1e-4);
    tn_tensor *data[2] = { random_as(TN_SHAPE(22, 6), -1, 1, 3, TN_F32),
                           tn_to_dtype(random_f64(TN_SHAPE(22), 0, 3, 4), TN_I64) };
    r.loader =
        tn_loader_new(data, 2,
                      (tn_loader_options){
                          .batch_size = 4, .shuffle = true, .seed = seed, .prefetch = prefetch });
    assert_made(r.loader);
    return r;
}

static void run_free(run *r)
{
    tn_loader_free(r->loader);
    tn_scheduler_free(r->schedule);
    tn_optim_free(r->opt);
    tn_module_drop(r->model);
}

static void train(run *r, int steps)
{
    for (int k = 0; k < steps; k++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *batch[2];
        int got = tn_loader_next(r->loader, batch, 2);
        if (got == 0) got = tn_loader_next(r->loader, batch, 2);
        ck_assert_int_eq(got, 1);
        tn_tensor *loss = tn_cross_entropy(tn_forward(r->model, batch[0]), batch[1]);
        assert_ok(tn_optim_zero_grad(r->opt));
        assert_ok(tn_backward(loss));
        tn_clip_grad_norm(tn_parameters(r->model), 1, 2, true);
        assert_ok(tn_optim_step(r->opt));
        assert_ok(tn_scheduler_step(r->schedule));
        tn_scope_end(s);
    }
}

static uint64_t hash_run(const run *r)
{
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_scope s = tn_scope_begin(); /* the lists keep what they name */
    tn_generator_get_state(tn_default_generator(), state);
    uint64_t hash =
        hash_of(tn_state_dict(r->model, "")) * 31 + hash_of(tn_optim_state_dict(r->opt));
    hash = hash * 31 + hash_of(tn_scheduler_state_dict(r->schedule));
    hash = hash * 31 + (uint64_t)tn_loader_epoch(r->loader) * 100 +
           (uint64_t)tn_loader_position(r->loader);
    for (int i = 0; i < TN_GENERATOR_STATE_SIZE; i++) hash = (hash ^ state[i]) * 1099511628211u;
    tn_scope_end(s);
    return hash;
}

static tn_checkpoint checkpoint_of(const run *r, int64_t step)
{
    return (tn_checkpoint){ .model = r->model,
                            .optimizer = r->opt,
                            .scheduler = r->schedule,
                            .loader = r->loader,
                            .step = step };
}

/* Stops after each step: just begun, in warm-up, at the end of an epoch (6 batches), in the next
 * ones. */
START_TEST(checkpoint_resumes_bit_for_bit)
{
    enum { STEPS = 14 };
    run whole = run_new(1, false);
    train(&whole, STEPS);
    uint64_t wanted = hash_run(&whole);
    run_free(&whole);
    const char *path = in_folder("checkpoint");
    run first = run_new(1, _i % 2);
    train(&first, _i);
    const char *key = "layers";
    const char *value = "2";
    tn_checkpoint c = checkpoint_of(&first, _i);
    c.metadata = (tn_metadata){ 1, &key, &value };
    assert_ok(tn_checkpoint_save(&c, path));
    uint64_t stopped = hash_run(&first);
    run_free(&first);
    /* another seed everywhere, and some steps already taken */
    run second = run_new(99, _i % 3 == 0);
    train(&second, 2);
    c = checkpoint_of(&second, -1);
    assert_ok(tn_checkpoint_load(&c, path));
    ck_assert_int_eq(c.step, _i);
    ck_assert_int_eq(c.metadata.n, 1);
    ck_assert_str_eq(tn_metadata_get(&c.metadata, "layers"), "2");
    ck_assert_uint_eq(hash_run(&second), stopped);
    train(&second, STEPS - _i);
    ck_assert_uint_eq(hash_run(&second), wanted);
    tn_metadata metadata;
    int64_t step;
    assert_ok(tn_checkpoint_peek(path, &metadata, &step));
    ck_assert_int_eq(step, _i);
    ck_assert_str_eq(tn_metadata_get(&metadata, "layers"), "2");
    run_free(&second);
}
END_TEST

START_TEST(checkpoint_is_all_or_nothing)
{
    run a = run_new(1, false);
    train(&a, 3);
    const char *path = in_folder("checkpoint");
    tn_checkpoint c = checkpoint_of(&a, 3);
    assert_ok(tn_checkpoint_save(&c, path));
    run b = run_new(2, false);
    train(&b, 1);
    uint64_t hash = hash_run(&b);
    /* each part in turn does not fit */
    c = checkpoint_of(&b, 0);
    c.optimizer = tn_sgd(tn_parameters(b.model), (tn_sgd_options){ 0 });
    assert_fails(tn_checkpoint_load(&c, path), TN_E_NAME, "missing sgd.steps");
    tn_optim_free(c.optimizer);
    c = checkpoint_of(&b, 0);
    tn_optim *another = tn_sgd(tn_parameters(b.model), (tn_sgd_options){ 0 });
    c.scheduler = tn_exponential_lr(another, 1);
    assert_fails(tn_checkpoint_load(&c, path), TN_E_NAME, "missing exponential_lr.step");
    tn_scheduler_free(c.scheduler);
    tn_optim_free(another);
    c = checkpoint_of(&b, 0);
    tn_tensor *rows = tn_ones(TN_SHAPE(9));
    c.loader = tn_loader_new(&rows, 1, (tn_loader_options){ .batch_size = 4 });
    assert_fails(tn_checkpoint_load(&c, path), TN_E_INVALID, "22 rows in batches of 4");
    tn_loader_free(c.loader);
    c = checkpoint_of(&b, 0);
    unsigned char random[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), random); /* making a model draws from it */
    c.model = tn_sequential(tn_linear_new(6, 8, (tn_linear_options){ 0 }));
    assert_ok(tn_generator_set_state(tn_default_generator(), random));
    uint64_t other = hash_of(tn_state_dict(c.model, ""));
    ck_assert_int_ne(tn_checkpoint_load(&c, path), TN_OK);
    ck_assert_msg(strstr(tn_error(), "tn_checkpoint_load: ") == tn_error() &&
                      strstr(tn_error(), path),
                  "%s", tn_error());
    tn_error_clear();
    ck_assert_uint_eq(hash_of(tn_state_dict(c.model, "")), other);
    tn_module_drop(c.model);
    ck_assert_uint_eq(hash_run(&b), hash); /* generator included: nothing moved it either */
    ck_assert_int_eq(c.step, 0);
    /* a part that is not in the file; a part of the file that was not asked for */
    c = (tn_checkpoint){ .model = a.model };
    assert_ok(tn_checkpoint_save(&c, in_folder("model only")));
    c = checkpoint_of(&b, 0);
    assert_fails(tn_checkpoint_load(&c, in_folder("model only")), TN_E_NAME,
                 "loader.epoch is missing");
    c.loader = NULL;
    assert_fails(tn_checkpoint_load(&c, in_folder("model only")), TN_E_NAME,
                 "nothing of optim.* is in it");
    c = (tn_checkpoint){ .model = b.model };
    assert_ok(tn_checkpoint_load(&c, path));
    ck_assert_uint_eq(hash_of(tn_state_dict(a.model, "")), hash_of(tn_state_dict(b.model, "")));
    run_free(&a);
    run_free(&b);
}
END_TEST

/* Arrays that happen to have no element. */
START_TEST(metadata_of_no_pairs)
{
    const char *strings[1] = { "" };
    tn_metadata none = { 0, strings, strings }, half = { 0, strings, NULL };
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "a", tn_ones(TN_SHAPE(1))));
    assert_ok(tn_save_tensors(list, &none, in_folder("f")));
    tn_module *m = tn_linear_new(1, 1, (tn_linear_options){ 0 });
    assert_ok(tn_save_with(m, in_folder("f"), (tn_save_options){ .metadata = &none }));
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ .metadata = none }, in_folder("f")));
    ck_assert_ptr_null(tn_metadata_get(&none, "key"));
    assert_fails(tn_save_tensors(list, &half, in_folder("f")), TN_E_INVALID,
                 "metadata of 0 pairs, with strings: want as many keys and values");
    tn_module_drop(m);
}
END_TEST

START_TEST(checkpoint_and_other_files)
{
    run a = run_new(1, false);
    tn_checkpoint c = checkpoint_of(&a, 3);
    assert_ok(tn_save(a.model, in_folder("weights")));
    assert_fails(tn_checkpoint_load(&c, in_folder("weights")), TN_E_FORMAT,
                 "not a checkpoint (for a file of weights: tn_load)");
    assert_fails(tn_checkpoint_peek(in_folder("weights"), NULL, NULL), TN_E_FORMAT,
                 "not a checkpoint");
    const char *key = "tenon.mine";
    c.metadata = (tn_metadata){ 1, &key, &key };
    assert_fails(tn_checkpoint_save(&c, in_folder("c")), TN_E_NAME,
                 "metadata key tenon.mine is the library's own");
    ck_assert_int_eq(tn_checkpoint_save(NULL, "x"), TN_E_INVALID);
    tn_error_clear();
    run_free(&a);
}
END_TEST

/* ---- out of memory --------------------------------------------------------------------------- */

static tn_status done(const void *made)
{
    return made ? TN_OK : tn_error_status();
}

/* Everything that reads, writes or makes something here; each leaves nothing behind when it
 * fails. */
static tn_status scenario(int which, run *r)
{
    tn_checkpoint c = checkpoint_of(r, 7);
    tn_text *text;
    tn_loader *loader;
    tn_tensor *rows = tn_get_parameter(r->model, "0.weight");
    double xy[] = { 1, 2, 3 };
    tn_tensor *batch[2];
    switch (which) {
    case 0: return tn_save(r->model, in_folder("weights"));
    case 1: return tn_load(r->model, in_folder("weights"));
    case 2: return tn_checkpoint_save(&c, in_folder("checkpoint"));
    case 3: return tn_checkpoint_load(&c, in_folder("checkpoint"));
    case 4: return done(tn_idx_load(in_folder("idx.gz")));
    case 5:
        text = tn_text_load(in_folder("text"), 0.1);
        tn_text_free(text);
        return done(text);
    case 6:
        loader = tn_loader_new(&rows, 1, (tn_loader_options){ .shuffle = true, .prefetch = true });
        tn_loader_free(loader);
        return done(loader);
    case 7: return tn_plot_svg(in_folder("plot"), "t", "x", "y", &(tn_curve){ "c", 3, xy, xy }, 1);
    case 8: return tn_optim_load_state_dict(r->opt, tn_optim_state_dict(r->opt));
    case 9: return tn_scheduler_load_state_dict(r->schedule, tn_scheduler_state_dict(r->schedule));
    case 10: return tn_loader_next(r->loader, batch, 2) == 1 ? TN_OK : tn_error_status();
    default: return TN_OK;
    }
}

START_TEST(every_allocation_may_fail)
{
    tn_memory_trim();
    scarce_install();
    run r = run_new(1, false);
    train(&r, 2);
    const tn_list *waiting = tn_parameters(r.model); /* saved and loaded too */
    for (int i = 0; i < waiting->n; i++)
        assert_ok(tn_set_grad(waiting->entry[i].tensor, tn_ones_like(waiting->entry[i].tensor)));
    write_bytes("idx.gz", "\0\0\x0d\1\0\0\0\1\xbf\xc0\0\0", 12);
    write_bytes("text", "some text", 9);
    assert_ok(scenario(0, &r));
    assert_ok(scenario(2, &r));
    uint64_t hash = hash_run(&r);
    int failed = 0;
    for (int k = 0;; k++) {
        tn_scope s = tn_scope_begin();
        int64_t live = tn_live_tensors();
        tn_error_clear();
        tn_scope inner = tn_scope_begin();
        tn_memory_trim();
        scarce_allow(k);
        tn_status status = scenario(_i, &r);
        tn_scope_end(inner);
        scarce_allow(INT64_MAX);
        ck_assert_msg(tn_live_tensors() == live, "allocation %d (%s): %d tensors more", k,
                      tn_status_name(status), (int)(tn_live_tensors() - live));
        tn_scope_end(s);
        if (status == TN_OK) break;
        ck_assert_msg(status == TN_E_NOMEM, "allocation %d: %s: %s", k, tn_status_name(status),
                      tn_error());
        ck_assert_uint_eq(hash_run(&r), hash);
        ck_assert_int_le(files_in_folder(), 4); /* no temporary stays */
        failed++;
        ck_assert_int_lt(k, 5000);
    }
    ck_assert_int_gt(failed, 0);
    run_free(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("io");
    TCase *t = file_case(suite, "safetensors");
    tcase_add_test(t, round_trip_of_every_dtype);
    tcase_add_test(t, FF_02_layout_of_the_reference_writer);
    tcase_add_test(t, FF_03_lists_have_every_name);
    tcase_add_test(t, FF_03_a_tie_of_a_model_is_stored_once);
    tcase_add_test(t, FF_03_ties_of_files_before);
    tcase_add_test(t, FF_03_strings_are_no_ties);
    tcase_add_test(t, FF_03_ties_that_do_not_fit);
    tcase_add_test(t, SD_05_versions_in_files);
    tcase_add_test(t, empty_list_and_bad_names);
    t = file_case(suite, "atomic");
    tcase_add_test(t, failed_save_keeps_the_old_file);
    tcase_add_test(t, targets);
    tcase_add_test(t, killed_writers_leave_nothing);
    t = file_case(suite, "checkpoints");
    tcase_add_test(t, module_round_trip);
    tcase_add_loop_test(t, checkpoint_resumes_bit_for_bit, 0, 14);
    tcase_add_test(t, checkpoint_is_all_or_nothing);
    tcase_add_test(t, checkpoint_and_other_files);
    tcase_add_test(t, metadata_of_no_pairs);
    t = file_case(suite, "memory");
    tcase_add_loop_test(t, every_allocation_may_fail, 0, 11);
    return suite;
}
