/*
 * functions.h - more rows of unary.c's list, as of angles and activations.
 *
 * gelu = x Phi(x): Phi + x phi; gelu_tanh = x g, g = sigmoid(2u): g + 2 x g (1 - g) u'. hardtanh' = 0
 * at both bounds.
 * Sources: Clevert et al. (2016) ELU; Klambauer et al. (2017) SELU; Barron (2017) CELU; Hendrycks
 * and Gimpel (2016) GELU; Howard et al. (2019) hardswish; Misra (2020) mish; Dugas et al. (2001)
 * softplus; Bergstra et al. (2009) softsign.
 */

static tn_tensor *gelu_slope(tn_tensor *x)
{
    tn_tensor *cdf =
        tn_mul_scalar(tn_add_scalar(tn_erf(tn_mul_scalar(x, TNI_SQRT_HALF)), 1.0), 0.5);
    tn_tensor *density =
        tn_mul_scalar(tn_exp(tn_mul_scalar(tn_square(x), -0.5)), TNI_NORMAL_DENSITY_0);
    return tn_add(cdf, tn_mul(tn_clamp(x, -40.0, 40.0), density)); /* not infinity times 0 */
}

static tn_tensor *gelu_tanh_slope(tn_tensor *x)
{
    const double k = 2.0 * TNI_SQRT_2_PI;
    x = tn_clamp(x, -20.0, 20.0); /* from there on it is 1, or nearly 0 */
    tn_tensor *xx = tn_square(x);
    tn_tensor *u2 = tn_mul(x, tn_add_scalar(tn_mul_scalar(xx, k * TNI_GELU_CUBIC), k));
    tn_tensor *du2 = tn_add_scalar(tn_mul_scalar(xx, 3.0 * k * TNI_GELU_CUBIC), k);
    tn_tensor *g = tn_sigmoid(u2);
    return tn_add(g, tn_mul(tn_mul(x, du2), tn_mul(g, tn_rsub_scalar(g, 1.0))));
}

/* beyond the threshold the slope is 1, whatever the sigmoid is */
static tn_tensor *softplus_grad(tn_tensor *dy, tn_tensor *x, double beta, double threshold)
{
    tn_tensor *u = tn_mul_scalar(x, beta);
    return tn_where(tn_gt_scalar(u, threshold), dy, tn_mul(dy, tn_sigmoid(u)));
}

/* As bool, which multiplies as 0 or 1. */
static tn_tensor *between(tn_tensor *x, double low, double high)
{
    return tn_logical_and(tn_gt_scalar(x, low), tn_lt_scalar(x, high));
}

static tn_tensor *hardswish_grad(tn_tensor *dy, tn_tensor *x)
{
    tn_tensor *inner = tn_mul(dy, tn_add_scalar(tn_div_scalar(x, 3.0), 0.5));
    return tn_where(between(x, -3.0, 3.0), inner, tn_masked_fill(dy, tn_le_scalar(x, -3.0), 0.0));
}

static tn_tensor *mish_slope(tn_tensor *x)
{
    x = tn_clamp(x, -80.0, 20.0); /* from there on it is nearly 0, or 1 */
    tn_tensor *w = tn_tanh(tn_softplus(x, 1.0, 20.0));
    tn_tensor *slope = tn_mul(tn_rsub_scalar(tn_square(w), 1.0), tn_sigmoid(x));
    return tn_add(w, tn_mul(x, slope));
}

static tn_tensor *celu_grad(tn_tensor *dy, tn_tensor *x, double alpha)
{
    tn_tensor *below = tn_masked_fill(x, tn_gt_scalar(x, 0.0), 0.0); /* e^0 = 1 above */
    return tn_mul(dy, tn_exp(tn_div_scalar(below, alpha)));
}

#define SCALED_IF(tn_name, name, fits, want)                                                       \
    tn_tensor *tn_name(tn_tensor *x, double s)                                                     \
    {                                                                                              \
        if (!(fits)) return tni_fail(TN_E_INVALID, #tn_name ": " want, s);                         \
        return tni_apply_formula(&op_##name.op, x, s, 0.0);                                        \
    }
#define SOFTPLUS(tn_name, name)                                                                    \
    tn_tensor *tn_name(tn_tensor *x, double beta, double threshold)                                \
    {                                                                                              \
        if (!(beta > 0.0))                                                                         \
            return tni_fail(TN_E_INVALID, #tn_name ": beta %g: want a positive number", beta);     \
        return tni_apply_formula(&op_##name.op, x, beta, threshold);                               \
    }
#define CELU(tn_name, name)                                                                        \
    SCALED_IF(tn_name, name, fabs(s) > 0.0, "alpha %g: want a number other than 0")
#define SOFTSHRINK(tn_name, name) SCALED_IF(tn_name, name, s >= 0.0, "lambda %g: want 0 or more")

tn_tensor *tn_relu6(tn_tensor *x)
{
    return tn_hardtanh(x, 0.0, 6.0);
}

/* A row of steps, of slope 0. */
#define STEPS(U, tn_name, name, formula)                                                           \
    U(tn_name, name, PLAIN, KEEPS, formula, "dx = 0", 0, NONE, tn_zeros_like(dy))

#define FUNCTION_LIST(U)                                                                           \
    U(tn_tan, tan, PLAIN, STEEP | FLOATS, "y = tan x", "dx = (1 + y^2) dy", Y, NONE,               \
      tn_mul(dy, tn_add_scalar(tn_square(y), 1.0)))                                                \
    U(tn_asin, asin, PLAIN, STEEP | FLOATS, "y = arcsin x", "dx = dy / sqrt(1 - x^2)", X,          \
      TNI_B_asin_grad, tn_mul(dy, tn_rsqrt(tn_rsub_scalar(tn_square(x), 1.0))))                    \
    U(tn_acos, acos, PLAIN, STEEP | FLOATS, "y = arccos x", "dx = -dy / sqrt(1 - x^2)", X,         \
      TNI_B_acos_grad, tn_neg(tn_mul(dy, tn_rsqrt(tn_rsub_scalar(tn_square(x), 1.0)))))            \
    U(tn_atan, atan, PLAIN, FLOATS, "y = arctan x", "dx = dy / (1 + x^2)", X, NONE,                \
      tn_div(dy, tn_add_scalar(tn_square(x), 1.0)))                                                \
    U(tn_sinh, sinh, PLAIN, STEEP | FLOATS, "y = sinh x", "dx = dy cosh x", X, NONE,               \
      tn_mul(dy, tn_cosh(x)))                                                                      \
    U(tn_cosh, cosh, PLAIN, STEEP | FLOATS, "y = cosh x", "dx = dy sinh x", X, NONE,               \
      tn_mul(dy, tn_sinh(x)))                                                                      \
    U(tn_asinh, asinh, PLAIN, FLOATS, "y = arsinh x", "dx = dy / sqrt(x^2 + 1)", X, NONE,          \
      tn_mul(dy, tn_rsqrt(tn_add_scalar(tn_square(x), 1.0))))                                      \
    U(tn_acosh, acosh, PLAIN, FLOATS, "y = arcosh x", "dx = dy / sqrt(x^2 - 1)", X,                \
      TNI_B_acosh_grad, tn_mul(dy, tn_rsqrt(tn_sub_scalar(tn_square(x), 1.0))))                    \
    U(tn_atanh, atanh, PLAIN, FLOATS, "y = artanh x", "dx = dy / (1 - x^2)", X, TNI_B_atanh_grad,  \
      tn_div(dy, tn_rsub_scalar(tn_square(x), 1.0)))                                               \
    U(tn_elu, elu, SCALED, RECOMPUTE | FLOATS, "y = x > 0 ? x : alpha (e^x - 1)",                  \
      "dx = x > 0 ? dy : alpha e^x dy", X, TNI_B_elu_grad,                                         \
      tn_where(                                                                                    \
          tn_gt_scalar(x, 0.0), dy,                                                                \
          tn_mul(dy, tn_mul_scalar(tn_exp(tn_masked_fill(x, tn_ge_scalar(x, 0.0), 0.0)), p[0]))))  \
    U(tn_softplus, softplus, SOFTPLUS, STEEP | FLOATS, "y = ln(1 + e^(beta x)) / beta",             \
      "dx = sigmoid(beta x) dy", X, TNI_B_softplus_grad, softplus_grad(dy, x, p[0], p[1]))         \
    U(tn_celu, celu, CELU, FLOATS, "y = x > 0 ? x : alpha (e^(x / alpha) - 1)",                    \
      "dx = x > 0 ? dy : e^(x / alpha) dy", X, TNI_B_celu_grad, celu_grad(dy, x, p[0]))            \
    U(tn_selu, selu, PLAIN, FLOATS, "y = 1.0507 (x > 0 ? x : 1.6733 (e^x - 1))",                   \
      "dx = 1.0507 (x > 0 ? dy : 1.6733 e^x dy)", X, TNI_B_selu_grad,                              \
      tn_mul_scalar(tn_where(tn_gt_scalar(x, 0.0), dy,                                             \
                             tn_mul_scalar(celu_grad(dy, x, 1.0), TNI_SELU_ALPHA)),                \
                    TNI_SELU_SCALE))                                                               \
    U(tn_gelu, gelu, PLAIN, RECOMPUTE | FLOATS, "y = x Phi(x)",                                    \
      "dx = (Phi(x) + x phi(x)) dy; where Phi, phi: the normal distribution and its density", X,   \
      TNI_B_gelu_grad, tn_mul(dy, gelu_slope(x)))                                                  \
    U(tn_gelu_tanh, gelu_tanh, PLAIN, RECOMPUTE | FLOATS,                                          \
      "y = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2",                                       \
      "dx = dy times the slope of the formula", X, TNI_B_gelu_tanh_grad,                           \
      tn_mul(dy, gelu_tanh_slope(x)))                                                              \
    U(tn_hardtanh, hardtanh, BOUNDED, BOUNDS, "y = min(max(x, low), high)",                        \
      "dx = low < x < high ? dy : 0", X, TNI_B_hardtanh_grad, tn_mul(dy, between(x, p[0], p[1])))  \
    U(tn_hardsigmoid, hardsigmoid, PLAIN, FLOATS, "y = min(max(x + 3, 0), 6) / 6",                 \
      "dx = -3 < x < 3 ? dy / 6 : 0", X, TNI_B_hardsigmoid_grad,                                   \
      tn_mul(tn_div_scalar(dy, 6.0), between(x, -3.0, 3.0)))                                       \
    U(tn_hardswish, hardswish, PLAIN, FLOATS, "y = x min(max(x + 3, 0), 6) / 6",                   \
      "dx = x <= -3 ? 0 : x < 3 ? (x / 3 + 1 / 2) dy : dy", X, TNI_B_hardswish_grad,               \
      hardswish_grad(dy, x))                                                                       \
    U(tn_hardshrink, hardshrink, SCALED, FLOATS, "y = |x| > lambda ? x : 0",                       \
      "dx = |x| > lambda ? dy : 0", X, TNI_B_shrink_grad,                                          \
      tn_mul(dy, tn_gt_scalar(tn_abs(x), p[0])))                                                   \
    U(tn_softshrink, softshrink, SOFTSHRINK, FLOATS, "y = x - min(max(x, -lambda), lambda)",       \
      "dx = |x| > lambda ? dy : 0", X, TNI_B_shrink_grad,                                          \
      tn_mul(dy, tn_gt_scalar(tn_abs(x), p[0])))                                                   \
    U(tn_tanhshrink, tanhshrink, PLAIN, FLOATS, "y = x - tanh x", "dx = dy tanh(x)^2", X, NONE,    \
      tn_mul(dy, tn_square(tn_tanh(x))))                                                           \
    U(tn_softsign, softsign, PLAIN, FLOATS, "y = x / (1 + |x|)", "dx = dy / (1 + |x|)^2", X,       \
      TNI_B_softsign_grad, tn_div(dy, tn_square(tn_add_scalar(tn_abs(x), 1.0))))                   \
    U(tn_logsigmoid, logsigmoid, PLAIN, FLOATS, "y = -ln(1 + e^-x)", "dx = sigmoid(-x) dy", X,     \
      TNI_B_logsigmoid_grad, tn_mul(dy, tn_sigmoid(tn_neg(x))))                                    \
    U(tn_mish, mish, PLAIN, FLOATS, "y = x tanh(ln(1 + e^x))",                                     \
      "dx = (w + x (1 - w^2) sigmoid(x)) dy; where w = tanh(ln(1 + e^x))", X, TNI_B_mish_grad,     \
      tn_mul(dy, mish_slope(x)))                                                                   \
    U(tn_remainder_scalar, remainder_scalar, SCALED, SCALAR, "y = x - s floor(x / s)", "dx = dy",  \
      0, NONE, dy)                                                                                 \
    STEPS(U, tn_sign, sign, "y = x > 0 ? 1 : x < 0 ? -1 : 0")                                      \
    STEPS(U, tn_floor, floor, "y = the largest whole number <= x")                                 \
    STEPS(U, tn_ceil, ceil, "y = the smallest whole number >= x")                                  \
    STEPS(U, tn_trunc, trunc, "y = x without its fraction")                                        \
    STEPS(U, tn_round, round, "y = the nearest whole number, of two the even one")
