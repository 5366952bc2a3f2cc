/*
 * explain_values.c - mistakes that show in what the ops of a watched run read and made: a softmax
 * before the loss, targets of one class, inputs that nobody scaled, units that give 0 for every
 * input, gates at their ends. Values are looked at when their op has run, and not kept.
 */
#include "autograd/graph.h"
#include "ext/diagnose/explain.h"
#include "tensor/internal.h"

enum {
    FEW = 16,      /* inputs, below which nothing is said of values */
    LARGE = 30,    /* root mean square of an input that was not scaled */
    PER_CLASS = 10 /* targets, with which a class that is never there is noticed */
};

/* The mean of a tensor of numbers or truth values; NaN: failed. */
static double mean_of(tn_tensor *t)
{
    return tn_item(tn_mean(tn_to_dtype(t, TN_F32), NULL, 0, false));
}

static bool is(const tni_call *c, const char *op)
{
    return strcmp(c->op->name, op) == 0;
}

/* An op of that name, or one that only views its result, made t: its use; NULL. */
static const tni_use *behind(const tni_run *r, const tn_tensor *t, const char *op)
{
    for (int n = tni_run_number(r, t); n >= 0 && r->value[n].maker;) {
        const tni_use *use = &r->use[r->value[n].maker - 1];
        if (strcmp(use->op, op) == 0) return use;
        n = use->view && use->n_in == 1 ? (int)(r->ends[use->end] / 2) : -1;
    }
    return NULL;
}

static void judge_logits(tni_run *r, const tni_call *c)
{
    const bool two = is(c, "bce_with_logits");
    const tni_use *use = behind(r, c->in[0], two ? "sigmoid" : "softmax");
    if (!use) return;
    tni_say(&r->mistakes, "(loss): tn_%s reads the result of tn_%s (in %s): want %s", c->op->name,
            use->op, tni_run_place(r, use->module).s,
            is(c, "nll_loss") ? "tn_log_softmax, or logits and tn_cross_entropy"
            : two             ? "logits, since it takes the sigmoid itself"
                              : "logits, since it takes the softmax itself");
}

/* Of two classes. That all are one is no mistake: a GAN's batches are. */
static void judge_probabilities(tni_run *r, const tni_call *c)
{
    if (!tni_shape_numel(&c->in[1]->shape)) return;
    const double low = tn_item(tn_min_all(c->in[1])), high = tn_item(tn_max_all(c->in[1]));
    if (low < 0 || high > 1)
        tni_say(&r->mistakes,
                "(data): targets of tn_%s from %.4g to %.4g: want 0 to 1, classes counted from 0",
                c->op->name, low, high);
}

/* ids: n targets, c classes */
static void judge_classes(tni_run *r, const char *op, const int64_t *ids, int64_t n, int64_t c)
{
    TNI_ZEROED(unsigned char, seen, c + 1);
    int64_t counted = 0, classes = 0, last = -1;
    for (int64_t i = 0; seen && i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c) continue; /* ignored */
        counted++, classes += !seen[ids[i]];
        seen[last = ids[i]] = 1;
    }
    if (seen && c > 1 && classes == 1 && counted >= FEW)
        tni_say(&r->mistakes,
                "(data): all %" PRId64 " targets of tn_%s are class %" PRId64
                ": want batches of shuffled data",
                counted, op, last);
    else if (seen && c > 2 && classes == c - 1 && !seen[0] && counted >= PER_CLASS * c)
        tni_say(&r->mistakes,
                "(data): of %" PRId64 " targets of tn_%s none is class 0, and all of 1 to %" PRId64
                " are there: want classes counted from 0",
                counted, op, c - 1);
    if (!seen) r->failed = TN_E_NOMEM;
}

static void judge_targets(tni_run *r, const tni_call *c)
{
    tn_tensor *ids = tn_contiguous(tn_to(tn_to_dtype(c->in[1], TN_I64), tn_cpu()));
    const int64_t n = tni_shape_numel(&c->in[1]->shape);
    const int64_t classes = n ? tni_shape_numel(&c->in[0]->shape) / n : 0;
    if (ids && n) judge_classes(r, c->op->name, tn_data(ids), n, classes);
}

/* An op with a parameter reads data, which has no history. */
static void judge_input(tni_run *r, const tni_use *use, const tni_call *c)
{
    tn_tensor *x = c->in[0];
    bool reads = c->n_in > 1 && !tni_none(x) && !x->requires_grad && tn_dtype_is_float(x->dtype);
    for (int i = 1, parameter = 0; reads; i++) {
        if (i == c->n_in) return;
        parameter = c->in[i]->requires_grad && tni_map_get(&r->member, c->in[i]);
        if (parameter) break;
    }
    if (!reads || r->unscaled ||
        !(is(c, "linear") || is(c, "matmul") || !strncmp(c->op->name, "conv", 4)))
        return;
    double square = mean_of(tn_square(tn_to_dtype(x, TN_F32)));
    if (!(square > LARGE * LARGE)) return;
    r->unscaled = true;
    tni_say(&r->mistakes,
            "(data): tn_%s reads %s with values from %.4g to %.4g (in %s): want inputs scaled, for "
            "example to mean 0 and deviation 1",
            c->op->name, tni_text(x), tn_item(tn_min_all(x)), tn_item(tn_max_all(x)),
            tni_run_place(r, use->module).s);
}

/* Units along the channels of images, else along the last axis. Far down in a new deep network all
 * inputs look alike, and about half of the units are 0 for all. */
static void judge_relu(tni_run *r, const tni_use *use, const tni_call *c)
{
    tn_tensor *y = c->out[0];
    const int rank = y->shape.rank, axis = rank > 3 ? 1 : rank - 1;
    int others[TN_MAX_RANK], n = 0;
    for (int d = 0; d < rank; d++)
        if (d != axis) others[n++] = d;
    const int64_t units = rank > 1 ? y->shape.size[axis] : 0;
    if (units < 2 || tni_shape_numel(&y->shape) / units < FEW) return;
    tn_tensor *active = tn_sum(tn_to_dtype(tn_gt_scalar(y, 0), TN_F32), others, n, false);
    const double dead = (double)units * mean_of(tn_le_scalar(active, 0));
    if (dead >= 0.9 * (double)units)
        tni_say(&r->mistakes,
                "(values): %.0f of %" PRId64 " units of tn_relu are 0 for all %" PRId64
                " inputs (in %s): dead; want a lower learning rate, other biases, or "
                "tn_leaky_relu",
                dead, units, tni_shape_numel(&y->shape) / units, tni_run_place(r, use->module).s);
}

/* The share of t's elements whose gate lets less than 1 % through. */
static double at_ends(tn_tensor *t, bool centered)
{
    tn_tensor *size = tn_abs(tn_to_dtype(t, TN_F32)), *square = tn_square(size);
    tn_tensor *slope = centered ? tn_add_scalar(tn_neg(square), 1) : tn_sub(size, square);
    return mean_of(tn_lt_scalar(slope, 0.01));
}

static void note_gates(tni_use *use, const tni_call *c)
{
    const bool cell = is(c, "lstm") || is(c, "gru");
    const tni_node *node = c->out[0]->node; /* cells keep their gates for backward */
    tn_tensor *t = !cell ? c->out[0] : node && node->n_saved ? node->saved[0] : NULL;
    if (t && tni_shape_numel(&t->shape) >= FEW) use->ends = at_ends(tn_detach(t), is(c, "tanh"));
}

void tni_run_judge(tni_run *r, tni_use *use, const tni_call *c)
{
    const uint64_t errors = tni_error_count;
    tni_watch_suspended++;
    TN_SCOPE TN_NO_GRAD
    {
        judge_input(r, use, c);
        const bool two = is(c, "bce_with_logits");
        if (two || is(c, "cross_entropy") || is(c, "nll_loss")) {
            judge_logits(r, c);
            (two ? judge_probabilities : judge_targets)(r, c);
        } else if (is(c, "relu")) {
            judge_relu(r, use, c);
        } else if (is(c, "sigmoid") || is(c, "tanh") || is(c, "lstm") || is(c, "gru")) {
            note_gates(use, c);
        }
    }
    tni_watch_suspended--;
    if (tni_error_count != errors) r->failed = TN_E_NOMEM;
}

/* Whether a later op reads what use made together with a parameter: it is no final probability. */
static bool goes_on(tni_run *r, const tni_use *from)
{
    for (size_t i = 0; i < r->n_value; i++) r->value[i].depends = false;
    r->value[r->ends[from->end + from->n_in] / 2].depends = true;
    for (const tni_use *use = from + 1; use < r->use + r->n_use; use++) {
        bool depends = false, parameter = false;
        for (int i = 0; i < use->n_in; i++) {
            const tni_value *in = &r->value[r->ends[use->end + i] / 2];
            depends |= in->depends;
            parameter |= in->parameter;
        }
        if (depends && parameter) return true;
        for (int i = 0; depends && i < use->n_out; i++)
            r->value[r->ends[use->end + use->n_in + i] / 2].depends = true;
    }
    return false;
}

void tni_run_judge_gates(tni_run *r)
{
    for (const tni_use *use = r->use; use && use < r->use + r->n_use; use++) {
        const bool cell = strcmp(use->op, "lstm") == 0 || strcmp(use->op, "gru") == 0;
        if (!(use->ends >= (cell ? 0.7 : 0.9)) || !(cell || goes_on(r, use))) continue;
        tni_say(&r->mistakes,
                "(values): %.0f %% of the %s of tn_%s are at their ends (in %s): saturated; want "
                "smaller inputs or weights",
                100 * use->ends, cell ? "gates" : "results", use->op,
                tni_run_place(r, use->module).s);
    }
}
