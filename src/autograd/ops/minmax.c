/*
 * minmax.c - largest and smallest: over axes (amax, amin), along one axis with the index (max,
 * min, argmax, argmin).
 *
 *   amax, amin  dx = dy / k at each of the k equal extremes of a slice, 0 elsewhere; with NaN all
 *               are NaN, as in PyTorch; but max_all and min_all share dy among them, as its max()
 *   max, min    dx = dy at the index, the first extreme, 0 elsewhere: dy scattered into zeros
 * NaN wins over numbers.
 */
#include "autograd/ops/reduce.h"

/* ---- amax, amin ------------------------------------------------------------------------------ */

static tn_status extreme_backward(tni_grad *g)
{
    bool nan_shares = ((const tni_reduce_args *)g->args)->p != 0;
    tn_tensor *equal = tn_eq(g->x[0], tni_with_axes(g, g->y));
    if (nan_shares) equal = tn_logical_or(equal, tn_isnan(g->x[0]));
    g->dx[0] = tni_shared_gradient(g, tni_with_axes(g, g->dy), equal);
    return TN_OK;
}

#define EXTREME(tn_name, tn_name_all, name_, function_, formula_)                                  \
    TNI_REDUCE_OP_BY(name_, function_, TNI_REDUCE_KEEPS, TNI_CAST_AUTO, formula_,                  \
                     "dx = x is y ? dy / count : 0; where count: how many are", TNI_X(0) | TNI_Y,  \
                     tni_reduce_shape, extreme_backward)                                           \
    tn_tensor *tn_name(tn_tensor *x, const int *axes, int n_axes, bool keepdim)                    \
    {                                                                                              \
        return tni_reduce_along(&op_##name_, #tn_name, x, axes, n_axes, keepdim, 0.0);             \
    }                                                                                              \
    tn_tensor *tn_name_all(tn_tensor *x)                                                           \
    {                                                                                              \
        return tni_reduce_along(&op_##name_, #tn_name_all, x, NULL, 0, false, 1.0);                \
    }

EXTREME(tn_amax, tn_max_all, amax, TNI_R_max, "y = max x")
EXTREME(tn_amin, tn_min_all, amin, TNI_R_min, "y = min x")

/* ---- max, min, argmax, argmin ---------------------------------------------------------------- */

typedef struct arg_op {
    tn_op op;
    bool largest;
    bool index_only;
} arg_op;

typedef struct arg_args {
    int axis;
    bool keepdim;
} arg_args;

static tn_status arg_shape(tni_call *c)
{
    const arg_op *op = (const arg_op *)c->op;
    const arg_args *args = c->args;
    const tn_tensor *x = c->in[0];
    tn_shape kept = tni_kept_shape(&x->shape, 1u << args->axis);
    tn_shape y = args->keepdim ? kept : tni_shape_without(&x->shape, args->axis);

    if (x->shape.rank > 0 && x->shape.size[args->axis] == 0)
        return tni_op_error(c, TN_E_SHAPE, "%s, axis %d: want at least one element", tni_text(x),
                            args->axis);
    for (int i = 0; i < c->n_out; i++) {
        c->out_spec[i].shape = y;
        c->out_spec[i].dtype = op->index_only || i == 1 ? TN_I64 : x->dtype;
    }
    if (!op->index_only && c->recorded) {
        c->n_saved = 1; /* the index, with the axis in place */
        c->saved_spec[0].dtype = TN_I64;
        c->saved_spec[0].shape = kept;
    }
    return TN_OK;
}

static tn_status arg_forward(tni_call *c)
{
    const arg_op *op = (const arg_op *)c->op;
    const arg_args *args = c->args;
    const tni_backend *backend = tni_backend_of(c->in[0]);
    tn_shape kept = tni_kept_shape(&c->in[0]->shape, 1u << args->axis);
    tni_array none = tni_array_none();
    tni_arg_reduce a = { .value = op->index_only ? none : tni_kept_array(c->out[0], &kept),
                         .index = tni_kept_array(c->out[op->index_only ? 0 : 1], &kept),
                         .x = tni_array_of(c->in[0]),
                         .axis = args->axis,
                         .largest = op->largest };
    tn_status status = backend->arg_reduce(&a);

    if (status || c->n_saved == 0) return status;
    return backend->copy(&(tni_copy){ .y = tni_array_of(c->saved[0]), .x = a.index });
}

static tn_status arg_backward(tni_grad *g)
{
    const arg_args *args = g->args;
    tn_shape kept = tni_kept_shape(&g->in[0].shape, 1u << args->axis);
    tn_tensor *dy = tn_reshape(tni_dy(g, 0), kept);

    if (g->in[0].shape.rank == 0) {
        g->dx[0] = dy;
        return TN_OK;
    }
    tn_tensor *zeros = tn_full_as(g->in[0].shape, 0.0, g->in[0].dtype, tn_device_of(g->dy));
    g->dx[0] = tn_scatter_add(zeros, args->axis, g->saved[0], dy);
    return TN_OK;
}

static tn_tensor *apply(const arg_op *op, const char *function, tn_tensor *x, int axis,
                        bool keepdim, tn_tensor **index)
{
    tn_tensor *out[2] = { NULL, NULL };
    arg_args args = { .axis = 0, .keepdim = keepdim };

    if (x && !tni_none(x)) {
        args.axis = tni_axis_of_any(function, axis, x->shape.rank);
        if (args.axis < 0) return NULL;
    }
    if (tni_apply_n(&op->op, &args, sizeof args, 1, &x, op->index_only ? 1 : 2, out)) return NULL;
    if (index) *index = out[1];
    return out[0];
}

/* Gradients of max and min scatter, in f32. */
#define ARG_OP(name_, largest_, only_, formula_, gradient_, cast_, reads_, backward_)              \
    static const arg_op op_##name_ = {                                                             \
        .op = { .name = #name_,                                                                    \
                .formula = formula_,                                                               \
                .gradient = gradient_,                                                             \
                .arity = 1,                                                                        \
                .dtypes = TNI_ANY_DTYPE,                                                           \
                .autocast = cast_,                                                                 \
                .reads = { reads_ },                                                               \
                .shape = arg_shape,                                                                \
                .forward = arg_forward,                                                            \
                .backward = backward_ },                                                           \
        .largest = largest_,                                                                       \
        .index_only = only_,                                                                       \
    };
#define BOTH(tn_name, name, largest)                                                               \
    ARG_OP(name, largest, false, "y = " #name " x, and its first index",                           \
           "dx = 0 but dx[index] = dy", TNI_CAST_F32, TNI_SAVED, arg_backward)                     \
    tn_tensor *tn_name(tn_tensor *x, int axis, bool keepdim, tn_tensor **index)                    \
    {                                                                                              \
        return apply(&op_##name, #tn_name, x, axis, keepdim, index);                               \
    }
#define INDEX(tn_name, name, of, largest)                                                          \
    ARG_OP(name, largest, true, "y = first index of " #of " x", NULL, TNI_CAST_AUTO, 0, NULL)      \
    tn_tensor *tn_name(tn_tensor *x, int axis, bool keepdim)                                       \
    {                                                                                              \
        return apply(&op_##name, #tn_name, x, axis, keepdim, NULL);                                \
    }
BOTH(tn_max, max, true)
BOTH(tn_min, min, false)
INDEX(tn_argmax, argmax, max, true)
INDEX(tn_argmin, argmin, min, false)
