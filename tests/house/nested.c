/*
 * nested.c - every block of the public headers inside of itself, in C and in C++: cxx_check.sh
 * compiles it with each compiler there is, with -Wshadow, warnings being errors, and runs it.
 *
 * Seen to fail: "declaration of 'tn_scope_here_' shadows a previous local" with one name for all.
 */
#include <tenon/tenon.h>

static int modes(void)
{
    return tn_grad_enabled() + 2 * tn_places() + 4 * (tn_autocast() == TN_BF16);
}

static tn_status held(tn_tensor *x)
{
    tn_status status = TN_E_STATE;
    TN_NO_GRAD
    {
        TN_CHECK_PTR(x);
        TN_NO_GRAD
        {
            TN_CHECK(tn_zero_(x));
            if (tn_item(x) == 0) status = TN_OK;
        }
        if (tn_grad_enabled()) status = TN_E_STATE;
    }
    return status;
}

int main(void)
{
    int64_t live[4] = { tn_live_tensors(), 0, 0, 0 };
    int inside = 0, between = 0;
    TN_SCOPE
    {
        tn_tensor *x = tn_ones(TN_SCALAR);
        TN_SCOPE
        {
            tn_tensor *y = tn_neg(x);
            live[1] = tn_live_tensors();
            TN_SCOPE live[2] = tn_size(tn_ones(TN_SHAPE(2, 3)), 0) + tn_live_tensors();
            TN_CHECK_PTR(y);
        }
        live[3] = tn_live_tensors();
        TN_CHECK(held(x));
        TN_PLACES TN_AUTOCAST(TN_BF16) TN_NO_GRAD
        {
            TN_AUTOCAST(TN_F32)
            {
                TN_PLACES
                {
                    TN_NO_GRAD inside = modes();
                }
            }
            between = modes();
        }
#ifdef __cplusplus
        TN_CHECK([x]() {
            TN_CHECK(held(x));
            TN_CHECK_PTR([x]() {
                TN_CHECK_PTR(x);
                return x;
            }());
            return held(x);
        }());
#endif
    }
    int right = live[1] == live[0] + 2 && live[2] == live[1] + 3 && live[3] == live[0] + 1 &&
                tn_live_tensors() == live[0] && inside == 2 && between == 6 && modes() == 1;
    printf("%s\n", right ? "nested blocks: right" : "nested blocks: wrong");
    return !right;
}
