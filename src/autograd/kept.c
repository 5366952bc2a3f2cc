/*
 * kept.c - what a node keeps of its inputs and its result for backward: keeping it, reading it,
 * freeing it.
 *
 * Kept is an alias (storage and geometry, no history), with the version that the memory had. A
 * change in place since then is an error, as the gradient would be wrong.
 *
 * The result y of a cheap op (tn_op's cheap: an activation) is not kept for the ops that read it:
 * their backward computes it again, by the op that made it, from the x that this op keeps for its
 * own gradient. The bits are the same, so the gradients are. That costs an elementwise pass, and
 * saves y's memory between forward and backward. y is kept all the same
 *   - if it was changed in place before it was read: then it isn't what its op computed;
 *   - if its op keeps no x: x is computed again itself, or a backward has freed it;
 *   - if it was read through a view or a cast, results of other ops, or by an op of the user's;
 *   - if it is in half precision: there the time weighs more than the memory (docs/design.md).
 * A change of y after it was read does no harm; of x it is the error that y's own op would give.
 *
 * Freeing: a backward may be done with y's op while ops of another graph still need its x. So x is
 * counted, in node->holds: once for y's op, until a backward has freed what it kept, and once for
 * each input that is computed again. The last to let go frees x. Nobody can take hold of it once
 * the count is 0, so an op recorded on y while another thread frees y's graph gets x or keeps y.
 */
#include "autograd/pass.h"

/* ---- keeping --------------------------------------------------------------------------------- */

static bool hold(tni_node *node)
{
    int n = atomic_load_explicit(&node->holds, memory_order_relaxed);
    while (n > 0 && !atomic_compare_exchange_weak_explicit(
                        &node->holds, &n, n + 1, memory_order_acquire, memory_order_relaxed))
        continue;
    return n > 0;
}

static void let_go(tni_node *node)
{
    if (atomic_fetch_sub_explicit(&node->holds, 1, memory_order_acq_rel) != 1) return;
    tn_drop(node->x[0].alias);
    node->x[0].alias = NULL;
}

bool tni_keep_cheap(tni_node *node, int i, const tn_tensor *t)
{
    tni_kept *kept = &node->x[i];
    kept->remade = t->node && t->node->op->cheap && tn_version(t) == 0 &&
                   tn_dtype_size(t->dtype) > 2 && hold(t->node);
    if (kept->remade) return true;
    if (node->op->cheap) atomic_init(&node->holds, 1);
    return tni_keep_alias(kept, t);
}

/* ---- reading --------------------------------------------------------------------------------- */

static tn_status check_version(const tni_node *node, const tni_kept *kept, const char *role,
                               int index)
{
    uint64_t now = atomic_load_explicit(&kept->alias->storage->version, memory_order_relaxed);

    if (TNI_LIKELY(now == kept->version)) return TN_OK;
    char which[32] = "";
    if (index >= 0) snprintf(which, sizeof which, " %d", index);
    return tni_error(TN_E_STATE,
                     "tn_backward: %s%s of %s%s, %s, was changed in place after it was "
                     "recorded (version %" PRIu64 ", now %" PRIu64
                     "): want it unchanged until backward; "
                     "tn_clone it before the change",
                     role, which, tni_op_prefix(node->op), node->op->name, tni_text(kept->alias),
                     (uint64_t)kept->version, now);
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

/* A kept alias for use in backward: the alias itself, or, when gradients are recorded, one with
 * its history. */
static tn_tensor *restore(const tni_pass *p, const tni_kept *kept, const tni_edge *edge)
{
    if (TNI_LIKELY(!p->create) || (!edge->node && !edge->leaf)) return kept->alias;
    if (edge->leaf) return edge->leaf;
    return tni_with_history(kept->alias, edge->node, edge->index);
}

/* The result of a cheap op once more. */
static tn_tensor *remake(const tni_pass *p, const tni_edge *edge)
{
    tni_node *from = edge->node;
    tn_tensor *y = NULL;

    if (check_version(from, &from->x[0], "input", 0) != TN_OK) return NULL;
    TN_NO_GRAD y = tni_apply(from->op, from->args, 0, 1, &from->x[0].alias);
    return y && p->create ? tni_with_history(y, from, edge->index) : y;
}

/* Whether backward reads input i for the gradients that are wanted. */
static bool is_read(const tni_node *node, const tni_grad *g, int i)
{
    unsigned reads = 0;
    for (int k = 0; k < node->n_in; k++)
        if (g->need[k]) reads |= node->op->reads[node->op->arity < 0 ? 0 : k];
    return reads & TNI_X(i);
}

tn_status tni_kept_read(const tni_pass *p, tni_node *node, tni_grad *g)
{
    tn_status status;

    if (!node->keeps) return TN_OK;
    for (int i = 0; i < node->n_in; i++) {
        const tni_kept *kept = &node->x[i];
        if (kept->alias) {
            if ((status = check_version(node, kept, "input", i)) != TN_OK) return status;
            g->x[i] = restore(p, kept, &node->edge[i]);
        } else if (TNI_UNLIKELY(kept->remade) && is_read(node, g, i)) {
            g->x[i] = remake(p, &node->edge[i]);
        } else {
            continue;
        }
        if (!g->x[i]) return tni_pending();
    }
    if (!node->y.alias) return TN_OK;
    if ((status = check_version(node, &node->y, "the result", -1)) != TN_OK) return status;
    g->y = restore(p, &node->y, &(tni_edge){ .node = node });
    return g->y ? TN_OK : tni_pending();
}

/* ---- freeing --------------------------------------------------------------------------------- */

void tni_kept_let_go(tni_node *node, int i)
{
    tni_kept *kept = &node->x[i];

    if (kept->remade) {
        kept->remade = false;
        let_go(node->edge[i].node);
    } else if (kept->alias && node->op->cheap) {
        if (!node->spent) let_go(node); /* else it has */
    } else if (kept->alias) {
        tn_drop(kept->alias);
        kept->alias = NULL;
    }
}

static void drop(tni_node *node, tn_tensor **kept)
{
    if (!*kept) return;
    node->spent = true;
    tn_drop(*kept);
    *kept = NULL;
}

void tni_kept_free(tni_node *node)
{
    if (!node->keeps) return;
    for (int i = 0; i < node->n_in; i++) {
        if (!node->x[i].alias && !node->x[i].remade) continue;
        tni_kept_let_go(node, i);
        node->spent = true;
    }
    drop(node, &node->y.alias);
    for (int i = 0; i < node->n_saved; i++) drop(node, &node->saved[i]);
}
