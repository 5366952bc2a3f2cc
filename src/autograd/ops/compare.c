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

#define COMPARE(tn_name, name_, formula_)                                                          \
    static const tni_binary_op op_##name_ = {                                                      \
        .op = { .name = #name_,                                                                    \
                .formula = formula_,                                                               \
                .arity = 2,                                                                        \
                .dtypes = TNI_ANY_DTYPE,                                                           \
                .shape = compare_shape,                                                            \
                .forward = tni_binary_forward },                                                   \
        .function = TNI_B_##name_,                                                                 \
    };                                                                                             \
    tn_tensor *tn_name(tn_tensor *a, tn_tensor *b)                                                 \
    {                                                                                              \
        return tni_apply(&op_##name_.op, NULL, 0, 2, (tn_tensor *[]){ a, b });                     \
    }

COMPARE(tn_eq, eq, "y = a == b")
COMPARE(tn_ne, ne, "y = a != b")
COMPARE(tn_lt, lt, "y = a < b")
COMPARE(tn_le, le, "y = a <= b")
COMPARE(tn_gt, gt, "y = a > b")
COMPARE(tn_ge, ge, "y = a >= b")
COMPARE(tn_logical_and, logical_and, "y = a and b")
COMPARE(tn_logical_or, logical_or, "y = a or b")
COMPARE(tn_logical_xor, logical_xor, "y = a xor b")

/* ---- one tensor ------------------------------------------------------------------------------ */

typedef struct test_op {
    tn_op op;
    int function;
} test_op;

static tn_status test_shape(tni_call *c)
{
    return tni_result(c, TN_BOOL, &c->in[0]->shape);
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

static tn_status test_forward(tni_call *c)
{
    const test_op *op = (const test_op *)c->op;
    const tni_formula_args *args = c->args;
    tni_array x = tni_array_of(c->in[0]);
    tni_array y = tni_array_of(c->out[0]);
    double p[2] = { tni_rounded(args->p[0], c->in[0]->dtype), 0.0 };
    bool value;

    if (!tn_dtype_is_float(c->in[0]->dtype) && !tni_is_whole(p[0]) &&
        all_alike(op->function, p, &value))
        return tni_backend_of(c->out[0])->fill(&(tni_fill){ .y = y, .value = { value, value } });
    return tni_backend_of(c->in[0])->unary(&(tni_unary){ op->function, .y = y, .x = x, .p = p });
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
#define TEST(tn_name, name, formula)                                                               \
    TEST_OP(name, formula)                                                                         \
    tn_tensor *tn_name(tn_tensor *x)                                                               \
    {                                                                                              \
        return tni_apply_formula(&op_##name.op, x, 0.0, 0.0);                                      \
    }
#define COMPARE_SCALAR(tn_name, name, formula)                                                     \
    TEST_OP(name, formula)                                                                         \
    tn_tensor *tn_name(tn_tensor *x, double s)                                                     \
    {                                                                                              \
        return tni_apply_formula(&op_##name.op, x, s, 0.0);                                        \
    }

TEST(tn_logical_not, logical_not, "y = not x")
TEST(tn_isnan, isnan, "y = x is NaN")
TEST(tn_isfinite, isfinite, "y = x is neither NaN nor infinite")
COMPARE_SCALAR(tn_eq_scalar, eq_scalar, "y = x == s")
COMPARE_SCALAR(tn_ne_scalar, ne_scalar, "y = x != s")
COMPARE_SCALAR(tn_lt_scalar, lt_scalar, "y = x < s")
COMPARE_SCALAR(tn_le_scalar, le_scalar, "y = x <= s")
COMPARE_SCALAR(tn_gt_scalar, gt_scalar, "y = x > s")
COMPARE_SCALAR(tn_ge_scalar, ge_scalar, "y = x >= s")
