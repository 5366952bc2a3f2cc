/*
 * optim_rules.h - the optimizers' kernels with numbers and switches of every kind, for the suites
 * that compare kernels.
 */
#ifndef TENON_TESTS_OPTIM_RULES_H
#define TENON_TESTS_OPTIM_RULES_H

#include "tensor/kernels.h"

typedef struct rule {
    tn_optim_rule rule;
    double beta1, beta2, eps;
    bool flag, maximize;
    double own[4]; /* as a type's prepare leaves them, but 1 - the first */
} rule;

static const rule optimizers[] = {
    { TN_RULE_SGD, 0, 0, 0, false, false, { 0 } },
    { TN_RULE_SGD, 0.9, 0.1, 0, false, false, { 0 } },
    { TN_RULE_SGD, 0.9, 0, 0, true, true, { 0 } },
    { TN_RULE_ADAM, 0.9, 0.999, 1e-8, false, false, { 0, 0.1, 31 } },
    { TN_RULE_ADAM, 0.9, 0.99, 1e-8, true, true, { 0, 0.05, 10 } },
    { TN_RULE_ADAM, 0.8, 0.999, 1e-6, false, false, { 0.02, 0.05, 31 } },
    { TN_RULE_ADAM, 0.9, 0.99, 1e-8, true, false, { 0.01, 0.1, 10 } },
    { TN_RULE_ADAM, 0.9, 0.99, 1, false, false, { 0, 0.1, 0 } },
    { TN_RULE_RMSPROP, 0.99, 0, 1e-8, false, false, { 0 } },
    { TN_RULE_RMSPROP, 0.99, 0, 1e-8, true, false, { 0 } },
    { TN_RULE_RMSPROP, 0.9, 0.7, 1e-8, false, false, { 0 } },
    { TN_RULE_RMSPROP, 0.9, 0.7, 1e-8, true, false, { 0 } },
    { TN_RULE_RMSPROP, 0.9, 0, 0, false, false, { 0, 0, 0, 1e-3 } },
    { TN_RULE_ADAGRAD, 0.1, 0, 1e-10, false, false, { 0 } },
    { TN_RULE_LION, 0.9, 0.99, 0, false, false, { 0.005 } },
    { TN_RULE_ADAMAX, 0.9, 0.99, 1e-8, false, true, { 0 } },
};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* Whether an optimizer uses a state slot. */
static inline bool uses(const rule *o, int slot)
{
    switch (o->rule) {
    case TN_RULE_SGD: return slot == 0 && o->beta1 != 0;
    case TN_RULE_ADAM: return slot < 2 || o->flag;
    case TN_RULE_RMSPROP: return slot == 0 || (slot == 1 ? o->flag : o->beta2 != 0);
    case TN_RULE_ADAMAX: return slot < 2;
    default: return slot == 0;
    }
}

/* Its numbers for tensor k of a step; far: from which on some differ. */
static inline tn_optim_numbers numbers_of(const rule *o, int k, int far, double decay)
{
    return (tn_optim_numbers){ .lr = 0.01 * (k + 1),
                               .weight_decay = decay,
                               .number = { o->beta1 * (k >= far ? 0.5 : 1),
                                           o->beta2 * (k >= far ? 0.75 : 1), o->eps * (k + 1),
                                           o->flag, o->maximize },
                               .own = { 1 - o->own[0] * k, o->own[1], o->own[2], o->own[3] } };
}

#endif
