/*
 * dropout.cu - y = x m, m = 1 / (1 - p) where the element's uniform number is at least p, else 0.
 *
 * Element i uses word i % 4 of Philox counter offset + i / 4, so a thread takes the four elements
 * of a counter. The mask depends only on seed and offset and equals the CPU's; backward draws it
 * again. The product keeps inf * 0 = NaN; bf16 and f16 are multiplied in f32 and rounded.
 */
#include "cuda/capture.h"
#include "cuda/elements.h"
#include "cuda/half.h"
#include "tensor/philox.h"

/* whole: x and y can be accessed four elements at a time. */
template <typename R>
static __global__ void dropout(R *y, const R *x, int64_t n, uint32_t threshold,
                               typename element<R>::computing scale, uint64_t seed, uint64_t offset,
                               const tni_cuda_draw *draw, bool whole)
{
    typedef typename element<R>::computing A;
    if (draw) { /* a run of a captured step: offset is relative to the generator's at the capture */
        seed = draw->seed;
        offset += draw->offset;
    }
    for (int64_t step = grid_threads(), at = grid_thread(); at < (n + 3) / 4; at += step) {
        A v[4];
        bool full = whole && 4 * at + 4 <= n;
        if (full) {
            four<R> q = reinterpret_cast<const four<R> *>(x)[at];
            TN_UNROLL
            for (int k = 0; k < 4; k++) v[k] = wide(q.v[k]);
        } else {
            TN_UNROLL
            for (int k = 0; k < 4; k++) v[k] = 4 * at + k < n ? wide(x[4 * at + k]) : 0;
        }
        uint32_t w[4];
        tni_philox(seed, offset + static_cast<uint64_t>(at), &w[0], &w[1], &w[2], &w[3]);
        TN_UNROLL
        for (int k = 0; k < 4; k++) v[k] *= (w[k] >> 8) >= threshold ? scale : 0;
        if (full) {
            four<R> q;
            TN_UNROLL
            for (int k = 0; k < 4; k++) q.v[k] = element<R>::rounded(v[k]);
            reinterpret_cast<four<R> *>(y)[at] = q;
        } else {
            TN_UNROLL
            for (int k = 0; k < 4; k++)
                if (4 * at + k < n) y[4 * at + k] = element<R>::rounded(v[k]);
        }
    }
}

template <typename R> static tn_status run(const tni_dropout *a)
{
    int64_t n = tni_array_numel(&a->x);
    if (n == 0) return TN_OK;
    bool whole =
        (reinterpret_cast<uintptr_t>(a->x.data) | reinterpret_cast<uintptr_t>(a->y.data)) % 16 == 0;
    const tni_cuda_draw *draw = tni_cuda_graph_draw();
    uint64_t offset = a->offset - (draw ? tni_cuda_graph_offset() : 0);
    return TN_LAUNCH((dropout<R>), row_grid((n + 3) / 4, 256), 256, 0, static_cast<R *>(a->y.data),
                     static_cast<const R *>(a->x.data), n, tni_philox_threshold(a->p),
                     static_cast<typename element<R>::computing>(1.0 / (1.0 - a->p)), a->seed,
                     offset, draw, whole);
}

tn_status tni_cuda_dropout(const tni_dropout *a)
{
    return TN_FLOATING(a->x.dtype, run<R>(a));
}
