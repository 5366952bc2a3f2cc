/*
 * one_cycle.c - one rise of the rate to its peak and one fall below its start; momentum the other
 * way.
 *
 *   rate      max/div -> max over steps 0 .. pct total - 1, then to max/(div final_div) at the last
 *   momentum  max -> base, then base -> max, over the same stretches; all along half a cosine
 *
 * Source: Smith and Topin, Super-convergence (2018), section 2, as PyTorch's OneCycleLR (cosine,
 * two phases) does it.
 */
#include "optim/scheduler.h"

/* Whether t is in the rise; *part is how far it is through rise or fall, in [0, 1]. s->d is the
 * (fractional) step of the peak. A step past the last one counts as the last. */
static bool rising(const tn_scheduler *s, int64_t t, double *part)
{
    bool up = (double)t <= s->d;
    double from = up ? 0 : s->d;
    double span = (up ? s->d : (double)(s->n - 1)) - from;
    *part = span > 0 ? TNI_MIN(((double)t - from) / span, 1.0) : 1;
    return up;
}

static double one_cycle_rate(tn_scheduler *s, int64_t t, double base)
{
    double part;
    (void)base;
    return rising(s, t, &part) ? tni_cosine(s->a, s->b, part) : tni_cosine(s->b, s->c, part);
}

static double one_cycle_momentum(const tn_scheduler *s, int64_t t)
{
    double part;
    if (s->momentum[0] < 0) return -1; /* fixed_momentum */
    return rising(s, t, &part) ? tni_cosine(s->momentum[1], s->momentum[0], part)
                               : tni_cosine(s->momentum[0], s->momentum[1], part);
}

/* It ends with total, where the call after the last training step leads. */
static const tni_schedule one_cycle = {
    .name = "one_cycle_lr",
    .rate = one_cycle_rate,
    .momentum = one_cycle_momentum,
    .ends = true,
};

tn_scheduler *tn_one_cycle_lr(tn_optim *opt, tn_one_cycle_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_no_optim(opt)) return tni_poisoned(__func__, "opt");
    if (o.pct_start == 0) o.pct_start = 0.3;
    if (o.div_factor == 0) o.div_factor = 25;
    if (o.final_div_factor == 0) o.final_div_factor = 1e4;
    o.base_momentum = tni_given(o.base_momentum, o.use_momentum, 0.85);
    o.max_momentum = tni_given(o.max_momentum, o.use_momentum, 0.95);
    if (o.total_steps < 1)
        return tni_fail(TN_E_INVALID, "%s: total_steps %" PRId64 ": want >= 1", __func__,
                        o.total_steps);
    if (!(o.pct_start > 0 && o.pct_start <= 1))
        return tni_fail(TN_E_INVALID, "%s: pct_start %g: want in (0, 1]", __func__, o.pct_start);
    if (!(o.max_lr > 0 && isfinite(o.max_lr)) || !(o.div_factor > 0) || !(o.final_div_factor > 0))
        return tni_fail(TN_E_INVALID,
                        "%s: max_lr %g, div_factor %g, final_div_factor %g: want all > 0", __func__,
                        o.max_lr, o.div_factor, o.final_div_factor);
    const tn_number_type base = { "base_momentum", .below = 1 },
                         most = { "max_momentum", .below = 1 };
    if (tni_number_check(__func__, &base, o.base_momentum) != TN_OK ||
        tni_number_check(__func__, &most, o.max_momentum) != TN_OK)
        return NULL;
    const int momentum = tni_optim_number_at(opt->type, opt->type->momentum);
    if (!o.fixed_momentum && (momentum < 0 || opt->group[0].number[momentum] == 0))
        return tni_fail(TN_E_INVALID,
                        "%s: the optimizer (%s) runs without momentum: want fixed_momentum",
                        __func__, opt->type->name);
    if (o.fixed_momentum) o.base_momentum = o.max_momentum = -1;
    const tn_scheduler given = { .fixed = true,
                                 .n = o.total_steps,
                                 .a = o.max_lr / o.div_factor,
                                 .b = o.max_lr,
                                 .c = o.max_lr / o.div_factor / o.final_div_factor,
                                 .d = o.pct_start * (double)o.total_steps - 1,
                                 .momentum = { o.base_momentum, o.max_momentum } };
    return tni_scheduler_start(tni_scheduler_new(&one_cycle, opt, given));
}
