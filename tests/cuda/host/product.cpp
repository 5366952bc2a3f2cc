/*
 * product.cpp - products on OpenBLAS: operands of half-precision floats are widened to f32 before,
 * C is rounded once after.
 */
#include "product.h"

#include <cblas.h>

#include <climits>
#include <vector>

#include "tensor/math.h"

namespace cuda_host {

size_t item(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    }
    return 0;
}

bool has_types(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cublasComputeType_t compute)
{
    if (a != b) return false;
    switch (compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC: return a == CUDA_R_64F && c == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F_FAST_TF32: return a == CUDA_R_32F && c == CUDA_R_32F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return a != CUDA_R_64F && (c == a || (c == CUDA_R_32F && item(a) == 2));
    }
    return false;
}

static bool on_border(const void *p, cudaDataType_t type)
{
    return p && reinterpret_cast<uintptr_t>(p) % item(type) == 0;
}

bool fits(const product &p)
{
    int64_t rows_a = p.ta == CUBLAS_OP_N ? p.m : p.k;
    int64_t rows_b = p.tb == CUBLAS_OP_N ? p.k : p.n;

    for (int64_t size : { p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.batch })
        if (size < 0 || size > INT_MAX) return false;
    if (p.lda < (rows_a > 1 ? rows_a : 1) || p.ldb < (rows_b > 1 ? rows_b : 1) ||
        p.ldc < (p.m > 1 ? p.m : 1) || p.stride_a < 0 || p.stride_b < 0)
        return false;
    if (p.batch > 65535) return false;
    if (p.m == 0 || p.n == 0 || p.batch == 0) return true;
    if (p.batch > 1 && p.stride_c < (p.n - 1) * p.ldc + p.m) return false;
    if (p.bias && !on_border(p.bias, p.c_type)) return false;
    return on_border(p.c, p.c_type) &&
           (p.k == 0 || (on_border(p.a, p.a_type) && on_border(p.b, p.b_type)));
}

/* ---- numbers as f32 -------------------------------------------------------------------------- */

static float wide(const void *from, cudaDataType_t type, size_t i)
{
    if (type == CUDA_R_32F) return static_cast<const float *>(from)[i];
    uint16_t bits = static_cast<const uint16_t *>(from)[i];
    return type == CUDA_R_16BF ? tn_from_bf16(bits) : tn_from_f16(bits);
}

static void round_to(void *to, cudaDataType_t type, size_t i, float value)
{
    if (type == CUDA_R_32F)
        static_cast<float *>(to)[i] = value;
    else
        static_cast<uint16_t *>(to)[i] = type == CUDA_R_16BF ? tn_to_bf16(value) : tn_to_f16(value);
}

static float rounded(float value, cudaDataType_t type)
{
    if (type == CUDA_R_32F) return value;
    uint16_t bits;
    round_to(&bits, type, 0, value);
    return wide(&bits, type, 0);
}

/* Ten bits after the point, half away from zero, as the conversion to TF32 rounds. */
static float tf32_of(float x)
{
    uint32_t u = tn_bits_f32(x);
    return (u & 0x7f800000u) == 0x7f800000u ? x : tn_from_bits_f32((u + 0x1000u) & ~0x1fffu);
}

/* rows x columns, dense. */
static std::vector<float> operand(const void *from, cudaDataType_t type, int64_t first,
                                  int64_t rows, int64_t columns, int64_t ld, bool tf32)
{
    std::vector<float> to(static_cast<size_t>(rows * columns) + 1);
    for (int64_t j = 0; j < columns; j++) {
        for (int64_t i = 0; i < rows; i++) {
            float v = wide(from, type, static_cast<size_t>(first + i + j * ld));
            to[static_cast<size_t>(i + j * rows)] = tf32 ? tf32_of(v) : v;
        }
    }
    return to;
}

/* ---- products -------------------------------------------------------------------------------- */

static CBLAS_TRANSPOSE transposed(cublasOperation_t t)
{
    return t == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
}

static int as_int(int64_t n)
{
    return static_cast<int>(n);
}

/* OpenBLAS stays on this thread: threads that OpenMP starts for it do not exist in a child after
 * fork, which would wait for them for ever. */
static void alone()
{
    static thread_local bool done;
    if (!done) openblas_set_num_threads(1);
    done = true;
}

/* sum += alpha op(A) op(B) over places k0 .. k1 of the inner axis; sum is dense. */
static void add_product(const product &p, const std::vector<float> &a, const std::vector<float> &b,
                        int64_t k0, int64_t k1, std::vector<float> *sum)
{
    int64_t lda = p.ta == CUBLAS_OP_N ? p.m : p.k;
    int64_t ldb = p.tb == CUBLAS_OP_N ? p.k : p.n;
    const float *from_a = a.data() + (p.ta == CUBLAS_OP_N ? k0 * lda : k0);
    const float *from_b = b.data() + (p.tb == CUBLAS_OP_N ? k0 : k0 * ldb);

    alone();
    if (k1 > k0)
        cblas_sgemm(CblasColMajor, transposed(p.ta), transposed(p.tb), as_int(p.m), as_int(p.n),
                    as_int(k1 - k0), static_cast<float>(p.alpha), from_a, as_int(lda), from_b,
                    as_int(ldb), 1, sum->data(), as_int(p.m));
}

static void run_half(const product &p, int64_t b)
{
    std::vector<float> left =
        operand(p.a, p.a_type, b * p.stride_a, p.ta == CUBLAS_OP_N ? p.m : p.k,
                p.ta == CUBLAS_OP_N ? p.k : p.m, p.lda, p.tf32);
    std::vector<float> right =
        operand(p.b, p.b_type, b * p.stride_b, p.tb == CUBLAS_OP_N ? p.k : p.n,
                p.tb == CUBLAS_OP_N ? p.n : p.k, p.ldb, p.tf32);
    std::vector<float> sum(static_cast<size_t>(p.m * p.n));
    int64_t half = p.loose ? p.k / 2 : 0;

    for (int64_t j = 0; p.b_sums && j < p.n; j++) {
        float all = 0;
        for (int64_t i = 0; i < p.k; i++)
            all += right[static_cast<size_t>(p.tb == CUBLAS_OP_N ? i + j * p.k : j + i * p.n)];
        round_to(p.b_sums, p.b_type, static_cast<size_t>(j), all);
    }
    add_product(p, left, right, 0, half, &sum);
    if (p.loose)
        for (float &s : sum) s = rounded(s, p.c_type);
    add_product(p, left, right, half, p.k, &sum);
    for (int64_t j = 0; j < p.n; j++) {
        for (int64_t i = 0; i < p.m; i++) {
            size_t at = static_cast<size_t>(b * p.stride_c + i + j * p.ldc);
            float v = sum[static_cast<size_t>(i + j * p.m)];
            if (p.beta != 0) v += static_cast<float>(p.beta) * wide(p.c, p.c_type, at);
            if (p.twice) v = rounded(v, p.c_type);
            if (p.bias) v += wide(p.bias, p.c_type, static_cast<size_t>(i));
            round_to(p.c, p.c_type, at, v);
        }
    }
}

static void run_f64(const product &p, int64_t b)
{
    alone();
    cblas_dgemm(CblasColMajor, transposed(p.ta), transposed(p.tb), as_int(p.m), as_int(p.n),
                as_int(p.k), p.alpha, static_cast<const double *>(p.a) + b * p.stride_a,
                as_int(p.lda), static_cast<const double *>(p.b) + b * p.stride_b, as_int(p.ldb),
                p.beta, static_cast<double *>(p.c) + b * p.stride_c, as_int(p.ldc));
}

static void run_f32(const product &p, int64_t b)
{
    float *c = static_cast<float *>(p.c) + b * p.stride_c;
    const float *bias = static_cast<const float *>(p.bias);

    alone();
    for (int64_t j = 0; bias && j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) c[i + j * p.ldc] = bias[i];
    cblas_sgemm(CblasColMajor, transposed(p.ta), transposed(p.tb), as_int(p.m), as_int(p.n),
                as_int(p.k), static_cast<float>(p.alpha),
                static_cast<const float *>(p.a) + b * p.stride_a, as_int(p.lda),
                static_cast<const float *>(p.b) + b * p.stride_b, as_int(p.ldb),
                bias ? 1 : static_cast<float>(p.beta), c, as_int(p.ldc));
}

void run(const product &p)
{
    for (int64_t b = 0; b < p.batch && p.m > 0 && p.n > 0; b++)
        if (p.c_type == CUDA_R_64F)
            run_f64(p, b);
        else if (p.a_type == CUDA_R_32F && !p.tf32)
            run_f32(p, b);
        else
            run_half(p, b);
}

} /* namespace cuda_host */
