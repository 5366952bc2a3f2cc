/*
 * binary.c - the family of functions of two tensors that broadcast and promote: z = f(a, b).
 *
 * Comparisons and logic give bool, and no gradient: operands are compared in the dtype they promote
 * to, anything but 0 is true, NaN equals nothing and is neither less nor greater. At a tie of
 * minimum and maximum each gets half of dy; NaN wins over numbers. The engine sums gradients over
 * what was broadcast and casts them to the inputs' dtypes.
 */
#include "autograd/ops/elementwise.h"

static tn_status promoting_shape(tni_call *c)
{
    const tni_binary_op *op = (const tni_binary_op *)c->op;
    tn_dtype dtype = tni_result_dtype(c->in[0], c->in[1]);
    bool real = op->function == TNI_B_div || op->function == TNI_B_lerp;
    if (real && !tn_dtype_is_float(dtype)) dtype = TN_F32;
    c->out_spec[0].dtype = op->function >= TNI_B_PREDICATES ? TN_BOOL : dtype;
    return tni_broadcast_inputs(c, 0, 1, &c->out_spec[0].shape);
}

static tn_status sub_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = g->dy;
    if (g->need[1]) g->dx[1] = tn_neg(g->dy);
    return TN_OK;
}

/* Whether input i's gradient is the last one, after which dy is not read. */
static bool is_last(const tni_grad *g, int i)
{
    return i == 1 || !g->need[1];
}

static tn_status mul_backward(tni_grad *g)
{
    for (int i = 0; i < 2; i++) {
        tn_tensor *other = g->x[1 - i];
        if (!g->need[i]) continue;
        g->dx[i] = tni_composed()
                       ? tn_mul(g->dy, other)
                       : tni_fused2(TNI_B_mul, g->dy, other, NULL, g->out, is_last(g, i));
    }
    return TN_OK;
}

static tn_status div_backward(tni_grad *g)
{
    tn_tensor *b = g->x[1];
    if (g->need[0]) g->dx[0] = tn_div(g->dy, b);
    if (g->need[1])
        g->dx[1] = tni_composed() ? tn_neg(tn_div(tn_mul(g->dy, g->y), b))
                                  : tni_fused3(TNI_T_div_grad, g->dy, b, g->y, NULL, g->out, true);
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
    tn_tensor *a = g->x[0];
    tn_tensor *b = g->x[1];
    if (g->need[0])
        g->dx[0] = tni_composed()
                       ? pow_base_composed(g, a, b)
                       : tni_fused3(TNI_T_pow_base_grad, g->dy, a, b, NULL, g->out, is_last(g, 0));
    if (g->need[1])
        g->dx[1] = tni_composed()
                       ? pow_exponent_composed(g, a, b)
                       : tni_fused3(TNI_T_pow_exponent_grad, g->dy, a, g->y, NULL, g->out, true);
    return TN_OK;
}

static tn_status extreme_backward(tni_grad *g)
{
    bool largest = ((const tni_binary_op *)g->op)->function == TNI_B_maximum;
    int fused = largest ? TNI_T_maximum_grad : TNI_T_minimum_grad;
    for (int i = 0; i < 2; i++) {
        tn_tensor *own = g->x[i], *other = g->x[1 - i];
        if (!g->need[i]) continue;
        if (tni_composed()) {
            tn_tensor *loses = largest ? tn_lt(own, other) : tn_gt(own, other);
            g->dx[i] = tn_where(tn_eq(own, other), tn_mul_scalar(g->dy, 0.5),
                                tn_masked_fill(g->dy, loses, 0.0));
        } else {
            g->dx[i] = tni_fused3(fused, g->dy, own, other, NULL, g->out, is_last(g, i));
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
    F(tn_eq, eq, PLAIN, "y = a == b", NULL, 0, 0, NULL)                                            \
    F(tn_ne, ne, PLAIN, "y = a != b", NULL, 0, 0, NULL)                                            \
    F(tn_lt, lt, PLAIN, "y = a < b", NULL, 0, 0, NULL)                                             \
    F(tn_le, le, PLAIN, "y = a <= b", NULL, 0, 0, NULL)                                            \
    F(tn_gt, gt, PLAIN, "y = a > b", NULL, 0, 0, NULL)                                             \
    F(tn_ge, ge, PLAIN, "y = a >= b", NULL, 0, 0, NULL)                                            \
    F(tn_logical_and, logical_and, PLAIN, "y = a and b", NULL, 0, 0, NULL)                         \
    F(tn_logical_or, logical_or, PLAIN, "y = a or b", NULL, 0, 0, NULL)                            \
    F(tn_logical_xor, logical_xor, PLAIN, "y = a xor b", NULL, 0, 0, NULL)

#define DEFINE(tn_name, name_, form, formula_, gradient_, reads_a, reads_b, backward_)             \
    static const tni_binary_op op_##name_ = {                                                      \
        .op = { .name = #name_,                                                                    \
                .formula = formula_,                                                               \
                .gradient = gradient_,                                                             \
                .arity = 2,                                                                        \
                .dtypes = TNI_ANY_DTYPE,                                                           \
                .autocast = TNI_B_##name_ == TNI_B_pow /* steep */ ? TNI_CAST_F32 : TNI_CAST_AUTO, \
                .reads = { reads_a, reads_b },                                                     \
                .shape = promoting_shape,                                                          \
                .forward = tni_binary_forward,                                                     \
                .backward = backward_ },                                                           \
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
    return tni_apply(&op_lerp.op, &(tni_formula_args){ { weight, 0.0 } }, sizeof(tni_formula_args),
                     2, (tn_tensor *[]){ a, b });
}
