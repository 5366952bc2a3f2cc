/* elementwise.h - what the elementwise, copying and reducing ops share. */
#pragma once

#include "autograd/op.h"
#include "tensor/formulas.h"

/* Parameters of a formula. */
typedef struct tni_formula_args {
    double p[2];
} tni_formula_args;

/* Applies an op of one tensor with them. */
tn_tensor *tni_apply_formula(const tn_op *op, tn_tensor *x, double p, double q);

/* An op whose result is dense and computed by binary function `function` of inputs 0 and 1. */
typedef struct tni_binary_op {
    tn_op op;
    int function;
} tni_binary_op;

/* The shape that two inputs broadcast to; an error naming the axis where they do not fit. */
tn_status tni_not_broadcast(const tni_call *c, const tn_tensor *a, const tn_tensor *b);
static inline tn_status tni_broadcast_inputs(tni_call *c, int first, int second, tn_shape *shape)
{
    const tn_tensor *a = c->in[first], *b = c->in[second];
    return tni_broadcast(&a->shape, &b->shape, shape) ? TN_OK : tni_not_broadcast(c, a, b);
}
tn_status tni_binary_forward(tni_call *c); /* out[0] = function of inputs 0 and 1, broadcast */
/* y = function of a and b, broadcast to y's shape; y may be a. */
tn_status tni_run_binary(int function, const tn_tensor *y, const tn_tensor *a, const tn_tensor *b,
                         const double *p);

/* A gradient by one fused kernel, outside the graph: b and c are broadcast to like's shape. NULL if
 * a, b or c is NULL. last: a, the gradient that arrived, is not read again, so the result may take
 * its memory if nobody else sees it. */
tn_tensor *tni_fused2(int function, tn_tensor *a, tn_tensor *b, const double *p,
                      const tni_meta *like, bool last);
tn_tensor *tni_fused3(int function, tn_tensor *a, tn_tensor *b, tn_tensor *c, const double *p,
                      const tni_meta *like, bool last);

tn_tensor *tni_sign(tn_tensor *x); /* sign(x), a constant */
/* Checks clamp's bounds: they must be in order. integral: whether integers stay integers, which
 * needs an integer between the bounds. An infinite bound leaves its side open. */
tn_status tni_check_bounds(const char *function, double low, double high, tn_dtype dtype,
                           bool *integral);
