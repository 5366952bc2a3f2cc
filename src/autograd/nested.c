/*
 * nested.c - the beginning and the end of a pass, and a pass within another.
 *
 * A hook may start a pass, even over the graph of the one that runs it. What the outer pass has in
 * the fields of nodes and tensors (gradients, marks, places in its heap) is put aside until the
 * inner one ends.
 */
#include "autograd/pass.h"

enum { MOST_NESTED = 64 };

static _Thread_local tni_pass *innermost;

static void put(tni_pass *p, tn_tensor **field)
{
    if (!*field) return;
    p->aside[p->n_aside++] = (tni_put_aside){ field, *field };
    *field = NULL;
}

static void put_outputs(tni_pass *p, tni_node *node)
{
    for (int i = 0; i < node->n_out; i++) put(p, &node->pending[i]);
}

static tn_status put_outer_aside(tni_pass *p)
{
    const tni_pass *outer = p->outer;
    size_t n = outer->n_receivers + (outer->node ? (size_t)outer->node->n_out : 0);
    for (size_t i = 0; i < outer->ready.n; i++) n += (size_t)outer->ready.heap[i]->n_out;
    if (n == 0) return TN_OK;
    if (!tni_room(&p->aside, &p->aside_capacity, 0, n, sizeof *p->aside)) return TN_E_NOMEM;
    for (size_t i = 0; i < outer->ready.n; i++) {
        put_outputs(p, outer->ready.heap[i]);
        outer->ready.heap[i]->queued = false;
    }
    if (outer->node) put_outputs(p, outer->node);
    for (size_t i = 0; i < outer->n_receivers; i++) put(p, &outer->receivers[i].gm->pending);
    return TN_OK;
}

tn_status tni_pass_mark(tni_pass *p, uint64_t *mark, uint64_t to)
{
    if (p->outer) {
        if (!tni_room(&p->old, &p->old_capacity, p->n_old, 1, sizeof(tni_old_mark)))
            return TN_E_NOMEM;
        p->old[p->n_old++] = (tni_old_mark){ mark, *mark };
    }
    *mark = to;
    return TN_OK;
}

tn_status tni_pass_begin(tni_pass *p, const char *function)
{
    p->outer = innermost;
    p->depth = p->outer ? p->outer->depth + 1 : 0;
    p->was_recording = tn_set_grad_enabled(p->create);
    p->was_casting = tni_autocasting;
    tni_autocasting = TN_F32;
    innermost = p;
    if (p->depth >= MOST_NESTED)
        return tni_error(TN_E_STATE,
                         "%s: %d passes are running, each in a hook of another: want hooks that "
                         "come to an end",
                         function, MOST_NESTED);
    return p->outer ? put_outer_aside(p) : TN_OK;
}

bool tni_pass_is_open(void)
{
    return innermost != NULL;
}

void tni_pass_end(tni_pass *p)
{
    while (p->ready.n) tni_leave(p->ready.heap[--p->ready.n]);
    for (size_t i = 0; i < p->n_receivers; i++) {
        tni_receiver *r = &p->receivers[i];
        tn_drop(r->gm->pending);
        r->gm->pending = NULL;
    }
    while (p->n_old--) *p->old[p->n_old].mark = p->old[p->n_old].was;
    for (size_t i = 0; i < p->n_aside; i++) *p->aside[i].field = p->aside[i].gradient;
    for (size_t i = 0; p->outer && i < p->outer->ready.n; i++)
        p->outer->ready.heap[i]->queued = true;
    innermost = p->outer;
    tni_autocasting = p->was_casting;
    tn_set_grad_enabled(p->was_recording);
    /* the pass is no longer read from here on: freeing may call a user's release */
    for (size_t i = 0; i < p->n_receivers; i++) {
        tni_gradmeta_drop(p->receivers[i].gm);
        tn_drop(p->receivers[i].leaf);
    }
    tni_room_free(&p->ready.heap, &p->ready.capacity, sizeof *p->ready.heap);
    tni_room_free(&p->receivers, &p->receiver_capacity, sizeof *p->receivers);
    tni_room_free(&p->aside, &p->aside_capacity, sizeof *p->aside);
    tni_room_free(&p->old, &p->old_capacity, sizeof *p->old);
}
