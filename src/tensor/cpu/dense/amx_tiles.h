/*
 * amx_tiles.h - AMX's tiles of bf16, for the files that multiply them (amx.c, amx_conv.c).
 *
 * An instruction multiplies a tile of A, [16, 32], by a tile of B, [32, 16], and adds the result to
 * a tile of sums, [16, 16], in f32. A tile of A has 16 rows of 32 steps along the inner axis; one
 * of B has 16 rows, each with two steps of 16 columns in pairs. Four tiles of sums make a square,
 * [32, 32], to which a step adds two tiles of A times two of B.
 *
 * AMX takes denormal numbers for 0, and makes 0 of what would become one.
 *
 * Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter "Intel AMX".
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>

#include "tensor/cpu/dense/vector.h"

enum {
    SIDE = 16,
    STEPS = 32,
    TILE = SIDE * STEPS, /* elements */
    TILE_ROW = 64,       /* bytes */
    SQUARE = 2 * SIDE,
    SUMS = SQUARE * SQUARE
};

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

/* 16 x 16 pairs into a tile; from: its rows lie `row` elements apart, an even number. */
static inline void transpose_pairs(uint16_t *to, const uint16_t *from, int64_t row)
{
    transpose_block((const float *)(const void *)from, row / 2, (float *)(void *)to, SIDE);
}

/* ---- a square -------------------------------------------------------------------------------- */

enum { SUMS_ROW = SQUARE * sizeof(float), LOWER = SIDE * SQUARE };

/* The tiles of sums = these, [32, 32], or 0. */
static inline void load_square(const float *sums)
{
    __asm__ volatile("" ::: "memory"); /* gcc does not know what the loads of tiles read */
    _tile_loadd(0, sums, SUMS_ROW);
    _tile_loadd(1, sums + SIDE, SUMS_ROW);
    _tile_loadd(2, sums + LOWER, SUMS_ROW);
    _tile_loadd(3, sums + LOWER + SIDE, SUMS_ROW);
}
static inline void zero_square(void)
{
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
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

/* Loads them first, the second ones `next` elements behind the first; rows: bytes. */
static inline void add_step(const uint16_t *a, int64_t a_row, int64_t a_next, const uint16_t *b,
                            int64_t b_row, int64_t b_next, bool lower)
{
    _tile_loadd(6, b, b_row);
    _tile_loadd(4, a, a_row);
    _tile_loadd(7, b + b_next, b_row);
    if (lower) _tile_loadd(5, a + a_next, a_row);
    add_loaded(lower);
}

static inline void store_square(float *sums)
{
    _tile_stored(0, sums, SUMS_ROW);
    _tile_stored(1, sums + SIDE, SUMS_ROW);
    _tile_stored(2, sums + LOWER, SUMS_ROW);
    _tile_stored(3, sums + LOWER + SIDE, SUMS_ROW);
}
