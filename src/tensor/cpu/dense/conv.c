/*
 * conv.c - 2-D convolution as products: a column block holds, for a run of output rows, the inputs
 * under every tap, so that
 *     y  [og, P]    = w [og, taps] col [taps, P] + b        taps = channels per group * kh * kw
 *     dw [og, taps] = sum over images of dy [og, P] col^T   P = output rows of the block * ow
 *     dcol          = w^T dy, added back to the places col was read from
 * The block fits the L2 cache; images, groups and blocks are spread over the threads. A 1x1 kernel
 * with stride 1 and no padding needs no columns: the image is its own. Forward over few taps has a
 * product of its own.
 *
 * In f32, the y of forward and the dy of a weight gradient may also be bf16 or f16: a block of them
 * is then computed in, or read through, scratch memory.
 */
#include <limits.h>

#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/real/rows.h"

enum { BLOCK_ELEMENTS = 96 * 1024, MAX_PARTS = 16 };

typedef struct conv {
    const tni_conv2d_sizes *c;
    const REAL *x, *w, *bias;
    REAL *dx, *dw;
    void *y; /* like dy of this dtype */
    const void *dy;
    tn_dtype dtype;
    int64_t cg, og;       /* channels per group, in and out */
    int64_t taps, plane;  /* cg * kh * kw; oh * ow */
    bool own_columns;     /* 1x1: the image is its column matrix */
    int64_t rows, blocks; /* output rows of a block, blocks of an image */
    int64_t pieces;       /* of the channels that one item works on */
    int64_t parts;        /* partial weight gradients */
    REAL *partial;        /* parts - 1 of them */
    tni_scratch scratch;  /* columns, then a block of y or dy in f32 */
    int64_t columns_size; /* elements */
} conv;

static bool plan(conv *p, const tni_conv2d_sizes *c, tn_dtype dtype)
{
    p->c = c;
    p->dtype = dtype;
    p->cg = c->c / c->groups;
    p->og = c->o / c->groups;
    p->pieces = p->parts = 1;
    p->plane = c->oh * c->ow;
    p->taps = p->cg * c->kh * c->kw;
    if (c->h * c->w > INT_MAX || p->plane > INT_MAX || p->taps > INT_MAX || c->o > INT_MAX) {
        tni_error(TN_E_UNSUPPORTED,
                  "conv2d: planes of %" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64 ", %" PRId64
                  " taps, %" PRId64 " channels: BLAS takes at most %d of each",
                  c->h, c->w, c->oh, c->ow, p->taps, c->o, INT_MAX);
        return false;
    }
    p->own_columns = c->kh == 1 && c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 &&
                     c->padding[0] == 0 && c->padding[1] == 0;
    int64_t widest =
        tni_is_half(dtype) ? TNI_MAX(p->taps, p->og) : p->taps; /* of a worker's arrays */
    int64_t row = TNI_MAX(widest * c->ow, 1);
    p->rows = TNI_MIN(TNI_MAX(BLOCK_ELEMENTS / row, 1), TNI_MAX(c->oh, 1));
    p->blocks = c->oh > 0 ? (c->oh - 1) / p->rows + 1 : 0;
    return true;
}

/* C[m,n] (+)= op(A) op(B), on this thread. */
static void multiply(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda,
                     const REAL *b, int64_t ldb, bool add, REAL *c, int64_t ldc)
{
    tni_product_plain(&(tni_product){ m, n, k, lda, ldb, ldc, REAL_DTYPE, REAL_DTYPE, ta, tb, add,
                                      a, b, NULL, c, NULL, 0 });
}

/* Items of so many multiplications each. */
static tn_status run(conv *p, int64_t items, double work, tni_chunk f)
{
    int64_t run = p->rows * p->c->ow, block = tni_is_half(p->dtype) ? p->og * run : 0;
    p->columns_size = p->own_columns ? 0 : tni_up(p->taps * run, 16);
    p->scratch.each = (size_t)(p->columns_size + block) * sizeof(REAL);
    p->scratch.blas = true;
    return tni_parallel_scratch(&p->scratch, items, tni_grain_of(work), f, p);
}

/* This chunk's block of y or dy, behind its columns. */
static REAL *own_block(const conv *p)
{
    return tni_scratch_own(&p->scratch, (size_t)p->columns_size * sizeof(REAL));
}

/* Whether output rows are spaced like input rows: a tap is then one contiguous run. */
static bool same_rows(const tni_conv2d_sizes *c)
{
    return c->stride[0] == 1 && c->stride[1] == 1 && c->ow == c->w;
}

/* Row t of a column matrix: what is under a tap, for output rows [r0, r0 + rows). */
typedef struct tap {
    int64_t first, last, low, high; /* output rows and columns whose tap is inside the image */
    int64_t at;                     /* the input of output (first, 0), which may be outside */
    int64_t begin, end;             /* with same_rows: elements, from there on, in the plane */
} tap;

static tap tap_of(const tni_conv2d_sizes *c, int64_t t, int64_t r0, int64_t rows)
{
    int64_t plane = t / (c->kh * c->kw) * c->h * c->w;
    int64_t row = t / c->kw % c->kh * c->dilation[0] - c->padding[0];
    int64_t column = t % c->kw * c->dilation[1] - c->padding[1];
    tap p;
    row_inside(column, c->stride[1], c->w, 0, c->ow, &p.low, &p.high);
    row_inside(row, c->stride[0], c->h, r0, r0 + rows, &p.first, &p.last);
    int64_t from = (p.first * c->stride[0] + row) * c->w + column;
    p.at = plane + from;
    p.begin = TNI_MAX(-from, 0);
    p.end = TNI_MIN((p.last - p.first) * c->w, c->h * c->w - from);
    return p;
}

static void zero_edges(REAL *rows, int64_t n, int64_t width, int64_t low, int64_t high)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t j = 0; j < low; j++) rows[r * width + j] = 0;
        for (int64_t j = high; j < width; j++) rows[r * width + j] = 0;
    }
}

/* col [channels * kh * kw, rows * ow] from x [channels, h, w], output rows r0 .. r0 + rows. */
static void im2col(const tni_conv2d_sizes *c, const REAL *x, int64_t channels, int64_t r0,
                   int64_t rows, REAL *col)
{
    bool run = same_rows(c);
    for (int64_t t = 0; t < channels * c->kh * c->kw; t++, col += rows * c->ow) {
        tap p = tap_of(c, t, r0, rows);
        memset(col, 0, (size_t)((p.first - r0) * c->ow) * sizeof(REAL));
        memset(col + (p.last - r0) * c->ow, 0,
               (size_t)((r0 + rows - p.last) * c->ow) * sizeof(REAL));
        REAL *to = col + (p.first - r0) * c->ow;
        if (run) { /* from before the plane, or to after it: those edges are zeroed anyway */
            if (p.begin < p.end)
                memcpy(to + p.begin, x + p.at + p.begin, (size_t)(p.end - p.begin) * sizeof(REAL));
            zero_edges(to, p.last - p.first, c->ow, p.low, p.high);
            continue;
        }
        const REAL *from = x + p.at;
        for (int64_t r = p.first; r < p.last; r++, to += c->ow, from += c->stride[0] * c->w) {
            for (int64_t j = 0; j < p.low; j++) to[j] = 0;
            if (c->stride[1] == 1)
                for (int64_t j = p.low; j < p.high; j++) to[j] = from[j];
            else if (c->stride[1] == 2) /* in vectors, if the compiler knows it */
                for (int64_t j = p.low; j < p.high; j++) to[j] = from[2 * j];
            else
                for (int64_t j = p.low; j < p.high; j++) to[j] = from[j * c->stride[1]];
            for (int64_t j = p.high; j < c->ow; j++) to[j] = 0;
        }
    }
}

/* x [channels, h, w] += col, at the places im2col reads. col's edges are overwritten. */
static void col2im(const tni_conv2d_sizes *c, REAL *col, int64_t channels, int64_t r0, int64_t rows,
                   REAL *x)
{
    bool run = same_rows(c);
    for (int64_t t = 0; t < channels * c->kh * c->kw; t++, col += rows * c->ow) {
        tap p = tap_of(c, t, r0, rows);
        REAL *restrict from = col + (p.first - r0) * c->ow;
        REAL *restrict to = x + p.at;
        if (run) {
            zero_edges(from, p.last - p.first, c->ow, p.low, p.high);
            for (int64_t j = p.begin; j < p.end; j++) to[j] += from[j];
            continue;
        }
        for (int64_t r = p.first; r < p.last; r++, from += c->ow, to += c->stride[0] * c->w)
            for (int64_t j = p.low; j < p.high; j++) to[j * c->stride[1]] += from[j];
    }
}

/* The column matrix of one block and its leading dimension. */
static const REAL *columns(const conv *p, const REAL *x, int64_t r0, int64_t rows, int64_t *ld)
{
    if (p->own_columns) {
        *ld = p->plane;
        return x ? x + r0 * p->c->ow : NULL; /* NULL: no channels */
    }
    REAL *col = tni_scratch_own(&p->scratch, 0);
    im2col(p->c, x, p->cg, r0, rows, col);
    *ld = rows * p->c->ow;
    return col;
}

/* Where to compute a block of y, whose rows are n elements and begin at `at`; then `write` puts it
 * there. */
static REAL *place(const conv *p, int64_t at, int64_t n, int64_t *ld)
{
    *ld = tni_is_half(p->dtype) ? n : p->plane;
    return tni_place(p->y, p->dtype, at, own_block(p));
}

static void write(const conv *p, int64_t at, int64_t channels, int64_t n, const REAL *block)
{
    for (int64_t o = 0; o < channels; o++)
        tni_put(p->y, p->dtype, at + o * p->plane, n, block + o * n);
}

/* A block of dy, as `place` has it of y. */
static const REAL *read(const conv *p, int64_t at, int64_t channels, int64_t n, int64_t *ld)
{
    *ld = tni_is_half(p->dtype) ? n : p->plane;
    if (!tni_is_half(p->dtype)) return (const REAL *)p->dy + at;
    for (int64_t o = 0; o < channels; o++)
        tni_get(p->dy, p->dtype, at + o * p->plane, n, own_block(p) + o * n);
    return own_block(p);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* In SSE the library's products are faster: they choose AVX where it is there. On other processors
 * it has not been measured. */
#if defined __AVX512F__
enum { VECTOR_BYTES = 64, FEW_TAPS = 32 };
#elif defined __AVX__
enum { VECTOR_BYTES = 32, FEW_TAPS = 32 };
#else
enum { VECTOR_BYTES = 16, FEW_TAPS = 0 };
#endif
typedef REAL vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
enum { CHANNELS = 4, VECTORS = 2, STRIP = VECTORS * VECTOR_BYTES / sizeof(REAL) };

/*
 * y [CHANNELS, n] = w [CHANNELS, taps] col [taps, n] + bias for few taps, where a product by the
 * library spends more on its packing than on the sums. n is at least STRIP; the last strip begins
 * early enough to be a whole one.
 */
static void few_taps(int64_t n, int64_t taps, const REAL *w, const REAL *bias, const REAL *col,
                     int64_t ld, REAL *y, int64_t ld_y)
{
    for (int64_t j = 0; j < n; j += STRIP) {
        int64_t at = TNI_MIN(j, n - STRIP);
        vector sum[CHANNELS][VECTORS];
        for (int o = 0; o < CHANNELS; o++)
            for (int v = 0; v < VECTORS; v++) sum[o][v] = (vector){ 0 } + (bias ? bias[o] : 0);
        for (int64_t t = 0; t < taps; t++) {
            const vector *x = (const vector *)(col + t * ld + at);
            for (int o = 0; o < CHANNELS; o++)
                for (int v = 0; v < VECTORS; v++) sum[o][v] += w[o * taps + t] * x[v];
        }
        for (int o = 0; o < CHANNELS; o++)
            for (int v = 0; v < VECTORS; v++) ((vector *)(y + o * ld_y + at))[v] = sum[o][v];
    }
}

/* Items: n x groups x blocks. */
static void forward(void *context, int64_t begin, int64_t end)
{
    const conv *p = context;
    const tni_conv2d_sizes *c = p->c;
    for (int64_t i = begin; i < end; i++) {
        int64_t image = i / p->blocks / c->groups;
        int64_t group = i / p->blocks % c->groups;
        int64_t r0 = i % p->blocks * p->rows;
        int64_t rows = TNI_MIN(p->rows, c->oh - r0);
        int64_t n = rows * c->ow;
        int64_t ld, ld_y;
        const REAL *col =
            columns(p, p->x + (image * c->c + group * p->cg) * c->h * c->w, r0, rows, &ld);
        int64_t at = (image * c->o + group * p->og) * p->plane + r0 * c->ow;
        bool few = p->taps <= FEW_TAPS && p->og >= CHANNELS && n >= STRIP;
        for (int64_t o = 0; few && o < p->og; o += CHANNELS) {
            int64_t first = TNI_MIN(o, p->og - CHANNELS), channel = group * p->og + first;
            REAL *y = place(p, at + first * p->plane, n, &ld_y);
            few_taps(n, p->taps, p->w + channel * p->taps, p->bias ? p->bias + channel : NULL, col,
                     ld, y, ld_y);
            write(p, at + first * p->plane, CHANNELS, n, y);
        }
        if (few) continue;
        REAL *y = place(p, at, n, &ld_y);
        for (int64_t o = 0; p->bias && o < p->og; o++) {
            REAL b = p->bias[group * p->og + o];
            for (int64_t j = 0; j < n; j++) y[o * ld_y + j] = b;
        }
        multiply(false, false, p->og, n, p->taps, p->w + group * p->og * p->taps, p->taps, col, ld,
                 p->bias != NULL, y, ld_y);
        write(p, at, p->og, n, y);
    }
}

tn_status K(tni_conv2d)(const tni_conv2d *a)
{
    const tni_conv2d_sizes *c = &a->sizes;
    conv p = { .x = a->x.data, .w = a->w.data, .bias = a->bias.data, .y = a->y.data };
    if (!plan(&p, c, a->y.dtype)) return TN_E_UNSUPPORTED;
    int64_t items = c->n * c->groups * p.blocks;
    if (items > 0 && items < 4) { /* few images: at least four pieces of work */
        p.rows = (c->oh - 1) / 4 + 1;
        p.blocks = (c->oh - 1) / p.rows + 1;
        items = c->n * c->groups * p.blocks;
    }
    if (items == 0 || p.og == 0 || p.plane == 0) return TN_OK;
    return run(&p, items, (double)p.og * (double)p.taps * (double)(p.rows * c->ow), forward);
}

/* Few items are cut by channels. */
static void cut_channels(conv *p, int64_t items, int64_t channels)
{
    if (items < 8 && channels >= 16) p->pieces = 4;
}

/* Items: n x groups x pieces of the input channels. Blocks of one image run in sequence, since they
 * overlap. */
static void grad_input(void *context, int64_t begin, int64_t end)
{
    const conv *p = context;
    const tni_conv2d_sizes *c = p->c;
    int64_t kernel = c->kh * c->kw;
    for (int64_t i = begin; i < end; i++) {
        int64_t image = i / p->pieces / c->groups;
        int64_t group = i / p->pieces % c->groups;
        int64_t c0 = i % p->pieces * p->cg / p->pieces;
        int64_t channels = (i % p->pieces + 1) * p->cg / p->pieces - c0;
        REAL *dx = p->dx + (image * c->c + group * p->cg + c0) * c->h * c->w;
        const REAL *dy = (const REAL *)p->dy + (image * c->o + group * p->og) * p->plane;
        const REAL *w = p->w + group * p->og * p->taps + c0 * kernel;
        if (p->own_columns) { /* in blocks only where that is faster */
            bool large = channels <= 32 && p->og * p->plane > (1 << 18);
            int64_t most = large ? TNI_MAX(BLOCK_ELEMENTS / (p->og * c->ow), 1) * c->ow : p->plane;
            for (int64_t j = 0; j < p->plane; j += most)
                multiply(true, false, channels, TNI_MIN(most, p->plane - j), p->og, w, p->taps,
                         dy + j, p->plane, false, dx + j, p->plane);
            continue;
        }
        REAL *col = tni_scratch_own(&p->scratch, 0);
        memset(dx, 0, (size_t)(channels * c->h * c->w) * sizeof(REAL));
        for (int64_t r0 = 0; r0 < c->oh; r0 += p->rows) {
            int64_t rows = TNI_MIN(p->rows, c->oh - r0);
            int64_t n = rows * c->ow;
            multiply(true, false, channels * kernel, n, p->og, w, p->taps, dy + r0 * c->ow,
                     p->plane, false, col, n);
            col2im(c, col, channels, r0, rows, dx);
        }
    }
}

tn_status K(tni_conv2d_grad_input)(const tni_conv2d_grad_input *a)
{
    const tni_conv2d_sizes *c = &a->sizes;
    conv p = { .dx = a->dx.data, .dy = a->dy.data, .w = a->w.data };
    if (!plan(&p, c, a->dx.dtype)) return TN_E_UNSUPPORTED;
    if (p.og == 0 || p.plane == 0) {
        memset(p.dx, 0, (size_t)(c->n * c->c * c->h * c->w) * sizeof(REAL));
        return TN_OK;
    }
    cut_channels(&p, c->n * c->groups, p.cg);
    int64_t items = c->n * c->groups * p.pieces;
    if (items == 0 || p.cg == 0) return TN_OK;
    double work = (double)p.og * (double)p.taps * (double)p.plane / (double)p.pieces;
    return run(&p, items, work, grad_input);
}

/* Items: parts (runs of images) x groups x pieces of the output channels. */
static void grad_weight(void *context, int64_t begin, int64_t end)
{
    const conv *p = context;
    const tni_conv2d_sizes *c = p->c;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i / p->pieces / c->groups;
        int64_t group = i / p->pieces % c->groups;
        int64_t o0 = i % p->pieces * p->og / p->pieces;
        int64_t channels = (i % p->pieces + 1) * p->og / p->pieces - o0;
        int64_t last = (part + 1) * c->n / p->parts;
        REAL *dw = part == 0 ? p->dw : p->partial + (part - 1) * c->o * p->taps;
        bool add = false;
        dw += (group * p->og + o0) * p->taps;
        for (int64_t image = part * c->n / p->parts; image < last; image++) {
            const REAL *x = p->x + (image * c->c + group * p->cg) * c->h * c->w;
            int64_t at = (image * c->o + group * p->og + o0) * p->plane;
            for (int64_t r0 = 0; r0 < c->oh; r0 += p->rows) {
                int64_t rows = TNI_MIN(p->rows, c->oh - r0);
                int64_t ld, ld_dy;
                const REAL *col = columns(p, x, r0, rows, &ld);
                const REAL *dy = read(p, at + r0 * c->ow, channels, rows * c->ow, &ld_dy);
                multiply(false, true, channels, p->taps, rows * c->ow, dy, ld_dy, col, ld, add, dw,
                         p->taps);
                add = true;
            }
        }
    }
}

/* Items: elements of dw, which receive the parts in index order. */
static void sum_parts(void *context, int64_t begin, int64_t end)
{
    const conv *p = context;
    REAL *restrict dw = p->dw;
    for (int64_t part = 1; part < p->parts; part++) {
        const REAL *restrict x = p->partial + (part - 1) * p->c->o * p->taps;
        for (int64_t j = begin; j < end; j++) dw[j] += x[j];
    }
}

tn_status K(tni_conv2d_grad_weight)(const tni_conv2d_grad_weight *a)
{
    const tni_conv2d_sizes *c = &a->sizes;
    conv p = { .dw = a->dw.data, .dy = a->dy.data, .x = a->x.data };
    if (!plan(&p, c, a->dy.dtype)) return TN_E_UNSUPPORTED;
    int64_t size = c->o * p.taps;
    if (c->n == 0 || p.plane == 0) {
        memset(p.dw, 0, (size_t)size * sizeof(REAL));
        return TN_OK;
    }
    if (size == 0) return TN_OK;
    /* runs of images, by the shape alone; partial gradients take at most 4 Mi elements */
    p.parts = TNI_MIN(TNI_MIN(c->n, MAX_PARTS), 1 + (int64_t)4194304 / size);
    cut_channels(&p, p.parts * c->groups, p.og);
    int64_t items = p.parts * c->groups * p.pieces;
    double work = (double)p.og * (double)p.taps * (double)p.plane * (double)c->n /
                  (double)(p.parts * p.pieces);
    TNI_ITEMS(REAL, partial, (p.parts - 1) * size);
    if (!(p.partial = partial)) return TN_E_NOMEM;
    TNI_TRY(run(&p, items, work, grad_weight));
    tni_parallel(size, 4096, sum_parts, &p);
    return TN_OK;
}
