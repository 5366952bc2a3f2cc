/*
 * half.h - for tests of bf16 and f16: the two, how finely they round, how far results are apart.
 */
#ifndef TENON_TESTS_HALF_H
#define TENON_TESTS_HALF_H

#include "ops/op_table.h"

static const tn_dtype halves[2] = { TN_BF16, TN_F16 };

/* Half a unit in the last place of 1. */
static inline double unit(tn_dtype dtype)
{
    return dtype == TN_BF16 ? 0x1p-9 : dtype == TN_F16 ? 0x1p-12 : 0x1p-25;
}

static inline double norm_of(tn_tensor *t)
{
    return tn_item(tn_norm(tn_to_dtype(tn_to(t, tn_cpu()), TN_F64), 2, NULL, 0, false));
}

/* |a - b| / |b| in the 2-norm, wherever they are. */
static inline double distance(tn_tensor *a, tn_tensor *b)
{
    double whole = 0, far = 0;
    TN_NO_GRAD
    {
        a = tn_to_dtype(tn_to(a, tn_cpu()), TN_F64);
        b = tn_to_dtype(tn_to(b, tn_cpu()), TN_F64);
        whole = norm_of(b), far = norm_of(tn_sub(a, b));
    }
    return whole > 0 ? far / whole : far;
}

static inline tn_tensor *fresh(tn_tensor *t, bool requires_grad)
{
    return op_leaf(tn_clone(t), requires_grad);
}

#endif
