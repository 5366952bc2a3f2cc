/* graph.h - the graph that recorded ops leave behind: nodes, edges between them, what they keep. */
#pragma once

#include "autograd/op.h"

/* Where the gradient of an input goes: (node, index), or a leaf; nowhere if both are NULL. */
typedef struct tni_edge {
    tni_node *node;
    tn_tensor *leaf;
    int index;
} tni_edge;

typedef struct tni_origin tni_origin;

/* A tensor that backward reads: an alias without history, and its version at forward. */
typedef struct tni_saved {
    tn_tensor *alias;
    uint64_t version : 63;
    uint64_t recomputed : 1; /* an input: alias is NULL, its op computes it again (saved.c) */
} tni_saved;

struct tni_node {
    atomic_int refs;
    int n_in, n_out, n_saved;
    atomic_int holds;  /* of a cheap op: on the inputs that it keeps (saved.c) */
    bool keeps, spent; /* may keep something for backward; it has been freed */
    bool queued;       /* on the heap of the innermost pass */
    uint64_t sequence; /* newer is larger: the engine's order */
    uint64_t mark;     /* of the pass that last visited it */
    const tn_op *op;
    tni_node *next;     /* in the list of nodes to free, or to visit */
    tni_edge *edge;     /* n_in */
    tni_meta *in, *out; /* n_in, n_out */
    tni_saved *x;       /* n_in; alias NULL when not kept */
    tni_saved y;
    tn_tensor **saved;   /* n_saved */
    tn_tensor **pending; /* n_out: gradients that have arrived */
    tni_gradmeta **gm;   /* n_out: of the output handles, when they have one */
    void *args;
    tni_origin *origin; /* call_site.h; NULL: unknown */
    /* what it keeps is forgotten, and comes from there (recompute.h); NULL: no */
    struct tni_region *region;
    size_t region_index;
    size_t nbytes; /* of this block */
};

struct tni_gradmeta {
    atomic_int refs;
    uint64_t mark; /* of the tn_gradients pass that wants this tensor's gradient */
    bool retain;
    uint64_t used;       /* 1 + grad's version when a step used it; 0: none has */
    uint64_t reused;     /* the same, once backward has added to a gradient that a step had used */
    tn_tensor *grad;     /* accumulated; NULL when none */
    tn_tensor *pending;  /* arrived in the pass that is running */
    tni_hook_list hooks; /* of tn_grad_hook */
    /* set if a leaf's gradients are averaged over processes (sync.h); else NULL */
    struct tni_sync *sync;
    int sync_index; /* its place there */
    int awaited;    /* uses in the running pass's graph that are not differentiated yet */
};

/* Of node->args, the last part of its block. */
static inline size_t tni_args_size(const tni_node *node)
{
    return node->nbytes - (size_t)((const char *)node->args - (const char *)node);
}
/* t's gradient; NULL: none. */
static inline tn_tensor *tni_grad_of(const tn_tensor *t)
{
    return t->gm && t->gm->grad && !tni_none(t->gm->grad) ? t->gm->grad : NULL;
}
/* Whether grad still holds a gradient that a step has used, and a later backward added to. */
bool tni_grad_reused(const tni_gradmeta *gm);
/* Makes grad (NULL: none) the gradient, which no step has used. Takes over the reference. */
void tni_grad_put(tni_gradmeta *gm, tn_tensor *grad);
bool tni_wants_recording(const tni_call *c); /* whether a call leaves a node */
/* Makes a node and attaches it to the outputs. On failure they stay without history. */
tn_status tni_record(const tni_call *c, size_t args_size);
/* Whether who reads y, a result of op, computes it again: y need not be kept, all inputs must. */
bool tni_is_recomputed(const tn_op *op, const tn_tensor *y);
bool tni_save_alias(tni_saved *saved, const tn_tensor *t); /* keeps t for backward, as it is now */
/* The same for input t, edge i set, where node's op or t's is recomputed. */
bool tni_save_input(tni_node *node, int i, const tn_tensor *t);
/* Frees what the node kept: after its turn in a backward, or with the node. */
void tni_saved_free(tni_node *node);
/* A saved alias with the history of output `index` of a node, in the current scope. */
tn_tensor *tni_with_history(const tn_tensor *alias, tni_node *from, int index);
tni_gradmeta *tni_gradmeta_of(tn_tensor *t); /* makes it on demand; NULL when out of memory */
void tni_gradmeta_drop(tni_gradmeta *gm);
void tni_node_drop(tni_node *node); /* iterative: any depth */
uint64_t tni_next_sequence(void);
