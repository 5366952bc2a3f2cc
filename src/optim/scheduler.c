/*
 * scheduler.c - stepping, sequencing, saving and loading of schedules.
 */
#include <stdio.h>

#include "optim/scheduler.h"

/* The momentum a schedule asks for at a step; -1: none. */
static double momentum_at(const tn_scheduler *s, int64_t step)
{
    return s->schedule->momentum ? s->schedule->momentum(s, step) : -1;
}

static tn_status apply(tn_scheduler *s, int64_t step)
{
    tn_optim *opt = s->opt;
    if (s->schedule->last && step > s->schedule->last(s))
        return tni_error(TN_E_STATE, "tn_%s: step %" PRId64 ": the schedule ends at %" PRId64,
                         s->schedule->name, step, s->schedule->last(s));
    for (int i = 0; i < opt->n_groups; i++) {
        double lr = s->schedule->rate(s, step, opt->group[i].base_lr);
        /* a user's factor may give anything; gamma > 1 grows without end */
        if (!(lr >= 0) || isinf(lr))
            return tni_error(TN_E_INVALID,
                             "tn_%s: rate %g at step %" PRId64 ": want >= 0 and finite",
                             s->schedule->name, lr, step);
    }
    for (int i = 0; i < opt->n_groups; i++)
        opt->group[i].lr = s->schedule->rate(s, step, opt->group[i].base_lr);
    double momentum = momentum_at(s, step);
    for (int i = 0; momentum >= 0 && i < opt->n_groups; i++) opt->group[i].number[0] = momentum;
    s->step = step;
    return TN_OK;
}

/* Takes over a copy of n ascending milestones. */
static tn_status take_milestones(tn_scheduler *s, const int64_t *milestones, int n)
{
    if (n < 0 || (n > 0 && !milestones))
        return tni_error(TN_E_INVALID, "tn_%s: %d milestones: want an array of them",
                         s->schedule->name, n);
    for (int i = 0; i < n; i++)
        if (milestones[i] < (i ? milestones[i - 1] : 0))
            return tni_error(TN_E_INVALID,
                             "tn_%s: milestone %d is %" PRId64 ": want ascending ones >= 0",
                             s->schedule->name, i, milestones[i]);
    if (n == 0) return TN_OK;
    s->milestone = tni_alloc_n((size_t)n, sizeof *s->milestone);
    if (!s->milestone) return tni_pending();
    memcpy(s->milestone, milestones, (size_t)n * sizeof *s->milestone);
    s->n_milestones = n;
    return TN_OK;
}

/* Removes s from its optimizer's list, if it is there. */
static void unlist(const tn_scheduler *s)
{
    tn_scheduler **at = &s->opt->schedules;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
}

tn_status tni_scheduler_alone(const char *function, const tn_scheduler *s)
{
    const tn_scheduler *other = s->opt->schedules;
    if (other == s) other = s->next;
    if (!other) return TN_OK;
    return tni_error(TN_E_STATE,
                     "%s: beside this %s the optimizer has a %s, and the last to step would win: "
                     "want one of them freed, or tn_sequential_lr",
                     function, s->schedule->name, other->schedule->name);
}

/* Several schedules may exist until one has stepped: a sequence may take them over. */
static tn_status check_others(const char *name, const tn_optim *opt)
{
    for (const tn_scheduler *other = opt->schedules; other; other = other->next)
        if (other->step > 0)
            return tni_error(TN_E_STATE,
                             "tn_%s: the optimizer has a %s, at step %" PRId64
                             ": want it freed before, or both in a tn_sequential_lr",
                             name, other->schedule->name, other->step);
    return TN_OK;
}

tn_scheduler *tni_scheduler_new(const tni_schedule *schedule, tn_optim *opt, tn_scheduler given)
{
    if (check_others(schedule->name, opt) != TN_OK) return NULL;
    tn_scheduler *s = tni_alloc(sizeof *s);
    if (!s) return NULL;
    *s = given;
    s->schedule = schedule;
    s->opt = tni_optim_keep(opt);
    s->milestone = NULL;
    s->n_milestones = 0;
    s->next = opt->schedules;
    opt->schedules = s;
    if (take_milestones(s, given.milestone, given.n_milestones) == TN_OK) return s;
    tn_scheduler_free(s);
    return NULL;
}

tn_scheduler *tni_scheduler_start(tn_scheduler *s)
{
    if (s && apply(s, 0) == TN_OK) return s;
    tn_scheduler_free(s);
    return NULL;
}

int tni_milestones_passed(const tn_scheduler *s, int64_t step)
{
    return (int)tni_upto(s->milestone, sizeof *s->milestone, (size_t)s->n_milestones, step);
}

void tn_scheduler_free(tn_scheduler *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_children; i++) tn_scheduler_free(s->child[i]);
    if (s->child) tni_free(s->child, (size_t)s->n_children * sizeof *s->child);
    if (s->milestone) tni_free(s->milestone, (size_t)s->n_milestones * sizeof *s->milestone);
    unlist(s);
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
    if (tni_host_refused("tn_scheduler_step", "sets rates", "it called after tn_capture_run"))
        return TN_E_STATE;
    tn_status status = tni_scheduler_alone("tn_scheduler_step", s);
    return status == TN_OK ? apply(s, s->step + 1) : status;
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

static double sequential_momentum(const tn_scheduler *s, int64_t step)
{
    int64_t inner;
    const tn_scheduler *child = child_at(s, step, &inner);
    return momentum_at(child, inner);
}

static const tni_schedule sequential = {
    .name = "sequential_lr",
    .rate = sequential_rate,
    .momentum = sequential_momentum,
};

enum { DEEPEST = 64 }; /* nesting of sequences: computing a rate recurses through them */

/* Whether scheduler i is also one before it. */
static bool is_before(tn_scheduler *const *schedulers, int i)
{
    int k = 0;
    while (schedulers[k] != schedulers[i]) k++;
    return k < i;
}

static tn_status check_child(const tn_optim *opt, tn_scheduler *const *schedulers, int i)
{
    static const char f[] = "tn_sequential_lr";
    const tn_scheduler *child = schedulers[i];
    if (!child) return tni_poison(f, "schedulers");
    if (is_before(schedulers, i))
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

static tn_scheduler *make_sequence(tn_optim *opt, int n, const int64_t *milestones)
{
    const tn_scheduler given = { .milestone = (int64_t *)milestones, .n_milestones = n - 1 };
    tn_scheduler *s = tni_scheduler_new(&sequential, opt, given);
    if (!s) return NULL;
    s->child = tni_alloc_n((size_t)n, sizeof(tn_scheduler *));
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
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < n; i++) status = check_child(opt, schedulers, i);
    if (status == TN_OK && !opt) status = tni_poison("tn_sequential_lr", "opt");
    for (int i = 0; status == TN_OK && i < n; i++) unlist(schedulers[i]);
    if (status == TN_OK) s = make_sequence(opt, n, milestones);
    for (int i = n; !s && i-- > 0;)
        if (!is_before(schedulers, i)) tn_scheduler_free(schedulers[i]);
    for (int i = 0; s && i < n; i++) {
        s->child[i] = schedulers[i];
        s->depth = TNI_MAX(s->depth, schedulers[i]->depth + 1);
    }
    if (s) s->n_children = n;
    return tni_scheduler_start(s);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Lists the fields of s, and the rates of the groups. */
static void show(tni_serializer *f, tn_scheduler *s)
{
    const char *kind = s->schedule->name;
    tni_field_i64(f, tni_field_name(f, "%s.step", kind), &s->step);
    for (int i = 0; i < s->opt->n_groups; i++) {
        tni_optim_group *group = &s->opt->group[i];
        tni_field_f64(f, tni_field_name(f, "%s.lr.%d", kind, i), &group->lr);
        tni_field_f64(f, tni_field_name(f, "%s.base_lr.%d", kind, i), &group->base_lr);
    }
    if (s->schedule != &tni_schedule_plateau) return;
    tni_field_f64(f, "plateau_lr.best", &s->best);
    tni_field_i64(f, "plateau_lr.bad", &s->bad);
    tni_field_i64(f, "plateau_lr.cooling", &s->cooling);
}

tn_list *tn_scheduler_state_dict(tn_scheduler *s)
{
    if (!s) return tni_poisoned("tn_scheduler_state_dict", "s");
    tni_serializer f;
    tni_serializer_save(&f);
    show(&f, s);
    return tni_serializer_saved(&f);
}

/* Whether what was loaded can be. */
static tn_status check_loaded(const char *function, const tn_scheduler *s)
{
    int64_t last = s->schedule->last ? s->schedule->last(s) : INT64_MAX;
    if (s->step < 0 || s->step > TNI_MIN(last, TNI_MOST_STEPS))
        return tni_error(TN_E_INVALID, "%s: step %" PRId64 ": outside the schedule", function,
                         s->step);
    for (int i = 0; i < s->opt->n_groups; i++) {
        const double lr = s->opt->group[i].lr, base = s->opt->group[i].base_lr;
        if (!(lr >= 0 && base >= 0) || isinf(lr) || isinf(base))
            return tni_error(TN_E_INVALID,
                             "%s: rate %g, base rate %g of group %d: want finite numbers >= 0",
                             function, lr, base, i);
    }
    if (s->bad < 0 || s->bad > TNI_MOST_STEPS || s->cooling < 0)
        return tni_error(TN_E_INVALID, "%s: bad %" PRId64 ", cooling %" PRId64 ": want counts >= 0",
                         function, s->bad, s->cooling);
    return TN_OK;
}

tni_staged *tni_scheduler_stage(tn_scheduler *s, const tn_list *state)
{
    static const char function[] = "tn_scheduler_load_state_dict";
    tni_serializer f;
    tni_serializer_load(&f, state);
    show(&f, s);
    tn_status status = tni_serializer_loaded(&f, function);
    if (status == TN_OK) status = check_loaded(function, s);
    double momentum = status == TN_OK ? momentum_at(s, s->step) : -1;
    for (int i = 0; momentum >= 0 && i < s->opt->n_groups; i++)
        tni_serializer_set(&f, &s->opt->group[i].number[0], &momentum, sizeof momentum);
    return tni_serializer_staged(&f, status);
}

tn_status tn_scheduler_load_state_dict(tn_scheduler *s, const tn_list *state)
{
    if (!s) return tni_poison("tn_scheduler_load_state_dict", "s");
    if (!state) return tni_poison("tn_scheduler_load_state_dict", "state");
    return tni_staged_put(tni_scheduler_stage(s, state));
}
