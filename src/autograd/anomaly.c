/*
 * anomaly.c - the watcher that tn_set_anomaly installs: it looks for NaN and infinities in every
 * result and every gradient, and fails at the first.
 *
 * Views are skipped: they compute nothing. Masks use -inf, so a result may hold it where
 * masked_fill put it or where an input held it already; +inf or NaN that follow from it are faults,
 * and no gradient may hold any of the three.
 */
#include "autograd/call_site.h"
#include "autograd/notify.h"

/* ---- what a tensor holds --------------------------------------------------------------------- */

typedef enum fault { NO_FAULT, HOLDS_MINUS_INF, HOLDS_INF, HOLDS_NAN } fault;

static const char *const fault_name[] = { "finite values", "-inf", "inf", "nan" };

tn_status tni_magnitude(tn_tensor *x, double *largest)
{
    tn_status status = TN_OK;
    *largest = 0;
    if (tni_shape_numel(&x->shape) == 0) return TN_OK;
    TN_SCOPE TN_NO_GRAD
    {
        if (x->dtype != TN_F64) x = tn_to_dtype(x, TN_F32); /* norms are of f32 and f64 */
        tn_tensor *norm = x ? tn_norm(x, INFINITY, NULL, 0, false) : NULL;
        if (norm)
            *largest = tn_item(norm);
        else
            status = tni_pending();
    }
    return status;
}

/* An extreme of x; NaN on failure. */
static double extreme(tn_tensor *(*f)(tn_tensor *x, const int *axes, int n, bool keepdim),
                      tn_tensor *x)
{
    tn_tensor *y = f(x, NULL, 0, false);
    return y ? tn_item(y) : NAN;
}

/* The worst fault that t holds. */
static tn_status find(tn_tensor *t, fault *found)
{
    *found = NO_FAULT;
    if (tni_none(t) || !tn_dtype_is_float(t->dtype)) return TN_OK;
    double largest;
    tn_status status = tni_magnitude(t, &largest);
    if (status != TN_OK || isfinite(largest)) return status;
    *found = isnan(largest)                    ? HOLDS_NAN
             : extreme(tn_amax, t) == INFINITY ? HOLDS_INF
                                               : HOLDS_MINUS_INF;
    return TN_OK;
}

/* "nan, first at [0,2]"; only "nan" when that cannot be computed. */
static void locate(tn_tensor *t, fault what, char *text, size_t size)
{
    double value = what == HOLDS_INF ? INFINITY : -INFINITY;
    tn_tensor *hit = what == HOLDS_NAN ? tn_isnan(t) : tn_eq_scalar(t, value);
    tn_tensor *at =
        hit ? tn_argmax(tn_reshape(tn_to_dtype(hit, TN_F32), TN_SHAPE(-1)), 0, false) : NULL;
    int64_t rest = at ? (int64_t)tn_item(at) : -1;
    tn_shape index = t->shape;
    for (int d = index.rank - 1; d >= 0 && rest >= 0; d--) {
        index.size[d] = rest % t->shape.size[d];
        rest /= t->shape.size[d];
    }
    if (rest >= 0 && index.rank)
        snprintf(text, size, "%s, first at %s", fault_name[what], tni_shape_text(&index));
    else
        snprintf(text, size, "%s", fault_name[what]);
}

/* ---- the checks: without history, in a scope of their own, unseen by themselves -------------- */

/* Whether t holds a fault: then where says which. *status: whether it could be looked at. */
static bool is_faulty(tn_tensor *t, char where[128], tn_status *status)
{
    fault what = NO_FAULT;
    tni_watch_suspended++;
    TN_SCOPE TN_NO_GRAD
    {
        *status = find(t, &what);
        if (*status == TN_OK && what) locate(t, what, where, 128);
    }
    tni_watch_suspended--;
    return *status == TN_OK && what;
}

static tn_status output_error(const tni_call *c, tn_tensor *y, fault what)
{
    char where[128], why[160] = "its inputs are finite";
    fault before = NO_FAULT; /* the first input that held one already */
    for (int i = 0; i < c->n_in && !before; i++)
        if (find(c->in[i], &before) == TN_OK && before)
            snprintf(why, sizeof why, "input %d, %s, holds %s", i, tni_text(c->in[i]),
                     fault_name[before]);
    locate(y, what, where, sizeof where);
    return tni_op_error(c, TN_E_STATE, "the result %s holds %s; %s: want finite values",
                        tni_shape_text(&y->shape), where, why);
}

static bool is_mask(const tni_call *c)
{
    if (strcmp(c->op->name, "masked_fill") == 0) return true;
    for (int i = 0; i < c->n_in; i++) {
        const tn_tensor *t = c->in[i];
        if (tni_none(t) || !tn_dtype_is_float(t->dtype) || tni_shape_numel(&t->shape) < 1) continue;
        if (extreme(tn_amin, c->in[i]) == -INFINITY) return true;
    }
    return false;
}

/* Backward runs outside of module calls, so the node remembers which call made it. */
static tn_status check_outputs(tni_watcher *self, const tni_call *c)
{
    tn_status status = tni_call_site_node(self, c);
    if (c->op->view || status != TN_OK) return status;
    tni_watch_suspended++;
    TN_SCOPE TN_NO_GRAD for (int i = 0; status == TN_OK && i < c->n_out; i++)
    {
        fault what;
        status = find(c->out[i], &what);
        if (status != TN_OK || !what || (what == HOLDS_MINUS_INF && is_mask(c))) continue;
        status = output_error(c, c->out[i], what);
    }
    tni_watch_suspended--;
    return status;
}

static tn_status check_arrived(tni_watcher *self, const tni_node *node)
{
    tn_status status = TN_OK;
    (void)self;
    for (int i = 0; status == TN_OK && i < node->n_out; i++) {
        char where[128];
        if (!node->pending[i] || !is_faulty(node->pending[i], where, &status)) continue;
        status = tni_error(TN_E_STATE,
                           "tn_backward: the gradient that comes to the result of %s%s, %s, holds "
                           "%s; a seed, a hook or a sum of gradients made it: want finite values%s",
                           tni_op_prefix(node->op), node->op->name,
                           tni_shape_text(&node->out[i].shape), where, tni_call_site_text(node));
    }
    return status;
}

static tn_status check_gradients(tni_watcher *self, const tni_node *node, const tni_grad *g)
{
    tn_status status = TN_OK;
    (void)self;
    for (int i = 0; status == TN_OK && i < g->n_in; i++) {
        char where[128];
        if (!g->need[i] || tni_none(g->dx[i]) || !is_faulty(g->dx[i], where, &status)) continue;
        status = tni_error(TN_E_STATE,
                           "tn_backward: the backward of %s%s made a gradient for its input %d, "
                           "%s, that holds %s: want finite values%s",
                           tni_op_prefix(node->op), node->op->name, i,
                           tni_shape_text(&node->in[i].shape), where, tni_call_site_text(node));
    }
    return status;
}

static tn_status check_leaf(tni_watcher *self, const tn_tensor *leaf, tn_tensor *grad)
{
    char where[128];
    tn_status status = TN_OK;
    (void)self;
    if (!is_faulty(grad, where, &status)) return status;
    return tni_error(TN_E_STATE,
                     "tn_backward: the gradient of %s holds %s; a hook or a sum of gradients made "
                     "it: want finite values",
                     tni_text(leaf), where);
}

static tni_watcher places_only = { .applied = tni_call_site_node, .writes = tni_call_site_write };
#define GRADIENTS                                                                                  \
    .writes = tni_call_site_write, .arrived = check_arrived, .differentiated = check_gradients,    \
    .finished = check_leaf
static tni_watcher gradients_only = { .applied = tni_call_site_node, GRADIENTS };
static tni_watcher everything = { .applied = check_outputs, GRADIENTS };

/* ---- choosing -------------------------------------------------------------------------------- */

static tni_watcher *const watcher_of[] = { [TN_ANOMALY_OFF] = NULL,
                                           [TN_ANOMALY_GRADIENTS] = &gradients_only,
                                           [TN_ANOMALY_ALL] = &everything };

TNI_THREAD int tni_watch_suspended;

tni_watcher *tni_watcher_settled(void)
{
    if (tni_watching != &tni_unsettled) return tni_watching;
    const char *wanted = getenv("TN_ANOMALY");
    if (!wanted || !wanted[0] || strcmp(wanted, "0") == 0) return tni_watching = NULL;
    return tni_watching = strcmp(wanted, "gradients") == 0 ? &gradients_only : &everything;
}

tni_watcher *tni_watch(tni_watcher *w)
{
    tni_watcher *was = tni_watcher_now();
    tni_watching = w;
    return was;
}

bool tni_watched(void)
{
    return tni_watcher_now() != NULL;
}

tn_anomaly tn_get_anomaly(void)
{
    if (tni_host_counts()) return TN_ANOMALY_OFF; /* the thread's watcher is the capture */
    tn_anomaly mode = TN_ANOMALY_OFF;
    for (int i = TN_ANOMALY_OFF; i <= TN_ANOMALY_ALL; i++)
        if (tni_watcher_now() == watcher_of[i]) mode = (tn_anomaly)i;
    return mode;
}

void tni_watch_places(bool on)
{
    if (tni_host_counts()) return; /* the thread's watcher is the capture */
    if (!tni_watched() || tni_watching == &places_only) tni_watch(on ? &places_only : NULL);
}

tn_anomaly tn_set_anomaly(tn_anomaly mode)
{
    tn_anomaly was = tn_get_anomaly();
    if (tni_host_counts()) { /* the capture stays */
        if (mode != TN_ANOMALY_OFF)
            tni_host_refused("tn_set_anomaly", "looks at values", "it off, or no capture");
        return was;
    }
    if (was == TN_ANOMALY_OFF && tni_watched() && tni_watching != &places_only) return was;
    if (mode == TN_ANOMALY_OFF)
        tni_watch(tn_places() || tn_lines() ? &places_only : NULL);
    else if ((int)mode > TN_ANOMALY_OFF && (int)mode <= TN_ANOMALY_ALL)
        tni_watch(watcher_of[mode]);
    return was;
}
