/*
 * Clipping: if the joint norm of all gradients (the square root of the sum of all their squares) is
 * above limit, multiply every gradient in place by limit / norm. Return the norm before. Parameters
 * without a gradient (TN_NONE) don't count.
 */
#include <math.h>
#include <tenon/tenon.h>

double clip(tn_list *parameters, double limit)
{
    (void)parameters, (void)limit;
    return 0; /* your code here */
}
