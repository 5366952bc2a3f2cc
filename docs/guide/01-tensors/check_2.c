/*
 * Checks exercise 2, the diagonal as a view.
 */
#include "../check.h"

tn_tensor *diagonal(tn_tensor *x);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_reshape(tn_arange(1, 10, 1, TN_F32), TN_SHAPE(3, 3)), *d = diagonal(x);
        want_values("the diagonal of 1 to 9", d, TN_SHAPE(3), (double[]){ 1, 5, 9 });
        want(tn_same_storage(d, x), "it is a copy: want a view");
        TN_CHECK(tn_fill_(d, 0));
        want_values("x after its diagonal was set to 0", x, TN_SHAPE(3, 3),
                    (double[]){ 0, 2, 3, 4, 0, 6, 7, 8, 0 });
    }
    return right();
}
