/*
 * Checks exercise 2 by numbers worked out by hand.
 */
#include "../check.h"

int64_t nucleus(tn_tensor *p, double m);

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *p = tn_from_floats((float[]){ 0.5F, 0.25F, 0.125F, 0.125F }, TN_SHAPE(4));
        const double mass[] = { 0.1, 0.5, 0.6, 0.75, 0.8, 0.9 };
        const int kept[] = { 1, 1, 2, 2, 3, 4 };
        for (int i = 0; i < 6; i++) {
            int n = (int)nucleus(p, mass[i]);
            want(n == kept[i], "a mass of %g: %d are kept, want %d", mass[i], n, kept[i]);
        }
    }
    return right();
}
