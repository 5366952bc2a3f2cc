/*
 * unary.c - the family of functions of one tensor: y = f(x), elementwise; dx = dy f'(x).
 *
 * A row of the list gives the public function, the op's name, the function's form, what becomes of
 * dtypes that are not floating, the formula, what the gradient reads, the fused gradient kernel
 * (formulas.h; NONE if ops are as good) and the gradient composed of ops, which is used while
 * recording and defines second derivatives. The slope is written in terms of y where possible, so
 * that x need not be kept.
 * Tests give bool and no gradient; a C scalar is compared in the tensor's dtype.
 * At kinks: relu'(0) = 0, abs'(0) = 0, leaky_relu'(0) = slope, clamp' = 1 at both bounds.
 * Sources: Maas et al. (2013) leaky ReLU; Hendrycks and Gimpel (2016) SiLU.
 */
#include "autograd/ops/elementwise.h"

/* What becomes of dtypes that are not floating. */
typedef enum unary_kind {
    FLOATS,         /* integers give f32 */
    KEEPS,          /* integers stay (bool gives i64) */
    SCALAR,         /* as KEEPS if the scalar is an integer, else as FLOATS */
    BOUNDS,         /* the same of clamp's two */
    TEST,           /* the result is bool */
    KIND = 7,       /* the bits of those */
    STEEP = 8,      /* or-ed: f32 inside tn_set_autocast */
    RECOMPUTE = 16, /* or-ed: tn_op's recompute */
    CONSTANT = 32   /* or-ed: no gradient */
} unary_kind;

enum { NONE = -1 };

typedef struct unary_op {
    tn_op op;
    int function;
    int grad; /* binary function of dy and what is read */
    unary_kind kind;
    tn_tensor *(*composed)(tn_tensor *dy, tn_tensor *x, tn_tensor *y, const double *p);
} unary_op;

/* Whether integers stay integers; an error if no integer is the answer. */
static tn_status stays_integer(const tni_call *c, bool *stays)
{
    const unary_op *u = (const unary_op *)c->op;
    const tni_formula_args *args = c->args;
    if (u->kind == BOUNDS)
        return tni_check_bounds(u->function == TNI_U_clamp ? "tn_clamp" : "tn_hardtanh", args->p[0],
                                args->p[1], c->in[0]->dtype, stays);
    *stays = u->kind == KEEPS || (u->kind == SCALAR && tni_is_whole(args->p[0]));
    if (u->function == TNI_U_pow_scalar && *stays && args->p[0] < 0.0)
        return tni_op_error(c, TN_E_INVALID,
                            "%s to the power %g: want a floating base or 0 or more",
                            tn_dtype_name(c->in[0]->dtype), args->p[0]);
    if (u->function == TNI_U_remainder_scalar && *stays && args->p[0] == 0.0)
        return tni_op_error(c, TN_E_INVALID, "%s divided by 0: want another divisor",
                            tn_dtype_name(c->in[0]->dtype));
    return TN_OK;
}

static tn_status unary_shape(tni_call *c)
{
    const unary_op *u = (const unary_op *)c->op;
    tn_dtype dtype = c->in[0]->dtype;
    bool stays = true, real = tn_dtype_is_float(dtype);
    tn_status status = real ? TN_OK : stays_integer(c, &stays);
    if (!real) dtype = !stays ? TN_F32 : dtype == TN_BOOL ? TN_I64 : dtype;
    tni_result(c, u->kind == TEST ? TN_BOOL : dtype, &c->in[0]->shape);
    return status;
}

/* Half-precision floats add, raise and compare with a scalar that is rounded to them, and scale by
 * one that is not, as PyTorch does. Powers have shorter forms, whose values at -0 and -inf are
 * PyTorch's. */
static void settle(tn_dtype dtype, const unary_op *u, tni_unary *a, double p[2])
{
    if ((u->kind == SCALAR && u->function != TNI_U_mul_scalar) || u->kind == TEST)
        p[0] = tni_rounded(p[0], dtype);
    if (u->function != TNI_U_pow_scalar) return;
    if (p[0] == 2.0) a->function = TNI_U_square;
    if (p[0] == 0.5) a->function = TNI_U_sqrt;
    if (p[0] == -0.5) a->function = TNI_U_rsqrt;
}

/* Integers compared with a scalar that is not an integer. True: all elements give *value. Else *s
 * becomes an integer that gives the same results: ceil(s) for x < s and x >= s, floor(s) for x > s
 * and x <= s. For NaN only != is true. */
static bool all_alike(int function, double *s, bool *value)
{
    bool less = function == TNI_U_lt_scalar || function == TNI_U_le_scalar;
    bool more = function == TNI_U_gt_scalar || function == TNI_U_ge_scalar;
    bool up = function == TNI_U_lt_scalar || function == TNI_U_ge_scalar;
    *value = function == TNI_U_ne_scalar || (less && *s > 0.0) || (more && *s < 0.0);
    if ((!less && !more) || !tni_is_whole(floor(*s))) return true;
    *s = up ? ceil(*s) : floor(*s);
    return false;
}

static tn_status unary_forward(tni_call *c)
{
    const unary_op *u = (const unary_op *)c->op;
    const tni_formula_args *args = c->args;
    double p[2] = { args->p[0], args->p[1] };
    tni_unary a;
    a.function = u->function;
    a.p = p;
    tni_array_set(&a.y, c->out[0], &c->out[0]->shape);
    tni_array_set(&a.x, c->in[0], &c->out[0]->shape);
    settle(c->in[0]->dtype, u, &a, p);
    bool value;
    if (TNI_UNLIKELY(u->kind == TEST) && !tn_dtype_is_float(c->in[0]->dtype) &&
        !tni_is_whole(p[0]) && all_alike(u->function, p, &value))
        return tni_backend_of(c->in[0])->fill(&(tni_fill){ a.y, { value, value } });
    return tni_backend_of(c->in[0])->unary(&a);
}

static tn_status unary_backward(tni_grad *g)
{
    const unary_op *u = (const unary_op *)g->op;
    const tni_formula_args *args = g->args;
    bool power = u->function == TNI_U_pow_scalar, square = power && args->p[0] == 2.0;
    bool root = power && fabs(args->p[0] - 1.0) == 0.5; /* of x^(p - 1), by settle */
    if (u->grad == NONE || root || tni_composed()) {
        g->dx[0] = u->composed(g->dy, g->x[0], g->y, args->p);
    } else {
        tn_tensor *read = (u->op.reads[0] & TNI_Y) ? g->y : g->x[0];
        g->dx[0] =
            tni_fused2(square ? TNI_B_square_grad : u->grad, g->dy, read, args->p, g->in, true);
    }
    return TN_OK;
}

/* NaN is outside, too. */
static tn_tensor *outside(tn_tensor *x, double low, double high)
{
    return tn_logical_not(tn_logical_and(tn_ge_scalar(x, low), tn_le_scalar(x, high)));
}

static tn_tensor *silu_slope(tn_tensor *x)
{
    tn_tensor *s = tn_sigmoid(x);
    return tn_mul(s, tn_add_scalar(tn_mul(x, tn_rsub_scalar(s, 1.0)), 1.0));
}

static tn_tensor *pow_scalar_grad(tn_tensor *dy, tn_tensor *x, double p)
{
    if (p == 0.0) return tn_zeros_like(dy);
    return tn_mul(dy, tn_mul_scalar(tn_pow_scalar(x, p - 1.0), p));
}

enum { X = TNI_X(0), Y = TNI_Y };

#include "autograd/ops/functions.def" /* FUNCTION_LIST: more rows, as of activations */

#define UNARY_LIST(U)                                                                              \
    U(tn_neg, neg, PLAIN, KEEPS, "y = -x", "dx = -dy", 0, NONE, tn_neg(dy))                        \
    U(tn_abs, abs, PLAIN, KEEPS, "y = |x|", "dx = dy sign(x)", X, TNI_B_abs_grad,                  \
      tn_mul(dy, tni_sign(x)))                                                                     \
    U(tn_square, square, PLAIN, STEEP | KEEPS, "y = x^2", "dx = 2 x dy", X, TNI_B_square_grad,     \
      tn_mul_scalar(tn_mul(dy, x), 2.0))                                                           \
    U(tn_exp, exp, PLAIN, STEEP | FLOATS, "y = e^x", "dx = y dy", Y, TNI_B_mul, tn_mul(dy, y))     \
    U(tn_log, log, PLAIN, STEEP | FLOATS, "y = ln x", "dx = dy / x", X, TNI_B_div, tn_div(dy, x))  \
    U(tn_log1p, log1p, PLAIN, STEEP | FLOATS, "y = ln(1 + x)", "dx = dy / (1 + x)", X,             \
      TNI_B_log1p_grad, tn_div(dy, tn_add_scalar(x, 1.0)))                                         \
    U(tn_expm1, expm1, PLAIN, STEEP | FLOATS, "y = e^x - 1", "dx = (y + 1) dy", Y,                 \
      TNI_B_expm1_grad, tn_mul(dy, tn_add_scalar(y, 1.0)))                                         \
    U(tn_sqrt, sqrt, PLAIN, FLOATS, "y = x^(1/2)", "dx = dy / (2 y)", Y, TNI_B_sqrt_grad,          \
      tn_div(dy, tn_mul_scalar(y, 2.0)))                                                           \
    U(tn_rsqrt, rsqrt, PLAIN, STEEP | FLOATS, "y = x^(-1/2)", "dx = -y^3 dy / 2", Y,               \
      TNI_B_rsqrt_grad, tn_mul(tn_mul_scalar(dy, -0.5), tn_mul(y, tn_square(y))))                  \
    U(tn_reciprocal, reciprocal, PLAIN, STEEP | FLOATS, "y = 1/x", "dx = -y^2 dy", Y,              \
      TNI_B_reciprocal_grad, tn_neg(tn_mul(dy, tn_square(y))))                                     \
    U(tn_sin, sin, PLAIN, FLOATS, "y = sin x", "dx = dy cos x", X, TNI_B_sin_grad,                 \
      tn_mul(dy, tn_cos(x)))                                                                       \
    U(tn_cos, cos, PLAIN, FLOATS, "y = cos x", "dx = -dy sin x", X, TNI_B_cos_grad,                \
      tn_neg(tn_mul(dy, tn_sin(x))))                                                               \
    U(tn_tanh, tanh, PLAIN, FLOATS, "y = tanh x", "dx = (1 - y^2) dy", Y, TNI_B_tanh_grad,         \
      tn_mul(dy, tn_rsub_scalar(tn_square(y), 1.0)))                                               \
    U(tn_sigmoid, sigmoid, PLAIN, FLOATS, "y = 1 / (1 + e^-x)", "dx = y (1 - y) dy", Y,            \
      TNI_B_sigmoid_grad, tn_mul(dy, tn_mul(y, tn_rsub_scalar(y, 1.0))))                           \
    U(tn_erf, erf, PLAIN, FLOATS, "y = erf x", "dx = 2 / sqrt(pi) e^(-x^2) dy", X, TNI_B_erf_grad, \
      tn_mul(dy, tn_mul_scalar(tn_exp(tn_neg(tn_square(x))), 1.12837916709551257390)))             \
    U(tn_relu, relu, PLAIN, KEEPS, "y = max(x, 0)", "dx = y > 0 ? dy : 0", Y, TNI_B_relu_grad,     \
      tn_masked_fill(dy, tn_le_scalar(y, 0.0), 0.0))                                               \
    U(tn_leaky_relu, leaky_relu, SCALED, RECOMPUTE | FLOATS, "y = x > 0 ? x : slope x",            \
      "dx = x > 0 ? dy : slope dy", X, TNI_B_leaky_relu_grad,                                      \
      tn_where(tn_gt_scalar(x, 0.0), dy, tn_mul_scalar(dy, p[0])))                                 \
    U(tn_silu, silu, PLAIN, RECOMPUTE | FLOATS, "y = x sigmoid(x)",                                \
      "dx = s (1 + x (1 - s)) dy; where s = sigmoid(x)", X, TNI_B_silu_grad,                       \
      tn_mul(dy, silu_slope(x)))                                                                   \
    U(tn_clamp, clamp, BOUNDED, BOUNDS, "y = min(max(x, low), high)",                              \
      "dx = low <= x <= high ? dy : 0", X, TNI_B_clamp_grad,                                       \
      tn_masked_fill(dy, outside(x, p[0], p[1]), 0.0))                                             \
    U(tn_add_scalar, add_scalar, SCALED, SCALAR, "y = x + s", "dx = dy", 0, NONE, dy)              \
    U(tn_sub_scalar, sub_scalar, SCALED, SCALAR, "y = x - s", "dx = dy", 0, NONE, dy)              \
    U(tn_rsub_scalar, rsub_scalar, SCALED, SCALAR, "y = s - x", "dx = -dy", 0, NONE, tn_neg(dy))   \
    U(tn_mul_scalar, mul_scalar, SCALED, SCALAR, "y = s x", "dx = s dy", 0, NONE,                  \
      tn_mul_scalar(dy, p[0]))                                                                     \
    U(tn_div_scalar, div_scalar, SCALED, FLOATS, "y = x / s", "dx = dy / s", 0, NONE,              \
      tn_div_scalar(dy, p[0]))                                                                     \
    U(tn_pow_scalar, pow_scalar, SCALED, STEEP | SCALAR, "y = x^s", "dx = s x^(s-1) dy", X,        \
      TNI_B_pow_scalar_grad, pow_scalar_grad(dy, x, p[0]))                                         \
    U(tni_sign, sign_or_nan, PLAIN, CONSTANT | KEEPS, "y = x > 0 ? 1 : x < 0 ? -1 : 0 x", NULL, 0, \
      NONE, NULL)                                                                                  \
    U(tn_logical_not, logical_not, PLAIN, CONSTANT | TEST, "y = not x", NULL, 0, NONE, NULL)       \
    U(tn_isnan, isnan, PLAIN, CONSTANT | TEST, "y = x is NaN", NULL, 0, NONE, NULL)                \
    U(tn_isfinite, isfinite, PLAIN, CONSTANT | TEST, "y = x is neither NaN nor infinite", NULL, 0, \
      NONE, NULL)                                                                                  \
    U(tn_eq_scalar, eq_scalar, SCALED, CONSTANT | TEST, "y = x == s", NULL, 0, NONE, NULL)         \
    U(tn_ne_scalar, ne_scalar, SCALED, CONSTANT | TEST, "y = x != s", NULL, 0, NONE, NULL)         \
    U(tn_lt_scalar, lt_scalar, SCALED, CONSTANT | TEST, "y = x < s", NULL, 0, NONE, NULL)          \
    U(tn_le_scalar, le_scalar, SCALED, CONSTANT | TEST, "y = x <= s", NULL, 0, NONE, NULL)         \
    U(tn_gt_scalar, gt_scalar, SCALED, CONSTANT | TEST, "y = x > s", NULL, 0, NONE, NULL)          \
    U(tn_ge_scalar, ge_scalar, SCALED, CONSTANT | TEST, "y = x >= s", NULL, 0, NONE, NULL)         \
    FUNCTION_LIST(U)

#define DEFINE(tn_name, name_, form, kind_, formula_, gradient_, reads_, grad_, composed_)         \
    static tn_tensor *name_##_composed(tn_tensor *dy, tn_tensor *x, tn_tensor *y, const double *p) \
    {                                                                                              \
        (void)dy, (void)x, (void)y, (void)p;                                                       \
        return composed_;                                                                          \
    }                                                                                              \
    static const unary_op op_##name_ = {                                                           \
        .op = { TNI_OP_FIELDS(#name_, 1, formula_, gradient_, unary_shape, unary_forward,          \
                              ((kind_)&CONSTANT) ? NULL : unary_backward, .dtypes = TNI_ANY_DTYPE, \
                              .autocast = (kind_)&STEEP ? TNI_CAST_F32 : TNI_CAST_AUTO,            \
                              .constants = "s|slope|alpha|lambda|beta|low high",                   \
                              .recompute = ((kind_)&RECOMPUTE) ? 1 : 0, .reads = { reads_ }) },    \
        .function = TNI_U_##name_,                                                                 \
        .grad = grad_,                                                                             \
        .kind = (kind_)&KIND,                                                                      \
        .composed = name_##_composed,                                                              \
    };

UNARY_LIST(DEFINE)

#define PLAIN(tn_name, name)                                                                       \
    tn_tensor *tn_name(tn_tensor *x)                                                               \
    {                                                                                              \
        return tni_apply_formula(&op_##name.op, x, 0.0, 0.0);                                      \
    }
#define SCALED(tn_name, name)                                                                      \
    tn_tensor *tn_name(tn_tensor *x, double s)                                                     \
    {                                                                                              \
        return tni_apply_formula(&op_##name.op, x, s, 0.0);                                        \
    }
#define BOUNDED(tn_name, name)                                                                     \
    tn_tensor *tn_name(tn_tensor *x, double low, double high)                                      \
    {                                                                                              \
        bool integral;                                                                             \
        if (tni_check_bounds(#tn_name, low, high, TN_F32, &integral) != TN_OK) return NULL;        \
        return tni_apply_formula(&op_##name.op, x, low, high);                                     \
    }
#define DEFINE_FUNCTION(tn_name, name, form, kind, formula, gradient, reads, grad, composed)       \
    form(tn_name, name)

UNARY_LIST(DEFINE_FUNCTION)

tn_status tni_check_bounds(const char *function, double low, double high, tn_dtype dtype,
                           bool *integral)
{
    bool below = low == -(double)INFINITY, above = high == (double)INFINITY;
    if (!(low <= high))
        return tni_error(TN_E_INVALID, "%s: low %g, high %g: want low <= high", function, low,
                         high);
    *integral = (below || tni_is_whole(low)) && (above || tni_is_whole(high));
    if (!*integral ||
        ((low <= 0.0 || tni_fits(low, dtype)) && (high >= 0.0 || tni_fits(high, dtype))))
        return TN_OK;
    return tni_error(TN_E_INVALID, "%s: low %g, high %g: want bounds between which %s has a value",
                     function, low, high, tn_dtype_name(dtype));
}
