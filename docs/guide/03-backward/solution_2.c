/*
 * y = x / s: dy / s through the numerator; through s every element gets -sum(dy y) / s.
 */
#include <tenon/tenon.h>

tn_tensor *share(tn_tensor *x)
{
    return tn_div(x, tn_sum(x, TN_AXES(-1), true));
}

tn_tensor *share_gradient(tn_tensor *x, tn_tensor *dy)
{
    tn_tensor *s = tn_sum(x, TN_AXES(-1), true);
    tn_tensor *through_s = tn_sum(tn_mul(dy, share(x)), TN_AXES(-1), true);
    return tn_div(tn_sub(dy, through_s), s);
}
