/*
 * fault.h - how a kernel reports a bad index, and checks whether one was reported.
 *
 * The record of the first launch that met a bad index stays until the host has read it; among the
 * threads of that launch the lowest position wins, in whatever order they run. The lock is taken
 * only on this rare path.
 */
#pragma once

#include "cuda/cuda.h"
#include "tensor/classes.h"

static __device__ inline void fault_record(tni_cuda_fault *f, int kind, int64_t launch,
                                           int64_t value, int64_t limit, int64_t position,
                                           int64_t ignore)
{
    volatile tni_cuda_fault *now = f;
    bool done = now->set && (now->launch != launch || now->position <= position);
    while (!done) {
        if (atomicCAS(&f->lock, 0, 1) != 0) continue;
        __threadfence();
        if (!now->set || (now->launch == launch && position < now->position)) {
            now->launch = launch;
            now->value = value;
            now->limit = limit;
            now->position = position;
            now->ignore = ignore;
            __threadfence(); /* set only after the rest is visible */
            now->set = kind;
        }
        __threadfence();
        atomicExch(&f->lock, 0);
        done = true;
    }
}

/* Whether a row with target t counts. A target that is not a class is reported, if `report`, and
 * counts as ignored: nothing is read or written through it. */
static __device__ __forceinline__ bool row_counts(int64_t t, int64_t c, int64_t ignore, int64_t row,
                                                  tni_cuda_fault *f, int64_t launch, bool report)
{
    tni_class kind = tni_class_of(t, c, ignore);
    if (kind == TNI_CLASS_BAD && report)
        fault_record(f, TNI_FAULT_TARGET, launch, t, c, row, ignore);
    return kind == TNI_CLASS_GOOD;
}

/* Whether a kernel before this one met a bad index: then training's state must not be written. */
static __device__ inline bool fault_set(const tni_cuda_fault *f)
{
    return static_cast<const volatile tni_cuda_fault *>(f)->set != 0;
}
