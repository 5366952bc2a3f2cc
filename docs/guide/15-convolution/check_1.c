/*
 * Checks exercise 1 against finite differences of unfold.
 */
#include "../check.h"

tn_tensor *unfold(tn_tensor *x, int64_t k);
tn_tensor *fold(tn_tensor *patches, int64_t c, int64_t h, int64_t w, int64_t k);

static tn_tensor *unfold_2(tn_tensor *x)
{
    return unfold(x, 2);
}

int main(void)
{
    TN_SCOPE
    {
        tn_manual_seed(1);
        tn_tensor *x = tn_to_dtype(tn_randn(TN_SHAPE(2, 3, 4)), TN_F64);
        tn_tensor *dy = tn_to_dtype(tn_randn(TN_SHAPE(8, 6)), TN_F64);
        tn_tensor *ones = tn_full_as(TN_SHAPE(9, 9), 1, TN_F64, tn_cpu());
        want_same("dx", fold(dy, 2, 3, 4, 2), moved_gradient(unfold_2, x, dy));
        /* how many of 9 places of a 3x3 kernel meet each element of a 5x5 image */
        const double met[] = { 1, 2, 3, 2, 1, 2, 4, 6, 4, 2, 3, 6, 9,
                               6, 3, 2, 4, 6, 4, 2, 1, 2, 3, 2, 1 };
        want_values("ones folded", fold(ones, 1, 5, 5, 3), TN_SHAPE(1, 5, 5), met);
    }
    return right();
}
