/*
 * sort.c - lines along an axis in order, or a part of that order: sort, argsort, topk, median;
 * quantile, which reads it.
 *
 * y_j = x_index[j], so dx = 0 but dx_index[j] = dy_j: dy scattered into zeros. One kernel finds
 * positions first .. first + k - 1 of the order: all, the first k, or one.
 */
#include "autograd/ops/rows.h"

typedef struct sort_args {
    int axis;
    bool descending, median;
    int64_t k;
} sort_args;

static tn_status sort_shape(tni_call *c)
{
    const sort_args *args = c->args;
    tn_shape shape = c->in[0]->shape;
    if (shape.rank > 0) shape.size[args->axis] = args->k;
    tni_result(c, c->in[0]->dtype, &shape);
    c->out_spec[c->n_out - 1] = (tni_spec){ .dtype = TN_I64, .shape = shape };
    if (c->n_out > 1 && c->recorded) tni_saves(c, TN_I64, &shape);
    return TN_OK;
}

/* A single value is a line of one. */
static tni_array lines_of(const tn_tensor *t)
{
    return t->shape.rank > 0 ? tni_array_of(t) : rows_array(t, 1, 1, 0, 0);
}

static tn_status sort_forward(tni_call *c)
{
    const sort_args *args = c->args;
    const tni_backend *backend = tni_backend_of(c->in[0]);
    tni_order a = { .value = c->n_out > 1 ? lines_of(c->out[0]) : tni_array_none(),
                    .index = lines_of(c->out[c->n_out - 1]),
                    .x = lines_of(c->in[0]),
                    .axis = args->axis,
                    .descending = args->descending,
                    .median = args->median };
    tn_status status = backend->order(&a);
    if (status != TN_OK || c->n_saved == 0) return status;
    return backend->copy(&(tni_copy){ .y = lines_of(c->saved[0]), .x = a.index });
}

static tn_status sort_backward(tni_grad *g)
{
    tn_tensor *dy = tni_dy(g, 0);
    tn_tensor *zeros = tn_full_as(g->in[0].shape, 0, dy->dtype, tn_device_of(dy));
    g->dx[0] = tn_scatter_add(zeros, ((const sort_args *)g->args)->axis, g->saved[0], dy);
    return TN_OK;
}

#define SORT_OP(name_, formula_, gradient_, backward_)                                             \
    static const tn_op name_##_op = {                                                              \
        .name = #name_,                                                                            \
        .formula = formula_,                                                                       \
        .gradient = gradient_,                                                                     \
        .arity = 1,                                                                                \
        .dtypes = TNI_ANY_DTYPE,                                                                   \
        .reads = { TNI_SAVED },                                                                    \
        .shape = sort_shape,                                                                       \
        .forward = sort_forward,                                                                   \
        .backward = backward_,                                                                     \
    };
SORT_OP(sort, "y_j = x_index[j], in order", "dx = 0 but dx_index[j] = dy_j", sort_backward)
SORT_OP(topk, "y_j = x_index[j], the k extremes in order", "dx = 0 but dx_index[j] = dy_j",
        sort_backward)
SORT_OP(median, "y = x_index, the lower median", "dx = 0 but dx_index = dy", sort_backward)
SORT_OP(argsort, "y_j = index of number j in order", NULL, NULL)

/* The order along args.axis, k of topk; an op without a gradient gives the index alone. */
static tn_tensor *ordered(const tn_op *op, tn_tensor *x, int64_t k, sort_args args,
                          tn_tensor **index)
{
    char function[16];
    tn_tensor *out[2] = { NULL, NULL };
    snprintf(function, sizeof function, "tn_%s", op->name);
    if (x && !tni_none(x)) {
        args.axis = tni_axis_of_any(function, args.axis, x->shape.rank);
        if (args.axis < 0) return NULL;
        int64_t n = rows_around(&x->shape, args.axis).c;
        int64_t least = x->shape.rank == 0; /* a single value stays one */
        args.k = args.median ? 1 : op == &topk_op ? k : n;
        if (args.median && n == 0)
            return tni_fail(TN_E_SHAPE, "%s: %s, axis %d: want at least one element", function,
                            tni_text(x), args.axis);
        if (args.k < least || args.k > n)
            return tni_fail(TN_E_INVALID,
                            "%s: k %" PRId64 ", %s, axis %d: want %" PRId64 "..%" PRId64, function,
                            args.k, tni_text(x), args.axis, least, n);
    }
    int n_out = op->backward ? 2 : 1;
    if (tni_apply_n(op, &args, sizeof args, 1, &x, n_out, out) != TN_OK) return NULL;
    if (index) *index = out[1];
    return out[0];
}

tn_tensor *tn_sort(tn_tensor *x, int axis, bool descending, tn_tensor **index)
{
    return ordered(&sort_op, x, 0, (sort_args){ axis, .descending = descending }, index);
}

tn_tensor *tn_argsort(tn_tensor *x, int axis, bool descending)
{
    return ordered(&argsort_op, x, 0, (sort_args){ axis, .descending = descending }, NULL);
}

tn_tensor *tn_topk(tn_tensor *x, int64_t k, int axis, bool largest, tn_tensor **index)
{
    return ordered(&topk_op, x, k, (sort_args){ axis, .descending = largest }, index);
}

/* ---- median and quantile --------------------------------------------------------------------- */

tn_tensor *tn_median(tn_tensor *x, int axis, bool keepdim, tn_tensor **index)
{
    tn_tensor *at = NULL;
    tn_tensor *y = ordered(&median_op, x, 1, (sort_args){ axis, .median = true }, &at);
    if (y && index) *index = keepdim ? at : tn_squeeze(at, axis);
    return keepdim ? y : tn_squeeze(y, axis);
}

/* All elements that equal the median share its gradient, as PyTorch has it: it becomes the largest
 * of them, the others -inf. */
tn_tensor *tn_median_all(tn_tensor *x)
{
    if (!tni_present("tn_median_all", "x", x)) return NULL;
    if (tni_shape_numel(&x->shape) == 0)
        return tni_fail(TN_E_SHAPE, "tn_median_all: %s: want at least one element", tni_text(x));
    tn_scope scope = tn_scope_begin();
    tn_tensor *flat = tn_flatten(x, 0, -1);
    tn_tensor *y = tn_median(tn_detach(flat), 0, false, NULL);
    if (y && flat->requires_grad && tn_grad_enabled()) {
        tn_tensor *equal = tn_logical_or(tn_eq(flat, y), tn_isnan(flat));
        y = tn_max_all(tn_masked_fill(flat, tn_logical_not(equal), -INFINITY));
    }
    return tn_scope_return(scope, y);
}

tn_tensor *tn_quantile(tn_tensor *x, double q, int axis, bool keepdim)
{
    if (!tni_present("tn_quantile", "x", x)) return NULL;
    if (!(q >= 0 && q <= 1)) return tni_fail(TN_E_INVALID, "tn_quantile: q %g: want 0 to 1", q);
    if (!tn_dtype_is_float(x->dtype))
        return tni_fail(TN_E_DTYPE, "tn_quantile: %s is %s: want a floating dtype", tni_text(x),
                        tn_dtype_name(x->dtype));
    axis = tni_axis_of_any("tn_quantile", axis, x->shape.rank);
    if (axis < 0) return NULL;
    int64_t last = rows_around(&x->shape, axis).c - 1;
    if (last < 0)
        return tni_fail(TN_E_SHAPE, "tn_quantile: %s, axis %d: want at least one element",
                        tni_text(x), axis);
    tn_dtype wide = tni_wide_dtype(x->dtype); /* PyTorch rounds q, and the place, so */
    double place = tni_rounded(tni_rounded(q, wide) * (double)last, wide);
    int64_t below = TNI_MIN((int64_t)place, last), above = TNI_MIN(below + 1, last);
    tn_scope scope = tn_scope_begin();
    tn_tensor *sorted = tn_sort(x->shape.rank == 0 ? tn_flatten(x, 0, -1) : x, axis, false, NULL);
    tn_tensor *top = tn_narrow(sorted, axis, last, 1); /* NaN if there is any */
    tn_tensor *y = tn_lerp(tn_narrow(sorted, axis, below, 1), tn_narrow(sorted, axis, above, 1),
                           place - (double)below);
    y = tn_where(tn_isnan(top), top, y);
    bool goes = !keepdim || x->shape.rank == 0;
    return tn_scope_return(scope, goes ? tn_squeeze(y, axis) : y);
}
