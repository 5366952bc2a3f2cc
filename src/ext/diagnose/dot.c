/*
 * dot.c - the graph as text for Graphviz: a viewer that knows only the public tn_graph_visit.
 *
 * A node stands in the boxes of the calls around it, and Graphviz joins boxes of one name. A
 * parameter or buffer is drawn in the box of the call that read it first in forward; ops come
 * newest first, so that is the last reader the visitor sees.
 */
#include <tenon/graph.h>

#include "base/map.h"
#include "ext/diagnose/stream.h"
#include "tensor/internal.h"

typedef struct drawing {
    tni_bytes text;
    tni_map place; /* id + 1 of a tensor that calls read or write -> the call it is drawn in */
    tni_map boxes; /* calls whose boxes have been opened */
} drawing;

/* Text between the quotes of a label; what is too long ends with dots. */
static void put_quoted(tni_bytes *text, const char *label)
{
    enum { MOST = 200 };
    for (int i = 0; label[i] && i < MOST; i++) {
        if (label[i] == '"' || label[i] == '\\') tni_bytes_add(text, "\\", 1);
        tni_bytes_add(text, (unsigned char)label[i] < ' ' ? " " : &label[i], 1);
    }
    if (strlen(label) > MOST) tni_bytes_add(text, "...", 3);
}

static const char *const look[] = {
    [TN_GRAPH_OP] = "shape=box, style=rounded",
    [TN_GRAPH_PARAMETER] = "shape=box, style=filled, fillcolor=\"#cfe2f3\"",
    [TN_GRAPH_BUFFER] = "shape=cylinder, style=filled, fillcolor=\"#fff2cc\"",
    [TN_GRAPH_TENSOR] = "shape=ellipse",
};

static const void *key(int id)
{
    return (const void *)((uintptr_t)id + 1);
}

static void place(drawing *d, int id, const tn_graph_call *call)
{
    d->text.failed |= tni_map_put(&d->place, key(id), (void *)call) < 0;
}

/* Opens the boxes of a call and of those around it. The first time a box gets its title. */
static void open_boxes(drawing *d, const tn_graph_call *call)
{
    if (!call) return;
    open_boxes(d, call->outer);
    tni_bytes *text = &d->text;
    tni_bytes_printf(text, "subgraph cluster_%d { ", call->id);
    int is_new = tni_map_put(&d->boxes, call, d);
    text->failed |= is_new < 0;
    if (is_new <= 0) return;
    tni_bytes_printf(text, "label=\"");
    put_quoted(text, call->module);
    tni_bytes_printf(text, call->module[0] ? " (" : "");
    put_quoted(text, call->type);
    tni_bytes_printf(text, call->module[0] ? ")" : "");
    if (call->time > 1) tni_bytes_printf(text, ", call %d", call->time);
    tni_bytes_printf(text, "\"; ");
}

static void add_node(drawing *d, const tn_graph_node *node, const tn_graph_call *call)
{
    tni_bytes *text = &d->text;
    tni_bytes_printf(text, "  ");
    open_boxes(d, call);
    tni_bytes_printf(text, "n%d [%s, label=\"", node->id, look[node->kind]);
    put_quoted(text, node->name);
    for (int i = 0; i < node->n_out && i < 4; i++) {
        const tn_graph_value *v = &node->out[i];
        const char *dtype = v->dtype == TN_F32 ? "" : tn_dtype_name(v->dtype);
        tni_bytes_printf(text, "%s%s%s%s", i || node->name[0] ? "\\n" : "", dtype,
                         dtype[0] ? " " : "", tni_shape_text(&v->shape));
    }
    if (node->n_out > 4) tni_bytes_printf(text, "\\nand %d more", node->n_out - 4);
    size_t kept = 0;
    for (int i = 0; i < node->n_in; i++) kept += node->in[i].kept_bytes;
    for (int i = 0; i < node->n_out; i++) kept += node->out[i].kept_bytes;
    for (int i = 0; i < node->n_saved; i++) kept += node->saved[i].kept_bytes;
    if (kept) tni_bytes_printf(text, "\\nkeeps %zu B", kept);
    if (node->formula[0]) tni_bytes_printf(text, "\", tooltip=\"");
    put_quoted(text, node->formula);
    tni_bytes_printf(text, "\"];");
    for (; call; call = call->outer) tni_bytes_printf(text, " }");
    tni_bytes_printf(text, "\n");
}

static void add_edges(drawing *d, const tn_graph_node *node)
{
    for (const tn_graph_value *in = node->in; in && in < node->in + node->n_in; in++) {
        if (in->absent) continue;
        place(d, in->from, node->call);
        tni_bytes_printf(&d->text, "  n%d -> n%d", in->from, node->id);
        if (in->output) tni_bytes_printf(&d->text, " [taillabel=\"%d\"]", in->output);
        tni_bytes_printf(&d->text, ";\n");
        if (in->gradient)
            tni_bytes_printf(&d->text, "  n%d -> n%d [color=\"#c0392b\", constraint=false];\n",
                             node->id, in->from);
    }
}

/* Ops come first, and say where the tensors that they read are drawn. */
static int add(const tn_graph_node *node, void *user)
{
    drawing *d = user;
    const bool anywhere = node->kind == TN_GRAPH_PARAMETER || node->kind == TN_GRAPH_BUFFER;
    /* what the calls around an op write, once for each: the op is the newest in them */
    for (const tn_graph_call *c = node->call; c && !tni_map_get(&d->boxes, c); c = c->outer)
        for (int i = 0; i < c->n_written; i++) {
            if (!tni_map_get(&d->place, key(c->written[i]))) place(d, c->written[i], c);
            tni_bytes_printf(&d->text,
                             "  n%d -> n%d [style=dashed, label=\"writes\", constraint=false];\n",
                             node->id, c->written[i]);
        }
    add_edges(d, node);
    add_node(d, node, anywhere ? tni_map_get(&d->place, key(node->id)) : node->call);
    return d->text.failed;
}

tn_status tn_graph_dot(FILE *file, tn_tensor *root, tn_graph_options options)
{
    if (!file) return tni_null("tn_graph_dot", "the file", "an open one");
    if (!root || root == TN_NONE) return tni_poison("tn_graph_dot", "root");
    drawing d = { 0 };
    tni_bytes_printf(&d.text, "digraph tape {\n"
                              "  graph [fontname=\"Helvetica\", fontsize=11, color=\"#999999\", "
                              "fontcolor=\"#555555\"];\n"
                              "  node [fontname=\"Helvetica\", fontsize=11];\n"
                              "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\"];\n");
    tn_status status = tn_graph_visit(root, add, &d, options);
    tni_bytes_printf(&d.text, "}\n");
    status = tni_stream_put("tn_graph_dot", file, status, &d.text);
    tni_map_free(&d.place);
    tni_map_free(&d.boxes);
    return status;
}
