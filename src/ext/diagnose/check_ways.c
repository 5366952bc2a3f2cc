/*
 * check_ways.c - ways of tn_check_state to run a step: in parts, captured, on several ranks.
 *
 * Of a batch in parts each part runs by itself, from the same buffers.
 * Moments, mean m_i and unbiased v_i of n_i values, give those of all N values by definition: with
 * A = sum n_i m_i and B = sum ((n_i - 1) v_i + n_i m_i^2),
 *
 *     mean = A / N,    var = (B / N - mean^2) N / (N - 1)
 */
#include <tenon/capture.h>
#include <tenon/parallel.h>

#include "ext/diagnose/check_state.h"
#include "ext/diagnose/explain.h"
#include "nn/micro_batches.h"

/* ---- in parts -------------------------------------------------------------------------------- */

/* What one part made of a buffer; or the moments that a layer gave to tn_move_statistics in it. */
typedef struct share {
    const tn_tensor *buffer, *var; /* var: of moments, else NULL */
    double n, momentum;            /* 1, or of moments how many values */
    tn_tensor *sum, *squares;      /* of the values; else the buffer's new value, and NULL */
} share;

typedef struct shares {
    share *of;
    size_t n, room;
} shares;

static tn_status add_share(shares *all, const tni_moved *moved)
{
    if (moved->n == 0) return TN_OK;
    if (!tni_room(&all->of, &all->room, all->n, 1, sizeof *all->of)) return TN_E_NOMEM;
    const bool statistic = tni_is(moved->role, TN_STATISTIC);
    tn_tensor *x = statistic ? tni_f64_of(moved->value) : tn_detach(moved->value);
    share *s = &all->of[all->n++];
    *s = (share){ moved->buffer, moved->var, moved->n, moved->momentum, x, NULL };
    if (!moved->var) return TN_OK;
    s->sum = tn_mul_scalar(x, s->n);
    s->squares = tn_add(moved->spread, tn_mul_scalar(tn_square(x), s->n));
    return TN_OK;
}

/* What they make together of a buffer, which is as before the parts; NULL: nothing, or failed. */
static tn_tensor *after(const shares *all, const tn_entry *e)
{
    tn_tensor *sum = NULL, *squares = NULL;
    double n = 0, momentum = 0;
    bool var = false;
    for (size_t i = 0; i < all->n; i++) {
        const share *s = &all->of[i];
        if (s->buffer != e->tensor && s->var != e->tensor) continue;
        if (!tni_is(e->role, TN_STATISTIC)) return s->sum; /* the first part counts */
        var = s->var == e->tensor;
        sum = n > 0 ? tn_add(sum, s->sum) : s->sum;
        if (s->squares) squares = squares ? tn_add(squares, s->squares) : s->squares;
        momentum = s->momentum;
        n += s->n;
    }
    tn_tensor *now = n > 0 ? tn_div_scalar(sum, n) : NULL;
    if (!now || !squares) return now;
    if (var) now = tn_sub(tn_div_scalar(squares, n), tn_square(now));
    if (var) now = tn_mul_scalar(now, n / (n - 1));
    return tn_add(tn_mul_scalar(tni_f64_of(e->tensor), 1 - momentum), tn_mul_scalar(now, momentum));
}

/* A part as a batch by itself, after which buffers are as before, also those of modules that no
 * call has met. */
static tn_status take_part(const tni_check *c, tn_module *m, const tn_list *buffers, int part,
                           int parts, shares *all, tn_list *list)
{
    if (tn_micro_batches_begin(1) < 0) return tni_pending();
    tni_batch *b = tni_batch_now;
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < buffers->n; i++) {
        const tn_entry *e = &buffers->entry[i];
        const tni_slot *slot = tni_moves_once(e->role) ? tni_slot_of(e->owner, e->name) : NULL;
        if (!slot) continue;
        TN_NO_GRAD if (!tni_batch_add(b, e->owner, slot, e->tensor, NULL)) status = tni_pending();
    }
    if (status == TN_OK) status = tni_check_part(c, m, part, parts, list);
    if (status == TN_OK && tni_batch_now != b)
        status = tni_error(TN_E_STATE, "tn_check_state: the step has ended the batch that it is a "
                                       "part of: want tn_micro_batches_cancel outside of it");
    if (status == TN_OK) status = tni_batch_settle(b, true);
    for (int i = 0; status == TN_OK && i < b->n; i++)
        TN_NO_GRAD status = add_share(all, &b->moved[i]);
    tn_micro_batches_cancel();
    return status;
}

/* What a batch in parts should leave. */
static tn_list *parts_by_hand(const tni_check *c, tn_module *m, int parts)
{
    tn_list *list = tn_list_new(), *buffers = tn_buffers(m);
    shares all = { 0 };
    tn_status status = list && buffers ? TN_OK : tni_pending();
    for (int part = 0; status == TN_OK && part < parts; part++)
        status = take_part(c, m, buffers, part, parts, &all, list);
    if (status == TN_OK && !tni_check_values(list, m, NULL)) status = tni_pending();
    for (int i = 0; status == TN_OK && i < buffers->n; i++) {
        const tn_entry *e = &buffers->entry[i];
        tn_tensor *now = NULL;
        TN_NO_GRAD now = after(&all, e);
        status = now ? tn_list_set(list, e->name, tn_to(now, tn_cpu())) : tni_pending();
    }
    tni_room_free(&all.of, &all.room, sizeof *all.of);
    return status == TN_OK ? list : NULL;
}

void tni_check_parts(tni_check *c, int n, bool recomputed)
{
    char name[40];
    snprintf(name, sizeof name, "in %d parts%s", n, recomputed ? ", recomputed" : "");
    const tni_way w = { name, "each by itself", NULL, ALL, true, NULL };
    tn_module *hand = tni_check_fresh(c);
    tn_list *want = hand ? parts_by_hand(c, hand, n) : NULL;
    tn_module *m = want ? tni_check_fresh(c) : NULL;
    bool ready = m && (!recomputed || tni_check_recompute(m) == TN_OK);
    tni_check_judge(c, &w, ready ? tni_check_pass(c, m, n) : NULL, want);
    tn_module_drop(hand);
    tn_module_drop(m);
}

/* ---- captured, on a GPU ---------------------------------------------------------------------- */

static tn_tensor *whole_step(void *user, int n, tn_tensor *const *in)
{
    const tni_check_step *s = user;
    tn_tensor *loss = tni_check_closure(user);
    (void)n, (void)in;
    return loss && (!s->opt || tn_optim_step(s->opt) == TN_OK) ? loss : NULL;
}

/* What some runs leave. */
static tn_list *runs(const tni_check *c, bool capture)
{
    enum { RUNS = 4 }; /* called, captured, replayed twice */
    tni_check_step s = { .c = c, .m = tni_check_fresh(c) };
    if (s.m && c->opt) s.opt = tni_check_optim(c, c->opt, s.m);
    bool ready = s.m && (!c->opt || s.opt);
    tn_capture *steps = ready ? tn_capture_new(whole_step, &s, tn_device_of(c->sample)) : NULL;
    tn_list *list = steps ? tn_list_new() : NULL;
    for (int i = 0; list && i < RUNS; i++) TN_SCOPE
        {
            char name[40];
            snprintf(name, sizeof name, "(loss of run %d)", i);
            tn_tensor *t = capture ? tn_capture_run(steps, 0, NULL) : whole_step(&s, 0, NULL);
            if (tni_check_push(list, "", (tn_entry){ .name = name, .tensor = t }) != TN_OK)
                list = NULL;
        }
    if (list) list = tni_check_values(list, s.m, s.opt);
    tn_capture_free(steps);
    tn_optim_free(s.opt);
    tn_module_drop(s.m);
    return list;
}

void tni_check_captured(tni_check *c)
{
    static const tni_way w = {
        "captured", "called", "replayed steps repeat the device's work alone", ALL, false, NULL
    };
    tn_list *want = runs(c, false), *got = want ? runs(c, true) : NULL;
    if (!got && tn_error_status() == TN_E_STATE) /* what no capture can hold */
        tni_error(TN_E_UNSUPPORTED, "%s", tn_error());
    tni_check_judge(c, &w, got, want);
}

/* ---- on several ranks ------------------------------------------------------------------------ */

/* The mean over the ranks, where one has such a gradient. */
static tn_status mean_gradient(tn_list *list, const tn_entry *parameter)
{
    char name[TNI_NAME_LIMIT + 16];
    snprintf(name, sizeof name, "gradient of %s", parameter->name);
    const tn_entry *own = tni_list_find(list, name);
    tn_tensor *has = tn_full_as(TN_SHAPE(1), own != NULL, TN_F64, tn_cpu());
    tn_tensor *g =
        own ? tni_f64_of(own->tensor) : tn_full_as(parameter->tensor->shape, 0, TN_F64, tn_cpu());
    tn_status status = tn_parallel_sum_(has);
    if (status == TN_OK) status = tn_parallel_mean_(g);
    return status == TN_OK && tn_item(has) > 0 ? tn_list_set(list, name, g) : status;
}

/* From what each rank's step leaves by itself, what all should have. */
static tn_status combine(tn_list *list, tn_module *m)
{
    const tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    tn_status status = all ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        const bool buffer = e->kind == TN_BUFFER;
        if (!buffer || (e->persistent && !tni_is(e->role, TN_CONSTANT)))
            status = tn_parallel_broadcast(tni_list_find(list, e->name)->tensor, 0);
        if (status == TN_OK && !buffer) status = mean_gradient(list, e);
    }
    return status;
}

void tni_check_ranks(tni_check *c)
{
    char name[40];
    snprintf(name, sizeof name, "on %d ranks", tn_parallel_size());
    const tni_way w = {
        name, "each by itself", "all ranks have the same parameters and buffers", RANKS, true, NULL
    };
    const tn_data_parallel_options o = { 0 };
    tn_module *hand = c->status == TN_OK ? tni_check_fresh(c) : NULL;
    tn_module *m = hand ? tni_check_fresh(c) : NULL;
    tn_list *want = NULL, *got = NULL;
    tn_status status = tn_parallel_agree(m ? TN_OK : tni_pending());
    tn_data_parallel *p = status == TN_OK ? tn_data_parallel_new(hand, o) : NULL;
    if (p) { /* now it has rank 0's values */
        tn_data_parallel_free(p);
        want = tni_check_pass(c, hand, 1);
        tni_generator_put(tn_default_generator(), &c->generator);
        status = tn_parallel_agree(want ? TN_OK : tni_pending());
        if (status == TN_OK) status = combine(want, hand);
        p = status == TN_OK ? tn_data_parallel_new(m, o) : NULL;
    }
    if (p) got = tni_check_pass(c, m, 1);
    if (c->status == TN_OK) tni_check_judge(c, &w, got, want);
    tn_data_parallel_free(p);
    tn_module_drop(hand);
    tn_module_drop(m);
}
