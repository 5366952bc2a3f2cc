/*
 * gemm_lt.cu - products with a bias through cublasLt, whose epilogue adds it to the f32 sum: those
 * of f32, and those of bf16 and f16 whose operands are made of whole 16 bytes. For others in half
 * precision it has no such kernel, and takes two: one writes the product, rounded, the next adds
 * the bias to that and rounds again (seen on an H100 with CUDA 13.0, at [33,33] x [33,33] in bf16).
 *
 * The sums of A's rows, which are the bias's gradient beside a weight's, are another epilogue
 * (BGRADB: our A is cublasLt's B); so no other kernel reads a gradient for them.
 *
 * Asking cublasLt for an algorithm takes longer than many products, so it is asked once per shape
 * and the answer is kept. For split sums over a long inner axis only the scheme with a fixed order
 * and f32 parts is allowed. The workspace is cuBLAS's own, allocated before a step is captured and
 * never moved, so a graph can use it.
 */
#include <cstring>
#include <cublasLt.h>
#include <mutex>

#include "cuda/gemm.h"

enum { SETS = 64, WAYS = 4 };

/* What cublasLt's choice depends on. No padding: compared as bytes. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, dtype, tf32, epilogue, unused;
    int32_t align[4]; /* of a, b, c, bias or sums in bytes, at most 256 */
};

struct plan {
    shape key;
    bool used;
    bool found; /* cublasLt has an algorithm */
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

/* A shape's hash names the set, in which the plans are replaced in turn. */
static std::mutex lock;
static plan plans[SETS][WAYS];
static unsigned turns[SETS];

static int alignment(const void *p)
{
    uintptr_t low = reinterpret_cast<uintptr_t>(p) & 255;
    return low ? static_cast<int>(low & (0 - low)) : 256;
}

/* What the epilogue reads or writes beside C. */
static const void *beside_of(const tni_gemm *g)
{
    return g->a_sums ? g->a_sums : g->bias;
}

static shape shape_of(const tni_gemm *g, const operand *a, const operand *b)
{
    shape s;

    std::memset(&s, 0, sizeof s);
    s.m = g->m, s.n = g->n, s.k = g->k;
    s.lda = a->ld, s.ldb = b->ld, s.ldc = g->c_row;
    s.trans_a = a->trans, s.trans_b = b->trans;
    s.dtype = g->dtype;
    s.tf32 = g->dtype == TN_F32 && tni_cuda_tf32();
    s.align[0] = alignment(a->data), s.align[1] = alignment(b->data);
    s.epilogue = g->a_sums ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BIAS;
    s.align[2] = alignment(g->c), s.align[3] = alignment(beside_of(g));
    return s;
}

/* Whether pointers and rows are multiples of 16 bytes. */
static bool in_sixteens(const shape *s)
{
    int64_t a_row = s->trans_a ? s->m : s->k, b_row = s->trans_b ? s->k : s->n;

    for (int32_t bytes : s->align)
        if (bytes < 16) return false;
    return (a_row | s->lda | b_row | s->ldb | s->n | s->ldc) % 8 == 0;
}

/* FNV-1a over the key's bytes. */
static unsigned set_of(const shape *s)
{
    uint64_t hash = 14695981039346656037u;
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(s);

    for (size_t i = 0; i < sizeof *s; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    return static_cast<unsigned>(hash >> 32) % SETS;
}

/* ---- describing the product ------------------------------------------------------------------ */

struct product {
    cublasLtMatmulDescOpaque_t what;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* row-major A, B, C */
};

template <typename T>
static tn_status set(product *p, cublasLtMatmulDescAttributes_t name, const T &value)
{
    return TN_BLAS(cublasLtMatmulDescSetAttribute(&p->what, name, &value, sizeof value));
}

template <typename T>
static tn_status set(cublasLtMatmulPreferenceOpaque_t *want,
                     cublasLtMatmulPreferenceAttributes_t name, const T &value)
{
    return TN_BLAS(cublasLtMatmulPreferenceSetAttribute(want, name, &value, sizeof value));
}

static tn_status describe_sum(product *p, const shape *s, const void *bias)
{
    cublasLtEpilogue_t epilogue = static_cast<cublasLtEpilogue_t>(s->epilogue);
    cublasComputeType_t compute = s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

    if (tn_status failed = TN_BLAS(cublasLtMatmulDescInit(&p->what, compute, CUDA_R_32F)))
        return failed;
    if (tn_status failed = set(p, CUBLASLT_MATMUL_DESC_TRANSA, s->trans_b)) return failed;
    if (tn_status failed = set(p, CUBLASLT_MATMUL_DESC_TRANSB, s->trans_a)) return failed;
    if (tn_status failed = set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)) return failed;
    return set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

static tn_status describe(product *p, const shape *s, const void *bias)
{
    cudaDataType_t type = tni_cuda_blas_type(static_cast<tn_dtype>(s->dtype));
    int64_t a_ld = s->trans_a ? s->m : s->k, a_lines = s->trans_a ? s->k : s->m;
    int64_t b_ld = s->trans_b ? s->k : s->n, b_lines = s->trans_b ? s->n : s->k;

    if (tn_status failed = describe_sum(p, s, bias)) return failed;
    if (tn_status failed = TN_BLAS(cublasLtMatrixLayoutInit(
            &p->a, type, static_cast<uint64_t>(a_ld), static_cast<uint64_t>(a_lines), s->lda)))
        return failed;
    if (tn_status failed = TN_BLAS(cublasLtMatrixLayoutInit(
            &p->b, type, static_cast<uint64_t>(b_ld), static_cast<uint64_t>(b_lines), s->ldb)))
        return failed;
    return TN_BLAS(cublasLtMatrixLayoutInit(&p->c, type, static_cast<uint64_t>(s->n),
                                            static_cast<uint64_t>(s->m), s->ldc));
}

/* ---- choosing -------------------------------------------------------------------------------- */

static tn_status describe_wish(cublasLtMatmulPreferenceOpaque_t *want, const shape *s)
{
    size_t most;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int32_t result = s->align[2] < s->align[3] ? s->align[2] : s->align[3];
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t bytes;
    } aligned[] = { /* its A is our B; the bias is read as the result is written */
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)s->align[1] },
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)s->align[0] },
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)s->align[2] },
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)result }
    };

    tni_cuda_blas_workspace(&most);
    if (tn_status failed = TN_BLAS(cublasLtMatmulPreferenceInit(want))) return failed;
    if (tn_status failed = set(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most)) return failed;
    if (tn_status failed = set(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums))
        return failed;
    for (const auto &a : aligned)
        if (tn_status failed = set(want, a.name, a.bytes)) return failed;
    return TN_OK;
}

/* Checked before anything is launched. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

static tn_status choose(cublasLtHandle_t handle, product *p, plan *to)
{
    cublasLtMatmulPreferenceOpaque_t want;
    int n = 0;

    if (tn_status failed = describe_wish(&want, &to->key)) return failed;
    cublasLtMatmulHeuristicResult_t result;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &p->what, &p->b, &p->a, &p->c,
                                                           &p->c, &want, 1, &result, &n);
    to->used = true;
    if (status != CUBLAS_STATUS_SUCCESS && !is_refusal(status))
        return tni_cuda_check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    to->found = status == CUBLAS_STATUS_SUCCESS && n > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    if (to->found) {
        to->algo = result.algo;
        to->workspace = result.workspaceSize;
    }
    return TN_OK;
}

/* The plan for a shape: the cached one, or a new one, which is then cached. */
static tn_status plan_for(cublasLtHandle_t handle, product *p, const shape *s, plan *to)
{
    unsigned set = set_of(s);
    std::lock_guard<std::mutex> hold(lock);

    for (const plan &kept : plans[set]) {
        if (kept.used && std::memcmp(&kept.key, s, sizeof *s) == 0) {
            *to = kept;
            return TN_OK;
        }
    }
    to->key = *s;
    if (tn_status failed = choose(handle, p, to)) return failed;
    plans[set][turns[set]++ % WAYS] = *to;
    return TN_OK;
}

/* The library chose an algorithm that it then failed to run: do not ask for this shape again. */
static void forget(const shape *s)
{
    std::lock_guard<std::mutex> hold(lock);

    for (plan &kept : plans[set_of(s)])
        if (kept.used && std::memcmp(&kept.key, s, sizeof *s) == 0) kept.found = false;
}

/* ---- the product ----------------------------------------------------------------------------- */

tn_status tni_cuda_gemm_bias(cublasHandle_t blas, const tni_gemm *g, const operand *a,
                             const operand *b, bool *done)
{
    /* a cuBLAS handle holds one of cublasLt */
    cublasLtHandle_t handle = reinterpret_cast<cublasLtHandle_t>(blas);
    const float one = 1, zero = 0;
    shape s = shape_of(g, a, b);
    size_t nbytes;
    void *workspace = tni_cuda_blas_workspace(&nbytes);
    product p;
    plan mine = plan();

    *done = false;
    if (g->dtype != TN_F32 && !in_sixteens(&s)) return TN_OK;
    if (tn_status failed = describe(&p, &s, beside_of(g))) return failed;
    if (tn_status failed = plan_for(handle, &p, &s, &mine)) return failed;
    *done = mine.found;
    if (!mine.found) return TN_OK;
    std::unique_lock<std::mutex> hold(tni_cuda_product_lock());
    cublasStatus_t status =
        cublasLtMatmul(handle, &p.what, &one, b->data, &p.b, a->data, &p.a, &zero, g->c, &p.c, g->c,
                       &p.c, &mine.algo, workspace, mine.workspace, tni_cuda_stream);
    hold.unlock();
    if (!is_refusal(status)) return tni_cuda_check_blas(status, "cublasLtMatmul");
    forget(&s);
    *done = false;
    return TN_OK;
}
