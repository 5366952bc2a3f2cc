/*
 * Checks exercise 2: a turn by 90 degrees, one by 30, and the gradient of the angle.
 */
#include "../check.h"

tn_module *mixer_new(double angle);

static tn_tensor *in[2];

static void check(const char *what, double angle, double a, double b)
{
    tn_module *m = mixer_new(angle);
    tn_tensor *out[2];
    want(m, "mixer_new: %s", tn_error());
    want_ok(what, tn_call(m, 2, in, 2, out));
    want_values(what, out[0], TN_SHAPE(1), &a);
    want_values(what, out[1], TN_SHAPE(1), &b);
    want_ok("backward", tn_backward(tn_sum_all(out[0])));
    tn_tensor *grad = tn_grad(tn_get_parameter(m, "angle"));
    want_values("the angle's gradient", grad, TN_SCALAR, &b); /* da'/dt = b' */
    tn_module_drop(m);
}

int main(void)
{
    TN_SCOPE
    {
        in[0] = tn_full(TN_SHAPE(1), 2), in[1] = tn_full(TN_SHAPE(1), 3);
        check("turned by 90 degrees", acos(0), 3, -2);
        check("turned by 30 degrees", asin(0.5), sqrt(3) + 1.5, 1.5 * sqrt(3) - 1);
    }
    return right();
}
