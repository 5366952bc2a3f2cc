/*
 * gemm.cu - matrix products through cuBLAS.
 *
 * cuBLAS is column-major, so it sees a row-major matrix as its transpose: C = A B is computed as
 * C^T = B^T A^T, operands swapped. The 64-bit functions take any size. bf16 and f16 run on the
 * tensor cores with sums in f32, rounded once: the handle forbids keeping parts of a sum in
 * anything shorter (device.cu). A bias is added inside the product (gemm_lt.cu), else written into
 * C before, where C's type holds it as it is; with old values in C as well, which half-precision
 * floats would round with it, an f32 copy of C takes the sums.
 * cuBLAS gives the same bits for the same call on the same device: one stream, no atomics.
 */
#include "cuda/gemm.h"
#include "cuda/half.h"
#include "tensor/formulas.h"

constexpr int64_t MOST_BATCHES = 1 << 15;

cudaDataType_t tni_cuda_blas_type(tn_dtype dtype)
{
    switch (dtype) {
    case TN_F64: return CUDA_R_64F;
    case TN_BF16: return CUDA_R_16BF;
    case TN_F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
    }
}

/* ---- operands: a unit stride and a leading dimension ----------------------------------------- */

static bool blas_layout(operand *o, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (rows == 1) row = cols; /* strides of size-1 axes mean nothing */
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
static tn_status operand_init(operand *o, tni_cuda_scratch *copy, tn_dtype dtype, int64_t batch,
                              const void *data, int64_t rows, int64_t cols, int64_t row,
                              int64_t col, int64_t distance)
{
    *o = operand{ data, 0, distance, CUBLAS_OP_N };
    if (blas_layout(o, rows, cols, row, col)) return TN_OK;
    int64_t copies = distance == 0 ? 1 : batch;
    int64_t item = static_cast<int64_t>(floating_size(dtype));
    if (rows > INT64_MAX / item / cols / copies)
        return tni_cuda_host->fail(TN_E_NOMEM,
                                   "gemm: a copy of %" PRId64 " operands [%" PRId64 ",%" PRId64
                                   "] does not fit in memory",
                                   static_cast<long long>(copies), static_cast<long long>(rows),
                                   static_cast<long long>(cols));
    if (tn_status failed = copy->borrow(static_cast<size_t>(copies * rows * cols * item)))
        return failed;
    tni_array from = {
        const_cast<void *>(data), dtype, 3, { copies, rows, cols }, { distance, row, col }
    };
    tni_array to = { copy->at, dtype, 3, { copies, rows, cols }, { rows * cols, cols, 1 } };
    o->data = copy->at;
    o->ld = cols;
    o->batch = distance == 0 ? 0 : rows * cols;
    return copy_to(to, from);
}

/* ---- C before the product -------------------------------------------------------------------- */

/* A result [rows, n], row i at i / m * batch + i % m * row. */
template <typename R> struct result {
    R *data;
    int64_t row, batch;
};

/* to = bias (or 0) + from (or 0). Blocks: columns by rows. */
template <typename T, typename R>
static __global__ void __launch_bounds__(256)
    gemm_start(result<T> to, result<const R> from, const R *bias, int64_t rows, int64_t n,
               int64_t m)
{
    typedef typename element<R>::computing A;
    for (int64_t i = blockIdx.y; i < rows; i += gridDim.y) {
        T *row = to.data + i / m * to.batch + i % m * to.row;
        const R *old = from.data + (from.data ? i / m * from.batch + i % m * from.row : 0);
        for (int64_t j = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; j < n;
             j += static_cast<int64_t>(gridDim.x) * blockDim.x) {
            A v = (bias ? wide(bias[j]) : static_cast<A>(0)) +
                  (from.data ? wide(old[j]) : static_cast<A>(0));
            row[j] = element<T>::rounded(v);
        }
    }
}

template <typename T, typename R> static tn_status start(const tni_gemm *g, result<T> to)
{
    int64_t rows = g->m * g->batch;
    dim3 grid(tni_cuda_blocks(g->n, 256, 1024), tni_cuda_blocks(rows, 1, 65535));
    result<const R> from = { g->accumulate ? static_cast<const R *>(g->c) : nullptr, g->c_row,
                             g->c_batch };
    return TN_LAUNCH((gemm_start<T, R>), grid, 256, 0, to, from, static_cast<const R *>(g->bias),
                     rows, g->n, g->m);
}

template <typename R> static tn_status start_in_place(const tni_gemm *g)
{
    return start<R, R>(g, result<R>{ static_cast<R *>(g->c), g->c_row, g->c_batch });
}

/* ---- the product ----------------------------------------------------------------------------- */

/* C += or = A B for at most MOST_BATCHES; c_dtype: g->dtype, or f32 for operands in half
 * precision. */
static tn_status multiply_some(cublasHandle_t blas, const tni_gemm *g, tn_dtype c_dtype,
                               const operand *a, const operand *b, bool add)
{
    const double one = 1, beta = add;
    const float one_f = 1, beta_f = add;
    std::lock_guard<std::mutex> hold(tni_cuda_product_lock());

    if (g->dtype == TN_F32)
        return TN_BLAS(cublasSgemmStridedBatched_64(
            blas, b->trans, a->trans, g->n, g->m, g->k, &one_f, static_cast<const float *>(b->data),
            b->ld, b->batch, static_cast<const float *>(a->data), a->ld, a->batch, &beta_f,
            static_cast<float *>(g->c), g->c_row, g->c_batch, g->batch));
    if (g->dtype == TN_F64)
        return TN_BLAS(cublasDgemmStridedBatched_64(
            blas, b->trans, a->trans, g->n, g->m, g->k, &one, static_cast<const double *>(b->data),
            b->ld, b->batch, static_cast<const double *>(a->data), a->ld, a->batch, &beta,
            static_cast<double *>(g->c), g->c_row, g->c_batch, g->batch));
    cudaDataType_t type = tni_cuda_blas_type(g->dtype);
    return TN_BLAS(cublasGemmStridedBatchedEx_64(
        blas, b->trans, a->trans, g->n, g->m, g->k, &one_f, b->data, type, b->ld, b->batch, a->data,
        type, a->ld, a->batch, &beta_f, g->c, tni_cuda_blas_type(c_dtype), g->c_row, g->c_batch,
        g->batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

static const void *after(const void *p, int64_t elements, tn_dtype dtype)
{
    return static_cast<const char *>(p) + elements * static_cast<int64_t>(floating_size(dtype));
}

/* C += or = A B: some of cuBLAS's kernels number the batch by an axis of the grid that ends at
 * 65535. */
static tn_status multiply(cublasHandle_t blas, const tni_gemm *g, tn_dtype c_dtype,
                          const operand *a, const operand *b, bool add)
{
    tni_gemm part = *g;
    operand x = *a, y = *b;

    for (int64_t done = 0; done < g->batch; done += part.batch) {
        part.batch = g->batch - done < MOST_BATCHES ? g->batch - done : MOST_BATCHES;
        x.data = after(a->data, done * a->batch, g->dtype);
        y.data = after(b->data, done * b->batch, g->dtype);
        part.c = const_cast<void *>(after(g->c, done * g->c_batch, c_dtype));
        if (tn_status failed = multiply_some(blas, &part, c_dtype, &x, &y, add)) return failed;
    }
    return TN_OK;
}

/* Half-precision C += A B + bias: an f32 copy of C and the bias, the product added to it,
 * rounded. */
template <typename R>
static tn_status add_through_f32(cublasHandle_t blas, const tni_gemm *g, const operand *a,
                                 const operand *b)
{
    int64_t items = g->m * g->n;
    tni_gemm wide_g = *g;

    if (items > INT64_MAX / 4 / g->batch || g->batch > INT64_MAX / 4 / items)
        return tni_cuda_host->fail(
            TN_E_NOMEM, "gemm: sums [%" PRId64 ",%" PRId64 ",%" PRId64 "] do not fit in memory",
            static_cast<long long>(g->batch), static_cast<long long>(g->m),
            static_cast<long long>(g->n));
    tni_cuda_scratch sums;
    if (tn_status failed = sums.borrow(static_cast<size_t>(4 * items * g->batch))) return failed;
    if (tn_status failed = start<float, R>(g, result<float>{ sums.as<float>(), g->n, items }))
        return failed;
    wide_g.c = sums.at;
    wide_g.c_row = g->n;
    wide_g.c_batch = items;
    if (tn_status failed = multiply(blas, &wide_g, TN_F32, a, b, true)) return failed;
    tni_array from = { sums.at, TN_F32, 3, { g->batch, g->m, g->n }, { items, g->n, 1 } };
    tni_array to = { g->c, g->dtype, 3, { g->batch, g->m, g->n }, { g->c_batch, g->c_row, 1 } };
    return copy_to(to, from);
}

/* The sums of A's rows, where no product has made them. */
static tn_status sum_rows(const tni_gemm *g)
{
    const double none[2] = { 0, 0 };
    tni_reduce sum = {};

    if (!g->a_sums || g->m == 0) return TN_OK;
    sum.function = TNI_R_sum;
    sum.y = { g->a_sums, g->dtype, 2, { g->m, 1 }, { 1, 1 } };
    sum.x = { const_cast<void *>(g->a), g->dtype, 2, { g->m, g->k }, { g->a_row, g->a_col } };
    sum.p = none;
    return tni_cuda_reduce(&sum);
}

static tn_status run(const tni_gemm *g, tn_dtype c_dtype, const operand *a, const operand *b)
{
    cublasHandle_t blas = tni_cuda_blas();
    bool done = false;

    if (!blas) return TN_E_BACKEND;
    if ((g->bias || g->a_sums) && g->dtype != TN_F64 && !g->accumulate && g->batch == 1 &&
        g->m > 1 && g->n > 1)
        if (tn_status failed = tni_cuda_gemm_bias(blas, g, a, b, &done)) return failed;
    if (done) return TN_OK;
    if (tn_status failed = sum_rows(g)) return failed;
    if (g->bias && g->accumulate && tni_is_half(g->dtype))
        return g->dtype == TN_BF16 ? add_through_f32<bf16>(blas, g, a, b)
                                   : add_through_f32<f16>(blas, g, a, b);
    if (g->bias)
        if (tn_status failed = TN_FLOATING(g->dtype, start_in_place<R>(g))) return failed;
    return multiply(blas, g, c_dtype, a, b, g->bias || g->accumulate);
}

/* Nothing to multiply: an empty sum. */
static tn_status run_empty(const tni_gemm *g, tn_dtype c_dtype)
{
    if (g->accumulate && !g->bias) return TN_OK;
    return TN_FLOATING(c_dtype, start_in_place<R>(g));
}

static tn_status gemm(const tni_gemm *given, tn_dtype c_dtype)
{
    tni_gemm g = *given;
    operand a = {}, b = {};

    if (g.dtype != TN_F32 && g.dtype != TN_F64 && !tni_is_half(g.dtype))
        return tni_cuda_host->fail(TN_E_UNSUPPORTED,
                                   "gemm: %s on the GPU: want f32, f64, bf16 or f16",
                                   dtype_name(g.dtype));
    if (g.m == 0 || g.n == 0 || g.batch == 0) return sum_rows(&g);
    if (g.m == 1) g.c_row = g.n; /* cuBLAS checks it even for one row */
    if (g.k == 0) {
        if (tn_status failed = run_empty(&g, c_dtype)) return failed;
        return sum_rows(&g);
    }
    tni_cuda_scratch a_copy, b_copy;
    if (tn_status failed =
            operand_init(&a, &a_copy, g.dtype, g.batch, g.a, g.m, g.k, g.a_row, g.a_col, g.a_batch))
        return failed;
    if (tn_status failed =
            operand_init(&b, &b_copy, g.dtype, g.batch, g.b, g.k, g.n, g.b_row, g.b_col, g.b_batch))
        return failed;
    return run(&g, c_dtype, &a, &b);
}

tn_status tni_cuda_gemm_to_f32(const tni_gemm *g)
{
    return gemm(g, TN_F32);
}

tn_status tni_cuda_gemm(const tni_gemm *g)
{
    return gemm(g, g->sums_f32 && tni_is_half(g->dtype) ? TN_F32 : g->dtype);
}
