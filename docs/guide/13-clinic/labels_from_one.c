/*
 * Mistake: the classes are counted from 1. A net of as many classes cannot take them; one of a
 * class more can, and wastes it.
 */
#include "clinic.h"

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_manual_seed(7);
    tn_linear_options o = { 0 };
    tn_module *two = net_new();
    tn_module *three =
        tn_sequential(tn_linear_new(2, 16, o), tn_relu_new(), tn_linear_new(16, 3, o));
    b.y = tn_add_scalar(b.y, 1);
    if (tn_explain_training(stdout, two, NULL, loss_of, &b, NULL) != TN_OK)
        printf("diagnosis: %s\n", tn_error());
    tn_error_clear();
    TN_CHECK(tn_explain_training(stdout, three, NULL, loss_of, &b, NULL));

    b.y = tn_sub_scalar(b.y, 1); /* the cure */
    TN_CHECK(tn_explain_training(stdout, two, NULL, loss_of, &b, NULL));
    tn_module_drop(two), tn_module_drop(three);
    tn_scope_end(scope);
    return 0;
}
