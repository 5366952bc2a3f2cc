/*
 * sync.c - see sync.h: counts the uses of leaves before a pass, and tells when they are done.
 *
 * The count is of edges in the graph behind the output, each node once. A node that gets no
 * gradient is never visited: the leaves that it reads are then complete only when the pass ends. So
 * are leaves with hooks, which the engine runs at its end.
 */
#include "autograd/sync.h"

TNI_THREAD tni_sync *tni_syncs;

tn_status tni_sync_add(tni_sync *s)
{
    for (int i = 0; i < s->n; i++)
        if (!tni_gradmeta_of(s->leaf[i].leaf)) return TN_E_NOMEM;
    for (int i = 0; i < s->n; i++) {
        s->leaf[i].leaf->gm->sync = s;
        s->leaf[i].leaf->gm->sync_index = i;
    }
    s->next = tni_syncs;
    tni_syncs = s;
    return TN_OK;
}

void tni_sync_remove(tni_sync *s)
{
    tni_sync **at = &tni_syncs;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    for (int i = 0; i < s->n; i++) {
        if (!s->leaf[i].leaf) continue; /* out of memory before it was taken */
        tni_gradmeta *gm = s->leaf[i].leaf->gm;
        if (gm && gm->sync == s) gm->sync = NULL;
    }
}

/* ---- before the pass ------------------------------------------------------------------------- */

static void count(const tni_edge *edge)
{
    tni_gradmeta *gm = edge->leaf ? edge->leaf->gm : NULL;
    if (!gm || !gm->sync || gm->sync->off) return;
    gm->awaited++;
    gm->sync->active = true;
}

static void meet(tni_node **ahead, tni_node *node, uint64_t seen)
{
    if (!node || node->mark == seen) return;
    node->mark = seen;
    node->next = *ahead;
    *ahead = node;
}

static void count_uses(const tn_tensor *output)
{
    tni_node *ahead = NULL; /* by node->next */
    uint64_t seen = tni_next_mark();
    meet(&ahead, output->node, seen);
    while (ahead) {
        const tni_node *node = ahead;
        ahead = node->next;
        for (int i = 0; i < node->n_in; i++) {
            count(&node->edge[i]);
            meet(&ahead, node->edge[i].node, seen);
        }
    }
}

tn_status tni_sync_begin(tni_pass *p, tn_tensor *output)
{
    p->synced = true;
    for (tni_sync *s = tni_syncs; s; s = s->next) {
        s->active = s->agreed = false;
        for (int i = 0; i < s->n; i++) s->leaf[i].leaf->gm->awaited = 0;
    }
    count_uses(output);
    /* t is a leaf: its only use is the seed, not an edge, so it is complete at the end */
    if (!output->node) count(&(tni_edge){ .leaf = output });
    tn_status status = TN_OK;
    for (tni_sync *s = tni_syncs; s; s = s->next) {
        tn_status one = s->active ? s->begin(s) : TN_OK;
        if (status == TN_OK) status = one;
    }
    return status;
}

/* ---- during it, and at its end --------------------------------------------------------------- */

tn_status tni_sync_delivered(tni_pass *p, const tni_node *node)
{
    tn_status status = TN_OK;
    if (!p->synced) return TN_OK;
    for (int i = 0; i < node->n_in && status == TN_OK; i++) {
        tni_gradmeta *gm = node->edge[i].leaf ? node->edge[i].leaf->gm : NULL;
        if (!gm || !gm->sync || !gm->sync->active || --gm->awaited > 0) continue;
        if (gm->pending && !gm->hooks.n) status = gm->sync->ready(gm->sync, gm->sync_index);
    }
    return status;
}

/* Room for the average, in a leaf without a gradient in this pass. */
static tn_status receive(tni_pass *p, const tni_sync_leaf *l)
{
    tni_gradmeta *gm = l->leaf->gm;
    if (gm->pending) return TN_OK;
    tn_tensor *own = tn_full_as(l->leaf->shape, 0, l->leaf->dtype, l->leaf->storage->device);
    if (!own) return tni_pending();
    tn_status status = tni_pass_receive(p, gm, l->leaf);
    if (status == TN_OK) gm->pending = tn_keep(own);
    return status;
}

/* Leaves with a gradient from an earlier pass, which is averaged too; or, once s has finished,
 * those for which only other processes have one. */
static tn_status receive_others(tni_pass *p, tni_sync *s, bool finished)
{
    tn_status status = TN_OK;
    for (int i = 0; i < s->n && status == TN_OK; i++) {
        const tn_tensor *leaf = s->leaf[i].leaf;
        bool old = leaf->requires_grad && leaf->gm->grad;
        if (finished ? s->leaf[i].used : old) status = receive(p, &s->leaf[i]);
    }
    return finished ? s->agree(s, status) : status;
}

tn_status tni_sync_finish(tni_pass *p)
{
    tn_status status = TN_OK;
    if (!p->synced) return TN_OK;
    TNI_SCOPED;
    for (int part = 0; part < 3; part++) /* each for all syncs before the next */
        for (tni_sync *s = tni_syncs; s && status == TN_OK; s = s->next)
            if (s->active) status = part == 1 ? s->finish(s) : receive_others(p, s, part == 2);
    for (tni_sync *s = tni_syncs; s && status == TN_OK; s = s->next) s->agreed = s->active;
    return status;
}

tn_status tni_sync_end(tni_pass *p, tn_status status)
{
    for (tni_sync *s = p->synced ? tni_syncs : NULL; s; s = s->next) {
        if (s->active && status != TN_OK) status = s->fail(s, status);
        s->active = false;
    }
    return status;
}

tn_status tni_sync_check(const tni_pass *p, const tn_tensor *leaf)
{
    const tni_sync *s = leaf->gm->sync;
    if (!s || s->off || (p->synced && s->active)) return TN_OK;
    return tni_error(TN_E_STATE,
                     "tn_backward: the gradients of %s are averaged over the ranks of the run, "
                     "which this pass, %s, does not do: want tn_gradients, or the handle switched "
                     "off by tn_data_parallel_set_sync",
                     tni_text(leaf), p->outer ? "started by a hook" : "in another thread");
}

tn_tensor *tni_sync_average(const tni_pass *p, const tni_gradmeta *gm)
{
    if (!p->synced || !gm->sync || !gm->sync->active) return NULL;
    const tni_sync_leaf *l = &gm->sync->leaf[gm->sync_index];
    return l->used ? l->average : NULL;
}
