/*
 * here.c - says that there is AMX: linked before the library, so that whole suites run over the
 * emulation (amx.c) wherever there is AVX-512.
 */
#include "tensor/cpu/cpu.h"

bool tni_has_amx(void)
{
    return tni_has_avx512();
}
