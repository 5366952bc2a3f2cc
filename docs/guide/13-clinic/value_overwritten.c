/*
 * Mistake: a hidden layer's result is halved in place, and backward needs it as it was.
 */
#include "clinic.h"

static tn_tensor *hidden(tn_module *m, tn_tensor *x, bool in_place)
{
    tn_tensor *h = tn_sigmoid(tn_forward(tn_module_child(m, 0), x)); /* keeps its result */
    if (!in_place) return tn_mul_scalar(h, 0.5);                     /* the cure */
    TN_NO_GRAD TN_CHECK(tn_mul_scalar_(h, 0.5));
    return h;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_module *m = net_new(), *out = tn_module_child(m, 2);
    tn_tensor *loss = tn_cross_entropy(tn_forward(out, hidden(m, b.x, true)), b.y);
    if (tn_backward(loss) != TN_OK) printf("diagnosis: %s\n", tn_error());

    loss = tn_cross_entropy(tn_forward(out, hidden(m, b.x, false)), b.y);
    TN_CHECK(tn_backward(loss));
    printf("out of place: backward works\n");
    tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
