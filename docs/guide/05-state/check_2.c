/*
 * Checks exercise 2: what the buffer holds after each call, and that no graph hangs on it.
 */
#include "../check.h"

tn_module *memory_new(void);

int main(void)
{
    TN_SCOPE
    {
        tn_module *m = memory_new();
        want(m, "memory_new: %s", tn_error());
        tn_tensor *x = tn_full(TN_SHAPE(1), 4);
        TN_CHECK(tn_set_requires_grad(x, true));
        want_values("m(4)", tn_forward(m, x), TN_SHAPE(1), (double[]){ 2 });
        want_values("last", tn_get_buffer(m, "last"), TN_SHAPE(1), (double[]){ 2 });
        want_values("m(4) again", tn_forward(m, x), TN_SHAPE(1), (double[]){ 4 });
        want_values("last", tn_get_buffer(m, "last"), TN_SHAPE(1), (double[]){ 4 });
        want(!tn_requires_grad(tn_get_buffer(m, "last")),
             "last has history: each call would hang on all calls before");
        want_ok("moving it", tn_module_to_dtype(m, TN_F64));
        tn_module_drop(m);
    }
    return right();
}
