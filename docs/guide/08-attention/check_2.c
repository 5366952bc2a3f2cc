/*
 * Checks exercise 2: where numbers go, and that they come back.
 */
#include "../check.h"

tn_tensor *split_heads(tn_tensor *x, int64_t heads);
tn_tensor *join_heads(tn_tensor *y);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_reshape(tn_arange(0, 12, 1, TN_F32), TN_SHAPE(1, 3, 4));
        tn_tensor *y = split_heads(x, 2);
        want_values("[1, 3, 4] in 2 heads", y, TN_SHAPE(1, 2, 3, 2),
                    (double[]){ 0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11 });
        want(tn_same_storage(x, y), "split_heads copies: want a view");
        want_same("joined again", join_heads(y), x);
    }
    return right();
}
