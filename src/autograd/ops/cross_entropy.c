/*
 * cross_entropy.c - minus the logarithm of the probability of the right class: of logits, by
 * softmax (cross_entropy), or given (nll, the negative log likelihood).
 *
 * Per row, with class weights w (1 without), label smoothing e, C classes, log p = (x - m) - log s,
 * m the largest x, s = sum exp(x - m):
 *   loss = (1 - e) w[t] (-log p[t]) + e / C sum_c w[c] (-log p[c])
 * and, as d(-log p[j])/dx = p - onehot(j),
 *   dx = (1 - e) w[t] (p - onehot(t)) + e / C (p sum(w) - w).
 * The mean divides by the sum of w[t] over the rows that are not ignored; NaN when there are none.
 * Source: Goodfellow et al., Deep Learning (2016), section 6.2.2.3; Szegedy et al. (2016), section
 * 7.
 *
 * The op yields the loss of each row, and its weight, without materialising p; m and s are kept.
 * The reduction is composed. Probabilities as targets are composed of log_softmax.
 *
 * nll yields -w[t] x[t] per row, and its weight w[t] (1 without); both 0 on ignored rows. It and
 * its gradient are linear, with one matrix: each one's gradient is the other, so second derivatives
 * need no code of their own.
 */
#include "autograd/ops/shared.h"

typedef struct class_args {
    int axis; /* of the classes */
    double smoothing;
    int64_t ignore;
    tn_shape shape; /* of x */
} class_args;

/* ---- cross_entropy --------------------------------------------------------------------------- */

static tn_status ce_shape(tni_call *c)
{
    tni_result(c, tni_wide_dtype(c->in[0]->dtype), &c->in[1]->shape); /* reduced, then rounded */
    c->out_spec[1] = c->out_spec[0];
    for (int i = 0; i < 2; i++) tni_saves(c, c->out_spec[0].dtype, &c->in[1]->shape); /* m and s */
    return TN_OK;
}

static tn_status ce_forward(tni_call *c)
{
    const class_args *args = c->args;
    rows_sizes s = rows_around(&c->in[0]->shape, args->axis);
    tni_cross_entropy a = { .row_loss = rows_array(c->out[0], 2, s.n, s.d, 0),
                            .row_weight = rows_array(c->out[1], 2, s.n, s.d, 0),
                            .top = rows_array(c->saved[0], 2, s.n, s.d, 0),
                            .sum = rows_array(c->saved[1], 2, s.n, s.d, 0),
                            .x = rows_array(c->in[0], 3, s.n, s.c, s.d),
                            .target = rows_array(c->in[1], 2, s.n, s.d, 0),
                            .weight = rows_array(c->in[2], 1, s.c, 0, 0),
                            .smoothing = args->smoothing,
                            .ignore = args->ignore };
    return tni_backend_of(c->in[0])->cross_entropy(&a);
}

/* A vector over the classes, shaped to broadcast against logits. */
static tn_tensor *over_classes(tn_tensor *vector, int rank, int axis)
{
    tn_shape shape = { .rank = rank - axis };
    if (!vector) return NULL;
    for (int d = 0; d < shape.rank; d++) shape.size[d] = 1;
    shape.size[0] = tn_numel(vector);
    return tn_reshape(vector, shape);
}

tn_tensor *tni_cross_entropy_slope(tn_tensor *x, tn_tensor *target, tn_tensor *weight,
                                   tn_tensor *drow, int axis, double smoothing, int64_t ignore)
{
    int rank = tn_rank(x);
    int64_t classes = tn_size(x, axis);
    tn_dtype dtype = tn_dtype_of(x);
    tn_tensor *ignored = tni_ignored_rows(target, ignore);
    tn_tensor *safe = tn_masked_fill(target, ignored, 0), *spread;
    tn_tensor *ids = over_classes(tni_iota(classes, tn_device_of(x)), rank, axis);
    tn_tensor *onehot = tn_to_dtype(tn_eq(tn_unsqueeze(safe, axis), ids), dtype);
    drow = tn_unsqueeze(tn_masked_fill(drow, ignored, 0), axis);
    tn_tensor *p = tn_softmax(x, axis);
    tn_tensor *main = tn_mul_scalar(tn_sub(p, onehot), 1.0 - smoothing);
    if (tni_absent(weight)) {
        spread = tn_sub_scalar(tn_mul_scalar(p, (double)classes), 1.0);
    } else {
        tn_tensor *w = over_classes(weight, rank, axis);
        tn_tensor *w_target = tn_sum(tn_mul(onehot, w), &axis, 1, true);
        main = tn_mul(main, w_target);
        spread = tn_sub(tn_mul(p, tn_sum(weight, NULL, 0, false)), w);
    }
    if (smoothing != 0) main = tn_add(main, tn_mul_scalar(spread, smoothing / (double)classes));
    return tn_masked_fill(tn_mul(drow, main), tn_unsqueeze(ignored, axis), 0);
}

static tn_status ce_backward(tni_grad *g)
{
    const class_args *args = g->args;
    TNI_TRY(tni_widen_grad(g));
    return tni_give_dx(g, tni_cross_entropy_slope(g->x[0], g->x[1], g->x[2], tni_dy(g, 0),
                                                  args->axis, args->smoothing, args->ignore));
}

/* Gradients per row as [n, d] with strides: dense, one value for all, or copied. */
static tn_status row_gradients(tn_tensor *dy, rows_sizes s, tni_array *out)
{
    bool constant = true;
    for (int d = 0; d < dy->shape.rank; d++)
        constant = constant && (dy->stride[d] == 0 || dy->shape.size[d] == 1);
    if (!constant && !(dy = tni_dense(dy))) return tni_pending();
    *out = rows_array(dy, 2, s.n, s.d, 0);
    if (constant) out->stride[0] = out->stride[1] = 0;
    return TN_OK;
}

static tn_status ce_kernel_grad(tni_grad *g)
{
    const class_args *args = g->args;
    tn_tensor *dy = tni_dy(g, 0);
    if (!dy) return tni_pending();
    rows_sizes s = rows_around(&g->in[0].shape, args->axis);
    tni_cross_entropy_grad a = { .dx = rows_array(g->dx[0], 3, s.n, s.c, s.d),
                                 .top = rows_array(g->saved[0], 2, s.n, s.d, 0),
                                 .sum = rows_array(g->saved[1], 2, s.n, s.d, 0),
                                 .x = rows_array(g->x[0], 3, s.n, s.c, s.d),
                                 .target = rows_array(g->x[1], 2, s.n, s.d, 0),
                                 .weight = rows_array(g->x[2], 1, s.c, 0, 0),
                                 .smoothing = args->smoothing,
                                 .ignore = args->ignore };
    TNI_TRY(row_gradients(dy, s, &a.drow));
    return tni_backend_of(g->x[0])->cross_entropy_grad(&a);
}

/* Autocast: the kernel converts bf16 logits to f32 itself, so no f32 copy is kept. dy: one value
 * for all needs no copy. */
TNI_OP(cross_entropy, 3,
       "loss = (1-e) w[t] (lse - x[t]) + e/C sum_c w[c] (lse - x[c]), lse = logsumexp(x)",
       "dx = dloss ((1-e) w[t] (p - onehot(t)) + e/C (p sum w - w)); where p = softmax(x)",
       ce_shape, ce_forward, ce_backward, .optional = TNI_X(2), .dtypes = TNI_MIXED_FLOAT,
       .autocast = TNI_CAST_KEEP, .dense = TNI_ALL_X, .dense_grad = TNI_ALL_X,
       .reads = { TNI_X(0) | TNI_X(1) | TNI_X(2) | TNI_SAVED }, .kernel_grad = ce_kernel_grad,
       .constants = "e", .constants_at = offsetof(class_args, smoothing))

/* ---- nll ------------------------------------------------------------------------------------- */

static const tn_op op_nll_loss, op_nll_loss_grad;

static tn_status nll_loss_shape(tni_call *c)
{
    tni_result(c, c->in[0]->dtype, &c->in[1]->shape);
    c->out_spec[1] = c->out_spec[0];
    return TN_OK;
}

static tn_status nll_loss_forward(tni_call *c)
{
    const class_args *args = c->args;
    rows_sizes s = rows_around(&args->shape, args->axis);
    tni_nll a = { .row_loss = rows_array(c->out[0], 2, s.n, s.d, 0),
                  .row_weight = rows_array(c->out[1], 2, s.n, s.d, 0),
                  .x = rows_array(c->in[0], 3, s.n, s.c, s.d),
                  .target = rows_array(c->in[1], 2, s.n, s.d, 0),
                  .weight = rows_array(c->in[2], 1, s.c, 0, 0),
                  .ignore = args->ignore };
    return tni_backend_of(c->in[0])->nll(&a);
}

static tn_status nll_loss_grad_shape(tni_call *c)
{
    return tni_result(c, c->in[0]->dtype, &((const class_args *)c->args)->shape);
}

static tn_status nll_loss_grad_forward(tni_call *c)
{
    const class_args *args = c->args;
    rows_sizes s = rows_around(&args->shape, args->axis);
    tni_nll_grad a = { .dx = rows_array(c->out[0], 3, s.n, s.c, s.d),
                       .drow = rows_array(c->in[0], 2, s.n, s.d, 0),
                       .target = rows_array(c->in[1], 2, s.n, s.d, 0),
                       .weight = rows_array(c->in[2], 1, s.c, 0, 0),
                       .ignore = args->ignore };
    return tni_backend_of(c->in[0])->nll_grad(&a);
}

/* Each is the other's backward. */
static tn_status nll_backward(tni_grad *g)
{
    const bool again = g->op == &op_nll_loss_grad;
    tn_tensor *in[3] = { tni_dy(g, 0), g->x[1], g->x[2] ? g->x[2] : TN_NONE }, *out[2];
    TNI_TRY(tni_apply_n(again ? &op_nll_loss : &op_nll_loss_grad, g->args, g->args_size, 3, in,
                        again ? 2 : 1, out));
    return tni_give_dx(g, out[0]);
}

#define NLL(name_, formula_, gradient_)                                                            \
    TNI_OP(name_, 3, formula_, gradient_, name_##_shape, name_##_forward, nll_backward,            \
           .optional = TNI_X(2), .reads = { TNI_X(1) | TNI_X(2) }, .dense = TNI_ALL_X)
NLL(nll_loss, "loss = -w[t] x[t]", "dx = 0 but dx[t] = -w[t] dloss")
NLL(nll_loss_grad, "dx = 0; dx[t] = -w[t] dloss",
    "ddloss = -w[t] g[t]; where g is the gradient of dx")

/* ---- class ids ------------------------------------------------------------------------------- */

int tni_class_axis(const char *function, const tn_tensor *logits, const tn_tensor *target)
{
    int rank = logits->shape.rank, axis = rank == 1 ? 0 : 1;
    tn_shape want = tni_shape_without(&logits->shape, axis);
    tn_shape other = tni_shape_without(&logits->shape, rank - 1);
    if (rank >= 1 && tni_shape_equal(&target->shape, &want)) return axis;
    if (rank >= 2 && tni_shape_equal(&target->shape, &other)) return rank - 1;
    if (rank == 0)
        return tni_minus_one(tni_error(TN_E_SHAPE,
                                       "%s: logits [], target %s: want logits [N,C] or [C]",
                                       function, tni_text(target)));
    tni_error(TN_E_SHAPE, "%s: logits %s, target %s: want target %s", function, tni_text(logits),
              tni_text(target), tni_shape_text(&want));
    return -1;
}

/* In a region of autocast the loss is f32. */
static tn_dtype loss_dtype(const tn_tensor *logits)
{
    return tni_autocasting == TN_F32 ? logits->dtype : tni_wide_dtype(logits->dtype);
}

tn_status tni_check_class_options(const char *function, const tn_cross_entropy_options *o,
                                  int64_t classes, const tn_tensor *logits)
{
    const tn_tensor *weight = o->weight;
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return tni_error(TN_E_INVALID, "%s: label_smoothing %g: want 0 to 1", function,
                         o->label_smoothing);
    if ((int)o->reduction < TN_MEAN || (int)o->reduction > TN_NO_REDUCTION)
        return tni_error(TN_E_INVALID, "%s: reduction %d: want TN_MEAN, TN_SUM or TN_NO_REDUCTION",
                         function, (int)o->reduction);
    if (tni_none(weight)) return TN_OK;
    if (weight->shape.rank != 1 || weight->shape.size[0] != classes)
        return tni_error(TN_E_SHAPE, "%s: logits %s, weight %s: want weight [%" PRId64 "]",
                         function, tni_text(logits), tni_text(weight), classes);
    if (weight->dtype != loss_dtype(logits))
        return tni_error(TN_E_DTYPE, "%s: logits %s, weight %s: want one dtype", function,
                         tn_dtype_name(logits->dtype), tn_dtype_name(weight->dtype));
    if (weight->requires_grad && tn_grad_enabled())
        return tni_error(
            TN_E_INVALID,
            "%s: weight %s requires grad: want tn_detach(weight), weights get no gradient",
            function, tni_text(weight));
    return TN_OK;
}

/* The loss by op, which gives loss and weight of each row; the mean divides by the sum of the
 * weights. */
static tn_tensor *class_ids(const tn_op *op, const char *function, tn_tensor *x, tn_tensor *target,
                            const tn_cross_entropy_options *o)
{
    target = tni_ids_arg(function, "target", target);
    int axis = target ? tni_class_axis(function, x, target) : -1;
    if (axis < 0 || tni_check_class_options(function, o, x->shape.size[axis], x) != TN_OK)
        return NULL;
    class_args args = { axis, o->label_smoothing, rows_ignore(o), x->shape };
    tn_tensor *in[3] = { x, target, o->weight }, *out[2];
    for (int i = 0; op == &op_nll_loss && i < 3; i += 2) in[i] = tni_wide(in[i]);
    if (tni_apply_n(op, &args, sizeof args, 3, in, 2, out) != TN_OK) return NULL;
    tn_tensor *loss = out[0];
    if (o->reduction != TN_NO_REDUCTION) loss = tn_sum(loss, NULL, 0, false);
    if (o->reduction == TN_MEAN) loss = tn_div(loss, tn_sum(tn_detach(out[1]), NULL, 0, false));
    return tn_to_dtype(loss, loss_dtype(x));
}

/* ---- probabilities --------------------------------------------------------------------------- */

/* loss = -sum_c w[c] q[c] log p[c], q = (1 - e) target + e / C; the mean is over rows */
static tn_tensor *probabilities(tn_tensor *logits, tn_tensor *target,
                                const tn_cross_entropy_options *o)
{
    int rank = logits->shape.rank, axis = rank == 1 ? 0 : 1;
    if (o->use_ignore_index)
        return tni_fail(TN_E_INVALID,
                        "tn_cross_entropy: ignore_index %" PRId64
                        " with probabilities as target: want class ids, or no ignore_index",
                        o->ignore_index);
    if (rank == 0 || !tni_shape_equal(&logits->shape, &target->shape))
        return tni_fail(TN_E_SHAPE,
                        "tn_cross_entropy: logits %s, target %s of %s: want probabilities of "
                        "logits' shape, or class ids of u8, i32 or i64",
                        tni_text(logits), tni_text(target), tn_dtype_name(target->dtype));
    if (logits->dtype != target->dtype)
        return tni_fail(TN_E_DTYPE, "tn_cross_entropy: logits %s, target %s: want one dtype",
                        tn_dtype_name(logits->dtype), tn_dtype_name(target->dtype));
    int64_t classes = logits->shape.size[axis];
    if (tni_check_class_options("tn_cross_entropy", o, classes, logits) != TN_OK) return NULL;
    tn_dtype dtype = logits->dtype;
    logits = tni_wide(logits);
    target = tni_wide(target);
    if (o->label_smoothing != 0)
        target = tn_add_scalar(tn_mul_scalar(target, 1.0 - o->label_smoothing),
                               o->label_smoothing / (double)classes);
    if (!tni_none(o->weight))
        target = tn_mul(target, over_classes(tni_wide(o->weight), rank, axis));
    tn_tensor *each = tn_mul(target, tn_log_softmax(logits, axis));
    tn_tensor *rows = tn_neg(tn_sum(each, &axis, 1, false));
    return tni_reduce_loss("tn_cross_entropy", rows, o->reduction, dtype);
}

tn_tensor *tn_cross_entropy_with(tn_tensor *logits, tn_tensor *target, tn_cross_entropy_options o)
{
    if (!tni_present("tn_cross_entropy", "logits", logits) ||
        !tni_present("tn_cross_entropy", "target", target))
        return NULL;
    if (!(o.weight = tni_option_tensor("tn_cross_entropy", "weight", o.weight))) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *loss = NULL;
    bool ids = !tn_dtype_is_float(target->dtype);
    if (!ids) logits = tni_autocast_f32(logits);
    target = tni_autocast_f32(target);
    o.weight = tni_autocast_f32(o.weight);
    if (logits && target && o.weight)
        loss = ids ? class_ids(&op_cross_entropy, "tn_cross_entropy", logits, target, &o)
                   : probabilities(logits, target, &o);
    return tni_scope_return("tn_cross_entropy", scope, loss);
}

tn_tensor *tn_cross_entropy(tn_tensor *logits, tn_tensor *target)
{
    return tn_cross_entropy_with(logits, target, (tn_cross_entropy_options){ .weight = TN_NONE });
}

tn_tensor *tn_nll_loss(tn_tensor *log_p, tn_tensor *target, tn_cross_entropy_options o)
{
    if (!tni_present(__func__, "log_p", log_p) || !tni_present(__func__, "target", target))
        return NULL;
    if (!(o.weight = tni_option_tensor(__func__, "weight", o.weight))) return NULL;
    if (o.label_smoothing != 0)
        return tni_fail(TN_E_INVALID,
                        "%s: label_smoothing %g: want 0 (tn_cross_entropy_with smooths)", __func__,
                        o.label_smoothing);
    if (!tn_dtype_is_float(log_p->dtype))
        return tni_fail(TN_E_DTYPE, "%s: log_p is %s: want a floating dtype", __func__,
                        tn_dtype_name(log_p->dtype));
    tn_scope scope = tn_scope_begin();
    o.weight = tni_autocast_f32(o.weight);
    log_p = tni_autocast_f32(log_p);
    return tni_scope_return(__func__, scope,
                            log_p && o.weight ? class_ids(&op_nll_loss, __func__, log_p, target, &o)
                                              : NULL);
}
