/*
 * gradients.c - tn_gradients: returns the gradients of given tensors, by a pass that visits only
 * nodes that lead to one of them.
 */
#include "autograd/pass.h"

static _Atomic uint64_t marks = 1;

uint64_t tni_next_mark(void)
{
    return atomic_fetch_add_explicit(&marks, 2, memory_order_relaxed);
}

/* No node with a smaller sequence number leads to an input. */
static uint64_t oldest_of(int n, tn_tensor *const *inputs)
{
    uint64_t oldest = n ? UINT64_MAX : 0;
    for (int i = 0; i < n; i++)
        oldest = TNI_MIN(oldest, inputs[i]->node ? inputs[i]->node->sequence : 0);
    return oldest;
}

/* Puts a node that was not seen before onto the heap. */
static tn_status meet(tni_pass *p, tni_node *node, uint64_t oldest)
{
    uint64_t seen = p->wanted - 1;
    if (!node || node->mark == seen || node->sequence < oldest) return TN_OK;
    TNI_TRY(tni_pass_mark(p, &node->mark, seen));
    return tni_ready_queue_push(&p->ready, node);
}

/* Marks with p->wanted every node that leads to an input: lists the nodes newest first, then goes
 * through the list backwards, so that a node comes after all it was computed from. */
static tn_status mark_ways(tni_pass *p, int n_out, tn_tensor *const *outputs, uint64_t oldest)
{
    tni_node **list = NULL;
    size_t n = 0, capacity = 0;
    tn_status status = TN_OK;
    for (int i = 0; i < n_out && status == TN_OK; i++)
        if (outputs[i]) status = meet(p, outputs[i]->node, 0);
    while (p->ready.n && status == TN_OK) {
        tni_node *node = tni_ready_queue_pop(&p->ready);
        if (!tni_room(&list, &capacity, n, 1, sizeof *list)) status = TN_E_NOMEM;
        if (status == TN_OK) list[n++] = node;
        for (int i = 0; i < node->n_in && status == TN_OK; i++)
            status = meet(p, node->edge[i].node, oldest);
    }
    p->ready.n = 0;
    while (n && status == TN_OK) {
        tni_node *node = list[--n];
        bool wanted = false;
        for (int i = 0; i < node->n_out; i++)
            wanted |= node->gm[i] && node->gm[i]->mark == p->target;
        for (int i = 0; i < node->n_in && !wanted; i++)
            wanted = tni_pass_leads_on(p, &node->edge[i]);
        if (wanted) node->mark = p->wanted;
    }
    tni_room_free(&list, &capacity, sizeof *list);
    return status;
}

static tn_status mark_inputs(tni_pass *p, int n_in, tn_tensor *const *inputs)
{
    tn_status status = TN_OK;
    for (int i = 0; i < n_in && status == TN_OK; i++) {
        if (!inputs[i] || tni_none(inputs[i])) return tni_poison("tn_gradients", "an input");
        if (!inputs[i]->requires_grad)
            return tni_error(TN_E_STATE,
                             "tn_gradients: input %d, %s, does not require grad: want "
                             "tn_set_requires_grad before the forward pass",
                             i, tni_text(inputs[i]));
        tni_gradmeta *gm = tni_gradmeta_of(inputs[i]);
        status = gm ? tni_pass_mark(p, &gm->mark, p->target) : TN_E_NOMEM;
    }
    return status;
}

/* Whether a gradient is the memory of a seed: the seed itself, or a view of it. */
static bool is_seed(const tn_tensor *g, int n, tn_tensor *const *seeds)
{
    for (int i = 0; i < n; i++)
        if (!tni_none(seeds[i]) && seeds[i]->storage == g->storage) return true;
    return false;
}

/* Returned gradients share no memory; those with history share at least none with a seed. An input
 * that is listed twice gets the same tensor: fields are cleared only after all have been read. */
static tn_status hand_out(tni_pass *p, int n_out, tn_tensor *const *seeds, int n_in,
                          tn_tensor *const *inputs, tn_tensor **grads)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        tni_gradmeta *gm = p->receivers[i].gm;
        if (tni_is_shared(gm->pending) && (!p->create || is_seed(gm->pending, n_out, seeds)))
            status = tni_copy_pending(gm);
    }
    for (int i = 0; i < n_in && status == TN_OK; i++) {
        tn_tensor *g = inputs[i]->gm->pending;
        if (!(grads[i] = g ? tn_scope_adopt(tn_keep(g)) : TN_NONE)) status = tni_pending();
    }
    return status;
}

/* A copy of the arrays, since a hook may change the caller's; keeps every tensor alive. */
static tn_tensor **hold(int n_out, tn_tensor *const *outputs, tn_tensor *const *seeds, int n_in,
                        tn_tensor *const *inputs)
{
    size_t n = (size_t)n_out, m = (size_t)n_in;
    tn_tensor **held = tni_alloc((2 * n + m) * sizeof *held);
    if (!held) return NULL;
    for (size_t i = 0; i < n; i++) {
        held[i] = tn_keep(outputs[i]);
        held[n + m + i] = tn_keep(seeds ? seeds[i] : TN_NONE);
    }
    for (size_t i = 0; i < m; i++) held[n + i] = tn_keep(inputs[i]);
    return held;
}

static void let_go(tn_tensor **held, int n_out, int n_in)
{
    size_t n = 2 * (size_t)n_out + (size_t)n_in;
    for (size_t i = 0; i < n; i++) tn_drop(held[i]);
    tni_free(held, n * sizeof *held);
}

tn_status tn_gradients(int n_out, tn_tensor *const *outputs, tn_tensor *const *seeds, int n_in,
                       tn_tensor *const *inputs, tn_tensor **grads, int flags)
{
    TNI_HOLD_TRAPS;
    uint64_t mark = tni_next_mark();
    tni_pass p = { .wanted = mark + 1,
                   .target = mark + 1,
                   .create = flags & TN_CREATE_GRAPH,
                   .retain = flags & (TN_RETAIN_GRAPH | TN_CREATE_GRAPH) };
    bool missing = !outputs || (n_in && (!inputs || !grads));
    if (n_out < 1 || n_in < 0 || missing)
        return tni_error(TN_E_INVALID,
                         "tn_gradients: %d outputs, %d inputs%s: want at least one output, and "
                         "arrays that are not NULL",
                         n_out, n_in, missing ? ", an array that is NULL" : "");
    tn_tensor **held = hold(n_out, outputs, seeds, n_in, inputs);
    if (!held) return TN_E_NOMEM;
    outputs = held;
    inputs = held + n_out;
    seeds = held + n_out + n_in;
    size_t guarded = tni_scope_guard();
    tn_status status = tni_pass_begin(&p, "tn_gradients");
    tn_scope scope = tn_scope_begin();
    if (status == TN_OK) status = mark_inputs(&p, n_in, inputs);
    if (status == TN_OK) status = mark_ways(&p, n_out, outputs, oldest_of(n_in, inputs));
    if (status == TN_OK) status = tni_pass_seed(&p, "tn_gradients", n_out, outputs, seeds);
    tn_scope_end(scope);
    scope = tn_scope_begin();
    if (status == TN_OK) status = tni_pass_run(&p);
    tn_scope_end(scope);
    tni_scope_unguard(guarded);
    if (status == TN_OK) status = hand_out(&p, n_out, seeds, n_in, inputs, grads);
    tni_pass_end(&p);
    for (int i = 0; i < n_in && status != TN_OK; i++) grads[i] = NULL;
    let_go(held, n_out, n_in);
    return status;
}
