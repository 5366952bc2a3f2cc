/*
 * Mistake: no scope around a step. What every step made stays until the outer scope ends.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_module *m = net_new();
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    TN_CHECK_PTR(opt);
    int64_t before = 0;
    for (int i = 0; i < 12; i++) { /* TN_SCOPE should stand here */
        if (i == 2) before = tn_live_tensors();
        tn_tensor *loss = loss_of(m, &b);
        TN_CHECK(tn_optim_zero_grad(opt));
        TN_CHECK(tn_backward(loss));
        TN_CHECK(tn_optim_step(opt));
    }
    printf("diagnosis: a leak of scopes: every step leaves %" PRId64 " tensors\n",
           (tn_live_tensors() - before) / 10);

    before = tn_live_tensors();
    for (int i = 0; i < 10; i++) step_of(m, opt, &b); /* the cure */
    printf("with a scope in each step: %" PRId64 "\n", (tn_live_tensors() - before) / 10);
    tn_optim_free(opt), tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
