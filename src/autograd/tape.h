/* tape.h - the nodes behind a tensor in the order in which backward takes them. */
#pragma once

#include "autograd/graph.h"
#include "base/map.h"

typedef struct tni_tape {
    tni_node **node;
    size_t n, capacity;
    tni_map id; /* node -> its index + 1, once it has one */
} tni_tape;

/* Those behind n nodes. t is zeroed. Changes nothing in the graph. Call tni_tape_free even if this
 * fails. */
TNI_SHARED tn_status tni_tape_from(tni_tape *t, size_t n, tni_node *const *from);
/* The index of a node that is on the tape. */
int tni_tape_id(const tni_tape *t, const tni_node *node);
TNI_SHARED void tni_tape_free(tni_tape *t);
