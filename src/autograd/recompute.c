/*
 * recompute.c - functions whose activations backward computes again (tenon/recompute.h).
 *
 * The function's ops are recorded as always: same nodes, same edges, so the engine, its order and
 * every gradient are what they would be without. But when the function returns, its nodes forget
 * what they keep. When backward first needs that, the function runs again, in a graph of its own;
 * its k-th node hands over to the k-th node of the first run what it kept. The graph of the second
 * run is never differentiated.
 *
 * The second run must do what the first did. It gets the generator, autocast with the casts that
 * were there, and buffers as they were: before a function writes a buffer, its memory is copied,
 * and before it puts another tensor into a slot, the old one is kept. All of it is exchanged with
 * what is there now, and again afterwards, so that buffers move once. A node of the second run that
 * kept memory of such a buffer gets a copy. What the first run read of parameters, buffers and
 * inputs must still be there: versions tell.
 *
 * A function within a function: its nodes are also nodes of the outer one, and when that ends, only
 * of that: the inner one is freed, as its inputs are activations, too. The second run of the outer
 * one calls it as if for the first time, so what its nodes forgot is found in two steps.
 *
 * Source: Chen et al., Training deep nets with sublinear memory cost (2016), section 3.
 */
#include "autograd/recompute.h"
#include "autograd/notify.h"
#include "base/map.h"

/* Versions of a buffer's memory in a second run are those of the first, and this. */
static const uint64_t SECOND = UINT64_C(1) << 40;

typedef struct input {
    tn_tensor *tensor; /* a leaf, or an alias without history */
    uint64_t version;
    bool wants; /* takes a gradient */
} input;

/* What a run depends on besides inputs and generator: of when the first one began. */
typedef struct modes {
    bool grad;
    tn_dtype cast;
    tni_map *casts; /* autocast's */
} modes;

struct tni_region {
    atomic_int refs;
    tn_recompute_function function;
    void *user;
    void (*release)(void *user);
    int n_in, n_out;
    input *in; /* n_in; NULL: done with, or out of memory */
    modes modes;
    tni_generator_state generator; /* then */
    tni_map seen; /* storage of a parameter or buffer (counted) -> 1 + its version when read */
    tni_undo *undo;
    size_t n_undo, undo_room;
    uint64_t drawn;          /* a hash of the random numbers' places in this run */
    tni_region *above;       /* the one that its first run is called in, while that lasts */
    bool again, ran, failed; /* its second run: is on, is over, has failed */
    tni_node **fresh;        /* n_fresh: of the run; after the second one NULL where taken */
    size_t n_fresh, fresh_room;
    size_t n; /* how many the first run had */
};

TNI_THREAD tni_region *tni_region_now;

/* The one whose second run this thread is in, the outermost that runs; NULL: none. */
static tni_region *second_run(void)
{
    tni_region *r = tni_region_now;
    while (r && !r->again) r = r->above;
    return r;
}

bool tn_recomputing(void)
{
    return second_run() != NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void undo_drop(tni_undo *u)
{
    if (u->drop) u->drop((void *)u->key);
    tn_drop(u->memory);
    tn_drop(u->value);
}

/* What only a second run needs. */
static void finish(tni_region *r)
{
    for (int i = 0; r->in && i < r->n_in; i++) tn_drop(r->in[i].tensor);
    tni_free(r->in, (size_t)r->n_in * sizeof *r->in);
    r->in = NULL;
    tni_autocast_free(r->modes.casts);
    r->modes.casts = NULL;
    for (size_t i = 0; i < r->seen.capacity; i++)
        if (r->seen.cell[i].key) tni_storage_drop((tni_storage *)r->seen.cell[i].key);
    tni_map_free(&r->seen);
    for (size_t i = 0; i < r->n_undo; i++) undo_drop(&r->undo[i]);
    tni_room_free(&r->undo, &r->undo_room, sizeof *r->undo);
    r->n_undo = 0;
    if (r->release) r->release(r->user);
    r->release = NULL;
}

static void drop_fresh(tni_region *r)
{
    for (size_t i = 0; i < r->n_fresh; i++)
        if (r->fresh[i]) tni_node_drop(r->fresh[i]);
    tni_room_free(&r->fresh, &r->fresh_room, sizeof *r->fresh);
    r->n_fresh = 0;
}

void tni_region_drop(tni_region *r)
{
    if (!tni_last(&r->refs)) return;
    finish(r);
    drop_fresh(r);
    tni_free(r, sizeof *r);
}

static tni_region *keep(tni_region *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

/* A leaf that is trained is kept itself, as autocast knows it; of others an alias is, so that the
 * region holds no graph. */
static bool take_input(input *own, tn_tensor *t)
{
    bool itself = tni_none(t) || (!t->node && t->requires_grad);
    *own = (input){ itself ? tn_keep(t) : tni_alias_raw(t), tn_version(t), t->requires_grad };
    return own->tensor != NULL;
}

static tni_region *region_new(tn_recompute_function function, void *user, int n_in,
                              tn_tensor *const *in, int n_out)
{
    tni_region *r = tni_calloc(sizeof *r);
    if (!r) return NULL;
    r->refs = 1;
    r->function = function;
    r->user = user;
    r->n_in = n_in;
    r->n_out = n_out;
    r->modes.grad = tn_grad_enabled();
    r->modes.cast = tni_autocasting;
    tni_generator_get(tn_default_generator(), &r->generator);
    bool made = n_in == 0 || (r->in = tni_calloc((size_t)n_in * sizeof *r->in));
    for (int i = 0; made && i < n_in; i++) {
        int first = 0; /* one given twice stays one */
        while (in[first] != in[i]) first++;
        if (first < i) r->in[i] = r->in[first];
        made = first < i ? tn_keep(r->in[i].tensor) != NULL : take_input(&r->in[i], in[i]);
    }
    if (made && tni_autocast_copy(&r->modes.casts)) return r;
    tni_region_drop(r);
    return NULL;
}

/* ---- recording ------------------------------------------------------------------------------- */

/* Each function that runs holds its nodes until it ends. */
tn_status tni_region_record(tni_node *node)
{
    for (tni_region *r = tni_region_now; r; r = r->above) {
        if (node->op->draws) r->drawn = tni_hash(r->drawn, node->args, tni_args_size(node));
        if (!tni_room(&r->fresh, &r->fresh_room, r->n_fresh, 1, sizeof *r->fresh))
            return TN_E_NOMEM;
        atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
        r->fresh[r->n_fresh++] = node;
    }
    return TN_OK;
}

/* After the first run: nodes forget what they keep, and functions within that they were of. A
 * backward may have used some already. */
static void forget_all(tni_region *r)
{
    r->n = r->n_fresh;
    for (size_t k = 0; k < r->n; k++) {
        tni_node *node = r->fresh[k];
        if (!node->keeps || node->spent) continue;
        tni_saved_free(node);
        node->spent = false; /* it comes back, from the region */
        if (node->region) tni_region_drop(node->region);
        node->region = keep(r);
        node->region_index = k;
    }
    drop_fresh(r);
}

/* ---- what is read ---------------------------------------------------------------------------- */

/* Of a storage that the second run has met: what it reads there from now on is its own. */
#define MET ((void *)UINTPTR_MAX)

static bool see(tni_region *r, tni_storage *s, void *as)
{
    bool known = tni_map_get(&r->seen, s) != NULL;
    if (tni_map_put(&r->seen, s, as) < 0) return false;
    if (!known) tni_storage_keep(s);
    return true;
}

static tn_status changed(const char *what, const tn_tensor *t)
{
    return tni_error(TN_E_STATE,
                     "tn_backward: %s%s%s was changed in place, or replaced, after a function of "
                     "tn_recompute read it: want it unchanged until backward; tn_clone it before "
                     "the change",
                     what, what[0] ? " " : "", tni_text(t));
}

static tn_status reads(tni_region *r, const tn_tensor *t)
{
    void *version = (void *)(uintptr_t)(1 + tn_version(t) % SECOND);
    void *then = tni_map_get(&r->seen, t->storage);
    if (then && (then == MET || !r->again)) return TN_OK;
    bool known = then || t->is_parameter || t->is_buffer; /* else an input's alias, maybe */
    if (r->again && known && then != version) return changed(t->is_buffer ? "buffer" : "leaf", t);
    return see(r, t->storage, r->again ? MET : version) ? TN_OK : TN_E_NOMEM;
}

tn_status tni_region_reads(int n, tn_tensor *const *in)
{
    tn_status status = TN_OK;
    for (int i = 0; i < n; i++) {
        bool leaf =
            in[i]->is_parameter || in[i]->is_buffer || (in[i]->requires_grad && !in[i]->node);
        if (tni_none(in[i]) || !leaf) continue;
        for (tni_region *r = tni_region_now; r && status == TN_OK; r = r->above)
            status = reads(r, in[i]);
    }
    return status;
}

/* ---- what is written ------------------------------------------------------------------------- */

static bool has(const tni_region *r, const void *key, int64_t number)
{
    for (size_t i = 0; i < r->n_undo; i++)
        if (r->undo[i].key == key && r->undo[i].number == number) return true;
    return false;
}

static tn_status add_undo(tni_region *r, const tni_undo *u)
{
    if (has(r, u->key, u->number)) return TN_OK;
    if (!tni_room(&r->undo, &r->undo_room, r->n_undo, 1, sizeof *u)) return TN_E_NOMEM;
    if (u->keep) u->keep((void *)u->key);
    tn_keep(u->memory);
    tn_keep(u->value);
    r->undo[r->n_undo++] = *u;
    return TN_OK;
}

tn_status tni_region_undo(const tni_undo *u)
{
    for (tni_region *r = tni_region_now; r; r = r->above) TNI_TRY(add_undo(r, u));
    return TN_OK;
}

tn_status tni_region_assigns(const tn_tensor *t)
{
    tni_region *r = second_run();
    return !r || tni_none(t) || see(r, t->storage, MET) ? TN_OK : TN_E_NOMEM;
}

/* Each function has a copy of its own, as its second run leaves what it wrote in it. */
tn_status tni_region_writes(const tn_tensor *t)
{
    const tni_storage *s = t->storage;
    tn_status status = TN_OK;
    if (atomic_load_explicit(&s->buffer_marks, memory_order_relaxed) == 0) return TN_OK;
    TNI_SCOPED;
    for (tni_region *r = tni_region_now; r && status == TN_OK; r = r->above) {
        if (has(r, s, 0)) continue;
        tni_undo u = { .key = s, .memory = tni_alias_all(t), .first = tn_version(t) };
        u.value = u.memory ? tni_copied(u.memory, t->dtype) : NULL;
        status = u.value ? add_undo(r, &u) : tni_pending();
    }
    return status;
}

/* As if what entries from the n-th on are about had not been written; they go. */
static void take_back(tni_region *r, size_t n)
{
    while (r->n_undo > n) {
        tni_undo *u = &r->undo[--r->n_undo];
        if (u->memory)
            tni_put_last(u->memory, u->value);
        else
            u->exchange(u);
        undo_drop(u);
    }
}

/* ---- the second run -------------------------------------------------------------------------- */

/* Everything that may fail: room for the exchanges, in the current scope. */
static tn_status prepare(tni_region *r)
{
    for (size_t i = 0; i < r->n_undo; i++)
        if (r->undo[i].memory && !(r->undo[i].room = tn_empty_like(r->undo[i].value)))
            return tni_pending();
    return TN_OK;
}

static void exchange_memory(tni_undo *u, bool before)
{
    _Atomic uint64_t *version = &u->memory->storage->version;
    if (before) u->now = atomic_load_explicit(version, memory_order_relaxed);
    if (TNI_UNLIKELY(tni_watching) && tni_watching->writes)
        tni_watching->writes(tni_watching, u->memory);
    tni_put_last(u->room, u->memory);
    tni_put_last(u->memory, u->value);
    tni_put_last(u->value, u->room);
    uint64_t to = before ? u->first + SECOND : u->now;
    atomic_store_explicit(version, to, memory_order_relaxed);
}

/* Newest first; the other way afterwards. */
static void exchange_all(tni_region *r, bool before)
{
    for (size_t i = 0; i < r->n_undo; i++) {
        tni_undo *u = &r->undo[before ? r->n_undo - 1 - i : i];
        if (u->memory)
            exchange_memory(u, before);
        else
            u->exchange(u);
    }
}

static void exchange_modes(modes *m)
{
    modes was = { .grad = tn_set_grad_enabled(m->grad),
                  .cast = tni_autocasting,
                  .casts = tni_autocast_exchange(m->casts) };
    tni_autocasting = m->cast;
    *m = was;
}

/* Memory of a buffer that is kept becomes the copy that will be as the second run left it, with
 * versions as in the first: then true, and the version when it was kept is to become that, too. */
static bool own_memory(tni_region *r, tn_tensor *alias)
{
    for (size_t i = 0; alias && !tni_none(alias) && i < r->n_undo; i++) {
        const tni_undo *u = &r->undo[i];
        tni_storage *old = alias->storage;
        if (!u->memory || u->key != old) continue;
        atomic_store_explicit(&u->value->storage->version, tn_version(alias) - SECOND,
                              memory_order_relaxed);
        alias->storage = tni_storage_keep(u->value->storage);
        tni_storage_drop(old);
        return true;
    }
    return false;
}

/* Before buffers are exchanged back. A function within has inputs, too. */
static void own_buffers(tni_region *r)
{
    for (size_t k = 0; r->n_undo && k < r->n_fresh; k++) {
        tni_node *node = r->fresh[k];
        tni_region *within = node->region;
        for (int i = 0; i < node->n_in; i++)
            if (own_memory(r, node->x[i].alias)) node->x[i].version -= SECOND;
        if (own_memory(r, node->y.alias)) node->y.version -= SECOND;
        for (int i = 0; i < node->n_saved; i++) own_memory(r, node->saved[i]);
        for (int i = 0; within && within->in && i < within->n_in; i++) {
            input *in = &within->in[i];
            if (!in->tensor->is_parameter && own_memory(r, in->tensor)) in->version -= SECOND;
        }
    }
}

static tn_status check_inputs(const tni_region *r)
{
    for (int i = 0; i < r->n_in; i++)
        if (!tni_none(r->in[i].tensor) && tn_version(r->in[i].tensor) != r->in[i].version)
            return changed("an input,", r->in[i].tensor);
    return TN_OK;
}

/* The inputs as handles of their own, with gradients as they had; one given twice is one. */
static tn_status copy_inputs(const tni_region *r, tn_tensor **in)
{
    for (int i = 0; i < r->n_in; i++) {
        const input *own = &r->in[i];
        bool same = tni_none(own->tensor) || own->tensor->requires_grad == own->wants;
        int first = 0;
        while (r->in[first].tensor != own->tensor) first++;
        in[i] = first < i ? in[first]
                : same    ? own->tensor
                          : tn_scope_adopt(tni_alias_raw(own->tensor));
        if (!in[i]) return tni_pending();
        if (!same) in[i]->requires_grad = own->wants;
    }
    return TN_OK;
}

static tn_status call(tni_region *r, tn_tensor *const *in, tn_tensor **out)
{
    uint64_t errors = tni_error_count;
    tni_region *was = tni_region_now;
    r->above = r->again ? NULL : was;
    tni_region_now = r;
    tn_status status = r->function(r->n_in, in, r->n_out, out, r->user);
    tni_region_now = was;
    r->above = NULL;
    status = tni_user_status("tn_recompute", "function", status, errors);
    for (int i = 0; status == TN_OK && i < r->n_out; i++)
        if (!out[i])
            status =
                tni_missing("tn_recompute: its function gave NULL for output %d: want a tensor", i);
    return status;
}

static tn_status call_again(tni_region *r, tn_tensor *const *in, tn_tensor **out)
{
    tni_generator_state generator;
    size_t n = r->n_undo;
    tni_generator_get(tn_default_generator(), &generator);
    tni_generator_put(tn_default_generator(), &r->generator);
    exchange_modes(&r->modes);
    exchange_all(r, true);
    r->again = true;
    tn_status status = call(r, in, out);
    r->again = false;
    take_back(r, n); /* what the first run did not write */
    if (status == TN_OK) own_buffers(r);
    exchange_all(r, false);
    exchange_modes(&r->modes);
    tni_generator_put(tn_default_generator(), &generator);
    return status;
}

static tn_status run_again(tni_region *r)
{
    if (r->failed)
        return tni_error(TN_E_STATE, "tn_backward: a function of tn_recompute failed when it ran "
                                     "again: want a new forward");
    TNI_TRY(check_inputs(r));
    TNI_ZEROED(tn_tensor *, in, r->n_in + r->n_out);
    if (!in) return TN_E_NOMEM;
    size_t guarded = tni_scope_guard();
    tn_scope scope = tn_scope_begin();
    tn_status status = scope.depth < 0 ? tni_pending() : copy_inputs(r, in);
    if (status == TN_OK) status = prepare(r);
    if (status == TN_OK) {
        uint64_t drawn = r->drawn;
        r->drawn = 0;
        status = call_again(r, in, in + r->n_in);
        if (status == TN_OK && r->n_fresh == r->n && r->drawn != drawn)
            status = tni_error(TN_E_STATE,
                               "tn_backward: a function of tn_recompute drew another mask when it "
                               "ran again: want it drawn by the default generator, unseeded");
        r->ran = status == TN_OK;
        r->failed = !r->ran;
    }
    tni_scope_unguard(guarded);
    tn_scope_end(scope);
    if (r->ran)
        finish(r);
    else
        drop_fresh(r);
    return status;
}

/* ---- handing over ---------------------------------------------------------------------------- */

static bool same_tensors(const tni_meta *a, const tni_meta *b, int n)
{
    for (int i = 0; i < n; i++)
        if (a[i].absent != b[i].absent || a[i].dtype != b[i].dtype ||
            !tni_shape_equal(&a[i].shape, &b[i].shape))
            return false;
    return true;
}

/* An op of the user's has a descriptor for each call. */
static bool same_op(const tni_node *a, const tni_node *b)
{
    if (a->op->custom || b->op->custom)
        return a->op->custom && b->op->custom && strcmp(a->op->name, b->op->name) == 0;
    return a->op == b->op && a->nbytes == b->nbytes;
}

static tn_status check_same(const tni_node *node, const tni_node *again)
{
    if (!again || !same_op(node, again) || node->n_in != again->n_in ||
        node->n_out != again->n_out || node->n_saved != again->n_saved ||
        !same_tensors(node->in, again->in, node->n_in) ||
        !same_tensors(node->out, again->out, node->n_out))
        return tni_error(
            TN_E_STATE,
            "tn_backward: a function of tn_recompute recorded %s%s of %s, and when it ran again "
            "%s%s of %s: want the same ops in both runs (modes, shapes and random numbers alike)",
            tni_op_prefix(node->op), node->op->name, tni_shape_text(&node->out[0].shape),
            again ? tni_op_prefix(again->op) : "", again ? again->op->name : "no op",
            again ? tni_shape_text(&again->out[0].shape) : "any shape");
    if (again->spent)
        return tni_error(TN_E_STATE,
                         "tn_backward: %s%s of a function of tn_recompute: a backward within the "
                         "function has used it when it ran again",
                         tni_op_prefix(node->op), node->op->name);
    for (int i = 0; i < node->n_in; i++)
        if (again->x[i].alias && again->x[i].version != node->x[i].version)
            return changed("", again->x[i].alias);
    return TN_OK;
}

/* Node k of the function's second run, which keeps what was forgotten: *at. NULL: there is none. */
static tn_status find(tni_region *r, size_t k, tni_node ***at)
{
    tn_status status = r->ran ? TN_OK : run_again(r);
    *at = status == TN_OK && k < r->n_fresh && r->fresh[k] ? &r->fresh[k] : NULL;
    if (!*at || !(**at)->region) return status;
    return find((**at)->region, (**at)->region_index, at); /* of a function within */
}

static void take(tni_node *node, tni_node *from)
{
    for (int i = 0; i < node->n_in; i++) {
        node->x[i] = from->x[i];
        from->x[i].alias = NULL;
    }
    atomic_init(&node->holds, atomic_load_explicit(&from->holds, memory_order_relaxed) > 0);
    node->y = from->y;
    from->y.alias = NULL;
    for (int i = 0; i < node->n_saved; i++) {
        node->saved[i] = from->saved[i];
        from->saved[i] = NULL;
    }
    from->spent = true; /* somebody may have kept what it made */
}

tn_status tni_region_fill(tni_node *node)
{
    tni_node **at;
    TNI_TRY(find(node->region, node->region_index, &at));
    TNI_TRY(check_same(node, at ? *at : NULL));
    take(node, *at);
    tni_node_drop(*at);
    *at = NULL;
    tni_region_drop(node->region);
    node->region = NULL;
    return TN_OK;
}

/* ---- the function ---------------------------------------------------------------------------- */

tn_status tni_recompute(tn_recompute_function function, void *user, void (*release)(void *user),
                        int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    tni_region *r = region_new(function, user, n_in, in, n_out);
    TNI_ZEROED(tn_tensor *, made, n_out); /* out may overlap in */
    tn_status status = TN_E_NOMEM;
    if (r) r->release = release;
    if (!r && release) release(user);
    if (r && made) {
        size_t guarded = tni_scope_guard();
        tn_scope scope = tn_scope_begin();
        status = scope.depth < 0 ? tni_pending() : call(r, in, made);
        status = tni_scope_hand_over(scope, &guarded, status, n_out, made);
        if (status == TN_OK) {
            forget_all(r);
        } else {
            take_back(r, 0);
            tni_generator_put(tn_default_generator(), &r->generator);
        }
    }
    for (int i = 0; i < n_out; i++) out[i] = made ? made[i] : NULL;
    if (!r) return status;
    drop_fresh(r);
    tni_region_drop(r);
    return status;
}

tn_status tn_recompute_n(tn_recompute_function function, void *user, int n_in, tn_tensor *const *in,
                         int n_out, tn_tensor **out)
{
    static const char f[] = "tn_recompute";
    tn_status status =
        function ? tni_check_arrays(f, n_in, in, n_out, out) : tni_poison(f, "function");
    if (status == TN_OK) return tni_recompute(function, user, NULL, n_in, in, n_out, out);
    for (int i = 0; out && i < n_out; i++) out[i] = NULL;
    return status;
}

tn_tensor *tn_recompute(tn_recompute_function function, void *user, int n_in, tn_tensor *const *in)
{
    tn_tensor *out = NULL;
    return tn_recompute_n(function, user, n_in, in, 1, &out) == TN_OK ? out : NULL;
}
