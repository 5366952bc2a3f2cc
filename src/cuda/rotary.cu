/* rotary.cu - rows turned by angles, in pairs of elements: a warp takes a row, a lane a pair. */
#include "cuda/elements.h"
#include "cuda/half.h"

struct rotary_job {
    places<4> rows; /* y, x, cosine, sine */
    void *y;
    const void *x, *cosine, *sine;
    tn_dtype table; /* of the last two */
    int64_t d, half;
    bool interleaved, back;
};

template <typename R> static __global__ void rotary_rows(const __grid_constant__ rotary_job a)
{
    typedef typename element<R>::computing A;
    const int lane = threadIdx.x % 32;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    const int64_t step = static_cast<int64_t>(gridDim.x) * ROW_WARPS;
    const A sign = a.back ? -1 : 1;
    for (int64_t i = first; i < a.rows.numel; i += step) {
        int64_t at[4];
        locate(a.rows, i, at);
        R *y = static_cast<R *>(a.y) + at[0];
        const R *x = static_cast<const R *>(a.x) + at[1];
        for (int64_t j = lane; j < a.half; j += 32) {
            const int64_t p = a.interleaved ? 2 * j : j, q = a.interleaved ? p + 1 : p + a.half;
            const A c = kin<A>::load(a.cosine, a.table, at[2] + j);
            const A s = sign * kin<A>::load(a.sine, a.table, at[3] + j);
            const A u = wide(x[p]), v = wide(x[q]);
            y[p] = element<R>::rounded(u * c - v * s);
            y[q] = element<R>::rounded(v * c + u * s);
        }
        for (int64_t j = 2 * a.half + lane; j < a.d; j += 32) y[j] = x[j];
    }
}

template <typename R> static tn_status rotary(const tni_rotary *a)
{
    tni_array first[] = { a->y, a->x, a->cosine, a->sine }; /* elements of rows */
    for (tni_array &array : first) array.rank--;
    const tni_array *const arrays[] = { first, first + 1, first + 2, first + 3 };
    if (tni_array_numel(&a->x) == 0) return TN_OK;
    const rotary_job job = { places_of<4>(arrays),
                             a->y.data,
                             a->x.data,
                             a->cosine.data,
                             a->sine.data,
                             a->cosine.dtype,
                             a->x.size[a->x.rank - 1],
                             a->cosine.size[a->cosine.rank - 1],
                             a->interleaved,
                             a->back };
    return TN_LAUNCH((rotary_rows<R>), row_grid(job.rows.numel, ROW_WARPS), ROW_THREADS, 0, job);
}

tn_status tni_cuda_rotary(const tni_rotary *a)
{
    return TN_FLOATING(a->x.dtype, rotary<R>(a));
}
