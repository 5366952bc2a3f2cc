/*
 * optim_formulas.h - what an optimizer does to one element, one text for C and CUDA.
 *
 * A template: define TNI_OPTIM_REAL (float or double), TNI_OPTIM(name) (the function's name for
 * that type) and TNI_OPTIM_SQRT, then include; may be included again for the other type. p is the
 * parameter, g its gradient, already negated when maximizing; wd is weight decay. Scalars that do
 * not change over a tensor (bias corrections, the decayed rate) are made in double by
 * tni_optim_scalars_of and then rounded.
 */
#include "tensor/kernels.h"
#include "tensor/math.h" /* TN_FN */

#ifndef TNI_OPTIM_FORMULAS_H
#define TNI_OPTIM_FORMULAS_H

#include <math.h>

/* The scalars of one tensor in one step. */
typedef struct tni_optim_scalars {
    double wd;
    double a, one_minus_a; /* Adam: beta1; RMSprop: alpha; SGD: momentum, 1 - dampening */
    double b, one_minus_b; /* Adam: beta2; RMSprop: momentum, - */
    double eps;
    double rate;       /* what the step is multiplied by: lr, bias-corrected or decayed */
    double root_scale; /* Adam: 1 / sqrt(1 - beta2^t) */
    double shrink;     /* AdamW: 1 - lr wd */
    bool first;        /* SGD: buf = g, undamped */
} tni_optim_scalars;

static inline tni_optim_scalars tni_optim_scalars_of(const tni_optim_args *o,
                                                     const tni_optim_tensor *t)
{
    tni_optim_scalars s;
    memset(&s, 0, sizeof s);
    s.wd = t->weight_decay;
    s.a = o->beta1;
    s.one_minus_a = 1.0 - (o->kind == TNI_SGD ? o->beta2 : o->beta1);
    s.b = o->beta2;
    s.one_minus_b = 1.0 - o->beta2;
    s.eps = o->eps;
    s.rate = t->lr;
    s.root_scale = 1.0;
    s.shrink = 1.0;
    s.first = t->step <= 1;
    if (o->kind == TNI_ADAM || o->kind == TNI_ADAMW) {
        s.rate = t->lr / (1.0 - pow(o->beta1, (double)t->step));
        s.root_scale = 1.0 / sqrt(1.0 - pow(o->beta2, (double)t->step));
    }
    if (o->kind == TNI_ADAMW) {
        s.shrink = 1.0 - t->lr * t->weight_decay;
        s.wd = 0.0;
    }
    if (o->kind == TNI_ADAGRAD) {
        s.rate = t->lr / (1.0 + (double)(t->step - 1) * o->beta1);
    }
    return s;
}

#endif

/* buf = momentum buf + (1 - dampening) g, the first time g; the step is buf, with Nesterov g +
 * momentum buf. Sutskever et al. (2013), section 2. buf NULL: no momentum. */
TN_FN void TNI_OPTIM(tni_sgd)(TNI_OPTIM_REAL *p, TNI_OPTIM_REAL g, TNI_OPTIM_REAL *buf,
                              TNI_OPTIM_REAL momentum, TNI_OPTIM_REAL one_minus_dampening,
                              TNI_OPTIM_REAL lr, bool first, bool nesterov)
{
    if (buf) {
        TNI_OPTIM_REAL moved = first ? g : momentum * *buf + one_minus_dampening * g;
        *buf = moved;
        g = nesterov ? g + momentum * moved : moved;
    }
    *p -= lr * g;
}

/* m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p -= rate m / (sqrt(v) root_scale + eps), where rate
 * = lr / (1 - b1^t) and root_scale = 1 / sqrt(1 - b2^t); with vmax (AMSGrad) its running maximum
 * stands for v. Kingma and Ba (2015), algorithm 1; Reddi et al. (2018), algorithm 2. */
TN_FN void TNI_OPTIM(tni_adam)(TNI_OPTIM_REAL *p, TNI_OPTIM_REAL g, TNI_OPTIM_REAL *m,
                               TNI_OPTIM_REAL *v, TNI_OPTIM_REAL *vmax, TNI_OPTIM_REAL b1,
                               TNI_OPTIM_REAL one_minus_b1, TNI_OPTIM_REAL b2,
                               TNI_OPTIM_REAL one_minus_b2, TNI_OPTIM_REAL eps, TNI_OPTIM_REAL rate,
                               TNI_OPTIM_REAL root_scale)
{
    TNI_OPTIM_REAL mean = b1 * *m + one_minus_b1 * g;
    TNI_OPTIM_REAL square = b2 * *v + one_minus_b2 * g * g;
    *m = mean;
    *v = square;
    if (vmax) {
        square = *vmax > square ? *vmax : square; /* a NaN in v stays */
        *vmax = square;
    }
    *p -= rate * mean / (TNI_OPTIM_SQRT(square) * root_scale + eps);
}

/* v = a v + (1-a) g^2; centered (average not NULL): its variance, v - average^2; then by d =
 * sqrt(.) + eps, through a momentum buffer unless buf is NULL. Hinton, Coursera lecture 6e (2012);
 * Graves (2013), eq. 38-45 */
TN_FN void TNI_OPTIM(tni_rmsprop)(TNI_OPTIM_REAL *p, TNI_OPTIM_REAL g, TNI_OPTIM_REAL *v,
                                  TNI_OPTIM_REAL *average, TNI_OPTIM_REAL *buf, TNI_OPTIM_REAL a,
                                  TNI_OPTIM_REAL one_minus_a, TNI_OPTIM_REAL momentum,
                                  TNI_OPTIM_REAL eps, TNI_OPTIM_REAL lr)
{
    TNI_OPTIM_REAL square = a * *v + one_minus_a * g * g;
    *v = square;
    if (average) {
        TNI_OPTIM_REAL mean = a * *average + one_minus_a * g;
        *average = mean;
        square = square - mean * mean;
    }
    TNI_OPTIM_REAL step = g / (TNI_OPTIM_SQRT(square) + eps);
    if (buf) {
        step = momentum * *buf + step;
        *buf = step;
    }
    *p -= lr * step;
}

/* s += g^2, p -= rate g / (sqrt(s) + eps), rate = lr / (1 + (t-1) lr_decay). Duchi et al. (2011),
 * figure 1 */
TN_FN void TNI_OPTIM(tni_adagrad)(TNI_OPTIM_REAL *p, TNI_OPTIM_REAL g, TNI_OPTIM_REAL *sum,
                                  TNI_OPTIM_REAL eps, TNI_OPTIM_REAL rate)
{
    TNI_OPTIM_REAL total = *sum + g * g;
    *sum = total;
    *p -= rate * g / (TNI_OPTIM_SQRT(total) + eps);
}

/* p += rate (g - p), and g where rate is 1: also where p is not finite. */
TN_FN void TNI_OPTIM(tni_lerp)(TNI_OPTIM_REAL *p, TNI_OPTIM_REAL g, TNI_OPTIM_REAL rate)
{
    *p = rate == (TNI_OPTIM_REAL)1 ? g : TN_LERP(*p, g, rate);
}
