/*
 * cell.cu - one step of a recurrent layer for every sequence of a batch, a thread for each element
 * of the state; formulas in tensor/cells.h.
 */
#include "cuda/rows.h"

#define REAL float
#define REAL_TANH(x) tn_tanh_f32(x)
#define REAL_SIGMOID(x) tn_sigmoid_f32(x)
#include "tensor/cells.h"
#undef REAL
#undef REAL_TANH
#undef REAL_SIGMOID
#define REAL double
#define REAL_TANH(x) tn_tanh_f64(x)
#define REAL_SIGMOID(x) tn_sigmoid_f64(x)
#include "tensor/cells.h"

enum { CELL_THREADS = 256 };

/* Arrays of a step, or of its gradient; those that the kind lacks are null. */
template <typename R> struct cell_job {
    R *y, *c, *gates, *share, *bias_x, *bias_s, *y_before, *c_before;
    R *dgates, *dshare, *later, *dc, *dy;
    int64_t n, h;
    int kind;
};

/* Row i of an array of n elements each. */
template <typename R> static __device__ __forceinline__ R *cell_row(R *x, int64_t i, int64_t n)
{
    return x ? x + i * n : nullptr;
}

template <typename R>
static __device__ __forceinline__ void cell_step(const cell_job<R> &a, int64_t i, int64_t j)
{
    int64_t h = a.h;
    R *y = cell_row(a.y, i, h);
    if (a.kind == TNI_LSTM_CELL)
        tni_lstm_step(y, cell_row(a.c, i, h), cell_row(a.gates, i, 4 * h),
                      cell_row(a.share, i, 4 * h), a.bias_x, a.bias_s, cell_row(a.c_before, i, h),
                      h, j);
    else if (a.kind == TNI_GRU_CELL)
        tni_gru_step(y, cell_row(a.gates, i, 4 * h), cell_row(a.share, i, 3 * h), a.bias_x,
                     a.bias_s, cell_row(a.y_before, i, h), h, j);
    else
        tni_rnn_step(y, cell_row(a.share, i, h), a.bias_x, a.bias_s, a.kind == TNI_RELU_CELL, j);
}

template <typename R>
static __device__ __forceinline__ void cell_slope(const cell_job<R> &a, int64_t i, int64_t j)
{
    int64_t h = a.h;
    const R *dy = cell_row(a.dy, i, h);
    R *later = cell_row(a.later, i, h);
    if (a.kind == TNI_LSTM_CELL)
        tni_lstm_grad(cell_row(a.dgates, i, 4 * h), cell_row(a.dc, i, h), dy, later,
                      cell_row(a.gates, i, 4 * h), cell_row(a.c, i, h), cell_row(a.c_before, i, h),
                      h, j);
    else if (a.kind == TNI_GRU_CELL)
        tni_gru_grad(cell_row(a.dgates, i, 3 * h), cell_row(a.dshare, i, 3 * h), later, dy,
                     cell_row(a.gates, i, 4 * h), cell_row(a.y_before, i, h), h, j);
    else
        tni_rnn_grad(cell_row(a.dgates, i, h), dy, later, cell_row(a.y, i, h),
                     a.kind == TNI_RELU_CELL, j);
}

template <typename R, bool GRAD> static __global__ void cell_elements(cell_job<R> a)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t e = first; e < a.n * a.h; e += step) {
        int64_t i = e / a.h;
        if (GRAD)
            cell_slope(a, i, e - i * a.h);
        else
            cell_step(a, i, e - i * a.h);
    }
}

/* The arrays that both structs have, y's sizes from of. */
template <typename R, typename A> static cell_job<R> cell_arrays(const A *a, const tni_array &of)
{
    cell_job<R> job = {};
    job.y = static_cast<R *>(a->y.data);
    job.c = static_cast<R *>(a->c.data);
    job.gates = static_cast<R *>(a->gates.data);
    job.y_before = static_cast<R *>(a->y_before.data);
    job.c_before = static_cast<R *>(a->c_before.data);
    job.n = of.size[0];
    job.h = of.size[1];
    job.kind = a->kind;
    return job;
}

template <typename R, bool GRAD> static tn_status cell_launch(const cell_job<R> &job)
{
    if (job.n == 0 || job.h == 0) return TN_OK;
    return TN_LAUNCH((cell_elements<R, GRAD>), row_grid(job.n * job.h, CELL_THREADS), CELL_THREADS,
                     0, job);
}

template <typename R> static tn_status cell(const tni_cell *a)
{
    cell_job<R> job = cell_arrays<R>(a, a->y);
    job.share = static_cast<R *>(a->share.data);
    job.bias_x = static_cast<R *>(a->bias_x.data);
    job.bias_s = static_cast<R *>(a->bias_s.data);
    return cell_launch<R, false>(job);
}

template <typename R> static tn_status cell_grad(const tni_cell_grad *a)
{
    cell_job<R> job = cell_arrays<R>(a, a->dy);
    job.dgates = static_cast<R *>(a->dgates.data);
    job.dshare = static_cast<R *>(a->dshare.data);
    job.later = static_cast<R *>(a->later.data);
    job.dc = static_cast<R *>(a->dc.data);
    job.dy = static_cast<R *>(a->dy.data);
    return cell_launch<R, true>(job);
}

tn_status tni_cuda_cell(const tni_cell *a)
{
    return TN_REAL(a->y.dtype, cell<R>(a));
}

tn_status tni_cuda_cell_grad(const tni_cell_grad *a)
{
    return TN_REAL(a->dy.dtype, cell_grad<R>(a));
}
