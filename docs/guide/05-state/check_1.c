/*
 * Checks exercise 1: what the module registered, and as what.
 */
#include "../check.h"

tn_module *counter_new(void);

int main(void)
{
    TN_SCOPE
    {
        tn_module *m = counter_new();
        want(m, "counter_new: %s", tn_error());
        tn_tensor *gain = tn_get_buffer(m, "gain"), *calls = tn_get_buffer(m, "calls");
        want(gain && calls, "%s", tn_error());
        tn_list *saved = tn_state_dict(m, "");
        want(tn_list_has(saved, "gain"), "gain is in no file");
        want(!tn_list_has(saved, "calls"), "calls would be saved");
        want(tn_parameters(m)->n == 0, "it has parameters: want buffers alone");
        tn_tensor *x = tn_ones(TN_SHAPE(1));
        want_values("m(1)", tn_forward(m, x), TN_SHAPE(1), (double[]){ 3 });
        want_values("m(1)", tn_forward(m, x), TN_SHAPE(1), (double[]){ 3 });
        want_values("calls after two calls", calls, TN_SCALAR, (double[]){ 2 });
        tn_module_drop(m);
    }
    return right();
}
