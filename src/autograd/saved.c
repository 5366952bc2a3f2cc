/*
 * saved.c - saved tensors: what a node keeps of its inputs and its result for backward. Saving
 * them, reading them, freeing them.
 *
 * Saved is an alias (storage and geometry, no history), with the version that the memory had. A
 * change in place since then is an error, as the gradient would be wrong.
 *
 * The result y of a recomputed op (tn_op's recompute: an activation; a norm, or autocast's
 * cast of a weight, if y is large) is not saved for the ops that read it: their backward computes
 * it again, by the op that made it, from the inputs that this op keeps for its own gradient, and
 * the rest of its inputs, which are small or there anyway. The bits are the same, so the gradients
 * are. That costs a pass over x, and frees y's memory between forward and backward. y is saved all
 * the same
 *   - if it was changed in place before it was read: then it isn't what its op computed;
 *   - if its op keeps no x: x is computed again itself, or a backward has freed it;
 *   - if it was read through a view or a cast, results of other ops, or by an op of the user's;
 *   - if it is small and in half precision, where time weighs more (docs/measurements.md).
 * A change of y after it was read does no harm; of an input it is the error that y's own op would
 * give.
 *
 * Freeing: a backward may be done with y's op while ops of another graph still need its inputs. So
 * they are counted, in node->holds: once for y's op, until a backward has freed what it kept, and
 * once for each input that is computed again. The last to let go frees them. Nobody can take hold
 * once the count is 0, so an op recorded on y while another thread frees y's graph gets them or
 * keeps y.
 */
#include "autograd/pass.h"
#include "autograd/recompute.h"

/* ---- saving ---------------------------------------------------------------------------------- */

static bool hold(tni_node *node)
{
    int n = atomic_load_explicit(&node->holds, memory_order_relaxed);
    while (n > 0 && !atomic_compare_exchange_weak_explicit(
                        &node->holds, &n, n + 1, memory_order_acquire, memory_order_relaxed))
        continue;
    return n > 0;
}

/* Whether there was one. */
static bool forget(tn_tensor **kept)
{
    tn_tensor *was = *kept;
    *kept = NULL;
    tn_drop(was);
    return was != NULL;
}

static void let_go(tni_node *node)
{
    if (atomic_fetch_sub_explicit(&node->holds, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < node->n_in; i++) forget(&node->x[i].alias);
}

bool tni_is_recomputed(const tn_op *op, const tn_tensor *y)
{
    size_t item = tn_dtype_size(y->dtype);
    size_t least = item > 2 || op->recompute > 1 ? op->recompute : TNI_RECOMPUTE_LARGE;
    return op->recompute && item * (size_t)tni_shape_numel(&y->shape) >= least;
}

bool tni_save_input(tni_node *node, int i, const tn_tensor *t)
{
    tni_saved *saved = &node->x[i];
    saved->recomputed = !tni_region_now && (i == 0 || !node->op->recompute) && t->node &&
                        tn_version(t) == 0 && tni_is_recomputed(t->node->op, t) && hold(t->node);
    if (saved->recomputed) return true;
    if (node->op->recompute && i == 0) atomic_init(&node->holds, 1);
    return tni_save_alias(saved, t);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_unchanged(const tni_saved *saved)
{
    return atomic_load_explicit(&saved->alias->storage->version, memory_order_relaxed) ==
           saved->version;
}

static tn_status changed(const tni_node *node, const tni_saved *saved, const char *role, int index)
{
    char which[32] = "";
    if (index >= 0) snprintf(which, sizeof which, " %d", index);
    return tni_error(TN_E_STATE,
                     "tn_backward: %s%s of %s%s, %s, was changed in place after it was recorded "
                     "(version %" PRIu64 ", now %" PRIu64
                     "): want it unchanged until backward; tn_clone it before the change",
                     role, which, tni_op_prefix(node->op), node->op->name, tni_text(saved->alias),
                     (uint64_t)saved->version, tn_version(saved->alias));
}

tn_tensor *tni_with_history(const tn_tensor *alias, tni_node *from, int index)
{
    tn_tensor *t = tni_alias_raw(alias);
    if (!t) return NULL;
    atomic_fetch_add_explicit(&from->refs, 1, memory_order_relaxed);
    t->node = from;
    t->out_index = index;
    t->requires_grad = true;
    return tn_scope_adopt(t);
}

/* A saved alias for use in backward: the alias itself, or, when gradients are recorded, one with
 * its history. */
static tn_tensor *restore(const tni_pass *p, const tni_saved *saved, const tni_edge *edge)
{
    if (TNI_LIKELY(!p->create) || (!edge->node && !edge->leaf)) return saved->alias;
    if (edge->leaf) return edge->leaf;
    return tni_with_history(saved->alias, edge->node, edge->index);
}

/* The result of a recomputed op once more. */
__attribute__((cold)) static tn_tensor *recompute(const tni_pass *p, const tni_edge *edge)
{
    tni_node *from = edge->node;
    tn_tensor *in[TNI_MAX_IN], *y = NULL;
    for (int i = 0; i < from->n_in; i++) {
        const tni_saved *saved = &from->x[i];
        in[i] = from->in[i].absent ? TN_NONE : saved->alias;
        if (!from->in[i].absent && !is_unchanged(saved)) {
            changed(from, saved, "input", i);
            return NULL;
        }
    }
    TN_NO_GRAD y = tni_apply(from->op, from->args, 0, from->n_in, in);
    return y && p->create ? tni_with_history(y, from, edge->index) : y;
}

tn_status tni_saved_read(const tni_pass *p, tni_node *node, tni_grad *g)
{
    if (!node->keeps) return TN_OK;
    TNI_TRY(TNI_UNLIKELY(node->region) ? tni_region_fill(node) : TN_OK);
    for (int i = 0; i < node->n_in; i++) {
        const tni_saved *saved = &node->x[i];
        if (!saved->alias && !saved->recomputed) continue;
        if (TNI_UNLIKELY(saved->recomputed || node->op->recompute) &&
            !(tni_reads(node->op, node->n_in, g->need) & TNI_X(i)))
            continue;
        if (TNI_UNLIKELY(saved->recomputed))
            g->x[i] = recompute(p, &node->edge[i]);
        else if (TNI_LIKELY(is_unchanged(saved)))
            g->x[i] = restore(p, saved, &node->edge[i]);
        else
            return changed(node, saved, "input", i);
        if (!g->x[i]) return tni_pending();
    }
    if (!node->y.alias) return TN_OK;
    if (!is_unchanged(&node->y)) return changed(node, &node->y, "the result", -1);
    g->y = restore(p, &node->y, &(tni_edge){ .node = node });
    return g->y ? TN_OK : tni_pending();
}

/* ---- freeing --------------------------------------------------------------------------------- */

void tni_saved_free(tni_node *node)
{
    bool any = false;
    if (!node->keeps || node->spent) return;
    for (int i = node->n_in - 1; i >= 0; i--) { /* recomputed op: its hold, with x[0], last */
        tni_saved *saved = &node->x[i];
        if (!saved->alias && !saved->recomputed) continue;
        any = true;
        if (TNI_UNLIKELY(saved->recomputed)) {
            saved->recomputed = false;
            let_go(node->edge[i].node);
        } else if (TNI_UNLIKELY(node->op->recompute && node->x[0].alias)) {
            if (i == 0) let_go(node); /* of all its inputs */
        } else {
            forget(&saved->alias);
        }
    }
    any |= forget(&node->y.alias);
    for (int i = 0; i < node->n_saved; i++) any |= forget(&node->saved[i]);
    node->spent = any;
}
