/*
 * Checks exercise 1: the values of a tensor of 0, 1, 2, ... are their own places.
 */
#include "../check.h"

int64_t place_of(tn_tensor *t, const int64_t *index);

static void check(const char *what, tn_tensor *t)
{
    for (int64_t i = 0; i < tn_size(t, 0); i++)
        for (int64_t j = 0; j < tn_size(t, 1); j++)
            for (int64_t k = 0; k < tn_size(t, 2); k++) {
                int64_t index[] = { i, j, k };
                int got = (int)place_of(t, index), is = (int)tn_at(t, index, 3);
                want(got == is, "%s: [%d,%d,%d] is said to lie at %d, it lies at %d", what, (int)i,
                     (int)j, (int)k, got, is);
            }
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_reshape(tn_arange(0, 24, 1, TN_F32), TN_SHAPE(2, 3, 4));
        check("rows", x);
        check("permuted", tn_permute(x, TN_AXES(2, 0, 1)));
        check("every third", tn_slice(x, 2, 0, 4, 3));
        check("expanded", tn_expand(tn_narrow(x, 1, 0, 1), TN_SHAPE(2, 5, 4)));
    }
    return right();
}
