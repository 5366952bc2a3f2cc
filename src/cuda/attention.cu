/*
 * attention.cu - softmax(scale q k^T + mask) v without the T x S matrix.
 *
 * For each row: m the largest score so far, l = sum of exp(s - m), y = sum of exp(s - m) v; a new
 * tile of keys scales l and y by exp(m_old - m_new). At the end y /= l, or 0 where no key is seen;
 * m and 1 / l are kept. Tiles in the causal future are skipped. No memory is allocated. Every sum
 * has a fixed order.
 * Source: Dao et al., FlashAttention (2022), algorithm 1; Dao, FlashAttention-2 (2023), section 3.
 */
#include "cuda/attention.h"
#include "cuda/cudnn.h"

template <typename R, int NC>
static __global__ void __launch_bounds__(THREADS, sizeof(R) == 4 && NC <= 4 ? 3 : 2)
    attention_forward(attention<R> a)
{
    __shared__ __align__(16) R shared[slice<R>::both];
    __shared__ __align__(16) R tile[TILE * TILE];
    const int row = (int)threadIdx.x / TILE_COLUMNS, column = (int)threadIdx.x % TILE_COLUMNS;
    const work w = work_of(a, blockIdx.x, a.causal);
    const matrix<R> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h);
    const int q0 = w.tile * TILE, c0 = w.slice * TILE_COLUMNS * NC;
    const int limit = a.causal && q0 + TILE < a.s ? q0 + TILE : a.s;
    const int64_t mask = mask_of(a, w);
    R top[TM], sum[TM], y[TM][NC];
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        top[i] = -(R)INFINITY;
        sum[i] = 0;
        TN_UNROLL
        for (int j = 0; j < NC; j++) y[i][j] = 0;
    }
    for (int s0 = 0; s0 < limit; s0 += TILE) {
        R p[TM][TN];
        score_tile(p, shared, q, q0, a.t, k, s0, limit, a.d);
        TN_UNROLL
        for (int i = 0; i < TM; i++) {
            R high = -(R)INFINITY;
            TN_UNROLL
            for (int j = 0; j < TN; j++) {
                p[i][j] = score(a, mask, q0 + row * TM + i, s0 + column * TN + j, p[i][j]);
                high = p[i][j] > high ? p[i][j] : high;
            }
            high = columns_max(high);
            const R before = top[i];
            top[i] = high > before ? high : before;
            /* while every key so far is masked nothing is subtracted: exp(-inf) is 0 */
            const R base = top[i] == -(R)INFINITY ? (R)0 : top[i];
            R total = 0;
            TN_UNROLL
            for (int j = 0; j < TN; j++) {
                p[i][j] = row_exp(p[i][j] - base);
                total += p[i][j];
            }
            const R shrink = before == -(R)INFINITY ? (R)0 : row_exp(before - base);
            sum[i] = sum[i] * shrink + columns_sum(total);
            TN_UNROLL
            for (int j = 0; j < NC; j++) y[i][j] *= shrink;
        }
        keep_tile(tile, p);
        add_product<R, NC>(y, tile, shared, v, s0, limit, c0, a.dv_size);
    }
    TN_UNROLL
    for (int i = 0; i < TM; i++) {
        const R factor = sum[i] == 0 ? (R)0 : (R)1 / sum[i]; /* an empty sum is 0 */
        TN_UNROLL
        for (int j = 0; j < NC; j++) y[i][j] *= factor;
        const int t = q0 + row * TM + i;
        if (!a.top || w.slice != 0 || column != 0 || t >= a.t) continue;
        a.top[w.item * a.t + t] = top[i] == -(R)INFINITY ? (R)0 : top[i];
        a.share[w.item * a.t + t] = factor;
    }
    write<R, NC>(matrix_of(a.y, w.b, w.h), q0, a.t, c0, a.dv_size, y);
}

template <typename R> static tn_status forward(const tni_attention *g)
{
    attention<R> a = plan<R>(g);
    if (a.items == 0 || a.t == 0) return TN_OK;
    if constexpr (sizeof(R) == 4) {
        if (a.dv_size > 64) return LAUNCH(attention_forward, 8, a.t, a.dv_size);
        if (a.dv_size > 32) return LAUNCH(attention_forward, 4, a.t, a.dv_size);
    }
    return LAUNCH(attention_forward, 2, a.t, a.dv_size);
}

/* Heads too wide for the tensor cores' kernels. */
static tn_status in_f32(const tni_attention *g)
{
    tni_attention f = *g;
    const tni_array *from[] = { &g->q, &g->k, &g->v, &g->mask, &g->y };
    tni_array *to[] = { &f.q, &f.k, &f.v, &f.mask, &f.y };
    tni_cuda_scratch block;

    if (tn_status failed = f32_copies(5, to, from, 4, block)) return failed;
    if (tn_status failed = forward<float>(&f)) return failed;
    return copy_to(g->y, f.y);
}

tn_status tni_cuda_attention(const tni_attention *a)
{
    bool done;

    if (tn_status failed = fits(a)) return failed;
    if (tn_status failed = tni_cudnn_attention(a, &done); failed != TN_OK || done) return failed;
    if (tni_is_half(a->q.dtype)) return has_wide_heads(a) ? in_f32(a) : tni_cuda_half_attention(a);
    return TN_REAL(a->q.dtype, forward<R>(a));
}
