/*
 * convert.c - elements of any dtype into a dense buffer of float, double or int64_t, and back.
 *
 * Reals become integers toward zero (tn_int_of), integers below i64 wrap around, and anything but 0
 * (NaN too) is true.
 */
#include "tensor/cpu/pointwise.h"

#define EACH(TO, FROM, to_step, from_step, expression)                                             \
    for (int64_t i = 0; i < n; i++) {                                                              \
        FROM v = x[i * (from_step)];                                                               \
        y[i * (to_step)] = (TO)(expression);                                                       \
    }

/* One of the steps is `stride`, the other 1. */
#define CONVERT(TO, FROM, to_step, from_step, expression)                                          \
    do {                                                                                           \
        TO *y = to;                                                                                \
        const FROM *x = from;                                                                      \
        if (stride == 1)                                                                           \
            EACH(TO, FROM, 1, 1, expression)                                                       \
        else                                                                                       \
            EACH(TO, FROM, to_step, from_step, expression)                                         \
    } while (0)
#define LOAD(T, S, expression) CONVERT(T, S, 1, stride, expression)
#define STORE(T, S, expression) CONVERT(S, T, stride, 1, expression)

#define LOAD_ANY(name, T, OF_REAL)                                                                 \
    static void name(int64_t n, void *restrict to, const void *restrict from, tn_dtype dtype,      \
                     int64_t stride)                                                               \
    {                                                                                              \
        switch (dtype) {                                                                           \
        case TN_F32: LOAD(T, float, OF_REAL(v)); break;                                            \
        case TN_F64: LOAD(T, double, OF_REAL(v)); break;                                           \
        case TN_BF16: LOAD(T, uint16_t, OF_REAL(tn_from_bf16(v))); break;                          \
        case TN_F16: LOAD(T, uint16_t, OF_REAL(tn_from_f16(v))); break;                            \
        case TN_I64: LOAD(T, int64_t, v); break;                                                   \
        case TN_I32: LOAD(T, int32_t, v); break;                                                   \
        case TN_U8: LOAD(T, uint8_t, v); break;                                                    \
        case TN_BOOL: LOAD(T, uint8_t, v != 0); break;                                             \
        }                                                                                          \
    }

#define STORE_ANY(name, T, TO_INT)                                                                 \
    static void name(int64_t n, void *restrict to, tn_dtype dtype, int64_t stride,                 \
                     const void *restrict from)                                                    \
    {                                                                                              \
        switch (dtype) {                                                                           \
        case TN_F32: STORE(T, float, v); break;                                                    \
        case TN_F64: STORE(T, double, v); break;                                                   \
        case TN_BF16: STORE(T, uint16_t, tn_to_bf16((float)v)); break;                             \
        case TN_F16: STORE(T, uint16_t, tn_to_f16((float)v)); break;                               \
        case TN_I64: STORE(T, int64_t, TO_INT(v)); break;                                          \
        case TN_I32: STORE(T, int32_t, TO_INT(v)); break;                                          \
        case TN_U8: STORE(T, uint8_t, TO_INT(v)); break;                                           \
        case TN_BOOL: STORE(T, uint8_t, v != 0); break;                                            \
        }                                                                                          \
    }

/* ---- AVX512-BF16 rounds 32 numbers with one instruction -------------------------------------- */

#ifdef __AVX512BW__
#include <immintrin.h>

/* Whether some number is a denormal: the instruction takes those for 0. The instruction that
 * classifies numbers is not used: it sees 0 where a host program has set denormals-are-zero. */
static inline bool any_denormal(__m512 a, __m512 b)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000), rest = _mm512_set1_epi32(0x007fffff);
    __m512i u = _mm512_castps_si512(a), v = _mm512_castps_si512(b);
    return _mm512_mask_test_epi32_mask(_mm512_testn_epi32_mask(u, exponent), u, rest) |
           _mm512_mask_test_epi32_mask(_mm512_testn_epi32_mask(v, exponent), v, rest);
}

/* The bits of tn_to_bf16 for whole vectors. Returns how many elements they hold. */
__attribute__((target("avx512bf16"))) static int64_t round_vectors(int64_t n, uint16_t *restrict y,
                                                                   const float *restrict x)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        _mm512_storeu_si512(y + i, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        for (int k = 0; any_denormal(a, b) && k < 32; k++) y[i + k] = tn_to_bf16(x[i + k]);
    }
    return i;
}

static int64_t store_vectors(int64_t n, void *to, tn_dtype dtype, int64_t stride, const void *from)
{
    if (dtype != TN_BF16 || stride != 1 || !__builtin_cpu_supports("avx512bf16")) return 0;
    return round_vectors(n, to, from);
}
#else
#define store_vectors(...) 0
#endif

#define SAME(v) (v)
#define TO_INTEGER(v) tn_int_of((double)(v))

LOAD_ANY(load_f32, float, SAME)
LOAD_ANY(load_f64, double, SAME)
LOAD_ANY(load_i64, int64_t, TO_INTEGER)
STORE_ANY(store_f32, float, TO_INTEGER)
STORE_ANY(store_f64, double, TO_INTEGER)
STORE_ANY(store_i64, int64_t, SAME)

void K(tni_load)(tn_dtype type, int64_t n, void *to, const void *from, tn_dtype dtype,
                 int64_t stride)
{
    if (type == TN_F32)
        load_f32(n, to, from, dtype, stride);
    else if (type == TN_F64)
        load_f64(n, to, from, dtype, stride);
    else
        load_i64(n, to, from, dtype, stride);
}

void K(tni_store)(tn_dtype type, int64_t n, void *to, tn_dtype dtype, int64_t stride,
                  const void *from)
{
    if (type == TN_F32) {
        int64_t done = store_vectors(n, to, dtype, stride, from);
        if (done < n)
            store_f32(n - done, (uint16_t *)to + done, dtype, stride, (const float *)from + done);
    } else if (type == TN_F64)
        store_f64(n, to, dtype, stride, from);
    else
        store_i64(n, to, dtype, stride, from);
}
