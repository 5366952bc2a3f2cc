/*
 * Checks exercise 1 against finite differences of the loss, which is written out here.
 */
#include "../check.h"

tn_tensor *cross_entropy_gradient(tn_tensor *logits, tn_tensor *target);

static const int64_t classes[] = { 2, 0 };

static tn_tensor *loss(tn_tensor *logits)
{
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        double total = 0;
        for (int j = 0; j < 3; j++) total += exp(tn_at(logits, TN_INDEX(i, j)));
        sum -= log(exp(tn_at(logits, TN_INDEX(i, classes[i]))) / total);
    }
    return tn_full_as(TN_SCALAR, sum / 2, TN_F64, tn_cpu());
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *logits =
            tn_from_data((double[]){ 0.3, -1, 2, 0.5, 0.1, -0.7 }, TN_SHAPE(2, 3), TN_F64);
        tn_tensor *target = tn_from_ints(classes, TN_SHAPE(2));
        tn_tensor *one = tn_full_as(TN_SCALAR, 1, TN_F64, tn_cpu());
        want_same("the gradient", cross_entropy_gradient(logits, target),
                  moved_gradient(loss, logits, one));
    }
    return right();
}
