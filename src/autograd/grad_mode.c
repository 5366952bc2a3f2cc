/*
 * grad_mode.c - what users set about gradients: recording on or off, requires_grad, grad, hooks;
 * and the guard of in-place ops.
 */
#include "autograd/call_site.h"
#include "autograd/sync.h"
#include "autograd/recompute.h"

static TNI_THREAD bool off; /* inverted: threads start with recording on */
TNI_THREAD bool tni_padding_counts;
TNI_SHARED TNI_THREAD bool tni_init_skipped; /* nn/module.h: beside the others it takes no room */

bool tn_set_grad_enabled(bool on)
{
    bool was = !off;
    off = !on;
    return was;
}

bool tn_grad_enabled(void)
{
    return !off;
}

tn_status tn_set_requires_grad(tn_tensor *t, bool requires_grad)
{
    if (tni_absent(t)) return tni_poison("tn_set_requires_grad", "t");
    if (t->node)
        return tni_error(
            TN_E_STATE,
            "tn_set_requires_grad: %s was made by %s%s: want a leaf (tn_detach gives one)",
            tni_text(t), tni_op_prefix(t->node->op), t->node->op->name);
    if (requires_grad && !tn_dtype_is_float(t->dtype))
        return tni_error(TN_E_DTYPE, "tn_set_requires_grad: %s is %s: want a floating dtype",
                         tni_text(t), tn_dtype_name(t->dtype));
    t->requires_grad = requires_grad;
    return TN_OK;
}

bool tn_requires_grad(const tn_tensor *t)
{
    return t && t->requires_grad;
}

bool tn_is_leaf(const tn_tensor *t)
{
    return t && !t->node;
}

const char *tn_grad_op(const tn_tensor *t)
{
    return t && t->node ? t->node->op->name : "";
}

__attribute__((constructor)) static void tell_ops(void)
{
    tni_op_of = tn_grad_op;
}

tn_tensor *tn_detach(tn_tensor *t)
{
    if (tni_absent(t)) return tni_poisoned("tn_detach", "t");
    tn_tensor *alias = tni_scope_adopt(__func__, tni_alias_raw(t));
    return alias && TNI_NOTIFY_OP(detached, t, alias) == TN_OK ? alias : NULL;
}

tn_tensor *tn_grad(tn_tensor *t)
{
    if (tni_absent(t)) return tni_poisoned("tn_grad", "t");
    if (!t->gm || !t->gm->grad) return TN_NONE;
    return tni_scope_adopt(__func__, tn_keep(t->gm->grad));
}

/* Stores a new handle on grad's memory, without history or gradient. Otherwise tensors that are
 * each other's gradients, or a gradient whose history leads back to t, would keep each other alive
 * forever. */
tn_status tn_set_grad(tn_tensor *t, tn_tensor *grad)
{
    if (tni_absent(t) || !grad) return tni_poison("tn_set_grad", t && !tni_none(t) ? "grad" : "t");
    if (!tni_none(grad)) {
        if (grad == t || (grad->storage == t->storage && grad->offset == t->offset))
            return tni_error(TN_E_INVALID,
                             "tn_set_grad: grad %s is the memory of %s itself: want a tensor of "
                             "its own (tn_clone)",
                             tni_text(grad), tni_text(t));
        TNI_TRY(tni_gradient_fits("tn_set_grad", "grad", grad, "", t));
    }
    if (TNI_NOTIFY(grad_changes, t, false) != TN_OK) return tni_pending();
    if (tni_none(grad) && !t->gm) return TN_OK;
    tni_gradmeta *gm = tni_gradmeta_of(t);
    if (!gm) return TN_E_NOMEM;
    tn_tensor *stored = tni_none(grad) ? NULL : tni_alias_raw(grad);
    if (!stored && !tni_none(grad)) return TN_E_NOMEM;
    tni_grad_put(gm, stored);
    return TN_OK;
}

void tni_grad_put(tni_gradmeta *gm, tn_tensor *grad)
{
    tn_drop(gm->grad);
    gm->grad = grad;
    gm->used = gm->reused = 0;
    if (gm->sync) gm->sync->leaf[gm->sync_index].own = false;
}

bool tni_grad_reused(const tni_gradmeta *gm)
{
    return gm->grad && gm->reused > atomic_load(&gm->grad->storage->rewritten);
}

tn_status tn_retain_grad(tn_tensor *t)
{
    if (tni_absent(t)) return tni_poison("tn_retain_grad", "t");
    if (!t->requires_grad)
        return tni_error(TN_E_STATE,
                         "tn_retain_grad: %s has no history: want a result of recorded ops",
                         tni_text(t));
    tni_gradmeta *gm = tni_gradmeta_of(t);
    if (!gm) return TN_E_NOMEM;
    gm->retain = true;
    return TN_OK;
}

int64_t tn_register_hook(tn_tensor *t, tn_grad_hook call, void *user)
{
    if (tni_absent(t) || !call)
        return tni_minus_one(tni_poison("tn_register_hook", t && !tni_none(t) ? "hook" : "t"));
    if (!t->requires_grad)
        return tni_minus_one(tni_error(
            TN_E_STATE,
            "tn_register_hook: no gradient will reach %s: want a tensor that requires grad",
            tni_text(t)));
    tni_gradmeta *gm = tni_gradmeta_of(t);
    return gm ? tni_hook_add(&gm->hooks, 0, (tni_any_hook)call, user) : -1;
}

void tn_remove_hook(tn_tensor *t, int64_t id)
{
    if (t && !tni_none(t) && t->gm) tni_hook_remove(&t->gm->hooks, id);
}

tn_status tni_may_change(const char *function, const char *name, int64_t marks)
{
    if (marks >= TNI_MARK_AVERAGED)
        return tni_error(TN_E_STATE, "%s: %s has an average's values: want tn_ema_restore before",
                         function, name);
    if (marks >= TNI_MARK_CONSTANT && tni_call_site_here) /* a forward runs */
        return tni_error(
            TN_E_STATE,
            "%s: buffer %s is constant, and a forward changes it: want another role for it",
            function, name);
    if (marks % TNI_MARK_CONSTANT >= TNI_MARK_CACHE &&
        tni_host_refused(function, "changes a cache, whose size grows", "it outside of the step"))
        return TN_E_STATE;
    return TN_OK;
}

tn_status tni_own_memory(const char *function, const tn_tensor *target)
{
    for (int d = 0; d < target->shape.rank; d++)
        if (target->shape.size[d] > 1 && target->stride[d] == 0)
            return tni_error(TN_E_INVALID,
                             "%s: target %s is an expanded view, axis %d is one element: want "
                             "memory of its own (tn_clone)",
                             function, tni_text(target), d);
    int64_t marks = atomic_load_explicit(&target->storage->buffer_marks, memory_order_relaxed);
    tn_status status = TN_OK;
    if (TNI_UNLIKELY(marks >= TNI_MARK_CACHE))
        status = tni_may_change(function, target->name ? target->name : tni_text(target), marks);
    if (TNI_UNLIKELY(tni_region_now) && status == TN_OK) status = tni_region_writes(target);
    return status;
}

tn_status tni_may_write(const char *function, const tn_tensor *target, const tn_tensor *source)
{
    int stem = (int)strlen(function);
    if (tni_absent(target)) return tni_poison(function, "the target");
    if (!source) return tni_poison(function, "the source");
    TNI_TRY(tni_own_memory(function, target));
    if (TNI_NOTIFY_OP(changes, function, target, source) != TN_OK) return tni_pending();
    if (off) return TN_OK;
    stem -= stem && function[stem - 1] == '_';
    if (target->requires_grad)
        return tni_error(TN_E_STATE, "%s: %s %s: want %.*s, or the change under TN_NO_GRAD",
                         function, tni_text(target),
                         target->node ? "has history, which this would falsify" : "requires grad",
                         stem, function);
    if (!tni_none(source) && source->requires_grad)
        return tni_error(TN_E_STATE,
                         "%s: the source %s requires grad and in-place ops record nothing: want "
                         "%.*s, or the change under TN_NO_GRAD",
                         function, tni_text(source), stem, function);
    return TN_OK;
}
