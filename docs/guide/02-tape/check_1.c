/*
 * Checks exercise 1 on tapes whose bytes can be counted by hand, f32: 4 bytes a number.
 */
#include "../check.h"

size_t kept_bytes(tn_tensor *root);

static void check(const char *what, tn_tensor *root, size_t is)
{
    TN_CHECK_PTR(root);
    size_t got = kept_bytes(root);
    want(got == is, "%s: you say %zu bytes, want %zu", what, got, is);
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_ones(TN_SHAPE(10)), *w = tn_ones(TN_SHAPE(10));
        TN_CHECK(tn_set_requires_grad(x, true));
        check("tanh x, which keeps its result", tn_tanh(x), 40);
        check("x + 1, which keeps nothing", tn_add_scalar(x, 1), 0);
        check("x w with w constant, which keeps w", tn_mul(x, w), 40);
        TN_CHECK(tn_set_requires_grad(w, true));
        check("x w, which keeps both", tn_mul(x, w), 80);
        tn_tensor *loss = tn_sum_all(tn_tanh(tn_mul(x, w)));
        check("the sum of tanh(x w)", loss, 120);
        tn_tensor *weight = tn_ones(TN_SHAPE(1, 10)), *none = TN_NONE;
        check("layer_norm, which puts mean and deviation aside",
              tn_layer_norm(tn_mul(weight, x), 1, none, none, 1e-5), 40 + 40 + 8);
        TN_CHECK(tn_backward(loss));
        check("the sum of tanh(x w) after backward", loss, 0);
    }
    return right();
}
