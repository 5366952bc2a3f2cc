/*
 * autocast.c - mixed precision: what dtype an op's inputs get inside tn_set_autocast, and the
 * casts of parameters that are kept.
 *
 * Casts are ordinary recorded ops (tn_to_dtype), so gradients return in the dtype of the tensor
 * that was cast. A cast is freed when the op is done, unless its node keeps it, with one exception:
 * the next micro-batch, a tied layer or the next step of an unrolled loop reads a parameter again.
 * So the cast of an f32 leaf that requires grad stays until the region ends or the leaf changes.
 * Only recorded casts are kept: one made under TN_NO_GRAD has no history to its leaf, and a later
 * op that records would lose the gradient.
 *
 * A large leaf's first cast in a region is not kept, neither here nor by the op that reads it: its
 * backward casts once more (saved.c). A leaf that is read again is cast again, and that one stays.
 */
#include "autograd/graph.h"
#include "base/map.h"

TNI_THREAD tn_dtype tni_autocasting = TN_F32;

/* ---- casts that are kept --------------------------------------------------------------------- */

/* One reference to each of the two tensors. */
typedef struct entry {
    tn_tensor *cast; /* or NULL; its node holds the leaf, so no other tensor gets its address */
    tn_tensor *seen; /* alias of the leaf then: while it lives no other storage has that address */
    uint64_t version;
    tn_dtype dtype;
} entry;

static _Thread_local tni_map *kept; /* this thread's: leaf -> entry; NULL: none */

void tni_autocast_free(tni_map *casts)
{
    if (!casts) return;
    for (size_t i = 0; i < casts->capacity; i++) {
        entry *e = casts->cell[i].value;
        if (!e) continue;
        tn_drop(e->cast);
        tn_drop(e->seen);
        tni_free(e, sizeof *e);
    }
    tni_map_free(casts);
    tni_free(casts, sizeof *casts);
}

void tni_autocast_forget(void)
{
    tni_autocast_free(tni_autocast_exchange(NULL));
}

tni_map *tni_autocast_exchange(tni_map *casts)
{
    tni_map *was = kept;
    kept = casts;
    return was;
}

/* The leaf's entry, a new and empty one where there is none; NULL and a message. */
static entry *entry_of(const tn_tensor *leaf)
{
    if (!kept && !(kept = tni_calloc(sizeof *kept))) return NULL;
    entry *e = tni_map_get(kept, leaf);
    if (e || !(e = tni_calloc(sizeof *e)) || tni_map_put(kept, leaf, e) >= 0) return e;
    tni_free(e, sizeof *e);
    return NULL;
}

bool tni_autocast_copy(tni_map **copy)
{
    tni_map *from = tni_autocast_exchange(NULL);
    bool made = true;
    for (size_t i = 0; made && from && i < from->capacity; i++) {
        const entry *old = from->cell[i].value;
        entry *e = old ? entry_of(from->cell[i].key) : NULL;
        if (e) *e = (entry){ tn_keep(old->cast), tn_keep(old->seen), old->version, old->dtype };
        made = !old || e;
    }
    if (!made) tni_autocast_forget();
    *copy = tni_autocast_exchange(from);
    return made;
}

static tn_tensor *cast_leaf(tn_tensor *leaf, tn_dtype dtype)
{
    entry *e = kept ? tni_map_get(kept, leaf) : NULL;
    bool again = e && e->dtype == dtype && e->seen->storage == leaf->storage &&
                 e->version == tn_version(leaf);
    if (again && e->cast) return e->cast;
    tn_tensor *cast = again ? tn_to_dtype(leaf, dtype) : tni_cast_again(leaf, dtype);
    if (!cast || !cast->node) return cast;
    bool stays = again || !tni_is_recomputed(cast->node->op, cast);
    tn_tensor *seen = tni_alias_raw(leaf);
    if (!seen || !(e = entry_of(leaf))) {
        tn_drop(seen);
        return NULL;
    }
    tn_drop(e->cast);
    tn_drop(e->seen);
    *e = (entry){ stays ? tn_keep(cast) : NULL, seen, tn_version(leaf), dtype };
    return cast;
}

/* ---- ops ------------------------------------------------------------------------------------- */

static bool takes_part(const tn_tensor *t)
{
    return t && !tni_none(t) && tni_wide_dtype(t->dtype) == TN_F32;
}

static tn_dtype wanted(const tn_op *op)
{
    return op->autocast == TNI_CAST_LOW ? tni_autocasting : TN_F32;
}

bool tni_autocast_applies(const tn_op *op, int n_in, tn_tensor *const *in)
{
    bool differs = false;
    if (op->autocast == TNI_CAST_KEEP ||
        (op->autocast == TNI_CAST_AUTO && op->dtypes == TNI_ANY_DTYPE) || n_in > TNI_MAX_IN)
        return false;
    for (int i = 0; i < n_in; i++) {
        if (in[i] && !tni_none(in[i]) && in[i]->dtype == TN_F64)
            return false; /* f64 inputs stop the casts: the op's message names what was given */
        differs |= takes_part(in[i]) && in[i]->dtype != wanted(op);
    }
    return differs;
}

static tn_tensor *cast_input(tn_tensor *t, tn_dtype dtype)
{
    if (!takes_part(t) || t->dtype == dtype) return t;
    tn_tensor *y = t->dtype == TN_F32 && t->requires_grad && !t->node ? cast_leaf(t, dtype)
                                                                      : tn_to_dtype(t, dtype);
    /* messages name what was given */
    if (y && t->name && !y->name) y->name = tni_strdup_or_none(t->name);
    return y;
}

tn_status tni_autocast_apply(const tn_op *op, const void *args, size_t args_size, int n_in,
                             tn_tensor *const *in, int n_out, tn_tensor **out)
{
    tn_tensor *cast[TNI_MAX_IN];
    tn_scope scope = tn_scope_begin();
    bool made = true;
    for (int i = 0; i < n_in && made; i++) {
        cast[i] = cast_input(in[i], wanted(op));
        made = cast[i] || !in[i];
    }
    tn_status status =
        made ? tni_apply_n(op, args, args_size, n_in, cast, n_out, out) : tni_pending();
    return tni_scope_hand_over(scope, NULL, status, n_out, out);
}

tn_tensor *tni_autocast_f32(tn_tensor *x)
{
    return TNI_UNLIKELY(tni_autocasting != TN_F32) ? cast_input(x, TN_F32) : x;
}

/* ---- the region ------------------------------------------------------------------------------ */

tn_dtype tn_set_autocast(tn_dtype dtype)
{
    tn_dtype was = tni_autocasting;
    if (dtype != TN_F32 && dtype != TN_BF16 && dtype != TN_F16) {
        tni_error(TN_E_DTYPE, "tn_set_autocast: %s: want bf16, f16, or f32 for off",
                  tn_dtype_name(dtype));
        return was;
    }
    tni_autocasting = dtype;
    if (dtype == TN_F32) tni_autocast_forget();
    return was;
}

tn_dtype tn_autocast(void)
{
    return tni_autocasting;
}
