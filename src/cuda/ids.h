/* ids.h - arrays of indices in kernels: walked over any strides, checked against the number of
 * targets. */
#pragma once

#include "cuda/fault.h"
#include "cuda/rows.h"

typedef struct id_check {
    int64_t limit, launch;
    tni_cuda_fault *fault;
} id_check;

static inline id_check id_check_of(int64_t limit)
{
    id_check check = { limit, tni_cuda_fault_launch(), tni_cuda_fault_word() };
    return check;
}

static __device__ __forceinline__ bool id_good(const id_check &check, int64_t id)
{
    return id >= 0 && id < check.limit;
}

static __device__ inline void id_report(const id_check &check, int64_t id, int64_t position)
{
    fault_record(check.fault, TNI_FAULT_INDEX, check.launch, id, check.limit, position, 0);
}

/* Up to three arrays walked together over the sizes of the index. */
template <typename D> struct walk {
    int rank;
    D size[TN_MAX_RANK];
    int64_t stride[3][TN_MAX_RANK];
};

/* a, b: 0-strides along skip. */
template <typename D>
static inline walk<D> walk_of(const tni_array *index, const tni_array *a, const tni_array *b,
                              int skip)
{
    walk<D> w = {};
    w.rank = index->rank;
    for (int d = 0; d < index->rank; d++) {
        w.size[d] = D(index->size[d]);
        w.stride[0][d] = index->stride[d];
        w.stride[1][d] = a && d != skip ? a->stride[d] : 0;
        w.stride[2][d] = b ? b->stride[d] : 0;
    }
    return w;
}

template <typename D>
static __device__ __forceinline__ void walk_to(const walk<D> &w, typename D::index e, int64_t *at)
{
    at[0] = at[1] = at[2] = 0;
    for (int d = w.rank - 1; d >= 0; d--) {
        typename D::index next = w.size[d].divide(e);
        int64_t i = w.size[d].rest(e, next);
        at[0] += i * w.stride[0][d];
        at[1] += i * w.stride[1][d];
        at[2] += i * w.stride[2][d];
        e = next;
    }
}

enum { THREADS = 256 };

#define EACH(I, e, n)                                                                              \
    for (I e = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x; e < static_cast<I>(n);       \
         e += static_cast<I>(gridDim.x) * blockDim.x)

/* Reports the first bad one of all indices (indexing.cu). */
tn_status tni_cuda_check_ids(const tni_array *index, const id_check &check);
