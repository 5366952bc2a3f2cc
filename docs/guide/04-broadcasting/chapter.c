/*
 * Chapter 4: what forward stretched, backward sums.
 */
#include <tenon/tenon.h>

static tn_tensor *leaf(tn_shape shape)
{
    tn_tensor *t = tn_ones(shape);
    TN_CHECK(tn_set_requires_grad(t, true));
    return t;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *row = leaf(TN_SHAPE(3)), *column = leaf(TN_SHAPE(2, 1)), *one = leaf(TN_SCALAR);

    /* [3] + [2, 1] + [] = [2, 3]: each is stretched to the shape of the result. */
    tn_tensor *y = tn_add(tn_add(row, column), one);
    tn_tensor *dy = tn_from_floats((float[]){ 1, 2, 3, 10, 20, 30 }, TN_SHAPE(2, 3));
    TN_CHECK(tn_backward_from(y, dy, 0));
    tn_print(dy);
    tn_print(tn_grad(row));
    tn_print(tn_grad(column));
    tn_print(tn_grad(one));

    /* The same by hand: an expanded view has stride 0, and its gradient is a sum. */
    tn_tensor *x = leaf(TN_SHAPE(3)), *stretched = tn_expand(x, TN_SHAPE(2, 3));
    printf("strides of the expanded view: %d %d\n", (int)tn_stride(stretched, 0),
           (int)tn_stride(stretched, 1));
    TN_CHECK(tn_backward_from(stretched, dy, 0));
    tn_print(tn_grad(x));

    /* A shape that was not meant: [4, 1] and [4] broadcast to [4, 4]. */
    tn_tensor *output = tn_from_floats((float[]){ 1, 2, 3, 4 }, TN_SHAPE(4, 1));
    tn_tensor *wanted = tn_from_floats((float[]){ 1, 2, 3, 4 }, TN_SHAPE(4));
    tn_tensor *difference = tn_sub(output, wanted);
    printf("outputs as wanted, loss %g: a mean over %d squares\n",
           tn_item(tn_mean_all(tn_square(difference))), (int)tn_numel(difference));
    if (!tn_mse_loss(output, wanted, TN_MEAN)) printf("%s\n", tn_error());
    printf("%g\n", tn_item(tn_mse_loss(tn_squeeze(output, 1), wanted, TN_MEAN)));
    tn_scope_end(scope);
    return 0;
}
