/*
 * binary.c - the family of functions of two tensors that broadcast and promote: z = f(a, b).
 *
 * Comparisons and logic give bool, and no gradient: operands are compared in the dtype they promote
 * to, anything but 0 is true, NaN equals nothing and is neither less nor greater. At a tie of
 * minimum and maximum each gets half of dy; NaN wins over numbers. The engine sums gradients over
 * what was broadcast and casts them to the inputs' dtypes.
 */
#include "autograd/ops/elementwise.h"

#define MARKED(name, parameters, cost, formula) [TNI_B_##name] = true,
static const bool on_integers[TNI_B_COUNT] = { TNI_BINARY_INT_LIST(MARKED)
                                                   TNI_BINARY_PREDICATE_LIST(MARKED) };

static tn_status promoting_shape(tni_call *c)
{
    const tni_binary_op *op = (const tni_binary_op *)c->op;
    tn_dtype dtype = tni_result_dtype(c->in[0], c->in[1]);
    if (!on_integers[op->function] && !tn_dtype_is_float(dtype)) dtype = TN_F32;
    c->out_spec[0].dtype = op->function >= TNI_B_PREDICATES ? TN_BOOL : dtype;
    return tni_broadcast_inputs(c, 0, 1, &c->out_spec[0].shape);
}

static tn_status sub_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = g->dy;
    if (g->need[1]) g->dx[1] = tn_neg(g->dy);
    return TN_OK;
}

/* Input i's gradient by one kernel of dy, u and v (NULL: of dy and u). */
static tn_tensor *fused(const tni_grad *g, int i, int function, tn_tensor *u, tn_tensor *v)
{
    bool last = i == 1 || !g->need[1]; /* then dy is not read again */
    if (!v) return tni_fused2(function, g->dy, u, NULL, g->out, last);
    return tni_fused3(function, g->dy, u, v, NULL, g->out, last);
}

static tn_status mul_backward(tni_grad *g)
{
    for (int i = 0; i < 2; i++)
        if (g->need[i])
            g->dx[i] = tni_composed() ? tn_mul(g->dy, g->x[1 - i])
                                      : fused(g, i, TNI_B_mul, g->x[1 - i], NULL);
    return TN_OK;
}

static tn_status div_backward(tni_grad *g)
{
    tn_tensor *b = g->x[1];
    if (g->need[0]) g->dx[0] = tn_div(g->dy, b);
    if (g->need[1])
        g->dx[1] = tni_composed() ? tn_neg(tn_div(tn_mul(g->dy, g->y), b))
                                  : fused(g, 1, TNI_T_div_grad, b, g->y);
    return TN_OK;
}

/* With the base replaced by 1 where it is 0, so that neither ln 0 nor its slope is formed. */
static tn_tensor *pow_exponent_composed(const tni_grad *g, tn_tensor *a, tn_tensor *b)
{
    tn_tensor *zero = tn_logical_and(tn_eq_scalar(a, 0.0), tn_ge_scalar(b, 0.0));
    tn_tensor *safe = tn_where(zero, tn_ones_like(a), a);
    return tn_masked_fill(tn_mul(g->dy, tn_mul(g->y, tn_log(safe))), zero, 0.0);
}

/* Where b = 0 the slope b a^(b-1) is 0, but changes with b. It is left out only where 1 / a is no
 * number: at 0^0, NaN^0 and near 0. */
static tn_tensor *pow_base_composed(const tni_grad *g, tn_tensor *a, tn_tensor *b)
{
    tn_tensor *finite = tn_lt_scalar(tn_abs(tn_reciprocal(a)), (double)INFINITY);
    tn_tensor *out = tn_logical_and(tn_eq_scalar(b, 0.0), tn_logical_not(finite));
    tn_tensor *slope = tn_mul(b, tn_pow(tn_masked_fill(a, out, 1.0), tn_sub_scalar(b, 1.0)));
    return tn_masked_fill(tn_mul(g->dy, slope), out, 0.0);
}

static tn_status pow_backward(tni_grad *g)
{
    tn_tensor *a = g->x[0], *b = g->x[1];
    if (g->need[0])
        g->dx[0] =
            tni_composed() ? pow_base_composed(g, a, b) : fused(g, 0, TNI_T_pow_base_grad, a, b);
    if (g->need[1])
        g->dx[1] = tni_composed() ? pow_exponent_composed(g, a, b)
                                  : fused(g, 1, TNI_T_pow_exponent_grad, a, g->y);
    return TN_OK;
}

static tn_status extreme_backward(tni_grad *g)
{
    bool largest = ((const tni_binary_op *)g->op)->function == TNI_B_maximum;
    int kernel = largest ? TNI_T_maximum_grad : TNI_T_minimum_grad;
    for (int i = 0; i < 2; i++) {
        tn_tensor *own = g->x[i], *other = g->x[1 - i];
        if (!g->need[i]) continue;
        if (tni_composed()) {
            tn_tensor *loses = largest ? tn_lt(own, other) : tn_gt(own, other);
            g->dx[i] = tn_where(tn_eq(own, other), tn_mul_scalar(g->dy, 0.5),
                                tn_masked_fill(g->dy, loses, 0.0));
        } else {
            g->dx[i] = fused(g, i, kernel, own, other);
        }
    }
    return TN_OK;
}

static tn_status lerp_backward(tni_grad *g)
{
    const tni_formula_args *args = g->args;
    if (g->need[0]) g->dx[0] = tn_mul_scalar(g->dy, 1.0 - args->p[0]);
    if (g->need[1]) g->dx[1] = tn_mul_scalar(g->dy, args->p[0]);
    return TN_OK;
}

/* The quotient's whole part is (a - y) / b, but for rounding. */
static tn_status remainder_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = g->dy;
    if (!g->need[1]) return TN_OK;
    TNI_TRY(tni_widen_grad(g));
    tn_tensor *whole = tn_round(tn_div(tn_sub(g->x[0], g->y), g->x[1]));
    g->dx[1] = tn_neg(tn_mul(g->dy, whole));
    return TN_OK;
}

static tn_status prelu_backward(tni_grad *g)
{
    tn_tensor *x = g->x[0], *weight = g->x[1], *dy = g->dy;
    if (g->need[0])
        g->dx[0] = tni_composed() ? tn_where(tn_gt_scalar(x, 0.0), dy, tn_mul(dy, weight))
                                  : fused(g, 0, TNI_T_prelu_grad, weight, x);
    if (g->need[1])
        g->dx[1] = tni_composed() ? tn_mul(dy, tn_clamp(x, -(double)INFINITY, 0.0))
                                  : fused(g, 1, TNI_B_prelu_weight_grad, x, NULL);
    return TN_OK;
}

static tn_status glu_backward(tni_grad *g)
{
    tn_tensor *a = g->x[0], *b = g->x[1], *gate = tni_composed() ? tn_sigmoid(b) : NULL;
    if (g->need[0]) g->dx[0] = gate ? tn_mul(g->dy, gate) : fused(g, 0, TNI_B_glu, b, NULL);
    if (g->need[1])
        g->dx[1] = gate ? tn_mul(tn_mul(g->dy, a), tn_mul(gate, tn_rsub_scalar(gate, 1.0)))
                        : fused(g, 1, TNI_T_glu_grad, a, b);
    return TN_OK;
}

TNI_DX(nan_to_num_backward, tn_mul(g->dy, tn_isfinite(g->x[0])))

enum { A = TNI_X(0), B = TNI_X(1) };

#define BINARY_LIST(F)                                                                             \
    F(tn_add, add, PLAIN, "y = a + b", "da = dy; db = dy", 0, 0, tni_passed_on)                    \
    F(tn_sub, sub, PLAIN, "y = a - b", "da = dy; db = -dy", 0, 0, sub_backward)                    \
    F(tn_mul, mul, PLAIN, "y = a b", "da = dy b; db = dy a", B, A, mul_backward)                   \
    F(tn_div, div, PLAIN, "y = a / b", "da = dy / b; db = -dy y / b", B, B | TNI_Y, div_backward)  \
    F(tn_pow, pow, PLAIN, "y = a^b", "da = dy b a^(b-1); db = dy y ln a", A | B, A | B | TNI_Y,    \
      pow_backward)                                                                                \
    F(tn_minimum, minimum, PLAIN, "y = min(a, b)",                                                 \
      "da = dy where a < b, half of it where equal; db likewise", A | B, A | B, extreme_backward)  \
    F(tn_maximum, maximum, PLAIN, "y = max(a, b)",                                                 \
      "da = dy where a > b, half of it where equal; db likewise", A | B, A | B, extreme_backward)  \
    F(tn_lerp, lerp, CHECKED, "y = a + w (b - a)", "da = (1 - w) dy; db = w dy", 0, 0,             \
      lerp_backward)                                                                               \
    F(tn_remainder, remainder, PLAIN, "y = a - b floor(a / b)", "da = dy; db = -floor(a / b) dy",  \
      0, A | B | TNI_Y, remainder_backward)                                                        \
    F(tn_prelu, prelu, CHECKED, "y = x > 0 ? x : w x",                                             \
      "dx = x > 0 ? dy : w dy; dw = x > 0 ? 0 : x dy", A | B, A, prelu_backward)                   \
    F(tn_glu, glu, CHECKED, "y = a sigmoid(b)",                                                    \
      "da = s dy; db = a s (1 - s) dy; where s = sigmoid(b)", B, A | B, glu_backward)              \
    F(tn_nan_to_num, nan_to_num, CHECKED, "y = x, or a number in place of NaN, inf and -inf",      \
      "dx = x is finite ? dy : 0", A, 0, nan_to_num_backward)                                      \
    F(tn_eq, eq, PLAIN, "y = a == b", NULL, 0, 0, NULL)                                            \
    F(tn_ne, ne, PLAIN, "y = a != b", NULL, 0, 0, NULL)                                            \
    F(tn_lt, lt, PLAIN, "y = a < b", NULL, 0, 0, NULL)                                             \
    F(tn_le, le, PLAIN, "y = a <= b", NULL, 0, 0, NULL)                                            \
    F(tn_gt, gt, PLAIN, "y = a > b", NULL, 0, 0, NULL)                                             \
    F(tn_ge, ge, PLAIN, "y = a >= b", NULL, 0, 0, NULL)                                            \
    F(tn_logical_and, logical_and, PLAIN, "y = a and b", NULL, 0, 0, NULL)                         \
    F(tn_logical_or, logical_or, PLAIN, "y = a or b", NULL, 0, 0, NULL)                            \
    F(tn_logical_xor, logical_xor, PLAIN, "y = a xor b", NULL, 0, 0, NULL)

/* pow is steep; tensor cores' layers have prelu behind them, as PyTorch's list says */
#define CAST_OF(function)                                                                          \
    ((function) == TNI_B_pow     ? TNI_CAST_F32                                                    \
     : (function) == TNI_B_prelu ? TNI_CAST_LOW                                                    \
                                 : TNI_CAST_AUTO)

#define DEFINE(tn_name, name_, form, formula_, gradient_, reads_a, reads_b, backward_)             \
    static const tni_binary_op op_##name_ = {                                                      \
        .op = { TNI_OP_FIELDS(#name_, 2, formula_, gradient_, promoting_shape, tni_binary_forward, \
                              backward_, .dtypes = TNI_ANY_DTYPE,                                  \
                              .autocast = CAST_OF(TNI_B_##name_),                                  \
                              .reads = { reads_a, reads_b }) },                                    \
        .function = TNI_B_##name_,                                                                 \
    };

#define PLAIN(tn_name, name)                                                                       \
    tn_tensor *tn_name(tn_tensor *a, tn_tensor *b)                                                 \
    {                                                                                              \
        return tni_apply(&op_##name.op, NULL, 0, 2, (tn_tensor *[]){ a, b });                      \
    }
#define CHECKED(tn_name, name) /* below, by hand */
#define DEFINE_FUNCTION(tn_name, name, form, formula, gradient, reads_a, reads_b, backward)        \
    form(tn_name, name)

BINARY_LIST(DEFINE)
BINARY_LIST(DEFINE_FUNCTION)

tn_tensor *tn_lerp(tn_tensor *a, tn_tensor *b, double weight)
{
    const tni_formula_args args = { { weight, 0.0 } };
    return tni_apply(&op_lerp.op, &args, sizeof args, 2, (tn_tensor *[]){ a, b });
}

tn_tensor *tn_prelu(tn_tensor *x, tn_tensor *weight)
{
    if (x && weight && !tni_none(x) && !tni_none(weight)) {
        int64_t n = tni_shape_numel(&weight->shape);
        int64_t channels = x->shape.rank > 1 ? x->shape.size[1] : 1;
        if (weight->shape.rank > 1 || (n != 1 && n != channels))
            return tni_fail(TN_E_SHAPE,
                            "tn_prelu: x %s, weight %s: want weight [1], or [%" PRId64
                            "], x's channels",
                            tni_text(x), tni_text(weight), channels);
        tn_shape shape = { .rank = n == 1 ? 0 : x->shape.rank - 1,
                           .size = { n, 1, 1, 1, 1, 1, 1 } };
        weight = tn_reshape(weight, shape);
    }
    return tni_apply(&op_prelu.op, NULL, 0, 2, (tn_tensor *[]){ x, weight });
}

tn_tensor *tn_glu(tn_tensor *x, int axis)
{
    if ((axis = tni_axis_in("tn_glu", x, axis)) < 0) return NULL;
    int64_t size = x->shape.size[axis];
    if (size % 2 != 0)
        return tni_fail(TN_E_SHAPE, "tn_glu: x %s: axis %d has size %" PRId64 ": want an even one",
                        tni_text(x), axis, size);
    tn_tensor *half[] = { x, x };
    if (size > 0 && tn_chunk(x, 2, axis, half, 2) != 2) return NULL;
    return tni_apply(&op_glu.op, NULL, 0, 2, half);
}

tn_tensor *tn_nan_to_num(tn_tensor *x, tn_nan_to_num_options o)
{
    if (!tni_present("tn_nan_to_num", "x", x)) return NULL;
    if (!tn_dtype_is_float(x->dtype)) return x;
    static const double largest[] = { [TN_F32] = 0x1.fffffep127,
                                      [TN_F64] = 0x1.fffffffffffffp1023,
                                      [TN_BF16] = 0x1.fep127,
                                      [TN_F16] = 65504.0 };
    double most = largest[x->dtype];
    tni_formula_args args = { { tni_given(o.posinf, o.use_posinf, most),
                                tni_given(o.neginf, o.use_neginf, -most) } };
    tn_tensor *nan = tn_full_as(TN_SCALAR, o.nan, x->dtype, x->storage->device);
    return tni_apply(&op_nan_to_num.op, &args, sizeof args, 2, (tn_tensor *[]){ x, nan });
}
