/*
 * sort.c - lines along an axis in order, or the first of that order: sort, argsort, topk; median,
 * which picks from it.
 *
 * y_j = x_index[j], so dx = 0 but dx_index[j] = dy_j: dy scattered into zeros.
 */
#include "autograd/ops/rows.h"

typedef struct sort_args {
    int axis;
    bool descending;
    int64_t k;
} sort_args;

static tn_status sort_shape(tni_call *c)
{
    const sort_args *args = c->args;
    tn_shape shape = c->in[0]->shape;
    if (shape.rank > 0) shape.size[args->axis] = args->k;
    tni_result(c, c->in[0]->dtype, &shape);
    c->out_spec[1] = (tni_spec){ .dtype = TN_I64, .shape = shape };
    if (c->recorded) tni_saves(c, TN_I64, &shape);
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
    tni_order a = { .value = lines_of(c->out[0]),
                    .index = lines_of(c->out[1]),
                    .x = lines_of(c->in[0]),
                    .axis = args->axis,
                    .descending = args->descending };
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

static const tn_op sort_op = {
    .name = "sort",
    .formula = "y_j = x_index[j], the first k in order",
    .gradient = "dx = 0 but dx_index[j] = dy_j",
    .arity = 1,
    .dtypes = TNI_ANY_DTYPE,
    .reads = { TNI_SAVED },
    .shape = sort_shape,
    .forward = sort_forward,
    .backward = sort_backward,
};

/* The first k of the order along an axis; k NULL: all. */
static tn_tensor *ordered(const char *function, tn_tensor *x, const int64_t *k, int axis,
                          bool descending, tn_tensor **index)
{
    tn_tensor *out[2] = { NULL, NULL };
    if (!tni_present(function, "x", x)) return NULL;
    axis = tni_axis_of_any(function, axis, x->shape.rank);
    if (axis < 0) return NULL;
    int64_t n = rows_around(&x->shape, axis).c;
    int64_t least = x->shape.rank == 0; /* a single value stays one */
    sort_args args = { axis, descending, k ? *k : n };
    if (args.k < least || args.k > n)
        return tni_fail(TN_E_INVALID, "%s: k %" PRId64 ", %s, axis %d: want %" PRId64 "..%" PRId64,
                        function, args.k, tni_text(x), axis, least, n);
    if (tni_apply_n(&sort_op, &args, sizeof args, 1, &x, 2, out) != TN_OK) return NULL;
    if (index) *index = out[1];
    return out[0];
}

tn_tensor *tn_sort(tn_tensor *x, int axis, bool descending, tn_tensor **index)
{
    return ordered("tn_sort", x, NULL, axis, descending, index);
}

tn_tensor *tn_argsort(tn_tensor *x, int axis, bool descending)
{
    tn_tensor *index = NULL;
    if (!tni_present("tn_argsort", "x", x)) return NULL;
    tn_scope scope = tn_scope_begin();
    ordered("tn_argsort", tn_detach(x), NULL, axis, descending, &index);
    return tn_scope_return(scope, index);
}

tn_tensor *tn_topk(tn_tensor *x, int64_t k, int axis, bool largest, tn_tensor **index)
{
    return ordered("tn_topk", x, &k, axis, largest, index);
}

tn_tensor *tn_median(tn_tensor *x, int axis, bool keepdim, tn_tensor **index)
{
    tn_tensor *at = NULL, *out[2] = { NULL, NULL };
    tn_scope scope = tn_scope_begin();
    tn_tensor *sorted = ordered("tn_median", x, NULL, axis, false, &at);
    int64_t n = sorted && x->shape.rank > 0 ? tn_size(x, axis) : 1;
    if (n == 0)
        tni_error(TN_E_SHAPE, "tn_median: %s, axis %d: want at least one element", tni_text(x),
                  axis);
    else if (sorted) { /* where there are NaNs, which come last, the first of them */
        tn_tensor *nans = tn_sum(tn_isnan(sorted), &axis, 1, true);
        tn_tensor *middle =
            tn_full_as(TN_SCALAR, (double)((n - 1) / 2), TN_I64, tn_device_of(sorted));
        tn_tensor *first_nan = tn_add_scalar(tn_neg(nans), (double)n);
        tn_tensor *place = tn_where(tn_gt_scalar(nans, 0), first_nan, middle);
        out[0] = tn_gather(sorted, axis, place);
        out[1] = tn_gather(at, axis, place);
        for (int i = 0; i < 2 && !keepdim; i++) out[i] = tn_squeeze(out[i], axis);
    }
    tn_status status = out[0] && out[1] ? TN_OK : tni_pending();
    if (tni_scope_hand_over(scope, NULL, status, 2, out) != TN_OK) return NULL;
    if (index) *index = out[1];
    return out[0];
}
