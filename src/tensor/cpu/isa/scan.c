/*
 * scan.c - along one axis: the first extreme with its index, and running sums and products.
 *
 * Elements pass through buffers of double or int64_t, so that one loop serves every dtype and
 * running sums of f32 are rounded once per element. If the axis has x's smallest stride, lines are
 * processed one by one; otherwise runs of neighbouring lines advance together.
 */
#include "tensor/cpu/pointwise.h"
#include "tensor/walk.h"

enum { WORK = 16384 }; /* elements in a chunk, about */

/* Lines: the elements of the walk are the lines' starts. Arrays: x first, then results. */
typedef struct job job;
struct job {
    tni_walk walk;
    void (*lines)(const job *j, int64_t m, char *const at[3]); /* m neighbours */
    char *data[3];
    int64_t item[3];
    tn_dtype dtype[3];
    int64_t n;         /* elements of a line */
    int64_t stride[2]; /* along a line: of x, of y (cumsum) */
    bool together;     /* neighbouring lines at once */
    bool real;         /* buffers are double, else int64_t */
    bool largest, reverse;
};

/* Whether v beats best. NaN beats everything but an earlier NaN; the first of equals stays. */
static inline bool beats(const job *j, tni_acc v, tni_acc best)
{
    if (!j->real) return j->largest ? v.i > best.i : v.i < best.i;
    if (best.f != best.f) return false;
    return v.f != v.f || (j->largest ? v.f > best.f : v.f < best.f);
}

static void load(const job *j, int64_t n, tni_acc *to, const char *x, int64_t stride)
{
    K(tni_load)(j->real ? TN_F64 : TN_I64, n, to, x, j->dtype[0], stride);
}

static void store(const job *j, int k, int64_t n, char *to, int64_t stride, const tni_acc *from)
{
    K(tni_store)(j->real ? TN_F64 : TN_I64, n, to, j->dtype[k], stride, from);
}

/* Best value and index of m neighbouring lines, the first at x, together; or of that one alone. */
TNI_INLINE void extreme(const job *j, bool together, int64_t m, const char *x, tni_acc *best,
                        int64_t *index)
{
    int64_t across = j->walk.stride[j->walk.rank - 1][0], step = together ? 1 : TNI_BLOCK;
    tni_acc v[TNI_BLOCK];
    load(j, m, best, x, across);
    for (int64_t k = 0; k < m; k++) index[k] = 0;
    for (int64_t i = together; i < j->n; i += step) {
        int64_t n = together ? m : TNI_MIN(j->n - i, step);
        load(j, n, v, x + i * j->stride[0] * j->item[0], together ? across : j->stride[0]);
        for (int64_t k = 0; k < n; k++) {
            int64_t line = together ? k : 0;
            if (beats(j, v[k], best[line])) {
                best[line] = v[k];
                index[line] = together ? i : i + k;
            }
        }
    }
}

static void extremes(const job *j, int64_t m, char *const at[3])
{
    const int64_t *s = j->walk.stride[j->walk.rank - 1];
    tni_acc best[TNI_BLOCK];
    int64_t index[TNI_BLOCK], *to = (int64_t *)(void *)at[1];
    if (j->together)
        extreme(j, true, m, at[0], best, index);
    else
        for (int64_t k = 0; k < m; k++)
            extreme(j, false, 1, at[0] + k * s[0] * j->item[0], &best[k], &index[k]);
    for (int64_t k = 0; k < m; k++) to[k * s[1]] = index[k];
    if (j->data[2]) store(j, 2, m, at[2], s[2], best);
}

static void chunk(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    int last = j->walk.rank - 1;
    int64_t size = j->walk.size[last];
    tni_cursor c;
    tni_cursor_seek(&c, &j->walk, begin);
    while (begin < end) {
        int64_t m = TNI_MIN(TNI_MIN(size - c.index[last], end - begin), (int64_t)TNI_BLOCK);
        char *at[3] = { NULL };
        for (int k = 0; k < j->walk.n; k++) at[k] = j->data[k] + c.at[k] * j->item[k];
        j->lines(j, m, at);
        begin += m;
        if (begin < end) tni_cursor_step(&c, &j->walk, m);
    }
}

static tn_status run(job *j, int axis, int n_arrays, const tni_array *const *arrays)
{
    tni_array line[3];
    const tni_array *list[] = { &line[0], &line[1], &line[2] };
    for (int k = 0; k < n_arrays; k++) {
        line[k] = *arrays[k]; /* without the axis: the others number the lines */
        line[k].size[axis] = 1;
        j->data[k] = arrays[k]->data;
        j->dtype[k] = arrays[k]->dtype;
        j->item[k] = (int64_t)tn_dtype_size(arrays[k]->dtype);
    }
    tni_walk_init(&j->walk, n_arrays, list);
    bool single = arrays[0]->rank == 0;
    j->n = single ? 1 : arrays[0]->size[axis];
    if (j->walk.numel == 0 || j->n == 0) return TN_OK;
    for (int k = 0; k < 2; k++) j->stride[k] = single ? 0 : arrays[k]->stride[axis];
    j->together =
        j->walk.size[j->walk.rank - 1] > 1 && j->walk.stride[j->walk.rank - 1][0] < j->stride[0];
    j->real = tn_dtype_is_float(arrays[0]->dtype);
    return tni_parallel_args(j->walk.numel, TNI_MAX(WORK / j->n, (int64_t)1), chunk, j);
}

tn_status K(tni_arg_reduce)(const tni_arg_reduce *a)
{
    const tni_array *arrays[] = { &a->x, &a->index, &a->value };
    job j = { .lines = extremes, .largest = a->largest };
    return run(&j, a->axis, a->value.data ? 3 : 2, arrays);
}

/* v += sum, or v *= sum, which is then v. */
TNI_INLINE void add_up(const job *j, bool product, tni_acc *v, tni_acc *sum)
{
    const uint64_t a = (uint64_t)v->i, b = (uint64_t)sum->i;
    if (j->real)
        sum->f = v->f = product ? sum->f * v->f : v->f + sum->f;
    else
        sum->i = v->i = (int64_t)(product ? a * b : a + b);
}

/* Running sums or products of m neighbouring lines together, or of one, like extreme. */
TNI_INLINE void running_sum(const job *j, bool product, bool together, int64_t m, const char *x,
                            char *y)
{
    const int64_t *across = j->walk.stride[j->walk.rank - 1];
    int64_t sign = j->reverse ? -1 : 1, along[2] = { sign * j->stride[0], sign * j->stride[1] };
    int64_t step = together ? 1 : TNI_BLOCK;
    const int64_t *next = together ? across : along;
    tni_acc v[TNI_BLOCK], sum[TNI_BLOCK];
    if (j->reverse) {
        x += (j->n - 1) * j->stride[0] * j->item[0];
        y += (j->n - 1) * j->stride[1] * j->item[1];
    }
    for (int64_t k = 0; k < m; k++)
        if (j->real)
            sum[k].f = product;
        else
            sum[k].i = product;
    for (int64_t i = 0; i < j->n; i += step) {
        int64_t n = together ? m : TNI_MIN(j->n - i, step);
        load(j, n, v, x + i * along[0] * j->item[0], next[0]);
        for (int64_t k = 0; k < n; k++) add_up(j, product, &v[k], &sum[together ? k : 0]);
        store(j, 1, n, y + i * along[1] * j->item[1], next[1], v);
    }
}

TNI_INLINE void running(const job *j, bool product, int64_t m, char *const at[3])
{
    const int64_t *s = j->walk.stride[j->walk.rank - 1];
    if (j->together)
        running_sum(j, product, true, m, at[0], at[1]);
    else
        for (int64_t k = 0; k < m; k++)
            running_sum(j, product, false, 1, at[0] + k * s[0] * j->item[0],
                        at[1] + k * s[1] * j->item[1]);
}

static void sums(const job *j, int64_t m, char *const at[3])
{
    running(j, false, m, at);
}

static void products(const job *j, int64_t m, char *const at[3])
{
    running(j, true, m, at);
}

tn_status K(tni_cumsum)(const tni_cumsum *a)
{
    if (a->x.rank == 0) return K(tni_copy)(&(tni_copy){ .y = a->y, .x = a->x }); /* -0 stays */
    const tni_array *arrays[] = { &a->x, &a->y };
    job j = { .lines = a->product ? products : sums, .reverse = a->reverse };
    return run(&j, a->axis, 2, arrays);
}
