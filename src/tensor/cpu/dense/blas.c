/* blas.c - the one file that calls OpenBLAS: its memory, products, and how fast they are. */
#include <strings.h>
#include <sys/mman.h>

#include <cblas.h>

#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"

/* ---- memory, asked for before the first product, which hangs without ------------------------- */

/* What OpenBLAS maps for each product that runs at the same time, when one first needs it. If the
 * system refuses, 0.3.21 asks again for ever. */
enum { BLAS_BUFFER = 128 << 20 };

size_t tni_blas_most = SIZE_MAX;
static TNI_THREAD int roomy; /* workers for which there was room */

/* OpenBLAS's own, where they can be linked to: memory that they took stays OpenBLAS's. */
void *blas_memory_alloc(int position) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

static void fill_buffers(int n)
{
    if (n == 0) return;
    void *buffer = blas_memory_alloc(0);
    fill_buffers(n - 1);
    blas_memory_free(buffer);
}

static bool find_room(int workers)
{
    size_t size = (size_t)(workers - roomy) * BLAS_BUFFER;
    if (size > tni_blas_most) return false;
    void *room = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return false;
    munmap(room, size);
    if (blas_memory_alloc && blas_memory_free) fill_buffers(workers);
    return true;
}

tn_status tni_blas_room(int workers)
{
    if (TNI_LIKELY(workers <= roomy || TNI_BLAS_IS_PLAIN)) return TN_OK;
    pthread_mutex_lock(&tni_locks[TNI_LOCK_BLAS]);
    bool found = find_room(workers);
    pthread_mutex_unlock(&tni_locks[TNI_LOCK_BLAS]);
    if (!found)
        return tni_error(TN_E_NOMEM,
                         "out of memory: OpenBLAS wants %d bytes of addresses for each of %d "
                         "threads that compute a product: is there a limit (ulimit -v)?",
                         BLAS_BUFFER, workers);
    roomy = workers;
    return TN_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

#define TRANS(t) ((t) ? CblasTrans : CblasNoTrans)
/* BLAS's function of f32 or of f64; sizes and leading dimensions fit its int (cut.c). */
#define CALL(dtype, name, ...)                                                                     \
    ((dtype) == TN_F32 ? cblas_s##name(CblasRowMajor, __VA_ARGS__)                                 \
                       : cblas_d##name(CblasRowMajor, __VA_ARGS__))

bool tni_product_start(const tni_product *p, bool zero)
{
    size_t item = tn_dtype_size(p->out);
    if (!p->bias && p->accumulate) return true;
    if (!p->bias && !zero) return false;
    for (int64_t i = 0; i < p->m; i++) {
        char *row = (char *)p->c + i * p->ldc * (int64_t)item;
        if (!p->accumulate && p->bias)
            memcpy(row, p->bias, (size_t)p->n * item);
        else if (!p->accumulate)
            memset(row, 0, (size_t)p->n * item);
        else if (item == 4)
            for (int64_t j = 0; j < p->n; j++) ((float *)row)[j] += ((const float *)p->bias)[j];
        else
            for (int64_t j = 0; j < p->n; j++) ((double *)row)[j] += ((const double *)p->bias)[j];
    }
    return true;
}

void tni_product_thin(const tni_product *p)
{
    blasint rows = (blasint)(p->ta ? p->k : p->m), lda = (blasint)p->lda; /* of A as it is stored */
    blasint cols = (blasint)(p->ta ? p->m : p->k), ldb = (blasint)p->ldb;
    tni_product_start(p, true); /* gemv reads C even where it is to be overwritten */
    if (p->n == 1)              /* c = A b */
        CALL(p->in, gemv, TRANS(p->ta), rows, cols, 1, p->a, lda, p->b, p->tb ? 1 : ldb, 1, p->c,
             p->m == 1 ? 1 : (blasint)p->ldc);
    else /* c^T = B^T a^T */
        CALL(p->in, gemv, TRANS(!p->tb), (blasint)(p->tb ? p->n : p->k),
             (blasint)(p->tb ? p->k : p->n), 1, p->b, ldb, p->a, p->ta ? lda : 1, 1, p->c, 1);
}

bool tni_blas_product(const tni_product *p)
{
    bool add = tni_product_start(p, false);
    CALL(p->in, gemm, TRANS(p->ta), TRANS(p->tb), (blasint)p->m, (blasint)p->n, (blasint)p->k, 1,
         p->a, (blasint)p->lda, p->b, (blasint)p->ldb, add, p->c, (blasint)p->ldc);
    return true;
}

/* ---- how fast it is -------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tni_blas_speed speed;

/* With vectors of 256 bits OpenBLAS's kernels for Zen pack slowly, those for Haswell do not
 * (docs/measurements.md). With AVX-512 both leave half of the processor unused. On a processor
 * unknown to it, it takes kernels from before AVX2. */
static void judge(void)
{
    static const char *const with_avx512[] = { "SkylakeX", "Cooperlake", "SapphireRapids" };
    const char *core = openblas_get_corename();
    speed = TNI_BLAS_SLOW;
    for (size_t i = 0; i < sizeof with_avx512 / sizeof with_avx512[0]; i++)
        if (strcasecmp(core, with_avx512[i]) == 0)
            speed = tni_has_avx512() ? TNI_BLAS_AS_FAST : TNI_BLAS_FASTER;
    if (tni_has_avx512()) return;
    if (strcasecmp(core, "Haswell") == 0) speed = TNI_BLAS_FASTER;
    if (strcasecmp(core, "Zen") == 0) speed = TNI_BLAS_SLOWER;
}

tni_blas_speed tni_blas_beside_ours(void)
{
    pthread_once(&once, judge);
    return speed;
}
