/*
 * cuda_module.h - the interface of core and CUDA module. The module does not link to tenon: it
 * exports one function, which takes a table of core functions and returns the module's table.
 */
#pragma once

#include "tensor/kernels.h"

#define TNI_CUDA_FILE "libtenon-cuda.so"
#define TNI_CUDA_SYMBOL "tenon_cuda_open"
/* If these are equal, both sides were built from the same source. */
#define TNI_BUILD_ID TN_VERSION " kernels-11"

/* The kernels, and GPU-only functions, named as in tensor.h. */
typedef struct tni_cuda_module {
    tni_backend backend;
    int devices;
    tn_status (*properties)(int index, tn_cuda_properties *properties);
    tn_status (*memory)(tn_cuda_memory_stats *stats);
    void (*memory_reset_peak)(void);
    tn_status (*memory_trim)(void);
    tn_status (*allow_tf32)(bool allow);
    const struct tni_graphs *graphs; /* graphs.h: captured steps, copies beside them */
    /* The process computes on this GPU from now on; an error when it does on another one. */
    tn_status (*use)(int index);
    /* The stream that all work is ordered in (a cudaStream_t), for libraries that wait for it; not
     * inside a captured step. */
    tn_status (*stream)(void **stream);
} tni_cuda_module;

/* The table, or NULL with the reason in why (size bytes). */
typedef const tni_cuda_module *(*tni_cuda_open)(const tni_host *host, const char *build_id,
                                                char *why, size_t size);

/* backend.c: the stream of the process's GPU, by that function. */
tn_status tni_cuda_stream_of(tn_device device, void **stream);
/* Whether the module was opened, or is known to be missing. */
bool tni_cuda_asked(void);
