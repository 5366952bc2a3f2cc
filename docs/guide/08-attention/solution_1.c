/*
 * A padding mask: positions [T] against lengths [B, 1].
 */
#include <tenon/tenon.h>

tn_tensor *padding_mask(tn_tensor *lengths, int64_t longest)
{
    tn_tensor *positions = tn_arange(0, (double)longest, 1, TN_I64);
    return tn_ge(positions, tn_unsqueeze(lengths, 1));
}
