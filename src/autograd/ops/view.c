/*
 * view.c - other geometries over the same storage: reshape, permute, expand, slice and what is made
 * of them.
 *
 * A view's gradient is the gradient with the geometry undone. A slice's, 0 with dy written at the
 * slice, is an op of its own (slice_grad, whose gradient is again a slice).
 */
#include "autograd/notify.h"
#include "autograd/ops/shared.h"

#define VIEW(name_, formula_, gradient_, backward_)                                                \
    TNI_OP(name_, 1, formula_, gradient_, name_##_shape, NULL, backward_, .dtypes = TNI_ANY_DTYPE, \
           .view = true)

/* The result; size and stride are still to be set. */
static tni_spec *result_of(tni_call *c)
{
    c->out_spec->dtype = c->in[0]->dtype;
    c->out_spec->strided = true;
    c->out_spec->offset = c->in[0]->offset;
    return c->out_spec;
}

int tni_axis_in(const char *function, const tn_tensor *x, int axis)
{
    return tni_present(function, "x", x) ? tni_axis(function, axis, x->shape.rank) : -1;
}

int tni_axis_in_any(const char *function, const tn_tensor *x, int axis)
{
    return tni_present(function, "x", x) ? tni_axis_of_any(function, axis, x->shape.rank) : -1;
}

tn_shape tni_shape_with(const tn_shape *x, int first, int end, int n, const int64_t *sizes)
{
    tn_shape y = { .rank = 0 };
    for (int i = 0; i < first; i++) y.size[y.rank++] = x->size[i];
    for (int i = 0; i < n; i++) y.size[y.rank++] = sizes[i];
    for (int i = end; i < x->rank; i++) y.size[y.rank++] = x->size[i];
    return y;
}

/* ---- reshape --------------------------------------------------------------------------------- */

/* Strides that give x another shape without a copy; false where there are none. Walks both shapes
 * in groups of axes with equal products; a group works when x's axes in it lie row-major within
 * each other. */
static bool reshape_strides(const tn_tensor *x, const tn_shape *shape, int64_t *stride)
{
    int64_t size[TN_MAX_RANK], step[TN_MAX_RANK];
    int n = 0, i = 0, j = 0;
    for (int a = 0; a < x->shape.rank; a++) { /* axes of size 1 say nothing */
        if (x->shape.size[a] == 0) {
            tni_dense_strides(shape, stride);
            return true;
        }
        if (x->shape.size[a] != 1) {
            size[n] = x->shape.size[a];
            step[n++] = x->stride[a];
        }
    }
    while (i < n || j < shape->rank) {
        int64_t have = 1, want = 1;
        int i0 = i, j0 = j;
        if (i < n) have = size[i++];
        if (j < shape->rank) want = shape->size[j++];
        while (have != want) {
            if (have < want ? i == n : j == shape->rank) return false;
            if (have < want)
                have *= size[i++];
            else
                want *= shape->size[j++];
        }
        for (int k = i0; k + 1 < i; k++)
            if (step[k] != size[k + 1] * step[k + 1]) return false;
        int64_t s = i > i0 ? step[i - 1] : 1;
        for (int k = j - 1; k >= j0; k--) {
            stride[k] = s;
            s *= shape->size[k];
        }
    }
    return true;
}

static tn_status reshape_shape(tni_call *c)
{
    const tn_shape *shape = c->args;
    tni_spec *y = result_of(c);
    y->shape = *shape;
    if (!reshape_strides(c->in[0], shape, y->stride))
        return tni_op_error(c, TN_E_SHAPE, "%s to %s: want strides that allow a view",
                            tni_text(c->in[0]), tni_shape_text(shape));
    return TN_OK;
}

TNI_DX(reshape_backward, tn_reshape(g->dy, g->in[0].shape))
VIEW(reshape, "y = x in another shape", "dx = dy in x's shape", reshape_backward)

/* shape with its -1 worked out for n elements; false + message when it does not fit */
static bool complete_shape(const tn_tensor *x, tn_shape *shape)
{
    int64_t n = tni_shape_numel(&x->shape), rest = 1;
    int open = -1;
    if (shape->rank < 0 || shape->rank > TN_MAX_RANK) goto fail;
    for (int i = 0; i < shape->rank; i++)
        if (shape->size[i] == -1 && open < 0)
            open = i;
        else if (shape->size[i] < 0 || __builtin_mul_overflow(rest, shape->size[i], &rest))
            goto fail;
    if (open >= 0) {
        if (rest == 0 || n % rest) goto fail;
        shape->size[open] = n / rest;
    } else if (rest != n) {
        goto fail;
    }
    return tni_shape_fits("tn_reshape", shape) == TN_OK; /* beside a 0 others may be anything */
fail:
    if (tni_size_failed("tn_reshape", shape) != TN_OK) return false;
    tni_error(TN_E_SHAPE,
              "tn_reshape: %s to %s: want the same number of elements (%" PRId64
              "), at most %d axes, at most one -1",
              tni_text(x), tni_shape_text(shape), n, TN_MAX_RANK);
    return false;
}

static tn_tensor *reshape(tn_tensor *x, tn_shape shape)
{
    int64_t stride[TN_MAX_RANK];
    if (!reshape_strides(x, &shape, stride) && !(x = tn_contiguous(x))) return NULL;
    return tni_apply(&op_reshape, &shape, sizeof shape, 1, &x);
}

tn_tensor *tn_reshape(tn_tensor *x, tn_shape shape)
{
    if (!tni_present("tn_reshape", "x", x) || !complete_shape(x, &shape)) return NULL;
    return reshape(x, shape);
}

tn_tensor *tn_flatten(tn_tensor *x, int first, int last)
{
    int64_t n = 1;
    if ((first = tni_axis_in_any("tn_flatten", x, first)) < 0 ||
        (last = tni_axis_in_any("tn_flatten", x, last)) < 0)
        return NULL;
    if (first > last)
        return tni_fail(TN_E_INDEX,
                        "tn_flatten: axes %d to %d of %s: want the first before the last", first,
                        last, tni_text(x));
    for (int i = first; i <= last && i < x->shape.rank; i++)
        n *= x->shape.size[i]; /* a product of sizes of x: fits */
    return reshape(x, tni_shape_with(&x->shape, first, last + 1, 1, &n));
}

tn_tensor *tn_squeeze(tn_tensor *x, int axis)
{
    if ((axis = tni_axis_in_any("tn_squeeze", x, axis)) < 0) return NULL;
    bool goes = x->shape.rank && x->shape.size[axis] == 1;
    return reshape(x, tni_shape_without(&x->shape, goes ? axis : -1));
}

tn_tensor *tn_squeeze_all(tn_tensor *x)
{
    tn_shape shape = { .rank = 0 };
    if (!tni_present("tn_squeeze_all", "x", x)) return NULL;
    for (int i = 0; i < x->shape.rank; i++)
        if (x->shape.size[i] != 1) shape.size[shape.rank++] = x->shape.size[i];
    return reshape(x, shape);
}

tn_tensor *tn_unsqueeze(tn_tensor *x, int axis)
{
    if (!tni_present("tn_unsqueeze", "x", x)) return NULL;
    int rank = x->shape.rank + 1;
    if (rank > TN_MAX_RANK)
        return tni_fail(TN_E_SHAPE, "tn_unsqueeze: %s has %d axes: want fewer than %d", tni_text(x),
                        x->shape.rank, TN_MAX_RANK);
    if ((axis = tni_axis("tn_unsqueeze", axis, rank)) < 0) return NULL;
    return reshape(x, tni_shape_with(&x->shape, axis, axis, 1, (int64_t[]){ 1 }));
}

/* ---- permute --------------------------------------------------------------------------------- */

static tn_status permute_shape(tni_call *c)
{
    const int *order = c->args;
    const tn_tensor *x = c->in[0];
    tni_spec *y = result_of(c);
    y->shape.rank = x->shape.rank;
    for (int i = 0; i < x->shape.rank; i++) {
        y->shape.size[i] = x->shape.size[order[i]];
        y->stride[i] = x->stride[order[i]];
    }
    return TN_OK;
}

static tn_status permute_backward(tni_grad *g)
{
    const int *order = g->args;
    int back[TN_MAX_RANK];
    for (int i = 0; i < g->in[0].shape.rank; i++) back[order[i]] = i;
    return tni_give_dx(g, tn_permute(g->dy, back, g->dy->shape.rank));
}

VIEW(permute, "y[i_0, i_1, ..] = x[i_order]", "dx[i_order] = dy[i_0, i_1, ..]", permute_backward)

tn_tensor *tn_permute(tn_tensor *x, const int *axes, int n_axes)
{
    int order[TN_MAX_RANK] = { 0 };
    unsigned seen = 0;
    if (!tni_present("tn_permute", "x", x)) return NULL;
    if (!axes && n_axes > 0) return tni_poisoned("tn_permute", "axes");
    if (n_axes != x->shape.rank)
        return tni_fail(TN_E_SHAPE, "tn_permute: %d axes for %s: want %d, every axis once", n_axes,
                        tni_text(x), x->shape.rank);
    for (int i = 0; i < x->shape.rank; i++) {
        int axis = tni_axis("tn_permute", axes[i], x->shape.rank);
        if (axis < 0) return NULL;
        if (seen & (1u << axis))
            return tni_fail(TN_E_INDEX, "tn_permute: axis %d twice for %s: want every axis once",
                            axis, tni_text(x));
        seen |= 1u << axis;
        order[i] = axis;
    }
    return tni_apply(&op_permute, order, sizeof order, 1, &x);
}

tn_tensor *tn_transpose(tn_tensor *x, int axis0, int axis1)
{
    if ((axis0 = tni_axis_in_any("tn_transpose", x, axis0)) < 0 ||
        (axis1 = tni_axis_in_any("tn_transpose", x, axis1)) < 0)
        return NULL;
    int order[TN_MAX_RANK];
    for (int i = 0; i < x->shape.rank; i++) order[i] = i == axis0 ? axis1 : i == axis1 ? axis0 : i;
    return tn_permute(x, order, x->shape.rank);
}

/* ---- expand ---------------------------------------------------------------------------------- */

static tn_status expand_shape(tni_call *c)
{
    const tn_shape *shape = c->args;
    tni_array stretched = tni_array_expand(c->in[0], shape);
    tni_spec *y = result_of(c);
    y->shape = *shape;
    memcpy(y->stride, stretched.stride, sizeof y->stride);
    return TN_OK;
}

/* The engine sums dy down to x's shape. */
VIEW(expand, "y = x stretched along axes of size 1", "dx = sum of dy along the stretched axes",
     tni_passed_on)

tn_tensor *tn_expand(tn_tensor *x, tn_shape shape)
{
    tn_shape full = shape;
    if (!tni_present("tn_expand", "x", x)) return NULL;
    int lead = shape.rank >= 0 && shape.rank <= TN_MAX_RANK ? shape.rank - x->shape.rank : -1;
    for (int i = 0; i < shape.rank && lead >= 0; i++) {
        int64_t *want = &full.size[i];
        int64_t have = i < lead ? 1 : x->shape.size[i - lead];
        if (*want == -1 && i >= lead) *want = have;
        if (*want < 0 || (have != 1 && have != *want)) lead = -1; /* reported below */
    }
    if (lead < 0 && tni_size_failed("tn_expand", &shape) != TN_OK) return NULL;
    if (lead < 0)
        return tni_fail(
            TN_E_SHAPE,
            "tn_expand: %s to %s: want its sizes at the end, with only those of 1 stretched",
            tni_text(x), tni_shape_text(&shape));
    if (tni_shape_fits("tn_expand", &full) != TN_OK) return NULL;
    return tni_apply(&op_expand, &full, sizeof full, 1, &x);
}

/* ---- slice ----------------------------------------------------------------------------------- */

typedef struct slice_args {
    int axis;
    int64_t start, step, n; /* n elements */
    int64_t whole;          /* size of the axis in x */
} slice_args;

static void slice_spec(const tn_tensor *x, const slice_args *a, tni_spec *y)
{
    y->dtype = x->dtype;
    y->shape = x->shape;
    y->shape.size[a->axis] = a->n;
    y->strided = true;
    memcpy(y->stride, x->stride, sizeof y->stride);
    y->stride[a->axis] = x->stride[a->axis] * a->step;
    y->offset = x->offset + (a->n ? a->start * x->stride[a->axis] : 0);
}

static tn_status slice_shape(tni_call *c)
{
    slice_spec(c->in[0], c->args, c->out_spec);
    return TN_OK;
}

static const tn_op op_slice_grad;

/* Of n slices of one tensor, only the first one in backward makes zeros of the tensor's size; the
 * others are added in place to the sum so far, unless a watcher wants to see them. */
static tn_status slice_backward(tni_grad *g)
{
    tn_tensor *sum = tni_sum_so_far(g);
    if (sum && sum->dtype == g->dy->dtype) {
        tni_spec spec;
        slice_spec(sum, g->args, &spec);
        tn_tensor *part = tni_alias(sum, &spec);
        tn_status status = part ? tn_add_(part, g->dy) : tni_pending();
        g->edge = NULL;
        if (status != TN_OK || !tni_notifies_gradients()) return status;
    }
    return tni_give_dx(g, tni_apply(&op_slice_grad, g->args, g->args_size, 1, &g->dy));
}

VIEW(slice, "y[i] = x[start + i step]", "dx = 0 but dx[start + i step] = dy[i]", slice_backward)

static tn_status slice_grad_shape(tni_call *c)
{
    const slice_args *a = c->args;
    tni_shape_like_first(c);
    c->out_spec[0].shape.size[a->axis] = a->whole;
    return TN_OK;
}

static tn_status slice_grad_forward(tni_call *c)
{
    const slice_args *a = c->args;
    const tni_backend *backend = tni_backend_of(c->out[0]);
    tni_array whole = tni_array_of(c->out[0]);
    tni_array part = rows_along(whole, a->axis, a->start, a->n);
    part.stride[a->axis] *= a->step;
    TNI_TRY(backend->fill(&(tni_fill){ .y = whole }));
    return backend->copy(&(tni_copy){ .y = part, .x = tni_array_of(c->in[0]) });
}

TNI_OP(slice_grad, 1, "y = 0 but y[start + i step] = x[i]", "dx[i] = dy[start + i step]",
       slice_grad_shape, slice_grad_forward, tni_transposed, .dtypes = TNI_ANY_DTYPE,
       .transpose = &op_slice)

static tn_tensor *slice(tn_tensor *x, int axis, int64_t start, int64_t step, int64_t n)
{
    slice_args args = { axis, start, step, n, x->shape.size[axis] };
    return tni_apply(&op_slice, &args, sizeof args, 1, &x);
}

tn_tensor *tn_slice(tn_tensor *x, int axis, int64_t start, int64_t end, int64_t step)
{
    if ((axis = tni_axis_in("tn_slice", x, axis)) < 0) return NULL;
    if (start == TN_NO_SIZE || end == TN_NO_SIZE) {
        tni_size_failed("tn_slice", &(tn_shape){ 2, { start, end } });
        return NULL;
    }
    if (step < 1)
        return tni_fail(TN_E_INVALID,
                        "tn_slice: step %" PRId64 ": want 1 or more (tn_flip reverses)", step);
    int64_t whole = x->shape.size[axis];
    start = TNI_MIN(TNI_MAX(start < 0 ? start + whole : start, 0), whole);
    end = TNI_MIN(TNI_MAX(end < 0 ? end + whole : end, 0), whole);
    int64_t n = end > start ? (end - start - 1) / step + 1 : 0;
    step = TNI_MIN(step, TNI_MAX(whole, 1)); /* the same elements, and no stride overflows */
    return slice(x, axis, start, step, n);
}

tn_tensor *tn_narrow(tn_tensor *x, int axis, int64_t start, int64_t length)
{
    if ((axis = tni_axis_in("tn_narrow", x, axis)) < 0) return NULL;
    int64_t whole = x->shape.size[axis];
    if (start < 0 || length < 0 || start > whole || length > whole - start)
        return tni_fail(TN_E_INDEX,
                        "tn_narrow: %" PRId64 " elements from %" PRId64
                        " on axis %d of %s: want them inside",
                        length, start, axis, tni_text(x));
    return slice(x, axis, start, 1, length);
}

tn_tensor *tn_select(tn_tensor *x, int axis, int64_t i)
{
    if ((axis = tni_axis_in("tn_select", x, axis)) < 0) return NULL;
    int64_t whole = x->shape.size[axis], start = i < 0 ? i + whole : i;
    if (start < 0 || start >= whole)
        return tni_fail(TN_E_INDEX,
                        "tn_select: index %" PRId64 " on axis %d of %s: want %" PRId64 "..%" PRId64,
                        i, axis, tni_text(x), -whole, whole - 1);
    tn_tensor *y = slice(x, axis, start, 1, 1);
    return y ? reshape(y, tni_shape_without(&y->shape, axis)) : NULL;
}

/* ---- split ----------------------------------------------------------------------------------- */

typedef struct split_args {
    int axis;
    int64_t size;
} split_args;

static tn_status split_shape(tni_call *c)
{
    const split_args *a = c->args;
    const tn_tensor *x = c->in[0];
    for (int k = 0; k < c->n_out; k++) {
        slice_args part = { .axis = a->axis, .start = k * a->size, .step = 1 };
        part.n = TNI_MIN(a->size, x->shape.size[a->axis] - part.start);
        slice_spec(x, &part, &c->out_spec[k]);
    }
    return TN_OK;
}

static tn_status split_backward(tni_grad *g)
{
    const split_args *a = g->args;
    TNI_ITEMS(tn_tensor *, parts, g->n_out);
    if (!parts) return TN_E_NOMEM;
    for (int k = 0; k < g->n_out; k++) parts[k] = tni_dy(g, k);
    return tni_give_dx(g, tn_cat(parts, g->n_out, a->axis));
}

VIEW(split, "y_k[i] = x[k size + i]", "dx = dy_0, dy_1, ... side by side", split_backward)

int tn_split(tn_tensor *x, int64_t size, int axis, tn_tensor **out, int max_out)
{
    split_args args = { .size = size };
    if ((args.axis = tni_axis_in("tn_split", x, axis)) < 0) return -1;
    if (!out) return tni_minus_one(tni_poison("tn_split", "out"));
    int64_t whole = x->shape.size[args.axis];
    int64_t n = size > 0 ? whole / size + (whole % size != 0) : 0;
    if (size < 1 || n > max_out)
        return tni_minus_one(
            tni_error(TN_E_SHAPE,
                      "tn_split: %s in pieces of %" PRId64
                      " along axis %d, room for %d: want 1 or more each, and room for all",
                      tni_text(x), size, args.axis, max_out));
    if (n == 0) { /* an empty axis is one empty piece, as in PyTorch */
        args.size = 0;
        n = 1;
    }
    return tni_apply_n(&op_split, &args, sizeof args, 1, &x, (int)n, out) == TN_OK ? (int)n : -1;
}

int tn_chunk(tn_tensor *x, int n, int axis, tn_tensor **out, int max_out)
{
    if ((axis = tni_axis_in("tn_chunk", x, axis)) < 0) return -1;
    if (!out) return tni_minus_one(tni_poison("tn_chunk", "out"));
    if (n < 1 || n > max_out)
        return tni_minus_one(
            tni_error(TN_E_INVALID,
                      "tn_chunk: %d chunks of %s, room for %d: want 1 or more, and room for all", n,
                      tni_text(x), max_out));
    int64_t whole = x->shape.size[axis];
    return tn_split(x, TNI_MAX((whole + n - 1) / n, 1), axis, out, n);
}
