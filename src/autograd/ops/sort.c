/*
 * sort.c - lines along an axis in order, or the first of that order: sort, argsort, topk; median,
 * which picks from it. One op finds where elements come from; tn_gather takes them, and has the
 * gradient.
 */
#include "autograd/ops/shared.h"

typedef struct order_args {
    int axis;
    bool descending;
    int64_t k;
} order_args;

static tn_status order_shape(tni_call *c)
{
    const order_args *args = c->args;
    tn_shape shape = c->in[0]->shape;
    if (shape.rank > 0) shape.size[args->axis] = args->k;
    return tni_result(c, TN_I64, &shape);
}

/* A single value is a line of one. */
static tni_array lines_of(const tn_tensor *t)
{
    return t->shape.rank > 0 ? tni_array_of(t) : rows_array(t, 1, 1, 0, 0);
}

static tn_status order_forward(tni_call *c)
{
    const order_args *args = c->args;
    tni_order a = { .index = lines_of(c->out[0]),
                    .x = lines_of(c->in[0]),
                    .axis = args->axis,
                    .descending = args->descending };
    return tni_backend_of(c->in[0])->order(&a);
}

TNI_OP(order, 1, "y_j = where number j in order is", NULL, order_shape, order_forward, NULL,
       .dtypes = TNI_ANY_DTYPE)

tn_tensor *tni_ordered(const char *function, tn_tensor *x, const int64_t *k, int *axis,
                       bool descending)
{
    if ((*axis = tni_axis_in_any(function, x, *axis)) < 0) return NULL;
    int64_t n = rows_around(&x->shape, *axis).c;
    int64_t least = x->shape.rank == 0; /* a single value stays one */
    order_args args = { *axis, descending, k ? *k : n };
    if (args.k < least || args.k > n)
        return tni_fail(TN_E_INVALID, "%s: k %" PRId64 ", %s, axis %d: want %" PRId64 "..%" PRId64,
                        function, args.k, tni_text(x), *axis, least, n);
    return tni_apply(&op_order, &args, sizeof args, 1, &x);
}

/* The elements at `at`, and where they were, which is handed over if it is wanted. */
static tn_tensor *taken(tn_scope scope, tn_tensor *x, int axis, tn_tensor *at, bool keepdim,
                        tn_tensor **index)
{
    tn_tensor *out[2] = { at ? tn_gather(x, axis, at) : NULL, at };
    for (int i = 0; i < 2 && out[0] && !keepdim; i++) out[i] = tn_squeeze(out[i], axis);
    tn_status status = out[0] && out[1] ? TN_OK : tni_pending();
    if (tni_scope_hand_over(scope, NULL, status, index ? 2 : 1, out) != TN_OK) return NULL;
    if (index) *index = out[1];
    return out[0];
}

tn_tensor *tn_sort(tn_tensor *x, int axis, bool descending, tn_tensor **index)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *at = tni_ordered("tn_sort", x, NULL, &axis, descending);
    return taken(scope, x, axis, at, true, index);
}

tn_tensor *tn_argsort(tn_tensor *x, int axis, bool descending)
{
    return tni_ordered("tn_argsort", x, NULL, &axis, descending);
}

tn_tensor *tn_topk(tn_tensor *x, int64_t k, int axis, bool largest, tn_tensor **index)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *at = tni_ordered("tn_topk", x, &k, &axis, largest);
    return taken(scope, x, axis, at, true, index);
}

tn_tensor *tn_median(tn_tensor *x, int axis, bool keepdim, tn_tensor **index)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *at = tni_ordered("tn_median", x, NULL, &axis, false);
    int64_t n = at ? rows_around(&x->shape, axis).c : 0;
    if (at && n > 0) { /* where there are NaNs, which come last, the first of them */
        tn_tensor *nans = tn_sum(tn_isnan(x), &axis, 1, true);
        tn_tensor *middle = tn_full_as(TN_SCALAR, (double)((n - 1) / 2), TN_I64, tn_device_of(at));
        tn_tensor *first_nan = tn_add_scalar(tn_neg(nans), (double)n);
        at = tn_gather(at, axis, tn_where(tn_gt_scalar(nans, 0), first_nan, middle));
    } else if (at) {
        at = tni_fail(TN_E_SHAPE, "tn_median: %s, axis %d: want at least one element", tni_text(x),
                      axis);
    }
    return taken(scope, x, axis, at, keepdim, index);
}
