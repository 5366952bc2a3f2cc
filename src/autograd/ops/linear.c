/*
 * linear.c - y = x W^T + b over the last axis.
 *
 * All leading axes of x are rows of one product; the bias is what the product adds to. Wide: for
 * bf16 or f16 x, y stays f32, unrounded; dy is rounded to x's dtype.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/rows.h"
#include "tensor/formulas.h"

static tn_status linear_shape(tni_call *c)
{
    const tn_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    if (x->shape.rank < 1 || w->shape.rank != 2)
        return tni_op_error(c, TN_E_SHAPE, "x %s, weight %s: want x [..., in] and weight [out, in]",
                            tni_text(x), tni_text(w));
    if (x->shape.size[x->shape.rank - 1] != w->shape.size[1])
        return tni_op_error(c, TN_E_SHAPE,
                            "x %s, weight %s: last axis of x (%" PRId64
                            ") must equal columns of weight (%" PRId64 ")",
                            tni_text(x), tni_text(w), x->shape.size[x->shape.rank - 1],
                            w->shape.size[1]);
    if (!tni_none(b) && (b->shape.rank != 1 || b->shape.size[0] != w->shape.size[0]))
        return tni_op_error(c, TN_E_SHAPE, "weight %s, bias %s: want bias [%" PRId64 "]",
                            tni_text(w), tni_text(b), w->shape.size[0]);
    const bool *wide = c->args; /* NULL: false */
    tni_result(c, wide && *wide ? tni_wide_dtype(x->dtype) : x->dtype, &x->shape);
    c->out_spec[0].shape.size[x->shape.rank - 1] = w->shape.size[0];
    return TN_OK;
}

tn_status tni_product_bias(const tni_backend *backend, tni_gemm *g, const tn_tensor *b)
{
    if (tni_none(b)) return TN_OK;
    g->accumulate = g->sums_f32;
    if (!g->sums_f32) {
        g->bias = tni_data(b);
        return TN_OK;
    }
    tni_array c = { g->c, TN_F32, 2, { g->m, g->n }, { g->c_row, 1 } };
    tni_array rows = { tni_data(b), b->dtype, 2, { g->m, g->n }, { 0, 1 } };
    return backend->copy(&(tni_copy){ c, rows });
}

static tn_status linear_forward(tni_call *c)
{
    tn_tensor *x = c->in[0], *w = c->in[1];
    const tni_backend *backend = tni_backend_of(x);
    int64_t n, row, k = w->shape.size[1], out = w->shape.size[0];
    if (tn_numel(c->out[0]) == 0) return TN_OK;
    if (!tni_merge_rows(x, &n, &row)) {
        if (!(x = tni_dense(x))) return tni_pending();
        tni_merge_rows(x, &n, &row);
    }
    tni_array y = { tni_data(c->out[0]), c->out[0]->dtype, 2, { n, out }, { out, 1 } };
    tni_array rows = { tni_data(x), x->dtype, 2, { n, k }, { row, x->stride[x->shape.rank - 1] } };
    tni_gemm g = tni_matrix_product(y, rows, tni_turned(tni_array_of(w)));
    tn_status status = tni_product_bias(backend, &g, c->in[2]);
    return status == TN_OK ? backend->gemm(&g) : status;
}

static tn_status linear_backward(tni_grad *g)
{
    const tn_shape *x = &g->in[0].shape;
    tn_tensor *dy = tni_as_rows(tn_to_dtype(g->dy, g->in[0].dtype));
    if (g->need[0]) {
        tn_tensor *dx = tn_matmul(dy, g->x[1]);
        g->dx[0] = x->rank == 2 ? dx : tn_reshape(dx, *x);
    }
    if (g->need[1]) g->dx[1] = tn_matmul(tn_transpose(dy, 0, 1), tni_as_rows(g->x[0]));
    if (g->need[2]) g->dx[2] = tn_sum(dy, (int[]){ 0 }, 1, false);
    return TN_OK;
}

TNI_OP(linear, 3, "y_no = sum_i x_ni W_oi + b_o", "dx = dy W; dW = dy^T x; db = sum_n dy",
       linear_shape, linear_forward, linear_backward, .optional = TNI_X(2), .dtypes = TNI_ONE_FLOAT,
       .autocast = TNI_CAST_LOW, .reads = { TNI_X(1), TNI_X(0), 0 },
       .dense = TNI_X(2) /* of x, rows that merge are enough */,
       .kernel_grad = tni_linear_kernel_grad)

tn_tensor *tni_linear_wide(tn_tensor *x, tn_tensor *weight, tn_tensor *bias)
{
    bool wide = true;
    return tni_apply(&op_linear, &wide, sizeof wide, 3, (tn_tensor *[]){ x, weight, bias });
}

/* ---- a weight of bytes -----------------------------------------------------------------------
 *
 * u8 [out, in + 4 groups]: row o is the signed bytes q_oi, then an f32 s_og for each group of as
 * many neighbours; W_oi = s_og q_oi, a constant. Few rows of x read the bytes where they lie. For
 * others, and for the gradient of x, W is written in x's dtype, some of it at a time, and
 * multiplied as any other.
 */
typedef struct bytes_args {
    int64_t in;
    bool turned; /* y = x W, the gradient: the same op, so it can be differentiated, too */
} bytes_args;

/* How many elements of W are written at a time. */
enum { PIECE = 1 << 17, PIECE_CUDA = 1 << 26 };

int64_t tni_groups_of(const tn_tensor *w, int64_t in)
{
    const int64_t n = w->shape.rank == 2 ? (w->shape.size[1] - in) / 4 : 0;
    const bool fits = n > 0 && w->shape.size[1] == in + 4 * n && in % (32 * n) == 0;
    return fits && w->dtype == TN_U8 && w->shape.size[0] > 0 ? n : 0;
}

static tn_status bytes_shape(tni_call *c)
{
    const bytes_args *a = c->args;
    const tn_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    const int64_t out = w->shape.size[0];
    if (tni_groups_of(w, a->in) == 0 ||
        (!tni_none(b) && (b->shape.rank != 1 || b->shape.size[0] != out)))
        return tni_op_error(c, TN_E_SHAPE,
                            "x %s, weight %s of bytes, bias %s: want x [..., in], as weight what "
                            "tn_quantize_int8 made of [out, in], bias [out]",
                            tni_text(x), tni_text(w), tni_none(b) ? "TN_NONE" : tni_text(b));
    tni_result(c, x->dtype, &x->shape);
    c->out_spec[0].shape.size[x->shape.rank - 1] = a->turned ? a->in : out;
    return TN_OK;
}

/* Rows of bytes and their scales, as groups of W, from row r and element i on: y = W there. */
static tn_status unpack(const tni_backend *backend, const tn_tensor *w, int64_t in, int64_t r,
                        int64_t i, tni_array y)
{
    const int64_t row = w->shape.size[1], group = in / tni_groups_of(w, in);
    char *from = (char *)tni_data(w) + r * row;
    tni_binary k = { .function = TNI_B_unpack };
    k.y = (tni_array){ y.data, y.dtype, 3, { y.size[0], y.size[1] / group, group },
                       { y.size[1], group, 1 } };
    k.a = k.b = k.y;
    k.a.data = from + i, k.a.dtype = TN_U8, k.a.stride[0] = row;
    k.b.data = from + in + i / group * 4, k.b.dtype = TN_F32;
    k.b.stride[0] = row / 4, k.b.stride[1] = 1, k.b.stride[2] = 0;
    return backend->binary(&k);
}

static tn_status bytes_forward(tni_call *c)
{
    const bytes_args *a = c->args;
    tn_tensor *x = c->in[0], *w = c->in[1], *y = c->out[0];
    const tni_backend *backend = tni_backend_of(x);
    const int64_t out = w->shape.size[0], groups = tni_groups_of(w, a->in), group = a->in / groups;
    const int64_t n = a->turned ? a->in : out, k = a->turned ? out : a->in, m = tn_numel(y) / n;
    const tni_array from = rows_array(x, 2, m, k, 0), to = rows_array(y, 2, m, n, 0);
    if (m == 0) return TN_OK;
    tni_gemm g = tni_matrix_product(to, from, tni_turned(rows_array(w, 2, out, w->shape.size[1], 0)));
    g.dtype = x->dtype, g.n = n, g.k = k, g.sums_f32 = false;
    g.bias = tni_none(c->in[2]) ? NULL : tni_data(c->in[2]);
    if (!a->turned && backend->few_bytes && backend->few_bytes(&g, groups)) return TN_OK;
    const int64_t most = x->storage->device.type == TN_CPU ? PIECE : PIECE_CUDA;
    const int64_t step = TNI_MIN(n, (most / k / group + 1) * group);
    const tn_shape shape = TN_SHAPE(k, step);
    tn_tensor *piece = tni_new_dense(&shape, x->dtype, x->storage->device);
    tn_status status = piece ? TN_OK : tni_pending();
    for (int64_t at = 0; status == TN_OK && at < n; at += step) {
        const int64_t count = TNI_MIN(step, n - at);
        const tni_array v = rows_array(piece, 2, a->turned ? k : count, a->turned ? count : k, 0);
        status = unpack(backend, w, a->in, a->turned ? 0 : at, a->turned ? at : 0, v);
        g = tni_matrix_product(rows_along(to, 1, at, count), from, a->turned ? v : tni_turned(v));
        if (!tni_none(c->in[2])) g.bias = rows_part(c->in[2], at, 1, 1).data;
        if (status == TN_OK) status = backend->gemm(&g);
    }
    return status;
}

static tn_tensor *bytes_apply(tn_tensor *x, tn_tensor *w, tn_tensor *bias, bytes_args a);

static tn_status bytes_backward(tni_grad *g)
{
    const bytes_args *a = g->args;
    tn_tensor *dy = tn_to_dtype(g->dy, g->in[0].dtype);
    if (g->need[0]) g->dx[0] = bytes_apply(dy, g->x[1], TN_NONE, (bytes_args){ a->in, !a->turned });
    if (g->need[2]) g->dx[2] = tn_sum(tni_as_rows(dy), (int[]){ 0 }, 1, false);
    return TN_OK;
}

TNI_OP(linear_int8, 3, "y_no = sum_i x_ni s_og q_oi + b_o, g the group of i",
       "dx_ni = sum_o dy_no s_og q_oi; -; db = sum_n dy", bytes_shape, bytes_forward,
       bytes_backward, .optional = TNI_X(2), .autocast = TNI_CAST_LOW, .reads = { TNI_X(1) },
       .dense = TNI_X(0) | TNI_X(1) | TNI_X(2))

static tn_tensor *bytes_apply(tn_tensor *x, tn_tensor *w, tn_tensor *bias, bytes_args a)
{
    return tni_apply(&op_linear_int8, &a, sizeof a, 3, (tn_tensor *[]){ x, w, bias });
}

tn_tensor *tn_linear(tn_tensor *x, tn_tensor *weight, tn_tensor *bias)
{
    const int last = tni_absent(x) ? -1 : x->shape.rank - 1;
    if (last >= 0 && weight && weight->dtype == TN_U8) /* TN_NONE's is f32 */
        return bytes_apply(x, weight, bias, (bytes_args){ .in = x->shape.size[last] });
    return tni_apply(&op_linear, NULL, 0, 3, (tn_tensor *[]){ x, weight, bias });
}
