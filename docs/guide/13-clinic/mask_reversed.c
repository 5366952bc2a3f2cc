/*
 * Mistake: the mask says where a query may look; tenon's says where it may not.
 */
#include "clinic.h"

static tn_tensor *attend(tn_tensor *x, tn_tensor *mask)
{
    return tn_scaled_dot_product_attention(x, x, x, mask, false, 0);
}

/* Which positions reach the result of which query? One after the other is moved. */
static void diagnose(tn_tensor *mask, int64_t n)
{
    tn_tensor *x = tn_randn(TN_SHAPE(n, 8)), *was = attend(x, mask);
    int future = 0, past = 0;
    for (int64_t i = 0; i < n; i++) {
        tn_tensor *moved = tn_clone(x);
        TN_CHECK(tn_add_scalar_(tn_select(moved, 0, i), 1));
        tn_tensor *now = attend(moved, mask);
        for (int64_t query = 0; query < n; query++) {
            tn_tensor *before = tn_select(was, 0, query), *after = tn_select(now, 0, query);
            bool reached = tn_max_abs_diff(before, after) > 0;
            if (i > query && reached) future++;
            if (i < query && reached) past++;
        }
    }
    int pairs = (int)(n * (n - 1) / 2);
    printf("later positions seen: %d of %d, earlier ones: %d of %d\n", future, pairs, past, pairs);
    printf("diagnosis: %s\n", future ? "mask the wrong way round: queries look into the future"
                                     : "queries look back only");
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(1);
    tn_tensor *x = tn_randn(TN_SHAPE(4, 8));
    tn_tensor *may = tn_gt_scalar(tn_tril(tn_ones(TN_SHAPE(4, 4)), 0), 0);
    tn_tensor *may_not = tn_logical_not(may);
    tn_tensor *last = tn_select(attend(x, may), 0, 3);
    printf("sum of |y| for the last query: %g\n", tn_item(tn_sum_all(tn_abs(last))));
    diagnose(may, 4);
    diagnose(may_not, 4); /* the cure: true is blocked */
    tn_scope_end(scope);
    return 0;
}
