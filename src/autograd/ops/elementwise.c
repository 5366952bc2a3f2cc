/*
 * elementwise.c - what the families of functions of two and three tensors share: how two shapes
 * broadcast, the forward of two inputs, and gradients that one kernel computes.
 */
#include "autograd/ops/elementwise.h"
#include "autograd/pass.h"

tn_status tni_passed_on(tni_grad *g)
{
    for (int i = 0; i < g->n_in; i++)
        if (g->need[i]) g->dx[i] = g->dy;
    return TN_OK;
}

tn_status tni_transposed(tni_grad *g)
{
    return tni_give_dx(g, tni_apply(g->op->transpose, g->args, g->args_size, 1, &g->dy));
}

tn_tensor *tni_apply_formula(const tn_op *op, tn_tensor *x, double p, double q)
{
    return tni_apply(op, &(tni_formula_args){ { p, q } }, sizeof(tni_formula_args), 1, &x);
}

tn_status tni_not_broadcast(const tni_call *c, const tn_tensor *a, const tn_tensor *b)
{
    int rank = TNI_MIN(a->shape.rank, b->shape.rank);
    for (int d = 1; d <= rank; d++) {
        int64_t m = a->shape.size[a->shape.rank - d], n = b->shape.size[b->shape.rank - d];
        if (m == n || m == 1 || n == 1) continue;
        char axis[24] = "last axis";
        if (d > 1) snprintf(axis, sizeof axis, "axis -%d", d);
        return tni_op_error(c, TN_E_SHAPE,
                            "a %s, b %s: sizes %" PRId64 " and %" PRId64 " (%s) do not broadcast",
                            tni_text(a), tni_text(b), m, n, axis);
    }
    return tni_op_error(c, TN_E_SHAPE, "a %s, b %s: do not broadcast", tni_text(a), tni_text(b));
}

/* Input i for the kernel. Kernels compute in the wider of two dtypes, but a single value beside a
 * tensor with axes counts as rounded to the promoted dtype: where that makes a difference, it is
 * cast first. */
static tn_tensor *operand(const tni_call *c, int i)
{
    const tni_binary_op *op = (const tni_binary_op *)c->op;
    tn_tensor *t = c->in[i];
    bool predicate = op->function >= TNI_B_PREDICATES;
    if (TNI_LIKELY(t->shape.rank > 0 || c->in[0]->dtype == c->in[1]->dtype) ||
        op->function == TNI_B_masked_fill || (!predicate && tn_dtype_is_float(c->out[0]->dtype)))
        return t;
    tn_dtype dtype = tni_result_dtype(c->in[0], c->in[1]);
    return t->dtype == dtype ? t : tni_copied(t, dtype);
}

tn_status tni_run_binary(int function, const tn_tensor *y, const tn_tensor *a, const tn_tensor *b,
                         const double *p)
{
    tni_binary k;
    k.function = function;
    k.p = p;
    tni_array_set(&k.y, y, &y->shape);
    tni_array_set(&k.a, a, &y->shape);
    tni_array_set(&k.b, b, &y->shape);
    return tni_backend_of(y)->binary(&k);
}

tn_status tni_binary_forward(tni_call *c)
{
    const tni_binary_op *op = (const tni_binary_op *)c->op;
    const tni_formula_args *args = c->args;
    tn_tensor *a = operand(c, 0), *b = operand(c, 1);
    if (!a || !b) return tni_pending();
    return tni_run_binary(op->function, c->out[0], a, b, args ? args->p : NULL);
}

/* A watcher of the pass may read a afterwards. */
static tn_tensor *place(tn_tensor *a, const tni_meta *like, bool last)
{
    if (last && a->dtype == like->dtype && tni_shape_equal(&a->shape, &like->shape) &&
        tni_is_ours(a) && (!tni_watching || tni_watching->only_times))
        return a;
    return tni_new_dense(&like->shape, like->dtype, a->storage->device);
}

tn_tensor *tni_fused2(int function, tn_tensor *a, tn_tensor *b, const double *p,
                      const tni_meta *like, bool last)
{
    if (!a || !b) return NULL;
    tn_tensor *y = place(a, like, last);
    return y && tni_run_binary(function, y, a, b, p) == TN_OK ? y : NULL;
}

tn_tensor *tni_fused3(int function, tn_tensor *a, tn_tensor *b, tn_tensor *c, const double *p,
                      const tni_meta *like, bool last)
{
    if (!a || !b || !c) return NULL;
    tn_tensor *y = place(a, like, last);
    if (!y) return NULL;
    tni_ternary k = { function,
                      .y = tni_array_of(y),
                      .a = tni_array_expand(a, &y->shape),
                      .b = tni_array_expand(b, &y->shape),
                      .c = tni_array_expand(c, &y->shape),
                      .p = p };
    return tni_backend_of(y)->ternary(&k) == TN_OK ? y : NULL;
}
