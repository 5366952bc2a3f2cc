/*
 * dropout.c - y = x m, each m independently 0 with probability p, else 1 / (1 - p): E[y] = x.
 *
 * Linear in x, so dx = dy m: the same op with the same mask, which is not kept but drawn again from
 * the counters (seed, offset) that forward reserved. Source: Srivastava et al. (2014), section 10
 * (scaling).
 */
#include "autograd/ops/rows.h"

typedef struct dropout_args {
    double p;
    uint64_t seed, offset;
} dropout_args;

static tn_status dropout_forward(tni_call *c)
{
    const dropout_args *args = c->args;
    tn_tensor *x = c->in[0];
    int64_t n = tni_shape_numel(&x->shape);
    tni_dropout a = { rows_array(c->out[0], 1, n, 0, 0), rows_array(x, 1, n, 0, 0), args->p,
                      args->seed, args->offset };
    return tni_backend_of(x)->dropout(&a);
}

static const tn_op dropout_op = {
    .name = "dropout",
    .formula = "y_i = x_i m_i, m_i = 0 with probability p, else 1/(1-p)",
    .gradient = "dx_i = dy_i m_i",
    .arity = 1,
    .draws = true,
    .autocast = TNI_CAST_KEEP,
    .dense = TNI_X(0),
    .shape = tni_shape_like_first,
    .forward = dropout_forward,
    .backward = tni_transposed,
    .transpose = &dropout_op,
};

tn_tensor *tn_dropout(tn_tensor *x, double p, bool training)
{
    if (!x) return tni_poisoned("tn_dropout", "x");
    if (!(p >= 0 && p <= 1)) return tni_fail(TN_E_INVALID, "tn_dropout: p %g: want 0 to 1", p);
    if (!training || p == 0) return x;
    dropout_args args = { .p = p };
    uint64_t n = tni_none(x) ? 0 : ((uint64_t)tni_shape_numel(&x->shape) + 3) / 4;
    tni_philox_take(n, &args.seed, &args.offset);
    tn_tensor *y = tni_apply(&dropout_op, &args, sizeof args, 1, &x);
    if (!y) tni_philox_give_back(n, args.seed, args.offset);
    return y;
}
