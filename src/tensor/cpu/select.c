/*
 * select.c - chooses the instruction set of kernels: the best that processor and system support.
 *
 * TN_SIMD=baseline|avx2|avx512 in the environment selects another one. If the processor lacks it,
 * the best one below is used; an unknown name is ignored. TN_AMX=off leaves AMX out, TN_DOTS=off
 * dot products of bf16; TN_DOTS=on takes them where they are slower, too. tn_info shows the choice.
 */
#include "tensor/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if TNI_AMX
#include <errno.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51 /* glibc 2.34 has it */
#endif
#endif

extern const tni_backend tni_cpu_table_baseline;
#if defined(__x86_64__)
extern const tni_backend tni_cpu_table_avx2, tni_cpu_table_avx512;
#endif

typedef struct choice {
    const char *name;
    const tni_backend *table;
} choice;

static const choice choices[] = {
    { "baseline", &tni_cpu_table_baseline },
#if defined(__x86_64__)
    { "avx2", &tni_cpu_table_avx2 },
    { "avx512", &tni_cpu_table_avx512 },
#endif
};
enum { N_CHOICES = sizeof(choices) / sizeof(choices[0]) };

/* Index of the best table this processor can run. The builtins ask the operating system too. */
static int best_choice(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return 0;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return 1;
    return 2;
#else
    return 0;
#endif
}

/* The choice depends only on processor and environment, so threads racing here agree. */
static const choice *chosen(void)
{
    static _Atomic(const choice *) known;
    const choice *c = atomic_load_explicit(&known, memory_order_acquire);
    if (TNI_LIKELY(c != NULL)) return c;
    int best = best_choice();
    const char *wish = getenv("TN_SIMD");
    for (int i = 0; wish && i < best; i++)
        if (strcmp(wish, choices[i].name) == 0) best = i;
    c = &choices[best];
    atomic_store_explicit(&known, c, memory_order_release);
    return c;
}

const tni_backend *tni_cpu_backend(void)
{
    return chosen()->table;
}

const char *tni_cpu_simd(void)
{
    return chosen()->name;
}

int tni_cpu_isa(void)
{
    return (int)(chosen() - choices);
}

static bool has_amx;
static char amx_why[128];

#if TNI_AMX
/* Leaf 7 of cpuid tells of the tiles and their products of bf16 (edx, bits 24 and 22), and of the
 * conversion to bf16 (subleaf 1, eax, bit 5). */
static bool amx_is_there(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0, more = 0;
    return tni_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) &&
           (d >> 22 & 1) && __get_cpuid_count(7, 1, &more, &b, &c, &a) && (more >> 5 & 1);
}

/* The system must be asked for the tiles' registers, which it then saves for every signal. It
 * refuses if some thread's signal stack is too small for them. */
static void find_amx(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    const char *wish = getenv("TN_AMX");
    if (!amx_is_there()) return;
    if (wish && strcmp(wish, "off") == 0)
        snprintf(amx_why, sizeof amx_why, "TN_AMX=off");
    else if (syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0)
        has_amx = true;
    else if (errno == ENOSPC)
        snprintf(amx_why, sizeof amx_why,
                 "a thread's signal stack (sigaltstack) is too small: want at least %lu bytes",
                 getauxval(AT_MINSIGSTKSZ));
    else
        snprintf(amx_why, sizeof amx_why, "the system refuses its registers (errno %d)", errno);
}
#else
static void find_amx(void) {}
#endif

bool tni_has_amx(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_amx);
    return has_amx;
}

static bool has_dots;

/* Leaf 7 of cpuid, subleaf 1, eax, bit 5. On AMD's processors they multiply twice as many numbers
 * in a second as f32's products, on Intel's half as many (docs/measurements.md). */
static void find_dots(void)
{
#if TNI_AMX
    unsigned a = 0, b = 0, c = 0, d = 0;
    const char *wish = getenv("TN_DOTS");
    bool there = tni_has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    bool on = wish && strcmp(wish, "on") == 0, off = wish && strcmp(wish, "off") == 0;
    has_dots = there && !off && (on || __builtin_cpu_is("amd"));
#endif
}

bool tni_has_dots(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_dots);
    return has_dots;
}

const char *tni_amx_why(void)
{
    return !tni_has_amx() && *amx_why ? amx_why : NULL;
}

const tni_backend *tni_cpu_table(const char *simd)
{
    int best = best_choice();
    for (int i = 0; i < N_CHOICES && i <= best; i++)
        if (strcmp(simd, choices[i].name) == 0) return choices[i].table;
    return NULL;
}
