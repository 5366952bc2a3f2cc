/*
 * Mistake: requires_grad of the first layer was switched off, and not on again.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_module *m = net_new();
    TN_CHECK(tn_module_set_requires_grad(tn_get_submodule(m, "0"), false));
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    train(m, opt, &b, 100);
    TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));

    TN_CHECK(tn_module_set_requires_grad(m, true)); /* the cure */
    train(m, opt, &b, 100);
    tn_optim_free(opt), tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
