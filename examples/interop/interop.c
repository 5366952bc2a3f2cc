/*
 * interop.c - models to PyTorch and back, as files.
 *
 *     interop write FOLDER      makes every model of models.c, trains or fills it, and writes
 *                               NAME.pt, NAME.safetensors, and NAME.io.pt: inputs and output
 *     interop read FOLDER       loads NAME.theirs.pt, computes the output of NAME.theirs.io.pt,
 *                               compares it, writes what was loaded: NAME.back.pt and
 *                               NAME.back.safetensors; and compares NAME.returned.pt, where it is
 *                               there, with NAME.safetensors bit for bit
 *     interop convert IN OUT [KEY]    one file of weights as another: .pt, .pth, .npz or
 *                                     .safetensors; KEY as for tn_load: a part, "*" for all
 *
 * roundtrip.py runs the first two with PyTorch between them. With --device cuda the models train
 * and compute on the GPU; files are the same wherever a model is.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h"
#include "models.h"

static char path_text[8][4096];
static const char *folder;
static tn_device device;

static const char *path_of(const char *name, const char *end)
{
    static int next;
    next = (next + 1) % 8;
    snprintf(path_text[next], sizeof path_text[next], "%s/%s%s", folder, name, end);
    return path_text[next];
}

/* Random values for everything of a floating dtype but fixed tables; variances are positive. */
static void fill(tn_module *m)
{
    tn_list *list = tn_state_dict(m, "");
    TN_CHECK_PTR(list);
    for (int i = 0; i < list->n; i++) {
        tn_tensor *t = list->entry[i].tensor;
        const char *name = list->entry[i].name;
        if (!tn_dtype_is_float(tn_dtype_of(t)) || !strcmp(name, "pe")) continue;
        tn_tensor *x =
            tn_sub_scalar(tn_rand(tn_shape_get(t)), strstr(name, "running_var") ? -0.5 : 0.5);
        TN_NO_GRAD TN_CHECK(tn_copy_(t, tn_to_dtype(x, tn_dtype_of(t))));
    }
}

static tn_dtype dtype_of(tn_module *m)
{
    tn_list *list = tn_state_dict(m, "");
    TN_CHECK_PTR(list);
    return list->n ? tn_dtype_of(list->entry[0].tensor) : TN_F32;
}

static void write_model(const interop_model *model)
{
    static const char *const names[] = { "x", "k", "v" };
    tn_module *m = model->make();
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to(m, device));
    if (model->train)
        TN_CHECK(model->train(m));
    else
        fill(m);
    TN_CHECK(tn_eval(m));
    TN_CHECK(tn_save(m, path_of(model->name, ".pt")));
    TN_CHECK(tn_save(m, path_of(model->name, ".safetensors")));
    tn_tensor *x[3];
    int n = interop_inputs(model, dtype_of(m), x);
    for (int i = 0; i < n; i++) x[i] = tn_to(x[i], device);
    tn_list *io = tn_list_new();
    for (int i = 0; i < n; i++) TN_CHECK(tn_list_add(io, names[i], x[i]));
    if (n) TN_CHECK(tn_list_add(io, "y", tn_detach(interop_forward(model, m, x))));
    TN_CHECK(tn_save_tensors(io, NULL, path_of(model->name, ".io.pt")));
    tn_module_drop(m);
}

/* The largest difference, relative to the largest value where that is above 1. */
static double difference(tn_tensor *a, tn_tensor *b)
{
    tn_tensor *largest = tn_amax(tn_abs(b), NULL, 0, false);
    tn_tensor *worst = tn_amax(tn_abs(tn_sub(a, b)), NULL, 0, false);
    TN_CHECK_PTR(worst);
    return tn_item(worst) / fmax(1, tn_item(largest));
}

static bool same_bits(const tn_list *a, const tn_list *b)
{
    TN_CHECK_PTR(a);
    TN_CHECK_PTR(b);
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) {
        const char *name = a->entry[i].name;
        same = tn_list_has(b, name) && tn_hash(tn_list_get(b, name)) == tn_hash(a->entry[i].tensor);
    }
    return same;
}

static bool exists(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file != NULL;
}

static bool read_model(const interop_model *model)
{
    tn_module *m = model->make();
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to(m, device));
    TN_CHECK(tn_load(m, path_of(model->name, ".theirs.pt")));
    TN_CHECK(tn_eval(m));
    TN_CHECK(tn_save(m, path_of(model->name, ".back.pt")));
    TN_CHECK(tn_save(m, path_of(model->name, ".back.safetensors")));
    bool good = true;
    double worst = 0;
    if (model->input != NONE) {
        tn_list *io = tn_load_tensors(path_of(model->name, ".theirs.io.pt"), NULL);
        TN_CHECK_PTR(io);
        tn_tensor *x[3] = { tn_list_get(io, "x") };
        if (model->input == QKV) x[1] = tn_list_get(io, "k"), x[2] = tn_list_get(io, "v");
        for (int i = 0; i < (model->input == QKV ? 3 : 1); i++) x[i] = tn_to(x[i], device);
        worst = difference(interop_forward(model, m, x), tn_to(tn_list_get(io, "y"), device));
        good = worst <= (dtype_of(m) == TN_F64 ? 1e-12 : 1e-5);
    }
    const char *returned = path_of(model->name, ".returned.pt");
    if (exists(returned)) {
        const char *ours = path_of(model->name, ".safetensors");
        good = same_bits(tn_load_tensors(returned, NULL), tn_load_tensors(ours, NULL)) && good;
    }
    printf("%-26s %s  outputs differ by %.1e\n", model->name, good ? "ok" : "FAILED", worst);
    tn_module_drop(m);
    return good;
}

int main(int argc, char **argv)
{
    static const char usage[] = "[--device cpu|cuda] write FOLDER | read FOLDER | "
                                "convert IN OUT [KEY]";
    const char *name = "cpu";
    ex_option flags[] = { EX_TEXT("device", name, "NAME", 0, "cpu or cuda") };
    int first = ex_parse(usage, flags, 1, 4, argc, argv), n = argc - first;
    const char *what = n > 0 ? argv[first] : "";
    device = ex_device(name);
    int failed = 0;
    if (n >= 3 && !strcmp(what, "convert")) {
        tn_scope s = tn_scope_begin();
        const tn_load_options o = { .key = n == 4 ? argv[first + 3] : NULL };
        tn_list *list = tn_load_tensors_with(argv[first + 1], o, NULL, NULL);
        TN_CHECK_PTR(list);
        TN_CHECK(tn_save_tensors(list, NULL, argv[first + 2]));
        tn_scope_end(s);
        return ex_end();
    }
    if (n != 2 || (strcmp(what, "write") != 0 && strcmp(what, "read") != 0))
        ex_refuse("usage: interop %s", usage);
    folder = argv[first + 1];
    for (int i = 0; i < interop_count; i++) {
        tn_scope s = tn_scope_begin();
        tn_manual_seed((uint64_t)i);
        if (!strcmp(what, "write"))
            write_model(&interop_models[i]);
        else
            failed += !read_model(&interop_models[i]);
        tn_scope_end(s);
    }
    printf("%d models %s, %d failed\n", interop_count, !strcmp(what, "write") ? "written" : "read",
           failed);
    return ex_end() || failed;
}
