/* net.h - a small convolutional network with BatchNorm, for images of 28 x 28. */
#ifndef BATCHNORM_NET_H
#define BATCHNORM_NET_H

#include <tenon/tenon.h>

/**
 * Logits [N, 10] for images [N, 1, 28, 28] of bytes (u8) or floats, 0 to 255:
 * (x - mean) / deviation, Conv(1,32,3)-BN-ReLU-MaxPool, Conv(32,64,3)-BN-ReLU-MaxPool,
 * Linear(3136,128)-ReLU-Linear(128,10); the convolutions pad by 1.
 *
 * Buffers  mean, deviation: of the training images, so that the file of weights carries what the
 *          weights were made for; bn1, bn2: running_mean, running_var, num_batches_tracked
 */
tn_module *net_new(double mean, double deviation);

#endif
