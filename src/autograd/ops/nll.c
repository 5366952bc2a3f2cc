/*
 * nll.c - the negative log likelihood: minus the log-probability of the right class.
 *
 *   nll       loss = -w[t] x[t] per row, and its weight w[t] (1 without); both 0 on ignored rows
 *   nll_grad  dx = 0, dx[t] = -w[t] dloss
 * Linear in x and in dloss, with one matrix: each one's gradient is the other, so second
 * derivatives need no code of their own. The mean divides by the sum of the w[t]; NaN when no row
 * is left.
 */
#include "autograd/ops/rows.h"

typedef struct nll_args {
    int axis; /* of the classes */
    int64_t ignore;
    tn_shape shape; /* of log_p */
} nll_args;

static const tn_op nll_op, nll_grad_op;

/* ---- nll ------------------------------------------------------------------------------------- */

static tn_status nll_shape(tni_call *c)
{
    tni_result(c, c->in[0]->dtype, &c->in[1]->shape);
    c->out_spec[1] = c->out_spec[0];
    return TN_OK;
}

static tn_status nll_forward(tni_call *c)
{
    const nll_args *args = c->args;
    rows_sizes s = rows_around(&args->shape, args->axis);
    tni_nll a = { .row_loss = rows_array(c->out[0], 2, s.n, s.d, 0),
                  .row_weight = rows_array(c->out[1], 2, s.n, s.d, 0),
                  .x = rows_array(c->in[0], 3, s.n, s.c, s.d),
                  .target = rows_array(c->in[1], 2, s.n, s.d, 0),
                  .weight = rows_array(c->in[2], 1, s.c, 0, 0),
                  .ignore = args->ignore };
    return tni_backend_of(c->in[0])->nll(&a);
}

static tn_status nll_backward(tni_grad *g)
{
    tn_tensor *in[3] = { tni_dy(g, 0), g->x[1], g->x[2] ? g->x[2] : TN_NONE };
    g->dx[0] = tni_apply(&nll_grad_op, g->args, g->args_size, 3, in);
    return TN_OK;
}

static const tn_op nll_op = {
    .name = "nll_loss",
    .formula = "loss = -w[t] x[t]",
    .gradient = "dx = 0 but dx[t] = -w[t] dloss",
    .arity = 3,
    .optional = TNI_X(2),
    .reads = { TNI_X(1) | TNI_X(2) },
    .dense = TNI_ALL_X,
    .shape = nll_shape,
    .forward = nll_forward,
    .backward = nll_backward,
};

/* ---- nll_grad -------------------------------------------------------------------------------- */

static tn_status nll_grad_shape(tni_call *c)
{
    return tni_result(c, c->in[0]->dtype, &((const nll_args *)c->args)->shape);
}

static tn_status nll_grad_forward(tni_call *c)
{
    const nll_args *args = c->args;
    rows_sizes s = rows_around(&args->shape, args->axis);
    tni_nll_grad a = { .dx = rows_array(c->out[0], 3, s.n, s.c, s.d),
                       .drow = rows_array(c->in[0], 2, s.n, s.d, 0),
                       .target = rows_array(c->in[1], 2, s.n, s.d, 0),
                       .weight = rows_array(c->in[2], 1, s.c, 0, 0),
                       .ignore = args->ignore };
    return tni_backend_of(c->in[0])->nll_grad(&a);
}

static tn_status nll_grad_backward(tni_grad *g)
{
    tn_tensor *in[3] = { g->dy, g->x[1], g->x[2] ? g->x[2] : TN_NONE };
    tn_tensor *out[2];
    tn_status status = tni_apply_n(&nll_op, g->args, sizeof(nll_args), 3, in, 2, out);
    if (status == TN_OK) g->dx[0] = out[0];
    return status;
}

static const tn_op nll_grad_op = {
    .name = "nll_loss_grad",
    .formula = "dx = 0; dx[t] = -w[t] dloss",
    .gradient = "ddloss = -w[t] g[t]; where g is the gradient of dx",
    .arity = 3,
    .optional = TNI_X(2),
    .reads = { TNI_X(1) | TNI_X(2) },
    .dense = TNI_ALL_X,
    .shape = nll_grad_shape,
    .forward = nll_grad_forward,
    .backward = nll_grad_backward,
};

/* ---- the loss -------------------------------------------------------------------------------- */

static tn_tensor *nll(tn_tensor *log_p, tn_tensor *target, const tn_cross_entropy_options *o)
{
    if (o->label_smoothing != 0)
        return tni_fail(TN_E_INVALID,
                        "tn_nll_loss: label_smoothing %g: want 0 (tn_cross_entropy_with smooths)",
                        o->label_smoothing);
    if (!tn_dtype_is_float(log_p->dtype))
        return tni_fail(TN_E_DTYPE, "tn_nll_loss: log_p is %s: want a floating dtype",
                        tn_dtype_name(log_p->dtype));
    target = tni_index_arg("tn_nll_loss", "target", target);
    int axis = target ? tni_class_axis("tn_nll_loss", log_p, target) : -1;
    if (axis < 0 ||
        tni_check_class_options("tn_nll_loss", o, log_p->shape.size[axis], log_p) != TN_OK)
        return NULL;
    nll_args args = { axis, rows_ignore(o), log_p->shape };
    tn_dtype dtype = log_p->dtype;
    tn_tensor *in[3] = { tni_wide(log_p), target, tni_wide(o->weight) };
    tn_tensor *out[2]; /* loss and weight per row */
    if (tni_apply_n(&nll_op, &args, sizeof args, 3, in, 2, out) != TN_OK) return NULL;
    return tn_to_dtype(tni_reduce_weighted(out, o->reduction), dtype);
}

tn_tensor *tn_nll_loss(tn_tensor *log_p, tn_tensor *target, tn_cross_entropy_options o)
{
    if (!tni_present("tn_nll_loss", "log_p", log_p) ||
        !tni_present("tn_nll_loss", "target", target))
        return NULL;
    o.weight = tni_option_tensor("tn_nll_loss", "weight", o.weight);
    if (!o.weight) return NULL;
    tn_scope scope = tn_scope_begin();
    o.weight = tni_autocast_f32(o.weight);
    log_p = tni_autocast_f32(log_p);
    return tn_scope_return(scope, log_p && o.weight ? nll(log_p, target, &o) : NULL);
}
