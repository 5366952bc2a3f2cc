/*
 * onednn.h - the interface of the CPU backend and its oneDNN module (onednn.c), which is opened at
 * the first product that is large enough. The module does not link to tenon: it exports one
 * function, which returns the module's table.
 */
#ifndef TNI_ONEDNN_H
#define TNI_ONEDNN_H

#include "tensor/kernels.h"

#define TNI_ONEDNN_FILE "libtenon-onednn.so"
#define TNI_ONEDNN_SYMBOL "tenon_onednn_open"
/* If these are equal, both sides were built from the same source. */
#define TNI_ONEDNN_ID TN_VERSION " products-1"

/* C[m,n] (+)= op(A) op(B) (+ bias), row-major, on the calling thread alone. */
typedef struct tni_product {
    int64_t m, n, k, lda, ldb, ldc;
    tn_dtype in, out; /* of a, b and bias; of c. f32 to f32, or bf16 to bf16 or f32 */
    bool ta, tb, accumulate;
    const void *a, *b, *bias; /* bias: n values added to every row, or NULL */
    void *c;
} tni_product;

typedef struct tni_onednn {
    const char *version;
    bool bf16; /* this processor multiplies bf16 */
    /* Whether it was done; if not (no fast kernel for these sizes on this processor, or no memory
     * for it) C is untouched. */
    bool (*product)(const tni_product *p);
} tni_onednn;

/* The table, or NULL with the reason in why (size bytes). */
typedef const tni_onednn *(*tni_onednn_open)(const char *id, char *why, size_t size);

#endif
