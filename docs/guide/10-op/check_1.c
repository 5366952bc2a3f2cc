/*
 * Checks exercise 1: values of torch.nn.functional.mish, and finite differences of both orders.
 */
#include "../check.h"

extern const tn_custom_op mish;

static tn_tensor *f(tn_tensor **x, void *user)
{
    (void)user;
    return tn_apply(&mish, NULL, 1, x);
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_from_data((double[]){ -2, 0, 1.5 }, TN_SHAPE(3), TN_F64);
        TN_CHECK(tn_set_requires_grad(x, true));
        want_values("mish of -2, 0, 1.5", f(&x, NULL), TN_SHAPE(3),
                    (double[]){ -0.252501483, 0, 1.40337827 });
        want_ok("backward", tn_gradcheck(f, &x, 1, NULL, (tn_gradcheck_options){ 0 }));
        want_ok("and once more",
                tn_gradcheck(f, &x, 1, NULL, (tn_gradcheck_options){ .second = true }));
    }
    return right();
}
