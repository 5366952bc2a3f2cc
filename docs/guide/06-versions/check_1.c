/*
 * Checks exercise 1, beside what backward itself says.
 */
#include "../check.h"

int stale_values(tn_tensor *root);

static void check(const char *what, tn_tensor *root, int is, bool works)
{
    int got = stale_values(root);
    want(got == is, "%s: you say %d values have changed, want %d", what, got, is);
    if ((tn_backward_from(root, TN_NONE, TN_RETAIN_GRAPH) == TN_OK) != works) exit(2);
    tn_error_clear();
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_ones(TN_SHAPE(3)), *c = tn_ones(TN_SHAPE(3));
        TN_CHECK(tn_set_requires_grad(x, true));
        tn_tensor *y = tn_exp(x), *loss = tn_sum_all(tn_mul(y, c));
        check("nothing changed", loss, 0, true);
        TN_CHECK(tn_fill_(c, 2));
        check("the constant factor changed", loss, 1, false);
        TN_NO_GRAD TN_CHECK(tn_fill_(y, 2));
        check("exp's result changed too", loss, 2, false);
        tn_tensor *free = tn_sum_all(tn_add(x, c));
        TN_CHECK(tn_fill_(c, 3));
        check("a sum keeps nothing", free, 0, true);
        tn_tensor *one = tn_ones(TN_SHAPE(3));
        tn_tensor *norm = tn_sum_all(tn_layer_norm(x, 1, one, TN_NONE, 1e-5));
        TN_NO_GRAD TN_CHECK(tn_fill_(x, 3));
        want(stale_values(norm) >= 1, "layer_norm's input changed, and you say nothing did");
    }
    return right();
}
