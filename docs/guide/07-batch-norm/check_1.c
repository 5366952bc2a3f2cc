/*
 * Checks exercise 1: the buffers that two batches leave in torch.nn.BatchNorm1d(2,
 * momentum=0.25).
 */
#include "../check.h"

tn_status track(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *batches, tn_tensor *x,
                double momentum);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *mean = tn_zeros(TN_SHAPE(2)), *var = tn_ones(TN_SHAPE(2));
        tn_tensor *batches = tn_full_as(TN_SCALAR, 0, TN_I64, tn_cpu());
        tn_tensor *x1 = tn_from_floats((float[]){ 1, 10, 2, 10, 3, 10, 6, 14 }, TN_SHAPE(4, 2));
        tn_tensor *x2 = tn_from_floats((float[]){ 0, -1, 5, 3, 1, 1 }, TN_SHAPE(3, 2));
        TN_CHECK(tn_set_requires_grad(x1, true));
        want_ok("the first batch", track(mean, var, batches, x1, 0.25));
        want_ok("the second batch", track(mean, var, batches, x2, 0.25));
        want_values("running_mean", mean, TN_SHAPE(2), (double[]){ 1.0625, 2.3125 });
        want_values("running_var", var, TN_SHAPE(2), (double[]){ 3.1875, 2.3125 });
        want_values("batches", batches, TN_SCALAR, (double[]){ 2 });
        want(tn_is_leaf(mean) && !tn_requires_grad(mean), "running_mean has history");
    }
    return right();
}
