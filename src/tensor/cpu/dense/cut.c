/*
 * cut.c - matrix products, cut into pieces for the threads; choose.c knows who computes a piece.
 *
 * The bits are the same for any number of threads. OpenBLAS itself divides a product by its number
 * of threads, so it rounds differently on one and on two. Here C is cut into tiles whose number and
 * borders depend only on the shape, and every tile is one single-threaded call; if C is small and
 * the inner axis long, the inner axis is cut instead, and the parts are summed in index order.
 */
#include <limits.h>

#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"
#include "tensor/math.h"

/* ---- operands: a unit stride and a leading dimension that BLAS takes ------------------------- */

typedef struct operand {
    const char *data;
    bool trans;        /* stored as its transpose */
    int64_t ld, batch; /* elements */
    void *copy;        /* NULL: the caller's memory is used as it is */
    size_t copy_size;
} operand;

/* A matrix [rows, cols] of any strides as BLAS's (trans, ld); false when it must be copied. */
static bool blas_layout(int64_t rows, int64_t cols, int64_t row, int64_t col, operand *o)
{
    if (rows == 1) row = cols; /* strides of size-1 axes mean nothing */
    if (cols == 1) col = 1;
    if (col == 1 && row >= cols && row <= INT_MAX) {
        o->trans = false;
        o->ld = row;
        return true;
    }
    if (rows == 1) row = 1;
    if (cols == 1) col = rows;
    if (row == 1 && col >= rows && col <= INT_MAX) {
        o->trans = true;
        o->ld = col;
        return true;
    }
    return false;
}

static tn_status operand_init(operand *o, tn_dtype dtype, const void *data, int64_t rows,
                              int64_t cols, int64_t row, int64_t col, int64_t batch_stride,
                              int64_t batch)
{
    tni_array x = {
        (void *)(uintptr_t)data, dtype, 3, { 0, rows, cols }, { batch_stride, row, col }
    };
    *o = (operand){ .data = data, .batch = batch_stride };
    if (blas_layout(rows, cols, row, col, o)) return TN_OK;
    x.size[0] = batch_stride == 0 ? 1 : batch;
    o->copy_size = (size_t)(x.size[0] * rows * cols) * tn_dtype_size(dtype);
    o->copy = tni_alloc(o->copy_size);
    if (!o->copy) return TN_E_NOMEM;
    tni_copy copy = { x, x };
    copy.y.data = o->copy;
    copy.y.stride[0] = rows * cols, copy.y.stride[1] = cols, copy.y.stride[2] = 1;
    tni_cpu_backend()->copy(&copy); /* equal dtypes: it cannot fail */
    o->data = o->copy;
    o->ld = cols;
    o->trans = false;
    o->batch = batch_stride == 0 ? 0 : rows * cols;
    return TN_OK;
}

/* ---- the cut --------------------------------------------------------------------------------- */

typedef struct plan {
    const tni_gemm *g;
    operand a, b;
    size_t item, c_item;                      /* bytes of an element of A and B, of C */
    tn_dtype out;                             /* of C */
    int64_t step_m, step_n, tiles_m, tiles_n; /* C in tiles */
    bool few;                                 /* it is few.c's */
    int64_t step_k, parts;                    /* or the inner axis in parts */
    char *partial;                            /* of each part but the first: dense [m, n]; or
                                               * the packed B of all pieces */
    atomic_bool *undone;                      /* a piece could not be computed */
} plan;

static int64_t cut(int64_t size, int64_t tiles)
{
    return tni_up((size - 1) / tiles + 1, 16);
}

/* C is small and the inner axis long. */
static bool in_parts(const tni_gemm *g)
{
    double area = (double)g->m * (double)g->n;
    return g->k >= 1024 && g->k >= 2 * TNI_MAX(g->m, g->n) && area <= 0x1p18 && g->batch == 1;
}

/*
 * The cut of one product, from its sizes alone (measured on two AVX-512 cores, OpenBLAS 0.3.21):
 *   - below 2^18 multiplications a thread's start costs more than it saves
 *   - tiles_m * tiles_n tiles pack tiles_n * m * k + tiles_m * n * k numbers: the cheapest grid is
 *     taken. 4 tiles cost nothing against the library's own threading; more are taken as the
 *     product grows, so that packing stays below 5 %
 *   - C small and k long (a weight gradient): tiles would be slivers, k is cut instead
 *   - matrix times vector: along the longer side
 *   - few rows (few.c): along the columns, each of which is read once; not of a packed B
 */
static void plan_cut(plan *p, bool packs)
{
    const tni_gemm *g = p->g;
    double work = (double)g->m * (double)g->n * (double)g->k;
    double area = (double)g->m * (double)g->n;
    bool vector = g->m == 1 || g->n == 1;
    p->few = !packs && tni_few_fits(g->dtype, p->a.trans, p->b.trans, g->m, g->n, g->k);
    bool small = work < (vector || p->few ? 65536 : 262144);
    p->tiles_m = p->tiles_n = p->parts = 1;
    p->step_m = g->m, p->step_n = g->n, p->step_k = g->k;
    if (small) return; /* before divisions that would take longer than a tiny product */
    if (g->batch < 16) {
        int64_t tiles = work < 0x1p33 ? 4 : work < 0x1p36 ? 8 : work < 0x1p39 ? 16 : 32;
        if (p->few) {
            p->tiles_n = work < 0x1p20 ? 4 : work < 0x1p22 ? 8 : 32;
        } else if (vector) {
            p->tiles_m = g->m > 1 ? 4 : 1;
            p->tiles_n = g->n > 1 ? 4 : 1;
        } else if (in_parts(g)) {
            p->parts = TNI_MIN(TNI_MIN(8, g->k / 512), (int64_t)(0x1p20 / area));
            p->parts = TNI_MAX(p->parts, 4);
        } else {
            double best = INFINITY;
            for (int64_t tm = 1; tm <= tiles; tm *= 2) {
                int64_t tn = tiles / tm;
                double cost = (double)tn * (double)g->m + (double)tm * (double)g->n;
                if (g->m < 16 * tm) cost += 1e9;
                if (g->n < 16 * tn) cost += 1e9;
                if (cost < best) best = cost, p->tiles_m = tm, p->tiles_n = tn;
            }
        }
    }
    /* BLAS counts in int */
    p->tiles_m = TNI_MAX(p->tiles_m, g->m / 0x40000000 + (g->m % 0x40000000 != 0));
    p->step_m = cut(g->m, p->tiles_m);
    p->step_n = cut(g->n, p->tiles_n);
    p->step_k = cut(g->k, p->parts);
    p->tiles_m = (g->m - 1) / p->step_m + 1;
    p->tiles_n = (g->n - 1) / p->step_n + 1;
    p->parts = (g->k - 1) / p->step_k + 1;
}

/* Bytes of the packed B of this many pieces. */
static int64_t packed_bytes(const plan *p, int64_t pieces)
{
    return pieces * tni_packed_size(p->step_n, p->step_k) * tni_packed_item(p->g->dtype);
}

/* Where the packed B [k0 on, s on] of a piece begins: one of the two is 0. */
static int64_t packed_at(const plan *p, int64_t k0, int64_t s)
{
    return packed_bytes(p, k0 / p->step_k + s / p->step_n);
}

/* Element (r, c) of an operand's matrix number `batch`; an empty sum has no operands. */
static const char *at(const plan *p, const operand *o, int64_t batch, int64_t r, int64_t c)
{
    if (!o->data) return NULL;
    return o->data +
           (batch * o->batch + (o->trans ? c * o->ld + r : r * o->ld + c)) * (int64_t)p->item;
}

/* Bytes of an element of a part's sum. */
static int part_item(const tni_gemm *g)
{
    return g->dtype == TN_F64 ? 8 : 4;
}

/* The product of tile [r, r + m) x [s, s + n), over [k0, k0 + k) of the inner axis, as choose.c
 * takes it. */
static tni_product piece(const plan *p, int64_t batch, int64_t r, int64_t m, int64_t s, int64_t n,
                         int64_t k0, int64_t k)
{
    const tni_gemm *g = p->g;
    tni_product t = { .m = m, .n = n, .k = k, .in = g->dtype, .out = p->out };
    t.lda = p->a.ld, t.ldb = p->b.ld, t.ldc = g->c_row;
    t.ta = p->a.trans, t.tb = p->b.trans, t.accumulate = g->accumulate;
    t.a = at(p, &p->a, batch, r, k0), t.b = at(p, &p->b, batch, k0, s);
    if (g->bias) t.bias = (const char *)g->bias + s * (int64_t)p->c_item;
    if (g->c) t.c = (char *)g->c + (batch * g->c_batch + r * g->c_row + s) * (int64_t)p->c_item;
    if (g->packed) t.packed = (const char *)g->packed + packed_at(p, k0, s);
    return t;
}

/* Whether it is BLAS's product of a matrix and a vector. */
static bool is_thin(const tni_gemm *g)
{
    return !tni_is_half(g->dtype) && (g->m == 1 || g->n == 1);
}

static void compute(const plan *p, const tni_product *piece)
{
    if (is_thin(p->g) && !p->few)
        tni_product_thin(piece);
    else if (!tni_product_one(piece))
        atomic_store_explicit(p->undone, true, memory_order_relaxed);
}

/* Items: batch x tiles_m x tiles_n. */
static void run_tiles(void *context, int64_t begin, int64_t end)
{
    const plan *p = context;
    const tni_gemm *g = p->g;
    int64_t tiles = p->tiles_m * p->tiles_n;
    for (int64_t i = begin; i < end; i++) {
        int64_t batch = i, r = 0, s = 0;
        if (tiles > 1) {
            batch = i / tiles;
            r = i % tiles / p->tiles_n * p->step_m;
            s = i % tiles % p->tiles_n * p->step_n;
        }
        tni_product tile = piece(p, batch, r, TNI_MIN(p->step_m, g->m - r), s,
                                 TNI_MIN(p->step_n, g->n - s), 0, g->k);
        compute(p, &tile);
    }
}

/* Items: parts of the inner axis. In f32 and f64 part 0 goes into C, each other part into a C of
 * its own; if C is bf16 or f16, all parts are f32, part 0 too. */
static void run_parts(void *context, int64_t begin, int64_t end)
{
    const plan *p = context;
    const tni_gemm *g = p->g;
    bool own_first = !tni_is_half(p->out);
    for (int64_t i = begin; i < end; i++) {
        int64_t k0 = i * p->step_k;
        tni_product part = piece(p, 0, 0, g->m, 0, g->n, k0, TNI_MIN(p->step_k, g->k - k0));
        if (i > 0 || !own_first) {
            if (!own_first) part.out = TN_F32;
            part.bias = NULL;
            part.accumulate = false;
            part.c = p->partial + (i - own_first) * g->m * g->n * part_item(g);
            part.ldc = g->n;
        }
        compute(p, &part);
    }
}

/* Items: rows of C, which receive the parts in index order. */
static void sum_parts(void *context, int64_t begin, int64_t end)
{
    const plan *p = context;
    const tni_gemm *g = p->g;
    for (int64_t i = 1; i < p->parts; i++)
        for (int64_t r = begin; r < end; r++) {
            const char *x = p->partial + ((i - 1) * g->m + r) * g->n * part_item(g);
            char *c = (char *)g->c + r * g->c_row * (int64_t)p->c_item;
            if (p->out == TN_F32)
                for (int64_t j = 0; j < g->n; j++) ((float *)c)[j] += ((const float *)x)[j];
            else
                for (int64_t j = 0; j < g->n; j++) ((double *)c)[j] += ((const double *)x)[j];
        }
}

/* The same into bf16 or f16, rounded once. */
static void round_parts(void *context, int64_t begin, int64_t end)
{
    const plan *p = context;
    const tni_gemm *g = p->g;
    const uint16_t *bias = g->bias;
    for (int64_t r = begin; r < end; r++) {
        float *restrict sum = (float *)p->partial + r * g->n;
        uint16_t *restrict c = (uint16_t *)g->c + r * g->c_row;
        for (int64_t i = 1; i < p->parts; i++) {
            const float *restrict x = sum + i * g->m * g->n;
            for (int64_t j = 0; j < g->n; j++) sum[j] += x[j];
        }
        if (p->out == TN_BF16) {
            for (int64_t j = 0; bias && j < g->n; j++) sum[j] += tn_from_bf16(bias[j]);
            for (int64_t j = 0; j < g->n; j++) c[j] = tn_to_bf16(sum[j]);
        } else {
            for (int64_t j = 0; bias && j < g->n; j++) sum[j] += tn_from_f16(bias[j]);
            for (int64_t j = 0; j < g->n; j++) c[j] = tn_to_f16(sum[j]);
        }
    }
}

static tn_status run(plan *p)
{
    const tni_gemm *g = p->g;
    double work = (double)p->step_m * (double)p->step_n * (double)g->k;
    int64_t grain = work >= 65536 || p->parts > 1 ? 1 : (int64_t)(65536 / work) + 1;
    int64_t pieces = p->parts > 1 ? p->parts : g->batch * p->tiles_m * p->tiles_n;
    int workers = tni_workers(pieces, grain), most = (int)TNI_MIN(workers, pieces);
    if (!tni_is_half(g->dtype) && tni_blas_room(most) != TN_OK) return TN_E_NOMEM;
    if (p->parts > 1) {
        bool own_first = !tni_is_half(p->out);
        size_t size = (size_t)(p->parts - own_first) * (size_t)g->m * (size_t)g->n * part_item(g);
        TNI_ITEMS(char, partial, size);
        if (!(p->partial = partial)) return TN_E_NOMEM;
        tni_parallel_workers(workers, pieces, grain, run_parts, p);
        if (!*p->undone)
            tni_parallel(g->m, TNI_MAX(1, 8192 / g->n), own_first ? sum_parts : round_parts, p);
        return TN_OK;
    }
    tni_parallel_workers(workers, pieces, grain, run_tiles, p);
    return TN_OK;
}

/* k = 0: an empty sum. */
static void run_empty(void *context, int64_t begin, int64_t end)
{
    const plan *p = context;
    for (int64_t i = begin; i < end; i++) {
        tni_product row = piece(p, i / p->g->m, i % p->g->m, 1, 0, p->g->n, 0, 0);
        tni_product_start(&row, true);
    }
}

static tn_dtype out_of(const tni_gemm *g)
{
    return g->sums_f32 && tni_is_half(g->dtype) ? TN_F32 : g->dtype;
}

/* Sets done to false when pieces are missing, which happens for bf16 and f16 alone. */
static tn_status gemm(const tni_gemm *g, bool *done)
{
    if (g->m == 0 || g->n == 0 || g->batch == 0) return TN_OK;
    atomic_bool undone = false;
    tn_dtype out = out_of(g);
    plan p = { .g = g,
               .item = tn_dtype_size(g->dtype),
               .c_item = tn_dtype_size(out),
               .out = out,
               .undone = &undone };
    if (g->k == 0) {
        tni_parallel(g->batch * g->m, TNI_MAX(1, 16384 / g->n), run_empty, &p);
        return TN_OK;
    }
    if (g->n > INT_MAX || g->k > INT_MAX || (g->m > 1 && g->c_row > INT_MAX))
        return tni_error(TN_E_UNSUPPORTED,
                         "gemm: [%" PRId64 ",%" PRId64 "] times [%" PRId64 ",%" PRId64
                         "], rows of C %" PRId64 " apart: BLAS takes at most %d columns",
                         g->m, g->k, g->k, g->n, g->c_row, INT_MAX);
    tni_gemm one = *g;
    if (g->m == 1) one.c_row = g->n;
    p.g = &one;
    tn_status status =
        operand_init(&p.a, g->dtype, g->a, g->m, g->k, g->a_row, g->a_col, g->a_batch, g->batch);
    if (status == TN_OK)
        status = operand_init(&p.b, g->dtype, g->b, g->k, g->n, g->b_row, g->b_col, g->b_batch,
                              g->batch);
    if (status == TN_OK) {
        plan_cut(&p, g->packed);
        status = run(&p);
    }
    tni_free(p.a.copy, p.a.copy_size);
    tni_free(p.b.copy, p.b.copy_size);
    if (status == TN_OK && undone && g->accumulate) /* some of C has its sum, so not once more */
        return tni_error(TN_E_NOMEM, "gemm: no memory to pack an operand of a product");
    if (status == TN_OK && undone) *done = false;
    return status;
}

tn_status tni_gemm_cut(const tni_gemm *g)
{
    bool done;
    if (g->dtype != TN_F32 && g->dtype != TN_F64)
        return tni_error(TN_E_UNSUPPORTED, "gemm: dtype %s on the CPU: want f32 or f64",
                         tn_dtype_name(g->dtype));
    return gemm(g, &done);
}

/* bf16 and f16 without whole copies in f32, where there is such a product; done says whether. */
static tn_status gemm_half(const tni_gemm *g, bool *done)
{
    bool few = tni_few_fits(g->dtype, g->a_col != 1, g->b_row == 1, g->m, g->n, g->k);
    bool can = few || (g->dtype == TN_BF16 && tni_product_bf16()) ||
               (tni_tile_fits(g->dtype, false, g->m, g->n, g->k) &&
                (g->sums_f32 || g->k <= TNI_TILE_ROUNDED || in_parts(g)));
    *done = can && (!g->accumulate || g->sums_f32);
    return *done ? gemm(g, done) : TN_OK;
}

tn_status tni_cpu_gemm(const tni_gemm *g)
{
    bool done;
    if (!tni_is_half(g->dtype)) return tni_gemm_by_small(g) ? TN_OK : tni_gemm_cut(g);
    tn_status status = gemm_half(g, &done);
    return status != TN_OK || done ? status : tni_half_gemm(g);
}

/* ---- B packed once for many products --------------------------------------------------------- */

/* B of a piece; there is no A nor C yet. */
static tni_product piece_of_b(const plan *p, int64_t k0, int64_t s)
{
    const tni_gemm *g = p->g;
    return piece(p, 0, 0, TNI_MIN(p->step_m, g->m), s, TNI_MIN(p->step_n, g->n - s), k0,
                 TNI_MIN(p->step_k, g->k - k0));
}

/* Items: tiles of columns, or parts of the inner axis, of B. */
static void pack_pieces(void *context, int64_t begin, int64_t end)
{
    const plan *p = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t s = i % p->tiles_n * p->step_n, k0 = i / p->tiles_n * p->step_k;
        tni_product piece = piece_of_b(p, k0, s);
        tni_product_pack(&piece, p->partial + packed_at(p, k0, s));
    }
}

int64_t tni_cpu_gemm_pack(const tni_gemm *g, void *to)
{
    plan p = { .g = g, .b.data = g->b, .item = tn_dtype_size(g->dtype), .out = out_of(g) };
    p.partial = to;
    if (g->batch != 1 || g->m == 0 || g->n == 0 || g->k == 0 || is_thin(g)) return 0;
    if (!blas_layout(g->k, g->n, g->b_row, g->b_col, &p.b)) return 0;
    plan_cut(&p, true);
    tni_product first = piece_of_b(&p, 0, 0);
    if (!tni_product_packs(&first)) return 0;
    int64_t pieces = p.tiles_n * p.parts;
    if (to) tni_parallel(pieces, 1, pack_pieces, &p);
    return packed_bytes(&p, pieces) / (int64_t)p.item;
}

/* ---- few rows by bytes, along the columns (few.c) -------------------------------------------- */

/* Rows up to which that is faster than writing B as floats. */
enum { FEW_ROWS_BYTES = 64 };

typedef struct bytes_job {
    const tni_gemm *g;
    int64_t groups;
    atomic_bool undone;
} bytes_job;

static void columns_of_bytes(void *context, int64_t begin, int64_t end)
{
    bytes_job *job = context;
    const tni_gemm *g = job->g;
    const int64_t at = begin * (int64_t)tn_dtype_size(g->dtype);
    tni_product p = { .m = g->m, .n = end - begin, .k = g->k, .groups = job->groups, .tb = true };
    p.in = p.out = g->dtype;
    p.lda = g->a_row, p.ldb = g->b_col, p.ldc = g->c_row;
    p.a = g->a, p.b = (const char *)g->b + begin * g->b_col;
    p.bias = g->bias ? (const char *)g->bias + at : NULL;
    p.c = (char *)g->c + at;
    if (!tni_few_product(&p)) atomic_store_explicit(&job->undone, true, memory_order_relaxed);
}

bool tni_cpu_few_bytes(const tni_gemm *g, int64_t groups)
{
    bytes_job job = { .g = g, .groups = groups };
    if (g->m > FEW_ROWS_BYTES || !tni_has_tiles() || (g->dtype != TN_F32 && g->dtype != TN_BF16))
        return false;
    const int64_t grain = TNI_MAX(g->n / 32, 65536 / g->k) + 1; /* A is copied for each chunk */
    tni_parallel(g->n, tni_up(grain, 4), columns_of_bytes, &job);
    return !job.undone;
}

/* ---- what a thread keeps --------------------------------------------------------------------- */

/* Memory that each thread keeps, since most products are computed inside chunks. */
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key;
static bool has_scratch_key;

static void make_scratch_key(void)
{
    has_scratch_key = pthread_key_create(&scratch_key, free) == 0;
}

void *tni_thread_scratch(void)
{
    pthread_once(&scratch_once, make_scratch_key);
    if (!has_scratch_key) return NULL;
    void *scratch = pthread_getspecific(scratch_key);
    if (scratch) return scratch;
    scratch = aligned_alloc(4096, TNI_PRODUCT_SCRATCH);
    if (scratch && pthread_setspecific(scratch_key, scratch) != 0) {
        free(scratch);
        scratch = NULL;
    }
    return scratch;
}
