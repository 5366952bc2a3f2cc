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
/** source written at index along an axis: y[index[i][j]][j] = source[i][j] for axis 0, the last one
 *  where an index stands twice. As tn_scatter_add, but x of any dtype. Grad: dx = dy, 0 where
 *  something was written; dsource = dy at index. PyTorch: Tensor.scatter */
TN_API tn_tensor *tn_scatter(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source);
/** x plus slices of source added along an axis at an index [n]; source is like x, but n along axis.
 *  PyTorch: Tensor.index_add */
TN_API tn_tensor *tn_index_add(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source);
/** Elements, or slices, by their positions on the first n axes: of x [A, B, C] and two indices that
 *  broadcast to [m] y [m, C], y[i] = x[index0[i]][index1[i]]. Below 0: from the end. Errors:
 *  outside an axis, naming it; more indices than axes. PyTorch: x[index0, index1] */
TN_API tn_tensor *tn_index(tn_tensor *x, tn_tensor *const *index, int n);
/** x with source's elements, in row-major order, where mask (bool, broadcast) is true. Errors:
 *  fewer elements than places. PyTorch: torch.masked_scatter */
TN_API tn_tensor *tn_masked_scatter(tn_tensor *x, tn_tensor *mask, tn_tensor *source);
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

/* ---- sorting --------------------------------------------------------------------------------- */

/* Any dtype. NaN counts as the largest number, -0 equals 0, equal elements keep their order (also
 * in tn_topk, where PyTorch leaves it open). A single value is a line of one. */

/**
 * The lines of x along an axis in order: the smallest first, or descending. Stable.
 *
 * Returns  the values; in *index (NULL: not wanted) where each was along the axis, i64
 * Grad     goes to where a value was
 * PyTorch: torch.sort; always stable
 */
TN_API tn_tensor *tn_sort(tn_tensor *x, int axis, bool descending, tn_tensor **index);
/** The index of tn_sort alone. No gradient. PyTorch: torch.argsort; always stable */
TN_API tn_tensor *tn_argsort(tn_tensor *x, int axis, bool descending);
/** The k largest (or smallest) along an axis, in order; otherwise as tn_sort, but faster. Errors: k
 *  negative or larger than the axis. PyTorch: torch.topk; always sorted */
TN_API tn_tensor *tn_topk(tn_tensor *x, int64_t k, int axis, bool largest, tn_tensor **index);
/** The median along an axis, of an even count the lower of two; NaN if there is one (index then:
 *  the first). Otherwise as tn_max. Errors: an empty axis. PyTorch: torch.median */
TN_API tn_tensor *tn_median(tn_tensor *x, int axis, bool keepdim, tn_tensor **index);
/**
 * The different values of x, sorted, in one axis; each NaN is one of its own. No gradient. Here and
 * wherever a result's size depends on values (tn_nonzero, tn_masked_select, tn_bincount) the host
 * waits for a GPU, and a captured step refuses.
 *
 * inverse  (NULL: not wanted) gets an i64 of x's shape: which of them each element is
 * counts   (NULL: not wanted) gets an i64 of the result's shape: how often each occurs
 * PyTorch: torch.unique; sorted, without dim
 */
TN_API tn_tensor *tn_unique(tn_tensor *x, tn_tensor **inverse, tn_tensor **counts);

/* ---- sampling and counting ------------------------------------------------------------------- */

/** The indices of what is not 0 (NaN is not), in row-major order: i64 [how many, rank of x].
 *  PyTorch: torch.nonzero */
TN_API tn_tensor *tn_nonzero(tn_tensor *x);
/** The elements of x where mask (bool, broadcast with x) is true, in one axis. PyTorch:
 *  torch.masked_select */
TN_API tn_tensor *tn_masked_select(tn_tensor *x, tn_tensor *mask);
/**
 * How often each of 0, 1, ... occurs in x, integers along one axis: i64 [largest + 1], or
 * [minlength] if that is more. No gradient.
 *
 * Errors   negative values
 * PyTorch: torch.bincount; without weights
 */
TN_API tn_tensor *tn_bincount(tn_tensor *x, int64_t minlength);
/**
 * n samples for each row of p, with probabilities in proportion to it (those of 0 last, where
 * nothing else is left): p [c] or [rows, c] gives i64 [n] or [rows, n]. Drawn on p's device by the
 * default generator (tn_manual_seed), by other numbers than PyTorch's.
 *
 * With replacement by the inverse of the running sums; without it, or n = 1, the first n of a race,
 * in which number i arrives after an exponentially distributed time of mean 1 / p_i. Efraimidis and
 * Spirakis, Weighted random sampling with a reservoir (2006).
 *
 * Errors   negative or NaN values; a row's sum 0 or not finite; inside a captured step
 * PyTorch: torch.multinomial
 */
TN_API tn_tensor *tn_multinomial(tn_tensor *p, int64_t n, bool replacement);

TN_END_C_

#endif
