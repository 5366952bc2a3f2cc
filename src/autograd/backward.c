/*
 * backward.c - the engine: one pass over the graph from outputs to leaves.
 *
 * Order. Every node has a sequence number larger than those of all nodes it was computed from, so taking
 * the newest pending node first (a heap) means that all gradients into a node have arrived when its turn
 * comes. No counting of dependencies, no recursion: depth costs no stack.
 *
 * Gradients in flight wait in node->pending (per output) or, for leaves, in gm->pending; only when the
 * whole pass has succeeded are the leaves' sums added to their grads. A failed pass changes no grad.
 *
 * Hooks are a user's code and may do anything, so a pass holds what it stands on: its outputs, and by them
 * every node, and its inputs. A hook that starts another pass, over the same graph even, finds the fields
 * of nodes and tensors free: what this pass has in them is put aside for the time.
 *
 * In-place accumulation happens only into a tensor that nobody else can see: one reference to the handle,
 * one to the storage, dense. Everything else is added out of place, so a backward may hand out dy itself, a
 * view of it, or one tensor for two inputs.
 */
#include "autograd/trace.h"
#include "tensor/host.h"
#include "tensor/recorder.h"

/* Who has a gradient in gm->pending: a leaf, or a result whose gradient is retained or asked for. */
typedef struct receiver {
    tni_gradmeta *gm; /* counted */
    tn_tensor *leaf;  /* kept; NULL for a result */
} receiver;

/* What another pass had in a field of a node or a tensor. */
typedef struct put_aside {
    tn_tensor **field;
    tn_tensor *gradient;
} put_aside;

typedef struct old_mark {
    uint64_t *mark, was;
} old_mark;

typedef struct pass {
    struct pass *outer; /* the one whose hook started this one; NULL: none */
    int depth;
    tni_node **heap; /* newest first */
    size_t n, capacity;
    tni_node *node; /* the one that is being differentiated, off the heap */
    receiver *receivers;
    size_t n_receivers, receiver_capacity;
    put_aside *aside; /* the outer pass's gradients */
    size_t n_aside, aside_capacity;
    old_mark *old; /* the outer passes' marks */
    size_t n_old, old_capacity;
    uint64_t
        wanted; /* tn_gradients: mark of nodes on the way to an input; 0: everything is wanted */
    uint64_t target;    /* tn_gradients: gm->mark of the inputs */
    tni_tracer *tracer; /* the thread's, which sees nothing itself while the pass runs */
    bool retain;
    bool create;
    bool was_recording; /* grad mode of the caller */
    tn_dtype was_casting;
} pass;

enum { MOST_NESTED = 64 };

static _Atomic uint64_t marks = 1;
static _Thread_local pass *innermost;

/* ---- the heap ------------------------------------------------------------------------------------- */

/* Room for one more item of `size` bytes. */
static bool reserve(void **items, size_t n, size_t *capacity, size_t size)
{
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *bigger;

    if (n < *capacity) return true;
    bigger = tni_alloc(wanted * size);
    if (!bigger) return false;
    if (*items) {
        memcpy(bigger, *items, n * size);
        tni_free(*items, *capacity * size);
    }
    *items = bigger;
    *capacity = wanted;
    return true;
}

static tn_status push(pass *p, tni_node *node)
{
    void *items = p->heap;
    size_t i;

    if (!reserve(&items, p->n, &p->capacity, sizeof(tni_node *))) return TN_E_NOMEM;
    p->heap = items;
    for (i = p->n++; i > 0; i = (i - 1) / 2) {
        tni_node *parent = p->heap[(i - 1) / 2];

        if (parent->sequence >= node->sequence) break;
        p->heap[i] = parent;
    }
    p->heap[i] = node;
    return TN_OK;
}

static tni_node *pop(pass *p)
{
    tni_node *top = p->heap[0], *last = p->heap[--p->n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= p->n) break;
        if (child + 1 < p->n && p->heap[child + 1]->sequence > p->heap[child]->sequence) child++;
        if (last->sequence >= p->heap[child]->sequence) break;
        p->heap[i] = p->heap[child];
        i = child;
    }
    p->heap[i] = last;
    return top;
}

/* ---- accumulation --------------------------------------------------------------------------------- */

/* Whether somebody besides the engine may see t's memory change. */
static bool is_shared(const tn_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) != 1 ||
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) != 1 ||
           t->storage->borrowed;
}

static bool is_ours_alone(const tn_tensor *t)
{
    return !is_shared(t) && !t->node && tni_is_dense(t);
}

/* *sum += g, in place where nobody can notice. */
static tn_status accumulate(tn_tensor **sum, tn_tensor *g, bool create)
{
    tn_tensor *total;

    if (!*sum) {
        *sum = tn_keep(g);
        return TN_OK;
    }
    if (!create && is_ours_alone(*sum)) return tn_add_(*sum, g);
    total = tn_add(*sum, g);
    if (!total) return tni_pending();
    tn_keep(total);
    tn_drop(*sum);
    *sum = total;
    return TN_OK;
}

/* Before something is put into gm->pending. */
static tn_status add_receiver(pass *p, tni_gradmeta *gm, tn_tensor *leaf)
{
    void *items = p->receivers;

    if (!reserve(&items, p->n_receivers, &p->receiver_capacity, sizeof(receiver)))
        return TN_E_NOMEM;
    p->receivers = items;
    atomic_fetch_add_explicit(&gm->refs, 1, memory_order_relaxed);
    p->receivers[p->n_receivers++] = (receiver){ gm, tn_keep(leaf) };
    return TN_OK;
}

static tn_status deliver_to_leaf(pass *p, tn_tensor *leaf, tn_tensor *g)
{
    tni_gradmeta *gm = tni_gradmeta_of(leaf);

    if (!gm || (!gm->pending && add_receiver(p, gm, leaf) != TN_OK)) return TN_E_NOMEM;
    return accumulate(&gm->pending, g, p->create);
}

static tn_status deliver_to_node(pass *p, tni_node *node, int index, tn_tensor *g)
{
    if (!node->queued) {
        tn_status status = push(p, node);

        if (status != TN_OK) return status;
        node->queued = true;
    }
    return accumulate(&node->pending[index], g, p->create);
}

/* The gradient as the input's owner wants it: its shape (broadcast undone) and its dtype. */
static tn_tensor *fit(tn_tensor *g, const tni_meta *meta)
{
    if (!tni_shape_equal(&g->shape, &meta->shape)) g = tni_sum_to(g, &meta->shape);
    if (g && g->dtype != meta->dtype) g = tn_to_dtype(g, meta->dtype);
    return g;
}

tn_tensor *tni_sum_to(tn_tensor *t, const tn_shape *shape)
{
    int axes[TN_MAX_RANK], n = 0, lead;

    if (!t) return NULL;
    lead = t->shape.rank - shape->rank;
    for (int i = 0; i < t->shape.rank; i++)
        if (i < lead || (shape->size[i - lead] == 1 && t->shape.size[i] != 1)) axes[n++] = i;
    if (n) t = tn_sum(t, axes, n, true);
    return t && !tni_shape_equal(&t->shape, shape) ? tn_reshape(t, *shape) : t;
}

tn_tensor *tni_dy(const tni_grad *g, int i)
{
    if (!tni_none(g->dys[i])) return g->dys[i];
    return tn_full_as(g->out[i].shape, 0, g->out[i].dtype, g->dy->storage->device);
}

/* ---- one node ------------------------------------------------------------------------------------- */

/* *gradient becomes what the hooks make of it. A hook's grad mode and dtype end with it. */
static tn_status run_hooks(const pass *p, const tni_gradmeta *gm, tn_tensor **gradient)
{
    int64_t last = tni_hook_last(&gm->hooks);
    tni_hook hook = { 0 };
    tn_status status = TN_OK;

    while (status == TN_OK && tni_hook_next(&gm->hooks, 0, last, &hook)) {
        tn_tensor *changed = ((tn_grad_hook)hook.call)(*gradient, hook.user);

        tn_set_grad(p->create);
        tni_autocasting = TN_F32;
        status = tni_hook_check("a gradient hook", "", *gradient, changed);
        if (status == TN_OK && changed != *gradient) {
            tn_keep(changed);
            tn_drop(*gradient);
            *gradient = changed;
        }
    }
    return status;
}

static tn_status check_version(const tni_node *node, const tni_kept *kept, const char *role,
                               int index)
{
    uint64_t now = tn_version(kept->alias);
    char which[32] = "";

    if (now == kept->version) return TN_OK;
    if (index >= 0) snprintf(which, sizeof which, " %d", index);
    return tni_error(TN_E_STATE,
                     "tn_backward: %s%s of tn_%s, %s, was changed in place after it was "
                     "recorded (version %llu, now %llu): want it unchanged until backward; "
                     "tn_clone it before the change",
                     role, which, node->op->name, tni_text(kept->alias),
                     (unsigned long long)kept->version, (unsigned long long)now);
}

/* A kept alias as backward may use it: itself, or, when gradients are recorded, tied to its history. */
static tn_tensor *restore(const pass *p, const tni_kept *kept, tni_node *from, tn_tensor *leaf,
                          int index)
{
    tn_tensor *t;

    if (!p->create || (!from && !leaf)) return kept->alias;
    if (leaf) return leaf;
    t = tni_alias_raw(kept->alias);
    if (!t) return NULL;
    atomic_fetch_add_explicit(&from->refs, 1, memory_order_relaxed);
    t->node = from;
    t->out_index = index;
    t->requires_grad = true;
    return tn_scope_adopt(t);
}

static bool leads_on(const pass *p, const tni_edge *edge)
{
    if (!edge->node && !edge->leaf) return false;
    if (!p->wanted) return true;
    if (edge->node) return edge->node->mark == p->wanted;
    return edge->leaf->gm && edge->leaf->gm->mark == p->target;
}

static void release_kept(tni_node *node)
{
    for (int i = 0; i < node->n_in; i++) {
        node->spent |= node->x[i].alias != NULL;
        tn_drop(node->x[i].alias);
        node->x[i].alias = NULL;
    }
    node->spent |= node->y.alias != NULL;
    tn_drop(node->y.alias);
    node->y.alias = NULL;
    for (int i = 0; i < node->n_saved; i++) {
        node->spent |= node->saved[i] != NULL;
        tn_drop(node->saved[i]);
        node->saved[i] = NULL;
    }
}

/* Hooks, retained grads and captures of this node's outputs. */
static tn_status arrive(pass *p, tni_node *node)
{
    tn_status status = TN_OK;

    for (int i = 0; i < node->n_out && status == TN_OK; i++) {
        tni_gradmeta *gm = node->gm[i];

        if (!gm || !node->pending[i]) continue;
        if (gm->hooks.n) status = run_hooks(p, gm, &node->pending[i]);
        if (status == TN_OK && (p->wanted ? gm->mark == p->target : gm->retain)) {
            status = add_receiver(p, gm, NULL);
            if (status == TN_OK) gm->pending = tn_keep(node->pending[i]);
        }
    }
    return status;
}

typedef struct work {
    tn_tensor **dys, **x, **dx;
    bool *need;
} work;

static tn_status differentiate(pass *p, tni_node *node, work *w)
{
    tni_grad g = { .op = node->op,
                   .args = node->args,
                   .n_in = node->n_in,
                   .n_out = node->n_out,
                   .dys = w->dys,
                   .x = w->x,
                   .saved = node->saved,
                   .in = node->in,
                   .out = node->out,
                   .need = w->need,
                   .dx = w->dx };
    bool any = false;
    tn_status status;

    for (int i = 0; i < node->n_in; i++) {
        w->need[i] = leads_on(p, &node->edge[i]);
        w->dx[i] = TN_NONE;
        w->x[i] = NULL;
        any |= w->need[i];
    }
    if (!any) return TN_OK;
    if (node->spent)
        return tni_error(TN_E_STATE,
                         "tn_backward: the graph of tn_%s was used by an earlier backward, which "
                         "freed what it kept: want TN_RETAIN_GRAPH in the first call",
                         node->op->name);
    for (int i = 0; i < node->n_in; i++) {
        const tni_edge *edge = &node->edge[i];

        if (!node->x[i].alias) continue;
        if ((status = check_version(node, &node->x[i], "input", i)) != TN_OK) return status;
        w->x[i] = restore(p, &node->x[i], edge->node, edge->leaf, edge->index);
        if (!w->x[i]) return tni_pending();
    }
    if (node->y.alias) {
        if ((status = check_version(node, &node->y, "the result", -1)) != TN_OK) return status;
        g.y = restore(p, &node->y, node, NULL, 0);
        if (!g.y) return tni_pending();
    }
    for (int i = 0; i < node->n_out; i++) w->dys[i] = node->pending[i] ? node->pending[i] : TN_NONE;
    g.dy = w->dys[0];
    for (int i = 0; i < node->n_out && tni_none(g.dy); i++) g.dy = w->dys[i];
    if ((status = node->op->backward(&g)) != TN_OK) return status;
    if (TNI_UNLIKELY(p->tracer) && p->tracer->differentiated &&
        (status = p->tracer->differentiated(p->tracer, node, &g)) != TN_OK)
        return status;
    for (int i = 0; i < node->n_in; i++) {
        tn_tensor *dx = w->dx[i];
        const tni_edge *edge = &node->edge[i];

        if (!dx) return tni_poison("tn_backward", "a gradient");
        if (!w->need[i] || tni_none(dx)) continue;
        if (!(dx = fit(dx, &node->in[i]))) return tni_pending();
        status = edge->node ? deliver_to_node(p, edge->node, edge->index, dx)
                            : deliver_to_leaf(p, edge->leaf, dx);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

/* Off the heap, with nothing waiting. */
static void leave(tni_node *node)
{
    node->queued = false;
    for (int i = 0; i < node->n_out; i++) {
        tn_drop(node->pending[i]);
        node->pending[i] = NULL;
    }
}

static tn_status step(pass *p, tni_node *node)
{
    enum { FEW = 8 };
    tn_tensor *few[3 * FEW];
    bool few_need[FEW];
    size_t n_in = (size_t)node->n_in, n_out = (size_t)node->n_out;
    size_t nbytes = (n_out + 2 * n_in) * sizeof(tn_tensor *) + n_in * sizeof(bool);
    bool small = n_in <= FEW && n_out <= FEW;
    tn_tensor **block = small ? few : tni_alloc(nbytes);
    tn_scope scope;
    tn_status status;

    if (!block) {
        leave(node);
        return TN_E_NOMEM;
    }
    if (TNI_UNLIKELY(tni_recording) && node->sequence < tni_recording->first_node) {
        if (!small) tni_free(block, nbytes);
        leave(node);
        return tni_record_refuse("tn_backward", "goes through a graph from before it",
                                 "forward and backward in one step");
    }
    work w = { block, block + n_out, block + n_out + n_in,
               small ? few_need : (bool *)(block + n_out + 2 * n_in) };
    scope = tn_scope_begin();
    node->queued = false;
    p->node = node;
    status = arrive(p, node);
    if (TNI_UNLIKELY(p->tracer) && status == TN_OK && p->tracer->arrived)
        status = p->tracer->arrived(p->tracer, node);
    if (status == TN_OK) status = differentiate(p, node, &w);
    leave(node);
    p->node = NULL;
    if (!p->retain) release_kept(node);
    tn_scope_end(scope);
    if (!small) tni_free(block, nbytes);
    return status;
}

/* ---- the pass --------------------------------------------------------------------------------------- */

static tn_status no_history(const pass *p, const char *function, const tn_tensor *output)
{
    if (!p->was_recording)
        return tni_error(TN_E_STATE,
                         "%s: %s has no history and does not require grad, and recording is off in "
                         "this thread: want it computed outside of TN_NO_GRAD, and after "
                         "tn_set_grad(true)",
                         function, tni_text(output));
    return tni_error(TN_E_STATE,
                     "%s: %s has no history and does not require grad: want a result of recorded "
                     "ops on tensors that require grad",
                     function, tni_text(output));
}

/* A seed that the graph may take: of the output's shape, dtype and device. */
static tn_tensor *seed_for(const pass *p, const char *function, tn_tensor *output, tn_tensor *seed)
{
    tn_device device;

    if (!output || tni_none(output)) {
        tni_poison(function, "the output");
        return NULL;
    }
    if (!output->requires_grad) {
        no_history(p, function, output);
        return NULL;
    }
    device = output->storage->device;
    if (!seed) return tni_poisoned_optional(function, "a seed");
    if (tni_none(seed)) {
        if (tni_shape_numel(&output->shape) != 1)
            return tni_fail(TN_E_SHAPE,
                            "%s: %s has %lld elements and no seed was given: want one element, "
                            "or a seed of its shape (tn_backward_from)",
                            function, tni_text(output), (long long)tni_shape_numel(&output->shape));
        return tn_full_as(output->shape, 1, output->dtype, device);
    }
    if (!tni_shape_equal(&seed->shape, &output->shape) || seed->dtype != output->dtype)
        return tni_fail(TN_E_SHAPE,
                        "%s: seed %s of %s for output %s of %s: want the same shape and dtype",
                        function, tni_text(seed), tn_dtype_name(seed->dtype), tni_text(output),
                        tn_dtype_name(output->dtype));
    if (seed->storage->device.type != device.type || seed->storage->device.index != device.index)
        return tni_fail(TN_E_DEVICE,
                        "%s: seed %s and output %s are on different devices: want one device",
                        function, tni_text(seed), tni_text(output));
    return seed;
}

static tn_status seed_outputs(pass *p, const char *function, int n, tn_tensor *const *outputs,
                              tn_tensor *const *seeds)
{
    tn_status status = TN_OK;

    for (int i = 0; i < n && status == TN_OK; i++) {
        tn_tensor *seed = seed_for(p, function, outputs[i], seeds ? seeds[i] : TN_NONE);

        if (!seed) return tni_pending();
        if (outputs[i]->node)
            status = deliver_to_node(p, outputs[i]->node, outputs[i]->out_index, seed);
        else
            status = deliver_to_leaf(p, outputs[i], seed);
    }
    return status;
}

static tn_status finished(const pass *p, const receiver *r)
{
    if (TNI_LIKELY(!p->tracer) || !p->tracer->finished) return TN_OK;
    return p->tracer->finished(p->tracer, r->leaf, r->gm->pending);
}

static tn_status run(pass *p)
{
    tn_status status = TN_OK;

    p->tracer = tni_trace_suspend();
    while (p->n && status == TN_OK) status = step(p, pop(p));
    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        receiver *r = &p->receivers[i];

        if (!r->leaf) continue;
        if (r->gm->hooks.n) status = run_hooks(p, r->gm, &r->gm->pending);
        if (status == TN_OK) status = finished(p, r);
    }
    tni_tracing = p->tracer;
    return status;
}

/* ---- a pass within a pass ---------------------------------------------------------------------------- */

static void put(pass *p, tn_tensor **field)
{
    if (!*field) return;
    p->aside[p->n_aside++] = (put_aside){ field, *field };
    *field = NULL;
}

static void put_outputs(pass *p, tni_node *node)
{
    for (int i = 0; i < node->n_out; i++) put(p, &node->pending[i]);
}

static tn_status put_outer_aside(pass *p)
{
    const pass *outer = p->outer;
    size_t n = outer->n_receivers + (outer->node ? (size_t)outer->node->n_out : 0);

    for (size_t i = 0; i < outer->n; i++) n += (size_t)outer->heap[i]->n_out;
    if (n == 0) return TN_OK;
    p->aside = tni_alloc(n * sizeof *p->aside);
    if (!p->aside) return TN_E_NOMEM;
    p->aside_capacity = n;
    for (size_t i = 0; i < outer->n; i++) {
        put_outputs(p, outer->heap[i]);
        outer->heap[i]->queued = false;
    }
    if (outer->node) put_outputs(p, outer->node);
    for (size_t i = 0; i < outer->n_receivers; i++) put(p, &outer->receivers[i].gm->pending);
    return TN_OK;
}

/* Sets a mark that an outer pass may still want as it was. */
static tn_status set_mark(pass *p, uint64_t *mark, uint64_t to)
{
    void *items = p->old;

    if (p->outer) {
        if (!reserve(&items, p->n_old, &p->old_capacity, sizeof(old_mark))) return TN_E_NOMEM;
        p->old = items;
        p->old[p->n_old++] = (old_mark){ mark, *mark };
    }
    *mark = to;
    return TN_OK;
}

/* Until it ends, grad mode is the pass's and autocast is off: backward runs in the dtypes that forward left. */
static tn_status begin(pass *p, const char *function)
{
    p->outer = innermost;
    p->depth = p->outer ? p->outer->depth + 1 : 0;
    p->was_recording = tn_set_grad(p->create);
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

/* Leaves nothing of the pass behind. */
static void end(pass *p)
{
    while (p->n) leave(p->heap[--p->n]);
    for (size_t i = 0; i < p->n_receivers; i++) {
        receiver *r = &p->receivers[i];

        tn_drop(r->gm->pending);
        r->gm->pending = NULL;
    }
    while (p->n_old--) *p->old[p->n_old].mark = p->old[p->n_old].was;
    for (size_t i = 0; i < p->n_aside; i++) *p->aside[i].field = p->aside[i].gradient;
    for (size_t i = 0; p->outer && i < p->outer->n; i++) p->outer->heap[i]->queued = true;
    innermost = p->outer;
    tni_autocasting = p->was_casting;
    tn_set_grad(p->was_recording);
    /* nothing is looked at any more: what goes now may call a user's release */
    for (size_t i = 0; i < p->n_receivers; i++) {
        tni_gradmeta_drop(p->receivers[i].gm);
        tn_drop(p->receivers[i].leaf);
    }
    tni_free(p->heap, p->capacity * sizeof *p->heap);
    tni_free(p->receivers, p->receiver_capacity * sizeof *p->receivers);
    tni_free(p->aside, p->aside_capacity * sizeof *p->aside);
    tni_free(p->old, p->old_capacity * sizeof *p->old);
}

/* ---- grads --------------------------------------------------------------------------------------------- */

static tn_status copy_pending(tni_gradmeta *gm)
{
    tn_tensor *copy = tn_clone(gm->pending);

    if (!copy) return tni_pending();
    tn_keep(copy);
    tn_drop(gm->pending);
    gm->pending = copy;
    return TN_OK;
}

/* Makes gm->pending a tensor that may become a grad: alone, dense, without history. */
static tn_status own(tni_gradmeta *gm)
{
    return is_ours_alone(gm->pending) ? TN_OK : copy_pending(gm);
}

/* Everything that can fail first, then the commit. A grad that the user can see is replaced, not changed. */
static tn_status add_to_grads(pass *p)
{
    tn_status status = TN_OK;

    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        receiver *r = &p->receivers[i];
        tn_tensor *grad = r->gm->grad;

        status = own(r->gm);
        if (status == TN_OK && grad && r->leaf && TNI_UNLIKELY(tni_recording) &&
            !tni_record_is_made(grad))
            status = tni_record_refuse("tn_backward", "adds to a gradient from before it",
                                       "tn_optim_zero_grad in the step, before tn_backward");
        if (status == TN_OK && grad) status = tn_add_(r->gm->pending, grad);
        if (status == TN_OK && grad && r->leaf) status = finished(p, r);
    }
    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        receiver *r = &p->receivers[i];

        if (r->leaf && TNI_UNLIKELY(tni_recording)) tni_record_leaf(r->leaf, true);
        tn_drop(r->gm->grad);
        r->gm->grad = r->gm->pending;
        r->gm->pending = NULL;
    }
    return status;
}

tn_status tn_backward_from(tn_tensor *output, tn_tensor *seed, int flags)
{
    TNI_HOLD_TRAPS;
    pass p = { .retain = flags & TN_RETAIN_GRAPH };
    tn_scope scope;
    tn_status status;

    if (!output) return tni_poison("tn_backward_from", "output");
    if (!seed) {
        tni_poisoned_optional("tn_backward_from", "seed");
        return tni_pending();
    }
    if (flags & TN_CREATE_GRAPH)
        return tni_error(TN_E_INVALID,
                         "tn_backward_from: TN_CREATE_GRAPH: want tn_gradients, which returns "
                         "gradients with history; a grad never has one");
    tn_keep(output);
    status = begin(&p, "tn_backward");
    scope = tn_scope_begin();
    if (status == TN_OK) status = seed_outputs(&p, "tn_backward", 1, &output, &seed);
    tn_scope_end(scope);
    scope = tn_scope_begin();
    if (status == TN_OK) status = run(&p);
    if (status == TN_OK) status = add_to_grads(&p);
    end(&p);
    tn_scope_end(scope);
    tn_drop(output);
    return status;
}

tn_status tn_backward(tn_tensor *loss)
{
    return loss ? tn_backward_from(loss, TN_NONE, 0) : tni_poison("tn_backward", "loss");
}

/* ---- gradients as values ------------------------------------------------------------------------------ */

/* No node with a smaller sequence number leads to an input. */
static uint64_t oldest_of(int n, tn_tensor *const *inputs)
{
    uint64_t oldest = n ? UINT64_MAX : 0;

    for (int i = 0; i < n; i++)
        oldest = TNI_MIN(oldest, inputs[i]->node ? inputs[i]->node->sequence : 0);
    return oldest;
}

/* Marks with p->wanted every node from which an input can be reached: nodes newest first into a list, then
 * back through it, so that a node is judged after all it was computed from. */
static tn_status mark_ways(pass *p, int n_out, tn_tensor *const *outputs, uint64_t oldest)
{
    uint64_t seen = p->wanted - 1;
    tni_node **list = NULL;
    size_t n = 0, capacity = 0;
    tn_status status = TN_OK;

    for (int i = 0; i < n_out && status == TN_OK; i++) {
        if (outputs[i] && outputs[i]->node && outputs[i]->node->mark != seen) {
            status = set_mark(p, &outputs[i]->node->mark, seen);
            if (status == TN_OK) status = push(p, outputs[i]->node);
        }
    }
    while (p->n && status == TN_OK) {
        tni_node *node = pop(p);
        void *items = list;

        if (!reserve(&items, n, &capacity, sizeof *list)) {
            status = TN_E_NOMEM;
            break;
        }
        list = (tni_node **)items;
        list[n++] = node;
        for (int i = 0; i < node->n_in && status == TN_OK; i++) {
            tni_node *from = node->edge[i].node;

            if (!from || from->mark == seen || from->sequence < oldest) continue;
            status = set_mark(p, &from->mark, seen);
            if (status == TN_OK) status = push(p, from);
        }
    }
    p->n = 0;
    while (n && status == TN_OK) {
        tni_node *node = list[--n];
        bool wanted = false;

        for (int i = 0; i < node->n_out; i++)
            wanted |= node->gm[i] && node->gm[i]->mark == p->target;
        for (int i = 0; i < node->n_in && !wanted; i++) wanted = leads_on(p, &node->edge[i]);
        if (wanted) node->mark = p->wanted;
    }
    tni_free(list, capacity * sizeof *list);
    return status;
}

static tn_status mark_inputs(pass *p, int n_in, tn_tensor *const *inputs)
{
    tn_status status = TN_OK;

    for (int i = 0; i < n_in && status == TN_OK; i++) {
        tni_gradmeta *gm;

        if (!inputs[i] || tni_none(inputs[i])) return tni_poison("tn_gradients", "an input");
        if (!inputs[i]->requires_grad)
            return tni_error(TN_E_STATE,
                             "tn_gradients: input %d, %s, does not require grad: want "
                             "tn_set_requires_grad before the forward pass",
                             i, tni_text(inputs[i]));
        gm = tni_gradmeta_of(inputs[i]);
        status = gm ? set_mark(p, &gm->mark, p->target) : TN_E_NOMEM;
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

/* What is handed out shares memory with nothing; with history, at least with no seed. The same input again
 * gets the same tensor: nothing is cleared before all have been looked at. */
static tn_status hand_out(pass *p, int n_out, tn_tensor *const *seeds, int n_in,
                          tn_tensor *const *inputs, tn_tensor **grads)
{
    tn_status status = TN_OK;

    for (size_t i = 0; i < p->n_receivers && status == TN_OK; i++) {
        tni_gradmeta *gm = p->receivers[i].gm;

        if (is_shared(gm->pending) && (!p->create || is_seed(gm->pending, n_out, seeds)))
            status = copy_pending(gm);
    }
    for (int i = 0; i < n_in && status == TN_OK; i++) {
        tn_tensor *g = inputs[i]->gm->pending;

        grads[i] = g ? tn_scope_adopt(tn_keep(g)) : TN_NONE;
        if (!grads[i]) status = tni_pending();
    }
    return status;
}

/* The arrays as they were, whatever a hook does to the caller's; every tensor is kept. */
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
    uint64_t mark = atomic_fetch_add_explicit(&marks, 2, memory_order_relaxed);
    pass p = { .wanted = mark + 1,
               .target = mark + 1,
               .create = flags & TN_CREATE_GRAPH,
               .retain = flags & (TN_RETAIN_GRAPH | TN_CREATE_GRAPH) };
    tn_tensor **held;
    tn_scope scope;
    tn_status status;

    if (n_out < 1 || !outputs || n_in < 0 || (n_in && (!inputs || !grads)))
        return tni_error(TN_E_INVALID,
                         "tn_gradients: %d outputs, %d inputs%s: want at least one output, and "
                         "arrays that are not NULL",
                         n_out, n_in,
                         !outputs || (n_in && (!inputs || !grads)) ? ", an array that is NULL"
                                                                   : "");
    held = hold(n_out, outputs, seeds, n_in, inputs);
    if (!held) return TN_E_NOMEM;
    outputs = held;
    inputs = held + n_out;
    seeds = held + n_out + n_in;
    status = begin(&p, "tn_gradients");
    scope = tn_scope_begin();
    if (status == TN_OK) status = mark_inputs(&p, n_in, inputs);
    if (status == TN_OK) status = mark_ways(&p, n_out, outputs, oldest_of(n_in, inputs));
    if (status == TN_OK) status = seed_outputs(&p, "tn_gradients", n_out, outputs, seeds);
    tn_scope_end(scope);
    scope = tn_scope_begin();
    if (status == TN_OK) status = run(&p);
    tn_scope_end(scope);
    if (status == TN_OK) status = hand_out(&p, n_out, seeds, n_in, inputs, grads);
    end(&p);
    for (int i = 0; i < n_in && status != TN_OK; i++) grads[i] = NULL;
    let_go(held, n_out, n_in);
    return status;
}
