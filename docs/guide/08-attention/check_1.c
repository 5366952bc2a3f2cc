/*
 * Checks exercise 1: the mask, and that attention with it does not see the padding.
 */
#include "../check.h"

tn_tensor *padding_mask(tn_tensor *lengths, int64_t longest);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *lengths = tn_from_ints((int64_t[]){ 3, 1, 4 }, TN_SHAPE(3));
        tn_tensor *mask = padding_mask(lengths, 4);
        want_values("lengths 3, 1, 4", mask, TN_SHAPE(3, 4),
                    (double[]){ 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0 });
        want(tn_dtype_of(mask) == TN_BOOL, "it is %s: want bool", tn_dtype_name(tn_dtype_of(mask)));
        tn_tensor *x = tn_randn(TN_SHAPE(3, 4, 2)), *y = tn_clone(x);
        TN_CHECK(tn_fill_(tn_narrow(tn_select(y, 0, 1), 0, 1, 3), 100)); /* its padding */
        mask = tn_unsqueeze(mask, 1);
        tn_tensor *a = tn_scaled_dot_product_attention(x, x, x, mask, false, 0);
        tn_tensor *b = tn_scaled_dot_product_attention(x, y, y, mask, false, 0);
        want(tn_max_abs_diff(a, b) < 1e-6, "what stands in the padding changes the result");
    }
    return right();
}
