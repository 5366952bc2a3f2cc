/*
 * amx_conv.c - convolutions of bf16 by AMX's tiles, with sums in f32: forward, and both gradients.
 * Strides of 1 and one group, 16 channels or more on both sides.
 *
 * An image is copied once, into a frame with its padding, and multiplied there. The frame's rows
 * lie one after another, `width` apart, so a place of the output and a tap of the kernel add up to
 * one place of the frame: y[q] = sum over taps of W[tap] x[q + offset[tap]], for all places q at
 * once. The few columns between two rows of the output are computed for nothing. So a tile of the
 * frame begins anywhere, and no tap is copied:
 *   forward   sums [channels of y, places] += W[tap] [channels of y, of x] x frame. The frame holds
 *             pairs of channels side by side, as the second factor of a product of tiles does.
 *   dx        the same of dy, with the kernel turned round
 *   dw        sums [channels of x, of y] += frame [channels of x, places] x dy [places, channels of
 *             y], for each tap. Here dy is copied in pairs of places, zeros between the rows.
 * A frame holds some rows of an image (a band), or all; for dw several images, if they are small.
 *
 * Tiles: see amx_tiles.h. The bits depend on the sizes. Infinite values also meet the zeros of the
 * padding and between rows, which makes NaN where they should not count: x and dy in dw, weights in
 * dx near the edges.
 */
#include "tensor/cpu/dense/amx_tiles.h"
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"
#include "tensor/math.h"

enum {
    LEAST = 16,            /* channels */
    TAPS = 128,            /* of a kernel, at most */
    FAR = 4096,            /* places between two of its taps, at most */
    CUTS = 8,              /* rows of y that a square of sums meets, at most */
    LEAST_WIDTH = 6,       /* of a frame: see CUTS */
    FRAME_BYTES = 1 << 17, /* of a frame, unless one row of y needs more */
    PLACES = 320,          /* of a frame for dw: sums are read and written once per frame */
    SHARES = 16            /* chunks of work, unless there are fewer frames */
};

/* A convolution of stride 1. For dx, x is dy and y is dx, and z's sizes and padding are exchanged
 * likewise: o channels of [oh, ow] are computed from c of [h, w]. */
typedef struct conv {
    tni_array x, y, w, bias; /* for dw y is dy */
    tni_conv2d_sizes z;
    bool turned;                /* dx: w is turned round, and its channels exchanged */
    int64_t width;              /* of a frame's rows */
    int64_t rows, bands;        /* of y, in a frame; frames of an image */
    int64_t line;               /* places from a channel, or pair, to the next */
    int64_t c_blocks, o_blocks; /* of 32 channels */
    int64_t offset[TAPS], taps; /* in places */
    uint16_t *weights;          /* packed */
    int64_t together, parts;    /* dw: images of a frame; sums */
    float *sums;                /* dw: of each part, squares [blocks of o, of c, taps] */
    atomic_bool undone;         /* a thread had no memory */
} conv;

/* Places that are computed for this many rows of y. */
static int64_t places(const conv *v, int64_t rows)
{
    return tni_up((rows - 1) * v->width + v->z.ow, SQUARE);
}

/* ---- forward and dx -------------------------------------------------------------------------- */

/* Items: channels of y. A block of 32 of them has, for each 32 channels of x and each tap, two
 * tiles [16, 32]. */
static void pack_weights(void *context, int64_t begin, int64_t end)
{
    const conv *v = context;
    int64_t from_o = v->turned ? v->taps : v->z.c * v->taps;
    int64_t from_c = v->turned ? v->z.o * v->taps : v->taps;
    for (int64_t o = begin; o < end; o++) {
        uint16_t *to =
            v->weights + o / SQUARE * v->c_blocks * v->taps * 2 * TILE + o % SQUARE * STEPS;
        for (int64_t c = 0; c < v->c_blocks * STEPS; c++) {
            bool there = o < v->z.o && c < v->z.c;
            const uint16_t *w = (const uint16_t *)v->w.data + (there ? o * from_o + c * from_c : 0);
            uint16_t *tile = to + c / STEPS * v->taps * 2 * TILE + c % STEPS;
            for (int64_t t = 0; t < v->taps; t++)
                tile[t * 2 * TILE] = there ? w[v->turned ? v->taps - 1 - t : t] : 0;
        }
    }
}

/* The rows of x that the rows of y from r on read, into a frame of pairs. */
static void frame_pairs(const conv *v, const uint16_t *x, int64_t r, int64_t rows, uint16_t *frame)
{
    int64_t top = r - v->z.padding[0], left = v->z.padding[1], plane = v->z.h * v->z.w;
    int64_t all = rows + (v->z.kh - 1) * v->z.dilation[0];
    for (int64_t c = 0; c < v->z.c; c += 2, frame += 2 * v->line, x += 2 * plane)
        for (int64_t i = 0; i < all; i++)
            for (int64_t j = 0; j < v->width; j += SIDE) { /* what isn't there is 0 */
                bool there = top + i >= 0 && top + i < v->z.h;
                const uint16_t *from = x + (there ? (top + i) * v->z.w : 0) + j - left;
                __mmask16 mask = (__mmask16)(first(left + v->z.w - j) & ~first(left - j));
                if (!there) mask = 0;
                __m256i even = _mm256_maskz_loadu_epi16(mask, from);
                if (c + 1 == v->z.c) mask = 0;
                __m256i odd = _mm256_maskz_loadu_epi16(mask, from + plane);
                _mm512_mask_storeu_epi32(frame + 2 * (i * v->width + j),
                                         (__mmask16)first(v->width - j), in_pairs(even, odd));
            }
}

/* sums [32 channels of y, 32 places] = W x, from a place of the frame on; the lower half is left
 * out where there are at most 16 channels. */
static void filter_square(const conv *v, const uint16_t *weights, const uint16_t *frame,
                          float *sums, bool lower)
{
    zero_square();
    for (int64_t c = 0; c < v->c_blocks; c++, frame += 2 * SIDE * v->line)
        for (int64_t t = 0; t < v->taps; t++, weights += 2 * TILE)
            add_step(weights, TILE_ROW, TILE, frame + 2 * v->offset[t], v->line * 4, 2 * SIDE,
                     lower);
    store_square(sums);
}

/* What a square has of a row of y, from lane 0 or 16 on: y[at + lane] for the lanes of the mask. */
typedef struct piece {
    int64_t at;
    int lane;
    bool wide; /* all 32 lanes, or 16 */
    __mmask32 mask;
} piece;

/* Returns how many rows of y the square from place q on meets. */
static int pieces(const conv *v, int64_t q, int64_t rows, piece *p)
{
    int n = 0;
    for (int64_t r = q / v->width; r < rows && r * v->width < q + SQUARE; r++) {
        int64_t from = TNI_MAX(r * v->width - q, 0);
        int64_t to = TNI_MIN(r * v->width + v->z.ow - q, SQUARE);
        if (to <= from) continue;
        int lane = from < SIDE ? 0 : SIDE;
        p[n++] = (piece){ .at = q - r * (v->width - v->z.ow) + lane,
                          .lane = lane,
                          .wide = to - lane > SIDE,
                          .mask = first(to - lane) & ~first(from - lane) };
    }
    return n;
}

/* A square that is computed but not yet written: it is written while the next one is computed. */
typedef struct pending {
    const float *sums, *bias;
    int64_t channels;
    uint16_t *y; /* of its first channel, at the first row of the frame */
    const piece *p;
    int n; /* pieces; 0: there is no square */
} pending;

/* y = sums + bias, rounded. A row that ends within 16 lanes is stored as 16, which crosses a line
 * of the cache less often. */
static void write_square(const conv *v, const pending *s)
{
    for (int k = 0; k < s->n; k++) {
        const piece *p = s->p + k;
        const float *from = s->sums + p->lane;
        uint16_t *to = s->y + p->at;
        for (int64_t i = 0; i < s->channels; i++, from += SQUARE, to += v->z.oh * v->z.ow) {
            __m512 b = _mm512_set1_ps(s->bias[i]);
            __m512 low = _mm512_add_ps(_mm512_loadu_ps(from), b);
            if (p->wide) {
                __m512 high = _mm512_add_ps(_mm512_loadu_ps(from + SIDE), b);
                _mm512_mask_storeu_epi16(to, p->mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            } else {
                _mm256_mask_storeu_epi16(to, (__mmask16)p->mask, (__m256i)_mm512_cvtneps_pbh(low));
            }
        }
    }
}

typedef struct filter_scratch {
    float sums[2 * SUMS], bias[SQUARE * 2];
    piece pieces[2][CUTS];
    uint16_t frame[];
} filter_scratch;

/* The rows of y from r on. */
static void filter_frame(const conv *v, filter_scratch *s, int64_t r, int64_t rows, uint16_t *y)
{
    pending last = { 0 };
    int turn = 0;
    int64_t all = places(v, rows);
    for (int64_t o = 0; o < v->z.o; o += SQUARE) {
        const uint16_t *weights = v->weights + o * v->c_blocks * v->taps * TILE / SIDE;
        int64_t channels = TNI_MIN(v->z.o - o, SQUARE);
        float *bias = s->bias + o / SQUARE % 2 * SQUARE;
        for (int64_t i = 0; i < SQUARE; i++)
            bias[i] = v->bias.data && i < channels
                          ? tn_from_bf16(((const uint16_t *)v->bias.data)[o + i])
                          : 0;
        for (int64_t q = 0; q < all; q += SQUARE, turn = !turn) {
            pending here = { s->sums + turn * SUMS,
                             bias,
                             channels,
                             y + (o * v->z.oh + r) * v->z.ow,
                             s->pieces[turn],
                             pieces(v, q, rows, s->pieces[turn]) };
            filter_square(v, weights, s->frame + 2 * q, s->sums + turn * SUMS, channels > SIDE);
            write_square(v, &last);
            last = here;
        }
    }
    write_square(v, &last);
}

/* Items: frames. */
static void filter(void *context, int64_t begin, int64_t end)
{
    conv *v = context;
    filter_scratch *s = tni_thread_scratch();
    if (!s) {
        atomic_store_explicit(&v->undone, true, memory_order_relaxed);
        return;
    }
    memset(s->frame, 0, (size_t)(v->c_blocks * SIDE * v->line) * 4);
    _tile_loadconfig(&tiles);
    for (int64_t i = begin; i < end; i++) {
        int64_t image = i / v->bands, r = i % v->bands * v->rows;
        int64_t rows = TNI_MIN(v->rows, v->z.oh - r);
        frame_pairs(v, (const uint16_t *)v->x.data + image * v->z.c * v->z.h * v->z.w, r, rows,
                    s->frame);
        filter_frame(v, s, r, rows, (uint16_t *)v->y.data + image * v->z.o * v->z.oh * v->z.ow);
    }
    _tile_release();
}

/* ---- dw -------------------------------------------------------------------------------------- */

/* n elements, or n zeros if there are none. */
static inline void copy_row(bool there, const uint16_t *from, uint16_t *to, int64_t n)
{
    for (int64_t j = 0; j < n; j += STEPS) {
        __mmask32 mask = first(n - j);
        _mm512_mask_storeu_epi16(to + j, mask,
                                 _mm512_maskz_loadu_epi16(there ? mask : 0, from + j));
    }
}

typedef struct gradient {
    uint16_t *room;   /* [16, line]: 16 channels of dy */
    uint16_t *dy;     /* tiles: [blocks of 32 channels, steps of 32 places, 2] */
    uint16_t *frames; /* [images, channels of x, line] */
} gradient;

/* Places of dy in frames of `together` images. */
static int64_t dy_places(const conv *v)
{
    return places(v, v->rows) * v->together;
}

static double gradient_bytes(const conv *v)
{
    double images = (double)(v->together * v->c_blocks * SQUARE);
    double dy = (double)(v->o_blocks * SQUARE) * (double)dy_places(v);
    return 2 * ((SIDE + images) * (double)v->line + dy);
}

/* The rows of x that the rows of y from r on read, into a frame. */
static void frame_x(const conv *v, const uint16_t *x, int64_t r, int64_t rows, uint16_t *frame)
{
    int64_t top = r - v->z.padding[0], all = rows + (v->z.kh - 1) * v->z.dilation[0];
    for (int64_t c = 0; c < v->z.c; c++, frame += v->line, x += v->z.h * v->z.w)
        for (int64_t i = 0; i < all; i++) {
            bool there = top + i >= 0 && top + i < v->z.h;
            copy_row(there, x + (there ? (top + i) * v->z.w : 0),
                     frame + i * v->width + v->z.padding[1], v->z.w);
        }
}

/* 16 channels of dy (zeros beyond the first `channels`), from a row on, into every other tile. */
static void pair_dy(const conv *v, const gradient *g, const uint16_t *dy, int64_t channels,
                    int64_t rows, uint16_t *to)
{
    int64_t all = places(v, rows), end = (rows - 1) * v->width + v->z.ow;
    for (int64_t o = 0; o < SIDE; o++, dy += v->z.oh * v->z.ow) {
        uint16_t *room = g->room + o * v->line;
        bool there = o < channels;
        for (int64_t r = 0; r < rows; r++)
            copy_row(there, dy + (there ? r * v->z.ow : 0), room + r * v->width, v->z.ow);
        copy_row(false, room, room + end, all - end);
    }
    for (int64_t s = 0; s < all; s += STEPS, to += 2 * TILE)
        transpose_pairs(to, g->room + s, v->line);
}

/* Rows [r, r + rows) of images that follow each other. */
static void frame_both(const conv *v, const gradient *g, int64_t image, int64_t images, int64_t r,
                       int64_t rows)
{
    int64_t steps = places(v, rows) / STEPS;
    for (int64_t k = 0; k < images; k++) {
        const uint16_t *x = (const uint16_t *)v->x.data + (image + k) * v->z.c * v->z.h * v->z.w;
        const uint16_t *dy = (const uint16_t *)v->y.data + (image + k) * v->z.o * v->z.oh * v->z.ow;
        frame_x(v, x, r, rows, g->frames + k * v->c_blocks * SQUARE * v->line);
        for (int64_t o = 0; o < v->z.o; o += SIDE)
            pair_dy(v, g, dy + (o * v->z.oh + r) * v->z.ow, v->z.o - o, rows,
                    g->dy + ((o / SQUARE * v->together + k) * steps * 2 + o / SIDE % 2) * TILE);
    }
}

/* sums [32 channels of x, of y] += those of a tap. */
static void add_square(const conv *v, const uint16_t *frame, const uint16_t *dy, float *sums,
                       int64_t images, int64_t steps, bool lower)
{
    load_square(sums);
    for (int64_t k = 0; k < images; k++, frame += v->c_blocks * SQUARE * v->line)
        for (int64_t s = 0; s < steps; s++, dy += 2 * TILE)
            add_step(frame + s * STEPS, v->line * 2, SIDE * v->line, dy, TILE_ROW, TILE, lower);
    store_square(sums);
}

static int64_t sums_size(const conv *v)
{
    return v->o_blocks * v->c_blocks * v->taps * SUMS;
}

static void add_frames(const conv *v, const gradient *g, float *sums, int64_t images, int64_t rows)
{
    int64_t steps = places(v, rows) / STEPS;
    for (int64_t o = 0; o < v->o_blocks; o++)
        for (int64_t c = 0; c < v->c_blocks; c++)
            for (int64_t t = 0; t < v->taps; t++, sums += SUMS)
                add_square(v, g->frames + c * SQUARE * v->line + v->offset[t],
                           g->dy + o * v->together * steps * 2 * TILE, sums, images, steps,
                           v->z.c - c * SQUARE > SIDE);
}

/* Frames of all images. */
static int64_t frames(const conv *v)
{
    return v->together > 1 ? (v->z.n - 1) / v->together + 1 : v->z.n * v->bands;
}

/* Items: parts. */
static void sum_parts(void *context, int64_t begin, int64_t end)
{
    conv *v = context;
    gradient g = { .room = tni_thread_scratch() };
    if (!g.room) {
        atomic_store_explicit(&v->undone, true, memory_order_relaxed);
        return;
    }
    g.dy = g.room + SIDE * v->line;
    g.frames = g.dy + dy_places(v) * v->o_blocks * SQUARE;
    memset(g.room, 0, (size_t)gradient_bytes(v));
    _tile_loadconfig(&tiles);
    for (int64_t part = begin; part < end; part++) {
        float *sums = v->sums + part * sums_size(v);
        memset(sums, 0, (size_t)sums_size(v) * sizeof(float));
        int64_t last = (part + 1) * frames(v) / v->parts;
        for (int64_t i = part * frames(v) / v->parts; i < last; i++) {
            int64_t image = i / v->bands * v->together, r = i % v->bands * v->rows;
            int64_t images = TNI_MIN(v->together, v->z.n - image);
            int64_t rows = TNI_MIN(v->rows, v->z.oh - r);
            frame_both(v, &g, image, images, r, rows);
            add_frames(v, &g, sums, images, rows);
        }
    }
    _tile_release();
}

/* Items: squares of sums. dw = the sum of the parts, in their order. */
static void write_sums(void *context, int64_t begin, int64_t end)
{
    const conv *v = context;
    for (int64_t i = begin; i < end; i++) {
        float *sum = v->sums + i * SUMS;
        for (int64_t part = 1; part < v->parts; part++)
            for (int64_t j = 0; j < SUMS; j++) sum[j] += sum[part * sums_size(v) + j];
        int64_t t = i % v->taps, c0 = i / v->taps % v->c_blocks * SQUARE;
        int64_t o0 = i / v->taps / v->c_blocks * SQUARE;
        for (int64_t c = c0; c < TNI_MIN(c0 + SQUARE, v->z.c); c++)
            for (int64_t o = o0; o < TNI_MIN(o0 + SQUARE, v->z.o); o++) {
                float value = sum[(c - c0) * SQUARE + o - o0];
                int64_t at = (o * v->z.c + c) * v->taps + t;
                if (v->w.dtype == TN_BF16)
                    ((uint16_t *)v->w.data)[at] = tn_to_bf16(value);
                else
                    ((float *)v->w.data)[at] = value;
            }
    }
}

/* ---- the plan: by the sizes alone ------------------------------------------------------------ */

/* The share of the tiles' multiplications that is needed. */
static double used(const conv *v)
{
    double filled = (double)(places(v, v->z.oh) * v->c_blocks * v->o_blocks) * SQUARE * SQUARE;
    return (double)(v->z.oh * v->z.ow * v->z.c * v->z.o) / filled;
}

/* Rows of y in a frame of at most `most` places, and what follows from them. unit: places in 64
 * bytes. */
static void plan_rows(conv *v, int64_t most, int64_t unit)
{
    int64_t halo = (v->z.kh - 1) * v->z.dilation[0], across = (v->z.kw - 1) * v->z.dilation[1];
    v->rows = TNI_MIN(TNI_MAX(most / v->width - halo, 1), v->z.oh);
    if (v->z.n < 4)
        v->rows = TNI_MIN(v->rows, (v->z.n * v->z.oh - 1) / 4 + 1); /* work for 4 threads */
    v->bands = (v->z.oh - 1) / v->rows + 1;
    v->rows = (v->z.oh - 1) / v->bands + 1;
    v->bands = (v->z.oh - 1) / v->rows + 1;
    int64_t all = places(v, v->rows) + halo * v->width + across;
    /* 16 rows of a tile lie in as many sets of the L1 cache */
    v->line = tni_up(all, 2 * unit) + unit;
}

/* False: another kernel is faster, or the only one. */
static bool plan(conv *v, const tni_conv2d_sizes *z)
{
    v->z = *z;
    v->taps = z->kh * z->kw;
    if (v->turned) {
        v->z.c = z->o, v->z.h = z->oh, v->z.w = z->ow;
        v->z.o = z->c, v->z.oh = z->h, v->z.ow = z->w;
    }
    if (z->groups != 1 || v->x.dtype != TN_BF16 || v->y.dtype != TN_BF16) return false;
    if (v->z.n < 1 || v->z.c < LEAST || v->z.o < LEAST || v->z.oh < 1 || v->z.ow < 1 ||
        v->taps > TAPS)
        return false;
    int64_t far[2] = { (z->kh - 1) * z->dilation[0], (z->kw - 1) * z->dilation[1] };
    for (int d = 0; d < 2; d++) {
        if (v->turned) v->z.padding[d] = far[d] - z->padding[d];
        if (z->stride[d] != 1 || v->z.padding[d] < 0 || far[d] > FAR) return false;
    }
    v->width = v->z.ow + far[1];
    if (v->width < LEAST_WIDTH || v->z.padding[1] + v->z.w > v->width) return false;
    for (int64_t t = 0; t < v->taps; t++)
        v->offset[t] = t / v->z.kw * v->z.dilation[0] * v->width + t % v->z.kw * v->z.dilation[1];
    v->c_blocks = (v->z.c - 1) / SQUARE + 1;
    v->o_blocks = (v->z.o - 1) / SQUARE + 1;
    return true;
}

static bool run_filter(conv *v, const tni_conv2d_sizes *z, tn_status *status)
{
    if (!plan(v, z) || used(v) < 0.5) return false;
    plan_rows(v, FRAME_BYTES / (v->c_blocks * SIDE * 4), SIDE);
    double frame = (double)(v->c_blocks * SIDE * 4) * (double)v->line;
    if (sizeof(filter_scratch) + frame > TNI_PRODUCT_SCRATCH) return false;
    size_t size = (size_t)(v->o_blocks * v->c_blocks * v->taps) * 2 * TILE * sizeof(uint16_t);
    v->weights = tni_alloc(size);
    *status = v->weights ? TN_OK : TN_E_NOMEM;
    if (!v->weights) return true;
    tni_parallel(v->o_blocks * SQUARE, 8, pack_weights, v);
    int64_t items = v->z.n * v->bands;
    tni_parallel(items, (items - 1) / SHARES + 1, filter, v);
    tni_free(v->weights, size);
    return !v->undone;
}

static bool run_gradient(conv *v, const tni_conv2d_sizes *z, tn_status *status)
{
    if (!plan(v, z) || used(v) < 0.5) return false;
    plan_rows(v, PLACES + (v->z.kh - 1) * v->z.dilation[0] * v->width, STEPS);
    v->together = v->bands > 1 ? 1 : TNI_MAX(1, TNI_MIN(PLACES / places(v, v->rows), v->z.n / 4));
    v->parts = TNI_MIN(frames(v), tni_convolve_parts(sums_size(v)));
    if (gradient_bytes(v) > TNI_PRODUCT_SCRATCH) return false;
    size_t size = (size_t)(v->parts * sums_size(v)) * sizeof(float);
    v->sums = tni_alloc(size);
    *status = v->sums ? TN_OK : TN_E_NOMEM;
    if (!v->sums) return true;
    tni_parallel(v->parts, 1, sum_parts, v);
    if (!v->undone) tni_parallel(sums_size(v) / SUMS, 4, write_sums, v);
    tni_free(v->sums, size);
    return !v->undone;
}

bool tni_amx_convolve(const tni_convolution *c, tn_status *status)
{
    conv v = { .x = c->x, .y = c->y, .w = c->w, .bias = c->bias, .turned = c->kind == TNI_CONV_DX };
    if (v.turned) v.x = c->y, v.y = c->x;
    return (c->kind == TNI_CONV_DW ? run_gradient : run_filter)(&v, &c->sizes, status);
}
