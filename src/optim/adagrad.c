/*
 * adagrad.c - a rate per element that falls with the squares it has seen.
 *
 *   g  = dL/dp + wd p,  s += g^2
 *   p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)
 *
 * Source: Duchi, Hazan and Singer, Adaptive subgradient methods (2011), section 1.1, the diagonal
 * form.
 */
#include "optim/optim.h"

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
