/*
 * move.c - moving to another device or dtype: everything is converted first, then the old handles
 * get the new storages, so that optimizers and ties stay valid.
 */
#include "nn/module.h"

/* ---- the stage ------------------------------------------------------------------------------- */

tn_status tni_stage_add(tni_stage *stage, tn_tensor *t)
{
    if (tni_none(t)) return TN_OK;
    int is_new = tni_map_put(&stage->result, t, t);
    if (is_new < 0) return TN_E_NOMEM;
    if (!is_new) return TN_OK;
    intptr_t sharers = (intptr_t)tni_map_get(&stage->sharers, t->storage);
    return tni_map_put(&stage->sharers, t->storage, (void *)(sharers + 1)) < 0 ? TN_E_NOMEM : TN_OK;
}

/* The dtype that t gets. */
static tn_dtype dtype_of(const tni_stage *stage, const tn_tensor *t)
{
    bool casts = stage->widen ? tni_is_half(t->dtype) : stage->cast && tn_dtype_is_float(t->dtype);
    if (!casts) return t->dtype;
    return tni_map_get(&stage->wide, t->storage) ? tni_wide_dtype(stage->dtype) : stage->dtype;
}

static bool moves(const tni_stage *stage, const tn_tensor *t)
{
    tn_device at = t->storage->device;
    return stage->move && !tni_same_device(at, stage->device);
}

static bool needs(const tni_stage *stage, const tn_tensor *t)
{
    return stage->copy || dtype_of(stage, t) != t->dtype || moves(stage, t);
}

static tn_tensor *convert_one(const tni_stage *stage, tn_tensor *t)
{
    tn_tensor *y = tn_to_dtype(t, dtype_of(stage, t));
    if (y && moves(stage, y)) y = tn_to(y, stage->device);
    return y == t ? tn_clone(t) : y;
}

/* t as a view of its converted storage, shared with the other handles over it. */
static tn_tensor *convert_shared(tni_stage *stage, tn_tensor *t)
{
    tn_tensor *base = tni_map_get(&stage->base, t->storage);
    if (!base) {
        tn_tensor *all = tni_alias_all(t);
        base = all ? convert_one(stage, all) : NULL;
        if (!base || tni_map_put(&stage->base, t->storage, base) < 0) return NULL;
    }
    tni_spec spec = { base->dtype, t->shape, .strided = true, .offset = t->offset };
    memcpy(spec.stride, t->stride, sizeof spec.stride);
    return tni_alias(base, &spec);
}

tn_status tni_stage_convert(tni_stage *stage)
{
    for (size_t i = 0; i < stage->result.capacity; i++) {
        tni_map_cell *cell = &stage->result.cell[i];
        tn_tensor *t = (tn_tensor *)cell->key;
        if (!t || !needs(stage, t)) continue;
        bool shared = (intptr_t)tni_map_get(&stage->sharers, t->storage) > 1;
        cell->value = shared ? convert_shared(stage, t) : convert_one(stage, t);
        if (!cell->value) return tni_pending();
    }
    return TN_OK;
}

void tni_stage_free(tni_stage *stage)
{
    tni_map_free(&stage->result);
    tni_map_free(&stage->sharers);
    tni_map_free(&stage->base);
    tni_map_free(&stage->wide);
}

/* ---- moving a model -------------------------------------------------------------------------- */

/* A buffer with history would no longer match its graph's dtype and device. */
static tn_status check_history(const tn_module *m, const char *path, const tni_slot *slot,
                               const tni_stage *stage)
{
    if (!slot->tensor->node || !needs(stage, slot->tensor)) return TN_OK;
    return tni_error(TN_E_STATE,
                     "tn_module_to: buffer %s%s%s of %s was made by %s%s: want it detached "
                     "(tn_detach, then tn_assign)",
                     path, path[0] ? "." : "", slot->name, m->type->name,
                     tni_op_prefix(slot->tensor->node->op), slot->tensor->node->op->name);
}

static tn_status stage_members(tn_module *m, const char *path, void *user)
{
    tni_stage *stage = user;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_CHILD || tni_none(slot->tensor)) continue;
        tn_tensor *t = slot->tensor, *own = slot->own ? slot->own : t;
        if (tni_stays_wide(slot->flags) && (tni_map_put(&stage->wide, t->storage, t) < 0 ||
                                            tni_map_put(&stage->wide, own->storage, own) < 0))
            return TN_E_NOMEM;
        TNI_TRY(check_history(m, path, slot, stage));
        TNI_TRY(tni_stage_add(stage, t));
        TNI_TRY(tni_stage_add(stage, own));
        if (t->gm && t->gm->grad) TNI_TRY(tni_stage_add(stage, t->gm->grad));
    }
    return TN_OK;
}

void tni_exchange_memory(tn_tensor *a, tn_tensor *b)
{
    const int64_t by = a->is_buffer - b->is_buffer;
    atomic_fetch_sub_explicit(&a->storage->buffer_marks, by, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->storage->buffer_marks, by, memory_order_relaxed);
    tni_swap_storage(a, b);
}

/* Nothing here can fail. */
static void swap_all(const tni_stage *stage)
{
    for (size_t i = 0; i < stage->result.capacity; i++) {
        const tni_map_cell *cell = &stage->result.cell[i];
        if (cell->key && cell->value != cell->key)
            tni_exchange_memory((tn_tensor *)cell->key, cell->value);
    }
}

static tn_status move(const char *function, tn_module *m, tni_stage *stage)
{
    TNI_TRY(tni_module_check(function, m));
    TNI_UNRECORDED;
    if (scope.depth < 0) return tni_pending();
    tn_status status = tni_walk(m, TNI_ONCE, stage_members, NULL, stage);
    if (status == TN_OK) status = tni_stage_convert(stage);
    if (status == TN_OK) swap_all(stage);
    tni_stage_free(stage);
    return status;
}

tn_status tn_module_to(tn_module *m, tn_device device)
{
    tni_stage stage = { .move = true, .device = device };
    if (m && !tni_backend_for(device)) return tni_pending();
    return move("tn_module_to", m, &stage);
}

tn_status tn_module_to_dtype(tn_module *m, tn_dtype dtype)
{
    tni_stage stage = { .cast = true, .dtype = dtype };
    if (m && !tn_dtype_is_float(dtype))
        return tni_error(TN_E_DTYPE, "tn_module_to_dtype: dtype %s: want a floating one",
                         tn_dtype_name(dtype));
    return move("tn_module_to_dtype", m, &stage);
}

tn_status tni_module_widen(const char *function, tn_module *m)
{
    tni_stage stage = { .widen = true, .dtype = TN_F32 };
    return move(function, m, &stage);
}
