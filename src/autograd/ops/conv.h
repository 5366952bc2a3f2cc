/* conv.h - what convolutions, pooling and the layers of both share. */
#pragma once

#include "autograd/op.h"

/* x of one or two axes behind [N,C] or [C] as images [N,C,H,W]; lines have a height of 1. */
tn_tensor *tni_as_images(tn_tensor *x, int axes);
/* And back: such images y without the axes that *given, x's shape, did not have. */
tn_tensor *tni_as_given(tn_tensor *y, const tn_shape *given, int axes);
/* Whether a convolution of so many axes takes these numbers; else an error of tn_NAME. */
tn_status tni_check_conv(const char *name, const tn_conv_spec *spec, int axes, bool transposed);
