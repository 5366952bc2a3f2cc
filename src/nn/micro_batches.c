/*
 * micro_batches.c - one batch in several parts: when and how often buffers with a role move.
 *
 * A module's first call in training is noted, with copies of its statistics, counters and
 * directions. Where a part ends, what the part made of them is kept aside, and the copies are put
 * back. After the last part each moves once. Layers with a running mean and variance move none in a
 * part, but give the moments of what they saw: with n_k values, mean m_k and unbiased variance v_k
 * in part k, and N = sum n_k
 *
 *     mean = sum n_k m_k / N,    (N - 1) var = sum (n_k - 1) v_k + n_k (m_k - mean)^2
 *
 * Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
 * variances (1979), eq. 2.1.
 */
#include <inttypes.h>
#include <tenon/recompute.h>

#include "autograd/recompute.h"
#include "nn/micro_batches.h"

TNI_THREAD tni_batch *tni_batch_now;

/* ---- the batch ------------------------------------------------------------------------------- */

void tni_batch_free(tni_batch *b)
{
    for (int i = 0; b && i < b->n; i++) {
        tni_moved *m = &b->moved[i];
        for (int k = 0; k < m->n; k++) {
            tn_drop(m->share[k].value);
            tn_drop(m->share[k].var);
        }
        tni_room_free(&m->share, &m->capacity, sizeof *m->share);
        tn_drop(m->start);
        tn_drop(m->var);
        tn_drop(m->buffer);
        tn_module_drop(m->module);
    }
    if (!b) return;
    tni_room_free(&b->moved, &b->capacity, sizeof *b->moved);
    tni_map_free(&b->met);
    tni_free(b, sizeof *b);
}

tni_moved *tni_batch_add(tni_batch *b, tn_module *m, const tni_slot *slot, tn_tensor *buffer,
                         tn_tensor *var)
{
    if (!tni_room(&b->moved, &b->capacity, (size_t)b->n, 1, sizeof *b->moved)) return NULL;
    tn_tensor *start = var ? NULL : tn_clone(tn_detach(buffer));
    if (!var && !start) return NULL;
    tni_moved *moved = &b->moved[b->n++];
    *moved = (tni_moved){ .buffer = tn_keep(buffer), .version = tn_version(buffer) };
    moved->module = m ? tn_module_keep(m) : NULL;
    moved->slot = slot ? slot->name : NULL;
    moved->role = slot ? slot->flags & TN_ROLE : TN_STATISTIC;
    moved->var = var ? tn_keep(var) : NULL;
    moved->start = start ? tn_keep(start) : NULL;
    return moved;
}

tn_status tni_moved_add(tni_moved *moved, tni_share share)
{
    if (!share.value ||
        !tni_room(&moved->share, &moved->capacity, (size_t)moved->n, 1, sizeof *moved->share))
        return tni_pending();
    tn_keep(share.value);
    if (share.var) tn_keep(share.var);
    moved->share[moved->n++] = share;
    return TN_OK;
}

static bool moves_once(const tni_slot *slot)
{
    return slot->kind == TNI_BUFFER && !tni_none(slot->tensor) &&
           (tni_is(slot->flags, TN_STATISTIC) || tni_is(slot->flags, TN_COUNTER) ||
            tni_is(slot->flags, TN_DIRECTION));
}

tn_status tni_batch_meet(tn_module *m)
{
    tni_batch *b = tni_batch_now;
    tn_status status = TN_OK;
    if (!tni_in_part() || !tn_training(m) || tni_map_get(&b->met, m)) return TN_OK;
    tni_region *region = tni_region_now; /* copies are not the recomputed function's */
    tni_region_now = NULL;
    TN_NO_GRAD
    for (int i = 0; status == TN_OK && i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (!moves_once(slot)) continue;
        if (tni_map_put(&b->met, m, m) < 0 || !tni_batch_add(b, m, slot, slot->tensor, NULL))
            status = tni_pending();
    }
    tni_region_now = region;
    return status;
}

static bool has_moved(const tni_moved *moved, const tn_tensor *now)
{
    return now != moved->buffer || tn_version(now) != moved->version;
}

/* Gives the slot its first tensor with its first values. */
static tn_status put_back(tni_moved *moved, tni_slot *slot)
{
    if (slot->tensor != moved->buffer)
        tn_drop(tni_slot_put(moved->module, slot, moved->buffer));
    if (tn_version(moved->buffer) == moved->version) return TN_OK;
    tn_status status = tn_copy_(moved->buffer, moved->start);
    moved->version = tn_version(moved->buffer);
    return status;
}

/* keep: what the part made of the buffers counts. */
static tn_status settle(tni_batch *b, bool keep)
{
    tn_status status = TN_OK;
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD
    for (int i = 0; status == TN_OK && i < b->n; i++) {
        tni_moved *moved = &b->moved[i];
        tni_slot *slot = moved->var ? NULL : tni_slot_named(moved->module, moved->slot);
        if (!slot || tni_none(slot->tensor) || !has_moved(moved, slot->tensor)) continue;
        if (keep && (moved->n == 0 || moved->role == TN_STATISTIC))
            status = tni_moved_add(
                moved, (tni_share){ .value = tn_clone(tn_detach(slot->tensor)), .n = 1 });
        if (status == TN_OK) status = put_back(moved, slot);
    }
    tn_scope_end(scope);
    return status;
}

tn_status tni_batch_settle(tni_batch *b)
{
    return b->over ? TN_OK : settle(b, true);
}

/* ---- the end of a batch ---------------------------------------------------------------------- */

/* sum n_k value_k / sum n_k, in f64. */
static tn_tensor *mean_of(const tni_moved *moved)
{
    tn_tensor *sum = NULL;
    double n = 0;
    for (int k = 0; k < moved->n; k++) {
        const tni_share *s = &moved->share[k];
        tn_tensor *term = tn_mul_scalar(tn_to_dtype(s->value, TN_F64), s->n);
        sum = sum ? tn_add(sum, term) : term;
        n += s->n;
    }
    return tn_div_scalar(sum, n);
}

/* The unbiased variance of all values of all parts, in f64. */
static tn_tensor *variance_of(const tni_moved *moved, tn_tensor *mean)
{
    tn_tensor *sum = NULL;
    double n = 0;
    for (int k = 0; k < moved->n; k++) {
        const tni_share *s = &moved->share[k];
        tn_tensor *within = tn_mul_scalar(tn_to_dtype(s->var, TN_F64), s->n - 1);
        tn_tensor *apart = tn_square(tn_sub(tn_to_dtype(s->value, TN_F64), mean));
        tn_tensor *term = tn_add(within, tn_mul_scalar(apart, s->n));
        sum = sum ? tn_add(sum, term) : term;
        n += s->n;
    }
    return tn_div_scalar(sum, n - 1);
}

/* (1 - momentum) running + momentum now, in f64. */
static tn_tensor *between(tn_tensor *running, tn_tensor *now, double momentum)
{
    tn_tensor *stays = tn_mul_scalar(tn_to_dtype(tn_detach(running), TN_F64), 1 - momentum);
    return tn_add(stays, tn_mul_scalar(tn_to_dtype(tn_detach(now), TN_F64), momentum));
}

/* What it moves to. */
static tni_share next_of(const tni_moved *moved)
{
    tn_tensor *mean = moved->n == 1 && !moved->var ? moved->share[0].value : mean_of(moved);
    if (!moved->var) return (tni_share){ .value = mean };
    return (tni_share){ between(moved->buffer, mean, moved->momentum),
                        between(moved->var, variance_of(moved, mean), moved->momentum), 0 };
}

/* Everything that may fail comes before the first copy. */
static tn_status move_once(tni_batch *b)
{
    tn_status status = TN_OK;
    tni_share *next = tni_alloc_n((size_t)b->n + 1, sizeof *next);
    if (!next) return TN_E_NOMEM;
    for (int i = 0; i < b->n; i++) {
        const tni_moved *moved = &b->moved[i];
        if (moved->n > 0) next[i] = next_of(moved);
        if (moved->n > 0 && (!next[i].value || (moved->var && !next[i].var)))
            status = tni_pending();
    }
    for (int i = 0; status == TN_OK && i < b->n; i++) {
        const tni_moved *moved = &b->moved[i];
        if (moved->n > 0) status = tn_copy_(moved->buffer, next[i].value);
        if (moved->n > 0 && moved->var) status = tn_copy_(moved->var, next[i].var);
    }
    tni_free(next, ((size_t)b->n + 1) * sizeof *next);
    return status;
}

static tn_status end(tni_batch *b)
{
    if (b->over) return TN_OK;
    tn_status status = tni_batch_settle(b);
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD if (status == TN_OK) status = move_once(b);
    tn_scope_end(scope);
    b->over = status == TN_OK;
    return status;
}

tn_status tni_batch_end_early(void)
{
    tni_batch *b = tni_batch_now;
    return b && b->open && b->at == b->parts - 1 ? end(b) : TN_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

void tn_micro_batches_drop(void)
{
    tni_batch *b = tni_batch_now;
    tni_batch_now = NULL;
    if (b && b->open && !b->over) tni_disregard(settle(b, false));
    tni_batch_free(b);
}

static int leave(void)
{
    tn_micro_batches_drop();
    return -1;
}

/* The part that runs now. */
static int part(tni_batch *b)
{
    if (b->at < b->parts) return b->at;
    tni_disregard(end(b)); /* the error is pending */
    return leave();
}

int tn_micro_batches_begin(int n)
{
    static const char f[] = "tn_micro_batches_begin";
    tni_batch *b = tni_batch_now;
    if (n < 1) return tni_minus_one(tni_error(TN_E_INVALID, "%s: %d parts: want 1 or more", f, n));
    if (b && b->open)
        return tni_minus_one(tni_error(TN_E_STATE,
                                       "%s: part %d of %d of a batch is open: want all parts, or "
                                       "tn_micro_batches_drop after break or return",
                                       f, b->at, b->parts));
    if (b && b->parts != n)
        return tni_minus_one(tni_error(TN_E_STATE,
                                       "%s: %d parts: want the %d of the batch in the checkpoint "
                                       "that was loaded, or tn_micro_batches_drop",
                                       f, n, b->parts));
    if (!b && (b = tni_calloc(sizeof *b))) b->parts = n;
    if (!b) return -1;
    b->open = true;
    tni_batch_now = b;
    return part(b);
}

int tn_micro_batches_next(void)
{
    tni_batch *b = tni_batch_now;
    if (!b || !b->open)
        return tni_minus_one(
            tni_error(TN_E_STATE, "tn_micro_batches_next: no batch is open: want "
                                  "tn_micro_batches_begin before"));
    if (tn_error_status() != TN_OK || tni_batch_settle(b) != TN_OK) return leave();
    b->at++;
    return part(b);
}

/* ---- moments --------------------------------------------------------------------------------- */

static tn_status check_moments(const char *f, tn_tensor *const *t, int64_t n, double momentum)
{
    static const char *const name[] = { "running_mean", "running_var", "mean", "var" };
    for (int i = 0; i < 4; i++) {
        if (tni_absent(t[i])) return tni_poison(f, name[i]);
        if (!tni_shape_equal(&t[i]->shape, &t[0]->shape))
            return tni_error(TN_E_SHAPE, "%s: %s %s beside running_mean %s: want equal shapes", f,
                             name[i], tni_shape_text(&t[i]->shape), tni_shape_text(&t[0]->shape));
    }
    if (n < 2) return tni_error(TN_E_INVALID, "%s: n %" PRId64 ": want 2 or more", f, n);
    if (momentum >= 0 && momentum <= 1) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: momentum %g: want in [0, 1]", f, momentum);
}

/* The batch's entry for a running mean; a new one where there is none. */
static tni_moved *moments_of(tni_batch *b, tn_tensor *running_mean, tn_tensor *running_var)
{
    for (int i = 0; i < b->n; i++)
        if (b->moved[i].var && b->moved[i].buffer == running_mean) return &b->moved[i];
    return tni_batch_add(b, NULL, NULL, running_mean, running_var);
}

static tn_status collect(tni_batch *b, tn_tensor *const *t, int64_t n, double momentum)
{
    tni_moved *moved = moments_of(b, t[0], t[1]);
    if (!moved) return tni_pending();
    moved->momentum = momentum;
    return tni_moved_add(moved, (tni_share){ tn_detach(t[2]), tn_detach(t[3]), (double)n });
}

tn_status tn_move_statistics(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *mean,
                             tn_tensor *var, int64_t n, double momentum)
{
    TNI_HOLD_TRAPS;
    tn_tensor *const t[] = { running_mean, running_var, mean, var };
    tn_status status = check_moments("tn_move_statistics", t, n, momentum);
    if (status != TN_OK) return status;
    if (tn_recomputing()) return TN_OK;
    if (tni_in_part()) return collect(tni_batch_now, t, n, momentum);
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD
    {
        tn_tensor *next[] = { between(running_mean, mean, momentum),
                              between(running_var, var, momentum) };
        if (!next[0] || !next[1]) status = tni_pending();
        for (int i = 0; status == TN_OK && i < 2; i++) status = tn_copy_(t[i], next[i]);
    }
    tn_scope_end(scope);
    return status;
}
