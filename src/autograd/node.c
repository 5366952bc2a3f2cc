/*
 * node.c - the graph's own memory: nodes, and the gradient data of tensors. Freeing is a loop, not
 * a recursion, so a deep graph needs no stack.
 */
#include "autograd/call_site.h"
#include "autograd/recompute.h"

static _Atomic uint64_t sequence = 1;

uint64_t tni_next_sequence(void)
{
    return atomic_fetch_add_explicit(&sequence, 1, memory_order_relaxed);
}

/* Takes one reference off node; the last one queues it on *dead. */
static void unref(tni_node *node, tni_node **dead)
{
    if (!tni_last(&node->refs)) return;
    node->next = *dead;
    *dead = node;
}

/* Dropping a handle re-enters this function at most once: tn_drop defers handles that have a node
 * or gradient data. */
void tni_node_drop(tni_node *node)
{
    tni_node *dead = NULL;
    unref(node, &dead);
    while (dead) {
        node = dead;
        dead = node->next;
        tni_saved_free(node);
        for (int i = 0; i < node->n_in; i++) {
            if (node->edge[i].node) unref(node->edge[i].node, &dead);
            if (node->edge[i].leaf) tn_drop(node->edge[i].leaf);
        }
        if (node->origin) tni_origin_free(node->origin);
        if (node->op && node->op->drop) node->op->drop(node->args);
        if (node->region) tni_region_drop(node->region);
        for (int i = 0; i < node->n_out; i++) {
            if (node->pending[i]) tn_drop(node->pending[i]);
            if (node->gm[i]) tni_gradmeta_drop(node->gm[i]);
        }
        tni_free(node, node->nbytes);
    }
}

tni_gradmeta *tni_gradmeta_of(tn_tensor *t)
{
    if (!t->gm) {
        if (!(t->gm = tni_calloc(sizeof *t->gm))) return NULL;
        t->gm->refs = 1;
    }
    if (t->node && !t->node->gm[t->out_index]) {
        atomic_fetch_add_explicit(&t->gm->refs, 1, memory_order_relaxed);
        t->node->gm[t->out_index] = t->gm;
    }
    return t->gm;
}

void tni_gradmeta_drop(tni_gradmeta *gm)
{
    if (!tni_last(&gm->refs)) return;
    tn_drop(gm->grad);
    tn_drop(gm->pending);
    tni_hook_list_free(&gm->hooks);
    tni_free(gm, sizeof *gm);
}

void tni_graph_drop(tni_node *node, tni_gradmeta *gm)
{
    if (node) tni_node_drop(node);
    if (gm) tni_gradmeta_drop(gm);
}
