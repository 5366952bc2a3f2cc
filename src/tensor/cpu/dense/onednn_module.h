/*
 * onednn_module.h - what the files of the oneDNN module share: plans of oneDNN calls, and the two
 * interfaces of oneDNN (2.6 and 3.x) as one.
 */
#pragma once

#include <dnnl.h>

#include "tensor/cpu/dense/onednn.h"

typedef dnnl_memory_desc_t tni_layout; /* of an operand in memory */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t tni_const_layout;
#define LAYOUT(l) (l)
#else
typedef const dnnl_memory_desc_t *tni_const_layout;
#define LAYOUT(l) (&(l))
#endif

extern dnnl_engine_t tni_engine;
/* For every kernel: it works in memory that it is given, and has none of its own. */
extern dnnl_primitive_attr_t tni_options;

/* Everything that oneDNN compiles a kernel for. All bytes count: set unused numbers to 0. */
typedef struct tni_key {
    int64_t number[20];
} tni_key;

/* Operands 0..3 are the caller's memory. In the thread's scratch memory are copy i (OPERANDS + i),
 * which is operand i in a layout of oneDNN's own, and what kernel i works in (SCRATCHPADS + i). */
enum {
    TNI_OPERANDS = 4,
    TNI_STEPS = 4,
    TNI_SCRATCHPADS = 2 * TNI_OPERANDS,
    TNI_MEMORIES = TNI_SCRATCHPADS + TNI_STEPS
};

/* One call of oneDNN: its kernel, and the memories that it works on by oneDNN's argument names. */
typedef struct tni_dnnl_step {
    dnnl_primitive_t primitive;
    int n, argument[TNI_OPERANDS + 1], memory[TNI_OPERANDS + 1];
} tni_dnnl_step;

typedef struct tni_dnnl_plan {
    tni_key key;
    bool known;
    int n_steps; /* 0: oneDNN has no fast kernel for this */
    tni_dnnl_step step[TNI_STEPS];
    dnnl_memory_t memory[TNI_MEMORIES]; /* NULL: not used */
    size_t offset[TNI_MEMORIES];        /* in the scratch memory */
    size_t scratch;                     /* bytes of it that the plan takes */
} tni_dnnl_plan;

/* Fills a zeroed plan, or leaves it without steps. */
typedef dnnl_status_t (*tni_dnnl_make)(tni_dnnl_plan *plan, const void *what);

/* Runs the calling thread's plan for this key, which is made with `what` at its first use. False:
 * there is no fast kernel, or no memory for it. */
bool tni_dnnl_run(const tni_key *key, tni_dnnl_make make, const void *what,
                  const void *const operand[TNI_OPERANDS]);

static inline dnnl_data_type_t tni_dnnl_type(tn_dtype dtype)
{
    return dtype == TN_BF16 ? dnnl_bf16 : dnnl_f32;
}
void tni_layout_free(tni_layout *layout);
/* The name of the kernel that oneDNN chose; "" on failure. */
const char *tni_dnnl_name(const_dnnl_primitive_desc_t chosen);
/* Adds memory i to the plan. */
dnnl_status_t tni_dnnl_memory(tni_dnnl_plan *plan, int i, tni_const_layout layout);
/* Adds a call; the step's memories are named by the caller. */
dnnl_status_t tni_dnnl_step_add(tni_dnnl_plan *plan, const_dnnl_primitive_desc_t chosen, int n,
                                const int *argument, const int *memory);

bool tni_dnnl_product(const tni_product *p);
bool tni_dnnl_convolve(const tni_convolution *c);
