/*
 * Mistake: the inputs are left as they came, from 0 to 255.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    b.x = tn_clamp(tn_mul_scalar(tn_add_scalar(b.x, 2), 64), 0, 255); /* as bytes hold them */
    for (int cured = 0; cured < 2; cured++) {
        tn_module *m = net_new();
        tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
        if (cured) b.x = tn_div_scalar(tn_sub_scalar(b.x, 128), 64);
        train(m, opt, &b, 100);
        TN_CHECK(tn_explain_training(stdout, m, NULL, loss_of, &b, NULL));
        tn_optim_free(opt), tn_module_drop(m);
    }
    tn_scope_end(scope);
    return 0;
}
