/*
 * sgd.c - stochastic gradient descent with momentum.
 *
 *   g  = dL/dp + wd p
 *   b  = g at the first step, mom b + (1 - damp) g after it
 *   p -= lr (nesterov ? g + mom b : b)              without momentum: p -= lr g
 *
 * Source: Sutskever et al., On the importance of initialization and momentum in deep learning
 * (2013), eq. 1-4, in PyTorch's form (the rate multiplies the velocity, not the gradient).
 */
#include "optim/optim.h"

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
