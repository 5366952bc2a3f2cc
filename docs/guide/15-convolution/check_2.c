/*
 * Checks exercise 2 by hand (stride 2, where no two places of the kernel overlap) and against
 * finite differences of tn_conv2d.
 */
#include "../check.h"

tn_tensor *weight_gradient(tn_tensor *x, tn_tensor *dy, int64_t k, int64_t stride);

static tn_tensor *image;

static tn_tensor *strided(tn_tensor *w)
{
    return tn_conv2d(image, w, TN_NONE, (tn_conv_spec){ .stride = { 2, 2 } });
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_reshape(tn_arange(1, 17, 1, TN_F64), TN_SHAPE(1, 1, 4, 4));
        tn_tensor *ones = tn_full_as(TN_SHAPE(1, 1, 2, 2), 1, TN_F64, tn_cpu());
        want_values(
            "dw of 1 to 16", weight_gradient(x, ones, 2, 2), TN_SHAPE(1, 1, 2, 2),
            (double[]){ 1 + 3 + 9 + 11, 2 + 4 + 10 + 12, 5 + 7 + 13 + 15, 6 + 8 + 14 + 16 });
        tn_manual_seed(1);
        image = tn_to_dtype(tn_randn(TN_SHAPE(2, 3, 8, 7)), TN_F64); /* a row is left over */
        tn_tensor *w = tn_to_dtype(tn_randn(TN_SHAPE(2, 3, 3, 3)), TN_F64);
        tn_tensor *dy = tn_to_dtype(tn_randn(TN_SHAPE(2, 2, 3, 3)), TN_F64);
        want_same("dw", weight_gradient(image, dy, 3, 2), moved_gradient(strided, w, dy));
    }
    return right();
}
