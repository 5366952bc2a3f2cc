/*
 * The diagonal of a square matrix x [n, n] as a tensor [n], without a copy: it must share x's
 * memory. Two views, one of the other, are enough.
 */
#include <tenon/tenon.h>

tn_tensor *diagonal(tn_tensor *x)
{
    (void)x;
    return TN_NONE; /* your code here */
}
