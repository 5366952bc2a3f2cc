/*
 * gather.c - reading along an axis by index.
 *
 * gather and scatter_add (scatter.c), and take and take_add (of whole slices), are linear with 0-1
 * matrices; each one's gradient is the other of its pair, so second derivatives need no code of
 * their own. take serves index_select and embedding, y[...] = weight[index[...]]: rows of weight
 * [V, D] by id, which equals a product with one-hot rows. Ids that occur several times add up, in
 * the order of the index; the padding row gets no gradient (forward reads it like any other).
 * Source of embedding: Mikolov et al. (2013), section 2.1 (projection layer).
 */
#include "autograd/ops/shared.h"
#include "autograd/notify.h"

/* ---- indices --------------------------------------------------------------------------------- */

tn_status tni_name_index_error(const tn_op *op, tn_status status)
{
    if (status != TN_E_INDEX) return status;
    return tni_error_prefix("tn_%s: ", op->name);
}

tn_tensor *tni_as_i64(const char *function, const char *what, tn_tensor *t, bool bytes)
{
    const char *want = bytes ? "u8, i32 or i64" : "i32 or i64";
    if (!t) return tni_poisoned(function, what);
    if (tni_none(t))
        return tni_fail(TN_E_INVALID, "%s: %s is TN_NONE: want a tensor of %s", function, what,
                        want);
    if (t->dtype == TN_I64) return t;
    if (t->dtype == TN_I32 || (bytes && t->dtype == TN_U8)) return tn_to_dtype(t, TN_I64);
    return tni_fail(TN_E_DTYPE, "%s: %s %s is %s: want %s, as tn_to_dtype(%s, TN_I64) gives",
                    function, what, tni_text(t), tn_dtype_name(t->dtype), want, what);
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* index has x's rank, and at most x's sizes beside the axis. */
tn_status tni_check_index_shape(const tni_call *c, int axis)
{
    const tn_tensor *x = c->in[0], *index = c->in[1];
    bool fits = index->shape.rank == x->shape.rank;
    for (int d = 0; fits && d < x->shape.rank; d++)
        fits = d == axis || index->shape.size[d] <= x->shape.size[d];
    if (!fits)
        return tni_op_error(c, TN_E_SHAPE,
                            "x %s, index %s, axis %d: want an index of x's rank, at most x's sizes "
                            "on the other axes",
                            tni_text(x), tni_text(index), axis);
    return TN_OK;
}

static tn_status gather_shape(tni_call *c)
{
    tni_result(c, c->in[0]->dtype, &c->in[1]->shape);
    return tni_check_index_shape(c, *(const int *)c->args);
}

static tn_status gather_forward(tni_call *c)
{
    tni_gather a = { .y = tni_array_of(c->out[0]),
                     .x = tni_array_of(c->in[0]),
                     .index = tni_array_of(c->in[1]),
                     .axis = *(const int *)c->args };
    return tni_name_index_error(c->op, tni_backend_of(c->in[0])->gather(&a));
}

static tn_status gather_backward(tni_grad *g)
{
    tn_tensor *zeros = tn_full_as(g->in[0].shape, 0, g->in[0].dtype, tn_device_of(g->dy));
    const int axis = *(const int *)g->args;
    return tni_give_dx(g, tni_scatter_into(zeros, axis, g->x[1], g->dy, TNI_ADD));
}

/* Autocast: its gradient adds up. */
TNI_OP(gather, 2, "y[i][j] = x[index[i][j]][j] for axis 0",
       "dx = 0 but dx[index[i][j]][j] += dy[i][j]", gather_shape, gather_forward, gather_backward,
       .dtypes = TNI_ANY_DTYPE, .autocast = TNI_CAST_F32, .reads = { TNI_X(1) })

tn_tensor *tni_as_row(tn_tensor *t)
{
    return t->shape.rank == 0 && !tni_none(t) ? tn_reshape(t, TN_SHAPE(1)) : t;
}

tn_tensor *tn_gather(tn_tensor *x, int axis, tn_tensor *index)
{
    index = x ? tni_index_arg("tn_gather", "index", index) : tni_poisoned("tn_gather", "x");
    axis = index ? tni_axis_of_any("tn_gather", axis, x->shape.rank) : -1;
    if (axis < 0) return NULL;
    if (x->shape.rank > 0 || tni_none(x))
        return tni_apply(&op_gather, &axis, sizeof axis, 2, (tn_tensor *[]){ x, index });
    tn_tensor *rows[2] = { tni_as_row(x), tni_as_row(index) };
    return tn_reshape(tni_apply(&op_gather, &axis, sizeof axis, 2, rows), index->shape);
}

/* ---- take and take_add ----------------------------------------------------------------------- */

typedef struct take_args {
    int axis;
    int64_t skip;   /* rows of this index get no gradient; -1: none */
    tn_shape shape; /* of what is taken from */
} take_args;

static const tn_op op_take_add;

static tn_status take_shape(tni_call *c)
{
    const take_args *args = c->args;
    const tn_shape *x = &c->in[0]->shape, *index = &c->in[1]->shape;
    if (x->rank - 1 + index->rank > TN_MAX_RANK)
        return tni_op_error(c, TN_E_SHAPE, "%s by index %s: the result has more than %d axes",
                            tni_text(c->in[0]), tni_text(c->in[1]), TN_MAX_RANK);
    tn_shape y = tni_shape_with(x, args->axis, args->axis + 1, index->rank, index->size);
    return tni_result(c, c->in[0]->dtype, &y);
}

static tn_status take_forward(tni_call *c)
{
    const take_args *args = c->args;
    const tn_tensor *x = c->in[0], *index = c->in[1];
    rows_sizes s = rows_around(&args->shape, args->axis);
    int64_t n = tni_shape_numel(&index->shape);
    tni_take a = { .y = rows_array(c->out[0], 3, s.n, n, s.d),
                   .x = rows_array(x, 3, s.n, s.c, s.d),
                   .index = rows_array(index, 1, n, 0, 0) };
    return tni_name_index_error(c->op, tni_backend_of(x)->take(&a));
}

/* Adds the slices of y to x. */
static tn_status add_slices(const take_args *args, tn_tensor *x, const tn_tensor *y,
                            const tn_tensor *index)
{
    rows_sizes s = rows_around(&args->shape, args->axis);
    int64_t n = tni_shape_numel(&index->shape);
    tni_take_add a = { .x = rows_array(x, 3, s.n, s.c, s.d),
                       .y = rows_array(y, 3, s.n, n, s.d),
                       .index = rows_array(index, 1, n, 0, 0),
                       .skip = args->skip };
    return tni_backend_of(x)->take_add(&a);
}

/* Adds to the sum of the gradients so far, if there is one to add to. */
static tn_status add_to_sum(tni_grad *g)
{
    tn_tensor *sum = tni_sum_so_far(g);
    if (!sum || sum->dtype != g->dy->dtype || tn_dtype_size(sum->dtype) <= 2) return TN_OK;
    tn_tensor *dy = tni_dense(g->dy), *index = tni_dense(g->x[1]);
    tn_status status = dy && index ? add_slices(g->args, sum, dy, index) : tni_pending();
    if (status == TN_OK) g->edge = NULL;
    return status;
}

/* A table that is also used elsewhere in the model, as an output layer's weight, already has a sum
 * of its size. So no zeros of that size are made and added, unless a watcher wants to see them. */
static tn_status take_backward(tni_grad *g)
{
    tn_tensor *in[2] = { g->dy, g->x[1] };
    TNI_TRY(add_to_sum(g));
    if (!g->edge && !tni_notifies_gradients()) return TN_OK;
    return tni_give_dx(g, tni_apply(&op_take_add, g->args, g->args_size, 2, in));
}

#define TAKE(name_, dtypes_, autocast_, formula_, gradient_)                                       \
    TNI_OP(name_, 2, formula_, gradient_, take_shape, take_forward, take_backward,                 \
           .dtypes = dtypes_, .autocast = autocast_, .reads = { TNI_X(1) }, .dense = TNI_ALL_X)
/* in f32, as its gradient adds up */
TAKE(index_select, TNI_ANY_DTYPE, TNI_CAST_F32, "y[r] = x[index[r]] for axis 0",
     "dx = 0 but dx[index[r]] += dy[r]")
TAKE(embedding, TNI_SAME_FLOAT, TNI_CAST_AUTO, "y[r] = weight[index[r]]",
     "dweight = 0 but dweight[index[r]] += dy[r]")

static tn_status take_add_shape(tni_call *c)
{
    const take_args *args = c->args; /* all added, then rounded */
    return tni_result(c, tni_wide_dtype(c->in[0]->dtype), &args->shape);
}

static tn_status take_add_forward(tni_call *c)
{
    tn_tensor *y = c->in[0];
    tn_status status = tni_backend_of(y)->fill(&(tni_fill){ .y = tni_array_of(c->out[0]) });
    if (status == TN_OK && tni_shape_numel(&y->shape) > 0) /* nothing: of any dtype */
        status = add_slices(c->args, c->out[0], y, c->in[1]);
    return tni_name_index_error(c->op, status);
}

/* The slices of dy at index; slices at skip took no part. */
static tn_status take_add_backward(tni_grad *g)
{
    const take_args *args = g->args;
    tn_tensor *index = g->x[1], *in[2] = { g->dy, index };
    tn_tensor *dx = tni_apply(&op_index_select, args, sizeof *args, 2, in);
    if (args->skip >= 0) {
        tn_shape shape = index->shape; /* followed by ones, for the axes after args->axis */
        for (int d = args->axis + 1; d < args->shape.rank; d++) shape.size[shape.rank++] = 1;
        dx = tn_masked_fill(dx, tn_reshape(tn_eq_scalar(index, (double)args->skip), shape), 0);
    }
    return tni_give_dx(g, dx);
}

TNI_OP(take_add, 2, "y = 0; y[index[r]] += x[r] for axis 0", "dx[r] = dy[index[r]]", take_add_shape,
       take_add_forward, take_add_backward, .reads = { TNI_X(1) }, .dense = TNI_ALL_X)

tn_tensor *tni_take_add_at(tn_tensor *y, int axis, tn_tensor *index, const tn_shape *shape)
{
    take_args args = { axis, -1, *shape };
    return tni_apply(&op_take_add, &args, sizeof args, 2, (tn_tensor *[]){ y, index });
}

tn_tensor *tni_take_at(tn_tensor *x, tn_tensor *index)
{
    if (!x || !index) return NULL;
    take_args args = { 0, -1, x->shape };
    return tni_apply(&op_index_select, &args, sizeof args, 2, (tn_tensor *[]){ x, index });
}

tn_tensor *tn_index_select(tn_tensor *x, int axis, tn_tensor *index)
{
    index = x ? tni_index_arg(__func__, "index", index) : tni_poisoned(__func__, "x");
    if (!index) return NULL;
    if (index->shape.rank != 1)
        return tni_fail(TN_E_SHAPE, "tn_index_select: index %s: want one axis", tni_text(index));
    if ((axis = tni_axis_of_any(__func__, axis, x->shape.rank)) < 0) return NULL;
    bool single = x->shape.rank == 0 && !tni_none(x);
    if (single && index->shape.size[0] != 1)
        return tni_fail(TN_E_SHAPE, "tn_index_select: index %s of a single value: want [1]",
                        tni_text(index));
    tn_tensor *in[2] = { tni_as_row(x), index };
    if (!in[0]) return NULL;
    take_args args = { axis, -1, in[0]->shape };
    tn_tensor *y = tni_apply(&op_index_select, &args, sizeof args, 2, in);
    return single ? tn_reshape(y, TN_SCALAR) : y;
}

tn_tensor *tn_embedding(tn_tensor *weight, tn_tensor *index, int64_t padding_index)
{
    index = weight ? tni_ids_arg(__func__, "index", index) : tni_poisoned(__func__, "weight");
    if (!index) return NULL;
    if (weight->shape.rank != 2)
        return tni_fail(TN_E_SHAPE, "tn_embedding: weight %s: want [V,D]", tni_text(weight));
    if (padding_index < -1 || padding_index >= weight->shape.size[0])
        return tni_fail(TN_E_INDEX,
                        "tn_embedding: padding_index %" PRId64 ", weight %s: want 0..%" PRId64
                        ", or -1 for none",
                        padding_index, tni_text(weight), weight->shape.size[0] - 1);
    take_args args = { 0, tni_padding_counts ? -1 : padding_index, weight->shape };
    return tni_apply(&op_embedding, &args, sizeof args, 2, (tn_tensor *[]){ weight, index });
}
