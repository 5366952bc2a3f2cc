/*
 * compare.c - comparisons and logic: bool results, no gradient.
 *
 * Operands are compared in the dtype they promote to; a C scalar in the tensor's own. Anything but
 * 0 is true. NaN equals nothing and is neither less nor greater.
 */
#include "autograd/ops/elementwise.h"

static tn_status compare_shape(tni_call *c)
{
    c->out_spec[0].dtype = TN_BOOL;
    return tni_broadcast_inputs(c, 0, 1, &c->out_spec[0].shape);
}

#define COMPARE(name_, formula_)                                                                   \
    static const tni_binary_op op_##name_ = {                                                      \
        .op = { .name = #name_,                                                                    \
                .formula = formula_,                                                               \
                .arity = 2,                                                                        \
                .dtypes = TNI_ANY_DTYPE,                                                           \
                .shape = compare_shape,                                                            \
                .forward = tni_binary_forward },                                                   \
        .function = TNI_B_##name_,                                                                 \
    };                                                                                             \
    tn_tensor *tn_##name_(tn_tensor *a, tn_tensor *b)                                              \
    {                                                                                              \
        return tni_apply(&op_##name_.op, NULL, 0, 2, (tn_tensor *[]){ a, b });                     \
    }

COMPARE(eq, "y = a == b")
COMPARE(ne, "y = a != b")
COMPARE(lt, "y = a < b")
COMPARE(le, "y = a <= b")
COMPARE(gt, "y = a > b")
COMPARE(ge, "y = a >= b")
COMPARE(logical_and, "y = a and b")
COMPARE(logical_or, "y = a or b")
COMPARE(logical_xor, "y = a xor b")

/* ---- one tensor ------------------------------------------------------------------------------ */

typedef struct test_op {
    tn_op op;
    int function;
} test_op;

static tn_status test_shape(tni_call *c)
{
    c->out_spec[0].dtype = TN_BOOL;
    c->out_spec[0].shape = c->in[0]->shape;
    return TN_OK;
}

static tn_status test_forward(tni_call *c)
{
    const test_op *op = (const test_op *)c->op;
    const tni_formula_args *args = c->args;
    tni_array x = tni_array_of(c->in[0]);
    tni_array y = tni_array_of(c->out[0]);
    double p[2] = { args->p[0], 0.0 };

    /* Between integers a fraction equals nothing, x < s is x < ceil(s), x > s is x > floor(s). */
    if (!tn_dtype_is_float(c->in[0]->dtype) && !tni_is_integral(p[0])) {
        if (op->function == TNI_U_eq_scalar || p[0] != p[0]) {
            return TNI_KERNEL(c->op->name, c->out[0], fill, &y, (tni_number){ 0.0, 0 });
        }
        p[0] = op->function == TNI_U_lt_scalar ? ceil(p[0]) : floor(p[0]);
    }
    return TNI_KERNEL(c->op->name, c->in[0], unary, op->function, &y, &x, p);
}

#define TEST_OP(name_, formula_)                                                                   \
    static const test_op op_##name_ = {                                                            \
        .op = { .name = #name_,                                                                    \
                .formula = formula_,                                                               \
                .arity = 1,                                                                        \
                .dtypes = TNI_ANY_DTYPE,                                                           \
                .shape = test_shape,                                                               \
                .forward = test_forward },                                                         \
        .function = TNI_U_##name_,                                                                 \
    };

TEST_OP(logical_not, "y = not x")
TEST_OP(isnan, "y = x is NaN")
TEST_OP(isfinite, "y = x is neither NaN nor infinite")
TEST_OP(eq_scalar, "y = x == s")
TEST_OP(lt_scalar, "y = x < s")
TEST_OP(gt_scalar, "y = x > s")

static tn_tensor *apply(const test_op *op, tn_tensor *x, double s)
{
    return tni_apply(&op->op, &(tni_formula_args){ { s, 0.0 } }, sizeof(tni_formula_args), 1,
                     (tn_tensor *[]){ x });
}

tn_tensor *tn_logical_not(tn_tensor *x)
{
    return apply(&op_logical_not, x, 0.0);
}

tn_tensor *tn_isnan(tn_tensor *x)
{
    return apply(&op_isnan, x, 0.0);
}

tn_tensor *tn_isfinite(tn_tensor *x)
{
    return apply(&op_isfinite, x, 0.0);
}

tn_tensor *tn_eq_scalar(tn_tensor *x, double s)
{
    return apply(&op_eq_scalar, x, s);
}

tn_tensor *tn_lt_scalar(tn_tensor *x, double s)
{
    return apply(&op_lt_scalar, x, s);
}

tn_tensor *tn_gt_scalar(tn_tensor *x, double s)
{
    return apply(&op_gt_scalar, x, s);
}
