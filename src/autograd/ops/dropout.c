/*
 * dropout.c - y = x m, each m independently 0 with probability p, else 1 / (1 - p): E[y] = x.
 *
 * Linear in x, so dx = dy m: the same op with the same mask, which is not kept but drawn again from
 * the counters (seed, offset) that forward reserved. Source: Srivastava et al. (2014), section 10
 * (scaling).
 */
#include "autograd/ops/shared.h"

typedef struct dropout_args {
    double p;
    uint64_t seed, offset;
} dropout_args;

static tn_status dropout_forward(tni_call *c)
{
    const dropout_args *args = c->args;
    tn_tensor *x = c->in[0];
    int64_t n = tni_shape_numel(&x->shape);
    tni_dropout a = { .y = rows_array(c->out[0], 1, n, 0, 0),
                      .x = rows_array(x, 1, n, 0, 0),
                      .p = args->p,
                      .seed = args->seed,
                      .offset = args->offset };
    return tni_backend_of(x)->dropout(&a);
}

TNI_OP(dropout, 1, "y_i = x_i m_i, m_i = 0 with probability p, else 1/(1-p)", "dx_i = dy_i m_i",
       tni_shape_like_first, dropout_forward, tni_transposed, .draws = true,
       .autocast = TNI_CAST_KEEP, .dense = TNI_X(0), .transpose = &op_dropout, .constants = "p")

tn_tensor *tn_dropout(tn_tensor *x, double p, bool training)
{
    if (!x) return tni_poisoned("tn_dropout", "x");
    if (!(p >= 0 && p <= 1)) return tni_fail(TN_E_INVALID, "tn_dropout: p %g: want 0 to 1", p);
    if (!training || p == 0) return x;
    dropout_args args = { .p = p };
    uint64_t n = tni_none(x) ? 0 : ((uint64_t)tni_shape_numel(&x->shape) + 3) / 4;
    tni_philox_take(n, &args.seed, &args.offset);
    tn_tensor *y = tni_apply(&op_dropout, &args, sizeof args, 1, &x);
    if (!y) tni_philox_give_back(n, args.seed, args.offset);
    return y;
}
