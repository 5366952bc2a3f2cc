/*
 * schedules.c - the schedules: formula, constructor, one after another.
 *
 * t is the step, counted from 0; base the rate the group had when it was made (or was last set by
 * hand).
 */
#include <math.h>

#include "optim/scheduler.h"

static const double pi = 3.14159265358979323846;

/* ---- step: base gamma^floor(t / n) ----------------------------------------------------------- */

static double step_rate(const tn_scheduler *s, int64_t t, double base)
{
    return base * pow(s->a, (double)(t / s->n));
}

static const tni_schedule step_schedule = { .name = "step_lr", .rate = step_rate };

tn_scheduler *tn_step_lr(tn_optim *opt, int64_t step_size, double gamma)
{
    if (!opt) return tni_poisoned("tn_step_lr", "opt");
    if (step_size < 1)
        return tni_fail(TN_E_INVALID, "tn_step_lr: step_size %lld: wanted >= 1",
                        (long long)step_size);
    if (tni_optim_nonnegative("step_lr", "gamma", gamma) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&step_schedule, opt);
    if (!s) return NULL;
    s->n = step_size;
    s->a = gamma;
    return tni_scheduler_start(s);
}

/* ---- multistep: base gamma^(milestones passed) ----------------------------------------------- */

static double multistep_rate(const tn_scheduler *s, int64_t t, double base)
{
    return base * pow(s->a, tni_milestones_passed(s, t));
}

static const tni_schedule multistep_schedule = { .name = "multistep_lr", .rate = multistep_rate };

tn_scheduler *tn_multistep_lr(tn_optim *opt, const int64_t *milestones, int n, double gamma)
{
    if (!opt) return tni_poisoned("tn_multistep_lr", "opt");
    if (tni_optim_nonnegative("multistep_lr", "gamma", gamma) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&multistep_schedule, opt);
    if (!s) return NULL;
    s->a = gamma;
    if (tni_scheduler_milestones(s, milestones, n) != TN_OK) {
        tn_scheduler_free(s);
        return NULL;
    }
    return tni_scheduler_start(s);
}

/* ---- exponential: base gamma^t --------------------------------------------------------------- */

static double exponential_rate(const tn_scheduler *s, int64_t t, double base)
{
    return base * pow(s->a, (double)t);
}

static const tni_schedule exponential_schedule = { .name = "exponential_lr",
                                                   .rate = exponential_rate };

tn_scheduler *tn_exponential_lr(tn_optim *opt, double gamma)
{
    if (!opt) return tni_poisoned("tn_exponential_lr", "opt");
    if (tni_optim_nonnegative("exponential_lr", "gamma", gamma) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&exponential_schedule, opt);
    if (!s) return NULL;
    s->a = gamma;
    return tni_scheduler_start(s);
}

/* ---- cosine: min + (base - min) (1 + cos(pi t / n)) / 2 -------------------------------------- */

static double cosine(double from, double to, double part)
{
    return to + (from - to) * (1 + cos(pi * part)) / 2;
}

static double cosine_rate(const tn_scheduler *s, int64_t t, double base)
{
    return cosine(base, s->a, (double)t / (double)s->n);
}

static const tni_schedule cosine_schedule = { .name = "cosine_lr", .rate = cosine_rate };

tn_scheduler *tn_cosine_lr(tn_optim *opt, int64_t t_max, double eta_min)
{
    if (!opt) return tni_poisoned("tn_cosine_lr", "opt");
    if (t_max < 1)
        return tni_fail(TN_E_INVALID, "tn_cosine_lr: t_max %lld: wanted >= 1", (long long)t_max);
    if (tni_optim_nonnegative("cosine_lr", "eta_min", eta_min) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&cosine_schedule, opt);
    if (!s) return NULL;
    s->n = t_max;
    s->a = eta_min;
    return tni_scheduler_start(s);
}

/* ---- warm restarts: the cosine over cycles of n, n m, n m^2 ... steps ------------------------ */

static double restarts_rate(const tn_scheduler *s, int64_t t, double base)
{
    int64_t cycle = s->n;
    if (s->m == 1)
        t %= cycle;
    else
        while (t >= cycle) {
            t -= cycle;
            if (__builtin_mul_overflow(cycle, s->m, &cycle)) cycle = INT64_MAX;
        }
    return cosine(base, s->a, (double)t / (double)cycle);
}

static const tni_schedule restarts_schedule = { .name = "cosine_restarts_lr",
                                                .rate = restarts_rate };

tn_scheduler *tn_cosine_restarts_lr(tn_optim *opt, int64_t t0, int64_t mult, double eta_min)
{
    if (!opt) return tni_poisoned("tn_cosine_restarts_lr", "opt");
    if (t0 < 1 || mult < 1)
        return tni_fail(TN_E_INVALID, "tn_cosine_restarts_lr: t0 %lld, mult %lld: both wanted >= 1",
                        (long long)t0, (long long)mult);
    if (tni_optim_nonnegative("cosine_restarts_lr", "eta_min", eta_min) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&restarts_schedule, opt);
    if (!s) return NULL;
    s->n = t0;
    s->m = mult;
    s->a = eta_min;
    return tni_scheduler_start(s);
}

/* ---- linear: base (start + (end - start) min(t, n) / n) -------------------------------------- */

static double linear_rate(const tn_scheduler *s, int64_t t, double base)
{
    return base * (s->a + (s->b - s->a) * (double)TNI_MIN(t, s->n) / (double)s->n);
}

static const tni_schedule linear_schedule = { .name = "linear_lr", .rate = linear_rate };

tn_scheduler *tn_linear_lr(tn_optim *opt, double start, double end, int64_t n)
{
    if (!opt) return tni_poisoned("tn_linear_lr", "opt");
    if (n < 1) return tni_fail(TN_E_INVALID, "tn_linear_lr: n %lld: wanted >= 1", (long long)n);
    if (tni_optim_nonnegative("linear_lr", "start", start) != TN_OK ||
        tni_optim_nonnegative("linear_lr", "end", end) != TN_OK)
        return NULL;
    tn_scheduler *s = tni_scheduler_new(&linear_schedule, opt);
    if (!s) return NULL;
    s->n = n;
    s->a = start;
    s->b = end;
    return tni_scheduler_start(s);
}

/* ---- constant: base factor before step n, base from there ------------------------------------ */

static double constant_rate(const tn_scheduler *s, int64_t t, double base)
{
    return t < s->n ? base * s->a : base;
}

static const tni_schedule constant_schedule = { .name = "constant_lr", .rate = constant_rate };

tn_scheduler *tn_constant_lr(tn_optim *opt, double factor, int64_t n)
{
    if (!opt) return tni_poisoned("tn_constant_lr", "opt");
    if (n < 0) return tni_fail(TN_E_INVALID, "tn_constant_lr: n %lld: wanted >= 0", (long long)n);
    if (tni_optim_nonnegative("constant_lr", "factor", factor) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&constant_schedule, opt);
    if (!s) return NULL;
    s->n = n;
    s->a = factor;
    return tni_scheduler_start(s);
}

/* ---- polynomial: base (1 - min(t, n) / n)^power ---------------------------------------------- */

static double polynomial_rate(const tn_scheduler *s, int64_t t, double base)
{
    return base * pow(1 - (double)TNI_MIN(t, s->n) / (double)s->n, s->a);
}

static const tni_schedule polynomial_schedule = { .name = "polynomial_lr",
                                                  .rate = polynomial_rate };

tn_scheduler *tn_polynomial_lr(tn_optim *opt, int64_t n, double power)
{
    if (!opt) return tni_poisoned("tn_polynomial_lr", "opt");
    if (n < 1) return tni_fail(TN_E_INVALID, "tn_polynomial_lr: n %lld: wanted >= 1", (long long)n);
    if (tni_optim_nonnegative("polynomial_lr", "power", power) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&polynomial_schedule, opt);
    if (!s) return NULL;
    s->n = n;
    s->a = power;
    return tni_scheduler_start(s);
}

/* ---- lambda: base factor(t) ------------------------------------------------------------------ */

static double lambda_rate(const tn_scheduler *s, int64_t t, double base)
{
    return base * s->factor(t, s->user);
}

static const tni_schedule lambda_schedule = { .name = "lambda_lr", .rate = lambda_rate };

tn_scheduler *tn_lambda_lr(tn_optim *opt, double (*factor)(int64_t step, void *user), void *user)
{
    if (!opt) return tni_poisoned("tn_lambda_lr", "opt");
    if (!factor)
        return tni_fail(TN_E_INVALID, "tn_lambda_lr: factor is NULL: a function is wanted");
    tn_scheduler *s = tni_scheduler_new(&lambda_schedule, opt);
    if (!s) return NULL;
    s->factor = factor;
    s->user = user;
    return tni_scheduler_start(s);
}

/* ---- warm-up and cosine: base (t + 1) / n below n, then the cosine from n to m, then min ------- */

static double warmup_rate(const tn_scheduler *s, int64_t t, double base)
{
    if (t < s->n) return base * (double)(t + 1) / (double)s->n;
    if (t >= s->m) return s->a;
    return cosine(base, s->a, (double)(t - s->n) / (double)(s->m - s->n));
}

static const tni_schedule warmup_schedule = { .name = "warmup_cosine_lr", .rate = warmup_rate };

tn_scheduler *tn_warmup_cosine_lr(tn_optim *opt, int64_t warmup, int64_t total, double eta_min)
{
    if (!opt) return tni_poisoned("tn_warmup_cosine_lr", "opt");
    if (warmup < 0 || total < 1 || warmup > total)
        return tni_fail(
            TN_E_INVALID,
            "tn_warmup_cosine_lr: warmup %lld, total %lld: 0 <= warmup <= total is wanted",
            (long long)warmup, (long long)total);
    if (tni_optim_nonnegative("warmup_cosine_lr", "eta_min", eta_min) != TN_OK) return NULL;
    tn_scheduler *s = tni_scheduler_new(&warmup_schedule, opt);
    if (!s) return NULL;
    s->n = warmup;
    s->m = total;
    s->a = eta_min;
    return tni_scheduler_start(s);
}
