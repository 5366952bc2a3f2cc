/*
 * step.c - what begins and ends a step of training: the ledger of all registered tensors, and the
 * optimizer's updates.
 *
 * A step is over once an optimizer has stepped, or a parameter was changed by hand after backward.
 * It is closed when the next one begins, so that two optimizers after one backward are one step.
 */
#include "ext/trace/record.h"

#include <stdlib.h>

/* ---- the registered tensors ------------------------------------------------------------------ */

static const char *path_of(const tn_trace *tr, const tn_module *owner)
{
    int m = tni_get(&tr->modules, owner);
    return m < 0 ? "" : tr->log.modules[m].path;
}

static tni_held held_by(const tn_trace *tr, const tn_entry *e)
{
    if (!tr->opt) return TNI_NO_OPTIMIZER;
    if (e->kind == TN_BUFFER) return TNI_REFUSED;
    return tni_map_get(&tr->opt->tensors, e->tensor) ? TNI_HELD : TNI_NOT_HELD;
}

/* Adds the entry under its name, or updates it. */
static void register_entry(tn_trace *tr, const tn_entry *e)
{
    int at = tni_get(&tr->names, e->name);
    bool known = at >= 0;
    if (!known) at = tni_record_new_tensor(tr, e->name, path_of(tr, e->owner));
    if (at < 0) return;
    tni_log_tensor *t = &tr->log.tensors[at];
    if (!known) tni_record_put(tr, &tr->names, t->name, at);
    t->registered = true;
    t->kind = e->kind == TN_PARAMETER ? TN_GRAPH_PARAMETER : TN_GRAPH_BUFFER;
    t->dtype = e->tensor->dtype;
    t->shape = e->tensor->shape;
    t->offset = e->tensor->offset;
    t->persistent = e->persistent;
    t->role = e->role;
    t->requires_grad = e->tensor->requires_grad;
    t->held = held_by(tr, e);
    tni_record_put(tr, &tr->known, e->tensor, at);
    tni_record_put(tr, &tr->storages, e->tensor->storage, at);
}

/* Calls visit for each parameter and buffer of the model. */
static void each_entry(tn_trace *tr, void (*visit)(tn_trace *tr, const tn_entry *e))
{
    if (!tr->model || tr->failed != TN_OK) return;
    tn_scope scope = tn_scope_begin(); /* of the lists */
    const tn_list *list[] = { tn_parameters(tr->model), tn_buffers(tr->model) };
    tni_record_ok(tr, list[0] && list[1] ? TN_OK : tni_pending());
    for (int k = 0; k < 2; k++)
        for (int i = 0; tr->failed == TN_OK && i < list[k]->n; i++) visit(tr, &list[k]->entry[i]);
    tn_scope_end(scope);
}

void tni_record_registered(tn_trace *tr)
{
    tni_map_free(&tr->storages);
    each_entry(tr, register_entry);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

/* The entry's line, added if it is not there; NULL: the account ends. */
static tni_log_entry *line_of(tn_trace *tr, const tn_entry *e)
{
    int tensor = tni_get(&tr->names, e->name);
    tni_log_entry *line = tni_log_line(&tr->now, tensor);
    if (line) return line;
    line = TNI_MORE(tr, &tr->now, ledger);
    if (line) line->tensor = tensor;
    return line;
}

static void note_start(tn_trace *tr, const tn_entry *e)
{
    tni_log_entry *line = line_of(tr, e);
    if (line) tni_record_numbers(tr, &line->start, e->tensor);
}

static void note_forward(tn_trace *tr, const tn_entry *e)
{
    tni_log_entry *line = line_of(tr, e);
    if (!line) return;
    line->early |= line->late;
    line->late = 0;
    tni_record_numbers(tr, &line->forward, e->tensor);
}

void tni_record_written(tn_trace *tr, int tensor, unsigned by)
{
    /* changes after an optimizer's step show in the numbers at the next step's start */
    bool in = by == TNI_MOVED_OPTIMIZER || !tr->now.stepped;
    tni_log_entry *line = in ? tni_log_line(&tr->now, tensor) : NULL;
    if (line) line->late |= by;
}

/* Notes a leaf's gradient, unless that is done already. */
static void note_grad(tn_trace *tr, const tn_tensor *leaf, tni_numbers *v)
{
    tn_tensor *grad = tni_grad_of(leaf);
    if (grad && !v->known) tni_record_numbers(tr, v, grad);
}

static void note_step(tn_trace *tr, const tn_entry *e)
{
    tni_log_entry *line = line_of(tr, e);
    if (!line) return;
    tni_record_numbers(tr, &line->step, e->tensor);
    note_grad(tr, e->tensor, &line->grad);
}

void tni_record_after_forward(tn_trace *tr)
{
    tni_record_registered(tr);
    each_entry(tr, note_forward);
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The calls' references to where they are made. */
static void drop_sites(tni_log_step *s)
{
    for (size_t i = 0; i < s->n_calls; i++) {
        tni_call_site_drop(s->calls[i].site);
        s->calls[i].site = NULL;
    }
}

void tni_record_drop(tn_trace *tr)
{
    drop_sites(&tr->now);
    tni_log_step_free(&tr->now);
    tni_map *map[] = { &tr->nodes, &tr->calls, &tr->times, &tr->changed };
    for (int i = 0; i < 4; i++) tni_map_free(map[i]);
}

void tni_record_open(tn_trace *tr)
{
    if (tr->pass) return;
    tr->optimizing = false;
    if (!tr->over && tr->now.open) return;
    tni_record_close(tr);
    tr->over = false;
    tr->now.open = true;
    tr->now.root = -1;
    tni_record_registered(tr);
    if (!tr->late) each_entry(tr, note_start);
}

static int by_sequence(const void *a, const void *b)
{
    uint64_t x = ((const tni_log_node *)a)->sequence, y = ((const tni_log_node *)b)->sequence;
    return (x > y) - (x < y);
}

/* Drops nodes that no backward knows, and brings the others into the order of forward; place: old
 * index -> new one. */
static void sort_nodes(tn_trace *tr, int *place)
{
    tni_log_step *s = &tr->now;
    size_t n = 0;
    for (size_t i = 0; i < s->n_nodes; i++) {
        place[i] = -1;
        if (s->nodes[i].known) s->nodes[n++] = s->nodes[i];
    }
    size_t before = s->n_nodes;
    s->n_nodes = n;
    tni_sort(s->nodes, n, sizeof *s->nodes, by_sequence);
    for (size_t i = 0; i < n; i++) {
        int old = tni_get(&tr->nodes, tni_sequence_key(s->nodes[i].sequence));
        if (old >= 0 && (size_t)old < before) place[old] = (int)i;
    }
}

static void replace(int *index, const int *place)
{
    if (*index >= 0) *index = place[*index];
}

/* Updates everything that refers to nodes by their old indices. */
static void renumber(tn_trace *tr, const int *place)
{
    tni_log_step *s = &tr->now;
    for (size_t k = 0; k < s->n_nodes; k++)
        for (int i = 0; i < s->nodes[k].n_in; i++) {
            tni_log_in *in = &s->nodes[k].in[i];
            in->node = in->from ? tni_get(&tr->nodes, tni_sequence_key(in->from)) : -1;
            replace(&in->node, place);
        }
    replace(&s->root, place);
    for (size_t k = 0; k < s->n_passes; k++) replace(&s->passes[k].root, place);
    for (size_t k = 0; k < s->n_hooks; k++) replace(&s->hooks[k].node, place);
    for (size_t k = 0; k < s->n_findings; k++) replace(&s->findings[k].node, place);
    for (size_t k = 0; k < s->n_backs; k++) replace(&s->backs[k].node, place);
}

/* Drops calls of which nothing was logged. An outer call comes before those in it. */
static void sort_calls(tni_log_step *s, int *place)
{
    for (size_t i = 0; i < s->n_calls; i++) s->calls[i].used = s->calls[i].n_writes > 0;
    for (size_t i = 0; i < s->n_nodes; i++)
        if (s->nodes[i].call >= 0) s->calls[s->nodes[i].call].used = true;
    for (size_t i = s->n_calls; i-- > 0;)
        if (s->calls[i].used && s->calls[i].outer >= 0) s->calls[s->calls[i].outer].used = true;
    size_t n = 0;
    for (size_t i = 0; i < s->n_calls; i++) {
        tni_log_call call = s->calls[i];
        place[i] = call.used ? (int)n : -1;
        replace(&call.outer, place);
        if (call.used) s->calls[n++] = call;
    }
    s->n_calls = n;
    for (size_t i = 0; i < s->n_nodes; i++) replace(&s->nodes[i].call, place);
}

static void judge_moves(tni_log_step *s)
{
    for (size_t i = 0; i < s->n_ledger; i++) {
        tni_log_entry *e = &s->ledger[i];
        bool early = tni_numbers_differ(&e->start, &e->forward);
        bool late = tni_numbers_differ(e->forward.known ? &e->forward : &e->start, &e->step);
        e->moved = (early ? e->early : 0) | (late ? e->late : 0);
        if (!e->start.known || (!e->moved && (early || late))) e->moved = TNI_MOVED_UNKNOWN;
    }
}

static void arrange(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    int *place = tni_record_alloc(tr, &s->arena, TNI_MAX(s->n_nodes, s->n_calls) * sizeof *place);
    if (!place) return;
    sort_nodes(tr, place);
    renumber(tr, place);
    drop_sites(s);
    sort_calls(s, place);
    judge_moves(s);
}

void tni_record_close(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    tni_log *log = &tr->log;
    if (s->n_passes || s->n_updates) {
        if (!s->stepped) each_entry(tr, note_step);
        if (tr->failed == TN_OK) arrange(tr);
        tni_log_step *to = TNI_MORE(tr, log, steps);
        if (to) {
            *to = *s;
            *s = (tni_log_step){ 0 };
        }
    }
    tni_record_drop(tr);
}

/* ---- the optimizer --------------------------------------------------------------------------- */

static tn_status steps(tni_watcher *self, tn_optim *opt, int n)
{
    TNI_RECORDER(tr, self);
    (void)n;
    if (!tr) return TN_OK;
    tr->optimizing = true;
    for (int i = 0; i < opt->n; i++) {
        const tn_tensor *t = opt->param[i].tensor;
        tni_numbers gradient = { 0 };
        if (t->requires_grad) note_grad(tr, t, &gradient);
        tni_log_update *u = gradient.known ? TNI_MORE(tr, &tr->now, updates) : NULL;
        if (!u) continue;
        *u = (tni_log_update){ .tensor = tni_record_tensor(tr, t), .gradient = gradient };
        tni_record_numbers(tr, &u->before, t);
        tni_record_changed(tr, t, "tn_optim_step");
    }
    return TN_OK;
}

static void stepped(tni_watcher *self, tn_optim *opt)
{
    TNI_RECORDER(tr, self);
    if (!tr) return;
    tni_log_step *s = &tr->now;
    tr->optimizing = false;
    tr->over = s->stepped = true;
    size_t k = 0;
    while (k < s->n_updates && s->updates[k].after.known) k++; /* of an optimizer before */
    for (int i = 0; k < s->n_updates && i < opt->n; i++)
        if (s->updates[k].tensor == tni_get(&tr->known, opt->param[i].tensor))
            tni_record_numbers(tr, &s->updates[k++].after, opt->param[i].tensor);
    each_entry(tr, note_step);
}

/* A gradient is about to be cleared or replaced: its last chance to be told. */
static tn_status grad_changes(tni_watcher *self, tn_tensor *leaf, bool adding)
{
    TNI_RECORDER(tr, self);
    if (!tr || adding || !tr->now.n_passes) return TN_OK;
    tni_log_entry *line = tni_log_line(&tr->now, tni_get(&tr->known, leaf));
    if (line) note_grad(tr, leaf, &line->grad);
    return TN_OK;
}

void tni_record_steps(tni_watcher *w)
{
    w->steps = steps;
    w->stepped = stepped;
    w->grad_changes = grad_changes;
}
