/*
 * flip_repeat.c - flip and repeat: the same elements in reverse, or several times over.
 *
 * flip:   y[.., i, ..] = x[.., n - 1 - i, ..] along each given axis
 * repeat: y[i] = x[i mod size] along every axis
 *
 * Composites. flip selects reversed indices axis by axis; the gradient of a selection puts dy back in its
 * place, which is a flip again. repeat lays x out as [outer, size, inner], inserts an axis of stride 0
 * before size and copies; the engine sums the gradient over that axis, as over any broadcast.
 */
#include "autograd/op.h"

static tn_tensor *reversed(int64_t n, tn_device device)
{
    tn_tensor *index = tni_new_dense(TN_SHAPE(n), TN_I64, tn_cpu());

    if (!index)
        return NULL;
    int64_t *at = tni_data(index);
    for (int64_t i = 0; i < n; i++)
        at[i] = n - 1 - i;
    return tn_to(index, device);
}

tn_tensor *tn_flip(tn_tensor *x, const int *axes, int n_axes)
{
    bool flipped[TN_MAX_RANK] = {false};
    tn_tensor *y = x;

    if (!x) {
        tni_poison("tn_flip", "x");
        return NULL;
    }
    if (tni_none(x) || n_axes < 0 || (n_axes > 0 && !axes))
        return tni_fail(TN_E_INVALID, "tn_flip: x %s, %d axes: want a tensor and its axes", tni_text(x),
                        n_axes);
    for (int i = 0; i < n_axes; i++) {
        int axis = tni_axis("tn_flip", axes[i], x->shape.rank);
        if (axis < 0)
            return NULL;
        if (flipped[axis])
            return tni_fail(TN_E_INVALID, "tn_flip: axis %d of %s twice: want each axis once", axis,
                            tni_text(x));
        flipped[axis] = true;
    }
    tn_scope scope = tn_scope_begin();
    for (int axis = 0; axis < x->shape.rank; axis++)
        if (flipped[axis] || n_axes == 0)
            y = tn_index_select(y, axis, reversed(x->shape.size[axis], tn_device_of(x)));
    return tn_scope_return(scope, y == x ? tn_clone(x) : y);
}

/* x, dense or not, with axis tiled count times. The other sizes stay. */
static tn_tensor *tiled(tn_tensor *x, int axis, int64_t count)
{
    int64_t outer = 1, inner = 1; /* no overflow: parts of the element count, checked for the result */

    if (!x)
        return NULL;
    tn_shape shape = x->shape;
    int64_t size = shape.size[axis];
    for (int i = 0; i < axis; i++)
        outer *= shape.size[i];
    for (int i = axis + 1; i < shape.rank; i++)
        inner *= shape.size[i];
    shape.size[axis] = size * count;
    tn_tensor *y = tn_reshape(x, TN_SHAPE(outer, 1, size, inner));
    y = tn_expand(y, TN_SHAPE(outer, count, size, inner));
    return tn_reshape(y, shape);
}

tn_tensor *tn_repeat(tn_tensor *x, tn_shape counts)
{
    if (!x) {
        tni_poison("tn_repeat", "x");
        return NULL;
    }
    if (tni_none(x) || counts.rank < x->shape.rank || counts.rank > TN_MAX_RANK)
        return tni_fail(TN_E_SHAPE, "tn_repeat: x %s, counts %s: want a count for each axis of x, and at "
                                    "most %d",
                        tni_text(x), tni_shape_text(&counts), TN_MAX_RANK);
    int lead = counts.rank - x->shape.rank;
    int zero = -1; /* an axis that is repeated 0 times */
    tn_shape wide = {.rank = counts.rank};
    tn_shape result = {.rank = counts.rank};
    for (int i = 0; i < counts.rank; i++) {
        wide.size[i] = i < lead ? 1 : x->shape.size[i - lead];
        zero = counts.size[i] == 0 ? i : zero;
        if (counts.size[i] < 0 || __builtin_mul_overflow(wide.size[i], counts.size[i], &result.size[i]))
            return tni_fail(TN_E_SHAPE, "tn_repeat: x %s, counts %s: want counts of 0 and up and sizes "
                                        "below 2^63",
                            tni_text(x), tni_shape_text(&counts));
    }
    if (tni_shape_numel(&result) < 0)
        return tni_fail(TN_E_SHAPE, "tn_repeat: %s: want fewer than 2^63 elements",
                        tni_shape_text(&result));

    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_reshape(x, wide);
    if (zero >= 0)
        y = tn_narrow(y, zero, 0, 0);
    if (tni_shape_numel(&result) == 0)
        y = tn_reshape(y, result);
    else /* the last axes first: the early copies are the small ones */
        for (int i = counts.rank - 1; i >= 0; i--)
            if (counts.size[i] > 1)
                y = tiled(y, i, counts.size[i]);
    return tn_scope_return(scope, tn_same_storage(y, x) ? tn_clone(y) : y);
}
