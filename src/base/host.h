/*
 * host.h - what the program around the library may have set for its threads, held off while we
 * work: traps on floating-point exceptions, and a locale whose decimal point is a comma.
 *
 * A function whose work computes, or writes numbers, begins with TNI_HOLD_TRAPS or TNI_C_NUMBERS;
 * on every way out the host finds its own again. Helpers of the team mask traps for themselves
 * (cpu/team.c).
 */
#ifndef TNI_HOST_H
#define TNI_HOST_H

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include "base/base.h"

/* ---- traps ----------------------------------------------------------------------------------- */

/* A NaN or an infinity is a value here, and a vectorised loop computes lanes that nobody reads: a
 * host that traps FE_INVALID, FE_DIVBYZERO or FE_OVERFLOW in its own code must not die in ours.
 * Where it does, its exception flags, too, are as they were. */
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
unsigned tni_hold_traps(void);
void tni_return_traps(const unsigned *was);
#endif

#define TNI_HOLD_TRAPS                                                                             \
    __attribute__((cleanup(tni_return_traps), unused)) const unsigned tni_traps_were_ =            \
        tni_hold_traps()

/* ---- numbers as text ------------------------------------------------------------------------- */

/* This thread in the "C" locale; what it was in. */
locale_t tni_to_c_locale(void);
void tni_return_locale(const locale_t *was);

/* Numbers are written with a point in what follows, whatever setlocale was given. */
#define TNI_C_NUMBERS                                                                              \
    __attribute__((cleanup(tni_return_locale), unused)) const locale_t tni_locale_was_ =           \
        tni_to_c_locale()

#endif
