/*
 * cuda_host.h - kernels as CPU code: indices, warps, barriers, atomics, launches.
 *
 * Blocks run one after another. The threads of a block share the processor: each runs until it
 * waits (for a barrier, for the lanes of its warp) on a stack of its own. A launch fails, naming
 * the kernel, when a thread ends while others wait for it, when threads wait at different places,
 * or when a lane that a mask names is missing. Odd launches start blocks and threads last to first
 * (TN_CUDA_ORDER=forward or backward: all of them), so that a dependence on the order shows.
 */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include "cuda_runtime.h"

#include <functional>
#include <tuple>
#include <type_traits>

struct cuda_host_index {
    unsigned x, y, z;
};

#pragma GCC visibility push(hidden)

/* Of the thread that runs. */
extern cuda_host_index threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

namespace cuda_host {

/* ---- launches (queue.cpp, block.cpp) --------------------------------------------------------- */

/* Checks the limits and puts the launch into the queue; cudaPeekAtLastError reports errors. body
 * runs one thread. */
void launch_body(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
                 std::function<void()> body);
cudaError_t set_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
void *dynamic_shared();
/* Runs all blocks now; false: the fault's text is set. */
bool run_grid(const char *name, dim3 grid, dim3 block, size_t shared,
              const std::function<void()> &body, bool backward);

template <class... P, class... A>
static inline void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t shared, cudaStream_t stream, A &&...arguments)
{
    /* converted and copied once, as a real launch does */
    std::tuple<std::decay_t<P>...> copies(static_cast<P>(arguments)...);
    static_assert((sizeof(std::decay_t<P>) + ... + 0) <= 4096,
                  "kernel parameters take 4 KiB at most");
    (void)stream;
    launch_body(name, reinterpret_cast<const void *>(kernel), grid, block, shared,
                [kernel, copies]() { std::apply(kernel, copies); });
}

/* ---- waiting (block.cpp) --------------------------------------------------------------------- */

enum barrier_kind { BARRIER, BARRIER_AND, BARRIER_OR, BARRIER_COUNT };
int barrier(barrier_kind kind, int value, int line);

/* What a lane hands to the warp, and what it gets: by shuffle, the value of lane `from`.
 * WARP_TOGETHER: as WARP_WAIT, of instructions that order no memory. */
enum warp_kind { WARP_WAIT, WARP_TOGETHER, WARP_SHUFFLE, WARP_BALLOT, WARP_MATCH };
uint64_t warp(warp_kind kind, unsigned mask, uint64_t value, int from, int line);
int lane();

template <class T> static inline uint64_t to_bits(T value)
{
    static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "shuffles move numbers");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> static inline T from_bits(uint64_t bits)
{
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/* The lane to read from, own lane where the source is outside the section of `width` lanes. */
template <class T> static inline T shuffle(unsigned mask, T value, int from, bool inside, int line)
{
    int here = lane();
    return from_bits<T>(warp(WARP_SHUFFLE, mask, to_bits(value), inside ? from : here, line));
}

template <class T>
static inline T shuffle_at(int line, unsigned mask, T value, int source, int width = 32)
{
    int here = lane();
    return shuffle(mask, value, (here & ~(width - 1)) + (source & (width - 1)), true, line);
}

template <class T>
static inline T shuffle_up(int line, unsigned mask, T value, unsigned delta, int width = 32)
{
    int here = lane();
    int from = here - static_cast<int>(delta);
    return shuffle(mask, value, from, from >= (here & ~(width - 1)), line);
}

template <class T>
static inline T shuffle_down(int line, unsigned mask, T value, unsigned delta, int width = 32)
{
    int here = lane();
    int from = here + static_cast<int>(delta);
    return shuffle(mask, value, from, from <= (here | (width - 1)), line);
}

template <class T>
static inline T shuffle_xor(int line, unsigned mask, T value, int bits, int width = 32)
{
    int here = lane();
    int from = here ^ bits;
    return shuffle(mask, value, from, from <= (here | (width - 1)), line);
}

template <class T, class F> static inline T reduce(int line, unsigned mask, T value, F join)
{
    T all = value;
    bool first = true;
    for (int from = 0; from < 32; from++) {
        if (!(mask >> from & 1)) continue;
        T other = shuffle(mask, value, from, true, line);
        all = first ? other : join(all, other);
        first = false;
    }
    return all;
}

} /* namespace cuda_host */

#pragma GCC visibility pop

#define __syncthreads() ((void)cuda_host::barrier(cuda_host::BARRIER, 0, __LINE__))
#define __syncthreads_and(value) cuda_host::barrier(cuda_host::BARRIER_AND, (value) != 0, __LINE__)
#define __syncthreads_or(value) cuda_host::barrier(cuda_host::BARRIER_OR, (value) != 0, __LINE__)
#define __syncthreads_count(value)                                                                 \
    cuda_host::barrier(cuda_host::BARRIER_COUNT, (value) != 0, __LINE__)

static inline unsigned cuda_host_mask(unsigned mask = 0xffffffffu)
{
    return mask;
}
#define __syncwarp(...)                                                                            \
    ((void)cuda_host::warp(cuda_host::WARP_WAIT, cuda_host_mask(__VA_ARGS__), 0, 0, __LINE__))
#define __shfl_sync(...) cuda_host::shuffle_at(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cuda_host::shuffle_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_host::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_host::shuffle_xor(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate)                                                             \
    static_cast<unsigned>(                                                                         \
        cuda_host::warp(cuda_host::WARP_BALLOT, (mask), (predicate) ? 1 : 0, 0, __LINE__))
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)
#define __all_sync(mask, predicate) (__ballot_sync(mask, !(predicate)) == 0)
#define __match_any_sync(mask, value)                                                              \
    static_cast<unsigned>(                                                                         \
        cuda_host::warp(cuda_host::WARP_MATCH, (mask), cuda_host::to_bits(value), 0, __LINE__))
#define __reduce_add_sync(mask, value)                                                             \
    cuda_host::reduce(__LINE__, mask, value, [](auto a, auto b) { return a + b; })
#define __reduce_max_sync(mask, value)                                                             \
    cuda_host::reduce(__LINE__, mask, value, [](auto a, auto b) { return a > b ? a : b; })
#define __reduce_min_sync(mask, value)                                                             \
    cuda_host::reduce(__LINE__, mask, value, [](auto a, auto b) { return a < b ? a : b; })
#define __reduce_or_sync(mask, value)                                                              \
    cuda_host::reduce(__LINE__, mask, value, [](auto a, auto b) { return a | b; })

/* ---- atomics: CUDA's own types. One thread runs at a time. ----------------------------------- */

/* Where races are looked for, these are not read as plain accesses. */
#ifdef CUDA_HOST_RACES
namespace cuda_host {
void atomic_access(const void *at, size_t size, const void *from)
    __attribute__((visibility("hidden")));
}
#define CUDA_HOST_ATOMIC_FN static __attribute__((noinline, unused, no_sanitize("thread")))
#define CUDA_HOST_ATOMIC_AT(at)                                                                    \
    cuda_host::atomic_access(at, sizeof *(at), __builtin_return_address(0))
#else
#define CUDA_HOST_ATOMIC_FN static inline
#define CUDA_HOST_ATOMIC_AT(at) ((void)0)
#endif

/* clang-format off */
#define CUDA_HOST_ATOMIC(name, T, expression)                                                      \
    CUDA_HOST_ATOMIC_FN T name(T *at, T value)                                                     \
    {                                                                                              \
        CUDA_HOST_ATOMIC_AT(at);                                                                   \
        T old = *at;                                                                               \
        *at = (expression);                                                                        \
        return old;                                                                                \
    }
#define CUDA_HOST_ATOMICS(T)                                                                       \
    CUDA_HOST_ATOMIC(atomicMax, T, old > value ? old : value)                                      \
    CUDA_HOST_ATOMIC(atomicMin, T, old < value ? old : value)                                      \
    CUDA_HOST_ATOMIC(atomicAnd, T, old & value)                                                    \
    CUDA_HOST_ATOMIC(atomicOr, T, old | value)                                                     \
    CUDA_HOST_ATOMIC(atomicXor, T, old ^ value)                                                    \
    CUDA_HOST_ATOMIC_FN T atomicCAS(T *at, T expected, T value)                                    \
    {                                                                                              \
        CUDA_HOST_ATOMIC_AT(at);                                                                   \
        T old = *at;                                                                               \
        if (old == expected) *at = value;                                                          \
        return old;                                                                                \
    }
CUDA_HOST_ATOMICS(int)
CUDA_HOST_ATOMICS(unsigned)
CUDA_HOST_ATOMICS(unsigned long long)
/* clang-format on */
CUDA_HOST_ATOMIC(atomicMax, long long, old > value ? old : value)
CUDA_HOST_ATOMIC(atomicMin, long long, old < value ? old : value)
CUDA_HOST_ATOMIC(atomicAdd, int,
                 static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
CUDA_HOST_ATOMIC(atomicAdd, unsigned, old + value)
CUDA_HOST_ATOMIC(atomicAdd, unsigned long long, old + value)
CUDA_HOST_ATOMIC(atomicAdd, float, old + value)
CUDA_HOST_ATOMIC(atomicAdd, double, old + value)
CUDA_HOST_ATOMIC(atomicSub, int,
                 static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
CUDA_HOST_ATOMIC(atomicSub, unsigned, old - value)
CUDA_HOST_ATOMIC(atomicExch, int, value)
CUDA_HOST_ATOMIC(atomicExch, unsigned, value)
CUDA_HOST_ATOMIC(atomicExch, unsigned long long, value)
CUDA_HOST_ATOMIC(atomicExch, float, value)
CUDA_HOST_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
#undef CUDA_HOST_ATOMIC
#undef CUDA_HOST_ATOMICS

static inline void __threadfence() {}
static inline void __threadfence_block() {}

/* ---- small functions ------------------------------------------------------------------------- */

/* clang-format off */
template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline T __ldcg(const T *at) { return *at; }
template <class T> static inline void __stcs(T *at, T value) { *at = value; }
template <class T> static inline void __stcg(T *at, T value) { *at = value; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    __extension__ typedef unsigned __int128 wide;
    return static_cast<unsigned long long>((static_cast<wide>(a) * b) >> 64);
}
static inline int __float_as_int(float x) { return cuda_host::from_bits<int>(cuda_host::to_bits(x)); }
static inline unsigned __float_as_uint(float x)
{
    return cuda_host::from_bits<unsigned>(cuda_host::to_bits(x));
}
static inline float __int_as_float(int x) { return cuda_host::from_bits<float>(cuda_host::to_bits(x)); }
static inline float __uint_as_float(unsigned x)
{
    return cuda_host::from_bits<float>(cuda_host::to_bits(x));
}
static inline long long __double_as_longlong(double x)
{
    return cuda_host::from_bits<long long>(cuda_host::to_bits(x));
}
static inline double __longlong_as_double(long long x)
{
    return cuda_host::from_bits<double>(cuda_host::to_bits(x));
}
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

#define CUDA_HOST_MIN_MAX(T)                                                                       \
    static inline T min(T a, T b) { return b < a ? b : a; }                                        \
    static inline T max(T a, T b) { return a < b ? b : a; }
CUDA_HOST_MIN_MAX(int)
CUDA_HOST_MIN_MAX(unsigned)
CUDA_HOST_MIN_MAX(long)
CUDA_HOST_MIN_MAX(unsigned long)
CUDA_HOST_MIN_MAX(long long)
CUDA_HOST_MIN_MAX(unsigned long long)
#undef CUDA_HOST_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
/* clang-format on */

/* ---- what src/cuda/cuda.h wants -------------------------------------------------------------- */

#define TN_START(kernel, grid, block, shared, ...)                                                 \
    cuda_host::launch(#kernel, (kernel), dim3(grid), dim3(block), (shared), tni_cuda_stream,       \
                      __VA_ARGS__)
#define TN_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(cuda_host::dynamic_shared())

/* ---- for tests: exported by the module ------------------------------------------------------- */

extern "C" {
/* Runtime and library calls so far; makes call number n from now (1: the next) fail, 0: none. */
long long cuda_host_calls(void);
void cuda_host_fail(long long n);
/* The device's memory in bytes, as cudaMemGetInfo reports it. */
void cuda_host_memory(size_t bytes);
/* Blocks of device memory alive; launches so far; times that the host waited for the device. */
long long cuda_host_blocks(void);
long long cuda_host_launches(void);
long long cuda_host_waits(void);
/* As if a kernel had failed for this reason. */
void cuda_host_fault(const char *text);
}

#endif
