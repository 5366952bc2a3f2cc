/*
 * autograd.h - what the files of the suite autograd share.
 */
#ifndef TENON_TESTS_AUTOGRAD_H
#define TENON_TESTS_AUTOGRAD_H

#include "autograd/gradients.h"

/* A leaf of f32, of one axis. */
#define LEAF(...)                                                                                  \
    leaf(F32(TN_SHAPE((int64_t)(sizeof((float[]){ __VA_ARGS__ }) / sizeof(float))), __VA_ARGS__))
#define assert_grad(t, ...) assert_values(tn_grad(t), 1e-6, __VA_ARGS__)

/* The test cases of the files autograd_*.c. */
void autograd_hook_cases(Suite *suite);
void autograd_depth_cases(Suite *suite);
void autograd_failure_cases(Suite *suite);

#endif
