/*
 * cblas.h - the part of OpenBLAS that tenon calls, where there is none: a browser, -Dblas=none.
 * Row-major operands, alpha 1, beta 0 or 1; plain.c computes it on the thread that calls.
 */
#pragma once

typedef int blasint;
enum { CblasRowMajor = 101, CblasNoTrans = 111, CblasTrans = 112 };

#define TNI_PLAIN_BLAS(F, T)                                                                       \
    /* C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, beta 0 or 1 */                               \
    void cblas_##F##gemm(int order, int ta, int tb, blasint m, blasint n, blasint k, T alpha,      \
                         const T *a, blasint lda, const T *b, blasint ldb, T beta, T *c,           \
                         blasint ldc);                                                             \
    /* y = op(A) x + beta y, A [m, n] */                                                           \
    void cblas_##F##gemv(int order, int ta, blasint m, blasint n, T alpha, const T *a,             \
                         blasint lda, const T *x, blasint incx, T beta, T *y, blasint incy);
TNI_PLAIN_BLAS(s, float)
TNI_PLAIN_BLAS(d, double)

static inline int openblas_get_parallel(void)
{
    return 0; /* never */
}
static inline const char *openblas_get_config(void)
{
    return "none: plain loops";
}
static inline const char *openblas_get_corename(void)
{
    return "plain";
}
static inline int openblas_get_num_threads(void)
{
    return 1;
}
static inline void openblas_set_num_threads(int n)
{
    (void)n;
}
