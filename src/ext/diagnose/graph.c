/*
 * graph.c - tn_graph_visit: the tape as the public structs show it.
 *
 * Two walks over the tape. The first gives every tensor that an op reads a number, so that the
 * second, which calls the visitor, knows all ids; it also lists the calls of modules, in the order
 * of forward. Tensors without gradient are known by their memory: nodes keep aliases of them.
 */
#include <tenon/graph.h>

#include "autograd/call_site.h"
#include "autograd/tape.h"
#include "ext/diagnose/arena.h"
#include "io/io.h"
#include "nn/module.h"

/* A tensor that ops read. */
typedef struct item {
    tn_tensor *tensor; /* counted; NULL: nobody kept it */
    tni_meta meta;
    bool gradient; /* a leaf: tensor is the handle itself */
    int next;      /* an older one at the same address; -1: none */
} item;

typedef struct walk {
    tn_tensor *root; /* counted */
    tni_tape tape;
    tni_arena arena; /* of the arrays */
    item *items;
    int *from;    /* item of each input of each op, in the tape's order; -1: absent or an op's */
    int *written; /* ids, call by call */
    tn_graph_call *calls;
    const tni_call_site **sites; /* of the calls */
    tn_graph_value *values;      /* of the node shown now */
    size_t n_items, n_from, n_written, n_calls, n_sites;
    tni_map leaves;  /* handle -> item + 1 */
    tni_map memory;  /* address -> newest item there + 1 */
    tni_map known;   /* of the model: handles, and addresses -> tn_entry */
    tni_map listed;  /* tni_call_site -> call + 1 */
    tni_map modules; /* module -> number of its calls so far */
    tn_status failed;
} walk;

/* Numbers in a map's values: 0 is "not there". */
static size_t get(const tni_map *map, const void *key)
{
    return (size_t)(uintptr_t)tni_map_get(map, key);
}

static void put(walk *w, tni_map *map, const void *key, size_t number)
{
    if (tni_map_put(map, key, (void *)(uintptr_t)number) < 0) w->failed = TN_E_NOMEM;
}

static const void *address(const tn_tensor *t)
{
    return (const char *)t->storage->data + t->offset * (int64_t)tn_dtype_size(t->dtype);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void know(walk *w, const tn_list *list)
{
    if (!list) w->failed = tni_pending();
    for (const tn_entry *e = list ? list->entry : NULL; e && e < list->entry + list->n; e++) {
        const void *at = address(e->tensor);
        put(w, &w->known, e->tensor, (uintptr_t)e);
        if (!tni_map_get(&w->known, at)) put(w, &w->known, at, (uintptr_t)e);
    }
}

static const tn_entry *entry_of(const walk *w, const item *it)
{
    const tn_entry *e = it->tensor ? tni_map_get(&w->known, it->tensor) : NULL;
    if (e || !it->tensor) return e;
    e = tni_map_get(&w->known, address(it->tensor));
    return e && !tni_compare_places(e->tensor, it->tensor, true) ? e : NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int item_add(walk *w, tn_tensor *t, tni_meta meta, bool gradient)
{
    item *it = tni_arena_more(&w->arena, &w->items, &w->n_items, sizeof *it);
    if (!it) return -1;
    *it = (item){ t, meta, gradient, t ? (int)get(&w->memory, address(t)) - 1 : -1 };
    if (t) tn_keep(t); /* a visitor may run a backward, which frees what nodes kept */
    if (t) put(w, &w->memory, address(t), w->n_items);
    if (gradient) put(w, &w->leaves, t, w->n_items);
    return (int)w->n_items - 1;
}

enum { MOST_VIEWS = 16 }; /* compared at one address, so the walk stays linear */

/* The item of a leaf, or (gradient false) of the memory that t shows. */
static int item_of(walk *w, tn_tensor *t, bool gradient)
{
    size_t leaf = gradient ? get(&w->leaves, t) : 0;
    if (leaf) return (int)leaf - 1;
    int i = (int)get(&w->memory, address(t)) - 1;
    for (int looks = 0; i >= 0 && looks < MOST_VIEWS; i = w->items[i].next, looks++) {
        item *it = &w->items[i];
        if ((gradient && it->gradient) || tni_compare_places(it->tensor, t, true)) continue;
        if (!gradient) return i;
        tn_drop(it->tensor);
        it->tensor = tn_keep(t); /* was read without its gradient before */
        it->gradient = true;
        put(w, &w->leaves, t, (size_t)i + 1);
        return i;
    }
    return item_add(w, t, (tni_meta){ .shape = t->shape, .dtype = t->dtype }, gradient);
}

/* The value of an input without gradient; NULL: not known. */
static tn_tensor *seen(const tni_node *node, int i)
{
    const tni_origin *o = node->origin;
    return node->x[i].alias ? node->x[i].alias : o && i < o->n_in ? o->in[i] : NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Lists a call, after those around it; as deep as calls nest. */
static void list_call(walk *w, const tni_call_site *p)
{
    if (!p || get(&w->listed, p)) return;
    list_call(w, p->outer);
    size_t time = get(&w->modules, p->module) + 1;
    const tni_call_site **site = tni_arena_more(&w->arena, &w->sites, &w->n_sites, sizeof *site);
    tn_graph_call *call = tni_arena_more(&w->arena, &w->calls, &w->n_calls, sizeof *call);
    if (!site || !call) return;
    *site = p;
    *call = (tn_graph_call){ (int)w->n_calls - 1, p->path, p->type, (int)time, NULL, 0, NULL };
    put(w, &w->modules, p->module, time);
    put(w, &w->listed, p, w->n_calls);
}

/* ---- the walks ------------------------------------------------------------------------------- */

static tn_status number_all(walk *w, tn_tensor *root, tn_graph_options o)
{
    if (o.model) know(w, tn_parameters(o.model));
    if (o.model) know(w, tn_buffers(o.model));
    TNI_TRY(w->failed);
    TNI_TRY(tni_tape_from(&w->tape, 1, &root->node));
    if (!root->node) item_of(w, root, root->requires_grad);
    size_t most = 1;
    for (size_t k = 0; k < w->tape.n; k++) {
        const tni_node *node = w->tape.node[k];
        most = TNI_MAX(most, (size_t)node->n_in + (size_t)node->n_out + (size_t)node->n_saved);
        for (int i = 0; i < node->n_in; i++) {
            const tni_edge *edge = &node->edge[i];
            int from = -1;
            if (!edge->node && (edge->leaf || !node->in[i].absent)) {
                tn_tensor *t = edge->leaf ? edge->leaf : seen(node, i);
                from = t ? item_of(w, t, edge->leaf) : item_add(w, NULL, node->in[i], false);
            }
            int *to = tni_arena_more(&w->arena, &w->from, &w->n_from, sizeof *to);
            if (to) *to = from;
        }
    }
    for (size_t k = w->tape.n; k-- > 0;)
        if (w->tape.node[k]->origin) list_call(w, w->tape.node[k]->origin->site);
    for (size_t i = 0; i < w->n_calls; i++)
        for (size_t k = 0; k < w->sites[i]->n_written; k++) {
            int *to = tni_arena_more(&w->arena, &w->written, &w->n_written, sizeof *to);
            if (to) *to = (int)w->tape.n + item_of(w, w->sites[i]->written[k], false);
        }
    int *written = w->written;
    for (size_t i = 0; !w->failed && i < w->n_calls; i++) { /* the arrays are complete */
        const tni_call_site *p = w->sites[i];
        if (p->outer) w->calls[i].outer = &w->calls[get(&w->listed, p->outer) - 1];
        w->calls[i].n_written = (int)p->n_written, w->calls[i].written = written;
        if (written) written += p->n_written;
    }
    w->values = tni_arena_alloc(&w->arena, most * sizeof *w->values);
    return w->failed;
}

static tn_graph_value value_of(tni_meta meta, const tn_tensor *kept, uint64_t version)
{
    tn_graph_value v = { .dtype = meta.dtype, .shape = meta.shape, .from = -1, .kept = kept };
    v.kept_bytes = tni_bytes_of(kept), v.version = version;
    return v;
}

static void fill_input(const walk *w, const tni_node *node, int i, int from, tn_graph_value *v)
{
    const tni_edge *edge = &node->edge[i];
    *v = value_of(node->in[i], node->x[i].alias, node->x[i].version);
    v->gradient = edge->node || edge->leaf;
    v->absent = !edge->node && from < 0;
    v->output = edge->node ? edge->index : 0;
    if (edge->node)
        v->from = tni_tape_id(&w->tape, edge->node);
    else if (from >= 0)
        v->from = (int)w->tape.n + from;
}

static int show_op(const walk *w, size_t k, const int *from, tn_graph_visitor visit, void *user)
{
    const tni_node *node = w->tape.node[k];
    const tni_call_site *site = node->origin ? node->origin->site : NULL;
    tn_graph_value *in = w->values, *out = in + node->n_in, *saved = out + node->n_out;
    for (int i = 0; i < node->n_in; i++) fill_input(w, node, i, from[i], &in[i]);
    for (int i = 0; i < node->n_out; i++) {
        bool plain = node->op->plain && node->op->plain[i];
        const tni_saved none = { 0 }, *kept = i ? &none : &node->y;
        out[i] = value_of(node->out[i], kept->alias, kept->version);
        out[i].gradient = tn_dtype_is_float(node->out[i].dtype) && !plain;
    }
    for (int i = 0; i < node->n_saved; i++) {
        const tn_tensor *t = node->saved[i];
        saved[i] =
            t ? value_of((tni_meta){ .shape = t->shape, .dtype = t->dtype }, t, tn_version(t))
              : value_of((tni_meta){ 0 }, NULL, 0);
    }
    tn_graph_node shown = { .id = (int)k, .kind = TN_GRAPH_OP, .name = node->op->name };
    shown.formula = node->op->formula ? node->op->formula : "";
    shown.gradient = node->op->gradient ? node->op->gradient : "";
    shown.line = tni_call_site_line(node);
    shown.call = site ? &w->calls[get(&w->listed, site) - 1] : NULL;
    shown.n_in = node->n_in, shown.n_out = node->n_out, shown.n_saved = node->n_saved;
    shown.in = in, shown.out = out, shown.saved = saved, shown.freed = node->spent;
    return visit(&shown, user);
}

static int show_item(const walk *w, size_t k, tn_graph_visitor visit, void *user)
{
    const item *it = &w->items[k];
    const tn_tensor *t = it->tensor;
    const tn_entry *e = entry_of(w, it);
    const bool parameter = e ? e->kind == TN_PARAMETER : t && t->is_parameter;
    const bool buffer = e || (t && atomic_load(&t->storage->buffer_marks));
    w->values[0] = value_of(it->meta, NULL, 0);
    w->values[0].gradient = it->gradient;
    tn_graph_node shown = { .id = (int)(w->tape.n + k), .formula = "", .gradient = "", .line = "" };
    shown.kind = parameter ? TN_GRAPH_PARAMETER : buffer ? TN_GRAPH_BUFFER : TN_GRAPH_TENSOR;
    shown.name = e ? e->name : tn_name(it->tensor);
    shown.n_out = 1, shown.out = w->values, shown.tensor = it->tensor;
    return visit(&shown, user);
}

static void walk_free(walk *w)
{
    tni_tape_free(&w->tape);
    for (size_t i = 0; i < w->n_items; i++)
        if (w->items[i].tensor) tn_drop(w->items[i].tensor);
    tni_arena_free(&w->arena);
    tni_map *map[] = { &w->leaves, &w->memory, &w->known, &w->listed, &w->modules };
    for (int i = 0; i < 5; i++) tni_map_free(map[i]);
    tn_drop(w->root);
}

tn_status tn_graph_visit(tn_tensor *root, tn_graph_visitor visit, void *user,
                         tn_graph_options options)
{
    if (tni_absent(root)) return tni_poison("tn_graph_visit", "root");
    if (!visit) return tni_error(TN_E_INVALID, "tn_graph_visit: visit is NULL: want a function");
    TNI_SCOPES_STAY;
    TNI_SCOPED; /* of the model's lists */
    walk TN_WHEN_LEFT(walk_free) w = { .root = tn_keep(root), .arena.failed = &w.failed };
    if (options.model) TNI_TRY(tni_module_check("tn_graph_visit", options.model));
    TNI_TRY(number_all(&w, root, options));
    const int *from = w.from;
    int stop = 0;
    for (size_t k = 0; !stop && k < w.tape.n; from += w.tape.node[k++]->n_in)
        stop = show_op(&w, k, from, visit, user);
    for (size_t k = 0; !stop && k < w.n_items; k++) stop = show_item(&w, k, visit, user);
    return TN_OK;
}
