/*
 * record.c - what forward does: tensors that ops read, nodes, calls of modules, writes.
 */
#include "ext/trace/record.h"

bool tni_record_begin(tn_trace *tr)
{
    if (!tr->running || tr->failed != TN_OK) return false;
    tni_error_save(&tr->error);
    tr->grad = tn_set_grad_enabled(false);
    tni_watch(NULL);
    return true;
}

void tni_record_end(tn_trace *tr)
{
    tni_watch(&tr->watcher);
    tn_set_grad_enabled(tr->grad);
    if (tr->failed != TN_OK) tni_error_restore(&tr->error);
}

void tni_record_numbers(tn_trace *tr, tni_numbers *v, const tn_tensor *t)
{
    tni_record_ok(tr, tni_numbers_note(v, t, tr->values, &tr->now.arena));
}

void *tni_record_alloc(tn_trace *tr, tni_arena *a, size_t size)
{
    void *block = tni_arena_alloc(a, size);
    tni_record_has(tr, block);
    return block;
}

char *tni_record_text(tn_trace *tr, tni_arena *a, const char *text)
{
    char *copy = tni_arena_text(a, text);
    tni_record_has(tr, copy);
    return copy;
}

void *tni_record_more(tn_trace *tr, tni_arena *a, void *items, size_t *n, size_t size)
{
    void *item = tr->failed == TN_OK ? tni_arena_more(a, items, n, size) : NULL;
    tni_record_has(tr, item);
    return item;
}

/* Text of the whole account */
static char *lasting(tn_trace *tr, const char *text)
{
    return tni_record_text(tr, &tr->log.arena, text);
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

int tni_record_new_tensor(tn_trace *tr, const char *name, const char *module)
{
    tni_log_tensor made = { .name = lasting(tr, name), .module = lasting(tr, module) };
    tni_log_tensor *t = TNI_MORE(tr, &tr->log, tensors);
    if (!t) return -1;
    *t = made;
    return (int)tr->log.n_tensors - 1;
}

/* Adds a tensor that no list of the model has. A view of a registered tensor gets its name. */
static int add_tensor(tn_trace *tr, const tn_tensor *t, int of)
{
    tni_phrase name = of < 0 ? tni_phrase_of("%s", tn_name(t))
                             : tni_phrase_of("%s (a view)", tr->log.tensors[of].name);
    int at = tni_record_new_tensor(tr, name.s, "");
    if (at < 0) return -1;
    tni_log_tensor *made = &tr->log.tensors[at];
    made->kind = of >= 0                                  ? tr->log.tensors[of].kind
                 : t->is_parameter                        ? TN_GRAPH_PARAMETER
                 : atomic_load(&t->storage->buffer_marks) ? TN_GRAPH_BUFFER
                                                          : TN_GRAPH_TENSOR;
    made->role = of >= 0 ? tr->log.tensors[of].role : 0;
    made->dtype = t->dtype;
    made->shape = t->shape;
    made->requires_grad = t->requires_grad;
    return at;
}

/* Whether t, which shares memory with registered tensor `of`, reads the same elements and gets no
 * gradient of its own. */
static bool stands_for(const tn_trace *tr, const tn_tensor *t, int of)
{
    bool leaf = t->requires_grad && !t->node;
    return !leaf && fits(&tr->log.tensors[of], t) && tni_is_dense(t) &&
           tr->log.tensors[of].offset == t->offset;
}

/* Whether t is still tensor i, known by this address: another thread may have made one there. */
static bool is_still(const tn_trace *tr, const tn_tensor *t, int i, int of)
{
    const tni_log_tensor *noted = &tr->log.tensors[i];
    if (!fits(noted, t)) return false;
    if (!noted->registered) return of >= 0 || strcmp(noted->name, tn_name(t)) == 0;
    return of >= 0 && noted->offset == t->offset;
}

int tni_record_tensor(tn_trace *tr, const tn_tensor *t)
{
    int i = tni_get(&tr->known, t), of = tni_get(&tr->storages, t->storage);
    if (i < 0 && of < 0 && tr->model && (t->is_parameter || t->is_buffer)) {
        /* added to the model since the last look? */
        tni_record_registered(tr);
        i = tni_get(&tr->known, t);
        of = tni_get(&tr->storages, t->storage);
    }
    if (i >= 0 && is_still(tr, t, i, of)) return i;
    i = of >= 0 && stands_for(tr, t, of) ? of : add_tensor(tr, t, of);
    return i >= 0 && tni_record_put(tr, &tr->known, t, i) ? i : -1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

int tni_record_new_module(tn_trace *tr, const char *path, const char *type)
{
    tni_log_module made = { lasting(tr, path), lasting(tr, type) };
    tni_log_module *m = TNI_MORE(tr, &tr->log, modules);
    if (!m) return -1;
    *m = made;
    return (int)tr->log.n_modules - 1;
}

static int module_of(tn_trace *tr, const tni_call_site *p)
{
    int i = tni_get(&tr->modules, p->module);
    const tni_log_module *m = tr->log.modules;
    for (size_t k = 0; i < 0 && k < tr->log.n_modules; k++)
        if (strcmp(m[k].path, p->path) == 0 && strcmp(m[k].type, p->type) == 0) i = (int)k;
    return i < 0 ? tni_record_new_module(tr, p->path, p->type) : i;
}

/* Adds the call, and before it those around it, unless they are there. -1: outside of all calls, or
 * the account ends. */
static int call_of(tn_trace *tr, tni_call_site *site)
{
    int at = site ? tni_get(&tr->calls, site) : -1;
    if (!site || at >= 0) return at;
    int outer = call_of(tr, site->outer), module = module_of(tr, site);
    int time = tni_get(&tr->times, site->module) + 1;
    tni_log_call *c = TNI_MORE(tr, &tr->now, calls);
    if (!c) return -1;
    *c = (tni_log_call){ .module = module, .time = time + 1, .outer = outer, .site = site };
    atomic_fetch_add_explicit(&site->refs, 1, memory_order_relaxed);
    at = (int)tr->now.n_calls - 1;
    return tni_record_put(tr, &tr->times, site->module, time) &&
                   tni_record_put(tr, &tr->calls, site, at)
               ? at
               : -1;
}

/* The running call. */
static int call_here(tn_trace *tr)
{
    tni_call_site *site;
    return tni_record_ok(tr, tni_call_site_now(&site)) ? call_of(tr, site) : -1;
}

static void note_write(tn_trace *tr, int call, int buffer)
{
    tni_log_call *c = &tr->now.calls[call];
    for (size_t i = 0; i < c->n_writes; i++)
        if (c->writes[i] == buffer) return;
    int *write = tni_record_more(tr, &tr->now.arena, &c->writes, &c->n_writes, sizeof *write);
    if (write) *write = buffer;
}

/* The call of a node recorded before the account, as far as the node knows (tn_set_places). */
static int call_before(tn_trace *tr, const tni_node *node)
{
    tni_call_site *site = node->origin ? node->origin->site : NULL;
    int call = call_of(tr, site);
    for (size_t i = 0; call >= 0 && i < site->n_written; i++) {
        int buffer = tni_get(&tr->storages, site->written[i]->storage);
        if (buffer >= 0) note_write(tr, call, buffer);
    }
    return call;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return strcmp(a, b ? b : "") == 0;
}

static int op_of(tn_trace *tr, const tn_op *op)
{
    tni_log *log = &tr->log;
    for (size_t i = 0; i < log->n_ops; i++)
        if (same_text(log->ops[i].name, op->name) && same_text(log->ops[i].formula, op->formula))
            return (int)i;
    tni_log_op made = { lasting(tr, op->name), lasting(tr, op->formula),
                        lasting(tr, op->gradient) };
    tni_log_op *noted = TNI_MORE(tr, log, ops);
    if (!noted) return -1;
    *noted = made;
    return (int)log->n_ops - 1;
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
    *in = (tni_log_in){ .node = -1,
                        .output = edge->node ? edge->index : 0,
                        .tensor = -1,
                        .from = edge->node ? edge->node->sequence : 0,
                        .gradient = edge->node || edge->leaf,
                        .dtype = node->in[i].dtype,
                        .shape = node->in[i].shape };
    if (node->in[i].absent) return;
    const tn_tensor *t = edge->leaf ? edge->leaf : edge->node ? NULL : seen(node, i, c);
    if (edge->node) { /* recorded before the account, but its value is kept here */
        int from = tni_get(&tr->nodes, tni_sequence_key(in->from));
        tni_log_out *out = from < 0 ? NULL : &tr->now.nodes[from].out[in->output];
        if (out && !out->value.known && node->x[i].alias)
            tni_record_numbers(tr, &out->value, node->x[i].alias);
    }
    if (!t) return;
    in->tensor = tni_record_tensor(tr, t);
    if (in->tensor >= 0 && !tr->log.tensors[in->tensor].registered)
        tni_record_numbers(tr, &in->value, t);
}

static void note_output(tn_trace *tr, const tni_node *node, int i, const tni_call *c,
                        tni_log_out *out)
{
    bool plain = node->op->plain && node->op->plain[i];
    const tn_tensor *t = c ? c->out[i] : i == 0 ? node->y.alias : NULL;
    *out = (tni_log_out){ .dtype = node->out[i].dtype,
                          .shape = node->out[i].shape,
                          .gradient = tn_dtype_is_float(node->out[i].dtype) && !plain };
    if (t) tni_record_numbers(tr, &out->value, t);
}

static void note_saved(tn_trace *tr, tni_log_node *n, int what, int index, const tn_tensor *t)
{
    tni_log_saved *kept =
        tni_record_more(tr, &tr->now.arena, &n->kept, &n->n_kept, sizeof *n->kept);
    if (kept) *kept = (tni_log_saved){ what, index, tni_bytes_of(t) };
}

static void note_all_saved(tn_trace *tr, tni_log_node *n, const tni_node *node)
{
    for (int i = 0; i < node->n_in; i++) {
        if (node->x[i].alias) note_saved(tr, n, TNI_SAVED_IN, i, node->x[i].alias);
        if (node->x[i].recomputed) note_saved(tr, n, TNI_SAVED_RECOMPUTED, i, NULL);
    }
    if (node->y.alias) note_saved(tr, n, TNI_SAVED_OUT, 0, node->y.alias);
    for (int i = 0; i < node->n_saved; i++)
        if (node->saved[i]) note_saved(tr, n, TNI_SAVED_EXTRA, i, node->saved[i]);
}

int tni_record_node(tn_trace *tr, const tni_node *node, const tni_call *c)
{
    const void *key = tni_sequence_key(node->sequence);
    tni_arena *a = &tr->now.arena;
    int at = tni_get(&tr->nodes, key);
    if (at >= 0) return at;
    int op = op_of(tr, node->op);
    tni_log_node *n = TNI_MORE(tr, &tr->now, nodes);
    if (!n) return -1;
    at = (int)tr->now.n_nodes - 1;
    *n = (tni_log_node){ .sequence = node->sequence,
                         .op = op,
                         .n_in = node->n_in,
                         .n_out = node->n_out,
                         .in = tni_record_alloc(tr, a, (size_t)node->n_in * sizeof *n->in),
                         .out = tni_record_alloc(tr, a, (size_t)node->n_out * sizeof *n->out) };
    if (!n->in || !n->out) return -1;
    n->call = c ? call_here(tr) : call_before(tr, node);
    for (int i = 0; i < node->n_in; i++) note_input(tr, node, i, c, &n->in[i]);
    for (int i = 0; i < node->n_out; i++) note_output(tr, node, i, c, &n->out[i]);
    note_all_saved(tr, n, node);
    return tni_record_put(tr, &tr->nodes, key, at) && tr->failed == TN_OK ? at : -1;
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

static unsigned who_writes(const tn_trace *tr)
{
    return tr->optimizing       ? TNI_MOVED_OPTIMIZER
           : tni_calling()      ? TNI_MOVED_FORWARD
           : tni_pass_is_open() ? TNI_MOVED_BACKWARD
                                : TNI_MOVED_HAND;
}

static void writes(tni_watcher *self, const tn_tensor *t)
{
    tni_call_site_write(self, t);
    int i = tni_get(&((tn_trace *)self)->storages, t->storage);
    if (i < 0) return;
    TNI_RECORDER(tr, self);
    if (!tr) return;
    tni_record_written(tr, i, who_writes(tr));
    bool mine = !tr->optimizing;
    bool buffer = mine && tr->log.tensors[i].kind == TN_GRAPH_BUFFER;
    int call = buffer ? call_here(tr) : -1;
    if (call >= 0) note_write(tr, call, i);
    if (mine && !buffer && tr->now.n_passes && !tr->pass && !tni_calling())
        tr->over = true; /* a parameter is moved by hand */
}

void tni_record_changed(tn_trace *tr, const tn_tensor *t, const char *function)
{
    int put = tni_map_put(&tr->changed, t->storage, (void *)(uintptr_t)function);
    tni_record_ok(tr, put < 0 ? TN_E_NOMEM : TN_OK);
}

static tn_status changes(tni_watcher *self, const char *function, const tn_tensor *target,
                         const tn_tensor *source)
{
    (void)source;
    TNI_RECORDER(tr, self);
    if (tr) tni_record_changed(tr, target, function);
    return TN_OK;
}

void tni_record_forward(tni_watcher *w)
{
    w->handle_made = handle_made;
    w->storage_made = storage_made;
    w->applied = applied;
    w->called = called;
    w->writes = writes;
    w->changes = changes;
}
