/*
 * math.h - elementary functions without branches, for gcc, clang and nvcc, f32 and f64.
 *
 * A loop over one of these vectorises: choices are selects, integers only shift and add. Bounds
 * (largest error found by tests/cpu/test_math.c; ulp of the exact result, round to nearest):
 *
 *            exp   expm1  log   log1p  tanh  erf
 *     f32    1.25  2      1     1.75   1.5   1.5
 *     f64    1.25  2.5    1     1.5    1.5   1.5
 *
 * NaN stays NaN; overflow gives inf; results below the normal range are denormal, not 0 (but for
 * exp_part). The sign of a zero result is kept by tanh and erf only. Others are libm's: an exact
 * reduction of large arguments needs a branch, and no inner loop of training uses them.
 *
 * Coefficients: minimax in the sense of Remez, fitted for this file with 400-bit arithmetic and
 * rounded; those of log and tanh in f64 are fdlibm's (e_log.c, Sun 1993) and Cephes' (tanh.c,
 * Moshier 1984).
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define TN_FN static __host__ __device__ __forceinline__
#else
#define TN_FN static inline __attribute__((always_inline, unused))
#endif

/* x + p (y - x), from y's end for p >= .5: a pointwise function, and an update of averages. */
#define TN_LERP(x, y, p)                                                                           \
    ((p) > -0.5F && (p) < 0.5F ? (x) + (p) * ((y) - (x)) : (y) + ((p)-1) * ((y) - (x)))

/* A polynomial by Horner's rule, the highest coefficient first. */
#define TN_POLY_2(x, a, b) ((a) * (x) + (b))
#define TN_POLY_3(x, a, b, ...) TN_POLY_2(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_4(x, a, b, ...) TN_POLY_3(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_5(x, a, b, ...) TN_POLY_4(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_6(x, a, b, ...) TN_POLY_5(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_7(x, a, b, ...) TN_POLY_6(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_8(x, a, b, ...) TN_POLY_7(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_9(x, a, b, ...) TN_POLY_8(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_10(x, a, b, ...) TN_POLY_9(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_11(x, a, b, ...) TN_POLY_10(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_12(x, a, b, ...) TN_POLY_11(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_13(x, a, b, ...) TN_POLY_12(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_14(x, a, b, ...) TN_POLY_13(x, TN_POLY_2(x, a, b), __VA_ARGS__)
#define TN_POLY_15(x, a, b, ...) TN_POLY_14(x, TN_POLY_2(x, a, b), __VA_ARGS__)

/* ---- bits, and what libm has ----------------------------------------------------------------- */

/* For R, its bits U of which SIGN is the highest and FRACTION are the fraction's:
 * exp2i is 2^n for an integral n with a normal result: adding SHIFT, 1.5 * 2^FRACTION, leaves n in
 * the low bits, which the shift moves into the exponent; the bits above are shifted out. round is
 * for |x| < SHIFT / 3. */
#define TN_BASICS(R, S, U, SIGN, FRACTION, BIAS, SHIFT)                                            \
    TN_FN U tn_bits_##S(R x)                                                                       \
    {                                                                                              \
        U u;                                                                                       \
        memcpy(&u, &x, sizeof u);                                                                  \
        return u;                                                                                  \
    }                                                                                              \
    TN_FN R tn_from_bits_##S(U u)                                                                  \
    {                                                                                              \
        R x;                                                                                       \
        memcpy(&x, &u, sizeof x);                                                                  \
        return x;                                                                                  \
    }                                                                                              \
    TN_FN R tn_exp2i_##S(R n)                                                                      \
    {                                                                                              \
        return tn_from_bits_##S((tn_bits_##S(n + SHIFT) + BIAS) << FRACTION);                      \
    }                                                                                              \
    TN_FN R tn_round_##S(R x)                                                                      \
    {                                                                                              \
        return (x + SHIFT) - SHIFT;                                                                \
    }                                                                                              \
    TN_FN R tn_copysign_##S(R x, R s)                                                              \
    {                                                                                              \
        return tn_from_bits_##S((tn_bits_##S(x) & ~SIGN) | (tn_bits_##S(s) & SIGN));               \
    }                                                                                              \
    TN_FN R tn_abs_##S(R x)                                                                        \
    {                                                                                              \
        return tn_from_bits_##S(tn_bits_##S(x) & ~SIGN);                                           \
    }
TN_BASICS(float, f32, uint32_t, 0x80000000u, 23, 127u, 12582912.0f)
TN_BASICS(double, f64, uint64_t, 0x8000000000000000u, 52, 1023u, 6755399441055744.0)

/* libm's; L is its letter. sqrt, floor, ceil, trunc and rint (half to even) are an instruction each
 * from AVX2 on. */
#define TN_LIBM_OF(f, R, S, L)                                                                     \
    TN_FN R tn_##f##_##S(R x)                                                                      \
    {                                                                                              \
        return f##L(x);                                                                            \
    }
#define TN_LIBM_OF_2(f, R, S, L)                                                                   \
    TN_FN R tn_##f##_##S(R x, R y)                                                                 \
    {                                                                                              \
        return f##L(x, y);                                                                         \
    }
/* clang-format off */
#define TN_LIBM_LIST(F, R, S, L)                                                                   \
    F(sqrt, R, S, L) F(floor, R, S, L) F(ceil, R, S, L) F(trunc, R, S, L) F(rint, R, S, L)         \
    F(sin, R, S, L) F(cos, R, S, L) F(tan, R, S, L) F(asin, R, S, L) F(acos, R, S, L)              \
    F(atan, R, S, L) F(sinh, R, S, L) F(cosh, R, S, L) F(asinh, R, S, L) F(acosh, R, S, L)         \
    F(atanh, R, S, L)
#define TN_LIBM_LIST_2(F, R, S, L) F(pow, R, S, L) F(fmod, R, S, L)
/* clang-format on */
TN_LIBM_LIST(TN_LIBM_OF, float, f32, f)
TN_LIBM_LIST(TN_LIBM_OF, double, f64, )
TN_LIBM_LIST_2(TN_LIBM_OF_2, float, f32, f)
TN_LIBM_LIST_2(TN_LIBM_OF_2, double, f64, )

/* ---- exp: x = n ln 2 + r, |r| <= ln 2 / 2; e^x = 2^n e^r ------------------------------------- */

/* e^r - 1 = r + r^2 Q(r); relative error of e^r below 2^-28 (f32), 2^-57 (f64). */
TN_FN float tn_exp_tail_f32(float r)
{
    float q = TN_POLY_5(r, 0x1.6a2276p-10f, 0x1.123b02p-7f, 0x1.5558f8p-5f, 0x1.555490p-3f,
                        0x1.fffffcp-2f);
    return r + r * r * q;
}

TN_FN double tn_exp_tail_f64(double r)
{
    double q = TN_POLY_10(r, 0x1.ad7e786fd53a9p-26, 0x1.28ae35ec3a4bep-22, 0x1.71df2760cdfcdp-19,
                          0x1.a0199943dae48p-16, 0x1.a01a0128c14cdp-13, 0x1.6c16c1846f470p-10,
                          0x1.111111112829dp-7, 0x1.555555555075cp-5, 0x1.55555555554f8p-3,
                          0x1.000000000000ap-1);
    return r + r * r * q;
}

/* ln 2 in two parts, the first short enough that n times it is exact. */
TN_FN float tn_exp_reduce_f32(float x, float *n)
{
    *n = tn_round_f32(x * 0x1.715476p+0f);
    return (x - *n * 0x1.63p-1f) + *n * 0x1.bd0106p-13f;
}

TN_FN double tn_exp_reduce_f64(double x, double *n)
{
    *n = tn_round_f64(x * 0x1.71547652b82fep+0);
    return (x - *n * 0x1.62e42feep-1) - *n * 0x1.a39ef35793c76p-33;
}

/* exp: 2^n in two factors, so that the product may overflow or end below the normal range by one
 * rounding. exp_inner: of |x| <= 80, for which no factor can leave the normal range (exp_part says
 * what is beyond). expm1: 2^n e^r - 1 = 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)), exact around 0,
 * where n = 0. Below LOW and LOW_M1 and above HIGH nothing changes. */
#define TN_EXP(R, S, LOW, LOW_M1, HIGH)                                                            \
    TN_FN R tn_exp_##S(R x)                                                                        \
    {                                                                                              \
        x = x < (R)LOW ? (R)LOW : x;                                                               \
        x = x > (R)HIGH ? (R)HIGH : x;                                                             \
        R n;                                                                                       \
        R r = tn_exp_reduce_##S(x, &n);                                                            \
        R half = tn_round_##S(n * (R)0.5);                                                         \
        return (tn_exp_tail_##S(r) + (R)1) * tn_exp2i_##S(half) * tn_exp2i_##S(n - half);          \
    }                                                                                              \
    TN_FN R tn_exp_inner_##S(R x)                                                                  \
    {                                                                                              \
        R n;                                                                                       \
        R r = tn_exp_reduce_##S(x, &n);                                                            \
        return (tn_exp_tail_##S(r) + (R)1) * tn_exp2i_##S(n);                                      \
    }                                                                                              \
    TN_FN R tn_expm1_##S(R x)                                                                      \
    {                                                                                              \
        x = x < (R)LOW_M1 ? (R)LOW_M1 : x;                                                         \
        x = x > (R)HIGH ? (R)HIGH : x;                                                             \
        R n;                                                                                       \
        R r = tn_exp_reduce_##S(x, &n);                                                            \
        R scale = tn_exp2i_##S(n - (R)1);                                                          \
        return (R)2 * (scale * tn_exp_tail_##S(r) + (scale - (R)0.5));                             \
    }
TN_EXP(float, f32, -104, -18, 89)
TN_EXP(double, f64, -746, -38, 710)

/* exp for parts of a sum, of which the largest is 1: 0 from -87.7 down, where exp is below the
 * normal range; inf from 88.4 up. One factor less. */
TN_FN float tn_exp_part_f32(float x)
{
    x = x < -88.0f ? -88.0f : x; /* n = -127, for which 2^n is 0 */
    x = x > 89.0f ? 89.0f : x;   /* n = 128, for which it is inf */
    return tn_exp_inner_f32(x);
}

/* ---- log: x = 2^n m, m in [sqrt(1/2), sqrt(2)); log x = n ln 2 + log m ----------------------- */

TN_FN float tn_log_f32(float x)
{
    int tiny = x < 0x1p-126f;
    uint32_t u = tn_bits_f32(tiny ? x * 0x1p23f : x) + (0x3f800000u - 0x3f3504f3u);
    float n = (tn_from_bits_f32((u >> 23) | 0x4b000000u) - 8388608.0f) - (tiny ? 150.0f : 127.0f);
    float f = tn_from_bits_f32((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float z = f * f;
    float p =
        TN_POLY_9(f, 0x1.146c80p-4f, -0x1.de6502p-4f, 0x1.e6fc30p-4f, -0x1.fc1cb2p-4f,
                  0x1.233676p-3f, -0x1.555c68p-3f, 0x1.99a4bep-3f, -0x1.000006p-2f, 0x1.555548p-2f);
    float y = f * z * p - n * 0x1.bd0106p-13f;
    y = y - 0.5f * z;
    y = (f + y) + n * 0x1.63p-1f;
    y = x > 0.0f ? y : x == 0.0f ? -INFINITY : NAN;
    return x == INFINITY ? x : y;
}

TN_FN double tn_log_f64(double x)
{
    int tiny = x < 0x1p-1022;
    uint64_t u = tn_bits_f64(tiny ? x * 0x1p54 : x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double n =
        (tn_from_bits_f64((u >> 52) | 0x4330000000000000u) - 0x1p52) - (tiny ? 1077.0 : 1023.0);
    double f = tn_from_bits_f64((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double half = 0.5 * f * f;
    double p =
        TN_POLY_7(z, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                  2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                  6.666666666666735130e-01);
    p = p * z;
    double y = n * 0x1.62e42feep-1 - ((half - (s * (half + p) + n * 0x1.a39ef35793c76p-33)) - f);
    y = x > 0.0 ? y : x == 0.0 ? -INFINITY : NAN;
    return x == INFINITY ? x : y;
}

/* u = 1 + x rounds off c = x - (u - 1), exactly known; log(u + c) = log u + c / u. */
#define TN_LOG1P(R, S)                                                                             \
    TN_FN R tn_log1p_##S(R x)                                                                      \
    {                                                                                              \
        R u = (R)1 + x;                                                                            \
        R c = x - (u - (R)1);                                                                      \
        R y = tn_log_##S(u) + c / u;                                                               \
        y = x == (R)-1 ? (R)-INFINITY : y;                                                         \
        return x == (R)INFINITY ? x : y;                                                           \
    }
TN_LOG1P(float, f32)
TN_LOG1P(double, f64)

/* ---- tanh: odd polynomial near 0, 1 - 2 / (e^2|x| + 1) beyond -------------------------------- */

TN_FN float tn_tanh_f32(float x)
{
    float a = tn_abs_f32(x), s = x * x;
    float p = TN_POLY_5(s, -0x1.835bcap-8f, 0x1.54f2acp-6f, -0x1.b8a1e4p-5f, 0x1.1109f6p-3f,
                        -0x1.555540p-2f);
    float small = a + a * s * p;
    a = a > 10.0f ? 10.0f : a;
    float large = 1.0f - 2.0f / (tn_exp_inner_f32(2.0f * a) + 1.0f);
    return tn_copysign_f32(a < 0.6f ? small : large, x);
}

TN_FN double tn_tanh_f64(double x)
{
    double a = tn_abs_f64(x), s = x * x;
    double q = s + 1.12811678491632931402e2;
    double p = TN_POLY_3(s, -9.64399179425052238628e-1, -9.92877231001918586564e1,
                         -1.61468768441708447952e3);
    q = q * s + 2.23548839060100448583e3;
    q = q * s + 4.84406305325125486048e3;
    double small = a + a * s * (p / q);
    a = a > 20.0 ? 20.0 : a;
    double large = 1.0 - 2.0 / (tn_exp_inner_f64(2.0 * a) + 1.0);
    return tn_copysign_f64(a < 0.625 ? small : large, x);
}

/* ---- erf: odd polynomial near 0; beyond, 1 - e^R(|x|) (f32), 1 - e^(-x^2) G (f64) ------------ */

TN_FN float tn_erf_f32(float x)
{
    float a = tn_abs_f32(x), s = x * x;
    float p = TN_POLY_6(s, -0x1.3825c8p-11f, 0x1.46c234p-8f, -0x1.b676cap-6f, 0x1.ce1904p-4f,
                        -0x1.8126dcp-2f, 0x1.06eba6p-3f);
    float small = a + a * p;
    a = a > 4.0f ? 4.0f : a;
    float q = TN_POLY_7(a, 0x1.9ae5ecp-13f, -0x1.8edfb2p-9f, 0x1.6c29aap-6f, -0x1.a9b3cep-4f,
                        -0x1.463cccp-1f, -0x1.20af56p+0f, -0x1.9a742ep-13f);
    float large = 1.0f - tn_exp_inner_f32(q);
    return tn_copysign_f32(a < 0.92f ? small : large, x);
}

/* G(x) = e^(x^2) erfc(x) as a polynomial in w = (x - 2) / (x + 2), 1 <= x <= 6. */
TN_FN double tn_erf_f64(double x)
{
    double a = tn_abs_f64(x), s = x * x;
    double p = TN_POLY_12(s, -0x1.abae534b30fd0p-31, 0x1.d71b12af28362p-27, -0x1.5c07277a880e8p-23,
                          0x1.b97fd3f1091a3p-20, -0x1.f4ca4d71b5f0fp-17, 0x1.f9a2baa929b3ap-14,
                          -0x1.c02db03dd9022p-11, 0x1.565bccf92b3d7p-8, -0x1.b82ce311fa945p-6,
                          0x1.ce2f21a040d16p-4, -0x1.812746b0379bdp-2, 0x1.06eba8214db68p-3);
    double small = a + a * p;
    a = a > 6.0 ? 6.0 : a;
    double w = (a - 2.0) / (a + 2.0);
    double g = TN_POLY_15(w, 0x1.2743428db069ep-19, 0x1.f343175c8ca3dp-21, -0x1.d00bb27a0234ap-17,
                          -0x1.cd22d7159e8ffp-16, 0x1.cdeb6169cbea4p-16, 0x1.6da6ee6b86d7cp-13,
                          0x1.6d5cee9f04ad0p-15, -0x1.016b5c0b188e0p-10, -0x1.bc25a393e7293p-11,
                          0x1.ca95ed54693dbp-8, 0x1.e947159720211p-9, -0x1.437f0b68c10bfp-4,
                          0x1.eeea7dc8a78c1p-3, -0x1.b57034efd3f72p-2, 0x1.058671b52c776p-2);
    double large = 1.0 - tn_exp_inner_f64(-a * a) * g;
    return tn_copysign_f64(a < 1.0 ? small : large, x);
}

/* Toward zero; NaN and what does not fit become the smallest integer, as on x86. */
TN_FN int64_t tn_int_of(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

/* ---- half precision -------------------------------------------------------------------------- */

TN_FN float tn_from_bf16(uint16_t h)
{
    return tn_from_bits_f32((uint32_t)h << 16);
}

/* x rounded to nearest even, in the upper half; NaN stays a quiet NaN. The lower is left over. */
TN_FN uint32_t tn_rounded_bf16(float x)
{
    uint32_t u = tn_bits_f32(x);
    return x != x ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
}

TN_FN uint16_t tn_to_bf16(float x)
{
    return (uint16_t)(tn_rounded_bf16(x) >> 16);
}

/* A denormal half is a denormal float times 2^112: exact. */
TN_FN float tn_from_f16(uint16_t h)
{
    uint32_t body = ((uint32_t)h & 0x7fffu) << 13;
    uint32_t finite = tn_bits_f32(tn_from_bits_f32(body) * 0x1p112f);
    uint32_t u = body >= (0x7c00u << 13) ? body | 0x7f800000u : finite;
    return tn_from_bits_f32(u | ((uint32_t)h & 0x8000u) << 16);
}

/* Round to nearest even. Below 2^-14 adding 0.5 makes the hardware round at the denormal half's
 * last bit. */
TN_FN uint16_t tn_to_f16(float x)
{
    uint32_t u = tn_bits_f32(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t body = u & 0x7fffffffu;
    uint32_t small = tn_bits_f32(tn_from_bits_f32(body) + 0.5f) - 0x3f000000u;
    uint32_t normal = (body - (112u << 23) + 0xfffu + ((body >> 13) & 1u)) >> 13;
    uint32_t h = body < (113u << 23) ? small : normal;
    h = body >= (143u << 23) ? 0x7c00u : h;
    h = body > 0x7f800000u ? 0x7e00u : h;
    return (uint16_t)(h | sign);
}
