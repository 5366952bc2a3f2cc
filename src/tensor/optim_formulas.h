/*
 * optim_formulas.h - every optimizer once: a row of a list, the scalars of a step, and what it does
 * to one element, for f32 and f64, on the CPU and on the GPU (bf16 and f16 go through f32).
 *
 * The first part, list and scalars, is for every includer. The second, the formulas, is for those
 * that define REAL (float or double) and REAL_SQRT; C++ includes it again for the other REAL.
 */
#ifndef TNI_OPTIM_FORMULAS_H
#define TNI_OPTIM_FORMULAS_H

#include <math.h>

#include "tensor/kernels.h"
#include "tensor/math.h" /* TN_FN */

/*
 * A row is O(NAME, scalars, formula, sets of states). TNI_NAME is its number, tni_scalars_SCALARS
 * computes the scalars. In the formula p is the parameter, g its gradient (negated to maximize,
 * weight decay added), s0, s1, s2 the states (NULL: none), s the scalars. Each set S(NAME, bits) of
 * states that it may have is compiled separately: bit i stands for state i. What beta1, beta2, eps
 * and flag mean in each row:
 *
 *     SGD       momentum, dampening, -; nesterov     s0: momentum
 *     Adam(W)   beta1, beta2, eps; amsgrad           s0, s1: m, v; s2: the largest v
 *     RMSprop   alpha, momentum, eps; centered       s0: v; s1: average gradient; s2: momentum
 *     Adagrad   lr_decay, -, eps                     s0: sum
 */
/* clang-format off */
#define TNI_OPTIMIZERS(O, S)                                                                       \
    O(SGD, given, tni_sgd(p, g, s0, s), S(SGD, 0) S(SGD, 1))                                       \
    O(ADAM, adam, tni_adam(p, g, s0, s1, s2, s), S(ADAM, 3) S(ADAM, 7))                            \
    O(ADAMW, adamw, tni_adamw(p, g, s0, s1, s2, s), S(ADAMW, 3) S(ADAMW, 7))                       \
    O(RMSPROP, given, tni_rmsprop(p, g, s0, s1, s2, s),                                            \
      S(RMSPROP, 1) S(RMSPROP, 3) S(RMSPROP, 5) S(RMSPROP, 7))                                     \
    O(ADAGRAD, adagrad, tni_adagrad(p, g, s0, s), S(ADAGRAD, 1))
/* clang-format on */

#define TNI_OPTIM_KIND(NAME, scalars, formula, sets) TNI_##NAME,
#define TNI_OPTIM_SETS(NAME, scalars, formula, sets) sets
#define TNI_OPTIM_CASE(kind, states) ((kind)*8 + (states)) /* a number for each set of each row */

enum { TNI_OPTIMIZERS(TNI_OPTIM_KIND, ) };

/* A bit per state that the tensor has. */
static inline int tni_optim_states(const tni_optim_tensor *t)
{
    return (t->s0 ? 1 : 0) | (t->s1 ? 2 : 0) | (t->s2 ? 4 : 0);
}

/* ---- the scalars of one tensor in one step: computed in double, rounded by the formulas ------ */

typedef struct tni_optim_scalars {
    double sign, wd; /* sign: -1 to maximize; wd: weight decay that is added to the gradient */
    double beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
    double rate;        /* what the step is multiplied by: lr, bias-corrected or decayed */
    double root_scale;  /* Adam: 1 / sqrt(1 - beta2^t) */
    double shrink;      /* decoupled decay: 1 - lr wd */
    double first, flag; /* 1 or 0: the tensor's first step, the optimizer's flag */
} tni_optim_scalars;

static inline tni_optim_scalars tni_scalars_given(const tni_optim_args *o,
                                                  const tni_optim_tensor *t)
{
    tni_optim_scalars s;
    s.sign = o->maximize ? -1.0 : 1.0;
    s.wd = t->weight_decay;
    s.beta1 = t->beta1;
    s.one_minus_beta1 = 1.0 - t->beta1;
    s.beta2 = t->beta2;
    s.one_minus_beta2 = 1.0 - t->beta2;
    s.eps = t->eps;
    s.rate = t->lr;
    s.root_scale = 1.0;
    s.shrink = 1.0;
    s.first = t->step <= 1 ? 1.0 : 0.0;
    s.flag = o->flag ? 1.0 : 0.0;
    return s;
}

static inline tni_optim_scalars tni_scalars_adam(const tni_optim_args *o, const tni_optim_tensor *t)
{
    tni_optim_scalars s = tni_scalars_given(o, t);
    s.rate = t->lr / (1.0 - pow(t->beta1, (double)t->step));
    s.root_scale = 1.0 / sqrt(1.0 - pow(t->beta2, (double)t->step));
    return s;
}

static inline tni_optim_scalars tni_scalars_adamw(const tni_optim_args *o,
                                                  const tni_optim_tensor *t)
{
    tni_optim_scalars s = tni_scalars_adam(o, t);
    s.shrink = 1.0 - t->lr * t->weight_decay;
    s.wd = 0.0;
    return s;
}

static inline tni_optim_scalars tni_scalars_adagrad(const tni_optim_args *o,
                                                    const tni_optim_tensor *t)
{
    tni_optim_scalars s = tni_scalars_given(o, t);
    s.rate = t->lr / (1.0 + (double)(t->step - 1) * t->beta1);
    return s;
}

static inline tni_optim_scalars tni_optim_scalars_of(const tni_optim_args *o,
                                                     const tni_optim_tensor *t)
{
    switch (o->kind) {
#define TNI_OPTIM_SCALARS(NAME, scalars, formula, sets)                                            \
    case TNI_##NAME: return tni_scalars_##scalars(o, t);
        TNI_OPTIMIZERS(TNI_OPTIM_SCALARS, )
    }
    return tni_scalars_given(o, t);
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

/* m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p -= rate m / (sqrt(v) root_scale + eps), where rate
 * = lr / (1 - b1^t) and root_scale = 1 / sqrt(1 - b2^t); with vmax (AMSGrad) the running maximum
 * of v replaces v. Kingma and Ba (2015), algorithm 1; Reddi et al. (2018), algorithm 2. */
TN_FN void tni_adam(REAL *p, REAL g, REAL *m, REAL *v, REAL *vmax, const tni_optim_scalars *s)
{
    REAL mean = (REAL)s->beta1 * *m + (REAL)s->one_minus_beta1 * g;
    REAL square = (REAL)s->beta2 * *v + (REAL)s->one_minus_beta2 * g * g;
    *m = mean;
    *v = square;
    if (vmax) {
        square = *vmax > square ? *vmax : square; /* a NaN in v stays */
        *vmax = square;
    }
    *p -= (REAL)s->rate * mean / (REAL_SQRT(square) * (REAL)s->root_scale + (REAL)s->eps);
}

/* Decay decoupled from the gradient: p shrinks first. Loshchilov and Hutter (2019), algorithm 2 */
TN_FN void tni_adamw(REAL *p, REAL g, REAL *m, REAL *v, REAL *vmax, const tni_optim_scalars *s)
{
    *p *= (REAL)s->shrink;
    tni_adam(p, g, m, v, vmax, s);
}

/* v = a v + (1-a) g^2. g is divided by sqrt(v) + eps, if centered (average not NULL) by sqrt(v -
 * average^2) + eps, and goes through a momentum buffer unless buf is NULL. Hinton, Coursera lecture
 * 6e (2012); Graves (2013), eq. 38-45 */
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
    REAL step = g / (REAL_SQRT(square) + (REAL)s->eps);
    if (buf) {
        step = (REAL)s->beta2 * *buf + step;
        *buf = step;
    }
    *p -= (REAL)s->rate * step;
}

/* s += g^2, p -= rate g / (sqrt(s) + eps), rate = lr / (1 + (t-1) lr_decay). Duchi et al. (2011),
 * figure 1 */
TN_FN void tni_adagrad(REAL *p, REAL g, REAL *sum, const tni_optim_scalars *s)
{
    REAL total = *sum + g * g;
    *sum = total;
    *p -= (REAL)s->rate * g / (REAL_SQRT(total) + (REAL)s->eps);
}

/* The row's formula; callers pass kind and the NULLs among the states as constants. */
TN_FN void tni_optim_update(int kind, REAL *p, REAL g, REAL *s0, REAL *s1, REAL *s2,
                            const tni_optim_scalars *s)
{
    g = (REAL)s->sign * g;
    if (s->wd != 0) g = g + (REAL)s->wd * *p; /* without decay an infinite p leaves g alone */
    switch (kind) {
#define TNI_OPTIM_FORMULA(NAME, scalars, formula, sets)                                            \
    case TNI_##NAME: formula; break;
        TNI_OPTIMIZERS(TNI_OPTIM_FORMULA, )
    }
}

#endif
