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

/* ---- copies, and what they hold -------------------------------------------------------------- */

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

static tn_optim *optim_like(const tni_check *c, tn_optim *from, tn_module *m)
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
        if (g == 0) made = tn_optim_new(type, list, o);
        status = g ? tn_optim_add_group(made, list, more) : tni_pending();
    }
    if (status == TN_OK) status = tn_optim_load_state_dict(made, tn_optim_state_dict(from));
    return made;
}

tni_check_copy tni_check_copies(const tni_check *c, tn_module *m, tn_optim *opt)
{
    tni_generator_put(tn_default_generator(), &c->generator);
    tni_check_copy copy = { c, tn_module_clone(m), NULL };
    if (copy.m && opt) copy.opt = optim_like(c, opt, copy.m);
    return copy;
}

void tni_check_drop(const tni_check_copy *copy)
{
    tn_optim_free(copy->opt);
    tn_module_drop(copy->m);
}

void tni_check_push(tn_list *list, const char *prefix, tn_entry e)
{
    e.tensor = tn_clone(tn_to(tn_contiguous(tn_detach(e.tensor)), tn_cpu()));
    if (list && e.tensor) tni_disregard(tni_list_push(list, prefix, "", e.name, e));
}

tn_list *tni_check_values(tn_list *list, tn_module *m, tn_optim *opt)
{
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), generator);
    tn_entry bytes = { .name = "(default generator)" };
    bytes.tensor = tn_from_data(generator, TN_SHAPE(sizeof generator), TN_U8);
    const tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    const tn_list *state = opt ? tn_optim_state_dict(opt) : NULL;
    for (int i = 0; all && i < all->n; i++) {
        tn_entry e = all->entry[i];
        tni_check_push(list, "", e);
        e = (tn_entry){ .name = e.name,
                        .tensor = e.kind == TN_PARAMETER ? tn_grad(e.tensor) : TN_NONE };
        if (!tni_none(e.tensor)) tni_check_push(list, "gradient of ", e);
    }
    for (int i = 0; state && i < state->n; i++)
        tni_check_push(list, "optimizer's ", state->entry[i]);
    tni_check_push(list, "", bytes);
    return tni_pending() == TN_OK ? list : NULL;
}

/* ---- a step ---------------------------------------------------------------------------------- */

void tni_check_part(const tni_check *c, tn_module *m, int part, int parts, tn_list *losses)
{
    char name[40] = "(loss)";
    if (parts > 1) snprintf(name, sizeof name, "(loss of part %d)", part);
    if (tni_pending() != TN_OK) return;
    TN_SCOPE
    {
        tn_tensor *loss = c->step(m, part, parts, c->user);
        tn_status status =
            loss ? tni_pending() : tni_missing("tn_check_state: the loss is NULL: want one");
        if (status == TN_OK && c->backward) status = tn_backward(loss);
        if (status == TN_OK) tni_check_push(losses, "", (tn_entry){ .name = name, .tensor = loss });
        tn_set_grad_enabled(true);
    }
}

tn_list *tni_check_pass(const tni_check *c, tn_module *m, int n)
{
    tn_list *list = tn_list_new();
    if (tn_module_zero_grad(m) != TN_OK) return NULL;
    if (n == 1)
        tni_check_part(c, m, 0, 1, list);
    else
        TN_MICRO_BATCHES(part, n) tni_check_part(c, m, part, n, list);
    return tni_check_values(list, m, NULL);
}

tn_tensor *tni_check_closure(void *copy)
{
    const tni_check_copy *s = copy;
    if (tn_module_zero_grad(s->m) != TN_OK) return NULL;
    tn_tensor *loss = s->c->step(s->m, 0, 1, s->c->user);
    return loss && tn_backward(loss) == TN_OK ? loss : NULL;
}

/* What one more step leaves. */
static tn_list *go_on(tni_check_copy *s)
{
    if (!s->opt || tni_pending() != TN_OK) return tni_check_pass(s->c, s->m, 1);
    return tn_optim_step_with(s->opt, tni_check_closure, s)
               ? tni_check_values(tn_list_new(), s->m, s->opt)
               : NULL;
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
    if (w->compared <= RANKS) return true;
    if (w->compared == SAVED) return !buffer || e->persistent;
    if (w->compared == WIDE) return buffer && tni_stays_wide(e->role) && e->tensor->dtype == TN_F32;
    if (!e->owner || (buffer && tni_is(e->role, TN_CACHE))) return false;
    return w->compared == MEANS || !buffer || e->role != TN_PLAIN;
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
    const bool near = w->compared == MEANS ||
                      (w->compared == PARTS && tni_is(e->role, TN_STATISTIC)) ||
                      (w->compared == RANKS && !strncmp(e->name, "gradient of ", 12));
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
             w->compared == MEANS ? "differs" : verb(c, e, at, is[at], want[at]), when, w->name,
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
    { "run again", "the first run", reproducible, ALL, NULL },
    { "recomputed", "plain", NULL, ALL, tni_check_recompute },
    { "in eval mode", "before", NULL, FIXED, tn_eval },
    { "frozen", "before", NULL, FIXED, tn_module_freeze },
    { "cast to bf16", "before", "statistics and directions stay f32", WIDE, narrow },
};

static void check_single(tni_check *c, const tni_way *w)
{
    const tni_check_copy s = tni_check_copies(c, c->model, NULL);
    const tn_list *got = NULL;
    c->backward = w->compared == ALL;
    if (s.m && (!w->prepare || w->prepare(s.m) == TN_OK))
        got = w->compared == WIDE ? tni_check_values(tn_list_new(), s.m, NULL)
                                  : tni_check_pass(c, s.m, 1);
    tni_check_judge(c, w, got, c->backward ? c->plain : c->from);
    c->backward = true;
    tni_check_drop(&s);
}

/* ---- a second step --------------------------------------------------------------------------- */

static const tni_way second[] = {
    { "saved and resumed", "going on", NULL, SAVED, NULL },
    { "cloned", "the original", NULL, ALL, NULL },
    { "averaged", "the rule", "parameters are averaged, buffers copied", MEANS, NULL },
    { "averaged with its buffers", "the rule",
      "plain buffers and statistics are averaged, others copied", MEANS, NULL },
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
static tn_list *mean(tni_check *c, const tn_list *first, const tn_list *last, bool buffers)
{
    tn_list *list = tn_list_new();
    for (int i = 0; i < last->n; i++) {
        tn_entry e = last->entry[i];
        const tn_entry *a = tni_list_find(first, e.name);
        const bool buffer = e.kind == TN_BUFFER;
        if (a && tni_has_mean(e.role, e.tensor->dtype) && (buffers || !buffer)) {
            if (buffer && counts(c, &e))
                find(c, "%s: counts steps, and is averaged with buffers; want TN_COUNTER", e.name);
            e.tensor = tn_mul_scalar(tn_add(tni_f64_of(a->tensor), tni_f64_of(e.tensor)), 0.5);
        }
        tni_check_push(list, "", e);
    }
    return tni_pending() == TN_OK ? list : NULL;
}

/* A step of what a checkpoint brings back. */
static tn_list *resume(const tni_check *c, const tni_check_copy *s)
{
    char path[PATH_MAX];
    const char *place = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/tenon-check-XXXXXX", place && *place ? place : "/tmp");
    const int file = mkstemp(path);
    if (file < 0) return tni_fail(TN_E_IO, "tn_check_state: " TNI_PATH ": cannot be made", path);
    close(file);
    tn_checkpoint from = { .model = s->m, .optimizer = s->opt, .allow_nonfinite = true };
    tn_status status = tn_checkpoint_save(&from, path);
    tni_check_copy copy = tni_check_copies(c, c->model, c->opt);
    tn_checkpoint to = { .model = copy.m, .optimizer = copy.opt };
    if (status == TN_OK && tni_pending() == TN_OK) status = tn_checkpoint_load(&to, path);
    unlink(path);
    tn_list *list = status == TN_OK ? go_on(&copy) : NULL;
    tni_check_drop(&copy);
    return list;
}

/* s has done its first step, which left c->plain, and its optimizer none yet. */
static void check_second(tni_check *c, tni_check_copy *s)
{
    tni_generator_state generator;
    tn_module *average[2] = { NULL };
    tn_list *first = tni_check_values(tn_list_new(), s->m, NULL);
    for (int i = 0; i < 2; i++) {
        average[i] = tn_ema_new(s->m, (tn_ema_options){ .decay = 0.5, .average_buffers = i });
        tni_disregard(tn_ema_update(average[i], s->m));
    }
    tn_list *parameters = s->opt ? NULL : tn_parameters(s->m);
    if (s->opt) go_on(s);
    for (int i = 0; parameters && i < parameters->n; i++) { /* in place of an optimizer's step */
        tn_tensor *t = parameters->entry[i].tensor;
        if (tn_dtype_is_float(t->dtype)) TN_NO_GRAD tni_disregard(tn_mul_scalar_(t, 0.75));
    }
    tni_generator_get(tn_default_generator(), &generator);
    tni_check_copy copy = tni_check_copies(c, s->m, s->opt);
    tni_generator_put(tn_default_generator(), &generator);
    c->from = tni_check_values(tn_list_new(), s->m, s->opt);
    tn_list *last = go_on(s);
    if (!last) c->status = tni_pending();
    for (int i = 0; c->status == TN_OK && i < 4; i++) {
        tn_list *got = NULL;
        tni_generator_put(tn_default_generator(), &generator);
        if (i < 2)
            got = i ? go_on(&copy) : resume(c, &copy);
        else if (tn_ema_update(average[i - 2], s->m) == TN_OK)
            got = tni_check_values(tn_list_new(), tn_ema_module(average[i - 2]), NULL);
        tni_check_judge(c, &second[i], got, i < 2 ? last : mean(c, first, last, i == 3));
    }
    for (int i = 0; i < 2; i++) tn_module_drop(average[i]);
    tni_check_drop(&copy);
}

/* ---- the call -------------------------------------------------------------------------------- */

static const tni_way itself = { "used for its copies", "before",
                                "want step to use the module that it is given", ALL, NULL };

static void check_all(tni_check *c)
{
    tni_check_copy s = tni_check_copies(c, c->model, c->opt);
    c->from = c->start = tni_check_values(tn_list_new(), c->model, c->opt);
    c->plain = c->start ? tni_check_pass(c, s.m, 1) : NULL;
    if (!c->plain) c->status = tni_pending();
    tni_generator_state after;
    tni_generator_get(tn_default_generator(), &after);
    for (size_t i = 0; c->status == TN_OK && i < sizeof single / sizeof *single; i++)
        TN_SCOPE check_single(c, &single[i]);
    for (int i = 0; c->status == TN_OK && i < 3; i++)
        TN_SCOPE tni_check_parts(c, i == 1 ? 4 : 2, i == 2);
    if (tn_parallel_size() > 1) TN_SCOPE tni_check_ranks(c); /* also where this rank has failed */
    const tn_list *parameters = c->status == TN_OK ? tn_parameters(c->model) : NULL;
    tn_device device = tn_cpu();
    if (parameters && parameters->n > 0) device = tn_device_of(parameters->entry->tensor);
    if (device.type != TN_CPU) TN_SCOPE tni_check_captured(c, device);
    tni_generator_put(tn_default_generator(), &after);
    if (c->status == TN_OK) check_second(c, &s);
    tni_check_drop(&s);
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
