/**
 * tenon/nn.h - modules: module.h, layers.h and init.h in one.
 */
#ifndef TENON_NN_H
#define TENON_NN_H

#include <tenon/module.h>
#include <tenon/layers.h>
#include <tenon/init.h>

#endif
