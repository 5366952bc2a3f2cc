/*
 * micro_batches.c - one batch in several parts: when and how often buffers with a role move.
 *
 * A module's first call in training is noted, with copies of its statistics, counters and
 * directions. Where a part ends, what the part made of them is kept aside, and the copies are put
 * back. After the last part each moves once. Layers with a running mean and variance move none in a
 * part, but give the moments of what they saw. With mean m and sum of squares S of n values so far,
 * and k values more, of mean m' and sum S', d = m' - m:
 *
 *     m += d k / (n + k),    S += S' + d^2 n k / (n + k)
 *
 * Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
 * variances (1979), eq. 2.1. In f64.
 */
#include "autograd/recompute.h"
#include "nn/micro_batches.h"

TNI_THREAD tni_batch *tni_batch_now;

/* ---- the batch ------------------------------------------------------------------------------- */

void tni_batch_free(tni_batch *b)
{
    if (!b) return;
    for (int i = 0; i < b->n; i++) {
        tni_moved *m = &b->moved[i];
        tn_tensor *const held[] = { m->buffer, m->var, m->start, m->value, m->spread };
        for (size_t k = 0; k < sizeof held / sizeof *held; k++) tn_drop(held[k]);
        tn_module_drop(m->module);
    }
    tni_room_free(&b->moved, &b->capacity, sizeof *b->moved);
    tni_map_free(&b->met);
    tni_free(b, sizeof *b);
}

static int newest_of(const tni_batch *b, const tn_module *m)
{
    return (int)(intptr_t)tni_map_get(&b->met, m);
}

static bool is_met(const tni_batch *b, const tn_module *m, const tni_slot *slot)
{
    int i = newest_of(b, m);
    while (i && b->moved[i - 1].slot != tni_named_serial(slot)) i = b->moved[i - 1].before;
    return i != 0;
}

tni_moved *tni_batch_add(tni_batch *b, tn_module *m, const tni_slot *slot, tn_tensor *buffer,
                         tn_tensor *var)
{
    if (!tni_room(&b->moved, &b->capacity, (size_t)b->n, 1, sizeof *b->moved)) return NULL;
    tni_moved *moved = &b->moved[b->n];
    tn_tensor *start = tni_none(buffer) ? buffer : var ? NULL : tn_clone(tn_detach(buffer));
    if (!var && !start) return NULL;
    *moved = (tni_moved){ .version = tn_version(buffer), .role = TN_STATISTIC };
    if (slot) {
        moved->slot = tni_named_serial(slot);
        moved->before = newest_of(b, m);
        moved->role = slot->flags & TN_ROLE;
        if (tni_map_put(&b->met, m, (void *)(intptr_t)(b->n + 1)) < 0) return NULL;
        moved->module = tn_module_keep(m);
    }
    moved->buffer = tn_keep(buffer);
    moved->var = tn_keep(var);
    moved->start = tn_keep(start);
    b->n++;
    return moved;
}

/* What a part made of the buffer; of moments, the mean and unbiased variance of n numbers. */
static tn_status add(tni_moved *moved, tn_tensor *x, tn_tensor *var, double n)
{
    const double before = moved->n, total = before + n;
    tn_tensor *mean = tn_clone(tn_detach(x)), *spread = NULL, *apart = NULL;
    if (before > 0) {
        apart = tn_sub(tni_f64_of(x), tni_f64_of(moved->value));
        mean = tn_add(tni_f64_of(moved->value), tn_mul_scalar(apart, n / total));
    }
    if (var) spread = tn_mul_scalar(tni_f64_of(var), n - 1);
    if (var && before > 0) {
        tn_tensor *between = tn_mul_scalar(tn_square(apart), before * n / total);
        spread = tn_add(tn_add(moved->spread, spread), between);
    }
    if (!mean) return tni_pending();
    if (var) TNI_TRY(tni_hold(&moved->spread, spread));
    moved->n = total;
    return tni_hold(&moved->value, mean);
}

static tn_status note(tn_module *m, const char *path, void *user)
{
    tni_batch *b = user;
    (void)path;
    if (!tn_training(m)) return TN_OK;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_BUFFER || tni_none(slot->tensor) || !tni_moves_once(slot->flags) ||
            is_met(b, m, slot))
            continue;
        if (!tni_batch_add(b, m, slot, slot->tensor, NULL)) return tni_pending();
    }
    return TN_OK;
}

tn_status tni_batch_meet(tn_module *m, bool outermost)
{
    tni_batch *b = tni_batch_now;
    tn_status status = TN_OK;
    if (!tni_in_part() || tn_recomputing()) return TN_OK; /* that call's first run was met */
    tni_region *region = tni_region_now; /* copies are not the recomputed function's */
    tni_region_now = NULL;
    TN_NO_GRAD status = outermost ? tni_walk(m, TNI_ONCE, note, NULL, b) : note(m, "", b);
    tni_region_now = region;
    return status;
}

/* Gives the slot its first tensor with its first values. */
static tn_status put_back(tni_moved *moved, tni_slot *slot)
{
    if (slot->tensor != moved->buffer) tn_drop(tni_slot_put(moved->module, slot, moved->buffer));
    if (tn_version(moved->buffer) == moved->version) return TN_OK;
    tn_status status = tn_copy_(moved->buffer, moved->start);
    moved->version = tn_version(moved->buffer);
    return status;
}

/* What the part made of a buffer; of one without a mean (integers) the first part counts. */
static tn_status keep_share(tni_moved *moved, const tni_slot *slot)
{
    tn_tensor *now = slot->tensor;
    const tn_tensor *first = moved->buffer;
    if (!tni_shape_equal(&now->shape, &first->shape))
        return tni_error(TN_E_SHAPE,
                         "tn_micro_batches_next: buffer %s of %s is %s after a part: want %s, as "
                         "before it",
                         slot->name, moved->module->type->name, tni_shape_text(&now->shape),
                         tni_shape_text(&first->shape));
    if (moved->n > 0 && !tni_has_mean(moved->role, first->dtype)) return TN_OK;
    return add(moved, now, NULL, 1);
}

tn_status tni_batch_settle(tni_batch *b, bool keep)
{
    tn_status status = TN_OK;
    TN_SCOPE TN_NO_GRAD for (int i = 0; !b->over && status == TN_OK && i < b->n; i++)
    {
        tni_moved *moved = &b->moved[i];
        tni_slot *slot = moved->var ? NULL : tni_slot_numbered(moved->module, moved->slot);
        if (!slot || slot->kind != TNI_BUFFER || (keep && tni_none(slot->tensor))) continue;
        if (slot->tensor == moved->buffer && tn_version(slot->tensor) == moved->version) continue;
        if (keep) status = keep_share(moved, slot);
        if (status == TN_OK) status = put_back(moved, slot);
    }
    return status;
}

/* ---- the end of a batch ---------------------------------------------------------------------- */

/* (1 - momentum) running + momentum now, in f64. */
static tn_tensor *between(tn_tensor *running, tn_tensor *now, double momentum)
{
    if (momentum == 1) return tni_f64_of(now); /* whatever there was, NaN too */
    return tn_add(tn_mul_scalar(tni_f64_of(running), 1 - momentum),
                  tn_mul_scalar(tni_f64_of(now), momentum));
}

/* Everything that may fail comes before the first copy. */
static tn_status move_once(tni_batch *b)
{
    for (int i = 0; i < b->n; i++) {
        tni_moved *m = &b->moved[i];
        if (m->n == 0 || !m->var) continue;
        tn_tensor *var = tn_div_scalar(m->spread, m->biased ? m->n : m->n - 1);
        TNI_TRY(tni_hold(&m->value, between(m->buffer, m->value, m->momentum)));
        TNI_TRY(tni_hold(&m->spread, var ? between(m->var, var, m->momentum) : NULL));
    }
    for (int i = 0; i < b->n; i++) {
        const tni_moved *m = &b->moved[i];
        if (m->n > 0) TNI_TRY(tn_copy_(m->buffer, m->value));
        if (m->n > 0 && m->var) TNI_TRY(tn_copy_(m->var, m->spread));
    }
    return TN_OK;
}

static tn_status end(tni_batch *b)
{
    if (b->over) return TN_OK;
    tn_status status = tni_batch_settle(b, true);
    TN_SCOPE TN_NO_GRAD if (status == TN_OK) status = move_once(b);
    b->over = status == TN_OK;
    return status;
}

tn_status tni_batch_end_early(void)
{
    tni_batch *b = tni_batch_now;
    return b && b->open && b->at == b->parts - 1 ? end(b) : TN_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

void tn_micro_batches_cancel(void)
{
    tni_batch *b = tni_batch_now;
    tni_batch_now = NULL;
    if (b && b->open) tni_disregard(tni_batch_settle(b, false));
    tni_batch_free(b);
}

static int leave(void)
{
    tn_micro_batches_cancel();
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
    tni_batch *b = tni_batch_now;
    if (n < 1)
        return tni_minus_one(tni_error(TN_E_INVALID, "%s: %d parts: want 1 or more", __func__, n));
    if (b && b->open)
        return tni_minus_one(tni_error(TN_E_STATE,
                                       "%s: part %d of %d of a batch is open: want all parts, or "
                                       "tn_micro_batches_cancel after break or return",
                                       __func__, b->at, b->parts));
    if (b && b->parts != n)
        return tni_minus_one(tni_error(TN_E_STATE,
                                       "%s: %d parts: want the %d of the batch in the checkpoint "
                                       "that was loaded, or tn_micro_batches_cancel",
                                       __func__, n, b->parts));
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
        return tni_minus_one(tni_error(TN_E_STATE, "tn_micro_batches_next: no batch is open: want "
                                                   "tn_micro_batches_begin before"));
    if (tn_error_status() != TN_OK || tni_batch_settle(b, true) != TN_OK) return leave();
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
        if (i < 2 && !tn_dtype_is_float(t[i]->dtype))
            return tni_error(TN_E_DTYPE, "%s: %s is %s: want a floating dtype", f, name[i],
                             tn_dtype_name(t[i]->dtype));
        if (i < 2 && tni_own_memory(f, t[i]) != TN_OK) return tni_pending();
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

static tn_status collect(tni_batch *b, tn_tensor *const *t, int64_t n, double momentum, bool biased)
{
    tni_moved *moved = moments_of(b, t[0], t[1]);
    if (!moved) return tni_pending();
    moved->momentum = momentum;
    moved->biased = biased;
    tn_status status;
    TN_NO_GRAD status = add(moved, t[2], t[3], (double)n);
    return status;
}

tn_status tni_move_statistics(tn_tensor *const running[2], tn_tensor *const now[2], int64_t n,
                              double momentum, bool biased)
{
    TNI_HOLD_TRAPS;
    tn_tensor *const t[] = { running[0], running[1], now[0], now[1] };
    tn_status status = check_moments("tn_move_statistics", t, n, momentum);
    if (status != TN_OK) return status;
    if (tni_in_part()) /* a second run gives the same moments again */
        return tn_recomputing() ? TN_OK : collect(tni_batch_now, t, n, momentum, biased);
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *next[] = { between(t[0], t[2], momentum), between(t[1], t[3], momentum) };
        if (!next[0] || !next[1]) status = tni_pending();
        for (int i = 0; status == TN_OK && i < 2; i++) status = tn_copy_(t[i], next[i]);
    }
    return status;
}

tn_status tn_move_statistics(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *mean,
                             tn_tensor *var, int64_t n, double momentum)
{
    return tni_move_statistics((tn_tensor *[]){ running_mean, running_var },
                               (tn_tensor *[]){ mean, var }, n, momentum, false);
}
