/*
 * Top-p: a token is kept while those before it have less than m together.
 */
#include <tenon/tenon.h>

int64_t nucleus(tn_tensor *p, double m)
{
    tn_tensor *before = tn_sub(tn_cumsum(p, 0), p);
    return (int64_t)tn_item(tn_sum_all(tn_to_dtype(tn_lt_scalar(before, m), TN_F32)));
}
