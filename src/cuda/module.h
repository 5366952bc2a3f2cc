/*
 * module.h - what the core and the CUDA module agree on. The module links nothing of tenon: it exports one
 * function, gets what it needs from the core as a table, and gives back its kernel table.
 */
#ifndef TNI_CUDA_MODULE_H
#define TNI_CUDA_MODULE_H

#include "tensor/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TNI_CUDA_FILE "libtenon-cuda.so"
#define TNI_CUDA_SYMBOL "tenon_cuda_open"
/* Both sides were built from one text when these are equal. */
#define TNI_BUILD_ID TN_VERSION " kernels-1"

/* The kernel table, or NULL with the reason in why (size bytes). */
typedef const tni_backend *(*tni_cuda_open)(const tni_host *host, const char *build_id, char *why, size_t size);

#ifdef __cplusplus
}
#endif
#endif
