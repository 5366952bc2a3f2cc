/*
 * reduce.c - sums and what is made of them, over any axes: sum, mean, var, std, prod, any, all.
 *
 * With n elements per result, m the mean, N = n - correction:
 *   var   v = sum (x - m)^2 / N; dx = dy 2 (x - m) / N (the mean's part cancels: sum (x - m) = 0)
 *   std   s = v^(1/2); dx = dy (x - m) / (N s), 0 where s = 0
 *   prod  dx_i = dy times the product of the others. For a first derivative that is y / x_i,
 *         unless y is 0 or no number. Else, and while recording, it is made by multiplications
 *         alone, so that derivatives of every order are right at zeros, NaN and infinities.
 * (dy stretched over the reduced axes.)
 */
#include "autograd/ops/reduce.h"

/* ---- shared ---------------------------------------------------------------------------------- */

tn_shape tni_kept_shape(const tn_shape *x, unsigned axes)
{
    tn_shape y = *x;
    for (int d = 0; d < y.rank; d++)
        if (axes >> d & 1u) y.size[d] = 1;
    return y;
}

tn_status tni_reduce_shape(tni_call *c)
{
    const tni_reduce_op *op = (const tni_reduce_op *)c->op;
    const tni_reduce_args *args = c->args;
    const tn_tensor *x = c->in[0];
    tni_spec *y = &c->out_spec[0];
    bool real = tn_dtype_is_float(x->dtype);
    int rank = 0;
    if (op->kind == TNI_REDUCE_REAL && !real)
        return tni_op_error(c, TN_E_DTYPE, "%s is %s: want a floating dtype", tni_text(x),
                            tn_dtype_name(x->dtype));
    for (int d = 0; d < x->shape.rank; d++) {
        bool reduced = args->axes >> d & 1u;
        if (reduced && op->kind == TNI_REDUCE_KEEPS && x->shape.size[d] == 0)
            return tni_op_error(c, TN_E_SHAPE, "%s, axis %d: want at least one element",
                                tni_text(x), d);
        if (!reduced)
            y->shape.size[rank++] = x->shape.size[d];
        else if (args->keepdim)
            y->shape.size[rank++] = 1;
    }
    y->shape.rank = rank;
    y->dtype = op->kind == TNI_REDUCE_BOOL           ? TN_BOOL
               : op->kind == TNI_REDUCE_SUM && !real ? TN_I64
                                                     : x->dtype;
    return TN_OK;
}

tni_array tni_kept_array(const tn_tensor *t, const tn_shape *kept)
{
    tni_array y = { .data = tni_data(t), .dtype = t->dtype, .rank = kept->rank };
    memcpy(y.size, kept->size, sizeof y.size);
    tni_dense_strides(kept, y.stride);
    return y;
}

tn_status tni_reduce_forward(tni_call *c)
{
    const tni_reduce_op *op = (const tni_reduce_op *)c->op;
    const tni_reduce_args *args = c->args;
    tn_shape kept = tni_kept_shape(&c->in[0]->shape, args->axes);
    tni_reduce a;
    a.function = op->function;
    a.p = &args->p;
    a.factor = c->n_saved ? tni_array_of(c->saved[0]) : tni_array_none();
    a.y = tni_kept_array(c->out[0], &kept);
    tni_array_set(&a.x, c->in[0], &c->in[0]->shape);
    return tni_backend_of(c->in[0])->reduce(&a);
}

bool tni_axes_mask(const char *function, const tn_tensor *x, const int *axes, int n_axes,
                   unsigned *mask)
{
    if (n_axes < 0 || n_axes > TN_MAX_RANK || (n_axes > 0 && !axes))
        return tni_false(tni_error(TN_E_INVALID, "%s: %d axes%s: want 0 to %d", function, n_axes,
                                   axes ? "" : " at NULL", TN_MAX_RANK));
    *mask = n_axes ? 0 : (1u << x->shape.rank) - 1u;
    for (int i = 0; i < n_axes; i++) {
        int axis = tni_axis_of_any(function, axes[i], x->shape.rank);
        if (axis < 0) return false;
        if (*mask >> axis & 1u)
            return tni_false(tni_error(TN_E_INVALID,
                                       "%s: axis %d of %s is named twice: want each axis once",
                                       function, axes[i], tni_text(x)));
        *mask |= 1u << axis;
    }
    return true;
}

tn_tensor *tni_reduce_along(const tni_reduce_op *op, const char *function, tn_tensor *x,
                            const int *axes, int n_axes, bool keepdim, double p)
{
    tni_reduce_args args = { .axes = 0, .keepdim = keepdim, .p = p };
    if (x && !tni_none(x) && !tni_axes_mask(function, x, axes, n_axes, &args.axes)) return NULL;
    return tni_apply(&op->op, &args, sizeof args, 1, &x);
}

tn_tensor *tni_with_axes(const tni_grad *g, tn_tensor *t)
{
    const tni_reduce_args *args = g->args;
    return args->keepdim ? t : tn_reshape(t, tni_kept_shape(&g->in[0].shape, args->axes));
}

/* The number of elements reduced to each result; 0 where there is none. */
static double reduced_count(const tni_grad *g)
{
    const int64_t results = tni_shape_numel(&g->out[0].shape);
    return (double)tni_shape_numel(&g->in[0].shape) / (double)TNI_MAX(results, 1);
}

int tni_mask_axes(unsigned mask, int rank, int *axes)
{
    int n = 0;
    for (int d = 0; d < rank; d++)
        if (mask >> d & 1u) axes[n++] = d;
    return n;
}

/* A reduction of t over the axes of g's op, keeping them. */
static tn_tensor *reduce_like(const tni_grad *g,
                              tn_tensor *(*f)(tn_tensor *, const int *, int, bool), tn_tensor *t)
{
    const tni_reduce_args *args = g->args;
    int axes[TN_MAX_RANK];
    int n = tni_mask_axes(args->axes, g->in[0].shape.rank, axes);
    return n > 0 ? f(t, axes, n, true) : t;
}

tn_tensor *tni_shared_gradient(const tni_grad *g, tn_tensor *dy, tn_tensor *equal)
{
    tn_tensor *chosen = tn_to_dtype(equal, g->in[0].dtype);
    return tn_mul(tn_div(dy, reduce_like(g, tn_sum, chosen)), chosen);
}

/* ---- sum, mean ------------------------------------------------------------------------------- */

/* t in x's shape; one number, of all of x, needs no axes for that. */
static tn_tensor *expanded(const tni_grad *g, tn_tensor *t)
{
    return tn_expand(t && t->shape.rank ? tni_with_axes(g, t) : t, g->in[0].shape);
}

TNI_DX(sum_backward, expanded(g, g->dy))
TNI_DX(mean_backward, expanded(g, tn_mul_scalar(g->dy, 1.0 / reduced_count(g))))
TNI_REDUCE_OP(sum, TNI_REDUCE_SUM, "y = sum x", "dx = dy", 0, sum_backward)
TNI_REDUCE_OP(mean, TNI_REDUCE_REAL, "y = sum x / n", "dx = dy / n", 0, mean_backward)
TNI_REDUCTION(tn_sum, sum)
TNI_REDUCTION(tn_mean, mean)

/* ---- var, std -------------------------------------------------------------------------------- */

/* The mean, in f32 for bf16 and f16: rounded to those, it would be off centre. */
static tn_tensor *wide_mean(const tni_grad *g, tn_tensor *x)
{
    const tni_reduce_args *args = g->args;
    tn_shape shape = tni_kept_shape(&x->shape, args->axes);
    tn_tensor *mean = tn_empty_as(shape, tni_wide_dtype(x->dtype), x->storage->device);
    if (!mean) return NULL;
    tni_reduce a = { TNI_R_mean, tni_array_of(mean), tni_array_of(x), .p = &args->p };
    return tni_backend_of(x)->reduce(&a) == TN_OK ? mean : NULL;
}

/* dy (x - mean) times factor; recorded, in f64, whose range the products need */
static tn_tensor *spread(const tni_grad *g, tn_tensor *dy, double factor)
{
    tn_tensor *x = g->x[0];
    if (!tni_composed())
        return tni_fused3(TNI_T_scaled_diff, dy, x, wide_mean(g, x), &factor, &g->in[0], false);
    x = tn_to_dtype(x, TN_F64);
    dy = tn_mul_scalar(tn_to_dtype(dy, TN_F64), factor);
    return tn_mul(dy, tn_sub(x, reduce_like(g, tn_mean, x)));
}

static double degrees(const tni_grad *g)
{
    return fmax(reduced_count(g) - ((const tni_reduce_args *)g->args)->p, 0.0);
}

TNI_DX(var_backward, spread(g, tni_with_axes(g, g->dy), 2.0 / degrees(g)))

static tn_status std_backward(tni_grad *g)
{
    tn_tensor *y = tn_masked_fill(g->y, tn_eq_scalar(g->y, 0.0), INFINITY);
    bool f16 = g->in[0].dtype == TN_F16; /* dy (x - mean) leaves its range, dy / y others' */
    tn_tensor *dv = f16 ? tn_div(tni_wide(g->dy), tni_wide(y)) : g->dy;
    tn_tensor *dx = spread(g, tni_with_axes(g, dv), 1.0 / degrees(g));
    if (!f16 && dx) dx = tn_div(dx, tn_to_dtype(tni_with_axes(g, y), dx->dtype));
    return tni_give_dx(g, dx);
}

TNI_REDUCE_OP(var, TNI_REDUCE_REAL, "y = sum (x - mean x)^2 / (n - correction)",
              "dx = 2 dy (x - mean x) / (n - correction)", TNI_X(0), var_backward)
TNI_REDUCE_OP(std, TNI_REDUCE_REAL, "y = (sum (x - mean x)^2 / (n - correction))^(1/2)",
              "dx = dy (x - mean x) / ((n - correction) y)", TNI_X(0) | TNI_Y, std_backward)

#define SPREAD(tn_name, name)                                                                      \
    tn_tensor *tn_name(tn_tensor *x, const int *axes, int n_axes, double correction, bool keepdim) \
    {                                                                                              \
        return tni_reduce_along(&op_##name, #tn_name, x, axes, n_axes, keepdim, correction);       \
    }
SPREAD(tn_var, var)
SPREAD(tn_std, std)

/* ---- prod ------------------------------------------------------------------------------------ */

/* The products of the others along one axis. A pair a, b, one from each half, counts as one element
 * a b, whose others have the product o: a's is o b, b's is o a. An odd last one stays as it is. */
static tn_tensor *others_along(tn_tensor *x, int axis)
{
    int64_t n = tn_size(x, axis), half = n / 2, odd = n % 2;
    if (n <= 1) return tn_ones_like(x);
    tn_tensor *a = tn_narrow(x, axis, 0, half), *b = tn_narrow(x, axis, half, half);
    tn_tensor *paired[] = { tn_mul(a, b), tn_narrow(x, axis, n - odd, odd) };
    x = others_along(tn_cat(paired, 2, axis), axis);
    tn_tensor *o = tn_narrow(x, axis, 0, half), *last = tn_narrow(x, axis, half, odd);
    return tn_cat((tn_tensor *[]){ tn_mul(o, b), tn_mul(o, a), last }, 3, axis);
}

/* Those along the first axis, times those of the products along it, and so on. */
static tn_status prod_composed(tni_grad *g)
{
    int axes[TN_MAX_RANK];
    int n = tni_mask_axes(((const tni_reduce_args *)g->args)->axes, g->in[0].shape.rank, axes);
    TNI_TRY(tni_widen_grad(g));
    g->dx[0] = tni_with_axes(g, g->dy);
    for (int i = 0; i < n; i++) {
        if (i > 0) g->x[0] = tn_prod(g->x[0], &axes[i - 1], 1, true);
        g->dx[0] = tn_mul(g->dx[0], others_along(g->x[0], axes[i]));
    }
    return TN_OK;
}

/* 1 if the others' product is y / x_i, because nothing is 0, NaN or infinite; else 0; NaN: failed.
 * Always 0 on a GPU. */
static double divides(tn_tensor *y)
{
    if (tni_composed() || tn_device_of(y).type != TN_CPU) return 0;
    tn_tensor *usual = tn_logical_and(tn_isfinite(y), tn_ne_scalar(y, 0.0));
    return tn_item(tn_all(usual, NULL, 0, false));
}

static tn_status prod_backward(tni_grad *g)
{
    double divided = divides(g->y);
    if (divided != 1) return divided == 0 ? prod_composed(g) : tn_error_status();
    tn_tensor *others = tn_div(reduce_like(g, tn_prod, g->x[0]), g->x[0]);
    return tni_give_dx(g, tn_mul(tni_with_axes(g, g->dy), others));
}

TNI_REDUCE_OP(prod, TNI_REDUCE_SUM, "y = prod x", "dx = dy times the product of the others",
              TNI_X(0) | TNI_Y, prod_backward)
TNI_REDUCTION(tn_prod, prod)

/* ---- any, all -------------------------------------------------------------------------------- */

TNI_REDUCE_OP(any, TNI_REDUCE_BOOL, "y = any x is not 0", NULL, 0, NULL)
TNI_REDUCE_OP(all, TNI_REDUCE_BOOL, "y = no x is 0", NULL, 0, NULL)
TNI_REDUCTION(tn_any, any)
TNI_REDUCTION(tn_all, all)

/* ---- over all axes: the commonest case ------------------------------------------------------- */

#define OVER_ALL(tn_name, reduce)                                                                  \
    tn_tensor *tn_name(tn_tensor *x)                                                               \
    {                                                                                              \
        return reduce(x, NULL, 0, false);                                                          \
    }
OVER_ALL(tn_sum_all, tn_sum)
OVER_ALL(tn_mean_all, tn_mean)
