/*
 * Checks exercise 2 with a file that is written here.
 */
#include "../check.h"

tn_status load_foreign(tn_module *m, const char *path);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *weight = tn_from_floats((float[]){ 1, 2 }, TN_SHAPE(1, 2));
        tn_list *list = tn_list_new();
        TN_CHECK(tn_list_add(list, "model.0.weight", weight));
        TN_CHECK(tn_list_add(list, "model.0.bias", tn_full(TN_SHAPE(1), 3)));
        TN_CHECK(tn_list_add(list, "epoch", tn_scalar(12)));
        TN_CHECK(tn_save_tensors(list, NULL, "foreign.safetensors"));
        tn_module *m = tn_sequential(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
        want_ok("load_foreign", load_foreign(m, "foreign.safetensors"));
        want_values("0.weight", tn_get_parameter(m, "0.weight"), TN_SHAPE(1, 2),
                    (double[]){ 1, 2 });
        want_values("0.bias", tn_get_parameter(m, "0.bias"), TN_SHAPE(1), (double[]){ 3 });
        tn_module_drop(m);
    }
    return right();
}
