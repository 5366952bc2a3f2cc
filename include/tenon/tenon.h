/** tenon/tenon.h - everything: include this one. */
#ifndef TENON_TENON_H
#define TENON_TENON_H

#include <tenon/error.h>
#include <tenon/tensor.h>
#include <tenon/ops.h>
#include <tenon/autograd.h>
#include <tenon/nn.h>
#include <tenon/optim.h>
#include <tenon/capture.h>
#include <tenon/io.h>

#endif
