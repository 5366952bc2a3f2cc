/*
 * The buffers. x is a batch [N, C]. Move running_mean and running_var in place towards the batch's
 * mean and variance by momentum: r += momentum (new - r). The variance is divided by N - 1. Add 1
 * to batches. Nothing of this may be recorded, and tensors may be on any device: no loops in C.
 */
#include <tenon/tenon.h>

tn_status track(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *batches, tn_tensor *x,
                double momentum)
{
    (void)running_mean, (void)running_var, (void)batches, (void)x, (void)momentum;
    return TN_OK; /* your code here */
}
