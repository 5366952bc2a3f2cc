/*
 * batch_norm.c - y = w (x - mean) / sqrt(var + eps) + b per channel (axis 1), over all other axes.
 *
 * Training: mean and biased variance of the batch. With xh = (x - mean) r, r = 1 / sqrt(var + eps)
 * and sums over the N values of a channel: db = sum dy, dw = sum dy xh, dx = w r (dy - db / N - xh
 * dw / N), as in layer_norm.c. Otherwise mean and var are constants (the running ones): dx = w r
 * dy. Source: Ioffe and Szegedy, Batch Normalization (2015), algorithms 1 and 2.
 *
 * The op keeps its own mean and r, never the running buffers, which may change again before
 * backward. It writes their new values to outputs of its own; tn_batch_norm copies those into the
 * buffers once nothing can fail any more.
 */
#include "autograd/ops/shared.h"

enum { X, WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR, INPUTS };

typedef struct bn_args {
    bool training;
    double momentum, eps;
} bn_args;

/* ---- forward --------------------------------------------------------------------------------- */

static tn_status bn_shape(tni_call *c)
{
    static const char *const name[INPUTS] = { "x", "weight", "bias", "running_mean",
                                              "running_var" };
    const bn_args *args = c->args;
    const tn_tensor *x = c->in[X];
    if (x->shape.rank < 2) return tni_op_error(c, TN_E_SHAPE, "x %s: want [N,C,...]", tni_text(x));
    int64_t channels = x->shape.size[1];
    for (int i = RUNNING_VAR; i >= WEIGHT; i--) { /* sizes of running buffers first, like PyTorch */
        const tn_tensor *t = c->in[i];
        if (!tni_none(t) && (t->shape.rank != 1 || t->shape.size[0] != channels))
            return tni_op_error(
                c, TN_E_SHAPE, "x %s has %" PRId64 " channels, %s %s: want [%" PRId64 "]",
                tni_text(x), channels, name[i], tni_shape_text(&t->shape), channels);
        if (!tni_none(t) && !tn_dtype_is_float(t->dtype))
            return tni_op_error(c, TN_E_DTYPE, "%s is %s: want %s", name[i],
                                tn_dtype_name(t->dtype), tn_dtype_name(x->dtype));
    }
    if (tni_none(c->in[RUNNING_MEAN]) != tni_none(c->in[RUNNING_VAR]))
        return tni_op_error(c, TN_E_INVALID,
                            "only one of running_mean and running_var is given: want both or "
                            "neither");
    if (!args->training && tni_none(c->in[RUNNING_MEAN]))
        return tni_op_error(c, TN_E_INVALID,
                            "not training and without running statistics: want running_mean and "
                            "running_var, or training");
    tn_shape others = x->shape;
    others.size[1] = 1;
    if (args->training && tni_shape_numel(&others) == 1)
        return tni_op_error(c, TN_E_SHAPE,
                            "x %s has one value per channel: want more when training", tni_text(x));
    tni_spec channel = { .dtype = tni_wide_dtype(x->dtype), .shape = TN_SHAPE(channels) };
    for (int i = 0; i < 2; i++) tni_saves(c, channel.dtype, &channel.shape); /* mean and r */
    for (int i = 1; i < c->n_out; i++) /* the next running statistics */
        c->out_spec[i] = channel;
    return tni_shape_like_first(c);
}

static tn_status bn_forward(tni_call *c)
{
    const bn_args *args = c->args;
    const tn_tensor *x = c->in[X];
    rows_sizes s = rows_around(&x->shape, 1);
    if (s.c == 0) return TN_OK;
    tni_array channel[INPUTS]; /* weight, bias, running statistics */
    for (int i = WEIGHT; i < INPUTS; i++) {
        channel[i] = rows_array(c->in[i], 1, s.c, 0, 0);
        if (i >= RUNNING_MEAN && c->n_out > 1) { /* move a copy */
            tni_array next = rows_array(c->out[i - RUNNING_MEAN + 1], 1, s.c, 0, 0);
            TNI_TRY(tni_backend_of(x)->copy(&(tni_copy){ .y = next, .x = channel[i] }));
            channel[i] = next;
        }
    }
    tni_batch_norm a = { .y = rows_array(c->out[0], 3, s.n, s.c, s.d),
                         .mean = rows_array(c->saved[0], 1, s.c, 0, 0),
                         .rstd = rows_array(c->saved[1], 1, s.c, 0, 0),
                         .x = rows_array(x, 3, s.n, s.c, s.d),
                         .weight = channel[WEIGHT],
                         .bias = channel[BIAS],
                         .running_mean = channel[RUNNING_MEAN],
                         .running_var = channel[RUNNING_VAR],
                         .momentum = args->momentum,
                         .eps = args->eps,
                         .training = args->training };
    return tni_backend_of(x)->batch_norm(&a);
}

/* ---- backward -------------------------------------------------------------------------------- */

static tn_status bn_backward(tni_grad *g)
{
    const bn_args *args = g->args;
    int rank = g->in[X].shape.rank, axes[TN_MAX_RANK] = { 0 }, n = 1;
    tn_shape over = { .rank = rank - 1 }; /* a vector over the channels, to broadcast against x */
    for (int d = 2; d < rank; d++) {
        axes[n++] = d;
        over.size[d - 1] = 1;
    }
    over.size[0] = g->in[X].shape.size[1];
    if (g->need[BIAS]) g->dx[BIAS] = tn_sum(g->dy, axes, n, false);
    if (!g->need[X] && !g->need[WEIGHT]) return TN_OK;
    TNI_TRY(tni_widen_grad(g));
    tn_tensor *x = g->x[X];
    tn_tensor *rstd = tn_reshape(g->saved[1], over), *xh;
    if (args->training)
        tni_normalise(tn_sub(x, tn_mean(x, axes, n, true)), rstd, axes, n, args->eps, &xh, &rstd);
    else
        xh = tn_mul(tn_sub(x, tn_reshape(g->saved[0], over)), rstd);
    if (g->need[WEIGHT]) g->dx[WEIGHT] = tn_sum(tn_mul(g->dy, xh), axes, n, false);
    if (g->need[X]) {
        tn_tensor *dx = args->training ? tni_centred_slope(g->dy, xh, axes, n) : g->dy;
        dx = tn_mul(dx, rstd);
        g->dx[X] = tni_absent(g->x[WEIGHT]) ? dx : tn_mul(dx, tn_reshape(g->x[WEIGHT], over));
    }
    return TN_OK;
}

static tn_status bn_kernel_grad(tni_grad *g)
{
    const bn_args *args = g->args;
    rows_sizes s = rows_around(&g->in[X].shape, 1);
    if (s.c == 0) return TN_OK;
    tni_batch_norm_grad a = { .dx = rows_array(g->dx[X], 3, s.n, s.c, s.d),
                              .dweight = rows_array(g->dx[WEIGHT], 1, s.c, 0, 0),
                              .dbias = rows_array(g->dx[BIAS], 1, s.c, 0, 0),
                              .dy = rows_array(g->dy, 3, s.n, s.c, s.d),
                              .x = rows_array(g->x[X], 3, s.n, s.c, s.d),
                              .mean = rows_array(g->saved[0], 1, s.c, 0, 0),
                              .rstd = rows_array(g->saved[1], 1, s.c, 0, 0),
                              .weight = rows_array(g->x[WEIGHT], 1, s.c, 0, 0),
                              .training = args->training };
    return tni_backend_of(g->dy)->batch_norm_grad(&a);
}

TNI_OP(batch_norm, INPUTS, "y = w (x - mean) / sqrt(var + eps) + b per channel",
       "dx = w r (dy - mean dy - xh mean(dy xh)), in eval w r dy; dw = sum dy xh; "
       "db = sum dy; where r = 1 / sqrt(var + eps), xh = (x - mean) r",
       bn_shape, bn_forward, bn_backward,
       .optional = TNI_X(WEIGHT) | TNI_X(BIAS) | TNI_X(RUNNING_MEAN) | TNI_X(RUNNING_VAR),
       .dtypes = TNI_MIXED_FLOAT, .autocast = TNI_CAST_KEEP,
       .reads = { TNI_X(X) | TNI_X(WEIGHT) | TNI_SAVED, TNI_X(X) | TNI_SAVED, 0, 0, 0 },
       .dense = TNI_ALL_X, .dense_grad = TNI_X(X) | TNI_X(WEIGHT) | TNI_DY,
       .kernel_grad = bn_kernel_grad, .constants = "eps", .constants_at = offsetof(bn_args, eps))

/* ---- the function ---------------------------------------------------------------------------- */

/* Overwrites a running buffer with its new values. */
static tn_status commit(tn_tensor *running, const tn_tensor *next)
{
    tni_copy a = { .y = tni_array_of(running), .x = tni_array_of(next) };
    tni_bump_version(running);
    return tni_backend_of(running)->copy(&a); /* a failure is told, not tried again */
}

/* Running statistics take no part in gradients, even if a user set requires_grad on them. */
static tn_tensor *without_history(tn_tensor *t)
{
    return t && t->requires_grad ? tn_detach(t) : t;
}

tn_tensor *tn_batch_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_tensor *running_mean,
                         tn_tensor *running_var, bool training, double momentum, double eps)
{
    bn_args args = { training, momentum, eps };
    bool moves = training && running_mean && running_var && !tni_none(running_mean);
    if (moves && (tni_own_memory(__func__, running_mean) != TN_OK ||
                  (!tni_none(running_var) && tni_own_memory(__func__, running_var) != TN_OK)))
        return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *in[INPUTS] = { x, weight, bias, without_history(running_mean),
                              without_history(running_var) };
    tn_tensor *out[3] = { NULL };
    tn_status status =
        tni_apply_n(&op_batch_norm, &args, sizeof args, INPUTS, in, moves ? 3 : 1, out);
    if (status == TN_OK && moves) status = commit(running_mean, out[1]);
    if (status == TN_OK && moves) status = commit(running_var, out[2]);
    return tni_scope_return(__func__, scope, status == TN_OK ? out[0] : NULL);
}
