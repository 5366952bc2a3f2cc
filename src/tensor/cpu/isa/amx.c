/*
 * amx.c - one matrix product of bf16 on one thread, by AMX's tiles: C (+)= op(A) op(B) (+ bias),
 * with sums in f32.
 *
 * C is computed in squares of four tiles (tiles.h). What is read is packed first, tile by tile:
 *   - all steps of a block of B's columns, which stays in the L2 cache: strips of 32 columns
 *   - a panel of A, 32 rows and at most DEPTH steps, which stays in the L1 cache while the strips
 *     pass
 * An operand whose rows lie along the steps is copied for A and transposed, as pairs,
 * for B; of one whose rows lie across them, two rows are interleaved, for B, and transposed for A.
 *
 * The bits depend on the sizes and C's dtype.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor/cpu/isa/tiles.h"
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"
#include "tensor/math.h"

/* Steps of a panel; elements and columns of a block of B; steps of one where C can take sums by
 * parts, and where it can't. */
enum { DEPTH = 256, B_SIZE = 1 << 19, WIDTH = 512, LONG = 2048, ROUNDED = 4096 };

typedef struct scratch {
    uint16_t b[B_SIZE], a[SQUARE * DEPTH], room[TILE];
    float sums[SQUARE * WIDTH], bias[WIDTH];
} scratch;

_Static_assert(sizeof(scratch) <= TNI_PRODUCT_SCRATCH, "what a thread keeps for products");

typedef struct bgemm {
    const tni_product *p;
    scratch *s;
    uint16_t *room;    /* for a tile */
    const uint16_t *b; /* the packed block */
    int64_t steps;     /* of k, in tiles */
} bgemm;

/* ---- packing --------------------------------------------------------------------------------- */

/* 16 rows of 32 elements, of which the first n of the first `there` are there; zeros else. */
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

/* The tile of `there` rows of A, or columns of B, at most 16, and at most 32 steps; along: the
 * steps lie next to each other. */
static inline void pack_tile(const bgemm *g, uint16_t *to, const uint16_t *from, int64_t ld,
                             bool along, int64_t there, int64_t steps, bool is_b)
{
    uint16_t *first_to = along == is_b ? g->room : to;
    if (along)
        copy_rows(first_to, from, ld, there, steps);
    else
        copy_pairs(first_to, from, ld, steps, there);
    if (first_to != to) transpose_pairs(to, first_to, STEPS);
}

/* `n` rows of A (or columns of B) from r on, steps [k0, k0 + k), as tiles: for each 32 steps the
 * first 16 of them, then the others. */
static inline __attribute__((always_inline)) void pack(const bgemm *g, uint16_t *to, bool is_b,
                                                       int64_t r, int64_t n, int64_t k0, int64_t k)
{
    const tni_product *p = g->p;
    int64_t ld = is_b ? p->ldb : p->lda;
    bool along = is_b ? p->tb : !p->ta;
    for (int64_t i = 0; i < k; i += STEPS)
        for (int64_t half = 0; half < SQUARE; half += SIDE, to += TILE) {
            int64_t row = along ? r + half : k0 + i, column = along ? k0 + i : r + half;
            const uint16_t *from = (const uint16_t *)(is_b ? p->b : p->a) + row * ld + column;
            if (half < n)
                pack_tile(g, to, from, ld, along, TNI_MIN(n - half, SIDE), TNI_MIN(k - i, STEPS),
                          is_b);
            else
                memset(to, 0, TILE * sizeof *to);
        }
}

/* ---- a square of C --------------------------------------------------------------------------- */

/* sums [32, 32] (+)= A B, over `steps` tiles; the lower half is left out where A has at most 16
 * rows. */
static void multiply(float *sums, const uint16_t *a, const uint16_t *b, int64_t steps, bool add,
                     bool lower)
{
    if (add)
        load_square(sums);
    else
        zero_square();
    for (int64_t i = 0; i < steps; i++, a += 2 * TILE, b += 2 * TILE)
        add_step(a, TILE_ROW, TILE, b, TILE_ROW, TILE, lower);
    store_square(sums);
}

/* 32 sums rounded into a bf16 C, of which the first n are there. */
static inline void round_row(uint16_t *c, int64_t n, __m512 low, __m512 high)
{
    _mm512_mask_storeu_epi16(c, first(n), (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* C's rows from r on and columns from n0 on = sums + bias (+ C). */
static void finish(const bgemm *g, const float *sums, const float *bias, int64_t r, int64_t rows,
                   int64_t n0, int64_t n)
{
    const tni_product *p = g->p;
    __mmask16 left = (__mmask16)first(n), right = (__mmask16)first(n - SIDE);
    __m512 b0 = _mm512_loadu_ps(bias), b1 = _mm512_loadu_ps(bias + SIDE);
    for (int64_t i = 0; i < rows; i++, sums += SQUARE) {
        __m512 s0 = _mm512_add_ps(_mm512_loadu_ps(sums), b0);
        __m512 s1 = _mm512_add_ps(_mm512_loadu_ps(sums + SIDE), b1);
        int64_t at = (r + i) * p->ldc + n0;
        if (p->out == TN_BF16) {
            round_row((uint16_t *)p->c + at, n, s0, s1);
            continue;
        }
        float *c = (float *)p->c + at;
        if (p->accumulate) {
            s0 = _mm512_add_ps(s0, _mm512_maskz_loadu_ps(left, c));
            s1 = _mm512_add_ps(s1, _mm512_maskz_loadu_ps(right, c + SIDE));
        }
        _mm512_mask_storeu_ps(c, left, s0);
        _mm512_mask_storeu_ps(c + SIDE, right, s1);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Rows [r, r + rows), at most 32, of columns [n0, n0 + n), whose strips of B are packed. */
static void multiply_panel(const bgemm *g, int64_t r, int64_t rows, int64_t n0, int64_t n)
{
    scratch *s = g->s;
    int64_t k = g->p->k, blocks = (k - 1) / DEPTH + 1;
    int64_t depth = ((k - 1) / blocks / STEPS + 1) * STEPS;
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
        int64_t here = TNI_MIN(depth, k - k0), steps = (here - 1) / STEPS + 1;
        pack(g, s->a, false, r, rows, k0, here);
        for (int64_t j = 0; j < n; j += SQUARE) {
            float *sums = s->sums + j * SQUARE;
            multiply(sums, s->a, g->b + (j / SQUARE * g->steps + k0 / STEPS) * 2 * TILE, steps,
                     k0 > 0, rows > SIDE);
            if (k0 + here == k)
                finish(g, sums, s->bias + j, r, rows, n0 + j, TNI_MIN(n - j, SQUARE));
        }
    }
}

/* Columns [n0, n0 + n) of B, all steps. */
static void pack_b(const bgemm *g, uint16_t *to, int64_t n0, int64_t n)
{
    for (int64_t j = 0; j < n; j += SQUARE)
        pack(g, to + j * g->steps * STEPS, true, n0 + j, TNI_MIN(n - j, SQUARE), 0, g->p->k);
}

static void multiply_block(bgemm *g, int64_t n0, int64_t n)
{
    scratch *s = g->s;
    const tni_product *p = g->p;
    g->b = s->b;
    if (p->packed)
        g->b = (const uint16_t *)p->packed + n0 * g->steps * STEPS;
    else
        pack_b(g, s->b, n0, n);
    memset(s->bias, 0, sizeof s->bias);
    for (int64_t j = 0; p->bias && j < n; j++)
        s->bias[j] = tn_from_bf16(((const uint16_t *)p->bias)[n0 + j]);
    for (int64_t r = 0; r < p->m; r += SQUARE)
        multiply_panel(g, r, TNI_MIN(p->m - r, SQUARE), n0, n);
}

/* All of k, at most ROUNDED. */
static void multiply_all(const tni_product *p, scratch *s)
{
    bgemm g = { .p = p, .s = s, .room = s->room, .steps = (p->k + STEPS - 1) / STEPS };
    int64_t width = TNI_MIN(WIDTH, B_SIZE / (g.steps * STEPS) / SQUARE * SQUARE);
    for (int64_t n0 = 0; n0 < p->n; n0 += width) multiply_block(&g, n0, TNI_MIN(width, p->n - n0));
}

/* Steps of a part of k. */
static int64_t part_steps(const tni_product *p)
{
    int64_t parts = (p->k - 1) / LONG + 1;
    return ((p->k - 1) / parts / STEPS + 1) * STEPS;
}

/* The part whose steps begin at k0. */
static tni_product part_of(const tni_product *p, int64_t k0)
{
    tni_product part = *p;
    part.k = TNI_MIN(part_steps(p), p->k - k0);
    part.a = (const uint16_t *)p->a + (p->ta ? k0 * p->lda : k0);
    part.b = (const uint16_t *)p->b + (p->tb ? k0 : k0 * p->ldb);
    if (p->packed) part.packed = (const uint16_t *)p->packed + tni_packed_size(p->n, k0);
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

void tni_amx_pack(const tni_product *p, uint16_t *to)
{
    _Alignas(64) uint16_t room[TILE];
    for (int64_t k0 = 0; k0 < p->k; k0 += part_steps(p)) {
        tni_product part = part_of(p, k0);
        bgemm g = { .p = &part, .room = room, .steps = (part.k + STEPS - 1) / STEPS };
        pack_b(&g, to + tni_packed_size(p->n, k0), 0, p->n);
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
            round_row((uint16_t *)p->c + r * p->ldc + j, n,
                      _mm512_maskz_loadu_ps((__mmask16)first(n), from),
                      _mm512_maskz_loadu_ps((__mmask16)first(n - SIDE), from + SIDE));
        }
    free(sums);
    return true;
}

bool tni_amx_product(const tni_product *p)
{
    bool rounded = p->out == TN_BF16, done = true;
    if (p->m == 0 || p->n == 0 || p->k == 0 || (p->accumulate && rounded)) return false;
    scratch *s = tni_thread_scratch();
    if (!s) return false;
    _tile_loadconfig(&tiles);
    if (!rounded)
        multiply_parts(p, s);
    else if (p->k <= ROUNDED)
        multiply_all(p, s);
    else
        done = multiply_through(p, s);
    _tile_release();
    return done;
}
