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
 * In-place accumulation happens only into a tensor that nobody else can see: one reference to the handle,
 * one to the storage, dense. Everything else is added out of place, so a backward may hand out dy itself, a
 * view of it, or one tensor for two inputs.
 */
#include "autograd/trace.h"
#include "tensor/recorder.h"

typedef struct pass {
    tni_node **heap; /* newest first */
    size_t n, capacity;
    tn_tensor **leaves; /* those with gm->pending, kept */
    size_t n_leaves, leaf_capacity;
    uint64_t wanted; /* tn_gradients: mark of nodes on the way to an input; 0: everything is wanted */
    uint64_t target; /* tn_gradients: gm->mark of the inputs */
    tni_tracer *tracer; /* the thread's, which sees nothing itself while the pass runs */
    bool retain;
    bool create;
} pass;

static _Atomic uint64_t marks = 1;

/* ---- the heap ------------------------------------------------------------------------------------- */

static bool reserve(void **items, size_t n, size_t *capacity)
{
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *bigger;

    if (n < *capacity)
        return true;
    bigger = tni_alloc(wanted * sizeof(void *));
    if (!bigger)
        return false;
    if (*items) {
        memcpy(bigger, *items, n * sizeof(void *));
        tni_free(*items, *capacity * sizeof(void *));
    }
    *items = bigger;
    *capacity = wanted;
    return true;
}

static tn_status push(pass *p, tni_node *node)
{
    void *items = p->heap;
    size_t i;

    if (!reserve(&items, p->n, &p->capacity))
        return TN_E_NOMEM;
    p->heap = items;
    for (i = p->n++; i > 0; i = (i - 1) / 2) {
        tni_node *parent = p->heap[(i - 1) / 2];

        if (parent->sequence >= node->sequence)
            break;
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

        if (child >= p->n)
            break;
        if (child + 1 < p->n && p->heap[child + 1]->sequence > p->heap[child]->sequence)
            child++;
        if (last->sequence >= p->heap[child]->sequence)
            break;
        p->heap[i] = p->heap[child];
        i = child;
    }
    p->heap[i] = last;
    return top;
}

/* ---- accumulation --------------------------------------------------------------------------------- */

static bool is_ours_alone(const tn_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && !t->storage->borrowed &&
           !t->node && tni_is_dense(t);
}

/* *sum += g, in place where nobody can notice. */
static tn_status accumulate(tn_tensor **sum, tn_tensor *g, bool create)
{
    tn_tensor *total;

    if (!*sum) {
        *sum = tn_keep(g);
        return TN_OK;
    }
    if (!create && is_ours_alone(*sum))
        return tn_add_(*sum, g);
    total = tn_add(*sum, g);
    if (!total)
        return tni_pending();
    tn_keep(total);
    tn_drop(*sum);
    *sum = total;
    return TN_OK;
}

static tn_status deliver_to_leaf(pass *p, tn_tensor *leaf, tn_tensor *g)
{
    tni_gradmeta *gm = tni_gradmeta_of(leaf);
    void *items = p->leaves;

    if (!gm)
        return TN_E_NOMEM;
    if (!gm->pending) {
        if (!reserve(&items, p->n_leaves, &p->leaf_capacity))
            return TN_E_NOMEM;
        p->leaves = (tn_tensor **)items;
        p->leaves[p->n_leaves++] = tn_keep(leaf);
    }
    return accumulate(&gm->pending, g, p->create);
}

static tn_status deliver_to_node(pass *p, tni_node *node, int index, tn_tensor *g)
{
    bool queued = false;

    for (int i = 0; i < node->n_out; i++)
        queued |= node->pending[i] != NULL;
    if (!queued) {
        tn_status status = push(p, node);

        if (status != TN_OK)
            return status;
    }
    return accumulate(&node->pending[index], g, p->create);
}

/* The gradient as the input's owner wants it: its shape (broadcast undone) and its dtype. */
static tn_tensor *fit(tn_tensor *g, const tni_meta *meta)
{
    if (!tni_shape_equal(&g->shape, &meta->shape))
        g = tni_sum_to(g, &meta->shape);
    if (g && g->dtype != meta->dtype)
        g = tn_to_dtype(g, meta->dtype);
    return g;
}

tn_tensor *tni_sum_to(tn_tensor *t, const tn_shape *shape)
{
    int axes[TN_MAX_RANK], n = 0, lead;

    if (!t)
        return NULL;
    lead = t->shape.rank - shape->rank;
    for (int i = 0; i < t->shape.rank; i++)
        if (i < lead || (shape->size[i - lead] == 1 && t->shape.size[i] != 1))
            axes[n++] = i;
    if (n)
        t = tn_sum(t, axes, n, true);
    return t && !tni_shape_equal(&t->shape, shape) ? tn_reshape(t, *shape) : t;
}

tn_tensor *tni_dy(const tni_grad *g, int i)
{
    if (!tni_none(g->dys[i]))
        return g->dys[i];
    return tn_full_as(g->out[i].shape, 0, g->out[i].dtype, g->dy->storage->device);
}

/* ---- one node ------------------------------------------------------------------------------------- */

static tn_status run_hooks(const tni_gradmeta *gm, tn_tensor **g)
{
    tn_status status = TN_OK;
    tn_tensor *now = *g;

    for (const tni_hook *hook = gm->hooks, *next; hook; hook = next) {
        tn_tensor *changed;

        next = hook->next; /* a hook may remove itself */
        changed = hook->call(now, hook->user);
        if (!changed)
            return tni_poison("a gradient hook", "its result");
        if (tni_none(changed) || !tni_shape_equal(&changed->shape, &now->shape))
            return tni_error(TN_E_SHAPE, "a gradient hook: returned %s for a gradient of shape %s: want the "
                                         "same shape", tni_text(changed), tni_shape_text(&now->shape));
        now = changed;
    }
    if (now != *g) {
        tn_keep(now);
        tn_drop(*g);
        *g = now;
    }
    return status;
}

static tn_status check_version(const tni_node *node, const tni_kept *kept, const char *role, int index)
{
    uint64_t now = tn_version(kept->alias);
    char which[32] = "";

    if (now == kept->version)
        return TN_OK;
    if (index >= 0)
        snprintf(which, sizeof which, " %d", index);
    return tni_error(TN_E_STATE, "tn_backward: %s%s of tn_%s, %s, was changed in place after it was "
                                 "recorded (version %llu, now %llu): want it unchanged until backward; "
                                 "tn_clone it before the change", role, which, node->op->name,
                     tni_text(kept->alias), (unsigned long long)kept->version, (unsigned long long)now);
}

/* A kept alias as backward may use it: itself, or, when gradients are recorded, tied to its history. */
static tn_tensor *restore(const pass *p, const tni_kept *kept, tni_node *from, tn_tensor *leaf, int index)
{
    tn_tensor *t;

    if (!p->create || (!from && !leaf))
        return kept->alias;
    if (leaf)
        return leaf;
    t = tni_alias_raw(kept->alias);
    if (!t)
        return NULL;
    atomic_fetch_add_explicit(&from->refs, 1, memory_order_relaxed);
    t->node = from;
    t->out_index = index;
    t->requires_grad = true;
    return tn_scope_adopt(t);
}

static bool leads_on(const pass *p, const tni_edge *edge)
{
    if (!edge->node && !edge->leaf)
        return false;
    if (!p->wanted)
        return true;
    if (edge->node)
        return edge->node->mark == p->wanted;
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

        if (!gm || !node->pending[i])
            continue;
        if (gm->hooks)
            status = run_hooks(gm, &node->pending[i]);
        if (status == TN_OK && gm->retain && !p->wanted)
            status = accumulate(&gm->grad, node->pending[i], true);
        if (status == TN_OK && p->wanted && gm->mark == p->target) {
            tn_drop(gm->pending);
            gm->pending = tn_keep(node->pending[i]);
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
    tni_grad g = {.op = node->op, .args = node->args, .n_in = node->n_in, .n_out = node->n_out,
                  .dys = w->dys, .x = w->x, .saved = node->saved, .in = node->in, .out = node->out,
                  .need = w->need, .dx = w->dx};
    bool any = false;
    tn_status status;

    for (int i = 0; i < node->n_in; i++) {
        w->need[i] = leads_on(p, &node->edge[i]);
        w->dx[i] = TN_NONE;
        w->x[i] = NULL;
        any |= w->need[i];
    }
    if (!any)
        return TN_OK;
    if (node->spent)
        return tni_error(TN_E_STATE, "tn_backward: the graph of tn_%s was used by an earlier backward, which "
                                     "freed what it kept: want TN_RETAIN_GRAPH in the first call",
                         node->op->name);
    for (int i = 0; i < node->n_in; i++) {
        const tni_edge *edge = &node->edge[i];

        if (!node->x[i].alias)
            continue;
        if ((status = check_version(node, &node->x[i], "input", i)) != TN_OK)
            return status;
        w->x[i] = restore(p, &node->x[i], edge->node, edge->leaf, edge->index);
        if (!w->x[i])
            return tni_pending();
    }
    if (node->y.alias) {
        if ((status = check_version(node, &node->y, "the result", -1)) != TN_OK)
            return status;
        g.y = restore(p, &node->y, node, NULL, 0);
        if (!g.y)
            return tni_pending();
    }
    for (int i = 0; i < node->n_out; i++)
        w->dys[i] = node->pending[i] ? node->pending[i] : TN_NONE;
    g.dy = w->dys[0];
    for (int i = 0; i < node->n_out && tni_none(g.dy); i++)
        g.dy = w->dys[i];
    if ((status = node->op->backward(&g)) != TN_OK)
        return status;
    if (TNI_UNLIKELY(p->tracer) && p->tracer->differentiated &&
        (status = p->tracer->differentiated(p->tracer, node, &g)) != TN_OK)
        return status;
    for (int i = 0; i < node->n_in; i++) {
        tn_tensor *dx = w->dx[i];
        const tni_edge *edge = &node->edge[i];

        if (!dx)
            return tni_poison("tn_backward", "a gradient");
        if (!w->need[i] || tni_none(dx))
            continue;
        if (!(dx = fit(dx, &node->in[i])))
            return tni_pending();
        status = edge->node ? deliver_to_node(p, edge->node, edge->index, dx)
                            : deliver_to_leaf(p, edge->leaf, dx);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
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

    if (!block)
        return TN_E_NOMEM;
    if (TNI_UNLIKELY(tni_recording) && node->sequence < tni_recording->first_node) {
        if (!small)
            tni_free(block, nbytes);
        return tni_record_refuse("tn_backward", "goes through a graph from before it",
                                 "forward and backward in one step");
    }
    work w = {block, block + n_out, block + n_out + n_in,
              small ? few_need : (bool *)(block + n_out + 2 * n_in)};
    scope = tn_scope_begin();
    status = arrive(p, node);
    if (TNI_UNLIKELY(p->tracer) && status == TN_OK && p->tracer->arrived)
        status = p->tracer->arrived(p->tracer, node);
    if (status == TN_OK)
        status = differentiate(p, node, &w);
    for (int i = 0; i < node->n_out; i++) {
        tn_drop(node->pending[i]);
        node->pending[i] = NULL;
    }
    if (!p->retain)
        release_kept(node);
    tn_scope_end(scope);
    if (!small)
        tni_free(block, nbytes);
    return status;
}

/* ---- the pass --------------------------------------------------------------------------------------- */

/* A seed that the graph may take: of the output's shape, dtype and device. */
static tn_tensor *seed_for(const char *function, tn_tensor *output, tn_tensor *seed)
{
    if (!output || tni_none(output)) {
        tni_poison(function, "the output");
        return NULL;
    }
    if (!output->requires_grad)
        return tni_fail(TN_E_STATE, "%s: %s has no history and does not require grad: want a result of "
                                    "recorded ops on tensors that require grad", function, tni_text(output));
    if (!seed || tni_none(seed)) {
        if (tni_shape_numel(&output->shape) != 1)
            return tni_fail(TN_E_SHAPE, "%s: %s has %lld elements and no seed was given: want one element, "
                                        "or a seed of its shape (tn_backward_from)", function,
                            tni_text(output), (long long)tni_shape_numel(&output->shape));
        return tn_full_as(output->shape, 1, output->dtype, output->storage->device);
    }
    if (!tni_shape_equal(&seed->shape, &output->shape) || seed->dtype != output->dtype)
        return tni_fail(TN_E_SHAPE, "%s: seed %s of %s for output %s of %s: want the same shape and dtype",
                        function, tni_text(seed), tn_dtype_name(seed->dtype), tni_text(output),
                        tn_dtype_name(output->dtype));
    return seed;
}

static tn_status seed_outputs(pass *p, const char *function, int n, tn_tensor *const *outputs,
                              tn_tensor *const *seeds)
{
    tn_status status = TN_OK;

    for (int i = 0; i < n && status == TN_OK; i++) {
        tn_tensor *seed = seed_for(function, outputs[i], seeds ? seeds[i] : TN_NONE);

        if (!seed)
            return tni_pending();
        if (outputs[i]->node)
            status = deliver_to_node(p, outputs[i]->node, outputs[i]->out_index, seed);
        else
            status = deliver_to_leaf(p, outputs[i], seed);
    }
    return status;
}

static tn_status finished(const pass *p, const tn_tensor *leaf)
{
    if (TNI_LIKELY(!p->tracer) || !p->tracer->finished)
        return TN_OK;
    return p->tracer->finished(p->tracer, leaf, leaf->gm->pending);
}

static tn_status run(pass *p)
{
    tn_status status = TN_OK;

    p->tracer = tni_trace_suspend();
    while (p->n && status == TN_OK)
        status = step(p, pop(p));
    for (size_t i = 0; i < p->n_leaves && status == TN_OK; i++) {
        tni_gradmeta *gm = p->leaves[i]->gm;

        if (gm->hooks)
            status = run_hooks(gm, &gm->pending);
        if (status == TN_OK)
            status = finished(p, p->leaves[i]);
    }
    tni_tracing = p->tracer;
    return status;
}

/* Leaves nothing of the pass behind. */
static void finish(pass *p)
{
    while (p->n) {
        tni_node *node = p->heap[--p->n];

        for (int i = 0; i < node->n_out; i++) {
            tn_drop(node->pending[i]);
            node->pending[i] = NULL;
        }
    }
    for (size_t i = 0; i < p->n_leaves; i++) {
        tni_gradmeta *gm = p->leaves[i]->gm;

        tn_drop(gm->pending);
        gm->pending = NULL;
        tn_drop(p->leaves[i]);
    }
    tni_free(p->heap, p->capacity * sizeof(void *));
    tni_free(p->leaves, p->leaf_capacity * sizeof(void *));
}

/* Makes gm->pending a tensor that may become a grad: alone, dense, without history. */
static tn_status own(tni_gradmeta *gm)
{
    tn_tensor *copy;

    if (is_ours_alone(gm->pending))
        return TN_OK;
    copy = tn_clone(gm->pending);
    if (!copy)
        return tni_pending();
    tn_keep(copy);
    tn_drop(gm->pending);
    gm->pending = copy;
    return TN_OK;
}

/* Everything that can fail first, then the commit. A grad that the user can see is replaced, not changed. */
static tn_status add_to_grads(pass *p)
{
    tn_status status = TN_OK;

    for (size_t i = 0; i < p->n_leaves && status == TN_OK; i++) {
        tni_gradmeta *gm = p->leaves[i]->gm;

        status = own(gm);
        if (status == TN_OK && gm->grad && TNI_UNLIKELY(tni_recording) && !tni_record_is_made(gm->grad))
            status = tni_record_refuse("tn_backward", "adds to a gradient from before it",
                                       "tn_optim_zero_grad in the step, before tn_backward");
        if (status == TN_OK && gm->grad) {
            status = tn_add_(gm->pending, gm->grad);
            if (status == TN_OK)
                status = finished(p, p->leaves[i]);
        }
    }
    for (size_t i = 0; i < p->n_leaves && status == TN_OK; i++) {
        tni_gradmeta *gm = p->leaves[i]->gm;

        if (TNI_UNLIKELY(tni_recording))
            tni_record_leaf(p->leaves[i], true);
        tn_drop(gm->grad);
        gm->grad = gm->pending;
        gm->pending = NULL;
    }
    return status;
}

tn_status tn_backward_from(tn_tensor *output, tn_tensor *seed, int flags)
{
    pass p = {.retain = flags & TN_RETAIN_GRAPH};
    tn_dtype autocasting = tni_autocasting;
    tn_scope scope;
    tn_status status;
    bool was;

    if (!output)
        return tni_poison("tn_backward", "loss");
    if (!seed)
        return tni_poison("tn_backward_from", "seed");
    if (flags & TN_CREATE_GRAPH)
        return tni_error(TN_E_INVALID, "tn_backward_from: TN_CREATE_GRAPH: want tn_gradients, which returns "
                                       "gradients with history; a grad never has one");
    was = tn_set_grad(false);
    tni_autocasting = TN_F32; /* backward runs in the dtypes that forward left; kept casts stay kept */
    scope = tn_scope_begin();
    status = seed_outputs(&p, "tn_backward", 1, &output, &seed);
    tn_scope_end(scope);
    scope = tn_scope_begin();
    if (status == TN_OK)
        status = run(&p);
    if (status == TN_OK)
        status = add_to_grads(&p);
    finish(&p);
    tn_scope_end(scope);
    tni_autocasting = autocasting;
    tn_set_grad(was);
    return status;
}

tn_status tn_backward(tn_tensor *loss)
{
    return tn_backward_from(loss, TN_NONE, 0);
}

/* ---- gradients as values ------------------------------------------------------------------------------ */

/* Marks with p->wanted every node from which an input can be reached: nodes newest first into a list, then
 * back through it, so that a node is judged after all it was computed from. */
static tn_status mark_ways(pass *p, int n_out, tn_tensor *const *outputs)
{
    uint64_t seen = p->wanted - 1;
    tni_node **list = NULL;
    size_t n = 0, capacity = 0;
    tn_status status = TN_OK;

    for (int i = 0; i < n_out && status == TN_OK; i++) {
        if (outputs[i] && outputs[i]->node && outputs[i]->node->mark != seen) {
            outputs[i]->node->mark = seen;
            status = push(p, outputs[i]->node);
        }
    }
    while (p->n && status == TN_OK) {
        tni_node *node = pop(p);
        void *items = list;

        if (!reserve(&items, n, &capacity)) {
            status = TN_E_NOMEM;
            break;
        }
        list = (tni_node **)items;
        list[n++] = node;
        for (int i = 0; i < node->n_in && status == TN_OK; i++) {
            tni_node *from = node->edge[i].node;

            if (from && from->mark != seen) {
                from->mark = seen;
                status = push(p, from);
            }
        }
    }
    p->n = 0;
    while (n && status == TN_OK) {
        tni_node *node = list[--n];
        bool wanted = false;

        for (int i = 0; i < node->n_out; i++)
            wanted |= node->gm[i] && node->gm[i]->mark == p->target;
        for (int i = 0; i < node->n_in && !wanted; i++)
            wanted = leads_on(p, &node->edge[i]);
        if (wanted)
            node->mark = p->wanted;
    }
    tni_free(list, capacity * sizeof(void *));
    return status;
}

static tn_status mark_inputs(pass *p, int n_in, tn_tensor *const *inputs)
{
    for (int i = 0; i < n_in; i++) {
        tni_gradmeta *gm;

        if (!inputs[i] || tni_none(inputs[i]))
            return tni_poison("tn_gradients", "an input");
        if (!inputs[i]->requires_grad)
            return tni_error(TN_E_STATE, "tn_gradients: input %d, %s, does not require grad: want "
                                         "tn_set_requires_grad before the forward pass", i,
                             tni_text(inputs[i]));
        gm = tni_gradmeta_of(inputs[i]);
        if (!gm)
            return TN_E_NOMEM;
        gm->mark = p->target;
    }
    return TN_OK;
}

tn_status tn_gradients(int n_out, tn_tensor *const *outputs, tn_tensor *const *seeds, int n_in,
                       tn_tensor *const *inputs, tn_tensor **grads, int flags)
{
    uint64_t mark = atomic_fetch_add_explicit(&marks, 2, memory_order_relaxed);
    pass p = {.wanted = mark + 1, .target = mark + 1, .create = flags & TN_CREATE_GRAPH,
              .retain = flags & (TN_RETAIN_GRAPH | TN_CREATE_GRAPH)};
    tn_dtype autocasting = tni_autocasting;
    tn_scope scope;
    tn_status status;
    bool was;

    if (n_out < 1 || !outputs || n_in < 0 || (n_in && (!inputs || !grads)))
        return tni_error(TN_E_INVALID, "tn_gradients: %d outputs, %d inputs: want at least one output, and "
                                       "arrays that are not NULL", n_out, n_in);
    status = mark_inputs(&p, n_in, inputs);
    if (status != TN_OK)
        return status;
    was = tn_set_grad(p.create);
    tni_autocasting = TN_F32;
    scope = tn_scope_begin();
    status = mark_ways(&p, n_out, outputs);
    if (status == TN_OK)
        status = seed_outputs(&p, "tn_gradients", n_out, outputs, seeds);
    tn_scope_end(scope);
    scope = tn_scope_begin();
    if (status == TN_OK)
        status = run(&p);
    tn_scope_end(scope);
    tni_autocasting = autocasting;
    tn_set_grad(was);
    /* an input given twice gets the same tensor twice: look before anything is cleared */
    for (int i = 0; i < n_in && status == TN_OK; i++) {
        tn_tensor *g = inputs[i]->gm->pending;

        grads[i] = g ? tn_scope_adopt(tn_keep(g)) : TN_NONE;
        if (!grads[i])
            status = tni_pending();
    }
    for (int i = 0; i < n_in; i++) {
        tni_gradmeta *gm = inputs[i]->gm;

        if (gm && inputs[i]->node) { /* leaves are cleared by finish */
            tn_drop(gm->pending);
            gm->pending = NULL;
        }
    }
    finish(&p);
    return status;
}
