/*
 * test_cuda_attention.c - attention in bf16 and f16 on the GPU, forward and gradients, against the
 * CPU's f64 kernels on the same rounded numbers.
 *
 * The tolerance follows from what is rounded. u is half a unit in the last place at 1: 2^-8 for
 * bf16, 2^-11 for f16. The kernels round probabilities p (and ds) as operands of the tensor cores
 * and each result once; all sums are f32. So
 *     y_td  = sum_s p_ts v_sd          is off by u |y| + the sum of errors of at most u p |v|
 *     dv_sd = sum_t p_ts dy_td         likewise
 *     dq_td = scale sum_s ds_ts k_sd   likewise, dk too
 * where the errors of the terms are as good as independent, uniform in [-u, u] times their size:
 * the sum has a deviation of u / sqrt 3 times the root of the sum of squares. Allowed are 4 u times
 * that root, seven deviations. A key too many or too few is a whole term, far above. f16 has less
 * precision below 2^-14: an absolute 2^-25 a term. The gradient's delta is made from y as it was
 * rounded; the reference is given the same y.
 *
 * Where a score is large, or dy . v and delta cancel, the f32 sums show. A tensor core multiplies
 * exactly, and adds a few products at a time, each cut off below the last bit of the largest of
 * them, 2^-23 of its size (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021). So a dot
 * product is off by about 2^-23 of the sum of its terms' sizes, which is allowed for scores and for
 * dy . v - delta.
 *
 * Seen to fail: in attention_half.cu the wait for the values, either of the two barriers of a
 * tile, the tile on the diagonal skipped; in attention_half_grad.cu the barriers, the tile on the
 * diagonal skipped, dk without the scale; in attention_rows.h the shrink of earlier keys left out,
 * -inf subtracted in blocked rows, keys beyond the last seen; in attention_half.h a copy from a
 * row that is not on 16 bytes.
 */
#include <stdlib.h>

#include "numbers.h"
#include "shim.h"
#include "tensor/internal.h"
#include "tensor/math.h"

enum { HEADS_INSIDE = 1, ODD_ROWS = 2, GAPS = 4, EXPANDED = 8 }; /* layouts */
enum {
    NO_MASK,
    BOOL_FULL,
    BOOL_KEYS,    /* [B, 1, 1, S] */
    BOOL_BLOCKED, /* some rows see nothing */
    REAL_FULL,
    REAL_ROW,    /* [1, 1, 1, S] */
    REAL_COLUMN, /* [1, H, T, 1] */
    REAL_TURNED, /* laid out as [B, H, S, T] */
    REAL_LOWEST, /* the type's lowest number in places, and whole rows of it */
    MASKS
};

static const tni_backend *cpu, *gpu;
static tn_dtype dtype;
static double unit, smallest; /* u; the error of a number below the normal range */

static void choose(int variant)
{
    dtype = variant % 2 ? TN_F16 : TN_BF16;
    unit = dtype == TN_F16 ? 0x1p-11 : 0x1p-8;
    smallest = dtype == TN_F16 ? 0x1p-25 : 0;
    cpu = tni_backend_for(tn_cpu());
    gpu = tni_backend_for(tn_cuda(0));
    ck_assert_msg(gpu != NULL, "%s", tn_error());
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static double uniform(void)
{
    return number_in(-1, 1);
}

static uint16_t rounded(double x)
{
    return dtype == TN_F16 ? tn_to_f16((float)x) : tn_to_bf16((float)x);
}

static double number(uint16_t bits)
{
    return (double)(dtype == TN_F16 ? tn_from_f16(bits) : tn_from_bf16(bits));
}

/* An array on the GPU, its block as the host sees it, and its numbers in f64, dense. */
typedef struct array {
    tni_array on_gpu, wide;
    char *block;
    char *device;
    int64_t n, lead; /* elements of the block, before the first */
} array;

static array arrays[16];
static int n_arrays;

static array *new_array(tn_dtype of, const int64_t *size, const int64_t *stride, int64_t lead)
{
    ck_assert_int_lt(n_arrays, 16);
    array *a = &arrays[n_arrays++];
    size_t each = tn_dtype_size(of);
    int64_t dense = 1;
    *a = (array){ .n = lead + 1, .lead = lead };
    for (int i = 3; i >= 0; i--) {
        a->n += (size[i] > 0 ? size[i] - 1 : 0) * stride[i];
        a->on_gpu.size[i] = a->wide.size[i] = size[i];
        a->on_gpu.stride[i] = stride[i];
        a->wide.stride[i] = dense;
        dense *= size[i];
    }
    a->block = malloc((size_t)a->n * each);
    void *device;
    assert_ok(gpu->alloc((size_t)a->n * each, &device));
    a->device = device;
    a->on_gpu.data = a->device + (size_t)lead * each;
    a->on_gpu.dtype = of;
    a->on_gpu.rank = a->wide.rank = 4;
    a->wide.dtype = TN_F64;
    a->wide.data = calloc((size_t)dense + 1, sizeof(double));
    return a;
}

static int64_t elements(const array *a)
{
    const int64_t *size = a->wide.size;
    return size[0] * size[1] * size[2] * size[3];
}

/* Where element i of the dense order lies in the block. */
static int64_t place(const array *a, int64_t i)
{
    int64_t at = a->lead;
    for (int d = 3; d >= 0; d--) {
        at += i % a->wide.size[d] * a->on_gpu.stride[d];
        i /= a->wide.size[d];
    }
    return at;
}

static double *wide_of(const array *a)
{
    return a->wide.data;
}

static void upload(const array *a)
{
    size_t nbytes = (size_t)a->n * tn_dtype_size(a->on_gpu.dtype);
    assert_ok(gpu->upload(a->device, a->block, nbytes));
}

static void *download(const array *a)
{
    size_t nbytes = (size_t)a->n * tn_dtype_size(a->on_gpu.dtype);
    void *copy = malloc(nbytes);
    assert_ok(gpu->download(copy, a->device, nbytes));
    return copy;
}

/* Numbers of [-size, size), those between the rows included. */
static void randomize(array *a, double size)
{
    uint16_t *block = (uint16_t *)(void *)a->block;
    for (int64_t i = 0; i < a->n; i++) block[i] = rounded(uniform() * size);
    for (int64_t i = 0; i < elements(a); i++) wide_of(a)[i] = number(block[place(a, i)]);
    upload(a);
}

/* Before each test, too: what a failed one has left, since tests of a GPU share a process. */
static void free_arrays(void)
{
    for (int i = 0; i < n_arrays; i++) {
        gpu->free(arrays[i].device, (size_t)arrays[i].n * tn_dtype_size(arrays[i].on_gpu.dtype));
        free(arrays[i].block);
        free(arrays[i].wide.data);
    }
    n_arrays = 0;
    unsetenv("TN_CUDA_ORDER");
}

static void drop_arrays(void)
{
    free_arrays();
    assert_ok(tn_cuda_synchronize());
}

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct attention_case {
    int64_t b, h, t, s, d, dv;
    bool causal;
    int mask, layout;
    double size;  /* of q's elements; 0: 1 */
    double scale; /* 0: 1 / sqrt(d) */
} attention_case;

static array *heads(const attention_case *c, int64_t t, int64_t d, bool shared, double size)
{
    int64_t row = d + (c->layout & ODD_ROWS ? 3 : c->layout & GAPS ? 16 - d % 8 : 0);
    int64_t sizes[4] = { c->b, c->h, t, d };
    int64_t stride[4] = { c->h * t * row, t * row, row, 1 };
    if (c->layout & HEADS_INSIDE) {
        stride[1] = row;
        stride[2] = c->h * row;
    }
    if (shared) stride[1] = 0;
    array *a = new_array(dtype, sizes, stride, c->layout & ODD_ROWS ? 3 : 0);
    randomize(a, size);
    return a;
}

static double mask_value(int mask, int64_t i, int64_t s)
{
    if (mask == BOOL_BLOCKED) return i / s % 3 == 1 || i % 5 == 2;
    if (mask == BOOL_FULL || mask == BOOL_KEYS) return uniform() > 0.4;
    if (mask == REAL_LOWEST && (i / s % 7 == 3 || i % 4 == 1))
        return number(dtype == TN_F16 ? 0xfbff : 0xff7f);
    return uniform() > 0.6 && i % s != 0 ? -(double)INFINITY : number(rounded(uniform()));
}

static array *make_mask(const attention_case *c)
{
    bool real = c->mask >= REAL_FULL;
    int64_t sizes[4] = { c->b, c->h, c->t, c->s };
    int64_t stride[4] = { c->h * c->t * c->s, c->t * c->s, c->s, 1 };
    switch (c->mask) {
    case BOOL_KEYS: stride[0] = c->s, stride[1] = stride[2] = 0; break;
    case REAL_ROW: stride[0] = stride[1] = stride[2] = 0; break;
    case REAL_COLUMN: stride[0] = stride[3] = 0, stride[1] = c->t, stride[2] = 1; break;
    case REAL_TURNED: stride[2] = 1, stride[3] = c->t; break;
    default: break;
    }
    array *a = new_array(real ? dtype : TN_BOOL, sizes, stride, 0);
    for (int64_t i = 0; i < elements(a); i++) {
        double v = mask_value(c->mask, i, c->s);
        int64_t at = place(a, i);
        if (c->mask == REAL_COLUMN) v = (double)(at % 3); /* one for all keys */
        if (real)
            ((uint16_t *)(void *)a->block)[at] = rounded(v);
        else
            ((uint8_t *)a->block)[at] = v != 0;
    }
    for (int64_t i = 0; i < elements(a); i++) {
        int64_t at = place(a, i);
        if (real)
            wide_of(a)[i] = number(((uint16_t *)(void *)a->block)[at]);
        else
            ((uint8_t *)a->wide.data)[i] = ((uint8_t *)a->block)[at];
    }
    a->wide.dtype = real ? TN_F64 : TN_BOOL;
    upload(a);
    return a;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static char what[160];

static void near(double got, double want, double allowed, const char *name, int64_t i)
{
    if ((isnan(got) && isnan(want)) || got == want || fabs(got - want) <= allowed) return;
    ck_abort_msg("%s: %s[%" PRId64 "] is %.7g, not %.7g: off by %.3g, not %.3g", what, name, i, got,
                 want, fabs(got - want), allowed);
}

/* Nothing was written between the rows. */
static void untouched(const array *a, const uint16_t *now, const char *name)
{
    char *own = calloc((size_t)a->n, 1);
    for (int64_t i = 0; i < elements(a); i++) own[place(a, i)] = 1;
    for (int64_t i = 0; i < a->n; i++)
        if (!own[i] && now[i] != ((uint16_t *)(void *)a->block)[i])
            ck_abort_msg("%s: %s: written outside", what, name);
    free(own);
}

/* Results [outer, rows, columns] against the f64 ones: deviation2 is the sum of the squares of what
 * the terms may be off by. */
static void compare(array *a, const double *deviation2, const char *name)
{
    uint16_t *now = download(a);
    untouched(a, now, name);
    for (int64_t i = 0; i < elements(a); i++) {
        double want = wide_of(a)[i];
        double allowed =
            unit * fabs(want) + 4 * sqrt(deviation2[i]) + 2 * smallest + 2e-6 * (1 + fabs(want));
        near(number(now[place(a, i)]), want, allowed, name, i);
    }
    free(now);
}

/* ---- one case -------------------------------------------------------------------------------- */

typedef struct problem {
    attention_case c;
    array *q, *k, *v, *y, *dy, *dq, *dk, *dv, *top, *share, *mask;
    double scale;
    tni_attention on_gpu, wide;
    double *off[5]; /* of y, dq, dk, dv: squares summed */
} problem;

static tni_attention call_of(const problem *p, bool wide)
{
    tni_array none = { .data = NULL };
#define ON(a) (wide ? (a)->wide : (a)->on_gpu)
    return (tni_attention){ .y = ON(p->y),
                            .top = ON(p->top),
                            .share = ON(p->share),
                            .q = ON(p->q),
                            .k = ON(p->k),
                            .v = ON(p->v),
                            .mask = p->mask ? ON(p->mask) : none,
                            .scale = p->scale,
                            .causal = p->c.causal };
#undef ON
}

static void set_up(problem *p, const attention_case *c)
{
    int64_t sizes[4] = { c->b, c->h, c->t, 1 }, stride[4] = { c->h * c->t, c->t, 1, 1 };
    double size = c->size > 0 ? c->size : 1;
    *p = (problem){ .c = *c, .scale = c->scale != 0 ? c->scale : 1 / sqrt((double)c->d + 0.25) };
    p->q = heads(c, c->t, c->d, false, size);
    p->k = heads(c, c->s, c->d, (c->layout & EXPANDED) != 0, size);
    p->v = heads(c, c->s, c->dv, (c->layout & EXPANDED) != 0, 1);
    p->y = heads(c, c->t, c->dv, false, 1);
    p->dy = heads(c, c->t, c->dv, false, 1);
    p->dq = heads(c, c->t, c->d, false, 1);
    p->dk = heads(c, c->s, c->d, false, 1);
    p->dv = heads(c, c->s, c->dv, false, 1);
    p->top = new_array(TN_F32, sizes, stride, 0);
    p->share = new_array(TN_F32, sizes, stride, 0);
    p->mask = c->mask == NO_MASK ? NULL : make_mask(c);
    p->on_gpu = call_of(p, false);
    p->wide = call_of(p, true);
    snprintf(what, sizeof what,
             "%s [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
             "]%s mask %d layout %d",
             tn_dtype_name(dtype), c->b, c->h, c->t, c->s, c->d, c->dv, c->causal ? " causal" : "",
             c->mask, c->layout);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* What a tensor core's sum a . b may be off by. */
static double dot_off(const double *a, const double *b, int64_t n)
{
    double sizes = 0;
    for (int64_t i = 0; i < n; i++) sizes += fabs(a[i] * b[i]);
    return 0x1p-23 * sizes;
}

static double square(double x)
{
    return x * x;
}

/* The probability of key s for query t of one head, from what was kept in f64; *off: what it may be
 * off by when its score was rounded to f32 and itself to the dtype. */
static double probability(const problem *p, int64_t item, int64_t t, int64_t s, double *off)
{
    const attention_case *c = &p->c;
    const double *q = wide_of(p->q) + (item * c->t + t) * c->d;
    const double *k = wide_of(p->k) + (item * c->s + s) * c->d;
    double score = p->scale * dot(q, k, c->d);
    int64_t at = (item * c->t + t) * c->s + s;
    *off = smallest;
    if (c->causal && s > t) return 0;
    if (c->mask >= REAL_FULL) score += wide_of(p->mask)[at];
    if (c->mask != NO_MASK && c->mask < REAL_FULL && ((uint8_t *)p->mask->wide.data)[at]) return 0;
    double e = exp(score - wide_of(p->top)[item * c->t + t]) * wide_of(p->share)[item * c->t + t];
    if (isnan(e) || e == 0) return 0;
    *off += (unit + fabs(score) * 0x1p-24 + fabs(p->scale) * dot_off(q, k, c->d)) * e;
    return e;
}

/* The errors that the terms of each sum may have, squared and added. */
static void deviations(problem *p)
{
    const attention_case *c = &p->c;
    int64_t items = c->b * c->h;
    array *of[] = { p->y, p->dq, p->dk, p->dv };
    for (int i = 0; i < 4; i++) p->off[i] = calloc((size_t)elements(of[i]) + 1, sizeof(double));
    for (int64_t row = 0; row < items * c->t; row++) {
        int64_t item = row / c->t, t = row % c->t;
        const double *dy = wide_of(p->dy) + row * c->dv, *q = wide_of(p->q) + row * c->d;
        const double *y = wide_of(p->y) + row * c->dv;
        double delta = dot(dy, y, c->dv), delta_off = dot_off(dy, y, c->dv);
        for (int64_t s = 0; s < c->s; s++) {
            const double *k = wide_of(p->k) + (item * c->s + s) * c->d;
            const double *v = wide_of(p->v) + (item * c->s + s) * c->dv;
            double off, e = probability(p, item, t, s, &off);
            double factor = e > 0 ? fabs(dot(dy, v, c->dv) - delta) : 0;
            double factor_off = e > 0 ? dot_off(dy, v, c->dv) + delta_off : 0;
            double ds_off = fabs(p->scale) * (off * factor + e * factor_off + smallest);
            for (int64_t i = 0; i < c->dv; i++) {
                p->off[0][row * c->dv + i] += square(off * v[i]);
                p->off[3][(item * c->s + s) * c->dv + i] += square(off * dy[i]);
            }
            for (int64_t i = 0; i < c->d; i++) {
                p->off[1][row * c->d + i] += square(ds_off * k[i]);
                p->off[2][(item * c->s + s) * c->d + i] += square(ds_off * q[i]);
            }
        }
    }
}

/* Where cuDNN ran, top holds the row's whole log-sum and share is 1 (attention_cudnn.cu). */
static void compare_share(const problem *p)
{
    float *now = download(p->share), *top_now = download(p->top);
    for (int64_t i = 0; i < p->share->n && elements(p->share) > 0; i++) {
        double want = wide_of(p->share)[i], top = fabs(wide_of(p->top)[i]);
        double off = 2e-6 * (4 + top) * (1 + p->c.size); /* of a score, in f32 */
        if (now[i] == 1 && fabs(want - 1) > off) {
            double sum = (double)top_now[i] * (p->mask ? 1 : p->scale);
            near(sum, wide_of(p->top)[i] - log(want), off, "the log-sum", i);
            continue;
        }
        near((double)now[i], want, off * want, "share", i);
    }
    free(now);
    free(top_now);
}

static void run_on_gpu(problem *p)
{
    assert_ok(gpu->attention(&p->on_gpu));
    assert_ok(gpu->attention_grad(&(tni_attention_grad){ .of = p->on_gpu,
                                                         .dy = p->dy->on_gpu,
                                                         .dq = p->dq->on_gpu,
                                                         .dk = p->dk->on_gpu,
                                                         .dv = p->dv->on_gpu }));
}

/* Asserts the same bits as before; keeps them the first time. */
static void same_bits(const array *a, void **first, const char *name)
{
    void *now = download(a);
    size_t nbytes = (size_t)a->n * tn_dtype_size(a->on_gpu.dtype);
    if (!*first) {
        *first = now;
        return;
    }
    ck_assert_msg(memcmp(*first, now, nbytes) == 0, "%s: %s: other bits than the first time", what,
                  name);
    free(now);
}

/* Again, with threads and blocks in different orders: nothing may change. */
static void repeat(problem *p, int times)
{
    static const char *const names[] = { "y", "top", "share", "dq", "dk", "dv" };
    array *results[] = { p->y, p->top, p->share, p->dq, p->dk, p->dv };
    void *first[6] = { NULL };
    for (int r = 0; r <= times; r++) {
        setenv("TN_CUDA_ORDER", r % 2 ? "backward" : "forward", 1);
        if (r > 0) run_on_gpu(p);
        for (int i = 0; i < 6; i++) same_bits(results[i], &first[i], names[i]);
    }
    unsetenv("TN_CUDA_ORDER");
    for (int i = 0; i < 6; i++) free(first[i]);
}

static void run_case(const attention_case *c, int repeats)
{
    problem p;
    set_up(&p, c);
    tni_attention without = p.on_gpu;
    without.top.data = NULL;
    assert_ok(gpu->attention(&without)); /* the same y, and nothing else */
    run_on_gpu(&p);
    assert_ok(cpu->attention(&p.wide));
    deviations(&p);
    compare(p.y, p.off[0], "y");
    compare_share(&p);
    uint16_t *y = download(p.y);
    for (int64_t i = 0; i < elements(p.y); i++) wide_of(p.y)[i] = number(y[place(p.y, i)]);
    free(y);
    assert_ok(cpu->attention_grad(&(tni_attention_grad){
        .of = p.wide, .dy = p.dy->wide, .dq = p.dq->wide, .dk = p.dk->wide, .dv = p.dv->wide }));
    compare(p.dq, p.off[1], "dq");
    compare(p.dk, p.off[2], "dk");
    compare(p.dv, p.off[3], "dv");
    if (repeats > 0) repeat(&p, repeats);
    for (int i = 0; i < 4; i++) free(p.off[i]);
    drop_arrays();
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(shapes)
{
    static const attention_case cases[] = {
        { 1, 1, 1, 1, 1, 1, false, NO_MASK, 0, 0, 0 },
        { 2, 3, 7, 7, 8, 8, true, NO_MASK, 0, 0, 0 },
        { 2, 2, 33, 33, 16, 16, true, NO_MASK, HEADS_INSIDE, 0, 0 },
        { 1, 2, 64, 64, 32, 32, false, NO_MASK, 0, 0, 0 },
        { 1, 1, 65, 65, 64, 64, true, NO_MASK, HEADS_INSIDE, 0, 0 },
        { 1, 1, 129, 129, 64, 64, true, NO_MASK, 0, 0, 0 },
        { 1, 1, 257, 257, 40, 40, true, NO_MASK, GAPS, 0, 0 },
        { 1, 1, 257, 65, 15, 15, true, NO_MASK, 0, 0, 0 }, /* fewer keys than queries */
        { 1, 1, 33, 257, 64, 64, true, NO_MASK, 0, 0, 0 }, /* and more */
        { 1, 2, 64, 129, 80, 80, false, NO_MASK, ODD_ROWS, 0, 0 },
        { 1, 1, 65, 129, 96, 96, true, NO_MASK, 0, 0, 0 },
        { 1, 1, 129, 65, 128, 128, true, NO_MASK, 0, 0, 0 },
        { 1, 1, 7, 64, 127, 100, false, NO_MASK, ODD_ROWS, 0, 0 },
        { 1, 1, 9, 40, 20, 90, false, NO_MASK, GAPS, 0, 0 },
        { 1, 1, 40, 9, 90, 20, true, NO_MASK, 0, 0, 0 },
        { 2, 2, 33, 64, 24, 24, false, NO_MASK, EXPANDED, 0, 0 },
        { 2, 2, 33, 64, 24, 24, true, NO_MASK, EXPANDED | HEADS_INSIDE | ODD_ROWS, 0, 0 },
        { 5, 41, 3, 2, 4, 4, true, NO_MASK, 0, 0, 0 },      /* many heads */
        { 1, 2, 70, 40, 130, 129, true, NO_MASK, 0, 0, 0 }, /* more columns than a tile has */
        { 1, 1, 40, 70, 256, 256, false, NO_MASK, ODD_ROWS, 0, 0 },
        { 1, 1, 5, 9, 300, 7, true, NO_MASK, 0, 0, 0 },
        { 1, 1, 9, 5, 7, 270, false, NO_MASK, GAPS, 0, 0 },
        { 2, 2, 5, 0, 4, 4, false, NO_MASK, 0, 0, 0 }, /* a sum of nothing */
        { 2, 2, 0, 5, 4, 4, true, NO_MASK, 0, 0, 0 },
        { 0, 2, 3, 5, 4, 4, false, NO_MASK, 0, 0, 0 },
        { 1, 2, 5, 6, 0, 4, false, NO_MASK, 0, 0, 0 }, /* scores of nothing */
        { 1, 2, 5, 6, 4, 0, false, NO_MASK, 0, 0, 0 },
    };
    choose(_i);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i], 0);
}
END_TEST

START_TEST(masks)
{
    choose(_i);
    for (int i = 0; i < 4 * (MASKS - 1); i++) {
        static const int64_t columns[] = { 8, 40, 70, 100, 140 };
        attention_case c = { 2,
                             2,
                             i % 2 ? 9 : 70,
                             i % 2 ? 67 : 33,
                             columns[i % 5],
                             columns[i % 5],
                             (i & 1) != 0,
                             1 + i / 4,
                             i % 3,
                             0,
                             0 };
        run_case(&c, 0);
    }
}
END_TEST

/* Of the sizes that cuDNN takes, where it is: keys masked, rows that see none, no causal mask. */
START_TEST(long_enough)
{
    choose(_i);
    for (int i = 0; i < 6; i++) {
        attention_case c = { 2,
                             2,
                             i < 3 ? 64 : 70,
                             i % 2 ? 67 : 130,
                             i == 4 ? 128 : 32,
                             32,
                             0,
                             BOOL_KEYS,
                             i % 2 ? HEADS_INSIDE : GAPS,
                             0,
                             0 };
        c.dv = c.d;
        c.causal = i % 3 == 1;
        if (i == 2) c.mask = BOOL_FULL;
        run_case(&c, i == 5);
    }
}
END_TEST

/* Any sign of the scale; scores so large that all but one key vanish; more than the type can
 * hold. */
START_TEST(sizes_of_scores)
{
    static const attention_case cases[] = {
        { 1, 2, 70, 130, 16, 16, true, NO_MASK, 0, 0, -0.7 },
        { 1, 2, 70, 130, 16, 16, false, BOOL_FULL, 0, 0, -0.7 },
        { 1, 1, 33, 65, 8, 8, false, NO_MASK, 0, 60, 1 },
        { 1, 1, 33, 65, 8, 8, true, REAL_FULL, 0, 60, 1 },
        { 1, 1, 33, 65, 40, 40, false, NO_MASK, 0, 1, 0.001 },
    };
    choose(_i);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i], 0);
}
END_TEST

/* q and k with infinities: the GPU has NaN where the CPU has, and nowhere else. */
START_TEST(infinite_scores)
{
    problem p;
    attention_case c = { 1, 1, 40, 70, 8, 8, _i / 2 == 1, NO_MASK, 0, 0, 0 };
    choose(_i);
    set_up(&p, &c);
    for (int i = 0; i < 3; i++) { /* queries 5, 17, 29: a score of +inf or -inf for every key */
        int64_t at = (5 + 12 * i) * c.d + i;
        ((uint16_t *)(void *)p.q->block)[at] =
            rounded(i == 1 ? -(double)INFINITY : (double)INFINITY);
        wide_of(p.q)[at] = i == 1 ? -(double)INFINITY : (double)INFINITY;
    }
    upload(p.q);
    assert_ok(gpu->attention(&p.on_gpu));
    assert_ok(cpu->attention(&p.wide));
    deviations(&p);
    uint16_t *y = download(p.y);
    int lost = 0;
    for (int64_t i = 0; i < elements(p.y); i++) {
        double got = number(y[place(p.y, i)]), want = wide_of(p.y)[i];
        ck_assert_int_eq(isnan(got), isnan(want));
        lost += isnan(got);
        near(got, want, unit * fabs(want) + 4 * sqrt(p.off[0][i]) + 4e-6, "y", i);
    }
    ck_assert_int_gt(lost, 0);
    free(y);
    for (int i = 0; i < 4; i++) free(p.off[i]);
    drop_arrays();
}
END_TEST

START_TEST(the_same_bits)
{
    static const attention_case cases[] = {
        { 1, 2, 65, 70, 24, 24, true, BOOL_FULL, 0, 0, 0 },
        { 1, 1, 129, 129, 64, 64, true, NO_MASK, HEADS_INSIDE, 0, 0 },
        { 1, 1, 40, 70, 100, 100, false, NO_MASK, ODD_ROWS, 0, 0 },
        { 1, 1, 40, 70, 140, 140, false, REAL_FULL, 0, 0, 0 },
    };
    choose(_i);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i], 4);
}
END_TEST

/* Besides inputs and results there is one f32 number for each query, whatever T is. A real GPU's
 * pool grows by large steps: there on so many heads that the T x T matrices would show. */
START_TEST(memory)
{
    problem p;
    attention_case c = { 1, shim() ? 1 : 64, 1024, 1024, 8, 8, true, NO_MASK, 0, 0, 0 };
    int64_t slack = shim() ? 64 << 10 : 64 << 20;
    choose(0);
    set_up(&p, &c);
    assert_ok(tn_cuda_synchronize());
    tn_cuda_memory_trim();
    int64_t before = tn_cuda_memory().reserved;
    run_on_gpu(&p);
    assert_ok(tn_cuda_synchronize());
    ck_assert_int_le(tn_cuda_memory().reserved - before, c.h * c.t * 4 + slack);
    drop_arrays();
}
END_TEST

/* Each call of the runtime fails once: the kernels report it, and what they borrowed is
 * returned. */
START_TEST(failures)
{
    attention_case c = { 1, 2, 9, 17, 64, 64, true, NO_MASK, 0, 0, 0 };
    choose(_i);
    if (!shim()) return; /* a real GPU's calls do not fail on request */
    problem p;
    set_up(&p, &c);
    run_on_gpu(&p);
    assert_ok(tn_cuda_synchronize());
    long long before = host.calls(), alive = host.blocks();
    run_on_gpu(&p);
    long long count = host.calls() - before;
    assert_ok(tn_cuda_synchronize());
    int refused = 0;
    for (long long n = 1; n <= count; n++) {
        host.fail_call(n);
        tn_status status = gpu->attention(&p.on_gpu);
        if (status == TN_OK)
            status = gpu->attention_grad(&(tni_attention_grad){ .of = p.on_gpu,
                                                                .dy = p.dy->on_gpu,
                                                                .dq = p.dq->on_gpu,
                                                                .dk = p.dk->on_gpu,
                                                                .dv = p.dv->on_gpu });
        host.fail_call(0);
        if (status != TN_OK) {
            refused++;
            ck_assert_msg(strstr(tn_error(), "cuda: ") != NULL, "call %lld: %s", n, tn_error());
            tn_error_clear();
        }
        assert_ok(tn_cuda_synchronize());
        ck_assert_int_eq(host.blocks(), alive);
    }
    /* a failed request for memory is repeated; nobody can repair a free that fails */
    ck_assert_int_ge(refused, count - 2);
    drop_arrays();
}
END_TEST

START_TEST(too_large)
{
    choose(_i);
    int64_t size = (int64_t)1 << 31;
    tni_array x = { NULL, dtype, 4, { 1, 1, size, 8 }, { 8, 8, 8, 1 } };
    tni_attention a = { .y = x, .q = x, .k = x, .v = x, .scale = 1 };
    assert_fails(gpu->attention(&a), TN_E_UNSUPPORTED, "2147483648 queries of 8");
    assert_fails(
        gpu->attention_grad(&(tni_attention_grad){ .of = a, .dy = x, .dq = x, .dk = x, .dv = x }),
        TN_E_UNSUPPORTED, "2147483648 keys");
}
END_TEST

/* Through the public interface, with heads as views of [B, T, H, D] of five axes. */
START_TEST(public_interface)
{
    choose(_i);
    tn_tensor *x[2][3], *y[2];
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < 3; i++) {
            tn_tensor *wide = random_as(TN_SHAPE(2, 33, 3, 20), -1, 1, (uint64_t)(7 + i), dtype);
            x[side][i] = tn_to(wide, side ? tn_cuda(0) : tn_cpu());
            assert_ok(tn_set_requires_grad(x[side][i], true));
        }
        y[side] = tn_scaled_dot_product_attention(tn_transpose(x[side][0], 1, 2),
                                                  tn_transpose(x[side][1], 1, 2),
                                                  tn_transpose(x[side][2], 1, 2), TN_NONE, true, 0);
        assert_made(y[side]);
        assert_ok(
            tn_backward(tn_sum(tn_to_dtype(tn_mul(y[side], y[side]), TN_F32), NULL, 0, false)));
    }
    assert_close(tn_to(y[1], tn_cpu()), y[0], 2 * unit, 2 * unit);
    for (int i = 0; i < 3; i++)
        assert_close(tn_to(tn_grad(x[1][i]), tn_cpu()), tn_grad(x[0][i]), 4 * unit, 4 * unit);
}
END_TEST

/* q, k and v side by side in a [B, T, 3, H, D], as they are or each copied before; with two of them
 * in each other's place the gradients do not lie side by side. */
static tn_tensor *of_one_block(tn_tensor *x, bool copied, bool swapped)
{
    tn_tensor *part[3], *head[3];
    ck_assert_int_eq(tn_split(x, 16, -1, part, 3), 3);
    for (int i = 0; i < 3; i++) {
        tn_tensor *one = copied ? tn_clone(part[i]) : part[i];
        head[i] = tn_transpose(tn_reshape(one, TN_SHAPE(2, 5, 2, 8)), 1, 2);
    }
    return tn_scaled_dot_product_attention(head[swapped ? 1 : 0], head[swapped ? 0 : 1], head[2],
                                           TN_NONE, true, 0);
}

/* Gradients of q, k and v that are made where the gradient of what they are parts of wants them:
 * the same bits, by a launch less. */
START_TEST(gradients_side_by_side)
{
    const tn_dtype of = _i / 2 ? TN_BF16 : TN_F32;
    const bool swapped = _i % 2;
    tn_tensor *x = tn_to_dtype(random_as(TN_SHAPE(2, 5, 48), -1, 1, 3, TN_F32), of);
    assert_made(x = tn_to(x, tn_cuda(0)));
    assert_ok(tn_set_requires_grad(x, true));
    uint64_t bits[2];
    long long launches[2] = { 0, 0 };
    for (int copied = 0; copied < 2; copied++) {
        tn_tensor *y = of_one_block(x, copied, swapped);
        assert_made(y = tn_sum(tn_square(tn_to_dtype(y, TN_F32)), NULL, 0, false));
        assert_ok(tn_set_grad(x, TN_NONE));
        launches[copied] = shim() ? host.launches() : copied;
        assert_ok(tn_backward(y));
        if (shim()) launches[copied] = host.launches() - launches[copied];
        bits[copied] = tn_hash(tn_grad(x));
    }
    ck_assert(bits[0] == bits[1]);
    if (swapped)
        ck_assert_int_eq(launches[0], launches[1] - !shim());
    else
        ck_assert_int_lt(launches[0], launches[1]);
}
END_TEST

static TCase *fresh_case(Suite *suite, const char *name)
{
    TCase *t = test_case(suite, name);
    tcase_add_checked_fixture(t, free_arrays, NULL);
    return t;
}

/* In cases, since compute-sanitizer's tools take minutes for them all (scripts/gpu). */
Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_attention");
    tcase_add_loop_test(fresh_case(suite, "shapes"), shapes, 0, 2);
    tcase_add_loop_test(fresh_case(suite, "masks"), masks, 0, 2);
    tcase_add_loop_test(fresh_case(suite, "long enough"), long_enough, 0, 2);
    TCase *t = fresh_case(suite, "scores");
    tcase_add_loop_test(t, sizes_of_scores, 0, 2);
    tcase_add_loop_test(t, infinite_scores, 0, 4);
    tcase_add_loop_test(fresh_case(suite, "same bits"), the_same_bits, 0, 2);
    t = fresh_case(suite, "calls");
    tcase_add_test(t, memory);
    tcase_add_loop_test(t, failures, 0, 2);
    tcase_add_loop_test(t, too_large, 0, 2);
    tcase_add_loop_test(t, public_interface, 0, 2);
    tcase_add_loop_test(t, gradients_side_by_side, 0, 4);
    return suite;
}
