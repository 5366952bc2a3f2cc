/*
 * band.h - rows of images as convolutions read them in vectors (depthwise.c): some rows of
 * a plane are copied into a band in the L1 or L2 cache, f32 with zeros around them, so that nothing
 * has edges. With stride 2 a row of the band holds the even columns of the padded image first, then
 * the odd ones; so places that a tap reads for neighbours of y are neighbours, too.
 */
#pragma once

#if defined __AVX512F__
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined TNI_PLAIN && !defined __AVX2__
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#else
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#endif

#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/dense/vector.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/internal.h"
#include "tensor/math.h"

/* Keeps v in a register: compilers read it from memory for each of its uses, across the borders of
 * cache lines, which takes twice as long as to multiply. */
#if defined __AVX__
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v) (void)(v)
#endif

/* ---- bands ----------------------------------------------------------------------------------- */

/* How rows of planes [h, w] of an array lie in a band. */
typedef struct band {
    tni_array of;
    int64_t h, w, gap[2]; /* gap: 2 along an axis: zeros lie between neighbours */
    int64_t left;        /* the plane's column that is the band's first; below 0: zeros before it */
    int64_t phases, run; /* the stride of the columns, and what each holds of a row */
    int64_t width;       /* from a row to the next */
} band;

/* Rows of a plane into the band, whose zeros around them are there already. */
TNI_INLINE void fill_rows(const band *b, int64_t at, int64_t rows, bool bf16, float *to)
{
    const int64_t skip = TNI_MAX(b->left, 0), low = TNI_MAX(-b->left, 0), run = b->run;
    const int64_t room = (b->phases * (run - LANES) - low + b->gap[1] - 1) / b->gap[1];
    const int64_t n = TNI_MIN(b->w - skip, room), lanes = TNI_MIN(n, LANES);
    const int64_t ld = b->gap[0] * b->width, spread = b->gap[1] == 2, halves = b->phases == 2;
    const vector none = { 0 };
    float *even = to + (low & 1) * run + low / 2, *odd = to + (~low & 1) * run + (low + 1) / 2;
    for (to += low, at += skip; rows-- > 0; at += b->w, to += ld, even += ld, odd += ld)
        if (!spread && !halves)
            for (int64_t j = 0; j < n; j += LANES) {
                const int64_t k = TNI_MAX(TNI_MIN(j, n - LANES), 0);
                *(vector *)(to + k) = load(b->of.data, at + k, lanes, bf16);
            }
        else
            for (int64_t j = 0; j < n; j += LANES << halves) {
                const vector first = load(b->of.data, at + j, some(n - j), bf16);
                const int64_t rest = halves ? some(n - j - LANES) : 0;
                const vector next = load(b->of.data, at + j + LANES, rest, bf16);
                float *one = halves ? even + j / 2 : to + 2 * j,
                      *two = halves ? odd + j / 2 : one + LANES;
                *(vector *)one = halves ? __builtin_shufflevector(first, next, EVEN)
                                        : __builtin_shufflevector(first, none, FRONT);
                *(vector *)two = halves ? __builtin_shufflevector(first, next, ODD)
                                        : __builtin_shufflevector(first, none, BACK);
            }
}

/* The first of a plane's rows that is not above row `top` of it with its gaps. */
static inline int64_t row_from(const band *b, int64_t top)
{
    return TNI_MIN((TNI_MAX(top, 0) + b->gap[0] - 1) / b->gap[0], b->h);
}

/* Rows [top, top + rows) of a plane. again: rows outside of it have been others before. */
static inline void fill(const band *b, int64_t plane, int64_t top, int64_t rows, bool again,
                        float *to)
{
    const int64_t first = row_from(b, top), n = row_from(b, top + rows) - first;
    const int64_t at = (plane * b->h + first) * b->w;
    if (again && n < rows) memset(to, 0, (size_t)(rows * b->width) * sizeof(float));
    if (n <= 0) return;
    to += (first * b->gap[0] - top) * b->width;
    if (b->of.dtype == TN_BF16)
        fill_rows(b, at, n, true, to);
    else
        fill_rows(b, at, n, false, to);
}

/* Such rows that are read next, and the lines of the cache that each step of the work on others
 * fetches of them. */
typedef struct ahead {
    const char *at;
    int64_t lines;
} ahead;

static inline ahead fetch_in(const band *b, int64_t plane, int64_t top, int64_t rows, int64_t steps)
{
    const int64_t first = row_from(b, top), row = b->w * (int64_t)tn_dtype_size(b->of.dtype);
    return (ahead){ (const char *)b->of.data + (plane * b->h + first) * row,
                    (row_from(b, top + rows) - first) * row / (64 * steps) + 1 };
}

static inline void fetch(ahead *a)
{
    for (int64_t i = 0; i < a->lines; i++, a->at += 64) __builtin_prefetch(a->at, 0, 2);
}

/* ---- what a convolution reads of it ---------------------------------------------------------- */

enum { AXIS = 32 }; /* the most taps along an axis */

typedef struct window {
    band in;
    int64_t kernel[2], step[2], pad[2], dilation[2];
    int64_t h, w;         /* of a plane of results; of dw: of dy */
    int64_t rows, pieces; /* of such a plane */
    int64_t at[AXIS];     /* where a column of taps begins in a row of the band */
} window;

/* Rows of the band that `rows` results read. */
static inline int64_t band_rows(const window *p, int64_t rows)
{
    return (rows - 1) * p->step[0] + (p->kernel[0] - 1) * p->dilation[0] + 1;
}

/* But for rows and pieces. The gradient of x is a convolution of dy, with gaps as the stride says,
 * by kernels turned by 180 degrees. False: there is no vector in it, or too much. */
static inline bool plan_window(window *p, const tni_convolution *c)
{
    const tni_conv2d_sizes *z = &c->sizes;
    const bool dx = c->kind == TNI_CONV_DX;
    if (c->x.dtype != TN_F32 && c->x.dtype != TN_BF16) return false;
    if (c->y.dtype != c->x.dtype || z->n * z->oh * z->ow * z->h * z->w == 0) return false;
    *p = (window){ .kernel = { z->kh, z->kw }, .in.gap = { 1, 1 } };
    for (int d = 0; d < 2; d++) {
        p->step[d] = dx ? 1 : z->stride[d], p->dilation[d] = z->dilation[d];
        if (dx) p->in.gap[d] = z->stride[d];
        if (p->kernel[d] > AXIS || z->stride[d] > 2 || p->dilation[d] > AXIS) return false;
        const int64_t far = (p->kernel[d] - 1) * p->dilation[d];
        p->pad[d] = dx ? far - z->padding[d] : z->padding[d];
        if (p->pad[d] < 0 && z->stride[d] > 1) return false;
    }
    p->in.of = dx ? c->y : c->x;
    p->in.h = dx ? z->oh : z->h, p->in.w = dx ? z->ow : z->w;
    p->h = dx ? z->h : z->oh, p->w = dx ? z->w : z->ow;
    p->in.left = -p->pad[1];
    p->in.phases = p->step[1];
    const int64_t far = (p->kernel[1] - 1) * p->dilation[1];
    p->in.run = far / p->step[1] + tni_up(p->w, LANES) + LANES;
    p->in.width = p->in.phases * p->in.run;
    for (int64_t s = 0; s < p->kernel[1]; s++)
        p->at[s] = s * p->dilation[1] % p->step[1] * p->in.run + s * p->dilation[1] / p->step[1];
    return true;
}

/* Rows of results, a multiple of `unit`, whose band of so many planes has about `bytes`. */
static inline void plan_rows(window *p, int64_t planes, int64_t unit, int64_t bytes)
{
    const int64_t row = planes * p->in.width * (int64_t)sizeof(float);
    const int64_t far = (p->kernel[0] - 1) * p->dilation[0];
    const int64_t most = TNI_MAX((bytes / row - far - 1) / p->step[0] + 1, unit);
    const int64_t pieces = (p->h - 1) / tni_up(most, unit) + 1;
    p->rows = tni_up((p->h - 1) / pieces + 1, unit);
    p->pieces = (p->h - 1) / p->rows + 1;
}
