/*
 * attention_wide.cu - attention in bf16 and f16 where D or Dv is beyond 128: what attention_short.cu
 * and attention_short_grad.cu do, with operands that pass through shared memory 128 columns at a time.
 *
 * A block makes 128 columns of a result; where that has more, other blocks make the rest from scores of
 * their own. Nothing is loaded ahead: heads this wide are rare.
 */
#include "cuda/attention_rows.h"

enum { MT = 1, ROWS = 16 * MT * WARPS, OTHERS = 32, NT = OTHERS / 8, C = 128, COLUMNS = C / 8 };
enum { LEFT = ROWS * tile_row<C>::length, RIGHT = OTHERS * tile_row<C>::length };

typedef fragments<MT, NT> scores;
typedef fragments<MT, COLUMNS> result;

/* The warp's first row in the block. */
static __device__ __forceinline__ int own_rows()
{
    return (int)threadIdx.x / 32 * 16 * MT;
}

/* sum = a b^T: rows of a from a0 on by rows of b from b0 on, over all columns. */
template <typename E>
static __device__ __forceinline__ void make_scores(scores &sum, const matrix<E> &a, int a0, int a_rows,
                                                   const matrix<E> &b, int b0, int b_rows,
                                                   int columns, E *left, E *right)
{
    clear(sum);
    for (int c0 = 0; c0 < columns; c0 += C) {
        __syncthreads(); /* what is there is used */
        load_tile<E, ROWS, C>(left, a, a0, a_rows, c0, columns);
        load_tile<E, OTHERS, C>(right, b, b0, b_rows, c0, columns);
        copies_wait();
        __syncthreads();
        add_scores<E, C>(sum, left + own_rows() * tile_row<C>::length, right);
    }
}

/* sum += p b: rows of b from b0 on, columns from c0 on. */
template <typename E>
static __device__ __forceinline__ void add_slice(result &sum, const scores &p, const matrix<E> &b,
                                                 int b0, int b_rows, int c0, int columns, E *right)
{
    __syncthreads();
    load_tile<E, OTHERS, C>(right, b, b0, b_rows, c0, columns);
    copies_wait();
    __syncthreads();
    add_values<E, C>(sum, p, right);
}

/* A slice of a result, when nobody reads shared memory any more. */
template <typename E>
static __device__ __forceinline__ void write_slice(const matrix<E> &m, int r0, int rows, int c0,
                                                   int columns, const result &sum, E *left)
{
    __syncthreads();
    write_rows<E, C>(m, r0 + own_rows(), rows, c0, columns, sum,
                     left + own_rows() * tile_row<C>::length);
}

template <typename E>
static __global__ void __launch_bounds__(THREADS, 2) attention_wide_forward(attention<E> a)
{
    TN_DYNAMIC_SHARED(E, left);
    E *right = left + LEFT;
    const work w = work_by_head(a, blockIdx.x, a.causal);
    const matrix<E> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h);
    const int q0 = w.tile * ROWS, first = q0 + own_rows(), c0 = w.slice * C;
    const int limit = a.causal ? min(a.s, q0 + ROWS) : a.s;
    row_state<MT> row;
    result y;
    clear(y);
    begin(row);
    for (int s0 = 0; s0 < limit; s0 += OTHERS) {
        scores p;
        make_scores(p, q, q0, a.t, k, s0, limit, a.d, left, right);
        see<true>(a, mask_of(a, w), first, s0, p);
        soften<true>(row, p, y, a.scale);
        add_slice(y, p, v, s0, limit, c0, a.dv_size, right);
    }
    finish<true>(a, w, first, row, y);
    write_slice(matrix_of(a.y, w.b, w.h), q0, a.t, c0, a.dv_size, y, left);
}

template <typename E>
static __global__ void __launch_bounds__(THREADS, 2) attention_wide_dq(attention<E> a)
{
    TN_DYNAMIC_SHARED(E, left);
    E *right = left + LEFT;
    const work w = work_by_head(a, blockIdx.x, a.causal);
    const matrix<E> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h), dy = matrix_of(a.dy, w.b, w.h);
    const int q0 = w.tile * ROWS, first = q0 + own_rows(), c0 = w.slice * C;
    const int limit = a.causal ? min(a.s, q0 + ROWS) : a.s;
    const row_numbers<MT> row = numbers_of<true, MT>(a, w.item, first);
    result dq;
    clear(dq);
    for (int s0 = 0; s0 < limit; s0 += OTHERS) {
        scores p, ds;
        make_scores(p, q, q0, a.t, k, s0, limit, a.d, left, right);
        make_scores(ds, dy, q0, a.t, v, s0, limit, a.dv_size, left, right);
        score_grads<true>(a, mask_of(a, w), first, s0, row, p, ds);
        add_slice(dq, ds, k, s0, limit, c0, a.d, right);
    }
    multiply_by(dq, a.scale);
    write_slice(matrix_of(a.dq, w.b, w.h), q0, a.t, c0, a.d, dq, left);
}

/* Rows are keys. */
template <typename E>
static __global__ void __launch_bounds__(THREADS, 2) attention_wide_dkv(attention<E> a)
{
    __shared__ float numbers[2 * OTHERS];
    TN_DYNAMIC_SHARED(E, left);
    E *right = left + LEFT;
    const work w = work_by_head(a, blockIdx.x, false);
    const matrix<E> q = matrix_of(a.q, w.b, w.h), k = matrix_of(a.k, w.b, w.h),
                    v = matrix_of(a.v, w.b, w.h), dy = matrix_of(a.dy, w.b, w.h);
    const int s0 = w.tile * ROWS, first = s0 + own_rows(), c0 = w.slice * C;
    result dk, dv;
    clear(dk);
    clear(dv);
    for (int q0 = a.causal ? s0 : 0; q0 < a.t; q0 += OTHERS) {
        const float number = column_number<true, OTHERS>(a, w.item, q0);
        scores p, ds;
        __syncthreads(); /* the numbers before are used */
        if (threadIdx.x < 2 * OTHERS) numbers[threadIdx.x] = number;
        make_scores(p, k, s0, a.s, q, q0, a.t, a.d, left, right);
        make_scores(ds, v, s0, a.s, dy, q0, a.t, a.dv_size, left, right);
        turned_probabilities<true>(a, mask_of(a, w), first, q0, numbers, p);
        turned_score_grads(a, first, q0, numbers + OTHERS, p, ds);
        add_slice(dv, p, dy, q0, a.t, c0, a.dv_size, right);
        add_slice(dk, ds, q, q0, a.t, c0, a.d, right);
    }
    multiply_by(dk, a.scale);
    write_slice(matrix_of(a.dk, w.b, w.h), s0, a.s, c0, a.d, dk, left);
    write_slice(matrix_of(a.dv, w.b, w.h), s0, a.s, c0, a.dv_size, dv, left);
}

/* ---- host ------------------------------------------------------------------------------------------ */

enum { BYTES = 2 * (LEFT + RIGHT) };

template <typename E> static tn_status wide_forward(attention<E> a)
{
    unsigned blocks;
    TN_TRY(cut(&a, a.t, ROWS, a.dv_size > 0 ? a.dv_size : 1, C, &blocks));
    return TN_LAUNCH((attention_wide_forward<E>), blocks, THREADS, BYTES, a);
}

template <typename E> static tn_status wide_dq(attention<E> a)
{
    unsigned blocks;
    TN_TRY(cut(&a, a.t, ROWS, a.d, C, &blocks));
    return TN_LAUNCH((attention_wide_dq<E>), blocks, THREADS, BYTES, a);
}

template <typename E> static tn_status wide_dkv(attention<E> a)
{
    unsigned blocks;
    TN_TRY(cut(&a, a.s, ROWS, columns_of(a), C, &blocks));
    return TN_LAUNCH((attention_wide_dkv<E>), blocks, THREADS, BYTES, a);
}

tn_status tni_cuda_wide_attention(const attention<bf16> &a) { return wide_forward(a); }
tn_status tni_cuda_wide_attention(const attention<f16> &a) { return wide_forward(a); }
tn_status tni_cuda_wide_dq(const attention<bf16> &a) { return wide_dq(a); }
tn_status tni_cuda_wide_dq(const attention<f16> &a) { return wide_dq(a); }
tn_status tni_cuda_wide_dkv(const attention<bf16> &a) { return wide_dkv(a); }
tn_status tni_cuda_wide_dkv(const attention<f16> &a) { return wide_dkv(a); }
