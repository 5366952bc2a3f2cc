/*
 * resample.h - what interpolation, padding by x's own elements and fold share: along each axis an
 * element of y is a weighted sum of some of x.
 */
#ifndef TNI_RESAMPLE_H
#define TNI_RESAMPLE_H

#include "autograd/op.h"

typedef enum tni_map_kind {
    TNI_ITSELF, /* the same elements */
    TNI_PADDED, /* x goes on beyond its edges */
    TNI_PLACED, /* interpolation */
    TNI_WINDOWS /* element (r, i) of [.., run] is the one at i stride + r dilation */
} tni_map_kind;

/* How the `out` elements of an axis are made of `in`. */
typedef struct tni_axis_map {
    tni_map_kind kind;
    int mode; /* a tn_pad_mode or tn_interpolate_mode */
    int64_t in, out;
    int64_t before, behind; /* padded */
    double scale;           /* placed: steps of x for each of y */
    bool align_corners, antialias;
    int64_t stride, dilation, run;
    int64_t far; /* windows: from r to r + 1 in memory */
} tni_axis_map;

/* The op's forward: y = the rows and columns of each of `planes` planes of x mapped. back: the
 * transpose, which gives each element of `in` all that it is part of. step: from row to row of x.
 * columns may be TNI_ITSELF. */
tn_status tni_map_planes(const tni_call *c, int64_t planes, const tni_axis_map *rows,
                         const tni_axis_map *columns, int64_t step, bool back);

/* An op that maps an axis and the last one, or (columns TNI_ITSELF) an axis alone. */
typedef struct tni_mapped {
    int axis; /* of the rows */
    tni_axis_map rows, columns;
} tni_mapped;
tn_status tni_mapped_shape(tni_call *c);
tn_status tni_mapped_forward(tni_call *c);
tn_status tni_unmapped_shape(tni_call *c);
tn_status tni_unmapped_forward(tni_call *c);
/* The op on the last n axes, map[0] being the last one's. */
tn_tensor *tni_map_axes(const tn_op *op, tn_tensor *x, const tni_axis_map *map, int n);

/* Such an op, and its transpose. */
#define TNI_MAPPED(op_name, name_, formula_)                                                       \
    static const tn_op op_name##_grad;                                                             \
    static const tn_op op_name = {                                                                 \
        .name = name_,                                                                             \
        .formula = "y_o = " formula_,                                                              \
        .gradient = "dx_i = sum over o of w_oi dy_o; where w_oi is x_i's weight in y_o",           \
        .arity = 1,                                                                                \
        .autocast = TNI_CAST_KEEP,                                                                 \
        .dense = TNI_X(0),                                                                         \
        .shape = tni_mapped_shape,                                                                 \
        .forward = tni_mapped_forward,                                                             \
        .backward = tni_transposed,                                                                \
        .transpose = &op_name##_grad,                                                              \
    };                                                                                             \
    static const tn_op op_name##_grad = {                                                          \
        .name = name_ "_grad",                                                                     \
        .formula = "dx_i = sum over o of w_oi dy_o",                                               \
        .gradient = "ddy_o = sum over i of w_oi g_i; where g is the gradient of dx",               \
        .arity = 1,                                                                                \
        .dense = TNI_X(0),                                                                         \
        .shape = tni_unmapped_shape,                                                               \
        .forward = tni_unmapped_forward,                                                           \
        .backward = tni_transposed,                                                                \
        .transpose = &op_name,                                                                     \
    };

#endif
