/*
 * adam.c - Adam and AdamW.
 *
 *   m  = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2         t counts this tensor's steps from 1
 *   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *
 * Adam adds wd p to g; AdamW shrinks p by 1 - lr wd first and leaves g alone. With amsgrad the
 * largest v so far takes the place of v.
 *
 * Source: Kingma and Ba, Adam (2015), algorithm 1; Loshchilov and Hutter, Decoupled weight decay
 * regularization (2019), algorithm 2; Reddi et al., On the convergence of Adam and beyond (2018).
 */
#include "optim/optim.h"

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

static tn_optim *make(const tni_optim_type *type, const tn_list *parameters, tn_adam_options o)
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
    return make(&adam, parameters, o);
}

tn_optim *tn_adamw(const tn_list *parameters, tn_adamw_options o)
{
    return make(&adamw, parameters, o);
}
