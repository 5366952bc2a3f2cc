/*
 * attention_grad.cu - the gradients of attention, from recomputed probabilities: with p = exp(s -
 * m) / l, both kept by forward, and delta_t = sum_d dy_td y_td
 *     dv = p^T dy     ds = p (dy v^T - delta) scale     dq = ds k     dk = ds^T q
 * One kernel goes over keys for dq, one over queries for dk and dv: nothing is added atomically,
 * and every sum has a fixed order. Besides the results only delta takes memory: B H T numbers.
 * Source: Dao et al., FlashAttention (2022), algorithm 4; Dao, FlashAttention-2 (2023), section 3.
 */
#include "cuda/attention.h"
#include "cuda/cudnn.h"

/* delta of a row by each warp. */
template <typename R>
static __global__ void __launch_bounds__(THREADS) attention_delta(attention<R> a)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t rows = a.items * a.t, step = gridDim.x * (int64_t)(THREADS / 32);
    for (int64_t r = blockIdx.x * (int64_t)(THREADS / 32) + threadIdx.x / 32; r < rows; r += step) {
        const int64_t item = r / a.t, t = r % a.t;
        const matrix<R> y = matrix_of(a.y, item / a.heads, item % a.heads);
        const matrix<R> dy = matrix_of(a.dy, item / a.heads, item % a.heads);
        R sum = 0;
        for (int c = lane; c < a.dv_size; c += 32)
            sum += y.data[t * y.row + c] * dy.data[t * dy.row + c];
        sum = warp_sum(sum);
        if (lane == 0) a.delta[r] = sum;
    }
}

/* A probability from the product q . k. */
template <typename R>
static __device__ __forceinline__ R probability(const attention<R> &a, int64_t mask, int query,
                                                int key, R product, R top, R share)
{
    return row_exp(score(a, mask, query, key, product) - top) * share; /* 0 for one unseen */
}

/* The gradient of the product q . k from the product dy . v. */
template <typename R>
static __device__ __forceinline__ R score_grad(const attention<R> &a, int query, int key, R p,
                                               R product, R delta)
{
    return sees(a, query, key) ? p * (product - delta) * a.scale : (R)0;
}

/* Probabilities wait in shared memory while the products dy . v are made: both would not fit into
 * registers. */

template <typename R, int NC>
static __global__ void __launch_bounds__(THREADS, sizeof(R) == 4 && NC <= 4 ? 3 : 2)
    attention_dq(attention<R> a)
{
    __shared__ __align__(16) R shared[slice<R>::both];
    __shared__ __align__(16) R tile[TILE * TILE];
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    const work w = work_of(a, blockIdx.x, a.causal);
    const matrix<R> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h);
    const matrix<R> dy = matrix_of(a.dy, w.b, w.h);
    const int q0 = w.tile * TILE, c0 = w.slice * TILE_COLUMNS * NC;
    const int limit = a.causal && q0 + TILE < a.s ? q0 + TILE : a.s;
    const int64_t mask = mask_of(a, w);
    R high[TM], share[TM], delta[TM], dq[TM][NC];
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        const int t = q0 + row * TM + i;
        high[i] = t < a.t ? a.top[w.item * a.t + t] : (R)0;
        share[i] = t < a.t ? a.share[w.item * a.t + t] : (R)0;
        delta[i] = t < a.t ? a.delta[w.item * a.t + t] : (R)0;
        TN_UNROLL
        for (int j = 0; j < NC; j++) dq[i][j] = 0;
    }
    for (int s0 = 0; s0 < limit; s0 += TILE) {
        R p[TM][TN];
        score_tile(p, shared, q, q0, a.t, k, s0, limit, a.d);
        TN_UNROLL
        for (int i = 0; i < TM; i++) {
            TN_UNROLL
            for (int j = 0; j < TN; j++)
                p[i][j] = probability(a, mask, q0 + row * TM + i, s0 + column * TN + j, p[i][j],
                                      high[i], share[i]);
        }
        keep_tile(tile, p);
        score_tile(p, shared, dy, q0, a.t, v, s0, limit, a.dv_size);
        TN_UNROLL
        for (int i = 0; i < TM; i++) {
            TN_UNROLL
            for (int j = 0; j < TN; j++)
                p[i][j] = score_grad(a, q0 + row * TM + i, s0 + column * TN + j, kept(tile, i, j),
                                     p[i][j], delta[i]);
        }
        keep_tile(tile, p); /* each thread its own part */
        add_product<R, NC>(dq, tile, shared, k, s0, limit, c0, a.d);
    }
    write<R, NC>(matrix_of(a.dq, w.b, w.h), q0, a.t, c0, a.d, dq);
}

/* Rows of the tile are keys, its columns queries. */
template <typename R, int NC>
static __global__ void __launch_bounds__(THREADS, sizeof(R) == 4 && NC == 2 ? 3 : 2)
    attention_dkv(attention<R> a)
{
    __shared__ __align__(16) R shared[slice<R>::both];
    __shared__ __align__(16) R tile[TILE * TILE];
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    const work w = work_of(a, blockIdx.x, false);
    const matrix<R> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h);
    const matrix<R> dy = matrix_of(a.dy, w.b, w.h);
    const int s0 = w.tile * TILE, c0 = w.slice * TILE_COLUMNS * NC;
    const int64_t mask = mask_of(a, w);
    R dk[TM][NC], dv[TM][NC];
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        TN_UNROLL
        for (int j = 0; j < NC; j++) dk[i][j] = dv[i][j] = 0;
    }
    for (int q0 = a.causal ? s0 : 0; q0 < a.t; q0 += TILE) {
        R p[TM][TN];
        score_tile(p, shared, k, s0, a.s, q, q0, a.t, a.d);
        TN_UNROLL
        for (int j = 0; j < TN; j++) {
            const int t = q0 + column * TN + j;
            const R top = t < a.t ? a.top[w.item * a.t + t] : (R)0;
            const R share = t < a.t ? a.share[w.item * a.t + t] : (R)0;
            TN_UNROLL
            for (int i = 0; i < TM; i++)
                p[i][j] = probability(a, mask, t, s0 + row * TM + i, p[i][j], top, share);
        }
        keep_tile(tile, p);
        add_product<R, NC>(dv, tile, shared, dy, q0, a.t, c0, a.dv_size);
        score_tile(p, shared, v, s0, a.s, dy, q0, a.t, a.dv_size);
        TN_UNROLL
        for (int j = 0; j < TN; j++) {
            const int t = q0 + column * TN + j;
            const R delta = t < a.t ? a.delta[w.item * a.t + t] : (R)0;
            TN_UNROLL
            for (int i = 0; i < TM; i++)
                p[i][j] = score_grad(a, t, s0 + row * TM + i, kept(tile, i, j), p[i][j], delta);
        }
        keep_tile(tile, p);
        add_product<R, NC>(dk, tile, shared, q, q0, a.t, c0, a.d);
    }
    write<R, NC>(matrix_of(a.dv, w.b, w.h), s0, a.s, c0, a.dv_size, dv);
    write<R, NC>(matrix_of(a.dk, w.b, w.h), s0, a.s, c0, a.d, dk);
}

template <typename R> static tn_status launch_dq(attention<R> a)
{
    if constexpr (sizeof(R) == 4) {
        if (a.d > 64) return LAUNCH(attention_dq, 8, a.t, a.d);
        if (a.d > 32) return LAUNCH(attention_dq, 4, a.t, a.d);
    }
    return LAUNCH(attention_dq, 2, a.t, a.d);
}

template <typename R> static tn_status launch_dkv(attention<R> a)
{
    int columns = a.d > a.dv_size ? a.d : a.dv_size;
    if constexpr (sizeof(R) == 4)
        if (columns > 32) return LAUNCH(attention_dkv, 4, a.s, columns);
    return LAUNCH(attention_dkv, 2, a.s, columns);
}

template <typename R> static tn_status backward(const tni_attention_grad *g)
{
    tni_cuda_scratch delta;
    attention<R> a;

    if (tn_status failed = plan_grad(g, &a, &delta)) return failed;
    if (a.items == 0) return TN_OK;
    if (a.t > 0) {
        if (tn_status failed =
                TN_LAUNCH((attention_delta<R>), tni_cuda_blocks(a.items * a.t, THREADS / 32, 65535),
                          THREADS, 0, a))
            return failed;
        if (a.d > 0)
            if (tn_status failed = launch_dq(a)) return failed;
    }
    return a.s > 0 && (a.d > 0 || a.dv_size > 0) ? launch_dkv(a) : TN_OK;
}

static tn_status backward_in_f32(const tni_attention_grad *g)
{
    tni_attention_grad f = *g;
    const tni_array *from[] = { &g->of.q, &g->of.k, &g->of.v, &g->of.y, &g->of.mask,
                                &g->dy,   &g->dq,   &g->dk,   &g->dv };
    tni_array *to[] = {
        &f.of.q, &f.of.k, &f.of.v, &f.of.y, &f.of.mask, &f.dy, &f.dq, &f.dk, &f.dv
    };
    tni_cuda_scratch block;

    if (tn_status failed = f32_copies(9, to, from, 6, block)) return failed;
    tn_status status = backward<float>(&f);
    for (int i = 6; i < 9 && status == TN_OK; i++) status = copy_to(*from[i], *to[i]);
    return status;
}

tn_status tni_cuda_attention_grad(const tni_attention_grad *a)
{
    bool done;

    if (tn_status failed = fits(&a->of)) return failed;
    if (tn_status failed = tni_cudnn_attention_grad(a, &done); failed != TN_OK || done)
        return failed;
    if (tni_is_half(a->of.q.dtype))
        return has_wide_heads(&a->of) ? backward_in_f32(a) : tni_cuda_half_attention_grad(a);
    return TN_REAL(a->of.q.dtype, backward<R>(a));
}
