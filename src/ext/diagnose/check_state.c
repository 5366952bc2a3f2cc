/*
 * check_state.c - tn_check_state: one training step on copies of a model, in every way that there
 * is to run it. What differs from the plain way breaks a rule of docs/buffers.md.
 *
 * Bits must be equal, but where a computation of our own in double says what is right: averages,
 * and statistics of a batch in parts. For those each part runs by itself, from the same buffers.
 * Moments, mean m_i and unbiased v_i of n_i values, give those of all N values by definition: with
 * A = sum n_i m_i and B = sum ((n_i - 1) v_i + n_i m_i^2),
 *
 *     mean = A / N,    var = (B / N - mean^2) N / (N - 1)
 */
#include <limits.h>
#include <tenon/io.h>
#include <tenon/layers.h>
#include <unistd.h>

#include "ext/diagnose/explain.h"
#include "nn/micro_batches.h"
#include "tensor/random.h"

enum { SHOWN = 8 }; /* findings of one way; any more are only counted */

/* What is compared. */
typedef enum compared {
    ALL,
    SAVED, /* not buffers that are in no file */
    KEPT,  /* parameters, and buffers but caches */
    FIXED, /* and not plain buffers: what no forward out of training may write */
    WIDE   /* of f32 buffers those that a cast leaves so; no step is run */
} compared;

#define NEAR 1e-5 /* of the largest element */

/* A way to run a step. */
typedef struct way {
    const char *name, *other; /* "recomputed", and what it is compared with */
    const char *rule;         /* where a buffer's role has none */
    compared compared;
    bool near; /* within NEAR of what is f64 beside; else the same bits */
    tn_status (*prepare)(tn_module *m);
} way;

typedef struct check {
    FILE *report; /* NULL: none */
    tn_module *model;
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

/* ---- a step ---------------------------------------------------------------------------------- */

static tn_status push(tn_list *list, const char *prefix, tn_entry e)
{
    if (!e.tensor) return tni_pending();
    e.tensor = tn_clone(tn_to(tn_contiguous(tn_detach(e.tensor)), tn_cpu()));
    return e.tensor ? tni_list_push(list, prefix, "", e.name, e) : tni_pending();
}

/* Copies of all that m has, and of the generator, after list's entries. NULL + message. */
static tn_list *values(tn_list *list, tn_module *m)
{
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), generator);
    tn_tensor *bytes = tn_from_data(generator, TN_SHAPE(sizeof generator), TN_U8);
    tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    tn_status status = list && all ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        tn_tensor *gradient = e->kind == TN_PARAMETER ? tn_grad(e->tensor) : TN_NONE;
        status = push(list, "", *e);
        if (status == TN_OK && !tni_none(gradient))
            status = push(list, "gradient of ", (tn_entry){ .name = e->name, .tensor = gradient });
    }
    if (status == TN_OK)
        status = push(list, "", (tn_entry){ .name = "(default generator)", .tensor = bytes });
    return status == TN_OK ? list : NULL;
}

static tn_status run_part(const check *c, tn_module *m, int part, int parts, tn_list *losses)
{
    char name[40] = "(loss)";
    if (parts > 1) snprintf(name, sizeof name, "(loss of part %d)", part);
    tn_scope scope = tn_scope_begin();
    tn_tensor *loss = c->step(c->user, m, part, parts);
    tn_status status = loss ? tni_pending() : tni_poison("tn_check_state", "the loss");
    if (status == TN_OK && c->backward) status = tn_backward(loss);
    if (status == TN_OK) status = push(losses, "", (tn_entry){ .name = name, .tensor = loss });
    tn_set_grad_enabled(true);
    tn_scope_end(scope);
    return status;
}

/* What a batch of n parts leaves. */
static tn_list *step(const check *c, tn_module *m, int n)
{
    tn_list *list = tn_list_new();
    tn_status status = list ? tn_module_zero_grad(m) : tni_pending();
    if (status == TN_OK && n == 1) status = run_part(c, m, 0, 1, list);
    if (status == TN_OK && n > 1)
        TN_MICRO_BATCHES(part, n) tni_disregard(run_part(c, m, part, n, list));
    return tn_error_status() == TN_OK ? values(list, m) : NULL;
}

/* A copy of the model, with the generator where it was: tn_module_drop. */
static tn_module *fresh(const check *c)
{
    tni_generator_put(tn_default_generator(), &c->generator);
    return tn_module_clone(c->model);
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
    if (w->compared == ALL) return true;
    if (w->compared == SAVED) return !buffer || e->persistent;
    if (w->compared == WIDE) return buffer && tni_stays_wide(e->role) && e->tensor->dtype == TN_F32;
    if (!e->owner || (buffer && tni_is(e->role, TN_CACHE))) return false;
    return w->compared == KEPT || !buffer || e->role != TN_PLAIN;
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
    const bool near = w->near && (w->compared == KEPT || tni_is(e->role, TN_STATISTIC));
    const char *when = strncmp(w->name, "in ", 3) ? "when " : ""; /* "in eval mode" needs none */
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
    { "run again", "the first run", reproducible, ALL, false, NULL },
    { "recomputed", "plain", NULL, ALL, false, recompute_all },
    { "in eval mode", "before", NULL, FIXED, false, tn_eval },
    { "frozen", "before", NULL, FIXED, false, tn_module_freeze },
    { "cast to bf16", "before", "statistics and directions stay f32", WIDE, false, narrow },
};

static void check_single(check *c, const way *w)
{
    tn_module *m = fresh(c);
    const tn_list *got = NULL;
    tn_status status = m && w->prepare ? w->prepare(m) : tni_pending();
    c->backward = w->compared == ALL;
    if (status == TN_OK) got = w->compared == WIDE ? values(tn_list_new(), m) : step(c, m, 1);
    judge(c, w, got, c->backward ? c->plain : c->from);
    c->backward = true;
    tn_module_drop(m);
}

/* ---- in parts -------------------------------------------------------------------------------- */

/* What one part made of a buffer; or the moments that a layer gave to tn_move_statistics in it. */
typedef struct share {
    const tn_tensor *buffer, *var; /* var: of moments, else NULL */
    double n, momentum;            /* 1, or of moments how many values */
    tn_tensor *sum, *squares;      /* of the values; else the buffer's new value, and NULL */
} share;

typedef struct shares {
    share *of;
    size_t n, room;
} shares;

static tn_status add_share(shares *all, const tni_moved *moved)
{
    if (moved->n == 0) return TN_OK;
    if (!tni_room(&all->of, &all->room, all->n, 1, sizeof *all->of)) return TN_E_NOMEM;
    const bool statistic = tni_is(moved->role, TN_STATISTIC);
    tn_tensor *x = statistic ? tni_f64_of(moved->value) : tn_detach(moved->value);
    share *s = &all->of[all->n++];
    *s = (share){ moved->buffer, moved->var, moved->n, moved->momentum, x, NULL };
    if (!moved->var) return TN_OK;
    s->sum = tn_mul_scalar(x, s->n);
    s->squares = tn_add(moved->spread, tn_mul_scalar(tn_square(x), s->n));
    return TN_OK;
}

/* What they make together of a buffer, which is as before the parts; NULL: nothing, or failed. */
static tn_tensor *after(const shares *all, const tn_entry *e)
{
    tn_tensor *sum = NULL, *squares = NULL;
    double n = 0, momentum = 0;
    bool var = false;
    for (size_t i = 0; i < all->n; i++) {
        const share *s = &all->of[i];
        if (s->buffer != e->tensor && s->var != e->tensor) continue;
        if (!tni_is(e->role, TN_STATISTIC)) return s->sum; /* the first part counts */
        var = s->var == e->tensor;
        sum = n > 0 ? tn_add(sum, s->sum) : s->sum;
        if (s->squares) squares = squares ? tn_add(squares, s->squares) : s->squares;
        momentum = s->momentum;
        n += s->n;
    }
    tn_tensor *now = n > 0 ? tn_div_scalar(sum, n) : NULL;
    if (!now || !squares) return now;
    if (var) now = tn_sub(tn_div_scalar(squares, n), tn_square(now));
    if (var) now = tn_mul_scalar(now, n / (n - 1));
    return tn_add(tn_mul_scalar(tni_f64_of(e->tensor), 1 - momentum), tn_mul_scalar(now, momentum));
}

/* A part as a batch by itself, after which buffers are as before, also those of modules that no
 * call has met. */
static tn_status take_part(const check *c, tn_module *m, const tn_list *buffers, int part,
                           int parts, shares *all, tn_list *list)
{
    if (tn_micro_batches_begin(1) < 0) return tni_pending();
    tni_batch *b = tni_batch_now;
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < buffers->n; i++) {
        const tn_entry *e = &buffers->entry[i];
        const tni_slot *slot = tni_moves_once(e->role) ? tni_slot_of(e->owner, e->name) : NULL;
        if (!slot) continue;
        TN_NO_GRAD if (!tni_batch_add(b, e->owner, slot, e->tensor, NULL)) status = tni_pending();
    }
    if (status == TN_OK) status = run_part(c, m, part, parts, list);
    if (status == TN_OK && tni_batch_now != b)
        status = tni_error(TN_E_STATE, "tn_check_state: the step has ended the batch that it is a "
                                       "part of: want tn_micro_batches_cancel outside of it");
    if (status == TN_OK) status = tni_batch_settle(b, true);
    for (int i = 0; status == TN_OK && i < b->n; i++)
        TN_NO_GRAD status = add_share(all, &b->moved[i]);
    tn_micro_batches_cancel();
    return status;
}

/* What a batch in parts should leave. */
static tn_list *parts_by_hand(const check *c, tn_module *m, int parts)
{
    tn_list *list = tn_list_new(), *buffers = tn_buffers(m);
    shares all = { 0 };
    tn_status status = list && buffers ? TN_OK : tni_pending();
    for (int part = 0; status == TN_OK && part < parts; part++)
        status = take_part(c, m, buffers, part, parts, &all, list);
    if (status == TN_OK && !values(list, m)) status = tni_pending();
    for (int i = 0; status == TN_OK && i < buffers->n; i++) {
        const tn_entry *e = &buffers->entry[i];
        tn_tensor *now = NULL;
        TN_NO_GRAD now = after(&all, e);
        status = now ? tn_list_set(list, e->name, tn_to(now, tn_cpu())) : tni_pending();
    }
    tni_room_free(&all.of, &all.room, sizeof *all.of);
    return status == TN_OK ? list : NULL;
}

static void check_parts(check *c, int n, bool recomputed)
{
    char name[40];
    snprintf(name, sizeof name, "in %d parts%s", n, recomputed ? ", recomputed" : "");
    const way w = { name, "each by itself", NULL, ALL, true, NULL };
    tn_module *hand = fresh(c);
    tn_list *want = hand ? parts_by_hand(c, hand, n) : NULL;
    tn_module *m = want ? fresh(c) : NULL;
    bool ready = m && (!recomputed || recompute_all(m) == TN_OK);
    judge(c, &w, ready ? step(c, m, n) : NULL, want);
    tn_module_drop(hand);
    tn_module_drop(m);
}

/* ---- a second step --------------------------------------------------------------------------- */

static const way resumed = { "saved and resumed", "going on", NULL, SAVED, false, NULL };
static const way cloned = { "cloned", "the original", NULL, ALL, false, NULL };
static const way averages[] = {
    { "averaged", "the rule", "parameters are averaged, buffers copied", KEPT, true, NULL },
    { "averaged with its buffers", "the rule",
      "plain buffers and statistics are averaged, others copied", KEPT, true, NULL },
};

/* A float that grew by 1 in both steps is a count: c->plain is after the first one. */
static bool counts(const check *c, const tn_entry *e)
{
    const tn_entry *start = tni_list_find(c->start, e->name);
    const tn_entry *first = tni_list_find(c->plain, e->name);
    if (!start || !first || tn_numel(e->tensor) != 1) return false;
    double from = tn_item(start->tensor), to = tn_item(e->tensor);
    return from == floor(from) && tn_item(first->tensor) - from == 1 && to - from == 2;
}

/* What an average with decay 1/2 holds after two updates. */
static tn_list *mean(check *c, const tn_list *first, const tn_list *last, int buffers)
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

/* A step of what a checkpoint of m brings back. */
static tn_list *resume(const check *c, tn_module *m)
{
    char path[PATH_MAX];
    const char *place = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/tenon-check-XXXXXX", place && *place ? place : "/tmp");
    const int file = mkstemp(path);
    if (file < 0) return tni_fail(TN_E_IO, "tn_check_state: " TNI_PATH ": cannot be made", path);
    close(file);
    tn_checkpoint from = { .model = m, .allow_nonfinite = true }, to = { 0 };
    tn_status status = tn_checkpoint_save(&from, path);
    to.model = status == TN_OK ? fresh(c) : NULL;
    if (to.model) status = tn_checkpoint_load(&to, path);
    unlink(path);
    tn_list *list = to.model && status == TN_OK ? step(c, to.model, 1) : NULL;
    tn_module_drop(to.model);
    return list;
}

/* Stands for an optimizer's step. */
static tn_status change_parameters(tn_module *m)
{
    tn_list *parameters = tn_parameters(m);
    tn_status status = parameters ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < parameters->n; i++) {
        tn_tensor *t = parameters->entry[i].tensor;
        if (tn_dtype_is_float(t->dtype)) TN_NO_GRAD status = tn_mul_scalar_(t, 0.75);
    }
    return status;
}

/* m has done its first step, which left c->plain. */
static void check_second(check *c, tn_module *m)
{
    tni_generator_state generator;
    tn_module *average[2] = { NULL }, *copy = NULL;
    tn_list *first = values(tn_list_new(), m), *last = NULL;
    tn_status status = first ? TN_OK : tni_pending();
    tni_generator_get(tn_default_generator(), &generator);
    for (int i = 0; status == TN_OK && i < 2; i++) {
        const tn_ema_options o = { .decay = 0.5, .average_buffers = i };
        average[i] = tn_ema_new(m, o);
        status = average[i] ? tn_ema_update(average[i], m) : tni_pending();
    }
    if (status == TN_OK) status = change_parameters(m);
    if (status == TN_OK) copy = tn_module_clone(m);
    if (copy && (c->from = values(tn_list_new(), m))) last = step(c, m, 1);
    if (!last) c->status = tni_pending();
    for (int i = 0; c->status == TN_OK && i < 2; i++) {
        tni_generator_put(tn_default_generator(), &generator);
        judge(c, i ? &cloned : &resumed, i ? step(c, copy, 1) : resume(c, copy), last);
    }
    for (int i = 0; c->status == TN_OK && i < 2; i++) {
        status = tn_ema_update(average[i], m);
        tn_list *got = status == TN_OK ? values(tn_list_new(), tn_ema_module(average[i])) : NULL;
        judge(c, &averages[i], got, mean(c, first, last, i));
    }
    for (int i = 0; i < 2; i++) tn_module_drop(average[i]);
    tn_module_drop(copy);
}

/* ---- the call -------------------------------------------------------------------------------- */

static const way itself = {
    "used for its copies", "before", "want step to use the module that it is given", ALL, 0, NULL
};

static void check_all(check *c)
{
    tn_module *m = fresh(c);
    c->from = c->start = m ? values(tn_list_new(), c->model) : NULL;
    c->plain = c->start ? step(c, m, 1) : NULL;
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
        TN_SCOPE check_parts(c, cuts[i].n, cuts[i].recomputed);
    tni_generator_put(tn_default_generator(), &after);
    if (c->status == TN_OK) check_second(c, m);
    tn_module_drop(m);
    tni_generator_put(tn_default_generator(), &c->generator);
    c->from = c->start;
    if (c->status == TN_OK) judge(c, &itself, values(tn_list_new(), c->model), c->start);
}

tn_status tn_check_state(FILE *report, tn_module *model, tn_check_step step, void *user)
{
    static const char f[] = "tn_check_state";
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    tn_status status = tni_module_check(f, model);
    if (status != TN_OK) return status;
    if (!step)
        return tni_error(TN_E_INVALID, "%s: step is NULL: want a function that makes the loss", f);
    if (tni_host_refused(f, "compares values", "it called outside of the step")) return TN_E_STATE;
    check c = { .report = report, .model = model, .step = step, .user = user, .backward = true };
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
