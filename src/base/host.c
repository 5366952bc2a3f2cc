/*
 * host.c - the host's locale and signals and, where SSE has no control register for it, its
 * floating-point traps.
 */
#include <fenv.h>
#include <signal.h>
#include <time.h>

#include "base/host.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t tni_to_c_locale(void)
{
    pthread_once(&once, make_c_locale);
    return c_locale ? uselocale(c_locale) : (locale_t)0;
}

void tni_return_locale(const locale_t *was)
{
    if (*was) uselocale(*was);
}

int64_t tni_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int tni_thread_start(pthread_t *thread, void *(*f)(void *), void *argument)
{
    static const int fault[] = { SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS };
    sigset_t blocked, was;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) sigdelset(&blocked, fault[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &was);
    int error = pthread_create(thread, NULL, f, argument);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return error;
}

#ifndef __SSE__
#ifndef __GLIBC__ /* no traps to ask for */
#define fegetexcept() 0
#define fedisableexcept(traps) (void)(traps)
#define feenableexcept(traps) (void)(traps)
#endif
unsigned tni_hold_traps(void)
{
    int was = fegetexcept();
    if (was) fedisableexcept(was);
    return (unsigned)was;
}

void tni_return_traps(const unsigned *was)
{
    if (!*was) return;
    feclearexcept((int)*was); /* exceptions we raised would trap now */
    feenableexcept((int)*was);
}
#endif
