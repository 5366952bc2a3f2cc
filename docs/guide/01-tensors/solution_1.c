/*
 * The place of an element: its index on each axis, times that axis's stride.
 */
#include <tenon/tenon.h>

int64_t place_of(tn_tensor *t, const int64_t *index)
{
    int64_t place = 0;
    for (int i = 0; i < tn_rank(t); i++) place += index[i] * tn_stride(t, i);
    return place;
}
