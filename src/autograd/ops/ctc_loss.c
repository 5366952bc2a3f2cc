/*
 * ctc_loss.c - connectionist temporal classification: minus the logarithm of the probability that T
 * steps spell a sequence of labels. The kernels have the formulas.
 *
 * Targets and lengths are checked on the host, which makes one table of them for the kernels: a row
 * for each sequence, of its steps, its number of labels, the labels, and room for longer ones.
 */
#include "autograd/ops/shared.h"

typedef struct ctc_args {
    int64_t blank;
    bool zero_infinity;
} ctc_args;

static tni_ctc ctc_of(const ctc_args *args, const tn_tensor *x, const tn_tensor *table,
                      const tn_tensor *loss, const tn_tensor *alpha)
{
    return (tni_ctc){ tni_array_of(loss), tni_array_of(alpha), tni_array_of(x), tni_array_of(table),
                      args->blank };
}

static tn_status ctc_shape(tni_call *c)
{
    const tn_shape *x = &c->in[0]->shape;
    tn_shape loss = TN_SHAPE(x->size[1]);
    tn_shape alpha = TN_SHAPE(x->size[1], x->size[0], 2 * c->in[1]->shape.size[1] - 1);
    tni_saves(c, c->in[0]->dtype, &alpha);
    return tni_result(c, c->in[0]->dtype, &loss);
}

static tn_status ctc_forward(tni_call *c)
{
    tni_ctc a = ctc_of(c->args, c->in[0], c->in[1], c->out[0], c->saved[0]);
    return tni_backend_of(c->in[0])->ctc(&a);
}

static tn_status ctc_grad_shape(tni_call *c)
{
    return tni_result(c, c->in[1]->dtype, &c->in[1]->shape);
}

static tn_status ctc_grad_forward(tni_call *c)
{
    const ctc_args *args = c->args;
    tni_ctc_grad a = { .dx = tni_array_of(c->out[0]),
                       .drow = tni_array_of(c->in[0]),
                       .of = ctc_of(args, c->in[1], c->in[2], c->in[3], c->in[4]),
                       .zero_infinity = args->zero_infinity };
    return tni_backend_of(c->in[0])->ctc_grad(&a);
}

static tn_status ctc_grad_backward(tni_grad *g)
{
    (void)g;
    return tni_error(TN_E_INVALID, "tn_ctc_loss: has no second derivative");
}

TNI_OP(ctc_loss_grad, 5, "dx = dloss (e^x - share)", "ddloss = none; dx = none", ctc_grad_shape,
       ctc_grad_forward, ctc_grad_backward, .dense = TNI_ALL_X)

static tn_status ctc_backward(tni_grad *g)
{
    tn_tensor *in[5] = { g->dy, g->x[0], g->x[1], tn_detach(g->y), g->saved[0] };
    return tni_give_dx(g, tni_apply(&op_ctc_loss_grad, g->args, g->args_size, 5, in));
}

TNI_OP(ctc_loss, 2, "loss = -log p(labels), p a sum over what spells them",
       "dx = dloss (e^x - share)", ctc_shape, ctc_forward, ctc_backward,
       .reads = { TNI_X(0) | TNI_X(1) | TNI_Y | TNI_SAVED }, .dense = TNI_ALL_X)

static const char function[] = "tn_ctc_loss";

/* The table on the host for x [T, N, C] and targets, steps, labels; NULL: failed. */
static tn_tensor *table_of(const tn_tensor *x, tn_tensor *const *given)
{
    static const char *const name[] = { "targets", "input_lengths", "target_lengths" };
    int64_t n = x->shape.size[1], classes = x->shape.size[2], longest = 0, sum = 0, at = 0;
    tn_tensor *host[3];
    const int64_t *number[3];
    for (int i = 0; i < 3; i++) {
        host[i] = tni_ids_arg(function, name[i], given[i]);
        if (host[i]) host[i] = tni_dense(tn_to(host[i], tn_cpu()));
        if (!host[i]) return NULL;
        number[i] = tni_data(host[i]);
    }
    const tn_shape *s = &host[0]->shape;
    bool apart = s->rank == 2 && s->size[0] == n;
    bool fits = (apart || s->rank == 1) && tn_numel(host[1]) == n && tn_numel(host[2]) == n;
    int64_t most = fits ? s->size[apart] : 0;
    for (int64_t i = 0; fits && i < n; i++) {
        int64_t steps = number[1][i], labels = number[2][i];
        if (steps < 0 || steps > x->shape.size[0] || labels < 0 || labels > most)
            return tni_fail(TN_E_INDEX,
                            "%s: input_lengths[%" PRId64 "] is %" PRId64 ", target_lengths %" PRId64
                            ": want 0..%" PRId64 " and 0..%" PRId64,
                            function, i, steps, labels, x->shape.size[0], most);
        longest = TNI_MAX(longest, labels);
        sum += labels;
    }
    if (!fits || (!apart && sum != most))
        return tni_fail(TN_E_SHAPE,
                        "%s: log_p %s, targets %s, lengths %s and %s: want targets [N,S], or those "
                        "of all sequences in a row, and lengths [N]",
                        function, tni_text(x), tni_text(host[0]), tni_text(host[1]),
                        tni_text(host[2]));
    tn_tensor *table = tn_full_as(TN_SHAPE(n, longest + 2), 0, TN_I64, tn_cpu());
    int64_t *row = table ? tni_data(table) : NULL;
    for (int64_t i = 0; row && i < n; i++, row += longest + 2) {
        row[0] = number[1][i];
        row[1] = number[2][i];
        if (apart) at = i * most;
        for (int64_t k = 0; k < row[1]; k++, at++) {
            row[2 + k] = number[0][at];
            if (row[2 + k] < 0 || row[2 + k] >= classes)
                return tni_fail(TN_E_INDEX,
                                "%s: label %" PRId64 " of sequence %" PRId64 " is %" PRId64
                                ": want 0..%" PRId64,
                                function, k, i, row[2 + k], classes - 1);
        }
    }
    return table;
}

tn_tensor *tn_ctc_loss(tn_tensor *log_p, tn_tensor *targets, tn_tensor *input_lengths,
                       tn_tensor *target_lengths, int64_t blank, bool zero_infinity,
                       tn_reduction reduction)
{
    log_p = tni_autocast_f32(log_p);
    if (!tni_present(function, "log_p", log_p)) return NULL;
    if (tni_host_refused(function, "reads lengths and labels", "it called before tn_capture_run"))
        return NULL;
    const tn_shape *s = &log_p->shape;
    if (s->rank < 2 || s->rank > 3)
        return tni_fail(TN_E_SHAPE, "%s: log_p %s: want [T,N,C], or [T,C]", function,
                        tni_text(log_p));
    if (blank < 0 || blank >= s->size[s->rank - 1])
        return tni_fail(TN_E_INDEX, "%s: blank %" PRId64 ", log_p %s: want one of its classes",
                        function, blank, tni_text(log_p));
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tni_wide(s->rank == 2 ? tn_unsqueeze(log_p, 1) : log_p);
    tn_tensor *table =
        x ? table_of(x, (tn_tensor *[]){ targets, input_lengths, target_lengths }) : NULL;
    if (table) table = tn_to(table, tn_device_of(x));
    const ctc_args args = { blank, zero_infinity };
    tn_tensor *loss = tni_apply(&op_ctc_loss, &args, sizeof args, 2, (tn_tensor *[]){ x, table });
    if (zero_infinity) loss = tn_masked_fill(loss, tn_eq_scalar(loss, INFINITY), 0);
    if (reduction == TN_MEAN) loss = tn_div(loss, tn_clamp(tn_select(table, 1, 1), 1, INFINITY));
    loss = tni_reduce_loss(function, loss, reduction, log_p->dtype);
    return tni_scope_return(__func__, scope, s->rank == 2 ? tn_reshape(loss, TN_SCALAR) : loss);
}
