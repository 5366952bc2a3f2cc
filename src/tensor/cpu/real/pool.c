/*
 * pool.c - pooling over the planes of [n, c, h, w]: maximum with its index, average, both also
 * adaptive, and their gradients. Planes are distributed over the threads; each is written by one
 * chunk.
 */
#include "tensor/cpu/real/rows.h"

/* One plane: x and y, or their gradients, and the index of each maximum in its plane, or NULL. */
typedef void (*plane_kernel)(const tni_pool2d_sizes *p, void *x, void *y, int32_t *index);

typedef struct pool {
    const tni_pool2d_sizes *p;
    plane_kernel kernel;
    char *x, *y;
    int32_t *index;
    int64_t item; /* bytes of an element */
} pool;

static void planes(void *context, int64_t begin, int64_t end)
{
    const pool *q = context;
    int64_t x = q->p->h * q->p->w, y = q->p->oh * q->p->ow;
    for (int64_t k = begin; k < end; k++)
        q->kernel(q->p, q->x + k * x * q->item, q->y + k * y * q->item,
                  q->index ? q->index + k * y : NULL);
}

/* The planes of x, not p->n * p->c: for bf16 and f16 only some come at a time. */
static tn_status run(const tni_pool2d_sizes *p, plane_kernel kernel, const tni_array *x,
                     const tni_array *y, int32_t *index)
{
    pool q = { p, kernel, x->data, y->data, index, (int64_t)tn_dtype_size(x->dtype) };
    int64_t grain = TNI_MAX(1, 16384 / TNI_MAX(p->h * p->w + p->oh * p->ow, 1));
    return tni_parallel_args(x->size[0] * x->size[1], grain, planes, &q);
}

/* ---- maximum --------------------------------------------------------------------------------- */

/*
 * 2x2 windows in two steps, so that both loops are long and contiguous: first the larger of two
 * rows, then the larger of neighbours, over as many rows as the buffer holds. NaN beats
 * everything; of equals the first in row-major order wins, as in max_plane. Back: each value of dy
 * and its index are repeated for both columns, and compared with the places of two rows.
 */
enum { BUFFER = 1024 };

/* Rows of images are short, and what does not fill a vector would cost more than the vectors: the
 * last one overlaps the one before. Rows shorter than a vector go one by one. */
#define IN_VECTORS(row, n, ...)                                                                    \
    if ((n) >= 16)                                                                                 \
        for (int64_t v = 0; v < (n); v += 16) row(16, TNI_MIN(v, (n)-16), __VA_ARGS__);            \
    else if ((n) >= 8)                                                                             \
        for (int64_t v = 0; v < (n); v += 8) row(8, TNI_MIN(v, (n)-8), __VA_ARGS__);               \
    else                                                                                           \
        for (int64_t v = 0; v < (n); v++) row(1, v, __VA_ARGS__)

/* Elements, bf16 where `narrow`: their maxima are bf16 without rounding. */
TNI_INLINE REAL get(const void *x, int64_t i, bool narrow)
{
    return narrow ? (REAL)tn_from_bf16(((const uint16_t *)x)[i]) : ((const REAL *)x)[i];
}
TNI_INLINE void put(void *y, int64_t i, REAL value, bool narrow)
{
    if (narrow)
        ((uint16_t *)y)[i] = (uint16_t)(tn_bits_f32((float)value) >> 16);
    else
        ((REAL *)y)[i] = value;
}
TNI_INLINE void *element(void *x, int64_t i, bool narrow)
{
    return (char *)x + i * (int64_t)(narrow ? sizeof(uint16_t) : sizeof(REAL));
}

TNI_INLINE void taller(int lanes, int64_t at, const void *x0, const void *x1, int32_t base,
                       int32_t w, REAL *restrict y, int32_t *restrict index, bool narrow)
{
#pragma omp simd
    for (int l = 0; l < lanes; l++) {
        REAL a = get(x0, at + l, narrow), b = get(x1, at + l, narrow);
        bool take = (b > a) | (b != b);
        y[at + l] = take ? b : a;
        index[at + l] = base + (int32_t)at + l + (take ? w : 0);
    }
}

TNI_INLINE void wider(const REAL *restrict x, const int32_t *restrict at, int64_t n,
                      void *restrict y, int32_t *restrict index, bool narrow)
{
    for (int64_t j = 0; j < n; j++) {
        REAL a = x[2 * j], b = x[2 * j + 1];
        int32_t i = at[2 * j], k = at[2 * j + 1];
        bool later = (b != b) & ((a == a) | (k > i)); /* of several NaN the last one wins */
        bool take = (b > a) | later | ((b == a) & (k < i));
        put(y, j, take ? b : a, narrow);
        index[j] = take ? k : i;
    }
}

/* Repeats n values of dy and index, once for each column of a window. */
TNI_INLINE void repeat_pairs(const void *restrict dy, const int32_t *restrict index, int64_t n,
                             REAL *restrict d, int32_t *restrict at, bool narrow)
{
    for (int64_t j = 0; j < n; j++) {
        d[2 * j] = get(dy, j, narrow);
        d[2 * j + 1] = get(dy, j, narrow);
        at[2 * j] = index[j];
        at[2 * j + 1] = index[j];
    }
}

/* Two rows of dx below a row of windows: dy where the index points, zero elsewhere. */
TNI_INLINE void spread(int lanes, int64_t from, const REAL *restrict d, const int32_t *restrict at,
                       int32_t base, int32_t w, void *restrict dx0, void *restrict dx1, bool narrow)
{
#pragma omp simd
    for (int l = 0; l < lanes; l++) {
        int32_t i = at[from + l] - base - (int32_t)from - l;
        put(dx0, from + l, i == 0 ? d[from + l] : 0, narrow);
        put(dx1, from + l, i == w ? d[from + l] : 0, narrow);
    }
}

/* 2x2 windows, as many rows at a time as the buffers hold, or part of one: y from x, or back: dx
 * from dy. Columns: 2 * ow, an odd last one is left out. */
TNI_INLINE void by_twos(const tni_pool2d_sizes *p, void *x, void *y, int32_t *index, bool narrow,
                        bool back)
{
    REAL value[BUFFER];
    int32_t at[BUFFER];
    int32_t winners[BUFFER / 2];                                    /* if not wanted */
    int64_t step = TNI_MAX(1, TNI_MIN(2 * p->ow, (int64_t)BUFFER)); /* columns at a time */
    int64_t rows = BUFFER / step;
    int32_t w = (int32_t)p->w;
    for (int64_t i = 0; i < p->oh; i += rows) {
        int64_t n = TNI_MIN(rows, p->oh - i);
        for (int64_t s = 0; s < 2 * p->ow; s += step) {
            int64_t columns = TNI_MIN(step, 2 * p->ow - s), windows = i * p->ow + s / 2;
            int32_t *winner = index ? index + windows : winners;
            void *some_y = element(y, windows, narrow);
            if (back) repeat_pairs(some_y, winner, n * columns / 2, value, at, narrow);
            for (int64_t r = 0; r < n; r++) {
                int64_t from = 2 * (i + r) * p->w + s;
                void *x0 = element(x, from, narrow), *x1 = element(x, from + p->w, narrow);
                REAL *row = value + r * columns;
                if (back) {
                    IN_VECTORS(spread, columns, row, at + r * columns, (int32_t)from, w, x0, x1,
                               narrow);
                } else {
                    IN_VECTORS(taller, columns, x0, x1, (int32_t)from, w, row, at + r * columns,
                               narrow);
                }
            }
            if (!back) wider(value, at, n * columns / 2, some_y, winner, narrow);
        }
    }
    for (int64_t i = 0; back && p->w % 2 && i < 2 * p->oh; i++)
        put(x, i * p->w + p->w - 1, 0, narrow);
    for (int64_t j = 0; back && p->h % 2 && j < p->w; j++) put(x, (p->h - 1) * p->w + j, 0, narrow);
}

/* Each has its own code. */
#define BY_TWOS(name, narrow, back)                                                                \
    static void name(const tni_pool2d_sizes *p, void *x, void *y, int32_t *index)                  \
    {                                                                                              \
        by_twos(p, x, y, index, narrow, back);                                                     \
    }
BY_TWOS(halve, false, false)
BY_TWOS(halve_bf16, true, false)
BY_TWOS(twice, false, true)
BY_TWOS(twice_bf16, true, true)

/* Taps [first, last) of output o along an axis that are on inputs, and the input under tap 0. */
TNI_INLINE int64_t taps_of(const tni_pool2d_sizes *p, int axis, int64_t o, int64_t *first,
                           int64_t *last)
{
    int64_t size = axis ? p->w : p->h, out = axis ? p->ow : p->oh;
    int64_t from = p->adaptive ? o * size / out : o * p->stride[axis] - p->padding[axis];
    int64_t taps = p->adaptive ? ((o + 1) * size + out - 1) / out - from : p->kernel[axis];
    row_inside(from, p->dilation[axis], size, 0, taps, first, last);
    return from;
}

static void max_plane(const tni_pool2d_sizes *p, void *from, void *to, int32_t *index)
{
    const REAL *x = from;
    REAL *y = to;
    for (int64_t i = 0; i < p->oh; i++) {
        int64_t r0, r1, top = taps_of(p, 0, i, &r0, &r1);
        for (int64_t j = 0; j < p->ow; j++) {
            int64_t s0, s1, left = taps_of(p, 1, j, &s0, &s1);
            REAL best = -(REAL)INFINITY;
            int64_t at = -1;
            for (int64_t r = r0; r < r1; r++) {
                int64_t row = top + r * p->dilation[0];
                for (int64_t s = s0; s < s1; s++) {
                    int64_t column = left + s * p->dilation[1];
                    REAL v = x[row * p->w + column];
                    if (at < 0 || v > best || v != v) {
                        best = v;
                        at = row * p->w + column;
                    }
                }
            }
            y[i * p->ow + j] = best;
            if (index) index[i * p->ow + j] = (int32_t)at;
        }
    }
}

tn_status K(tni_max_pool2d)(const tni_max_pool2d *a)
{
    bool halves = tni_pool_halves(&a->sizes);
    plane_kernel kernel = a->x.dtype == TN_BF16 ? halve_bf16 : halves ? halve : max_plane;
    return run(&a->sizes, kernel, &a->x, &a->y, a->index.data);
}

static void add_winners(const tni_pool2d_sizes *p, void *to, void *from, int32_t *index)
{
    REAL *dx = to;
    const REAL *dy = from;
    memset(dx, 0, (size_t)(p->h * p->w) * sizeof(REAL));
    for (int64_t j = 0; j < p->oh * p->ow; j++) dx[index[j]] += dy[j];
}

tn_status K(tni_max_pool2d_grad)(const tni_max_pool2d_grad *a)
{
    bool halves = tni_pool_halves(&a->sizes);
    plane_kernel kernel = a->dy.dtype == TN_BF16 ? twice_bf16 : halves ? twice : add_winners;
    return run(&a->sizes, kernel, &a->dx, &a->dy, a->index.data);
}

/* ---- average --------------------------------------------------------------------------------- */

/* A window cut to the image, and the divisor of its sum. */
typedef struct window {
    int64_t top, bottom, left, right;
    REAL scale;
} window;

/* An average counts the padding but nothing beyond it: a window that extends further (ceil_mode)
 * counts fewer. */
TNI_INLINE window window_of(const tni_pool2d_sizes *p, bool adaptive, int64_t i, int64_t j)
{
    window w;
    int64_t count = 0;
    if (adaptive) {
        w.top = i * p->h / p->oh;
        w.bottom = ((i + 1) * p->h + p->oh - 1) / p->oh;
        w.left = j * p->w / p->ow;
        w.right = ((j + 1) * p->w + p->ow - 1) / p->ow;
    } else {
        w.top = i * p->stride[0] - p->padding[0];
        w.left = j * p->stride[1] - p->padding[1];
        w.bottom = TNI_MIN(w.top + p->kernel[0], p->h + p->padding[0]);
        w.right = TNI_MIN(w.left + p->kernel[1], p->w + p->padding[1]);
        count = (w.bottom - w.top) * (w.right - w.left);
        w.top = TNI_MAX(w.top, 0);
        w.left = TNI_MAX(w.left, 0);
        w.bottom = TNI_MAX(TNI_MIN(w.bottom, p->h), w.top);
        w.right = TNI_MAX(TNI_MIN(w.right, p->w), w.left);
    }
    if (adaptive || !p->include_padding) count = (w.bottom - w.top) * (w.right - w.left);
    if (p->divisor) count = p->divisor;
    w.scale = count > 0 ? (REAL)1 / (REAL)count : 0;
    return w;
}

TNI_INLINE void means(const tni_pool2d_sizes *p, bool adaptive, const REAL *x, REAL *y)
{
    for (int64_t i = 0; i < p->oh; i++) {
        for (int64_t j = 0; j < p->ow; j++) {
            window w = window_of(p, adaptive, i, j);
            REAL sum = 0;
            for (int64_t r = w.top; r < w.bottom; r++)
                for (int64_t s = w.left; s < w.right; s++) sum += x[r * p->w + s];
            y[i * p->ow + j] = sum * w.scale;
        }
    }
}

/* Each kind has its own code. */
static void mean_plane(const tni_pool2d_sizes *p, void *x, void *y, int32_t *none)
{
    (void)none;
    p->adaptive ? means(p, true, x, y) : means(p, false, x, y);
}

static void mean_halves(const tni_pool2d_sizes *p, void *from, void *to, int32_t *none)
{
    const REAL *restrict x = from;
    REAL *restrict y = to;
    (void)none;
    for (int64_t i = 0; i < p->oh; i++) {
        const REAL *restrict x0 = x + 2 * i * p->w;
        const REAL *restrict x1 = x0 + p->w;
        for (int64_t j = 0; j < p->ow; j++)
            y[i * p->ow + j] = (x0[2 * j] + x0[2 * j + 1] + x1[2 * j] + x1[2 * j + 1]) * (REAL)0.25;
    }
}

TNI_INLINE void add_shares(const tni_pool2d_sizes *p, bool adaptive, const REAL *dy, REAL *dx)
{
    memset(dx, 0, (size_t)(p->h * p->w) * sizeof(REAL));
    for (int64_t i = 0; i < p->oh; i++) {
        for (int64_t j = 0; j < p->ow; j++) {
            window w = window_of(p, adaptive, i, j);
            REAL d = dy[i * p->ow + j] * w.scale;
            for (int64_t r = w.top; r < w.bottom; r++)
                for (int64_t s = w.left; s < w.right; s++) dx[r * p->w + s] += d;
        }
    }
}

static void mean_grad_plane(const tni_pool2d_sizes *p, void *dx, void *dy, int32_t *none)
{
    (void)none;
    p->adaptive ? add_shares(p, true, dy, dx) : add_shares(p, false, dy, dx);
}

tn_status K(tni_avg_pool2d)(const tni_avg_pool2d *a)
{
    bool halves = !a->sizes.adaptive && !a->sizes.divisor && tni_pool_halves(&a->sizes);
    return run(&a->sizes, halves ? mean_halves : mean_plane, &a->x, &a->y, NULL);
}

tn_status K(tni_avg_pool2d_grad)(const tni_avg_pool2d_grad *a)
{
    return run(&a->sizes, mean_grad_plane, &a->dx, &a->dy, NULL);
}
