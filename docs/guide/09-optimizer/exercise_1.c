/*
 * Adam, for one parameter p with gradient g; m and v start as zeros, step counts from 1:
 *     m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
 *     p -= lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
 * with lr 0.1, b1 0.9, b2 0.999, eps 1e-8. Change p, m and v in place. It is called under
 * TN_NO_GRAD.
 */
#include <math.h>
#include <tenon/tenon.h>

tn_status adam(tn_tensor *p, tn_tensor *g, tn_tensor *m, tn_tensor *v, int step)
{
    (void)m, (void)v, (void)step;
    return tn_sub_(p, tn_mul_scalar(g, 0.1)); /* your code here: this is plain SGD */
}
