/*
 * choice.h - whether the preloaded amx.c lets the processor multiply tiles or emulates them.
 */
#ifndef AMX_CHOICE_H
#define AMX_CHOICE_H

#include <cpuid.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQUEST = 0x1023, TILE_DATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };

/* Leaf 7 of cpuid, edx. */
static inline unsigned amx_processor(void)
{
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) ? d : 0;
}

/* Asks the system for the tiles' registers; 0: it gives them. */
static inline long amx_request(void)
{
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
}

/* wish: AMX_EMULATED in the environment. The system is asked last, since what it gives stays. */
static inline bool amx_is_native(const char *wish, unsigned processor, long (*request)(void))
{
    const unsigned wanted = AMX_BF16 | AMX_TILE;
    return !wish && (processor & wanted) == wanted && request() == 0;
}

#endif
