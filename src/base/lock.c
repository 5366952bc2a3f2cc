/*
 * lock.c - the locks of the library, in locking order, the outermost first.
 *
 * fork copies all memory but only the calling thread: a lock held by another thread would never be
 * released in the child, and the data it guards might be half changed. So all locks are acquired
 * before a fork and released on both sides after it.
 */
#include "base/base.h"

pthread_mutex_t tni_locks[TNI_LOCKS] = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
};

static void before_fork(void)
{
    for (int i = 0; i < TNI_LOCKS; i++) pthread_mutex_lock(&tni_locks[i]);
}

static void after_fork(void)
{
    for (int i = TNI_LOCKS - 1; i >= 0; i--) pthread_mutex_unlock(&tni_locks[i]);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}
