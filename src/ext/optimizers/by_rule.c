/*
 * by_rule.c - Lion, Adamax, NAdam and RAdam: types that take a formula of the core and prepare its
 * numbers. This folder uses public headers only, as a program's own optimizers do.
 */
#include <math.h>

#include <tenon/optimizers.h>

#define MAXIMIZE [4] = { "maximize", .on_off = true }
#define DECOUPLED [3] = { "decoupled_weight_decay", .on_off = true }

/* Decay shrinks p instead of being added to its gradient. */
static void decouple(tn_optim_numbers *o)
{
    o->own[0] = fma(-o->lr, o->weight_decay, 1); /* rounded once, on every machine */
    o->weight_decay = 0;
}

/* ---- Lion: the sign of an average ------------------------------------------------------------ */

tn_optim *tn_lion(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = {
        .name = "lion",
        .function = "tn_lion",
        .rule = TN_RULE_LION,
        .lr = 1e-4,
        .momentum = "beta1",
        .number = { { "beta1", 0.9, .below = 1 }, { "beta2", 0.99, .below = 1 }, MAXIMIZE },
        .state = { { .name = "exp_avg" } },
        .prepare = decouple,
    };
    return tn_optim_new(&type, parameters, o);
}

/* ---- relatives of Adam ----------------------------------------------------------------------- */

#define LIKE_ADAM(called, rate, second, ...)                                                       \
    .name = #called, .function = "tn_" #called, .lr = rate, .momentum = "beta1",                   \
    .prepare = called##_prepare, .state = { { .name = "exp_avg" }, { .name = second } },           \
    .number = { { "beta1", 0.9, .below = 1 },                                                      \
                { "beta2", 0.999, .below = 1 },                                                    \
                { "eps", .initial = 1e-8 },                                                        \
                MAXIMIZE,                                                                          \
                __VA_ARGS__ }

static void adamax_prepare(tn_optim_numbers *o)
{
    o->lr /= 1 - pow(o->number[0], (double)o->step);
}

tn_optim *tn_adamax(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = { LIKE_ADAM(adamax, 2e-3, "exp_inf", ),
                                        .rule = TN_RULE_ADAMAX };
    return tn_optim_new(&type, parameters, o);
}

enum { MOMENTUM_DECAY = 5 };

/* mu_t = b1 (1 - 0.96^(decay t) / 2), and the product of the first t of them in closed form: b1^t
 * times that of (1 - q^i / 2), q = 0.96^decay, by log(1 - x) = -(x + x^2 / 2 + ...); the sum over i
 * of q^ik is geometric. A step is rate_t g + rate_t+1 m. Dozat, Incorporating Nesterov momentum
 * into Adam (2016), algorithm 2 */
static void nadam_prepare(tn_optim_numbers *o)
{
    enum { TERMS = 60 }; /* the k-th is below 2^-k t */
    if (o->number[3] != 0) decouple(o);
    const double n = (double)o->step, log_q = o->number[MOMENTUM_DECAY] * log(0.96);
    const double b1 = o->number[0], q = exp(log_q), q_n = exp(n * log_q);
    const double mu = b1 * (1 - 0.5 * q_n), next = b1 * (1 - 0.5 * exp((n + 1) * log_q));
    double sum = 0, half = 0.5, q_k = q, q_nk = q_n;
    for (int k = 1; k <= TERMS; k++, half *= 0.5, q_k *= q, q_nk *= q_n)
        sum += half / k * (q_k < 1 ? q_k * (1 - q_nk) / (1 - q_k) : n);
    const double product = pow(b1, n) * exp(-sum);
    o->own[1] = o->lr * next / (1 - product * next);
    o->own[2] = 1 / sqrt(1 - pow(o->number[1], n));
    o->lr *= (1 - mu) / (1 - product);
}

tn_optim *tn_nadam(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = {
        LIKE_ADAM(nadam, 2e-3, "exp_avg_sq",
                  DECOUPLED, [MOMENTUM_DECAY] = { "momentum_decay", .initial = 4e-3 }),
        .rule = TN_RULE_ADAM,
    };
    return tn_optim_new(&type, parameters, o);
}

/* Liu et al., On the variance of the adaptive learning rate and beyond (2020), algorithm 2, with
 * PyTorch's bound: while the variance's degrees of freedom are at most 5, a step along m. */
static void radam_prepare(tn_optim_numbers *o)
{
    if (o->number[3] != 0) decouple(o);
    const double n = (double)o->step, last = 2 / (1 - o->number[1]) - 1;
    const double b2_n = pow(o->number[1], n), rho = last - 2 * n * b2_n / (1 - b2_n);
    const double part = (rho - 4) * (rho - 2) * last / ((last - 4) * (last - 2) * rho);
    o->own[1] = o->lr / (1 - pow(o->number[0], n)) * (rho > 5 ? sqrt(part * (1 - b2_n)) : 1);
    o->own[2] = rho > 5;
    if (rho <= 5) o->number[2] = 1; /* eps is all of the divisor */
    o->lr = 0;
}

tn_optim *tn_radam(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = { LIKE_ADAM(radam, 1e-3, "exp_avg_sq", DECOUPLED),
                                        .rule = TN_RULE_ADAM };
    return tn_optim_new(&type, parameters, o);
}
