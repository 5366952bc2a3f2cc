/*
 * backward.c - the engine: one pass over the graph from outputs to leaves.
 *
 * Order. Every node has a larger sequence number than all nodes it was computed from. The engine
 * takes the newest pending node first (a heap), so all gradients into a node have arrived when its
 * turn comes. It counts no dependencies and doesn't recurse: depth costs no stack.
 *
 * Gradients in flight wait in node->pending (per output) or, for leaves, in gm->pending; only when
 * the whole pass has succeeded are the leaves' sums added to their grads. A failed pass changes no
 * grad.
 *
 * Hooks are user code and may do anything, so a pass keeps references to its outputs (and through
 * them to every node) and to its inputs. A hook may start another pass (nested.c).
 *
 * In-place accumulation happens only into a tensor that nobody else can see: one reference to the
 * handle, one to the storage, all of it. Everything else is added out of place, so a backward may
 * hand out dy itself, a view of it, or one tensor for two inputs.
 */
#include "autograd/sync.h"

/* ---- accumulation ---------------------------------------------------------------------------- */

bool tni_is_shared(const tn_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) != 1 ||
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) != 1 ||
           t->storage->borrowed || tni_bytes_of(t) != t->storage->nbytes;
}

bool tni_is_ours(const tn_tensor *t)
{
    return !tni_is_shared(t) && !t->node && tni_is_dense(t);
}

/* *sum += g, in place where nobody can notice. take: g is not used again in this step. */
static tn_status accumulate(const tni_pass *p, tn_tensor **sum, tn_tensor *g, bool take)
{
    bool fits = *sum && (*sum)->dtype == g->dtype; /* else f32 comes to a low one (fit) */
    if (fits && !p->create && *sum != g && tni_is_ours(*sum)) return tn_add_(*sum, g);
    tn_tensor *total = *sum ? tn_add(*sum, g) : g;
    if (!total) return tni_pending();
    total = take || *sum ? tni_scope_take(p->scope, total) : tn_keep(total);
    tn_drop(*sum);
    *sum = total;
    return TN_OK;
}

tn_status tni_pass_receive(tni_pass *p, tni_gradmeta *gm, tn_tensor *leaf)
{
    if (!tni_room(&p->receivers, &p->receiver_capacity, p->n_receivers, 1, sizeof(tni_receiver)))
        return TN_E_NOMEM;
    atomic_fetch_add_explicit(&gm->refs, 1, memory_order_relaxed);
    p->receivers[p->n_receivers++] = (tni_receiver){ gm, tn_keep(leaf) };
    return TN_OK;
}

tn_status tni_pass_deliver(tni_pass *p, const tni_edge *to, tn_tensor *g, bool take)
{
    if (!to->node) {
        tni_gradmeta *gm = tni_gradmeta_of(to->leaf);
        if (!gm || (!gm->pending && tni_pass_receive(p, gm, to->leaf) != TN_OK)) return TN_E_NOMEM;
        return accumulate(p, &gm->pending, g, take);
    }
    if (!to->node->queued) TNI_TRY(tni_ready_queue_push(&p->ready, to->node));
    to->node->queued = true;
    return accumulate(p, &to->node->pending[to->index], g, take);
}

/* Sums t down to shape (undoing a broadcast). */
static tn_tensor *sum_to(tn_tensor *t, const tn_shape *shape)
{
    int n = 0;
    if (!t) return NULL;
    int lead = t->shape.rank - shape->rank;
    int axes[TN_MAX_RANK];
    for (int i = 0; i < t->shape.rank; i++)
        if (i < lead || (shape->size[i - lead] == 1 && t->shape.size[i] != 1)) axes[n++] = i;
    if (n) t = tn_sum(t, axes, n, true);
    return t && !tni_shape_equal(&t->shape, shape) ? tn_reshape(t, *shape) : t;
}

/* Whether a gradient of bf16 or f16 may go there as it is, for a result of f32: to an op that takes
 * it, as the first one, and while no watcher looks. */
static bool goes_low(const tni_edge *to, tn_dtype dtype)
{
    const tni_node *node = to->node;
    return tni_is_half(dtype) && node && node->op->takes_low && !node->pending[to->index] &&
           !tni_composed() && !tni_notifies_gradients();
}

/* The gradient in the input's shape (broadcast undone) and dtype. */
static tn_tensor *fit(tn_tensor *g, const tni_node *node, int i)
{
    const tni_meta *meta = &node->in[i];
    if (!tni_shape_equal(&g->shape, &meta->shape)) g = sum_to(g, &meta->shape);
    if (!g || g->dtype == meta->dtype) return g;
    if (meta->dtype == TN_F32 && goes_low(&node->edge[i], g->dtype)) return g;
    return tn_to_dtype(g, meta->dtype);
}

tn_tensor *tni_dy(const tni_grad *g, int i)
{
    if (!tni_none(g->dys[i])) return g->dys[i];
    return tn_full_as(g->out[i].shape, 0, g->out[i].dtype, g->dy->storage->device);
}

tn_tensor *tni_sum_so_far(const tni_grad *g)
{
    const tni_edge *to = g->edge;
    if (tni_composed() || (!to->node && !to->leaf->gm)) return NULL;
    tn_tensor *sum = to->node ? to->node->pending[to->index] : to->leaf->gm->pending;
    bool here = sum && tni_same_device(sum->storage->device, g->dy->storage->device);
    return here && tni_is_ours(sum) ? sum : NULL;
}

tn_status tni_widen_grad(tni_grad *g)
{
    bool made = (g->dy = tni_wide(g->dy)) != NULL;
    for (int i = 0; i < g->n_in && made; i++)
        if (g->x[i]) made = (g->x[i] = tni_wide(g->x[i])) != NULL;
    if (g->y && made) made = (g->y = tni_wide(g->y)) != NULL;
    return made ? TN_OK : tni_pending();
}

/* ---- one node -------------------------------------------------------------------------------- */

tn_status tni_hold(tn_tensor **held, tn_tensor *t)
{
    if (!t) return tni_pending();
    tn_keep(t);
    tn_drop(*held);
    *held = t;
    return TN_OK;
}

/* Runs the hooks; *gradient becomes their result. A hook's changes of modes end with it. */
static tn_status run_hooks(const tni_pass *p, const tni_gradmeta *gm, tn_tensor **gradient,
                           tni_hooked now)
{
    int64_t last = tni_hook_last(&gm->hooks);
    tni_hook hook = { 0 };
    tn_status status = TN_OK;
    now.of = (int)(gm->hooks.n - gm->hooks.removed);
    TNI_NOTIFY_OF(hooked, &now, *gradient);
    while (status == TN_OK && tni_hook_next(&gm->hooks, 0, last, &hook)) {
        tn_tensor *changed = ((tn_grad_hook)hook.call)(*gradient, hook.user);
        tn_set_grad_enabled(p->create);
        tni_autocasting = TN_F32;
        status = tni_hook_check("a gradient hook", "", *gradient, changed);
        if (status == TN_OK) status = tni_hold(gradient, changed);
        now.number++;
        if (status == TN_OK) TNI_NOTIFY_OF(hooked, &now, *gradient);
    }
    return status;
}

bool tni_pass_leads_on(const tni_pass *p, const tni_edge *edge)
{
    if (!edge->node && !edge->leaf) return false;
    if (!p->wanted) return true;
    if (edge->node) return edge->node->mark == p->wanted;
    return edge->leaf->gm && edge->leaf->gm->mark == p->target;
}

/* Hooks, retained grads and captures of this node's outputs. */
static tn_status arrive(tni_pass *p, tni_node *node)
{
    tn_status status = TN_OK;
    for (int i = 0; i < node->n_out && status == TN_OK; i++) {
        tni_gradmeta *gm = node->gm[i];
        if (!gm || !node->pending[i]) continue;
        tni_hooked result = { .node = node, .output = i };
        /* one in half precision (goes_low) is seen in the result's dtype */
        status = tni_hold(&node->pending[i], tn_to_dtype(node->pending[i], node->out[i].dtype));
        if (status == TN_OK && gm->hooks.n) status = run_hooks(p, gm, &node->pending[i], result);
        if (status == TN_OK && (p->wanted ? gm->mark == p->target : gm->retain)) {
            status = tni_pass_receive(p, gm, NULL);
            if (status == TN_OK) gm->pending = tn_keep(node->pending[i]);
        }
    }
    return status;
}

static tn_status run_kernel(tni_grad *g)
{
    unsigned dense = g->op->dense_grad;
    for (int i = 0; i < g->n_in; i++)
        if (dense & TNI_X(i) && g->x[i] && !(g->x[i] = tni_dense(g->x[i]))) return tni_pending();
    if (dense & TNI_DY && !(g->dy = tni_dense(g->dy))) return tni_pending();
    bool adds = g->op->adds && g->need[0] && !tni_notifies_gradients();
    tn_tensor *sum = adds ? tni_sum_so_far(g) : NULL;
    if (sum && (sum->dtype != g->in[0].dtype || tni_is_half(sum->dtype))) sum = NULL;
    g->adds = sum != NULL;
    for (int i = 0; i < g->n_in; i++) {
        if (!g->need[i]) continue;
        bool there = i == 0 && sum;
        g->dx[i] =
            there ? sum : tni_new_dense(&g->in[i].shape, g->in[i].dtype, g->dy->storage->device);
        if (!g->dx[i]) return tni_pending();
    }
    tn_status status = g->op->kernel_grad(g);
    if (sum) g->edge = NULL; /* it is there */
    return status;
}

/* block, need: room for n_out + 2 n_in tensors and for n_in */
static tn_status differentiate(tni_pass *p, tni_node *node, tn_tensor **block, bool *need)
{
    int n_in = node->n_in, n_out = node->n_out;
    tn_tensor **dys = block, **x = dys + n_out, **dx = x + n_in;
    bool any = false;
    for (int i = 0; i < n_in; i++) {
        need[i] = tni_pass_leads_on(p, &node->edge[i]);
        any |= need[i];
        dx[i] = TN_NONE;
        x[i] = NULL;
    }
    if (!any) return TN_OK;
    if (node->spent)
        return tni_error(TN_E_STATE,
                         "tn_backward: the graph of %s%s was used by an earlier backward, which "
                         "freed what it kept: want TN_RETAIN_GRAPH in the first call",
                         tni_op_prefix(node->op), node->op->name);
    tni_grad g = { .op = node->op,
                   .args = node->args,
                   .args_size = tni_args_size(node),
                   .n_in = n_in,
                   .n_out = n_out,
                   .dys = dys,
                   .x = x,
                   .saved = node->saved,
                   .in = node->in,
                   .out = node->out,
                   .need = need,
                   .edge = node->edge,
                   .dx = dx };
    for (int i = n_out - 1; i >= 0; i--) {
        dys[i] = node->pending[i] ? node->pending[i] : TN_NONE;
        if (node->pending[i]) g.dy = node->pending[i];
    }
    tn_status status = tni_saved_read(p, node, &g);
    bool kernel = g.op->kernel_grad && !tni_composed() && tni_reads(g.op, n_in, need) != 0;
    if (status == TN_OK) status = kernel ? run_kernel(&g) : node->op->backward(&g);
    if (status != TN_OK) return status;
    for (int i = 0; i < n_in; i++)
        if (!dx[i]) return tni_poison("tn_backward", "a gradient");
    if ((status = TNI_NOTIFY(differentiated, node, &g)) != TN_OK) return status;
    for (int i = 0; i < n_in; i++) {
        if (!need[i] || tni_none(dx[i])) continue;
        tn_tensor *share = fit(dx[i], node, i);
        if (!share) return tni_pending();
        bool last = i == n_in - 1; /* what earlier ones gave may come again */
        if (TNI_LIKELY(g.edge || i > 0)) TNI_TRY(tni_pass_deliver(p, &node->edge[i], share, last));
        TNI_NOTIFY_OF(delivered, node, i, dx[i], share);
    }
    return TNI_UNLIKELY(tni_syncs) ? tni_sync_delivered(p, node) : TN_OK;
}

void tni_leave(tni_node *node)
{
    node->queued = false;
    for (int i = 0; i < node->n_out; i++) {
        tn_drop(node->pending[i]);
        node->pending[i] = NULL;
    }
}

static tn_status step(tni_pass *p, tni_node *node)
{
    tn_tensor *few[24];
    bool few_need[8];
    size_t n_in = (size_t)node->n_in, n_out = (size_t)node->n_out, n = n_out + 2 * n_in;
    size_t nbytes = n * sizeof(tn_tensor *) + n_in * sizeof(bool);
    bool small = n_in <= 8 && n <= 24;
    tn_tensor **block = small ? few : tni_alloc(nbytes);
    if (!block) {
        tni_leave(node);
        return TN_E_NOMEM;
    }
    node->queued = false;
    p->node = node;
    tn_status status = arrive(p, node);
    if (status == TN_OK) status = TNI_NOTIFY(arrived, node);
    if (status == TN_OK)
        status = differentiate(p, node, block, small ? few_need : (bool *)(block + n));
    tni_leave(node);
    p->node = NULL;
    if (!p->retain) tni_saved_free(node);
    if (!small) tni_free(block, nbytes);
    return status;
}

/* ---- the pass -------------------------------------------------------------------------------- */

tn_status tni_pass_run(tni_pass *p)
{
    tn_status status = TN_OK;
    tni_watch_suspended++;
    TNI_NOTIFY_OF(begins, p);
    p->scope = tn_scope_begin(); /* of one step after the other */
    while (p->ready.n && status == TN_OK) {
        status = step(p, tni_ready_queue_pop(&p->ready));
        if (!tni_scope_clear(p->scope)) p->scope = tn_scope_begin(); /* a hook ended it */
    }
    tn_scope_end(p->scope);
    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        tni_receiver *r = &p->receivers[i];
        if (!r->leaf) continue;
        tni_hooked leaf = { .leaf = r->leaf };
        if (r->gm->hooks.n) status = run_hooks(p, r->gm, &r->gm->pending, leaf);
        if (status == TN_OK) status = TNI_NOTIFY(finished, r->leaf, r->gm->pending);
    }
    TNI_NOTIFY_OF(ends, p, status);
    tni_watch_suspended--;
    return status;
}

/* ---- grads ----------------------------------------------------------------------------------- */

tn_status tni_copy_pending(tni_gradmeta *gm)
{
    return tni_hold(&gm->pending, tn_clone(gm->pending));
}

/* Makes sums fit to become grads: alone, dense, without history. Copies need memory, so they are
 * made before other processes rely on this pass. */
static tn_status own_all(const tni_pass *p)
{
    for (size_t i = 0; i < p->n_receivers; i++)
        if (!tni_is_ours(p->receivers[i].gm->pending))
            TNI_TRY(tni_copy_pending(p->receivers[i].gm));
    return TN_OK;
}

/* First everything that can fail, then the commit. A grad that the user can see is replaced, not
 * changed. */
static tn_status add_to_grads(tni_pass *p)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        tni_receiver *r = &p->receivers[i];
        tn_tensor *grad = r->gm->grad, *average = tni_sync_average(p, r->gm);
        if (r->leaf) status = tni_sync_check(p, r->leaf);
        if (status == TN_OK && r->leaf) status = TNI_NOTIFY(grad_changes, r->leaf, true);
        if (status == TN_OK && average)
            status = tn_copy_(r->gm->pending, average); /* of the sums with the old grads */
        else if (status == TN_OK && grad)
            status = tn_add_(r->gm->pending, grad);
        if (status == TN_OK && average)
            TNI_NOTIFY_OF(averaged, r->leaf, r->gm->pending, r->gm->sync->ranks);
        if (status == TN_OK && grad && r->leaf)
            status = TNI_NOTIFY(finished, r->leaf, r->gm->pending);
    }
    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        tni_gradmeta *gm = p->receivers[i].gm;
        bool just_used = gm->grad && gm->used == 1 + tn_version(gm->grad);
        bool reused = just_used || tni_grad_reused(gm);
        gm->used = 0;
        gm->reused = reused ? 1 + tn_version(gm->pending) : 0;
        if (gm->sync) gm->sync->leaf[gm->sync_index].own = !tni_sync_average(p, gm);
        tn_drop(gm->grad);
        gm->grad = gm->pending;
        gm->pending = NULL;
    }
    return status;
}

tn_status tn_backward_from(tn_tensor *output, tn_tensor *seed, int flags)
{
    TNI_HOLD_TRAPS;
    tni_pass p = { .retain = flags & TN_RETAIN_GRAPH };
    if (!output) return tni_poison("tn_backward_from", "output");
    if (!seed) {
        tni_poisoned_optional("tn_backward_from", "seed");
        return tni_pending();
    }
    if (flags & TN_CREATE_GRAPH)
        return tni_error(TN_E_INVALID,
                         "tn_backward_from: TN_CREATE_GRAPH: want tn_gradients, which returns "
                         "gradients with history; a grad never has one");
    TNI_SCOPES_STAY;
    tn_keep(output);
    tn_status status = tni_pass_begin(&p, "tn_backward");
    tn_scope scope = tn_scope_begin();
    if (status == TN_OK && tni_syncs && !p.outer) status = tni_sync_begin(&p, output);
    if (status == TN_OK) status = tni_pass_seed(&p, "tn_backward", 1, &output, &seed);
    tn_scope_end(scope);
    scope = tn_scope_begin();
    if (status == TN_OK) status = tni_pass_run(&p);
    if (status == TN_OK) status = own_all(&p);
    if (status == TN_OK) status = tni_sync_finish(&p);
    if (status == TN_OK) status = add_to_grads(&p);
    status = tni_sync_end(&p, status);
    tni_pass_end(&p);
    tn_scope_end(scope);
    tn_drop(output);
    return status;
}

tn_status tn_backward(tn_tensor *loss)
{
    return loss ? tn_backward_from(loss, TN_NONE, 0) : tni_poison("tn_backward", "loss");
}
