/*
 * check_state.c - tn_check_state: one training step on copies of a model, in every way that there
 * is to run it. What differs from the plain way breaks a rule of docs/buffers.md.
 *
 * Bits must be equal, but where a computation of our own in double says what is right: averages,
 * statistics of a batch in parts, means of the ranks' gradients. What fails leaves its error
 * pending, with which no step is run and no list comes out.
 */
#include <limits.h>
#include <tenon/capture.h>
#include <tenon/io.h>
#include <tenon/layers.h>
#include <tenon/optimizers.h>
#include <tenon/parallel.h>
#include <unistd.h>

#include "ext/diagnose/explain.h"
#include "nn/micro_batches.h"
#include "tensor/random.h"

enum { SHOWN = 8 }; /* findings of one way; any more are only counted */
#define NEAR 1e-5   /* of the largest element */

/* What is compared. */
typedef enum compared {
    ALL,
    PARTS, /* all; statistics are near */
    RANKS, /* all; the mean of gradients is near */
    SAVED, /* not buffers that are in no file */
    MEANS, /* parameters, and buffers but caches: near */
    FIXED, /* and not plain buffers: what no forward out of training may write */
    WIDE   /* of f32 buffers those that a cast leaves so; no step is run */
} compared;

/* A way to run a step. */
typedef struct way {
    const char *name, *other; /* "recomputed", and what it is compared with */
    const char *rule;         /* where a buffer's role has none */
    compared compared;
    tn_status (*prepare)(tn_module *m);
} way;

typedef struct check {
    FILE *report; /* NULL: none */
    tn_module *model;
    tn_optim *opt; /* the caller's; NULL: none */
    tn_check_step step;
    void *user;
    bool backward;      /* of the loss */
    tn_status status;   /* what ends the check */
    int findings, here; /* of all ways; of this one */
    char first[1024];
    tn_list *start, *plain; /* before the first step, and after it */
    tn_list *from;          /* before the step that is looked at */
    tni_generator_state generator;
} check;

/* ---- copies, and what they hold -------------------------------------------------------------- */

/* Copies that are trained. */
typedef struct trained {
    const check *c;
    tn_module *m;  /* NULL: failed */
    tn_optim *opt; /* NULL: none, or failed */
} trained;

/* The entries of group g of the model's optimizer, with the copy's tensors. */
static tn_list *group_of(tn_module *model, const tn_optim *opt, int g, tn_module *copy)
{
    const tn_list *own = tn_parameters(model), *copies = tn_parameters(copy);
    tn_list *list = own && copies ? tn_list_new() : NULL;
    for (const tni_optim_param *p = opt->param; list && p < opt->param + opt->n; p++) {
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

tn_optim *tni_optim_like(tn_optim *opt, tn_module *model, tn_module *copy)
{
    const tn_optim_type *type = opt->type;
    tn_optim *made = NULL;
    tn_status status = TN_OK;
    for (int g = 0; status == TN_OK && g < opt->n_groups; g++) {
        const tni_optim_group *group = &opt->group[g];
        const tn_list *list = group_of(model, opt, g, copy);
        tn_optim_options o = { group->lr, group->weight_decay, .use_lr = true, .user = opt->user };
        tn_group_options more = { group->lr, group->weight_decay, .use_lr = true };
        for (int i = 0; i < TN_OPTIM_NUMBERS; i++)
            o.set[i] = more.set[i] = (tn_number){ type->number[i].name, group->number[i] };
        if (g == 0) made = tn_optim_new(type, list, o);
        status = g ? tn_optim_add_group(made, list, more) : tni_pending();
    }
    if (status == TN_OK) status = tn_optim_load_state_dict(made, tn_optim_state_dict(opt));
    return made;
}

/* Copies of m and opt (NULL: none), which are the caller's or like them, with the generator where
 * it was: drop. */
static trained copies(const check *c, tn_module *m, tn_optim *opt)
{
    tni_generator_put(tn_default_generator(), &c->generator);
    trained copy = { c, tn_module_clone(m), NULL };
    if (copy.m && opt) copy.opt = tni_optim_like(opt, m, copy.m);
    return copy;
}

static void drop(const trained *copy)
{
    tn_optim_free(copy->opt);
    tn_module_drop(copy->m);
}

/* A variable of copies, which are dropped when the block is left. */
#define COPIES(name, ...) trained TN_WHEN_LEFT(drop) name = copies(__VA_ARGS__)

/* Adds a copy of an entry. */
static void push(tn_list *list, const char *prefix, tn_entry e)
{
    e.tensor = tn_clone(tn_to(tn_contiguous(tn_detach(e.tensor)), tn_cpu()));
    if (list && e.tensor) tni_disregard(tni_list_push(list, prefix, "", e.name, e));
}

/* Adds copies of all that m and opt (NULL: none) have, and of the generator. Returns list. */
static tn_list *values(tn_list *list, tn_module *m, tn_optim *opt)
{
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), generator);
    tn_tensor *bytes = tn_from_data(generator, TN_SHAPE(sizeof generator), TN_U8);
    const tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    const tn_list *state = opt ? tn_optim_state_dict(opt) : NULL;
    for (const tn_entry *e = all ? all->entry : NULL; e && e < all->entry + all->n; e++) {
        tn_tensor *grad = e->kind == TN_PARAMETER ? tn_grad(e->tensor) : TN_NONE;
        push(list, "", *e);
        if (!tni_none(grad))
            push(list, "gradient of ", (tn_entry){ .name = e->name, .tensor = grad });
    }
    for (int i = 0; state && i < state->n; i++) push(list, "optimizer's ", state->entry[i]);
    push(list, "", (tn_entry){ .name = "(default generator)", .tensor = bytes });
    return tni_pending() == TN_OK ? list : NULL;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* A pass by one part, whose loss is added to losses. */
static void run_part(const check *c, tn_module *m, int part, int parts, tn_list *losses)
{
    const tni_phrase name = tni_phrase_of(parts > 1 ? "(loss of part %d)" : "(loss)", part);
    if (tni_pending() != TN_OK) return;
    TN_SCOPE
    {
        tn_tensor *loss = c->step(m, part, parts, c->user);
        tn_status status =
            loss ? tni_pending() : tni_missing("tn_check_state: the loss is NULL: want one");
        if (status == TN_OK && c->backward) status = tn_backward(loss);
        if (status == TN_OK) push(losses, "", (tn_entry){ .name = name.s, .tensor = loss });
        tn_set_grad_enabled(true);
    }
}

/* What a batch of n parts leaves. */
static tn_list *pass(const check *c, tn_module *m, int n)
{
    tn_list *list = tn_list_new();
    if (tn_module_zero_grad(m) != TN_OK) return NULL;
    if (n == 1)
        run_part(c, m, 0, 1, list);
    else
        TN_MICRO_BATCHES(part, n) run_part(c, m, part, n, list);
    return values(list, m, NULL);
}

static tn_tensor *closure(void *copy)
{
    const trained *s = copy;
    if (tn_module_zero_grad(s->m) != TN_OK) return NULL;
    tn_tensor *loss = s->c->step(s->m, 0, 1, s->c->user);
    return loss && tn_backward(loss) == TN_OK ? loss : NULL;
}

/* What one more step leaves. */
static tn_list *go_on(trained *s)
{
    if (!s->opt || tni_pending() != TN_OK) return pass(s->c, s->m, 1);
    return tn_optim_step_with(s->opt, closure, s) ? values(tn_list_new(), s->m, s->opt) : NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void find(check *c, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (c->findings++ == 0) snprintf(c->first, sizeof c->first, "%s", line);
    if (c->here++ < SHOWN && c->report) fprintf(c->report, "%s\n", line);
}

static bool is_compared(const way *w, const tn_entry *e)
{
    const bool buffer = e->kind == TN_BUFFER;
    if (w->compared <= RANKS) return true;
    if (w->compared == SAVED) return !buffer || e->persistent;
    if (w->compared == WIDE) return buffer && tni_stays_wide(e->role) && e->tensor->dtype == TN_F32;
    if (!e->owner || (buffer && tni_is(e->role, TN_CACHE))) return false;
    return w->compared == MEANS || !buffer || e->role != TN_PLAIN;
}

static const char *rule(const way *w, const tn_entry *e)
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
static const char *verb(const check *c, const tn_entry *e, int64_t at, double got, double want)
{
    const tn_entry *from = e->kind == TN_BUFFER ? tni_list_find(c->from, e->name) : NULL;
    const double *start = from ? tn_data(tni_f64_of(from->tensor)) : NULL;
    if (!start || tn_numel(from->tensor) != tn_numel(e->tensor)) return "differs";
    double moved = got - start[at], wanted = want - start[at];
    if (moved == 0 || wanted == 0) return moved == 0 ? "did not move" : "moved";
    return fabs(moved / wanted - 2) <= 0.6 ? "moved twice" : "differs";
}

static void compare(check *c, const way *w, tn_tensor *got, const tn_entry *e)
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

/* Says what differs. NULL: the way failed, which is a finding, but for what the step cannot do. */
static void judge(check *c, const way *w, const tn_list *got, const tn_list *want)
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

static tn_status recompute_all(tn_module *m)
{
    return tn_module_apply(m, recompute, NULL);
}

static tn_status narrow(tn_module *m)
{
    return tn_module_to_dtype(m, TN_BF16);
}

static const char reproducible[] = "want random numbers of the default generator, and nothing "
                                   "outside of the model that changes";
static const way single[] = {
    { "run again", "the first run", reproducible, ALL, NULL },
    { "recomputed", "plain", NULL, ALL, recompute_all },
    { "in eval mode", "before", NULL, FIXED, tn_eval },
    { "frozen", "before", NULL, FIXED, tn_module_freeze },
    { "cast to bf16", "before", "statistics and directions stay f32", WIDE, narrow },
};

static void check_single(check *c, const way *w)
{
    COPIES(s, c, c->model, NULL);
    const tn_list *got = NULL;
    c->backward = w->compared == ALL;
    if (s.m && (!w->prepare || w->prepare(s.m) == TN_OK))
        got = w->compared == WIDE ? values(tn_list_new(), s.m, NULL) : pass(c, s.m, 1);
    judge(c, w, got, c->backward ? c->plain : c->from);
    c->backward = true;
}

/* ---- in parts -------------------------------------------------------------------------------- */

/* Each part runs by itself, from the same buffers. Moments, mean m_i and unbiased v_i of n_i
 * values, give those of all N values by definition: with A = sum n_i m_i and B = sum ((n_i - 1) v_i
 * + n_i m_i^2),
 *
 *     mean = A / N,    var = (B / N - mean^2) N / (N - 1)
 */

/* What the parts made of a buffer. */
typedef struct share {
    tn_tensor *sum, *squares; /* of their values; or of the numbers behind moments, else NULL */
    double n, momentum;
    bool var; /* it is the variance of moments */
} share;

static void add(share *s, const tn_entry *e, const tni_moved *moved)
{
    if (moved->n == 0 || (moved->buffer != e->tensor && moved->var != e->tensor)) return;
    if (s->sum && !tni_is(e->role, TN_STATISTIC)) return; /* the first part counts */
    const bool statistic = tni_is(moved->role, TN_STATISTIC);
    tn_tensor *x = statistic ? tni_f64_of(moved->value) : tn_detach(moved->value);
    if (moved->var) {
        tn_tensor *squares = tn_add(moved->spread, tn_mul_scalar(tn_square(x), moved->n));
        s->squares = s->squares ? tn_add(s->squares, squares) : squares;
        x = tn_mul_scalar(x, moved->n);
    }
    s->sum = s->sum ? tn_add(s->sum, x) : x;
    s->var = moved->var == e->tensor;
    s->momentum = moved->momentum;
    s->n += moved->n;
}

/* What a buffer, which is as before the parts, becomes by them; NULL: nothing, or failed. */
static tn_tensor *after(const share *s, const tn_entry *e)
{
    if (!s->sum || !tni_is(e->role, TN_STATISTIC)) return s->sum;
    tn_tensor *now = tn_div_scalar(s->sum, s->n), *was = tni_f64_of(e->tensor);
    if (!s->squares) return now;
    if (s->var) now = tn_sub(tn_div_scalar(s->squares, s->n), tn_square(now));
    if (s->var) now = tn_mul_scalar(now, s->n / (s->n - 1));
    return tn_add(tn_mul_scalar(was, 1 - s->momentum), tn_mul_scalar(now, s->momentum));
}

/* A part as a batch by itself; all buffers, also those that no call has met, are then as before. */
static void take_part(const check *c, tn_module *m, const tn_list *buffers, int part, int parts,
                      share *all, tn_list *list)
{
    if (tn_micro_batches_begin(1) < 0) return;
    tni_batch *b = tni_batch_now;
    for (const tn_entry *e = buffers->entry; e && e < buffers->entry + buffers->n; e++) {
        const tni_slot *slot = tni_moves_once(e->role) ? tni_slot_of(e->owner, e->name) : NULL;
        TN_NO_GRAD if (slot) tni_batch_add(b, e->owner, slot, e->tensor, NULL);
    }
    run_part(c, m, part, parts, list);
    tn_status status = tni_pending();
    if (status == TN_OK && tni_batch_now != b)
        status = tni_error(TN_E_STATE, "tn_check_state: the step has ended the batch that it is a "
                                       "part of: want tn_micro_batches_cancel outside of it");
    if (status == TN_OK) status = tni_batch_settle(b, true);
    for (int i = 0; status == TN_OK && i < b->n; i++)
        for (int k = 0; k < buffers->n; k++)
            TN_NO_GRAD add(&all[k], &buffers->entry[k], &b->moved[i]);
    tn_micro_batches_cancel();
}

/* What a batch in parts should leave. */
static tn_list *parts_by_hand(const check *c, tn_module *m, int parts)
{
    tn_list *list = tn_list_new(), *buffers = tn_buffers(m);
    const size_t n = buffers ? (size_t)buffers->n : 0;
    TNI_ZEROED(share, all, n + 1);
    for (int part = 0; part < parts && tni_pending() == TN_OK; part++)
        take_part(c, m, buffers, part, parts, all, list);
    list = values(list, m, NULL);
    for (size_t i = 0; list && i < n; i++) {
        const tn_entry *e = &buffers->entry[i];
        tn_tensor *now = NULL;
        TN_NO_GRAD now = after(&all[i], e);
        if (now) tni_disregard(tn_list_set(list, e->name, tn_to(now, tn_cpu())));
    }
    return tni_pending() == TN_OK ? list : NULL;
}

static void check_parts(check *c, int n, bool recomputed)
{
    const tni_phrase name = tni_phrase_of("in %d parts%s", n, recomputed ? ", recomputed" : "");
    const way w = { name.s, "each by itself", NULL, PARTS, NULL };
    COPIES(hand, c, c->model, NULL);
    tn_list *want = parts_by_hand(c, hand.m, n), *got = NULL;
    COPIES(s, c, c->model, NULL);
    if (want && (!recomputed || recompute_all(s.m) == TN_OK)) got = pass(c, s.m, n);
    judge(c, &w, got, want);
}

/* ---- captured, on a GPU ---------------------------------------------------------------------- */

static tn_tensor *whole_step(int n, tn_tensor *const *in, void *user)
{
    const trained *s = user;
    (void)n, (void)in;
    return s->opt ? tn_optim_step_with(s->opt, closure, user) : closure(user);
}

/* What some runs leave. */
static tn_list *runs(const check *c, tn_device gpu, bool capture)
{
    enum { RUNS = 4 }; /* called, captured, replayed twice */
    COPIES(s, c, c->model, c->opt);
    tn_capture *steps = tn_capture_new(whole_step, &s, gpu);
    tn_list *list = tn_list_new();
    for (int i = 0; i < RUNS && tni_pending() == TN_OK; i++) TN_SCOPE
        {
            const tni_phrase name = tni_phrase_of("(loss of run %d)", i);
            tn_tensor *t = capture ? tn_capture_run(steps, 0, NULL) : whole_step(0, NULL, &s);
            push(list, "", (tn_entry){ .name = name.s, .tensor = t });
        }
    list = values(list, s.m, s.opt);
    tn_capture_free(steps);
    return list;
}

static void check_captured(check *c, tn_device gpu)
{
    static const way w = { "captured", "called", "replayed steps repeat the device's work alone",
                           ALL, NULL };
    tn_list *want = runs(c, gpu, false), *got = want ? runs(c, gpu, true) : NULL;
    const tni_phrase why = tni_phrase_of("%s", tn_error()); /* not written from itself */
    if (!got && tn_error_status() == TN_E_STATE)            /* what no capture can hold */
        tni_error(TN_E_UNSUPPORTED, "%s", why.s);
    judge(c, &w, got, want);
}

/* ---- on several ranks ------------------------------------------------------------------------ */

/* The mean over the ranks, where one has such a gradient. */
static tn_status mean_gradient(tn_list *list, const tn_entry *parameter)
{
    char name[TNI_NAME_LIMIT + 16];
    snprintf(name, sizeof name, "gradient of %s", parameter->name);
    const tn_entry *own = tni_list_find(list, name);
    tn_tensor *has = tn_full_as(TN_SHAPE(1), own != NULL, TN_F64, tn_cpu());
    tn_tensor *g =
        own ? tni_f64_of(own->tensor) : tn_full_as(parameter->tensor->shape, 0, TN_F64, tn_cpu());
    TNI_TRY(tn_parallel_sum_(has));
    TNI_TRY(tn_parallel_mean_(g));
    return tn_item(has) > 0 ? tn_list_set(list, name, g) : TN_OK;
}

/* From what each rank's step leaves by itself, what all should have. */
static tn_status combine(tn_list *list, tn_module *m)
{
    const tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    if (!all) return tni_pending();
    for (const tn_entry *e = all->entry; e && e < all->entry + all->n; e++) {
        const bool buffer = e->kind == TN_BUFFER;
        if (!buffer || (e->persistent && !tni_is(e->role, TN_CONSTANT)))
            TNI_TRY(tn_parallel_broadcast(tni_list_find(list, e->name)->tensor, 0));
        if (!buffer) TNI_TRY(mean_gradient(list, e));
    }
    return TN_OK;
}

/* Of several ranks all call it, even those that have failed. */
static void check_ranks(check *c)
{
    const tni_phrase name = tni_phrase_of("on %d ranks", tn_parallel_size());
    const way w = { name.s, "each by itself", "all ranks have the same parameters and buffers",
                    RANKS, NULL };
    const tn_data_parallel_options o = { 0 };
    COPIES(hand, c, c->model, NULL);
    COPIES(s, c, c->model, NULL);
    tn_list *want = NULL, *got = NULL;
    tn_status status = tn_parallel_agree(c->status == TN_OK ? tni_pending() : c->status);
    tn_data_parallel *p = status == TN_OK ? tn_data_parallel_new(hand.m, o) : NULL;
    if (p) { /* now it has rank 0's values */
        tn_data_parallel_free(p);
        want = pass(c, hand.m, 1);
        tni_generator_put(tn_default_generator(), &c->generator);
        status = tn_parallel_agree(want ? TN_OK : tni_pending());
        if (status == TN_OK) status = combine(want, hand.m);
        p = status == TN_OK ? tn_data_parallel_new(s.m, o) : NULL;
    }
    if (p) got = pass(c, s.m, 1);
    if (c->status == TN_OK) judge(c, &w, got, want);
    tn_data_parallel_free(p);
}

/* ---- a second step --------------------------------------------------------------------------- */

static const way second[] = {
    { "saved and resumed", "going on", NULL, SAVED, NULL },
    { "cloned", "the original", NULL, ALL, NULL },
    { "averaged", "the rule", "parameters are averaged, buffers copied", MEANS, NULL },
    { "averaged with its buffers", "the rule",
      "plain buffers and statistics are averaged, others copied", MEANS, NULL },
};

/* A float that grew by 1 in each step is a count: c->plain is after the first one. */
static bool counts(const check *c, const tn_entry *e)
{
    const tn_entry *start = tni_list_find(c->start, e->name);
    const tn_entry *first = tni_list_find(c->plain, e->name);
    if (!start || !first || tn_numel(e->tensor) != 1) return false;
    double from = tn_item(start->tensor), to = tn_item(e->tensor);
    return from == floor(from) && tn_item(first->tensor) - from == 1 &&
           to - from == (c->opt ? 3 : 2);
}

/* What an average with decay 1/2 holds after two updates. */
static tn_list *mean(check *c, const tn_list *first, const tn_list *last, bool buffers)
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
        push(list, "", e);
    }
    return tni_pending() == TN_OK ? list : NULL;
}

/* A step of what a checkpoint brings back. */
static tn_list *resume(const check *c, const trained *s)
{
    char path[PATH_MAX];
    const char *place = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/tenon-check-XXXXXX", place && *place ? place : "/tmp");
    const int file = mkstemp(path);
    if (file < 0) return tni_fail(TN_E_IO, "tn_check_state: " TNI_PATH ": cannot be made", path);
    close(file);
    tn_checkpoint from = { .model = s->m, .optimizer = s->opt, .allow_nonfinite = true };
    tn_status status = tn_checkpoint_save(&from, path);
    COPIES(copy, c, c->model, c->opt);
    tn_checkpoint to = { .model = copy.m, .optimizer = copy.opt };
    if (status == TN_OK && tni_pending() == TN_OK) status = tn_checkpoint_load(&to, path);
    unlink(path);
    return status == TN_OK ? go_on(&copy) : NULL;
}

/* s has done its first step, which left c->plain, and its optimizer none yet. */
static void check_second(check *c, trained *s)
{
    tni_generator_state generator;
    tn_module *average[2] = { NULL };
    tn_list *first = values(tn_list_new(), s->m, NULL);
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
    COPIES(copy, c, s->m, s->opt);
    tni_generator_put(tn_default_generator(), &generator);
    c->from = values(tn_list_new(), s->m, s->opt);
    tn_list *last = go_on(s);
    if (!last) c->status = tni_pending();
    for (int i = 0; c->status == TN_OK && i < 4; i++) {
        tn_list *got = NULL;
        tni_generator_put(tn_default_generator(), &generator);
        if (i < 2)
            got = i ? go_on(&copy) : resume(c, &copy);
        else if (tn_ema_update(average[i - 2], s->m) == TN_OK)
            got = values(tn_list_new(), tn_ema_module(average[i - 2]), NULL);
        judge(c, &second[i], got, i < 2 ? last : mean(c, first, last, i == 3));
    }
    for (int i = 0; i < 2; i++) tn_module_drop(average[i]);
}

/* ---- the call -------------------------------------------------------------------------------- */

static const way itself = { "used for its copies", "before",
                            "want step to use the module that it is given", ALL, NULL };

static void check_all(check *c)
{
    COPIES(s, c, c->model, c->opt);
    c->from = c->start = values(tn_list_new(), c->model, c->opt);
    c->plain = c->start ? pass(c, s.m, 1) : NULL;
    if (!c->plain) c->status = tni_pending();
    tni_generator_state after;
    tni_generator_get(tn_default_generator(), &after);
    for (size_t i = 0; c->status == TN_OK && i < sizeof single / sizeof *single; i++)
        TN_SCOPE check_single(c, &single[i]);
    for (int i = 0; c->status == TN_OK && i < 3; i++)
        TN_SCOPE check_parts(c, i == 1 ? 4 : 2, i == 2);
    if (tn_parallel_size() > 1) TN_SCOPE check_ranks(c); /* also where this rank has failed */
    const tn_list *parameters = c->status == TN_OK ? tn_parameters(c->model) : NULL;
    tn_device device = tn_cpu();
    if (parameters && parameters->n > 0) device = tn_device_of(parameters->entry->tensor);
    if (device.type != TN_CPU) TN_SCOPE check_captured(c, device);
    tni_generator_put(tn_default_generator(), &after);
    if (c->status == TN_OK) check_second(c, &s);
    tni_generator_put(tn_default_generator(), &c->generator);
    c->from = c->start;
    if (c->status == TN_OK) judge(c, &itself, values(tn_list_new(), c->model, c->opt), c->start);
}

tn_status tn_check_state(FILE *report, tn_module *model, tn_optim *opt, tn_check_step step,
                         void *user)
{
    static const char f[] = "tn_check_state";
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    TNI_TRY(tni_module_check(f, model));
    if (opt && tni_gone(opt)) return tni_poison(f, "opt");
    if (!step) return tni_null(f, "step", "a function that makes the loss");
    if (tni_host_refused(f, "compares values", "it called outside of the step")) return TN_E_STATE;
    check c = {
        .report = report, .model = model, .opt = opt, .step = step, .user = user, .backward = true
    };
    tni_watcher *watcher = tni_watch(NULL);
    tni_batch *batch = tni_batch_now; /* put aside, as the caller's is none of ours */
    const int TN_WHEN_LEFT(tn_leave_no_grad_) grad = tn_set_grad_enabled(true);
    tn_scope scope = tn_scope_begin();
    tni_batch_now = NULL;
    tni_generator_get(tn_default_generator(), &c.generator);
    tn_error_clear();
    check_all(&c);
    tn_scope_end(scope);
    tni_batch_now = batch;
    tni_watch(watcher);
    if (c.status != TN_OK || c.findings == 0) return c.status;
    return tni_error(TN_E_STATE, "%s: %d findings, the first: %s", f, c.findings, c.first);
}
