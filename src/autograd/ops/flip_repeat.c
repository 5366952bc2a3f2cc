/*
 * flip_repeat.c - flip and repeat: the same elements in reverse, or several times over.
 *
 * flip is a copy that reads x backwards, by strides below 0; its gradient is a flip of dy. repeat,
 * y[i] = x[i mod size] along every axis, is a composite: x laid out as [outer, size, inner], with
 * an axis of stride 0 inserted before size, and copied; the engine sums the gradient over that
 * axis, as over any broadcast.
 */
#include "autograd/ops/reduce.h"
#include "autograd/ops/shared.h"

/* ---- flip ------------------------------------------------------------------------------------ */

static tn_status flip_forward(tni_call *c)
{
    unsigned axes = *(const unsigned *)c->args;
    const tn_tensor *from = c->in[0];
    tni_array y = tni_array_of(c->out[0]), x = tni_array_of(from);
    int64_t last = 0; /* where x's last element along the axes lies, in elements */
    if (tni_shape_numel(&from->shape) == 0) return TN_OK;
    for (int d = 0; d < x.rank; d++) {
        if (!(axes >> d & 1u)) continue;
        last += (x.size[d] - 1) * x.stride[d];
        x.stride[d] = -x.stride[d];
    }
    x.data = (char *)x.data + last * (int64_t)tn_dtype_size(x.dtype);
    return tni_backend_of(from)->copy(&(tni_copy){ .y = y, .x = x });
}

/* Autocast: as the other selections. */
TNI_OP(flip, 1, "y[i] = x[n - 1 - i]", "dx[i] = dy[n - 1 - i]", tni_shape_like_first, flip_forward,
       tni_transposed, .dtypes = TNI_ANY_DTYPE, .autocast = TNI_CAST_F32, .transpose = &op_flip)

tn_tensor *tn_flip(tn_tensor *x, const int *axes, int n_axes)
{
    unsigned mask;
    if (!tni_present("tn_flip", "x", x) || !tni_axes_mask("tn_flip", x, axes, n_axes, &mask))
        return NULL;
    return tni_apply(&op_flip, &mask, sizeof mask, 1, &x);
}

/* ---- repeat ---------------------------------------------------------------------------------- */

/* x, dense or not, with axis tiled count times. The other sizes stay. */
static tn_tensor *tiled(tn_tensor *x, int axis, int64_t count)
{
    if (!x) return NULL;
    rows_sizes s = rows_around(&x->shape, axis);
    tn_shape shape = x->shape;
    shape.size[axis] *= count; /* no overflow: part of the element count, checked for the result */
    tn_tensor *y = tn_reshape(x, TN_SHAPE(s.n, 1, s.c, s.d));
    y = tn_expand(y, TN_SHAPE(s.n, count, s.c, s.d));
    return tn_reshape(y, shape);
}

tn_tensor *tn_repeat(tn_tensor *x, tn_shape counts)
{
    if (!x) return tni_poisoned("tn_repeat", "x");
    if (tni_none(x) || counts.rank < x->shape.rank || counts.rank > TN_MAX_RANK)
        return tni_fail(TN_E_SHAPE,
                        "tn_repeat: x %s, counts %s: want a count for each axis of x, and at "
                        "most %d",
                        tni_text(x), tni_shape_text(&counts), TN_MAX_RANK);
    int lead = counts.rank - x->shape.rank;
    int zero = -1; /* an axis that is repeated 0 times */
    tn_shape wide = { .rank = counts.rank }, result = wide;
    for (int i = 0; i < counts.rank; i++) {
        wide.size[i] = i < lead ? 1 : x->shape.size[i - lead];
        zero = counts.size[i] == 0 ? i : zero;
        if (counts.size[i] < 0 ||
            __builtin_mul_overflow(wide.size[i], counts.size[i], &result.size[i]))
            return tni_fail(TN_E_SHAPE,
                            "tn_repeat: x %s, counts %s: want counts of 0 and up and sizes "
                            "below 2^63",
                            tni_text(x), tni_shape_text(&counts));
    }
    if (tni_shape_numel(&result) < 0)
        return tni_fail(TN_E_SHAPE, "tn_repeat: %s: want fewer than 2^63 elements",
                        tni_shape_text(&result));
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_reshape(x, wide);
    if (zero >= 0) y = tn_narrow(y, zero, 0, 0);
    if (tni_shape_numel(&result) == 0)
        y = tn_reshape(y, result);
    else /* the last axes first: the early copies are the small ones */
        for (int i = counts.rank - 1; i >= 0; i--)
            if (counts.size[i] > 1) y = tiled(y, i, counts.size[i]);
    return tni_scope_return(__func__, scope, tn_same_storage(y, x) ? tn_clone(y) : y);
}
