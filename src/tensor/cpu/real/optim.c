/*
 * optim.c - one step of an optimizer over all its tensors, in one parallel pass.
 *
 * The tensors' elements are numbered through, one after another, and cut into chunks of CHUNK: many
 * small tensors share a chunk, a large one spans several. Elements do not depend on each other. The
 * formulas are those of optim_formulas.h. Choices that hold for a whole tensor are constant
 * arguments of inlined functions, so that each loop is straight-line code and vectorises.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/real/rows.h"

#define TNI_OPTIM_REAL REAL
#define TNI_OPTIM(name) name
#define TNI_OPTIM_SQRT(x) REAL_SQRT(x)
#include "tensor/optim_formulas.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { CHUNK = 16384 };

typedef struct optim_job {
    const tni_optim_args *args;
    const tni_optim_tensor *tensors;
    int n;
    /* [n + 1]: number of a tensor's first element; another dtype's tensors have none of their
     * own */
    const int64_t *first;
} optim_job;

/* Elements [b, e) of one tensor. */
typedef struct span {
    const tni_optim_tensor *t;
    tni_optim_scalars s;
    REAL sign; /* -1 to maximize */
    int64_t b, e;
} span;

ALWAYS_INLINE REAL gradient(REAL g, REAL p, REAL sign, REAL wd, bool decay)
{
    g = sign * g;
    return decay ? g + wd * p : g; /* without decay an infinite parameter leaves g alone */
}

ALWAYS_INLINE void sgd_loop(const span *r, bool decay, bool momentum, bool first, bool nesterov)
{
    REAL *restrict p = r->t->p, *restrict buf = r->t->s0;
    const REAL *restrict g = r->t->g;
    const REAL wd = (REAL)r->s.wd, a = (REAL)r->s.a, keep = (REAL)r->s.one_minus_a,
               lr = (REAL)r->s.rate;
    const REAL sign = r->sign;
#pragma omp simd
    for (int64_t i = r->b; i < r->e; i++) {
        tni_sgd(&p[i], gradient(g[i], p[i], sign, wd, decay), momentum ? &buf[i] : NULL, a, keep,
                lr, first, nesterov);
    }
}

ALWAYS_INLINE void sgd_momentum(const span *r, bool decay, bool nesterov)
{
    if (r->s.first) {
        sgd_loop(r, decay, true, true, nesterov);
    } else {
        sgd_loop(r, decay, true, false, nesterov);
    }
}

static void sgd_span(const span *r, bool nesterov)
{
    bool decay = r->s.wd != 0;
    if (!r->t->s0) {
        decay ? sgd_loop(r, true, false, false, false) : sgd_loop(r, false, false, false, false);
    } else if (nesterov) {
        decay ? sgd_momentum(r, true, true) : sgd_momentum(r, false, true);
    } else {
        decay ? sgd_momentum(r, true, false) : sgd_momentum(r, false, false);
    }
}

ALWAYS_INLINE void adam_loop(const span *r, bool decay, bool amsgrad)
{
    REAL *restrict p = r->t->p, *restrict m = r->t->s0, *restrict v = r->t->s1,
                   *restrict vmax = r->t->s2;
    const REAL *restrict g = r->t->g;
    const REAL wd = (REAL)r->s.wd, b1 = (REAL)r->s.a, c1 = (REAL)r->s.one_minus_a,
               b2 = (REAL)r->s.b;
    const REAL c2 = (REAL)r->s.one_minus_b, eps = (REAL)r->s.eps, rate = (REAL)r->s.rate;
    const REAL root_scale = (REAL)r->s.root_scale, shrink = (REAL)r->s.shrink, sign = r->sign;
#pragma omp simd
    for (int64_t i = r->b; i < r->e; i++) {
        REAL grad = gradient(g[i], p[i], sign, wd, decay);
        /* AdamW's decoupled decay; 1 for Adam. Loshchilov and Hutter (2019), algorithm 2 */
        p[i] *= shrink;
        tni_adam(&p[i], grad, &m[i], &v[i], amsgrad ? &vmax[i] : NULL, b1, c1, b2, c2, eps, rate,
                 root_scale);
    }
}

static void adam_span(const span *r)
{
    bool decay = r->s.wd != 0;
    if (r->t->s2) {
        decay ? adam_loop(r, true, true) : adam_loop(r, false, true);
    } else {
        decay ? adam_loop(r, true, false) : adam_loop(r, false, false);
    }
}

ALWAYS_INLINE void rmsprop_loop(const span *r, bool decay, bool centered, bool momentum)
{
    REAL *restrict p = r->t->p, *restrict v = r->t->s0, *restrict average = r->t->s1,
                   *restrict buf = r->t->s2;
    const REAL *restrict g = r->t->g;
    const REAL wd = (REAL)r->s.wd, a = (REAL)r->s.a, c = (REAL)r->s.one_minus_a, b = (REAL)r->s.b;
    const REAL eps = (REAL)r->s.eps, lr = (REAL)r->s.rate, sign = r->sign;
#pragma omp simd
    for (int64_t i = r->b; i < r->e; i++) {
        tni_rmsprop(&p[i], gradient(g[i], p[i], sign, wd, decay), &v[i],
                    centered ? &average[i] : NULL, momentum ? &buf[i] : NULL, a, c, b, eps, lr);
    }
}

ALWAYS_INLINE void rmsprop_decay(const span *r, bool centered, bool momentum)
{
    if (r->s.wd != 0) {
        rmsprop_loop(r, true, centered, momentum);
    } else {
        rmsprop_loop(r, false, centered, momentum);
    }
}

static void rmsprop_span(const span *r)
{
    if (r->t->s1) {
        r->t->s2 ? rmsprop_decay(r, true, true) : rmsprop_decay(r, true, false);
    } else {
        r->t->s2 ? rmsprop_decay(r, false, true) : rmsprop_decay(r, false, false);
    }
}

ALWAYS_INLINE void adagrad_loop(const span *r, bool decay)
{
    REAL *restrict p = r->t->p, *restrict sum = r->t->s0;
    const REAL *restrict g = r->t->g;
    const REAL wd = (REAL)r->s.wd, eps = (REAL)r->s.eps, rate = (REAL)r->s.rate, sign = r->sign;
#pragma omp simd
    for (int64_t i = r->b; i < r->e; i++) {
        tni_adagrad(&p[i], gradient(g[i], p[i], sign, wd, decay), &sum[i], eps, rate);
    }
}

static void adagrad_span(const span *r)
{
    if (r->s.wd != 0) {
        adagrad_loop(r, true);
    } else {
        adagrad_loop(r, false);
    }
}

static void scale_span(const span *r)
{
    REAL *p = r->t->p;
    const REAL rate = (REAL)r->s.rate;
#pragma omp simd
    for (int64_t i = r->b; i < r->e; i++) {
        p[i] *= rate;
    }
}

static void lerp_span(const span *r)
{
    REAL *restrict p = r->t->p;
    const REAL *restrict g = r->t->g;
    const REAL rate = (REAL)r->s.rate;
#pragma omp simd
    for (int64_t i = r->b; i < r->e; i++) {
        tni_lerp(&p[i], g[i], rate);
    }
}

static void step_span(const optim_job *job, const tni_optim_tensor *t, int64_t b, int64_t e)
{
    span r = { t, tni_optim_scalars_of(job->args, t), job->args->maximize ? -1 : 1, b, e };
    switch (job->args->kind) {
    case TNI_SGD: sgd_span(&r, job->args->flag); break;
    case TNI_ADAM:
    case TNI_ADAMW: adam_span(&r); break;
    case TNI_RMSPROP: rmsprop_span(&r); break;
    case TNI_ADAGRAD: adagrad_span(&r); break;
    case TNI_SCALE: scale_span(&r); break;
    case TNI_LERP: lerp_span(&r); break;
    }
}

static void optim_chunk(void *context, int64_t begin, int64_t end)
{
    const optim_job *job = context;
    int low = 0, high = job->n; /* the last tensor whose first element is at most begin */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (job->first[middle] <= begin) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (int k = low; k < job->n && job->first[k] < end; k++) {
        int64_t b = TNI_MAX(begin, job->first[k]);
        int64_t e = TNI_MIN(end, job->first[k + 1]);
        if (b < e) {
            step_span(job, &job->tensors[k], b - job->first[k], e - job->first[k]);
        }
    }
}

/* Steps the tensors of this dtype. */
void K(tni_optim_step)(const tni_optim_step *a, int64_t *first)
{
    const tni_optim_tensor *tensors = a->tensors;
    int n = a->n;
    const tn_dtype mine = sizeof(REAL) == sizeof(float) ? TN_F32 : TN_F64;
    first[0] = 0;
    for (int k = 0; k < n; k++) {
        first[k + 1] = first[k] + (tensors[k].dtype == mine ? tensors[k].n : 0);
    }
    optim_job job = { .args = a->args, .tensors = tensors, .first = first, .n = n };
    tni_parallel(first[n], CHUNK, optim_chunk, &job);
}
