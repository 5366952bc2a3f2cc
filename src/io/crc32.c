/*
 * crc32.c - zlib's CRC-32, several times as fast where vectors multiply polynomials.
 *
 * A CRC is a remainder mod P. Each 8 of 256 bytes, times x^2048 mod P, can be added to the next 256
 * in their place; what is left at the end is zlib's. (Bits are reflected: the exponents are 2048 +
 * 32 and 2048 - 32, and a product is one bit short.) Source: Gopal et al., Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ Instruction (Intel, 2009).
 */
#include <zlib.h>

#include "io/file.h"
#include "tensor/cpu/cpu.h"

#ifdef __x86_64__
#include <immintrin.h>

enum { STEP = 256 };

__attribute__((target("avx512f,vpclmulqdq"))) static uint32_t
fold(uint32_t crc, const unsigned char *at, size_t n)
{
    const __m512i power = _mm512_set4_epi64(0x1322d1430, 0x11542778a, 0x1322d1430, 0x11542778a);
    __m512i s[4];
    for (int i = 0; i < 4; i++) s[i] = _mm512_loadu_si512(at + 64 * i);
    s[0] = _mm512_xor_si512(s[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (at += STEP, n -= STEP; n >= STEP; at += STEP, n -= STEP)
        for (int i = 0; i < 4; i++)
            s[i] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(s[i], power, 0x00),
                                             _mm512_clmulepi64_epi128(s[i], power, 0x11),
                                             _mm512_loadu_si512(at + 64 * i), 0x96); /* the sum */
    return (uint32_t)crc32_z(crc32_z(UINT32_MAX, (const unsigned char *)s, STEP), at, n);
}
#endif

uint32_t tni_crc32(uint32_t crc, const void *data, size_t n)
{
#ifdef __x86_64__
    if (n >= 2 * STEP && tni_has_avx512() && __builtin_cpu_supports("vpclmulqdq"))
        return fold(crc, data, n);
#endif
    return (uint32_t)crc32_z(crc, data, n);
}
