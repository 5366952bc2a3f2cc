/*
 * scatter.c - writing and adding at indices along an axis, and by a mask.
 *
 * y = x, and then, in the order of the index, source[i] is added to y[index[i]], or written there.
 * Added: dx = dy and dsource = dy[index], whose own gradient is that of gather. Written: dx is 0
 * where something was written.
 */
#include "autograd/ops/shared.h"

typedef struct scatter_args {
    int axis;
    tni_scattering how;
} scatter_args;

static tn_status scatter_shape(tni_call *c)
{
    const scatter_args *args = c->args;
    const tn_tensor *index = c->in[1], *source = c->in[2];
    if (!tni_shape_equal(&index->shape, &source->shape))
        return tni_op_error(c, TN_E_SHAPE, "index %s, source %s: want equal shapes",
                            tni_text(index), tni_text(source));
    if (!tn_dtype_is_float(source->dtype))
        return tni_op_error(c, TN_E_DTYPE, "x is %s, source is %s: want one dtype",
                            tn_dtype_name(c->in[0]->dtype), tn_dtype_name(source->dtype));
    tni_result(c, tni_wide_dtype(c->in[0]->dtype), &c->in[0]->shape); /* all added, then rounded */
    return tni_check_index_shape(c, args->axis);
}

static tn_status scatter_forward(tni_call *c)
{
    const scatter_args *args = c->args;
    const tni_backend *backend = tni_backend_of(c->in[0]);
    tni_scatter a = { .y = tni_array_of(c->out[0]),
                      .index = tni_array_of(c->in[1]),
                      .source = tni_array_of(c->in[2]),
                      .axis = args->axis,
                      .how = args->how };
    tn_status status = backend->copy(&(tni_copy){ .y = a.y, .x = tni_array_of(c->in[0]) });
    if (status == TN_OK && tni_shape_numel(&c->in[1]->shape) > 0) /* nothing: of any dtype */
        status = backend->scatter(&a);
    return tni_name_index_error(c->op, status);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static tn_status add_backward(tni_grad *g)
{
    const scatter_args *args = g->args;
    g->dx[0] = g->dy;
    if (g->need[2]) g->dx[2] = tn_gather(g->dy, args->axis, g->x[1]);
    return TN_OK;
}

static tn_status write_backward(tni_grad *g)
{
    const scatter_args *args = g->args;
    tn_tensor *zeros = tn_full_as(g->in[2].shape, 0, g->dy->dtype, tn_device_of(g->dy));
    if (g->need[0]) g->dx[0] = tni_scatter_into(g->dy, args->axis, g->x[1], zeros, TNI_SET);
    if (g->need[2]) g->dx[2] = tn_gather(g->dy, args->axis, g->x[1]);
    return TN_OK;
}

#define SCATTER(name_, formula_, gradient_, reads_0, backward_)                                    \
    TNI_OP(name_, 3, formula_, gradient_, scatter_shape, scatter_forward, backward_,               \
           .reads = { reads_0, 0, TNI_X(1) })
SCATTER(scatter_add, "y = x; y[index[i][j]][j] += source[i][j] for axis 0",
        "dx = dy; -; dsource[i][j] = dy[index[i][j]][j]", 0, add_backward)
SCATTER(scatter, "y = x; y[index[i][j]][j] = source[i][j] for axis 0",
        "dx = dy but 0 at the index; -; dsource[i][j] = dy[index[i][j]][j]", TNI_X(1),
        write_backward)

/* By the number of the source that is written last: kernels do not take such dtypes. */
static tn_tensor *write_numbered(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)
{
    const tn_device device = tn_device_of(x);
    tn_tensor *number = tn_to_dtype(tni_iota(tn_numel(source), device), TN_F64);
    tn_tensor *last = tni_scatter_into(tn_full_as(x->shape, -1, TN_F64, device), axis, index,
                                       tn_reshape(number, source->shape), TNI_SET);
    if (!last || tn_numel(source) == 0) return last ? tn_clone(x) : NULL;
    tn_tensor *from = tn_to_dtype(tn_clamp(last, 0, INFINITY), TN_I64);
    tn_tensor *written = tni_take_at(tn_reshape(source, TN_SHAPE(-1)), from);
    return tn_where(tn_lt_scalar(last, 0), x, written);
}

tn_tensor *tni_scatter_into(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source,
                            tni_scattering how)
{
    tn_tensor *in[3] = { x, index, source };
    const scatter_args args = { axis, how };
    if (how == TNI_SET && x && source && !tn_dtype_is_float(x->dtype) && x->dtype == source->dtype)
        return write_numbered(x, axis, index, source);
    tn_tensor *y =
        tni_apply(how == TNI_ADD ? &op_scatter_add : &op_scatter, &args, sizeof args, 3, in);
    return y && tni_autocasting == TN_F32 ? tn_to_dtype(y, x->dtype) : y;
}

static tn_tensor *scatter(const char *f, tn_tensor *x, int axis, tn_tensor *index,
                          tn_tensor *source, tni_scattering how)
{
    index = x && source ? tni_index_arg(f, "index", index) : tni_poisoned(f, x ? "source" : "x");
    axis = index ? tni_axis_of_any(f, axis, x->shape.rank) : -1;
    if (axis < 0) return NULL;
    tn_scope scope = tn_scope_begin();
    const bool single = x->shape.rank == 0 && !tni_none(x);
    tn_tensor *y = tni_scatter_into(tni_as_row(x), axis, single ? tni_as_row(index) : index,
                                    single ? tni_as_row(source) : source, how);
    return tni_scope_return(f, scope, single ? tn_reshape(y, TN_SCALAR) : y);
}

#define SCATTERING(tn_name, how)                                                                   \
    tn_tensor *tn_name(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)                \
    {                                                                                              \
        return scatter(#tn_name, x, axis, index, source, how);                                     \
    }
SCATTERING(tn_scatter_add, TNI_ADD)
SCATTERING(tn_scatter, TNI_SET)

/* ---- by rows, by positions, by a mask -------------------------------------------------------- */

tn_tensor *tn_index_add(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)
{
    if (!tni_present(__func__, "x", x) || !tni_present(__func__, "source", source)) return NULL;
    if (!(index = tni_index_arg(__func__, "index", index))) return NULL;
    if ((axis = tni_axis(__func__, axis, x->shape.rank)) < 0) return NULL;
    tn_shape want = x->shape;
    want.size[axis] = tni_shape_numel(&index->shape);
    if (index->shape.rank != 1 || !tni_shape_equal(&source->shape, &want) ||
        source->dtype != x->dtype)
        return tni_fail(TN_E_SHAPE,
                        "%s: x %s of %s, index %s, source %s of %s: want an index [n] and a source "
                        "like x, but n along axis %d",
                        __func__, tni_text(x), tn_dtype_name(x->dtype), tni_text(index),
                        tni_text(source), tn_dtype_name(source->dtype), axis);
    tn_scope scope = tn_scope_begin();
    tn_tensor *sum = tn_add(x, tni_take_add_at(source, axis, index, &x->shape));
    if (!sum && tn_error_status() == TN_E_INDEX) tni_disregard(tni_error_prefix("%s: ", __func__));
    return tni_scope_return(__func__, scope, tn_to_dtype(sum, x->dtype));
}

/* The first n axes of *x become one, into which the indices of these axes then mean the returned
 * one, of their broadcast shape. */
static tn_tensor *rows_at(const char *f, tn_tensor **x, tn_tensor *const *index, int n)
{
    if (!tni_present(f, "x", *x)) return NULL;
    if (!index || n < 1 || n > (*x)->shape.rank)
        return tni_fail(TN_E_INVALID, "%s: %d indices%s of %s: want one for each of its first axes",
                        f, n, index ? "" : " in NULL", tni_text(*x));
    tn_tensor *row = NULL;
    for (int64_t i = n - 1, step = 1; i >= 0; i--) {
        const int64_t size = (*x)->shape.size[i];
        tn_tensor *at = tni_index_arg(f, "index", index[i]);
        if (!at) return NULL;
        at = tn_where(tn_lt_scalar(at, 0), tn_add_scalar(at, (double)size), at);
        tn_tensor *table = tn_mul_scalar(tni_iota(size, tn_device_of(*x)), (double)step);
        tn_tensor *part = tni_take_at(table, at);
        if (!part) return tni_nothing(tni_error_prefix("%s: axis %" PRId64 ": ", f, i));
        if (!(row = row ? tn_add(row, part) : part)) return NULL;
        step *= size;
    }
    *x = tn_flatten(*x, 0, n - 1);
    return row;
}

tn_tensor *tn_index(tn_tensor *x, tn_tensor *const *index, int n)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *row = rows_at("tn_index", &x, index, n);
    return tni_scope_return(__func__, scope, row ? tni_take_at(x, row) : NULL);
}

static tn_tensor *masked_scatter(tn_tensor *x, tn_tensor *mask, tn_tensor *source)
{
    tn_tensor *whole = tn_expand(mask, x->shape);
    tn_tensor *flat = tn_reshape(whole, TN_SHAPE(-1)), *any = tn_any(mask, NULL, 0, false);
    if (!flat || !any) return NULL;
    if (tn_numel(source) == 0 && (tn_numel(x) == 0 || tn_item(any) == 0)) return tn_clone(x);
    tn_tensor *place = tn_clamp(tn_sub_scalar(tn_cumsum(flat, 0), 1), 0, INFINITY);
    tn_tensor *taken = tn_index_select(tn_reshape(source, TN_SHAPE(-1)), 0, place);
    return tn_where(whole, tn_reshape(taken, x->shape), x);
}

tn_tensor *tn_masked_scatter(tn_tensor *x, tn_tensor *mask, tn_tensor *source)
{
    if (!tni_present(__func__, "x", x) || !tni_present(__func__, "mask", mask) ||
        !tni_present(__func__, "source", source))
        return NULL;
    if (mask->dtype != TN_BOOL || source->dtype != x->dtype)
        return tni_fail(TN_E_DTYPE, "%s: x %s, mask %s, source %s: want a bool mask and one dtype",
                        __func__, tn_dtype_name(x->dtype), tn_dtype_name(mask->dtype),
                        tn_dtype_name(source->dtype));
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = masked_scatter(x, mask, source);
    if (!y && tn_error_status() == TN_E_INDEX)
        tni_disregard(tni_error_prefix("%s: more places are true than source has: ", __func__));
    return tni_scope_return(__func__, scope, y);
}
