/* attention_rows.h - elementwise work on scores in registers (their layout: attention_half.h):
 * masks, the online softmax, recomputed probabilities and gradients. */
#pragma once

#include "cuda/attention_half.h"

/* Over the four lanes that share a row. */
static __device__ __forceinline__ float row_max(float x)
{
    TN_UNROLL
    for (int step = 1; step < 4; step *= 2) x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, step));
    return x;
}

static __device__ __forceinline__ float row_sum(float x)
{
    TN_UNROLL
    for (int step = 1; step < 4; step *= 2) x += __shfl_xor_sync(WARP_ALL, x, step);
    return x;
}

/* ---- forward: the softmax as keys go by ------------------------------------------------------ */

/*
 * How scores are kept: MASKED as they are, scaled and masked; else (no mask, scale > 0) as products
 * without the scale, which the exponent takes: exp(scale (s - m)) = 2^(u s - u m), u = scale log2
 * e, is one multiplication and addition. A mask may be as large as its type allows, and would
 * overflow when multiplied by log2 e: there the difference is taken first.
 */
template <bool MASKED> struct exponent {
    float unit, base; /* base: of what is subtracted */
    __device__ __forceinline__ exponent(float scale, float subtract)
        : unit(MASKED ? LOG2E : scale * LOG2E), base(MASKED ? subtract : subtract * unit)
    {
    }
    __device__ __forceinline__ float of(float score) const
    {
        return power2(MASKED ? (score - base) * unit : fmaf(score, unit, -base));
    }
};

/* A product q . k as kept; -inf where the query does not see the key. */
template <bool MASKED, typename E>
static __device__ __forceinline__ float kept_score(const attention<E> &a, int64_t mask, int query,
                                                   int key, float product)
{
    if (MASKED) return score(a, mask, query, key, product);
    return sees(a, query, key) ? product : -INFINITY;
}

/* A row so far: its largest score, this lane's share of the sum of powers. */
template <int MT> struct row_state {
    float top[MT][2], sum[MT][2];
};

template <int MT> static __device__ __forceinline__ void begin(row_state<MT> &row)
{
    TN_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        row.top[i / 2][i % 2] = -INFINITY;
        row.sum[i / 2][i % 2] = 0;
    }
}

/* Replaces scores by powers; scales down what came before the tile. */
template <bool MASKED, int MT, int NT, int COLUMNS>
static __device__ __forceinline__ void soften(row_state<MT> &row, fragments<MT, NT> &p,
                                              fragments<MT, COLUMNS> &y, float scale)
{
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int half = 0; half < 2; half++) {
            const float before = row.top[m][half];
            float high = -INFINITY, total = 0;
            TN_UNROLL
            for (int n = 0; n < NT; n++)
                high = fmaxf(high, fmaxf(p.x[m][n][2 * half], p.x[m][n][2 * half + 1]));
            const float top = fmaxf(before, row_max(high));
            /* while every key so far is masked nothing is subtracted: 2^-inf is 0 */
            const exponent<MASKED> power(scale, top == -INFINITY ? 0 : top);
            const float shrink = power.of(before);
            TN_UNROLL
            for (int n = 0; n < NT; n++) {
                TN_UNROLL
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    p.x[m][n][i] = power.of(p.x[m][n][i]);
                    total += p.x[m][n][i];
                }
            }
            row.top[m][half] = top;
            row.sum[m][half] = row.sum[m][half] * shrink + total;
            TN_UNROLL
            for (int n = 0; n < COLUMNS; n++) {
                TN_UNROLL
                for (int i = 2 * half; i < 2 * half + 2; i++) y.x[m][n][i] *= shrink;
            }
        }
    }
}

/* Products of the warp's queries from `first` on with keys from s0 on, as kept. */
template <bool MASKED, typename E, int MT, int NT>
static __device__ __forceinline__ void see(const attention<E> &a, int64_t mask, int first, int s0,
                                           fragments<MT, NT> &p)
{
    const bool edge = s0 + 8 * NT > a.s || (a.causal && s0 + 8 * NT - 1 > first);
    if (!MASKED && !edge) return;
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int n = 0; n < NT; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i++)
                p.x[m][n][i] = kept_score<MASKED>(a, mask, first + 16 * m + row_in(i),
                                                  s0 + 8 * n + column_in(i), p.x[m][n][i]);
        }
    }
}

/* Divides, and writes the largest scores, as kept, and what was multiplied by. */
template <bool MASKED, typename E, int MT, int COLUMNS>
static __device__ __forceinline__ void finish(const attention<E> &a, const work &w, int first,
                                              const row_state<MT> &row, fragments<MT, COLUMNS> &y)
{
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int half = 0; half < 2; half++) {
            const float sum = row_sum(row.sum[m][half]), top = row.top[m][half];
            const float factor = sum == 0 ? 0 : 1 / sum; /* an empty sum is 0 */
            const int t = first + 16 * m + row_in(2 * half);
            TN_UNROLL
            for (int n = 0; n < COLUMNS; n++) {
                TN_UNROLL
                for (int i = 2 * half; i < 2 * half + 2; i++) y.x[m][n][i] *= factor;
            }
            if (!a.top || column_in(0) != 0 || t >= a.t) continue;
            a.top[w.item * a.t + t] = top == -INFINITY ? 0 : top;
            a.share[w.item * a.t + t] = factor;
        }
    }
}

/* ---- backward: probabilities again ----------------------------------------------------------- */

/* What is kept of a query, and delta: p = share 2^(...), as forward computed it. */
struct query_numbers {
    float base, share, delta;
};

template <bool MASKED, typename E>
static __device__ __forceinline__ query_numbers query_of(const attention<E> &a, int64_t item, int t)
{
    const int64_t at = item * a.t + t;
    if (t >= a.t) return query_numbers{ 0, 0, 0 };
    return query_numbers{ exponent<MASKED>(a.scale, a.top[at]).base, a.share[at], a.delta[at] };
}

/* A probability from the product q . k, of a key that the query sees. */
template <bool MASKED, typename E>
static __device__ __forceinline__ float probability(const attention<E> &a, int64_t mask, int query,
                                                    int key, float product, const query_numbers &of)
{
    if (MASKED) return power2((score(a, mask, query, key, product) - of.base) * LOG2E) * of.share;
    return power2(fmaf(product, a.scale * LOG2E, -of.base)) * of.share;
}

/* For a lane's rows, where rows are queries. */
template <int MT> struct row_numbers {
    query_numbers of[MT][2];
};

template <bool MASKED, int MT, typename E>
static __device__ __forceinline__ row_numbers<MT> numbers_of(const attention<E> &a, int64_t item,
                                                             int first)
{
    row_numbers<MT> r;
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int half = 0; half < 2; half++)
            r.of[m][half] = query_of<MASKED>(a, item, first + 16 * m + row_in(2 * half));
    }
    return r;
}

/* Rows are queries from `first` on, columns keys from s0 on: the products q . k become
 * probabilities, the products dy . v in ds gradients of scale q . k. */
template <bool MASKED, typename E, int MT, int NT>
static __device__ __forceinline__ void
score_grads(const attention<E> &a, int64_t mask, int first, int s0, const row_numbers<MT> &row,
            const fragments<MT, NT> &products, fragments<MT, NT> &ds)
{
    const bool edge = s0 + 8 * NT > a.s || (a.causal && s0 + 8 * NT - 1 > first);
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int n = 0; n < NT; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i++) {
                const int t = first + 16 * m + row_in(i), s = s0 + 8 * n + column_in(i);
                const query_numbers &of = row.of[m][i / 2];
                const float p = probability<MASKED>(a, mask, t, s, products.x[m][n][i], of);
                ds.x[m][n][i] = p * (ds.x[m][n][i] - of.delta);
                if (edge && !sees(a, t, s)) ds.x[m][n][i] = 0;
            }
        }
    }
}

/* Rows are keys from `first` on, columns queries from q0 on, whose numbers lie side by side. */
template <typename E, int MT, int NT>
static __device__ __forceinline__ bool has_unseen(const attention<E> &a, int first, int q0,
                                                  const fragments<MT, NT> &)
{
    return q0 + 8 * NT > a.t || first + 16 * MT > a.s || (a.causal && q0 < first + 16 * MT - 1);
}

template <bool MASKED, typename E, int MT, int NT>
static __device__ __forceinline__ void
turned_probabilities(const attention<E> &a, int64_t mask, int first, int q0,
                     const query_numbers *of, fragments<MT, NT> &p)
{
    const bool edge = has_unseen(a, first, q0, p);
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int n = 0; n < NT; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i++) {
                const int s = first + 16 * m + row_in(i), column = 8 * n + column_in(i);
                p.x[m][n][i] =
                    probability<MASKED>(a, mask, q0 + column, s, p.x[m][n][i], of[column]);
                if (edge && !sees(a, q0 + column, s)) p.x[m][n][i] = 0;
            }
        }
    }
}

template <typename E, int MT, int NT>
static __device__ __forceinline__ void
turned_score_grads(const attention<E> &a, int first, int q0, const query_numbers *of,
                   const fragments<MT, NT> &p, fragments<MT, NT> &ds)
{
    const bool edge = has_unseen(a, first, q0, p);
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int n = 0; n < NT; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i++) {
                const int s = first + 16 * m + row_in(i), column = 8 * n + column_in(i);
                ds.x[m][n][i] = p.x[m][n][i] * (ds.x[m][n][i] - of[column].delta);
                if (edge && !sees(a, q0 + column, s)) ds.x[m][n][i] = 0;
            }
        }
    }
}

template <int MT, int COLUMNS>
static __device__ __forceinline__ void multiply_by(fragments<MT, COLUMNS> &f, float factor)
{
    TN_UNROLL
    for (int m = 0; m < MT; m++) {
        TN_UNROLL
        for (int n = 0; n < COLUMNS; n++) {
            TN_UNROLL
            for (int i = 0; i < 4; i++) f.x[m][n][i] *= factor;
        }
    }
}
