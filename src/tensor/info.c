/* info.c - a description of the build and the machine, for bug reports and log files. */
#include <cblas.h>

#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/thread_pool.h"
#include "tensor/cuda_module.h"
#include "tensor/internal.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#if defined(__OPTIMIZE__)
#define OPTIMISED "optimised"
#else
#define OPTIMISED "not optimised"
#endif

#if !defined(__has_feature)
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SANITISED ", address sanitizer"
#else
#define SANITISED ""
#endif

static char text[2][2048]; /* [1]: after a CUDA device was asked for */
static pthread_once_t once[2] = { PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT };

static void describe(char *to, const char *cuda)
{
    static const char *const flavour[] = { "one thread", "pthread", "OpenMP" };
    int parallel = openblas_get_parallel();
    const char *amx = tni_product_amx_f32() ? ", products of f32 and bf16 by AMX"
                      : tni_has_amx()       ? ", products of bf16 by AMX"
                      : tni_has_dots()      ? ", products of bf16 by AVX512-BF16"
                                            : "";
    const char *why = tni_amx_why();
    snprintf(to, sizeof text[0],
             "version: %s\n"
             "compiler: %s\n"
             "build: %s%s\n"
             "BLAS: %s (%s flavour)\n"
             "SIMD: %s%s%s%s\n"
             "threads: %d of %d processors\n"
             "CUDA: %s\n",
             TN_VERSION, COMPILER, OPTIMISED, SANITISED, openblas_get_config(),
             parallel >= 0 && parallel <= 2 ? flavour[parallel] : "unknown", tni_cpu_simd(), amx,
             why ? ", AMX is not used: " : "", why ? why : "", tn_num_threads(), tni_processors(),
             cuda);
}

static void describe_cpu(void)
{
    describe(text[0], "not asked for (tn_cuda_available does)");
}

static void describe_all(void)
{
    describe(text[1], tn_cuda_available() ? "available" : tn_cuda_why());
}

const char *tn_info(void)
{
    bool asked = tni_cuda_asked();
    pthread_once(&once[asked], asked ? describe_all : describe_cpu);
    return text[asked];
}

bool tn_bf16_is_fast(tn_device device)
{
    tn_cuda_properties gpu = { .major = 0 };
    if (device.type == TN_CPU) return tni_product_bf16();
    return device.index >= 0 && device.index < tn_cuda_device_count() &&
           tn_cuda_get_properties(device.index, &gpu) == TN_OK && gpu.major >= 8;
}

const char *tn_version_string(void)
{
    return TN_VERSION;
}
