/*
 * Clipping by the joint norm.
 */
#include <math.h>
#include <tenon/tenon.h>

double clip(tn_list *parameters, double limit)
{
    double squares = 0;
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *g = tn_grad(parameters->entry[i].tensor);
        if (!tn_is_none(g)) squares += tn_item(tn_sum_all(tn_square(g)));
    }
    double norm = sqrt(squares);
    for (int i = 0; i < parameters->n && norm > limit; i++) {
        tn_tensor *g = tn_grad(parameters->entry[i].tensor);
        if (!tn_is_none(g) && tn_mul_scalar_(g, limit / norm) != TN_OK) return NAN;
    }
    return norm;
}
