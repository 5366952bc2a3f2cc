/*
 * blas_room.c - OpenBLAS's memory is asked for before its first product, which hangs without.
 */
#include <sys/mman.h>

#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"

/* What OpenBLAS maps for each product that runs at a time, at the first that needs it. Refused,
 * 0.3.21 asks again for ever. */
enum { BLAS_BUFFER = 128 << 20 };

size_t tni_blas_most = SIZE_MAX;
static TNI_THREAD int roomy; /* lanes for which there was room */

/* OpenBLAS's own, where they can be linked to: what they took once stays OpenBLAS's. */
void *blas_memory_alloc(int position) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

static void fill_buffers(int n)
{
    if (n == 0) return;
    void *buffer = blas_memory_alloc(0);
    fill_buffers(n - 1);
    blas_memory_free(buffer);
}

static bool find_room(int lanes)
{
    size_t size = (size_t)(lanes - roomy) * BLAS_BUFFER;
    if (size > tni_blas_most) return false;
    void *room = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return false;
    munmap(room, size);
    if (blas_memory_alloc && blas_memory_free) fill_buffers(lanes);
    return true;
}

tn_status tni_blas_room(int lanes)
{
    if (TNI_LIKELY(lanes <= roomy)) return TN_OK;
    pthread_mutex_lock(&tni_locks[TNI_LOCK_BLAS]);
    bool found = find_room(lanes);
    pthread_mutex_unlock(&tni_locks[TNI_LOCK_BLAS]);
    if (!found)
        return tni_error(TN_E_NOMEM,
                         "out of memory: OpenBLAS wants %d bytes of addresses for each of %d "
                         "threads that compute a product: is there a limit (ulimit -v)?",
                         BLAS_BUFFER, lanes);
    roomy = lanes;
    return TN_OK;
}
