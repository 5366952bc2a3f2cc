/*
 * test_load.c - weights read straight from a file into a model: into every kind of tensor, with
 * little memory, and all or nothing, whatever becomes of the file meanwhile.
 *
 * Truth: what tn_load_tensors reads of the same file, casts by tn_to_dtype, sums made here.
 *
 * Seen to fail: in src/io/input.c, cast_block() without `at` (into_every_kind_of_tensor); in
 * src/nn/state.c, load_pre() without tni_unread_fill() (hooks_see_values), load() without
 * tni_unread_fill_small() (cut_while_it_is_loaded).
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "files.h"
#include "nn/module.h"

static const char *const kinds[] = { "m.safetensors", "m.pt" };

/* ---- where values go ------------------------------------------------------------------------- */

static tn_module *net(tn_dtype dtype)
{
    tn_module *m = tn_sequential(tn_linear_new(300, 200, (tn_linear_options){ 0 }),
                                 tn_batch_norm1d_new(200, (tn_batch_norm_options){ 0 }),
                                 tn_linear_new(200, 7, (tn_linear_options){ 0 }));
    assert_ok(tn_module_to_dtype(m, dtype));
    return owned(m);
}

static void assert_loaded(tn_module *m, const char *path)
{
    const tn_list *want = tn_load_tensors(path, NULL), *got = tn_state_dict(m, "");
    assert_made(want);
    ck_assert_int_eq(got->n, want->n);
    for (int i = 0; i < got->n; i++) {
        tn_tensor *t = got->entry[i].tensor, *w = tn_list_get(want, got->entry[i].name);
        ck_assert_msg(tn_hash(t) == tn_hash(tn_to_dtype(w, tn_dtype_of(t))), "%s",
                      got->entry[i].name);
    }
}

/* As they are, cast both ways, into views of one block, into strides, and under hooks. */
START_TEST(into_every_kind_of_tensor)
{
    tni_read_first = 0;
    const char *path = in_folder(kinds[_i]);
    const tn_load_options cast = { .cast = true };
    tn_manual_seed(3);
    assert_ok(tn_save(net(TN_F32), path));
    static const tn_dtype dtypes[] = { TN_F32, TN_BF16, TN_F16, TN_F64 };
    for (int i = 0; i < COUNT(dtypes); i++) {
        tn_module *m = net(dtypes[i]);
        assert_ok(tn_load_with(m, path, cast, NULL));
        assert_loaded(m, path);
    }
    tn_module *m = net(TN_F32);
    tn_tensor *block = tn_zeros(TN_SHAPE(200 * 300 + 200 + 500));
    tn_tensor *weight = tn_reshape(tn_narrow(block, 0, 13, 200 * 300), TN_SHAPE(200, 300));
    assert_ok(tn_module_set(tn_module_child(m, 0), "weight", weight));
    assert_ok(tn_module_set(tn_module_child(m, 2), "weight",
                            tn_transpose(tn_zeros(TN_SHAPE(200, 7)), 0, 1)));
    uint64_t version = tn_version(block);
    assert_ok(tn_load(m, path));
    assert_loaded(m, path);
    ck_assert_uint_gt(tn_version(block), version);
    assert_ok(tn_load_with(m, path, (tn_load_options){ .assign = true }, NULL));
    assert_loaded(m, path);
}
END_TEST

static tn_status doubled(tn_module *m, tn_list *list, const char *prefix, void *user)
{
    (void)m, (void)prefix, (void)user;
    return tn_list_set(list, "2.bias", tn_mul_scalar(tn_list_get(list, "2.bias"), 2));
}

/* A hook that is called before sees the values. */
START_TEST(hooks_see_values)
{
    const char *path = in_folder(kinds[_i]);
    tn_module *from = net(TN_F32), *to = net(TN_F32);
    assert_ok(tn_save(from, path));
    ck_assert_int_ge(tn_register_load_pre_hook(to, doubled, NULL), 0);
    assert_ok(tn_load(to, path));
    tn_tensor *want = tn_mul_scalar(tn_detach(tn_get_parameter(from, "2.bias")), 2);
    ck_assert_uint_eq(tn_hash(tn_get_parameter(to, "2.bias")), tn_hash(want));
    ck_assert_uint_eq(tn_hash(tn_get_parameter(to, "0.weight")),
                      tn_hash(tn_get_parameter(from, "0.weight")));
}
END_TEST

/* The model's memory is there once: what loading adds does not grow with it. */
START_TEST(memory_is_the_models_own)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_BF16 };
    tni_read_first = 0;
    const char *path = in_folder(kinds[_i]);
    tn_module *m = owned(tn_linear_new(2000, 1000, (tn_linear_options){ 0 })); /* 8 MB */
    assert_ok(tn_save(m, path));
    for (int i = 0; i < COUNT(dtypes); i++) {
        assert_ok(tn_module_to_dtype(m, dtypes[i]));
        tn_memory_reset_peak();
        const int64_t before = tn_memory().in_use;
        assert_ok(tn_load_with(m, path, (tn_load_options){ .cast = true }, NULL));
        const int64_t more = tn_memory().peak_in_use - before;
        ck_assert_msg(more < 100000, "%lld bytes for %s", (long long)more,
                      tn_dtype_name(dtypes[i]));
    }
}
END_TEST

/* ---- files that are cut or damaged ----------------------------------------------------------- */

/* At every length and, in .pt, with every byte of the values changed: the model is as it was. */
START_TEST(cut_anywhere_changes_nothing)
{
    size_t n;
    tn_module *m = owned(tn_linear_new(3, 2, (tn_linear_options){ 0 }));
    assert_ok(tn_save(m, in_folder(kinds[_i])));
    char *bytes = read_bytes(in_folder(kinds[_i]), &n);
    assert_ok(tn_init_constant(tn_get_parameter(m, "weight"), 7));
    const uint64_t hash = hash_of_module(m);
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg(tn_load(m, write_bytes("cut", bytes, i)) != TN_OK, "%zu bytes", i);
        ck_assert_msg(hash_of_module(m) == hash, "%zu bytes changed it", i);
        bytes[i] ^= 1;
        if (tn_load(m, write_bytes("cut", bytes, n)) == TN_OK) {
            ck_assert_msg(_i == 0 || hash_of_module(m) != hash, "byte %zu", i); /* of padding */
            assert_ok(tn_init_constant(tn_get_parameter(m, "weight"), 7));
            assert_ok(tn_init_constant(tn_get_parameter(m, "bias"), 0));
        } else {
            ck_assert_msg(hash_of_module(m) == hash, "byte %zu changed it", i);
        }
        bytes[i] ^= 1;
        if (hash_of_module(m) != hash) break; /* of safetensors, which has no checksum: values */
    }
    free(bytes);
}
END_TEST

static off_t cut_to;

/* Names are looked at after the file was checked, and before a value is written. */
static bool cut_it(const char *name, char *to, size_t size, void *path)
{
    snprintf(to, size, "%s", name);
    return truncate(path, cut_to) == 0;
}

static tn_status nothing(tn_module *m, tn_list *missing, tn_list *unexpected, void *user)
{
    (void)m, (void)missing, (void)unexpected, (void)user;
    return TN_OK;
}

/* Cut between check and copy: an error and no signal; no mixture of old and new that looks like a
 * model; with old values at hand, those. */
START_TEST(cut_while_it_is_loaded)
{
    tni_read_first = 0;
    const char *path = in_folder(kinds[_i]);
    tn_module *m = net(TN_F32);
    tn_load_options o = { .rename = cut_it, .user = (void *)(uintptr_t)path };
    cut_to = 100000;
    assert_ok(tn_save(m, path));
    assert_fails(tn_load_with(m, path, o, NULL), TN_E_IO, "half loaded, with NaN where it failed");
    tn_tensor *finite = tn_all(tn_isfinite(tn_get_parameter(m, "0.weight")), NULL, 0, false);
    ck_assert(tn_item(finite) == 0);
    m = net(TN_F32);
    assert_ok(tn_save(m, path));
    ck_assert_int_ge(tn_register_load_post_hook(m, nothing, NULL), 0);
    assert_ok(tn_init_constant(tn_get_parameter(m, "0.weight"), 7));
    const uint64_t hash = hash_of_module(m);
    assert_fails(tn_load_with(m, path, o, NULL), TN_E_IO, "became shorter");
    ck_assert_uint_eq(hash_of_module(m), hash);
    tni_read_first = INT64_C(64) << 20; /* this is less, and read first */
    m = net(TN_F32);
    assert_ok(tn_save(m, path));
    assert_ok(tn_init_constant(tn_get_parameter(m, "0.weight"), 7));
    const uint64_t before = hash_of_module(m);
    assert_fails(tn_load_with(m, path, o, NULL), TN_E_IO, "became shorter");
    ck_assert_uint_eq(hash_of_module(m), before);
}
END_TEST

/* ---- headers alone --------------------------------------------------------------------------- */

START_TEST(names_without_values)
{
    const int64_t n = INT64_C(1) << 38; /* a hole of 1 TiB */
    char header[128];
    snprintf(header, sizeof header,
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[%lld],\"data_offsets\":[0,%lld]}}", (long long)n,
             (long long)n * 4);
    const char *path = write_header("huge", header, 0);
    if (truncate(path, (off_t)(8 + strlen(header)) + n * 4) != 0) return; /* no such files here */
    const tn_load_options o = { .no_values = true };
    tn_list *list = tn_load_tensors_with(path, o, NULL, NULL);
    assert_made(list);
    ck_assert_int_eq(tn_size(list->entry[0].tensor, 0), n);
    ck_assert_int_eq(tn_dtype_of(list->entry[0].tensor), TN_F32);
    ck_assert(tn_at(list->entry[0].tensor, TN_INDEX(n - 1)) == 0);
    assert_fails(tn_fill_(list->entry[0].tensor, 1), TN_E_INVALID, "is an expanded view");
    for (int i = 0; i < COUNT(kinds); i++) {
        tn_module *m = net(TN_F32);
        assert_ok(tn_save(m, in_folder(kinds[i])));
        list = tn_load_tensors_with(in_folder(kinds[i]), o, NULL, NULL);
        assert_made(list);
        ck_assert_int_eq(list->n, tn_state_dict(m, "")->n);
    }
}
END_TEST

/* A module's path that is longer than any name of a tensor. */
START_TEST(long_paths_of_modules)
{
    char *header = malloc(9000), path[4001];
    memset(path, 'p', 4000), path[4000] = 0;
    snprintf(header, 9000,
             "{\"__metadata__\":{\"tenon.versions\":\"{\\\"x.%s\\\":2}\"},\"x.w\":{\"dtype\":"
             "\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
             path);
    write_tensors("f", header, &(float){ 1 }, 4);
    const tn_load_options part = { .key = "x" }, unwrap = { .unwrap = true };
    assert_made(tn_load_tensors_with(in_folder("f"), part, NULL, NULL));
    assert_made(tn_load_tensors_with(in_folder("f"), unwrap, NULL, NULL));
    free(header);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("load");
    TCase *t = file_case(suite, "load");
    tcase_add_loop_test(t, into_every_kind_of_tensor, 0, COUNT(kinds));
    tcase_add_loop_test(t, hooks_see_values, 0, COUNT(kinds));
    tcase_add_loop_test(t, memory_is_the_models_own, 0, COUNT(kinds));
    tcase_add_loop_test(t, cut_anywhere_changes_nothing, 0, COUNT(kinds));
    tcase_add_loop_test(t, cut_while_it_is_loaded, 0, COUNT(kinds));
    tcase_add_test(t, names_without_values);
    tcase_add_test(t, long_paths_of_modules);
    return suite;
}
