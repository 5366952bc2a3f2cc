/*
 * cumsum.c - y_i = x_0 + ... + x_i along an axis.
 *
 * x_j is in y_i for all i >= j, so dx_j = dy_j + ... + dy_n: the running sum from the other end,
 * whose own gradient is the running sum from this one.
 */
#include "autograd/ops/elementwise.h"

typedef struct cumsum_args {
    int axis;
    bool reverse;
} cumsum_args;

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
                                                           .reverse = args->reverse });
}

static tn_status cumsum_backward(tni_grad *g);

static const tn_op op_cumsum = {
    .name = "cumsum",
    .formula = "y_i = x_0 + ... + x_i",
    .gradient = "dx_i = dy_i + ... + dy_n",
    .arity = 1,
    .dtypes = TNI_ANY_DTYPE,
    .autocast = TNI_CAST_F32,
    .shape = cumsum_shape,
    .forward = cumsum_forward,
    .backward = cumsum_backward,
};

static tn_status cumsum_backward(tni_grad *g)
{
    const cumsum_args *args = g->args;
    cumsum_args back = { args->axis, !args->reverse };
    g->dx[0] = tni_apply(&op_cumsum, &back, sizeof back, 1, &g->dy);
    return TN_OK;
}

tn_tensor *tn_cumsum(tn_tensor *x, int axis)
{
    cumsum_args args = { 0, false };
    if (x && !tni_none(x)) {
        args.axis = tni_axis_of_any("tn_cumsum", axis, x->shape.rank);
        if (args.axis < 0) return NULL;
    }
    return tni_apply(&op_cumsum, &args, sizeof args, 1, &x);
}
