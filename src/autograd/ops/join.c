/*
 * join.c - cat and stack.
 *
 *   cat: y = x_0, x_1, ... one after another along an axis;  dx_k = the k-th slice of dy (a view)
 *   stack: cat along a new axis.
 */
#include "autograd/ops/shared.h"

static tn_status cat_shape(tni_call *c)
{
    int axis = *(const int *)c->args;
    tni_spec *y = c->out_spec;
    y->dtype = c->in[0]->dtype;
    y->shape = c->in[0]->shape;
    for (int k = 1; k < c->n_in; k++) {
        const tn_tensor *x = c->in[k];
        bool fits = x->shape.rank == y->shape.rank;
        for (int i = 0; i < y->shape.rank && fits; i++)
            fits = i == axis || x->shape.size[i] == y->shape.size[i];
        if (!fits)
            return tni_op_error(c, TN_E_SHAPE,
                                "x[%d] is %s, x[0] is %s: want equal sizes but along axis %d", k,
                                tni_text(x), tni_text(c->in[0]), axis);
        if (__builtin_add_overflow(y->shape.size[axis], x->shape.size[axis], &y->shape.size[axis]))
            return tni_op_error(c, TN_E_SHAPE, "axis %d overflows: want a size below 2^63", axis);
        y->dtype = tni_promote(y->dtype, x->dtype);
    }
    return TN_OK;
}

static tn_status cat_forward(tni_call *c)
{
    int axis = *(const int *)c->args;
    const tni_backend *backend = tni_backend_of(c->out[0]);
    const tni_array y = tni_array_of(c->out[0]);
    int64_t start = 0;
    for (int k = 0; k < c->n_in; k++) {
        tni_array x = tni_array_of(c->in[k]);
        tni_array part = rows_along(y, axis, start, x.size[axis]);
        TNI_TRY(backend->copy(&(tni_copy){ .y = part, .x = x }));
        start += x.size[axis];
    }
    return TN_OK;
}

static tn_status cat_backward(tni_grad *g)
{
    int axis = *(const int *)g->args;
    int64_t start = 0;
    for (int k = 0; k < g->n_in; k++) {
        int64_t n = g->in[k].shape.size[axis];
        if (g->need[k]) g->dx[k] = tn_narrow(g->dy, axis, start, n);
        start += n;
    }
    return TN_OK;
}

TNI_OP(cat, -1, "y = x_0, x_1, ... along an axis", "dx_i = the part of dy that came from x_i",
       cat_shape, cat_forward, cat_backward, .dtypes = TNI_ANY_DTYPE)

/* Whether x is a list of n tensors, of which the first is there. */
static bool is_list(const char *function, tn_tensor *const *x, int n)
{
    if (x && n >= 1) return tni_present(function, "x[0]", x[0]);
    return tni_false(tni_error(TN_E_INVALID, "%s: %d tensors%s: want 1 or more, and their array",
                               function, n, x ? "" : " in NULL"));
}

tn_tensor *tn_cat(tn_tensor *const *x, int n, int axis)
{
    if (!is_list("tn_cat", x, n)) return NULL;
    if (x[0]->shape.rank == 0)
        return tni_fail(TN_E_SHAPE,
                        "tn_cat: x[0] is a single value: want tensors with axes (tn_stack joins "
                        "values)");
    if ((axis = tni_axis("tn_cat", axis, x[0]->shape.rank)) < 0) return NULL;
    return tni_apply(&op_cat, &axis, sizeof axis, n, x);
}

tn_tensor *tn_stack(tn_tensor *const *x, int n, int axis)
{
    if (!is_list("tn_stack", x, n)) return NULL;
    if ((axis = tni_axis("tn_stack", axis, x[0]->shape.rank + 1)) < 0) return NULL;
    TNI_ITEMS(tn_tensor *, parts, n);
    if (!parts) return NULL;
    for (int k = 0; k < n; k++) {
        if (x[k] && !tni_shape_equal(&x[k]->shape, &x[0]->shape))
            return tni_fail(TN_E_SHAPE, "tn_stack: x[%d] is %s, x[0] is %s: want one shape", k,
                            tni_text(x[k]), tni_text(x[0]));
        parts[k] = tn_unsqueeze(x[k], axis);
        if (!parts[k]) return NULL;
    }
    return tn_cat(parts, n, axis);
}
