/*
 * lora_adapters.c - adapters in a whole model: which layers get one, what is frozen beside them,
 * which one is active, merging, taking them out.
 */
#include "ext/lm/lora.h"
#include "ext/lm/names.h"
#include "nn/module.h"

/* ---- the layers of a model ------------------------------------------------------------------- */

static tn_status add_sites(tn_module *m, const char *path, void *user)
{
    tni_sites *s = user;
    if (tni_lora_of(m) || (path[0] && !tni_map_get(&s->known, m))) return TN_OK;
    for (int i = 0; i < tn_module_children(m); i++) {
        tn_module *child = tn_module_child(m, i);
        if (child == TN_NO_MODULE) continue;
        if (!tni_room(&s->at, &s->capacity, s->n, 1, sizeof *s->at)) return TN_E_NOMEM;
        if (tni_map_put(&s->known, child, child) < 0) return TN_E_NOMEM;
        tni_site site = { m, child, tn_module_child_name(m, i), NULL };
        site.path = tni_name_new("", path, site.name);
        if (!site.path) return TN_E_NOMEM;
        s->at[s->n++] = site;
    }
    return TN_OK;
}

tn_status tni_sites_find(const char *function, tn_module *m, tni_sites *sites)
{
    *sites = (tni_sites){ 0 };
    tn_status status = tni_module_check(function, m);
    return status == TN_OK ? tni_walk(m, TNI_ONCE, add_sites, NULL, sites) : status;
}

void tni_sites_free(tni_sites *s)
{
    for (size_t i = 0; i < s->n; i++) tni_name_free(s->at[i].path);
    tni_room_free(&s->at, &s->capacity, sizeof *s->at);
    tni_map_free(&s->known);
}

/* The next LoraLinear, NULL: no more. */
static tni_lora *next(const tni_sites *s, size_t *i)
{
    while (*i < s->n) {
        tni_lora *m = tni_lora_of(s->at[(*i)++].module);
        if (m) return m;
    }
    return NULL;
}

tni_factor *tni_factor_named(const tn_module *dict, const char *name)
{
    for (int i = 0; name && i < tn_module_children(dict); i++)
        if (strcmp(tn_module_child_name(dict, i), name) == 0)
            return (tni_factor *)tn_module_child(dict, i);
    return NULL;
}

const char *tni_factor_name(const tn_module *dict, const tni_factor *f)
{
    for (int i = 0; i < tn_module_children(dict); i++)
        if (tn_module_child(dict, i) == &f->base) return tn_module_child_name(dict, i);
    return "";
}

/* ---- choosing the active one ----------------------------------------------------------------- */

static void unmerge(tni_lora *m)
{
    if (!tn_is_none(m->merged)) tni_disregard(tn_assign(&m->merged, TN_NONE));
}

/* Sets whether the factors of a dict but one are trained. */
static void train_only(const tn_module *dict, const tni_factor *active)
{
    for (int i = 0; i < tn_module_children(dict); i++) {
        tni_factor *f = (tni_factor *)tn_module_child(dict, i);
        tni_disregard(tn_set_requires_grad(f->weight, f == active && !f->frozen));
        if (f != active) tni_disregard(tn_set_grad(f->weight, TN_NONE));
    }
}

static void activate(const tni_sites *s, const char *name)
{
    tni_lora *m;
    for (size_t i = 0; (m = next(s, &i));) {
        unmerge(m);
        m->now_a = tni_factor_named(m->a, name);
        m->now_b = tni_factor_named(m->b, name);
        train_only(m->a, m->now_a);
        train_only(m->b, m->now_b);
    }
}

/* TN_OK if some layer has an adapter of that name. */
static tn_status check_name(const char *function, const tni_sites *s, const char *name)
{
    char have[512] = "";
    const tni_lora *m;
    for (size_t i = 0; (m = next(s, &i));) {
        if (tni_factor_named(m->a, name)) return TN_OK;
        for (int k = 0; !have[0] && k < tn_module_children(m->a); k++)
            tni_text_add(have, sizeof have, "%s\"%s\"", k ? ", " : "",
                         tn_module_child_name(m->a, k));
    }
    return tni_error(TN_E_NAME, "%s: no layer has an adapter \"%s\": want one that there is%s%s",
                     function, name, have[0] ? ": " : "", have);
}

tn_status tn_lora_set(tn_module *m, const char *name)
{
    tni_sites s;
    tn_status status = tni_sites_find("tn_lora_set", m, &s);
    if (status == TN_OK && name) status = check_name("tn_lora_set", &s, name);
    if (status == TN_OK) activate(&s, name);
    tni_sites_free(&s);
    return status;
}

tn_status tn_lora_delete(tn_module *m, const char *name)
{
    tni_sites s;
    tn_status status = tni_sites_find("tn_lora_delete", m, &s);
    if (status == TN_OK)
        status =
            name ? check_name("tn_lora_delete", &s, name) : tni_poison("tn_lora_delete", "name");
    tni_lora *l;
    for (size_t i = 0; status == TN_OK && (l = next(&s, &i));) {
        const tni_factor *a = tni_factor_named(l->a, name);
        if (!a) continue;
        if (a == l->now_a) unmerge(l);
        if (a == l->now_a) l->now_a = l->now_b = NULL;
        tni_disregard(tn_module_delete(l->a, name));
        tni_disregard(tn_module_delete(l->b, name));
    }
    tni_sites_free(&s);
    return status;
}

/* ---- freezing the rest ----------------------------------------------------------------------- */

/* Whether m has buffers that its forward may move, and nothing below it. */
static bool moves(tn_module *m)
{
    if (tn_module_children(m) > 0) return false;
    const tn_list *b = tn_buffers_with(m, (tn_walk_options){ .no_caches = true });
    for (int i = 0; b && i < b->n; i++)
        if (b->entry[i].role != TN_CONSTANT) return true;
    return false;
}

static bool is_bias(const char *name)
{
    const char *dot = strrchr(name, '.');
    return strcmp(dot ? dot + 1 : name, "bias") == 0;
}

static tn_status train_biases(tn_module *m, const tni_sites *s, tn_lora_bias which)
{
    if (which == TN_LORA_BIAS_NONE) return TN_OK;
    const tn_list *all = which == TN_LORA_BIAS_ALL ? tn_parameters(m) : NULL;
    if (which == TN_LORA_BIAS_ALL && !all) return tni_pending();
    for (int i = 0; all && i < all->n; i++)
        if (is_bias(all->entry[i].name) && tn_dtype_is_float(tn_dtype_of(all->entry[i].tensor)))
            tni_disregard(tn_set_requires_grad(all->entry[i].tensor, true));
    tni_lora *l;
    for (size_t i = 0; (l = next(s, &i));) {
        tn_tensor *bias = tn_get_parameter(l->base_layer, "bias");
        if (l->now_a && bias && !tn_is_none(bias)) tni_disregard(tn_set_requires_grad(bias, true));
    }
    return TN_OK;
}

tn_status tni_lora_choose(const char *function, tn_module *m, const tn_lora_options *o)
{
    tni_sites s;
    tn_scope scope = tn_scope_begin();
    tn_status status = tni_sites_find(function, m, &s);
    if (status == TN_OK) status = tn_module_set_requires_grad(m, false);
    if (status == TN_OK) activate(&s, o->name);
    for (size_t i = 0; status == TN_OK && i < s.n; i++) {
        tn_module *child = s.at[i].module;
        if (o->modules_to_save && tni_name_fits(o->modules_to_save, s.at[i].path))
            status = tn_module_set_requires_grad(child, true);
        else if (!tni_lora_of(child) && moves(child))
            status = tn_module_freeze(child);
    }
    if (status == TN_OK) status = train_biases(m, &s, o->bias);
    tni_sites_free(&s);
    tn_scope_end(scope);
    return status;
}

/* ---- adding one ------------------------------------------------------------------------------ */

/* Checks that each pattern fits something and, if linear, nothing but what takes an adapter. */
static tn_status check_patterns(const char *function, const tni_sites *s, const char *patterns,
                                bool linear)
{
    char other[512] = "";
    for (const char *p = patterns; *p; p += p[0] == ',') {
        size_t length = strcspn(p, ","), fit = 0;
        char *one = tni_alloc(length + 1);
        if (!one) return TN_E_NOMEM;
        memcpy(one, p, length);
        one[length] = '\0';
        for (size_t i = 0; i < s->n; i++) {
            if (!tni_name_fits(one, s->at[i].path)) continue;
            fit++;
            if (linear && !tni_lora_weight(s->at[i].module))
                tni_text_add(other, sizeof other, "%s%s (%s)", other[0] ? ", " : "", s->at[i].path,
                             s->at[i].module->type->name);
        }
        tn_status status = fit ? TN_OK
                               : tni_error(TN_E_NAME,
                                           "%s: the pattern \"%s\" fits no module: want the name "
                                           "of one, as in \"*.q_proj\"",
                                           function, one);
        tni_free(one, length + 1);
        if (status != TN_OK) return status;
        p += length;
    }
    if (!other[0]) return TN_OK;
    return tni_error(TN_E_NAME, "%s: \"%s\" fits %s: want patterns that fit Linear layers alone",
                     function, patterns, other);
}

static tn_status check_options(const char *patterns, const tn_lora_options *o)
{
    static const char f[] = "tn_lora";
    if (!patterns) return tni_poison(f, "patterns");
    if (!*patterns) return tni_error(TN_E_INVALID, "%s: no pattern: want \"*.q_proj\", say", f);
    if (o->rank < 1)
        return tni_error(TN_E_INVALID, "%s: rank %" PRId64 ": want at least 1", f, o->rank);
    if (!isfinite(o->alpha))
        return tni_error(TN_E_INVALID, "%s: alpha %g: want a finite number", f, o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tni_error(TN_E_INVALID, "%s: dropout %g: want it in [0, 1)", f, o->dropout);
    if ((unsigned)o->bias > TN_LORA_BIAS_ONLY)
        return tni_error(TN_E_INVALID, "%s: bias %d: want a tn_lora_bias", f, (int)o->bias);
    if (!*o->name || strchr(o->name, '.'))
        return tni_error(TN_E_NAME, "%s: adapter \"%s\": want a name without dots", f, o->name);
    return TN_OK;
}

/* Of each site that fits patterns, room for a graft. */
static void plan(const tni_sites *s, const char *patterns, const tn_lora_options *o,
                 tni_graft *graft, size_t *n)
{
    for (size_t i = 0; i < s->n; i++)
        if (tni_name_fits(patterns, s->at[i].path))
            graft[(*n)++] = (tni_graft){ .site = &s->at[i], .rank = o->rank, .alpha = o->alpha };
}

tn_status tn_lora(tn_module *m, const char *patterns, tn_lora_options o)
{
    static const char f[] = "tn_lora";
    if (!o.name) o.name = "default";
    o.rank = o.rank ? o.rank : 8;
    o.alpha = o.alpha != 0 ? o.alpha : 8;
    tni_sites s = { 0 };
    tni_graft *graft = NULL;
    size_t n = 0, room = 0;
    tn_scope scope = tn_scope_begin();
    tn_status status = check_options(patterns, &o);
    if (status == TN_OK) status = tni_sites_find(f, m, &s);
    if (status == TN_OK) status = check_patterns(f, &s, patterns, true);
    if (status == TN_OK && o.modules_to_save)
        status = check_patterns(f, &s, o.modules_to_save, false);
    if (status == TN_OK && !tni_room(&graft, &room, 0, s.n, sizeof *graft)) status = TN_E_NOMEM;
    if (status == TN_OK) plan(&s, patterns, &o, graft, &n);
    if (status == TN_OK) status = tni_lora_graft(f, graft, n, &o, false);
    if (status == TN_OK && (status = tni_lora_choose(f, m, &o)) != TN_OK)
        tni_lora_take_back(graft, n, o.name);
    tni_room_free(&graft, &room, sizeof *graft);
    tni_sites_free(&s);
    tn_scope_end(scope);
    return status;
}

/* ---- merging --------------------------------------------------------------------------------- */

static tn_status merge(tni_lora *m)
{
    const tni_factor *a = m->now_a, *b = m->now_b;
    tn_tensor *w = tni_lora_weight(&m->base);
    tn_dtype wide = tn_dtype_of(a->weight) == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor *ba = tn_matmul(tn_to_dtype(b->weight, wide), tn_to_dtype(a->weight, wide));
    tn_tensor *delta = tn_to_dtype(tn_mul_scalar(ba, a->scale), tn_dtype_of(a->weight));
    tn_tensor *sum = tn_to_dtype(tn_add(w, delta), tn_dtype_of(w));
    tn_status status = sum ? tn_assign(&m->merged, sum) : tni_pending();
    m->merged_of = tni_lora_versions(m);
    return status;
}

static tn_status merge_all(const char *function, const tni_sites *s)
{
    size_t active = 0;
    tn_status status = TN_OK;
    tni_lora *m;
    for (size_t i = 0; status == TN_OK && (m = next(s, &i));) {
        active += m->now_a != NULL;
        if (m->now_a && tn_training(&m->base))
            status = tni_error(TN_E_STATE, "%s: %s is in training mode: want tn_eval before",
                               function, s->at[i - 1].path);
        else if (m->now_a && !tn_dtype_is_float(tn_dtype_of(tni_lora_weight(&m->base))))
            status = tni_error(TN_E_UNSUPPORTED, "%s: the weight of %s is of bytes: want floats",
                               function, s->at[i - 1].path);
    }
    if (status == TN_OK && !active)
        status = tni_error(TN_E_STATE, "%s: no adapter is active: want tn_lora_set", function);
    for (size_t i = 0; status == TN_OK && (m = next(s, &i));) {
        if (!m->now_a) continue;
        tn_scope scope = tn_scope_begin();
        TN_NO_GRAD status = merge(m);
        tn_scope_end(scope);
    }
    for (size_t i = 0; status != TN_OK && (m = next(s, &i));) unmerge(m);
    return status;
}

tn_status tn_lora_merge(tn_module *m)
{
    tni_sites s;
    tn_status status = tni_sites_find("tn_lora_merge", m, &s);
    if (status == TN_OK) status = merge_all("tn_lora_merge", &s);
    tni_sites_free(&s);
    return status;
}

tn_status tn_lora_unmerge(tn_module *m)
{
    tni_sites s;
    tn_status status = tni_sites_find("tn_lora_unmerge", m, &s);
    tni_lora *l;
    for (size_t i = 0; status == TN_OK && (l = next(&s, &i));) unmerge(l);
    tni_sites_free(&s);
    return status;
}

/* ---- taking them out ------------------------------------------------------------------------- */

/* An error if a weight that is to change is also another module's. */
static tn_status check_ties(const char *function, tn_module *m, const tni_sites *s)
{
    const tn_list *all = tn_parameters_with(m, (tn_walk_options){ .keep_duplicates = true });
    const tni_lora *l;
    if (!all) return tni_pending();
    for (size_t i = 0; (l = next(s, &i));) {
        const tn_tensor *w = l->now_a ? tni_lora_weight(&l->base) : NULL;
        for (int k = 0; w && k < all->n; k++)
            if (all->entry[k].tensor == w && all->entry[k].owner != l->base_layer)
                return tni_error(TN_E_STATE,
                                 "%s: the weight of %s is also %s, which would change with it: "
                                 "want tn_lora_merge, which leaves it, or weights that are not "
                                 "tied",
                                 function, s->at[i - 1].path, all->entry[k].name);
    }
    return TN_OK;
}

static tn_status take_out(const tni_site *s, tni_lora *l)
{
    tn_status status = TN_OK;
    if (!tn_is_none(l->merged)) status = tn_module_set(l->base_layer, "weight", l->merged);
    if (status == TN_OK) unmerge(l);
    return status == TN_OK
               ? tn_register_module(s->parent, s->name, NULL, tn_module_keep(l->base_layer))
               : status;
}

tn_status tn_lora_unload(tn_module *m, bool merge)
{
    static const char f[] = "tn_lora_unload";
    tni_sites s;
    tn_scope scope = tn_scope_begin();
    tn_status status = tni_sites_find(f, m, &s);
    if (status == TN_OK && merge) status = check_ties(f, m, &s);
    tni_lora *l;
    for (size_t i = 0; status == TN_OK && (l = next(&s, &i));) unmerge(l);
    if (status == TN_OK && merge) status = merge_all(f, &s);
    for (size_t i = 0; status == TN_OK && (l = next(&s, &i));) status = take_out(&s.at[i - 1], l);
    tni_sites_free(&s);
    tn_scope_end(scope);
    return status;
}
