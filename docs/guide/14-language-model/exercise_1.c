/*
 * Rotary positions. x is [T, D]: row t holds D / 2 pairs, (x[i], x[i + D / 2]). Turn pair i of row
 * t by the angle t f_i, f_i = 10000^(-2i / D): (a, b) becomes (a cos - b sin, b cos + a sin).
 * tn_narrow takes halves of the last axis, tn_cat joins them.
 */
#include <math.h>
#include <tenon/tenon.h>

tn_tensor *rotate(tn_tensor *x)
{
    (void)x;
    return TN_NONE; /* your code here */
}
