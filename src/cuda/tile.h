/*
 * tile.h - shared by the kernels that multiply tiles in shared memory.
 *
 * A block of THREADS threads computes a tile of 8 TM x 16 TN: thread (row, column) of 8 x 16 owns
 * TM consecutive rows and TN columns, in groups of at most four next to each other, 64 apart. So
 * the operands of a step are read from shared memory 16 bytes at a time: the rows' as a broadcast,
 * the columns' without bank conflicts.
 */
#pragma once

#include "cuda/cuda.h"

enum { THREADS = 128, TILE_ROWS = 8, TILE_COLUMNS = 16 };

/* Four numbers in one access (two for f64). */
template <typename R> struct alignas(16) quad {
    R v[4];
};

template <typename R> static __device__ __forceinline__ quad<R> &quad_at(R *p)
{
    return *reinterpret_cast<quad<R> *>(p);
}

template <typename R> static __device__ __forceinline__ const quad<R> &quad_at(const R *p)
{
    return *reinterpret_cast<const quad<R> *>(p);
}

/* N numbers from shared memory: groups of four, or of N where that is less, `apart` from each
 * other. */
template <typename R, int N>
static __device__ __forceinline__ void take(R (&to)[N], const R *from, int apart)
{
    if (N % 4 == 0) {
        TN_UNROLL
        for (int g = 0; g < N / 4; g++) {
            quad<R> q = quad_at(from + g * apart);
            TN_UNROLL
            for (int i = 0; i < 4; i++) to[4 * g + i] = q.v[i];
        }
    } else {
        TN_UNROLL
        for (int i = 0; i < N; i++) to[i] = from[i];
    }
}

/* Column j of the TN that thread `column` owns. */
template <int TN> static __device__ __forceinline__ int column_of(int column, int j)
{
    return TN < 4 ? column * TN + j : j / 4 * 64 + column * 4 + j % 4;
}

/* sum += a b^T */
template <typename R, int TM, int TN>
static __device__ __forceinline__ void multiply(R (&sum)[TM][TN], const R (&a)[TM],
                                                const R (&b)[TN])
{
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        TN_UNROLL
        for (int j = 0; j < TN; j++) sum[i][j] += a[i] * b[j];
    }
}

/* Whether quads may be read at p + any multiple of step. */
static inline bool quads_fit(const void *p, int64_t step)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && step % 4 == 0;
}

/* One block for each tile. */
static inline tn_status tiles_fit(const char *name, int64_t tiles, unsigned *blocks)
{
    *blocks = (unsigned)tiles;
    if (tiles <= INT32_MAX) return TN_OK;
    return tni_cuda_host->fail(TN_E_UNSUPPORTED, "%s: %" PRId64 " tiles: want at most %d", name,
                               tiles, INT32_MAX);
}
