/*
 * sample.c - which token comes next.
 *
 * A row's logits are processed in place: what is dropped becomes -inf, its weight 0. So a draw goes
 * through the survivors by their ids, and a logit that differs by a rounding moves the borders
 * between them only by that much. Sums are in double: a vocabulary has up to 300,000 tokens.
 */
#include "ext/lm/generate.h"

#include <float.h>

#include "base/host.h"
#include "tensor/internal.h"
#include "tensor/philox.h"

#include <tenon/tenon.h>

enum { ROOM = sizeof(tni_candidate) + 2 * sizeof(float) + sizeof(char) }; /* for a logit */

/* ---- what happened before -------------------------------------------------------------------- */

static bool has_logit(const tni_sampler *s, int64_t id)
{
    return id >= 0 && id < s->n;
}

/* For each id that has a logit: once, each time that it was generated, once if it was. */
static void penalise(tni_sampler *s, tni_history h)
{
    const float by = (float)tni_given(s->o.repetition_penalty, false, 1);
    for (int64_t i = 0; i < h.n; i++) {
        const int64_t id = h.ids[i];
        const bool generated = i >= h.n - h.n_new;
        if (!has_logit(s, id)) continue;
        float *x = &s->x[id];
        if (!s->seen[id]) *x = *x < 0 ? *x * by : *x / by;
        if (generated) *x -= (float)s->o.frequency_penalty;
        if (generated && s->seen[id] < 2) *x -= (float)s->o.presence_penalty;
        s->seen[id] = generated ? 2 : 1;
    }
    for (int64_t i = 0; i < h.n; i++)
        if (has_logit(s, h.ids[i])) s->seen[h.ids[i]] = 0;
}

/* ---- which tokens stay ----------------------------------------------------------------------- */

static bool comes_before(tni_candidate a, tni_candidate b)
{
    return a.w > b.w || (a.w == b.w && a.id < b.id);
}

static void swap(tni_candidate *a, tni_candidate *b)
{
    const tni_candidate was = *a;
    *a = *b, *b = was;
}

/* Moves what comes before the middle one of t[low..high) before it; returns where that is then. */
static int64_t split(tni_candidate *t, int64_t low, int64_t high)
{
    swap(&t[low + (high - low) / 2], &t[high - 1]);
    int64_t to = low;
    for (int64_t i = low; i < high - 1; i++)
        if (comes_before(t[i], t[high - 1])) swap(&t[i], &t[to++]);
    swap(&t[to], &t[high - 1]);
    return to;
}

/* The last one before which the weights, or with `counted` the numbers, add up to less than `most`,
 * of n >= 1: quickselect. t[0..low) stays and weighs `above`, t[high..n) does not. */
static tni_candidate last_kept(tni_candidate *t, int64_t n, double most, bool counted)
{
    double above = 0;
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t at = split(t, low, high);
        double sum = above;
        for (int64_t i = low; i < at; i++) sum += counted ? 1 : (double)t[i].w;
        if (sum < most)
            above = sum + (counted ? 1 : (double)t[at].w), low = at + 1;
        else
            high = at;
    }
    return t[low - 1];
}

static void keep_top_k(tni_sampler *s)
{
    if (s->o.top_k == 0 || s->o.top_k >= s->n) return;
    for (int64_t i = 0; i < s->n; i++) s->t[i] = (tni_candidate){ s->x[i], (int32_t)i };
    const float least = last_kept(s->t, s->n, (double)s->o.top_k, true).w;
    for (int64_t i = 0; i < s->n; i++)
        if (s->x[i] < least) s->x[i] = -INFINITY;
}

static double total(const tni_sampler *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++) sum += s->w[i];
    return sum;
}

static void drop(tni_sampler *s, int64_t i)
{
    s->x[i] = -INFINITY;
    s->w[i] = 0;
}

/* Tokens that weigh less than (1 - p) / n of the sum weigh less than 1 - p of it together, so they
 * are dropped in any order: seldom are more than some hundreds left to select from. */
static void keep_top_p(tni_sampler *s)
{
    double p = s->o.top_p;
    if (p == 0 || p == 1) return;
    double sum = total(s), least = (1 - p) * sum / (double)s->n * (1 - 1e-9);
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->w[i] >= least) s->t[n++] = (tni_candidate){ s->w[i], (int32_t)i };
    tni_candidate last = last_kept(s->t, n, p * sum, false);
    for (int64_t i = 0; i < s->n; i++)
        if (comes_before(last, (tni_candidate){ s->w[i], (int32_t)i })) drop(s, i);
}

/* The first of the largest; -1: there is a NaN. */
static int64_t largest(const float *x, int64_t n)
{
    int64_t at = 0;
    bool ordered = true;
    for (int64_t i = 0; i < n; i++) {
        ordered &= !isnan(x[i]);
        if (x[i] > x[at]) at = i;
    }
    return ordered ? at : -1;
}

double tni_log_sum_exp(const float *x, int64_t n)
{
    int64_t at = largest(x, n);
    float most = at < 0 ? NAN : x[at];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += expf(x[i] - most);
    return (double)most + log(sum);
}

tn_status tni_sampler_process(tni_sampler *s, const float *logits, int64_t row, tni_history h)
{
    memcpy(s->x, logits, (size_t)s->n * sizeof *logits);
    penalise(s, h);
    for (int64_t i = 0; i < s->o.n_suppress; i++)
        if (has_logit(s, s->o.suppress[i])) s->x[s->o.suppress[i]] = -INFINITY;
    float by = (float)s->o.temperature;
    for (int64_t i = 0; i < s->n && by > 0 && by != 1; i++) s->x[i] /= by;
    int64_t best = largest(s->x, s->n);
    if (best < 0)
        return tni_error(TN_E_INVALID, "%s: a logit of row %" PRId64 " is NaN", s->function, row);
    if (isinf(s->x[best]))
        return tni_error(TN_E_INVALID, "%s: the largest logit of row %" PRId64 " is %g",
                         s->function, row, (double)s->x[best]);
    if (by == 0) return TN_OK;
    keep_top_k(s);
    for (int64_t i = 0; i < s->n; i++) s->w[i] = expf(s->x[i] - s->x[best]);
    keep_top_p(s);
    for (int64_t i = 0; i < s->n && s->o.min_p > 0; i++)
        if (s->w[i] < (float)s->o.min_p) drop(s, i);
    return TN_OK;
}

/* In [0, 1): 53 bits. */
static double uniform(uint64_t seed, int64_t row, int64_t step)
{
    uint64_t at = (uint64_t)step, of = (uint64_t)row;
    uint32_t a = (uint32_t)at, b = (uint32_t)(at >> 32), c = (uint32_t)of, d = (uint32_t)(of >> 32);
    tni_philox4x32(&a, &b, &c, &d, (uint32_t)seed, (uint32_t)(seed >> 32));
    return ldexp((double)(((uint64_t)a << 32 | b) >> 11), -53);
}

int64_t tni_sampler_choose(const tni_sampler *s, int64_t row, int64_t step)
{
    if (s->o.temperature == 0) return largest(s->x, s->n);
    double left = uniform(s->o.seed, row, step) * total(s);
    int64_t i = 0;
    for (double sum = s->w[0]; sum <= left && i + 1 < s->n;) sum += s->w[++i];
    return i;
}

static tn_status check(const char *function, const tn_sampling_options *o)
{
    TNI_NUMBERS(double) = {
        { "temperature", o->temperature, 0, FLT_MAX },
        { "repetition_penalty", o->repetition_penalty, 0, FLT_MAX },
        { "frequency_penalty", o->frequency_penalty, -FLT_MAX, FLT_MAX },
        { "presence_penalty", o->presence_penalty, -FLT_MAX, FLT_MAX },
        { "n_suppress", (double)o->n_suppress, 0, o->suppress ? INT32_MAX : 0 },
        { "top_k", (double)o->top_k, 0, DBL_MAX },
        { "top_p", o->top_p, 0, 1 },
        { "min_p", o->min_p, 0, 1 },
    };
    TNI_CHECK_NUMBERS(function, "%g");
    return TN_OK;
}

tn_status tni_sampler_begin(tni_sampler *s, const char *function, int64_t n,
                            const tn_sampling_options *o)
{
    *s = (tni_sampler){ .function = function, .o = *o, .n = n };
    s->o.temperature = o->temperature < 1e-30 ? 0 : (float)o->temperature; /* 0: greedy */
    TNI_TRY(check(function, o));
    if (n < 1 || n > INT32_MAX)
        return tni_error(TN_E_SHAPE, "%s: %" PRId64 " logits in a row: want 1 to 2^31 - 1",
                         function, n);
    if (!(s->t = tni_calloc_n((size_t)n, ROOM))) return tni_pending();
    s->x = (float *)(s->t + n);
    s->w = s->x + n;
    s->seen = (unsigned char *)(s->w + n);
    return TN_OK;
}

void tni_sampler_end(tni_sampler *s)
{
    tni_free(s->t, (size_t)s->n * ROOM);
    s->t = NULL;
}

/* A copy in the host's memory. */
static tn_tensor *host_copy(tn_tensor *t, tn_dtype dtype)
{
    tn_tensor *copy = tn_empty_as(tn_shape_get(t), dtype, tn_cpu());
    return copy && tn_copy_(copy, tn_to(t, tn_cpu())) == TN_OK ? copy : NULL;
}

/* The choices [B], or the processed logits [B, V]. Padding is taken out of the history first. */
static tn_tensor *rows_of(tni_sampler *s, tn_tensor *logits, tn_tensor *history, int64_t step,
                          bool choose)
{
    const int64_t rows = tn_size(logits, 0), t = tn_is_none(history) ? 0 : tn_size(history, 1);
    tn_tensor *x = host_copy(logits, TN_F32), *h = t ? host_copy(history, TN_I64) : TN_NONE;
    tn_tensor *y = choose ? tn_empty_as(TN_SHAPE(rows), TN_I64, tn_cpu()) : x;
    if (!x || !h || !y) return NULL;
    for (int64_t i = 0, n = 0; i < rows; i++, n = 0) {
        int64_t *seen = t ? (int64_t *)tn_data_mut(h) + i * t : NULL;
        float *row = (float *)tn_data_mut(x) + i * s->n;
        for (int64_t k = 0; k < t; k++)
            if (seen[k] >= 0) seen[n++] = seen[k];
        const tni_history past = { seen, n, TNI_MIN(step, n) };
        if (tni_sampler_process(s, row, i, past) != TN_OK) return NULL;
        if (choose) ((int64_t *)tn_data_mut(y))[i] = tni_sampler_choose(s, i, step);
        if (!choose) memcpy(row, s->x, (size_t)s->n * sizeof *row);
    }
    return tn_to(y, tn_device_of(logits));
}

static tn_tensor *all_rows(const char *f, tn_tensor *logits, tn_tensor *history, int64_t step,
                           const tn_sampling_options *o, bool choose)
{
    TNI_HOLD_TRAPS;
    tni_sampler TN_WHEN_LEFT(tni_sampler_end) s = { 0 };
    tn_tensor *y = NULL;
    if (!logits) return tni_poisoned(f, "logits");
    if (!history) return tni_poisoned_optional(f, "history");
    if (tn_is_none(logits) || tn_rank(logits) != 2 || !tn_dtype_is_float(tn_dtype_of(logits)))
        return tni_fail(TN_E_SHAPE, "%s: logits: want floats [B, V]", f);
    if (!tn_is_none(history) &&
        (tn_rank(history) != 2 || tn_size(history, 0) != tn_size(logits, 0) ||
         tn_dtype_of(history) != TN_I64))
        return tni_fail(TN_E_SHAPE, "%s: history: want i64 [%" PRId64 ", T]", f,
                        tn_size(logits, 0));
    if (step < 0) return tni_fail(TN_E_INVALID, "%s: step %" PRId64 ": want 0 or more", f, step);
    tn_scope scope = tn_scope_begin();
    if (tni_sampler_begin(&s, f, tn_size(logits, 1), o) == TN_OK)
        TN_NO_GRAD y = rows_of(&s, logits, history, step, choose);
    return tni_scope_return(f, scope, y);
}

#define ROWS(name, choose)                                                                         \
    tn_tensor *name(tn_tensor *logits, tn_tensor *history, int64_t step, tn_sampling_options o)    \
    {                                                                                              \
        return all_rows(#name, logits, history, step, &o, choose);                                 \
    }
ROWS(tn_process_logits, false)
ROWS(tn_sample_token, true)
