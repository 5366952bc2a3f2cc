/*
 * blas.cpp - cuBLAS on OpenBLAS: every call becomes one batched product of reals; short floats are
 * widened before and rounded after.
 */
#include <cblas.h>

#include "cublas_v2.h"

#include <climits>
#include <vector>

#include "internal.h"
#include "tensor/math.h"

struct cuda_host_blas {
    cublasMath_t mode;
};

#define CALL                                                                                       \
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);                                   \
    if (cuda_host::fails(__func__)) return CUBLAS_STATUS_EXECUTION_FAILED

struct product {
    cublasOperation_t ta, tb;
    int m, n, k, lda, ldb, ldc, batch;
    long long stride_a, stride_b, stride_c;
    cudaDataType_t a_type, b_type, c_type;
    const void *a, *b;
    void *c;
    double alpha, beta;
};

static bool fits(const product &p)
{
    int rows_a = p.ta == CUBLAS_OP_N ? p.m : p.k;
    int rows_b = p.tb == CUBLAS_OP_N ? p.k : p.n;

    return p.m >= 0 && p.n >= 0 && p.k >= 0 && p.batch >= 0 && p.lda >= (rows_a > 1 ? rows_a : 1) &&
           p.ldb >= (rows_b > 1 ? rows_b : 1) && p.ldc >= (p.m > 1 ? p.m : 1);
}

static CBLAS_TRANSPOSE transposed(cublasOperation_t t)
{
    return t == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
}

static float wide(const void *from, cudaDataType_t type, size_t i)
{
    if (type == CUDA_R_32F) return static_cast<const float *>(from)[i];
    uint16_t bits = static_cast<const uint16_t *>(from)[i];
    return type == CUDA_R_16BF ? tn_from_bf16(bits) : tn_from_f16(bits);
}

static void round_to(void *to, cudaDataType_t type, size_t i, float value)
{
    if (type == CUDA_R_32F) static_cast<float *>(to)[i] = value;
    else static_cast<uint16_t *>(to)[i] = type == CUDA_R_16BF ? tn_to_bf16(value) : tn_to_f16(value);
}

static void run_short(const product &p, long long b)
{
    size_t a0 = static_cast<size_t>(b * p.stride_a);
    size_t b0 = static_cast<size_t>(b * p.stride_b);
    size_t c0 = static_cast<size_t>(b * p.stride_c);
    size_t lda = static_cast<size_t>(p.lda);
    size_t ldb = static_cast<size_t>(p.ldb);

    for (size_t j = 0; j < static_cast<size_t>(p.n); j++) {
        for (size_t i = 0; i < static_cast<size_t>(p.m); i++) {
            float sum = 0;
            for (size_t k = 0; k < static_cast<size_t>(p.k); k++) {
                sum += wide(p.a, p.a_type, a0 + (p.ta == CUBLAS_OP_N ? i + k * lda : k + i * lda)) *
                       wide(p.b, p.b_type, b0 + (p.tb == CUBLAS_OP_N ? k + j * ldb : j + k * ldb));
            }
            size_t at = c0 + i + j * static_cast<size_t>(p.ldc);
            float old = p.beta != 0 ? static_cast<float>(p.beta) * wide(p.c, p.c_type, at) : 0.0f;
            round_to(p.c, p.c_type, at, static_cast<float>(p.alpha) * sum + old);
        }
    }
}

static void run(const product &p)
{
    for (long long b = 0; b < p.batch && p.m > 0 && p.n > 0; b++) {
        if (p.c_type == CUDA_R_64F) {
            cblas_dgemm(CblasColMajor, transposed(p.ta), transposed(p.tb), p.m, p.n, p.k, p.alpha,
                        static_cast<const double *>(p.a) + b * p.stride_a, p.lda,
                        static_cast<const double *>(p.b) + b * p.stride_b, p.ldb, p.beta,
                        static_cast<double *>(p.c) + b * p.stride_c, p.ldc);
        } else if (p.a_type == CUDA_R_32F && p.c_type == CUDA_R_32F) {
            cblas_sgemm(CblasColMajor, transposed(p.ta), transposed(p.tb), p.m, p.n, p.k,
                        static_cast<float>(p.alpha),
                        static_cast<const float *>(p.a) + b * p.stride_a, p.lda,
                        static_cast<const float *>(p.b) + b * p.stride_b, p.ldb,
                        static_cast<float>(p.beta), static_cast<float *>(p.c) + b * p.stride_c,
                        p.ldc);
        } else {
            run_short(p, b);
        }
    }
}

static cublasStatus_t put(const product &p)
{
    if (!fits(p)) return CUBLAS_STATUS_INVALID_VALUE;
    cuda_host::enqueue([p]() { run(p); });
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the GPU program failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    default: return "an internal operation failed";
    }
}

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    CALL;
    *handle = new cuda_host_blas();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    CALL;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    CALL;
    (void)stream;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t size)
{
    CALL;
    (void)workspace;
    (void)size;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    CALL;
    handle->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    CALL;
    *mode = handle->mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode)
{
    CALL;
    (void)handle;
    return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    CALL;
    (void)handle;
    (void)mode;
    return CUBLAS_STATUS_SUCCESS;
}

#define GEMM(name, T, type)                                                                        \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,  \
                        int n, int k, const T *alpha, const T *a, int lda, const T *b, int ldb,    \
                        const T *beta, T *c, int ldc)                                              \
    {                                                                                              \
        CALL;                                                                                      \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                         \
        return put({ ta, tb, m, n, k, lda, ldb, ldc, 1, 0, 0, 0, type, type, type, a, b, c,        \
                     static_cast<double>(*alpha), static_cast<double>(*beta) });                   \
    }                                                                                              \
    cublasStatus_t name##StridedBatched(                                                           \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,    \
        const T *alpha, const T *a, int lda, long long stride_a, const T *b, int ldb,              \
        long long stride_b, const T *beta, T *c, int ldc, long long stride_c, int batch)           \
    {                                                                                              \
        CALL;                                                                                      \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                         \
        return put({ ta, tb, m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, type,    \
                     type, type, a, b, c, static_cast<double>(*alpha),                             \
                     static_cast<double>(*beta) });                                                \
    }

GEMM(cublasSgemm, float, CUDA_R_32F)
GEMM(cublasDgemm, double, CUDA_R_64F)

#define GEMM_64(name, T)                                                                           \
    cublasStatus_t name##_64(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,    \
                             int64_t m, int64_t n, int64_t k, const T *alpha, const T *a,          \
                             int64_t lda, long long stride_a, const T *b, int64_t ldb,             \
                             long long stride_b, const T *beta, T *c, int64_t ldc,                 \
                             long long stride_c, int64_t batch)                                    \
    {                                                                                              \
        for (int64_t size : { m, n, k, lda, ldb, ldc, batch })                                     \
            if (size > INT_MAX) return CUBLAS_STATUS_NOT_SUPPORTED;                                \
        return name(handle, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), \
                    alpha, a, static_cast<int>(lda), stride_a, b, static_cast<int>(ldb), stride_b, \
                    beta, c, static_cast<int>(ldc), stride_c, static_cast<int>(batch));            \
    }

GEMM_64(cublasSgemmStridedBatched, float)
GEMM_64(cublasDgemmStridedBatched, double)

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType_t a_type, int lda, long long stride_a,
    const void *b, cudaDataType_t b_type, int ldb, long long stride_b, const void *beta, void *c,
    cudaDataType_t c_type, int ldc, long long stride_c, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm)
{
    bool in_double = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;

    CALL;
    (void)algorithm;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (a_type != b_type || in_double != (a_type == CUDA_R_64F) ||
        in_double != (c_type == CUDA_R_64F)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return put({ ta, tb, m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, a_type, b_type,
                 c_type, a, b, c,
                 in_double ? *static_cast<const double *>(alpha)
                           : static_cast<double>(*static_cast<const float *>(alpha)),
                 in_double ? *static_cast<const double *>(beta)
                           : static_cast<double>(*static_cast<const float *>(beta)) });
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                            int n, int k, const void *alpha, const void *a, cudaDataType_t a_type,
                            int lda, const void *b, cudaDataType_t b_type, int ldb,
                            const void *beta, void *c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, a_type, lda, 0, b, b_type,
                                      ldb, 0, beta, c, c_type, ldc, 0, 1, compute, algorithm);
}
