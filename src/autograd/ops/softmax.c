/*
 * softmax.c - y_i = exp(x_i - max x) / sum_j exp(x_j - max x), and its logarithm, along one axis.
 *
 * dy_i/dx_j = y_i ([i = j] - y_j), so dx = y (dy - sum(dy y)). For l = log y: dl_i/dx_j = [i = j] -
 * y_j, so dx = dl - y sum(dl), with y = exp(l). Only the result is kept. A row of -inf gives NaN;
 * in attention it gives 0, with slope 0.
 * Source: Goodfellow et al., Deep Learning (2016), section 4.1 (overflow).
 *
 * The op works on the last axis; another axis is moved there by a view.
 */
#include "autograd/ops/shared.h"

typedef struct softmax_args {
    bool log, seen;
} softmax_args;

static tn_status softmax_forward(tni_call *c)
{
    const softmax_args *args = c->args;
    const tn_tensor *x = c->in[0];
    rows_sizes s = rows_around(&x->shape, x->shape.rank - 1);
    tni_softmax a = { .y = rows_array(c->out[0], 2, s.n, s.c, 0),
                      .x = rows_array(x, 2, s.n, s.c, 0),
                      .log = args->log,
                      .seen = args->seen };
    return tni_backend_of(x)->softmax(&a);
}

static tn_status softmax_backward(tni_grad *g)
{
    const softmax_args *args = g->args;
    TNI_TRY(tni_widen_grad(g));
    if (args->log) {
        tn_tensor *sum = tn_sum(g->dy, TN_AXES(-1), true);
        g->dx[0] = tn_sub(g->dy, tn_mul(tn_exp(g->y), sum));
    } else {
        tn_tensor *sum = tn_sum(tn_mul(g->dy, g->y), TN_AXES(-1), true);
        g->dx[0] = tn_mul(g->y, tn_sub(g->dy, sum));
    }
    return TN_OK;
}

static tn_status softmax_kernel_grad(tni_grad *g)
{
    const softmax_args *args = g->args;
    rows_sizes s = rows_around(&g->y->shape, g->y->shape.rank - 1);
    tni_softmax_grad a = { .dx = rows_array(g->dx[0], 2, s.n, s.c, 0),
                           .dy = rows_array(g->dy, 2, s.n, s.c, 0),
                           .y = rows_array(g->y, 2, s.n, s.c, 0),
                           .log = args->log };
    return tni_backend_of(g->y)->softmax_grad(&a);
}

static tn_tensor *along_axis(const tn_op *op, bool log, const char *function, tn_tensor *x,
                             int axis)
{
    softmax_args args = { .log = log };
    if (!x) return tni_poisoned(function, "x");
    int rank = x->shape.rank;
    if ((axis = tni_axis_of_any(function, axis, rank)) < 0) return NULL;
    if (axis >= rank - 1) return tni_apply(op, &args, sizeof args, 1, &x);
    tn_tensor *moved = tn_transpose(x, axis, -1);
    return tn_transpose(tni_apply(op, &args, sizeof args, 1, &moved), axis, -1);
}

#define SOFTMAX(tn_name, name_, log, formula_, gradient_)                                          \
    TNI_OP(name_, 1, formula_, gradient_, tni_shape_like_first, softmax_forward, softmax_backward, \
           .reads = { TNI_Y }, .dense = TNI_X(0), .dense_grad = TNI_DY,                            \
           .kernel_grad = softmax_kernel_grad)                                                     \
    tn_tensor *tn_name(tn_tensor *x, int axis)                                                     \
    {                                                                                              \
        return along_axis(&op_##name_, log, #tn_name, x, axis);                                    \
    }
SOFTMAX(tn_softmax, softmax, false, "y_i = exp(x_i - max x) / sum_j exp(x_j - max x)",
        "dx = y (dy - sum_j dy_j y_j)")
SOFTMAX(tn_log_softmax, log_softmax, true, "y_i = x_i - max x - log sum_j exp(x_j - max x)",
        "dx = dy - e^y sum_j dy_j")

tn_tensor *tni_softmax_seen(tn_tensor *scores)
{
    softmax_args args = { .seen = true };
    return tni_apply(&op_softmax, &args, sizeof args, 1, &scores);
}
