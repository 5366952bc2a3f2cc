/*
 * depthwise.c - convolutions whose channels have a kernel each and do not mix (as many groups as
 * channels on both sides), in f32 and bf16 with sums in f32: y, and the gradients of x and w.
 *
 * Each number takes part in few multiplications, so memory sets the pace if nothing else is in the
 * way. ROWS vectors of neighbouring rows of y are sums of a band's vectors (band.h), which are
 * loaded once for all of them, times weights, while the next plane is fetched from memory. The
 * gradient of x is the same, from dy with zeros between its numbers where there are strides. dw is
 * summed in vectors over the rows of a plane, then over the images, and at last across the lanes.
 *
 * dw also multiplies zeros by numbers beside those that belong to a tap; where a sum is not finite,
 * the general kernels compute all of dw again.
 */
#include "tensor/cpu/dense/band.h"

enum { ROWS = 4, CHANNELS = 32 }; /* channels of an item of dw */
enum { BAND_BYTES = 32 * 1024, MOST_BYTES = 1 << 20, ITEM_BYTES = 1 << 16 };

typedef struct depthwise {
    window s;
    band dy; /* of dw */
    tni_array w, bias, out;
    int64_t channels, taps;
    bool turned;           /* kernels, for dx */
    int64_t images, block; /* of dw: an item sums over these images, for some channels */
    tni_scratch scratch;   /* in's band */
    size_t more, sums;     /* where dy's begins, and a kernel or its sums */
    atomic_bool infinite;
} depthwise;

/* A channel's kernel in f32, turned for the gradient of x. */
static void get_kernel(const depthwise *p, int64_t channel, float *w)
{
    const float *from = tni_get(p->w.data, p->w.dtype, channel * p->taps, p->taps, w + p->taps);
    for (int64_t t = 0; t < p->taps; t++) w[t] = from[p->turned ? p->taps - 1 - t : t];
}

/* ---- y, and the gradient of x ---------------------------------------------------------------- */

/* Rows of out from a band whose first is theirs. size and step: of the kernel, a square, and its
 * stride; size 0: any. count: rows at a time. */
TNI_INLINE void filter_rows(const depthwise *p, int size, int step, int count, const float *w,
                            float bias, const float *from, int64_t rows, void *to, int64_t at,
                            ahead a, bool bf16)
{
    const int64_t width = p->s.in.width, all = p->s.w, n = TNI_MIN(all, LANES);
    const int64_t down = (size ? step : p->s.step[0]) * width, kh = p->s.kernel[0],
                  kw = p->s.kernel[1];
    const int64_t far = p->s.dilation[0] * width, here = TNI_MIN(count, rows);
    int64_t offset[5];
    for (int s = 0; s < size; s++) offset[s] = p->s.at[s];
    for (int64_t next = 0; next < rows; next += count) {
        const int64_t k = TNI_MAX(TNI_MIN(next, rows - count), 0);
        for (int64_t j = 0; j < all; j += LANES) {
            const int64_t column = TNI_MAX(TNI_MIN(j, all - LANES), 0);
            const float *x = from + k * down + column;
            fetch(&a);
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
                        sum[o] += w[r * kw + s] * *(const vector *)(x + o * down + p->s.at[s]);
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
    const int64_t size = p->s.kernel[0], step = p->s.step[0];
    const bool square = p->s.kernel[1] == size && p->s.step[1] == step && (size == 3 || size == 5);
    if (!square || step > 2 || p->s.dilation[0] != 1 || p->s.dilation[1] != 1) return 0;
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

/* Vectors of a piece, ROWS at a time. */
static int64_t steps_of(const window *s)
{
    return ((s->rows - 1) / ROWS + 1) * ((s->w - 1) / LANES + 1);
}

/* A chunk's band of in, all zeros; what lies behind it. */
static float *begin_band(const depthwise *p)
{
    return memset(tni_scratch_own(&p->scratch, 0), 0, p->more);
}

/* Items: pieces of planes. */
static void filter(void *context, int64_t begin, int64_t end)
{
    const depthwise *p = context;
    const window *s = &p->s;
    float *from = begin_band(p), *w = tni_scratch_own(&p->scratch, p->sums), one;
    for (int64_t i = begin; i < end; i++) {
        const int64_t plane = i / s->pieces, first = i % s->pieces * s->rows;
        const int64_t rows = TNI_MIN(s->rows, s->h - first), channel = plane % p->channels;
        const tni_array *b = &p->bias;
        const float bias =
            b->data ? *(const float *)tni_get(b->data, b->dtype, channel, 1, &one) : 0;
        get_kernel(p, channel, w);
        fill(&s->in, plane, first * s->step[0] - s->pad[0], band_rows(s, rows), s->pieces > 1,
             from);
        const int64_t next = TNI_MIN(i + 1, end - 1), below = next % s->pieces * s->rows;
        const ahead a = fetch_in(&s->in, next / s->pieces, below * s->step[0] - s->pad[0],
                                 band_rows(s, s->rows), steps_of(s));
        (p->out.dtype == TN_BF16 ? filter_bf16 : filter_f32)(p, w, bias, from, rows, p->out.data,
                                                             (plane * s->h + first) * s->w, a);
    }
}

/* ---- the gradient of w ----------------------------------------------------------------------- */

/* sums[t] += those of rows of dy, a multiple of ROWS, by vectors; as filter_rows. */
TNI_INLINE void add_rows(const depthwise *p, int size, int step, int count, const float *x,
                         const float *dy, int64_t rows, ahead a[2], vector *sums)
{
    const int64_t width = p->s.in.width, ld = p->dy.width, all = p->s.w;
    int64_t offset[5];
    vector sum[5][5];
    UNROLL
    for (int r = 0; r < size; r++) {
        offset[r] = p->s.at[r];
        UNROLL
        for (int s = 0; s < size; s++) sum[r][s] = (vector){ 0 };
    }
    for (int64_t k = 0; k < rows; k += count)
        for (int64_t j = 0; j < all; j += LANES) {
            const float *from = x + k * step * width + j;
            vector g[ROWS];
            fetch(&a[0]);
            fetch(&a[1]);
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
    const int64_t width = p->s.in.width;
    for (int64_t t = 0; t < p->taps; t++) {
        const float *from =
            x + t / p->s.kernel[1] * p->s.dilation[0] * width + p->s.at[t % p->s.kernel[1]];
        vector sum[ROWS] = { 0 };
        for (int64_t k = 0; k < rows; k += ROWS)
            for (int64_t j = 0; j < p->s.w; j += LANES) {
                UNROLL
                for (int64_t i = k; i < k + ROWS; i++)
                    sum[i - k] += *(const vector *)(dy + i * p->dy.width + j) *
                                  *(const vector *)(from + i * p->s.step[0] * width + j);
            }
        sums[t] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

static void add_planes(const depthwise *p, const float *x, const float *dy, int64_t rows,
                       ahead a[2], vector *sums)
{
    switch (special(p)) {
    case 0: add_any_rows(p, x, dy, rows, sums); break;
    case 1: add_rows(p, 3, 1, ROWS, x, dy, rows, a, sums); break;
    case 2: add_rows(p, 3, 2, ROWS, x, dy, rows, a, sums); break;
    case 3: add_rows(p, 5, 1, 2, x, dy, rows, a, sums); break;
    case 4: add_rows(p, 5, 2, 2, x, dy, rows, a, sums); break;
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
    const window *s = &p->s;
    float *x = begin_band(p), *dy = tni_scratch_own(&p->scratch, p->more);
    memset(dy, 0, p->sums - p->more);
    vector *sums = tni_scratch_own(&p->scratch, p->sums);
    const int64_t taps = tni_up(p->taps, LANES);
    for (int64_t item = begin; item < end; item++) {
        const int64_t c0 = item * p->block, n = TNI_MIN(p->block, p->channels - c0);
        memset(sums, 0, (size_t)(n * taps) * sizeof *sums);
        const int64_t all = p->images * n * s->pieces;
        for (int64_t i = 0; i < all; i++) {
            const int64_t c = i / s->pieces % n, first = i % s->pieces * s->rows;
            const int64_t plane = i / s->pieces / n * p->channels + c0 + c;
            const int64_t rows = tni_up(TNI_MIN(s->rows, s->h - first), ROWS);
            const int64_t j = TNI_MIN(i + 1, all - 1), below = j % s->pieces * s->rows;
            const int64_t after = j / s->pieces / n * p->channels + c0 + j / s->pieces % n;
            fill(&s->in, plane, first * s->step[0] - s->pad[0], band_rows(s, rows), s->pieces > 1,
                 x);
            fill(&p->dy, plane, first, rows, s->pieces > 1, dy);
            ahead a[] = { fetch_in(&s->in, after, below * s->step[0] - s->pad[0],
                                   band_rows(s, s->rows), steps_of(s)),
                          fetch_in(&p->dy, after, below, s->rows, steps_of(s)) };
            add_planes(p, x, dy, rows, a, sums + c * taps);
        }
        for (int64_t c = 0; c < n; c++)
            if (!write_kernel(p, c0 + c, sums + c * taps))
                atomic_store_explicit(&p->infinite, true, memory_order_relaxed);
    }
}

/* ---- the plan: by the sizes alone ------------------------------------------------------------ */

bool K(tni_depthwise)(const tni_convolution *c, tn_status *status)
{
    const tni_conv2d_sizes *z = &c->sizes;
    const bool dw = c->kind == TNI_CONV_DW;
    depthwise p = { .w = c->w, .bias = c->bias, .channels = z->c, .images = z->n };
    window *s = &p.s;
    if (z->groups < 2 || z->c != z->groups || z->o != z->groups || !plan_window(s, c)) return false;
    p.turned = c->kind == TNI_CONV_DX;
    p.out = dw ? c->w : p.turned ? c->x : c->y;
    p.taps = z->kh * z->kw;
    for (int64_t i = 0; p.turned && i < z->c * p.taps; i++) {
        float one; /* zeros around dy would make NaN of others */
        if (!isfinite(*(const float *)tni_get(c->w.data, c->w.dtype, i, 1, &one))) return false;
    }
    plan_rows(s, 1, ROWS, BAND_BYTES);
    const int64_t size = band_rows(s, s->rows) * s->in.width + 2 * LANES;
    const int64_t bytes = size * (int64_t)sizeof(float);
    if (bytes > MOST_BYTES) return false;
    const int64_t dy = tni_up(s->w, LANES) + LANES;
    if (dw) p.dy = (band){ c->y, s->h, s->w, { 1, 1 }, 0, 1, dy, dy };
    p.block = TNI_MAX(TNI_MIN(ITEM_BYTES / (z->h * z->w * 4), z->c / 8), 1);
    p.block = TNI_MIN(p.block, CHANNELS);
    tni_scratch_add(&p.scratch, (size_t)bytes);
    p.more = tni_scratch_add(&p.scratch, dw ? (size_t)(s->rows * dy + LANES) * sizeof(float) : 0);
    const int64_t sums = p.block * tni_up(p.taps, LANES) * LANES;
    p.sums = tni_scratch_add(&p.scratch, (size_t)(dw ? sums : 2 * p.taps) * sizeof(float));
    const int64_t items = dw ? (z->c - 1) / p.block + 1 : z->n * z->c * s->pieces;
    const int64_t grain = tni_grain_of((double)(s->rows * s->w * p.taps) / 4);
    *status = tni_parallel_scratch(&p.scratch, items, dw ? 1 : grain, dw ? sum_images : filter, &p);
    return *status != TN_OK || !p.infinite;
}
