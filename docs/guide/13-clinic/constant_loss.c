/*
 * Mistake: the loss goes through a number, which has no history, so backward has nowhere to go.
 */
#include "clinic.h"

static tn_tensor *through_a_number(tn_module *m, void *user)
{
    return tn_scalar(tn_item(loss_of(m, user)));
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_module *m = net_new();
    TN_CHECK(tn_explain_training(stdout, m, NULL, through_a_number, &b, NULL));
    TN_CHECK(tn_explain_training(stdout, m, NULL, loss_of, &b, NULL));
    tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
