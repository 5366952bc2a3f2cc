/*
 * onednn.h - the interface of the CPU backend and its oneDNN module (onednn.c), which is opened at
 * the first product or convolution that is large enough. The module does not link to tenon: it
 * exports one function, which returns the module's table.
 */
#pragma once

#include "tensor/kernels.h"

#define TNI_ONEDNN_FILE "libtenon-onednn.so"
#define TNI_ONEDNN_SYMBOL "tenon_onednn_open"
/* If these are equal, both sides were built from the same source. */
#define TNI_ONEDNN_ID TN_VERSION " onednn-5"

/* C[m,n] (+)= op(A) op(B) (+ bias), row-major. packed: NULL or, where C is f32, a copy of B as our
 * own kernel for `in` packs it (amx.c where there is AMX, else tile.c). That kernel reads the copy,
 * and B itself where a sum is not finite; if it has no memory, another kernel reads B. */
typedef struct tni_product {
    int64_t m, n, k, lda, ldb, ldc;
    tn_dtype in, out; /* of a, b and bias; of c: the same, or f32 for bf16 and f16 */
    bool ta, tb, accumulate;
    const void *a, *b, *bias; /* bias: n values added to every row, or NULL */
    void *c;
    const void *packed;
    int64_t groups; /* of few.c alone: not 0, and B is bytes, each column with so many scales */
} tni_product;

/* One of a convolution's three computations: y, or the gradient of x or w, is written, the other
 * two are read. For both gradients y is dy. Dense NCHW. */
typedef struct tni_convolution {
    enum { TNI_CONV_Y, TNI_CONV_DX, TNI_CONV_DW } kind;
    tni_conv2d_sizes sizes;
    tni_array x, w, y, bias; /* bias: of y alone, or data NULL */
} tni_convolution;

/* Both work on the calling thread alone. False: nothing was done, or not all, because there is no
 * fast kernel for these sizes on this processor, or no memory for it; compute it another way. */
typedef struct tni_onednn {
    const char *version;
    bool bf16; /* this processor multiplies bf16 */
    bool (*product)(const tni_product *p);
    bool (*convolve)(const tni_convolution *c);
} tni_onednn;

/* The table, or NULL with the reason in why (size bytes). */
typedef const tni_onednn *(*tni_onednn_open)(const char *id, char *why, size_t size);
