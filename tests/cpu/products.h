/* products.h - descriptions of products, for the suites that call their kernels one by one. */
#ifndef TENON_TESTS_PRODUCTS_H
#define TENON_TESTS_PRODUCTS_H

#include "tensor/cpu/dense/dense.h"

/* Of one product whose operands are stored by rows or by columns. */
static inline tni_product product_of(const tni_gemm *g)
{
    bool ta = g->a_col != 1 || g->a_row < g->k, tb = g->b_col != 1 || g->b_row < g->n;
    return (tni_product){ g->m,
                          g->n,
                          g->k,
                          ta ? g->a_col : g->a_row,
                          tb ? g->b_col : g->b_row,
                          g->c_row,
                          g->dtype,
                          g->sums_f32 ? TN_F32 : g->dtype,
                          ta,
                          tb,
                          g->accumulate,
                          g->a,
                          g->b,
                          g->bias,
                          g->c,
                          NULL,
                          0 };
}

#endif
