/*
 * attention_half.h - attention in bf16 and f16 on the tensor cores: tiles in shared memory and
 * their products, computed by warps.
 *
 * A block has four warps; each computes 16 MT rows of the block's tile of scores, in registers,
 * where they also become the left operand of the next product (mma.h says why that fits). So
 * scores, probabilities and their gradients are never stored. A tile is stored by rows in shared
 * memory, C elements and 8 more per row: an odd number of 16-byte units, so that the eight rows
 * that ldmatrix reads at a time are in different banks. C is D (and Dv) padded with zeros to 32, 64
 * or 128. Rows of whole 16 bytes, aligned to them, are copied by cp.async while the tile before is
 * computed; others by ordinary loads, one element at a time.
 *
 * Tiles are as large as 255 registers and 99 KiB of shared memory (sm_86, sm_89) allow, two blocks
 * to a multiprocessor where it has 164 KiB. 32 rows to a warp (MT = 2) read each right operand once
 * for two products; dk and dv of more than 64 columns leave registers for 16.
 */
#pragma once

#include "cuda/attention_call.h"

enum { WARPS = THREADS / 32 };
#define LOG2E 1.44269504088896341f

/* ---- tiles in shared memory ------------------------------------------------------------------ */

template <int C> struct tile_row {
    static constexpr int length = C + 8, bytes = 2 * length;
};

template <typename E> static __device__ __forceinline__ eight<E> few(const E *from, int n)
{
    eight<E> x = {};
    TN_UNROLL
    for (int j = 0; j < 8; j++)
        if (j < n) x.v[j] = from[j];
    return x;
}

/* Rows [r0, r0 + ROWS) and columns [c0, c0 + C) of m, which has this many; 0 beyond. They are there
 * after copies_wait and a barrier. */
template <typename E, int ROWS, int C>
static __device__ __forceinline__ void load_tile(E *to, const matrix<E> &m, int r0, int rows,
                                                 int c0, int columns)
{
    constexpr int GROUP = C % 64 == 0 ? 8 : 4, STEP = THREADS / GROUP; /* threads to a row; rows */
    static_assert(ROWS % STEP == 0, "every thread loads as much");
    const int r = (int)threadIdx.x / GROUP, c = (int)threadIdx.x % GROUP * 8;
    const E *from = m.data + (r0 + r) * m.row + c0 + c;
    if (m.quads && columns % 8 == 0 && columns > 0 && rows > 0) {
        const shared_place at = place_of(to) + r * tile_row<C>::bytes + c * 2;
        TN_UNROLL
        for (int i = 0; i < ROWS; i += STEP) {
            TN_UNROLL
            for (int j = 0; j < C; j += GROUP * 8) {
                const bool there = r0 + r + i < rows && c0 + c + j < columns;
                copy_async(at + i * tile_row<C>::bytes + j * 2, there ? from + j : m.data, there);
            }
            from += STEP * m.row;
        }
    } else {
        TN_ROLLED for (int i = 0; i < ROWS; i += STEP)
        {
            TN_ROLLED for (int j = 0; j < C; j += GROUP * 8)
            {
                const int n = r0 + r + i < rows ? min(max(columns - c0 - c - j, 0), 8) : 0;
                *reinterpret_cast<eight<E> *>(to + (r + i) * tile_row<C>::length + c + j) =
                    few(from + j, n);
            }
            from += STEP * m.row;
        }
    }
}

/* ---- products: results in registers ---------------------------------------------------------- */

/* 16 MT rows by 8 NT columns of a warp. Element i of x[m][n] is in row 16 m + row_in(i), column
 * 8 n + column_in(i). */
template <int MT, int NT> struct fragments {
    float x[MT][NT][4];
};

static __device__ __forceinline__ int row_in(int i)
{
    return (int)threadIdx.x % 32 / 4 + i / 2 * 8;
}

static __device__ __forceinline__ int column_in(int i)
{
    return (int)threadIdx.x % 4 * 2 + i % 2;
}

template <int MT, int NT> static __device__ __forceinline__ void clear(fragments<MT, NT> &f)
{
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int n = 0; n < NT; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i++) f.x[m][n][i] = 0;
        }
    }
}

/* sum += a b^T: the warp's rows from `a` on by all rows of the tile b, over C columns. */
template <typename E, int C, int MT, int NT>
static __device__ __forceinline__ void add_scores(fragments<MT, NT> &sum, const E *a, const E *b)
{
    constexpr int ROW = tile_row<C>::bytes;
    const int i = (int)threadIdx.x % 32 / 8, r = (int)threadIdx.x % 8;
    const shared_place left = place_of(a) + ((i & 1) * 8 + r) * ROW + (i >> 1) * 16;
    const shared_place right = place_of(b) + ((i >> 1) * 8 + r) * ROW + (i & 1) * 16;
    TN_UNROLL
    for (int c = 0; c < C; c += 16) {
        uint32_t x[MT][4];
        TN_UNROLL
        for (int m = 0; m < MT; m++) load_matrices(x[m], left + m * 16 * ROW + c * 2);
        TN_UNROLL
        for (int n = 0; n < NT; n += 2) {
            uint32_t y[4];
            load_matrices(y, right + n * 8 * ROW + c * 2);
            TN_UNROLL
            for (int m = 0; m < MT; m++) {
                mma_add<E>(sum.x[m][n], x[m], y[0], y[1]);
                mma_add<E>(sum.x[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* sum += p b: the warp's rows of p, rounded to E, by the tile b of 8 NT rows and C columns. */
template <typename E, int C, int MT, int NT>
static __device__ __forceinline__ void add_values(fragments<MT, C / 8> &sum,
                                                  const fragments<MT, NT> &p, const E *b)
{
    constexpr int ROW = tile_row<C>::bytes;
    const int i = (int)threadIdx.x % 32 / 8, r = (int)threadIdx.x % 8;
    const shared_place right = place_of(b) + ((i & 1) * 8 + r) * ROW + (i >> 1) * 16;
    TN_UNROLL
    for (int k = 0; k < NT; k += 2) {
        uint32_t x[MT][4];
        TN_UNROLL
        for (int m = 0; m < MT; m++) {
            TN_UNROLL
            for (int j = 0; j < 4; j++) {
                const float(&from)[4] = p.x[m][k + j / 2];
                x[m][j] = pack<E>(from[j % 2 * 2], from[j % 2 * 2 + 1]);
            }
        }
        TN_UNROLL
        for (int n = 0; n < C / 8; n += 2) {
            uint32_t y[4];
            load_matrices_turned(y, right + k * 8 * ROW + n * 16);
            TN_UNROLL
            for (int m = 0; m < MT; m++) {
                mma_add<E>(sum.x[m][n], x[m], y[0], y[1]);
                mma_add<E>(sum.x[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Stores the warp's rows of a result, rounded, to rows [r0, ..) of m, through the warp's own 16 MT
 * rows of a tile in shared memory, 16 bytes at a time. */
template <typename E, int C, int MT>
static __device__ __forceinline__ void write_rows(const matrix<E> &m, int r0, int rows, int c0,
                                                  int columns, const fragments<MT, C / 8> &sum,
                                                  E *through)
{
    constexpr int EIGHTS = C / 8, LENGTH = tile_row<C>::length;
    const int lane = (int)threadIdx.x % 32;
    TN_UNROLL
    for (int k = 0; k < MT; k++) {
        TN_UNROLL
        for (int n = 0; n < EIGHTS; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i += 2) {
                const uint32_t pair = pack<E>(sum.x[k][n][i], sum.x[k][n][i + 1]);
                two<E> &to = *reinterpret_cast<two<E> *>(through + (16 * k + row_in(i)) * LENGTH +
                                                         8 * n + column_in(i));
                to.v[0].bits = (uint16_t)pair;
                to.v[1].bits = (uint16_t)(pair >> 16);
            }
        }
    }
    __syncwarp();
    TN_ROLLED for (int e = lane; e < 16 * MT * EIGHTS; e += 32)
    {
        const int r = e / EIGHTS, c = e % EIGHTS * 8, row = r0 + r;
        const eight<E> x = *reinterpret_cast<const eight<E> *>(through + r * LENGTH + c);
        E *to = m.data + row * m.row + c0 + c;
        if (row >= rows) continue;
        if (m.quads && c0 + c + 8 <= columns) {
            *reinterpret_cast<eight<E> *>(to) = x;
        } else {
            TN_UNROLL
            for (int j = 0; j < 8; j++)
                if (c0 + c + j < columns) to[j] = x.v[j];
        }
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename E> static bool is_masked(const attention<E> &a)
{
    return a.mask || !(a.scale > 0);
}

/* The larger of D and Dv. */
template <typename E> static int columns_of(const attention<E> &a)
{
    return a.d > a.dv_size ? a.d : a.dv_size;
}

/* launch<E, C, MASKED>(a) for the smallest C that holds the columns. */
#define BY_COLUMNS(launch, E, a)                                                                   \
    [&]() -> tn_status {                                                                           \
        const int columns = columns_of(a);                                                         \
        const bool masked = is_masked(a);                                                          \
        if (columns <= 32) return masked ? launch<E, 32, true>(a) : launch<E, 32, false>(a);       \
        if (columns <= 64) return masked ? launch<E, 64, true>(a) : launch<E, 64, false>(a);       \
        return masked ? launch<E, 128, true>(a) : launch<E, 128, false>(a);                        \
    }()

/* What sm_86, sm_89 and sm_120 give a block, less what kernels have beside it
 * (attention_half_dkv's numbers); other GPUs of compute capability 8.0 and above give more. */
#define MOST_SHARED (99 * 1024 - 512)

/* Launches with more shared memory than the default limit. */
#define LAUNCH_LARGE(kernel, blocks, bytes, a)                                                     \
    [&]() -> tn_status {                                                                           \
        static_assert((bytes) <= MOST_SHARED, "a tile that not every GPU has room for");           \
        if (tn_status failed = TN_CUDA(cudaFuncSetAttribute(                                       \
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))))               \
            return failed;                                                                         \
        return TN_LAUNCH(kernel, blocks, THREADS, bytes, a);                                       \
    }()
