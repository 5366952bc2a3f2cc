/*
 * product.h - the one product behind cuBLAS and cublasLt: column-major matrices of f32, f64, bf16
 * or f16, and the rules that cuBLAS holds its callers to.
 */
#ifndef CUDA_HOST_PRODUCT_H
#define CUDA_HOST_PRODUCT_H

#include "cublas_v2.h"

#pragma GCC visibility push(hidden)

namespace cuda_host {

/* C [m,n] = alpha op(A) [m,k] op(B) [k,n] + beta C (+ bias [m] in each column), `batch` of them. */
struct product {
    cublasOperation_t ta, tb;
    int64_t m, n, k, lda, ldb, ldc, batch;
    int64_t stride_a, stride_b, stride_c;
    cudaDataType_t a_type, b_type, c_type;
    const void *a, *b;
    void *c;
    double alpha, beta;
    const void *bias; /* of C's type, or NULL */
    bool tf32;        /* operands of f32 are rounded to TF32 */
    /* partial sums may be kept in C's type, as GPUs do when it is not forbidden */
    bool loose;
    bool twice = false;     /* C is rounded to its type before the bias is added, and again after */
    void *b_sums = nullptr; /* of bf16 and f16: NULL, or where op(B)'s n columns' sums go */
};

/* Bytes of an element; 0: a type that is not known here. */
size_t item(cudaDataType_t type);
/* Whether cuBLAS has products of these types with sums of `compute`. */
bool has_types(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cublasComputeType_t compute);
/* What cuBLAS would refuse, or a GPU could not read: sizes, leading dimensions, pointers that are
 * NULL or misaligned, products of a batch that overlap; batches larger than a grid's depth, which
 * only some of its kernels take. */
bool fits(const product &p);
/* Runs it now. */
void run(const product &p);

/* A product that is being asked for; others: by another thread, too. */
struct in_blas {
    bool others;
    in_blas();
    ~in_blas();
};
cublasStatus_t refuse_threads(const char *function);

} /* namespace cuda_host */

#pragma GCC visibility pop

#endif
