/*
 * functional.c - derivatives of a function of tensors: vjp, jvp, Jacobian, Hessian, Hessian-vector
 * product.
 *
 * f is called with aliases of the inputs, so the caller's tensors are no leaves of its graph.
 * With y = f(x) and J = dy/dx:
 *   vjp       J^T v     a backward whose seed is v
 *   jvp       J v       g(w) = J^T w is linear in w, so dg/dw = J^T and the vjp of g by v is J v: a
 *                       backward through the recorded backward, at w = 0 as good as at any other
 *   jacobian  row k is J^T e_k: a backward for each element of y
 *   hessian   H, the Jacobian of the gradient g = dy/dx
 *   hvp       H v, the vjp of g by v, since H is symmetric
 * Source  PyTorch's torch.autograd.functional; jvp by double backward: Townsend, A new trick for
 *         calculating Jacobian vector products (2017)
 */
#include <limits.h>
#include <tenon/derivatives.h>

#include "autograd/pass.h"

typedef struct derivation {
    const char *function; /* "tn_vjp" */
    int n;                /* inputs */
    int flags;
    /* n aliases of the inputs, n gradients, n seeds or a row's gradients; in one block */
    tn_tensor **x, **g, **v;
    tn_tensor *y; /* f(x) */
    tn_scope scope;
    size_t guarded;
    bool was_recording;
} derivation;

enum { ARRAYS = 4 }; /* x, g, v, and x once more, which f may write to */

tn_tensor *tni_basis(const tn_tensor *like, int64_t k)
{
    tn_tensor *flat =
        tn_full_as(TN_SHAPE(tni_shape_numel(&like->shape)), 0, like->dtype, like->storage->device);
    tn_status status = TN_OK;
    TN_NO_GRAD status = tn_fill_(tn_select(flat, 0, k), 1);
    return status == TN_OK ? tn_reshape(flat, like->shape) : NULL;
}

/* ---- before and after ------------------------------------------------------------------------ */

/* An alias of input i that requires grad. Its history leads to the input if results are to have
 * one. */
static tn_tensor *alias_of(const derivation *d, tn_tensor *input, int i)
{
    if (tni_absent(input)) return tni_poisoned(d->function, "an input");
    if (!tn_dtype_is_float(input->dtype))
        return tni_fail(TN_E_DTYPE,
                        "%s: input %d is %s: want a floating dtype (give others in user)",
                        d->function, i, tn_dtype_name(input->dtype));
    if (d->flags & TN_CREATE_GRAPH && input->requires_grad) return tn_reshape(input, input->shape);
    tn_tensor *leaf = tn_detach(input);
    return leaf && tn_set_requires_grad(leaf, true) == TN_OK ? leaf : NULL;
}

static tn_status check_result(const derivation *d)
{
    if (!d->y) return tni_poison(d->function, "the function's result");
    if (!tni_none(d->y) && tn_dtype_is_float(d->y->dtype)) return TN_OK;
    return tni_error(TN_E_DTYPE, "%s: the function returned %s: want a floating tensor",
                     d->function, tni_none(d->y) ? "TN_NONE" : tn_dtype_name(d->y->dtype));
}

static tn_status check_arguments(const derivation *d, tn_function f, tn_tensor *const *inputs,
                                 tn_tensor **out)
{
    if (!f) return tni_poison(d->function, "f");
    if (!out) return tni_poison(d->function, "the array of results");
    if (inputs && d->n > 0) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: %d inputs%s: want an array of at least one", d->function,
                     d->n, inputs ? "" : ", in an array that is NULL");
}

/* Calls f. Whatever this returns, finish must follow. */
static tn_status begin(derivation *d, tn_function f, tn_tensor *const *inputs, void *user,
                       tn_tensor **out)
{
    d->was_recording = tn_set_grad_enabled(true);
    d->scope = tn_scope_begin();
    d->guarded = tni_scope_guard();
    tn_status status = check_arguments(d, f, inputs, out);
    if (status != TN_OK) {
        if (!inputs || d->n < 1) d->n = 0; /* the lengths of the arrays are unknown then */
        return status;
    }
    size_t n = (size_t)d->n;
    if (!(d->x = tni_alloc_n(ARRAYS * n, sizeof *d->x))) return TN_E_NOMEM;
    d->g = d->x + n;
    d->v = d->g + n;
    tn_tensor **given = d->v + n;
    for (int i = 0; i < d->n; i++) {
        if (!(d->x[i] = alias_of(d, inputs[i], i))) return tni_pending();
        given[i] = d->x[i];
    }
    d->y = f(given, user);
    tn_set_grad_enabled(true);
    return check_result(d);
}

/* Moves y (if wanted) and n_out results to the caller's scope; NULL on failure. */
static tn_status finish(derivation *d, tn_status status, tn_tensor **y, int64_t n_out,
                        tn_tensor **out)
{
    if (status == TN_OK && y) {
        *y = d->flags & TN_CREATE_GRAPH ? d->y : tn_detach(d->y);
        if (!*y) status = tni_pending();
    }
    tn_tensor *kept = status == TN_OK && y ? tn_keep(*y) : NULL;
    if (d->x) tni_free(d->x, ARRAYS * (size_t)d->n * sizeof *d->x);
    status = tni_scope_hand_over(d->scope, &d->guarded, status, out ? n_out : 0, out);
    tn_set_grad_enabled(d->was_recording);
    if (tni_autocasting != TN_F32) tni_autocast_forget(); /* casts of x, which is gone */
    if (kept && !tn_scope_adopt(kept)) status = tni_pending();
    for (int64_t i = 0; status != TN_OK && out && i < n_out; i++) out[i] = NULL;
    if (status != TN_OK && y) *y = NULL;
    return status;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Whether v, one of the caller's, is as large as the tensor that it goes with. */
static tn_status check_seed(const derivation *d, tn_tensor *v, const tn_tensor *like)
{
    if (!v) return tni_poison(d->function, "v");
    if (tni_none(v) && tni_shape_numel(&like->shape) == 1) return TN_OK;
    if (!tni_none(v)) return tni_gradient_fits(d->function, "v", v, "", like);
    return tni_error(TN_E_SHAPE, "%s: v TN_NONE for %s of %s: want the same shape and dtype",
                     d->function, tni_text(like), tn_dtype_name(like->dtype));
}

static tn_status check_seeds(const derivation *d, tn_tensor *const *v)
{
    tn_status status = v ? TN_OK : tni_poison(d->function, "v");
    for (int i = 0; i < d->n && status == TN_OK; i++) status = check_seed(d, v[i], d->x[i]);
    return status;
}

/* The gradients of sum(of seed), TN_NONE where there are none. */
static tn_status gradients(const derivation *d, tn_tensor *of, tn_tensor *seed, tn_tensor **out,
                           int flags)
{
    for (int i = 0; i < d->n; i++) out[i] = TN_NONE;
    return of->requires_grad ? tn_gradients(1, &of, &seed, d->n, d->x, out, flags) : TN_OK;
}

/* In strict mode no gradient in g may be missing. g: the gradients of `of`, which is y or its
 * gradient (possibly NULL). */
static tn_status check_strict(const derivation *d, const tn_tensor *of, tn_tensor *const *g)
{
    const char *what = of == d->y ? "the result" : "the gradient";
    for (int i = 0; d->flags & TN_STRICT && i < d->n; i++)
        if (tni_none(g[i]))
            return tni_error(TN_E_INVALID,
                             "%s: %s does not depend on input %d: want one that does, or no "
                             "TN_STRICT, which gives zeros",
                             d->function, what, i);
    return TN_OK;
}

static tn_status fill_in(const derivation *d, tn_tensor **out)
{
    for (int i = 0; i < d->n; i++)
        if (tni_none(out[i]) && !(out[i] = tn_zeros_like(d->x[i]))) return tni_pending();
    return TN_OK;
}

/* The gradients of the sum of all g v with respect to n_in inputs. */
static tn_status through_gradients(const derivation *d, tn_tensor *const *v, int n_in,
                                   tn_tensor *const *inputs, tn_tensor **out)
{
    int n = 0;
    for (int i = 0; i < d->n; i++) {
        if (tni_none(d->g[i]) || !d->g[i]->requires_grad) continue;
        d->g[n] = d->g[i];
        d->v[n++] = v[i];
    }
    for (int i = 0; i < n_in; i++) out[i] = TN_NONE;
    return n ? tn_gradients(n, d->g, d->v, n_in, inputs, out, d->flags & TN_CREATE_GRAPH) : TN_OK;
}

/* The axes of a, then those of b. */
static tn_status join_shapes(const derivation *d, const tn_tensor *a, const tn_tensor *b,
                             tn_shape *joined)
{
    *joined = a->shape;
    if (a->shape.rank + b->shape.rank > TN_MAX_RANK)
        return tni_error(TN_E_SHAPE, "%s: %s by %s: want at most %d axes together", d->function,
                         tni_text(a), tni_text(b), TN_MAX_RANK);
    for (int i = 0; i < b->shape.rank; i++) joined->size[joined->rank++] = b->shape.size[i];
    return tni_shape_fits(d->function, joined);
}

/* Row k of the Jacobians of `of`: row[i m + k], with a reference each. */
static tn_status take_row(const derivation *d, tn_tensor *of, int64_t m, int64_t k, tn_tensor **row)
{
    TNI_SCOPED;
    tn_tensor **g = d->v, *seed = tni_basis(of, k);
    int flags = TN_RETAIN_GRAPH | (d->flags & TN_CREATE_GRAPH);
    tn_status status = seed ? gradients(d, of, seed, g, flags) : tni_pending();
    if (status == TN_OK) status = check_strict(d, of, g);
    if (status == TN_OK) status = fill_in(d, g);
    for (int i = 0; i < d->n && status == TN_OK; i++) row[i * m + k] = tn_keep(g[i]);
    return status;
}

/* out[i] = d of / d x[i], of shape `of` + x[i]: zeros if `of` has no history. */
static tn_status jacobians(const derivation *d, tn_tensor *of, tn_tensor **out)
{
    int64_t m = of->requires_grad ? tni_shape_numel(&of->shape) : 0;
    tn_shape shape;
    for (int i = 0; i < d->n; i++) out[i] = TN_NONE;
    tn_status status = of->requires_grad ? TN_OK : check_strict(d, of, out);
    for (int i = 0; i < d->n && status == TN_OK; i++) {
        const tn_tensor *x = d->x[i];
        status = join_shapes(d, of, x, &shape); /* before the work */
        if (status != TN_OK || m > 0) continue;
        if (!(out[i] = tn_full_as(shape, 0, x->dtype, x->storage->device))) status = tni_pending();
    }
    if (status != TN_OK || m == 0) return status;
    if (m > INT_MAX)
        return tni_error(TN_E_NOMEM, "%s: %s: want at most %d elements", d->function, tni_text(of),
                         INT_MAX);
    TNI_ZEROED(tn_tensor *, row, m * d->n);
    if (!row) return TN_E_NOMEM;
    for (int64_t k = 0; k < m && status == TN_OK; k++) status = take_row(d, of, m, k, row);
    for (int i = 0; i < d->n && status == TN_OK; i++) {
        status = join_shapes(d, of, d->x[i], &shape);
        if (!(out[i] = tn_reshape(tn_stack(row + i * m, (int)m, 0), shape))) status = tni_pending();
    }
    for (int64_t k = 0; k < m * d->n; k++) tn_drop(row[k]);
    return status;
}

/* The gradient of a single result, recorded. */
static tn_status recorded_gradient(const derivation *d)
{
    if (tni_shape_numel(&d->y->shape) != 1)
        return tni_error(TN_E_SHAPE, "%s: the function returned %s: want one element", d->function,
                         tni_text(d->y));
    tn_status status = gradients(d, d->y, TN_NONE, d->g, TN_CREATE_GRAPH);
    return status == TN_OK ? check_strict(d, d->y, d->g) : status;
}

/* ---- the calls ------------------------------------------------------------------------------- */

tn_status tn_vjp(tn_function f, tn_tensor *const *inputs, int n, void *user, tn_tensor *v,
                 tn_tensor **y, tn_tensor **dx, int flags)
{
    TNI_HOLD_TRAPS;
    derivation d = { .function = "tn_vjp", .n = n, .flags = flags };
    tn_status status = begin(&d, f, inputs, user, dx);
    if (status == TN_OK) status = check_seed(&d, v, d.y);
    if (status == TN_OK) status = gradients(&d, d.y, v, dx, flags & TN_CREATE_GRAPH);
    if (status == TN_OK) status = check_strict(&d, d.y, dx);
    if (status == TN_OK) status = fill_in(&d, dx);
    return finish(&d, status, y, d.n, dx);
}

tn_status tn_jvp(tn_function f, tn_tensor *const *inputs, int n, void *user, tn_tensor *const *v,
                 tn_tensor **y, tn_tensor **dy, int flags)
{
    TNI_HOLD_TRAPS;
    derivation d = { .function = "tn_jvp", .n = n, .flags = flags };
    tn_status status = begin(&d, f, inputs, user, dy);
    tn_tensor *w = status == TN_OK ? tn_zeros_like(d.y) : NULL;
    if (status == TN_OK) status = check_seeds(&d, v);
    if (status == TN_OK) status = w ? tn_set_requires_grad(w, true) : tni_pending();
    if (status == TN_OK) status = gradients(&d, d.y, w, d.g, TN_CREATE_GRAPH);
    if (status == TN_OK) status = check_strict(&d, d.y, d.g);
    if (status == TN_OK) status = through_gradients(&d, v, 1, &w, dy);
    if (status == TN_OK && tni_none(*dy) && !(*dy = tn_zeros_like(d.y))) status = tni_pending();
    return finish(&d, status, y, 1, dy);
}

tn_status tn_jacobian(tn_function f, tn_tensor *const *inputs, int n, void *user,
                      tn_tensor **jacobian, int flags)
{
    TNI_HOLD_TRAPS;
    derivation d = { .function = "tn_jacobian", .n = n, .flags = flags };
    tn_status status = begin(&d, f, inputs, user, jacobian);
    if (status == TN_OK) status = jacobians(&d, d.y, jacobian);
    return finish(&d, status, NULL, d.n, jacobian);
}

tn_status tn_hessian(tn_function f, tn_tensor *const *inputs, int n, void *user,
                     tn_tensor **hessian, int flags)
{
    TNI_HOLD_TRAPS;
    derivation d = { .function = "tn_hessian", .n = n, .flags = flags };
    tn_status status = begin(&d, f, inputs, user, hessian);
    if (status == TN_OK) status = recorded_gradient(&d);
    if (status == TN_OK) status = fill_in(&d, d.g);
    for (int64_t i = 0; i < n && status == TN_OK; i++)
        status = jacobians(&d, d.g[i], hessian + i * n);
    return finish(&d, status, NULL, (int64_t)d.n * d.n, hessian);
}

tn_status tn_hvp(tn_function f, tn_tensor *const *inputs, int n, void *user, tn_tensor *const *v,
                 tn_tensor **y, tn_tensor **hv, int flags)
{
    TNI_HOLD_TRAPS;
    derivation d = { .function = "tn_hvp", .n = n, .flags = flags };
    tn_status status = begin(&d, f, inputs, user, hv);
    if (status == TN_OK) status = check_seeds(&d, v);
    if (status == TN_OK) status = recorded_gradient(&d);
    if (status == TN_OK) status = through_gradients(&d, v, n, d.x, hv);
    if (status == TN_OK) status = check_strict(&d, NULL, hv);
    if (status == TN_OK) status = fill_in(&d, hv);
    return finish(&d, status, y, d.n, hv);
}
