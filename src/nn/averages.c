/*
 * averages.c - averages of a model's parameters over training, held as buffers.
 *
 * The n-th update, n from 0, gives every averaged tensor the value a += w (x - a): w = 1 for n = 0,
 * then 1 - decay, or 1 / (n + 1) for the equal average. Polyak and Juditsky (1992), eq. 2; Izmailov
 * et al., Averaging weights leads to wider optima (2018), algorithm 1.
 *
 * The average is a clone of the model, so it can be called; its parameters are registered as
 * buffers, so no optimizer can change them. What is bf16 or f16 in the model is f32 there: the
 * share of an update is far below half a unit of those. State dict names and order are those of
 * PyTorch's AveragedModel: n_averaged, then the model's names prefixed with "module.".
 *
 * tn_ema_use gives the average's memory to the model's tensors, so that whoever holds these
 * computes with it. Slots keep theirs, and a mark on that memory refuses every change meanwhile.
 */
#include "nn/module.h"

typedef struct ema {
    tn_module base;
    tn_module *module;
    tn_tensor *n_averaged;
    tn_ema_options o;
} ema;

static tn_status ema_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out)
{
    return tn_call(((ema *)self)->module, n_in, in, n_out, out);
}

static void ema_describe(const tn_module *self, char *text, size_t size)
{
    const ema *m = (const ema *)self;
    char average[32];
    snprintf(average, sizeof average, m->o.equal ? "equal" : "decay %g", m->o.decay);
    snprintf(text, size, "%s%s", average, m->o.average_buffers ? ", buffers averaged" : "");
}

TNI_TYPE(ema, "Ema", ema, .forward_n = ema_forward, .describe = ema_describe)

/* ---- making ---------------------------------------------------------------------------------- */

/* model, with 16-bit floats turned into f32: in 16 bits an average would not move. */
static tn_module *widened(tn_module *model)
{
    tn_module *m = tn_module_clone(model);
    if (!m || tni_module_widen("tn_ema_new", m) == TN_OK) return m;
    tn_module_drop(m);
    return NULL;
}

static void hold(tn_module *m, tni_slot *slot)
{
    tn_tensor *t = tni_slot_put(m, slot, TN_NONE);
    slot->kind = TNI_BUFFER;
    slot->flags = TN_STATISTIC;
    if (!tni_none(t)) tn_set_requires_grad(t, false); /* a leaf: cannot fail */
    tni_slot_put(m, slot, t);
    tn_drop(t);
}

/* Makes parameters buffers, and moves them to the front: state dicts list parameters first. */
static tn_status hold_parameters(tn_module *m, const char *path, void *user)
{
    size_t n = (size_t)m->state->n, at = 0;
    (void)path;
    (void)user;
    TNI_ITEMS(tni_slot, ordered, n);
    if (!ordered) return TN_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (m->state->slot[i].kind == TNI_PARAMETER) ordered[at++] = m->state->slot[i];
    const size_t parameters = at;
    for (size_t i = 0; i < n; i++)
        if (m->state->slot[i].kind != TNI_PARAMETER) ordered[at++] = m->state->slot[i];
    tni_slots_reorder(m, ordered);
    for (size_t i = 0; i < parameters; i++) hold(m, &m->state->slot[i]);
    return TN_OK;
}

tn_module *tn_ema_new(tn_module *model, tn_ema_options o)
{
    if (tni_module_check("tn_ema_new", model) != TN_OK) return NULL;
    if (!(o.decay >= 0 && o.decay <= 1))
        return tni_fail(TN_E_INVALID, "tn_ema_new: decay %g: want a number in [0, 1]", o.decay);
    if ((o.decay != 0 || o.use_decay) && o.equal)
        return tni_fail(TN_E_INVALID, "tn_ema_new: decay %g and equal: want one of them", o.decay);
    o.decay = tni_given(o.decay, o.use_decay, 0.999);
    ema *m = tn_module_new(&ema_type);
    if (!m) return NULL;
    m->o = o;
    m->base.state->training = model->state->training;
    tn_register_buffer(&m->base, "n_averaged", &m->n_averaged,
                       tn_full_as(TN_SCALAR, 0, TN_I64, tn_cpu()), TN_COUNTER);
    if (tn_register_module(&m->base, "module", &m->module, widened(model)) == TN_OK)
        /* tn_module_done reports a failure */
        tni_walk(m->module, TNI_ONCE, hold_parameters, NULL, NULL);
    return tn_module_done(&m->base);
}

/* ---- updating and using ---------------------------------------------------------------------- */

static ema *check_type(const char *function, tn_module *m)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    if (m->type == &ema_type) return (ema *)m;
    return tni_fail(TN_E_INVALID, "%s: the module is a %s: want an Ema", function, m->type->name);
}

/* Parameters and buffers of a model but caches; tied ones once, or under every name. */
static tn_list *members(tn_module *m, bool every)
{
    tn_walk_options o = { .keep_duplicates = every, .no_caches = true };
    return tn_list_concat(tn_parameters_with(m, o), tn_buffers_with(m, o));
}

/* Both trees must have the same names, shapes, kinds of dtype, and ties. */
static tn_status compare(const char *function, const tn_list *average, const tn_list *model)
{
    for (int i = 0; i < model->n; i++)
        if (!tni_list_find(average, model->entry[i].name))
            return tni_error(TN_E_NAME, "%s: the average has no %s: want the model it was made of",
                             function, model->entry[i].name);
    for (int i = 0; i < average->n; i++) {
        const tn_entry *e = &average->entry[i], *from = tni_list_find(model, e->name);
        if (!from)
            return tni_error(TN_E_NAME, "%s: the model has no %s: want the one it was made of",
                             function, e->name);
        const tn_tensor *a = e->tensor, *x = from->tensor;
        TNI_TRY(tni_may_change(function, e->name, TNI_AVERAGED(x->is_buffer)));
        bool floats = tn_dtype_is_float(a->dtype) && tn_dtype_is_float(x->dtype);
        if (!tni_shape_equal(&a->shape, &x->shape) || (!floats && a->dtype != x->dtype))
            return tni_error(TN_E_SHAPE,
                             "%s: %s is %s %s in the average, %s %s in the model: want "
                             "the model it was made of",
                             function, e->name, tni_shape_text(&a->shape), tn_dtype_name(a->dtype),
                             tni_shape_text(&x->shape), tn_dtype_name(x->dtype));
    }
    return TN_OK;
}

typedef struct averaging {
    const ema *m;
    tn_list *to, *from; /* entry by entry */
    double n;           /* updates so far */
} averaging;

/* All tensors of the average, or of the model, and the other's values beside them. */
static tn_status pair(const char *function, const ema *m, tn_module *model, bool into_model,
                      averaging *a)
{
    tn_list *average = members(m->module, false), *all = members(m->module, true);
    tn_list *once = members(model, false), *every = members(model, true);
    a->to = into_model ? once : average;
    a->from = tn_list_new();
    if (!average || !all || !once || !every || !a->from) return tni_pending();
    tn_status status = compare(function, all, every);
    if (status == TN_OK && average->n != once->n)
        status = tni_error(TN_E_STATE,
                           "%s: %d tensors in the average, %d in the model: want the ties it had "
                           "when the average was made",
                           function, average->n, once->n);
    for (int i = 0; status == TN_OK && i < a->to->n; i++) {
        const tn_tensor *to = a->to->entry[i].tensor;
        tn_entry e = *tni_list_find(into_model ? all : every, a->to->entry[i].name);
        e.tensor = tn_to_dtype(tn_to(e.tensor, to->storage->device), to->dtype);
        if (into_model) e.tensor = tn_detach(e.tensor); /* a handle of its own, to swap with */
        status = e.tensor ? tni_list_push(a->from, "", "", e.name, e) : tni_pending();
    }
    return status;
}

/* An average, or a copy. */
static tni_change averaged(const void *from, int i)
{
    const averaging *a = from;
    const tn_ema_options *o = &a->m->o;
    const tn_entry *source = &a->from->entry[i];
    tn_tensor *x = a->to->entry[i].tensor;
    bool moves = a->n > 0 && tni_has_mean(source->role, x->dtype) &&
                 (source->kind == TN_PARAMETER || o->average_buffers);
    return (tni_change){ x, source->tensor, !moves ? 1 : o->equal ? 1 / (a->n + 1) : 1 - o->decay };
}

/* One launch for all but integers: those are copied before it, and again at the next update. The
 * count changes last. */
static tn_status update(const char *function, const ema *m, tn_module *model)
{
    averaging a = { .m = m, .n = tn_item(m->n_averaged) };
    tn_tensor *count = m->n_averaged, *next = tn_add_scalar(count, 1);
    if (isnan(a.n) || !next) return tni_pending();
    TNI_TRY(pair(function, m, model, false, &a));
    TNI_TRY(tni_change_all(function, a.to->n, averaged, &a));
    tn_status status = tni_put_last(count, next);
    tni_bump_version(count);
    return status;
}

static tn_status use(const char *function, const ema *m, tn_module *model)
{
    averaging a;
    tn_status status = pair(function, m, model, true, &a);
    for (int i = 0; status == TN_OK && i < a.to->n; i++) { /* cannot fail */
        const tn_entry *e = &a.to->entry[i];
        tni_slot_set_own(e->owner, tni_slot_of(e->owner, e->name), a.from->entry[i].tensor);
    }
    return status;
}

static void restore(tn_module *m, void *any)
{
    for (int i = 0; i < m->state->n; i++) {
        if (!m->state->slot[i].own) continue;
        tni_slot_set_own(m, &m->state->slot[i], NULL);
        *(bool *)any = true;
    }
}

tn_status tn_ema_restore(tn_module *model)
{
    bool any = false;
    tn_status status = tni_change_modules("tn_ema_restore", model, restore, &any);
    if (status != TN_OK || any) return status;
    return tni_error(TN_E_STATE, "tn_ema_restore: the %s has its own values: want tn_ema_use",
                     model->type->name);
}

static tn_status changed(const char *function, tn_module *self, tn_module *model,
                         tn_status (*change)(const char *function, const ema *m, tn_module *model))
{
    TNI_HOLD_TRAPS;
    const ema *m = check_type(function, self);
    if (!m) return tni_pending();
    if (tni_host_refused(function, "reads how many updates there were, or exchanges memory",
                         "it called after tn_capture_run"))
        return TN_E_STATE;
    TNI_TRY(tni_module_check(function, model));
    TNI_UNRECORDED;
    return scope.depth < 0 ? tni_pending() : change(function, m, model);
}

#define CHANGE(tn_name, change)                                                                    \
    tn_status tn_name(tn_module *self, tn_module *model)                                           \
    {                                                                                              \
        return changed(#tn_name, self, model, change);                                             \
    }
CHANGE(tn_ema_update, update)
CHANGE(tn_ema_use, use)

tn_module *tn_ema_module(tn_module *self)
{
    const ema *m = check_type("tn_ema_module", self);
    return m ? m->module : NULL;
}
