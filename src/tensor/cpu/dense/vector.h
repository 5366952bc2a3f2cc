/*
 * vector.h - vectors of f32 as wide as the instruction set's registers, for files that hold a
 * result in registers (tile.c, few.c, winograd.c, depthwise.c).
 */
#pragma once

#include "tensor/cpu/cpu.h"

#if defined __AVX2__
#include <immintrin.h>
#endif
#if defined __AVX512F__
enum { LANES = 16 };
#define FRONT 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define BACK 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined TNI_PLAIN && !defined __AVX2__
enum { LANES = 4 };
#define FRONT 0, 4, 1, 5
#define BACK 2, 6, 3, 7
#else
enum { LANES = 8 };
#define FRONT 0, 8, 1, 9, 2, 10, 3, 11
#define BACK 4, 12, 5, 13, 6, 14, 7, 15
#endif
enum { VECTORS = 2, STRIP = VECTORS * LANES };

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
#pragma GCC diagnostic ignored "-Wpsabi" /* of vectors that inlined functions return */

/* Unrolls the loop that follows, of at most 16 rounds. clang obeys only its own pragma. */
#if defined __clang__ && !defined UNROLL
#define UNROLL _Pragma("clang loop unroll(full)")
#elif !defined UNROLL /* meson.build's is empty without optimisation */
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* y [LANES, LANES] = x^T, rows ldx and ldy apart. log2(LANES) rounds of interleaving rows i and i +
 * LANES / 2 transpose it (see copy.c). */
static inline void transpose_block(const float *x, int64_t ldx, float *y, int64_t ldy)
{
    vector row[LANES], next[LANES];
    for (int i = 0; i < LANES; i++) row[i] = *(const vector *)(x + i * ldx);
    for (int round = 1; round < LANES; round *= 2) {
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = __builtin_shufflevector(row[i], row[i + LANES / 2], FRONT);
            next[2 * i + 1] = __builtin_shufflevector(row[i], row[i + LANES / 2], BACK);
        }
        for (int i = 0; i < LANES; i++) row[i] = next[i];
    }
    for (int i = 0; i < LANES; i++) *(vector *)(y + i * ldy) = row[i];
}

/* y[i] = the sum of the lanes of x[i], in pairs; x is overwritten. */
TNI_INLINE void add_lanes(vector x[LANES], float y[LANES])
{
    UNROLL
    for (int n = LANES / 2; n > 0; n /= 2) { /* at last lane i of x[0] has all lanes of x[i] */
        UNROLL
        for (int i = 0; i < n; i++)
            x[i] = __builtin_shufflevector(x[i], x[i + n], FRONT) +
                   __builtin_shufflevector(x[i], x[i + n], BACK);
    }
    *(vector *)y = x[0];
}

/* ---- vectors in memory of f32 and bf16 ------------------------------------------------------- */

/* n of LANES elements, the others 0. */
TNI_INLINE vector load(const void *x, int64_t at, int64_t n, bool bf16)
{
    const float *wide = (const float *)x + at;
    const uint16_t *narrow = (const uint16_t *)x + at;
    vector v = { 0 };
    halves h = { 0 };
#if defined __AVX512F__
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (n < LANES && bf16) h = (halves)_mm256_maskz_loadu_epi16(mask, narrow);
    if (n < LANES && !bf16) v = (vector)_mm512_maskz_loadu_ps(mask, wide);
#else
    for (int64_t i = 0; n < LANES && bf16 && i < n; i++) h[i] = narrow[i];
    for (int64_t i = 0; n < LANES && !bf16 && i < n; i++) v[i] = wide[i];
#endif
    if (!bf16) return n < LANES ? v : *(const vector *)wide;
    return (vector)(__builtin_convertvector(n < LANES ? h : *(const halves *)narrow, words) << 16);
}

/* tn_to_bf16 of each. */
TNI_INLINE halves rounded(vector x)
{
    words u = (words)x, up = u + 0x7fff + ((u >> 16) & 1);
#if defined __AVX512F__
    up = (words)_mm512_mask_or_epi32((__m512i)up,
                                     _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q),
                                     (__m512i)u, _mm512_set1_epi32(0x400000));
#else
    const words nan = (words)(x != x);
    up = (nan & (u | 0x400000)) | (~nan & up);
#endif
    return __builtin_convertvector(up >> 16, halves);
}

/* The first n lanes. */
TNI_INLINE void store(vector v, void *y, int64_t at, int64_t n, bool bf16)
{
    float *wide = (float *)y + at;
    uint16_t *narrow = (uint16_t *)y + at;
    const halves h = bf16 ? rounded(v) : (halves){ 0 };
    if (n == LANES && bf16) *(halves *)narrow = h;
    if (n == LANES && !bf16) *(vector *)wide = v;
    if (n == LANES) return;
#if defined __AVX512F__
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (bf16)
        _mm256_mask_storeu_epi16(narrow, mask, (__m256i)h);
    else
        _mm512_mask_storeu_ps(wide, mask, (__m512)v);
#else
    for (int64_t i = 0; bf16 && i < n; i++) narrow[i] = h[i];
    for (int64_t i = 0; !bf16 && i < n; i++) wide[i] = v[i];
#endif
}

static inline int64_t some(int64_t n)
{
    return TNI_MAX(TNI_MIN(n, LANES), 0);
}
