/* half.h - bf16 and f16 as element types of kernels: storage only, the arithmetic is in f32. */
#pragma once

#include "cuda/cuda.h"
#include "tensor/math.h"

struct bf16 {
    uint16_t bits;
};

struct f16 {
    uint16_t bits;
};

/* The type that elements of type R compute in, and the conversions (back: to nearest even). A NaN
 * stays a NaN, but its other bits may change. */
template <typename R> struct element {
    typedef R computing;
    static constexpr bool is_half = false;
    static __device__ __forceinline__ R wide(R x) { return x; }
    static __device__ __forceinline__ R rounded(R x) { return x; }
};

template <> struct element<bf16> {
    typedef float computing;
    static constexpr bool is_half = true;
    static __device__ __forceinline__ float wide(bf16 x) { return tn_from_bf16(x.bits); }
    static __device__ __forceinline__ bf16 rounded(float x)
    {
#ifdef __CUDACC__
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
#else
        return bf16{ tn_to_bf16(x) };
#endif
    }
};

template <> struct element<f16> {
    typedef float computing;
    static constexpr bool is_half = true;
    static __device__ __forceinline__ float wide(f16 x)
    {
#ifdef __CUDACC__
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
        return y;
#else
        return tn_from_f16(x.bits);
#endif
    }
    static __device__ __forceinline__ f16 rounded(float x)
    {
#ifdef __CUDACC__
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
#else
        return f16{ tn_to_f16(x) };
#endif
    }
};

template <typename R> static __device__ __forceinline__ typename element<R>::computing wide(R x)
{
    return element<R>::wide(x);
}

/* Bytes of an element of a floating dtype. */
static inline size_t floating_size(tn_dtype dtype)
{
    return dtype == TN_F64 ? 8 : dtype == TN_F32 ? 4 : 2;
}

/* TN_E_DTYPE unless there are kernels for dtype. */
static inline tn_status check_floating(const char *name, tn_dtype dtype)
{
    if (dtype == TN_F32 || dtype == TN_F64 || tni_is_half(dtype)) return TN_OK;
    return tni_cuda_refuse(name, dtype, "f32, f64, bf16 or f16");
}

/* Runs `call` with the C++ type R of a floating dtype; TN_E_DTYPE for others. */
#define TN_FLOATING(dtype, call)                                                                   \
    [&, function = __func__]() -> tn_status {                                                      \
        if ((dtype) == TN_F32) TN_WITH(float, call)                                                \
        if ((dtype) == TN_F64) TN_WITH(double, call)                                               \
        if ((dtype) == TN_BF16) TN_WITH(bf16, call)                                                \
        if ((dtype) == TN_F16) TN_WITH(f16, call)                                                  \
        return check_floating(function, dtype);                                                    \
    }()

/* ---- f32 kernels on copies, where there are none for bf16 and f16 ---------------------------- */

static inline int64_t f32_strides(tni_array *x)
{
    int64_t n = 1;
    x->dtype = TN_F32;
    for (int i = x->rank - 1; i >= 0; i--) {
        if (x->stride[i] == 0) continue;
        x->stride[i] = n;
        n *= x->size[i];
    }
    return (n + 3) / 4 * 4; /* each begins on 16 bytes */
}

static inline tni_array once(tni_array x)
{
    for (int i = 0; i < x.rank; i++)
        if (x.stride[i] == 0) x.size[i] = 1;
    return x;
}

/* Of n arrays the short ones get f32 memory (to[i], which begins as a copy of from[i]), and the
 * first `inputs` also their values; an axis keeps stride 0. */
static inline tn_status f32_copies(int n, tni_array *const *to, const tni_array *const *from,
                                   int inputs, tni_cuda_scratch &block)
{
    int64_t elements = 0;

    for (int i = 0; i < n; i++)
        if (tni_is_half(from[i]->dtype) && from[i]->data) elements += f32_strides(to[i]);
    if (tn_status failed = block.borrow(static_cast<size_t>(elements) * sizeof(float)))
        return failed;
    float *at = block.as<float>();
    for (int i = 0; i < n; i++) {
        if (to[i]->dtype == from[i]->dtype) continue;
        tni_array values = once(*from[i]), own = *to[i];
        to[i]->data = own.data = at;
        at += f32_strides(&own);
        own = once(own);
        if (i < inputs)
            if (tn_status failed = copy_to(own, values)) return failed;
    }
    return TN_OK;
}
