/*
 * classes.h - which target of a loss counts, one text for C and CUDA: a class of c, or a mark that
 * the row is to be ignored, for which -100 always stands (as PyTorch's default does).
 */
#ifndef TNI_CLASSES_H
#define TNI_CLASSES_H

#include "tensor/math.h" /* TN_FN */

typedef enum tni_class { TNI_CLASS_IGNORED, TNI_CLASS_BAD, TNI_CLASS_GOOD } tni_class;

TN_FN tni_class tni_class_of(int64_t target, int64_t c, int64_t ignore)
{
    if (target == -100 || target == ignore) return TNI_CLASS_IGNORED;
    return target < 0 || target >= c ? TNI_CLASS_BAD : TNI_CLASS_GOOD;
}

#endif
