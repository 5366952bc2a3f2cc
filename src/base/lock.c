/*
 * lock.c - the locks of the library, in the order in which they may be taken, the outermost first.
 *
 * fork copies the memory of all threads but only the thread that calls it: a lock that another
 * thread holds would never be given back in the child, and what it guards might be half changed. So
 * all of them are taken before a fork and given back on both sides after it.
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
