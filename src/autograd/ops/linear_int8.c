/*
 * linear_int8.c - y = x W^T + b over the last axis, W[o,i] = scale[o, i / group] q[o,i].
 *
 * q and scale are constants. The gradient of x is the same op, turned: y = x W; so it can be
 * differentiated again.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/rows.h"

typedef struct int8_args {
    int64_t group;
    bool turned;
} int8_args;

/* The power of two for which rows of n values have so many groups; 0: there is none. */
static int64_t group_of(int64_t n, int64_t groups)
{
    int64_t group = 16;
    while (group < n && (n - 1) / group + 1 > groups) group *= 2;
    return groups == (n > 0 ? (n - 1) / group + 1 : 0) ? group : 0;
}

static tn_status int8_shape(tni_call *c)
{
    const tn_shape *x = &c->in[0]->shape, *q = &c->in[1]->shape;
    const int8_args *args = c->args;
    tni_result(c, c->in[0]->dtype, x);
    c->out_spec[0].shape.size[x->rank - 1] = q->size[args->turned];
    return TN_OK;
}

static tn_status int8_forward(tni_call *c)
{
    const int8_args *args = c->args;
    const tn_tensor *x = c->in[0], *q = c->in[1];
    int64_t m = rows_count(&x->shape, 0, x->shape.rank - 1), out = q->shape.size[0];
    int64_t in = q->shape.size[1], groups = c->in[2]->shape.size[1];
    tni_linear_int8 a = { .group = args->group, .turned = args->turned };
    a.y = rows_array(c->out[0], 2, m, a.turned ? in : out, 0);
    a.x = rows_array(x, 2, m, a.turned ? out : in, 0);
    a.q = rows_array(q, 2, out, in, 0);
    a.scale = rows_array(c->in[2], 2, out, groups, 0);
    a.bias = rows_array(c->in[3], 1, out, 0, 0);
    return tni_backend_of(x)->linear_int8(&a);
}

static tn_tensor *int8_apply(tn_tensor *const *in, int8_args args);

static tn_status int8_backward(tni_grad *g)
{
    int8_args args = *(const int8_args *)g->args;
    args.turned = !args.turned;
    tn_tensor *dy = tn_to_dtype(g->dy, g->in[0].dtype);
    if (g->need[0]) g->dx[0] = int8_apply((tn_tensor *[]){ dy, g->x[1], g->x[2], TN_NONE }, args);
    if (g->need[3]) g->dx[3] = tn_sum(tni_as_rows(dy), (int[]){ 0 }, 1, false);
    return TN_OK;
}

static const tn_op op_linear_int8 = {
    .name = "linear_int8",
    .formula = "y_no = sum_i x_ni s_og q_oi + b_o; g the group of i",
    .gradient = "dx_ni = sum_o dy_no s_og q_oi; -; -; db = sum_n dy",
    .arity = 4,
    .optional = TNI_X(3),
    .dtypes = TNI_ANY_DTYPE,
    .autocast = TNI_CAST_KEEP,
    .reads = { TNI_X(1) | TNI_X(2) },
    .dense = TNI_ALL_X,
    .shape = int8_shape,
    .forward = int8_forward,
    .backward = int8_backward,
};

static tn_tensor *int8_apply(tn_tensor *const *in, int8_args args)
{
    return tni_apply(&op_linear_int8, &args, sizeof args, 4, in);
}

/* The group, or 0 and a message. */
static int64_t int8_check(tn_tensor *x, tn_tensor *q, tn_tensor *scale, tn_tensor *bias)
{
    static const char *const name[] = { "x", "q", "scale", "bias" };
    tn_tensor *const in[] = { x, q, scale, bias };
    for (int i = 0; i < 4; i++) {
        if (!in[i]) return tni_poisoned("tn_linear_int8", name[i]), 0;
        bool fits = tni_none(in[i]) ? i == 3
                    : i == 1        ? in[i]->dtype == TN_U8
                                    : tn_dtype_is_float(in[i]->dtype);
        if (!fits)
            return tni_error(TN_E_DTYPE, "tn_linear_int8: %s is %s: want %s", name[i],
                             tni_none(in[i]) ? "TN_NONE" : tn_dtype_name(in[i]->dtype),
                             i == 1 ? "u8" : "a floating dtype"),
                   0;
    }
    int last = x->shape.rank - 1;
    bool fit =
        last >= 0 && q->shape.rank == 2 && x->shape.size[last] == q->shape.size[1] &&
        scale->shape.rank == 2 && scale->shape.size[0] == q->shape.size[0] &&
        (tni_none(bias) || (bias->shape.rank == 1 && bias->shape.size[0] == q->shape.size[0]));
    int64_t group = fit ? group_of(q->shape.size[1], scale->shape.size[1]) : 0;
    if (group == 0)
        tni_error(TN_E_SHAPE,
                  "tn_linear_int8: x %s, q %s, scale %s, bias %s: want x [..., in], q [out, in], "
                  "scale [out, in / group], bias [out]; group a power of two from 16 on",
                  tni_text(x), tni_text(q), tni_text(scale),
                  tni_none(bias) ? "TN_NONE" : tni_text(bias));
    return group;
}

tn_tensor *tn_linear_int8(tn_tensor *x, tn_tensor *q, tn_tensor *scale, tn_tensor *bias)
{
    int8_args args = { .group = int8_check(x, q, scale, bias) };
    if (args.group == 0) return NULL;
    if (tni_autocasting != TN_F32 && x->dtype != TN_F64) x = tn_to_dtype(x, tni_autocasting);
    if (!x) return NULL;
    scale = tn_to_dtype(tn_detach(scale), TN_F32);
    if (!tni_none(bias)) bias = tn_to_dtype(bias, x->dtype);
    return int8_apply((tn_tensor *[]){ x, q, scale, bias }, args);
}
