/*
 * check_state.c - tn_check_state: one training step on copies of a model, in every way that there
 * is to run it. What differs from the plain way breaks a rule of docs/buffers.md.
 *
 * Bits must be equal, but where a computation of our own in double says what is right: averages,
 * statistics of a batch in parts, means of the ranks' gradients.
 */
#include <limits.h>
#include <tenon/io.h>
#include <tenon/layers.h>
#include <tenon/optimizers.h>
#include <tenon/parallel.h>
#include <unistd.h>

#include "ext/diagnose/check_state.h"
#include "ext/diagnose/explain.h"
#include "nn/micro_batches.h"

enum { SHOWN = 8 }; /* findings of one way; any more are only counted */
#define NEAR 1e-5   /* of the largest element */

/* ---- a step ---------------------------------------------------------------------------------- */

tn_status tni_check_push(tn_list *list, const char *prefix, tn_entry e)
{
    if (!e.tensor) return tni_pending();
    e.tensor = tn_clone(tn_to(tn_contiguous(tn_detach(e.tensor)), tn_cpu()));
    return e.tensor ? tni_list_push(list, prefix, "", e.name, e) : tni_pending();
}

tn_list *tni_check_values(tn_list *list, tn_module *m, tn_optim *opt)
{
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), generator);
    tn_tensor *bytes = tn_from_data(generator, TN_SHAPE(sizeof generator), TN_U8);
    tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    tn_status status = list && all ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        tn_tensor *gradient = e->kind == TN_PARAMETER ? tn_grad(e->tensor) : TN_NONE;
        status = tni_check_push(list, "", *e);
        if (status == TN_OK && !tni_none(gradient))
            status = tni_check_push(list, "gradient of ",
                                    (tn_entry){ .name = e->name, .tensor = gradient });
    }
    const tn_list *state = opt ? tn_optim_state_dict(opt) : NULL;
    if (opt && !state) status = tni_pending();
    for (int i = 0; status == TN_OK && state && i < state->n; i++)
        status = tni_check_push(list, "optimizer's ", state->entry[i]);
    if (status == TN_OK)
        status =
            tni_check_push(list, "", (tn_entry){ .name = "(default generator)", .tensor = bytes });
    return status == TN_OK ? list : NULL;
}

tn_status tni_check_part(const tni_check *c, tn_module *m, int part, int parts, tn_list *losses)
{
    char name[40] = "(loss)";
    if (parts > 1) snprintf(name, sizeof name, "(loss of part %d)", part);
    tn_scope scope = tn_scope_begin();
    tn_tensor *loss = c->step(c->user, m, part, parts);
    tn_status status = loss ? tni_pending() : tni_poison("tn_check_state", "the loss");
    if (status == TN_OK && c->backward) status = tn_backward(loss);
    if (status == TN_OK)
        status = tni_check_push(losses, "", (tn_entry){ .name = name, .tensor = loss });
    tn_set_grad_enabled(true);
    tn_scope_end(scope);
    return status;
}

tn_list *tni_check_pass(const tni_check *c, tn_module *m, int n)
{
    tn_list *list = tn_list_new();
    tn_status status = list ? tn_module_zero_grad(m) : tni_pending();
    if (status == TN_OK && n == 1) status = tni_check_part(c, m, 0, 1, list);
    if (status == TN_OK && n > 1)
        TN_MICRO_BATCHES(part, n) tni_disregard(tni_check_part(c, m, part, n, list));
    return tn_error_status() == TN_OK ? tni_check_values(list, m, NULL) : NULL;
}

tn_module *tni_check_fresh(const tni_check *c)
{
    tni_generator_put(tn_default_generator(), &c->generator);
    return tn_module_clone(c->model);
}

/* ---- an optimizer ---------------------------------------------------------------------------- */

/* The entries of group g of the caller's optimizer, with m's tensors. */
static tn_list *group_of(const tni_check *c, tn_module *m, int g)
{
    const tn_list *own = tn_parameters(c->model), *copies = tn_parameters(m);
    tn_list *list = own && copies ? tn_list_new() : NULL;
    for (int i = 0; list && i < c->opt->n; i++) {
        const tni_optim_param *p = &c->opt->param[i];
        int k = 0;
        if (p->group != g) continue;
        while (k < own->n && own->entry[k].tensor != p->tensor) k++;
        if (k == own->n)
            return tni_fail(TN_E_NAME, "tn_check_state: opt's %s is no parameter of model",
                            p->name);
        if (tni_list_push(list, "", "", p->name, copies->entry[k]) != TN_OK) return NULL;
    }
    return list;
}

tn_optim *tni_check_optim(const tni_check *c, tn_optim *from, tn_module *m)
{
    const tn_optim_type *type = from->type;
    tn_optim *made = NULL;
    tn_status status = TN_OK;
    for (int g = 0; status == TN_OK && g < from->n_groups; g++) {
        const tni_optim_group *group = &from->group[g];
        const tn_list *list = group_of(c, m, g);
        tn_optim_options o = { group->lr, group->weight_decay, .use_lr = true, .user = from->user };
        tn_group_options more = { group->lr, group->weight_decay, .use_lr = true };
        for (int i = 0; i < TN_OPTIM_NUMBERS; i++)
            o.set[i] = more.set[i] = (tn_number){ type->number[i].name, group->number[i] };
        if (g == 0) made = list ? tn_optim_new(type, list, o) : NULL;
        status = !made || !list ? tni_pending() : g ? tn_optim_add_group(made, list, more) : TN_OK;
    }
    const tn_list *state = status == TN_OK ? tn_optim_state_dict(from) : NULL;
    status = state ? tn_optim_load_state_dict(made, state) : tni_pending();
    if (status == TN_OK) return made;
    tn_optim_free(made);
    return NULL;
}

tn_tensor *tni_check_closure(void *user)
{
    const tni_check_step *s = user;
    if (tn_module_zero_grad(s->m) != TN_OK) return NULL;
    tn_tensor *loss = s->c->step(s->c->user, s->m, 0, 1);
    return loss && tn_backward(loss) == TN_OK ? loss : NULL;
}

/* What one more step leaves. */
static tn_list *go_on(const tni_check *c, tn_module *m, tn_optim *opt)
{
    if (!opt) return tni_check_pass(c, m, 1);
    const tn_tensor *loss =
        tn_optim_step_with(opt, tni_check_closure, &(tni_check_step){ c, m, opt });
    return loss ? tni_check_values(tn_list_new(), m, opt) : NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void find(tni_check *c, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (c->findings++ == 0) snprintf(c->first, sizeof c->first, "%s", line);
    if (c->here++ < SHOWN && c->report) fprintf(c->report, "%s\n", line);
}

static bool is_compared(const tni_way *w, const tn_entry *e)
{
    const bool buffer = e->kind == TN_BUFFER;
    if (w->compared == ALL || w->compared == RANKS) return true;
    if (w->compared == SAVED) return !buffer || e->persistent;
    if (w->compared == WIDE) return buffer && tni_stays_wide(e->role) && e->tensor->dtype == TN_F32;
    if (!e->owner || (buffer && tni_is(e->role, TN_CACHE))) return false;
    return w->compared == KEPT || !buffer || e->role != TN_PLAIN;
}

static const char *rule(const tni_way *w, const tn_entry *e)
{
    if (w->rule) return w->rule;
    if (e->kind == TN_BUFFER && tni_is(e->role, TN_CONSTANT)) return "no forward writes a constant";
    if (e->kind == TN_BUFFER && tni_moves_once(e->role))
        return "a statistic, counter or direction moves once for a batch, and only in training";
    return "want what a step changes in buffers or extra state";
}

/* Where n numbers differ most, and by more than bound times the largest; -1: nowhere. */
static int64_t worst(const double *got, const double *want, int64_t n, double bound)
{
    double largest = 0, most = -1;
    int64_t at = -1;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        bool same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i]));
        double apart = same ? 0 : fabs(got[i] - want[i]);
        if (isnan(apart)) apart = (double)INFINITY;
        if (apart > most && (bound == 0 || apart > bound * largest)) most = apart, at = i;
    }
    return at;
}

/* What a buffer did, seen from where it was before the step. */
static const char *verb(const tni_check *c, const tn_entry *e, int64_t at, double got, double want)
{
    const tn_entry *from = e->kind == TN_BUFFER ? tni_list_find(c->from, e->name) : NULL;
    const double *start = from ? tn_data(tni_f64_of(from->tensor)) : NULL;
    if (!start || tn_numel(from->tensor) != tn_numel(e->tensor)) return "differs";
    double moved = got - start[at], wanted = want - start[at];
    if (moved == 0 || wanted == 0) return moved == 0 ? "did not move" : "moved";
    return fabs(moved / wanted - 2) <= 0.6 ? "moved twice" : "differs";
}

static void compare(tni_check *c, const tni_way *w, tn_tensor *got, const tn_entry *e)
{
    const bool near =
        w->near && (w->compared == RANKS ? !strncmp(e->name, "gradient of ", 12)
                                         : w->compared == KEPT || tni_is(e->role, TN_STATISTIC));
    const char *when = strncmp(w->name + 1, "n ", 2) ? "when " : ""; /* not "in ...", "on ..." */
    if (got && !near && tn_hash(got) == tn_hash(e->tensor)) return;
    if (!got || !tni_shape_equal(&got->shape, &e->tensor->shape) ||
        (!near && got->dtype != e->tensor->dtype)) {
        find(c, "%s: is %s %s%s, not as %s; %s", e->name,
             got ? tn_dtype_name(got->dtype) : "absent", when, w->name, w->other, rule(w, e));
        return;
    }
    const double *is = tn_data(tni_f64_of(got)), *want = is ? tn_data(tni_f64_of(e->tensor)) : NULL;
    int64_t at = want ? worst(is, want, tn_numel(got), near ? NEAR : 0) : -1;
    if (at >= 0)
        find(c, "%s: %s %s%s: %.7g where %s gives %.7g at element %" PRId64 "; %s", e->name,
             w->compared == KEPT ? "differs" : verb(c, e, at, is[at], want[at]), when, w->name,
             is[at], w->other, want[at], at, rule(w, e));
}

void tni_check_judge(tni_check *c, const tni_way *w, const tn_list *got, const tn_list *want)
{
    int n = 0;
    for (int i = 0; got && want && i < want->n; i++) {
        const tn_entry *e = &want->entry[i], *same = tni_list_find(got, e->name);
        if (!is_compared(w, e)) continue;
        compare(c, w, same ? same->tensor : NULL, e);
        n++;
    }
    for (int i = 0; got && want && i < got->n; i++) {
        const tn_entry *e = &got->entry[i];
        if (is_compared(w, e) && !tni_list_find(want, e->name))
            find(c, "%s: is there %s, not as %s; %s", e->name, w->name, w->other, rule(w, e));
    }
    const tn_status status = tn_error_status();
    if (status == TN_E_NOMEM || status == TN_E_IO) c->status = status; /* not the model's fault */
    if (status != TN_OK && status != TN_E_UNSUPPORTED)
        find(c, "(step): fails %s: %s", w->name, tn_error());
    else if (status != TN_OK && c->report)
        fprintf(c->report, "%s: skipped: %s\n", w->name, tn_error());
    else if (c->report && c->here)
        fprintf(c->report, "%s: %d tensors, %d findings\n", w->name, n, c->here);
    else if (c->report)
        fprintf(c->report, "%s: %d tensors, as %s\n", w->name, n, w->other);
    if (c->status == TN_OK) tn_error_clear();
    c->here = 0;
}

/* ---- ways of one step ------------------------------------------------------------------------ */

/* Of every module, one within the other. */
static tn_status recompute(tn_module *m, void *user)
{
    (void)user;
    return tn_module_set_recompute(m, true);
}

tn_status tni_check_recompute(tn_module *m)
{
    return tn_module_apply(m, recompute, NULL);
}

static tn_status narrow(tn_module *m)
{
    return tn_module_to_dtype(m, TN_BF16);
}

static const char reproducible[] = "want random numbers of the default generator, and nothing "
                                   "outside of the model that changes";
static const tni_way single[] = {
    { "run again", "the first run", reproducible, ALL, false, NULL },
    { "recomputed", "plain", NULL, ALL, false, tni_check_recompute },
    { "in eval mode", "before", NULL, FIXED, false, tn_eval },
    { "frozen", "before", NULL, FIXED, false, tn_module_freeze },
    { "cast to bf16", "before", "statistics and directions stay f32", WIDE, false, narrow },
};

static void check_single(tni_check *c, const tni_way *w)
{
    tn_module *m = tni_check_fresh(c);
    const tn_list *got = NULL;
    tn_status status = m && w->prepare ? w->prepare(m) : tni_pending();
    c->backward = w->compared == ALL;
    if (status == TN_OK)
        got = w->compared == WIDE ? tni_check_values(tn_list_new(), m, NULL)
                                  : tni_check_pass(c, m, 1);
    tni_check_judge(c, w, got, c->backward ? c->plain : c->from);
    c->backward = true;
    tn_module_drop(m);
}

/* ---- a second step --------------------------------------------------------------------------- */

static const tni_way resumed = { "saved and resumed", "going on", NULL, SAVED, false, NULL };
static const tni_way cloned = { "cloned", "the original", NULL, ALL, false, NULL };
static const tni_way averages[] = {
    { "averaged", "the rule", "parameters are averaged, buffers copied", KEPT, true, NULL },
    { "averaged with its buffers", "the rule",
      "plain buffers and statistics are averaged, others copied", KEPT, true, NULL },
};

/* A float that grew by 1 in each step is a count: c->plain is after the first one. */
static bool counts(const tni_check *c, const tn_entry *e)
{
    const tn_entry *start = tni_list_find(c->start, e->name);
    const tn_entry *first = tni_list_find(c->plain, e->name);
    if (!start || !first || tn_numel(e->tensor) != 1) return false;
    double from = tn_item(start->tensor), to = tn_item(e->tensor);
    return from == floor(from) && tn_item(first->tensor) - from == 1 &&
           to - from == (c->opt ? 3 : 2);
}

/* What an average with decay 1/2 holds after two updates. */
static tn_list *mean(tni_check *c, const tn_list *first, const tn_list *last, int buffers)
{
    tn_list *list = tn_list_new();
    tn_status status = list ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < last->n; i++) {
        tn_entry e = last->entry[i];
        const tn_entry *a = tni_list_find(first, e.name);
        const bool buffer = e.kind == TN_BUFFER;
        if (a && tni_has_mean(e.role, e.tensor->dtype) && (buffers || !buffer)) {
            if (buffer && counts(c, &e))
                find(c, "%s: counts steps, and is averaged with buffers; want TN_COUNTER", e.name);
            e.tensor = tn_mul_scalar(tn_add(tni_f64_of(a->tensor), tni_f64_of(e.tensor)), 0.5);
        }
        status = e.tensor ? tni_list_push(list, "", "", e.name, e) : tni_pending();
    }
    return status == TN_OK ? list : NULL;
}

/* A step of what a checkpoint brings back. */
static tn_list *resume(const tni_check *c, tn_module *m, tn_optim *opt)
{
    char path[PATH_MAX];
    const char *place = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/tenon-check-XXXXXX", place && *place ? place : "/tmp");
    const int file = mkstemp(path);
    if (file < 0) return tni_fail(TN_E_IO, "tn_check_state: " TNI_PATH ": cannot be made", path);
    close(file);
    tn_checkpoint from = { .model = m, .optimizer = opt, .allow_nonfinite = true }, to = { 0 };
    tn_status status = tn_checkpoint_save(&from, path);
    to.model = status == TN_OK ? tni_check_fresh(c) : NULL;
    if (to.model && opt) to.optimizer = tni_check_optim(c, c->opt, to.model);
    bool ready = to.model && (!opt || to.optimizer);
    if (ready) ready = tn_checkpoint_load(&to, path) == TN_OK;
    unlink(path);
    tn_list *list = ready ? go_on(c, to.model, to.optimizer) : NULL;
    tn_optim_free(to.optimizer);
    tn_module_drop(to.model);
    return list;
}

/* The optimizer's step, or what stands for one. */
static tn_status change_parameters(const tni_check *c, tn_module *m, tn_optim *opt)
{
    if (opt) return go_on(c, m, opt) ? TN_OK : tni_pending();
    tn_list *parameters = tn_parameters(m);
    tn_status status = parameters ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < parameters->n; i++) {
        tn_tensor *t = parameters->entry[i].tensor;
        if (tn_dtype_is_float(t->dtype)) TN_NO_GRAD status = tn_mul_scalar_(t, 0.75);
    }
    return status;
}

/* m has done its first step, which left c->plain, and opt (NULL: none) none yet. */
static void check_second(tni_check *c, tn_module *m, tn_optim *opt)
{
    tni_generator_state generator;
    tn_module *average[2] = { NULL }, *copy = NULL;
    tn_optim *like = NULL;
    tn_list *first = tni_check_values(tn_list_new(), m, NULL), *last = NULL;
    tn_status status = first ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < 2; i++) {
        const tn_ema_options o = { .decay = 0.5, .average_buffers = i };
        average[i] = tn_ema_new(m, o);
        status = average[i] ? tn_ema_update(average[i], m) : tni_pending();
    }
    if (status == TN_OK) status = change_parameters(c, m, opt);
    tni_generator_get(tn_default_generator(), &generator);
    if (status == TN_OK) copy = tn_module_clone(m);
    if (copy && opt) like = tni_check_optim(c, opt, copy);
    bool ready = copy && (!opt || like) && (c->from = tni_check_values(tn_list_new(), m, opt));
    if (ready) last = go_on(c, m, opt);
    if (!last) c->status = tni_pending();
    for (int i = 0; c->status == TN_OK && i < 2; i++) {
        tni_generator_put(tn_default_generator(), &generator);
        tni_check_judge(c, i ? &cloned : &resumed, i ? go_on(c, copy, like) : resume(c, copy, like),
                        last);
    }
    for (int i = 0; c->status == TN_OK && i < 2; i++) {
        status = tn_ema_update(average[i], m);
        tn_list *got = status == TN_OK
                           ? tni_check_values(tn_list_new(), tn_ema_module(average[i]), NULL)
                           : NULL;
        tni_check_judge(c, &averages[i], got, mean(c, first, last, i));
    }
    for (int i = 0; i < 2; i++) tn_module_drop(average[i]);
    tn_optim_free(like);
    tn_module_drop(copy);
}

/* ---- the call -------------------------------------------------------------------------------- */

static const tni_way itself = {
    "used for its copies", "before", "want step to use the module that it is given", ALL, 0, NULL
};

static void check_all(tni_check *c)
{
    tn_module *m = tni_check_fresh(c);
    tn_optim *opt = m && c->opt ? tni_check_optim(c, c->opt, m) : NULL;
    const bool ready = m && (!c->opt || opt);
    c->from = c->start = ready ? tni_check_values(tn_list_new(), c->model, c->opt) : NULL;
    c->plain = c->start ? tni_check_pass(c, m, 1) : NULL;
    if (!c->plain) c->status = tni_pending();
    tni_generator_state after;
    tni_generator_get(tn_default_generator(), &after);
    for (size_t i = 0; c->status == TN_OK && i < sizeof single / sizeof *single; i++)
        TN_SCOPE check_single(c, &single[i]);
    static const struct {
        int n;
        bool recomputed;
    } cuts[] = { { 2, false }, { 4, false }, { 2, true } };
    for (int i = 0; c->status == TN_OK && i < 3; i++)
        TN_SCOPE tni_check_parts(c, cuts[i].n, cuts[i].recomputed);
    if (tn_parallel_size() > 1) TN_SCOPE tni_check_ranks(c); /* also where this rank has failed */
    const tn_list *parameters = tn_parameters(c->model);
    if (parameters && parameters->n > 0) c->sample = parameters->entry->tensor;
    if (c->status == TN_OK && c->sample && tn_device_of(c->sample).type != TN_CPU)
        TN_SCOPE tni_check_captured(c);
    tni_generator_put(tn_default_generator(), &after);
    if (c->status == TN_OK) check_second(c, m, opt);
    tn_optim_free(opt);
    tn_module_drop(m);
    tni_generator_put(tn_default_generator(), &c->generator);
    c->from = c->start;
    if (c->status == TN_OK)
        tni_check_judge(c, &itself, tni_check_values(tn_list_new(), c->model, c->opt), c->start);
}

tn_status tn_check_state(FILE *report, tn_module *model, tn_optim *opt, tn_check_step step,
                         void *user)
{
    static const char f[] = "tn_check_state";
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    tn_status status = tni_module_check(f, model);
    if (status != TN_OK) return status;
    if (opt && tni_gone(opt)) return tni_poison(f, "opt");
    if (!step)
        return tni_error(TN_E_INVALID, "%s: step is NULL: want a function that makes the loss", f);
    if (tni_host_refused(f, "compares values", "it called outside of the step")) return TN_E_STATE;
    tni_check c = {
        .report = report, .model = model, .opt = opt, .step = step, .user = user, .backward = true
    };
    tni_watcher *watcher = tni_watch(NULL);
    tni_batch *batch = tni_batch_now; /* put aside, as the caller's is none of ours */
    bool grad = tn_set_grad_enabled(true);
    tn_scope scope = tn_scope_begin();
    tni_batch_now = NULL;
    tni_generator_get(tn_default_generator(), &c.generator);
    tn_error_clear();
    check_all(&c);
    tn_scope_end(scope);
    tn_set_grad_enabled(grad);
    tni_batch_now = batch;
    tni_watch(watcher);
    if (c.status != TN_OK || c.findings == 0) return c.status;
    return tni_error(TN_E_STATE, "%s: %d findings, the first: %s", f, c.findings, c.first);
}
