/*
 * Mistake: the learning rate is too low, one of Adam's for plain gradient descent.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    for (int cured = 0; cured < 2; cured++) {
        tn_module *m = net_new();
        tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = cured ? 0.5 : 1e-4 });
        train(m, opt, &b, 100);
        TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));
        tn_optim_free(opt), tn_module_drop(m);
    }
    tn_scope_end(scope);
    return 0;
}
