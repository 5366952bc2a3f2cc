/*
 * rotary.c - pairs of elements of a row turned by angles: (a, b) -> (a c - b s, b c + a s).
 *
 * The transpose of a rotation turns by the negative angle, so dx is the same op of dy. Source: Su
 * et al., RoFormer (2021), eq. 34.
 */
#include "autograd/op.h"

typedef struct rotary_args {
    bool interleaved, back; /* back: by the negative angles */
} rotary_args;

static tn_status rotary_shape(tni_call *c)
{
    const tn_tensor *x = c->in[0], *cosine = c->in[1], *sine = c->in[2];
    const int rank = x->shape.rank;
    tn_shape want = x->shape;
    if (rank < 2) return tni_op_error(c, TN_E_SHAPE, "x %s: want [..., T, D]", tni_text(x));
    if (cosine->dtype != sine->dtype)
        return tni_op_error(c, TN_E_DTYPE, "cosine is %s, sine is %s: want one dtype",
                            tn_dtype_name(cosine->dtype), tn_dtype_name(sine->dtype));
    want.size[rank - 1] = cosine->shape.rank ? cosine->shape.size[cosine->shape.rank - 1] : -1;
    if (!tni_shape_equal(&cosine->shape, &sine->shape) || want.size[rank - 1] < 0 ||
        want.size[rank - 1] > x->shape.size[rank - 1] / 2 ||
        !tni_broadcasts_to(&cosine->shape, &want))
        return tni_op_error(c, TN_E_SHAPE,
                            "x %s, cosine %s, sine %s: want x [..., T, D], two tables [T, R/2] or "
                            "with more axes that broadcast to x's, R <= D",
                            tni_text(x), tni_text(cosine), tni_text(sine));
    tni_shape_like_first(c);
    tni_lay_out_like(x, &c->out_spec[0]);
    return TN_OK;
}

/* t itself if its last axis has no gaps. */
static tn_tensor *rows(tn_tensor *t)
{
    const int last = t->shape.rank - 1;
    return t->shape.size[last] < 2 || t->stride[last] == 1 ? t : tni_dense(t);
}

static tn_status rotary_forward(tni_call *c)
{
    const rotary_args *args = c->args;
    tn_tensor *x = rows(c->in[0]), *cosine = rows(c->in[1]), *sine = rows(c->in[2]);
    if (!x || !cosine || !sine) return tni_pending();
    tn_shape angles = x->shape;
    angles.size[angles.rank - 1] = cosine->shape.size[cosine->shape.rank - 1];
    const tni_rotary a = { .y = tni_array_of(c->out[0]),
                           .x = tni_array_of(x),
                           .cosine = tni_array_expand(cosine, &angles),
                           .sine = tni_array_expand(sine, &angles),
                           .interleaved = args->interleaved,
                           .back = args->back };
    return tni_backend_of(x)->rotary(&a);
}

static tn_status rotary_backward(tni_grad *g)
{
    rotary_args args = *(const rotary_args *)g->args;
    tn_tensor *in[] = { g->dy, g->x[1], g->x[2] };
    args.back = !args.back;
    if (g->need[0]) g->dx[0] = tni_apply(g->op, &args, sizeof args, 3, in);
    return TN_OK;
}

TNI_OP(rotary, 3, "y = (a c - b s, b c + a s) of pairs (a, b) of x",
       "dx = (a c + b s, b c - a s); where (a, b) are pairs of dy", rotary_shape, rotary_forward,
       rotary_backward, .dtypes = TNI_MIXED_FLOAT, .autocast = TNI_CAST_KEEP,
       .reads = { TNI_X(1) | TNI_X(2), 0, 0 })

tn_tensor *tn_rotary(tn_tensor *x, tn_tensor *cosine, tn_tensor *sine, bool interleaved)
{
    const rotary_args args = { .interleaved = interleaved };
    return tni_apply(&op_rotary, &args, sizeof args, 3, (tn_tensor *[]){ x, cosine, sine });
}
