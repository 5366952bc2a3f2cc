/* net.h - a small convolutional network with BatchNorm, for images of 28 x 28. */
#pragma once

#include <tenon/tenon.h>

/**
 * Logits [N, 10] for images [N, 1, 28, 28] of bytes (u8) or floats, 0 to 255:
 * (x - mean) / deviation, Conv(1,32,3)-BN-ReLU-MaxPool, Conv(32,64,3)-BN-ReLU-MaxPool,
 * Linear(3136,128)-ReLU-Linear(128,10); the convolutions pad by 1. After each MaxPool come blocks
 * times x + ReLU(BN(Conv(x))), with kernels of 3 x 3 and as many channels.
 *
 * Buffers  mean, deviation: of the training images, so that the file of weights carries what the
 *          weights were made for; of each BN: running_mean, running_var, num_batches_tracked
 */
tn_module *net_new(double mean, double deviation, int blocks);
