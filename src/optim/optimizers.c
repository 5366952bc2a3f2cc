/*
 * optimizers.c - the optimizers' constructors: their numbers, defaults, and what is refused. What a
 * step does to one element stands in tensor/optim_formulas.h, what all share in optim.c.
 */
#include "optim/optim.h"

/* ---- SGD: stochastic gradient descent with momentum ------------------------------------------ */

/*
 *   g  = dL/dp + wd p
 *   b  = g at the first step, mom b + (1 - damp) g after it
 *   p -= lr (nesterov ? g + mom b : b)              without momentum: p -= lr g
 *
 * Source: Sutskever et al., On the importance of initialization and momentum in deep learning
 * (2013), eq. 1-4, in PyTorch's form (the rate multiplies the velocity, not the gradient).
 */
static const tni_optim_type sgd = {
    .name = "sgd",
    .kernel = TNI_SGD,
    .slot = { "momentum_buffer" },
    .number = { "momentum", "dampening" },
    .flag = "nesterov",
    .momentum_is_beta1 = true,
};

tn_optim *tn_sgd(const tn_list *parameters, tn_sgd_options o)
{
    TNI_HOLD_TRAPS;
    o.lr = tni_given(o.lr, o.use_lr, 1e-3);
    if (parameters && o.nesterov && (o.momentum == 0 || o.dampening != 0))
        return tni_fail(TN_E_INVALID,
                        "tn_sgd: nesterov with momentum %g and dampening %g: want momentum > 0 and "
                        "no dampening",
                        o.momentum, o.dampening);
    tni_optim_args args = { TNI_SGD, o.nesterov, o.maximize };
    tni_optim_group group = { .lr = o.lr,
                              .weight_decay = o.weight_decay,
                              .number = { o.momentum, o.dampening } };
    return tni_optim_new(&sgd, args, o.momentum != 0 ? 1 : 0, 0, parameters, group);
}

/* ---- Adam and AdamW -------------------------------------------------------------------------- */

/*
 *   m  = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2         t counts this tensor's steps from 1
 *   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *
 * Adam adds wd p to g; AdamW shrinks p by 1 - lr wd first and leaves g alone. With amsgrad the
 * largest v so far takes the place of v.
 *
 * Source: Kingma and Ba, Adam (2015), algorithm 1; Loshchilov and Hutter, Decoupled weight decay
 * regularization (2019), algorithm 2; Reddi et al., On the convergence of Adam and beyond (2018).
 */
#define ADAM(name_, kernel_)                                                                       \
    static const tni_optim_type name_ = {                                                          \
        .name = #name_,                                                                            \
        .kernel = kernel_,                                                                         \
        .slot = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" },                                     \
        .number = { "beta1", "beta2", "eps" },                                                     \
        .fractions = 3,                                                                            \
        .flag = "amsgrad",                                                                         \
        .momentum_is_beta1 = true,                                                                 \
    };
ADAM(adam, TNI_ADAM)
ADAM(adamw, TNI_ADAMW)

static tn_optim *make_adam(const tni_optim_type *type, const tn_list *parameters, tn_adam_options o)
{
    TNI_HOLD_TRAPS;
    o.lr = tni_given(o.lr, o.use_lr, 1e-3);
    o.eps = tni_given(o.eps, o.use_eps, 1e-8);
    o.beta1 = tni_given(o.beta1, o.use_betas, 0.9);
    o.beta2 = tni_given(o.beta2, o.use_betas, 0.999);
    tni_optim_args args = { type->kernel, o.amsgrad, o.maximize };
    tni_optim_group group = { .lr = o.lr,
                              .weight_decay = o.weight_decay,
                              .number = { o.beta1, o.beta2, o.eps } };
    return tni_optim_new(type, args, o.amsgrad ? 7 : 3, 0, parameters, group);
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

/*
 *   g  = dL/dp + wd p
 *   v  = a v + (1 - a) g^2
 *   d  = sqrt(v) + eps                       centered: e = a e + (1 - a) g, d = sqrt(v - e^2) + eps
 *   p -= lr g / d                            with momentum: b = mom b + g / d, p -= lr b
 *
 * Source: Hinton, Neural networks for machine learning, lecture 6e (2012); the centered form:
 * Graves, Generating sequences with recurrent neural networks (2013), eq. 38-45.
 */
static const tni_optim_type rmsprop = {
    .name = "rmsprop",
    .kernel = TNI_RMSPROP,
    .slot = { "square_avg", "grad_avg", "momentum_buffer" },
    .number = { "alpha", "momentum", "eps" },
    .fractions = 1,
    .flag = "centered",
};

tn_optim *tn_rmsprop(const tn_list *parameters, tn_rmsprop_options o)
{
    TNI_HOLD_TRAPS;
    o.lr = tni_given(o.lr, o.use_lr, 1e-2);
    o.alpha = tni_given(o.alpha, o.use_alpha, 0.99);
    o.eps = tni_given(o.eps, o.use_eps, 1e-8);
    unsigned slots = 1u | (o.centered ? 2u : 0) | (o.momentum != 0 ? 4u : 0);
    tni_optim_args args = { TNI_RMSPROP, o.centered, o.maximize };
    tni_optim_group group = { .lr = o.lr,
                              .weight_decay = o.weight_decay,
                              .number = { o.alpha, o.momentum, o.eps } };
    return tni_optim_new(&rmsprop, args, slots, 0, parameters, group);
}

/* ---- Adagrad: a rate per element that falls with the squares it has seen --------------------- */

/*
 *   g  = dL/dp + wd p,  s += g^2
 *   p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)
 *
 * Source: Duchi, Hazan and Singer, Adaptive subgradient methods (2011), section 1.1, the diagonal
 * form.
 */
static const tni_optim_type adagrad = {
    .name = "adagrad",
    .kernel = TNI_ADAGRAD,
    .slot = { "sum" },
    .number = { "lr_decay", NULL, "eps" },
};

tn_optim *tn_adagrad(const tn_list *parameters, tn_adagrad_options o)
{
    TNI_HOLD_TRAPS;
    o.lr = tni_given(o.lr, o.use_lr, 1e-2);
    o.eps = tni_given(o.eps, o.use_eps, 1e-10);
    if (parameters &&
        tni_optim_nonnegative(adagrad.name, "initial_accumulator", o.initial_accumulator) != TN_OK)
        return NULL;
    tni_optim_args args = { TNI_ADAGRAD, false, o.maximize };
    tni_optim_group group = { .lr = o.lr,
                              .weight_decay = o.weight_decay,
                              .number = { o.lr_decay, 0, o.eps } };
    return tni_optim_new(&adagrad, args, 1, o.initial_accumulator, parameters, group);
}
