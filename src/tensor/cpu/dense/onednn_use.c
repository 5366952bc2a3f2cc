/*
 * onednn_use.c - oneDNN as a provider: its module (onednn.c, onednn_conv.c) is opened at the first
 * product or convolution that it may take.
 *
 * The images of a convolution are cut into pieces for the threads, by the sizes alone, so that the
 * bits do not depend on the number of threads. A weight gradient is summed over the pieces in their
 * order.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"
#include "tensor/math.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tni_onednn *onednn;
static char why[512];

static void open_onednn(void)
{
    const char *wish = getenv("TN_ONEDNN");
    if (wish && strcmp(wish, "off") == 0) {
        snprintf(why, sizeof why, "TN_ONEDNN=off");
    } else if (!tni_has_avx512()) {
        snprintf(why, sizeof why, "not used below AVX-512");
    } else {
        void *symbol = tni_open_module("TN_ONEDNN_MODULE", "tensor/cpu/", TNI_ONEDNN_FILE,
                                       TNI_ONEDNN_SYMBOL, why, sizeof why);
        tni_onednn_open open = NULL;
        memcpy(&open, &symbol, sizeof open);
        if (open) onednn = open(TNI_ONEDNN_ID, why, sizeof why);
    }
}

const tni_onednn *tni_onednn_module(void)
{
    pthread_once(&once, open_onednn);
    return onednn;
}

const char *tni_onednn_why(void)
{
    pthread_once(&once, open_onednn);
    return why;
}

bool tni_onednn_product(const tni_product *p)
{
    return tni_onednn_module()->product(p);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

typedef struct pieces {
    const tni_onednn *module;
    tni_convolution c;  /* of all images; w of a weight gradient: the sums of piece 0, in f32 */
    int64_t images, n;  /* of a piece; pieces */
    size_t x, y, w;     /* bytes between pieces */
    void *dw;           /* of a weight gradient: where it belongs */
    atomic_bool undone; /* a piece could not be computed */
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

static bool cut(pieces *p)
{
    const tni_conv2d_sizes *z = &p->c.sizes;
    tn_dtype dtype = p->c.x.dtype;
    if (!is_worth_it(z, dtype)) return false;
    p->module = tni_onednn_module();
    if (!p->module || (dtype == TN_BF16 && !p->module->bf16)) return false;
    size_t item = tn_dtype_size(dtype);
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
    p->y = y * (size_t)p->images;
    if (p->c.kind == TNI_CONV_DW) p->w = (size_t)(z->o * z->c * z->kh * z->kw) * sizeof(float);
    return true;
}

/* Items: pieces. */
static void compute(void *context, int64_t begin, int64_t end)
{
    pieces *p = context;
    for (int64_t i = begin; i < end; i++) {
        tni_convolution c = p->c;
        c.sizes.n = TNI_MIN(p->images, c.sizes.n - i * p->images);
        c.x.data = (char *)c.x.data + (size_t)i * p->x;
        c.y.data = (char *)c.y.data + (size_t)i * p->y;
        c.w.data = (char *)c.w.data + (size_t)i * p->w;
        if (!p->module->convolve(&c)) atomic_store_explicit(&p->undone, true, memory_order_relaxed);
    }
}

static bool run(pieces *p)
{
    tni_parallel_workers(tni_workers(p->n, 1), p->n, 1, compute, p);
    return !p->undone;
}

/* Items: elements of dw, the sums of the parts in p->c.w. */
static void sum_parts(void *context, int64_t begin, int64_t end)
{
    const pieces *p = context;
    const float *part = p->c.w.data;
    for (int64_t j = begin; j < end; j++) {
        float sum = part[j];
        for (int64_t i = 1; i < p->n; i++) sum += part[i * (int64_t)(p->w / sizeof(float)) + j];
        if (p->c.w.dtype == TN_BF16)
            ((uint16_t *)p->dw)[j] = tn_to_bf16(sum);
        else
            ((float *)p->dw)[j] = sum;
    }
}

static bool run_gradient(pieces *p, tn_status *status)
{
    size_t size = (size_t)p->n * p->w;
    p->dw = p->c.w.data;
    p->c.w.data = tni_alloc(size);
    *status = p->c.w.data ? TN_OK : TN_E_NOMEM;
    if (!p->c.w.data) return true;
    bool done = run(p);
    if (done) tni_parallel((int64_t)(p->w / sizeof(float)), 4096, sum_parts, p);
    tni_free(p->c.w.data, size);
    return done;
}

bool tni_onednn_convolve(const tni_convolution *c, tn_status *status)
{
    pieces p = { .c = *c };
    *status = TN_OK;
    return cut(&p) && (c->kind == TNI_CONV_DW ? run_gradient(&p, status) : run(&p));
}
