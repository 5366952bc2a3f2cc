/* scheduler.c - stepping, sequences and chains, saving and loading of schedules. */
#include "optim/scheduler.h"

/* The momentum a schedule asks for at a step; -1: none. */
static double momentum_at(const tn_scheduler *s, int64_t step)
{
    return s->schedule->momentum ? s->schedule->momentum(s, step) : -1;
}

/* Group i's momentum; NULL: it was made without what that needs. */
static double *momentum_of(tn_optim *opt, int i)
{
    const int at = tni_optim_number_at(opt->type, opt->type->momentum);
    double with[TN_OPTIM_NUMBERS];
    memcpy(with, opt->group[i].number, sizeof with);
    with[at] = 0.5;
    return tni_optim_slots(opt->type, with) & ~opt->group[i].slots ? NULL
                                                                   : &opt->group[i].number[at];
}

static tn_status apply(tn_scheduler *s, int64_t step)
{
    tn_optim *opt = s->opt;
    if (s->schedule->ends && step > s->n)
        return tni_error(TN_E_STATE, "tn_%s: step %" PRId64 ": the schedule ends at %" PRId64,
                         s->schedule->name, step, s->n);
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
    for (int i = 0; momentum >= 0 && i < opt->n_groups; i++) {
        double *number = momentum_of(opt, i);
        if (number) *number = momentum;
    }
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

/* Takes over n schedulers, and a copy of their array. */
static tn_status take_children(tn_scheduler *s, tn_scheduler *const *children, int n)
{
    if (n > 0 && !(s->child = tni_alloc_n((size_t)n, sizeof *s->child))) return tni_pending();
    for (int i = 0; i < n; i++) {
        const tn_scheduler *child = s->child[s->n_children++] = children[i];
        s->depth = TNI_MAX(s->depth, child->depth + 1);
        s->fixed |= child->fixed;
        if (child->metrics_from < INT64_MAX) /* no step is beyond TNI_MOST_STEPS */
            s->metrics_from = TNI_MIN(child->metrics_from, TNI_MOST_STEPS) +
                              TNI_MIN(s->milestone[i - 1], TNI_MOST_STEPS);
    }
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
                     "want one of them freed, or tn_sequential_lr or tn_chained_lr",
                     function, s->schedule->name, other->schedule->name);
}

/* Several schedules may exist until one has stepped: a sequence or chain may take them over. */
static tn_status check_others(const char *name, const tn_optim *opt)
{
    for (const tn_scheduler *other = opt->schedules; other; other = other->next)
        if (other->step > 0)
            return tni_error(
                TN_E_STATE,
                "tn_%s: the optimizer has a %s, at step %" PRId64
                ": want it freed before, or both in a tn_sequential_lr or tn_chained_lr",
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
    s->child = NULL;
    s->n_milestones = s->n_children = 0;
    s->metrics_from = schedule == &tni_schedule_plateau ? 0 : INT64_MAX;
    s->next = opt->schedules;
    opt->schedules = s;
    if (take_milestones(s, given.milestone, given.n_milestones) == TN_OK &&
        take_children(s, given.child, given.n_children) == TN_OK)
        return s;
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
    if (s->step >= s->metrics_from)
        return tni_error(TN_E_STATE,
                         "tn_scheduler_step: from step %" PRId64
                         " on this %s wants a metric: tn_plateau_step",
                         s->metrics_from, s->schedule->name);
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

/* ---- sequences and chains -------------------------------------------------------------------- */

/* In a sequence child k runs from milestone k - 1 on, its own steps counted from there. A plateau
 * has no rate to begin with: the child before it goes on until then. */
static int child_at(const tn_scheduler *s, int64_t step, int64_t *inner)
{
    step = TNI_MIN(step, s->metrics_from);
    int k = tni_milestones_passed(s, step);
    if (s->child[k]->schedule == &tni_schedule_plateau) k--;
    *inner = step - (k ? s->milestone[k - 1] : 0);
    return k;
}

/* In a chain, which has no milestones, each child's base is the rate of the one before. */
static double composed_rate(tn_scheduler *s, int64_t step, double base)
{
    int64_t inner;
    int k = child_at(s, step, &inner), end = s->n_milestones ? k + 1 : s->n_children;
    for (; k < end; k++) base = s->child[k]->schedule->rate(s->child[k], inner, base);
    return base;
}

/* In a chain only the first child may move it. */
static double composed_momentum(const tn_scheduler *s, int64_t step)
{
    int64_t inner;
    int k = child_at(s, step, &inner);
    return momentum_at(s->child[k], inner);
}

#define COMPOSED(text)                                                                             \
    {                                                                                              \
        .name = (text), .rate = composed_rate, .momentum = composed_momentum                       \
    }
static const tni_schedule sequential = COMPOSED("sequential_lr"), chained = COMPOSED("chained_lr");

tn_scheduler *tni_plateau_of(tn_scheduler *s)
{
    while (s->n_children > 0) s = s->child[s->n_children - 1];
    return s->schedule == &tni_schedule_plateau ? s : NULL;
}

enum { DEEPEST = 64 }; /* nesting of sequences: computing a rate recurses through them */

/* Whether scheduler i is also one before it. */
static bool is_before(tn_scheduler *const *schedulers, int i)
{
    int k = 0;
    while (schedulers[k] != schedulers[i]) k++;
    return k < i;
}

static tn_status check_child(const char *f, bool chain, const tn_optim *opt,
                             tn_scheduler *const *schedulers, int i, int n)
{
    const tn_scheduler *child = schedulers[i];
    if (!child) return tni_poison(f, "schedulers");
    if (is_before(schedulers, i))
        return tni_error(TN_E_INVALID,
                         "%s: scheduler %d is also one before it: want one for each stretch", f, i);
    if (child->opt != opt)
        return tni_error(TN_E_INVALID, "%s: scheduler %d is another optimizer's", f, i);
    if (child->metrics_from < INT64_MAX && (chain || i == 0 || i < n - 1))
        return tni_error(TN_E_INVALID,
                         "%s: scheduler %d is a %s, which takes metrics: want it last in a "
                         "tn_sequential_lr, after others",
                         f, i, child->schedule->name);
    if (child->fixed && chain && i > 0)
        return tni_error(TN_E_INVALID,
                         "%s: scheduler %d is a %s, which multiplies no rate: want it first", f, i,
                         child->schedule->name);
    if (child->depth >= DEEPEST)
        return tni_error(TN_E_INVALID, "%s: scheduler %d is %d sequences deep: want fewer", f, i,
                         child->depth);
    return TN_OK;
}

static tn_scheduler *compose(const char *f, const tni_schedule *kind, tn_optim *opt,
                             tn_scheduler *const *schedulers, int n, const int64_t *milestones)
{
    const bool chain = kind == &chained;
    tn_scheduler *s = NULL;
    if (n < 1 || !schedulers)
        return tni_fail(TN_E_INVALID, "%s: %d schedulers%s: want 1 and up, and their array", f, n,
                        schedulers ? "" : " in NULL");
    tn_status status = opt ? TN_OK : tni_poison(f, "opt");
    for (int i = 0; status == TN_OK && i < n; i++)
        status = check_child(f, chain, opt, schedulers, i, n);
    for (int i = 0; status == TN_OK && i < n; i++) unlist(schedulers[i]);
    const tn_scheduler given = { .milestone = (int64_t *)milestones,
                                 .n_milestones = chain ? 0 : n - 1,
                                 .child = (tn_scheduler **)schedulers,
                                 .n_children = n };
    if (status == TN_OK) s = tni_scheduler_new(kind, opt, given);
    for (int i = n; !s && i-- > 0;)
        if (!is_before(schedulers, i)) tn_scheduler_free(schedulers[i]);
    return tni_scheduler_start(s);
}

tn_scheduler *tn_sequential_lr(tn_optim *opt, tn_scheduler *const *schedulers, int n,
                               const int64_t *milestones)
{
    return compose("tn_sequential_lr", &sequential, opt, schedulers, n, milestones);
}

tn_scheduler *tn_chained_lr(tn_optim *opt, tn_scheduler *const *schedulers, int n)
{
    return compose("tn_chained_lr", &chained, opt, schedulers, n, NULL);
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
    tn_scheduler *plateau = tni_plateau_of(s);
    if (!plateau) return;
    tni_field_f64(f, "plateau_lr.best", &plateau->best);
    tni_field_i64(f, "plateau_lr.bad", &plateau->bad);
    tni_field_i64(f, "plateau_lr.cooling", &plateau->cooling);
}

tn_list *tn_scheduler_state_dict(tn_scheduler *s)
{
    if (!s) return tni_poisoned("tn_scheduler_state_dict", "s");
    tni_serializer f;
    tni_serializer_save(__func__, &f);
    show(&f, s);
    return tni_serializer_saved(&f);
}

/* Whether what was loaded can be. */
static tn_status check_loaded(const char *function, tn_scheduler *s)
{
    const tn_scheduler *plateau = tni_plateau_of(s);
    int64_t last = s->schedule->ends ? TNI_MIN(s->n, TNI_MOST_STEPS) : TNI_MOST_STEPS;
    if (s->step < 0 || s->step > last)
        return tni_error(TN_E_INVALID, "%s: step %" PRId64 ": outside the schedule", function,
                         s->step);
    for (int i = 0; i < s->opt->n_groups; i++) {
        const double lr = s->opt->group[i].lr, base = s->opt->group[i].base_lr;
        if (!(lr >= 0 && base >= 0) || isinf(lr) || isinf(base))
            return tni_error(TN_E_INVALID,
                             "%s: rate %g, base rate %g of group %d: want finite numbers >= 0",
                             function, lr, base, i);
    }
    if (plateau && (plateau->bad < 0 || plateau->bad > TNI_MOST_STEPS || plateau->cooling < 0))
        return tni_error(TN_E_INVALID, "%s: bad %" PRId64 ", cooling %" PRId64 ": want counts >= 0",
                         function, plateau->bad, plateau->cooling);
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
    for (int i = 0; momentum >= 0 && i < s->opt->n_groups; i++) {
        double *number = momentum_of(s->opt, i);
        if (number) tni_serializer_set(&f, number, &momentum, sizeof momentum);
    }
    return tni_serializer_staged(&f, status);
}

tn_status tn_scheduler_load_state_dict(tn_scheduler *s, const tn_list *state)
{
    if (!s || !state) return tni_poison(__func__, s ? "state" : "s");
    return tni_staged_put(tni_scheduler_stage(s, state));
}
