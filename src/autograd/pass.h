/*
 * pass.h - one pass of the engine: what backward.c, saved.c, ready_queue.c and gradients.c share.
 */
#pragma once

#include "autograd/graph.h"
#include "autograd/notify.h"

/* Nodes in the order of their turns, newest first (ready_queue.c). */
typedef struct tni_ready_queue {
    tni_node **heap;
    size_t n, capacity;
} tni_ready_queue;

tn_status tni_ready_queue_push(tni_ready_queue *o, tni_node *node);
tni_node *tni_ready_queue_pop(tni_ready_queue *o); /* of one that is not empty */

/* A tensor with a gradient in gm->pending: a leaf, or a result whose gradient is retained or asked
 * for. */
typedef struct tni_receiver {
    tni_gradmeta *gm; /* counted */
    tn_tensor *leaf;  /* kept; NULL for a result */
} tni_receiver;

/* A gradient that an outer pass has in a field of a node or a tensor. */
typedef struct tni_put_aside {
    tn_tensor **field;
    tn_tensor *gradient;
} tni_put_aside;

typedef struct tni_old_mark {
    uint64_t *mark, was;
} tni_old_mark;

typedef struct tni_engine_pass {
    struct tni_engine_pass *outer; /* the one whose hook started this one; NULL: none */
    int depth;
    tni_ready_queue ready; /* the nodes still to visit */
    tni_node *node;        /* being differentiated now; no longer in the queue */
    tni_receiver *receivers;
    size_t n_receivers, receiver_capacity;
    tni_put_aside *aside; /* the outer pass's gradients */
    size_t n_aside, aside_capacity;
    tni_old_mark *old; /* the outer passes' marks */
    size_t n_old, old_capacity;
    /* tn_gradients: mark of nodes on the way to an input; 0: everything is wanted */
    uint64_t wanted;
    uint64_t target; /* tn_gradients: gm->mark of the inputs */
    bool retain;
    tn_scope scope; /* while it runs: of the current step */
    bool create;
    bool synced;        /* tells this thread's tni_syncs (sync.h) */
    bool was_recording; /* grad mode of the caller */
    tn_dtype was_casting;
} tni_pass;

/* p is zeroed. Call tni_pass_end even if this fails. Until then grad mode is the pass's and
 * autocast is off: backward runs in the dtypes that forward used. */
tn_status tni_pass_begin(tni_pass *p, const char *function);
/* Stores the outputs' seeds (NULL: ones) as their arrived gradients. */
tn_status tni_pass_seed(tni_pass *p, const char *function, int n, tn_tensor *const *outputs,
                        tn_tensor *const *seeds);
/* Whether gradient g, a "seed", has the shape and dtype of t, "the output ", and its device. */
tn_status tni_gradient_fits(const char *function, const char *what, const tn_tensor *g,
                            const char *role, const tn_tensor *t);
/* Adds g to what has arrived where `to` leads. take: g is not used again in this step. */
tn_status tni_pass_deliver(tni_pass *p, const tni_edge *to, tn_tensor *g, bool take);
/* Visits all nodes, down to the receivers, and runs hooks, the receivers' too. */
tn_status tni_pass_run(tni_pass *p);
/* Call it before a gradient is put into gm->pending. */
tn_status tni_pass_receive(tni_pass *p, tni_gradmeta *gm, tn_tensor *leaf);
void tni_pass_end(tni_pass *p);         /* leaves nothing of the pass behind */
TNI_SHARED bool tni_pass_is_open(void); /* whether this thread is between begin and end of a pass */
/* Marks a node as off the heap and drops its pending gradients. */
void tni_leave(tni_node *node);

uint64_t tni_next_mark(void); /* a mark that no node has, and the one after it */
/* Sets a mark, and remembers its old value for the outer pass. */
tn_status tni_pass_mark(tni_pass *p, uint64_t *mark, uint64_t to);
/* Whether the pass wants the gradient that this edge leads to. */
bool tni_pass_leads_on(const tni_pass *p, const tni_edge *edge);

/* Fills g->x and g->y with what backward reads of the node's inputs and result. (saved.c) */
tn_status tni_saved_read(const tni_pass *p, tni_node *node, tni_grad *g);

/* Whether others than the engine could see t's memory change, or t covers only part of it. */
bool tni_is_shared(const tn_tensor *t);
bool tni_is_ours(const tn_tensor *t);         /* whether the engine may write to t */
tn_status tni_copy_pending(tni_gradmeta *gm); /* makes gm->pending a copy of its own */
