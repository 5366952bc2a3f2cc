/*
 * formulas.h - every pointwise function once: a number, how many parameters it has, what it costs,
 * and its formula, for f32, f64 and (where it makes sense) integers, on the CPU and on the GPU.
 *
 * A line is F(name, parameters, cost, formula). In a formula x, y, z are the operands, p and q the
 * parameters, R the type, M(f) the variant of a function of math.h. Half-precision floats compute
 * in f32, integers below i64 and bool in i64; sums wrap around. Predicates give 0 or 1, stored as
 * bool. Names: u_, b_, t_ by number of operands; TNI_U_exp, TNI_B_add, TNI_T_where number them.
 */
#pragma once

#include "tensor/functions.h" /* more rows, as of activations, and what they call */

/* Cost: sets how much work one thread does before a second one helps. */
enum { TNI_LIGHT, TNI_HEAVY };

/* ---- one operand ----------------------------------------------------------------------------- */

/* clang-format off */
#define TNI_UNARY_LIST(F)                                                                          \
    F(neg, 0, LIGHT, -x)                                                                           \
    F(abs, 0, LIGHT, M(abs)(x))                                                                    \
    F(sign, 0, LIGHT, (R)((x > (R)0) - (x < (R)0)))                                                \
    F(sign_or_nan, 0, LIGHT, x > (R)0 ? (R)1 : x < (R)0 ? (R)-1 : (R)0 * x)                        \
    F(floor, 0, LIGHT, M(floor)(x))                                                                \
    F(ceil, 0, LIGHT, M(ceil)(x))                                                                  \
    F(trunc, 0, LIGHT, M(trunc)(x))                                                                \
    F(round, 0, LIGHT, M(rint)(x))                                                                 \
    F(square, 0, LIGHT, x * x)                                                                     \
    F(sqrt, 0, LIGHT, M(sqrt)(x))                                                                  \
    F(rsqrt, 0, LIGHT, (R)1 / M(sqrt)(x))                                                          \
    F(reciprocal, 0, LIGHT, (R)1 / x)                                                              \
    F(exp, 0, HEAVY, M(exp)(x))                                                                    \
    F(expm1, 0, HEAVY, M(expm1)(x))                                                                \
    F(log, 0, HEAVY, M(log)(x))                                                                    \
    F(log1p, 0, HEAVY, M(log1p)(x))                                                                \
    F(sin, 0, HEAVY, M(sin)(x))                                                                    \
    F(cos, 0, HEAVY, M(cos)(x))                                                                    \
    F(tanh, 0, HEAVY, M(tanh)(x))                                                                  \
    F(sigmoid, 0, HEAVY, M(sigmoid)(x))                                                            \
    F(erf, 0, HEAVY, M(erf)(x))                                                                    \
    F(relu, 0, LIGHT, x <= (R)0 ? (R)0 : x)                                                        \
    F(leaky_relu, 1, LIGHT, x > (R)0 ? x : p * x)                                                  \
    F(silu, 0, HEAVY, x * M(sigmoid)(x))                                                           \
    F(clamp, 2, LIGHT, x < p ? p : x > q ? q : x)                                                  \
    F(add_scalar, 1, LIGHT, x + p)                                                                 \
    F(sub_scalar, 1, LIGHT, x - p)                                                                 \
    F(rsub_scalar, 1, LIGHT, p - x)                                                                \
    F(mul_scalar, 1, LIGHT, x * p)                                                                 \
    F(div_scalar, 1, LIGHT, x / p)                                                                 \
    F(pow_scalar, 1, HEAVY, M(pow)(x, p))                                                          \
    TNI_UNARY_FUNCTIONS(F)

#define TNI_UNARY_PREDICATE_LIST(F)                                                                \
    F(logical_not, 0, LIGHT, !(x != (R)0))                                                         \
    F(isnan, 0, LIGHT, x != x)                                                                     \
    F(isfinite, 0, LIGHT, x - x == (R)0)                                                           \
    TNI_COMPARISON_LIST(F)

#define TNI_COMPARISON_LIST(F)                                                                     \
    F(eq_scalar, 1, LIGHT, x == p)                                                                 \
    F(lt_scalar, 1, LIGHT, x < p)                                                                  \
    F(gt_scalar, 1, LIGHT, x > p)                                                                  \
    F(ne_scalar, 1, LIGHT, x != p)                                                                 \
    F(le_scalar, 1, LIGHT, x <= p)                                                                 \
    F(ge_scalar, 1, LIGHT, x >= p)

/* ---- two operands: after the operators, gradients (x = dy, y = the x or y that forward saw) -- */

#define TNI_BINARY_LIST(F)                                                                         \
    F(add, 0, LIGHT, x + y)                                                                        \
    F(sub, 0, LIGHT, x - y)                                                                        \
    F(mul, 0, LIGHT, x * y)                                                                        \
    F(div, 0, LIGHT, x / y)                                                                        \
    F(pow, 0, HEAVY, M(pow)(x, y))                                                                 \
    F(minimum, 0, LIGHT, x < y ? x : y < x ? y : x == y ? x : x + y)                             \
    F(maximum, 0, LIGHT, x > y ? x : y > x ? y : x == y ? x : x + y)                             \
    F(lerp, 1, LIGHT, TN_LERP(x, y, p))                                                            \
    F(masked_fill, 1, LIGHT, y != (R)0 ? p : x)                                                    \
    F(abs_grad, 0, LIGHT, y > (R)0 ? x : y < (R)0 ? -x : (R)0 * y)                                 \
    F(square_grad, 0, LIGHT, (R)2 * (x * y))                                                       \
    F(sqrt_grad, 0, LIGHT, x / ((R)2 * y))                                                         \
    F(rsqrt_grad, 0, LIGHT, (R)-0.5 * x * (y * y * y))                                             \
    F(reciprocal_grad, 0, LIGHT, -x * (y * y))                                                     \
    F(expm1_grad, 0, LIGHT, x * (y + (R)1))                                                        \
    F(log1p_grad, 0, LIGHT, x / ((R)1 + y))                                                        \
    F(sin_grad, 0, HEAVY, x * M(cos)(y))                                                           \
    F(cos_grad, 0, HEAVY, -x * M(sin)(y))                                                          \
    F(tanh_grad, 0, LIGHT, x * ((R)1 - y * y))                                                     \
    F(sigmoid_grad, 0, LIGHT, x * (y * ((R)1 - y)))                                                \
    F(erf_grad, 0, HEAVY, x * ((R)1.12837916709551257390 * M(exp)(-(y * y))))                      \
    F(relu_grad, 0, LIGHT, y <= (R)0 ? (R)0 : x)                                                   \
    F(leaky_relu_grad, 1, LIGHT, y > (R)0 ? x : p * x)                                             \
    F(silu_grad, 0, HEAVY, x * M(silu_slope)(y))                                                   \
    F(clamp_grad, 2, LIGHT, y >= p ? (y <= q ? x : (R)0) : (R)0)                                   \
    F(pow_scalar_grad, 1, HEAVY, p == (R)0 ? (R)0 : x * (p * M(pow)(y, p - (R)1)))                 \
    TNI_BINARY_FUNCTIONS(F)

#define TNI_BINARY_PREDICATE_LIST(F)                                                               \
    F(eq, 0, LIGHT, x == y)                                                                        \
    F(ne, 0, LIGHT, x != y)                                                                        \
    F(lt, 0, LIGHT, x < y)                                                                         \
    F(le, 0, LIGHT, x <= y)                                                                        \
    F(gt, 0, LIGHT, x > y)                                                                         \
    F(ge, 0, LIGHT, x >= y)                                                                        \
    F(logical_and, 0, LIGHT, (x != (R)0) & (y != (R)0))                                            \
    F(logical_or, 0, LIGHT, (x != (R)0) | (y != (R)0))                                             \
    F(logical_xor, 0, LIGHT, (x != (R)0) ^ (y != (R)0))

/* ---- three operands (gradients: x = dy) ------------------------------------------------------ */

/* div_grad: by the divisor y, z the quotient. pow_base_grad: y the base, z the exponent;
 * pow_exponent_grad: y the base, z the power. scaled_diff: p dy (x - m), of the variance.
 * norm_grad: p the norm's order, z its value. prelu_grad: y the weight, z the input; glu_grad: y the
 * first half, z the second. */
#define TNI_TERNARY_LIST(F)                                                                        \
    F(where, 0, LIGHT, x != (R)0 ? y : z)                                                          \
    F(lerp_by, 0, LIGHT, TN_LERP(x, y, z))                                                         \
    F(prelu_grad, 0, LIGHT, z > (R)0 ? x : x * y)                                                  \
    F(glu_grad, 0, HEAVY, x * y * (M(sigmoid)(z) * ((R)1 - M(sigmoid)(z))))                        \
    F(minimum_grad, 0, LIGHT, y > z ? (R)0 : y == z ? (R)0.5 * x : x)                              \
    F(maximum_grad, 0, LIGHT, y < z ? (R)0 : y == z ? (R)0.5 * x : x)                              \
    F(div_grad, 0, LIGHT, -x * z / y)                                                              \
    F(pow_base_grad, 0, HEAVY, z == (R)0 ? (R)0 : x * (z * M(pow)(y, z - (R)1)))                   \
    F(pow_exponent_grad, 0, HEAVY, (y == (R)0 && M(abs)(z) <= (R)1) ? (R)0 : x * (z * M(log)(y))) \
    F(scaled_diff, 1, LIGHT, x * (p * (y - z)))                                                    \
    F(extreme_grad, 0, LIGHT, y == z ? x : (R)0)                                                   \
    F(exp_diff_grad, 0, HEAVY, x * M(exp)(y - z))                                                  \
    F(bce_grad, 0, LIGHT, x * ((y - z) / TN_ABOVE(y * ((R)1 - y), (R)1e-12F)))                     \
    F(bce_lead, 0, LIGHT, x * ((R)(y > (R)0) - z))                                                 \
    F(norm_grad, 1, HEAVY, z == (R)0 ? (R)0 : x * M(norm_slope)(y, z, p))

/* ---- on integers: the same names; W() wraps around ------------------------------------------- */

#define TNI_UNARY_INT_LIST(F)                                                                      \
    F(neg, 0, LIGHT, W(0, -, x))                                                                   \
    F(abs, 0, LIGHT, x < 0 ? W(0, -, x) : x)                                                       \
    F(sign, 0, LIGHT, (x > 0) - (x < 0))                                                           \
    F(floor, 0, LIGHT, x)                                                                          \
    F(ceil, 0, LIGHT, x)                                                                           \
    F(trunc, 0, LIGHT, x)                                                                          \
    F(round, 0, LIGHT, x)                                                                          \
    F(square, 0, LIGHT, W(x, *, x))                                                                \
    F(relu, 0, LIGHT, x < 0 ? 0 : x)                                                               \
    F(clamp, 2, LIGHT, x < p ? p : x > q ? q : x)                                                  \
    F(hardtanh, 2, LIGHT, x < p ? p : x > q ? q : x)                                               \
    F(remainder_scalar, 1, HEAVY, tni_remainder_int(x, p))                                         \
    F(add_scalar, 1, LIGHT, W(x, +, p))                                                            \
    F(sub_scalar, 1, LIGHT, W(x, -, p))                                                            \
    F(rsub_scalar, 1, LIGHT, W(p, -, x))                                                           \
    F(mul_scalar, 1, LIGHT, W(x, *, p))                                                            \
    F(pow_scalar, 1, HEAVY, tni_pow_int(x, p))

#define TNI_UNARY_INT_PREDICATE_LIST(F)                                                            \
    F(logical_not, 0, LIGHT, x == 0)                                                               \
    F(isnan, 0, LIGHT, 0 * x)                                                                      \
    F(isfinite, 0, LIGHT, 1 | (0 * x))                                                             \
    TNI_COMPARISON_LIST(F)

#define TNI_BINARY_INT_LIST(F)                                                                     \
    F(add, 0, LIGHT, W(x, +, y))                                                                   \
    F(sub, 0, LIGHT, W(x, -, y))                                                                   \
    F(mul, 0, LIGHT, W(x, *, y))                                                                   \
    F(pow, 0, HEAVY, tni_pow_int(x, y))                                                            \
    F(remainder, 0, HEAVY, tni_remainder_int(x, y))                                                \
    F(minimum, 0, LIGHT, x < y ? x : y)                                                            \
    F(maximum, 0, LIGHT, x > y ? x : y)                                                            \
    F(masked_fill, 1, LIGHT, y != 0 ? p : x)

#define TNI_TERNARY_INT_LIST(F) F(where, 0, LIGHT, x != 0 ? y : z)

/* ---- reductions: var: sum (x - mean)^2 / (n - p); std: its root; max_abs: max |x| ------------ */

#define TNI_REDUCE_LIST(F)                                                                         \
    F(sum) F(mean) F(prod) F(max) F(min) F(max_abs) F(any) F(all) F(var) F(std)                    \
    F(norm) F(logsumexp)
/* clang-format on */

/* ---- numbers --------------------------------------------------------------------------------- */

#define TNI_NUMBER_U(name, parameters, cost, formula) TNI_U_##name,
#define TNI_NUMBER_B(name, parameters, cost, formula) TNI_B_##name,
#define TNI_NUMBER_T(name, parameters, cost, formula) TNI_T_##name,
#define TNI_NUMBER_R(name) TNI_R_##name,

enum {
    TNI_UNARY_LIST(TNI_NUMBER_U) TNI_U_PREDICATES,
    TNI_U_BEFORE = TNI_U_PREDICATES - 1, /* the first predicate's number is TNI_U_PREDICATES */
    TNI_UNARY_PREDICATE_LIST(TNI_NUMBER_U) TNI_U_COUNT
};
enum {
    TNI_BINARY_LIST(TNI_NUMBER_B) TNI_B_PREDICATES,
    TNI_B_BEFORE = TNI_B_PREDICATES - 1,
    TNI_BINARY_PREDICATE_LIST(TNI_NUMBER_B) TNI_B_COUNT
};
enum { TNI_TERNARY_LIST(TNI_NUMBER_T) TNI_T_COUNT };
enum { TNI_REDUCE_LIST(TNI_NUMBER_R) TNI_R_COUNT };

/* ---- functions: tni_u_exp_f32(x, p, q) and so on --------------------------------------------- */

/* silu: slope s (1 + x (1 - s)).
 * norm: d (sum |x|^p)^(1/p) / dx = sign(x) (|x| / y)^(p-1); 0 at x = 0, and for p = 1 sign(x). */
#define TNI_SHARED_FORMULAS(R, S)                                                                  \
    TN_FN R tn_sigmoid_##S(R x)                                                                    \
    {                                                                                              \
        return (R)1 / ((R)1 + tn_exp_##S(-x));                                                     \
    }                                                                                              \
    TN_FN R tn_silu_slope_##S(R x)                                                                 \
    {                                                                                              \
        R s = tn_sigmoid_##S(x);                                                                   \
        return s * ((R)1 + x * ((R)1 - s));                                                        \
    }                                                                                              \
    TN_FN R tn_norm_slope_##S(R x, R y, R p)                                                       \
    {                                                                                              \
        R a = tn_abs_##S(x) / y;                                                                   \
        R m = p == (R)2 ? a : p == (R)1 ? (R)1 : tn_pow_##S(x == (R)0 ? (R)1 : a, p - (R)1);       \
        R none = y == y || p == (R)1 ? (R)0 * x : y; /* a norm of NaN hides in no 0 */             \
        return x > (R)0 ? m : x < (R)0 ? -m : none;                                                \
    }

TNI_SHARED_FORMULAS(float, f32)
TNI_SHARED_FORMULAS(double, f64)

/* By squaring, wrapping around; a negative exponent gives 0, and +-1 for x = +-1. */
TN_FN int64_t tni_pow_int(int64_t x, int64_t n)
{
    uint64_t base = (uint64_t)x;
    uint64_t y = 1;
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    for (; n > 0; n >>= 1) {
        if (n & 1) y *= base;
        base *= base;
    }
    return (int64_t)y;
}

#define W(a, op, b) ((int64_t)((uint64_t)(a)op(uint64_t)(b)))

#define TNI_U_BODY(name, parameters, cost, formula)                                                \
    TN_FN R OF(tni_u_##name)(R x, R p, R q)                                                        \
    {                                                                                              \
        (void)p, (void)q;                                                                          \
        return (R)(formula);                                                                       \
    }
#define TNI_B_BODY(name, parameters, cost, formula)                                                \
    TN_FN R OF(tni_b_##name)(R x, R y, R p, R q)                                                   \
    {                                                                                              \
        (void)p, (void)q;                                                                          \
        return (R)(formula);                                                                       \
    }
#define TNI_T_BODY(name, parameters, cost, formula)                                                \
    TN_FN R OF(tni_t_##name)(R x, R y, R z, R p, R q)                                              \
    {                                                                                              \
        (void)p, (void)q;                                                                          \
        return (R)(formula);                                                                       \
    }
#define TNI_REAL_BODIES                                                                            \
    TNI_UNARY_LIST(TNI_U_BODY)                                                                     \
    TNI_UNARY_PREDICATE_LIST(TNI_U_BODY)                                                           \
    TNI_BINARY_LIST(TNI_B_BODY)                                                                    \
    TNI_BINARY_PREDICATE_LIST(TNI_B_BODY)                                                          \
    TNI_TERNARY_LIST(TNI_T_BODY)

#define R float
#define M(f) tn_##f##_f32
#define OF(name) name##_f32
TNI_REAL_BODIES
#undef R
#undef M
#undef OF

#define R double
#define M(f) tn_##f##_f64
#define OF(name) name##_f64
TNI_REAL_BODIES
#undef R
#undef M
#undef OF

#define R int64_t
#define OF(name) name##_i64
TNI_UNARY_INT_LIST(TNI_U_BODY)
TNI_UNARY_INT_PREDICATE_LIST(TNI_U_BODY)
TNI_BINARY_INT_LIST(TNI_B_BODY)
TNI_BINARY_PREDICATE_LIST(TNI_B_BODY)
TNI_TERNARY_INT_LIST(TNI_T_BODY)
#undef R
#undef OF
#undef W
