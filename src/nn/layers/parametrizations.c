/*
 * parametrizations.c - a layer's parameter made of others at every call: weight and spectral norm.
 *
 * The layer keeps its type. In place of the parameter it gets a child "parametrizations", whose
 * child of the parameter's name holds what the parameter is made of. Each call of the layer makes
 * it first, and puts it into its field until the call ends (call.c); between calls that is TN_NONE.
 *
 *   weight norm    w = g v / |v|, with a g and a norm for each index of one axis; Salimans and
 *                  Kingma, Weight Normalization (2016), eq. 2
 *   spectral norm  w = v / s, s = a^T M b: M is v as a matrix, a and b are unit vectors that the
 *                  power method brings closer to M's first singular vectors; Miyato et al.,
 *                  Spectral Normalization for GANs (2018), algorithm 1
 */
#include "nn/layers/layer.h"

/* How it is made: child "0" of what holds the originals. */
typedef struct recipe {
    tn_module base;
    tn_tensor *u, *v; /* spectral norm's a and b */
    int axis;         /* of weight norm -1: all elements have one norm */
    int iterations;
    double eps;
} recipe;

typedef struct originals {
    tn_module base;
    tn_tensor *first, *second; /* g and v; or v alone */
    tn_module *recipe;
} originals;

static const tn_module_type list_type = { .name = "ParametrizationList",
                                          .size = sizeof(originals) };
static const tn_module_type weight_type = { .name = "WeightNorm", .size = sizeof(recipe) };
static const tn_module_type spectral_type = { .name = "SpectralNorm", .size = sizeof(recipe) };

/* ---- weight norm ----------------------------------------------------------------------------- */

static tn_tensor *norm_but(tn_tensor *v, int axis)
{
    int axes[TN_MAX_RANK], n = 0;
    for (int d = 0; d < v->shape.rank; d++)
        if (d != axis) axes[n++] = d;
    return axis < 0 ? tn_norm(v, 2, NULL, 0, false) : tn_norm(v, 2, axes, n, true);
}

/* ---- spectral norm --------------------------------------------------------------------------- */

static tn_tensor *as_matrix(const recipe *r, tn_tensor *w)
{
    int axes[TN_MAX_RANK] = { r->axis }, n = 1;
    for (int d = 0; d < w->shape.rank; d++)
        if (d != r->axis) axes[n++] = d;
    w = tn_permute(w, axes, n);
    return w ? tn_reshape(w, TN_SHAPE(w->shape.size[0], -1)) : NULL;
}

static tn_tensor *unit(tn_tensor *x, double eps)
{
    return tn_div(x, tn_clamp(tn_norm(x, 2, NULL, 0, false), eps, INFINITY));
}

/* The power method, from u and v. */
static tn_status iterate(recipe *r, tn_tensor *matrix, int times)
{
    tn_status status = TN_OK;
    TN_NO_GRAD
    {
        tn_tensor *u = r->u, *v = r->v;
        for (int i = 0; i < times; i++) {
            u = unit(tn_matmul(matrix, v), r->eps);
            v = unit(tn_matmul(u, matrix), r->eps);
        }
        if (!u || !v) status = tni_pending();
        if (status == TN_OK) status = tn_copy_(r->u, u);
        if (status == TN_OK) status = tn_copy_(r->v, v);
    }
    return status;
}

static tn_tensor *spectral_made(recipe *r, tn_tensor *w)
{
    tn_dtype casting = tni_autocasting, dtype = w->dtype;
    tni_autocasting = TN_F32; /* no products in bf16 */
    tn_tensor *wide = tn_to_dtype(w, r->u->dtype), *matrix = as_matrix(r, wide);
    tn_status status = matrix ? TN_OK : tni_pending();
    if (status == TN_OK && tn_training(&r->base)) status = iterate(r, matrix, r->iterations);
    tn_tensor *made = NULL;
    if (status == TN_OK) { /* copies, since the next call may come before backward */
        tn_tensor *u = tn_clone(r->u), *v = tn_clone(r->v);
        made = tn_to_dtype(tn_div(wide, tn_matmul(u, tn_matmul(matrix, v))), dtype);
    }
    tni_autocasting = casting;
    return made;
}

/* ---- a call ---------------------------------------------------------------------------------- */

tn_tensor *tni_made_put(tn_module *m, tn_tensor *t)
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
        return tni_fail(TN_E_STATE,
                        "%s: its child \"parametrizations\" is gone or another: want "
                        "what tn_weight_norm or tn_spectral_norm made",
                        m->type->name);
    recipe *r = (recipe *)o->recipe;
    tn_tensor *w = r->base.type == &spectral_type
                       ? spectral_made(r, o->first)
                       : tn_mul(o->second, tn_div(o->first, norm_but(o->second, r->axis)));
    return w ? tni_made_put(m, w) : NULL;
}

/* ---- making one ------------------------------------------------------------------------------ */

/* The parameter that is to be made of others; NULL + message. */
static tn_tensor *parameter_of(const char *function, tn_module *m, const char *name, int64_t least,
                               int64_t axis)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    const tni_slot *slot = name ? tni_slot_find(m, name, strlen(name)) : NULL;
    if (!slot || slot->kind != TNI_PARAMETER || tni_none(slot->tensor) || !slot->field)
        return tni_fail(TN_E_INVALID,
                        "%s: \"%s\" of %s: want a parameter that is there and has a field",
                        function, name ? name : "NULL", m->type->name);
    if (m->state->made || tni_slot_find(m, "parametrizations", 16))
        return tni_fail(TN_E_STATE,
                        "%s: a parameter of this %s is made of others already: want one at most",
                        function, m->type->name);
    int rank = slot->tensor->shape.rank;
    if (rank < 2 || axis < least || axis >= rank)
        return tni_fail(TN_E_INVALID,
                        "%s: axis %" PRId64 " of %s %s: want 2 axes and more, and %" PRId64 "..%d",
                        function, axis, name, tni_shape_text(&slot->tensor->shape), least,
                        rank - 1);
    return slot->tensor;
}

static recipe *recipe_new(const tn_module_type *type, const tn_module *m, int axis)
{
    recipe *r = tn_module_new(type);
    if (!r) return NULL;
    r->axis = axis;
    r->u = r->v = TN_NONE;
    r->base.state->training = m->state->training;
    return r;
}

/* Puts w, g (NULL: none) and the recipe, which is consumed, in place of w. */
static tn_status take_place(tn_module *m, const char *name, recipe *r, tn_tensor *w, tn_tensor *g)
{
    tn_module *how = r ? tn_module_done(&r->base) : NULL;
    originals *o = how ? tn_module_new(&list_type) : NULL;
    if (!o) {
        tn_module_drop(how);
        return tni_pending();
    }
    bool trained = w->requires_grad;
    size_t field = tni_slot_find(m, name, strlen(name))->field;
    o->second = TN_NONE;
    if (g) tn_register_parameter(&o->base, "original0", &o->first, g);
    tn_register_parameter(&o->base, g ? "original1" : "original", g ? &o->second : &o->first, w);
    tn_register_module(&o->base, "0", &o->recipe, how);
    tn_module *list = tn_module_done(&o->base), *dict = list ? tn_module_dict_new() : NULL;
    if (!dict) tn_module_drop(list);
    tn_status status = dict ? tn_register_module(dict, name, NULL, list) : tni_pending();
    if (status == TN_OK) status = tn_set_requires_grad(w, trained);
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
    tn_tensor *w = parameter_of("tn_weight_norm", m, name, -1, axis), *g = NULL;
    if (!w) return tni_pending();
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD g = norm_but(w, axis);
    tn_status status =
        g ? take_place(m, name, recipe_new(&weight_type, m, axis), w, g) : tni_pending();
    tn_scope_end(scope);
    return status;
}

/* A unit vector of random direction. */
static tn_tensor *direction(int64_t n, const tn_tensor *w, double eps)
{
    return tn_to(tn_to_dtype(unit(tn_randn(TN_SHAPE(n)), eps), tni_wide_dtype(w->dtype)),
                 tn_device_of(w));
}

tn_status tn_spectral_norm(tn_module *m, const char *name, tn_spectral_norm_options o)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_spectral_norm";
    tn_tensor *w = parameter_of(f, m, name, 0, o.axis);
    if (!w || tni_at_least(f, "iterations", o.iterations, 0) != TN_OK ||
        tni_check_eps(f, o.eps) != TN_OK)
        return tni_pending();
    recipe *r = recipe_new(&spectral_type, m, (int)o.axis);
    if (!r) return tni_pending();
    r->iterations = (int)tni_or_int(o.iterations, 1);
    r->eps = tni_given(o.eps, false, 1e-12);
    const int64_t rows = w->shape.size[o.axis], n = tni_shape_numel(&w->shape);
    tn_register_buffer(&r->base, "_u", &r->u, direction(rows, w, r->eps), TN_DIRECTION);
    tn_register_buffer(&r->base, "_v", &r->v, direction(rows ? n / rows : 0, w, r->eps),
                       TN_DIRECTION);
    tn_tensor *matrix = as_matrix(r, tni_wide(tn_detach(w)));
    if (matrix && !tni_none(r->u) && !tni_none(r->v)) /* an error ends the construction */
        tni_disregard(iterate(r, matrix, 15));
    return take_place(m, name, r, w, NULL);
}
