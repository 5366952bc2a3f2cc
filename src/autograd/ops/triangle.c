/*
 * triangle.c - tril, triu: one triangle of the last two axes, zero elsewhere.
 *
 * y[.., i, j] = x[.., i, j] where j - i <= k (tril) or j - i >= k (triu), else 0.
 *
 * Composite: masked_fill with the other triangle as mask, broadcast over the leading axes. Its gradient,
 * dx = dy inside the triangle and 0 outside, is masked_fill's.
 */
#include "autograd/op.h"

/* bool [m, n] on device, true where j - i > k (above) or j - i < k (below). */
static tn_tensor *outside(int64_t m, int64_t n, int64_t k, bool above, tn_device device)
{
    tn_tensor *mask = tni_new_dense(TN_SHAPE(m, n), TN_BOOL, tn_cpu());

    if (!mask)
        return NULL;
    unsigned char *row = tni_data(mask);
    for (int64_t i = 0; i < m; i++, row += n) {
        /* the first column past the diagonal; k is clamped to [-m, n], so nothing overflows */
        int64_t from = i + (above ? k + 1 : k);
        from = TNI_MIN(TNI_MAX(from, 0), n);
        memset(row, !above, (size_t)from);
        memset(row + from, above, (size_t)(n - from));
    }
    return tn_to(mask, device);
}

static tn_tensor *triangle(const char *function, tn_tensor *x, int64_t k, bool lower)
{
    if (!x) {
        tni_poison(function, "x");
        return NULL;
    }
    if (tni_none(x) || x->shape.rank < 2)
        return tni_fail(TN_E_SHAPE, "%s: x %s: want at least two axes", function, tni_text(x));
    int64_t m = x->shape.size[x->shape.rank - 2];
    int64_t n = x->shape.size[x->shape.rank - 1];
    k = TNI_MIN(TNI_MAX(k, -m), n);
    tn_scope scope = tn_scope_begin();
    return tn_scope_return(scope, tn_masked_fill(x, outside(m, n, k, lower, tn_device_of(x)), 0.0));
}

tn_tensor *tn_tril(tn_tensor *x, int64_t k)
{
    return triangle("tn_tril", x, k, true);
}

tn_tensor *tn_triu(tn_tensor *x, int64_t k)
{
    return triangle("tn_triu", x, k, false);
}
