/*
 * linear.c - y = x W^T + b over the last axis.
 *
 * All leading axes of x are rows of one product; the bias is what the product adds to. Wide: for
 * bf16 or f16 x, y stays f32, unrounded; dy is rounded to x's dtype.
 */
#include "autograd/ops/products.h"

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

tn_tensor *tn_linear(tn_tensor *x, tn_tensor *weight, tn_tensor *bias)
{
    if (weight && weight->dtype == TN_U8)
        return tni_linear_bytes(x, weight, bias); /* not TN_NONE */
    return tni_apply(&op_linear, NULL, 0, 3, (tn_tensor *[]){ x, weight, bias });
}
