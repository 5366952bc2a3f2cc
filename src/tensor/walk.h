/*
 * walk.h - visiting the elements of several arrays of equal sizes in one order.
 *
 * Axes of size 1 are dropped, the others sorted by array 0's strides, largest first. Neighbours
 * that are contiguous in every array are merged: dense arrays become one axis, [N,C] + [C] two.
 */
#pragma once

#include "tensor/kernels.h"

enum { TNI_WALK_ARRAYS = 4 };

typedef struct tni_walk {
    int rank; /* at least 1 */
    int n;
    int64_t numel;
    int64_t size[TN_MAX_RANK];
    int64_t stride[TN_MAX_RANK][TNI_WALK_ARRAYS]; /* elements; 0 from array n on */
} tni_walk;

void tni_walk_init(tni_walk *w, int n, const tni_array *const *arrays);

/* The position of element i (row-major in w's axes). */
typedef struct tni_cursor {
    int64_t index[TN_MAX_RANK];
    int64_t at[TNI_WALK_ARRAYS]; /* elements from each array's first */
} tni_cursor;

void tni_cursor_seek(tni_cursor *c, const tni_walk *w, int64_t i);
/* Advances n elements along the last axis, at most to its end; from there to the next row. */
void tni_cursor_step(tni_cursor *c, const tni_walk *w, int64_t n);
