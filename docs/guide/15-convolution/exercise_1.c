/*
 * The way back from patches to the image. unfold took, for row r and column s of the kernel, the
 * rectangle of x that begins at [r, s]. Given the gradient of its result, patches [C k k, H' W'],
 * return that of x [C, H, W]: what each element of x was copied to, summed.
 */
#include <tenon/tenon.h>

tn_tensor *unfold(tn_tensor *x, int64_t k)
{
    const int64_t c = tn_size(x, 0), rows = tn_size(x, 1) - k + 1, columns = tn_size(x, 2) - k + 1;
    tn_tensor *meets[64];
    for (int64_t r = 0; r < k; r++)
        for (int64_t s = 0; s < k; s++)
            meets[r * k + s] = tn_narrow(tn_narrow(x, 1, r, rows), 2, s, columns);
    return tn_reshape(tn_stack(meets, (int)(k * k), 1), TN_SHAPE(c * k * k, rows * columns));
}

tn_tensor *fold(tn_tensor *patches, int64_t c, int64_t h, int64_t w, int64_t k)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(c, h, w), 0, tn_dtype_of(patches), tn_cpu());
    (void)k;
    return x; /* your code here */
}
