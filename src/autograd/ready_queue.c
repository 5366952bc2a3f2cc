/*
 * ready_queue.c - the order in which a pass visits nodes: a heap, the newest on top. A node is
 * newer than all it was computed from, so when its turn comes all gradients into it have arrived.
 */
#include "autograd/pass.h"

tn_status tni_ready_queue_push(tni_ready_queue *o, tni_node *node)
{
    if (!tni_room(&o->heap, &o->capacity, o->n, 1, sizeof *o->heap)) return TN_E_NOMEM;
    size_t i;
    for (i = o->n++; i > 0; i = (i - 1) / 2) {
        tni_node *parent = o->heap[(i - 1) / 2];
        if (parent->sequence >= node->sequence) break;
        o->heap[i] = parent;
    }
    o->heap[i] = node;
    return TN_OK;
}

tni_node *tni_ready_queue_pop(tni_ready_queue *o)
{
    tni_node *top = o->heap[0], *last = o->heap[--o->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= o->n) break;
        if (child + 1 < o->n && o->heap[child + 1]->sequence > o->heap[child]->sequence) child++;
        if (last->sequence >= o->heap[child]->sequence) break;
        o->heap[i] = o->heap[child];
        i = child;
    }
    o->heap[i] = last;
    return top;
}
