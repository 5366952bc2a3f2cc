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
static tn_status register_entry(tn_trace *tr, const tn_entry *e)
{
    tni_log *log = &tr->log;
    int at = tni_get(&tr->names, e->name);
    if (at < 0) {
        if (!tni_room(&log->tensors, &log->tensor_room, log->n_tensors, 1, sizeof *log->tensors))
            return TN_E_NOMEM;
        tni_log_tensor made = { .name = tni_strdup(e->name), .registered = true };
        made.module = tni_strdup(path_of(tr, e->owner));
        if (!tni_record_texts(2, (char *[]){ made.name, made.module })) return TN_E_NOMEM;
        at = (int)log->n_tensors;
        log->tensors[log->n_tensors++] = made;
        if (tni_put(&tr->names, made.name, at) != TN_OK) return TN_E_NOMEM;
    }
    tni_log_tensor *t = &log->tensors[at];
    t->kind = e->kind == TN_PARAMETER ? TN_GRAPH_PARAMETER : TN_GRAPH_BUFFER;
    t->dtype = e->tensor->dtype;
    t->shape = e->tensor->shape;
    t->persistent = e->persistent;
    t->requires_grad = e->tensor->requires_grad;
    t->held = held_by(tr, e);
    if (tni_map_put(&tr->offsets, tni_index_key(at), tni_offset_value(e->tensor)) < 0)
        return TN_E_NOMEM;
    tn_status status = tni_put(&tr->known, e->tensor, at);
    return status == TN_OK ? tni_put(&tr->storages, e->tensor->storage, at) : status;
}

/* Calls visit for each parameter and buffer of the model. */
static tn_status each_entry(tn_trace *tr, tn_status (*visit)(tn_trace *tr, const tn_entry *e))
{
    if (!tr->model) return TN_OK;
    tn_scope scope = tn_scope_begin(); /* of the lists */
    const tn_list *list[] = { tn_parameters(tr->model), tn_buffers(tr->model) };
    tn_status status = list[0] && list[1] ? TN_OK : tni_pending();
    for (int k = 0; k < 2; k++)
        for (int i = 0; status == TN_OK && i < list[k]->n; i++)
            status = visit(tr, &list[k]->entry[i]);
    tn_scope_end(scope);
    return status;
}

tn_status tni_record_registered(tn_trace *tr)
{
    tni_map_free(&tr->storages);
    return each_entry(tr, register_entry);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

/* NULL: it has none. */
static tni_log_entry *find_line(tn_trace *tr, int tensor)
{
    tni_log_step *s = &tr->now;
    for (size_t k = 0; k < s->n_ledger; k++) { /* entries come in the same order each time */
        size_t i = (tr->line + k) % s->n_ledger;
        if (s->ledger[i].tensor != tensor) continue;
        tr->line = i + 1;
        return &s->ledger[i];
    }
    return NULL;
}

static tni_log_entry *line_of(tn_trace *tr, const tn_entry *e)
{
    tni_log_step *s = &tr->now;
    int tensor = tni_get(&tr->names, e->name);
    tni_log_entry *line = find_line(tr, tensor);
    if (line) return line;
    if (tensor < 0 || !tni_room(&s->ledger, &s->ledger_room, s->n_ledger, 1, sizeof *s->ledger))
        return NULL;
    s->ledger[s->n_ledger] = (tni_log_entry){ .tensor = tensor };
    return &s->ledger[s->n_ledger++];
}

static tn_status note_start(tn_trace *tr, const tn_entry *e)
{
    tni_log_entry *line = line_of(tr, e);
    return line ? tni_numbers_note(&line->start, e->tensor, tr->values) : TN_E_NOMEM;
}

static tn_status note_forward(tn_trace *tr, const tn_entry *e)
{
    tni_log_entry *line = line_of(tr, e);
    if (!line) return TN_E_NOMEM;
    line->early |= line->late;
    line->late = 0;
    return tni_numbers_note(&line->forward, e->tensor, tr->values);
}

void tni_record_written(tn_trace *tr, int tensor, unsigned by)
{
    /* changes after an optimizer's step show in the numbers at the next step's start */
    bool in = by == TNI_MOVED_OPTIMIZER || !tr->now.stepped;
    tni_log_entry *line = in ? find_line(tr, tensor) : NULL;
    if (line) line->late |= by;
}

static tn_tensor *grad_of(const tn_tensor *t)
{
    return t->gm && t->gm->grad && !tni_none(t->gm->grad) ? t->gm->grad : NULL;
}

static tn_status note_step(tn_trace *tr, const tn_entry *e)
{
    tni_log_entry *line = line_of(tr, e);
    if (!line) return TN_E_NOMEM;
    tn_status status = tni_numbers_note(&line->step, e->tensor, tr->values);
    tn_tensor *grad = grad_of(e->tensor);
    if (status != TN_OK || !grad || line->grad.known) return status;
    return tni_numbers_note(&line->grad, grad, tr->values);
}

tn_status tni_record_after_forward(tn_trace *tr)
{
    tn_status status = tni_record_registered(tr);
    return status == TN_OK ? each_entry(tr, note_forward) : status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void forget_step(tn_trace *tr)
{
    for (size_t i = 0; i < tr->n_sites; i++) tni_call_site_drop(tr->sites[i]);
    tr->n_sites = 0;
    tni_map_free(&tr->nodes);
    tni_map_free(&tr->calls);
    tni_map_free(&tr->times);
    tni_map_free(&tr->changed);
}

tn_status tni_record_open(tn_trace *tr)
{
    if (tr->pass) return TN_OK;
    tr->optimizing = false;
    if (!tr->over && tr->now.open) return TN_OK;
    tn_status status = tni_record_close(tr);
    tr->over = false;
    tr->now.open = true;
    tr->now.root = -1;
    if (status == TN_OK) status = tni_record_registered(tr);
    if (status != TN_OK || tr->late) return status;
    return each_entry(tr, note_start);
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
        tni_log_node node = s->nodes[i];
        place[i] = -1;
        if (node.known)
            s->nodes[n++] = node;
        else
            tni_log_node_free(&node);
    }
    size_t before = s->n_nodes;
    s->n_nodes = n;
    tni_sort(s->nodes, n, sizeof *s->nodes, by_sequence);
    for (size_t i = 0; i < n; i++) {
        int old = tni_get(&tr->nodes, tni_sequence_key(s->nodes[i].sequence));
        if (old >= 0 && (size_t)old < before) place[old] = (int)i;
    }
}

/* Updates everything that refers to nodes by their old indices. */
static void renumber(tn_trace *tr, const int *place)
{
    tni_log_step *s = &tr->now;
    for (size_t k = 0; k < s->n_nodes; k++)
        for (int i = 0; i < s->nodes[k].n_in; i++) {
            tni_log_in *in = &s->nodes[k].in[i];
            int from = in->from ? tni_get(&tr->nodes, tni_sequence_key(in->from)) : -1;
            in->node = from < 0 ? -1 : place[from];
        }
    for (size_t k = 0; k < s->n_passes; k++)
        if (s->passes[k].root >= 0) s->passes[k].root = place[s->passes[k].root];
    if (s->root >= 0) s->root = place[s->root];
    for (size_t k = 0; k < s->n_hooks; k++)
        if (s->hooks[k].node >= 0) s->hooks[k].node = place[s->hooks[k].node];
    for (size_t k = 0; k < s->n_findings; k++)
        if (s->findings[k].node >= 0) s->findings[k].node = place[s->findings[k].node];
    for (size_t k = 0; k < s->n_backs; k++) {
        tni_log_back *b = &s->backs[k];
        b->node = place[b->node];
        for (size_t i = 0; i < b->n_adds; i++)
            if (b->adds[i].node >= 0) b->adds[i].node = place[b->adds[i].node];
    }
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
        if (call.outer >= 0) call.outer = place[call.outer];
        if (call.used)
            s->calls[n++] = call;
        else
            tni_room_free(&call.writes, &call.room, sizeof *call.writes);
    }
    s->n_calls = n;
    for (size_t i = 0; i < s->n_nodes; i++)
        if (s->nodes[i].call >= 0) s->nodes[i].call = place[s->nodes[i].call];
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

static tn_status arrange(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    size_t n = TNI_MAX(s->n_nodes, s->n_calls) + 1;
    int *place = tni_alloc_n(n, sizeof *place);
    if (!place) return TN_E_NOMEM;
    sort_nodes(tr, place);
    renumber(tr, place);
    sort_calls(s, place);
    tni_free(place, n * sizeof *place);
    judge_moves(s);
    return TN_OK;
}

tn_status tni_record_close(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    tni_log *log = &tr->log;
    tn_status status = TN_OK;
    if (s->n_passes || s->n_updates) {
        if (!s->stepped) status = each_entry(tr, note_step);
        if (status == TN_OK) status = arrange(tr);
        if (status == TN_OK &&
            !tni_room(&log->steps, &log->step_room, log->n_steps, 1, sizeof *log->steps))
            status = TN_E_NOMEM;
        if (status == TN_OK) {
            log->steps[log->n_steps++] = *s;
            *s = (tni_log_step){ 0 };
        }
    }
    tni_log_step_free(s);
    forget_step(tr);
    return status;
}

/* ---- the optimizer --------------------------------------------------------------------------- */

static tn_status note_updates(tn_trace *tr, const tn_optim *opt)
{
    tni_log_step *s = &tr->now;
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < opt->n; i++) {
        const tn_tensor *t = opt->param[i].tensor;
        tn_tensor *grad = grad_of(t);
        if (!t->requires_grad || !grad) continue;
        if (!tni_room(&s->updates, &s->update_room, s->n_updates, 1, sizeof *s->updates))
            return TN_E_NOMEM;
        tni_log_update *u = &s->updates[s->n_updates];
        *u = (tni_log_update){ .tensor = tni_record_tensor(tr, t) };
        if (u->tensor < 0) return TN_E_NOMEM;
        s->n_updates++;
        status = tni_numbers_note(&u->before, t, tr->values);
        if (status == TN_OK) status = tni_numbers_note(&u->gradient, grad, tr->values);
        if (status == TN_OK && tni_map_put(&tr->changed, t->storage, "tn_optim_step") < 0)
            status = TN_E_NOMEM;
    }
    return status;
}

static tn_status steps(tni_watcher *self, tn_optim *opt, int n)
{
    tni_note note;
    (void)n;
    if (!tni_note_begin(&note, self)) return TN_OK;
    note.trace->optimizing = true;
    tni_note_end(&note, note_updates(note.trace, opt));
    return TN_OK;
}

static tn_status note_updated(tn_trace *tr, const tn_optim *opt)
{
    tni_log_step *s = &tr->now;
    tn_status status = TN_OK;
    tr->optimizing = false;
    tr->over = s->stepped = true;
    size_t k = 0;
    while (k < s->n_updates && s->updates[k].after.known) k++; /* of an optimizer before */
    for (int i = 0; status == TN_OK && k < s->n_updates && i < opt->n; i++)
        if (s->updates[k].tensor == tni_get(&tr->known, opt->param[i].tensor))
            status = tni_numbers_note(&s->updates[k++].after, opt->param[i].tensor, tr->values);
    return status == TN_OK ? each_entry(tr, note_step) : status;
}

static void stepped(tni_watcher *self, tn_optim *opt)
{
    tni_note note;
    if (tni_note_begin(&note, self)) tni_note_end(&note, note_updated(note.trace, opt));
}

/* A gradient is about to be cleared or replaced: its last chance to be told. */
static tn_status grad_changes(tni_watcher *self, tn_tensor *leaf, bool adding)
{
    tn_trace *tr = (tn_trace *)self;
    tn_tensor *grad = grad_of(leaf);
    int tensor = tni_get(&tr->known, leaf);
    tni_note note;
    if (adding || !grad || tensor < 0 || !tr->now.n_passes || !tni_note_begin(&note, self))
        return TN_OK;
    tn_status status = TN_OK;
    for (size_t i = 0; status == TN_OK && i < tr->now.n_ledger; i++)
        if (tr->now.ledger[i].tensor == tensor && !tr->now.ledger[i].grad.known)
            status = tni_numbers_note(&tr->now.ledger[i].grad, grad, tr->values);
    tni_note_end(&note, status);
    return TN_OK;
}

void tni_record_steps(tni_watcher *w)
{
    w->steps = steps;
    w->stepped = stepped;
    w->grad_changes = grad_changes;
}
