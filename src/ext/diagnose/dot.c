/*
 * dot.c - the graph as text for Graphviz: a viewer that knows only the public tn_graph_visit.
 *
 * The visitor notes a line for each node and for each edge; the nested boxes of modules are written
 * at the end. A parameter or buffer is drawn in the box of the call that read it first in forward;
 * ops come newest first, so that is the last reader the visitor sees.
 */
#include <tenon/graph.h>

#include "base/base.h"

typedef struct box {
    char *title;
    int outer, child, sibling; /* calls; -1: none */
    int first;                 /* node in it; -1: none */
    int op;                    /* the newest in it: it writes the call's buffers */
} box;

typedef struct shape {
    char *line;
    int box, next; /* next node in the same box; -1: none */
} shape;

typedef struct edge {
    int from, to, output;
    enum { VALUE, GRADIENT, WRITE } kind;
} edge;

typedef struct drawing {
    shape *shapes; /* by id */
    box *boxes;    /* by the call's id + 1; 0: the page */
    edge *edges;
    int *home; /* box of each tensor, by id; 0: none known */
    size_t n_shapes, n_boxes, n_edges, n_home;
    size_t shape_room, box_room, edge_room, home_room;
    tn_status status;
} drawing;

/* ---- text ------------------------------------------------------------------------------------ */

/* Room for the longest line: a name and a formula of 200 characters, escaped, and four shapes. */
typedef struct label {
    char at[2048];
    size_t n;
} label;

/* Appends to a label while there is room. */
TN_PRINTF(2, 3) static void put(label *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->at + l->n, sizeof l->at - l->n, format, args);
    va_end(args);
    if (n > 0) l->n = TNI_MIN(l->n + (size_t)n, sizeof l->at - 1);
}

/* Text between the quotes of a label; what is too long ends with dots. */
static void put_quoted(label *l, const char *text)
{
    enum { MOST = 200 };
    for (int i = 0; text[i]; i++) {
        if (i == MOST) {
            put(l, "...");
            return;
        }
        unsigned char c = (unsigned char)text[i];
        put(l, c == '"' || c == '\\' ? "\\%c" : "%c", c < ' ' ? ' ' : c);
    }
}

/* The shape, with the dtype unless it is f32, on a line of its own. */
static void put_value(label *l, const tn_graph_value *v, bool first)
{
    const char *dtype = v->dtype == TN_F32 ? "" : tn_dtype_name(v->dtype);
    put(l, "%s%s%s[", first ? "" : "\\n", dtype, dtype[0] ? " " : "");
    for (int i = 0; i < v->shape.rank; i++) put(l, "%s%" PRId64, i ? "," : "", v->shape.size[i]);
    put(l, "]");
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

static char *line_of(const tn_graph_node *node)
{
    label l = { .n = 0 };
    put(&l, "n%d [%s, label=\"", node->id, look[node->kind]);
    put_quoted(&l, node->name);
    for (int i = 0; i < node->n_out && i < 4; i++)
        put_value(&l, &node->out[i], !i && !node->name[0]);
    if (node->n_out > 4) put(&l, "\\nand %d more", node->n_out - 4);
    size_t kept = kept_by(node);
    if (kept) put(&l, "\\nkeeps %zu B", kept);
    put(&l, "\"");
    if (node->formula[0]) {
        put(&l, ", tooltip=\"");
        put_quoted(&l, node->formula);
        put(&l, "\"");
    }
    put(&l, "];");
    return tni_strdup(l.at);
}

static char *title_of(const tn_graph_call *call)
{
    label l = { .n = 0 };
    put_quoted(&l, call->module);
    if (call->module[0]) put(&l, " (");
    put_quoted(&l, call->type);
    if (call->module[0]) put(&l, ")");
    if (call->time > 1) put(&l, ", call %d", call->time);
    return tni_strdup(l.at);
}

/* ---- collecting ------------------------------------------------------------------------------ */

static bool set_home(drawing *d, int id, int box, bool again)
{
    size_t n = (size_t)id + 1, more = n > d->n_home ? n - d->n_home : 0;
    if (!tni_room(&d->home, &d->home_room, d->n_home, more, sizeof *d->home)) return false;
    while (d->n_home < n) d->home[d->n_home++] = 0;
    if (again || !d->home[id]) d->home[id] = box;
    return true;
}

static bool add_edge(drawing *d, edge e)
{
    if (!tni_room(&d->edges, &d->edge_room, d->n_edges, 1, sizeof *d->edges)) return false;
    d->edges[d->n_edges++] = e;
    return true;
}

/* Notes the boxes of a call and of all calls around it, and what the call writes. */
static bool add_boxes(drawing *d, const tn_graph_call *call, int op)
{
    for (; call; call = call->outer) {
        size_t n = (size_t)call->id + 2, more = n > d->n_boxes ? n - d->n_boxes : 0;
        if (!tni_room(&d->boxes, &d->box_room, d->n_boxes, more, sizeof *d->boxes)) return false;
        while (d->n_boxes < n) d->boxes[d->n_boxes++] = (box){ NULL, -1, -1, -1, -1, -1 };
        box *b = &d->boxes[call->id + 1];
        if (b->title) return true;
        if (!(b->title = title_of(call))) return false;
        b->outer = call->outer ? call->outer->id + 1 : 0;
        b->op = op;
        for (int i = 0; i < call->n_written; i++)
            if (!set_home(d, call->written[i], call->id + 1, false) ||
                !add_edge(d, (edge){ op, call->written[i], 0, WRITE }))
                return false;
    }
    return true;
}

static bool add_op(drawing *d, const tn_graph_node *node)
{
    int box = node->call ? node->call->id + 1 : 0;
    if (!add_boxes(d, node->call, node->id)) return false;
    for (int i = 0; i < node->n_in; i++) {
        const tn_graph_value *in = &node->in[i];
        if (in->absent) continue;
        if (!set_home(d, in->from, box, true) ||
            !add_edge(d, (edge){ in->from, node->id, in->output, VALUE }) ||
            (in->gradient && !add_edge(d, (edge){ node->id, in->from, 0, GRADIENT })))
            return false;
    }
    return true;
}

static bool add_shape(drawing *d, const tn_graph_node *node)
{
    if (!tni_room(&d->shapes, &d->shape_room, d->n_shapes, 1, sizeof *d->shapes)) return false;
    int box = 0;
    if (node->kind == TN_GRAPH_OP)
        box = node->call ? node->call->id + 1 : 0;
    else if (node->kind != TN_GRAPH_TENSOR && (size_t)node->id < d->n_home)
        box = d->home[node->id];
    char *line = line_of(node);
    if (line) d->shapes[d->n_shapes++] = (shape){ line, box, -1 };
    return line != NULL;
}

static int collect(const tn_graph_node *node, void *user)
{
    drawing *d = user;
    bool done = (node->kind != TN_GRAPH_OP || add_op(d, node)) && add_shape(d, node);
    if (!done) d->status = TN_E_NOMEM;
    return !done;
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
        fprintf(file, "%*s%s\n", indent, "", d->shapes[i].line);
}

static void close_box(FILE *file, int *indent)
{
    *indent -= 2;
    fprintf(file, "%*s}\n", *indent, "");
}

static void write_boxes(FILE *file, const drawing *d)
{
    int at = d->boxes[0].child, indent = 2;
    while (at > 0) {
        const box *b = &d->boxes[at];
        fprintf(file, "%*ssubgraph cluster_%d {\n", indent, "", at - 1);
        indent += 2;
        fprintf(file, "%*slabel=\"%s\";\n", indent, "", b->title);
        write_shapes(file, d, b, indent);
        if (b->child > 0) {
            at = b->child;
            continue;
        }
        close_box(file, &indent);
        for (; d->boxes[at].sibling < 0 && d->boxes[at].outer > 0; at = d->boxes[at].outer)
            close_box(file, &indent);
        at = d->boxes[at].sibling;
    }
}

static void write_edge(FILE *file, const edge *e)
{
    fprintf(file, "  n%d -> n%d", e->from, e->to);
    if (e->kind == GRADIENT)
        fprintf(file, " [color=\"#c0392b\", constraint=false]");
    else if (e->kind == WRITE)
        fprintf(file, " [style=dashed, label=\"writes\", constraint=false]");
    else if (e->output)
        fprintf(file, " [taillabel=\"%d\"]", e->output);
    fprintf(file, ";\n");
}

static void write_all(FILE *file, const drawing *d)
{
    fprintf(file, "digraph tape {\n"
                  "  graph [fontname=\"Helvetica\", fontsize=11, color=\"#999999\", "
                  "fontcolor=\"#555555\"];\n"
                  "  node [fontname=\"Helvetica\", fontsize=11];\n"
                  "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\"];\n");
    write_boxes(file, d);
    write_shapes(file, d, &d->boxes[0], 2);
    for (size_t i = 0; i < d->n_edges; i++) write_edge(file, &d->edges[i]);
    fprintf(file, "}\n");
}

static void drawing_free(drawing *d)
{
    for (size_t i = 0; i < d->n_shapes; i++) tni_strfree(d->shapes[i].line);
    for (size_t i = 0; i < d->n_boxes; i++)
        if (d->boxes[i].title) tni_strfree(d->boxes[i].title);
    tni_room_free(&d->shapes, &d->shape_room, sizeof *d->shapes);
    tni_room_free(&d->boxes, &d->box_room, sizeof *d->boxes);
    tni_room_free(&d->edges, &d->edge_room, sizeof *d->edges);
    tni_room_free(&d->home, &d->home_room, sizeof *d->home);
}

tn_status tn_graph_dot(FILE *file, tn_tensor *root, tn_graph_options options)
{
    if (!file) return tni_error(TN_E_INVALID, "tn_graph_dot: the file is NULL: want an open one");
    if (!root || root == TN_NONE) return tni_poison("tn_graph_dot", "root");
    drawing d = { 0 };
    tn_status status = TN_OK;
    if (!tni_room(&d.boxes, &d.box_room, 0, 1, sizeof *d.boxes)) return TN_E_NOMEM;
    d.boxes[d.n_boxes++] = (box){ NULL, -1, -1, -1, -1, -1 };
    status = tn_graph_visit(root, collect, &d, options);
    if (status == TN_OK) status = d.status;
    if (status == TN_OK) {
        link_boxes(&d);
        write_all(file, &d);
        if (fflush(file) != 0 || ferror(file))
            status = tni_error(TN_E_IO, "tn_graph_dot: the file cannot be written");
    }
    drawing_free(&d);
    return status;
}
