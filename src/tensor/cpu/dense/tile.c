/*
 * tile.c - one matrix product on one thread, with sums in f32: C (+)= op(A) op(B) (+ bias).
 *
 * A tile of C, at most ROWS rows of a strip of two vectors, is summed up in registers: each step
 * along the inner axis loads a row of the strip of B, and multiplies it by each element of a column
 * of A. What tiles read is packed first, so that it lies in memory in the order in which it is
 * read:
 *   - a block of B, DEPTH steps and many strips, which stays in the L2 cache: strips of [k, STRIP]
 *   - panels of A, DEPTH steps and at most ROWS rows, each of which stays in the L1 cache while the
 *     strips pass: by rows where A is stored by rows, or by columns
 * Packing turns bf16 and f16 into f32, and transposes B if it is stored by columns. So a product
 * takes about as long in all layouts and dtypes, except that a bf16 or f16 C with a long inner axis
 * (from 3,000 on) has narrow blocks. Source: Goto and van de Geijn, Anatomy of High-Performance
 * Matrix Multiplication (2008), section 5, with A and B exchanged since C is row-major. A B^T of
 * few columns is summed up without packing. The bits depend on the sizes and layouts alone.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/dense/vector.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/internal.h"

/* Not in the baseline, where OpenBLAS may use AVX, which this code could not; but where there is no
 * OpenBLAS. */
#if defined __AVX2__ || defined TNI_PLAIN

/* ROWS of a tile: with two vectors each, all but four of the registers. Up to DIRECT rows of C, B
 * is read in place, since it is not read often enough to be packed, and fetched DIRECT_AHEAD rows
 * ahead. If B's rows lie a multiple of SET bytes apart (AVX-512: never), they share a set of the L1
 * cache and push each other out: then the limit is two tiles. STEPS in a round of the loop. */
#if defined __AVX512F__
enum { ROWS = 14, DIRECT = 128, SET = 1 << 30, DIRECT_AHEAD = 8, STEPS = 1 };
#elif defined TNI_PLAIN && !defined __AVX2__
enum { ROWS = 4, DIRECT = 64, SET = 4096, DIRECT_AHEAD = 4, STEPS = 4 };
#else
enum { ROWS = 6, DIRECT = 64, SET = 4096, DIRECT_AHEAD = 4, STEPS = 4 };
#endif
/* Steps along the inner axis, and columns, of a block. Panels that are packed at a time where A is
 * stored by columns: pieces of its rows of 448 bytes (AVX2: 192). */
enum { DEPTH = 384, WIDTH = 512, PANELS = 8 };
/* How far ahead memory is fetched: rows of a strip; rows of B; rows of A's columns. Elements of a
 * line of the cache. */
enum { STRIP_AHEAD = 8, B_AHEAD = 2, A_AHEAD = 8, LINE = 16 };
/* A thread's memory, in elements. All panels would begin in the same set of the L1 cache if their
 * size were a multiple of 4 KiB. */
enum {
    PANEL = DEPTH * LANES + 32,
    A_SIZE = PANELS * PANEL,
    B_SIZE = DEPTH * WIDTH,
    SUMS = PANELS * ROWS * WIDTH,
    ROOM = DEPTH * LANES,
    SCRATCH = A_SIZE + B_SIZE + SUMS + ROOM + WIDTH
};
_Static_assert(SCRATCH * sizeof(float) <= TNI_PRODUCT_SCRATCH, "what a thread keeps for products");
_Static_assert((int)ROWS <= (int)LANES, "a column of a panel of A that is stored by columns");

typedef struct sgemm {
    const tni_product *p;
    int64_t height;       /* rows of a panel */
    int64_t depth, width; /* of blocks, at most */
    bool direct;          /* whole strips of B are read where they are */
    const float *packed;  /* all of B, or NULL */
    bool rounded;         /* C is bf16 or f16: sums are rounded when they are whole */
    float *a, *b, *sums, *room, *bias;
} sgemm;

/* ---- a tile ---------------------------------------------------------------------------------- */

/* C = A B + from. ldb: of a B that is read where it is. */
typedef struct tile {
    int64_t k;
    const float *a, *b, *from;
    int64_t ldb, ld_from;
    float *c;
    int64_t ldc;
} tile;

/* A step: a column of A, whose elements are row apart, by a row of B. */
TNI_INLINE void multiply(vector sum[ROWS][VECTORS], int rows, const float *a, int64_t row,
                         const float *b, int64_t ahead)
{
    vector x[VECTORS];
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
        if (v * LANES % LINE == 0) __builtin_prefetch(b + ahead + v * LANES);
        x[v] = *(const vector *)(b + v * LANES);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) sum[r][v] += a[r * row] * x[v];
    }
    /* gcc 12 would load for later steps now, and have no registers left for sums */
    if (STEPS > 1) __asm__ volatile("" ::: "memory");
}

/* Element (r, i) of the panel is a[r * row + i * col]. Where loops are not unrolled, gcc 12 keeps
 * the sums in memory before and after the loop over the steps. */
TNI_INLINE void sum_up(const tile *t, int rows, int64_t row, int64_t col, int64_t ldb,
                       int64_t ahead)
{
    vector sum[ROWS][VECTORS];
    const float *a = t->a, *b = t->b, *from = t->from;
    float *c = t->c;
    int64_t k = t->k, ldc = t->ldc, ld_from = t->ld_from;
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) {
            if (v * LANES % LINE == 0) __builtin_prefetch(c + r * ldc + v * LANES, 1);
            sum[r][v] = (vector){ 0 };
        }
    }
    for (int64_t i = 0; i + STEPS <= k; i += STEPS, a += STEPS * col, b += STEPS * ldb) {
        UNROLL
        for (int s = 0; s < STEPS; s++) multiply(sum, rows, a + s * col, row, b + s * ldb, ahead);
    }
    for (int64_t i = k / STEPS * STEPS; STEPS > 1 && i < k; i++, a += col, b += ldb)
        multiply(sum, rows, a, row, b, ahead);
    UNROLL
    for (int r = 0; r < rows; r++, c += ldc, from += ld_from) {
        UNROLL
        for (int v = 0; v < VECTORS; v++)
            *(vector *)(c + v * LANES) = sum[r][v] + *(const vector *)(from + v * LANES);
    }
}

/* Code for each layout of A and B, and for each number of rows. */
/* clang-format off */
#define CASE(rows, ...) case rows: if (rows <= ROWS) sum_up(t, rows, __VA_ARGS__); break;
#define CASES(...)                                                                                 \
    CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__) CASE(4, __VA_ARGS__)            \
    CASE(5, __VA_ARGS__) CASE(6, __VA_ARGS__) CASE(7, __VA_ARGS__) CASE(8, __VA_ARGS__)            \
    CASE(9, __VA_ARGS__) CASE(10, __VA_ARGS__) CASE(11, __VA_ARGS__) CASE(12, __VA_ARGS__)         \
    CASE(13, __VA_ARGS__) CASE(14, __VA_ARGS__)
#define TILES(name, ...)                                                                           \
    static void name(const tile *t, int64_t rows) { switch (rows) { CASES(__VA_ARGS__) } }
TILES(rows_by_strips, DEPTH, 1, STRIP, STRIP_AHEAD * STRIP)
TILES(columns_by_strips, 1, LANES, STRIP, STRIP_AHEAD * STRIP)
TILES(rows_by_rows, DEPTH, 1, t->ldb, DIRECT_AHEAD * t->ldb)
TILES(columns_by_rows, 1, LANES, t->ldb, DIRECT_AHEAD * t->ldb)
/* clang-format on */

/* ---- packing --------------------------------------------------------------------------------- */

/* Into the caches. Rows are far apart, so the processor cannot guess which comes next. */
static inline void fetch(const sgemm *s, const void *operand, int64_t at, int64_t n)
{
    int64_t size = s->p->in == TN_F32 ? sizeof(float) : sizeof(uint16_t);
    for (int64_t i = 0; i < n * size; i += 64)
        __builtin_prefetch((const char *)operand + at * size + i);
}

/* Steps [k0, k0 + k) of panels of rows [r0, r0 + rows). */
static void pack_a(const sgemm *s, int64_t k0, int64_t k, int64_t r0, int64_t rows)
{
    const tni_product *p = s->p;
    for (int64_t r = 0; !p->ta && r < rows; r++) {
        float *to = s->a + r / s->height * PANEL + r % s->height * DEPTH;
        const float *from = tni_get(p->a, p->in, (r0 + r) * p->lda + k0, k, to);
        if (from != to) memcpy(to, from, (size_t)k * sizeof(float));
    }
    for (int64_t i = 0; p->ta && i < k; i++) {
        int64_t at = (k0 + i) * p->lda + r0;
        float *to = s->a + i * LANES;
        const float *from = tni_get(p->a, p->in, at, rows, s->room);
        fetch(s, p->a, at + A_AHEAD * p->lda, rows);
        for (int64_t r = 0; r < rows; r += s->height, to += PANEL)
            if (r + LANES <= rows)
                *(vector *)to = *(const vector *)(from + r);
            else
                memcpy(to, from + r, (size_t)TNI_MIN(s->height, rows - r) * sizeof(float));
    }
}

/* Columns [first, n) of the block of B that begins at (k0, n0) and has n columns: as strips, the
 * last one filled up with zeros. */
static void pack_b_rows(const sgemm *s, int64_t k0, int64_t k, int64_t n0, int64_t first, int64_t n,
                        float *to)
{
    const tni_product *p = s->p;
    int64_t at = k0 * p->ldb + n0 + first;
    if (first == n) return;
    for (int64_t i = 0; i < k; i++, at += p->ldb) {
        const float *from = tni_get(p->b, p->in, at, n - first, s->room);
        float *strip = to + first * k + i * STRIP;
        fetch(s, p->b, at + B_AHEAD * p->ldb, n - first);
        for (int64_t j = first; j < n; j += STRIP, from += STRIP, strip += k * STRIP) {
            if (n - j >= STRIP) {
                for (int v = 0; v < VECTORS; v++)
                    *(vector *)(strip + v * LANES) = *(const vector *)(from + v * LANES);
            } else {
                memset(strip, 0, STRIP * sizeof(float));
                memcpy(strip, from, (size_t)(n - j) * sizeof(float));
            }
        }
    }
}

/* The same for all columns of a B that is stored by columns. */
static void pack_b_columns(const sgemm *s, int64_t k0, int64_t k, int64_t n0, int64_t n, float *to)
{
    const tni_product *p = s->p;
    for (int64_t j = 0; j < tni_up(n, STRIP); j += LANES) {
        float *strip = to + j / STRIP * STRIP * k + j % STRIP;
        int64_t columns = TNI_MIN(LANES, TNI_MAX(n - j, 0)), ld = p->ldb;
        int64_t whole = columns < LANES ? 0 : k / LANES * LANES;
        const float *from = (const float *)p->b + (n0 + j) * ld + k0;
        if (p->in != TN_F32) {
            ld = DEPTH;
            from = s->room;
            for (int64_t c = 0; c < columns; c++)
                tni_get(p->b, p->in, (n0 + j + c) * p->ldb + k0, k, s->room + c * ld);
        }
        for (int64_t i = 0; i < whole; i += LANES)
            transpose_block(from + i, ld, strip + i * STRIP, STRIP);
        for (int64_t i = whole; i < k; i++)
            for (int64_t c = 0; c < LANES; c++)
                strip[i * STRIP + c] = c < columns ? from[c * ld + i] : 0;
    }
}

static void pack_b(const sgemm *s, int64_t k0, int64_t k, int64_t n0, int64_t n, float *to)
{
    if (s->p->tb)
        pack_b_columns(s, k0, k, n0, n, to);
    else
        pack_b_rows(s, k0, k, n0, s->direct ? n / STRIP * STRIP : 0, n, to);
}

/* Where a block begins in a packed B: all blocks of a depth, one after another. */
static int64_t packed_at(const tni_product *p, int64_t k0, int64_t k, int64_t n0)
{
    return k0 * tni_up(p->n, STRIP) + k * n0;
}

/* ---- few columns, where both operands lie along the steps: nothing is packed ----------------- */

/* A square of C, HEIGHT rows by FEW columns, has as many sums as a vector has lanes. */
enum { FEW = 4, HEIGHT = LANES / FEW };

/* The square of C at (r0, j0): all sums along a row of A and a column of B, a vector of steps at a
 * time. What is beyond C's edges repeats its last row and column. */
static void sum_square(const tni_product *p, int64_t r0, int64_t j0)
{
    const float *a[HEIGHT], *b[FEW], *bias = p->bias;
    vector sum[LANES] = { 0 }, x[FEW];
    for (int r = 0; r < HEIGHT; r++)
        a[r] = (const float *)p->a + TNI_MIN(r0 + r, p->m - 1) * p->lda;
    for (int c = 0; c < FEW; c++) b[c] = (const float *)p->b + TNI_MIN(j0 + c, p->n - 1) * p->ldb;
    for (int64_t i = 0; i < p->k; i += LANES) {
        UNROLL
        for (int c = 0; c < FEW; c++) x[c] = *(const vector *)(b[c] + i);
        UNROLL
        for (int r = 0; r < HEIGHT; r++) {
            UNROLL
            for (int c = 0; c < FEW; c++) sum[FEW * r + c] += *(const vector *)(a[r] + i) * x[c];
        }
    }
    float *c = (float *)p->c + r0 * p->ldc + j0, sums[LANES];
    add_lanes(sum, sums);
    for (int64_t r = 0; r < TNI_MIN(HEIGHT, p->m - r0); r++, c += p->ldc)
        for (int64_t j = 0; j < TNI_MIN(FEW, p->n - j0); j++)
            c[j] = sums[FEW * r + j] + (p->accumulate ? c[j] : bias ? bias[j0 + j] : 0);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Fetches one of `parts` parts of the panel of A that begins at row r0: it is packed next, unless
 * there are more steps. Not where A is stored by columns: these lie in few sets of a cache. */
static void fetch_part(const sgemm *s, int64_t k0, int64_t k, int64_t r0, int64_t part,
                       int64_t parts)
{
    int64_t end = s->p->ta ? 0 : TNI_MIN(r0 + s->height, s->p->m);
    for (int64_t r = r0 + part; r < end; r += parts) fetch(s, s->p->a, r * s->p->lda + k0, k);
}

/* Steps [k0, k0 + k) of rows [r0, r0 + rows) and columns [n0, n0 + n); these of B are at b. */
static void multiply_panels(const sgemm *s, int64_t k0, int64_t k, int64_t r0, int64_t rows,
                            int64_t n0, int64_t n, const float *b)
{
    const tni_product *p = s->p;
    bool add = k0 > 0 || p->accumulate;
    for (int64_t r = 0; r < rows; r += s->height) {
        int64_t height = TNI_MIN(s->height, rows - r);
        for (int64_t j = 0; j < n; j += STRIP) {
            float edge[ROWS * STRIP];
            float *c =
                s->rounded ? s->sums + r * WIDTH + j : (float *)p->c + (r0 + r) * p->ldc + n0 + j;
            int64_t columns = TNI_MIN(n - j, STRIP), ldc = s->rounded ? WIDTH : p->ldc;
            bool direct = s->direct && columns == STRIP, cut = columns < STRIP && !s->rounded;
            tile t = { .k = k,
                       .a = s->a + r / s->height * PANEL,
                       .b = direct ? (const float *)p->b + k0 * p->ldb + n0 + j : b + j * k,
                       .ldb = p->ldb,
                       .c = cut ? edge : c,
                       .ldc = cut ? STRIP : ldc };
            t.from = add ? t.c : s->bias + j;
            t.ld_from = add ? t.ldc : 0;
            for (int64_t i = 0; cut && add && i < height; i++)
                memcpy(edge + i * STRIP, c + i * ldc, (size_t)columns * sizeof(float));
            fetch_part(s, k0, k, r0 + rows, j / STRIP, (n - 1) / STRIP + 1);
            if (direct)
                (p->ta ? columns_by_rows : rows_by_rows)(&t, height);
            else
                (p->ta ? columns_by_strips : rows_by_strips)(&t, height);
            for (int64_t i = 0; cut && i < height; i++)
                memcpy(c + i * ldc, edge + i * STRIP, (size_t)columns * sizeof(float));
        }
    }
}

/* Steps [k0, k0 + k) of columns [n0, n0 + n). */
static void multiply_block(const sgemm *s, int64_t k0, int64_t k, int64_t n0, int64_t n)
{
    const tni_product *p = s->p;
    int64_t most = p->ta ? PANELS * s->height : s->height, strips = (n + STRIP - 1) / STRIP;
    const float *b = s->packed ? s->packed + packed_at(p, k0, k, n0) : s->b;
    for (int64_t i = 0; i < k && !s->packed; i += s->depth)
        pack_b(s, k0 + i, TNI_MIN(s->depth, k - i), n0, n, s->b + i * strips * STRIP);
    memset(s->bias, 0, WIDTH * sizeof(float));
    if (p->bias && k0 == 0)
        memcpy(s->bias, tni_get(p->bias, p->in, n0, n, s->room), (size_t)n * sizeof(float));
    for (int64_t r = 0; r < p->m; r += most) {
        int64_t rows = TNI_MIN(most, p->m - r);
        for (int64_t i = 0; i < k; i += s->depth) {
            int64_t steps = TNI_MIN(s->depth, k - i);
            pack_a(s, k0 + i, steps, r, rows);
            multiply_panels(s, k0 + i, steps, r, rows, n0, n, b + i * strips * STRIP);
        }
        for (int64_t i = 0; s->rounded && i < rows; i++)
            TNI_STORE(TN_F32, n, (uint16_t *)p->c + (r + i) * p->ldc + n0, p->out, 1,
                      s->sums + i * WIDTH);
    }
}

static int64_t depth_of(int64_t k)
{
    int64_t blocks = (k + DEPTH - 1) / DEPTH;
    return (k + blocks - 1) / blocks;
}

void K(tni_tile_pack)(const tni_product *p, void *to)
{
    sgemm s = { .p = p, .depth = depth_of(p->k) };
    for (int64_t k0 = 0; k0 < p->k; k0 += s.depth)
        for (int64_t n0 = 0; n0 < p->n; n0 += WIDTH) {
            int64_t k = TNI_MIN(s.depth, p->k - k0);
            pack_b(&s, k0, k, n0, TNI_MIN(WIDTH, p->n - n0), (float *)to + packed_at(p, k0, k, n0));
        }
}

bool K(tni_tile_product)(const tni_product *p)
{
    bool rounded = p->out != TN_F32;
    if (p->m == 0 || p->k == 0 || (rounded && p->k > TNI_TILE_ROUNDED)) return false;
    if (p->accumulate && (rounded || p->bias)) return false;
    if (tni_tile_few(p)) {
        for (int64_t r = 0; r < p->m; r += HEIGHT)
            for (int64_t j = 0; j < p->n; j += FEW) sum_square(p, r, j);
        return true;
    }
    int64_t panels = (p->m + ROWS - 1) / ROWS;
    sgemm s = { .p = p,
                .height = (p->m + panels - 1) / panels,
                .depth = depth_of(p->k),
                /* all steps of a block of B at once */
                .width = rounded ? TNI_MIN(WIDTH, B_SIZE / p->k / STRIP * STRIP) : WIDTH,
                .direct = !p->tb && p->in == TN_F32 && p->m <= DIRECT && !p->packed &&
                          (p->m <= 2 * ROWS || p->ldb % (SET / (int64_t)sizeof(float)) != 0),
                .packed = p->in == TN_F32 && !rounded ? p->packed : NULL,
                .rounded = rounded };
    s.a = tni_thread_scratch();
    if (!s.a) return false;
    s.b = s.a + A_SIZE;
    s.sums = s.b + B_SIZE;
    s.room = s.sums + SUMS;
    s.bias = s.room + ROOM;
    int64_t step = rounded ? p->k : s.depth;
    for (int64_t k0 = 0; k0 < p->k; k0 += step)
        for (int64_t n0 = 0; n0 < p->n; n0 += s.width)
            multiply_block(&s, k0, TNI_MIN(step, p->k - k0), n0, TNI_MIN(s.width, p->n - n0));
    return true;
}

#endif
