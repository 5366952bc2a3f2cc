/*
 * host.h - settings of the host program that are suspended while we work: traps on floating-point
 * exceptions, and a locale with a decimal comma. Also threads that leave signals to the program.
 *
 * A function that computes, or compares numbers of the caller's, begins with TNI_HOLD_TRAPS, one
 * that writes numbers with TNI_C_NUMBERS, which holds traps too; every return restores the host's
 * settings. tests/fuzz_api calls all of them under traps. Helper threads mask traps themselves
 * (cpu/thread_pool.c).
 */
#pragma once

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include "base/base.h"

/* ---- signals --------------------------------------------------------------------------------- */

/* pthread_create, for a thread that takes no signals: those are for the program's own threads. A
 * fault of such a thread still reaches the program's handler: blocked, it would end the process. */
int tni_thread_start(pthread_t *thread, void *(*f)(void *), void *argument);
int64_t tni_nanoseconds(void); /* of a clock that nobody sets */

/* ---- traps ----------------------------------------------------------------------------------- */

/* NaN and infinity are ordinary values here, and a vectorised loop also computes lanes that nobody
 * reads: a host that traps FE_INVALID, FE_DIVBYZERO or FE_OVERFLOW in its own code must not crash
 * in ours. If it traps them, its exception flags are restored too. */
#ifdef __SSE__
#define TNI_ALL_MASKED 0x1f80u

static inline unsigned tni_hold_traps(void)
{
    unsigned was = __builtin_ia32_stmxcsr();
    if (TNI_UNLIKELY((was & TNI_ALL_MASKED) != TNI_ALL_MASKED))
        __builtin_ia32_ldmxcsr(was | TNI_ALL_MASKED);
    return was;
}

static inline void tni_return_traps(const unsigned *was)
{
    if (TNI_UNLIKELY((*was & TNI_ALL_MASKED) != TNI_ALL_MASKED)) __builtin_ia32_ldmxcsr(*was);
}
#else
TNI_SHARED unsigned tni_hold_traps(void);
TNI_SHARED void tni_return_traps(const unsigned *was);
#endif

#define TNI_HOLD_TRAPS                                                                             \
    __attribute__((cleanup(tni_return_traps), unused)) const unsigned tni_traps_were_ =            \
        tni_hold_traps()

/* ---- numbers as text ------------------------------------------------------------------------- */

/* Switches this thread to the "C" locale; returns the old one. */
TNI_SHARED locale_t tni_to_c_locale(void);
TNI_SHARED void tni_return_locale(const locale_t *was);

/* From here on numbers are written with a decimal point, whatever the locale, and do not trap. */
#define TNI_C_NUMBERS                                                                              \
    TNI_HOLD_TRAPS;                                                                                \
    __attribute__((cleanup(tni_return_locale), unused)) const locale_t tni_locale_was_ =           \
        tni_to_c_locale()
