/*
 * parametrizations.c - a layer's parameter made of others at every call: weight and spectral norm.
 *
 *   weight norm    w = v g / |v|, with a g and a norm for each index of one axis; Salimans and
 *                  Kingma, Weight Normalization (2016), eq. 2
 *   spectral norm  w = v / s, s = a^T M b: M is v as a matrix, a and b are unit vectors that the
 *                  power method brings closer to M's first singular vectors; Miyato et al.,
 *                  Spectral Normalization for GANs (2018), algorithm 1
 *
 * The layer keeps its type. In place of the parameter it gets a child "parametrizations", whose
 * child of the parameter's name holds v. Each call of the layer makes w first, and puts it into its
 * field until the call ends (call.c); between calls that is TN_NONE.
 */
#include "nn/layers/layer.h"

/* How it is made: child "0" of what holds the originals. */
typedef struct recipe {
    tn_module base;
    tn_tensor *u, *v; /* spectral norm's a and b */
    int axis, iterations;
    double eps;
} recipe;

typedef struct originals {
    tn_module base;
    tn_tensor *g, *v; /* spectral norm has no g */
    tn_module *made_by;
} originals;

static const tn_module_type list_type = { .name = "ParametrizationList",
                                          .size = sizeof(originals) };
static const tn_module_type weight_type = { .name = "WeightNorm", .size = sizeof(recipe) };
static const tn_module_type spectral_type = { .name = "SpectralNorm", .size = sizeof(recipe) };

/* ---- weight norm ----------------------------------------------------------------------------- */

/* The norm for each index of that axis; axis -1: of all. */
static tn_tensor *norm_but(tn_tensor *v, int axis)
{
    int axes[TN_MAX_RANK], n = 0;
    for (int d = 0; v && d < v->shape.rank; d++)
        if (d != axis) axes[n++] = d;
    return tn_norm(v, 2, axes, n, axis >= 0);
}

static tn_tensor *weight_of(const originals *o)
{
    const tn_dtype wide = tni_wide_dtype(o->v->dtype);
    tn_tensor *v = tn_to_dtype(o->v, wide), *g = tn_to_dtype(o->g, wide);
    return tn_mul(v, tn_div(g, norm_but(v, ((const recipe *)o->made_by)->axis)));
}

/* ---- spectral norm --------------------------------------------------------------------------- */

static tn_tensor *as_matrix(const recipe *s, tn_tensor *w)
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
static tn_status iterate(recipe *s, tn_tensor *matrix, int times)
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

static tn_tensor *spectral_of(recipe *s, tn_tensor *v)
{
    tn_tensor *w = tn_to_dtype(v, s->u->dtype), *matrix = as_matrix(s, w);
    if (!matrix || (tn_training(&s->base) && iterate(s, matrix, s->iterations) != TN_OK))
        return NULL;
    /* copies, since the next call may come before backward */
    return tn_div(w, tn_matmul(tn_clone(s->u), tn_matmul(matrix, tn_clone(s->v))));
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
        return tni_fail(TN_E_STATE, "%s: the child \"parametrizations\" of its norm is gone",
                        m->type->name);
    tn_dtype casting = tni_autocasting;
    pthread_mutex_lock(&making);
    tni_autocasting = TN_F32; /* no products in bf16 */
    tn_tensor *made = o->g ? weight_of(o) : spectral_of((recipe *)o->made_by, o->v);
    made = tn_to_dtype(made, o->v->dtype);
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

/* What makes w: of spectral norm u and v are random, after 15 iterations. */
static tn_module *recipe_new(const tn_module_type *type, tn_tensor *w, const tn_module *m,
                             tn_spectral_norm_options o)
{
    recipe *s = tn_module_new(type);
    if (!s) return NULL;
    s->base.state->training = m->state->training;
    s->base.state->frozen = m->state->frozen;
    s->axis = (int)o.axis;
    s->iterations = (int)tni_or_int(o.iterations, 1);
    s->eps = tni_given(o.eps, false, 1e-12);
    tn_tensor *matrix = type == &spectral_type ? as_matrix(s, tni_wide(tn_detach(w))) : NULL;
    if (!matrix) return tn_module_done(&s->base);
    tn_register_buffer(&s->base, "_u", &s->u, direction(matrix->shape.size[0], w, s->eps),
                       TN_DIRECTION);
    tn_register_buffer(&s->base, "_v", &s->v, direction(matrix->shape.size[1], w, s->eps),
                       TN_DIRECTION);
    if (s->u && s->v) tni_disregard(iterate(s, matrix, 15)); /* an error ends the construction */
    return tn_module_done(&s->base);
}

/* Registers what w is made of, as w was; NULL: failed. */
static tn_module *originals_new(const tni_slot *slot, const tn_module_type *type,
                                const tn_module *m, tn_spectral_norm_options o)
{
    originals *list = tn_module_new(&list_type);
    if (!list) return NULL;
    tn_status (*add)(tn_module *, const char *, tn_tensor **, tn_tensor *) =
        slot->frozen ? tn_register_frozen : tn_register_parameter;
    tn_tensor *w = slot->tensor;
    const bool trained = w->requires_grad, weight = type == &weight_type;
    list->base.state->frozen = m->state->frozen;
    if (weight) {
        TN_NO_GRAD add(&list->base, "original0", &list->g,
                       tn_to_dtype(norm_but(tni_wide(tn_detach(w)), (int)o.axis), w->dtype));
        if (list->g) tni_disregard(tn_set_requires_grad(list->g, trained));
    }
    add(&list->base, weight ? "original1" : "original", &list->v, w);
    tn_register_module(&list->base, "0", &list->made_by, recipe_new(type, w, m, o));
    tni_disregard(tn_set_requires_grad(w, trained)); /* of a leaf: it cannot fail */
    return tn_module_done(&list->base);
}

static tn_status parametrize(const char *f, tn_module *m, const char *name,
                             const tn_module_type *type, tn_spectral_norm_options o)
{
    const tni_slot *slot = name ? tni_slot_find(m, name, strlen(name)) : NULL;
    if (!slot || slot->kind != TNI_PARAMETER || tni_none(slot->tensor) || !slot->field)
        return tni_error(TN_E_INVALID,
                         "%s: \"%s\" of %s: want a parameter that is there and has a field", f,
                         name ? name : "NULL", m->type->name);
    bool taken = m->state->made || tni_slot_find(m, "parametrizations", 16);
    for (int i = 0; i < tn_module_children(m); i++)
        taken |= tn_module_child(m, i)->type == &tni_lora_type;
    if (taken)
        return tni_error(TN_E_STATE, "%s: this %s has one already, or an adapter: want one at most",
                         f, m->type->name);
    const int rank = slot->tensor->shape.rank, least = type == &weight_type ? -1 : 0;
    if (rank < 2 || o.axis < least || o.axis >= rank)
        return tni_error(TN_E_INVALID,
                         "%s: axis %" PRId64 " of %s %s: want 2 axes and more, and %d..%d", f,
                         o.axis, name, tni_shape_text(&slot->tensor->shape), least, rank - 1);
    const size_t field = slot->field;
    tn_module *dict = tn_module_dict_new(), *list = dict ? originals_new(slot, type, m, o) : NULL;
    tn_status status = list ? tn_register_module(dict, name, NULL, list) : tni_pending();
    if (status == TN_OK)
        status = tn_register_module(m, "parametrizations", NULL, dict);
    else
        tn_module_drop(dict);
    if (status == TN_OK) status = tn_module_delete(m, name);
    if (status == TN_OK) m->state->made = field;
    return status;
}

tn_status tn_weight_norm(tn_module *m, const char *name, int axis)
{
    TNI_HOLD_TRAPS;
    TNI_TRY(tni_module_check(__func__, m));
    return parametrize(__func__, m, name, &weight_type, (tn_spectral_norm_options){ .axis = axis });
}

tn_status tn_spectral_norm(tn_module *m, const char *name, tn_spectral_norm_options o)
{
    TNI_HOLD_TRAPS;
    TNI_TRY(tni_module_check(__func__, m));
    TNI_TRY(tni_at_least(__func__, "iterations", o.iterations, 0));
    TNI_TRY(tni_check_eps(__func__, o.eps));
    tni_generator_state before;
    tni_generator_get(tn_default_generator(), &before);
    tn_status status = parametrize(__func__, m, name, &spectral_type, o);
    if (status != TN_OK) tni_generator_put(tn_default_generator(), &before);
    return status;
}
