/*
 * explain_run.c - runs a loss function and records each op's inputs and results, and in which call.
 *
 * The watcher sees new handles, ops, tn_detach, in-place changes and calls; call sites show whose
 * call is running. An address counts as an older tensor only if no new one was made there.
 */
#include "autograd/call_site.h"
#include "ext/diagnose/explain.h"
#include "nn/micro_batches.h"

static char fresh_object;
static void *const fresh = &fresh_object; /* in `known`: made in this run, no number yet */

tni_phrase tni_run_place(const tni_run *r, int module)
{
    if (module < 0) return tni_phrase_of("the loss function");
    const tni_part *p = &r->part[module];
    return tni_phrase_of("%s%s%s", p->path, p->path[0] ? ": " : "", p->module->type->name);
}

/* ---- values ---------------------------------------------------------------------------------- */

int tni_run_number(const tni_run *r, const tn_tensor *t)
{
    const void *known = tni_map_get(&r->known, t);
    return known && known != fresh ? (int)((uintptr_t)known - 1) : -1;
}

/* The number of t, a new one if it is seen for the first time; -1 when out of memory. */
static int number(tni_run *r, const tn_tensor *t)
{
    const int known = tni_run_number(r, t);
    const bool old = !tni_map_get(&r->known, t);
    if (known >= 0) return known;
    tni_value *v = tni_arena_more(&r->arena, &r->value, &r->n_value, sizeof *v);
    if (r->n_value > INT32_MAX / 2 || tni_map_put(&r->known, t, (void *)(uintptr_t)r->n_value) < 0)
        r->failed = TN_E_NOMEM;
    if (!v || r->failed) return -1;
    *v = (tni_value){ .old = old, .dtype = t->dtype };
    v->parameter = t->requires_grad && tni_map_get(&r->member, t);
    return (int)r->n_value - 1;
}

static void handle_made(tni_watcher *self, const tn_tensor *t)
{
    tni_run *r = (tni_run *)self;
    if (tni_map_put(&r->known, t, fresh) < 0) r->failed = TN_E_NOMEM;
}

static void put_end(tni_run *r, const tn_tensor *t)
{
    int n = number(r, t);
    tni_end *end = tni_arena_more(&r->arena, &r->ends, &r->n_ends, sizeof *end);
    if (end) *end = 2 * (tni_end)n + t->requires_grad;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The running call; NULL: none, or out of memory. */
static const tni_call_site *here(tni_run *r)
{
    tni_call_site *site;
    if (tni_call_site_now(&site) != TN_OK) r->failed = TN_E_NOMEM;
    return site;
}

static int part_of(const tni_run *r, const void *module)
{
    return (int)(uintptr_t)tni_map_get(&r->parts, module) - 1;
}

/* The innermost module of the model in that call or around it, as an index; -1: none. */
static int calling(const tni_run *r, const tni_call_site *site)
{
    while (site && part_of(r, site->module) < 0) site = site->outer;
    return site ? part_of(r, site->module) : -1;
}

/* ---- what the model does not know ------------------------------------------------------------ */

/* The innermost running module with a field that holds t; NULL. */
static const tn_module *holder(tni_run *r, const tn_tensor *t)
{
    for (const tni_call_site *site = here(r); site; site = site->outer) {
        int part = part_of(r, site->module);
        const tn_module *m = part < 0 ? NULL : r->part[part].module;
        for (size_t at = sizeof *m; m && at + sizeof t <= m->type->size; at += sizeof t)
            if (memcmp((const char *)m + at, &t, sizeof t) == 0) return m;
    }
    return NULL;
}

/* Checks a tensor read in the innermost running call; its reader: "tn_add reads". */
static void look(tni_run *r, const tn_tensor *t, const char *who, const char *does)
{
    const int caller = calling(r, here(r));
    if (caller < 0 || tni_none(t) || tni_map_get(&r->member, t)) return;
    int n = number(r, t);
    if (n < 0 || !r->value[n].old || r->value[n].given || r->value[n].reported) return;
    r->value[n].reported = true;
    const tn_module *m = holder(r, t);
    const char *path = r->part[caller].path;
    char what[256];
    if (t->is_parameter || t->is_buffer)
        snprintf(what, sizeof what, "a %s of a module that is not registered in the model",
                 t->is_parameter ? "parameter" : "buffer");
    else if (m)
        snprintf(what, sizeof what, "a field of %s that is not registered", m->type->name);
    else
        snprintf(what, sizeof what, "no input, parameter or buffer");
    tni_say(&r->unregistered, "%s: %s %s %s, %s: neither saved nor moved",
            path[0] ? path : "(model)", who, does, tni_text(t), what);
}

/* ---- what the watcher sees ------------------------------------------------------------------- */

/* Records one op; then checks its inputs. Out of memory: the run goes on, and fails at its end. */
static tn_status take_down(tni_run *r, tni_use use, tn_tensor *const *in, int n_in,
                           tn_tensor *const *out, int n_out)
{
    if (r->n_ends > INT32_MAX / 2) r->failed = TN_E_NOMEM;
    if (r->failed) return TN_OK;
    use.module = calling(r, here(r)), use.end = (int)r->n_ends;
    for (int i = 0; i < n_in; i++) {
        if (tni_none(in[i])) continue;
        put_end(r, in[i]);
        use.n_in++;
    }
    for (int i = 0; i < n_out; i++) put_end(r, out[i]);
    use.n_out = n_out;
    tni_use *to = tni_arena_more(&r->arena, &r->use, &r->n_use, sizeof *to);
    if (to) *to = use;
    for (int i = 0; i < n_out && !r->failed; i++)
        r->value[r->ends[use.end + use.n_in + i] / 2].maker = r->n_use;
    char who[96];
    snprintf(who, sizeof who, "%s%s", use.prefix, use.op);
    for (int i = 0; i < n_in; i++) look(r, in[i], who, "reads");
    return TN_OK;
}

static tn_status saw_op(tni_watcher *self, const tni_call *c)
{
    tni_cut cut = !c->op->backward     ? TNI_CUT_NO_BACKWARD
                  : !tn_grad_enabled() ? TNI_CUT_NO_GRAD
                                       : TNI_CUT_DTYPE;
    const tni_use use = { tni_op_prefix(c->op), c->op->name, .cut = cut, .view = c->op->view };
    bool pairs = c->op->view && c->op->arity < 0; /* output i is a view of input i only */
    tni_run *r = (tni_run *)self;
    if (!pairs) {
        TNI_TRY(take_down(r, use, c->in, c->n_in, c->out, c->n_out));
        if (!r->failed && !use.view) tni_run_judge(r, &r->use[r->n_use - 1], c);
        return TN_OK;
    }
    for (int i = 0; i < c->n_in; i++) take_down((tni_run *)self, use, c->in + i, 1, c->out + i, 1);
    return TN_OK;
}

static tn_status saw_detach(tni_watcher *self, tn_tensor *from, tn_tensor *to)
{
    return take_down((tni_run *)self, (tni_use){ "tn_", "detach", .cut = TNI_CUT_DETACH }, &from, 1,
                     &to, 1);
}

static tn_status saw_write(tni_watcher *self, const char *function, const tn_tensor *target,
                           const tn_tensor *source)
{
    tn_tensor *in[] = { (tn_tensor *)target, (tn_tensor *)source };
    return take_down((tni_run *)self, (tni_use){ "", function, .cut = TNI_CUT_IN_PLACE }, in, 2, in,
                     1);
}

/* A module of the model is called: from outside of it, or by a call that is running. */
static void saw_call(tni_watcher *self, tn_module *m, int n_in, tn_tensor *const *in)
{
    tni_run *r = (tni_run *)self;
    int part = part_of(r, m);
    bool inside = calling(r, here(r)) >= 0;
    for (int i = 0; part >= 0 && i < n_in; i++) {
        int n = tni_none(in[i]) || inside ? -1 : number(r, in[i]);
        if (n >= 0) r->value[n].given = true;
        if (inside) look(r, in[i], r->part[part].path, "is given");
    }
}

/* ---- before and after ------------------------------------------------------------------------ */

static tn_status add_part(tn_module *m, const char *path, void *user)
{
    tni_run *r = user;
    tni_part *p = tni_arena_more(&r->arena, &r->part, &r->n_part, sizeof *p);
    if (!p) return TN_E_NOMEM;
    *p = (tni_part){ .module = tn_module_keep(m), .path = tni_arena_text(&r->arena, path) };
    if (!p->path || tni_map_put(&r->parts, m, (void *)(uintptr_t)r->n_part) < 0) return TN_E_NOMEM;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_CHILD) continue;
        if (slot->kind == TNI_BUFFER && !tni_batch_add(r->buffers, m, slot, slot->tensor, NULL))
            return tni_pending();
        if (!tni_none(slot->tensor) && tni_map_put(&r->member, slot->tensor, slot->tensor) < 0)
            return TN_E_NOMEM;
    }
    if (m->type->extra_state) {
        tn_tensor *now = m->type->extra_state(m);
        if (!now || !(now = tn_clone(now))) return tni_poison(m->type->name, "its extra state");
        p->extra = tn_keep(now);
    }
    return TN_OK;
}

tn_status tni_run_carry(tni_run *r)
{
    r->arena.failed = &r->failed;
    if (!(r->buffers = tni_calloc(sizeof *r->buffers))) return TN_E_NOMEM;
    tn_generator_get_state(tn_default_generator(), r->generator);
    TN_NO_GRAD if (r->model) TNI_TRY(tni_walk(r->model, TNI_ONCE, add_part, NULL, r));
    return TN_OK;
}

tn_status tni_run_begin(tni_run *r, const char *function, tn_module *m, tni_loss loss, void *user)
{
    TNI_TRY(tni_module_check(function, m));
    if (!loss) return tni_null(function, "the loss", "a function that makes it");
    if (tni_host_refused(function, "watches a run", "it called outside of the step"))
        return TN_E_STATE;
    r->function = function, r->what = "the loss";
    r->model = m, r->loss = loss, r->user = user;
    r->outer = tni_watch(NULL);
    return TN_OK;
}

static tn_status check_loss(const tni_run *r, const tn_tensor *loss)
{
    if (!loss) return tni_missing("%s: %s is NULL: want one that is there", r->function, r->what);
    if (!tni_none(loss) && tni_shape_numel(&loss->shape) == 1) return TN_OK;
    return tni_error(TN_E_SHAPE, "%s: %s is %s: want one element", r->function, r->what,
                     tni_text(loss));
}

tn_status tni_run_watch(tni_run *r, tn_tensor **result)
{
    const int TN_WHEN_LEFT(tn_leave_no_grad_) was = tn_set_grad_enabled(true);
    TNI_TRY(tni_run_carry(r));
    r->watcher = (tni_watcher){ .handle_made = handle_made, .applied = saw_op };
    r->watcher.detached = saw_detach, r->watcher.changes = saw_write;
    r->watcher.called = saw_call;
    tni_autocast_forget(); /* the run must see casts reading the parameters */
    tni_watch(&r->watcher);
    *result = r->loss(r->model, r->user);
    tni_watch(NULL);
    TNI_TRY(check_loss(r, *result));
    if (!r->failed && number(r, *result) >= 0) return TN_OK;
    return tni_error(TN_E_NOMEM, "%s: out of memory", r->function);
}

tn_status tni_run_loss(tni_run *r, double *value)
{
    const int TN_WHEN_LEFT(tn_leave_no_grad_) was = tn_grad_enabled();
    tn_scope scope = tn_scope_begin();
    const tn_tensor *loss = r->loss(r->model, r->user);
    tn_status status = check_loss(r, loss);
    if (status == TN_OK) *value = tn_item(loss);
    tn_scope_end(scope);
    tn_status restored = tni_run_restore(r);
    return status == TN_OK ? restored : status;
}

tn_status tni_run_slope(tni_run *r, tn_tensor *leaf, tn_tensor *u, double h, double *slope)
{
    double loss[2] = { 0 }; /* above and below */
    uint64_t version = tn_version(leaf);
    tn_scope scope = tn_scope_begin();
    tn_tensor *center = tn_clone(tn_detach(leaf));
    tn_status status = center ? TN_OK : tni_pending();
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        TN_NO_GRAD status = tn_copy_(leaf, tn_add(center, tn_mul_scalar(u, i ? -h : h)));
        if (status == TN_OK) status = tni_run_loss(r, &loss[i]);
    }
    if (center && tn_version(leaf) != version) {
        tn_status back = tni_put_last(leaf, center);
        if (status == TN_OK) status = back;
        atomic_store(&leaf->storage->version, version);
        tni_autocast_forget(); /* casts of what it was meanwhile */
    }
    tn_scope_end(scope);
    *slope = (loss[0] - loss[1]) / (2 * h);
    return status;
}

bool tni_trains(const tn_entry *entry, void *user)
{
    (void)user;
    return entry->tensor->requires_grad;
}

tn_status tni_run_gradients(tni_run *r, const tn_list *parameters, tn_tensor *loss)
{
    r->leaves = tn_list_filter(parameters, tni_trains, NULL);
    if (!r->leaves) return tni_pending();
    int n = r->leaves->n;
    r->leaf = tni_arena_alloc(&r->arena, 2 * (size_t)n * sizeof *r->leaf);
    if (!r->leaf) return TN_E_NOMEM;
    r->grad = r->leaf + n;
    for (int i = 0; i < n; i++) r->leaf[i] = r->leaves->entry[i].tensor, r->grad[i] = TN_NONE;
    return n && loss->requires_grad ? tn_gradients(1, &loss, NULL, n, r->leaf, r->grad, 0) : TN_OK;
}

tn_status tni_run_restore(tni_run *r)
{
    if (!r->buffers) return TN_OK;
    const int TN_WHEN_LEFT(tn_leave_no_grad_) was = tn_set_grad_enabled(false);
    tn_status status = tni_batch_settle(r->buffers, false);
    for (size_t i = 0; i < r->n_part && status == TN_OK; i++) {
        tn_module *m = r->part[i].module;
        if (r->part[i].extra && m->type->set_extra_state)
            status = m->type->set_extra_state(m, r->part[i].extra);
    }
    tn_status last = tn_generator_set_state(tn_default_generator(), r->generator);
    return status == TN_OK ? last : status;
}

void tni_run_free(tni_run *r)
{
    tni_batch_free(r->buffers);
    for (size_t i = 0; i < r->n_part; i++) {
        tn_module_drop(r->part[i].module);
        tn_drop(r->part[i].extra);
    }
    tni_arena_free(&r->arena);
    tni_map_free(&r->parts);
    tni_map_free(&r->member);
    tni_map_free(&r->known);
    tni_bytes_free(&r->unregistered.text);
    tni_bytes_free(&r->mistakes.text);
}
