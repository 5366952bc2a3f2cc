/*
 * Mistake: the weights before a sigmoid begin far too large, so each unit is at one of its ends.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    for (int cured = 0; cured < 2; cured++) {
        tn_linear_options o = { 0 };
        tn_manual_seed(7);
        tn_module *m =
            tn_sequential(tn_linear_new(2, 16, o), tn_tanh_new(), tn_linear_new(16, 2, o));
        TN_CHECK_PTR(m);
        if (!cured) TN_CHECK(tn_init_uniform(tn_get_parameter(m, "0.weight"), -500, 500));
        tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
        train(m, opt, &b, 200);
        TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));
        tn_optim_free(opt), tn_module_drop(m);
    }
    tn_scope_end(scope);
    return 0;
}
