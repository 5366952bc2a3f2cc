/*
 * vector.h - vectors of f32 as wide as the instruction set's registers, for files that hold a
 * result in registers (tile.c, winograd.c).
 */
#pragma once

#include "tensor/cpu/cpu.h"

#if defined __AVX512F__
enum { LANES = 16 };
#define FRONT 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define BACK 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined __wasm_simd128__
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
