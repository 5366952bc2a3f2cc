/* rows.h - shared by the row kernels: overloads of math.h's functions, a thread's number, sums over
 * a warp and a block in a fixed order, division by a constant. */
#pragma once

#include "cuda/cuda.h"
#include "tensor/math.h"

#define WARP_ALL 0xffffffffu
#define ROW_INFINITY HUGE_VAL

static __device__ __forceinline__ float row_exp(float x)
{
    return tn_exp_part_f32(x);
}
static __device__ __forceinline__ double row_exp(double x)
{
    return tn_exp_f64(x);
}
static __device__ __forceinline__ float row_log(float x)
{
    return tn_log_f32(x);
}
static __device__ __forceinline__ double row_log(double x)
{
    return tn_log_f64(x);
}

/* This thread's number in the grid, and how many threads it has. */
static __device__ __forceinline__ int64_t grid_thread()
{
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t grid_threads()
{
    return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

/* ---- over a warp: every lane gets the result ------------------------------------------------- */

template <typename T> static __device__ __forceinline__ T warp_sum(T v)
{
    TN_UNROLL
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(WARP_ALL, v, apart);
    return v;
}

/* Ignores NaN: exp(x - max) shows it. */
template <typename T> static __device__ __forceinline__ T warp_max(T v)
{
    TN_UNROLL
    for (int apart = 16; apart > 0; apart /= 2) {
        T other = __shfl_xor_sync(WARP_ALL, v, apart);
        v = other > v ? other : v;
    }
    return v;
}

/* ---- over a block of whole warps: every thread gets the result ------------------------------- */

static __device__ __forceinline__ double block_sum(double v)
{
    __shared__ double part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : 0.0);
    __syncthreads(); /* part may be written again */
    return v;
}

template <typename R> static __device__ __forceinline__ R block_max(R v)
{
    __shared__ R part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = warp_max(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = warp_max(lane < warps ? part[lane] : static_cast<R>(-ROW_INFINITY));
    __syncthreads();
    return v;
}

/* This thread's share of the sum of f(j) over j < n: in R over at most 64 of them, and from there
 * in double, so that a long row loses no more than a short one. */
template <typename R, typename F>
static __device__ __forceinline__ double thread_sum(int64_t n, const F &f)
{
    double total = 0;
    int64_t step = blockDim.x;
    for (int64_t from = threadIdx.x; from < n; from += 64 * step) {
        int64_t end = min(n, from + 64 * step);
        R part = 0;
        for (int64_t j = from; j < end; j += step) part += f(j);
        total += static_cast<double>(part);
    }
    return total;
}

/* ---- how rows are spread over the device ----------------------------------------------------- */

enum { ROW_THREADS = 128, ROW_WARPS = ROW_THREADS / 32, ROW_IN_WARP = 1024, ROW_BLOCK = 512 };

/* Blocks for n items of which one block takes `each` at a time: enough to fill the device a few
 * times over, the rest in a stride. */
static inline unsigned row_grid(int64_t n, int64_t each)
{
    return tni_cuda_blocks(n, static_cast<int>(each), 32LL * tni_cuda_multiprocessors());
}

/* Calls launch with the constant K, items per lane, of a row of c <= 1024 elements in one warp. */
#define ROW_ITEMS(c, launch)                                                                       \
    [&]() -> tn_status {                                                                           \
        if ((c) <= 32) {                                                                           \
            constexpr int K = 1;                                                                   \
            return launch;                                                                         \
        } else if ((c) <= 128) {                                                                   \
            constexpr int K = 4;                                                                   \
            return launch;                                                                         \
        } else if ((c) <= 512) {                                                                   \
            constexpr int K = 16;                                                                  \
            return launch;                                                                         \
        } else {                                                                                   \
            constexpr int K = 32;                                                                  \
            return launch;                                                                         \
        }                                                                                          \
    }()

/* ---- division by a number that a launch does not change -------------------------------------- */

/* x / d for x < 2^31 as a product and a shift: m = floor(2^(31+l) / d) + 1, l = ceil(log2 d).
 * Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), section 4.
 * */
struct small_divisor {
    typedef uint32_t index;
    uint32_t d, m, shift;
    small_divisor(int64_t by = 1) : d(static_cast<uint32_t>(by)), m(0), shift(31)
    {
        while ((1ull << (shift - 31)) < d) shift++;
        m = static_cast<uint32_t>((1ull << shift) / d + 1);
    }
    __device__ __forceinline__ uint32_t divide(uint32_t x) const
    {
        return static_cast<uint32_t>((static_cast<uint64_t>(x) * m) >> shift);
    }
    __device__ __forceinline__ uint32_t rest(uint32_t x, uint32_t quotient) const
    {
        return x - quotient * d;
    }
};

struct large_divisor {
    typedef int64_t index;
    int64_t d;
    large_divisor(int64_t by = 1) : d(by) {}
    __device__ __forceinline__ int64_t divide(int64_t x) const { return x / d; }
    __device__ __forceinline__ int64_t rest(int64_t x, int64_t quotient) const
    {
        return x - quotient * d;
    }
};

/* Runs `call` with D, the divisor type for numbers below n (and what a grid's stride adds). */
#define BY_DIVISOR(n, call)                                                                        \
    [&]() -> tn_status {                                                                           \
        if ((n) < (1LL << 30)) {                                                                   \
            typedef small_divisor D;                                                               \
            return call;                                                                           \
        } else {                                                                                   \
            typedef large_divisor D;                                                               \
            return call;                                                                           \
        }                                                                                          \
    }()
