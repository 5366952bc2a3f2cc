/**
 * tenon/graph.h - the tape that backward will play: walking it, drawing it.
 *
 * Every recorded op leaves a node. tn_graph_visit shows the nodes behind a tensor to a function of
 * yours, in the order in which tn_backward will run them; a viewer of your own needs nothing else.
 * tn_graph_dot is such a viewer. Both only read: they change nothing and leave nothing behind.
 */
#ifndef TENON_GRAPH_H
#define TENON_GRAPH_H

#include <tenon/nn.h>

TN_BEGIN_C_

/** What a node is. */
typedef enum tn_graph_kind {
    TN_GRAPH_OP,        /* a recorded op: backward runs it */
    TN_GRAPH_PARAMETER, /* a parameter that ops read */
    TN_GRAPH_BUFFER,    /* a registered buffer that ops read */
    TN_GRAPH_TENSOR     /* any other tensor that they read: data, a leaf of your own */
} tn_graph_kind;

/** One call of a module's forward. Known for nodes that were recorded under tn_set_places (and
 *  tn_set_anomaly). */
typedef struct tn_graph_call {
    int id;             /* 0, 1, ... in the order of forward */
    const char *module; /* path from the outermost call's module; that one's own is "" */
    const char *type;   /* "Linear" */
    int time;           /* 1 for the module's first call, 2 for its second, ... */
    const struct tn_graph_call *outer; /* the call around it; NULL: none */
    int n_written;                     /* length of the next array */
    const int *written;                /* ids of the buffers that forward changed in it */
} tn_graph_call;

/** An input or output of an op, or the value of a tensor's node. */
typedef struct tn_graph_value {
    tn_dtype dtype; /* of its elements */
    tn_shape shape; /* its sizes */
    bool absent;    /* an optional input that was TN_NONE; the rest is empty, from -1 */
    bool gradient;  /* of an input: a gradient goes back to `from`; of an output: it may take one */
    int from;       /* of an input: id of the op or tensor that it came from; else -1 */
    int output;     /* of an input: which output of that op; 0 for a tensor */
    /** What is kept of it for backward: borrowed, to be read only; NULL: nothing, or freed already.
     *  Nothing either of an activation's result that backward computes again (tn_gelu, ...). */
    const tn_tensor *kept;
    size_t kept_bytes; /* its size in memory; counts at every op that keeps it */
    uint64_t version;  /* at forward; another tn_version(kept) now makes backward fail */
} tn_graph_value;

/** A node. Valid, with all that it points to, until the visitor returns; its calls until
 *  tn_graph_visit returns; the strings of ops and calls as long as the graph lives. */
typedef struct tn_graph_node {
    int id;             /* ops count from 0, in the order of backward; then the tensors */
    tn_graph_kind kind; /* an op, or which kind of tensor */
    /** For an op as tn_grad_op; for a tensor its full name in the model, else its tn_name or "". */
    const char *name;
    const char *formula; /* of an op: "y = x w^T + b"; else "" */
    /** For an op, a part for each input that could take a gradient, here or elsewhere; dy is y's:
     *  "dx = dy w; dw = dy^T x; db = sum_n dy", and last "where ..." for short names. Else "" */
    const char *gradient;
    const char *line;            /* of an op, under tn_set_lines: file and line; else "" */
    const tn_graph_call *call;   /* of an op: the innermost; NULL: outside of all, or not known */
    int n_in, n_out, n_saved;    /* lengths of the three arrays below */
    const tn_graph_value *in;    /* n_in inputs, in the op's order */
    const tn_graph_value *out;   /* n_out outputs; of a tensor: one, itself */
    const tn_graph_value *saved; /* n_saved: what else forward put aside for backward */
    bool freed;                  /* a backward has freed what the op kept */
    /** For a tensor: itself if a gradient ends there (tn_grad reads it), else a handle on the same
     *  memory. Borrowed. NULL for ops, and where nobody kept it. */
    tn_tensor *tensor;
} tn_graph_node;

/** Returns 0 to go on; any other number ends the walk. Tensors that it makes belong to a scope of
 *  the walk. */
typedef int (*tn_graph_visitor)(const tn_graph_node *node, void *user);

/** zero fields: no model */
typedef struct tn_graph_options {
    tn_module *model; /* names its parameters and buffers, and tells them from other tensors */
} tn_graph_options;

/**
 * Calls visit for every node behind root: first the ops, in the order in which backward runs them
 * (so an op comes before those that made its inputs), each once however often its results were
 * used; then the tensors that they read. A leaf has one node, itself.
 *
 * Same     graph, same ids: they count within the walk, so they do not change from run to run
 * Kinds    without a model, trained parameters and buffers are still told apart from other tensors,
 *          but have no names
 * Unknown  without tn_set_places: calls, and tensors without gradient that backward does not read,
 *          which then have a node for each use, without `tensor`
 * Time     in proportion to the graph, but for the order: n log n. No recursion
 * Errors   root NULL or TN_NONE; visit NULL; out of memory. A walk that visit ended is TN_OK
 */
TN_API TN_MUST_USE tn_status tn_graph_visit(tn_tensor *root, tn_graph_visitor visit, void *user,
                                            tn_graph_options options);

/**
 * Writes the graph behind root as text for Graphviz (`dot -Tsvg`): ops in rounded boxes, parameters
 * in filled ones, buffers as cylinders, other tensors as ovals, each with its name, shape (and
 * dtype, unless f32) and what an op keeps for backward. Arrows lead from a value to the op that
 * reads it; red ones back, where a gradient flows; dashed ones from a call to the buffers that its
 * forward changed. A box around ops is a call of a module (under tn_set_places).
 *
 * Same     graph, same text
 * Errors   file NULL, or it cannot be written; as tn_graph_visit
 */
TN_API TN_MUST_USE tn_status tn_graph_dot(FILE *file, tn_tensor *root, tn_graph_options options);

TN_END_C_
#endif
