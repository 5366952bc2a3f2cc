/*
 * parallel.c - the one place that opens parallel regions for kernels.
 *
 * A call is cut into chunks whose borders depend on n and grain alone; threads only decide who
 * works on which chunk. Every region has the full team: libgomp ends and starts threads when team
 * sizes change. The caller's OpenMP settings are never touched.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static atomic_int wanted_threads; /* 0: OpenMP's default */

tn_status tn_set_num_threads(int n)
{
    if (n < 1) {
        return tni_error(TN_E_INVALID, "tn_set_num_threads: %d threads: wanted at least 1", n);
    }
    atomic_store_explicit(&wanted_threads, n, memory_order_relaxed);
    return TN_OK;
}

int tn_num_threads(void)
{
    int n = atomic_load_explicit(&wanted_threads, memory_order_relaxed);
#ifdef _OPENMP
    return n > 0 ? n : omp_get_max_threads();
#else
    return n > 0 ? n : 1;
#endif
}

void tni_parallel(int64_t n, int64_t grain, tni_chunk f, void *context)
{
    if (n <= 0) return;
    if (n <= grain) {
        f(context, 0, n);
        return;
    }
    int64_t chunks = (n - 1) / grain + 1;
#ifdef _OPENMP
    int threads = tn_num_threads();
    if (threads > 1 && !omp_in_parallel()) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < chunks; i++) {
            f(context, i * grain, i + 1 < chunks ? (i + 1) * grain : n);
        }
        return;
    }
#endif
    for (int64_t i = 0; i < chunks; i++) {
        f(context, i * grain, i + 1 < chunks ? (i + 1) * grain : n);
    }
}
