/*
 * philox.h - Philox 4x32-10, the counter-based generator for dropout masks, one source for C and
 * CUDA.
 *
 * A counter of 128 bits and a key of 64 give four words, each by ten rounds of two 32 x 32 -> 64
 * bit products; no state, so element i of a tensor can be drawn anywhere, in any order, on any
 * device. Source: Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC
 * 2011), section 4.3; constants and known answers of its reference code (Random123).
 */
#pragma once

#include <stdint.h>

#include "tensor/math.h" /* TN_FN */

/* Counter (c0, c1, c2, c3), key (k0, k1): the result is left in *c0 .. *c3. */
TN_FN void tni_philox4x32(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                          uint32_t k1)
{
    uint32_t a = *c0, b = *c1, c = *c2, d = *c3;
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * a, p1 = UINT64_C(0xCD9E8D57) * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ k0;
        b = (uint32_t)p1;
        c = (uint32_t)(p0 >> 32) ^ d ^ k1;
        d = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the key of the next round */
        k1 += 0xBB67AE85u;
    }
    *c0 = a;
    *c1 = b;
    *c2 = c;
    *c3 = d;
}

/* The four words of one 64-bit counter under a 64-bit seed. */
TN_FN void tni_philox(uint64_t seed, uint64_t counter, uint32_t *w0, uint32_t *w1, uint32_t *w2,
                      uint32_t *w3)
{
    *w0 = (uint32_t)counter;
    *w1 = (uint32_t)(counter >> 32);
    *w2 = 0;
    *w3 = 0;
    tni_philox4x32(w0, w1, w2, w3, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* A word's uniform number in [0, 1), its top 24 bits, is at least p in [0, 1] if and only if
 * (word >> 8) >= tni_philox_threshold(p): dropout keeps an element in integers, so that f32, f64
 * and every device drop the same ones. */
TN_FN uint32_t tni_philox_threshold(double p)
{
    double scaled = p * 16777216.0;
    uint32_t floor = (uint32_t)scaled;
    return floor + ((double)floor < scaled);
}
