/*
 * squares.h - products of tiles, for the files that are made of them (squares.c, squares_conv.c),
 * each compiled for one way to multiply, TNI_BY:
 *   TNI_AMX_TILES  bf16 by AMX, whose instruction multiplies two tiles
 *   TNI_DOTS       bf16 by AVX512-BF16's dot products
 *   TNI_FMA        f32 by vectors (convolutions alone)
 *
 * A tile of A has 16 rows of 16 steps along the inner axis; one of B 16 rows, a step each, of 16
 * columns. A step is two numbers of bf16, which are multiplied and added as a pair, or one of f32.
 * Four tiles of sums in f32, [16, 16], make a square, [32, 32], to which two tiles of A times two
 * of B are added. With AMX a square lies in four registers. Else the registers hold 8 rows of it, a
 * group: an instruction adds a step of a row of A, repeated, times 16 columns of B to 16 sums.
 *
 * AMX and dot products take denormal numbers for 0, and make 0 of what would become one.
 *
 * Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter "Intel AMX".
 */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tensor/cpu/dense/vector.h"
#include "tensor/internal.h"
#include "tensor/math.h"

#define TNI_AMX_TILES 0
#define TNI_DOTS 1
#define TNI_FMA 2
#ifndef TNI_BY
#define TNI_BY TNI_AMX_TILES
#endif

#if TNI_BY == TNI_FMA
typedef float element;
#define DTYPE TN_F32
enum { PAIR = 1 };
#else
typedef uint16_t element;
#define DTYPE TN_BF16
enum { PAIR = 2 }; /* elements of a step */
#endif

enum {
    SIDE = 16,
    STEPS = SIDE * PAIR, /* elements of a tile's row */
    TILE = SIDE * STEPS, /* elements */
    TILE_ROW = 64,       /* bytes */
    SQUARE = 2 * SIDE,
    SUMS = SQUARE * SQUARE
};

static inline __mmask32 first(int64_t n) /* of 32 elements */
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}

/* 16 elements of each of two rows, interleaved. */
static inline __m512i in_pairs(__m256i even, __m256i odd)
{
    return _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16),
                           _mm512_cvtepu16_epi32(even));
}

/* 16 x 16 steps into a tile; from: its rows lie `row` elements apart, a multiple of PAIR. */
static inline void transpose_steps(element *to, const element *from, int64_t row)
{
    transpose_block((const float *)(const void *)from, row / PAIR, (float *)(void *)to, SIDE);
}

/* ---- 16 elements of memory ------------------------------------------------------------------- */

#if TNI_BY == TNI_FMA

typedef __m512 sixteen;
static inline float to_float(element x)
{
    return x;
}
static inline bool is_finite(element x)
{
    return isfinite(x);
}

/* from[0], from[step], ...; 0 where the mask has none. Step 1 or 2, in f32 1, here and below. */
static inline sixteen load_row(const element *from, int64_t step, __mmask16 mask)
{
    (void)step;
    return _mm512_maskz_loadu_ps(mask, from);
}

static inline void copy_out(element *to, __mmask16 mask, sixteen x)
{
    _mm512_mask_storeu_ps(to, mask, x);
}

/* Steps of a row of B. */
static inline void store_steps(element *to, __mmask16 mask, sixteen even, sixteen odd)
{
    _mm512_mask_storeu_ps(to, mask, even);
    (void)odd;
}

/* Sums to to[0], to[step], ... */
static inline void store_row(element *to, int64_t step, __mmask16 mask, __m512 sums)
{
    (void)step;
    _mm512_mask_storeu_ps(to, mask, sums);
}

#else

typedef __m256i sixteen;
static inline float to_float(element x)
{
    return tn_from_bf16(x);
}
static inline bool is_finite(element x)
{
    return (x & 0x7f80) != 0x7f80;
}

static inline sixteen load_row(const element *from, int64_t step, __mmask16 mask)
{
    if (step == 1) return _mm256_maskz_loadu_epi16(mask, from);
    return _mm512_cvtepi32_epi16(_mm512_maskz_loadu_epi16(_pdep_u32(mask, 0x55555555), from));
}

static inline void copy_out(element *to, __mmask16 mask, sixteen x)
{
    _mm256_mask_storeu_epi16(to, mask, x);
}

static inline void store_steps(element *to, __mmask16 mask, sixteen even, sixteen odd)
{
    _mm512_mask_storeu_epi32(to, mask, in_pairs(even, odd));
}

static inline void store_row(element *to, int64_t step, __mmask16 mask, __m512 sums)
{
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sums);
    if (step == 1)
        _mm256_mask_storeu_epi16(to, mask, rounded);
    else
        _mm512_mask_storeu_epi16(to, _pdep_u32(mask, 0x55555555), _mm512_cvtepu16_epi32(rounded));
}

#endif

/* The same of 32. */
static inline void store_rows(element *to, int64_t step, __mmask32 mask, __m512 low, __m512 high)
{
#if TNI_BY != TNI_FMA
    if (step == 1) {
        _mm512_mask_storeu_epi16(to, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        return;
    }
#endif
    store_row(to, step, (__mmask16)mask, low);
    store_row(to + SIDE * step, step, (__mmask16)(mask >> 16), high);
}

/* ---- a square: rows [r, r + GROUP) of it, of which the caller makes all ---------------------- */

#if TNI_BY != TNI_AMX_TILES

#if TNI_BY == TNI_DOTS
#define BY(what) tni_dots_##what
typedef __m512bh steps;
#define TIMES(sum, b, a) _mm512_dpbf16_ps(sum, b, a)
#else
#define BY(what) tni_fma_##what
typedef __m512 steps;
#define TIMES(sum, b, a) _mm512_fmadd_ps(b, a, sum)
#endif
enum { GROUP = 8 };
typedef struct group {
    __m512 sum[GROUP][2];
} group;

static inline void begin_squares(void) {}
static inline void end_squares(void) {}

/* sums NULL: 0. */
static inline group load_group(const float *sums, int64_t r)
{
    group g;
    UNROLL
    for (int i = 0; i < 2 * GROUP; i++)
        g.sum[i / 2][i % 2] =
            sums ? _mm512_loadu_ps(sums + r * SQUARE + i * SIDE) : _mm512_setzero_ps();
    return g;
}

/* Adds two tiles of A times two of B, the second ones `next` elements behind the first; A has
 * `rows` rows. a_row, b_row: bytes. */
static inline void add_step(group *g, int64_t r, int64_t rows, const element *a, int64_t a_row,
                            int64_t a_next, const element *b, int64_t b_row, int64_t b_next)
{
    const char *row = (const char *)(a + r / SIDE * a_next) + r % SIDE * a_row;
    const char *column = (const char *)b;
    for (int p = 0; p < SIDE; p++, row += 4, column += b_row) {
        const steps left = (steps)_mm512_loadu_si512(column);
        const steps right =
            (steps)_mm512_loadu_si512((const element *)(const void *)column + b_next);
        UNROLL
        for (int i = 0; i < GROUP; i++) {
            int step;
            memcpy(&step, row + i * a_row, sizeof step);
            const steps all = (steps)_mm512_set1_epi32(step);
            g->sum[i][0] = TIMES(g->sum[i][0], left, all);
            g->sum[i][1] = TIMES(g->sum[i][1], right, all);
        }
    }
    (void)rows;
}

static inline void store_group(const group *g, float *sums, int64_t r)
{
    UNROLL
    for (int i = 0; i < 2 * GROUP; i++)
        _mm512_storeu_ps(sums + r * SQUARE + i * SIDE, g->sum[i / 2][i % 2]);
}

#else

#define BY(what) tni_amx_##what
enum { GROUP = SQUARE, SUMS_ROW = SQUARE * sizeof(float), LOWER = SIDE * SQUARE };
typedef char group; /* the tiles are registers */

/* Tiles 0 to 3: sums; 4, 5: of A; 6, 7: of B. All have 16 rows of 64 bytes. A constant: gcc 12 does
 * not know that the instruction reads all of it, so it would leave out assignments. */
static const struct {
    uint8_t palette, start, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles = { .palette = 1,
            .row_bytes = { TILE_ROW, TILE_ROW, TILE_ROW, TILE_ROW, TILE_ROW, TILE_ROW, TILE_ROW,
                           TILE_ROW },
            .rows = { SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE } };

static inline void begin_squares(void)
{
    _tile_loadconfig(&tiles);
}
static inline void end_squares(void)
{
    _tile_release();
}

/* sums NULL: 0. */
static inline group load_group(const float *sums, int64_t r)
{
    (void)r;
    __asm__ volatile("" ::: "memory"); /* gcc does not know what the loads of tiles read */
    if (sums) {
        _tile_loadd(0, sums, SUMS_ROW);
        _tile_loadd(1, sums + SIDE, SUMS_ROW);
        _tile_loadd(2, sums + LOWER, SUMS_ROW);
        _tile_loadd(3, sums + LOWER + SIDE, SUMS_ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    return 0;
}

/* Adds two tiles of A times two of B, which are loaded; without `lower` A has one tile. */
static inline void add_loaded(bool lower)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!lower) return;
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* Loads them first, the second ones `next` elements behind the first; A has `rows` rows. a_row,
 * b_row: bytes. */
static inline void add_step(group *g, int64_t r, int64_t rows, const element *a, int64_t a_row,
                            int64_t a_next, const element *b, int64_t b_row, int64_t b_next)
{
    _tile_loadd(6, b, b_row);
    _tile_loadd(4, a, a_row);
    _tile_loadd(7, b + b_next, b_row);
    if (rows > SIDE) _tile_loadd(5, a + a_next, a_row);
    add_loaded(rows > SIDE);
    (void)g, (void)r;
}

static inline void store_group(const group *g, float *sums, int64_t r)
{
    _tile_stored(0, sums, SUMS_ROW);
    _tile_stored(1, sums + SIDE, SUMS_ROW);
    _tile_stored(2, sums + LOWER, SUMS_ROW);
    _tile_stored(3, sums + LOWER + SIDE, SUMS_ROW);
    (void)g, (void)r;
}

#endif
