/*
 * shared.h - what several ops share: arrays as kernels want them, reductions of losses, checks of
 * indices.
 */
#pragma once

#include "autograd/op.h"

/* Product of sizes first..last-1. */
static inline int64_t rows_count(const tn_shape *shape, int first, int last)
{
    int64_t n = 1;
    for (int d = first; d < last; d++) n *= shape->size[d];
    return n;
}

/* A shape as [n, c, d], c being one of its axes; a single value as [1, 1, 1]. */
typedef struct rows_sizes {
    int64_t n, c, d;
} rows_sizes;
static inline rows_sizes rows_around(const tn_shape *s, int axis)
{
    int64_t c = s->rank ? s->size[axis] : 1;
    return (rows_sizes){ rows_count(s, 0, axis), c, rows_count(s, axis + 1, s->rank) };
}

/* A dense tensor under other sizes of the same product; absent for TN_NONE and NULL. */
static inline tni_array rows_array(const tn_tensor *t, int rank, int64_t a, int64_t b, int64_t c)
{
    if (tni_absent(t)) return tni_array_none();
    tni_array array = { .data = tni_data(t), .dtype = t->dtype, .rank = rank, .size = { a, b, c } };
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        array.stride[d] = stride;
        stride *= array.size[d];
    }
    return array;
}

/* Rows [first, first + rows) of a dense tensor with rows of width elements. */
static inline tni_array rows_part(const tn_tensor *t, int64_t first, int64_t rows, int64_t width)
{
    tni_array part = rows_array(t, 2, rows, width, 0);
    part.data = (char *)part.data + (size_t)(first * width) * tn_dtype_size(t->dtype);
    return part;
}

/* The n elements of a from `start` on along axis d. */
static inline tni_array rows_along(tni_array a, int d, int64_t start, int64_t n)
{
    a.data = (char *)a.data + start * a.stride[d] * (int64_t)tn_dtype_size(a.dtype);
    a.size[d] = n;
    return a;
}

/* xh = centered / sqrt(var + eps) and the divisor's inverse, over axes, in ops. known: that inverse
 * as the kernel computed it, a constant that keeps the squares in range. */
void tni_normalise(tn_tensor *centered, tn_tensor *known, const int *axes, int n_axes, double eps,
                   tn_tensor **xh, tn_tensor **rstd);

/* g - mean g - xh mean(g xh): of g, the gradient of xh, what changes xh. */
tn_tensor *tni_centred_slope(tn_tensor *g, tn_tensor *xh, const int *axes, int n_axes);

/* Puts "tn_NAME: " before a kernel's message about a bad index: kernels don't know the op. */
tn_status tni_name_index_error(const tn_op *op, tn_status status);
/* t as i64 (i32 is cast); NULL and a message for other dtypes. bytes: u8 is one, too. */
tn_tensor *tni_as_i64(const char *function, const char *what, tn_tensor *t, bool bytes);
/* An index: u8 is refused, as where PyTorch takes it for an index, it is a mask. */
#define tni_index_arg(function, what, index) tni_as_i64(function, what, index, false)
/* Ids of classes or rows, or lengths: they may be u8. */
#define tni_ids_arg(function, what, ids) tni_as_i64(function, what, ids, true)
/* A single value as a row of one element: functions with an index treat it so, as in PyTorch. */
tn_tensor *tni_as_row(tn_tensor *t);
/* An error unless index, in[1], fits x, in[0]. */
tn_status tni_check_index_shape(const tni_call *c, int axis);
/* Like tn_scatter_add with a checked axis and an i64 index. */
tn_tensor *tni_scatter_into(tn_tensor *x, int axis, tn_tensor *index, tn_tensor *source,
                            tni_scattering how);
/* Zeros of that shape with y's slices along axis added at index [n]; bf16 and f16 give f32. */
tn_tensor *tni_take_add_at(tn_tensor *y, int axis, tn_tensor *index, const tn_shape *shape);
/* x's slices along axis 0 at an i64 index of any shape. */
tn_tensor *tni_take_at(tn_tensor *x, tn_tensor *index);
tn_tensor *tni_iota(int64_t n, tn_device device); /* 0..n-1 as i64, made on the device */

/* mean, sum or nothing over all elements of rows; f32 rows of bf16 or f16 are then rounded to
 * dtype. */
tn_tensor *tni_reduce_loss(const char *function, tn_tensor *rows, tn_reduction reduction,
                           tn_dtype dtype);
/* x, but low where it is below; with slope 1 there, too, as where PyTorch changes data. */
tn_tensor *tni_raised(tn_tensor *x, double low);
/* The class axis of logits for a target of class ids (losses.h); -1 + message: they do not fit. */
int tni_class_axis(const char *function, const tn_tensor *logits, const tn_tensor *target);
/* true where target is ignored (bool). */
tn_tensor *tni_ignored_rows(tn_tensor *target, int64_t ignore);
static inline int64_t rows_ignore(const tn_cross_entropy_options *o)
{
    return o->use_ignore_index ? o->ignore_index : -100;
}
/* The gradient of cross entropy with respect to logits x (cross_entropy.c), in ops. drow: the
 * gradient of each row's loss, in target's shape or broadcast; weight may be NULL or TN_NONE. */
tn_tensor *tni_cross_entropy_slope(tn_tensor *x, tn_tensor *target, tn_tensor *weight,
                                   tn_tensor *drow, int axis, double smoothing, int64_t ignore);
/* Checks what an options struct says about weights (not NULL here) and smoothing; C classes. */
tn_status tni_check_class_options(const char *function, const tn_cross_entropy_options *o,
                                  int64_t classes, const tn_tensor *logits);

/* Where the first k of the order along *axis are, which is made positive; k NULL: all. (sort.c) */
tn_tensor *tni_ordered(const char *function, tn_tensor *x, const int64_t *k, int *axis,
                       bool descending);

/* How the `out` elements of an axis are made of `in`. */
typedef struct tni_axis_map {
    bool placed; /* interpolation; else x goes on beyond its edges */
    int mode;    /* a tn_interpolate_mode or tn_pad_mode */
    int64_t in, out;
    int64_t by[2];      /* padded: before and behind */
    double scale, from; /* placed: steps of x for each of y; y's first edge in x, but of nearest */
    bool align_corners, antialias;
} tni_axis_map;
/* The taps of element o, ascending if placed, an edge perhaps repeated; how many. (resample.c) */
int64_t tni_taps_of(const tni_axis_map *m, bool f64, int64_t o, int64_t *at, double *weight);
int64_t tni_most_taps(const tni_axis_map *m); /* of an element */
