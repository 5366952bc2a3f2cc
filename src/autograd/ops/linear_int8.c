/*
 * linear_int8.c - y = x W^T + b with a weight of bytes, W_oi = s_og q_oi, g the group of i.
 *
 * It is u8 [out, in + 4 groups]: row o is the signed bytes q, then an f32 s for each group of as
 * many neighbours; a constant. Few rows of x read the bytes where they lie. For others, and for the
 * gradient of x, W is written in x's dtype, some of it at a time, and multiplied as any other.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/shared.h"
#include "tensor/formulas.h"

typedef struct bytes_args {
    int64_t in;
    bool turned; /* y = x W, the gradient: the same op, so it can be differentiated, too */
} bytes_args;

/* How many elements of W are written at a time. */
enum { PIECE = 1 << 17, PIECE_CUDA = 1 << 26 };

int64_t tni_groups_of(const tn_tensor *w, int64_t in)
{
    const int64_t n = w->shape.rank == 2 ? (w->shape.size[1] - in) / 4 : 0;
    const bool fits = n > 0 && in > 0 && w->shape.size[1] == in + 4 * n && in % (32 * n) == 0;
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

/* y = W's rows from r and elements from i on; i is where a group begins. */
static tn_status unpack(const tni_backend *backend, const tn_tensor *w, int64_t in, int64_t r,
                        int64_t i, tni_array y)
{
    const int64_t row = w->shape.size[1], group = in / tni_groups_of(w, in), n = y.size[1];
    tni_binary k = { .function = TNI_B_unpack };
    k.y = (tni_array){ y.data, y.dtype, 3, { y.size[0], n / group, group }, { n, group, 1 } };
    k.a = k.b = k.y;
    k.a.data = (char *)tni_data(w) + r * row + i;
    k.a.dtype = TN_U8, k.a.stride[0] = row;
    k.b.data = (char *)tni_data(w) + r * row + in + i / group * 4;
    k.b.dtype = TN_F32, k.b.stride[0] = row / 4, k.b.stride[1] = 1, k.b.stride[2] = 0;
    return backend->binary(&k);
}

static tn_status bytes_forward(tni_call *c)
{
    const bytes_args *a = c->args;
    tn_tensor *x = c->in[0], *w = c->in[1];
    const tni_backend *backend = tni_backend_of(x);
    const int64_t out = w->shape.size[0], row = w->shape.size[1], groups = tni_groups_of(w, a->in);
    const int64_t n = a->turned ? a->in : out, k = a->turned ? out : a->in;
    const int64_t m = tn_numel(c->out[0]) / n, group = a->in / groups;
    const tni_array from = rows_array(x, 2, m, k, 0), to = rows_array(c->out[0], 2, m, n, 0);
    char *bias = rows_array(c->in[2], 1, n, 0, 0).data;
    tni_gemm g = tni_matrix_product(to, from, tni_turned(rows_array(w, 2, n, row, 0)));
    g.dtype = x->dtype, g.k = k, g.bias = bias, g.sums_f32 = false;
    if (m == 0) return TN_OK;
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
        if (bias) g.bias = bias + at * (int64_t)tn_dtype_size(x->dtype);
        if (status == TN_OK) status = backend->gemm(&g);
    }
    return status;
}

static tn_tensor *apply(tn_tensor *x, tn_tensor *w, tn_tensor *bias, int64_t in, bool turned);

static tn_status bytes_backward(tni_grad *g)
{
    const bytes_args *a = g->args;
    tn_tensor *dy = tn_to_dtype(g->dy, g->in[0].dtype);
    if (g->need[0]) g->dx[0] = apply(dy, g->x[1], TN_NONE, a->in, !a->turned);
    if (g->need[2]) g->dx[2] = tn_sum(tni_as_rows(dy), (int[]){ 0 }, 1, false);
    return TN_OK;
}

TNI_OP(linear_int8, 3, "y_no = sum_i x_ni s_og q_oi + b_o, g the group of i",
       "dx_ni = sum_o dy_no s_og q_oi; -; db = sum_n dy", bytes_shape, bytes_forward,
       bytes_backward, .optional = TNI_X(2), .autocast = TNI_CAST_LOW, .reads = { TNI_X(1) },
       .dense = TNI_X(0) | TNI_X(1) | TNI_X(2))

static tn_tensor *apply(tn_tensor *x, tn_tensor *w, tn_tensor *bias, int64_t in, bool turned)
{
    const bytes_args a = { in, turned };
    return tni_apply(&op_linear_int8, &a, sizeof a, 3, (tn_tensor *[]){ x, w, bias });
}

tn_tensor *tni_linear_bytes(tn_tensor *x, tn_tensor *w, tn_tensor *bias)
{
    const int last = tni_absent(x) ? -1 : x->shape.rank - 1;
    return apply(x, w, bias, last < 0 ? 0 : x->shape.size[last], false);
}
