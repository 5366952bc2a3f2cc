/*
 * lock.c - the locks of the library, in locking order, the outermost first.
 *
 * fork copies all memory but only the calling thread: a lock held by another thread would never be
 * released in the child, and the data it guards might be half changed. So all locks are acquired
 * before a fork and released on both sides after it.
 *
 * Every op takes the lock of memory several times, for some 20 instructions each. A free mutex
 * takes two atomic operations, which cost more than that. Here taking the lock is one and giving it
 * back a plain store, so nobody wakes a thread that waits. The first one polls, with sleeps in case
 * the holder has lost its processor; the others wait for a mutex that the first one holds.
 */
#include <time.h>

#include "base/base.h"

atomic_bool tni_memory_taken;

pthread_mutex_t tni_locks[TNI_LOCKS] = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER,
};

static void look_again(void)
{
    enum { LOOKS = 100, SLEEP_NS = 20000 };
    for (int i = 0; atomic_exchange_explicit(&tni_memory_taken, true, memory_order_acquire); i++) {
        if (i >= LOOKS) nanosleep(&(struct timespec){ .tv_nsec = SLEEP_NS }, NULL);
#ifdef __SSE2__
        __builtin_ia32_pause();
#endif
    }
}

void tni_memory_wait(void)
{
    pthread_mutex_lock(&tni_locks[TNI_LOCK_MEMORY]);
    look_again();
    pthread_mutex_unlock(&tni_locks[TNI_LOCK_MEMORY]);
}

static void before_fork(void)
{
    for (int i = 0; i < TNI_LOCKS; i++) pthread_mutex_lock(&tni_locks[i]);
    look_again();
}

static void after_fork(void)
{
    tni_memory_give();
    for (int i = TNI_LOCKS - 1; i >= 0; i--) pthread_mutex_unlock(&tni_locks[i]);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}
