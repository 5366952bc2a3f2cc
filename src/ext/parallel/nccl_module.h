/*
 * nccl_module.h - what the shared module libtenon-nccl.so offers: sums over ranks of numbers in GPU
 * memory, without a type of NCCL's or CUDA's.
 *
 * A function returns NULL, or the reason for a failure: text that lives until the thread's next
 * call. Functions that end something report nothing.
 */
#pragma once

#include <stddef.h>

#include <tenon/tensor.h>

#define TNI_NCCL_FILE "libtenon-nccl.so"
#define TNI_NCCL_SYMBOL "tenon_nccl_open"
#define TNI_NCCL_ID "tenon nccl 3"

enum { TNI_NCCL_KEY = 128 }; /* bytes of a key */

/* A connection of all ranks. The sums of all lines of a GPU are in one stream, beside the
 * program's: they run in the order of the calls. */
typedef struct tni_nccl_line tni_nccl_line;

typedef struct tni_nccl { /* nccl.c fills it in this order */
    /* Makes this rank's end: on GPU `device`, with work ordered in `stream` (a cudaStream_t). */
    const char *(*line_new)(int device, void *stream, tni_nccl_line **line);
    const char *(*key_new)(void *key); /* on one rank: names a new connection */
    /* Connects, and waits for, all ranks of one key. Call it after line_new, in its thread. */
    const char *(*line_join)(tni_nccl_line *line, const void *key, int rank, int size);
    /* Waits for the sums of all lines of its GPU. NULL is ignored. */
    void (*line_free)(tni_nccl_line *line);
    /* Begins a sum: n numbers of f32, f64, bf16 or i64 in device memory, which become the sum when
     * the work now in the program's stream is done, on all ranks. Ranks call it in the same order,
     * across all lines. Returns at once. */
    const char *(*sum_begin)(tni_nccl_line *line, void *data, size_t n, tn_dtype dtype);
    /* Work added to the program's stream from now on sees the sums begun. Returns at once. */
    const char *(*wait)(tni_nccl_line *line);
    /* Returns when the sums of all lines are done. */
    void (*finish)(void);
} tni_nccl;

/* NULL + the reason in why. */
typedef const tni_nccl *(*tni_nccl_open)(const char *id, char *why, size_t size);
