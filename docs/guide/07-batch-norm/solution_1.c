/*
 * The buffers of batch norm, moved in place without recording.
 */
#include <tenon/tenon.h>

tn_status track(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *batches, tn_tensor *x,
                double momentum)
{
    tn_status status = TN_OK;
    TN_NO_GRAD
    {
        status = tn_lerp_(running_mean, tn_mean(x, TN_AXES(0), false), momentum);
        if (status == TN_OK)
            status = tn_lerp_(running_var, tn_var(x, TN_AXES(0), 1, false), momentum);
        if (status == TN_OK) status = tn_add_scalar_(batches, 1);
    }
    return status;
}
