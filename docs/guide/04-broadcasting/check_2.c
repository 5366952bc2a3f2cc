/*
 * Checks exercise 2: the numbers are those of torch.nn.functional.linear and its backward.
 */
#include "../check.h"

void linear_gradients(tn_tensor *x, tn_tensor *w, tn_tensor *dy, tn_tensor **dx, tn_tensor **dw,
                      tn_tensor **db);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_from_floats((float[]){ 1, 2, 3, 4, 5, 6 }, TN_SHAPE(3, 2));
        tn_tensor *w = tn_from_floats((float[]){ 1, -1, 2, 0.5F }, TN_SHAPE(2, 2));
        tn_tensor *dy = tn_from_floats((float[]){ 1, 0, 2, -1, 0, 3 }, TN_SHAPE(3, 2));
        tn_tensor *dx, *dw, *db;
        linear_gradients(x, w, dy, &dx, &dw, &db);
        want_values("dx", dx, TN_SHAPE(3, 2), (double[]){ 1, -1, 0, -2.5, 6, 1.5 });
        want_values("dw", dw, TN_SHAPE(2, 2), (double[]){ 7, 10, 12, 14 });
        want_values("db", db, TN_SHAPE(2), (double[]){ 3, 2 });
    }
    return right();
}
