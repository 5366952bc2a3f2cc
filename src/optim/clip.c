/*
 * clip.c - limits on gradients, before a step.
 *
 * By norm: total = (sum_i |g_i|_p^p)^(1/p), every gradient times min(1, max_norm / (total + 1e-6)).
 * The norm of each tensor is taken by the kernel, the total in double in the order of the list, so
 * the bits do not depend on threads. The host waits once, for all norms.
 *
 * Source: Pascanu et al., On the difficulty of training recurrent neural networks (2013), algorithm
 * 1; the 1e-6 is PyTorch's.
 */
#include "autograd/notify.h"
#include "optim/optim.h"
#include "tensor/formulas.h"

static tn_tensor *gradient_of(const tn_entry *e)
{
    return e->tensor ? tni_grad_of(e->tensor) : NULL;
}

/* The gradient of entry i, unless it is empty. */
static tn_tensor *nonempty(const tn_list *parameters, int i)
{
    tn_tensor *g = gradient_of(&parameters->entry[i]);
    return g && tni_shape_numel(&g->shape) > 0 ? g : NULL;
}

/* The first of them; NULL: there is none. */
static const tn_tensor *first_of(const tn_list *parameters)
{
    const tn_tensor *first = NULL;
    for (int i = 0; i < parameters->n && !first; i++) first = nonempty(parameters, i);
    return first;
}

static tn_status check(const char *function, const tn_list *parameters, double max_norm, double p)
{
    if (!parameters) return tni_poison(function, "parameters");
    if (max_norm >= 0 && p > 0) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: max_norm %g, p %g: want max_norm >= 0 and p > 0", function,
                     max_norm, p);
}

static bool beside(const tn_tensor *g, const tn_tensor *cells)
{
    return tni_backend_of(g) == tni_backend_of(cells);
}

/* Writes g's norm to a cell, in f32 or f64, without waiting for the device. */
static tn_status norm_into(char *cell, const tn_tensor *g, double p)
{
    tni_reduce a = { .function = TNI_R_norm, .x = tni_array_of(g), .p = &p };
    a.y = (tni_array){ .data = cell, .dtype = tni_wide_dtype(g->dtype), .rank = a.x.rank };
    for (int d = 0; d < a.x.rank; d++) a.y.size[d] = a.y.stride[d] = 1;
    return tni_backend_of(g)->reduce(&a);
}

static double norm_of(tn_tensor *g, const double *cell, double p, bool in_cell)
{
    if (!in_cell) return tn_item(tn_norm(tni_wide(g), p, NULL, 0, false));
    if (g->dtype == TN_F64) return *cell;
    float single;
    memcpy(&single, cell, sizeof single);
    return (double)single;
}

/* The norm of n norms: their plain sum, unless it leaves double's range. */
static tn_status norm_of_norms(double *v, int n, double p, double *total)
{
    bool largest = isinf(p);
    *total = 0;
    for (int i = 0; i < n; i++)
        if (largest) /* a NaN stays: comparisons with it are false */
            *total = isnan(v[i]) || v[i] > *total ? v[i] : *total;
        else
            *total += p == 2 ? v[i] * v[i] : pow(v[i], p);
    if (largest) return TN_OK;
    bool plain = *total > 0x1p-960 && *total < INFINITY;
    *total = p == 2 ? sqrt(*total) : pow(*total, 1 / p);
    if (plain) return TN_OK;
    tni_array y = { .data = total, .dtype = TN_F64, .rank = 1, .size = { 1 }, .stride = { 1 } };
    tni_array x = { .data = v, .dtype = TN_F64, .rank = 1, .size = { n }, .stride = { 1 } };
    return tni_cpu_backend()->reduce(&(tni_reduce){ TNI_R_norm, .y = y, .x = x, .p = &p });
}

/* Writes the norms to cells (one per entry, on the first gradient's device) and copies them to host
 * at once; norms that do not fit into cells are read one by one. */
static tn_status take_norms(const tn_list *parameters, double p, tn_tensor *cells, double *host)
{
    size_t nbytes = (size_t)parameters->n * sizeof *host;
    tn_status status = TN_OK;
    for (int i = 0; i < parameters->n && status == TN_OK; i++) {
        tn_tensor *g = nonempty(parameters, i);
        if (g && beside(g, cells))
            status = norm_into((char *)tni_data(cells) + (size_t)i * sizeof *host, g, p);
    }
    if (status == TN_OK) status = tni_backend_of(cells)->download(host, tni_data(cells), nbytes);
    uint64_t errors = tni_error_count;
    for (int i = 0; i < parameters->n && status == TN_OK; i++) {
        tn_tensor *g = nonempty(parameters, i);
        host[i] = g ? norm_of(g, &host[i], p, beside(g, cells)) : 0;
        if (tni_error_count != errors) return tni_pending();
    }
    return status;
}

typedef struct scaling {
    const tn_list *parameters;
    double factor;
} scaling;

static tni_change scaled(const void *from, int i)
{
    const scaling *s = from;
    return (tni_change){ .x = nonempty(s->parameters, i), .rate = s->factor };
}

/* The joint p-norm; NaN with *status set when a kernel failed. */
static double joint_norm(const tn_list *parameters, double p, tn_status *status)
{
    const tn_tensor *first = first_of(parameters);
    double total = 0;
    if (!first) return 0;
    tn_tensor *cells = tn_full_as(TN_SHAPE(parameters->n), 0, TN_F64, first->storage->device);
    TNI_ITEMS(double, host, parameters->n);
    *status = cells && host ? take_norms(parameters, p, cells, host) : tni_pending();
    if (*status == TN_OK) *status = norm_of_norms(host, parameters->n, p, &total);
    return *status == TN_OK ? total : NAN;
}

double tn_clip_grad_norm(const tn_list *parameters, double max_norm, double p,
                         bool error_if_nonfinite)
{
    TNI_HOLD_TRAPS;
    if (check(__func__, parameters, max_norm, p) != TN_OK) return NAN;
    if (tni_host_refused(__func__, "reads the norm on the host", "tn_clip_grad_norm_tensor"))
        return NAN;
    TNI_UNRECORDED;
    tn_status status = TN_OK;
    double total = joint_norm(parameters, p, &status);
    if (status == TN_OK && error_if_nonfinite && !isfinite(total))
        status = tni_error(TN_E_INVALID, "%s: the norm of the gradients is %g: nothing was scaled",
                           __func__, total);
    double factor = max_norm / (total + 1e-6);
    if (status == TN_OK && !(factor >= 1)) /* NaN scales too, as it does in PyTorch */
        status = tni_change_all(__func__, parameters->n, scaled, &(scaling){ parameters, factor });
    if (status == TN_OK) TNI_NOTIFY_OF(clipped, total, max_norm, factor);
    return status == TN_OK ? total : NAN;
}

/* ---- without a wait -------------------------------------------------------------------------- */

/* The norm of each gradient into cell i, in f64. Gradients of other dtypes are read as f32. */
static tn_status norms_into(const tn_list *parameters, double p, tn_tensor *cells)
{
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *g = nonempty(parameters, i);
        if (!g) continue;
        if (!beside(g, cells))
            return tni_error(TN_E_DEVICE,
                             "tn_clip_grad_norm_tensor: the gradient of %s is on another device "
                             "than those before it: want one device",
                             parameters->entry[i].name);
        if (g->dtype != TN_F32 && g->dtype != TN_F64) g = tn_to_dtype(g, TN_F32);
        tn_tensor *norm = g ? tn_norm(g, p, NULL, 0, false) : NULL;
        tn_tensor *cell = norm ? tn_select(cells, 0, i) : NULL;
        TNI_TRY(cell ? tn_copy_(cell, norm) : tni_pending());
    }
    return TN_OK;
}

/* min(1, max_norm / (total + 1e-6)); NaN stays NaN. */
static tn_status scale_by(const tn_list *parameters, tn_tensor *total, double max_norm)
{
    tn_tensor *factor = tn_div(tn_full_like(total, max_norm), tn_add_scalar(total, 1e-6));
    factor = tn_minimum(factor, tn_ones_like(total));
    if (!factor) return tni_pending();
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *g = nonempty(parameters, i);
        if (!g) continue;
        /* not in f16, where a small factor has few bits */
        tn_tensor *own = tn_to_dtype(factor, tni_wide_dtype(g->dtype)), *wide = tni_wide(g);
        if (!own || !wide) return tni_pending();
        TNI_TRY(wide == g ? tn_mul_(g, own) : tn_copy_(g, tn_mul(wide, own)));
    }
    TNI_NOTIFY_OF(clipped, tn_item(total), max_norm, tn_item(factor));
    return TN_OK;
}

tn_tensor *tn_clip_grad_norm_tensor(const tn_list *parameters, double max_norm, double p)
{
    TNI_HOLD_TRAPS;
    if (check(__func__, parameters, max_norm, p) != TN_OK) return NULL;
    const tn_tensor *first = first_of(parameters);
    if (!first)
        return tni_fail(TN_E_STATE,
                        "%s: none of the %d parameters has a gradient: want it after tn_backward",
                        __func__, parameters->n);
    TNI_UNRECORDED;
    tn_tensor *cells = tn_full_as(TN_SHAPE(parameters->n), 0, TN_F64, first->storage->device);
    tn_status status = cells ? norms_into(parameters, p, cells) : tni_pending();
    tn_tensor *total = status == TN_OK ? tn_norm(cells, p, NULL, 0, false) : NULL;
    if (!total || scale_by(parameters, total, max_norm) != TN_OK) total = NULL;
    return tni_scope_return(__func__, scope, total);
}

tn_status tn_clip_grad_value(const tn_list *parameters, double limit)
{
    TNI_HOLD_TRAPS;
    if (!parameters) return tni_poison(__func__, "parameters");
    if (!(limit >= 0)) return tni_error(TN_E_INVALID, "%s: limit %g: want >= 0", __func__, limit);
    TN_NO_GRAD
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *g = gradient_of(&parameters->entry[i]);
        if (g) TNI_TRY(tn_clamp_(g, -limit, limit));
    }
    return TN_OK;
}
