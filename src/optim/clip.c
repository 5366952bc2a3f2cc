/*
 * clip.c - limits on gradients, before a step.
 *
 * By norm: total = (sum_i |g_i|_p^p)^(1/p), every gradient times min(1, max_norm / (total + 1e-6)).
 * The norm of each tensor is taken by the kernel, the total in double in the order of the list, so
 * the bits do not depend on threads.
 *
 * Source: Pascanu et al., On the difficulty of training recurrent neural networks (2013), algorithm
 * 1; the 1e-6 is PyTorch's.
 */
#include <math.h>

#include "autograd/op.h"
#include "optim/optim.h"

static tn_tensor *gradient_of(const tn_entry *e)
{
    const tn_tensor *t = e->tensor;
    return t && !tni_none(t) && t->gm && t->gm->grad && !tni_none(t->gm->grad) ? t->gm->grad : NULL;
}

/* The joint p-norm; NaN with *status set when a kernel failed. */
static double joint_norm(const tn_list *parameters, double p, tn_status *status)
{
    double total = 0;
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *g = gradient_of(&parameters->entry[i]);
        if (!g || tni_shape_numel(&g->shape) == 0) continue;
        tn_tensor *norm = tn_norm(g, p, NULL, 0, false);
        if (!norm) {
            *status = tni_pending();
            return NAN;
        }
        double v = tn_item(norm);
        if (isinf(p))
            total =
                isnan(v) || v > total ? v : total; /* a NaN stays: no comparison with it holds */
        else
            total += p == 2 ? v * v : pow(v, p);
    }
    if (isinf(p)) return total;
    return p == 2 ? sqrt(total) : pow(total, 1 / p);
}

double tn_clip_grad_norm(const tn_list *parameters, double max_norm, double p,
                         bool error_if_nonfinite)
{
    static const char f[] = "tn_clip_grad_norm";
    if (!parameters) {
        tni_poison(f, "parameters");
        return NAN;
    }
    if (!(max_norm >= 0) || !(p > 0)) {
        tni_error(TN_E_INVALID, "%s: max_norm %g, p %g: max_norm >= 0 and p > 0 are wanted", f,
                  max_norm, p);
        return NAN;
    }
    tn_scope scope = tn_scope_begin();
    bool was = tn_set_grad(false);
    tn_status status = TN_OK;
    double total = joint_norm(parameters, p, &status);
    if (status == TN_OK && error_if_nonfinite && !isfinite(total))
        status = tni_error(TN_E_INVALID, "%s: the norm of the gradients is %g: nothing was scaled",
                           f, total);
    double factor = max_norm / (total + 1e-6);
    if (status == TN_OK && !(factor >= 1)) /* NaN scales too, as it does in PyTorch */
        for (int i = 0; status == TN_OK && i < parameters->n; i++) {
            tn_tensor *g = gradient_of(&parameters->entry[i]);
            if (g) status = tn_mul_scalar_(g, factor);
        }
    tn_set_grad(was);
    tn_scope_end(scope);
    return status == TN_OK ? total : NAN;
}

tn_status tn_clip_grad_value(const tn_list *parameters, double limit)
{
    static const char f[] = "tn_clip_grad_value";
    if (!parameters) return tni_poison(f, "parameters");
    if (!(limit >= 0)) return tni_error(TN_E_INVALID, "%s: limit %g: wanted >= 0", f, limit);
    bool was = tn_set_grad(false);
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < parameters->n; i++) {
        tn_tensor *g = gradient_of(&parameters->entry[i]);
        if (g) status = tn_clamp_(g, -limit, limit);
    }
    tn_set_grad(was);
    return status;
}
