/*
 * linear_int8.cu - products with a weight of bytes: W = scale q is written in x's dtype, in memory
 * that is borrowed for the call, and multiplied as any other.
 */
#include "cuda/half.h"
#include "cuda/rows.h"

template <typename R>
static __global__ void int8_widen(R *w, const int8_t *q, const float *scale, int64_t n, int64_t in,
                                  int64_t groups, int64_t group)
{
    typedef typename element<R>::computing A;
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < n; i += step) {
        A s = static_cast<A>(scale[i / in * groups + i % in / group]);
        w[i] = element<R>::rounded(s * static_cast<A>(q[i]));
    }
}

template <typename R> static tn_status run(const tni_linear_int8 *a)
{
    int64_t out = a->q.size[0], in = a->q.size[1], n = out * in;
    tni_gemm g = {};
    void *w = nullptr;
    g.dtype = a->x.dtype, g.batch = 1;
    g.m = a->x.size[0], g.k = a->x.size[1], g.n = a->y.size[1];
    if (g.m == 0 || g.n == 0) return TN_OK;
    if (tn_status failed = tni_cuda_borrow(static_cast<size_t>(n + 1) * sizeof(R), &w);
        failed != TN_OK)
        return failed;
    tn_status status = TN_OK;
    if (n > 0)
        status =
            TN_LAUNCH((int8_widen<R>), row_grid(n, 256), 256, 0, static_cast<R *>(w),
                      static_cast<const int8_t *>(a->q.data),
                      static_cast<const float *>(a->scale.data), n, in, a->scale.size[1], a->group);
    g.a = a->x.data, g.a_row = g.k, g.a_col = 1;
    g.b = w, g.b_row = a->turned ? in : 1, g.b_col = a->turned ? 1 : in;
    g.c = a->y.data, g.c_row = g.n;
    g.bias = a->bias.data;
    if (status == TN_OK) status = tni_cuda_gemm(&g);
    tni_cuda_return(w);
    return status;
}

tn_status tni_cuda_linear_int8(const tni_linear_int8 *a)
{
    return TN_FLOATING(a->x.dtype, run<R>(a));
}
