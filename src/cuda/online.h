/* online.h - the maximum of a row and the sum of exp(x - maximum), in one pass. */
#pragma once

#include "cuda/rows.h"
#include "cuda/half.h"

/* For no elements: -inf and 0. An element of -inf adds nothing until a larger one is there; a row
 * of nothing else ends with top -inf, and x - top is NaN, as it should be. */
template <typename R> struct online_sum {
    R top;
    double sum; /* of exp(x - top) */
};

template <typename R> static __device__ __forceinline__ void online_raise(online_sum<R> &s, R top)
{
    if (top > s.top) {
        s.sum *= static_cast<double>(row_exp(s.top - top));
        s.top = top;
    }
}

template <typename R, int K>
static __device__ __forceinline__ void online_add(online_sum<R> &s, const R (&v)[K])
{
    const R none = -ROW_INFINITY;
    R top = none, part = 0;
    TN_UNROLL
    for (int k = 0; k < K; k++) top = v[k] > top ? v[k] : top;
    online_raise(s, top);
    top = s.top == none ? 0 : s.top; /* not -inf - -inf */
    TN_UNROLL
    for (int k = 0; k < K; k++) part += row_exp(v[k] - top);
    s.sum += static_cast<double>(part);
}

/* Elements begin, begin + by, ... < c of a row, `stride` from neighbour to neighbour. */
template <typename E, typename R = typename element<E>::computing>
static __device__ __forceinline__ online_sum<R> online_row(const E *x, int64_t c, int64_t stride,
                                                           int64_t begin, int64_t by)
{
    enum { AT_ONCE = 8 };
    const R none = -ROW_INFINITY;
    online_sum<R> s = { none, 0 };
    for (int64_t j = begin; j < c; j += AT_ONCE * by) {
        R v[AT_ONCE];
        TN_UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = j + k * by < c ? wide(x[(j + k * by) * stride]) : none;
        online_add(s, v);
    }
    return s;
}

/* Joins the threads of a block: every thread gets the whole row's. */
template <typename R> static __device__ __forceinline__ void online_block(online_sum<R> &s)
{
    R top = block_max(s.top);
    s.sum = block_sum(s.sum * static_cast<double>(row_exp(s.top - top)));
    s.top = top;
}
