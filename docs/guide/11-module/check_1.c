/*
 * Checks exercise 1: names, the value for weights that are set here, and the gradients.
 */
#include "../check.h"

tn_module *glu_new(int64_t in, int64_t out);

static tn_tensor *loss(tn_module *m, void *user)
{
    return tn_mean_all(tn_square(tn_forward(m, user)));
}

int main(void)
{
    TN_SCOPE
    {
        tn_module *m = glu_new(2, 1);
        want(m, "glu_new: %s", tn_error());
        tn_list *p = tn_parameters(m);
        want(p->n == 2 && tn_list_has(p, "fc.weight") && tn_list_has(p, "fc.bias"),
             "it has %d parameters: want fc.weight and fc.bias", p->n);
        tn_tensor *w = tn_from_floats((float[]){ 1, 2, 3, -1 }, TN_SHAPE(2, 2));
        want_ok("setting fc.weight", tn_module_set(m, "fc.weight", w));
        want_ok("setting fc.bias", tn_module_set(m, "fc.bias", tn_zeros(TN_SHAPE(2))));
        tn_tensor *x = tn_from_floats((float[]){ 1, 3, -2, 0.5F }, TN_SHAPE(2, 2));
        /* a = 7, b = 0 and a = -1, b = -6.5 */
        want_values("y", tn_forward(m, x), TN_SHAPE(2, 1), (double[]){ 3.5, -1 / (1 + exp(6.5)) });
        want_ok("its gradients",
                tn_module_gradcheck(m, loss, x, (tn_module_gradcheck_options){ 0 }));
        tn_module_drop(m);
    }
    return right();
}
