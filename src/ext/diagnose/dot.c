/*
 * dot.c - the graph as text for Graphviz: a viewer that knows only the public tn_graph_visit.
 *
 * The visitor notes a line for each node and for each edge; the nested boxes of modules are written
 * at the end. A parameter or buffer is drawn in the box of the call that read it first in forward;
 * ops come newest first, so that is the last reader the visitor sees.
 */
#include <tenon/graph.h>

#include "base/map.h"
#include "io/file.h"

typedef struct box {
    tni_bytes text;            /* its title, and its nodes */
    int depth;                 /* boxes around it */
    int outer, child, sibling; /* other boxes; 0: none, or the page */
} box;

typedef struct drawing {
    box *boxes; /* by the call's id + 1; 0: the page */
    size_t n_boxes, room;
    tni_map place; /* id + 1 of a tensor that calls read or write -> its box */
    tni_bytes edges;
    bool failed; /* out of memory */
} drawing;

/* ---- text ------------------------------------------------------------------------------------ */

/* Text between the quotes of a label; what is too long ends with dots. */
static void put_quoted(tni_bytes *l, const char *text)
{
    enum { MOST = 200 };
    for (int i = 0; text[i]; i++) {
        if (i == MOST) {
            tni_bytes_add(l, "...", 3);
            return;
        }
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') tni_bytes_add(l, "\\", 1);
        tni_bytes_add(l, c < ' ' ? " " : &text[i], 1);
    }
}

/* The shape, with the dtype unless it is f32, on a line of its own. */
static void put_value(tni_bytes *l, const tn_graph_value *v, bool first)
{
    const char *dtype = v->dtype == TN_F32 ? "" : tn_dtype_name(v->dtype);
    tni_bytes_printf(l, "%s%s%s%s", first ? "" : "\\n", dtype, dtype[0] ? " " : "",
                     tni_shape_text(&v->shape));
}

static size_t kept_by(const tn_graph_node *node)
{
    size_t n = 0;
    for (int i = 0; i < node->n_in; i++) n += node->in[i].kept_bytes;
    for (int i = 0; i < node->n_out; i++) n += node->out[i].kept_bytes;
    for (int i = 0; i < node->n_saved; i++) n += node->saved[i].kept_bytes;
    return n;
}

static const char *const look[] = {
    [TN_GRAPH_OP] = "shape=box, style=rounded",
    [TN_GRAPH_PARAMETER] = "shape=box, style=filled, fillcolor=\"#cfe2f3\"",
    [TN_GRAPH_BUFFER] = "shape=cylinder, style=filled, fillcolor=\"#fff2cc\"",
    [TN_GRAPH_TENSOR] = "shape=ellipse",
};

/* A line of a box. */
static void put_node(box *b, const tn_graph_node *node)
{
    tni_bytes *l = &b->text;
    tni_bytes_printf(l, "%*sn%d [%s, label=\"", 2 + 2 * b->depth, "", node->id, look[node->kind]);
    put_quoted(l, node->name);
    for (int i = 0; i < node->n_out && i < 4; i++)
        put_value(l, &node->out[i], !i && !node->name[0]);
    if (node->n_out > 4) tni_bytes_printf(l, "\\nand %d more", node->n_out - 4);
    size_t kept = kept_by(node);
    if (kept) tni_bytes_printf(l, "\\nkeeps %zu B", kept);
    if (node->formula[0]) {
        tni_bytes_printf(l, "\", tooltip=\"");
        put_quoted(l, node->formula);
    }
    tni_bytes_printf(l, "\"];\n");
}

static void put_title(box *b, const tn_graph_call *call)
{
    tni_bytes *l = &b->text;
    tni_bytes_printf(l, "%*ssubgraph cluster_%d {\n%*slabel=\"", 2 * b->depth, "", call->id,
                     2 + 2 * b->depth, "");
    put_quoted(l, call->module);
    if (call->module[0]) tni_bytes_printf(l, " (");
    put_quoted(l, call->type);
    if (call->module[0]) tni_bytes_printf(l, ")");
    if (call->time > 1) tni_bytes_printf(l, ", call %d", call->time);
    tni_bytes_printf(l, "\";\n");
}

/* ---- collecting ------------------------------------------------------------------------------ */

static int box_of(const tn_graph_call *call)
{
    return call ? call->id + 1 : 0;
}

static const void *key(int id)
{
    return (const void *)((uintptr_t)id + 1);
}

static int place_of(const drawing *d, int id)
{
    return (int)(uintptr_t)tni_map_get(&d->place, key(id));
}

static void place(drawing *d, int id, int box)
{
    d->failed |= tni_map_put(&d->place, key(id), (void *)(uintptr_t)box) < 0;
}

/* Makes the boxes of a call and of all calls around it, whose ids are lower, and notes what the
 * call writes: op is the newest in it. */
static void add_boxes(drawing *d, const tn_graph_call *call, int op)
{
    size_t n = (size_t)box_of(call) + 1, more = n > d->n_boxes ? n - d->n_boxes : 0;
    d->failed |= !tni_room(&d->boxes, &d->room, d->n_boxes, more, sizeof *d->boxes);
    while (!d->failed && d->n_boxes < n) d->boxes[d->n_boxes++] = (box){ 0 };
    for (; !d->failed && call && !d->boxes[box_of(call)].text.n; call = call->outer) {
        box *b = &d->boxes[box_of(call)];
        b->outer = box_of(call->outer);
        for (const tn_graph_call *c = call; c; c = c->outer) b->depth++;
        put_title(b, call);
        d->failed = b->text.failed;
        for (int i = 0; i < call->n_written; i++) {
            int written = call->written[i];
            if (!place_of(d, written)) place(d, written, box_of(call));
            tni_bytes_printf(&d->edges,
                             "  n%d -> n%d [style=dashed, label=\"writes\", constraint=false];\n",
                             op, written);
        }
    }
}

static void add_edges(drawing *d, const tn_graph_node *node)
{
    for (int i = 0; i < node->n_in; i++) {
        const tn_graph_value *in = &node->in[i];
        if (in->absent) continue;
        place(d, in->from, box_of(node->call));
        tni_bytes_printf(&d->edges, "  n%d -> n%d", in->from, node->id);
        if (in->output) tni_bytes_printf(&d->edges, " [taillabel=\"%d\"]", in->output);
        tni_bytes_printf(&d->edges, ";\n");
        if (in->gradient)
            tni_bytes_printf(&d->edges, "  n%d -> n%d [color=\"#c0392b\", constraint=false];\n",
                             node->id, in->from);
    }
}

/* Ops come first, and say where the tensors that they read are drawn. */
static int collect(const tn_graph_node *node, void *user)
{
    drawing *d = user;
    add_boxes(d, node->call, node->id);
    add_edges(d, node);
    if (d->failed) return 1;
    const bool anywhere = node->kind == TN_GRAPH_PARAMETER || node->kind == TN_GRAPH_BUFFER;
    box *b = &d->boxes[anywhere ? place_of(d, node->id) : box_of(node->call)];
    put_node(b, node);
    d->failed = b->text.failed || d->edges.failed;
    return d->failed;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The boxes in a box, as deep as calls were nested. */
static void write_boxes(FILE *file, const drawing *d, int outer)
{
    for (int at = d->boxes[outer].child; at; at = d->boxes[at].sibling) {
        fwrite(d->boxes[at].text.data, 1, d->boxes[at].text.n, file);
        write_boxes(file, d, at);
        fprintf(file, "%*s}\n", 2 * d->boxes[at].depth, "");
    }
}

static void write_all(FILE *file, const drawing *d)
{
    for (int i = (int)d->n_boxes - 1; i > 0; i--) { /* lists in ascending order */
        d->boxes[i].sibling = d->boxes[d->boxes[i].outer].child;
        d->boxes[d->boxes[i].outer].child = i;
    }
    fprintf(file, "digraph tape {\n"
                  "  graph [fontname=\"Helvetica\", fontsize=11, color=\"#999999\", "
                  "fontcolor=\"#555555\"];\n"
                  "  node [fontname=\"Helvetica\", fontsize=11];\n"
                  "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\"];\n");
    write_boxes(file, d, 0);
    if (d->boxes->text.n) fwrite(d->boxes->text.data, 1, d->boxes->text.n, file);
    if (d->edges.n) fwrite(d->edges.data, 1, d->edges.n, file);
    fprintf(file, "}\n");
}

tn_status tn_graph_dot(FILE *file, tn_tensor *root, tn_graph_options options)
{
    if (!file) return tni_error(TN_E_INVALID, "tn_graph_dot: the file is NULL: want an open one");
    if (!root || root == TN_NONE) return tni_poison("tn_graph_dot", "root");
    drawing d = { 0 };
    tn_status status = tn_graph_visit(root, collect, &d, options);
    if (status == TN_OK && d.failed) status = TN_E_NOMEM;
    if (status == TN_OK) {
        write_all(file, &d);
        if (fflush(file) != 0 || ferror(file))
            status = tni_error(TN_E_IO, "tn_graph_dot: the file cannot be written");
    }
    for (size_t i = 0; i < d.n_boxes; i++) tni_bytes_free(&d.boxes[i].text);
    tni_room_free(&d.boxes, &d.room, sizeof *d.boxes);
    tni_map_free(&d.place);
    tni_bytes_free(&d.edges);
    return status;
}
