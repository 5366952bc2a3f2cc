/*
 * optim.c - an optimizer's step for some elements of one tensor.
 *
 * The rule and its states are constant arguments of an inlined function, and all other choices
 * of the formulas are arithmetic, so each loop is straight-line code and vectorises.
 */
#include "tensor/cpu/real/rows.h"
#include "tensor/optim_formulas.h"

TNI_INLINE void loop(int rule, int states, const tni_optim_tensor *t, const tni_optim_scalars s,
                     int64_t begin, int64_t end)
{
    REAL *restrict p = t->p, *restrict s0 = t->s0, *restrict s1 = t->s1, *restrict s2 = t->s2;
    const REAL *restrict g = t->g;
    /* never; but a state that may be NULL would be written under a mask */
    if ((states & 1 && !s0) || (states & 2 && !s1) || (states & 4 && !s2)) return;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        tni_optim_update(rule, &p[i], g[i], states & 1 ? &s0[i] : NULL, states & 2 ? &s1[i] : NULL,
                         states & 4 ? &s2[i] : NULL, &s);
    }
}

/* By a type's own formula. */
static void call(const tn_optim_type *type, const tni_optim_tensor *t, int64_t begin, int64_t end)
{
    REAL *state[] = { t->s0, t->s1, t->s2 };
    for (int s = 0; s < 3; s++)
        if (state[s]) state[s] += begin;
    type->TNI_CAT2(formula, TNI_REAL_NAME)(end - begin, (REAL *)t->p + begin,
                                           (const REAL *)t->g + begin, state, t->numbers);
}

void K(tni_optim_span)(const tn_optim_type *type, const tni_optim_tensor *t, int64_t begin,
                       int64_t end)
{
    if (type->rule == TN_RULE_NONE) {
        call(type, t, begin, end);
        return;
    }
    const tni_optim_scalars s = tni_optim_scalars_of(t->numbers);
    switch (TNI_OPTIM_CASE(type->rule, tni_optim_states(t))) {
#define STEP(NAME, states)                                                                         \
    case TNI_OPTIM_CASE(TN_RULE_##NAME, states):                                                   \
        loop(TN_RULE_##NAME, states, t, s, begin, end);                                            \
        break;
        TNI_OPTIM_RULES(TNI_OPTIM_SETS, STEP)
    }
}
