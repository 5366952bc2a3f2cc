/*
 * scaler.c - multiplies the loss by a scale, so that small gradients are not lost in f16, divides
 * the gradients by it again, and adapts the scale to what f16 can hold.
 *
 * An update is good if no step since the last one was skipped for NaN or infinity. After interval
 * good updates in a row the scale is multiplied by growth, after one that is not good by backoff.
 * It is rounded to f32, and stays as it is where growth would exceed f32; backoff ends at 0.
 *
 * Source: Micikevicius et al., Mixed Precision Training (2018), section 3.2; names, order of calls
 * and rounding: torch.amp.GradScaler.
 */
#include "optim/optim.h"

/* What the message of a captured step recommends. */
#define NO_SCALER "bf16, which needs no scaling, or the step without tn_capture"

/* An optimizer since the last update: its gradients are unscaled. */
typedef struct seen {
    tn_optim *opt; /* one reference */
    bool bad;      /* NaN or infinity among them */
    bool stepped;
} seen;

/* What a file holds. */
typedef struct numbers {
    double scale, growth, backoff;
    int64_t interval;
    int64_t good;    /* updates in a row without a skipped step */
    int64_t skipped; /* steps, ever */
} numbers;

struct tn_scaler {
    numbers now;
    bool disabled;
    size_t n, capacity;
    seen *seen;
};

static tn_status check(const char *f, const numbers *s)
{
    if (!(s->scale > 0) || !isfinite(s->scale))
        return tni_error(TN_E_INVALID, "%s: scale %g: want a finite number above 0", f, s->scale);
    if (!(s->growth > 1) || !isfinite(s->growth))
        return tni_error(TN_E_INVALID, "%s: growth %g: want a finite number above 1", f, s->growth);
    if (!(s->backoff > 0 && s->backoff < 1))
        return tni_error(TN_E_INVALID, "%s: backoff %g: want between 0 and 1", f, s->backoff);
    if (s->interval < 1 || s->good < 0 || s->skipped < 0)
        return tni_error(TN_E_INVALID,
                         "%s: interval %" PRId64 ", %" PRId64 " good steps, %" PRId64
                         " skipped: want at least 1, 0, 0",
                         f, s->interval, s->good, s->skipped);
    return TN_OK;
}

tn_scaler *tn_scaler_new(tn_scaler_options o)
{
    TNI_HOLD_TRAPS;
    numbers now = { .scale = o.init_scale != 0 ? (double)(float)o.init_scale : 65536,
                    .growth = o.growth != 0 ? o.growth : 2,
                    .backoff = o.backoff != 0 ? o.backoff : 0.5,
                    .interval = o.interval != 0 ? o.interval : 2000 };
    if (check("tn_scaler_new", &now) != TN_OK) return NULL;
    tn_scaler *s = tni_calloc(sizeof *s);
    if (!s) return NULL;
    s->now = now;
    s->disabled = o.disabled;
    return s;
}

static void forget(tn_scaler *s)
{
    while (s->n > 0) tn_optim_free(s->seen[--s->n].opt);
}

void tn_scaler_free(tn_scaler *s)
{
    if (!s) return;
    forget(s);
    tni_room_free(&s->seen, &s->capacity, sizeof *s->seen);
    tni_free(s, sizeof *s);
}

double tn_scaler_value(const tn_scaler *s)
{
    if (!s) tni_poison("tn_scaler_value", "s");
    return !s ? NAN : s->disabled ? 1 : s->now.scale;
}

int64_t tn_scaler_skipped(const tn_scaler *s)
{
    if (!s) tni_poison("tn_scaler_skipped", "s");
    return s ? s->now.skipped : -1;
}

tn_tensor *tn_scaler_scale(tn_scaler *s, tn_tensor *loss)
{
    TNI_HOLD_TRAPS;
    if (!s || !loss) return tni_poisoned(__func__, s ? "loss" : "s");
    if (s->disabled) return loss;
    if (tni_host_refused(__func__, "multiplies by a scale that changes", NO_SCALER)) return NULL;
    return tn_mul_scalar(tni_wide(loss), s->now.scale);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The gradients that a step would use. */
static tn_tensor *gradient_of(const tni_optim_param *p)
{
    return tni_optim_skips(p) ? NULL : tni_grad_of(p->tensor);
}

/* *bad: some gradient holds NaN or infinity. Reads one number from the device. */
static tn_status look(const tn_optim *opt, bool *bad)
{
    tn_tensor *largest = NULL;
    *bad = false;
    for (int i = 0; i < opt->n; i++) {
        tn_tensor *g = gradient_of(&opt->param[i]);
        if (!g || tni_shape_numel(&g->shape) == 0) continue;
        if (g->dtype == TN_F16) /* as PyTorch: what underflowed is lost */
            return tni_error(TN_E_DTYPE,
                             "tn_scaler_unscale: the gradient of %s is %s: want f32, f64 or bf16 "
                             "(parameters stay f32, tn_set_autocast casts them)",
                             opt->param[i].name, tn_dtype_name(g->dtype));
        tn_tensor *norm = tn_norm(g, INFINITY, NULL, 0, false);
        largest = largest ? tn_maximum(largest, norm) : norm;
        if (!largest) return tni_pending();
    }
    *bad = largest && !isfinite(tn_item(largest));
    return TN_OK;
}

static seen *find(tn_scaler *s, const tn_optim *opt)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->seen[i].opt == opt) return &s->seen[i];
    return NULL;
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
static tn_status unscale(tn_scaler *s, tn_optim *opt)
{
    if (tni_host_refused("tn_scaler_unscale", "looks at the gradients on the host", NO_SCALER))
        return TN_E_STATE;
    if (opt->type->closure)
        return tni_error(TN_E_STATE,
                         "tn_scaler_unscale: %s evaluates the loss again: want no scaler",
                         tni_optim_label(opt->type));
    if (s->now.scale == 0)
        return tni_error(TN_E_STATE,
                         "tn_scaler_unscale: the scale has fallen to 0, by which no gradient can "
                         "be divided, after %" PRId64 " skipped steps: want a loss that is finite",
                         s->now.skipped);
    TNI_UNRECORDED;
    bool bad;
    if (!tni_room(&s->seen, &s->capacity, s->n, 1, sizeof *s->seen)) return TN_E_NOMEM;
    TNI_TRY(look(opt, &bad));
    TNI_TRY(tni_change_all("tn_scaler_unscale", opt->n, unscaled,
                           &(unscaling){ opt, 1 / s->now.scale }));
    s->seen[s->n++] = (seen){ .opt = tni_optim_keep(opt), .bad = bad };
    return TN_OK;
}

tn_status tn_scaler_unscale(tn_scaler *s, tn_optim *opt)
{
    TNI_HOLD_TRAPS;
    if (!s || !opt) return tni_poison(__func__, s ? "opt" : "s");
    if (s->disabled) return TN_OK;
    if (find(s, opt))
        return tni_error(TN_E_STATE,
                         "%s: this optimizer's gradients are unscaled already: want once between "
                         "two tn_scaler_update",
                         __func__);
    return unscale(s, opt);
}

tn_status tn_scaler_step(tn_scaler *s, tn_optim *opt)
{
    TNI_HOLD_TRAPS;
    if (!s || !opt) return tni_poison(__func__, s ? "opt" : "s");
    if (s->disabled) return tn_optim_step(opt);
    if (!find(s, opt)) TNI_TRY(unscale(s, opt));
    seen *e = find(s, opt);
    if (e->stepped)
        return tni_error(
            TN_E_STATE,
            "%s: this optimizer has stepped already: want once between two tn_scaler_update",
            __func__);
    const int64_t steps = tn_optim_steps(opt);
    const tn_status status = e->bad ? TN_OK : tn_optim_step(opt);
    e->stepped = e->bad || tn_optim_steps(opt) > steps; /* even if a hook failed after it */
    s->now.skipped += e->bad;
    return status;
}

tn_status tn_scaler_update(tn_scaler *s)
{
    TNI_HOLD_TRAPS;
    bool bad = false;
    if (!s) return tni_poison("tn_scaler_update", "s");
    if (s->disabled) return TN_OK;
    if (s->n == 0)
        return tni_error(TN_E_STATE, "tn_scaler_update: no gradients were looked at since the last "
                                     "one: tn_scaler_step comes before it");
    for (size_t i = 0; i < s->n; i++) bad = bad || s->seen[i].bad;
    forget(s);
    if (bad) {
        s->now.scale = (float)(s->now.scale * s->now.backoff);
        s->now.good = 0;
    } else if (++s->now.good >= s->now.interval) {
        float scale = (float)(s->now.scale * s->now.growth);
        if (isfinite(scale)) s->now.scale = scale;
        s->now.good = 0;
    }
    return TN_OK;
}

/* ---- state ----------------------------------------------------------------------------------- */

static void show(tni_serializer *f, numbers *now)
{
    tni_field_f64(f, "scale", &now->scale);
    tni_field_f64(f, "growth_factor", &now->growth);
    tni_field_f64(f, "backoff_factor", &now->backoff);
    tni_field_i64(f, "growth_interval", &now->interval);
    tni_field_i64(f, "growth_tracker", &now->good);
    tni_field_i64(f, "skipped", &now->skipped);
}

tn_list *tn_scaler_state_dict(tn_scaler *s)
{
    if (!s) return tni_poisoned("tn_scaler_state_dict", "s");
    tni_serializer f;
    tni_serializer_save(__func__, &f);
    if (!s->disabled) show(&f, &s->now);
    return tni_serializer_saved(&f);
}

tni_staged *tni_scaler_stage(tn_scaler *s, const tn_list *state)
{
    static const char function[] = "tn_scaler_load_state_dict";
    static const tn_list nothing;
    tni_serializer f;
    tni_serializer_load(&f, s->disabled ? &nothing : state);
    if (!s->disabled) show(&f, &s->now);
    tn_status status = tni_serializer_loaded(&f, function);
    if (status == TN_OK && !s->disabled) status = check(function, &s->now);
    return tni_serializer_staged(&f, status);
}

tn_status tn_scaler_load_state_dict(tn_scaler *s, const tn_list *state)
{
    if (!s || !state) return tni_poison("tn_scaler_load_state_dict", s ? "state" : "s");
    return tni_staged_put(tni_scaler_stage(s, state));
}
