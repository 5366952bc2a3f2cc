/*
 * direct.c - convolutions with strides, groups, dilations or few channels, in f32 and bf16 with sums
 * in f32: y, and the gradient of x for stride 1, which is the same of dy with turned kernels. The
 * channels that a group reads lie in bands (band.h), some rows of each, in the L2 cache. Two vectors
 * of places of OUT channels of y are sums over channels and taps of the bands' vectors, each loaded
 * once for all of them, times weights: so no column of taps is written to memory. Weights are packed
 * once for all images, OUT channels side by side for each tap.
 */
#include "tensor/cpu/dense/band.h"

/* Sums that fit the registers. Not in SSE, where the library's products are faster. */
#if defined __AVX512F__
enum { OUT = 8, IS_FAST = 1 };
#elif defined __AVX__
enum { OUT = 4, IS_FAST = 1 };
#else
enum { OUT = 4, IS_FAST = 0 };
#endif
enum { BAND_BYTES = 192 * 1024, MOST_BYTES = 768 * 1024, ITEMS = 8 };
/* In one group others are faster for fewer taps, and from so many channels on both sides on. */
enum { LEAST_TAPS = 24, MANY = 16 };

typedef struct direct {
    window s;
    tni_array w, bias, out;
    int64_t groups, in, made; /* channels that a group reads, and writes */
    int64_t blocks;           /* of OUT of them */
    int64_t plane;            /* elements of a channel's band */
    int64_t taps, *offset;    /* of all channels: where each begins in the bands */
    float *weights;           /* [groups, blocks, taps, OUT] */
    bool turned;              /* kernels, for dx */
    tni_scratch scratch;
} direct;

/* Items: blocks of all groups. */
static void pack(void *context, int64_t begin, int64_t end)
{
    const direct *p = context;
    const int64_t kernel = p->s.kernel[0] * p->s.kernel[1];
    for (int64_t i = begin; i < end; i++) {
        const int64_t group = i / p->blocks, first = i % p->blocks * OUT;
        float *to = p->weights + i * p->taps * OUT, room[AXIS * AXIS];
        for (int64_t c = 0; c < p->in; c++)
            for (int o = 0; o < OUT && first + o < p->made; o++) {
                int64_t at = (group * p->made + first + o) * p->in + c;
                if (p->turned) at = (group * p->in + c) * p->made + first + o;
                const float *w = tni_get(p->w.data, p->w.dtype, at * kernel, kernel, room);
                for (int64_t t = 0; t < kernel; t++)
                    to[(c * kernel + t) * OUT + o] = w[p->turned ? kernel - 1 - t : t];
            }
    }
}

/* Two vectors of `out` channels of y; later: from a place of the first to the second's. */
TNI_INLINE void add_taps(const direct *p, int out, const float *w, const float *x, int64_t later,
                         vector sum[OUT][2])
{
    for (int64_t t = 0; t < p->taps; t++, w += OUT) {
        const float *at = x + p->offset[t];
        vector first = *(const vector *)at, next = *(const vector *)(at + later);
        HOLD(first);
        HOLD(next);
        UNROLL
        for (int o = 0; o < out; o++) sum[o][0] += w[o] * first, sum[o][1] += w[o] * next;
    }
}

/* Rows of a block of channels. */
TNI_INLINE void make_rows(const direct *p, const float *w, const float *bias, const float *bands,
                          int64_t rows, int64_t channels, int64_t at, bool bf16)
{
    const window *s = &p->s;
    const int64_t n = TNI_MIN(s->w, LANES), across = (s->w - 1) / LANES + 1, all = rows * across;
    int64_t from[2], to[2], row = 0, column = 0;
    for (int64_t v = 0; v < all; v += 2) {
        for (int k = 0; k < 2; k++) {
            const int64_t j = TNI_MAX(TNI_MIN(column * LANES, s->w - LANES), 0);
            from[k] = row * s->step[0] * s->in.width + j;
            to[k] = at + row * s->w + j;
            if (v + k + 1 < all && ++column == across) column = 0, row++;
        }
        const int64_t later = from[1] - from[0];
        vector sum[OUT][2];
        for (int o = 0; o < OUT; o++) sum[o][0] = sum[o][1] = (vector){ 0 } + bias[o];
        if (channels <= OUT / 2)
            add_taps(p, OUT / 2, w, bands + from[0], later, sum);
        else
            add_taps(p, OUT, w, bands + from[0], later, sum);
        for (int o = 0; o < channels; o++)
            for (int k = 0; k < 2; k++)
                store(sum[o][k], p->out.data, to[k] + o * s->h * s->w, n, bf16);
    }
}

/* Items: images x groups x pieces of rows. */
static void convolve(void *context, int64_t begin, int64_t end)
{
    const direct *p = context;
    const window *s = &p->s;
    float *bands = memset(tni_scratch_own(&p->scratch, 0), 0, p->scratch.each);
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i % s->pieces * s->rows, rows = TNI_MIN(s->rows, s->h - first);
        const int64_t part = i / s->pieces, group = part % p->groups; /* part: image x group */
        for (int64_t c = 0; c < p->in; c++)
            fill(&s->in, part * p->in + c, first * s->step[0] - s->pad[0], band_rows(s, rows),
                 s->pieces > 1, bands + c * p->plane);
        for (int64_t b = 0; b < p->blocks; b++) {
            const int64_t o = group * p->made + b * OUT, n = TNI_MIN(p->made - b * OUT, OUT);
            float bias[OUT] = { 0 }, room[OUT];
            if (p->bias.data)
                memcpy(bias, tni_get(p->bias.data, p->bias.dtype, o, n, room),
                       (size_t)n * sizeof(float));
            const float *w = p->weights + (group * p->blocks + b) * p->taps * OUT;
            const int64_t at = ((part * p->made + b * OUT) * s->h + first) * s->w;
            if (p->out.dtype == TN_BF16)
                make_rows(p, w, bias, bands, rows, n, at, true);
            else
                make_rows(p, w, bias, bands, rows, n, at, false);
        }
    }
}

/* False: another way is faster, or the only one. */
static bool plan(direct *p, const tni_convolution *c)
{
    const tni_conv2d_sizes *z = &c->sizes;
    window *s = &p->s;
    const bool dx = c->kind == TNI_CONV_DX;
    if (!IS_FAST || c->kind == TNI_CONV_DW || !plan_window(s, c)) return false;
    if (s->in.gap[0] * s->in.gap[1] > 1) return false;
    p->turned = dx;
    p->out = dx ? c->x : c->y;
    p->groups = z->groups;
    p->in = (dx ? z->o : z->c) / z->groups, p->made = (dx ? z->c : z->o) / z->groups;
    if (p->in * p->made == 0 || z->kh * z->kw == 1) return false;
    p->taps = p->in * z->kh * z->kw;
    if (z->groups == 1 && (p->taps < LEAST_TAPS || TNI_MIN(p->in, p->made) >= MANY)) return false;
    if (p->made < OUT / 2 || 3 * s->w < 2 * tni_up(s->w, LANES)) return false;
    p->blocks = (p->made - 1) / OUT + 1;
    plan_rows(s, p->in, 1, BAND_BYTES);
    const int64_t items = z->n * z->groups;
    if (items * s->pieces < ITEMS) s->rows = (s->h - 1) / ((ITEMS - 1) / items + 1) + 1;
    s->pieces = (s->h - 1) / s->rows + 1;
    p->plane = band_rows(s, s->rows) * s->in.width;
    p->scratch.each = (size_t)(p->in * p->plane + LANES) * sizeof(float);
    return p->scratch.each <= MOST_BYTES;
}

bool K(tni_direct)(const tni_convolution *c, tn_status *status)
{
    direct p = { .w = c->w, .bias = c->bias };
    if (!plan(&p, c)) return false;
    const window *s = &p.s;
    const int64_t numbers = p.groups * p.blocks * p.taps * OUT,
                  kernel = s->kernel[0] * s->kernel[1];
    const size_t size = (size_t)numbers * sizeof(float) + (size_t)p.taps * sizeof(int64_t);
    p.offset = tni_alloc(size);
    *status = p.offset ? TN_OK : TN_E_NOMEM;
    if (!p.offset) return true;
    p.weights = (float *)(p.offset + p.taps);
    for (int64_t t = 0; t < p.taps; t++)
        p.offset[t] = t / kernel * p.plane +
                      t % kernel / s->kernel[1] * s->dilation[0] * s->in.width +
                      s->at[t % s->kernel[1]];
    memset(p.weights, 0, (size_t)numbers * sizeof(float));
    tni_parallel(p.groups * p.blocks, 4096 / (p.taps * OUT) + 1, pack, &p);
    *status = tni_parallel_scratch(&p.scratch, c->sizes.n * p.groups * s->pieces,
                                   tni_grain_of((double)(p.made * p.taps * s->rows * s->w) / 4),
                                   convolve, &p);
    tni_free(p.offset, size);
    return true;
}
