/*
 * one_hot.c - index [...] -> [..., n]: 1 at position index, 0 elsewhere. i64, no gradient.
 */
#include "autograd/ops/rows.h"

/* The smallest and the largest value; 0 and -1 when there are none. */
static tn_status extremes(const tn_tensor *index, int64_t *low, int64_t *high)
{
    int64_t n = tni_shape_numel(&index->shape);
    *low = 0;
    *high = -1;
    if (n == 0) {
        return TN_OK;
    }
    size_t nbytes;
    if (n < 0 || !tni_mul_size((size_t)n, sizeof(int64_t), &nbytes)) {
        return tni_error(TN_E_NOMEM, "tn_one_hot: index %s is too large", tni_text(index));
    }
    int64_t *ids = tni_alloc(nbytes);
    if (!ids) {
        return TN_E_NOMEM;
    }
    tn_status status = tn_copy_out(index, ids, nbytes, TN_I64);
    if (status == TN_OK) {
        *low = ids[0];
        *high = ids[0];
        for (int64_t i = 1; i < n; i++) {
            *low = TNI_MIN(*low, ids[i]);
            *high = TNI_MAX(*high, ids[i]);
        }
    }
    tni_free(ids, nbytes);
    return status;
}

tn_tensor *tn_one_hot(tn_tensor *index, int64_t n)
{
    int64_t low, high;
    index = tni_index_arg("tn_one_hot", index);
    if (!index || extremes(index, &low, &high) != TN_OK) {
        return NULL;
    }
    if (n < -1 || (n == -1 && high < 0 && low >= 0)) {
        return tni_fail(TN_E_INVALID,
                        "tn_one_hot: n %lld, index %s: want n >= 0, or -1 and at least one index",
                        (long long)n, tni_text(index));
    }
    n = n == -1 ? high + 1 : n;
    if (low < 0 || high >= n) {
        return tni_fail(TN_E_INDEX, "tn_one_hot: index value %lld: want 0..%lld",
                        (long long)(low < 0 ? low : high), (long long)n - 1);
    }
    tn_scope scope = tn_scope_begin();
    tn_tensor *ids = tn_to(tn_arange(0, (double)n, 1, TN_I64), tn_device_of(index));
    tn_tensor *hot = tn_to_dtype(tn_eq(tn_unsqueeze(index, -1), ids), TN_I64);
    return tn_scope_return(scope, hot);
}
