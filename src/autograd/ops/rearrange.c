/*
 * rearrange.c - compositions of views and copies: unflatten, unbind, diagonals, roll, meshgrid,
 * outer, repeat_interleave. Gradients, of every order, are those of what they are made of.
 */
#include "autograd/ops/shared.h"

/* ---- one axis -------------------------------------------------------------------------------- */

tn_tensor *tn_unflatten(tn_tensor *x, int axis, tn_shape shape)
{
    if ((axis = tni_axis_in(__func__, x, axis)) < 0) return NULL;
    const int64_t whole = x->shape.size[axis];
    int rank = TNI_MIN(shape.rank, TN_MAX_RANK), left = 0; /* the axis whose size is what is left */
    while (left < rank && shape.size[left] != -1) left++;
    if (left < rank) {
        shape.size[left] = 1;
        const int64_t known = tni_shape_numel(&shape); /* below 0: none */
        shape.size[left] = known > 0 ? whole / known : -1;
    }
    if (shape.rank < 1 || tni_shape_numel(&shape) != whole)
        return tni_fail(TN_E_SHAPE, "%s: axis %d of %s as %s: want sizes whose product is %" PRId64,
                        __func__, axis, tni_text(x), tni_shape_text(&shape), whole);
    if ((rank = x->shape.rank + shape.rank - 1) > TN_MAX_RANK)
        return tni_fail(TN_E_SHAPE, "%s: %d axes: want at most %d", __func__, rank, TN_MAX_RANK);
    return tn_reshape(x, tni_shape_with(&x->shape, axis, axis + 1, shape.rank, shape.size));
}

int tn_unbind(tn_tensor *x, int axis, tn_tensor **out, int max_out)
{
    if ((axis = tni_axis_in("tn_unbind", x, axis)) < 0) return -1;
    if (x->shape.size[axis] == 0) return 0;
    int n = tn_split(x, 1, axis, out, max_out);
    for (int i = 0; i < n; i++)
        if (!(out[i] = tn_squeeze(out[i], axis))) return -1;
    return n;
}

/* ---- diagonals ------------------------------------------------------------------------------- */

tn_tensor *tn_diagonal(tn_tensor *x, int64_t k, int axis0, int axis1)
{
    if ((axis0 = tni_axis_in(__func__, x, axis0)) < 0 ||
        (axis1 = tni_axis_in(__func__, x, axis1)) < 0)
        return NULL;
    if (axis0 == axis1)
        return tni_fail(TN_E_INVALID, "%s: axis %d twice of %s: want two axes", __func__, axis0,
                        tni_text(x));
    const int64_t m = x->shape.size[axis0], n = x->shape.size[axis1];
    k = TNI_MIN(TNI_MAX(k, -m), n);
    int order[TN_MAX_RANK], rank = 0;
    for (int i = 0; i < x->shape.rank; i++)
        if (i != axis0 && i != axis1) order[rank++] = i;
    order[rank++] = axis0;
    order[rank++] = axis1;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows = tn_flatten(tn_permute(x, order, rank), -2, -1);
    const int64_t size = k < 0 ? TNI_MIN(m + k, n) : TNI_MIN(m, n - k);
    const int64_t start = !size ? 0 : k < 0 ? -k * n : k;
    const int64_t end = size ? start + (size - 1) * (n + 1) + 1 : 0;
    return tni_scope_return(__func__, scope, tn_slice(rows, -1, start, end, n + 1));
}

tn_tensor *tn_diag(tn_tensor *x, int64_t k)
{
    if (!tni_present(__func__, "x", x)) return NULL;
    if (x->shape.rank == 2) return tn_diagonal(x, k, 0, 1);
    const int64_t most = INT32_MAX, n = x->shape.rank ? x->shape.size[0] : 0;
    if (x->shape.rank != 1 || n > most || k < -most || k > most)
        return tni_fail(TN_E_SHAPE,
                        "%s: diagonal %" PRId64 " of %s: want one or two axes, and fewer than 2^31 "
                        "rows",
                        __func__, k, tni_text(x));
    const int64_t size = n + (k < 0 ? -k : k);
    /* In rows of one more the diagonal is a column. */
    const int64_t row = k < 0 ? -k - 1 : 0, column = k < 0 ? size + 1 + k : k;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows =
        tn_pad(tn_unsqueeze(x, 1), TN_PADS(column, size - column, row, size - n - row),
               TN_PAD_CONSTANT, 0);
    tn_tensor *y = tn_narrow(tn_flatten(rows, 0, 1), 0, 0, size * size);
    return tni_scope_return(__func__, scope, tn_reshape(y, TN_SHAPE(size, size)));
}

/* ---- roll ------------------------------------------------------------------------------------ */

static tn_tensor *roll(tn_tensor *x, int64_t shift, int axis)
{
    const int64_t n = x ? x->shape.size[axis] : 0;
    if (n == 0) return x;
    shift = (shift % n + n) % n;
    tn_tensor *parts[2] = { tn_narrow(x, axis, n - shift, shift),
                            tn_narrow(x, axis, 0, n - shift) };
    return tn_cat(parts, 2, axis);
}

tn_tensor *tn_roll(tn_tensor *x, const int64_t *shifts, const int *axes, int n)
{
    if (!tni_present(__func__, "x", x)) return NULL;
    if (!shifts || n < 1 || n > TN_MAX_RANK || (!axes && n != 1))
        return tni_fail(TN_E_INVALID,
                        "%s: %d shifts%s: want one for each axis, or one alone for all elements",
                        __func__, n, shifts ? axes ? "" : " without axes" : " in NULL");
    int at[TN_MAX_RANK];
    for (int i = 0; axes && i < n; i++)
        if ((at[i] = tni_axis_of_any(__func__, axes[i], x->shape.rank)) < 0) return NULL;
    const bool flat = !axes || x->shape.rank == 0;
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = flat ? tn_reshape(x, TN_SHAPE(-1)) : x;
    for (int i = 0; i < n; i++) y = roll(y, shifts[i], flat ? 0 : at[i]);
    if (flat) y = tn_reshape(y, x->shape);
    return tni_scope_return(__func__, scope, tn_same_storage(y, x) ? tn_clone(y) : y);
}

/* ---- several tensors ------------------------------------------------------------------------- */

tn_status tn_meshgrid(tn_tensor *const *x, int n, bool xy, tn_tensor **out)
{
    tn_shape shape = { .rank = n };
    if (!x || !out || n < 1 || n > TN_MAX_RANK)
        return tni_error(TN_E_INVALID, "%s: %d tensors%s: want 1 to %d, and room for the grids",
                         __func__, n, x && out ? "" : ", or NULL", TN_MAX_RANK);
    for (int i = 0; i < n; i++) {
        if (!tni_present(__func__, "x", x[i])) return tni_pending();
        if (x[i]->shape.rank > 1)
            return tni_error(TN_E_SHAPE, "%s: x[%d] is %s: want one axis", __func__, i,
                             tni_text(x[i]));
        shape.size[i] = tni_shape_numel(&x[i]->shape);
    }
    for (int i = 0; i < n; i++) {
        tn_scope scope = tn_scope_begin();
        tn_shape line = { .rank = n };
        for (int d = 0; d < n; d++) line.size[d] = d == i ? shape.size[i] : 1;
        tn_tensor *y = tn_expand(tn_reshape(x[i], line), shape);
        if (xy && n > 1) y = tn_transpose(y, 0, 1);
        if (!(out[i] = tni_scope_return(__func__, scope, y))) return tni_pending();
    }
    return TN_OK;
}

tn_tensor *tn_outer(tn_tensor *a, tn_tensor *b)
{
    if (!tni_present("tn_outer", "a", a) || !tni_present("tn_outer", "b", b)) return NULL;
    if (a->shape.rank != 1 || b->shape.rank != 1)
        return tni_fail(TN_E_SHAPE, "tn_outer: a %s, b %s: want one axis each", tni_text(a),
                        tni_text(b));
    return tn_mul(tn_unsqueeze(a, 1), b);
}

/* ---- repeat_interleave ----------------------------------------------------------------------- */

tn_tensor *tn_repeat_interleave(tn_tensor *x, int64_t count, int axis)
{
    if ((axis = tni_axis_in(__func__, x, axis)) < 0) return NULL;
    tn_shape shape = x->shape;
    if (count < 0 || __builtin_mul_overflow(shape.size[axis], count, &shape.size[axis]) ||
        tni_shape_numel(&shape) < 0)
        return tni_fail(TN_E_SHAPE,
                        "%s: %" PRId64 " times along axis %d of %s: want 0 and up, and fewer than "
                        "2^63 elements",
                        __func__, count, axis, tni_text(x));
    rows_sizes s = rows_around(&x->shape, axis);
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_reshape(x, TN_SHAPE(s.n, s.c, 1, s.d));
    y = count ? tn_expand(y, TN_SHAPE(s.n, s.c, count, s.d)) : tn_narrow(y, 2, 0, 0);
    y = tn_reshape(y, shape);
    return tni_scope_return(__func__, scope, tn_same_storage(y, x) ? tn_clone(y) : y);
}
