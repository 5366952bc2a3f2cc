/*
 * conv_cases.h - shapes of convolutions, and layouts of matrices, for the suites that compare their
 * kernels: cases that any of the algorithms could get wrong.
 */
#ifndef TENON_TESTS_CONV_CASES_H
#define TENON_TESTS_CONV_CASES_H

#include "tensor/kernels.h"

static const tni_conv2d_sizes convs[] = {
    /* n, groups, c, h, w, o, kh, kw, oh, ow, stride, padding, dilation; oh and ow follow */
    { 2, 1, 5, 9, 8, 7, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },  /* a plain product */
    { 33, 1, 5, 3, 5, 7, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } }, /* many small planes */
    { 2, 1, 3, 13, 11, 8, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 3, 1, 1, 28, 28, 33, 5, 5, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 2, 1, 33, 16, 12, 65, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* quads of outputs, large
                                                                           tiles */
    { 5, 1, 3, 21, 20, 40, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 2, 1, 4, 9, 9, 33, 3, 3, 0, 0, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 2, 1, 4, 10, 7, 6, 3, 3, 0, 0, { 2, 1 }, { 0, 2 }, { 1, 2 } },
    { 1, 1, 3, 11, 13, 4, 2, 2, 0, 0, { 3, 3 }, { 0, 0 }, { 1, 1 } }, /* inputs without a tap */
    { 2, 1, 3, 12, 12, 5, 3, 3, 0, 0, { 2, 2 }, { 2, 2 }, { 2, 2 } }, /* classes without a tap */
    { 2, 1, 3, 17, 15, 5, 3, 4, 0, 0, { 4, 3 }, { 3, 1 }, { 2, 3 } },
    { 1, 1, 2, 14, 14, 3, 3, 3, 0, 0, { 6, 6 }, { 4, 4 }, { 4, 4 } },
    { 2, 1, 3, 5, 6, 4, 7, 7, 0, 0, { 1, 1 }, { 3, 4 }, { 1, 1 } }, /* wider than the image */
    { 1, 1, 3, 32, 32, 20, 16, 16, 0, 0, { 16, 16 }, { 0, 0 }, { 1, 1 } },
    { 1, 1, 2, 4, 4, 3, 1, 1, 0, 0, { 40, 40 }, { 0, 0 }, { 1, 1 } }, /* a stride beyond it */
    { 2, 2, 6, 8, 9, 10, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },  /* groups */
    { 2, 3, 6, 9, 8, 9, 3, 2, 0, 0, { 2, 1 }, { 1, 0 }, { 1, 2 } },
    { 2, 2, 4, 8, 8, 6, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 2, 6, 6, 12, 11, 6, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* depthwise */
    { 3, 5, 5, 9, 9, 10, 5, 5, 0, 0, { 2, 2 }, { 2, 2 }, { 1, 1 } },
    { 2, 4, 4, 17, 9, 4, 3, 3, 0, 0, { 3, 2 }, { 2, 2 }, { 2, 1 } },
    { 9, 3, 3, 40, 33, 3, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* in parts */
    { 0, 1, 3, 5, 5, 4, 3, 3, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },   /* nothing */
    { 2, 1, 0, 5, 5, 4, 3, 3, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 2, 1, 3, 5, 5, 0, 3, 3, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },
    { 2, 1, 3, 0, 4, 4, 3, 3, 0, 0, { 1, 1 }, { 2, 1 }, { 1, 1 } },     /* padding alone */
    { 2, 2, 16, 11, 10, 32, 3, 3, 0, 0, { 2, 1 }, { 1, 2 }, { 1, 2 } }, /* channels in eights */
};

enum { CONVS = sizeof convs / sizeof *convs };

static inline tni_conv2d_sizes conv_of(int i)
{
    tni_conv2d_sizes c = convs[i];
    c.oh = (c.h + 2 * c.padding[0] - c.dilation[0] * (c.kh - 1) - 1) / c.stride[0] + 1;
    c.ow = (c.w + 2 * c.padding[1] - c.dilation[1] * (c.kw - 1) - 1) / c.stride[1] + 1;
    return c;
}

/* Layouts of a matrix. */
enum { PLAIN, TURNED, WIDE, LOOSE, LAYOUTS }; /* LOOSE: no unit stride */

/* Strides of a matrix [rows, cols] in a layout; the elements of memory that it spans. */
static inline int64_t lay_out(int layout, int64_t rows, int64_t cols, int64_t *row, int64_t *col)
{
    int64_t gap = layout == WIDE ? 3 : 0;
    *row = layout == TURNED ? 1 : layout == LOOSE ? 2 * cols + 1 : cols + gap;
    *col = layout == TURNED ? rows : layout == LOOSE ? 2 : 1;
    return layout == LOOSE ? rows * (2 * cols + 1) : rows * (cols + gap);
}

#endif
