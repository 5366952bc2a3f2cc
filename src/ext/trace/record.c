/* record.c - what forward does: tensors that ops read, nodes, calls of modules, writes. */
#include "ext/trace/record.h"

tn_trace *tni_record_begin(tni_watcher *self)
{
    tn_trace *tr = (tn_trace *)self;
    if (!tr->running || tr->failed != TN_OK) return NULL;
    tni_error_save(&tr->error);
    tr->grad = tn_set_grad_enabled(false);
    tni_watch(NULL);
    return tr;
}

void tni_record_end(tn_trace *const *recorder)
{
    tn_trace *tr = *recorder;
    if (!tr) return;
    tni_watch(&tr->watcher);
    tn_set_grad_enabled(tr->grad);
    if (tr->failed != TN_OK) tni_error_restore(&tr->error);
}

void tni_record_numbers(tn_trace *tr, tni_numbers *v, const tn_tensor *t)
{
    tni_record_ok(tr, tni_numbers_note(v, t, tr->values, &tr->now.arena, &tr->pictures));
}

/* Text of the whole account */
static char *lasting(tn_trace *tr, const char *text)
{
    return tni_arena_text(&tr->log.arena, text);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void handle_made(tni_watcher *self, const tn_tensor *t)
{
    tni_map_remove(&((tn_trace *)self)->known, t);
}

/* Forgets what was known about the memory at this address. */
static void storage_made(tni_watcher *self, tni_storage *s)
{
    tn_trace *tr = (tn_trace *)self;
    tni_map_remove(&tr->storages, s);
    tni_map_remove(&tr->changed, s);
}

static bool fits(const tni_log_tensor *noted, const tn_tensor *t)
{
    return noted->dtype == t->dtype && tni_shape_equal(&noted->shape, &t->shape);
}

tni_log_tensor *tni_record_new_tensor(tn_trace *tr, const char *name, const char *module)
{
    char *own_name = lasting(tr, name), *own_module = lasting(tr, module);
    tni_log_tensor *t = TNI_NEW(&tr->log, tensors);
    if (t) *t = (tni_log_tensor){ .name = own_name, .module = own_module };
    if (t) t->id = (int)tr->log.n_tensors - 1;
    return t;
}

/* Adds a tensor that no list of the model has. A view of a registered tensor gets its name. */
static tni_log_tensor *add_tensor(tn_trace *tr, const tn_tensor *t, const tni_log_tensor *of)
{
    tni_phrase name = tni_phrase_of(of ? "%s (a view)" : "%s", of ? of->name : tn_name(t));
    tni_log_tensor *made = tni_record_new_tensor(tr, name.s, "");
    if (!made) return NULL;
    made->kind = of                                       ? of->kind
                 : t->is_parameter                        ? TN_GRAPH_PARAMETER
                 : atomic_load(&t->storage->buffer_marks) ? TN_GRAPH_BUFFER
                                                          : TN_GRAPH_TENSOR;
    made->role = of ? of->role : 0;
    made->dtype = t->dtype, made->shape = t->shape, made->requires_grad = t->requires_grad;
    return made;
}

/* Whether t is still the one known by this address: another thread may have made one there. */
static bool is_still(const tn_tensor *t, const tni_log_tensor *noted, const tni_log_tensor *of)
{
    if (!fits(noted, t)) return false;
    if (!noted->registered) return of || strcmp(noted->name, tn_name(t)) == 0;
    return of && noted->offset == t->offset;
}

tni_log_tensor *tni_record_tensor(tn_trace *tr, const tn_tensor *t)
{
    tni_log_tensor *noted = tni_map_get(&tr->known, t),
                   *of = tni_map_get(&tr->storages, t->storage);
    if (!noted && !of && tr->model && (t->is_parameter || t->is_buffer)) {
        /* added to the model since the last look? */
        tni_record_registered(tr, TNI_NEVER);
        noted = tni_map_get(&tr->known, t);
        of = tni_map_get(&tr->storages, t->storage);
    }
    if (noted && is_still(t, noted, of)) return noted;
    /* what reads the elements of a registered tensor, and gets no gradient of its own, is it */
    bool same = of && !(t->requires_grad && !t->node) && fits(of, t) && tni_is_dense(t) &&
                of->offset == t->offset;
    noted = same ? of : add_tensor(tr, t, of);
    if (noted) tni_record_put(tr, &tr->known, t, noted);
    return noted;
}

/* ---- calls ----------------------------------------------------------------------------------- */

tni_log_module *tni_record_new_module(tn_trace *tr, const char *path, const char *type)
{
    tni_log_module made = { lasting(tr, path), lasting(tr, type) };
    tni_log_module *m = TNI_NEW(&tr->log, modules);
    if (m) *m = made;
    return m;
}

static const tni_log_module *module_of(tn_trace *tr, const tni_call_site *p)
{
    tni_log_module *m = tni_map_get(&tr->modules, p->module), **all = tr->log.modules;
    for (size_t k = 0; !m && k < tr->log.n_modules; k++)
        if (strcmp(all[k]->path, p->path) == 0 && strcmp(all[k]->type, p->type) == 0) m = all[k];
    return m ? m : tni_record_new_module(tr, p->path, p->type);
}

/* Adds the call, after those around it, unless they are there. NULL: none, or the account ends. */
static tni_log_call *call_of(tn_trace *tr, tni_call_site *site)
{
    tni_log_call *c = site ? tni_map_get(&tr->calls, site) : NULL;
    if (!site || c) return c;
    tni_log_call *outer = call_of(tr, site->outer), *last = tni_map_get(&tr->newest, site->module);
    const tni_log_module *module = module_of(tr, site);
    c = TNI_NEW(&tr->now, calls);
    if (!c) return NULL;
    *c = (tni_log_call){
        .module = module, .time = last ? last->time + 1 : 1, .outer = outer, .site = site
    };
    atomic_fetch_add_explicit(&site->refs, 1, memory_order_relaxed);
    tni_record_put(tr, &tr->newest, site->module, c);
    tni_record_put(tr, &tr->calls, site, c);
    return c;
}

/* The running call. */
static tni_log_call *call_here(tn_trace *tr)
{
    tni_call_site *site;
    return tni_record_ok(tr, tni_call_site_now(&site)) ? call_of(tr, site) : NULL;
}

static void note_write(tn_trace *tr, tni_log_call *c, const tni_log_tensor *buffer)
{
    for (size_t i = 0; i < c->n_writes; i++)
        if (c->writes[i] == buffer) return;
    const tni_log_tensor **write = TNI_MORE(tr, c, writes);
    if (write) *write = buffer;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static const tni_log_op *op_of(tn_trace *tr, const tn_op *op)
{
    tni_log_op **all = tr->log.ops;
    for (size_t i = 0; i < tr->log.n_ops; i++)
        if (!strcmp(all[i]->name, op->name) &&
            !strcmp(all[i]->formula, op->formula ? op->formula : ""))
            return all[i];
    tni_log_op new = { lasting(tr, op->name), lasting(tr, op->formula), lasting(tr, op->gradient) };
    tni_log_op *noted = TNI_NEW(&tr->log, ops);
    if (noted) *noted = new;
    return noted;
}

/* The value of an input that takes no gradient; NULL: not available. */
static const tn_tensor *seen(const tni_node *node, int i, const tni_call *c)
{
    const tni_origin *o = node->origin;
    if (c) return c->in[i];
    return node->x[i].alias ? node->x[i].alias : o && i < o->n_in ? o->in[i] : NULL;
}

static void note_input(tn_trace *tr, const tni_node *node, int i, const tni_call *c, tni_log_in *in)
{
    const tni_edge *edge = &node->edge[i];
    *in = (tni_log_in){ .dtype = node->in[i].dtype, .shape = node->in[i].shape };
    if (edge->node) in->output = edge->index, in->from = edge->node->sequence;
    in->gradient = edge->node || edge->leaf;
    if (node->in[i].absent) return;
    const tn_tensor *t = edge->leaf ? edge->leaf : edge->node ? NULL : seen(node, i, c);
    if (edge->node) { /* recorded before the account, but its value is kept here */
        tni_log_node *from = tni_map_get(&tr->nodes, tni_sequence_key(in->from));
        if (from && !from->out[in->output].value.known && node->x[i].alias)
            tni_record_numbers(tr, &from->out[in->output].value, node->x[i].alias);
    }
    if (!t) return;
    in->tensor = tni_record_tensor(tr, t);
    if (in->tensor && !in->tensor->registered) tni_record_numbers(tr, &in->value, t);
}

static void note_saved(tn_trace *tr, tni_log_node *n, int what, int index, const tn_tensor *t)
{
    tni_log_saved *kept = TNI_MORE(tr, n, kept);
    if (kept) *kept = (tni_log_saved){ what, index, tni_bytes_of(t) };
}

tni_log_node *tni_record_node(tn_trace *tr, const tni_node *node, const tni_call *c)
{
    const void *key = tni_sequence_key(node->sequence);
    tni_arena *a = &tr->now.arena;
    tni_log_node *n = tni_map_get(&tr->nodes, key);
    if (n) return n;
    const tni_log_op *op = op_of(tr, node->op);
    n = TNI_NEW(&tr->now, nodes);
    if (!n) return NULL;
    *n = (tni_log_node){ .sequence = node->sequence, .op = op, .constants = node->op->constants };
    n->n_in = node->n_in, n->n_out = node->n_out;
    n->in = tni_arena_alloc(a, (size_t)node->n_in * sizeof *n->in);
    n->out = tni_arena_alloc(a, (size_t)node->n_out * sizeof *n->out);
    if (!n->in || !n->out) return NULL;
    if (n->constants)
        memcpy(n->constant, (const char *)node->args + node->op->constants_at,
               (strchr(n->constants, ' ') ? 2 : 1) * sizeof *n->constant);
    /* of a node recorded before the account as far as it is known (tn_set_places) */
    tni_call_site *site = !c && node->origin ? node->origin->site : NULL;
    n->call = c ? call_here(tr) : call_of(tr, site);
    for (size_t i = 0; site && n->call && i < site->n_written; i++) {
        tni_log_tensor *buffer = tni_map_get(&tr->storages, site->written[i]->storage);
        if (buffer) note_write(tr, n->call, buffer);
    }
    for (int i = 0; i < node->n_in; i++) {
        note_input(tr, node, i, c, &n->in[i]);
        if (node->x[i].alias) note_saved(tr, n, TNI_SAVED_IN, i, node->x[i].alias);
        if (node->x[i].recomputed) note_saved(tr, n, TNI_SAVED_RECOMPUTED, i, NULL);
    }
    for (int i = 0; i < node->n_out; i++) {
        bool plain = node->op->plain && node->op->plain[i];
        const tn_tensor *t = c ? c->out[i] : i == 0 ? node->y.alias : NULL;
        n->out[i] = (tni_log_out){ .dtype = node->out[i].dtype,
                                   .shape = node->out[i].shape,
                                   .gradient = tn_dtype_is_float(node->out[i].dtype) && !plain };
        if (t) tni_record_numbers(tr, &n->out[i].value, t);
    }
    if (node->y.alias) note_saved(tr, n, TNI_SAVED_OUT, 0, node->y.alias);
    for (int i = 0; i < node->n_saved; i++)
        if (node->saved[i]) note_saved(tr, n, TNI_SAVED_EXTRA, i, node->saved[i]);
    tni_record_put(tr, &tr->nodes, key, n);
    return tr->failed == TN_OK ? n : NULL;
}

/* ---- what the watcher sees ------------------------------------------------------------------- */

static tn_status applied(tni_watcher *self, const tni_call *c)
{
    tn_status status = tn_places() || tn_lines() ? tni_call_site_node(self, c) : TN_OK;
    const tni_node *node = NULL;
    for (int i = 0; i < c->n_out && !node; i++) node = c->out[i]->node;
    if (status != TN_OK || !c->recorded || !node) return status;
    TNI_RECORDER(tr, self);
    if (!tr) return TN_OK;
    tni_record_open(tr);
    tni_record_node(tr, node, c);
    return TN_OK;
}

static void called(tni_watcher *self, tn_module *m, int n_in, tn_tensor *const *in)
{
    (void)n_in, (void)in;
    TNI_RECORDER(tr, self);
    if (!tr || tni_calling()) return;
    tr->mode = tn_training(m);
    tni_record_open(tr);
}

static void writes(tni_watcher *self, const tn_tensor *t)
{
    tni_call_site_write(self, t);
    const tni_log_tensor *to = tni_map_get(&((tn_trace *)self)->storages, t->storage);
    if (!to) return;
    TNI_RECORDER(tr, self);
    if (!tr) return;
    tni_record_written(tr, to,
                       tr->optimizing       ? TNI_MOVED_OPTIMIZER
                       : tni_calling()      ? TNI_MOVED_FORWARD
                       : tni_pass_is_open() ? TNI_MOVED_BACKWARD
                                            : TNI_MOVED_HAND);
    bool mine = !tr->optimizing, buffer = mine && to->kind == TN_GRAPH_BUFFER;
    tni_log_call *call = buffer ? call_here(tr) : NULL;
    if (call) note_write(tr, call, to);
    if (mine && !buffer && tr->now.n_passes && !tr->pass && !tni_calling())
        tr->over = true; /* a parameter is moved by hand */
}

static tn_status changes(tni_watcher *self, const char *function, const tn_tensor *target,
                         const tn_tensor *source)
{
    (void)source;
    TNI_RECORDER(tr, self);
    if (tr) tni_record_put(tr, &tr->changed, target->storage, function);
    return TN_OK;
}

void tni_record_forward(tni_watcher *w)
{
    w->handle_made = handle_made, w->storage_made = storage_made;
    w->applied = applied, w->called = called;
    w->writes = writes, w->changes = changes;
}
