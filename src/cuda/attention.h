/*
 * attention.h - the tiles of attention.cu and attention_grad.cu: scores of TILE queries by TILE
 * keys, or the other way round, and products of such a tile with rows of a matrix.
 *
 * Products bring both operands through shared memory a few columns at a time, so any D works.
 * Results are kept in registers, 16 NC columns at a time; if D is wider, other blocks compute the
 * rest from their own scores: up to 128 columns (f32; of dk and dv: 64; f64: 32) cost nothing
 * extra, beyond that the scores are computed once for each such slice of the result.
 */
#pragma once

#include "cuda/attention_call.h"

enum { TILE = 64, TM = TILE / TILE_ROWS, TN = TILE / TILE_COLUMNS };

template <typename R> struct slice { /* columns of the operands in shared memory at a time */
    static constexpr int columns = 128 / (int)sizeof(R);
    static constexpr int both = 2 * TILE * columns; /* elements of two operands */
};

/*
 * A tile [TILE rows, columns] is stored by columns, TILE elements each, so that the rows of a
 * thread lie together. Column c keeps its group of four rows number g at g ^ turn(c / 4): both the
 * stores of a loaded tile and those of a tile of scores then meet different banks, without padding.
 */
static __device__ __forceinline__ int turn(int four)
{
    return ((four << 1) | (four >> 2 & 1)) & 7;
}

static __device__ __forceinline__ int spot(int column, int group)
{
    return column * TILE + (group ^ turn(column >> 2)) * 4;
}

/* Rows [r0, r0 + TILE) and columns [c0, c0 + slice) of m, which has this many; 0 beyond. */
template <typename R>
static __device__ __forceinline__ void load_turned(R *to, const matrix<R> &m, int r0, int rows,
                                                   int c0, int columns)
{
    constexpr int QUADS = TILE * slice<R>::columns / 4;
    TN_UNROLL
    for (int i = 0; i < QUADS / THREADS; i++) {
        const int e = (int)threadIdx.x + i * THREADS;
        /* a warp takes 16 columns of 8 rows: whole sectors, and stores without conflicts */
        const int four = e % 4 + e / (4 * TILE) * 4, r = e / 4 % TILE;
        const int row = r0 + r, column = c0 + four * 4;
        quad<R> x = {};
        if (row < rows) {
            const R *from = m.data + row * m.row + column;
            if (m.quads && column + 4 <= columns) {
                x = quad_at(from);
            } else {
                TN_UNROLL
                for (int j = 0; j < 4; j++)
                    if (column + j < columns) x.v[j] = from[j];
            }
        }
        TN_UNROLL
        for (int j = 0; j < 4; j++) to[spot(four * 4 + j, r >> 2) + (r & 3)] = x.v[j];
    }
}

/* Rows [r0, r0 + slice) and columns [c0, c0 + 16 NC) of m, by rows. */
template <typename R, int NC>
static __device__ __forceinline__ void load_straight(R *to, const matrix<R> &m, int r0, int rows,
                                                     int c0, int columns)
{
    constexpr int WIDTH = TILE_COLUMNS * NC, QUADS = slice<R>::columns * WIDTH / 4;
    TN_UNROLL
    for (int i = 0; i < QUADS / THREADS; i++) {
        const int e = (int)threadIdx.x + i * THREADS;
        const int r = e / (WIDTH / 4), c = e % (WIDTH / 4) * 4;
        const int row = r0 + r, column = c0 + c;
        quad<R> x = {};
        if (row < rows) {
            const R *from = m.data + row * m.row + column;
            if (m.quads && column + 4 <= columns) {
                x = quad_at(from);
            } else {
                TN_UNROLL
                for (int j = 0; j < 4; j++)
                    if (column + j < columns) x.v[j] = from[j];
            }
        }
        quad_at(to + r * WIDTH + c) = x;
    }
}

/* sum[i][j] = a's row (of the thread) i times b's row j: a tile of a b^T, over d columns. When it
 * returns, all threads have finished the products before it. */
template <typename R>
static __device__ __forceinline__ void score_tile(R (&sum)[TM][TN], R *shared, const matrix<R> &a,
                                                  int a0, int a_rows, const matrix<R> &b, int b0,
                                                  int b_rows, int d)
{
    constexpr int COLUMNS = slice<R>::columns;
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    R *left = shared, *right = shared + TILE * COLUMNS;
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        TN_UNROLL
        for (int j = 0; j < TN; j++) sum[i][j] = 0;
    }
    int c0 = 0;
    do {
        __syncthreads();
        load_turned(left, a, a0, a_rows, c0, d);
        load_turned(right, b, b0, b_rows, c0, d);
        __syncthreads();
        const int fours = d - c0 < COLUMNS ? (d - c0 + 3) / 4 : COLUMNS / 4;
        for (int four = 0; four < fours; four++) {
            TN_UNROLL
            for (int c = 4 * four, j = 0; j < 4; j++, c++) {
                R x[TM], y[TN];
                const quad<R> low = quad_at(left + spot(c, 2 * row)),
                              high = quad_at(left + spot(c, 2 * row + 1));
                const quad<R> other = quad_at(right + spot(c, column));
                TN_UNROLL
                for (int e = 0; e < 4; e++) {
                    x[e] = low.v[e];
                    x[e + 4] = high.v[e];
                    y[e] = other.v[e];
                }
                multiply(sum, x, y);
            }
        }
        c0 += COLUMNS;
    } while (c0 < d);
}

/* The thread's part of a tile [i rows, j columns], stored by columns. */
template <typename R>
static __device__ __forceinline__ void keep_tile(R *tile, const R (&p)[TM][TN])
{
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    TN_UNROLL
    for (int j = 0; j < TN; j++) {
        TN_UNROLL
        for (int half = 0; half < 2; half++) {
            quad<R> x;
            TN_UNROLL
            for (int e = 0; e < 4; e++) x.v[e] = p[4 * half + e][j];
            quad_at(tile + spot(4 * column + j, 2 * row + half)) = x;
        }
    }
}

/* Element [i, j] of the thread's part of the tile. */
template <typename R> static __device__ __forceinline__ R &kept(R *tile, int i, int j)
{
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    return tile[spot(4 * column + j, 2 * row + i / 4) + i % 4];
}

/* sum += tile [TILE, n] times rows [r0, r0 + n) of m, columns [c0, c0 + 16 NC). */
template <typename R, int NC>
static __device__ __forceinline__ void add_product(R (&sum)[TM][NC], const R *tile, R *shared,
                                                   const matrix<R> &m, int r0, int rows, int c0,
                                                   int columns)
{
    constexpr int STEP = slice<R>::columns;
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    const int n = rows - r0 < TILE ? rows - r0 : TILE;
    for (int k0 = 0; k0 < n; k0 += STEP) {
        __syncthreads();
        load_straight<R, NC>(shared, m, r0 + k0, rows, c0, columns);
        __syncthreads();
        for (int four = 0; four < STEP / 4; four++) {
            TN_UNROLL
            for (int k = 4 * four, j = 0; j < 4; j++, k++) {
                R x[TM];
                const quad<R> low = quad_at(tile + spot(k0 + k, 2 * row));
                const quad<R> high = quad_at(tile + spot(k0 + k, 2 * row + 1));
                TN_UNROLL
                for (int e = 0; e < 4; e++) {
                    x[e] = low.v[e];
                    x[e + 4] = high.v[e];
                }
                R y[NC];
                take(y, shared + k * (TILE_COLUMNS * NC) + column * (NC < 4 ? NC : 4), 64);
                multiply(sum, x, y);
            }
        }
    }
}

/* The thread's rows of a result. */
template <typename R, int NC>
static __device__ __forceinline__ void write(const matrix<R> &m, int r0, int rows, int c0,
                                             int columns, const R (&sum)[TM][NC])
{
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        const int r = r0 + row * TM + i;
        if (r >= rows) continue;
        TN_UNROLL
        for (int j = 0; j < NC; j += NC < 4 ? 1 : 4) {
            const int c = c0 + column_of<NC>(column, j);
            R *to = m.data + r * m.row + c;
            if (NC >= 4 && m.quads && c + 4 <= columns) {
                quad<R> x;
                TN_UNROLL
                for (int e = 0; e < 4; e++) x.v[e] = sum[i][NC < 4 ? j : j + e];
                quad_at(to) = x;
            } else {
                TN_UNROLL
                for (int e = 0; e < (NC < 4 ? 1 : 4); e++)
                    if (c + e < columns) to[e] = sum[i][j + e];
            }
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Over the threads of a row. */
template <typename R> static __device__ __forceinline__ R columns_max(R x)
{
    TN_UNROLL
    for (int step = TILE_COLUMNS / 2; step > 0; step /= 2) {
        const R other = __shfl_xor_sync(WARP_ALL, x, step);
        x = other > x ? other : x;
    }
    return x;
}

template <typename R> static __device__ __forceinline__ R columns_sum(R x)
{
    TN_UNROLL
    for (int step = TILE_COLUMNS / 2; step > 0; step /= 2) x += __shfl_xor_sync(WARP_ALL, x, step);
    return x;
}

/* ---- host ------------------------------------------------------------------------------------ */

#define LAUNCH(kernel, NC, rows, columns)                                                          \
    [&]() -> tn_status {                                                                           \
        unsigned blocks;                                                                           \
        if (tn_status failed = cut(&a, rows, TILE, columns, TILE_COLUMNS * NC, &blocks))           \
            return failed;                                                                         \
        return TN_LAUNCH((kernel<R, NC>), blocks, THREADS, 0, a);                                  \
    }()
