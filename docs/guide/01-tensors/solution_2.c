/*
 * The diagonal: in one long row, its elements are n + 1 apart.
 */
#include <tenon/tenon.h>

tn_tensor *diagonal(tn_tensor *x)
{
    int64_t n = tn_size(x, 0);
    return tn_slice(tn_reshape(x, TN_SHAPE(-1)), 0, 0, n * n, n + 1);
}
