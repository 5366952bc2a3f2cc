/* reduce.h - what reductions over axes share: arguments, shape rule, call of the kernel. */
#pragma once

#include "autograd/ops/elementwise.h"

typedef struct tni_reduce_args {
    unsigned axes; /* bit per reduced axis */
    bool keepdim;
    double p; /* correction, order of the norm */
} tni_reduce_args;

typedef enum tni_reduce_kind {
    TNI_REDUCE_SUM,   /* integers give i64 */
    TNI_REDUCE_REAL,  /* floating only */
    TNI_REDUCE_KEEPS, /* dtype stays; the slices must not be empty */
    TNI_REDUCE_BOOL
} tni_reduce_kind;

typedef struct tni_reduce_op {
    tn_op op;
    int function;
    tni_reduce_kind kind;
} tni_reduce_op;

tn_status tni_reduce_shape(tni_call *c);
tn_status tni_reduce_forward(tni_call *c);
/* Reduces x over axes (n_axes 0: all) on behalf of a public function. */
tn_tensor *tni_reduce_along(const tni_reduce_op *op, const char *function, tn_tensor *x,
                            const int *axes, int n_axes, bool keepdim, double p);

/* The axes as a bit mask. False and a message if one is not there or is named twice. */
bool tni_axes_mask(const char *function, const tn_tensor *x, const int *axes, int n_axes,
                   unsigned *mask);
/* x's shape with size 1 in the reduced axes. */
tn_shape tni_kept_shape(const tn_shape *x, unsigned axes);
/* t (a result or its gradient) in that shape, so that it broadcasts against x. */
tn_tensor *tni_with_axes(const tni_grad *g, tn_tensor *t);
/* The axes of a mask, for calls of other reductions; returns how many. */
int tni_mask_axes(unsigned mask, int rank, int *axes);

/* t, a dense result without the reduced axes, as an array of shape kept. */
tni_array tni_kept_array(const tn_tensor *t, const tn_shape *kept);
/* dy shared by the elements of x for which equal, a bool tensor, is true. */
tn_tensor *tni_shared_gradient(const tni_grad *g, tn_tensor *dy, tn_tensor *equal);

/* A reduction, op_NAME, by a kernel. */
#define TNI_REDUCE_OP_BY(name_, function_, kind_, cast_, formula_, gradient_, reads_, shape_,      \
                         forward_, backward_)                                                      \
    static const tni_reduce_op op_##name_ = {                                                      \
        .op = { TNI_OP_FIELDS(#name_, 1, formula_, gradient_, shape_, forward_, backward_,         \
                              .dtypes = TNI_ANY_DTYPE, .autocast = cast_, .reads = { reads_ }) },  \
        .function = function_,                                                                     \
        .kind = kind_,                                                                             \
    };
/* By TNI_R_NAME, as most are. */
#define TNI_REDUCE_OP(name_, kind_, formula_, gradient_, reads_, backward_)                        \
    TNI_REDUCE_OP_BY(name_, TNI_R_##name_, kind_,                                                  \
                     (kind_) == TNI_REDUCE_BOOL ? TNI_CAST_AUTO : TNI_CAST_F32, formula_,          \
                     gradient_, reads_, tni_reduce_shape, tni_reduce_forward, backward_)
/* Its public function, if it has no parameter p. */
#define TNI_REDUCTION(tn_name, name)                                                               \
    tn_tensor *tn_name(tn_tensor *x, const int *axes, int n_axes, bool keepdim)                    \
    {                                                                                              \
        return tni_reduce_along(&op_##name, #tn_name, x, axes, n_axes, keepdim, 0.0);              \
    }
