/*
 * Checks exercise 1: against tn_rotary, and that products of rows depend on their distance alone.
 */
#include "../check.h"

tn_tensor *rotate(tn_tensor *x);

int main(void)
{
    TN_SCOPE
    {
        tn_manual_seed(2);
        tn_tensor *f = tn_from_floats((float[]){ 1, 0.01F }, TN_SHAPE(2));
        tn_tensor *at = tn_reshape(tn_arange(0, 5, 1, TN_F32), TN_SHAPE(5, 1));
        tn_tensor *angle = tn_mul(at, f), *x = tn_randn(TN_SHAPE(5, 4));
        want_same("rows of 4", rotate(x), tn_rotary(x, tn_cos(angle), tn_sin(angle), false));
        tn_tensor *same = tn_expand(tn_narrow(x, 0, 0, 1), TN_SHAPE(5, 4)), *y = rotate(same);
        tn_tensor *dot = tn_matmul(y, tn_transpose(y, 0, 1));
        want(close_to(tn_at(dot, TN_INDEX(1, 2)), tn_at(dot, TN_INDEX(3, 4))),
             "equal rows at a distance of 1 have products that differ");
    }
    return right();
}
