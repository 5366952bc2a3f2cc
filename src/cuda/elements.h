/*
 * elements.h - arrays of any dtype and strides in kernels: reading an element (or four in a row) as
 * the computing type float, double or int64_t, writing it back, and finding it.
 *
 * Conversions are those of the CPU: reals become integers toward zero (tn_int_of), integers below
 * i64 wrap around, anything but 0 is true.
 */
#pragma once

#include "cuda/rows.h"
#include "tensor/walk.h"
#include "tensor/math.h"

static inline size_t item_size(tn_dtype dtype)
{
    return dtype == TN_F64 || dtype == TN_I64    ? 8
           : dtype == TN_F32 || dtype == TN_I32  ? 4
           : dtype == TN_BF16 || dtype == TN_F16 ? 2
                                                 : 1;
}

static inline bool is_float(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_F64 || dtype == TN_BF16 || dtype == TN_F16;
}

/* The computing type of a dtype's elements. */
static inline tn_dtype computing_type(tn_dtype dtype)
{
    return dtype == TN_F64 ? TN_F64 : is_float(dtype) ? TN_F32 : TN_I64;
}

/* ---- one number ------------------------------------------------------------------------------ */

template <class T, class S> struct number {
    static __device__ __forceinline__ T of(S x) { return static_cast<T>(x); }
};
template <> struct number<int64_t, float> {
    static __device__ __forceinline__ int64_t of(float x)
    {
        return tn_int_of(static_cast<double>(x));
    }
};
template <> struct number<int64_t, double> {
    static __device__ __forceinline__ int64_t of(double x) { return tn_int_of(x); }
};

template <class T>
static __device__ __forceinline__ T load(const void *x, tn_dtype dtype, int64_t at)
{
    switch (dtype) {
    case TN_F32: return number<T, float>::of(static_cast<const float *>(x)[at]);
    case TN_F64: return number<T, double>::of(static_cast<const double *>(x)[at]);
    case TN_BF16: return number<T, float>::of(tn_from_bf16(static_cast<const uint16_t *>(x)[at]));
    case TN_F16: return number<T, float>::of(tn_from_f16(static_cast<const uint16_t *>(x)[at]));
    case TN_I64: return static_cast<T>(static_cast<const int64_t *>(x)[at]);
    case TN_I32: return static_cast<T>(static_cast<const int32_t *>(x)[at]);
    case TN_U8: return static_cast<T>(static_cast<const uint8_t *>(x)[at]);
    case TN_BOOL: return static_cast<T>(static_cast<const uint8_t *>(x)[at] != 0);
    }
    return 0;
}

template <class T>
static __device__ __forceinline__ void store(void *y, tn_dtype dtype, int64_t at, T v)
{
    switch (dtype) {
    case TN_F32: static_cast<float *>(y)[at] = static_cast<float>(v); break;
    case TN_F64: static_cast<double *>(y)[at] = static_cast<double>(v); break;
    case TN_BF16: static_cast<uint16_t *>(y)[at] = tn_to_bf16(static_cast<float>(v)); break;
    case TN_F16: static_cast<uint16_t *>(y)[at] = tn_to_f16(static_cast<float>(v)); break;
    case TN_I64: static_cast<int64_t *>(y)[at] = number<int64_t, T>::of(v); break;
    case TN_I32:
        static_cast<int32_t *>(y)[at] = static_cast<int32_t>(number<int64_t, T>::of(v));
        break;
    case TN_U8:
        static_cast<uint8_t *>(y)[at] = static_cast<uint8_t>(number<int64_t, T>::of(v));
        break;
    case TN_BOOL: static_cast<uint8_t *>(y)[at] = v != 0; break;
    }
}

/* The same for dtypes that T stands for (double: any real, and bool results; int64_t: integers):
 * less code where no other dtype occurs. */
static __device__ __forceinline__ float half_float(uint16_t v, tn_dtype dtype)
{
    return dtype == TN_BF16 ? tn_from_bf16(v) : tn_from_f16(v);
}

template <class T> struct kin;
template <> struct kin<float> {
    static __device__ __forceinline__ float load(const void *x, tn_dtype dtype, int64_t at)
    {
        if (dtype == TN_F32) return static_cast<const float *>(x)[at];
        return half_float(static_cast<const uint16_t *>(x)[at], dtype);
    }
};
template <> struct kin<double> {
    static __device__ __forceinline__ double load(const void *x, tn_dtype dtype, int64_t at)
    {
        if (dtype == TN_F64) return static_cast<const double *>(x)[at];
        return static_cast<double>(kin<float>::load(x, dtype, at));
    }
    static __device__ __forceinline__ void store(void *y, tn_dtype dtype, int64_t at, double v)
    {
        float f = static_cast<float>(v);
        if (dtype == TN_F64)
            static_cast<double *>(y)[at] = v;
        else if (dtype == TN_F32)
            static_cast<float *>(y)[at] = f;
        else if (dtype == TN_BOOL)
            static_cast<uint8_t *>(y)[at] = v != 0;
        else
            static_cast<uint16_t *>(y)[at] = dtype == TN_BF16 ? tn_to_bf16(f) : tn_to_f16(f);
    }
};
template <> struct kin<int64_t> {
    static __device__ __forceinline__ int64_t load(const void *x, tn_dtype dtype, int64_t at)
    {
        if (dtype == TN_I64) return static_cast<const int64_t *>(x)[at];
        if (dtype == TN_I32) return static_cast<const int32_t *>(x)[at];
        uint8_t v = static_cast<const uint8_t *>(x)[at];
        return dtype == TN_BOOL ? v != 0 : v;
    }
    static __device__ __forceinline__ void store(void *y, tn_dtype dtype, int64_t at, int64_t v)
    {
        if (dtype == TN_I64)
            static_cast<int64_t *>(y)[at] = v;
        else if (dtype == TN_I32)
            static_cast<int32_t *>(y)[at] = static_cast<int32_t>(v);
        else
            static_cast<uint8_t *>(y)[at] = static_cast<uint8_t>(dtype == TN_BOOL ? v != 0 : v);
    }
};

/* ---- several numbers in a row, in as few accesses as there can be ---------------------------- */

template <class S, int N> struct alignas(N * sizeof(S) < 16 ? N * sizeof(S) : 16) several {
    S v[N];
};

template <class S> using four = several<S, 4>;

template <class S> static __device__ __forceinline__ four<S> fetch(const void *x, int64_t at)
{
    return *reinterpret_cast<const four<S> *>(static_cast<const S *>(x) + at);
}

template <class T>
static __device__ __forceinline__ void load4(T (&to)[4], const void *x, tn_dtype dtype, int64_t at)
{
#define LOAD4(S, expression)                                                                       \
    {                                                                                              \
        four<S> q = fetch<S>(x, at);                                                               \
        TN_UNROLL                                                                                  \
        for (int k = 0; k < 4; k++) {                                                              \
            S v = q.v[k];                                                                          \
            to[k] = expression;                                                                    \
        }                                                                                          \
        break;                                                                                     \
    }
    switch (dtype) {
    case TN_F32: LOAD4(float, (number<T, float>::of(v)))
    case TN_F64: LOAD4(double, (number<T, double>::of(v)))
    case TN_BF16: LOAD4(uint16_t, (number<T, float>::of(tn_from_bf16(v))))
    case TN_F16: LOAD4(uint16_t, (number<T, float>::of(tn_from_f16(v))))
    case TN_I64: LOAD4(int64_t, static_cast<T>(v))
    case TN_I32: LOAD4(int32_t, static_cast<T>(v))
    case TN_U8: LOAD4(uint8_t, static_cast<T>(v))
    case TN_BOOL:
    default: LOAD4(uint8_t, static_cast<T>(v != 0))
    }
#undef LOAD4
}

/* As kin: f32, bf16 and f16; f64; all integers. */
static __device__ __forceinline__ void kin4(float (&to)[4], const void *x, tn_dtype dtype,
                                            int64_t at)
{
    if (dtype == TN_F32) {
        four<float> q = fetch<float>(x, at);
        TN_UNROLL
        for (int k = 0; k < 4; k++) to[k] = q.v[k];
    } else {
        four<uint16_t> q = fetch<uint16_t>(x, at);
        TN_UNROLL
        for (int k = 0; k < 4; k++) to[k] = half_float(q.v[k], dtype);
    }
}

static __device__ __forceinline__ void kin4(double (&to)[4], const void *x, tn_dtype, int64_t at)
{
    four<double> q = fetch<double>(x, at);
    TN_UNROLL
    for (int k = 0; k < 4; k++) to[k] = q.v[k];
}

static __device__ __forceinline__ void kin4(int64_t (&to)[4], const void *x, tn_dtype dtype,
                                            int64_t at)
{
    TN_UNROLL
    for (int k = 0; k < 4; k++) to[k] = kin<int64_t>::load(x, dtype, at + k);
}

template <class T>
static __device__ __forceinline__ void store4(void *y, tn_dtype dtype, int64_t at,
                                              const T (&from)[4])
{
#define STORE4(S, expression)                                                                      \
    {                                                                                              \
        four<S> q;                                                                                 \
        TN_UNROLL                                                                                  \
        for (int k = 0; k < 4; k++) {                                                              \
            T v = from[k];                                                                         \
            q.v[k] = static_cast<S>(expression);                                                   \
        }                                                                                          \
        *reinterpret_cast<four<S> *>(static_cast<S *>(y) + at) = q;                                \
        break;                                                                                     \
    }
    switch (dtype) {
    case TN_F32: STORE4(float, v)
    case TN_F64: STORE4(double, v)
    case TN_BF16: STORE4(uint16_t, tn_to_bf16(static_cast<float>(v)))
    case TN_F16: STORE4(uint16_t, tn_to_f16(static_cast<float>(v)))
    case TN_I64: STORE4(int64_t, (number<int64_t, T>::of(v)))
    case TN_I32: STORE4(int32_t, (number<int64_t, T>::of(v)))
    case TN_U8: STORE4(uint8_t, (number<int64_t, T>::of(v)))
    case TN_BOOL:
    default: STORE4(uint8_t, v != 0)
    }
#undef STORE4
}

/* ---- places ---------------------------------------------------------------------------------- */

/* x / d for 0 <= x < 2^63 as a product and a shift: m = floor(2^(63+l) / d) + 1, l = ceil(log2 d);
 * m = 0 stands for d = 1. (A division would be a hundred instructions, at every place that is
 * looked up.) Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994),
 * section 4. */
struct divisor {
    unsigned long long m;
    int64_t d;
    int shift;
    divisor() = default;
    explicit divisor(int64_t by) : m(0), d(by), shift(0)
    {
        __extension__ typedef unsigned __int128 wide;
        int l = 0;
        if (by <= 1) return;
        while ((static_cast<wide>(1) << l) < static_cast<wide>(by)) l++;
        m = static_cast<unsigned long long>(
            (static_cast<wide>(1) << (63 + l)) / static_cast<wide>(by) + 1);
        shift = l - 1;
    }
    __device__ __forceinline__ int64_t divide(int64_t x) const
    {
        unsigned long long u = static_cast<unsigned long long>(x);
        return static_cast<int64_t>(m ? __umul64hi(m, u) >> shift : u);
    }
};

/* Element i of N arrays, row-major over axes of equal sizes; axis 0 is the innermost. */
template <int N> struct places {
    int rank; /* at least 1 */
    int64_t numel;
    divisor by[TN_MAX_RANK];
    int64_t size[TN_MAX_RANK], stride[TN_MAX_RANK][N];
};

template <int N>
static __device__ __forceinline__ void locate(const places<N> &w, int64_t i, int64_t (&at)[N])
{
    TN_UNROLL
    for (int k = 0; k < N; k++) at[k] = 0;
    TN_ROLLED for (int d = 0; d < w.rank - 1; d++)
    {
        int64_t next = w.by[d].divide(i);
        int64_t index = i - next * w.by[d].d;
        TN_UNROLL
        for (int k = 0; k < N; k++) at[k] += index * w.stride[d][k];
        i = next;
    }
    TN_UNROLL
    for (int k = 0; k < N; k++) at[k] += i * w.stride[w.rank - 1][k];
}

template <int N> static inline void places_finish(places<N> *w)
{
    w->numel = 1;
    for (int d = 0; d < w->rank; d++) {
        w->numel *= w->size[d];
        w->by[d] = divisor(w->size[d]);
    }
}

/* The axes of the arrays together, merged. */
template <int N> static inline places<N> places_of(const tni_array *const *arrays)
{
    tni_walk walk;

    tni_walk_init(&walk, N, arrays);
    places<N> w;
    w.rank = walk.rank;
    for (int d = 0; d < w.rank; d++) {
        int from = w.rank - 1 - d;
        w.size[d] = walk.size[from];
        for (int k = 0; k < N; k++) w.stride[d][k] = walk.stride[from][k];
    }
    places_finish(&w);
    return w;
}

/* Whether every array can be read n at a time: neighbours along the innermost axis (or all one
 * element), whole rows, each aligned. Then the places become those of the first of each n. With one
 * axis the last numel % n elements are left over. */
template <int N> static inline bool places_by(int n, places<N> *w, const tni_array *const *arrays)
{
    if (w->size[0] < n || (w->rank > 1 && w->size[0] % n != 0)) return false;
    for (int k = 0; k < N; k++) {
        size_t item = item_size(arrays[k]->dtype);
        size_t border = min(static_cast<size_t>(n) * item, static_cast<size_t>(16));
        int64_t neighbour = w->stride[0][k];

        if (k == 0 ? neighbour != 1 : neighbour != 0 && neighbour != 1) return false;
        if (neighbour == 0) continue;
        if (reinterpret_cast<uintptr_t>(arrays[k]->data) % border != 0) return false;
        for (int d = 1; d < w->rank; d++)
            if (w->stride[d][k] % n != 0) return false;
    }
    w->size[0] /= n;
    for (int k = 0; k < N; k++) w->stride[0][k] *= n;
    places_finish(w);
    return true;
}
