/*
 * Adam: Kingma and Ba (2015), algorithm 1. tn_lerp_(m, g, 1 - b1) is m += (1 - b1) (g - m).
 */
#include <math.h>
#include <tenon/tenon.h>

tn_status adam(tn_tensor *p, tn_tensor *g, tn_tensor *m, tn_tensor *v, int step)
{
    const double lr = 0.1, b1 = 0.9, b2 = 0.999, eps = 1e-8;
    tn_status status = tn_lerp_(m, g, 1 - b1);
    if (status == TN_OK) status = tn_lerp_(v, tn_square(g), 1 - b2);
    tn_tensor *mean = tn_div_scalar(m, 1 - pow(b1, step));
    tn_tensor *size = tn_sqrt(tn_div_scalar(v, 1 - pow(b2, step)));
    tn_tensor *move = tn_mul_scalar(tn_div(mean, tn_add_scalar(size, eps)), lr);
    return status == TN_OK ? tn_sub_(p, move) : status;
}
