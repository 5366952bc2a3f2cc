/*
 * Checks exercise 2 against finite differences, also with a gradient that comes reversed or with
 * gaps.
 */
#include "../check.h"

extern const tn_custom_op differences;

static tn_tensor *plain(tn_tensor **x, void *user)
{
    (void)user;
    return tn_apply(&differences, NULL, 1, x);
}

/* Every second row of a transposed matrix of differences: the gradient has gaps. */
static tn_tensor *strided(tn_tensor **x, void *user)
{
    (void)user;
    tn_tensor *y = tn_apply(&differences, NULL, 1, x);
    tn_tensor *rows[] = { y, tn_square(y) };
    return tn_transpose(tn_stack(rows, 2, 1), 0, 1);
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_from_data((double[]){ 1, 4, 9, 7 }, TN_SHAPE(4), TN_F64);
        TN_CHECK(tn_set_requires_grad(x, true));
        want_values("differences of 1, 4, 9, 7", plain(&x, NULL), TN_SHAPE(3),
                    (double[]){ 3, 5, -2 });
        tn_gradcheck_options o = { 0 };
        want_ok("backward", tn_gradcheck(plain, &x, 1, NULL, o));
        want_ok("backward of a gradient with strides", tn_gradcheck(strided, &x, 1, NULL, o));
        tn_tensor *y = plain(&x, NULL), *dx;
        tn_tensor *dy = tn_from_data((double[]){ 1, 0, 2, 0, 3, 0 }, TN_SHAPE(3, 2), TN_F64);
        dy = tn_select(dy, 1, 0);
        want_ok("a strided seed", tn_gradients(1, &y, &dy, 1, &x, &dx, 0));
        want_values("dx for dy = 1, 2, 3", dx, TN_SHAPE(4), (double[]){ -1, -1, -1, 3 });
    }
    return right();
}
