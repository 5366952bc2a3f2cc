/*
 * scheduler.c - stepping, sequencing, saving and loading of schedules.
 */
#include <math.h>
#include <stdio.h>

#include "optim/scheduler.h"
#include "tensor/host.h"

tn_scheduler *tni_scheduler_new(const tni_schedule *schedule, tn_optim *opt)
{
    tn_scheduler *s = tni_calloc(sizeof *s);
    if (!s) return NULL;
    s->schedule = schedule;
    s->opt = tni_optim_keep(opt);
    return s;
}

/* The momentum a schedule asks for at a step; -1: none. A sequence asks the child that is due. */
static double momentum_at(const tn_scheduler *s, int64_t step);

tn_status tni_scheduler_apply(tn_scheduler *s, int64_t step)
{
    tn_optim *opt = s->opt;
    if (s->schedule->last && step > s->schedule->last(s))
        return tni_error(TN_E_STATE, "tn_%s: step %lld: the schedule ends at %lld",
                         s->schedule->name, (long long)step, (long long)s->schedule->last(s));
    for (int i = 0; i < opt->n_groups; i++) {
        double lr = s->schedule->rate(s, step, opt->group[i].base_lr);
        if (!(lr >= 0) ||
            isinf(lr)) /* a user's factor may give anything; gamma > 1 grows without end */
            return tni_error(TN_E_INVALID, "tn_%s: rate %g at step %lld: wanted >= 0 and finite",
                             s->schedule->name, lr, (long long)step);
    }
    for (int i = 0; i < opt->n_groups; i++)
        tni_optim_rate(opt, i, s->schedule->rate(s, step, opt->group[i].base_lr));
    double momentum = momentum_at(s, step);
    if (momentum >= 0) opt->args.beta1 = momentum;
    s->step = step;
    return TN_OK;
}

tn_scheduler *tni_scheduler_start(tn_scheduler *s)
{
    if (tni_scheduler_apply(s, 0) == TN_OK) return s;
    tn_scheduler_free(s);
    return NULL;
}

tn_status tni_scheduler_milestones(tn_scheduler *s, const int64_t *milestones, int n)
{
    if (n < 0 || (n > 0 && !milestones))
        return tni_error(TN_E_INVALID, "tn_%s: %d milestones: an array of them is wanted",
                         s->schedule->name, n);
    for (int i = 0; i < n; i++)
        if (milestones[i] < (i ? milestones[i - 1] : 0))
            return tni_error(TN_E_INVALID,
                             "tn_%s: milestone %d is %lld: ascending ones >= 0 are wanted",
                             s->schedule->name, i, (long long)milestones[i]);
    if (n == 0) return TN_OK;
    s->milestone = tni_alloc((size_t)n * sizeof *s->milestone);
    if (!s->milestone) return tni_pending();
    memcpy(s->milestone, milestones, (size_t)n * sizeof *s->milestone);
    s->n_milestones = n;
    return TN_OK;
}

int tni_milestones_passed(const tn_scheduler *s, int64_t step)
{
    int low = 0, high = s->n_milestones;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->milestone[middle] <= step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void tn_scheduler_free(tn_scheduler *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_children; i++) tn_scheduler_free(s->child[i]);
    if (s->child) tni_free(s->child, (size_t)s->n_children * sizeof *s->child);
    if (s->milestone) tni_free(s->milestone, (size_t)s->n_milestones * sizeof *s->milestone);
    tn_optim_free(s->opt);
    tni_free(s, sizeof *s);
}

tn_status tn_scheduler_step(tn_scheduler *s)
{
    TNI_HOLD_TRAPS;
    if (!s) return tni_poison("tn_scheduler_step", "s");
    if (s->schedule == &tni_schedule_plateau)
        return tni_error(TN_E_STATE,
                         "tn_scheduler_step: a plateau_lr wants a metric: tn_plateau_step");
    if (TNI_UNLIKELY(tni_recording))
        return tni_record_refuse("tn_scheduler_step", "sets rates",
                                 "it called after tn_capture_run");
    return tni_scheduler_apply(s, s->step + 1);
}

int64_t tn_scheduler_last_step(const tn_scheduler *s)
{
    if (!s) tni_poison("tn_scheduler_last_step", "s");
    return s ? s->step : -1;
}

/* ---- sequential: child k from milestone k - 1 on, its own steps counted from there ----------- */

static const tn_scheduler *child_at(const tn_scheduler *s, int64_t step, int64_t *inner)
{
    int k = tni_milestones_passed(s, step);
    *inner = step - (k ? s->milestone[k - 1] : 0);
    return s->child[k];
}

static double sequential_rate(const tn_scheduler *s, int64_t step, double base)
{
    int64_t inner;
    const tn_scheduler *child = child_at(s, step, &inner);
    if (child->schedule->last) inner = TNI_MIN(inner, child->schedule->last(child));
    return child->schedule->rate(child, inner, base);
}

static const tni_schedule sequential = { .name = "sequential_lr", .rate = sequential_rate };

static double momentum_at(const tn_scheduler *s, int64_t step)
{
    if (s->schedule == &sequential) {
        int64_t inner;
        const tn_scheduler *child = child_at(s, step, &inner);
        return momentum_at(child, inner);
    }
    return s->schedule->momentum ? s->schedule->momentum(s, step) : -1;
}

enum { DEEPEST = 64 }; /* sequences of sequences: each rate asks down through them */

static tn_status check_child(const tn_optim *opt, const tn_scheduler *child, int i)
{
    static const char f[] = "tn_sequential_lr";
    if (!child) return tni_poison(f, "schedulers");
    if (child->listed > 1)
        return tni_error(TN_E_INVALID,
                         "%s: scheduler %d is also one before it: want one for each stretch", f, i);
    if (child->opt != opt)
        return tni_error(TN_E_INVALID, "%s: scheduler %d is another optimizer's", f, i);
    if (child->schedule == &tni_schedule_plateau)
        return tni_error(TN_E_INVALID, "%s: scheduler %d is a plateau_lr: it has no steps", f, i);
    if (child->depth >= DEEPEST)
        return tni_error(TN_E_INVALID, "%s: scheduler %d is %d sequences deep: want fewer", f, i,
                         child->depth);
    return TN_OK;
}

static tn_status check_children(const tn_optim *opt, tn_scheduler *const *schedulers, int n)
{
    tn_status status = TN_OK;
    for (int i = 0; i < n; i++) {
        if (schedulers[i]) schedulers[i]->listed++;
        if (status == TN_OK) status = check_child(opt, schedulers[i], i);
    }
    return status;
}

/* After a failure: each once, however often it is there. */
static void drop_children(tn_scheduler *const *schedulers, int n)
{
    for (int i = 0; i < n; i++)
        if (schedulers[i] && --schedulers[i]->listed == 0) tn_scheduler_free(schedulers[i]);
}

static tn_scheduler *make_sequence(tn_optim *opt, int n, const int64_t *milestones)
{
    tn_scheduler *s = tni_scheduler_new(&sequential, opt);
    if (!s) return NULL;
    if (tni_scheduler_milestones(s, milestones, n - 1) == TN_OK)
        s->child = tni_alloc((size_t)n * sizeof(tn_scheduler *));
    if (s->child) return s;
    tn_scheduler_free(s);
    return NULL;
}

tn_scheduler *tn_sequential_lr(tn_optim *opt, tn_scheduler *const *schedulers, int n,
                               const int64_t *milestones)
{
    tn_scheduler *s = NULL;
    if (n < 1 || !schedulers)
        return tni_fail(TN_E_INVALID,
                        "tn_sequential_lr: %d schedulers%s: want 1 and up, and their array", n,
                        schedulers ? "" : " in NULL");
    tn_status status = check_children(opt, schedulers, n);
    if (status == TN_OK && !opt) status = tni_poison("tn_sequential_lr", "opt");
    if (status == TN_OK) s = make_sequence(opt, n, milestones);
    if (!s) {
        drop_children(schedulers, n);
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        schedulers[i]->listed = 0;
        s->child[i] = schedulers[i];
        s->depth = TNI_MAX(s->depth, schedulers[i]->depth + 1);
    }
    s->n_children = n;
    return tni_scheduler_start(s);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct tni_scheduler_staged {
    int64_t step, bad, cooling;
    double best;
    int n_groups;
    struct staged_rate {
        double lr, base_lr;
    } * rate;
};

tn_list *tn_scheduler_state_dict(tn_scheduler *s)
{
    if (!s) return tni_poisoned("tn_scheduler_state_dict", "s");
    tn_list *list = tn_list_new();
    if (!list) return NULL;
    const char *kind = s->schedule->name;
    char name[96];
    snprintf(name, sizeof name, "%s.step", kind);
    tn_status status = tni_list_i64(list, name, s->step);
    for (int i = 0; status == TN_OK && i < s->opt->n_groups; i++) {
        snprintf(name, sizeof name, "%s.lr.%d", kind, i);
        status = tni_list_f64(list, name, s->opt->group[i].lr);
        snprintf(name, sizeof name, "%s.base_lr.%d", kind, i);
        if (status == TN_OK) status = tni_list_f64(list, name, s->opt->group[i].base_lr);
    }
    if (status == TN_OK && s->schedule == &tni_schedule_plateau) {
        status = tni_list_f64(list, "plateau_lr.best", s->best);
        if (status == TN_OK) status = tni_list_i64(list, "plateau_lr.bad", s->bad);
        if (status == TN_OK) status = tni_list_i64(list, "plateau_lr.cooling", s->cooling);
    }
    return status == TN_OK ? list : NULL;
}

static tn_status stage_all(tn_scheduler *s, const tn_list *list, bool *used,
                           tni_scheduler_staged *staged)
{
    tni_report r = { 0 };
    char name[96];
    const char *kind = s->schedule->name;
    snprintf(name, sizeof name, "%s.step", kind);
    tni_report_i64(&r, list, used, name, &staged->step);
    for (int i = 0; i < staged->n_groups; i++) {
        snprintf(name, sizeof name, "%s.lr.%d", kind, i);
        tni_report_f64(&r, list, used, name, &staged->rate[i].lr);
        snprintf(name, sizeof name, "%s.base_lr.%d", kind, i);
        tni_report_f64(&r, list, used, name, &staged->rate[i].base_lr);
    }
    if (s->schedule == &tni_schedule_plateau) {
        tni_report_f64(&r, list, used, "plateau_lr.best", &staged->best);
        tni_report_i64(&r, list, used, "plateau_lr.bad", &staged->bad);
        tni_report_i64(&r, list, used, "plateau_lr.cooling", &staged->cooling);
    }
    tni_report_unused(&r, list, used);
    tn_status status = tni_report_end(&r, "tn_scheduler_load_state_dict");
    if (status != TN_OK) return status;
    int64_t last = s->schedule->last ? s->schedule->last(s) : INT64_MAX;
    if (staged->step < 0 || staged->step > TNI_MIN(last, TNI_MOST_STEPS))
        return tni_error(TN_E_INVALID,
                         "tn_scheduler_load_state_dict: step %lld: outside the schedule",
                         (long long)staged->step);
    for (int i = 0; i < staged->n_groups; i++) {
        const double lr = staged->rate[i].lr, base = staged->rate[i].base_lr;
        if (!(lr >= 0 && base >= 0) || isinf(lr) || isinf(base))
            return tni_error(
                TN_E_INVALID,
                "tn_scheduler_load_state_dict: rate %g, base rate %g of group %d: finite "
                "numbers >= 0 are wanted",
                lr, base, i);
    }
    if (staged->bad < 0 || staged->bad > TNI_MOST_STEPS || staged->cooling < 0)
        return tni_error(
            TN_E_INVALID,
            "tn_scheduler_load_state_dict: bad %lld, cooling %lld: counts >= 0 are wanted",
            (long long)staged->bad, (long long)staged->cooling);
    return TN_OK;
}

tni_scheduler_staged *tni_scheduler_stage(tn_scheduler *s, const tn_list *state)
{
    tni_scheduler_staged *staged = tni_calloc(sizeof *staged);
    if (!staged) return NULL;
    size_t n_used = (size_t)TNI_MAX(state->n, 1);
    bool *used = tni_calloc(n_used);
    staged->n_groups = s->opt->n_groups;
    staged->rate = tni_calloc((size_t)staged->n_groups * sizeof *staged->rate);
    tn_status status = TN_E_NOMEM;
    if (used && staged->rate) status = stage_all(s, state, used, staged);
    if (used) tni_free(used, n_used);
    if (status == TN_OK) return staged;
    tni_scheduler_discard(staged);
    return NULL;
}

void tni_scheduler_commit(tn_scheduler *s, tni_scheduler_staged *staged)
{
    s->step = staged->step;
    for (int i = 0; i < staged->n_groups; i++) {
        s->opt->group[i].lr = staged->rate[i].lr;
        s->opt->group[i].base_lr = staged->rate[i].base_lr;
    }
    double momentum = momentum_at(s, s->step);
    if (momentum >= 0) s->opt->args.beta1 = momentum;
    s->best = staged->best;
    s->bad = staged->bad;
    s->cooling = staged->cooling;
    tni_scheduler_discard(staged);
}

void tni_scheduler_discard(tni_scheduler_staged *staged)
{
    if (!staged) return;
    if (staged->rate) tni_free(staged->rate, (size_t)staged->n_groups * sizeof *staged->rate);
    tni_free(staged, sizeof *staged);
}

tn_status tn_scheduler_load_state_dict(tn_scheduler *s, const tn_list *state)
{
    if (!s) return tni_poison("tn_scheduler_load_state_dict", "s");
    if (!state) return tni_poison("tn_scheduler_load_state_dict", "state");
    tni_scheduler_staged *staged = tni_scheduler_stage(s, state);
    if (!staged) return tni_pending();
    tni_scheduler_commit(s, staged);
    return TN_OK;
}
