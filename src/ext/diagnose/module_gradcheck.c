/*
 * module_gradcheck.c - a model's backward against central differences, on a copy in f64.
 *
 * For a parameter p and a direction u the slope of the loss L along u is computed twice: by
 * backward, sum(dL/dp u), and by differences, (L(p + eps u) - L(p - eps u)) / (2 eps). u is each
 * unit vector in turn, or in fast mode one vector of normal numbers. They agree within
 *
 *     atol + rtol |differences| + 8 ulp |L| / eps
 *
 * whose last term is L's own rounding. If they do not, eps is divided by 100: a kink (relu, max)
 * between the two points then lies outside of them, while a wrong backward stays wrong.
 *
 * In fast mode a wrong element is then found by halving the direction. Slopes are linear in u, so
 * what the left half does not explain, the right half does.
 */
#include <float.h>
#include <tenon/derivatives.h>

#include "ext/diagnose/explain.h"

/* A slope, computed twice. */
typedef struct slopes {
    double backward, differences;
    double excess; /* their difference in units of the tolerance: above 1 it is too large */
} slopes;

typedef struct check {
    tn_module_gradcheck_options o;
    tni_run run;  /* of the copy: which op reads what, gradients, the state before it */
    double value; /* of the loss */
    int wrong;    /* how many are */
    int worst;    /* index of the worst parameter; -1: none is wrong */
    slopes found; /* at its worst element, in fast mode along its direction */
    int64_t element;
    int last; /* the wrong one that forward reads last */
} check;

/* ---- the copy -------------------------------------------------------------------------------- */

/* A forward pre-hook that casts a module's inputs to f64. */
static tn_status to_f64(tn_module *m, int n_in, tn_tensor **in, void *user)
{
    (void)m, (void)user;
    for (int i = 0; i < n_in; i++) {
        if (tni_none(in[i]) || !tn_dtype_is_float(in[i]->dtype)) continue;
        if (!(in[i] = tn_to_dtype(in[i], TN_F64))) return tni_pending();
    }
    return TN_OK;
}

static tn_status add_hook(tn_module *m, const char *path, void *user)
{
    (void)path, (void)user;
    return tn_register_forward_pre_hook(m, to_f64, NULL) < 0 ? tni_pending() : TN_OK;
}

static tn_module *copy_of(tn_module *model)
{
    tn_module *copy = tn_module_clone(model);
    tn_status status = copy ? tn_module_to_dtype(copy, TN_F64) : tni_pending();
    if (status == TN_OK) status = tni_walk(copy, TNI_ONCE, add_hook, NULL, NULL);
    if (status == TN_OK) return copy;
    tn_module_drop(copy);
    return NULL;
}

/* ---- slopes ---------------------------------------------------------------------------------- */

static tn_status slopes_along(check *c, int i, tn_tensor *u, slopes *s)
{
    *s = (slopes){ 0 };
    if (!u) return tni_pending();
    if (!tni_none(c->run.grad[i])) {
        tn_tensor *sum = tn_sum(tn_mul(c->run.grad[i], u), NULL, 0, false);
        if (!sum) return tni_pending();
        s->backward = tn_item(sum);
    }
    for (double eps = c->o.eps; eps > c->o.eps / 1e3; eps /= 100) {
        TNI_TRY(tni_run_slope(&c->run, c->run.leaf[i], u, eps, &s->differences));
        double tolerance =
            c->o.atol + c->o.rtol * fabs(s->differences) + 8 * DBL_EPSILON * fabs(c->value) / eps;
        s->excess = fabs(s->backward - s->differences) / tolerance;
        if (s->excess <= 1) return TN_OK;
        if (isnan(s->excess)) s->excess = INFINITY;
    }
    return TN_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* The first op that reads parameter i, as an index of run.use; -1: none. */
static int reader(const check *c, int i)
{
    int number = tni_run_number(&c->run, c->run.leaf[i]);
    for (size_t u = 0; u < c->run.n_use && number >= 0; u++)
        for (int k = 0; k < c->run.use[u].n_in; k++)
            if (c->run.ends[c->run.use[u].end + k] / 2 == (tni_end)number) return (int)u;
    return -1;
}

/* Normal numbers: the same at every call, as the generator is restored. */
static tn_tensor *direction(check *c, int i)
{
    tn_tensor *u = tn_randn_as(c->run.leaf[i]->shape, TN_F64, c->run.leaf[i]->storage->device);
    return tni_run_restore(&c->run) == TN_OK ? u : NULL;
}

/* At every element, or along one direction. */
static tn_status check_parameter(check *c, int i)
{
    const tn_tensor *p = c->run.leaf[i];
    int64_t n = c->o.fast ? 1 : tni_shape_numel(&p->shape);
    bool wrong = false;
    for (int64_t j = 0; j < n; j++) {
        slopes s = { 0 };
        TN_SCOPE TNI_TRY(slopes_along(c, i, c->o.fast ? direction(c, i) : tni_basis(p, j), &s));
        if (s.excess <= 1) continue;
        wrong = true;
        if (c->last < 0 || reader(c, i) > reader(c, c->last)) c->last = i;
        if (c->worst >= 0 && s.excess <= c->found.excess) continue;
        c->worst = i, c->element = j, c->found = s;
    }
    c->wrong += wrong;
    return TN_OK;
}

/* u's elements from..from+n, the others 0. */
static tn_tensor *part_of(tn_tensor *u, int64_t from, int64_t n)
{
    tn_tensor *part = tn_full_as(TN_SHAPE(tn_numel(u)), 0, TN_F64, u->storage->device);
    tn_tensor *all = tn_reshape(u, TN_SHAPE(tn_numel(u)));
    tn_status status = tn_copy_(tn_narrow(part, 0, from, n), tn_narrow(all, 0, from, n));
    return status == TN_OK ? tn_reshape(part, u->shape) : NULL;
}

/* In fast mode: an element of the worst parameter where the slopes differ. */
static tn_status find_element(check *c)
{
    tn_tensor *u = direction(c, c->worst);
    if (!u) return tni_pending();
    double whole = c->found.backward - c->found.differences;
    int64_t from = 0, n = tn_numel(u);
    while (n > 1) {
        slopes left = { 0 };
        TN_SCOPE TNI_TRY(slopes_along(c, c->worst, part_of(u, from, n / 2), &left));
        double difference = left.backward - left.differences;
        bool go_left = fabs(difference) >= fabs(whole - difference);
        whole = go_left ? difference : whole - difference;
        from += go_left ? 0 : n / 2;
        n = go_left ? n / 2 : n - n / 2;
    }
    c->element = from;
    return TN_OK;
}

/* ---- the report ------------------------------------------------------------------------------ */

/* Appends "fc1.weight [3,4], read by tn_linear in fc1: Linear". */
static void describe(const check *c, int i, char *text, size_t size)
{
    const tni_use *use = reader(c, i) < 0 ? NULL : &c->run.use[reader(c, i)];
    tni_text_add(text, size, "%s %s, read by %s%s in %s", c->run.leaves->entry[i].name,
                 tni_shape_text(&c->run.leaf[i]->shape), use ? use->prefix : "",
                 use ? use->op : "nothing", tni_run_place(&c->run, use ? use->module : -1).s);
}

static tn_status report(check *c)
{
    char worst[512] = "", along[160] = "", last[600] = "";
    if (c->o.fast) {
        snprintf(along, sizeof along,
                 "along a random direction backward gives %.6g, finite differences give %.6g; ",
                 c->found.backward, c->found.differences);
        TN_SCOPE TNI_TRY(find_element(c));
        const tn_tensor *leaf = c->run.leaf[c->worst];
        TN_SCOPE TNI_TRY(slopes_along(c, c->worst, tni_basis(leaf, c->element), &c->found));
    }
    tn_shape at = c->run.leaf[c->worst]->shape; /* becomes the element's place */
    int64_t element = c->element;
    for (int axis = at.rank - 1; axis >= 0; axis--) {
        const int64_t size = at.size[axis];
        at.size[axis] = element % size;
        element /= size;
    }
    describe(c, c->worst, worst, sizeof worst);
    if (c->wrong > 1) {
        snprintf(last, sizeof last, "; %d of %d parameters are wrong, and forward reads last ",
                 c->wrong, c->run.leaves->n);
        describe(c, c->last, last, sizeof last);
    }
    return tni_error(TN_E_INVALID,
                     "%s: %s: %sat element %s backward gives %.6g, finite differences give %.6g: "
                     "want them within %g + %g times the latter%s",
                     c->run.function, worst, along, tni_shape_text(&at), c->found.backward,
                     c->found.differences, c->o.atol, c->o.rtol, last);
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Does the watched run, takes its gradients, and checks that a second run gives the same loss. */
static tn_status first_run(check *c)
{
    tn_tensor *loss = NULL;
    double again = 0;
    TNI_TRY(tni_run_watch(&c->run, &loss));
    if (loss->dtype != TN_F64)
        return tni_error(TN_E_DTYPE,
                         "%s: the loss is %s of %s: want f64, as the copy that it is given makes "
                         "it (a floating target must be f64 too)",
                         c->run.function, tni_text(loss), tn_dtype_name(loss->dtype));
    c->value = tn_item(loss);
    TNI_TRY(tni_run_gradients(&c->run, tn_parameters(c->run.model), loss));
    TNI_TRY(tni_run_restore(&c->run));
    TNI_TRY(tni_run_loss(&c->run, &again));
    if (fabs(again - c->value) <= 1e-12 * fabs(c->value) || isnan(again)) return TN_OK;
    return tni_error(TN_E_INVALID,
                     "%s: the loss was %.17g, then %.17g at the same parameters: want the "
                     "same at every call (random numbers from the default generator are)",
                     c->run.function, c->value, again);
}

/* The caller restores what the runs have moved. */
static tn_status check_copy(check *c)
{
    bool read = false;
    TNI_TRY(first_run(c));
    const int n = c->run.leaves->n;
    for (int i = 0; i < n; i++) read |= reader(c, i) >= 0;
    if (!read)
        return tni_error(TN_E_INVALID,
                         "%s: the loss reads none of %d trainable parameters: want it computed "
                         "from the model that it is given, which is a copy",
                         c->run.function, n);
    for (int i = 0; i < n; i++) TNI_TRY(check_parameter(c, i));
    return c->worst >= 0 ? report(c) : TN_OK;
}

tn_status tn_module_gradcheck(tn_module *m, tn_tensor *(*loss)(tn_module *m, void *user),
                              void *user, tn_module_gradcheck_options options)
{
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    check c = { .worst = -1, .last = -1 };
    tn_status status = tni_run_begin(&c.run, "tn_module_gradcheck", m, loss, user);
    if (status != TN_OK) return status;
    const int TN_WHEN_LEFT(tn_leave_no_grad_) was = tn_set_grad_enabled(true);
    const bool counted = tni_padding_counts;
    tni_padding_counts = true;
    tn_scope scope = tn_scope_begin();
    if (options.eps == 0) options.eps = 1e-6;
    if (options.atol == 0) options.atol = 1e-7;
    if (options.rtol == 0) options.rtol = 1e-5;
    if (!(options.eps > 0 && options.atol > 0 && options.rtol > 0))
        status = tni_error(TN_E_INVALID, "%s: eps %g, atol %g, rtol %g: want all above 0",
                           c.run.function, options.eps, options.atol, options.rtol);
    c.o = options;
    if (status == TN_OK) status = (c.run.model = copy_of(m)) ? check_copy(&c) : tni_pending();
    tn_status restored = tni_run_restore(&c.run);
    if (status == TN_OK) status = restored;
    tni_run_free(&c.run);
    tn_scope_end(scope);
    if (c.run.model != m) tn_module_drop(c.run.model);
    tni_padding_counts = counted;
    tni_watch(c.run.outer);
    return status;
}
