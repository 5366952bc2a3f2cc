/*
 * attention_half_grad.cu - the gradients of attention in bf16 and f16, from recomputed
 * probabilities: with p = exp(s - m) / l, both kept by forward, and delta_t = sum_d dy_td y_td
 *     dv = p^T dy     ds = p (dy v^T - delta)     dq = scale ds k     dk = scale ds^T q
 * One kernel goes over keys for dq, one over queries for dk and dv, as in attention_grad.cu: what
 * one kernel would add atomically is computed twice, and every sum has one order. In the second the
 * scores are transposed, keys by queries, so that p^T and ds^T are in registers as its products
 * need them. Two tiles of the other operands are in shared memory: one in use, the next one being
 * loaded. p and ds are rounded to E as operands; the scale comes last, so that gradients in f16
 * underflow later. Source: Dao, FlashAttention-2 (2023), algorithm 2.
 */
#include "cuda/attention_rows.h"

enum { OTHERS = 32, NT = OTHERS / 8 }; /* keys or queries of the moving tile */

template <int C> struct grad_tiles {
    static constexpr int MT = C <= 64 ? 2 : 1, rows = 16 * MT * WARPS; /* of the block */
    static constexpr int row_elements = rows * tile_row<C>::length;
    static constexpr int other_elements = OTHERS * tile_row<C>::length;
    static constexpr int elements = 2 * row_elements + 4 * other_elements;
};

/* ---- delta ----------------------------------------------------------------------------------- */

/* Four rows to a warp: eight lanes take a row, eight numbers at a time. */
template <typename E>
static __global__ void __launch_bounds__(THREADS) attention_half_delta(attention<E> a)
{
    const int lane = (int)threadIdx.x % 8;
    const int64_t rows = a.items * a.t, step = gridDim.x * (int64_t)(THREADS / 8);
    const int64_t from = blockIdx.x * (int64_t)(THREADS / 8) + threadIdx.x / 8;
    /* all lanes of a warp continue as long as the first: they sum together */
    for (int64_t r = from; r - threadIdx.x % 32 / 8 < rows; r += step) {
        const int64_t item = min(r, rows - 1) / a.t, t = min(r, rows - 1) % a.t;
        const matrix<E> y = matrix_of(a.y, item / a.heads, item % a.heads);
        const matrix<E> dy = matrix_of(a.dy, item / a.heads, item % a.heads);
        float sum = 0;
        for (int c = lane * 8; c < a.dv_size; c += 64) {
            const int n = min(a.dv_size - c, 8);
            const E *one = y.data + t * y.row + c, *other = dy.data + t * dy.row + c;
            const eight<E> u =
                y.quads && n == 8 ? *reinterpret_cast<const eight<E> *>(one) : few(one, n);
            const eight<E> v =
                dy.quads && n == 8 ? *reinterpret_cast<const eight<E> *>(other) : few(other, n);
            TN_UNROLL
            for (int j = 0; j < 8; j++) sum += wide(u.v[j]) * wide(v.v[j]);
        }
        TN_UNROLL
        for (int apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(WARP_ALL, sum, apart);
        if (lane == 0 && r < rows) a.delta[r] = sum;
    }
}

/* ---- dq: rows are queries -------------------------------------------------------------------- */

/* dq += ds k of the warp's queries from `first` on and the tile of keys from s0 on. */
template <bool MASKED, int C, int MT, typename E>
static __device__ __forceinline__ void
add_dq(const attention<E> &a, int64_t mask, int first, int s0, const row_numbers<MT> &row,
       const E *q, const E *dy, const E *k, const E *v, fragments<MT, C / 8> &dq)
{
    fragments<MT, NT> p, ds;
    clear(p);
    add_scores<E, C>(p, q, k);
    clear(ds);
    add_scores<E, C>(ds, dy, v);
    score_grads<MASKED>(a, mask, first, s0, row, p, ds);
    add_values<E, C>(dq, ds, k);
}

template <typename E, int C, bool MASKED>
static __global__ void __launch_bounds__(THREADS, 2) attention_half_dq(attention<E> a)
{
    typedef grad_tiles<C> tiles;
    constexpr int MT = tiles::MT;
    TN_DYNAMIC_SHARED(E, q_tile);
    E *dy_tile = q_tile + tiles::row_elements, *k_tile = dy_tile + tiles::row_elements;
    E *v_tile = k_tile + 2 * tiles::other_elements;
    const work w = work_by_head(a, blockIdx.x, a.causal);
    const matrix<E> k = matrix_of(a.k, w.b, w.h), v = matrix_of(a.v, w.b, w.h);
    const int q0 = w.tile * tiles::rows, limit = a.causal ? min(a.s, q0 + tiles::rows) : a.s;
    const int own = (int)threadIdx.x / 32 * 16 * MT, first = q0 + own; /* of the warp's queries */
    const row_numbers<MT> row = numbers_of<MASKED, MT>(a, w.item, first);
    fragments<MT, C / 8> dq;
    clear(dq);
    load_tile<E, tiles::rows, C>(q_tile, matrix_of(a.q, w.b, w.h), q0, a.t, 0, a.d);
    load_tile<E, tiles::rows, C>(dy_tile, matrix_of(a.dy, w.b, w.h), q0, a.t, 0, a.dv_size);
    load_tile<E, OTHERS, C>(k_tile, k, 0, limit, 0, a.d);
    load_tile<E, OTHERS, C>(v_tile, v, 0, limit, 0, a.dv_size);
    for (int s0 = 0, now = 0; s0 < limit; s0 += OTHERS, now ^= 1) {
        copies_wait();
        __syncthreads(); /* this tile is there, and the one before it is used */
        if (s0 + OTHERS < limit) {
            E *next = k_tile + (now ^ 1) * tiles::other_elements;
            load_tile<E, OTHERS, C>(next, k, s0 + OTHERS, limit, 0, a.d);
            next = v_tile + (now ^ 1) * tiles::other_elements;
            load_tile<E, OTHERS, C>(next, v, s0 + OTHERS, limit, 0, a.dv_size);
        }
        if (first < a.t && (!a.causal || s0 < first + 16 * MT))
            add_dq<MASKED, C>(a, mask_of(a, w), first, s0, row, q_tile + own * tile_row<C>::length,
                              dy_tile + own * tile_row<C>::length,
                              k_tile + now * tiles::other_elements,
                              v_tile + now * tiles::other_elements, dq);
    }
    copies_wait();
    __syncthreads();
    multiply_by(dq, a.scale);
    write_rows<E, C>(matrix_of(a.dq, w.b, w.h), first, a.t, 0, a.d, dq,
                     q_tile + own * tile_row<C>::length);
}

/* ---- dk and dv: rows are keys ---------------------------------------------------------------- */

/* The same sums for the warp's keys from `first` on and the tile of queries from q0 on, whose
 * numbers lie at `of`. */
template <bool MASKED, int C, int MT, typename E>
static __device__ __forceinline__ void
add_dkv(const attention<E> &a, int64_t mask, int first, int q0, const query_numbers *of, const E *k,
        const E *v, const E *q, const E *dy, fragments<MT, C / 8> &dk, fragments<MT, C / 8> &dv)
{
    fragments<MT, NT> p, ds;
    clear(p);
    add_scores<E, C>(p, k, q);
    turned_probabilities<MASKED>(a, mask, first, q0, of, p);
    add_values<E, C>(dv, p, dy);
    clear(ds);
    add_scores<E, C>(ds, v, dy);
    turned_score_grads(a, first, q0, of, p, ds);
    add_values<E, C>(dk, ds, q);
}

template <typename E, int C, bool MASKED>
static __global__ void __launch_bounds__(THREADS, 2) attention_half_dkv(attention<E> a)
{
    typedef grad_tiles<C> tiles;
    constexpr int MT = tiles::MT;
    __shared__ query_numbers numbers[2][OTHERS];
    TN_DYNAMIC_SHARED(E, k_tile);
    E *v_tile = k_tile + tiles::row_elements, *q_tile = v_tile + tiles::row_elements;
    E *dy_tile = q_tile + 2 * tiles::other_elements;
    const work w = work_by_head(a, blockIdx.x, false);
    const matrix<E> q = matrix_of(a.q, w.b, w.h), dy = matrix_of(a.dy, w.b, w.h);
    const int s0 = w.tile * tiles::rows, q_first = a.causal ? s0 : 0;
    const int own = (int)threadIdx.x / 32 * 16 * MT, first = s0 + own; /* of the warp's keys */
    E *k_rows = k_tile + own * tile_row<C>::length, *v_rows = v_tile + own * tile_row<C>::length;
    fragments<MT, C / 8> dk, dv;
    clear(dk);
    clear(dv);
    load_tile<E, tiles::rows, C>(k_tile, matrix_of(a.k, w.b, w.h), s0, a.s, 0, a.d);
    load_tile<E, tiles::rows, C>(v_tile, matrix_of(a.v, w.b, w.h), s0, a.s, 0, a.dv_size);
    if (q_first < a.t) {
        load_tile<E, OTHERS, C>(q_tile, q, q_first, a.t, 0, a.d);
        load_tile<E, OTHERS, C>(dy_tile, dy, q_first, a.t, 0, a.dv_size);
        if (threadIdx.x < OTHERS)
            numbers[0][threadIdx.x] = query_of<MASKED>(a, w.item, q_first + (int)threadIdx.x);
    }
    for (int q0 = q_first, now = 0; q0 < a.t; q0 += OTHERS, now ^= 1) {
        query_numbers next_of = {};
        if (threadIdx.x < OTHERS)
            next_of = query_of<MASKED>(a, w.item, q0 + OTHERS + (int)threadIdx.x);
        copies_wait();
        __syncthreads(); /* this tile is there, and the one before it is used */
        if (q0 + OTHERS < a.t) {
            E *next = q_tile + (now ^ 1) * tiles::other_elements;
            load_tile<E, OTHERS, C>(next, q, q0 + OTHERS, a.t, 0, a.d);
            next = dy_tile + (now ^ 1) * tiles::other_elements;
            load_tile<E, OTHERS, C>(next, dy, q0 + OTHERS, a.t, 0, a.dv_size);
        }
        if (first < a.s && (!a.causal || q0 + OTHERS > first))
            add_dkv<MASKED, C>(a, mask_of(a, w), first, q0, numbers[now], k_rows, v_rows,
                               q_tile + now * tiles::other_elements,
                               dy_tile + now * tiles::other_elements, dk, dv);
        if (threadIdx.x < OTHERS) numbers[now ^ 1][threadIdx.x] = next_of;
    }
    copies_wait();
    __syncthreads();
    multiply_by(dk, a.scale);
    write_rows<E, C>(matrix_of(a.dk, w.b, w.h), first, a.s, 0, a.d, dk, k_rows);
    write_rows<E, C>(matrix_of(a.dv, w.b, w.h), first, a.s, 0, a.dv_size, dv, v_rows);
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename E, int C, bool MASKED> static tn_status launch_dq(attention<E> a)
{
    unsigned blocks;
    if (tn_status failed = cut(&a, a.t, grad_tiles<C>::rows, 1, 1, &blocks)) return failed;
    return LAUNCH_LARGE((attention_half_dq<E, C, MASKED>), blocks, 2 * grad_tiles<C>::elements, a);
}

template <typename E, int C, bool MASKED> static tn_status launch_dkv(attention<E> a)
{
    unsigned blocks;
    if (tn_status failed = cut(&a, a.s, grad_tiles<C>::rows, 1, 1, &blocks)) return failed;
    return LAUNCH_LARGE((attention_half_dkv<E, C, MASKED>), blocks, 2 * grad_tiles<C>::elements, a);
}

template <typename E> static tn_status queries_grad(const attention<E> &a)
{
    if (a.t == 0 || a.d == 0) return TN_OK;
    return BY_COLUMNS(launch_dq, E, a);
}

template <typename E> static tn_status keys_grad(const attention<E> &a)
{
    if (a.s == 0 || columns_of(a) == 0) return TN_OK;
    return BY_COLUMNS(launch_dkv, E, a);
}

template <typename E> static tn_status backward(const tni_attention_grad *g)
{
    tni_cuda_scratch delta;
    attention<E> a;

    if (tn_status failed = plan_grad(g, &a, &delta)) return failed;
    if (a.items == 0) return TN_OK;
    if (a.t > 0) {
        if (tn_status failed =
                TN_LAUNCH((attention_half_delta<E>),
                          tni_cuda_blocks(a.items * a.t, THREADS / 8, 65535), THREADS, 0, a))
            return failed;
        if (tn_status failed = queries_grad(a)) return failed;
    }
    return keys_grad(a);
}

tn_status tni_cuda_half_attention_grad(const tni_attention_grad *a)
{
    return a->of.q.dtype == TN_BF16 ? backward<bf16>(a) : backward<f16>(a);
}
