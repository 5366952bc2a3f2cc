/* xor - a complete training program: two layers learn "one or the other, but not both".
 * usage: xor [--device cpu|cuda] [--html FILE] */
#include "../common.h"

int main(int argc, char **argv)
{
    const float inputs[] = { 0, 0, 0, 1, 1, 0, 1, 1 };
    const float wanted[] = { 0, 1, 1, 0 };

    /* of x, y and the model */
    const char *html;
    tn_device device = ex_parse_few(&argc, argv, 0,
                                    "usage: xor [--device cpu|cuda] [--html FILE]\n"
                                    "--html: a page that plays the first three steps\n",
                                    &html);
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* holds x, y and the optimizer's list until the end */
    tn_tensor *x = tn_to(tn_from_floats(inputs, TN_SHAPE(4, 2)), device);
    tn_tensor *y = tn_to(tn_from_floats(wanted, TN_SHAPE(4, 1)), device);

    tn_module *model = tn_sequential(tn_linear_new(2, 8, (tn_linear_options){ 0 }), tn_tanh_new(),
                                     tn_linear_new(8, 1, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_to(model, device));
    tn_optim *optimizer = tn_adam(tn_parameters(model), (tn_adam_options){ .lr = 0.05 });
    TN_CHECK_PTR(optimizer);

    ex_page page;
    ex_page_begin(&page, html, 3, model, optimizer);
    for (int step = 0; step <= 500; step++) {
        tn_scope scope = tn_scope_begin(); /* drops what the step makes */
        tn_tensor *loss = tn_bce_with_logits(tn_forward(model, x), y, TN_NONE, TN_MEAN);
        TN_CHECK(tn_optim_zero_grad(optimizer));
        TN_CHECK(tn_backward(loss));
        TN_CHECK(tn_optim_step(optimizer));
        ex_page_step(&page);
        if (step % 100 == 0) printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope);
    }

    int wrong = 0;
    tn_tensor *p = tn_sigmoid(tn_forward(model, x));
    TN_CHECK_PTR(p);
    for (int64_t i = 0; i < 4; i++) {
        double guess = tn_at(p, TN_INDEX(i, 0));
        printf("%g xor %g = %.3f\n", inputs[2 * i], inputs[2 * i + 1], guess);
        wrong += (guess > 0.5) != (wanted[i] > 0.5);
    }
    tn_optim_free(optimizer);
    tn_module_drop(model);
    tn_scope_end(program);
    return ex_end() || wrong > 0;
}
