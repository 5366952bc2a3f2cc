/*
 * squares_conv.c - convolutions by products of tiles, with sums in f32: forward, and both
 * gradients. Of bf16 by AMX or dot products, of f32 by vectors (squares.h). One group, 16 channels
 * or more on both sides.
 *
 * An image is copied once, into a frame with its padding, and multiplied there. The frame's rows
 * lie one after another, `width` apart, so a place of the output and a tap of the kernel add up to
 * one place of the frame: y[q] = sum over taps of W[tap] x[q + offset[tap]], for all places q at
 * once. The few columns between two rows of the output are computed for nothing. So a tile of the
 * frame begins anywhere, and no tap is copied:
 *   forward   sums [channels of y, places] += W[tap] [channels of y, of x] x frame. The frame holds
 *             the steps of a tile's row, two channels of bf16, side by side, as the second factor
 *             of a product of tiles does.
 *   dx        the same of dy, with the kernel turned round
 *   dw        sums [channels of x, of y] += frame [channels of x, places] x dy [places, channels of
 *             y], for each tap. Here dy is copied in pairs of places, zeros between the rows.
 * A frame holds some rows of an image (a band), or all; for dw several images, if they are small.
 *
 * With a stride s, taps whose places differ by less than s read different rows and columns of x:
 * the frame holds each of these phases as an image of its own, in which the stride is 1. dx has
 * phases likewise, and each is a convolution of dy by the taps that meet it.
 *
 * The bits depend on the sizes. Zeros of the padding and between rows meet weights, in dw x and dy:
 * where these are not finite that would be NaN, so such a convolution is left to others.
 */
#include "tensor/cpu/dense/squares.h"
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"
#include "tensor/math.h"

enum {
    LEAST = 16,      /* channels */
    TAPS = 128,      /* of a kernel, at most */
    PHASES = 16,     /* at most */
    FAR = 4096,      /* places between two taps of a frame, at most */
    CUTS = 8,        /* rows of y that a square of sums meets, at most */
    LEAST_WIDTH = 6, /* of a frame: see CUTS */
    /* of a frame, unless one row of y needs more */
    FRAME_BYTES = TNI_BY == TNI_AMX_TILES ? 1 << 17 : 1 << 18,
    PLACES = 320, /* of a frame for dw: sums are read and written once per frame; more ... */
    MOST_PLACES = TNI_BY == TNI_AMX_TILES ? PLACES : 3 * PLACES, /* ... if they fit FRAME_BYTES */
    SHARES = 16 /* chunks of work, unless there are fewer frames */
};

/* What is computed, as a convolution of stride 1: o channels of [oh, ow] from c of [h, w]. For dx,
 * x is dy and y is one phase of dx. */
typedef struct conv {
    tni_array x, y, w, bias; /* for dw y is dy */
    int64_t n, c, h, w_x, o, oh, ow;
    bool turned, dw;                  /* dx: W's channels are exchanged */
    int64_t taps, tap[TAPS];          /* of the kernel that is used, in w */
    int64_t all_taps;                 /* of w */
    int64_t at[TAPS][3];              /* each one's phase, row and column in the frame */
    int64_t phases, phase[PHASES][2]; /* of x: rows and columns from its first one on ... */
    int64_t step[2];                  /* ... so far apart */
    int64_t far[2];                   /* the last row and column among taps */
    int64_t gap[2], begin[2];         /* between rows and columns of y, and its first ones */
    int64_t plane, row;         /* of a channel of y: elements, and from one row to the next */
    int64_t width;              /* of a frame's rows */
    int64_t rows, bands;        /* of y, in a frame; frames of an image */
    int64_t area, line;         /* places of a phase; from a channel, or pair, to the next */
    int64_t offset[TAPS];       /* in places */
    int64_t c_steps;            /* blocks of STEPS channels of x */
    int64_t c_blocks, o_blocks; /* of 32 channels */
    element *weights;           /* packed */
    int64_t together, parts;    /* dw: images of a frame; sums */
    float *sums;                /* dw: of each part, squares [blocks of o, of c, taps] */
    atomic_bool undone;         /* a thread had no memory, or found what is not finite */
} conv;

static void give_up(conv *v)
{
    atomic_store_explicit(&v->undone, true, memory_order_relaxed);
}

/* Places that are computed for this many rows of y. */
static int64_t places(const conv *v, int64_t rows)
{
    return tni_up((rows - 1) * v->width + v->ow, SQUARE);
}

/* The columns of a frame's row that a phase of x has; the others are 0. */
typedef struct span {
    int64_t from, to;
} span;

static span columns_of(const conv *v, int64_t phase)
{
    int64_t before = -v->phase[phase][1], last = v->w_x - 1 + before, twice = v->step[1] - 1;
    return (span){ before > 0 ? (before + twice) >> twice : 0,
                   last < 0 ? 0 : TNI_MIN((last >> twice) + 1, v->width) };
}

/* Where the first column of row i of a phase would be in a channel of x; NULL: there is no row. */
static const element *row_of(const conv *v, const element *x, int64_t phase, int64_t i)
{
    int64_t row = v->phase[phase][0] + i * v->step[0];
    return row < 0 || row >= v->h ? NULL : x + row * v->w_x + v->phase[phase][1];
}

/* 16 columns of it, from column j on. */
static inline sixteen columns(const conv *v, const element *row, span s, int64_t j)
{
    __mmask16 mask = (__mmask16)(first(s.to - j) & ~first(s.from - j));
    return row ? load_row(row + j * v->step[1], v->step[1], mask) : (sixteen){ 0 };
}

/* ---- forward and dx -------------------------------------------------------------------------- */

/* Items: channels of y. A block of 32 of them has, for each STEPS channels of x and each tap, two
 * tiles. */
static void pack_weights(void *context, int64_t begin, int64_t end)
{
    conv *v = context;
    int64_t from_o = v->turned ? v->all_taps : v->c * v->all_taps;
    int64_t from_c = v->turned ? v->o * v->all_taps : v->all_taps;
    for (int64_t o = begin; o < end; o++) {
        element *to =
            v->weights + o / SQUARE * v->c_steps * v->taps * 2 * TILE + o % SQUARE * STEPS;
        for (int64_t c = 0; c < v->c_steps * STEPS; c++) {
            bool there = o < v->o && c < v->c;
            const element *w = (const element *)v->w.data + (there ? o * from_o + c * from_c : 0);
            element *tile = to + c / STEPS * v->taps * 2 * TILE + c % STEPS;
            for (int64_t t = 0; t < v->taps; t++) {
                tile[t * 2 * TILE] = there ? w[v->tap[t]] : 0;
                if (!is_finite(tile[t * 2 * TILE])) give_up(v);
            }
        }
    }
}

/* The rows of x that the rows of y from r on read, into a frame whose places hold PAIR channels. */
static void frame_pairs(const conv *v, const element *x, int64_t r, int64_t rows, element *frame)
{
    int64_t plane = v->h * v->w_x;
    for (int64_t f = 0; f < v->phases; f++) {
        const span s = columns_of(v, f);
        for (int64_t c = 0; c < v->c; c += PAIR)
            for (int64_t i = 0; i < rows + v->far[0]; i++) {
                element *to = frame + c * v->line + PAIR * (f * v->area + i * v->width);
                const element *even = row_of(v, x + c * plane, f, r + i);
                const element *odd = even && c + PAIR - 1 < v->c ? even + (PAIR - 1) * plane : NULL;
                for (int64_t j = 0; j < v->width; j += SIDE) /* what isn't there is 0 */
                    store_steps(to + PAIR * j, (__mmask16)first(v->width - j),
                                columns(v, even, s, j), columns(v, odd, s, j));
            }
    }
}

/* sums [32 channels of y, of which there are `rows`, 32 places] = W x, from a place of the frame
 * on. */
static void filter_square(const conv *v, const element *weights, const element *frame, float *sums,
                          int64_t rows)
{
    for (int64_t r = 0; r < rows; r += GROUP) {
        group g = load_group(NULL, r);
        const element *w = weights, *x = frame;
        for (int64_t c = 0; c < v->c_steps; c++, x += PAIR * SIDE * v->line)
            for (int64_t t = 0; t < v->taps; t++, w += 2 * TILE)
                add_step(&g, r, rows, w, TILE_ROW, TILE, x + PAIR * v->offset[t], v->line * 4,
                         PAIR * SIDE);
        store_group(&g, sums, r);
    }
}

/* What a square has of a row of y, from lane 0 or 16 on: y[at + lane * gap] for the lanes of the
 * mask. */
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
        int64_t to = TNI_MIN(r * v->width + v->ow - q, SQUARE);
        if (to <= from) continue;
        int lane = from < SIDE ? 0 : SIDE;
        p[n++] = (piece){ .at = r * v->gap[0] * v->row + (q - r * v->width + lane) * v->gap[1],
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
    element *y; /* of its first channel, at the first row of the frame */
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
        element *to = s->y + p->at;
        for (int64_t i = 0; i < s->channels; i++, from += SQUARE, to += v->plane) {
            __m512 b = _mm512_set1_ps(s->bias[i]);
            __m512 low = _mm512_add_ps(_mm512_loadu_ps(from), b);
            if (!p->wide)
                store_row(to, v->gap[1], (__mmask16)p->mask, low);
            else
                store_rows(to, v->gap[1], p->mask, low,
                           _mm512_add_ps(_mm512_loadu_ps(from + SIDE), b));
        }
    }
}

typedef struct filter_scratch {
    float sums[2 * SUMS], bias[SQUARE * 2];
    piece pieces[2][CUTS];
    element frame[];
} filter_scratch;

/* The rows of y from r on. */
static void filter_frame(const conv *v, filter_scratch *s, int64_t r, int64_t rows, element *y)
{
    pending last = { 0 };
    int turn = 0;
    int64_t all = places(v, rows);
    y += (v->begin[0] + r * v->gap[0]) * v->row + v->begin[1];
    for (int64_t o = 0; o < v->o; o += SQUARE, y += SQUARE * v->plane) {
        const element *weights = v->weights + o * v->c_steps * v->taps * TILE / SIDE;
        int64_t channels = TNI_MIN(v->o - o, SQUARE);
        float *bias = s->bias + o / SQUARE % 2 * SQUARE;
        for (int64_t i = 0; i < SQUARE; i++)
            bias[i] =
                v->bias.data && i < channels ? to_float(((const element *)v->bias.data)[o + i]) : 0;
        for (int64_t q = 0; q < all; q += SQUARE, turn = !turn) {
            pending here = { s->sums + turn * SUMS,
                             bias,
                             channels,
                             y,
                             s->pieces[turn],
                             pieces(v, q, rows, s->pieces[turn]) };
            filter_square(v, weights, s->frame + PAIR * q, s->sums + turn * SUMS, channels);
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
        give_up(v);
        return;
    }
    memset(s->frame, 0, (size_t)(v->c_steps * SIDE * v->line) * 4);
    begin_squares();
    for (int64_t i = begin; i < end; i++) {
        int64_t image = i / v->bands, r = i % v->bands * v->rows;
        int64_t rows = TNI_MIN(v->rows, v->oh - r);
        frame_pairs(v, (const element *)v->x.data + image * v->c * v->h * v->w_x, r, rows,
                    s->frame);
        filter_frame(v, s, r, rows, (element *)v->y.data + image * v->o * v->plane);
    }
    end_squares();
}

/* ---- dw -------------------------------------------------------------------------------------- */

typedef struct gradient {
    element *room;   /* [16, line]: 16 channels of dy */
    element *dy;     /* tiles: [blocks of 32 channels, STEPS places, 2] */
    element *frames; /* [images, channels of x, line] */
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
    return (double)sizeof(element) * ((SIDE + images) * (double)v->line + dy);
}

/* The rows of x that the rows of y from r on read, into a frame. */
static void frame_x(const conv *v, const element *x, int64_t r, int64_t rows, element *frame)
{
    for (int64_t f = 0; f < v->phases; f++) {
        const span s = columns_of(v, f);
        for (int64_t c = 0; c < v->c; c++)
            for (int64_t i = 0; i < rows + v->far[0]; i++) {
                element *to = frame + c * v->line + f * v->area + i * v->width;
                const element *row = row_of(v, x + c * v->h * v->w_x, f, r + i);
                for (int64_t j = 0; j < v->width; j += SIDE)
                    copy_out(to + j, (__mmask16)first(v->width - j), columns(v, row, s, j));
            }
    }
}

/* 16 channels of dy (zeros beyond the first `channels`), from a row on, into every other tile. */
static void pair_dy(const conv *v, const gradient *g, const element *dy, int64_t channels,
                    int64_t rows, element *to)
{
    int64_t all = places(v, rows);
    for (int64_t o = 0; o < SIDE; o++, dy += v->plane) {
        element *room = g->room + o * v->line;
        for (int64_t r = 0; r * v->width < all; r++)
            for (int64_t j = 0; j < v->width; j += SIDE) {
                int64_t q = r * v->width + j, n = TNI_MIN(v->width - j, all - q);
                int64_t there = o < channels && r < rows ? v->ow - j : 0;
                copy_out(room + q, (__mmask16)first(n),
                         load_row(dy + r * v->ow + j, 1, (__mmask16)first(there)));
            }
    }
    for (int64_t s = 0; s < all; s += STEPS, to += 2 * TILE)
        transpose_steps(to, g->room + s, v->line);
}

/* Rows [r, r + rows) of images that follow each other. */
static void frame_both(const conv *v, const gradient *g, int64_t image, int64_t images, int64_t r,
                       int64_t rows)
{
    int64_t steps = places(v, rows) / STEPS;
    for (int64_t k = 0; k < images; k++) {
        const element *x = (const element *)v->x.data + (image + k) * v->c * v->h * v->w_x;
        const element *dy = (const element *)v->y.data + (image + k) * v->o * v->plane;
        frame_x(v, x, r, rows, g->frames + k * v->c_blocks * SQUARE * v->line);
        for (int64_t o = 0; o < v->o; o += SIDE)
            pair_dy(v, g, dy + o * v->plane + r * v->ow, v->o - o, rows,
                    g->dy + ((o / SQUARE * v->together + k) * steps * 2 + o / SIDE % 2) * TILE);
    }
}

/* sums [32 channels of x, of which there are `rows`, 32 of y] += those of a tap. */
static void add_square(const conv *v, const element *frame, const element *dy, float *sums,
                       int64_t images, int64_t steps, int64_t rows)
{
    for (int64_t r = 0; r < rows; r += GROUP) {
        group g = load_group(sums, r);
        const element *x = frame, *y = dy;
        for (int64_t k = 0; k < images; k++, x += v->c_blocks * SQUARE * v->line)
            for (int64_t s = 0; s < steps; s++, y += 2 * TILE)
                add_step(&g, r, rows, x + s * STEPS, v->line * (int64_t)sizeof *x, SIDE * v->line,
                         y, TILE_ROW, TILE);
        store_group(&g, sums, r);
    }
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
                           TNI_MIN(v->c - c * SQUARE, SQUARE));
}

/* Frames of all images. */
static int64_t frames(const conv *v)
{
    return v->together > 1 ? (v->n - 1) / v->together + 1 : v->n * v->bands;
}

/* Items: parts. */
static void sum_parts(void *context, int64_t begin, int64_t end)
{
    conv *v = context;
    gradient g = { .room = tni_thread_scratch() };
    if (!g.room) {
        give_up(v);
        return;
    }
    g.dy = g.room + SIDE * v->line;
    g.frames = g.dy + dy_places(v) * v->o_blocks * SQUARE;
    memset(g.room, 0, (size_t)gradient_bytes(v));
    begin_squares();
    for (int64_t part = begin; part < end; part++) {
        float *sums = v->sums + part * sums_size(v);
        memset(sums, 0, (size_t)sums_size(v) * sizeof(float));
        int64_t last = (part + 1) * frames(v) / v->parts;
        for (int64_t i = part * frames(v) / v->parts; i < last; i++) {
            int64_t image = i / v->bands * v->together, r = i % v->bands * v->rows;
            int64_t images = TNI_MIN(v->together, v->n - image);
            int64_t rows = TNI_MIN(v->rows, v->oh - r);
            frame_both(v, &g, image, images, r, rows);
            add_frames(v, &g, sums, images, rows);
        }
    }
    end_squares();
}

/* Items: squares of sums. dw = the sum of the parts, in their order. */
static void write_sums(void *context, int64_t begin, int64_t end)
{
    conv *v = context;
    for (int64_t i = begin; i < end; i++) {
        float *sum = v->sums + i * SUMS;
        for (int64_t part = 1; part < v->parts; part++)
            for (int64_t j = 0; j < SUMS; j++) sum[j] += sum[part * sums_size(v) + j];
        int64_t t = i % v->taps, c0 = i / v->taps % v->c_blocks * SQUARE;
        int64_t o0 = i / v->taps / v->c_blocks * SQUARE;
        for (int64_t c = c0; c < TNI_MIN(c0 + SQUARE, v->c); c++)
            for (int64_t o = o0; o < TNI_MIN(o0 + SQUARE, v->o); o++) {
                float value = sum[(c - c0) * SQUARE + o - o0];
                int64_t at = (o * v->c + c) * v->all_taps + v->tap[t];
                if (!isfinite(value)) give_up(v);
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
    const int64_t part = TNI_MIN((int64_t)GROUP, (int64_t)SIDE); /* of a square: rows left out */
    int64_t c = v->dw ? tni_up(v->c, part) : v->c_steps * STEPS;
    int64_t o = v->dw ? v->o_blocks * SQUARE : tni_up(v->o, part);
    return (double)(v->oh * v->ow * v->c * v->o) / (double)(places(v, v->oh) * c * o);
}

/* Rows of y in a frame of at most `most` places, and what follows from them. unit: places in 64
 * bytes. */
static void plan_rows(conv *v, int64_t most, int64_t unit)
{
    v->rows = TNI_MIN(TNI_MAX(most / (v->phases * v->width) - v->far[0], 1), v->oh);
    if (v->n < 4) v->rows = TNI_MIN(v->rows, (v->n * v->oh - 1) / 4 + 1); /* work for 4 threads */
    v->bands = (v->oh - 1) / v->rows + 1;
    v->rows = (v->oh - 1) / v->bands + 1;
    v->bands = (v->oh - 1) / v->rows + 1;
    v->area = (v->rows + v->far[0]) * v->width;
    int64_t all = (v->phases - 1) * v->area + places(v, v->rows) + v->far[0] * v->width + v->far[1];
    /* 16 rows of a tile lie in as many sets of the L1 cache */
    v->line = tni_up(all, 2 * unit) + unit;
    for (int64_t t = 0; t < v->taps; t++)
        v->offset[t] = v->at[t][0] * v->area + v->at[t][1] * v->width + v->at[t][2];
}

/* The phase of x that begins at this row and column; -1: there would be too many. */
static int64_t phase_at(conv *v, int64_t row, int64_t column)
{
    int64_t f = 0;
    while (f < v->phases && (v->phase[f][0] != row || v->phase[f][1] != column)) f++;
    if (f == PHASES) return -1;
    v->phase[f][0] = row, v->phase[f][1] = column;
    v->phases = TNI_MAX(v->phases, f + 1);
    return f;
}

/* Forward and dw: tap i of an axis reads x from i * dilation - padding on, at every stride. dx:
 * place p of dx + padding meets the taps i with i * dilation = p mod stride, each at dy's
 * (p - i * dilation) / stride; of these places, phase `of` are those with that remainder. */
static bool plan(conv *v, const tni_conv2d_sizes *z, const int64_t of[2])
{
    const int64_t in[2] = { z->h, z->w }, out[2] = { z->oh, z->ow }, kernel[2] = { z->kh, z->kw };
    const int64_t *s = z->stride;
    int64_t made[2], first_place[2], last[2];
    v->all_taps = z->kh * z->kw, v->taps = v->phases = v->oh = v->ow = 0;
    for (int d = 0; d < 2; d++) {
        last[d] = (kernel[d] - 1) * z->dilation[d] / s[d];
        first_place[d] = (z->padding[d] - of[d] + s[d] - 1) / s[d];
        int64_t begin = first_place[d] * s[d] + of[d] - z->padding[d];
        v->step[d] = v->turned ? 1 : s[d];
        v->gap[d] = v->turned ? s[d] : 1;
        v->begin[d] = v->turned ? begin : 0;
        made[d] = !v->turned ? out[d] : in[d] > begin ? (in[d] - 1 - begin) / s[d] + 1 : 0;
        v->far[d] = last[d];
    }
    v->n = z->n, v->oh = made[0], v->ow = made[1];
    v->c = v->turned ? z->o : z->c, v->h = v->turned ? z->oh : z->h;
    v->o = v->turned ? z->c : z->o, v->w_x = v->turned ? z->ow : z->w;
    v->row = v->turned ? z->w : z->ow, v->plane = v->turned ? z->h * z->w : z->oh * z->ow;
    for (int64_t t = 0; t < v->all_taps; t++) {
        const int64_t place[2] = { t / z->kw * z->dilation[0], t % z->kw * z->dilation[1] };
        int64_t *at = v->at[v->taps], begin[2];
        if (v->turned && (place[0] % s[0] != of[0] || place[1] % s[1] != of[1])) continue;
        for (int d = 0; d < 2; d++) {
            at[1 + d] = v->turned ? last[d] - place[d] / s[d] : place[d] / s[d];
            begin[d] = v->turned ? first_place[d] - last[d] : place[d] % s[d] - z->padding[d];
        }
        at[0] = phase_at(v, begin[0], begin[1]);
        if (at[0] < 0) return false;
        v->tap[v->taps++] = t;
    }
    v->width = v->ow + v->far[1];
    v->c_steps = (v->c - 1) / STEPS + 1;
    v->c_blocks = (v->c - 1) / SQUARE + 1, v->o_blocks = (v->o - 1) / SQUARE + 1;
    return v->width >= LEAST_WIDTH && v->oh > 0 && v->ow > 0 && used(v) >= 0.5;
}

/* Whether there is such a kernel for these sizes. In f32 columns (conv.c) are faster where they are
 * few copies, or where x would be. */
static bool takes(const tni_convolution *c)
{
    const tni_conv2d_sizes *z = &c->sizes;
    return z->groups == 1 && c->x.dtype == DTYPE && c->y.dtype == DTYPE && z->n > 0 &&
           z->c >= LEAST && z->o >= LEAST && z->h > 0 && z->w > 0 && z->oh > 0 && z->ow > 0 &&
           z->kh * z->kw <= TAPS && z->stride[1] <= 2 && z->stride[0] <= 4 &&
           (z->kh - 1) * z->dilation[0] / z->stride[0] <= FAR &&
           (z->kw - 1) * z->dilation[1] / z->stride[1] <= FAR &&
           (TNI_BY != TNI_FMA || (z->kh * z->kw >= 9 && z->stride[0] * z->stride[1] == 1));
}

/* Forward, or a phase of dx. False: v could not be computed. */
static bool run_filter(conv *v, tn_status *status)
{
    plan_rows(v, FRAME_BYTES / (v->c_steps * SIDE * 4), SIDE);
    double frame = (double)(v->c_steps * SIDE * 4) * (double)v->line;
    if (sizeof(filter_scratch) + frame > TNI_PRODUCT_SCRATCH) return false;
    TNI_ITEMS(element, weights, v->o_blocks * v->c_steps * v->taps * 2 * TILE);
    *status = weights ? TN_OK : TN_E_NOMEM;
    if (!(v->weights = weights)) return true;
    tni_parallel(v->o_blocks * SQUARE, 8, pack_weights, v);
    int64_t items = v->n * v->bands;
    if (!v->undone) tni_parallel(items, (items - 1) / SHARES + 1, filter, v);
    return !v->undone;
}

/* Items: planes of dx. */
static void clear(void *context, int64_t begin, int64_t end)
{
    const conv *v = context;
    memset((element *)v->y.data + begin * v->plane, 0,
           (size_t)((end - begin) * v->plane) * sizeof(element));
}

/* dx, one phase after the other; one that no tap meets is 0. */
static bool run_phases(conv *v, const tni_conv2d_sizes *z, tn_status *status)
{
    int64_t phases = z->stride[0] * z->stride[1];
    bool holes = false;
    for (int round = 0; round < 2; round++) /* nothing is computed before all of it can be */
        for (int64_t i = 0; i < phases; i++) {
            if (round == 1 && i == 0 && holes) tni_parallel(z->n * z->c, 16, clear, v);
            bool planned = plan(v, z, (int64_t[]){ i / z->stride[1], i % z->stride[1] });
            if (v->oh <= 0 || v->ow <= 0 || (v->taps == 0 && round == 1)) continue;
            holes |= v->taps == 0;
            if (v->taps > 0 && !planned) return false;
            if (round == 1 && (!run_filter(v, status) || *status != TN_OK)) return *status != TN_OK;
        }
    return true;
}

static bool run_gradient(conv *v, tn_status *status)
{
    int64_t most = FRAME_BYTES / ((v->c_blocks + v->o_blocks) * SQUARE * (int64_t)sizeof(element));
    most = TNI_MAX(TNI_MIN(most, (int64_t)MOST_PLACES), (int64_t)PLACES);
    plan_rows(v, v->phases * (most + v->far[0] * v->width), 64 / (int64_t)sizeof(element));
    v->together = v->bands > 1 ? 1 : TNI_MAX(1, TNI_MIN(most / places(v, v->rows), v->n / 4));
    v->parts = TNI_MIN(frames(v), tni_convolve_parts(sums_size(v)));
    if (gradient_bytes(v) > TNI_PRODUCT_SCRATCH) return false;
    TNI_ITEMS(float, sums, (v->parts * sums_size(v)));
    *status = sums ? TN_OK : TN_E_NOMEM;
    if (!(v->sums = sums)) return true;
    tni_parallel(v->parts, 1, sum_parts, v);
    if (!v->undone) tni_parallel(sums_size(v) / SUMS, 4, write_sums, v);
    return !v->undone;
}

bool BY(convolve)(const tni_convolution *c, tn_status *status)
{
    conv v = { .x = c->x,
               .y = c->y,
               .w = c->w,
               .bias = c->bias,
               .turned = c->kind == TNI_CONV_DX,
               .dw = c->kind == TNI_CONV_DW };
    if (!takes(c)) return false;
    *status = TN_OK;
    if (v.turned) {
        v.x = c->y, v.y = c->x;
        return run_phases(&v, &c->sizes, status);
    }
    if (!plan(&v, &c->sizes, (int64_t[]){ 0, 0 })) return false;
    return v.dw ? run_gradient(&v, status) : run_filter(&v, status);
}
