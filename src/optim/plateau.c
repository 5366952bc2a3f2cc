/*
 * plateau.c - lowers the rate when a metric has stopped improving: the one schedule with an input.
 *
 * A call improves when metric < best - threshold |best|, or > best + threshold |best| when
 * maximizing; absolute leaves out |best|. After more than patience calls that do not, every rate
 * becomes max(rate factor, min_lr), unless that changes it by 1e-8 or less; then cooldown calls do
 * not count. A NaN never improves.
 *
 * Source: PyTorch's ReduceLROnPlateau; but its relative threshold is best (1 - threshold), by which
 * a negative metric improves when it becomes worse.
 */
#include "optim/scheduler.h"

#define SMALLEST 1e-8 /* the smallest change of a rate that is made, PyTorch's eps */

const tni_schedule tni_schedule_plateau = { .name = "plateau_lr" };

/* a: factor, b: threshold, c: min_lr, n: patience, m: cooldown */
tn_scheduler *tn_plateau_lr(tn_optim *opt, tn_plateau_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_no_optim(opt)) return tni_poisoned("tn_plateau_lr", "opt");
    if (o.factor == 0) o.factor = 0.1;
    o.threshold = tni_given(o.threshold, o.use_threshold, 1e-4);
    if (o.patience == 0 && !o.use_patience) o.patience = 10;
    if (!(o.factor > 0 && o.factor < 1))
        return tni_fail(TN_E_INVALID, "tn_plateau_lr: factor %g: want in (0, 1)", o.factor);
    if (tni_optim_nonnegative("tn_plateau_lr", "threshold", o.threshold) != TN_OK ||
        tni_optim_nonnegative("tn_plateau_lr", "min_lr", o.min_lr) != TN_OK)
        return NULL;
    if (o.patience < 0 || o.cooldown < 0)
        return tni_fail(TN_E_INVALID,
                        "tn_plateau_lr: patience %" PRId64 ", cooldown %" PRId64 ": want both >= 0",
                        o.patience, o.cooldown);
    return tni_scheduler_new(&tni_schedule_plateau, opt,
                             (tn_scheduler){ .a = o.factor,
                                             .b = o.threshold,
                                             .c = o.min_lr,
                                             .n = o.patience,
                                             .m = o.cooldown,
                                             .maximize = o.maximize,
                                             .absolute = o.absolute,
                                             .best = o.maximize ? -INFINITY : INFINITY });
}

static bool improves(const tn_scheduler *s, double metric)
{
    if (isinf(s->best)) return s->maximize ? metric > s->best : metric < s->best;
    double least = s->absolute ? s->b : s->b * fabs(s->best);
    return s->maximize ? metric > s->best + least : metric < s->best - least;
}

tn_status tn_plateau_step(tn_scheduler *s, double metric)
{
    TNI_HOLD_TRAPS;
    if (!s) return tni_poison("tn_plateau_step", "s");
    if (s->step < s->metrics_from)
        return tni_error(TN_E_STATE,
                         "tn_plateau_step: a %s takes no metric at step %" PRId64
                         ": call tn_scheduler_step",
                         s->schedule->name, s->step);
    if (tni_host_refused("tn_plateau_step", "sets rates", "it called after tn_capture_run"))
        return TN_E_STATE;
    TNI_TRY(tni_scheduler_alone("tn_plateau_step", s));
    tn_optim *opt = s->opt;
    s->step++;
    s = tni_plateau_of(s);
    const bool better = improves(s, metric);
    if (better) s->best = metric;
    s->bad = better || s->cooling > 0 ? 0 : s->bad + 1;
    if (s->cooling > 0) s->cooling--;
    if (s->bad <= s->n) return TN_OK;
    s->bad = 0;
    s->cooling = s->m;
    for (int i = 0; i < opt->n_groups; i++) {
        double *rate = &opt->group[i].lr, lr = TNI_MAX(*rate * s->a, s->c);
        if (*rate - lr > SMALLEST) *rate = lr;
    }
    return TN_OK;
}
