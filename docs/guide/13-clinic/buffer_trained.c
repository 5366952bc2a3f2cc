/*
 * Mistake: the whole state dict, buffers included, is given to an optimizer.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_linear_options o = { 0 };
    tn_module *m = tn_sequential(tn_linear_new(2, 16, o),
                                 tn_batch_norm1d_new(16, (tn_batch_norm_options){ 0 }),
                                 tn_relu_new(), tn_linear_new(16, 2, o));
    TN_CHECK_PTR(m);
    tn_optim *opt = tn_sgd(tn_state_dict(m, ""), (tn_sgd_options){ .lr = 0.5 });
    if (!opt) printf("diagnosis: %s\n", tn_error());

    /* The cure: its parameters alone. */
    opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    TN_CHECK_PTR(opt);
    batch b = points(64, 1);
    train(m, opt, &b, 100);
    tn_optim_free(opt), tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
