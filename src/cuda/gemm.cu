/*
 * gemm.cu - matrix products through cuBLAS.
 *
 * cuBLAS counts columns first, so a row-major matrix is to it its own transpose: C = A B is asked
 * for as C^T = B^T A^T, operands swapped. The 64-bit functions take every size there is. A bias is
 * added inside the product (cublasLt's epilogue: f32, one product, nothing to accumulate), else
 * written into C before. cuBLAS gives the same bits for the same call on the same device: one
 * stream, no atomics; of cublasLt's ways to sum the parts of a long inner axis only those with a
 * fixed order are allowed.
 */
#include <cstring>
#include <cublasLt.h>
#include <mutex>

#include "cuda/cuda.h"

/* ---- operands: a unit stride and a leading dimension ----------------------------------------- */

struct operand {
    const void *data;
    int64_t ld, batch;
    cublasOperation_t trans; /* of the row-major matrix */
    void *copy;              /* NULL: the caller's memory is used as it is */
};

static bool blas_layout(operand *o, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (rows == 1) row = cols; /* strides of size-1 axes carry no meaning */
    if (cols == 1) col = 1;
    if (col == 1 && row >= cols) {
        o->trans = CUBLAS_OP_N;
        o->ld = row;
        return true;
    }
    if (rows == 1) row = 1;
    if (cols == 1) col = rows;
    if (row == 1 && col >= rows) {
        o->trans = CUBLAS_OP_T;
        o->ld = col;
        return true;
    }
    return false;
}

/* A matrix [rows, cols], or a batch of them, as cuBLAS takes it; copied where no stride is 1. */
static tn_status operand_init(operand *o, tn_dtype dtype, int64_t batch, const void *data,
                              int64_t rows, int64_t cols, int64_t row, int64_t col,
                              int64_t distance)
{
    *o = operand{ data, 0, distance, CUBLAS_OP_N, nullptr };
    if (blas_layout(o, rows, cols, row, col)) return TN_OK;
    int64_t copies = distance == 0 ? 1 : batch;
    int64_t item = dtype == TN_F32 ? 4 : 8;
    if (rows > INT64_MAX / item / cols / copies)
        return tni_cuda_host->fail(
            TN_E_NOMEM, "gemm: a copy of %lld operands [%lld,%lld] does not fit in memory",
            (long long)copies, (long long)rows, (long long)cols);
    TN_TRY(tni_cuda_borrow((size_t)(copies * rows * cols * item), &o->copy));
    tni_array from = {
        const_cast<void *>(data), dtype, 3, { copies, rows, cols }, { distance, row, col }
    };
    tni_array to = { o->copy, dtype, 3, { copies, rows, cols }, { rows * cols, cols, 1 } };
    o->data = o->copy;
    o->ld = cols;
    o->batch = distance == 0 ? 0 : rows * cols;
    return tni_cuda_copy(&to, &from);
}

/* ---- C before the product -------------------------------------------------------------------- */

/* Row r of product b becomes the bias (or 0), added to what is there when `add`. Blocks: columns by
 * rows. */
template <typename R>
static __global__ void __launch_bounds__(256)
    gemm_start(R *c, int64_t rows, int64_t n, int64_t m, int64_t c_row, int64_t c_batch,
               const R *bias, bool add)
{
    for (int64_t i = blockIdx.y; i < rows; i += gridDim.y) {
        R *row = c + i / m * c_batch + i % m * c_row;
        for (int64_t j = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; j < n;
             j += (int64_t)gridDim.x * blockDim.x)
            row[j] = (bias ? bias[j] : (R)0) + (add ? row[j] : (R)0);
    }
}

template <typename R> static tn_status start(const tni_gemm *g)
{
    int64_t rows = g->m * g->batch;
    dim3 grid(tni_cuda_blocks(g->n, 256, 1024), tni_cuda_blocks(rows, 1, 65535));
    return TN_LAUNCH((gemm_start<R>), grid, 256, 0, (R *)g->c, rows, g->n, g->m, g->c_row,
                     g->c_batch, (const R *)g->bias, g->accumulate);
}

/* ---- a product with a bias: cublasLt --------------------------------------------------------- */

enum { PLANS = 64, LT_WORKSPACE = 32 << 20 };

/* What cublasLt's choice depends on. No padding: compared as bytes. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, tf32;
    int32_t align[4]; /* of a, b, c, bias in bytes, at most 256 */
    int32_t used;
};

/* Choosing takes longer than many products do: choices are kept, one for each slot of a small
 * table. */
struct plan {
    shape key;
    bool found; /* cublasLt has an algorithm for it */
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

static std::mutex plans_lock;
static plan plans[PLANS];

static int alignment(const void *p)
{
    uintptr_t low = reinterpret_cast<uintptr_t>(p) & 255;
    return low ? (int)(low & (0 - low)) : 256;
}

struct product {
    cublasLtMatmulDescOpaque_t what;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* row-major A, B, C */
};

static tn_status describe(product *p, const shape *s, const void *bias)
{
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasComputeType_t compute = s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    bool ta = s->trans_a != 0, tb = s->trans_b != 0;

    TN_TRY(TN_BLAS(cublasLtMatmulDescInit(&p->what, compute, CUDA_R_32F)));
    TN_TRY(TN_BLAS(cublasLtMatmulDescSetAttribute(&p->what, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &s->trans_b, sizeof s->trans_b)));
    TN_TRY(TN_BLAS(cublasLtMatmulDescSetAttribute(&p->what, CUBLASLT_MATMUL_DESC_TRANSB,
                                                  &s->trans_a, sizeof s->trans_a)));
    TN_TRY(TN_BLAS(cublasLtMatmulDescSetAttribute(&p->what, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                  &epilogue, sizeof epilogue)));
    TN_TRY(TN_BLAS(cublasLtMatmulDescSetAttribute(&p->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &bias, sizeof bias)));
    TN_TRY(TN_BLAS(cublasLtMatrixLayoutInit(&p->a, CUDA_R_32F, (uint64_t)(ta ? s->m : s->k),
                                            (uint64_t)(ta ? s->k : s->m), s->lda)));
    TN_TRY(TN_BLAS(cublasLtMatrixLayoutInit(&p->b, CUDA_R_32F, (uint64_t)(tb ? s->k : s->n),
                                            (uint64_t)(tb ? s->n : s->k), s->ldb)));
    return TN_BLAS(
        cublasLtMatrixLayoutInit(&p->c, CUDA_R_32F, (uint64_t)s->n, (uint64_t)s->m, s->ldc));
}

static tn_status choose(cublasLtHandle_t handle, product *p, plan *to)
{
    cublasLtMatmulPreferenceOpaque_t want;
    cublasLtMatmulHeuristicResult_t result;
    size_t workspace = LT_WORKSPACE;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE;
    uint32_t align[4];
    int n = 0;
    static const cublasLtMatmulPreferenceAttributes_t names[3] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES
    };

    for (int i = 0; i < 4; i++) align[i] = (uint32_t)to->key.align[i];
    TN_TRY(TN_BLAS(cublasLtMatmulPreferenceInit(&want)));
    TN_TRY(TN_BLAS(cublasLtMatmulPreferenceSetAttribute(
        &want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace)));
    TN_TRY(TN_BLAS(cublasLtMatmulPreferenceSetAttribute(
        &want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums)));
    /* its A is our B */
    for (int i = 0; i < 3; i++)
        TN_TRY(TN_BLAS(cublasLtMatmulPreferenceSetAttribute(
            &want, names[i], &align[i == 2 ? 2 : 1 - i], sizeof align[0])));
    TN_TRY(TN_BLAS(cublasLtMatmulPreferenceSetAttribute(
        &want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof align[2])));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &p->what, &p->b, &p->a, &p->c,
                                                           &p->c, &want, 1, &result, &n);
    to->found = status == CUBLAS_STATUS_SUCCESS && n > 0;
    if (to->found) {
        to->algo = result.algo;
        to->workspace = result.workspaceSize;
    } else if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED &&
               status != CUBLAS_STATUS_INVALID_VALUE) {
        return tni_cuda_check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    }
    return TN_OK;
}

/* `done` stays false where cublasLt cannot: then nothing was written. */
static tn_status with_bias(cublasHandle_t blas, const tni_gemm *g, const operand *a,
                           const operand *b, bool *done)
{
    cublasLtHandle_t handle =
        reinterpret_cast<cublasLtHandle_t>(blas); /* a cuBLAS handle holds one */
    const float one = 1, zero = 0;
    void *workspace = nullptr;
    product p;
    plan mine;
    shape s;

    std::memset(&s, 0, sizeof s);
    s.m = g->m, s.n = g->n, s.k = g->k;
    s.lda = a->ld, s.ldb = b->ld, s.ldc = g->c_row;
    s.trans_a = a->trans, s.trans_b = b->trans;
    s.tf32 = tni_cuda_tf32();
    s.align[0] = alignment(a->data), s.align[1] = alignment(b->data), s.align[2] = alignment(g->c);
    s.align[3] = alignment(g->bias);
    s.used = 1;
    TN_TRY(describe(&p, &s, g->bias));
    uint64_t hash =
        (uint64_t)(s.m * 31 + s.n * 17 + s.k * 7 + s.trans_a * 3 + s.trans_b) * 0x9e3779b97f4a7c15u;
    plan *slot = &plans[hash >> 32 & (PLANS - 1)];
    plans_lock.lock();
    mine = *slot;
    plans_lock.unlock();
    if (std::memcmp(&mine.key, &s, sizeof s) != 0) {
        mine.key = s;
        TN_TRY(choose(handle, &p, &mine));
        plans_lock.lock();
        *slot = mine;
        plans_lock.unlock();
    }
    *done = mine.found;
    if (!mine.found) return TN_OK;
    if (mine.workspace) TN_TRY(tni_cuda_borrow(mine.workspace, &workspace));
    tn_status status = TN_BLAS(cublasLtMatmul(handle, &p.what, &one, b->data, &p.b, a->data, &p.a,
                                              &zero, g->c, &p.c, g->c, &p.c, &mine.algo, workspace,
                                              mine.workspace, tni_cuda_stream));
    if (workspace) tni_cuda_return(workspace);
    return status;
}

/* ---- the product ----------------------------------------------------------------------------- */

static tn_status multiply(cublasHandle_t blas, const tni_gemm *g, const operand *a,
                          const operand *b, bool add)
{
    if (g->dtype == TN_F32) {
        const float one = 1, beta = add;
        return TN_BLAS(cublasSgemmStridedBatched_64(blas, b->trans, a->trans, g->n, g->m, g->k,
                                                    &one, (const float *)b->data, b->ld, b->batch,
                                                    (const float *)a->data, a->ld, a->batch, &beta,
                                                    (float *)g->c, g->c_row, g->c_batch, g->batch));
    }
    const double one = 1, beta = add;
    return TN_BLAS(cublasDgemmStridedBatched_64(blas, b->trans, a->trans, g->n, g->m, g->k, &one,
                                                (const double *)b->data, b->ld, b->batch,
                                                (const double *)a->data, a->ld, a->batch, &beta,
                                                (double *)g->c, g->c_row, g->c_batch, g->batch));
}

static tn_status run(const tni_gemm *g, const operand *a, const operand *b)
{
    cublasHandle_t blas = tni_cuda_blas();
    bool done = false;

    if (!blas) return TN_E_BACKEND;
    if (g->bias && g->dtype == TN_F32 && !g->accumulate && g->batch == 1 && g->m > 1 && g->n > 1)
        TN_TRY(with_bias(blas, g, a, b, &done));
    if (done) return TN_OK;
    if (g->bias) TN_REAL(g->dtype, start<R>(g));
    return multiply(blas, g, a, b, g->bias || g->accumulate);
}

tn_status tni_cuda_gemm(const tni_gemm *given)
{
    tni_gemm g = *given;
    operand a = {}, b = {};

    if (g.dtype != TN_F32 && g.dtype != TN_F64)
        return tni_cuda_host->fail(TN_E_UNSUPPORTED, "gemm: dtype %d on CUDA: want f32 or f64",
                                   (int)g.dtype);
    if (g.m == 0 || g.n == 0 || g.batch == 0) return TN_OK;
    if (g.m == 1) g.c_row = g.n; /* cuBLAS checks it even where there is one row */
    if (g.k == 0) {              /* a sum of nothing */
        if (!g.accumulate || g.bias) TN_REAL(g.dtype, start<R>(&g));
        return TN_OK;
    }
    tn_status status =
        operand_init(&a, g.dtype, g.batch, g.a, g.m, g.k, g.a_row, g.a_col, g.a_batch);
    if (status == TN_OK)
        status = operand_init(&b, g.dtype, g.batch, g.b, g.k, g.n, g.b_row, g.b_col, g.b_batch);
    if (status == TN_OK) status = run(&g, &a, &b);
    if (a.copy) tni_cuda_return(a.copy);
    if (b.copy) tni_cuda_return(b.copy);
    return status;
}
