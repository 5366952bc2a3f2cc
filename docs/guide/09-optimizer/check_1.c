/*
 * Checks exercise 1: three steps of torch.optim.Adam(lr=0.1) with these gradients.
 */
#include "../check.h"

tn_status adam(tn_tensor *p, tn_tensor *g, tn_tensor *m, tn_tensor *v, int step);

int main(void)
{
    const float grads[3][2] = { { 1, -2 }, { 0.5F, 4 }, { -1, 0.1F } };
    const double after[3][2] = { { 0.9, 2.1 }, { 0.8067821, 2.06339 }, { 0.7957038, 2.033668 } };
    TN_SCOPE
    {
        tn_tensor *p = tn_from_floats((float[]){ 1, 2 }, TN_SHAPE(2));
        tn_tensor *m = tn_zeros(TN_SHAPE(2)), *v = tn_zeros(TN_SHAPE(2));
        TN_CHECK(tn_set_requires_grad(p, true));
        for (int i = 0; i < 3; i++) {
            tn_tensor *g = tn_from_floats(grads[i], TN_SHAPE(2));
            char what[32];
            snprintf(what, sizeof what, "p after step %d", i + 1);
            TN_NO_GRAD want_ok(what, adam(p, g, m, v, i + 1));
            want_values(what, p, TN_SHAPE(2), after[i]);
        }
    }
    return right();
}
