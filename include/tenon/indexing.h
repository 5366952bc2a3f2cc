/**
 * tenon/indexing.h - reading and writing by index.
 * What ops.h says at its head holds here.
 */
#ifndef TENON_INDEXING_H
#define TENON_INDEXING_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/* ---- indexing -------------------------------------------------------------------------------- */

/* An index is i64 or i32; ids, of tn_embedding and tn_one_hot, may be u8 too (PyTorch takes a u8
 * index for a mask). Values outside 0..size-1 (negative ones too) are TN_E_INDEX naming value and
 * position. Gradients of elements read several times add up in the order of the index. */

/**
 * y[i][j] = x[index[i][j]][j] for axis 0. x of any dtype.
 *
 * Shapes   index has x's rank; sizes on the other axes at most x's; y as index. A single value x
 *          counts as a row of one, for an index [] or [n]
 * Grad     tn_scatter_add of dy into zeros
 */
TN_API tn_tensor *tn_gather(tn_tensor *x, int axis, tn_tensor *index);
/** Slices of x along an axis, by a 1-D index: that axis gets index's size. x of any dtype; a single
 *  value with an index [1] gives a single value. */
TN_API tn_tensor *tn_index_select(tn_tensor *x, int axis, tn_tensor *index);
/**
 * x plus source added at index along an axis: y[index[i][j]][j] += source[i][j] for axis 0.
 *
 * Shapes   index as in tn_gather; source as index; y as x
 * Errors   source and x differ in dtype or are not floating
 */
TN_API tn_tensor *tn_scatter_add(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source);
/**
 * Rows of weight [V, D] by id: index [...] -> [..., D].
 *
 * padding_index  in 0..V-1: this row's gradient stays 0 (forward reads it like any other); -1: none
 * Source   Mikolov et al. (2013), section 2.1 (projection layer)
 */
TN_API tn_tensor *tn_embedding(tn_tensor *weight, tn_tensor *index, int64_t padding_index);
/** 1 at the index, else 0: index [...] -> [..., n], i64; n = -1 takes the largest index + 1 and, on
 *  a GPU, waits for it */
TN_API tn_tensor *tn_one_hot(tn_tensor *index, int64_t n);

TN_END_C_

#endif
