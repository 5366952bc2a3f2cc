/*
 * parallel.c - how many threads kernels use; keeps OpenBLAS on one thread.
 *
 * OpenBLAS rounds differently on one thread and on two, so a product inside a chunk must never
 * start threads. Its OpenMP variant calls omp_get_max_threads() in the calling thread: we set 1
 * there, for good in the helpers, and in the caller until the run ends. Its pthreads variant has
 * one count for the process, which we set to 1 while any product of ours runs. The serial variant
 * needs nothing. In the OpenMP variant openblas_set_num_threads is never called: it would lower
 * everybody's count. OpenMP's functions are looked up in the process, so that a program without
 * OpenMP does not load it because of us.
 */
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <cblas.h>

#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/thread_pool.h"
#include "tensor/internal.h"

/* ---- OpenMP, where the process has it -------------------------------------------------------- */

static pthread_once_t openmp_once = PTHREAD_ONCE_INIT;
static int (*openmp_max_threads)(void), (*openmp_in_parallel)(void);
static void (*openmp_set_threads)(int n);

static void find_openmp(void)
{
    void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads"),
         *in = dlsym(RTLD_DEFAULT, "omp_in_parallel");
    void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!get || !set || !in) return;
    memcpy(&openmp_max_threads, &get, sizeof get); /* C has no cast from an object's pointer */
    memcpy(&openmp_set_threads, &set, sizeof set);
    memcpy(&openmp_in_parallel, &in, sizeof in);
}

/* Sets this thread's OpenMP thread count to 1 and returns the old one; 0: there is no OpenMP. */
static int openmp_one_thread(void)
{
    pthread_once(&openmp_once, find_openmp);
    int threads = openmp_max_threads ? openmp_max_threads() : 0;
    if (threads > 1) openmp_set_threads(1);
    return threads;
}

/* ---- the number of threads ------------------------------------------------------------------- */

static atomic_int wanted_threads; /* 0: the default */
static pthread_once_t default_once = PTHREAD_ONCE_INIT;
static int default_threads, processors;

/* A container's CPU quota in processors: "200000 100000" is 2 of them; 0: no limit. */
static int quota(void)
{
    int64_t time, period;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    int found = file ? fscanf(file, "%" SCNd64 " %" SCNd64, &time, &period) : 0;
    if (file) fclose(file);
    return found == 2 && time > 0 && period > 0
               ? (int)TNI_MIN((time + period - 1) / period, 1 << 20)
               : 0;
}

static int asked_for(const char *variable)
{
    const char *text = getenv(variable);
    int n = text ? atoi(text) : 0;
    return n < 0 ? 0 : TNI_MIN(n, TNI_MAX_THREADS);
}

static void find_default(void)
{
    cpu_set_t mine;
    processors = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine)
                                                               : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int limit = quota();
    if (limit > 0) processors = TNI_MIN(processors, limit);
    processors = TNI_MAX(1, processors);
    default_threads = asked_for("TN_NUM_THREADS");
    if (default_threads == 0) default_threads = asked_for("OMP_NUM_THREADS");
    if (default_threads == 0) default_threads = TNI_MIN(processors, TNI_MAX_THREADS);
}

int tni_processors(void)
{
    pthread_once(&default_once, find_default);
    return processors;
}

tn_status tn_set_num_threads(int n)
{
    if (n < 1 || n > TNI_MAX_THREADS)
        return tni_error(TN_E_INVALID, "tn_set_num_threads: %d threads: want 1 to %d", n,
                         TNI_MAX_THREADS);
    atomic_store_explicit(&wanted_threads, n, memory_order_relaxed);
    return TN_OK;
}

int tn_num_threads(void)
{
    int n = atomic_load_explicit(&wanted_threads, memory_order_relaxed);
    if (n > 0) return n;
    pthread_once(&default_once, find_default);
    return default_threads;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The caller is in its own OpenMP region, which already uses the processors. */
static bool alone(void)
{
    pthread_once(&openmp_once, find_openmp);
    return tni_thread_pool_busy() || (openmp_in_parallel && openmp_in_parallel());
}

int tni_workers(int64_t n, int64_t grain)
{
    return n <= 0 ? 0 : n <= grain || alone() ? 1 : tn_num_threads();
}

void tni_parallel(int64_t n, int64_t grain, tni_chunk f, void *context)
{
    if (n <= 0) return;
    if (n <= grain)
        f(context, 0, n);
    else
        tni_thread_pool_run(tni_workers(n, grain), n, grain, f, context);
}

/* ---- many tensors ---------------------------------------------------------------------------- */

enum { TENSORS_GRAIN = 16384 };

typedef struct tensors_job {
    tni_span span;
    const void *context;
    int n;
    const int64_t *first; /* [n + 1]: number of a tensor's first element */
} tensors_job;

static void tensors_chunk(void *context, int64_t begin, int64_t end)
{
    const tensors_job *job = context;
    const int64_t *first = job->first;
    int k = (int)tni_upto(first, sizeof *first, (size_t)job->n, begin) - 1; /* that begin is in */
    for (; k < job->n && first[k] < end; k++) {
        int64_t b = TNI_MAX(begin, first[k]), e = TNI_MIN(end, first[k + 1]);
        if (b < e) job->span(job->context, k, b - first[k], e - first[k]);
    }
}

tn_status tni_parallel_tensors(int n, const int64_t *size, size_t step, tni_span span,
                               const void *context, int64_t *starts)
{
    size_t nbytes = ((size_t)n + 1) * sizeof(int64_t);
    int64_t *first = starts ? starts : tni_alloc(nbytes);
    if (!first) return TN_E_NOMEM;
    first[0] = 0;
    for (int k = 0; k < n; k++)
        first[k + 1] = first[k] + *(const int64_t *)((const char *)size + (size_t)k * step);
    tensors_job job = { .span = span, .context = context, .n = n, .first = first };
    tni_parallel(first[n], TENSORS_GRAIN, tensors_chunk, &job);
    if (!starts) tni_free(first, nbytes);
    return TN_OK;
}

/* ---- runs whose chunks call BLAS ------------------------------------------------------------- */

enum { BLAS_PTHREADS = 1, BLAS_OPENMP = 2 }; /* openblas_get_parallel() */

static pthread_mutex_t *const pool_lock = &tni_locks[TNI_LOCK_BLAS];
/* of OpenBLAS's own pool: products running, count to restore */
static int pool_depth, pool_threads;

static void pool_enter(void)
{
    pthread_mutex_lock(pool_lock);
    if (pool_depth++ == 0) {
        pool_threads = openblas_get_num_threads();
        openblas_set_num_threads(1);
    }
    pthread_mutex_unlock(pool_lock);
}

static void pool_leave(void)
{
    pthread_mutex_lock(pool_lock);
    if (--pool_depth == 0) openblas_set_num_threads(pool_threads);
    pthread_mutex_unlock(pool_lock);
}

void tni_blas_stay_single(void)
{
    if (openblas_get_parallel() == BLAS_OPENMP) openmp_one_thread();
}

void tni_parallel_workers(int workers, int64_t n, int64_t grain, tni_chunk f, void *context)
{
    int flavour = openblas_get_parallel(), threads = 0;
    if (flavour == BLAS_PTHREADS) pool_enter();
    if (flavour == BLAS_OPENMP) threads = openmp_one_thread();
    tni_thread_pool_run(workers, n, grain, f, context);
    if (threads > 1) openmp_set_threads(threads);
    if (flavour == BLAS_PTHREADS) pool_leave();
}

tn_status tni_parallel_scratch(tni_scratch *s, int64_t n, int64_t grain, tni_chunk f, void *context)
{
    int workers = tni_workers(n, grain);
    size_t size = 0;
    s->data = NULL;
    s->each = (s->each + 63) / 64 * 64;
    if (s->blas && tni_blas_room((int)TNI_MIN(workers, n)) != TN_OK) return TN_E_NOMEM;
    if (!tni_mul_size(s->each, (size_t)workers, &size))
        return tni_error(TN_E_NOMEM, "scratch memory for %d threads is too large", workers);
    if (size > 0 && !(s->data = tni_alloc(size))) return TN_E_NOMEM;
    (s->blas ? tni_parallel_workers : tni_thread_pool_run)(workers, n, grain, f, context);
    if (s->data) tni_free(s->data, size);
    return TN_OK;
}
