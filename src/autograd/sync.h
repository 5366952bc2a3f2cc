/*
 * sync.h - gradients that leave while backward still runs: what a pass tells whoever averages the
 * gradients of some leaves with those of other processes.
 *
 * A pass of tn_backward counts, before it starts, how often its graph reads each such leaf. When
 * the last of these uses has been differentiated, the leaf's gradient is complete, long before the
 * pass is. At the end of the pass the averages take the place of the sums that would have become
 * the leaves' grads.
 */
#pragma once

#include "autograd/graph.h"
#include "autograd/pass.h"

typedef struct tni_sync_leaf {
    tn_tensor *leaf;    /* kept by the owner; gm->sync and gm->sync_index lead back here */
    tn_tensor *average; /* of the leaf's shape; valid after finish */
    bool used;          /* after finish: some process has a gradient, so the average counts */
    bool own;           /* leaf's grad is this process's alone: the last pass did not average */
} tni_sync_leaf;

/* Belongs to one thread; embedded by its owner. */
typedef struct tni_sync {
    struct tni_sync *next;
    bool off;    /* passes leave these leaves alone */
    bool active; /* takes part in the pass that is running */
    bool agreed; /* all processes will finish this pass: a failure from now on stays in this one */
    int n, ranks;
    tni_sync_leaf *leaf;
    /* The pass begins; in each leaf's gm, awaited counts its uses in the graph. */
    tn_status (*begin)(struct tni_sync *s);
    /* The gradient of a leaf is complete: gm->pending. Grad mode is off. */
    tn_status (*ready)(struct tni_sync *s, int index);
    /* All gradients are complete, after the leaves' hooks (NULL: none). Fills average and used. */
    tn_status (*finish)(struct tni_sync *s);
    /* Leaves without a gradient here now have room for the average; status: whether that worked. */
    tn_status (*agree)(struct tni_sync *s, tn_status status);
    /* The pass failed after begin was called, or at its end; returns what the pass does. */
    tn_status (*fail)(struct tni_sync *s, tn_status status);
} tni_sync;

/* Adds the leaves to this thread's passes. n, ranks, leaf and the functions are set. Out of memory:
 * nothing was added. */
tn_status tni_sync_add(tni_sync *s);
void tni_sync_remove(tni_sync *s); /* in the same thread */

extern TNI_THREAD tni_sync *tni_syncs; /* of this thread; NULL: none */

/* Called by a pass (backward.c) when tni_syncs is not NULL; by the outermost pass only. */
tn_status tni_sync_begin(tni_pass *p, tn_tensor *output);
tn_status tni_sync_delivered(tni_pass *p, const tni_node *node); /* node's gradients are in place */
tn_status tni_sync_finish(tni_pass *p);
tn_status tni_sync_end(tni_pass *p, tn_status status);
/* Whether a leaf's sum may become its grad: not when its gradients are averaged and this pass does
 * not do it. */
tn_status tni_sync_check(const tni_pass *p, const tn_tensor *leaf);
/* What a leaf's grad becomes instead of a sum; NULL: nothing. */
tn_tensor *tni_sync_average(const tni_pass *p, const tni_gradmeta *gm);
