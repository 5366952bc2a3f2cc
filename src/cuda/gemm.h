/* gemm.h - matrix products inside the module: operands for cuBLAS, products with a result wider
 * than their operands, products with an epilogue. */
#pragma once

#include <mutex>

#include "cuda/cuda.h"

/* A row-major matrix, or a batch of them. */
struct operand {
    const void *data;
    int64_t ld, batch;
    cublasOperation_t trans; /* of the row-major matrix */
};

cudaDataType_t tni_cuda_blas_type(tn_dtype dtype);

/* device.cu: the workspace of the handle that tni_cuda_blas gave. Products of cublasLt use it as
 * well, since all products follow each other in one stream. */
void *tni_cuda_blas_workspace(size_t *nbytes);
/* Held around each product: the kernels of one product pass on parts of sums in the workspace, and
 * another thread's product must not come between them. */
std::mutex &tni_cuda_product_lock(void);

/* gemm.cu: the product of g with C in f32 whatever g->dtype is (f32, bf16 or f16): g->c points to
 * floats, g->accumulate adds to them; no bias. */
tn_status tni_cuda_gemm_to_f32(const tni_gemm *g);

/* gemm_lt.cu: C = A B + bias in one product, the bias added to the f32 sum before the one rounding;
 * or, in half precision, C = A B and a_sums.
 * For f32, bf16 and f16, batch 1, nothing to accumulate. `done` is false where cublasLt cannot, or
 * would round twice: then nothing was written. */
tn_status tni_cuda_gemm_bias(cublasHandle_t blas, const tni_gemm *g, const operand *a,
                             const operand *b, bool *done);
