/*
 * Checks exercise 2 against finite differences.
 */
#include "../check.h"

tn_tensor *normalise(tn_tensor *x);
tn_tensor *normalise_gradient(tn_tensor *x, tn_tensor *dy);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x =
            tn_from_data((double[]){ 1, 10, 2, 9, 3, 12, 6, 14 }, TN_SHAPE(4, 2), TN_F64);
        tn_tensor *dy =
            tn_from_data((double[]){ 1, -1, 0, 2, 3, 0.5, -2, 1 }, TN_SHAPE(4, 2), TN_F64);
        want_same("dx", normalise_gradient(x, dy), moved_gradient(normalise, x, dy));
    }
    return right();
}
