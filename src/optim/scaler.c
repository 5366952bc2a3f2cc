/*
 * scaler.c - a loss times a number, so that small gradients are not lost in f16; the gradients
 * divided by it again; and the number, which follows what the gradients can bear.
 *
 * scale s, after every update with steps that were all taken: the interval-th in a row multiplies
 * s by growth; after one with a step that was skipped for NaN or infinity: s times backoff. s is
 * rounded to f32, and stays where growth would leave f32.
 *
 * Source: Micikevicius et al., Mixed Precision Training (2018), section 3.2; names, order of calls
 * and rounding: torch.amp.GradScaler.
 */
#include <math.h>

#include "autograd/op.h"
#include "optim/optim.h"
#include "tensor/host.h"

/* What a captured step is told. */
#define NO_SCALER "bf16, which needs no scaling, or the step without tn_capture"

/* An optimizer since the last update: its gradients are unscaled. */
typedef struct seen {
    tn_optim *opt; /* one reference */
    bool bad;      /* NaN or infinity among them */
    bool stepped;
} seen;

struct tn_grad_scaler {
    tni_scaler_state state;
    bool disabled;
    int n, capacity;
    seen *seen;
};

static tn_status check_state(const char *f, const tni_scaler_state *s)
{
    if (!(s->scale > 0) || !isfinite(s->scale))
        return tni_error(TN_E_INVALID, "%s: scale %g: a finite number above 0 is wanted", f,
                         s->scale);
    if (!(s->growth > 1) || !isfinite(s->growth))
        return tni_error(TN_E_INVALID, "%s: growth %g: a finite number above 1 is wanted", f,
                         s->growth);
    if (!(s->backoff > 0 && s->backoff < 1))
        return tni_error(TN_E_INVALID, "%s: backoff %g: wanted between 0 and 1", f, s->backoff);
    if (s->interval < 1 || s->good < 0 || s->skipped < 0)
        return tni_error(
            TN_E_INVALID,
            "%s: interval %lld, %lld good steps, %lld skipped: wanted at least 1, 0, 0", f,
            (long long)s->interval, (long long)s->good, (long long)s->skipped);
    return TN_OK;
}

tn_grad_scaler *tn_scaler_new(tn_scaler_options o)
{
    tni_scaler_state state = { .scale = o.init_scale != 0 ? (double)(float)o.init_scale : 65536,
                               .growth = o.growth != 0 ? o.growth : 2,
                               .backoff = o.backoff != 0 ? o.backoff : 0.5,
                               .interval = o.interval != 0 ? o.interval : 2000 };
    if (check_state("tn_scaler_new", &state) != TN_OK) return NULL;
    tn_grad_scaler *s = tni_calloc(sizeof *s);
    if (!s) return NULL;
    s->state = state;
    s->disabled = o.disabled;
    return s;
}

static void forget(tn_grad_scaler *s)
{
    while (s->n > 0) tn_optim_free(s->seen[--s->n].opt);
}

void tn_scaler_free(tn_grad_scaler *s)
{
    if (!s) return;
    forget(s);
    if (s->seen) tni_free(s->seen, (size_t)s->capacity * sizeof *s->seen);
    tni_free(s, sizeof *s);
}

double tn_scaler_value(const tn_grad_scaler *s)
{
    if (!s) tni_poison("tn_scaler_value", "s");
    return !s ? NAN : s->disabled ? 1 : s->state.scale;
}

int64_t tn_scaler_skipped(const tn_grad_scaler *s)
{
    if (!s) tni_poison("tn_scaler_skipped", "s");
    return s ? s->state.skipped : -1;
}

tn_tensor *tn_scaler_scale(tn_grad_scaler *s, tn_tensor *loss)
{
    TNI_HOLD_TRAPS;
    if (!s || !loss) {
        tni_poison("tn_scaler_scale", s ? "loss" : "s");
        return NULL;
    }
    if (s->disabled) return loss;
    if (TNI_UNLIKELY(tni_recording)) {
        tni_record_refuse("tn_scaler_scale", "multiplies by a scale that changes", NO_SCALER);
        return NULL;
    }
    if (tn_dtype_of(loss) == TN_BF16 || tn_dtype_of(loss) == TN_F16)
        loss = tn_to_dtype(loss, TN_F32);
    return tn_mul_scalar(loss, s->state.scale);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The gradients that a step would use. */
static tn_tensor *gradient_of(const tni_optim_param *p)
{
    const tni_gradmeta *gm = p->tensor->gm;
    return p->tensor->requires_grad && gm && gm->grad ? gm->grad : NULL;
}

/* *bad: some gradient holds NaN or infinity. One number leaves the device. */
static tn_status look(const tn_optim *opt, bool *bad)
{
    tn_tensor *largest = NULL;
    *bad = false;
    for (int i = 0; i < opt->n; i++) {
        tn_tensor *g = gradient_of(&opt->param[i]);
        if (!g || tni_shape_numel(&g->shape) == 0) continue;
        if (g->dtype != TN_F32 && g->dtype != TN_F64)
            return tni_error(TN_E_DTYPE,
                             "tn_scaler_unscale: the gradient of %s is %s: f32 or f64 is wanted "
                             "(parameters stay f32, "
                             "tn_set_autocast casts them)",
                             opt->param[i].name, tn_dtype_name(g->dtype));
        tn_tensor *norm = tn_norm(g, INFINITY, NULL, 0, false);
        largest = largest ? tn_maximum(largest, norm) : norm;
        if (!largest) return tni_pending();
    }
    *bad = largest && !isfinite(tn_item(largest));
    return TN_OK;
}

static seen *find(tn_grad_scaler *s, const tn_optim *opt)
{
    for (int i = 0; i < s->n; i++)
        if (s->seen[i].opt == opt) return &s->seen[i];
    return NULL;
}

static tn_status reserve(tn_grad_scaler *s)
{
    if (s->n < s->capacity) return TN_OK;
    int capacity = s->capacity ? 2 * s->capacity : 2;
    seen *larger = tni_alloc((size_t)capacity * sizeof *larger);
    if (!larger) return TN_E_NOMEM;
    if (s->seen) {
        memcpy(larger, s->seen, (size_t)s->n * sizeof *larger);
        tni_free(s->seen, (size_t)s->capacity * sizeof *larger);
    }
    s->seen = larger;
    s->capacity = capacity;
    return TN_OK;
}

typedef struct unscaling {
    const tn_optim *opt;
    double factor;
} unscaling;

static tni_change unscaled(const void *from, int i)
{
    const unscaling *u = from;
    return (tni_change){ .x = gradient_of(&u->opt->param[i]), .rate = u->factor };
}

/* As in PyTorch, gradients that hold NaN or infinity are divided too: clipping sees them. */
static tn_status unscale(tn_grad_scaler *s, tn_optim *opt)
{
    if (TNI_UNLIKELY(tni_recording))
        return tni_record_refuse("tn_scaler_unscale", "looks at the gradients on the host",
                                 NO_SCALER);
    tn_scope scope = tn_scope_begin();
    bool was = tn_set_grad(false);
    bool bad;
    tn_status status = reserve(s);
    if (status == TN_OK) status = look(opt, &bad);
    if (status == TN_OK)
        status = tni_change_all("tn_scaler_unscale", opt->n, unscaled,
                                &(unscaling){ opt, 1 / s->state.scale });
    if (status == TN_OK) s->seen[s->n++] = (seen){ .opt = tni_optim_keep(opt), .bad = bad };
    tn_set_grad(was);
    tn_scope_end(scope);
    return status;
}

tn_status tn_scaler_unscale(tn_grad_scaler *s, tn_optim *opt)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_scaler_unscale";
    if (!s || !opt) return tni_poison(f, s ? "opt" : "s");
    if (s->disabled) return TN_OK;
    if (find(s, opt))
        return tni_error(
            TN_E_STATE,
            "%s: this optimizer's gradients are unscaled already: wanted once between two "
            "tn_scaler_update",
            f);
    return unscale(s, opt);
}

tn_status tn_scaler_step(tn_grad_scaler *s, tn_optim *opt)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_scaler_step";
    if (!s || !opt) return tni_poison(f, s ? "opt" : "s");
    if (s->disabled) return tn_optim_step(opt);
    tn_status status = find(s, opt) ? TN_OK : unscale(s, opt);
    if (status != TN_OK) return status;
    seen *e = find(s, opt);
    if (e->stepped)
        return tni_error(TN_E_STATE,
                         "%s: this optimizer has stepped already: wanted once between two "
                         "tn_scaler_update",
                         f);
    if (!e->bad) status = tn_optim_step(opt);
    if (status != TN_OK) return status;
    s->state.skipped += e->bad;
    e->stepped = true;
    return TN_OK;
}

tn_status tn_scaler_update(tn_grad_scaler *s)
{
    TNI_HOLD_TRAPS;
    bool bad = false;
    if (!s) return tni_poison("tn_scaler_update", "s");
    if (s->disabled) return TN_OK;
    if (s->n == 0)
        return tni_error(TN_E_STATE,
                         "tn_scaler_update: no gradients were looked at since the last one: "
                         "tn_scaler_step comes before it");
    for (int i = 0; i < s->n; i++) bad = bad || s->seen[i].bad;
    forget(s);
    if (bad) {
        float scale = (float)(s->state.scale * s->state.backoff);
        if (scale > 0) s->state.scale = scale;
        s->state.good = 0;
    } else if (++s->state.good >= s->state.interval) {
        float scale = (float)(s->state.scale * s->state.growth);
        if (isfinite(scale)) s->state.scale = scale;
        s->state.good = 0;
    }
    return TN_OK;
}

/* ---- state ----------------------------------------------------------------------------------- */

tn_list *tn_scaler_state_dict(tn_grad_scaler *s)
{
    if (!s) return tni_poisoned("tn_scaler_state_dict", "s");
    tn_list *list = tn_list_new();
    if (!list || s->disabled) return list;
    const tni_scaler_state *t = &s->state;
    bool made = tni_list_f64(list, "scale", t->scale) == TN_OK &&
                tni_list_f64(list, "growth_factor", t->growth) == TN_OK &&
                tni_list_f64(list, "backoff_factor", t->backoff) == TN_OK &&
                tni_list_i64(list, "growth_interval", t->interval) == TN_OK &&
                tni_list_i64(list, "growth_tracker", t->good) == TN_OK &&
                tni_list_i64(list, "skipped", t->skipped) == TN_OK;
    return made ? list : NULL;
}

tn_status tni_scaler_stage(const tn_grad_scaler *s, const tn_list *state, tni_scaler_state *staged)
{
    static const char f[] = "tn_scaler_load_state_dict";
    tni_report r = { 0 };
    *staged = s->state;
    if (s->disabled) return TN_OK;
    size_t n_used = (size_t)TNI_MAX(state->n, 1);
    bool *used = tni_calloc(n_used);
    if (!used) return TN_E_NOMEM;
    tni_report_f64(&r, state, used, "scale", &staged->scale);
    tni_report_f64(&r, state, used, "growth_factor", &staged->growth);
    tni_report_f64(&r, state, used, "backoff_factor", &staged->backoff);
    tni_report_i64(&r, state, used, "growth_interval", &staged->interval);
    tni_report_i64(&r, state, used, "growth_tracker", &staged->good);
    tni_report_i64(&r, state, used, "skipped", &staged->skipped);
    tni_report_unused(&r, state, used);
    tni_free(used, n_used);
    tn_status status = tni_report_end(&r, f);
    return status == TN_OK ? check_state(f, staged) : status;
}

void tni_scaler_commit(tn_grad_scaler *s, const tni_scaler_state *staged)
{
    s->state = *staged;
}

tn_status tn_scaler_load_state_dict(tn_grad_scaler *s, const tn_list *state)
{
    tni_scaler_state staged;
    if (!s || !state) return tni_poison("tn_scaler_load_state_dict", s ? "state" : "s");
    tn_status status = tni_scaler_stage(s, state, &staged);
    if (status == TN_OK) tni_scaler_commit(s, &staged);
    return status;
}
