/*
 * functions.h - more rows of the lists of formulas.h, as of angles and activations, and what they
 * call.
 */
#pragma once

#include "tensor/math.h"

/* clang-format off */
#define TNI_UNARY_FUNCTIONS(F)                                                                     \
    F(tan, 0, HEAVY, M(tan)(x))                                                                    \
    F(asin, 0, HEAVY, M(asin)(x))                                                                  \
    F(acos, 0, HEAVY, M(acos)(x))                                                                  \
    F(atan, 0, HEAVY, M(atan)(x))                                                                  \
    F(sinh, 0, HEAVY, M(sinh)(x))                                                                  \
    F(cosh, 0, HEAVY, M(cosh)(x))                                                                  \
    F(asinh, 0, HEAVY, M(asinh)(x))                                                                \
    F(acosh, 0, HEAVY, M(acosh)(x))                                                                \
    F(atanh, 0, HEAVY, M(atanh)(x))                                                                \
    F(elu, 1, HEAVY, x > (R)0 ? x : p * M(expm1)(x))                                               \
    F(softplus, 2, HEAVY, p * x > q ? x : M(log1p)(M(exp)(p * x > q ? (R)0 : p * x)) / p)          \
    F(celu, 1, HEAVY, x > (R)0 ? x : p * M(expm1)(x / p))                                          \
    F(selu, 0, HEAVY, (R)TNI_SELU_SCALE * (x > (R)0 ? x : (R)TNI_SELU_ALPHA * M(expm1)(x)))        \
    F(gelu, 0, HEAVY, M(gelu)(x))                                                                  \
    F(gelu_tanh, 0, HEAVY, x * M(gelu_tanh_gate)(x))                                               \
    F(hardtanh, 2, LIGHT, x < p ? p : x > q ? q : x)                                               \
    F(hardsigmoid, 0, LIGHT, TNI_RELU6_OF_3(x) / (R)6)                                             \
    F(hardswish, 0, LIGHT, x * TNI_RELU6_OF_3(x) / (R)6)                                           \
    F(hardshrink, 1, LIGHT, ((x >= -p) & (x <= p)) ? (R)0 : x)                                     \
    F(softshrink, 1, LIGHT, x > p ? x - p : x < -p ? x + p : x == x ? (R)0 : x)                    \
    F(tanhshrink, 0, HEAVY, x - M(tanh)(x))                                                        \
    F(softsign, 0, LIGHT, x / ((R)1 + M(abs)(x)))                                                  \
    F(logsigmoid, 0, HEAVY, (x < (R)0 ? x : (R)0) - M(log1p)(M(exp)(-M(abs)(x))))                  \
    F(mish, 0, HEAVY, x * M(mish_gate)(x))                                                         \
    F(bce_rest, 0, HEAVY, M(log1p)(M(exp)(-M(abs)(x))))                                            \
    F(remainder_scalar, 1, HEAVY, M(remainder)(x, p))

#define TNI_BINARY_FUNCTIONS(F)                                                                    \
    F(remainder, 0, HEAVY, M(remainder)(x, y))                                                     \
    F(prelu, 0, LIGHT, x > (R)0 ? x : y * x)                                                       \
    F(unpack, 0, LIGHT, (x < (R)128 ? x : x - (R)256) * y) /* x: a signed byte as u8 */            \
    F(prelu_weight_grad, 0, LIGHT, y > (R)0 ? (R)0 : x * y)                                        \
    F(glu, 0, HEAVY, x * M(sigmoid)(y))                                                            \
    F(nan_to_num, 2, LIGHT, x != x ? y : x == (R)INFINITY ? p : x == -(R)INFINITY ? q : x)         \
    F(asin_grad, 0, LIGHT, x / M(sqrt)(((R)1 - y) * ((R)1 + y)))                                   \
    F(acos_grad, 0, LIGHT, -x / M(sqrt)(((R)1 - y) * ((R)1 + y)))                                  \
    F(acosh_grad, 0, LIGHT, x / M(sqrt)((y - (R)1) * (y + (R)1) + (R)0)) /* +0 at -1 */            \
    F(atanh_grad, 0, LIGHT, x / (((R)1 - y) * ((R)1 + y)))                                         \
    F(elu_grad, 1, HEAVY, y > (R)0 ? x : x * (p * M(exp)(y)))                                      \
    F(softplus_grad, 2, HEAVY, p * y > q ? x : x * M(sigmoid)(p * y))                              \
    F(celu_grad, 1, HEAVY, y > (R)0 ? x : x * M(exp)(y / p))                                       \
    F(selu_grad, 0, HEAVY, (R)TNI_SELU_SCALE * (y > (R)0 ? x : x * ((R)TNI_SELU_ALPHA * M(exp)(y))))\
    F(gelu_grad, 0, HEAVY, x * M(gelu_slope)(y))                                                   \
    F(gelu_tanh_grad, 0, HEAVY, x * M(gelu_tanh_slope)(y))                                         \
    F(bce_rest_grad, 0, HEAVY, y > (R)0 ? -(x * M(sigmoid)(-M(abs)(y))) : x * M(sigmoid)(-M(abs)(y)))\
    F(bce, 0, HEAVY, (y - (R)1) * TN_ABOVE(M(log1p)(-x), (R)-100) - y * TN_ABOVE(M(log)(x), (R)-100)) \
    F(hardtanh_grad, 2, LIGHT, ((y <= p) | (y >= q)) ? (R)0 : x)                                   \
    F(hardsigmoid_grad, 0, LIGHT, ((y > (R)-3) & (y < (R)3)) ? x / (R)6 : (R)0)                    \
    F(hardswish_grad, 0, LIGHT, y <= (R)-3 ? (R)0 : y < (R)3 ? x * (y / (R)3 + (R)0.5) : x)        \
    F(shrink_grad, 1, LIGHT, ((y <= p) & (y >= -p)) ? (R)0 : x)                                    \
    F(softsign_grad, 0, LIGHT, x / (((R)1 + M(abs)(y)) * ((R)1 + M(abs)(y))))                      \
    F(logsigmoid_grad, 0, HEAVY, x * M(sigmoid)(-y))                                               \
    F(mish_grad, 0, HEAVY, x * M(mish_slope)(y))
/* clang-format on */

/* x, but low where it is below; NaN stays. */
#define TN_ABOVE(x, low) ((x) < (low) ? (low) : (x))
#define TNI_SQRT_HALF 0.70710678118654752440
#define TNI_SQRT_2_PI 0.79788456080286535588        /* sqrt(2 / pi) */
#define TNI_NORMAL_DENSITY_0 0.39894228040143267794 /* 1 / sqrt(2 pi) */
#define TNI_GELU_CUBIC 0.044715                     /* Hendrycks and Gimpel (2016), section 2 */
#define TNI_SELU_SCALE 1.0507009873554804934        /* Klambauer et al. (2017), eq. 14 */
#define TNI_SELU_ALPHA 1.6732632423543772848
#define TNI_RELU6_OF_3(x) (x < (R)-3 ? (R)0 : x > (R)3 ? (R)6 : x + (R)3) /* relu6(x + 3) */

/* ---- gelu: y = x Phi(x), slope Phi(x) + x phi(x) --------------------------------------------- */

TN_FN double tn_normal_cdf_f64(double x)
{
    return 0.5 * (1.0 + tn_erf_f64(x * TNI_SQRT_HALF));
}

TN_FN double tn_gelu_f64(double x)
{
    return x * tn_normal_cdf_f64(x);
}

TN_FN double tn_gelu_slope_f64(double x)
{
    double c = x < -40.0 ? -40.0 : x > 40.0 ? 40.0 : x;
    double density = TNI_NORMAL_DENSITY_0 * tn_exp_f64(-0.5 * c * c);
    return tn_normal_cdf_f64(x) + c * density;
}

/* In f32 erf, with its two ranges, and another exp for the slope would take twice the time: here
 * one range and one 2^t are enough. The polynomials have the least maximal error in Phi and in the
 * slope (Lawson's algorithm, on values of 40 digits). */

/* 2^t for -127.5 < t < 128.5, off by 1e-7 of it: 0 below -126.5, inf above 127.5. t = n + r,
 * |r| <= 1/2: adding `shift` rounds t, and leaves n + 127, the exponent's bits, in the lowest. */
TN_FN float tn_exp2_part_f32(float t)
{
    const float shift = 12582912.0f + 127.0f;
    float biased = t + shift, r = t - (biased - shift);
    float p = TN_POLY_6(r, 0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f,
                        0x1.62e42ap-1f, 1.0f);
    return p * tn_from_bits_f32(tn_bits_f32(biased) << 23);
}

/* x between low < 0 and high > 0: chosen as integers, since gcc turns a choice between floats into
 * branches, each with its own division. A NaN becomes a number. */
TN_FN float tn_kept_f32(float x, float low, float high)
{
    uint32_t bits = tn_bits_f32(x), lowest = tn_bits_f32(low);
    int32_t kept = (int32_t)(bits < lowest ? bits : lowest), highest = (int32_t)tn_bits_f32(high);
    return tn_from_bits_f32((uint32_t)(kept < highest ? kept : highest));
}

/* x / (1 + 2^u), where u = log2(Phi(-x) / Phi(x)) is x times a polynomial in x^2. Its x is kept
 * between -6.6126, where u = 128, and 5.6, where Phi is 1. A NaN is still in the numerator. */
TN_FN float tn_gelu_f32(float x)
{
    float c = tn_kept_f32(x, -6.6126f, 5.6f), s = c * c;
    float u = TN_POLY_10(s, -0x1.372d70p-41f, 0x1.de95a8p-35f, -0x1.1b5cc2p-29f, 0x1.231684p-25f,
                         -0x1.1cc94ap-26f, -0x1.34d6d8p-17f, 0x1.40a70ap-13f, 0x1.b3658ap-14f,
                         -0x1.ad6db0p-4f, -0x1.26aec4p+1f);
    return x / (1.0f + tn_exp2_part_f32(u * c));
}

/* At -a: e^(-a^2/2) (G - phi(0) a), with Phi(-a) = e^(-a^2/2) G. G is a polynomial in
 * v = a / (1 + 0.2875 a), up to where the first factor ends. */
TN_FN float tn_gelu_slope_f32(float x)
{
    const float half_log2_e = 0x1.715476p-1f;
    float a = tn_abs_f32(x);
    a = a > 13.27f ? 13.27f : a;
    float v = a / (1.0f + 0.2875f * a);
    float g = TN_POLY_9(v, 0x1.fdc0d0p-20f, -0x1.4863a6p-16f, 0x1.afa0eap-16f, 0x1.5e2d9ep-12f,
                        0x1.6555e0p-12f, -0x1.6bfe8cp-6f, 0x1.151b84p-3f, -0x1.988460p-2f, 0.5f);
    float left = tn_exp2_part_f32(-half_log2_e * a * a) * (g - (float)TNI_NORMAL_DENSITY_0 * a);
    return x > 0.0f ? 1.0f - left : left;
}

/* ---- gelu_tanh: y = x g, g = sigmoid(2 u) = (1 + tanh u) / 2, u = sqrt(2/pi) (x + .044715 x^3) */

/* -2 u LOG */
#define TNI_GELU_TANH_U(R, S, LOG)                                                                 \
    TN_FN R tn_gelu_tanh_minus_2u_##S(R x)                                                         \
    {                                                                                              \
        const R k = (R)(-2 * TNI_SQRT_2_PI * LOG);                                                 \
        return x * (k + k * (R)TNI_GELU_CUBIC * x * x);                                            \
    }
TNI_GELU_TANH_U(float, f32, 0x1.71547652b82fep+0) /* log2 e */
TNI_GELU_TANH_U(double, f64, 1)

/* t, where e^(-2 u) = 2^t. Its x is kept between -10.06, where t = 128, and 10, where g is 1. */
TN_FN float tn_gelu_tanh_exponent_f32(float x)
{
    return tn_gelu_tanh_minus_2u_f32(tn_kept_f32(x, -10.06f, 10.0f));
}

TN_FN float tn_gelu_tanh_power_f32(float x)
{
    return tn_exp2_part_f32(tn_gelu_tanh_exponent_f32(x));
}

TN_FN double tn_gelu_tanh_power_f64(double x)
{
    return tn_exp_f64(tn_gelu_tanh_minus_2u_f64(x));
}

/* With e = e^(-2 u): g = 1 / (1 + e), slope g + 2 x g (1 - g) u', where 1 - g = e g. The slope is 1
 * or nearly 0 from +-END on, where e is still a number. */
#define TNI_GELU_TANH(R, S, END)                                                                   \
    TN_FN R tn_gelu_tanh_gate_##S(R x)                                                             \
    {                                                                                              \
        return (R)1 / ((R)1 + tn_gelu_tanh_power_##S(x));                                          \
    }                                                                                              \
    TN_FN R tn_gelu_tanh_inner_##S(R x)                                                            \
    {                                                                                              \
        return x < (R)-END ? (R)-END : x > (R)END ? (R)END : x;                                    \
    }                                                                                              \
    TN_FN R tn_gelu_tanh_slope_at_##S(R x, R e)                                                    \
    {                                                                                              \
        const R k = (R)(2 * TNI_SQRT_2_PI);                                                        \
        R g = (R)1 / ((R)1 + e);                                                                   \
        return g + x * g * (e * g) * (k + k * (R)(3 * TNI_GELU_CUBIC) * x * x);                    \
    }                                                                                              \
    TN_FN R tn_gelu_tanh_slope_##S(R x)                                                            \
    {                                                                                              \
        R c = tn_gelu_tanh_inner_##S(x);                                                           \
        return tn_gelu_tanh_slope_at_##S(c, tn_gelu_tanh_power_##S(c));                            \
    }
TNI_GELU_TANH(float, f32, 10)
TNI_GELU_TANH(double, f64, 20)

/* ---- remainder, with the divisor's sign, and mish -------------------------------------------- */

/* mish: y = x w, w = tanh(ln(1 + e)) = n / (n + 2), e = e^x, n = e (e + 2); w is 1 from x = 20
 * on. Slope w + x w', w' = 4 e (e + 1) / (n + 2)^2. */
#define TNI_FUNCTIONS(R, S)                                                                        \
    TN_FN R tn_remainder_##S(R x, R y)                                                             \
    {                                                                                              \
        R m = tn_fmod_##S(x, y);                                                                   \
        return m != (R)0 && (m < (R)0) != (y < (R)0) ? m + y : m;                                  \
    }                                                                                              \
    TN_FN R tn_mish_gate_##S(R x)                                                                  \
    {                                                                                              \
        R e = tn_exp_##S(x > (R)20 ? (R)20 : x), n = e * (e + (R)2);                               \
        return n / (n + (R)2);                                                                     \
    }                                                                                              \
    TN_FN R tn_mish_slope_##S(R x)                                                                 \
    {                                                                                              \
        R c = x > (R)20 ? (R)20 : x < (R)-80 ? (R)-80 : x;                                         \
        R e = tn_exp_##S(c), n = e * (e + (R)2);                                                   \
        return n / (n + (R)2) + c * (R)4 * e * (e + (R)1) / ((n + (R)2) * (n + (R)2));             \
    }
TNI_FUNCTIONS(float, f32)
TNI_FUNCTIONS(double, f64)

/* By 0: 0; by -1: 0 without the quotient, which may not fit. */
TN_FN int64_t tni_remainder_int(int64_t x, int64_t y)
{
    int64_t m = y == 0 || y == -1 ? 0 : x % y;
    return m != 0 && (m < 0) != (y < 0) ? m + y : m;
}
