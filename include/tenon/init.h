/**
 * tenon/init.h - initial values of parameters: in place, under no grad, in PyTorch's draw order.
 */
#ifndef TENON_INIT_H
#define TENON_INIT_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/** What follows the layer that is initialised. */
typedef enum tn_nonlinearity {
    TN_NL_LINEAR,
    TN_NL_SIGMOID,
    TN_NL_TANH,
    TN_NL_RELU,
    TN_NL_LEAKY_RELU,
    TN_NL_SELU
} tn_nonlinearity;
/** sqrt(2) for relu, 5/3 for tanh, 3/4 for selu, sqrt(2 / (1 + slope^2)) for leaky relu (slope
 *  counts there only), else 1: PyTorch's calculate_gain. NaN for a value outside the enum. */
TN_API double tn_init_gain(tn_nonlinearity nonlinearity, double slope);
/* sizes of axis 1 and axis 0, times the product of the others; rank >= 2 */
TN_API tn_status tn_init_fans(const tn_tensor *t, int64_t *fan_in, int64_t *fan_out);
/** U(low, high), as tn_uniform_ */
TN_API tn_status tn_init_uniform(tn_tensor *t, double low, double high);
/** N(mean, deviation), as tn_normal_ */
TN_API tn_status tn_init_normal(tn_tensor *t, double mean, double deviation);
TN_API tn_status tn_init_constant(tn_tensor *t, double value); /* value, every element */
/** Normal values within [low, high], drawn as PyTorch 2.15 and later do. If more than 0.3 of the
 *  distribution lies there: normal values, drawn again while outside. Else: uniform values,
 *  accepted by the density. Where fewer than about one in a thousand of these would be accepted:
 *  the inverse distribution function, as PyTorch did before. */
TN_API tn_status tn_init_truncated_normal(tn_tensor *t, double mean, double deviation, double low,
                                          double high);
/** U(+-gain sqrt(6 / (fan_in + fan_out))). Glorot and Bengio (2010), eq. 16 */
TN_API tn_status tn_init_xavier_uniform(tn_tensor *t, double gain);
/** N(0, gain sqrt(2 / (fan_in + fan_out))). Same source. */
TN_API tn_status tn_init_xavier_normal(tn_tensor *t, double gain);
/** U(+-gain sqrt(3 / fan)), fan being fan_out or fan_in. He et al. (2015), eq. 14 */
TN_API tn_status tn_init_kaiming_uniform(tn_tensor *t, double slope, bool fan_out,
                                         tn_nonlinearity nl);
/** N(0, gain / sqrt(fan)). Same source. */
TN_API tn_status tn_init_kaiming_normal(tn_tensor *t, double slope, bool fan_out,
                                        tn_nonlinearity nl);
/** gain times a matrix with orthonormal rows or columns, whichever are fewer; further axes count as
 *  columns. Q of the QR factorisation of normal values with R's diagonal positive, in f64. Errors:
 *  fewer than 2 axes. Saxe et al. (2014). PyTorch: init.orthogonal_ */
TN_API tn_status tn_init_orthogonal(tn_tensor *t, double gain);

TN_END_C_
#endif
