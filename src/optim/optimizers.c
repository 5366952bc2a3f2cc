/*
 * optimizers.c - optimizers by a rule: their types, defaults and constructors. The formulas are in
 * tensor/optim_formulas.h, with their sources; what all optimizers share is in optim.c.
 */
#include "optim/optim.h"

/* Where rules look for these numbers. */
#define FLAG [3]
#define MAXIMIZE [4] = { "maximize", .on_off = true }
/* Where they do not: switches that prepare reads, for recipes of other frameworks. */
enum { EPS_HAT = 5, EPS_IN_SQRT = 5, UNCORRECTED = 6 };
#define SWITCH(at, called) [at] = { called, .on_off = true, .optional = true }

/* A number of the options o for tn_optim_options.set: where it is 0 and not to be used, none. */
#define SET(use, number)                                                                           \
    {                                                                                              \
        (use) || o.number != 0 ? #number : NULL, o.number                                          \
    }
#define OPTIONS(...)                                                                               \
    (tn_optim_options)                                                                             \
    {                                                                                              \
        o.lr, o.weight_decay, { __VA_ARGS__ }, o.use_lr, NULL                                      \
    }

/* ---- SGD: stochastic gradient descent with momentum ------------------------------------------ */

static const char *sgd_agrees(const double *number)
{
    bool fits = number[3] == 0 || (number[0] > 0 && number[1] == 0);
    return fits ? NULL : "want momentum > 0 and no dampening with nesterov";
}

static const tn_optim_type sgd = {
    .name = "sgd",
    .function = "tn_sgd",
    .rule = TN_RULE_SGD,
    .number = { { .name = "momentum" },
                { .name = "dampening" },
                FLAG = { "nesterov", .on_off = true },
                MAXIMIZE },
    .state = { { .name = "momentum_buffer", .with = "momentum" } },
    .momentum = "momentum",
    .agree = sgd_agrees,
};

tn_optim *tn_sgd(const tn_list *parameters, tn_sgd_options o)
{
    return tn_optim_new(
        &sgd, parameters,
        OPTIONS(SET(0, momentum), SET(0, dampening), SET(0, nesterov), SET(0, maximize)));
}

/* ---- Adam and AdamW -------------------------------------------------------------------------- */

/* p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps); t: this tensor's steps, from 1. With
 * eps_hat sqrt(v) + eps is divided as a whole: Kingma and Ba (2015), end of section 2. */
static void adam_prepare(tn_optim_numbers *o)
{
    const bool corrects = o->number[UNCORRECTED] == 0;
    o->own[1] = corrects ? o->lr / (1.0 - pow(o->number[0], (double)o->step)) : o->lr;
    o->own[2] = corrects ? 1.0 / sqrt(1.0 - pow(o->number[1], (double)o->step)) : 1;
    if (o->number[EPS_HAT] != 0) o->number[2] *= o->own[2];
    o->lr = 0; /* no part of a step is along g */
}

/* Decay is decoupled: p *= 1 - lr wd. Loshchilov and Hutter (2019), algorithm 2 */
static void adamw_prepare(tn_optim_numbers *o)
{
    o->own[0] = fma(-o->lr, o->weight_decay, 1.0); /* rounded once, on every machine */
    o->weight_decay = 0;
    adam_prepare(o);
}

#define ADAM(called)                                                                               \
    .name = #called, .function = "tn_" #called, .rule = TN_RULE_ADAM, .momentum = "beta1",         \
    .prepare = called##_prepare,                                                                   \
    .number = { { "beta1", 0.9, .below = 1 },                                                      \
                { "beta2", 0.999, .below = 1 },                                                    \
                { "eps", .initial = 1e-8 },                                                        \
                FLAG = { "amsgrad", .on_off = true },                                              \
                MAXIMIZE,                                                                          \
                SWITCH(EPS_HAT, "eps_hat"),                                                        \
                SWITCH(UNCORRECTED, "no_bias_correction") },                                       \
    .state = { { .name = "exp_avg" },                                                              \
               { .name = "exp_avg_sq" },                                                           \
               { .name = "max_exp_avg_sq", .with = "amsgrad" } }

static const tn_optim_type adam = { ADAM(adam) };
static const tn_optim_type adamw = { ADAM(adamw) };

static tn_optim *make_adam(const tn_optim_type *type, const tn_list *parameters, tn_adam_options o)
{
    return tn_optim_new(type, parameters,
                        OPTIONS(SET(o.use_betas, beta1), SET(o.use_betas, beta2),
                                SET(o.use_eps, eps), SET(0, amsgrad), SET(0, maximize),
                                SET(0, eps_hat), SET(0, no_bias_correction)));
}

tn_optim *tn_adam(const tn_list *parameters, tn_adam_options o)
{
    return make_adam(&adam, parameters, o);
}

tn_optim *tn_adamw(const tn_list *parameters, tn_adamw_options o)
{
    return make_adam(&adamw, parameters, o);
}

/* ---- RMSprop: the gradient over a running root of its mean square ---------------------------- */

/* With eps_in_sqrt eps is added to the squares, not to their root. */
static void rmsprop_prepare(tn_optim_numbers *o)
{
    if (o->number[EPS_IN_SQRT] != 0) o->own[3] = o->number[2], o->number[2] = 0;
}

static const tn_optim_type rmsprop = {
    .name = "rmsprop",
    .function = "tn_rmsprop",
    .rule = TN_RULE_RMSPROP,
    .lr = 1e-2,
    .prepare = rmsprop_prepare,
    .number = { { "alpha", 0.99, .below = 1 },
                { .name = "momentum" },
                { "eps", .initial = 1e-8 },
                FLAG = { "centered", .on_off = true },
                MAXIMIZE,
                SWITCH(EPS_IN_SQRT, "eps_in_sqrt") },
    .state = { { .name = "square_avg" },
               { .name = "grad_avg", .with = "centered" },
               { .name = "momentum_buffer", .with = "momentum" } },
};

tn_optim *tn_rmsprop(const tn_list *parameters, tn_rmsprop_options o)
{
    return tn_optim_new(&rmsprop, parameters,
                        OPTIONS(SET(o.use_alpha, alpha), SET(0, momentum), SET(o.use_eps, eps),
                                SET(0, centered), SET(0, maximize), SET(0, eps_in_sqrt)));
}

/* ---- Adagrad: a rate per element that falls with the squares it has seen --------------------- */

static void adagrad_prepare(tn_optim_numbers *o)
{
    o->lr /= fma((double)(o->step - 1), o->number[0], 1.0);
}

tn_optim *tn_adagrad(const tn_list *parameters, tn_adagrad_options o)
{
    TNI_HOLD_TRAPS;
    const tn_optim_type type = {
        .name = "adagrad",
        .function = "tn_adagrad",
        .rule = TN_RULE_ADAGRAD,
        .lr = 1e-2,
        .prepare = adagrad_prepare,
        .number = { { .name = "lr_decay" }, [2] = { "eps", .initial = 1e-10 }, MAXIMIZE },
        .state = { { .name = "sum", .initial = o.initial_accumulator } },
    };
    if (parameters &&
        tni_optim_nonnegative(type.function, "initial_accumulator", o.initial_accumulator) != TN_OK)
        return NULL;
    return tn_optim_new(&type, parameters,
                        OPTIONS(SET(0, lr_decay), SET(o.use_eps, eps), SET(0, maximize)));
}
