/*
 * here.c - says that there is AMX: linked before the library, so that whole suites run over the
 * emulation (amx.c) wherever there is AVX-512.
 */
#include <string.h>

#include "tensor/cpu/cpu.h"

bool tni_has_amx(void)
{
    return strcmp(tni_cpu_simd(), "avx512") == 0;
}
