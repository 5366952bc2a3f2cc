/*
 * The gradients of a linear layer.
 */
#include <tenon/tenon.h>

void linear_gradients(tn_tensor *x, tn_tensor *w, tn_tensor *dy, tn_tensor **dx, tn_tensor **dw,
                      tn_tensor **db)
{
    *dx = tn_matmul(dy, w);
    *dw = tn_matmul(tn_transpose(dy, 0, 1), x);
    *db = tn_sum(dy, TN_AXES(0), false);
}
