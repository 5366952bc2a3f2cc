/*
 * ctc.c - connectionist temporal classification over log-probabilities [t, n, c], a sequence of
 * labels at a time.
 *
 * Its states are the labels, with a blank before, between and after them. A state is entered from
 * itself, the one before, and the label before that if it is another one. e: the log-probability of
 * a state's class at step k.
 *   alpha[k][s] = e + log of the sum of exp(alpha[k - 1]) over the states that enter s
 *   beta[k][s]  = e + log of the sum of exp(beta[k + 1]) over the states that s enters
 *   loss        = -log of the sum of exp(alpha) of the last two states at the last step
 *   share[k][s] = exp(alpha + beta - e + loss): the probability of s at step k, given the labels;
 *                 divided by their sum, which is 1 but for the rounding that all of them share
 *   dx[k][c]    = drow (exp(x[k][c]) - the sum of share[k] over the states of class c)
 * Source: Graves et al., Connectionist temporal classification (2006), section 4.
 */
#include "tensor/cpu/real/rows.h"

typedef struct ctc_job {
    const tni_ctc *of;
    const tni_ctc_grad *grad;
    int64_t room; /* of a row of states, and two places on either side of it */
    tni_scratch scratch;
    size_t reals;
} ctc_job;

/* A sequence. Rows of states begin at 0 and may be read from -2 to n + 1: there is -inf, but in
 * start, which stands for the step before the first and after the last. */
typedef struct states {
    int64_t n, steps;
    int64_t *id; /* classes */
    REAL *e, *start, *beta[2];
    REAL *skip; /* 0: the state is entered from two before, too; else -inf */
} states;

static states states_of(const ctc_job *job, int64_t i)
{
    const tni_array *table = &job->of->table;
    const int64_t *row = (const int64_t *)table->data + i * table->size[1];
    states s = { .n = 2 * row[1] + 1, .steps = row[0], .id = tni_scratch_own(&job->scratch, 0) };
    REAL *at = (REAL *)tni_scratch_own(&job->scratch, job->reals) + 2;
    for (int64_t j = 0; j < 5 * job->room; j++) at[j - 2] = -REAL_INFINITY;
    s.e = at;
    s.start = at + job->room;
    s.skip = at + 2 * job->room;
    for (int b = 0; b < 2; b++) s.beta[b] = at + (3 + b) * job->room;
    for (int64_t j = 0; j < s.n; j++) {
        s.id[j] = j % 2 ? row[2 + j / 2] : job->of->blank;
        if (j > 1 && s.id[j] != s.id[j - 2]) s.skip[j] = 0;
    }
    s.skip[1] = s.skip[s.n] = 0; /* from the place before the first state; beta: after the last */
    s.start[-1] = s.start[s.n] = 0;
    return s;
}

static inline REAL log_sum(REAL a, REAL b, REAL c)
{
    REAL top = a > b ? a : b;
    top = c > top ? c : top;
    top = top == -REAL_INFINITY ? 0 : top;
    return top + REAL_LOG(REAL_EXP(a - top) + REAL_EXP(b - top) + REAL_EXP(c - top));
}

/* One step, from those beside it: x is of the step before (to -1) or after (to 1). e becomes the
 * step's. */
TNI_INLINE void step(const ctc_job *job, const states *s, int64_t i, int64_t k, REAL *y,
                     const REAL *x, int to, const REAL *skip)
{
    const tni_array *of = &job->of->x;
    const REAL *p = (const REAL *)of->data + (k * of->size[1] + i) * of->size[2];
    REAL *restrict e = s->e;
    for (int64_t j = 0; j < s->n; j++) e[j] = p[s->id[j]];
#pragma omp simd
    for (int64_t j = 0; j < s->n; j++)
        y[j] = e[j] + log_sum(x[j], x[j + to], x[j + 2 * to] + skip[j]);
}

/* Where step k of sequence i has its states. */
static inline REAL *alpha_at(const ctc_job *job, int64_t i, int64_t k)
{
    const tni_array *alpha = &job->of->alpha;
    return (REAL *)alpha->data + (i * alpha->size[1] + k) * alpha->size[2] + 2;
}

static void ctc_forward(void *context, int64_t begin, int64_t end)
{
    const ctc_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        states s = states_of(job, i);
        const REAL *before = s.start;
        for (int64_t k = 0; k < s.steps; k++) {
            REAL *alpha = alpha_at(job, i, k);
            alpha[-2] = alpha[-1] = -REAL_INFINITY;
            step(job, &s, i, k, alpha, before, -1, s.skip);
            before = alpha;
        }
        ((REAL *)job->of->loss.data)[i] =
            -log_sum(before[s.n - 1], before[s.n - 2], -REAL_INFINITY);
    }
}

/* One step's row of dx: g (exp x - share), e being log-probabilities of classes. */
static void put_slope(REAL *restrict dx, const REAL *x, int64_t c, const states *s,
                      const REAL *alpha, const REAL *beta, REAL loss, REAL g)
{
    REAL *restrict e = s->e, all = 0;
    row_exp(dx, x, 0, c);
#pragma omp simd
    for (int64_t j = 0; j < c; j++) dx[j] *= g;
#pragma omp simd
    for (int64_t j = 0; j < s->n; j++)
        e[j] = e[j] == -REAL_INFINITY ? 0 : REAL_EXP(alpha[j] + beta[j] - e[j] + loss);
    for (int64_t j = 0; j < s->n; j++) all += e[j];
    for (int64_t j = 0; j < s->n; j++) dx[s->id[j]] -= g / all * e[j];
}

static void ctc_backward(void *context, int64_t begin, int64_t end)
{
    const ctc_job *job = context;
    const tni_array *x = &job->of->x;
    int64_t n = x->size[1], c = x->size[2];
    for (int64_t i = begin; i < end; i++) {
        states s = states_of(job, i);
        REAL loss = ((REAL *)job->of->loss.data)[i], g = ((REAL *)job->grad->drow.data)[i];
        bool zero = job->grad->zero_infinity && loss == REAL_INFINITY;
        const REAL *after = s.start;
        for (int64_t k = x->size[0] - 1; k >= 0; k--) {
            int64_t at = (k * n + i) * c;
            REAL *dx = (REAL *)job->grad->dx.data + at, *beta = s.beta[k % 2];
            if (k >= s.steps || !isfinite(loss)) {
                for (int64_t j = 0; j < c; j++) dx[j] = k >= s.steps || zero ? 0 : (REAL)NAN;
                continue;
            }
            step(job, &s, i, k, beta, after, 1, s.skip + 2);
            put_slope(dx, (const REAL *)x->data + at, c, &s, alpha_at(job, i, k), beta, loss, g);
            after = beta;
        }
    }
}

static tn_status run(ctc_job *job, tni_chunk chunk)
{
    const tni_array *x = &job->of->x;
    job->room = job->of->alpha.size[2] + 2;
    tni_scratch_add(&job->scratch, (size_t)job->room * sizeof(int64_t));
    job->reals = tni_scratch_add(&job->scratch, (size_t)job->room * 5 * sizeof(REAL));
    int64_t grain = row_grain(x->size[0] * (8 * job->room + x->size[2]), 4);
    return tni_parallel_scratch(&job->scratch, x->size[1], grain, chunk, job);
}

tn_status K(tni_ctc)(const tni_ctc *a)
{
    return run(&(ctc_job){ .of = a }, ctc_forward);
}

tn_status K(tni_ctc_grad)(const tni_ctc_grad *a)
{
    return run(&(ctc_job){ .of = &a->of, .grad = a }, ctc_backward);
}
