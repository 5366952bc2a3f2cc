/*
 * recompute.h - functions that backward runs again (tn_recompute), as the engine and modules see
 * them.
 */
#pragma once

#include <tenon/recompute.h>

#include "autograd/graph.h"

/* One call of tn_recompute, shared by its nodes. */
typedef struct tni_region tni_region;

/* What a function changes, as it was before: that is put back for its second run, and what is there
 * now after it. */
typedef struct tni_undo {
    const void *key;   /* a storage, or an object, which keep and drop count; */
    int64_t number;    /* and of the object's parts the one that is changed: one entry for each */
    tn_tensor *value;  /* counted: what it had, or, during the second run, has now */
    tn_tensor *memory; /* counted: all of a buffer's memory; NULL: an object is changed */
    tn_tensor *room;   /* during the second run: as large as memory */
    uint64_t first;    /* the memory's version before the first write, */
    uint64_t now;      /* and before the second run */
    void (*keep)(void *object);
    void (*drop)(void *object);
    void (*exchange)(struct tni_undo *u); /* of value and what that part has; cannot fail */
} tni_undo;

/* The innermost one that this thread runs; NULL: none. */
extern TNI_THREAD tni_region *tni_region_now;

tn_status tni_region_record(tni_node *node); /* A node was recorded */
/* An op reads these. In a second run it is an error if a leaf or buffer is not what it was. */
tn_status tni_region_reads(int n, tn_tensor *const *in);
/* Gives the node what it forgot; the function runs again for the first of its nodes. */
tn_status tni_region_fill(tni_node *node);
void tni_region_drop(tni_region *r);

/* t is about to be written; it is about to be put into a slot. */
tn_status tni_region_writes(const tn_tensor *t);
tn_status tni_region_assigns(const tn_tensor *t);
/* Adds u, of an object, to each running region that has no entry for that part; each counts what u
 * holds once more. */
tn_status tni_region_undo(const tni_undo *u);

/* tn_recompute_n; release (or NULL) is called with user once nothing needs it any more. */
tn_status tni_recompute(tn_recompute_function function, void *user, void (*release)(void *user),
                        int n_in, tn_tensor *const *in, int n_out, tn_tensor **out);
