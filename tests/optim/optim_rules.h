/*
 * optim_rules.h - the optimizers' kernels with numbers and switches of every kind, for the suites
 * that compare kernels.
 */
#ifndef TENON_TESTS_OPTIM_RULES_H
#define TENON_TESTS_OPTIM_RULES_H

#include "tensor/kernels.h"

typedef struct rule {
    int kind;
    double beta1, beta2, eps;
    bool flag, maximize;
} rule;

static const rule optimizers[] = {
    { TNI_SGD, 0, 0, 0, false, false },           { TNI_SGD, 0.9, 0.1, 0, false, false },
    { TNI_SGD, 0.9, 0, 0, true, true },           { TNI_ADAM, 0.9, 0.999, 1e-8, false, false },
    { TNI_ADAM, 0.9, 0.99, 1e-8, true, true },    { TNI_ADAMW, 0.8, 0.999, 1e-6, false, false },
    { TNI_ADAMW, 0.9, 0.99, 1e-8, true, false },  { TNI_RMSPROP, 0.99, 0, 1e-8, false, false },
    { TNI_RMSPROP, 0.99, 0, 1e-8, true, false },  { TNI_RMSPROP, 0.9, 0.7, 1e-8, false, false },
    { TNI_RMSPROP, 0.9, 0.7, 1e-8, true, false }, { TNI_ADAGRAD, 0.1, 0, 1e-10, false, false },
};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* Whether an optimizer uses a state slot. */
static inline bool uses(const rule *o, int slot)
{
    switch (o->kind) {
    case TNI_SGD: return slot == 0 && o->beta1 != 0;
    case TNI_ADAM:
    case TNI_ADAMW: return slot < 2 || o->flag;
    case TNI_RMSPROP: return slot == 0 || (slot == 1 ? o->flag : o->beta2 != 0);
    case TNI_ADAGRAD: return slot == 0;
    default: return false;
    }
}

#endif
