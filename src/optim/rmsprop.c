/*
 * rmsprop.c - the gradient over a running root of its mean square.
 *
 *   g  = dL/dp + wd p
 *   v  = a v + (1 - a) g^2
 *   d  = sqrt(v) + eps                       centered: e = a e + (1 - a) g, d = sqrt(v - e^2) + eps
 *   p -= lr g / d                            with momentum: b = mom b + g / d, p -= lr b
 *
 * Source: Hinton, Neural networks for machine learning, lecture 6e (2012); the centered form:
 * Graves, Generating sequences with recurrent neural networks (2013), eq. 38-45.
 */
#include "optim/optim.h"

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
