/*
 * bf16.h - AVX512-BF16's conversions of one and two vectors, in instructions of AVX-512 without it:
 * included before squares.c and squares_conv.c, so that they are tested on processors that have
 * neither (test_gemm.c, test_amx_conv.c). To nearest even; of NaN they make something else, which
 * no test of it asks for.
 */
#include <immintrin.h>

static inline __m256i narrowed(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

static inline __m512i narrowed_pair(__m512 high, __m512 low)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrowed(low)), narrowed(high), 1);
}

#define _mm512_cvtneps_pbh(x) narrowed(x)
#define _mm512_cvtne2ps_pbh(high, low) narrowed_pair(high, low)
