/*
 * optim_formulas.h - every rule once: a row of a list, the scalars of a step, and what it does to
 * one element, for f32 and f64, on the CPU and on the GPU (bf16 and f16 go through f32).
 *
 * The first part, list and scalars, is for every includer. The second, the formulas, is for those
 * that define REAL (float or double) and REAL_SQRT; C++ includes it again for the other REAL.
 */
#ifndef TNI_OPTIM_FORMULAS_H
#define TNI_OPTIM_FORMULAS_H

#include "tensor/kernels.h"
#include "tensor/math.h" /* TN_FN */

/*
 * A row is O(NAME, formula, sets of states), of the rule TN_RULE_NAME (tenon/optim_type.h says what
 * it computes). In the formula p is the parameter, g its gradient (negated to maximize, weight
 * decay added), s0, s1, s2 the states (NULL: none), s the scalars. Each set S(NAME, bits) of states
 * that it may have is compiled separately: bit i stands for state i.
 */
/* clang-format off */
#define TNI_OPTIM_RULES(O, S)                                                                      \
    O(SGD, tni_sgd(p, g, s0, s), S(SGD, 0) S(SGD, 1))                                              \
    O(ADAM, tni_adam(p, g, s0, s1, s2, s), S(ADAM, 3) S(ADAM, 7))                                  \
    O(RMSPROP, tni_rmsprop(p, g, s0, s1, s2, s),                                                   \
      S(RMSPROP, 1) S(RMSPROP, 3) S(RMSPROP, 5) S(RMSPROP, 7))                                     \
    O(ADAGRAD, tni_adagrad(p, g, s0, s), S(ADAGRAD, 1))                                            \
    O(LION, tni_lion(p, g, s0, s), S(LION, 1))                                                     \
    O(ADAMAX, tni_adamax(p, g, s0, s1, s), S(ADAMAX, 3))
/* clang-format on */

#define TNI_OPTIM_SETS(NAME, formula, sets) sets
#define TNI_OPTIM_CASE(rule, states) ((rule)*8 + (states)) /* a number for each set of each row */

/* A bit per state that the tensor has. */
static inline int tni_optim_states(const tni_optim_tensor *t)
{
    return (t->s0 ? 1 : 0) | (t->s1 ? 2 : 0) | (t->s2 ? 4 : 0);
}

/* The scalars of one tensor in one step: in double, rounded by the formulas. */
typedef struct tni_optim_scalars {
    double sign, wd; /* sign: -1 to maximize; wd: weight decay that is added to the gradient */
    double beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
    double rate;        /* what the step is multiplied by */
    double shrink;      /* what p is multiplied by first: decoupled decay */
    double mean_rate;   /* Adam: of the average gradient */
    double root_scale;  /* Adam: 1 / sqrt(1 - beta2^t) */
    double root_eps;    /* RMSprop: added under the root */
    double first, flag; /* 1 or 0: the tensor's first step, its group's flag */
} tni_optim_scalars;

static inline tni_optim_scalars tni_optim_scalars_of(const tn_optim_numbers *o)
{
    tni_optim_scalars s;
    s.sign = o->number[4] != 0 ? -1.0 : 1.0;
    s.wd = o->weight_decay;
    s.beta1 = o->number[0];
    s.one_minus_beta1 = 1.0 - o->number[0];
    s.beta2 = o->number[1];
    s.one_minus_beta2 = 1.0 - o->number[1];
    s.eps = o->number[2];
    s.rate = o->lr;
    s.shrink = o->own[0];
    s.mean_rate = o->own[1];
    s.root_scale = o->own[2];
    s.root_eps = o->own[3];
    s.first = o->step <= 1 ? 1.0 : 0.0;
    s.flag = o->number[3] != 0 ? 1.0 : 0.0;
    return s;
}

#endif

/* ---- one element ----------------------------------------------------------------------------- */

#ifdef REAL

/* buf = momentum buf + (1 - dampening) g, at the first step g; p moves by buf, with Nesterov by g +
 * momentum buf. Sutskever et al. (2013), section 2. buf NULL: no momentum. */
TN_FN void tni_sgd(REAL *p, REAL g, REAL *buf, const tni_optim_scalars *s)
{
    const REAL momentum = (REAL)s->beta1, keep = (REAL)s->one_minus_beta2;
    if (buf) {
        REAL moved = s->first != 0 ? g : momentum * *buf + keep * g;
        *buf = moved;
        g = s->flag != 0 ? g + momentum * moved : moved;
    }
    *p -= (REAL)s->rate * g;
}

/* m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p -= (rate g + mean_rate m) / (sqrt(v) root_scale +
 * eps); with vmax (AMSGrad) the running maximum of v replaces v. Kingma and Ba (2015), algorithm 1;
 * Reddi et al. (2018), algorithm 2; rate: Dozat (2016), algorithm 2. */
TN_FN void tni_adam(REAL *p, REAL g, REAL *m, REAL *v, REAL *vmax, const tni_optim_scalars *s)
{
    const REAL shrunk = (REAL)s->shrink * *p;
    REAL mean = (REAL)s->beta1 * *m + (REAL)s->one_minus_beta1 * g;
    REAL square = (REAL)s->beta2 * *v + (REAL)s->one_minus_beta2 * g * g;
    *m = mean;
    *v = square;
    if (vmax) {
        square = *vmax > square ? *vmax : square; /* a NaN in v stays */
        *vmax = square;
    }
    *p = shrunk - ((REAL)s->rate * g + (REAL)s->mean_rate * mean) /
                      (REAL_SQRT(square) * (REAL)s->root_scale + (REAL)s->eps);
}

/* v = a v + (1-a) g^2. g is divided by sqrt(v + root_eps) + eps, if centered (average not NULL) by
 * sqrt(v - average^2 + root_eps) + eps, and goes through a momentum buffer unless buf is NULL.
 * Hinton, Coursera lecture 6e (2012); Graves (2013), eq. 38-45 */
TN_FN void tni_rmsprop(REAL *p, REAL g, REAL *v, REAL *average, REAL *buf,
                       const tni_optim_scalars *s)
{
    const REAL a = (REAL)s->beta1, one_minus_a = (REAL)s->one_minus_beta1;
    REAL square = a * *v + one_minus_a * g * g;
    *v = square;
    if (average) {
        REAL mean = a * *average + one_minus_a * g;
        *average = mean;
        square = square - mean * mean;
    }
    REAL step = g / (REAL_SQRT(square + (REAL)s->root_eps) + (REAL)s->eps);
    if (buf) {
        step = (REAL)s->beta2 * *buf + step;
        *buf = step;
    }
    *p -= (REAL)s->rate * step;
}

/* s += g^2, p -= rate g / (sqrt(s) + eps). Duchi et al. (2011), figure 1 */
TN_FN void tni_adagrad(REAL *p, REAL g, REAL *sum, const tni_optim_scalars *s)
{
    REAL total = *sum + g * g;
    *sum = total;
    *p -= (REAL)s->rate * g / (REAL_SQRT(total) + (REAL)s->eps);
}

/* m = b2 m + (1-b2) g, and p moves by the sign of b1 m + (1-b1) g. Chen et al., Symbolic discovery
 * of optimization algorithms (2023), algorithm 2 */
TN_FN void tni_lion(REAL *p, REAL g, REAL *m, const tni_optim_scalars *s)
{
    REAL along = (REAL)s->beta1 * *m + (REAL)s->one_minus_beta1 * g;
    *m = (REAL)s->beta2 * *m + (REAL)s->one_minus_beta2 * g;
    along = along > 0 ? (REAL)1 : along < 0 ? (REAL)-1 : 0 * along; /* a NaN stays */
    *p = (REAL)s->shrink * *p - (REAL)s->rate * along;
}

/* Adam with a falling maximum of |g| for the root: u = max(b2 u, |g| + eps), p -= rate m / u.
 * Kingma and Ba (2015), algorithm 2 */
TN_FN void tni_adamax(REAL *p, REAL g, REAL *m, REAL *u, const tni_optim_scalars *s)
{
    REAL mean = (REAL)s->beta1 * *m + (REAL)s->one_minus_beta1 * g;
    REAL now = (g < 0 ? -g : g) + (REAL)s->eps, most = (REAL)s->beta2 * *u;
    most = now > most || now != now ? now : most; /* a NaN in either stays */
    *m = mean;
    *u = most;
    *p -= (REAL)s->rate * mean / most;
}

/* The row's formula; callers pass rule and the NULLs among the states as constants. */
TN_FN void tni_optim_update(int rule, REAL *p, REAL g, REAL *s0, REAL *s1, REAL *s2,
                            const tni_optim_scalars *s)
{
    g = (REAL)s->sign * g;
    if (s->wd != 0) g = g + (REAL)s->wd * *p; /* without decay an infinite p leaves g alone */
    switch (rule) {
#define TNI_OPTIM_FORMULA(NAME, formula, sets)                                                     \
    case TN_RULE_##NAME: formula; break;
        TNI_OPTIM_RULES(TNI_OPTIM_FORMULA, )
    }
}

#endif
