/**
 * tenon/derivatives.h - derivatives of a function as a whole: products with its Jacobian, the
 * Jacobian, the Hessian, products with the Hessian.
 *
 * They are those of torch.autograd.functional: they take f, its n inputs and user, call f once,
 * with aliases of the inputs, and leave results to the current scope. In common:
 *
 * inputs   floating tensors, whether or not they require grad. f reads what it is given, not the
 *          caller's tensors; what it finds through user counts as constant
 * v        has the shape and dtype of the tensor that it goes with; TN_NONE: 1, for one element
 * y        NULL, or filled with f(inputs)
 * flags    TN_CREATE_GRAPH: results have history, which leads to the inputs that require grad.
 *          TN_STRICT: an input that the result does not depend on is an error; without it, its
 *          derivative is zeros
 * Changes  nothing: no tensor of the caller gets a gradient, and grad mode is as it was
 * Errors   those of f and of backward; f or an array is NULL; n below 1; an input, or f's result,
 *          that is not floating; a v that does not fit; a result of more than 8 axes. Then all
 *          results are NULL, and nothing is left behind
 */
#ifndef TENON_DERIVATIVES_H
#define TENON_DERIVATIVES_H

#include <tenon/autograd.h>
#include <tenon/nn.h> /* for one release: nothing here needs it */

TN_BEGIN_C_

/** A flag of these functions. */
enum { TN_STRICT = 4 }; /* beside TN_CREATE_GRAPH */

/**
 * J^T v, J = dy/dx: v times how y depends on each input. One backward.
 *
 * v    one tensor, of y's shape
 * dx   n results, of the inputs' shapes
 */
TN_API TN_MUST_USE tn_status tn_vjp(tn_function f, tn_tensor *const *inputs, int n, void *user,
                                    tn_tensor *v, tn_tensor **y, tn_tensor **dx, int flags);

/**
 * J v: how y changes when the inputs move along v. A backward through the recorded backward.
 *
 * v       n tensors, of the inputs' shapes
 * dy      one result, of y's shape
 * Source  Townsend, A new trick for calculating Jacobian vector products (2017)
 */
TN_API TN_MUST_USE tn_status tn_jvp(tn_function f, tn_tensor *const *inputs, int n, void *user,
                                    tn_tensor *const *v, tn_tensor **y, tn_tensor **dy, int flags);

/**
 * dy[...] / dx_i[...] for all elements of both. One backward for each element of y.
 *
 * jacobian  n results, [i] of y's shape followed by input i's
 */
TN_API TN_MUST_USE tn_status tn_jacobian(tn_function f, tn_tensor *const *inputs, int n, void *user,
                                         tn_tensor **jacobian, int flags);

/**
 * d^2 y / dx_i[...] dx_j[...] of an f whose result has one element. One backward for each element
 * of the inputs.
 *
 * hessian  n * n results, [i * n + j] of input i's shape followed by input j's
 * Errors   f's result has more than one element
 */
TN_API TN_MUST_USE tn_status tn_hessian(tn_function f, tn_tensor *const *inputs, int n, void *user,
                                        tn_tensor **hessian, int flags);

/**
 * H v, H the Hessian of an f whose result has one element: how its gradient changes along v. A
 * backward through the recorded backward: the cost of two, however large H would be.
 *
 * v       n tensors, of the inputs' shapes
 * hv      n results, of the inputs' shapes
 * Errors  f's result has more than one element
 * Source  Pearlmutter, Fast exact multiplication by the Hessian (1994)
 */
TN_API TN_MUST_USE tn_status tn_hvp(tn_function f, tn_tensor *const *inputs, int n, void *user,
                                    tn_tensor *const *v, tn_tensor **y, tn_tensor **hv, int flags);

TN_END_C_
#endif
