/*
 * where.c - choices by a bool tensor; lerp by a tensor of weights, which mixes.
 *
 * The side that was not chosen gets an exact 0 here. If it was computed with an infinite slope,
 * backward still makes NaN of it (0 * inf): choose before the function, not after.
 */
#include "autograd/ops/elementwise.h"

static tn_status wanted_bool(const tni_call *c, const char *what, const tn_tensor *t)
{
    if (t->dtype == TN_BOOL) return TN_OK;
    return tni_op_error(c, TN_E_DTYPE, "%s %s is %s: want bool", what, tni_text(t),
                        tn_dtype_name(t->dtype));
}

static const tn_op op_where;

/* The condition or the weight broadcasts to what the two others do. */
static tn_status shape_of_three(tni_call *c)
{
    const bool chooses = c->op == &op_where;
    const tn_tensor *third = c->in[chooses ? 0 : 2];
    const char *what = chooses ? "condition" : "weight";
    tni_spec *y = &c->out_spec[0];
    tn_shape both;
    TNI_TRY(chooses ? wanted_bool(c, what, third) : TN_OK);
    TNI_TRY(tni_broadcast_inputs(c, chooses, chooses + 1, &both));
    if (!tni_broadcast(&third->shape, &both, &y->shape))
        return tni_op_error(c, TN_E_SHAPE, "%s %s, choices %s: do not broadcast", what,
                            tni_text(third), tni_shape_text(&both));
    y->dtype = tni_result_dtype(c->in[chooses], c->in[chooses + 1]);
    return TN_OK;
}

static tn_status of_three(tni_call *c)
{
    tn_tensor *y = c->out[0];
    return tni_backend_of(y)->ternary(&(tni_ternary){
        c->op == &op_where ? TNI_T_where : TNI_T_lerp_by, .y = tni_array_of(y),
        .a = tni_array_expand(c->in[0], &y->shape), .b = tni_array_expand(c->in[1], &y->shape),
        .c = tni_array_expand(c->in[2], &y->shape) });
}

static tn_status where_backward(tni_grad *g)
{
    tn_tensor *condition = g->x[0];
    if (g->need[1]) g->dx[1] = tn_masked_fill(g->dy, tn_logical_not(condition), 0.0);
    if (g->need[2]) g->dx[2] = tn_masked_fill(g->dy, condition, 0.0);
    return TN_OK;
}

TNI_OP(where, 3, "y = condition ? a : b", "-; da = condition ? dy : 0; db = condition ? 0 : dy",
       shape_of_three, of_three, where_backward, .dtypes = TNI_ANY_DTYPE,
       .reads = { 0, TNI_X(0), TNI_X(0) })

tn_tensor *tn_where(tn_tensor *condition, tn_tensor *a, tn_tensor *b)
{
    return tni_apply(&op_where, NULL, 0, 3, (tn_tensor *[]){ condition, a, b });
}

static tn_status lerp_by_backward(tni_grad *g)
{
    if (g->need[0]) g->dx[0] = tn_mul(g->dy, tn_rsub_scalar(g->x[2], 1.0));
    if (g->need[1]) g->dx[1] = tn_mul(g->dy, g->x[2]);
    if (g->need[2]) g->dx[2] = tn_mul(g->dy, tn_sub(g->x[1], g->x[0]));
    return TN_OK;
}

TNI_OP(lerp_by, 3, "y = a + w (b - a)", "da = (1 - w) dy; db = w dy; dw = (b - a) dy",
       shape_of_three, of_three, lerp_by_backward, .autocast = TNI_CAST_KEEP,
       .reads = { TNI_X(2), TNI_X(2), TNI_X(0) | TNI_X(1) })

tn_tensor *tn_lerp_by(tn_tensor *a, tn_tensor *b, tn_tensor *weight)
{
    return tni_apply(&op_lerp_by, NULL, 0, 3, (tn_tensor *[]){ a, b, weight });
}

static tn_status masked_fill_shape(tni_call *c)
{
    tn_status status = wanted_bool(c, "mask", c->in[1]);
    c->out_spec[0].dtype = c->in[0]->dtype;
    return status ? status : tni_broadcast_inputs(c, 0, 1, &c->out_spec[0].shape);
}

TNI_DX(masked_fill_backward, tn_masked_fill(g->dy, g->x[1], 0.0))
static const tni_binary_op op_masked_fill = {
    .op = { TNI_OP_FIELDS("masked_fill", 2, "y = mask ? value : x", "dx = mask ? 0 : dy",
                          masked_fill_shape, tni_binary_forward, masked_fill_backward,
                          .dtypes = TNI_ANY_DTYPE, .reads = { TNI_X(1) }) },
    .function = TNI_B_masked_fill,
};

tn_tensor *tn_masked_fill(tn_tensor *x, tn_tensor *mask, double value)
{
    TNI_HOLD_TRAPS;
    tni_number v = { .f = value };
    if (x && !tni_none(x) && tni_number_in(__func__, value, x->dtype, &v) != TN_OK) return NULL;
    const tni_formula_args args = { { v.f, 0.0 } };
    return tni_apply(&op_masked_fill.op, &args, sizeof args, 2, (tn_tensor *[]){ x, mask });
}
