/* cell.cu - one step of a recurrent layer for every sequence of a batch, a thread for each element
 * of the state; formulas in tensor/cells.h. */
#include "cuda/rows.h"

#define REAL float
#define REAL_OF(name) name##_f32
#include "tensor/cells.h"
#undef REAL
#undef REAL_OF
#define REAL double
#define REAL_OF(name) name##_f64
#include "tensor/cells.h"

enum { CELL_THREADS = 256 };

/* Chosen by the type that is computed in. */
static __device__ __forceinline__ void cell_one(const tni_cell &a, int64_t i, int64_t j, float)
{
    tni_cell_step_f32(&a, a.kind, i, j);
}
static __device__ __forceinline__ void cell_one(const tni_cell &a, int64_t i, int64_t j, double)
{
    tni_cell_step_f64(&a, a.kind, i, j);
}
static __device__ __forceinline__ void cell_one(const tni_cell_grad &a, int64_t i, int64_t j, float)
{
    tni_cell_slope_f32(&a, a.kind, i, j);
}
static __device__ __forceinline__ void cell_one(const tni_cell_grad &a, int64_t i, int64_t j,
                                                double)
{
    tni_cell_slope_f64(&a, a.kind, i, j);
}

template <typename R, typename A>
static __global__ void cell_elements(const __grid_constant__ A a, int64_t n, int64_t h)
{
    for (int64_t step = grid_threads(), e = grid_thread(); e < n; e += step)
        cell_one(a, e / h, e % h, R());
}

/* of: an array of the state's sizes. */
template <typename R, typename A> static tn_status cell_launch(const A *a, const tni_array &of)
{
    int64_t h = of.size[1], n = of.size[0] * h;
    if (n == 0) return TN_OK;
    return TN_LAUNCH((cell_elements<R, A>), row_grid(n, CELL_THREADS), CELL_THREADS, 0, *a, n, h);
}

tn_status tni_cuda_cell(const tni_cell *a)
{
    return TN_REAL(a->y.dtype, cell_launch<R>(a, a->y));
}

tn_status tni_cuda_cell_grad(const tni_cell_grad *a)
{
    return TN_REAL(a->dy.dtype, cell_launch<R>(a, a->dy));
}
