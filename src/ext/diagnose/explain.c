/*
 * explain.c - tn_explain_training: reports what keeps a model from learning, by full names.
 *
 * One run is watched (explain_run.c); its gradients are taken with tn_gradients, which changes no
 * grad. A parameter without a gradient is then followed through the ops in two colours: values that
 * depend on it at all, and values through which a gradient would reach it. It was cut off where the
 * second colour ends but the first continues to the loss.
 */
#include "ext/diagnose/explain.h"
#include "ext/parallel/group.h"
#include "nn/layers/layer.h"

typedef struct report {
    tni_run run;
    tni_lines findings, notes;
    char here[48];            /* " on rank 1 of 2"; "" alone */
    tn_explain_report counts; /* without its text */
    tn_tensor *loss;
    tn_list *parameters;
    tn_optim *opt; /* or NULL */
} report;

enum { NOTES = 8 }; /* any more are only counted */

/* ---- gradients ------------------------------------------------------------------------------- */

/* Where a parameter's gradient was cut off; the uses are NULL if there is none. */
typedef struct way {
    const tni_use *last, *cut;
    int lost; /* the result of cut that has no history */
} way;

static way follow(report *x, int parameter)
{
    const tni_run *r = &x->run;
    way w = { 0 };
    for (size_t i = 0; i < r->n_value; i++)
        r->value[i].depends = r->value[i].recorded = (int)i == parameter;
    for (const tni_use *use = r->use; use && use < r->use + r->n_use; use++) {
        const tni_end *in = r->ends + use->end, *out = in + use->n_in;
        bool depends = false, recorded = false;
        for (int i = 0; i < use->n_in; i++) {
            depends |= r->value[in[i] / 2].depends;
            recorded |= r->value[in[i] / 2].recorded && in[i] & 1;
        }
        if (!depends) continue;
        w.last = use;
        for (int i = 0; i < use->n_out; i++) {
            tni_value *value = &r->value[out[i] / 2];
            if (recorded && !(out[i] & 1) && !w.cut && value->leads)
                w.cut = use, w.lost = (int)(out[i] / 2);
            value->depends = true;
            value->recorded |= recorded && out[i] & 1;
        }
    }
    return w;
}

static void explain_missing(report *x, const tn_entry *e)
{
    static const char *const does[] = { [TNI_CUT_DTYPE] = " made ",
                                        [TNI_CUT_DETACH] = " cuts it off",
                                        [TNI_CUT_NO_GRAD] = " ran inside TN_NO_GRAD",
                                        [TNI_CUT_NO_BACKWARD] = " has no derivative",
                                        [TNI_CUT_IN_PLACE] = " records nothing" };
    int n = tni_run_number(&x->run, e->tensor);
    way w = n >= 0 ? follow(x, n) : (way){ 0 };
    const tni_use *use = w.cut ? w.cut : w.last;
    const bool dtype = w.cut && use->cut == TNI_CUT_DTYPE;
    x->counts.unread += !use;
    x->counts.cut += w.cut != NULL;
    x->counts.unused += use && !w.cut;
    if (!use)
        tni_say(&x->findings, "%s: no gradient%s: never read", e->name, x->here);
    else
        tni_say(&x->findings, "%s: no gradient%s: %s%s%s%s%s%s (in %s)", e->name, x->here,
                w.cut ? "" : "its results do not reach the loss, the last one is of ", use->prefix,
                use->op, w.cut ? does[use->cut] : "",
                dtype ? tn_dtype_name(x->run.value[w.lost].dtype) : "", dtype ? " of it" : "",
                tni_run_place(&x->run, use->module).s);
}

static tn_status judge_gradient(report *x, const tn_entry *e, tn_tensor *grad)
{
    double largest;
    tn_status status = tni_magnitude(grad, &largest);
    if (status != TN_OK || (isfinite(largest) && largest > 0)) return status;
    if (tni_shape_numel(&grad->shape) == 0) return TN_OK;
    x->counts.zero += largest == 0;
    x->counts.nonfinite += largest != 0;
    tni_say(&x->findings, "%s: its gradient %s", e->name,
            largest == 0     ? "is zero everywhere"
            : isnan(largest) ? "holds nan"
                             : "holds inf");
    return TN_OK;
}

static tn_status judge_parameters(report *x)
{
    bool finite = isfinite(x->counts.loss);
    x->counts.nonfinite += !finite;
    if (!finite)
        tni_say(&x->findings,
                "(loss): it is %g: tn_set_anomaly names the op that made it so, TN_DEBUG=1 in the "
                "environment a tensor that was used after it was freed",
                x->counts.loss);
    if (!x->loss->requires_grad && x->run.leaves->n)
        tni_say(&x->run.mistakes, "(loss): it is a constant: no gradient leads from it to any "
                                  "parameter; want it computed from results of forward, outside of "
                                  "TN_NO_GRAD and without tn_detach, tn_item or tn_data");
    for (int i = 0, k = 0; i < x->parameters->n; i++) {
        const tn_entry *e = &x->parameters->entry[i];
        tn_tensor *grad = e->tensor->requires_grad ? x->run.grad[k++] : NULL;
        if (!grad && x->counts.frozen++ < NOTES)
            tni_say(&x->notes, "%s: frozen%s", e->name,
                    x->opt && tni_map_get(&x->opt->tensors, e->tensor)
                        ? ", so the optimizer skips it"
                        : "");
        else if (grad && tni_none(grad))
            explain_missing(x, e);
        else if (grad && finite)
            TNI_TRY(judge_gradient(x, e, grad));
    }
    if (x->counts.frozen > NOTES)
        tni_say(&x->notes, "and %d more frozen", x->counts.frozen - NOTES);
    return TN_OK;
}

/* ---- the optimizer --------------------------------------------------------------------------- */

static void judge_optimizer(report *x)
{
    const tn_optim *opt = x->opt;
    for (int i = 0; i < x->parameters->n; i++) {
        const tn_entry *e = &x->parameters->entry[i];
        if (!e->tensor->requires_grad || tni_map_get(&opt->tensors, e->tensor)) continue;
        x->counts.missing++;
        tni_say(&x->findings, "%s: the optimizer does not hold it%s", e->name,
                tni_map_get(&opt->names, e->name) ? ", but another tensor of that name" : "");
    }
    for (const tni_optim_param *p = opt->param; p < opt->param + opt->n; p++) {
        if (tni_map_get(&x->run.member, p->tensor)) continue;
        x->counts.foreign++;
        tni_say(&x->findings, "%s: the optimizer holds it, the model does not", p->name);
    }
    x->counts.reused = opt->reused;
    if (opt->reused)
        tni_say(&x->findings,
                "(optimizer): its last step used gradients that an earlier step had used: want "
                "tn_optim_zero_grad before each backward");
}

/* ---- the learning rate ----------------------------------------------------------------------- */

/* Whether it is far off: copies of model and optimizer make a step d, and the loss L(p + t d) says
 * how long a step should be. Along d a loss of constant curvature falls by t s - t^2 c / 2, s its
 * slope, and rises again beyond t = s / c. d is of the rate that was set, of which a schedule may
 * have made less: its ends are not a rate too low. */
typedef struct trial {
    tni_run *run;
    tn_module *copy;
    tn_optim *opt;    /* of the copy; NULL: failed */
    tn_list *leaf;    /* of the copy, which the optimizer has moved */
    tn_tensor **step; /* by these */
} trial;

enum { LONG = 100, SMALLEST = 10, FORMED = 10 }; /* losses below 1 / SMALLEST are not judged */

/* The copy's loss at p + t d; with an error pending it failed. */
static double loss_at(const trial *x, double t)
{
    TNI_SCOPED;
    if (tn_generator_set_state(tn_default_generator(), x->run->generator) != TN_OK) return NAN;
    TN_NO_GRAD for (int i = 0; i < x->leaf->n; i++)
    {
        tn_tensor *moved = tn_add(x->run->leaf[i], tn_mul_scalar(x->step[i], t));
        if (tn_copy_(x->leaf->entry[i].tensor, moved) != TN_OK) return NAN;
    }
    return tn_item(x->run->loss(x->copy, x->run->user));
}

/* Steps with the run's gradients. Returns the loss's slope along the step: below 0; NaN: failed. */
static double make_step(trial *x)
{
    double slope = 0;
    x->leaf = tn_list_filter(tn_parameters(x->copy), tni_trains, NULL);
    for (int i = 0; x->leaf && i < x->leaf->n; i++)
        if (tn_set_grad(x->leaf->entry[i].tensor, x->run->grad[i]) != TN_OK) return NAN;
    if (!x->leaf || tn_optim_step(x->opt) != TN_OK) return NAN;
    TN_NO_GRAD for (int i = 0; i < x->leaf->n; i++)
    {
        x->step[i] = tn_sub(x->leaf->entry[i].tensor, x->run->leaf[i]);
        if (!x->step[i]) return NAN;
        if (tni_none(x->run->grad[i])) continue;
        slope += tn_item(tn_sum_all(tn_mul(x->step[i], x->run->grad[i])));
    }
    return slope;
}

/* Momentum's first steps are a tenth of later ones, RMSprop's ten times as long; Adam's are not. */
static void judge_step(const trial *x, const tn_optim *opt, double loss, double slope)
{
    const bool forms = opt->group[0].slots && opt->steps < FORMED;
    const bool adam = strncmp(opt->type->name, "adam", 4) == 0;
    const bool longer = forms && !adam && strcmp(opt->type->name, "sgd") != 0;
    const double lr = opt->group[0].lr, set = x->opt->group[0].lr, now = set > 0 ? lr / set : 1;
    const double next = loss_at(x, now);
    if (tni_pending() != TN_OK) return;
    if (!longer && !(next <= loss + (adam ? 1 : 3) * fabs(loss))) { /* SGD's first may treble it */
        const double less = loss_at(x, 0.01 * now);
        if (less < loss)
            tni_say(&x->run->mistakes,
                    "(optimizer): a step with its lr %g takes the loss from %.4g to %.4g, a "
                    "hundredth of it to %.4g: want a lower lr",
                    lr, loss, next, less);
    } else if (!forms && slope < 0 && -LONG * slope < 0.015 * fabs(loss)) {
        const double far = loss_at(x, LONG);
        if (loss - far > -0.5 * LONG * slope)
            tni_say(&x->run->mistakes,
                    "(optimizer): a step with its lr %g takes the loss from %.6g to %.6g, one %d "
                    "times as long to %.6g: want a higher lr",
                    set, loss, loss_at(x, 1), LONG, far);
    }
}

static void judge_rate(tni_run *r, tn_optim *opt, double loss)
{
    const size_t n = (size_t)r->leaves->n;
    if (!n || tn_parallel_size() > 1 || !(fabs(loss) * SMALLEST >= 1) || !isfinite(loss)) return;
    if (opt->type->closure) return;
    tni_saved_error TN_WHEN_LEFT(tni_error_restore) before; /* what cannot be tried is not judged */
    tni_error_save(&before);
    tn_error_clear();
    TNI_ZEROED(tn_tensor *, step, n);
    TNI_SCOPED;
    trial x = { .run = r, .step = step };
    if (step) x.copy = tn_module_clone(r->model);
    if (x.copy) x.opt = tni_optim_like(opt, r->model, x.copy);
    for (int g = 0; x.opt && g < x.opt->n_groups; g++)
        x.opt->group[g].lr = TNI_MAX(opt->group[g].lr, opt->group[g].base_lr);
    const double slope = x.opt && !tni_pending() ? make_step(&x) : NAN;
    if (isfinite(slope)) judge_step(&x, opt, loss, slope);
    tn_optim_free(x.opt);
    tn_module_drop(x.copy);
}

/* ---- a test in train mode -------------------------------------------------------------------- */

static void judge_tests(report *x)
{
    for (const tni_part *p = x->run.part; p && p < x->run.part + x->run.n_part; p++) {
        const tni_batchnorm *b = (const tni_batchnorm *)p->module;
        const int64_t n = tni_batchnorm_over_of(p->module) ? b->unrecorded : 0;
        if (n > 0)
            tni_say(&x->run.mistakes,
                    "%s%srunning_mean: moved %" PRId64 " time%s under TN_NO_GRAD: if that was a "
                    "test, want tn_eval before it",
                    p->path, p->path[0] ? "." : "", n, n == 1 ? "" : "s");
    }
}

/* ---- the other ranks ------------------------------------------------------------------------- */

enum { NAMED = 6 }; /* ranks; any more are only counted */

/* "rank 1", "ranks 1, 2 and 3", "ranks 1, 2, 3, 4, 5, 6 and 9 more": the other ranks that had no
 * gradient for a parameter; their number. */
static int list_ranks(const tn_tensor *parameter, char *text, size_t size)
{
    int rank[NAMED + 1], n = 0;
    for (int r = 0; r < tn_parallel_size(); r++) {
        if (r == tn_parallel_rank() || tni_reported_of(parameter, r) != TNI_REPORTED_MISSING)
            continue;
        if (n <= NAMED) rank[n] = r;
        n++;
    }
    int named = n > NAMED + 1 ? NAMED : n;
    snprintf(text, size, n == 1 ? "rank" : "ranks");
    for (int i = 0; i < named; i++) {
        bool last = i + 1 == named && named == n;
        tni_text_add(text, size, "%s%d", i == 0 ? " " : last ? " and " : ", ", rank[i]);
    }
    if (named < n) tni_text_add(text, size, " and %d more", n - named);
    return n;
}

/* A finding for each parameter that had no gradient on another rank in the last averaging backward;
 * or a note that says why nothing is known. At the end of such a backward each rank has told all
 * others (ext/parallel/reduce.c), so nothing is sent here, and one rank alone may ask. */
static void judge_ranks(report *x)
{
    char ranks[128];
    int averaged = 0, reported = 0;
    for (int i = 0; i < x->parameters->n; i++) {
        const tn_entry *e = &x->parameters->entry[i];
        tni_reported first = tni_reported_of(e->tensor, 0);
        averaged += first != TNI_REPORTED_ALONE;
        if (first == TNI_REPORTED_ALONE || first == TNI_REPORTED_NOTHING) continue;
        reported++;
        if (list_ranks(e->tensor, ranks, sizeof ranks) == 0) continue;
        x->counts.elsewhere++;
        tni_say(&x->findings,
                "%s: no gradient on %s of %d in the last averaging backward: tn_explain_training, "
                "called there, says why",
                e->name, ranks, tn_parallel_size());
    }
    if (!reported)
        tni_say(&x->notes, averaged
                               ? "(ranks): before the first averaging backward nothing is "
                                 "known of the other ranks"
                               : "(ranks): no tn_data_parallel averages the model's gradients");
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* As many whole lines as fit with "...\n" after them. */
static void copy_lines(char *to, size_t size, const tni_bytes *text)
{
    size_t n = TNI_MIN(text->n, size - sizeof "...\n");
    while (n && text->data[n - 1] != '\n') n--;
    memcpy(to, text->data, n);
    snprintf(to + n, size - n, "%s", n < text->n ? "...\n" : "");
}

static tn_status print(report *x, const tn_module *m, FILE *file, tn_explain_report *out)
{
    tni_bytes text = { 0 };
    tn_explain_report *c = &x->counts;
    const tni_lines *part[] = { &x->run.mistakes, &x->run.unregistered, &x->findings, &x->notes };
    c->mistakes = x->run.mistakes.n, c->unregistered = x->run.unregistered.n;
    c->findings = c->mistakes + c->unregistered + x->findings.n;
    tni_bytes_printf(&text, "%s: loss %.4g, a gradient for %d of %d parameters%s\n", m->type->name,
                     c->loss, x->parameters->n - c->frozen - c->unread - c->cut - c->unused,
                     x->parameters->n, x->here);
    for (int k = 0; k < 4; k++) {
        tni_bytes_add(&text, part[k]->text.data, part[k]->text.n);
        text.failed |= part[k]->text.failed;
    }
    if (c->findings)
        tni_bytes_printf(&text, "%d finding%s\n", c->findings, c->findings == 1 ? "" : "s");
    else
        tni_bytes_printf(&text, "nothing to complain about\n");
    if (out && !text.failed) *out = *c, copy_lines(out->text, sizeof out->text, &text);
    return tni_stream_put("tn_explain_training", file, TN_OK, &text);
}

static tn_status examine(report *x)
{
    const tni_run *r = &x->run;
    tn_optim *opt = x->opt;
    x->parameters = tn_parameters(x->run.model);
    if (opt && tni_no_optim(opt)) return tni_poison("tn_explain_training", "opt");
    if (!x->parameters) return tni_pending();
    TNI_TRY(tni_run_watch(&x->run, &x->loss));
    x->counts.loss = tn_item(x->loss);
    r->value[tni_run_number(r, x->loss)].leads = true;
    for (size_t u = r->n_use; u-- > 0;) { /* every value that it was computed from */
        const tni_use *use = &r->use[u];
        const tni_end *in = r->ends + use->end, *out = in + use->n_in;
        bool leads = false;
        for (int i = 0; i < use->n_out; i++) leads |= r->value[out[i] / 2].leads;
        for (int i = 0; leads && i < use->n_in; i++) r->value[in[i] / 2].leads = true;
    }
    TNI_TRY(tni_run_gradients(&x->run, x->parameters, x->loss));
    TNI_TRY(judge_parameters(x));
    if (tn_parallel_size() > 1) judge_ranks(x);
    if (opt) judge_optimizer(x);
    tni_run_judge_gates(&x->run);
    judge_tests(x);
    if (opt && x->counts.foreign + x->counts.unused + x->counts.missing == 0)
        judge_rate(&x->run, opt, x->counts.loss);
    return TN_OK;
}

tn_status tn_explain_training(FILE *file, tn_module *m, tn_optim *opt,
                              tn_tensor *(*loss)(tn_module *m, void *user), void *user,
                              tn_explain_report *out)
{
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    report x = { .opt = opt };
    TNI_TRY(tni_run_begin(&x.run, "tn_explain_training", m, loss, user));
    if (tn_parallel_size() > 1)
        snprintf(x.here, sizeof x.here, " on rank %d of %d", tn_parallel_rank(),
                 tn_parallel_size());
    tn_scope scope = tn_scope_begin();
    tn_status status = examine(&x), restored = tni_run_restore(&x.run);
    if (status == TN_OK) status = restored;
    if (status == TN_OK) status = print(&x, m, file, out);
    tni_bytes_free(&x.findings.text);
    tni_bytes_free(&x.notes.text);
    tni_run_free(&x.run);
    tn_scope_end(scope);
    tni_watch(x.run.outer);
    return status;
}
