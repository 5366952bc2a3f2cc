/*
 * convolution.c - convolutions by AMX (isa/amx_conv.c) and by oneDNN, which are asked before the
 * general kernels (real/conv.c) are. From here on, oneDNN's.
 *
 * The images are cut into pieces for the threads, by the sizes alone, so that the bits do not
 * depend on the number of threads. A weight gradient is summed over the pieces in their order.
 */
#include <stdatomic.h>

#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"
#include "tensor/math.h"

typedef struct pieces {
    const tni_onednn *module;
    tni_convolution c;    /* of all images; `result` of a weight gradient: of piece 0 */
    int64_t images, n;    /* of a piece; pieces */
    size_t x, dy, result; /* bytes between pieces */
    atomic_bool undone;   /* a piece could not be computed */
} pieces;

/* oneDNN's kernels copy the images into their own layout: a piece's copies stay in the L2 cache. */
enum { PIECE_BYTES = 384 * 1024, SHARES = 4 };

/*
 * Where oneDNN wins, measured on two Zen 4 cores: from 16 channels on, on both sides (its layouts
 * hold 16 in a block), f32 by 1.2 to 1.6 times, and bf16 by 2 to 3 against the general way through
 * f32. 1x1 kernels in f32 are plain products, which need no copies.
 */
static bool is_worth_it(const tni_conv2d_sizes *z, tn_dtype dtype)
{
    double work =
        (double)z->o * (double)z->c * (double)(z->kh * z->kw) * (double)(z->n * z->oh * z->ow);
    return z->groups == 1 && z->n >= 4 && z->c >= 16 && z->o >= 16 && work >= 0x1p20 &&
           (dtype == TN_BF16 || (dtype == TN_F32 && z->kh * z->kw > 1));
}

static bool cut(pieces *p, tn_dtype dtype)
{
    const tni_conv2d_sizes *z = &p->c.sizes;
    if (!is_worth_it(z, dtype)) return false;
    p->module = tni_onednn_module();
    if (!p->module || (dtype == TN_BF16 && !p->module->bf16)) return false;
    size_t item = tn_dtype_size(dtype);
    p->c.dtype = dtype;
    size_t x = (size_t)(z->c * z->h * z->w) * item, y = (size_t)(z->o * z->oh * z->ow) * item;
    if (p->c.kind == TNI_CONV_DW) {
        int64_t parts = tni_convolve_parts(z->o * z->c * z->kh * z->kw);
        p->images = (z->n + parts - 1) / parts;
    } else {
        int64_t most = TNI_MAX(1, (int64_t)(PIECE_BYTES / (x + y + 1)));
        int64_t pieces = (z->n - 1) / (SHARES * most) * SHARES + SHARES; /* 2 or 4 threads alike */
        p->images = (z->n + pieces - 1) / pieces;
    }
    p->n = (z->n - 1) / p->images + 1;
    p->x = x * (size_t)p->images;
    p->dy = y * (size_t)p->images;
    p->result = p->c.kind == TNI_CONV_Y    ? p->dy
                : p->c.kind == TNI_CONV_DX ? p->x
                                           : (size_t)(z->o * z->c * z->kh * z->kw) * 4;
    return true;
}

static const void *ahead(const void *base, size_t bytes)
{
    return base ? (const char *)base + bytes : NULL;
}

/* Items: pieces. */
static void compute(void *context, int64_t begin, int64_t end)
{
    pieces *p = context;
    for (int64_t i = begin; i < end; i++) {
        tni_convolution c = p->c;
        c.sizes.n = TNI_MIN(p->images, c.sizes.n - i * p->images);
        c.x = ahead(c.x, (size_t)i * p->x);
        c.dy = ahead(c.dy, (size_t)i * p->dy);
        c.result = (char *)c.result + (size_t)i * p->result;
        if (!p->module->convolve(&c)) atomic_store_explicit(&p->undone, true, memory_order_relaxed);
    }
}

static bool run(pieces *p)
{
    tni_parallel_blas(p->n, 1, compute, p);
    return !p->undone;
}

/* By AMX, where it is there. */
#define BY_AMX(way) (TNI_AMX && tni_has_amx() && tni_amx_convolve_##way(a, status))

bool tni_convolve_y(const tni_conv2d *a, tn_status *status)
{
    if (BY_AMX(y)) return true;
    pieces p = { .c = { TNI_CONV_Y, a->sizes, .x = a->x.data, .w = a->w.data, .bias = a->bias.data,
                        .result = a->y.data } };
    *status = TN_OK;
    return cut(&p, a->x.dtype) && run(&p);
}

bool tni_convolve_dx(const tni_conv2d_grad_input *a, tn_status *status)
{
    if (BY_AMX(dx)) return true;
    pieces p = { .c = { TNI_CONV_DX, a->sizes, .w = a->w.data, .dy = a->dy.data,
                        .result = a->dx.data } };
    *status = TN_OK;
    return cut(&p, a->dy.dtype) && run(&p);
}

typedef struct sums {
    const float *part; /* n of them, one after another */
    int64_t n, size;
    const tni_array *dw;
} sums;

/* Items: elements of dw. */
static void sum_parts(void *context, int64_t begin, int64_t end)
{
    const sums *s = context;
    for (int64_t j = begin; j < end; j++) {
        float sum = s->part[j];
        for (int64_t i = 1; i < s->n; i++) sum += s->part[i * s->size + j];
        if (s->dw->dtype == TN_BF16)
            ((uint16_t *)s->dw->data)[j] = tn_to_bf16(sum);
        else
            ((float *)s->dw->data)[j] = sum;
    }
}

bool tni_convolve_dw(const tni_conv2d_grad_weight *a, tn_status *status)
{
    if (BY_AMX(dw)) return true;
    pieces p = { .c = { TNI_CONV_DW, a->sizes, .x = a->x.data, .dy = a->dy.data } };
    *status = TN_OK;
    if (!cut(&p, a->dy.dtype)) return false;
    size_t size = (size_t)p.n * p.result;
    void *parts = tni_alloc(size);
    p.c.result = parts;
    if (!parts) {
        *status = TN_E_NOMEM;
        return true;
    }
    bool done = run(&p);
    sums s = { parts, p.n, (int64_t)(p.result / 4), &a->dw };
    if (done) tni_parallel(s.size, 4096, sum_parts, &s);
    tni_free(parts, size);
    return done;
}
