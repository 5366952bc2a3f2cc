/*
 * Chapter 13: the healthy program. Each of the others makes one mistake.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_module *model = net_new();
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.5 });
    TN_CHECK_PTR(opt);
    train(model, opt, &b, 100);
    TN_CHECK(tn_explain_training(stdout, model, opt, loss_of, &b, NULL));
    tn_optim_free(opt), tn_module_drop(model);
    tn_scope_end(scope);
    return 0;
}
