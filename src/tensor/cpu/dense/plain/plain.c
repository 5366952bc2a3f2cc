/*
 * plain.c - products of f32 and f64 where there is no OpenBLAS: small ones, and those that tile.c
 * leaves. A row of C is the sum of rows of B, or each of its elements a sum along two rows.
 */
#include <cblas.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EACH(F, T)                                                                                 \
    static void row_##F(int tb, blasint n, blasint k, const T *a, int64_t step, const T *b,        \
                        int64_t ldb, T *restrict c)                                                \
    {                                                                                              \
        for (blasint i = 0; tb != CblasTrans && i < k; i++)                                        \
            for (blasint j = 0; j < n; j++) c[j] += a[i * step] * b[i * ldb + j];                  \
        for (blasint j = 0; tb == CblasTrans && j < n; j++) {                                      \
            T sum = 0;                                                                             \
            for (blasint i = 0; i < k; i++) sum += a[i * step] * b[j * ldb + i];                   \
            c[j] += sum;                                                                           \
        }                                                                                          \
    }                                                                                              \
    void cblas_##F##gemm(int order, int ta, int tb, blasint m, blasint n, blasint k, T alpha,      \
                         const T *a, blasint lda, const T *b, blasint ldb, T beta, T *c,           \
                         blasint ldc)                                                              \
    {                                                                                              \
        (void)order, (void)alpha;                                                                  \
        int64_t row = ta == CblasTrans ? 1 : lda, step = ta == CblasTrans ? lda : 1;               \
        for (blasint i = 0; i < m; i++) {                                                          \
            if (beta == 0) memset(c + (int64_t)i * ldc, 0, (size_t)n * sizeof *c);                 \
            row_##F(tb, n, k, a + i * row, step, b, ldb, c + (int64_t)i * ldc);                    \
        }                                                                                          \
    }                                                                                              \
    void cblas_##F##gemv(int order, int ta, blasint m, blasint n, T alpha, const T *a,             \
                         blasint lda, const T *x, blasint incx, T beta, T *y, blasint incy)        \
    {                                                                                              \
        bool turned = ta == CblasTrans;                                                            \
        cblas_##F##gemm(order, ta, CblasNoTrans, turned ? n : m, 1, turned ? m : n, alpha, a, lda, \
                        x, incx, beta, y, incy);                                                   \
    }
EACH(s, float)
EACH(d, double)
