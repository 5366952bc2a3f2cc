/* micro_batches.h - a batch in parts, for calls, ranks and checkpoints. */
#pragma once

#include <tenon/micro_batches.h>

#include "nn/module.h"

/* A buffer of a module that took part; tensors are a reference each. */
typedef struct tni_moved {
    tn_module *module;       /* one reference; of moments NULL */
    int64_t slot;            /* its slot's serial number */
    int before;              /* 1 + the module's entry before this one; 0: none */
    tn_tensor *buffer, *var; /* the module's; var: of moments, else NULL */
    tn_tensor *start;        /* a copy of the buffer before the batch; of moments NULL */
    uint64_t version;        /* of the buffer with these values */
    unsigned role;
    double n, momentum; /* parts so far, or of moments the numbers behind them; 0: not moved */
    tn_tensor *value;   /* what the parts made of it: the first one, or the mean */
    tn_tensor *spread;  /* of moments: sum of squares from the mean */
    bool biased;        /* of moments: the variance is to be over n, not n - 1 */
} tni_moved;

typedef struct tni_batch {
    int parts, at; /* the running part, or the next one */
    bool open;     /* begun; else loaded from a checkpoint */
    bool over;     /* buffers have moved, though the last part still runs */
    tni_map met;   /* a module -> 1 + its newest entry in moved */
    tni_moved *moved;
    int n;
    size_t capacity;
} tni_batch;

/* t in f64, without history. */
static inline tn_tensor *tni_f64_of(tn_tensor *t)
{
    return tn_to_dtype(tn_detach(t), TN_F64);
}

extern TNI_THREAD tni_batch *tni_batch_now; /* this thread's; NULL: none */
/* Whether a part of a batch runs, in which buffers are not to move yet. */
static inline bool tni_in_part(void)
{
    return TNI_UNLIKELY(tni_batch_now) && tni_batch_now->open && !tni_batch_now->over;
}

/* m is called; outermost: within no other call, and may write to all below it. */
tn_status tni_batch_meet(tn_module *m, bool outermost);
/* Appends a buffer of m (NULL, NULL: one of moments). NULL + message. */
tni_moved *tni_batch_add(tni_batch *b, tn_module *m, const tni_slot *slot, tn_tensor *buffer,
                         tn_tensor *var);
/* Buffers are put back; keep: what the part made of them is kept aside, and counts. */
tn_status tni_batch_settle(tni_batch *b, bool keep);
/* In the last part, before ranks exchange buffers: they move now. */
tn_status tni_batch_end_early(void);
void tni_batch_free(tni_batch *b); /* NULL is ignored */
/* tn_move_statistics; biased: in a part, so that the running variance is over n, not n - 1. */
tn_status tni_move_statistics(tn_tensor *const running[2], tn_tensor *const now[2], int64_t n,
                              double momentum, bool biased);
