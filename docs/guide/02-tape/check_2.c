/*
 * Checks exercise 2 on graphs whose depth can be counted by hand.
 */
#include "../check.h"

int depth(tn_tensor *root);

static void check(const char *what, tn_tensor *root, int is)
{
    TN_CHECK_PTR(root);
    int got = depth(root);
    want(got == is, "%s: you say %d ops deep, want %d", what, got, is);
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_ones(TN_SHAPE(3));
        TN_CHECK(tn_set_requires_grad(x, true));
        check("x itself", x, 0);
        check("exp x", tn_exp(x), 1);
        check("x + tanh(exp x)", tn_add(x, tn_tanh(tn_exp(x))), 3);
        check("tanh(exp x) + x", tn_add(tn_tanh(tn_exp(x)), x), 3);
        tn_tensor *shared = tn_exp(x), *y = shared;
        for (int i = 0; i < 50; i++) y = tn_add(y, shared);
        check("fifty additions of one exp x", y, 51);
    }
    return right();
}
