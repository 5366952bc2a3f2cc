/*
 * growth_io.c - the cost of files grows in proportion to what they hold (growth.h).
 */
#include <fcntl.h>
#include <unistd.h>

#include "growth.h"
#include "io/file.h"
#include "nn/module.h"

/* ---- what is done, n times over -------------------------------------------------------------- */

static tn_list *list_of(int n, bool views)
{
    tn_tensor *all = tn_zeros(TN_SHAPE(n));
    tn_list *list = tn_list_new();
    for (int i = 0; i < n; i++) {
        tn_tensor *t = views ? tn_narrow(all, 0, i, 1) : tn_zeros(TN_SHAPE(1));
        assert_ok(tn_list_add(list, name_of(i), t));
    }
    return list;
}

static void save_list(int n, const char *name, bool views)
{
    assert_ok(tn_save_tensors(list_of(n, views), NULL, in_folder(name)));
}

static void read_file(const char *name)
{
    assert_made(tn_load_tensors(in_folder(name), NULL));
}

static void names(int n)
{
    save_list(n, "f.safetensors", false);
}
static void names_again(int n)
{
    read_file("f.safetensors");
}
static void names_pt(int n)
{
    save_list(n, "f.pt", false);
}
static void views_pt(int n)
{
    save_list(n, "f.pt", true);
}
static void views_again(int n)
{
    read_file("f.pt");
}

/* n names of one tensor. */
static void ties(int n)
{
    tni_bytes b = { 0 };
    tni_bytes_printf(&b, "{\"__metadata__\":{\"tenon.ties\":\"{");
    for (int i = 0; i < n; i++)
        tni_bytes_printf(&b, "%s\\\"%s\\\":\\\"a\\\"", i ? "," : "", name_of(i));
    tni_bytes_printf(&b, "}\"},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    tni_bytes_add(&b, "", 1);
    write_header("f.safetensors", b.data, 1);
    tni_bytes_free(&b);
    tn_list *list = tn_load_tensors(in_folder("f.safetensors"), NULL);
    assert_made(list);
    ck_assert_int_eq(list->n, n + 1);
}

static void metadata(int n)
{
    const char **key = calloc((size_t)n, sizeof *key);
    for (int i = 0; i < n; i++) key[i] = name_of(i);
    tn_metadata m = { n, key, key };
    tn_checkpoint c = { .metadata = m };
    assert_ok(tn_checkpoint_save(&c, in_folder("f.safetensors")));
    assert_ok(tn_checkpoint_load(&c, in_folder("f.safetensors")));
    ck_assert_int_eq(c.metadata.n, n);
    free(key);
}

static void versions(int n)
{
    tn_list *list = tn_list_new();
    for (int i = 0; i < n; i++) assert_ok(tni_list_push_version(list, name_of(i), 2));
    assert_ok(tn_save_tensors(list, NULL, in_folder("f.safetensors")));
    read_file("f.safetensors");
    assert_ok(tn_save_tensors(list, NULL, in_folder("f.pt")));
    read_file("f.pt");
}

static void generators(int n)
{
    tn_generator *one = tn_generator_new(1), **g = calloc((size_t)n, sizeof(tn_generator *));
    for (int i = 0; i < n; i++) g[i] = one;
    tn_checkpoint c = { .generators = g, .n_generators = n };
    assert_ok(tn_checkpoint_save(&c, in_folder("f.safetensors")));
    assert_ok(tn_checkpoint_load(&c, in_folder("f.safetensors")));
    tn_generator_free(one), free(g);
}

/* n modules, one within the other: their paths together would be n^2 long. */
static void nested(int n)
{
    tn_module *m = tn_identity_new(), *outer = tn_module_dict_new();
    for (int i = 0; i < n; i++) m = tn_sequential(m);
    assert_ok(tn_register_parameter(outer, "w", NULL, tn_zeros(TN_SHAPE(1))));
    assert_ok(tn_register_module(outer, "m", NULL, m));
    assert_ok(tn_save(outer, in_folder("f.safetensors")));
    tn_checkpoint c = { .model = outer };
    assert_ok(tn_checkpoint_save(&c, in_folder("f.safetensors")));
    assert_ok(tn_checkpoint_load(&c, in_folder("f.safetensors")));
    tn_module_drop(outer);
}

static void parts(int n)
{
    tn_module *m = tn_linear_new(1, 1, (tn_linear_options){ 0 });
    tn_checkpoint_part *part = calloc((size_t)n, sizeof *part);
    for (int i = 0; i < n; i++) part[i] = (tn_checkpoint_part){ .name = name_of(i), .module = m };
    tn_checkpoint c = { .parts = part, .n_parts = n };
    assert_ok(tn_checkpoint_save(&c, in_folder("f.safetensors")));
    assert_ok(tn_checkpoint_load(&c, in_folder("f.safetensors")));
    tn_module_drop(m), free(part);
}

/* n files, none of them a checkpoint. */
static void make_damaged(int n)
{
    char name[64];
    for (int i = 1; i <= MOST_NAMES; i++) {
        snprintf(name, sizeof name, "net-%08d.safetensors", i);
        if (unlink(in_folder(name)) != 0 && i > n) break;
    }
    for (int i = 1; i <= n; i++) {
        snprintf(name, sizeof name, "net-%08d.safetensors", i);
        close(open(in_folder(name), O_CREAT | O_WRONLY, 0600));
    }
}

static void damaged(int n)
{
    char path[1024];
    assert_fails(tn_checkpoint_latest(folder, "net", path, sizeof path), TN_E_FORMAT, "damaged");
}

/* All of them are removed but one. */
static void pruned(int n)
{
    assert_ok(tn_checkpoint_save_numbered(&(tn_checkpoint){ .step = n + 1 }, folder, "net", 1));
    ck_assert_int_eq(files_in_folder(), 1);
    char kept[64];
    snprintf(kept, sizeof kept, "net-%08d.safetensors", n + 1);
    ck_assert_int_eq(unlink(in_folder(kept)), 0);
}

const growth_row growth_io[] = {
    { "names", 1000, NULL, names },
    { "names read", 1000, names, names_again },
    { "names .pt", 1000, NULL, names_pt },
    { "views .pt", 1000, NULL, views_pt },
    { "views .pt read", 1000, views_pt, views_again },
    { "ties", 1000, NULL, ties },
    { "metadata", 1000, NULL, metadata },
    { "versions", 1000, NULL, versions },
    { "generators", 500, NULL, generators },
    { "nested", 500, NULL, nested },
    { "parts", 500, NULL, parts },
    { "damaged", 500, make_damaged, damaged },
    { "pruned", 500, make_damaged, pruned },
    { 0 },
};
