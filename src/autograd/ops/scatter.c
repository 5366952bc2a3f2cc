/*
 * scatter.c - writing, adding and reducing at indices along an axis, and by a mask.
 *
 * y = x, and then, in the order of the index, y[index[i]] becomes what `how` makes of it and
 * source[i]. Added: dx = dy and dsource = dy[index], whose own gradient is that of gather. Written:
 * dx is 0 where something was written. The largest and smallest: equals share dy evenly.
 */
#include "autograd/ops/rows.h"

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

static tn_tensor *zeros_as(const tn_shape *shape, tn_tensor *like)
{
    return like ? tn_full_as(*shape, 0, like->dtype, tn_device_of(like)) : NULL;
}

static tn_status write_backward(tni_grad *g)
{
    const scatter_args *args = g->args;
    tn_tensor *zeros = zeros_as(&g->in[2].shape, g->dy);
    if (g->need[0]) g->dx[0] = tni_scatter_into(g->dy, args->axis, g->x[1], zeros, TNI_SET);
    if (g->need[2]) g->dx[2] = tn_gather(g->dy, args->axis, g->x[1]);
    return TN_OK;
}

static tn_status reduce_backward(tni_grad *g)
{
    const scatter_args *args = g->args;
    tn_tensor *index = g->x[1];
    tn_tensor *at_x = tn_to_dtype(tn_eq(g->x[0], g->y), g->in[0].dtype);
    tn_tensor *at_source =
        tn_to_dtype(tn_eq(g->x[2], tn_gather(g->y, args->axis, index)), g->in[2].dtype);
    tn_tensor *even = tn_div(g->dy, tn_scatter_add(at_x, args->axis, index, at_source));
    g->dx[0] = tn_mul(even, at_x);
    g->dx[2] = tn_mul(tn_gather(even, args->axis, index), at_source);
    return TN_OK;
}

#define SCATTER(name_, formula_, gradient_, reads_0, reads_2, backward_)                           \
    static const tn_op name_##_op = {                                                              \
        .name = #name_,                                                                            \
        .formula = formula_,                                                                       \
        .gradient = gradient_,                                                                     \
        .arity = 3,                                                                                \
        .reads = { reads_0, 0, reads_2 },                                                          \
        .shape = scatter_shape,                                                                    \
        .forward = scatter_forward,                                                                \
        .backward = backward_,                                                                     \
    };
SCATTER(scatter_add, "y = x; y[index[i][j]][j] += source[i][j] for axis 0",
        "dx = dy; -; dsource[i][j] = dy[index[i][j]][j]", 0, TNI_X(1), add_backward)
SCATTER(scatter, "y = x; y[index[i][j]][j] = source[i][j] for axis 0",
        "dx = dy but 0 at the index; -; dsource[i][j] = dy[index[i][j]][j]", TNI_X(1), TNI_X(1),
        write_backward)
#define READS (TNI_ALL_X | TNI_Y)
SCATTER(scatter_reduce, "y = x; y[index[i][j]][j] of it and source[i][j] for axis 0",
        "dx = dy dy/dx; -; dsource[i][j] = dy/dsource dy[index[i][j]][j]", READS, READS,
        reduce_backward)

tn_tensor *tni_scatter_into(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source,
                            tni_scattering how)
{
    tn_tensor *in[3] = { x, index, source };
    const scatter_args args = { axis, how };
    const tn_op *op = how == TNI_ADD   ? &scatter_add_op
                      : how == TNI_SET ? &scatter_op
                                       : &scatter_reduce_op;
    tn_tensor *y = tni_apply(op, &args, sizeof args, 3, in);
    return y && tni_autocasting == TN_F32 ? tn_to_dtype(y, x->dtype) : y;
}

/* ---- scatter_add, scatter, scatter_reduce ---------------------------------------------------- */

/* Which source is written last to each place, for dtypes that kernels do not take. */
static tn_tensor *scatter_places(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)
{
    const tn_device device = tn_device_of(x);
    tn_tensor *number =
        tn_reshape(tn_to_dtype(tni_iota(tn_numel(source), device), TN_F64), source->shape);
    tn_tensor *none = tn_full_as(x->shape, -1, TN_F64, device);
    tn_tensor *last = tni_scatter_into(none, axis, index, number, TNI_SET);
    tn_tensor *from = tn_to_dtype(tn_clamp(last, 0, INFINITY), TN_I64);
    if (tn_numel(source) == 0) return tn_clone(x);
    tn_tensor *written =
        tn_index_select(tn_reshape(source, TN_SHAPE(-1)), 0, tn_reshape(from, TN_SHAPE(-1)));
    return tn_where(tn_lt_scalar(last, 0), x, tn_reshape(written, x->shape));
}

static tn_tensor *scattered(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source,
                            tni_scattering how)
{
    if (how != TNI_SET || !x || !source || tn_dtype_is_float(x->dtype) || x->dtype != source->dtype)
        return tni_scatter_into(x, axis, index, source, how);
    return scatter_places(x, axis, index, source);
}

typedef tn_tensor *(*scatter_function)(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source,
                                       int how);

/* Calls function with single values as rows of one. */
static tn_tensor *call(const char *f, scatter_function function, tn_tensor *x, int axis,
                       tn_tensor *index, tn_tensor *source, int how)
{
    index = x && source ? tni_index_arg(f, "index", index) : tni_poisoned(f, x ? "source" : "x");
    axis = index ? tni_axis_of_any(f, axis, x->shape.rank) : -1;
    if (axis < 0) return NULL;
    tn_scope scope = tn_scope_begin();
    const bool single = x->shape.rank == 0 && !tni_none(x);
    tn_tensor *y = single
                       ? function(tni_as_row(x), axis, tni_as_row(index), tni_as_row(source), how)
                       : function(x, axis, index, source, how);
    return tn_scope_return(scope, single ? tn_reshape(y, TN_SCALAR) : y);
}

static tn_tensor *as_given(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source, int how)
{
    return scattered(x, axis, index, source, (tni_scattering)how);
}

tn_tensor *tn_scatter_add(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)
{
    return call("tn_scatter_add", as_given, x, axis, index, source, TNI_ADD);
}

tn_tensor *tn_scatter(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)
{
    return call("tn_scatter", as_given, x, axis, index, source, TNI_SET);
}

enum { WITHOUT_X = 16 };

static tn_tensor *reduced(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source, int how)
{
    static const struct {
        tni_scattering how;
        double start; /* that changes nothing */
    } way[] = { [TN_SCATTER_SUM] = { TNI_ADD, 0 },
                [TN_SCATTER_MEAN] = { TNI_ADD, 0 },
                [TN_SCATTER_MAX] = { TNI_MAX_OF, -INFINITY },
                [TN_SCATTER_MIN] = { TNI_MIN_OF, INFINITY } };
    const bool own = !(how & WITHOUT_X);
    how &= ~WITHOUT_X;
    if (tni_absent(x) || tni_absent(source) || !tn_dtype_is_float(x->dtype))
        return tni_fail(TN_E_DTYPE, "tn_scatter_reduce: x %s is %s: want a floating dtype",
                        tni_text(x), x ? tn_dtype_name(x->dtype) : "NULL");
    const tn_device device = tn_device_of(x);
    if (!own) {
        tn_tensor *start = tn_full_as(source->shape, way[how].start, source->dtype, device);
        x = tni_scatter_into(x, axis, index, start, TNI_SET);
    }
    tn_tensor *y = tni_scatter_into(x, axis, index, source, way[how].how);
    if (how != TN_SCATTER_MEAN || !y) return y;
    tn_tensor *count =
        tni_scatter_into(tn_full_as(x->shape, own, x->dtype, device), axis, index,
                         tn_full_as(source->shape, 1, source->dtype, device), TNI_ADD);
    return tn_div(y, tn_clamp(count, 1, INFINITY));
}

tn_tensor *tn_scatter_reduce(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source,
                             tn_scatter_reduction reduction, bool include_self)
{
    static const char f[] = "tn_scatter_reduce";
    if ((unsigned)reduction > TN_SCATTER_MIN)
        return tni_fail(TN_E_INVALID, "%s: reduction %d: want 0 to %d", f, (int)reduction,
                        TN_SCATTER_MIN);
    return call(f, reduced, x, axis, index, source,
                (int)reduction | (include_self ? 0 : WITHOUT_X));
}

/* ---- by rows, by positions, by a mask -------------------------------------------------------- */

tn_tensor *tn_index_add(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source)
{
    static const char f[] = "tn_index_add";
    if (!tni_present(f, "x", x) || !tni_present(f, "source", source)) return NULL;
    if (!(index = tni_index_arg(f, "index", index))) return NULL;
    if ((axis = tni_axis(f, axis, x->shape.rank)) < 0) return NULL;
    tn_shape want = x->shape;
    want.size[axis] = tni_shape_numel(&index->shape);
    if (index->shape.rank != 1 || !tni_shape_equal(&source->shape, &want) ||
        source->dtype != x->dtype)
        return tni_fail(TN_E_SHAPE,
                        "%s: x %s of %s, index %s, source %s of %s: want an index [n] and a source "
                        "like x, but n along axis %d",
                        f, tni_text(x), tn_dtype_name(x->dtype), tni_text(index), tni_text(source),
                        tn_dtype_name(source->dtype), axis);
    tn_scope scope = tn_scope_begin();
    tn_tensor *sum = tn_add(x, tni_take_add_at(source, axis, index, &x->shape));
    if (!sum && tn_error_status() == TN_E_INDEX) tni_disregard(tni_error_prefix("%s: ", f));
    return tn_scope_return(scope, tn_to_dtype(sum, x->dtype));
}

/* The rows of x laid out as [rows of the first n axes, the rest] that the indices of these axes
 * mean, as i64 [m]; their broadcast shape. */
static tn_tensor *rows_at(const char *f, tn_tensor *x, tn_tensor *const *index, int n,
                          tn_shape *shape)
{
    tn_tensor *row = NULL;
    if (!tni_present(f, "x", x)) return NULL;
    if (!index || n < 1 || n > x->shape.rank)
        return tni_fail(TN_E_INVALID, "%s: %d indices%s of %s: want one for each of its first axes",
                        f, n, index ? "" : " in NULL", tni_text(x));
    int64_t step = 1;
    for (int i = n - 1; i >= 0; i--) {
        const int64_t size = x->shape.size[i];
        tn_tensor *at = tni_index_arg(f, "index", index[i]);
        if (!at) return NULL;
        at = tn_where(tn_lt_scalar(at, 0), tn_add_scalar(at, (double)size), at);
        tn_tensor *table = tn_mul_scalar(tni_iota(size, tn_device_of(x)), (double)step);
        tn_tensor *part = tn_index_select(table, 0, tn_reshape(at, TN_SHAPE(-1)));
        if (!part) {
            tni_disregard(tni_error_prefix("%s: axis %d: ", f, i));
            return NULL;
        }
        part = tn_reshape(part, at->shape);
        row = row ? tn_add(row, part) : part;
        step *= size;
    }
    if (!row) return NULL;
    *shape = row->shape;
    return tn_reshape(row, TN_SHAPE(-1));
}

/* The first n axes of x as one, the others as another one. */
static tn_tensor *in_rows(tn_tensor *x, int n)
{
    const int rank = x->shape.rank;
    return tn_reshape(x, TN_SHAPE(rows_count(&x->shape, 0, n), rows_count(&x->shape, n, rank)));
}

/* shape, and then x's axes from n on; false with a message if those are too many. */
static bool followed_by(const char *f, tn_shape *shape, const tn_tensor *x, int n)
{
    if (shape->rank + x->shape.rank - n > TN_MAX_RANK)
        return tni_false(
            tni_error(TN_E_SHAPE, "%s: the result has more than %d axes", f, TN_MAX_RANK));
    for (int i = n; i < x->shape.rank; i++) shape->size[shape->rank++] = x->shape.size[i];
    return true;
}

tn_tensor *tn_index(tn_tensor *x, tn_tensor *const *index, int n)
{
    tn_shape shape;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows = rows_at("tn_index", x, index, n, &shape), *y = NULL;
    if (rows && followed_by("tn_index", &shape, x, n))
        y = tn_reshape(tn_index_select(in_rows(x, n), 0, rows), shape);
    return tn_scope_return(scope, y);
}

static tn_tensor *put(tn_tensor *x, tn_tensor *const *index, int n, tn_tensor *values,
                      bool accumulate)
{
    static const char f[] = "tn_index_put";
    tn_shape shape;
    tn_tensor *at = rows_at(f, x, index, n, &shape);
    if (!at || !tni_present(f, "values", values) || !followed_by(f, &shape, x, n)) return NULL;
    if (values->dtype != x->dtype)
        return tni_fail(TN_E_DTYPE, "%s: x is %s, values are %s: want one dtype", f,
                        tn_dtype_name(x->dtype), tn_dtype_name(values->dtype));
    tn_tensor *rows = in_rows(x, n), *row = tn_expand(values, shape);
    if (!rows || !row) return NULL;
    const int64_t each = rows->shape.size[1], m = tn_numel(at);
    row = tn_reshape(row, TN_SHAPE(m, each));
    if (accumulate)
        rows = tn_add(rows, tni_take_add_at(row, 0, at, &rows->shape));
    else
        rows = scattered(rows, 0, tn_expand(tn_unsqueeze(at, 1), TN_SHAPE(m, each)), row, TNI_SET);
    return tn_to_dtype(tn_reshape(rows, x->shape), x->dtype);
}

tn_tensor *tn_index_put(tn_tensor *x, tn_tensor *const *index, int n, tn_tensor *values,
                        bool accumulate)
{
    tn_scope scope = tn_scope_begin();
    return tn_scope_return(scope, put(x, index, n, values, accumulate));
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
    static const char f[] = "tn_masked_scatter";
    if (!tni_present(f, "x", x) || !tni_present(f, "mask", mask) ||
        !tni_present(f, "source", source))
        return NULL;
    if (mask->dtype != TN_BOOL || source->dtype != x->dtype)
        return tni_fail(TN_E_DTYPE, "%s: x %s, mask %s, source %s: want a bool mask and one dtype",
                        f, tn_dtype_name(x->dtype), tn_dtype_name(mask->dtype),
                        tn_dtype_name(source->dtype));
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = masked_scatter(x, mask, source);
    if (!y && tn_error_status() == TN_E_INDEX)
        tni_disregard(tni_error_prefix("%s: more places are true than source has: ", f));
    return tn_scope_return(scope, y);
}
