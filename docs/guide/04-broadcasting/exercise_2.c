/*
 * A linear layer: y = x w^T + b, x [N, in], w [out, in], b [out]; b is stretched over the N rows.
 * Given dy [N, out], fill in the three gradients. Only products, transposes and one sum are needed.
 */
#include <tenon/tenon.h>

void linear_gradients(tn_tensor *x, tn_tensor *w, tn_tensor *dy, tn_tensor **dx, tn_tensor **dw,
                      tn_tensor **db)
{
    (void)x, (void)w, (void)dy;
    *dx = *dw = *db = TN_NONE; /* your code here */
}
