/*
 * resnet.h - the residual network of 18 layers (He et al., Deep Residual Learning, 2016, table 1).
 * Names of parameters and buffers are torchvision's.
 */
#pragma once

#include <tenon/tenon.h>

/* [N, 3, H, W] -> [N, classes], scores. width: channels of the first stage; 64 in the paper, and in
 * torchvision's files. Current scope. */
tn_module *resnet_new(int width, int classes);
