/*
 * The gradient of cross entropy: probabilities minus the wanted ones, over the number of rows.
 */
#include <tenon/tenon.h>

tn_tensor *cross_entropy_gradient(tn_tensor *logits, tn_tensor *target)
{
    tn_tensor *p = tn_softmax(logits, -1);
    tn_tensor *wanted = tn_to_dtype(tn_one_hot(target, tn_size(logits, 1)), tn_dtype_of(logits));
    return tn_div_scalar(tn_sub(p, wanted), (double)tn_size(logits, 0));
}
