/*
 * reduce.h - reductions with any operation that joins two values.
 *
 * A way of reducing is a class W:
 *   typedef item      what elements are read as: float, double or int64_t
 *   typedef part      what a thread joins into; several parts become an `all`
 *   typedef all       what leaves a thread: kept wide, moved as 8-byte words
 *   start()           an empty part
 *   add(part, x, i)   joins x, number i along the reduced axes
 *   widen(part)       -> all; empty() -> an empty all
 *   join(all, all)    in the order of the numbers where the way asks for it
 *   group             elements that a part may take before it is widened: a multiple of four
 * A way that stands for several (sum, largest ...) checks at each element which one it is: all
 * threads of a launch branch alike, which costs less than the memory they wait for, and there is
 * one kernel to compile instead of ten.
 *
 * Results are grouped by who works on one: a thread (short rows, and columns: neighbouring threads
 * take neighbouring results, or four each), a warp, a block. A long slice is cut into pieces, which
 * leave an `all` each; a warp joins those in order. Borders depend on shapes alone (and on whether
 * memory and rows begin on borders of four), so the bits are the same in every run and on every
 * device.
 */
#pragma once

#include <type_traits>

#include "cuda/elements.h"
#include "cuda/half.h"

enum {
    REDUCE_THREADS = 256,
    REDUCE_WARPS = REDUCE_THREADS / 32,
    COLUMN_ROWS = REDUCE_THREADS / 32, /* of threads that share 32 or 128 neighbouring results */
    SHORT_ROW = 16,                    /* up to here a thread takes the row */
    WARP_ROW = 1024,                   /* up to here a warp */
    PIECES = 1024,                     /* blocks that keep any device busy */
    LEAST_PIECE = 4096                 /* elements in a piece of a row */
};

/* The places of elements and results. */
struct reduce_axes {
    places<1> kept, reduced; /* of x */
    const void *x;
    tn_dtype dtype;
    int64_t piece, pieces; /* reduced elements in a piece, pieces of a slice */
    bool fours;            /* one reduced axis; it, or for columns the results, by fours */
};

/* ---- joining threads: `all` moves by words --------------------------------------------------- */

template <class A> struct words {
    static_assert(sizeof(A) % 8 == 0, "an `all` is made of 8-byte words");
    unsigned long long w[sizeof(A) / 8];
};

template <class A> static __device__ __forceinline__ A from_lane_below(const A &a, int apart)
{
    words<A> w;

    memcpy(&w, &a, sizeof w);
    TN_UNROLL
    for (unsigned k = 0; k < sizeof(A) / 8; k++) w.w[k] = __shfl_down_sync(WARP_ALL, w.w[k], apart);
    A other;
    memcpy(&other, &w, sizeof w);
    return other;
}

/* Lane 0 gets the warp's result. */
template <class W>
static __device__ __forceinline__ typename W::all join_warp(const W &way, typename W::all a)
{
    TN_ROLLED for (int apart = 16; apart > 0; apart /= 2)
    {
        a = way.join(a, from_lane_below(a, apart));
    }
    return a;
}

/* Thread 0 gets the block's result. */
template <class W>
static __device__ __forceinline__ typename W::all join_block(const W &way, typename W::all a)
{
    __shared__ words<typename W::all> of_warp[REDUCE_WARPS];
    int lane = threadIdx.x % 32;

    a = join_warp(way, a);
    if (lane == 0) memcpy(&of_warp[threadIdx.x / 32], &a, sizeof a);
    __syncthreads();
    if (threadIdx.x < 32) {
        a = way.empty();
        if (lane < REDUCE_WARPS) memcpy(&a, &of_warp[lane], sizeof a);
        a = join_warp(way, a);
    }
    __syncthreads();
    return a;
}

/* Elements begin + first, + step ... below end of the slice at x. */
template <class W>
static __device__ __forceinline__ typename W::all take_share(const W &way, const reduce_axes &r,
                                                             int64_t at, int64_t begin, int64_t end,
                                                             int64_t first, int64_t step)
{
    typedef typename W::item T;
    typename W::all all = way.empty();

    if (r.fours) { /* begin and at are multiples of four */
        int64_t fours = (end - begin) / 4;
        TN_ROLLED for (int64_t i = first; i < fours; i += W::group / 4 * step)
        {
            int64_t stop = min(fours, i + W::group / 4 * step);
            typename W::part part = way.start();
            for (int64_t j = i; j < stop; j += step) {
                T v[4];
                kin4(v, r.x, r.dtype, at + begin + 4 * j);
                TN_UNROLL
                for (int k = 0; k < 4; k++) way.add(part, v[k], begin + 4 * j + k);
            }
            all = way.join(all, way.widen(part));
        }
        int64_t left = begin + 4 * fours + first;
        if (left < end && first < 4) {
            typename W::part part = way.start();
            way.add(part, kin<T>::load(r.x, r.dtype, at + left), left);
            all = way.join(all, way.widen(part));
        }
        return all;
    }
    int64_t along = r.reduced.stride[0][0];
    bool straight = r.reduced.rank == 1;
    TN_ROLLED for (int64_t i = begin + first; i < end; i += W::group * step)
    {
        int64_t stop = min(end, i + W::group * step);
        typename W::part part = way.start();
        if (straight) {
            for (int64_t j = i; j < stop; j += step)
                way.add(part, kin<T>::load(r.x, r.dtype, at + j * along), j);
        } else {
            TN_ROLLED for (int64_t j = i; j < stop; j += step)
            {
                int64_t place[1];
                locate(r.reduced, j, place);
                way.add(part, kin<T>::load(r.x, r.dtype, at + place[0]), j);
            }
        }
        all = way.join(all, way.widen(part));
    }
    return all;
}

/* ---- kernels: way.at(o) is the way of result o, put.put takes it ----------------------------- */

/* A thread, a warp, a block for each result. */
template <class W, class P>
__global__ void reduce_threads(const __grid_constant__ reduce_axes r, const W way, const P put)
{
    for (int64_t step = grid_threads(), o = grid_thread(); o < r.kept.numel; o += step) {
        int64_t at[1];
        locate(r.kept, o, at);
        W mine = way.at(o);
        put.put(o, take_share(mine, r, at[0], 0, r.reduced.numel, 0, 1));
    }
}

template <class W, class P>
__global__ void reduce_warps(const __grid_constant__ reduce_axes r, const W way, const P put)
{
    int lane = threadIdx.x % 32;
    int64_t step = static_cast<int64_t>(gridDim.x) * REDUCE_WARPS;

    for (int64_t o = static_cast<int64_t>(blockIdx.x) * REDUCE_WARPS + threadIdx.x / 32;
         o < r.kept.numel; o += step) {
        int64_t at[1];
        locate(r.kept, o, at);
        W mine = way.at(o);
        typename W::all all =
            join_warp(mine, take_share(mine, r, at[0], 0, r.reduced.numel, lane, 32));
        if (lane == 0) put.put(o, all);
    }
}

/* left: NULL, or what the pieces leave, [kept][pieces], for reduce_pieces. */
template <class W, class P>
__global__ void reduce_blocks(const __grid_constant__ reduce_axes r, const W way, const P put,
                              typename W::all *left)
{
    for (int64_t i = blockIdx.x; i < r.kept.numel * r.pieces; i += gridDim.x) {
        int64_t o = i / r.pieces;
        int64_t piece = i % r.pieces;
        int64_t begin = piece * r.piece;
        int64_t at[1];
        locate(r.kept, o, at);
        W mine = way.at(o);
        typename W::all all = join_block(mine, take_share(mine, r, at[0], begin,
                                                          min(begin + r.piece, r.reduced.numel),
                                                          threadIdx.x, REDUCE_THREADS));
        if (threadIdx.x != 0) continue;
        if (left)
            left[i] = all;
        else
            put.put(o, all);
    }
}

/* As take_share, for four neighbouring results: elements begin, + COLUMN_ROWS ... below end. Four
 * rows are read before the first is added. */
template <class S, class W>
static __device__ __forceinline__ void take_columns(const W (&way)[4], typename W::all (&all)[4],
                                                    const reduce_axes &r, int64_t at, int64_t begin,
                                                    int64_t end)
{
    int64_t step = COLUMN_ROWS * r.reduced.stride[0][0];
    const S *x = static_cast<const S *>(r.x) + at + begin * r.reduced.stride[0][0];

    for (int64_t i = begin; i < end; i += W::group * COLUMN_ROWS) {
        int64_t stop = min(end, i + W::group * COLUMN_ROWS);
        typename W::part part[4];
        TN_UNROLL
        for (int k = 0; k < 4; k++) part[k] = way[k].start();
        TN_ROLLED for (int64_t j = i; j < stop; j += 4 * COLUMN_ROWS, x += 4 * step)
        {
            int rows = static_cast<int>(min(stop - j, INT64_C(4) * COLUMN_ROWS));
            four<S> q[4] = {};
            TN_UNROLL
            for (int u = 0; u < 4; u++)
                if (u * COLUMN_ROWS < rows) q[u] = fetch<S>(x, u * step);
            TN_UNROLL
            for (int u = 0; u < 4; u++) {
                if (u * COLUMN_ROWS >= rows) break;
                TN_UNROLL
                for (int k = 0; k < 4; k++)
                    way[k].add(part[k], wide(q[u].v[k]), j + u * COLUMN_ROWS);
            }
        }
        TN_UNROLL
        for (int k = 0; k < 4; k++) all[k] = way[k].join(all[k], way[k].widen(part[k]));
    }
}

/* 32 V neighbouring results a block, V a thread; its rows of threads take every COLUMN_ROWS-th
 * element. */
template <int V, class W, class P>
__global__ void reduce_columns(const __grid_constant__ reduce_axes r, const W way, const P put,
                               typename W::all *left)
{
    __shared__ words<typename W::all> of_row[COLUMN_ROWS][V][32];
    int lane = threadIdx.x % 32;
    int row = threadIdx.x / 32;
    int64_t tiles = (r.kept.numel + 32 * V - 1) / (32 * V);

    for (int64_t i = blockIdx.x; i < tiles * r.pieces; i += gridDim.x) {
        int64_t o = (i % tiles * 32 + lane) * V;
        int64_t piece = i / tiles;
        int64_t begin = piece * r.piece;
        int64_t end = min(begin + r.piece, r.reduced.numel);
        typename W::all all[V];

        TN_UNROLL
        for (int k = 0; k < V; k++) all[k] = way.empty();
        if (o < r.kept.numel) {
            int64_t at[1];
            locate(r.kept, o, at);
            W mine[V];
            TN_UNROLL
            for (int k = 0; k < V; k++) mine[k] = way.at(o + k);
            if constexpr (V == 1)
                all[0] = take_share(mine[0], r, at[0], begin, end, row, COLUMN_ROWS);
            else if (r.dtype == TN_F32)
                take_columns<float>(mine, all, r, at[0], begin + row, end);
            else if (r.dtype == TN_BF16)
                take_columns<bf16>(mine, all, r, at[0], begin + row, end);
            else
                take_columns<f16>(mine, all, r, at[0], begin + row, end);
        }
        TN_UNROLL
        for (int k = 0; k < V; k++) memcpy(&of_row[row][k][lane], &all[k], sizeof all[k]);
        __syncthreads();
        if (row < V && o < r.kept.numel) { /* row k joins the k-th results */
            typename W::all joined = all[0], other;
            for (int k = 0; k < COLUMN_ROWS; k++) {
                memcpy(&other, &of_row[k][row][lane], sizeof other);
                joined = k == 0 ? other : way.join(joined, other);
            }
            if (left)
                left[(o + row) * r.pieces + piece] = joined;
            else
                put.put(o + row, joined);
        }
        __syncthreads();
    }
}

/* Joins the results of the pieces. */
template <class W, class P>
__global__ void reduce_pieces(const W way, const typename W::all *left, int64_t kept,
                              int64_t pieces, const P put)
{
    int lane = threadIdx.x % 32;
    int64_t step = static_cast<int64_t>(gridDim.x) * REDUCE_WARPS;

    for (int64_t o = static_cast<int64_t>(blockIdx.x) * REDUCE_WARPS + threadIdx.x / 32; o < kept;
         o += step) {
        typename W::all all = way.empty();
        for (int64_t k = lane; k < pieces; k += 32) all = way.join(all, left[o * pieces + k]);
        all = join_warp(way, all);
        if (lane == 0) put.put(o, all);
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

typedef enum { BY_THREADS, BY_WARPS, BY_BLOCKS, BY_COLUMNS } reduce_layout;

/* Axes of x and of up to two arrays of results, those of x innermost first; merged where they are
 * one run in all three. */
typedef struct reduce_strides {
    int64_t x, y, z;
} reduce_strides;

struct reduce_side {
    int rank;
    int64_t size[TN_MAX_RANK];
    reduce_strides stride[TN_MAX_RANK];
};

static inline void reduce_add_axis(reduce_side *s, int64_t size, reduce_strides stride)
{
    int j = s->rank++;

    for (; j > 0 && s->stride[j - 1].x > stride.x; j--) {
        s->size[j] = s->size[j - 1];
        s->stride[j] = s->stride[j - 1];
    }
    s->size[j] = size;
    s->stride[j] = stride;
}

static inline void reduce_merge_axes(reduce_side *s)
{
    int last = 0;

    if (s->rank == 0) reduce_add_axis(s, 1, { 0, 0, 0 });
    for (int d = 1; d < s->rank; d++) {
        reduce_strides a = s->stride[last];
        reduce_strides b = s->stride[d];
        int64_t n = s->size[last];
        if (b.x == a.x * n && b.y == a.y * n && b.z == a.z * n) {
            s->size[last] *= s->size[d];
        } else {
            last++;
            s->size[last] = s->size[d];
            s->stride[last] = b;
        }
    }
    s->rank = last + 1;
}

/* The places in x (N = 1), or in the results (N = 2). */
static inline void reduce_places(places<1> *w, const reduce_side &s)
{
    w->rank = s.rank;
    for (int d = 0; d < s.rank; d++) {
        w->size[d] = s.size[d];
        w->stride[d][0] = s.stride[d].x;
    }
    places_finish(w);
}

static inline void reduce_places(places<2> *w, const reduce_side &s)
{
    w->rank = s.rank;
    for (int d = 0; d < s.rank; d++) {
        w->size[d] = s.size[d];
        w->stride[d][0] = s.stride[d].y;
        w->stride[d][1] = s.stride[d].z;
    }
    places_finish(w);
}

/* x's axes by whether y has one element there; z may be NULL. false: there are no results. */
static inline bool reduce_plan(reduce_axes *r, places<2> *results, const tni_array *y,
                               const tni_array *z, const tni_array *x)
{
    reduce_side kept, reduced;

    kept.rank = reduced.rank = 0;
    for (int d = 0; d < x->rank; d++) {
        if (x->size[d] == 1) continue;
        if (y->size[d] == x->size[d]) {
            reduce_add_axis(&kept, x->size[d],
                            { x->stride[d], y->stride[d], z ? z->stride[d] : 0 });
        } else {
            reduce_add_axis(&reduced, x->size[d], { x->stride[d], 0, 0 });
        }
    }
    reduce_merge_axes(&kept);
    reduce_merge_axes(&reduced);
    reduce_places(&r->kept, kept);
    reduce_places(&r->reduced, reduced);
    reduce_places(results, kept);
    r->x = x->data;
    r->dtype = x->dtype;
    return r->kept.numel > 0;
}

/* Whether four neighbours along the reduced axis (or for columns four neighbouring results) are one
 * access. */
static inline bool reduce_fours(const reduce_axes &r, bool columns)
{
    const places<1> &along = columns ? r.kept : r.reduced;
    const places<1> &across = columns ? r.reduced : r.kept;
    size_t item = item_size(r.dtype);
    bool good = r.reduced.rank == 1 && along.stride[0][0] == 1 &&
                (!columns || along.size[0] % 4 == 0) &&
                reinterpret_cast<uintptr_t>(r.x) % (4 * item < 16 ? 4 * item : 16) == 0;

    for (int d = 1; d < along.rank; d++) good = good && along.stride[d][0] % 4 == 0;
    for (int d = 0; d < across.rank; d++)
        good = good && (across.size[d] == 1 || across.stride[d][0] % 4 == 0);
    return good;
}

/* floats: what elements are read as; columns of others are not taken by fours. */
static inline reduce_layout reduce_cut(reduce_axes *r, bool floats)
{
    int64_t kept = r->kept.numel;
    int64_t n = r->reduced.numel;
    int64_t across = r->kept.stride[0][0];
    bool columns = r->kept.size[0] > 1 && across < r->reduced.stride[0][0] && n > 1;

    r->pieces = 1;
    r->piece = n;
    r->fours = false;
    if (n <= SHORT_ROW) return BY_THREADS;
    r->fours = (floats || !columns) && reduce_fours(*r, columns);
    if (columns) {
        int64_t width = r->fours ? 128 : 32;
        int64_t tiles = (kept + width - 1) / width;
        int64_t most = (n + 8 * COLUMN_ROWS - 1) / (8 * COLUMN_ROWS); /* 8 elements a thread */
        r->pieces = max(INT64_C(1), min(PIECES / tiles, most));
        r->piece = (n + r->pieces - 1) / r->pieces;
        r->pieces = (n + r->piece - 1) / r->piece;
        return BY_COLUMNS;
    }
    if (n <= WARP_ROW) return BY_WARPS;
    r->pieces = max(INT64_C(1), min(PIECES / kept, (n + LEAST_PIECE - 1) / LEAST_PIECE));
    r->piece = ((n + r->pieces - 1) / r->pieces + 3) / 4 * 4;
    r->pieces = (n + r->piece - 1) / r->piece;
    return BY_BLOCKS;
}

template <class W, class P> static tn_status reduce_run(reduce_axes r, const W &way, const P &put)
{
    typedef typename W::all A;
    constexpr bool floats = std::is_same<typename W::item, float>::value;
    reduce_layout layout = reduce_cut(&r, floats);
    int64_t kept = r.kept.numel;
    int64_t most = 64LL * tni_cuda_multiprocessors();
    tni_cuda_scratch left;

    if (layout == BY_THREADS) {
        return TN_LAUNCH((reduce_threads<W, P>), tni_cuda_blocks(kept, REDUCE_THREADS, most),
                         REDUCE_THREADS, 0, r, way, put);
    }
    if (layout == BY_WARPS) {
        return TN_LAUNCH((reduce_warps<W, P>), tni_cuda_blocks(kept, REDUCE_WARPS, most),
                         REDUCE_THREADS, 0, r, way, put);
    }
    if (r.pieces > 1)
        if (tn_status failed = left.borrow(static_cast<size_t>(kept * r.pieces) * sizeof(A)))
            return failed;
    int64_t width = layout == BY_BLOCKS ? 1 : r.fours ? 128 : 32;
    unsigned grid = tni_cuda_blocks((kept + width - 1) / width * r.pieces, 1, most);
    A *to = left.as<A>();
    tn_status status = TN_OK;
    if (layout == BY_BLOCKS)
        status = TN_LAUNCH((reduce_blocks<W, P>), grid, REDUCE_THREADS, 0, r, way, put, to);
    else if (!r.fours)
        status = TN_LAUNCH((reduce_columns<1, W, P>), grid, REDUCE_THREADS, 0, r, way, put, to);
    else if constexpr (floats)
        status = TN_LAUNCH((reduce_columns<4, W, P>), grid, REDUCE_THREADS, 0, r, way, put, to);
    if (status != TN_OK || !to) return status;
    return TN_LAUNCH((reduce_pieces<W, P>), tni_cuda_blocks(kept, REDUCE_WARPS, most),
                     REDUCE_THREADS, 0, way, static_cast<const A *>(to), kept, r.pieces, put);
}
