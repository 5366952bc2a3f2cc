/*
 * attention_half.cu - softmax(scale q k^T + mask) v in bf16 and f16 without the T x S matrix.
 *
 * A block takes 128 queries, each of its warps 32, and goes over the keys 64 at a time: scores,
 * largest score so far, probabilities, values, as in attention.cu, all in f32 registers; the
 * probabilities are rounded to E as operands of the tensor cores, y once at the end. The tile's
 * values are loaded while scores are computed, the next keys while values are added. With 32
 * queries a warp uses each operand from shared memory twice, to keep the tensor cores busy.
 * Source: Dao, FlashAttention-2 (2023), algorithm 1.
 */
#include "cuda/attention_rows.h"

enum { MT = 2, QUERIES = 16 * MT * WARPS };

template <int C, bool MASKED> struct forward_tiles {
    static constexpr int keys = (C <= 64 ? 64 : 32) / (MASKED ? 2 : 1);
    static constexpr int elements = (QUERIES + 2 * keys) * tile_row<C>::length;
};

template <typename E, int C, bool MASKED>
static __global__ void __launch_bounds__(THREADS, C <= 32 ? 3 : 2)
    attention_half_forward(attention<E> a)
{
    constexpr int KEYS = forward_tiles<C, MASKED>::keys;
    TN_DYNAMIC_SHARED(E, q_tile);
    E *k_tile = q_tile + QUERIES * tile_row<C>::length,
      *v_tile = k_tile + KEYS * tile_row<C>::length;
    const work w = work_by_head(a, blockIdx.x, a.causal);
    const matrix<E> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h);
    const int q0 = w.tile * QUERIES, limit = a.causal ? min(a.s, q0 + QUERIES) : a.s;
    const int own = (int)threadIdx.x / 32 * 16 * MT, first = q0 + own; /* of the warp's queries */
    E *q_rows = q_tile + own * tile_row<C>::length;
    fragments<MT, C / 8> y;
    clear(y);
    row_state<MT> row;
    begin(row);
    load_tile<E, QUERIES, C>(q_tile, q, q0, a.t, 0, a.d);
    load_tile<E, KEYS, C>(k_tile, k, 0, limit, 0, a.d);
    for (int s0 = 0; s0 < limit; s0 += KEYS) {
        const bool works = first < a.t && (!a.causal || s0 < first + 16 * MT);
        fragments<MT, KEYS / 8> p;
        copies_wait();
        __syncthreads(); /* the keys have arrived, the last values are used */
        load_tile<E, KEYS, C>(v_tile, v, s0, limit, 0, a.dv_size);
        if (works) {
            clear(p);
            add_scores<E, C>(p, q_rows, k_tile);
        }
        copies_wait();
        __syncthreads(); /* the values have arrived, the keys are used */
        if (s0 + KEYS < limit) load_tile<E, KEYS, C>(k_tile, k, s0 + KEYS, limit, 0, a.d);
        if (works) {
            see<MASKED>(a, mask_of(a, w), first, s0, p);
            soften<MASKED>(row, p, y, a.scale);
            add_values<E, C>(y, p, v_tile);
        }
    }
    copies_wait();
    __syncthreads();
    finish<MASKED>(a, w, first, row, y);
    write_rows<E, C>(matrix_of(a.y, w.b, w.h), first, a.t, 0, a.dv_size, y, q_rows);
}

template <typename E, int C, bool MASKED> static tn_status launch(attention<E> a)
{
    constexpr int BYTES = 2 * forward_tiles<C, MASKED>::elements;
    unsigned blocks;
    if (tn_status failed = cut(&a, a.t, QUERIES, 1, 1, &blocks)) return failed;
    return LAUNCH_LARGE((attention_half_forward<E, C, MASKED>), blocks, BYTES, a);
}

template <typename E> static tn_status forward(const tni_attention *g)
{
    attention<E> a = plan<E>(g);
    if (a.items == 0 || a.t == 0) return TN_OK;
    return BY_COLUMNS(launch, E, a);
}

tn_status tni_cuda_half_attention(const tni_attention *a)
{
    return a->q.dtype == TN_BF16 ? forward<bf16>(a) : forward<f16>(a);
}
