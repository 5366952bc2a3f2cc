/*
 * triangle.c - tril, triu: one triangle of the last two axes, zero elsewhere.
 *
 * What is blocked depends on j - i alone: a vector of m + n - 1 values, and row i of the mask is
 * that vector from position m - 1 - i on. So the mask is a copy of the vector, read with strides -1
 * and 1, on x's device. Linear in x; dx is the same triangle of dy.
 */
#include "autograd/ops/elementwise.h"

typedef struct triangle_args {
    int64_t k; /* -m..n */
    bool lower;
} triangle_args;

/* The blocked values of j - i, for j - i = t - (m - 1), t = 0..m + n - 2: those above k (lower), or
 * below it. */
static tn_status blocked(const tni_call *c, int64_t m, const tni_array *vector)
{
    const triangle_args *args = c->args;
    const tni_backend *backend = tni_backend_of(c->in[0]);
    tni_array part = *vector;
    int64_t t = TNI_MAX(args->k + m - (args->lower ? 0 : 1), 0);
    int64_t from = TNI_MIN(t, part.size[0]);
    tni_number before = { .f = !args->lower, .i = !args->lower };
    tni_number behind = { .f = args->lower, .i = args->lower };
    tn_status status = backend->fill(&(tni_fill){ .y = part, .value = behind });
    part.size[0] = from;
    return status ? status : backend->fill(&(tni_fill){ .y = part, .value = before });
}

static tn_status triangle_forward(tni_call *c)
{
    const tn_tensor *x = c->in[0];
    const tni_backend *backend = tni_backend_of(x);
    int row = x->shape.rank - 2;
    int64_t m = x->shape.size[row], n = x->shape.size[row + 1];
    if (tni_shape_numel(&x->shape) == 0) return TN_OK;
    tn_tensor *values = tni_create("", TN_SHAPE(m + n - 1), TN_BOOL, c->device);
    tn_tensor *mask = tni_create("", TN_SHAPE(m, n), TN_BOOL, c->device);
    if (!values || !mask) return tni_pending();
    tni_array vector = tni_array_of(values), rows = tni_array_of(mask), from = rows;
    from.data = (char *)vector.data + (m - 1);
    from.stride[0] = -1;
    TNI_TRY(blocked(c, m, &vector));
    TNI_TRY(backend->copy(&(tni_copy){ .y = rows, .x = from }));
    return backend->binary(
        &(tni_binary){ TNI_B_masked_fill, .y = tni_array_of(c->out[0]), .a = tni_array_of(x),
                       .b = tni_array_expand(mask, &x->shape), .p = (double[]){ 0 } });
}

static tn_tensor *triangle(const tn_op *op, bool lower, const char *f, tn_tensor *x, int64_t k)
{
    if (!x) return tni_poisoned(f, "x");
    if (tni_none(x) || x->shape.rank < 2)
        return tni_fail(TN_E_SHAPE, "%s: x %s: want at least two axes", f, tni_text(x));
    int64_t m = x->shape.size[x->shape.rank - 2], n = x->shape.size[x->shape.rank - 1];
    triangle_args args = { TNI_MIN(TNI_MAX(k, -m), n), lower };
    return tni_apply(op, &args, sizeof args, 1, &x);
}

#define TRIANGLE(tn_name, name_, lower, holds)                                                     \
    TNI_OP(name_, 1, "y[i,j] = " holds " ? x[i,j] : 0", "dx[i,j] = " holds " ? dy[i,j] : 0",       \
           tni_shape_like_first, triangle_forward, tni_transposed, .dtypes = TNI_ANY_DTYPE,        \
           .transpose = &op_##name_)                                                               \
    tn_tensor *tn_name(tn_tensor *x, int64_t k)                                                    \
    {                                                                                              \
        return triangle(&op_##name_, lower, #tn_name, x, k);                                       \
    }
TRIANGLE(tn_tril, tril, true, "j - i <= k")
TRIANGLE(tn_triu, triu, false, "j - i >= k")
