/*
 * schedules.c - the schedules: a table of what the constructors take, the formulas, the
 * constructors.
 *
 * t is the step, counted from 0; base is the group's initial rate, or the rate last set by hand.
 */
#include "optim/scheduler.h"

/* clang-format off */
enum {
    STEP, MULTISTEP, EXPONENTIAL, COSINE, RESTARTS, LINEAR, CONSTANT, POLYNOMIAL, LAMBDA, WARMUP,
    MULTIPLICATIVE
};

static double rate(tn_scheduler *s, int64_t t, double base);

static const tni_schedule schedules[] = {
    /* name, rate, where counts begin, what n and m are called, what a and b are: finite, >= 0 */
    [STEP] = { "step_lr", rate, 1, { "step_size" }, { "gamma" }, NULL, false },
    [MULTISTEP] = { "multistep_lr", rate, 0, { NULL }, { "gamma" }, NULL, false },
    [EXPONENTIAL] = { "exponential_lr", rate, 0, { NULL }, { "gamma" }, NULL, false },
    [COSINE] = { "cosine_lr", rate, 1, { "t_max" }, { "eta_min" }, NULL, false },
    [RESTARTS] = { "cosine_restarts_lr", rate, 1, { "t0", "mult" }, { "eta_min" }, NULL, false },
    [LINEAR] = { "linear_lr", rate, 1, { "n" }, { "start", "end" }, NULL, false },
    [CONSTANT] = { "constant_lr", rate, 0, { "n" }, { "factor" }, NULL, false },
    [POLYNOMIAL] = { "polynomial_lr", rate, 1, { "n" }, { "power" }, NULL, false },
    [LAMBDA] = { "lambda_lr", rate, 0, { NULL }, { NULL }, NULL, false },
    [WARMUP] = { "warmup_cosine_lr", rate, 0, { NULL }, { "eta_min" }, NULL, false },
    [MULTIPLICATIVE] = { "multiplicative_lr", rate, 0, { NULL }, { NULL }, NULL, false },
};
/* clang-format on */

/* The cosine over cycles of n, n m, n m^2 ... steps. */
static double restarts(const tn_scheduler *s, int64_t t, double base)
{
    int64_t cycle = s->n;
    if (s->m == 1)
        t %= cycle;
    else
        while (t >= cycle) {
            t -= cycle;
            if (__builtin_mul_overflow(cycle, s->m, &cycle)) cycle = INT64_MAX;
        }
    return tni_cosine(base, s->a, (double)t / (double)cycle);
}

/* base (t + 1) / n below n, then the cosine from n to m, then min. */
static double warmup(const tn_scheduler *s, int64_t t, double base)
{
    if (t < s->n) return base * (double)(t + 1) / (double)s->n;
    if (t >= s->m) return s->a;
    return tni_cosine(base, s->a, (double)(t - s->n) / (double)(s->m - s->n));
}

/* factor(1) ... factor(t), kept so that the next step is one call. */
static double product(tn_scheduler *s, int64_t t)
{
    if (s->factors > t) s->factors = 0;
    if (s->factors == 0) s->product = 1;
    while (s->factors < t) s->product *= s->factor(++s->factors, s->user);
    return s->product;
}

static double rate(tn_scheduler *s, int64_t t, double base)
{
    const double a = s->a, n = (double)s->n;
    switch (s->schedule - schedules) {
    case STEP: return base * pow(a, (double)(t / s->n));
    case MULTISTEP: return base * pow(a, tni_milestones_passed(s, t));
    case EXPONENTIAL: return base * pow(a, (double)t);
    case COSINE: return tni_cosine(base, a, (double)t / n);
    case RESTARTS: return restarts(s, t, base);
    case LINEAR: return base * (a + (s->b - a) * (double)TNI_MIN(t, s->n) / n);
    case CONSTANT: return t < s->n ? base * a : base;
    case POLYNOMIAL: return base * pow(1 - (double)TNI_MIN(t, s->n) / n, a);
    case LAMBDA: return base * s->factor(t, s->user);
    case MULTIPLICATIVE: return base * product(s, t);
    default: return warmup(s, t, base);
    }
}

/* ---- making one ------------------------------------------------------------------------------ */

/* given: the numbers n, m, a, b, and the milestones. */
static tn_scheduler *make(int kind, tn_optim *opt, tn_scheduler given)
{
    TNI_HOLD_TRAPS;
    const tni_schedule *schedule = &schedules[kind];
    const int64_t count[] = { given.n, given.m };
    const double number[] = { given.a, given.b };
    char function[40];
    snprintf(function, sizeof function, "tn_%s", schedule->name);
    if (tni_no_optim(opt)) return tni_poisoned(function, "opt");
    if ((kind == LAMBDA || kind == MULTIPLICATIVE) && !given.factor)
        return tni_fail(TN_E_INVALID, "%s: factor is NULL: want a function", function);
    for (int i = 0; i < 2; i++)
        if (schedule->count[i] && count[i] < schedule->least)
            return tni_fail(TN_E_INVALID, "%s: %s %" PRId64 ": want >= %d", function,
                            schedule->count[i], count[i], schedule->least);
    for (int i = 0; i < 2; i++)
        if (schedule->number[i] &&
            tni_optim_nonnegative(function, schedule->number[i], number[i]) != TN_OK)
            return NULL;
    return tni_scheduler_start(tni_scheduler_new(schedule, opt, given));
}

/* The numbers of a kind, and its parameters behind the optimizer. */
#define SCHEDULE(tn_name, KIND, NUMBERS, ...)                                                      \
    tn_scheduler *tn_name(tn_optim *opt, __VA_ARGS__)                                              \
    {                                                                                              \
        return make(KIND, opt, NUMBERS);                                                           \
    }
#define OF(...) ((tn_scheduler){ __VA_ARGS__ })
SCHEDULE(tn_step_lr, STEP, OF(.n = step_size, .a = gamma), int64_t step_size, double gamma)
SCHEDULE(tn_multistep_lr, MULTISTEP,
         OF(.n_milestones = n, .milestone = (int64_t *)milestones, .a = gamma),
         const int64_t *milestones, int n, double gamma)
SCHEDULE(tn_exponential_lr, EXPONENTIAL, OF(.a = gamma), double gamma)
SCHEDULE(tn_cosine_lr, COSINE, OF(.n = t_max, .a = eta_min), int64_t t_max, double eta_min)
SCHEDULE(tn_cosine_restarts_lr, RESTARTS, OF(.n = t0, .m = mult, .a = eta_min), int64_t t0,
         int64_t mult, double eta_min)
SCHEDULE(tn_linear_lr, LINEAR, OF(.n = n, .a = start, .b = end), double start, double end,
         int64_t n)
SCHEDULE(tn_constant_lr, CONSTANT, OF(.n = n, .a = factor), double factor, int64_t n)
SCHEDULE(tn_polynomial_lr, POLYNOMIAL, OF(.n = n, .a = power), int64_t n, double power)
SCHEDULE(tn_lambda_lr, LAMBDA, OF(.factor = factor, .user = user),
         double (*factor)(int64_t step, void *user), void *user)
SCHEDULE(tn_multiplicative_lr, MULTIPLICATIVE, OF(.factor = factor, .user = user),
         double (*factor)(int64_t step, void *user), void *user)

tn_scheduler *tn_warmup_cosine_lr(tn_optim *opt, int64_t warmup, int64_t total, double eta_min)
{
    if (opt && (warmup < 0 || total < 1 || warmup > total))
        return tni_fail(TN_E_INVALID,
                        "tn_warmup_cosine_lr: warmup %" PRId64 ", total %" PRId64
                        ": want 0 <= warmup <= total",
                        warmup, total);
    return make(WARMUP, opt, (tn_scheduler){ .n = warmup, .m = total, .a = eta_min });
}
