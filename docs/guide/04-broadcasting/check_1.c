/*
 * Checks exercise 1 on sums done by hand.
 */
#include "../check.h"

tn_tensor *sum_to(tn_tensor *dy, tn_shape shape);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *dy = tn_from_floats((float[]){ 1, 2, 3, 10, 20, 30 }, TN_SHAPE(2, 3));
        want_values("[2, 3] to [3]", sum_to(dy, TN_SHAPE(3)), TN_SHAPE(3),
                    (double[]){ 11, 22, 33 });
        want_values("[2, 3] to [2, 1]", sum_to(dy, TN_SHAPE(2, 1)), TN_SHAPE(2, 1),
                    (double[]){ 6, 60 });
        want_values("[2, 3] to a single value", sum_to(dy, TN_SCALAR), TN_SCALAR, (double[]){ 66 });
        want_values("[2, 3] to [1, 1]", sum_to(dy, TN_SHAPE(1, 1)), TN_SHAPE(1, 1),
                    (double[]){ 66 });
        want_values("[2, 3] to itself", sum_to(dy, TN_SHAPE(2, 3)), TN_SHAPE(2, 3),
                    (double[]){ 1, 2, 3, 10, 20, 30 });
        tn_tensor *three = tn_reshape(tn_arange(0, 24, 1, TN_F32), TN_SHAPE(2, 3, 4));
        want_values("[2, 3, 4] to [3, 1]", sum_to(three, TN_SHAPE(3, 1)), TN_SHAPE(3, 1),
                    (double[]){ 60, 92, 124 });
    }
    return right();
}
