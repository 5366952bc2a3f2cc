/*
 * winograd.c - convolutions of 3x3 taps with stride 1, computed in f32 by Winograd's F(2x2, 3x3): a
 * tile of 2x2 outputs takes 16 multiplications for each pair of channels, not 36:
 *     Y = A^T m A,  m = sum over c of u * v,  u = G w G^T,  v = B^T d B
 * w is a kernel, d the 4x4 inputs under a tile, * is elementwise. So each of the 16 places of a
 * transformed tile has a product over all tiles,
 *     m [o, tiles] = u [o, c] v [c, tiles].
 * Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), equation 8.
 * The gradient of the input is the convolution of dy with kernels turned by 180 degrees. The
 * gradient of the kernels takes the same steps backwards:
 *     dw = G^T du G,  du [o, c] = dm [o, tiles] v^T,  dm = A dY A^T
 *
 * Work is cut into pieces of some rows of tiles, counted over all images; v and m of a piece stay
 * in the caches if images are not very wide. Where du is large, four threads share it, each with a
 * row of the 4x4 places, since otherwise each would need a du of its own.
 *
 * A place of v is a sum of inputs of its tile. So the error of an output is a rounding of the
 * largest input of the whole tile, not only of those under its own taps; and an Inf would spoil
 * outputs beside it. Where a result is not finite, the general kernels compute all of it again.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/dense/vector.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/internal.h"
#include "tensor/math.h"

/* Not in SSE, where sums do not fit the registers, and the usual way has libraries that choose AVX.
 * On other processors it has not been measured. */
#if defined __AVX512F__
enum { ROWS = 8, IS_FAST = 1 };
#elif defined __AVX__
enum { ROWS = 4, IS_FAST = 1 };
#else
enum { ROWS = 4, IS_FAST = 0 };
#endif
enum { EIGHT = 8, PLACES = 16, MAX_PARTS = 16 };
enum { PIECE_BYTES = 2 * 1024 * 1024, MOST_BYTES = 32 * 1024 * 1024 };
enum { LEAST_CHANNELS = 8, LEAST_TILES = 32, PARTS_SIZE = 1048576 };
static const double LEAST_GAIN = 1.5;

/* Tiles of a row are transformed eight at a time; rows of v and m have room for as many more. */
typedef float eight __attribute__((vector_size(4 * EIGHT), aligned(4), may_alias));
typedef int32_t bits __attribute__((vector_size(4 * EIGHT)));

#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#define FRONT_8 0, 8, 1, 9, 2, 10, 3, 11
#define BACK_8 4, 12, 5, 13, 6, 14, 7, 15

/* x with its v, or y (for the gradient of the kernels: dy) with its m. */
typedef struct side {
    tni_array images;
    int64_t channels, h, w;
    int64_t above, before; /* rows and columns of zeros before the first of an image */
    int64_t step;          /* from a place of v or m to the next */
} side;

typedef struct winograd {
    side in, out;
    tni_array kernels, bias, dw; /* dw: of the gradient of the kernels alone */
    bool turned;           /* the kernels are [in, out, 3, 3], and are turned by 180 degrees */
    int64_t down, across;  /* tiles of an image */
    int64_t all, rows;     /* rows of tiles: of all images, of a piece */
    int64_t pieces, parts; /* du is summed in parts, of several pieces each */
    int64_t places;        /* of an item: all 16, or one row of four of the 4 x 4 */
    int64_t n_in, n_out;   /* channels of u: in rounded up to whole strips, out to ROWS */
    int64_t ld;            /* elements from a row of v or m to the next */
    int64_t width;         /* of the band: rows of an image with zeros around them */
    float *u;              /* [parts, 16, n_out, n_in] */
    int64_t u_step;        /* from a place of u to the next */
    tni_scratch scratch;   /* v, m, the band or a transposed strip of v, wide rows */
    int64_t band_size;
    atomic_bool infinite;
} winograd;

/* ---- transforms: by rows, then by columns ---------------------------------------------------- */

/* Rows [first, end) of v = B^T d B of eight tiles, whose 4 x 18 inputs begin at d. */
static inline void inputs(int64_t first, int64_t end, const float *d, int64_t width, float *v,
                          int64_t step)
{
    static const int columns[4] = { 0, EIGHT, 2, EIGHT + 2 };
    eight r[4][4];
    for (int j = 0; j < 4; j++) {
        const float *at = d + columns[j];
        eight d0 = *(const eight *)at, d1 = *(const eight *)(at + width);
        eight d2 = *(const eight *)(at + 2 * width), d3 = *(const eight *)(at + 3 * width);
        r[0][j] = d0 - d2;
        r[1][j] = d1 + d2;
        r[2][j] = d2 - d1;
        r[3][j] = d1 - d3;
    }
    for (int i = 0; i < 4; i++) {
        if (i < first || i >= end) continue;
        eight d0 = __builtin_shufflevector(r[i][0], r[i][1], EVEN);
        eight d1 = __builtin_shufflevector(r[i][0], r[i][1], ODD);
        eight d2 = __builtin_shufflevector(r[i][2], r[i][3], EVEN);
        eight d3 = __builtin_shufflevector(r[i][2], r[i][3], ODD);
        *(eight *)v = d0 - d2;
        *(eight *)(v + step) = d1 + d2;
        *(eight *)(v + 2 * step) = d2 - d1;
        *(eight *)(v + 3 * step) = d1 - d3;
        v += 4 * step;
    }
}

/* y = A^T m A + bias of eight tiles, 2 x 16 outputs, rows of y width apart. Lanes of *finite become
 * NaN where an output of the first n tiles is not finite: m has no more. */
static inline void outputs(const float *m, int64_t step, int64_t n, float bias, float *y,
                           int64_t width, eight *finite)
{
    bits mine = (bits){ 0, 1, 2, 3, 4, 5, 6, 7 } < (int32_t)n;
    eight r[2][4];
    for (int j = 0; j < 4; j++, m += step) {
        eight m0 = *(const eight *)m, m1 = *(const eight *)(m + 4 * step);
        eight m2 = *(const eight *)(m + 8 * step), m3 = *(const eight *)(m + 12 * step);
        r[0][j] = m0 + m1 + m2;
        r[1][j] = m1 - m2 - m3;
    }
    for (int i = 0; i < 2; i++, y += width) {
        eight even = r[i][0] + r[i][1] + r[i][2] + bias, odd = r[i][1] - r[i][2] - r[i][3] + bias;
        *finite += (eight)((bits)(even * 0 + odd * 0) & mine);
        *(eight *)y = __builtin_shufflevector(even, odd, FRONT_8);
        *(eight *)(y + EIGHT) = __builtin_shufflevector(even, odd, BACK_8);
    }
}

/* Rows [first, end) of m = A dY A^T of eight tiles, whose 2 x 16 gradients begin at dy. */
static inline void gradients(int64_t first, int64_t end, const float *dy, int64_t width, float *m,
                             int64_t step)
{
    eight r[4][2];
    for (int j = 0; j < 2; j++) {
        eight d0 = *(const eight *)(dy + j * EIGHT), d1 = *(const eight *)(dy + width + j * EIGHT);
        r[0][j] = d0;
        r[1][j] = d0 + d1;
        r[2][j] = d0 - d1;
        r[3][j] = -d1;
    }
    for (int i = 0; i < 4; i++) {
        if (i < first || i >= end) continue;
        eight d0 = __builtin_shufflevector(r[i][0], r[i][1], EVEN);
        eight d1 = __builtin_shufflevector(r[i][0], r[i][1], ODD);
        *(eight *)m = d0;
        *(eight *)(m + step) = d0 + d1;
        *(eight *)(m + 2 * step) = d0 - d1;
        *(eight *)(m + 3 * step) = -d1;
        m += 4 * step;
    }
}

/* Items: channels o. u = G w G^T, eight channels c at a time. */
static void transform_kernels(void *context, int64_t begin, int64_t end)
{
    const winograd *p = context;
    int64_t n_in = p->in.channels, n_out = p->out.channels, step = p->u_step;
    for (int64_t o = begin; o < end; o++) {
        for (int64_t next = 0; next < n_in; next += EIGHT) {
            int64_t c = TNI_MIN(next, n_in - EIGHT);
            float w[9][EIGHT], room[9];
            eight g[3], t[4][3];
            for (int64_t e = 0; e < EIGHT; e++) {
                int64_t at = 9 * (p->turned ? (c + e) * n_out + o : o * n_in + c + e);
                const float *from = tni_get(p->kernels.data, p->kernels.dtype, at, 9, room);
                for (int k = 0; k < 9; k++) w[k][e] = from[p->turned ? 8 - k : k];
            }
            for (int j = 0; j < 3; j++) {
                for (int i = 0; i < 3; i++) g[i] = *(const eight *)w[3 * i + j];
                t[0][j] = g[0];
                t[1][j] = (g[0] + g[1] + g[2]) * 0.5f;
                t[2][j] = (g[0] - g[1] + g[2]) * 0.5f;
                t[3][j] = g[2];
            }
            float *u = p->u + o * p->n_in + c;
            for (int i = 0; i < 4; i++, u += 4 * step) {
                *(eight *)u = t[i][0];
                *(eight *)(u + step) = (t[i][0] + t[i][1] + t[i][2]) * 0.5f;
                *(eight *)(u + 2 * step) = (t[i][0] - t[i][1] + t[i][2]) * 0.5f;
                *(eight *)(u + 3 * step) = t[i][2];
            }
        }
    }
}

/* Lanes of finite are 0, or NaN where a result is not finite. */
static void note(winograd *p, const eight *finite)
{
    for (int j = 0; j < EIGHT; j++)
        if ((*finite)[j] != 0) atomic_store_explicit(&p->infinite, true, memory_order_relaxed);
}

/* Items: channels o. dw = G^T du G, du summed over the parts in their order. */
static void write_kernels(void *context, int64_t begin, int64_t end)
{
    winograd *p = context;
    eight finite = { 0 };
    int64_t n_in = p->in.channels, step = p->u_step;
    for (int64_t o = begin; o < end; o++) {
        for (int64_t next = 0; next < n_in; next += EIGHT) {
            int64_t c = TNI_MIN(next, n_in - EIGHT);
            eight du[4], t[3][4];
            float dw[9][EIGHT], room[9 * EIGHT];
            for (int j = 0; j < 4; j++) {
                for (int i = 0; i < 4; i++) {
                    const float *from = p->u + (4 * i + j) * step + o * p->n_in + c;
                    du[i] = *(const eight *)from;
                    for (int64_t k = 1; k < p->parts; k++)
                        du[i] += *(const eight *)(from + k * PLACES * step);
                }
                t[0][j] = du[0] + (du[1] + du[2]) * 0.5f;
                t[1][j] = (du[1] - du[2]) * 0.5f;
                t[2][j] = (du[1] + du[2]) * 0.5f + du[3];
            }
            for (int i = 0; i < 3; i++) {
                *(eight *)dw[3 * i] = t[i][0] + (t[i][1] + t[i][2]) * 0.5f;
                *(eight *)dw[3 * i + 1] = (t[i][1] - t[i][2]) * 0.5f;
                *(eight *)dw[3 * i + 2] = (t[i][1] + t[i][2]) * 0.5f + t[i][3];
            }
            for (int k = 0; k < 9; k++) finite += *(const eight *)dw[k] * 0;
            int64_t at = 9 * (o * n_in + c);
            float *to = tni_place(p->dw.data, p->dw.dtype, at, room);
            for (int64_t e = 0; e < EIGHT; e++)
                for (int k = 0; k < 9; k++) to[9 * e + k] = dw[k][e];
            tni_put(p->dw.data, p->dw.dtype, at, 9 * EIGHT, room);
        }
    }
    note(p, &finite);
}

/* ---- a piece --------------------------------------------------------------------------------- */

/* Rows of tiles of one image, [first, first + n), which are rows [done, done + n) of a piece. */
typedef struct run {
    int64_t image, first, n, done;
} run;

/* The next run of the piece [r0, r0 + rows); begin with a run of zeros. */
static bool next_run(const winograd *p, int64_t r0, int64_t rows, run *r)
{
    r->done += r->n;
    r->image = (r0 + r->done) / p->down;
    r->first = (r0 + r->done) % p->down;
    r->n = TNI_MIN(rows - r->done, p->down - r->first);
    return r->n > 0;
}

static inline void copy(int64_t n, const float *from, float *to)
{
    int64_t j = 0;
    for (; j + EIGHT <= n; j += EIGHT) *(eight *)(to + j) = *(const eight *)(from + j);
    for (; j < n; j++) to[j] = from[j];
}

/* Rows [row, row + n) of an image's channel to the band, with zeros around them. */
static void fill_band(const winograd *p, const side *s, int64_t plane, int64_t row, int64_t n,
                      float *band)
{
    int64_t first = TNI_MIN(TNI_MAX(row, 0), s->h), end = TNI_MAX(first, TNI_MIN(row + n, s->h));
    const float *from = tni_get(s->images.data, s->images.dtype, (plane * s->h + first) * s->w,
                                (end - first) * s->w, band + p->band_size);
    for (int64_t i = row; i < row + n; i++, band += p->width)
        if (i < first || i >= end)
            memset(band, 0, (size_t)p->width * sizeof(float));
        else
            copy(s->w, from + (i - first) * s->w, band + s->before);
}

/* Rows [first, end) of v of in, or of m of out. */
static inline void transform(const winograd *p, const side *s, int64_t first, int64_t end,
                             int64_t r0, int64_t rows, float *places, float *band)
{
    int64_t border = s == &p->in ? 2 : 0;
    memset(band, 0, (size_t)((2 * p->rows + 2) * p->width) * sizeof(float));
    for (run r = { 0 }; next_run(p, r0, rows, &r);) {
        for (int64_t c = 0; c < s->channels; c++) {
            fill_band(p, s, r.image * s->channels + c, 2 * r.first - s->above, 2 * r.n + border,
                      band);
            float *to = places + c * p->ld + r.done * p->across;
            const float *from = band;
            for (int64_t row = 0; row < r.n; row++, to += p->across, from += 2 * p->width)
                for (int64_t j = 0; j < p->across; j += EIGHT)
                    if (border)
                        inputs(first, end, from + 2 * j, p->width, to + j, s->step);
                    else
                        gradients(first, end, from + 2 * j, p->width, to + j, s->step);
        }
    }
}

/* c [ROWS, n] = a [ROWS, k] b [k, n], or added to c, after the sum: short sums round less; n a
 * multiple of STRIP. */
static void product(int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                    float *c, int64_t ldc, bool add)
{
    for (int64_t j = 0; j < n; j += STRIP) {
        vector sum[ROWS][VECTORS] = { 0 };
        for (int64_t i = 0; i < k; i++) {
            const vector *x = (const vector *)(b + i * ldb + j);
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < VECTORS; v++) sum[r][v] += a[r * lda + i] * x[v];
        }
        for (int r = 0; r < ROWS; r++) {
            vector *to = (vector *)(c + r * ldc + j);
            for (int v = 0; v < VECTORS; v++) {
                if (add) sum[r][v] += to[v];
                to[v] = sum[r][v];
            }
        }
    }
}

/* y [n, STRIP] = x [STRIP, n]^T, n a multiple of LANES. */
static void transpose(int64_t n, const float *x, int64_t ld, float *y)
{
    for (int64_t c = 0; c < STRIP; c += LANES)
        for (int64_t j = 0; j < n; j += LANES)
            transpose_block(x + c * ld + j, ld, y + j * STRIP + c, STRIP);
}

/* Rows of tiles of channel o, from its m. Eight tiles are stored at a time. What goes beyond the
 * end of a row is overwritten by the rows, or the channel, after it, where these are still to come
 * and belong to this piece; elsewhere the rows go by way of the band. Rows of bf16 and f16 are made
 * in memory that has room behind them. */
static void write_rows(const winograd *p, int64_t r0, int64_t rows, int64_t o, const float *m,
                       float *band, eight *finite)
{
    const side *s = &p->out;
    float one, *wide = band + p->band_size;
    float bias =
        p->bias.data ? *(const float *)tni_get(p->bias.data, p->bias.dtype, o, 1, &one) : 0;
    for (run r = { 0 }; next_run(p, r0, rows, &r);) {
        int64_t first = ((r.image * s->channels + o) * s->h + 2 * r.first) * s->w;
        int64_t n = TNI_MIN(2 * r.n, s->h - 2 * r.first) * s->w;
        float *y = tni_place(s->images.data, s->images.dtype, first, wide);
        float *end = y + n, *room = end;
        if (y == wide)
            room += 2 * EIGHT;
        else if (r.n == p->down && o + 1 < s->channels)
            room += s->h * s->w;
        for (int64_t i = 0; i < r.n; i++, m += p->across, y += 2 * s->w) {
            bool two = y + s->w < end;
            if (two && s->w % 2 == 0 && p->across >= EIGHT) {
                for (int64_t j = 0; j < p->across; j += EIGHT) {
                    int64_t at = TNI_MIN(j, p->across - EIGHT);
                    outputs(m + at, s->step, EIGHT, bias, y + 2 * at, s->w, finite);
                }
            } else if (two && p->across <= EIGHT && y + s->w + 2 * EIGHT <= room) {
                outputs(m, s->step, p->across, bias, y, s->w, finite);
            } else {
                for (int64_t j = 0; j < p->across; j += EIGHT)
                    outputs(m + j, s->step, TNI_MIN(EIGHT, p->across - j), bias, band + 2 * j,
                            p->width, finite);
                copy(s->w, band, y);
                if (two) copy(s->w, band + p->width, y + s->w);
            }
        }
        tni_put(s->images.data, s->images.dtype, first, n, wide);
    }
}

static float *scratch_of(const winograd *p, float **m, float **band)
{
    float *v = tni_scratch_own(&p->scratch, 0);
    *m = v + p->places * p->in.step;
    *band = *m + p->places * p->out.step;
    return v;
}

/* Items: pieces. */
static void convolve(void *context, int64_t begin, int64_t end)
{
    winograd *p = context;
    float *m, *band, *v = scratch_of(p, &m, &band);
    for (int64_t i = begin; i < end; i++) {
        int64_t r0 = i * p->rows, rows = TNI_MIN(p->rows, p->all - r0);
        transform(p, &p->in, 0, 4, r0, rows, v, band);
        for (int64_t k = 0; k < PLACES; k++)
            for (int64_t o = 0; o < p->n_out; o += ROWS)
                product(tni_up(rows * p->across, STRIP), p->in.channels,
                        p->u + k * p->u_step + o * p->n_in, p->n_in, v + k * p->in.step, p->ld,
                        m + k * p->out.step + o * p->ld, p->ld, false);
        eight finite = { 0 };
        for (int64_t o = 0; o < p->out.channels; o++)
            write_rows(p, r0, rows, o, m + o * p->ld, band, &finite);
        note(p, &finite);
    }
}

/* Adds the product of place k to du. */
static void add_product(const winograd *p, int64_t tiles, const float *v, const float *m,
                        float *turned, float *du)
{
    for (int64_t c = 0; c < p->n_in; c += STRIP) {
        transpose(tni_up(tiles, LANES), v + c * p->ld, p->ld, turned);
        for (int64_t o = 0; o < p->n_out; o += ROWS)
            product(STRIP, tiles, m + o * p->ld, p->ld, turned, STRIP, du + o * p->n_in + c,
                    p->n_in, true);
    }
}

/* Items: parts, or rows of places of parts. */
static void sum_kernels(void *context, int64_t begin, int64_t end)
{
    winograd *p = context;
    float *m, *band, *v = scratch_of(p, &m, &band);
    int64_t groups = PLACES / p->places, size = p->places * p->u_step;
    for (int64_t item = begin; item < end; item++) {
        int64_t part = item / groups, first = item % groups, next = first + p->places / 4;
        float *u = p->u + item * size;
        memset(u, 0, (size_t)size * sizeof(float));
        int64_t last = (part + 1) * p->pieces / p->parts;
        for (int64_t piece = part * p->pieces / p->parts; piece < last; piece++) {
            int64_t r0 = piece * p->rows, rows = TNI_MIN(p->rows, p->all - r0);
            transform(p, &p->in, first, next, r0, rows, v, band);
            transform(p, &p->out, first, next, r0, rows, m, band);
            for (int64_t k = 0; k < p->places; k++)
                add_product(p, rows * p->across, v + k * p->in.step, m + k * p->out.step, band,
                            u + k * p->u_step);
        }
    }
}

/* ---- the plan: by the sizes alone ------------------------------------------------------------ */

/* v and m of a row of tiles. */
static int64_t row_bytes(const winograd *p)
{
    return p->places * (p->in.channels + p->out.channels) * p->across * 4;
}

/* Rows of tiles of a piece: v and m of them fit PIECE_BYTES, or four times that where du is large,
 * since du is read and written for each piece; but at least one row, or two strips. Of these sizes,
 * the one with the fewest strips for four threads that take a piece each at a time. */
static int64_t rows_of(const winograd *p)
{
    int64_t most = TNI_MAX(PIECE_BYTES / row_bytes(p), TNI_MAX(2 * STRIP / p->across, 1));
    if (p->places < PLACES) most *= 4;
    most = TNI_MIN(most, (p->all - 1) / 4 + 1);
    int64_t best = 0, least = INT64_MAX;
    for (int64_t r = most; r > most / 2; r--) {
        int64_t strips = tni_up((p->all - 1) / r + 1, 4) * tni_up(r * p->across, STRIP);
        if (strips < least) least = strips, best = r;
    }
    return best;
}

/* At least n, and chosen so that eight tiles of all places lie in different sets of the L1 cache,
 * whose ways are 4 KiB. */
static int64_t apart(int64_t n)
{
    return tni_up(n, 1024) + 80;
}

/* Multiplications of the usual way for each one made here, in whole strips and rows. */
static double gain(const winograd *p, int64_t images)
{
    double pairs = (double)(p->in.channels * p->out.channels);
    double usual = 9 * (double)(images * p->out.h * p->out.w) * pairs;
    double tiles = (double)(p->pieces * tni_up(p->rows * p->across, STRIP));
    double filled = (double)(p->in.channels * p->n_out);
    if (p->dw.data) {
        tiles = (double)(p->all * p->across);
        filled = (double)(p->n_in * p->n_out);
    }
    return usual / (PLACES * tiles * filled);
}

/* Sets sides and sizes. False: another kernel is faster, or the only one. */
static bool plan(winograd *p, const tni_conv2d_sizes *z, tni_array in, tni_array out)
{
    if (!IS_FAST || in.dtype == TN_F64 || z->groups != 1) return false;
    if (z->c < LEAST_CHANNELS || z->o < LEAST_CHANNELS) return false;
    if (z->kh != 3 || z->kw != 3) return false;
    for (int d = 0; d < 2; d++) { /* the band of a row has room for 2 columns more than an output */
        int64_t after = d ? z->ow + 2 - z->w - z->padding[1] : z->oh + 2 - z->h - z->padding[0];
        if (z->stride[d] != 1 || z->dilation[d] != 1 || z->padding[d] > 2 || after < 0 || after > 2)
            return false;
    }
    const int64_t *pad = z->padding;
    p->in = (side){ in, z->c, z->h, z->w, pad[0], pad[1], 0 };
    p->out = (side){ out, z->o, z->oh, z->ow, 0, 0, 0 };
    if (p->turned) {
        p->in = (side){ in, z->o, z->oh, z->ow, 2 - pad[0], 2 - pad[1], 0 };
        p->out = (side){ out, z->c, z->h, z->w, 0, 0, 0 };
    }
    p->down = (p->out.h + 1) / 2;
    p->across = (p->out.w + 1) / 2;
    p->all = z->n * p->down;
    p->n_in = tni_up(p->in.channels, STRIP);
    p->n_out = tni_up(p->out.channels, ROWS);
    p->u_step = p->n_out * p->n_in;
    int64_t most = PARTS_SIZE / (PLACES * p->u_step);         /* parts */
    p->places = p->dw.data && most < 4 ? PLACES / 4 : PLACES; /* there are at least four items */
    if (p->all * p->across == 0 || row_bytes(p) > MOST_BYTES) return false;
    p->rows = rows_of(p);
    p->pieces = (p->all - 1) / p->rows + 1;
    p->ld = tni_up(p->rows * p->across + EIGHT, 32) + 16; /* not near a multiple of 1 KiB */
    p->width = tni_up(2 * p->across, 2 * EIGHT) + 2;
    p->in.step = apart(p->n_in * p->ld);
    p->out.step = apart(p->n_out * p->ld);
    p->parts = p->dw.data ? TNI_MIN(TNI_MIN(p->pieces, MAX_PARTS), TNI_MAX(1, most)) : 1;
    /* each part of du is written and read again */
    if (p->dw.data && p->all * p->across < LEAST_TILES * p->parts) return false;
    return gain(p, z->n) >= LEAST_GAIN;
}

/* False: the result is not finite. */
static bool compute(winograd *p, tn_status *status)
{
    int64_t rows = 2 * p->rows + 2, wide = rows * TNI_MAX(p->in.w, p->out.w) + 2 * EIGHT;
    p->band_size = tni_up(TNI_MAX(rows * p->width, p->dw.data ? p->ld * STRIP : 0), LANES);
    int64_t floats = p->places * (p->in.step + p->out.step) + p->band_size + tni_up(wide, LANES);
    p->scratch.each = (size_t)floats * sizeof(float);
    int64_t items = p->dw.data ? p->parts * PLACES / p->places : p->pieces;
    TNI_ITEMS(float, u, (p->parts * PLACES * p->u_step));
    *status = u ? TN_OK : TN_E_NOMEM;
    if (!(p->u = u)) return true;
    int64_t grain = 4096 / p->n_in + 1;
    if (!p->dw.data) tni_parallel(p->out.channels, grain, transform_kernels, p);
    *status = tni_parallel_scratch(&p->scratch, items, 1, p->dw.data ? sum_kernels : convolve, p);
    if (*status == TN_OK && p->dw.data) tni_parallel(p->out.channels, grain, write_kernels, p);
    return *status != TN_OK || !p->infinite;
}

bool K(tni_winograd)(const tni_convolution *c, tn_status *status)
{
    winograd p = { .turned = c->kind == TNI_CONV_DX, .bias = c->bias };
    *(c->kind == TNI_CONV_DW ? &p.dw : &p.kernels) = c->w;
    bool takes = plan(&p, &c->sizes, p.turned ? c->y : c->x, p.turned ? c->x : c->y);
    return takes && compute(&p, status);
}
