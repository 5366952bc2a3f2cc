/*
 * classes.h - which targets of a loss count, one source for C and CUDA: a target is a class below
 * c, or marks its row as ignored; -100 always does (PyTorch's default).
 */
#pragma once

#include "tensor/math.h" /* TN_FN */

typedef enum tni_class { TNI_CLASS_IGNORED, TNI_CLASS_BAD, TNI_CLASS_GOOD } tni_class;

TN_FN tni_class tni_class_of(int64_t target, int64_t c, int64_t ignore)
{
    if (target == -100 || target == ignore) return TNI_CLASS_IGNORED;
    return target < 0 || target >= c ? TNI_CLASS_BAD : TNI_CLASS_GOOD;
}

/* The end of a message about a target that is no class of c. */
#define TNI_CLASS_HINT(t, c) ((t) == (c) ? "; of labels from 1, want 1 subtracted" : "")
