/*
 * dot.c - the graph as text for Graphviz: a viewer that knows only the public tn_graph_visit.
 *
 * The visitor notes a line for each node and for each edge; the nested boxes of modules are written
 * at the end. A parameter or buffer is drawn in the box of the call that read it first in forward;
 * ops come newest first, so that is the last reader the visitor sees.
 */
#include <tenon/graph.h>

#include "io/file.h"

typedef struct box {
    tni_bytes title;
    int outer, child, sibling; /* calls; -1: none */
    int first;                 /* node in it; -1: none */
} box;

typedef struct shape {
    tni_bytes line;
    int box;  /* 0: the page */
    int next; /* node in the same box; -1: none */
} shape;

typedef struct drawing {
    shape *shapes; /* by id; tensors have a box before their line */
    box *boxes;    /* by the call's id + 1; 0: the page */
    size_t n_shapes, n_boxes, shape_room, box_room;
    tni_bytes edges; /* their lines */
    tn_status status;
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

static void put_line(tni_bytes *l, const tn_graph_node *node)
{
    tni_bytes_printf(l, "n%d [%s, label=\"", node->id, look[node->kind]);
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
    tni_bytes_printf(l, "\"];");
}

static void put_title(tni_bytes *l, const tn_graph_call *call)
{
    put_quoted(l, call->module);
    if (call->module[0]) tni_bytes_printf(l, " (");
    put_quoted(l, call->type);
    if (call->module[0]) tni_bytes_printf(l, ")");
    if (call->time > 1) tni_bytes_printf(l, ", call %d", call->time);
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* The shape of a node, an empty one if it was not visited yet; NULL: out of memory. */
static shape *shape_of(drawing *d, int id)
{
    size_t n = (size_t)id + 1, more = n > d->n_shapes ? n - d->n_shapes : 0;
    if (!tni_room(&d->shapes, &d->shape_room, d->n_shapes, more, sizeof *d->shapes)) return NULL;
    while (d->n_shapes < n) d->shapes[d->n_shapes++] = (shape){ .next = -1 };
    return &d->shapes[id];
}

/* The same for a box. */
static box *box_of(drawing *d, int at)
{
    size_t n = (size_t)at + 1, more = n > d->n_boxes ? n - d->n_boxes : 0;
    if (!tni_room(&d->boxes, &d->box_room, d->n_boxes, more, sizeof *d->boxes)) return NULL;
    while (d->n_boxes < n)
        d->boxes[d->n_boxes++] = (box){ .outer = -1, .child = -1, .sibling = -1, .first = -1 };
    return &d->boxes[at];
}

/* Notes the boxes of a call and of all calls around it, and what the call writes: op is the newest
 * in it. */
static bool add_boxes(drawing *d, const tn_graph_call *call, int op)
{
    for (; call; call = call->outer) {
        box *b = box_of(d, call->id + 1);
        if (!b || b->outer >= 0) return b != NULL;
        put_title(&b->title, call);
        if (b->title.failed) return false;
        b->outer = call->outer ? call->outer->id + 1 : 0;
        for (int i = 0; i < call->n_written; i++) {
            shape *written = shape_of(d, call->written[i]);
            if (!written) return false;
            if (!written->box) written->box = call->id + 1;
            tni_bytes_printf(&d->edges,
                             "  n%d -> n%d [style=dashed, label=\"writes\", constraint=false];\n",
                             op, call->written[i]);
        }
    }
    return true;
}

static bool add_op(drawing *d, const tn_graph_node *node, int box)
{
    if (!add_boxes(d, node->call, node->id)) return false;
    for (int i = 0; i < node->n_in; i++) {
        const tn_graph_value *in = &node->in[i];
        if (in->absent) continue;
        shape *from = shape_of(d, in->from);
        if (!from) return false;
        from->box = box;
        tni_bytes_printf(&d->edges, "  n%d -> n%d", in->from, node->id);
        if (in->output) tni_bytes_printf(&d->edges, " [taillabel=\"%d\"]", in->output);
        tni_bytes_printf(&d->edges, ";\n");
        if (in->gradient)
            tni_bytes_printf(&d->edges, "  n%d -> n%d [color=\"#c0392b\", constraint=false];\n",
                             node->id, in->from);
    }
    return true;
}

static int collect(const tn_graph_node *node, void *user)
{
    drawing *d = user;
    const bool op = node->kind == TN_GRAPH_OP;
    int box = op && node->call ? node->call->id + 1 : 0;
    shape *s = !op || add_op(d, node, box) ? shape_of(d, node->id) : NULL;
    if (s) put_line(&s->line, node);
    if (s && (op || node->kind == TN_GRAPH_TENSOR)) s->box = box;
    if (!s || s->line.failed || d->edges.failed) d->status = TN_E_NOMEM;
    return d->status != TN_OK;
}

/* Lists, in ascending order, of the boxes in each box and of the shapes in it. */
static void link_boxes(drawing *d)
{
    for (int i = (int)d->n_boxes - 1; i > 0; i--) {
        box *b = &d->boxes[i], *outer = &d->boxes[b->outer];
        b->sibling = outer->child;
        outer->child = i;
    }
    for (int i = (int)d->n_shapes - 1; i >= 0; i--) {
        box *b = &d->boxes[d->shapes[i].box];
        d->shapes[i].next = b->first;
        b->first = i;
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_shapes(FILE *file, const drawing *d, const box *b, int indent)
{
    for (int i = b->first; i >= 0; i = d->shapes[i].next)
        fprintf(file, "%*s%.*s\n", indent, "", (int)d->shapes[i].line.n, d->shapes[i].line.data);
}

/* The boxes in a box, as deep as calls were nested. */
static void write_boxes(FILE *file, const drawing *d, const box *outer, int indent)
{
    for (int at = outer->child; at > 0; at = d->boxes[at].sibling) {
        const box *b = &d->boxes[at];
        fprintf(file, "%*ssubgraph cluster_%d {\n", indent, "", at - 1);
        fprintf(file, "%*slabel=\"%.*s\";\n", indent + 2, "", (int)b->title.n, b->title.data);
        write_shapes(file, d, b, indent + 2);
        write_boxes(file, d, b, indent + 2);
        fprintf(file, "%*s}\n", indent, "");
    }
}

static void write_all(FILE *file, const drawing *d)
{
    fprintf(file, "digraph tape {\n"
                  "  graph [fontname=\"Helvetica\", fontsize=11, color=\"#999999\", "
                  "fontcolor=\"#555555\"];\n"
                  "  node [fontname=\"Helvetica\", fontsize=11];\n"
                  "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\"];\n");
    write_boxes(file, d, &d->boxes[0], 2);
    write_shapes(file, d, &d->boxes[0], 2);
    if (d->edges.n) fwrite(d->edges.data, 1, d->edges.n, file);
    fprintf(file, "}\n");
}

tn_status tn_graph_dot(FILE *file, tn_tensor *root, tn_graph_options options)
{
    if (!file) return tni_error(TN_E_INVALID, "tn_graph_dot: the file is NULL: want an open one");
    if (!root || root == TN_NONE) return tni_poison("tn_graph_dot", "root");
    drawing d = { 0 };
    if (!box_of(&d, 0)) return TN_E_NOMEM;
    tn_status status = tn_graph_visit(root, collect, &d, options);
    if (status == TN_OK) status = d.status;
    if (status == TN_OK) {
        link_boxes(&d);
        write_all(file, &d);
        if (fflush(file) != 0 || ferror(file))
            status = tni_error(TN_E_IO, "tn_graph_dot: the file cannot be written");
    }
    for (size_t i = 0; i < d.n_shapes; i++) tni_bytes_free(&d.shapes[i].line);
    for (size_t i = 0; i < d.n_boxes; i++) tni_bytes_free(&d.boxes[i].title);
    tni_room_free(&d.shapes, &d.shape_room, sizeof *d.shapes);
    tni_room_free(&d.boxes, &d.box_room, sizeof *d.boxes);
    tni_bytes_free(&d.edges);
    return status;
}
