/*
 * Mistake: gradients are never cleared, so each step goes along the sum of all gradients so far.
 * The loss swings down and up, and does not settle.
 */
#include "clinic.h"

static void live(bool clear)
{
    batch b = line();
    tn_module *m = tn_linear_new(2, 1, (tn_linear_options){ 0 });
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.01 });
    TN_CHECK_PTR(opt);
    printf(clear ? "cleared:   " : "forgotten: ");
    for (int i = 0; i <= 100; i++) TN_SCOPE
        {
            tn_tensor *loss = line_loss(m, &b);
            if (i % 10 == 0) printf(" %.2f", tn_item(loss));
            if (clear) TN_CHECK(tn_optim_zero_grad(opt)); /* the cure */
            TN_CHECK(tn_backward(loss));
            TN_CHECK(tn_optim_step(opt));
        }
    printf("\n");
    TN_CHECK(tn_explain_training(stdout, m, opt, line_loss, &b, NULL));
    tn_optim_free(opt), tn_module_drop(m);
}

int main(void)
{
    TN_SCOPE live(false);
    TN_SCOPE live(true);
    return 0;
}
