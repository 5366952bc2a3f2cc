/*
 * pointwise.c - the row loops of every formula on REAL; of light ones on bf16; of gelu for results
 * in bf16 and f16.
 */
#include "tensor/cpu/pointwise.h"

#define T REAL
#define FORMULA(kind, name) TNI_CAT3(tni_##kind, name, TNI_REAL_NAME)
#define NUMBER(x) ((REAL)(x))
#include "tensor/cpu/row_text.h"

TNI_UNARY_LIST(UNARY_ROW)
TNI_UNARY_PREDICATE_LIST(UNARY_TEST)
TNI_BINARY_LIST(BINARY_ROW)
TNI_BINARY_PREDICATE_LIST(BINARY_TEST)
TNI_TERNARY_LIST(TERNARY_ROW)

const tni_row K(tni_unary_rows)[TNI_U_COUNT] = { TNI_UNARY_LIST(UNARY_ENTRY)
                                                     TNI_UNARY_PREDICATE_LIST(UNARY_ENTRY) };
const tni_row K(tni_binary_rows)[TNI_B_COUNT] = { TNI_BINARY_LIST(BINARY_ENTRY)
                                                      TNI_BINARY_PREDICATE_LIST(BINARY_ENTRY) };
const tni_row K(tni_ternary_rows)[TNI_T_COUNT] = { TNI_TERNARY_LIST(TERNARY_ENTRY) };

#ifdef TNI_REAL_IS_f32
/* ---- light formulas where all is bf16: two neighbours in a word, no buffers ------------------ */

typedef uint32_t pair __attribute__((may_alias, aligned(2)));

static inline float lower(uint32_t two)
{
    return tn_from_bits_f32(two << 16);
}

static inline float upper(uint32_t two)
{
    return tn_from_bits_f32(two & 0xffff0000u);
}

static inline uint32_t rounded(float first, float second)
{
    return tn_rounded_bf16(first) >> 16 | (tn_rounded_bf16(second) & 0xffff0000u);
}

#define LAST(x) tn_from_bf16(((const uint16_t *)(x))[n - 1])
/* All strides are 1. */
#define UNARY_PAIRS_LIGHT(name, parameters)                                                        \
    static void u_pairs_##name(ROW_ARGUMENTS)                                                      \
    {                                                                                              \
        const pair *a = aa;                                                                        \
        pair *y = yy;                                                                              \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(as), UNUSED(bb), UNUSED(bs), UNUSED(cc);                                            \
        SIMD for (int64_t i = 0; i < n / 2; i++) y[i] =                                            \
            rounded(FORMULA(u, name)(lower(a[i]), p, q), FORMULA(u, name)(upper(a[i]), p, q));     \
        if (n % 2) ((uint16_t *)yy)[n - 1] = tn_to_bf16(FORMULA(u, name)(LAST(aa), p, q));         \
    }
#define BINARY_PAIRS_LIGHT(name, parameters)                                                       \
    static void b_pairs_##name(ROW_ARGUMENTS)                                                      \
    {                                                                                              \
        const pair *a = aa, *b = bb;                                                               \
        pair *y = yy;                                                                              \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(as), UNUSED(bs), UNUSED(cc);                                                        \
        SIMD for (int64_t i = 0; i < n / 2; i++) y[i] =                                            \
            rounded(FORMULA(b, name)(lower(a[i]), lower(b[i]), p, q),                              \
                    FORMULA(b, name)(upper(a[i]), upper(b[i]), p, q));                             \
        if (n % 2)                                                                                 \
            ((uint16_t *)yy)[n - 1] = tn_to_bf16(FORMULA(b, name)(LAST(aa), LAST(bb), p, q));      \
    }
#define UNARY_PAIRS_HEAVY(name, parameters)
#define BINARY_PAIRS_HEAVY(name, parameters)
#define UNARY_PAIRS(name, parameters, cost, formula) UNARY_PAIRS_##cost(name, parameters)
#define BINARY_PAIRS(name, parameters, cost, formula) BINARY_PAIRS_##cost(name, parameters)
#define ENTRY_LIGHT(function, row) [function] = row,
#define ENTRY_HEAVY(function, row)
#define UNARY_PAIRS_ENTRY(name, parameters, cost, formula)                                         \
    ENTRY_##cost(TNI_U_##name, u_pairs_##name)
#define BINARY_PAIRS_ENTRY(name, parameters, cost, formula)                                        \
    ENTRY_##cost(TNI_B_##name, b_pairs_##name)

TNI_UNARY_LIST(UNARY_PAIRS)
TNI_BINARY_LIST(BINARY_PAIRS)

const tni_row K(tni_unary_pairs)[TNI_U_COUNT] = { TNI_UNARY_LIST(UNARY_PAIRS_ENTRY) };
const tni_row K(tni_binary_pairs)[TNI_B_COUNT] = { TNI_BINARY_LIST(BINARY_PAIRS_ENTRY) };

/* ---- gelu where the result is rounded to bf16 or f16: half the work -------------------------- */

/* 2^t for -127.4 < t < 128.5: 0 below -126.5, inf above 127.5. t = n + r, |r| <= 1/2: p = 2^r with
 * a relative error below 2^-18. Adding `shift` rounds t, and leaves n + 127, the exponent's bits,
 * in the lowest ones. */
static inline float exp2_half(float t)
{
    const float shift = 12582912.0f + 127.0f;
    float biased = t + shift, r = t - (biased - shift);
    float p = TN_POLY_5(r, 0x1.3997d4p-7f, 0x1.ca1442p-5f, 0x1.ec06dap-3f, 0x1.62e0dcp-1f,
                        0x1.ffffe8p-1f);
    return p * tn_from_bits_f32(tn_bits_f32(biased) << 23);
}

/* Phi(-a) = 2^P(a), one polynomial up to where that ends, at a = 12.99; fitted for the least
 * maximal error (Lawson's algorithm). The relative error is below 2^-15 up to a = 6, where gelu in
 * f32 is rounding errors and then 0, and grows to 2^-6. */
static inline float normal_cdf_half(float x)
{
    float a = tn_abs_f32(x);
    a = a > 12.99f ? 12.99f : a;
    float a2 = a * a, a4 = a2 * a2; /* Estrin's scheme: shorter chains than Horner's */
    float high = 0x1.c2d3b6p-25f * a4 + ((-0x1.815fa8p-19f * a + 0x1.1e0ff4p-14f) * a2 +
                                         (-0x1.eaff30p-11f * a + 0x1.1377d2p-7f));
    float low =
        (-0x1.b68582p-5f * a - 0x1.d62098p-2f) * a2 + (-0x1.26a228p+0f * a - 0x1.0001d0p+0f);
    float t = high * a4 + low;
    float tail = exp2_half(t);
    return x > 0 ? 1.0f - tail : tail;
}

/* Phi(x) + x phi(x), off by 3e-6 at most: many units near its zero, x = -0.75. */
static inline float gelu_slope_half(float x)
{
    const float half_log2_e = 0x1.715476p-1f, most = 13.25f; /* phi ends there */
    float c = x < -most ? -most : x > most ? most : x;
    return normal_cdf_half(x) + c * (float)TNI_NORMAL_DENSITY_0 * exp2_half(-half_log2_e * c * c);
}

static inline float gelu_tanh_slope_half(float x)
{
    float c = tn_gelu_tanh_inner_f32(x);
    return tn_gelu_tanh_slope_at_f32(c, exp2_half(tn_gelu_tanh_exponent_f32(c)));
}

#define HALF_UNARY_LIST(F)                                                                         \
    F(gelu_half, 0, HEAVY, x *normal_cdf_half(x))                                                  \
    F(gelu_tanh_half, 0, HEAVY, x / (1.0f + exp2_half(tn_gelu_tanh_exponent_f32(x))))
#define HALF_BINARY_LIST(F)                                                                        \
    F(gelu_grad_half, 0, HEAVY, x *gelu_slope_half(y))                                             \
    F(gelu_tanh_grad_half, 0, HEAVY, x *gelu_tanh_slope_half(y))
#define R float
#define OF(name) name##_f32
HALF_UNARY_LIST(TNI_U_BODY)
HALF_BINARY_LIST(TNI_B_BODY)
HALF_UNARY_LIST(UNARY_ROW)
HALF_BINARY_LIST(BINARY_ROW)
const tni_row K(tni_half_unary)[TNI_U_COUNT] = {
    [TNI_U_gelu] = u_gelu_half, [TNI_U_gelu_tanh] = u_gelu_tanh_half
};
const tni_row K(tni_half_binary)[TNI_B_COUNT] = {
    [TNI_B_gelu_grad] = b_gelu_grad_half, [TNI_B_gelu_tanh_grad] = b_gelu_tanh_grad_half
};
#endif
