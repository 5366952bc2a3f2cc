/*
 * blas.cpp - cuBLAS on OpenBLAS: every call becomes one batched product (product.h).
 */
#include "cublas_v2.h"

#include <atomic>
#include <sched.h>
#include <string>

#include "internal.h"
#include "product.h"

struct cuda_host_blas {
    cublasMath_t mode;
    const void *workspace; /* the caller's; NULL: the library's own */
};

#define CALL                                                                                       \
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);                                   \
    if (cuda_host::fails(__func__)) return CUBLAS_STATUS_EXECUTION_FAILED

using cuda_host::product;

static std::atomic<int> threads_in;

cuda_host::in_blas::in_blas() : others(threads_in++ > 0)
{
    sched_yield(); /* another one may come */
}

cuda_host::in_blas::~in_blas()
{
    threads_in--;
}

#define PRODUCT                                                                                    \
    cuda_host::in_blas here;                                                                       \
    CALL;                                                                                          \
    if (here.others) return cuda_host::refuse_threads(__func__)

/* The handle's math mode: what f32 and half-precision floats may lose. */
static cublasStatus_t put(cublasHandle_t handle, product p)
{
    int mode = handle->mode;

    p.tf32 = p.a_type == CUDA_R_32F && (mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) ==
                                           CUBLAS_TF32_TENSOR_OP_MATH;
    p.loose = cuda_host::item(p.c_type) == 2 &&
              !(mode & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (!cuda_host::fits(p)) return CUBLAS_STATUS_INVALID_VALUE;
    /* its own would be taken in the stream */
    if (cuda_host::captured(nullptr) && !handle->workspace) {
        cuda_host::refuse_in_capture("cuBLAS without a workspace of the caller's");
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    cuda_host::enqueue([p]() { cuda_host::run(p); });
    return CUBLAS_STATUS_SUCCESS;
}

/* The parts of two products would share one workspace and one stream. */
cublasStatus_t cuda_host::refuse_threads(const char *function)
{
    set_fault((std::string(function) + " in two threads at once, with one workspace").c_str());
    return CUBLAS_STATUS_EXECUTION_FAILED;
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

/* Also restores the library's own workspace. */
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    CALL;
    (void)stream;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->workspace = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t size)
{
    CALL;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 || size == 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
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

/* clang-format off */
#define GEMM(name, T, type)                                                                        \
    cublasStatus_t name##StridedBatched_64(                                                        \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n,   \
        int64_t k, const T *alpha, const T *a, int64_t lda, long long stride_a, const T *b,        \
        int64_t ldb, long long stride_b, const T *beta, T *c, int64_t ldc, long long stride_c,     \
        int64_t batch)                                                                             \
    {                                                                                              \
        PRODUCT;                                                                                   \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                         \
        return put(handle, { ta, tb, m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c,  \
                             type, type, type, a, b, c, static_cast<double>(*alpha),               \
                             static_cast<double>(*beta), nullptr, false, false });                 \
    }

GEMM(cublasSgemm, float, CUDA_R_32F)
GEMM(cublasDgemm, double, CUDA_R_64F)

cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int64_t m, int64_t n,
    int64_t k, const void *alpha, const void *a, cudaDataType_t a_type, int64_t lda,
    long long stride_a, const void *b, cudaDataType_t b_type, int64_t ldb, long long stride_b,
    const void *beta, void *c, cudaDataType_t c_type, int64_t ldc, long long stride_c, int64_t batch,
    cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    bool in_double = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;

    PRODUCT;
    (void)algorithm;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
    if (!cuda_host::has_types(a_type, b_type, c_type, compute)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return put(handle, { ta, tb, m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, a_type,
                         b_type, c_type, a, b, c,
                         in_double ? *static_cast<const double *>(alpha)
                                   : static_cast<double>(*static_cast<const float *>(alpha)),
                         in_double ? *static_cast<const double *>(beta)
                                   : static_cast<double>(*static_cast<const float *>(beta)),
                         nullptr, false, false });
}
/* clang-format on */
