/*
 * matmul.c - the product of the last two axes, leading axes broadcast.
 *
 *     C_ij = sum_k A_ik B_kj
 *     dA_ik = sum_j dC_ij B_kj      dA = dC B^T
 *     dB_kj = sum_i A_ik dC_ij      dB = A^T dC
 * Transposed operands are strides, never copies. Where one B serves a batch of A, rows of the whole
 * batch make one product, forward and for dB. The engine sums what was broadcast.
 */
#include "autograd/ops/products.h"

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

/* Leading axes of both operands over the result's: sizes, and strides that are 0 where one is
 * broadcast. Neighbours that are evenly spaced in both are joined. */
typedef struct batch {
    int rank;
    int64_t size[TN_MAX_RANK], a[TN_MAX_RANK], b[TN_MAX_RANK];
} batch;

static int64_t leading_stride(const tn_tensor *t, int from_end)
{
    int axis = t->shape.rank - 3 - from_end;
    return axis < 0 || t->shape.size[axis] == 1 ? 0 : t->stride[axis];
}

/* Axes of s, innermost first. */
static void batch_of(batch *s, const tn_tensor *a, const tn_tensor *b, const tn_shape *out)
{
    s->rank = 0;
    for (int i = 0; i < out->rank - 2; i++) {
        int64_t size = out->size[out->rank - 3 - i];
        int64_t stride_a = leading_stride(a, i);
        int64_t stride_b = leading_stride(b, i);
        int last = s->rank - 1;
        if (size == 1) continue;
        if (last >= 0 && stride_a == s->a[last] * s->size[last] &&
            stride_b == s->b[last] * s->size[last]) {
            s->size[last] *= size;
            continue;
        }
        s->size[s->rank] = size;
        s->a[s->rank] = stride_a;
        s->b[s->rank] = stride_b;
        s->rank++;
    }
}

static tn_status matmul_shape(tni_call *c)
{
    const tn_tensor *a = c->in[0];
    const tn_tensor *b = c->in[1];
    tn_shape *y = &c->out_spec[0].shape;
    tn_shape lead_a = a->shape;
    tn_shape lead_b = b->shape;
    if (a->dtype != b->dtype)
        return tni_op_error(c, TN_E_DTYPE, "a is %s, b is %s: want one floating dtype",
                            tn_dtype_name(a->dtype), tn_dtype_name(b->dtype));
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

static tn_status matmul_forward(tni_call *c)
{
    const tn_tensor *a = c->in[0];
    const tn_tensor *b = c->in[1];
    const tn_shape *y = &c->out[0]->shape;
    const tni_backend *backend = tni_backend_of(a);
    int ra = a->shape.rank;
    int rb = b->shape.rank;
    tni_gemm g = { .dtype = a->dtype,
                   .m = y->size[y->rank - 2],
                   .n = y->size[y->rank - 1],
                   .k = a->shape.size[ra - 1],
                   .batch = 1 };
    int64_t index[TN_MAX_RANK] = { 0 };
    if (tn_numel(c->out[0]) == 0) return TN_OK;
    g.a = tni_data(a);
    g.b = tni_data(b);
    g.c = tni_data(c->out[0]);
    g.a_row = a->stride[ra - 2];
    g.a_col = a->stride[ra - 1];
    g.b_row = b->stride[rb - 2];
    g.b_col = b->stride[rb - 1];
    g.c_row = g.n;
    int64_t rows;
    if (rb == 2 && tni_merge_rows(a, &rows, &g.a_row)) {
        g.m = rows;
        return backend->gemm(&g);
    }
    g.a_row = a->stride[ra - 2];
    batch s;
    batch_of(&s, a, b, y);
    if (s.rank) {
        g.batch = s.size[0];
        g.a_batch = s.a[0];
        g.b_batch = s.b[0];
    }
    g.c_batch = g.m * g.n;
    size_t item = tn_dtype_size(a->dtype);
    for (;;) {
        tn_status status = backend->gemm(&g);
        int i = 1;
        if (status != TN_OK) return status;
        g.c = (char *)g.c + (size_t)(g.batch * g.c_batch) * item;
        /* the next index of the outer axes: an odometer */
        for (; i < s.rank; i++) {
            g.a = (const char *)g.a + s.a[i] * (int64_t)item;
            g.b = (const char *)g.b + s.b[i] * (int64_t)item;
            if (++index[i] < s.size[i]) break;
            g.a = (const char *)g.a - s.a[i] * s.size[i] * (int64_t)item;
            g.b = (const char *)g.b - s.b[i] * s.size[i] * (int64_t)item;
            index[i] = 0;
        }
        if (i >= s.rank) return TN_OK;
    }
}

tn_tensor *tni_as_rows(tn_tensor *t)
{
    if (!t || t->shape.rank == 2) return t;
    int last = t->shape.rank - 1;
    int64_t rows = 1;
    for (int i = 0; i < last; i++) rows *= t->shape.size[i];
    return tn_reshape(t, TN_SHAPE(rows, t->shape.size[last]));
}

static tn_status matmul_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = tn_matmul(g->dy, tn_transpose(g->x[1], -1, -2));
    if (g->need[1] && g->in[1].shape.rank == 2) {
        tn_tensor *a = tni_as_rows(g->x[0]);
        tn_tensor *dy = tni_as_rows(g->dy);
        g->dx[1] = tn_matmul(tn_transpose(a, 0, 1), dy);
    } else if (g->need[1]) {
        g->dx[1] = tn_matmul(tn_transpose(g->x[0], -1, -2), g->dy);
    }
    return TN_OK;
}

extern const tn_op tni_op_matmul;
const tn_op tni_op_matmul = {
    .name = "matmul",
    .formula = "C_ij = sum_k A_ik B_kj",
    .gradient = "dA = dC B^T; dB = A^T dC",
    .arity = 2,
    .autocast = TNI_CAST_LOW,
    .reads = { TNI_X(1), TNI_X(0) },
    .shape = matmul_shape,
    .forward = matmul_forward,
    .backward = matmul_backward,
};

/* A vector is a row on the left, a column on the right; the added axis is removed afterwards. */
tn_tensor *tn_matmul(tn_tensor *a, tn_tensor *b)
{
    if (tni_absent(a) || tni_absent(b))
        return tni_apply(&tni_op_matmul, NULL, 0, 2, (tn_tensor *[]){ a, b });
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
    bool row = a->shape.rank == 1;
    bool column = b->shape.rank == 1;
    if (row) a = tn_unsqueeze(a, 0);
    if (column) b = tn_unsqueeze(b, 1);
    tn_tensor *y = tni_apply(&tni_op_matmul, NULL, 0, 2, (tn_tensor *[]){ a, b });
    if (row) y = tn_squeeze(y, -2);
    if (column) y = tn_squeeze(y, -1);
    return y;
}
