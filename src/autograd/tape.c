/* tape.c - see tape.h. The engine's own heap gives the order, so it is backward's. */
#include "autograd/tape.h"

#include "autograd/pass.h"

/* Puts a node that was not met before onto the heap. */
static tn_status meet(tni_tape *t, tni_ready_queue *ahead, tni_node *node)
{
    if (!node) return TN_OK;
    int is_new = tni_map_put(&t->id, node, NULL);
    return is_new < 0 ? TN_E_NOMEM : is_new ? tni_ready_queue_push(ahead, node) : TN_OK;
}

tn_status tni_tape_from(tni_tape *t, size_t n, tni_node *const *from)
{
    tni_ready_queue ahead = { 0 };
    tn_status status = TN_OK;
    for (size_t i = 0; status == TN_OK && i < n; i++) status = meet(t, &ahead, from[i]);
    while (status == TN_OK && ahead.n) {
        tni_node *node = tni_ready_queue_pop(&ahead);
        if (!tni_room(&t->node, &t->capacity, t->n, 1, sizeof *t->node)) status = TN_E_NOMEM;
        if (status == TN_OK) t->node[t->n++] = node;
        for (int i = 0; status == TN_OK && i < node->n_in; i++)
            status = meet(t, &ahead, node->edge[i].node);
    }
    for (size_t i = 0; i < t->n; i++) /* known keys: cannot fail */
        tni_map_put(&t->id, t->node[i], (void *)(i + 1));
    tni_room_free(&ahead.heap, &ahead.capacity, sizeof *ahead.heap);
    return status;
}

int tni_tape_id(const tni_tape *t, const tni_node *node)
{
    return (int)(uintptr_t)tni_map_get(&t->id, node) - 1;
}

void tni_tape_free(tni_tape *t)
{
    tni_room_free(&t->node, &t->capacity, sizeof *t->node);
    tni_map_free(&t->id);
}
