/*
 * Heads: one axis becomes two, and two axes change places; then back.
 */
#include <tenon/tenon.h>

tn_tensor *split_heads(tn_tensor *x, int64_t heads)
{
    return tn_transpose(tn_reshape(x, TN_SHAPE(tn_size(x, 0), tn_size(x, 1), heads, -1)), 1, 2);
}

tn_tensor *join_heads(tn_tensor *y)
{
    return tn_flatten(tn_transpose(y, 1, 2), 2, 3);
}
