/*
 * thread_pool.h - the threads that share out a kernel's chunks (thread_pool.c).
 *
 * Every thread that calls kernels has its own pool, created when first needed and ended with the
 * thread: itself as member 0, and helper threads.
 */
#pragma once

#include "tensor/cpu/cpu.h"

enum { TNI_MAX_THREADS = 1000 };

/* Processors that this process may use at once: its affinity and, in a container, its quota. */
int tni_processors(void);

/* Calls f for every chunk, on at most `members` threads, and returns when all are done. Within f,
 * tni_worker() is the member's number. Inside another run it uses only the calling thread. */
void tni_thread_pool_run(int members, int64_t n, int64_t grain, tni_chunk f, void *context);
/* Whether this thread is working on a chunk. */
bool tni_thread_pool_busy(void);

/* Keeps BLAS from starting threads in the calling thread, for good: each helper's first call
 * (dense/cut.c). */
void tni_blas_stay_single(void);
