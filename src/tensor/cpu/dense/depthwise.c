/*
 * depthwise.c - convolutions whose channels have a kernel each and do not mix (as many groups as
 * channels on both sides), in f32, bf16 and f16 with sums in f32: y, and the gradients of x and w.
 *
 * Each number takes part in few multiplications, so memory sets the pace if nothing else is in the
 * way. Some rows of a plane are copied into a band, f32 with zeros around them, in the L1 or L2
 * cache. ROWS vectors of neighbouring rows of y are then sums of the band's vectors, which are
 * loaded once for all of them, times weights: no edges, no columns. With stride s a row of the band
 * holds the columns 0, s, 2s ... of the padded image first, then 1, s + 1 ..., so that places that a
 * tap reads for neighbours of y are neighbours, too. The gradient of x for stride 1 is that of dy
 * with kernels turned by 180 degrees; for other strides, of padding p and dilation d,
 *     dx[i,j] = sum over r, s of w[r,s] dy[(i + p - r d) / stride, (j + p - s d) / stride]
 * where both divide: the same few taps for every stride'th column. dw is summed in vectors over the
 * rows of a plane, then over the images, and across the lanes at the end.
 *
 * dw also multiplies zeros by numbers beside those that belong to a tap; where a sum is not finite,
 * the general kernels compute all of dw again.
 */
#if defined __AVX512F__
#include <immintrin.h>
#endif

#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/dense/vector.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/internal.h"
#include "tensor/math.h"

#if defined __AVX512F__
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#else
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#endif
#pragma GCC diagnostic ignored "-Wpsabi"     /* of vectors that inlined functions return */
enum { ROWS = 4, AXIS = 32, CHANNELS = 32 }; /* the most taps along an axis; channels of an item */
enum { BAND_BYTES = 32 * 1024, MOST_BYTES = 1 << 20, ITEM_BYTES = 1 << 16 };

typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

/* How rows of planes [h, w] of an array lie in a band. */
typedef struct band {
    tni_array of;
    int64_t h, w;
    int64_t left;        /* the plane's column that is the band's first; below 0: zeros before it */
    int64_t phases, run; /* the stride of the columns, and what each holds of a row */
    int64_t width;       /* from a row to the next */
} band;

typedef struct depthwise {
    band in, dy; /* dy: of dw alone */
    tni_array w, bias, out;
    int64_t kernel[2], step[2], pad[2], dilation[2];
    int64_t channels, h, width;         /* of out; of dw: of dy */
    int64_t rows, pieces;               /* of a plane of out */
    int64_t taps, at[AXIS];             /* where a column of taps begins in a row of the band */
    int64_t start[AXIS + 1], tap[AXIS]; /* of dx by strides: which columns of taps each phase has */
    bool turned;
    int64_t images, block; /* of dw: its sums are over these images, for some channels an item */
    tni_scratch scratch;
    size_t room, more,
        sums; /* where parts of it begin: f16 as f32 of in and of out, or dy's band */
    atomic_bool infinite;
} depthwise;

/* Keeps v in a register: compilers read it from memory for each of its uses, across the borders of
 * cache lines, which takes twice as long as to multiply. */
#if defined __AVX__
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v) (void)(v)
#endif

/* ---- vectors --------------------------------------------------------------------------------- */

/* n of LANES elements of f32 or bf16, the others 0. */
TNI_INLINE vector load(const void *x, int64_t at, int64_t n, bool bf16)
{
    const float *wide = (const float *)x + at;
    const uint16_t *narrow = (const uint16_t *)x + at;
    halves h = { 0 };
    vector v = { 0 };
#if defined __AVX512F__
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (!bf16)
        return n == LANES ? *(const vector *)wide : (vector)_mm512_maskz_loadu_ps(mask, wide);
    h = n == LANES ? *(const halves *)narrow : (halves)_mm256_maskz_loadu_epi16(mask, narrow);
    (void)v;
#else
    if (!bf16 && n == LANES) return *(const vector *)wide;
    for (int64_t i = 0; !bf16 && i < n; i++) v[i] = wide[i];
    if (!bf16) return v;
    if (n == LANES) h = *(const halves *)narrow;
    for (int64_t i = 0; n < LANES && i < n; i++) h[i] = narrow[i];
#endif
    return (vector)(__builtin_convertvector(h, words) << 16);
}

/* tn_to_bf16 of each. */
TNI_INLINE halves rounded(vector x)
{
    words u = (words)x, nan = (words)(x != x);
    words up = u + 0x7fff + ((u >> 16) & 1);
    return __builtin_convertvector(((nan & (u | 0x400000)) | (~nan & up)) >> 16, halves);
}

TNI_INLINE void store(vector v, void *y, int64_t at, int64_t n, bool bf16)
{
    float *wide = (float *)y + at;
    uint16_t *narrow = (uint16_t *)y + at;
    if (n == LANES && !bf16)
        *(vector *)wide = v;
    else if (n == LANES)
        *(halves *)narrow = rounded(v);
#if defined __AVX512F__
    else if (!bf16)
        _mm512_mask_storeu_ps(wide, (__mmask16)((1u << n) - 1), (__m512)v);
    else
        _mm256_mask_storeu_epi16(narrow, (__mmask16)((1u << n) - 1), (__m256i)rounded(v));
#else
    else {
        const halves h = rounded(v);
        for (int64_t i = 0; i < n; i++)
            if (bf16)
                narrow[i] = h[i];
            else
                wide[i] = v[i];
    }
#endif
}

static inline int64_t some(int64_t n)
{
    return TNI_MAX(TNI_MIN(n, LANES), 0);
}

/* ---- a band ---------------------------------------------------------------------------------- */

/* Rows of a plane into the band, whose zeros around them are there already. */
TNI_INLINE void fill_rows(const band *b, const void *x, int64_t at, int64_t rows, bool bf16,
                          float *to)
{
    const int64_t skip = TNI_MAX(b->left, 0), low = TNI_MAX(-b->left, 0), phases = b->phases;
    const int64_t n = TNI_MIN(b->w - skip, phases * (b->run - LANES) - low), run = b->run;
    const int64_t ld = b->w, width = b->width;
    at += skip;
    if (phases == 1) {
        const int64_t lanes = TNI_MIN(n, LANES);
        for (to += low; rows-- > 0; at += ld, to += width)
            for (int64_t j = 0; j < n; j += LANES) {
                const int64_t k = TNI_MAX(TNI_MIN(j, n - LANES), 0);
                *(vector *)(to + k) = load(x, at + k, lanes, bf16);
            }
    } else if (phases == 2) {
        float *even = to + (low & 1) * run + low / 2;
        float *odd = to + ((low + 1) & 1) * run + (low + 1) / 2;
        for (; rows-- > 0; at += ld, even += width, odd += width)
            for (int64_t j = 0; j < n; j += 2 * LANES) {
                const vector first = load(x, at + j, some(n - j), bf16);
                const vector next = load(x, at + j + LANES, some(n - j - LANES), bf16);
                *(vector *)(even + j / 2) = __builtin_shufflevector(first, next, EVEN);
                *(vector *)(odd + j / 2) = __builtin_shufflevector(first, next, ODD);
            }
    } else {
        for (; rows-- > 0; at += ld, to += width)
            for (int64_t j = 0; j < n; j++)
                to[(low + j) % phases * run + (low + j) / phases] =
                    bf16 ? tn_from_bf16(((const uint16_t *)x)[at + j]) : ((const float *)x)[at + j];
    }
}

/* Rows [top, top + rows) of a plane. again: rows outside of it have been others before. room: for
 * those of f16. */
static void fill(const band *b, int64_t plane, int64_t top, int64_t rows, bool again, float *to,
                 float *room)
{
    const int64_t first = TNI_MIN(TNI_MAX(top, 0), b->h);
    const int64_t end = TNI_MAX(first, TNI_MIN(top + rows, b->h));
    const int64_t at = (plane * b->h + first) * b->w, before = TNI_MIN(first - top, rows);
    if (again) {
        memset(to, 0, (size_t)(before * b->width) * sizeof(float));
        memset(to + (before + end - first) * b->width, 0,
               (size_t)((rows - before - (end - first)) * b->width) * sizeof(float));
    }
    to += before * b->width;
    if (b->of.dtype == TN_F16)
        fill_rows(b, tni_get(b->of.data, TN_F16, at, (end - first) * b->w, room), 0, end - first,
                  false, to);
    else if (b->of.dtype == TN_BF16)
        fill_rows(b, b->of.data, at, end - first, true, to);
    else
        fill_rows(b, b->of.data, at, end - first, false, to);
}

/* What is read next, and how many lines of the cache are fetched at each step of the work on what is
 * there: memory is read meanwhile. */
typedef struct ahead {
    const char *at;
    int64_t lines;
} ahead;

enum { LINE = 64 };

static ahead ahead_of(const band *b, int64_t plane, int64_t top, int64_t rows, int64_t steps)
{
    const int64_t first = TNI_MIN(TNI_MAX(top, 0), b->h), item = b->of.dtype == TN_F32 ? 4 : 2;
    const int64_t bytes = TNI_MAX(TNI_MIN(top + rows, b->h) - first, 0) * b->w * item;
    return (ahead){ (const char *)b->of.data + (plane * b->h + first) * b->w * item,
                    (bytes / LINE + steps) / steps };
}

TNI_INLINE void fetch(ahead *a)
{
    for (int64_t i = 0; i < a->lines; i++, a->at += LINE) __builtin_prefetch(a->at, 0, 2);
}

/* Rows of in's band that `rows` of out or dy read. */
static int64_t band_rows(const depthwise *p, int64_t rows)
{
    return (rows - 1) * p->step[0] + (p->kernel[0] - 1) * p->dilation[0] + 1;
}

/* A channel's kernel in f32, turned for the gradient of x. */
static void get_kernel(const depthwise *p, int64_t channel, float *w)
{
    const float *from = tni_get(p->w.data, p->w.dtype, channel * p->taps, p->taps, w + p->taps);
    for (int64_t t = 0; t < p->taps; t++) w[t] = from[p->turned ? p->taps - 1 - t : t];
}

/* ---- y, and the gradient of x for stride 1 --------------------------------------------------- */

/* Rows of out from a band whose first is theirs. size and step: of the kernel, a square, and its
 * stride; size 0: any. count: rows at a time. */
TNI_INLINE void filter_rows(const depthwise *p, int size, int step, int count, const float *w,
                            float bias, const float *from, int64_t rows, void *to, int64_t at,
                            ahead next_plane, bool bf16)
{
    const int64_t width = p->in.width, all = p->width, n = TNI_MIN(all, LANES);
    const int64_t down = (size ? step : p->step[0]) * width, kh = p->kernel[0], kw = p->kernel[1];
    const int64_t far = p->dilation[0] * width, here = TNI_MIN(count, rows);
    int64_t offset[5];
    for (int s = 0; s < size; s++) offset[s] = p->at[s];
    for (int64_t next = 0; next < rows; next += count) {
        const int64_t k = TNI_MAX(TNI_MIN(next, rows - count), 0);
        for (int64_t j = 0; j < all; j += LANES) {
            const int64_t column = TNI_MAX(TNI_MIN(j, all - LANES), 0);
            const float *x = from + k * down + column;
            fetch(&next_plane);
            vector sum[ROWS];
            UNROLL
            for (int i = 0; i < count; i++) sum[i] = (vector){ 0 } + bias;
            if (size) {
                UNROLL
                for (int i = 0; i < (count - 1) * step + size; i++, x += width) {
                    UNROLL
                    for (int s = 0; s < size; s++) {
                        vector v = *(const vector *)(x + (step == 1 ? s : offset[s]));
                        HOLD(v);
                        UNROLL
                        for (int o = 0; o < count; o++)
                            if (i >= o * step && i < o * step + size)
                                sum[o] += w[(i - o * step) * size + s] * v;
                    }
                }
            }
            for (int64_t r = 0; !size && r < kh; r++, x += far)
                for (int64_t s = 0; s < kw; s++) {
                    UNROLL
                    for (int o = 0; o < count; o++)
                        sum[o] += w[r * kw + s] * *(const vector *)(x + o * down + p->at[s]);
                }
            int64_t place = at + k * all + column;
            UNROLL
            for (int i = 0; i < count; i++, place += all)
                if (i < here) store(sum[i], to, place, n, bf16);
        }
    }
}

/* The number of a kernel that is compiled for its size: 3 x 3 and 5 x 5 with stride 1 and 2. */
static int special(const depthwise *p)
{
    const int64_t size = p->kernel[0], step = p->step[0];
    const bool square = p->kernel[1] == size && p->step[1] == step && (size == 3 || size == 5);
    if (!square || step > 2 || p->dilation[0] != 1 || p->dilation[1] != 1) return 0;
    return (int)(size - 3 + step);
}

/* clang-format off */
#define FILTER(name, bf16)                                                                         \
    static void name(const depthwise *p, const float *w, float bias, const float *from,            \
                     int64_t rows, void *to, int64_t at, ahead a)                                  \
    {                                                                                              \
        switch (rows < ROWS ? -1 : special(p)) {                                                   \
        case -1: filter_rows(p, 0, 0, 1, w, bias, from, rows, to, at, a, bf16); break;                \
        case 0: filter_rows(p, 0, 0, ROWS, w, bias, from, rows, to, at, a, bf16); break;              \
        case 1: filter_rows(p, 3, 1, ROWS, w, bias, from, rows, to, at, a, bf16); break;              \
        case 2: filter_rows(p, 3, 2, ROWS, w, bias, from, rows, to, at, a, bf16); break;              \
        case 3: filter_rows(p, 5, 1, ROWS, w, bias, from, rows, to, at, a, bf16); break;              \
        case 4: filter_rows(p, 5, 2, ROWS, w, bias, from, rows, to, at, a, bf16); break;              \
        }                                                                                          \
    }
FILTER(filter_f32, false)
FILTER(filter_bf16, true)
/* clang-format on */

/* A chunk's parts of the scratch: in's band, all zeros. */
static float *begin_band(const depthwise *p)
{
    return memset(tni_scratch_own(&p->scratch, 0), 0, p->room);
}

static float *part_of(const depthwise *p, size_t at)
{
    return tni_scratch_own(&p->scratch, at);
}

/* Items: pieces of planes. */
static void filter(void *context, int64_t begin, int64_t end)
{
    const depthwise *p = context;
    float *from = begin_band(p), *w = part_of(p, p->sums), one;
    for (int64_t i = begin; i < end; i++) {
        const int64_t plane = i / p->pieces, first = i % p->pieces * p->rows;
        const int64_t rows = TNI_MIN(p->rows, p->h - first), at = (plane * p->h + first) * p->width;
        const int64_t channel = plane % p->channels;
        const tni_array *b = &p->bias;
        const float bias =
            b->data ? *(const float *)tni_get(b->data, b->dtype, channel, 1, &one) : 0;
        const bool f16 = p->out.dtype == TN_F16;
        get_kernel(p, channel, w);
        fill(&p->in, plane, first * p->step[0] - p->pad[0], band_rows(p, rows), p->pieces > 1, from,
             part_of(p, p->room));
        void *to = f16 ? part_of(p, p->more) : p->out.data;
        const int64_t after = TNI_MIN(i + 1, end - 1), below = after % p->pieces * p->rows;
        const int64_t steps = ((rows - 1) / ROWS + 1) * ((p->width - 1) / LANES + 1);
        const ahead a = ahead_of(&p->in, after / p->pieces, below * p->step[0] - p->pad[0],
                                 band_rows(p, p->rows), steps);
        (p->out.dtype == TN_BF16 ? filter_bf16 : filter_f32)(p, w, bias, from, rows, to,
                                                             f16 ? 0 : at, a);
        if (f16) tni_put(p->out.data, TN_F16, at, rows * p->width, to);
    }
}

/* ---- the gradient of x for other strides ----------------------------------------------------- */

/* Down, where C rounds towards 0. */
static inline int64_t floor_of(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* What a row of dx is summed of: rows of dy's band, with rows of the kernel. */
typedef struct lines {
    int64_t n;
    const float *dy[AXIS], *w[AXIS];
} lines;

/* LANES elements of a row of dx, from `at` on of those of a phase. */
TNI_INLINE vector sum_phase(const depthwise *p, const lines *l, int64_t phase, int64_t at)
{
    vector sum = { 0 };
    for (int64_t i = 0; i < l->n; i++)
        for (int64_t k = p->start[phase]; k < p->start[phase + 1]; k++)
            sum += l->w[i][p->tap[k]] * *(const vector *)(l->dy[i] + p->at[p->tap[k]] + at);
    return sum;
}

TNI_INLINE void spread_row(const depthwise *p, const lines *l, void *to, int64_t row, bool bf16)
{
    const int64_t step = p->step[1];
    for (int64_t j = 0; j * step < p->width; j += LANES) {
        const int64_t rest = p->width - j * step;
        if (step == 1) {
            store(sum_phase(p, l, 0, j), to, row + j, some(rest), bf16);
        } else if (step == 2) {
            const vector even = sum_phase(p, l, 0, j), odd = sum_phase(p, l, 1, j);
            store(__builtin_shufflevector(even, odd, FRONT), to, row + 2 * j, some(rest), bf16);
            if (rest > LANES)
                store(__builtin_shufflevector(even, odd, BACK), to, row + 2 * j + LANES,
                      some(rest - LANES), bf16);
        } else {
            for (int64_t e = 0; e < TNI_MIN(step, rest); e++) {
                const vector sum = sum_phase(p, l, e, j);
                for (int64_t k = 0; k < some((rest - e - 1) / step + 1); k++)
                    store((vector){ sum[k] }, to, row + (j + k) * step + e, 1, bf16);
            }
        }
    }
}

/* Items: pieces of planes. */
static void spread(void *context, int64_t begin, int64_t end)
{
    const depthwise *p = context;
    float *from = begin_band(p), *w = part_of(p, p->sums);
    const int64_t far = (p->kernel[0] - 1) * p->dilation[0], step = p->step[0];
    for (int64_t i = begin; i < end; i++) {
        const int64_t plane = i / p->pieces, first = i % p->pieces * p->rows;
        const int64_t rows = TNI_MIN(p->rows, p->h - first), at = (plane * p->h + first) * p->width;
        const int64_t top = floor_of(first + p->pad[0] - far, step);
        const bool f16 = p->out.dtype == TN_F16, bf16 = p->out.dtype == TN_BF16;
        void *to = f16 ? part_of(p, p->more) : p->out.data;
        get_kernel(p, plane % p->channels, w);
        fill(&p->in, plane, top, (first + rows - 1 + p->pad[0]) / step - top + 1, p->pieces > 1,
             from, part_of(p, p->room));
        for (int64_t k = 0; k < rows; k++) {
            lines l;
            l.n = 0;
            for (int64_t r = 0; r < p->kernel[0]; r++) {
                const int64_t place = first + k + p->pad[0] - r * p->dilation[0];
                if (place % step) continue;
                l.dy[l.n] = from + (place / step - top) * p->in.width;
                l.w[l.n++] = w + r * p->kernel[1];
            }
            const int64_t row = (f16 ? 0 : at) + k * p->width;
            if (bf16)
                spread_row(p, &l, to, row, true);
            else
                spread_row(p, &l, to, row, false);
        }
        if (f16) tni_put(p->out.data, TN_F16, at, rows * p->width, to);
    }
}

/* ---- the gradient of w ----------------------------------------------------------------------- */

/* sums[t] += those of rows of dy, a multiple of ROWS, by vectors; as filter_rows. */
TNI_INLINE void add_rows(const depthwise *p, int size, int step, int count, const float *x,
                         const float *dy, int64_t rows, ahead *a, ahead *b, vector *sums)
{
    const int64_t width = p->in.width, ld = p->dy.width, all = p->width;
    int64_t offset[5];
    vector sum[5][5];
    UNROLL
    for (int r = 0; r < size; r++) {
        offset[r] = p->at[r];
        UNROLL
        for (int s = 0; s < size; s++) sum[r][s] = (vector){ 0 };
    }
    for (int64_t k = 0; k < rows; k += count)
        for (int64_t j = 0; j < all; j += LANES) {
            const float *from = x + k * step * width + j;
            vector g[ROWS];
            fetch(a);
            fetch(b);
            UNROLL
            for (int i = 0; i < count; i++) g[i] = *(const vector *)(dy + (k + i) * ld + j);
            UNROLL
            for (int i = 0; i < (count - 1) * step + size; i++, from += width) {
                UNROLL
                for (int s = 0; s < size; s++) {
                    vector v = *(const vector *)(from + (step == 1 ? s : offset[s]));
                    HOLD(v);
                    UNROLL
                    for (int o = 0; o < count; o++)
                        if (i >= o * step && i < o * step + size) sum[i - o * step][s] += g[o] * v;
                }
            }
        }
    UNROLL
    for (int r = 0; r < size; r++) {
        UNROLL
        for (int s = 0; s < size; s++) sums[r * size + s] += sum[r][s];
    }
}

static void add_any_rows(const depthwise *p, const float *x, const float *dy, int64_t rows,
                         vector *sums)
{
    const int64_t width = p->in.width;
    for (int64_t t = 0; t < p->taps; t++) {
        const float *from = x + t / p->kernel[1] * p->dilation[0] * width + p->at[t % p->kernel[1]];
        vector sum[ROWS] = { 0 };
        for (int64_t k = 0; k < rows; k += ROWS)
            for (int64_t j = 0; j < p->width; j += LANES) {
                UNROLL
                for (int64_t i = k; i < k + ROWS; i++)
                    sum[i - k] += *(const vector *)(dy + i * p->dy.width + j) *
                                  *(const vector *)(from + i * p->step[0] * width + j);
            }
        sums[t] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

static void add_planes(const depthwise *p, const float *x, const float *dy, int64_t rows, ahead *a,
                       ahead *b, vector *sums)
{
    switch (special(p)) {
    case 0: add_any_rows(p, x, dy, rows, sums); break;
    case 1: add_rows(p, 3, 1, ROWS, x, dy, rows, a, b, sums); break;
    case 2: add_rows(p, 3, 2, ROWS, x, dy, rows, a, b, sums); break;
    case 3: add_rows(p, 5, 1, 2, x, dy, rows, a, b, sums); break;
    case 4: add_rows(p, 5, 2, 2, x, dy, rows, a, b, sums); break;
    }
}

/* dw of a channel from its sums by lanes. False: not finite. */
static bool write_kernel(const depthwise *p, int64_t channel, vector *sums)
{
    bool finite = true;
    for (int64_t t = 0; t < p->taps; t += LANES) {
        float dw[LANES], room[LANES];
        add_lanes(sums + t, dw);
        const int64_t n = some(p->taps - t), at = channel * p->taps + t;
        float *to = tni_place(p->out.data, p->out.dtype, at, room);
        for (int64_t i = 0; i < n; i++) finite &= dw[i] * 0 == 0, to[i] = dw[i];
        tni_put(p->out.data, p->out.dtype, at, n, room);
    }
    return finite;
}

/* Items: blocks of channels. */
static void sum_images(void *context, int64_t begin, int64_t end)
{
    depthwise *p = context;
    float *x = begin_band(p), *dy = part_of(p, p->more), *room = part_of(p, p->room);
    memset(dy, 0, p->sums - p->more);
    vector *sums = (vector *)part_of(p, p->sums);
    const int64_t taps = tni_up(p->taps, LANES);
    for (int64_t item = begin; item < end; item++) {
        const int64_t c0 = item * p->block, n = TNI_MIN(p->block, p->channels - c0);
        memset(sums, 0, (size_t)(n * taps) * sizeof *sums);
        const int64_t all = p->images * n * p->pieces;
        for (int64_t i = 0; i < all; i++) {
            const int64_t c = i / p->pieces % n, first = i % p->pieces * p->rows;
            const int64_t plane = i / p->pieces / n * p->channels + c0 + c;
            const int64_t j = TNI_MIN(i + 1, all - 1), below = j % p->pieces * p->rows;
            const int64_t after = j / p->pieces / n * p->channels + c0 + j / p->pieces % n;
            const int64_t rows = tni_up(TNI_MIN(p->rows, p->h - first), ROWS);
            fill(&p->in, plane, first * p->step[0] - p->pad[0], band_rows(p, rows), p->pieces > 1,
                 x, room);
            fill(&p->dy, plane, first, rows, p->pieces > 1, dy, room);
            const int64_t steps = rows / ROWS * ((p->width - 1) / LANES + 1);
            ahead a = ahead_of(&p->in, after, below * p->step[0] - p->pad[0], band_rows(p, p->rows),
                               steps);
            ahead b = ahead_of(&p->dy, after, below, p->rows, steps);
            add_planes(p, x, dy, rows, &a, &b, sums + c * taps);
        }
        for (int64_t c = 0; c < n; c++)
            if (!write_kernel(p, c0 + c, sums + c * taps))
                atomic_store_explicit(&p->infinite, true, memory_order_relaxed);
    }
}

/* ---- the plan: by the sizes alone ------------------------------------------------------------ */

/* Where a row of in has each column of taps, and how long it is for `width` neighbours. */
static void plan_columns(depthwise *p, int64_t phases, int64_t width)
{
    band *b = &p->in;
    int64_t most = 0;
    b->phases = phases;
    for (int64_t s = 0; s < p->kernel[1]; s++) most = TNI_MAX(most, s * p->dilation[1] / phases);
    b->run = most + tni_up(width, LANES) + LANES;
    b->width = phases * b->run;
    for (int64_t s = 0; s < p->kernel[1]; s++)
        p->at[s] = s * p->dilation[1] % phases * b->run + s * p->dilation[1] / phases;
}

/* The same for dx by strides, for each phase of its columns. */
static void plan_phases(depthwise *p)
{
    const int64_t step = p->step[1], far = (p->kernel[1] - 1) * p->dilation[1];
    int64_t most = 0, n = 0;
    p->in.left = floor_of(p->pad[1] - far, step);
    for (int64_t e = 0; e < step; e++) {
        for (int64_t s = 0; s < p->kernel[1]; s++) {
            const int64_t place = p->pad[1] + e - s * p->dilation[1];
            if (place % step) continue;
            p->at[s] = place / step - p->in.left;
            p->tap[n++] = s;
            most = TNI_MAX(most, p->at[s]);
        }
        p->start[e + 1] = n;
    }
    p->in.phases = 1;
    p->in.run = p->in.width = most + tni_up((p->width - 1) / step + 1, LANES) + LANES;
}

/* Rows of out, or of dy, whose band of in is not larger than the L1 cache; or four. */
static int64_t rows_of(const depthwise *p, int64_t step, int64_t far)
{
    const int64_t row = p->in.width * (int64_t)sizeof(float);
    const int64_t most = TNI_MAX((BAND_BYTES / row - far - 1) / step + 1, ROWS);
    const int64_t pieces = (p->h - 1) / tni_up(most, ROWS) + 1;
    return TNI_MIN(tni_up((p->h - 1) / pieces + 1, ROWS), tni_up(p->h, ROWS));
}

/* False: not one of these. */
static bool plan(depthwise *p, const tni_convolution *c)
{
    const tni_conv2d_sizes *z = &c->sizes;
    if (c->x.dtype == TN_F64 || z->groups < 2 || z->c != z->groups || z->o != z->groups)
        return false;
    if (z->n * z->oh * z->ow * z->h * z->w == 0) return false;
    for (int d = 0; d < 2; d++) {
        p->kernel[d] = d ? z->kw : z->kh;
        p->step[d] = z->stride[d], p->pad[d] = z->padding[d], p->dilation[d] = z->dilation[d];
        if (p->kernel[d] > AXIS || p->step[d] > AXIS || p->dilation[d] > AXIS) return false;
    }
    const bool dx = c->kind == TNI_CONV_DX, dw = c->kind == TNI_CONV_DW;
    p->channels = z->c, p->images = z->n, p->taps = z->kh * z->kw;
    p->in =
        dx ? (band){ .of = c->y, .h = z->oh, .w = z->ow } : (band){ c->x, z->h, z->w, 0, 0, 0, 0 };
    p->out = dx ? c->x : dw ? c->w : c->y;
    p->w = c->w, p->bias = c->bias;
    p->h = dx ? z->h : z->oh, p->width = dx ? z->w : z->ow;
    p->turned = dx && z->stride[0] == 1 && z->stride[1] == 1;
    for (int d = 0; p->turned && d < 2; d++)
        p->pad[d] = (p->kernel[d] - 1) * p->dilation[d] - p->pad[d];
    p->in.left = -p->pad[1];
    if (dx && !p->turned)
        plan_phases(p);
    else
        plan_columns(p, p->step[1], p->width);
    return true;
}

static bool compute(depthwise *p, bool dw, bool by_strides, tn_status *status)
{
    const int64_t far = (p->kernel[0] - 1) * p->dilation[0];
    p->rows = by_strides ? rows_of(p, 1, far) : rows_of(p, p->step[0], far);
    p->pieces = (p->h - 1) / p->rows + 1;
    const int64_t rows = by_strides ? (p->rows + far) / p->step[0] + 2 : band_rows(p, p->rows);
    const int64_t bytes = rows * p->in.width * (int64_t)sizeof(float);
    if (bytes > MOST_BYTES) return false;
    const bool f16 = p->in.of.dtype == TN_F16;
    const int64_t made = p->rows * (dw ? p->dy.width : f16 ? p->width : 0);
    p->block = TNI_MAX(TNI_MIN(ITEM_BYTES / (p->in.h * p->in.w * 4), p->channels / 8), 1);
    p->block = TNI_MIN(p->block, CHANNELS);
    tni_scratch_add(&p->scratch, (size_t)bytes + LANES * sizeof(float));
    const int64_t read = f16 ? TNI_MAX(rows * p->in.w, p->rows * p->dy.w) : 0;
    p->room = tni_scratch_add(&p->scratch, (size_t)read * sizeof(float));
    p->more = tni_scratch_add(&p->scratch, (size_t)(made + LANES) * sizeof(float));
    const int64_t sums = p->block * tni_up(p->taps, LANES) * LANES;
    p->sums = tni_scratch_add(&p->scratch, (size_t)(dw ? sums : 2 * p->taps) * sizeof(float));
    const int64_t items =
        dw ? (p->channels - 1) / p->block + 1 : p->images * p->channels * p->pieces;
    const int64_t grain = tni_grain_of((double)(p->rows * p->width * p->taps) / 4);
    *status = tni_parallel_scratch(&p->scratch, items, dw ? 1 : grain,
                                   dw           ? sum_images
                                   : by_strides ? spread
                                                : filter,
                                   p);
    return *status != TN_OK || !p->infinite;
}

bool K(tni_depthwise)(const tni_convolution *c, tn_status *status)
{
    depthwise p = { .turned = false };
    if (!plan(&p, c)) return false;
    const bool dw = c->kind == TNI_CONV_DW;
    if (dw) {
        p.dy = (band){ c->y, p.h, p.width, 0, 1, tni_up(p.width, LANES) + LANES, 0 };
        p.dy.width = p.dy.run;
    }
    return compute(&p, dw, c->kind == TNI_CONV_DX && !p.turned, status);
}
