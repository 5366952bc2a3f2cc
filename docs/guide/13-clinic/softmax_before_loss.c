/*
 * Mistake: the net ends in a softmax, and the loss takes the softmax of it once more.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    for (int cured = 0; cured < 2; cured++) {
        tn_module *m = net_new();
        if (!cured) TN_CHECK(tn_module_append(m, tn_softmax_new(1)));
        tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
        train(m, opt, &b, 100);
        TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));
        tn_optim_free(opt), tn_module_drop(m);
    }
    tn_scope_end(scope);
    return 0;
}
