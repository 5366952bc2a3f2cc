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
    return tni_give_dx(g, tni_shared_gradient(g, tni_with_axes(g, g->dy), equal));
}

#define EXTREME(tn_name, tn_name_all, name_, function_, formula_)                                  \
    TNI_REDUCE_OP_BY(name_, function_, TNI_REDUCE_KEEPS, TNI_CAST_AUTO, formula_,                  \
                     "dx = x is y ? dy / count : 0; where count: how many are", TNI_X(0) | TNI_Y,  \
                     tni_reduce_shape, tni_reduce_forward, extreme_backward)                       \
    TNI_REDUCTION(tn_name, name_)                                                                  \
    tn_tensor *tn_name_all(tn_tensor *x)                                                           \
    {                                                                                              \
        return tni_reduce_along(&op_##name_, #tn_name_all, x, NULL, 0, false, 1.0);                \
    }

EXTREME(tn_amax, tn_max_all, amax, TNI_R_max, "y = max x")
EXTREME(tn_amin, tn_min_all, amin, TNI_R_min, "y = min x")

/* ---- max, min, argmax, argmin ---------------------------------------------------------------- */

/* The axis: args->axes has one bit. */
static int axis_of(const tni_reduce_args *args)
{
    int axis = 0;
    tni_mask_axes(args->axes, TN_MAX_RANK, &axis);
    return axis;
}

static tn_status arg_shape(tni_call *c)
{
    const tni_reduce_args *args = c->args;
    tni_spec *index = &c->out_spec[c->n_out - 1];
    TNI_TRY(tni_reduce_shape(c));
    index->shape = c->out_spec[0].shape;
    index->dtype = TN_I64;
    tn_shape kept = tni_kept_shape(&c->in[0]->shape, args->axes);
    if (c->n_out > 1 && c->recorded) tni_saves(c, TN_I64, &kept); /* index, the axis in place */
    return TN_OK;
}

static tn_status arg_forward(tni_call *c)
{
    const tni_reduce_args *args = c->args;
    const tni_backend *backend = tni_backend_of(c->in[0]);
    tn_shape kept = tni_kept_shape(&c->in[0]->shape, args->axes);
    tni_arg_reduce a = { .value =
                             c->n_out > 1 ? tni_kept_array(c->out[0], &kept) : tni_array_none(),
                         .index = tni_kept_array(c->out[c->n_out - 1], &kept),
                         .x = tni_array_of(c->in[0]),
                         .axis = axis_of(args),
                         .largest = ((const tni_reduce_op *)c->op)->function == TNI_R_max };
    TNI_TRY(backend->arg_reduce(&a));
    if (c->n_saved == 0) return TN_OK;
    return backend->copy(&(tni_copy){ .y = tni_array_of(c->saved[0]), .x = a.index });
}

static tn_status arg_backward(tni_grad *g)
{
    tn_tensor *dy = tni_with_axes(g, tni_dy(g, 0));
    if (g->in[0].shape.rank == 0) return tni_give_dx(g, dy);
    tn_tensor *zeros = tn_full_as(g->in[0].shape, 0.0, g->in[0].dtype, tn_device_of(g->dy));
    return tni_give_dx(g, tn_scatter_add(zeros, axis_of(g->args), g->saved[0], dy));
}

/* The extreme and its index; an op without a gradient gives the index alone. */
static tn_tensor *apply(const tni_reduce_op *op, const char *function, tn_tensor *x, int axis,
                        bool keepdim, tn_tensor **index)
{
    tn_tensor *out[2] = { NULL, NULL };
    tni_reduce_args args = { .keepdim = keepdim };
    int n_out = op->op.backward ? 2 : 1;
    if (x && !tni_none(x) && !tni_axes_mask(function, x, &axis, 1, &args.axes)) return NULL;
    if (tni_apply_n(&op->op, &args, sizeof args, 1, &x, n_out, out)) return NULL;
    if (index) *index = out[1];
    return out[0];
}

/* Gradients of max and min scatter, in f32. */
#define BOTH(tn_name, name)                                                                        \
    TNI_REDUCE_OP_BY(name, TNI_R_##name, TNI_REDUCE_KEEPS, TNI_CAST_F32,                           \
                     "y = " #name " x, and its first index", "dx = 0 but dx[index] = dy",          \
                     TNI_SAVED, arg_shape, arg_forward, arg_backward)                              \
    tn_tensor *tn_name(tn_tensor *x, int axis, bool keepdim, tn_tensor **index)                    \
    {                                                                                              \
        return apply(&op_##name, #tn_name, x, axis, keepdim, index);                               \
    }
#define INDEX(tn_name, name, of)                                                                   \
    TNI_REDUCE_OP_BY(name, TNI_R_##of, TNI_REDUCE_KEEPS, TNI_CAST_AUTO,                            \
                     "y = first index of " #of " x", NULL, 0, arg_shape, arg_forward, NULL)        \
    tn_tensor *tn_name(tn_tensor *x, int axis, bool keepdim)                                       \
    {                                                                                              \
        return apply(&op_##name, #tn_name, x, axis, keepdim, NULL);                                \
    }
BOTH(tn_max, max)
BOTH(tn_min, min)
INDEX(tn_argmax, argmax, max)
INDEX(tn_argmin, argmin, min)
