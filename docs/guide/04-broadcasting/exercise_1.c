/*
 * Broadcasting in reverse: dy is the gradient of a result to whose shape an input of the given
 * shape was stretched. Return the gradient of that input: dy summed over what was stretched.
 *   - axes that the input does not have (dy has more, at the front) are summed away;
 *   - axes where the input has size 1 and dy has more are summed and keep size 1.
 */
#include <tenon/tenon.h>

tn_tensor *sum_to(tn_tensor *dy, tn_shape shape)
{
    (void)shape;
    return dy; /* your code here */
}
