/*
 * record.c - what forward does: tensors that ops read, nodes, calls of modules, writes.
 */
#include "ext/trace/record.h"

bool tni_note_begin(tni_note *note, tni_watcher *self)
{
    tn_trace *tr = (tn_trace *)self;
    if (!tr->running || tr->failed != TN_OK) return false;
    note->trace = tr;
    tni_error_save(&note->error);
    note->grad = tn_set_grad_enabled(false);
    tni_watch(NULL);
    return true;
}

void tni_note_end(tni_note *note, tn_status status)
{
    tni_watch(&note->trace->watcher);
    tn_set_grad_enabled(note->grad);
    if (status == TN_OK) return;
    note->trace->failed = status;
    tni_error_restore(&note->error);
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

bool tni_record_texts(int n, char *const *text)
{
    bool all = true;
    for (int i = 0; i < n; i++) all &= text[i] != NULL;
    for (int i = 0; i < n && !all; i++)
        if (text[i]) tni_strfree(text[i]);
    return all;
}

static bool fits(const tni_log_tensor *noted, const tn_tensor *t)
{
    return noted->dtype == t->dtype && tni_shape_equal(&noted->shape, &t->shape);
}

/* Adds a tensor that no list of the model has. A view of a registered tensor gets its name. */
static int add_tensor(tn_trace *tr, const tn_tensor *t, int of)
{
    tni_log *log = &tr->log;
    if (!tni_room(&log->tensors, &log->tensor_room, log->n_tensors, 1, sizeof *log->tensors))
        return -1;
    char name[256];
    snprintf(name, sizeof name, "%s%s", of < 0 ? tn_name(t) : log->tensors[of].name,
             of < 0 ? "" : " (a view)");
    tni_log_tensor made = { .name = tni_strdup(name),
                            .module = tni_strdup(""),
                            .kind = of >= 0                                  ? log->tensors[of].kind
                                    : t->is_parameter                        ? TN_GRAPH_PARAMETER
                                    : atomic_load(&t->storage->buffer_marks) ? TN_GRAPH_BUFFER
                                                                             : TN_GRAPH_TENSOR,
                            .dtype = t->dtype,
                            .shape = t->shape,
                            .requires_grad = t->requires_grad };
    if (!tni_record_texts(2, (char *[]){ made.name, made.module })) return -1;
    log->tensors[log->n_tensors] = made;
    return (int)log->n_tensors++;
}

/* Whether t, which shares memory with registered tensor `of`, reads the same elements and gets no
 * gradient of its own. */
static bool stands_for(const tn_trace *tr, const tn_tensor *t, int of)
{
    bool leaf = t->requires_grad && !t->node;
    return !leaf && fits(&tr->log.tensors[of], t) && tni_is_dense(t) &&
           tni_map_get(&tr->offsets, tni_index_key(of)) == tni_offset_value(t);
}

/* Whether t is still tensor i, known by this address: another thread may have made one there. */
static bool is_still(const tn_trace *tr, const tn_tensor *t, int i, int of)
{
    const tni_log_tensor *noted = &tr->log.tensors[i];
    if (!fits(noted, t)) return false;
    if (!noted->registered) return of >= 0 || strcmp(noted->name, tn_name(t)) == 0;
    return of >= 0 && tni_map_get(&tr->offsets, tni_index_key(i)) == tni_offset_value(t);
}

int tni_record_tensor(tn_trace *tr, const tn_tensor *t)
{
    int i = tni_get(&tr->known, t), of = tni_get(&tr->storages, t->storage);
    if (i < 0 && of < 0 && tr->model && (t->is_parameter || t->is_buffer)) {
        /* added to the model since the last look? */
        if (tni_record_registered(tr) != TN_OK) return -1;
        i = tni_get(&tr->known, t);
        of = tni_get(&tr->storages, t->storage);
    }
    if (i >= 0 && is_still(tr, t, i, of)) return i;
    i = of >= 0 && stands_for(tr, t, of) ? of : add_tensor(tr, t, of);
    return i >= 0 && tni_put(&tr->known, t, i) == TN_OK ? i : -1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int module_of(tn_trace *tr, const tni_call_site *p)
{
    int i = tni_get(&tr->modules, p->module);
    tni_log *log = &tr->log;
    if (i >= 0) return i;
    for (size_t k = 0; k < log->n_modules; k++)
        if (strcmp(log->modules[k].path, p->path) == 0 &&
            strcmp(log->modules[k].type, p->type) == 0)
            return (int)k;
    if (!tni_room(&log->modules, &log->module_room, log->n_modules, 1, sizeof *log->modules))
        return -1;
    tni_log_module m = { tni_strdup(p->path), tni_strdup(p->type) };
    if (!tni_record_texts(2, (char *[]){ m.path, m.type })) return -1;
    log->modules[log->n_modules] = m;
    return (int)log->n_modules++;
}

/* Adds a call; the call around it is there already. */
static tn_status add_call(tn_trace *tr, tni_call_site *p)
{
    tni_log_step *s = &tr->now;
    int module = module_of(tr, p), time = tni_get(&tr->times, p->module) + 1;
    if (module < 0 || !tni_room(&s->calls, &s->call_room, s->n_calls, 1, sizeof *s->calls) ||
        !tni_room(&tr->sites, &tr->site_room, tr->n_sites, 1, sizeof(tni_call_site *)))
        return TN_E_NOMEM;
    s->calls[s->n_calls] = (tni_log_call){ .module = module,
                                           .time = time + 1,
                                           .outer = tni_get(&tr->calls, p->outer) };
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    tr->sites[tr->n_sites++] = p;
    tn_status status = tni_put(&tr->times, p->module, time);
    return status == TN_OK ? tni_put(&tr->calls, p, (int)s->n_calls++) : status;
}

static tn_status call_of(tn_trace *tr, tni_call_site *site, int *call)
{
    tn_status status = TN_OK;
    while (status == TN_OK && site && tni_get(&tr->calls, site) < 0) {
        tni_call_site *p = site; /* the outermost that is not there */
        while (p->outer && tni_get(&tr->calls, p->outer) < 0) p = p->outer;
        status = add_call(tr, p);
    }
    *call = site ? tni_get(&tr->calls, site) : -1;
    return status;
}

/* The running call. */
static tn_status call_here(tn_trace *tr, int *call)
{
    tni_call_site *site;
    tn_status status = tni_call_site_now(&site);
    return status == TN_OK ? call_of(tr, site, call) : status;
}

static tn_status note_write(tn_trace *tr, int call, int buffer)
{
    tni_log_call *c = &tr->now.calls[call];
    for (size_t i = 0; i < c->n_writes; i++)
        if (c->writes[i] == buffer) return TN_OK;
    if (!tni_room(&c->writes, &c->room, c->n_writes, 1, sizeof *c->writes)) return TN_E_NOMEM;
    c->writes[c->n_writes++] = buffer;
    return TN_OK;
}

/* The call of a node recorded before the account, as far as the node knows (tn_set_places). */
static tn_status call_before(tn_trace *tr, const tni_node *node, int *call)
{
    tni_call_site *site = node->origin ? node->origin->site : NULL;
    tn_status status = call_of(tr, site, call);
    for (size_t i = 0; status == TN_OK && site && i < site->n_written; i++) {
        int buffer = tni_get(&tr->storages, site->written[i]->storage);
        if (buffer >= 0) status = note_write(tr, *call, buffer);
    }
    return status;
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
    if (!tni_room(&log->ops, &log->op_room, log->n_ops, 1, sizeof *log->ops)) return -1;
    tni_log_op made = { tni_strdup(op->name), tni_strdup(op->formula ? op->formula : ""),
                        tni_strdup(op->gradient ? op->gradient : "") };
    if (!tni_record_texts(3, (char *[]){ made.name, made.formula, made.gradient })) return -1;
    log->ops[log->n_ops] = made;
    return (int)log->n_ops++;
}

/* The value of an input that takes no gradient; NULL: not available. */
static const tn_tensor *seen(const tni_node *node, int i, const tni_call *c)
{
    const tni_origin *o = node->origin;
    if (c) return c->in[i];
    return node->x[i].alias ? node->x[i].alias : o && i < o->n_in ? o->in[i] : NULL;
}

static tn_status note_input(tn_trace *tr, const tni_node *node, int i, const tni_call *c,
                            tni_log_in *in)
{
    const tni_edge *edge = &node->edge[i];
    *in = (tni_log_in){ .node = -1,
                        .output = edge->node ? edge->index : 0,
                        .tensor = -1,
                        .from = edge->node ? edge->node->sequence : 0,
                        .gradient = edge->node || edge->leaf,
                        .dtype = node->in[i].dtype,
                        .shape = node->in[i].shape };
    if (node->in[i].absent) return TN_OK;
    const tn_tensor *t = edge->leaf ? edge->leaf : edge->node ? NULL : seen(node, i, c);
    if (edge->node) { /* recorded before the account, but its value is kept here */
        int from = tni_get(&tr->nodes, tni_sequence_key(in->from));
        tni_log_out *out = from < 0 ? NULL : &tr->now.nodes[from].out[in->output];
        if (!out || out->value.known || !node->x[i].alias) return TN_OK;
        return tni_numbers_note(&out->value, node->x[i].alias, tr->values);
    }
    if (!t) return TN_OK;
    in->tensor = tni_record_tensor(tr, t);
    if (in->tensor < 0) return TN_E_NOMEM;
    return tr->log.tensors[in->tensor].registered ? TN_OK
                                                  : tni_numbers_note(&in->value, t, tr->values);
}

static tn_status note_output(tn_trace *tr, const tni_node *node, int i, const tni_call *c,
                             tni_log_out *out)
{
    bool plain = node->op->plain && node->op->plain[i];
    const tn_tensor *t = c ? c->out[i] : i == 0 ? node->y.alias : NULL;
    *out = (tni_log_out){ .dtype = node->out[i].dtype,
                          .shape = node->out[i].shape,
                          .gradient = tn_dtype_is_float(node->out[i].dtype) && !plain };
    return t ? tni_numbers_note(&out->value, t, tr->values) : TN_OK;
}

static void note_saved(tni_log_saved **kept, int what, int index, const tn_tensor *t)
{
    if (!t) return;
    *(*kept)++ = (tni_log_saved){ what, index, tni_bytes_of(t) };
}

static bool make_room(tni_log_node *n, const tni_node *node)
{
    n->n_in = node->n_in;
    n->n_out = node->n_out;
    n->n_kept = node->y.alias != NULL;
    for (int i = 0; i < node->n_in; i++) n->n_kept += node->x[i].alias || node->x[i].recomputed;
    for (int i = 0; i < node->n_saved; i++) n->n_kept += node->saved[i] != NULL;
    n->in = tni_calloc_n((size_t)node->n_in, sizeof *n->in);
    n->out = tni_calloc_n((size_t)node->n_out, sizeof *n->out);
    n->kept = tni_calloc_n((size_t)n->n_kept, sizeof *n->kept);
    return (n->in || !n->n_in) && n->out && (n->kept || !n->n_kept);
}

int tni_record_node(tn_trace *tr, const tni_node *node, const tni_call *c)
{
    tni_log_step *s = &tr->now;
    const void *key = tni_sequence_key(node->sequence);
    int at = tni_get(&tr->nodes, key);
    if (at >= 0) return at;
    if (!tni_room(&s->nodes, &s->node_room, s->n_nodes, 1, sizeof *s->nodes)) return -1;
    tni_log_node *n = &s->nodes[s->n_nodes];
    *n = (tni_log_node){ .sequence = node->sequence, .op = op_of(tr, node->op), .call = -1 };
    at = (int)s->n_nodes++;
    if (!make_room(n, node) || n->op < 0) return -1;
    tn_status status = c ? call_here(tr, &n->call) : call_before(tr, node, &n->call);
    for (int i = 0; status == TN_OK && i < node->n_in; i++)
        status = note_input(tr, node, i, c, &n->in[i]);
    for (int i = 0; status == TN_OK && i < node->n_out; i++)
        status = note_output(tr, node, i, c, &n->out[i]);
    tni_log_saved *kept = n->kept;
    for (int i = 0; i < node->n_in; i++) {
        note_saved(&kept, TNI_SAVED_IN, i, node->x[i].alias);
        if (node->x[i].recomputed) *kept++ = (tni_log_saved){ TNI_SAVED_RECOMPUTED, i, 0 };
    }
    note_saved(&kept, TNI_SAVED_OUT, 0, node->y.alias);
    for (int i = 0; i < node->n_saved; i++) note_saved(&kept, TNI_SAVED_EXTRA, i, node->saved[i]);
    return status == TN_OK && tni_put(&tr->nodes, key, at) == TN_OK ? at : -1;
}

/* ---- what the watcher sees ------------------------------------------------------------------- */

static tn_status applied(tni_watcher *self, const tni_call *c)
{
    tn_status status = tn_places() || tn_lines() ? tni_call_site_node(self, c) : TN_OK;
    const tni_node *node = NULL;
    for (int i = 0; i < c->n_out && !node; i++) node = c->out[i]->node;
    tni_note note;
    if (status != TN_OK || !c->recorded || !node || !tni_note_begin(&note, self)) return status;
    tn_trace *tr = note.trace;
    tn_status noted = tni_record_open(tr);
    if (noted == TN_OK && tni_record_node(tr, node, c) < 0) noted = TN_E_NOMEM;
    tni_note_end(&note, noted);
    return TN_OK;
}

static void called(tni_watcher *self, tn_module *m)
{
    tni_note note;
    if (tni_calling() || !tni_note_begin(&note, self)) return;
    note.trace->mode = tn_training(m);
    tni_note_end(&note, tni_record_open(note.trace));
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
    tn_trace *tr = (tn_trace *)self;
    tni_call_site_write(self, t);
    int i = tni_get(&tr->storages, t->storage);
    tni_note note;
    if (i < 0 || !tni_note_begin(&note, self)) return;
    int call = -1;
    tn_status status = TN_OK;
    tni_record_written(tr, i, who_writes(tr));
    bool mine = !tr->optimizing;
    if (mine && tr->log.tensors[i].kind == TN_GRAPH_BUFFER)
        status = call_here(tr, &call);
    else if (mine && tr->now.n_passes && !tr->pass && !tni_calling())
        tr->over = true; /* a parameter is moved by hand */
    if (status == TN_OK && call >= 0) status = note_write(tr, call, i);
    tni_note_end(&note, status);
}

static tn_status changes(tni_watcher *self, const char *function, const tn_tensor *target,
                         const tn_tensor *source)
{
    tni_note note;
    (void)source;
    if (!tni_note_begin(&note, self)) return TN_OK;
    int put = tni_map_put(&note.trace->changed, target->storage, (void *)(uintptr_t)function);
    tni_note_end(&note, put < 0 ? TN_E_NOMEM : TN_OK);
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
