/* xor - a complete training program: two layers learn "one or the other, but not both".
 * usage: xor [--device cpu|cuda] [--html FILE]     FILE: a page that plays the first three steps */
#include <string.h>
#include <tenon/tenon.h>
#define STOP(status, ...) (fprintf(stderr, "xor: " __VA_ARGS__), exit(status))

int main(int argc, char **argv)
{
    const float inputs[] = { 0, 0, 0, 1, 1, 0, 1, 1 }, wanted[] = { 0, 1, 1, 0 };
    const char *where = "cpu", *html = NULL;
    for (int i = 1; i < argc; i += 2) { /* a flag and its argument */
        const char **option = strcmp(argv[i], "--html") ? &where : &html;
        if (!strcmp(argv[i], "--help")) return puts("xor [--device cpu|cuda] [--html FILE]") < 0;
        if (option == &where && strcmp(argv[i], "--device"))
            STOP(2, "%s %s\n", *argv[i] == '-' ? "unknown flag" : "unexpected argument", argv[i]);
        if (!(*option = argv[i + 1])) STOP(2, "%s needs an argument\n", argv[i]);
    }
    bool cuda = !strcmp(where, "cuda");
    if (!cuda && strcmp(where, "cpu")) STOP(2, "--device %s: want cpu or cuda\n", where);
    if (cuda && !tn_cuda_available()) STOP(1, "--device cuda: %s\n", tn_cuda_why());
    tn_device device = cuda ? tn_cuda(0) : tn_cpu(); /* of x, y and the model */
    FILE *page = html ? fopen(html, "w") : NULL;
    if (html && !page) return perror(html), 2;

    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* holds x, y and the optimizer's list until the end */
    tn_tensor *x = tn_to(tn_from_floats(inputs, TN_SHAPE(4, 2)), device);
    tn_tensor *y = tn_to(tn_from_floats(wanted, TN_SHAPE(4, 1)), device);
    tn_module *model = tn_sequential(tn_linear_new(2, 8, (tn_linear_options){ 0 }), tn_tanh_new(),
                                     tn_linear_new(8, 1, (tn_linear_options){ 0 }));
    TN_CHECK(tn_module_to(model, device));
    tn_optim *optimizer = tn_adam(tn_parameters(model), (tn_adam_options){ .lr = 0.05 });
    tn_trace_options told = { .model = model, .opt = optimizer, .title = "xor", .lines = true };
    tn_trace *trace = page ? tn_trace_begin(told) : NULL;

    for (int step = 0; step <= 500; step++) {
        tn_scope scope = tn_scope_begin(); /* drops what the step makes */
        tn_tensor *loss = tn_bce_with_logits(tn_forward(model, x), y, TN_NONE, TN_MEAN);
        TN_CHECK(tn_optim_zero_grad(optimizer));
        TN_CHECK(tn_backward(loss));
        TN_CHECK(tn_optim_step(optimizer));
        if (page && step == 2) TN_CHECK(tn_trace_end(trace));
        if (step % 100 == 0) printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope);
    }

    tn_tensor *p = tn_sigmoid(tn_forward(model, x));
    TN_CHECK_PTR(p);
    for (int i = 0; i < 4; i++)
        printf("%g xor %g = %.3f\n", inputs[2 * i], inputs[2 * i + 1], tn_at(p, TN_INDEX(i, 0)));
    bool right = tn_max_abs_diff(p, y) < 0.5;
    if (page && (tn_trace_html(page, &trace, 1) || fclose(page)))
        STOP(1, "--html %s: could not be written\n", html);
    if (html) fprintf(stderr, "page written: %s; open it: xdg-open %s\n", html, html);
    tn_trace_free(trace), tn_optim_free(optimizer), tn_module_drop(model), tn_scope_end(program);
    if (fflush(stdout)) return perror("xor: standard output"), 1;
    return !right;
}
