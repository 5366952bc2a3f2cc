/*
 * Checks exercise 2: the value, and the gradient x / 2.
 */
#include "../check.h"

tn_tensor *energy(tn_tensor *x);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_from_floats((float[]){ 1, -2, 3 }, TN_SHAPE(3));
        TN_CHECK(tn_set_requires_grad(x, true));
        tn_tensor *y = energy(x);
        want_values("the energy of 1, -2, 3", y, TN_SCALAR, (double[]){ 3.5 });
        want_ok("backward", tn_backward(y));
        want_values("its gradient", tn_grad(x), TN_SHAPE(3), (double[]){ 0.5, -1, 1.5 });
    }
    return right();
}
