/*
 * matmul.c - the product of the last two axes, leading axes broadcast.
 *
 * Transposed operands are strides, never copies. Where one B serves a batch of A, rows of the whole
 * batch make one product, forward and for dB. The engine sums what was broadcast.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/shared.h"
#include "tensor/formulas.h"
#include "tensor/walk.h"

bool tni_merge_rows(const tn_tensor *t, int64_t *rows, int64_t *distance)
{
    *rows = 1;
    *distance = 0;
    for (int i = t->shape.rank - 2; i >= 0; i--) {
        if (t->shape.size[i] == 1) continue;
        if (*rows == 1)
            *distance = t->stride[i];
        else if (t->stride[i] != *distance * *rows)
            return false;
        *rows *= t->shape.size[i];
    }
    return true;
}

tni_gemm tni_matrix_product(tni_array c, tni_array a, tni_array b)
{
    return (tni_gemm){ .dtype = b.dtype,
                       .m = a.size[0],
                       .n = b.size[1],
                       .k = a.size[1],
                       .batch = 1,
                       .a = a.data,
                       .a_row = a.stride[0],
                       .a_col = a.stride[1],
                       .b = b.data,
                       .b_row = b.stride[0],
                       .b_col = b.stride[1],
                       .c = c.data,
                       .c_row = c.stride[0],
                       .sums_f32 = c.dtype != b.dtype };
}

static tn_status matmul_shape(tni_call *c)
{
    const tn_tensor *a = c->in[0], *b = c->in[1];
    tn_shape *y = &c->out_spec[0].shape, lead_a = a->shape, lead_b = b->shape;
    lead_a.rank -= 2;
    lead_b.rank -= 2;
    if (!tni_broadcast(&lead_a, &lead_b, y))
        return tni_op_error(c, TN_E_SHAPE, "a %s, b %s: leading axes must be equal or 1",
                            tni_text(a), tni_text(b));
    y->size[y->rank] = a->shape.size[a->shape.rank - 2];
    y->size[y->rank + 1] = b->shape.size[b->shape.rank - 1];
    y->rank += 2;
    c->out_spec[0].dtype = a->dtype;
    return TN_OK;
}

/* The leading axes of t, broadcast to y's. */
static tni_array leading(const tn_tensor *t, const tn_shape *y)
{
    tn_shape whole = *y;
    for (int i = 1; i <= 2; i++) whole.size[y->rank - i] = t->shape.size[t->shape.rank - i];
    tni_array a = tni_array_expand(t, &whole);
    a.rank -= 2;
    return a;
}

/* A product for each place along all leading axes but the innermost ones, which are its batch:
 * neighbours that are evenly spaced in all three are one axis. */
static tn_status multiply_batches(const tni_call *c, tni_gemm *g)
{
    const tni_backend *backend = tni_backend_of(c->in[0]);
    const tn_shape *y = &c->out[0]->shape;
    tni_array of_y = leading(c->out[0], y), a = leading(c->in[0], y), b = leading(c->in[1], y);
    size_t item = tn_dtype_size(g->dtype);
    tni_walk w;
    tni_cursor at;
    tni_walk_init(&w, 3, (const tni_array *[]){ &of_y, &a, &b });
    tni_cursor_seek(&at, &w, 0);
    g->batch = w.size[w.rank - 1];
    g->c_batch = g->m * g->n;
    g->a_batch = w.stride[w.rank - 1][1];
    g->b_batch = w.stride[w.rank - 1][2];
    for (int64_t i = 0; i < w.numel; i += g->batch) {
        g->c = (char *)of_y.data + at.at[0] * (int64_t)item;
        g->a = (const char *)a.data + at.at[1] * (int64_t)item;
        g->b = (const char *)b.data + at.at[2] * (int64_t)item;
        TNI_TRY(backend->gemm(g));
        tni_cursor_step(&at, &w, g->batch);
    }
    return TN_OK;
}

/* The last two axes. */
static tni_array matrix_of(const tn_tensor *t)
{
    const int64_t *size = t->shape.size + t->shape.rank - 2,
                  *stride = t->stride + t->shape.rank - 2;
    return (tni_array){ tni_data(t), t->dtype, 2, { size[0], size[1] }, { stride[0], stride[1] } };
}

static tn_status matmul_forward(tni_call *c)
{
    const tn_tensor *a = c->in[0], *b = c->in[1];
    tni_gemm g = tni_matrix_product(matrix_of(c->out[0]), matrix_of(a), matrix_of(b));
    int64_t rows, distance;
    if (tn_numel(c->out[0]) == 0) return TN_OK;
    if (b->shape.rank != 2 || !tni_merge_rows(a, &rows, &distance)) return multiply_batches(c, &g);
    g.m = rows;
    g.a_row = distance;
    return tni_backend_of(a)->gemm(&g);
}

tn_tensor *tni_as_rows(tn_tensor *t)
{
    if (!t || t->shape.rank == 2) return t;
    int last = t->shape.rank - 1;
    return tn_reshape(t, TN_SHAPE(rows_count(&t->shape, 0, last), t->shape.size[last]));
}

static tn_status matmul_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = tn_matmul(g->dy, tn_transpose(g->x[1], -1, -2));
    if (g->need[1] && g->in[1].shape.rank == 2) {
        tn_tensor *a = tni_as_rows(g->x[0]), *dy = tni_as_rows(g->dy);
        g->dx[1] = tn_matmul(tn_transpose(a, 0, 1), dy);
    } else if (g->need[1]) {
        g->dx[1] = tn_matmul(tn_transpose(g->x[0], -1, -2), g->dy);
    }
    return TN_OK;
}

/* The products and the sum that the composed gradient takes, without tensors between. Where a GPU
 * makes dW in half precision, that product sums the rows of dy as well. */
tn_status tni_linear_kernel_grad(tni_grad *g)
{
    tn_tensor *dy = tni_as_rows(tn_to_dtype(g->dy, g->in[0].dtype)), *x = tni_as_rows(g->x[0]);
    const int64_t out = g->in[1].shape.size[0], in = g->in[1].shape.size[1];
    const bool sums = g->need[1] && g->need[2] && g->dy->storage->device.type != TN_CPU &&
                      tni_is_half(g->in[0].dtype) && in > 0 && out > 0;
    if (sums) dy = tni_dense(dy), x = tni_dense(x);
    if (!dy || (g->need[1] && !x)) return tni_pending();
    const tni_array rows = tni_array_of(dy);
    for (int i = 0; i < 2; i++) {
        if (!g->need[i]) continue;
        const int64_t m = i ? out : rows.size[0];
        tni_array dx = { tni_data(g->dx[i]), dy->dtype, 2, { m, in }, { in, 1 } };
        tni_gemm p =
            tni_matrix_product(dx, i ? tni_turned(rows) : rows, tni_array_of(i ? x : g->x[1]));
        if (i && sums) p.a_sums = tni_data(g->dx[2]);
        TNI_TRY(p.m && p.n ? tni_backend_of(dy)->gemm(&p) : TN_OK);
    }
    if (!g->need[2] || sums) return TN_OK;
    const tni_array db = { tni_data(g->dx[2]), dy->dtype, 2, { 1, out }, { out, 1 } };
    return tni_backend_of(dy)->reduce(&(tni_reduce){ TNI_R_sum, .y = db, .x = rows });
}

TNI_OP(matmul, 2, "C_ij = sum_k A_ik B_kj", "dA = dC B^T; dB = A^T dC", matmul_shape,
       matmul_forward, matmul_backward, .dtypes = TNI_ONE_FLOAT, .autocast = TNI_CAST_LOW,
       .reads = { TNI_X(1), TNI_X(0) })

/* A vector is a row on the left, a column on the right; the added axis is removed afterwards. */
tn_tensor *tn_matmul(tn_tensor *a, tn_tensor *b)
{
    if (tni_absent(a) || tni_absent(b))
        return tni_apply(&op_matmul, NULL, 0, 2, (tn_tensor *[]){ a, b });
    if (a->shape.rank == 0 || b->shape.rank == 0)
        return tni_fail(TN_E_SHAPE, "tn_matmul: a %s, b %s: want at least one axis each",
                        tni_text(a), tni_text(b));
    int64_t columns = a->shape.size[a->shape.rank - 1];
    int64_t rows = b->shape.size[b->shape.rank == 1 ? 0 : b->shape.rank - 2];
    if (columns != rows)
        return tni_fail(TN_E_SHAPE,
                        "tn_matmul: a %s, b %s: columns of a (%" PRId64
                        ") must equal rows of b (%" PRId64 ")",
                        tni_text(a), tni_text(b), columns, rows);
    bool row = a->shape.rank == 1, column = b->shape.rank == 1;
    if (row) a = tn_unsqueeze(a, 0);
    if (column) b = tn_unsqueeze(b, 1);
    tn_tensor *y = tni_apply(&op_matmul, NULL, 0, 2, (tn_tensor *[]){ a, b });
    if (row) y = tn_squeeze(y, -2);
    if (column) y = tn_squeeze(y, -1);
    return y;
}
