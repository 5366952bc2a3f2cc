/*
 * cumsum.c - y_i = x_0 + ... + x_i along an axis, and cumprod: y_i = x_0 ... x_i.
 *
 * x_j is in y_i for all i >= j, so dx_j = dy_j + ... + dy_n: the running sum from the other end,
 * whose own gradient is the running sum from this one. Of products dx_j is the same sum of dy y,
 * divided by x_j, or, where x_j is 0, with a 1 in its place.
 */
#include "autograd/ops/elementwise.h"

typedef struct cumsum_args {
    int axis;
    bool reverse;
} cumsum_args;

static const tn_op op_cumsum, op_cumprod;

static tn_status cumsum_shape(tni_call *c)
{
    const tn_tensor *x = c->in[0];
    return tni_result(c, tn_dtype_is_float(x->dtype) ? x->dtype : TN_I64, &x->shape);
}

static tn_status cumsum_forward(tni_call *c)
{
    const cumsum_args *args = c->args;
    return tni_backend_of(c->in[0])->cumsum(&(tni_cumsum){ .y = tni_array_of(c->out[0]),
                                                           .x = tni_array_of(c->in[0]),
                                                           .axis = args->axis,
                                                           .reverse = args->reverse,
                                                           .product = c->op == &op_cumprod });
}

static tn_status cumsum_backward(tni_grad *g)
{
    const cumsum_args *args = g->args;
    cumsum_args back = { args->axis, !args->reverse };
    return tni_give_dx(g, tni_apply(&op_cumsum, &back, sizeof back, 1, &g->dy));
}

/* dy_i y_i + ... + dy_n y_n, where y is the product without x's elements at `left_out`. */
static tn_tensor *slope(tni_grad *g, tn_tensor *left_out)
{
    const int axis = ((const cumsum_args *)g->args)->axis;
    const cumsum_args back = { axis, true };
    tn_tensor *x = left_out ? tn_masked_fill(g->x[0], left_out, 1) : g->x[0];
    tn_tensor *part = tn_mul(g->dy, tn_cumprod(x, axis));
    return tni_apply(&op_cumsum, &back, sizeof back, 1, &part);
}

/* The second zero's gradient is 0, but not its derivative by the first one. */
static tn_status cumprod_backward(tni_grad *g)
{
    tn_tensor *zero = tn_eq_scalar(g->x[0], 0);
    tn_tensor *number = tn_cumsum(zero, ((const cumsum_args *)g->args)->axis);
    tn_tensor *dx = tn_div(slope(g, NULL), tn_masked_fill(g->x[0], zero, 1));
    for (int i = 2; i > 0; i--) {
        tn_tensor *it = tn_logical_and(zero, tn_eq_scalar(number, i));
        dx = tn_where(it, slope(g, it), dx);
    }
    return tni_give_dx(g, dx);
}

static tn_tensor *running(const char *function, const tn_op *op, tn_tensor *x, int axis)
{
    cumsum_args args = { 0, false };
    if (x && !tni_none(x)) {
        args.axis = tni_axis_of_any(function, axis, x->shape.rank);
        if (args.axis < 0) return NULL;
    }
    return tni_apply(op, &args, sizeof args, 1, &x);
}

#define RUNNING(tn_name, name_, formula_, gradient_, reads_)                                       \
    TNI_OP(name_, 1, formula_, gradient_, cumsum_shape, cumsum_forward, name_##_backward,          \
           .dtypes = TNI_ANY_DTYPE, .autocast = TNI_CAST_F32, .reads = { reads_ })                 \
    tn_tensor *tn_name(tn_tensor *x, int axis)                                                     \
    {                                                                                              \
        return running(#tn_name, &op_##name_, x, axis);                                            \
    }
RUNNING(tn_cumsum, cumsum, "y_i = x_0 + ... + x_i", "dx_i = dy_i + ... + dy_n", 0)
RUNNING(tn_cumprod, cumprod, "y_i = x_0 ... x_i", "dx_i = (dy_i y_i + ... + dy_n y_n) / x_i",
        TNI_X(0))
