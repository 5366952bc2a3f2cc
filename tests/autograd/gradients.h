/*
 * gradients.h - for tests of gradients: leaves, passes, and functions in a line.
 */
#ifndef TENON_TESTS_GRADIENTS_H
#define TENON_TESTS_GRADIENTS_H

#include "files.h"

/* Tensors from literals. */
#define F32(shape, ...) tn_from_floats((const float[]){ __VA_ARGS__ }, shape)
#define F64(shape, ...) from_f64((const double[]){ __VA_ARGS__ }, shape)

/* t, which wants a gradient from here on. */
static inline tn_tensor *leaf(tn_tensor *t)
{
    assert_made(t);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* Backward from the sum of y's elements. */
#define assert_backward(y) assert_ok(tn_backward(tn_sum_all(y)))

/* A tn_function: of its inputs x, and of user. */
#define FUNCTION(name, ...)                                                                        \
    static tn_tensor *name(tn_tensor **x, void *user)                                              \
    {                                                                                              \
        (void)x, (void)user;                                                                       \
        return __VA_ARGS__;                                                                        \
    }
/* A hook on a tensor: what it gives for the gradient g. */
#define HOOK(name, ...)                                                                            \
    static tn_tensor *name(tn_tensor *g, void *user)                                               \
    {                                                                                              \
        (void)g, (void)user;                                                                       \
        return __VA_ARGS__;                                                                        \
    }

/* The two functions of a tn_custom_op. */
#define FORWARD(name)                                                                              \
    static tn_status name(CK_ATTRIBUTE_UNUSED tn_custom *c, CK_ATTRIBUTE_UNUSED int n_in,          \
                          CK_ATTRIBUTE_UNUSED tn_tensor *const *in, CK_ATTRIBUTE_UNUSED int n_out, \
                          tn_tensor **out)
#define BACKWARD(name)                                                                             \
    static tn_status name(CK_ATTRIBUTE_UNUSED tn_custom *c, CK_ATTRIBUTE_UNUSED int n_out,         \
                          tn_tensor *const *dout, CK_ATTRIBUTE_UNUSED int n_in, tn_tensor **din)

#endif
