/*
 * adapter.c - an adapter of the peft package's, trained on here, for it to read again.
 *
 *     adapter FOLDER      loads base.safetensors and the adapter theirs/, all in FOLDER, and writes
 *                         the output for x.safetensors as read.safetensors; trains a few steps;
 *                         writes the adapter ours/, its output as trained.safetensors, and that of
 *                         the merged model as merged.safetensors
 *
 * adapter.py makes what is read here and checks what is written.
 */
#include <tenon/lora.h>

#include <tenon/tenon.h>

static char path_text[8][4096];
static const char *folder;

static const char *path_of(const char *name)
{
    static int next;
    next = (next + 1) % 8;
    snprintf(path_text[next], sizeof path_text[next], "%s/%s", folder, name);
    return path_text[next];
}

static void write_output(tn_module *m, tn_tensor *x, const char *name)
{
    tn_list *list = tn_list_new();
    TN_CHECK(tn_list_add(list, "y", tn_forward(m, x)));
    TN_CHECK(tn_save_tensors(list, NULL, path_of(name)));
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: adapter FOLDER\n"), 2;
    folder = argv[1];
    tn_scope scope = tn_scope_begin();
    const tn_linear_options o = { 0 };
    tn_module *m = tn_sequential(tn_linear_new(6, 32, o), tn_relu_new(), tn_linear_new(32, 32, o),
                                 tn_relu_new(), tn_linear_new(32, 3, o));
    TN_CHECK_PTR(m);
    TN_CHECK(tn_load(m, path_of("base.safetensors")));
    tn_list *given = tn_load_tensors(path_of("x.safetensors"), NULL);
    TN_CHECK_PTR(given);
    tn_tensor *x = tn_list_get(given, "x");
    TN_CHECK(tn_lora_load(m, path_of("theirs"), (tn_lora_load_options){ 0 }));
    write_output(m, x, "read.safetensors");
    tn_optim *opt = tn_adamw(tn_parameters(m), (tn_adamw_options){ .lr = 1e-2 });
    TN_CHECK_PTR(opt);
    for (int i = 0; i < 10; i++) {
        TN_CHECK(tn_optim_zero_grad(opt));
        TN_CHECK(tn_backward(tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false)));
        TN_CHECK(tn_optim_step(opt));
    }
    TN_CHECK(tn_lora_save(m, path_of("ours")));
    TN_CHECK(tn_eval(m));
    write_output(m, x, "trained.safetensors");
    TN_CHECK(tn_lora_merge(m));
    write_output(m, x, "merged.safetensors");
    tn_optim_free(opt);
    tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
