/*
 * walk.h - one order of visiting the elements of several arrays of equal sizes.
 *
 * Axes of size 1 vanish, the others are sorted by array 0's strides, largest first, and neighbours
 * that are one run in every array are merged: dense arrays become one axis, [N,C] + [C] two.
 */
#ifndef TNI_WALK_H
#define TNI_WALK_H

#include "tensor/kernels.h"

enum { TNI_WALK_ARRAYS = 4 };

typedef struct tni_walk {
    int rank; /* at least 1 */
    int n;
    int64_t numel;
    int64_t size[TN_MAX_RANK];
    int64_t stride[TN_MAX_RANK][TNI_WALK_ARRAYS]; /* elements */
} tni_walk;

void tni_walk_init(tni_walk *w, int n, const tni_array *const *arrays);

/* Where element number i (row-major in w's axes) is. */
typedef struct tni_cursor {
    int64_t index[TN_MAX_RANK];
    int64_t at[TNI_WALK_ARRAYS]; /* elements from each array's first */
} tni_cursor;

void tni_cursor_seek(tni_cursor *c, const tni_walk *w, int64_t i);
/* n elements further along the last axis, not beyond its end; from the end on to the next row. */
void tni_cursor_step(tni_cursor *c, const tni_walk *w, int64_t n);

#endif
