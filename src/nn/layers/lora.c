/*
 * lora.c - adapters of Linears: y = W x + b + scale B A dropout(x).
 *
 * An adapter is a module below its Linear. What merging makes is kept beside W: ties and files stay
 * right meanwhile, and unmerging is exact.
 */
#include <fnmatch.h>

#include "nn/layers/layer.h"

static tn_status draw(tn_module *self)
{
    const tni_lora *l = (const tni_lora *)self;
    for (int i = 0; i < 3; i++) /* as peft: two Linears, then A again */
        TNI_TRY(tn_init_kaiming_uniform(i == 1 ? l->b : l->a, sqrt(5), false, TN_NL_LEAKY_RELU));
    return tn_init_constant(l->b, 0);
}

static void forget(tn_module *self)
{
    tni_lora *l = (tni_lora *)self;
    for (int i = 0; i < 3; l->of[i++] = NULL)
        if (l->of[i]) tni_storage_drop(l->of[i]);
}

/* A copy is as unmerged. */
static tn_status copied(tn_module *self, tn_module *copy)
{
    (void)self;
    memset(((tni_lora *)copy)->of, 0, sizeof((tni_lora *)copy)->of);
    return TN_OK;
}

const tn_module_type tni_lora_type = {
    .name = "Lora", .size = sizeof(tni_lora), .reset = draw, .free = forget, .clone = copied
};

/* A Linear's adapter of that name, NULL: the active one. NULL (no message): m has none. */
static tni_lora *lora_of(const tn_module *m, const char *name)
{
    for (int i = 0; tni_is_linear(m) && i < m->state->n; i++) {
        const tni_slot *s = &m->state->slot[i];
        if (s->kind != TNI_CHILD || s->child->type != &tni_lora_type) continue;
        tni_lora *l = (tni_lora *)s->child;
        if (name ? strcmp(s->name, name) == 0 : l->active) return l;
    }
    return NULL;
}

/* Whether what was merged is what is there. */
static bool merged_now(const tni_lora *l, const tn_tensor *w)
{
    const tn_tensor *const t[] = { w, l->a, l->b };
    bool same = !tni_none(l->merged);
    for (int i = 0; i < 3; i++)
        same = same && t[i]->storage == l->of[i] && tn_version(t[i]) == l->version[i];
    return same;
}

tn_tensor *tni_lora_forward(tn_module *linear, tn_tensor *x, tn_tensor *w, tn_tensor *bias)
{
    const tni_lora *l = lora_of(linear, NULL);
    if (l && merged_now(l, w)) w = l->merged, l = NULL;
    tn_tensor *y = tn_linear(x, w, bias);
    if (!l || !y) return y;
    x = tn_dropout(tn_to_dtype(x, tn_dtype_of(l->a)), l->dropout, tn_training(&l->base));
    x = tn_linear(tn_mul_scalar(tn_linear(x, l->a, TN_NONE), l->scale), l->b, TN_NONE);
    return tn_to_dtype(tn_add(y, x), tn_dtype_of(y));
}

/* ---- the Linears of a model: owners in its list of parameters with every alias --------------- */

static tn_list *all_of(const char *function, tn_module *m)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    tn_list *all = tn_parameters_with(m, (tn_walk_options){ .keep_duplicates = true });
    for (int i = 0; all && i < all->n; i++) /* others may be freed before this is */
        if (!tni_is_linear(all->entry[i].owner)) all->entry[i].owner = NULL;
    return all;
}

bool tni_linear_fits(const char *patterns, const tn_entry *e)
{
    for (const char *p = patterns;; p++) {
        char name[1024];
        const int n = (int)strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s.weight", n, p);
        if (tni_is_linear(e->owner) && fnmatch(name, e->name, 0) == 0) return true;
        if (!*(p += n)) return false;
    }
}

static tn_status merge(tn_module *linear, tni_lora *l)
{
    tn_tensor *w = tni_member(linear, "weight"), *const t[] = { w, l->a, l->b };
    tn_tensor *sum = NULL;
    if (w->dtype == TN_U8)
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_lora_merge: a weight of bytes takes no sum: want it in floats");
    TN_AUTOCAST(TN_F32) sum = tn_add(w, tn_mul_scalar(tn_matmul(l->b, l->a), l->scale));
    forget(&l->base);
    for (int i = 0; i < 3; i++) {
        l->of[i] = t[i]->storage, l->version[i] = tn_version(t[i]);
        atomic_fetch_add_explicit(&l->of[i]->refs, 1, memory_order_relaxed);
    }
    return tn_assign(&l->merged, tn_to_dtype(sum, tn_dtype_of(w)));
}

/* Of a leaf, so it cannot fail. */
static void train(const tni_lora *l, tn_tensor *t)
{
    const bool on = l->active && !l->base.state->frozen;
    tn_set_requires_grad(t, on);
    if (!on) tni_disregard(tn_set_grad(t, TN_NONE));
}

typedef enum op { MERGE, KEEP, TAKE_OUT, UNMERGE, OFF, ON } op;

/* Does it to each adapter of that name, NULL: each active one; OFF: to that in any case. */
static tn_status each(const tn_list *all, const char *name, op op)
{
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < all->n; i++) {
        tn_module *linear = all->entry[i].owner;
        tni_lora *l = lora_of(linear, op == OFF ? NULL : name);
        if (!l) continue;
        if (op == MERGE) TN_SCOPE TN_NO_GRAD status = merge(linear, l);
        if (op == KEEP) status = tn_module_set(linear, "weight", l->merged);
        if (op >= UNMERGE) status = tn_assign(&l->merged, TN_NONE);
        if (op >= OFF) l->active = op == ON, train(l, l->a), train(l, l->b);
        if (op == TAKE_OUT) status = tn_module_delete(linear, name);
    }
    if (op == MERGE && status != TN_OK) tni_disregard(each(all, name, UNMERGE));
    return status;
}

tn_status tni_check_patterns(const char *f, const tn_list *all, const char *patterns)
{
    const char *some = NULL; /* the name of a Linear's parameter */
    for (int i = 0; i < all->n; i++)
        if (tni_is_linear(all->entry[i].owner) && strchr(all->entry[i].name, '.'))
            some = all->entry[i].name;
    if (!some) return tni_error(TN_E_NAME, "%s: there is no Linear below the model", f);
    for (const char *p = patterns;; p++) {
        char one[1024];
        bool fit = false;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        for (int i = 0; i < all->n; i++) fit |= tni_linear_fits(one, &all->entry[i]);
        if (!fit)
            return tni_error(TN_E_NAME,
                             "%s: \"%s\" fits no Linear: want a pattern of names such as \"%.*s\" "
                             "(* is any characters)",
                             f, one, (int)(strrchr(some, '.') - some), some);
        if (!*(p += strcspn(p, ","))) return TN_OK;
    }
}

static tn_status check(const char *f, const tn_list *all, const char *patterns,
                       const tn_lora_options *o)
{
    if (!*o->name || strchr(o->name, '.'))
        return tni_error(TN_E_NAME, "%s: adapter \"%s\": want a name without dots", f, o->name);
    for (int i = 0; i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        if (tni_is_linear(e->owner) && tni_slot_find(e->owner, o->name, strlen(o->name)))
            return tni_error(TN_E_NAME, "%s: %s is beside a \"%s\" already: want another name", f,
                             e->name, o->name);
    }
    TNI_TRY(tni_check_patterns(f, all, patterns));
    if (!isfinite(o->alpha))
        return tni_error(TN_E_INVALID, "%s: alpha %g: want a finite number", f, o->alpha);
    tn_status status = tni_at_least(f, "rank", o->rank, 1);
    return status == TN_OK ? tni_probability(f, o->dropout) : status;
}

static tn_status add(tn_module *linear, const tn_lora_options *o)
{
    const tn_tensor *w = tni_member(linear, "weight");
    const tn_dtype dtype = tn_dtype_of(w) == TN_F64 ? TN_F64 : TN_F32;
    const int64_t in = tn_dtype_of(w) == TN_U8 ? ((tni_linear *)linear)->in : tn_size(w, 1);
    const tn_shape a = TN_SHAPE(o->rank, in), b = TN_SHAPE(tn_size(w, 0), o->rank);
    tni_lora *l = tn_module_new(&tni_lora_type);
    if (!l) return tni_pending();
    l->alpha = o->alpha, l->rslora = o->rslora;
    l->scale = o->alpha / (o->rslora ? sqrt((double)o->rank) : (double)o->rank);
    l->base.state->training = linear->state->training;
    tni_drops(&l->base, &l->dropout, o->dropout);
    tn_register_parameter(&l->base, "lora_A", &l->a, tn_empty_as(a, dtype, tn_device_of(w)));
    tn_register_parameter(&l->base, "lora_B", &l->b, tn_empty_as(b, dtype, tn_device_of(w)));
    tn_register_buffer(&l->base, "merged", &l->merged, TN_NONE, TN_CACHE);
    if (l->a && l->b) draw(&l->base);
    return tn_register_module(linear, o->name, NULL, tn_module_done(&l->base));
}

static tn_status put(tn_module *m, const char *path, void *map)
{
    (void)path;
    return tni_map_put(map, m, m) < 0 ? TN_E_NOMEM : TN_OK;
}

/* Into the map what has buffers that its forward may move, and no adapter below it. */
static tn_status to_freeze(tn_module *m, const char *path, void *map)
{
    bool moves = false, adapted = false;
    (void)path;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *s = &m->state->slot[i];
        moves |=
            s->kind == TNI_BUFFER && !tni_is(s->flags, TN_CONSTANT) && !tni_is(s->flags, TN_CACHE);
    }
    const tn_list *all = moves ? tn_parameters(m) : NULL;
    for (int i = 0; all && i < all->n; i++) adapted |= all->entry[i].owner->type == &tni_lora_type;
    return !moves || adapted ? TN_OK : all ? tni_walk(m, TNI_ONCE, put, NULL, map) : tni_pending();
}

tn_status tni_lora_add(const char *function, tn_module *m, const char *patterns, tn_lora_options o,
                       tn_status (*fill)(tn_module *m, void *user), void *user)
{
    if (!patterns) return tni_poison(function, "patterns");
    if (!o.name) o.name = "default";
    o.rank = tni_or_int(o.rank, 8);
    if (o.alpha == 0) o.alpha = 8;
    tni_generator_state random; /* of what add draws from */
    tni_generator_get(tn_default_generator(), &random);
    TNI_SCOPED;
    const tn_list *all = all_of(function, m);
    tn_status status = all ? check(function, all, patterns, &o) : tni_pending();
    const bool begun = status == TN_OK;
    for (int i = 0; status == TN_OK && i < all->n; i++)
        if (tni_linear_fits(patterns, &all->entry[i]) && !lora_of(all->entry[i].owner, o.name))
            status = add(all->entry[i].owner, &o);
    if (status == TN_OK && fill) status = fill(m, user);
    if (status == TN_OK) status = tni_switch_modules(function, m, false, to_freeze);
    if (status == TN_OK) status = each(all, NULL, OFF);
    if (status == TN_OK) status = each(all, o.name, ON);
    if (status == TN_OK || !begun) return status;
    tni_disregard(each(all, o.name, TAKE_OUT));
    tni_generator_put(tn_default_generator(), &random);
    return status;
}

tn_status tn_lora(tn_module *m, const char *patterns, tn_lora_options o)
{
    return tni_lora_add("tn_lora", m, patterns, o, NULL, NULL);
}

static tn_status run(const char *function, tn_module *m, const char *name, int n, const op *ops)
{
    TNI_SCOPED;
    const tn_list *all = all_of(function, m);
    tn_status status = all ? TN_OK : tni_pending();
    bool found = !name || !all;
    for (int i = 0; !found && i < all->n; i++) found = lora_of(all->entry[i].owner, name);
    if (!found) status = tni_error(TN_E_NAME, "%s: no Linear has a \"%s\"", function, name);
    for (int i = 0; status == TN_OK && i < n; i++) status = each(all, name, ops[i]);
    return status;
}

tn_status tn_lora_set(tn_module *m, const char *name)
{
    return run("tn_lora_set", m, name, 2, (op[]){ OFF, ON });
}

tn_status tn_lora_merge(tn_module *m)
{
    if (!m || !tn_training(m)) return run("tn_lora_merge", m, NULL, 1, (op[]){ MERGE });
    return tni_error(TN_E_STATE, "tn_lora_merge: m is in train mode: want tn_eval before");
}

tn_status tn_lora_unmerge(tn_module *m)
{
    return run("tn_lora_unmerge", m, NULL, 1, (op[]){ UNMERGE });
}

tn_status tn_lora_remove(tn_module *m, const char *name, bool add)
{
    static const op ops[] = { MERGE, KEEP, TAKE_OUT };
    if (!name) return tni_poison("tn_lora_remove", "name");
    return run("tn_lora_remove", m, name, add ? 3 : 1, add ? ops : ops + 2);
}
