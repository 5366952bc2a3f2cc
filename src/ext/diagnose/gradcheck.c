/*
 * gradcheck.c - backward against central differences.
 *
 * For y = f(x) the Jacobian J[k][j] = dy_k / dx_j is computed twice. By backward: row k is the
 * gradient of y under the seed e_k. By differences: column j is (f(x + eps e_j) - f(x - eps e_j)) /
 * (2 eps), whose error is O(eps^2) from Taylor and O(u |y| / eps) from rounding: about 1e-10 in f64
 * for eps = 1e-6. The two agree where |backward - differences| <= atol + rtol |differences|.
 *
 * Second derivatives are the first derivatives of g_i(x, v) = d(sum of f(x) * v) / dx_i: the same
 * check is applied to g_i, with v, a fixed cotangent, as one more input. There backward runs
 * through the recorded gradient (TN_CREATE_GRAPH) and the differences through the unrecorded one,
 * so the two versions of an op's gradient are compared as well.
 */
#include "autograd/op.h"

typedef struct check {
    tn_function f;
    tn_tensor **inputs;
    int n;
    void *user;
    tn_gradcheck_options o;
    const char *what; /* "" or "second derivative: " */
} check;

/* rows x n zeros of the current scope, on the host; NULL + message. */
static double *zeros(int64_t rows, int64_t n)
{
    tn_shape shape = TN_SHAPE(TNI_MAX(rows, 1), TNI_MAX(n, 1));
    tn_tensor *t = tn_full_as(shape, 0, TN_F64, tn_cpu());
    return t ? tni_data(t) : NULL;
}

static tn_status read_values(const tn_tensor *t, double *values)
{
    return tn_copy_out(t, values, (size_t)tn_numel(t) * sizeof *values, TN_F64);
}

/* ---- one evaluation -------------------------------------------------------------------------- */

/* y = f(x); NULL + message unless it is a tensor in f64. */
static tn_tensor *call(const check *c, bool record)
{
    bool was = tn_set_grad_enabled(record);
    tn_tensor *y = c->f(c->inputs, c->user);
    tn_set_grad_enabled(was);
    if (!y) return tni_poisoned("tn_gradcheck", "the function's result");
    if (!tni_none(y) && y->dtype == TN_F64) return y;
    return tni_fail(TN_E_DTYPE, "tn_gradcheck: the function returned %s: want an f64 tensor",
                    tni_none(y) ? "TN_NONE" : tn_dtype_name(y->dtype));
}

/* The m values of y, without recording. */
static tn_status evaluate(const check *c, double *values, int64_t m)
{
    const tn_tensor *y = call(c, false);
    if (!y) return tni_pending();
    if (tn_numel(y) == m) return read_values(y, values);
    return tni_error(TN_E_SHAPE,
                     "tn_gradcheck: the function returned %" PRId64 " values, then %" PRId64
                     ": want one shape",
                     m, tn_numel(y));
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Row k of every input's Jacobian: rows[i] + k * numel(input i). */
static tn_status backward_row(const check *c, tn_tensor *y, int64_t k, double **jacobian)
{
    tn_tensor *unit = tni_basis(y, k);
    if (!unit) return tni_pending();
    for (int i = 0; i < c->n; i++) {
        if (!jacobian[i]) continue;
        tn_tensor *x = c->inputs[i], *g = TN_NONE;
        TNI_TRY(tn_gradients(1, &y, &unit, 1, &x, &g, TN_RETAIN_GRAPH));
        if (tni_none(g)) continue;
        if (!tni_shape_equal(&g->shape, &x->shape))
            return tni_error(TN_E_SHAPE, "tn_gradcheck: %sthe gradient of input %d is %s: want %s",
                             c->what, i, tni_text(g), tni_shape_text(&x->shape));
        TNI_TRY(read_values(g, jacobian[i] + k * tn_numel(x)));
    }
    return TN_OK;
}

/* All Jacobians by backward, current scope; NULL for inputs that need none. f is deterministic. */
static tn_status backward_all(const check *c, double **jacobian, int64_t *m)
{
    tn_tensor *y = call(c, true);
    if (!y) return tni_pending();
    *m = tn_numel(y);
    for (int i = 0; i < c->n; i++)
        if (c->inputs[i]->requires_grad && !(jacobian[i] = zeros(*m, tn_numel(c->inputs[i]))))
            return tni_pending();
    for (int64_t k = 0; k < *m && y->requires_grad; k++)
        TN_SCOPE TNI_TRY(backward_row(c, y, k, jacobian));
    double *first = zeros(1, *m), *second = zeros(1, *m);
    TNI_TRY(first && second ? read_values(y, first) : tni_pending());
    TN_SCOPE TNI_TRY(evaluate(c, second, *m));
    for (int64_t k = 0; k < *m; k++)
        if (fabs(first[k] - second[k]) > c->o.atol + c->o.rtol * fabs(first[k]))
            return tni_error(TN_E_INVALID,
                             "tn_gradcheck: %soutput element %" PRId64 " was %.10g, then "
                             "%.10g: want the same values at every call",
                             c->what, k, first[k], second[k]);
    return TN_OK;
}

/* ---- differences ----------------------------------------------------------------------------- */

static tn_status compare_input(const check *c, int i, const double *jacobian, int64_t m)
{
    tn_tensor *x = c->inputs[i];
    int64_t n = tn_numel(x);
    size_t nbytes = (size_t)n * sizeof(double);
    double *values = zeros(1, n), *y[2] = { zeros(1, m), zeros(1, m) }; /* above and below */
    tn_status status = values && y[0] && y[1] ? read_values(x, values) : tni_pending();
    for (int64_t j = 0; j < n && status == TN_OK; j++) {
        double center = values[j];
        for (int side = 0; side < 2 && status == TN_OK; side++) {
            values[j] = center + (side ? -c->o.eps : c->o.eps);
            status = tn_copy_in(x, values, nbytes, TN_F64);
            TN_SCOPE if (status == TN_OK) status = evaluate(c, y[side], m);
        }
        values[j] = center;
        tn_status restored = tn_copy_in(x, values, nbytes, TN_F64);
        if (status == TN_OK) status = restored;
        for (int64_t k = 0; k < m && status == TN_OK; k++) {
            double differences = (y[0][k] - y[1][k]) / (2 * c->o.eps);
            double backward = jacobian[k * n + j];
            if (fabs(backward - differences) <= c->o.atol + c->o.rtol * fabs(differences)) continue;
            status = tni_error(TN_E_INVALID,
                               "tn_gradcheck: %sinput %d element %" PRId64
                               ", output element %" PRId64 ": backward gives %.10g: finite "
                               "differences give %.10g",
                               c->what, i, j, k, backward, differences);
        }
    }
    return status;
}

static tn_status first_order(const check *c)
{
    TNI_ZEROED(double *, jacobian, c->n);
    int64_t m = 0;
    if (!jacobian) return tni_pending();
    TNI_SCOPED;
    TNI_TRY(backward_all(c, jacobian, &m));
    for (int i = 0; i < c->n; i++)
        TN_NO_GRAD if (jacobian[i]) TNI_TRY(compare_input(c, i, jacobian[i], m)); /* writes to i */
    return TN_OK;
}

/* ---- second derivatives ---------------------------------------------------------------------- */

typedef struct gradient_of {
    const check *c; /* of f; the cotangent follows its inputs */
    int input;      /* the gradient of this one */
} gradient_of;

/* g_i(x, v): recorded when the caller records. */
static tn_tensor *gradient(tn_tensor **inputs, void *user)
{
    const gradient_of *g = user;
    tn_tensor *dx = TN_NONE;
    const int TN_WHEN_LEFT(tn_leave_no_grad_) record = tn_set_grad_enabled(true);
    tn_tensor *y = g->c->f(inputs, g->c->user);
    if (!y || (y->requires_grad && tn_gradients(1, &y, &inputs[g->c->n], 1, &inputs[g->input], &dx,
                                                record ? TN_CREATE_GRAPH : 0) != TN_OK))
        return NULL;
    return tni_none(dx) ? tn_zeros_like(inputs[g->input]) : dx;
}

/* sin(1.7 k + 0.4): fixed values without symmetries that could hide an error. */
static tn_tensor *cotangent(const check *c)
{
    const tn_tensor *y = call(c, false);
    tn_tensor *k = y ? tn_to(tn_arange(0, (double)tn_numel(y), 1, TN_F64), tn_device_of(y)) : NULL;
    if (k) k = tn_reshape(tn_sin(tn_add_scalar(tn_mul_scalar(k, 1.7), 0.4)), y->shape);
    return k && tn_set_requires_grad(k, true) == TN_OK ? k : NULL;
}

static tn_status second_order(const check *c)
{
    TNI_ITEMS(tn_tensor *, inputs, c->n + 1);
    if (!inputs) return tni_pending();
    TNI_SCOPED;
    memcpy(inputs, c->inputs, (size_t)c->n * sizeof *inputs);
    if (!(inputs[c->n] = cotangent(c))) return tni_pending();
    for (int i = 0; i < c->n; i++) {
        if (!c->inputs[i]->requires_grad) continue;
        gradient_of g = { c, i };
        check second = { gradient, inputs, c->n + 1, &g, c->o, "second derivative: " };
        TNI_TRY(first_order(&second));
    }
    return TN_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static tn_status usable(tn_tensor **inputs, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++) {
        const tn_tensor *x = inputs[i];
        if (!x) return tni_poison("tn_gradcheck", "an input");
        if (tni_none(x) || !x->requires_grad) continue;
        any = true;
        if (x->node || x->dtype != TN_F64)
            return tni_error(TN_E_INVALID, "tn_gradcheck: input %d, %s, is %s %s: want an f64 leaf",
                             i, tni_text(x), x->node ? "a result of dtype" : "a leaf of dtype",
                             tn_dtype_name(x->dtype));
        for (int axis = 0; axis < x->shape.rank; axis++)
            if (x->stride[axis] == 0 && x->shape.size[axis] > 1)
                return tni_error(TN_E_INVALID,
                                 "tn_gradcheck: elements of input %d, %s, share memory: want "
                                 "tn_clone of it",
                                 i, tni_text(x));
    }
    if (!any)
        return tni_error(TN_E_INVALID, "tn_gradcheck: no input requires grad: want one of %d", n);
    return TN_OK;
}

tn_status tn_gradcheck(tn_function f, tn_tensor **inputs, int n, void *user,
                       tn_gradcheck_options options)
{
    TNI_HOLD_TRAPS;
    if (!f) return tni_poison("tn_gradcheck", "f");
    if (!inputs || n < 1) return tni_poison("tn_gradcheck", "inputs");
    TNI_TRY(usable(inputs, n));
    if (options.eps == 0) options.eps = 1e-6;
    if (options.atol == 0) options.atol = 1e-5;
    if (options.rtol == 0) options.rtol = 1e-3;
    if (!(options.eps > 0 && options.atol > 0 && options.rtol > 0))
        return tni_error(TN_E_INVALID, "tn_gradcheck: eps %g, atol %g, rtol %g: want all above 0",
                         options.eps, options.atol, options.rtol);
    TNI_SCOPES_STAY;
    check c = { f, inputs, n, user, options, "" };
    bool counted = tni_padding_counts;
    tni_padding_counts = true;
    tn_status status = first_order(&c);
    if (status == TN_OK && options.second) status = second_order(&c);
    tni_padding_counts = counted;
    return status;
}
