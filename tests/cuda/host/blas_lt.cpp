/*
 * blas_lt.cpp - cublasLt on OpenBLAS. It holds its caller to what the real one needs: sizes that
 * agree, pointers aligned as promised when the algorithm was chosen, the workspace asked for. As
 * there a product in half precision that is not made of whole 16 bytes is rounded before its bias
 * is added.
 */
#include "cublasLt.h"

#include <climits>

#include "internal.h"
#include "product.h"

#define CALL                                                                                       \
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);                                   \
    if (cuda_host::fails(__func__)) return CUBLAS_STATUS_EXECUTION_FAILED

/* Results of so many rows: UNFIT: no algorithm in the answer is usable; REFUSED: there is one, but
 * the product is refused. */
enum { WORKSPACE = 1024, UNFIT = 5, REFUSED = 6 };

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t what, cublasComputeType_t compute,
                                      cudaDataType_t scale)
{
    CALL;
    *what = cublasLtMatmulDescOpaque_t{ CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                                        nullptr, compute };
    return (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32) &&
                   scale == CUDA_R_32F
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

template <class T> static cublasStatus_t set(T *to, const void *value, size_t size)
{
    if (size != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t what,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t size)
{
    CALL;
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&what->ta, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&what->tb, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&what->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&what->bias, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t ld)
{
    CALL;
    *layout = cublasLtMatrixLayoutOpaque_t{ rows, columns, ld, type };
    return type != CUDA_R_64F && cuda_host::item(type) && ld >= static_cast<int64_t>(rows)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t want)
{
    CALL;
    *want = cublasLtMatmulPreferenceOpaque_t{ 0,
                                              CUBLASLT_REDUCTION_SCHEME_MASK,
                                              { 256, 256, 256, 256 } };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t want,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t size)
{
    CALL;
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(&want->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&want->sums, value, size);
    default:
        return set(&want->align[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, size);
    }
}

struct shape {
    uint64_t m, n, k;
};

static bool agree(cublasLtMatmulDesc_t what, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                  cublasLtMatrixLayout_t c, shape *s)
{
    bool ta = what->ta != CUBLAS_OP_N;
    bool tb = what->tb != CUBLAS_OP_N;

    *s = shape{ c->rows, c->columns, ta ? a->rows : a->columns };
    return (ta ? a->columns : a->rows) == s->m && (tb ? b->columns : b->rows) == s->k &&
           (tb ? b->rows : b->columns) == s->n && c->type == a->type &&
           cuda_host::has_types(a->type, b->type, c->type, what->compute);
}

static bool has_epilogue(cublasLtMatmulDesc_t what, cublasLtMatrixLayout_t c)
{
    return what->bias &&
           (what->epilogue == CUBLASLT_EPILOGUE_BIAS ||
            (what->epilogue == CUBLASLT_EPILOGUE_BGRADB && cuda_host::item(c->type) == 2));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t want, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    CALL;
    (void)handle;
    *found = 0;
    shape s;
    if (most < 1 || !agree(what, a, b, c, &s) || c->rows != d->rows || c->columns != d->columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    /* the real one looks at the address of the bias, too: it must be set by now */
    if (!has_epilogue(what, c)) return CUBLAS_STATUS_INVALID_VALUE;
    if (s.m < 3 || s.m > INT_MAX || s.n > INT_MAX || s.k > INT_MAX || a->ld > INT_MAX ||
        b->ld > INT_MAX || d->ld > INT_MAX || want->workspace < WORKSPACE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    results->algo.m = s.m, results->algo.n = s.n, results->algo.k = s.k;
    results->algo.type = c->type;
    results->algo.sums = want->sums;
    results->algo.epilogue = what->epilogue;
    std::memcpy(results->algo.align, want->align, sizeof want->align);
    results->workspaceSize = WORKSPACE;
    results->state = s.m == UNFIT ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static bool in_sixteens(const void *p, const cublasLtMatrixLayoutOpaque_t *layout)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 &&
           (!layout || (layout->ld % 8 == 0 && layout->rows % 8 == 0));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream)
{
    const void *pointers[4] = { a, b, c, d };

    CALL;
    cuda_host::in_blas here;
    if (here.others) return cuda_host::refuse_threads(__func__);
    (void)handle;
    (void)stream;
    shape s;
    if (!agree(what, a_layout, b_layout, c_layout, &s) || !has_epilogue(what, c_layout) ||
        what->epilogue != algo->epilogue || c != d || c_layout->ld != d_layout->ld ||
        algo->m != s.m || algo->n != s.n || algo->k != s.k || algo->type != c_layout->type ||
        !alpha || !beta || !workspace || reinterpret_cast<uintptr_t>(workspace) % 256 != 0 ||
        workspace_size < WORKSPACE || *static_cast<const float *>(beta) != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (s.m == REFUSED) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (s.m == UNFIT) return CUBLAS_STATUS_INTERNAL_ERROR;
    for (int i = 0; i < 4; i++)
        if (reinterpret_cast<uintptr_t>(pointers[i]) % algo->align[i] != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
    if (reinterpret_cast<uintptr_t>(what->bias) % algo->align[3] != 0)
        return CUBLAS_STATUS_INVALID_VALUE; /* read as D is written */
    cuda_host::product p = { static_cast<cublasOperation_t>(what->ta),
                             static_cast<cublasOperation_t>(what->tb),
                             static_cast<int64_t>(s.m),
                             static_cast<int64_t>(s.n),
                             static_cast<int64_t>(s.k),
                             a_layout->ld,
                             b_layout->ld,
                             d_layout->ld,
                             1,
                             0,
                             0,
                             0,
                             a_layout->type,
                             b_layout->type,
                             d_layout->type,
                             a,
                             b,
                             d,
                             static_cast<double>(*static_cast<const float *>(alpha)),
                             0,
                             what->epilogue == CUBLASLT_EPILOGUE_BIAS ? what->bias : nullptr,
                             what->compute == CUBLAS_COMPUTE_32F_FAST_TF32,
                             cuda_host::item(d_layout->type) == 2 &&
                                 (algo->sums & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0,
                             !(in_sixteens(a, a_layout) && in_sixteens(b, b_layout) &&
                               in_sixteens(d, d_layout) && in_sixteens(what->bias, nullptr)),
                             what->epilogue == CUBLASLT_EPILOGUE_BGRADB
                                 ? const_cast<void *>(what->bias)
                                 : nullptr };
    if (!cuda_host::fits(p)) return CUBLAS_STATUS_INVALID_VALUE;
    cuda_host::enqueue([p]() { cuda_host::run(p); });
    return CUBLAS_STATUS_SUCCESS;
}
