/*
 * Checks exercise 2 against finite differences.
 */
#include "../check.h"

tn_tensor *share(tn_tensor *x);
tn_tensor *share_gradient(tn_tensor *x, tn_tensor *dy);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_from_data((double[]){ 1, 2, 3, 4, 0.5, 2 }, TN_SHAPE(2, 3), TN_F64);
        tn_tensor *dy = tn_from_data((double[]){ 1, -1, 2, 0.5, 3, 1 }, TN_SHAPE(2, 3), TN_F64);
        want_same("dx", share_gradient(x, dy), moved_gradient(share, x, dy));
    }
    return right();
}
