/*
 * Checks exercise 2 on gradients of norm 3, 4, 12 and none: jointly 13.
 */
#include "../check.h"

double clip(tn_list *parameters, double limit);

int main(void)
{
    const float grads[] = { 3, 4, 12 };
    TN_SCOPE
    {
        tn_list *list = tn_list_new();
        for (int i = 0; i < 4; i++) {
            tn_tensor *p = tn_zeros(TN_SHAPE(1));
            TN_CHECK(tn_set_requires_grad(p, true));
            TN_CHECK(tn_list_add(list, (const char *[]){ "a", "b", "c", "d" }[i], p));
            if (i < 3) TN_CHECK(tn_set_grad(p, tn_from_floats(&grads[i], TN_SHAPE(1))));
        }
        want(close_to(clip(list, 20), 13), "clip(20) returns another norm than 13");
        want_values("c's gradient after clip(20)", tn_grad(list->entry[2].tensor), TN_SHAPE(1),
                    (double[]){ 12 });
        want(close_to(clip(list, 6.5), 13), "clip(6.5) returns another norm than 13");
        for (int i = 0; i < 3; i++)
            want_values("a gradient after clip(6.5)", tn_grad(list->entry[i].tensor), TN_SHAPE(1),
                        (double[]){ (double)grads[i] / 2 });
        want(tn_is_none(tn_grad(list->entry[3].tensor)), "d has a gradient now");
    }
    return right();
}
