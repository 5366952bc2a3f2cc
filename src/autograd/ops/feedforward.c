/*
 * feedforward.c - y = gelu_tanh(x W^T + b) V^T + c, the middle of a transformer's layer, in half
 * precision on a GPU: one op, so that the first bias and the activation, and on the way back the
 * slope and the gradient of b, are the epilogues of two products. Kept is u = x W^T + b, rounded;
 * backward takes its gelu_tanh once more. Second derivatives are those of the ops it stands for.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/rows.h"

enum { X, W, B, V, C, N_IN };

static tn_status feedforward_shape(tni_call *c)
{
    tn_shape rows = c->in[X]->shape; /* who calls has compared the sizes */
    rows.size[rows.rank - 1] = c->in[W]->shape.size[0];
    tni_saves(c, c->in[X]->dtype, &rows);
    rows.size[rows.rank - 1] = c->in[V]->shape.size[0];
    return tni_result(c, c->in[X]->dtype, &rows);
}

/* All axes but the last as rows. */
static tni_array matrix(const tn_tensor *t)
{
    int64_t width = t->shape.size[t->shape.rank - 1];
    return rows_array(t, 2, tn_numel(t) / width, width, 0);
}

static tn_status feedforward_forward(tni_call *c)
{
    tn_tensor *const *in = c->in, *h = tni_new_dense(&c->saved[0]->shape, in[X]->dtype, c->device);
    if (!h) return tni_pending();
    tni_gemm g = tni_matrix_product(matrix(h), matrix(in[X]), tni_turned(matrix(in[W])));
    g.bias = tni_data(in[B]), g.pre = tni_data(c->saved[0]);
    tn_status status = tni_backend_of(h)->gemm(&g);
    g = tni_matrix_product(matrix(c->out[0]), matrix(h), tni_turned(matrix(in[V])));
    g.bias = tni_data(in[C]);
    return status == TN_OK ? tni_backend_of(h)->gemm(&g) : status;
}

static tn_status feedforward_backward(tni_grad *g)
{
    tn_tensor *const *x = g->x, *in[N_IN], *dx[N_IN];
    int n = 0;
    tn_tensor *y = tn_linear(tn_gelu_tanh(tn_linear(x[X], x[W], x[B])), x[V], x[C]);
    for (int i = 0; i < N_IN; i++)
        if (g->need[i]) in[n++] = x[i];
    if (!y) return tni_pending();
    tn_status status = tn_gradients(1, &y, &g->dy, n, in, dx, TN_CREATE_GRAPH);
    for (int i = N_IN; i-- > 0 && status == TN_OK;)
        if (g->need[i]) g->dx[i] = dx[--n];
    return status;
}

/* *to = a b, where to is wanted */
static tn_status put(const tni_grad *g, int i, tni_array a, tni_array b)
{
    if (!g->need[i]) return TN_OK;
    const tni_gemm product = tni_matrix_product(matrix(g->dx[i]), a, b);
    return tni_backend_of(g->dy)->gemm(&product);
}

static tn_status feedforward_kernel_grad(tni_grad *g)
{
    tn_tensor *u = g->saved[0], *du = tni_new_dense(&u->shape, u->dtype, u->storage->device);
    tn_tensor *h = g->need[V] ? tn_gelu_tanh(u) : u;
    if (!du || !h) return tni_pending();
    const tni_array dy = matrix(g->dy), x = matrix(g->x[X]);
    tni_gemm slope = tni_matrix_product(matrix(du), dy, matrix(g->x[V]));
    slope.slope_at = tni_data(u), slope.sums = g->need[B] ? tni_data(g->dx[B]) : NULL;
    tn_status status = tni_backend_of(u)->gemm(&slope);
    if (status == TN_OK) status = put(g, X, matrix(du), matrix(g->x[W]));
    if (status == TN_OK) status = put(g, W, tni_turned(matrix(du)), x);
    if (status == TN_OK) status = put(g, V, tni_turned(dy), matrix(h));
    if (status == TN_OK && g->need[C])
        g->dx[C] = tn_sum(tni_as_rows(g->dy), (int[]){ 0 }, 1, false);
    return status;
}

enum { ALL = TNI_X(X) | TNI_X(W) | TNI_X(B) | TNI_X(V) | TNI_X(C) | TNI_SAVED };

static const tn_op op_feedforward = {
    .name = "feedforward",
    .formula = "y = gelu_tanh(x W^T + b) V^T + c",
    .gradient = "dx = du W; dW = du^T x; db = sum_n du; dV = dy^T gelu_tanh(u); dc = sum_n dy; "
                "where u = x W^T + b, du = dy V gelu_tanh'(u)",
    .arity = N_IN,
    .dtypes = TNI_ONE_FLOAT,
    .autocast = TNI_CAST_LOW,
    .reads = { ALL, ALL, ALL, ALL, ALL },
    .dense = TNI_ALL_X,
    .dense_grad = TNI_ALL_X | TNI_DY,
    .shape = feedforward_shape,
    .forward = feedforward_forward,
    .backward = feedforward_backward,
    .kernel_grad = feedforward_kernel_grad,
};

tn_tensor *tni_feedforward(tn_tensor *x, tn_tensor *w, tn_tensor *b, tn_tensor *v, tn_tensor *c)
{
    return tni_apply(&op_feedforward, NULL, 0, N_IN, (tn_tensor *[]){ x, w, b, v, c });
}
