/*
 * step.c - begin and end of a step of training: the ledger of registered tensors, the updates.
 *
 * A step is over once an optimizer has stepped, or a parameter was changed by hand after backward.
 * It is closed when the next one begins, so that two optimizers after one backward are one step.
 */
#include "ext/trace/record.h"

/* ---- the registered tensors, and the ledger -------------------------------------------------- */

/* Adds the entry under its name, or updates it. NULL: the account ends. */
static const tni_log_tensor *register_entry(tn_trace *tr, const tn_entry *e)
{
    const tni_log_module *owner = tni_map_get(&tr->modules, e->owner);
    tni_log_tensor *t = tni_map_get(&tr->names, e->name);
    if (!t) t = tni_record_new_tensor(tr, e->name, owner ? owner->path : "");
    if (!t) return NULL;
    tni_record_put(tr, &tr->names, t->name, t);
    t->registered = true;
    t->kind = e->kind == TN_PARAMETER ? TN_GRAPH_PARAMETER : TN_GRAPH_BUFFER;
    t->dtype = e->tensor->dtype, t->shape = e->tensor->shape, t->offset = e->tensor->offset;
    t->persistent = e->persistent, t->role = e->role;
    t->requires_grad = e->tensor->requires_grad;
    t->held = !tr->opt                                    ? TNI_NO_OPTIMIZER
              : e->kind == TN_BUFFER                      ? TNI_REFUSED
              : tni_map_get(&tr->opt->tensors, e->tensor) ? TNI_HELD
                                                          : TNI_NOT_HELD;
    tni_record_put(tr, &tr->known, e->tensor, t);
    tni_record_put(tr, &tr->storages, e->tensor->storage, t);
    return t;
}

/* Notes a leaf's gradient, unless that is done already. */
static void note_grad(tn_trace *tr, const tn_tensor *leaf, tni_numbers *v)
{
    tn_tensor *grad = tni_grad_of(leaf);
    if (grad && !v->known) tni_record_numbers(tr, v, grad);
}

static void note_entry(tn_trace *tr, tni_log_entry *line, const tn_tensor *t, tni_moment now)
{
    tni_numbers *const to[] = { NULL, &line->start, &line->forward, &line->step };
    tni_record_numbers(tr, to[now], t);
    if (now == TNI_STEP) note_grad(tr, t, &line->grad);
    if (now != TNI_FORWARD) return;
    line->early |= line->late;
    line->late = 0;
}

void tni_record_registered(tn_trace *tr, tni_moment now)
{
    if (!tr->model || tr->failed != TN_OK) return;
    tni_map_free(&tr->storages);
    TNI_SCOPED; /* of the lists */
    const tn_list *list[] = { tn_parameters(tr->model), tn_buffers(tr->model) };
    tni_record_ok(tr, list[0] && list[1] ? TN_OK : tni_pending());
    for (int k = 0; k < 2; k++)
        for (int i = 0; tr->failed == TN_OK && i < list[k]->n; i++) {
            const tni_log_tensor *t = register_entry(tr, &list[k]->entry[i]);
            if (!t || now == TNI_NEVER) continue;
            tni_log_entry *line = tni_log_line(&tr->now, t);
            if (!line && (line = TNI_NEW(&tr->now, ledger))) line->tensor = t;
            if (line) note_entry(tr, line, list[k]->entry[i].tensor, now);
        }
}

void tni_record_written(tn_trace *tr, const tni_log_tensor *tensor, unsigned by)
{
    /* changes after an optimizer's step show in the numbers at the next step's start */
    bool in = by == TNI_MOVED_OPTIMIZER || !tr->now.stepped;
    tni_log_entry *line = in ? tni_log_line(&tr->now, tensor) : NULL;
    if (line) line->late |= by;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The calls' references to where they are made. */
static void drop_sites(tni_log_step *s)
{
    for (size_t i = 0; i < s->n_calls; i++) {
        tni_call_site_drop(s->calls[i]->site);
        s->calls[i]->site = NULL;
    }
}

void tni_record_drop(tn_trace *tr)
{
    drop_sites(&tr->now);
    tni_log_step_free(&tr->now);
    tni_map *map[] = { &tr->nodes, &tr->calls, &tr->newest, &tr->changed, &tr->brought };
    for (size_t i = 0; i < sizeof map / sizeof *map; i++) tni_map_free(map[i]);
    tr->ended = NULL;
    tr->now.arena.failed = &tr->failed;
}

void tni_record_open(tn_trace *tr)
{
    if (tr->pass) return;
    tr->optimizing = false;
    if (!tr->over && tr->now.open) return;
    tni_record_close(tr);
    tr->over = false;
    tr->now.open = true;
    tni_record_registered(tr, tr->late ? TNI_NEVER : TNI_START);
}

static int by_sequence(const void *a, const void *b)
{
    uint64_t x = (*(tni_log_node *const *)a)->sequence, y = (*(tni_log_node *const *)b)->sequence;
    return (x > y) - (x < y);
}

/* Drops nodes that no backward knows, and brings the others into the order of forward. */
static void sort_nodes(tni_log_step *s)
{
    size_t n = 0;
    for (size_t k = 0; k < s->n_nodes; k++)
        if (s->nodes[k]->known) s->nodes[n++] = s->nodes[k];
    s->n_nodes = n;
    tni_sort(s->nodes, n, sizeof *s->nodes, by_sequence);
    for (size_t k = 0; k < n; k++) {
        s->nodes[k]->id = (int)k;
        for (int i = 0; i < s->nodes[k]->n_in; i++) {
            tni_log_in *in = &s->nodes[k]->in[i];
            if (in->node && !in->node->known) in->node = NULL;
        }
    }
}

/* Drops calls of which nothing was logged. An outer call comes before those in it. */
static void sort_calls(tni_log_step *s)
{
    for (size_t k = 0; k < s->n_nodes; k++)
        if (s->nodes[k]->call) s->nodes[k]->call->used = true;
    for (size_t k = s->n_calls; k-- > 0;) {
        tni_log_call *c = s->calls[k];
        c->used |= c->n_writes > 0;
        if (c->used && c->outer) c->outer->used = true;
    }
    size_t n = 0;
    for (size_t k = 0; k < s->n_calls; k++) {
        if (!s->calls[k]->used) continue;
        s->calls[k]->id = (int)n;
        s->calls[n++] = s->calls[k];
    }
    s->n_calls = n;
}

void tni_record_close(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    tni_log *log = &tr->log;
    if (s->n_passes || s->n_updates) {
        if (!s->stepped) tni_record_registered(tr, TNI_STEP);
        sort_nodes(s);
        drop_sites(s);
        sort_calls(s);
        for (size_t i = 0; i < s->n_ledger; i++) {
            tni_log_entry *e = s->ledger[i];
            bool early = tni_numbers_differ(&e->start, &e->forward);
            bool late = tni_numbers_differ(e->forward.known ? &e->forward : &e->start, &e->step);
            e->moved = (early ? e->early : 0) | (late ? e->late : 0);
            if (!e->start.known || (!e->moved && (early || late))) e->moved = TNI_MOVED_UNKNOWN;
        }
        bool whole = tr->failed == TN_OK;
        tni_log_step *to =
            whole ? tni_arena_more(&log->arena, &log->steps, &log->n_steps, sizeof *to) : NULL;
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
        tni_log_update *u = gradient.known ? TNI_NEW(&tr->now, updates) : NULL;
        if (!u) continue;
        *u = (tni_log_update){ .tensor = tni_record_tensor(tr, t), .gradient = gradient };
        tni_record_numbers(tr, &u->before, t);
        tni_record_put(tr, &tr->changed, t->storage, "tn_optim_step");
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
    while (k < s->n_updates && s->updates[k]->after.known) k++; /* of an optimizer before */
    for (int i = 0; k < s->n_updates && i < opt->n; i++)
        if (s->updates[k]->tensor == tni_map_get(&tr->known, opt->param[i].tensor))
            tni_record_numbers(tr, &s->updates[k++]->after, opt->param[i].tensor);
    tni_record_registered(tr, TNI_STEP);
}

static void clipped(tni_watcher *self, double norm, double limit, double factor)
{
    TNI_RECORDER(tr, self);
    if (tr && tr->now.n_passes && !tr->now.stepped && limit < INFINITY) /* else it only measures */
        tr->now.clip = (tni_log_clip){ norm, limit, factor >= 1 ? 1 : factor, true };
}

/* A gradient is about to be cleared or replaced: its last chance to be told. */
static tn_status grad_changes(tni_watcher *self, tn_tensor *leaf, bool adding)
{
    TNI_RECORDER(tr, self);
    if (!tr || adding || !tr->now.n_passes) return TN_OK;
    tni_log_entry *line = tni_log_line(&tr->now, tni_map_get(&tr->known, leaf));
    if (line) note_grad(tr, leaf, &line->grad);
    return TN_OK;
}

void tni_record_steps(tni_watcher *w)
{
    w->steps = steps, w->stepped = stepped;
    w->clipped = clipped, w->grad_changes = grad_changes;
}
