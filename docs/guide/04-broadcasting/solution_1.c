/*
 * Broadcasting in reverse: leading axes away, axes of size 1 summed.
 */
#include <tenon/tenon.h>

tn_tensor *sum_to(tn_tensor *dy, tn_shape shape)
{
    while (tn_rank(dy) > shape.rank) dy = tn_sum(dy, TN_AXES(0), false);
    for (int i = 0; i < shape.rank; i++)
        if (shape.size[i] == 1 && tn_size(dy, i) != 1) dy = tn_sum(dy, TN_AXES(i), true);
    return dy;
}
