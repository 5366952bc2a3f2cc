/*
 * parametrizations.c - spectral norm: a layer's parameter made of another one at every call.
 *
 * w = v / s, s = a^T M b: M is v as a matrix, a and b are unit vectors that the power method brings
 * closer to M's first singular vectors; Miyato et al., Spectral Normalization for GANs (2018),
 * algorithm 1.
 *
 * The layer keeps its type. In place of the parameter it gets a child "parametrizations", whose
 * child of the parameter's name holds v. Each call of the layer makes w first, and puts it into its
 * field until the call ends (call.c); between calls that is TN_NONE.
 */
#include "nn/layers/layer.h"

/* How it is made: child "0" of what holds the original. */
typedef struct spectral {
    tn_module base;
    tn_tensor *u, *v; /* a and b */
    int axis, iterations;
    double eps;
} spectral;

typedef struct originals {
    tn_module base;
    tn_tensor *w;
    tn_module *made_by;
} originals;

static const tn_module_type list_type = { .name = "ParametrizationList",
                                          .size = sizeof(originals) };
static const tn_module_type spectral_type = { .name = "SpectralNorm", .size = sizeof(spectral) };

static tn_tensor *as_matrix(const spectral *s, tn_tensor *w)
{
    if (!w) return NULL;
    int axes[TN_MAX_RANK] = { s->axis }, n = 1;
    for (int d = 0; d < w->shape.rank; d++)
        if (d != s->axis) axes[n++] = d;
    w = tn_permute(w, axes, n);
    return w ? tn_reshape(w, TN_SHAPE(w->shape.size[0], -1)) : NULL;
}

static tn_tensor *unit(tn_tensor *x, double eps)
{
    return tn_normalize(x, 2, 0, eps);
}

/* The power method, from u and v. */
static tn_status iterate(spectral *s, tn_tensor *matrix, int times)
{
    tn_tensor *u = s->u, *v = s->v;
    TN_NO_GRAD
    for (int i = 0; i < times; i++) {
        u = unit(tn_matmul(matrix, v), s->eps);
        v = unit(tn_matmul(u, matrix), s->eps);
    }
    TNI_TRY(u && v ? tn_copy_(s->u, u) : tni_pending());
    return tn_copy_(s->v, v);
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Held while a field has what was made: other threads call the module after that. */
static pthread_mutex_t making = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static tn_tensor *put(tn_module *m, tn_tensor *t)
{
    char *field = (char *)m + m->state->made;
    tn_tensor *was;
    memcpy(&was, field, sizeof was);
    memcpy(field, &t, sizeof t);
    return was;
}

tn_tensor *tni_made(tn_module *m)
{
    const tni_slot *dict = tni_slot_find(m, "parametrizations", 16);
    bool has = dict && dict->kind == TNI_CHILD && tn_module_children(dict->child) == 1;
    originals *o = has ? (originals *)tn_module_child(dict->child, 0) : NULL;
    if (!o || o->base.type != &list_type)
        return tni_fail(TN_E_STATE, "%s: tn_spectral_norm's child \"parametrizations\" is gone",
                        m->type->name);
    spectral *s = (spectral *)o->made_by;
    tn_dtype casting = tni_autocasting;
    pthread_mutex_lock(&making);
    tni_autocasting = TN_F32; /* no products in bf16 */
    tn_tensor *w = tn_to_dtype(o->w, s->u->dtype), *matrix = as_matrix(s, w), *made = NULL;
    tn_status status = matrix ? TN_OK : tni_pending();
    if (status == TN_OK && tn_training(&s->base)) status = iterate(s, matrix, s->iterations);
    if (status == TN_OK) { /* copies, since the next call may come before backward */
        tn_tensor *u = tn_clone(s->u), *v = tn_clone(s->v);
        made = tn_to_dtype(tn_div(w, tn_matmul(u, tn_matmul(matrix, v))), o->w->dtype);
    }
    tni_autocasting = casting;
    if (!made) pthread_mutex_unlock(&making);
    return made ? put(m, made) : NULL;
}

void tni_made_end(tn_module *m, tn_tensor *was)
{
    put(m, was);
    pthread_mutex_unlock(&making);
}

/* ---- making one ------------------------------------------------------------------------------ */

/* A unit vector of random direction. */
static tn_tensor *direction(int64_t n, const tn_tensor *w, double eps)
{
    return tn_to(tn_to_dtype(unit(tn_randn(TN_SHAPE(n)), eps), tni_wide_dtype(w->dtype)),
                 tn_device_of(w));
}

/* u and v: random, after 15 iterations. */
static tn_module *spectral_new(tn_tensor *w, const tn_module *m, tn_spectral_norm_options o)
{
    spectral *s = tn_module_new(&spectral_type);
    if (!s) return NULL;
    s->base.state->training = m->state->training;
    s->base.state->frozen = m->state->frozen;
    s->axis = (int)o.axis;
    s->iterations = (int)tni_or_int(o.iterations, 1);
    s->eps = tni_given(o.eps, false, 1e-12);
    tn_tensor *matrix = as_matrix(s, tni_wide(tn_detach(w)));
    if (!matrix) return tn_module_done(&s->base);
    tn_register_buffer(&s->base, "_u", &s->u, direction(matrix->shape.size[0], w, s->eps),
                       TN_DIRECTION);
    tn_register_buffer(&s->base, "_v", &s->v, direction(matrix->shape.size[1], w, s->eps),
                       TN_DIRECTION);
    if (s->u && s->v) tni_disregard(iterate(s, matrix, 15)); /* an error ends the construction */
    return tn_module_done(&s->base);
}

tn_status tn_spectral_norm(tn_module *m, const char *name, tn_spectral_norm_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_module_check(__func__, m) != TN_OK ||
        tni_at_least(__func__, "iterations", o.iterations, 0) != TN_OK ||
        tni_check_eps(__func__, o.eps) != TN_OK)
        return tni_pending();
    const tni_slot *slot = name ? tni_slot_find(m, name, strlen(name)) : NULL;
    if (!slot || slot->kind != TNI_PARAMETER || tni_none(slot->tensor) || !slot->field)
        return tni_error(TN_E_INVALID,
                         "%s: \"%s\" of %s: want a parameter that is there and has a field",
                         __func__, name ? name : "NULL", m->type->name);
    bool taken = m->state->made || tni_slot_find(m, "parametrizations", 16);
    for (int i = 0; i < tn_module_children(m); i++)
        taken |= tn_module_child(m, i)->type == &tni_lora_type;
    if (taken)
        return tni_error(TN_E_STATE, "%s: this %s has one already, or an adapter: want one at most",
                         __func__, m->type->name);
    tn_tensor *w = slot->tensor;
    if (w->shape.rank < 2 || o.axis < 0 || o.axis >= w->shape.rank)
        return tni_error(TN_E_INVALID,
                         "%s: axis %" PRId64 " of %s %s: want 2 axes and more, and 0..%d", __func__,
                         o.axis, name, tni_shape_text(&w->shape), w->shape.rank - 1);
    const bool trained = w->requires_grad;
    const size_t field = slot->field;
    tn_module *dict = tn_module_dict_new();
    originals *list = dict ? tn_module_new(&list_type) : NULL;
    if (list) {
        list->base.state->frozen = m->state->frozen;
        (slot->frozen ? tn_register_frozen : tn_register_parameter)(&list->base, "original",
                                                                    &list->w, w);
        tn_register_module(&list->base, "0", &list->made_by, spectral_new(w, m, o));
    }
    tn_status status =
        list ? tn_register_module(dict, name, NULL, tn_module_done(&list->base)) : tni_pending();
    tni_disregard(tn_set_requires_grad(w, trained)); /* of a leaf: it cannot fail */
    if (status == TN_OK)
        status = tn_register_module(m, "parametrizations", NULL, dict);
    else
        tn_module_drop(dict);
    if (status == TN_OK) status = tn_module_delete(m, name);
    if (status == TN_OK) m->state->made = field;
    return status;
}
