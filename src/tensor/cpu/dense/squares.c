/*
 * squares.c - one matrix product of bf16, with AMX also of f32, on one thread, by products of
 * tiles: C (+)= op(A) op(B) (+ bias), with sums in f32.
 *
 * C is computed in squares of four tiles (squares.h). Operands are packed first, tile by tile; a
 * step is an index along the inner axis:
 *   - all steps of a block of B's columns, which stays in the L2 cache: strips of 32 columns
 *   - a panel of A, 32 rows and some steps, which stays in the L1 cache while the strips pass
 * Where the rows of an operand run along the steps, A is copied, and B transposed in pairs. Where
 * they run across the steps, A is transposed, and B's rows are interleaved two by two. (f32 is
 * transposed before it is split into parts.)
 *
 * An f32 is packed as three bf16, x = x0 + x1 + x2: the nearest to x, the nearest to x - x0, and
 * what is left, which has at most 8 of the 24 bits. So nothing is lost, as long as no part is a
 * denormal number, which AMX takes for 0 (from |x| = 2^-103 on none is), and no product of parts
 * becomes one (from 2^-102 on that does not matter). Two such sums have nine products, of which the
 * six largest are added; the other three are at most 2^-24 of the result, as much as f32's own
 * rounding. A product of tiles adds up 16 steps on their own, twice, before it adds to C's sum, so
 * a long sum is rounded less often than in a loop over all steps. A sum that is not finite is
 * computed again in f32: infinity times a part that is 0 would be NaN, and the nearest bf16 to the
 * largest numbers is infinity. Source: Henry, Tang, Heinecke, Leveraging the bfloat16 Artificial
 * Intelligence Datatype For Higher-Precision Computations (2019).
 *
 * The bits depend on the sizes and C's dtype.
 */
#include "tensor/cpu/dense/squares.h"
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"
#include "tensor/math.h"

/* Elements and columns of a block of B; its steps where C can take sums in parts, for bf16 and for
 * f32, and where it can't. */
enum { B_SIZE = 1 << 19, WIDTH = 512, LONG = 2048, LONG_F32 = 512, ROUNDED = 4096 };
/* Steps of a panel, of bf16 and of f32; parts of an f32. */
enum { DEPTH = 256, DEPTH_F32 = 128, PARTS = TNI_AMX_PARTS };

typedef struct scratch {
    uint16_t b[B_SIZE], a[PARTS * SQUARE * DEPTH_F32], room[TILE];
    float sums[SQUARE * WIDTH], bias[WIDTH];
} scratch;

_Static_assert(DEPTH <= PARTS * DEPTH_F32, "a panel of bf16 has room");
_Static_assert(sizeof(scratch) <= TNI_PRODUCT_SCRATCH, "what a thread keeps for products");

typedef struct bgemm {
    const tni_product *p;
    scratch *s;
    uint16_t *room;    /* for a tile of bf16 */
    const uint16_t *b; /* the packed block */
    int64_t steps;     /* of k, in tiles */
    int64_t parts;     /* that an element is packed as: 1 or PARTS */
} bgemm;

static int64_t parts_of(const tni_product *p)
{
    return TNI_BY == TNI_AMX_TILES && p->in == TN_F32 ? PARTS : 1;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* 16 rows of 32 elements: the first n elements of the first `there` rows, zeros elsewhere. */
static inline void copy_rows(uint16_t *to, const uint16_t *from, int64_t ld, int64_t there,
                             int64_t n)
{
    __mmask32 mask = first(n);
    for (int64_t r = 0; r < SIDE; r++, to += STEPS)
        _mm512_store_si512(to, r < there ? _mm512_maskz_loadu_epi16(mask, from + r * ld)
                                         : _mm512_setzero_si512());
}

/* Pairs of rows: element j of row 2 i beside that of row 2 i + 1, for 16 columns. */
static inline void copy_pairs(uint16_t *to, const uint16_t *from, int64_t ld, int64_t there,
                              int64_t n)
{
    __mmask16 mask = (__mmask16)first(n);
    for (int64_t r = 0; r < STEPS; r += 2, to += STEPS) {
        __m256i none = _mm256_setzero_si256();
        __m256i low = r < there ? _mm256_maskz_loadu_epi16(mask, from + r * ld) : none;
        __m256i high = r + 1 < there ? _mm256_maskz_loadu_epi16(mask, from + (r + 1) * ld) : none;
        _mm512_store_si512(to, in_pairs(low, high));
    }
}

/* The parts of x, each the upper half of an f32. What lies halfway between two bf16 goes to the
 * larger one. */
static inline void split(__m512 x, __m512i part[PARTS])
{
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(-0x10000);
    for (int i = 0; i < PARTS - 1; i++) {
        part[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(part[i]));
    }
    part[PARTS - 1] = _mm512_castps_si512(x);
}

/* A row of a tile for each part: that part of 16 pairs of numbers. */
static inline void split_pairs(uint16_t *to, __m512 even, __m512 odd)
{
    const __m512i upper = _mm512_set1_epi32(-0x10000);
    __m512i low[PARTS], high[PARTS];
    split(even, low);
    split(odd, high);
    for (int i = 0; i < PARTS; i++, to += TILE)
        _mm512_store_si512(
            to, _mm512_or_si512(_mm512_srli_epi32(low[i], 16), _mm512_and_si512(high[i], upper)));
}

/* y [16, 16], rows ldy apart, = the transpose of x [rows, columns], with zeros beyond it. */
static inline void turn(float *y, int64_t ldy, const float *x, int64_t ld, int64_t rows,
                        int64_t columns)
{
    _Alignas(64) float edge[SIDE * SIDE];
    if (rows < SIDE || columns < SIDE) {
        for (int64_t r = 0; r < SIDE; r++)
            _mm512_store_ps(edge + r * SIDE,
                            r < rows ? _mm512_maskz_loadu_ps((__mmask16)first(columns), x + r * ld)
                                     : _mm512_setzero_ps());
        x = edge, ld = SIDE;
    }
    transpose_block(x, ld, y, ldy);
}

/* pack_tile of f32, into a tile for each part. The tiles of A and B have the same steps at the same
 * places, in another order: j beside j + 16, so that whole vectors of memory meet. */
static inline void split_tile(uint16_t *to, const float *from, int64_t ld, bool along,
                              int64_t there, int64_t steps, bool is_b)
{
    _Alignas(64) float turned[2 * SIDE * SIDE];
    int64_t halves = along ? SIDE : SIDE * ld; /* the second 16 steps */
    __mmask16 left = (__mmask16)first(is_b ? there : steps);
    __mmask16 right = (__mmask16)first(is_b ? there : steps - SIDE);
    int64_t rows = is_b ? steps : there, rows_right = is_b ? steps - SIDE : there;
    if (along == is_b) {
        for (int i = 0; i < 2; i++) {
            int64_t here = steps - i * SIDE;
            turn(turned + i * SIDE * SIDE, SIDE, from + i * halves, ld, along ? there : here,
                 along ? here : there);
        }
        from = turned, ld = SIDE, halves = SIDE * SIDE;
    }
    for (int64_t r = 0; r < SIDE; r++, to += STEPS) {
        const float *row = from + r * ld;
        __m512 none = _mm512_setzero_ps();
        split_pairs(to, r < rows ? _mm512_maskz_loadu_ps(left, row) : none,
                    r < rows_right ? _mm512_maskz_loadu_ps(right, row + halves) : none);
    }
}

/* The tile of `there` rows of A, or columns of B, at most 16, and at most 32 steps; along: the
 * steps lie next to each other. */
static inline void pack_tile(const bgemm *g, uint16_t *to, const void *from, int64_t ld, bool along,
                             int64_t there, int64_t steps, bool is_b)
{
    if (g->parts > 1) {
        split_tile(to, from, ld, along, there, steps, is_b);
        return;
    }
    uint16_t *first_to = along == is_b ? g->room : to;
    if (along)
        copy_rows(first_to, from, ld, there, steps);
    else
        copy_pairs(first_to, from, ld, steps, there);
    if (first_to != to) transpose_steps(to, first_to, STEPS);
}

/* `n` rows of A (or columns of B) from r on, steps [k0, k0 + k), as tiles: for each 32 steps the
 * first 16 of them, then the others, all parts of each. */
TNI_INLINE void pack(const bgemm *g, uint16_t *to, bool is_b, int64_t r, int64_t n, int64_t k0,
                     int64_t k)
{
    const tni_product *p = g->p;
    int64_t ld = is_b ? p->ldb : p->lda;
    bool along = is_b ? p->tb : !p->ta;
    int64_t item = (int64_t)tn_dtype_size(p->in), size = g->parts * TILE;
    for (int64_t i = 0; i < k; i += STEPS)
        for (int64_t half = 0; half < SQUARE; half += SIDE, to += size) {
            int64_t row = along ? r + half : k0 + i, column = along ? k0 + i : r + half;
            const char *from = (const char *)(is_b ? p->b : p->a) + (row * ld + column) * item;
            if (half < n)
                pack_tile(g, to, from, ld, along, TNI_MIN(n - half, SIDE), TNI_MIN(k - i, STEPS),
                          is_b);
            else
                memset(to, 0, (size_t)size * sizeof *to);
        }
}

/* ---- C --------------------------------------------------------------------------------------- */

/* Where a square goes: C's elements from `at` on, n columns. */
typedef struct place {
    const tni_product *p;
    const float *bias;
    int64_t at, n;
} place;

/* Row r of it = 32 sums + bias (+ C). */
static inline void finish(const place *to, int64_t r, __m512 s0, __m512 s1)
{
    const tni_product *p = to->p;
    __mmask16 left = (__mmask16)first(to->n), right = (__mmask16)first(to->n - SIDE);
    int64_t at = to->at + r * p->ldc;
    s0 = _mm512_add_ps(s0, _mm512_loadu_ps(to->bias));
    s1 = _mm512_add_ps(s1, _mm512_loadu_ps(to->bias + SIDE));
    if (p->out == TN_BF16) {
        store_rows((uint16_t *)p->c + at, 1, first(to->n), s0, s1);
        return;
    }
    float *c = (float *)p->c + at;
    if (p->accumulate) {
        s0 = _mm512_add_ps(s0, _mm512_maskz_loadu_ps(left, c));
        s1 = _mm512_add_ps(s1, _mm512_maskz_loadu_ps(right, c + SIDE));
    }
    _mm512_mask_storeu_ps(c, left, s0);
    _mm512_mask_storeu_ps(c + SIDE, right, s1);
}

/* ---- a square of C --------------------------------------------------------------------------- */

#if TNI_BY == TNI_AMX_TILES
/* One part of both tiles of A, or of B. */
static inline void load_a(const uint16_t *a, int part)
{
    _tile_loadd(4, a + part * TILE, TILE_ROW);
    _tile_loadd(5, a + (PARTS + part) * TILE, TILE_ROW);
}
static inline void load_b(const uint16_t *b, int part)
{
    _tile_loadd(6, b + part * TILE, TILE_ROW);
    _tile_loadd(7, b + (PARTS + part) * TILE, TILE_ROW);
}

/* add_step of f32: the six largest products, each of which has one part in common with the one
 * before. */
static inline void add_parts(const uint16_t *a, const uint16_t *b, bool lower)
{
    load_b(b, 0);
    load_a(a, 2);
    add_loaded(lower);
    load_a(a, 1);
    add_loaded(lower);
    load_b(b, 1);
    add_loaded(lower);
    load_a(a, 0);
    add_loaded(lower);
    load_b(b, 2);
    add_loaded(lower);
    load_b(b, 0);
    add_loaded(lower);
}
#endif

/* Two tiles of A for each of some steps; for dots as in memory, where rows lie along the steps. */
typedef struct panel {
    const uint16_t *a;
    int64_t row, next, step; /* bytes of a row; elements to the second tile, and to the next step */
} panel;

/* sums [32, 32] (+)= A B, over `steps` tiles; A has `rows` rows. to: where they go, or NULL; from
 * AMX's tiles they go by memory. */
static void multiply(float *sums, panel p, const uint16_t *b, int64_t steps, int64_t parts,
                     bool add, int64_t rows, const place *to)
{
    for (int64_t r = 0; r < rows; r += GROUP) {
        group g = load_group(add ? sums : NULL, r);
        for (int64_t i = 0, size = 2 * parts * TILE; i < steps; i++)
#if TNI_BY == TNI_AMX_TILES
            if (parts > 1)
                add_parts(p.a + i * size, b + i * size, rows > SIDE);
            else
#endif
                add_step(&g, r, rows, p.a + i * p.step, p.row, p.next, b + i * size, TILE_ROW,
                         TILE);
#if TNI_BY == TNI_DOTS
        UNROLL
        for (int64_t i = 0; to && i < GROUP; i++)
            if (r + i < rows) finish(to, r + i, g.sum[i][0], g.sum[i][1]);
        if (to) continue;
#endif
        store_group(&g, sums, r);
    }
    (void)to;
}

/* ---- of f32, sums that are not finite, once more --------------------------------------------- */

static inline __mmask16 not_finite(const float *x) /* of 16 */
{
    enum { QUIET_NAN = 0x01, INFINITE = 0x08, MINUS_INFINITE = 0x10 };
    return _mm512_fpclass_ps_mask(_mm512_loadu_ps(x), QUIET_NAN | INFINITE | MINUS_INFINITE);
}

/* Replaces sums of rows [r, r + rows) and columns [n0, n0 + n) that are not finite. Where there is
 * one, BLAS computes the square again, but only such sums are replaced. */
static void mend(const tni_product *p, float *sums, int64_t r, int64_t rows, int64_t n0, int64_t n)
{
    float plain[SUMS];
    tni_product square = *p;
    __mmask16 wrong = 0;
    for (int64_t j = 0; j < rows * SQUARE; j += SIDE) wrong |= not_finite(sums + j);
    if (!wrong) return;
    memset(plain, 0, sizeof plain);
    square.m = rows, square.n = n;
    square.a = (const float *)p->a + (p->ta ? r : r * p->lda);
    square.b = (const float *)p->b + (p->tb ? n0 * p->ldb : n0);
    square.c = plain, square.ldc = SQUARE;
    square.bias = NULL, square.accumulate = false;
    tni_blas_product(&square);
    for (int64_t j = 0; j < rows * SQUARE; j += SIDE)
        _mm512_mask_storeu_ps(sums + j, not_finite(sums + j), _mm512_loadu_ps(plain + j));
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Rows [r, r + rows), at most 32, of columns [n0, n0 + n), whose strips of B are packed. */
static void multiply_panel(const bgemm *g, int64_t r, int64_t rows, int64_t n0, int64_t n)
{
    scratch *s = g->s;
    int64_t k = g->p->k, most = g->parts == 1 ? DEPTH : DEPTH_F32, blocks = (k - 1) / most + 1;
    int64_t depth = ((k - 1) / blocks / STEPS + 1) * STEPS, lda = g->p->lda;
    bool as_it_is = TNI_BY == TNI_DOTS && !g->p->ta && k % STEPS == 0 && rows % GROUP == 0;
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
        int64_t here = TNI_MIN(depth, k - k0), steps = (here - 1) / STEPS + 1;
        panel a = { s->a, TILE_ROW, TILE, 2 * g->parts * TILE };
        if (as_it_is)
            a = (panel){ (const uint16_t *)g->p->a + r * lda + k0, 2 * lda, SIDE * lda, STEPS };
        else
            pack(g, s->a, false, r, rows, k0, here);
        for (int64_t j = 0; j < n; j += SQUARE) {
            float *sums = s->sums + j * SQUARE;
            int64_t tiles_before = (j / SQUARE * g->steps + k0 / STEPS) * 2 * g->parts;
            int64_t columns = TNI_MIN(n - j, SQUARE);
            place to = { g->p, s->bias + j, r * g->p->ldc + n0 + j, columns };
            multiply(sums, a, g->b + tiles_before * TILE, steps, g->parts, k0 > 0, rows,
                     k0 + here < k ? NULL : &to);
            if (TNI_BY == TNI_DOTS || k0 + here < k) continue;
            if (g->parts > 1) mend(g->p, sums, r, rows, n0 + j, columns);
            for (int64_t i = 0; i < rows; i++)
                finish(&to, i, _mm512_loadu_ps(sums + i * SQUARE),
                       _mm512_loadu_ps(sums + i * SQUARE + SIDE));
        }
    }
}

/* Columns [n0, n0 + n) of B, all steps. */
static void pack_b(const bgemm *g, uint16_t *to, int64_t n0, int64_t n)
{
    for (int64_t j = 0; j < n; j += SQUARE)
        pack(g, to + j * g->steps * STEPS * g->parts, true, n0 + j, TNI_MIN(n - j, SQUARE), 0,
             g->p->k);
}

static void multiply_block(bgemm *g, int64_t n0, int64_t n)
{
    scratch *s = g->s;
    const tni_product *p = g->p;
    g->b = s->b;
    if (p->packed)
        g->b = (const uint16_t *)p->packed + n0 * g->steps * STEPS * g->parts;
    else
        pack_b(g, s->b, n0, n);
    memset(s->bias, 0, sizeof s->bias);
    for (int64_t j = 0; p->bias && j < n; j++)
        s->bias[j] = p->in == TN_F32 ? ((const float *)p->bias)[n0 + j]
                                     : tn_from_bf16(((const uint16_t *)p->bias)[n0 + j]);
    for (int64_t r = 0; r < p->m; r += SQUARE)
        multiply_panel(g, r, TNI_MIN(p->m - r, SQUARE), n0, n);
}

/* All of k, at most ROUNDED. */
static void multiply_all(const tni_product *p, scratch *s)
{
    bgemm g = { p, s, s->room, NULL, (p->k + STEPS - 1) / STEPS, parts_of(p) };
    int64_t width = TNI_MIN(WIDTH, B_SIZE / (g.steps * STEPS * g.parts) / SQUARE * SQUARE);
    for (int64_t n0 = 0; n0 < p->n; n0 += width) multiply_block(&g, n0, TNI_MIN(width, p->n - n0));
}

/* Steps of a part of k. */
static int64_t part_steps(const tni_product *p)
{
    int64_t parts = (p->k - 1) / (p->in == TN_F32 ? LONG_F32 : LONG) + 1;
    return ((p->k - 1) / parts / STEPS + 1) * STEPS;
}

/* The part whose steps begin at k0. */
static tni_product part_of(const tni_product *p, int64_t k0)
{
    tni_product part = *p;
    int64_t item = (int64_t)tn_dtype_size(p->in), packed = tni_packed_size(p->n, k0) * parts_of(p);
    part.k = TNI_MIN(part_steps(p), p->k - k0);
    if (p->a) /* the packing has B alone */
        part.a = (const char *)p->a + (p->ta ? k0 * p->lda : k0) * item;
    part.b = (const char *)p->b + (p->tb ? k0 : k0 * p->ldb) * item;
    if (p->packed) part.packed = (const uint16_t *)p->packed + packed;
    if (k0 > 0) part.accumulate = true, part.bias = NULL;
    return part;
}

/* Into f32, some of k at a time. */
static void multiply_parts(const tni_product *p, scratch *s)
{
    for (int64_t k0 = 0; k0 < p->k; k0 += part_steps(p)) {
        tni_product part = part_of(p, k0);
        multiply_all(&part, s);
    }
}

void BY(pack)(const tni_product *p, void *to)
{
    _Alignas(64) uint16_t room[TILE];
    tni_product whole = *p;
    whole.packed = to; /* of which part_of finds the place of a part */
    for (int64_t k0 = 0; k0 < p->k; k0 += part_steps(p)) {
        tni_product part = part_of(&whole, k0);
        bgemm g = { &part, NULL, room, NULL, (part.k + STEPS - 1) / STEPS, parts_of(p) };
        pack_b(&g, (uint16_t *)(uintptr_t)part.packed, 0, p->n);
    }
}

/* Into bf16, through sums of all of C. */
static bool multiply_through(const tni_product *p, scratch *s)
{
    float *sums = malloc((size_t)p->m * (size_t)p->n * sizeof(float));
    if (!sums) return false;
    tni_product wide = *p;
    wide.out = TN_F32, wide.c = sums, wide.ldc = p->n;
    multiply_parts(&wide, s);
    for (int64_t r = 0; r < p->m; r++)
        for (int64_t j = 0; j < p->n; j += SQUARE) {
            const float *from = sums + r * p->n + j;
            int64_t n = p->n - j;
            store_rows((uint16_t *)p->c + r * p->ldc + j, 1, first(n),
                       _mm512_maskz_loadu_ps((__mmask16)first(n), from),
                       _mm512_maskz_loadu_ps((__mmask16)first(n - SIDE), from + SIDE));
        }
    free(sums);
    return true;
}

bool BY(product)(const tni_product *p)
{
    bool rounded = p->out == TN_BF16, done = true;
    if (p->m == 0 || p->n == 0 || p->k == 0 || (p->accumulate && rounded)) return false;
    scratch *s = tni_thread_scratch();
    if (!s) return false;
    begin_squares();
    if (!rounded)
        multiply_parts(p, s);
    else if (p->k <= ROUNDED)
        multiply_all(p, s);
    else
        done = multiply_through(p, s);
    end_squares();
    return done;
}
