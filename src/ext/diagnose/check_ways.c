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
#include <tenon/optimizers.h>
#include <tenon/parallel.h>

#include "ext/diagnose/check_state.h"
#include "ext/diagnose/explain.h"
#include "nn/micro_batches.h"

/* ---- in parts -------------------------------------------------------------------------------- */

/* What the parts made of a buffer. */
typedef struct share {
    tn_tensor *sum, *squares; /* of their values; or of the numbers behind moments, else NULL */
    double n, momentum;
    bool var; /* it is the variance of moments */
} share;

static void add(share *s, const tn_entry *e, const tni_moved *moved)
{
    if (moved->n == 0 || (moved->buffer != e->tensor && moved->var != e->tensor)) return;
    if (s->sum && !tni_is(e->role, TN_STATISTIC)) return; /* the first part counts */
    const bool statistic = tni_is(moved->role, TN_STATISTIC);
    tn_tensor *x = statistic ? tni_f64_of(moved->value) : tn_detach(moved->value);
    if (moved->var) {
        tn_tensor *squares = tn_add(moved->spread, tn_mul_scalar(tn_square(x), moved->n));
        s->squares = s->squares ? tn_add(s->squares, squares) : squares;
        x = tn_mul_scalar(x, moved->n);
    }
    s->sum = s->sum ? tn_add(s->sum, x) : x;
    s->var = moved->var == e->tensor;
    s->momentum = moved->momentum;
    s->n += moved->n;
}

/* What a buffer, which is as before the parts, becomes by them; NULL: nothing, or failed. */
static tn_tensor *after(const share *s, const tn_entry *e)
{
    if (!s->sum || !tni_is(e->role, TN_STATISTIC)) return s->sum;
    tn_tensor *now = tn_div_scalar(s->sum, s->n), *was = tni_f64_of(e->tensor);
    if (!s->squares) return now;
    if (s->var) now = tn_sub(tn_div_scalar(s->squares, s->n), tn_square(now));
    if (s->var) now = tn_mul_scalar(now, s->n / (s->n - 1));
    return tn_add(tn_mul_scalar(was, 1 - s->momentum), tn_mul_scalar(now, s->momentum));
}

/* A part as a batch by itself, after which buffers are as before, also those of modules that no
 * call has met. */
static void take_part(const tni_check *c, tn_module *m, const tn_list *buffers, int part, int parts,
                      share *all, tn_list *list)
{
    if (tn_micro_batches_begin(1) < 0) return;
    tni_batch *b = tni_batch_now;
    for (int i = 0; i < buffers->n; i++) {
        const tn_entry *e = &buffers->entry[i];
        const tni_slot *slot = tni_moves_once(e->role) ? tni_slot_of(e->owner, e->name) : NULL;
        TN_NO_GRAD if (slot) tni_batch_add(b, e->owner, slot, e->tensor, NULL);
    }
    tni_check_part(c, m, part, parts, list);
    tn_status status = tni_pending();
    if (status == TN_OK && tni_batch_now != b)
        status = tni_error(TN_E_STATE, "tn_check_state: the step has ended the batch that it is a "
                                       "part of: want tn_micro_batches_cancel outside of it");
    if (status == TN_OK) status = tni_batch_settle(b, true);
    for (int i = 0; status == TN_OK && i < b->n; i++)
        for (int k = 0; k < buffers->n; k++)
            TN_NO_GRAD add(&all[k], &buffers->entry[k], &b->moved[i]);
    tn_micro_batches_cancel();
}

/* What a batch in parts should leave. */
static tn_list *parts_by_hand(const tni_check *c, tn_module *m, int parts)
{
    tn_list *list = tn_list_new(), *buffers = tn_buffers(m);
    const size_t n = buffers ? (size_t)buffers->n : 0;
    share *all = tni_calloc_n(n + 1, sizeof *all);
    for (int part = 0; part < parts && tni_pending() == TN_OK; part++)
        take_part(c, m, buffers, part, parts, all, list);
    list = tni_check_values(list, m, NULL);
    for (size_t i = 0; list && i < n; i++) {
        const tn_entry *e = &buffers->entry[i];
        tn_tensor *now = NULL;
        TN_NO_GRAD now = after(&all[i], e);
        if (now) tni_disregard(tn_list_set(list, e->name, tn_to(now, tn_cpu())));
    }
    tni_free(all, (n + 1) * sizeof *all);
    return tni_pending() == TN_OK ? list : NULL;
}

void tni_check_parts(tni_check *c, int n, bool recomputed)
{
    char name[40];
    snprintf(name, sizeof name, "in %d parts%s", n, recomputed ? ", recomputed" : "");
    const tni_way w = { name, "each by itself", NULL, PARTS, NULL };
    const tni_check_copy hand = tni_check_copies(c, c->model, NULL);
    tn_list *want = parts_by_hand(c, hand.m, n), *got = NULL;
    const tni_check_copy s = tni_check_copies(c, c->model, NULL);
    if (want && (!recomputed || tni_check_recompute(s.m) == TN_OK)) got = tni_check_pass(c, s.m, n);
    tni_check_judge(c, &w, got, want);
    tni_check_drop(&hand);
    tni_check_drop(&s);
}

/* ---- captured, on a GPU ---------------------------------------------------------------------- */

static tn_tensor *whole_step(int n, tn_tensor *const *in, void *user)
{
    const tni_check_copy *s = user;
    (void)n, (void)in;
    return s->opt ? tn_optim_step_with(s->opt, tni_check_closure, user) : tni_check_closure(user);
}

/* What some runs leave. */
static tn_list *runs(const tni_check *c, tn_device gpu, bool capture)
{
    enum { RUNS = 4 }; /* called, captured, replayed twice */
    tni_check_copy s = tni_check_copies(c, c->model, c->opt);
    tn_capture *steps = tn_capture_new(whole_step, &s, gpu);
    tn_list *list = tn_list_new();
    for (int i = 0; i < RUNS && tni_pending() == TN_OK; i++) TN_SCOPE
        {
            char name[40];
            snprintf(name, sizeof name, "(loss of run %d)", i);
            tn_tensor *t = capture ? tn_capture_run(steps, 0, NULL) : whole_step(0, NULL, &s);
            tni_check_push(list, "", (tn_entry){ .name = name, .tensor = t });
        }
    list = tni_check_values(list, s.m, s.opt);
    tn_capture_free(steps);
    tni_check_drop(&s);
    return list;
}

void tni_check_captured(tni_check *c, tn_device gpu)
{
    static const tni_way w = { "captured", "called",
                               "replayed steps repeat the device's work alone", ALL, NULL };
    tn_list *want = runs(c, gpu, false), *got = want ? runs(c, gpu, true) : NULL;
    char why[512]; /* the message cannot be written from itself */
    snprintf(why, sizeof why, "%s", tn_error());
    if (!got && tn_error_status() == TN_E_STATE) /* what no capture can hold */
        tni_error(TN_E_UNSUPPORTED, "%s", why);
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
    TNI_TRY(tn_parallel_sum_(has));
    TNI_TRY(tn_parallel_mean_(g));
    return tn_item(has) > 0 ? tn_list_set(list, name, g) : TN_OK;
}

/* From what each rank's step leaves by itself, what all should have. */
static tn_status combine(tn_list *list, tn_module *m)
{
    const tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    if (!all) return tni_pending();
    for (int i = 0; i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        const bool buffer = e->kind == TN_BUFFER;
        if (!buffer || (e->persistent && !tni_is(e->role, TN_CONSTANT)))
            TNI_TRY(tn_parallel_broadcast(tni_list_find(list, e->name)->tensor, 0));
        if (!buffer) TNI_TRY(mean_gradient(list, e));
    }
    return TN_OK;
}

void tni_check_ranks(tni_check *c)
{
    char name[40];
    snprintf(name, sizeof name, "on %d ranks", tn_parallel_size());
    const tni_way w = { name, "each by itself", "all ranks have the same parameters and buffers",
                        RANKS, NULL };
    const tn_data_parallel_options o = { 0 };
    const tni_check_copy hand = tni_check_copies(c, c->model, NULL);
    const tni_check_copy s = tni_check_copies(c, c->model, NULL);
    tn_list *want = NULL, *got = NULL;
    tn_status status = tn_parallel_agree(c->status == TN_OK ? tni_pending() : c->status);
    tn_data_parallel *p = status == TN_OK ? tn_data_parallel_new(hand.m, o) : NULL;
    if (p) { /* now it has rank 0's values */
        tn_data_parallel_free(p);
        want = tni_check_pass(c, hand.m, 1);
        tni_generator_put(tn_default_generator(), &c->generator);
        status = tn_parallel_agree(want ? TN_OK : tni_pending());
        if (status == TN_OK) status = combine(want, hand.m);
        p = status == TN_OK ? tn_data_parallel_new(s.m, o) : NULL;
    }
    if (p) got = tni_check_pass(c, s.m, 1);
    if (c->status == TN_OK) tni_check_judge(c, &w, got, want);
    tn_data_parallel_free(p);
    tni_check_drop(&hand);
    tni_check_drop(&s);
}
